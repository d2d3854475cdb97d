"""A limit on the memory that this process may take on top of what it has."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path


@contextlib.contextmanager
def memory_room(nbytes):
    """Let allocations fail that would take more than so many bytes; without /proc there is no
    limit."""
    before, status = resource.getrlimit(resource.RLIMIT_AS), Path("/proc/self/statm")
    if status.exists():
        taken = int(status.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
