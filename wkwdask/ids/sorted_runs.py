"""Tables that are sorted on disk: sorted runs, then one merge."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from wkwdask.store import by_path
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    import numpy.typing as npt

    from wkwdask.array_types import AnyArray

_SAMPLES = 1024


class SortedRuns:
    """Sorted parts of a table in files of a folder, until the end of the context. Rows are sorted
    by their first column."""

    def __init__(self, folder: str, dtypes: Sequence[npt.DTypeLike]) -> None:
        self._folder = folder
        self._dtypes = [np.dtype(dtype) for dtype in dtypes]
        self._counts: list[int] = []
        # In a bucket, an object that exists stays. A start that could not delete its runs leaves
        # some, possibly of another table.
        self._prefix = f"run-{secrets.token_hex(8)}-"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number in range(len(self._counts)):
            store_at(self._folder).delete(self._name(number))

    def add(self, *columns: AnyArray) -> None:
        """Write a run."""
        offset = 0
        with store_at(self._folder).new_file(self._name(len(self._counts))) as file:
            for column in columns:
                data = np.ascontiguousarray(column).view(np.uint8)
                file.write(data, offset)
                offset += data.nbytes
        self._counts.append(len(columns[0]))

    def _name(self, number: int) -> str:
        return f"{self._prefix}{number}"

    def merged(self, rows: int) -> Iterator[list[AnyArray]]:
        """Yield the columns of all runs in ranges of keys, about ``rows`` rows each. The rows of a
        range are in the order of runs; equal keys are in one range."""
        # Keys sampled from all runs cut them into ranges:
        #
        #   run 0   |1  3  4 | 7  9 |12 15|
        #   run 1   |2  3    | 8    |11 12|
        #            range 0  range 1 range 2
        runs = [self._opened(number) for number in range(len(self._counts))]
        empty = [np.zeros(0, dtype) for dtype in self._dtypes]
        sampled = [keys[:: max(1, rows // _SAMPLES)] for keys, *_ in runs]
        samples = np.sort(np.concatenate([empty[0], *sampled]))
        num_ranges = -(-sum(self._counts) // rows)
        cuts = np.unique(samples[np.arange(1, num_ranges) * len(samples) // max(1, num_ranges)])
        bounds = [
            np.concatenate([[0], np.searchsorted(keys, cuts), [len(keys)]]) for keys, *_ in runs
        ]
        for n in range(len(cuts) + 1):
            parts = [
                [column[bound[n] : bound[n + 1]] for column in run]
                for run, bound in zip(runs, bounds, strict=True)
            ]
            yield [np.concatenate(columns) for columns in zip(empty, *parts, strict=True)]

    def _opened(self, number: int) -> list[AnyArray]:
        """Map the columns of a run into memory."""
        path, offset, columns = store_at(self._folder).path_of(self._name(number)), 0, []
        for dtype in self._dtypes:
            columns.append(map_column(path, dtype, offset, self._counts[number]))
            offset += dtype.itemsize * self._counts[number]
        return columns


def map_column(path: str, dtype: np.dtype[Any], offset: int, count: int) -> AnyArray:
    """Map consecutive values of a file into memory."""
    if not count:
        return np.zeros(0, dtype)
    return by_path.map_array(path, dtype, offset, (count,)).view(np.ndarray)
