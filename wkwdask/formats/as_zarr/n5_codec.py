"""Zarr v3 codec ``n5_default``: chunks are N5 blocks in default mode, whole or truncated at the
upper ends of the array.

Follows ``codecs/n5_default`` of zarr-extensions. It is the only codec of an array; its inner codecs
state what N5 implies: a transpose that reverses all axes, big-endian ``bytes``, and at most one
compressor.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from zarr.abc.codec import ArrayBytesCodec

from wkwdask.formats.as_zarr.n5_view import CODEC_NAME, from_zarr_codec
from wkwdask.formats.n5.attributes import DTYPES
from wkwdask.formats.n5.block import Compression, decode_block, encode_block, header_nbytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer

    from wkwdask.model.json_text import JsonObject

SOURCE = "N5 block"


@dataclass(frozen=True)
class N5DefaultCodec(ArrayBytesCodec):
    """N5 blocks as chunks of a Zarr array whose axes are those of the N5 dataset, x first."""

    documents: tuple[str, ...]
    """Inner codecs as JSON, which is hashable."""
    is_fixed_size = False

    def __init__(self, *, codecs: Iterable[Mapping[str, Any] | Any]) -> None:
        listed = [_as_object(codec) for codec in codecs]
        object.__setattr__(self, "documents", tuple(json.dumps(codec) for codec in listed))
        _check_codecs(listed)

    @property
    def num_axes(self) -> int:
        return len(json.loads(self.documents[0])["configuration"]["order"])

    @property
    def compression(self) -> Compression:
        compression = (
            from_zarr_codec(json.loads(self.documents[2]))
            if len(self.documents) > 2
            else Compression()
        )
        assert compression is not None
        return compression

    @classmethod
    def from_dict(cls, data: JsonObject) -> Self:
        if (
            data.get("name") != CODEC_NAME
            or not isinstance(data.get("configuration"), dict)
            or not isinstance(data["configuration"].get("codecs"), (list, tuple))
        ):
            raise ValueError(
                f'expected the codec "{CODEC_NAME}" with a configuration that lists codecs, got '
                f"{data!r}"
            )
        return cls(codecs=data["configuration"]["codecs"])

    def to_dict(self) -> JsonObject:
        return {
            "name": CODEC_NAME,
            "configuration": {"codecs": [json.loads(document) for document in self.documents]},
        }

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        del chunk_grid
        if len(shape) != self.num_axes:
            raise ValueError(
                f"{CODEC_NAME}: an array of {len(shape)} axes, but the transpose codec is for "
                f"{self.num_axes}"
            )
        native = np.dtype(dtype.to_native_dtype())
        if native.name not in DTYPES:
            raise ValueError(
                f"{CODEC_NAME}: N5 has no type for {native}; it stores {', '.join(DTYPES)}"
            )
        if native.itemsize > 1 and _endian(json.loads(self.documents[1])) is None:
            raise ValueError(f'{CODEC_NAME}: the bytes codec must say "endian": "big" for {native}')

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        if len(self.documents) > 2:
            raise NotImplementedError
        return input_byte_length + header_nbytes(len(chunk_spec.shape))

    def _decode_sync(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        # At the upper ends of an array, Java and z5 truncate blocks, tensorstore and zarr pad them.
        # A truncated block is completed with the fill value; values beyond the chunk are dropped.
        dtype = np.dtype(chunk_spec.dtype.to_native_dtype())
        data = memoryview(chunk_data.to_bytes())
        block = decode_block(data, dtype, self.compression, SOURCE, num_axes=len(chunk_spec.shape))
        inside = tuple(
            slice(0, min(n, m)) for n, m in zip(block.shape, chunk_spec.shape, strict=True)
        )
        out = np.empty(chunk_spec.shape, dtype.newbyteorder("="), order="F")
        if block[inside].shape != out.shape:
            out[...] = 0 if chunk_spec.fill_value is None else chunk_spec.fill_value
        out[inside] = block[inside]
        return chunk_spec.prototype.nd_buffer.from_numpy_array(out)

    def _encode_sync(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        return chunk_spec.prototype.buffer.from_bytes(
            encode_block(chunk_data.as_numpy_array(), self.compression, SOURCE)
        )

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)

    async def _encode_single(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        return await asyncio.to_thread(self._encode_sync, chunk_data, chunk_spec)


def _as_object(codec: Mapping[str, Any] | Any) -> JsonObject:
    """Return a codec as a JSON object; it may be a name alone."""
    if isinstance(codec, str):
        return {"name": codec}
    return dict(codec) if isinstance(codec, Mapping) else dict(codec.to_dict())


def _check_codecs(codecs: list[JsonObject]) -> None:
    names = [codec.get("name") for codec in codecs]
    if len(codecs) not in (2, 3) or names[:2] != ["transpose", "bytes"]:
        raise ValueError(
            f"{CODEC_NAME}: expected the codecs transpose, bytes, and a compressor or none, got "
            f"{names}"
        )
    order = (codecs[0].get("configuration") or {}).get("order")
    if not isinstance(order, (list, tuple)) or list(order) != list(range(len(order)))[::-1]:
        raise ValueError(
            f"{CODEC_NAME}: transpose must reverse all axes, such as [2, 1, 0], got {order!r}"
        )
    if _endian(codecs[1]) not in (None, "big"):
        raise ValueError(
            f'{CODEC_NAME}: bytes must have "endian": "big", got {_endian(codecs[1])!r}'
        )
    if len(codecs) == 3 and from_zarr_codec(codecs[2]) is None:
        raise ValueError(f"{CODEC_NAME}: N5 has no equivalent of the Zarr codec {names[2]!r}")


def _endian(codec: Mapping[str, Any]) -> Any:
    return (codec.get("configuration") or {}).get("endian")
