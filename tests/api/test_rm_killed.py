"""Removals of mags that are killed: the same call completes them, in every format, and removes
nothing else."""

import contextlib
import errno
import os
import shutil
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.trees import leftovers
from hypothesis import settings
from support.file_events import counting

import wkwdask

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.needs("zarr"),
]
CHANGES = {"os.mkdir", "os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir"}
VOXELS = np.arange(1, 16**3 + 1, dtype=np.uint16).reshape(16, 16, 16)


def _save(url, **options):
    wkwdask.save(
        VOXELS,
        f"{url}/s0" if url.startswith("n5://") else url,
        voxel_size=(4, 4, 4),
        chunk_shape=(8, 8, 8),
        **options,
    )
    wkwdask.build_pyramid(url, mags=[2, 4], method="mean")


def _dataset(url):
    for layer in ("em", "other"):
        wkwdask.to_wkw(VOXELS, f"{url}/{layer}/1", block_len=8, file_len=1, voxel_size=(4, 4, 4))
        wkwdask.build_pyramid(url, layer, mags=[2, 4], method="mean")


VOLUMES = {
    "wkw": ("", _dataset),
    "precomputed": ("precomputed://", _save),
    "ngff-0.4": ("zarr://", lambda url: _save(url, ngff="0.4")),
    "ngff-0.5": ("zarr://", _save),
    "n5": ("n5://", _save),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    here = tmp_path_factory.mktemp("start")
    for kind, (prefix, make) in VOLUMES.items():
        make(f"{prefix}{here}/{kind}")
    return here


@pytest.fixture(autouse=True)
def _serial(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with dask.config.set(scheduler="synchronous"):
        yield


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def killed_at(number, here, job):
    child = os.fork()
    if not child:
        try:
            with counting(here, number, lambda: os._exit(9), CHANGES):
                job()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


CASES = [
    *(
        (kind, {"mags": mags})
        for kind in VOLUMES
        if kind != "wkw"
        for mags in (["1"], ["2"], ["2", "4"], ["1", "2", "4"])
    ),
    ("wkw", {"mags": ["2"]}),
    ("wkw", {"mags": ["1", "4"], "layer": "em"}),
    ("wkw", {"mags": ["1", "2", "4"], "layer": ["em", "other"]}),
]


@pytest.mark.one_in(2)
@pytest.mark.long
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_the_same_call_completes_a_killed_removal(start, tmp_path, kind, options):
    prefix = VOLUMES[kind][0]
    whole = shutil.copytree(start / kind, tmp_path / "whole")
    with counting(whole, events=CHANGES) as counter:
        wkwdask.rm(f"{prefix}{whole}", **options)
    expected = contents(whole)
    steps = counter.count if settings.get_current_profile_name() == "nightly" else 5
    for number in sorted({1 + n * (counter.count - 1) // (steps - 1) for n in range(steps)}):
        here = shutil.copytree(start / kind, tmp_path / "here")
        assert (
            killed_at(number, here, lambda here=here: wkwdask.rm(f"{prefix}{here}", **options)) == 9
        )
        try:
            wkwdask.rm(f"{prefix}{here}", **options)
        except wkwdask.MissingError:  # only if it had ended, but for the removal of its last traces
            assert number > counter.count - 3
        assert contents(here) == expected, number
        shutil.rmtree(here)


def test_another_call_is_no_continuation(start, tmp_path):
    """Mags of a precomputed volume count from the finest scale, so they change when it is
    removed."""
    here = shutil.copytree(start / "precomputed", tmp_path / "here")
    url = f"precomputed://{here}"
    with counting(here, events=CHANGES) as counter:
        wkwdask.rm(url, mags=["1"])
    shutil.rmtree(here)
    shutil.copytree(start / "precomputed", here)
    assert killed_at(counter.count // 2, here, lambda: wkwdask.rm(url, mags=["1"])) == 9
    with pytest.raises(
        wkwdask.ResumeError, match="an interrupted removal of mags 1 is completed first"
    ):
        wkwdask.rm(url, mags=["2", "1"])
    assert {"8_8_8", "16_16_16"} <= set(os.listdir(here))
    wkwdask.rm(url, mags=["1"])
    assert sorted(name for name in os.listdir(here) if name[0] != ".") == [
        "16_16_16",
        "8_8_8",
        "info",
        "provenance",
    ]
    with pytest.raises(wkwdask.MissingError, match="no mag 8"):
        wkwdask.rm(url, mags=["8"])


@pytest.mark.parametrize("kind", VOLUMES)
@pytest.mark.parametrize("mags", [None, ["4"]])
def test_the_same_call_completes_a_removal_that_could_not_sync(
    start, tmp_path, monkeypatch, kind, mags
):
    """Each folder in turn cannot be synced; after that nothing of the job is left."""
    prefix, _ = VOLUMES[kind]
    url = f"{prefix}{tmp_path}/{kind}{'/em' if kind == 'wkw' else ''}"
    is_done, fails_at = False, 0
    while not is_done:
        fails_at += 1
        shutil.rmtree(tmp_path / kind, ignore_errors=True)
        shutil.copytree(start / kind, tmp_path / kind)
        calls = iter(range(1, 1000))

        def fsync(_, calls=calls, fails_at=fails_at):
            if next(calls) == fails_at:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

        monkeypatch.setattr(os, "fsync", fsync)
        with contextlib.suppress(OSError):
            wkwdask.rm(url, mags=mags)
            is_done = True
        monkeypatch.setattr(os, "fsync", lambda _: None)
        with contextlib.suppress(wkwdask.MissingError):
            wkwdask.rm(url, mags=mags)
        assert not [name for name in leftovers(tmp_path) if "wkwdask-job" in name]
    assert fails_at > 5


@pytest.mark.parametrize("kind", ["zarr", "n5"])
def test_the_folder_around_an_array_stays(tmp_path, kind):
    """The job folder lies beside an array without levels, in a folder of the user, which may hold
    nothing else."""
    zarr = pytest.importorskip("zarr")

    def array_in(name):
        path = tmp_path / name / "array"
        if kind == "n5":
            wkwdask.to_n5(VOXELS, f"n5://{path}", chunk_shape=(8, 8, 8))
        else:
            path.parent.mkdir()
            array = zarr.create_array(path, shape=VOXELS.shape, chunks=(8, 8, 8), dtype="u2")
            array[...] = VOXELS
        return f"{kind}://{path}"

    url = array_in("whole")
    with counting(tmp_path / "whole", events=CHANGES) as counter:
        wkwdask.rm(url)
    for number in range(1, counter.count + 1):
        url = array_in(str(number))
        killed_at(number, tmp_path / str(number), lambda url=url: wkwdask.rm(url))
        with contextlib.suppress(wkwdask.MissingError):
            wkwdask.rm(url)
        assert os.listdir(tmp_path / str(number)) == []
