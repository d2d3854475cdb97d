"""What a worker finds where it runs: versions, the shared folder, its scratch, its memory. The worker's side of ``wkwdask cluster check``."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("wkwdask", "dask", "distributed", "numpy", "lz4", "numba")
FROM_DRIVER = "from-here"
FROM_WORKER = "from-worker"
_SEEN_SECONDS = 30.0
_NETWORK_FILE_SYSTEMS = (
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "glusterfs", "fuse.glusterfs", "fuse.sshfs", "panfs", "afs", "wekafs", "orangefs",
    "pvfs2", "9p", "fuse.juicefs", "fuse.s3fs",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Tell the versions of Python and of the packages that have to agree."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def probe(folder: str, token: str) -> dict[str, Any]:
    """Look around where this runs, in a dask worker or not."""
    facts: dict[str, Any] = {"host": socket.gethostname(), "versions": versions(), **_of_worker()}
    facts["sees"] = wait_for_token(os.path.join(folder, FROM_DRIVER), token)
    facts["writes"] = _written(os.path.join(folder, FROM_WORKER), token)
    facts["scratch"] = _scratch(facts["scratch_folder"])
    return facts


def wait_for_token(path: str, token: str, seconds: float = _SEEN_SECONDS) -> bool:
    """Wait for a file with a token; a network file system may show it late."""
    until = time.monotonic() + seconds
    while True:
        try:
            with open(path, encoding="ascii") as file:
                if file.read() == token:
                    return True
            os.listdir(os.path.dirname(path))  # lets NFS look again
        except OSError:
            pass
        if time.monotonic() > until:
            return False
        time.sleep(0.2)


def _written(path: str, token: str) -> str:
    """Write a file; give the reason where that fails."""
    try:
        with open(path, "x", encoding="ascii") as file:
            file.write(token)
    except OSError as error:
        return str(error)
    return ""


def _of_worker() -> dict[str, Any]:
    """Tell what the dask worker says of itself; outside one, what SLURM says of the job."""
    from distributed import get_worker

    try:
        worker = get_worker()
    except ValueError:
        memory = os.environ.get("SLURM_MEM_PER_NODE", "")
        folder = os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
        return {"address": "", "threads": 0, "memory_limit": int(memory) << 20 if memory.isdecimal() else 0, "spill": False, "scratch_folder": folder}
    import dask

    return {
        "address": worker.address,
        "threads": worker.state.nthreads,
        "memory_limit": int(worker.memory_manager.memory_limit or 0),
        "spill": dask.config.get("distributed.worker.memory.spill"),
        "scratch_folder": worker.local_directory,
    }


def _scratch(folder: str) -> dict[str, Any]:
    """Try to write, and tell what kind of file system it is and how much is free."""
    problem = _written(os.path.join(folder, f"wkwdask-check-{os.getpid()}"), "")
    if not problem:
        os.unlink(os.path.join(folder, f"wkwdask-check-{os.getpid()}"))
    kind = file_system(folder)
    free = shutil.disk_usage(folder).free if os.path.isdir(folder) else 0
    return {"problem": problem, "kind": kind, "is_network": kind in _NETWORK_FILE_SYSTEMS, "free": free}


def file_system(path: str, mounts: str = "/proc/self/mounts") -> str:
    """Tell the type of the file system that holds a path, such as ext4 or nfs; empty where the system does not say."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split() for line in file]
    except OSError:
        return ""
    place = os.path.realpath(path)
    found = ("", "")
    for _, where, kind, *_ in lines:
        folder = where.replace("\\040", " ")
        inside = folder == "/" or place == folder or place.startswith(f"{folder}/")
        if inside and len(folder) >= len(found[0]):  # of two on one place the later one is seen
            found = (folder, kind)
    return found[1]
