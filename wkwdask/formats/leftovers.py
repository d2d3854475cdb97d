"""Leftovers in the folders of images: temporary files, half-built mags of webknossos, and the
quarantine of repairs."""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING

from wkwdask.formats.roots import Root
from wkwdask.model.faults import Fault
from wkwdask.model.store import Conflict
from wkwdask.store import by_path
from wkwdask.store.leases import check_fence
from wkwdask.store.new_files import copy_file, is_equal, move
from wkwdask.store.paths import TEMPORARY_SUFFIX, basename, dirname, is_bucket, split
from wkwdask.store.store import folders_of, store_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.model.store import Store

QUARANTINE_NAME = ".wkwdask-quarantine"
# Temporary names of other software. n5-java and z5 have none: they lock or write the file itself,
# and a killed process leaves it empty or cut off.
_OTHER_TEMPORARY = re.compile(
    r".*\.wkw(_tmp|\.tmp)"  # the reference library and webknossos-wrap's Scala code
    r"|.*\.[0-9a-f]{32}\.partial"  # zarr-python 2 and 3: NAME.UUID.partial
    r"|.*\.__lock"  # tensorstore, file driver: NAME.__lock is written, then renamed
    # zarrs, atomic writes: NAME.tmp
    r"|((zarr|attributes)\.json|\.z(array|attrs|group|metadata)|[c\d.]*\d)\.tmp"
)
# where webknossos builds a mag before it replaces another
_STAGED_FOLDER = re.compile(r"\.rechunk-[0-9a-f-]{36}")


def leftovers_in(folder: str) -> Iterator[Fault]:
    """Yield a fault for each leftover directly in the folder of an image or dataset; locks and job
    folders are not included."""
    for entry in sorted(store_at(folder).entries(), key=lambda entry: entry.name):
        fault = temporary_fault(entry.path)
        if fault is not None:
            yield fault
        elif _STAGED_FOLDER.fullmatch(entry.name) and entry.is_dir():
            yield Fault(
                "leftover.folder",
                entry.path,
                f"a mag that webknossos builds, last written {describe_age(entry.path)} ago",
            )
        elif entry.name == QUARANTINE_NAME:
            yield Fault(
                "quarantine",
                entry.path,
                f"{sum(len(names) for _, _, names in store_at(entry.path).walk())} files",
            )


def temporary_fault(path: str) -> Fault | None:
    """Return a fault if the name of a file is that of a temporary file, else None."""
    name = basename(path)
    if name.endswith(TEMPORARY_SUFFIX) or _OTHER_TEMPORARY.fullmatch(name):
        return Fault("leftover.temporary", path, f"last written {describe_age(path)} ago")
    return None


def is_external_temporary(path: str) -> bool:
    """Return whether a temporary file is named by other software: then only its age shows that no
    process writes it."""
    return not path.endswith(TEMPORARY_SUFFIX)


def age_seconds(path: str) -> float:
    """Return the seconds since the last write to a file, or to any file below a folder; without
    files, the seconds since 1970. Never negative."""
    latest = 0.0
    above, own = split(path)
    for folder, _, names in [(above, [], [own]), *store_at(path).walk()]:
        store = store_at(folder)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                latest = max(latest, _written_at(store, name))
    return max(0.0, time.time() - latest)


def _written_at(store: Store, name: str) -> float:
    if is_bucket(store.url):
        return store.written_at(name) or 0.0
    return store.status(name, follow_symlinks=False).st_mtime


def describe_age(path: str) -> str:
    """Return the age of a file or folder as text."""
    seconds = max(0, int(age_seconds(path)))
    for unit, length in (("days", 172800), ("hours", 7200), ("minutes", 120)):
        if seconds >= length:
            return f"{seconds // (length // 2)} {unit}"
    return f"{seconds} seconds"


def quarantine(
    path: str, level_folder: str, relative_path: str, why: str, *, keep: bool = False
) -> str:
    """Move a broken file to the quarantine beside its level, with a text file that states the
    reason; with ``keep``, link or copy it instead."""
    parent, level = split(level_folder)
    quarantined = f"{parent}/{QUARANTINE_NAME}/{level}"
    if is_bucket(path):
        return _quarantine_object(path, quarantined, relative_path, why, keep=keep)
    place = free_path(f"{quarantined}/{relative_path}")
    Root(parent, noun="folder").check(
        place, advice="and nothing is set aside there; remove the link"
    )
    folder, name = split(place)
    store = store_at(folder)
    store.make()
    store.put(f"{name}.txt", f"{path}\n{why}\n".encode())
    if not keep:
        move(path, place)
        return place
    try:
        folders_of(path).link(path, place)
    except OSError:  # another disk, or no hard links
        copy_file(path, place)
    return place


def can_be_quarantined(path: str) -> bool:
    """Check whether a file is on a file system, or its server copies objects of its size."""
    if not is_bucket(path):
        return True
    folder, name = split(path)
    (state,) = store_at(folder).states([name])
    return state is None or not by_path.is_too_large(path, state.nbytes)


def _quarantine_object(
    path: str, quarantined: str, relative_path: str, why: str, *, keep: bool
) -> str:
    """Let the server copy an object to a folder named by its state, so that a repeated call finds
    the copy; then delete the object if it is still the same, unless ``keep``."""
    above, name = split(path)
    seen = store_at(above).snapshot("")
    (state,) = seen.states([name])
    if state is None:
        raise Conflict(path)
    place = f"{quarantined}/{state.mtime_ns:016x}/{relative_path}"
    store_at(dirname(place)).put(f"{name}.txt", f"{path}\n{why}\n".encode())
    by_path.copy_objects(above, dirname(place), [name])
    if not keep:
        check_fence()
        seen.delete(name)
    return place


def remove_quarantined_temporaries(level_folder: str) -> None:
    """Remove what killed repairs of a level left of files in the quarantine; the caller holds the
    lock of the level."""
    parent, level = split(level_folder)
    if not store_at(parent).link_target(QUARANTINE_NAME):
        for folder, _, names in store_at(parent).walk(f"{QUARANTINE_NAME}/{level}"):
            store_at(folder).delete(*(name for name in names if name.endswith(TEMPORARY_SUFFIX)))


def withdraw_equal(path: str, place: str) -> bool:
    """Remove the copy of a file from the quarantine if the file has not changed since; return
    whether it was removed."""
    if not store_at(path).is_file() or not store_at(place).is_file() or not _is_same(path, place):
        return False
    folder, name = split(place)
    store_at(folder).delete(name, f"{name}.txt")
    with contextlib.suppress(OSError):  # not empty
        while QUARANTINE_NAME in folder and not is_bucket(folder):
            folders_of(folder).rmdir(folder)
            folder = dirname(folder)
    return True


def _is_same(path: str, place: str) -> bool:
    if is_bucket(path):
        return by_path.have_equal_content(path, place)
    return folders_of(path).samefile(path, place) or is_equal(path, place)


def free_path(path: str) -> str:
    """Return the path, or the first of ``path.1``, ``path.2``, ... that does not exist."""
    number, place = 0, path
    while store_at(place).is_taken():
        number += 1
        place = f"{path}.{number}"
    return place
