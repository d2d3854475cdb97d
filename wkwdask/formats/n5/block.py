"""Encoding of one N5 block: a header, then compressed big-endian values with the first axis
fastest. Does no I/O.

The header states the size of the block: at the upper ends of a dataset, Java and z5 write truncated
blocks, tensorstore and zarr whole ones. The specification defines the compressions raw, gzip (or
zlib), bzip2, xz and lz4; blosc and zstd are extensions that Java, tensorstore and zarr share.
"""

from __future__ import annotations

import bz2
import lzma
import math
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, TruncatedError, UnsupportedError
from wkwdask.formats.compressed_streams import (
    BZIP2,
    XZ,
    ZLIB,
    compress_gzip,
    decompress_gzip,
    decompress_streams,
)
from wkwdask.formats.n5.options import N5Options
from wkwdask.model.codec import decoding_memory
from wkwdask.model.decompression import decompress, decompress_part
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.model.json_text import JsonObject, Problems


COMPRESSION_TYPES = ("raw", "gzip", "zlib", "bzip2", "xz", "lz4", "zstd", "blosc")
"""Supported compressions; lz4 is read only."""
_BLOSC_HEADER = 16
_BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_NUMBERS = frozenset({"level", "blockSize", "preset", "clevel", "shuffle", "blocksize"})
"""Settings of compressions that are numbers; other settings, such as a number of threads, do not
concern a reader."""
_STREAMS = {"zlib": ZLIB, "bzip2": BZIP2, "xz": XZ}
_LZ4_MAGIC = b"LZ4Block"
_LZ4_HEADER = struct.Struct("<8sBIII")  # magic, token, compressed and original length, checksum
_LZ4_RAW, _LZ4_PACKED = 0x10, 0x20
# LZ4BlockOutputStream.DEFAULT_SEED, and the stored bits
_LZ4_SEED, _LZ4_CHECKSUM = np.uint64(0x9747B28C), 0x0FFFFFFF


@dataclass(frozen=True, slots=True)
class Compression:
    """Compression of blocks, as ``attributes.json`` states it."""

    type: str = "raw"
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)

    @property
    def stream(self) -> str:
        """Format of the compressed bytes: ``type``, but zlib for gzip with ``useZlib``."""
        return "zlib" if self.type == "gzip" and self.option("useZlib") is True else self.type

    def to_json(self) -> JsonObject:
        return {"type": self.type, **dict(self.options)}


def make_compression(name: str, level: int | None = None) -> Compression:
    """Return the compression of new blocks by the name of a storage option."""
    level = N5Options(compression=name, level=level).level_of(name)
    if name == "zlib":
        return Compression("gzip", (("level", level), ("useZlib", True)))
    options: JsonObject = (
        {}
        if name == "raw"
        else {{"bzip2": "blockSize", "xz": "preset", "blosc": "clevel"}.get(name, "level"): level}
    )
    if name == "gzip":
        options["useZlib"] = False
    if name == "blosc":
        options = {"cname": "zstd", **options, "shuffle": 1, "blocksize": 0}
    return Compression(name, tuple(options.items()))


def parse_compression(document: JsonObject, source: str, problems: Problems) -> Compression:
    """Parse the compression of ``attributes.json``; old files have ``compressionType`` instead."""
    value = document.get(
        "compression",
        {"type": document["compressionType"]} if "compressionType" in document else None,
    )
    if isinstance(value, str):
        value = {"type": value}
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        problems.add("compression", 'an object with a "type"', value)
        return Compression()
    if value["type"] not in COMPRESSION_TYPES:
        raise UnsupportedError(
            f"{source}: compression {value['type']!r} is not supported, expected one of "
            f"{', '.join(COMPRESSION_TYPES)}"
        )
    for name in _NUMBERS.intersection(value):
        if not isinstance(value[name], int) or isinstance(value[name], bool):
            problems.add(f"compression.{name}", "a whole number", value[name])
    if value["type"] == "blosc" and value.get("cname", "blosclz") not in _BLOSC_COMPRESSORS:
        raise UnsupportedError(
            f"{source}: compressor {value['cname']!r} inside Blosc is unknown, expected one of "
            f"{', '.join(_BLOSC_COMPRESSORS)}"
        )
    return Compression(
        value["type"],
        tuple(
            (name, item)
            for name, item in value.items()
            if name != "type" and not isinstance(item, (dict, list))
        ),
    )


def decompress_block(
    data: memoryview, compression: Compression, nbytes: int, source: str, offset: int
) -> bytes | memoryview:
    """Decompress a block to exactly ``nbytes`` bytes; raise an error for data of another size
    before they fill the memory."""
    kind = compression.stream
    plain: bytes | memoryview
    if kind == "raw":
        plain = data
    elif kind == "gzip":
        plain = decompress_gzip(bytes(data), nbytes, source, offset)
    elif kind == "lz4":
        plain = _decode_lz4_java(data, nbytes, source, offset)
    elif kind in _STREAMS:
        plain = decompress_streams(_STREAMS[kind], data, nbytes, source, offset)
    else:
        plain = _decode_with_imagecodecs(kind, data, nbytes, source, offset)
    if len(plain) != nbytes:
        error = TruncatedError if len(plain) < nbytes else CorruptError
        what = f"{kind} data of {len(data)} bytes decode to"
        raise error(
            f"{source}: byte {offset}: {what} {'at least ' * (len(plain) > nbytes)}{len(plain)} "
            f"bytes, expected {nbytes}"
        )
    return plain


def _decode_with_imagecodecs(
    kind: str, data: memoryview, nbytes: int, source: str, offset: int
) -> bytes:
    if kind == "blosc":
        _check_blosc(data, nbytes, source, offset)
    codecs = import_extra("imagecodecs", source, "zarr")
    try:
        out: bytes = (
            codecs.blosc_decode(data, out=nbytes)
            if kind == "blosc"
            else codecs.zstd_decode(data, out=max(nbytes, 1))
        )
    except MemoryError:
        raise
    except Exception as error:
        name = "Blosc" if kind == "blosc" else "Zstandard"
        raise CorruptError(
            f"{source}: byte {offset}: {len(data)} bytes are not {name} data of {nbytes} decoded "
            f"bytes: {error}"
        ) from None
    return out


def _check_blosc(data: memoryview, nbytes: int, source: str, offset: int) -> None:
    """Check the sizes in a Blosc header, which the library trusts."""
    # 16 bytes: version, format version, flags, typesize, then uint32 nbytes, blocksize and cbytes,
    # little-endian
    if len(data) < _BLOSC_HEADER:
        raise TruncatedError(
            f"{source}: byte {offset}: Blosc data of {len(data)} bytes, expected at least "
            f"{_BLOSC_HEADER}"
        )
    stated, _, stored = struct.unpack_from("<III", data, 4)
    if stored > len(data):
        raise TruncatedError(
            f"{source}: byte {offset}: Blosc data of {stored} bytes, but the file has {len(data)} "
            "here"
        )
    if stored < len(data) or stated != nbytes:
        raise CorruptError(
            f"{source}: byte {offset}: Blosc data state {stored} stored and {stated} decoded "
            f"bytes, expected {len(data)} and {nbytes}"
        )


def _decode_lz4_java(data: memoryview, nbytes: int, source: str, offset: int) -> bytes:
    """Decode the block stream of lz4-java (net.jpountz.lz4.LZ4BlockOutputStream), which no Zarr
    codec reads."""
    # | "LZ4Block" token compressed size, original size, checksum | LZ4 block | header | LZ4 block |
    # ... | header of an empty block | The checksum is the XXH32 of the original bytes without its
    # upper 4 bits (StreamingXXHash32.asChecksum).
    import lz4.block

    from wkwdask.kernels.codecs.xxh32_compiled import xxh32

    out, position = bytearray(), 0
    while position < len(data):
        if len(data) - position < _LZ4_HEADER.size:
            raise TruncatedError(
                f"{source}: byte {offset + position}: {len(data) - position} bytes of an LZ4 "
                f"block, expected a header of {_LZ4_HEADER.size}"
            )
        magic, token, stored, length, checksum = _LZ4_HEADER.unpack_from(data, position)
        # token: compression method in the upper 4 bits, log2 of the largest block minus 10 in the
        # lower 4
        method, longest = token & 0xF0, 1 << (10 + (token & 0x0F))
        start = position + _LZ4_HEADER.size
        if (
            magic != _LZ4_MAGIC
            or method not in (_LZ4_RAW, _LZ4_PACKED)
            or length > longest
            or (method == _LZ4_RAW and stored != length)
        ):
            raise CorruptError(
                f"{source}: byte {offset + position}: expected the header of an LZ4 block, found "
                f"{bytes(data[position:start]).hex(' ')}"
            )
        if stored > len(data) - start:
            raise TruncatedError(
                f"{source}: byte {offset + position}: an LZ4 block of {stored} bytes, but the file "
                f"has {len(data) - start} more"
            )
        if not length:
            break
        if len(out) + length > nbytes:
            raise CorruptError(
                f"{source}: byte {offset + position}: LZ4 blocks decode to at least "
                f"{len(out) + length} bytes, expected {nbytes}"
            )
        packed = data[start : start + stored]
        try:
            plain = (
                packed
                if method == _LZ4_RAW
                else lz4.block.decompress(packed, uncompressed_size=length)
            )
        except lz4.block.LZ4BlockError as error:
            raise CorruptError(
                f"{source}: byte {offset + position}: an LZ4 block of {stored} bytes cannot be "
                f"decoded: {error}"
            ) from None
        if len(plain) != length:
            raise CorruptError(
                f"{source}: byte {offset + position}: an LZ4 block decodes to {len(plain)} bytes, "
                f"expected {length}"
            )
        found = int(xxh32(np.frombuffer(plain, np.uint8), _LZ4_SEED)) & _LZ4_CHECKSUM
        if found != checksum:
            raise CorruptError(
                f"{source}: byte {offset + position}: an LZ4 block decodes to bytes with the XXH32 "
                f"{found:08x}, expected {checksum:08x}"
            )
        out += plain
        position = start + stored
    return bytes(out)


def compress(data: bytes, compression: Compression, itemsize: int, source: str) -> bytes:
    kind = compression.stream
    if kind == "raw":
        return data
    if kind in ("gzip", "zlib"):
        level = int(compression.option("level", -1))
        is_image = level < 0 and itemsize == 1  # default level; segmentations have larger values
        return (
            compress_gzip(data, 6 if level < 0 else level, is_image=is_image)
            if kind == "gzip"
            else zlib.compress(data, level)
        )
    if kind == "bzip2":
        return bz2.compress(data, int(compression.option("blockSize", 9)))
    if kind == "xz":
        return lzma.compress(data, lzma.FORMAT_XZ, preset=int(compression.option("preset", 6)))
    if kind == "lz4":
        raise UnsupportedError(f"{source}: the lz4 of N5 can only be read; blosc is as fast")
    codecs = import_extra("imagecodecs", source, "zarr")
    if kind == "zstd":
        out: bytes = codecs.zstd_encode(data, int(compression.option("level", 3)) or 3)
        return out
    name, shuffle = compression.option("cname", "blosclz"), int(compression.option("shuffle", 1))
    # -1 is automatic: bit shuffle for bytes, as in numcodecs
    shuffle = shuffle if shuffle >= 0 else 2 if itemsize == 1 else 1
    packed: bytes = codecs.blosc_encode(
        data,
        int(compression.option("clevel", 5)),
        compressor=name,
        shuffle=shuffle,
        typesize=itemsize,
        blocksize=int(compression.option("blocksize", 0)),
        numthreads=1,
    )
    return packed


MAX_BLOCK_NBYTES = 1 << 31
"""Largest decoded block in bytes (N5 specification 4.0.0, rule 7)."""
DEFAULT, VARLENGTH, OBJECT = 0, 1, 2
"""Block modes (N5 specification 4.0.0, rule 9)."""


@dataclass(frozen=True, slots=True)
class BlockHeader:
    mode: int
    shape: tuple[int, ...]
    num_values: int
    nbytes: int


def header_nbytes(num_axes: int, mode: int = DEFAULT) -> int:
    return 4 + 4 * num_axes + (4 if mode == VARLENGTH else 0)


def format_header(shape: Sequence[int], mode: int = DEFAULT) -> bytes:
    """Format the header of a block.

    Examples
    --------
    >>> format_header((1, 2, 3)).hex(" ", 4)
    '00000003 00000001 00000002 00000003'
    """
    # N5 specification 4.0.0, rule 9, all numbers big-endian:
    #     | mode (2 B) | number of axes (2 B) | size along each axis, x first (4 B each) | number of values (4 B, varlength mode only) | values |  # noqa: E501
    head = struct.pack(f">HH{len(shape)}I", mode, len(shape), *shape)
    return head + struct.pack(">I", math.prod(shape)) if mode == VARLENGTH else head


def parse_header(data: bytes | memoryview, num_axes: int, source: str) -> BlockHeader:
    """Parse the header of a block."""
    if len(data) < 4:
        raise TruncatedError(
            f"{source}: has {len(data)} bytes, expected the header of an N5 block, "
            f"{header_nbytes(num_axes)} bytes"
        )
    mode, found_axes = struct.unpack_from(">HH", data)
    if mode == OBJECT:
        raise UnsupportedError(f"{source}: byte 0: N5 blocks of objects (mode 2) are not supported")
    if mode not in (DEFAULT, VARLENGTH):
        raise CorruptError(f"{source}: byte 0: mode {mode} of an N5 block, expected 0, 1 or 2")
    if found_axes != num_axes:
        raise CorruptError(
            f"{source}: byte 2: an N5 block of {found_axes} axes, expected {num_axes}"
        )
    nbytes = header_nbytes(num_axes, mode)
    if len(data) < nbytes:
        raise TruncatedError(
            f"{source}: has {len(data)} bytes, expected the header of an N5 block, {nbytes} bytes"
        )
    shape = struct.unpack_from(f">{num_axes}I", data, 4)
    num_values = (
        struct.unpack_from(">I", data, nbytes - 4)[0] if mode == VARLENGTH else math.prod(shape)
    )
    return BlockHeader(mode, shape, num_values, nbytes)


def decode_block(
    data: bytes | memoryview,
    dtype: np.dtype[Any],
    compression: Compression,
    source: str,
    *,
    num_axes: int,
    largest: Sequence[int] | None = None,
) -> AnyArray:
    """Decode a block to an array with the axes of the dataset, x first; ``largest`` is the block
    size that its header may state."""
    header = parse_header(data, num_axes, source)
    if (
        largest is not None
        and header.shape != largest
        and any(n > most for n, most in zip(header.shape, largest, strict=True))
    ):
        raise CorruptError(
            f"{source}: byte 4: an N5 block of {header.shape} values, expected at most "
            f"{tuple(largest)}"
        )
    count = math.prod(header.shape)
    if count * dtype.itemsize > MAX_BLOCK_NBYTES:
        raise CorruptError(
            f"{source}: byte 4: an N5 block of {header.shape} values of {dtype.itemsize} bytes, "
            f"expected at most {MAX_BLOCK_NBYTES} bytes"
        )
    if header.num_values != count:
        what = (
            f"{header.num_values} values in an N5 block of {header.shape} voxels (varlength mode)"
        )
        raise UnsupportedError(
            f"{source}: byte {header.nbytes - 4}: {what}, expected one value per voxel"
        )
    values = decompress_block(
        memoryview(data)[header.nbytes :],
        compression,
        count * dtype.itemsize,
        source,
        header.nbytes,
    )
    return np.frombuffer(values, dtype.newbyteorder(">")).reshape(header.shape, order="F")


def decode_block_part(
    data: bytes,
    dtype: np.dtype[Any],
    compression: Compression,
    shape: tuple[int, ...],
    wanted: tuple[int, int],
) -> AnyArray | None:
    """Decode some positions along the last axis of a whole block that is longer than 1, or more of
    it; the rest of the array is arbitrary. It is valid until this thread decodes the next block.
    None if :func:`decode_block` must decode the block: also if it has another shape."""
    head, nbytes = format_header(shape), math.prod(shape) * dtype.itemsize
    if not nbytes or not data.startswith(head):
        return None
    kind, stored = compression.stream, memoryview(data)[len(head) :]
    step, memory = nbytes // shape[last_axis(shape)], decoding_memory(nbytes)
    first, end = wanted[0] * step, wanted[1] * step
    values = decompress_part(kind, stored, memory, first, end) if end - first < nbytes else None
    if values is None:
        values = decompress(kind, stored, memory)
    if values is None or values.size != nbytes:
        return None
    return values.view(dtype.newbyteorder(">")).reshape(shape, order="F")


def last_axis(shape: Sequence[int]) -> int:
    """Return the slowest axis that is longer than 1, else the first one."""
    return max((n for n, length in enumerate(shape) if length > 1), default=0)


def encode_block(values: AnyArray, compression: Compression, source: str) -> bytes:
    """Encode a block in default mode."""
    stored = values.astype(values.dtype.newbyteorder(">"), order="F", copy=False)
    return format_header(values.shape) + compress(
        stored.tobytes(order="F"), compression, values.dtype.itemsize, source
    )
