"""Removals as on NFS, whose client keeps removed files under another name while they are open."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Iterator

_FDS = "/proc/self/fd"


def _is_open(status: os.stat_result) -> bool:
    """Check whether this process has a file open."""
    for name in os.listdir(_FDS):
        with contextlib.suppress(OSError):
            if os.path.samestat(status, os.stat(f"{_FDS}/{name}")):
                return True
    return False


@contextlib.contextmanager
def open_files_are_kept() -> Iterator[None]:
    """Keep files that this process removes while it has them open."""
    real, numbers = os.unlink, itertools.count()

    def unlink(path: str, *, dir_fd: int | None = None) -> None:
        if not _is_open(os.lstat(path, dir_fd=dir_fd)):
            real(path, dir_fd=dir_fd)
            return
        folder, name = os.path.split(path)
        if name.startswith(".nfs"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        kept = os.path.join(folder, f".nfs{next(numbers):024x}")
        os.rename(path, kept, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    with mock.patch.object(os, "unlink", unlink):
        yield
