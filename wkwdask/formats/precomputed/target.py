"""One scale of a precomputed volume that is being built in a job's folder, in coordinates that count from its ``voxel_offset``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.formats.chunked_target import ShardableTarget, published
from wkwdask.formats.precomputed import images
from wkwdask.formats.precomputed.files import group_cells
from wkwdask.formats.precomputed.gzip_stream import compress_gzip
from wkwdask.formats.precomputed.shard_output import ShardOutput
from wkwdask.formats.precomputed.sharding import INDEX_ENTRY_NBYTES
from wkwdask.formats.precomputed.volume import PrecomputedVolume
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range
from wkwdask.model.receipts import Receipt
from wkwdask.store import files
from wkwdask.store.new_files import NewFile, NewFiles
from wkwdask.store.paths import basename, dirname
from wkwdask.store.store import FolderStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.formats.precomputed.chunk import ChunkCodec
    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.geometry.mag import Vec3


_HELD_NBYTES = 32 << 20  # of chunks that are put in the order of their identifiers, as if they were decoded
_MOST_SHARDS = 1 << 12  # that are made of one stored file: each of them looks through all


def can_splice(source: Any, target: PrecomputedTarget) -> bool:
    """Tell whether stored chunks of a volume are chunks of a target: images of the same voxels, places and chunks, encoded with the same options."""
    if not isinstance(source, PrecomputedVolume) or source.scale.encoding not in images.ENCODINGS:
        return False
    same = (source.codec, source.chunk_shape, source.extent.size) == (target.codec, target.chunk_shape, target.box.size)
    return same and source.box == source.extent and math.prod(source.shard_shape) <= _MOST_SHARDS * math.prod(target.shard_shape)


def splice_shard(source: PrecomputedVolume, target: PrecomputedTarget, shard: Vec3) -> Receipt:
    """Make one shard, or group of chunks, of what a volume has stored in its place, and publish it."""
    box = cell_box(shard, target.shard_shape, target.box).intersection(target.box)
    receipt = Receipt(shard, box, voxels=box.volume)
    chunks = _chunks(source, target, shard, box)
    return _as_files(target, receipt, chunks) if target.scale.sharding is None else _as_shard(target, receipt, chunks)


def _as_files(target: PrecomputedTarget, receipt: Receipt, chunks: Iterator[tuple[Vec3, int, bytes]]) -> Receipt:
    """Store each chunk in a file of its own."""
    files = NewFiles(target.folder, target.parts_folder)
    try:
        for cell, _, data in chunks:
            files.write(target.chunk_path(cell)[len(target.folder) + 1 :], data)
        files.publish()
    except BaseException:
        files.discard()
        raise
    return replace(receipt, path=target.shard_path(receipt.shard), nbytes=files.nbytes, files=files.count) if files.count else receipt


def _as_shard(target: PrecomputedTarget, receipt: Receipt, chunks: Iterator[tuple[Vec3, int, bytes]]) -> Receipt:
    """Store all chunks in a shard."""
    output, first, stored = target.open_shard(receipt.shard), target.first_id(receipt.shard), 0
    try:
        for _, code, data in chunks:
            output.begin(np.array([code - first], np.uint64), np.array([len(data)]))
            output.pieces.append(np.frombuffer(data, np.uint8))
            stored += 1
        if not stored:
            output.discard()
            return receipt
        output.publish()
    except BaseException:
        output.discard()
        raise
    return published(receipt, target.shard_path(receipt.shard))


def _chunks(source: PrecomputedVolume, target: PrecomputedTarget, shard: Vec3, box: BoundingBox) -> Iterator[tuple[Vec3, int, bytes]]:
    """Go through the stored chunks of a shard in the order of their identifiers: cell, identifier and bytes, packed as the target packs them."""
    grid, num_found, num_cells = target.scale.grid, 0, 0
    for ranges in _pieces(target, shard, box):
        num_cells += math.prod(len(cells) for cells in ranges)
        found = list(source.stored_chunks(ranges))
        num_found += len(found)
        codes = compressed_morton.encode([cell for cell, _ in found], grid)
        for n in np.argsort(codes).tolist():
            cell, chunk = found[n]
            if not chunk.data:
                raise CorruptError(f"{chunk.path}: chunk {cell}: byte {chunk.offset}: 0 bytes, expected an encoded chunk")
            yield cell, int(codes[n]), target.packed(bytes(chunk.data))
    if num_found < num_cells:
        source.check_absence()


def _pieces(target: PrecomputedTarget, shard: Vec3, box: BoundingBox) -> Iterator[Sequence[range]]:
    """Cut a shard into boxes of chunks whose identifiers follow each other, each so small that it can be held: the cells of each along x, y, z."""
    grid, inside = target.scale.grid, cell_range(box, target.chunk_shape)
    chunk_nbytes = math.prod(target.chunk_shape) * target.num_channels * target.dtype.itemsize
    bits = min(max(1, _HELD_NBYTES // chunk_nbytes).bit_length() - 1, len(compressed_morton.bit_axes(grid)))
    edges = compressed_morton.cells_per_axis(bits, grid)
    steps = [range(cells.start // edge, -(-cells.stop // edge)) for cells, edge in zip(inside, edges, strict=True)]
    corners = np.stack(np.meshgrid(*steps, indexing="ij"), axis=-1).reshape(-1, 3) * edges
    for n in np.argsort(compressed_morton.encode(corners, grid)).tolist():
        corner = corners[n].tolist()
        yield [range(max(low, cells.start), min(low + edge, cells.stop)) for low, edge, cells in zip(corner, edges, inside, strict=True)]


SUFFIXES = {None: "", "gzip": ".gz"}
"""What is appended to the name of a chunk's own file, by the way in which it is compressed."""


@dataclass(frozen=True, slots=True)
class PrecomputedTarget(ShardableTarget):
    """One scale that is being built; small to pickle."""

    scale: Scale
    """What is made."""
    codec: ChunkCodec
    """How its chunks are encoded."""
    compress: str | None = None
    """How chunks that are files of their own are compressed, None or ``"gzip"``."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel, in native byte order."""
        return self.codec.dtype

    @property
    def num_channels(self) -> int:
        """Values per voxel."""
        return self.codec.num_channels

    @property
    def box(self) -> BoundingBox:
        """Where data goes [voxels of the scale, counted from ``origin``]."""
        return BoundingBox((0, 0, 0), self.scale.size, self.mag)

    @property
    def origin(self) -> Vec3:
        """Absolute voxel of the scale at which its coordinates start."""
        return self.scale.voxel_offset

    @property
    def chunk_shape(self) -> Vec3:
        """A chunk along x, y, z [voxels]."""
        return self.scale.chunk_size

    @property
    def shard_shape(self) -> Vec3:
        """A shard file, or a group of chunks, along x, y, z [voxels]."""
        x, y, z = (n * edge for n, edge in zip(group_cells(self.scale, self.voxel_nbytes), self.chunk_shape, strict=True))
        return x, y, z

    @property
    def index_nbytes(self) -> int | None:
        """Bytes of the index of a shard file; None where chunks are files of their own."""
        return None if self.scale.sharding is None else self.scale.sharding.index_nbytes

    def as_volume(self) -> PrecomputedVolume:
        """Read what has been published so far."""
        store, key = FolderStore(dirname(self.folder)), basename(self.folder)
        return PrecomputedVolume(store, self.dtype, self.num_channels, replace(self.scale, key=key), self.mag)

    def codes(self, places: Sequence[Vec3]) -> npt.NDArray[np.uint64]:
        """Give the identifiers of chunks."""
        return compressed_morton.encode(places, self.scale.grid)

    def encode_chunk(self, voxels: npt.NDArray[Any], cell: Vec3) -> bytes:
        """Encode one chunk (c, x, y, z), which is cut off at the upper ends of the box."""
        return self.packed(self.codec.encode(voxels, self.chunk_path(cell)))

    def packed(self, data: bytes) -> bytes:
        """Compress an encoded chunk as it is stored."""
        gzips = self.compress == "gzip" if self.scale.sharding is None else self.scale.sharding.data_encoding == "gzip"
        is_image = self.scale.encoding == "raw" and self.dtype.itemsize <= 2  # of labels there is more to be gained
        return compress_gzip(data, is_image=is_image) if gzips else data

    def chunk_path(self, cell: Vec3) -> str:
        """Name the file of a chunk that is stored by itself."""
        return f"{self.folder}/{self.scale.chunk_name(cell)}{SUFFIXES[self.compress]}"

    def first_id(self, shard: Vec3) -> int:
        """Give the lowest identifier of the chunks in a shard."""
        x, y, z = (n * edge // step for n, edge, step in zip(shard, self.shard_shape, self.chunk_shape, strict=True))
        return self.scale.chunk_id((x, y, z))

    def shard_file(self, shard: Vec3) -> str:
        """Name a shard file."""
        sharding = self.scale.sharding
        assert sharding is not None
        return f"{self.folder}/{sharding.shard_name(self.first_id(shard) >> (sharding.preshift_bits + sharding.minishard_bits))}"

    def can_splice(self, source: Any) -> bool:
        """Tell whether stored chunks of a volume are chunks of this scale."""
        return can_splice(source, self)

    def splice_shard(self, source: PrecomputedVolume, shard: Vec3) -> Receipt:
        """Make a shard of the chunks that a scale has stored in its place, see :func:`wkwdask.formats.precomputed.target.splice_shard`."""
        return splice_shard(source, self, shard)

    def open_shard(self, shard: Vec3) -> ShardOutput:
        """Start a shard file."""
        assert self.scale.sharding is not None
        return ShardOutput(self.scale.sharding, self.first_id(shard), lambda: NewFile(self.shard_path(shard), self.parts_folder))

    def is_whole_shard(self, path: str, nbytes: int) -> bool:
        """Tell whether a shard file is there, has its size, and an index that ends where the file does, as all do that are written here."""
        tables = self.index_nbytes or 0
        try:
            with files.open_stream(path) as file:
                raw = file.read(tables)
                size = files.getsize(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if size != nbytes or len(raw) != tables:
            return False
        index = np.frombuffer(raw, "<u8").reshape(-1, INDEX_ENTRY_NBYTES // 8)
        return bool((index[:, 0] <= index[:, 1]).all()) and int(index.max()) == size - tables

    def expected_nbytes(self, files: int, voxel_nbytes: int, ratio: float) -> int:
        """Estimate what files take that hold some voxels, encoded at a ratio."""
        tables = 0
        if self.scale.sharding is not None:
            x, y, z = self.chunk_shape
            tables = files * self.scale.sharding.index_nbytes + 24 * (voxel_nbytes // (x * y * z * self.voxel_nbytes))
        return int(voxel_nbytes * ratio) + tables
