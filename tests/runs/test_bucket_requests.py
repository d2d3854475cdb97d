"""Requests of tiny jobs in a bucket, counted by kind: each is one more round trip, and costs money.

A change that needs fewer requests corrects the numbers; one that needs more says why. Those of
a job that saves an image of one shard, and why they stay:

==================  ========  =================================================================
objects             requests  why
==================  ========  =================================================================
shard               1         the data
info                6         read when the job is planned, under its lock, before the commit, for
                              the name of the old level, and by the switch between two renewals
lease               7         taken; renewed before each write that depends on it; deleted last
lock of the level   6         free when planned and when taken; taken; alone; released if still ours
plan, journal,      10        for resume and ``status``; listed before they are deleted, as other
progress                      processes may have written some; the plan is deleted first
records of level    5         tell readers that it is in place; replaced only as they were read
provenance          2         a document of the format, which is created once
neighbours          9         no other data, garbage or dataset are in the folder or around it
==================  ========  =================================================================
"""

from __future__ import annotations

from collections import Counter

import dask
import numpy as np
import pytest
from support.bucket_faults import URL, faulty_bucket

import wkwdask
from wkwdask.store import leases
from wkwdask.store.objects import remote

pytestmark = pytest.mark.needs("zarr")
VOXELS = np.random.default_rng(1).integers(1, 255, (1, 20, 18, 20), np.uint8)
IMAGES = {"precomputed": f"precomputed://{URL}/v", "ngff": f"zarr://{URL}/v.ome.zarr"}
OTHERS = {"precomputed": f"{URL}/w.ome.zarr", "ngff": f"precomputed://{URL}/w"}
BOX = ((0, 0, 0), (8, 8, 8))
KINDS = {"put_once": "write", "delete": "delete", "names": "list"}


def save(url, voxels=VOXELS, **options):
    wkwdask.save(voxels, url, voxel_size=(4, 4, 8), chunk_shape=(8, 8, 8), **options)


JOBS = {
    "save": lambda image, _: save(image),
    "pyramid": lambda image, _: wkwdask.build_pyramid(image, method="max"),
    "region": lambda image, _: wkwdask.save(VOXELS[:, :8, :8, :8], image, region=BOX),
    "convert": lambda image, other: wkwdask.convert(image, other),
    "replace": lambda image, _: save(image, VOXELS[..., ::-1], existing="overwrite"),
    "rm": lambda image, _: wkwdask.rm(image, mags="2-2-1"),
}
EXPECTED = {
    ("precomputed", "save"): {"read": 19, "list": 7, "write": 16, "delete": 4},
    ("precomputed", "pyramid"): {"read": 23, "list": 9, "write": 19, "delete": 5},
    ("precomputed", "region"): {"read": 20, "list": 9, "write": 6, "delete": 3},
    ("precomputed", "convert"): {"read": 35, "list": 7, "write": 15, "delete": 4},
    ("precomputed", "replace"): {"read": 17, "list": 7, "write": 15, "delete": 4},
    ("precomputed", "rm"): {"read": 17, "list": 10, "write": 9, "delete": 3},
    ("ngff", "save"): {"read": 30, "list": 7, "write": 15, "delete": 4},
    ("ngff", "pyramid"): {"read": 33, "list": 9, "write": 21, "delete": 6},
    ("ngff", "region"): {"read": 18, "list": 9, "write": 6, "delete": 3},
    ("ngff", "convert"): {"read": 23, "list": 7, "write": 16, "delete": 4},
    ("ngff", "replace"): {"read": 29, "list": 8, "write": 16, "delete": 5},
    ("ngff", "rm"): {"read": 32, "list": 14, "write": 9, "delete": 4},
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("kind", IMAGES)
def test_number_of_requests(kind, job, monkeypatch):
    monkeypatch.setattr(remote, "_TRUSTED_SECONDS", 1e9)  # the count depends on no time
    monkeypatch.setattr(leases, "_probed", {URL})  # by the first job of a process, 5 requests more
    image, other = IMAGES[kind], OTHERS[kind]
    with faulty_bucket() as bucket, dask.config.set(scheduler="synchronous"):
        if job != "save":
            save(image)
        if job in ("replace", "rm"):
            wkwdask.build_pyramid(image, method="max")
        bucket.requests = []
        JOBS[job](image, other)
        counted = Counter(KINDS.get(name, "read") for name, _ in bucket.requests if name != "walk")
    assert dict(counted) == EXPECTED[kind, job]
