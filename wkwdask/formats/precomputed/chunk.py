"""Decode and encode the chunks of a Neuroglancer precomputed volume. Opens no file."""

from __future__ import annotations

import bz2
import lzma
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.formats.compressed_streams import compress_gzip, decompress_gzip
from wkwdask.formats.precomputed import compressed_segmentation, compresso, images, writable
from wkwdask.formats.precomputed.compressed_segmentation import BlockShapes
from wkwdask.kernels.arrays import copy_into, is_zero
from wkwdask.model.codec import ChunkCodec, clip, decode_raw
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.formats.precomputed.info import Scale, VolumeInfo
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.codec import Reframe
    from wkwdask.model.writing.file_buffer import Arena

_GZIP = ("chunk", ".gz")
_IMAGECODECS = {".br": ("brotli_encode", 5), ".zstd": ("zstd_encode", 5)}
"""Functions of imagecodecs that compress files, by the suffix, and their levels."""
_COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.compress, ".bz2": bz2.compress}

# the one encoding that decodes directly into the caller's array
_SEGMENTATION = "compressed_segmentation"


@dataclass(frozen=True, slots=True)
class PrecomputedCodec(ChunkCodec):
    """Codec of the chunks of one scale."""

    encoding: str
    dtype: np.dtype[Any]
    num_channels: int
    block_size: Vec3 = (8, 8, 8)
    """Block shape of compressed_segmentation [voxels]."""
    quality: float | None = None
    """Quality from 0 to 100. jpeg defaults to 75, jxl to lossless."""
    level: int | None = None
    """Effort: 0 to 9 for png (default 4), 1 to 10 for jxl (default 3)."""
    packing: str = ""
    """``"chunk"``: each encoded chunk is a gzip stream. Otherwise the suffix of new files; the
    layout decompresses files."""

    decodes_chunks = True

    @classmethod
    def of(cls, info: VolumeInfo, scale: Scale) -> PrecomputedCodec:
        try:
            writable.check_encoding(scale.encoding, info.dtype, info.num_channels)
        except ValueError as error:
            raise CorruptError(f"scale {scale.key!r}: {error}") from None
        return cls.of_scale(scale, info.dtype, info.num_channels)

    @classmethod
    def of_scale(
        cls, scale: Scale, dtype: np.dtype[Any], num_channels: int, packing: str = ""
    ) -> PrecomputedCodec:
        """Return the codec of a scale without checking that the encoding supports the data type."""
        options = scale.options
        quality = options.get("jpeg_quality" if scale.encoding == "jpeg" else "jxl_quality")
        level = options.get("png_level" if scale.encoding == "png" else "jxl_effort")
        return cls(
            scale.encoding,
            dtype,
            num_channels,
            scale.block_size or (8, 8, 8),
            quality,
            level,
            packing,
        )

    @property
    def name(self) -> str:
        return self.encoding

    @property
    def is_lossy(self) -> bool:  # type: ignore[override]
        return writable.is_lossy(self.encoding, self.quality)

    @property
    def is_delimited(self) -> bool:  # type: ignore[override]
        """Whether chunks are gzip streams or images, which have lengths and mostly checksums."""
        return self.packing == "chunk" or self.encoding in images.ENCODINGS

    def largest_nbytes(self, shape: Sequence[int]) -> int:
        raw = math.prod(shape) * self.dtype.itemsize
        # No sound encoder expands a chunk this much: the bound only stops decompression bombs.
        return raw if self.encoding == "raw" else 64 * raw + (1 << 20)

    # --------------------------------------------------------------------------------------------
    # decoding

    def slab_nbytes(self, shape: Vec4) -> int:
        is_plain = self.encoding == "raw" and self.packing != "chunk" and shape[0] == 1
        return shape[1] * shape[2] * self.dtype.itemsize if is_plain else 0

    def decode(self, data: bytes, shape: Vec4, source: str, offset: int = 0) -> AnyArray:
        data, extent = self._unpacked(data, shape, source, offset), shape[1:]
        if self.encoding == "raw":
            return self._raw(data, shape, source, offset)
        if self.encoding in images.ENCODINGS:
            return images.decode(self.encoding, data, shape, self.dtype, source, offset)
        if self.encoding == "compresso":
            return compresso.decode(data, extent, self.dtype, source, offset)
        return compressed_segmentation.decode(
            data,
            BlockShapes(extent, self.block_size),
            self.dtype,
            self.num_channels,
            source,
            offset,
        )

    def decode_into(
        self,
        data: bytes,
        shape: Vec4,
        out: AnyArray,
        corner: Sequence[int],
        source: str,
        offset: int = 0,
    ) -> bool:
        if (
            self.encoding != _SEGMENTATION
            or out.dtype != self.dtype
            or len(out) != self.num_channels
        ):
            return ChunkCodec.decode_into(self, data, shape, out, corner, source, offset)
        data = self._unpacked(data, shape, source, offset)
        compressed_segmentation.decode_into(
            data,
            BlockShapes(shape[1:], self.block_size),
            out,
            (corner[1], corner[2], corner[3]),
            source,
            offset,
        )
        return not is_zero(out[clip(corner, shape, out.shape)[0]])

    def decode_chunk(
        self, data: bytes, shape: Vec4, memory: AnyArray, source: str, offset: int = 0
    ) -> AnyArray | None:
        if self.encoding != _SEGMENTATION:
            return ChunkCodec.decode_chunk(self, data, shape, memory, source, offset)
        c, x, y, z = shape
        voxels = memory[:c, :x, :y, :z]
        return (
            voxels if self.decode_into(data, shape, voxels, (0, 0, 0, 0), source, offset) else None
        )

    def _raw(self, data: bytes, shape: Vec4, source: str, offset: int) -> AnyArray:
        # volume.rst, "raw encoding": little-endian, [x, y, z, channel] in Fortran order, so x is
        # fastest and the channel slowest.
        return decode_raw(data, shape, self.dtype.newbyteorder("<"), "czyx", source, offset).astype(
            self.dtype, order="K", copy=False
        )

    # --------------------------------------------------------------------------------------------
    # encoding

    def check_packages(self, source: str) -> None:
        if (
            self.encoding in images.ENCODINGS
            or self.encoding == "compresso"
            or self.packing in _IMAGECODECS
        ):
            self._encoded(np.zeros((self.num_channels, 8, 8, 8), self.dtype), source)

    def encode(self, voxels: AnyArray, source: str) -> bytes:
        return self._packed(self._encoded(voxels.astype(self.dtype, copy=False), source), source)

    def encode_in_arena(self, voxels: AnyArray, arena: Arena, source: str) -> bytes | memoryview:
        if self.encoding != "raw" or self.packing:
            return self.encode(voxels, source)
        memory = arena.reserve(voxels.size * self.dtype.itemsize)
        c, x, y, z = voxels.shape
        copy_into(
            voxels,
            memory.view(self.dtype.newbyteorder("<")).reshape(c, z, y, x).transpose(0, 3, 2, 1),
        )
        return memory.data

    def _encoded(self, voxels: AnyArray, source: str) -> bytes:
        if self.encoding == "raw":
            stored = self.dtype.newbyteorder("<")
            if voxels.strides[1] == voxels.itemsize:
                # x is already fastest: tobytes() is the only copy
                return voxels.astype(stored, copy=False).transpose(0, 3, 2, 1).tobytes()
            transposed = np.empty((len(voxels), *voxels.shape[:0:-1]), self.dtype)
            copy_into(voxels, transposed.transpose(0, 3, 2, 1))
            return transposed.astype(stored, copy=False).tobytes()
        if self.encoding in images.ENCODINGS:
            return images.encode(self.encoding, voxels, self.quality, self.level, source)
        if self.encoding == "compresso":
            return compresso.encode(voxels, source)
        return compressed_segmentation.encode(voxels, self.block_size, source)

    # --------------------------------------------------------------------------------------------
    # packing

    def _packed(self, data: bytes, source: str) -> bytes:
        if self.packing in _GZIP:
            # Noisy image voxels hardly shrink at any level, so a fast level is used; labels reward
            # a slower one.
            return compress_gzip(data, is_image=self.encoding == "raw" and self.dtype.itemsize <= 2)
        if self.packing in _IMAGECODECS:
            name, level = _IMAGECODECS[self.packing]
            packed: bytes = getattr(import_extra("imagecodecs", source, "precomputed"), name)(
                data, level
            )
            return packed
        return _COMPRESSORS[self.packing](data) if self.packing else data

    def _unpacked(self, data: bytes, shape: Vec4, source: str, offset: int) -> bytes:
        return (
            decompress_gzip(data, self.largest_nbytes(shape), source, offset)
            if self.packing == "chunk"
            else data
        )

    def reframe(self, source: ChunkCodec) -> Reframe | None:
        """Return a function that compresses or decompresses the stored chunks of ``source`` without
        decoding voxels, None if there is none."""
        if (
            not isinstance(source, PrecomputedCodec)
            or replace(source, packing=self.packing) != self
        ):
            return None
        # The layout has decompressed the content of a file already. A gzip stream in a shard can
        # become a file unchanged.
        if source.packing == "chunk" and self.packing in _GZIP:
            return lambda data, *_: data

        def convert(data: bytes, shape: Vec4, name: str, offset: int) -> bytes:
            content = source._unpacked(data, shape, name, offset)
            if not source._has_possible_size(content, shape):
                source.decode(data, shape, name, offset)  # raises the error
            return self._packed(content, name)

        return convert

    def _has_possible_size(self, content: bytes, shape: Vec4) -> bool:
        """Check the size of a chunk that is copied without decoding."""
        if self.encoding == "raw":
            return len(content) == math.prod(shape) * self.dtype.itemsize
        return self.encoding != _SEGMENTATION or len(content) % 4 == 0
