"""Listing the folders of a mag: its data files, and every name that should not be there."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.formats.leftovers import QUARANTINE_NAME, temporary_fault
from wkwdask.formats.wkw.folder import HEADER_NAME
from wkwdask.formats.zarr.documents import is_view
from wkwdask.model.faults import Fault
from wkwdask.store import files
from wkwdask.store.provenance import PROGRESS_NAME, PROVENANCE_NAME
from wkwdask.store.records import RECORD_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.store import StoredEntry

_KNOWN = (HEADER_NAME, PROVENANCE_NAME, RECORD_NAME, PROGRESS_NAME)
_NAMES = (re.compile(r"z(0|[1-9]\d*)", re.ASCII), re.compile(r"y(0|[1-9]\d*)", re.ASCII), re.compile(r"x(0|[1-9]\d*)\.wkw", re.ASCII))
_LOOKS_LIKE_DATA = re.compile(r"[xyz]\s*[-+]?\d+(\.wkw)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Listing:
    """What is in the folder of a mag."""

    shards: npt.NDArray[np.int64]
    """Index of each data file along x, y, z, in the order of z, y, x, shape (n, 3)."""
    faults: tuple[Fault, ...]
    """Names that should not be there."""


def list_mag(folder: str) -> Listing:
    """List the files of a mag."""
    faults: list[Fault] = []
    shards = list(_walk(folder, 0, (), faults)) if files.isdir(folder) else []
    found = np.array(shards, np.int64).reshape(-1, 3)
    return Listing(found[np.lexsort(found.T)], tuple(faults))


def _walk(folder: str, depth: int, above: tuple[int, ...], faults: list[Fault]) -> Iterator[Vec3]:
    """Go through one folder of a mag: that of all z, of one z, or of one y."""
    try:
        with files.scandir(folder) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
    except OSError as error:
        faults.append(Fault("folder.unreadable", folder, os.strerror(error.errno or 0)))
        return
    for entry in entries:
        named = _NAMES[depth].fullmatch(entry.name)
        if named is None:
            fault = _odd_name(entry, depth)
            if fault is not None:
                faults.append(fault)
        elif depth == 2:
            yield int(named[1]), above[1], above[0]
        else:
            fault = _no_folder(entry.path)
            if fault is not None:
                faults.append(fault)
            else:
                yield from _walk(entry.path, depth + 1, (*above, int(named[1])), faults)


def _no_folder(path: str) -> Fault | None:
    try:
        mode = files.stat(path).st_mode
    except OSError:
        return Fault("folder.dangling", path, f"a symbolic link to {files.readlink(path)}" if files.islink(path) else "nothing", "a folder")
    return None if stat.S_ISDIR(mode) else Fault("folder.no_folder", path, "a file", "a folder")


def _odd_name(entry: StoredEntry, depth: int) -> Fault | None:
    """Judge a name that is not that of a data file or of a folder of them."""
    if depth == 0 and (entry.name in _KNOWN or (entry.name == "zarr.json" and is_view(entry.path))):
        return None
    if depth == 0 and entry.name == QUARANTINE_NAME:
        count = sum(len(names) for _, _, names in files.walk(entry.path))
        return Fault("quarantine", entry.path, f"{count} files")
    leftover = temporary_fault(entry.path)
    if leftover is not None:
        return leftover
    if _LOOKS_LIKE_DATA.fullmatch(entry.name):
        return Fault("name.unread", entry.path, entry.name, ("z0, z1, ...", "y0, y1, ...", "x0.wkw, x1.wkw, ...")[depth])
    return Fault("name.stray", entry.path, "a folder" if entry.is_dir() else "a file")
