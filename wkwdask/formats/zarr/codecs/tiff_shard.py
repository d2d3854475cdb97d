"""Codec for shards that are also TIFF files, readable without any codec of wkwdask.

A standard shard (``sharding_indexed``) with its index at the end may begin with any bytes, because
the index states the offset of each inner chunk. Here it begins with a TIFF header, and the inner
chunks are the strips or tiles of the image. The metadata name the codec ``sharding_indexed``, so
every Zarr v3 reader opens the array, and any TIFF reader its files. But only this codec writes TIFF
headers: an array that is opened again writes standard shards without TIFF headers.

Source: Zarr v3, codec ``sharding_indexed`` version 1.0, "Binary shard format"; TIFF 6.0, section 15
(tiles).
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

    from wkwdask.model.json_text import JsonObject

SHARD_COMPRESSIONS = ("none", "zlib", "zstd")


@dataclass(frozen=True, kw_only=True)
class TiffShardCodec(ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin):
    """Codec that writes a shard as a TIFF file, followed by the index of the shard."""

    is_fixed_size = False

    chunk_shape: tuple[int, ...]
    compression: str = "none"
    """One of ``SHARD_COMPRESSIONS``."""
    level: int | None = None
    """Compression level; None for the default of the compressor."""
    byteorder: str = "little"
    axes: str | None = None
    codecs: tuple[Any, ...] = field(init=False, repr=False, compare=False)
    reader: ShardingCodec = field(init=False, repr=False, compare=False)
    """zarr-python's codec of standard shards, which reads."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "codecs", self._inner_codecs())
        object.__setattr__(self, "reader", ShardingCodec.from_dict(self.to_dict()))

    def _inner_codecs(self) -> tuple[Any, ...]:
        plain = BytesCodec(endian=self.byteorder)
        if self.compression == "zstd":
            # 0 is zstd's own default
            return (plain, ZstdCodec(level=0 if self.level is None else self.level))
        if self.compression == "zlib":
            from zarr.codecs.numcodecs import Zlib

            return (plain, Zlib(level=6 if self.level is None else self.level))
        return (plain,)

    # ------------------------------------------------------------------ metadata

    @classmethod
    def from_dict(cls, data: JsonObject) -> Self:
        """Raise UnsupportedError: the metadata are those of a standard shard, which zarr-python
        reads with its own codec."""
        raise UnsupportedError(
            "a TIFF shard codec cannot be created from metadata, which name it "
            f"{data.get('name')!r}"
        )

    def to_dict(self) -> JsonObject:
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

    async def _decode_partial_single(
        self, byte_getter: Any, selection: Any, chunk_spec: ArraySpec
    ) -> NDBuffer | None:
        return await self.reader._decode_partial_single(byte_getter, selection, chunk_spec)

    async def _encode_single(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        # | TIFF header | inner chunk: strip or tile | inner chunk | ... | index of offsets and
        # lengths | CRC-32C |
        segments: list[Buffer] = []
        for starts in product(
            *(range(0, n, step) for n, step in zip(chunk_spec.shape, self.chunk_shape, strict=True))
        ):
            part: Any = chunk_data[
                tuple(
                    slice(start, start + step)
                    for start, step in zip(starts, self.chunk_shape, strict=True)
                )
            ]
            for codec in self.codecs:
                part = await codec._encode_single(part, chunk_spec)
            segments.append(part)
        lengths = [len(segment) for segment in segments]
        image = TiffImage.of(
            chunk_spec.shape, chunk_spec.dtype.to_native_dtype(), self.byteorder, self.axes, "pages"
        )
        header = tiff_segments_header(
            image, chunk_spec.shape, self.chunk_shape, lengths, self.compression
        )
        make = chunk_spec.prototype.buffer.from_bytes
        index = await Crc32cCodec()._encode_single(make(_index(len(header), lengths)), chunk_spec)
        assert index is not None
        parts = [
            np.frombuffer(header, "B"),
            *(buffer.as_numpy_array() for buffer in (*segments, index)),
        ]
        return chunk_spec.prototype.buffer.from_array_like(np.concatenate(parts))


def _index(start: int, lengths: list[int]) -> bytes:
    """Return the index of a shard with contiguous inner chunks in C order: offset and length of
    each, 64-bit little-endian."""
    ends = start + np.cumsum(lengths, dtype="<u8")
    return (
        np.column_stack([ends - np.asarray(lengths, "<u8"), np.asarray(lengths, "<u8")])
        .astype("<u8")
        .tobytes()
    )
