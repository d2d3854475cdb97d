"""Two processes that work on one image in a bucket: the first is paused at some request, the second
runs from its beginning to its end, and the first continues. Readers see whole levels, and levels
that they have opened before stay for the grace."""

from __future__ import annotations

import contextlib
import os
import time
from unittest import mock

import dask
import numpy as np
import pytest
from support.bucket_faults import URL, Killed, faulty_bucket
from support.range_server import range_server

import wkwdask
from wkwdask.errors import (
    ExistsError,
    LockedError,
    MissingError,
    ReplacedError,
    UnsupportedError,
    WkwDaskError,
)
from wkwdask.formats.opening import find
from wkwdask.runs import cleaning, garbage, job_folder
from wkwdask.store import leases
from wkwdask.store.locks import locks_of
from wkwdask.store.objects import line_objects, memory_bucket
from wkwdask.store.paths import basename, dirname
from wkwdask.store.records import PROVENANCE_NAME
from wkwdask.store.store import store_at

pytestmark = [
    pytest.mark.needs("zarr"),
    pytest.mark.filterwarnings("ignore::wkwdask.errors.DiscardWarning"),
]
VOLUME, IMAGE = f"precomputed://{URL}/v", f"{URL}/v.ome.zarr"
VOXELS = np.random.default_rng(1).integers(1, 255, (1, 20, 18, 20), np.uint8)
REVERSED = VOXELS[..., ::-1].copy()
REGION = ((0, 0, 0), (9, 3, 5))
CHANGED = VOXELS.copy()
CHANGED[:, :9, :3, :5] //= 2


@pytest.fixture
def bucket():
    with faulty_bucket() as bucket, dask.config.set(scheduler="synchronous"):
        yield bucket


def save(voxels=VOXELS, url=IMAGE, **options):
    return wkwdask.save(voxels, url, voxel_size=(4, 4, 8), chunk_shape=(8, 8, 8), **options)


def pyramid(method="max", **options):
    return wkwdask.build_pyramid(IMAGE, method=method, **options)


JOBS = {
    "replace": lambda: save(REVERSED, existing="overwrite"),
    "restart": lambda: pyramid("nearest", existing="restart"),
    "rechunk": lambda: wkwdask.rechunk(IMAGE, chunk_shape=(16, 16, 16)),
    "rm": lambda: wkwdask.rm(f"zarr://{IMAGE}", mags="2-2-1"),
    "convert": lambda: wkwdask.convert(IMAGE, f"precomputed://{URL}/w"),
    "clean": lambda: wkwdask.clean(IMAGE),
    "update": lambda: wkwdask.build_pyramid(IMAGE, update=True),
}
PAIRS = [
    ("clean", "replace"),
    ("replace", "clean"),
    ("replace", "rm"),
    ("restart", "replace"),
    ("rm", "restart"),
    ("rechunk", "replace"),
    ("convert", "replace"),
    ("update", "replace"),
    ("update", "clean"),
    ("update", "restart"),
    ("replace", "update"),
    ("update", "rm"),
]
_FEW, _STEP = 8, 1 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 17
"""Requests of a short run, and requests between two that are tested in a long one."""


def levels():
    (image,) = find(IMAGE).layers
    return {level.mag.name: wkwdask.read(IMAGE, mag=level.mag) for level in image.levels}


@pytest.fixture(scope="module")
def known():
    """Arrays that a level may hold, by its mag."""
    known = {}
    for voxels in (VOXELS, REVERSED, CHANGED):
        for method in ("max", "nearest"):
            with faulty_bucket():
                save(voxels)
                pyramid(method)
                for mag, found in levels().items():
                    known.setdefault(mag, []).append(found)
    return known


@pytest.mark.one_in(3)
@pytest.mark.parametrize("run", ["some", pytest.param("many", marks=pytest.mark.long)])
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=list(map("-".join, PAIRS)))
def test_readers_see_whole_levels(known, bucket, first, second, run):
    save()
    pyramid()
    if "update" in (first, second):
        wkwdask.save(CHANGED[:, :9, :3, :5], IMAGE, region=REGION, mag=1)
    start = bucket.snapshot()
    bucket.requests = []
    JOBS[first]()
    number, problems = len(bucket.requests), []
    few = range(number // 3, number, number // _FEW)
    for n in few if run == "some" else range(0, number, _STEP):
        bucket.restore(start)
        opened = [(wkwdask.open(IMAGE, mag=mag), voxels) for mag, voxels in levels().items()]
        with bucket.paused_at(n, JOBS[first]) as ends:
            _until_done(JOBS[second])
            problems += _problems(f"request {n}, {second} is done", known, opened)
        problems += _problems(f"request {n}, {ends}", known, opened)
    assert not problems, "\n".join(problems[:20])


def _until_done(job):
    try:
        job()
    except (ReplacedError, LockedError):  # it completed the other job, or has lost against it
        job()


def _problems(when, known, opened):
    yield from (
        f"{when}: level {mag} is a mixture"
        for mag, found in levels().items()
        if not any(np.array_equal(found, each) for each in known[mag])
    )
    for array, voxels in opened:
        try:
            if not np.array_equal(array.compute(), voxels):
                yield f"{when}: an old reader sees other voxels"
        except WkwDaskError as error:
            yield f"{when}: an old reader ends: {error!r}"


ENDED_BY_OTHERS = {
    "pyramid": pyramid,
    "convert": lambda: wkwdask.convert(IMAGE, f"{URL}/w.ome.zarr"),
    "rm": lambda: wkwdask.rm(f"zarr://{IMAGE}", mags="2-2-1"),
}


@pytest.mark.parametrize("run", ["some", pytest.param("many", marks=pytest.mark.long)])
@pytest.mark.parametrize("job", ENDED_BY_OTHERS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_woken_process_changes_nothing(bucket, job, run, after):
    """The same call has completed its job meanwhile: documents, shards, reports and settings stay
    as they are, and what the process adds is garbage."""
    save()
    if job == "rm":
        pyramid()
    start = bucket.snapshot()
    bucket.requests = []
    ENDED_BY_OTHERS[job]()
    number, problems = len(bucket.requests), []
    few = range(number // 5, number, number // _FEW)
    for n in few if run == "some" else range(0, number, _STEP):
        bucket.restore(start)
        with bucket.paused_at(n, ENDED_BY_OTHERS[job], after=after):
            with contextlib.suppress(ExistsError, MissingError):  # it was complete
                _until_done(ENDED_BY_OTHERS[job])
            done = _contents(bucket)
        now = _contents(bucket)
        problems += [f"request {n}: {url} changed" for url in done if now.get(url) != done[url]]
        wkwdask.clean(URL)
        problems += [f"request {n}: {url} stays" for url in _contents(bucket).keys() - done.keys()]
    assert not problems, "\n".join(problems[:20])


def _contents(bucket):
    """Return what is neither a record of a job nor white space that makes a document unique."""
    return {
        url: found.data.rstrip()
        for url, found in bucket.snapshot().items()
        if "/.wkwdask-" not in url and "wkwdask-lock" not in url
    }


@pytest.mark.parametrize("takes_lease", [True, False], ids=["", "control"])
def test_a_process_that_wakes_up_while_its_job_is_cleaned(bucket, monkeypatch, takes_lease):
    """A job commits in its lease, which clean takes over before it asks what is listed, and before
    it deletes. Without that, which is the control, clean deletes what the process has published in
    between."""
    if not takes_lease:
        monkeypatch.setattr(job_folder, "_taken_over", lambda *_: contextlib.nullcontext())
    delete_level, woken = job_folder.delete_level, []

    def wake_then_delete(place):
        bucket.may_go_on.set()
        end = time.monotonic() + 20
        while not ends and time.monotonic() < end:
            time.sleep(0.001)
        woken.append(ends[0])
        delete_level(place)

    monkeypatch.setattr(job_folder, "delete_level", wake_then_delete)
    save()
    start = bucket.snapshot()
    bucket.requests = []
    JOBS["replace"]()
    number, lost = len(bucket.requests), []
    for n in range(number // 3, number, 2):
        bucket.restore(start)
        with bucket.paused_at(n, JOBS["replace"]) as ends:
            wkwdask.clean(IMAGE)
        try:
            found = wkwdask.read(IMAGE, mag=1)
        except MissingError:  # the document names the level
            lost.append(n)
        else:
            assert any(np.array_equal(found, each) for each in (VOXELS, REVERSED))
    if takes_lease:
        assert not lost
        assert set(woken) == {LockedError}
    else:
        assert lost
        assert None in woken


# ------------------------------------------------------------------------------------------------
# single places


@pytest.mark.parametrize("url", [IMAGE, VOLUME], ids=["ngff", "precomputed"])
@pytest.mark.parametrize("is_ours", [True, False], ids=["with record", "without record"])
def test_readers_of_a_level_that_is_being_deleted(bucket, url, is_ours):
    """A server deletes objects in any order. Where one is missing, readers ask for the record."""
    voxels = np.concatenate([VOXELS, np.zeros_like(VOXELS)], axis=3)
    save(voxels, url, shard_shape=False)
    if not is_ours:
        for name in list(memory_bucket._objects):
            if name.endswith(PROVENANCE_NAME):
                del memory_bucket._objects[name]
    opened = wkwdask.open(url, mag=1)
    np.testing.assert_array_equal(opened.compute(), voxels)
    save(voxels[..., ::-1], url, shard_shape=False, existing="overwrite")
    real, seen = memory_bucket.delete, []

    def delete(urls, access):
        for each in reversed(urls):
            real([each], access)
            try:
                seen.append(np.array_equal(opened.compute(), voxels))
            except ReplacedError:
                seen.append(None)

    with mock.patch.object(memory_bucket, "delete", delete):
        assert len(wkwdask.clean(url, grace_seconds=0)) == 1
    assert len(seen) > 10
    assert False not in seen
    assert seen[-1] is None


@pytest.mark.parametrize("url", [IMAGE, VOLUME], ids=["ngff", "precomputed"])
def test_a_copy_without_hidden_files_is_read(bucket, url):
    """Missing chunks are zero there, too: the document names the level."""
    voxels = np.concatenate([VOXELS, np.zeros_like(VOXELS)], axis=3)
    save(voxels, url, shard_shape=False)
    for name in list(memory_bucket._objects):
        if basename(name).startswith("."):
            del memory_bucket._objects[name]
    np.testing.assert_array_equal(wkwdask.read(url), voxels)


@pytest.mark.needs("obstore")
@pytest.mark.parametrize("url", [IMAGE, VOLUME], ids=["ngff", "precomputed"])
def test_web_readers_of_a_bucket_get_no_zeros(bucket, url, tmp_path):
    """Buckets are often read by their web address."""
    save(url=url, shard_shape=False)

    def copy():
        for name, each in memory_bucket._objects.items():
            path = tmp_path / name.removeprefix(f"{URL}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(each.data)
        for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
            if f"{URL}/{path.relative_to(tmp_path)}" not in memory_bucket._objects:
                path.unlink()

    copy()
    with range_server(tmp_path) as server:
        opened = wkwdask.open(url.replace(URL, server.url), mag=1)
        np.testing.assert_array_equal(opened.compute(), VOXELS)
        save(REVERSED, url, shard_shape=False, existing="overwrite")
        wkwdask.clean(url, grace_seconds=0)
        copy()
        with pytest.raises(ReplacedError, match="open it again"):
            opened.compute()


def test_the_grace_begins_when_a_document_switches(bucket, monkeypatch):
    """A job was killed before that, and is completed while another process cleans."""
    save()
    (old,) = [level.folder for level in find(IMAGE).layers[0].levels]
    store, name = store_at(IMAGE), ".wkwdask-garbage-0123.json"
    store.put(name, b'{"layout": 1, "folders": ["%s"]}' % basename(old).encode())
    now = memory_bucket._objects[f"{IMAGE}/{name}"]
    ancient = now._replace(modified=now.modified - 30 * 24 * 3600)
    memory_bucket._objects[f"{IMAGE}/{name}"] = ancient
    real = garbage.is_listed

    def is_listed(parent, folder):
        memory_bucket._objects[f"{IMAGE}/{name}"] = now
        save(REVERSED, existing="overwrite")
        monkeypatch.setattr(garbage, "is_listed", real)
        return real(parent, folder)

    monkeypatch.setattr(garbage, "is_listed", is_listed)
    assert cleaning.clean(IMAGE) == []  # which was imported before the function was replaced
    assert store_at(old).is_folder()
    assert old in wkwdask.clean(IMAGE, grace_seconds=0)


def test_records_of_a_job_that_others_have_ended(bucket):
    """A process that was paused wrote them when it woke up. Nothing resumes them."""
    save()
    real = memory_bucket.put_once

    def put_once(url, *arguments):
        state = real(url, *arguments)
        if "journal" in url:
            raise Killed
        return state

    with (
        mock.patch.object(line_objects, "_MOST_LINES", 1),
        mock.patch.object(memory_bucket, "put_once", put_once),
        mock.patch.object(memory_bucket, "delete"),
        pytest.raises(Killed),
    ):
        save(REVERSED, existing="overwrite")
    (lease,) = [name for name in memory_bucket._objects if name.endswith("owner.json")]
    del memory_bucket._objects[lease]
    assert wkwdask.clean(IMAGE, dry_run=True)[0] == dirname(lease)
    wkwdask.clean(IMAGE)
    assert not [name for name in memory_bucket._objects if ".wkwdask-job-" in name]
    np.testing.assert_array_equal(wkwdask.read(IMAGE, mag=1), VOXELS)


def test_a_removed_image_is_not_read_as_arrays(bucket):
    """Its levels stay for the grace."""
    save()
    wkwdask.rm(f"zarr://{IMAGE}")
    for url in (IMAGE, f"zarr://{IMAGE}"):
        with pytest.raises((MissingError, UnsupportedError)):
            wkwdask.read(url)
    save(REVERSED)
    np.testing.assert_array_equal(wkwdask.read(IMAGE), REVERSED)


def test_a_holder_that_comes_back_keeps_its_locks(bucket, monkeypatch):
    """Its lease seemed to be over, and was renewed before another process could take it."""
    save()
    real = leases.take_lease

    def take_lease(path, record, is_gone):
        if held and path == held[0]:
            raise LockedError(f"{path}: another process works on this job")
        real(path, record, is_gone)
        held.append(path)

    held = []
    start = bucket.snapshot()
    bucket.requests = []
    pyramid()
    number = next(n for n, (_, url) in enumerate(bucket.requests) if "/c/" in str(url))
    bucket.restore(start)
    monkeypatch.setattr("wkwdask.store.locks.take_lease", take_lease)
    with bucket.paused_at(number, pyramid) as ends:
        (lock,) = locks_of(f"{IMAGE}/2-2-1")
        with pytest.raises(LockedError, match="works on this job"):
            pyramid("nearest", existing="restart")
        assert locks_of(f"{IMAGE}/2-2-1") == [lock]
    assert ends == [None]


def test_clean_does_not_list_a_job_that_begins(bucket, monkeypatch):
    monkeypatch.setattr(leases, "TTL_SECONDS", 3600.0)
    save()
    start = bucket.snapshot()
    bucket.requests = []
    pyramid()
    lease = next(
        n
        for n, (name, url) in enumerate(bucket.requests)
        if name == "put_once" and url.endswith("owner.json")
    )
    bucket.restore(start)
    with bucket.paused_at(lease + 1, pyramid) as ends:
        assert wkwdask.clean(IMAGE, dry_run=True) == []
    assert ends == [None]
