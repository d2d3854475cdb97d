"""Check of a cluster: start one worker, let it probe its node, stop it, and compare its facts with
those of this machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dask.utils import format_bytes

from wkwdask.clusters.config import SCRIPT_KINDS, ClusterConfig, walltime_seconds
from wkwdask.clusters.finding import Finding, finding
from wkwdask.errors import BatchError, TaskFailedError, UnsupportedError
from wkwdask.store.local import file_system
from wkwdask.store.slurm import (
    END_STATES,
    cancel_jobs,
    count_states,
    options_in,
    partition_limit,
    partition_of,
    why_never_started,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wkwdask.model.json_text import JsonObject


PACKAGES = ("wkwdask", "dask", "distributed", "numpy", "lz4", "numba")
FROM_DRIVER = "from-here"
FROM_WORKER = "from-worker"
_VISIBLE_SECONDS = 30.0  # network file systems may show a new file late
_NETWORK_FILE_SYSTEMS = (
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "cifs",
    "smb3",
    "ceph",
    "glusterfs",
    "fuse.glusterfs",
    "fuse.sshfs",
    "panfs",
    "afs",
    "wekafs",
    "orangefs",
    "pvfs2",
    "9p",
    "fuse.juicefs",
    "fuse.s3fs",
)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that must agree."""
    by_name = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            by_name[name] = version(name)
        except PackageNotFoundError:
            by_name[name] = "absent"
    return by_name


def probe(folder: str, token: str) -> JsonObject:
    """Collect facts about the node of this process, which may be a dask worker."""
    facts: JsonObject = {
        "host": socket.gethostname(),
        "versions": versions(),
        **_worker_facts(),
    }
    facts["sees"] = wait_for_token(os.path.join(folder, FROM_DRIVER), token)
    facts["writes"] = _written(os.path.join(folder, FROM_WORKER), token)
    facts["scratch"] = _scratch_facts(facts["scratch_folder"])
    return facts


def wait_for_token(path: str, token: str, seconds: float = _VISIBLE_SECONDS) -> bool:
    """Wait for a file with a token. A network file system may show it late."""
    until = time.monotonic() + seconds
    while True:
        try:
            with open(path, encoding="ascii") as file:
                if file.read() == token:
                    return True
            # makes the NFS client refresh its cache of the folder
            os.listdir(os.path.dirname(path))
        except OSError:
            pass
        if time.monotonic() > until:
            return False
        time.sleep(0.2)


def _written(path: str, token: str) -> str:
    """Write a file; return the error message, empty on success."""
    try:
        with open(path, "x", encoding="ascii") as file:
            file.write(token)
    except OSError as error:
        return str(error)
    return ""


def _worker_facts() -> JsonObject:
    """Return memory and scratch folder of the dask worker; outside one, those of the SLURM job."""
    from distributed import get_worker

    try:
        worker = get_worker()
    except ValueError:
        memory = os.environ.get("SLURM_MEM_PER_NODE", "")
        folder = os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
        return {
            "address": "",
            "threads": 0,
            "memory_limit": int(memory) << 20 if memory.isdecimal() else 0,
            "spill": False,
            "scratch_folder": folder,
        }
    import dask

    return {
        "address": worker.address,
        "threads": worker.state.nthreads,
        "memory_limit": int(worker.memory_manager.memory_limit or 0),
        "spill": dask.config.get("distributed.worker.memory.spill"),
        "scratch_folder": worker.local_directory,
    }


def _scratch_facts(folder: str) -> JsonObject:
    """Test a scratch folder: writable, type of file system, free space."""
    problem = _written(os.path.join(folder, f"wkwdask-check-{os.getpid()}"), "")
    if not problem:
        os.unlink(os.path.join(folder, f"wkwdask-check-{os.getpid()}"))
    kind = file_system(folder)
    free = shutil.disk_usage(folder).free if os.path.isdir(folder) else 0
    return {
        "problem": problem,
        "kind": kind,
        "is_network": kind in _NETWORK_FILE_SYSTEMS,
        "free": free,
    }


_MIN_SCRATCH_NBYTES = 1 << 30
_MIN_MEMORY_NBYTES = 1 << 30
_END_SECONDS = 60.0


def check_cluster(config: ClusterConfig, folder: str, seconds: float = 600.0) -> list[Finding]:
    """Start one worker of a cluster, let it probe its node, and stop everything."""
    if config.kind == "kubernetes":
        raise UnsupportedError(
            f"{config.name}: manifests are checked by Kubernetes: kubectl apply --dry-run=server "
            f"-f {config.path}"
        )
    token = uuid4().hex
    with _probe_folder(folder) as shared:
        with open(os.path.join(shared, FROM_DRIVER), "w", encoding="ascii") as file:
            file.write(token)
        probe_node = _probe_by_script if config.kind in SCRIPT_KINDS else _probe_by_client
        facts = probe_node(config, shared, token, seconds)
        is_token_visible = wait_for_token(os.path.join(shared, FROM_WORKER), token)
    return findings(facts, is_token_visible=is_token_visible, folder=folder)


@contextmanager
def _probe_folder(folder: str) -> Iterator[str]:
    """Create a folder for the files of one check, and remove it at the end."""
    path = tempfile.mkdtemp(prefix=".wkwdask-check-", dir=folder)
    os.chmod(path, 0o777 & ~_umask())
    try:
        yield os.path.abspath(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _umask() -> int:
    current = os.umask(0o077)  # it can only be read by setting it
    os.umask(current)
    return current


def _probe_by_client(config: ClusterConfig, folder: str, token: str, seconds: float) -> JsonObject:
    from wkwdask.clusters.connect import cluster

    options: dict[str, Any] = {"jobqueue": {"jobs": 1}, "local": {"workers": 1}}.get(
        config.kind, {}
    )
    source: Any = config.path or dict(config.values)
    with cluster(source, **options) as client:
        return probe_worker(client, folder, token, seconds)


def probe_worker(client: Any, folder: str, token: str, seconds: float) -> JsonObject:
    """Wait for a worker and let it probe its node."""
    until = time.monotonic() + seconds
    while client.status == "running":  # it is closed where no job can bring a worker
        with suppress(TimeoutError):
            client.wait_for_workers(1, timeout=1)
            break
        if time.monotonic() > until:
            raise TaskFailedError(
                f"no worker connected within {seconds:g} s: see the queue and the output of the "
                "job (log-directory)"
            )
    facts: JsonObject = client.submit(probe, folder, token, pure=False).result(timeout=seconds)
    return facts


def _probe_by_script(config: ClusterConfig, folder: str, token: str, seconds: float) -> JsonObject:
    """Submit the batch script with a small command that probes the node."""
    program = [
        shutil.which("wkwdask") or sys.executable,
        *([] if shutil.which("wkwdask") else ["-m", "wkwdask"]),
    ]
    output, answer = os.path.join(folder, "job.out"), os.path.join(folder, "answer.json")
    options = [
        "--nodes=1",
        "--ntasks=1",
        "--ntasks-per-node=1",
        "--time=00:10:00",
        f"--output={output}",
    ]
    options += ["--array=0"] if config.kind == "array" else []
    command = [
        "sbatch",
        "--parsable",
        *options,
        str(config.path),
        *program,
        "cluster",
        "probe",
        "--folder",
        folder,
        "--token",
        token,
        "--output",
        answer,
    ]
    try:
        submission = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise TaskFailedError(
            f"{config.name}: sbatch not found: run the check on a machine that submits jobs"
        ) from None
    if submission.returncode:
        raise TaskFailedError(
            f"{config.name}: the job was rejected: {' '.join(submission.stderr.split())}"
        )
    job = submission.stdout.strip().partition(";")[0]
    try:
        _check_walltime(config, job)
        facts = _wait_for_answer(config, job, answer, output, seconds)
        until = time.monotonic() + _END_SECONDS
        while _state(job) not in (*END_STATES, "") and time.monotonic() < until:
            # let the job clean up before it is cancelled
            time.sleep(0.2)
        return facts
    finally:
        with suppress(BatchError):
            cancel_jobs([job])


def _check_walltime(config: ClusterConfig, job: str) -> None:
    """Compare the walltime of a script with the limit of the partition that its job was submitted
    to; the job of the check itself asks for less."""
    walltime = options_in(config.text).get("time", "")
    partition = partition_of(job)
    limit = partition_limit(partition, "MaxTime")
    with suppress(ValueError):  # no walltime, or no limit
        if walltime_seconds(walltime, "SLURMCluster") > walltime_seconds(limit, "SLURMCluster"):
            raise TaskFailedError(
                f"{config.name}: the script asks for a walltime of {walltime}, partition "
                f"{partition} has MaxTime={limit}: its jobs would wait forever"
            )


def _wait_for_answer(
    config: ClusterConfig, job: str, answer: str, output: str, seconds: float
) -> JsonObject:
    """Wait until the job has written its facts; raises TaskFailedError if it ends without them."""
    until = time.monotonic() + seconds
    while True:
        state = _state(job)
        with suppress(OSError), open(answer, encoding="utf-8") as file:
            facts: JsonObject = json.load(file)
            return facts
        if reason := why_never_started(job):
            raise TaskFailedError(f"{config.name}: {reason}")
        if state in END_STATES or time.monotonic() > until:
            with suppress(OSError), open(output, encoding="utf-8", errors="replace") as file:
                raise TaskFailedError(
                    f"{config.name}: job {job} is {state or 'unknown'} and gave no answer; its "
                    f"output ends with\n{file.read()[-2000:]}"
                )
            raise TaskFailedError(
                f"{config.name}: job {job} is {state or 'unknown'} and gave no answer; no output "
                "is visible in the shared folder"
            )
        time.sleep(0.5)


def _state(job: str) -> str:
    """Return the state of a job; empty if SLURM has forgotten it or does not answer."""
    try:
        return next(iter(count_states(job)), "")
    except BatchError:
        return ""


def findings(facts: Mapping[str, Any], *, is_token_visible: bool, folder: str) -> list[Finding]:
    """Evaluate the facts of a worker."""
    return [
        _check_address(facts["address"], facts["host"]),
        *_check_versions(facts["versions"]),
        *_check_shared_folder(facts, is_token_visible=is_token_visible, folder=folder),
        _check_scratch(facts["scratch"], facts["scratch_folder"]),
        *_check_memory(facts),
    ]


def _check_address(address: str, host: str) -> Finding:
    is_loopback = "://127." in address or "[::1]" in address
    return finding(
        "worker",
        f"{host} {address}".strip(),
        not is_loopback or host == socket.gethostname(),
        "it listens on a loopback address, which other machines cannot reach: set interface (ip "
        "addr)",
    )


def _check_versions(worker: Mapping[str, str]) -> Iterator[Finding]:
    for name, local in versions().items():
        remote = worker.get(name, "absent")
        is_equal = remote == local
        yield finding(
            name,
            local if is_equal else f"{remote}, here {local}",
            is_equal,
            "use the same environment on both sides: python, job-script-prologue",
        )


def _check_shared_folder(
    facts: Mapping[str, Any], *, is_token_visible: bool, folder: str
) -> Iterator[Finding]:
    is_visible, other_folder = facts["sees"], f"{folder} is not the same on the node"
    yield finding(
        "shared folder, to node",
        "visible" if is_visible else "not visible",
        is_visible,
        other_folder,
    )
    error = facts["writes"]
    is_fine = not error and is_token_visible
    value = "visible" if is_fine else "not written" if error else "not visible"
    yield finding("shared folder, from node", value, is_fine, error or other_folder)


def _check_scratch(scratch: Mapping[str, Any], folder: str) -> Finding:
    if scratch["problem"]:
        return Finding("scratch", folder, False, f"{scratch['problem']}: set local-directory")
    kind, free = scratch["kind"] or "unknown", scratch["free"]
    value = f"{folder} ({kind}, {format_bytes(free)} free)"
    if scratch["is_network"]:
        remedy = "a network file system: set local-directory to a disk of the node"
        return Finding("scratch", value, False, remedy)
    if free < _MIN_SCRATCH_NBYTES:
        remedy = f"less than {format_bytes(_MIN_SCRATCH_NBYTES)} free: set local-directory"
        return Finding("scratch", value, False, remedy)
    in_memory = "it is in memory: files there count towards the memory of the job"
    return Finding("scratch", value, True, in_memory if kind in ("tmpfs", "ramfs") else "")


def _check_memory(facts: Mapping[str, Any]) -> Iterator[Finding]:
    limit, spills = facts["memory_limit"], bool(facts["spill"])
    yield finding(
        "memory of a worker",
        format_bytes(limit) if limit else "no limit",
        not limit or limit >= _MIN_MEMORY_NBYTES,
        "less than 1 GiB: raise memory",
    )
    if facts["address"]:
        remedy = (
            "tasks should wait for memory rather than spill to scratch: set "
            "distributed.worker.memory.spill and .target to false"
        )
        yield finding("spilling", "on" if spills else "off", not spills, remedy)
