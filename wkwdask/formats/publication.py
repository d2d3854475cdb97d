"""Publish record of a job: the mags that it publishes or removes, and the edit of the metadata.

In a folder it is a file of the job. In a bucket it is a part of the lease of the job: see
``wkwdask.store.leases``.

A publication (``wkwdask.runs.job_folder``) writes the record once all mags are complete in the
job's folder, renames each mag to its final folder, edits the metadata, and removes the job's
folder. A removal edits the metadata first, and then moves the mags away. So the metadata never
lists a missing mag. A process that finds the record of a killed job repeats all steps: a step that
is done already has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, LockedError
from wkwdask.formats.edits import Edits
from wkwdask.formats.record_paths import OWNER_NAME, RecordPaths, job_of
from wkwdask.formats.registry import formats
from wkwdask.model.parsing import reading
from wkwdask.model.placement import job_in, plain_name
from wkwdask.store.json_record import format_job_record, read_job_record
from wkwdask.store.leases import COMMIT, held, read_lease
from wkwdask.store.records import read_provenance
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.model.metadata_edit import MetadataEdit


def edit_kinds() -> dict[str, type[MetadataEdit]]:
    """Return the metadata edits of all formats by their kinds."""
    return {edit.kind: edit for fmt in formats() for edit in fmt.edits}


RECORD_NAME = "publish.json"  # in the job's folder
_REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Publication:
    """Content of a publish record."""

    publication_id: str
    """Id that the provenance of each mag has once it is published."""
    mags: tuple[tuple[str | None, str], ...]
    """Folder of each mag below the job's folder, and its final folder; None for a mag that was
    written where it stays."""
    removed: tuple[str, ...] | None
    """Folders of mags to remove, None if the job publishes mags."""
    edit: MetadataEdit | None
    """Edit of the metadata."""
    replaced: tuple[str, ...] = ()
    """Folders of levels that the edited metadata do not name any more."""
    plain: tuple[str, ...] = ()
    """Final paths of results that are no levels and keep no records."""
    copied: tuple[tuple[str, int], ...] = ()
    """Final folders and numbers of files of levels in a bucket that are copied there from where the
    job has written them."""

    def is_of(self, folder: str) -> bool:
        """Check whether a folder is a result of this publication."""
        return bool(read_provenance(folder).get("publication") == self.publication_id)


def format_publication(
    paths: RecordPaths,
    job: str,
    publication_id: str,
    mags: Sequence[tuple[str | None, str, int | None]],
    edit: MetadataEdit | None,
    replaced: Sequence[str] = (),
    plain: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the record of mags to publish."""
    listed = [
        {"staged": staged, "folder": paths.format_path(folder), "files": num_files}
        for staged, folder, num_files in mags
    ]
    return {
        "job": job,
        "publication": publication_id,
        "mags": listed,
        "replaced": list(map(paths.format_path, replaced)),
        "plain": list(map(paths.format_path, plain)),
        "edit": _edit_to_json(paths, edit),
    }


def format_removal(
    paths: RecordPaths, folders: Sequence[str], edit: MetadataEdit | None
) -> dict[str, Any]:
    """Return the record of mags to remove."""
    return {_REMOVED: list(map(paths.format_path, folders)), "edit": _edit_to_json(paths, edit)}


def write_record(root: str, record: dict[str, Any]) -> None:
    """Write the publish record of a job, which commits the job to it."""
    store = store_at(root)
    if not store.can.compares:
        store.put(RECORD_NAME, format_job_record(record))
        return
    lease = held(store.path_of(OWNER_NAME))
    if lease is None:
        raise LockedError(f"{root}: another process has taken this job over; this one ends")
    lease.renew(**{COMMIT: record})


def has_record(root: str) -> bool:
    """Check whether a job has a publish record."""
    store = store_at(root)
    if store.can.compares:
        return _read_record(root) is not None
    return store.exists(RECORD_NAME)


def _read_record(root: str) -> dict[str, Any] | None:
    store = store_at(root)
    if not store.can.compares:
        return read_job_record(store.path_of(RECORD_NAME))
    lease = read_lease(store.path_of(OWNER_NAME))
    record = None if lease is None else lease.get(COMMIT)
    if not isinstance(record, dict | None):
        raise CorruptError(f"{store.path_of(OWNER_NAME)}: {COMMIT}: expected an object")
    return record


def read_publication(paths: RecordPaths) -> Publication | None:
    """Read the record of a job, None if it has none."""
    path = f"{paths.root}/{RECORD_NAME}"
    record = _read_record(paths.root)
    if record is None:
        return None
    with reading(path, "record"):
        removed = (
            tuple(paths.target(folder, RECORD_NAME) for folder in record[_REMOVED])
            if _REMOVED in record
            else None
        )
        mags = tuple(
            (
                None if mag["staged"] is None else paths.staged(mag["staged"], RECORD_NAME),
                paths.target(mag["folder"], RECORD_NAME),
            )
            for mag in record.get("mags", ())
        )
        publication_id = "" if removed is not None else record["publication"]
        if not isinstance(publication_id, str):
            raise TypeError(f"publication is {publication_id!r}")
        replaced, plain = (
            tuple(paths.target(folder, RECORD_NAME) for folder in record.get(name, ()))
            for name in ("replaced", "plain")
        )
        copied = tuple(
            (paths.target(mag["folder"], RECORD_NAME), int(mag["files"]))
            for mag in record.get("mags", ())
            if mag.get("files") is not None
        )
        edit = _edit_from_json(paths, record["edit"])
        return Publication(publication_id, mags, removed, edit, replaced, plain, copied)


def published_folders(paths: RecordPaths) -> list[str]:
    """Return the final folders in a record, whether or not they lie inside the dataset; only for
    comparison."""
    path = f"{paths.root}/{RECORD_NAME}"
    record = _read_record(paths.root) or {}
    with reading(path, "record"):
        folders = [paths.parse_path(mag["folder"]) for mag in record.get("mags", ())]
    # those that contain the job are known, and locked, by their plain names
    job = job_of(paths.root)
    return [plain_name(folder) if job_in(folder) == job else folder for folder in folders]


def replaces_folder(root: str, folder: str) -> bool:
    """Check whether the publication of a job replaces the files of a level; only for
    comparison."""
    paths, record = RecordPaths(root), _read_record(root) or {}
    with reading(f"{root}/{RECORD_NAME}", "record"):
        replaced = map(paths.parse_path, record.get("replaced", ()))
        return folder in (*published_folders(paths), *replaced)


def _edit_to_json(paths: RecordPaths, edit: MetadataEdit | None) -> dict[str, Any] | None:
    if edit is None:
        return None
    if isinstance(edit, Edits):
        return {"kind": edit.kind, "edits": [_edit_to_json(paths, each) for each in edit.edits]}
    return {
        **edit.to_json(),
        **{name: paths.format_path(folder) for name, folder in edit.folders().items()},
    }


def _edit_from_json(paths: RecordPaths, value: dict[str, Any] | None) -> MetadataEdit | None:
    if value is None:
        return None
    if value["kind"] == Edits.kind:
        return Edits.from_json({"edits": [_edit_from_json(paths, each) for each in value["edits"]]})
    kind = edit_kinds()[value["kind"]]
    folders = {
        name: paths.document_folder(value[name], RECORD_NAME)
        for name in kind.folder_names
        if value[name] is not None
    }
    return kind.from_json({**value, **folders})
