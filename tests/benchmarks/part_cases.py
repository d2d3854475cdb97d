"""Rows of parts that are read from arrays of Zarr, N5 and precomputed volumes, beside tools that
open the same files once."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from .data import LAYERS
from .pyramid_cases import LABELS
from .race import Faster, Race, Unit

if TYPE_CHECKING:
    from .data import Data

_PARTS = {
    "whole": (1, "whole"),
    "box32": (200, "200 boxes of 32^3"),
    "box64": (80, "80 boxes of 64^3"),
    "xy": (50, "50 slices xy"),
}
"""How many parts are read, and their description."""
_PEERS = {
    "zarr": [("zarrs", "zarrs_parts"), ("zarr", "zarr_parts")],
    "n5": [],
    "precomputed": [("cloud-volume", "cloudvolume_parts")],
}
_KINDS = [
    *(("zarr", each, sharded) for each in ("zstd", "blosc") for sharded in (True, False)),
    *(("n5", each, False) for each in ("gzip", "blosc")),
    *(("precomputed", "default", sharded) for sharded in (True, False)),
]


def part_cases(data: Data) -> list[Race]:
    """List everything, in the order of the table."""
    return [_race(data, layer, kind, part) for kind, layer, part in product(_KINDS, LAYERS, _PARTS)]


def public_cases(data: Data) -> list[Race]:
    """List the rows of zarr_benchmarks (zarrs): whole reads and round trips of uint16."""
    cube = data.cube("em", data.size)
    tools = [
        ("wkwdask", "public_ours.Public"),
        ("zarrs", "public_zarrs.Zarrs"),
        ("tensorstore", "public_peers.Tensorstore"),
        ("zarr", "public_peers.Zarr"),
    ]
    races = []
    for form, round_trip in product(("raw", "zstd", "sharded"), (False, True)):
        row = f"zarr/public/{form}/{'round-trip' if round_trip else 'read'}"
        options = {"path": cube.mag, "size": cube.edge, "form": form, "round_trip": round_trip}
        units = tuple(
            Unit(label, work, options | {"folder": data.fresh(f"{row}-{n}")})
            for n, (label, work) in enumerate(tools)
        )
        title = f"zarr_benchmarks: {'round trip' if round_trip else 'read'} {cube.edge}^3, {form}"
        conclusions = tuple(Faster(0, n, 1.0, shows_peak=True) for n in range(1, len(units)))
        races.append(Race(row, title, units, conclusions, (cube,)))
    return races


def _race(data: Data, layer: str, kind: tuple[str, str, bool], part: str) -> Race:
    """A reader, and reading by path, beside tensorstore, and the reader beside others."""
    name, compression, sharded = kind
    cube, layout = data.cube(layer), "shards" if sharded else "files"
    count, described = _PARTS[part]
    if name == "precomputed":
        row, what = f"precomputed/boxes/{layer}/{layout}/{part}", layout
    elif name == "n5":
        row, what = f"n5/read/{layer}/{compression}/{part}", compression
    else:
        row = f"zarr/read/{layer}/{compression}/{layout}/{part}"
        what = f"{compression}, {layout}"
    tools = [
        ("wkwdask, opened once", "ours_parts.Reader"),
        ("wkwdask, by path", "ours_parts.ByPath"),
        ("tensorstore", "tensorstore_parts.Opened"),
        *((label, f"{module}.Opened") for label, module in _PEERS[name]),
    ]
    options = {
        "path": cube.mag,
        "size": cube.edge,
        "kind": name,
        "compression": compression,
        "sharded": sharded,
        "part": part,
        "count": count,
    }
    units = tuple(
        Unit(label, work, options | {"folder": data.fresh(f"{row}-{n}")})
        for n, (label, work) in enumerate(tools)
    )
    opened, by_path = _targets(layer, kind, part)
    conclusions = (
        Faster(0, 2, opened),
        Faster(1, 2, by_path),
        *(Faster(0, n) for n in range(3, len(units))),
    )
    title = f"{name}: read {LABELS[layer]} {cube.edge}^3, {what}, {described}"
    return Race(row, title, units, conclusions, (cube,))


def _targets(
    layer: str, kind: tuple[str, str, bool], part: str
) -> tuple[float | None, float | None]:
    """Return what is asked for of a reader and of reading by path, beside tensorstore."""
    name, compression, _ = kind
    if not part.startswith("box"):
        return None, None
    if name == "precomputed" and layer == "em":
        return 0.8, 0.5 if part == "box32" else 0.85
    if (name, layer, part) == ("n5", "em", "box32") and compression == "blosc":
        return 0.8, 0.85
    opened = 0.9 if (name, layer, compression) == ("zarr", "seg", "zstd") else 1.0
    return opened, 0.9 if (compression, part) == ("blosc", "box32") else 0.85
