"""Sections that are too large to be kept in memory while their slab is written, strip by strip: each is decoded once, and waits in a scratch file.

The file has no name, so that nothing is left of a process that is killed, and its strips are LZ4.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any, BinaryIO

import lz4.block
import numpy as np

from wkwdask.errors import IncompleteWriteError

if TYPE_CHECKING:
    from collections.abc import Hashable

    import numpy.typing as npt


class Scratch:
    """Arrays in a file without a name."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # it lives as long as the task
        self._places: dict[Hashable, tuple[int, int, tuple[int, ...], np.dtype[Any]]] = {}
        self._end = 0

    def __contains__(self, key: Hashable) -> bool:
        """Tell whether an array is kept."""
        return key in self._places

    def put(self, key: Hashable, array: npt.NDArray[Any]) -> None:
        """Keep an array."""
        data = memoryview(lz4.block.compress(np.ascontiguousarray(array), store_size=False))
        self._places[key] = (self._end, len(data), array.shape, array.dtype)
        while data:
            try:
                count = os.pwrite(self._file.fileno(), data, self._end)
            except OSError as error:  # a full disk or quota: say where
                raise OSError(error.errno, os.strerror(error.errno or 0), f"{self._folder} (scratch)") from None
            data, self._end = data[count:], self._end + count

    def get(self, key: Hashable) -> npt.NDArray[Any]:
        """Give an array back."""
        offset, nbytes, shape, dtype = self._places[key]
        data = os.pread(self._file.fileno(), nbytes, offset)
        if len(data) < nbytes:
            raise IncompleteWriteError(f"{self._folder}: the scratch file ends at byte {offset + len(data)}, expected {nbytes} bytes from {offset} on")
        raw = lz4.block.decompress(data, uncompressed_size=int(np.prod(shape)) * dtype.itemsize)
        return np.frombuffer(raw, dtype).reshape(shape)

    def close(self) -> None:
        """Let the file go."""
        self._file.close()
