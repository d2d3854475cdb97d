"""Processes are killed in the middle of jobs: what is visible is whole, and the next run completes.

Three ways to die: at every step that changes the file system (counted by an audit hook in a forked child), at random moments of a process with threads,
and as a worker of a cluster. Only processes that a test has started itself are killed.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

import wkwdask
from wkwdask.errors import ExistsError
from wkwdask.formats.datasource import format_datasource, new_document
from wkwdask.storage import local

pytestmark = pytest.mark.faults

JSON_NAME = "datasource-properties.json"
VOXEL_SIZE = (11.24, 11.24, 28)
SHAPE = (70, 40, 30)
OFFSET = (13, 0, 9)
OPTIONS = {"block_len": 8, "file_len": 4, "compression": "lz4"}
PYRAMID_MAGS = ("2-2-1", "4-4-2", "8-8-4")
# what may stay in a dataset beside the data: the empty file that edits of the JSON hold a lock on, and the provenance of a mag
HARMLESS = (f".{JSON_NAME}.lock", ".wkwdask.json")


def voxels(seed=1, shape=SHAPE):
    """Labels in blobs, an all-zero corner, no compressible constant elsewhere."""
    random = np.random.default_rng(seed)
    coarse = random.integers(1, 200, [-(-n // 2) for n in shape]).astype(np.uint32)
    array = np.kron(coarse, np.ones((2, 2, 2), np.uint32))[: shape[0], : shape[1], : shape[2]]
    array[:24, :20] = 0
    return array


def make_dataset(folder):
    folder.mkdir(parents=True)
    (folder / JSON_NAME).write_text(format_datasource(new_document("ds", VOXEL_SIZE)))
    return folder


def write_new(folder):
    wkwdask.to_wkw(voxels(), folder / "seg" / "1", offset=OFFSET, **OPTIONS)


def overwrite(folder):
    wkwdask.to_wkw(voxels(2), folder / "seg" / "1", offset=OFFSET, existing="overwrite", **OPTIONS)


def new_pyramid(folder):
    wkwdask.build_pyramid(folder, "seg", coarsest="8-8-4")


def overwrite_pyramid(folder):
    wkwdask.build_pyramid(folder, "seg", coarsest="8-8-4", method="max", existing="overwrite")


# name: what is there before, the job, and the mags that it makes
JOBS = {
    "write_new": ((), write_new, ("1",)),
    "overwrite": ((write_new,), overwrite, ("1",)),
    "new_pyramid": ((write_new,), new_pyramid, PYRAMID_MAGS),
    "overwrite_pyramid": ((write_new, new_pyramid), overwrite_pyramid, PYRAMID_MAGS),
}


def contents(folder):
    """The bytes of every visible file of a folder, and the JSON parsed."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            found[str(path.relative_to(folder))] = json.loads(path.read_text()) if path.name == JSON_NAME else path.read_bytes()
    return found


def mag_contents(folder, mag):
    return contents(folder / "seg" / mag)


def leftovers(folder):
    """Names that begin with a dot: temporary files, locks, folders of jobs."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob(".*") if path.name not in HARMLESS)


class Expected:
    """Undisturbed runs of a job: the state before it and after it."""

    def __init__(self, name, folder):
        before, self.job, self.mags = JOBS[name]
        with dask.config.set(scheduler="synchronous"):
            make_dataset(folder)
            for step in before:
                step(folder)
            self.before = contents(folder)
            self.old = {mag: mag_contents(folder, mag) for mag in self.mags}
            self.job(folder)
        self.after = contents(folder)
        self.new = {mag: mag_contents(folder, mag) for mag in self.mags}
        assert leftovers(folder) == []
        assert all(self.new.values())

    def start(self, folder):
        """Lay out the state before the job."""
        for name, content in self.before.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.write_text(format_datasource(content))
        return folder

    def check_visible(self, folder, *, may_vanish=False):
        """Make sure that each mag is the old one or the new one, whole, and that the JSON promises no mag that is not there."""
        for mag in self.mags:
            seen = mag_contents(folder, mag)
            assert seen in (self.old[mag], self.new[mag]) or (may_vanish and not seen), f"mag {mag} is neither old nor new"
        document = json.loads((folder / JSON_NAME).read_text())
        assert document in (self.before[JSON_NAME], self.after[JSON_NAME])
        if not may_vanish:
            for layer in document["dataLayers"]:
                for mag in layer["mags"]:
                    assert (folder / mag["path"] / "header.wkw").exists()

    def check_rerun(self, folder):
        """Run the job again, and compare with the undisturbed run."""
        # a job that was killed when all was done but its lock is there already, which a job that must not overwrite says
        with contextlib.suppress(ExistsError):
            self.job(folder)
        assert contents(folder) == self.after
        assert leftovers(folder) == []


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    made = {}

    def of(name):
        if name not in made:
            made[name] = Expected(name, tmp_path_factory.mktemp("expected") / name)
        return made[name]

    return of


# ----------------------------------------------------------------------------- at every step


def run_until(step, job, folder, exchange, report):
    """Run a job in a forked child that kills itself before its n-th change of the file system; an undisturbed child sends the number of changes."""
    changes = 0

    def count(event, args):
        nonlocal changes
        if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.link"):
            pass
        elif event == "open":
            if not (isinstance(args[0], str) and args[0].startswith(str(folder)) and isinstance(args[2], int) and args[2] & (os.O_CREAT | os.O_WRONLY)):
                return
        elif not (event == "ctypes.dlsym" and args[1] == "renameat2"):
            return
        changes += 1
        if changes == step:
            os.kill(os.getpid(), signal.SIGKILL)

    if not exchange:
        local._exchange = lambda first, second: False
    sys.addaudithook(count)
    with dask.config.set(scheduler="synchronous"):
        job(folder)
    report.send(changes)


def killed_at(step, job, folder, exchange=True):
    """Give the number of changes of a run that came to its end, None for one that was killed."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=run_until, args=(step, job, folder, exchange, sender))
    child.start()
    sender.close()
    child.join()
    with receiver:
        if child.exitcode == 0:
            return receiver.recv()
    assert child.exitcode == -signal.SIGKILL
    return None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("name", "exchange"), [(name, True) for name in JOBS] + [("overwrite", False), ("overwrite_pyramid", False)])
def test_killed_at_any_step(tmp_path, expected, name, exchange):
    known = expected(name)
    changes = killed_at(0, known.job, known.start(tmp_path / "whole"), exchange)
    assert changes > 20
    assert contents(tmp_path / "whole") == known.after
    # all steps of the beginning and of the publishing, some of the work between
    steps = sorted({*range(1, 12), *range(12, changes - 40, 9), *range(max(12, changes - 40), changes + 1)})
    problems = []
    for step in steps:
        folder = known.start(tmp_path / str(step))
        assert killed_at(step, known.job, folder, exchange) is None
        try:
            known.check_visible(folder, may_vanish=not exchange)
            with dask.config.set(scheduler="synchronous"):
                known.check_rerun(folder)
        except AssertionError as error:
            problems.append(f"killed before change {step} of {changes}: {str(error)[:300]}")
    assert not problems, "\n".join(problems)


# ----------------------------------------------------------------------------- at random moments

SCRIPT = textwrap.dedent("""
    import sys
    import time
    from pathlib import Path

    sys.path.insert(0, sys.argv[1])
    import test_kill
    import dask.array

    folder, name = Path(sys.argv[2]), sys.argv[3]
    print("start", flush=True)
    started = time.monotonic()
    test_kill.RANDOM_JOBS[name](folder)
    print(time.monotonic() - started, flush=True)
""")

LARGE_SHAPE = (150, 90, 70)


def write_chunks(folder):
    """Irregular chunks that do not fit the files."""
    array = da.from_array(voxels(3, LARGE_SHAPE), chunks=((50, 1, 99), (33, 57), (40, 30)))
    wkwdask.to_wkw(array, folder / "seg" / "1", offset=OFFSET, existing="overwrite", **OPTIONS)


def write_then_nothing(folder):
    wkwdask.to_wkw(voxels(3, LARGE_SHAPE), folder / "seg" / "1", offset=OFFSET, **OPTIONS)


RANDOM_JOBS = {"write": write_chunks, "pyramid": overwrite_pyramid}


class Random(Expected):
    """The same, for the larger array."""

    def __init__(self, name, folder):
        self.job, self.mags = RANDOM_JOBS[name], ("1",) if name == "write" else PYRAMID_MAGS
        make_dataset(folder)
        if name == "pyramid":
            write_then_nothing(folder)
        self.before = contents(folder)
        self.old = {mag: {} for mag in self.mags}
        self.job(folder)
        self.after = contents(folder)
        self.new = {mag: mag_contents(folder, mag) for mag in self.mags}
        assert leftovers(folder) == []


def start_process(folder, name):
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(folder), name], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "start\n"
    return process


@pytest.mark.parametrize("name", ["write", "pyramid"])
def test_process_killed_at_random_moments(tmp_path, name):
    known = Random(name, tmp_path / "expected")
    with start_process(known.start(tmp_path / "whole"), name) as process:
        seconds = float(process.stdout.readline())
    assert process.returncode == 0
    assert contents(tmp_path / "whole") == known.after
    random = np.random.default_rng(20)
    for n in range(6):
        folder = known.start(tmp_path / str(n))
        with start_process(folder, name) as process:
            time.sleep(random.uniform(0.05, 0.95) * seconds)
            process.kill()
        known.check_visible(folder)
        known.check_rerun(folder)


def test_rerun_after_a_rerun_that_was_killed_too(tmp_path):
    known = Random("pyramid", tmp_path / "expected")
    folder = known.start(tmp_path / "ds")
    random = np.random.default_rng(21)
    for _ in range(3):
        with start_process(folder, "pyramid") as process:
            time.sleep(random.uniform(0.05, 0.3))
            process.kill()
        known.check_visible(folder)
    known.check_rerun(folder)


# ----------------------------------------------------------------------------- workers of a cluster


@pytest.fixture(scope="module")
def client():
    import distributed  # after the tests above have forked
    from local_cluster import local_cluster

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 20}),
        local_cluster(silence_logs="CRITICAL") as cluster,
        distributed.Client(cluster) as connected,
    ):
        yield connected


class Killer(threading.Thread):
    """Kills one worker as soon as a job has published so many files in its folder."""

    def __init__(self, client, layer_folder, num_files, seed):
        super().__init__(daemon=True)
        self.pids = sorted(client.run(os.getpid).values())
        self.layer_folder, self.num_files = layer_folder, num_files
        self.victim = self.pids[np.random.default_rng(seed).integers(len(self.pids))]
        self.killed = False
        self.stop = threading.Event()

    def published(self):
        """Count the files in folders of jobs, which may vanish meanwhile."""
        walks = (names for folder, _, names in os.walk(self.layer_folder) if "/.wkwdask-job-" in folder)
        return sum(name.endswith(".wkw") for names in walks for name in names)

    def run(self):
        while not self.stop.is_set():
            if self.published() >= self.num_files:
                os.kill(self.victim, signal.SIGKILL)
                self.killed = True
                return
            time.sleep(0.001)


def write_slowly(folder):
    """So slow that a worker dies in the middle."""

    def slow(block):  # a worker cannot import this module: a function in a function travels by value
        time.sleep(0.05)
        return block

    array = da.from_array(voxels(3, LARGE_SHAPE), chunks=(32, 32, 32)).map_blocks(slow, dtype=np.uint32)
    wkwdask.to_wkw(array, folder / "seg" / "1", offset=OFFSET, existing="overwrite", **OPTIONS)


@pytest.mark.parametrize(("name", "num_files"), [("write", 2), ("write", 9), ("write", 20), ("pyramid", 1), ("pyramid", 3), ("pyramid", 8)])
def test_worker_killed(tmp_path, client, name, num_files):
    """The job goes on with the worker that replaces the dead one."""
    known = Random(name, tmp_path / "expected")
    folder = known.start(tmp_path / "ds")
    client.wait_for_workers(2)
    killer = Killer(client, folder / "seg", num_files, seed=num_files)
    killer.start()
    try:
        (write_slowly if name == "write" else known.job)(folder)
    finally:
        killer.stop.set()
        killer.join()
    assert killer.killed
    assert contents(folder) == known.after
    assert leftovers(folder) == []
