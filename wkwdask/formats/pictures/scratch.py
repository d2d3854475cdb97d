"""Scratch file for decoded arrays that exceed memory, so that each section is decoded once.

The file is unlinked (it has no name), so that the system frees it when the process ends in any way.
Arrays are compressed with LZ4.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import lz4.block
import numpy as np

from wkwdask.errors import IncompleteWriteError
from wkwdask.store import by_path

if TYPE_CHECKING:
    from collections.abc import Hashable

    from wkwdask.array_types import AnyArray


class Scratch:
    """Arrays by key, in an unlinked file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._output, self._file = by_path.unnamed_file(folder)
        self._places: dict[Hashable, tuple[int, int, tuple[int, ...], np.dtype[Any]]] = {}
        self._end = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._places

    def put(self, key: Hashable, array: AnyArray) -> None:
        data = memoryview(lz4.block.compress(np.ascontiguousarray(array), store_size=False))
        self._places[key] = (self._end, len(data), array.shape, array.dtype)
        try:
            self._output.write(data, self._end)
        except OSError as error:
            # a full disk or quota: the file has no name, so the error names the folder
            raise OSError(
                error.errno, os.strerror(error.errno or 0), f"{self._folder} (scratch)"
            ) from None
        self._end += len(data)

    def get(self, key: Hashable) -> AnyArray:
        offset, nbytes, shape, dtype = self._places[key]
        data = self._file.read_some(nbytes, offset)
        if len(data) < nbytes:
            raise IncompleteWriteError(
                f"{self._folder}: the scratch file ends at byte {offset + len(data)}, expected "
                f"{nbytes} bytes from {offset} on"
            )
        raw = lz4.block.decompress(data, uncompressed_size=int(np.prod(shape)) * dtype.itemsize)
        return np.frombuffer(raw, dtype).reshape(shape)

    def close(self) -> None:
        self._output.close()
        self._file.close()
