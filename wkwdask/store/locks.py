"""Locks on mags, or on some of their shards: small files beside them that name the job that writes them.

What names a job is enough to tell a living process from one that has ended. JSON files are changed here too, whole and by one process at a time.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import random
import re
import secrets
import socket
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, FormatError, LockedError, MissingError
from wkwdask.geometry.mag import vec3
from wkwdask.model.json_text import parse_object
from wkwdask.store import files
from wkwdask.store.json_record import read_record
from wkwdask.store.new_files import create_whole, publish_bytes
from wkwdask.store.paths import basename, dirname, split
from wkwdask.store.slurm import SlurmJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wkwdask.geometry.mag import Vec3


_ALIVE = "alive"  # nobody can tell since when
_JOB = re.compile(r"[\w.-]{1,100}", re.ASCII)  # a part of names of files


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lock."""

    job: str
    """Name of the job, unique."""
    command: str
    host: str
    boot: str
    """What tells one start of the machine from the next."""
    pid: int
    process_start: str
    """What tells the process from a later one with the same number."""
    user: str
    since: str
    namespace: str = ""
    """What tells the process numbers of one container from those of another."""
    batch: str = ""
    """The SLURM job that the process runs in; with the process 0 the job itself is the owner, whichever processes it starts."""

    @classmethod
    def this_process(cls, command: str, job: str | None = None) -> Owner:
        """Describe this process as the owner of a new job, or of one that another process left."""
        pid, since = os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # no entry in the password database, as in many containers
            user = f"uid {os.getuid()}"
        if job is None:
            job = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(4)}"
        return cls(job, command, socket.gethostname(), _boot(), pid, _process_start(pid), user, since, _namespace(), str(SlurmJob.of_this_process() or ""))

    def handed_to(self, batch: SlurmJob) -> Owner:
        """Describe a SLURM job, which may not have started, as the owner of this one's job."""
        return replace(self, host="", boot="", pid=0, process_start="", namespace="", batch=str(batch))

    def to_json(self, folder: str) -> dict[str, Any]:
        """Give what a lock or a job's folder keeps, which is in a folder."""
        return {**asdict(self), "folder": files.realpath(folder)}

    @classmethod
    def from_json(cls, value: dict[str, Any], folder: str) -> Owner:
        """Read what a lock or a job's folder keeps, where that was found in a folder."""
        texts = {name: text for name, text in value.items() if name != "pid"}
        if not all(isinstance(text, str) for text in texts.values()) or type(value.get("pid")) is not int or not _JOB.fullmatch(value["job"]):
            raise ValueError("expected a process or a job that owns a lock")
        made_in = texts.pop("folder", "")
        owner = cls(pid=value["pid"], **texts)
        return owner._ended() if made_in and owner._is_copied(made_in, folder) else owner

    def _is_copied(self, made_in: str, folder: str) -> bool:
        """Tell whether what names this owner was copied from a folder that is still there: what it does, it does there."""
        try:
            return (self.pid == 0 or self._can_be_seen()) and not files.samefile(made_in, folder)
        except (OSError, ValueError):
            return False

    def _ended(self) -> Owner:
        return replace(self, host=socket.gethostname(), boot="ended", pid=max(self.pid, 1), batch="")

    def is_gone(self) -> bool:
        """Tell whether the process is known to have ended; on another machine or in another container only SLURM can know that."""
        if self._can_be_seen():
            return self.boot != _boot() or _process_start(self.pid) not in (self.process_start, _ALIVE)
        return self._batch_is_gone()

    def _can_be_seen(self) -> bool:
        """Tell whether the process runs, or ran, where this one can see it."""
        if self.pid == 0 or (self.host != socket.gethostname() and not (self.boot and self.boot == _boot())):
            return False
        return self.boot != _boot() or self.namespace == _namespace()

    def _batch_is_gone(self) -> bool:
        batch, mine = SlurmJob.parse(self.batch), SlurmJob.of_this_process()
        if batch is None:
            return False
        if mine is not None and batch.number == mine.number and (batch.cluster == mine.cluster or not batch.cluster):  # none: SLURM did not tell it
            return self.pid == 0 or batch.restarts != mine.restarts  # this process is what the job has started, or started anew
        return batch.is_over()

    def __str__(self) -> str:
        batch = SlurmJob.parse(self.batch)
        where = [f"process {self.pid} on {self.host}"] if self.pid else []
        where += [f"SLURM job {batch.number}"] if batch is not None else []
        return f"{self.command} by {self.user}, {', '.join(where)}, since {self.since}"


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _process_start(pid: int) -> str:
    """Give a string that is the same as long as a process lives, or "alive" where nothing tells; an empty one where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except OSError:  # none, or hidden: no /proc, or one that shows nobody the processes of others
        pass
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return ""
    except PermissionError:
        pass
    return _ALIVE


_LOCK_SUFFIX = ".wkwdask-lock"
_REGION_SUFFIX = ".wkwdask-region-lock"
_BROKEN_SUFFIX = ".wkwdask-broken-lock"
_OLD_SECONDS = 3600  # age from which a temporary file that says nothing is that of a dead process
GUARD_NAME = ".wkwdask-guard"


@dataclass(frozen=True, slots=True)
class ShardBox:
    """A box of shards of one mag, half-open [shards]."""

    low: Vec3
    """The lowest shard along x, y, z."""
    high: Vec3
    """The one beyond the highest."""

    @classmethod
    def from_json(cls, value: Any) -> ShardBox:
        """Read the two corners."""
        low, high = value
        return cls(vec3(low), vec3(high))


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that somebody holds."""

    path: str
    owner: Owner
    region: ShardBox | None
    """The shards that it is about; None for all of the mag."""

    def conflicts_with(self, region: ShardBox | None) -> bool:
        """Tell whether it is about shards that another job wants, None for all."""
        return regions_overlap(self.region, region)


def regions_overlap(first: ShardBox | None, second: ShardBox | None) -> bool:
    """Tell whether any shard of a mag lies in both boxes; None stands for all of the mag."""
    if first is None or second is None:
        return True
    return all(max(a, b) < min(c, d) for a, b, c, d in zip(first.low, second.low, first.high, second.high, strict=True))


def lock_path(target: str, job: str | None = None) -> str:
    """Name the lock of a folder, or that of a job on some of its shards."""
    folder, name = split(target)
    return f"{folder}/.{name}{_LOCK_SUFFIX}" if job is None else f"{folder}/.{name}.{job}{_REGION_SUFFIX}"


def locks_of(target: str) -> list[Lock]:
    """List the locks of a folder, those of dead jobs too."""
    folder, name = split(target)
    paths = [lock_path(target)]
    with contextlib.suppress(FileNotFoundError), files.scandir(folder) as entries:
        paths += sorted(entry.path for entry in entries if entry.name.startswith(f".{name}.") and entry.name.endswith(_REGION_SUFFIX))
    return [lock for lock in map(_read_lock, paths) if lock is not None]


def _read_lock(path: str) -> Lock | None:
    """Read a lock, or who owns a job's folder; None where there is no such file."""
    try:
        record = read_record(path)
        if record is None:
            return None
        region = ShardBox.from_json(record.pop("region")) if "region" in record or path.endswith(_REGION_SUFFIX) else None
        return Lock(path, Owner.from_json(record, dirname(path)), region)
    except (CorruptError, KeyError, OverflowError, TypeError, ValueError):
        raise LockedError(f"{path}: a lock that cannot be read; remove it if no job writes here") from None


def is_lock(name: str) -> bool:
    """Tell whether a file is the lock of a folder, or of some of its shards, by its name."""
    return name.startswith(".") and name.endswith((_LOCK_SUFFIX, _REGION_SUFFIX))


def lock_holder(target: str) -> Owner | None:
    """Give a living job that writes a folder or a part of it, None where there is none."""
    return next((lock.owner for lock in locks_of(target) if not lock.owner.is_gone()), None)


def take_lock(target: str, owner: Owner, region: ShardBox | None = None) -> list[Owner]:
    """Take the lock of a folder, or of some of its shards; to be called inside :func:`guarded`."""
    path = lock_path(target, None if region is None else owner.job)
    files.makedirs(dirname(target))
    files.remove_temporaries(dirname(target), f".{basename(target)}")  # of any lock of it: who makes one is guarded too
    others = [lock for lock in locks_of(target) if lock.conflicts_with(region)]
    if any(lock.owner == owner for lock in others):
        return []
    for lock in others:
        if not lock.owner.is_gone():
            here = " (this very process: a write with compute=False that failed or has not ended)" if lock.owner.pid == os.getpid() else ""
            what = "it" if lock.region is None else f"its files {lock.region.low} to {lock.region.high} (exclusive)"
            raise LockedError(f"{target}: another job writes {what}: {lock.owner}{here}; if you know that this job is dead, remove {lock.path}")
    data = _format_lock(owner, path, region)
    if any(lock.path == path for lock in others):
        publish_bytes(path, data)
    elif not create_whole(path, data):
        raise LockedError(f"{target}: another job took the lock {path} just now")
    return [lock.owner for lock in others]


@contextlib.contextmanager
def locked_file(path: str, command: str, *, timeout_seconds: float = 60) -> Iterator[None]:
    """Let one process at a time change a file: a lock beside it that only one can make, on any file system."""
    lock, owner = lock_path(path), Owner.this_process(command)
    data, until = _format_lock(owner, lock), time.monotonic() + timeout_seconds
    try:
        while not create_whole(lock, data):
            if not _break_dead(lock):
                if time.monotonic() > until:
                    raise LockedError(
                        f"{path}: another process changes it: {_holder(lock) or 'a lock that cannot be read'}; if you know that it is dead, remove {lock}"
                    )
                time.sleep(random.uniform(0.002, 0.02))
        _remove_dead_temporaries(lock)
        yield
    finally:  # Ctrl-C may come as soon as the lock is there; and who was taken for dead must not remove the lock of the next one
        if _holder(lock) == owner:
            _remove([lock])


def _remove_dead_temporaries(lock: str) -> None:
    """Remove what processes left that were killed while they made a lock or broke one; others may be making theirs right now."""
    folder, name = split(lock)
    with files.scandir(folder) as entries:
        found = [entry for entry in entries if entry.name.startswith((f".{name}.", f"{name}."))]
    paths = [entry.path for entry in found if entry.name.endswith((files.TEMPORARY_SUFFIX, _BROKEN_SUFFIX))]
    for path in paths:
        holder = _holder(path)
        with contextlib.suppress(FileNotFoundError):
            if holder.is_gone() if holder is not None else time.time() - files.stat(path).st_mtime > _OLD_SECONDS:
                files.unlink(path)


def _break_dead(lock: str) -> bool:
    """Remove a lock whose owner is known to be dead.

    Who makes the file named after that owner may do it, so that no new lock is removed. That file is broken like a lock where its maker died.
    """
    holder = _holder(lock)
    if holder is None or not holder.is_gone():
        return False
    claim, data = f"{lock}.{holder.job}{_BROKEN_SUFFIX}", _format_lock(Owner.this_process(f"removal of {lock}"), lock)
    if not create_whole(claim, data):
        _break_dead(claim)
        return False
    try:
        if _holder(lock) != holder:
            return False
        _remove([lock])
        return True
    finally:
        _remove([claim])


def remove_dead_lock(path: str) -> None:
    """Remove the lock of a file, see :func:`locked_file`, where a process left it that was killed; nobody needs it any more where the file is final."""
    lock = lock_path(path)
    if files.lexists(lock):
        _break_dead(lock)
        _remove_dead_temporaries(lock)


def _holder(lock: str) -> Owner | None:
    """Read who holds a lock, None where it is gone or being made."""
    try:
        return read_owner(lock)
    except LockedError:
        return None


def release_lock(target: str, owner: Owner) -> None:
    """Remove the locks on a folder that are still the owner's."""
    _remove(lock.path for lock in locks_of(target) if lock.owner == owner)


def hand_over_locks(target: str, owner: Owner) -> None:
    """Let the locks that a job holds on a folder name another owner of the same job; to be called inside :func:`guarded`."""
    for lock in locks_of(target):
        if lock.owner.job == owner.job:
            publish_bytes(lock.path, _format_lock(owner, lock.path, lock.region))


def release_locks_of(job: str, targets: Iterable[str]) -> None:
    """Remove the locks that a dead job left on folders; to be called inside :func:`guarded`."""
    for target in targets:
        _remove(lock.path for lock in locks_of(target) if lock.owner.job == job)


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(path)


def locked_folders(folder: str) -> list[tuple[str, Owner]]:
    """List what locks in a folder are for, and who holds them; dead jobs too."""
    with files.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(".") and entry.name.endswith(_LOCK_SUFFIX)]
    holders = [(f"{folder}/{name[1 : -len(_LOCK_SUFFIX)]}", read_owner(f"{folder}/{name}")) for name in names]
    return [(target, holder) for target, holder in holders if holder is not None]


def remove_stale_lock(path: str) -> None:
    """Remove a lock that a dead job left, or that cannot be read; to be called inside :func:`guarded`."""
    if not _break_dead(path) and _holder(path) is None:
        _remove([path])


def read_owner(path: str) -> Owner | None:
    """Read who owns a lock or a job's folder, None where there is no such file."""
    lock = _read_lock(path)
    return None if lock is None else lock.owner


def write_owner(path: str, owner: Owner) -> None:
    """Write down who owns a job's folder; the file appears whole."""
    publish_bytes(path, _format_lock(owner, path))


def _format_lock(owner: Owner, path: str, region: ShardBox | None = None) -> bytes:
    boxes = {} if region is None else {"region": [region.low, region.high]}
    return json.dumps({**owner.to_json(dirname(path)), **boxes}).encode()


@contextlib.contextmanager
def guarded(folder: str) -> Iterator[None]:
    """Let one process at a time look at locks and take them, where the file system can do that."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(files.guarded(f"{folder}/{GUARD_NAME}"))
        except (FileNotFoundError, NotADirectoryError):
            raise MissingError(f"{folder}: the folder was renamed or removed just now; look where it is and start again") from None
        yield


def read_object(path: str) -> dict[str, Any] | None:
    """Read a JSON file that holds an object, None where there is no such file, or another content."""
    try:
        return parse_object(files.read_bytes(path), path)
    except (OSError, FormatError):
        return None


def update_json(
    path: str, read: Callable[[], dict[str, Any] | None], change: Callable[[dict[str, Any]], dict[str, Any]], format_document: Callable[[dict[str, Any]], str],
    new: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Change a JSON file; it appears whole, and no process that honours the lock overwrites what another one wrote."""
    real = files.realpath(path)
    with locked_file(real, f"change of {real}"):
        files.remove_temporaries(*split(real))  # whoever wrote one held this lock, and is dead
        current = read()
        document = new if current is None else current
        if document is None:
            raise MissingError(f"{path}: not found")
        after = change(document)
        if current is None or after != current:
            publish_bytes(real, format_document(after).encode())
