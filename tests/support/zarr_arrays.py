"""Zarr arrays in memory, whose stored bytes tests look at."""

from __future__ import annotations

import numpy as np
import zarr
from zarr.codecs import BytesCodec
from zarr.storage import MemoryStore


class Stored:
    """An array and its store."""

    def __init__(
        self, compressors=(), *, shape=(6, 9), chunks=(3, 5), dtype="uint16", fill=True, **options
    ):
        self.files = {}
        options.setdefault("serializer", BytesCodec(endian="little"))
        self.array = zarr.create_array(
            self._store(),
            shape=shape,
            chunks=chunks,
            dtype=dtype,
            compressors=list(compressors),
            **options,
        )
        if fill:
            self.voxels = np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(dtype)
            self.array[...] = self.voxels

    def _store(self):
        return MemoryStore(self.files)

    def open(self):
        """Open it again: all that is known is what is stored."""
        return zarr.open_array(self._store())

    def bytes(self, key="c/0/0"):
        return self.files[key].to_bytes()

    def replace(self, key, data):
        self.files[key] = type(self.files[key]).from_bytes(data)

    def chunks(self):
        return {
            key: value.to_bytes()
            for key, value in self.files.items()
            if not key.endswith("zarr.json")
        }


def length_header(encoded):
    """Make a header of eight bytes."""
    return len(encoded).to_bytes(8, "little")


def write_and_open(array, start):
    """Write four rows of an array, then look at what is stored."""
    array[start : start + 4] = start + 1
    return int(zarr.open_array(array.store_path.store.root)[start, 0])
