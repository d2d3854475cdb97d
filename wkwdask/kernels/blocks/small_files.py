"""The door to reading many files of one block each: one compiled call opens, reads, checks and closes all files of a box.

It is called with an open folder and opens files below it by the C library's own functions. Whatever is not plainly right is left to the caller, who looks
at that file with care: so no error is told here.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from wkwdask.kernels.blocks.libc_names import CLOSE, ERRNO, OPENAT, PREAD

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Table = npt.NDArray[np.int64]
    Vec3 = tuple[int, int, int]

_MOST_FILES = 4096


class Layout(NamedTuple):
    """What all files of a mag have in common."""

    head: npt.NDArray[np.uint8]
    """The bytes that each begins with; in byte 5 the two compressed block types pass for each other."""
    compressed: bool
    """Whether blocks are LZ4 and a jump table follows the header."""
    block_len: int
    """Edge of a block, which is a file [voxels]."""
    block_nbytes: int
    """Length of a decoded block [bytes]."""
    most_nbytes: int
    """How much of a file is read; one that takes more is unusual [bytes]."""


class Found(NamedTuple):
    """What became of consecutive files."""

    stop: int
    """Number of the first file that was not looked at."""
    blocks: Table
    """One row for each block, the columns of ``blocks_layout``."""
    absent: Table
    """One such row for each file that is not stored; only its lowest voxel means something."""
    unusual: Table
    """Index along x, y, z of each file that could not be opened or read, or whose bytes are not as expected."""


@cache
def _kernels() -> Any:
    """Import the compiled loops where the C library has what they call, else give None."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    if not all(hasattr(library, name) for name in (OPENAT, PREAD, CLOSE, ERRNO)):
        return None
    from wkwdask.kernels.blocks import small_files_compiled

    return small_files_compiled


def is_available() -> bool:
    """Tell whether :func:`read_files` can be called here."""
    return _kernels() is not None


def read_files(mag: int, files: tuple[range, range, range], first: int, layout: Layout, origin: Vec3, memory: npt.NDArray[np.uint8]) -> Found:
    """Read files ``z{Z}/y{Y}/x{X}.wkw`` of a box, as many as the memory holds, without the GIL."""
    if memory.size < layout.most_nbytes:
        raise ValueError(f"a file takes up to {layout.most_nbytes} bytes, got memory for {memory.size}")
    low, counts = tuple(r.start for r in files), tuple(len(r) for r in files)
    return Found(*_kernels().read_files(mag, low, counts, first, *layout, origin, memory, _MOST_FILES))
