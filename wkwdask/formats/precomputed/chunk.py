"""Chunks of a Neuroglancer precomputed volume: bytes to voxels and back, by the encoding of their scale. Opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, TruncatedError
from wkwdask.formats.precomputed import compressed_segmentation, compresso, images, writable
from wkwdask.formats.precomputed.compressed_segmentation import Blocks
from wkwdask.kernels.arrays import copy_into

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.formats.precomputed.info import Scale, VolumeInfo
    from wkwdask.geometry.mag import Vec3


@dataclass(frozen=True, slots=True)
class ChunkCodec:
    """One encoding with all that it needs to know; small to pickle."""

    encoding: str
    """One of ``wkwdask.formats.precomputed.info.ENCODINGS``."""
    dtype: np.dtype[Any]
    """Type of one channel, in native byte order."""
    num_channels: int
    """Values per voxel."""
    block_size: Vec3 = (8, 8, 8)
    """Block of compressed_segmentation [voxels]."""
    quality: float | None = None
    """Of jpeg, 75 by default, and of jxl, lossless by default, 0..100."""
    level: int | None = None
    """Effort of png, 0..9, 4 by default, and of jxl, 1..10, 3 by default."""

    @classmethod
    def of(cls, info: VolumeInfo, scale: Scale) -> ChunkCodec:
        """Give the codec of a scale."""
        try:
            writable.check_encoding(scale.encoding, info.dtype, info.num_channels)
        except ValueError as error:
            raise CorruptError(f"scale {scale.key!r}: {error}") from None
        return cls.of_scale(scale, info.dtype, info.num_channels)

    @classmethod
    def of_scale(cls, scale: Scale, dtype: np.dtype[Any], num_channels: int) -> ChunkCodec:
        """Give the codec of a scale whose encoding was checked."""
        options = scale.options
        quality = options.get("jpeg_quality" if scale.encoding == "jpeg" else "jxl_quality")
        level = options.get("png_level" if scale.encoding == "png" else "jxl_effort")
        return cls(scale.encoding, dtype, num_channels, scale.block_size or (8, 8, 8), quality, level)

    @property
    def is_lossy(self) -> bool:
        """Whether voxels are changed by being encoded."""
        return writable.is_lossy(self.encoding, self.quality)

    def decode(self, data: bytes, shape: Vec3, source: str, offset: int = 0) -> npt.NDArray[Any]:
        """Decode a chunk."""
        if self.encoding == "raw":
            return self._raw(data, shape, source, offset)
        if self.encoding in images.ENCODINGS:
            return images.decode(self.encoding, data, (self.num_channels, *shape), self.dtype, source, offset)
        if self.encoding == "compresso":
            return compresso.decode(data, shape, self.dtype, source, offset)
        return compressed_segmentation.decode(data, Blocks(shape, self.block_size), self.dtype, self.num_channels, source, offset)

    def decode_into(self, data: bytes, shape: Vec3, out: npt.NDArray[Any], corner: Sequence[int], source: str, offset: int = 0) -> None:
        """Decode the part of a chunk that lies inside an array, straight to its place where the encoding can do that."""
        low = (corner[0], corner[1], corner[2])
        if self.encoding == "compressed_segmentation" and out.dtype == self.dtype:
            compressed_segmentation.decode_into(data, Blocks(shape, self.block_size), out, low, source, offset)
            return
        chunk = self.decode(data, shape, source, offset)
        in_out, in_chunk = _overlap(low, shape, out.shape)
        copy_into(chunk[(slice(None), *in_chunk)], out[(slice(None), *in_out)])

    def encode(self, array: npt.NDArray[Any], source: str) -> bytes:
        """Encode a chunk."""
        voxels = array.astype(self.dtype, copy=False)
        if self.encoding == "raw":
            stored = self.dtype.newbyteorder("<")
            if voxels.strides[1] == voxels.itemsize:  # x is fastest already: the bytes are copied once
                return voxels.astype(stored, copy=False).transpose(0, 3, 2, 1).tobytes()
            turned = np.empty((len(voxels), *voxels.shape[:0:-1]), self.dtype)
            copy_into(voxels, turned.transpose(0, 3, 2, 1))
            return turned.astype(stored, copy=False).tobytes()
        if self.encoding in images.ENCODINGS:
            return images.encode(self.encoding, voxels, self.quality, self.level, source)
        if self.encoding == "compresso":
            return compresso.encode(voxels, source)
        return compressed_segmentation.encode(voxels, self.block_size, source)

    def _raw(self, data: bytes, shape: Vec3, source: str, offset: int) -> npt.NDArray[Any]:
        expected = shape[0] * shape[1] * shape[2] * self.num_channels * self.dtype.itemsize
        if len(data) != expected:
            error = TruncatedError if len(data) < expected else CorruptError
            raise error(f"{source}: byte {offset}: a raw chunk of {shape} voxels has {expected} bytes, found {len(data)}")
        stored = np.frombuffer(data, self.dtype.newbyteorder("<")).astype(self.dtype, copy=False)
        return stored.reshape(self.num_channels, shape[2], shape[1], shape[0]).transpose(0, 3, 2, 1)


def _overlap(corner: Vec3, shape: Vec3, out_shape: Sequence[int]) -> tuple[list[slice], list[slice]]:
    """Give the slices of an array (c, x, y, z) and of a chunk in which both lie."""
    low = [max(0, -at) for at in corner]
    high = [max(a, min(n, have - at)) for a, at, n, have in zip(low, corner, shape, out_shape[1:], strict=True)]
    in_out = [slice(at + a, at + b) for at, a, b in zip(corner, low, high, strict=True)]
    return in_out, [slice(a, b) for a, b in zip(low, high, strict=True)]
