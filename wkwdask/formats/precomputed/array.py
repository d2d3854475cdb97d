"""One scale of a Neuroglancer precomputed volume as a stored array."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from wkwdask.formats.identity import FileIdentity, RecordState, read_record_state
from wkwdask.formats.precomputed.chunk import PrecomputedCodec
from wkwdask.formats.precomputed.info import FILE_NAME
from wkwdask.formats.precomputed.info_file import cached_info, info_in
from wkwdask.formats.precomputed.layouts import PrecomputedShards, SpanFiles
from wkwdask.formats.precomputed.naming import ShardNaming, SpanNaming, stored_suffix
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import times
from wkwdask.model.chunk_grid import ChunkGrid, Vec4, grouped_unit
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.writing.target_array import TargetArray

if TYPE_CHECKING:
    import numpy as np

    from wkwdask.formats.precomputed.info import Scale, VolumeInfo
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.layout import ShardLayout
    from wkwdask.model.naming import KeyNaming
    from wkwdask.model.store import Store


@dataclass(frozen=True, slots=True)
class ScaleIdentity(FileIdentity):
    """A scale and the ``info`` of its volume."""

    volume: Store
    scale: Scale
    dtype: np.dtype[Any]
    num_channels: int

    noun: ClassVar[str] = "scale"
    whole_noun: ClassVar[str] = "volume"

    @property
    def records(self) -> Store:
        return self.volume

    @property
    def token(self) -> tuple[Any, ...]:
        """Identity of the stored scale; for a remote volume it changes with ``info`` only."""
        return (
            "precomputed",
            self._scale,
            repr(self.scale.entry),
            None if self.opened is None else self.opened.folder,
        )

    def content(self, box: BoundingBox) -> tuple[Any, ...]:
        return self._scale, self.dtype.str, self.num_channels, box

    @property
    def _scale(self) -> Scale:
        """The scale without its place in the list, which changes when others are added."""
        return replace(self.scale, index=0)

    def is_still_described(self) -> bool:
        """Check whether ``info`` still lists this scale unchanged; other scales may be added or
        removed."""
        info = self._info_now()
        if info is None or (info.dtype, info.num_channels) != (self.dtype, self.num_channels):
            return False
        chunk = self.scale.chunk_size
        same_key = [
            scale
            for scale in info.scales
            if scale.key == self.scale.key and chunk in scale.chunk_sizes
        ]
        # Encoder options only concern writers, and further chunk sizes are separate files: neither
        # changes what is read.
        ours = replace(self.scale, chunk_sizes=(), options={})
        return any(
            replace(scale, chunk_size=chunk, chunk_sizes=(), options={}) == ours
            for scale in same_key
        )

    def _info_now(self) -> VolumeInfo | None:
        if not self.volume.can.states:
            return info_in(self.volume)
        now = read_record_state(self.store, self.record_name, self.volume)
        return None if now is None else cached_info(self.volume, now.record)


def scale_array(volume: Store, info: VolumeInfo, scale: Scale, mag: Mag) -> StoredArray:
    """Return a stored scale as an array in absolute voxels."""
    codec, store = PrecomputedCodec.of(info, scale), volume.below(scale.key)
    return _array(
        store,
        volume,
        scale,
        codec,
        mag,
        read_record_state(store, FILE_NAME, volume) if volume.can.states else None,
    )


def target_scale(
    store: Store, volume: Store, scale: Scale, codec: PrecomputedCodec, mag: Mag
) -> TargetArray:
    """Return the placement of a new scale; files of unsharded chunks have the suffix that the codec
    states."""
    return TargetArray(_array(store, volume, scale, codec, mag, None), store)


def with_stored_suffix(array: StoredArray) -> StoredArray:
    """Return an array whose new files get the suffix of the stored ones; readers on servers look
    for one."""
    naming, codec = array.naming, array.codec
    if not isinstance(naming, SpanNaming) or not isinstance(codec, PrecomputedCodec):
        return array
    suffix = stored_suffix(array.store)
    return replace(
        array, naming=replace(naming, suffix=suffix), codec=replace(codec, packing=suffix)
    )


def _array(
    store: Store,
    volume: Store,
    scale: Scale,
    codec: PrecomputedCodec,
    mag: Mag,
    opened: RecordState | None,
) -> StoredArray:
    sharding, channels = scale.sharding, codec.num_channels
    size, chunk = (channels, *scale.size), (channels, *scale.chunk_size)
    naming: KeyNaming
    layout: ShardLayout
    if sharding is None:
        file: Vec4 | None = chunk
        unit = grouped_unit(size, chunk, codec.dtype.itemsize)
        naming, layout = (
            SpanNaming(scale.voxel_offset, scale.chunk_size, scale.size, codec.packing),
            SpanFiles(),
        )
    else:
        # Hashed identifiers scatter the chunks of a shard over the volume: then no box of voxels is
        # one file, and the unit of work is the whole grid, rounded up to powers of two.
        cells = sharding.shard_cells(scale.grid)
        unit = times(
            cells or vec3([1 << (n - 1).bit_length() for n in scale.grid]), scale.chunk_size
        )
        file = None if cells is None else (channels, *unit)
        naming, layout = ShardNaming(sharding, scale.grid), PrecomputedShards(sharding, scale.grid)
        codec = replace(codec, packing="chunk" if sharding.data_encoding == "gzip" else "")
    grid = ChunkGrid(size, chunk, file, unit, scale.voxel_offset, truncates=True)
    identity = ScaleIdentity(store, FILE_NAME, opened, volume, scale, codec.dtype, channels)
    return StoredArray(
        store, grid, naming, layout, codec, codec.dtype, identity, mag, lengths_nm=scale.resolution
    )


def scale_identity(array: StoredArray) -> ScaleIdentity:
    assert isinstance(array.identity, ScaleIdentity)
    return array.identity
