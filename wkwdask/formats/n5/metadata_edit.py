"""What a job changes in the ``attributes.json`` of the groups above an N5 dataset once that is there."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from wkwdask.formats.format import LevelRemoval, MetadataEdit
from wkwdask.formats.n5.array import read_attributes
from wkwdask.formats.n5.attribute_edits import LevelPlace, format_attributes, with_level, without_levels
from wkwdask.formats.n5.attributes import FILE_NAME, VERSION
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.store import files
from wkwdask.store.locks import locked_file
from wkwdask.store.new_files import publish_bytes
from wkwdask.store.paths import dirname, split
from wkwdask.store.store import FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable


def update_attributes(folder: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the ``attributes.json`` of a group, or make it; it appears whole, and no process that honours the lock overwrites what another one wrote."""
    path = files.realpath(f"{folder}/{FILE_NAME}")  # a link stays one
    with locked_file(path, f"change of {path}"):
        files.remove_temporaries(*split(path))  # whoever wrote one held this lock, and is dead
        current = read_attributes(FolderStore(folder))
        after = change(current or {})
        if current is None or after != current:
            publish_bytes(path, format_attributes(after).encode())


@dataclass(frozen=True, slots=True)
class N5Edit(MetadataEdit):
    """What the groups above datasets are to say once these are there."""

    kind: ClassVar[str] = "n5 attributes"
    """What a record calls this kind of edit."""
    folder_names: ClassVar[tuple[str, ...]] = ("root", "group")
    """Values of :meth:`to_json` that are folders."""
    root: str
    """The container; where it says no version of N5, it gets one."""
    group: str | None
    """The group that lists the datasets as levels, None where none does."""
    num_axes: int
    """Their axes."""
    levels: tuple[tuple[str, LevelPlace], ...]
    """Name of each, and where it lies."""

    def apply(self) -> None:
        """Change the attributes, or make them."""
        update_attributes(self.root, lambda document: document if "n5" in document else {"n5": VERSION, **document})
        if self.group is not None:
            update_attributes(self.group, self._with_levels)

    def _with_levels(self, document: dict[str, Any]) -> dict[str, Any]:
        for name, place in self.levels:
            document = with_level(document, name, self.num_axes, place)
        return document

    def check_writable(self) -> None:
        """Make sure, before any work, that attributes can be changed after it."""
        for folder in filter(None, (self.root, self.group)):
            changed = dirname(files.realpath(f"{folder}/{FILE_NAME}"))
            if files.isdir(changed) and not files.is_writable(changed):
                raise PermissionError(errno.EACCES, f"the container's {FILE_NAME} could not be updated", changed)

    def check_current(self) -> None:
        """Do nothing: other attributes are kept."""

    def to_json(self) -> dict[str, Any]:
        """Give the form that a publish record holds."""
        levels = [{"name": name, "mag": place.mag.factors, "offset": place.offset, "lengths": place.base_lengths_nm} for name, place in self.levels]
        return {"kind": self.kind, "root": self.root, "group": self.group, "num_axes": self.num_axes, "levels": levels}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> N5Edit:
        """Read the form that a publish record holds."""
        levels = []
        for level in value["levels"]:
            lengths = None if level["lengths"] is None else tuple(level["lengths"])
            levels.append((level["name"], LevelPlace(Mag.parse(level["mag"]), vec3(level["offset"]), lengths)))
        return cls(value["root"], value["group"], value["num_axes"], tuple(levels))


class N5Removal(LevelRemoval):
    """Levels that a group is to forget."""

    __slots__ = ()
    kind = "removal of n5 levels"

    def apply(self) -> None:
        """Change the attributes, where there are any."""
        if files.exists(f"{self.folder}/{FILE_NAME}"):
            update_attributes(self.folder, lambda document: without_levels(document, self.keys))
