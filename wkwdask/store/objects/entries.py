"""Names and sizes of remote files."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wkwdask.model.store import FileState


@dataclass(frozen=True, slots=True)
class RemoteEntry:
    """Name in a remote folder, see :class:`wkwdask.model.store.StoredEntry`."""

    name: str
    path: str
    nbytes: int | None
    """Size of a file, None for a folder."""
    stamp: int = 0
    """Number made of the state of an object, instead of a modification time."""

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self.nbytes is None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self.nbytes is not None

    def is_symlink(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return remote_status(self.nbytes, self.stamp)


def remote_status(nbytes: int | None, stamp: int = 0) -> os.stat_result:
    """Return the status of a file of some size, or of a folder (None)."""
    mode = stat.S_IFDIR | 0o555 if nbytes is None else stat.S_IFREG | 0o444
    return os.stat_result(
        (mode, 0, 0, 1, 0, 0, nbytes or 0, 0, 0, 0),
        dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), stamp),
    )


class RemoteListing:
    """Files below a URL: states by name, without stamps where these are unknown, and entries by
    folder."""

    def __init__(self, url: str, states: Mapping[str, FileState]) -> None:
        self.states = states
        self.folders: dict[str, list[RemoteEntry]] = {"": []}
        for name, state in states.items():
            self._add(url, name, *state)

    def _add(self, url: str, name: str, nbytes: int | None, stamp: int = 0) -> None:
        folder, _, last = name.rpartition("/")
        if folder not in self.folders:
            self.folders[folder] = []
            self._add(url, folder, None)
        self.folders[folder].append(RemoteEntry(last, f"{url}/{name}", nbytes, stamp))
