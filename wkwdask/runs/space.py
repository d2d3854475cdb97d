"""Comparison of the bytes and files that jobs will write with those that their disks have left,
before they start, and the limit on all bytes that the jobs of a call write."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import SpaceError
from wkwdask.model.summary import counted, format_nbytes
from wkwdask.store.paths import dirname, is_bucket
from wkwdask.store.store import folders_of, store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wkwdask.runs.job import Task

    RunTasks = Callable[[Sequence[Task]], Sequence[Any]]


@dataclass(slots=True)
class SizeLimit:
    """Limit on the bytes that the jobs of a call write."""

    check: Callable[[int], None]
    """Function that raises an error for too many bytes."""
    _nbytes: int = 0

    def add(self, nbytes: int) -> None:
        """Count the bytes of a finished task."""
        self._nbytes += nbytes
        self.check(self._nbytes)


_size_limit: ContextVar[SizeLimit | None] = ContextVar("wkwdask_size_limit", default=None)
size_limit = _size_limit.get


@contextlib.contextmanager
def limited_size(check: Callable[[int], None]) -> Iterator[None]:
    """Check the bytes that all jobs in this block have written, together, after each task."""
    token = _size_limit.set(SizeLimit(check))
    try:
        yield
    finally:
        _size_limit.reset(token)


@dataclass(frozen=True, slots=True)
class Size:
    """Estimated size of the files that a job writes."""

    least_nbytes: int
    """Bytes without which the job certainly or very probably fails."""
    likely_nbytes: int
    num_files: int
    """Number of files, at most."""


@dataclass(frozen=True, slots=True)
class Need:
    """Space that a job needs: bounds that cost nothing, and a measurement for the case that they
    exceed what is free."""

    folder: str
    """Folder in which files are written; it may not exist yet."""
    most_nbytes: int
    most_files: int
    measure: Callable[[RunTasks], Size]
    """Function that measures the size; its argument runs tasks where the job runs, and returns
    their values (none where it cannot)."""
    held: Callable[[], tuple[int, int] | None] = lambda: (0, 0)
    """Function that counts files and bytes of an interrupted job, which are kept or removed; None
    if the job has finished."""


def check_space(needs: Sequence[Need], run_tasks: RunTasks, *, force: bool) -> list[str]:
    """Raise SpaceError if jobs together need more bytes than their disk has left; return warnings
    where they may. With ``force``, only warn."""
    by_disk: dict[int, list[Need]] = {}
    for need in needs:
        if is_bucket(need.folder):  # which has no limit that can be asked for
            continue
        place = existing_folder(need.folder)
        by_disk.setdefault(folders_of(place).stat(place).st_dev, []).append(need)
    return [
        problem
        for of_disk in by_disk.values()
        for problem in _problems(of_disk, run_tasks, force=force)
    ]


def _problems(needs: Sequence[Need], run_tasks: RunTasks, *, force: bool) -> list[str]:
    folder = needs[0].folder
    free_nbytes, free_files = _free(folder)
    if sum(need.most_nbytes for need in needs) <= free_nbytes and (
        free_files is None or sum(need.most_files for need in needs) <= free_files
    ):
        return []
    held = [(need, held) for need in needs if (held := need.held()) is not None]
    sizes = [need.measure(run_tasks) for need, _ in held]
    free_nbytes += sum(nbytes for _, (_, nbytes) in held)
    least, likely = (
        sum(size.least_nbytes for size in sizes),
        sum(size.likely_nbytes for size in sizes),
    )
    if least > free_nbytes and not force:
        raise SpaceError(
            f"{describe_shortage(folder, likely, free_nbytes)}; make room, or start all the same "
            "with force_space=True"
        )
    problems = [describe_shortage(folder, likely, free_nbytes)] if likely > free_nbytes else []
    num_files = sum(size.num_files for size in sizes)
    if free_files is not None and num_files > free_files + sum(count for _, (count, _) in held):
        problems.append(
            f"{folder}: up to {counted(num_files, 'file')} will be written, {free_files:,} more "
            "are possible"
        )
    return problems


def describe_shortage(folder: str, nbytes: int, free_nbytes: int) -> str:
    return (
        f"{folder}: about {format_nbytes(nbytes)} will be written, {format_nbytes(free_nbytes)} "
        "are free"
    )


def free_nbytes(folder: str) -> int:
    """Return the free bytes of the disk of a folder that may not exist yet."""
    return _free(folder)[0]


def _free(folder: str) -> tuple[int, int | None]:
    """Return the free bytes and inodes of the disk of a folder that may not exist yet."""
    if is_bucket(folder):
        return 1 << 62, None
    place = existing_folder(folder)
    return folders_of(place).free(place)


def space_problems(folder: str, nbytes: int, num_files: int) -> list[str]:
    """Compare an estimate of a plan with the free space and inodes of the file system."""
    size = Size(0, nbytes, num_files)
    return check_space([Need(folder, nbytes, num_files, lambda _: size)], lambda _: (), force=True)


def existing_folder(folder: str) -> str:
    """Return the folder, or the innermost one above it that exists."""
    while not store_at(folder).exists():
        above = dirname(folder)
        if above == folder:
            store_at(folder).make()  # raises the error of a zip, which is read-only
        folder = above
    return folder
