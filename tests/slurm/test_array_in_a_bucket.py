"""Job arrays of a real SLURM that write into a bucket of S3."""

from __future__ import annotations

import json

import numpy as np
import pytest
from faults.drivers import regions_of
from slurm.array import finished, submit
from support.buckets import s3_bucket
from support.commands import COMMAND, run_here

import wkwdask
from wkwdask.errors import LockedError
from wkwdask.formats.opening import find
from wkwdask.store.store import store_at

pytestmark = [pytest.mark.slurm, pytest.mark.needs("obstore", "moto")]
VOXELS = np.random.default_rng(1).integers(1, 255, (1, 96, 96, 96), np.uint8)


@pytest.fixture
def bucket(tmp_path):
    with s3_bucket() as running, running.reached():
        yield f"{running.url}/{tmp_path.name}"


@pytest.fixture(params=["precomputed", pytest.param("ngff", marks=pytest.mark.needs("zarr"))])
def image(request, bucket):
    """Image of one level in the bucket."""
    url = f"precomputed://{bucket}/v" if request.param == "precomputed" else f"{bucket}/v.ome.zarr"
    wkwdask.save(VOXELS, url, voxel_size=(4, 4, 8), chunk_shape=(16, 16, 16))
    return url


def levels(url):
    (image,) = find(url).layers
    return [wkwdask.read(url, mag=level.mag) for level in image.levels]


def left_over(bucket):
    return [
        f"{folder}/{name}"
        for folder, _, names in store_at(bucket).walk()
        for name in names
        if "wkwdask-job" in folder or "lock" in name
    ]


def test_a_lost_element_and_then_the_rest(slurm, bucket, image, capsys):
    """While the jobs wait for an hour, others find the image locked."""
    jobs = submit(capsys, "pyramid", image, "--sbatch", "--begin=now+1hour", elements=3)
    with pytest.raises(LockedError, match=f"SLURM job {jobs[1]}"):
        wkwdask.build_pyramid(image)
    shown = json.loads(run_here("status", image, "--json").stdout)
    assert [job["state"] for job in shown] == ["running", "finished"]
    slurm.run("scancel", f"{jobs[0]}_1")
    for number in jobs:
        slurm.run("scontrol", "update", f"jobid={number}", "StartTime=now")
    state, printed = finished(slurm, jobs)
    assert state == "COMPLETED", printed
    assert "1 element did not complete" in printed
    assert not left_over(bucket)
    found = levels(image)
    assert len(found) > 1
    wkwdask.build_pyramid(image, existing="overwrite")
    for new, old in zip(levels(image), found, strict=True):
        np.testing.assert_array_equal(new, old)


def test_a_cancelled_job_resumes(slurm, bucket, image, capsys):
    jobs = submit(capsys, "pyramid", image, "--sbatch", "--begin=now+1hour")
    COMMAND.main(["cancel", image], standalone_mode=False)
    slurm.wait_for(jobs[1], "CANCELLED")
    with regions_of(32):
        wkwdask.build_pyramid(image)
    assert len(levels(image)) > 1
    assert not left_over(bucket)
