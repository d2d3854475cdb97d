"""What software leaves in the folders of images: temporary files, mags that were to replace others, what a repair set aside."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from wkwdask.model.faults import Fault
from wkwdask.store import files
from wkwdask.store.new_files import copy_file, move, publish_bytes
from wkwdask.store.paths import basename, dirname, join, split

if TYPE_CHECKING:
    from collections.abc import Iterator

QUARANTINE_NAME = ".wkwdask-quarantine"
_FOREIGN_TEMPORARY = re.compile(r".*\.wkw(_tmp|\.tmp)")  # of the reference library and of webknossos-wrap's Scala library
_LEFT_FOLDER = re.compile(r"\.rechunk-[0-9a-f-]{36}")  # webknossos builds a mag there that is to replace another


def leftovers_in(folder: str) -> Iterator[Fault]:
    """Find what software left right in the folder of an image or dataset; locks and folders of jobs are not looked at."""
    with files.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        fault = temporary_fault(entry.path)
        if fault is not None:
            yield fault
        elif _LEFT_FOLDER.fullmatch(entry.name) and entry.is_dir():
            yield Fault("leftover.folder", entry.path, f"a mag that webknossos builds, last written {describe_age(entry.path)} ago")
        elif entry.name == QUARANTINE_NAME:
            yield Fault("quarantine", entry.path, f"{sum(len(names) for _, _, names in files.walk(entry.path))} files")


def temporary_fault(path: str) -> Fault | None:
    """Tell whether a file is one that is being written, or was, by its name."""
    name = basename(path)
    if name.endswith(files.TEMPORARY_SUFFIX) or _FOREIGN_TEMPORARY.fullmatch(name):
        return Fault("leftover.temporary", path, f"last written {describe_age(path)} ago")
    return None


def is_external_temporary(path: str) -> bool:
    """Tell whether other software writes files of this name: that it has ended is known by its age alone."""
    return not path.endswith(files.TEMPORARY_SUFFIX)


def age_seconds(path: str) -> float:
    """Tell when a file was written last, or anything below a folder [seconds ago]; one that is gone is as old as can be."""
    latest = 0.0
    for folder, _, names in [("", [], [path]), *files.walk(path)]:
        for name in names:
            try:
                latest = max(latest, files.lstat(join(folder, name)).st_mtime)
            except FileNotFoundError:
                continue
    return time.time() - latest


def describe_age(path: str) -> str:
    """Write down how old a file is."""
    seconds = max(0, int(age_seconds(path)))
    for unit, length in (("days", 172800), ("hours", 7200), ("minutes", 120)):
        if seconds >= length:
            return f"{seconds // (length // 2)} {unit}"
    return f"{seconds} seconds"


def quarantine(path: str, level_folder: str, inside: str, why: str, *, keep: bool = False) -> str:
    """Move what is broken into the quarantine beside its level, under its name inside of that, with a text that says why."""
    parent, level = split(level_folder)
    place = free_path(f"{parent}/{QUARANTINE_NAME}/{level}/{inside}")
    files.makedirs(dirname(place))
    publish_bytes(f"{place}.txt", f"{path}\n{why}\n".encode())
    if not keep:
        move(path, place)
        return place
    try:
        files.link(path, place)
    except OSError:  # another disk, or no hard links
        copy_file(path, place)
    return place


def free_path(path: str) -> str:
    """Give a path that is not taken."""
    number, place = 0, path
    while files.lexists(place):
        number += 1
        place = f"{path}.{number}"
    return place
