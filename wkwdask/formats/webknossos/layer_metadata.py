"""Typed access to other fields of a layer's entry in ``datasource-properties.json``: attachments,
axes, mappings, view settings.

Invalid values are skipped here, and stay unchanged in the file.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.model.voxel_type import VOXEL_TYPES

if TYPE_CHECKING:
    import numpy as np

    from wkwdask.model.json_text import JsonObject


@dataclass(frozen=True, slots=True)
class Attachment:
    """Attachment of a layer: meshes, agglomerates, a connectome or statistics."""

    kind: str
    """``"meshes"``, ``"agglomerates"``, ``"connectomes"``, ``"segmentIndex"``,
    ``"segmentStatistics"`` or ``"cumsum"``."""
    name: str
    """Name of the attachment."""
    path: str
    """Path relative to the dataset, absolute path or URL."""
    data_format: str
    """Storage format, such as ``"hdf5"`` or ``"zarr3"``."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Axis other than x, y, z."""

    name: str
    """Name of the axis, such as ``"t"``."""
    bounds: tuple[int, int]
    """First index and end."""
    index: int
    """Position among the axes of the stored arrays."""


def attachments_of(entry: JsonObject) -> tuple[Attachment, ...]:
    """List the valid attachments of a layer."""
    groups = entry.get("attachments")
    attachments = []
    for kind, group in groups.items() if isinstance(groups, dict) else ():
        for item in group if isinstance(group, list) else [group]:
            values = (
                [item.get(key) for key in ("name", "path", "dataFormat")]
                if isinstance(item, dict)
                else [None]
            )
            if all(isinstance(value, str) for value in values):
                attachments.append(Attachment(kind, *values))
    return tuple(attachments)


def mappings_of(entry: JsonObject) -> tuple[str, ...]:
    """List the names of the mappings of a segmentation."""
    names = entry.get("mappings")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def axes_of(entry: JsonObject) -> tuple[Axis, ...]:
    """List the axes other than x, y, z."""
    items = entry.get("additionalAxes")
    axes = []
    for item in items if isinstance(items, list) else ():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            low, high = item["bounds"]
            axes.append(Axis(str(item["name"]), (int(low), int(high)), int(item["index"])))
    return tuple(axes)


def transformations_of(entry: JsonObject) -> tuple[JsonObject, ...]:
    """List the coordinate transformations, unparsed."""
    items = entry.get("coordinateTransformations")
    return (
        tuple(item for item in items if isinstance(item, dict)) if isinstance(items, list) else ()
    )


def view_of(entry: JsonObject) -> JsonObject:
    """Return the default view settings of a layer or a dataset."""
    view = entry.get("defaultViewConfiguration")
    return dict(view) if isinstance(view, dict) else {}


def other_format(data_format: str) -> str:
    """Return the storage format of a layer, an empty text for WKW."""
    return "" if data_format == "wkw" else data_format


def type_text(element_class: str, num_channels: int) -> str:
    """Describe the voxel type of a layer by the type of one channel.

    Examples
    --------
    >>> [type_text(*layer) for layer in (("uint24", 3), ("float", 1), ("uint80", 3))]
    ['uint8 x 3 channels', 'float32', 'uint80 in 3 channels']
    """
    dtype = dtype_of(element_class, num_channels)
    if num_channels == 1:
        return element_class if dtype is None else dtype.name
    return (
        f"{element_class} in {num_channels} channels"
        if dtype is None
        else f"{dtype.name} x {num_channels} channels"
    )


def dtype_of(element_class: str, num_channels: int) -> np.dtype[Any] | None:
    """Return the type of one channel; None if no voxel type matches.

    Examples
    --------
    >>> [str(dtype_of(*layer)) for layer in (("uint24", 3), ("float", 1), ("uint80", 5))]
    ['uint8', 'float32', 'uint16']
    """
    for voxel_type in VOXEL_TYPES:
        stem = voxel_type.dtype.name.rstrip("0123456789")
        names = [
            f"{stem}{voxel_type.dtype.itemsize * 8 * num_channels}",
            *([voxel_type.element_class] if num_channels == 1 else []),
        ]
        if element_class in names:
            return voxel_type.dtype.newbyteorder("=")
    return None
