"""Public functions to locate and read the stored blocks of a box."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from wkwdask.array_types import IntArray

    Table = IntArray

_loaded: list[Any] = []


def _kernels() -> Any:
    """Return the compiled loops. A list lookup is cheaper than an import statement in each small
    read."""
    if not _loaded:
        from wkwdask.kernels.blocks import locate_compiled

        _loaded.append(locate_compiled)
    return _loaded[0]


class BlockLocations(NamedTuple):
    """Stored blocks of a box in Morton order, the byte ranges that hold them, and the batches in
    which they are read.

    ::

        file      ..[b0][b1]...[b2].........................[b3][b4]..
        ranges      |------0------|                         |---1--|     a range includes gaps of at most ``gap_nbytes``
        batches     |----------------------0-----------------------|     at most ``batch_nbytes`` of memory, but at least one block
    """  # noqa: E501

    blocks: Table
    """One row per block, with the columns of ``blocks.layout``."""
    ranges: Table
    """One row per byte range: first byte in the file, first byte in the memory of its batch,
    length."""
    batches: Table
    """One row per batch: first block, first range, bytes of memory. One more row marks the end of
    the last batch."""
    smallest: int
    """Index of the block with the smallest stored length."""
    largest: int
    """Index of the block with the largest stored length."""


def locate_blocks(
    bounds: Table,
    low: tuple[int, int, int],
    high: tuple[int, int, int],
    block_len: int,
    origin: tuple[int, int, int],
    gap_nbytes: int,
    batch_nbytes: int,
) -> BlockLocations:
    """Locate the blocks of a box inside an aligned cube of blocks. ``bounds`` are the byte offsets
    of the blocks of the cube in Morton order, and the end."""
    return BlockLocations(
        *_kernels().locate_blocks(bounds, low, high, block_len, origin, gap_nbytes, batch_nbytes)
    )
