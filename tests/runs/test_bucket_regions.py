"""Regions that are written into levels in a bucket: each chunk or shard is replaced only if it is
still the one that was read, so that writers of the same file, killed and paused ones too, lose
nothing."""

from __future__ import annotations

import gzip
import threading
import time

import dask
import dask.array as da
import numpy as np
import pytest
from runs.test_bucket_jobs import RUNS, chosen
from support.bucket_faults import URL, empty_bucket, faulty_bucket
from support.commands import run_here

import wkwdask
from wkwdask import BoundingBox
from wkwdask.errors import LockedError, ReplacedError, ResumeError, UnsupportedError
from wkwdask.formats.opening import find, format_of_image
from wkwdask.model.store import Expected
from wkwdask.model.writing.target_array import InPlaceWrite
from wkwdask.store.objects import memory_bucket
from wkwdask.store.objects.seen import SeenObjects
from wkwdask.store.store import store_at
from wkwdask.verbs.write import encode_part

pytestmark = pytest.mark.filterwarnings("ignore::wkwdask.errors.DiscardWarning")
IMAGE = {
    "precomputed": f"precomputed://{URL}/v",
    "precomputed-sharded": f"precomputed://{URL}/v",
    "ngff": f"{URL}/v.ome.zarr",
    "ngff-unsharded": f"{URL}/v.ome.zarr",
}
KINDS = [
    pytest.param(kind, marks=[pytest.mark.needs("zarr")] if kind.startswith("ngff") else [])
    for kind in IMAGE
]
SHARDED = [param for param in KINDS if param.values[0] in ("precomputed-sharded", "ngff")]
VOXELS = np.random.default_rng(1).integers(1, 255, (1, 40, 36, 20), np.uint8)
REGION = ((3, 5, 2), (38, 30, 19))
NEW = np.random.default_rng(2).integers(1, 255, (1, 35, 25, 17), np.uint8)
NEW[:, :8] = 0


@pytest.fixture
def bucket():
    with faulty_bucket() as bucket, dask.config.set(scheduler="synchronous"):
        yield bucket


def save(kind):
    shards = {
        "precomputed": {"shard_shape": False},
        "precomputed-sharded": {"shard_shape": (16, 16, 16)},
        "ngff": {"shard_shape": (16, 16, 16)},
        "ngff-unsharded": {"shard_shape": False},
    }
    wkwdask.save(VOXELS, IMAGE[kind], voxel_size=(4, 4, 8), chunk_shape=(8, 8, 8), **shards[kind])


def write(kind, voxels=NEW, **options):
    return wkwdask.save(voxels, IMAGE[kind], region=REGION, **options)


def after(voxels=NEW):
    expected = VOXELS.copy()
    expected[:, 3:38, 5:30, 2:19] = voxels
    return expected


def voxels_of(kind):
    return wkwdask.read(IMAGE[kind], mag=1)


def data_files(kind):
    """Content of the chunks or shards."""
    (level,) = find(IMAGE[kind]).layers[0].levels
    prefix = f"{level.folder}/"
    return {
        url: found.data
        for url, found in memory_bucket._objects.items()
        if url.startswith(prefix) and not url.removeprefix(prefix).startswith((".", "zarr.json"))
    }


def leftovers():
    words = (".wkwdask-job-", "-lock", ".wkwdask-clock", ".parts/")
    return [name for name in memory_bucket._objects if any(word in name for word in words)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_dask", [False, True])
def test_voxels_around_a_region_stay(bucket, kind, is_dask):
    save(kind)
    voxels = da.from_array(NEW, chunks=(1, 35, 25, 5)) if is_dask else NEW
    report = write(kind, voxels)
    assert report.voxels == NEW.size
    np.testing.assert_array_equal(voxels_of(kind), after())
    assert wkwdask.verify(IMAGE[kind]).is_sound
    assert leftovers() == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_becomes_zero_is_written_and_not_removed(bucket, kind):
    save(kind)
    names = data_files(kind).keys()
    box = ((0, 0, 0), (40, 36, 20))
    wkwdask.save(np.zeros_like(VOXELS), IMAGE[kind], region=box)
    assert data_files(kind).keys() == names
    assert not voxels_of(kind).any()
    wkwdask.save(VOXELS, IMAGE[kind], region=box)
    np.testing.assert_array_equal(voxels_of(kind), VOXELS)
    assert wkwdask.verify(IMAGE[kind]).is_sound


@pytest.mark.parametrize("kind", KINDS)
def test_equal_voxels_are_not_written_again(bucket, kind):
    save(kind)
    write(kind)
    states = dict(memory_bucket._objects)
    bucket.requests = []
    write(kind)
    changed = {url for url in data_files(kind) if memory_bucket._objects[url] != states[url]}
    assert changed == set()


@pytest.mark.parametrize("kind", SHARDED)
def test_one_request_reads_and_one_writes_each_shard(bucket, kind):
    save(kind)
    bucket.requests = []
    write(kind)
    for url in data_files(kind):
        made = [name for name, requested in bucket.requests if requested == url]
        assert made.count("put_once") <= 1
        assert made.count("read") + made.count("head") + made.count("size") <= 2
    assert not any(".parts/" in str(url) for _, url in bucket.requests)


# ------------------------------------------------------------------------------------------------
# several writers of one shard

_WRITERS, _PARTS = 4, 10


def write_parts(kind):
    """Let four writers change ten parts of the same chunks of one shard each, at the same time;
    return how many parts are kept."""
    image = find(IMAGE[kind]).layers[0]
    volume = image.levels[0].open()
    parts = [(x, y, z) for z in range(0, 4, 2) for y in range(0, 10, 2) for x in range(0, 8, 2)]
    assert len(parts) == _WRITERS * _PARTS

    def work(writer):
        for number in range(writer, len(parts), _WRITERS):
            box = BoundingBox(parts[number], (2, 2, 2))
            target = format_of_image(image).in_place_target(
                volume, InPlaceWrite(volume.store.url, f"{URL}/parts", box, merges=True)
            )
            voxels = np.full((1, 2, 2, 2), 100 + number, np.uint8)
            encode_part(target, (0, 0, 0), target.shard_shape, voxels, parts[number])

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(_WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = voxels_of(kind)
    return sum(
        bool((found[:, x : x + 2, y : y + 2, z : z + 2] == 100 + number).all())
        for number, (x, y, z) in enumerate(parts)
    )


@pytest.fixture
def slow_bucket(monkeypatch):
    """Requests that let other threads run."""
    with empty_bucket():
        for name in ("read", "put_once"):
            real = getattr(memory_bucket, name)

            def slow(*args, _real=real):
                time.sleep(0.002)
                return _real(*args)

            monkeypatch.setattr(memory_bucket, name, slow)
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_four_writers_are_all_kept(slow_bucket, kind):
    save(kind)
    assert write_parts(kind) == 40


@pytest.mark.parametrize("kind", KINDS)
def test_without_conditions_parts_are_lost(slow_bucket, kind, monkeypatch):
    """A control: the test above can fail."""
    monkeypatch.setattr(SeenObjects, "expected", lambda *_: Expected.ANY)
    save(kind)
    assert write_parts(kind) < 40


# ------------------------------------------------------------------------------------------------
# killed and paused processes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", RUNS)
def test_killed_at_any_request(bucket, kind, run, request):
    save(kind)
    start, before = bucket.snapshot(), data_files(kind)
    bucket.requests = []
    write(kind)
    number, done = len(bucket.requests), data_files(kind)
    problems = []
    for after_effect in (False, True):
        for n in chosen(number, request):
            bucket.restore(start)
            with bucket.killed_at(n, after=after_effect):
                write(kind)
            where, seen = f"request {n}, {after_effect}", data_files(kind)
            if any(data not in (before.get(url), done.get(url)) for url, data in seen.items()):
                problems.append(f"{where}: a file is neither the old nor the new one")
            write(kind)
            if data_files(kind) != done:
                problems.append(f"{where}: the same call does not complete it")
            if leftovers():
                problems.append(f"{where}: left {leftovers()[:3]}")
    assert number > 25
    assert not problems, "\n".join(problems[:20])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", RUNS)
def test_cancelled_after_a_kill(bucket, kind, run, request):
    save(kind)
    start = bucket.snapshot()
    bucket.requests = []
    write(kind)
    for n in chosen(len(bucket.requests), request):
        bucket.restore(start)
        with bucket.killed_at(n, after=True):
            write(kind)
        run_here("cancel", IMAGE[kind], "--discard")
        wkwdask.clean(IMAGE[kind])
        assert [name for name in leftovers() if ".wkwdask-job-" in name] == []
        other = np.full_like(NEW, 9)
        write(kind, other)
        np.testing.assert_array_equal(voxels_of(kind), after(other))
        assert leftovers() == []


def problems_of_pauses(bucket, kind, points):
    """Pause a write at some of its requests, let another process write other voxels, and wake the
    first one."""
    save(kind)
    start, other = bucket.snapshot(), np.full_like(NEW, 9)
    bucket.requests = []
    write(kind)
    number, problems = len(bucket.requests), []
    for after_effect in (False, True):
        for n in points(number):
            bucket.restore(start)
            bucket.pause_at(n, after=after_effect)
            ends = []
            paused = threading.Thread(target=_run_paused, args=(bucket, kind, ends))
            paused.start()
            while paused.is_alive() and not bucket.is_paused.wait(0.01):
                pass
            try:
                write(kind, other, existing="restart")
            finally:
                bucket.may_go_on.set()
                paused.join()
            where = f"request {n}, {after_effect}, {ends}"
            seen = voxels_of(kind)
            # it may also have begun when the other one had ended
            is_last = ends == [None] and np.array_equal(seen, after())
            if not is_last and not np.array_equal(seen, after(other)):
                problems.append(f"{where}: the first process changed what was complete")
            elif ends not in ([None], [LockedError], [ReplacedError], [ResumeError]):
                problems.append(f"{where}: another error")
    return problems


def _run_paused(bucket, kind, ends):
    with bucket.process("first"), dask.config.set(scheduler="synchronous"):
        try:
            write(kind)
            ends.append(None)
        except Exception as error:
            ends.append(type(error))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", RUNS)
def test_woken_after_another_process_took_over(bucket, kind, run, request):
    problems = problems_of_pauses(bucket, kind, lambda number: chosen(number, request))
    assert not problems, "\n".join(problems[:20])


def test_without_its_record_a_woken_process_does_harm(bucket, monkeypatch):
    """A control: the test above can fail."""
    monkeypatch.setattr(SeenObjects, "check_job", lambda *_: None)
    kind = "precomputed-sharded"
    assert problems_of_pauses(bucket, kind, lambda number: range(30, number, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_level_that_is_replaced_meanwhile(bucket, kind, monkeypatch):
    save(kind)
    volume = find(IMAGE[kind]).layers[0].levels[0]
    real, replaced = memory_bucket.put_once, []

    def put(url, *args):
        if url.startswith(f"{volume.folder}/") and not replaced:
            replaced.append(url)
            info = store_at(volume.folder.rpartition("/")[0])
            name = "info" if kind.startswith("precomputed") else "zarr.json"
            document, state = info.read_state(name, 1 << 20)
            key = volume.folder.rpartition("/")[2].encode()
            info.put(name, document.replace(key, key[:-8] + b"89abcdef"), state)
        return real(url, *args)

    monkeypatch.setattr(memory_bucket, "put_once", put)
    with pytest.raises(ReplacedError, match="open it again"):
        write(kind)
    assert replaced


@pytest.mark.parametrize("kind", KINDS)
def test_a_living_writer_of_the_same_shards_is_waited_for(bucket, kind, monkeypatch):
    monkeypatch.setattr("wkwdask.store.leases.TTL_SECONDS", 3600.0)
    monkeypatch.setattr("wkwdask.store.objects.remote._TRUSTED_SECONDS", 1e9)  # as many requests
    save(kind)
    start = bucket.snapshot()
    bucket.restore(start)
    bucket.requests = []
    write(kind)
    locked = next(
        n
        for n, (name, url) in enumerate(bucket.requests)
        if name == "put_once" and "region-lock" in url
    )
    bucket.restore(start)
    bucket.pause_at(locked, after=True)
    ends = []
    paused = threading.Thread(target=_run_paused, args=(bucket, kind, ends))
    paused.start()
    assert bucket.is_paused.wait(20)
    try:
        with pytest.raises(LockedError, match="another job"):
            write(kind, np.full_like(NEW, 9))
        with pytest.raises(LockedError, match="another job"):
            wkwdask.rechunk(IMAGE[kind], chunk_shape=(16, 16, 16))
    finally:
        bucket.may_go_on.set()
        paused.join()
    assert ends == [None]
    np.testing.assert_array_equal(voxels_of(kind), after())


def test_a_chunk_under_another_name_is_not_hidden(bucket):
    save("precomputed")
    (level,) = find(IMAGE["precomputed"]).layers[0].levels
    store, name = store_at(level.folder), "8-16_8-16_0-8"
    (data,) = store.read_whole([name], 1 << 20)
    store.delete(name)
    store.put(f"{name}.gz", gzip.compress(data))
    with pytest.raises(UnsupportedError, match="cannot replace one name by another"):
        write("precomputed")
