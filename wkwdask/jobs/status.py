"""What jobs write a dataset, a layer or a mag, and how far they are: read from their folders, from any machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.errors import MissingError
from wkwdask.storage.batch_file import read_batch
from wkwdask.storage.job_folder import JobState, is_job_folder, job_owner, job_states, job_targets
from wkwdask.storage.local import local_path
from wkwdask.storage.slurm import SlurmJob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.storage.batch_file import Batch
    from wkwdask.storage.owner import Owner


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job that has a folder."""

    root: str
    """Its folder."""
    state: JobState
    """What became of it."""
    owner: Owner | None
    """Who runs it, or ran it last."""
    targets: tuple[str, ...]
    """What it writes."""
    batch: Batch | None
    """The job arrays that do its tasks, if there are any."""

    @property
    def is_running(self) -> bool:
        """Whether its process, or its SLURM job, may be alive."""
        return self.state is JobState.RUNNING

    def slurm_jobs(self) -> list[str]:
        """Give the ids of the SLURM jobs that work on it: its arrays, then its owner."""
        owner = SlurmJob.parse(self.owner.batch) if self.owner is not None else None
        arrays = [self.batch.rounds[-1].array] if self.batch is not None else []
        return [*arrays, *([owner.number] if owner is not None else [])]


def jobs_of(url: str | os.PathLike[str]) -> list[FoundJob]:
    """Find the jobs that write a dataset, a layer or a mag, which need not be there yet.

    Parameters
    ----------
    url : str or path
        The folder.

    Raises
    ------
    MissingError
        Neither it nor the folder that it would lie in is there.
    """
    path = os.path.abspath(local_path(url))
    if not os.path.isdir(path) and not os.path.isdir(os.path.dirname(path)):
        raise MissingError(f"{path}: no such dataset, layer or mag")
    return [job for folder in _folders(path) for job in _jobs_in(folder) if any(_lies_in(target, path) for target in job.targets)]


def _folders(path: str) -> Iterator[str]:
    """Go through the folders in which jobs of a path may be: the one above it, itself, and those in it."""
    yield os.path.dirname(path)
    if os.path.isdir(path):
        yield path
        with os.scandir(path) as entries:
            yield from sorted(entry.path for entry in entries if entry.is_dir() and not is_job_folder(entry.name))


def _jobs_in(folder: str) -> Iterator[FoundJob]:
    for root, state in job_states(folder):
        yield FoundJob(root, state, job_owner(root), job_targets(root), read_batch(root))


def _lies_in(target: str, path: str) -> bool:
    return target == path or target.startswith(path + os.sep)
