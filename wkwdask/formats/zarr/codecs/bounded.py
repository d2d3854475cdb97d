"""Codecs of zarr-python that give no more bytes than a chunk may have, whatever its compressed bytes claim. Loaded when a Zarr array is read.

An array is opened by zarr-python; then its compressors are replaced by ones with a bound. Codecs that are no compressors stay, as do compressors that this
module does not know.
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

from wkwdask.formats.zarr.codec import BOUNDED_COMPRESSORS, MAX_FILTER_GROWTH, SOURCE, decode_bounded
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer


def bound_decoders(array: Any) -> Any:
    """Bound what the compressors of an open array give."""
    metadata, own = array.metadata, array.async_array
    if metadata.zarr_format == 3:
        codecs: Sequence[Any] = bounded_codecs(metadata.codecs)
    else:
        filters = metadata.filters or ()
        raw = prod(metadata.chunks) * metadata.dtype.to_native_dtype().itemsize * (MAX_FILTER_GROWTH if filters else 1)
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
            document = codec.to_dict()
            name = str(document.get("name")).removeprefix("numcodecs.")
            bounded = _BoundedCodec(codec, name, document.get("configuration") or {}, tuple(before)) if name in BOUNDED_COMPRESSORS else codec  # type: ignore[arg-type]
        if not isinstance(codec, ArrayArrayCodec):
            before.append(codec)
        found.append(bounded)
    return found


@dataclass(frozen=True)
class _BoundedCodec(BytesBytesCodec):
    """A compressor of version 3 with a bound."""

    codec: Any
    kind: str
    options: Mapping[str, Any]
    before: tuple[Any, ...]
    """Codecs whose bytes it compresses, that from array to bytes first."""
    is_fixed_size = False

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        data = chunk_bytes.to_bytes()
        out = await asyncio.to_thread(decode_bounded, self.kind, self.options, data, self._max_decoded_nbytes(chunk_spec), self._decoded)
        return chunk_spec.prototype.buffer.from_bytes(out)

    def _decoded(self, data: bytes) -> Any:
        """Decode by numcodecs, whose codecs zarr-python's own ones hold too."""
        numcodecs = import_extra("numcodecs", SOURCE, "zarr")
        return numcodecs.get_codec({"id": self.kind}).decode(data)

    def _max_decoded_nbytes(self, spec: ArraySpec) -> int:
        """Say how many bytes the codecs before it make of a chunk at most."""
        most = prod(spec.shape) * spec.dtype.to_native_dtype().itemsize
        for codec in self.before:
            with contextlib.suppress(NotImplementedError):
                most = max(most, codec.compute_encoded_size(most, spec))
            if not codec.is_fixed_size:
                most += most // 8 + 4096  # compressing what cannot be compressed makes it a little larger
        return most

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        return self.codec.to_dict()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _BoundedNumcodec:
    """A compressor of version 2 with a bound."""

    codec: Any
    most: int
    """How many bytes it may give."""

    @classmethod
    def of(cls, codec: Any, raw_nbytes: int) -> Any:
        """Bound a codec where it is a compressor that is known."""
        return codec if codec is None or codec.codec_id not in BOUNDED_COMPRESSORS else cls(codec, raw_nbytes)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Decode a chunk."""
        del out
        return decode_bounded(self.codec.codec_id, self.codec.get_config(), bytes(buf), self.most, self.codec.decode)

    def encode(self, buf: Any) -> Any:
        """Encode a chunk."""
        return self.codec.encode(buf)
