"""What stands in the folder of a job: who runs it, what it writes, and whether it can go on. Nothing is changed here."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, LockedError
from wkwdask.formats.publication import RECORD_NAME, published_folders, read_publication
from wkwdask.formats.record_paths import RecordPaths, dataset_around, job_folders
from wkwdask.model.parsing import reading
from wkwdask.runs.batch_file import BATCH_NAME
from wkwdask.runs.journal import has_journal
from wkwdask.store import files
from wkwdask.store.json_record import read_job_record
from wkwdask.store.locks import ShardBox, locked_folders, locks_of, read_owner
from wkwdask.store.paths import dirname

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.store.locks import Owner

OWNER_NAME = "owner.json"
PLAN_NAME = "plan.json"
OWNERLESS_SECONDS = 3600.0
"""Age from which a job's folder that does not say whose it is belongs to nobody."""
_PLAN_VALUES: dict[str, type | tuple[type, ...]] = {
    "existing": str,
    "settings": dict,
    "plan": (dict, type(None)),
    "region": (list, type(None)),
    "is_kept_for_later": (bool, type(None)),
}


@dataclass(frozen=True, slots=True)
class InterruptedJob:
    """A job that was interrupted and can go on."""

    job: str
    root: str
    targets: tuple[str, ...]
    """Folders that it is to publish."""
    settings: dict[str, Any]
    plan: dict[str, Any]
    """What it decided at its first start."""


class JobState(Enum):
    """What became of a job whose folder is there."""

    RUNNING = "running, or not known to have ended on another machine"
    UNPUBLISHED = "ended while it published its mags"
    CAN_GO_ON = "interrupted"
    REFUSED = "its records cannot be read, or name what is not in the dataset"
    DEAD = "ended"


def find_interrupted(parent: str, targets: Sequence[str]) -> InterruptedJob | None:
    """Find an interrupted job that can go on, writes one of some folders and stands in the way of others that do."""
    return next((job for job in _unfinished_jobs(parent, targets) if is_kept_for_later(job.root)), None)


def find_interrupted_array(parent: str, targets: Sequence[str], region: ShardBox | None) -> InterruptedJob | None:
    """Find an interrupted job that writes just these folders, or these shards of one, and goes on where that is asked for."""
    left = (job for job in _unfinished_jobs(parent, targets) if not is_kept_for_later(job.root))
    return next((job for job in left if job.targets == tuple(targets) and region_of(job.root) == region), None)


def _unfinished_jobs(parent: str, targets: Sequence[str]) -> Iterator[InterruptedJob]:
    for root, job in job_folders(parent):
        if not files.exists(f"{root}/{RECORD_NAME}") and can_resume(root):
            record = read_plan(root)
            if record is not None and set(targets_of(root)) & set(targets):
                yield InterruptedJob(job, root, tuple(targets_of(root)), record["settings"], record["plan"] or {})


def job_states(parent: str) -> Iterator[tuple[str, JobState]]:
    """Go through the folders of all jobs in a layer, and tell what became of each; nothing is changed."""
    for root, job in job_folders(parent):
        owner = job_owner(root)
        if owner is not None and not owner.is_gone() and holds_locks(root, job):
            yield root, JobState.RUNNING
        elif problem_of(root):
            yield root, JobState.REFUSED
        elif files.exists(f"{root}/{RECORD_NAME}"):
            yield root, JobState.UNPUBLISHED
        elif can_resume(root):
            yield root, JobState.CAN_GO_ON
        elif owner is None and age_seconds(root) <= OWNERLESS_SECONDS:
            yield root, JobState.RUNNING  # it may be about to say whose it is
        else:
            yield root, JobState.DEAD


def problem_of(root: str) -> str:
    """Say why nothing is done that the records of a job say, an empty text where they can be trusted."""
    try:
        check_records(RecordPaths(root, (dataset_around(dirname(root)),)))  # that may be one with a link to the job's
    except CorruptError as error:
        return str(error)
    return ""


def check_records(paths: RecordPaths) -> None:
    """Make sure that the records of a job can be read, and name nothing that is not in its dataset."""
    if files.islink(paths.root):
        raise CorruptError(f"{paths.root}: is a symbolic link, expected the folder of a job; remove the link")
    record = read_plan(paths.root)
    for target in () if record is None else record["targets"]:
        paths.target(target, PLAN_NAME)
    read_publication(paths)


def job_owner(root: str) -> Owner | None:
    """Read who runs a job, or ran it last; None where that cannot be read."""
    try:
        return read_owner(f"{root}/{OWNER_NAME}")
    except LockedError:
        return None


def has_no_jobs(parent: str, targets: Sequence[str]) -> bool:
    """Tell whether no job of a layer is running, was interrupted, or ended while it published, and none left its lock on some folders."""
    return next(job_folders(parent), None) is None and not any(locks_of(target) for target in targets)


def check_no_job(parent: str) -> None:
    """Make sure that no living job works in a layer."""
    for root, job in job_folders(parent):
        owner = read_owner(f"{root}/{OWNER_NAME}")
        if owner is not None and not owner.is_gone() and holds_locks(root, job):
            raise LockedError(f"{parent}: another job works here: {owner}")


def is_kept_for_later(root: str) -> bool:
    record = read_plan(root)
    return record is None or record["is_kept_for_later"] is not False


def region_of(root: str) -> ShardBox | None:
    record = read_plan(root)
    return None if record is None or record["region"] is None else ShardBox.from_json(record["region"])


def age_seconds(root: str) -> float:
    """Tell how long a folder is unchanged, 0 where it has gone meanwhile."""
    try:
        return time.time() - files.stat(root).st_mtime
    except FileNotFoundError:
        return 0.0


def can_resume(root: str) -> bool:
    """Tell whether an interrupted job finished any task of which it took note, or handed its tasks out."""
    return files.exists(f"{root}/{PLAN_NAME}") and (has_journal(root) or files.exists(f"{root}/{BATCH_NAME}"))


def read_plan(root: str) -> dict[str, Any] | None:
    """Read what a job is to do, None where it does not say."""
    path = f"{root}/{PLAN_NAME}"
    record = read_job_record(path)
    if record is None:
        return None
    with reading(path, "record"):
        for target in record["targets"]:
            RecordPaths(root).read(target)
        for name, kinds in _PLAN_VALUES.items():
            if not isinstance(record.setdefault(name, None), kinds):
                raise TypeError(f"{name} is {record[name]!r}")
        if record["region"] is not None:
            ShardBox.from_json(record["region"])
    return record


def holds_locks(root: str, job: str) -> bool:
    """Tell whether a job holds a lock: without any, it has ended or somebody broke its locks knowing that it has."""
    try:
        return any(lock.owner.job == job for target in targets_of(root) for lock in locks_of(target))
    except CorruptError:
        return any(holder.job == job for _, holder in locked_folders(dirname(root)))


def targets_of(root: str) -> list[str]:
    """List the mags that a job writes, wherever they are: as its plan says, or its publish record, which stays a moment longer."""
    record, paths = read_plan(root), RecordPaths(root)
    return published_folders(paths) if record is None else list(map(paths.read, record["targets"]))


def holds_only_jobs(folder: str) -> bool:
    """Tell whether a folder that would become a dataset holds nothing but what jobs make there; ask it before the JSON is read, which a job may write."""
    return not files.isdir(folder) or all(_is_made_by_jobs(f"{folder}/{name}") for name in files.listdir(folder) if not name.startswith("."))


def _is_made_by_jobs(layer_folder: str) -> bool:
    """Tell whether all that is in a layer's folder are mags of jobs that run, were interrupted, or are just ending."""
    try:
        names = [name for name in files.listdir(layer_folder) if not name.startswith(".")]
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    written = {target for root, _ in job_folders(layer_folder) for target in targets_of(root)}
    return not names or {f"{layer_folder}/{name}" for name in names} <= written
