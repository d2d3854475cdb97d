"""Changes of the documents that describe images, as jobs make them."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, Self


class MetadataEdit(Protocol):
    """Change of an image's metadata, made when new levels are published; small and picklable.

    The publish record of a job stores it, so that another process can complete a job that was
    killed.
    """

    kind: ClassVar[str]
    """Name of this kind of edit in publish records."""
    folder_names: ClassVar[tuple[str, ...]]
    """Fields that are paths of folders; records store them relative to the job."""

    def folders(self) -> dict[str, str]:
        """Return the folders by the names of their fields."""

    def check_writable(self) -> None:
        """Raise PermissionError, before any work is done, if the metadata cannot be changed."""

    def check_current(self) -> None:
        """Raise ValueError, before anything is published, if the metadata that the edit relies on
        has changed since."""

    @property
    def makes_room(self) -> bool:
        """Whether existing levels are in the folders of new ones until :meth:`make_room` moves
        them."""

    def make_room(self) -> None:
        """Move existing levels out of the folders of new ones, before these are published;
        repeating it has no effect."""

    def apply(self) -> None:
        """Make the change; applying it twice has the same effect as once."""

    def with_maxima(self, maxima: tuple[int | None, ...], *, is_new_content: bool) -> MetadataEdit:
        """Return the edit that also sets the largest id of each level, if the metadata stores
        it."""

    @property
    def names_places(self) -> bool:
        """Whether the documents can list levels under other names than people know them by, see
        :meth:`placed`."""

    def placed(self, job: str, listed: tuple[str | None, ...] | None) -> MetadataEdit:
        """Return the edit that lists new levels under names that contain their job, see
        :mod:`wkwdask.model.placement`.

        ``listed`` are the folders that the documents named for these levels when the job was
        planned: :meth:`check_current` raises ReplacedError if they name others now. None where the
        new levels replace any.
        """

    def joined(self, other: Self) -> Self:
        """Return the edit that also lists the levels that another one adds to the same image;
        raises UnsupportedError if one edit cannot."""

    def listed_now(self) -> tuple[str | None, ...]:
        """Return the folder that the documents name now for each new level, None for none; empty
        for documents that name levels by their folders only."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields and ``kind`` as values for a record."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Create the edit from the values of a record."""
