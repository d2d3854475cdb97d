"""Sizes of SLURM job arrays: number of elements, and cores, walltime and memory of each, estimated
from the work of a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

# work of an element: long against its start of seconds, short enough for backfill
_ELEMENT_SECONDS = 1800.0
_NBYTES_PER_SECOND = 20e6  # decoded voxels of one core: LZ4HC on a busy file system
_SECONDS_PER_TASK = 0.05
_SAFETY = 3.0
_LEAST_SECONDS = 600.0
_STEP_SECONDS = 300.0
_BASE_NBYTES = 400 << 20  # Python, numpy and the compiled kernels: twice the measured memory
_MEMORY_SAFETY = 1.5
_LEAST_NBYTES = 1 << 30
_STEP_NBYTES = 256 << 20
_GROUPS_PER_ELEMENT = 8
_MOST_IN_GROUP = 64
_MOST_AFTER_ARRAY = 64


@dataclass(frozen=True, slots=True)
class Workload:
    """Work of the tasks to distribute."""

    num_tasks: int
    """Number of tasks known so far."""
    nbytes: int
    """Decoded voxels that all tasks read [bytes]."""
    task_nbytes: int
    """Memory of one task [bytes]."""

    @property
    def seconds(self) -> float:
        """Estimated time of one core."""
        return self.nbytes / _NBYTES_PER_SECOND + self.num_tasks * _SECONDS_PER_TASK


@dataclass(frozen=True, slots=True)
class ArraySize:
    """Resources of a job array; None leaves a resource to the batch script."""

    elements: int | None = None
    """Number of elements."""
    cpus: int | None = None
    """Cores of an element, and tasks that it runs at once."""
    seconds: float | None = None
    """Walltime of an element."""
    memory_nbytes: int | None = None
    """Memory of an element [bytes]."""
    at_once: int | None = None
    """Largest number of elements that run at the same time, None for any."""

    def __str__(self) -> str:
        parts = [] if self.seconds is None else [f"walltime {format_walltime(self.seconds)}"]
        parts += [] if self.memory_nbytes is None else [f"memory {self.memory_nbytes >> 20} MiB"]
        elements, cores = (
            f"{n} {noun}{'' if n == 1 else 's'}"
            for n, noun in ((self.elements, "element"), (self.cpus, "core"))
        )
        return ", ".join(
            [
                f"{elements} of {cores}",
                *parts,
                *(["the rest as the script says"] if len(parts) < 2 else []),
            ]
        )


def propose_size(work: Workload, requested: ArraySize, most_elements: int) -> ArraySize:
    """Complete the resources that a user requests.

    Examples
    --------
    A layer of 1 TiB in 8192 tasks:

    >>> str(propose_size(Workload(8192, 1 << 40, 300 << 20), ArraySize(), 1000))
    '31 elements of 1 core, walltime 01:30:00, memory 1024 MiB'
    >>> str(propose_size(Workload(8192, 1 << 40, 300 << 20), ArraySize(elements=500, cpus=4), 1000))
    '500 elements of 4 cores, walltime 00:10:00, memory 2304 MiB'
    """
    cpus = requested.cpus or 1
    seconds = work.seconds
    ideal = requested.elements or max(1, -int(-seconds // (_ELEMENT_SECONDS * cpus)))
    elements = max(1, min(ideal, work.num_tasks, most_elements))
    # tasks that the busiest core runs one after another
    rounds = -(-work.num_tasks // (elements * cpus))
    share = rounds * seconds / max(1, work.num_tasks)
    walltime = max(_LEAST_SECONDS, _rounded_up(share * _SAFETY, _STEP_SECONDS))
    memory = max(
        _LEAST_NBYTES,
        int(_rounded_up(_BASE_NBYTES + cpus * work.task_nbytes * _MEMORY_SAFETY, _STEP_NBYTES)),
    )
    return replace(
        requested,
        elements=elements,
        cpus=cpus,
        seconds=requested.seconds or walltime,
        memory_nbytes=requested.memory_nbytes or memory,
    )


def finish_job_tasks(work: Workload, requested: ArraySize) -> int:
    """Return how many remaining tasks the finish job runs itself, without another array: as many as
    its walltime allows.

    Examples
    --------
    >>> (
    ...     finish_job_tasks(Workload(8192, 1 << 40, 300 << 20), ArraySize()),
    ...     finish_job_tasks(Workload(8192, 100 << 40, 300 << 20), ArraySize(seconds=3600.0)),
    ... )
    (64, 1)
    """
    seconds = _ELEMENT_SECONDS if requested.seconds is None else requested.seconds / _SAFETY
    each = work.seconds / max(1, work.num_tasks)
    return max(
        1,
        min(_MOST_AFTER_ARRAY, int(seconds * (requested.cpus or 1) / max(each, _SECONDS_PER_TASK))),
    )


def finish_job_size(few: int, work: Workload, size: ArraySize) -> ArraySize:
    """Return the resources of the finish job, with walltime for ``few`` tasks like those of the
    array."""
    share = few * work.seconds / max(1, work.num_tasks) / (size.cpus or 1)
    return replace(
        size, seconds=max(size.seconds or 0.0, _rounded_up(share * _SAFETY, _STEP_SECONDS))
    )


def group_size(num_tasks: int, elements: int) -> int:
    """Return how many consecutive tasks form a group that one element runs.

    Large groups are faster, because neighbours share chunks of the source. Small groups distribute
    the work more evenly.

    Examples
    --------
    >>> group_size(10, 4), group_size(8192, 32), group_size(1_000_000, 100)
    (1, 32, 64)
    """
    return max(1, min(_MOST_IN_GROUP, num_tasks // (elements * _GROUPS_PER_ELEMENT)))


def format_walltime(seconds: float) -> str:
    """Format a time for ``sbatch --time``.

    Examples
    --------
    >>> format_walltime(600), format_walltime(90061)
    ('00:10:00', '1-01:01:01')
    """
    minutes, second = divmod(int(-(-seconds // 1)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hour:02}:{minute:02}:{second:02}"


def _rounded_up(value: float, step: float) -> float:
    return -(-value // step) * step
