"""Files of an array that is written: part files, and published shards or files of one chunk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wkwdask.errors import UnsupportedError
from wkwdask.geometry.grid import cell_range, clipped_cell
from wkwdask.model.writing.chunk_order import channel_chunks_per_file, chunk_nbytes_of, shards_of
from wkwdask.model.writing.file_buffer import FileBuffer
from wkwdask.model.writing.run import Run, copy_runs, is_whole_part_file, publish_shard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import Ranges, Vec4
    from wkwdask.model.layout import ShardFile
    from wkwdask.model.naming import KeyNaming
    from wkwdask.model.store import Store
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.writing.receipts import Receipt


@dataclass(frozen=True, slots=True)
class TargetFiles:
    """Files of an array that is written. A shard of an unsharded array is a group of files."""

    array: StoredArray
    """Array that is written, in coordinates relative to its first voxel."""
    staging: Store
    """Folder of part files, and of files before they are published."""
    is_in_place: bool
    """Whether the array existed before; then each published file must be durable at once."""

    @property
    def naming(self) -> KeyNaming:
        assert self.array.naming is not None
        return self.array.naming

    @property
    def is_sharded(self) -> bool:
        """Whether a file contains many chunks."""
        return self.array.layout.is_sharded

    def max_files(self, shards: int, chunks: int) -> int:
        """Return the largest number of files for some shards with some chunks of all channels."""
        grid = self.array.grid
        return shards * grid.file_counts[0] if self.is_sharded else chunks * grid.counts[0]

    def expected_nbytes(self, files: int, voxel_nbytes: int, ratio: float) -> int:
        """Estimate the size of files with some voxels at a compression ratio."""
        tables = (
            shards_of(self.array).expected_nbytes(
                files, voxel_nbytes // chunk_nbytes_of(self.array)
            )
            if self.is_sharded
            else 0
        )
        return int(voxel_nbytes * ratio) + tables

    def files_of(self, shard: Vec3, box: BoundingBox) -> Ranges:
        """Return the indices of the files of a shard, or of those files of a group that a box
        touches."""
        grid = self.array.grid
        if self.is_sharded:
            x, y, z = (range(n, n + 1) for n in shard)
            return range(grid.file_counts[0]), x, y, z
        inside = clipped_cell(shard, self.array.shard_shape, self.array.box).intersection(box)
        return range(grid.counts[0]), *cell_range(inside, self.array.chunk_shape)

    def shard_key(self, shard: Vec3) -> str:
        """Return the name of the first file of a shard, or of a group."""
        return self.naming.key((0, *shard) if self.is_sharded else (0, *self._first_chunk(shard)))

    def _first_chunk(self, shard: Vec3) -> Vec3:
        x, y, z = (
            n * edge // chunk
            for n, edge, chunk in zip(
                shard, self.array.shard_shape, self.array.chunk_shape, strict=True
            )
        )
        return x, y, z

    def shard_path(self, shard: Vec3) -> str:
        return self.array.store.path_of(self.shard_key(shard))

    @staticmethod
    def _part_folder(shard: Vec3) -> str:
        return f"z{shard[2]}y{shard[1]}x{shard[0]}"

    def part_file_name(self, shard: Vec3, part: Vec3) -> str:
        """Return the name of a part file."""
        return f"{self._part_folder(shard)}/z{part[2]}y{part[1]}x{part[0]}.run"

    def path_of(self, receipt: Receipt) -> str:
        if receipt.part is None or not self.is_sharded:
            return self.shard_path(receipt.shard)
        return self.staging.path_of(self.part_file_name(receipt.shard, receipt.part))

    def new_shard(self, file: Vec4) -> ShardFile:
        """Start a file of many chunks, given by its index."""
        layout, store = shards_of(self.array), self.array.store
        buffer = FileBuffer(
            lambda: store.new_file(self.naming.key(file), self.staging.url), layout.head_nbytes
        )
        first = (file[0] * channel_chunks_per_file(self.array.grid), *self._first_chunk(file[1:]))
        return layout.new_shard(first, self.array.grid, buffer)

    def write_shard(self, shard: Vec3, runs: Sequence[Run]) -> None:
        """Write the files of a shard from runs; remove those without chunks."""
        num_codes = shards_of(self.array).codes_per_file(self.array.grid)
        for n, (file, _) in enumerate(self.naming.keys(self.files_of(shard, self.array.box))):
            inside = [
                Run(table, run.file)
                for run in runs
                if len((table := run.table.between(n * num_codes, (n + 1) * num_codes)).codes)
            ]
            self.check_name(file)
            if not inside and not self.stays(file):
                self.remove_file(file)
                continue
            output = self.new_shard(file)
            try:
                copy_runs(output, inside, num_codes)
                publish_shard(output, is_in_place=self.is_in_place)
            except BaseException:
                output.buffer.discard()
                raise
            self.remove_file(file, others=True)

    @property
    def is_swapped(self) -> bool:
        """Whether files are replaced on condition, and never removed: in a bucket, another writer
        may be changing them."""
        return self.is_in_place and self.array.store.can.compares

    def stays(self, file: Vec4) -> bool:
        """Return whether a file without nonzero voxels is stored all the same."""
        return self.is_swapped and self.array.store.states([self.naming.key(file)]) != [None]

    def check_name(self, file: Vec4) -> None:
        """Raise UnsupportedError if a file would be replaced by one of another name, which is not
        possible in one step."""
        if not self.is_swapped:
            return
        key, store = self.naming.key(file), self.array.store
        others = [name for name in self.naming.names(file) if name != key]
        for name, state in zip(others, store.states(others), strict=True):
            if state is not None:
                raise UnsupportedError(
                    f"{store.path_of(name)}: would be replaced by {key}, and a bucket cannot "
                    "replace one name by another; save the whole level again with "
                    'existing="overwrite"'
                )

    def remove_file(self, file: Vec4, *, others: bool = False) -> None:
        """Remove a file that an interrupted attempt may have left; with ``others``, only its
        variants with other names."""
        if self.is_swapped:
            return
        key = self.naming.key(file)
        for name in self.naming.names(file) if self.is_in_place else (key,):
            if not (others and name == key):
                self.array.store.delete(name)

    def remove_parts(self, shard: Vec3) -> None:
        """Remove the part files of a joined shard."""
        if self.is_sharded:
            self.staging.delete_folder(self._part_folder(shard))

    def published_receipt(self, receipt: Receipt) -> Receipt:
        """Complete a receipt with path, size and state of its shard, or of its group of files."""
        if self.array.grid.file is None or self.array.files.has_single_file_shards:
            (state,) = self.array.store.states([self.shard_key(receipt.shard)])
            count, nbytes, stamp = (0, 0, 0) if state is None else (1, *state)
        else:
            count, nbytes, stamp = self.array.files.group_state(receipt.shard)
        return replace(
            receipt,
            path=self.shard_path(receipt.shard) if count else None,
            nbytes=nbytes,
            mtime_ns=stamp,
            files=count or 1,
        )

    def has_files_of(self, receipt: Receipt) -> bool:
        """Return whether the files of a receipt exist and are complete.

        Compares state and tables of a shard, sizes of single files, and all bytes of a part file.
        """
        is_part_file = receipt.part is not None and self.is_sharded
        if not receipt.nbytes:
            # all voxels are zero: in place, no file of an earlier state may remain
            return not self.is_in_place or is_part_file or not self.stored_sizes(receipt)
        if is_part_file:
            assert receipt.part is not None
            return is_whole_part_file(
                self.staging,
                self.part_file_name(receipt.shard, receipt.part),
                receipt.nbytes,
                receipt.checksum,
            )
        if not self.is_sharded and (receipt.part is not None or not self.is_in_place):
            sizes = self.stored_sizes(receipt)
            return (len(sizes), sum(sizes)) == (receipt.files, receipt.nbytes)
        if self.is_in_place:
            current = self.published_receipt(receipt)
            if (current.nbytes, current.mtime_ns) != (receipt.nbytes, receipt.mtime_ns):
                return False  # another program has written it since
        return not self.is_sharded or self._is_whole_shard(receipt)

    def _is_whole_shard(self, receipt: Receipt) -> bool:
        sizes = self.stored_sizes(receipt)
        if (len(sizes), sum(sizes)) != (receipt.files, receipt.nbytes):
            return False
        return all(
            self._is_whole_file(key)
            for _, key in self.naming.keys(self.files_of(receipt.shard, receipt.box))
        )

    def _is_whole_file(self, key: str) -> bool:
        """Return whether a file of many chunks has valid tables; an absent one has no chunks."""
        layout = shards_of(self.array)
        with layout.opened(self.array.store, key) as file:
            return file is None or layout.is_whole(file)

    def stored_sizes(self, receipt: Receipt) -> list[int]:
        """Return the sizes of the files of a shard, or of a part of a group."""
        keys = (key for _, key in self.naming.keys(self.files_of(receipt.shard, receipt.box)))
        return [state.nbytes for state in self.array.store.states(keys) if state is not None]
