"""Estimates of pyramids and conversions before they run: tasks, files, bytes, memory and time, from
the plan and a small timed sample of the data."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import ExistsError, LockedError
from wkwdask.geometry.grid import cell_range, clipped_cell
from wkwdask.model.summary import Card, counted, format_nbytes, html_table
from wkwdask.model.volume import voxel_nbytes
from wkwdask.plans.cells import cell_map, count_cells, marked_cells, project_cells
from wkwdask.runs.space import free_nbytes, space_problems
from wkwdask.store.paths import is_bucket, is_zipped
from wkwdask.verbs.export import Export
from wkwdask.verbs.image_import import Import
from wkwdask.verbs.pyramid_sample import SAMPLED_REGIONS, Sample, sample_pyramid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.plans.cells import CellMap
    from wkwdask.plans.pyramid import Pass
    from wkwdask.runs.staged import StagedJob
    from wkwdask.verbs.pyramid import Pyramid
    from wkwdask.verbs.rechunk import Rechunk

_BASE_NBYTES = 130 << 20  # Python, numpy and the compiled kernels, as measured
_OVERHEAD = 1.25  # reading, writing and publishing beside the sampled work
_SECONDS_PER_TASK = 0.005
_MAX_REGIONS_LISTED = 1000
_SECTION_SECONDS = 1.0  # for the sections of one brick
_FEW_REGIONS = 1 << 20
_JOB_WRITES, _JOB_READS = 25, 12  # in a bucket beside those of the files, as counted
# list prices of S3 and Google in 2026, in regions of the USA; Azure is alike
_USD_PER_1000_WRITES, _USD_PER_1000_READS = 0.005, 0.0004


class Estimate(Card):
    """Base of estimates: a list of mags, and what they need in total."""

    __slots__ = ()

    mags: tuple[Any, ...]
    tasks: int
    workers: int
    seconds: float
    memory_nbytes: int
    free_nbytes: int
    scratch_nbytes: int

    @abstractmethod
    def _reads(self) -> str:
        """Describe what is read."""

    def _tables(self) -> str:
        rows = [(mag.folder, f"{mag.files:,}", format_nbytes(mag.nbytes)) for mag in self.mags]
        return html_table(("mag", "files, at most", "bytes, about"), rows) + html_table(
            (), self._totals().items()
        )

    @property
    def files(self) -> int:
        """Files to write, at most."""
        return sum(mag.files for mag in self.mags)

    @property
    def nbytes_out(self) -> int:
        """Estimated bytes to write."""
        return sum(mag.nbytes for mag in self.mags)

    @property
    def requests(self) -> tuple[int, int]:
        """Estimated requests that write and that read in the bucket of the result, without those
        for the source."""
        return _JOB_WRITES + self.files + self.tasks // 1000, _JOB_READS

    def _totals(self) -> dict[str, str]:
        """Describe what is read, written and needed; without memory and time, if none was
        sampled."""
        scratch, needed = self.scratch_nbytes, format_nbytes(self.nbytes_out + self.scratch_nbytes)
        totals = {
            "reads": self._reads(),
            "writes": files_text(self.files, self.nbytes_out)
            + (f"; sets aside up to about {format_nbytes(scratch)}" if scratch else ""),
        }
        place = self.mags[0].folder if self.mags else ""
        if is_bucket(place) and not is_zipped(place):  # a zip is first made on a disk
            writes, reads = self.requests
            usd = (writes * _USD_PER_1000_WRITES + reads * _USD_PER_1000_READS) / 1000
            price = f"{usd:,.2f} USD" if usd >= 0.01 else "less than 0.01 USD"
            totals["requests"] = (
                f"about {writes:,} that write and {reads:,} that read in the bucket of the result: "
                f"{price} at {_USD_PER_1000_WRITES} and {_USD_PER_1000_READS} USD per 1,000"
            )
        else:
            totals["space"] = f"about {needed} needed, {format_nbytes(self.free_nbytes)} free"
        if self.seconds:
            totals["memory"] = f"about {format_nbytes(self.memory_nbytes)} per worker of one thread"
            totals["time"] = (
                f"about {_format_duration(self.seconds)} in {counted(self.tasks, 'task')} on "
                f"{counted(self.workers, 'worker')} like this machine's cores"
            )
        return totals

    def _aligned_totals(self) -> list[str]:
        totals = self._totals()
        width = max(map(len, totals)) + 1
        return [f"{name:<{max(9, width)}}{text}" for name, text in totals.items()]


def files_text(files: int, nbytes: int) -> str:
    return f"up to {counted(files, 'file')}, about {format_nbytes(nbytes)}"


def _regions_text(entry: PassPlan | ConvertedMag, unit: str = "") -> str:
    """Describe the tasks of a pass or mag."""
    joins = f", up to {counted(entry.joins, 'join')}" if entry.joins else ""
    return f"{counted(entry.regions, 'region')} of {_shape_text(entry.region_shape)}{unit}{joins}"


def _shape_text(shape: Vec3) -> str:
    return " x ".join(map(str, shape))


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
class PyramidPlan(Estimate):
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
    tasks: int
    """Number of tasks, at most."""
    workers: int
    """Tasks that run at once."""
    seconds: float
    """Estimated wall time, from work timed on a sample on this machine."""
    free_nbytes: int
    """Free bytes of the disk."""
    notes: tuple[str, ...] = ()
    """Warnings."""

    def _drawn(self) -> Iterable[str]:
        return [self.source]

    def __str__(self) -> str:
        if not self.mags:
            return f"{self.source}: is already the coarsest: nothing to do"
        lines = [f"pyramid of {self.source}, by {self.method}, stored as {self.stored_as}"]
        lines += [
            f"  mag {entry.reads} -> {', '.join(entry.makes)}: {_regions_text(entry, ' voxels')}"
            for entry in self.passes
        ]
        lines += [f"  {mag.folder}: {files_text(mag.files, mag.nbytes)}" for mag in self.mags]
        return "\n".join([*lines, *self._aligned_totals(), *self.notes])

    def _reads(self) -> str:
        voxels = f"{format_nbytes(self.voxel_nbytes_in)} of voxels"
        if not self.files_in:  # of a server, whose files are not counted
            return voxels
        return f"{counted(self.files_in, 'file')}, {format_nbytes(self.nbytes_in)} ({voxels})"


def estimate_pyramid(pyramid: Pyramid, workers: int) -> PyramidPlan:
    """Estimate a pyramid from its plan and a timed sample."""
    source, staged = pyramid.source, pyramid.staged
    files_in, nbytes_in = pyramid.source.files.count() or (0, 0)
    sample = sample_pyramid(pyramid) if pyramid.passes else Sample()
    passes: list[PassPlan] = []
    mags: list[MagPlan] = []
    voxel_nbytes_in = scratch = 0
    for number, plan in enumerate(pyramid.passes):
        if number == 0:
            occupied = source.moved(plan.source_shift).files.occupied(plan.source_region_shape)
            voxel_nbytes_in = _occupied_voxels(plan, occupied) * voxel_nbytes(source)
            # without a sample, the compression of the source
            ratio = nbytes_in / max(1, voxel_nbytes_in) if sample.ratio is None else sample.ratio
        else:
            occupied = _regions_with_data(
                pyramid.passes[number - 1],
                plan,
                occupied,
                staged.targets[len(mags) - 1].shard_shape,
            )
        targets = staged.targets[len(mags) : len(mags) + len(plan.levels)]
        reads = staged.targets[len(mags) - 1].box.mag if mags else source.box.mag
        joins = 0
        for level, target in enumerate(targets):
            shards = int(plan.levels[level].occupied_shards(target.shard_shape, occupied).sum())
            chunks = count_cells(target.box, target.chunk_shape)
            files = target.files.max_files(shards, math.ceil(chunks * occupied.mean()))
            compression = sample.ratio_of(len(mags)) or ratio or 1.0
            nbytes = target.files.expected_nbytes(
                shards,
                voxel_nbytes_in // math.prod(source.box.mag.step_to(target.box.mag)),
                compression,
            )
            mags.append(MagPlan(staged.folders[len(mags)], files, nbytes))
            if shards and not plan.writes_whole_shards(level, target.shard_shape):
                joins += shards
                scratch += 2 * nbytes // shards
        passes.append(
            PassPlan(
                reads.name,
                tuple(target.box.mag.name for target in targets),
                int(occupied.sum()),
                plan.source_region_shape,
                joins,
            )
        )
    tasks = sum(entry.regions + entry.joins for entry in passes)
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
        tasks=tasks,
        workers=workers,
        seconds=(voxel_nbytes_in * sample.seconds_per_byte * _OVERHEAD + _SECONDS_PER_TASK * tasks)
        / workers,
        free_nbytes=free_nbytes(staged.parent),
        notes=(
            *filter(None, [pyramid.placed_as]),
            *space_problems(staged.parent, nbytes_out + scratch, files_out),
            *start_notes(staged),
        ),
    )


def start_notes(staged: StagedJob) -> list[str]:
    """Return the reason why the job could not start now, and the progress of an interrupted one."""
    notes = []
    try:
        staged.check_free()
    except (ExistsError, LockedError, PermissionError) as error:
        notes.append(f"would be refused: {error}")
    done = staged.num_done()
    if done:
        notes.append(f"resumes an interrupted job: {done:,} of its tasks are done")
    return notes


def _regions_with_data(previous: Pass, plan: Pass, occupied: CellMap, shard_shape: Vec3) -> CellMap:
    """Return the map of regions of a pass whose source, made by the previous pass, has data; all
    regions if they are few."""
    level = plan.levels[0]
    if count_cells(level.box, level.region_shape) <= _FEW_REGIONS:
        return cell_map(level.box, level.region_shape, str(level.box), fill=True)
    source_level = previous.levels[-1]
    source_shards = source_level.occupied_shards(shard_shape, occupied)
    first = [cells.start for cells in cell_range(source_level.box, shard_shape)]
    return project_cells(
        source_shards, first, shard_shape, plan.source_box, plan.source_region_shape
    )


def _occupied_voxels(plan: Pass, occupied: CellMap) -> int:
    """Count the source voxels of all regions that have data."""
    box, shape = plan.source_box, np.array(plan.source_region_shape)
    low = (
        marked_cells(occupied)
        + [cells.start for cells in cell_range(box, plan.source_region_shape)]
    ) * shape
    return int(
        (np.minimum(low + shape, box.bottomright) - np.maximum(low, box.topleft)).prod(axis=1).sum()
    )


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
    """Estimate of one new mag, scale or array, or of one export."""

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
    """Estimated time on one thread, from work timed on a sample on this machine; 0 for an export,
    which is not sampled."""
    notes: tuple[str, ...] = ()
    """Warnings."""
    shard_shape: Vec3 | None = None
    """Shape of one shard along x, y, z [voxels], None for an export."""
    path: str = ""
    """Whether stored chunks are copied or decoded, and why; empty for images."""
    source: str = ""
    """Mag, scale or array that is read."""


@dataclass(frozen=True, slots=True)
class ConversionPlan(Estimate):
    """Estimate of a conversion."""

    mags: tuple[ConvertedMag, ...]
    """Mags in the order in which they are made."""
    pyramids: tuple[str, ...]
    """Mags above which a pyramid is built afterwards."""
    workers: int
    """Tasks that run at once."""
    free_nbytes: int
    """Free bytes of the disk of the first mag."""

    tasks: int
    """Number of tasks, at most."""
    seconds: float
    """Estimated wall time."""
    memory_nbytes: int
    """Estimated peak memory of a worker with one thread."""
    scratch_nbytes = 0

    def placed(self, place_of: Callable[[str], str]) -> ConversionPlan:
        """Return the plan with the places of its mags changed by a function."""
        mags = tuple(replace(mag, folder=place_of(mag.folder)) for mag in self.mags)
        return replace(self, mags=mags, pyramids=tuple(map(place_of, self.pyramids)))

    def _drawn(self) -> Iterable[str]:
        return [mag.source for mag in self.mags]

    def __str__(self) -> str:
        lines = []
        for mag in self.mags:
            shards = f", shards of {_shape_text(mag.shard_shape)}" if mag.shard_shape else ""
            lines.append(
                f"{mag.folder}: {_shape_text(mag.size)} voxels{shards}, {_regions_text(mag)}, "
                f"{files_text(mag.files, mag.nbytes)}"
            )
            lines += [f"  {mag.path}"] if mag.path else []
        lines += self._aligned_totals()
        lines += [
            f"then the pyramid of {mag}; run wkwdask pyramid --dry-run on it once it exists for an "
            "estimate"
            for mag in self.pyramids
        ]
        return "\n".join([*lines, *dict.fromkeys(note for mag in self.mags for note in mag.notes)])

    def _reads(self) -> str:
        return f"{format_nbytes(sum(mag.voxel_nbytes_in for mag in self.mags))} of voxels"


def estimate_conversion(
    jobs: Sequence[Import | Rechunk | Export],
    pyramids: Sequence[str],
    workers: int,
) -> ConversionPlan:
    """Estimate a conversion from its plans and timed samples."""
    mags = tuple(
        _estimate_export(job) if isinstance(job, Export) else _estimate_job(job) for job in jobs
    )
    return ConversionPlan(
        mags,
        tuple(pyramids),
        workers,
        free_nbytes(mags[0].folder) if mags else 0,
        tasks=sum(mag.regions + mag.joins for mag in mags),
        seconds=sum(mag.seconds for mag in mags) / workers,
        memory_nbytes=max((mag.memory_nbytes for mag in mags), default=0),
    )


def _estimate_job(planned: Import | Rechunk) -> ConvertedMag:
    source: Any = planned.source if isinstance(planned, Import) else planned.volume
    plan: Any = planned.plan
    target, staged = planned.target, planned.staged
    job = planned.job()
    shards = job.tallies[0].expected
    joins = 0 if plan.contains_whole_shards(target.shard_shape) else shards
    regions = job.num_tasks - joins
    share = regions / max(1, count_cells(plan.box, plan.region_shape))
    voxels = plan.box.volume * share
    nbytes_in, nbytes_out = (int(voxels * voxel_nbytes(each)) for each in (source, target))
    files = target.files.max_files(
        shards, math.ceil(count_cells(plan.box, target.chunk_shape) * share)
    )
    copies = not isinstance(planned, Import) and not planned.decodes
    stored = source.files.count() if copies else None
    if stored is not None:
        nbytes, seconds = stored[1], 0.0
    else:
        occupied = (
            source.files.occupied(plan.region_shape)
            if copies
            else plan.occupied(source.files.occupied(plan.source_cell_shape))
        )
        sample = _sample_copy(source, plan, target, occupied)
        nbytes = target.files.expected_nbytes(
            shards, nbytes_out, 1.0 if sample.ratio is None else sample.ratio
        )
        # copied chunks are not encoded, so the sample only estimates the size
        seconds = 0.0 if copies else nbytes_in * sample.seconds_per_byte * _OVERHEAD
    notes = (
        *planned.remarks,
        *space_problems(staged.parent, nbytes * (2 if joins else 1), files),
        *start_notes(staged),
    )
    seconds += _SECONDS_PER_TASK * job.num_tasks
    return ConvertedMag(
        staged.folders[0],
        plan.box.size,
        regions,
        plan.region_shape,
        joins,
        files,
        nbytes,
        nbytes_in,
        _BASE_NBYTES + staged.task_nbytes,
        seconds,
        notes,
        target.shard_shape,
        "" if isinstance(planned, Import) else _path_of(planned),
        source.name,
    )


def _path_of(planned: Rechunk) -> str:
    return (
        f"decodes and encodes chunks: {planned.why_decoded}"
        if planned.decodes
        else "copies stored chunks without decoding: both encode them alike"
    )


def _estimate_export(export: Export) -> ConvertedMag:
    box, source, output = export.form.box, export.source, export.output()
    nbytes = voxel_nbytes(source, box)
    region_shape: Vec3 = (*box.size[:2], 1) if output is None else output.cell_shape
    num_regions = box.size[2] if output is None else output.num_cells
    return ConvertedMag(
        export.target,
        box.size,
        num_regions,
        region_shape,
        0,
        1 if output is None else output.num_files,
        nbytes,
        nbytes,
        _BASE_NBYTES,
        0.0,
        (*export.remarks, *start_notes(export.staged)),
        source=source.name,
    )


def _sample_copy(source: Any, plan: Any, target: Any, occupied: CellMap) -> Sample:
    """Read and encode the middle bricks of a few regions with data, without writing them."""
    regions = list(islice(plan.regions(occupied), _MAX_REGIONS_LISTED))
    sample = Sample()
    for number, region in enumerate(
        [*regions[:1], *regions[:: max(1, len(regions) // SAMPLED_REGIONS)]]
    ):
        box = _middle_brick(plan, region)
        started = time.perf_counter()
        voxels, nbytes_in = _read(source, box)
        stored_nbytes = target.encoder.encoded_nbytes(voxels, box.topleft)
        seconds = time.perf_counter() - started
        if number == 0:
            continue  # the first brick compiles kernels; it is read again as the next one
        sample.seconds += seconds
        sample.nbytes_in += nbytes_in
        sample.stored_nbytes += stored_nbytes
        sample.encoded_nbytes += voxels.nbytes if stored_nbytes else 0
    return sample


def _middle_brick(plan: Any, region: Vec3) -> BoundingBox:
    """Return the brick in the middle of a region."""
    box = plan.region_box(region)
    x, y, z = (cells[len(cells) // 2] for cells in cell_range(box, plan.brick_shape))
    return clipped_cell((x, y, z), plan.brick_shape, plan.box)


def _read(source: Any, box: BoundingBox) -> tuple[AnyArray, int]:
    """Read a box; return its voxels and the number of decoded bytes. If time is short, only the
    first sections are read, and repeated for the others."""
    voxels = np.zeros((source.num_channels, *box.size), source.dtype)
    if source.chunk_shape[2] != 1:
        source.read_into(voxels, box.topleft)
        return voxels, voxels.nbytes
    x, y, first = box.topleft
    num_read, end = 0, time.perf_counter() + _SECTION_SECONDS
    while num_read < box.size[2] and (not num_read or time.perf_counter() < end):
        source.read_into(voxels[:, :, :, num_read : num_read + 1], (x, y, first + num_read))
        num_read += 1
    for z in range(num_read, box.size[2]):
        voxels[:, :, :, z] = voxels[:, :, :, z % num_read]
    width, height = (
        min(n, m) for n, m in zip(source.chunk_shape[:2], source.box.size[:2], strict=True)
    )
    read_vx = num_read * max(width * height, box.size[0] * box.size[1])
    return voxels, read_vx * voxel_nbytes(source)
