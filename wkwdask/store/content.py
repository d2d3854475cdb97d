"""Content of files that are served to a browser, whether they exist or are made on request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from wkwdask.store.lru import LruCache
from wkwdask.store.objects.remote import RemoteStore
from wkwdask.store.paths import is_below, is_valid_path
from wkwdask.store.store import open_store

if TYPE_CHECKING:
    from wkwdask.model.store import Store, StoredFile
    from wkwdask.store.objects.remote import OpenRemoteFile

_ENCODINGS = {"": "", ".gz": "gzip", ".br": "br"}
_HEAD_NBYTES = 256 << 10  # of a remote file, read with its size
_HEADS_NBYTES = 64 << 20


class Content(Protocol):
    """Bytes that are read in ranges."""

    @property
    def nbytes(self) -> int:
        """Size."""

    @property
    def encoding(self) -> str:
        """Value of ``Content-Encoding``, empty for none."""

    def read(self, start: int, stop: int) -> bytes:
        """Return a range of bytes."""

    def close(self) -> None:
        """Release the file."""


class ContentSource(Protocol):
    """Folder of files that are served."""

    @property
    def is_decoded(self) -> bool:
        """Whether voxels are decoded or computed to make a file, so that only few are made at the
        same time."""

    def open(self, key: str) -> Content | None:
        """Open a file by its path in the folder, None if it does not exist or must not be
        served."""


@dataclass(frozen=True, slots=True)
class BytesContent:
    """Bytes in memory."""

    data: bytes
    encoding: str = ""

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop]

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """An open file."""

    file: StoredFile
    encoding: str = ""

    @property
    def nbytes(self) -> int:
        return self.file.nbytes or 0

    def read(self, start: int, stop: int) -> bytes:
        data = self.file.read([(start, stop)])
        return data[0] if data else b""

    def close(self) -> None:
        self.file.__exit__(None, None, None)


@dataclass(frozen=True, slots=True)
class ServedFolder(ContentSource):
    """Folder or remote location whose files are served unchanged; links may not lead out of it."""

    store: Store
    root: str
    """Folder with links resolved."""
    documents: dict[str, bytes]
    """Documents that are sent in place of stored ones."""
    heads: LruCache[OpenRemoteFile] = field(
        default_factory=lambda: LruCache(_HEADS_NBYTES, lambda file: len(file.head) + 1024)
    )
    """Remote files with their sizes and first bytes, by key."""
    is_decoded: ClassVar = False

    def open(self, key: str) -> Content | None:
        if not is_valid_path(key) or any(part in ("", ".", "..") for part in key.split("/")):
            return None
        if key in self.documents:
            return BytesContent(self.documents[key])
        for suffix, encoding in _ENCODINGS.items():
            content = self._open(key + suffix, encoding)
            if content is not None:
                return content
        return None

    def _open(self, key: str, encoding: str) -> Content | None:
        if isinstance(self.store, RemoteStore):
            remote = self.heads.get(key) or self.store.open_heads([key], _HEAD_NBYTES)[0]
            if remote is None:
                return None
            self.heads.put(key, remote)
            return FileContent(remote, encoding or remote.encoding)
        is_inside = self.store.is_file(key) and is_below(self.store.real(key), self.root)
        file = self.store.open(key) if is_inside else None
        return None if file is None else FileContent(file, encoding)


def served_folder(folder: str, documents: dict[str, bytes], like: Store) -> ServedFolder:
    """Return a folder whose files are served; ``like`` is the store of it or of a subfolder."""
    store = open_store(folder)
    if isinstance(store, RemoteStore) and isinstance(like, RemoteStore):
        store = replace(store, witness=like.witness)
    return ServedFolder(store, store.real(), documents)
