"""Pictures of meshes: silhouettes of known shapes, what hides what, and the command."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image
from support.commands import run_here

import wkwdask
from wkwdask.errors import MissingError
from wkwdask.formats.precomputed.mesh_reader import Triangles
from wkwdask.viewer.mesh_picture import draw_mesh

SIZE, BLACK, WHITE = 200, (0, 0, 0), np.array([255, 255, 255], np.uint8)


def sphere(radius, centre=(0.0, 0.0, 0.0), rings=60):
    turns, heights = np.linspace(0, 2 * math.pi, 2 * rings), np.linspace(0, math.pi, rings)
    t, h = (axis.ravel() for axis in np.meshgrid(turns, heights, indexing="ij"))
    vertices = np.stack([np.cos(t) * np.sin(h), np.sin(t) * np.sin(h), np.cos(h)], 1)
    rows = np.arange(len(vertices)).reshape(len(turns), len(heights))
    a, b, c, d = (
        part.ravel() for part in (rows[:-1, :-1], rows[1:, :-1], rows[:-1, 1:], rows[1:, 1:])
    )
    faces = np.concatenate([np.stack([a, b, c], 1), np.stack([b, d, c], 1)])
    return Triangles(vertices * radius + centre, faces)


def drawn(mesh, size=SIZE):
    picture, per_pixel = draw_mesh(mesh, WHITE, BLACK, size)
    return np.asarray(picture)[:, :, 0].astype(float), per_pixel


def test_the_silhouette_of_a_sphere_is_a_disc():
    pixels, per_pixel = drawn(sphere(1000.0, (5e6, -300.0, 40.0)))
    assert per_pixel == pytest.approx(2000 / (0.9 * SIZE), rel=0.01)
    y, x = (np.indices(pixels.shape) + 0.5 - SIZE / 2) * per_pixel
    distance = np.hypot(x, y)
    assert (pixels[distance < 960] > 0).all()
    assert (pixels[distance > 1040] == 0).all()


def test_large_faces_have_no_holes():
    corners = np.array([[x, y, z] for x in (0, 9) for y in (0, 9) for z in (0, 9)], float)
    sides = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = np.array([face for a, b, c, d in sides for face in ((a, b, c), (a, c, d))])
    pixels, _ = drawn(Triangles(corners, faces))
    for line in (*pixels, *pixels.T):
        inside = np.flatnonzero(line)
        assert (line[inside.min() : inside.max() + 1] > 0).all() if len(inside) else True
    # a cube that is seen obliquely shows three sides, each of one brightness
    values, counts = np.unique(pixels[pixels > 0].round(), return_counts=True)
    assert (counts > 0.05 * SIZE**2).sum() == 3, values


def test_the_nearer_surface_is_seen():
    # the view is along the normal of this plane: a square in front of a larger one
    from wkwdask.viewer.mesh_picture import _rotation

    def square(edge, depth, tilt):
        flat = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]], float) * edge
        flat[:, 2] = depth + tilt * flat[:, 0]
        return flat @ _rotation()  # orthogonal: the inverse of its transpose

    faces = np.array([[0, 1, 2], [0, 2, 3]])
    for order in (1, -1):
        parts = [square(10, 5, 0.0), square(4, -5, 0.7)][::order]
        both = Triangles(np.concatenate(parts), np.concatenate([faces, faces + 4]))
        pixels, _ = drawn(both)
        centre, rim = pixels[SIZE // 2, SIZE // 2], pixels[SIZE // 2, 20]
        assert min(centre, rim) > 0
        assert centre != rim
        assert len(np.unique(pixels.round())) >= 3


def test_many_pixels_and_few_agree():
    mesh = sphere(3.0)
    large, small = drawn(mesh, 400)[0], drawn(mesh, 100)[0]
    reduced = large.reshape(100, 4, 100, 4).mean(axis=(1, 3))
    assert np.abs(reduced - small).mean() < 3


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_the_command_draws_a_mesh(tmp_path):
    voxels = np.zeros((40, 40, 40), np.uint32)
    voxels[4:36, 4:36, 4:36] = 7
    url = f"precomputed://{tmp_path / 'cells'}"
    wkwdask.save(voxels, url, voxel_size=(8, 8, 8), category="segmentation")
    with pytest.raises(MissingError, match="no document names its meshes; wkwdask meshes makes"):
        wkwdask.preview(url, tmp_path / "m.png", mesh=7)
    wkwdask.meshes(url, cell=16)
    output = tmp_path / "m.png"
    run = run_here("preview", url, "--mesh", "7", "--size", "300", "-o", output)
    assert run.returncode == 0, run.stderr
    with Image.open(output) as picture:
        assert picture.size == (300, 300)
        pixels = np.asarray(picture)
    colors = np.unique(pixels.reshape(-1, 3), axis=0)
    assert len(colors) > 3
    missing = run_here("preview", url, "--mesh", "9", "-o", output)
    assert missing.returncode == 1
    assert "no mesh of label 9" in missing.stderr
