"""wkwdask: parts of arrays, by a reader that is opened once, or by path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask

import wkwdask

from . import stored_parts

if TYPE_CHECKING:
    import numpy as np

REQUIRES = ("wkwdask",)


class Reader(stored_parts.Parts):
    """``wkwdask.reader``."""

    def open(self) -> None:
        """Open the reader."""
        dask.config.set(scheduler="synchronous")
        self._url = f"{self.kind}://{self.level}"
        self._reader = wkwdask.reader(self._url)

    def read(self, box: Any) -> np.ndarray:
        """Read a part."""
        return self._reader.read(box, threads=1)


class ByPath(Reader):
    """``wkwdask.read``."""

    def read(self, box: Any) -> np.ndarray:
        """Read a part."""
        return wkwdask.read(self._url, box, threads=1)
