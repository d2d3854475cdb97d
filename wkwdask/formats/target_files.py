"""How many files a target makes of its chunks, whatever its format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.formats.n5.target import N5Target
from wkwdask.formats.precomputed.target import PrecomputedTarget
from wkwdask.formats.zarr.target import ZarrTarget

if TYPE_CHECKING:
    from wkwdask.model.volume import Target


def most_files(target: Target, shards: int, chunks: int) -> int:
    """Count files, at most: a shard is one, unless it only is a group of chunks each of which is a file of its own."""
    is_group = (
        isinstance(target, N5Target)
        or (isinstance(target, PrecomputedTarget) and target.scale.sharding is None)
        or (isinstance(target, ZarrTarget) and not target.is_sharded)
    )
    return chunks if is_group else shards
