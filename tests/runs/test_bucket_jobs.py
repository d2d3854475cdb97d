"""Jobs in a bucket, killed or paused at their requests: readers see each level whole or not at all,
and the same call completes what is left."""

from __future__ import annotations

import contextlib
import json
import os
import secrets

import dask
import numpy as np
import pytest
import xarray as xr
from faults.drivers import regions_of
from support.bucket_faults import URL, Killed, faulty_bucket

import wkwdask
from wkwdask.errors import ExistsError, LockedError, ReplacedError
from wkwdask.formats.opening import find
from wkwdask.ids import id_types
from wkwdask.model.placement import job_in, plain_name
from wkwdask.store import documents, leases
from wkwdask.store.objects import line_objects, memory_bucket, remote
from wkwdask.store.paths import basename, dirname, split
from wkwdask.store.store import store_at

pytestmark = pytest.mark.filterwarnings("ignore::wkwdask.errors.DiscardWarning")
IMAGE = {
    "precomputed": f"precomputed://{URL}/v",
    "ngff": f"{URL}/v.ome.zarr",
    "wkw": f"{URL}/dataset",
    "zarr3": f"{URL}/dataset",
    "n5": f"{URL}/dataset",
}
LAYERS = {
    "wkw": {"block_len": 8, "file_len": 2},
    "zarr3": {"chunk_shape": (8, 8, 8), "shard_shape": (16, 16, 16)},
    "n5": {"chunk_shape": (8, 8, 8)},
}
"""Storage options of layers of a dataset, by their formats."""
VOXELS = np.random.default_rng(1).integers(1, 255, (1, 40, 36, 20), np.uint8)
CORNER = VOXELS[:, :9, :3, :5] // 2
_STEP, _LONG_STEP = 23, 1 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 12
"""Requests between two that are tested in a short and in a long run."""


@pytest.fixture
def bucket():
    with faulty_bucket() as bucket, dask.config.set(scheduler="synchronous"):
        yield bucket


def save(kind, voxels=VOXELS, **options):
    if kind in LAYERS:
        dataset = wkwdask.create_dataset(IMAGE[kind], (4, 4, 8), existing="keep")
        if "v" not in dataset.layers:
            box = (0, 0, 0, *voxels.shape[1:])
            dataset.add_layer("v", "color", voxels.dtype, box, data_format=kind)
        return wkwdask.save(voxels, f"{IMAGE[kind]}/v/1", **LAYERS[kind], **options)
    write = wkwdask.to_zarr
    if kind == "precomputed":  # many objects
        write, options = wkwdask.to_precomputed, {"shard_shape": False, **options}
    return write(voxels, IMAGE[kind], voxel_size=(4, 4, 8), chunk_shape=(8, 8, 8), **options)


def pyramid(kind, **options):
    return wkwdask.build_pyramid(IMAGE[kind], **options)


def levels(kind):
    """The voxels of all levels that readers see."""
    (image,) = find(IMAGE[kind]).layers
    return {level.mag.name: wkwdask.read(IMAGE[kind], mag=level.mag) for level in image.levels}


def _levels_or_none(kind):
    try:
        return levels(kind)
    except wkwdask.WkwDaskError:
        return {}


def is_equal(seen, expected):
    return seen.keys() == expected.keys() and is_part(seen, expected)


def is_part(seen, expected):
    return all(np.array_equal(voxels, expected[mag]) for mag, voxels in seen.items())


def records():
    """Names of what jobs keep while they run."""
    words = (".wkwdask-job-", "wkwdask-lock", ".wkwdask-clock", ".parts/")
    return [name for name in memory_bucket._objects if any(word in name for word in words)]


def replace(kind):
    return save(kind, VOXELS[..., ::-1], existing="overwrite")


_OF_ZARR = pytest.mark.needs("zarr")
KINDS = [
    "precomputed",
    "wkw",
    "n5",
    pytest.param("ngff", marks=_OF_ZARR),
    pytest.param("zarr3", marks=_OF_ZARR),
]


def update(kind):
    return pyramid(kind, update=True)


def change_a_corner(kind, voxels=CORNER, mag="1"):
    """Change voxels of a mag."""
    region = ((0, 0, 0), voxels.shape[1:])
    if kind in LAYERS:
        return wkwdask.save(voxels, f"{IMAGE[kind]}/v/{mag}", region=region)
    return wkwdask.save(voxels, IMAGE[kind], region=region, mag=mag)


def out_of_date(kind):
    pyramid(kind)
    change_a_corner(kind)


JOBS = {"pyramid": pyramid, "replace": replace, "update": update}
BEFORE = {"update": out_of_date}


def chosen(number, request):
    """Many requests in a long run, all in one of the night."""
    is_long = request.node.get_closest_marker("long") is not None
    return range(0, number, _LONG_STEP if is_long else _STEP)


RUNS = ["some", pytest.param("many", marks=pytest.mark.long)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("run", RUNS)
def test_killed_at_any_request(bucket, kind, name, run, request):
    job = JOBS[name]
    save(kind)
    BEFORE.get(name, lambda _: None)(kind)
    start, before = bucket.snapshot(), levels(kind)
    bucket.requests = []
    job(kind)
    number, after = len(bucket.requests), levels(kind)
    assert number > 30
    assert records() == []
    problems = []
    for after_effect in (False, True):
        for n in chosen(number, request):
            bucket.restore(start)
            with bucket.killed_at(n, after=after_effect):
                job(kind)
            seen = levels(kind)
            if not (is_equal(seen, before) or is_equal(seen, after)) and not (
                name == "pyramid" and is_part(seen, after)
            ):
                problems.append(f"request {n}, {after_effect}: a mixture is visible")
            job(kind)
            if not is_equal(levels(kind), after):
                problems.append(f"request {n}, {after_effect}: the same call does not complete it")
            if records():
                problems.append(f"request {n}, {after_effect}: left {records()[:3]}")
    assert not problems, "\n".join(problems[:20])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", RUNS)
def test_a_removal_killed_at_any_request(bucket, kind, run, request):
    """A level is removed when the call returns, also one that another process began to remove."""
    url = f"zarr://{IMAGE[kind]}" if kind == "ngff" else IMAGE[kind]
    save(kind)
    pyramid(kind, mags=["2-2-1"])
    start = bucket.snapshot()
    bucket.requests = []
    wkwdask.rm(url, mags="2-2-1")
    number, after, problems = len(bucket.requests), levels(kind), []
    for after_effect in (False, True):
        for n in chosen(number, request):
            bucket.restore(start)
            with bucket.killed_at(n, after=after_effect):
                wkwdask.rm(url, mags="2-2-1")
            with contextlib.suppress(wkwdask.MissingError):  # it was complete
                wkwdask.rm(url, mags="2-2-1")
            if not is_equal(levels(kind), after):
                problems.append(f"request {n}, {after_effect}: the same call does not complete it")
    assert not problems, "\n".join(problems[:20])


NEW_DATASETS = {
    "voxel size": lambda: wkwdask.to_wkw(
        VOXELS, f"{URL}/new/v/1", voxel_size=(4, 4, 8), block_len=8, file_len=2
    ),
    "coordinates": lambda: wkwdask.to_wkw(
        xr.open_dataset(IMAGE["wkw"], engine="wkw")["v"].load(),
        f"{URL}/new/v/1",
        block_len=8,
        file_len=2,
    ),
    "convert": lambda: wkwdask.convert(
        IMAGE["precomputed"], f"{URL}/new", layer="v", block_len=8, file_len=2
    ),
}


@_OF_ZARR
def test_a_new_image_whose_dead_job_has_written_no_document(bucket):
    """Objects are stored at the same time: a killed job may have stored chunks alone."""
    level = f"{IMAGE['ngff']}/1.20261129T120000-0123abcd"
    store_at(level).put("c/0/0/0", b"1")
    save("ngff")
    np.testing.assert_array_equal(wkwdask.read(IMAGE["ngff"], mag=1), VOXELS)
    assert wkwdask.clean(IMAGE["ngff"]) == [level]
    np.testing.assert_array_equal(wkwdask.read(IMAGE["ngff"], mag=1), VOXELS)


@pytest.mark.parametrize("way", NEW_DATASETS)
def test_a_new_dataset_killed_at_any_request(bucket, way):
    """The JSON appears together with the first mag."""
    save("wkw")
    save("precomputed")
    make, start = NEW_DATASETS[way], bucket.snapshot()
    bucket.requests = []
    make()
    number = len(bucket.requests)
    problems = []
    for n in range(5, number, _STEP):
        bucket.restore(start)
        is_killed = True  # but not after a request that found nothing
        with bucket.killed_at(n, after=bool(n % 2)):
            make()
            is_killed = False
        store = store_at(f"{URL}/new")
        if store.is_file("datasource-properties.json") and not np.array_equal(
            wkwdask.read(store.url), VOXELS
        ):
            problems.append(f"request {n}: a part is visible")
        if is_killed:
            make()
        if not np.array_equal(wkwdask.read(store.url), VOXELS) or records():
            problems.append(f"request {n}: the same call does not complete it: {records()[:3]}")
    assert not problems, "\n".join(problems)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["rerun", "restart"])
@pytest.mark.parametrize("run", RUNS)
def test_woken_after_another_process_took_over(bucket, kind, policy, run, request):
    """Whatever a paused process does when it wakes up, it changes nothing that readers see."""
    problems = problems_of_pauses(bucket, kind, policy, lambda number: chosen(number, request))
    assert not problems, "\n".join(problems[:20])


def test_with_a_renewal_before_the_read_a_woken_process_does_harm(bucket, monkeypatch):
    """A control: a document has to be read before the lease is renewed, not after it."""
    real = remote.RemoteStore.read_known

    def read(store, names, largest, *, is_fresh=False):
        if names == ["info"] and leases.is_fenced():
            leases.check_fence()
            is_fresh = True
        return real(store, names, largest, is_fresh=is_fresh)

    monkeypatch.setattr(remote.RemoteStore, "read_known", read)
    monkeypatch.setattr(documents, "check_fence", lambda read=None: None)
    found = problems_of_pauses(bucket, "precomputed", "restart", lambda n: range(n - 16, n))
    assert found


def test_without_fences_a_woken_process_does_harm(bucket, monkeypatch):
    """A control: the test above can fail."""
    monkeypatch.setattr(documents, "check_fence", lambda read=None: None)
    monkeypatch.setattr(leases.Lease, "renew", _renew_always)
    assert problems_of_pauses(bucket, "precomputed", "restart", lambda n: range(n - 30, n, 5))


@pytest.mark.parametrize("creates_only", [True, False], ids=["", "control"])
def test_a_woken_process_does_not_replace_what_was_published(bucket, monkeypatch, creates_only):
    """Chunks are created and never replaced by a job: without that, which is the control, a region
    that was written after the publication is lost."""
    if not creates_only:
        monkeypatch.setattr(remote.RemoteStore, "publish", remote.RemoteStore.put)
    monkeypatch.setattr(line_objects, "_MOST_SECONDS", -1.0)  # so that the job can be resumed
    url = IMAGE["precomputed"]

    def work():
        with regions_of(8):
            pyramid("precomputed", mags=["2-2-1"])

    save("precomputed")
    start = bucket.snapshot()
    bucket.requests = []
    work()
    puts = [
        n
        for n, (call, name) in enumerate(bucket.requests)
        if call == "put_once" and basename(name).count("-") == 3 and job_in(basename(dirname(name)))
    ]
    assert len(puts) == 3 * 3 * 3
    lost = []
    for n in puts[2::8]:
        bucket.restore(start)
        with bucket.paused_at(n, work):
            work()
            voxels = wkwdask.read(url, mag="2-2-1")
            region = ((0, 0, 0), voxels.shape[1:])
            wkwdask.save(np.zeros_like(voxels), url, region=region, mag="2-2-1")
        lost.append(wkwdask.read(url, mag="2-2-1").any())
    assert not any(lost) if creates_only else all(lost), lost


def _renew_always(lease, **changes):
    folder, name = split(lease.path)
    lease.record = {**lease.record, **changes, "nonce": secrets.token_hex(8)}
    store_at(folder).put(name, json.dumps(lease.record).encode())


def problems_of_pauses(bucket, kind, policy, points):
    """Pause a job at some of its requests, let another process complete it, or replace it by one of
    other settings, and wake the first one."""
    save(kind)
    start = bucket.snapshot()
    bucket.requests = []
    pyramid(kind)
    number, first = len(bucket.requests), levels(kind)
    bucket.restore(start)
    pyramid(kind, method="nearest")
    second = levels(kind)
    options = {} if policy == "rerun" else {"existing": "restart", "method": "nearest"}
    problems = []
    for after_effect in (False, True):
        for n in points(number):
            bucket.restore(start)
            with bucket.paused_at(n, lambda: pyramid(kind), after=after_effect) as ends:
                try:
                    pyramid(kind, **options)
                except ReplacedError:  # it completed the other job, on which it was not planned
                    pyramid(kind, **options)
                seen = levels(kind)
            where = f"request {n}, {after_effect}, {ends}"
            if not is_equal(seen, first if policy == "rerun" else second):
                problems.append(f"{where}: the second process did not complete")
            elif not is_equal(_levels_or_none(kind), seen):
                problems.append(f"{where}: the first process changed what was complete")
            elif ends not in ([None], [LockedError], [ReplacedError], [ExistsError]):
                problems.append(f"{where}: another error")
    return problems


def test_a_running_job_is_not_taken_over(bucket, monkeypatch):
    monkeypatch.setattr(leases, "TTL_SECONDS", 3600.0)
    save("precomputed")
    start = bucket.snapshot()
    bucket.requests = []
    pyramid("precomputed")
    middle = len(bucket.requests) // 2
    bucket.restore(start)
    with bucket.killed_at(middle, after=False):
        pyramid("precomputed")
    with pytest.raises(LockedError, match="another job"):
        pyramid("precomputed")
    monkeypatch.setattr(leases, "TTL_SECONDS", -10.0)
    pyramid("precomputed")
    assert len(levels("precomputed")) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_states_the_requests_of_a_job(bucket, kind):
    save(kind, np.repeat(np.repeat(VOXELS, 4, axis=1), 4, axis=2))
    (source,) = [level.folder for level in find(IMAGE[kind]).layers[0].levels]
    plan = wkwdask.plan_pyramid(IMAGE[kind])
    writes, reads = plan.requests
    bucket.requests = []
    pyramid(kind)
    made = [name for name, url in bucket.requests if source not in str(url)]  # may be anywhere
    written = sum(name in ("put_once", "delete") for name in made)
    assert (plan.files > 100) is (kind in ("precomputed", "n5"))
    assert written / 1.3 < writes < 1.3 * written
    assert (len(made) - written) / 1.6 < reads < 1.6 * (len(made) - written)
    assert f"{writes:,} that write and {reads:,} that read" in str(plan)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_plan_of_an_update_states_its_files_and_requests(bucket, kind):
    save(kind, np.repeat(np.repeat(VOXELS, 4, axis=1), 4, axis=2))
    pyramid(kind)
    change_a_corner(kind)
    before = dict(memory_bucket._objects)
    plan = wkwdask.plan_pyramid(IMAGE[kind], update=True)
    assert memory_bucket._objects == before
    writes, _ = plan.requests
    bucket.requests = []
    report = update(kind)
    copied = sum(mag.copied for mag in plan.mags)
    written = sum(mag.files for mag in report.mags)
    assert written <= plan.files + copied <= 1.3 * written  # of small files, not of whole shards
    made = [name for name, _ in bucket.requests]
    # S3 takes three requests for a copy, the bucket in memory one
    written = made.count("put_once") + made.count("delete") + 3 * made.count("copy_once")
    assert made.count("copy_once") == copied
    assert written / 1.3 < writes < 1.3 * written
    assert f"about {writes:,} that write" in str(plan)


def test_replaced_levels_stay_for_a_grace(bucket):
    save("precomputed")
    opened = wkwdask.open(IMAGE["precomputed"], mag=1)
    replace("precomputed")
    np.testing.assert_array_equal(opened.compute(), VOXELS)
    assert wkwdask.clean(IMAGE["precomputed"]) == []
    (old,) = wkwdask.clean(IMAGE["precomputed"], grace_seconds=0, dry_run=True)
    assert store_at(old).is_folder()
    assert wkwdask.clean(IMAGE["precomputed"], grace_seconds=0) == [old]
    assert not store_at(old).is_folder()
    np.testing.assert_array_equal(wkwdask.read(IMAGE["precomputed"], mag=1), VOXELS[..., ::-1])
    with pytest.raises(ReplacedError, match="open it again"):  # never zeros
        opened.compute()


@pytest.mark.parametrize("kind", KINDS)
def test_levels_of_other_software_are_never_read_as_zeros(bucket, kind):
    """Their folders have plain names, and no record of wkwdask."""
    save(kind)
    (old,) = [level.folder for level in find(IMAGE[kind]).layers[0].levels]
    plain = plain_name(old)
    for name, data in list(memory_bucket._objects.items()):
        del memory_bucket._objects[name]
        if not basename(name).startswith(".wkwdask"):
            new = name.replace(basename(old), basename(plain))
            memory_bucket._objects[new] = data
    for name in ("info", "zarr.json", "../datasource-properties.json"):
        store = store_at(split(plain)[0])
        found = store.read_state(name, 1 << 20)
        if found is not None:
            renamed = found[0].replace(basename(old).encode(), basename(plain).encode())
            store.put(name, renamed, found[1])
    remote._recent.clear()
    opened = wkwdask.open(IMAGE[kind], mag=1)
    np.testing.assert_array_equal(opened.compute(), VOXELS)
    replace(kind)
    np.testing.assert_array_equal(opened.compute(), VOXELS)
    assert wkwdask.clean(IMAGE[kind], grace_seconds=0) == [plain]
    with pytest.raises(ReplacedError, match="open it again"):
        opened.compute()


def test_clean_removes_the_questions_of_killed_processes(bucket, monkeypatch):
    """Objects by which processes ask for the time, and whether conditions are honoured."""
    monkeypatch.setattr(leases, "_probed", set())
    real = memory_bucket.delete

    def delete(urls, access):
        if any(word in url for url in urls for word in ("clock", "probe")):
            raise Killed
        real(urls, access)

    monkeypatch.setattr(memory_bucket, "delete", delete)
    monkeypatch.setattr(leases, "_probed_copies", set())
    for ask in (
        lambda store: store.now(),
        lambda store: leases.check_conditions(store.url),
        lambda store: leases.check_copies(store.url),
    ):
        with pytest.raises(Killed):
            ask(store_at(f"{URL}/v"))
    monkeypatch.setattr(memory_bucket, "delete", real)
    left = sorted(memory_bucket._objects)
    save("precomputed")
    remote._recent.clear()
    assert wkwdask.clean(IMAGE["precomputed"]) == []  # of a process that lives, or did just now
    for url in left:
        found = memory_bucket._objects[url]
        memory_bucket._objects[url] = found._replace(modified=found.modified - 7200)
    assert sorted(wkwdask.clean(IMAGE["precomputed"], dry_run=True)) == left
    assert sorted(wkwdask.clean(IMAGE["precomputed"])) == left
    assert not memory_bucket._objects.keys() & set(left)
    np.testing.assert_array_equal(wkwdask.read(IMAGE["precomputed"], mag=1), VOXELS)


@pytest.mark.needs("zarr")
def test_clean_removes_strays_but_nothing_that_is_listed(bucket):
    save("ngff")
    (listed,) = [level.folder for level in find(IMAGE["ngff"]).layers[0].levels]
    stray = f"{URL}/v.ome.zarr/2.20261101T000000-0123abcd"
    store_at(stray).put("c/0/0/0", b"x")
    assert wkwdask.clean(IMAGE["ngff"]) == [stray]
    assert store_at(listed).is_folder()
    assert wkwdask.clean(IMAGE["ngff"]) == []


def test_more_ids_than_32_bits_hold(bucket, monkeypatch):
    """The level is laid out again in the same place, with the scratch files of the job."""
    monkeypatch.setattr(id_types, "_MOST_OF_32_BITS", 1)
    labels = np.zeros((1, 20, 20, 20), np.uint8)
    labels[:, ::4, ::4, ::4] = 1
    save("precomputed", labels)
    target = f"precomputed://{URL}/ids"
    wkwdask.connected_components(IMAGE["precomputed"], target)
    found = wkwdask.read(target)
    assert (found.dtype, found.max()) == (np.uint64, labels.sum())
    assert records() == []
