"""Volumes of the toy format that numpy alone writes."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from support.toy_format import FILE_NAME, LEVEL_NAME

from wkwdask.geometry.bounding_box import BoundingBox

if TYPE_CHECKING:
    from pathlib import Path

    from wkwdask.geometry.mag import Mag


def save_toy(
    folder: Path,
    levels: dict[str, tuple[Mag, tuple[int, int, int], np.ndarray]],
    category="color",
    voxel_size=(4.0, 4.0, 40.0),
    chunk=(8, 16, 8),
):
    """Write arrays (c, x, y, z) by numpy alone; each level has a mag and an offset."""
    listed = [
        {"name": name, "mag": list(mag.factors), "offset": list(offset)}
        for name, (mag, offset, _) in levels.items()
    ]
    folder.mkdir()
    (folder / FILE_NAME).write_text(
        json.dumps({"category": category, "voxel_size_nm": voxel_size, "levels": listed})
    )
    for name, (_, _, array) in levels.items():
        (folder / name).mkdir()
        said = {
            "dtype": array.dtype.name,
            "size": array.shape,
            "chunk": (len(array), *chunk),
            "compression": "raw",
        }
        (folder / name / LEVEL_NAME).write_text(json.dumps(said))
        for x, y, z in product(
            *(range(-(-n // edge)) for n, edge in zip(array.shape[1:], chunk, strict=True))
        ):
            low, high = np.array((x, y, z)) * chunk, np.array((x + 1, y + 1, z + 1)) * chunk
            part = array[:, low[0] : high[0], low[1] : high[1], low[2] : high[2]]
            if part.any():
                (folder / name / f"{x}.{y}.{z}.raw").write_bytes(part.tobytes(order="F"))


def box_of(mag: Mag, offset: tuple[int, int, int], array: np.ndarray) -> BoundingBox:
    """Return the box of a level."""
    return BoundingBox(offset, array.shape[1:], mag)
