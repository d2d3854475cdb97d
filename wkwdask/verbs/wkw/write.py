"""Staging an array as one WKW mag: from what a user asks for to what is staged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wkwdask.formats.wkw.header import BlockType, WkwHeader, make_header
from wkwdask.formats.wkw.options import DEFAULT_BLOCK_LEN
from wkwdask.formats.wkw.target import WkwTarget
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.plans.chunks import LARGEST_FILE_LEN, suitable_file_len
from wkwdask.runs.stage import check_existing, stage_array
from wkwdask.runs.staged import settings_of
from wkwdask.verbs.wkw.places import dataset_of_lengths, edit_for, in_new_dataset, is_room_for_dataset, place_of, voxel_size_of_new

if TYPE_CHECKING:
    import os

    from wkwdask.formats.wkw.options import WkwOptions
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.runs.content import Content
    from wkwdask.runs.stage import Draft
    from wkwdask.runs.staged import StagedMags

_COMMAND = "to_wkw"


def header_for(
    stored: WkwOptions, dtype: Any, num_channels: int, box: BoundingBox, like: WkwHeader | None = None, largest: int = LARGEST_FILE_LEN
) -> WkwHeader:  # fmt: skip
    """Make the header of a mag that has data in a box: what is not given is as in another mag, but raw becomes LZ4HC, and files suit the box."""
    block_len = stored.block_len_or(DEFAULT_BLOCK_LEN if like is None else like.block_len)
    file_len = stored.file_len_of(block_len)
    is_like = like is not None and block_len == like.block_len and file_len in (None, like.file_len)
    block_type = BlockType.LZ4HC if like is None or not like.is_compressed else like.block_type
    if stored.compression is not None:
        block_type = BlockType.parse(stored.compression)
    header = make_header(
        dtype, num_channels, block_len=block_len, file_len=1 if file_len is None else file_len, block_type=block_type, any_length=stored.any_length or is_like
    )  # fmt: skip
    if file_len is not None:
        return header
    return replace(header, file_len=suitable_file_len(box, block_len, header.voxel_nbytes, is_compressed=header.is_compressed, largest=largest))


def stored_settings(header: WkwHeader, level: int, *others: WkwHeader) -> dict[str, Any]:
    """Write down how files are stored, of several mags that differ in the length of files alone."""
    lengths = [one.file_len for one in (header, *others)]
    file_len = lengths[0] if len(set(lengths)) == 1 else ",".join(map(str, lengths))
    return {"block_len": header.block_len, "file_len": file_len, "compression": header.block_type.label, "level": level}


def level_of(header: WkwHeader, level: int) -> int:
    """Give the level that counts: of LZ4HC alone."""
    return level if header.block_type is BlockType.LZ4HC else 0


def check_category(category: str | None) -> None:
    """Make sure that the category of a layer is one that there is."""
    if category not in (None, "color", "segmentation"):
        raise ValueError(f'category must be "color" or "segmentation", got {category!r}')


def lay_out_write(
    url: str | os.PathLike[str], topleft: Vec3, content: Content, stored: WkwOptions, existing: str, category: str | None,
    lengths_nm: Lengths | None = None, voxel_size_nm: Lengths | None = None, *, allow_external: bool = False,
) -> StagedMags:  # fmt: skip
    """Check and lay out the writing of an array as one mag."""
    check_existing(existing)
    check_category(category)
    is_room = lengths_nm is not None and is_room_for_dataset(url)
    place = place_of(url, allow_external=allow_external)
    if voxel_size_nm is not None:
        if not place.is_named_as_mag:
            raise ValueError(f"{place.folder}: voxel_size= is that of a dataset, whose mags are folders such as {place.folder}/LAYER/1: name one")
        voxel_size = voxel_size_of_new(place, None, voxel_size_nm)
    else:
        voxel_size = None if lengths_nm is None else dataset_of_lengths(place, lengths_nm, is_room=is_room)
    if voxel_size is not None:
        place = in_new_dataset(place, voxel_size)
    box = BoundingBox(topleft, content.shape[1:], place.mag)
    header = header_for(stored, content.dtype, content.shape[0], box)
    settings = settings_of(
        _COMMAND,
        folder=place.folder,
        box=box,
        block_len=header.block_len,
        file_len=header.file_len,
        compression=header.block_type.label,
        level=stored.chosen_level,
    )
    draft = stage_array(f"{_COMMAND} into {place.folder}", place.layer.folder, place.folder, settings, existing, content)
    edit = edit_for(place, header, box, category)
    if edit is not None:
        edit = replace(edit, voxel_size_nm=voxel_size)
    target = staged_target(draft, header, stored.chosen_level, box)
    return draft.mags([target], box.volume * header.voxel_nbytes, edit, goes_on_by_itself=False, not_compared=content.not_compared)


def staged_target(draft: Draft, header: WkwHeader, level: int, box: BoundingBox) -> WkwTarget:
    """Lay out a mag that is built in a job's folder."""
    folder = draft.staged(box.mag.long_name)
    return WkwTarget(folder, f"{folder}.parts", header, level, box)
