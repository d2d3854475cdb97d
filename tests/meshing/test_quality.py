"""Surfaces are those of the voxels, closed, and without seams between cells, in all levels of
detail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mesh_files import (
    dice,
    num_levels,
    num_open_edges,
    read_fragments,
    read_level,
    volume,
    voxelised,
)
from support.strategies import HEAVY

import wkwdask

pytestmark = pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
EACH_SIMPLIFIER = [
    "pyfqmr",
    pytest.param("meshoptimizer", marks=pytest.mark.needs("meshoptimizer")),
]
LENGTHS = (8.0, 6.0, 30.0)
TOPLEFT = (101, 35, -7)


def meshed(folder, labels, *, topleft=TOPLEFT, lengths=LENGTHS, **options):
    """Mesh labels; return the folder of the meshes and the report."""
    url = f"precomputed://{folder}"
    wkwdask.save(labels, url, voxel_size=lengths, offset=topleft, category="segmentation")
    report = wkwdask.meshes(url, **options)
    return Path(folder) / "mesh", report


def in_voxels(vertices, topleft=TOPLEFT, lengths=LENGTHS):
    return vertices / lengths - topleft


def random_labels(seed, shape, smooth):
    """Return blobs of a few labels, or noise."""
    random = np.random.default_rng(seed)
    if not smooth:
        return random.integers(0, 4, shape).astype(np.uint32)
    from scipy.ndimage import gaussian_filter

    fields = [gaussian_filter(random.normal(size=shape), smooth) for _ in range(4)]
    return np.argmax(fields, axis=0).astype(np.uint32)


@given(
    seed=st.integers(0, 2**32),
    shape=st.tuples(*[st.integers(1, 13)] * 3),
    smooth=st.sampled_from([0, 1.5]),
    cell=st.integers(2, 9),
)
def test_all_faces_enclose_the_voxels(tmp_path_factory, seed, shape, smooth, cell):
    labels = random_labels(seed, shape, smooth)
    folder, _ = meshed(tmp_path_factory.mktemp("m") / "v", labels, cell=cell, error=0)
    for label in np.unique(labels[labels > 0]).tolist():
        for lod in range(num_levels(folder, label)):
            vertices, faces = read_level(folder, label, lod)
            assert num_open_edges(vertices, faces) == 0
            # coarse levels have fewer positions in a voxel
            if lod == 0:
                inside = voxelised(in_voxels(vertices), faces, shape)
                assert (inside == (labels == label)).all()
                assert volume(vertices, faces) > 0


@pytest.mark.parametrize("simplifier", EACH_SIMPLIFIER)
@HEAVY
@given(
    seed=st.integers(0, 2**32),
    smooth=st.sampled_from([0, 1.5, 3]),
    cell=st.integers(5, 12),
    error=st.sampled_from([0.5, 2.0]),
)
def test_simple_surfaces_are_closed(tmp_path_factory, simplifier, seed, smooth, cell, error):
    labels = random_labels(seed, (24, 20, 16), smooth)
    folder, _ = meshed(
        tmp_path_factory.mktemp("m") / "v", labels, cell=cell, error=error, simplifier=simplifier
    )
    for label in np.unique(labels[labels > 0]).tolist():
        faces_of = []
        for lod in range(num_levels(folder, label)):
            vertices, faces = read_level(folder, label, lod)
            assert num_open_edges(vertices, faces) == 0
            faces_of.append(len(faces))
        assert faces_of == sorted(faces_of, reverse=True)


def test_faces_do_not_cross_cells(tmp_path):
    """In a coarser level, the decoder of Neuroglancer cuts fragments at the middle of their
    cell."""
    labels = random_labels(3, (60, 50, 40), 3)
    folder, report = meshed(tmp_path / "v", labels, cell=9)
    assert "4 levels of detail" in report.note
    edge = 9 * np.array(LENGTHS)
    origin = (np.array(TOPLEFT) - 0.5) * LENGTHS
    for label in (1, 2, 3):
        for lod, cell, vertices, faces in read_fragments(folder, label):
            size = edge * 2**lod
            at = (vertices - origin) / size - cell
            assert at.min() >= -1e-6
            assert at.max() <= 1 + 1e-6
            if lod:
                half = 2**15 / (2**16 - 1)
                sides = np.sign((at - half).round(6))[faces]
                assert (sides.min(axis=1) * sides.max(axis=1) >= 0).all()


@pytest.mark.long
@pytest.mark.parametrize("simplifier", EACH_SIMPLIFIER)
def test_neurons_keep_their_shape(tmp_path, shared_data, simplifier):
    shape, lengths = (160, 160, 160), (32.0, 32.0, 40.0)
    labels = wkwdask.open(shared_data / "connectomics_seg")[0, 140:300, 140:300, 140:300].compute()
    options = {"topleft": (0, 0, 0), "lengths": lengths, "cell": 64}
    raw_folder, _ = meshed(tmp_path / "raw", labels, error=0, lods=1, **options)
    folder, report = meshed(tmp_path / "v", labels, simplifier=simplifier, **options)
    ids, counts = np.unique(labels[labels > 0], return_counts=True)
    assert report.note.startswith(f"{len(ids)} labels;")
    volumes, dices, hits, totals = [], [], 0, 0
    for label, count in zip(ids.tolist(), counts.tolist(), strict=True):
        raw_vertices, raw_faces = read_level(raw_folder, label, 0)
        assert num_open_edges(raw_vertices, raw_faces) == 0
        assert (voxelised(raw_vertices / lengths, raw_faces, shape) == (labels == label)).all()
        raw, row = volume(raw_vertices, raw_faces), []
        for lod in range(num_levels(folder, label)):
            vertices, faces = read_level(folder, label, lod)
            assert num_open_edges(vertices, faces) == 0, (label, lod)
            row.append(volume(vertices, faces))
            if lod == 0:
                inside = voxelised(vertices / lengths, faces, shape)
                dices.append(dice(inside, labels == label))
                hits += (inside & (labels == label)).sum()
                totals += inside.sum() + count
        # a label that has no coarser level is shown in its finest one
        volumes.append([raw, *row, *[row[-1]] * (4 - len(row))][:4])
        if count > 1000:
            assert row[0] >= 0.95 * raw, (label, count, row[0] / raw)
    sums = np.sum(volumes, axis=0)
    assert sums[1] >= 0.98 * sums[0]
    assert sums[3] >= 0.9 * sums[0]
    assert 2 * hits / totals >= 0.98
    assert np.median(dices) >= 0.9
    print(simplifier, report.note, sums / sums[0], 2 * hits / totals, np.median(dices))
