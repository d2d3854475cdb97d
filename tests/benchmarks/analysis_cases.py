"""Rows of statistics, components and mapped ids: ours from files, others on whole arrays too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .pyramid_cases import LABELS
from .race import Faster, Race, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .data import Data

_THRESHOLD = 150


def analysis_cases(data: Data) -> list[Race]:
    """List everything, in the order of the table."""
    return [
        _labels(data),
        _labels_with_color(data),
        _histogram(data),
        _components(data, "seg", None),
        _components(data, "em", _THRESHOLD),
        _remap(data),
    ]


def _labels(data: Data) -> Race:
    options = {"path": data.cube("seg").mag, "size": data.real_size}
    units = [Unit("wkwdask", "ours.LabelStatistics", options)]
    for tool, work in (("cc3d", "with_cc3d.LabelStatistics"), ("numpy", "with_numpy.LabelCounts")):
        units += [
            Unit(f"{tool}, in memory", work, options | {"in_memory": True}),
            Unit(f"{tool}, read by wkw", work, options | {"in_memory": False}),
        ]
    name = f"label statistics of {LABELS['seg']}"
    return Race(
        "labels/seg",
        name,
        tuple(units),
        tuple(Faster(0, n, target) for n, target in ((1, None), (2, 1.0), (3, 1.0), (4, 1.0))),
        (data.cube("seg"),),
    )


def _labels_with_color(data: Data) -> Race:
    """The same with values of EM inside each label, beside the one without."""
    options = {"path": data.cube("seg").mag, "size": data.real_size}
    units = (
        Unit("wkwdask, with EM", "ours.LabelStatistics", options | {"color": data.cube("em").mag}),
        Unit("wkwdask", "ours.LabelStatistics", options),
    )
    return Race(
        "labels/color",
        f"label statistics of {LABELS['seg']}, with EM",
        units,
        (Faster(0, 1),),
        (data.cube("seg"), data.cube("em")),
    )


def _histogram(data: Data) -> Race:
    options = {"path": data.cube("em").mag, "size": data.real_size}
    units = (
        Unit("wkwdask", "ours.Histogram", options),
        Unit("numpy, in memory", "with_numpy.Histogram", options | {"in_memory": True}),
        Unit("numpy, read by wkw", "with_numpy.Histogram", options | {"in_memory": False}),
    )
    return Race(
        "histogram/em",
        f"histogram of {LABELS['em']}",
        units,
        (Faster(0, 1), Faster(0, 2, 1.0)),
        (data.cube("em"),),
    )


def _components(data: Data, layer: str, threshold: int | None) -> Race:
    """Components beside cc3d, which reads and writes with the reference library or finds all in
    memory, and dask-image."""
    name, cube = f"components/{layer}", data.cube(layer, compression="lz4hc")
    common = {"path": cube.mag, "size": cube.edge, "nbytes": cube.nbytes, "threshold": threshold}
    theirs = _theirs(
        data, name, "whole_array.Components", common, (("cc3d", True), ("cc3d", False))
    )
    ours = Unit("wkwdask, files", "ours.Components", common | {"folder": data.fresh(name)})
    if threshold is not None:  # dask-image labels masks only
        options = common | {"folder": data.fresh(f"{name}-dask-image")}
        theirs.append(Unit("dask-image, files", "with_dask_image.Components", options))
    work = (
        "26-connected components of "
        f"{LABELS[layer]}{'' if threshold is None else f' >= {threshold}'}"
    )
    return Race(
        name,
        work,
        (ours, *theirs),
        tuple(Faster(0, n, shows_peak=True) for n in range(1, 1 + len(theirs))),
        (cube,),
    )


def _remap(data: Data) -> Race:
    """Pairs of existing ids, beside fastremap and numpy."""
    name, cube = "remap/seg", data.cube("seg", compression="lz4hc")
    mapping = f"{data.fresh(name)}.npy"
    common = {"path": cube.mag, "size": cube.edge, "nbytes": cube.nbytes, "mapping": mapping}
    theirs = _theirs(
        data,
        name,
        "whole_array.Remap",
        common,
        (("fastremap", True), ("fastremap", False), ("numpy", False)),
    )
    ours = Unit("wkwdask, files", "ours.Remap", common | {"folder": data.fresh(name)})
    conclusions = tuple(Faster(0, n, shows_peak=True) for n in range(1, 1 + len(theirs)))
    return Race(
        name,
        f"map ids of {LABELS['seg']}",
        (ours, *theirs),
        conclusions,
        (cube, Mapping(mapping, cube)),
    )


def _theirs(
    data: Data, name: str, work: str, common: dict, tools: Sequence[tuple[str, bool]]
) -> list[Unit]:
    """Let tools read and write files, which takes far longer than the work, or only compute."""
    return [
        Unit(
            f"{tool}{', files' if writes else ''}",
            work,
            common
            | {"folder": data.fresh(f"{name}-{tool}-{writes}"), "tool": tool, "writes": writes},
        )
        for tool, writes in tools
    ]


class Mapping:
    """A pair for each id of a volume, in a ``.npy``.

    Parameters
    ----------
    path : str
        The file.
    cube : Cube
        The volume, made before.
    """

    def __init__(self, path: str, cube: object) -> None:
        self._path, self._cube = path, cube

    def make(self) -> None:
        """Write it."""
        from pathlib import Path

        from .works.base import read_mag

        voxels = read_mag(self._cube.mag, self._cube.edge)
        is_there = np.zeros(int(voxels.max()) + 1, np.bool_)
        is_there[voxels] = True
        ids = np.flatnonzero(is_there).astype(np.uint32)
        new = np.random.default_rng(3).integers(1, 1000, len(ids)).astype(np.uint32)
        new[ids == 0] = 0
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        np.save(self._path, np.stack([ids, new], axis=1))
