"""Requests of tiny jobs in a bucket, counted by kind: each is one more round trip, and costs money.

A change that needs fewer requests corrects the numbers; one that needs more says why. Those of
a job that saves an image of one shard, and why they stay:

==================  ========  =================================================================
objects             requests  why
==================  ========  =================================================================
shard               1         the data
info                3         read when the job is planned and before the commit, and switched: a
                              renewal of the lease lies between the last two
lease               4         taken; renewed before the records and with the commit; deleted last
lock of the level   3         taken; released if it is still ours
plan, journal,      6         for resume and ``status``; listed before they are deleted, as other
progress                      processes may have written some
records of level    3         tell readers that it is in place; replaced only as they were read
provenance          2         a document of the format, which is created once
neighbours          4         no other data, jobs, locks, garbage or dataset are in the folder or
                              around it: listed when the job is planned and when it has its lock
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
KINDS = {"put_once": "write", "delete": "delete", "names": "list", "walk": "list"}


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
    ("precomputed", "save"): {"read": 6, "list": 3, "write": 14, "delete": 3},
    ("precomputed", "pyramid"): {"read": 9, "list": 3, "write": 18, "delete": 3},
    ("precomputed", "region"): {"read": 12, "list": 3, "write": 6, "delete": 3},
    ("precomputed", "convert"): {"read": 8, "list": 3, "write": 14, "delete": 3},
    ("precomputed", "replace"): {"read": 7, "list": 4, "write": 14, "delete": 3},
    ("precomputed", "rm"): {"read": 13, "list": 10, "write": 9, "delete": 3},
    ("ngff", "save"): {"read": 5, "list": 3, "write": 14, "delete": 3},
    ("ngff", "pyramid"): {"read": 12, "list": 3, "write": 20, "delete": 4},
    ("ngff", "region"): {"read": 9, "list": 3, "write": 6, "delete": 3},
    ("ngff", "convert"): {"read": 10, "list": 3, "write": 14, "delete": 3},
    ("ngff", "replace"): {"read": 14, "list": 4, "write": 15, "delete": 4},
    ("ngff", "rm"): {"read": 16, "list": 10, "write": 9, "delete": 4},
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
        counted = Counter(KINDS.get(name, "read") for name, _ in bucket.requests)
    assert dict(counted) == EXPECTED[kind, job]


def test_an_array_is_stored_again_where_it_has_files():
    """It begins at voxel 0, and its files begin at the layer's box."""
    with faulty_bucket() as bucket, dask.config.set(scheduler="synchronous"):
        dataset, corner = wkwdask.create_dataset(f"{URL}/ds", (4, 4, 4)), (64, 64, 64)
        dataset.add_layer("c", "color", "uint8", (*corner, 16, 16, 16), data_format="zarr3")
        shape, url = {"chunk_shape": (8, 8, 8), "shard_shape": (16, 16, 16)}, f"{URL}/ds/c/1"
        wkwdask.save(VOXELS[:, :16, :16, :16], url, offset=corner, **shape)
        bucket.requests = []
        wkwdask.rechunk(dataset.path, layer="c", chunk_shape=(4, 4, 4))
        files = {str(touched).partition("/c/0/")[2] for _, touched in bucket.requests}
        assert files == {"", "4/4/4"}
        np.testing.assert_array_equal(wkwdask.read(url), VOXELS[:, :16, :16, :16])


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_meshes_read_a_scratch_file_at_once():
    labels = np.zeros((1, 30, 20, 20), np.uint32)
    labels[:, 3:25, 4:12, 4:16] = 1
    with faulty_bucket() as bucket, dask.config.set(scheduler="synchronous"):
        wkwdask.save(labels, IMAGES["precomputed"], voxel_size=(4, 4, 8), category="segmentation")
        bucket.requests = []
        wkwdask.meshes(IMAGES["precomputed"], cell=12)
        touched = (url for name, url in bucket.requests if name != "delete")
        of_cells = Counter(url for url in touched if "/lod" in url)
    assert len(of_cells) > 8
    assert max(of_cells.values()) <= 4  # written, and read for tables, for the next level, to sort
