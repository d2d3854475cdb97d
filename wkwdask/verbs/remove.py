"""The job that deletes mags which were set aside in the folders of jobs: groups of their folders, each with all files in it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.runs.job import Result, Task
from wkwdask.store import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_FOLDERS_PER_TASK = 16
_DEPTH = 3  # mag, z and y in the folder of a job


@dataclass(frozen=True, slots=True)
class RemoveSpec:
    """Delete some folders."""

    folders: tuple[str, ...]
    """The folders."""

    def task(self) -> Task:
        """Give the task."""
        return Task(f"deletion of {self.folders[0]}", f"delete {self.folders[0]}", RemoveSpec.run, self)

    def run(self) -> Result:
        """Delete them; what is gone already is fine."""
        counts = [files.delete_tree(folder) for folder in self.folders]
        return Result((), value=(sum(files for files, _ in counts), sum(nbytes for _, nbytes in counts)))


class RemoveJob:
    """Mags that are deleted."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        folders = [folder for root in roots for folder in _folders_below(root, _DEPTH)]
        self._groups = [tuple(folders[n : n + _FOLDERS_PER_TASK]) for n in range(0, len(folders), _FOLDERS_PER_TASK)]
        self.num_tasks = len(self._groups)
        self.files = 0
        self.nbytes = 0

    def tasks(self) -> Iterator[Task]:
        """Give groups of folders."""
        return (RemoveSpec(group).task() for group in self._groups)

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Count what was deleted."""
        self._count(*result.value)
        return ()

    def finish(self) -> None:
        """Delete what is left of the mags; files right in the folders of jobs stay."""
        for root in self._roots:
            for mag in _folders_below(root, 1):
                self._count(*files.delete_tree(mag))

    def _count(self, files: int, nbytes: int) -> None:
        self.files += files
        self.nbytes += nbytes


def _folders_below(folder: str, depth: int) -> Iterator[str]:
    """Go through the folders so many levels below another one."""
    if not depth:
        yield folder
        return
    with contextlib.suppress(FileNotFoundError), files.scandir(folder) as entries:
        for entry in [entry for entry in entries if entry.is_dir(follow_symlinks=False)]:
            yield from _folders_below(entry.path, depth - 1)
