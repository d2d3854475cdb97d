"""Locks on mags, or on some of their shards: small files beside a mag, each with the job that
writes it.

A lock describes its owner well enough to check later, on the same machine or through SLURM, whether
the owner has ended. This module also edits JSON files, each atomically and in one process at a
time.
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
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, LockedError, MissingError, UnsupportedError
from wkwdask.geometry.mag import vec3
from wkwdask.model.json_text import parse_object
from wkwdask.model.parsing import reading
from wkwdask.model.placement import plain_name
from wkwdask.model.store import Conflict, Expected
from wkwdask.store import by_path, files
from wkwdask.store.json_record import read_record
from wkwdask.store.leases import is_over, take_lease, without_fields
from wkwdask.store.new_files import create_whole, publish_bytes
from wkwdask.store.objects import remote
from wkwdask.store.paths import (
    TEMPORARY_SUFFIX,
    basename,
    dirname,
    is_bucket,
    is_on_disk,
    split,
)
from wkwdask.store.slurm import SlurmJob, controller
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.store import State


_MAX_NBYTES = 1 << 24
_ALIVE = "alive"  # the process exists, but its start time cannot be read
_JOB_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)  # a part of file names


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of a lock: a process, or a SLURM job."""

    job: str
    """Unique name of the job."""
    command: str
    host: str
    """Machine of the process; the controller of a SLURM job that is the owner itself."""
    boot: str
    """Boot id of the machine."""
    pid: int
    process_start: str
    """Start time of the process, which distinguishes it from a later process with the same
    number."""
    user: str
    since: str
    namespace: str = ""
    """PID namespace, which distinguishes the process numbers of containers."""
    batch: str = ""
    """SLURM job that the process runs in. If the process number is 0, the job itself is the owner,
    with all processes that it starts."""
    lease: str = ""
    """URL of the lease of a job in a bucket, by which others know that it lives."""
    machine: str = ""
    """Id of the machine, which distinguishes it from others of its name; empty if it has none, as
    in many containers."""

    @classmethod
    def this_process(cls, command: str, job: str | None = None) -> Owner:
        """Return this process as the owner of a new job, or of the interrupted job named
        ``job``."""
        pid, since = os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # no entry in the password database, as in many containers
            user = f"uid {os.getuid()}"
        if job is None:
            job = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(4)}"
        return cls(
            job,
            command,
            socket.gethostname(),
            _boot(),
            pid,
            _process_start(pid),
            user,
            since,
            _namespace(),
            str(SlurmJob.of_this_process() or ""),
            machine=_machine(),
        )

    def handed_to(self, batch: SlurmJob) -> Owner:
        """Return a SLURM job, which may be pending, as the owner of the same job."""
        return replace(
            self,
            host=controller(),
            boot="",
            pid=0,
            process_start="",
            namespace="",
            machine="",
            batch=str(batch),
        )

    def to_json(self, folder: str) -> dict[str, Any]:
        return {**asdict(self), "folder": store_at(folder).real()}

    @classmethod
    def from_json(cls, value: dict[str, Any], path: str) -> Owner:
        """Parse an owner record at a path, whose folder may be a copy of another one; raises
        CorruptError if it is none."""
        texts, folder = {name: text for name, text in value.items() if name != "pid"}, dirname(path)
        with reading(path, "lock"):
            if (
                not all(isinstance(text, str) for text in texts.values())
                or type(value["pid"]) is not int
                or not _JOB_NAME.fullmatch(value["job"])
            ):
                raise ValueError("expected the process or job that owns a lock")
            origin = texts.pop("folder", "")
            owner = cls(pid=value["pid"], **texts)
        # The copy of a dataset contains locks and folders of jobs that may still run on the
        # original. No job works in the copy, so their owners count as dead.
        if origin and owner._is_copied(origin, folder):
            return owner._ended()
        if owner.lease and not _are_in_one_bucket(owner.lease, folder):
            raise CorruptError(f"{path}: names a lease elsewhere, {owner.lease!r}")
        return owner

    @classmethod
    def of_unreadable(cls, path: str) -> Owner:
        """Return the owner of a lock that a power loss left without content; it has ended."""
        name = basename(path)
        job = (
            name.removesuffix(_REGION_SUFFIX).rpartition(".")[2]
            if name.endswith(_REGION_SUFFIX)
            else "unreadable"
        )
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(files.lstat(path).st_mtime))
        return cls(
            job,
            "an unreadable lock, older than the last start of this machine,",
            "",
            "",
            0,
            "",
            "somebody",
            since,
        )._ended()

    def _is_copied(self, origin: str, folder: str) -> bool:
        """Check whether this record was copied from another folder that still exists; the owner
        then works in that folder."""
        # A path of another machine may name another folder here, so only owners of this machine are
        # compared, and SLURM jobs, which belong to no machine.
        if self.lease:
            # the same bucket has several protocols
            return origin.partition("://")[2] != folder.partition("://")[2]
        try:
            return (self.pid == 0 or self._can_be_seen()) and not files.samefile(origin, folder)
        except (OSError, UnsupportedError, ValueError):
            return False

    def _ended(self) -> Owner:
        return replace(
            self,
            host=socket.gethostname(),
            machine="",
            boot="ended",
            pid=max(self.pid, 1),
            batch="",
            lease="",
        )

    def is_gone(self) -> bool:
        """Check whether the owner is known to have ended. Only SLURM knows about processes on other
        machines or in other containers, and leases about jobs in buckets."""
        if self.lease and is_over(self.lease):
            return True
        # In doubt, the owner counts as alive: taking the lock of a living job corrupts the mag,
        # while a lock kept too long only has to be removed by hand. A process whose start time is
        # unknown (_ALIVE) may be a later one with the same number; it counts as alive too.
        if self._can_be_seen():
            return self.boot != _boot() or _process_start(self.pid) not in (
                self.process_start,
                _ALIVE,
            )
        return self._batch_is_gone()

    def _can_be_seen(self) -> bool:
        """Check whether this process can observe the owner: both run, or ran, on one machine and in
        one PID namespace."""
        # Containers have their own host names, but share the boot id of their machine. Nodes of two
        # clusters may share a name, but neither the boot id nor the id of the machine. Process
        # numbers are valid in one PID namespace only, but after a reboot the processes of all
        # namespaces have ended.
        if self.pid == 0:
            return False
        if self.boot and self.boot == _boot():
            return self.namespace == _namespace()
        is_renamed = self.host != socket.gethostname()
        is_another = self.machine and _machine() and self.machine != _machine()
        return (
            not is_renamed
            and not is_another
            and (self.boot != _boot() or self.namespace == _namespace())
        )

    def _batch_is_gone(self) -> bool:
        batch, own_job = SlurmJob.parse(self.batch), SlurmJob.of_this_process()
        if batch is None:
            return False
        # empty if SLURM did not report the name
        is_same_cluster = own_job is not None and batch.cluster in ("", own_job.cluster)
        if own_job is not None and is_same_cluster and batch.number == own_job.number:
            # This process belongs to the SLURM job that owns the lock. It takes over from the job
            # itself, or from the start of the job before a requeue.
            return self.pid == 0 or batch.restarts != own_job.restarts
        # clusters of several places, which may have equal names, write into one bucket
        return (not self.lease or self.host == controller()) and batch.is_over()

    def __str__(self) -> str:
        batch = SlurmJob.parse(self.batch)
        where = [f"process {self.pid} on {self.host}"] if self.pid else []
        where += [f"SLURM job {batch.number}"] if batch is not None else []
        return f"{self.command} by {self.user}, {', '.join(where)}, since {self.since}"


def _are_in_one_bucket(url: str, other: str) -> bool:
    buckets = {each.partition("://")[2].partition("/")[0] for each in (url, other)}
    return is_bucket(url) and is_bucket(other) and len(buckets) == 1


@cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


@cache
def _machine() -> str:
    try:
        with open("/etc/machine-id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace() -> str:
    return _namespace_of(os.getpid())  # a forked process may be in another one


@lru_cache(maxsize=1)
def _namespace_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _process_start(pid: int) -> str:
    """Return a string that is constant while a process lives: empty if there is no such process,
    "alive" if its start time is unknown."""
    try:
        # proc_pid_stat(5): the name in parentheses may contain anything, the state follows it as
        # field 3, and the start time is field 22.
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except OSError:  # no such process, no /proc, or a /proc mounted with hidepid
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
# a temporary file that is older, and names no owner, was left by a dead process
_STALE_SECONDS = 3600
GUARD_NAME = ".wkwdask-guard"


@dataclass(frozen=True, slots=True)
class ShardBox:
    """Box of shards of one mag, half-open [shards]."""

    low: Vec3
    """Lowest shard along x, y, z."""
    high: Vec3
    """Shard one beyond the highest."""

    @classmethod
    def from_json(cls, value: Any) -> ShardBox:
        low, high = value
        return cls(vec3(low), vec3(high))

    def contains(self, shard: Vec3) -> bool:
        return all(a <= n < b for a, n, b in zip(self.low, shard, self.high, strict=True))


@dataclass(frozen=True, slots=True)
class Lock:
    path: str
    owner: Owner
    region: ShardBox | None
    """Locked shards; None for the whole mag."""
    state: State | None = None
    """State of the object, in a bucket."""

    def conflicts_with(self, region: ShardBox | None) -> bool:
        """Check whether the lock covers shards that another job needs (None for all)."""
        return regions_overlap(self.region, region)


def regions_overlap(first: ShardBox | None, second: ShardBox | None) -> bool:
    """Check whether two boxes share a shard; None stands for the whole mag."""
    if first is None or second is None:
        return True
    return all(
        max(a, b) < min(c, d)
        for a, b, c, d in zip(first.low, second.low, first.high, second.high, strict=True)
    )


def lock_path(target: str, job: str | None = None) -> str:
    """Return the path of the lock on a folder, or of a job's lock on some of its shards: a level is
    locked by its plain name, whichever job wrote it."""
    folder, name = split(plain_name(target))
    return (
        f"{folder}/.{name}{_LOCK_SUFFIX}"
        if job is None
        else f"{folder}/.{name}.{job}{_REGION_SUFFIX}"
    )


def locks_of(target: str, but: str | None = None) -> list[Lock]:
    """List the locks on a folder, including those of dead jobs, without the one of a path."""
    folder, name = split(plain_name(target))
    own, regions = lock_path(target), []
    with contextlib.suppress(FileNotFoundError):
        regions = sorted(
            entry.path
            for entry in store_at(folder).scandir()
            if entry.name.startswith(f".{name}.") and entry.name.endswith(_REGION_SUFFIX)
        )
    paths = regions if remote.is_known_absent(own) else [own, *regions]
    read = (_read_lock(path) for path in paths if path != but)
    return [lock for lock in read if lock is not None]


def _read_lock(path: str) -> Lock | None:
    """Read a lock, or the owner record of a job folder; None if it is absent."""
    try:
        record, state = _read_with_state(path)
        if record is None:
            return None
        region = (
            ShardBox.from_json(record.pop("region"))
            if "region" in record or path.endswith(_REGION_SUFFIX)
            else None
        )
        return Lock(path, Owner.from_json(record, path), region, state)
    except (KeyError, OverflowError, TypeError, ValueError):
        if is_on_disk(path) and files.predates_boot(path):
            return Lock(path, Owner.of_unreadable(path), None)
        raise LockedError(
            f"{path}: this lock cannot be read, and the machine that wrote it is not known to have "
            "been restarted since; remove it if no job writes here"
        ) from None


def _read_with_state(path: str) -> tuple[dict[str, Any] | None, State | None]:
    """Read the record of a lock, and its state in a bucket."""
    folder, name = split(path)
    store = store_at(folder)
    if not store.can.compares:
        return read_record(path), None
    found = store.read_state(name, _MAX_NBYTES)
    if found is None:
        return None, None
    return without_fields(parse_object(found[0], path)), found[1]


def is_lock(name: str) -> bool:
    """Check whether a file name is that of a lock."""
    return name.startswith(".") and name.endswith((_LOCK_SUFFIX, _REGION_SUFFIX))


def lock_holder(target: str) -> Owner | None:
    """Return a living job that writes a folder or a part of it; None if there is none."""
    return next((lock.owner for lock in locks_of(target) if not lock.owner.is_gone()), None)


def take_lock(
    target: str, owner: Owner, region: ShardBox | None, found: Iterable[Lock]
) -> list[Owner]:
    """Lock a folder, or some of its shards, inside :func:`guarded`; return the dead owners of
    conflicting locks, which are among those that were found."""
    # Each job that writes shards of a mag holds its own region lock, and a job that replaces the
    # mag holds the one mag lock:
    #
    #   .1.wkwdask-lock                    whole mag: conflicts with every other lock of the mag
    #   .1.<job>.wkwdask-region-lock       shards [low, high): conflicts if the boxes overlap
    path = lock_path(target, None if region is None else owner.job)
    store = store_at(dirname(target))
    store.make()
    if store.folders is not None:
        # safe: every process that creates a lock of this mag holds the guard
        by_path.remove_temporaries(dirname(target), f".{basename(plain_name(target))}")
    others = [lock for lock in found if lock.conflicts_with(region)]
    if any(lock.owner == owner for lock in others):
        return []
    for lock in others:
        # in a bucket, the holder of the lease of a job owns its locks
        is_ours = bool(owner.lease) and lock.owner.job == owner.job
        if not is_ours and not lock.owner.is_gone():
            hint = (
                " (this very process: a write with compute=False that failed or has not ended)"
                if lock.owner.pid == os.getpid()
                else ""
            )
            what = (
                "it"
                if lock.region is None
                else f"its files {lock.region.low} to {lock.region.high} (exclusive)"
            )
            raise LockedError(
                f"{target}: another job writes {what}: {lock.owner}{hint}; if you know that this "
                f"job is dead, remove {lock.path}"
            )
    data = _format_lock(owner, path, region)
    before = next((lock for lock in others if lock.path == path), None)
    # takeover: the lock of the dead owner is replaced, so the mag is never unlocked in between
    expect = Expected.ABSENT if before is None else before.state or Expected.ANY
    try:
        store.put(basename(path), data, expect)
    except Conflict:
        # in a bucket, or without flock, the guard excludes nobody, and the condition decides
        raise LockedError(f"{target}: another job took the lock {path} just now") from None
    return [lock.owner for lock in others]


def check_alone(target: str, owner: Owner, region: ShardBox | None) -> list[Lock]:
    """List the other locks on a folder that was locked just now. In a bucket, release ours if
    another job has taken one of another name at the same time; then both may end."""
    path = lock_path(target, None if region is None else owner.job)
    others = locks_of(target, but=path)
    for lock in others if is_bucket(target) else ():
        if lock.owner.job != owner.job and lock.conflicts_with(region) and not lock.owner.is_gone():
            _remove([path])
            raise LockedError(f"{target}: another job took the lock {lock.path} just now")
    return others


@contextlib.contextmanager
def locked_file(path: str, command: str, *, timeout_seconds: float = 60) -> Iterator[None]:
    """Serialise changes of a file, on any file system, with a lock beside it that only one process
    can create."""
    lock, owner = lock_path(path), Owner.this_process(command)
    data, until = _format_lock(owner, lock), time.monotonic() + timeout_seconds
    try:
        while not create_whole(lock, data):
            if not _break_dead(lock):
                if time.monotonic() > until:
                    raise LockedError(
                        f"{path}: another process changes it: "
                        f"{_holder(lock) or 'its lock cannot be read'}; if you know that it is "
                        f"dead, remove {lock}"
                    )
                time.sleep(random.uniform(0.002, 0.02))
        _remove_dead_temporaries(lock)
        yield
    finally:
        # Check the holder: this process may have been interrupted before it created the lock, or
        # others took it for dead and now hold the lock.
        if _holder(lock) == owner:
            _remove([lock])


def _remove_dead_temporaries(lock: str) -> None:
    """Remove the temporary files of processes that died while they created or broke a lock. Others
    may belong to live processes."""
    folder, name = split(lock)
    with files.scandir(folder) as entries:
        related = [entry for entry in entries if entry.name.startswith((f".{name}.", f"{name}."))]
    paths = [
        entry.path for entry in related if entry.name.endswith((TEMPORARY_SUFFIX, _BROKEN_SUFFIX))
    ]
    for path in paths:
        holder = _holder(path)
        with contextlib.suppress(FileNotFoundError):
            if (
                holder.is_gone()
                if holder is not None
                else time.time() - files.stat(path).st_mtime > _STALE_SECONDS
            ):
                files.unlink(path)


def _break_dead(lock: str) -> bool:
    """Remove a lock whose owner is known to be dead; return whether it was removed."""
    # If two processes found the same dead owner and both unlinked its lock, the second would remove
    # the new lock of the first. So each tries to create a claim, a file named after the dead owner.
    # Only the process that succeeds may unlink, after reading the lock again. A claim whose creator
    # has died is broken in the same way.
    holder = _holder(lock)
    if holder is None or not holder.is_gone():
        return False
    claim, data = (
        f"{lock}.{holder.job}{_BROKEN_SUFFIX}",
        _format_lock(Owner.this_process(f"removal of {lock}"), lock),
    )
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
    """Remove the lock of a file, see :func:`locked_file`, if its owner was killed."""
    lock = lock_path(path)
    if not is_bucket(path) and files.lexists(lock):
        _break_dead(lock)
        _remove_dead_temporaries(lock)


def _holder(lock: str) -> Owner | None:
    """Read the owner of a lock; None if it is absent or being written."""
    try:
        return read_owner(lock)
    except LockedError:
        return None


def release_locks(targets: Sequence[str], owner: Owner, region: ShardBox | None) -> None:
    """Remove the locks on folders, or on some of their shards, that still belong to an owner."""
    paths = [lock_path(target, None if region is None else owner.job) for target in targets]
    is_ours = partial(_belongs_to, owner=owner)
    kept = remote.for_all(is_ours, paths) if owner.lease else map(is_ours, paths)
    _remove(path for path, ours in zip(paths, kept, strict=True) if ours)


def _belongs_to(lock: str, owner: Owner) -> bool:
    return read_owner(lock) == owner


def hand_over_locks(target: str, owner: Owner) -> None:
    """Rewrite a job's locks on a folder to name another owner of the same job, inside
    :func:`guarded`."""
    for lock in locks_of(target):
        if lock.owner.job == owner.job:
            data = _format_lock(owner, lock.path, lock.region)
            store_at(dirname(target)).put(basename(lock.path), data, lock.state or Expected.ANY)


def release_locks_of(job: str, targets: Iterable[str]) -> None:
    """Remove the locks of a dead job on some folders, inside :func:`guarded`."""
    for target in targets:
        _remove(lock.path for lock in locks_of(target) if lock.owner.job == job)


def _remove(paths: Iterable[str]) -> None:
    objects: dict[str, list[str]] = {}
    for path in paths:
        if is_bucket(path):
            objects.setdefault(dirname(path), []).append(basename(path))
        else:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(path)
    for folder, names in objects.items():
        store_at(folder).delete(*names)


def locked_folders(folder: str) -> list[tuple[str, Owner]]:
    """List the locked entries of a folder with their owners, including dead jobs."""
    return list(_locked(folder, _LOCK_SUFFIX))


def locked_regions(folder: str) -> list[tuple[str, Owner]]:
    """List the entries of a folder that have locked shards, with the owners, including dead
    jobs."""
    locked = _locked(folder, _REGION_SUFFIX)
    # the name of a job has no dot
    return [(target.rpartition(".")[0], holder) for target, holder in locked]


def _locked(folder: str, suffix: str) -> Iterator[tuple[str, Owner]]:
    """Yield the paths in the names of locks with a suffix, with the owners."""
    for entry in list(store_at(folder).scandir()):
        if entry.name.startswith(".") and entry.name.endswith(suffix):
            holder = read_owner(f"{folder}/{entry.name}")
            if holder is not None:
                yield f"{folder}/{entry.name[1 : -len(suffix)]}", holder


def remove_stale_lock(path: str) -> None:
    """Remove a lock that belongs to a dead job or cannot be read, inside :func:`guarded`."""
    if not _break_dead(path) and _holder(path) is None:
        _remove([path])


def read_owner(path: str) -> Owner | None:
    """Read the owner of a lock or a job folder; None if the file is absent."""
    lock = _read_lock(path)
    return None if lock is None else lock.owner


def write_owner(path: str, owner: Owner) -> None:
    if is_bucket(path):
        take_lease(
            path,
            owner.to_json(dirname(path)),
            lambda record: Owner.from_json(record, path).is_gone(),
        )
    else:
        publish_bytes(path, _format_lock(owner, path))


def _format_lock(owner: Owner, path: str, region: ShardBox | None = None) -> bytes:
    boxes = {} if region is None else {"region": [region.low, region.high]}
    return json.dumps({**owner.to_json(dirname(path)), **boxes}).encode()


@contextlib.contextmanager
def guarded(folder: str) -> Iterator[None]:
    """Serialise the inspection and creation of locks in a folder, if the file system supports
    it."""
    with contextlib.ExitStack() as stack:
        if is_bucket(folder):  # conditional writes decide there
            yield
            return
        try:
            stack.enter_context(files.guarded(f"{folder}/{GUARD_NAME}"))
        except (FileNotFoundError, NotADirectoryError):
            raise MissingError(
                f"{folder}: the folder was renamed or removed just now; find its new path and "
                "start again"
            ) from None
        yield
