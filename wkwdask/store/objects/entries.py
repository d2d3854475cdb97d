"""Names and sizes of remote files."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class RemoteEntry:
    """Name in a remote folder, see :class:`wkwdask.model.store.StoredEntry`."""

    name: str
    path: str
    nbytes: int | None
    """Size of a file, None for a folder."""

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self.nbytes is None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self.nbytes is not None

    def is_symlink(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return remote_status(self.nbytes)


def remote_status(nbytes: int | None) -> os.stat_result:
    """Return the status of a file of some size, or of a folder (None)."""
    mode = stat.S_IFDIR | 0o555 if nbytes is None else stat.S_IFREG | 0o444
    return os.stat_result(
        (mode, 0, 0, 1, 0, 0, nbytes or 0, 0, 0, 0),
        dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), 0),
    )


class RemoteListing:
    """Files below a URL: sizes by name, and entries by folder."""

    def __init__(self, url: str, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.folders: dict[str, list[RemoteEntry]] = {"": []}
        for name, nbytes in sizes.items():
            self._add(url, name, nbytes)

    def _add(self, url: str, name: str, nbytes: int | None) -> None:
        folder, _, last = name.rpartition("/")
        if folder not in self.folders:
            self.folders[folder] = []
            self._add(url, folder, None)
        self.folders[folder].append(RemoteEntry(last, f"{url}/{name}", nbytes))
