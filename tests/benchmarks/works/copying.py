"""Copying files, by ``cp`` and ``sync``: how fast the disk is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .base import Work, folder_nbytes

REQUIRES = ()


class Copy(Work):
    """``cp -r`` of a folder, followed by ``sync`` of the file system that it is on.

    Parameters
    ----------
    path : str
        The folder.
    folder : str
        Folder of the copy.
    nbytes : int
        Bytes of the voxels.
    passes : int
        Number of copies of a run.
    """

    def __init__(self, path: str, folder: str, nbytes: int, passes: int = 1) -> None:
        self._path, self._target, self._passes = path, Path(folder), passes
        self.nbytes = passes * nbytes

    def prepare(self) -> None:
        """Remove what the last run made."""
        shutil.rmtree(self._target, ignore_errors=True)
        self._target.parent.mkdir(parents=True, exist_ok=True)
        if self._passes > 1:
            self._target.mkdir()

    def run(self) -> None:
        """Copy."""
        for number in range(self._passes):
            target = self._target / str(number) if self._passes > 1 else self._target
            subprocess.run(["cp", "-r", self._path, str(target)], check=True)
        subprocess.run(["sync", "-f", str(self._target)], check=True)

    def written(self) -> int:
        """Count the bytes of the copy."""
        return folder_nbytes([self._target])

    def version(self) -> str:
        """Say nothing: every system has it."""
        return ""

    def digests(self) -> list[str]:
        """Hash nothing: it is a copy."""
        return []
