"""States of stored files (size and modification time), and digests of many such states, which
reveal changes of a source."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.array_types import IntArray, UintArray
    from wkwdask.geometry.mag import Vec3

States = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""Shape (n, 5): index of a file along x, y, z, its size [bytes], its modification time [ns]."""

FILE_RECORD_NAME = ".wkwdask-files.npy"
FILE_RECORD_COLUMNS = 6
"""Columns: index of the file along x, y, z; size [bytes]; modification time [ns]; digest of the
source files in the finer mag."""
FILE_RECORD_NBYTES = 3
"""Index of the column of sizes."""


def parse_file_record(data: bytes, path: str) -> IntArray:
    """Parse the record of the files of a level, see ``wkwdask.store.records``."""
    try:
        rows = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except Exception as error:
        # numpy parses headers with ast.literal_eval, which raises many types of errors on damaged
        # ones
        raise CorruptError(
            f"{path}: not a file record ({error}); remove it, or rebuild the mag"
        ) from None
    if rows.dtype != np.int64 or rows.ndim != 2 or rows.shape[1] != FILE_RECORD_COLUMNS:
        raise CorruptError(
            f"{path}: {rows.dtype} of shape {rows.shape}, expected int64 of shape (n, "
            f"{FILE_RECORD_COLUMNS})"
        )
    return rows


# Golden-ratio constant of SplitMix64, and the finalizer of MurmurHash3 (fmix64): multiply, then xor
# with the upper half.
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFF51AFD7ED558CCD), np.uint64(33))
_DIGEST_MASK = (1 << 63) - 1


def digest(states: IntArray) -> int:
    """Return a number of 63 bits for some states, independent of their order; 0 without states.

    Examples
    --------
    >>> a, b = np.array([[0, 0, 1, 700, 5]]), np.array([[0, 1, 0, 700, 5]])
    >>> add_digests(digest(a), digest(b)) == digest(np.concatenate([b, a]))
    True
    """
    return int(digests(states).sum(dtype=np.uint64)) & _DIGEST_MASK


def digests(states: IntArray) -> UintArray:
    """Return the digest of each row."""
    golden, factor, shift = _MIX
    mixed = np.full(len(states), golden)
    for column in states.astype(np.uint64).T:
        mixed = (mixed ^ column) * factor
        mixed ^= mixed >> shift
    return mixed


def add_digests(*values: int) -> int:
    """Combine the digests of disjoint sets of states."""
    return sum(values) & _DIGEST_MASK


def grouped_digests(states: IntArray, shard_shape: Vec3, footprint: Vec3) -> dict[Vec3, int]:
    """Return the digests of states grouped by the cells of a grid that the files touch."""
    # Repeat each file once per cell that it touches, axis by axis; then sort by cell and add up the
    # digests of each.
    values, cells = digests(states), states[:, :3]
    for axis, (edge, cell) in enumerate(zip(shard_shape, footprint, strict=True)):
        first = cells[:, axis] * edge // cell
        touched = ((cells[:, axis] + 1) * edge - 1) // cell - first + 1
        cells = np.repeat(cells, touched, axis=0)
        cells[:, axis] = np.repeat(first - np.cumsum(touched) + touched, touched) + np.arange(
            len(cells)
        )
        values = np.repeat(values, touched)
    order = np.lexsort(cells.T)
    cells, values = cells[order], values[order]
    starts = (
        np.flatnonzero(np.r_[True, (np.diff(cells, axis=0) != 0).any(axis=1)])
        if len(cells)
        else np.zeros(0, np.intp)
    )
    sums = np.add.reduceat(values, starts) if len(starts) else values
    return {
        (x, y, z): total & _DIGEST_MASK
        for (x, y, z), total in zip(cells[starts].tolist(), sums.tolist(), strict=True)
    }


def summed_states(indices: IntArray, rows: IntArray) -> States:
    """Combine files into one row per index, shape (n, 3): total size, and a digest of all values of
    its files; ``rows`` end with size and time."""
    places, members = np.unique(indices, axis=0, return_inverse=True)
    out = np.zeros((len(places), 5), np.int64)
    out[:, :3] = places
    np.add.at(out[:, 3], members.ravel(), rows[:, -2])
    sums = np.zeros(len(places), np.uint64)
    np.add.at(sums, members.ravel(), digests(rows))
    out[:, 4] = (sums & np.uint64(_DIGEST_MASK)).astype(np.int64)
    return out


def describe_last_change(states: IntArray, path_of: Callable[[Vec3], str]) -> str:
    """Name the file that changed last, for an error."""
    if not len(states):
        return "all its files are gone"
    row: Any = states[np.argmax(states[:, 4])].tolist()
    return f"{path_of((row[0], row[1], row[2]))} was changed last, it has {row[3]} bytes"
