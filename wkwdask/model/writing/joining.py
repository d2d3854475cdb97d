"""Join of the part files of a shard, without decoding chunks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import IncompleteWriteError
from wkwdask.geometry.grid import cell_box
from wkwdask.model.writing.chunk_order import codes_in_shard, shards_of, touched_cells
from wkwdask.model.writing.receipts import Stats, merge_receipts
from wkwdask.model.writing.run import Run, RunTable, open_run
from wkwdask.model.writing.writers import PartWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.writing.encoding import BoxEncoder
    from wkwdask.model.writing.receipts import Receipt
    from wkwdask.model.writing.target_files import TargetFiles


def join_shard(
    files: TargetFiles, encoder: BoxEncoder, shard: Vec3, parts: Sequence[Receipt]
) -> Receipt:
    """Join part files into a shard without decoding chunks, and publish it; single-chunk files
    are published already."""
    receipt = merge_receipts(shard, parts)
    stored = [part for part in parts if part.path is not None]
    if not files.is_sharded:
        return files.published_receipt(receipt)
    with ExitStack() as opened:
        runs = []
        for part in stored:
            assert part.part is not None
            file = files.staging.open(files.part_file_name(shard, part.part))
            if file is None:
                # dask can run a task twice: the first run published the shard and removed its
                # parts
                if not files.stored_sizes(receipt):
                    raise IncompleteWriteError(
                        f"{part.path}: a part of {files.shard_path(shard)} is missing, though "
                        "the shard is not joined yet"
                    )
                return files.published_receipt(receipt)
            runs.append(open_run(opened.enter_context(file)))
        if encoder.merges:
            runs += _untouched_runs(files, encoder, shard, [part.box for part in parts], opened)
        files.write_shard(shard, runs)
    return files.published_receipt(receipt) if runs else receipt


def _untouched_runs(
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
    writer, array = PartWriter(files, encoder, shard, (-1, -1, -1)), files.array
    chunk = np.empty((array.num_channels, *array.chunk_shape), array.dtype, order="F")
    try:
        for x, y, z in (places * array.chunk_shape).tolist():
            array.read_into(chunk, (x, y, z))
            writer.add(encoder.encode_chunks(chunk, (x, y, z), Stats(array.mag), is_part=True))
        name = files.part_file_name(shard, (-1, -1, -1))
        file = None if writer.close().path is None else files.staging.open(name)
    except BaseException:
        writer.discard()
        raise
    return [] if file is None else [open_run(opened.enter_context(file))]
