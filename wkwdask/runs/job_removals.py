"""Jobs that died while they took mags away, and what dead jobs left in a layer that goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.errors import LockedError
from wkwdask.formats.publication import read_publication
from wkwdask.formats.record_paths import RecordPaths, job_folders, job_root
from wkwdask.runs.job_records import OWNER_NAME, JobState, check_records, holds_locks, is_untouched, job_states, targets_of
from wkwdask.runs.publishing import Publication
from wkwdask.store import files
from wkwdask.store.locks import guarded, locked_folders, read_owner, release_locks_of
from wkwdask.store.paths import basename, dirname

if TYPE_CHECKING:
    from collections.abc import Sequence

REMOVAL = "rm of "
"""How the command of a job begins that takes mags away."""


def find_removals(parent: str, datasets: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Find what dead jobs left that were taking mags away; what was not out of sight is now."""
    roots: list[str] = []
    targets: list[str] = []
    if not files.isdir(parent) or (is_untouched(parent, ()) and not locked_folders(parent)):
        return roots, targets
    with guarded(parent):
        for root, job in job_folders(parent):
            owner = read_owner(f"{root}/{OWNER_NAME}")
            if owner is None or not (owner.is_gone() or not holds_locks(root, job)):
                continue
            paths = RecordPaths(root, tuple(datasets))
            publication = read_publication(paths)
            if publication is not None and publication.removed is not None:
                check_records(paths)
                Publication(paths).set_aside()
                roots.append(root)
                targets += targets_of(root)
                release_locks_of(job, targets_of(root))
        for target, holder in locked_folders(parent):
            if holder.is_gone() and holder.command.startswith(REMOVAL) and not files.lexists(target):
                if job_root(parent, holder.job) not in roots:
                    files.remove_tree(job_root(parent, holder.job))
                release_locks_of(holder.job, [target])
                targets.append(target)
    return roots, targets


def end_removal(root: str) -> None:
    """Remove what is left of a folder that :func:`find_removals` found."""
    Publication(RecordPaths(root)).publish()


def discard_dead_jobs(parent: str) -> None:
    """Remove what dead jobs left in a layer that is removed, even if they could go on."""
    if next(job_folders(parent), None) is None:
        return
    with guarded(parent):
        for root, job in job_folders(parent):
            owner = read_owner(f"{root}/{OWNER_NAME}")
            if owner is None or owner.is_gone() or not holds_locks(root, job):
                check_records(RecordPaths(root))
                release_locks_of(job, targets_of(root))
                files.remove_tree(root)


def discard_interrupted(root: str) -> None:
    """Remove what an interrupted job left."""
    parent = dirname(root)
    with guarded(parent):
        state = dict(job_states(parent)).get(root)
        if state not in (None, JobState.CAN_GO_ON, JobState.DEAD):
            raise LockedError(f"{root}: {state.value}: only jobs that were interrupted are removed")
        check_records(RecordPaths(root))
        release_locks_of(basename(root).removeprefix(basename(job_root(parent, ""))), targets_of(root))
        files.remove_tree(root)
