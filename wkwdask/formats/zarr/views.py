"""Layers of any format as OME-NGFF pyramids that are stored nowhere: metadata, and chunks that are decoded when they are asked for."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import MissingError
from wkwdask.formats.zarr.documents import FILE_NAME, array_document, format_document, group_document, letters_of, raw_codecs
from wkwdask.formats.zarr.ngff import LABELS, image_attributes, label_attributes, level_of, multiscale
from wkwdask.model.volume import in_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wkwdask.formats.zarr.ngff import PyramidLevel
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume

_CHUNK_NBYTES = 1 << 20
_KEY = re.compile(r"c(?:/0)?/(\d+)/(\d+)/(\d+)", re.ASCII)


def rgb_range(dtype: np.dtype[Any], num_channels: int) -> tuple[float, float] | None:
    """Give the values of red, green and blue, where channels are that."""
    return (0, int(np.iinfo(dtype).max)) if num_channels == 3 and dtype.kind == "u" and dtype.itemsize <= 2 else None


def layer_attributes(layer: Image, levels: Iterable[PyramidLevel], volume: Volume) -> dict[str, Any]:
    """Write the attributes of the group of a layer, one of whose mags is given."""
    is_label = layer.category == "segmentation"
    image = multiscale(layer.name, levels, letters_of(volume.num_channels), None if layer.voxel_size_nm is None else "nanometer")
    rgb = None if is_label else rgb_range(volume.dtype, volume.num_channels)
    return image_attributes(image, version="0.5", is_label=is_label, rgb=rgb)


@dataclass(frozen=True, slots=True)
class VirtualArray:
    """One mag as a Zarr array of raw chunks; small to pickle."""

    volume: Volume
    """Its voxels; voxel 0 is element 0."""
    chunk_shape: Vec3
    """A chunk along x, y, z [voxels]."""

    def document(self, mag: Mag, topleft: Vec3) -> dict[str, Any]:
        """Write its ``zarr.json``."""
        volume = self.volume
        attributes = {"mag": list(mag.factors), "offset_vx": list(topleft)}
        return array_document(volume.box.size, volume.num_channels, volume.dtype, self.chunk_shape, raw_codecs(volume.dtype), attributes)

    def read(self, key: str) -> np.ndarray[Any, Any] | None:
        """Decode a chunk, axes (c,) z, y, x; None where all voxels are zero, or there is no such chunk."""
        match = _KEY.fullmatch(key)
        if match is None:
            return None
        z, y, x = (int(n) for n in match.groups())
        topleft = (x * self.chunk_shape[0], y * self.chunk_shape[1], z * self.chunk_shape[2])
        inside = tuple(min(n, high - t) for n, high, t in zip(self.chunk_shape, self.volume.box.bottomright, topleft, strict=True))
        if min(inside) <= 0:
            return None
        dtype = self.volume.dtype.newbyteorder("<")
        shape = (self.volume.num_channels, *reversed(self.chunk_shape))
        out = np.empty(shape, dtype) if inside == self.chunk_shape else np.zeros(shape, dtype)
        part = out.transpose(0, 3, 2, 1)[:, : inside[0], : inside[1], : inside[2]]
        return out if self.volume.read_into(part, topleft) else None


@dataclass(frozen=True)
class VirtualGroup:
    """A tree of metadata and arrays."""

    documents: dict[str, bytes] = field(default_factory=dict)
    """Every ``zarr.json``, by its key."""
    arrays: dict[str, VirtualArray] = field(default_factory=dict)
    """Arrays, by their paths."""

    def add_group(self, path: str, attributes: dict[str, Any]) -> None:
        """Add a group."""
        self.documents[_joined(path, FILE_NAME)] = format_document(group_document(attributes)).encode()

    def add_image(self, path: str, layer: Image, chunk_shape: Vec3 | None, mags: Iterable[Mag]) -> None:
        """Add a layer as an image of some of its mags."""
        levels, volumes = [], []
        for one in mags:
            with contextlib.suppress(MissingError):
                volume = layer.volume(one)
                if volume.box.is_empty:
                    continue
                self.add_array(_joined(path, one.name), volume, chunk_shape)
                levels.append(level_of(one.name, one, volume.box.topleft, layer.voxel_size_nm))
                volumes.append(volume)
        if not levels:
            raise MissingError(f"{layer.folder}: no mag of layer {layer.name} has voxels")
        self.add_group(path, layer_attributes(layer, levels, volumes[0]))

    def add_array(self, path: str, volume: StoredArray, chunk_shape: Vec3 | None) -> None:
        """Add a mag as an array that begins with its box."""
        array = VirtualArray(in_frame(volume, volume.box.topleft), chunk_shape or _chunk_shape(volume))
        self.documents[_joined(path, FILE_NAME)] = format_document(array.document(volume.box.mag, volume.box.topleft)).encode()
        self.arrays[path] = array


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _chunk_shape(volume: StoredArray) -> Vec3:
    """Choose chunks of about 1 MiB: multiples of those that are stored, since the box need not begin at one."""
    shape = list(volume.chunk_shape)
    nbytes = volume.num_channels * volume.dtype.itemsize
    while True:
        axis = min(range(3), key=lambda n: (shape[n], n))
        if shape[axis] >= max(volume.box.size) or 2 * shape[0] * shape[1] * shape[2] * nbytes > _CHUNK_NBYTES:
            return shape[0], shape[1], shape[2]
        shape[axis] *= 2


def view_of(layers: Sequence[Image], mag: Mag | None, chunk_shape: Vec3 | None, *, as_root: bool) -> VirtualGroup:
    """See layers as a tree of images."""
    group = VirtualGroup()
    if as_root:
        (layer,) = layers
        group.add_image("", layer, chunk_shape, layer.mags if mag is None else (mag,))
        return group
    group.add_group("", {})
    for layer in layers:
        group.add_image(layer.name, layer, chunk_shape, layer.mags)
        labels = labels_of(layer, layers)
        if labels:
            folder = f"{layer.name}/{LABELS}"
            group.add_group(folder, label_attributes([one.name for one in labels], "0.5"))
            for one in labels:
                group.add_image(f"{folder}/{one.name}", one, chunk_shape, layer.mags)
    return group


def labels_of(image: Any, layers: Sequence[Any]) -> list[Any]:
    """List the segmentations that can be labels of an image: those that have all its mags, since labels must have as many levels as their image."""
    if image.category == "segmentation":
        return []
    return [one for one in layers if one.category == "segmentation" and set(image.mags) <= set(one.mags)]
