"""The folder of a precomputed scale: which names belong to one, so that it is known whether it may be replaced."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from wkwdask.formats.precomputed.naming import SUFFIXES
from wkwdask.store import files
from wkwdask.store.provenance import PROVENANCE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.model.store import StoredEntry

_RANGE = r"-?\d+--?\d+"
_DATA_FILE = re.compile(rf"{_RANGE}_{_RANGE}_{_RANGE}({'|'.join(map(re.escape, SUFFIXES[1:]))})?|[0-9a-f]+\.(shard|index|data)")
# our records and temporary files, what NFS keeps of files that were removed while open, and what desktops strew
_LEFT_BY_SOFTWARE = re.compile(r"\.wkwdask.*|\..*\.wkwdask-tmp|\.nfs.*|\.DS_Store|\._.*|Thumbs\.db")


def is_scale(folder: str) -> bool:
    """Tell whether a folder is a scale and nothing else, so that it can be replaced: chunks or shards, records and left-overs."""
    is_one = files.isfile(f"{folder}/{PROVENANCE_NAME}") or scale_file(folder) is not None
    return is_one and next(_strays(folder), None) is None


def scale_file(folder: str) -> str | None:
    """Find a chunk or shard in a folder, None where there is none."""
    return next((entry.path for entry in _entries(folder) if _is_data_file(entry)), None)


def scale_stray(folder: str) -> str:
    """Name something in a folder that is no part of a scale, an empty text where there is nothing."""
    return next(_strays(folder), "")


def _strays(folder: str) -> Iterator[str]:
    return (entry.path for entry in _entries(folder) if not _is_data_file(entry) and not _LEFT_BY_SOFTWARE.fullmatch(entry.name))


def _is_data_file(entry: StoredEntry) -> bool:
    return _DATA_FILE.fullmatch(entry.name) is not None and entry.is_file()


def _entries(folder: str) -> Iterator[StoredEntry]:
    try:
        with files.scandir(folder) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        return
