"""The records of a stack of sections: where the pages of a slice are, and what its header says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.store import files

_SMALL_NBYTES = 64 << 20
_MOST_EXPANDED = 1 << 16
"""Bytes that one stored byte may become; only zeros and other constants come near."""


@dataclass(frozen=True, slots=True)
class Page:
    """One image in a file."""

    path: str
    offset: int = 0
    """Where a TIFF file has the directory of the page [bytes]."""
    number: int | None = None
    """Which page of the file it is, None where it has one."""

    @property
    def name(self) -> str:
        """What an error calls it."""
        return self.path if self.number is None else f"{self.path}: page {self.number}"


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """What all slices of a stack must have in common."""

    width: int
    """[pixels]"""
    height: int
    """[pixels]"""
    num_channels: int
    dtype: str
    """Type of one of them, in native byte order."""

    def __str__(self) -> str:
        channels = "" if self.num_channels == 1 else f" in {self.num_channels} channels"
        return f"{self.width} x {self.height} pixels of {self.dtype}{channels}"


@dataclass(frozen=True, slots=True)
class Slice:
    """One section of a stack: an image, or one for each of its channels."""

    pages: tuple[Page, ...]
    """Where its channels are; none where the section is missing."""
    format: PixelFormat | None = None
    tile_shape: tuple[int, int] = (0, 0)
    """The smallest box that can be decoded along x, y [pixels]."""
    problem: str = ""

    @property
    def name(self) -> str:
        """What an error calls it."""
        return self.pages[0].name if self.pages else "a section that is missing"


def stored_dtype(dtype: Any) -> np.dtype[Any]:
    """Choose the type that holds all values of a stored one: native byte order, bits become bytes, half floats single ones."""
    native = np.dtype(dtype).newbyteorder("=")
    wider = {"bool": "uint8", "float16": "float32"}.get(native.name)
    return native if wider is None else np.dtype(wider)


def check_plausible(nbytes: int, stored_nbytes: int, what: str) -> None:
    """Make sure that some bytes can become as many voxels as a header claims, before memory is taken for them."""
    if nbytes > _SMALL_NBYTES + _MOST_EXPANDED * stored_nbytes:
        raise CorruptError(f"{what} claims {nbytes} bytes of pixels, which {stored_nbytes} stored bytes cannot hold")


def file_stamp(path: str) -> tuple[int, int]:
    """Give size and time of modification of a file, zeros where it is gone."""
    try:
        status = files.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return 0, 0
    return status.st_size, status.st_mtime_ns
