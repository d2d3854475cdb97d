"""OME-NGFF images in Zarr, and other Zarr arrays."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from wkwdask.errors import TransformationWarning, UnsupportedError
from wkwdask.formats.array_images import resolved_images
from wkwdask.formats.container import ImageFolder
from wkwdask.formats.copies import Copies
from wkwdask.formats.format import ArrayFormat, ViewerFiles
from wkwdask.formats.level_folders import IGNORED_NAMES, LevelFolders
from wkwdask.formats.marks import HEADER_NAME
from wkwdask.formats.registry import formats
from wkwdask.formats.zarr.codec import has_shown_codecs
from wkwdask.formats.zarr.documents import FILE_NAME, array_record, format_document
from wkwdask.formats.zarr.inspection import document_faults
from wkwdask.formats.zarr.layer import (
    NAME,
    PREFIX,
    coordinate_notes,
    find_zarr_layers,
    image_of_labels,
    is_zarr,
    open_zarr_volume,
    read_node,
)
from wkwdask.formats.zarr.layer_levels import layer_levels
from wkwdask.formats.zarr.ngff import LABELS, attributes_for_viewer, versions_of
from wkwdask.formats.zarr.ngff_edit import ArrayEdit, NgffEdit, NgffRemoval
from wkwdask.formats.zarr.options import ZarrOptions
from wkwdask.formats.zarr.target import ArrayTarget, ngff_target
from wkwdask.model.summary import summarize_arrays
from wkwdask.model.writing.target_image import Destination
from wkwdask.store.paths import basename, dirname, is_remote
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.formats.format import ChooseAxes, Summary, Url
    from wkwdask.formats.zarr.layer import Node
    from wkwdask.model.faults import Fault
    from wkwdask.model.image import Image, Level, ResolvedUrl
    from wkwdask.model.metadata_edit import MetadataEdit
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_image import LevelCopy, LevelSpec, NewLevels, TargetImage


_SHOWN_VERSIONS = {"0.4", "0.5"}


_DOCUMENTS = ("zarr.json", ".zgroup", ".zarray")
_IMAGE_FILES = ("zarr.json", ".zattrs", ".zgroup")
_LEVEL_ENTRIES = r"(?a:zarr\.json|\.zarray|\.zattrs|c(\.\d+)*|\d+(\.\d+)*)"


class ArrayFolders(LevelFolders):
    """Folders of arrays; a WKW mag with a ``zarr.json`` beside its files is none."""

    def record_of(self, folder: str) -> str | None:
        return array_record(folder)

    def is_level(self, folder: str) -> bool:
        # in a bucket, the listing answers the other questions too
        return (
            not _stray_in(folder)
            and not store_at(folder).exists(HEADER_NAME)
            and array_record(folder) is not None
        )

    def why_not_replaceable(self, folder: str) -> str:
        return (
            f"contains other files than {self.content} ({_stray_in(folder)}) and is not replaced; "
            "move it away"
        )


def _stray_in(folder: str) -> str:
    """Return the path of a file or link in a folder that is no part of an array, or an empty text;
    where documents lead is checked elsewhere."""
    for entry in store_at(folder).entries():
        is_ours = re.fullmatch(_LEVEL_ENTRIES, entry.name) or IGNORED_NAMES.fullmatch(entry.name)
        if not is_ours or (
            entry.is_symlink() and entry.name not in _IMAGE_FILES and entry.name not in _DOCUMENTS
        ):
            return entry.path
    return ""


class NgffCopies(Copies):
    """Copies of images, without other members of their groups."""

    def warnings(
        self, source: str, level_copies: Sequence[LevelCopy], layers: Sequence[str] | None
    ) -> list[str]:
        """Return a note on members of the group that are no levels of the image, such as labels."""
        del source, layers
        image = level_copies[0].image
        if image.details is None or is_remote(image.folder):
            return []
        known = {
            ".zmetadata",
            *_IMAGE_FILES,
            *(level.key.partition("/")[0] for level in image.levels),
        }
        others = sorted(
            name
            for name in store_at(image.folder).names()
            if name not in known and not IGNORED_NAMES.fullmatch(name)
        )
        return (
            [f"not copied: {', '.join(f'{image.folder}/{name}' for name in others)}"]
            if others
            else []
        )


class ZarrGroup(ImageFolder):
    """Group of an OME-NGFF image; labels lie in the group of their image."""

    def outermost(self, folder: str) -> str:
        return image_of_labels(folder)

    def removal_edit(self, image: Image, levels: Sequence[Level]) -> MetadataEdit | None:
        keys = tuple(level.key for level in levels if level.key)
        if not keys:  # a single array
            edit = ArrayEdit(dirname(image.folder))
            edit.check_writable()
            return edit
        labels, real = dirname(image.folder), store_at(image.folder).real()
        if (
            basename(labels) == LABELS
            and store_at(labels).real() != dirname(real)
            and all(level.key in keys for level in image.levels)
        ):
            raise UnsupportedError(
                f"{image.folder}: leads to {real}, and {labels} lists it: remove the link and its "
                "name there, and then that folder"
            )
        removal = NgffRemoval(real, keys)
        removal.check_unreferenced()
        return removal


class ZarrFormat(ArrayFormat):
    """Zarr: an OME-NGFF image, a group of images, or one array."""

    name = "zarr"
    options = ZarrOptions
    copies = NgffCopies()
    url_name = NAME
    documents = _DOCUMENTS
    documents_above = 1  # an image lists its arrays
    level_folders = ArrayFolders("one Zarr array", entries=_LEVEL_ENTRIES)
    container = ZarrGroup(level_folders, _IMAGE_FILES, NgffRemoval)
    edits = (ArrayEdit, NgffEdit, NgffRemoval)
    recognise = staticmethod(is_zarr)
    target = staticmethod(ngff_target)

    def guess_can_open(self, url: object) -> bool:
        """Return whether a URL names Zarr by its prefix or suffix; xarray's engine ``zarr`` opens
        all others."""
        return NAME.is_in(url)

    def documents_in(self, folder: str) -> Sequence[str]:
        # where there is one of version 3, those of version 2 are not read
        is_v3 = store_at(folder).is_file(FILE_NAME)
        return (FILE_NAME,) if is_v3 else (*_DOCUMENTS, ".zattrs")

    def find(self, url: Url) -> ResolvedUrl:
        images = find_zarr_layers(url)
        for ignored in (image.details.ignored for image in images if image.details is not None):
            if ignored:
                warnings.warn(ignored, TransformationWarning, stacklevel=2)
        return resolved_images(url, images, self.container)

    def summarize(self, url: Url) -> Summary:
        return replace(
            summarize_arrays(url, find_zarr_layers(url)), notes=coordinate_notes(NAME.location(url))
        )

    def open_listed(self, folder: str, axes: ChooseAxes) -> StoredArray:
        return open_zarr_volume(folder, axes)

    def layer_levels(
        self,
        layer: Image,
        data_format: str,
        folders: Sequence[str],
        specs: Sequence[LevelSpec],
        options: ZarrOptions,
        like: Volume | None,
        existing: str,
    ) -> NewLevels:
        del existing
        return layer_levels(layer, data_format, folders, specs, options, like)

    def document_faults(self, folder: str) -> Iterator[Fault]:
        faults = document_faults(folder)
        if not any(fmt.container.lists(folder) for fmt in formats()):
            return faults
        # Arrays in a layer of a dataset extend to whole shards; datasource-properties.json states
        # their box.
        return (fault for fault in faults if fault.kind not in ("image.scale", "image.translation"))

    def viewer_files(
        self, image: Image, volumes: Sequence[StoredArray], *, is_rgb: bool
    ) -> ViewerFiles | None:
        node = read_node(image.folder)
        if node is None or not all(has_shown_codecs(volume.codec) for volume in volumes):
            return None
        if (
            volumes[0].num_channels > 1
            if image.key is not None
            else not set(versions_of(node.attributes)) <= _SHOWN_VERSIONS
        ):
            return None
        documents = _viewer_documents(node, image, is_rgb=is_rgb)
        return ViewerFiles("zarr3" if node.record == FILE_NAME else "zarr2", documents)

    def target_in(self, image: Image, *, allow_external: bool) -> TargetImage:
        if not image.key and image.key is not None:
            return ArrayTarget(image.folder, Destination(PREFIX + image.folder))
        size = image.voxel_size_nm
        return ngff_target(
            Destination(
                PREFIX + image.folder,
                category=image.category,
                voxel_size_nm=size,
                image=image,
                allow_external=allow_external,
            )
        )


def _viewer_documents(node: Node, image: Image, *, is_rgb: bool) -> dict[str, bytes]:
    """Return the document of the attributes of an OME-NGFF image, with the coordinates of
    Neuroglancer."""
    if not versions_of(node.attributes):
        return {}
    finest = min(level.mag for level in image.levels if level.mag is not None)
    attributes = attributes_for_viewer(node.attributes, image.folder, finest, is_rgb=is_rgb)
    if node.record != FILE_NAME:
        return {".zattrs": format_document(attributes).encode()}
    return {FILE_NAME: format_document({**node.document, "attributes": attributes}).encode()}


FORMAT = ZarrFormat()
