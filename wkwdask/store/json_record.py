"""Small JSON files of our own: whatever their bytes are, they are read as an object, or refused with their name."""

from __future__ import annotations

import os
import stat
from typing import Any

from wkwdask.errors import CorruptError
from wkwdask.model.json_text import parse_object

_MOST_NBYTES = 1 << 28


def read_record(path: str) -> dict[str, Any] | None:
    """Read the object that a file holds, None where there is no such file.

    Raises
    ------
    CorruptError
        It is no regular file, too large for a record, or holds something else than a JSON object.
    """
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
