"""Draw the mesh of one label as a picture, seen obliquely from above."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as Picture

from wkwdask.errors import MissingError
from wkwdask.formats.opening import find, recognised_url
from wkwdask.formats.precomputed.mesh_reader import open_meshes
from wkwdask.formats.registry import opening_format

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from wkwdask.array_types import ByteArray
    from wkwdask.formats.precomputed.mesh_reader import Triangles

    Floats = npt.NDArray[np.float64]

_TURN, _TILT = math.radians(30), math.radians(25)
_LIGHT = np.array([0.3, -0.5, -0.81])
_AMBIENT = 0.35
_SAMPLES = 2  # per pixel and axis
_BATCH = 1 << 20  # of samples of faces


def find_mesh(url: str | os.PathLike[str], layer: str | None, label: int) -> Triangles:
    """Read the mesh of a label of a volume or layer, in the finest level that is quickly drawn."""
    image = find(url).choose(layer)
    folder = next(iter(opening_format(recognised_url(url)).mesh_folders(image)), None)
    if folder is None:
        raise MissingError(
            f"{image.folder}: no document names its meshes; wkwdask meshes makes them"
        )
    return open_meshes(folder).triangles(label)


def draw_mesh(
    mesh: Triangles, color: ByteArray, background: tuple[int, ...], size: int
) -> tuple[Picture.Image, float]:
    """Draw a mesh in a square of some pixels; return the picture, and the length of a pixel
    [nm]."""
    seen = mesh.vertices @ _rotation().T
    low, high = seen.min(axis=0), seen.max(axis=0)
    length = max(float((high - low)[:2].max()), 1e-9) / (size * 0.9)
    edge = size * _SAMPLES
    corners = (seen - (low + high) / 2) / length * _SAMPLES + [edge / 2, edge / 2, 0]
    shades = np.zeros(edge * edge)
    _Canvas(edge, shades, np.full(edge * edge, np.inf)).add(corners[mesh.faces])
    shown = shades.reshape(edge, edge, 1)
    pixels = np.where(shown > 0, shown * color, np.array(background))
    picture = Picture.fromarray(pixels.round().astype(np.uint8))
    return picture.resize((size, size), Picture.Resampling.BOX), length


def _rotation() -> Floats:
    """Return the rotation of the volume to the axes of the picture: right, down, away."""
    turn, tilt = (np.array([math.cos(angle), math.sin(angle)]) for angle in (_TURN, _TILT))
    about_y = np.array([[turn[0], 0, turn[1]], [0, 1, 0], [-turn[1], 0, turn[0]]])
    about_x = np.array([[1, 0, 0], [0, tilt[0], -tilt[1]], [0, tilt[1], tilt[0]]])
    return np.asarray(about_x @ about_y)


class _Canvas:
    """Brightness and depth of the nearest surface at each sample of a square picture."""

    def __init__(self, edge: int, shades: Floats, depths: Floats) -> None:
        self._edge, self._shades, self._depths = edge, shades, depths

    def add(self, corners: Floats) -> None:
        """Draw faces, shape (n, 3, 3), by samples in them that are at most a pixel apart."""
        a, b, c = corners.transpose(1, 0, 2)
        normals = np.cross(b - a, c - a)
        lengths = np.linalg.norm(normals, axis=1)
        cosines = np.abs(normals @ (_LIGHT / np.linalg.norm(_LIGHT))) / np.maximum(lengths, 1e-30)
        shades = _AMBIENT + (1 - _AMBIENT) * cosines
        edges = (corners - np.roll(corners, 1, axis=1))[:, :, :2]
        steps = np.ceil(np.sqrt((edges**2).sum(axis=2)).max(axis=1)).astype(int) + 1
        for step in np.unique(steps).tolist():
            weights = _weights(step)
            rows = np.flatnonzero(steps == step)
            for part in np.array_split(rows, 1 + len(rows) * len(weights) // _BATCH):
                samples = np.einsum("sk,fkd->fsd", weights, corners[part]).reshape(-1, 3)
                self._put(samples, np.repeat(shades[part], len(weights)))

    def _put(self, samples: Floats, shades: Floats) -> None:
        columns = samples[:, 0].astype(int).clip(0, self._edge - 1)
        places = samples[:, 1].astype(int).clip(0, self._edge - 1) * self._edge + columns
        nearer = np.flatnonzero(samples[:, 2] < self._depths[places])
        # of several samples at one place the last one stays, which is the nearest
        nearer = nearer[np.argsort(-samples[nearer, 2], kind="stable")]
        self._depths[places[nearer]] = samples[nearer, 2]
        self._shades[places[nearer]] = shades[nearer]


def _weights(step: int) -> Floats:
    """Return barycentric coordinates of samples in a triangle whose edges have ``step`` of
    them."""
    n = np.arange(step)
    i, j = (axis.ravel() for axis in np.meshgrid(n, n, indexing="ij"))
    inside = i + j < step
    first, second = i[inside] / max(1, step - 1), j[inside] / max(1, step - 1)
    return np.stack([first, second, 1 - first - second], axis=1)
