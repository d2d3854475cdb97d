"""What zarr-python opens: a path, a URL with its options, or files in the memory of this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wkwdask.store import files
from wkwdask.store.paths import is_memory, relpath
from wkwdask.store.store import remote_options


def zarr_place(location: str) -> tuple[Any, dict[str, Any]]:
    """Return the first argument of zarr's functions for a location, and their options."""
    if not is_memory(location):
        return location, remote_options(location)
    from zarr.storage import MemoryStore

    return MemoryStore(_Files(location), read_only=True), {}  # type: ignore[arg-type, unused-ignore]


class _Files(Mapping[str, Any]):
    """Files below a folder in memory as zarr's buffers by key."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __getitem__(self, key: str) -> Any:
        from zarr.core.buffer import default_buffer_prototype

        try:
            return default_buffer_prototype().buffer.from_bytes(files.read_bytes(f"{self._folder}/{key}"))
        except OSError:
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        return files.isfile(f"{self._folder}/{key}")

    def __iter__(self) -> Iterator[str]:
        return (relpath(f"{folder}/{name}", self._folder) for folder, _, names in files.walk(self._folder) for name in names)

    def __len__(self) -> int:
        return files.count_tree(self._folder)[0]
