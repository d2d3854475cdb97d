"""Tables that map ids, in files of a job's folder or in a user's ``.npy``, for up to a thousand
million entries.

Each process maps the table into memory and reads only the pages that it looks up. Mapping is safe,
because the files of a job are complete before they are mapped, and a user's ``.npy`` is checked to
be unchanged before each use.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, FormatError, IncompleteWriteError
from wkwdask.ids.sorted_runs import SortedRuns, map_column
from wkwdask.model.parsing import reading
from wkwdask.store import by_path
from wkwdask.store.json_record import read_record
from wkwdask.store.paths import basename
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wkwdask.array_types import AnyArray, UintArray

    Pairs = tuple[UintArray, UintArray]
    PairChunks = Callable[[], Iterable[tuple[int, UintArray, UintArray]]]

ROWS = 1 << 22
"""Number of rows in memory at once."""
_RECORD_NAME = "mapping.json"


@dataclass(frozen=True, slots=True)
class IdMap:
    """Table of ids on disk."""

    num_ids: int
    largest: int
    values_path: str
    dtype: str
    offset: int = 0
    """First byte of the values."""
    keys_path: str | None = None
    """File of the ids, uint64, ascending; None if the values are those of ids 0, 1, 2..."""
    state: tuple[int, int, int] | None = None
    """Size, modification time and inode of a user's file; None for a file of the job."""

    def arrays(self) -> tuple[UintArray | None, AnyArray]:
        """Map the table into memory; return its ids (None if dense) and values."""
        if self.state is not None and self.state != _state(self.values_path):
            raise IncompleteWriteError(
                f'{self.values_path}: was changed while ids were mapped; existing="restart" starts '
                "over"
            )
        return _mapped(self)

    def of_zero(self) -> int:
        """Return the value of id 0."""
        keys, values = self.arrays()
        if keys is None:
            return int(values[0]) if len(values) else 0
        return int(values[0]) if len(keys) and keys[0] == 0 else 0

    def save(self, folder: str) -> None:
        """Write the record that marks the table as complete."""
        store_at(folder).put(_RECORD_NAME, json.dumps(asdict(self)).encode())


def saved_map(folder: str) -> IdMap | None:
    """Return the table that an earlier start completed; None if it is incomplete or uses a user's
    file, which is opened again."""
    path = f"{folder}/{_RECORD_NAME}"
    try:
        with reading(path, "record"):
            record = read_record(path)
            if record is None or record["state"] is not None:
                return None
            keys_path = (
                None if record["keys_path"] is None else f"{folder}/{basename(record['keys_path'])}"
            )
            table = IdMap(
                **{
                    **record,
                    "values_path": f"{folder}/{basename(record['values_path'])}",
                    "keys_path": keys_path,
                }
            )
            return table if _is_whole(table) else None
    except (CorruptError, FileNotFoundError):
        return None


def _is_whole(table: IdMap) -> bool:
    """Return whether the files of a job's table have the sizes that its record implies."""
    if table.offset != 0 or type(table.num_ids) is not int or type(table.largest) is not int:
        return False
    is_whole = _nbytes(table.values_path) == table.num_ids * np.dtype(table.dtype).itemsize
    return is_whole and (table.keys_path is None or _nbytes(table.keys_path) == table.num_ids * 8)


def _nbytes(path: str) -> int:
    return store_at(path).status().st_size


@lru_cache(maxsize=4)  # one mapping per process and table, however many tasks it runs
def _mapped(table: IdMap) -> tuple[UintArray | None, AnyArray]:
    values = map_column(table.values_path, np.dtype(table.dtype), table.offset, table.num_ids)
    return None if table.keys_path is None else map_column(
        table.keys_path, np.dtype(np.uint64), 0, table.num_ids
    ), values


def _state(path: str) -> tuple[int, int, int]:
    status = store_at(path).status()
    return status.st_size, status.st_mtime_ns, status.st_ino


# ------------------------------------------------------------------------------------------------
# dense


def use_npy(path: str, dtype: np.dtype[Any], offset: int, count: int) -> IdMap:
    """Use a user's file, with a value for each id from 0, in place."""
    largest, state = 0, _state(path)
    for first in range(0, count, ROWS):
        chunk = by_path.read_array(
            path, dtype, min(ROWS, count - first), offset=offset + first * dtype.itemsize
        )
        largest = max(largest, _largest(chunk, path, first))
    return IdMap(count, largest, path, dtype.str, offset, state=state)


def write_values(folder: str, chunks: Iterable[AnyArray], source: str) -> IdMap:
    """Write a table with a value for each id from 0."""
    count, largest = 0, 0
    with _appending(folder, "values") as add:
        for chunk in chunks:
            largest = max(largest, _largest(chunk, source, count))
            add(chunk.astype(np.uint64, copy=False))
            count += len(chunk)
    return IdMap(count, largest, f"{folder}/values", "<u8")


def _largest(chunk: AnyArray, source: str, first: int) -> int:
    if chunk.dtype.kind == "i" and len(chunk) and chunk.min() < 0:
        index = int(np.argmax(chunk < 0))
        raise FormatError(
            f"{source}: id {first + index} becomes {chunk[index]}, expected no negative id"
        )
    return int(chunk.max()) if len(chunk) else 0


@contextmanager
def _appending(folder: str, name: str) -> Iterator[Callable[[AnyArray], None]]:
    """Create a file that is written from beginning to end, by the function that this yields."""
    nbytes = 0
    with store_at(folder).new_file(name) as file:

        def add(array: AnyArray) -> None:
            nonlocal nbytes
            data = np.ascontiguousarray(array).view(np.uint8)
            file.write(data, nbytes)
            nbytes += data.nbytes

        yield add


# ------------------------------------------------------------------------------------------------
# pairs


def write_pairs_sorted(folder: str, chunks: PairChunks, describe: Callable[[int], str]) -> IdMap:
    """Write pairs in any order as a table sorted by id, by an external merge sort."""
    with SortedRuns(folder, [np.uint64, np.uint64]) as runs:
        for _, keys, values in chunks():
            for first in range(0, len(keys), ROWS):
                rows = slice(first, first + ROWS)
                runs.add(*_sorted(keys[rows], values[rows], chunks, describe))
        return _merge(folder, runs, chunks, describe)


def _merge(
    folder: str, runs: SortedRuns, chunks: PairChunks, describe: Callable[[int], str]
) -> IdMap:
    count, largest = 0, 0
    with _appending(folder, "keys") as add_keys, _appending(folder, "values") as add_values:
        for keys, values in runs.merged(ROWS):
            unique_keys, unique_values = _sorted(keys, values, chunks, describe)
            add_keys(unique_keys)
            add_values(unique_values)
            count += len(unique_keys)
            largest = max(largest, int(unique_values.max()) if len(unique_values) else 0)
    return IdMap(count, largest, f"{folder}/values", "<u8", keys_path=f"{folder}/keys")


def _sorted(
    keys: UintArray, values: UintArray, chunks: PairChunks, describe: Callable[[int], str]
) -> Pairs:
    """Sort pairs and drop duplicates; pairs that contradict each other are an error."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    is_repeated = keys[1:] == keys[:-1]
    differs = is_repeated & (values[1:] != values[:-1])
    if differs.any():
        _raise_conflict(int(keys[1:][differs][0]), chunks, describe)
    is_first = np.append(True, ~is_repeated)[: len(keys)]
    return keys[is_first], values[is_first]


def _raise_conflict(key: int, chunks: PairChunks, describe: Callable[[int], str]) -> None:
    """Raise an error that names the first two rows that contradict each other."""
    rows: list[tuple[int, int]] = []
    for first, keys, values in chunks():
        rows += [(first + int(n), int(values[n])) for n in np.flatnonzero(keys == key)]
        other = next((row for row in rows if row[1] != rows[0][1]), None)
        if other is not None:
            (row_a, value_a), (row_b, value_b) = rows[0], other
            raise FormatError(
                f"{describe(row_b)}: id {key} becomes {value_b}, but {value_a} in "
                f"{describe(row_a).rpartition(': ')[2]}"
            )
