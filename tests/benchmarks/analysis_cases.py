"""Rows of what is found out about layers, beside what does it to whole arrays in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .pyramid_cases import LABELS
from .race import Faster, Race, Unit

if TYPE_CHECKING:
    from .data import Data


def analysis_cases(data: Data) -> list[Race]:
    """List everything, in the order of the table."""
    return [_labels(data), _labels_with_color(data), _histogram(data)]


def _labels(data: Data) -> Race:
    options = {"path": data.cube("seg").mag, "size": data.real_size}
    units = [Unit("wkwdask", "ours.LabelStatistics", options)]
    for tool, work in (("cc3d", "with_cc3d.LabelStatistics"), ("numpy", "with_numpy.LabelCounts")):
        units += [
            Unit(f"{tool}, in memory", work, options | {"in_memory": True}),
            Unit(f"{tool}, read by wkw", work, options | {"in_memory": False}),
        ]
    name = f"label statistics of {LABELS['seg']}"
    return Race("labels/seg", name, tuple(units), tuple(Faster(0, n, target) for n, target in ((1, None), (2, 1.0), (3, 1.0), (4, 1.0))), (data.cube("seg"),))


def _labels_with_color(data: Data) -> Race:
    """The same with values of EM inside each label, beside the one without."""
    options = {"path": data.cube("seg").mag, "size": data.real_size}
    units = (
        Unit("wkwdask, with EM", "ours.LabelStatistics", options | {"color": data.cube("em").mag}),
        Unit("wkwdask", "ours.LabelStatistics", options),
    )
    return Race("labels/color", f"label statistics of {LABELS['seg']}, with EM", units, (Faster(0, 1),), (data.cube("seg"), data.cube("em")))


def _histogram(data: Data) -> Race:
    options = {"path": data.cube("em").mag, "size": data.real_size}
    units = (
        Unit("wkwdask", "ours.Histogram", options),
        Unit("numpy, in memory", "with_numpy.Histogram", options | {"in_memory": True}),
        Unit("numpy, read by wkw", "with_numpy.Histogram", options | {"in_memory": False}),
    )
    return Race("histogram/em", f"histogram of {LABELS['em']}", units, (Faster(0, 1), Faster(0, 2, 1.0)), (data.cube("em"),))
