"""Writing a shard file of a precomputed volume from front to back: the chunks of each minishard in the order of their identifiers, then its index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wkwdask.formats.precomputed.sharding import format_minishard_index, format_shard_index
from wkwdask.model.pieces import Pieces
from wkwdask.model.run import join_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from wkwdask.formats.part_file import Run
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.model.run import RunTable
    from wkwdask.model.store import StoredFile
    from wkwdask.store.new_files import NewFile


class ShardOutput:
    """A new shard of identity hash; memory is bounded by a write buffer and the tables."""

    def __init__(self, sharding: Sharding, first_id: int, open_file: Callable[[], NewFile]) -> None:
        self._sharding = sharding
        self._first_id = first_id
        self._minishard = 0
        self._tables: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]] = []
        self._starts = np.zeros(1 << sharding.minishard_bits, np.uint64)
        self._ends = self._starts.copy()
        self.pieces = Pieces(open_file, sharding.index_nbytes)

    @property
    def end(self) -> int:
        """Where the next chunk goes, counted from the end of the shard index."""
        return self.pieces.end - self._sharding.index_nbytes

    def begin(self, codes: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64]) -> None:
        """Take note of chunks of one minishard whose bytes are appended to ``pieces`` next."""
        minishard = int(codes[0]) >> self._sharding.preshift_bits
        if minishard != self._minishard:
            self._end_minishard()
            self._minishard = minishard
        lengths = sizes.astype(np.uint64)
        starts = np.uint64(self.end) + np.cumsum(lengths, dtype=np.uint64) - lengths
        self._tables.append((codes + np.uint64(self._first_id), starts, lengths))

    def _end_minishard(self) -> None:
        if not self._tables:
            return
        ids, starts, sizes = (np.concatenate(columns) for columns in zip(*self._tables, strict=True))
        self._tables.clear()
        self._starts[self._minishard] = self.end
        index = format_minishard_index(ids, starts, sizes, self._sharding.minishard_index_encoding)
        self.pieces.append(np.frombuffer(index, np.uint8))
        self._ends[self._minishard] = self.end

    def copy_all(self, runs: Sequence[Run], num_codes: int) -> None:
        """Append the chunks of all runs."""
        sizes, segments = join_order([run.table for run in runs], num_codes)
        per_minishard = 1 << min(self._sharding.preshift_bits, 62)
        low = 0
        for segment in segments:
            offset, high = segment.offset, low + segment.num_blocks
            while segment.run >= 0 and low < high:
                stop = min(high, (low // per_minishard + 1) * per_minishard)
                self.begin(np.arange(low, stop, dtype=np.uint64), sizes[low:stop])
                nbytes = int(sizes[low:stop].sum())
                runs[segment.run].copy(offset, nbytes, self.pieces)
                offset, low = offset + nbytes, stop
            low = high

    def publish(self) -> None:
        """Write the last tables and let the file appear."""
        self._end_minishard()
        file = self.pieces.close()
        file.write(format_shard_index(self._starts, self._ends), 0)
        file.publish(flush_folder=False, keep_equal=True)

    def discard(self) -> None:
        """Remove the file."""
        self.pieces.discard()


class Unordered:
    """Chunks that were written to a shard in another order than that of their identifiers."""

    def __init__(self, file: StoredFile, table: RunTable) -> None:
        self.table = table
        self._file = file

    def copy(self, offset: int, nbytes: int, output: Pieces) -> None:
        """Append bytes of the file to a new one."""
        output.copy(self._file, offset, nbytes)
