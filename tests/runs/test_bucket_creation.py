"""Levels in a bucket that no document can list under another name: N5, and mags of no dataset. They
are written beside their places, copied by the server when they are complete, and never replaced."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import dask
import numpy as np
import pytest
from runs.test_bucket_jobs import records
from support.bucket_faults import URL, faulty_bucket

import wkwdask
from wkwdask.errors import IncompleteWriteError, UnsupportedError
from wkwdask.formats.opening import find
from wkwdask.model.placement import job_in
from wkwdask.runs import job_folder
from wkwdask.store.locks import locks_of
from wkwdask.store.objects import memory_bucket
from wkwdask.store.store import store_at

pytestmark = [
    pytest.mark.filterwarnings("ignore::wkwdask.errors.DiscardWarning"),
    pytest.mark.filterwarnings("ignore::wkwdask.errors.MetadataWarning"),
]
VOXELS = np.random.default_rng(1).integers(1, 255, (1, 20, 18, 20), np.uint8)
IMAGES = {"n5": f"n5://{URL}/v.n5", "wkw": f"{URL}/v"}
FINEST = {"n5": f"n5://{URL}/v.n5/s0", "wkw": f"{URL}/v/1"}
STORED = {
    "n5": {"voxel_size": (4, 4, 8), "chunk_shape": (8, 8, 8)},
    "wkw": {"block_len": 8, "file_len": 1},
}
IS_NIGHT = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


@pytest.fixture
def bucket():
    with faulty_bucket() as bucket, dask.config.set(scheduler="synchronous"):
        yield bucket


def save(kind, voxels=VOXELS):
    return wkwdask.save(voxels, FINEST[kind], **STORED[kind])


def pyramid(kind):
    return wkwdask.build_pyramid(IMAGES[kind], method="max")


JOBS = {"save": save, "pyramid": pyramid}


def levels(kind):
    """The voxels of all levels that readers see."""
    try:
        (image,) = find(IMAGES[kind]).layers
    except (wkwdask.MissingError, UnsupportedError):
        return {}
    return {level.mag.name: wkwdask.read(IMAGES[kind], mag=level.mag) for level in image.levels}


def is_part(seen, expected):
    return all(np.array_equal(voxels, expected[mag]) for mag, voxels in seen.items())


def left_over():
    placed = [name for name in memory_bucket._objects if any(map(job_in, name.split("/")))]
    return [*records(), *(name for name in placed if "job-" not in name)]


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("name", JOBS)
def test_killed_at_any_request(bucket, kind, name):
    if name == "pyramid":
        save(kind)
    start, before = bucket.snapshot(), levels(kind)
    bucket.requests = []
    JOBS[name](kind)
    number, after = len(bucket.requests), levels(kind)
    calls = [call for call, _ in bucket.requests]
    assert calls.count("copy_once") > 8
    assert left_over() == []
    assert after != before
    copies = [n for n, call in enumerate(calls) if call == "copy_once"]
    some = {*range(0, number, 29), *copies[::5], *range(copies[-1] - 2, number, 3)}
    problems = []
    for is_done in (False, True):
        for n in range(number) if IS_NIGHT else sorted(some):
            bucket.restore(start)
            with bucket.killed_at(n, after=is_done):
                JOBS[name](kind)
            if not is_part(levels(kind), after):
                problems.append(f"request {n}, {is_done}: a part of a level is visible")
            try:
                JOBS[name](kind)
            except (
                UnsupportedError
            ) as error:  # it was complete, and a second one may not replace it
                if "only created" not in str(error):
                    raise
            seen = levels(kind)
            if seen.keys() != after.keys() or not is_part(seen, after):
                problems.append(f"request {n}, {is_done}: the same call does not complete it")
            wkwdask.clean(store_at(URL).url, grace_seconds=0)
            if left_over():
                problems.append(f"request {n}, {is_done}: left {left_over()[:3]}")
    assert not problems, "\n".join(problems[:20])


@pytest.mark.parametrize("kind", IMAGES)
def test_an_existing_level_is_not_replaced(bucket, kind):
    save(kind)
    pyramid(kind)
    before = bucket.snapshot()
    for job in (
        lambda: wkwdask.save(VOXELS // 2, FINEST[kind], existing="overwrite", **STORED[kind]),
        lambda: wkwdask.build_pyramid(IMAGES[kind], method="min", existing="overwrite"),
        lambda: wkwdask.rechunk(
            IMAGES[kind], **({"chunk_shape": (16, 16, 16)} if kind == "n5" else {"block_len": 16})
        ),
    ):
        with pytest.raises(UnsupportedError, match="in a bucket such levels are only created"):
            job()
    with pytest.raises(UnsupportedError, match="no document could switch"):
        wkwdask.build_pyramid(IMAGES[kind], update="content")
    with pytest.raises(UnsupportedError, match="in a bucket, levels are removed from the document"):
        wkwdask.rm(IMAGES[kind])
    assert bucket.snapshot().keys() == before.keys()
    np.testing.assert_array_equal(levels(kind)["1"], VOXELS)


@pytest.mark.parametrize("kind", IMAGES)
def test_clean_removes_what_a_woken_process_wrote_beside_a_level(bucket, kind):
    save(kind)
    before, level = bucket.snapshot(), FINEST[kind].removeprefix("n5://")
    for name in ("20260101T000000-0123abcd", "mine"):
        for url, found in before.items():
            if url.startswith(f"{store_at(URL).url}/v") and "/.wkwdask" not in url:
                placed = url.replace(level, f"{level}.{name}")
                if placed != url:
                    memory_bucket._objects[placed] = found
    url = IMAGES[kind].removeprefix("n5://")
    stray = f"{level}.20260101T000000-0123abcd"
    assert wkwdask.clean(url, dry_run=True) == [stray]
    assert wkwdask.clean(url) == [stray]
    assert not [name for name in memory_bucket._objects if name.startswith(f"{stray}/")]
    kept = [name for name in memory_bucket._objects if ".mine/" in name]
    assert len(memory_bucket._objects) == len(before) + len(kept)
    assert kept
    np.testing.assert_array_equal(levels(kind)["1"], VOXELS)


@pytest.mark.parametrize("kind", IMAGES)
def test_regions_of_such_levels_are_written(bucket, kind):
    save(kind)
    wkwdask.save(VOXELS[:, :9] // 2, FINEST[kind], region=((0, 0, 0), (9, 18, 20)))
    expected = VOXELS.copy()
    expected[:, :9] //= 2
    np.testing.assert_array_equal(levels(kind)["1"], expected)


def test_a_finer_level_does_not_rename_others(bucket):
    save("n5")
    pyramid("n5")
    before = bucket.snapshot()
    with pytest.raises(UnsupportedError, match="only created"):
        wkwdask.upsample(IMAGES["n5"], voxel_size=(2, 2, 4))
    assert bucket.snapshot().keys() == before.keys()


@pytest.mark.parametrize("deletes", [True, False], ids=["", "control"])
def test_a_process_that_wakes_up_stores_no_old_block(bucket, monkeypatch, deletes):
    """It was paused before a copy. Another one has completed its job, and the level was removed and
    created again without this block. The control keeps what the copies were made of."""
    save("wkw")
    voxels = VOXELS.copy()
    voxels[:, :8, :8, :8] = 0
    found = memory_bucket._objects.copy()
    memory_bucket._objects.clear()
    bucket.requests = []
    save("wkw")
    block = next(
        n
        for n, (call, url) in enumerate(bucket.requests)
        if call == "copy_once" and url.endswith("/z0/y0/x0.wkw")
    )
    bucket.restore({})
    if not deletes:
        monkeypatch.setattr(job_folder, "delete_level", lambda folder: None)
    with bucket.paused_at(block, lambda: save("wkw")):
        save("wkw")
        assert is_part(levels("wkw"), {"1": VOXELS})
        assert locks_of(FINEST["wkw"]) == []
        removed = f"{FINEST['wkw']}/"
        bucket.restore(
            {name: each for name, each in bucket.snapshot().items() if not name.startswith(removed)}
        )
        save("wkw", voxels)
        assert len(memory_bucket._objects) < len(found) or not deletes
    assert np.array_equal(levels("wkw")["1"], voxels) is deletes


def test_a_listing_that_lags_behind_loses_no_file(bucket, monkeypatch):
    monkeypatch.setattr(job_folder, "_LISTING_PAUSES_SECONDS", (0.0, 0.0))
    walk, hidden = memory_bucket.walk, []

    def lagging(url, access):
        names = list(walk(url, access))
        if job_in(url) and not hidden:
            hidden.append(names.pop(0))
        return iter(names)

    with mock.patch.object(memory_bucket, "walk", lagging):
        save("n5")
    assert hidden
    assert is_part(levels("n5"), {"1": VOXELS})
    with (
        mock.patch.object(
            memory_bucket, "walk", lambda url, access: [] if job_in(url) else walk(url, access)
        ),
        pytest.raises(IncompleteWriteError, match="the same call completes the job"),
    ):
        pyramid("n5")
    assert levels("n5").keys() == {"1"}
    pyramid("n5")
    assert len(levels("n5")) > 1


@pytest.mark.needs("zarr")
@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (lambda url: wkwdask.rechunk(url, chunk_shape=(16, 16, 16)), "levels are only created"),
        (wkwdask.compress, "levels are only created"),
        (wkwdask.rm, "delete its objects with the tool of the provider"),
        (wkwdask.build_pyramid, "levels need an image"),
    ],
    ids=["rechunk", "compress", "rm", "pyramid"],
)
def test_an_array_of_no_image_is_changed_in_regions_alone(bucket, tmp_path, job, reason):
    import zarr

    array = zarr.create_array(tmp_path, shape=(20, 18, 20), chunks=(8, 8, 8), dtype=np.uint8)
    array[:] = VOXELS[0].T
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        store_at(f"{URL}/a.zarr").put(path.relative_to(tmp_path).as_posix(), path.read_bytes())
    url = f"zarr://{URL}/a.zarr"
    before = bucket.snapshot()
    with pytest.raises(UnsupportedError, match=reason):
        job(url)
    assert bucket.snapshot() == before
    wkwdask.save(VOXELS[:, :9] // 2, url, region=((0, 0, 0), (9, 18, 20)))
    expected = VOXELS.copy()
    expected[:, :9] //= 2
    np.testing.assert_array_equal(wkwdask.read(url), expected)
