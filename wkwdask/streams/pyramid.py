"""All coarser mags of a region from one pass over its bricks.

A brick is reduced into its parent, the brick of the next mag that contains it. A parent whose last part has arrived is complete: it is yielded, and reduced
into its own parent. In one dimension, with two bricks per parent::

    source bricks   0   1   2   3     arrive in Morton order
                    +---+   +---+
    level 0           0       1       yielded after source bricks 1 and 3
                      +-------+
    level 1               0           yielded after source brick 3

If bricks arrive in Morton order, factors 2-2-2 need one pending parent per mag, and other factors a few, so memory does not grow with the region.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.geometry.bounding_box import BoundingBox, part_of_array
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.geometry.vectors import divide, times
from wkwdask.kernels.window.reduce import reduce_windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.plans.pyramid import Pass


@dataclass(frozen=True, slots=True)
class Brick:
    """A complete brick of one mag."""

    level: int
    """Index of the mag in the pass."""
    index: Vec3
    """Index of the brick along x, y, z."""
    voxels: npt.NDArray[Any] | None
    """Voxels inside the mag's box, shape (c, x, y, z), None if all are zero; valid until the next brick is requested."""
    topleft: Vec3
    """Absolute voxel of element 0."""


@dataclass(slots=True)
class _PendingBrick:
    """A brick that is not complete yet."""

    memory: npt.NDArray[Any] | None
    """Voxels, shape (c, x, y, z) with x fastest and c slowest, None while all parts so far are zero."""
    num_missing: int
    """Number of parts (bricks of the finer mag) that have not arrived."""


_brick_pools = threading.local()


class PyramidStream:
    """Turn source bricks into the bricks of all mags of a pass."""

    def __init__(self, plan: Pass, method: str, dtype: np.dtype[Any], num_channels: int, *, ignore_zero: bool = False) -> None:
        self._plan = plan
        self._method = method
        self._ignore_zero = ignore_zero
        self._dtype = dtype
        self._channels = num_channels
        self._pending: list[dict[Vec3, _PendingBrick]] = [{} for _ in plan.levels]
        pools: dict[Any, dict[Vec3, list[npt.NDArray[Any]]]] = _brick_pools.__dict__.setdefault("pools", {})
        self._free = pools.setdefault((dtype.str, num_channels), {})
        self._source_shape = plan.source_brick_shape
        self.source_memory = self._acquire(self._source_shape)
        self._chunk: npt.NDArray[Any] | None = None

    def close(self) -> None:
        """Return the memory of all bricks to the pool of this thread, for its next stream."""
        self._release(self.source_memory)
        if self._chunk is not None:
            self._release(self._chunk)
        for bricks in self._pending:
            for brick in bricks.values():
                if brick.memory is not None:
                    self._release(brick.memory)
            bricks.clear()

    def chunk_memory(self, shape: Vec3) -> npt.NDArray[Any]:
        """Return memory (c, x, y, z) to decode chunks into, one after another."""
        if self._chunk is None:
            self._chunk = self._acquire(shape)
        return self._chunk

    def source_box(self, brick: Vec3) -> BoundingBox:
        """Return the voxels of a source brick inside the source."""
        return cell_box(brick, self._source_shape, self._plan.source_box).intersection(self._plan.source_box)

    def source_view(self, brick: Vec3) -> npt.NDArray[Any]:
        """Return the memory (c, x, y, z) for the voxels of :meth:`source_box`."""
        box = self.source_box(brick)
        return part_of_array(self.source_memory, box, times(brick, self._source_shape))

    def push(self, brick: Vec3, is_zero: bool) -> Iterator[Brick]:
        """Add a source brick that was read into :meth:`source_view`, and yield every brick that it completes."""
        box = self.source_box(brick)
        yield from self._reduce_into(0, None if is_zero else self.source_memory, box, times(brick, self._source_shape))

    def push_chunks(self, brick: Vec3, chunks: Iterable[tuple[Vec3, npt.NDArray[Any]]], chunk_shape: Vec3) -> Iterator[Brick]:
        """Add a source brick chunk by chunk, and yield every brick that it completes. Each chunk is reduced while it is in the cache of the core."""
        plan_level, box, corner = self._plan.levels[0], self.source_box(brick), times(brick, self._source_shape)
        index = divide(corner, times(plan_level.brick_shape, plan_level.factor))
        low, high, target_corner = box.topleft, box.bottomright, times(index, plan_level.brick_shape)
        pending = self._pending_brick(0, index)
        missing = {times(cell, chunk_shape) for cell in cells(box, chunk_shape)}
        num_chunks = len(missing)
        for topleft, voxels in chunks:
            memory = self._memory_of(pending, 0, index)
            missing.discard(topleft)
            is_whole = voxels.shape[1:] == chunk_shape and all(a <= t and t + n <= b for a, t, n, b in zip(low, topleft, chunk_shape, high, strict=True))
            if is_whole and all(channel.flags.f_contiguous for channel in voxels):
                self._reduce_channels(voxels, None, topleft, memory, target_corner, plan_level.factor)
                continue
            # A chunk cut by the border of the volume may end inside a window, so it is padded to its full shape. Only voxels inside the box count.
            padded = self._acquire(chunk_shape)
            inside = BoundingBox(topleft, voxels.shape[1:], box.mag).intersection(box)
            part_of_array(padded, inside, topleft)[...] = part_of_array(voxels, inside, topleft)
            self._reduce_channels(padded, inside, topleft, memory, target_corner, plan_level.factor)
            self._release(padded)
        # Chunks that were not pushed are zero. Memory from the pool holds old voxels, so they are cleared; a brick without memory is all zero so far.
        if pending.memory is not None:
            zeros = [cell_box(divide(topleft, chunk_shape), chunk_shape, box) for topleft in missing] if len(missing) < num_chunks else [box]
            for zero_box in zeros:
                part_of_array(pending.memory, zero_box.intersection(box).in_mag(plan_level.box.mag), target_corner)[...] = 0
        yield from self._count_part(pending, 0, index)

    def _reduce_into(self, level: int, memory: npt.NDArray[Any] | None, box: BoundingBox, corner: Vec3) -> Iterator[Brick]:
        """Reduce the voxels of ``box``, in ``memory`` whose first voxel is ``corner``, into their parent in a level; no memory means zeros."""
        plan_level = self._plan.levels[level]
        index = divide(corner, times(plan_level.brick_shape, plan_level.factor))
        target_corner = times(index, plan_level.brick_shape)
        pending = self._pending_brick(level, index)
        if memory is not None:
            self._reduce_channels(memory, box, corner, self._memory_of(pending, level, index), target_corner, plan_level.factor)
        elif pending.memory is not None:
            part_of_array(pending.memory, box.in_mag(plan_level.box.mag), target_corner)[...] = 0
        yield from self._count_part(pending, level, index)

    def _pending_brick(self, level: int, index: Vec3) -> _PendingBrick:
        """Return the pending brick at an index, created if missing."""
        pending = self._pending[level].get(index)
        if pending is None:
            pending = self._pending[level][index] = _PendingBrick(None, self._num_parts(level, index))
        return pending

    def _memory_of(self, pending: _PendingBrick, level: int, index: Vec3) -> npt.NDArray[Any]:
        """Return the memory of a pending brick. The first part with data acquires it, and clears it if zero parts came before."""
        if pending.memory is None:
            pending.memory = self._acquire(self._plan.levels[level].brick_shape)
            if pending.num_missing < self._num_parts(level, index):
                pending.memory[...] = 0
        return pending.memory

    def _count_part(self, pending: _PendingBrick, level: int, index: Vec3) -> Iterator[Brick]:
        """Count a part that has arrived, and yield the completed bricks if it was the last."""
        pending.num_missing -= 1
        if pending.num_missing == 0:
            del self._pending[level][index]
            yield from self._emit(level, index, pending.memory)

    def _emit(self, level: int, index: Vec3, memory: npt.NDArray[Any] | None) -> Iterator[Brick]:
        """Yield a complete brick, then reduce it into its parent."""
        plan_level = self._plan.levels[level]
        corner = times(index, plan_level.brick_shape)
        box = cell_box(index, plan_level.brick_shape, plan_level.box).intersection(plan_level.box)
        voxels = None if memory is None else part_of_array(memory, box, corner)
        yield Brick(level, index, voxels, box.topleft)
        if level + 1 < len(self._plan.levels):
            yield from self._reduce_into(level + 1, memory, box, corner)
        if memory is not None:
            self._release(memory)

    def _num_parts(self, level: int, index: Vec3) -> int:
        """Count the parts of a brick: the bricks of the finer mag, inside its box, that it contains."""
        plan_level = self._plan.levels[level]
        if level:
            finer_box, finer_shape = self._plan.levels[level - 1].box, self._plan.levels[level - 1].brick_shape
        else:
            finer_box, finer_shape = self._plan.source_box, self._source_shape
        footprint = cell_box(index, times(plan_level.brick_shape, plan_level.factor), finer_box)
        x, y, z = cell_range(footprint.intersection(finer_box), finer_shape)
        return len(x) * len(y) * len(z)

    def _reduce_channels(self, memory: npt.NDArray[Any], box: BoundingBox | None, corner: Vec3, out: npt.NDArray[Any], out_corner: Vec3, factor: Vec3) -> None:
        """Reduce the windows of ``memory``, channel by channel. Only voxels of the box count; without a box, all do."""
        low = high = None
        if box is not None:
            low = [a - c for a, c in zip(box.topleft, corner, strict=True)]
            high = [b - c for b, c in zip(box.bottomright, corner, strict=True)]
        at = [a // f - b for a, f, b in zip(corner, factor, out_corner, strict=True)]
        for channel in range(self._channels):
            reduce_windows(memory[channel], factor, self._method, out[channel], low, high, at=at, ignore_zero=self._ignore_zero)

    def _acquire(self, shape: Vec3) -> npt.NDArray[Any]:
        """Return memory of a shape from the pool, or new memory, which takes about as long to allocate as to fill."""
        free = self._free.get(shape)
        return free.pop() if free else self._allocate(shape)

    def _release(self, memory: npt.NDArray[Any]) -> None:
        """Return memory to the pool."""
        _, x, y, z = memory.shape
        self._free.setdefault((x, y, z), []).append(memory)

    def _allocate(self, shape: Vec3) -> npt.NDArray[Any]:
        """Allocate (c, x, y, z) with x fastest and c slowest, so that each channel is one Fortran array."""
        return np.zeros((self._channels, *reversed(shape)), self._dtype).transpose(0, 3, 2, 1)
