"""Receipts of write tasks: small records that prove that a target is complete, and from which a job
reports."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import IncompleteWriteError
from wkwdask.geometry.bounding_box import BoundingBox, moved
from wkwdask.geometry.mag import vec3
from wkwdask.kernels.arrays import extremes
from wkwdask.model.states import add_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.json_text import JsonObject


@dataclass(frozen=True, slots=True)
class Receipt:
    """Result of one write task."""

    shard: Vec3
    """Index (x, y, z) of the shard."""
    box: BoundingBox
    """Voxels that were written."""
    path: str | None = None
    """Part file or published file, relative to the target; None if all voxels are zero and nothing
    is stored."""
    nbytes: int = 0
    voxels: int = 0
    """Number of voxels inside the target's box, including all-zero ones."""
    minimum: float | int | None = None
    """Smallest value, None without voxels."""
    maximum: float | int | None = None
    nonzero: BoundingBox | None = None
    """Smallest box around all nonzero voxels, None if there are none."""
    part: Vec3 | None = None
    """Index of the part in the target, None for a whole shard."""
    checksum: int = 0
    """CRC-32 of a stored part."""
    mtime_ns: int = 0
    """Modification time of a published file [ns since the epoch]."""
    sources: int = 0
    """Digest of the states of the source files, see ``wkwdask.model.states``."""
    files: int = 1
    """Number of stored files, if anything is stored."""
    outside: int = 0
    """Number of copied chunks found with nonzero voxels outside of the box."""

    def to_json(self) -> JsonObject:
        """Return the values for a journal, without the path, which follows from shard and part."""
        values: JsonObject = {
            "shard": self.shard,
            "box": [*self.box.topleft, *self.box.size],
            "voxels": self.voxels,
        }
        for name in ("nbytes", "part", "checksum", "mtime_ns", "sources", "outside"):
            if getattr(self, name):
                values[name] = getattr(self, name)
        if self.files != 1:
            values["files"] = self.files
        if self.minimum is not None:  # also if it is 0
            values["minimum"], values["maximum"] = self.minimum, self.maximum
        if self.nonzero is not None:
            values["nonzero"] = [*self.nonzero.topleft, *self.nonzero.size]
        return values

    @classmethod
    def from_json(cls, values: JsonObject, mag: Mag) -> Receipt:
        """Create a receipt from the values in a journal; the path is None."""
        fields = {name: value for name, value in values.items() if name != "path"}
        for name in ("box", "nonzero"):
            if name in fields:
                x, y, z, width, height, depth = fields[name]
                fields[name] = BoundingBox(vec3((x, y, z)), vec3((width, height, depth)), mag)
        for name in ("shard", "part"):
            if name in fields:
                fields[name] = vec3(fields[name])
        receipt = cls(**fields)
        counts = (
            receipt.nbytes,
            receipt.voxels,
            receipt.checksum,
            receipt.mtime_ns,
            receipt.sources,
            receipt.files,
            receipt.outside,
        )
        extreme_values = (receipt.minimum, receipt.maximum)
        if not all(isinstance(count, int) for count in counts) or not all(
            value is None or isinstance(value, (int, float)) for value in extreme_values
        ):
            raise TypeError(f"expected numbers, found {values}")
        return receipt


def least(*values: float | None) -> float | None:
    """Return the smallest value, ignoring None; NaN only if there is nothing else."""
    return _extreme(min, values)


def greatest(*values: float | None) -> float | None:
    """Return the largest value, see :func:`least`."""
    return _extreme(max, values)


def _extreme(
    choose: Callable[[Sequence[float]], float], values: Sequence[float | None]
) -> float | None:
    known = [value for value in values if value is not None]
    numbers = [value for value in known if not math.isnan(value)]
    return choose(numbers or known) if known else None


_SAMPLE_STEP = 16


class Stats:
    """Minimum, maximum and nonzero box of voxels, collected while they are written."""

    def __init__(self, mag: Mag) -> None:
        self._mag = mag
        self._box: BoundingBox | None = None
        self._voxels = 0
        self._minimum: Any = None
        self._maximum: Any = None
        self._nonzero: BoundingBox | None = None

    @np.errstate(invalid="ignore")  # no warnings for signalling NaNs
    def add(self, array: AnyArray, topleft: Vec3) -> None:
        """Add an array (c, x, y, z)."""
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

    def merge(self, other: Stats) -> None:
        """Add what other statistics have collected."""
        if other._box is None:
            return
        self._box = other._box if self._box is None else self._box.union(other._box)
        self._voxels += other._voxels
        self._widen(other._minimum, other._maximum)
        if other._nonzero is not None:
            self._nonzero = (
                other._nonzero if self._nonzero is None else self._nonzero.union(other._nonzero)
            )

    def add_zeros(self, box: BoundingBox) -> None:
        """Add a box of zeros."""
        self._cover(box)
        if not box.is_empty:
            self._widen(0, 0)

    def _cover(self, box: BoundingBox) -> None:
        self._box = box if self._box is None else self._box.union(box)
        self._voxels += box.volume

    def _widen(self, low: float, high: float) -> None:
        self._minimum, self._maximum = least(self._minimum, low), greatest(self._maximum, high)

    def receipt(self, shard: Vec3, part: Vec3 | None) -> Receipt:
        box = self._box if self._box is not None else BoundingBox((0, 0, 0), (0, 0, 0), self._mag)
        return Receipt(
            shard,
            box,
            voxels=self._voxels,
            minimum=self._minimum,
            maximum=self._maximum,
            nonzero=self._nonzero,
            part=part,
        )


def _nonzero_box(array: AnyArray, box: BoundingBox) -> BoundingBox | None:
    """Return the smallest box around nonzero voxels, shrinking the box plane by plane, which is
    fast for dense data."""
    low, high = [0, 0, 0], list(array.shape[1:])
    for axis in (2, 1, 0):
        inside = [slice(a, b) for a, b in zip(low, high, strict=True)]
        while low[axis] < high[axis] and not _plane_has_data(array, axis, low[axis], inside):
            low[axis] += 1
        if low[axis] == high[axis]:
            return None
        while not _plane_has_data(array, axis, high[axis] - 1, inside):
            high[axis] -= 1
    return moved(BoundingBox.from_corners(low, high, box.mag), box.topleft)


def _plane_has_data(array: AnyArray, axis: int, n: int, inside: Sequence[slice]) -> bool:
    """Return whether a plane of an array (c, x, y, z) has nonzero voxels inside a box. Most have
    some among few samples."""
    index: tuple[Any, ...] = (slice(None), *inside[:axis], n, *inside[axis + 1 :])
    plane = array[index]
    return bool(plane[:, ::_SAMPLE_STEP, ::_SAMPLE_STEP].any()) or bool(plane.any())


def merge_receipts(shard: Vec3, receipts: Sequence[Receipt]) -> Receipt:
    """Combine the receipts of the parts of a shard."""
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
