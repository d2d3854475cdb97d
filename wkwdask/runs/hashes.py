"""The files that a manifest speaks of, and their hashes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from wkwdask.errors import MissingError
from wkwdask.formats.manifest import MANIFEST_NAME, parse_manifest
from wkwdask.formats.record_paths import is_job_folder
from wkwdask.store import files
from wkwdask.store.locks import GUARD_NAME, is_lock
from wkwdask.store.paths import join

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE_NBYTES = 4 << 20


def hashed_files(root: str) -> Iterator[tuple[str, bool]]:
    """Go through the files below a folder that a manifest lists: all but itself, and what jobs hold for themselves."""
    return _walk(root, "", set())


def _walk(root: str, inside: str, seen: set[str]) -> Iterator[tuple[str, bool]]:
    real = files.realpath(join(root, inside))
    if real in seen:
        return
    seen.add(real)
    with files.scandir(real) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        path = join(inside, entry.name)
        if path == MANIFEST_NAME or _is_of_a_job(entry.name):
            continue
        if entry.is_dir():
            yield from _walk(root, path, seen)
        else:
            yield path, entry.is_file()


def _is_of_a_job(name: str) -> bool:
    return is_job_folder(name) or is_lock(name) or name == GUARD_NAME or name.endswith(files.TEMPORARY_SUFFIX)


def hash_file(path: str) -> tuple[str, int]:
    """Give the SHA-256 of a file (hexadecimal) and its size [bytes]; some megabytes are in memory."""
    state, nbytes = hashlib.sha256(), 0
    with files.open_stream(path) as file:
        while piece := file.read(_PIECE_NBYTES):
            state.update(piece)
            nbytes += len(piece)
    return state.hexdigest(), nbytes


def read_manifest(root: str) -> dict[str, str]:
    """Read the manifest of a folder."""
    path = f"{root}/{MANIFEST_NAME}"
    try:
        return parse_manifest(files.read_bytes(path).decode(errors="surrogateescape"), path)
    except FileNotFoundError:
        raise MissingError(f"{path}: not found: write it first") from None
