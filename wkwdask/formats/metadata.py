"""What a job changes in the metadata of a dataset or volume once its voxels are there: the edits of all formats by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.formats.registry import formats

if TYPE_CHECKING:
    from wkwdask.formats.format import MetadataEdit


def _edit_of(value: dict[str, Any]) -> type[MetadataEdit]:
    return {edit.kind: edit for one in formats() for edit in one.edits}[value["kind"]]


def edit_from_json(value: dict[str, Any]) -> MetadataEdit:
    """Read what a record keeps of an edit of any kind."""
    return _edit_of(value).from_json(value)


def folders_of(value: dict[str, Any]) -> dict[str, str]:
    """Pick the folders out of what a record keeps of an edit of any kind."""
    return {name: value[name] for name in _edit_of(value).folder_names if value[name] is not None}
