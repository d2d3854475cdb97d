"""Locks of jobs: small JSON files beside mags and documents, written and read in plain Python."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path


def process_start(pid):
    """Read the start time of a process from /proc."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def this_process(command="another job", job="20260101T000000-00000000"):
    """Describe this process as the owner of a job."""
    pid, boot = os.getpid(), Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {
        "job": job,
        "command": command,
        "host": socket.gethostname(),
        "boot": boot,
        "pid": pid,
        "process_start": process_start(pid),
        "user": "somebody",
        "since": "then",
        "namespace": os.readlink("/proc/self/ns/pid"),
        "batch": "",
    }


def dead_process(command="another job", job="20260101T000000-00000000"):
    """Describe a process of this machine that has ended."""
    return {**this_process(command, job), "pid": 2**22 + 5, "process_start": "1"}


def far_process(command="another job", job="20260101T000000-00000000"):
    """Describe a process of another machine, whose state is unknown here."""
    return {
        **this_process(command, job),
        "host": "elsewhere",
        "boot": "boot",
        "pid": 7,
        "process_start": "1",
    }


def lock_path(target, job=None):
    """Name the lock of a folder or file, or that of a job on some of a mag's files."""
    target = Path(target)
    return target.parent / (
        f".{target.name}.wkwdask-lock"
        if job is None
        else f".{target.name}.{job}.wkwdask-region-lock"
    )


def put_lock(target, owner, region=None):
    """Lock a folder or file, or a box of a mag's files: low and high, counted in files."""
    path = lock_path(target, None if region is None else owner["job"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(owner if region is None else {**owner, "region": region}))
    return path
