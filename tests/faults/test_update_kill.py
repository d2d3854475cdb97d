"""Updates in place that are killed: each file is the old or the new one, and the next update makes
all right."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time

import dask
import numpy as np
import pytest
from faults.drivers import (
    CASES,
    KILLS,
    kept_tasks,
    killed_at,
    killed_at_each,
    logged,
    runs,
    tasks_run_by,
)
from faults.trees import contents, differences, leftovers, states

import wkwdask

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

CASE = CASES["parts"]
NOTHING = "nothing to do"


def update(folder):
    """Update the pyramid: the job that is killed and repeated."""
    return wkwdask.build_pyramid(folder, "seg", mags=CASE.mags, update=True)


def edit(folder, random, num_files=8):
    """Replace, remove and add files."""
    paths = sorted((folder / "seg" / "1").glob("z*/y*/x*.wkw"))
    data = [path.read_bytes() for path in paths]
    for n in random.choice(len(paths), num_files, replace=False):
        if random.random() < 0.25:
            paths[n].unlink()
        else:
            paths[n].write_bytes(data[random.integers(len(data))])
    for _ in range(2):
        path = (
            folder
            / "seg"
            / "1"
            / "z{}/y{}/x{}.wkw".format(*(int(random.integers(n)) for n in (3, 4, 6)))
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[random.integers(len(data))])


def copied(folder, target):
    """Copy a dataset with all times: for an update it is the same."""
    return shutil.copytree(folder, target, copy_function=shutil.copy2)


def rebuilt(folder, target):
    """Return the contents after all mags are rebuilt."""
    copied(folder, target)
    wkwdask.build_pyramid(target, "seg", mags=CASE.mags, existing="overwrite")
    found = contents(target)
    shutil.rmtree(target)
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A pyramid that is up to date."""
    folder = tmp_path_factory.mktemp("built") / "ds"
    CASE.make_source(folder)
    with dask.config.set(scheduler="synchronous"):
        CASE.build(folder)
    return folder


@pytest.fixture(scope="module")
def edited(built, tmp_path_factory):
    """The same after changes, and what it is to become."""
    folder = copied(built, tmp_path_factory.mktemp("edited") / "ds")
    edit(folder, np.random.default_rng(60))
    with dask.config.set(scheduler="synchronous"):
        return folder, contents(folder), rebuilt(folder, folder.parent / "rebuilt")


def check_between(folder, before, after):
    """Make sure that every file is the old one or the new one, or is not there where one of them
    was empty."""
    found = contents(folder)
    assert [
        name
        for name in found.keys() | before.keys() | after.keys()
        if found.get(name) not in (before.get(name), after.get(name))
    ] == []


def check_after(folder, after):
    """Update again, and make sure that all is right then."""
    with dask.config.set(scheduler="synchronous"):
        update(folder)
        assert differences(contents(folder), after) == []
        assert leftovers(folder) == []
        kept = states(folder)
        assert NOTHING in update(folder).note
        assert states(folder) == kept
    assert leftovers(folder) == []


@pytest.mark.long
def test_update_killed_at_any_step(tmp_path, edited):
    folder, before, after = edited
    changes, _ = killed_at(0, update, copied(folder, tmp_path / "whole"))
    assert contents(tmp_path / "whole") == after
    steps = (
        range(1, changes + 1)
        if KILLS
        else sorted({*range(1, 16, 2), *range(16, changes, 7), *range(changes - 9, changes + 1)})
    )
    problems = []
    here = tmp_path / "ds"
    for step in killed_at_each(steps, update, lambda target: copied(folder, target), here):
        try:
            check_between(here, before, after)
            check_after(here, after)
        except AssertionError as error:
            problems.append(f"killed before change {step} of {changes}: {str(error)[:300]}")
    assert not problems, "\n".join(problems)


@pytest.mark.long
def test_changes_taken_back_after_the_kill(tmp_path, built, edited):
    """Files that a killed update built from removed files do not stay."""
    folder, _, _ = edited
    changes, _ = killed_at(0, update, copied(folder, tmp_path / "whole"))
    original = contents(built)
    steps = range(changes // 8, changes, max(1, changes // (8 if KILLS else 4)))
    here = tmp_path / "ds"
    for _ in killed_at_each(steps, update, lambda target: copied(folder, target), here):
        shutil.rmtree(here / "seg" / "1")
        # with the old times: only the coarser files themselves can tell
        copied(built / "seg" / "1", here / "seg" / "1")
        check_after(here, original)


@pytest.mark.long
def test_update_killed_again_and_again(tmp_path, built):
    """On threads, at random moments, with changes in between."""
    folder = copied(built, tmp_path / "ds")
    random = np.random.default_rng(61)
    edit(folder, random)
    trial = copied(folder, tmp_path / "trial")
    started = time.monotonic()
    update(trial)
    seconds = time.monotonic() - started
    for n in range(KILLS or 6):
        child = multiprocessing.get_context("fork").Process(target=update, args=(folder,))
        child.start()
        time.sleep(random.uniform(0, 1.1) * seconds)
        child.kill()
        child.join()
        if n % 2:
            edit(folder, random, 3)
    with dask.config.set(scheduler="synchronous"):
        after = rebuilt(folder, tmp_path / "rebuilt")
    check_after(folder, after)


@pytest.mark.long
def test_every_task_runs_twice(tmp_path, edited):
    folder, _, after = edited
    here = copied(folder, tmp_path / "ds")

    def run_twice(task):
        task.run()
        return task.run()

    with tasks_run_by(run_twice):
        check_after(here, after)


def test_a_task_runs_after_the_end(tmp_path, edited, monkeypatch):
    """A worker that was cut off during one update does not replace files of the next update."""
    folder, _, _ = edited
    here = copied(folder, tmp_path / "ds")
    tasks = kept_tasks(monkeypatch)
    with dask.config.set(scheduler="synchronous"):
        update(here)
        edit(here, np.random.default_rng(62))
        update(here)
        after = rebuilt(here, tmp_path / "rebuilt")
    kept = states(here)
    for task in tasks:
        try:
            task.run()
        except OSError:
            continue
    assert differences(contents(here), after) == []
    assert leftovers(here) == []
    assert {name for name in kept if kept[name] != states(here).get(name)} == set()


def test_no_more_is_made_again_than_was_in_the_mag(tmp_path, edited):
    """Mags whose record was kept are done; the one that was being made is made again."""
    folder, before, after = edited
    log = tmp_path / "whole.log"
    whole = copied(folder, tmp_path / "whole")
    with dask.config.set(scheduler="synchronous"), logged(log):
        update(whole)
    tasks = list(runs(log))
    assert len({task.split()[1] for task in tasks}) == len(CASE.mags)

    here = copied(folder, tmp_path / "ds")

    def stop_in_the_last(task):
        if task.key.split()[1] == str(len(CASE.mags) - 1):
            os._exit(7)
        return task.run()

    def stopped():
        with dask.config.set(scheduler="synchronous"), tasks_run_by(stop_in_the_last):
            update(here)

    child = multiprocessing.get_context("fork").Process(target=stopped)
    child.start()
    child.join()
    assert child.exitcode == 7
    check_between(here, before, after)
    again = tmp_path / "again.log"
    with dask.config.set(scheduler="synchronous"), logged(again):
        update(here)
    assert {task.split()[1] for task in runs(again)} == {str(len(CASE.mags) - 1)}
    check_after(here, after)
