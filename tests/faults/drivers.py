"""Pyramids of many small files, processes that build them and can be killed, and a log of the tasks
that ran.

Processes that a test starts import this module as ``faults.drivers``.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import dask
import numpy as np
from faults.trees import JSON_NAME, contents, differences, lay_out, leftovers, make_dataset
from support.warm_processes import ENVIRONMENT, WarmProcess, is_running, warm_context  # noqa: F401 (other tests import ENVIRONMENT from here)

import wkwdask
from wkwdask.errors import ExistsError
from wkwdask.graphs import client_run, local_run
from wkwdask.plans import apply, upsample
from wkwdask.plans import pyramid as plans
from wkwdask.plans.regions import RegionGrid
from wkwdask.runs import job as jobs
from wkwdask.runs import journal
from wkwdask.store import files
from wkwdask.store.locks import Owner
from wkwdask.verbs import image_import, rechunk

# more of everything, for a night; 0 is what a test chooses itself
KILLS = int(os.environ.get("WKWDASK_KILLS", "0"))
RESUME_NOTE = "finished work is kept"
NOTHING_TO_UPDATE = "nothing to do"


@contextlib.contextmanager
def without_flushing():
    """Leave the flushing of files to the system."""
    before, os.fsync = os.fsync, lambda _: None
    try:
        yield
    finally:
        os.fsync = before


# ----------------------------------------------------------------------------- what is built


@dataclass(frozen=True)
class Case:
    """One pyramid."""

    shape: tuple[int, int, int]
    voxel_size: tuple[float, float, float]
    mags: tuple[str, ...]
    region_vx: int

    def make_source(self, folder):
        """Labels in blobs, with holes that leave files, regions and whole coarser files empty."""
        random = np.random.default_rng(self.region_vx)
        coarse = random.integers(1, 200, [-(-n // 4) for n in self.shape]).astype(np.uint32)
        array = np.kron(coarse, np.ones((4, 4, 4), np.uint32))[tuple(slice(n) for n in self.shape)]
        array[40:110, 50:] = 0
        array[:20, :, :20] = 0
        make_dataset(folder, self.voxel_size)
        wkwdask.to_wkw(
            array,
            folder / "seg" / "1",
            offset=(13, 0, 9),
            block_len=8,
            file_len=4,
            compression="lz4",
        )

    def build(self, folder, **options):
        """Build it, of small regions."""
        with regions_of(self.region_vx):
            return wkwdask.build_pyramid(folder, "seg", mags=self.mags, **options)


@contextlib.contextmanager
def regions_of(edge):
    """Let a pyramid, or what a function makes, have many tasks, however small it is."""
    before = plans.choose_region, apply.choose_region
    plans.choose_region = apply.choose_region = lambda *_: (edge,) * 3
    try:
        yield
    finally:
        plans.choose_region, apply.choose_region = before


@contextlib.contextmanager
def rechunks_of(edge):
    """Let a rechunking have many tasks, however small it is."""
    before = upsample.choose_region, rechunk.plan_splicing
    upsample.choose_region = lambda *_: (edge,) * 3
    rechunk.plan_splicing = lambda box, source_shard, shard, *_: RegionGrid(
        box, tuple(max(edge, n) for n in shard), shard
    )
    try:
        yield
    finally:
        upsample.choose_region, rechunk.plan_splicing = before


@contextlib.contextmanager
def imports_of(edge):
    """Let an import of sections have a task for every so many of them."""
    before = image_import.plan_slabs

    def plan(box, pieces, tiling, workers, shapes=None):
        return before(box, pieces, tiling, workers, shapes or ((128, 128, edge),) * 2)

    image_import.plan_slabs = plan
    try:
        yield
    finally:
        image_import.plan_slabs = before


# Regions that are files of the first mag, and regions that are eighths of them. A second pass reads
# mag 8, or 4-4-2.
CASES = {
    "files": Case((220, 150, 130), (10, 10, 10), ("2", "4", "8", "16"), 32),
    "parts": Case((150, 120, 60), (11.24, 11.24, 28), ("2-2-1", "4-4-2", "8-8-4", "16-16-8"), 16),
}


class Undisturbed:
    """A case before and after a run that nothing interrupted."""

    def __init__(self, name, folder):
        self.name, self.case = name, CASES[name]
        self.case.make_source(folder)
        self.before = contents(folder)
        log = folder.parent / f"{name}.log"
        with dask.config.set(scheduler="synchronous"), logged(log):
            self.case.build(folder)
        self.after = contents(folder)
        self.tasks = set(runs(log))
        assert set(runs(log).values()) == {1}
        assert leftovers(folder) == []

    def start(self, folder):
        """Lay out the state before the job."""
        return lay_out(self.before, folder)

    def check(self, folder):
        """Make sure that the mags are those of the undisturbed run, and that nothing else is
        there."""
        found = contents(folder)
        assert not differences(found, self.after), differences(found, self.after)
        assert not leftovers(folder), leftovers(folder)
        (layer,) = found[JSON_NAME]["dataLayers"]
        assert [mag["path"].rpartition("/")[2] for mag in layer["mags"]] == ["1", *self.case.mags]

    def check_unseen(self, folder):
        """Make sure that nothing of an unfinished job is visible, but a whole pyramid that it was
        just publishing."""
        found = contents(folder)
        for mag in self.case.mags:
            prefix = f"seg/{mag}/"
            mine = {name: content for name, content in found.items() if name.startswith(prefix)}
            assert mine in (
                {},
                {name: content for name, content in self.after.items() if name.startswith(prefix)},
            )

    def check_records(self, folder):
        """Make sure that an update knows that there is nothing to do."""
        with dask.config.set(scheduler="synchronous"):
            report = wkwdask.build_pyramid(folder, "seg", mags=self.case.mags, update=True)
        assert NOTHING_TO_UPDATE in report.note
        self.check(folder)


# ----------------------------------------------------------------------------- which tasks ran


def logged_run_task(log, seconds, task):
    """Run a task anywhere and write it down; ``seconds`` makes it slow."""
    write_down(log, f"begin {task.key}")
    if seconds:
        time.sleep(seconds)
    try:
        result = task.run()
    except BaseException:
        write_down(log, f"fail {task.key}")
        raise
    write_down(log, f"end {task.key}")
    return result


@contextlib.contextmanager
def tasks_run_by(run):
    """Let a function run every task that this process runs or submits."""
    before, jobs.run_task = jobs.run_task, run
    try:
        yield
    finally:
        jobs.run_task = before


def stopping(log, num_tasks, error):
    """Let tasks be written down, and an error come in place of the next one after so many."""
    left = num_tasks

    def stopped(task):
        nonlocal left
        left -= 1
        if left < 0:
            raise error
        return logged_run_task(log, 0, task)

    return tasks_run_by(stopped)


def ending_while_folders_are_removed(name, code):
    """From now on, end the process with an exit code when the folder of a job is cleared away and
    one of its entries is gone."""

    remove_tree = files.remove_tree

    def remove(folder):
        if not os.path.basename(folder).startswith(".wkwdask-job-"):
            remove_tree(folder)
            return
        path = f"{folder}/{name}"
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.unlink(path)
        os._exit(code)

    files.remove_tree = remove


def this_owner(command):
    """Return the record of a lock that this process holds."""
    return asdict(Owner.this_process(command))


def look_often(monkeypatch):
    """Let a client look at its workers often, and keep no more than three tasks for each of them in
    flight, however short they are."""
    monkeypatch.setattr(client_run, "_POLL_SECONDS", 0.2)
    monkeypatch.setattr(client_run, "_WINDOW_WORK_SECONDS", 0.0)


def late_after(seconds, monkeypatch):
    """Make tasks on a cluster late after so many seconds; return a list that receives the allowed
    workers of each new task, None for any."""
    submitted = []
    submit = client_run.ClientRun._submit

    def noted(self, tasks, **where):
        chosen = where or self._workers.avoiding()
        submitted.extend([chosen.get("workers")] * len(tasks))
        return submit(self, tasks, **chosen)

    monkeypatch.setattr(client_run, "_LATE_SECONDS", seconds)
    monkeypatch.setattr(client_run.ClientRun, "_submit", noted)
    return submitted


def write_down(log, text):
    """Add a line to a log that several processes write."""
    with open(log, "ab", buffering=0) as file:
        file.write(f"{text}\n".encode())


def logged(log, seconds=0.0):
    """Let every task that this process runs or submits be written down."""
    return tasks_run_by(partial(logged_run_task, str(log), seconds))


def kept_tasks(monkeypatch):
    """Keep all tasks that this thread runs from now on."""
    tasks = []

    def keep(task):
        tasks.append(task)
        return task.run()

    monkeypatch.setattr(jobs, "run_task", keep)
    return tasks


def runs(log):
    """Count how often each task was begun."""
    return Counter(line.removeprefix("begin ") for line in _lines(log) if line.startswith("begin "))


def num_ended(log):
    """Count the tasks that came to an end."""
    return sum(line.startswith("end ") for line in _lines(log))


def num_running(log):
    """Count the tasks that have begun but not ended, well or badly."""
    return sum(1 if line.startswith("begin ") else -1 for line in _lines(log))


def _lines(log):
    return Path(log).read_text().splitlines() if Path(log).exists() else []


def job_folders(folder):
    """The folders of jobs in all layers."""
    return sorted(Path(folder).glob("*/.wkwdask-job-*"))


def journaled(folder):
    """The tasks that journals say are finished."""
    found = set()
    for root in job_folders(folder):
        for line in journal.read_journal(str(root)):
            with contextlib.suppress(ValueError):
                found.add(json.loads(line)["task"])
    return found


# ----------------------------------------------------------------------------- drivers


@dataclass(frozen=True)
class Driver:
    """A process that builds a pyramid."""

    folder: str
    case: str
    log: str
    scheduler: str = "synchronous"
    """Name that dask knows, address of a cluster's scheduler, or ``"local"`` for a cluster that
    ends with the driver."""
    workers: int = 2
    seconds: float = 0.0
    """Delay of each task [s]."""
    options: tuple[tuple[str, str], ...] = ()
    """Further options of the call."""
    kill_at: int | None = None
    """Number of lines of its journal after which it ends itself."""
    kill_after: float | None = None
    """Delay of its end [s]; None ends it at once, before another task begins."""
    signal: int = signal.SIGKILL
    """Signal that ends it."""

    def run(self):
        """Build in this process."""
        if self.kill_at is not None:
            self._arm()
        with logged(self.log, self.seconds), self._runner():
            CASES[self.case].build(self.folder, **dict(self.options))

    @contextlib.contextmanager
    def _runner(self):
        # three tasks in flight for each worker, however short they are
        client_run._WINDOW_WORK_SECONDS = 0.0
        if self.scheduler == "local":
            from support.local_cluster import local_cluster

            with local_cluster() as cluster, cluster.get_client() as client:
                for pid in client.run(os.getpid).values():
                    write_down(f"{self.log}.pids", str(pid))
                yield
            return
        if self.scheduler == "processes":
            local_run._process_pool = partial(_pool_of_warm_processes, self.log)
        if "://" not in self.scheduler:
            with dask.config.set(scheduler=self.scheduler, num_workers=self.workers):
                yield
            return
        import distributed

        client_run._POLL_SECONDS = 0.2
        # how long a client looks for a scheduler that is gone
        brief = dask.config.set({"distributed.comm.timeouts.connect": "2s"})
        with brief, distributed.Client(self.scheduler) as client:
            client.wait_for_workers(2, timeout=180)
            yield

    def _arm(self):
        """Count lines of the journal."""
        append, open_next = journal.Journal.append, journal.open_next
        left = self.kill_at

        def end():
            time.sleep(self.kill_after)
            os.kill(os.getpid(), self.signal)

        def counted(*args):
            nonlocal left
            value = (append if args and isinstance(args[0], journal.Journal) else open_next)(*args)
            left -= 1
            if left == -1 and self.kill_after is None:
                os.kill(os.getpid(), self.signal)
            elif left == -1:
                threading.Thread(target=end, daemon=True).start()
            return value

        journal.open_next = counted  # 0: as soon as there is a journal
        journal.Journal.append = lambda *args: counted(*args)

    def fork(self):
        """Run in a forked process with a separate session, and return its exit code.

        The exit code is 130 after Ctrl-C, 131 after Ctrl-C if there is nothing to resume, and 3 if
        the mags exist.
        """
        child = multiprocessing.get_context("fork").Process(target=self._forked)
        child.start()
        child.join()
        with contextlib.suppress(ProcessLookupError):
            # processes of a pool outlive a driver that was killed
            os.killpg(child.pid, signal.SIGKILL)
        return child.exitcode

    def _forked(self):
        os.setsid()
        try:
            self.run()
            os._exit(0)  # a signal that comes after the end of the job finds nobody
        except KeyboardInterrupt as interrupt:
            os._exit(
                130
                if any(RESUME_NOTE in note for note in getattr(interrupt, "__notes__", ()))
                else 131
            )
        except ExistsError:
            os._exit(3)

    def start(self):
        """Start a fresh process that prints an error as :func:`main` does."""
        return WarmProcess(
            _run_and_print_error,
            self,
            output=f"{self.log}.{time.monotonic_ns()}.out",
            errors=f"{self.log}.{time.monotonic_ns()}.err",
        )


def _pool_of_warm_processes(log, workers):
    context, begin = warm_context(), local_run._end_with_driver
    return ProcessPoolExecutor(
        workers,
        mp_context=context,
        initializer=_begin_and_write_pid,
        initargs=(f"{log}.pids", begin),
    )


def _begin_and_write_pid(path, begin):
    begin()
    write_down(path, str(os.getpid()))


def pool_processes(driver):
    """List the running processes of the pools and of the local cluster of a driver, in the order of
    their start."""
    return [pid for pid in map(int, _lines(f"{driver.log}.pids")) if is_running(pid)]


# ----------------------------------------------------------------------------- the end at a given
# step


def run_until(at_change, job, folder, exchange, report):
    """Run a job in a forked child that calls a function before each change of the file system; send
    the number of changes, and the first of the publishing."""
    changes = publishing = 0
    counting = True

    def count(event, args):
        nonlocal changes, publishing, counting
        if not counting:
            return
        if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.link"):
            place = args[event == "os.link"]  # a file without a name is linked by its descriptor
            path = place if isinstance(place, int) else os.fsdecode(place)
            if isinstance(path, str) and os.path.isabs(path) and not path.startswith(str(folder)):
                # a compiled kernel that is saved
                return
        elif event == "open":
            if not (
                isinstance(args[0], str)
                and args[0].startswith(str(folder))
                and isinstance(args[2], int)
                and args[2] & (os.O_CREAT | os.O_WRONLY)
            ):
                return
            if "/.publish.json." in args[0]:
                publishing = changes
        elif not (event == "ctypes.dlsym" and args[1] == "renameat2"):
            return
        changes += 1
        counting = False
        at_change(changes)
        counting = True

    if not exchange:
        files.exchange = lambda first, second: False
    sys.addaudithook(count)
    with dask.config.set(scheduler="synchronous"):
        job(folder)
    counting = False
    report.send((changes, publishing))


def _forked_until(at_change, job, folder, exchange):
    """Return what :func:`run_until` sends, None if the child was killed."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=run_until, args=(at_change, job, folder, exchange, sender))
    child.start()
    sender.close()
    child.join()
    with receiver:
        if child.exitcode == 0:
            return receiver.recv()
    assert child.exitcode == -signal.SIGKILL
    return None


def killed_at(step, job, folder, exchange=True):
    """Kill a job before its n-th change; return the number of changes and the first of the
    publishing, None if the job was killed."""

    def end(changes):
        if changes == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return _forked_until(end, job, folder, exchange)


def killed_at_each(steps, job, start, folder, exchange=True):
    """Yield the steps; each time, the folder is what a kill before that change leaves.

    One job is killed. For the other steps, a second job copies its folder before each of these
    changes: a kill leaves what a process has written unchanged. With ``WKWDASK_KILLS``, a job is
    killed at each step.

    Parameters
    ----------
    steps : sequence of int
        Changes, counted from 1.
    job : callable
        Called with the folder.
    start : callable
        Lays out the state before the job, in a folder.
    folder : Path
        Does not exist yet.
    exchange : bool
        Whether folders can be exchanged atomically.
    """
    steps = sorted(steps)
    copies = folder.parent / f"{folder.name}.copies"
    copied = set() if KILLS else set(steps) - {steps[len(steps) // 2]}

    def copy(changes):
        if changes in copied:
            shutil.copytree(folder, copies / str(changes), symlinks=True)

    if copied:
        copies.mkdir()
        start(folder)
        assert _forked_until(copy, job, folder, exchange) is not None
        shutil.rmtree(folder)
    missed = []  # the order in which files are listed can save a change
    for step in steps:
        if (copies / str(step)).exists():
            (copies / str(step)).rename(folder)
            yield step
        elif step in copied:
            missed.append(step)
            continue
        else:
            start(folder)
            if killed_at(step, job, folder, exchange) is None:
                yield step
            else:
                missed.append(step)
        shutil.rmtree(folder)
    assert missed in ([], steps[-1:]), f"no change {missed}"


def main():
    """Run the driver of the command line; the type, message and notes of an error go to standard
    output as JSON."""
    _run_and_print_error(Driver(**json.loads(sys.argv[1])))


def _run_and_print_error(driver):
    try:
        with without_flushing():
            driver.run()
    except BaseException as error:
        print(
            json.dumps([type(error).__name__, str(error), getattr(error, "__notes__", [])]),
            flush=True,
        )
        sys.exit(1)


def wait_until(condition, seconds=180.0, describe=lambda: ""):
    """Wait for something; ``describe`` names what is found when that takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited too long: {describe()}"
        time.sleep(0.002)
