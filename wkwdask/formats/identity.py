"""What shows that an array which one file describes is still the one that was opened."""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from wkwdask.errors import MissingError, ReplacedError
from wkwdask.store import files
from wkwdask.store.locks import read_object
from wkwdask.store.paths import basename

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.store import Store


@dataclass(frozen=True, slots=True)
class RecordState:
    """State of an array when it was opened."""

    record: tuple[int, int, int]
    """Inode, time and size of the file that describes it."""
    folder: int | None
    """Inode of its folder, None where it was absent."""


def read_record_state(store: Store, record: str, records: Store | None = None) -> RecordState | None:
    """Look at the file that describes an array, in its folder or in another one; None where it is absent."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = files.stat((records or store).path_of(record))
        return RecordState((status.st_ino, status.st_mtime_ns, status.st_size), _inode(store.url))
    return None


@dataclass(frozen=True, slots=True)
class FileIdentity(ABC):
    """An array in a folder, described by one file there. Of a remote one, and of one that is being written, absent chunks are not checked."""

    store: Store
    """Its folder."""
    record_name: str
    """The file that describes it."""
    opened: RecordState | None
    """State when it was opened, None where nobody looks."""

    what: ClassVar[str] = "array"
    whole: ClassVar[str] = "array"

    def at(self, store: Store) -> Self:
        """Return what describes the array when it lies in another folder."""
        return replace(self, store=store)

    @property
    @abstractmethod
    def token(self) -> tuple[Any, ...]:
        """Values that change when the array is another one."""

    def content(self, box: BoundingBox) -> tuple[Any, ...] | None:
        """An array at another place is another one."""
        del box
        return None

    @property
    def records(self) -> Store:
        """The folder of the file that describes it."""
        return self.store

    @abstractmethod
    def is_still_described(self) -> bool:
        """Check whether the file that describes it still says the same."""

    @property
    def path(self) -> str:
        """Path or URL of the file that describes it."""
        return self.records.path_of(self.record_name)

    @property
    def record(self) -> tuple[int, int] | None:
        """Size and time of the file that describes it."""
        return None if self.opened is None else self.records.states([self.record_name])[0]

    def check(self, *, has_absent: bool) -> None:
        """Make sure that the folder is the same, and where files are absent, that they are zeros and not out of reach or part of another array by now."""
        if not self.store.is_local:
            return
        if has_absent and files.islink(self.store.url) and not files.exists(self.store.url):
            raise MissingError(f"{self.store.url}: a symbolic link to a missing folder")
        if self.opened is None:
            return
        if not has_absent and _inode(self.store.url) == self.opened.folder:
            return
        now = read_record_state(self.store, self.record_name, self.records)
        if now is None:
            raise MissingError(f"{self.path}: not found: the {self.whole} is gone or its file system is not mounted")
        if now.folder != self.opened.folder is not None:
            raise ReplacedError(f"{self.store.url}: was replaced since it was opened; open it anew")
        if now.record != self.opened.record and not self.is_still_described():
            raise ReplacedError(f"{self.store.url}: {basename(self.record_name)} describes another {self.what} since it was opened; open it anew")

    def is_unchanged(self) -> bool:
        """Check whether the file that describes it has not changed."""
        return self.opened is not None and read_record_state(self.store, self.record_name, self.records) == self.opened


@dataclass(frozen=True, slots=True)
class JsonIdentity(FileIdentity):
    """An array that a file in JSON describes."""

    text: str
    """What the file says of how the array is stored, see :func:`canonical_json`."""
    ignored: tuple[str, ...] = ()
    """What in it does not say that."""

    @property
    def token(self) -> tuple[Any, ...]:
        """Values that change when the array is another one."""
        return (self.record_name, self.text, self.opened)

    def is_still_described(self) -> bool:
        """Check whether the file still says the same."""
        document = read_object(self.path)
        return document is not None and canonical_json(document, self.ignored) == self.text


def canonical_json(document: Mapping[str, Any], ignored: Collection[str] = ()) -> str:
    """Write down what a document says, but for some of it."""
    return json.dumps({key: value for key, value in document.items() if key not in ignored}, sort_keys=True)


def _inode(folder: str) -> int | None:
    try:
        return files.stat(folder).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None
