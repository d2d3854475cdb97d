"""Plan new scales of a precomputed volume: check its folder and existing scales, and choose keys,
resolutions, encodings and shards."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from wkwdask.errors import ExistsError, UnsupportedError, ViewerWarning
from wkwdask.formats.marks import contains_wkw
from wkwdask.formats.precomputed.array import ScaleIdentity, target_scale
from wkwdask.formats.precomputed.chunk import PrecomputedCodec
from wkwdask.formats.precomputed.info import (
    FILE_NAME,
    PROVENANCE,
    Scale,
    UnusableScale,
    VolumeInfo,
    default_key,
    mag_of,
    new_document,
    same_resolution,
    scale_entry,
)
from wkwdask.formats.precomputed.info_file import InfoEdit, find_info
from wkwdask.formats.precomputed.layer import PREFIX, enclosing_volume, stripped
from wkwdask.formats.precomputed.sharding import (
    TARGET_SHARD_NBYTES,
    Sharding,
    choose_sharding,
    sharding_of_bits,
)
from wkwdask.formats.precomputed.writable import check_writable, is_lossy
from wkwdask.formats.replaceable import is_occupied
from wkwdask.formats.roots import Root
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.vectors import times
from wkwdask.model.levels import lengths_in, ratio_of
from wkwdask.model.placement import plain_name
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.voxel_type import guess_category
from wkwdask.model.writing.target_image import NewLevels, TargetFolder, storage_text
from wkwdask.plans.chunks import BUCKET_SHARD_NBYTES, chunks_per_shard
from wkwdask.store import by_path
from wkwdask.store.paths import is_bucket, stated_path, target_path
from wkwdask.store.store import open_store, store_at

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from wkwdask.formats.precomputed.options import PrecomputedOptions
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_image import Destination, LevelSpec

# `type` in `info` of each layer category
VOLUME_TYPES = {"color": "image", "segmentation": "segmentation"}
_BLOCK_SIZE = (8, 8, 8)
_QUALITIES = {"jpeg": "jpeg_quality", "jxl": "jxl_quality"}


@dataclass(frozen=True, slots=True)
class TargetVolume(TargetFolder):
    """Local folder of a volume to write to, a
    :class:`wkwdask.model.writing.target_image.TargetImage`."""

    prefix: ClassVar[str] = PREFIX
    info: VolumeInfo | None
    """Content of the existing ``info``, None for a new volume."""
    new_keys: Mapping[Mag, str] = field(default_factory=dict)
    """Keys of new scales, by default their resolutions."""

    def new_levels(
        self,
        specs: Sequence[LevelSpec],
        options: PrecomputedOptions,
        like: Volume | None = None,
        existing: str = "error",
    ) -> NewLevels:
        volume = self._type(specs[0])
        scales = [self._scale(spec, options, volume, like) for spec in specs]
        folders = tuple(self.folder_of(scale.key) for scale in scales)
        warnings: list[str] = []
        for scale in scales:
            warnings += check_writable(
                scale, volume.dtype, volume.num_channels, volume.type, force=options.force
            )
            self._check_free(scale, existing)
        packing, store = ".gz" if options.compression == "gzip" else "", open_store(self.folder)
        targets = tuple(
            replace(
                target_scale(
                    store.at(folder),
                    store,
                    scale,
                    PrecomputedCodec.of_scale(scale, volume.dtype, volume.num_channels, packing),
                    spec.box.mag,
                ),
                listed=self._switched_folder(scale),
            )
            for spec, scale, folder in zip(specs, scales, folders, strict=True)
        )
        settings = {
            "type": volume.type,
            "compression": "gzip" if packing else None,
            "scales": [scale_entry(scale) for scale in scales],
        }
        edit = InfoEdit(
            self.folder,
            tuple(scales),
            new_document(volume.type, volume.dtype, volume.num_channels),
            PROVENANCE,
        )
        like_scale = _scale_of(like)
        comparable = (
            scales[0]
            if like_scale is None or options.chunk_shape
            else replace(scales[0], chunk_sizes=like_scale.chunk_sizes)
        )
        parent = self._root.work_folder(self.folder, folders)
        return NewLevels(
            parent,
            folders,
            targets,
            settings,
            edit,
            tuple(map(ViewerWarning, dict.fromkeys(warnings))),
            stored_as=storage_text(scales[0].encoding, targets[0].array),
            is_unchanged=like_scale == comparable
            and (options.compression is None or comparable.sharding is not None),
            loss=None if like_scale is None else _loss(scales[0], like_scale),
        )

    def _type(self, spec: LevelSpec) -> VolumeInfo:
        """Return type, data type and channels of the volume, and check that existing scales
        agree."""
        native = spec.dtype.newbyteorder("=")
        kind = (
            None
            if self.destination.category is None
            else VOLUME_TYPES.get(self.destination.category, self.destination.category)
        )
        if kind not in (None, *VOLUME_TYPES.values()):
            raise ValueError(f'type must be "image" or "segmentation", got {kind!r}')
        if self.info is None:
            return VolumeInfo(
                kind
                or (
                    "segmentation"
                    if guess_category(native, spec.num_channels) == "segmentation"
                    else "image"
                ),
                native,
                spec.num_channels,
            )
        volume, existing = VolumeInfo(kind or self.info.type, native, spec.num_channels), self.info
        if (volume.type, volume.dtype, volume.num_channels) != (
            existing.type,
            existing.dtype,
            existing.num_channels,
        ):
            raise ValueError(
                f"{self.folder}/{FILE_NAME}: the volume is {existing.type} of "
                f"{existing.num_channels} x {existing.dtype.name}, "
                f"the new scale is {volume.type} of {volume.num_channels} x {native.name}; cast "
                "it, or write to another volume"
            )
        return volume

    def _scale(
        self, spec: LevelSpec, options: PrecomputedOptions, volume: VolumeInfo, like: Volume | None
    ) -> Scale:
        like_scale = _scale_of(like)
        if (
            like is None
            or like_scale is None
            or (like.dtype, like.num_channels) != (volume.dtype, volume.num_channels)
        ):
            resolution = self._resolution(spec.box.mag)
            encoding = (
                "compressed_segmentation"
                if volume.type == "segmentation" and volume.dtype.name in ("uint32", "uint64")
                else "raw"
            )
            # with_defaults() always sets a chunk shape, which replaces the one given here.
            new_scale = Scale(
                self.key_for(resolution, spec.box.mag),
                spec.box.size,
                spec.box.topleft,
                spec.box.size,
                resolution,
                encoding,
            )
            is_sharded = options.shard_shape is None and is_bucket(self.folder)
            stored = (replace(options, shard_shape=True) if is_sharded else options).with_defaults()
            return with_storage(new_scale, stored, volume, self._shard_nbytes)
        ratio = ratio_of(spec.box.mag.factors, like.box.mag.factors)
        x, y, z = (
            length * factor for length, factor in zip(like_scale.resolution, ratio, strict=True)
        )
        scale = replace(
            like_scale, size=spec.box.size, voxel_offset=spec.box.topleft, resolution=(x, y, z)
        )
        if spec.box.mag != like.box.mag:
            scale = replace(scale, hidden=False, entry={})
        return replace(
            with_storage(scale, options, volume, self._shard_nbytes),
            key=self.key_for(scale.resolution, spec.box.mag),
        )

    @property
    def _shard_nbytes(self) -> int:
        return BUCKET_SHARD_NBYTES if is_bucket(self.folder) else TARGET_SHARD_NBYTES

    def _resolution(self, mag: Mag) -> Lengths:
        """Return the edge lengths of a voxel of a new scale [nm]."""
        size = self.destination.required_voxel_size_nm or self.destination.source_voxel_size_nm
        lengths = None if size is None else lengths_in(mag, size)
        if self.destination.all_mags and lengths is not None:
            return lengths
        if self.info is None or not self.info.scales:
            if mag != MAG_1:
                raise ValueError(
                    f"{self.folder}: has no scales yet; mag= adds a coarser scale to an existing "
                    "volume"
                )
            if lengths is None:
                raise ValueError(
                    "voxel_size= is needed for a new volume: the edge lengths of a voxel in "
                    "nanometers, such as (4, 4, 40)"
                )
            return lengths
        resolution = self._resolution_of(mag, self.info)
        if self.destination.required_voxel_size_nm is not None and not same_resolution(
            resolution, lengths_in(mag, self.destination.required_voxel_size_nm)
        ):
            raise ValueError(
                f"{self.folder}/{FILE_NAME}: voxels of mag {mag} have {resolution} nm, those of "
                f"the array {lengths} nm; mag= writes a coarser scale"
            )
        return resolution

    def _check_free(self, scale: Scale, existing: str) -> None:
        # `info` may list a scale that has no file yet: its folder does not show that it exists.
        listed = self._listed_folder(scale.key)
        if existing == "error" and listed is not None and not is_occupied(listed):
            raise ExistsError(
                f"{self.folder}/{FILE_NAME}: already lists scale {scale.key!r}; "
                'existing="overwrite" replaces all of it'
            )

    def folder_of(self, key: str) -> str:
        source = f"{self.folder}/{FILE_NAME}"
        folder = self._root.level_folder(key)
        same_folder = [
            scale
            for scale in self._listed
            if plain_name(scale.key) == key
            or store_at(stated_path(self.folder, scale.key)).real() == store_at(folder).real()
        ]
        if len(same_folder) > 1 or any(plain_name(scale.key) != key for scale in same_folder):
            listed = " and ".join(f"scales[{scale.index}] ({scale.key!r})" for scale in same_folder)
            raise UnsupportedError(
                f"{source}: {listed} {'use' if len(same_folder) > 1 else 'uses'} the folder of "
                f"scale {key!r}, which is not replaced"
            )
        if any(
            isinstance(scale.entry, dict) and scale.entry.get("locked") is True
            for scale in same_folder
        ):
            raise ExistsError(
                f'{source}: scale {key!r} is locked ("locked": true), and is not replaced; remove '
                f"the lock from {FILE_NAME} if you may"
            )
        return folder

    @property
    def _root(self) -> Root:
        return Root(self.folder, f"{self.folder}/{FILE_NAME}", self.destination.allow_external)

    @property
    def _listed(self) -> tuple[Scale | UnusableScale, ...]:
        """All scales that ``info`` lists, usable or not."""
        return () if self.info is None else (*self.info.scales, *self.info.unusable)

    @property
    def listed_keys(self) -> set[str]:
        return {scale.key for scale in self._listed}

    def key_for(self, resolution: Lengths, mag: Mag) -> str:
        """Return the key of the existing scale with a resolution, else that of a new one."""
        for scale in sorted(self._listed, key=lambda scale: isinstance(scale, UnusableScale)):
            if scale.resolution is not None and same_resolution(scale.resolution, resolution):
                return plain_name(scale.key)
        key = self.new_keys.get(mag) or default_key(resolution)
        if key in map(plain_name, self.listed_keys):
            raise ExistsError(
                f"{self.folder}/{FILE_NAME}: scale {key!r} has another resolution than "
                f"{resolution} nm"
            )
        return key

    def _listed_folder(self, key: str) -> str | None:
        """Return the folder that ``info`` names for a scale; None if it lists no such scale."""
        listed = next((other for other in self.listed_keys if plain_name(other) == key), None)
        return None if listed is None else stated_path(self.folder, listed)

    def _switched_folder(self, scale: Scale) -> str | None:
        """Return the folder of a listed scale that a new one of another name replaces: in a bucket,
        where a job gave it another name before, and where ``info`` describes the files of the new
        one otherwise. None for a scale whose folder is replaced."""
        listed = self._listed_folder(scale.key)
        before = next((other for other in self._listed if plain_name(other.key) == scale.key), None)
        is_replaced = (
            store_at(self.folder).folders is not None
            and isinstance(before, Scale)
            and before.key == scale.key
            and _files_of(before) == _files_of(scale)
        )
        return None if is_replaced else listed

    def _resolution_of(self, mag: Mag, info: VolumeInfo) -> Lengths:
        """Return the edge lengths of a voxel of a mag [nm] as its scale states them, else scaled
        from those of another mag."""
        scales = [
            (scale_mag, scale.resolution)
            for scale in info.scales
            if (scale_mag := mag_of(info, scale)) is not None
        ]
        for scale_mag, resolution in scales:
            if scale_mag == mag:
                return resolution
        if not scales:
            raise ValueError(f"{self.folder}: no scale has a known mag; write mag 1 first")
        base, resolution = scales[0]
        x, y, z = (
            length * n / m
            for length, n, m in zip(resolution, mag.factors, base.factors, strict=True)
        )
        return x, y, z


def _scale_of(volume: Volume | None) -> Scale | None:
    """Return the precomputed scale behind a volume with its plain key, None for other volumes."""
    identity = volume.identity if isinstance(volume, StoredArray) else None
    if not isinstance(identity, ScaleIdentity):
        return None
    return replace(identity.scale, key=plain_name(identity.scale.key))


def _files_of(scale: Scale) -> tuple[Any, ...]:
    """Return what readers of a scale must know to read its files."""
    return (
        scale.size,
        scale.voxel_offset,
        scale.chunk_size,
        scale.encoding,
        scale.block_size,
        scale.sharding,
    )


def _loss(scale: Scale, source: Scale) -> str | None:
    """Return the loss of a copy: None for a lossless encoding, ``""`` for a new lossy encoding that
    the user chose, else a warning about a repeated one."""
    if not is_lossy(scale.encoding, scale.options.get("jxl_quality")):
        return None
    if scale.encoding != source.encoding:
        return ""
    return (
        f"scale {source.key!r} is decoded and encoded as {scale.encoding} again, which changes its "
        "voxels"
    )


def with_storage(
    scale: Scale, options: PrecomputedOptions, volume: VolumeInfo, shard_nbytes: int
) -> Scale:
    """Return a scale of the same voxels with the storage that the options choose."""
    encoding = options.encoding or scale.encoding
    hints = dict(scale.options) if encoding == scale.encoding else {}
    if options.quality is not None:
        if encoding not in _QUALITIES:
            raise ValueError(f"quality= is for {' and '.join(_QUALITIES)}, not for {encoding}")
        hints[_QUALITIES[encoding]] = options.quality
    chunk_size = options.chunk_shape or scale.chunk_size
    blocks = (scale.block_size or _BLOCK_SIZE) if encoding == "compressed_segmentation" else None
    new = replace(
        scale,
        encoding=encoding,
        chunk_size=chunk_size,
        chunk_sizes=(chunk_size,),
        block_size=blocks,
        options=hints,
        entry={},
    )
    sharding = _sharding(scale, new, options, volume, shard_nbytes)
    if sharding is None or options.compression is None:
        return replace(new, sharding=sharding)
    compressed = replace(
        sharding, data_encoding=options.compression, minishard_index_encoding=options.compression
    )
    if isinstance(options.shard_shape, Sharding) and sharding != compressed:
        raise ValueError(
            f"compression={options.compression!r} contradicts {sharding}: give one of them"
        )
    return replace(new, sharding=compressed)


def _sharding(
    scale: Scale, new: Scale, options: PrecomputedOptions, volume: VolumeInfo, shard_nbytes: int
) -> Sharding | None:
    """Return the sharding of a new scale: the requested one, else that of the source scale if its
    shards are boxes, else a chosen one."""
    requested: Any = options.shard_shape
    source_sharding = scale.sharding
    if requested is False or (requested is None and source_sharding is None):
        return None
    if isinstance(requested, Sharding):
        return requested
    if requested not in (None, True):
        if not isinstance(requested, tuple):
            raise TypeError(
                "shard_shape must be three lengths, True, False or a Sharding (see "
                f"choose_sharding), got {requested!r}"
            )
        return _sharding_of_shape(requested, new)
    is_like_source = (new.chunk_size, new.encoding) == (scale.chunk_size, scale.encoding)
    if (
        source_sharding is not None
        and is_like_source
        and source_sharding.shard_cells(scale.grid) is not None
    ):
        return source_sharding.fitted(new.grid)
    return choose_sharding(
        new.size,
        new.chunk_size,
        volume.dtype,
        num_channels=volume.num_channels,
        encoding=new.encoding,
        target_shard_nbytes=shard_nbytes,
    )


def _sharding_of_shape(shape: Vec3, scale: Scale) -> Sharding:
    """Return the sharding whose shards have a shape [voxels], or span the whole scale along axes
    where it is shorter."""
    grid = scale.grid
    x, y, z = (
        min(cells, 1 << (most - 1).bit_length())
        for cells, most in zip(chunks_per_shard(shape, scale.chunk_size), grid, strict=True)
    )
    possible = [
        compressed_morton.cells_per_axis(bits, grid)
        for bits in range(len(compressed_morton.bit_axes(grid)) + 1)
    ]
    if (x, y, z) not in possible:
        shapes = ", ".join("x".join(map(str, times(cells, scale.chunk_size))) for cells in possible)
        # A shard holds a range of compressed Morton codes: each further bit doubles it along one
        # axis, in the order of the code.
        raise ValueError(
            f"a shard of {shape} voxels is not a range of chunk identifiers of scale "
            f"{scale.key!r}; its shards can have {shapes} voxels"
        )
    return sharding_of_bits(grid, possible.index((x, y, z)), scale.encoding)


def volume_folder(url: str | os.PathLike[str]) -> str:
    """Return the folder that a URL or path names.

    Examples
    --------
    >>> volume_folder("precomputed:///data/em")
    '/data/em'
    """
    text = stripped(url)
    return target_path(text)


def target_volume(wanted: Destination) -> TargetVolume:
    """Read the folder of a volume to write to, and reject folders that hold something else."""
    folder = by_path.real_target(volume_folder(wanted.url))
    info = find_info(folder)
    if info is not None and info.redirect is not None:
        raise UnsupportedError(f"{folder}/{FILE_NAME}: redirects to {info.redirect}; write there")
    if info is None and contains_wkw(folder):
        raise ExistsError(
            f"{folder}: holds WKW data; write the precomputed volume to another folder"
        )
    above = (
        enclosing_volume(folder) or enclosing_volume(volume_folder(wanted.url))
        if info is None
        else None
    )
    if above is not None:
        raise ExistsError(
            f"{folder}: is a scale of the volume {above[0]}; name the volume, and the scale with "
            "mag="
        )
    return TargetVolume(folder, wanted, info)
