"""How long the files of a mag are, where nobody says: long enough for few files, and short enough that little is stored around the box."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wkwdask.geometry.grid import cell_range

if TYPE_CHECKING:
    from wkwdask.geometry.bounding_box import BoundingBox

LARGEST_FILE_LEN = 32
_NBYTES_PER_FILE = 4096  # header, inode, and on average half a disk block at the end
_NBYTES_PER_TABLE_ENTRY = 8
_MARGIN, _MARGIN_OF_RAW = 128, 8  # parts of the voxel bytes of the box: an absent raw block takes 255 times as much as a compressed one


def suitable_file_len(box: BoundingBox, block_len: int, voxel_nbytes: int, *, is_compressed: bool, largest: int = LARGEST_FILE_LEN) -> int:
    """Choose the length of the files of a mag.

    A file stores all of its blocks, those outside the box too. A compressed block of zeros takes 1/255 of its voxels and an entry of the jump table, a raw
    one takes as much as any other block. Each file takes another 4 KiB. The bytes of a length are the sum of these. The result is the largest power of two
    whose bytes exceed the least by no more than a margin: 1/128 of the voxel bytes of the box, 1/8 where blocks are raw. A small box is thus stored in about
    the fewest bytes, and a large box in few files.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> [suitable_file_len(BoundingBox((0, 0, 0), (edge,) * 3), 32, 1, is_compressed=True) for edge in (32, 64, 200, 1100, 5000)]
    [1, 2, 8, 16, 32]
    >>> suitable_file_len(BoundingBox((0, 0, 0), (1100, 1100, 1100)), 32, 1, is_compressed=False)
    4
    """
    if box.is_empty:
        return 1
    block_nbytes = block_len**3 * voxel_nbytes
    absent_nbytes = block_nbytes // 255 + _NBYTES_PER_TABLE_ENTRY if is_compressed else block_nbytes
    lengths = [1 << n for n in range(largest.bit_length())]
    files = [math.prod(len(cells) for cells in cell_range(box, (block_len * length,) * 3)) for length in lengths]
    spent = [count * (_NBYTES_PER_FILE + length**3 * absent_nbytes) for count, length in zip(files, lengths, strict=True)]
    most = min(spent) + box.volume * voxel_nbytes // (_MARGIN if is_compressed else _MARGIN_OF_RAW)
    return max(length for length, nbytes in zip(lengths, spent, strict=True) if nbytes <= most)
