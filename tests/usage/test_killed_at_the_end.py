"""Jobs killed at their last steps, while the result is published: the same call succeeds and leaves
no other files."""

from __future__ import annotations

import os
import shutil

import dask
import numpy as np
import pytest
from hypothesis import settings
from support.file_events import counting

import wkwdask

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
OPTIONS = {"block_len": 8, "file_len": 2}
CHANGES = {"os.mkdir", "os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir"}
STEPS = (0, 2, 5, 9)  # changes before the last one of a job
LABELS = np.kron(np.arange(1, 9, dtype=np.uint32).reshape(2, 2, 2), np.ones((8, 8, 8), np.uint32))


def double(voxels):
    return voxels * 2


JOBS = {
    "pyramid": lambda here: wkwdask.build_pyramid(here / "ds", "seg", mags=[2, 4]),
    "pyramid of two layers": lambda here: wkwdask.build_pyramid(
        here / "ds", ["seg", "em"], mags=[2, 4]
    ),
    "pyramid of a precomputed volume": lambda here: wkwdask.build_pyramid(
        f"precomputed://{here}/volume", mags=[2, 4]
    ),
    "to_wkw": lambda here: wkwdask.to_wkw(LABELS, here / "ds" / "new" / "1", **OPTIONS),
    "to_wkw of a dask array": lambda here: wkwdask.to_wkw(
        dask.array.from_array(LABELS, chunks=8) + 1, here / "ds" / "new" / "1", **OPTIONS
    ),
    "rechunk": lambda here: wkwdask.rechunk(
        here / "ds" / "seg" / "1", here / "ds" / "new" / "1", file_len=1
    ),
    "compress": lambda here: wkwdask.compress(here / "ds" / "em"),
    "copy": lambda here: wkwdask.copy(here / "ds", here / "copy"),
    "apply": lambda here: wkwdask.apply(
        double, here / "ds" / "seg" / "1", here / "ds" / "new" / "1"
    ),
    "upsample": lambda here: wkwdask.upsample(here / "ds", "coarse"),
    "segment": lambda here: wkwdask.segment(
        np.copy, here / "ds" / "seg" / "1", here / "ds" / "new" / "1", halo=1
    ),
    "components": lambda here: wkwdask.connected_components(
        here / "ds" / "seg" / "1", here / "ds" / "new" / "1"
    ),
    "remap": lambda here: wkwdask.remap(
        here / "ds" / "seg" / "1", here / "ds" / "new" / "1", {1: 7}, default="keep"
    ),
    "convert to precomputed": lambda here: wkwdask.convert(
        here / "ds" / "seg", f"precomputed://{here}/made", pyramid=True
    ),
    "convert to OME-NGFF": lambda here: wkwdask.convert(
        here / "ds" / "seg", here / "made.ome.zarr"
    ),
    "convert to N5": lambda here: wkwdask.convert(here / "ds" / "seg", f"n5://{here}/made.n5"),
    "convert from precomputed": lambda here: wkwdask.convert(
        f"precomputed://{here}/volume", here / "ds2", pyramid=True
    ),
}
ALWAYS_AGAIN = [name for name in JOBS if name.startswith("pyramid")]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    here = tmp_path_factory.mktemp("start")
    wkwdask.create_dataset(here / "ds", (4, 4, 4))
    wkwdask.to_wkw(LABELS, here / "ds" / "seg" / "1", **OPTIONS)
    wkwdask.to_wkw(LABELS.astype(np.uint8), here / "ds" / "em" / "1", compression="raw", **OPTIONS)
    wkwdask.to_wkw(LABELS[:8, :8, :8], here / "ds" / "coarse" / "2", **OPTIONS)
    wkwdask.to_precomputed(LABELS, here / "volume", voxel_size=(4, 4, 4), chunk_shape=(8, 8, 8))
    return here


@pytest.fixture(autouse=True)
def _serial(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with dask.config.set(scheduler="synchronous"):
        yield


def killed_at(number, job, here):
    """Run a job in a process that ends before a change of that number; returns its exit code."""
    child = os.fork()
    if not child:
        try:
            with counting(here, number, lambda: os._exit(9), CHANGES):
                job(here)
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def hidden(here):
    return sorted(
        str(path)
        for path in here.rglob(".wkwdask*")
        if path.name not in (".wkwdask.json", ".wkwdask.files", ".wkwdask.progress")
    )


def voxels(here):
    found = {}
    for path in sorted(here.rglob("header.wkw")):
        found[str(path.parent.relative_to(here))] = wkwdask.read(path.parent).tobytes()
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", list(JOBS))
def test_the_same_call_succeeds(start, tmp_path, name):
    if name == "convert to OME-NGFF":
        pytest.importorskip("zarr", reason="the extra zarr")
    job = JOBS[name]
    whole = shutil.copytree(start, tmp_path / "whole")
    with counting(whole, events=CHANGES) as counter:
        job(whole)
    expected, kept = voxels(whole), hidden(whole)
    steps = (
        STEPS
        if settings.get_current_profile_name() == "nightly"
        else [STEPS[0], STEPS[1 + list(JOBS).index(name) % 3]]
    )
    for number in sorted({max(1, counter.count - step) for step in steps}):
        here = shutil.copytree(start, tmp_path / "here")
        assert killed_at(number, job, here) == 9, number
        job(here)
        assert voxels(here) == expected, number
        assert [path.replace("here", "whole") for path in hidden(here)] == kept, number
        shutil.rmtree(here)
    if name in ALWAYS_AGAIN:
        assert "nothing to do" in job(whole).note
        assert voxels(whole) == expected


def test_a_pyramid_of_other_settings_or_another_source_is_an_error(start, tmp_path):
    here = shutil.copytree(start, tmp_path / "here")
    wkwdask.build_pyramid(here / "ds", "seg", mags=[2, 4])
    with pytest.raises(wkwdask.ExistsError, match="already exists"):
        wkwdask.build_pyramid(here / "ds", "seg", mags=[2, 4], method="max")
    with pytest.raises(wkwdask.ExistsError, match="already exists"):
        wkwdask.build_pyramid(here / "ds", "seg", mags=[2])
    wkwdask.to_wkw(LABELS + 1, here / "ds" / "seg" / "1", region=((0, 0, 0), (16, 16, 16)))
    with pytest.raises(wkwdask.ResumeError, match="update=True"):
        wkwdask.build_pyramid(here / "ds", "seg", mags=[2, 4])
