"""Scales of a precomputed volume that are made from voxels which are stored already: how they are stored, and by what their source is known again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.formats.precomputed.choose_sharding import choose_sharding
from wkwdask.model.states import digest
from wkwdask.verbs.others.precomputed_write import BLOCK_SIZE, ScaleEncoding, check_compress, quality_hint

if TYPE_CHECKING:
    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.layer import AbsoluteVolume
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.states import States
    from wkwdask.verbs.others.precomputed_write import VolumeType


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """How new scales are stored; None leaves it as in the scale that they are made from."""

    encoding: str | None = None
    """One of ``wkwdask.formats.precomputed.info.ENCODINGS``."""
    sharded: bool | Sharding | None = None
    """Whether chunks are put into shards, or how."""
    chunk_size: Vec3 | None = None
    """A chunk [voxels]."""
    quality: int | None = None
    """Of jpeg and jxl, 0..100."""
    compress: str | None = None
    """How chunks that are files of their own are compressed, None or ``"gzip"``."""
    force: bool = False
    """Whether a segmentation may be encoded in a way that changes ids."""

    def of_new(self) -> ScaleEncoding:
        """Say how scales are stored that are not made of others."""
        return ScaleEncoding(self.encoding, self.sharded or False, self.chunk_size or (64, 64, 64), self.quality, self.compress)


def stored_like(scale: Scale, options: ScaleOptions, volume: VolumeType) -> Scale:
    """Describe a scale of the same voxels that is stored as a user asks for."""
    encoding = options.encoding or scale.encoding
    hints = dict(scale.options) if encoding == scale.encoding else {}
    hints |= quality_hint(encoding, options.quality)
    chunk_size = options.chunk_size or scale.chunk_size
    blocks = (scale.block_size or BLOCK_SIZE) if encoding == "compressed_segmentation" else None
    new = replace(scale, encoding=encoding, chunk_size=chunk_size, chunk_sizes=(chunk_size,), block_size=blocks, options=hints, entry={})
    sharding = _sharding(scale, new, options, volume)
    check_compress(options.compress, sharding)
    return replace(new, sharding=sharding)


def _sharding(scale: Scale, new: Scale, options: ScaleOptions, volume: VolumeType) -> Sharding | None:
    """Choose how chunks are put into shards: as they are, where that is asked for and still makes boxes."""
    if options.sharded is False or (options.sharded is None and scale.sharding is None):
        return None
    if options.sharded not in (None, True):
        return options.sharded  # type: ignore[return-value]
    before = scale.sharding
    if before is not None and (new.chunk_size, new.encoding) == (scale.chunk_size, scale.encoding) and before.shard_cells(scale.grid) is not None:
        return before.fitted(new.grid)
    return choose_sharding(new.size, new.chunk_size, volume.dtype, num_channels=volume.num_channels, encoding=new.encoding)


def source_settings(source: AbsoluteVolume, states: States | None = None) -> dict[str, Any]:
    """Name the scale that is read and the state of all its files, so that a job goes on only with what it began with."""
    stored = source.volume
    states = stored.stored_states() if states is None else states
    name = hashlib.blake2b(repr((stored.scale, stored.dtype.str, stored.num_channels)).encode(), digest_size=8).hexdigest()
    return {"source": stored.scale.key, "input": name, "states": digest(states)}
