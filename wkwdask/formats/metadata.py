"""What a job changes in the metadata of a dataset or volume once its voxels are there, whatever the format: one protocol, and its forms by name."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, Self

from wkwdask.formats.n5.metadata_edit import N5Edit
from wkwdask.formats.precomputed.metadata_edit import InfoEdit
from wkwdask.formats.webknossos.layer_edit import LayerEdit, MagRemoval
from wkwdask.formats.zarr.ngff_edit import NgffEdit


class MetadataEdit(Protocol):
    """A change of metadata, small and picklable; a publish record keeps it, so that whoever finishes a dead job can make it."""

    kind: ClassVar[str]
    """What a record calls this kind of edit."""
    folder_names: ClassVar[tuple[str, ...]]
    """Values of :meth:`to_json` that are folders."""

    def check_writable(self) -> None:
        """Make sure, before any work, that the metadata can be changed after it; raises PermissionError."""

    def check_current(self) -> None:
        """Make sure, before what was built appears, that nobody changed meanwhile what it counts on; raises ValueError."""

    def apply(self) -> None:
        """Make the change; making it again changes nothing."""

    def to_json(self) -> dict[str, Any]:
        """Give what a record keeps: all values, and ``kind``."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Read what a record keeps."""


_KINDS: dict[str, type[MetadataEdit]] = {edit.kind: edit for edit in (LayerEdit, MagRemoval, InfoEdit, N5Edit, NgffEdit)}


def edit_from_json(value: dict[str, Any]) -> MetadataEdit:
    """Read what a record keeps of an edit of any kind."""
    return _KINDS[value["kind"]].from_json(value)


def folders_of(value: dict[str, Any]) -> dict[str, str]:
    """Pick the folders out of what a record keeps of an edit of any kind."""
    return {name: value[name] for name in _KINDS[value["kind"]].folder_names if value[name] is not None}
