"""How a new mag is stored in WKW: by what a user says, by a mag of the same voxels, or by a mag that it is made from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wkwdask.formats.wkw.header import BlockType, WkwHeader, make_header
from wkwdask.model.voxel_type import by_dtype
from wkwdask.plans.chunks import LARGEST_FILE_LEN, suitable_file_len

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.wkw.options import WkwOptions
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.place import LevelSpec

_BLOCK_LEN = 32
# Files of single blocks are what WEBKNOSSOS exports of annotations. As many new ones would cost far more than their voxels; much larger ones, where
# labels are scattered, hold little but zeros.
_FILE_LEN_AFTER_SINGLE_BLOCKS = 8


def new_header(spec: LevelSpec, options: WkwOptions) -> WkwHeader:
    """Make the header of a mag that is made from nothing in WKW."""
    block_len = options.block_len_or(_BLOCK_LEN)
    file_len = options.file_len_of(block_len)
    made = make_header(
        spec.dtype, spec.num_channels, block_len=block_len, file_len=file_len or 1, block_type=BlockType.parse(options.compression or "lz4hc"),
        any_length=options.any_length,
    )  # fmt: skip
    return made if file_len is not None else _suited(made, spec.box)


def header_anew(before: WkwHeader, options: WkwOptions, box: BoundingBox, *, is_part: bool, name: str) -> WkwHeader:
    """Make the header of a mag of the same voxels: what is not given as it is. Files of a part of a mag are as long as suits its box."""
    block_type = before.block_type if options.compression is None else BlockType.parse(options.compression)
    if options.level is not None and block_type is not BlockType.LZ4HC:
        raise ValueError(f"level is for LZ4HC, but {name} is to be stored as {block_type.label}")
    block_len = options.block_len_or(before.block_len)
    given = options.file_len_of(block_len)
    file_len = before.file_len if given is None and not is_part else given
    if (block_len, file_len) == (before.block_len, before.file_len):
        return before.with_block_type(block_type)
    return _changed(before, (block_len, file_len), block_type, box, before.file_len)


def header_of_result(before: WkwHeader, options: WkwOptions, spec: LevelSpec, largest: int) -> WkwHeader:
    """Make the header of a mag that is made from another one: what is not given as there, but raw becomes LZ4HC."""
    block_type = before.block_type if before.is_compressed else BlockType.LZ4HC
    if options.compression is not None:
        block_type = BlockType.parse(options.compression)
    block_len = options.block_len_or(before.block_len)
    before = replace(before, voxel_type=by_dtype(spec.dtype), num_channels=spec.num_channels)
    return _changed(before, (block_len, options.file_len_of(block_len)), block_type, spec.box, largest)


def largest_file_len(before: WkwHeader, *, is_finer: bool) -> int:
    """Choose how long files of the mags of a ladder are at most."""
    return max(LARGEST_FILE_LEN if is_finer else 1, before.file_len) if before.file_len > 1 else _FILE_LEN_AFTER_SINGLE_BLOCKS


def _changed(before: WkwHeader, lengths: tuple[int, int | None], block_type: BlockType, box: BoundingBox, largest: int) -> WkwHeader:
    block_len, file_len = lengths
    is_as_before = (block_len, file_len or before.file_len) == (before.block_len, before.file_len)
    made = make_header(before.dtype, before.num_channels, block_len=block_len, file_len=file_len or 1, block_type=block_type, any_length=is_as_before)
    return made if file_len is not None else _suited(made, box, largest)


def _suited(header: WkwHeader, box: BoundingBox, largest: int = LARGEST_FILE_LEN) -> WkwHeader:
    """Let files be as long as suits a box."""
    suitable = suitable_file_len(box, header.block_len, header.voxel_nbytes, is_compressed=header.is_compressed, largest=largest)
    return replace(header, file_len=suitable)


def stored_settings(headers: Sequence[WkwHeader], level: int) -> dict[str, Any]:
    """Write down how mags are stored that differ in the length of files alone."""
    first, lengths = headers[0], [header.file_len for header in headers]
    file_len = lengths[0] if len(set(lengths)) == 1 else ",".join(map(str, lengths))
    return {"block_len": first.block_len, "file_len": file_len, "compression": first.block_type.label, "level": level if is_leveled(first) else 0}


def is_leveled(header: WkwHeader) -> bool:
    """Tell whether a level counts: of LZ4HC alone."""
    return header.block_type is BlockType.LZ4HC


def described(headers: Sequence[WkwHeader], level: int) -> str:
    """Say how mags are stored, for people."""
    first = headers[0]
    compression = first.block_type.label + (f" level {level}" if is_leveled(first) else "")
    lengths = [f"{length}^3" for length in dict.fromkeys(header.file_len_vx for header in headers)]
    return f"{compression}, blocks of {first.block_len}^3 and files of {' then '.join(lengths)} voxels"
