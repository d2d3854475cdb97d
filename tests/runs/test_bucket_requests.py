"""Requests of tiny jobs in a bucket, counted by kind: each is one more round trip, and costs money.

A change that needs fewer requests corrects the numbers; one that needs more says why.
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
    ("precomputed", "save"): {"read": 30, "list": 11, "write": 16, "delete": 4},
    ("precomputed", "pyramid"): {"read": 39, "list": 13, "write": 19, "delete": 5},
    ("precomputed", "region"): {"read": 28, "list": 12, "write": 6, "delete": 3},
    ("precomputed", "convert"): {"read": 45, "list": 10, "write": 15, "delete": 4},
    ("precomputed", "replace"): {"read": 27, "list": 10, "write": 15, "delete": 4},
    ("precomputed", "rm"): {"read": 26, "list": 11, "write": 9, "delete": 3},
    ("ngff", "save"): {"read": 40, "list": 10, "write": 15, "delete": 4},
    ("ngff", "pyramid"): {"read": 50, "list": 13, "write": 21, "delete": 6},
    ("ngff", "region"): {"read": 26, "list": 12, "write": 6, "delete": 3},
    ("ngff", "convert"): {"read": 34, "list": 11, "write": 16, "delete": 4},
    ("ngff", "replace"): {"read": 41, "list": 11, "write": 16, "delete": 5},
    ("ngff", "rm"): {"read": 41, "list": 15, "write": 9, "delete": 4},
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
