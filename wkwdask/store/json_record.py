"""Small JSON files of our own: whatever their bytes are, they are read as an object, or refused with their name."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from wkwdask.errors import CorruptError
from wkwdask.model.json_text import parse_object

LAYOUT = 1
"""Version of the records and journal of a job. Jobs of another version are refused."""
_MOST_NBYTES = 1 << 28


def read_record(path: str) -> dict[str, Any] | None:
    """Read the object that a file holds, None where there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe in its place is not waited for
    except (FileNotFoundError, NotADirectoryError):
        return None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_NBYTES:
        os.close(fd)
        raise CorruptError(f"{path}: expected a file of at most {_MOST_NBYTES} bytes, found {stat.filemode(status.st_mode)} of {status.st_size} bytes")
    with open(fd, "rb") as file:
        return parse_object(file.read(_MOST_NBYTES), path)


def format_job_record(record: dict[str, Any]) -> bytes:
    """Encode a record of a job with its layout."""
    return json.dumps({"layout": LAYOUT, **record}).encode()


def read_job_record(path: str) -> dict[str, Any] | None:
    """Read a record of a job, None where there is none."""
    record = read_record(path)
    if record is None:
        return None
    found = record.pop("layout", None)
    if found != LAYOUT:
        what = "no layout" if found is None else f"layout {found!r}"
        raise CorruptError(
            f"{path}: has {what}, expected {LAYOUT}: another version of wkwdask wrote it; let that version finish the job, or give up what it has done: "
            f"wkwdask repair removes {os.path.dirname(path)}"
        )
    return record
