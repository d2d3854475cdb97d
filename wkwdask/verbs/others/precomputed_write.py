"""Staging scales of a precomputed volume: from what a user asks for to what is staged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import ExistsError
from wkwdask.formats.precomputed.choose_sharding import choose_sharding, sharding_of_shape
from wkwdask.formats.precomputed.chunk import ChunkCodec
from wkwdask.formats.precomputed.info import FILE_NAME, Scale
from wkwdask.formats.precomputed.info_edits import PROVENANCE, new_document, scale_entry
from wkwdask.formats.precomputed.metadata_edit import InfoEdit
from wkwdask.formats.precomputed.sharding import Sharding
from wkwdask.formats.precomputed.target import PrecomputedTarget
from wkwdask.formats.precomputed.writable import check_writable
from wkwdask.formats.replaceable import is_taken
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag, Vec3
from wkwdask.runs.stage import check_existing, stage_array
from wkwdask.runs.staged import settings_of
from wkwdask.verbs.others.precomputed_places import same_resolution, volume_place

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from wkwdask.formats.precomputed.options import PrecomputedOptions
    from wkwdask.model.levels import Lengths
    from wkwdask.runs.content import Content
    from wkwdask.runs.stage import Draft
    from wkwdask.runs.staged import StagedMags
    from wkwdask.verbs.others.precomputed_places import VolumePlace

TYPES = ("image", "segmentation")
_COMMAND = "to_precomputed"
BLOCK_SIZE = (8, 8, 8)
_QUALITIES = {"jpeg": "jpeg_quality", "jxl": "jxl_quality"}


@dataclass(frozen=True, slots=True)
class VolumeType:
    """What all scales of a volume have in common."""

    kind: str
    """``"image"`` or ``"segmentation"``."""
    dtype: np.dtype[Any]
    """Type of one channel."""
    num_channels: int
    """Values per voxel."""


def new_scale(options: PrecomputedOptions, key: str, box: BoundingBox, resolution: Lengths, volume: VolumeType) -> Scale:
    """Describe a scale that is not made of another one."""
    stored = options.of_new()
    encoding = options.encoding or default_encoding(volume)
    chunk: Any = stored.chunk_shape
    blocks = BLOCK_SIZE if encoding == "compressed_segmentation" else None
    hints = quality_hint(encoding, options.quality)
    scale = Scale(key, box.size, box.topleft, chunk, resolution, encoding, None, blocks, chunk_sizes=(chunk,), options=hints)
    sharding = given_sharding(stored.shard_shape, scale, volume)
    check_compress(options.file_compression, sharding)
    return replace(scale, sharding=sharding)


def given_sharding(asked: Any, scale: Scale, volume: VolumeType) -> Sharding | None:
    """Return the sharding that a user asks for: a shape, whether there is one, or one as it is."""
    if asked is False or isinstance(asked, Sharding):
        return asked or None
    if asked is True:
        return choose_sharding(scale.size, scale.chunk_size, volume.dtype, num_channels=volume.num_channels, encoding=scale.encoding)
    if not isinstance(asked, tuple):
        raise TypeError(f"shard_shape must be three lengths, True, False or a Sharding, such as choose_sharding returns, got {asked!r}")
    return sharding_of_shape(asked, scale)


def quality_hint(encoding: str, quality: int | None) -> dict[str, Any]:
    """Give what ``info`` says about the quality of an encoding; nothing where none is asked for."""
    if quality is None:
        return {}
    if encoding not in _QUALITIES:
        raise ValueError(f"quality= is for {' and '.join(_QUALITIES)}, not for {encoding}")
    return {_QUALITIES[encoding]: quality}


def check_compress(compress: str | None, sharding: Sharding | None) -> None:
    """Make sure that files of chunks can be compressed like that."""
    if sharding is not None and compress is not None:
        raise ValueError("compression= is for chunks that are files of their own; sharded chunks are compressed as the sharding says (data_encoding)")


def default_kind(dtype: np.dtype[Any], num_channels: int) -> str:
    """Guess what a volume is that nobody named: integers of 32 bits and more are a segmentation."""
    return "segmentation" if dtype.kind in "iu" and dtype.itemsize >= 4 and num_channels == 1 else "image"


def default_encoding(volume: VolumeType) -> str:
    """Choose how a volume is encoded."""
    return "compressed_segmentation" if volume.kind == "segmentation" and volume.dtype.name in ("uint32", "uint64") else "raw"


def type_at(place: VolumePlace, dtype: Any, num_channels: int, kind: str | None) -> VolumeType:
    """Give the type of a volume, and make sure that it is that of the scales which are there."""
    native = np.dtype(dtype).newbyteorder("=")
    if kind not in (None, *TYPES):
        raise ValueError(f'type must be "image" or "segmentation", got {kind!r}')
    if place.info is None:
        return VolumeType(kind or default_kind(native, num_channels), native, num_channels)
    volume = VolumeType(kind or place.info.type, native, num_channels)
    there = VolumeType(place.info.type, place.info.dtype, place.info.num_channels)
    if volume != there:
        raise ValueError(
            f"{place.folder}/{FILE_NAME}: the volume is {there.kind} of {there.num_channels} x {there.dtype.name}, "
            f"what is written {volume.kind} of {num_channels} x {native.name}; cast it, or write to another volume"
        )
    return volume


def lay_out_scales(
    place: VolumePlace, volume: VolumeType, scales: Sequence[tuple[Scale, Mag]], draft: Draft, nbytes_in: int, stored: PrecomputedOptions,
    **options: Any,
) -> tuple[StagedMags, list[str]]:  # fmt: skip
    """Check and lay out the making of scales of one volume, in whatever way."""
    notes: list[str] = []
    targets = []
    for number, (scale, mag) in enumerate(scales):
        notes += check_writable(scale, volume.dtype, volume.num_channels, volume.kind, force=stored.force)
        _check_free(place, scale, draft.folders[number], options.get("existing", draft.existing))
        staged = draft.staged(f"scale-{number}")
        codec = ChunkCodec.of_scale(scale, volume.dtype, volume.num_channels)
        targets.append(PrecomputedTarget(staged, f"{staged}.parts", mag, scale, codec, stored.file_compression))
    new = new_document(volume.kind, volume.dtype, volume.num_channels)
    edit = InfoEdit(place.folder, tuple(scale for scale, _ in scales), new, PROVENANCE)
    return draft.mags(targets, nbytes_in, edit, **options), list(dict.fromkeys(notes))


def _check_free(place: VolumePlace, scale: Scale, folder: str, existing: str) -> None:
    """Refuse a scale that is listed without having files, which its folder does not tell."""
    if existing == "error" and scale.key in place.listed_keys and not is_taken(folder):
        raise ExistsError(f'{place.folder}/{FILE_NAME}: lists scale {scale.key!r} already; existing="overwrite" replaces it whole')


def lay_out_scale(
    url: str | os.PathLike[str], offset: Vec3, content: Content, options: PrecomputedOptions, existing: str, kind: str | None = None, mag: Mag | None = None,
    lengths_nm: Lengths | None = None,
) -> tuple[StagedMags, list[str]]:  # fmt: skip
    """Check and lay out the writing of an array as one scale."""
    check_existing(existing)
    place = volume_place(url)
    mag = Mag(1, 1, 1) if mag is None else mag
    resolution = resolution_for(place, mag, lengths_nm)
    volume = type_at(place, content.dtype, content.shape[0], kind)
    _, width, height, depth = content.shape
    scale = new_scale(options, place.key_for(resolution), BoundingBox(offset, (width, height, depth), mag), resolution, volume)
    folder = place.folder_of(scale.key)
    settings = settings_of(_COMMAND, folder=folder, type=volume.kind, scale=scale_entry(scale), compress=options.file_compression)
    check_writable(scale, volume.dtype, volume.num_channels, volume.kind, force=options.force)
    draft = stage_array(f"{_COMMAND} into {folder}", place.folder, folder, settings, existing, content)
    nbytes_in = width * height * depth * volume.num_channels * volume.dtype.itemsize
    return lay_out_scales(place, volume, [(scale, mag)], draft, nbytes_in, options, goes_on_by_itself=False, not_compared=content.not_compared)


def resolution_for(place: VolumePlace, mag: Mag, lengths_nm: Lengths | None) -> Lengths:
    """Decide how large the voxels of a scale are [nm]."""
    if place.info is None or not place.info.scales:
        if mag != Mag(1, 1, 1):
            raise ValueError(f"{place.folder}: has no scales yet; mag= adds a coarser scale to a volume that is there")
        if lengths_nm is None:
            raise ValueError("voxel_size= is needed for a new volume: the edge lengths of a voxel in nanometres, such as (4, 4, 40)")
        return lengths_nm
    resolution = place.resolution_of(mag)
    if lengths_nm is not None and not same_resolution(resolution, lengths_nm):
        raise ValueError(
            f"{place.folder}/{FILE_NAME}: voxels of mag {mag} have {resolution} nm, those of the array {lengths_nm} nm; mag= writes a coarser scale"
        )
    return resolution
