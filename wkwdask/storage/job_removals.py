"""Jobs that died while they took mags away, and what dead jobs left in a layer that goes."""

from __future__ import annotations

import json
import os

from wkwdask.storage.job_folder import finish
from wkwdask.storage.job_records import OWNER_NAME, RECORD_NAME, holds_locks, is_untouched, job_folders, job_root, targets_of
from wkwdask.storage.local import remove_tree
from wkwdask.storage.locks import guarded, locked_folders, read_owner, release_locks_of
from wkwdask.storage.removal import is_removal, set_aside

REMOVAL = "rm of "
"""How the command of a job begins that takes mags away."""


def find_removals(parent: str) -> tuple[list[str], list[str]]:
    """Find what dead jobs left that were taking mags away; what was not out of sight is now.

    Returns
    -------
    roots, targets : list of str
        Folders of jobs that hold mags which are to be deleted, and the folders that the mags had.
    """
    roots: list[str] = []
    targets: list[str] = []
    if not os.path.isdir(parent) or (is_untouched(parent, ()) and not locked_folders(parent)):
        return roots, targets
    with guarded(parent):
        for root, job in job_folders(parent):
            owner = read_owner(f"{root}/{OWNER_NAME}")
            if owner is not None and (owner.is_gone() or not holds_locks(root, job)) and _is_removal(root):
                set_aside(f"{root}/{RECORD_NAME}")
                roots.append(root)
                targets += targets_of(root)
                release_locks_of(job, targets_of(root))
        for target, holder in locked_folders(parent):
            if holder.is_gone() and holder.command.startswith(REMOVAL) and not os.path.lexists(target):
                if job_root(parent, holder.job) not in roots:
                    remove_tree(job_root(parent, holder.job))
                release_locks_of(holder.job, [target])
                targets.append(target)
    return roots, targets


def end_removal(root: str) -> None:
    """Remove what is left of a folder that :func:`find_removals` found."""
    finish(root)


def discard_dead_jobs(parent: str) -> None:
    """Remove what dead jobs left in a layer that is removed, even if they could go on."""
    if next(job_folders(parent), None) is None:
        return
    with guarded(parent):
        for root, job in job_folders(parent):
            owner = read_owner(f"{root}/{OWNER_NAME}")
            if owner is None or owner.is_gone() or not holds_locks(root, job):
                release_locks_of(job, targets_of(root))
                remove_tree(root)


def _is_removal(root: str) -> bool:
    try:
        with open(f"{root}/{RECORD_NAME}", "rb") as file:
            return is_removal(json.load(file))
    except FileNotFoundError:
        return False
