"""All rows of the table, and their targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .data import LAYERS
from .memory import Memory
from .race import Faster, OfLimit, Race, Scaling, Unit

if TYPE_CHECKING:
    from .data import Data

_LABELS = {"em": "EM", "seg": "segmentation"}
_ITEMSIZE = {"em": 1, "seg": 4}
_DEFAULT_METHOD = {"em": "median", "seg": "mode"}
_MEAN_OR_MODE = {"em": "mean", "seg": "mode"}
_DEFAULT_LEVEL = 5
_SOME_NBYTES = 400e6  # decoded by one measurement of a read: long enough to be timed


def all_cases(data: Data) -> list[Race | Memory]:
    """List everything that can be measured, in the order of the table."""
    cases: list[Race | Memory] = []
    for layer in LAYERS:
        cases += [_read_whole(data, layer), _open(data, layer), *(_read_boxes(data, layer, edge, count) for edge, count in ((32, 200), (128, 60)))]
    cases += [make(data, layer) for layer in LAYERS for make in (_pyramid_lz4hc, _pyramid_lz4)]
    cases += [make(data, layer) for layer in LAYERS for make in (_threads_read, _threads_boxes)]
    cases += [_threads_pyramid(data, layer, compression) for layer in LAYERS for compression in ("lz4hc", "lz4")]
    return [*cases, *(Memory(f"memory/{threads}", data, threads, (data.size // 2, data.size, data.size * 2)) for threads in (1, 2))]


def _passes(nbytes: float) -> int:
    return max(1, min(100, round(_SOME_NBYTES / nbytes)))


def _whole_options(data: Data, layer: str) -> dict:
    return {"path": data.mag(layer), "passes": _passes(data.size**3 * _ITEMSIZE[layer])}


def _read_whole(data: Data, layer: str) -> Race:
    options = _whole_options(data, layer) | {"size": data.size}
    units = (Unit("wkwdask", "ours.Read", options), Unit("wkw", "reference.Read", options))
    return Race(f"read/{layer}/whole", f"read {_LABELS[layer]}, whole", units, (Faster(0, 1, 1.0),))


def _open(data: Data, layer: str) -> Race:
    options = _whole_options(data, layer)
    units = (
        Unit("wkwdask, open cxyz", "ours.OpenCompute", options | {"axes": "cxyz"}),
        Unit("wkwdask, open czyx", "ours.OpenCompute", options | {"axes": "czyx"}),
        Unit("wkw", "reference.Read", options | {"size": data.size}),
    )
    return Race(f"read/{layer}/open", f"read {_LABELS[layer]}, whole, by dask", units, (Faster(0, 2, 0.5), Faster(1, 2, 0.5)))


def _read_boxes(data: Data, layer: str, edge: int, count: int) -> Race:
    edge = min(edge, data.size)
    options = {"path": data.mag(layer), "size": data.size, "edge": edge, "count": count, "passes": _passes(count * edge**3 * _ITEMSIZE[layer])}
    units = (Unit("wkwdask", "ours.Read", options), Unit("wkw", "reference.Read", options), Unit("wkwdask, opened once", "ours.ReadOpened", options))
    return Race(f"read/{layer}/box{edge}", f"read {_LABELS[layer]}, {count} boxes of {edge}^3", units, (Faster(0, 1, 1.0), Faster(2, 1)))


def _pyramid(data: Data, name: str, layer: str, method: str, compression: str, **options: int) -> tuple[str, dict]:
    """Give the work and options of our pyramid, with a folder of its own."""
    own = data.fresh(f"{name}-{'-'.join(map(str, options.values()))}".replace("/", "-"))
    return "ours.Pyramid", {
        "source": data.dataset(layer), "layer": layer, "folder": own, "size": data.size, "method": method, "compression": compression, **options,
    }  # fmt: skip


def _limit(data: Data, layer: str, method: str, compression: str) -> Unit:
    options = {"path": data.mag(layer), "size": data.size, "method": method, "compression": compression, "level": _DEFAULT_LEVEL}
    return Unit("sum of its parts", "compute.Limit", options, show_version=False)


def _peer(data: Data, name: str, layer: str, **options: str | int) -> dict:
    return {"source": data.dataset(layer), "layer": layer, "folder": data.fresh(name.replace("/", "-")), "size": data.size} | options


def _pyramid_lz4hc(data: Data, layer: str) -> Race:
    name, method = f"pyramid/{layer}/lz4hc", _DEFAULT_METHOD[layer]
    units = (
        Unit("wkwdask, level 5", *_pyramid(data, name, layer, method, "lz4hc")),
        Unit("webknossos, level 9", "with_webknossos.Pyramid", _peer(data, f"{name}-webknossos", layer, method=method)),
        Unit("wkwdask, level 9", *_pyramid(data, name, layer, method, "lz4hc", level=9)),
        Unit("webknossos, files as ours", "with_webknossos.Pyramid", _peer(data, f"{name}-unpadded", layer, method=method, file_vx=data.size)),
        _limit(data, layer, method, "lz4hc"),
    )
    ties = "same" if method == "median" else "ties of the mode"
    targets = (Faster(0, 1, 10.0, ties), Faster(2, 1, {"em": 8.0, "seg": 4.0}[layer], ties))
    conclusions = (*targets, Faster(0, 3, same=ties), Faster(2, 3, same=ties), OfLimit(0, 4))
    return Race(name, f"pyramid of {_LABELS[layer]}, {method}, lz4hc", units, conclusions)


def _pyramid_lz4(data: Data, layer: str) -> Race:
    name, method = f"pyramid/{layer}/lz4", _MEAN_OR_MODE[layer]
    encoding = {"em": "raw", "seg": "cseg"}[layer]
    units = (
        Unit("wkwdask", *_pyramid(data, name, layer, method, "lz4")),
        Unit(f"igneous, {encoding}+gzip", "with_igneous.Pyramid", _peer(data, f"{name}-igneous", layer)),
        Unit(f"tensorstore, {encoding}", "with_tensorstore.Pyramid", _peer(data, f"{name}-tensorstore", layer, method=method)),
        _limit(data, layer, method, "lz4"),
    )
    other = "it rounds otherwise" if method == "mean" else "ties of the mode"
    conclusions = (Faster(0, 1, 5.0, other), Faster(0, 2, {"em": 2.2, "seg": 4.0}[layer]), OfLimit(0, 3))
    return Race(name, f"pyramid of {_LABELS[layer]}, {method}, lz4", units, conclusions)


def _scaling(name: str, work: str, one: Unit, two: Unit) -> Race:
    compute = [Unit(f"compute, {threads}", "compute.Compress", {"threads": threads}) for threads in (1, 2)]
    return Race(name, work, (one, two, *compute), (Scaling(0.85),))


def _threads_read(data: Data, layer: str) -> Race:
    options = _whole_options(data, layer) | {"size": data.size}
    one, two = (Unit(_threads_label(threads), "ours.Read", options | {"threads": threads}, False) for threads in (1, 2))
    return _scaling(f"threads/{layer}/whole", f"threads: read {_LABELS[layer]}, whole in halves", one, two)


def _threads_boxes(data: Data, layer: str) -> Race:
    edge = min(128, data.size)
    options = {"path": data.mag(layer), "size": data.size, "edge": edge, "count": 60, "passes": _passes(60 * edge**3 * _ITEMSIZE[layer])}
    one, two = (Unit(_threads_label(threads), "ours.Read", options | {"threads": threads}, False) for threads in (1, 2))
    return _scaling(f"threads/{layer}/boxes", f"threads: read {_LABELS[layer]}, 60 boxes of {edge}^3", one, two)


def _threads_pyramid(data: Data, layer: str, compression: str) -> Race:
    name = f"threads/{layer}/pyramid-{compression}"
    method = _DEFAULT_METHOD[layer]
    one, two = (Unit(_threads_label(n), *_pyramid(data, name, layer, method, compression, threads=n), False) for n in (1, 2))
    return _scaling(name, f"threads: pyramid of {_LABELS[layer]}, {method}, {compression}", one, two)


def _threads_label(threads: int) -> str:
    return f"wkwdask, {threads} thread{'s' * (threads > 1)}"
