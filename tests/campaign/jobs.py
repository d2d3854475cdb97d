"""Jobs of the campaign: the calls in which verbs of the matrix change files."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from verbs import test_foreign_forms, test_matrix
from verbs.all_verbs import LIMITS, VERBS, Bench
from verbs.foreign_forms import ForeignForm

import wkwdask

from .trees import tree_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from verbs.forms import Form

_BY_FILE = frozenset({"repair", "write_zarr_view", "remove_zarr_view", "n5_as_zarr", "rm"})
"""Functions whose levels change file by file."""
_PUBLIC_FUNCTIONS = {
    name: value
    for name, value in ((name, getattr(wkwdask, name)) for name in wkwdask.__all__)
    if callable(value) and not isinstance(value, type)
}
"""Found once, which imports the modules of all of them before this process forks."""


@dataclass(frozen=True)
class Cell:
    """A verb and a format."""

    verb: str
    form: Form

    def __str__(self) -> str:
        return f"{self.verb}-{self.form}"


@dataclass(frozen=True)
class Job:
    """A call of a public function, and the folder before it."""

    name: str
    number: int
    """Number among the calls of its cell."""
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    before: Path
    """Copy of the folder."""

    def run(self) -> Any:
        return self.function(*self.arguments, **self.options)

    @property
    def is_by_file(self) -> bool:
        """Whether files of a level are published one by one."""
        return (
            self.name in _BY_FILE
            or self.options.get("region") is not None
            or bool(self.options.get("update"))
            or (self.name == "build_pyramid" and "bounding_box" in self.options)
        )


def all_cells() -> list[Cell]:
    """List the cells of the matrix on disk whose packages are installed."""
    found = []
    for parameter in [*test_matrix.cells(), *test_foreign_forms.cells()]:
        names = [mark.name for mark in parameter.marks]
        if "xfail" not in names and all(
            is_installed(package)
            for mark in parameter.marks
            if mark.name == "needs"
            for package in mark.args
        ):
            found.append(Cell(*parameter.values))
    return found


@functools.cache
def is_installed(package: str) -> bool:
    try:
        __import__(package)
    except ImportError:
        return False
    return True


def record_jobs(cell: Cell, root: Path, kept: Path, seed: int) -> list[Job]:
    """Run a verb once in a folder, and return its calls that change files, with copies of the
    folder before each."""
    jobs, depth = [], 0

    def recorded(name, function):
        @functools.wraps(function)
        def call(*arguments, **options):
            nonlocal depth
            if depth:
                return function(*arguments, **options)
            before = kept / str(len(jobs))
            shutil.copytree(root, before, symlinks=True)
            old = tree_of(root)
            depth += 1
            try:
                result = function(*arguments, **options)
            except BaseException:
                shutil.rmtree(before)
                raise
            finally:
                depth -= 1
            if tree_of(root) == old:
                shutil.rmtree(before)
            else:
                jobs.append(Job(name, len(jobs), function, arguments, options, before))
            return result

        return call

    def unrecorded(save):
        def call(*arguments, **options):
            nonlocal depth
            depth += 1
            try:
                return _forked(save, *arguments, **options)
            finally:
                depth -= 1

        return call

    form = cell.form
    if isinstance(form, ForeignForm) or cell.verb != "save":
        form = dataclasses.replace(form, save=unrecorded(form.save))
    bench = Bench(form, root, seed, **LIMITS.get(cell.verb, {}))
    with contextlib.ExitStack() as patches:
        for name, function in _PUBLIC_FUNCTIONS.items():
            patches.enter_context(mock.patch.object(wkwdask, name, recorded(name, function)))
        patches.enter_context(mock.patch.object(bench, "expect"))
        VERBS[cell.verb](bench)
    return jobs


def _forked(save: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Save an image in a child: the packages of other software start threads, which no later child
    may inherit."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            save(*arguments, **options)
            code = 0
        except wkwdask.ExistsError:
            code = 3
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 3:
        raise wkwdask.ExistsError("the image exists")
    if code:
        raise RuntimeError(f"an image could not be saved: exit code {code}")
