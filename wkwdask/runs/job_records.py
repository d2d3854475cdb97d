"""Records in a job folder: owner, targets, and whether the job can resume. Read-only."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, LockedError
from wkwdask.formats.publication import has_record, published_folders, read_publication
from wkwdask.formats.record_paths import OWNER_NAME, RecordPaths, dataset_around, job_folders
from wkwdask.model.parsing import reading
from wkwdask.model.placement import placed_name, plain_name
from wkwdask.runs.batch_file import BATCH_NAME
from wkwdask.runs.journal import has_journal
from wkwdask.store.json_record import read_job_record
from wkwdask.store.locks import ShardBox, locked_folders, locks_of, read_owner
from wkwdask.store.lru import LruCache
from wkwdask.store.paths import dirname, is_bucket
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.store.locks import Owner

PLAN_NAME = "plan.json"
SCRATCH_NAME = "scratch"
"""Folder in which a job runs others that make a part of its result."""
OWNERLESS_SECONDS = 3600.0
"""Age after which a job folder without an owner record is abandoned."""
_calls: LruCache[str] = LruCache(64)
"""Calls that started the jobs of some folders, which their plans state and do not change."""
_PLAN_VALUES: dict[str, type | tuple[type, ...]] = {
    "existing": str,
    "settings": dict,
    "plan": (dict, type(None)),
    "region": (list, type(None)),
    "is_kept_for_later": (bool, type(None)),
    "call": (dict, type(None)),
    "resumed_by": (str, type(None)),
}


@dataclass(frozen=True, slots=True)
class InterruptedJob:
    """Interrupted job that can resume."""

    job: str
    root: str
    targets: tuple[str, ...]
    settings: dict[str, Any]
    plan: dict[str, Any]
    """Decisions of its first start."""


class JobState(Enum):
    """State of a job that has a folder."""

    RUNNING = "running, or not known to have ended on another machine"
    UNPUBLISHED = "ended during publication"
    CAN_GO_ON = "interrupted"
    REFUSED = "its records cannot be read, or name paths outside the dataset"
    DEAD = "ended"


def find_interrupted(parent: str, targets: Sequence[str]) -> InterruptedJob | None:
    """Find an interrupted job that writes one of some folders and blocks other jobs from writing
    it."""
    return next(
        (job for job in _unfinished_jobs(parent, targets) if is_kept_for_later(job.root)), None
    )


def find_interrupted_array(
    parent: str, targets: Sequence[str], region: ShardBox | None
) -> InterruptedJob | None:
    """Find an interrupted array job on exactly these folders, or these shards of one, which resumes
    only on request."""
    interrupted = (
        job for job in _unfinished_jobs(parent, targets) if not is_kept_for_later(job.root)
    )
    return next(
        (
            job
            for job in interrupted
            if job.targets == tuple(targets) and region_of(job.root) == region
        ),
        None,
    )


def _unfinished_jobs(parent: str, targets: Sequence[str]) -> Iterator[InterruptedJob]:
    for root, job in job_folders(parent):
        if not has_record(root) and can_resume(root) and not _has_ended(root):
            record = read_plan(root)
            if record is not None and set(targets_of(root)) & set(targets):
                yield InterruptedJob(
                    job, root, tuple(targets_of(root)), record["settings"], record["plan"] or {}
                )


def job_states(parent: str) -> Iterator[tuple[str, JobState]]:
    """List all job folders in a layer with their states."""
    for root, job in job_folders(parent):
        owner = job_owner(root)
        # in a bucket the lease decides: a job that begins has no lock yet
        if (
            owner is not None
            and not owner.is_gone()
            and (bool(owner.lease) or holds_locks(root, job))
        ):
            yield root, JobState.RUNNING
        elif problem_of(root):
            yield root, JobState.REFUSED
        elif _has_ended(root):
            yield root, JobState.DEAD
        elif has_record(root):
            yield root, JobState.UNPUBLISHED
        elif can_resume(root):
            yield root, JobState.CAN_GO_ON
        elif owner is None and age_seconds(root) <= OWNERLESS_SECONDS:
            yield root, JobState.RUNNING  # it may be about to write its owner record
        else:
            yield root, JobState.DEAD


def problem_of(root: str) -> str:
    """Return the reason why the records of a job are rejected; empty if they can be trusted."""
    try:
        # a link in another dataset may lead to the folder
        check_records(RecordPaths(root, (dataset_around(dirname(root)),)))
    except CorruptError as error:
        return str(error)
    return ""


def check_records(paths: RecordPaths) -> None:
    """Check that the records of a job are readable and name only paths in its dataset."""
    if store_at(paths.root).link_target():
        raise CorruptError(
            f"{paths.root}: is a symbolic link, expected the folder of a job; remove the link"
        )
    record = read_plan(paths.root)
    for target in () if record is None else record["targets"]:
        paths.target(target, PLAN_NAME)
    read_publication(paths)


def _has_ended(root: str) -> bool:
    """Check whether a job in a bucket has no lease any more: others have ended it, and a process of
    it that was paused wrote records after that."""
    return is_bucket(root) and not store_at(root).is_file(OWNER_NAME)


def job_owner(root: str) -> Owner | None:
    """Read the owner of a job; None if absent or unreadable."""
    try:
        return read_owner(f"{root}/{OWNER_NAME}")
    except LockedError:
        return None


def has_no_jobs(parent: str, targets: Sequence[str]) -> bool:
    """Check that a layer has no job folder, and some folders no lock."""
    return next(job_folders(parent), None) is None and not any(
        locks_of(target) for target in targets
    )


def check_no_job(parent: str) -> None:
    """Raise LockedError if a living job works in a layer."""
    for root, job in job_folders(parent):
        owner = read_owner(f"{root}/{OWNER_NAME}")
        if owner is not None and not owner.is_gone() and holds_locks(root, job):
            raise LockedError(f"{parent}: another job works here: {owner}")


def is_kept_for_later(root: str) -> bool:
    record = read_plan(root)
    return record is None or record["is_kept_for_later"] is not False


def call_of(root: str) -> str | None:
    """Return the id of the call that started a job; None if it has no plan, or one of an older
    version."""
    known = _calls.get(root)
    if known is not None:
        return known
    call = ((read_plan(root) or {}).get("call") or {}).get("id")
    if not isinstance(call, str):
        return None
    remember_call(root, call)
    return call


def remember_call(root: str, call: str) -> None:
    """Remember the id of the call that has started a job."""
    _calls.put(root, call)


def region_of(root: str) -> ShardBox | None:
    record = read_plan(root)
    return (
        None if record is None or record["region"] is None else ShardBox.from_json(record["region"])
    )


def age_seconds(root: str) -> float:
    """Return the time since a folder changed, 0 if it is gone or the clock was set back."""
    try:
        return max(0.0, time.time() - store_at(root).status().st_mtime)
    except FileNotFoundError:
        return 0.0


def can_resume(root: str) -> bool:
    """Check whether an interrupted job has a journal entry, a submitted array, or something that
    jobs inside it have made."""
    store = store_at(root)
    return store.exists(PLAN_NAME) and (
        has_journal(root) or store.exists(BATCH_NAME) or store.exists(SCRATCH_NAME)
    )


def read_plan(root: str) -> dict[str, Any] | None:
    """Read the plan of a job; None if there is none."""
    path = f"{root}/{PLAN_NAME}"
    record = read_job_record(path)
    if record is None:
        return None
    with reading(path, "record"):
        for target in record["targets"]:
            RecordPaths(root).parse_path(target)
        for name, kinds in _PLAN_VALUES.items():
            if not isinstance(record.setdefault(name, None), kinds):
                raise TypeError(f"{name} is {record[name]!r}")
        if record["region"] is not None:
            ShardBox.from_json(record["region"])
    return record


def holds_locks(root: str, job: str) -> bool:
    """Check whether a job holds any lock. A job without locks has ended, or a user removed its
    locks."""
    try:
        return any(
            lock.owner.job == job for target in targets_of(root) for lock in locks_of(target)
        )
    except CorruptError:
        return any(holder.job == job for _, holder in locked_folders(dirname(root)))


def targets_of(root: str) -> list[str]:
    """List the mags that a job writes, in any folder."""
    record, paths = read_plan(root), RecordPaths(root)
    # Publication deletes the plan first and the publish record last; both name the same mags.
    return (
        published_folders(paths)
        if record is None
        else list(map(paths.parse_path, record["targets"]))
    )


def places_of(root: str, job: str) -> list[str]:
    """List the folders in which the mags of a job are written, where these are not renamed."""
    return [placed_name(target, job) for target in targets_of(root)] if is_bucket(root) else []


def holds_only_jobs(folder: str) -> bool:
    """Check that a future dataset folder contains only what jobs create. Call it before reading the
    JSON of the dataset, which a job may write."""
    return all(
        _is_made_by_jobs(f"{folder}/{name}")
        for name in store_at(folder).names()
        if not name.startswith(".")
    )


def _is_made_by_jobs(layer_folder: str) -> bool:
    """Check that a layer folder contains only mags of jobs that run, were interrupted, or are
    ending."""
    store = store_at(layer_folder)
    if store.exists() and not store.is_folder():
        return False
    names = [name for name in store.names() if not name.startswith(".")]
    written = {target for root, _ in job_folders(layer_folder) for target in targets_of(root)}
    return {f"{layer_folder}/{plain_name(name)}" for name in names} <= written
