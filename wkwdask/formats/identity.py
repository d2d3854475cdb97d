"""Identity of a stored array that one file describes: detect that another array has taken its
place."""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from wkwdask.errors import FormatError, MissingError, ReplacedError
from wkwdask.model.json_text import parse_object
from wkwdask.model.placement import job_in
from wkwdask.store.paths import basename
from wkwdask.store.records import PROVENANCE_NAME

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.store import Store


_MAX_RECORD_NBYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class RecordState:
    """State of an array's record and folder when the array was opened."""

    record: tuple[int, int, int]
    """Inode, modification time [ns] and size of the record."""
    folder: int | None
    """Inode of the array's folder, None if it does not exist."""


def read_record_state(
    store: Store, record: str, records: Store | None = None
) -> RecordState | None:
    """Return the state of the record of an array, in its folder or in ``records``; None if the
    record does not exist."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = (records or store).status(record)
        return RecordState((status.st_ino, status.st_mtime_ns, status.st_size), _inode(store))
    return None


@dataclass(frozen=True, slots=True)
class FileIdentity(ABC):
    """Identity of an array that one file, its record, describes.

    Missing chunks of remote arrays, and of arrays that are being written, are not checked.
    """

    store: Store
    """Folder of the array."""
    record_name: str
    """File that describes the array."""
    opened: RecordState | None
    """State when the array was opened, None if nothing is checked."""

    # for errors: noun for the described array, and for what is gone without the record
    noun: ClassVar[str] = "array"
    whole_noun: ClassVar[str] = "array"

    def at(self, store: Store) -> Self:
        return replace(self, store=store)

    @property
    @abstractmethod
    def token(self) -> tuple[Any, ...]:
        """Values that change when another array takes its place."""

    def content(self, box: BoundingBox) -> tuple[Any, ...] | None:
        """Return None: an array at another place is another array."""
        del box
        return None

    @property
    def records(self) -> Store:
        """Folder of the record."""
        return self.store

    @abstractmethod
    def is_still_described(self) -> bool:
        """Return whether the record still describes the same array."""

    @property
    def document(self) -> tuple[Store, str]:
        return self.records, self.record_name

    @property
    def path(self) -> str:
        return self.records.path_of(self.record_name)

    @property
    def record(self) -> tuple[int, int] | None:
        """Size and modification time of the record."""
        return None if self.opened is None else self.records.states([self.record_name])[0]

    def check(self, *, has_absent: bool) -> None:
        """Raise ReplacedError or MissingError if the array is not the one that was opened.

        With ``has_absent``, a chunk was missing: it reads as zeros only if the folder is the same,
        still mounted, and not replaced by another array.
        """
        if has_absent and self.store.is_remote and not self._is_in_place():
            raise ReplacedError(
                f"{self.store.url}: was replaced since it was opened; open it again"
            )
        if not self.store.can.states:
            return
        if has_absent and self.store.link_target() and not self.store.exists():
            raise MissingError(f"{self.store.url}: a symbolic link to a missing folder")
        if self.opened is None:
            return
        if not has_absent and _inode(self.store) == self.opened.folder:
            # no chunk is missing and the folder is the same: each read calls this, so it costs one
            # stat
            return
        now = read_record_state(self.store, self.record_name, self.records)
        if now is None:
            raise MissingError(
                f"{self.path}: not found: the {self.whole_noun} is gone or its file system is not "
                "mounted"
            )
        if now.folder != self.opened.folder is not None:
            raise ReplacedError(
                f"{self.store.url}: was replaced since it was opened; open it again"
            )
        if now.record != self.opened.record and not self.is_still_described():
            raise ReplacedError(
                f"{self.store.url}: {basename(self.record_name)} describes another {self.noun} "
                "since it was opened; open it again"
            )

    def _is_in_place(self) -> bool:
        """Ask the server whether a level is still the one that was opened. Of a replaced level, its
        documents and the record of its job are removed first."""
        if job_in(basename(self.store.url)) and self.store.is_file(PROVENANCE_NAME):
            return True
        # levels without a record are from other software, or were copied without hidden files
        is_replaced_here = self.store.can.compares or job_in(basename(self.store.url))
        return not is_replaced_here or self.is_still_described()


@dataclass(frozen=True, slots=True)
class JsonIdentity(FileIdentity):
    """Identity of an array that a JSON file describes."""

    text: str
    """Canonical JSON of the relevant keys, see :func:`canonical_json`."""
    ignored: tuple[str, ...] = ()
    """Keys that do not affect how the array is stored."""

    @property
    def token(self) -> tuple[Any, ...]:
        return (self.record_name, self.text, self.opened)

    def is_still_described(self) -> bool:
        (raw,) = self.store.read_whole([self.record_name], _MAX_RECORD_NBYTES)
        with contextlib.suppress(FormatError):
            if raw is not None:
                document = parse_object(raw, self.path)
                return canonical_json(document, self.ignored) == self.text
        return False


@dataclass(frozen=True, slots=True)
class OneFileIdentity(FileIdentity):
    """Identity of an array in one file, which describes the array and contains its voxels: any
    change makes it another array."""

    noun: ClassVar[str] = "data"
    whole_noun: ClassVar[str] = "file"

    @property
    def token(self) -> tuple[Any, ...]:
        return (self.record_name, self.opened)

    def is_still_described(self) -> bool:
        return False

    def check(self, *, has_absent: bool) -> None:
        super(OneFileIdentity, self).check(has_absent=True)


def canonical_json(document: Mapping[str, Any], ignored: Collection[str] = ()) -> str:
    """Return a document as JSON with sorted keys, without ``ignored`` ones."""
    return json.dumps(
        {key: value for key, value in document.items() if key not in ignored}, sort_keys=True
    )


def _inode(folder: Store) -> int | None:
    try:
        return folder.status().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None
