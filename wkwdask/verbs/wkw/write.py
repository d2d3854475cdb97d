"""Staging an array as one WKW mag: from what a user asks for to what is staged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.formats.wkw.header import BlockType, WkwHeader, make_header
from wkwdask.formats.wkw.target import WkwTarget
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.plans.file_len import LARGEST_FILE_LEN, suitable_file_len
from wkwdask.runs.stage import check_existing, stage_array
from wkwdask.runs.staged import settings_of
from wkwdask.verbs.wkw.places import dataset_of_lengths, edit_for, in_new_dataset, is_room_for_dataset, place_of, voxel_size_of_new

if TYPE_CHECKING:
    import os

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.runs.content import Content
    from wkwdask.runs.stage import Draft
    from wkwdask.runs.staged import StagedMags

_COMMAND = "to_wkw"


@dataclass(frozen=True, slots=True)
class WkwEncoding:
    """How a new mag is to be stored."""

    block_len: int
    """Edge of a block [voxels]."""
    file_len: int | None
    """Edge of a file [blocks]; None for the length that suits the box of the mag."""
    compression: str
    """``"lz4hc"``, ``"lz4"`` or ``"raw"``."""
    level: int
    """LZ4HC level."""
    any_length: bool = False
    """Allow lengths that the reference library cannot read."""

    def header(self, dtype: Any, num_channels: int, box: BoundingBox) -> WkwHeader:
        """Make the header of a mag of some type that has data in a box."""
        check_level(self.level)
        block_type = BlockType.parse(self.compression)
        return new_header(dtype, num_channels, self.block_len, self.file_len, block_type, box, any_length=self.any_length)


def new_header(
    dtype: Any, num_channels: int, block_len: int, file_len: int | None, block_type: BlockType, box: BoundingBox, largest: int = LARGEST_FILE_LEN,
    *, any_length: bool = False,
) -> WkwHeader:  # fmt: skip
    """Make the header of a mag that has data in a box; without ``file_len`` its files are as long as suits the box, at most ``largest`` blocks."""
    length = 1 if file_len is None else file_len
    header = make_header(dtype, num_channels, block_len=block_len, file_len=length, block_type=block_type, any_length=any_length)
    if file_len is not None:
        return header
    suitable = suitable_file_len(box, block_len, header.voxel_nbytes, is_compressed=header.is_compressed, largest=largest)
    return replace(header, file_len=suitable)


def stored_settings(header: WkwHeader, level: int, *others: WkwHeader) -> dict[str, Any]:
    """Write down how files are stored, of several mags that differ in the length of files alone."""
    lengths = [one.file_len for one in (header, *others)]
    file_len = lengths[0] if len(set(lengths)) == 1 else ",".join(map(str, lengths))
    return {"block_len": header.block_len, "file_len": file_len, "compression": header.block_type.label, "level": level}


def level_of(header: WkwHeader, level: int) -> int:
    """Give the level that counts: of LZ4HC alone."""
    return level if header.block_type is BlockType.LZ4HC else 0


def check_level(level: int) -> None:
    """Make sure that an LZ4HC level is one that there is."""
    if not 1 <= level <= 12:
        raise ValueError(f"level must be in 1..12, got {level}")


def check_category(category: str | None) -> None:
    """Make sure that the category of a layer is one that there is."""
    if category not in (None, "color", "segmentation"):
        raise ValueError(f'category must be "color" or "segmentation", got {category!r}')


def lay_out_write(
    url: str | os.PathLike[str], topleft: Vec3, content: Content, encoding: WkwEncoding, existing: str, category: str | None,
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
    header = encoding.header(content.dtype, content.shape[0], box)
    settings = settings_of(
        _COMMAND, folder=place.folder, box=box, block_len=header.block_len, file_len=header.file_len, compression=encoding.compression, level=encoding.level
    )
    draft = stage_array(f"{_COMMAND} into {place.folder}", place.layer.folder, place.folder, settings, existing, content)
    edit = edit_for(place, header, box, category)
    if edit is not None:
        edit = replace(edit, voxel_size_nm=voxel_size)
    target = staged_target(draft, header, encoding.level, box)
    return draft.mags([target], box.volume * header.voxel_nbytes, edit, goes_on_by_itself=False, not_compared=content.not_compared)


def staged_target(draft: Draft, header: WkwHeader, level: int, box: BoundingBox) -> WkwTarget:
    """Lay out a mag that is built in a job's folder."""
    folder = draft.staged(box.mag.long_name)
    return WkwTarget(folder, f"{folder}.parts", header, level, box)
