"""Bricks of a finer mag, made from a coarse one: each source voxel becomes a box of equal
voxels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.geometry.bounding_box import part_of_array
from wkwdask.geometry.grid import cell_box
from wkwdask.geometry.mag import vec3
from wkwdask.kernels.window.reduce import repeat_voxels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.plans.upsample import UpsamplePlan


class UpsampleStream:
    """Turn readings of the source into bricks of a finer mag."""

    def __init__(self, plan: UpsamplePlan, dtype: np.dtype[Any], num_channels: int) -> None:
        self._plan = plan
        self._channels = num_channels
        self._unsigned = np.dtype(f"u{dtype.itemsize}")
        self._memory = np.empty(num_channels * math.prod(plan.brick_shape), dtype)

    def source_memory(self, reading: Vec3) -> tuple[AnyArray, Vec3]:
        """Allocate memory (c, x, y, z) for the source voxels of a reading, and return it with its
        lowest voxel."""
        box = self._plan.source_box_of(self._plan.reading_box(reading))
        memory = np.empty((self._channels, *reversed(box.size)), self._memory.dtype)
        return memory.transpose(0, 3, 2, 1), box.topleft

    def bricks(
        self, reading: Vec3, source: AnyArray | None
    ) -> Iterator[tuple[Vec3, AnyArray | None]]:
        """Yield index and voxels of each brick of a reading: voxels inside the box (c, x, y, z),
        valid until the next brick; None if all are zero."""
        corner = self._plan.source_box_of(self._plan.reading_box(reading)).topleft
        for index in self._plan.bricks(reading):
            yield index, None if source is None else self._brick(index, source, corner)

    def _brick(self, index: Vec3, source: AnyArray, corner: Vec3) -> AnyArray | None:
        """Repeat the source voxels of a brick, and crop the result to the box."""
        # One axis, factor 4. The box starts inside a source voxel, so the repeated voxels start
        # before the box:
        #
        #   source    |  a  |  b  |  c  |
        #   repeated  |aaaa|bbbb|cccc|
        #   box          [=========)        part_of_array drops the voxels outside
        plan = self._plan
        cell = cell_box(index, plan.brick_shape, plan.box)
        box = cell.intersection(plan.box)
        source_box = plan.source_box_of(box)
        planes = part_of_array(source, source_box, corner).transpose(0, 3, 2, 1)
        if not planes.view(self._unsigned).any():  # as bits: -0.0 must be written
            return None
        # a source voxel may be larger than a brick
        repeats = vec3([min(f, n) for f, n in zip(plan.factor, plan.brick_shape, strict=True)])
        shape = [n * repeat for n, repeat in zip(planes.shape[:0:-1], repeats, strict=True)]
        out = self._memory[: self._channels * math.prod(shape)].reshape(
            self._channels, *reversed(shape)
        )
        repeat_voxels(planes, repeats, out)
        low = vec3(
            [
                max(t * f, c)
                for t, f, c in zip(source_box.topleft, plan.factor, cell.topleft, strict=True)
            ]
        )
        return part_of_array(out.transpose(0, 3, 2, 1), box, low)
