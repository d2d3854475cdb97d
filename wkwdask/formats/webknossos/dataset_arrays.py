"""Layers of a WEBKNOSSOS dataset whose mags are Zarr arrays or N5 datasets, as the webknossos library writes them: places and boxes are those of the JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, FormatError, MissingError, UnsupportedError
from wkwdask.formats.leveled import array_image, array_level
from wkwdask.formats.n5.attributes import is_whole
from wkwdask.formats.n5.layer import open_n5_volume
from wkwdask.formats.webknossos.datasource import FILE_NAME
from wkwdask.formats.zarr.layer import open_zarr_volume
from wkwdask.formats.zarr.ngff import axes_of
from wkwdask.geometry.mag import Mag
from wkwdask.model.image import Image, Level
from wkwdask.model.levels import lengths_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wkwdask.formats.webknossos.datasource import LayerRecord
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.stored_array import StoredArray

FORMATS = {"zarr3": "zarr", "zarr": "zarr", "n5": "n5"}
"""How a layer is stored that is opened here, by what the JSON calls it."""


def is_arrays_layer(layer: Image) -> bool:
    """Tell whether the JSON says that a layer is stored as Zarr or N5."""
    return layer.container is not None and layer.container.record is not None and layer.container.record.data_format in FORMATS


def arrays_of(layer: Image, only: Mag | None = None) -> Image:
    """Open a layer that is stored as Zarr or N5."""
    record: LayerRecord = layer.container.record
    stored, levels = FORMATS[record.data_format], []
    for mag, folder in layer.mags.items():
        size = None if layer.voxel_size_nm is None else lengths_in(mag, layer.voxel_size_nm)
        source = f"{layer.container.dataset_folder}/{FILE_NAME}: layer {layer.name}, mag {mag}"
        item = _entry_of(record, mag)
        try:
            volume = _opened(folder, stored, partial(_axes, record, item, source))
            volume = replace(volume, mag=mag, lengths_nm=size, channels=_channels(record, item, volume.num_channels, source))
            levels.append(array_level(mag.name, volume.cropped(_part(volume.extent, record.bounding_box, mag)), mag))
        except (FormatError, MissingError, ModuleNotFoundError, UnsupportedError) as error:
            levels.append(Level(mag.name, folder, mag=mag, problem=str(error), error=type(error)))
    return array_image(stored, layer.folder, layer.name, levels, None if only is None else only.name, record.category)


def _entry_of(record: LayerRecord, mag: Mag) -> dict[str, Any]:
    """Find what the JSON says of a mag."""
    items = record.entry.get("mags")
    return next((item for item in items if Mag.parse(item["mag"]) == mag), {}) if isinstance(items, list) else {}


def _axes(record: LayerRecord, item: dict[str, Any], source: str, shape: Sequence[int], names: Sequence[str] | None) -> str:
    """Say which axis of a mag's array is which: by ``axisOrder``, else by the names that the array has, else in the order c, x, y, z.

    ``axisOrder`` has an index for each axis: into ``shape`` of Zarr, and into ``dimensions`` of N5. An axis c that is not listed comes first.
    """
    order = item.get("axisOrder")
    if order is None:
        return axes_of(shape, names or ("xy" if len(shape) == 2 else "cxyz"[-len(shape) :]), source)
    if not isinstance(order, dict) or not {"x", "y"} <= set(order) or not all(map(is_whole, order.values())):
        raise CorruptError(f"{source}: axisOrder: expected the index of a dimension for each of x, y and z, found {json.dumps(order)[:80]}")
    places = {letter: int(index) for letter, index in order.items()}
    if record.num_channels == 1 and len(places) == len(shape) + 1 and "c" in places:  # the array has no axis for its one channel
        channel = places.pop("c")
        places = {letter: index - (index > channel) for letter, index in places.items()}
    extra = record.entry.get("additionalAxes")
    for axis in extra if isinstance(extra, list) else ():
        if isinstance(axis, dict) and is_whole(axis.get("index")):
            places.setdefault(str(axis.get("name")), int(axis["index"]))
    if len(set(places.values())) != len(places) or not all(0 <= index < len(shape) for index in places.values()):
        raise CorruptError(f"{source}: axisOrder: expected the index of one of {len(shape)} dimensions for each axis, found {json.dumps(order)[:80]}")
    found = {index: letter for letter, index in places.items()}
    rest = [index for index in range(len(shape)) if index not in found]
    if rest and "c" not in places:
        found[rest[0]] = "c"
    return axes_of(shape, [found.get(index, "-") for index in range(len(shape))], source)


def _channels(record: LayerRecord, item: dict[str, Any], stored: int, source: str) -> tuple[int, int]:
    """Say which channels of an array belong to a layer: the first one and their number."""
    first = item.get("channelIndex") or 0
    is_said = record.entry.get("numChannels") is not None or record.num_channels > 1 or "channelIndex" in item
    count = record.num_channels if is_said else stored
    if not is_whole(first) or not 0 <= first <= stored - count:
        raise CorruptError(f"{source}: expected channels {first!r} to {first!r} + {count} by channelIndex and numChannels, found {stored} in the array")
    return int(first), count


def _opened(folder: str, stored: str, axes: Callable[[Sequence[int], Sequence[str] | None], str]) -> StoredArray:
    """Open the array of a mag, in which the index of a voxel is its absolute place."""
    return open_zarr_volume(folder, axes) if stored == "zarr" else open_n5_volume(folder, axes)


def _part(extent: BoundingBox, box: BoundingBox, mag: Mag) -> BoundingBox:
    """Give what counts of an array: what the JSON says that the layer covers."""
    return box.in_mag(mag).intersection(extent)
