"""Reader for napari, as ``napari.yaml`` in this folder declares it. napari itself is not
imported."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.opening import find
from wkwdask.formats.plain_arrays import contains_plain_arrays, is_placed
from wkwdask.formats.registry import default_format, format_of
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag
from wkwdask.graphs.read import open_array
from wkwdask.model.levels import lengths_in
from wkwdask.store.paths import local_path
from wkwdask.viewer.layers import SAMPLE_PIXELS, contrast_of, open_mags
from wkwdask.viewer.slices import is_segmentation, read_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.image import Image
    from wkwdask.model.stored_array import StoredArray

    Volumes = dict[Mag, StoredArray]
    LayerData = tuple[Any, dict[str, Any], str]

_ALIGNED_VOXELS = 16  # of the coarsest mag along an axis to which the finest is aligned
_RGB = ("red", "green", "blue")


def get_reader(path: str | list[str]) -> Callable[[str], list[LayerData]] | None:
    """Return the function that reads a path or URL, None if it is nothing that wkwdask opens."""
    url = path[0] if isinstance(path, list) and len(path) == 1 else path
    if not isinstance(url, str) or (
        format_of(url) is None and not default_format().guess_can_open(url)
    ):
        return None
    try:
        _open_images(url)
    except MissingError:
        return None
    except (FormatError, ModuleNotFoundError, OSError, UnsupportedError):
        if contains_plain_arrays(url):
            # other plugins may read it; in all other cases the user sees the error
            return None
    return read_layers


def read_layers(path: str | list[str]) -> list[LayerData]:
    """Return data, attributes and type of a napari layer for each layer at a path or URL,
    segmentations last."""
    url = path[0] if isinstance(path, list) else path
    opened = _open_images(url)
    labels = [is_segmentation(image, next(iter(volumes.values()))) for image, volumes in opened]
    order = sorted(range(len(opened)), key=labels.__getitem__)
    return [layer for n in order for layer in _read_image(*opened[n], are_ids=labels[n])]


def _open_images(url: str) -> list[tuple[Image, Volumes]]:
    """Open the images at a URL; of arrays without a position in space, only one that the URL
    names."""
    resolved = find(url)
    images = [resolved.readable(image) for image in resolved.layers]
    if contains_plain_arrays(url):
        images = [
            image for image in images if image.folder == local_path(url) or is_placed(image.folder)
        ]
    opened: list[tuple[Image, Volumes]] = []
    errors: list[Exception] = []
    for image in images:
        try:
            opened += [(image, volumes)] if (volumes := open_mags(image, resolved.mag)) else []
        except (FormatError, MissingError, ModuleNotFoundError, UnsupportedError) as error:
            errors.append(error)
    if opened:
        return opened
    for invalid in resolved.invalid_layers:
        invalid.raise_error()
    raise errors[0] if errors else MissingError(f"{url}: no layer with voxels")


def _read_image(image: Image, volumes: Volumes, *, are_ids: bool) -> list[LayerData]:
    finest, *_, coarsest = [*volumes.values()] * 2
    size, mag = image.voxel_size_of(finest) or image.voxel_size_nm, finest.box.mag
    box = _common_box(list(volumes.values()))
    lengths = lengths_in(mag, size or (1.0, 1.0, 1.0))
    first = box.in_mag(mag).topleft
    # As in OME-NGFF, the center of voxel 0 of mag 1 is at 0.
    centers = [
        t * length + (length - length / m) / 2
        for t, length, m in zip(first, lengths, mag.factors, strict=True)
    ]
    attributes: dict[str, Any] = {
        "name": image.name,
        "scale": lengths[::-1],
        "translate": tuple(centers[::-1]),
        "axis_labels": ("z", "y", "x"),
        "multiscale": len(volumes) > 1,
        "cache": False,  # with its cache, napari decodes whole chunks for each section
    }
    if size is not None:
        attributes["units"] = ("nm", "nm", "nm")
    if are_ids and finest.dtype.kind in "iu":
        names = (
            [image.name]
            if finest.num_channels == 1
            else [f"{image.name} {n}" for n in range(finest.num_channels)]
        )
        return [
            (_arrays(volumes, box, n), attributes | {"name": name}, "labels")
            for n, name in enumerate(names)
        ]
    ranges = _contrast_limits(coarsest, finest.box)
    if finest.num_channels == 1:
        return [
            (
                _arrays(volumes, box, 0),
                attributes | ({"contrast_limits": ranges[0]} if ranges else {}),
                "image",
            )
        ]
    channels = {
        "channel_axis": 0,
        "name": [f"{image.name} {n}" for n in range(finest.num_channels)],
    }
    if finest.num_channels == len(_RGB) and finest.dtype.kind == "u":
        channels["colormap"] = list(_RGB)
    return [
        (
            _arrays(volumes, box, None),
            attributes | channels | ({"contrast_limits": ranges} if ranges else {}),
            "image",
        )
    ]


def _arrays(volumes: Volumes, box: BoundingBox, channel: int | None) -> Any:
    """Return the arrays of all mags, finest first, or the only one; channels come first if none is
    chosen."""
    axes = "czyx" if channel is None else "zyx"
    parts = [(volume, box.in_mag(mag)) for mag, volume in volumes.items()]
    arrays = [
        open_array(volume, chunks="auto", box=part, extent=part, axes=axes, channel=channel)
        for volume, part in parts
    ]
    return arrays if len(arrays) > 1 else arrays[0]


def _common_box(volumes: Sequence[StoredArray]) -> BoundingBox:
    """Return the box of all mags [voxels of mag 1], extended so that the finest mag covers whole
    voxels of the others.

    napari stretches coarser arrays to the extent of the finest, so positions differ unless it does:

        mag 1   . |||||||||||||| .
        mag 4   |   |   |   |   |
    """
    box = volumes[0].box.in_mag(MAG_1)
    factors = []
    for axis, length in enumerate(box.size):
        fitting = [
            volume.box.mag.factors[axis]
            for volume in volumes
            if volume.box.mag.factors[axis] * _ALIGNED_VOXELS <= length
        ]
        factors.append(max(fitting, default=1))
    return box.in_mag(Mag(*factors)).in_mag(MAG_1)


def _contrast_limits(volume: StoredArray, box: BoundingBox) -> list[tuple[float, float]]:
    """Return the range of most values of each channel, nothing if a channel has no two values."""
    with contextlib.suppress(FormatError, MissingError, UnsupportedError, ModuleNotFoundError):
        ranges = [
            contrast_of(values)
            for values in read_slice(volume, box, "x", "y", SAMPLE_PIXELS, are_ids=False)
        ]
        known = [limits for limits in ranges if limits is not None]
        return known if len(known) == len(ranges) else []
    return []
