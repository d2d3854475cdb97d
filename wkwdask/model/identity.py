"""Protocol of identities: whether a stored array is still the one that was opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.store import Store


class Identity(Protocol):
    """Identity of a stored array: whether it is still the array that was opened."""

    @property
    def token(self) -> tuple[Any, ...]:
        """Values that change when another array takes its place."""

    def content(self, box: BoundingBox) -> tuple[Any, ...] | None:
        """Return values that identify the content of a box at any location; None if its place is
        part of its identity."""

    def at(self, store: Store) -> Self:
        """Return the identity of the array in another folder."""

    def check(self, *, has_absent: bool) -> None:
        """Raise ReplacedError or MissingError if the array was replaced or is out of reach;
        ``has_absent`` is True if a file was missing."""

    @property
    def document(self) -> tuple[Store, str]:
        """Folder and name of the file that describes the array."""

    @property
    def record(self) -> tuple[int, int] | None:
        """Size and modification time of the record, None if unknown."""
