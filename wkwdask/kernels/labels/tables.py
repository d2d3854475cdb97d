"""Statistics of each label in a segmentation, collected box by box with one compiled call per box.

Sums of integers are exact for volumes of any size: they have two limbs, of 32 and 64 bits. Memory
grows with the number of labels only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.kernels.blocks.layout import UNSIGNED
from wkwdask.kernels.labels.layout import COUNT, LIMB_BITS, NUM_COLUMNS, SUM, UPPER_SUM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray, FloatArray, IntArray

_INITIAL_CAPACITY = 256
_LIMB = (1 << LIMB_BITS) - 1
# squares of 32-bit values: the sum of some 10^9 voxels would overflow both limbs
_EXACT_ITEMSIZE = 2


def has_exact_sums(dtype: np.dtype[Any]) -> bool:
    """Return whether the sums of a type's values are exact integers, which holds for 8 and 16 bits;
    other sums are float64."""
    return dtype.kind in "iu" and dtype.itemsize <= _EXACT_ITEMSIZE


class LabelRows(NamedTuple):
    """Statistics of some labels in plain arrays, one row each."""

    labels: AnyArray
    """Shape (n,)."""
    extents: IntArray
    """Voxels, extent and sums of coordinates, shape (n, 13), with the columns of
    ``labels.layout``."""
    totals: AnyArray
    """Sums of the values of a second layer. If exact: int64, shape (c, n, 4), two limbs of the sum
    and two of the sum of squares. Otherwise: float64, shape (c, n, 3), the number of values, their
    sum, and the sum of their squared distances from the mean."""
    extremes: AnyArray
    """Least and greatest value of the second layer, shape (c, n, 2), of the layer's type."""

    @classmethod
    def without_values(cls, labels: AnyArray, extents: IntArray) -> LabelRows:
        """Return rows without a second layer."""
        totals, extremes = np.zeros((0, len(labels), 4), np.int64), np.zeros((0, len(labels), 2))
        return cls(labels, extents, totals, extremes)

    @property
    def counts(self) -> IntArray:
        """Voxels of each label, shape (n,)."""
        return self.extents[:, COUNT]

    def sums(self) -> FloatArray:
        """Sums of x, y, z over the voxels of each label, shape (n, 3), rounded to float64."""
        return (
            np.ldexp(self.extents[:, UPPER_SUM : UPPER_SUM + 3].astype(np.float64), LIMB_BITS)
            + self.extents[:, SUM : SUM + 3]
        )

    def sorted(self) -> LabelRows:
        """Return the rows in ascending order of the labels."""
        order = np.argsort(self.labels)
        return LabelRows(
            self.labels[order], self.extents[order], self.totals[:, order], self.extremes[:, order]
        )


class LabelTable:
    """Collect the statistics of labels from many boxes: a hash table of labels, and one row of
    statistics for each."""

    def __init__(
        self,
        dtype: np.dtype[Any],
        value_dtype: np.dtype[Any] | None = None,
        num_channels: int = 0,
        *,
        ignore_zero: bool = True,
    ) -> None:
        self._dtype, self._ignore_zero = dtype, ignore_zero
        self._value_dtype = np.dtype(np.uint8) if value_dtype is None else value_dtype
        self._is_exact = has_exact_sums(self._value_dtype)
        self._slots = np.full(2 * _INITIAL_CAPACITY, -1, np.int64)
        self._keys = np.empty(_INITIAL_CAPACITY, np.uint64)
        self._extents = np.empty((_INITIAL_CAPACITY, NUM_COLUMNS), np.int64)
        self._used = 0
        self._totals: AnyArray = (
            np.zeros((num_channels, 0, 4), np.int64)
            if self._is_exact
            else np.zeros((num_channels, 0, 3), np.float64)
        )
        self._extremes = np.empty((num_channels, 0, 2), self._value_dtype)
        self._runs = np.empty((2, 0), np.int64)

    def add(self, labels: AnyArray, corner: Sequence[int], values: AnyArray | None = None) -> None:
        """Add the voxels of a box at ``corner``, with the values of the second layer there."""
        num_channels = len(self._totals)
        actual = None if values is None else (values.dtype, values.shape)
        expected = None if not num_channels else (self._value_dtype, (num_channels, *labels.shape))
        if labels.ndim != 3 or labels.dtype != self._dtype or actual != expected:
            raise ValueError(
                f"labels are {labels.dtype}{labels.shape}, values {actual}; expected {self._dtype} "
                f"in three dimensions and {expected}"
            )
        if not labels.size:
            return
        from wkwdask.kernels.labels import tables_compiled

        if num_channels and self._runs.shape[1] < labels.size:
            self._runs = np.empty((2, labels.size), np.int64)
        x, y, z = (int(n) for n in corner)
        flat = np.asfortranarray(labels).reshape(-1, order="F").view(UNSIGNED[labels.itemsize])
        self._slots, self._keys, self._extents, self._used, num_runs = tables_compiled.add_voxels(
            flat,
            labels.shape,
            (x, y, z),
            self._ignore_zero,
            self._slots,
            self._keys,
            self._extents,
            self._used,
            *self._runs,
        )
        self._extend_totals()
        if values is not None:
            self._add_values(values, num_runs)

    def _add_values(self, values: AnyArray, num_runs: int) -> None:
        from wkwdask.kernels.labels import tables_compiled

        add = tables_compiled.add_integers if self._is_exact else tables_compiled.add_numbers
        rows, stops = self._runs[:, :num_runs]
        flat, step = values.reshape(-1, order="F"), len(values)  # the channel is fastest
        for channel, (totals, extremes) in enumerate(
            zip(self._totals, self._extremes, strict=True)
        ):
            add(flat[channel:], values.shape[1], step, rows, stops, totals, extremes)

    def _extend_totals(self) -> None:
        """Extend totals and extremes to the capacity of the table, which the compiled loops may
        have grown."""
        before, capacity = self._totals.shape[1], len(self._keys)
        if before == capacity:
            return
        more = capacity - before
        self._totals = np.concatenate(
            [
                self._totals,
                np.zeros((len(self._totals), more, self._totals.shape[2]), self._totals.dtype),
            ],
            axis=1,
        )
        least, greatest = _limits(self._value_dtype)
        unset = np.empty((len(self._extremes), more, 2), self._value_dtype)
        # any value is less than the first and greater than the second
        unset[..., 0], unset[..., 1] = greatest, least
        self._extremes = np.concatenate([self._extremes, unset], axis=1)

    def merge(self, rows: LabelRows) -> None:
        """Add the rows of another table. The order of merges decides the rounding of float sums."""
        from wkwdask.kernels.labels import tables_compiled

        targets = np.empty(len(rows.labels), np.int64)
        keys = rows.labels.view(UNSIGNED[rows.labels.itemsize])
        self._slots, self._keys, self._extents, self._used = tables_compiled.add_rows(
            keys,
            np.ascontiguousarray(rows.extents),
            self._slots,
            self._keys,
            self._extents,
            self._used,
            targets,
        )
        self._extend_totals()
        if len(self._totals):
            merge_totals = _merged_limbs if self._is_exact else _merged_moments
            self._totals[:, targets] = merge_totals(self._totals[:, targets], rows.totals)
            ours, theirs = self._extremes[:, targets], rows.extremes
            self._extremes[:, targets, 0] = np.minimum(ours[..., 0], theirs[..., 0])
            self._extremes[:, targets, 1] = np.maximum(ours[..., 1], theirs[..., 1])

    def rows(self) -> LabelRows:
        """Return the statistics of all labels, in the order in which they were found."""
        used = self._used
        labels = self._keys[:used].astype(UNSIGNED[self._dtype.itemsize]).view(self._dtype)
        return LabelRows(
            labels, self._extents[:used], self._totals[:, :used], self._extremes[:, :used]
        )


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    limits = np.iinfo(dtype)
    return limits.min, limits.max


def _merged_limbs(ours: IntArray, theirs: IntArray) -> IntArray:
    # Columns: sum, upper limb of the sum, squares, upper limb of the squares. The carry of each
    # lower limb moves up.
    merged = ours + theirs
    merged[..., 1::2] += merged[..., ::2] >> LIMB_BITS
    merged[..., ::2] &= _LIMB
    return merged


def _merged_moments(ours: FloatArray, theirs: FloatArray) -> FloatArray:
    """Merge counts, sums and squared distances (Chan, Golub, LeVeque: Updating Formulae and a
    Pairwise Algorithm for Computing Sample Variances)."""
    merged = ours + theirs
    both = ours[..., 0] > 0
    (na, sa, _), (nb, sb, _) = np.moveaxis(ours[both], -1, 0), np.moveaxis(theirs[both], -1, 0)
    with np.errstate(invalid="ignore"):  # infinite values have no distance
        merged[both, 2] += (sb / nb - sa / na) ** 2 * na * nb / (na + nb)
    return merged
