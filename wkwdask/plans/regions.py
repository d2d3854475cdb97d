"""Regions of a mag: equal, aligned boxes of whole chunks, one task each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry import morton
from wkwdask.geometry.grid import cell_range, clipped_cell
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import ceil_divide, divide, doubled, is_multiple, times
from wkwdask.plans.cells import SparseCells, count_cells, marked_cells, needs_sparse, project_cells

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.array_types import IntArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.plans.cells import CellMap


_TASKS_PER_WORKER = 3
_LARGEST_REGION_NBYTES = 4 << 30
_SHARDS_PER_REGION = 512
_CODE_BITS = 20  # of an index in one Morton code: 60 of 64 bits
_FEW_SHARDS = 1 << 20
_LARGEST_UNIT_NBYTES = 32 << 20


def morton_order(cells: IntArray) -> npt.NDArray[np.intp]:
    """Return the order of cells by their Morton codes, for indices of any size."""
    # Codes of large indices exceed 64 bits. So all indices are reduced by a common multiple of
    # 2^20, and sorted by several codes of 20 bits of each index. The code of the highest bits comes
    # last, because lexsort's last key is the primary one.
    if not len(cells):
        return np.zeros(0, np.intp)
    cells = cells - (cells.min(axis=0) >> _CODE_BITS << _CODE_BITS)
    parts = range(-(-int(cells.max()).bit_length() // _CODE_BITS) or 1)
    return np.lexsort(
        [morton.encode(cells >> part * _CODE_BITS & (1 << _CODE_BITS) - 1) for part in parts]
    )


@dataclass(frozen=True, slots=True)
class Tiling:
    """Chunks and shards of a target mag."""

    chunk_shape: Vec3
    """Shape of a chunk [voxels]."""
    shard_shape: Vec3
    """Shape of a shard, or of a group of files that one task writes [voxels]."""
    voxel_nbytes: int
    """Memory of a voxel with all channels, including the source voxels that a task holds at the
    same time [bytes]."""

    @property
    def unit_shape(self) -> Vec3:
        """Box of chunks from which bricks and regions are made by doubling its edges [voxels].

        A shard of a power of two of chunks is made from chunks. Otherwise the unit is a chunk times
        the odd factors of the shard, so that shards are made from it too. If it were too large for
        memory, the unit is a chunk, and regions cut shards.

        Examples
        --------
        >>> Tiling((32, 32, 32), (96, 192, 64), 1).unit_shape
        (96, 96, 32)
        """
        cells = divide(self.shard_shape, self.chunk_shape)
        unit = times(self.chunk_shape, vec3([n // (n & -n) if n else 1 for n in cells]))
        is_small = math.prod(unit) * self.voxel_nbytes <= _LARGEST_UNIT_NBYTES
        return unit if is_small else self.chunk_shape


@dataclass(frozen=True, slots=True)
class RegionGrid:
    """Plan of a mag that is made region by region. Regions, bricks and shards are counted from
    voxel 0, not from the corner of the box."""

    box: BoundingBox
    """Extent of the mag [voxels of the mag]."""
    region_shape: Vec3
    """Shape of one task [voxels of the mag]."""
    brick_shape: Vec3
    """Shape of the part that a task processes at once [voxels of the mag]."""

    def region_box(self, region: Vec3) -> BoundingBox:
        """Return the voxels of a region inside the box."""
        return clipped_cell(region, self.region_shape, self.box)

    def regions(self, occupied: CellMap) -> Iterator[Vec3]:
        """Yield the occupied regions in Morton order, which completes files one after another."""
        low = [r.start for r in cell_range(self.box, self.region_shape)]
        regions = marked_cells(occupied) + low
        for index in morton_order(regions):
            x, y, z = regions[index].tolist()
            yield x, y, z

    def cells_in(self, outer: Vec3, outer_shape: Vec3, shape: Vec3) -> Iterator[Vec3]:
        """Yield the cells of one shape, in a cell of a larger one, that touch the box, in Morton
        order."""
        counts = ceil_divide(outer_shape, shape)
        x_range, y_range, z_range = cell_range(self.box, shape)
        _, coordinates = morton.ordered_box((0, 0, 0), counts)
        for x, y, z in (coordinates + np.multiply(outer, counts)).tolist():
            if x in x_range and y in y_range and z in z_range:
                yield x, y, z

    def regions_in_shard(self, shard: Vec3, shard_shape: Vec3) -> tuple[slice, slice, slice]:
        """Return the slices of the regions of a shard in the array of all regions that touch the
        box."""
        all_regions = cell_range(self.box, self.region_shape)
        regions = cell_range(clipped_cell(shard, shard_shape, self.box), self.region_shape)
        x, y, z = (
            slice(r.start - first.start, r.stop - first.start)
            for r, first in zip(regions, all_regions, strict=True)
        )
        return x, y, z

    def occupied_shards(self, shard_shape: Vec3, occupied: CellMap) -> CellMap:
        """Mark the shards that touch regions with data."""
        if self.box.is_empty:
            return np.zeros([len(shards) for shards in cell_range(self.box, shard_shape)], bool)
        few = occupied.mean() * count_cells(self.box, shard_shape) < _FEW_SHARDS
        if isinstance(occupied, SparseCells) or (few and needs_sparse(self.box, shard_shape)):
            first = [cells.start for cells in cell_range(self.box, self.region_shape)]
            return project_cells(occupied, first, self.region_shape, self.box, shard_shape)
        # Along each axis, a shard has data if one of the regions that it touches has some.
        for axis, (cells, shards) in enumerate(
            zip(
                cell_range(self.box, self.region_shape),
                cell_range(self.box, shard_shape),
                strict=True,
            )
        ):
            cell, shard = self.region_shape[axis], shard_shape[axis]
            lows = [max(n * shard // cell, cells.start) - cells.start for n in shards]
            highs = [min(-(-(n + 1) * shard // cell), cells.stop) - cells.start for n in shards]
            # reduceat reduces between each pair of indices, and an index must lie in the array
            padded = np.pad(occupied, [(0, int(n == axis)) for n in range(3)])
            pairs = np.stack([lows, highs], axis=1).ravel()
            reduced = np.logical_or.reduceat(padded, pairs, axis=axis)
            occupied = np.take(reduced, range(0, len(pairs), 2), axis=axis)
        return occupied

    def contains_whole_shards(self, shard_shape: Vec3) -> bool:
        """Return whether a region contains every shard that it touches."""
        return is_multiple(self.region_shape, shard_shape)

    def has_one_region_per_shard(self, shard_shape: Vec3) -> bool:
        """Return whether each shard has voxels of the box in one region only."""
        return is_multiple(shard_shape, self.region_shape) and count_cells(
            self.box, self.region_shape
        ) == count_cells(self.box, shard_shape)


def plan_splicing(
    box: BoundingBox,
    source_shard_shape: Vec3,
    shard_shape: Vec3,
    voxel_nbytes: int,
    workers: int,
    region_shape: Vec3 | None = None,
) -> RegionGrid:
    """Choose the regions in which encoded chunks of another volume are copied into whole shards.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> plan_splicing(
    ...     BoundingBox((0, 0, 0), (4096, 4096, 4096)), (1024,) * 3, (256,) * 3, 1, 2
    ... ).region_shape
    (1024, 1024, 1024)
    """
    if region_shape is None:
        region_shape = shard_shape
        while True:
            larger = doubled(region_shape)
            num_regions = math.prod(len(cells) for cells in cell_range(box, larger))
            if (
                num_regions < _TASKS_PER_WORKER * workers
                or math.prod(larger) * voxel_nbytes > _LARGEST_REGION_NBYTES
                or math.prod(larger) > _SHARDS_PER_REGION * math.prod(shard_shape)
                or max(larger) > max(*source_shard_shape, 512)
            ):
                break
            region_shape = larger
    return RegionGrid(box, region_shape, shard_shape)
