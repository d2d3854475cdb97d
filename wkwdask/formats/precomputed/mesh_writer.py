"""Files of meshes, written front to back: shards that hold the meshes of many labels, or two files
for each label (neuroglancer, ``precomputed/meshes.rst``, "multi-resolution mesh format").

In a shard, the fragments of a label lie directly before its manifest, and only the manifest has an
entry in the index::

    | shard index (written last) | fragments | manifest | fragments | manifest | index | ...
                                                                      of a minishard
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np

from wkwdask.formats.compressed_streams import compress_gzip
from wkwdask.formats.precomputed.mesh_reader import MeshShard
from wkwdask.formats.precomputed.meshes import MANIFEST_SUFFIX
from wkwdask.formats.precomputed.sharding import (
    Sharding,
    format_minishard_index,
    format_shard_index,
)
from wkwdask.model.writing.file_buffer import FileBuffer
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SHARD_NBYTES = 1 << 27
_AHEAD_NBYTES = 64 << 10  # of a shard in a bucket: its index
_SHARD_LABELS = 1 << 14
_MINISHARD_LABELS = 1 << 8  # a viewer reads the index of a whole minishard for its first label
_MOST_SHARD_BITS, _MOST_MINISHARD_BITS = 20, 10


class MeshWriter(Protocol):
    """Writer of the meshes of some labels."""

    def add(self, label: int, fragments: Iterable[bytes], manifest: bytes) -> None:
        """Write the mesh of a label, one fragment at a time."""


def choose_mesh_sharding(num_labels: int, nbytes: int) -> Sharding:
    """Choose the sharding of meshes: at most about 128 MiB or 16,384 labels in a shard, and 256
    labels in a minishard.

    Examples
    --------
    >>> sharding = choose_mesh_sharding(10**8, 10**12)
    >>> sharding.shard_bits, sharding.minishard_bits
    (13, 6)
    """
    shards = max(-(-nbytes // _SHARD_NBYTES), -(-num_labels // _SHARD_LABELS), 1)
    shard_bits = min(_MOST_SHARD_BITS, (shards - 1).bit_length())
    minishards = max(1, -(-(num_labels >> shard_bits) // _MINISHARD_LABELS))
    minishard_bits = min(_MOST_MINISHARD_BITS, (minishards - 1).bit_length())
    return Sharding(0, minishard_bits, shard_bits, "murmurhash3_x86_128", "gzip", "gzip")


class _LabelFiles:
    """Two files for each label."""

    def __init__(self, folder: str, temporary_folder: str) -> None:
        self._store, self._temporary_folder = store_at(folder), temporary_folder

    def add(self, label: int, fragments: Iterable[bytes], manifest: bytes) -> None:
        with self._store.new_file(str(label), self._temporary_folder) as file:
            buffer = FileBuffer(lambda: file)
            for data in fragments:
                buffer.append(np.frombuffer(data, np.uint8))
            buffer.close()
        with self._store.new_file(f"{label}{MANIFEST_SUFFIX}", self._temporary_folder) as file:
            file.write(manifest, 0)


class _Shard:
    """Shard that is being written. Labels come by minishard, ascending in each."""

    def __init__(self, sharding: Sharding, buffer: FileBuffer) -> None:
        self._sharding, self._buffer = sharding, buffer
        self._minishard = 0
        self._rows: list[tuple[int, int, int]] = []  # label, start and size of its manifest
        self._ranges = np.zeros((2, 1 << sharding.minishard_bits), np.uint64)

    def add(self, label: int, fragments: Iterable[bytes], manifest: bytes) -> None:
        _, minishards = self._sharding.locate(np.array([label], np.uint64))
        if int(minishards[0]) != self._minishard:
            self._end_minishard()
            self._minishard = int(minishards[0])
        for data in fragments:
            self._append(data)
        start = self._end
        self._append(compress_gzip(manifest))
        self._rows.append((label, start, self._end - start))

    @property
    def _end(self) -> int:
        """Offset of the next byte, counted from the end of the shard index."""
        return self._buffer.end - self._sharding.index_nbytes

    def _append(self, data: bytes) -> None:
        self._buffer.append(np.frombuffer(data, np.uint8))

    def _end_minishard(self) -> None:
        if self._rows:
            ids, starts, sizes = np.array(self._rows, np.uint64).T
            start, encoding = self._end, self._sharding.minishard_index_encoding
            self._append(format_minishard_index(ids, starts, sizes, encoding))
            self._ranges[:, self._minishard] = start, self._end
            self._rows.clear()

    def finish(self) -> bytes:
        """Write the last table; return the shard index."""
        self._end_minishard()
        return format_shard_index(*self._ranges)


@contextmanager
def writing_meshes(
    folder: str, temporary_folder: str, sharding: Sharding, shard: int, *, is_sharded: bool
) -> Iterator[MeshWriter]:
    """Write the meshes of the labels of one shard: the shard, or the files of its labels. A killed
    process leaves files in the temporary folder alone."""
    if not is_sharded:
        yield _LabelFiles(folder, temporary_folder)
        return
    with store_at(folder).new_file(sharding.shard_name(shard), temporary_folder) as file:
        buffer = FileBuffer(lambda: file, sharding.index_nbytes)
        writer = _Shard(sharding, buffer)
        yield writer
        index = writer.finish()
        buffer.close().write(index, 0)


def labels_in_shard(folder: str, sharding: Sharding, shard: int) -> int:
    """Return the number of labels in a shard; 0 if it does not exist."""
    (file,) = store_at(folder).open_heads([sharding.shard_name(shard)], _AHEAD_NBYTES)
    if file is None:
        return 0
    with file:
        return sum(table.shape[1] for _, table in MeshShard(file, sharding).minishards())
