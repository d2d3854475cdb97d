"""An error or Ctrl-C at any change of the file system: the process keeps no lock, and the same call
in the same process completes the job."""

from __future__ import annotations

import contextlib
import errno
import itertools
import multiprocessing
import os
import shutil
import sys
import traceback

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, imports_of, killed_at, rechunks_of, regions_of, without_flushing
from faults.trees import contents, leftovers

import wkwdask

pytestmark = [
    pytest.mark.faults,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
VOXELS = np.random.default_rng(0).integers(1, 255, (20, 18, 12)).astype(np.uint8)
FOREIGN = {"voxel_size": (4, 4, 8), "chunk_shape": (8, 8, 8)}
OPTIONS = {
    "wkw": {"block_len": 4, "file_len": 2},
    "zarr": FOREIGN,
    "n5": FOREIGN,
    "precomputed": FOREIGN,
}
REGION = ((3, 2, 1), (15, 16, 9))
ERRORS = {
    "full": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "denied": PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
    "ctrl-c": KeyboardInterrupt(),
}


def url(folder, kind):
    return {
        "wkw": f"{folder}/ds/color",
        "zarr": f"zarr://{folder}/em.zarr",
        "n5": f"n5://{folder}/em.n5",
        "precomputed": f"precomputed://{folder}/em",
    }[kind]


def make(folder, kind):
    folder.mkdir(exist_ok=True)
    if kind == "wkw":
        wkwdask.create_dataset(folder / "ds", voxel_size=(4, 4, 8))
        wkwdask.save(VOXELS, f"{url(folder, kind)}/1", **OPTIONS[kind])
    else:
        wkwdask.save(VOXELS, url(folder, kind) + ("/s0" if kind == "n5" else ""), **OPTIONS[kind])


def other(folder, kind):
    return url(folder, kind) + "2" if kind == "wkw" else url(folder, kind).replace("/em", "/other")


def save(folder, kind):
    wkwdask.save(
        VOXELS,
        f"{other(folder, kind)}/1" if kind == "wkw" else other(folder, kind),
        existing="resume",
        **OPTIONS[kind],
    )


def pyramid(folder, kind):
    with regions_of(8):
        wkwdask.build_pyramid(url(folder, kind), method="mean", mags=["2", "4"])


def copy(folder, kind):
    with rechunks_of(8):
        wkwdask.copy(url(folder, kind), other(folder, kind), existing="resume")


def compress(folder, kind):
    option = {
        "wkw": {"compression": "lz4"},
        "zarr": {"compression": "zstd"},
        "n5": {"compression": "zstd"},
        "precomputed": {"compression": "gzip"},
    }[kind]
    with rechunks_of(8):
        wkwdask.compress(url(folder, kind), **option)


def region(folder, kind):
    values = np.full(np.subtract(REGION[1], REGION[0]), 7, np.uint8)
    wkwdask.write(url(folder, kind) + ("/1" if kind == "wkw" else ""), None, values, region=REGION)


def add(ids):
    return ids + np.uint8(1)


def apply(folder, kind):
    with regions_of(8):
        wkwdask.apply(
            add,
            url(folder, kind),
            f"{other(folder, kind)}/1" if kind == "wkw" else other(folder, kind),
            existing="resume",
        )


def import_array(folder, kind):
    with imports_of(8):
        wkwdask.convert(
            folder.parent / "stack.npy",
            f"{other(folder, kind)}/1" if kind == "wkw" else other(folder, kind),
            existing="resume",
            **OPTIONS[kind],
        )


def export(folder, kind):
    wkwdask.convert(url(folder, "wkw"), folder / "sections", existing="overwrite")


JOBS = (save, pyramid, copy, compress, region, apply, import_array)


def _fail_and_repeat(step, error, job, folder, sender):
    """Run a job in which one change of the file system fails, then again; send the locks in
    between, and the error of the second."""
    changes, is_counting = 0, True

    def count(event, args):
        nonlocal changes, is_counting
        if not is_counting:
            return
        if event in ("os.rename", "os.mkdir", "os.link"):
            # a file without a name is linked by its descriptor
            path = os.fsdecode(args[event == "os.link"])
            if not path.startswith(str(folder)):
                return
        elif event == "open":
            if not (
                isinstance(args[0], str)
                and args[0].startswith(str(folder))
                and isinstance(args[2], int)
                and args[2] & (os.O_CREAT | os.O_WRONLY)
            ):
                return
        elif not (event == "ctypes.dlsym" and args[1] == "renameat2"):
            return
        changes += 1
        if changes == step:
            raise error

    sys.addaudithook(count)
    locks, failure = [], ""
    try:
        with dask.config.set(scheduler="synchronous"), without_flushing():
            with contextlib.suppress(BaseException):
                job(folder)
            is_counting = False
            locks = [name for name in leftovers(folder) if name.endswith("lock")]
            job(folder)
    except BaseException:
        failure = traceback.format_exc()
    sender.send((locks, failure))


def fail_and_repeat(step, error, job, folder):
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_fail_and_repeat, args=(step, error, job, folder, sender))
    child.start()
    sender.close()
    with receiver:
        answer = receiver.recv()
    child.join()
    return answer


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("job", "kind"),
    [*itertools.product(JOBS, ["wkw", "zarr", "n5", "precomputed"]), (export, "wkw")],
)
def test_the_same_process_completes_a_job_after_an_error_at_any_step(tmp_path, job, kind):
    make(tmp_path / "before", kind)
    np.save(tmp_path / "stack.npy", VOXELS)

    def run(folder):
        with without_flushing():
            job(folder, kind)

    changes, publishing = killed_at(
        0, run, shutil.copytree(tmp_path / "before", tmp_path / "whole")
    )
    expected = contents(tmp_path / "whole")
    few = (*range(1, 12, 2), changes // 2, *range(max(publishing, changes - 24), changes, 5))
    for step in range(1, changes) if KILLS else few:
        name, error = list(ERRORS.items())[step % len(ERRORS)]
        folder = shutil.copytree(tmp_path / "before", tmp_path / f"{step}-{name}")
        locks, failure = fail_and_repeat(step, error, run, folder)
        assert not failure, (step, name, failure)
        assert locks == [], (step, name)
        assert sorted(contents(folder)) == sorted(expected), (step, name)
        assert leftovers(folder) == [], (step, name)
        shutil.rmtree(folder)
