"""Survey of a label layer: size, bounding box and centroid of each label, and statistics of another
layer inside each label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry.grid import cell_range
from wkwdask.geometry.vectors import minus
from wkwdask.kernels.labels.layout import HIGH, LIMB_BITS, LOW
from wkwdask.kernels.labels.tables import LabelRows, LabelTable, has_exact_sums
from wkwdask.model.volume import voxel_nbytes
from wkwdask.plans.apply import plan_bricks
from wkwdask.plans.cells import cell_map
from wkwdask.plans.regions import Tiling
from wkwdask.verbs.apply_job import is_finer, read_aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray, FloatArray, IntArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.volume import Volume
    from wkwdask.plans.apply import BrickPlan
    from wkwdask.plans.cells import CellMap


_AXES = "xyz"
_SAFE = 2.0**62


def label_columns(
    rows: LabelRows, box: BoundingBox, voxel_size_nm: Sequence[float] | None
) -> dict[str, AnyArray]:
    """Convert rows to the public columns."""
    factors = box.mag.factors
    columns: dict[str, AnyArray] = {"voxels": rows.counts}
    if voxel_size_nm is not None:
        columns["volume_um3"] = rows.counts * (math.prod(factors) * math.prod(voxel_size_nm) * 1e-9)
    for name, first in (("min", LOW), ("max", HIGH)):
        for n, axis in enumerate(_AXES):
            columns[f"{name}_{axis}"] = (rows.extents[:, first + n] + box.topleft[n]) * factors[n]
    means = rows.sums() / rows.counts[:, np.newaxis]
    for n, axis in enumerate(_AXES):
        columns[f"centroid_{axis}"] = (means[:, n] + box.topleft[n] + 0.5) * factors[n]
    if voxel_size_nm is not None:
        for n, axis in enumerate(_AXES):
            columns[f"centroid_{axis}_nm"] = columns[f"centroid_{axis}"] * voxel_size_nm[n]
    for channel, (totals, extremes) in enumerate(zip(rows.totals, rows.extremes, strict=True)):
        suffix = f"_{channel}" if len(rows.totals) > 1 else ""
        mean, variance = (
            _exact_moments(rows.counts, totals) if totals.dtype.kind == "i" else _moments(totals)
        )
        columns[f"mean{suffix}"], columns[f"std{suffix}"] = mean, np.sqrt(variance)
        columns[f"min{suffix}"], columns[f"max{suffix}"] = extremes[:, 0], extremes[:, 1]
    return columns


def _moments(totals: FloatArray) -> tuple[FloatArray, FloatArray]:
    counts, sums, squares = totals.T
    return sums / counts, np.maximum(squares, 0) / counts


def _exact_moments(counts: IntArray, totals: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return means and variances from integer sums, rounded only at the end: a float difference of
    large sums would have no digits left."""
    sums, squares = (
        np.ldexp(totals[:, n + 1].astype(np.float64), LIMB_BITS) + totals[:, n] for n in (0, 2)
    )
    product, square = counts * squares, sums * sums
    with np.errstate(over="ignore"):
        exact_sums, exact_squares = ((totals[:, n + 1] << LIMB_BITS) + totals[:, n] for n in (0, 2))
        differences = (counts * exact_squares - exact_sums * exact_sums).astype(np.float64)
    # Only labels with very many voxels have products beyond 64 bits. There are few of them, so
    # Python integers are fast enough.
    for row in np.flatnonzero((product >= _SAFE) | (square >= _SAFE)).tolist():
        a, b, c, d = totals[row].tolist()
        differences[row] = int(counts[row]) * ((d << LIMB_BITS) + c) - ((b << LIMB_BITS) + a) ** 2
    return sums / counts, differences / counts.astype(np.float64) ** 2


# least number of regions, unless these are tiny; independent of the number of workers, see
# ``Survey.plan``
_TASKS = 16


def plan_survey(box: BoundingBox, volumes: tuple[Volume, ...]) -> BrickPlan:
    """Plan regions and bricks for volumes that are read together, by the grid of the first."""
    first = volumes[0]
    nbytes_per_voxel = sum(voxel_nbytes(volume) for volume in volumes)
    return plan_bricks(box, Tiling(first.chunk_shape, first.shard_shape, nbytes_per_voxel), _TASKS)


def stored_regions(volume: Volume, plan: BrickPlan) -> CellMap:
    """Return the map of regions with stored shards, shape (x, y, z)."""
    stored = volume.files.occupied(plan.region_shape)
    x, y, z = (
        slice(part.start - whole.start, part.stop - whole.start)
        for part, whole in zip(
            plan.region_range(), cell_range(volume.box, plan.region_shape), strict=True
        )
    )
    return stored[x, y, z]


class BrickMemory:
    """Reusable buffer for bricks that are read one after another."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._memory = np.empty(0, volume.dtype)

    def read(self, box: BoundingBox, *, fill_zeros: bool) -> AnyArray | None:
        """Read a box, shape (c, x, y, z), Fortran order; without ``fill_zeros`` None if all of it
        is zero."""
        shape = (self._volume.num_channels, *box.size)
        size = math.prod(shape)
        if self._memory.size < size:
            self._memory = np.empty(size, self._volume.dtype)
        out = self._memory[:size].reshape(shape, order="F")
        nonzero = self._volume.read_into(out, box.topleft, fill_zeros=fill_zeros)
        return out if nonzero or fill_zeros else None


@dataclass(frozen=True, slots=True)
class LabelSurvey:
    """Survey of the labels of a layer."""

    labels: Volume
    """Integer labels, one channel."""
    values: Volume | None
    """Other layer, of the same mag or a coarser one."""
    plan: BrickPlan
    ignore_zero: bool = True

    @property
    def name(self) -> str:
        return self.labels.name

    @property
    def is_exact(self) -> bool:
        return self.values is None or has_exact_sums(self.values.dtype)

    def occupied(self) -> CellMap:
        if self.ignore_zero:
            return stored_regions(self.labels, self.plan)
        return cell_map(self.plan.box, self.plan.region_shape, self.name, fill=True)

    def start(self) -> LabelAccumulator:
        return LabelAccumulator(self)


class LabelAccumulator:
    """Labels so far."""

    def __init__(self, survey: LabelSurvey) -> None:
        self._survey = survey
        values = survey.values
        of_values = () if values is None else (values.dtype, values.num_channels)
        self._table = LabelTable(survey.labels.dtype, *of_values, ignore_zero=survey.ignore_zero)
        self._memory = BrickMemory(survey.labels)

    def add_brick(self, box: BoundingBox) -> None:
        survey = self._survey
        labels = self._memory.read(box, fill_zeros=not survey.ignore_zero)
        if labels is None:
            return
        # Coordinates are counted from the corner of the whole box, which keeps their sums small.
        corner = minus(box.topleft, survey.plan.box.topleft)
        self._table.add(
            labels[0], corner, None if survey.values is None else read_aligned(survey.values, box)
        )

    def result(self) -> LabelRows:
        return self._table.rows()

    def merge(self, facts: LabelRows) -> None:
        self._table.merge(facts)


def make_label_survey(
    labels: Volume, values: Volume | None, box: BoundingBox, *, ignore_zero: bool
) -> LabelSurvey:
    """Plan a survey of labels."""
    if labels.dtype.kind not in "iu":
        raise TypeError(f"{labels.name}: labels are integers, these voxels are {labels.dtype}")
    if labels.num_channels != 1:
        raise ValueError(
            f"{labels.name}: labels have one channel, this layer has {labels.num_channels}"
        )
    if values is not None and not is_finer(labels.box.mag, values.box.mag):
        raise ValueError(
            f"{values.name}: mag {values.box.mag} is finer than the labels' mag {labels.box.mag}; "
            "choose a mag of it that is as coarse, or finer labels"
        )
    return LabelSurvey(
        labels,
        values,
        plan_survey(box, (labels, *(() if values is None else (values,)))),
        ignore_zero,
    )
