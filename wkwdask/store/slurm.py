"""SLURM through its commands: job states, submission, release and cancellation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_ANSWER_SECONDS = 60
_POLL_SECONDS = 5.0
_AWAY_SECONDS = 1800.0
END_STATES = frozenset(
    (
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    )
)
"""States of jobs that have ended, sacct(1), "JOB STATE CODES"."""
_UNKNOWN_JOB = "Invalid job id"
_NEVER_STARTS = {"PartitionTimeLimit": "MaxTime", "PartitionNodeLimit": "MaxNodes"}
"""Reasons for which a pending job waits until somebody changes it, with the limit of the
partition."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """Job of a SLURM cluster, or one start of it."""

    cluster: str
    number: str
    restarts: int | None = None
    """Number of requeues before this start; None means the job itself, whichever start of it
    runs."""

    @classmethod
    def of_this_process(cls) -> SlurmJob | None:
        """Return the job that this process runs in; None outside SLURM, and in the shell of
        ``salloc`` on a login node."""
        number = os.environ.get("SLURM_JOB_ID", "")
        restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
        if not number.isdecimal() or "SLURMD_NODENAME" not in os.environ:
            return None
        return cls(
            os.environ.get("SLURM_CLUSTER_NAME", ""),
            number,
            int(restarts) if restarts.isdecimal() else 0,
        )

    @classmethod
    def parse(cls, text: str) -> SlurmJob | None:
        """Parse the output of :meth:`__str__`; None for other text.

        Examples
        --------
        >>> SlurmJob.parse("slurm:hpc:1234:0")
        SlurmJob(cluster='hpc', number='1234', restarts=0)
        >>> SlurmJob.parse("slurm:hpc:1234:")
        SlurmJob(cluster='hpc', number='1234', restarts=None)
        """
        match = re.fullmatch(r"slurm:([^:]*):([0-9]{1,18}):([0-9]{0,18})", text)
        return (
            None if match is None else cls(match[1], match[2], int(match[3]) if match[3] else None)
        )

    def __str__(self) -> str:
        return (
            f"slurm:{self.cluster}:{self.number}:{'' if self.restarts is None else self.restarts}"
        )

    def is_over(self) -> bool:
        """Check whether SLURM reports that the job, or this start of it, has ended. False if SLURM
        does not answer."""
        try:
            answer = _run("scontrol", "-o", "show", "job", self.number)
        except (OSError, subprocess.SubprocessError):
            return False
        if answer.returncode:
            # this cluster forgets its own jobs some time after their end (MinJobAge), but it never
            # knew those of another cluster
            return _UNKNOWN_JOB in answer.stderr and self.cluster in ("", cluster_name())
        state, restarts = _field(answer.stdout, "JobState"), _field(answer.stdout, "Restarts")
        return state in END_STATES or (
            self.restarts is not None and restarts.isdecimal() and int(restarts) > self.restarts
        )


def cluster_name() -> str:
    """Name of the cluster of this machine; empty without one."""
    return _setting("ClusterName")


def controller() -> str:
    """Name of the controller of the cluster of this machine; empty without one."""
    return _setting(r"SlurmctldHost\[0\]")


def max_array_size() -> int:
    """Return the largest number of elements in a job array."""
    value = _setting("MaxArraySize")
    return int(value) - 1 if value.isdecimal() else 1000


def submit_job(script: str, command: Sequence[str], options: Sequence[str], folder: str) -> str:
    """Submit a batch script; return the job id."""
    printed = _checked_call("sbatch", "--parsable", f"--chdir={folder}", *options, script, *command)
    return printed.strip().rpartition("\n")[2].partition(";")[0]


def release_job(number: str) -> None:
    _checked_call("scontrol", "release", number)


def cancel_jobs(numbers: Iterable[str]) -> None:
    """Cancel jobs with all their elements; a job that has ended is not an error."""
    for number in numbers:
        answer = _call("scancel", number)
        if answer.returncode and _UNKNOWN_JOB not in answer.stderr:
            raise BatchError(f"scancel {number}: {answer.stderr.strip()}")


def count_states(number: str) -> dict[str, int]:
    """Count the elements of a job by state, such as RUNNING; empty if SLURM has forgotten the
    job."""
    answer = _call("squeue", "-h", "-r", "-t", "all", "-o", "%T", "-j", number)
    if answer.returncode and _UNKNOWN_JOB not in answer.stderr:
        raise BatchError(f"squeue: {answer.stderr.strip()}")
    states = answer.stdout.split()
    return {state: states.count(state) for state in dict.fromkeys(states)}


def exit_code(number: str) -> str:
    """Return the exit code of a job that has ended, empty if SLURM does not say."""
    try:
        return _field(_run("scontrol", "-o", "show", "job", number).stdout, "ExitCode").partition(
            ":"
        )[0]
    except (OSError, subprocess.SubprocessError):
        return ""


def why_never_started(number: str) -> str:
    """Say why a pending job will never start, naming the limit of its partition; empty if it may
    start, or if SLURM does not say."""
    words: list[str] = []
    with suppress(OSError, subprocess.SubprocessError):
        words = _run(
            "squeue", "-h", "-t", "PENDING", "-o", "%r %P %l %D", "-j", number
        ).stdout.split()
    if len(words) < 4 or words[0] not in _NEVER_STARTS:
        return ""
    reason, partition, walltime, nodes = words[:4]
    limit = f"{_NEVER_STARTS[reason]}={partition_limit(partition, _NEVER_STARTS[reason])}"
    asked = f"a walltime of {walltime}" if reason == "PartitionTimeLimit" else f"{nodes} nodes"
    return (
        f"job {number} asks for {asked}, partition {partition} has {limit}: it would wait forever "
        f"({reason})"
    )


def partition_of(number: str) -> str:
    """Return the partition of a job in the queue, the first if several are named; empty if SLURM
    does not say."""
    with suppress(OSError, subprocess.SubprocessError):
        return (
            _run("squeue", "-h", "-t", "all", "-o", "%P", "-j", number)
            .stdout.strip()
            .partition("\n")[0]
            .partition(",")[0]
        )
    return ""


def partition_limit(partition: str, name: str) -> str:
    """Return a limit of a partition, such as ``MaxTime``; empty if SLURM does not say."""
    with suppress(OSError, subprocess.SubprocessError):
        return _field(_run("scontrol", "-o", "show", "partition", partition).stdout, name)
    return ""


def is_in_queue(number: str) -> bool:
    """Check whether any element of a job is pending or running."""
    return not count_states(number).keys() <= END_STATES


def wait_for_end(number: str, report: Callable[[str], None]) -> str:
    """Wait until a job has ended and return its state, such as COMPLETED; empty if SLURM has
    forgotten it.

    The job continues while the controller is away, so this keeps waiting and reports the first
    failed query. Raises BatchError after half an hour without an answer.
    """
    last_answer = time.monotonic()
    is_reported = False
    while True:
        try:
            states = count_states(number)
        except BatchError as error:
            if time.monotonic() - last_answer > _AWAY_SECONDS:
                raise
            if not is_reported:
                report(f"{error}; still waiting for job {number}")
            is_reported = True
        else:
            if states.keys() <= END_STATES:
                return next(iter(states), "")
            last_answer, is_reported = time.monotonic(), False
        time.sleep(_POLL_SECONDS)


def describe_states(states: dict[str, int]) -> str:
    """Format the result of :func:`count_states`.

    Examples
    --------
    >>> describe_states({"COMPLETED": 3, "OUT_OF_MEMORY": 1}), describe_states({})
    ('3 COMPLETED, 1 OUT_OF_MEMORY', 'forgotten by SLURM')
    """
    return (
        ", ".join(f"{number} {state}" for state, number in states.items()) or "forgotten by SLURM"
    )


def options_in(script: str) -> dict[str, str]:
    """Parse the ``#SBATCH`` lines of a script into options with long names, without dashes.

    Examples
    --------
    >>> options_in(
    ...     "#!/bin/bash\\n#SBATCH --time=10  # minutes\\n#SBATCH -c 4\\n##SBATCH --mem=1G\\necho\\n#SBATCH --hold"
    ... )
    {'time': '10', 'cpus-per-task': '4'}
    """  # noqa: E501
    short = {
        "t": "time",
        "c": "cpus-per-task",
        "o": "output",
        "a": "array",
        "p": "partition",
        "J": "job-name",
        "A": "account",
    }
    options: dict[str, str] = {}
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            for option in re.finditer(
                r"(?:--([\w-]+)|-(\w))(?:[= ]?([^\s#-]\S*))?",
                line.partition(" #")[0][len("#SBATCH") :],
            ):
                options[option[1] or short.get(option[2], option[2])] = option[3] or ""
        elif line.strip() and not line.startswith("#"):
            # sbatch reads no options after the first command
            break
    return options


def _setting(name: str) -> str:
    try:
        return _field(_run("scontrol", "show", "config").stdout, name)
    except (OSError, subprocess.SubprocessError):
        return ""


def _field(text: str, name: str) -> str:
    """Return the value of a pattern for a name; empty if there is none."""
    match = re.search(rf"(?:^|\s){name}\s*=\s*(\S+)", text)
    return match[1] if match is not None else ""


def _checked_call(*command: str) -> str:
    answer = _call(*command)
    if answer.returncode:
        raise BatchError(f"{command[0]}: {answer.stderr.strip() or answer.stdout.strip()}")
    return answer.stdout


def _call(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return _run(*command)
    except FileNotFoundError:
        raise BatchError(
            f"{command[0]}: command not found: SLURM jobs cannot be submitted from this machine; "
            "log in to a login node of the cluster"
        ) from None
    except subprocess.TimeoutExpired:
        raise BatchError(f"{command[0]}: SLURM did not answer within {_ANSWER_SECONDS} s") from None


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_ANSWER_SECONDS,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    """Return the environment for SLURM commands and submitted jobs: the programs of this Python
    first, and no variables of the current job."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or name == "SLURM_CONF"
    }
    return {
        **kept,
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), kept.get("PATH", os.defpath))),
    }
