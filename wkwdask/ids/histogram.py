"""Surveys of voxel values: histograms of a layer or of each slice, value ranges, and
percentiles."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.ids.label_statistics import BrickMemory, plan_survey, stored_regions
from wkwdask.kernels.labels.values import count_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.array_types import AnyArray, FloatArray, IntArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.volume import Volume
    from wkwdask.plans.apply import BrickPlan
    from wkwdask.plans.cells import CellMap

ALL_SLICES = 0


class Counts(NamedTuple):
    """Counts of voxel values per channel."""

    counts: IntArray
    """Voxels per value or bin, shape (c, values or bins)."""
    nans: IntArray
    """NaN voxels, shape (c,)."""
    below: IntArray
    """Voxels below the bins, -inf among them, shape (c,)."""
    above: IntArray
    """Voxels above the bins, inf among them, shape (c,)."""

    def plus(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    def total(self) -> IntArray:
        """Return the number of counted voxels, shape (c,)."""
        total: IntArray = self.counts.sum(axis=1) + self.nans + self.below + self.above
        return total


class Bins(NamedTuple):
    """Bins of equal width, as in ``numpy.histogram``."""

    number: int
    low: Any
    """Lower edge of the first bin; if it is the least value, of the type of the values."""
    high: Any
    """Upper edge of the last bin, which includes it."""

    def fill(self, values: AnyArray) -> Counts:
        """Count values, shape (n,), by the rules of ``numpy.histogram``."""
        # numpy.histogram widens the range of a single value by 0.5 on both sides; values outside
        # are counted by the same rule.
        counts, _ = np.histogram(values, self.number, (self.low, self.high))
        low, high = (
            (self.low, self.high) if self.low != self.high else (self.low - 0.5, self.high + 0.5)
        )
        sides = (
            np.isnan(values) if values.dtype.kind == "f" else np.zeros(0, np.bool_),
            values < low,
            values > high,
        )
        return Counts(
            counts.astype(np.int64)[np.newaxis], *(np.array([side.sum()]) for side in sides)
        )

    def edges(self, dtype: np.dtype[Any]) -> AnyArray:
        """Return the bin edges for values of a type."""
        return np.histogram_bin_edges(np.empty(0, dtype), self.number, (self.low, self.high))


def comparable_limits(low: Any, high: Any) -> tuple[Any, Any]:
    """Return the limits of a range in types that ``numpy.histogram`` compares with voxels: it
    refuses integers of Python that int64 does not hold.

    Examples
    --------
    >>> comparable_limits(0, 2**64 - 1), comparable_limits(-1, 2**63)
    ((np.uint64(0), np.uint64(18446744073709551615)), (-1.0, 9.223372036854776e+18))
    """
    limits = (low, high)
    if not any(isinstance(n, int) and not -(2**63) <= n < 2**63 for n in limits):
        return low, high
    is_unsigned = all(isinstance(n, (int, np.integer)) and 0 <= n < 2**64 for n in limits)
    return (np.uint64(low), np.uint64(high)) if is_unsigned else (float(low), float(high))


def bins_between(number: int, low: Any, high: Any, dtype: np.dtype[Any]) -> Bins:
    """Return bins from the least to the greatest value; fewer of them if floats are too coarse for
    so many.

    Examples
    --------
    >>> bins_between(4096, np.float32(10000), np.float32(10001), np.dtype(np.float32)).number
    1024
    """
    while number:
        bins = Bins(number, low, high)
        with contextlib.suppress(ValueError), np.errstate(all="ignore"):
            # numpy 2 refuses bins without width
            if (np.diff(bins.edges(dtype)) > 0).all():
                return bins
        number //= 2
    # low equals high, and is so large that adding 0.5 does not change it
    return Bins(1, *np.nextafter(np.float64(low), [-np.inf, np.inf]))


@dataclass(frozen=True, slots=True)
class _ValueSurvey:
    """Base of surveys of voxel values."""

    volume: Volume
    plan: BrickPlan
    ignore_zero: bool
    """Whether zeros are left out."""

    @property
    def name(self) -> str:
        return self.volume.name

    @property
    def is_exact(self) -> bool:
        return True

    def occupied(self) -> CellMap:
        """Return the map of stored regions, shape (x, y, z); all others are zero and need no
        reading."""
        return stored_regions(self.volume, self.plan)


@dataclass(frozen=True, slots=True)
class HistogramSurvey(_ValueSurvey):
    """Survey that counts voxel values."""

    per_slice: bool
    """Whether each slice along z has its own counts."""
    bins: Bins | None
    """None counts each value of an 8-bit or 16-bit integer type."""

    def start(self) -> HistogramAccumulator:
        return HistogramAccumulator(self)

    def count(self, values: AnyArray) -> Counts:
        """Count values of one channel, shape (n,)."""
        if self.bins is not None:
            return self.bins.fill(values[values != 0] if self.ignore_zero else values)
        counts = count_values(values)
        if self.ignore_zero:
            counts[-int(np.iinfo(values.dtype).min)] = 0
        return Counts(counts[np.newaxis], *np.zeros((3, 1), np.int64))

    def finished(self, facts: dict[int, Counts]) -> Iterator[Counts]:
        """Yield the counts of each slice, or of the whole box, with the zeros that were not
        read."""
        box, channels = self.plan.box, self.volume.num_channels
        nothing = _stacked([self.count(np.empty(0, self.volume.dtype))] * channels)
        zero = _stacked([self.count(np.zeros(1, self.volume.dtype))] * channels)
        slices = range(box.topleft[2], box.bottomright[2]) if self.per_slice else (ALL_SLICES,)
        for z in slices:
            counts = facts.get(z, nothing)
            if not self.ignore_zero:
                # regions without a stored shard were not read: all of their voxels are zero
                num_zeros = box.volume // len(slices) - counts.total()
                counts = counts.plus(
                    Counts(*(n * num_zeros.reshape(-1, *(1,) * (n.ndim - 1)) for n in zero))
                )
            yield counts


class HistogramAccumulator:
    """Counts so far, by slice."""

    def __init__(self, survey: HistogramSurvey) -> None:
        self._survey = survey
        self._memory = BrickMemory(survey.volume)
        self._facts: dict[int, Counts] = {}

    def add_brick(self, box: BoundingBox) -> None:
        brick = self._memory.read(box, fill_zeros=False)
        if brick is None:
            return
        pieces = np.split(brick, box.size[2], axis=3) if self._survey.per_slice else [brick]
        for n, piece in enumerate(pieces):
            flat, channels = piece.reshape(-1, order="F"), len(piece)
            counts = _stacked(
                [self._survey.count(flat[channel::channels]) for channel in range(channels)]
            )
            self._add(box.topleft[2] + n if self._survey.per_slice else ALL_SLICES, counts)

    def _add(self, z: int, counts: Counts) -> None:
        self._facts[z] = self._facts[z].plus(counts) if z in self._facts else counts

    def result(self) -> dict[int, Counts]:
        """Return the counts by slice; all slices together have the key ``ALL_SLICES``."""
        return self._facts

    def merge(self, facts: dict[int, Counts]) -> None:
        for z, counts in facts.items():
            self._add(z, counts)


def _stacked(channels: list[Counts]) -> Counts:
    return Counts(*(np.concatenate(parts) for parts in zip(*channels, strict=True)))


class Range(NamedTuple):
    """Range of finite values."""

    low: Any
    """Least value, None if no voxel counts."""
    high: Any
    voxels: int
    """Number of voxels that were read; all others are zero."""


@dataclass(frozen=True, slots=True)
class RangeSurvey(_ValueSurvey):
    """Survey of the range of finite values."""

    def start(self) -> RangeAccumulator:
        return RangeAccumulator(self)

    def finished(self, facts: Range) -> tuple[Any, Any]:
        """Return the range with the zeros that were not read; 0 to 1 if no voxel counts, as in
        ``numpy.histogram``."""
        zero = self.volume.dtype.type(0)
        if facts.voxels < self.plan.box.volume and not self.ignore_zero:
            facts = _widened(facts, Range(zero, zero, 0))
        return (zero, self.volume.dtype.type(1)) if facts.low is None else (facts.low, facts.high)


class RangeAccumulator:
    """Range so far."""

    def __init__(self, survey: RangeSurvey) -> None:
        self._survey = survey
        self._memory = BrickMemory(survey.volume)
        self._facts = Range(None, None, 0)

    def add_brick(self, box: BoundingBox) -> None:
        brick = self._memory.read(box, fill_zeros=False)
        if brick is None:
            return
        values = brick[np.isfinite(brick)] if brick.dtype.kind == "f" else brick
        values = values[values != 0] if self._survey.ignore_zero else values
        low, high = (values.min(), values.max()) if values.size else (None, None)
        self.merge(Range(low, high, box.volume))

    def result(self) -> Range:
        return self._facts

    def merge(self, facts: Range) -> None:
        self._facts = _widened(self._facts, facts)


def _widened(first: Range, second: Range) -> Range:
    voxels = first.voxels + second.voxels
    if first.low is None or second.low is None:
        known = second if first.low is None else first
        return Range(known.low, known.high, voxels)
    return Range(min(first.low, second.low), max(first.high, second.high), voxels)


def plan_values(volume: Volume, box: BoundingBox, *, per_slice: bool) -> BrickPlan:
    """Plan the bricks to read. Regions are thin for counts per slice, so that a task returns few
    slices."""
    plan = plan_survey(box, (volume,))
    if not per_slice:
        return plan
    return replace(plan, region_shape=(*plan.region_shape[:2], plan.brick_shape[2]))


def percentiles(counts: IntArray, values: AnyArray, percents: FloatArray) -> FloatArray:
    """Return percentiles of counted values as ``numpy.percentile`` does, linear between ranks.

    Examples
    --------
    >>> percentiles(np.array([1, 0, 1]), np.array([0, 1, 2]), np.array([0, 50, 75])).tolist()
    [0.0, 1.0, 1.5]
    """
    ends = np.cumsum(counts)
    if not ends[-1]:
        return np.full(len(percents), np.nan)
    places = (ends[-1] - 1) * (percents / 100)
    ranks = np.floor(places).astype(np.int64)
    low, high = (
        values[np.searchsorted(ends, np.minimum(rank, ends[-1] - 1), side="right")].astype(
            np.float64
        )
        for rank in (ranks, ranks + 1)
    )
    share, step = places - ranks, high - low
    between: FloatArray = np.where(share < 0.5, low + step * share, high - step * (1 - share))
    return between


def binned_percentiles(counts: IntArray, edges: AnyArray, percents: FloatArray) -> FloatArray:
    """Return percentiles of binned values, as if the values of a bin were spread evenly over it."""
    ends = np.concatenate([[0], np.cumsum(counts)])
    if not ends[-1]:
        return np.full(len(percents), np.nan)
    places = ends[-1] * (percents / 100)
    # percentile 0 is the lower edge of the first filled bin
    bins = np.maximum(np.searchsorted(ends, places, side="left") - 1, np.flatnonzero(counts)[0])
    borders = edges.astype(np.float64)
    share = (places - ends[bins]) / counts[bins]
    inside: FloatArray = borders[bins] + share * (borders[bins + 1] - borders[bins])
    return inside
