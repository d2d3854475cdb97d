"""Staging arrays of an OME-NGFF image: from what a user asks for to what is staged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import FormatError
from wkwdask.formats.zarr.chunks import ChunkEncoding, zarr_placement
from wkwdask.formats.zarr.ngff_edit import LABELS, NgffEdit
from wkwdask.formats.zarr.ngff_image import VERSIONS, letters_of, level_of, multiscale
from wkwdask.formats.zarr.views import rgb_range
from wkwdask.geometry.mag import Mag
from wkwdask.plans.shards import given_cells, shard_cells
from wkwdask.runs.stage import check_existing, stage, stage_array
from wkwdask.runs.staged import settings_of
from wkwdask.store.store import open_store
from wkwdask.verbs.foreign_import import imported_mag
from wkwdask.verbs.others.zarr_places import image_place
from wkwdask.verbs.rechunk import Copy, copied

if TYPE_CHECKING:
    import os

    from wkwdask.formats.zarr.options import ZarrOptions
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.placement import Placement
    from wkwdask.runs.content import Content
    from wkwdask.runs.stage import Draft
    from wkwdask.runs.staged import StagedMags
    from wkwdask.verbs.foreign_import import Import, Imported
    from wkwdask.verbs.others.zarr_places import ImagePlace
    from wkwdask.verbs.rechunk import Rechunk

_COMMAND = "to_zarr"
_CONVERT = "convert"
_NO_SIZE = "voxel_size= is needed for a new image: the edge lengths of a voxel of mag 1 in nanometres, such as (4, 4, 40)"


@dataclass(frozen=True, slots=True)
class NewArray:
    """One array that is to be made."""

    size: Vec3
    """Its voxels along x, y, z."""
    origin: Vec3
    """Absolute voxel of the mag that becomes element 0."""
    mag: Mag
    """Its mag."""
    dtype: np.dtype[Any]
    """Type of one channel."""
    num_channels: int
    """Values per voxel."""
    voxel_size_nm: Lengths
    """Edge lengths of a voxel of mag 1 [nm]."""
    is_label: bool
    """Whether voxels are ids."""


def is_ids(dtype: np.dtype[Any], num_channels: int) -> bool:
    """Guess whether voxels are ids, where nobody says it: integers of 32 bits and more in one channel."""
    return dtype.kind in "iu" and dtype.itemsize >= 4 and num_channels == 1


def default_compression(dtype: np.dtype[Any], *, is_label: bool) -> str:
    """Choose how chunks are compressed: a shuffle of bytes makes numbers of several bytes smaller, but takes ids, which repeat, apart."""
    return "zstd" if is_label or dtype.itemsize == 1 else "blosc"


def target_of(staged: str, new: NewArray, encoding: ChunkEncoding) -> Placement:
    """Lay out an array."""
    return zarr_placement(open_store(staged), open_store(f"{staged}.parts"), encoding, new.size, new.origin, new.mag)


def encoding_of(new: NewArray, options: ZarrOptions, version: str) -> ChunkEncoding:
    """Choose how an array is stored."""
    stored: Any = options.of_new()
    compression = options.compression or default_compression(new.dtype, is_label=new.is_label)
    is_sharded = stored.shard_shape is not False
    if is_sharded and version == "0.4":
        if stored.shard_shape is not True:
            raise ValueError("OME-NGFF 0.4 lies in Zarr 2, which has no shards: leave shards out, or write version 0.5")
        is_sharded = False
    if isinstance(stored.shard_shape, bool):
        cells = shard_cells(new.size, stored.chunk_shape, new.dtype.itemsize * new.num_channels, is_sharded=is_sharded)
    else:
        cells = given_cells(stored.shard_shape, stored.chunk_shape)
    native, level = new.dtype.newbyteorder("="), options.level_of(compression)
    return ChunkEncoding(native, new.num_channels, stored.chunk_shape, compression, level, cells, is_sharded, 3 if version == "0.5" else 2)


def _version(place: ImagePlace, options: ZarrOptions) -> str:
    """Decide which version of OME-NGFF is written."""
    version = options.ngff or place.version or "0.5"
    if version not in VERSIONS:
        raise FormatError(f"{place.folder}: is an image of OME-NGFF {version!r}, written are {' and '.join(VERSIONS)}")
    return version


def _settings(command: str, encoding: ChunkEncoding, new: NewArray, version: str) -> dict[str, Any]:
    return settings_of(
        command, size=new.size, origin=new.origin, mag=new.mag.name, dtype=encoding.dtype.name, channels=encoding.num_channels, chunk=encoding.chunk_shape,
        shard=encoding.shard_shape, sharded=encoding.is_sharded, compression=encoding.compression, level=encoding.level, version=version,
        voxel_size=new.voxel_size_nm, label=new.is_label,
    )  # fmt: skip


def _edit(place: ImagePlace, new: NewArray, version: str) -> NgffEdit:
    """Say what the group says in the end, and make sure that it can."""
    name = place.folder.rpartition("/")[2].removesuffix(".ome.zarr").removesuffix(".zarr")
    level = level_of(new.mag.name, new.mag, new.origin, new.voxel_size_nm)
    place.check_alone(new.mag, level.lengths)
    rgb = None if new.is_label else rgb_range(new.dtype, new.num_channels)
    edit = NgffEdit(place.folder, version, multiscale(name, [level], letters_of(new.num_channels)), new.is_label, rgb)
    edit.check_current()
    if place.folder.split("/")[-2] == LABELS and not new.is_label:
        raise ValueError(f"{place.folder}: labels must be integers in one channel, got {new.num_channels} x {new.dtype.name}, which is not a segmentation")
    return edit


def lay_out_image_array(
    url: str | os.PathLike[str], offset: Vec3, content: Content, options: ZarrOptions, existing: str, mag: Mag | None = None,
    voxel_size: Lengths | None = None, *, is_label: bool | None = None,
) -> StagedMags:  # fmt: skip
    """Check and lay out the writing of an array as one mag of an image."""
    check_existing(existing)
    place = image_place(url)
    version = _version(place, options)
    size = voxel_size or place.voxel_size
    if size is None:
        raise ValueError(_NO_SIZE)
    mag = mag or Mag(1, 1, 1)
    channels, width, height, depth = content.shape
    dtype = _stored_dtype(content.dtype)
    new = NewArray((width, height, depth), offset, mag, dtype, channels, size, is_ids(dtype, channels) if is_label is None else is_label)
    edit = _edit(place, new, version)
    place.check_voxel_size(size, {mag})
    folder = place.folder_of(mag)
    encoding = encoding_of(new, options, version)
    settings = {**_settings(_COMMAND, encoding, new, version), "folder": folder}
    draft = stage_array(f"{_COMMAND} into {folder}", place.folder, folder, settings, existing, content)
    target = target_of(draft.staged(mag.name), new, encoding)
    nbytes_in = width * height * depth * channels * dtype.itemsize
    return draft.mags([target], nbytes_in, edit, goes_on_by_itself=False, not_compared=content.not_compared)


def _stored_dtype(dtype: Any) -> np.dtype[Any]:
    native: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
    if native.kind not in "iuf" or native.itemsize > 8:
        raise TypeError(f"an image holds whole or real numbers of up to 64 bits, got {native.name}: cast it with .astype()")
    return native


@dataclass(frozen=True, slots=True)
class ArrayCopy(Copy):
    """One array that is to hold the voxels of a volume."""

    voxel_size_nm: Lengths
    """Edge lengths of a voxel of mag 1 [nm]."""
    is_label: bool
    """Whether voxels are ids."""


def lay_out_copy(url: str | os.PathLike[str], copy: ArrayCopy, existing: str, options: ZarrOptions, workers: int) -> Rechunk:
    """Check and lay out the making of one array, or find the interrupted job that is to go on."""
    draft, staged = _array(url, copy.source, copy.voxel_size_nm, existing, options, copy.input, is_label=copy.is_label)
    return copied(copy, draft, staged, workers)


def lay_out_image_import(
    url: str | os.PathLike[str], imported: Imported, voxel_size_nm: Lengths | None, existing: str, options: ZarrOptions, workers: int, *,
    is_label: bool | None,
) -> Import:  # fmt: skip
    """Check and lay out the making of one array of images or an array in another format."""
    place, source = image_place(url), imported.source
    size = voxel_size_nm or place.voxel_size
    if size is None:
        raise ValueError(_NO_SIZE)
    place.check_voxel_size(size, {source.box.mag})
    ids = is_ids(source.dtype, source.num_channels) if is_label is None else is_label
    draft, staged = _array(url, source, size, existing, options, imported.settings, is_label=ids)
    return imported_mag(imported, draft, staged, workers)


def _array(
    url: str | os.PathLike[str], source: Any, voxel_size_nm: Lengths, existing: str, options: ZarrOptions, known: dict[str, Any], *, is_label: bool
) -> tuple[Draft, StagedMags]:
    """Lay out an array that has the voxels of a source."""
    place = image_place(url)
    version = _version(place, options)
    mag = source.box.mag
    new = NewArray(source.box.size, source.box.topleft, mag, source.dtype, source.num_channels, voxel_size_nm, is_label)
    edit = _edit(place, new, version)
    folder = place.folder_of(mag)
    encoding = encoding_of(new, options, version)
    settings = {**_settings(_CONVERT, encoding, new, version), **known}
    draft = stage(f"{_CONVERT} into {folder}", place.folder, [folder], settings, existing)
    nbytes_in = source.box.volume * source.num_channels * source.dtype.itemsize
    return draft, draft.mags([target_of(draft.staged(mag.name), new, encoding)], nbytes_in, edit)
