"""The folder of a Zarr array: which names belong to one, so that it is known whether it may be replaced."""

from __future__ import annotations

import re

from wkwdask.store import files
from wkwdask.store.json_edit import read_object

_RECORDS = ("zarr.json", ".zarray", ".zattrs")
_FIRST = re.compile(r"c|\d+", re.ASCII)
# our records and temporary files, what NFS keeps of files that were removed while open, and what desktops strew
_LEFT_BY_SOFTWARE = re.compile(r"\.wkwdask.*|\..*\.wkwdask-tmp|\.nfs.*|\.DS_Store|\._.*|Thumbs\.db")


def is_array(folder: str) -> bool:
    """Tell whether a folder is a Zarr array and nothing else, so that it can be replaced."""
    return array_record(folder) is not None and not array_stray(folder)


def array_record(folder: str) -> str | None:
    """Find the file that describes the array of a folder, None where there is none."""
    if files.isfile(f"{folder}/.zarray"):
        return f"{folder}/.zarray"
    path = f"{folder}/zarr.json"
    document = read_object(path)
    return path if document is not None and document.get("node_type") == "array" else None


def array_stray(folder: str) -> str:
    """Name something in a folder that is no part of an array, an empty text where there is nothing."""
    with files.scandir(folder) as entries:
        for entry in entries:
            is_ours = entry.name in _RECORDS or _LEFT_BY_SOFTWARE.fullmatch(entry.name) or _FIRST.fullmatch(entry.name)
            if not is_ours or entry.is_symlink():
                return entry.path
    return ""
