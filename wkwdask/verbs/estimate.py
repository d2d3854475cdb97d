"""Estimates of pyramids and conversions before they run: tasks, files, bytes, memory and time, from the plan and a small timed sample of the data."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import ExistsError, LockedError
from wkwdask.geometry.grid import cell_box, cell_range
from wkwdask.plans.cells import cell_map, count_cells, marked_cells, project_cells
from wkwdask.runs.report import counted, format_nbytes, space_problems
from wkwdask.streams.pyramid import PyramidStream
from wkwdask.verbs.image_import import Import

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Volume
    from wkwdask.plans.cells import CellMap
    from wkwdask.plans.pyramid import Pass
    from wkwdask.runs.staged import StagedMags
    from wkwdask.verbs.export import Export
    from wkwdask.verbs.pyramid import Pyramid
    from wkwdask.verbs.rechunk import Rechunk

_SAMPLED_REGIONS = 3
_SAMPLED_BRICKS = 2
_SAMPLED_GROUP = 16
_BASE_NBYTES = 130 << 20  # Python, numpy and the compiled kernels, as measured
_OVERHEAD = 1.25  # reading, writing and publishing beside the sampled work
_SECONDS_PER_TASK = 0.005
_MAX_REGIONS_LISTED = 1000
_SAMPLED_SECONDS = 1.0  # for the sections of one brick
_FEW_REGIONS = 1 << 20


class _Totals:
    """Base of plans with a list of mags."""

    __slots__ = ()

    mags: tuple[Any, ...]

    @property
    def files(self) -> int:
        """Files to write, at most."""
        return sum(mag.files for mag in self.mags)

    @property
    def nbytes_out(self) -> int:
        """Estimated bytes to write."""
        return sum(mag.nbytes for mag in self.mags)


@dataclass(frozen=True, slots=True)
class PassPlan:
    """One pass: a mag is read once, and coarser mags are made from it."""

    reads: str
    """Mag that is read."""
    makes: tuple[str, ...]
    """Mags that are made."""
    regions: int
    """Tasks that stream a region."""
    region_shape: Vec3
    """Box of one region along x, y, z [voxels of the mag that is read]."""
    joins: int
    """Tasks that join the parts of a shard, at most."""


@dataclass(frozen=True, slots=True)
class MagPlan:
    """One mag to make."""

    folder: str
    files: int
    """Files, at most."""
    nbytes: int
    """Estimated size of the files."""


@dataclass(frozen=True, slots=True)
class PyramidPlan(_Totals):
    """Estimate of a pyramid."""

    source: str
    """Folder of the finest mag."""
    method: str
    """Reduction of a window to a voxel."""
    stored_as: str
    """Block, file and compression of the new mags."""
    passes: tuple[PassPlan, ...]
    mags: tuple[MagPlan, ...]
    files_in: int
    """Files to read."""
    nbytes_in: int
    """Size of the files to read, estimated from a sample."""
    voxel_nbytes_in: int
    """Decoded bytes of the regions that have files."""
    scratch_nbytes: int
    """Estimated bytes of temporary parts at a time, at most."""
    memory_nbytes: int
    """Estimated peak memory of a worker with one thread."""
    workers: int
    """Tasks that run at once."""
    seconds: float
    """Estimated wall time, from work timed on a sample on this machine."""
    notes: tuple[str, ...] = ()
    """Warnings."""

    @property
    def tasks(self) -> int:
        """Number of tasks, at most."""
        return sum(one.regions + one.joins for one in self.passes)

    def __str__(self) -> str:
        if not self.mags:
            return f"{self.source}: is already the coarsest: nothing to do"
        lines = [f"pyramid of {self.source}, by {self.method}, stored as {self.stored_as}"]
        for one in self.passes:
            shape = " x ".join(map(str, one.region_shape))
            lines.append(f"  mag {one.reads} -> {', '.join(one.makes)}: {counted(one.regions, 'region')} of {shape} voxels, up to {counted(one.joins, 'join')}")
        lines.extend(f"  {mag.folder}: up to {counted(mag.files, 'file')}, about {format_nbytes(mag.nbytes)}" for mag in self.mags)
        lines.append(f"reads    {counted(self.files_in, 'file')}, {format_nbytes(self.nbytes_in)} ({format_nbytes(self.voxel_nbytes_in)} of voxels)")
        lines.append(
            f"writes   up to {counted(self.files, 'file')}, about {format_nbytes(self.nbytes_out)}; sets aside up to about {format_nbytes(self.scratch_nbytes)}"
        )
        lines.append(f"memory   about {format_nbytes(self.memory_nbytes)} per worker of one thread")
        lines.append(
            f"time     about {_format_duration(self.seconds)} in {counted(self.tasks, 'task')} on {counted(self.workers, 'worker')} like this machine's cores"
        )
        return "\n".join([*lines, *self.notes])


def estimate_pyramid(pyramid: Pyramid, workers: int) -> PyramidPlan:
    """Estimate a pyramid from its plan and a timed sample."""
    source, staged = pyramid.source, pyramid.staged
    files_in, nbytes_in = pyramid.source.count_files() or (0, 0)
    ratio, seconds_per_byte = _sample_work(pyramid) if pyramid.passes else (None, 0.0)
    passes: list[PassPlan] = []
    mags: list[MagPlan] = []
    voxel_nbytes_in = scratch = 0
    for number, one in enumerate(pyramid.passes):
        if number == 0:
            occupied = source.moved(one.source_shift).occupied(one.source_region_shape)
            voxel_nbytes_in = _occupied_voxels(one, occupied) * _voxel_nbytes(source)
            if ratio is None:  # no sample: assume the compression of the source
                ratio = nbytes_in / max(1, voxel_nbytes_in)
        else:
            occupied = _made_regions(pyramid.passes[number - 1], one, occupied, staged.targets[len(mags) - 1].shard_shape)
        targets = staged.targets[len(mags) : len(mags) + len(one.levels)]
        reads = staged.targets[len(mags) - 1].box.mag if mags else source.box.mag
        joins = 0
        for level, target in enumerate(targets):
            shards = int(one.levels[level].occupied_shards(target.shard_shape, occupied).sum())
            chunks = count_cells(target.box, target.chunk_shape)
            files = target.max_files(shards, math.ceil(chunks * occupied.mean()))
            nbytes = target.expected_nbytes(shards, voxel_nbytes_in // math.prod(source.box.mag.step_to(target.box.mag)), ratio or 1.0)
            mags.append(MagPlan(staged.folders[len(mags)], files, nbytes))
            if shards and not one.writes_whole_shards(level, target.shard_shape):
                joins += shards
                scratch += 2 * nbytes // shards
        passes.append(PassPlan(reads.name, tuple(target.box.mag.name for target in targets), int(occupied.sum()), one.source_region_shape, joins))
    tasks = sum(one.regions + one.joins for one in passes)
    nbytes_out, files_out = sum(mag.nbytes for mag in mags), sum(mag.files for mag in mags)
    return PyramidPlan(
        source=source.name,
        method=pyramid.method + (" ignoring zeros" if pyramid.ignore_zero else ""),
        stored_as=pyramid.stored_as,
        passes=tuple(passes),
        mags=tuple(mags),
        files_in=files_in,
        nbytes_in=nbytes_in,
        voxel_nbytes_in=voxel_nbytes_in,
        scratch_nbytes=scratch,
        memory_nbytes=_BASE_NBYTES + staged.task_nbytes,
        workers=workers,
        seconds=(voxel_nbytes_in * seconds_per_byte * _OVERHEAD + _SECONDS_PER_TASK * tasks) / workers,
        notes=(*space_problems(staged.parent, nbytes_out + scratch, files_out), *_refusals_of(staged)),
    )


def _refusals_of(staged: StagedMags) -> list[str]:
    """Return the reasons why the job could not start now, and the progress of an interrupted one."""
    notes = []
    try:
        staged.check_free()
    except (ExistsError, LockedError, PermissionError) as error:
        notes.append(f"would be refused: {error}")
    done = staged.num_done()
    if done:
        notes.append(f"resumes an interrupted job: {done:,} of its tasks are done")
    return notes


def _sample_work(pyramid: Pyramid) -> tuple[float | None, float]:
    """Run a few bricks of the first pass without writing; return stored bytes per voxel byte (None if all are zero) and seconds per voxel byte read."""
    plan, targets = pyramid.passes[0], pyramid.staged.targets
    source = pyramid.source.moved(plan.source_shift)
    stream = PyramidStream(plan, pyramid.method, source.dtype, source.num_channels, ignore_zero=pyramid.ignore_zero)
    regions = list(plan.regions(source.occupied(plan.source_region_shape)))
    bricks = [
        brick
        for region in regions[:: max(1, len(regions) // _SAMPLED_REGIONS)]
        for brick in _from_the_middle(list(plan.bricks(region)), plan.source_bricks_per_brick)
    ]
    voxel_nbytes = stored = made = 0
    seconds, sampled = 0.0, -1  # the first brick compiles kernels and is not counted
    for brick in bricks:
        started = time.perf_counter()
        nonzero = source.read_into(stream.source_view(brick), stream.source_box(brick).topleft, fill_zeros=False)
        encoded = [
            (targets[done.level].encoded_nbytes(done.voxels, done.topleft), done.voxels.nbytes, done.level)
            for done in stream.push(brick, nonzero == 0)
            if done.voxels is not None
        ]
        if not nonzero:
            continue
        if sampled >= 0:
            seconds += time.perf_counter() - started
            voxel_nbytes += stream.source_box(brick).volume * _voxel_nbytes(source)
        stored += sum(nbytes for nbytes, _, level in encoded if level == 0)
        made += sum(nbytes for _, nbytes, level in encoded if level == 0)
        sampled += 1
    stream.close()
    return stored / made if made else None, seconds / max(1, voxel_nbytes)


def _from_the_middle(bricks: Sequence[Vec3], group: int) -> Sequence[Vec3]:
    """Return a few neighbouring source bricks from the middle: those of one brick of the first mag, or at least as many as are worth timing."""
    count = max(_SAMPLED_BRICKS, min(group, _SAMPLED_GROUP))
    first = max(0, (len(bricks) - count) // 2) // group * group
    return bricks[first : first + count]


def _voxel_nbytes(volume: Volume) -> int:
    return volume.dtype.itemsize * volume.num_channels


def _made_regions(before: Pass, one: Pass, occupied: CellMap, shard_shape: Vec3) -> CellMap:
    """Return the map of regions of a pass whose source, made by the pass before, has data; if they are too many to mark, all of them."""
    level = one.levels[0]
    if count_cells(level.box, level.region_shape) <= _FEW_REGIONS:
        return cell_map(level.box, level.region_shape, str(level.box), fill=True)
    number = len(before.levels) - 1
    made = before.levels[number].occupied_shards(shard_shape, occupied)
    first = [cells.start for cells in cell_range(before.levels[number].box, shard_shape)]
    return project_cells(made, first, shard_shape, one.source_box, one.source_region_shape)


def _occupied_voxels(one: Pass, occupied: CellMap) -> int:
    """Count the source voxels of all regions that have data."""
    box, shape = one.source_box, np.array(one.source_region_shape)
    low = (marked_cells(occupied) + [cells.start for cells in cell_range(box, one.source_region_shape)]) * shape
    return int((np.minimum(low + shape, box.bottomright) - np.maximum(low, box.topleft)).prod(axis=1).sum())


def _format_duration(seconds: float) -> str:
    """Format a time for people.

    Examples
    --------
    >>> _format_duration(7.2), _format_duration(4000), _format_duration(200000)
    ('7 s', '1 h 7 min', '2 d 7 h')
    """
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


# ----------------------------------------------------------------------------- conversions


@dataclass(frozen=True, slots=True)
class ConvertedMag:
    """Estimate of one mag, scale or array to make, or of one export."""

    folder: str
    size: Vec3
    """Voxels along x, y, z."""
    regions: int
    """Tasks that read and write a region."""
    region_shape: Vec3
    """Box of one region along x, y, z [voxels]."""
    joins: int
    """Tasks that join the parts of a shard, at most."""
    files: int
    """Files, at most."""
    nbytes: int
    """Estimated size of the files; for an export, bytes of the voxels."""
    voxel_nbytes_in: int
    """Estimated decoded bytes of the regions that have files."""
    memory_nbytes: int
    """Estimated peak memory of a worker with one thread."""
    seconds: float
    """Estimated time on one thread, from work timed on a sample on this machine; 0 for an export, which is not sampled."""
    notes: tuple[str, ...] = ()
    """Warnings."""
    shard_shape: Vec3 | None = None
    """Shape of one shard along x, y, z [voxels], None for an export."""


@dataclass(frozen=True, slots=True)
class ConversionPlan(_Totals):
    """Estimate of a conversion."""

    mags: tuple[ConvertedMag, ...]
    """Mags in the order in which they are made."""
    pyramids: tuple[str, ...]
    """Mags above which a pyramid is built afterwards."""
    workers: int
    """Tasks that run at once."""

    @property
    def tasks(self) -> int:
        """Number of tasks, at most."""
        return sum(mag.regions + mag.joins for mag in self.mags)

    @property
    def seconds(self) -> float:
        """Estimated wall time."""
        return sum(mag.seconds for mag in self.mags) / self.workers

    def __str__(self) -> str:
        lines = []
        for mag in self.mags:
            size, shape = (" x ".join(map(str, lengths)) for lengths in (mag.size, mag.region_shape))
            joins = f", up to {counted(mag.joins, 'join')}" if mag.joins else ""
            files = f"up to {counted(mag.files, 'file')}, about {format_nbytes(mag.nbytes)}"
            shards = "" if mag.shard_shape is None else f", shards of {' x '.join(map(str, mag.shard_shape))}"
            lines.append(f"{mag.folder}: {size} voxels{shards}, {counted(mag.regions, 'region')} of {shape}{joins}, {files}")
        lines.append(f"reads    {format_nbytes(sum(mag.voxel_nbytes_in for mag in self.mags))} of voxels")
        lines.append(f"writes   up to {counted(self.files, 'file')}, about {format_nbytes(self.nbytes_out)}")
        if any(mag.seconds for mag in self.mags):
            lines.append(f"memory   about {format_nbytes(max(mag.memory_nbytes for mag in self.mags))} per worker of one thread")
            lines.append(f"time     about {_format_duration(self.seconds)} in {self.tasks:,} tasks on {self.workers} workers like this machine's cores")
        lines += [f"then the pyramid of {place}; run wkwdask pyramid --dry-run on it once it exists for an estimate" for place in self.pyramids]
        return "\n".join([*lines, *dict.fromkeys(note for mag in self.mags for note in mag.notes)])


def estimate_conversion(jobs: Sequence[Import | Rechunk], exports: Sequence[Export], pyramids: Sequence[str], workers: int) -> ConversionPlan:
    """Estimate a conversion from its plans and timed samples."""
    return ConversionPlan((*(_of_job(job) for job in jobs), *(_of_export(export) for export in exports)), tuple(pyramids), workers)


def _of_job(job: Import | Rechunk) -> ConvertedMag:
    source: Any = job.source if isinstance(job, Import) else job.volume
    plan: Any = job.plan
    target, staged = job.target, job.staged
    made = job.job()
    shards = made.tallies[0].expected
    joins = 0 if plan.contains_whole_shards(target.shard_shape) else shards
    regions = made.num_tasks - joins
    share = regions / max(1, count_cells(plan.box, plan.region_shape))
    voxel_nbytes = int(plan.box.volume * source.num_channels * source.dtype.itemsize * share)
    voxel_nbytes_out = int(plan.box.volume * target.num_channels * target.dtype.itemsize * share)
    chunks = count_cells(plan.box, target.chunk_shape)
    files = target.max_files(shards, math.ceil(chunks * share))
    copies = not isinstance(job, Import) and not job.decodes  # spliced chunks are not encoded, so the sample only estimates the size
    occupied = source.occupied(plan.region_shape) if copies else plan.occupied(source.occupied(plan.source_cell_shape))
    ratio, seconds_per_byte = _sampled(source, plan, target, occupied)
    nbytes = target.expected_nbytes(shards, voxel_nbytes_out, 1.0 if ratio is None else ratio)
    notes = (*(job.notes if isinstance(job, Import) else ()), *space_problems(staged.parent, nbytes * (2 if joins else 1), files), *_refusals_of(staged))
    seconds = (0 if copies else voxel_nbytes * seconds_per_byte * _OVERHEAD) + _SECONDS_PER_TASK * made.num_tasks
    return ConvertedMag(
        staged.folders[0], plan.box.size, regions, plan.region_shape, joins, files, nbytes, voxel_nbytes, _BASE_NBYTES + staged.task_nbytes, seconds, notes,
        target.shard_shape,
    )  # fmt: skip


def _of_export(export: Export) -> ConvertedMag:
    box, source = export.form.box, export.source
    nbytes = box.volume * source.num_channels * source.dtype.itemsize
    shape = (box.size[0], box.size[1], 1)
    return ConvertedMag(export.target, box.size, box.size[2], shape, 0, 1 if export.is_file else box.size[2], nbytes, nbytes, _BASE_NBYTES, 0.0)


def _sampled(source: Any, plan: Any, target: Any, occupied: CellMap) -> tuple[float | None, float]:
    """Read and encode a few bricks of regions with data; return stored bytes per voxel byte (None if all are zero) and seconds per voxel byte read."""
    regions = list(islice(plan.regions(occupied), _MAX_REGIONS_LISTED))
    stored = read = made = 0
    seconds, is_first = 0.0, True  # the first brick compiles kernels and is not counted
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
    """Return the brick in the middle of a region."""
    box = plan.region_box(region)
    x, y, z = (cells[len(cells) // 2] for cells in cell_range(box, plan.brick_shape))
    return cell_box((x, y, z), plan.brick_shape, plan.box).intersection(plan.box)


def _read(source: Any, box: BoundingBox) -> tuple[npt.NDArray[Any], int]:
    """Read a box; return it with the number of decoded bytes. Of sections, as many as time allows; these are repeated for the others."""
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
