"""Chunks of a Zarr array, versions 2 and 3: axes in any order, values, compressors. Opens nothing."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, FormatError, TruncatedError
from wkwdask.formats.bounded_streams import BZIP2, XZ_MEMORY_NBYTES, ZLIB, Stream, decompress_streams
from wkwdask.formats.precomputed.gzip_stream import decompress_gzip
from wkwdask.model.chunk_grid import from_cxyz, to_cxyz
from wkwdask.model.codec import ChunkCodec
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from wkwdask.model.chunk_grid import Vec4

SOURCE = "chunk"
_STATED_SIZES = {"blosc": ("Blosc", 16, 4), "lz4": ("LZ4", 4, 0)}
"""Compressions whose headers state how many bytes they give: their names, the length of a header, and where it says so."""


def decode_bounded(kind: str, options: Mapping[str, Any], data: bytes, most: int, decode: Callable[[bytes], Any]) -> Any:
    """Decode a compressed chunk, which gives no more bytes than a chunk may have, whatever it claims."""
    try:
        if kind == "gzip":
            out: Any = decompress_gzip(data, most, SOURCE, 0)
        elif kind == "zstd":
            out = _zstd(data, most)
        elif kind in _STATED_SIZES:
            _check_stated_size(kind, data, most)
            out = decode(data)
        else:
            out = decompress_streams(_lzma(options) if kind == "lzma" else {"zlib": ZLIB, "bz2": BZIP2}[kind], data, most, SOURCE, 0)
    except FormatError as error:
        raise ValueError(str(error)) from None
    if memoryview(out).nbytes > most:
        raise ValueError(f"{SOURCE}: {kind} data of {len(data)} bytes give more, expected at most {most}")
    return out


def _lzma(options: Mapping[str, Any]) -> Stream:
    form, filters = options.get("format", lzma.FORMAT_XZ), options.get("filters")
    memory = None if form == lzma.FORMAT_RAW else XZ_MEMORY_NBYTES
    return Stream("LZMA", lambda: lzma.LZMADecompressor(form, memory, filters), lzma.LZMAError)


def _zstd(data: bytes, most: int) -> bytes:
    imagecodecs = import_extra("imagecodecs", SOURCE, "zarr")
    try:
        out: bytes = imagecodecs.zstd_decode(data, out=max(most, 1))
    except (imagecodecs.ZstdError, MemoryError) as error:
        raise ValueError(f"{SOURCE}: expected Zstandard data of {len(data)} bytes that give at most {most}: {error}") from None
    return out


def _check_stated_size(kind: str, data: bytes, most: int) -> None:
    """Refuse data whose header states more bytes than a chunk has: the library allocates what it states."""
    name, header_nbytes, at = _STATED_SIZES[kind]
    stated = int.from_bytes(data[at : at + 4], "little")
    if len(data) < header_nbytes or stated > most:
        raise ValueError(f"{SOURCE}: {name} data of {len(data)} bytes that state {stated} bytes, expected at most {most}")
    stored = int.from_bytes(data[12:16], "little") if kind == "blosc" else 0
    if stored > len(data):
        raise ValueError(f"{SOURCE}: Blosc data of {stored} bytes, but {len(data)} are stored")


BOUNDED_COMPRESSORS = ("gzip", "zlib", "bz2", "lzma", "zstd", "blosc", "lz4")
"""Compressors whose output is bounded, by the names of numcodecs."""


CHECKSUM_NBYTES = 4


def crc32c(data: bytes) -> bytes:
    """Return the CRC-32C of some bytes."""
    return int(_crc32c_function()(data)).to_bytes(CHECKSUM_NBYTES, "little")


@cache
def _crc32c_function() -> Any:
    return import_extra("google_crc32c", "the index of a Zarr shard", "zarr").value


MAX_FILTER_GROWTH = 16  # filters of version 2 may store a value in as many times its bytes
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


@dataclass(frozen=True, slots=True)
class ZarrCodec(ChunkCodec):
    """Values of a chunk in some order of its axes, then filters and compressors."""

    dtype: str
    """Type of the values as they are stored, with its byte order."""
    chunk_shape: tuple[int, ...]
    axes: str
    order: tuple[int, ...]
    """The axes as they are stored, the last one fastest."""
    stages: tuple[tuple[str, str], ...] = ()
    """What is done to the bytes, one after the other: name and JSON of its settings, as numcodecs has them."""
    filters: int = 0
    """How many of them are filters, which may make a chunk larger."""

    @property
    def nbytes(self) -> int:
        """Bytes of the values of a chunk."""
        return prod(self.chunk_shape) * np.dtype(self.dtype).itemsize

    @property
    def compression(self) -> tuple[str, int | None]:
        """The one compressor and its level, ``raw`` where there is none, an empty name where there is more."""
        if len(self.stages) != 1:
            return "" if self.stages else "raw", None
        kind, settings = self.stages[0]
        said = json.loads(settings)
        return kind, said.get("clevel", said.get("level"))

    def largest_nbytes(self, shape: Sequence[int]) -> int:
        del shape
        return (self.nbytes * (MAX_FILTER_GROWTH if self.filters else 1) + 4096) * (2 if self.stages else 1)

    def decode(self, data: bytes, shape: Vec4, source: str, offset: int = 0) -> npt.NDArray[Any]:
        del shape
        found: Any = data
        for n in reversed(range(len(self.stages))):
            kind, settings = self.stages[n]
            try:
                found = _undo_stage(kind, settings, found, self._max_input_nbytes(n))
            except (MemoryError, ModuleNotFoundError):
                raise
            except Exception as error:  # numcodecs raises errors of many libraries
                raise CorruptError(f"{source}: byte {offset}: cannot be read: {error or type(error).__name__}") from None
        values = np.frombuffer(memoryview(found).cast("B"), np.uint8) if not isinstance(found, np.ndarray) else found.reshape(-1, order="A").view(np.uint8)
        if values.size != self.nbytes:
            wrong = TruncatedError if values.size < self.nbytes else CorruptError
            raise wrong(f"{source}: byte {offset}: a chunk of {values.size} bytes, expected {self.nbytes}")
        chunk = values.view(self.dtype).reshape([self.chunk_shape[n] for n in self.order])
        return to_cxyz(chunk.transpose(np.argsort(self.order)), self.axes)

    def _max_input_nbytes(self, n: int) -> int:
        """Return how many bytes a stage was given at most."""
        most = self.nbytes * (MAX_FILTER_GROWTH if self.filters else 1)
        for kind, _ in self.stages[:n]:
            most += CHECKSUM_NBYTES if kind == "crc32c" else most // 8 + 4096  # compressing what cannot be compressed makes it a little larger
        return most

    def encode(self, voxels: npt.NDArray[Any], source: str) -> bytes:
        """Encode a chunk, which is completed with zeros."""
        del source
        whole = np.zeros([self.chunk_shape[n] for n in self.order], self.dtype)
        named = from_cxyz(voxels, self.axes).transpose(self.order)
        np.copyto(whole[tuple(map(slice, named.shape))], named, casting="equiv")
        found: Any = whole.reshape(-1)
        for kind, settings in self.stages:
            found = _compressor(kind, settings).encode(found)
        return whole.tobytes() if found is whole or not self.stages else bytes(found)


def _undo_stage(kind: str, settings: str, data: Any, most: int) -> Any:
    """Undo one stage."""
    if kind == "crc32c":
        raw = bytes(data)
        if len(raw) < CHECKSUM_NBYTES or crc32c(raw[:-CHECKSUM_NBYTES]) != raw[-CHECKSUM_NBYTES:]:
            raise ValueError("its checksum is wrong")
        return raw[:-CHECKSUM_NBYTES]
    codec = _compressor(kind, settings)
    return decode_bounded(kind, json.loads(settings), bytes(data), most, codec.decode) if kind in BOUNDED_COMPRESSORS else codec.decode(data)


@lru_cache(maxsize=64)
def _compressor(kind: str, settings: str) -> Any:
    """Return a codec of numcodecs."""
    return import_extra("numcodecs", f"compression {kind!r} of Zarr chunks", "zarr").get_codec({"id": kind, **json.loads(settings)})


def parse_stages(codecs: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...] | None:
    """Read the codecs from bytes to bytes of version 3, None where one is not known."""
    found = []
    for codec in codecs:
        name, settings = str(codec.get("name")).removeprefix("numcodecs."), dict(codec.get("configuration") or {})
        if name not in (*BOUNDED_COMPRESSORS, "crc32c"):
            return None
        if name == "blosc" and isinstance(settings.get("shuffle"), str):
            settings = {key: settings[key] for key in ("cname", "clevel", "shuffle", "blocksize") if key in settings}
            if settings["shuffle"] not in _SHUFFLES:
                return None
            settings["shuffle"] = _SHUFFLES[settings["shuffle"]]
        elif name == "zstd":
            settings = {key: settings[key] for key in ("level", "checksum") if key in settings}
        found.append((name, json.dumps(settings, sort_keys=True)))
    return tuple(found)
