"""Public functions to decode blocks into many boxes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from wkwdask.kernels.blocks.batch import scratch_block

if TYPE_CHECKING:
    from wkwdask.array_types import ByteArray, IntArray

    Table = IntArray


class BlockTargets(NamedTuple):
    """Blocks, and the boxes that each is copied to: zeroed Fortran arrays (c, x, y, z) with all
    channels of the blocks."""

    edge: int
    """Length of a block [voxels]."""
    voxel_nbytes: int
    """Size of a voxel with all channels."""
    is_compressed: bool
    cells: Table
    """Index (x, y, z) of each block, shape (n, 3)."""
    cuts: Table
    """First of the boxes of each block in ``boxes``, and the end of the last, shape (n + 1,)."""
    boxes: Table
    """Indices of boxes, block by block."""
    addresses: Table
    """Address of each box in memory, shape (m,)."""
    lows: Table
    """First voxel (x, y, z) of each box, shape (m, 3)."""
    shapes: Table
    """Shape (x, y, z) of each box, shape (m, 3)."""

    def part(self, first: int, last: int) -> BlockTargets:
        """Return some of the blocks."""
        return self._replace(cells=self.cells[first:last], cuts=self.cuts[first : last + 1])

    def _arguments(self) -> tuple[Any, ...]:
        block = scratch_block(self.edge**3 * self.voxel_nbytes, 1)
        return self.is_compressed, block, self.edge, self.voxel_nbytes, *self[3:]

    def decode_memory(self, source: ByteArray, places: Table) -> int:
        """Decode blocks that were read to ``places`` (start and size; size 0 is no block); return
        the number of valid blocks before the first broken one."""
        return int(_compiled().decode_memory(source, places, *self._arguments()))

    def decode_file(
        self, fd: int, bounds: Table, codes: Table, gap_nbytes: int, memory: ByteArray
    ) -> int:
        """Read and decode blocks of a file.

        ``codes`` are ascending places in ``bounds``, the byte offsets of blocks. Gaps of at most
        ``gap_nbytes`` between blocks are read too; ``memory`` holds as many blocks as are read at
        once. Returns the number of valid blocks before the first that is broken or could not be
        read.
        """
        return int(
            _compiled().decode_file(fd, bounds, codes, gap_nbytes, memory, *self._arguments())
        )


def is_compiled() -> bool:
    """Return whether the compiled loops are available."""
    return _compiled() is not None


@cache
def _compiled() -> Any:
    """Import the compiled loops; None where LZ4's functions are not exported."""
    from wkwdask.kernels.blocks import lz4_symbols

    if not lz4_symbols.register():
        return None
    from wkwdask.kernels.blocks import boxes_compiled

    return boxes_compiled
