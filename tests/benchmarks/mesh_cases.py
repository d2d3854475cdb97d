"""Rows of meshes: ours beside igneous, from precomputed volumes of the same voxels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .pyramid_cases import LABELS
from .race import Faster, Race, Unit

if TYPE_CHECKING:
    from .data import Data

_TARGET = 4.0
_REHEARSAL_VX = 128
"""Edge of the volume on which tools warm up: meshes of 512^3 take minutes."""


def mesh_cases(data: Data) -> list[Race]:
    """List everything, in the order of the table."""
    return [_meshes(data, simplifier) for simplifier in ("pyfqmr", "meshoptimizer")]


def _meshes(data: Data, simplifier: str) -> Race:
    name, cube = f"meshes/seg/{simplifier}", data.cube("seg")
    small = data.cube("seg", min(_REHEARSAL_VX, cube.edge))

    def unit(label: str, work: str, **options: str) -> Unit:
        folder = data.fresh(f"{name}-{work}")
        real, rehearsal = (
            {"path": volume.mag, "size": volume.edge, "folder": folder + suffix}
            for volume, suffix in ((cube, ""), (small, "-rehearsal"))
        )
        return Unit(label, work, real | options, rehearsal=rehearsal)

    units = (
        unit(f"wkwdask, {simplifier}", "ours_meshes.Meshes", simplifier=simplifier),
        unit("igneous, forge and merge", "igneous_meshes.Meshes"),
    )
    work = f"meshes of {LABELS['seg']} of {cube.edge}^3"
    return Race(name, work, units, (Faster(0, 1, _TARGET, shows_peak=True),), (cube, small))
