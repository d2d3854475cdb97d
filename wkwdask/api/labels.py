"""What there is to know of each label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.ids.label_columns import label_columns
from wkwdask.ids.label_statistics import make_label_survey
from wkwdask.ids.survey import Surveying, open_beside, open_layer
from wkwdask.ids.table_file import table_path, write_table
from wkwdask.model.image import mag_or_key

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from pandas import DataFrame

    from wkwdask.api.options import MagLike


def label_statistics(
    url: str | os.PathLike[str],
    color: str | os.PathLike[str] | None = None,
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    color_mag: MagLike | None = None,
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    ignore_zero: bool = True,
    output: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Tabulate the labels of a segmentation: size, bounding box, centroid, and what another layer holds inside each.

    Voxels are streamed brick by brick, on threads or on the active dask Client: memory grows with the number of labels, never with the volume. The
    result is the same for any number of workers.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    color : str or path, optional
        Another layer, of any voxel type: the name of one of the same dataset, or a path. Where it is coarser, each of its voxels counts for all labels
        that lie in it; outside of it values are 0.
    layer : str, optional
        The layer with the labels; may be omitted where there is one, or one segmentation.
    mag : Mag, str, int or sequence of 3 int, optional
        Its mag; by default that of the path, else the finest that has files.
    color_mag : Mag, str, int or sequence of 3 int, optional
        Mag of the other layer; by default the finest that is not finer than the labels.
    bounding_box : BoundingBox, str or sequence, optional
        What counts: x, y, z, width, height, depth [voxels of mag 1], grown outward to voxels of the mag.
    ignore_zero : bool
        Whether the label 0, usually the background, is left out.
    output : str or path, optional
        A file for the table: ``.csv``, or ``.parquet`` with ``pip install 'wkwdask[analysis]'``.

    Returns
    -------
    pandas.DataFrame
        One row per label, in their order; the index is ``label`` (uint64, int64 for signed labels). Its columns:

        - ``voxels``: voxels of the mag; ``volume_um3`` [cubic micrometers] where the dataset says how large a voxel is.
        - ``min_x`` ... ``max_z``: the smallest box around the label, half-open [voxels of mag 1].
        - ``centroid_x`` ... ``centroid_z`` [voxels of mag 1] and ``centroid_x_nm`` ... [nm]: the mean of the centres of its voxels; the centre of voxel i is
          ``(i + 0.5) * mag``, as in WEBKNOSSOS, so that a lone voxel has its centroid in the middle of its box.
        - with ``color``: ``mean``, ``std`` (of all voxels, not of a sample), ``min``, ``max``; ``mean_0``, ``mean_1`` ... where it has several channels.

        ``attrs`` say what was read.

    Raises
    ------
    BoundsError
        The bounding box reaches outside the layer.
    FormatError
        A record or header is broken.
    MissingError
        There is no such dataset, layer or mag.
    ModuleNotFoundError
        Parquet needs a package that is not installed.
    TaskFailedError
        Some files cannot be read; the message lists them.
    TypeError
        The labels are no integers.
    ValueError
        Several layers could be meant, the mags cannot be read together, or an option makes no sense.

    Notes
    -----
    Counts, boxes and centroids come from exact integer sums of any size, and so do mean and std of values of 8 and 16 bits. Other values are added as
    float64, in a fixed order; NaN inside a label is its mean, std, min and max.

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

    from wkwdask.graphs.runners import carry_out

    path = None if output is None else table_path(output)
    labels = open_layer(url, layer, mag_or_key(mag), "segmentation")
    values = None if color is None else open_beside(labels, color, mag_or_key(color_mag))
    box = labels.part(None if bounding_box is None else BoundingBox.parse(bounding_box))
    survey = make_label_survey(labels.volume, None if values is None else values.volume, box, ignore_zero=ignore_zero)
    rows = carry_out(Surveying(survey, f"labels of {labels.volume.name}")).sorted()
    index = pd.Index(rows.labels.astype("int64" if rows.labels.dtype.kind == "i" else "uint64"), name="label")
    frame = pd.DataFrame(label_columns(rows, box, labels.voxel_size_nm), index)
    frame.attrs = {
        "labels": labels.volume.name, "color": None if values is None else values.volume.name, "mag": box.mag.name,
        "bounding_box": [*box.topleft, *box.size], "voxel_size_nm": None if labels.voxel_size_nm is None else list(labels.voxel_size_nm),
    }  # fmt: skip
    if path is not None:
        write_table(frame, path)
    return frame
