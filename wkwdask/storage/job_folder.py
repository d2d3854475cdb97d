"""The folder of a job: where new mags are built before they appear, what was done so far, and how the mags are published.

A job takes a lock for every folder that it will replace, builds beside them in a folder whose name begins with a dot, writes a publish record when
all is complete, renames, edits the JSON, and cleans up. Killed before the record, it leaves nothing visible: where it kept a journal, the same job can go
on later, else the next job removes what it left. Killed after the record, the next job finishes the renames.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from wkwdask.errors import ExistsError, LockedError, ResumeError
from wkwdask.geometry.mag import vec3
from wkwdask.storage.batch_file import BATCH_NAME, read_batch
from wkwdask.storage.journal import has_journal
from wkwdask.storage.layer_edit import LayerEdit, MagRemoval
from wkwdask.storage.local import fsync_folder, inherit_permissions, publish_bytes, publish_folder, remove_tree
from wkwdask.storage.locks import ShardBox, guarded, hand_over_locks, locked_folders, locks_of, read_owner, release_lock, release_locks_of, take_lock
from wkwdask.storage.removal import format_removal, is_removal, set_aside
from wkwdask.storage.wkw import HEADER_NAME, is_mag, what_else

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.storage.owner import Owner
    from wkwdask.storage.slurm import SlurmJob

_FOLDER_PREFIX = ".wkwdask-job-"
_OWNER_NAME = "owner.json"
_OWNERLESS_SECONDS = 3600.0
_PLAN_NAME = "plan.json"
_RECORD_NAME = "publish.json"
PROVENANCE_NAME = ".wkwdask.json"
REMOVAL = "rm of "
"""How the command of a job begins that takes mags away."""


@dataclass(frozen=True, slots=True)
class NewMag:
    """One mag that a job builds."""

    staged: str
    """Name of its folder inside the job's folder."""
    folder: str
    """Where it is to appear."""


@dataclass(frozen=True, slots=True)
class UnfinishedJob:
    """A job that was interrupted and can go on."""

    job: str
    """Its name."""
    root: str
    """Its folder."""
    targets: tuple[str, ...]
    """Folders that it is to publish."""
    settings: dict[str, Any]
    """What it does."""
    plan: dict[str, Any]
    """What it decided at its first start."""


class JobState(Enum):
    """What became of a job whose folder is there."""

    RUNNING = "its process lives, or may live on another machine"
    UNPUBLISHED = "ended while its mags appeared"
    CAN_GO_ON = "interrupted, can go on"
    DEAD = "ended"


class JobFolder:
    """A running job's hold on the mags that it writes.

    Parameters
    ----------
    parent : str
        Folder in which the mags are or will appear (the layer); made if need be.
    owner : Owner
        Who builds.
    targets : sequence of str
        The mags' folders.
    region : ShardBox, optional
        The shards that are written, of one living mag; by default mags are written whole.
    is_kept_for_later : bool
        Whether an interrupted job stands in the way of others that write the same; else it goes when one of them starts.
    """

    def __init__(self, parent: str, owner: Owner, targets: Sequence[str], region: ShardBox | None = None, *, is_kept_for_later: bool = True) -> None:
        self.parent = parent
        self.owner = owner
        self.root = job_root(parent, owner.job)
        self.targets = tuple(targets)
        self.region = region
        self.is_kept_for_later = is_kept_for_later

    def start(self, existing: str, settings: dict[str, Any], plan: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Lock the targets, finish or remove what dead jobs left, and make the folder, or take over that of the same job.

        Parameters
        ----------
        existing : str
            ``"error"``, ``"resume"``, ``"overwrite"``, or ``"update"`` where the targets are written file by file.
        settings : dict
            What the job is to do, as it will stand in the provenance of its mags.
        plan : dict, optional
            What a later start must not decide anew.

        Returns
        -------
        dict or None
            Where a job with the same settings was killed while it published, its publishing was finished just now; then, unless targets are
            overwritten or updated, the provenance of its mags, and this job is over. Else None.

        Raises
        ------
        LockedError
            Another job writes one of them; the message names it.
        ExistsError
            One of them is there and ``existing="error"``.
        ResumeError
            Another job that writes one of them was interrupted and can go on.
        """
        os.makedirs(self.parent, exist_ok=True)
        try:
            with guarded(self.parent):
                done = self._take_over(existing, settings)
                if done is not None and existing in ("error", "resume"):
                    self.discard()
                    return done
                before = _read_plan(self.root)
                first_existing = existing if before is None else before["existing"]
                if first_existing != "update":
                    check_targets(self.targets, first_existing)
                os.makedirs(self.root, exist_ok=True)
                publish_bytes(f"{self.root}/{_OWNER_NAME}", json.dumps(asdict(self.owner)).encode())
                if before is None:
                    record = {
                        "targets": [os.path.relpath(target, self.parent) for target in self.targets],
                        "existing": existing,
                        "settings": settings,
                        "plan": plan,
                        "region": None if self.region is None else [self.region.low, self.region.high],
                        "is_kept_for_later": self.is_kept_for_later,
                    }
                    publish_bytes(f"{self.root}/{_PLAN_NAME}", json.dumps(record).encode())
        except BaseException:
            self.leave()
            raise
        return None

    def publish(self, mags: Sequence[NewMag], edit: LayerEdit | None, provenance: dict[str, Any]) -> None:
        """Let complete mags appear, then the JSON say so, and end the job.

        Parameters
        ----------
        mags : sequence of NewMag
            All that were built.
        edit : LayerEdit, optional
            What to change in the JSON.
        provenance : dict
            Stays in each mag as ``.wkwdask.json``.
        """
        publication = secrets.token_hex(8)
        marks = {"job": self.owner.job, "publication": publication}
        for mag in mags:
            staged = f"{self.root}/{mag.staged}"
            write_provenance(staged, {**marks, **provenance})
            _inherit_tree_permissions(staged, mag.folder)
            for folder, _, _ in os.walk(staged, topdown=False):
                fsync_folder(folder)
        record = {**marks, "mags": [asdict(mag) for mag in mags], "edit": edit.to_json() if edit is not None else None}
        publish_bytes(f"{self.root}/{_RECORD_NAME}", json.dumps(record).encode())
        try:
            _finish(self.root)
        except KeyboardInterrupt:
            _finish(self.root)
            raise
        finally:
            self._release()

    def remove(self, edit: MagRemoval | None) -> None:
        """Take the targets away: the JSON forgets them, and they are moved into the job's folder, which :meth:`end` deletes.

        Parameters
        ----------
        edit : MagRemoval, optional
            What to change in the JSON.
        """
        publish_bytes(f"{self.root}/{_RECORD_NAME}", format_removal(self.targets, edit))
        set_aside(f"{self.root}/{_RECORD_NAME}")

    def end(self) -> None:
        """Delete the job's folder after :meth:`remove`, as far as it is still there."""
        try:
            _finish(self.root)
        finally:
            self._release()

    def leave(self) -> bool:
        """End this process's work; what a later start of the same job can build on stays.

        Returns
        -------
        bool
            Whether it stays. Where publishing has begun, the next job into the layer finishes it.
        """
        try:
            stays = os.path.exists(f"{self.root}/{_RECORD_NAME}") or _can_go_on(self.root)
            if not stays:
                remove_tree(self.root)
        finally:
            self._release()
        return stays

    def discard(self) -> None:
        """End the job without publishing anything; where publishing has begun, the next job into the layer finishes it."""
        try:
            if not os.path.exists(f"{self.root}/{_RECORD_NAME}"):
                remove_tree(self.root)
        finally:
            self._release()

    def started_at(self) -> float:
        """Give the time at which this process made or took over the job's folder, or an array was handed in [seconds since the epoch]."""
        batch = read_batch(self.root)
        if batch is not None:
            return batch.rounds[0].time
        return os.stat(f"{self.root}/{_OWNER_NAME}").st_mtime

    def _take_over(self, existing: str, settings: dict[str, Any]) -> dict[str, Any] | None:
        """Lock the targets and end dead jobs; gives the provenance of the mags where that finished an equal job."""
        finished: set[str] = set()
        for target in sorted(self.targets):
            for before in take_lock(target, self.owner, self.region):
                if before.job != self.owner.job:
                    finished |= self._end_dead_job(os.path.dirname(target), before.job, existing)
            gone = {lock.owner.job for lock in locks_of(target) if lock.owner.is_gone() and lock.owner.job != self.owner.job}
            for job in gone:  # killed before they made a folder, or after they removed it
                if not os.path.exists(job_root(os.path.dirname(target), job)):
                    release_locks_of(job, [target])
        finished |= self._clean_up(existing)
        done = [read_provenance(target) for target in self.targets]
        if finished and all(item.get("job") in finished and item.get("settings") == settings for item in done):
            return done[0]
        return None

    def _end_dead_job(self, parent: str, job: str, existing: str) -> set[str]:
        """Finish the publishing of a dead job, or remove what it left; gives the job if it was finished.

        Raises
        ------
        ResumeError
            It can go on, writes one of this job's targets, and is not to be overwritten.
        """
        root = job_root(parent, job)
        targets = _targets_of(root)
        if os.path.exists(f"{root}/{_RECORD_NAME}"):
            _finish(root)
            release_locks_of(job, targets)
            return {job}
        if _can_go_on(root):
            if not set(self.targets) & set(targets) or not self._is_about_same_shards(root):
                return set()
            if existing != "overwrite" and _is_kept_for_later(root):
                raise ResumeError(
                    f'{root}: an interrupted job that can go on writes the same mags; existing="resume" with its settings goes on, "overwrite" starts anew'
                )
        remove_tree(root)
        release_locks_of(job, targets)
        return set()

    def _is_about_same_shards(self, root: str) -> bool:
        other = _region_of(root)
        return self.region is None or other is None or self.region.overlaps(other)

    def _clean_up(self, existing: str) -> set[str]:
        """End the jobs of dead processes whose locks are gone already; gives those that were finished."""
        finished: set[str] = set()
        for root, job in _job_folders(self.parent):
            if job == self.owner.job:
                continue
            owner = read_owner(f"{root}/{_OWNER_NAME}")
            if owner is None:
                if _age_seconds(root) > _OWNERLESS_SECONDS:
                    remove_tree(root)  # a task that outlived its discarded job made the folder anew
            elif owner.is_gone() or not _holds_locks(root, job):
                with contextlib.suppress(OSError):  # what cannot be finished now must not keep other mags of the layer from being written
                    finished |= self._end_dead_job(self.parent, job, existing)
        return finished

    def _release(self) -> None:
        for target in self.targets:
            release_lock(target, self.owner)


def can_be_handed_over(root: str) -> bool:
    """Tell whether a job says in its folder what another process must know to go on."""
    return os.path.exists(f"{root}/{_PLAN_NAME}")


def hand_over(root: str, batch: SlurmJob) -> None:
    """Let a SLURM job own a running job from now on, in place of this process: its locks stay when this process ends.

    Parameters
    ----------
    root : str
        The job's folder.
    batch : SlurmJob
        Who goes on.

    Raises
    ------
    LockedError
        The job is not this process's any more.
    """
    with guarded(os.path.dirname(root)):
        owner = read_owner(f"{root}/{_OWNER_NAME}")
        if owner is None or owner.pid != os.getpid():
            raise LockedError(f"{root}: {'it is gone' if owner is None else f'it belongs to {owner}'}: it cannot be handed over")
        new = owner.handed_to(batch)
        for target in _targets_of(root):
            hand_over_locks(target, new)
        publish_bytes(f"{root}/{_OWNER_NAME}", json.dumps(asdict(new)).encode())


def is_job_folder(name: str) -> bool:
    """Tell whether a folder is that of a job, by its name."""
    return name.startswith(_FOLDER_PREFIX)


def job_root(parent: str, job: str) -> str:
    """Name the folder of a job."""
    return f"{parent}/{_FOLDER_PREFIX}{job}"


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
        for root, job in _job_folders(parent):
            owner = read_owner(f"{root}/{_OWNER_NAME}")
            if owner is not None and (owner.is_gone() or not _holds_locks(root, job)) and _is_removal(root):
                set_aside(f"{root}/{_RECORD_NAME}")
                roots.append(root)
                targets += _targets_of(root)
                release_locks_of(job, _targets_of(root))
        for target, holder in locked_folders(parent):
            if holder.is_gone() and holder.command.startswith(REMOVAL) and not os.path.lexists(target):
                if job_root(parent, holder.job) not in roots:
                    remove_tree(job_root(parent, holder.job))
                release_locks_of(holder.job, [target])
                targets.append(target)
    return roots, targets


def check_no_job(parent: str) -> None:
    """Make sure that no living job works in a layer.

    Raises
    ------
    LockedError
        One does.
    """
    for root, job in _job_folders(parent):
        owner = read_owner(f"{root}/{_OWNER_NAME}")
        if owner is not None and not owner.is_gone() and _holds_locks(root, job):
            raise LockedError(f"{parent}: another job works here: {owner}")


def discard_dead_jobs(parent: str) -> None:
    """Remove what dead jobs left in a layer that is removed, even if they could go on."""
    if next(_job_folders(parent), None) is None:
        return
    with guarded(parent):
        for root, job in _job_folders(parent):
            owner = read_owner(f"{root}/{_OWNER_NAME}")
            if owner is None or owner.is_gone() or not _holds_locks(root, job):
                release_locks_of(job, _targets_of(root))
                remove_tree(root)


def end_removal(root: str) -> None:
    """Remove what is left of a folder that :func:`find_removals` found."""
    _finish(root)


def _is_removal(root: str) -> bool:
    try:
        with open(f"{root}/{_RECORD_NAME}", "rb") as file:
            return is_removal(json.load(file))
    except FileNotFoundError:
        return False


def find_unfinished(parent: str, targets: Sequence[str]) -> UnfinishedJob | None:
    """Find an interrupted job that can go on, writes one of some folders and stands in the way of others that do."""
    return next((job for job in _unfinished_jobs(parent, targets) if _is_kept_for_later(job.root)), None)


def find_left(parent: str, targets: Sequence[str], region: ShardBox | None) -> UnfinishedJob | None:
    """Find an interrupted job that writes just these folders, or these shards of one, and goes on where that is asked for."""
    left = (job for job in _unfinished_jobs(parent, targets) if not _is_kept_for_later(job.root))
    return next((job for job in left if job.targets == tuple(targets) and _region_of(job.root) == region), None)


def _unfinished_jobs(parent: str, targets: Sequence[str]) -> Iterator[UnfinishedJob]:
    for root, job in _job_folders(parent):
        if not os.path.exists(f"{root}/{_RECORD_NAME}") and _can_go_on(root):
            record = _read_plan(root)
            if record is not None and set(_targets_of(root)) & set(targets):
                yield UnfinishedJob(job, root, tuple(_targets_of(root)), record["settings"], record["plan"] or {})


def _is_kept_for_later(root: str) -> bool:
    record = _read_plan(root)
    return record is None or bool(record.get("is_kept_for_later", True))


def _region_of(root: str) -> ShardBox | None:
    record = _read_plan(root)
    region = None if record is None else record.get("region")
    return None if region is None else ShardBox(vec3(region[0]), vec3(region[1]))


def _age_seconds(root: str) -> float:
    """Tell how long a folder is unchanged, 0 where it has gone meanwhile."""
    try:
        return time.time() - os.stat(root).st_mtime
    except FileNotFoundError:
        return 0.0


def job_states(parent: str) -> Iterator[tuple[str, JobState]]:
    """Go through the folders of all jobs in a layer, and tell what became of each; nothing is changed."""
    for root, job in _job_folders(parent):
        owner = job_owner(root)
        if owner is not None and not owner.is_gone() and _holds_locks(root, job):
            yield root, JobState.RUNNING
        elif os.path.exists(f"{root}/{_RECORD_NAME}"):
            yield root, JobState.UNPUBLISHED
        elif _can_go_on(root):
            yield root, JobState.CAN_GO_ON
        elif owner is None and _age_seconds(root) <= _OWNERLESS_SECONDS:
            yield root, JobState.RUNNING  # it may be about to say whose it is
        else:
            yield root, JobState.DEAD


def job_owner(root: str) -> Owner | None:
    """Read who runs a job, or ran it last; None where that cannot be read."""
    try:
        return read_owner(f"{root}/{_OWNER_NAME}")
    except LockedError:
        return None


def job_targets(root: str) -> tuple[str, ...]:
    """Give the folders that a job writes."""
    return tuple(_targets_of(root))


def is_untouched(parent: str, targets: Sequence[str]) -> bool:
    """Tell whether no job of a layer is running, was interrupted, or ended while it published, and none left its lock on some folders."""
    return next(_job_folders(parent), None) is None and not any(locks_of(target) for target in targets)


def targets_of_jobs(parent: str) -> set[str]:
    """Give the folders that jobs in a layer write, whatever became of them."""
    return {target for root, _ in _job_folders(parent) for target in _targets_of(root)}


def check_targets(targets: Sequence[str], existing: str) -> None:
    """Make sure that folders are free, or are mags that may be replaced.

    Raises
    ------
    ExistsError
        One is taken and not to be overwritten, or holds something else than one mag.
    """
    there = [target for target in targets if is_taken(target)]
    if there and existing != "overwrite":
        more = f" (and {len(there) - 1} more)" if len(there) > 1 else ""
        raise ExistsError(f'{there[0]}: is there already{more}; existing="overwrite" (on the command line --overwrite) replaces it whole')
    links = [target for target in targets if os.path.islink(target)]
    if links:
        raise ExistsError(f"{links[0]}: is a symbolic link; write to the folder that it points to")
    for target in there:
        if not os.path.isdir(target) or not is_mag(target):
            raise ExistsError(
                f"{target}: holds something else than one mag{what_else(target)}, and is not replaced; name a mag's folder, such as DATASET/LAYER/1"
            )


def is_taken(target: str) -> bool:
    """Tell whether something stands where a mag is to appear; an empty folder does not count."""
    if not os.path.lexists(target):
        return False
    return not os.path.isdir(target) or os.path.islink(target) or bool(os.listdir(target))


def read_provenance(folder: str) -> dict[str, Any]:
    """Read what a job left in a mag, an empty record where there is none."""
    try:
        with open(f"{folder}/{PROVENANCE_NAME}", "rb") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_making(folder: str) -> dict[str, Any]:
    """Read the settings of the job that made a mag's voxels, whatever stored them anew since; an empty record where nobody knows."""
    provenance = read_provenance(folder)
    made = provenance.get("made", provenance)
    settings = made.get("settings", {}) if isinstance(made, dict) else {}
    return settings if isinstance(settings, dict) else {}


def write_provenance(folder: str, provenance: dict[str, Any]) -> None:
    """Leave a record in a mag of how it was made."""
    publish_bytes(f"{folder}/{PROVENANCE_NAME}", json.dumps(provenance, indent=1).encode())


def _finish(root: str) -> None:
    """Do what a publish record says; doing it again changes nothing."""
    with open(f"{root}/{_RECORD_NAME}", "rb") as file:
        record = json.load(file)
    if is_removal(record):
        set_aside(f"{root}/{_RECORD_NAME}")
    for mag in record.get("mags", ()):
        if read_provenance(mag["folder"]).get("publication") != record["publication"]:
            publish_folder(f"{root}/{mag['staged']}", mag["folder"])
    if record["edit"] is not None and not is_removal(record):
        LayerEdit.from_json(record["edit"]).apply()
    with contextlib.suppress(FileNotFoundError):  # another job may be ending this one at the same time
        os.unlink(f"{root}/{_PLAN_NAME}")  # before the rest: the folder holds the old mags now, and must not look like a job that can go on
        fsync_folder(root)
    remove_tree(root)


def _job_folders(parent: str) -> Iterator[tuple[str, str]]:
    """Go through the folders of all jobs in a layer: path and job."""
    try:
        with os.scandir(parent) as entries:
            found = [entry for entry in entries if is_job_folder(entry.name) and entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        yield entry.path, entry.name.removeprefix(_FOLDER_PREFIX)


def _can_go_on(root: str) -> bool:
    """Tell whether an interrupted job finished any task of which it took note, or handed its tasks out."""
    return os.path.exists(f"{root}/{_PLAN_NAME}") and (has_journal(root) or os.path.exists(f"{root}/{BATCH_NAME}"))


def _read_plan(root: str) -> dict[str, Any] | None:
    try:
        with open(f"{root}/{_PLAN_NAME}", "rb") as file:
            record: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    return record


def _inherit_tree_permissions(staged: str, old: str) -> None:
    """Give a mag that replaces another the modes and groups of that one's folder and of its header, which stands for its files."""
    try:
        folder, file = os.stat(old), os.stat(f"{old}/{HEADER_NAME}")
        fresh_folder, fresh_file = os.stat(staged), os.stat(f"{staged}/{HEADER_NAME}")
    except (FileNotFoundError, NotADirectoryError):
        return
    if all((a.st_mode, a.st_gid) == (b.st_mode, b.st_gid) for a, b in ((folder, fresh_folder), (file, fresh_file))):
        return
    for path, _, names in os.walk(staged):
        inherit_permissions(path, folder)
        for name in names:
            inherit_permissions(f"{path}/{name}", file)


def _targets_of(root: str) -> list[str]:
    """List the mags that a job writes: as its plan says, or its publish record, which stays a moment longer."""
    record = _read_plan(root)
    if record is not None:
        return [os.path.normpath(os.path.join(os.path.dirname(root), target)) for target in record["targets"]]
    try:
        with open(f"{root}/{_RECORD_NAME}", "rb") as file:
            return [mag["folder"] for mag in json.load(file).get("mags", ())]
    except FileNotFoundError:
        return []


def _holds_locks(root: str, job: str) -> bool:
    """Tell whether a job holds a lock: without any, it has ended or somebody broke its locks knowing that it has."""
    return any(lock.owner.job == job for target in _targets_of(root) for lock in locks_of(target))
