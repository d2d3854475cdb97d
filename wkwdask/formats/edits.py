"""Base classes of the changes that formats make to their documents."""

from __future__ import annotations

import errno
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from wkwdask.errors import ReplacedError, UnsupportedError
from wkwdask.model.metadata_edit import MetadataEdit
from wkwdask.store.paths import os_error
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Sequence


class DocumentEdit(MetadataEdit):
    """Edit of documents in folders, by a dataclass whose fields JSON can represent."""

    def folders(self) -> dict[str, str]:
        return {
            name: folder
            for name in self.folder_names
            if (folder := getattr(self, name)) is not None
        }

    def check_writable(self) -> None:
        for folder in self.folders().values():
            if store_at(folder).is_folder() and not store_at(folder).is_writable():
                raise PermissionError(
                    errno.EACCES, "the image's metadata could not be updated", folder
                )

    def check_current(self) -> None:
        """Return: such an edit relies on nothing that can change."""
        return

    @property
    def makes_room(self) -> bool:
        return False

    def make_room(self) -> None:
        return

    def with_maxima(self, maxima: tuple[int | None, ...], *, is_new_content: bool) -> MetadataEdit:
        return self

    def listed_now(self) -> tuple[str | None, ...]:
        return ()

    def joined(self, other: Self) -> Self:
        raise self._cannot_switch()

    @property
    def names_places(self) -> bool:
        return False

    def placed(self, job: str, listed: tuple[str | None, ...] | None) -> MetadataEdit:
        raise self._cannot_switch()

    def _cannot_switch(self) -> UnsupportedError:
        folder = next(iter(self.folders().values()), self.kind)
        return UnsupportedError(
            f"{folder}: its documents list levels by their folders, and cannot switch to others"
        )

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **{each.name: getattr(self, each.name) for each in fields(self)}}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        return cls(**{name: field for name, field in value.items() if name != "kind"})


def check_listed(planned: Sequence[str | None] | None, listed: Sequence[str | None]) -> None:
    """Raise ReplacedError if documents do not name the folders for some levels that they named when
    a job was planned."""
    for before, now in zip(planned or (), listed, strict=False):
        if before != now:
            raise ReplacedError(
                f"{now or before}: another job has {'removed' if now is None else 'published'} it "
                "since this one was planned; start again"
            )


@dataclass(frozen=True, slots=True)
class Edits(MetadataEdit):
    """Edits of the documents of an image and of the dataset that lists it, in this order."""

    kind: ClassVar[str] = "several"
    folder_names: ClassVar[tuple[str, ...]] = ()
    edits: tuple[MetadataEdit, ...]

    @classmethod
    def of(cls, *edits: MetadataEdit | None) -> MetadataEdit | None:
        """Return the edit that makes all of some edits, None for none."""
        made = tuple(edit for edit in edits if edit is not None)
        return cls(made) if len(made) > 1 else made[0] if made else None

    def folders(self) -> dict[str, str]:
        return {
            f"{number}.{name}": folder
            for number, edit in enumerate(self.edits)
            for name, folder in edit.folders().items()
        }

    def check_writable(self) -> None:
        for edit in self.edits:
            edit.check_writable()

    def check_current(self) -> None:
        for edit in self.edits:
            edit.check_current()

    @property
    def makes_room(self) -> bool:
        return any(edit.makes_room for edit in self.edits)

    def make_room(self) -> None:
        for edit in self.edits:
            edit.make_room()

    def apply(self) -> None:
        for edit in self.edits:
            edit.apply()

    def with_maxima(self, maxima: tuple[int | None, ...], *, is_new_content: bool) -> MetadataEdit:
        return Edits(
            tuple(edit.with_maxima(maxima, is_new_content=is_new_content) for edit in self.edits)
        )

    def listed_now(self) -> tuple[str | None, ...]:
        """Return what the dataset names; a job that died between the changes of two documents is
        completed before this one starts."""
        return self.edits[-1].listed_now()

    def joined(self, other: Self) -> Self:
        pairs = zip(self.edits, other.edits, strict=True)
        return replace(self, edits=tuple(edit.joined(added) for edit, added in pairs))

    @property
    def names_places(self) -> bool:
        return all(edit.names_places for edit in self.edits)

    def placed(self, job: str, listed: tuple[str | None, ...] | None) -> MetadataEdit:
        *inner, outer = self.edits
        return Edits((*(edit.placed(job, None) for edit in inner), outer.placed(job, listed)))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "edits": [edit.to_json() for edit in self.edits]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Create the edit from a record whose edits are created already."""
        return cls(tuple(value["edits"]))


def lists_places(edit: MetadataEdit | None) -> bool:
    """Return whether one of the documents that an edit changes can list levels under other names
    than people know them by."""
    parts = edit.edits if isinstance(edit, Edits) else (edit,)
    return any(part is not None and part.names_places for part in parts)


@dataclass(frozen=True, slots=True)
class LevelRemoval(DocumentEdit):
    """Removal of levels from the documents of an image."""

    folder_names: ClassVar[tuple[str, ...]] = ("folder",)
    folder: str
    """Folder of the image."""
    keys: Sequence[str]
    """Keys of the levels."""

    def check_writable(self) -> None:
        if store_at(self.folder).is_folder() and not store_at(self.folder).is_writable():
            raise os_error(errno.EACCES, self.folder)
