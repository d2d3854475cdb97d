"""All rows of the table, and their targets; those of reads and threads are defined here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .analysis_cases import analysis_cases
from .bucket_cases import bucket_cases
from .data import BLOCK_LEN, ITEMSIZE, LAYERS, Slab
from .format_cases import precomputed_cases, zarr_cases
from .memory import Memory
from .mesh_cases import mesh_cases
from .n5_cases import n5_cases
from .numbering import Numbering, SparseVolume
from .part_cases import part_cases, public_cases
from .pyramid_cases import LABELS, pyramid_cases, scaling, threads_label
from .race import Faster, FasterByWall, Race, Scaling, Unit
from .rechunk_cases import rechunk_cases
from .region_cases import copy_cases, region_cases
from .remote_cases import remote_cases
from .served_cases import served_cases
from .start import Start
from .tasks import Tasks
from .works.base import arranged_boxes

if TYPE_CHECKING:
    from .data import Data

Case = Race | Memory | Start | Tasks | Numbering | SparseVolume
_SOME_NBYTES = 400e6  # decoded by one measurement of a read: long enough to be timed


def all_cases(data: Data) -> list[Case]:
    """List everything that can be measured, in the order of the table."""
    cases: list[Case] = [Start("start", data), Tasks("tasks", data)]
    for layer in LAYERS:
        cases += [
            _read_whole(data, layer),
            _open(data, layer),
            *(_read_boxes(data, layer, edge, count) for edge, count in ((32, 200), (128, 60))),
        ]
    cases += [_slices(data, layer, plane) for layer in LAYERS for plane in ("xy", "xz", "yz")]
    cases += [_next_slices(data, layer, plane) for layer, plane in _NEXT_SLICES]
    cases += [_threads_slices(data, layer) for layer in LAYERS]
    cases += [
        _read_many(data, layer, arrangement) for layer in LAYERS for arrangement in _ARRANGEMENTS
    ]
    cases += [make(data, layer) for layer in LAYERS for make in (_threads_read, _threads_boxes)]
    cases += pyramid_cases(data)
    cases += rechunk_cases(data)
    cases += precomputed_cases(data)
    cases += zarr_cases(data)
    cases += n5_cases(data)
    cases += part_cases(data)
    cases += public_cases(data)
    cases += region_cases(data)
    cases += copy_cases(data)
    cases += analysis_cases(data)
    cases += mesh_cases(data)
    cases += remote_cases(data)
    cases += bucket_cases(data)
    cases += served_cases(data)
    sizes = (max(BLOCK_LEN, data.size // 4), data.size // 2, data.size)
    return [*cases, *(Memory(f"memory/{threads}", data, threads, sizes) for threads in (1, 2))]


def long_cases(data: Data) -> list[Case]:
    """List what takes minutes and is measured only where ``--rows`` names it."""
    return [
        *(Numbering(f"objects/{n}", data, n) for n in (1250, 12500)),
        *(Numbering(f"objects/{n}/guards", data, n, guarded=True) for n in (1250, 12500)),
        *(
            SparseVolume(f"objects/sparse/{verb}", data, verb)
            for verb in ("segment", "connected_components")
        ),
    ]


def _passes(nbytes: float) -> int:
    return max(1, min(100, round(_SOME_NBYTES / nbytes)))


def _whole_options(data: Data, layer: str) -> dict:
    cube = data.cube(layer)
    return {"path": cube.mag, "passes": _passes(cube.nbytes)}


def _read_whole(data: Data, layer: str) -> Race:
    options = _whole_options(data, layer) | {"size": data.real_size}
    units = (Unit("wkwdask", "ours.Read", options), Unit("wkw", "reference.Read", options))
    return Race(f"read/{layer}/whole", f"read {LABELS[layer]}, whole", units, (Faster(0, 1, 1.0),))


def _open(data: Data, layer: str) -> Race:
    options = _whole_options(data, layer)
    units = (
        Unit("wkwdask, open cxyz", "ours.OpenCompute", options | {"axes": "cxyz"}),
        Unit("wkwdask, open czyx", "ours.OpenCompute", options | {"axes": "czyx"}),
        Unit("wkw", "reference.Read", options | {"size": data.real_size}),
    )
    return Race(
        f"read/{layer}/open",
        f"read {LABELS[layer]}, whole, by dask",
        units,
        (Faster(0, 2, 0.8), Faster(1, 2, 1.0)),
    )


def _box_options(data: Data, layer: str, edge: int, count: int) -> dict:
    edge = min(edge, data.real_size)
    passes = _passes(count * edge**3 * ITEMSIZE[layer])
    return {
        "path": data.cube(layer).mag,
        "size": data.real_size,
        "edge": edge,
        "count": count,
        "passes": passes,
    }


def _read_boxes(data: Data, layer: str, edge: int, count: int) -> Race:
    options = _box_options(data, layer, edge, count)
    units = (
        Unit("wkwdask", "ours.Read", options),
        Unit("wkw", "reference.Read", options),
        Unit("wkwdask, opened once", "compute.ReadOpened", options),
    )
    work = f"read {LABELS[layer]}, {count} boxes of {options['edge']}^3"
    return Race(f"read/{layer}/box{edge}", work, units, (Faster(0, 1, 1.0), Faster(2, 1)))


def _slices(data: Data, layer: str, plane: str) -> Race:
    options = {"path": data.cube(layer).mag, "size": data.real_size, "plane": plane, "count": 50}
    name = f"slices/{layer}/{plane}"
    units = (
        Unit("wkwdask", "ours.Slices", options),
        Unit("wkwdask, open", "ours.Slices", options | {"is_open": True}),
        Unit("wkw", "reference.Slices", options),
        Unit(
            "tensorstore, zarr of LZ4",
            "tensorstore_zarr.Slices",
            options | {"folder": data.fresh(name)},
        ),
    )
    conclusions = tuple(Faster(tool, against, 1.5) for tool in (0, 1) for against in (2, 3))
    return Race(
        name, f"read {LABELS[layer]}, 50 slices {plane} of {data.real_size}^2", units, conclusions
    )


_NEXT_SLICES = {
    ("em", "xy"): 6.0,
    ("em", "xz"): 5.0,
    ("em", "yz"): 4.5,
    ("seg", "xy"): 4.0,
    ("seg", "xz"): 3.5,
    ("seg", "yz"): 2.5,
}
"""Least ratio to wkw, which decodes each block for each slice."""


def _next_slices(data: Data, layer: str, plane: str) -> Race:
    size = data.real_size
    options = {"path": data.cube(layer).mag, "size": size, "plane": plane, "count": 50}
    name = f"slices/{layer}/{plane}/next"
    theirs = options | {"is_sequence": True}
    units = (
        Unit("wkwdask, empty cache", "ours.NextSlices", options),
        Unit("wkwdask, full cache", "ours.NextSlices", options | {"is_full": True}),
        Unit("wkw", "reference.Slices", theirs),
        Unit(
            "tensorstore, full cache, zarr of LZ4",
            "tensorstore_zarr.Slices",
            theirs | {"folder": data.fresh(name)},
        ),
    )
    conclusions = (Faster(0, 2, _NEXT_SLICES[layer, plane]), Faster(1, 3, 1.5))
    work = f"read {LABELS[layer]}, 50 slices {plane} of {size}^2 that follow each other"
    return Race(name, work, units, conclusions)


def _threads_read(data: Data, layer: str) -> Race:
    options = _whole_options(data, layer) | {"size": data.real_size}
    one, two = (
        Unit(threads_label(threads), "ours.Read", options | {"threads": threads}, False)
        for threads in (1, 2)
    )
    race = scaling(f"threads/{layer}/whole", f"threads: read {LABELS[layer]}, whole", one, two)
    return replace(
        race,
        units=(*race.units, Unit("wkw", "reference.Read", options)),
        conclusions=(Scaling(0.9), FasterByWall(1, 4, 1.6)),
    )


def _threads_slices(data: Data, layer: str) -> Race:
    slab = Slab(data, layer)
    options = {"path": slab.mag, "size": slab.edge, "count": BLOCK_LEN}
    one, two = (
        Unit(threads_label(threads), "ours.SlabSlices", options | {"threads": threads}, False)
        for threads in (1, 2)
    )
    work = f"threads: read {LABELS[layer]}, {BLOCK_LEN} slices xy of {slab.edge}^2"
    return Race(f"slices/{layer}/threads", work, (two, one), (FasterByWall(0, 1, 1.6),), (slab,))


_ARRANGEMENTS = {
    "near": (64, 2.0, "64 boxes of {0}^3 near each other"),
    "half": (32, 2.0, "boxes of {0}^3, half an edge apart"),
    "apart": (32, 1.0, "boxes of {0}^3 that share no block"),
}
"""Edge, least ratio to a loop, and description of the boxes that one call reads."""


def _read_many(data: Data, layer: str, arrangement: str) -> Race:
    edge, target, what = _ARRANGEMENTS[arrangement]
    edge = min(edge, data.real_size // 4)
    count = len(arranged_boxes(data.real_size, edge, arrangement))
    options = {
        "path": data.cube(layer).mag,
        "size": data.real_size,
        "edge": edge,
        "arrangement": arrangement,
    }
    options["passes"] = _passes(count * edge**3 * ITEMSIZE[layer])
    units = (
        Unit("wkwdask, read_many", "ours.ReadMany", options),
        Unit("wkwdask, loop of read", "ours.ReadMany", options | {"loop": True}),
    )
    return Race(
        f"many/{layer}/{arrangement}",
        f"read {LABELS[layer]}, {what.format(edge)}",
        units,
        (Faster(0, 1, target, shows_peak=True),),
    )


def _threads_boxes(data: Data, layer: str) -> Race:
    options = _box_options(data, layer, 128, 60)
    one, two = (
        Unit(threads_label(threads), "ours.Read", options | {"threads": threads}, False)
        for threads in (1, 2)
    )
    return scaling(
        f"threads/{layer}/boxes",
        f"threads: read {LABELS[layer]}, 60 boxes of {options['edge']}^3",
        one,
        two,
    )
