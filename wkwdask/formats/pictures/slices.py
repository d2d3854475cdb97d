"""Records of image stacks: slices, their pages in files, and the pixel format that headers
state."""

from __future__ import annotations

from dataclasses import dataclass

from wkwdask.errors import CorruptError
from wkwdask.store.store import store_at

_SMALL_NBYTES = 64 << 20  # never suspicious
_MAX_EXPANSION = 1 << 16  # decoded bytes per stored byte; only constant images come near


@dataclass(frozen=True, slots=True)
class Page:
    """One image in a file."""

    path: str
    offset: int = 0
    """Offset of the directory (IFD) of a TIFF page [bytes]."""
    number: int | None = None
    """Number of the page, None if the file has only one."""
    data_offset: int | None = None
    """Offset of the pixels of a TIFF page [bytes], None if its directory states it."""

    @property
    def name(self) -> str:
        return self.path if self.number is None else f"{self.path}: page {self.number}"


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """Size and type of a slice; all slices of a stack share one."""

    width: int
    height: int
    num_channels: int
    dtype: str
    """Type of one channel in native byte order."""

    def __str__(self) -> str:
        channels = "" if self.num_channels == 1 else f" in {self.num_channels} channels"
        return f"{self.width} x {self.height} pixels of {self.dtype}{channels}"


@dataclass(frozen=True, slots=True)
class Slice:
    """One section of a stack: one image, or one for each channel."""

    pages: tuple[Page, ...]
    """Its images, empty if the section is missing."""
    format: PixelFormat | None = None
    """Format that the header states. None if the header cannot be read; ``problem`` then states
    why."""
    tile_shape: tuple[int, int] = (0, 0)
    """Smallest box that can be decoded along x, y [pixels]."""
    problem: str = ""

    @property
    def name(self) -> str:
        return self.pages[0].name if self.pages else "a missing section"


def check_plausible(nbytes: int, stored_nbytes: int, what: str) -> None:
    """Raise CorruptError if a header claims more values than the stored bytes can hold, before
    memory is allocated for them."""
    if nbytes > _SMALL_NBYTES + _MAX_EXPANSION * stored_nbytes:
        raise CorruptError(
            f"{what} claims {nbytes} bytes of values, which {stored_nbytes} stored bytes cannot "
            "hold"
        )


def file_stamp(path: str) -> tuple[int, int]:
    """Return size [bytes] and time of modification [ns] of a file, zeros if it is missing."""
    try:
        status = store_at(path).status()
    except (FileNotFoundError, NotADirectoryError):
        return 0, 0
    return status.st_size, status.st_mtime_ns
