"""Rows of pyramids: beside the tools of today, beside their own limit, over files of many kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .data import BLOCK_LEN, LAYERS
from .race import Faster, OfLimit, Race, Scaling, Unit, Within

if TYPE_CHECKING:
    from .data import Cube, Data, Scattered

LABELS = {"em": "EM", "seg": "segmentation"}
_COMPRESSIONS = ("lz4hc", "lz4")
_METHODS = {
    ("em", "lz4hc"): "median",
    ("em", "lz4"): "mean",
    ("seg", "lz4hc"): "mode",
    ("seg", "lz4"): "mode",
}
_USUAL_LEVEL = 5  # what auto is for both layers
_REHEARSAL_VX = 128
_PIECES = 384  # of pure compute: a second or two
_TIES = "ties of the mode"


def pyramid_cases(data: Data) -> list[Race]:
    """List all pyramids, in the order of the table."""
    kinds = [(layer, compression) for layer in LAYERS for compression in _COMPRESSIONS]
    cases = [_beside_peers(data, *kind, workers) for kind in kinds for workers in (1, 2)]
    cases += [_beside_its_limit(data, *kind) for kind in kinds]
    cases += [_beside_padded(data, layer) for layer in LAYERS]
    cases += [_files_of_one_block(data, layer) for layer in LAYERS]
    return [*cases, _sparse(data), *(_threads(data, *kind) for kind in kinds)]


def threads_label(threads: int) -> str:
    """Name ours on so many threads."""
    return f"wkwdask, {_count(threads, 'thread')}"


def scaling(name: str, work: str, one: Unit, two: Unit, volumes: tuple[Cube, ...] = ()) -> Race:
    """Set ours on two threads beside ours on one, and beside what two threads give pure compute in
    the same run."""
    compute = [
        Unit(f"compute, {threads}", "compute.Compress", {"threads": threads, "pieces": _PIECES})
        for threads in (1, 2)
    ]
    return Race(name, work, (one, two, *compute), (Scaling(0.85),), volumes)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number > 1)}"


class _Units:
    """Makes the units of one race, each with a separate folder.

    Parameters
    ----------
    data : Data
        All volumes.
    name : str
        The race.
    volume : Cube or Scattered
        Source of all units.
    method : str
        Method of downsampling.
    rehearsal : Cube, optional
        Smaller volume to warm up on; by default all units do the whole work once.
    """

    def __init__(
        self,
        data: Data,
        name: str,
        volume: Cube | Scattered,
        method: str,
        rehearsal: Cube | None = None,
    ) -> None:
        self._data, self._name, self._volume, self._method, self._rehearsal = (
            data,
            name,
            volume,
            method,
            rehearsal,
        )
        self.volumes = (volume,) if rehearsal is None else (volume, rehearsal)
        self._number = 0

    def _make(self, label: str, work: str, options: dict, *, version: bool = True) -> Unit:
        """Say what a unit reads and where it works, in its rehearsal too."""
        self._number += 1
        own = self._data.fresh(f"{self._name}-{self._number}")
        real = {"source": self._volume.dataset, "layer": self._volume.layer, "folder": own}
        if self._rehearsal is None:
            return Unit(label, work, real | options, version)
        rehearsal = {
            "source": self._rehearsal.dataset,
            "layer": self._rehearsal.layer,
            "folder": f"{own}-rehearsal",
            "size": self._rehearsal.edge,
        }
        return Unit(label, work, real | options, version, rehearsal)

    def ours(self, label: str, compression: str, *, version: bool = True, **options: int) -> Unit:
        """Make a unit of ours."""
        compared = {"nbytes": self._volume.nbytes, "size": getattr(self._volume, "edge", 0)}
        return self._make(
            label,
            "ours.Pyramid",
            {"method": self._method, "compression": compression, **options, **compared},
            version=version,
        )

    def peer(self, label: str, work: str, **options: str | int) -> Unit:
        """Make a unit of another tool, over a cube."""
        return self._make(label, work, {"size": self._volume.edge, **options})

    def limit(self, compression: str) -> Unit:
        """Make the unit of the parts, each timed alone."""
        options = {
            "path": self._volume.mag,
            "size": self._volume.edge,
            "method": self._method,
            "compression": compression,
            "level": _USUAL_LEVEL,
        }
        rehearsal = (
            {}
            if self._rehearsal is None
            else {"path": self._rehearsal.mag, "size": self._rehearsal.edge}
        )
        return Unit("sum of its parts", "compute.Limit", options, False, rehearsal)


def _rehearsal(data: Data, layer: str) -> Cube:
    """Describe the small volume on which tools warm up for a large one."""
    return data.cube(layer, min(_REHEARSAL_VX, data.size))


def _title(layer: str, edge: int, method: str, compression: str) -> str:
    return f"pyramid of {LABELS[layer]} {edge}^3, {method}, {compression}"


def _beside_peers(data: Data, layer: str, compression: str, workers: int) -> Race:
    """Set ours beside all peers that write something like it."""
    name, method = f"pyramid/{layer}/{compression}/{workers}", _METHODS[layer, compression]
    cube = data.cube(layer, data.size)
    units = _Units(data, name, cube, method, _rehearsal(data, layer))
    make = _lz4hc if compression == "lz4hc" else _lz4
    entrants, conclusions = make(units, cube, method, workers)
    return Race(
        name,
        f"{_title(layer, cube.edge, method, compression)}, {_count(workers, 'worker')}",
        entrants,
        conclusions,
        units.volumes,
    )


def _lz4hc(
    units: _Units, cube: Cube, method: str, workers: int
) -> tuple[tuple[Unit, ...], tuple[Faster, ...]]:
    numpy_name = {"median": "np.median", "mode": "numpy mode"}[method]
    entrants = (
        units.ours("wkwdask, level auto", "lz4hc", threads=workers),
        units.ours("wkwdask, level 9", "lz4hc", threads=workers, level=9),
        units.peer(
            "webknossos, level 9",
            "with_webknossos.Pyramid",
            method=method,
            file_vx=max(BLOCK_LEN, cube.edge // 4),
            processes=workers,
        ),
        units.peer(
            f"dask, coarsen {numpy_name}, wkw level 9",
            "with_coarsen.Pyramid",
            method=method,
            compression="lz4hc",
            threads=workers,
        ),
    )
    ties = _TIES if method == "mode" else "same"
    return entrants, (Faster(0, 2, same=ties), Faster(1, 2, same=ties), Faster(0, 3), Faster(1, 3))


def _lz4(
    units: _Units, cube: Cube, method: str, workers: int
) -> tuple[tuple[Unit, ...], tuple[Faster, ...]]:
    layer = cube.layer
    encoding, numpy_name = {"em": ("raw", "np.mean"), "seg": ("cseg", "numpy mode")}[layer]
    entrants = (
        units.ours("wkwdask", "lz4", threads=workers),
        units.peer(f"igneous, {encoding}+gzip", "with_igneous.Pyramid", processes=workers),
        units.peer(
            f"tensorstore, {encoding}", "with_tensorstore.Pyramid", method=method, threads=workers
        ),
        units.peer(
            f"dask, coarsen {numpy_name}, wkw lz4",
            "with_coarsen.Pyramid",
            method=method,
            compression="lz4",
            threads=workers,
        ),
    )
    igneous, tensorstore = (5.0, {"em": 2.2, "seg": 4.0}[layer]) if workers == 1 else (None, None)
    other = {"em": "it rounds otherwise", "seg": _TIES}[layer]
    return entrants, (Faster(0, 1, igneous, other), Faster(0, 2, tensorstore), Faster(0, 3))


def _beside_its_limit(data: Data, layer: str, compression: str) -> Race:
    """Set ours beside the sum of its parts."""
    name, method = f"pyramid/{layer}/{compression}/limit", _METHODS[layer, compression]
    cube = data.cube(layer, data.size)
    units = _Units(data, name, cube, method, _rehearsal(data, layer))
    entrants = (
        *(units.ours(threads_label(n), compression, threads=n) for n in (1, 2)),
        units.limit(compression),
    )
    return Race(
        name,
        _title(layer, cube.edge, method, compression),
        entrants,
        (OfLimit(0, 2, 0.8), OfLimit(1, 2)),
        units.volumes,
    )


def _beside_padded(data: Data, layer: str) -> Race:
    """Set ours beside webknossos with the files that it writes by default, which a small volume
    does not fill."""
    name, method = f"pyramid/{layer}/lz4hc/padded", _METHODS[layer, "lz4hc"]
    cube = data.cube(layer, data.size)
    units = _Units(data, name, cube, method, _rehearsal(data, layer))
    padded = units.peer(
        "webknossos, level 9, files of 1024^3", "with_webknossos.Pyramid", method=method
    )
    # zeros would take as long as in the run that counts
    padded = replace(padded, rehearsal=padded.rehearsal | {"file_vx": BLOCK_LEN})
    entrants = (
        units.ours("wkwdask, level auto", "lz4hc"),
        units.ours("wkwdask, level 9", "lz4hc", level=9),
        padded,
    )
    ties = _TIES if method == "mode" else "same"
    conclusions = (Faster(0, 2, 10.0, ties), Faster(1, 2, {"em": 8.0, "seg": 4.0}[layer], ties))
    return Race(
        name, _title(layer, cube.edge, method, "lz4hc"), entrants, conclusions, units.volumes
    )


def _files_of_one_block(data: Data, layer: str) -> Race:
    """Set ours over files of one block each beside ours over one file."""
    name, method = f"pyramid/{layer}/file-len-1", _METHODS[layer, "lz4"]
    volumes = data.cube(layer, file_vx=BLOCK_LEN), data.cube(layer)
    kinds = [_Units(data, f"{name}-{volume.file_vx}", volume, method) for volume in volumes]
    entrants = tuple(
        units.ours(f"wkwdask, {label}", "lz4")
        for units, label in zip(kinds, ("file_len 1", "one file"), strict=True)
    )
    return Race(
        name,
        _title(layer, data.real_size, method, "lz4"),
        entrants,
        (Faster(0, 1, 0.8),),
        (*kinds[0].volumes, *kinds[1].volumes),
    )


def _sparse(data: Data) -> Race:
    """Set a volume that is mostly absent beside a dense one of the same data."""
    name = "pyramid/sparse"
    volumes = data.scattered(dense=False), data.scattered(dense=True)
    kinds = [
        _Units(data, f"{name}-{'dense' if volume.dense else 'sparse'}", volume, "mode")
        for volume in volumes
    ]
    labels = [
        f"wkwdask, {len(volume.files())} files of {volume.file_vx}^3 "
        f"{'side by side' if volume.dense else 'scattered'}"
        for volume in volumes
    ]
    entrants = tuple(units.ours(label, "lz4") for units, label in zip(kinds, labels, strict=True))
    work = (
        f"pyramid of uint8 labels in {volumes[0].grid[0] * volumes[0].file_vx}^3, 1 % there, mode, "
        "lz4"
    )
    return Race(name, work, entrants, (Within(0, 1, 2.0),), (*kinds[0].volumes, *kinds[1].volumes))


def _threads(data: Data, layer: str, compression: str) -> Race:
    """Set ours on two threads beside ours on one."""
    name, method = f"threads/{layer}/pyramid-{compression}", _METHODS[layer, compression]
    cube = data.cube(layer, data.size)
    units = _Units(data, name, cube, method, _rehearsal(data, layer))
    one, two = (units.ours(threads_label(n), compression, version=False, threads=n) for n in (1, 2))
    return scaling(
        name, f"threads: {_title(layer, cube.edge, method, compression)}", one, two, units.volumes
    )
