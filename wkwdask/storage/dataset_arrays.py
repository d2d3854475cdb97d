"""Layers of a WEBKNOSSOS dataset whose mags are Zarr arrays or N5 datasets, as the webknossos library writes them: places and boxes are those of the JSON."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.levels import lengths_in
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag
from wkwdask.storage.dataset import Layer, Located, layer_in, read_datasource
from wkwdask.storage.leveled import Level, LeveledLayer
from wkwdask.storage.local import is_remote, local_path
from wkwdask.storage.n5_layer import find_n5_layers
from wkwdask.storage.zarr_layer import open_zarr_volume

if TYPE_CHECKING:
    from wkwdask.formats.datasource import LayerRecord
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.storage.n5 import N5Volume
    from wkwdask.storage.zarr_volume import ZarrVolume

FORMATS = {"zarr3": "zarr", "zarr": "zarr", "n5": "n5"}
"""How a layer is stored that is opened here, by what the JSON calls it."""


def listed_arrays(url: object) -> Located | None:
    """Find out whether a local path is that of a layer, or of one of its mags, that the JSON of a dataset lists as Zarr or N5; None where not."""
    if not isinstance(url, (str, os.PathLike)) or not os.fspath(url) or is_remote(os.fspath(url)):
        return None
    path = local_path(url)
    parent = os.path.dirname(path)
    for dataset, folder in ((parent, path), (os.path.dirname(parent), parent)):
        datasource = read_datasource(dataset)
        layer = None if datasource is None else layer_in(dataset, datasource, folder)
        if layer is None or not is_arrays_layer(layer):
            continue
        real = os.path.realpath(path)
        mag = next((mag for mag, listed in layer.mags.items() if not is_remote(listed) and os.path.realpath(listed) == real), None)
        if mag is not None or folder == path:
            return Located(path, (layer,), mag)
    return None


def is_arrays_layer(layer: Layer) -> bool:
    """Tell whether the JSON says that a layer is stored as Zarr or N5."""
    return layer.record is not None and layer.record.data_format in FORMATS


def arrays_of(layer: Layer, only: Mag | None = None) -> LeveledLayer:
    """Open a layer that is stored as Zarr or N5.

    Parameters
    ----------
    layer : Layer
        One of which :func:`is_arrays_layer` is true.
    only : Mag, optional
        The mag that is meant, where the path is that of one.

    Returns
    -------
    LeveledLayer
        A mag that cannot be used leaves the others alone.
    """
    assert layer.record is not None
    stored, levels = FORMATS[layer.record.data_format], []
    for mag, folder in layer.mags.items():
        size = None if layer.voxel_size_nm is None else lengths_in(mag, layer.voxel_size_nm)
        try:
            volume = _opened(folder, stored, _axes(layer.record, mag))
            volume = replace(volume, mag=mag, lengths_nm=size)
            levels.append(Level(mag.name, volume.cropped(_part(volume.extent, layer.record.bounding_box, mag)), mag))
        except (FormatError, MissingError, ModuleNotFoundError, UnsupportedError) as error:
            levels.append(Level(mag.name, None, mag, problem=str(error), error=type(error)))
    return LeveledLayer(stored, layer.folder, layer.name, tuple(levels), None if only is None else only.name, layer.record.category)


def _axes(record: LayerRecord, mag: Mag) -> str:
    """Give the letters of the axes of a mag's array, as the JSON has them where it says so."""
    items = record.entry.get("mags")
    for item in items if isinstance(items, list) else ():
        order = item.get("axisOrder") if Mag.parse(item["mag"]) == mag else None
        if isinstance(order, dict) and {"x", "y"} <= set(order) <= set("cxyz") and sorted(map(str, order.values())) == [str(n) for n in range(len(order))]:
            return "".join(sorted(order, key=lambda letter: int(order[letter])))
    return "cxyz" if record.num_channels > 1 else "xyz"


def _opened(folder: str, stored: str, axes: str) -> N5Volume | ZarrVolume:
    """Open the array of a mag, in which the index of a voxel is its absolute place."""
    if stored == "zarr":
        return open_zarr_volume(folder, axes)
    (layer,) = find_n5_layers(folder)
    volume = layer.find(layer.key).open().volume
    return replace(volume, mag=MAG_1)


def _part(extent: BoundingBox, box: BoundingBox, mag: Mag) -> BoundingBox:
    """Give what counts of an array: what the JSON says that the layer covers."""
    return box.in_mag(mag).intersection(extent)
