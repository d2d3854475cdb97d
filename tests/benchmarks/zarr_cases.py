"""Rows of Zarr: WKW seen through zarr-python, and exported to sharded Zarr."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .data import ITEMSIZE, LAYERS
from .pyramid_cases import LABELS
from .race import Faster, Race, Unit

if TYPE_CHECKING:
    from .data import Data

_SOME_NBYTES = 400e6


def zarr_cases(data: Data) -> list[Race]:
    """List everything, in the order of the table."""
    views = [_view(data, layer, edge, count) for layer in LAYERS for edge, count in ((0, 0), (128, 60), (32, 200))]
    return [*views, *(_export(data, layer) for layer in LAYERS)]


def _view(data: Data, layer: str, edge: int, count: int) -> Race:
    """The codec and the store beside ours."""
    cube, size = data.cube(layer), data.real_size
    edge = min(edge, size)
    nbytes = count * edge**3 * ITEMSIZE[layer] if edge else cube.nbytes
    options = {"path": cube.mag, "size": size, "passes": max(1, min(100, round(_SOME_NBYTES / nbytes))), "edge": edge, "count": count}
    name = f"zarr/view/{layer}/{f'box{edge}' if edge else 'whole'}"
    units = (
        Unit("zarr, codec wkw", "with_zarr.View", options | {"stored": True, "folder": data.fresh(f"{name}-codec")}),
        Unit("zarr, zarr_view", "with_zarr.View", options | {"stored": False, "folder": data.fresh(f"{name}-store")}),
        Unit("wkwdask", "ours.Read", options),
    )
    what = f"{count} boxes of {edge}^3" if edge else "whole"
    return Race(name, f"read {LABELS[layer]} through zarr, {what}", units, (Faster(0, 2), Faster(1, 2)), (cube,))


def _export(data: Data, layer: str) -> Race:
    """Ours beside webknossos, ngff-zarr, and a loop of wkw and zarr-python."""
    cube, name = data.cube(layer), f"zarr/export/{layer}"
    tools = (
        ("wkwdask, zstd 3", "with_zarr.Export"), ("webknossos", "webknossos_zarr.Export"), ("ngff-zarr", "ngff_zarr_images.Export"),
        ("zarr, by shards of 256^3", "with_zarr.PlainExport"),
    )  # fmt: skip
    units = tuple(Unit(label, work, {"path": cube.mag, "size": cube.edge, "folder": data.fresh(f"{name}-{n}")}) for n, (label, work) in enumerate(tools))
    conclusions = (Faster(0, 1, 1.0, shows_peak=True), Faster(0, 2, shows_peak=True), Faster(0, 3, 1.0, shows_peak=True))
    return Race(name, f"WKW to sharded Zarr, {LABELS[layer]} {cube.edge}^3", units, conclusions, (cube,))
