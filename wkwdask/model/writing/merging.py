"""Shards of an existing array that keep those of their chunks that a write does not touch."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry.grid import cell_box
from wkwdask.model.writing.chunk_order import codes_in_shard, shards_of, touched_cells
from wkwdask.model.writing.file_buffer import FileBuffer
from wkwdask.model.writing.receipts import Stats
from wkwdask.model.writing.run import Run, RunTable
from wkwdask.model.writing.writers import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.array_types import AnyArray, IntArray, UintArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.writing.encoding import BoxEncoder, EncodedChunks
    from wkwdask.model.writing.receipts import Receipt
    from wkwdask.model.writing.target_files import TargetFiles


class _NewChunks:
    """Encoded chunks in a file that is never published, from which a shard is joined."""

    def __init__(self, files: TargetFiles, shard: Vec3) -> None:
        self._codes: list[UintArray] = []
        self._sizes: list[IntArray] = []
        store, name = files.array.store, files.shard_key(shard)
        self.buffer = FileBuffer(lambda: store.new_file(name, files.staging.url, flush=False))

    def add(self, encoded: EncodedChunks) -> None:
        self._codes.append(encoded.codes)
        self._sizes.append(encoded.sizes)
        for data in encoded.take():
            self.buffer.append(data)

    def runs(self, opened: ExitStack) -> list[Run]:
        """Return the chunks, which stay until ``opened`` is closed."""
        opened.callback(self.buffer.discard)
        if not any(map(len, self._codes)):
            return []
        table = RunTable(np.concatenate(self._codes), np.concatenate(self._sizes))
        return [Run(table, opened.enter_context(self.buffer.close().open_written()))]


class MergingWriter(Writer):
    """Writes some chunks of a shard, which keeps its others."""

    def __init__(self, files: TargetFiles, encoder: BoxEncoder, shard: Vec3) -> None:
        super().__init__(files, encoder, shard, None)
        self._chunks = _NewChunks(files, shard)
        self._buffer = self._chunks.buffer

    def append(self, array: AnyArray, topleft: Vec3) -> None:
        self.add(self._encoder.encode_box(array, topleft, is_part=True))

    def _store(self, encoded: EncodedChunks) -> None:
        self._chunks.add(encoded)

    def close(self) -> Receipt:
        """Publish the shard; a new one without nonzero voxels is not stored."""
        receipt = self._stats.receipt(self._shard, None)
        files, encoder, shard = self._files, self._encoder, self._shard
        with ExitStack() as opened:
            runs = self._chunks.runs(opened)
            runs += untouched_runs(files, encoder, shard, [receipt.box], opened)
            files.write_shard(shard, runs)
        return files.published_receipt(receipt)


def untouched_runs(
    files: TargetFiles,
    encoder: BoxEncoder,
    shard: Vec3,
    boxes: Sequence[BoundingBox],
    opened: ExitStack,
) -> list[Run]:
    """Return the chunks of a stored shard that no box touches."""
    array = files.array
    layout, runs = shards_of(array), []
    places = touched_cells(
        array, cell_box(shard, array.shard_shape, array.box).intersection(array.extent)
    )
    # A chunk that any box touches was merged with its stored voxels before it was encoded, see
    # BoxEncoder.
    is_kept = np.ones(len(places), np.bool_)
    for low, high in ((written.topleft, written.bottomright) for written in boxes):
        corner = places[:, 1:] * array.chunk_shape
        is_kept &= ~((corner < high).all(axis=1) & (corner + array.chunk_shape > low).all(axis=1))
    if not is_kept.any():  # files that are covered whole may be damaged
        return []
    places = places[is_kept]
    for key, members in files.naming.locate(places, array.grid):
        file = opened.enter_context(layout.opened(array.store, key))
        if file is None:
            continue
        if not layout.has_same_encoding(file):
            # another block type: stored bytes cannot be mixed with new ones
            return _reencoded(files, encoder, shard, places[places[:, 0] == 0, 1:], opened)
        located = layout.without_zeros(file, layout.locate(file, places[members]))
        codes = codes_in_shard(array, places[members[located[:, 2]]])
        runs.append(Run(RunTable(codes, located[:, 1] - located[:, 0], located[:, 0]), file))
    return runs


def _reencoded(
    files: TargetFiles,
    encoder: BoxEncoder,
    shard: Vec3,
    places: npt.NDArray[np.int64],
    opened: ExitStack,
) -> list[Run]:
    """Encode stored chunks (x, y, z) that are encoded differently from new ones, which readers
    allow."""
    chunks, array = _NewChunks(files, shard), files.array
    chunk = np.empty((array.num_channels, *array.chunk_shape), array.dtype, order="F")
    try:
        for x, y, z in (places * array.chunk_shape).tolist():
            array.read_into(chunk, (x, y, z))
            chunks.add(encoder.encode_chunks(chunk, (x, y, z), Stats(array.mag), is_part=True))
    except BaseException:
        chunks.buffer.discard()
        raise
    return chunks.runs(opened)
