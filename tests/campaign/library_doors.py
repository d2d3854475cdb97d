"""Doors of the files that other libraries parse for this package: any bytes are read as voxels, ids
or settings, or raise an error of this package. HDF5 is none: its library crashes on some bytes."""

from __future__ import annotations

import gzip
import io
import logging
import warnings
import zipfile
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.clusters.config import load_config
from wkwdask.formats import opening
from wkwdask.formats.pictures.sources import PlainOptions, open_plain
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.ids.id_source import open_mapping

from .door import Door, door_of_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MOST_EDGE, _MOST_CHANNELS, _MOST_PARTS = 16, 4, 3
_HEADER_NBYTES = 16

for _library in ("tifffile", "nibabel.global"):
    logging.getLogger(_library).setLevel(logging.CRITICAL)


def _read_corners(volume: Any) -> None:
    """Read a few voxels at the lowest and the highest corner."""
    box = volume.box
    size = tuple(min(n, _MOST_EDGE) for n in box.size)
    shape = (min(volume.num_channels, _MOST_CHANNELS), *size)
    highest = tuple(end - n for end, n in zip(box.bottomright, size, strict=True))
    for corner in {box.topleft, highest}:
        volume.read_into(np.empty(shape, volume.dtype, order="F"), corner)


def _voxels_of(name: str) -> Callable[[Path], None]:
    """Return a function that reads a file as ``convert`` does."""

    def read(folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _read_corners(open_plain(f"{folder}/{name}", PlainOptions(None, MAG_1)).volume)

    return read


def _pairs_of(name: str) -> Callable[[Path], None]:
    """Return a function that reads some of the pairs of a mapping."""
    return lambda folder: deque(
        islice(open_mapping(f"{folder}/{name}").chunks(), _MOST_PARTS), maxlen=0
    )


def _picture(name: str, file: str, *needs: str) -> Door:
    return door_of_file(name, file, _voxels_of(file), *needs, kind="library")


def _packed(door: Door, pack: Callable[[bytes], bytes]) -> Door:
    """Return a door whose bytes are packed into a valid container, which mutations would break."""
    return Door(door.name, lambda data: door.use(pack(data)), door.kind, door.errors, door.needs)


def _zipped_mag(data: bytes) -> bytes:
    """Return a zip with a mag of one file, whose header is that of the mag."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("1/header.wkw", data[:_HEADER_NBYTES])
        archive.writestr("1/z0/y0/x0.wkw", data)
    return memory.getvalue()


def _read_zipped(folder: Path) -> None:
    for image in opening.find(f"{folder}/mag.zip|zip:1").layers:
        for level in image.levels:
            _read_corners(level.open())


LIBRARIES = (
    _picture("TIFF", "a.tif", "tifffile"),
    _picture("PNG", "a.png", "imagecodecs"),
    _picture("JPEG", "a.jpg"),
    _picture("npy", "a.npy"),
    _picture("NIfTI", "a.nii", "nibabel"),
    _packed(_picture("NIfTI in gzip", "a.nii.gz", "nibabel"), gzip.compress),
    _picture("MRC", "a.mrc", "mrcfile"),
    _packed(_picture("MRC in gzip", "a.mrc.gz", "mrcfile"), gzip.compress),
    door_of_file(
        "mapping in Parquet", "ids.parquet", _pairs_of("ids.parquet"), "pyarrow", kind="library"
    ),
    door_of_file("mapping in npy", "ids.npy", _pairs_of("ids.npy"), kind="library"),
    door_of_file(
        "cluster", "lab.yaml", lambda folder: load_config(f"{folder}/lab.yaml"), kind="library"
    ),
    door_of_file(
        "batch script",
        "lab.sbatch",
        lambda folder: load_config(f"{folder}/lab.sbatch"),
        kind="library",
    ),
    _packed(door_of_file("WKW in zip", "mag.zip", _read_zipped), _zipped_mag),
)
