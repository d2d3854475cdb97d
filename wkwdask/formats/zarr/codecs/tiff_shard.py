"""Shards that are TIFF files, for readers that know none of our codecs.

A standard shard (``sharding_indexed``) whose index stands at its end may begin with any bytes, since the index says where each inner chunk is. Here these
bytes are a TIFF header, and the inner chunks are its strips or tiles. In the metadata the codec calls itself ``sharding_indexed``, which is all that a reader
needs: every Zarr v3 reader opens such an array, and tifffile and others open its files. The price: the header exists only while this codec writes. An array
that is opened again writes standard shards, which are read as well by everybody, but are no TIFF files.

Source: Zarr v3, codec ``sharding_indexed`` version 1.0, "Binary shard format"; TIFF 6.0, section 15 (tiles).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from zarr.abc.codec import ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

from wkwdask.errors import UnsupportedError
from wkwdask.formats.zarr.codecs.tiff import TiffImage, tiff_segments_header

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer

SHARD_COMPRESSIONS = ("none", "zlib", "zstd")


@dataclass(frozen=True, kw_only=True)
class TiffShardCodec(ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin):
    """Write a shard as a TIFF file with the shard's index behind it."""

    is_fixed_size = False

    chunk_shape: tuple[int, ...]
    """Inner chunk: a strip or tile."""
    compression: str = "none"
    """One of ``SHARD_COMPRESSIONS``."""
    level: int | None = None
    """Of the compression; its own default where none is given."""
    byteorder: str = "little"
    axes: str | None = None
    codecs: tuple[Any, ...] = field(init=False, repr=False, compare=False)
    """Codecs of an inner chunk."""
    reader: ShardingCodec = field(init=False, repr=False, compare=False)
    """zarr-python's own codec of such shards."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "codecs", self._inner_codecs())
        object.__setattr__(self, "reader", ShardingCodec.from_dict(self.to_dict()))

    def _inner_codecs(self) -> tuple[Any, ...]:
        plain = BytesCodec(endian=self.byteorder)
        if self.compression == "zstd":
            return (plain, ZstdCodec(level=0 if self.level is None else self.level))  # 0 is zstd's own default
        if self.compression == "zlib":
            from zarr.codecs.numcodecs import Zlib

            return (plain, Zlib(level=6 if self.level is None else self.level))
        return (plain,)

    # ------------------------------------------------------------------ metadata

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Refuse: metadata do not say that shards are TIFF files; zarr-python reads them with its own codec."""
        raise UnsupportedError(f"a TIFF shard codec is not read from metadata, where it is called {data.get('name')!r}")

    def to_dict(self) -> dict[str, Any]:
        """Give the metadata of a standard shard with its index at the end."""
        return {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": list(self.chunk_shape),
                "codecs": [codec.to_dict() for codec in self.codecs],
                "index_codecs": [BytesCodec(endian="little").to_dict(), Crc32cCodec().to_dict()],
                "index_location": "end",
            },
        }

    def validate(self, **given: Any) -> None:
        self.reader.validate(**given)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        raise NotImplementedError

    # ------------------------------------------------------------------ chunks

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return await self.reader._decode_single(chunk_data, chunk_spec)

    async def _decode_partial_single(self, byte_getter: Any, selection: Any, chunk_spec: ArraySpec) -> NDBuffer | None:
        return await self.reader._decode_partial_single(byte_getter, selection, chunk_spec)

    async def _encode_single(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        segments: list[Buffer] = []
        for starts in product(*(range(0, n, step) for n, step in zip(chunk_spec.shape, self.chunk_shape, strict=True))):
            part: Any = chunk_data[tuple(slice(start, start + step) for start, step in zip(starts, self.chunk_shape, strict=True))]
            for codec in self.codecs:
                part = await codec._encode_single(part, chunk_spec)
            segments.append(part)
        lengths = [len(segment) for segment in segments]
        image = TiffImage.of(chunk_spec.shape, chunk_spec.dtype.to_native_dtype(), self.byteorder, self.axes, "pages")
        header = tiff_segments_header(image, chunk_spec.shape, self.chunk_shape, lengths, self.compression)
        make = chunk_spec.prototype.buffer.from_bytes
        index = await Crc32cCodec()._encode_single(make(_index(len(header), lengths)), chunk_spec)
        assert index is not None
        parts = [np.frombuffer(header, "B"), *(one.as_numpy_array() for one in (*segments, index))]
        return chunk_spec.prototype.buffer.from_array_like(np.concatenate(parts))


def _index(start: int, lengths: list[int]) -> bytes:
    """Give the index of a shard whose inner chunks stand behind each other in C order: offset and length of each, 64-bit little-endian."""
    ends = start + np.cumsum(lengths, dtype="<u8")
    return np.column_stack([ends - np.asarray(lengths, "<u8"), np.asarray(lengths, "<u8")]).astype("<u8").tobytes()
