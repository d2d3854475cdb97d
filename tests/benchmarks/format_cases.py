"""Rows of Neuroglancer precomputed volumes and of WKW as Zarr, beside the tools of these
formats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .data import ITEMSIZE, LAYERS
from .pyramid_cases import LABELS
from .race import Faster, OfCopy, OfLimit, Race, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .data import Cube, Data

_METHODS = {"em": "mean", "seg": "mode"}
_SOME_NBYTES = 400e6
_OTHER = {"em": "it rounds down", "seg": "ties of the mode"}


def precomputed_cases(data: Data) -> list[Race]:
    """List everything, in the order of the table."""
    kinds = [_Kind(data, layer, sharded) for layer in LAYERS for sharded in (True, False)]
    return [
        make(kind) for make in (_write, _read, _read_many, _pyramid, _convert) for kind in kinds
    ]


@dataclass(frozen=True)
class _Kind:
    """A volume, and how it is stored."""

    data: Data
    """All volumes."""
    layer: str
    """``em`` or ``seg``."""
    sharded: bool
    """Whether chunks are put into shards."""

    @property
    def name(self) -> str:
        """Last part of the names of rows."""
        return f"{self.layer}/{'sharded' if self.sharded else 'files'}"

    @property
    def cube(self) -> Cube:
        """The voxels."""
        return self.data.cube(self.layer)

    def title(self, work: str, dtype: str = "uint64") -> str:
        """Describe a row."""
        encoding = "raw" if self.layer == "em" else f"compressed_segmentation of {dtype}"
        return (
            f"precomputed: {work} {LABELS[self.layer]} {self.cube.edge}^3, {encoding}, "
            f"{'sharded, gzip' if self.sharded else 'a file per chunk'}"
        )

    def unit(self, work: str, label: str, module: str, class_name: str, **options: str) -> Unit:
        """Make a unit; the volumes that are read lie beside the folders of all units."""
        folder = self.data.fresh(f"precomputed-{work}-{self.name}-{module}")
        real = {
            "path": self.cube.mag,
            "size": self.cube.edge,
            "folder": folder,
            "sharded": self.sharded,
            **options,
        }
        return Unit(label, f"{module}.{class_name}", real)

    def race(
        self, work: str, title: str, units: tuple[Unit, ...], conclusions: tuple[Faster, ...]
    ) -> Race:
        """Make a race."""
        return Race(f"precomputed/{work}/{self.name}", title, units, conclusions, (self.cube,))


def _gzip(kind: _Kind, tool: str) -> str:
    """Say how a tool compresses chunks in shards; none of the others lets people choose."""
    if not kind.sharded:
        return tool
    ours = "gzip of isal" if kind.layer == "em" else "gzip level 6"
    return f"{tool}, {ours if tool == 'wkwdask' else 'gzip level 9'}"


def _write(kind: _Kind) -> Race:
    """Ours beside both libraries."""
    units = (
        kind.unit("write", _gzip(kind, "wkwdask"), "ours_precomputed", "Write"),
        kind.unit("write", _gzip(kind, "cloud-volume"), "cloudvolume_precomputed", "Write"),
        kind.unit("write", _gzip(kind, "tensorstore"), "tensorstore_precomputed", "Write"),
    )
    return kind.race(
        "write",
        kind.title("write"),
        units,
        (Faster(0, 1, 1.0, shows_peak=True), Faster(0, 2, shows_peak=True)),
    )


def _read(kind: _Kind) -> Race:
    """Ours beside both libraries, all from the same files."""
    units = (
        kind.unit("read", "wkwdask", "ours_precomputed", "Read"),
        kind.unit("read", "cloud-volume", "cloudvolume_precomputed", "Read"),
        kind.unit("read", "tensorstore", "tensorstore_precomputed", "Read"),
    )
    return kind.race(
        "read",
        kind.title("read"),
        units,
        (Faster(0, 1, 1.0, shows_peak=True), Faster(0, 2, shows_peak=True)),
    )


def _read_many(kind: _Kind) -> Race:
    """Ours beside tensorstore."""
    edge = min(64, kind.cube.edge // 4)
    units = tuple(
        replace(unit, options=unit.options | {"edge": edge, "arrangement": "near"})
        for unit in (
            kind.unit("many", "wkwdask", "ours_precomputed", "ReadMany"),
            kind.unit("many", "tensorstore", "tensorstore_precomputed", "ReadMany"),
        )
    )
    return kind.race(
        "many",
        kind.title(f"64 boxes of {edge}^3 near each other, of"),
        units,
        (Faster(0, 1, 1.0, shows_peak=True),),
    )


def _pyramid(kind: _Kind) -> Race:
    """Ours beside igneous and the downsample driver of tensorstore, all from the same files."""
    method = _METHODS[kind.layer]
    units = (
        kind.unit("pyramid", _gzip(kind, "wkwdask"), "ours_precomputed", "Pyramid", method=method),
        kind.unit(
            "pyramid", _gzip(kind, "igneous"), "igneous_precomputed", "Pyramid", method=method
        ),
        kind.unit(
            "pyramid",
            _gzip(kind, "tensorstore"),
            "tensorstore_precomputed",
            "Pyramid",
            method=method,
        ),
    )
    conclusions = (
        Faster(0, 1, 2.0, _OTHER[kind.layer], shows_peak=True),
        Faster(0, 2, 2.0, shows_peak=True),
    )
    return kind.race("pyramid", kind.title(f"pyramid by {method} of"), units, conclusions)


def _convert(kind: _Kind) -> Race:
    """Ours beside wkw and each of the libraries, shard by shard."""
    units = (
        kind.unit("convert", _gzip(kind, "wkwdask"), "ours_precomputed", "Convert"),
        kind.unit("convert", _gzip(kind, "cloud-volume"), "cloudvolume_precomputed", "Convert"),
        kind.unit("convert", _gzip(kind, "tensorstore"), "tensorstore_precomputed", "Convert"),
    )
    return kind.race(
        "convert",
        kind.title("WKW to", "uint32"),
        units,
        (Faster(0, 1, 1.0, shows_peak=True), Faster(0, 2, shows_peak=True)),
    )


def zarr_cases(data: Data) -> list[Race]:
    """List the rows of Zarr: WKW read through zarr-python and exported, and pyramids and copies of
    OME-Zarr images."""
    views = [
        _view(data, layer, edge, count)
        for layer in LAYERS
        for edge, count in ((0, 0), (128, 60), (32, 200))
    ]
    stored = [(layer, compression) for layer in LAYERS for compression in ("zstd", "blosc-lz4")]
    return [
        *views,
        *(make(data, layer) for make in (_export, _splice) for layer in LAYERS),
        *(make(data, *kind) for make in (_zarr_pyramid, _zarr_rechunk) for kind in stored),
    ]


def _view(data: Data, layer: str, edge: int, count: int) -> Race:
    """The codec and the store beside ours."""
    cube, size = data.cube(layer), data.real_size
    name = f"zarr/view/{layer}/{f'box{edge}' if edge else 'whole'}"
    edge = min(edge, size)
    nbytes = count * edge**3 * ITEMSIZE[layer] if edge else cube.nbytes
    options = {
        "path": cube.mag,
        "size": size,
        "passes": max(1, min(100, round(_SOME_NBYTES / nbytes))),
        "edge": edge,
        "count": count,
    }
    units = (
        Unit(
            "zarr, codec wkw",
            "with_zarr.View",
            options | {"stored": True, "folder": data.fresh(f"{name}-codec")},
        ),
        Unit(
            "zarr, zarr_view",
            "with_zarr.View",
            options | {"stored": False, "folder": data.fresh(f"{name}-store")},
        ),
        Unit("wkwdask", "ours.Read", options),
    )
    what = f"{count} boxes of {edge}^3" if edge else "whole"
    return Race(
        name,
        f"read {LABELS[layer]} through zarr, {what}",
        units,
        (Faster(0, 2), Faster(1, 2)),
        (cube,),
    )


def _export(data: Data, layer: str) -> Race:
    """Ours beside webknossos, ngff-zarr, and a loop of wkw and zarr-python."""
    cube, name = data.cube(layer), f"zarr/export/{layer}"
    tools = (
        ("wkwdask, zstd 3", "with_zarr.Export"),
        ("webknossos", "webknossos_zarr.Export"),
        ("ngff-zarr", "ngff_zarr_images.Export"),
        ("zarr, by shards of 256^3", "with_zarr.PlainExport"),
    )
    units = tuple(
        Unit(
            label, work, {"path": cube.mag, "size": cube.edge, "folder": data.fresh(f"{name}-{n}")}
        )
        for n, (label, work) in enumerate(tools)
    )
    conclusions = (
        Faster(0, 1, 1.0, shows_peak=True),
        Faster(0, 2, shows_peak=True),
        Faster(0, 3, 1.0, shows_peak=True),
    )
    return Race(
        name, f"WKW to sharded Zarr, {LABELS[layer]} {cube.edge}^3", units, conclusions, (cube,)
    )


def _splice(data: Data, layer: str) -> Race:
    """Ours with copied blocks beside cp, ours with decoded blocks, and a loop of wkw and
    zarr-python."""
    cube, name = data.cube(layer), f"zarr/splice/{layer}"
    options = {"path": cube.mag, "size": cube.edge}
    tools = (
        ("wkwdask, blocks copied", "with_zarr.Splice"),
        ("wkwdask, zstd 3", "with_zarr.Export"),
        ("zarr, by shards of 256^3", "with_zarr.PlainExport"),
    )
    units = (
        *(
            Unit(label, work, options | {"folder": data.fresh(f"{name}-{n}")})
            for n, (label, work) in enumerate(tools)
        ),
        Unit(
            "cp, sync",
            "copying.Copy",
            {"path": cube.mag, "folder": data.fresh(f"{name}-cp"), "nbytes": cube.nbytes},
            show_version=False,
        ),
    )
    decoded, of_copy = {"em": (10.0, 0.8), "seg": (6.0, 0.6)}[layer]
    conclusions = (
        Faster(0, 3, of_copy, shows_peak=True),
        OfCopy(0, 3, 0.8),
        Faster(0, 1, decoded, shows_peak=True),
        Faster(0, 2, shows_peak=True),
    )
    return Race(
        name,
        f"WKW blocks to chunks of Zarr, {LABELS[layer]} {cube.edge}^3",
        units,
        conclusions,
        (cube,),
    )


def _zarr_units(
    data: Data, name: str, layer: str, compression: str, tools: Sequence[tuple[str, str, dict]]
) -> tuple[Unit, ...]:
    """Make units that all begin with the same sharded OME-Zarr image."""
    cube = data.cube(layer)
    options = {
        "path": cube.mag,
        "size": cube.edge,
        "method": _METHODS[layer],
        "compression": compression,
    }
    return tuple(
        Unit(label, work, options | {"folder": data.fresh(f"{name}-{n}")} | more)
        for n, (label, work, more) in enumerate(tools)
    )


def _zarr_pyramid(data: Data, layer: str, compression: str) -> Race:
    """Ours beside tensorstore, dask with zarr-python and, for images, ngff-zarr, which has no quick
    mode."""
    name = f"zarr/pyramid/{layer}/{compression}"
    tools = [
        ("wkwdask", "with_zarr.Pyramid", {}),
        ("tensorstore, by shards", "tensorstore_zarr.Pyramid", {}),
        ("dask, coarsen, zarr", "with_zarr.PlainPyramid", {}),
        ("ngff-zarr, bin shrink", "ngff_zarr_images.Pyramid", {}),
    ]
    units = _zarr_units(data, name, layer, compression, tools if layer == "em" else tools[:3])
    conclusions = [
        Faster(0, n, 2.0, _OTHER[layer] if n == 3 else "same", shows_peak=True)
        for n in range(1, len(units))
    ]
    (limit,) = _zarr_units(
        data, f"{name}-limit", layer, compression, [("its parts alone", "zarr_limit.Limit", {})]
    )
    units = (*units, replace(limit, show_version=False))
    share = {"em/zstd": 0.85, "seg/zstd": 0.8}.get(f"{layer}/{compression}", 0.75)
    conclusions.append(OfLimit(0, len(units) - 1, share, counts_files=True))
    work = (
        f"pyramid of sharded OME-Zarr, {LABELS[layer]} {data.cube(layer).edge}^3, "
        f"{_METHODS[layer]}, {compression}"
    )
    return Race(name, work, units, tuple(conclusions), (data.cube(layer),))


def _zarr_rechunk(data: Data, layer: str, compression: str) -> Race:
    """Ours with copied chunks beside ours with decoded ones."""
    name = f"zarr/rechunk/{layer}/{compression}"
    tools = [
        ("wkwdask, chunks copied", "with_zarr.Rechunk", {}),
        ("wkwdask, chunks decoded", "with_zarr.Rechunk", {"level": 4}),
    ]
    work = (
        f"sharded OME-Zarr to shards of half the edge, {LABELS[layer]} {data.cube(layer).edge}^3, "
        f"{compression}"
    )
    return Race(
        name,
        work,
        _zarr_units(data, name, layer, compression, tools),
        (Faster(0, 1, 10.0, shows_peak=True),),
        (data.cube(layer),),
    )
