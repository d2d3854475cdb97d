"""Publish record of a job: the mags that it publishes or removes, and the edit of the metadata.

A publication (``wkwdask.runs.job_folder``) writes the record once all mags are complete in the
job's folder, renames each mag to its final folder, edits the metadata, and removes the job's
folder. A removal edits the metadata first, and then moves the mags away. So the metadata never
lists a missing mag. A process that finds the record of a killed job repeats all steps: a step that
is done already has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.formats.edits import Edits
from wkwdask.formats.registry import formats
from wkwdask.model.parsing import reading
from wkwdask.store.json_record import format_job_record, read_job_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.record_paths import RecordPaths
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
    mags: tuple[tuple[str, str], ...]
    """Folder of each mag below the job's folder, and its final folder."""
    removed: tuple[str, ...] | None
    """Folders of mags to remove, None if the job publishes mags."""
    edit: MetadataEdit | None
    """Edit of the metadata."""


def format_publication(
    paths: RecordPaths,
    job: str,
    publication_id: str,
    mags: Sequence[tuple[str, str]],
    edit: MetadataEdit | None,
) -> bytes:
    """Return the record of mags to publish."""
    listed = [{"staged": staged, "folder": paths.format_path(folder)} for staged, folder in mags]
    return format_job_record(
        {
            "job": job,
            "publication": publication_id,
            "mags": listed,
            "edit": _edit_to_json(paths, edit),
        }
    )


def format_removal(paths: RecordPaths, folders: Sequence[str], edit: MetadataEdit | None) -> bytes:
    """Return the record of mags to remove."""
    return format_job_record(
        {_REMOVED: list(map(paths.format_path, folders)), "edit": _edit_to_json(paths, edit)}
    )


def read_publication(paths: RecordPaths) -> Publication | None:
    """Read the record of a job, None if it has none."""
    path = f"{paths.root}/{RECORD_NAME}"
    record = read_job_record(path)
    if record is None:
        return None
    with reading(path, "record"):
        removed = (
            tuple(paths.target(folder, RECORD_NAME) for folder in record[_REMOVED])
            if _REMOVED in record
            else None
        )
        mags = tuple(
            (paths.staged(mag["staged"], RECORD_NAME), paths.target(mag["folder"], RECORD_NAME))
            for mag in record.get("mags", ())
        )
        publication_id = "" if removed is not None else record["publication"]
        if not isinstance(publication_id, str):
            raise TypeError(f"publication is {publication_id!r}")
        return Publication(publication_id, mags, removed, _edit_from_json(paths, record["edit"]))


def published_folders(paths: RecordPaths) -> list[str]:
    """Return the final folders in a record, whether or not they lie inside the dataset; only for
    comparison."""
    path = f"{paths.root}/{RECORD_NAME}"
    record = read_job_record(path) or {}
    with reading(path, "record"):
        return [paths.parse_path(mag["folder"]) for mag in record.get("mags", ())]


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
