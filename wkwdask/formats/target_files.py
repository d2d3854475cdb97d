"""How many files a target makes of its chunks, whatever its format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.formats.precomputed.target import PrecomputedTarget
from wkwdask.model.placement import Placement

if TYPE_CHECKING:
    from wkwdask.model.volume import Target


def most_files(target: Target, shards: int, chunks: int) -> int:
    """Count files, at most: a shard is one, unless it only is a group of chunks each of which is a file of its own."""
    is_group = (isinstance(target, Placement) and not target.is_sharded) or (isinstance(target, PrecomputedTarget) and target.scale.sharding is None)
    return chunks if is_group else shards
