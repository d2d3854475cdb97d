"""The 16-byte header of ``header.wkw`` and of every data file: parse it, format it, and choose it
for a new mag.

This module opens no file. Specification: webknossos-wrap README, "File header".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, TruncatedError, UnsupportedError
from wkwdask.formats.wkw.options import level_name
from wkwdask.model.codec import LZ4_FRAME, Encoding
from wkwdask.model.voxel_type import VoxelType, by_dtype, by_wkw_code
from wkwdask.plans.chunks import LARGEST_FILE_LEN, suitable_file_len

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from wkwdask.formats.wkw.options import WkwOptions
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.writing.target_image import LevelSpec

# webknossos-wrap README, "File header". The low four bits of perDimLog2 are log2 of block_len, the
# high four bits are log2 of file_len.
HEADER_NBYTES = 16
# magic, version, perDimLog2, blockType, voxelType, voxelSize, dataOffset
_LAYOUT = struct.Struct("<3sBBBBBQ")
_MAGIC = b"WKW"
_VERSION = 1
# the reference library stores lengths in one byte, so that it misreads 256 and above
INTEROPERABLE_LEN = 128
MAX_LEN = 1 << 15  # the largest exponent that four bits hold
MAX_VOXEL_NBYTES = 255  # voxelSize is one byte
MAX_LZ4_NBYTES = 0x7E000000  # LZ4_MAX_INPUT_SIZE of lz4.h


class BlockType(IntEnum):
    """Encoding of the blocks of a file, the field blockType."""

    RAW = 1
    LZ4 = 2
    LZ4HC = 3

    @classmethod
    def parse(cls, name: str) -> BlockType:
        """Parse the name of a compression: ``"raw"``, ``"lz4"`` or ``"lz4hc"``."""
        try:
            return cls[name.upper()]
        except (KeyError, AttributeError):
            raise ValueError(f'compression must be "raw", "lz4" or "lz4hc", got {name!r}') from None

    @property
    def label(self) -> str:
        """Name of the compression, as options spell it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class WkwHeader:
    """Header of a mag or of one data file."""

    block_len: int
    """Edge of a block [voxels], a power of two."""
    file_len: int
    """Edge of a file [blocks], a power of two."""
    block_type: BlockType
    voxel_type: VoxelType
    num_channels: int
    data_offset: int = 0
    """Start of the first block [bytes from the start of the file]; 0 in ``header.wkw``."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.voxel_type.dtype

    @property
    def voxel_nbytes(self) -> int:
        return self.num_channels * self.dtype.itemsize

    @property
    def block_nbytes(self) -> int:
        """Bytes of one decoded block."""
        return self.block_len**3 * self.voxel_nbytes

    @property
    def blocks_per_file(self) -> int:
        return self.file_len**3

    @property
    def file_len_vx(self) -> int:
        """Edge of a file [voxels]."""
        return self.block_len * self.file_len

    @property
    def is_compressed(self) -> bool:
        """Whether blocks are LZ4-compressed, with a jump table behind the header."""
        return self.block_type is not BlockType.RAW

    @property
    def smallest_data_offset(self) -> int:
        """Start of the first block in a file without padding [bytes]."""
        return HEADER_NBYTES + (8 * self.blocks_per_file if self.is_compressed else 0)

    def for_header_file(self) -> WkwHeader:
        """Return the header for ``header.wkw``."""
        return replace(self, data_offset=0)

    def with_block_type(self, block_type: BlockType) -> WkwHeader:
        """Return the header for ``header.wkw`` with another encoding of the blocks."""
        return replace(self, block_type=block_type, data_offset=0)

    def for_data_file(self) -> WkwHeader:
        """Return the header of a data file of this mag, without padding before the first block."""
        return replace(self, data_offset=self.smallest_data_offset)

    def check_same_mag(self, other: WkwHeader, source: str) -> None:
        """Raise CorruptError if the header of a data file contradicts this header of its mag.

        The block type may differ: each file is decoded by its own header, as the reference library
        does.
        """
        for offset, what, expected, found in (
            (4, "block_len", self.block_len, other.block_len),
            (4, "file_len", self.file_len, other.file_len),
            (6, "voxel type", self.dtype.name, other.dtype.name),
            (7, "number of channels", self.num_channels, other.num_channels),
        ):
            if expected != found:
                raise CorruptError(
                    f"{source}: byte {offset}: {what} is {found}, but the mag's header.wkw says "
                    f"{expected}"
                )


def make_header(
    dtype: Any,
    num_channels: int = 1,
    *,
    block_len: int = 32,
    file_len: int = 32,
    block_type: BlockType = BlockType.LZ4HC,
    any_length: bool = False,
) -> WkwHeader:
    """Create the header of a new mag and check its limits."""
    voxel_type = by_dtype(dtype)
    limit = MAX_LEN if any_length else INTEROPERABLE_LEN
    for what, value in (("block_len", block_len), ("file_len", file_len)):
        if not 1 <= value <= limit or value & (value - 1):
            raise ValueError(f"{what} must be a power of two in 1..{limit}, got {value}")
    if not 1 <= num_channels * voxel_type.dtype.itemsize <= MAX_VOXEL_NBYTES:
        most = MAX_VOXEL_NBYTES // voxel_type.dtype.itemsize
        raise ValueError(
            f"a WKW voxel takes 1..{MAX_VOXEL_NBYTES} bytes: {voxel_type.dtype.name} allows "
            f"1..{most} channels, got {num_channels}"
        )
    header = WkwHeader(block_len, file_len, block_type, voxel_type, num_channels)
    _check_lz4_limit(header, "new mag")
    return header


def parse_header(raw: bytes, source: str, *, is_data_file: bool) -> WkwHeader:
    """Parse the first 16 bytes of ``header.wkw`` or of a data file."""
    if len(raw) < HEADER_NBYTES:
        raise TruncatedError(
            f"{source}: header ends at byte {len(raw)}, expected {HEADER_NBYTES} bytes"
        )
    magic, version, per_dim_log2, block_code, voxel_code, voxel_nbytes, data_offset = (
        _LAYOUT.unpack_from(raw)
    )
    if magic != _MAGIC:
        raise CorruptError(
            f"{source}: byte 0: expected magic {_MAGIC!r}, found {magic!r}: not a WKW file"
        )
    if version != _VERSION:
        raise CorruptError(f"{source}: byte 3: expected version {_VERSION}, found {version}")
    if block_code not in BlockType.__members__.values():
        raise CorruptError(
            f"{source}: byte 5: expected block type 1 (raw), 2 (lz4) or 3 (lz4hc), found "
            f"{block_code}"
        )
    voxel_type = by_wkw_code(voxel_code)
    if voxel_type is None:
        raise CorruptError(f"{source}: byte 6: expected voxel type 1..10, found {voxel_code}")
    if voxel_nbytes == 0 or voxel_nbytes % voxel_type.dtype.itemsize:
        raise CorruptError(
            f"{source}: byte 7: voxel size must be a positive multiple of "
            f"{voxel_type.dtype.itemsize} ({voxel_type.dtype.name}), found {voxel_nbytes}"
        )
    header = WkwHeader(
        block_len=1 << (per_dim_log2 & 0x0F),
        file_len=1 << (per_dim_log2 >> 4),
        block_type=BlockType(block_code),
        voxel_type=voxel_type,
        num_channels=voxel_nbytes // voxel_type.dtype.itemsize,
        data_offset=data_offset,
    )
    if is_data_file and data_offset < header.smallest_data_offset:
        raise CorruptError(
            f"{source}: byte 8: data offset {data_offset} lies inside the header"
            f"{' and jump table' if header.is_compressed else ''}, expected at least "
            f"{header.smallest_data_offset}"
        )
    _check_lz4_limit(header, source)
    return header


def format_header(header: WkwHeader) -> bytes:
    """Format a header as the 16 bytes at the start of a file."""
    per_dim_log2 = (header.file_len.bit_length() - 1) << 4 | (header.block_len.bit_length() - 1)
    return _LAYOUT.pack(
        _MAGIC,
        _VERSION,
        per_dim_log2,
        header.block_type,
        header.voxel_type.wkw_code,
        header.voxel_nbytes,
        header.data_offset,
    )


def _check_lz4_limit(header: WkwHeader, source: str) -> None:
    if header.is_compressed and header.block_nbytes > MAX_LZ4_NBYTES:
        raise UnsupportedError(
            f"{source}: a block of {header.block_len}^3 voxels has {header.block_nbytes} bytes, "
            f"LZ4 supports at most {MAX_LZ4_NBYTES}"
        )


_BLOCK_LEN = 32
# WEBKNOSSOS exports annotations as files of one block. A new mag with as many files would cost far
# more than its voxels, but much larger files would contain mostly zeros where labels are scattered.
_FILE_LEN_AFTER_SINGLE_BLOCKS = 8


def new_header(spec: LevelSpec, options: WkwOptions) -> WkwHeader:
    """Create the header of a mag whose source is not stored as WKW; if possible, one with which its
    stored chunks become blocks without decoding."""
    stored_block_len, stored_file_len, compression = _lengths_of_chunks(spec.source, options) or (
        _BLOCK_LEN,
        None,
        options.compression or "lz4hc",
    )
    block_len = options.block_len_or(stored_block_len)
    file_len = options.file_len_of(block_len) or stored_file_len
    header = make_header(
        spec.dtype,
        spec.num_channels,
        block_len=block_len,
        file_len=file_len or 1,
        block_type=BlockType.parse(compression),
        any_length=options.any_length,
    )
    return header if file_len is not None else _with_suitable_file_len(header, spec.box)


def _lengths_of_chunks(
    source: StoredArray | None, options: WkwOptions
) -> tuple[int, int | None, str] | None:
    """Return block length, file length and compression of the stored chunks of an array; None if
    they cannot be blocks, or the user chose other ones."""
    encoding = None if source is None or options.level is not None else source.codec.shared_encoding
    if source is None or encoding is None:
        return None
    dtype, edge = source.dtype.newbyteorder("<"), source.chunk_shape[0]
    compressions = {
        LZ4_FRAME: ("lz4hc", "lz4") if encoding.encoder == "lz4hc" else ("lz4", "lz4hc"),
        "raw": (None, "raw"),
    }.get(encoding.compression, ())
    compression = next((name for name in compressions if options.compression in (None, name)), None)
    is_block = encoding == Encoding.of(
        dtype, (source.num_channels, edge, edge, edge), "zyxc", encoding.compression
    )
    if (
        compression is None
        or not is_block
        or not _is_length(edge)
        or options.block_len_or(edge) != edge
        or any(o % edge for o in source.origin)
    ):
        return None
    if not source.layout.is_sharded or source.grid.file is None:
        return edge, None, compression
    file = source.grid.file[1]
    is_file = source.grid.file[1:] == (file,) * 3 and _is_length(file // edge)
    return edge, file // edge if is_file else None, compression


def _is_length(length: int) -> bool:
    return 1 <= length <= INTEROPERABLE_LEN and not length & (length - 1)


def rewritten_header(
    before: WkwHeader, options: WkwOptions, box: BoundingBox, *, is_part: bool, name: str
) -> WkwHeader:
    """Create the header for the voxels of a mag with header ``before``, stored with other options;
    options that are not given keep their value.

    For a part of the mag (``is_part``), the file length is chosen to suit its box. ``name`` names
    the mag in errors.
    """
    block_type = (
        before.block_type if options.compression is None else BlockType.parse(options.compression)
    )
    if options.level is not None and block_type is not BlockType.LZ4HC:
        raise ValueError(
            f"level applies to lz4hc only, but {name} will be stored as {block_type.label}; leave "
            "level= out"
        )
    block_len = options.block_len_or(before.block_len)
    file_len = options.file_len_of(block_len)
    if file_len is None and not is_part:
        file_len = before.file_len
    if (block_len, file_len) == (before.block_len, before.file_len):
        return before.with_block_type(block_type)
    return _with_lengths(before, (block_len, file_len), block_type, box, before.file_len)


def derived_header(
    before: WkwHeader, options: WkwOptions, spec: LevelSpec, largest: int
) -> WkwHeader:
    """Create the header of a mag computed from a mag with header ``before``; options that are not
    given are inherited, but raw becomes LZ4HC."""
    block_type = before.block_type if before.is_compressed else BlockType.LZ4HC
    if options.compression is not None:
        block_type = BlockType.parse(options.compression)
    block_len = options.block_len_or(before.block_len)
    before = replace(before, voxel_type=by_dtype(spec.dtype), num_channels=spec.num_channels)
    return _with_lengths(
        before, (block_len, options.file_len_of(block_len)), block_type, spec.box, largest
    )


def largest_file_len(before: WkwHeader, *, is_finer: bool) -> int:
    """Return the largest file length for the mags of a pyramid [blocks]."""
    return (
        max(LARGEST_FILE_LEN if is_finer else 1, before.file_len)
        if before.file_len > 1
        else _FILE_LEN_AFTER_SINGLE_BLOCKS
    )


def _with_lengths(
    before: WkwHeader,
    lengths: tuple[int, int | None],
    block_type: BlockType,
    box: BoundingBox,
    largest: int,
) -> WkwHeader:
    block_len, file_len = lengths
    is_unchanged = (block_len, file_len or before.file_len) == (before.block_len, before.file_len)
    header = make_header(
        before.dtype,
        before.num_channels,
        block_len=block_len,
        file_len=file_len or 1,
        block_type=block_type,
        any_length=is_unchanged,
    )
    return header if file_len is not None else _with_suitable_file_len(header, box, largest)


def _with_suitable_file_len(
    header: WkwHeader, box: BoundingBox, largest: int = LARGEST_FILE_LEN
) -> WkwHeader:
    """Return the header with a file length that suits a box."""
    suitable = suitable_file_len(
        box,
        header.block_len,
        header.voxel_nbytes,
        is_compressed=header.is_compressed,
        largest=largest,
    )
    return replace(header, file_len=suitable)


def storage_settings(headers: Sequence[WkwHeader], level: int) -> dict[str, Any]:
    """Return the storage settings of mags for a journal; the mags differ in ``file_len`` only."""
    first, lengths = headers[0], [header.file_len for header in headers]
    file_len = lengths[0] if len(set(lengths)) == 1 else ",".join(map(str, lengths))
    recorded = level_name(level) if first.block_type is BlockType.LZ4HC else 0
    return {
        "block_len": first.block_len,
        "file_len": file_len,
        "compression": first.block_type.label,
        "level": recorded,
    }


def storage_text(headers: Sequence[WkwHeader], level: int) -> str:
    """Describe the storage of mags in one phrase."""
    first = headers[0]
    compression = first.block_type.label + (
        f" level {level_name(level)}" if first.block_type is BlockType.LZ4HC else ""
    )
    lengths = [f"{length}^3" for length in dict.fromkeys(header.file_len_vx for header in headers)]
    return (
        f"{compression}, blocks of {first.block_len}^3 and files of {' then '.join(lengths)} voxels"
    )
