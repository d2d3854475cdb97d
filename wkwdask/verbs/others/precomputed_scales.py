"""Scales of a precomputed volume that are made from voxels which are stored already: how they are stored, and by what their source is known again."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wkwdask.model.states import digest
from wkwdask.verbs.others.precomputed_write import BLOCK_SIZE, check_compress, given_sharding, quality_hint

if TYPE_CHECKING:
    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.layer import AbsoluteVolume
    from wkwdask.formats.precomputed.options import PrecomputedOptions
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.model.states import States
    from wkwdask.verbs.others.precomputed_write import VolumeType


def stored_like(scale: Scale, options: PrecomputedOptions, volume: VolumeType) -> Scale:
    """Describe a scale of the same voxels that is stored as a user asks for."""
    encoding = options.encoding or scale.encoding
    hints = dict(scale.options) if encoding == scale.encoding else {}
    hints |= quality_hint(encoding, options.quality)
    chunk_size = options.chunk_shape or scale.chunk_size
    blocks = (scale.block_size or BLOCK_SIZE) if encoding == "compressed_segmentation" else None
    new = replace(scale, encoding=encoding, chunk_size=chunk_size, chunk_sizes=(chunk_size,), block_size=blocks, options=hints, entry={})
    sharding = _sharding(scale, new, options, volume)
    check_compress(options.file_compression, sharding)
    return replace(new, sharding=sharding)


def _sharding(scale: Scale, new: Scale, options: PrecomputedOptions, volume: VolumeType) -> Sharding | None:
    """Choose how chunks are put into shards: as they are, where that is asked for and still makes boxes."""
    asked = options.shard_shape
    if asked is False or (asked is None and scale.sharding is None):
        return None
    if asked not in (None, True):
        return given_sharding(asked, new, volume)
    before = scale.sharding
    if before is not None and (new.chunk_size, new.encoding) == (scale.chunk_size, scale.encoding) and before.shard_cells(scale.grid) is not None:
        return before.fitted(new.grid)
    return given_sharding(True, new, volume)


def source_settings(source: AbsoluteVolume, states: States | None = None) -> dict[str, Any]:
    """Name the scale that is read and the state of all its files, so that a job goes on only with what it began with."""
    stored = source.volume
    states = stored.stored_states() if states is None else states
    name = hashlib.blake2b(repr((stored.scale, stored.dtype.str, stored.num_channels)).encode(), digest_size=8).hexdigest()
    return {"source": stored.scale.key, "input": name, "states": digest(states)}
