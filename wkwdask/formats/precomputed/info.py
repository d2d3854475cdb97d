"""``info``: the record of a Neuroglancer precomputed volume.

Text in, records out, and edits that keep everything they do not know. Opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wkwdask.geometry import compressed_morton

if TYPE_CHECKING:
    import numpy as np

    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.geometry.mag import Vec3

FILE_NAME = "info"
ENCODINGS = ("raw", "compressed_segmentation", "compresso", "jpeg", "png", "jxl")
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32")

Lengths = tuple[float, float, float]
"""Edge lengths along x, y, z [nm]."""


@dataclass(frozen=True, slots=True)
class Scale:
    """One resolution of a volume, stored in one chunk size."""

    key: str
    """Its folder, relative to the volume."""
    size: Vec3
    """Voxels along x, y, z."""
    voxel_offset: Vec3
    """Absolute voxel of the scale that is stored first; may be negative."""
    chunk_size: Vec3
    """Voxels of a chunk along x, y, z."""
    resolution: Lengths
    """Edge lengths of a voxel [nm]."""
    encoding: str
    """How chunks are encoded, one of ``ENCODINGS``."""
    sharding: Sharding | None = None
    """How chunks are put into files, None where each is one."""
    block_size: Vec3 | None = None
    """``compressed_segmentation_block_size``, with that encoding."""
    hidden: bool = False
    """Whether viewers leave the scale out."""
    chunk_sizes: tuple[Vec3, ...] = ()
    """All chunk sizes that the scale is stored in."""
    options: dict[str, Any] = field(default_factory=dict)
    """Hints for writers: ``jpeg_quality``, ``png_level`` and others."""
    entry: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All that the JSON says about it."""

    @property
    def grid(self) -> Vec3:
        """Chunks along x, y, z."""
        x, y, z = (-(-n // edge) for n, edge in zip(self.size, self.chunk_size, strict=True))
        return x, y, z

    @property
    def shard_cells(self) -> Vec3 | None:
        """Chunks along x, y, z that one shard holds; one chunk without sharding, None where shards are no boxes."""
        return (1, 1, 1) if self.sharding is None else self.sharding.shard_cells(self.grid)

    def chunk_shape_at(self, cell: Vec3) -> Vec3:
        """Give the voxels of a chunk along x, y, z; the last ones of an axis are shorter."""
        x, y, z = (min(edge, n - g * edge) for g, edge, n in zip(cell, self.chunk_size, self.size, strict=True))
        return x, y, z

    def chunk_name(self, cell: Vec3) -> str:
        """Name the file of a chunk that is stored by itself, inside the scale's folder."""
        parts = []
        for g, edge, n, first in zip(cell, self.chunk_size, self.size, self.voxel_offset, strict=True):
            parts.append(f"{first + g * edge}-{first + min(g * edge + edge, n)}")
        return "_".join(parts)

    def chunk_id(self, cell: Vec3) -> int:
        """Give the identifier of a chunk in a shard."""
        return int(compressed_morton.encode([cell], self.grid)[0])


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    """What an ``info`` file says."""

    type: str
    """``"image"`` or ``"segmentation"``."""
    dtype: np.dtype[Any]
    """Type of one channel, in native byte order."""
    num_channels: int
    """Values per voxel."""
    scales: tuple[Scale, ...]
    """All scales, as they are listed; each with its first chunk size."""
    document: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All that the JSON says."""
