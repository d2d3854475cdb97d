"""Shards that are created from the stored chunks of another array, without decoding these."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.geometry.grid import clipped_cell
from wkwdask.model.layout import Shards
from wkwdask.model.writing.chunk_order import codes_in_shard, touched_cells
from wkwdask.model.writing.receipts import Receipt
from wkwdask.model.writing.run import Run, RunTable, publish_shard
from wkwdask.model.writing.splice import Splice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.array_types import IntArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.writing.target_files import TargetFiles


def splice_shard(
    files: TargetFiles, source: StoredArray, shard: Vec3, *, keeps_outside: bool
) -> Receipt:
    """Create a shard from the stored chunks of an array in the same place, and publish it;
    ``keeps_outside`` is that of :class:`wkwdask.model.writing.splice.Splice`."""
    box = clipped_cell(shard, files.array.shard_shape, files.array.box)
    receipt, splice, places = (
        Receipt(shard, box, voxels=box.volume),
        Splice(source, files.array, keeps_outside=keeps_outside),
        touched_cells(files.array, box),
    )
    if not files.is_sharded:
        return replace(
            _spliced_files(files, receipt, splice.chunks(places)), outside=splice.num_outside
        )
    is_copy = (
        isinstance(source.layout, Shards)
        and source.codec == files.array.codec
        and not source.store.is_remote
    )
    if is_copy and not splice.checks_chunks and splice.ends_alike and splice.has_same_cells:
        return _copied_shard(files, receipt, source, places)
    return replace(_spliced_shard(files, receipt, splice, places), outside=splice.num_outside)


def _copied_shard(
    files: TargetFiles, receipt: Receipt, source: StoredArray, cells: IntArray
) -> Receipt:
    """Copy the stored chunks of other shards, whole stretches of a file at a time."""
    layout, runs, num_found = source.layout, [], 0
    assert isinstance(layout, Shards)
    assert source.naming is not None
    with ExitStack() as opened:
        for key, members in source.naming.locate(cells, source.grid):
            file = opened.enter_context(layout.opened(source.store, key))
            if file is None:
                continue
            located = layout.locate(file, cells[members])
            sizes, found = located[:, 1] - located[:, 0], cells[members][located[:, 2]]
            for row in np.flatnonzero(sizes == 0)[:1].tolist():
                place = tuple(found[row, 1:].tolist())
                raise CorruptError(
                    f"{file.name}: chunk {place}: byte {located[row, 0]}: expected an encoded "
                    "chunk, found 0 bytes"
                )
            num_found += len(found)
            runs.append(
                Run(RunTable(codes_in_shard(files.array, found), sizes, located[:, 0]), file)
            )
        source.identity.check(has_absent=num_found < len(cells))
        if not num_found:
            return receipt
        files.write_shard(receipt.shard, runs)
    return files.published_receipt(receipt)


def _spliced_files(
    files: TargetFiles, receipt: Receipt, chunks: Iterator[tuple[int, Vec4, bytes]]
) -> Receipt:
    new_files = files.array.store.new_files(files.staging.url, is_in_place=files.is_in_place)
    try:
        for _, cell, data in chunks:
            new_files.write(files.naming.key(cell), data)
        new_files.publish()
    except BaseException:
        new_files.discard()
        raise
    if not new_files.count:
        return receipt
    return replace(
        receipt,
        path=files.shard_path(receipt.shard),
        nbytes=new_files.nbytes,
        files=new_files.count,
    )


def _spliced_shard(
    files: TargetFiles, receipt: Receipt, splice: Splice, cells: IntArray
) -> Receipt:
    output = files.new_shard((0, *receipt.shard))
    try:
        if not splice.write(output, cells):
            output.buffer.discard()
            return receipt
        publish_shard(output, is_in_place=files.is_in_place)
    except BaseException:
        output.buffer.discard()
        raise
    return files.published_receipt(receipt)
