"""Scales made of the stored chunks of another, which stay as they are encoded: images that were encoded with loss lose nothing more."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.formats.chunk_writers import published
from wkwdask.formats.precomputed import images
from wkwdask.formats.precomputed.volume import PrecomputedVolume
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.grid import cell_box, cell_range
from wkwdask.model.receipts import Receipt
from wkwdask.store.new_files import NewFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.formats.precomputed.target import PrecomputedTarget
    from wkwdask.geometry.bounding_box import BoundingBox
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
    """Make one shard, or group of chunks, of what a volume has stored in its place, and publish it.

    Parameters
    ----------
    source : PrecomputedVolume
        What is copied, see :func:`can_splice`.
    target : PrecomputedTarget
        What is written.
    shard : tuple of 3 int
        Index of the shard along x, y, z.

    Returns
    -------
    Receipt
        Without a path where no chunk is stored. Least and greatest value are not known.

    Raises
    ------
    FormatError
        A file of the source is broken.
    MissingError, ReplacedError
        The whole source is gone, or is another one by now.
    """
    box = cell_box(shard, target.shard_shape, target.box).intersection(target.box)
    receipt = Receipt(shard, box, voxels=box.volume)
    chunks = _chunks(source, target, shard, box)
    return _as_files(target, receipt, chunks) if target.scale.sharding is None else _as_shard(target, receipt, chunks)


def _as_files(target: PrecomputedTarget, receipt: Receipt, chunks: Iterator[tuple[Vec3, int, bytes]]) -> Receipt:
    """Store each chunk in a file of its own."""
    files = NewFiles(target.parts_folder)
    try:
        for cell, _, data in chunks:
            files.write(target.chunk_path(cell), data)
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
