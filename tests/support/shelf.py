"""A remote place inside this process: ``shelf://`` is read through fsspec, as buckets are."""

from __future__ import annotations

from typing import ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Shelf(MemoryFileSystem):
    """fsspec's files in memory under another name."""

    protocol = "shelf"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("shelf://", "memory://"))


def empty_shelf():
    """Return an empty shelf."""
    # pytest may import this module twice
    fsspec.register_implementation("shelf", Shelf, clobber=True)
    Shelf.store.clear()
    Shelf.pseudo_dirs[:] = [""]
    return Shelf()
