"""Compute the histogram of a layer, its contrast, and a table of its labels."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.errors import MissingError
from wkwdask.formats.webknossos.dataset import dataset_of
from wkwdask.formats.webknossos.datasource import with_view_configuration
from wkwdask.formats.webknossos.document import update_datasource
from wkwdask.geometry.mag import whole_number
from wkwdask.ids.histogram import (
    Bins,
    Counts,
    HistogramSurvey,
    RangeSurvey,
    binned_percentiles,
    bins_between,
    comparable_limits,
    percentiles,
    plan_values,
)
from wkwdask.ids.label_statistics import label_columns, make_label_survey
from wkwdask.ids.survey import OpenedMag, SurveyWork, open_companion, open_layer
from wkwdask.ids.table_file import table_path, write_table
from wkwdask.kernels.labels.values import counted_values, is_counted
from wkwdask.model.image import mag_or_key, parse_box_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from pandas import DataFrame
    from xarray import DataArray

    from wkwdask.api.options import MagLike
    from wkwdask.geometry.bounding_box import BoundingBox


def label_statistics(
    url: str | os.PathLike[str],
    color: str | os.PathLike[str] | None = None,
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    color_mag: MagLike | None = None,
    index: Mapping[str, int] | None = None,
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    ignore_zero: bool = True,
    output: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Tabulate the labels of a segmentation: size, bounding box, centroid, and other layers inside.

    Voxels are streamed brick by brick, on threads or on the active dask Client: memory grows with
    the number of labels, not with the volume. The result is the same for any number of workers.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    color : str or path, optional
        Another layer of any voxel type: the name of a layer in the same dataset, or a path. A voxel
        of a coarser mag counts for all labels in it. Values are 0 outside the layer.
    layer : str, optional
        The layer with the labels; may be omitted if there is only one, or only one segmentation.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag of the labels; by default the mag of the path, else the finest mag that was written.
    color_mag : Mag, str, int or sequence of 3 int, optional
        The mag of the other layer; by default its finest mag that is not finer than that of the
        labels.
    index : mapping of str to int, optional
        Index along each further axis of both layers, as for :func:`open`.
    bounding_box : BoundingBox, str or sequence, optional
        Box to count: x, y, z, width, height, depth [voxels of mag 1], extended to whole voxels of
        the mag.
    ignore_zero : bool
        Omit the label 0, usually the background.
    output : str or path, optional
        File for the table: ``.csv``, or ``.parquet`` with ``pip install 'wkwdask[analysis]'``.

    Returns
    -------
    pandas.DataFrame
        One row per label, sorted; the index is ``label`` (uint64, or int64 for signed labels).
        Columns:

        - ``voxels``: number of voxels of the mag; ``volume_um3`` [cubic micrometers] if the dataset
          has a voxel size.
        - ``min_x`` ... ``max_z``: smallest box around the label, half-open [voxels of mag 1].
        - ``centroid_x`` ... ``centroid_z`` [voxels of mag 1] and ``centroid_x_nm`` ... [nm]: mean
          of the centers of its voxels. The center of voxel i is ``(i + 0.5) * mag``, as in
          WEBKNOSSOS, so the centroid of a single voxel is the middle of its box.
        - with ``color``: ``mean``, ``std`` (population standard deviation), ``min``, ``max``;
          ``mean_0``, ``mean_1`` ... for several channels.

        ``attrs`` names the layers, the mag, the bounding box and the voxel size.

    Raises
    ------
    BoundsError
        The bounding box extends beyond the layer.
    FormatError
        A record or header is broken.
    MissingError
        The dataset, layer or mag does not exist.
    ModuleNotFoundError
        Parquet needs a package that is not installed.
    TaskFailedError
        Some files cannot be read; the message lists them.
    TypeError
        The labels are not integers.
    ValueError
        The choice of layer is ambiguous, the mags cannot be read together, or an option is invalid.

    Notes
    -----
    Counts, boxes and centroids, and mean and std of values of 8 and 16 bits, are computed from
    exact integer sums of any size. Other values are summed as float64 in a fixed order; a label
    that contains NaN has NaN as mean, std, min and max.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> labels = np.zeros((64, 64, 64), np.uint32)
    >>> labels[10:20, 0:10, 30:32] = 7
    >>> _ = wkwdask.write(f"{folder}/seg/1", (100, 0, 0), labels, file_len=2)
    >>> table = wkwdask.label_statistics(f"{folder}/seg/1")
    >>> table.loc[7, ["voxels", "min_x", "max_x", "centroid_x"]].tolist()
    [200.0, 110.0, 120.0, 115.0]
    """
    import pandas as pd

    from wkwdask.graphs.runners import run_work

    if color_mag is not None and color is None:
        raise ValueError("color_mag= is the mag of another layer: it needs color=")
    path = None if output is None else table_path(output)
    labels = open_layer(url, layer, mag_or_key(mag), index, "segmentation")
    values = None if color is None else open_companion(labels, color, mag_or_key(color_mag), index)
    box = parse_box_of(labels.volume, bounding_box)
    survey = make_label_survey(
        labels.volume, None if values is None else values.volume, box, ignore_zero=ignore_zero
    )
    rows = run_work(SurveyWork(survey, f"labels of {labels.volume.name}")).sorted()
    label_index = pd.Index(
        rows.labels.astype("int64" if rows.labels.dtype.kind == "i" else "uint64"), name="label"
    )
    frame = pd.DataFrame(label_columns(rows, box, labels.voxel_size_nm), label_index)
    frame.attrs = {
        "labels": labels.volume.name,
        "color": None if values is None else values.volume.name,
        "mag": box.mag.name,
        "bounding_box": [*box.topleft, *box.size],
        "voxel_size_nm": None if labels.voxel_size_nm is None else list(labels.voxel_size_nm),
    }
    if path is not None:
        write_table(frame, path)
    return frame


_BINS = 4096
_COUNT_NAMES = ("nan", "below", "above")


class _LayerCounts(NamedTuple):
    """Counts of the values of a layer."""

    opened: OpenedMag
    box: BoundingBox
    is_binned: bool
    """Whether values are counted in bins instead of one by one."""
    values: npt.NDArray[Any]
    """The values, or the edges of the bins."""
    slices: list[Counts]
    """One item per slice, or one for the whole box."""

    @property
    def zero_counts(self) -> Counts:
        """Counts of an empty box."""
        number = len(self.values) - self.is_binned
        channels = self.opened.volume.num_channels
        return Counts(np.zeros((channels, number), np.int64), *np.zeros((3, channels), np.int64))

    @property
    def names(self) -> dict[str, str]:
        """Name of what was counted, as attributes of a result."""
        return {"source": self.opened.volume.name, "mag": self.box.mag.name}

    def percentiles(
        self, counts: npt.NDArray[np.int64], percents: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        find = binned_percentiles if self.is_binned else percentiles
        return find(counts, self.values, percents)

    def whole_percentiles(self, percents: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return percentiles of all channels and slices together."""
        counts = sum((counts.counts for counts in self.slices), self.zero_counts.counts)
        return self.percentiles(counts.sum(axis=0), percents)

    def value_coordinates(self) -> dict[str, Any]:
        """Return the coordinates of the axis of values."""
        if not self.is_binned:
            # sums over values of 8 bits would overflow
            return {"value": np.asarray(self.values, np.int64)}
        left, right = self.values[:-1], self.values[1:]
        return {
            "value": left + (right - left) / 2,
            "left": ("value", left),
            "right": ("value", right),
        }


def _two_numbers(values: Sequence[float], what: str) -> tuple[float, float]:
    pair = tuple(values) if hasattr(values, "__len__") else ()
    if len(pair) != 2 or not all(isinstance(value, Real) for value in pair):
        raise ValueError(f"{what} must be two numbers, the lower one first, got {values!r}")
    return pair[0], pair[1]


def _count_values(
    opened: OpenedMag,
    bounding_box: Any,
    bins: int | None,
    limits: Sequence[float] | None,
    *,
    per_slice: bool,
    ignore_zero: bool,
) -> _LayerCounts:
    """Count the values of a layer. An unknown range of the bins takes a first pass over the
    voxels."""
    from wkwdask.graphs.runners import run_work

    volume, box = opened.volume, parse_box_of(opened.volume, bounding_box)
    plan = plan_values(volume, box, per_slice=per_slice)
    binning = None
    if bins is not None or limits is not None or not is_counted(volume.dtype):
        is_default = limits is None and bins is None
        if limits is None:
            ranges = RangeSurvey(volume, plan, ignore_zero)
            limits = ranges.finished(run_work(SurveyWork(ranges, f"range of {volume.name}")))
        low, high = limits
        binning = (
            bins_between(_BINS, low, high, volume.dtype)
            if is_default
            else Bins(_BINS if bins is None else bins, low, high)
        )
        # raises for an invalid range or number of bins before the voxels are read
        binning.edges(volume.dtype)
    survey = HistogramSurvey(volume, plan, ignore_zero, per_slice, binning)
    slices = list(survey.finished(run_work(SurveyWork(survey, f"histogram of {volume.name}"))))
    values = counted_values(volume.dtype) if binning is None else binning.edges(volume.dtype)
    return _LayerCounts(opened, box, binning is not None, values, slices)


def histogram(
    url: str | os.PathLike[str],
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    index: Mapping[str, int] | None = None,
    bins: int | None = None,
    range: Sequence[float] | None = None,
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    per_slice: bool = False,
    ignore_zero: bool = False,
) -> DataArray:
    """Count the voxel values of a layer.

    Voxels are streamed brick by brick, on threads or on the active dask Client.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    layer : str, optional
        The layer; may be omitted if there is only one, or only one color layer.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag; by default the mag of the path, else the finest mag that was written. A coarser mag
        is faster, but its values are averages.
    index : mapping of str to int, optional
        Index along each further axis, as for :func:`open`.
    bins : int, optional
        Number of bins. By default, each value of integer types of 8 and 16 bits is counted. Other
        types have 4096 bins, or fewer if float values lie too close together.
    range : pair of float, optional
        Lower edge of the first bin and upper edge of the last; by default the minimum and maximum
        of the finite values, which needs an additional pass over the voxels.
    bounding_box : BoundingBox, str or sequence, optional
        Box to count: x, y, z, width, height, depth [voxels of mag 1], extended to whole voxels of
        the mag.
    per_slice : bool
        Count each slice along z separately. Values of 16 bits take half a megabyte per slice.
    ignore_zero : bool
        Ignore zeros.

    Returns
    -------
    xarray.DataArray of int64, dimensions (c, value) or (c, z, value)
        Exact counts; with bins, those of ``numpy.histogram`` for the whole layer. ``value`` is a
        value, or the middle of a bin whose edges are the coordinates ``left`` and ``right``; ``z``
        is the slice [voxels of the mag]. The coordinates ``nan``, ``below`` and ``above`` count the
        values outside all bins; -inf counts as below, inf as above.

    Raises
    ------
    BoundsError
        The bounding box extends beyond the layer.
    FormatError
        A record or header is broken.
    MissingError
        The dataset, layer or mag does not exist.
    TaskFailedError
        Some files cannot be read; the message lists them.
    ValueError
        The choice of layer is ambiguous, or an option is invalid.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(f"{folder}/1", (0, 0, 0), np.full((40, 40, 10), 9, np.uint8), file_len=2)
    >>> int(wkwdask.histogram(f"{folder}/1").sel(c=0, value=9))
    16000
    """
    limits = None
    if range is not None:
        limits = comparable_limits(*_two_numbers(range, "range"))
        if not (-math.inf < limits[0] <= limits[1] < math.inf):
            raise ValueError(f"range must be finite, the lower limit first, got {tuple(range)}")
    counted = _count_values(
        open_layer(url, layer, mag_or_key(mag), index, "color"),
        bounding_box,
        None if bins is None else whole_number(bins, "bins", 1),
        limits,
        per_slice=per_slice,
        ignore_zero=ignore_zero,
    )
    return _as_data_array(counted, per_slice=per_slice)


def _as_data_array(counted: _LayerCounts, *, per_slice: bool) -> DataArray:
    from xarray import DataArray

    parts = [
        np.stack(parts, axis=1)[:, 1:]
        for parts in zip(counted.zero_counts, *counted.slices, strict=True)
    ]  # np.stack needs an item, and a box may have no slices
    dims: tuple[str, ...] = ("c", "z")
    if not per_slice:
        parts, dims = [part[:, 0] for part in parts], ("c",)
    coords: dict[str, Any] = {
        name: (dims, part) for name, part in zip(_COUNT_NAMES, parts[1:], strict=True)
    }
    coords["c"] = np.arange(len(parts[0]))
    if per_slice:
        coords["z"] = np.arange(counted.box.topleft[2], counted.box.bottomright[2])
    return DataArray(
        parts[0],
        dims=(*dims, "value"),
        coords=coords | counted.value_coordinates(),
        name="count",
        attrs=counted.names,
    )


def contrast(
    url: str | os.PathLike[str],
    percentiles: Sequence[float] = (1, 99),
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    index: Mapping[str, int] | None = None,
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    per_slice: bool = False,
    ignore_zero: bool = True,
    write: bool = False,
) -> DataFrame:
    """Find a range of values that shows a layer well: two percentiles of its histogram.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    percentiles : pair of float
        The lower and upper percentile, from 0 to 100.
    layer, mag, index, bounding_box
        As for :func:`histogram`.
    per_slice : bool
        Return a row for each slice along z, to find slices that are too dark or too bright.
    ignore_zero : bool
        Ignore zeros, which are usually the empty margin.
    write : bool
        Store the range for WEBKNOSSOS as ``intensityRange`` in ``datasource-properties.json``, and
        ``min`` and ``max`` as the limits of its slider. Nothing else in the file changes.

    Returns
    -------
    pandas.DataFrame
        One row per channel, or per slice and channel, with the columns ``low``, ``high``, ``min``,
        ``max`` and ``voxels``; NaN if no voxel is counted. ``attrs["intensityRange"]`` is the range
        of all channels and slices together.

    Raises
    ------
    MissingError
        The dataset, layer or mag does not exist, or no JSON can store the range.
    ValueError
        The percentiles are invalid, or no voxel is counted.
    BoundsError, FormatError, TaskFailedError
        As for :func:`histogram`.

    Notes
    -----
    For integers of 8 and 16 bits, percentiles are those of ``numpy.percentile`` with linear
    interpolation. Other types are counted in 4096 bins over their finite values, and values are
    assumed to be uniform in a bin: the error of a percentile is at most the width of a bin, and
    ``min`` and ``max`` are edges.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(
    ...     f"{folder}/1",
    ...     (0, 0, 0),
    ...     np.arange(1, 102, dtype=np.uint8).reshape(101, 1, 1),
    ...     file_len=2,
    ... )
    >>> wkwdask.contrast(f"{folder}/1", (10, 90), bounding_box=(0, 0, 0, 101, 1, 1)).attrs[
    ...     "intensityRange"
    ... ]
    [11, 91]
    """
    low, high = _two_numbers(percentiles, "percentiles")
    if not 0 <= low < high <= 100:
        raise ValueError(
            f"percentiles must be two ascending numbers from 0 to 100, got {percentiles!r}"
        )
    opened = open_layer(url, layer, mag_or_key(mag), index, "color")
    if write and (opened.layer.stated_box is None):
        raise MissingError(
            f"{opened.layer.folder}: no datasource-properties.json lists the layer, so its "
            "contrast cannot be stored"
        )
    counted = _count_values(
        opened, bounding_box, None, None, per_slice=per_slice, ignore_zero=ignore_zero
    )
    percents = np.array([low, high, 0, 100], np.float64)
    whole = counted.whole_percentiles(percents)
    if np.isnan(whole[0]):
        raise ValueError(
            f"{opened.volume.name}: no voxels to "
            f"count{' except zeros' if ignore_zero else ''}, so its range of values is undefined"
        )
    values = _shown_range(whole)
    frame = _percentile_table(counted, percents, per_slice=per_slice)
    frame.attrs = {**counted.names, **values}
    if write:
        update_datasource(
            str(dataset_of(opened.layer).dataset_folder),
            lambda document: with_view_configuration(document, opened.layer.name, values),
        )
    return frame


def _percentile_table(
    counted: _LayerCounts, percents: npt.NDArray[np.float64], *, per_slice: bool
) -> DataFrame:
    """Return percentiles of each channel, or of each slice and channel."""
    import pandas as pd

    keys, rows = [], []
    for z, slice_counts in enumerate(counted.slices, counted.box.topleft[2]):
        for channel, counts in enumerate(slice_counts.counts):
            keys.append((z, channel) if per_slice else channel)
            rows.append([*counted.percentiles(counts, percents), counts.sum()])
    index = (
        pd.MultiIndex.from_tuples(keys, names=["z", "c"]) if per_slice else pd.Index(keys, name="c")
    )
    columns = ["low", "high", "min", "max", "voxels"]
    return pd.DataFrame(rows, index, columns).astype({"voxels": np.int64})


def _shown_range(percentiles: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Return the range of values to show, and the least and the greatest value."""
    limits = [_as_number(value) for value in percentiles]
    if limits[0] == limits[1]:
        # an empty range would show a uniform image: widen it to the extremes, or by 1
        limits[:2] = limits[2:] if limits[2] < limits[3] else [limits[0], limits[0] + 1]
    return {"intensityRange": limits[:2], "min": limits[2], "max": limits[3]}


def _as_number(value: float) -> float | int:
    """Convert a whole number to int, so that the JSON has no trailing ``.0``."""
    return int(value) if float(value).is_integer() else float(value)
