"""What write tasks give back: small records that are enough to check that the whole is complete, and to report on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import IncompleteWriteError
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import vec3
from wkwdask.kernels.arrays import extremes
from wkwdask.model.states import add_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Mag, Vec3


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one write task did: small, and enough to check that the whole is complete."""

    shard: Vec3
    """Index of the shard along x, y, z."""
    box: BoundingBox
    """The voxels that were written."""
    path: str | None = None
    """The part file or published file, relative to the target; None where all voxels are zero and nothing is stored."""
    nbytes: int = 0
    """Bytes stored."""
    voxels: int = 0
    """Voxels inside the target's box, all-zero ones too."""
    minimum: float | int | None = None
    """Smallest value, None before any voxel was seen."""
    maximum: float | int | None = None
    """Largest value."""
    nonzero: BoundingBox | None = None
    """Smallest box around all voxels that are not zero, None where there are none."""
    part: Vec3 | None = None
    """Index of the part inside the target, None for a whole shard."""
    checksum: int = 0
    """CRC-32 of a stored part."""
    mtime_ns: int = 0
    """Time of modification of a published file [ns since the epoch]."""
    sources: int = 0
    """Digest of the states of the files that it was made from, see ``wkwdask.model.states``."""
    files: int = 1
    """How many files are stored, where any are."""

    def to_json(self) -> dict[str, Any]:
        """Give what a journal keeps: all but the path, which follows from shard and part."""
        values: dict[str, Any] = {"shard": self.shard, "box": [*self.box.topleft, *self.box.size], "voxels": self.voxels}
        for name in ("nbytes", "minimum", "maximum", "part", "checksum", "mtime_ns", "sources"):
            if getattr(self, name):
                values[name] = getattr(self, name)
        if self.files != 1:
            values["files"] = self.files
        if self.minimum is not None:  # 0 is a value
            values["minimum"], values["maximum"] = self.minimum, self.maximum
        if self.nonzero is not None:
            values["nonzero"] = [*self.nonzero.topleft, *self.nonzero.size]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any], mag: Mag) -> Receipt:
        """Read what a journal keeps; the path is left out."""
        fields = {name: value for name, value in values.items() if name != "path"}
        for name in ("box", "nonzero"):
            if name in fields:
                x, y, z, width, height, depth = fields[name]
                fields[name] = BoundingBox(vec3((x, y, z)), vec3((width, height, depth)), mag)
        for name in ("shard", "part"):
            if name in fields:
                fields[name] = vec3(fields[name])
        receipt = cls(**fields)
        counts = (receipt.nbytes, receipt.voxels, receipt.checksum, receipt.mtime_ns, receipt.sources, receipt.files)
        values_seen = (receipt.minimum, receipt.maximum)
        if not all(isinstance(count, int) for count in counts) or not all(value is None or isinstance(value, (int, float)) for value in values_seen):
            raise TypeError(f"expected numbers, found {values}")
        return receipt


def least(*values: float | None) -> float | None:
    """Give the smallest of values, where None is none and NaN counts only if there is nothing else."""
    return _extreme(min, values)


def greatest(*values: float | None) -> float | None:
    """Give the largest of values, as :func:`least` does."""
    return _extreme(max, values)


def _extreme(choose: Callable[[Sequence[float]], float], values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    numbers = [value for value in known if not math.isnan(value)]
    return choose(numbers or known) if known else None


class Stats:
    """Collects least, greatest and the box of what is not zero while voxels pass by."""

    def __init__(self, mag: Mag) -> None:
        self._mag = mag
        self._box: BoundingBox | None = None
        self._voxels = 0
        self._minimum: Any = None
        self._maximum: Any = None
        self._nonzero: BoundingBox | None = None

    @np.errstate(invalid="ignore")  # a signalling NaN is no reason for a warning
    def add(self, array: npt.NDArray[Any], topleft: Vec3) -> None:
        """Count an array (c, x, y, z)."""
        box = BoundingBox(topleft, array.shape[1:], self._mag)
        self._cover(box)
        if not array.size:
            return
        low, high = extremes(array)
        self._widen(low, high)
        if self._nonzero is not None and self._nonzero.contains(box):
            return
        nonzero = box if low > 0 else _nonzero_box(array, box)
        if nonzero is not None:
            self._nonzero = nonzero if self._nonzero is None else self._nonzero.union(nonzero)

    def add_zeros(self, box: BoundingBox) -> None:
        """Count a box of zeros."""
        self._cover(box)
        if not box.is_empty:
            self._widen(0, 0)

    def _cover(self, box: BoundingBox) -> None:
        self._box = box if self._box is None else self._box.union(box)
        self._voxels += box.volume

    def _widen(self, low: float, high: float) -> None:
        self._minimum, self._maximum = least(self._minimum, low), greatest(self._maximum, high)

    def receipt(self, shard: Vec3, part: Vec3 | None) -> Receipt:
        """Give what was collected."""
        box = self._box if self._box is not None else BoundingBox((0, 0, 0), (0, 0, 0), self._mag)
        return Receipt(shard, box, voxels=self._voxels, minimum=self._minimum, maximum=self._maximum, nonzero=self._nonzero, part=part)


def _nonzero_box(array: npt.NDArray[Any], box: BoundingBox) -> BoundingBox | None:
    """Find the smallest box around all voxels that are not zero, plane by plane from outside, so that dense data is quick."""
    low, high = [0, 0, 0], list(array.shape[1:])
    for axis in (2, 1, 0):
        planes: Any = np.moveaxis(array, axis + 1, 0)
        inside = tuple(slice(a, b) for n, (a, b) in enumerate(zip(low, high, strict=True)) if n != axis)
        while low[axis] < high[axis] and not planes[(low[axis], slice(None), *inside)].any():
            low[axis] += 1
        if low[axis] == high[axis]:
            return None
        while not planes[(high[axis] - 1, slice(None), *inside)].any():
            high[axis] -= 1
    corner = [t + a for t, a in zip(box.topleft, low, strict=True)]
    return BoundingBox((corner[0], corner[1], corner[2]), (high[0] - low[0], high[1] - low[1], high[2] - low[2]), box.mag)


def merge_receipts(shard: Vec3, receipts: Sequence[Receipt]) -> Receipt:
    """Add up what several parts of a shard hold."""
    if not receipts:
        raise IncompleteWriteError(f"no parts for file {shard}")
    box, nonzero = receipts[0].box, receipts[0].nonzero
    for receipt in receipts[1:]:
        box = box.union(receipt.box)
        if receipt.nonzero is not None:
            nonzero = receipt.nonzero if nonzero is None else nonzero.union(receipt.nonzero)
    return Receipt(
        shard,
        box,
        voxels=sum(receipt.voxels for receipt in receipts),
        minimum=least(*(receipt.minimum for receipt in receipts)),
        maximum=greatest(*(receipt.maximum for receipt in receipts)),
        nonzero=nonzero,
        sources=add_digests(*(receipt.sources for receipt in receipts)),
    )
