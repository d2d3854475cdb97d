"""Pyramids whose driver is killed again and again, with damage in between: finished tasks are not
repeated, and the result is that of an undisturbed run."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import socket
import time
from dataclasses import replace

import dask
import numpy as np
import pytest
from faults.drivers import (
    CASES,
    KILLS,
    Driver,
    Undisturbed,
    ending_while_folders_are_removed,
    job_folders,
    journaled,
    kept_tasks,
    killed_at,
    killed_at_each,
    logged,
    num_ended,
    num_running,
    pool_processes,
    regions_of,
    runs,
    tasks_run_by,
    this_owner,
    wait_until,
)
from faults.trees import contents, differences, leftovers
from support.warm_processes import state_of

import wkwdask
from wkwdask.errors import DiscardWarning, ExistsError, LockedError, WkwDaskError

pytestmark = [
    pytest.mark.faults,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    cases = {}

    def of(name):
        if name not in cases:
            cases[name] = Undisturbed(name, tmp_path_factory.mktemp("undisturbed") / name)
        return cases[name]

    return of


def finish(known, folder, *, existing="resume", seconds=0.0):
    """Resume in this process to the end, and return the tasks that ran."""
    log = folder.parent / f"{folder.name}.finish.log"
    log.unlink(missing_ok=True)
    with dask.config.set(scheduler="synchronous"), logged(log, seconds):
        known.case.build(folder, existing=existing)
    known.check(folder)
    known.check_records(folder)
    return set(runs(log))


class Campaign:
    """Kills drivers again and again; each start resumes the last one."""

    def __init__(self, known, folder, seed):
        self.known = known
        self.folder = folder
        self.random = np.random.default_rng(seed)
        self.pyramids = 0
        self.starts = 0
        self.kills = 0
        self.runs = 0
        self.here = None

    def fresh(self):
        """Lay out another source."""
        self.pyramids += 1
        self.here = self.known.start(self.folder / f"ds{self.pyramids}")

    def stop_once(self, scheduler, kind, lines):
        """Start a driver that is stopped, or comes to the end of the pyramid."""
        if self.here is None:
            self.fresh()
        done = journaled(self.here)
        self.starts += 1
        driver = Driver(
            str(self.here),
            self.known.name,
            f"{self.folder}/{self.starts}.log",
            scheduler,
            int(self.random.integers(2, 5)),
            options=(("existing", str(self.random.choice(["error", "resume"]))),),
            kill_at=lines,
            kill_after=self.random.uniform(0, 0.03),
            signal=kind,
        )
        code = driver.fork()
        ran = runs(driver.log)
        print(
            f"{self.here.name}, start {self.starts}: {driver.options}, {scheduler}, signal {kind} "
            f"after {lines} lines: exit code {code}, {len(ran)} tasks ran"
        )
        self.runs += sum(ran.values())
        assert not done & set(ran), "a task ran again that was in the journal"
        if code in (0, 3):  # 3: the one before was stopped when all was done
            self.check_finished()
            return
        assert code in (-signal.SIGKILL, -signal.SIGTERM, 130, 131)
        if code == 131:  # there is nothing that could be kept: it had not begun, or all was done
            assert not job_folders(self.here)
            assert not done or (self.here / "seg" / self.known.case.mags[-1]).exists()
        self.kills += 1
        assert (
            done <= journaled(self.here) or (self.here / "seg" / self.known.case.mags[-1]).exists()
        )
        self.known.check_unseen(self.here)

    def check_finished(self):
        """Compare the end of one pyramid, and continue with another."""
        self.known.check(self.here)
        self.known.check_records(self.here)
        self.here = None

    def finish(self):
        """Bring the last pyramid to its end."""
        if self.here is not None:
            done = journaled(self.here)
            log = self.folder / "last.log"
            with dask.config.set(scheduler="synchronous"), logged(log):
                try:
                    self.known.case.build(self.here)
                except ExistsError:  # it was killed when all was done
                    assert not job_folders(self.here)
            assert not done & set(runs(log))
            self.runs += sum(runs(log).values())
            self.check_finished()
        needed = self.pyramids * len(self.known.tasks)
        print(
            f"{self.kills} kills in {self.starts} starts of {self.pyramids} pyramids: {needed} "
            f"tasks, {self.runs - needed} of them run twice"
        )
        return self.runs - needed


@pytest.mark.long
@pytest.mark.parametrize("case", list(CASES))
def test_driver_killed_again_and_again(tmp_path, undisturbed, case):
    """On one thread, on several, with other numbers of workers at each start."""
    known = undisturbed(case)
    campaign = Campaign(known, tmp_path, 30)
    kinds = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
    while campaign.kills < (KILLS or 4):
        scheduler = str(campaign.random.choice(["synchronous", "threads"]))
        campaign.stop_once(
            scheduler,
            campaign.random.choice(kinds),
            int(campaign.random.integers(0, len(known.tasks) // 3)),
        )
    repeated = campaign.finish()
    # in flight on at most 4 threads, and as many results that were not yet written down
    assert repeated <= 8 * campaign.kills


@pytest.mark.skipif(not KILLS, reason="takes long; WKWDASK_KILLS=30 runs it")
def test_driver_of_a_process_pool_killed(tmp_path, undisturbed):
    """Another test does so once."""
    known = undisturbed("parts")
    campaign = Campaign(known, tmp_path, 31)
    while campaign.kills < KILLS:
        campaign.stop_once(
            "processes", signal.SIGKILL, int(campaign.random.integers(0, len(known.tasks) // 2))
        )
    assert campaign.finish() <= 8 * campaign.kills


def test_process_of_a_pool_killed(tmp_path, undisturbed):
    """A new pool repeats the tasks in flight."""
    known = undisturbed("parts")
    folder = known.start(tmp_path / "ds")
    driver = Driver(str(folder), "parts", str(tmp_path / "log"), "processes", seconds=0.02)
    with driver.start() as process:
        wait_until(lambda: num_ended(driver.log) > 20)
        os.kill(pool_processes(driver)[-1], signal.SIGKILL)
        output, errors = process.communicate()
    assert (process.returncode, output) == (0, ""), errors
    known.check(folder)
    ran = runs(driver.log)
    assert set(ran) == known.tasks
    assert sum(ran.values()) - len(ran) <= 8


def interrupted(known, folder, kill_at, **options):
    """Kill the driver of a pyramid, and return the tasks in its journal."""
    driver = Driver(
        str(known.start(folder)), known.name, f"{folder}.log", kill_at=kill_at, **options
    )
    assert driver.fork() == -signal.SIGKILL
    return journaled(folder)


@pytest.mark.long
def test_second_start_killed_at_any_step(tmp_path, undisturbed):
    """From the taking of the locks to the clearing away, where there was a journal before."""
    known = undisturbed("parts")
    first = tmp_path / "first"
    done = interrupted(known, first, 90)

    def second_start(folder):
        return shutil.copytree(first, folder)

    changes, publishing = killed_at(0, known.case.build, second_start(tmp_path / "whole"))
    assert changes > publishing > 12
    known.check(tmp_path / "whole")
    problems = []
    steps = (
        range(1, changes + 1) if KILLS else (*range(1, 30, 7), *range(30, changes, changes // 5))
    )
    folder = tmp_path / "ds"
    for step in killed_at_each(steps, known.case.build, second_start, folder):
        finished = (folder / "seg" / known.case.mags[0]).exists()
        try:
            again = finish(known, folder) & done
            assert finished or not again
        except AssertionError as error:
            problems.append(f"killed before change {step} of {changes}: {str(error)[:300]}")
    assert not problems, "\n".join(problems)


# ----------------------------------------------------------------------------- damage before the
# next start


def part_files(root):
    return sorted(root.glob("*.parts/z*/*.run"))


def staged_files(root, mag):
    return sorted(root.glob(f"{mag}/z*/y*/x*.wkw"))


def first_part(root):
    return part_files(root)[0]


def last_part(root):
    return part_files(root)[-1]


def whole(root):
    """A file that one task wrote, or that was joined first."""
    folder = "2-2-2" if (root / "2-2-2").exists() else "2-2-1"
    return staged_files(root, folder)[0]


def joined(root):
    """A file that a later mag is made from."""
    folder = "4-4-4" if (root / "4-4-4").exists() else "4-4-2"
    return staged_files(root, folder)[0]


def truncate(path):
    os.truncate(path, path.stat().st_size - 3)


def empty(path):
    os.truncate(path, 0)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 16
    path.write_bytes(data)


def zero_out(path):
    path.write_bytes(bytes(path.stat().st_size))


def delete(path):
    path.unlink()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("case", "kill_at", "find", "damage"),
    [
        ("parts", 53, first_part, truncate),
        pytest.param("parts", 53, last_part, flip, marks=pytest.mark.long),
        pytest.param("parts", 90, first_part, delete, marks=pytest.mark.long),
        # what a file system may leave when the machine goes down
        ("parts", 53, last_part, zero_out),
        pytest.param("parts", 90, last_part, empty, marks=pytest.mark.long),
        ("parts", 110, whole, delete),
        pytest.param("parts", 110, whole, truncate, marks=pytest.mark.long),
        pytest.param("parts", 110, whole, empty, marks=pytest.mark.long),
        ("parts", 134, joined, delete),
        pytest.param("files", 25, first_part, flip, marks=pytest.mark.long),
        pytest.param("files", 25, whole, delete, marks=pytest.mark.long),
        ("files", 25, whole, truncate),
        pytest.param("files", 25, joined, delete, marks=pytest.mark.long),
        pytest.param("files", 45, joined, truncate, marks=pytest.mark.long),
    ],
)
def test_damaged_before_the_next_start(tmp_path, undisturbed, case, kill_at, find, damage):
    """Damaged files and few others are built again."""
    known = undisturbed(case)
    folder = tmp_path / "ds"
    done = interrupted(known, folder, kill_at)
    (root,) = job_folders(folder)
    damage(find(root))
    again = finish(known, folder) & done
    assert 1 <= len(again) <= 75


@pytest.mark.long
def test_everything_that_was_written_is_gone(tmp_path, undisturbed):
    """Even without the folders of mags and parts."""
    known = undisturbed("parts")
    folder = tmp_path / "ds"
    done = interrupted(known, folder, 100)
    (root,) = job_folders(folder)
    for entry in list(root.iterdir()):
        if entry.is_dir():
            shutil.rmtree(entry)
    again = finish(known, folder) & done
    assert len(again) > 70


@pytest.mark.parametrize("tail", ["torn", "cut", "zeros", "nonsense"])
def test_last_line_of_the_journal_damaged(tmp_path, undisturbed, tail):
    known = undisturbed("parts")
    folder = tmp_path / "ds"
    done = interrupted(known, folder, 60)
    (root,) = job_folders(folder)
    (path,) = root.glob("journal-*")
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    key = json.loads(lines[-1])["task"]
    if tail == "torn":
        path.write_bytes(data + lines[0][:31])
    elif tail == "cut":
        path.write_bytes(data[:-7])
    elif tail == "zeros":
        path.write_bytes(data[: -len(lines[-1])] + bytes(200) + b"\n" + bytes(77))
    else:
        path.write_bytes(data + b'[1]\n5\n"x"\n{}\n\xff\xfe\n')
    again = finish(known, folder) & done
    assert again == (set() if tail in ("torn", "nonsense") else {key})


@pytest.mark.long
def test_killed_damaged_and_killed_again(tmp_path, undisturbed):
    """Any of that, many times."""
    known = undisturbed("parts")
    random = np.random.default_rng(32)
    folder = known.start(tmp_path / "ds")
    for n in range(KILLS or 5):
        driver = Driver(
            str(folder),
            "parts",
            str(tmp_path / f"{n}.log"),
            kill_at=int(random.integers(10, 50)),
            kill_after=random.uniform(0, 0.01),
        )
        if driver.fork() == 0:
            known.check(folder)
            known.check_records(folder)
            folder = known.start(tmp_path / f"ds{n}")
            continue
        for root in job_folders(folder):
            files = part_files(root) + sorted(root.glob("*/z*/y*/x*.wkw"))
            for path in random.permutation(np.array([str(path) for path in files]))[
                : random.integers(0, 4)
            ]:
                damage = random.choice([truncate, empty, zero_out, delete])
                damage(root / path)
    # the last one may have been killed while its folder was cleared away
    published = (folder / "seg" / known.case.mags[-1]).exists()
    finish(known, folder, existing="error" if journaled(folder) and not published else "overwrite")


# ----------------------------------------------------------------------------- publishing and
# clearing away


@pytest.mark.one_in(2)
@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "existing"),
    [
        *(
            (first, "resume")
            for first in ("publish.json", "plan.json", "journal-0.jsonl", "2-2-1", "2-2-1.parts")
        ),
        ("plan.json", "error"),
        ("publish.json", "overwrite"),
    ],
)
def test_killed_while_the_folder_was_cleared_away(tmp_path, undisturbed, first, existing):
    """The rest of a removed folder is not mistaken for a job to resume: the folder holds the old
    mags by then, here in files of the same sizes."""
    known = undisturbed("parts")
    folder = known.start(tmp_path / "ds")
    with dask.config.set(scheduler="synchronous"):
        known.case.build(folder, compression="raw", method="min")
        old = contents(folder)

        def overwrite():
            ending_while_folders_are_removed(first, 9)
            known.case.build(folder, compression="raw", method="max", existing="overwrite")

        assert forked(overwrite) == 9
        new = contents(folder)
        assert {name: len(data) for name, data in new.items()} == {
            name: len(data) for name, data in old.items()
        }
        assert new != old
        try:
            known.case.build(folder, compression="raw", method="max", existing=existing)
        except ExistsError:
            assert existing == "error"
    assert differences(contents(folder), new) == []
    assert leftovers(folder) == []


def forked(function):
    """Run a function in a forked process and give its exit code."""
    child = multiprocessing.get_context("fork").Process(target=function)
    child.start()
    child.join()
    return child.exitcode


# ----------------------------------------------------------------------------- who is alive


def held_by(folder, **changes):
    """Let the job of an interrupted driver have another owner."""
    (root,) = job_folders(folder)
    paths = [root / "owner.json", *(folder / "seg").glob(".*.wkwdask-lock")]
    assert len(paths) > 4
    for path in paths:
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def living():
    """Fields of an owner that is this process."""
    me = this_owner("the other job")
    return {name: me[name] for name in ("command", "pid", "process_start", "since")}


def test_the_machine_went_down(tmp_path, undisturbed):
    """A process with the same number and start is another one after a restart of the machine."""
    known = undisturbed("parts")
    folder = tmp_path / "ds"
    done = interrupted(known, folder, 60)
    held_by(folder, **living(), boot="another start of the machine")
    assert not finish(known, folder) & done


@pytest.mark.parametrize("existing", ["error", "resume", "overwrite", "restart"])
def test_the_other_driver_lives(tmp_path, undisturbed, existing):
    """A job is not taken over from a process that is alive, or may be: on another machine."""
    known = undisturbed("parts")
    folder = tmp_path / "ds"
    done = interrupted(known, folder, 60)
    held_by(folder, **living())
    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(
            LockedError,
            match=f"the other job by .* process {os.getpid()} on {socket.gethostname()}",
        ):
            known.case.build(folder, existing=existing)
        held_by(folder, host="another-machine")
        with pytest.raises(LockedError, match=r"on another-machine.* remove /.*wkwdask-lock"):
            known.case.build(folder, existing=existing)
        for lock in (folder / "seg").glob(".*.wkwdask-lock"):  # as the error says, by one who knows
            lock.unlink()
    assert len(done) == 60
    with pytest.warns(DiscardWarning) if existing == "restart" else contextlib.nullcontext():
        again = finish(known, folder, existing=existing) & done
    assert again == (done if existing == "restart" else set())


def test_two_drivers_at_once(tmp_path, undisturbed):
    """The second raises an error that names the first, also with other settings."""
    known = undisturbed("parts")
    folder = known.start(tmp_path / "ds")
    driver = Driver(
        str(folder), "parts", str(tmp_path / "log"), "threads", kill_at=30, signal=signal.SIGSTOP
    )
    with driver.start() as process:
        wait_until(lambda: state_of(process.pid) == "T")
        try:
            for options in (
                {},
                {"existing": "resume"},
                {"existing": "overwrite"},
                {"existing": "restart"},
                {"method": "max"},
                {"method": "max", "existing": "resume"},
            ):
                with (
                    dask.config.set(scheduler="synchronous"),
                    pytest.raises(
                        LockedError, match=f"build_pyramid of .*process {process.pid} on"
                    ),
                ):
                    known.case.build(folder, **options)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        output, errors = process.communicate()
    assert (process.returncode, output) == (0, ""), errors
    assert set(runs(driver.log).values()) == {1}
    known.check(folder)
    known.check_records(folder)


def test_some_of_the_mags_are_overwritten(tmp_path, undisturbed):
    """The killed job is over then, and leaves no lock on its other mags either."""
    known = undisturbed("parts")
    folder = tmp_path / "ds"
    interrupted(known, folder, 60)
    with (
        dask.config.set(scheduler="synchronous"),
        regions_of(16),
        pytest.warns(DiscardWarning, match="60 tasks"),
    ):
        wkwdask.build_pyramid(folder, "seg", mags=known.case.mags[:2], existing="restart")
    assert leftovers(folder) == []


def test_one_of_several_resuming_drivers_works(tmp_path, undisturbed):
    """One of them does the work, the others are told who does, or that all is done."""
    known = undisturbed("parts")
    folder = tmp_path / "ds"
    done = interrupted(known, folder, 60)
    drivers = [
        Driver(
            str(folder),
            "parts",
            str(tmp_path / f"log{n}"),
            seconds=0.002,
            options=(("existing", "resume"),),
        )
        for n in range(2)
    ]
    processes = [driver.start() for driver in drivers]
    told = [process.communicate()[0] for process in processes]
    worked = [n for n, driver in enumerate(drivers) if runs(driver.log)]
    assert len(worked) == 1, told
    assert not set(runs(drivers[worked[0]].log)) & done
    assert processes[worked[0]].returncode == 0, told
    for n, output in enumerate(told):
        assert not output or (
            json.loads(output)[0] == "LockedError"
            and f"process {processes[worked[0]].pid} on" in output
        ), (n, output)
    known.check(folder)
    known.check_records(folder)


# ----------------------------------------------------------------------------- tasks that run more
# than once


@pytest.mark.long
@pytest.mark.parametrize("case", list(CASES))
def test_every_task_runs_twice(tmp_path, undisturbed, case):
    """As a cluster may do: at once, and late, when what it made was used already."""
    known = undisturbed(case)
    folder = known.start(tmp_path / "ds")
    random = np.random.default_rng(33)
    earlier = []

    def run_twice(task):
        first = task.run()
        second = task.run()
        same = [
            [replace(receipt, mtime_ns=0) for _, receipt in result.receipts]
            for result in (first, second)
        ]
        assert same[0] == same[1]
        if earlier and random.random() < 0.3:
            earlier[random.integers(len(earlier))].run()
        earlier.append(task)
        return second

    with dask.config.set(scheduler="synchronous"), tasks_run_by(run_twice):
        known.case.build(folder)
    known.check(folder)
    known.check_records(folder)


@pytest.mark.long
def test_a_task_runs_after_the_end_of_its_job(tmp_path, undisturbed, monkeypatch):
    """A worker that was cut off leaves nothing behind, neither after the end of the job nor after
    its cancellation."""
    known = undisturbed("parts")
    folder = known.start(tmp_path / "ds")
    tasks = kept_tasks(monkeypatch)
    with dask.config.set(scheduler="synchronous"):
        known.case.build(folder)
    failed = 0
    for task in tasks:
        try:
            task.run()
        except (OSError, WkwDaskError):
            failed += 1
    assert failed > len(tasks) / 2
    known.check(folder)


@pytest.mark.long
def test_a_worker_writes_on_while_the_job_is_taken_over(tmp_path, undisturbed):
    """Processes of a pool may write for a moment after their driver was killed, and the next driver
    starts at once; then they end."""
    known = undisturbed("parts")
    folder = known.start(tmp_path / "ds")
    driver = Driver(
        str(folder), "parts", str(tmp_path / "log"), "processes", seconds=0.1, kill_at=12
    )
    with driver.start() as process:
        process.wait()
        try:
            done = journaled(folder)
            assert num_running(driver.log)
            again = finish(known, folder, seconds=0.01)
            wait_until(lambda: not num_running(driver.log) or not pool_processes(driver))
            assert not again & done
            time.sleep(0.2)
            known.check(folder)
            wait_until(lambda: not pool_processes(driver))
        finally:
            for pid in pool_processes(driver):
                os.kill(pid, signal.SIGKILL)
    known.check(folder)
