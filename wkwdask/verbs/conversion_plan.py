"""What a conversion will take, told beforehand from what is staged and a small sample of the voxels."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.geometry.grid import cell_box, cell_range
from wkwdask.plans.cells import count_cells
from wkwdask.runs.report import format_nbytes, space_problems
from wkwdask.verbs.estimate import BASE_NBYTES, OVERHEAD, SECONDS_PER_TASK, format_duration, refusals_of
from wkwdask.verbs.foreign_import import Import

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.plans.cells import CellMap
    from wkwdask.verbs.export import Export
    from wkwdask.verbs.rechunk import Rechunk

_LOOKED_AT_REGIONS = 1000
_SAMPLED_REGIONS = 3
_SAMPLED_SECONDS = 1.0  # for the sections of one brick


@dataclass(frozen=True, slots=True)
class ConvertedMag:
    """One mag, scale or array that will be made, or one export."""

    folder: str
    """Where."""
    size: Vec3
    """Its voxels along x, y, z."""
    regions: int
    """Tasks that read and write a region."""
    region_shape: Vec3
    """One of them along x, y, z [voxels]."""
    joins: int
    """Tasks that join the parts of a file, at most."""
    files: int
    """Files, at most."""
    nbytes: int
    """Estimate of their bytes; of an export, the bytes of the voxels."""
    voxel_nbytes_in: int
    """Decoded bytes of the regions that have files, about."""
    memory_nbytes: int
    """Peak memory of a worker with one thread, about."""
    seconds: float
    """Estimate of the time of one thread, from work timed on a sample on this machine; 0 for an export, which is not sampled."""
    notes: tuple[str, ...] = ()
    """What a user should know."""
    shard_shape: Vec3 | None = None
    """What one shard or file holds along x, y, z [voxels], None for an export."""


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What a conversion will take."""

    mags: tuple[ConvertedMag, ...]
    """What is made, in this order."""
    pyramids: tuple[str, ...]
    """Above what a pyramid is built then."""
    workers: int
    """Tasks that run at once."""

    @property
    def tasks(self) -> int:
        """All tasks, at most."""
        return sum(mag.regions + mag.joins for mag in self.mags)

    @property
    def files(self) -> int:
        """Files that will be written, at most."""
        return sum(mag.files for mag in self.mags)

    @property
    def nbytes_out(self) -> int:
        """Estimate of the bytes that will be written."""
        return sum(mag.nbytes for mag in self.mags)

    @property
    def seconds(self) -> float:
        """Estimate of the wall time."""
        return sum(mag.seconds for mag in self.mags) / self.workers

    def __str__(self) -> str:
        lines = []
        for mag in self.mags:
            size, shape = (" x ".join(map(str, lengths)) for lengths in (mag.size, mag.region_shape))
            joins = f", up to {mag.joins:,} joins" if mag.joins else ""
            shards = "" if mag.shard_shape is None else f", shards of {' x '.join(map(str, mag.shard_shape))}"
            lines.append(
                f"{mag.folder}: {size} voxels{shards}, {mag.regions:,} regions of {shape}{joins}, up to {mag.files:,} files, about {format_nbytes(mag.nbytes)}"
            )
        lines.append(f"reads    {format_nbytes(sum(mag.voxel_nbytes_in for mag in self.mags))} of voxels")
        lines.append(f"writes   up to {self.files:,} files, about {format_nbytes(self.nbytes_out)}")
        if any(mag.seconds for mag in self.mags):
            lines.append(f"memory   about {format_nbytes(max(mag.memory_nbytes for mag in self.mags))} per worker of one thread")
            lines.append(f"time     about {format_duration(self.seconds)} in {self.tasks:,} tasks on {self.workers} workers like this machine's cores")
        lines += [f"then the pyramid of {place}, which wkwdask pyramid --dry-run tells more of when that is there" for place in self.pyramids]
        return "\n".join([*lines, *dict.fromkeys(note for mag in self.mags for note in mag.notes)])


def estimate_conversion(
    jobs: Sequence[Import | Rechunk], exports: Sequence[Export], pyramids: Sequence[str], workers: int
) -> ConversionPlan:  # fmt: skip
    """Tell what a conversion will take."""
    return ConversionPlan((*(_of_job(job) for job in jobs), *(_of_export(export) for export in exports)), tuple(pyramids), workers)


def _of_job(job: Import | Rechunk) -> ConvertedMag:
    source: Any = job.source if isinstance(job, Import) else job.volume
    plan: Any = job.plan
    target, staged = job.target, job.staged
    made = job.job()
    shards = made.tallies[0].expected
    joins = 0 if plan.holds_whole(target.shard_shape) else shards
    regions = made.num_tasks - joins
    share = regions / max(1, count_cells(plan.box, plan.region_shape))
    voxel_nbytes = int(plan.box.volume * source.num_channels * source.dtype.itemsize * share)
    voxel_nbytes_out = int(plan.box.volume * target.num_channels * target.dtype.itemsize * share)
    chunks = count_cells(plan.box, target.chunk_shape)
    files = target.most_files(shards, math.ceil(chunks * share))
    copies = not isinstance(job, Import) and not job.decodes  # then the sample only tells how much is stored
    occupied = source.occupied(plan.region_shape) if copies else plan.occupied(source.occupied(plan.source_cell_shape))
    ratio, seconds_per_byte = _sampled(source, plan, target, occupied)
    nbytes = target.expected_nbytes(shards, voxel_nbytes_out, 1.0 if ratio is None else ratio)
    notes = (*(job.notes if isinstance(job, Import) else ()), *space_problems(staged.parent, nbytes * (2 if joins else 1), files), *refusals_of(staged))
    seconds = (0 if copies else voxel_nbytes * seconds_per_byte * OVERHEAD) + SECONDS_PER_TASK * made.num_tasks
    return ConvertedMag(
        staged.folders[0], plan.box.size, regions, plan.region_shape, joins, files, nbytes, voxel_nbytes, BASE_NBYTES + staged.task_nbytes, seconds, notes,
        target.shard_shape,
    )  # fmt: skip


def _of_export(export: Export) -> ConvertedMag:
    box, source = export.form.box, export.source
    nbytes = box.volume * source.num_channels * source.dtype.itemsize
    shape = (box.size[0], box.size[1], 1)
    return ConvertedMag(export.target, box.size, box.size[2], shape, 0, 1 if export.is_file else box.size[2], nbytes, nbytes, BASE_NBYTES, 0.0)


def _sampled(source: Any, plan: Any, target: Any, occupied: CellMap) -> tuple[float | None, float]:
    """Read and encode a few bricks of regions with data: stored bytes per voxel byte, None where all are zero, and seconds per voxel byte that is read."""
    regions = list(islice(plan.regions(occupied), _LOOKED_AT_REGIONS))
    stored = read = made = 0
    seconds, is_first = 0.0, True  # the first brick compiles and warms up
    for region in [*regions[:1], *regions[:: max(1, len(regions) // _SAMPLED_REGIONS)]]:
        box = _middle_brick(plan, region)
        started = time.perf_counter()
        voxels, decoded = _read(source, box)
        nbytes = target.encoded_nbytes(voxels, box.topleft)
        elapsed = time.perf_counter() - started
        if is_first:
            is_first = False
            continue
        stored, made = stored + nbytes, made + (voxels.nbytes if nbytes else 0)
        seconds, read = seconds + elapsed, read + decoded
    return stored / made if stored else None, seconds / max(1, read)


def _middle_brick(plan: Any, region: Vec3) -> BoundingBox:
    """Give the brick in the middle of a region."""
    box = plan.region_box(region)
    x, y, z = (cells[len(cells) // 2] for cells in cell_range(box, plan.brick_shape))
    return cell_box((x, y, z), plan.brick_shape, plan.box).intersection(plan.box)


def _read(source: Any, box: BoundingBox) -> tuple[npt.NDArray[Any], int]:
    """Read a box, and tell how many bytes were decoded for it; of sections as many as there is time for, which then stand for the others."""
    voxels = np.zeros((source.num_channels, *box.size), source.dtype)
    if source.chunk_shape[2] != 1:
        source.read_into(voxels, box.topleft)
        return voxels, voxels.nbytes
    x, y, first = box.topleft
    done, until = 0, time.perf_counter() + _SAMPLED_SECONDS
    while done < box.size[2] and (not done or time.perf_counter() < until):
        source.read_into(voxels[:, :, :, done : done + 1], (x, y, first + done))
        done += 1
    for z in range(done, box.size[2]):
        voxels[:, :, :, z] = voxels[:, :, :, z % done]
    width, height = (min(n, m) for n, m in zip(source.chunk_shape[:2], source.box.size[:2], strict=True))
    return voxels, done * max(width * height, box.size[0] * box.size[1]) * source.num_channels * source.dtype.itemsize
