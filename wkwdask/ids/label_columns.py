"""The columns of a table of labels, from exact sums."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.kernels.labels.layout import HIGH, LIMB_BITS, LOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.kernels.labels.tables import LabelRows

_AXES = "xyz"
_SAFE = 2.0**62


def label_columns(rows: LabelRows, box: BoundingBox, voxel_size_nm: Sequence[float] | None) -> dict[str, npt.NDArray[Any]]:
    """Turn rows into the columns that people see."""
    factors = box.mag.factors
    columns: dict[str, npt.NDArray[Any]] = {"voxels": rows.counts}
    if voxel_size_nm is not None:
        columns["volume_um3"] = rows.counts * (math.prod(factors) * math.prod(voxel_size_nm) * 1e-9)
    for name, first in (("min", LOW), ("max", HIGH)):
        for n, axis in enumerate(_AXES):
            columns[f"{name}_{axis}"] = (rows.places[:, first + n] + box.topleft[n]) * factors[n]
    means = rows.sums() / rows.counts[:, np.newaxis]
    for n, axis in enumerate(_AXES):
        columns[f"centroid_{axis}"] = (means[:, n] + box.topleft[n] + 0.5) * factors[n]
    if voxel_size_nm is not None:
        for n, axis in enumerate(_AXES):
            columns[f"centroid_{axis}_nm"] = columns[f"centroid_{axis}"] * voxel_size_nm[n]
    for channel, (totals, extremes) in enumerate(zip(rows.totals, rows.extremes, strict=True)):
        suffix = f"_{channel}" if len(rows.totals) > 1 else ""
        mean, variance = _exact_moments(rows.counts, totals) if totals.dtype.kind == "i" else _moments(totals)
        columns[f"mean{suffix}"], columns[f"std{suffix}"] = mean, np.sqrt(variance)
        columns[f"min{suffix}"], columns[f"max{suffix}"] = extremes[:, 0], extremes[:, 1]
    return columns


def _moments(totals: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    counts, sums, squares = totals.T
    return sums / counts, np.maximum(squares, 0) / counts


def _exact_moments(counts: npt.NDArray[np.int64], totals: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Give means and variances that are rounded at the end only: a difference of large sums would have no digits left.

    Labels whose sums leave 64 bits have so many voxels that there are few of them: Python's integers are fast enough.
    """
    sums, squares = (np.ldexp(totals[:, n + 1].astype(np.float64), LIMB_BITS) + totals[:, n] for n in (0, 2))
    product, square = counts * squares, sums * sums
    with np.errstate(over="ignore"):
        exact_sums, exact_squares = ((totals[:, n + 1] << LIMB_BITS) + totals[:, n] for n in (0, 2))
        differences = (counts * exact_squares - exact_sums * exact_sums).astype(np.float64)
    for row in np.flatnonzero((product >= _SAFE) | (square >= _SAFE)).tolist():
        a, b, c, d = totals[row].tolist()
        differences[row] = int(counts[row]) * ((d << LIMB_BITS) + c) - ((b << LIMB_BITS) + a) ** 2
    return sums / counts, differences / counts.astype(np.float64) ** 2
