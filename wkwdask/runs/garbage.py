"""Levels that no document names any more, because a new one was written beside them.

Readers that opened the image before still read them, so they stay for a grace: in a folder until
the next job on the image, in a bucket for a week.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from wkwdask.formats.marks import DATASOURCE_NAME
from wkwdask.formats.registry import formats
from wkwdask.formats.roots import DOCUMENTS
from wkwdask.model.parsing import reading
from wkwdask.model.placement import job_in, plain_name
from wkwdask.store import by_path
from wkwdask.store.json_record import format_job_record, read_job_record
from wkwdask.store.paths import basename, dirname, is_bucket
from wkwdask.store.records import PROVENANCE_NAME
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wkwdask.formats.record_paths import RecordPaths

BUCKET_GRACE_SECONDS = 7 * 24 * 3600.0
_MAX_NBYTES = 1 << 28
_SWITCHED = ("info", "zarr.json", ".zattrs")
"""Documents of images that switch to levels of other names."""
_PREFIX, _SUFFIX = ".wkwdask-garbage-", ".json"


class Garbage(NamedTuple):
    """Record of garbage that is older than the grace."""

    record: str
    """Name of the record."""
    levels: tuple[str, ...]
    """Its levels that no document names."""
    is_complete: bool
    """Whether these are all levels in the record."""


def leave_garbage(paths: RecordPaths, job: str, folders: Sequence[str]) -> None:
    """Record folders that are to be removed after the grace; their age begins now."""
    if folders:
        record = {"folders": list(map(paths.format_path, folders))}
        store, name = store_at(paths.parent), f"{_PREFIX}{job}{_SUFFIX}"
        if store.folders is not None:  # of the same step, killed before
            by_path.remove_temporaries(paths.parent, name)
        store.put(name, format_job_record(record))


def remove_garbage(paths: RecordPaths, grace_seconds: float | None = None) -> list[str]:
    """Remove garbage of an image that is older than the grace, never what a document names; return
    the removed folders."""
    removed: list[str] = []
    for garbage in find_garbage(paths, grace_seconds):
        for folder in garbage.levels:
            delete_level(folder)
        removed += garbage.levels
        if garbage.is_complete:
            store_at(paths.parent).delete(garbage.record)
    return removed


def delete_level(folder: str) -> None:
    """Delete a level. In a bucket its records go first: where a shard is missing, readers of the
    level know by them that it is in place."""
    store = store_at(folder)
    if store.can.compares:
        found = {basename(fmt.level_folders.record_of(folder) or "") for fmt in formats()}
        store.delete(PROVENANCE_NAME, *found.intersection(DOCUMENTS))
    store.delete_folder()


def find_garbage(paths: RecordPaths, grace_seconds: float | None = None) -> Iterator[Garbage]:
    """Yield the garbage of an image that is older than the grace."""
    store, parent = store_at(paths.parent), paths.parent
    names = [name for name in store.names() if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    for name in past_grace(parent, names, grace_seconds):
        folders = _recorded(paths, name)
        unlisted = [folder for folder in folders if not is_listed(parent, folder)]
        # of a job that was killed before its document switched, and completed just now: the record
        # was written again before
        if past_grace(parent, [name], grace_seconds):
            levels = tuple(filter(_is_level, unlisted))
            yield Garbage(name, levels, bool(folders) and len(unlisted) == len(folders))


def past_grace(parent: str, names: list[str], grace_seconds: float | None) -> list[str]:
    """Return the names of files that are older than the grace, by default that of garbage."""
    if grace_seconds is None:
        grace_seconds = BUCKET_GRACE_SECONDS if is_bucket(parent) else 0.0
    store = store_at(parent)
    if not names or not grace_seconds:
        return names
    now, written = store.now(), [(name, store.written_at(name)) for name in names]
    return [name for name, time in written if time is not None and now - time >= grace_seconds]


def _recorded(paths: RecordPaths, name: str) -> list[str]:
    """Read a record of garbage; only images whose documents name their levels have any."""
    path = f"{paths.parent}/{name}"
    record = read_job_record(path)
    if record is None or not can_switch(paths.parent):
        return []
    with reading(path, "record"):
        return [paths.target(folder, name) for folder in record["folders"]]


def _is_level(folder: str) -> bool:
    """Check whether a folder holds a level and nothing else: a record of somebody else may name
    any."""
    store = store_at(folder)
    return (
        store.is_folder()
        and not store.link_target()
        and not basename(folder).startswith(".")
        and (
            # whose deletion was interrupted
            (store.can.compares and bool(job_in(folder)))
            or any(fmt.level_folders.is_level(folder) for fmt in formats())
        )
    )


def can_switch(parent: str) -> bool:
    """Check whether a folder is that of an image or of a layer of a dataset: their documents switch
    to levels of other names."""
    return any(map(store_at(parent).is_file, _SWITCHED)) or store_at(dirname(parent)).is_file(
        DATASOURCE_NAME
    )


def is_replaced(folder: str) -> bool:
    """Check whether a level in a bucket that a document has listed was replaced by another."""
    parent = dirname(folder)
    return is_bucket(folder) and can_switch(parent) and not is_listed(parent, folder)


def is_listed(parent: str, folder: str, name_of: Callable[[str], str] = basename) -> bool:
    """Check whether a document of an image, or of the container above it, names the folder of a
    level. A document that cannot be read may name anything."""
    name, listed = basename(folder), store_at(parent).names()
    likely = [each for each in DOCUMENTS if each in listed]

    def is_named(above: str, documents: Sequence[str]) -> bool:
        return _names_level(above, documents, lambda text: name_of(text) == name)

    # a listing may be old: all documents are read before the answer is no
    return is_named(parent, likely) or any(
        is_named(above, DOCUMENTS) for above in (parent, dirname(parent))
    )


def is_any_listed(parent: str, folder: str) -> bool:
    """Check whether a document names a level, which any job may have written."""
    return is_listed(parent, folder, lambda text: basename(plain_name(text)))


def _names_level(folder: str, documents: Sequence[str], is_level: Callable[[str], bool]) -> bool:
    """Check whether one of some documents in a folder names a level, or cannot be read."""
    for document in store_at(folder).read_whole(documents, _MAX_NBYTES):
        if document is None:
            continue
        try:
            if any(map(is_level, _texts(json.loads(document)))):
                return True
        except (ValueError, RecursionError):
            return True
    return False


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in the value of a JSON document."""
    if isinstance(value, str):
        yield value.rstrip("/")
    elif isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
