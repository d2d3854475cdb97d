"""The pyramid job on a format in memory: every voxel comes from exactly its window, and every file
is written once.

Voxels are random labels of 64 bits, and the reducer sums its window: a voxel of any mag is the sum
of all source voxels that it spans, so that one that is left out, counted twice or taken from
elsewhere changes the sum.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inside import run_serially
from support.memory_volume import MemoryTarget, MemoryVolume, make_volume, read_whole, store_of
from support.strategies import vectors

from wkwdask import BoundingBox, Mag
from wkwdask.errors import ResumeError
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.plans import pyramid as plan_module
from wkwdask.plans.pyramid import plan_passes
from wkwdask.plans.regions import Tiling
from wkwdask.runs.journal import JournaledJob
from wkwdask.streams import pyramid as stream_module
from wkwdask.verbs.pyramid import PyramidJob, RegionSpec
from wkwdask.verbs.sources import occupancy_digest

_names = count()


def sum_windows(source, factor, method, out, low=None, high=None, *, at=(0, 0, 0), ignore_zero):
    """Reduce windows to their sum modulo 2**64."""
    low, high = low or (0, 0, 0), high or source.shape
    inside = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    counted = np.zeros_like(source)
    counted[inside] = source[inside]
    (fx, fy, fz), (x, y, z) = factor, (n // f for n, f in zip(source.shape, factor, strict=True))
    sums = counted.reshape(x, fx, y, fy, z, fz).sum(axis=(1, 3, 5), dtype=np.uint64)
    touched = tuple(slice(a // f, -(-b // f)) for a, b, f in zip(low, high, factor, strict=True))
    out[
        tuple(slice(n + part.start, n + part.stop) for n, part in zip(at, touched, strict=True))
    ] = sums[touched]


def summed(labels, box, mag):
    """Sum the windows of a whole mag from the source."""
    target = box.in_mag(mag)
    pad = [
        (a - t * f, u * f - b)
        for a, b, t, u, f in zip(
            box.topleft,
            box.bottomright,
            target.topleft,
            target.bottomright,
            mag.factors,
            strict=True,
        )
    ]
    (x, y, z), (fx, fy, fz) = target.size, mag.factors
    return (
        np.pad(labels, [(0, 0), *pad])
        .reshape(-1, x, fx, y, fy, z, fz)
        .sum(axis=(2, 4, 6), dtype=np.uint64)
    )


@pytest.fixture(autouse=True)
def _sums(monkeypatch):
    monkeypatch.setattr(stream_module, "reduce_windows", sum_windows)


class Case:
    """Source with holes, and the plan and targets of its pyramid."""

    def __init__(self, box, mags, chunk, shard, source_chunk, source_shard, workers, share, seed):
        self.box, self.mags, self.workers = box, mags, workers
        random = np.random.default_rng(seed)
        self.labels = random.integers(0, 1 << 64, (1, *box.size), dtype=np.uint64)
        for index in cells(box, source_shard):
            if random.random() >= share:
                hole = cell_box(index, source_shard, box).intersection(box)
                self.labels[(slice(None), *_inside(hole, box.topleft))] = 0
        name = f"pyramid-job-{next(_names)}"
        self.source = make_volume(
            name, self.labels, box.topleft, chunk_shape=source_chunk, shard_shape=source_shard
        )
        self.targets = [
            MemoryTarget(f"{name}-{mag.long_name}", "uint64", 1, box.in_mag(mag), chunk, shard)
            for mag in mags
        ]
        self.passes = plan_passes(box, mags, [Tiling(chunk, shard, 8)] * len(mags), workers)
        for target in self.targets:
            target.prepare()

    def job(self):
        return PyramidJob(self.source, self.targets, self.passes, "max")

    def forget(self):
        for name in (self.source.store, *(target.folder for target in self.targets)):
            store_of(name).clear()


def _inside(box, corner):
    return tuple(
        slice(a - t, b - t) for a, b, t in zip(box.topleft, box.bottomright, corner, strict=True)
    )


STEPS = [
    step
    for step in ((x, y, z) for x in (1, 2, 4, 8) for y in (1, 2, 4, 8) for z in (1, 2, 4, 8))
    if step != (1, 1, 1)
]
TWOS = [step for step in STEPS if max(step) == 2]


@st.composite
def shapes(draw):
    """Draw a chunk and a shard of whole chunks, both powers of two; half of the examples are cubes
    as in WKW."""
    if draw(st.booleans()):
        chunk = (draw(st.sampled_from([1, 2, 4, 8])),) * 3
        times = (draw(st.sampled_from([1, 2, 4])),) * 3
    else:
        chunk = draw(st.tuples(*[st.sampled_from([1, 2, 4, 8])] * 3))
        times = (draw(st.sampled_from([1, 2, 4])),) * 3
    return chunk, tuple(a * b for a, b in zip(chunk, times, strict=True))


@st.composite
def cases(draw):
    """Draw small arrays and the limits of regions and bricks, so that tasks have one brick or
    hundreds; the source lacks some or all of its files."""
    with pytest.MonkeyPatch.context() as patch:
        region = draw(st.sampled_from([8, 16, 64]))
        patch.setattr(plan_module, "_REGION_VX", region)
        patch.setattr(
            plan_module,
            "_SMALLEST_REGION_VX",
            draw(st.sampled_from([n for n in (4, 8, 16) if n <= region])),
        )
        patch.setattr(plan_module, "_SMALL_TASK_NBYTES", draw(st.sampled_from([0, 1 << 20])))
        patch.setattr(
            plan_module, "_BRICK_SOURCE_NBYTES", draw(st.sampled_from([512, 4096, 1 << 15]))
        )
        mags = [Mag(1, 1, 1)]
        for step in draw(
            st.lists(st.sampled_from(TWOS) | st.sampled_from(STEPS), min_size=1, max_size=4)
        ):
            mags.append(Mag(*(a * b for a, b in zip(mags[-1].factors, step, strict=True))))
        box = BoundingBox(draw(vectors(0, 50)), draw(vectors(1, 20)))
        (chunk, shard), (source_chunk, source_shard) = draw(shapes()), draw(shapes())
        workers = draw(st.sampled_from([1, 2, 3, 17, 1000]))
        return Case(
            box,
            mags[1:],
            chunk,
            shard,
            source_chunk,
            source_shard,
            workers,
            draw(st.sampled_from([0.0, 0.1, 0.6, 1.0])),
            draw(st.integers(0, 99)),
        )


class Watched:
    """Job that counts its tasks and receipts."""

    def __init__(self, job):
        self.job = job
        self.tasks_run = []
        self.receipts = Counter()

    @property
    def num_tasks(self):
        return self.job.num_tasks

    def tasks(self):
        return self.job.tasks()

    def receive(self, task, result):
        self.tasks_run.append(task)
        self.receipts.update(
            (level, receipt.shard) for level, receipt in result.receipts if receipt.part is None
        )
        return self.job.receive(task, result)


@given(cases())
def test_every_voxel_is_that_of_its_window_and_every_file_is_written_once(case):
    job = case.job()
    watched = Watched(job)
    at_most = job.num_tasks
    run_serially(watched)
    for target, tally in zip(case.targets, job.tallies, strict=True):
        expected = summed(case.labels, case.box, target.box.mag)
        np.testing.assert_array_equal(read_whole(target.as_volume()), expected)
        tally.check()
        _check_report(tally.report("folder"), expected, target)
    _check_files(case, watched)
    assert (
        len(watched.tasks_run)
        == len({task.key for task in watched.tasks_run})
        == job.num_tasks
        <= at_most
    )
    if (
        all(
            store_of(case.source.store).get(f"shard-{x}-{y}-{z}") is not None
            for x, y, z in cells(case.box, case.source.shard_shape)
        )
        and len(case.passes) == 1
    ):
        assert job.num_tasks == at_most
    case.forget()


def _check_report(report, expected, target):
    assert report.voxels == target.box.volume
    assert report.minimum == expected.min()
    assert report.maximum == expected.max()
    where = np.argwhere(expected[0])
    low, high = (where.min(0), where.max(0) + 1) if len(where) else (None, None)
    nonzero = (
        None
        if low is None
        else BoundingBox.from_corners(
            (low + target.box.topleft).tolist(),
            (high + target.box.topleft).tolist(),
            target.box.mag,
        )
    )
    assert report.nonzero == nonzero


def _check_files(case, watched):
    """Expect each file with voxels to be published once, no leftover part, and one region for each
    that has a source file."""
    for level, target in enumerate(case.targets):
        puts = Counter(name for name in store_of(target.folder).puts if name.startswith("shard"))
        stored = {name for name in store_of(target.folder).names() if name.startswith("shard")}
        assert set(puts.values()) <= {1}
        assert set(puts) == stored
        for shard in cells(target.box, target.shard_shape):
            found = watched.receipts[level, shard]
            assert found == 1 or (found == 0 and "shard-{}-{}-{}".format(*shard) not in stored)
        assert [name for name in store_of(target.folder).names() if name.startswith("part")] == []
    first = 0
    for plan in case.passes:
        regions = [
            task.spec.region
            for task in watched.tasks_run
            if isinstance(task.spec, RegionSpec) and task.spec.first_level == first
        ]
        source = case.source if first == 0 else case.targets[first - 1].as_volume()
        files = [
            index for index in cells(source.box, source.shard_shape) if source.shard_exists(index)
        ]
        touched = {
            region
            for index in files
            for region in cells(
                cell_box(index, source.shard_shape, source.box).intersection(source.box),
                plan.source_region_shape,
            )
        }
        assert sorted(regions) == sorted(touched)
        first += len(plan.levels)


@given(cases())
def test_each_source_voxel_is_read_once(case):
    """Reads of a pass lie in the box, do not overlap, and cover every file."""
    run_serially(case.job())
    first = 0
    for plan in case.passes:
        source = case.source if first == 0 else case.targets[first - 1].as_volume()
        reads = np.zeros(source.box.size, np.uint8)
        for box, _, _ in store_of(source.store).reads:
            assert source.box.contains(box)
            assert box.volume <= math.prod(plan.source_brick_shape)
            reads[_inside(box, source.box.topleft)] += 1
        assert reads.max(initial=0) <= 1
        for index in cells(source.box, source.shard_shape):
            if source.shard_exists(index):
                assert (
                    reads[
                        _inside(
                            cell_box(index, source.shard_shape, source.box).intersection(
                                source.box
                            ),
                            source.box.topleft,
                        )
                    ]
                    == 1
                ).all()
        first += len(plan.levels)
    case.forget()


@pytest.mark.long
@given(cases())
def test_tasks_in_any_order_write_the_same_files(case):
    """A join starts once all its parts exist."""
    job = case.job()
    waiting, random = [*job.tasks()], np.random.default_rng(1)
    while waiting:
        task = waiting.pop(random.integers(len(waiting)))
        waiting.extend(job.receive(task, task.run()))
    for target, tally in zip(case.targets, job.tallies, strict=True):
        tally.check()
        np.testing.assert_array_equal(
            read_whole(target.as_volume()), summed(case.labels, case.box, target.box.mag)
        )
    case.forget()


def _case(box, names, **options):
    shape = {
        "chunk": (4,) * 3,
        "shard": (8,) * 3,
        "source_chunk": (4,) * 3,
        "source_shard": (16,) * 3,
        "workers": 1,
        "share": 1.0,
        "seed": 1,
    }
    return Case(box, [Mag.parse(name) for name in names], **{**shape, **options})


def test_empty_source_has_no_tasks():
    case = _case(BoundingBox((5, 6, 7), (30, 30, 30)), ["2", "4", "64", "128"], share=0.0)
    watched = Watched(case.job())
    run_serially(watched)
    assert watched.tasks_run == []
    assert watched.num_tasks == 0
    for tally in watched.job.tallies:
        tally.check()
        assert (tally.report("x").files, tally.report("x").minimum, tally.report("x").maximum) == (
            0,
            0,
            0,
        )


def test_file_of_zeros_writes_no_files():
    case = _case(BoundingBox((0, 0, 0), (16, 16, 16)), ["2", "4"])
    store_of(case.source.store).put("shard-0-0-0", np.zeros((1, 16, 16, 16), np.uint64))
    watched = Watched(case.job())
    run_serially(watched)
    assert len(watched.tasks_run) > 0
    assert [store_of(target.folder).names() for target in case.targets] == [["prepared"]] * 2
    assert [tally.is_complete for tally in watched.job.tallies] == [True, True]


def test_next_pass_starts_once_its_source_is_complete(monkeypatch):
    monkeypatch.setattr(plan_module, "_REGION_VX", 16)
    case = _case(BoundingBox((0, 0, 0), (64, 64, 64)), ["2", "4", "8", "16", "32"])
    assert len(case.passes) > 1
    watched = Watched(case.job())
    run_serially(watched)
    first = len(case.passes[0].levels)
    passes = [
        task.spec.first_level for task in watched.tasks_run if isinstance(task.spec, RegionSpec)
    ]
    assert passes == sorted(passes)
    assert set(passes) == {0, first} if len(case.passes) == 2 else {0, first} <= set(passes)
    last_join = max(
        n
        for n, task in enumerate(watched.tasks_run)
        if not isinstance(task.spec, RegionSpec) and task.spec.level == first - 1
    )
    assert all(
        n > last_join
        for n, task in enumerate(watched.tasks_run)
        if isinstance(task.spec, RegionSpec) and task.spec.first_level
    )


def test_later_passes_list_nothing_that_the_job_has_written(monkeypatch):
    """Listings of buckets lag behind."""
    monkeypatch.setattr(plan_module, "_REGION_VX", 16)
    case = _case(BoundingBox((3, 0, 5), (64, 61, 64)), ["2", "4", "8", "16", "32"], share=0.3)
    assert len(case.passes) > 1
    listed, occupied = [], MemoryVolume.occupied

    def listing(volume, cell_shape):
        listed.append(volume.store)
        return occupied(volume, cell_shape)

    monkeypatch.setattr(MemoryVolume, "occupied", listing)
    run_serially(case.job())
    assert listed == [case.source.store]


def test_num_tasks_is_an_upper_bound_from_the_start(monkeypatch):
    monkeypatch.setattr(plan_module, "_REGION_VX", 16)
    case = _case(BoundingBox((0, 0, 0), (64, 64, 64)), ["2", "4", "8", "16", "32"], share=0.3)
    job = case.job()
    bounds = [job.num_tasks]
    waiting = [*job.tasks()]
    bounds.append(job.num_tasks)
    done = 0
    while waiting:
        task = waiting.pop()
        waiting.extend(job.receive(task, task.run()))
        done += 1
        bounds.append(job.num_tasks)
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] == done


def test_names_of_tasks():
    case = _case(BoundingBox((0, 0, 0), (40, 40, 40)), ["2", "4"])
    watched = Watched(case.job())
    run_serially(watched)
    assert {task.name for task in watched.tasks_run if isinstance(task.spec, RegionSpec)} == {
        f"region {region} of {case.source.name}"
        for region in cells(case.targets[0].box, case.passes[0].levels[0].region_shape)
    }
    for task in watched.tasks_run:
        if not isinstance(task.spec, RegionSpec):
            assert task.name == f"file {task.shard} of mag {case.mags[task.level]}"


def test_source_digest_of_a_file_covers_its_source_files(monkeypatch):
    """Digests of parts add up to that of all source files below the file."""
    from wkwdask.model.states import grouped_digests

    for region_vx in (64, 8):
        monkeypatch.setattr(plan_module, "_REGION_VX", region_vx)
        monkeypatch.setattr(plan_module, "_SMALLEST_REGION_VX", 4)
        monkeypatch.setattr(plan_module, "_SMALL_TASK_NBYTES", 0)
        for source_shard in ((4,) * 3, (16,) * 3, (64,) * 3):
            for shard in ((8,) * 3, (32,) * 3):
                case = _case(
                    BoundingBox((3, 5, 7), (40, 36, 32)),
                    ["2"],
                    source_shard=source_shard,
                    shard=shard,
                    share=0.7,
                    workers=1000,
                )
                job = case.job()
                run_serially(job)
                expected = grouped_digests(
                    case.source.files.stored_states(), source_shard, tuple(2 * n for n in shard)
                )
                found = {tuple(row[:3]): row[5] for row in job.tallies[0].shards.tolist()}
                ranges = cell_range(case.targets[0].box, shard)
                assert {
                    index: found.get(index, 0) for index in cells(case.targets[0].box, shard)
                } == {index: expected.get(index, 0) for index in cells(case.targets[0].box, shard)}
                assert all(len(r) for r in ranges)


# ----------------------------------------------------------------------------- resuming an
# interrupted job


class Stopped(BaseException):
    """The driver was stopped."""


class Start:
    """One start of a job: it resumes from the journal lines, and may stop after some more
    results."""

    def __init__(self, case, lines, stop_after=None, order=None):
        self.case, self.lines, self.stop_after = case, lines, stop_after
        self.order = None if order is None else np.random.default_rng(order)
        self.ran = []
        self.job = case.job()
        self.journaled = JournaledJob(self.job, self.append, list(lines), case.targets)

    def append(self, entry):
        self.lines.append(json.dumps(entry).encode() + b"\n")
        if len(self.ran) == self.stop_after:
            raise Stopped

    def to_end(self):
        """Run tasks in order or in a random order; return False if the job was stopped."""
        try:
            waiting = [*self.journaled.tasks()]
            while waiting:
                task = waiting.pop(0 if self.order is None else self.order.integers(len(waiting)))
                result = task.run()
                self.ran.append(task.key)
                waiting = [*self.journaled.receive(task, result), *waiting]
        except Stopped:
            return False
        return True

    def check(self):
        for target, tally in zip(self.case.targets, self.job.tallies, strict=True):
            tally.check()
            np.testing.assert_array_equal(
                read_whole(target.as_volume()),
                summed(self.case.labels, self.case.box, target.box.mag),
            )
            assert [
                name for name in store_of(target.folder).names() if name.startswith("part")
            ] == []
            assert {tuple(row[:4]) for row in tally.shards.tolist() if row[3]} == {
                tuple(row[:4]) for row in target.as_volume().files.stored_states().tolist()
            }
        assert self.journaled.num_tasks == len(self.ran)


@given(cases(), st.lists(st.integers(1, 12), max_size=3), st.none() | st.integers(0, 9))
def test_journaled_tasks_run_once(case, stops, order):
    """A job that is stopped any number of times ends like an undisturbed one."""
    undisturbed = Start(case, [])
    assert undisturbed.to_end()
    expected = [tally.report("x") for tally in undisturbed.job.tallies]
    digests = sorted((*row[:4], row[5]) for row in undisturbed.job.tallies[0].shards.tolist())
    for target in case.targets:
        store_of(target.folder).clear()
        target.prepare()
    lines, ran = [], []
    for stop in [*stops, None]:
        start = Start(case, lines, stop, order)
        ended = start.to_end()
        ran.extend(start.ran)
        if ended:
            break
    start.check()
    for target, tally in zip(case.targets, start.job.tallies, strict=True):
        # with the times of the stored files
        assert sorted(row[:5] for row in tally.shards.tolist() if row[3]) == sorted(
            target.as_volume().files.stored_states().tolist()
        )
    assert sorted(ran) == sorted(undisturbed.ran)
    assert [tally.report("x") for tally in start.job.tallies] == expected
    assert sorted((*row[:4], row[5]) for row in start.job.tallies[0].shards.tolist()) == digests
    case.forget()


@given(
    cases(),
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.integers(0, 99),
    st.sampled_from([0.1, 0.5, 1.0]),
)
def test_resumed_job_rebuilds_lost_files(case, stops, seed, share):
    """Files, parts and journal lines are lost or truncated before the job resumes."""
    random, lines = np.random.default_rng(seed), []
    for stop in stops:
        if Start(case, lines, stop, seed).to_end():
            break
        for target in case.targets:
            store = store_of(target.folder)
            for name in store.names():
                if name != "prepared" and random.random() < share:
                    if random.random() < 0.5:
                        store.pop(name)
                    else:
                        store.put(name, store.get(name).ravel()[:-1])
        if random.random() < 0.3:
            lines[-1] = lines[-1][: random.integers(len(lines[-1]))]
        if random.random() < 0.3:
            del lines[random.integers(len(lines))]
    last = Start(case, lines, None, seed)
    assert last.to_end()
    last.check()
    case.forget()


def _small_regions(monkeypatch):
    monkeypatch.setattr(plan_module, "_REGION_VX", 8)
    monkeypatch.setattr(plan_module, "_SMALLEST_REGION_VX", 8)


def test_resume_refuses_a_changed_source(monkeypatch):
    _small_regions(monkeypatch)
    case = _case(
        BoundingBox((0, 0, 0), (64, 64, 64)), ["2", "4"], source_shard=(16,) * 3, workers=1000
    )
    lines = []
    assert not Start(case, lines, 3).to_end()
    first = json.loads(lines[0])["task"]
    name = "shard-0-0-0"
    store = store_of(case.source.store)
    store.put(name, store.get(name))
    with pytest.raises(
        ResumeError,
        match=(
            r"region \(0, 0, 0\) of memory:.* changed since the job was interrupted "
            rf"\(memory:.*/{name} was changed last"
        ),
    ):
        Start(case, lines).to_end()
    assert first == "region 0 0,0,0"


def _change_source(case, index, values):
    """Replace the voxels of a source file, or remove it."""
    box = cell_box(index, case.source.shard_shape, case.box).intersection(case.box)
    case.labels[(slice(None), *_inside(box, case.box.topleft))] = values
    store, name = store_of(case.source.store), "shard-{}-{}-{}".format(*index)
    voxels = np.zeros((1, *case.source.shard_shape), np.uint64)
    voxels[
        (
            slice(None),
            *_inside(
                box, tuple(i * n for i, n in zip(index, case.source.shard_shape, strict=True))
            ),
        )
    ] = values
    store.put(name, voxels) if voxels.any() else store.pop(name)


def _regions_with_files(case):
    return occupancy_digest(case.source, [case.passes[0].source_region_shape])


def _refuses_or_is_right(case, lines, regions_with_files):
    """Resume: the job refuses the source, or no voxel is that of an old source file."""
    if _regions_with_files(case) != regions_with_files:
        return
    start = Start(case, lines)
    try:
        assert start.to_end()
    except ResumeError as error:
        assert "has changed since" in str(error)  # noqa: PT017
    else:
        start.check()


@pytest.mark.long
@pytest.mark.parametrize(
    ("index", "stop"), [((0, 0, 0), 3), ((0, 0, 0), 12), ((3, 3, 3), 12), ((0, 0, 0), 1000)]
)
@pytest.mark.parametrize("change", ["removed", "added", "replaced"])
@pytest.mark.parametrize("file_edge", [8, 16])
def test_source_file_changes_while_a_job_is_interrupted(
    monkeypatch, file_edge, change, index, stop
):
    """Files of the first mag are written whole, those of the second joined from eight regions; a
    region reads one source file or eight."""
    _small_regions(monkeypatch)
    case = _case(
        BoundingBox((0, 0, 0), (64, 64, 64)),
        ["2", "4"],
        source_shard=(file_edge,) * 3,
        workers=1000,
    )
    if change == "added":
        _change_source(case, index, 0)
    lines, before = [], _regions_with_files(case)
    Start(case, lines, stop).to_end()
    _change_source(case, index, 0 if change == "removed" else 12345)
    assert (_regions_with_files(case) == before) is (change == "replaced" or file_edge == 8)
    _refuses_or_is_right(case, lines, before)


@given(cases(), st.integers(1, 20), st.data())
def test_any_source_files_change_while_a_job_is_interrupted(case, stop, data):
    lines, before = [], _regions_with_files(case)
    Start(case, lines, stop, 1).to_end()
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.sampled_from(list(cells(case.box, case.source.shard_shape))))
        _change_source(case, index, data.draw(st.sampled_from([0, 12345])))
    _refuses_or_is_right(case, lines, before)
    case.forget()


def test_resume_accepts_a_change_of_unread_files(monkeypatch):
    _small_regions(monkeypatch)
    case = _case(
        BoundingBox((0, 0, 0), (64, 64, 64)),
        ["2"],
        source_shard=(16,) * 3,
        shard=(16,) * 3,
        workers=1000,
    )
    lines = []
    assert not Start(case, lines, 2).to_end()
    store = store_of(case.source.store)
    store.put("shard-3-3-3", store.get("shard-3-3-3"))
    last = Start(case, lines)
    assert last.to_end()
    last.check()


@pytest.mark.parametrize(("level", "stop"), [(0, 10), (1, 20), (1, 1000)])
def test_lost_file_reruns_only_its_regions_and_join(monkeypatch, level, stop):
    _small_regions(monkeypatch)
    case = _case(
        BoundingBox((0, 0, 0), (64, 64, 64)), ["2", "4"], source_shard=(16,) * 3, workers=1000
    )
    lines = []
    first = Start(case, lines, stop)
    first.to_end()
    assert "join 1 0,0,0" in first.ran
    store_of(case.targets[level].folder).pop("shard-0-0-0")
    last = Start(case, lines)
    assert last.to_end()
    last.check()
    again = (
        {"region 0 0,0,0"}
        if level == 0
        else {f"region 0 {x},{y},{z}" for x in range(2) for y in range(2) for z in range(2)}
        | {"join 1 0,0,0"}
    )
    assert set(first.ran) & set(last.ran) == again


def test_finished_job_has_no_tasks_left():
    case = _case(BoundingBox((0, 0, 0), (40, 40, 40)), ["2", "4", "64"])
    lines = []
    assert Start(case, lines).to_end()
    number = len(lines)
    again = Start(case, lines)
    assert again.to_end()
    assert (again.ran, again.journaled.num_tasks, len(lines)) == ([], 0, number)
    again.check()


def test_invalid_journal_lines_are_ignored():
    case = _case(BoundingBox((0, 0, 0), (40, 40, 40)), ["2"])
    lines = [
        b"",
        b"\n",
        b"null\n",
        b"3\n",
        b"[]\n",
        b"{}\n",
        b'{"task"\n',
        b"\xff\xfe\n",
        b'{"task": "region 9 9,9,9", "sources": 1, "receipts": []}\n',
    ]
    start = Start(case, lines)
    assert start.to_end()
    start.check()
