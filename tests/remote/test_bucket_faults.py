"""Servers of buckets that refuse, fail after they did what was asked, or ignore conditions: jobs
end well, or stop with an error that names the object, and resume."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.buckets import gs_bucket

import wkwdask
from wkwdask.errors import UnsupportedError
from wkwdask.store import leases
from wkwdask.store.objects import access, object_store

pytestmark = pytest.mark.needs("obstore", "zarr")
VOXELS = np.random.default_rng(2).integers(1, 255, (1, 40, 36, 20), np.uint8)
IMAGE = "precomputed://gs://bucket/v"


@pytest.fixture
def storage(monkeypatch):
    with gs_bucket() as bucket:
        for name, value in {**bucket.environment(bucket.server), **bucket.keys}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(access, "_given", {})
        monkeypatch.setattr(leases, "_probed", set())
        object_store._connections._values.clear()
        yield bucket.service
        object_store._connections._values.clear()


def save():
    return wkwdask.to_precomputed(
        VOXELS, IMAGE, voxel_size=(4, 4, 8), chunk_shape=(8, 8, 8), shard_shape=False
    )


def is_record(path):
    return "/.wkwdask" in path or "-lock" in path


def test_a_server_that_ignores_conditions_is_refused(storage):
    storage.honours_conditions = False
    with pytest.raises(
        UnsupportedError, match=r"does not honour conditional writes.*single_writer"
    ):
        save()
    assert storage.objects == {}


def test_a_single_writer_needs_no_conditions(storage):
    """The objects of a dead job stay: without conditions nobody knows that it is dead."""
    storage.honours_conditions = False
    access.remember_access("gs://bucket", {"single_writer": True})
    save()
    storage.before = lambda number, method, path: (
        403 if method == "PUT" and re.search(r"/16\S*/\d+-\d+_", path) else None
    )
    with pytest.raises(PermissionError):
        wkwdask.build_pyramid(IMAGE, method="max")
    storage.before = lambda *_: None
    unfinished = set(storage.objects)
    assert wkwdask.clean(IMAGE, grace_seconds=0) == []
    assert set(storage.objects) == unfinished
    wkwdask.build_pyramid(IMAGE, method="max")
    wkwdask.to_precomputed(
        VOXELS[..., ::-1], IMAGE, voxel_size=(4, 4, 8), chunk_shape=(8, 8, 8), existing="overwrite"
    )
    np.testing.assert_array_equal(wkwdask.read(IMAGE, mag=1), VOXELS[..., ::-1])


@pytest.mark.parametrize("status", [500, 503, 429, 0], ids=str)
@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not done"])
def test_failures_of_single_requests_do_no_harm(storage, status, is_done):
    """Some writes fail once, before or after it took effect; 0 drops the connection."""
    if status == 0 and not is_done:
        pytest.skip("a connection is dropped after the request")
    failed = set()

    def fail(number, method, path):
        if method in ("PUT", "DELETE") and number % 11 == 0 and path not in failed:
            failed.add(path)
            return status
        return None

    if is_done:
        storage.after = fail
    else:
        storage.before = fail
    save()
    wkwdask.build_pyramid(IMAGE, method="max")
    assert len(failed) > 3
    np.testing.assert_array_equal(wkwdask.read(IMAGE, mag=1), VOXELS)
    assert wkwdask.verify(IMAGE).is_sound
    assert not [path for path in storage.objects if "-job-" in path or "lock" in path]


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("methods", [("PUT",), ("PUT", "GET", "HEAD", "DELETE")], ids=len)
def test_keys_that_end_in_the_middle_of_a_job(storage, monkeypatch, status, methods):
    """The job stops with an error that names what was written, and the same call completes it, once
    the lease has ended that could not be given back."""
    save()
    before = wkwdask.read(IMAGE, mag=1)
    ended = []

    def refuse(number, method, path):
        if method == "PUT" and re.search(r"/\d+-\d+_", path):
            ended.append(path)
        return status if ended and method in methods else None

    storage.before = refuse
    with pytest.raises(PermissionError, match=rf"cannot be written.*{status}") as caught:
        wkwdask.build_pyramid(IMAGE, method="max")
    assert re.search(r"gs://bucket/v/\d", str(caught.value))
    storage.before = lambda *_: None
    np.testing.assert_array_equal(wkwdask.read(IMAGE, mag=1), before)
    monkeypatch.setattr(leases, "TTL_SECONDS", -10.0)
    report = wkwdask.build_pyramid(IMAGE, method="max")
    assert len(report.mags) >= 2
    assert wkwdask.verify(IMAGE).is_sound


def test_a_user_who_may_not_write(storage):
    storage.before = lambda number, method, path: 403 if method == "PUT" else None
    with pytest.raises(PermissionError, match=r"cannot be written.*gs://bucket/v/"):
        save()
    assert storage.objects == {}


def test_a_user_who_may_not_delete(storage):
    """The image is complete, and what stays is found by `clean`."""
    storage.before = lambda number, method, path: 403 if method == "DELETE" else None
    with pytest.raises(PermissionError, match=r"cannot be deleted.*gs://bucket/v/"):
        save()
    storage.before = lambda *_: None
    save()
    np.testing.assert_array_equal(wkwdask.read(IMAGE, mag=1), VOXELS)
