"""The format ``webknossos``: datasets, layers and mags whose files are WKW, as an entry of the
registry of formats."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from wkwdask.errors import CorruptError, FormatError, MissingError, WkwDaskError
from wkwdask.formats.format import ArrayFormat, MeshPlace
from wkwdask.formats.marks import HEADER_NAME, is_mag_or_dataset
from wkwdask.formats.mesh_folders import removable_meshes
from wkwdask.formats.registry import format_named
from wkwdask.formats.webknossos.copies import DatasetCopies
from wkwdask.formats.webknossos.dataset import (
    STORED_IN,
    DatasetLayer,
    dataset_of,
    locate,
    read_ahead,
)
from wkwdask.formats.webknossos.datasource import FILE_NAME, layer_entry
from wkwdask.formats.webknossos.document import read_datasource
from wkwdask.formats.webknossos.inspection import inspect_dataset
from wkwdask.formats.webknossos.json_repair import JsonRepair
from wkwdask.formats.webknossos.layer_edit import LayerEdit, MagRemoval
from wkwdask.formats.webknossos.mesh_attachment import (
    DATA_FORMAT,
    MeshAttachment,
    attached_meshes,
)
from wkwdask.formats.webknossos.target import (
    LayerTarget,
    mag_target,
    wkw_levels,
)
from wkwdask.formats.wkw.array import wkw_target
from wkwdask.formats.wkw.folder import MAG_FOLDERS
from wkwdask.formats.wkw.layout import header_of
from wkwdask.formats.wkw.options import WkwOptions, level_number
from wkwdask.model.writing.target_image import Destination
from wkwdask.store.paths import any_path, basename, dirname, is_remote, local_path, target_path
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.formats.format import Summary, Url
    from wkwdask.formats.inspection import FilesScope, Scope
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.faults import Fault
    from wkwdask.model.image import Image, ResolvedUrl
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import InPlaceWrite, TargetArray
    from wkwdask.model.writing.target_image import LevelSpec, NewLevels, TargetImage


class WebknossosFormat(ArrayFormat):
    """Format of datasets with a JSON, of their layers, and of mags."""

    name = "webknossos"
    options = WkwOptions
    copies = DatasetCopies()
    edits = (LayerEdit, MagRemoval, MeshAttachment)
    level_folders = MAG_FOLDERS
    container = DatasetLayer()

    def recognise(self, path: str) -> bool:
        """Return whether a folder is a dataset with a JSON, or a mag; no file identifies a
        layer."""
        return is_mag_or_dataset(path)

    def guess_can_open(self, url: object) -> bool:
        """Return whether a path is a mag, a layer or a dataset with at least one layer in WKW."""
        if (
            not isinstance(url, (str, os.PathLike))
            or not os.fspath(url)
            or is_remote(os.fspath(url))
        ):
            return False
        path = local_path(url)
        if not store_at(path).is_folder():
            return False
        try:
            datasource = read_datasource(path)
        except CorruptError:
            return True  # a dataset; opening it raises the error
        if datasource is not None and (datasource.layers or datasource.invalid_layers):
            return bool(datasource.invalid_layers) or any(
                record.data_format == "wkw" for record in datasource.layers
            )
        return any(
            entry.name == HEADER_NAME or store_at(entry.path).is_file(HEADER_NAME)
            for entry in store_at(path).entries()
        )

    def find(self, url: Url) -> ResolvedUrl:
        path = any_path(url)
        read_ahead(path)
        return locate(path)

    def summarize(self, url: Url) -> Summary:
        from wkwdask.formats.webknossos.summary import summarize

        return summarize(url, self._mesh_notes)

    def _mesh_notes(self, image: Image) -> Iterator[str]:
        neuroglancer = format_named(STORED_IN[DATA_FORMAT])
        for folder in self.mesh_folders(image):
            yield from neuroglancer.mesh_notes(folder)

    def target(self, destination: Destination) -> TargetImage:
        return mag_target(destination)

    def target_in(self, image: Image, *, allow_external: bool) -> TargetImage:
        return LayerTarget(
            image, Destination(target_path(image.folder), allow_external=allow_external)
        )

    def mesh_place(self, folder: str, *, replaces: bool, has_properties: bool) -> MeshPlace | None:
        layer = dirname(folder)
        dataset, name = dirname(layer), basename(layer)
        source = read_datasource(dataset)
        record = None if source is None else source.layer(name)
        if source is None or record is None or record.data_format == DATA_FORMAT:
            return None
        if record.category != "segmentation":
            raise ValueError(
                f"{dataset}/{FILE_NAME}: expected a segmentation, found layer {name!r} of "
                f"category {record.category!r}"
            )
        if has_properties:
            raise ValueError(
                f"{folder}: segment_properties is for Neuroglancer precomputed volumes"
            )
        path = f"./{name}/{basename(folder)}"
        edit = MeshAttachment(dataset, name, basename(folder), path, replaces)
        return MeshPlace(edit, source.voxel_size_nm, is_for_webknossos=True)

    def mesh_folders(self, image: Image) -> Sequence[str]:
        layer = dataset_of(image) if image.is_layer else None
        if layer is None or layer.datasource is None or layer.dataset_folder is None:
            return []
        if layer.record is None:
            return []
        entry = layer_entry(layer.datasource.document, layer.record.name)
        attached = attached_meshes(layer.dataset_folder, entry)
        own = _meshes_of_volume(image) if layer.record.data_format == DATA_FORMAT else ()
        return [*dict.fromkeys((*attached, *own))]

    def other_folders(self, image: Image) -> Sequence[str]:
        return [*removable_meshes(image.folder, self.mesh_folders(image))]

    def layer_levels(
        self,
        layer: Image,
        data_format: str,
        folders: Sequence[str],
        specs: Sequence[LevelSpec],
        options: WkwOptions,
        like: Volume | None,
        existing: str,
    ) -> NewLevels:
        del data_format, existing
        return wkw_levels(layer, folders, specs, options, like)

    def in_place_target(self, volume: StoredArray, write: InPlaceWrite) -> TargetArray:
        level = level_number(write.level)
        return replace(
            wkw_target(write.folder, header_of(volume), level, write.box, write.staging),
            is_in_place=True,
            merges=write.merges,
            record=write.record,
        )

    def inspect(self, url: Url, layers: Sequence[str] | None, mags: Sequence[Mag] | None) -> Scope:
        scope = replace(inspect_dataset(url, layers, mags), repair_documents=JsonRepair)
        return scope if mags is not None else self._with_meshes(scope, url)

    def _with_meshes(self, scope: Scope, url: Url) -> Scope:
        """Return the scope with the attached meshes of its layers."""
        try:
            located = locate(any_path(url))
        except (FormatError, MissingError):
            return scope
        names = {each.name for each in scope.layers} if located.mag is None else set()
        neuroglancer = format_named(STORED_IN[DATA_FORMAT])
        faults: list[Fault] = []
        others: list[FilesScope] = []
        for image in located.layers:
            for meshes in self.mesh_folders(image) if image.name in names else ():
                document = f"{dataset_of(image).dataset_folder}/{FILE_NAME}"
                found, of_folder = neuroglancer.mesh_scope(meshes, document, image.name)
                others += found
                faults += of_folder
        return replace(scope, faults=[*scope.faults, *faults], others=tuple(others))


def _meshes_of_volume(image: Image) -> Sequence[str]:
    """Return the meshes that the document of a precomputed layer names itself."""
    neuroglancer = format_named(STORED_IN[DATA_FORMAT])
    try:
        (volume,) = neuroglancer.find(image.folder).layers
    except (WkwDaskError, OSError):  # mags without a volume around them that can be read
        return ()
    return neuroglancer.mesh_folders(volume)


FORMAT = WebknossosFormat()
