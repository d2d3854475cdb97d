"""Interrupted writes of arrays: the same call resumes, ``status`` reports it, and ``cancel
--discard`` removes the job."""

from __future__ import annotations

import os

import dask
import dask.array as da
import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.errors import DiscardWarning

OPTIONS = {"block_len": 8, "file_len": 1}
VOXELS = np.arange(1, 4097, dtype=np.uint32).reshape(16, 16, 16)


class StoppedError(Exception):
    """Raised to interrupt the call."""


class Plug:
    """Count chunks, and fail from a given one on; all instances have the same name in a graph."""

    seen, most = 0, 1000

    def __call__(self, voxels):
        Plug.seen += 1
        if Plug.seen > Plug.most:
            raise StoppedError
        return voxels

    def __dask_tokenize__(self):
        return ("plug",)


@pytest.fixture(autouse=True)
def _serial():
    with dask.config.set(scheduler="synchronous"):
        yield


def array(voxels=VOXELS):
    return da.from_array(voxels, chunks=8).map_blocks(
        Plug(), dtype=voxels.dtype, meta=voxels[:0, :0, :0]
    )


def write(folder, most=1000, voxels=VOXELS, **options):
    Plug.seen, Plug.most = 0, most
    return wkwdask.to_wkw(array(voxels), folder / "seg" / "1", **OPTIONS, **options)


@pytest.fixture
def interrupted(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    with pytest.raises(StoppedError):
        write(tmp_path / "ds", most=5)
    return tmp_path / "ds"


def jobs(folder):
    return [name for name in os.listdir(folder / "seg") if name.startswith(".wkwdask-job")]


def test_the_same_call_resumes(interrupted):
    report = write(interrupted)
    assert Plug.seen == 3
    assert "5 files had been finished before" in report.note
    np.testing.assert_array_equal(wkwdask.read(interrupted / "seg" / "1")[0], VOXELS)


def test_another_array_starts_over(interrupted):
    with pytest.warns(DiscardWarning, match="5 tasks, 10.4 kB of to_wkw"):
        write(interrupted, voxels=VOXELS + 1)
    assert Plug.seen == 8
    np.testing.assert_array_equal(wkwdask.read(interrupted / "seg" / "1")[0], VOXELS + 1)


def test_overwriting_starts_over_and_says_how_much_is_discarded(tmp_path):
    """Nothing shows that a graph of the same name computes the same voxels."""
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    with pytest.raises(StoppedError) as caught:
        write(tmp_path / "ds", most=5, existing="overwrite")
    assert caught.value.__notes__ == [
        'finished work is kept (5 tasks, 10.4 kB): existing="resume" resumes with any array'
    ]
    assert (
        'the same call resumes it if existing is "resume", then with any array'
        in run_here("status", tmp_path / "ds").stdout
    )
    with pytest.warns(
        DiscardWarning,
        match="discards the finished work of an interrupted job: 5 tasks, 10.4 kB of to_wkw",
    ):
        write(tmp_path / "ds", existing="overwrite")
    assert Plug.seen == 8


def test_overwriting_with_a_token_resumes(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    write(tmp_path / "ds", voxels=VOXELS + 1)
    with pytest.raises(StoppedError):
        write(tmp_path / "ds", most=5, existing="overwrite", token="v1")
    report = write(tmp_path / "ds", existing="overwrite", token="v1")
    assert Plug.seen == 3
    assert "5 files had been finished before" in report.note
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds" / "seg" / "1")[0], VOXELS)
    with pytest.raises(StoppedError):
        write(tmp_path / "ds", most=5, existing="overwrite", token="v2")
    with pytest.warns(DiscardWarning):
        write(tmp_path / "ds", existing="overwrite", token="v3")
    assert Plug.seen == 8


def test_an_array_of_another_name_resumes_only_on_request(interrupted):
    Plug.seen, Plug.most = 0, 1000
    renamed = array().map_blocks(lambda voxels: voxels, dtype=VOXELS.dtype, name="another")
    wkwdask.to_wkw(renamed, interrupted / "seg" / "1", existing="resume", **OPTIONS)
    assert Plug.seen == 3


def test_status_reports_and_cancel_discards_the_job(interrupted):
    printed = run_here("status", interrupted).stdout
    assert (
        'the same call with the same array resumes it, and with any array if existing is "resume"'
        in printed
    )
    assert f"removed by: wkwdask cancel {interrupted}/seg --discard" in printed
    refused = run_here("cancel", interrupted)
    assert refused.returncode == 1
    assert "was interrupted, --discard removes it" in refused.stderr
    assert len(jobs(interrupted)) == 1
    ended = run_here("cancel", interrupted, "--discard")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("removed ")
    assert os.listdir(interrupted / "seg") == []
    write(interrupted)
    assert Plug.seen == 8
    assert "no running job" in run_here("cancel", interrupted, "--discard").stderr
