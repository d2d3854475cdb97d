"""All coarser mags of a region from one walk over its bricks.

A brick of one mag is reduced into the brick of the next mag that it lies in; when all the bricks that a parent waits for have come, the parent goes out and is
itself reduced into its own parent. In Morton order a single parent per mag is open for factors 2-2-2, a few for other factors.
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
    """Voxels inside the mag's box, shape (c, x, y, z), None where all are zero; valid until the next brick is asked for."""
    topleft: Vec3
    """Absolute voxel of element 0."""


@dataclass(slots=True)
class _PendingBrick:
    """A brick that waits for more."""

    memory: npt.NDArray[Any] | None
    """All its voxels, shape (c, x, y, z) with x fastest and c slowest, None as long as nothing but zeros came."""
    waits_for: int
    """Bricks of the finer mag that have not come."""


_brick_pools = threading.local()


class PyramidStream:
    """Turns source bricks into the bricks of all mags of a pass."""

    def __init__(self, plan: Pass, method: str, dtype: np.dtype[Any], num_channels: int, *, ignore_zero: bool = False) -> None:
        self._plan = plan
        self._method = method
        self._ignore_zero = ignore_zero
        self._dtype = dtype
        self._channels = num_channels
        self._open: list[dict[Vec3, _PendingBrick]] = [{} for _ in plan.levels]
        pools: dict[Any, dict[Vec3, list[npt.NDArray[Any]]]] = _brick_pools.__dict__.setdefault("pools", {})
        self._free = pools.setdefault((dtype.str, num_channels), {})
        self._source_shape = plan.source_brick_shape
        self.source_memory = self._take(self._source_shape)
        self._chunk: npt.NDArray[Any] | None = None

    def close(self) -> None:
        """Leave the memory of all bricks to the next stream of this thread: fresh memory costs about as much as reducing into it."""
        self._give(self.source_memory)
        if self._chunk is not None:
            self._give(self._chunk)
        for opened in self._open:
            for brick in opened.values():
                if brick.memory is not None:
                    self._give(brick.memory)
            opened.clear()

    def chunk_memory(self, shape: Vec3) -> npt.NDArray[Any]:
        """Give memory that chunks may be decoded to, one after the other, shape (c, x, y, z)."""
        if self._chunk is None:
            self._chunk = self._take(shape)
        return self._chunk

    def source_box(self, brick: Vec3) -> BoundingBox:
        """Give the voxels of a source brick."""
        return cell_box(brick, self._source_shape, self._plan.source_box).intersection(self._plan.source_box)

    def source_view(self, brick: Vec3) -> npt.NDArray[Any]:
        """Give the memory that takes the voxels of :meth:`source_box`, shape (c, x, y, z)."""
        box = self.source_box(brick)
        return part_of_array(self.source_memory, box, times(brick, self._source_shape))

    def push(self, brick: Vec3, is_zero: bool) -> Iterator[Brick]:
        """Take a source brick that was read into :meth:`source_view`, and give every brick that it completes."""
        box = self.source_box(brick)
        yield from self._go_on(0, None if is_zero else self.source_memory, box, times(brick, self._source_shape))

    def push_chunks(self, brick: Vec3, chunks: Iterable[tuple[Vec3, npt.NDArray[Any]]], chunk_shape: Vec3) -> Iterator[Brick]:
        """Take a source brick chunk by chunk, each reduced while it is still in the cache of the core, and give every brick that it completes."""
        here, box, corner = self._plan.levels[0], self.source_box(brick), times(brick, self._source_shape)
        index = divide(corner, times(here.brick_shape, here.factor))
        low, high, target_corner = box.topleft, box.bottomright, times(index, here.brick_shape)
        opened = self._opened(0, index)
        missing = {times(cell, chunk_shape) for cell in cells(box, chunk_shape)}
        num_chunks = len(missing)
        for topleft, voxels in chunks:
            memory = self._memory_of(opened, 0, index)
            missing.discard(topleft)
            is_whole = voxels.shape[1:] == chunk_shape and all(a <= t and t + n <= b for a, t, n, b in zip(low, topleft, chunk_shape, high, strict=True))
            if is_whole and all(channel.flags.f_contiguous for channel in voxels):
                self._reduce_channels(voxels, None, topleft, memory, target_corner, here.factor)
                continue
            padded = self._take(chunk_shape)
            inside = BoundingBox(topleft, voxels.shape[1:], box.mag).intersection(box)
            part_of_array(padded, inside, topleft)[...] = part_of_array(voxels, inside, topleft)
            self._reduce_channels(padded, inside, topleft, memory, target_corner, here.factor)
            self._give(padded)
        if opened.memory is not None:
            zeros = [cell_box(divide(topleft, chunk_shape), chunk_shape, box) for topleft in missing] if len(missing) < num_chunks else [box]
            for absent in zeros:
                part_of_array(opened.memory, absent.intersection(box).in_mag(here.box.mag), target_corner)[...] = 0
        yield from self._settle(opened, 0, index)

    def _go_on(self, level: int, memory: npt.NDArray[Any] | None, box: BoundingBox, corner: Vec3) -> Iterator[Brick]:
        """Reduce the voxels of ``box``, which lie in ``memory`` from ``corner`` on, into the brick of a level that they lie in."""
        here = self._plan.levels[level]
        index = divide(corner, times(here.brick_shape, here.factor))
        target_corner = times(index, here.brick_shape)
        opened = self._opened(level, index)
        if memory is not None:
            self._reduce_channels(memory, box, corner, self._memory_of(opened, level, index), target_corner, here.factor)
        elif opened.memory is not None:
            part_of_array(opened.memory, box.in_mag(here.box.mag), target_corner)[...] = 0
        yield from self._settle(opened, level, index)

    def _opened(self, level: int, index: Vec3) -> _PendingBrick:
        """Give the brick that waits, or begin it."""
        opened = self._open[level].get(index)
        if opened is None:
            opened = self._open[level][index] = _PendingBrick(None, self._waits_for(level, index))
        return opened

    def _memory_of(self, opened: _PendingBrick, level: int, index: Vec3) -> npt.NDArray[Any]:
        """Give the voxels of a brick that waits; those that came before its memory was needed are zero."""
        if opened.memory is None:
            opened.memory = self._take(self._plan.levels[level].brick_shape)
            if opened.waits_for < self._waits_for(level, index):
                opened.memory[...] = 0
        return opened.memory

    def _settle(self, opened: _PendingBrick, level: int, index: Vec3) -> Iterator[Brick]:
        """Count one more brick of the finer mag that has come; give the brick where that was the last."""
        opened.waits_for -= 1
        if opened.waits_for == 0:
            del self._open[level][index]
            yield from self._complete(level, index, opened.memory)

    def _complete(self, level: int, index: Vec3, memory: npt.NDArray[Any] | None) -> Iterator[Brick]:
        """Send a brick out, and on into its parent."""
        here = self._plan.levels[level]
        corner = times(index, here.brick_shape)
        box = cell_box(index, here.brick_shape, here.box).intersection(here.box)
        voxels = None if memory is None else part_of_array(memory, box, corner)
        yield Brick(level, index, voxels, box.topleft)
        if level + 1 < len(self._plan.levels):
            yield from self._go_on(level + 1, memory, box, corner)
        if memory is not None:
            self._give(memory)

    def _waits_for(self, level: int, index: Vec3) -> int:
        """Count the bricks of the finer mag that make a brick."""
        here = self._plan.levels[level]
        if level:
            finer_box, finer_shape = self._plan.levels[level - 1].box, self._plan.levels[level - 1].brick_shape
        else:
            finer_box, finer_shape = self._plan.source_box, self._source_shape
        footprint = cell_box(index, times(here.brick_shape, here.factor), finer_box)
        x, y, z = cell_range(footprint.intersection(finer_box), finer_shape)
        return len(x) * len(y) * len(z)

    def _reduce_channels(self, memory: npt.NDArray[Any], box: BoundingBox | None, corner: Vec3, out: npt.NDArray[Any], out_corner: Vec3, factor: Vec3) -> None:
        """Reduce whole windows of the memory, with only the voxels of the box counting, all of them where there is none."""
        low = high = None
        if box is not None:
            low = [a - c for a, c in zip(box.topleft, corner, strict=True)]
            high = [b - c for b, c in zip(box.bottomright, corner, strict=True)]
        at = [a // f - b for a, f, b in zip(corner, factor, out_corner, strict=True)]
        for channel in range(self._channels):
            reduce_windows(memory[channel], factor, self._method, out[channel], low, high, at=at, ignore_zero=self._ignore_zero)

    def _take(self, shape: Vec3) -> npt.NDArray[Any]:
        """Give memory for a brick, used before or new."""
        free = self._free.get(shape)
        return free.pop() if free else self._planar(shape)

    def _give(self, memory: npt.NDArray[Any]) -> None:
        """Take back memory of a brick that is not needed any more."""
        _, x, y, z = memory.shape
        self._free.setdefault((x, y, z), []).append(memory)

    def _planar(self, shape: Vec3) -> npt.NDArray[Any]:
        """Allocate (c, x, y, z) with x fastest and c slowest, so that each channel is one Fortran array."""
        return np.zeros((self._channels, *reversed(shape)), self._dtype).transpose(0, 3, 2, 1)
