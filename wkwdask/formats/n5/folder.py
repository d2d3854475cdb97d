"""The folder of an N5 dataset: which names belong to one, so that it is known whether it may be replaced."""

from __future__ import annotations

import re

from wkwdask.formats.n5.attributes import FILE_NAME
from wkwdask.formats.n5.zarr_document import FILE_NAME as ZARR_NAME
from wkwdask.store import files

_NUMBER = re.compile(r"\d+", re.ASCII)
# our records and temporary files, what NFS keeps of files that were removed while open, and what desktops strew
_LEFT_BY_SOFTWARE = re.compile(r"\.wkwdask.*|\..*\.wkwdask-tmp|\.nfs.*|\.DS_Store|\._.*|Thumbs\.db")


def is_n5_dataset(folder: str) -> bool:
    """Tell whether a folder is an N5 dataset and nothing else, so that it can be replaced: attributes, blocks, records and left-overs."""
    if n5_record(folder) is None:
        return False
    with files.scandir(folder) as entries:
        return all(entry.name in (FILE_NAME, ZARR_NAME) or _NUMBER.fullmatch(entry.name) or _LEFT_BY_SOFTWARE.fullmatch(entry.name) for entry in entries)


def n5_record(folder: str) -> str | None:
    """Name the ``attributes.json`` of a folder, None where there is none."""
    path = f"{folder}/{FILE_NAME}"
    return path if files.isfile(path) else None
