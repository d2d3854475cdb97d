"""An image as an OME-NGFF image that a web server makes on request, for viewers that cannot read
its files.

Blocks of WKW become chunks without decoding (:mod:`wkwdask.formats.wkw.virtual_shard`), arrays of
Zarr v3 are sent unchanged, and chunks of all other arrays are decoded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.formats.as_zarr.wkw_view import VirtualArray, choose_chunk_shape
from wkwdask.formats.wkw.layout import header_of, is_wkw
from wkwdask.formats.wkw.remote import open_in
from wkwdask.formats.wkw.virtual_shard import VirtualShard, cube_len, is_framable
from wkwdask.formats.zarr.codec import has_shown_codecs
from wkwdask.formats.zarr.documents import (
    FILE_NAME,
    array_document,
    format_document,
    group_document,
    new_axes,
    raw_codecs,
    sharding_codec,
    transpose_codec,
    zarr_shape,
)
from wkwdask.formats.zarr.layer import read_node
from wkwdask.formats.zarr.ngff import (
    ImageAxes,
    attributes_for_viewer,
    image_attributes,
    multiscale,
    pyramid_level,
)
from wkwdask.geometry import morton
from wkwdask.model.volume import relative_to
from wkwdask.store.content import BytesContent, Content, ServedFolder, served_folder
from wkwdask.store.lru import LruCache
from wkwdask.streams.converted import ConvertedVolume
from wkwdask.streams.reading import read_on_threads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.levels import Lengths
    from wkwdask.model.stored_array import StoredArray

_SHARDS_PER_MAG = 64
_KEY = re.compile(r"c(?:/0)?/(\d{1,18})/(\d{1,18})/(\d{1,18})", re.ASCII)
SHOWN_TYPES = frozenset(
    {"uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32"}
)
"""Data types of Neuroglancer."""


@dataclass(frozen=True)
class FramedMag:
    """A WKW mag as an array of Zarr v3 that begins at the corner of a cube of blocks."""

    volume: StoredArray
    _shards: LruCache[VirtualShard] = field(default_factory=lambda: LruCache(_SHARDS_PER_MAG))

    @cached_property
    def _edge(self) -> int:
        header = header_of(self.volume)
        return cube_len(header) * header.block_len

    @cached_property
    def _first(self) -> Vec3:
        x, y, z = (n // self._edge for n in self.volume.box.topleft)
        return x, y, z

    @cached_property
    def _end(self) -> Vec3:
        return self.volume.box.bottomright

    @property
    def topleft(self) -> Vec3:
        """Voxel of the mag at element 0."""
        x, y, z = self._first
        return x * self._edge, y * self._edge, z * self._edge

    def document(self) -> JsonObject:
        """Return ``zarr.json``."""
        volume, header = self.volume, header_of(self.volume)
        blosc = {
            "cname": "lz4",
            "clevel": 5,
            "shuffle": "noshuffle",
            "typesize": header.dtype.itemsize,
            "blocksize": 0,
        }
        codecs = [*raw_codecs(header.dtype), {"name": "blosc", "configuration": blosc}]
        if header.num_channels > 1:
            # the channels of a voxel are adjacent: from the axes c, z, y, x to z, y, x, c
            codecs.insert(0, transpose_codec([1, 2, 3, 0]))
        inner = zarr_shape(
            new_axes(header.num_channels), header.num_channels, (header.block_len,) * 3
        )
        shape = np.subtract(volume.box.bottomright, self.topleft).tolist()
        shards = [sharding_codec(inner, codecs, is_checked=False)]
        return array_document(
            shape, header.num_channels, volume.dtype, (self._edge,) * 3, shards, {}
        )

    def open(self, key: str) -> Content | None:
        """Return a shard, None if it has no file."""
        match = _KEY.fullmatch(key)
        if match is None:
            return None
        header, length = header_of(self.volume), cube_len(header_of(self.volume))
        index = [
            int(n) + first for n, first in zip(reversed(match.groups()), self._first, strict=True)
        ]
        if any(n * self._edge >= end for n, end in zip(index, self._end, strict=True)):
            return None
        per_file = header.file_len // length
        x, y, z = (n // per_file for n in index)
        file = open_in(self.volume.store, (x, y, z), header)
        if file is None:
            self.volume.identity.check(has_absent=True)
            return None
        name = tuple(index)
        shard = self._shards.get(name)
        if shard is None or shard.file is not file:
            cube = int(morton.encode([[n % per_file for n in index]])[0])
            shard = VirtualShard(file, cube, partial(self._inside, index, length))
            self._shards.put(name, shard)
        return shard

    def _inside(self, index: Sequence[int], length: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which blocks (z, y, x) of a cube the bounding box touches."""
        edge, box = header_of(self.volume).block_len, self.volume.box
        masks = []
        for n, low, high in zip(index, box.topleft, box.bottomright, strict=True):
            first = n * self._edge + edge * np.arange(length)
            masks.append((first + edge > low) & (first < high))
        x, y, z = masks
        return z[:, None, None] & y[:, None] & x


@dataclass(frozen=True, slots=True)
class DecodedMag:
    """Any array as an array of uncompressed chunks, decoded on request."""

    array: VirtualArray
    topleft: Vec3

    def document(self) -> JsonObject:
        """Return ``zarr.json``."""
        return self.array.document(self.array.volume.box.mag, self.topleft)

    def open(self, key: str) -> Content | None:
        """Return a chunk, None if it is all zero."""
        voxels = self.array.read(key)
        return None if voxels is None else BytesContent(voxels.tobytes())


@dataclass(frozen=True, slots=True)
class PassedMag:
    """An array of Zarr v3 whose files are sent unchanged."""

    folder: ServedFolder
    topleft: Vec3

    def open(self, key: str) -> Content | None:
        """Return a file, None if it does not exist."""
        return self.folder.open(key)


@dataclass(frozen=True, slots=True)
class ServedImage:
    """Documents and arrays of an image."""

    documents: dict[str, bytes]
    arrays: dict[str, FramedMag | DecodedMag | PassedMag]

    @property
    def is_decoded(self) -> bool:
        """Whether voxels are decoded."""
        return any(isinstance(array, DecodedMag) for array in self.arrays.values())

    def open(self, key: str) -> Content | None:
        """Open a file by its path in the image's folder."""
        document = self.documents.get(key)
        if document is not None:
            return BytesContent(document)
        path, _, chunk = key.partition("/")
        array = self.arrays.get(path)
        return None if array is None else array.open(chunk)


def serve_image(
    name: str,
    volumes: Mapping[Mag, Any],
    voxel_size_nm: Lengths | None,
    *,
    is_segmentation: bool,
    is_rgb: bool,
) -> ServedImage:
    """Return some mags of an image as an OME-NGFF image."""
    levels, documents = [], {}
    arrays: dict[str, FramedMag | DecodedMag | PassedMag] = {}
    stored = {_passed_axes(volume) for volume in volumes.values()}
    axes = stored.pop() if len(stored) == 1 else None
    for mag, volume in volumes.items():
        if axes is not None:
            array: FramedMag | DecodedMag | PassedMag = PassedMag(
                served_folder(volume.folder, {}, volume.store), volume.origin
            )
        else:
            array = made = _serve(volume, is_segmentation=is_segmentation)
            documents[f"{mag.name}/{FILE_NAME}"] = format_document(made.document()).encode()
        arrays[mag.name] = array
        levels.append(pyramid_level(mag.name, mag, array.topleft, voxel_size_nm))
    axes = axes or new_axes(next(iter(volumes.values())).num_channels)
    described = multiscale(
        name, levels, ImageAxes.of_letters(axes, None if voxel_size_nm is None else "nanometer")
    )
    attributes = attributes_for_viewer(
        image_attributes(described, version="0.5", is_label=is_segmentation),
        name,
        next(iter(volumes)),
        is_rgb=is_rgb,
    )
    documents[FILE_NAME] = format_document(group_document(attributes)).encode()
    return ServedImage(documents, arrays)


def _passed_axes(volume: Any) -> str | None:
    """Return the axes of an array that Neuroglancer reads unchanged, None if its chunks must be
    made."""
    codec: Any = getattr(volume, "codec", None)
    if (
        not has_shown_codecs(codec)
        or volume.dtype.name not in SHOWN_TYPES
        or volume.channels not in (None, (0, volume.grid.size[0]))
    ):
        return None
    axes: str = codec.axes
    node = read_node(volume.folder) if sorted(axes.replace("c", "")) == ["x", "y", "z"] else None
    return axes if node is not None and node.record == FILE_NAME else None


def _serve(volume: Any, *, is_segmentation: bool) -> FramedMag | DecodedMag:
    if (
        is_wkw(volume)
        and volume.channels is None
        and volume.dtype.name in SHOWN_TYPES
        and is_framable(header_of(volume))
    ):
        return FramedMag(volume)
    shown: Any = volume
    if volume.dtype.name not in SHOWN_TYPES:
        shown = _Cast(
            volume,
            tuple(range(volume.num_channels)),
            np.dtype(np.uint64 if is_segmentation else np.float32),
        )
    topleft = volume.box.topleft
    return DecodedMag(
        VirtualArray(relative_to(shown, topleft), choose_chunk_shape(volume)), topleft
    )


class _Cast(ConvertedVolume):
    """Volume whose values become those of a type that can be shown; they may be rounded."""

    __slots__ = ()

    def read_into(
        self,
        out: np.ndarray[Any, Any],
        topleft: Vec3,
        first_channel: int = 0,
        *,
        fill_zeros: bool = True,
    ) -> int:
        voxels = np.empty(out.shape, self.source.dtype)
        read_on_threads(self.source, voxels, topleft, 1, self.channels[first_channel])
        np.copyto(out, voxels, casting="unsafe")
        return 1
