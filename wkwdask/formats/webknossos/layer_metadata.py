"""What a layer's entry in ``datasource-properties.json`` says besides its mags: typed where it makes sense, and left alone in the file where it does not."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.model.voxel_type import VOXEL_TYPES

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Attachment:
    """Something that belongs to a layer and is no mag: meshes, agglomerates, connectomes, statistics."""

    kind: str
    """``"meshes"``, ``"agglomerates"``, ``"connectomes"``, ``"segmentIndex"``, ``"segmentStatistics"`` or ``"cumsum"``."""
    name: str
    """Its name."""
    path: str
    """Where it is: relative to the dataset, absolute or a URL."""
    data_format: str
    """How it is stored, such as ``"hdf5"`` or ``"zarr3"``."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis besides x, y, z."""

    name: str
    """Its name, such as ``"t"``."""
    bounds: tuple[int, int]
    """First index, and the one behind the last."""
    index: int
    """Where it stands among the axes of the stored arrays."""


def attachments_of(entry: dict[str, Any]) -> tuple[Attachment, ...]:
    """List the attachments that a layer's entry names in a form that makes sense."""
    groups = entry.get("attachments")
    found = []
    for kind, group in groups.items() if isinstance(groups, dict) else ():
        for item in group if isinstance(group, list) else [group]:
            values = [item.get(key) for key in ("name", "path", "dataFormat")] if isinstance(item, dict) else [None]
            if all(isinstance(value, str) for value in values):
                found.append(Attachment(kind, *values))
    return tuple(found)


def mappings_of(entry: dict[str, Any]) -> tuple[str, ...]:
    """List the names of the mappings of a segmentation."""
    names = entry.get("mappings")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def axes_of(entry: dict[str, Any]) -> tuple[Axis, ...]:
    """List the axes besides x, y, z."""
    items = entry.get("additionalAxes")
    found = []
    for item in items if isinstance(items, list) else ():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            low, high = item["bounds"]
            found.append(Axis(str(item["name"]), (int(low), int(high)), int(item["index"])))
    return tuple(found)


def transformations_of(entry: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """List the transformations of coordinates, each as the file has it."""
    items = entry.get("coordinateTransformations")
    return tuple(item for item in items if isinstance(item, dict)) if isinstance(items, list) else ()


def view_of(entry: dict[str, Any]) -> dict[str, Any]:
    """Give how a layer, or a whole dataset, is shown by default."""
    view = entry.get("defaultViewConfiguration")
    return dict(view) if isinstance(view, dict) else {}


def other_format(data_format: str) -> str:
    """Name the format of a layer that is not stored in WKW, empty for one that is."""
    return "" if data_format == "wkw" else data_format


def type_text(element_class: str, num_channels: int) -> str:
    """Describe the voxels of a layer by the type of one channel.

    Examples
    --------
    >>> [type_text(*given) for given in (("uint24", 3), ("float", 1), ("uint80", 3))]
    ['uint8 x 3 channels', 'float32', 'uint80 in 3 channels']
    """
    dtype = dtype_of(element_class, num_channels)
    if num_channels == 1:
        return element_class if dtype is None else dtype.name
    return f"{element_class} in {num_channels} channels" if dtype is None else f"{dtype.name} x {num_channels} channels"


def dtype_of(element_class: str, num_channels: int) -> np.dtype[Any] | None:
    """Find the type of one channel, None where no voxel type has that many bits.

    Examples
    --------
    >>> [str(dtype_of(*given)) for given in (("uint24", 3), ("float", 1), ("uint80", 5))]
    ['uint8', 'float32', 'uint16']
    """
    for voxel_type in VOXEL_TYPES:
        stem = voxel_type.dtype.name.rstrip("0123456789")
        names = [f"{stem}{voxel_type.dtype.itemsize * 8 * num_channels}", *([voxel_type.element_class] if num_channels == 1 else [])]
        if element_class in names:
            return voxel_type.dtype.newbyteorder("=")
    return None
