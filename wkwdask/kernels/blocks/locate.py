"""The door to finding the stored blocks of a box: one compiled call gives their places and the byte ranges to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Table = npt.NDArray[np.int64]

_loaded: list[Any] = []


def _kernels() -> Any:
    """Import the compiled loops once; cheaper than an import statement for each small read."""
    if not _loaded:
        from wkwdask.kernels.blocks import locate_compiled

        _loaded.append(locate_compiled)
    return _loaded[0]


class Located(NamedTuple):
    """The stored blocks of a box, in Morton order, and what to read for them."""

    blocks: Table
    """One row per block, the columns of ``blocks_layout``."""
    ranges: Table
    """One row per byte range: first byte in the file, first byte in the memory of its batch, length."""
    batches: Table
    """One row per batch: first block, first range, bytes of memory; one more row ends the last batch."""
    smallest: int
    """Index of the block with the smallest stored length."""
    largest: int
    """Index of the block with the largest stored length."""


def locate_blocks(
    bounds: Table, low: tuple[int, int, int], high: tuple[int, int, int], block_len: int, origin: tuple[int, int, int], gap_nbytes: int, batch_nbytes: int
) -> Located:
    """Find the blocks of a box inside an aligned cube of blocks."""
    return Located(*_kernels().locate_blocks(bounds, low, high, block_len, origin, gap_nbytes, batch_nbytes))


def read_ranges(fd: int, ranges: Table, memory: npt.NDArray[np.uint8]) -> int:
    """Read byte ranges of an open file, all in one call without the GIL."""
    return int(_kernels().read_ranges(fd, ranges, memory))
