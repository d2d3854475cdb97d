"""Planning and job of :func:`wkwdask.build_pyramid`: all coarser mags of an image.

A pass reads one mag once and makes the next few coarser mags. The next pass reads the coarsest of
these.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from wkwdask.errors import ResumeError, UnsupportedError
from wkwdask.formats.opening import (
    SourceSelection,
    aligned_mags,
    default_method,
    image_box,
    target_in,
)
from wkwdask.geometry.bounding_box import counted_from, part_of_array
from wkwdask.geometry.grid import cell_box, cell_range, cells, clipped_cell, is_inside
from wkwdask.geometry.vectors import is_multiple, times
from wkwdask.kernels.window.reduce import BOOL_METHOD, IGNORE_ZERO_METHODS, METHODS
from wkwdask.model.levels import ratio_of
from wkwdask.model.states import FILE_RECORD_COLUMNS, States, digest, grouped_digests
from wkwdask.model.stored_array import StoredArray, by_files
from wkwdask.model.summary import counted
from wkwdask.model.volume import voxel_nbytes
from wkwdask.model.writing.file_buffer import MEMORY_NBYTES
from wkwdask.model.writing.target_image import LevelSpec, NewLevels
from wkwdask.plans.cells import count_cells
from wkwdask.plans.mag_ladder import default_coarsest, mag_ladder, sorted_mags
from wkwdask.plans.pyramid import plan_offset_passes, plan_pass, step_factors
from wkwdask.plans.regions import Tiling
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.job import Result, Task
from wkwdask.runs.parts import BrickWriter, ReceiptCollector, source_changed, states_of_part
from wkwdask.runs.report import Report
from wkwdask.runs.shared_loop import OrderedQueue, share
from wkwdask.runs.space import Size
from wkwdask.runs.staged import settings_of, stage
from wkwdask.store.paths import is_bucket
from wkwdask.store.records import read_file_record
from wkwdask.streams.chunks import decoded_chunks, decodes_chunks
from wkwdask.streams.pyramid import PyramidStream
from wkwdask.verbs.pyramid_sample import sample_pyramid
from wkwdask.verbs.region_job import SourceSpec
from wkwdask.verbs.sources import (
    box_setting,
    check_not_replaced,
    digest_of_cells,
    open_base_level,
    source_fingerprint,
)
from wkwdask.verbs.space import SURE_SHARE, need_of_targets

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.array_types import IntArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.receipts import Receipt
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.plans.cells import CellMap
    from wkwdask.plans.pyramid import Pass
    from wkwdask.runs.parts import BrickPiece
    from wkwdask.runs.space import Need, RunTasks
    from wkwdask.runs.staged import StagedMags
    from wkwdask.streams.pyramid import Brick


_TILE_NBYTES = 4 << 20  # of source voxels: they are reduced while they are in the cache


@dataclass(frozen=True, slots=True)
class RegionSpec(SourceSpec):
    """Task that streams one region of a pass and writes its part of every mag."""

    source: Volume
    plan: Pass
    targets: tuple[TargetArray, ...]
    """Arrays to write, one per mag of the pass."""
    method: str
    ignore_zero: bool
    region: Vec3
    first_level: int = 0
    """Index in the whole pyramid of the first mag of the pass."""

    def task(self) -> Task:
        return Task(
            f"region {self.region} of {self.source.name}",
            "region {} {},{},{}".format(self.first_level, *self.region),
            RegionSpec.run,
            self,
        )

    def states(self) -> States:
        return self.source.files.shard_states(self.plan.source_region(self.region))

    def run(self) -> Result:
        """Read the region brick by brick, and write the bricks of each mag once they are
        complete."""
        # source bricks -> stream -> bricks of mag 2, 4, 8... -> one writer per mag. A writer keeps
        # a shard open until the last brick of it has come. before reading: a file that changes
        # during the read then fails the check on resume
        states = self.states()
        stream = PyramidStream(
            self.plan,
            self.method,
            self.source.dtype,
            self.source.num_channels,
            ignore_zero=self.ignore_zero,
        )
        with contextlib.closing(stream), contextlib.ExitStack() as open_writers:
            writers = [
                open_writers.enter_context(self._writer(level))
                for level in range(len(self.targets))
            ]
            self._write_bricks(self._chunk_pusher(stream) or self._tile_pusher(stream), writers)
            written: list[list[Receipt]] = [[] for _ in writers]
            share(range(len(writers)), lambda level: written[level].extend(writers[level].close()))
            receipts = [
                (self.first_level + level, receipt)
                for level, its_receipts in enumerate(written)
                for receipt in its_receipts
            ]
        sources = self._sources_of_shards(states)
        return Result(
            tuple(
                (
                    n,
                    replace(receipt, sources=sources.get(receipt.shard, 0))
                    if n == self.first_level
                    else receipt,
                )
                for n, receipt in receipts
            ),
            digest(states),
            nbytes_in=voxel_nbytes(self.source, self.plan.source_region(self.region)),
        )

    def _write_bricks(
        self, push: Callable[[Vec3], Iterator[Brick]], writers: Sequence[BrickWriter]
    ) -> None:
        """Read, reduce and encode source bricks on all threads that have no other task; the writers
        take the results in order."""
        ordered: OrderedQueue[tuple[int, list[BrickPiece]]] = OrderedQueue(
            lambda brick: writers[brick[0]].add(brick[1])
        )

        def work(source_brick: Vec3) -> None:
            try:
                for brick in push(source_brick):
                    # Coarser bricks are few, and at the end all are: then other threads may wait
                    # for one, and share its encoding.
                    pieces = writers[brick.level].encode(
                        brick.index, brick.voxels, is_shared=brick.level > 0 or ordered.is_last
                    )
                    ordered.add((brick.level, brick.index), (brick.level, pieces))
            except BaseException:
                ordered.give_up()
                raise

        share(ordered.expecting(self.plan.completions(self.region)), work)

    def _tile_pusher(self, stream: PyramidStream) -> Callable[[Vec3], Iterator[Brick]]:
        """Return a function that pushes a brick tile by tile."""
        shape = self._tile_shape()

        def tiles(box: BoundingBox) -> Iterator[tuple[Vec3, npt.NDArray[Any]]]:
            memory = stream.chunk_memory(shape)
            for cell in cells(box, shape):
                tile = cell_box(cell, shape, box)
                inside = tile.intersection(box)
                if self.source.read_into(
                    part_of_array(memory, inside, tile.topleft), inside.topleft, fill_zeros=False
                ):
                    yield tile.topleft, memory

        def push(brick: Vec3) -> Iterator[Brick]:
            return stream.push_chunks(brick, tiles(stream.source_box(brick)), shape)

        return push

    def _tile_shape(self) -> Vec3:
        """Return the shape of one read: that of a source brick, or for local files a part of it
        that fits the cache of a core and is whole chunks."""
        source, shape = self.source, list(self.plan.source_brick_shape)
        x, y, z = map(math.lcm, source.chunk_shape, self.plan.levels[0].factor)
        steps = x, y, z
        is_aligned = is_multiple(source.origin, steps)
        if isinstance(source, StoredArray) and not source.store.is_remote and is_aligned:
            nbytes_per_voxel = voxel_nbytes(source)
            while math.prod(shape) * nbytes_per_voxel > _TILE_NBYTES:
                axes = [axis for axis in range(3) if shape[axis] % (2 * steps[axis]) == 0]
                if not axes:
                    break
                shape[max(axes, key=lambda axis: (shape[axis], axis))] //= 2
        return shape[0], shape[1], shape[2]

    def _chunk_pusher(self, stream: PyramidStream) -> Callable[[Vec3], Iterator[Brick]] | None:
        """Return a function that pushes a brick chunk by chunk, without a copy of the brick; None
        if chunks do not fit windows and bricks."""
        source = self.source
        if not decodes_chunks(source):
            return None
        shape = source.chunk_shape
        # Chunks must be whole windows, tile a brick, and start at its corner; else a window or a
        # brick would need two chunks.
        if not (
            is_multiple(shape, self.plan.levels[0].factor)
            and is_multiple(self.plan.source_brick_shape, shape)
            and is_multiple(source.origin, shape)
        ):
            return None

        def push(brick: Vec3) -> Iterator[Brick]:
            return stream.push_chunks(
                brick,
                decoded_chunks(source, stream.source_box(brick), stream.chunk_memory(shape)),
                shape,
            )

        return push

    def _writer(self, level: int) -> BrickWriter:
        target = self.targets[level]
        part = None if self.plan.writes_whole_shards(level, target.shard_shape) else self.region
        grid = self.plan.levels[level]
        return BrickWriter(target, grid.brick_shape, part, grid.region_box(self.region))

    def _sources_of_shards(self, states: States) -> dict[Vec3, int]:
        """Return, for each shard of the first mag, the digest of the files that it is made from."""
        level, target = self.plan.levels[0], self.targets[0]
        footprint = times(target.shard_shape, level.factor)
        if is_multiple(level.region_shape, target.shard_shape):
            return grouped_digests(states, self.source.shard_shape, footprint)
        # This region writes parts of shards. A source file that the parts of a shard share counts
        # in one of them alone, so that the sum over the parts is the digest of the whole shard.
        region = self.plan.source_region(self.region)
        return {
            shard: digest(
                states_of_part(
                    states,
                    self.source.shard_shape,
                    cell_box(shard, footprint, region).intersection(self.plan.source_box),
                    region,
                )
            )
            for shard in cells(level.region_box(self.region), target.shard_shape)
        }


class PyramidJob:
    """Job that makes all coarser mags of one mag, pass by pass."""

    def __init__(
        self,
        source: Volume,
        targets: Sequence[TargetArray],
        passes: Sequence[Pass],
        method: str,
        *,
        ignore_zero: bool = False,
        occupied: CellMap | None = None,
    ) -> None:
        self.source = source
        self.targets = tuple(targets)
        self._collector = ReceiptCollector(targets)
        self.tallies = self._collector.tallies
        self._method = method
        self._ignore_zero = ignore_zero
        self._passes = list(passes)
        self._firsts = [
            sum(len(earlier.levels) for earlier in passes[:n]) for n in range(len(passes))
        ]
        self._occupied: list[CellMap] = []  # of the passes that have started
        self._first_occupied = occupied
        self._num_started = 0

    @property
    def num_tasks(self) -> int:
        """Number of tasks; passes that have not started count as if all their regions had data."""
        later = range(len(self._occupied), len(self._passes))
        return self._num_started + sum(
            count_cells(plan.levels[0].box, plan.levels[0].region_shape)
            + sum(
                count_cells(plan.levels[n].box, self._target(p, n).shard_shape)
                for n in self._joined_levels(p)
            )
            for p, plan in ((p, self._passes[p]) for p in later)
        )

    def _target(self, p: int, level: int) -> TargetArray:
        return self.targets[self._firsts[p] + level]

    def _joined_levels(self, p: int) -> list[int]:
        plan = self._passes[p]
        return [
            n
            for n in range(len(plan.levels))
            if not plan.writes_whole_shards(n, self._target(p, n).shard_shape)
        ]

    def tasks(self) -> Iterator[Task]:
        """Yield the regions of the next pass, and of further passes whose sources are complete."""
        tasks: Iterator[Task] = iter(())
        while len(self._occupied) < len(self._passes):
            p = len(self._occupied)
            plan, first = self._passes[p], self._firsts[p]
            if p and not self.tallies[first - 1].is_complete:
                # the pass reads the coarsest mag of the pass before
                break
            # Coordinates of a pass count from the corner of its first target, so that windows,
            # bricks and shards begin at multiples of their shapes.
            source = (self.source if p == 0 else self.targets[first - 1].as_volume()).moved(
                plan.source_shift
            )
            # of a mag that this job has made, receipts tell: a listing may lag behind
            occupied = (
                self.tallies[first - 1].occupied(plan.source_region_shape, plan.source_shift)
                if p
                else source.files.occupied(plan.source_region_shape)
                if self._first_occupied is None
                else self._first_occupied
            )
            self._occupied.append(occupied)
            for level in range(len(plan.levels)):
                self.tallies[first + level].expected = int(
                    plan.levels[level]
                    .occupied_shards(self._target(p, level).shard_shape, occupied)
                    .sum()
                )
            self._num_started += int(occupied.sum()) + sum(
                self.tallies[first + level].expected for level in self._joined_levels(p)
            )
            spec_of = partial(
                RegionSpec,
                source,
                plan,
                self.targets[first : first + len(plan.levels)],
                self._method,
                self._ignore_zero,
                first_level=first,
            )
            tasks = chain(tasks, map(RegionSpec.task, map(spec_of, plan.regions(occupied))))
        return tasks

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Record receipts; return the joins whose parts are complete, and the next pass as soon as
        its source is."""
        # coarsest mag first: the next pass reads it
        joins = self._collector.add(task, result, self._num_parts)
        return chain(self.tasks(), joins)

    def _num_parts(self, level: int, shard: Vec3) -> int:
        """Count the regions with data that contribute to a shard."""
        p = max(n for n, first in enumerate(self._firsts) if first <= level)
        regions = (
            self._passes[p]
            .levels[level - self._firsts[p]]
            .regions_in_shard(shard, self.targets[level].shard_shape)
        )
        return int(self._occupied[p][regions].sum())

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        if isinstance(task.spec, RegionSpec) and task.spec.digest() != result.sources:
            # A changed source is an error. Later passes read mags that this job makes: if one of
            # those has changed, its regions are computed again.
            if task.spec.first_level:
                return False
            raise source_changed(task, task.spec.states(), self.source)
        return self._collector.still_exists(result, known)


@dataclass(frozen=True, slots=True)
class ExistingMag:
    """Existing mag that an update changes in place."""

    target: TargetArray
    finer: Volume
    """Mag from which it is made, in coordinates that count from the first voxel of the target."""
    method: str
    ignore_zero: bool
    record: npt.NDArray[np.int64] | None
    """Recorded states of its files, see ``wkwdask.store.records``; None without a record."""
    old_box: BoundingBox | None
    """Box of the finer mag when the record was written [voxels of the finer mag, in the coordinates
    of ``finer``]."""

    def stored_states(self) -> States:
        """Return the states of the files of the mag."""
        return self.target.as_volume().files.stored_states()

    def rebuilding(self, shards: Iterable[Vec3], level: int) -> Iterator[Task]:
        """Yield the tasks that rebuild some shards; ``level`` is the index of the mag in the
        job."""
        finer, target = self.finer, self.target
        plan = plan_pass(
            finer.box,
            [target.box.mag],
            target.chunk_shape,
            voxel_nbytes(target),
            target.shard_shape,
        )
        for shard in shards:
            yield RegionSpec(
                finer, plan, (target,), self.method, self.ignore_zero, shard, level
            ).task()


def changed_shards(mag: ExistingMag, sources: States, stored: States) -> set[Vec3]:
    """Return the shards that differ from the mag's record, or whose sources have changed since it
    was written; given the states of the files of the finer mag, and of the mag."""
    target, finer = mag.target, mag.finer
    current = grouped_digests(sources, finer.shard_shape, footprint(finer, target))
    record = np.empty((0, FILE_RECORD_COLUMNS), np.int64) if mag.record is None else mag.record
    recorded = {(x, y, z): sources for x, y, z, _, _, sources in record.tolist()}
    shards = current.keys() | recorded.keys()
    changed = {shard for shard in shards if current.get(shard, 0) != recorded.get(shard, 0)}
    before = {tuple(row[:5]) for row in record.tolist() if row[3]}
    changed |= {(x, y, z) for x, y, z, _, _ in set(map(tuple, stored.tolist())) ^ before}
    # Windows at the border contain only voxels inside the box. So a shard changes if a new box cuts
    # its footprint elsewhere, even if no file has changed.
    if mag.old_box is not None and mag.old_box != finer.box:
        changed |= {
            shard
            for shard in shards
            if _footprint_in(shard, mag, mag.old_box) != _footprint_in(shard, mag, finer.box)
        }
    ranges = cell_range(target.box, target.shard_shape)
    return {shard for shard in changed if is_inside(shard, ranges)}


def shards_in(target: TargetArray, box: BoundingBox) -> set[Vec3]:
    """Return the shards of a mag that show a part of the layer."""
    shown = counted_from(box.in_mag(target.box.mag), target.origin).intersection(target.box)
    return set(cells(shown, target.shard_shape))


def _footprint_in(shard: Vec3, mag: ExistingMag, box: BoundingBox) -> BoundingBox:
    """Return the part of a shard's footprint inside a box of the finer mag."""
    return clipped_cell(shard, footprint(mag.finer, mag.target), box)


def footprint(finer: Volume, target: TargetArray) -> Vec3:
    """Return the box of one shard of a mag in voxels of the finer mag."""
    return times(target.shard_shape, factor_of(finer, target))


def factor_of(finer: Volume, target: TargetArray) -> Vec3:
    """Return the voxels of the finer mag that one voxel of a mag spans, along x, y, z."""
    return finer.box.mag.step_to(target.box.mag)


_SAME_LENGTH = 1e-3  # relative difference below which voxel lengths count as equal


def check_method(method: str, source: Volume, *, ignore_zero: bool) -> str:
    """Check a method and its options for a source, and return it."""
    if method not in METHODS:
        raise ValueError(f'method must be "default" or one of {", ".join(METHODS)}, got {method!r}')
    if ignore_zero and method not in IGNORE_ZERO_METHODS:
        raise ValueError(
            f"ignore_zero requires method {', '.join(IGNORE_ZERO_METHODS)}, got {method}"
        )
    if source.dtype == np.bool_ and method != BOOL_METHOD:
        raise ValueError(
            f"{source.name}: holds bool, whose coarser levels are made by the {BOOL_METHOD} alone, "
            f"got method {method!r}"
        )
    return method


@dataclass(frozen=True, slots=True)
class PyramidOptions:
    """Options of a pyramid; None chooses a default."""

    finest: Mag | str | None = None
    """Mag or key of the level to start from."""
    method: str = "default"
    ignore_zero: bool = False
    mags: tuple[Mag, ...] | None = None
    coarsest: Mag | None = None
    """Last mag of the ladder."""
    sampling: str | None = None
    """Rule of the ladder, such as ``"anisotropic"``."""
    align_with: str | bool = True
    """Image whose mags the ladder follows: True for all other images of the dataset, False for
    none, or a name."""
    stored: Any = None
    allow_external: bool = False


@dataclass(frozen=True, slots=True)
class Pyramid(Plan):
    """Plan of a pyramid."""

    source: Volume
    method: str
    ignore_zero: bool
    passes: tuple[Pass, ...]
    staged: StagedMags
    """Mags to write; no targets where the finest mag is the coarsest already."""
    stored_as: str
    """Description of the storage of the new mags, for people."""
    notes: tuple[Warning, ...] = ()
    """Warnings about properties of the mags that a viewer displays incorrectly."""
    occupied: CellMap | None = field(default=None, compare=False, repr=False)
    """Regions of the first pass with a stored file, None if unknown."""
    record: IntArray | None = field(default=None, compare=False, repr=False)
    """File record of a source in a bucket, whose states no task knows; None without one."""
    placed_as: str = ""
    """Description of the voxels around the boxes of the mags, see
    :class:`wkwdask.model.writing.target_image.NewLevels`."""

    def job(self) -> PyramidJob:
        return PyramidJob(
            self.source,
            self.staged.targets,
            self.passes,
            self.method,
            ignore_zero=self.ignore_zero,
            occupied=self.occupied,
        )

    def accepting_finished(self) -> Self:
        """Return the plan with an equal finished pyramid accepted as its result."""
        return replace(self, staged=self.staged.accepting_finished())

    def nothing_to_do(self) -> Report | None:
        """Return the report of a pyramid without mags."""
        return (
            None
            if self.staged.targets
            else Report(
                (), 0, 0.0, f"mag {self.source.box.mag} is the coarsest already: nothing to do"
            )
        )

    def need(self) -> Need | None:
        return need_of_targets(self.staged, self._size) if self.staged.targets else None

    def _size(self, _: RunTasks) -> Size:
        """Return the size of the mags, from a few bricks that are reduced and encoded on trial."""
        sample, source = sample_pyramid(self), self.source
        filled_share = int(source.files.occupied(source.shard_shape).sum()) / max(
            1, count_cells(source.box, source.shard_shape)
        )
        nbytes = num_files = 0
        for number, target in enumerate(self.staged.targets):
            filled = int(voxel_nbytes(target, target.box) * filled_share)
            shards, chunks = (
                math.ceil(count_cells(target.box, shape) * filled_share)
                for shape in (target.shard_shape, target.chunk_shape)
            )
            nbytes += target.files.expected_nbytes(shards, filled, sample.ratio_of(number) or 0.0)
            num_files += target.files.max_files(shards, chunks)
        return Size(int(SURE_SHARE * nbytes), nbytes, num_files)

    def phases(self) -> Generator[Phase, str, Outcome]:
        job = self.job()
        note = yield Phase(job, f"pyramid of {self.staged.parent}")
        if self.record is not None:
            job.tallies[0].set_sources(self._recorded_sources(self.record))
        return Outcome(job.tallies, "; ".join(filter(None, [note, self.placed_as])))

    def _recorded_sources(self, record: IntArray) -> dict[Vec3, int]:
        """Return the digest of the source files of each shard of the first mag."""
        assert isinstance(self.source, StoredArray)
        source = by_files(self.source.moved(self.passes[0].source_shift))
        return grouped_digests(
            source.files.recorded_states(record),
            source.shard_shape,
            footprint(source, self.staged.targets[0]),
        )

    def check_unchanged(self) -> None:
        check_not_replaced(self.source)

    def finished_before(self, report: Report) -> Report:
        """Raise an error if a finished pyramid was made from other data than the source has now."""
        finer = self.source
        if not finer.is_regular or is_bucket(finer.name):
            states = source_fingerprint(finer).get("states")
            if states != self.staged.settings.get("states"):
                raise ResumeError(
                    f'{finer.name}: has changed since the pyramid was built; existing="overwrite" '
                    "rebuilds it"
                )
            return report
        for target, folder in zip(self.staged.targets, self.staged.listed, strict=True):
            published = target.built_in(folder)
            mag = ExistingMag(
                published, finer, self.method, self.ignore_zero, read_file_record(folder), None
            )
            changed = changed_shards(mag, finer.files.stored_states(), mag.stored_states())
            if changed:
                were, them = (
                    ("was changed, or is", "it")
                    if len(changed) == 1
                    else ("were changed, or are", "them")
                )
                raise ResumeError(
                    f"{folder}: {counted(len(changed), 'file')} {were} made from files of mag "
                    f"{finer.box.mag} that have changed since; "
                    f"update=True rebuilds {them}"
                )
            finer = published.as_volume()
        return report


def lay_out_pyramid(
    url: str | os.PathLike[str],
    layer_name: str | None,
    options: PyramidOptions,
    existing: str,
    workers: int,
) -> Pyramid:
    """Plan a pyramid, or resume the interrupted job of the same settings."""
    image, source = open_base_level(
        url,
        SourceSelection(
            layer_name, options.finest, "finest", allow_external=options.allow_external
        ),
    )
    target_image = target_in(image, options.allow_external)
    method = choose_method(image, source, options)
    mags = choose_mags(image, source, options)
    step_factors(source.box.mag, mags)
    specs = [LevelSpec.like(source, source.box.in_mag(mag)) for mag in mags]
    levels = (
        target_image.new_levels(specs, options.stored, source, existing)
        if specs
        else NewLevels(image.folder, (), (), {})
    )
    settings = settings_of(
        "build_pyramid",
        box=box_setting(source.box),
        mags=",".join(mag.name for mag in mags),
        method=method,
        ignore_zero=options.ignore_zero,
    )
    fingerprint = {**source_fingerprint(source), "source": source.box.mag.name}
    draft = stage(
        f"build_pyramid of {image.folder}",
        levels.parent,
        levels.folders,
        {**settings, **levels.settings, **fingerprint},
        existing,
    )
    targets = draft.staged_levels(levels)
    origins = [(0, 0, 0), *(target.origin for target in targets)]
    nbytes_per_voxel = voxel_nbytes(source)
    tilings = [
        Tiling(target.chunk_shape, target.shard_shape, nbytes_per_voxel) for target in targets
    ]
    passes = tuple(plan_offset_passes(source.box, mags, origins, tilings, workers, draft.shapes()))
    regions = [plan.levels[0].region_shape for plan in passes]
    occupied = [source.files.occupied(plan.source_region_shape) for plan in passes[:1]]
    is_known = isinstance(source, StoredArray) and is_bucket(source.name)
    files = read_file_record(source.name) if is_known else None
    presence = digest_of_cells(occupied) + (f"-{digest(files)}" if files is not None else "")
    record = {"regions": regions, "presence": presence}
    task_nbytes = max(
        (
            plan.memory_nbytes(nbytes_per_voxel) + len(plan.levels) * MEMORY_NBYTES
            for plan in passes
        ),
        default=0,
    )
    staged = draft.mags(
        targets,
        LevelSpec.like(source).nbytes,
        levels.edit,
        record,
        is_pyramid=True,
        task_nbytes=task_nbytes,
    )
    # a job moves its source, and with it the regions
    known = occupied[0] if passes and not any(passes[0].source_shift) else None
    return Pyramid(
        source,
        method,
        options.ignore_zero,
        passes,
        staged,
        levels.stored_as,
        levels.warnings,
        known,
        files,
        levels.placed_as,
    )


def choose_method(image: Image, source: Volume, options: PyramidOptions) -> str:
    """Return the method that reduces a window to a voxel."""
    return check_method(
        default_method(image, source) if options.method == "default" else options.method,
        source,
        ignore_zero=options.ignore_zero,
    )


def choose_mags(image: Image, source: Volume, options: PyramidOptions) -> list[Mag]:
    """Return the mags of a pyramid, finest first."""
    finest, size = source.box.mag, image.voxel_size_nm
    lengths = None if source.lengths_nm is None else ratio_of(source.lengths_nm, finest.factors)
    if (
        size is not None
        and lengths is not None
        and any(abs(a / b - 1) > _SAME_LENGTH for a, b in zip(lengths, size, strict=True))
    ):
        raise UnsupportedError(
            f"{source.name}: its voxel size is not a power-of-two multiple of that of the first "
            "scale, so no pyramid can be built from it"
        )
    if options.mags is not None:
        if (
            options.coarsest is not None
            or options.sampling is not None
            or options.align_with is not True
        ):
            raise ValueError(
                "mags= lists the mags; coarsest=, sampling= and align_with= choose them: give one "
                "or the other"
            )
        return sorted_mags(options.mags, finest, "finest")
    box = image_box(image, source)
    # a single section keeps its thickness
    sampling = options.sampling or ("constant_z" if source.box.size[2] == 1 else "anisotropic")
    coarsest = options.coarsest if options.coarsest is not None else default_coarsest(box)
    return mag_ladder(finest, coarsest, size, sampling, aligned_mags(image, options.align_with))
