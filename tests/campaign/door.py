"""A door: a parser or decoder, as a function of the bytes of a stranger.

Whatever the bytes are, a door returns, or raises one of its errors.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wkwdask.errors import WkwDaskError

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS = Path(__file__).with_name("corpus")
BY_MACHINE = ", machine code"
_MEMORY = Path("/dev/shm")
_ticks = itertools.count(1)


@dataclass(frozen=True)
class Door:
    """A parser or decoder."""

    name: str
    use: Callable[[bytes], Any]
    kind: str = "document"
    """``document``, ``file`` (documents that are opened as files), ``library`` (files that other
    libraries parse), ``job`` (records that a job follows), ``decoder`` (compiled loops as Python),
    or ``machine code``."""
    errors: tuple[type[Exception], ...] = (WkwDaskError,)
    """What it may raise."""
    needs: tuple[str, ...] = ()
    """Packages without which it decodes nothing."""

    @property
    def samples(self) -> list[Path]:
        """Files of the corpus."""
        folder = CORPUS / self.name.removesuffix(BY_MACHINE).replace(" ", "-")
        return sorted(folder.glob("*"))

    def __str__(self) -> str:
        return self.name


@cache
def folder_in_memory() -> Path:
    """Return a folder of this process in memory."""
    return Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None))


def in_file(name: str, use: Callable[[Path], Any], **others: bytes) -> Callable[[bytes], Any]:
    """Return a function that uses a folder with the bytes in a file of it."""
    made = []

    def use_file(data: bytes) -> None:
        if not made:
            top = Path(tempfile.mkdtemp(dir=folder_in_memory()))
            for path, content in {name: b"", **others}.items():
                (top / path).parent.mkdir(parents=True, exist_ok=True)
                (top / path).write_bytes(content)
            made.append(top)
        path = made[0] / name
        path.unlink(missing_ok=True)  # libraries know files that are open by their inodes
        path.write_bytes(data)
        time = next(_ticks) * 10**9  # so that nothing is believed that was kept of the last bytes
        os.utime(path, ns=(time, time))
        use(made[0])

    return use_file


def door_of_file(
    name: str,
    file: str,
    use: Callable[[Path], Any],
    *needs: str,
    kind: str = "file",
    **others: bytes,
) -> Door:
    """Return the door of a file that is used in its folder."""
    return Door(name, in_file(file, use, **others), kind, (WkwDaskError, OSError), needs)


def use(door: Door, data: bytes) -> bool:
    """Use a door; return whether the bytes were accepted."""
    try:
        door.use(data)
    except door.errors:
        return False
    return True
