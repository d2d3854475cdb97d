"""A part of a volume: the same voxels at the same places, with a smaller box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.geometry.grid import cell_range

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.storage.states import States
    from wkwdask.storage.volume import Volume


@dataclass(frozen=True, slots=True)
class CroppedVolume:
    """A part of a volume, open for reading."""

    volume: Volume
    """What it is a part of."""
    box: BoundingBox
    """Which part, inside of the volume's own box."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel."""
        return self.volume.dtype

    @property
    def num_channels(self) -> int:
        """Values per voxel."""
        return self.volume.num_channels

    @property
    def chunk_shape(self) -> Vec3:
        """The smallest encoded box along x, y, z [voxels]."""
        return self.volume.chunk_shape

    @property
    def shard_shape(self) -> Vec3:
        """One stored file along x, y, z [voxels]."""
        return self.volume.shard_shape

    @property
    def name(self) -> str:
        """The name of the whole."""
        return self.volume.name

    @property
    def token(self) -> tuple[Any, ...]:
        """Values that change when the volume is another one."""
        return ("cropped", self.box, *self.volume.token)

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True) -> int:
        """Fill an array with voxels of the box, see :meth:`wkwdask.storage.volume.Volume.read_into`."""
        return self.volume.read_into(out, topleft, first_channel, fill_zeros=fill_zeros)

    def shard_exists(self, index: Vec3) -> bool:
        """Tell whether a shard is stored."""
        return self.volume.shard_exists(index)

    def shard_path(self, index: Vec3) -> str:
        """Name a shard."""
        return self.volume.shard_path(index)

    def occupied(self, cell_shape: Vec3) -> npt.NDArray[np.bool_]:
        """Tell which of the cells that the box touches have voxels of the whole volume in a stored shard: at least those that have voxels of the box."""
        whole = self.volume.occupied(cell_shape)
        ranges = zip(cell_range(self.volume.box, cell_shape), cell_range(self.box, cell_shape), strict=True)
        x, y, z = (slice(part.start - cells.start, part.stop - cells.start) for cells, part in ranges)
        return whole[x, y, z]

    def shard_states(self, box: BoundingBox) -> States:
        """Look at the stored shards that a part of the volume touches."""
        return self.volume.shard_states(box)

    def stored_states(self) -> States:
        """Look at all stored shards that the box touches."""
        return self.volume.shard_states(self.box)
