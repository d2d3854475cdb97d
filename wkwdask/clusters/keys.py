"""The keys of a cluster configuration: which there are for each kind, what each takes, what holds without it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask.utils import parse_bytes, parse_timedelta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOOPBACK = "127.0.0.1:0"
"""Where dashboards listen by default: anyone who reaches one sees everything, and it asks for no password."""
CLASSES = ("SLURMCluster", "PBSCluster", "LSFCluster", "SGECluster", "OARCluster", "MoabCluster", "HTCondorCluster")
_WALLTIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True, slots=True)
class Key:
    """A key."""

    read: Callable[[Any], Any]
    """Turns a value of the file into one that is used; a ValueError says what was expected."""
    default: Any = None
    """What holds where the file does not say."""
    required: bool = False
    """The file has to say."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004 - the one error of all readers
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a number from 1")
    return value


def _count_or_none(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a number from 0")
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        raise ValueError("a list of lines of text")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError("keys with values")
    return value


def _nbytes(value: Any) -> str | int:
    try:
        if isinstance(value, bool) or not isinstance(value, str | int) or parse_bytes(value) <= 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError("a number of bytes such as 4GiB") from None
    return value


def _seconds(value: Any) -> float:
    try:
        seconds = 0.0 if isinstance(value, bool) or not isinstance(value, str | int | float) else float(parse_timedelta(value))
    except (ValueError, KeyError):
        seconds = 0.0
    if seconds <= 0:
        raise ValueError("a time such as 30s, 50m or 2h")
    return seconds


def _one_of(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return str(value)

    return read


def _walltime(value: Any) -> str:
    """Read a walltime; YAML makes a number of one without quotes."""
    if not isinstance(value, str) or not _WALLTIME.fullmatch(value):
        raise ValueError("a time in quotes such as '08:00:00'")
    return value


def walltime_seconds(walltime: str, class_name: str) -> int:
    """Tell how long a walltime is, in the notation of a queueing system.

    Examples
    --------
    >>> walltime_seconds("1-02:00:00", "SLURMCluster"), walltime_seconds("90", "SLURMCluster"), walltime_seconds("02:30", "SLURMCluster")
    (93600, 5400, 150)
    >>> walltime_seconds("02:30", "LSFCluster"), walltime_seconds("02:30:00", "PBSCluster")
    (9000, 9000)
    """
    match = _WALLTIME.fullmatch(walltime)
    if match is None:
        raise ValueError(f"not a walltime: {walltime!r}")
    days, *rest = match.groups()
    numbers = [int(number) for number in rest if number is not None]
    if days is not None:  # days-hours:minutes:seconds
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if class_name == "LSFCluster" and len(numbers) < 3:  # [hours:]minutes
        return 60 * (numbers[-1] + (60 * numbers[0] if len(numbers) == 2 else 0))
    if class_name == "SLURMCluster" and len(numbers) == 1:  # minutes
        return 60 * numbers[0]
    total = 0
    for number in numbers:
        total = 60 * total + number
    return total


_COMMON = {"kind": Key(_text, required=True), "dask": Key(_mapping, {})}
_STARTED = {**_COMMON, "dashboard-address": Key(_text, LOOPBACK)}
_LOCAL = {
    **_STARTED,
    "workers": Key(_count),
    "threads-per-worker": Key(_count, 1),
    "memory-limit": Key(_nbytes),
    "interface": Key(_text),
    "local-directory": Key(_text),
}
_SCHEDULER = {**_COMMON, "address": Key(_text), "scheduler-file": Key(_text), "timeout": Key(_seconds, None)}
_JOBQUEUE = {
    **_STARTED,
    "class": Key(_one_of(*CLASSES), required=True),
    "jobs": Key(_count),
    "adaptive": Key(_mapping),
    "cores": Key(_count, required=True),
    "processes": Key(_count),
    "memory": Key(_nbytes, required=True),
    "walltime": Key(_walltime),
    "lifetime": Key(_seconds),
    "lifetime-stagger": Key(_seconds),
    "interface": Key(_text),
    "protocol": Key(_text),
    "local-directory": Key(_text),
    "log-directory": Key(_text),
    "shared-temp-directory": Key(_text),
    "death-timeout": Key(_seconds, 60.0),
    "lost-after": Key(_seconds, 15.0),
    "queue-check": Key(_seconds, 15.0),
    "job-name": Key(_text, "wkwdask"),
    "python": Key(_text),
    "shebang": Key(_text),
    "job-script-prologue": Key(_texts, []),
    "job-extra-directives": Key(_texts, []),
    "job-directives-skip": Key(_texts, []),
    "worker-extra-args": Key(_texts, []),
    "scheduler-options": Key(_mapping, {}),
}
_OF_CLASS: Mapping[str, Mapping[str, Key]] = {
    "SLURMCluster": {"queue": Key(_text), "account": Key(_text), "job-cpu": Key(_count), "job-mem": Key(_text)},
    "PBSCluster": {"queue": Key(_text), "account": Key(_text), "resource-spec": Key(_text)},
    "MoabCluster": {"queue": Key(_text), "account": Key(_text), "resource-spec": Key(_text)},
    "LSFCluster": {
        "queue": Key(_text), "project": Key(_text), "ncpus": Key(_count), "mem": Key(_count), "lsf-units": Key(_text), "use-stdin": Key(_flag),
    },
    "SGECluster": {"queue": Key(_text), "project": Key(_text), "resource-spec": Key(_text)},
    "OARCluster": {"queue": Key(_text), "project": Key(_text), "resource-spec": Key(_text), "memory-per-core-property-name": Key(_text)},
    "HTCondorCluster": {"disk": Key(_text)},
}  # fmt: skip
ADAPTIVE = {
    "minimum": Key(_count_or_none, 0),
    "maximum": Key(_count, required=True),
    "interval": Key(_seconds, 10.0),
    "wait-count": Key(_count, 30),
    "target-duration": Key(_seconds, 60.0),
}
KINDS: Mapping[str, Mapping[str, Key]] = {"local": _LOCAL, "scheduler": _SCHEDULER, "jobqueue": _JOBQUEUE}


def keys_of(kind: str, class_name: Any = None) -> Mapping[str, Key]:
    """List the keys of a kind; those of a job queue depend on its class."""
    return {**KINDS[kind], **(_OF_CLASS.get(class_name, {}) if kind == "jobqueue" else {})}


def job_keys(class_name: str) -> tuple[str, ...]:
    """List the keys that go to the class of the queueing system as they are."""
    shared = ("interface", "protocol", "log-directory", "shared-temp-directory", "python", "shebang", "job-name", "job-extra-directives", "job-directives-skip")
    return (*shared, "walltime", "local-directory", *_OF_CLASS[class_name])
