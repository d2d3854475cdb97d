"""Encoding of one chunk of a Zarr array, versions 2 and 3: the order of its axes, its values,
filters and compressors. Does no I/O."""

from __future__ import annotations

import json
import lzma
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, FormatError, TruncatedError, UnsupportedError
from wkwdask.formats.compressed_streams import (
    BZIP2,
    XZ_MEMORY_NBYTES,
    ZLIB,
    Stream,
    decompress_gzip,
    decompress_streams,
)
from wkwdask.kernels.codecs.blosc_frames import encode_frame
from wkwdask.model.chunk_grid import from_cxyz, pick_cxyz
from wkwdask.model.codec import (
    ChunkCodec,
    Encoding,
    blosc_kind,
    decoding_memory,
    encoding_memory,
)
from wkwdask.model.decompression import compress_zstd, decompress, decompress_part
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wkwdask.array_types import AnyArray, ByteArray
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.writing.file_buffer import Arena

SOURCE = "chunk"
_STATED_SIZES = {"blosc": ("Blosc", 16, 4), "lz4": ("LZ4", 4, 0)}
"""Compressions whose header states the decoded size: their name, the length of the header, and the
offset of the size in it [bytes]."""


def decode_bounded(
    kind: str,
    options: Mapping[str, Any],
    data: bytes,
    max_nbytes: int,
    decode: Callable[..., Any],
    memory: ByteArray | None = None,
) -> Any:
    """Decode a compressed chunk to at most ``max_nbytes`` bytes, perhaps into ``memory`` of this
    size.

    Raises ValueError for a crafted chunk before it fills the memory.
    """
    if memory is not None and (known := decompress(kind, data, memory)) is not None:
        return known
    try:
        if kind == "gzip":
            out: Any = decompress_gzip(data, max_nbytes, SOURCE, 0)
        elif kind == "zstd":
            out = _zstd(data, max_nbytes, memory)
        elif kind in _STATED_SIZES:
            stated = _check_stated_size(kind, data, max_nbytes)
            out = decode(data) if memory is None else decode(data, out=memory[:stated])
        else:
            out = decompress_streams(
                _lzma(options) if kind == "lzma" else {"zlib": ZLIB, "bz2": BZIP2}[kind],
                data,
                max_nbytes,
                SOURCE,
                0,
            )
    except FormatError as error:
        raise ValueError(str(error)) from None
    if memoryview(out).nbytes > max_nbytes:
        raise ValueError(
            f"{SOURCE}: {kind} data of {len(data)} bytes decode to more, expected at most "
            f"{max_nbytes} bytes"
        )
    return out


def _lzma(options: Mapping[str, Any]) -> Stream:
    form, filters = options.get("format", lzma.FORMAT_XZ), options.get("filters")
    memory = None if form == lzma.FORMAT_RAW else XZ_MEMORY_NBYTES
    return Stream("LZMA", lambda: lzma.LZMADecompressor(form, memory, filters), lzma.LZMAError)


def _zstd(data: bytes, max_nbytes: int, memory: ByteArray | None) -> Any:
    imagecodecs = import_extra("imagecodecs", SOURCE, "zarr")
    try:
        out = imagecodecs.zstd_decode(data, out=max(max_nbytes, 1) if memory is None else memory)
    except (imagecodecs.ZstdError, MemoryError) as error:
        raise ValueError(
            f"{SOURCE}: {len(data)} bytes are not Zstandard data of at most {max_nbytes} decoded "
            f"bytes: {error}"
        ) from None
    return out


def _check_stated_size(kind: str, data: bytes, max_nbytes: int) -> int:
    """Return the decoded size that a header states, checked because the library allocates it
    unseen."""
    # Blosc 1 header, 16 bytes: version, format version, flags, typesize, then little-endian uint32
    # nbytes (at 4), blocksize (at 8), cbytes (at 12). The lz4 of numcodecs begins with the decoded
    # size as a little-endian uint32.
    name, header_nbytes, size_offset = _STATED_SIZES[kind]
    stated = int.from_bytes(data[size_offset : size_offset + 4], "little")
    if len(data) < header_nbytes or stated > max_nbytes:
        raise ValueError(
            f"{SOURCE}: {name} data of {len(data)} bytes state {stated} decoded bytes, expected at "
            f"most {max_nbytes}"
        )
    stored = int.from_bytes(data[12:16], "little") if kind == "blosc" else 0
    if stored > len(data):  # the library would read beyond the data
        raise ValueError(f"{SOURCE}: Blosc data state {stored} stored bytes, found {len(data)}")
    return stated


BOUNDED_COMPRESSORS = ("gzip", "zlib", "bz2", "lzma", "zstd", "blosc", "lz4")
"""Compressors that :func:`decode_bounded` handles, by their numcodecs names."""


CHECKSUM_NBYTES = 4


def crc32c(data: bytes) -> bytes:
    """Return the CRC-32C of some bytes as 4 bytes, little-endian (RFC 3720, the codec ``crc32c`` of
    Zarr v3)."""
    return int(_crc32c_function()(data)).to_bytes(CHECKSUM_NBYTES, "little")


@cache
def _crc32c_function() -> Any:
    return import_extra("google_crc32c", "the index of a Zarr shard", "zarr").value


# bound for filters of version 2, which may store a value in more bytes than it has
MAX_FILTER_GROWTH = 16
_COMPRESSOR_OVERHEAD_NBYTES = 4096  # headers and checksums of a compressor, generously


def max_compressed_nbytes(nbytes: int) -> int:
    """Bound the output of a compressor: incompressible data become a little larger."""
    return nbytes + nbytes // 8 + _COMPRESSOR_OVERHEAD_NBYTES


_LZ4_ENCODERS = ("lz4", 0), ("lz4hc", 0)
SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


@dataclass(frozen=True, slots=True)
class ZarrChunks(ChunkCodec):
    """Codec of the chunks of one array: their type, shape and axes."""

    dtype: str
    """Stored type of the values, with its byte order."""
    chunk_shape: tuple[int, ...]
    axes: str

    @property
    @abstractmethod
    def compression(self) -> tuple[str, int | None]:
        """Compressor and its level: ``raw`` for no stages, an empty name if they cannot be
        stated."""

    @property
    def blosc(self) -> tuple[str, int] | None:
        """Compressor inside Blosc and its shuffle as a number, None for other compressors."""
        return None


@dataclass(frozen=True, slots=True)
class ZarrCodec(ZarrChunks):
    """Codec of chunks that are decoded here: the order of the axes, then filters and
    compressors."""

    order: tuple[int, ...]
    """Axis numbers in stored order, the fastest one last."""
    stages: tuple[tuple[str, str], ...] = ()
    """Encoding steps in the order of writing: name of the numcodecs codec and its settings as JSON,
    which is hashable."""
    filters: int = 0
    """Number of leading stages that are filters, which may enlarge a chunk."""
    inside: tuple[int, ...] = ()
    """Index in a chunk along each axis named ``-``, by default 0."""
    nbytes: int = field(init=False, compare=False, repr=False)
    """Size of a decoded chunk [bytes]."""
    _view: tuple[np.dtype[Any], Vec4, int, Vec4] = field(init=False, compare=False, repr=False)
    """Type, shape (c, x, y, z), offset and strides [bytes] of the values of a decoded chunk."""
    _slowest: int = field(init=False, compare=False, repr=False)
    """Number of the slowest axis of a decoded chunk among c, x, y, z."""

    decodes_chunks = True

    def __post_init__(self) -> None:
        dtype = np.dtype(self.dtype)
        inside = dict(zip(self._unnamed, self.inside, strict=False))
        stride, strides, offset = dtype.itemsize, dict.fromkeys("cxyz", 0), 0
        for n in reversed(self.order):
            strides[self.axes[n]] = stride
            offset += inside.get(n, 0) * stride
            stride *= self.chunk_shape[n]
        shape = pick_cxyz(self.chunk_shape, self.axes)
        view = dtype, shape, offset, tuple(strides[a] for a in "cxyz")
        object.__setattr__(self, "nbytes", stride)
        object.__setattr__(self, "_view", view)
        slowest = max(range(4), key=lambda n: (shape[n] > 1) * view[3][n])
        object.__setattr__(self, "_slowest", slowest)

    @property
    def _unnamed(self) -> list[int]:
        """Numbers of the axes named ``-``."""
        return [n for n, letter in enumerate(self.axes) if letter == "-"]

    def check_settings(self) -> None:
        """Raise UnsupportedError for a filter or compressor that is unknown or has unknown
        settings, before any chunk is read."""
        for kind, settings in self.stages:
            _check_settings(kind, _parsed(settings))

    @property
    def is_delimited(self) -> bool:  # type: ignore[override]
        """Whether a compressor or checksum comes last: only filters may follow raw values."""
        return len(self.stages) > self.filters

    @property
    def compression(self) -> tuple[str, int | None]:
        if len(self.stages) != 1:
            return "" if self.stages else "raw", None
        kind, settings = self.stages[0]
        options = _parsed(settings)
        return kind, options.get("clevel", options.get("level"))

    @property
    def blosc(self) -> tuple[str, int] | None:
        if self.compression[0] != "blosc":
            return None
        options = _parsed(self.stages[0][1])
        shuffle = options.get("shuffle", 1)
        if shuffle not in SHUFFLES.values():  # -1 of numcodecs: by the size of a value
            shuffle = 2 if np.dtype(self.dtype).itemsize == 1 else 1
        return options.get("cname", "lz4"), shuffle

    @property
    def shared_encoding(self) -> Encoding | None:
        if self.filters or len(self.stages) > 1:
            return None
        if any(self.chunk_shape[n] > 1 for n in self._unnamed):
            return None
        kind, text = self.stages[0] if self.stages else ("raw", "{}")
        dtype, blosc = np.dtype(self.dtype), self.blosc
        if kind == "lzma":
            if json.loads(text).get("format", lzma.FORMAT_XZ) != lzma.FORMAT_XZ:
                return None
            kind = "xz"
        elif blosc is not None:
            kind = blosc_kind(*blosc, dtype.itemsize)
        elif kind not in ("raw", "gzip", "zlib", "bz2", "zstd"):
            return None
        axes = "".join(self.axes[n] for n in self.order)
        return Encoding.of(
            dtype,
            pick_cxyz(self.chunk_shape, self.axes),
            axes,
            kind,
            "" if blosc is None else blosc[0],
        )

    def largest_nbytes(self, shape: Sequence[int]) -> int:
        del shape
        return (
            self.nbytes * (MAX_FILTER_GROWTH if self.filters else 1) + _COMPRESSOR_OVERHEAD_NBYTES
        ) * (2 if self.stages else 1)

    def decode(self, data: bytes, shape: Vec4, source: str, offset: int = 0) -> AnyArray:
        content: Any = data
        # A filter may return an array of any type and memory order; only its bytes are used below.
        for n in reversed(range(len(self.stages))):
            kind, settings = self.stages[n]
            try:
                memory = decoding_memory(self.nbytes) if n == self.filters == 0 else None
                content = _undo_stage(kind, settings, content, self._max_input_nbytes(n), memory)
            except (MemoryError, ModuleNotFoundError):
                raise
            except Exception as error:  # numcodecs raises errors of many libraries
                raise CorruptError(
                    f"{source}: byte {offset}: cannot be read: {error or type(error).__name__}"
                ) from None
        values = (
            np.frombuffer(memoryview(content).cast("B"), np.uint8)
            if not isinstance(content, np.ndarray)
            else content.reshape(-1, order="A").view(np.uint8)
        )
        if values.size != self.nbytes:
            wrong = TruncatedError if values.size < self.nbytes else CorruptError
            raise wrong(
                f"{source}: byte {offset}: a chunk of {values.size} bytes, expected {self.nbytes}"
            )
        dtype, shape, start, strides = self._view
        return np.ndarray(shape, dtype, values, start, strides)

    def decode_part(
        self, data: bytes, shape: Vec4, part: tuple[slice, ...], source: str, offset: int = 0
    ) -> AnyArray:
        dtype, whole, start, strides = self._view
        wanted, stride = part[self._slowest], strides[self._slowest]
        first, end = start + wanted.start * stride, min(start + wanted.stop * stride, self.nbytes)
        if len(self.stages) == 1 and not self.filters and 0 < end - first < self.nbytes:
            kind, _ = self.stages[0]
            values = decompress_part(kind, data, decoding_memory(self.nbytes), first, end)
            if values is not None:
                return np.ndarray(whole, dtype, values, start, strides)[part]
        return self.decode(data, shape, source, offset)[part]

    def _max_input_nbytes(self, n: int) -> int:
        """Return the largest input of stage ``n`` on encoding, which bounds its output on
        decoding."""
        nbytes = self.nbytes * (MAX_FILTER_GROWTH if self.filters else 1)
        for kind, _ in self.stages[:n]:
            nbytes = nbytes + CHECKSUM_NBYTES if kind == "crc32c" else max_compressed_nbytes(nbytes)
        return nbytes

    def check_packages(self, source: str) -> None:
        del source
        for kind, settings in self.stages:
            _compressor(kind, settings)

    def encode(self, voxels: AnyArray, source: str) -> bytes:
        """Encode a chunk; one at the upper ends of the array is padded with zeros, because Zarr
        stores whole chunks only."""
        del source
        whole = self._arrange(voxels, encoding_memory(self.nbytes))
        encoded: Any = whole.reshape(-1)
        if len(self.stages) == 1 and self.blosc in _LZ4_ENCODERS:
            # frames of one block, whose LZ4 block other formats can take over
            return encode_frame(
                whole.tobytes(),
                whole.itemsize,
                self.compression[1] if self.blosc == _LZ4_ENCODERS[1] else None,
            )
        for kind, settings in self.stages:
            encoded = _encode_stage(kind, settings, encoded)
        if not self.stages:
            return whole.tobytes()
        return encoded if isinstance(encoded, bytes) else bytes(encoded)

    def encode_in_arena(self, voxels: AnyArray, arena: Arena, source: str) -> bytes | memoryview:
        if self.stages:
            return self.encode(voxels, source)
        memory = arena.reserve(self.nbytes)
        self._arrange(voxels, memory)
        return memory.data

    def _arrange(self, voxels: AnyArray, memory: ByteArray) -> AnyArray:
        """Fill memory with the values of a whole chunk in stored order, and return them."""
        named = from_cxyz(voxels, self.axes).transpose(self.order)
        whole = memory.view(self.dtype).reshape([self.chunk_shape[n] for n in self.order])
        if named.shape != whole.shape:
            whole[...] = 0
        np.copyto(whole[tuple(map(slice, named.shape))], named, casting="equiv")
        return whole


def _encode_stage(kind: str, settings: str, values: Any) -> Any:
    if kind == "zstd":
        options = _parsed(settings)
        encoded = compress_zstd(
            np.frombuffer(memoryview(values).cast("B"), np.uint8),
            options.get("level", 0),
            has_checksum=options.get("checksum", False),
        )
        if encoded is not None:
            return encoded
    encoded = _compressor(kind, settings).encode(values)
    return _without_time(encoded) if kind == "gzip" else encoded


def _undo_stage(
    kind: str, settings: str, data: Any, max_nbytes: int, memory: ByteArray | None
) -> Any:
    if kind == "crc32c":
        raw = bytes(data)
        if len(raw) < CHECKSUM_NBYTES or crc32c(raw[:-CHECKSUM_NBYTES]) != raw[-CHECKSUM_NBYTES:]:
            raise ValueError("its checksum does not match")
        return raw[:-CHECKSUM_NBYTES]
    codec = _compressor(kind, settings)
    if kind not in BOUNDED_COMPRESSORS:
        return codec.decode(data)
    return decode_bounded(kind, _parsed(settings), bytes(data), max_nbytes, codec.decode, memory)


_SETTINGS = {
    "gzip": {"level"},
    "zlib": {"level"},
    "bz2": {"level"},
    "lzma": {"format", "check", "preset", "filters"},
    "zstd": {"level", "checksum"},
    "blosc": {"cname", "clevel", "shuffle", "blocksize", "typesize"},
    "lz4": {"acceleration"},
    "crc32c": set(),
}
_BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


def _check_settings(kind: str, settings: Mapping[str, Any]) -> None:
    if kind in _SETTINGS:
        unknown = sorted(settings.keys() - _SETTINGS[kind])
        if unknown:
            raise UnsupportedError(
                f"compression {kind!r} has the unknown setting {unknown[0]!r}, expected "
                f"{', '.join(sorted(_SETTINGS[kind]))}"
            )
        if kind == "blosc" and settings.get("cname", "lz4") not in _BLOSC_COMPRESSORS:
            raise UnsupportedError(
                f"compressor {settings['cname']!r} inside Blosc is unknown, expected one of "
                f"{', '.join(_BLOSC_COMPRESSORS)}"
            )
        return
    try:
        _compressor(kind, json.dumps(settings, sort_keys=True))
    except ModuleNotFoundError:  # reading a chunk names the package; metadata are read without it
        return
    except Exception as error:
        # numcodecs raises errors of many kinds for settings that it does not accept
        raise UnsupportedError(
            f"filter or compression {kind!r} is not available: {error or type(error).__name__}; "
            "install the package that has it"
        ) from None


# parsing for every chunk takes a part of the time that decoding takes
_parsed = lru_cache(maxsize=64)(json.loads)


@lru_cache(maxsize=64)
def _compressor(kind: str, settings: str) -> Any:
    return import_extra("numcodecs", f"compression {kind!r} of Zarr chunks", "zarr").get_codec(
        {"id": kind, **json.loads(settings)}
    )


def _without_time(member: bytes) -> bytes:
    """Return a gzip member with no time of its compression (RFC 1952, 2.3.1, MTIME), so that equal
    voxels have equal bytes."""
    return member[:4] + bytes(4) + member[8:]


def parse_stages(codecs: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...] | None:
    """Parse the bytes-to-bytes codecs of version 3 as stages; None if one is not supported."""
    # the settings become those of numcodecs, which numbers the shuffles of Blosc and does not know
    # typesize
    stages = []
    for codec in codecs:
        name, settings = (
            str(codec.get("name")).removeprefix("numcodecs."),
            dict(codec.get("configuration") or {}),
        )
        if name not in (*BOUNDED_COMPRESSORS, "crc32c"):
            return None
        if name == "blosc" and isinstance(settings.get("shuffle"), str):
            settings = {
                key: settings[key]
                for key in ("cname", "clevel", "shuffle", "blocksize")
                if key in settings
            }
            if settings["shuffle"] not in SHUFFLES:
                return None
            settings["shuffle"] = SHUFFLES[settings["shuffle"]]
        elif name == "zstd":
            settings = {key: settings[key] for key in ("level", "checksum") if key in settings}
        stages.append((name, json.dumps(settings, sort_keys=True)))
    return tuple(stages)


_SHOWN_CODECS = {"blosc", "gzip", "zlib", "zstd", "crc32c"}  # Neuroglancer, src/datasource/zarr


def has_shown_codecs(codec: Any) -> bool:
    """Return whether Neuroglancer knows the codecs of an array."""
    return (
        isinstance(codec, ZarrCodec)
        and not codec.filters
        and {kind for kind, _ in codec.stages} <= _SHOWN_CODECS
    )
