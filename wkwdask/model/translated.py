"""A volume moved by a vector: the same voxels at other places."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import numpy as np

from wkwdask.geometry.grid import cell_range, mark_cells
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.volume import Volume
from wkwdask.plans.cells import SparseCells, cell_map, is_large, marked_cells

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.states import States
    from wkwdask.model.volume import StoredVolume
    from wkwdask.plans.cells import CellMap

V = TypeVar("V", bound=Volume)


@dataclass(frozen=True, slots=True)
class TranslatedVolume(Generic[V]):
    """A volume moved by a vector, open for reading.

    Its shards are cells of the same grid as before, so one may hold parts of up to eight stored files.
    """

    volume: V
    """What is moved."""
    shift: Vec3
    """What is added to the place of each voxel [voxels of its mag]."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel."""
        return self.volume.dtype

    @property
    def num_channels(self) -> int:
        """Values per voxel."""
        return self.volume.num_channels

    @property
    def box(self) -> BoundingBox:
        """Where the voxels have come to lie."""
        return moved(self.volume.box, self.shift)

    @property
    def origin(self) -> Vec3:
        """Absolute voxel at which its grids start."""
        return self.shift

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
        """The name of what is moved."""
        return self.volume.name

    @property
    def token(self) -> tuple[Any, ...]:
        """Values that change when the volume is another one."""
        return ("translated", self.shift, *self.volume.token)

    @property
    def content_token(self) -> tuple[Any, ...]:
        """Values that change when the volume holds something else."""
        return ("translated", self.shift, *self.volume.content_token)

    @property
    def is_regular(self) -> bool:
        """Its files lie anywhere."""
        return False

    def is_current(self) -> bool:
        """Tell whether what is there is still what was opened."""
        return self.volume.is_current()

    def has_shards(self) -> bool:
        """Tell whether any file is stored."""
        return self.volume.has_shards()

    @property
    def lengths_nm(self) -> Lengths | None:
        """Edge lengths of its voxels [nm]."""
        return self.volume.lengths_nm

    def count_files(self) -> tuple[int, int] | None:
        """Count the stored files, and their bytes."""
        return self.volume.count_files()

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True) -> int:
        """Fill an array with voxels, see :meth:`wkwdask.model.volume.Volume.read_into`."""
        return self.volume.read_into(out, self._back(topleft), first_channel, fill_zeros=fill_zeros)

    def _back(self, place: Vec3) -> Vec3:
        (x, y, z), (a, b, c) = place, self.shift
        return x - a, y - b, z - c

    def shard_exists(self, index: Vec3) -> bool:
        """Tell whether any of the stored files that a shard holds parts of is there."""
        return any(self.volume.shard_exists(stored) for stored in self._stored_shards(index))

    def _stored_shards(self, index: Vec3) -> Iterator[Vec3]:
        """Go through the stored files that a shard holds parts of."""
        ranges = [range((n * edge - s) // edge, -(-((n + 1) * edge - s) // edge)) for n, edge, s in zip(index, self.shard_shape, self.shift, strict=True)]
        return ((x, y, z) for z in ranges[2] for y in ranges[1] for x in ranges[0])

    def shard_path(self, index: Vec3) -> str:
        """Name the stored file that holds a shard's first voxel."""
        return self.volume.shard_path(next(self._stored_shards(index)))

    def occupied(self, cell_shape: Vec3) -> CellMap:
        """Tell which cells of a grid have voxels of the box in a stored file, see :meth:`wkwdask.model.volume.Volume.occupied`."""
        shards = self.shard_shape
        if all(s % n == 0 for s, n in zip(self.shift, cell_shape, strict=True)):
            return self.volume.occupied(cell_shape)
        found = self.volume.occupied(shards)
        if isinstance(found, SparseCells) or is_large(self.box, cell_shape):
            low = (marked_cells(found) + [cells.start for cells in cell_range(self.volume.box, shards)]) * np.array(shards)
            moved = cell_map(self.box, cell_shape, self.name)
            mark_cells(moved, low + self.shift, low + shards + self.shift, self.box, cell_shape)
            return moved
        before = cell_range(self.volume.box, shards)
        for axis, cells in enumerate(cell_range(self.box, cell_shape)):
            edge, first = shards[axis], before[axis].start
            low, high = self.volume.box.topleft[axis], self.volume.box.bottomright[axis]
            starts = [max(low, n * cell_shape[axis] - self.shift[axis]) // edge - first for n in cells]
            stops = [-(-min(high, (n + 1) * cell_shape[axis] - self.shift[axis]) // edge) - first for n in cells]
            counts = np.insert(np.cumsum(found, axis=axis, dtype=np.int64), 0, 0, axis=axis)
            found = np.take(counts, stops, axis=axis) > np.take(counts, starts, axis=axis)
        return found

    def shard_states(self, box: BoundingBox) -> States:
        """Look at the stored files that a part of the volume touches; a file has a row for each shard that holds a part of it."""
        return self._moved_states(self.volume.shard_states(moved(box, self._back((0, 0, 0)))))

    def stored_states(self) -> States:
        """Look at all stored files that the box touches."""
        return self._moved_states(self.volume.stored_states())

    def cropped(self, box: BoundingBox) -> Self:
        """Give a part of the volume."""
        return replace(self, volume=self._stored.cropped(moved(box, self._back((0, 0, 0)))))  # type: ignore[arg-type]

    def is_unchanged(self) -> bool:
        """Tell whether the records that it was opened by are still the same."""
        return self._stored.is_unchanged()

    @property
    def _stored(self) -> StoredVolume:
        return cast("StoredVolume", self.volume)

    def _moved_states(self, states: States) -> States:
        for axis, (edge, shift) in enumerate(zip(self.shard_shape, self.shift, strict=True)):
            first, rest = divmod(shift, edge)
            shards = (first, first + 1) if rest else (first,)
            rows = np.repeat(states, len(shards), axis=0)
            rows[:, axis] += np.tile(shards, len(states))
            states = rows
        return states


def moved(box: BoundingBox, shift: Vec3) -> BoundingBox:
    """Give a box that lies elsewhere."""
    (x, y, z), (a, b, c) = box.topleft, shift
    return replace(box, topleft=(x + a, y + b, z + c))


def unshifted(volume: Volume) -> tuple[Volume, Vec3]:
    """Give what a volume is when it is not moved, and by how much it was."""
    return (volume.volume, volume.shift) if isinstance(volume, TranslatedVolume) else (volume, (0, 0, 0))


def shifted(volume: Volume, shift: Vec3) -> Volume:
    """Give a volume moved by a vector; moved back to where it was, it is itself again."""
    if isinstance(volume, StoredArray):
        return volume.moved(shift)
    unmoved, (a, b, c) = unshifted(volume)
    shift = (a + shift[0], b + shift[1], c + shift[2])
    return unmoved if shift == (0, 0, 0) else TranslatedVolume(unmoved, shift)


def in_frame(volume: Volume, origin: Vec3) -> Volume:
    """Give a volume in coordinates that count from an absolute voxel of its mag."""
    return shifted(volume, (-origin[0], -origin[1], -origin[2]))
