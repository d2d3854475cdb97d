"""Rows of N5, beside tensorstore."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .data import LAYERS
from .pyramid_cases import LABELS
from .race import Faster, Race, Unit

if TYPE_CHECKING:
    from .data import Data

_METHODS = {"em": "mean", "seg": "mode"}
_WORKS = {"write": "write", "read": "read", "pyramid": "pyramid of", "convert": "WKW to"}


def n5_cases(data: Data) -> list[Race]:
    """List everything, in the order of the table."""
    return [_race(data, work, layer) for work in _WORKS for layer in LAYERS]


def _race(data: Data, work: str, layer: str) -> Race:
    """Ours beside tensorstore."""
    cube, name = data.cube(layer), f"n5/{work}/{layer}"
    options = {"path": cube.mag, "size": cube.edge, "method": _METHODS[layer]}
    units = tuple(
        Unit(
            tool,
            f"{module}.{work.capitalize()}",
            options | {"folder": data.fresh(f"{name}-{module}")},
        )
        for tool, module in (("wkwdask", "ours_n5"), ("tensorstore", "tensorstore_n5"))
    )
    same = "ties of the mode" if (work, layer) == ("pyramid", "seg") else "same"
    title = f"N5: {_WORKS[work]} {LABELS[layer]} {cube.edge}^3, gzip"
    return Race(name, title, units, (Faster(0, 1, same=same, shows_peak=True),), (cube,))
