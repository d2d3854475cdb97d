"""Who runs a job: enough to tell a living process from one that has ended."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import socket
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from wkwdask.store import files
from wkwdask.store.slurm import SlurmJob

_ALIVE = "alive"  # nobody can tell since when
_JOB = re.compile(r"[\w.-]{1,100}", re.ASCII)  # a part of names of files


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lock."""

    job: str
    """Name of the job, unique."""
    command: str
    """What it does."""
    host: str
    """Name of the machine."""
    boot: str
    """What tells one start of the machine from the next."""
    pid: int
    """The process."""
    process_start: str
    """What tells the process from a later one with the same number."""
    user: str
    """Who started it."""
    since: str
    """When it started."""
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
        return not self._is_alive_here() if self._can_be_seen() else self._batch_is_gone()

    def _can_be_seen(self) -> bool:
        """Tell whether the process runs, or ran, where this one can see it."""
        if self.pid == 0 or (self.host != socket.gethostname() and not (self.boot and self.boot == _boot())):
            return False
        return self.boot != _boot() or self.namespace == _namespace()

    def _is_alive_here(self) -> bool:
        return self.boot == _boot() and _process_start(self.pid) in (self.process_start, _ALIVE)

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
