"""Writers of the voxels of one part, or of a whole shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.model.writing.chunk_order import shards_of
from wkwdask.model.writing.encoding import EncodedChunks
from wkwdask.model.writing.file_buffer import FileBuffer
from wkwdask.model.writing.receipts import Stats
from wkwdask.model.writing.run import Run, RunTable, close_part_file, publish_shard

if TYPE_CHECKING:
    from wkwdask.array_types import AnyArray, IntArray, UintArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.writing.encoding import BoxEncoder
    from wkwdask.model.writing.receipts import Receipt
    from wkwdask.model.writing.target_files import TargetFiles


class Writer(ABC):
    """Base class of writers: takes the voxels of one part box by box, and returns its receipt."""

    def __init__(
        self, files: TargetFiles, encoder: BoxEncoder, shard: Vec3, part: Vec3 | None
    ) -> None:
        self._files, self._encoder = files, encoder
        self._shard, self._part = shard, part
        self._stats = Stats(encoder.array.mag)
        self._buffer: FileBuffer | None = None

    def skip(self, box: BoundingBox) -> None:
        """Count all-zero voxels instead of appending them."""
        if self._encoder.merges:
            array = self._encoder.array
            zeros = np.broadcast_to(np.zeros((), array.dtype), (array.num_channels, *box.size))
            self.append(zeros, box.topleft)
        else:
            self._skip(box)

    def _skip(self, box: BoundingBox) -> None:
        self._stats.add_zeros(box)

    @property
    def buffered_nbytes(self) -> int:
        """Number of encoded bytes in memory."""
        return 0 if self._buffer is None else self._buffer.buffered_nbytes

    def flush(self) -> None:
        """Write the encoded bytes in memory."""
        if self._buffer is not None:
            self._buffer.flush()

    def append(self, array: AnyArray, topleft: Vec3) -> None:
        """Encode and store an array (c, x, y, z) of whole chunks, which may extend beyond the
        box."""
        self.add(self._encoder.encode_box(array, topleft, is_part=self._part is not None))

    def add(self, encoded: EncodedChunks) -> None:
        """Store a box of chunks encoded by ``encode_box``."""
        self._stats.merge(encoded.stats)
        self._store(encoded)

    @abstractmethod
    def _store(self, encoded: EncodedChunks) -> None: ...

    @abstractmethod
    def close(self) -> Receipt:
        """Publish the part and return its receipt."""

    def discard(self) -> None:
        """Discard everything that was appended."""
        if self._buffer is not None:
            self._buffer.discard()


class PartWriter(Writer):
    """Writes the chunks of a part of a shard to a part file."""

    def __init__(self, files: TargetFiles, encoder: BoxEncoder, shard: Vec3, part: Vec3) -> None:
        super().__init__(files, encoder, shard, part)
        self._name = files.part_file_name(shard, part)
        self._codes: list[UintArray] = []
        self._sizes: list[IntArray] = []
        self._output = self._buffer = FileBuffer(
            lambda: files.staging.new_file(self._name, flush=False), has_checksum=True
        )

    def _store(self, encoded: EncodedChunks) -> None:
        self._codes.append(encoded.codes)
        self._sizes.append(encoded.sizes)
        for data in encoded.take():
            self._output.append(data)

    def close(self) -> Receipt:
        """Publish the part file; without nonzero voxels there is none."""
        receipt = self._stats.receipt(self._shard, self._part)
        if not any(map(len, self._codes)):
            self.discard()
            self._files.staging.delete(self._name)
            return receipt
        nbytes, checksum = close_part_file(
            self._output, RunTable(np.concatenate(self._codes), np.concatenate(self._sizes))
        )
        return replace(
            receipt, path=self._files.staging.path_of(self._name), nbytes=nbytes, checksum=checksum
        )


class ShardWriter(Writer):
    """Writes the chunks of a whole shard.

    Chunks that arrive in another order than that of their codes are copied once more, and those of
    shards with several files too.
    """

    def __init__(self, files: TargetFiles, encoder: BoxEncoder, shard: Vec3) -> None:
        super().__init__(files, encoder, shard, None)
        self._shard_file = files.new_shard((0, *shard))
        self._buffer = self._shard_file.buffer
        self._codes: list[UintArray] = []
        self._sizes: list[IntArray] = []
        self._starts: list[IntArray] = []
        self._last = -1
        self._nonzero = 0
        self._is_in_order = files.array.grid.file_counts[0] == 1

    def _store(self, encoded: EncodedChunks) -> None:
        codes, sizes, buffer = encoded.codes, encoded.sizes, self._shard_file.buffer
        if not len(codes):
            return
        if int(codes[0]) <= self._last:
            if shards_of(self._files.array).is_ordered:
                raise ValueError(
                    f"blocks of a whole file must be in Morton order, got block {codes[0]} after "
                    f"block {self._last}"
                )
            self._is_in_order = False
        self._last = int(codes[-1])
        self._nonzero += encoded.num_nonzero
        for data in encoded.take():
            done = 0
            while len(codes):
                count = self._shard_file.start_stretch(codes) if self._is_in_order else len(codes)
                stretch, sizes_in = codes[:count], sizes[:count]
                nbytes = int(sizes_in.sum())
                self._codes.append(stretch)
                self._sizes.append(sizes_in)
                self._starts.append(buffer.end + np.cumsum(sizes_in) - sizes_in)
                buffer.append(data[done : done + nbytes])
                if self._is_in_order:
                    self._shard_file.record(stretch, sizes_in)
                codes, sizes, done = codes[count:], sizes[count:], done + nbytes

    def close(self) -> Receipt:
        """Publish the shard; without nonzero voxels there is none."""
        receipt = self._stats.receipt(self._shard, None)
        files = self._files
        if not self._nonzero:
            self.discard()
            files.write_shard(self._shard, [])
            return receipt
        if self._is_in_order:
            publish_shard(self._shard_file, is_in_place=files.is_in_place)
            files.remove_file((0, *self._shard), others=True)
        else:
            self._sort_chunks()
        return files.published_receipt(receipt)

    def _sort_chunks(self) -> None:
        table = RunTable(
            np.concatenate(self._codes), np.concatenate(self._sizes), np.concatenate(self._starts)
        )
        # The unsorted file serves as a run, from which the files are joined; it is never published.
        file = self._shard_file.buffer.close()
        try:
            with file.open_written() as written:
                self._files.write_shard(self._shard, [Run(table, written)])
        finally:
            file.discard()


class FilesWriter(Writer):
    """Writes each chunk of a group, or of a part of a group, to a file; all files are flushed
    together."""

    def __init__(
        self, files: TargetFiles, encoder: BoxEncoder, shard: Vec3, part: Vec3 | None
    ) -> None:
        super().__init__(files, encoder, shard, part)
        self._new_files = files.array.store.new_files(
            files.staging.url, is_in_place=files.is_in_place
        )
        self._written: list[Vec4] = []

    def _store(self, encoded: EncodedChunks) -> None:
        files = self._files
        for cell, voxels in encoded.files:
            data, key = voxels if voxels is not None else self._zeros(cell), files.naming.key(cell)
            if data is None:
                files.remove_file(cell)
                continue
            files.check_name(cell)
            if not (files.is_in_place and self._is_stored(key, data)):
                # equal files keep their time, so that nothing above is rebuilt
                self._new_files.write(key, data)
            self._written.append(cell)
        if encoded.arena is not None:
            encoded.arena.release()

    def _zeros(self, cell: Vec4) -> bytes | None:
        """Encode a chunk of zeros whose file is not removed; None for all others."""
        files, array = self._files, self._files.array
        if not files.stays(cell):
            return None
        zeros = np.zeros(array.grid.shape_at(cell), array.dtype, order="F")
        return array.codec.encode(zeros, array.store.path_of(files.naming.key(cell)))

    def _is_stored(self, key: str, data: bytes | memoryview) -> bool:
        """Return whether a file has this content already; then it is not written, and keeps its
        time."""
        store = self._files.array.store
        (state,) = store.states([key])
        return (
            state is not None
            and state.nbytes == len(data)
            and store.read_whole([key], len(data))[0] == data
        )

    def _skip(self, box: BoundingBox) -> None:
        """Count all-zero voxels, and remove their files."""
        super()._skip(box)
        files = self._files
        cells = (cell for cell, _ in files.naming.keys(files.files_of(self._shard, box)))
        self._store(EncodedChunks(Stats(box.mag), files=[(cell, None) for cell in cells]))

    def close(self) -> Receipt:
        receipt = self._stats.receipt(self._shard, self._part)
        self._new_files.publish()
        for cell in self._written:
            # only now: a file of another name holds the voxels until the new one is published
            self._files.remove_file(cell, others=True)
        if self._part is None:
            return self._files.published_receipt(receipt)
        if not self._new_files.count:
            return receipt
        return replace(
            receipt,
            path=self._files.shard_path(self._shard),
            nbytes=self._new_files.nbytes,
            files=self._new_files.count,
        )

    def discard(self) -> None:
        """Remove unpublished files; no receipt lists the published ones."""
        self._new_files.discard()
