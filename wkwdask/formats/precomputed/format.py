"""Neuroglancer precomputed volumes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.array_images import resolved_images
from wkwdask.formats.container import ImageFolder
from wkwdask.formats.copies import Copies
from wkwdask.formats.format import ArrayFormat, MeshPlace, ViewerFiles
from wkwdask.formats.inspection import Scope
from wkwdask.formats.level_folders import LevelFolders
from wkwdask.formats.mesh_folders import removable_meshes
from wkwdask.formats.precomputed.array import with_stored_suffix
from wkwdask.formats.precomputed.info import (
    FILE_NAME,
    PROVENANCE_FILE_NAME,
    base_resolution,
    listed_scales,
    sorted_scales,
)
from wkwdask.formats.precomputed.info_file import (
    InfoEdit,
    InfoRemoval,
    info_in,
    named_meshes,
    read_info,
)
from wkwdask.formats.precomputed.inspection import info_faults, scale_scopes
from wkwdask.formats.precomputed.layer import (
    NAME,
    PREFIX,
    enclosing_volume,
    is_volume,
    open_precomputed_layer,
)
from wkwdask.formats.precomputed.mesh_inspection import mesh_scope
from wkwdask.formats.precomputed.mesh_reader import open_meshes
from wkwdask.formats.precomputed.meshes import (
    MeshEdit,
    meshed_volume,
)
from wkwdask.formats.precomputed.naming import file_sizes, first_data_file, first_stray_file
from wkwdask.formats.precomputed.options import PrecomputedOptions
from wkwdask.formats.precomputed.target import target_volume
from wkwdask.formats.precomputed.writable import viewer_warnings
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.vectors import times
from wkwdask.model.faults import Fault
from wkwdask.model.placement import plain_name
from wkwdask.model.summary import ScaleSummary, VolumeSummary, counted, format_nbytes
from wkwdask.model.writing.target_image import Destination
from wkwdask.store.paths import basename, dirname, is_remote
from wkwdask.store.records import PROVENANCE_NAME
from wkwdask.store.store import open_store, store_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wkwdask.formats.format import ChooseAxes, Summary, Url
    from wkwdask.formats.inspection import FilesScope, LevelScope
    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image, Level, ResolvedUrl
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import InPlaceWrite, TargetArray
    from wkwdask.model.writing.target_image import LevelCopy, LevelSpec, NewLevels, TargetImage


class ScaleFolders(LevelFolders):
    """Folders of scales, which contain no document."""

    def record_of(self, folder: str) -> str | None:
        """Return the path of a chunk or shard."""
        return first_data_file(folder)

    def is_level(self, folder: str) -> bool:
        return not first_stray_file(folder) and (
            store_at(folder).is_file(PROVENANCE_NAME) or first_data_file(folder) is not None
        )

    def why_not_replaceable(self, folder: str) -> str:
        return (
            f"contains other files than {self.content} ({first_stray_file(folder)}), and is "
            "not replaced; move it away"
        )


class PrecomputedCopies(Copies):
    """Copies of volumes."""

    def warnings(
        self, source: str, level_copies: Sequence[LevelCopy], layers: Sequence[str] | None
    ) -> list[str]:
        del source, layers
        image = level_copies[0].image
        meshes = named_meshes(image.folder, image.details.info)
        return [] if meshes is None else [f"not copied: the meshes in {meshes}"]


class PrecomputedFormat(ArrayFormat):
    name = "precomputed"
    options = PrecomputedOptions
    url_name = NAME
    documents = (FILE_NAME,)
    edits = (InfoEdit, InfoRemoval, MeshEdit)
    copies = PrecomputedCopies()
    level_folders = ScaleFolders("a precomputed scale")
    container = ImageFolder(level_folders, (FILE_NAME, PROVENANCE_FILE_NAME), InfoRemoval)

    def recognise(self, path: str) -> bool:
        return is_volume(path)

    def find(self, url: Url) -> ResolvedUrl:
        return resolved_images(url, (open_precomputed_layer(url),), self.container)

    def summarize(self, url: Url) -> Summary:
        image = open_precomputed_layer(url)
        info = image.details.info
        order = [scale.index for scale in sorted_scales(info)]
        levels = sorted(image.selected, key=lambda level: order.index(level.details.index))
        folders = () if image.key is not None else self.mesh_folders(image)
        return VolumeSummary(
            image.folder,
            info.type,
            info.dtype.name,
            info.num_channels,
            tuple(_summarize(image, level) for level in levels),
            image.format,
            tuple(note for folder in folders for note in self.mesh_notes(folder)),
        )

    def viewer_files(
        self, image: Image, volumes: Sequence[StoredArray], *, is_rgb: bool
    ) -> ViewerFiles | None:
        del is_rgb
        info = image.details.info
        if listed_scales(info) != sorted_scales(info):
            # Neuroglancer takes the first scale for the finest
            return None
        channels = info.num_channels
        is_shown = all(
            not any(viewer_warnings(level.details, volume.dtype.name, channels))
            for level, volume in zip(image.levels, volumes, strict=True)
        )
        return ViewerFiles(self.name, {}) if is_shown else None

    def target(self, destination: Destination) -> TargetImage:
        return target_volume(destination)

    def target_in(self, image: Image, *, allow_external: bool) -> TargetImage:
        return target_volume(
            Destination(
                PREFIX + (image.root or image.folder),
                category=image.category,
                allow_external=allow_external,
            )
        )

    def open_listed(self, folder: str, axes: ChooseAxes) -> StoredArray:
        del axes
        return _listed_scale(folder)[1].open()

    def layer_levels(
        self,
        layer: Image,
        data_format: str,
        folders: Sequence[str],
        specs: Sequence[LevelSpec],
        options: PrecomputedOptions,
        like: Volume | None,
        existing: str,
    ) -> NewLevels:
        """Lay out scales of the volume in the folder of the layer, whose keys are the names of the
        folders."""
        del data_format
        target = target_volume(
            Destination(
                PREFIX + layer.folder,
                levels=tuple(specs),
                category=layer.category,
                source_voxel_size_nm=layer.voxel_size_nm,
                allow_external=layer.allow_external,
            )
        )
        keys = {spec.box.mag: basename(folder) for spec, folder in zip(specs, folders, strict=True)}
        levels = replace(target, new_keys=keys).new_levels(specs, options, like, existing)
        return replace(levels, stated=({},) * len(specs))

    def in_place_target(self, volume: StoredArray, write: InPlaceWrite) -> TargetArray:
        return super().in_place_target(with_stored_suffix(volume), write)

    def level_scopes(
        self, image: Image, level: Level, method: str | None, faults: list[Fault]
    ) -> Sequence[LevelScope]:
        if image.format == self.name:
            source, scale = image.details, level
        else:
            try:
                volume, scale = _listed_scale(level.folder)
                scale.open()
            except (FormatError, OSError, UnsupportedError):
                return super().level_scopes(image, level, method, faults)
            source, scale = volume.details, replace(scale, mag=level.mag)
        return () if level.problem else scale_scopes(source, scale, image.name, method)

    def mesh_place(self, folder: str, *, replaces: bool, has_properties: bool) -> MeshPlace | None:
        volume = dirname(folder)
        if info_in(store_at(volume)) is None:
            return None
        edit = MeshEdit(volume, basename(folder), replaces, has_properties)
        return MeshPlace(edit, base_resolution(meshed_volume(folder)), is_for_webknossos=False)

    def mesh_folders(self, image: Image) -> Sequence[str]:
        meshes = named_meshes(image.folder, image.details.info)
        return () if meshes is None else (meshes,)

    def mesh_scope(
        self, folder: str, document: str, layer: str
    ) -> tuple[Sequence[FilesScope], list[Fault]]:
        return mesh_scope(folder, document, layer)

    def mesh_notes(self, folder: str) -> Iterator[str]:
        try:
            meshes = open_meshes(folder)
            count = meshes.count_labels() if meshes.store.can.states else None
        except (FormatError, OSError, UnsupportedError) as error:
            yield f"meshes: {error}"
            return
        if not meshes.store.can.states:
            yield f"meshes in {folder}"
            return
        sizes = [entry.stat().st_size for entry in meshes.store.entries() if entry.is_file()]
        what = f"{counted(len(sizes), 'file')}, {format_nbytes(sum(sizes))}"
        labels = "" if count is None else f"{counted(count, 'label')} in "
        yield f"meshes in {folder}: {labels}{what}"

    def other_folders(self, image: Image) -> Sequence[str]:
        return [*removable_meshes(image.folder, self.mesh_folders(image))]

    def document_faults(self, folder: str) -> Iterable[Fault]:
        store = open_store(folder)
        info = read_info(store)
        return () if info.redirect is not None else info_faults(info, store.path_of(FILE_NAME))

    def inspect(self, url: Url, layers: Sequence[str] | None, mags: Sequence[Mag] | None) -> Scope:
        try:
            (image,) = self.find(url).layers
        except FormatError as error:
            document = f"{NAME.location(url)}/{FILE_NAME}"
            found = str(error).removeprefix(f"{document}: ")
            return Scope(NAME.location(url), (), [Fault("info.broken", document, found)])
        for layer in layers or ():
            if layer != image.name:
                raise MissingError(
                    f"{image.folder}: no layer {layer!r}; a precomputed volume has one, "
                    f"{image.name!r}"
                )
        scope = super().inspect(url, None, mags)
        for meshes in () if mags is not None or image.key is not None else self.mesh_folders(image):
            others, faults = self.mesh_scope(meshes, f"{image.folder}/{FILE_NAME}", image.name)
            scope = replace(scope, faults=[*scope.faults, *faults], others=(*scope.others, *others))
        return scope


def _listed_scale(folder: str) -> tuple[Image, Level]:
    """Return the scale in a folder that a dataset lists, and the volume around it. A job that
    publishes switches ``info`` first: then it is the new one."""
    is_scale = not is_remote(folder) and enclosing_volume(folder) is not None
    image = open_precomputed_layer(folder if is_scale else dirname(folder))
    key = basename(folder) if image.key is None else image.key
    for name_of in (str, plain_name):
        for level in image.levels:
            if name_of(level.key) == name_of(key):
                return image, level
    raise MissingError(f"{folder}: {image.document} lists no scale {key!r}")


def _summarize(image: Image, level: Level) -> ScaleSummary:
    """Summarize a scale from ``info``, and count its files if they are local."""
    if level.problem:
        return ScaleSummary(
            level.key, level.folder, resolution=level.lengths_nm, problem=level.problem
        )
    scale: Scale = level.details
    count = nbytes = None
    problem = ""
    if image.details.store.can.states:
        try:
            count, nbytes = file_sizes(
                image.details.store.at(level.folder), is_sharded=scale.sharding is not None
            )
        except MissingError as error:  # a dangling link: the other scales can be summarized
            problem = str(error)
    box = BoundingBox(scale.voxel_offset, scale.size, level.mag or MAG_1)
    sharding = describe_sharding(scale)
    return ScaleSummary(
        scale.key,
        level.folder,
        level.mag,
        scale.resolution,
        box,
        scale.chunk_sizes,
        scale.encoding,
        sharding,
        scale.hidden,
        count,
        nbytes,
        problem,
    )


def describe_sharding(scale: Scale) -> str:
    """Describe the shards of a scale; return an empty string if each chunk is a file.

    Examples
    --------
    >>> from wkwdask.formats.precomputed.info import Scale
    >>> from wkwdask.formats.precomputed.sharding import Sharding
    >>> describe_sharding(
    ...     Scale(
    ...         "1",
    ...         (512, 512, 64),
    ...         (0, 0, 0),
    ...         (64, 64, 64),
    ...         (1, 1, 1),
    ...         "raw",
    ...         Sharding(3, 1, 2, data_encoding="gzip"),
    ...     )
    ... )
    'shards of 256 x 256 x 64 voxels, gzip'
    """
    sharding = scale.sharding
    if sharding is None:
        return ""
    shape = "murmur shards" if sharding.hash != "identity" else "shards that are not boxes"
    cells = sharding.shard_cells(scale.grid)
    if cells is not None:
        shape = f"shards of {' x '.join(map(str, times(cells, scale.chunk_size)))} voxels"
    return shape if sharding.data_encoding == "raw" else f"{shape}, {sharding.data_encoding}"


FORMAT = PrecomputedFormat()
