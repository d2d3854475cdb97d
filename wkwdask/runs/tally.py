"""What was written to one target so far, added up as the receipts of its shards come: small, whatever the number of shards."""

from __future__ import annotations

import math
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import IncompleteWriteError
from wkwdask.geometry.bounding_box import moved
from wkwdask.geometry.grid import cell_range
from wkwdask.model.receipts import greatest, least
from wkwdask.model.states import grouped_digests
from wkwdask.runs.report import MagReport
from wkwdask.store.records import RECORD_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.placement import Placement
    from wkwdask.model.receipts import Receipt


class ShardTally:
    """Adds up the receipts of the shards of a target."""

    def __init__(self, target: Placement, expected: int) -> None:
        self.target = target
        self.expected = expected
        self._rows = array("q")
        self._files = 0
        self._nbytes = 0
        self.voxels = 0
        self._minimum: Any = None
        self._maximum: Any = None
        self._nonzero: BoundingBox | None = None
        self._is_known = True

    def add(self, receipt: Receipt) -> None:
        """Take the receipt of a whole shard."""
        self._rows.extend((*receipt.shard, receipt.nbytes, receipt.mtime_ns, receipt.sources))
        self._files += receipt.files if receipt.path is not None else 0
        self._nbytes += receipt.nbytes
        self.voxels += receipt.voxels
        if receipt.minimum is not None and receipt.maximum is not None:
            self._widen(receipt.minimum, receipt.maximum)
        elif receipt.path is not None:
            self._is_known = False
        if receipt.nonzero is not None:
            self._nonzero = receipt.nonzero if self._nonzero is None else self._nonzero.union(receipt.nonzero)

    def _widen(self, low: float, high: float) -> None:
        self._minimum, self._maximum = least(self._minimum, low), greatest(self._maximum, high)

    @property
    def is_complete(self) -> bool:
        """Whether all receipts have come."""
        return len(self._rows) == self.expected * RECORD_COLUMNS

    @property
    def shards(self) -> npt.NDArray[np.int64]:
        """One row per shard that a receipt came for, see ``wkwdask.store.records``."""
        return np.array(self._rows, np.int64).reshape(-1, RECORD_COLUMNS)

    def check(self) -> None:
        """Make sure that each shard came once."""
        found = len(np.unique(self.shards[:, :3], axis=0))
        if not self.is_complete or found != self.expected:
            raise IncompleteWriteError(f"{self.target.folder}: receipts for {found} files, expected {self.expected}")

    def report(self, folder: str, *, whole: bool = True) -> MagReport:
        """Say what was written."""
        voxels = self.target.box.volume if whole else self.voxels
        minimum, maximum = self._minimum, self._maximum
        if self.voxels < voxels:
            minimum, maximum = least(minimum, 0), greatest(maximum, 0)
        if not self._is_known:
            minimum = maximum = None
        nonzero = None if self._nonzero is None else moved(self._nonzero, self.target.origin)
        return MagReport(folder, self._files, voxels, self._nbytes, minimum, maximum, nonzero)


def tally_of(target: Placement, receipts: Iterable[Receipt]) -> ShardTally:
    """Add up the receipts of a target of which every shard is written."""
    tally = ShardTally(target, math.prod(len(r) for r in cell_range(target.box, target.shard_shape)))
    for receipt in receipts:
        tally.add(receipt)
    return tally


def ladder_records(tallies: Sequence[ShardTally]) -> list[npt.NDArray[np.int64]]:
    """Give the records of the mags of a ladder; from the second on, the sources are the files of the mag before."""
    rows = [tally.shards for tally in tallies]
    for n, (finer, coarser) in enumerate(pairwise(tallies)):
        factor = finer.target.box.mag.step_to(coarser.target.box.mag)
        if any(a != b * f for a, b, f in zip(finer.target.origin, coarser.target.origin, factor, strict=True)):
            continue  # the files of the two do not lie on one grid
        footprint = tuple(a * b for a, b in zip(coarser.target.shard_shape, factor, strict=True))
        stored = rows[n][rows[n][:, 3] > 0]
        sources = grouped_digests(stored[:, :5], finer.target.shard_shape, (footprint[0], footprint[1], footprint[2]))
        rows[n + 1][:, 5] = [sources.get((x, y, z), 0) for x, y, z in rows[n + 1][:, :3].tolist()]
    return rows
