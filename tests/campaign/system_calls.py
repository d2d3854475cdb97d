"""The library that counts system calls and injects faults, compiled with ``cc``."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).with_name("faults.c")
_NONE, _KILL, _KILL_AFTER, _FAIL, _FAIL_AFTER, _SHORT, _JUMP, _STOP, _OUTAGE = range(9)
_WRITES = frozenset({"write", "pwrite", "copy"})
_GROWS = _WRITES | {"open", "mkdir", "link", "rename", "exchange", "truncate"}


@dataclass(frozen=True)
class Fault:
    """What happens to one system call."""

    name: str
    kind: int
    number: int = 0
    """Error that the caller sees, seconds by which the clock jumps, or calls that an outage
    lasts."""
    persists: bool = False
    """Whether all later calls that need room fail too."""
    calls: frozenset[str] | None = None
    """Calls that can get the fault; None for all."""

    @property
    def is_harmless(self) -> bool:
        """Whether the job must succeed in spite of the fault."""
        return self.kind in (_SHORT, _JUMP)

    @property
    def is_outage(self) -> bool:
        """Whether calls that remove what the job made fail too."""
        return self.kind == _OUTAGE


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("killed before", _KILL),
        Fault("killed after", _KILL_AFTER),
        Fault("EIO", _FAIL, errno.EIO),
        Fault("ESTALE", _FAIL, errno.ESTALE),
        Fault("ENOSPC", _FAIL, errno.ENOSPC, calls=_GROWS | {"fsync", "close"}),
        Fault("EDQUOT", _FAIL, errno.EDQUOT, calls=_GROWS | {"fsync", "close"}),
        Fault("ENOSPC from then on", _FAIL, errno.ENOSPC, persists=True, calls=_GROWS),
        Fault("done, reported as EIO", _FAIL_AFTER, errno.EIO),
        Fault("short write", _SHORT, calls=_WRITES),
        *(Fault(f"outage of {number} calls", _OUTAGE, number) for number in (2, 5, 20)),
        Fault("outage from then on", _OUTAGE, 1 << 30),
    )
}
"""Faults by name. A write that is ``killed after`` has written half of its bytes."""
NO_FAULT = Fault("none", _NONE)
STOP = Fault("stopped", _STOP)
CLOCK_AHEAD = Fault("clock jumps ahead", _JUMP, 86_400)
CLOCK_BACK = Fault("clock jumps back", _JUMP, -3600)


def faults_of(call: str) -> list[Fault]:
    """List the faults that a system call can get."""
    return [fault for fault in FAULTS.values() if fault.calls is None or call in fault.calls]


def compile_library(folder: Path) -> Path | None:
    """Compile the library; None where there is no compiler, or the system is not Linux."""
    if shutil.which("cc") is None or os.uname().sysname != "Linux":
        return None
    library = folder / "faults.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


@cache
def _library():
    library = ctypes.CDLL(None)
    library.campaign_record.restype = ctypes.c_void_p
    library.campaign_call.restype = ctypes.c_char_p
    library.campaign_count.restype = ctypes.c_long
    library.campaign_call.argtypes = [ctypes.c_long]
    library.campaign_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, *[ctypes.c_int] * 4]
    return library


def is_loaded() -> bool:
    """Check whether this process runs with the library."""
    return hasattr(ctypes.CDLL(None), "campaign_arm")


def arm(root: str, at: int = 0, fault: Fault = NO_FAULT, *, keeps_data: bool = False) -> None:
    """Count the calls below a folder from now on, and inject a fault at one of them."""
    arguments = at, fault.kind, fault.number, fault.persists, keeps_data
    _library().campaign_arm(os.fsencode(root), *map(int, arguments))


def disarm() -> None:
    _library().campaign_disarm()


@contextlib.contextmanager
def shifted_clock(seconds: int) -> Iterator[None]:
    """Shift the time of day in this process and its forks."""
    _library().campaign_shift_clock(ctypes.c_long(seconds))
    try:
        yield
    finally:
        _library().campaign_shift_clock(ctypes.c_long(0))


def has_hit() -> bool:
    return bool(_library().campaign_has_hit())


def counted_calls() -> list[str]:
    """Return the names of the counted calls."""
    count = _library().campaign_count()
    return [_library().campaign_call(number).decode() for number in range(1, count + 1)]


@dataclass(frozen=True)
class Call:
    """A system call that was done."""

    name: str
    path: str
    new_path: str
    inode: int
    offset: int
    """Offset of a write, length of a truncated file, or flags of an opened one."""
    data: bytes


def recorded_calls() -> list[Call]:
    """Return the calls that were done since :func:`arm`."""
    length = ctypes.c_size_t()
    address = _library().campaign_record(ctypes.byref(length))
    raw = ctypes.string_at(address, length.value) if length.value else b""
    fields, at = [], 0
    while at < len(raw):
        (nbytes,) = struct.unpack_from("=I", raw, at)
        fields.append(raw[at + 4 : at + 4 + nbytes])
        at += 4 + nbytes
    return [
        Call(
            name.decode(),
            os.fsdecode(path),
            os.fsdecode(new_path),
            *struct.unpack("=Q", inode),
            *struct.unpack("=q", offset),
            data,
        )
        for name, path, new_path, inode, offset, data in zip(*[iter(fields)] * 6, strict=True)
    ]
