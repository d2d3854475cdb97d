"""What a job changes in the metadata of a dataset or volume once its voxels are there, whatever the format: one protocol, and its forms by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from wkwdask.storage.layer_edit import LayerEdit, MagRemoval
from wkwdask.storage.n5_edit import N5Edit
from wkwdask.storage.ngff_edit import NgffEdit
from wkwdask.storage.precomputed_edit import InfoEdit

if TYPE_CHECKING:
    from collections.abc import Callable


class MetadataEdit(Protocol):
    """A change of metadata, small and picklable; a publish record keeps it, so that whoever finishes a dead job can make it."""

    kind: ClassVar[str]
    """What a record calls this kind of edit."""

    def check_writable(self) -> None:
        """Make sure, before any work, that the metadata can be changed after it; raises PermissionError."""

    def check_current(self) -> None:
        """Make sure, before what was built appears, that nobody changed meanwhile what it counts on; raises ValueError."""

    def apply(self) -> None:
        """Make the change; making it again changes nothing."""

    def to_json(self) -> dict[str, Any]:
        """Give what a record keeps: all values, and ``kind``."""


_FROM_JSON: dict[str, Callable[[dict[str, Any]], MetadataEdit]] = {
    LayerEdit.kind: LayerEdit.from_json,
    MagRemoval.kind: MagRemoval.from_json,
    InfoEdit.kind: InfoEdit.from_json,
    N5Edit.kind: N5Edit.from_json,
    NgffEdit.kind: NgffEdit.from_json,
}


def edit_from_json(value: dict[str, Any]) -> MetadataEdit:
    """Read what a record keeps of an edit of any kind."""
    return _FROM_JSON[value["kind"]](value)
