"""Compile the kernels that most tests need, in one process: the tests start when the cache holds their machine code.

Else each of their processes would compile the same while the others do. Nothing is checked here, and a kernel that is not named is compiled by its test.
"""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path

import numpy as np

import wkwdask
from wkwdask.kernels.blocks import batch as blocks
from wkwdask.kernels.blocks.layout import LZ4, cube_table
from wkwdask.kernels.labels.components import label_brick
from wkwdask.kernels.labels.tables import LabelTable
from wkwdask.kernels.labels.values import count_values, map_ids
from wkwdask.kernels.window.reduce import IGNORE_ZERO_METHODS, METHODS, reduce_windows
from wkwdask.model.voxel_type import VOXEL_TYPES

DTYPES = [voxel_type.dtype.name for voxel_type in VOXEL_TYPES]
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
FACTORS = ((2, 2, 1), (2, 2, 2), (2, 1, 1), (64, 32, 32))  # written out, of any length, of more voxels than 32-bit sums take


def compile_files() -> None:
    """Write and read files of one block and of several."""
    with tempfile.TemporaryDirectory() as folder:
        for dtype, file_len in product(UNSIGNED, (1, 2)):
            mag = Path(folder) / f"{dtype}-{file_len}" / "1"
            wkwdask.write(mag, (0, 0, 0), np.ones((16, 16, 16), dtype), block_len=8, file_len=file_len)
            wkwdask.read(mag, ((0, 0, 0), (13, 16, 16)))


def compile_blocks() -> None:
    """Encode blocks with and without zeros, and clear some."""
    corners, memory = np.zeros((1, 3), np.int64), np.zeros(1 << 12, np.uint8)
    for dtype in UNSIGNED:
        array = np.ones((1, 4, 4, 4), dtype)
        for store_zero in (True, False):
            blocks.encode_from(array, corners, memory, block_len=4, block_type=LZ4, level=5, store_zero=store_zero)
        blocks.clear_into(np.concatenate([cube_table((0, 0, 0))] * 2), 2, array)


def compile_windows() -> None:
    """Reduce windows of every type by every method."""
    ways = [(method, ignore_zero) for method in METHODS for ignore_zero in (False, True) if not ignore_zero or method in IGNORE_ZERO_METHODS]
    for factor, dtype, (method, ignore_zero) in product(FACTORS, DTYPES, ways):
        out = np.zeros((1, 1, 1), dtype, order="F")
        reduce_windows(np.zeros(factor, dtype, order="F"), factor, method, out, ignore_zero=ignore_zero)


def compile_labels() -> None:
    """Tables of labels, components, other ids, counts of values."""
    for dtype in UNSIGNED:
        labels = np.ones((4, 4, 4), dtype, order="F")
        label_brick(labels, 26)
        LabelTable(labels.dtype).add(labels, (0, 0, 0))
        for values in UNSIGNED:
            LabelTable(labels.dtype, np.dtype(values), 1).add(labels, (0, 0, 0), np.ones((1, 4, 4, 4), values))
    for values in ("int8", "int16", "int32", "int64", "float32", "float64"):
        LabelTable(labels.dtype, np.dtype(values), 1).add(labels, (0, 0, 0), np.ones((1, 4, 4, 4), values))
    for dtype, values, out in (("uint32", "uint64", "uint32"), ("uint64", "uint64", "uint64"), ("uint32", "int64", "uint32"), ("uint64", "uint64", "uint16")):
        map_ids(np.zeros(4, dtype), np.zeros(1, np.uint64), np.zeros(1, values), np.zeros(4, out), keeps=True)
    for dtype in ("uint8", "uint16"):
        count_values(np.zeros(4, dtype))


if __name__ == "__main__":
    compile_files()
    compile_blocks()
    compile_windows()
    compile_labels()
