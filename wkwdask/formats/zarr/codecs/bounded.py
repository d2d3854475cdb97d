"""Codecs of zarr-python that give no more bytes than a chunk may have, whatever its compressed bytes claim. Loaded when a Zarr array is read.

An array is opened by zarr-python; then its compressors are replaced by ones with a bound. Codecs that are no compressors stay, as do compressors that this
module does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import lzma
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Self

from zarr.abc.codec import ArrayArrayCodec, BytesBytesCodec
from zarr.codecs import ShardingCodec
from zarr.codecs._v2 import V2Codec

from wkwdask.errors import FormatError
from wkwdask.formats.bounded_streams import decompress_bzip2, decompress_streams, decompress_zlib
from wkwdask.formats.precomputed.gzip_stream import decompress_gzip
from wkwdask.model.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer

_PLACE = "chunk"
_XZ_MEMORY_NBYTES = 256 << 20
_FILTERED = 16  # filters of version 2 may store a value in as many times its bytes
_BLOSC_HEADER_NBYTES, _LZ4_HEADER_NBYTES = 16, 4


def bound_decoders(array: Any) -> Any:
    """Bound what the compressors of an open array give."""
    metadata, own = array.metadata, array.async_array
    if metadata.zarr_format == 3:
        codecs: Sequence[Any] = bounded_codecs(metadata.codecs)
    else:
        filters = metadata.filters or ()
        raw = prod(metadata.chunks) * metadata.dtype.to_native_dtype().itemsize * (_FILTERED if filters else 1)
        kept = tuple(_BoundedNumcodec.of(codec, raw) for codec in filters) or None
        codecs = [V2Codec(filters=kept, compressor=_BoundedNumcodec.of(metadata.compressor, raw))]
    object.__setattr__(own, "codec_pipeline", type(own.codec_pipeline).from_codecs(codecs))
    return array


def bounded_codecs(codecs: Sequence[Any]) -> list[Any]:
    """Replace the compressors of a chain of version 3, also those inside of shards."""
    found: list[Any] = []
    before: list[Any] = []
    for codec in codecs:
        bounded: Any = codec
        if isinstance(codec, ShardingCodec):
            bounded = ShardingCodec(
                chunk_shape=codec.chunk_shape, codecs=bounded_codecs(codec.codecs), index_codecs=codec.index_codecs, index_location=codec.index_location
            )
        elif isinstance(codec, BytesBytesCodec):
            name, options = _named(codec)
            bounded = _BoundedCodec(codec, name, options, tuple(before)) if name in _DECODERS else codec
        if not isinstance(codec, ArrayArrayCodec):
            before.append(codec)
        found.append(bounded)
    return found


def _named(codec: Any) -> tuple[str, Mapping[str, Any]]:
    """Read what a codec of version 3 is called, and its settings."""
    document = codec.to_dict()
    return str(document.get("name")).removeprefix("numcodecs."), document.get("configuration") or {}


@dataclass(frozen=True)
class _BoundedCodec(BytesBytesCodec):
    """A compressor of version 3 with a bound."""

    codec: Any
    """The compressor."""
    kind: str
    """Its name, one of ``_DECODERS``."""
    options: Mapping[str, Any]
    """Its settings."""
    before: tuple[Any, ...]
    """Codecs whose bytes it compresses, that from array to bytes first."""
    is_fixed_size = False

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        data = chunk_bytes.to_bytes()
        out = await asyncio.to_thread(decode_bounded, self.kind, self.options, data, self._most_nbytes(chunk_spec), self._decoded)
        return chunk_spec.prototype.buffer.from_bytes(out)

    def _decoded(self, data: bytes) -> Any:
        """Decode by numcodecs, whose codecs zarr-python's own ones hold too."""
        numcodecs = need("numcodecs", _PLACE, "zarr")
        return numcodecs.get_codec({"id": self.kind}).decode(data)

    def _most_nbytes(self, spec: ArraySpec) -> int:
        """Say how many bytes the codecs before it make of a chunk at most."""
        most = prod(spec.shape) * spec.dtype.to_native_dtype().itemsize
        for codec in self.before:
            with contextlib.suppress(NotImplementedError):
                most = max(most, codec.compute_encoded_size(most, spec))
            if not codec.is_fixed_size:
                most += most // 8 + 4096  # compressing what cannot be compressed makes it a little larger
        return most

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Count the bytes of a chunk, which nobody knows of a compressor."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Give what ``zarr.json`` says."""
        document: dict[str, Any] = self.codec.to_dict()
        return document

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Refuse: a bound is given to a codec that is there."""
        raise NotImplementedError


@dataclass(frozen=True)
class _BoundedNumcodec:
    """A compressor of version 2 with a bound."""

    codec: Any
    """The compressor."""
    most: int
    """How many bytes it may give."""

    @classmethod
    def of(cls, codec: Any, raw_nbytes: int) -> Any:
        """Bound a codec where it is a compressor that is known."""
        return codec if codec is None or codec.codec_id not in _DECODERS else cls(codec, raw_nbytes)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Decode a chunk."""
        del out
        return decode_bounded(self.codec.codec_id, self.codec.get_config(), bytes(buf), self.most, self.codec.decode)

    def encode(self, buf: Any) -> Any:
        """Encode a chunk."""
        return self.codec.encode(buf)


def decode_bounded(kind: str, options: Mapping[str, Any], data: bytes, most: int, decode: Callable[[bytes], Any]) -> Any:
    """Decode a compressed chunk."""
    try:
        out = _DECODERS[kind](data, most, options, decode)
    except FormatError as error:
        raise ValueError(str(error)) from None
    if memoryview(out).nbytes > most:
        raise ValueError(f"{_PLACE}: {kind} data of {len(data)} bytes give more, expected at most {most}")
    return out


def _gzip(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> bytes:
    del options, decode
    return decompress_gzip(data, most, _PLACE, 0)


def _zlib(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> bytes:
    del options, decode
    return decompress_zlib(data, most, _PLACE, 0)


def _bz2(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> bytes:
    del options, decode
    return decompress_bzip2(data, most, _PLACE, 0)


def _lzma(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> bytes:
    del decode
    form, filters = options.get("format", lzma.FORMAT_XZ), options.get("filters")
    memory = None if form == lzma.FORMAT_RAW else _XZ_MEMORY_NBYTES
    return decompress_streams(lambda: lzma.LZMADecompressor(form, memory, filters), lzma.LZMAError, "LZMA", data, most, _PLACE, 0)


def _zstd(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> bytes:
    del options, decode
    imagecodecs = need("imagecodecs", _PLACE, "zarr")
    try:
        out: bytes = imagecodecs.zstd_decode(data, out=max(most, 1))
    except (imagecodecs.ZstdError, MemoryError) as error:
        raise ValueError(f"{_PLACE}: expected Zstandard data of {len(data)} bytes that give at most {most}: {error}") from None
    return out


def _blosc(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> Any:
    del options
    _check_stated(data, _BLOSC_HEADER_NBYTES, 4, most, "Blosc")
    stored = int.from_bytes(data[12:16], "little")
    if stored > len(data):
        raise ValueError(f"{_PLACE}: Blosc data of {stored} bytes, but {len(data)} are stored")
    return decode(data)


def _lz4(data: bytes, most: int, options: Mapping[str, Any], decode: Any) -> Any:
    del options
    _check_stated(data, _LZ4_HEADER_NBYTES, 0, most, "LZ4")
    return decode(data)


def _check_stated(data: bytes, header_nbytes: int, at: int, most: int, name: str) -> None:
    """Refuse data whose header states more bytes than a chunk has: the library allocates what it states."""
    stated = int.from_bytes(data[at : at + 4], "little")
    if len(data) < header_nbytes or stated > most:
        raise ValueError(f"{_PLACE}: {name} data of {len(data)} bytes that state {stated} bytes, expected at most {most}")


_DECODERS: dict[str, Callable[[bytes, int, Mapping[str, Any], Any], Any]] = {
    "gzip": _gzip, "zlib": _zlib, "bz2": _bz2, "lzma": _lzma, "zstd": _zstd, "blosc": _blosc, "lz4": _lz4,
}  # fmt: skip
