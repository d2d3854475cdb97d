"""Rows of segmentations that are made and mapped: ours from files to files, others on the whole array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .pyramid_cases import LABELS
from .race import Faster, Race, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .data import Data

_THRESHOLD = 150


def segmentation_cases(data: Data) -> list[Race]:
    """List everything, in the order of the table."""
    return [_components(data, "seg", None), _components(data, "em", _THRESHOLD), _remap(data)]


def _components(data: Data, layer: str, threshold: int | None) -> Race:
    """Components beside cc3d and scipy, which read and write with the reference library, or find all in memory."""
    name, cube = f"components/{layer}", data.cube(layer, compression="lz4hc")
    common = {"path": cube.mag, "size": cube.edge, "nbytes": cube.nbytes, "threshold": threshold}
    tools = ("cc3d",) if threshold is None else ("cc3d", "scipy")
    theirs = _theirs(data, name, "whole_array.Components", common, tools)
    ours = Unit("wkwdask, files", "ours.Components", common | {"folder": data.fresh(name)})
    work = f"26-connected components of {LABELS[layer]}{'' if threshold is None else f' >= {threshold}'}"
    return Race(name, work, (ours, *theirs), tuple(Faster(0, n, shows_peak=True) for n in range(1, 1 + len(theirs))), (cube,))


def _remap(data: Data) -> Race:
    """An entry for each id, beside fastremap and numpy."""
    name, cube = "remap/seg", data.cube("seg", compression="lz4hc")
    mapping = f"{data.fresh(name)}.npy"
    common = {"path": cube.mag, "size": cube.edge, "nbytes": cube.nbytes, "mapping": mapping}
    theirs = _theirs(data, name, "whole_array.Remap", common, ("fastremap", "numpy"))
    ours = Unit("wkwdask, files", "ours.Remap", common | {"folder": data.fresh(name)})
    return Race(name, f"map ids of {LABELS['seg']}", (ours, *theirs), tuple(Faster(0, n, shows_peak=True) for n in range(1, 5)), (cube, Mapping(mapping, cube)))


def _theirs(data: Data, name: str, work: str, common: dict, tools: Sequence[str]) -> list[Unit]:
    """Let each tool read and write files, and then only compute."""
    return [
        Unit(f"{tool}{', files' if writes else ''}", work, common | {"folder": data.fresh(f"{name}-{tool}-{writes}"), "tool": tool, "writes": writes})
        for tool in tools
        for writes in (True, False)
    ]


class Mapping:
    """An entry for each id of a volume, up to the largest, in a ``.npy``.

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

        largest = int(read_mag(self._cube.mag, self._cube.edge).max())
        table = np.random.default_rng(3).integers(1, 1000, largest + 1).astype(np.uint32)
        table[0] = 0
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        np.save(self._path, table)
