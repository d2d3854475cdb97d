"""The folder of one mag: ``header.wkw``, data files ``z{Z}/y{Y}/x{X}.wkw``, and unexpected
names."""

from __future__ import annotations

import contextlib
import re
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from wkwdask.errors import MissingError, UnsupportedError
from wkwdask.formats.leftovers import QUARANTINE_NAME, temporary_fault
from wkwdask.formats.level_folders import LevelFolders
from wkwdask.formats.marks import DATASOURCE_NAME, HEADER_NAME, is_view
from wkwdask.formats.wkw.header import HEADER_NBYTES, WkwHeader, parse_header
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.model.faults import Fault
from wkwdask.model.states import FILE_RECORD_NAME
from wkwdask.store.records import PROGRESS_NAME, PROVENANCE_NAME, read_box
from wkwdask.store.store import numbered, store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.array_types import IntArray
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.store import OpenFile, Store, StoredEntry

_Z_FOLDER, _Y_FOLDER, _X_FILE = re.compile(r"z\d+"), re.compile(r"y\d+"), re.compile(r"x\d+\.wkw")
# Our records and temporary files, temporary files of the reference library and of the Scala
# library, files removed while open on NFS, and desktop files.
_LEFTOVER = re.compile(
    r"\.wkwdask.*|\..*\.wkwdask-tmp|x\d+\.wkw_tmp|x\d+\.wkw\.tmp|\.nfs.*|\.DS_Store|\._.*|Thumbs\.db"
)


def file_path(folder: str, index: Vec3) -> str:
    """Return the path of a data file, given its index along x, y, z [files]."""
    return f"{folder}/{file_name(index)}"


def file_name(index: Vec3) -> str:
    """Return the path of a data file inside its mag."""
    return f"z{index[2]}/y{index[1]}/x{index[0]}.wkw"


_HEAD_NBYTES = 64 << 10  # that are requested of a remote file when it is opened
_MAX_HEADER_NBYTES = 64 << 10  # no bytes belong behind the header, but some are tolerated


def read_header(folder: str) -> WkwHeader:
    path = f"{folder}/{HEADER_NAME}"
    raw = store_at(folder).read_document(HEADER_NAME, _MAX_HEADER_NBYTES)
    if raw is None:
        raise MissingError(f"{path}: not found: no WKW mag here")
    return parse_header(raw[:HEADER_NBYTES], path, is_data_file=False)


def open_data_file(store: Store, index: Vec3) -> OpenFile:
    """Open a data file; raises MissingError if it is absent."""
    (file,) = cast("Sequence[OpenFile | None]", store.open_heads([file_name(index)], _HEAD_NBYTES))
    if file is None:
        raise MissingError(f"{store.path_of(file_name(index))}: not found")
    return file


def list_files(folder: str) -> Iterator[Vec3]:
    """Yield the index of each data file of a mag, in no particular order."""
    for z, _ in numbered(store_at(folder), "z"):
        for y, _ in numbered(store_at(f"{folder}/z{z}"), "y"):
            for x, _ in numbered(store_at(f"{folder}/z{z}/y{y}"), "x", ".wkw"):
                yield x, y, z


def count_files(folder: str, until: float) -> tuple[int, int, bool]:
    """Count data files and their bytes until a deadline; the flag says whether the count is
    complete."""
    store, count, nbytes = store_at(folder), 0, 0
    for index in list_files(folder):
        if time.monotonic() > until:
            return count, nbytes, False
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            nbytes += store.status(file_name(index)).st_size
            count += 1
    return count, nbytes, True


def is_mag(folder: str) -> bool:
    """Return whether a folder contains one mag and nothing else (header, data files, records,
    leftovers), so that it may be replaced."""
    return store_at(folder).is_file(HEADER_NAME) and next(_strays(folder), None) is None


def stray_in(folder: str) -> str:
    """Return the path of a file that is not part of a mag, in parentheses for an error, or an empty
    text."""
    stray = next(_strays(folder), None)
    return "" if stray is None else f" ({stray})"


def _strays(folder: str) -> Iterator[str]:
    """Yield paths that are neither part of a mag nor known leftovers of software."""
    of_view = ("zarr.json",) if is_view(f"{folder}/zarr.json") else ()
    yield from _unexpected(folder, _Z_FOLDER, (HEADER_NAME, *of_view))
    for _, z_folder in _numbered_folders(folder, "z"):
        yield from _unexpected(z_folder, _Y_FOLDER)
        for _, y_folder in _numbered_folders(z_folder, "y"):
            yield from _unexpected(y_folder, _X_FILE)


def _numbered_folders(folder: str, prefix: str) -> Iterator[tuple[int, str]]:
    """Yield numbered folders except symbolic links: their targets are never replaced."""
    store = store_at(folder)
    return (
        (number, store.path_of(name))
        for number, name in numbered(store, prefix)
        if not store.link_target(name)
    )


def _unexpected(
    folder: str, pattern: re.Pattern[str], names: tuple[str, ...] = ()
) -> Iterator[str]:
    for entry in store_at(folder).entries():
        is_right_kind = entry.is_symlink() or entry.is_dir() is (pattern is not _X_FILE)
        expected = entry.name in names or (
            pattern.fullmatch(entry.name) is not None and is_right_kind
        )
        if not expected and not _LEFTOVER.fullmatch(entry.name):
            yield entry.path


def mag_extent(folder: str, header: WkwHeader, mag: Mag) -> BoundingBox:
    """Return the box of a mag that no dataset lists: the box of its record, extended to files
    outside of it, or else the extent of its files."""
    recorded = read_box(folder, mag)
    try:
        extent = files_extent(folder, header, mag)
    except UnsupportedError:  # a server without listings
        if recorded is None:
            what = "a web server cannot be listed, so the size of this mag is unknown"
            raise UnsupportedError(
                f"{folder}: {what}; it needs a {DATASOURCE_NAME} in the dataset above it, which "
                "states the bounding box"
            ) from None
        return recorded
    if recorded is None:
        return extent
    return (
        recorded
        if recorded.aligned((header.file_len_vx,) * 3).contains(extent)
        else recorded.union(extent)
    )


def files_extent(folder: str, header: WkwHeader, mag: Mag) -> BoundingBox:
    """Return the extent of the data files of a mag."""
    low, high = [0, 0, 0], [0, 0, 0]
    for n, index in enumerate(list_files(folder)):
        low = [min(a, i) for a, i in zip(low, index, strict=True)] if n else list(index)
        high = [max(b, i + 1) for b, i in zip(high, index, strict=True)]
    edge = header.file_len_vx
    return BoundingBox.from_corners([a * edge for a in low], [b * edge for b in high], mag)


_KNOWN = (HEADER_NAME, PROVENANCE_NAME, FILE_RECORD_NAME, PROGRESS_NAME)
_NAMES = (
    re.compile(r"z(0|[1-9]\d*)", re.ASCII),
    re.compile(r"y(0|[1-9]\d*)", re.ASCII),
    re.compile(r"x(0|[1-9]\d*)\.wkw", re.ASCII),
)
_LOOKS_LIKE_DATA = re.compile(r"[xyz]\s*[-+]?\d+(\.wkw)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Listing:
    """Contents of the folder of a mag."""

    shards: IntArray
    """Index of each data file along x, y, z, sorted by z, y, x; shape (n, 3)."""
    faults: tuple[Fault, ...]
    """Faults of unexpected names."""


def list_mag(folder: str) -> Listing:
    """List the files of a mag."""
    faults: list[Fault] = []
    shards = list(_walk(folder, 0, (), faults)) if store_at(folder).is_folder() else []
    indices = np.array(shards, np.int64).reshape(-1, 3)
    return Listing(indices[np.lexsort(indices.T)], tuple(faults))


def _walk(folder: str, depth: int, above: tuple[int, ...], faults: list[Fault]) -> Iterator[Vec3]:
    """Walk one folder of a mag: the mag itself (depth 0), ``z{Z}`` (1) or ``y{Y}`` (2)."""
    try:
        entries = sorted(store_at(folder).scandir(), key=lambda entry: entry.name)
    except OSError as error:
        faults.append(Fault("folder.unreadable", folder, error.strerror or str(error)))
        return
    for entry in entries:
        match = _NAMES[depth].fullmatch(entry.name)
        if match is None:
            fault = _name_fault(entry, depth)
            if fault is not None:
                faults.append(fault)
        elif depth == 2:
            yield int(match[1]), above[1], above[0]
        else:
            fault = _folder_fault(entry.path)
            if fault is not None:
                faults.append(fault)
            else:
                yield from _walk(entry.path, depth + 1, (*above, int(match[1])), faults)


def _folder_fault(path: str) -> Fault | None:
    try:
        mode = store_at(path).status().st_mode
    except OSError:
        return Fault(
            "folder.dangling",
            path,
            f"a symbolic link to {store_at(path).link_target()}"
            if store_at(path).link_target()
            else "nothing",
            "a folder",
        )
    return None if stat.S_ISDIR(mode) else Fault("folder.no_folder", path, "a file", "a folder")


def _name_fault(entry: StoredEntry, depth: int) -> Fault | None:
    """Return the fault of an unexpected name, None for a record or a Zarr view."""
    if depth == 0 and (entry.name in _KNOWN or (entry.name == "zarr.json" and is_view(entry.path))):
        return None
    if depth == 0 and entry.name == QUARANTINE_NAME:
        count = sum(len(names) for _, _, names in store_at(entry.path).walk())
        return Fault("quarantine", entry.path, f"{count} files")
    leftover = temporary_fault(entry.path)
    if leftover is not None:
        return leftover
    if _LOOKS_LIKE_DATA.fullmatch(entry.name):
        return Fault(
            "name.unread",
            entry.path,
            entry.name,
            ("z0, z1, ...", "y0, y1, ...", "x0.wkw, x1.wkw, ...")[depth],
        )
    return Fault("name.stray", entry.path, "a folder" if entry.is_dir() else "a file")


class MagFolders(LevelFolders):
    """Folders of mags: numbered folders and files, and a header."""

    def record_of(self, folder: str) -> str | None:
        path = f"{folder}/{self.record}"
        return path if store_at(path).exists() else None

    def is_level(self, folder: str) -> bool:
        return is_mag(folder)

    def why_not_replaceable(self, folder: str) -> str:
        return (
            f"contains other files than one mag{stray_in(folder)} and is not replaced; name the "
            "folder of a mag, such as DATASET/LAYER/1"
        )

    def why_not_level(self, folder: str) -> str:
        return f"is not a mag, or contains other files too{stray_in(folder)}"


MAG_FOLDERS = MagFolders("one mag", HEADER_NAME)
