"""All coarser mags of a region from one pass over its bricks.

A brick is reduced into its parent, the brick of the next mag that contains it. A parent whose last
part has arrived is complete: it is yielded, and reduced into its own parent. In one dimension, with
two bricks per parent::

    source bricks   0   1   2   3     arrive in Morton order
                    +---+   +---+
    level 0           0       1       yielded after source bricks 1 and 3
                      +-------+
    level 1               0           yielded after source brick 3

If bricks arrive in Morton order, factors 2-2-2 need one pending parent per mag, and other factors a
few, so memory does not grow with the region. Several threads may push bricks at once. Then a parent
is yielded by the thread that adds its last part.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.geometry.bounding_box import BoundingBox, part_of_array
from wkwdask.geometry.grid import cells, clipped_cell
from wkwdask.geometry.vectors import divide, minus, times
from wkwdask.kernels.window.reduce import reduce_windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.plans.pyramid import Pass


@dataclass(frozen=True, slots=True)
class Brick:
    """A complete brick of one mag."""

    level: int
    """Index of the mag in the pass."""
    index: Vec3
    """Index of the brick along x, y, z."""
    voxels: AnyArray | None
    """Voxels inside the mag's box, shape (c, x, y, z), None if all are zero; valid until the next
    brick is requested."""
    topleft: Vec3
    """Absolute voxel of element 0."""


@dataclass(slots=True)
class _PendingBrick:
    """A brick that is not complete yet."""

    memory: AnyArray | None
    """Voxels, shape (c, x, y, z) with x fastest and c slowest, None while all parts so far are
    zero."""
    num_missing: int
    """Number of parts (bricks of the finer mag) that have not arrived."""


_MAX_FREE_NBYTES = 256 << 20


class FreeBricks:
    """Memory of bricks that is kept for the next streams of the process. New memory takes about as
    long to allocate as to fill."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._memories: list[AnyArray] = []

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray | None:
        with self._changing:
            for n in reversed(range(len(self._memories))):
                if (self._memories[n].shape, self._memories[n].dtype) == (shape, dtype):
                    return self._memories.pop(n)
        return None

    def add(self, memory: AnyArray) -> None:
        with self._changing:
            self._memories.append(memory)
            while sum(kept.nbytes for kept in self._memories) > _MAX_FREE_NBYTES:
                del self._memories[0]


_free_bricks = FreeBricks()


class PyramidStream:
    """Turn source bricks into the bricks of all mags of a pass."""

    def __init__(
        self,
        plan: Pass,
        method: str,
        dtype: np.dtype[Any],
        num_channels: int,
        *,
        ignore_zero: bool = False,
    ) -> None:
        self._plan = plan
        self._method = method
        self._ignore_zero = ignore_zero
        self._dtype = dtype
        self._channels = num_channels
        self._pending: list[dict[Vec3, _PendingBrick]] = [{} for _ in plan.levels]
        self._source_shape = plan.source_brick_shape
        self._memories: dict[tuple[int, Vec3], AnyArray] = {}  # by thread and shape
        self._counting = threading.Lock()

    def close(self) -> None:
        """Keep the memory of all bricks for the next streams."""
        for memory in self._memories.values():
            _free_bricks.add(memory)
        for bricks in self._pending:
            for brick in bricks.values():
                if brick.memory is not None:
                    _free_bricks.add(brick.memory)
            bricks.clear()

    @property
    def source_memory(self) -> AnyArray:
        """Memory (c, x, y, z) of this thread for a source brick."""
        return self.chunk_memory(self._source_shape)

    def chunk_memory(self, shape: Vec3) -> AnyArray:
        """Return memory (c, x, y, z) of this thread to read or decode into."""
        key = threading.get_ident(), shape
        if key not in self._memories:
            self._memories[key] = self._acquire(shape)
        return self._memories[key]

    def source_box(self, brick: Vec3) -> BoundingBox:
        """Return the voxels of a source brick inside the source."""
        return clipped_cell(brick, self._source_shape, self._plan.source_box)

    def source_view(self, brick: Vec3) -> AnyArray:
        """Return the memory (c, x, y, z) for the voxels of :meth:`source_box`."""
        box = self.source_box(brick)
        return part_of_array(self.source_memory, box, times(brick, self._source_shape))

    def push(self, brick: Vec3, is_zero: bool) -> Iterator[Brick]:
        """Add a source brick that was read into :meth:`source_view`, and yield every brick that it
        completes."""
        box = self.source_box(brick)
        yield from self._reduce_into(
            0, None if is_zero else self.source_memory, box, times(brick, self._source_shape)
        )

    def push_chunks(
        self, brick: Vec3, chunks: Iterable[tuple[Vec3, AnyArray]], chunk_shape: Vec3
    ) -> Iterator[Brick]:
        """Add a source brick chunk by chunk, and yield every brick that it completes. Each chunk is
        reduced while it is in the cache of the core."""
        plan_level, box, index = (
            self._plan.levels[0],
            self.source_box(brick),
            self._plan.parent(0, brick),
        )
        target_corner = times(index, plan_level.brick_shape)
        pending = self._pending_brick(0, index)
        missing = {times(cell, chunk_shape) for cell in cells(box, chunk_shape)}
        num_chunks, memory = len(missing), None
        factor, (x, y, z), (to_x, to_y, to_z) = plan_level.factor, box.topleft, box.bottomright
        for topleft, voxels in chunks:
            if memory is None:
                memory = self._memory_of(pending, 0, index)
            missing.discard(topleft)
            # without objects for boxes, which would take as long as the reduction
            a, b, c = topleft
            low = max(x - a, 0), max(y - b, 0), max(z - c, 0)
            _, i, j, k = voxels.shape
            high = min(to_x - a, i), min(to_y - b, j), min(to_z - c, k)
            if (i, j, k) == chunk_shape and voxels[0].flags.f_contiguous:
                self._reduce_channels(voxels, low, high, topleft, memory, target_corner, factor)
                continue
            # A chunk cut by the border of the volume may end inside a window, so it is padded to
            # its full shape. Only voxels inside the box count.
            padded = self._acquire(chunk_shape)
            inside: tuple[Any, ...] = (..., *map(slice, low, high))
            padded[inside] = voxels[inside]
            self._reduce_channels(padded, low, high, topleft, memory, target_corner, factor)
            _free_bricks.add(padded)
        # Chunks that were not pushed are zero. Memory that was used before holds old voxels, so
        # they are cleared.
        zeros = (
            [clipped_cell(divide(topleft, chunk_shape), chunk_shape, box) for topleft in missing]
            if len(missing) < num_chunks
            else [box]
        )
        yield from self._count_part(pending, 0, index, zeros)

    def _reduce_into(
        self, level: int, memory: AnyArray | None, box: BoundingBox, corner: Vec3
    ) -> Iterator[Brick]:
        """Reduce the voxels of ``box``, in ``memory`` whose first voxel is ``corner``, into their
        parent in a level; no memory means zeros."""
        plan_level = self._plan.levels[level]
        index = divide(corner, times(plan_level.brick_shape, plan_level.factor))
        pending = self._pending_brick(level, index)
        if memory is not None:
            target_corner = times(index, plan_level.brick_shape)
            self._reduce_channels(
                memory,
                minus(box.topleft, corner),
                minus(box.bottomright, corner),
                corner,
                self._memory_of(pending, level, index),
                target_corner,
                plan_level.factor,
            )
        yield from self._count_part(pending, level, index, [box] if memory is None else [])

    def _pending_brick(self, level: int, index: Vec3) -> _PendingBrick:
        """Return the pending brick at an index, created if missing."""
        with self._counting:
            pending = self._pending[level].get(index)
            if pending is None:
                pending = self._pending[level][index] = _PendingBrick(
                    None, self._plan.num_parts(level, index)
                )
            return pending

    def _memory_of(self, pending: _PendingBrick, level: int, index: Vec3) -> AnyArray:
        """Return the memory of a pending brick. The first part with data acquires it, and clears it
        if zero parts came before."""
        with self._counting:
            if pending.memory is None:
                memory = self._acquire(self._plan.levels[level].brick_shape)
                if pending.num_missing < self._plan.num_parts(level, index):
                    memory[...] = 0
                pending.memory = memory
            return pending.memory

    def _count_part(
        self, pending: _PendingBrick, level: int, index: Vec3, zeros: Iterable[BoundingBox]
    ) -> Iterator[Brick]:
        """Clear the boxes of a part that are zero, count the part, and yield the completed bricks
        if it was the last."""
        plan_level = self._plan.levels[level]
        with self._counting:
            if pending.memory is not None:  # a brick without memory is all zero so far
                for box in zeros:
                    part_of_array(
                        pending.memory,
                        box.in_mag(plan_level.box.mag),
                        times(index, plan_level.brick_shape),
                    )[...] = 0
            pending.num_missing -= 1
            if pending.num_missing:
                return
            del self._pending[level][index]
        yield from self._emit(level, index, pending.memory)

    def _emit(self, level: int, index: Vec3, memory: AnyArray | None) -> Iterator[Brick]:
        """Yield a complete brick, then reduce it into its parent."""
        plan_level = self._plan.levels[level]
        corner = times(index, plan_level.brick_shape)
        box = clipped_cell(index, plan_level.brick_shape, plan_level.box)
        voxels = None if memory is None else part_of_array(memory, box, corner)
        yield Brick(level, index, voxels, box.topleft)
        if level + 1 < len(self._plan.levels):
            yield from self._reduce_into(level + 1, memory, box, corner)
        if memory is not None:
            _free_bricks.add(memory)

    def _reduce_channels(
        self,
        memory: AnyArray,
        low: Vec3,
        high: Vec3,
        corner: Vec3,
        out: AnyArray,
        out_corner: Vec3,
        factor: Vec3,
    ) -> None:
        """Reduce the windows of ``memory``, whose first voxel is ``corner``, channel by channel.
        Only voxels from ``low`` to ``high`` count."""
        at = minus(divide(corner, factor), out_corner)
        for channel in range(self._channels):
            reduce_windows(
                memory[channel],
                factor,
                self._method,
                out[channel],
                low,
                high,
                at=at,
                ignore_zero=self._ignore_zero,
            )

    def _acquire(self, shape: Vec3) -> AnyArray:
        """Return memory that was used before, or new memory."""
        memory = _free_bricks.take((self._channels, *shape), self._dtype)
        return self._allocate(shape) if memory is None else memory

    def _allocate(self, shape: Vec3) -> AnyArray:
        """Allocate (c, x, y, z) with x fastest and c slowest, so that each channel is one Fortran
        array."""
        return np.zeros((self._channels, *reversed(shape)), self._dtype).transpose(0, 3, 2, 1)
