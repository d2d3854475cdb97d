"""Bounded compressors for arrays that zarr-python reads: a crafted chunk cannot decode to more
bytes than a chunk may have.

zarr-python opens an array, then :func:`bound_decoders` replaces its compressors by bounded ones.
Other codecs stay, as do compressors that are not in ``BOUNDED_COMPRESSORS``.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from zarr.abc.codec import ArrayArrayCodec, BytesBytesCodec
from zarr.codecs import ShardingCodec
from zarr.codecs._v2 import V2Codec

from wkwdask.formats.zarr.codec import (
    BOUNDED_COMPRESSORS,
    MAX_FILTER_GROWTH,
    SOURCE,
    decode_bounded,
    max_compressed_nbytes,
)
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer


def bound_decoders(array: Any) -> Any:
    """Bound the output of the compressors of an open array, and return the array."""
    metadata, inner = array.metadata, array.async_array
    if metadata.zarr_format == 3:
        codecs: Sequence[Any] = bounded_codecs(metadata.codecs)
    else:
        filters = metadata.filters or ()
        raw = (
            prod(metadata.chunks)
            * metadata.dtype.to_native_dtype().itemsize
            * (MAX_FILTER_GROWTH if filters else 1)
        )
        bounded_filters = tuple(_BoundedNumcodec.of(codec, raw) for codec in filters) or None
        codecs = [
            V2Codec(
                filters=bounded_filters, compressor=_BoundedNumcodec.of(metadata.compressor, raw)
            )
        ]
    # zarr-python has no public way to change the codecs of an open array, whose classes are frozen
    object.__setattr__(inner, "codec_pipeline", type(inner.codec_pipeline).from_codecs(codecs))
    return array


def bounded_codecs(codecs: Sequence[Any]) -> list[Any]:
    """Replace the compressors of a version 3 codec chain, including those inside shards."""
    chain: list[Any] = []
    before: list[Any] = []
    for codec in codecs:
        bounded: Any = codec
        if isinstance(codec, ShardingCodec):
            bounded = ShardingCodec(
                chunk_shape=codec.chunk_shape,
                codecs=bounded_codecs(codec.codecs),
                index_codecs=codec.index_codecs,
                index_location=codec.index_location,
            )
        elif isinstance(codec, BytesBytesCodec):
            document = codec.to_dict()
            name = str(document.get("name")).removeprefix("numcodecs.")
            if name in BOUNDED_COMPRESSORS:
                settings: Any = document.get("configuration") or {}
                bounded = _BoundedCodec(codec, name, settings, tuple(before))
            else:
                bounded = codec
        if not isinstance(codec, ArrayArrayCodec):
            before.append(codec)
        chain.append(bounded)
    return chain


@dataclass(frozen=True)
class _BoundedCodec(BytesBytesCodec):
    codec: Any
    kind: str
    options: Mapping[str, Any]
    before: tuple[Any, ...]
    """Codecs that encode before it, the array-to-bytes codec first."""
    is_fixed_size = False

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        data = chunk_bytes.to_bytes()
        out = await asyncio.to_thread(
            decode_bounded,
            self.kind,
            self.options,
            data,
            self._max_decoded_nbytes(chunk_spec),
            self._decoded,
        )
        return chunk_spec.prototype.buffer.from_bytes(out)

    def _decoded(self, data: bytes) -> Any:
        """Decode by numcodecs, which zarr-python's own codecs wrap too."""
        numcodecs = import_extra("numcodecs", SOURCE, "zarr")
        return numcodecs.get_codec({"id": self.kind}).decode(data)

    def _max_decoded_nbytes(self, spec: ArraySpec) -> int:
        """Return the largest number of bytes that the codecs before it make of a chunk."""
        nbytes = prod(spec.shape) * spec.dtype.to_native_dtype().itemsize
        for codec in self.before:
            with contextlib.suppress(NotImplementedError):
                nbytes = max(nbytes, codec.compute_encoded_size(nbytes, spec))
            if not getattr(codec, "is_fixed_size", False):  # some codecs do not state it
                nbytes = max_compressed_nbytes(nbytes)
        return nbytes

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        return self.codec.to_dict()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _BoundedNumcodec:
    codec: Any
    max_nbytes: int

    @classmethod
    def of(cls, codec: Any, raw_nbytes: int) -> Any:
        return (
            codec
            if codec is None or codec.codec_id not in BOUNDED_COMPRESSORS
            else cls(codec, raw_nbytes)
        )

    def decode(self, buf: Any, out: Any = None) -> Any:
        del out
        return decode_bounded(
            self.codec.codec_id,
            self.codec.get_config(),
            bytes(buf),
            self.max_nbytes,
            self.codec.decode,
        )

    def encode(self, buf: Any) -> Any:
        return self.codec.encode(buf)
