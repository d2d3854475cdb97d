"""A small dataset that looks like a piece of cortex: cells with membranes, nuclei-free cytoplasm, mitochondria, and their segmentation.

Every voxel follows from its position alone, so that chunks can be made anywhere and fit each other.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.formats.webknossos.datasource import FILE_NAME, format_datasource, new_document
from wkwdask.store.new_files import publish_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.runs.report import Report

VOXEL_SIZE_NM = (11.24, 11.24, 28.0)
OFFSET: Vec3 = (1000, 2000, 300)
SHAPE: Vec3 = (512, 512, 192)
_CHUNK = (128, 128, 64)
_FILE_LEN = 8
_PART = (16, 16, 16)  # so small that few cells are near and that arrays stay in the cache


def make_demo(folder: str | os.PathLike[str], *, shape: Sequence[int] = SHAPE) -> list[Report]:
    """Make a dataset with an image and a segmentation, and the pyramids of both.

    Runs on threads, or on the active dask Client.

    Parameters
    ----------
    folder : str or path
        The dataset's folder; it must not hold a dataset.
    shape : sequence of 3 int
        Extent along x, y, z [voxels].

    Returns
    -------
    list of Report
        Of the two layers and the two pyramids.

    Raises
    ------
    ExistsError
        There is something in the folder.
    """
    import dask.array as da

    from wkwdask.api import build_pyramid, to_wkw
    from wkwdask.errors import ExistsError

    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExistsError(f"{target}: already exists and is not empty; name another folder")
    target.mkdir(parents=True, exist_ok=True)
    publish_bytes(f"{target}/{FILE_NAME}", format_datasource(new_document(target.resolve().name, VOXEL_SIZE_NM)).encode())
    reports: list[Report] = []
    for layer, dtype in (("color", np.uint8), ("segmentation", np.uint32)):
        chunks = da.core.normalize_chunks(_CHUNK, shape=tuple(shape), dtype=dtype)
        voxels = da.map_blocks(_demo_chunk, chunks=chunks, dtype=dtype, meta=np.empty((0, 0, 0), dtype), layer=layer)
        reports.append(to_wkw(voxels, target / layer / "1", offset=OFFSET, file_len=_FILE_LEN))
        reports.append(build_pyramid(target, layer))
    return reports


def _demo_chunk(*, layer: str, block_info: Any) -> npt.NDArray[Any]:
    """Make one chunk of a layer, shape (x, y, z)."""
    from wkwdask.viewer.demo_voxels import make_image, make_labels

    low, high = zip(*block_info[None]["array-location"], strict=True)
    out = np.empty(np.subtract(high, low), np.uint8 if layer == "color" else np.uint32)
    for part in product(*(range(0, length, edge) for length, edge in zip(out.shape, _PART, strict=True))):
        inside = out[tuple(slice(at, at + edge) for at, edge in zip(part, _PART, strict=True))]
        corner = tuple(a + b for a, b in zip(low, part, strict=True))
        inside[...] = make_image(corner, inside.shape) if layer == "color" else make_labels(corner, inside.shape)
    return out
