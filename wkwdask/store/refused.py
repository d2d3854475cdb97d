"""Answers of servers that refuse a file (403), which those whose readers may not list files also give for absent ones."""

from __future__ import annotations

import warnings

from wkwdask.errors import AccessWarning
from wkwdask.store.lru import Lru

_warned: Lru[bool] = Lru(1024)
"""Places of which it was said that refused files are taken to be absent."""


def is_refused(found: object) -> bool:
    """Tell whether what came in place of a file says that it may not be read: aiohttp, s3fs and gcsfs have different errors for it.

    Examples
    --------
    >>> is_refused(PermissionError("Access Denied")), is_refused(OSError("Forbidden: https://...")), is_refused(FileNotFoundError()), is_refused(b"")
    (True, True, False, False)
    """
    if not isinstance(found, Exception):
        return False
    return isinstance(found, PermissionError) or getattr(found, "status", None) == 403 or (isinstance(found, OSError) and str(found).startswith("Forbidden:"))


def warn_of_refused(place: str, path: str, witness: str) -> None:
    """Say, once of each place in each process, that refused files are taken to be absent."""
    if not _warned.get(place):
        _warned.put(place, True)
        note = f"files are refused (403 Forbidden), such as {path}, while {witness} is readable: they are taken to be absent, and read as zeros"
        warnings.warn(f"{place}: {note}", AccessWarning, stacklevel=2)
