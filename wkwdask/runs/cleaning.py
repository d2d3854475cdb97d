"""Removal of what dead jobs and replaced levels have left in an image, dataset or bucket."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from wkwdask.errors import LockedError, MissingError
from wkwdask.formats.record_paths import RecordPaths, is_job_folder, job_root
from wkwdask.formats.registry import formats, location_of
from wkwdask.model.placement import job_in, plain_name
from wkwdask.runs.garbage import (
    can_switch,
    delete_level,
    find_garbage,
    is_listed,
    past_grace,
    remove_garbage,
)
from wkwdask.runs.job_folder import JobFolder, release_dead_locks
from wkwdask.runs.job_records import JobState, has_no_jobs, job_states
from wkwdask.runs.status import folders_with_jobs
from wkwdask.store.leases import has_single_writer
from wkwdask.store.locks import GUARD_NAME, Owner, guarded, is_lock
from wkwdask.store.paths import (
    CLOCK_PREFIX,
    PROBE_PREFIX,
    TEMPORARY_SUFFIX,
    abspath,
    is_bucket,
    target_path,
)
from wkwdask.store.records import is_complete
from wkwdask.store.store import folders_of, store_at

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

_QUESTION_SECONDS = 3600.0


def clean(
    url: str | os.PathLike[str], *, grace_seconds: float | None = None, dry_run: bool = False
) -> list[str]:
    """Remove what dead jobs and replaced levels have left, never what a document names.

    Parameters
    ----------
    url : str or path
        Image, dataset or folder of images, on disk or in a bucket.
    grace_seconds : float, optional
        Age of replaced levels that are removed [s]; readers that opened the image before they were
        replaced still read them. By default 0 on disk, and a week in a bucket.
    dry_run : bool, default False
        Whether only to list what would be removed.

    Returns
    -------
    list of str
        Removed folders: of dead jobs that cannot resume, and of levels. In a bucket also small
        objects by which killed processes asked the server for its time and its abilities, an hour
        later. Jobs that were interrupted and can resume stay: ``wkwdask cancel --discard`` removes
        them.

    Raises
    ------
    MissingError
        There is nothing at ``url``.
    """
    path = abspath(target_path(location_of(url)))
    if not store_at(path).is_folder():
        raise MissingError(f"{path}: nothing is stored here")
    removed = []
    for parent in folders_with_jobs(path):
        paths = RecordPaths(job_root(parent, ""))
        dead = [
            root
            for root, state in job_states(parent)
            if state in (JobState.DEAD, JobState.UNPUBLISHED)
            or (state is JobState.RUNNING and not store_at(root).names())
        ]
        old = [folder for each in find_garbage(paths, grace_seconds) for folder in each.levels]
        if has_single_writer(parent):  # a paused job may continue: no lease ends it
            dead = []
        questions = _questions(parent)
        removed += [*dead, *old, *_strays(parent), *(f"{parent}/{name}" for name in questions)]
        if dry_run:
            continue
        store_at(parent).delete(*questions)
        if dead:
            _end_dead_jobs(parent)
        release_dead_locks(parent)
        remove_garbage(paths, grace_seconds)
        for stray in _strays(parent):
            delete_level(stray)
    return removed


def _end_dead_jobs(parent: str) -> None:
    with contextlib.suppress(LockedError):  # another process ends them now
        job_folder = JobFolder(parent, Owner.this_process(f"clean of {parent}"), ())
        job_folder.start("update", {})
        job_folder.discard()


def remove_unused(folder: str) -> None:
    """Remove a folder on a file system that holds nothing, or only what is left of dead jobs that
    cannot resume; others stay."""
    store = store_at(folder)
    if (
        store.link_target()
        or not store.is_folder()
        or not all(map(_is_of_jobs, store.names()))
        or any(state is not JobState.DEAD for _, state in job_states(folder))
    ):
        return
    if not has_no_jobs(folder, ()):
        _end_dead_jobs(folder)
    release_dead_locks(folder)
    with guarded(folder):  # under which locks are written; also removes that of a killed process
        store.delete(*filter(_is_temporary, store.names()))
    with contextlib.suppress(OSError):
        # Only an empty folder is removed: a job that starts now has either made something in it, or
        # finds no folder when it takes the guard, and ends.
        folders_of(folder).rmdir(folder)


def _is_of_jobs(name: str) -> bool:
    """Check whether a name is that of a job folder, a guard, a lock, or a temporary file of one."""
    return is_job_folder(name) or is_lock(name) or name == GUARD_NAME or _is_temporary(name)


def _is_temporary(name: str) -> bool:
    """Check whether a name is that of a temporary file of a lock."""
    return name.startswith("..") and name.endswith(TEMPORARY_SUFFIX)


def _is_created_once(folder: str) -> bool:
    """Check whether a job has written a folder beside the place of a level of N5, or of a mag of no
    dataset."""
    places = folder, plain_name(folder)
    return any(fmt.level_folders.is_level(place) for fmt in formats() for place in places)


def _questions(parent: str) -> list[str]:
    """List the objects by which processes that were killed asked a bucket for its time, or whether
    it honours conditions. Those of living processes are seconds old."""
    if not is_bucket(parent):
        return []
    prefixes = (CLOCK_PREFIX, PROBE_PREFIX)
    names = [name for name in store_at(parent).names() if name.startswith(prefixes)]
    return past_grace(parent, names, _QUESTION_SECONDS)


def _strays(parent: str) -> Iterator[str]:
    """Yield incomplete levels of jobs that are gone without a trace, in a bucket: a process that
    was paused while another one removed its job continues until it next renews its lease."""
    if not is_bucket(parent) or has_single_writer(parent):
        return
    paths = RecordPaths(job_root(parent, ""))
    strays = []
    for name in store_at(parent).names():
        job, folder = job_in(name), f"{parent}/{name}"
        if (
            job
            and (can_switch(parent) or _is_created_once(folder))
            and not store_at(job_root(parent, job)).exists()
            and not is_listed(parent, folder)
            and not is_complete(folder)  # such as one that was only removed from its document
        ):
            strays.append(folder)
    # read last: a job that replaces a level records it before the document switches
    if strays:
        garbage = {folder for each in find_garbage(paths, 0) for folder in each.levels}
        yield from (folder for folder in strays if folder not in garbage)
