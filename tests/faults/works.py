"""Work for clusters that break: the same jobs with and without a fault, compared file by file, with
a log of what ran and how often."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from faults.drivers import Undisturbed, logged, num_ended, runs, write_down
from faults.trees import JSON_NAME, contents, differences, lay_out, leftovers, make_dataset

import wkwdask

REGION = 16  # edge of the tasks of a pyramid
LOG_VARIABLE, SECONDS_VARIABLE = "WKWDASK_TEST_LOG", "WKWDASK_TEST_SECONDS"
GREEDY_VARIABLE = "WKWDASK_TEST_GREEDY"
_EDGE = 32  # of a chunk and of a file
_CHUNKS = 4  # along each axis


class PyramidWork(Undisturbed):
    """A pyramid of 138 tasks: parts, and joins that follow from them."""

    title = "pyramid"

    def __init__(self, folder):
        super().__init__("parts", folder)

    def build(self, folder, log, seconds, **options):
        """Build it with what is active."""
        with logged(log, seconds):
            self.case.build(folder, **options)


class ArrayWork:
    """A dask array of 64 chunks that is written."""

    title = "to_wkw"

    def __init__(self, folder):
        make_dataset(folder, (10, 10, 10))
        self.before = contents(folder)
        log = folder.parent / "array.log"
        with dask.config.set(scheduler="synchronous"):
            self.build(folder, log, 0.0)
        self.after = contents(folder)
        self.tasks = set(runs(log))
        assert set(runs(log).values()) == {1}

    def start(self, folder):
        """Lay out the state before the job."""
        return lay_out(self.before, folder)

    def build(self, folder, log, seconds, **options):
        """Write it with what is active."""
        chunks = ((_EDGE,) * _CHUNKS,) * 3
        array = da.map_blocks(
            partial(slow_chunk, str(log), seconds),
            chunks=chunks,
            dtype=np.uint8,
            meta=np.empty((0, 0, 0), np.uint8),
        )
        wkwdask.to_wkw(
            array,
            folder / "color" / "1",
            block_len=8,
            file_len=_EDGE // 8,
            compression="lz4",
            **options,
        )

    def check(self, folder):
        """Make sure that the tree is that of the undisturbed run, and that nothing else is
        there."""
        found = contents(folder)
        assert not differences(found, self.after), differences(found, self.after)
        assert not leftovers(folder), leftovers(folder)
        assert [layer["name"] for layer in found[JSON_NAME]["dataLayers"]] == ["color"]


def slow_chunk(log, seconds, block_id):
    """Make a chunk, always the same for its place, and write it down."""
    name = "chunk {},{},{}".format(*block_id)
    write_down(log, f"begin {name}")
    time.sleep(seconds)
    voxels = np.random.default_rng(block_id).integers(1, 30, (_EDGE,) * 3, dtype=np.uint8)
    write_down(log, f"end {name}")
    return voxels


def num_repeated(log):
    """Count how many times tasks were begun more than once."""
    ran = runs(log)
    return sum(ran.values()) - len(ran)


class Meanwhile(threading.Thread):
    """Does something as soon as so many tasks have ended; ``done`` is True afterwards."""

    def __init__(self, log, num_tasks, action):
        super().__init__(daemon=True)
        self.log, self.num_tasks, self.action = log, num_tasks, action
        self.done = False
        self.found = None
        self._error = None
        self._stop_waiting = threading.Event()

    def run(self):
        """Wait and act; ``found`` keeps the result of the action."""
        try:
            while not self._stop_waiting.is_set():
                if num_ended(self.log) >= self.num_tasks:
                    self.found = self.action()
                    self.done = True
                    return
                time.sleep(0.002)
        except BaseException as error:
            self._error = error

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._stop_waiting.set()
        self.join()
        if self._error is not None:
            raise self._error


def error_of(output):
    """Read the error that a driver's process printed: its type, message and notes."""
    with contextlib.suppress(ValueError, IndexError):
        return tuple(json.loads(output.splitlines()[-1]))
    return "", output, []


def slow_command():
    """Be the command ``wkwdask`` whose tasks are slow and written down, as two variables of the
    environment say: for elements of arrays."""
    from faults.drivers import regions_of
    from support.commands import COMMAND

    if GREEDY_VARIABLE in os.environ:
        threading.Thread(
            target=_be_greedy, args=(os.environ[GREEDY_VARIABLE],), daemon=True
        ).start()
    with regions_of(REGION), logged(os.environ[LOG_VARIABLE], float(os.environ[SECONDS_VARIABLE])):
        COMMAND.main(sys.argv[1:], prog_name="wkwdask")


def _be_greedy(path):
    """Take far too much memory as soon as a file says that this element should."""
    while not os.path.exists(path) or Path(path).read_text() != os.environ.get(
        "SLURM_ARRAY_TASK_ID"
    ):
        time.sleep(0.1)
    held = bytearray(b"x" * 1_500_000_000)
    time.sleep(60)
    del held


def slow_script(folder):
    """Write the batch script whose elements are such commands."""
    path = folder / "slow.sbatch"
    path.write_text(f"""#!/bin/bash
# kind: array
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --time=00:05:00
shift 3
exec {sys.executable} -c 'from faults.works import slow_command; slow_command()' "$@"
""")
    return path
