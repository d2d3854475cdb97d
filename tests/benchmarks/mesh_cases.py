"""Rows of meshes: ours beside igneous, from precomputed volumes of the same voxels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .pyramid_cases import LABELS
from .race import Faster, Race, Unit

if TYPE_CHECKING:
    from .data import Data

_TARGET = 4.0


def mesh_cases(data: Data) -> list[Race]:
    """List everything, in the order of the table."""
    return [_meshes(data, simplifier) for simplifier in ("pyfqmr", "meshoptimizer")]


def _meshes(data: Data, simplifier: str) -> Race:
    name, cube = f"meshes/seg/{simplifier}", data.cube("seg")
    options = {"path": cube.mag, "size": cube.edge}
    ours, theirs = (data.fresh(f"{name}-{n}") for n in range(2))
    units = (
        Unit(
            f"wkwdask, {simplifier}",
            "ours_meshes.Meshes",
            {**options, "folder": ours, "simplifier": simplifier},
        ),
        Unit("igneous, forge and merge", "igneous_meshes.Meshes", {**options, "folder": theirs}),
    )
    work = f"meshes of {LABELS['seg']} of {cube.edge}^3"
    return Race(name, work, units, (Faster(0, 1, _TARGET, shows_peak=True),), (cube,))
