"""Decompression of Zarr chunks that gives no more bytes than a chunk may have, whatever its compressed bytes claim. Opens nothing."""

from __future__ import annotations

import lzma
from typing import TYPE_CHECKING, Any

from wkwdask.errors import FormatError
from wkwdask.formats.bounded_streams import BZIP2, ZLIB, Stream, decompress_streams
from wkwdask.formats.precomputed.gzip_stream import decompress_gzip
from wkwdask.model.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PLACE = "chunk"
_XZ_MEMORY_NBYTES = 256 << 20
_BLOSC_HEADER_NBYTES, _LZ4_HEADER_NBYTES = 16, 4


def decode_bounded(kind: str, options: Mapping[str, Any], data: bytes, most: int, decode: Callable[[bytes], Any]) -> Any:
    """Decode a compressed chunk."""
    try:
        out = _DECODERS[kind](data, most, options, decode)
    except FormatError as error:
        raise ValueError(str(error)) from None
    if memoryview(out).nbytes > most:
        raise ValueError(f"{PLACE}: {kind} data of {len(data)} bytes give more, expected at most {most}")
    return out


def _gzip(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> bytes:
    del options, decode
    return decompress_gzip(data, most, PLACE, 0)


def _zlib(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> bytes:
    del options, decode
    return decompress_streams(ZLIB, data, most, PLACE, 0)


def _bz2(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> bytes:
    del options, decode
    return decompress_streams(BZIP2, data, most, PLACE, 0)


def _lzma(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> bytes:
    del decode
    form, filters = options.get("format", lzma.FORMAT_XZ), options.get("filters")
    memory = None if form == lzma.FORMAT_RAW else _XZ_MEMORY_NBYTES
    return decompress_streams(Stream("LZMA", lambda: lzma.LZMADecompressor(form, memory, filters), lzma.LZMAError), data, most, PLACE, 0)


def _zstd(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> bytes:
    del options, decode
    imagecodecs = need("imagecodecs", PLACE, "zarr")
    try:
        out: bytes = imagecodecs.zstd_decode(data, out=max(most, 1))
    except (imagecodecs.ZstdError, MemoryError) as error:
        raise ValueError(f"{PLACE}: expected Zstandard data of {len(data)} bytes that give at most {most}: {error}") from None
    return out


def _blosc(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> Any:
    del options
    _check_stated(data, _BLOSC_HEADER_NBYTES, 4, most, "Blosc")
    stored = int.from_bytes(data[12:16], "little")
    if stored > len(data):
        raise ValueError(f"{PLACE}: Blosc data of {stored} bytes, but {len(data)} are stored")
    return decode(data)


def _lz4(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> Any:
    del options
    _check_stated(data, _LZ4_HEADER_NBYTES, 0, most, "LZ4")
    return decode(data)


def _check_stated(data: bytes, header_nbytes: int, at: int, most: int, name: str) -> None:
    """Refuse data whose header states more bytes than a chunk has: the library allocates what it states."""
    stated = int.from_bytes(data[at : at + 4], "little")
    if len(data) < header_nbytes or stated > most:
        raise ValueError(f"{PLACE}: {name} data of {len(data)} bytes that state {stated} bytes, expected at most {most}")


_DECODERS: dict[str, Callable[[bytes, int, Mapping[str, Any], Any], Any]] = {
    "gzip": _gzip, "zlib": _zlib, "bz2": _bz2, "lzma": _lzma, "zstd": _zstd, "blosc": _blosc, "lz4": _lz4,
}  # fmt: skip

KINDS = tuple(_DECODERS)
"""Compressors whose output is bounded, by the names of numcodecs."""
