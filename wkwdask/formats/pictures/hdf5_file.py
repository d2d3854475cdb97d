"""Open datasets in HDF5 files, which may lead to other files: by links, by external storage, by virtual datasets.

A file from elsewhere can name any file of whoever reads it. What lies outside of its folder is refused unless the caller allows it, before it is opened.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any

from wkwdask.errors import CorruptError, MissingError, TruncatedError, UnsupportedError
from wkwdask.model.extras import need
from wkwdask.model.parsing import reading
from wkwdask.store import files
from wkwdask.store.paths import abspath, dirname, is_below, join

_MOST_HOPS = 64
_PATTERN = re.compile(r"%\d*b")
"""Stands for the numbers of files or datasets in a virtual dataset without end."""


def open_hdf5(path: str, extra: str = "convert", **options: Any) -> Any:
    """Open an HDF5 file for reading."""
    files.check_regular(path)
    h5py = need("h5py", path, extra)
    with reading(path, "HDF5 file"):
        return h5py.File(files.realpath(path), "r", **options)  # what it leads to lies beside the file, not beside a link to it


def find_item(file: Any, key: str, *, allow_external: bool = False) -> Any:
    """Follow a name in an HDF5 file, through links of all kinds."""
    path = abspath(file.filename)
    with reading(f"{path}:/{key.lstrip('/')}", "HDF5 dataset"):
        return _Reach(dirname(files.realpath(path)), is_anywhere=allow_external).item(file, key, path)


class _Reach:
    """Other files that one may lead to: those in its folder, or all."""

    def __init__(self, folder: str, *, is_anywhere: bool) -> None:
        self._folder, self._is_anywhere = folder, is_anywhere
        self._entered: set[tuple[str, str]] = set()

    def item(self, file: Any, key: str, path: str, hops: int = 0) -> Any:
        """Follow a name, link by link, and check what it leads to."""
        h5py = need("h5py", path)
        found, names = file, deque(key.split("/"))
        while names:
            name = names.popleft()
            if name in ("", "."):
                continue
            link = found.get(name, getlink=True) if isinstance(found, h5py.Group) else None
            if link is None:
                return None
            if isinstance(link, h5py.HardLink):
                found = found[name]
                continue
            hops += 1
            if hops > _MOST_HOPS:
                raise CorruptError(f"{path}:/{key.lstrip('/')}: leads through more than {_MOST_HOPS} links")
            if isinstance(link, h5py.ExternalLink):
                other = self._allowed(path, join(dirname(path), link.filename), f"the link {name}")
                return self.item(open_hdf5(other), "/".join((link.path, *names)), other, hops) if files.exists(other) else None
            if link.path.startswith("/"):
                found = file
            names.extendleft(reversed(link.path.split("/")))
        if isinstance(found, h5py.Dataset):
            self._check_external(found, path)
            self._check_virtual(found, path)
        return found

    def _allowed(self, path: str, other: str, what: str) -> str:
        real = files.realpath(other)
        if not self._is_anywhere and not is_below(real, self._folder):
            raise UnsupportedError(
                f"{path}: {what} leads to {real}, outside of the folder of the file; put it there, or, where you trust it, convert with allow_external=True"
            )
        return other

    def _check_external(self, data: Any, path: str) -> None:
        """Check the plain files that hold the bytes of a dataset; their names count from the current folder."""
        left = data.size * data.dtype.itemsize
        for name, offset, most in data.external or ():
            other = self._allowed(path, abspath(name), f"external storage of {data.name}")
            files.check_regular(other)
            needed, stored = min(left, most), max(0, files.getsize(other) - offset)
            if stored < needed:
                raise TruncatedError(f"{other}: has {stored} bytes from byte {offset} on, and {path}:{data.name} needs {needed}")
            left -= needed

    def _check_virtual(self, data: Any, path: str) -> None:
        """Check the datasets of which a virtual one is made."""
        sources = {(source.file_name, source.dset_name) for source in data.virtual_sources()} if data.is_virtual else set()
        for file_name, key in sorted(sources):
            if _PATTERN.search(file_name + key):
                if self._is_anywhere:
                    continue
                raise UnsupportedError(f"{path}:{data.name}: is made of all files and datasets {file_name}:{key}, which allow_external=True reads")
            other = path if file_name == "." else self._allowed(path, join(dirname(path), file_name), f"the virtual dataset {data.name}")
            place = (files.realpath(other), key)
            if place in self._entered:
                raise CorruptError(f"{path}:{data.name}: is made of itself")
            self._entered.add(place)
            with open_hdf5(other) as file:
                if self.item(file, key, other) is None:
                    raise MissingError(f"{other}: no dataset {key}, of which {path}:{data.name} is made")
            self._entered.discard(place)
