"""How the voxels of one chunk are encoded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.kernels.arrays import copy_into, is_zero
from wkwdask.model.chunk_grid import Vec4

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.file_buffer import FileBuffer

Reframe = Callable[[bytes, Vec4, str, int], bytes]
"""Turns the stored bytes of a chunk into those of another codec, given its lengths, its file and where it begins there."""


class ChunkCodec(ABC):
    """Bytes of one chunk to voxels (c, x, y, z) and back. Axis order and byte order stay in here."""

    __slots__ = ()

    is_lossy = False
    """Whether encoding changes values."""
    decodes_chunks = False
    """Whether chunks are better used one by one, while they are in the cache of the core, than decoded into a larger box."""

    @property
    def name(self) -> str:
        """How values are compressed, where that is one word."""
        return ""

    @abstractmethod
    def largest_nbytes(self, shape: Sequence[int]) -> int:
        """Return how many bytes an encoded chunk has at most; one that claims more is broken."""

    @abstractmethod
    def decode(self, data: bytes, shape: Vec4, source: str, offset: int = 0) -> npt.NDArray[Any]:
        """Decode a chunk, which may turn out to have other lengths than the grid says."""

    @abstractmethod
    def encode(self, voxels: npt.NDArray[Any], source: str) -> bytes:
        """Encode a chunk (c, x, y, z)."""

    def decode_into(self, data: bytes, shape: Vec4, out: npt.NDArray[Any], corner: Sequence[int], source: str, offset: int = 0) -> bool:
        """Decode a chunk into its place in an array, from ``corner`` on, as far as it lies in it; False where all of it is zero, and perhaps not written."""
        where, part = clip(corner, shape, out.shape)
        voxels = self.decode(data, shape, source, offset)[part]
        if is_zero(voxels):
            return False
        place = out[where]
        if voxels.shape != place.shape:
            place[...] = 0
            place = place[tuple(map(slice, voxels.shape))]
        copy_into(voxels.astype(out.dtype, order="K", copy=False), place)
        return True

    def decode_chunk(self, data: bytes, shape: Vec4, memory: npt.NDArray[Any], source: str, offset: int = 0) -> npt.NDArray[Any] | None:
        """Decode a whole chunk, into memory or elsewhere; None where all of it is zero."""
        c, x, y, z = shape
        voxels = memory[:c, :x, :y, :z]
        return voxels if self.decode_into(data, shape, voxels, (0, 0, 0, 0), source, offset) else None

    def reframe(self, source: ChunkCodec) -> Reframe | None:
        """Return how stored bytes of another codec become those of this one without being decoded, None where they cannot."""
        return (lambda data, *_: data) if source == self else None

    def encode_batch(
        self, array: npt.NDArray[Any], corners: npt.NDArray[np.int64], shape: Vec3, output: FileBuffer, source: str, *, stores_zeros: bool
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Encode chunks of an array from their corners on and append them: sizes (0 of zeros that are not stored), and how many are not all zero."""
        sizes, nonzero = np.zeros(len(corners), np.int64), 0
        for n, (x, y, z) in enumerate(corners.tolist()):
            voxels = array[:, x : x + shape[0], y : y + shape[1], z : z + shape[2]]
            is_empty = is_zero(voxels)
            nonzero += not is_empty
            if stores_zeros or not is_empty:
                data = self.encode(voxels, source)
                output.append(np.frombuffer(data, np.uint8))
                sizes[n] = len(data)
        return sizes, nonzero


def clip(corner: Sequence[int], shape: Sequence[int], room: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the place of a chunk in an array, and of what the array covers in the chunk."""
    where, part = [], []
    for at, length, size in zip(corner, shape, room, strict=True):
        low = max(at, 0)
        high = max(low, min(at + length, size))
        where.append(slice(low, high))
        part.append(slice(low - at, high - at))
    return tuple(where), tuple(part)
