"""Join of the part files of a shard, without decoding chunks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from wkwdask.errors import IncompleteWriteError
from wkwdask.model.writing.merging import untouched_runs
from wkwdask.model.writing.receipts import merge_receipts
from wkwdask.model.writing.run import open_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.writing.encoding import BoxEncoder
    from wkwdask.model.writing.receipts import Receipt
    from wkwdask.model.writing.run import Run
    from wkwdask.model.writing.target_files import TargetFiles


def join_shard(
    files: TargetFiles, encoder: BoxEncoder, shard: Vec3, parts: Sequence[Receipt]
) -> Receipt:
    """Join part files into a shard without decoding chunks, and publish it; single-chunk files
    are published already."""
    receipt = merge_receipts(shard, parts)
    if not files.is_sharded:
        return files.published_receipt(receipt)
    with ExitStack() as opened:
        try:
            runs = [_open_part(files, part, opened) for part in parts if part.path is not None]
        except IncompleteWriteError:
            # dask can run a task twice: the first run published the shard and removed its parts
            if not files.stored_sizes(receipt):
                raise
            return files.published_receipt(receipt)
        if encoder.merges:
            runs += untouched_runs(files, encoder, shard, [part.box for part in parts], opened)
        files.write_shard(shard, runs)
    return files.published_receipt(receipt) if runs else receipt


def _open_part(files: TargetFiles, part: Receipt, opened: ExitStack) -> Run:
    """Open a part file of a shard."""
    assert part.part is not None
    # with its size, which a bucket states together with a first byte
    (file,) = files.staging.open_heads([files.part_file_name(part.shard, part.part)], 1)
    if file is None:
        raise IncompleteWriteError(
            f"{part.path}: a part of {files.shard_path(part.shard)} is missing, though the shard "
            "is not joined yet"
        )
    return open_run(opened.enter_context(file))
