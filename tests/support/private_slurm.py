"""Private SLURM on one machine: munged, slurmctld and several virtual nodes, with all of their
files in one folder.

It needs Debian's ``slurm-wlm`` and ``munge``, no root, no systemd and no cgroups, and leaves
/etc/slurm and /etc/munge alone. Jobs find it by the variable ``SLURM_CONF``. Each node has one
GPU, whose device is ``/dev/null``.
``JobAcctGatherParams=OverMemoryKill`` enforces ``--mem`` where there are no cgroups.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
_SEARCHED = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
_UP_SECONDS = 180
# its processes import the package, and may compile kernels while other tests take the cores
_JOB_SECONDS = 300
_END_SECONDS = 60
_END_WITH = "--end-with"

_CONFIGURATION = """\
ClusterName=wkwdask
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
KillWait=2
MinJobAge=600
WaitTime=0
InactiveLimit=0
SlurmctldTimeout=30
SlurmdTimeout=20
ResumeTimeout=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
PlugStackConfig=/dev/null
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=2-00:00:00 State=UP OverSubscribe=NO PriorityTier=1
"""  # noqa: E501

_URGENT = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=urgent Nodes=ALL MaxTime=01:00:00 State=UP OverSubscribe=NO PriorityTier=10 PreemptMode=OFF
"""  # noqa: E501


def missing_programs() -> list[str]:
    """List the programs of SLURM and MUNGE that are not installed."""
    return [name for name in _PROGRAMS if shutil.which(name, path=_SEARCHED) is None]


@dataclass(frozen=True)
class PrivateSlurm:
    """Running cluster."""

    folder: Path
    """Folder of its files; ``SLURM_CONF`` names ``slurm.conf`` in it."""
    nodes: tuple[str, ...]
    """Node names."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which a process reaches it."""
        return {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")),
        }

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command of SLURM and return its output."""
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """Return the state of a job or array element, for example RUNNING; empty if SLURM knows no
        such job."""
        return self.run(
            "squeue", "-h", "-t", "all", "-r", "-o", "%T", "-j", job, check=False
        ).partition("\n")[0]

    def wait_for(self, job: str, *states: str, seconds: float = _JOB_SECONDS) -> str:
        """Wait until a job is in one of the states; raise TimeoutError if that takes too long."""
        until = time.monotonic() + seconds
        while (state := self.state(job)) not in states:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"job {job} is {state or 'unknown'} after {seconds} s, not "
                    f"{' or '.join(states)}"
                )
            time.sleep(0.2)
        return state

    def jobs(self, name: str | None = None) -> list[str]:
        """List the ids of pending and running jobs, if asked only those with a name."""
        filters = ["-n", name] if name else []
        return self.run("squeue", "-h", "-r", "-o", "%i", *filters).split()

    def wait_until_empty(self, seconds: float = _JOB_SECONDS) -> None:
        """Wait until no job is pending, running or completing."""
        until = time.monotonic() + seconds
        while self.jobs():
            assert time.monotonic() < until, (
                f"jobs have not ended after {seconds} s: {self.run('squeue')}"
            )
            time.sleep(0.2)

    def requeue_now(self, job: str) -> None:
        """Requeue a job and start it at once; SLURM would wait for two minutes."""
        self.run("scontrol", "requeue", job)
        self.start_now(job)

    def start_now(self, job: str, seconds: float = 120) -> None:
        """Start a requeued job when it is pending."""
        self.wait_for(job, "PENDING", seconds=seconds)
        self.run("scontrol", "update", f"jobid={job}", "StartTime=now")

    def field(self, job: str, name: str) -> str:
        """Return a field of ``scontrol show job``, for example ``Restarts``."""
        words = self.run("scontrol", "show", "job", job).split()
        return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")

    def end_jobs(self) -> None:
        """Cancel all jobs of this cluster and wait until none is left."""
        until = time.monotonic() + _END_SECONDS
        while ids := self.jobs():
            self.run("scancel", "--full", *ids, check=False)
            if time.monotonic() > until:
                raise TimeoutError(f"jobs {ids} do not end")
            time.sleep(0.2)

    def make_idle(self) -> None:
        """Resume the nodes that a test took down."""
        for node in self.nodes:
            if self.run("sinfo", "-h", "-N", "-p", "debug", "-n", node, "-o", "%T").rstrip(
                "*"
            ) not in ("idle", "mixed", "allocated", "completing"):
                self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)


@contextlib.contextmanager
def private_slurm(
    folder: Path, *, num_nodes: int = 3, cpus: int = 4, memory_mb: int = 8000, urgent: bool = False
):
    """Start a cluster in an existing folder, and stop it at the end.

    The path must be short: that of a socket in it is limited to 108 characters. ``urgent`` adds a
    partition of that name, whose jobs preempt and requeue the jobs of others.
    """
    with contextlib.ExitStack() as stack:
        started: list[Path] = []
        stack.callback(_end_all, started)
        for name in ("munge", "state", "spool", "log", "run"):
            (folder / name).mkdir(mode=0o700 if name == "munge" else 0o755)
        folder.chmod(0o755)
        stack.enter_context(_ended_with_this_process(folder))
        _start_munge(folder, started)
        nodes = tuple(f"n{i}" for i in range(num_nodes))
        port = _free_ports(num_nodes + 1)
        host = socket.gethostname().partition(".")[0]
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port + 1 + i} "
            f"CPUs={cpus} RealMemory={memory_mb} Gres=gpu:1 State=UNKNOWN"
            for i, node in enumerate(nodes)
        ]
        text = _CONFIGURATION.format(
            host=host, port=port, user=getpass.getuser(), folder=folder, nodes="\n".join(lines)
        ) + (_URGENT if urgent else "")
        (folder / "slurm.conf").write_text(text)
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        slurm = PrivateSlurm(folder, nodes)
        _start(
            folder, started, "slurmctld.pid", "slurmctld", "-c", "-f", str(folder / "slurm.conf")
        )
        for node in nodes:
            (folder / "spool" / node).mkdir()
            _start(
                folder,
                started,
                f"slurmd.{node}.pid",
                "slurmd",
                "-c",
                "-N",
                node,
                "-f",
                str(folder / "slurm.conf"),
            )
        _wait_until_idle(slurm)
        stack.callback(slurm.end_jobs)
        yield slurm


@contextlib.contextmanager
def _ended_with_this_process(folder: Path):
    """Start a process that stops the daemons if this one is killed."""
    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        _END_WITH,
        str(os.getpid()),
        str(folder),
    ]
    with subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL) as watcher:
        try:
            yield
        finally:
            watcher.kill()


def _end_with(pid: int, folder: Path) -> None:
    while _is_running(pid, ""):
        time.sleep(0.5)
    run = folder / "run"
    _end_all([run / "munged.pid", run / "slurmctld.pid", *sorted(run.glob("slurmd.*.pid"))])


def _start_munge(folder: Path, started: list[Path]) -> None:
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    _start(
        folder,
        started,
        "munged.pid",
        "munged",
        "--force",
        f"--key-file={key}",
        f"--socket={folder}/run/munge.sock",
        f"--pid-file={folder}/run/munged.pid",
        f"--seed-file={folder}/munge/seed",
        f"--log-file={folder}/munge/munged.log",
    )


def _start(folder: Path, started: list[Path], pid_file: str, *command: str) -> None:
    """Start a daemon; its file of the process id is recorded first."""
    started.append(folder / "run" / pid_file)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": _SEARCHED}
    subprocess.run(command, env=environment, check=True, timeout=120, stdin=subprocess.DEVNULL)


def _free_ports(count: int) -> int:
    """Find the first of several consecutive free ports, below those that the system gives to
    clients."""
    for first in range(10_000 + os.getpid() % 2500 * 8, 32_000, 8):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise RuntimeError("no free ports")


def _wait_until_idle(slurm: PrivateSlurm) -> None:
    until = time.monotonic() + _UP_SECONDS
    while (
        states := slurm.run("sinfo", "-h", "-N", "-p", "debug", "-o", "%T", check=False).split()
    ) != ["idle"] * len(slurm.nodes):
        if time.monotonic() > until:
            raise TimeoutError(f"nodes are {states}; see {slurm.folder}/log")
        time.sleep(0.1)


def _end_all(pid_files: list[Path]) -> None:
    for pid_file in reversed(pid_files):
        with contextlib.suppress(FileNotFoundError, ValueError):
            _end(int(pid_file.read_text()), pid_file.name.partition(".")[0])


def _end(pid: int, program: str) -> None:
    """Stop a daemon, if the process id still is its own."""
    if not _is_running(pid, program):
        return
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + _END_SECONDS
    while _is_running(pid, program):
        if time.monotonic() > until:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.05)


def _is_running(pid: int, program: str) -> bool:
    """Check that a process runs this program. The first process of a container may never collect
    zombies, so they count as ended."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    except FileNotFoundError:
        return False
    return name.startswith(program) and rest.split()[0] not in ("Z", "X")


def main() -> None:
    """Run a command inside a private cluster: ``python tests/support/private_slurm.py bash``."""
    import tempfile

    if sys.argv[1:2] == [_END_WITH]:
        _end_with(int(sys.argv[2]), Path(sys.argv[3]))
        return
    missing = missing_programs()
    if missing:
        sys.exit(f"SLURM is absent: no {', '.join(missing)}; apt-get install slurm-wlm munge")
    with (
        tempfile.TemporaryDirectory(prefix="wkwdask-slurm-", dir="/tmp") as folder,
        private_slurm(Path(folder)) as slurm,
    ):
        sys.exit(
            subprocess.run(
                sys.argv[1:] or ["bash"], env={**os.environ, **slurm.environment}
            ).returncode
        )


if __name__ == "__main__":
    main()
