"""Content of files that are served to a browser, whether they exist or are made on request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from wkwdask.model.store import StoredFile


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
        """Whether voxels are decoded or computed to make a file, so that only few are made at the same time."""

    def open(self, key: str) -> Content | None:
        """Open a file by its path in the folder, None if it does not exist or must not be served."""


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
