"""Zarr v3 codec ``offset``: a header of fixed length before each chunk; and the base class that it
shares with ``pad``.

Encoding adds the fixed bytes, decoding removes them without a copy. The fixed bytes are zeros, a
literal, or a header that a function computes for each chunk. The two codecs differ only in the keys
of their configuration.

Source: zarr-extensions, proposals ``codecs/offset`` (commit cb35826) and its later form
``codecs/pad`` (commit 6ca3baa). The keys ``header`` and ``strict`` are extensions of wkwdask.
"""

from __future__ import annotations

import base64
import binascii
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from zarr.abc.codec import BytesBytesCodec

from wkwdask.errors import CorruptError, HeaderWarning, TruncatedError, UnsupportedError
from wkwdask.formats.zarr.codecs.headers import ChunkLayout, Header

if TYPE_CHECKING:
    from types import FrameType

    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer

    from wkwdask.model.json_text import JsonObject


# codecs that may follow: they do not move the fixed bytes, or are meant to be outermost
_HARMLESS = frozenset({"crc32c", "offset", "pad"})
_MAX_FRAMES = 4
_CODEC_LIST_NAMES = ("codecs_parsed_partial", "codecs_parsed", "codecs")
_MAX_ZEROS = 1 << 26  # [bytes]; a crafted zarr.json must not allocate more than 64 MiB
_SHOWN_NBYTES = 16


def warn_of_neighbours(codec: Any, dtype: Any) -> None:
    """Warn if a later codec compresses the fixed bytes, or if a TIFF header and the codec ``bytes``
    have different byte orders."""
    before, after = _neighbours(codec)
    compressors = [earlier for earlier in map(_name_of, after) if earlier not in _HARMLESS]
    if compressors:
        warnings.warn(
            f"the codec {codec.name!r} comes before {compressors[0]!r}, which compresses its bytes "
            "too: stored chunks begin with the bytes of "
            f"{compressors[0]!r}; put {codec.name!r} last",
            HeaderWarning,
            stacklevel=3,
        )
    if codec.header is None or codec.header.name != "tiff" or dtype.to_native_dtype().itemsize == 1:
        return
    stated = codec.header.options.get("byteorder", "little")
    for earlier in before:
        endian = getattr(earlier, "endian", None) if _name_of(earlier) == "bytes" else None
        byteorder = getattr(endian, "value", endian)
        if byteorder not in (None, stated):
            warnings.warn(
                f"the codec 'bytes' stores {byteorder}-endian chunks, and the header 'tiff' of the "
                f"codec {codec.name!r} states {stated!r}: "
                f"TIFF readers see wrong values; set header_options={{'byteorder': {byteorder!r}}}",
                HeaderWarning,
                stacklevel=3,
            )


def _neighbours(codec: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the codecs before and after one in its chain."""
    # zarr-python does not pass the chain to a codec, so it is found in the local variables of the
    # callers: this function is called by warn_of_neighbours (1), that by a method of the codec (2),
    # and that by zarr-python (3).
    for codecs in _codec_lists(sys._getframe(3)):
        for n, candidate in enumerate(codecs):
            if candidate is codec:
                return tuple(codecs[:n]), tuple(codecs[n + 1 :])
    return (), ()


def _codec_lists(frame: FrameType | None) -> Any:
    """Yield the lists of codecs among the local variables of a frame and its callers."""
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        values = frame.f_locals
        owner = values.get("self")
        for found in (
            getattr(owner, "codecs", None),
            *(values.get(name) for name in _CODEC_LIST_NAMES),
        ):
            if isinstance(found, (tuple, list)):
                yield found
        frame = frame.f_back


def _name_of(codec: Any) -> str:
    try:
        return str(codec.to_dict()["name"])
    except Exception:  # a third-party codec without metadata
        return type(codec).__name__


@dataclass(frozen=True, kw_only=True)
class FixedBytesCodec(BytesBytesCodec):
    """Codec that adds bytes of a fixed length at one end of a chunk."""

    is_fixed_size = True  # zarr-python requires it of codecs in the index of a shard
    name: ClassVar[str]
    size_key: ClassVar[str]
    """Configuration key of ``nbytes``."""
    literal_key: ClassVar[str]
    """Configuration key of ``literal``."""
    more_keys: ClassVar[tuple[str, ...]] = ()

    nbytes: int
    literal: bytes | None = None
    """Bytes to write; None for zeros, or with a ``header``."""
    header: Header | None = None
    """Function that computes the bytes of each chunk."""
    strict: bool = False
    """Whether reading compares the stored bytes with those that would be written."""

    def __post_init__(self) -> None:
        if not isinstance(self.nbytes, int) or isinstance(self.nbytes, bool) or self.nbytes < 0:
            raise CorruptError(
                f"codec {self.name!r}: {self.size_key!r} is {self.nbytes!r}, expected a number of "
                "bytes, 0 or more"
            )
        if self.literal is not None and self.header is not None:
            raise CorruptError(
                f"codec {self.name!r}: {self.literal_key!r} and 'header' are both given, expected "
                "at most one of them"
            )
        if self.literal is not None and len(self.literal) != self.nbytes:
            raise CorruptError(
                f"codec {self.name!r}: {self.literal_key!r} has {len(self.literal)} bytes, "
                f"expected {self.nbytes} as {self.size_key!r} says"
            )
        if not isinstance(self.strict, bool):
            raise CorruptError(
                f"codec {self.name!r}: 'strict' is {self.strict!r}, expected true or false"
            )

    @property
    def at_start(self) -> bool:
        """Whether the fixed bytes precede the data."""
        return True

    @classmethod
    def from_dict(cls, data: JsonObject) -> Self:
        if not isinstance(data, dict) or data.get("name") != cls.name:
            raise CorruptError(f"codec {data!r}, expected one of the name {cls.name!r}")
        configuration = data.get("configuration")
        if not isinstance(configuration, dict):
            raise CorruptError(
                f"codec {cls.name!r}: 'configuration' is {configuration!r}, expected an object "
                f"with {cls.size_key!r}"
            )
        required = (*cls.more_keys, cls.size_key)
        keys = (*required, cls.literal_key, "header", "strict")
        problems = [f"no {key!r}" for key in required if key not in configuration]
        problems += [f"unknown key {key!r}" for key in configuration if key not in keys]
        if problems:
            raise CorruptError(
                f"codec {cls.name!r}: {', '.join(problems)}; it has {', '.join(keys)}"
            )
        literal, header = configuration.get(cls.literal_key), configuration.get("header")
        return cls(
            nbytes=configuration[cls.size_key],
            literal=None
            if literal is None
            else decode_base64(literal, f"codec {cls.name!r}: {cls.literal_key!r}"),
            header=None if header is None else Header.from_json(header),
            strict=configuration.get("strict", False),
            **{key: configuration[key] for key in cls.more_keys},
        )

    def to_dict(self) -> JsonObject:
        configuration: JsonObject = {
            **{key: getattr(self, key) for key in self.more_keys},
            self.size_key: self.nbytes,
        }
        if self.literal is not None:
            configuration[self.literal_key] = base64.b64encode(self.literal).decode("ascii")
        if self.header is not None:
            configuration["header"] = self.header.to_json()
        if self.strict:
            configuration["strict"] = True
        return {"name": self.name, "configuration": configuration}

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        warn_of_neighbours(self, array_spec.dtype)
        return self

    def validate(self, *, dtype: Any, **_: Any) -> None:
        warn_of_neighbours(self, dtype)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        return input_byte_length + self.nbytes

    def _decode_sync(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        stored = len(chunk_data)
        if stored < self.nbytes:
            raise TruncatedError(
                f"codec {self.name!r}: {_describe_chunk(chunk_spec)} ends at byte {stored}, "
                f"expected {self._kind()} of {self.nbytes} bytes, and its data"
            )
        split = self.nbytes if self.at_start else stored - self.nbytes
        first, second = chunk_data[:split], chunk_data[split:]
        fixed, data = (first, second) if self.at_start else (second, first)
        if self.strict:
            self._check(fixed.to_bytes(), data, chunk_spec, 0 if self.at_start else split)
        return data

    def _encode_sync(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer | None:
        if self.nbytes == 0 and self.header is None:
            return chunk_data
        fixed = chunk_spec.prototype.buffer.from_bytes(self._fixed_bytes(chunk_data, chunk_spec))
        return fixed + chunk_data if self.at_start else chunk_data + fixed

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return self._decode_sync(chunk_data, chunk_spec)

    async def _encode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer | None:
        return self._encode_sync(chunk_data, chunk_spec)

    def _kind(self) -> str:
        return "a header" if self.at_start else "a footer"

    def _fixed_bytes(self, data: Buffer, chunk_spec: ArraySpec) -> bytes:
        if self.literal is not None:
            return self.literal
        if self.header is not None:
            return self.header.make(
                data.to_bytes(),
                ChunkLayout(chunk_spec.shape, chunk_spec.dtype.to_native_dtype(), self.nbytes),
            )
        if self.nbytes > _MAX_ZEROS:
            raise UnsupportedError(
                f"codec {self.name!r}: {self._kind()} of {self.nbytes} zeros, expected at most "
                f"{_MAX_ZEROS}: give {self.literal_key!r}"
            )
        return bytes(self.nbytes)

    def _check(self, stored: bytes, data: Buffer, chunk_spec: ArraySpec, start: int) -> None:
        """Raise CorruptError if the stored fixed bytes differ from those that would be written."""
        try:
            expected = self._fixed_bytes(data, chunk_spec)
        except (TypeError, ValueError) as error:  # the header function rejects the stored data
            raise CorruptError(
                f"codec {self.name!r}: {self._kind()} of {_describe_chunk(chunk_spec)} cannot be "
                f"checked: {error}"
            ) from error
        if stored == expected:
            return
        n = next(n for n in range(self.nbytes) if stored[n] != expected[n])
        raise CorruptError(
            f"codec {self.name!r}: {_describe_chunk(chunk_spec)} has "
            f"{stored[n : n + _SHOWN_NBYTES].hex(' ')} at byte {start + n} of its stored bytes, "
            f"expected {expected[n : n + _SHOWN_NBYTES].hex(' ')}: {self._kind()} of another array"
        )


def _describe_chunk(chunk_spec: ArraySpec) -> str:
    shape = " x ".join(map(str, chunk_spec.shape))
    return f"a stored chunk of {shape} {chunk_spec.dtype.to_native_dtype().name}"


def decode_base64(text: Any, where: str) -> bytes:
    """Decode strict base64: the standard alphabet, padded, no line breaks, no bits beyond the last
    byte."""
    if not isinstance(text, str):
        raise CorruptError(f"{where} is {text!r}, expected base64 text")
    try:
        decoded = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise CorruptError(f"{where} is not base64: {error}") from None
    if base64.b64encode(decoded).decode("ascii") != text:
        raise CorruptError(
            f"{where} is not canonical base64: its end holds bits or padding beyond its "
            f"{len(decoded)} bytes"
        )
    return decoded


@dataclass(frozen=True, kw_only=True)
class OffsetCodec(FixedBytesCodec):
    """Prepend ``offset`` bytes to each chunk, and skip them on reading."""

    # zarr-extensions, proposal codecs/offset, version 0.1.0 (commit cb35826)
    name: ClassVar[str] = "offset"
    size_key: ClassVar[str] = "offset"
    literal_key: ClassVar[str] = "prefix"
