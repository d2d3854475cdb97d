"""Repair of files in a bucket: the server copies a damaged file to the quarantine, and it is
replaced only if it is still the damaged one, by processes that are killed and paused too."""

from __future__ import annotations

import contextlib

import dask
import numpy as np
import pytest
from runs.test_bucket_jobs import RUNS, chosen
from support.bucket_faults import URL, faulty_bucket

import wkwdask
from wkwdask.errors import LockedError, TaskFailedError, WkwDaskError
from wkwdask.formats.opening import find
from wkwdask.formats.webknossos.datasource import FILE_NAME
from wkwdask.model.store import Expected
from wkwdask.store.objects import memory_bucket, remote
from wkwdask.store.objects.seen import SeenObjects
from wkwdask.store.paths import split
from wkwdask.store.store import store_at

pytestmark = pytest.mark.filterwarnings("ignore::wkwdask.errors.DiscardWarning")
VOXELS = np.random.default_rng(1).integers(1, 255, (1, 24, 20, 12), np.uint8)
IMAGE = {
    "precomputed": f"precomputed://{URL}/v",
    "precomputed-sharded": f"precomputed://{URL}/v",
    "ngff": f"{URL}/v.ome.zarr",
    "ngff-unsharded": f"{URL}/v.ome.zarr",
    "wkw": f"{URL}/dataset",
}
KINDS = [
    pytest.param(kind, marks=[pytest.mark.needs("zarr")] if kind.startswith("ngff") else [])
    for kind in IMAGE
]
DOCUMENTS = ("zarr.json", "header.wkw")


@pytest.fixture
def bucket():
    with faulty_bucket() as bucket, dask.config.set(scheduler="synchronous"):
        yield bucket


def save(kind):
    """Store an image with a pyramid."""
    if kind == "wkw":
        dataset = wkwdask.create_dataset(IMAGE[kind], (4, 4, 8))
        dataset.add_layer("v", "color", np.uint8, (0, 0, 0, *VOXELS.shape[1:]))
        wkwdask.save(VOXELS, f"{IMAGE[kind]}/v/1", block_len=8, file_len=2)
    else:
        shard_shape = (16, 16, 16) if kind in ("precomputed-sharded", "ngff") else False
        options = {"chunk_shape": (8, 8, 8), "shard_shape": shard_shape}
        wkwdask.save(VOXELS, IMAGE[kind], voxel_size=(4, 4, 8), **options)
    wkwdask.build_pyramid(IMAGE[kind])


def voxels_of(kind, mag):
    return wkwdask.read(IMAGE[kind], mag=mag)


def levels(kind):
    (image,) = find(IMAGE[kind]).layers
    return image.levels


def files_of(level):
    """Content of the files of a level, by their names."""
    prefix = f"{level.folder}/"
    return {
        name: found.data
        for name, found in sorted(memory_bucket._objects.items())
        if name.startswith(prefix) and not name.removeprefix(prefix).startswith((".", *DOCUMENTS))
    }


def put(url, data):
    folder, name = split(url)
    store_at(folder).put(name, data)


def cut(level):
    """Cut the first file of a level off, and return its name and its bytes."""
    url, data = next(iter(files_of(level).items()))
    put(url, data[: len(data) * 2 // 3])
    return url, data[: len(data) * 2 // 3]


def quarantined():
    return {
        name: found.data
        for name, found in memory_bucket._objects.items()
        if "/.wkwdask-quarantine/" in name and not name.endswith(".txt")
    }


def leftovers():
    words = (".wkwdask-job-", "-lock", ".wkwdask-clock", ".parts/", "scratch")
    return [name for name in memory_bucket._objects if any(word in name for word in words)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_coarse_file_is_rebuilt(bucket, kind):
    save(kind)
    whole = {level.mag.name: files_of(level) for level in levels(kind)}
    url, damaged = cut(levels(kind)[-1])
    assert not wkwdask.verify(IMAGE[kind]).is_sound
    before = bucket.snapshot()
    report = wkwdask.repair(IMAGE[kind], dry_run=True)
    assert [action.verb for action in report.actions] == ["rebuild"]
    assert bucket.snapshot() == before
    report = wkwdask.repair(IMAGE[kind])
    assert [(action.verb, action.path) for action in report.actions] == [("rebuild", url)]
    assert report.is_sound
    assert {level.mag.name: files_of(level) for level in levels(kind)} == whole
    assert list(quarantined().values()) == [damaged]
    verification = wkwdask.verify(IMAGE[kind])
    assert verification.is_sound
    assert not verification.count("warning")
    assert leftovers() == []
    assert "nothing to do" in wkwdask.build_pyramid(IMAGE[kind], update=True).note


SALVAGED = {
    "wkw": lambda data: data[:-40],
    "ngff": lambda data: bytes(4) + data[4:],  # the magic number of Zstandard
}
"""Damage to some chunks of a file."""


@pytest.mark.parametrize("kind", [each for each in KINDS if each.values[0] in ("wkw", "ngff")])
def test_intact_chunks_stay_and_others_become_zeros(bucket, kind):
    save(kind)
    level = levels(kind)[0]
    url, data = next(iter(files_of(level).items()))
    damaged = SALVAGED[kind](data)
    put(url, damaged)
    report = wkwdask.repair(IMAGE[kind], salvage=True)
    assert [action.verb for action in report.actions] == ["salvage"]
    seen = voxels_of(kind, 1)
    lost = seen != VOXELS
    assert not seen[lost].any()
    assert 0 < np.count_nonzero(lost) < 16**3 / 2
    assert list(quarantined().values()) == [damaged]
    assert wkwdask.verify(IMAGE[kind]).is_sound
    assert leftovers() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_set_aside(bucket, kind):
    save(kind)
    url, damaged = cut(levels(kind)[0])
    assert not wkwdask.repair(IMAGE[kind]).is_sound
    assert quarantined() == {}
    report = wkwdask.repair(IMAGE[kind], quarantine=True)
    assert [(action.verb, action.path) for action in report.actions] == [("quarantine", url)]
    assert list(quarantined().values()) == [damaged]
    assert url not in memory_bucket._objects
    seen = voxels_of(kind, 1)
    lost = seen != VOXELS
    assert lost.any()
    assert not seen[lost].any()
    assert wkwdask.verify(IMAGE[kind]).is_sound
    assert leftovers() == []


def test_a_header_is_written_again(bucket):
    save("wkw")
    store = store_at(levels("wkw")[0].folder)
    (header,) = store.read_whole(["header.wkw"], 1 << 10)
    store.put("header.wkw", b"WKX" + header[3:])
    report = wkwdask.repair(IMAGE["wkw"])
    assert [action.verb for action in report.actions] == ["write header.wkw"]
    assert store.read_whole(["header.wkw"], 1 << 10) == [header]
    np.testing.assert_array_equal(voxels_of("wkw", 1), VOXELS)


def test_the_largest_id_is_corrected_last(bucket):
    dataset = wkwdask.create_dataset(IMAGE["wkw"], (4, 4, 8))
    dataset.add_layer("v", "segmentation", np.uint32, (0, 0, 0, *VOXELS.shape[1:]))
    wkwdask.save(VOXELS.astype(np.uint32), f"{IMAGE['wkw']}/v/1", block_len=8, file_len=2)
    store = store_at(IMAGE["wkw"])
    (document,) = store.read_whole([FILE_NAME], 1 << 20)
    assert b'"largestSegmentId": 254' in document
    store.put(FILE_NAME, document.replace(b'Id": 254', b'Id": 3'))
    assert [action.verb for action in wkwdask.repair(IMAGE["wkw"]).actions] == ["edit JSON"]
    (document,) = store.read_whole([FILE_NAME], 1 << 20)
    assert b'"largestSegmentId": 254' in document
    store.put(FILE_NAME, b"{")
    report = wkwdask.repair(IMAGE["wkw"], voxel_size=(4, 4, 8))
    assert "restore it from a backup" in str(report)
    assert store.read_whole([FILE_NAME], 1 << 20) == [b"{"]


# ------------------------------------------------------------------------------------------------
# killed and paused processes, and writers of other software


DAMAGES = {"rebuild": (1, 2), "quarantine": (0,)}
"""Levels of which a file is damaged, by what is done about it."""


def damage(kind, what="rebuild"):
    save(kind)
    return dict(cut(levels(kind)[number]) for number in DAMAGES[what])


def repair(kind):
    return wkwdask.repair(IMAGE[kind], quarantine=True)


def points(number, request):
    """Choose requests; each repair begins with many that only read."""
    found = chosen(number, request)
    return found[:: 3 if found.step > 4 else 1]


def data_files(kind):
    return {name: data for level in levels(kind) for name, data in files_of(level).items()}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("run", RUNS)
def test_killed_at_any_request(bucket, kind, what, run, request):
    damaged = damage(kind, what)
    start, before = bucket.snapshot(), data_files(kind)
    bucket.restore(start)
    bucket.requests = []
    repair(kind)
    number, done = len(bucket.requests), data_files(kind)
    assert done != before
    problems = []
    for after_effect in (False, True):
        for n in points(number, request):
            bucket.restore(start)
            with bucket.killed_at(n, after=after_effect):
                repair(kind)
            where, seen = f"request {n}, {after_effect}", data_files(kind)
            problems += [
                f"{where}: {url} is neither the old nor the new file"
                for url in before.keys() | done.keys()
                if seen.get(url) not in (before.get(url), done.get(url))
            ]
            problems += [
                f"{where}: {url} was replaced without a copy"
                for url, data in damaged.items()
                if seen.get(url) != data and data not in quarantined().values()
            ]
            report = repair(kind)
            if not report.is_sound or data_files(kind) != done:
                problems.append(f"{where}: the same call does not complete it: {report}")
            # of a group of files, intact ones are copied too, until they prove to be equal
            if not set(damaged.values()) <= set(quarantined().values()) <= set(before.values()):
                problems.append(f"{where}: other files are in quarantine")
            wkwdask.clean(IMAGE[kind])
            if leftovers():
                problems.append(f"{where}: left {leftovers()[:3]}")
    assert not problems, "\n".join(problems[:20])


def problems_of_pauses(bucket, kind, chosen_of):
    """Pause a repair at some of its requests, let another process repair and write a region, and
    wake the first one."""
    damage(kind)
    start = bucket.snapshot()
    bucket.restore(start)
    bucket.requests = []
    repair(kind)
    # before it takes its lease, it only reads
    first = next(n for n, (_, url) in enumerate(bucket.requests) if "/.wkwdask-job-" in url)
    number, problems = len(bucket.requests) - first, []
    region = ((0, 0, 0), (9, 8, 7))
    for n in chosen_of(number):
        bucket.restore(start)
        with bucket.paused_at(first + n, lambda: repair(kind)) as ends:
            repair(kind)
            other = np.full((1, *region[1]), 7, np.uint8)
            wkwdask.save(other, IMAGE[kind], region=region, mag="2-2-1")
            expected = data_files(kind)
        if data_files(kind) != expected and ends != [None]:
            problems.append(f"request {n}, {ends}: the first process changed what was complete")
        if ends not in ([None], [LockedError], [TaskFailedError]):
            problems.append(f"request {n}: another error: {ends}")
    return problems


@pytest.mark.parametrize("kind", [each for each in KINDS if each.values[0] != "wkw"])
@pytest.mark.parametrize("run", RUNS)
def test_woken_after_another_process_took_over(bucket, kind, run, request):
    problems = problems_of_pauses(bucket, kind, lambda number: points(number, request))
    assert not problems, "\n".join(problems[:20])


def foreign_writer(monkeypatch, url, data):
    """Let other software write a file after the repair has read it."""
    real, written = memory_bucket.put_once, []

    def put_once(target, *args):
        if target == url and not written:
            written.append(real(url, data, Expected.ANY, "other", None))
            remote.forget(url)
        return real(target, *args)

    monkeypatch.setattr(memory_bucket, "put_once", put_once)
    return written


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_conditional", [True, False], ids=["", "control"])
def test_what_other_software_writes_meanwhile_stays(bucket, kind, monkeypatch, is_conditional):
    """The control writes without conditions."""
    save(kind)
    level = levels(kind)[1]
    whole = next(iter(files_of(level).values()))
    url, damaged = cut(level)
    other = whole[:-1] + bytes([whole[-1] ^ 1])
    written = foreign_writer(monkeypatch, url, other)
    if not is_conditional:
        monkeypatch.setattr(SeenObjects, "expected", lambda *_: Expected.ANY)
    refused = pytest.raises(WkwDaskError, match="was changed since it was checked; start again")
    with refused if is_conditional else contextlib.nullcontext():
        wkwdask.repair(IMAGE[kind])
    assert written
    assert (memory_bucket._objects[url].data == other) is is_conditional
    assert damaged in quarantined().values()
