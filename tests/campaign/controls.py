"""Null controls: a check of the package is removed, and something must catch that.

The pytest plugin of this module removes the check that ``CAMPAIGN_REMOVED`` names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from wkwdask.formats.record_paths import OWNER_NAME
from wkwdask.formats.roots import Root
from wkwdask.formats.zarr import codec
from wkwdask.model.store import Expected
from wkwdask.runs import job_folder
from wkwdask.store import documents, files, locks, new_files
from wkwdask.store.local import LocalFileSystem, LocalOutput
from wkwdask.store.objects.remote import RemoteStore

from .results import Trial

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

_TESTS = Path(__file__).resolve().parents[1]
_VARIABLE = "CAMPAIGN_REMOVED"
_POINTS, _CRASHES = 12, 6


@dataclass(frozen=True)
class Control:
    """A check, and what must fail without it."""

    name: str
    remove: Callable[[], None]
    """Remove the check from this process."""
    caught_by: str
    """Part of the campaign and its cell, or a test below ``tests``."""
    faults: tuple[str, ...] = ()
    """Faults that must notice; empty for all of that part."""

    def trials(self, folder: Path) -> list[Trial]:
        """Remove the check and look whether something notices."""
        found = self._run_test() if self.is_test else self._run_cell(folder)
        problems = () if found else ("nothing noticed",)
        noticed = found if self.is_test else f"{self.caught_by}: {found}"
        return [Trial(self.name, "control", noticed, True, found, problems)]

    @property
    def is_test(self) -> bool:
        """Whether a test catches it."""
        return ".py" in self.caught_by

    def _run_cell(self, folder: Path) -> str:
        """Run a cell without the check; return its first problem, empty if there is none."""
        from . import cells, places  # which a test must not import
        from .jobs import all_cells

        part, _, name = self.caught_by.partition(": ")
        (cell,) = (cell for cell in all_cells() if str(cell) == name)
        if part == "power":
            tried = cells.power_losses(cell, "control", _CRASHES, 0, None, self.remove)
        else:
            tried_by = {"calls": cells.faults_at_calls, "places": places.changes_of_place}[part]
            tried = tried_by(cell, "control", _POINTS, None, self.remove, self.faults)
        trials = tried(folder)
        bad = [trial for trial in trials if trial.problems]
        return f"{len(bad)} of {len(trials)}" if bad else ""

    def _run_test(self) -> str:
        """Run the test without the check; return its first failure, empty if it passes."""
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-x", "-m", "", "--no-header", "--tb=no"),
                *("-p", "no:cacheprovider", "-p", "campaign.controls", self.caught_by),
            ],
            cwd=_TESTS,
            env=os.environ | {_VARIABLE: self.name, "PYTHONPATH": _python_path()},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{self.caught_by} could not be run: {done.stdout}{done.stderr}")
        failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
        return failed[0].removeprefix("FAILED ").partition(" - ")[0] if failed else ""


def _python_path() -> str:
    return os.pathsep.join([str(_TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])


def pytest_configure(config: object) -> None:
    """Remove a check before tests run."""
    del config
    next(each for each in CONTROLS if each.name == os.environ[_VARIABLE]).remove()


def _replace(owner: object, name: str, value: object) -> None:
    mock.patch.object(owner, name, value).start()


def _write_in_place() -> None:
    """Files are written under their final names."""
    create = files.create

    def output(path):
        return create(path, exclusive=False)

    def begin(self, path, temporary_folder=None, *, flush=True):
        del temporary_folder
        self.path = self._temporary = path
        self._flush, self._folder = flush, os.path.dirname(path)
        self._output = output(path)
        self._output.set_nbytes(0)

    _replace(new_files.RenamedFile, "__init__", begin)


def _write_once(self, data, offset, *, flush=False):
    """Write what the system takes at once."""
    os.pwrite(self._fd, data, offset)


def _put_over_changes() -> None:
    """Documents in buckets are written over what others have changed since they were read."""
    put = RemoteStore.put

    def put_any(self, name, data, expect=Expected.ANY):
        is_record = name.startswith(".") or name == OWNER_NAME
        return put(self, name, data, expect if is_record else Expected.ANY)

    _replace(RemoteStore, "put", put_any)


def _take_no_lock(target, owner, region, found):
    """Let everybody write."""
    return []


def _any_size(kind, data, max_nbytes):
    """Believe the size that a header states."""
    del max_nbytes
    _, _, offset = codec._STATED_SIZES[kind]
    return int.from_bytes(data[offset : offset + 4], "little")


CONTROLS = (
    Control(
        "temporary name of a file",
        _write_in_place,
        "calls: save_by_url-wkw",
        ("killed before", "killed after"),
    ),
    Control(
        "repetition of short writes",
        lambda: _replace(LocalOutput, "write", _write_once),
        "calls: save_by_url-wkw",
        ("short write",),
    ),
    Control(
        "fsync of a file",
        lambda: _replace(LocalOutput, "sync", lambda self: None),
        "power: save_by_url-wkw",
    ),
    Control(
        "fsync of a folder",
        lambda: _replace(LocalFileSystem, "fsync", lambda self, path: None),
        "power: save_by_url-wkw",
    ),
    Control(
        "lock of a mag",
        lambda: _replace(job_folder.locks, "take_lock", _take_no_lock),
        "api/test_region.py::test_a_lock_on_the_mag_excludes_regions",
    ),
    Control(
        "machine of a lock",
        lambda: _replace(locks.Owner, "_can_be_seen", lambda self: True),
        "places: save_by_url-wkw",
        ("killed, another machine",),
    ),
    Control(
        "token of a job in a bucket",
        lambda: _replace(documents, "check_fence", lambda read=None: None),
        "runs/test_bucket_races.py::test_a_woken_process_changes_nothing",
    ),
    Control(
        "state of a document in a bucket",
        _put_over_changes,
        "remote/test_bucket_faults.py::test_a_put_that_arrives_late",
    ),
    Control(
        "paths in a document",
        lambda: _replace(Root, "check", lambda self, path, stated=None, advice="": None),
        "safety/test_levels_outside.py::test_nothing_outside_changes",
    ),
    Control(
        "bound of a decoder",
        lambda: _replace(codec, "_check_stated_size", _any_size),
        "safety/test_bombs.py::test_a_zarr_chunk_gives_no_more_than_a_chunk_has",
    ),
)


def control_tasks(
    options: argparse.Namespace,
) -> Iterator[tuple[str, Callable[[Path], list[Trial]]]]:
    """Yield the controls."""
    for control in CONTROLS:
        if options.cell in (None, control.name):
            yield control.name, control.trials
