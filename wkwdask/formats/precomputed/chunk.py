"""Chunks of a Neuroglancer precomputed volume: encoded bytes to voxels and back, by the encoding of their scale. Opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError

if TYPE_CHECKING:
    import numpy.typing as npt

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
    quality: int = 75
    """Of jpeg and of lossy jxl, 0..100."""
    level: int | None = None
    """Effort of png and jxl."""

    def decode(self, data: bytes, shape: Vec3, source: str, offset: int = 0) -> npt.NDArray[Any]:
        """Decode a chunk.

        Parameters
        ----------
        data : bytes
            The encoded chunk.
        shape : tuple of 3 int
            Its voxels along x, y, z.
        source : str
            File and chunk, for errors.
        offset : int
            Byte of the file at which it is stored, for errors.

        Returns
        -------
        ndarray, shape (c, x, y, z)
            Of any memory order, perhaps read-only.

        Raises
        ------
        FormatError
            The bytes are no such chunk.
        ModuleNotFoundError
            The encoding needs a package that is not installed; the message names the extra.
        """
        expected = shape[0] * shape[1] * shape[2] * self.num_channels * self.dtype.itemsize
        if len(data) != expected:
            raise CorruptError(f"{source}: byte {offset}: a raw chunk of {shape} voxels has {expected} bytes, found {len(data)}")
        stored = np.frombuffer(data, self.dtype.newbyteorder("<")).astype(self.dtype, copy=False)
        return stored.reshape(self.num_channels, shape[2], shape[1], shape[0]).transpose(0, 3, 2, 1)

    def encode(self, array: npt.NDArray[Any], source: str) -> bytes:
        """Encode a chunk.

        Parameters
        ----------
        array : ndarray, shape (c, x, y, z)
            Its voxels, of any memory order.
        source : str
            File and chunk, for errors.

        Returns
        -------
        bytes

        Raises
        ------
        FormatError
            The encoding cannot hold these voxels.
        """
        return array.astype(self.dtype.newbyteorder("<"), copy=False).transpose(0, 3, 2, 1).tobytes()
