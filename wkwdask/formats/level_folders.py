"""Folders of levels, as a format stores them: what a job may replace or remove, and why not."""

from __future__ import annotations

import re
from dataclasses import dataclass

from wkwdask.store.store import store_at

# Records and temporary files of wkwdask, files that NFS keeps while a removed file is open, and
# files that desktops create in any folder.
IGNORED_NAMES = re.compile(r"\.wkwdask.*|\..*\.wkwdask-tmp|\.nfs.*|\.DS_Store|\._.*|Thumbs\.db")


@dataclass(frozen=True, slots=True)
class LevelFolders:
    """Folders of the levels of a format. The defaults are those of levels that are no folders."""

    content: str = "a level"
    """Content of such a folder, for errors: ``one array of toy``."""
    record: str = ""
    """File that describes a level, if each level has one."""
    entries: str = ""
    """Regular expression for the names of all other files and folders of a level."""

    def record_of(self, folder: str) -> str | None:
        """Return the file that marks a folder as a level, None if there is none; all files of the
        level are assumed to have its mode."""
        path = f"{folder}/{self.record}"
        return path if self.record and store_at(path).is_file() else None

    def is_level(self, folder: str) -> bool:
        """Return whether a folder contains one level and nothing else, so that a job may replace
        it."""
        if self.record_of(folder) is None:
            return False
        return all(
            re.fullmatch(self.entries, entry.name) or IGNORED_NAMES.fullmatch(entry.name)
            for entry in store_at(folder).entries()
            if entry.name != self.record
        )

    def why_not_replaceable(self, folder: str) -> str:
        """Return why a folder is not replaced, and what to do, for an error."""
        del folder
        return f"contains other files than {self.content} and is not replaced; move it away"

    def why_not_level(self, folder: str) -> str:
        """Return why a folder is not a level alone, for an error."""
        del folder
        return "is not a level of an image, or contains other files too"
