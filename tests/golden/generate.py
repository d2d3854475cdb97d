"""Write the golden files with the reference library: ``python tests/golden/generate.py`` in an
environment with wkw 1.1.24.

Each folder is one mag. ``CASES`` and ``expected`` are what the tests compare with; they need no
file but this one.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent
WRITER_VERSION = "1.1.24"

CASES = {
    # name: dtype, channels, block type (1 raw, 2 LZ4, 3 LZ4HC), block_len, file_len, files along x,
    # y, z, why
    "uint8_raw": ("uint8", 1, 1, 4, 4, (1, 1, 1)),  # the smallest case
    "uint8_lz4": ("uint8", 1, 2, 4, 4, (1, 1, 1)),
    "uint8_lz4hc": ("uint8", 1, 3, 8, 2, (1, 1, 1)),  # block and file lengths differ
    "uint8_three_channels_lz4hc": ("uint8", 3, 3, 4, 2, (1, 1, 1)),  # channel fastest
    "uint16_three_channels_raw": ("uint16", 3, 1, 2, 2, (1, 1, 1)),
    # files of one block, in folders z, y, x
    "uint32_lz4hc_files": ("uint32", 1, 3, 4, 1, (2, 3, 2)),
    "uint64_lz4": ("uint64", 1, 2, 4, 2, (1, 1, 1)),  # values beyond 2**53
    "float32_two_channels_lz4": ("float32", 2, 2, 4, 2, (1, 1, 1)),
    "float64_raw": ("float64", 1, 1, 2, 4, (1, 1, 1)),
    "int8_lz4hc": ("int8", 1, 3, 4, 2, (1, 1, 1)),  # the types that the README does not list
    "int16_raw": ("int16", 1, 1, 4, 2, (1, 1, 1)),
    "int32_lz4": ("int32", 1, 2, 4, 2, (1, 1, 1)),
    "int64_lz4hc": ("int64", 1, 3, 4, 2, (1, 1, 1)),
    # the whole order is Morton's
    "uint8_blocks_of_one_voxel_raw": ("uint8", 1, 1, 1, 8, (1, 1, 1)),
    # blocks that are all zero are stored by this writer
    "uint16_zeros_lz4hc": ("uint16", 1, 3, 8, 2, (1, 1, 1)),
}


def shape(name: str) -> tuple[int, int, int, int]:
    """Return the shape (c, x, y, z) of a case."""
    _, channels, _, block_len, file_len, files = CASES[name]
    return (channels, *(n * block_len * file_len for n in files))


def expected(name: str) -> np.ndarray:
    """Return the voxels of a case: a formula of their place, different on every axis and using the
    top bits of the type."""
    dtype = np.dtype(CASES[name][0])
    c, x, y, z = np.indices(shape(name), dtype=np.int64)
    if "zeros" in name:
        return np.where((x >= 8) & (y < 8), 1 + x + y + z, 0).astype(dtype)
    count = 1 + x + 17 * (y // 2) + 101 * (z // 3) + 1009 * c
    if dtype.kind == "f":
        return (count / 8 - 20).astype(dtype)
    bits = np.uint64(dtype.itemsize * 8)
    wrapped = count.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> (np.uint64(64) - bits)
    return wrapped.astype(f"u{dtype.itemsize}").view(dtype)


def main() -> None:
    """Write all cases, replacing those that are there."""
    import wkw

    types = {
        np.dtype(t): t
        for t in (
            np.uint8,
            np.uint16,
            np.uint32,
            np.uint64,
            np.float32,
            np.float64,
            np.int8,
            np.int16,
            np.int32,
            np.int64,
        )
    }
    for name, (dtype, channels, block_type, block_len, file_len, _) in CASES.items():
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        header = wkw.Header(
            types[np.dtype(dtype)],
            channels,
            block_len=block_len,
            file_len=file_len,
            block_type=block_type,
        )
        with wkw.Dataset.create(str(folder), header) as dataset:
            dataset.write((0, 0, 0), np.asfortranarray(expected(name)))
    files = sorted(FOLDER.glob("*/**/*.wkw"))
    sys.stdout.write(f"{len(files)} files, {sum(file.stat().st_size for file in files)} bytes\n")


if __name__ == "__main__":
    main()
