"""Writing a shard of a Zarr array from front to back: chunks one behind the other, then the index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wkwdask.formats.zarr.chunks import format_index
from wkwdask.geometry import compressed_morton
from wkwdask.model.run import join_order
from wkwdask.store.pieces import Pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from wkwdask.formats.part_file import Run
    from wkwdask.geometry.mag import Vec3
    from wkwdask.store.new_files import NewFile


class ZarrShardOutput:
    """A new shard; memory is bounded by a write buffer and the index."""

    def __init__(self, cells: Vec3, open_file: Callable[[], NewFile]) -> None:
        self._cells = cells
        self._codes: list[npt.NDArray[np.uint64]] = []
        self._offsets: list[npt.NDArray[np.int64]] = []
        self._sizes: list[npt.NDArray[np.int64]] = []
        self.pieces = Pieces(open_file, 0)

    def begin(self, codes: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64]) -> None:
        """Take note of chunks whose bytes are appended to ``pieces`` next."""
        self._codes.append(codes)
        self._offsets.append(self.pieces.end + np.cumsum(sizes) - sizes)
        self._sizes.append(sizes)

    def copy_all(self, runs: Sequence[Run], num_codes: int) -> None:
        """Append the chunks of all runs."""
        sizes, segments = join_order([run.table for run in runs], num_codes)
        low = 0
        for segment in segments:
            high = low + segment.num_blocks
            if segment.run >= 0:
                self.begin(np.arange(low, high, dtype=np.uint64), sizes[low:high])
                runs[segment.run].copy(segment.offset, segment.nbytes, self.pieces)
            low = high

    def publish(self) -> None:
        """Write the index and let the file appear."""
        x, y, z = compressed_morton.decode(np.concatenate(self._codes), self._cells).T.astype(np.int64)
        places = (z * self._cells[1] + y) * self._cells[0] + x
        index = format_index(places, np.concatenate(self._offsets), np.concatenate(self._sizes), int(np.prod(self._cells)))
        self.pieces.append(np.frombuffer(index, np.uint8))
        self.pieces.close().publish(flush_folder=False, keep_equal=True)

    def discard(self) -> None:
        """Remove the file."""
        self.pieces.discard()
