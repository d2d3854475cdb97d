"""Rows of boxes that are written into existing volumes, and of volumes whose files are copied
whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .race import Faster, Race, Unit

if TYPE_CHECKING:
    from .data import Data

_TITLES = {
    "wkw": "WKW, LZ4, files of 128^3",
    "zarr": "sharded Zarr, shards of 128^3",
    "n5": "N5, gzip",
    "precomputed": "precomputed, raw, a file per chunk",
}
_PEERS = {
    "wkw": ("wkw, whole files", "reference_regions"),
    "zarr": ("tensorstore", "tensorstore_regions"),
    "n5": ("tensorstore", "tensorstore_regions"),
    "precomputed": ("tensorstore", "tensorstore_regions"),
}
_COUNTS = {"wkw": 30, "zarr": 30, "n5": 30, "precomputed": 60}
"""Boxes of one measurement: enough to be timed."""
_COPIES = 8


def region_cases(data: Data) -> list[Race]:
    """List the rows of boxes."""
    return [_region(data, form) for form in _TITLES]


def copy_cases(data: Data) -> list[Race]:
    """List the rows of copies."""
    cube = data.cube("em")
    wkw = {"path": cube.mag, "nbytes": cube.nbytes, "passes": _COPIES}
    zarr = {
        "path": cube.mag,
        "size": cube.edge,
        "method": "mean",
        "compression": "zstd",
        "passes": _COPIES,
    }
    source = str(data.shared / f"zarr-zstd-uint8-{cube.edge}")  # which the first unit makes
    return [
        _copy(data, "wkw", "WKW, LZ4", Unit("wkwdask", "ours.Copy", wkw), cube.mag),
        _copy(data, "zarr", "sharded OME-Zarr", Unit("wkwdask", "with_zarr.Copy", zarr), source),
    ]


def _region(data: Data, form: str) -> Race:
    """Ours beside another tool."""
    cube, name = data.cube("em"), f"region/{form}"
    edge = min(100, cube.edge // 2)
    options = {
        "path": cube.mag,
        "size": cube.edge,
        "form": form,
        "edge": edge,
        "count": _COUNTS[form],
    }
    units = tuple(
        Unit(tool, f"{module}.Region", options | {"folder": data.fresh(f"{name}-{module}")})
        for tool, module in (("wkwdask", "ours_regions"), _PEERS[form])
    )
    title = f"write {_COUNTS[form]} boxes of {edge}^3 into EM {cube.edge}^3, {_TITLES[form]}"
    return Race(name, title, units, (Faster(0, 1, shows_peak=True),), (cube,))


def _copy(data: Data, form: str, stored: str, ours: Unit, source: str) -> Race:
    """Ours beside cp."""
    cube, name = data.cube("em"), f"copy/{form}"
    units = (
        Unit(ours.label, ours.work, ours.options | {"folder": data.fresh(f"{name}-ours")}),
        Unit(
            "cp, sync",
            "copying.Copy",
            {
                "path": source,
                "folder": data.fresh(f"{name}-cp"),
                "nbytes": cube.nbytes,
                "passes": _COPIES,
            },
            show_version=False,
        ),
    )
    return Race(
        name,
        f"{_COPIES} copies of EM {cube.edge}^3, {stored}",
        units,
        (Faster(0, 1, shows_peak=True),),
        (cube,),
    )
