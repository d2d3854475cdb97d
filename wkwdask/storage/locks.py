"""Locks on mags: small files beside them that name the job that writes them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING

from wkwdask.errors import LockedError
from wkwdask.storage.local import TEMPORARY_SUFFIX, publish_bytes, remove_temporaries
from wkwdask.storage.owner import Owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LOCK_SUFFIX = ".wkwdask-lock"
GUARD_NAME = ".wkwdask-guard"


def lock_path(target: str) -> str:
    """Name the lock of a folder."""
    folder, name = os.path.split(target)
    return f"{folder}/.{name}{_LOCK_SUFFIX}"


def is_lock(name: str) -> bool:
    """Tell whether a file is the lock of a folder, by its name."""
    return name.startswith(".") and name.endswith(_LOCK_SUFFIX)


def lock_holder(target: str) -> Owner | None:
    """Give the living job that writes a folder, None where there is none."""
    holder = read_owner(lock_path(target))
    return holder if holder is not None and not holder.is_gone() else None


def take_lock(target: str, owner: Owner) -> Owner | None:
    """Take the lock of a folder; to be called inside :func:`guarded`.

    Parameters
    ----------
    target : str
        The folder.
    owner : Owner
        Who takes it.

    Returns
    -------
    Owner or None
        The dead job that held it.

    Raises
    ------
    LockedError
        A living job holds it.
    """
    path = lock_path(target)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    remove_temporaries(os.path.dirname(target), os.path.basename(path))
    holder = read_owner(path)
    if holder == owner:
        return None
    if holder is not None and not holder.is_gone():
        here = " (this very process: a write with compute=False that failed or has not ended)" if holder.pid == os.getpid() else ""
        raise LockedError(f"{target}: another job writes it: {holder}{here}; if you know that this job is dead, remove {path}")
    data = json.dumps(asdict(owner)).encode()
    if holder is not None:
        publish_bytes(path, data)
    elif not _create(path, data):
        raise LockedError(f"{target}: another job took the lock {path} just now")
    return holder


def _create(path: str, data: bytes) -> bool:
    """Make a file that appears whole, unless there is one: also where files cannot be locked, only one process can."""
    folder, name = os.path.split(path)
    temporary = f"{folder}/.{name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"  # goes with remove_temporaries, whatever is killed here
    with open(temporary, "xb") as file:
        file.write(data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        publish_bytes(path, data)
    finally:
        os.unlink(temporary)
    return True


def release_lock(target: str, owner: Owner) -> None:
    """Remove the lock of a folder, if it is still the owner's."""
    path = lock_path(target)
    if read_owner(path) == owner:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def release_locks_of(job: str, targets: Iterable[str]) -> None:
    """Remove the locks that a dead job left on folders; to be called inside :func:`guarded`."""
    for target in targets:
        path = lock_path(target)
        holder = read_owner(path)
        if holder is not None and holder.job == job:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def remove_stale_lock(path: str) -> None:
    """Remove a lock that a dead job left, or that cannot be read; to be called inside :func:`guarded`."""
    try:
        holder = read_owner(path)
    except LockedError:
        holder = None
    if holder is None or holder.is_gone():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def read_owner(path: str) -> Owner | None:
    """Read who owns a lock or a job's folder, None where there is no such file.

    Raises
    ------
    LockedError
        The file cannot be understood.
    """
    try:
        with open(path, "rb") as file:
            return Owner(**json.load(file))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise LockedError(f"{path}: a lock that cannot be read; remove it if no job writes here") from None


@contextlib.contextmanager
def guarded(folder: str) -> Iterator[None]:
    """Let one process at a time look at locks and take them, where the file system can do that.

    A file is locked that is open for writing, which NFS asks for. It goes with the last who holds it.
    """
    path = f"{folder}/{GUARD_NAME}"
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                break
        except FileNotFoundError:  # the one before removed it while this one waited
            pass
        os.close(fd)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(fd)
