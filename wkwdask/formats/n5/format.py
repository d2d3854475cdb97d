"""N5 containers, groups and datasets."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from wkwdask.errors import CorruptError, MetadataWarning
from wkwdask.formats.array_images import resolved_images
from wkwdask.formats.container import ImageFolder
from wkwdask.formats.format import ArrayFormat, ViewerFiles
from wkwdask.formats.level_folders import LevelFolders
from wkwdask.formats.n5.attributes import FILE_NAME, level_names
from wkwdask.formats.n5.edit import N5Edit, N5Removal
from wkwdask.formats.n5.factor_lists import check_list_of_setup
from wkwdask.formats.n5.layer import (
    INHERITED_FROM,
    NAME,
    PREFIX,
    find_n5_layers,
    group_levels,
    is_n5,
    open_n5_volume,
    outermost_group,
    unknown_size_note,
)
from wkwdask.formats.n5.layer_levels import layer_levels
from wkwdask.formats.n5.options import N5Options
from wkwdask.formats.n5.placement import level_sizes
from wkwdask.formats.n5.target import DatasetTarget, n5_target, target_beside
from wkwdask.model.faults import Fault
from wkwdask.model.json_text import parse_object
from wkwdask.model.levels import finest_first
from wkwdask.model.writing.target_image import Destination
from wkwdask.store.json_record import read_record
from wkwdask.store.paths import dirname
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.formats.format import ChooseAxes, Url
    from wkwdask.model.image import Image, Level, ResolvedUrl
    from wkwdask.model.metadata_edit import MetadataEdit
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_image import LevelSpec, NewLevels, TargetImage


_SHOWN_CODECS = ("raw", "gzip", "zstd", "blosc")  # Neuroglancer, src/datasource/n5


class N5Group(ImageFolder):
    """Group of datasets, inside containers and groups."""

    def outermost(self, folder: str) -> str:
        return outermost_group(folder)

    def around(self, folder: str) -> str | None:
        """Return the nearest folder that has a version of N5 or the suffix ``.n5``, or None."""
        while dirname(folder) != folder:
            if folder.endswith(".n5") or _is_container(folder):
                return folder
            folder = dirname(folder)
        return None

    def removal_edit(self, image: Image, levels: Sequence[Level]) -> MetadataEdit | None:
        check_list_of_setup(image.folder)
        return ImageFolder.removal_edit(
            self, replace(image, folder=store_at(image.folder).real()), levels
        )


_MAX_NBYTES = 1 << 28


class N5Format(ArrayFormat):
    """N5: a container, a group of levels, or one dataset."""

    name = "n5"
    options = N5Options
    url_name = NAME
    documents = (FILE_NAME,)
    documents_above = INHERITED_FROM
    level_folders = LevelFolders("one N5 dataset", FILE_NAME, r"(?a:\d+)|zarr\.json")
    container = N5Group(level_folders, (FILE_NAME,), N5Removal)
    edits = (N5Edit, N5Removal)
    recognise = staticmethod(is_n5)
    target = staticmethod(n5_target)

    def find(self, url: Url) -> ResolvedUrl:
        images = tuple(replace(image, counts_from_finest=True) for image in find_n5_layers(url))
        for note in filter(None, map(unknown_size_note, images)):
            warnings.warn(note, MetadataWarning, stacklevel=2)
        return resolved_images(url, images, self.container)

    def open_listed(self, folder: str, axes: ChooseAxes) -> StoredArray:
        return open_n5_volume(folder, axes)

    def layer_levels(
        self,
        layer: Image,
        data_format: str,
        folders: Sequence[str],
        specs: Sequence[LevelSpec],
        options: N5Options,
        like: Volume | None,
        existing: str,
    ) -> NewLevels:
        del data_format
        return layer_levels(layer, folders, specs, options, like, existing)

    def viewer_files(
        self, image: Image, volumes: Sequence[StoredArray], *, is_rgb: bool
    ) -> ViewerFiles | None:
        del image, is_rgb
        if any(any(volume.origin) or volume.num_channels > 1 for volume in volumes):
            # Neuroglancer shows voxel 0 at 0, and channels as a fourth axis of space
            return None
        encodings = [volume.codec.shared_encoding for volume in volumes]
        return (
            ViewerFiles(self.name, {})
            if all(
                each is not None and each.compression.startswith(_SHOWN_CODECS)
                for each in encodings
            )
            else None
        )

    def target_in(self, image: Image, *, allow_external: bool) -> TargetImage:
        if image.key == "":
            return DatasetTarget(image.folder, Destination(PREFIX + image.folder))
        return target_beside(replace(image, allow_external=allow_external))

    def document_faults(self, folder: str) -> Iterator[Fault]:
        try:
            listed, levels = (
                level_names(read_record(f"{folder}/{FILE_NAME}") or {}),
                list(group_levels(store_at(folder))),
            )
        except (CorruptError, OSError):
            return  # a fault of the image
        for name in listed:
            if not store_at(folder).is_file(f"{name}/{FILE_NAME}"):
                yield Fault(
                    "level.missing",
                    f"{folder}/{name}",
                    f"no {FILE_NAME}",
                    f"a dataset, as {folder}/{FILE_NAME} states",
                )
        order = finest_first(level_sizes([level for _, level in levels]))
        names, expected_names = (
            ", ".join(name for name, _ in levels),
            ", ".join(levels[n][0] for n in order),
        )
        if listed and names != expected_names:
            yield Fault(
                "image.order",
                f"{folder}/{FILE_NAME}",
                f"datasets {names}",
                f"{expected_names}, by their voxel sizes",
            )
        for name, level in (levels[n] for n in order[1:]):
            stated = {} if level.dataset is None else level.dataset.document
            path = (
                f"{folder}/{name}/{FILE_NAME}"
                if {"transform", "downsamplingFactors"} & stated.keys()
                else f"{folder}/{FILE_NAME}"
            )
            for kind, found, expected in level.place_faults(levels[order[0]][1]):
                yield Fault(kind, path, f"{name}: {found}", expected)


def _is_container(folder: str) -> bool:
    try:
        raw = store_at(folder).read_document(FILE_NAME, _MAX_NBYTES)
        return raw is not None and "n5" in parse_object(raw, folder)
    except (CorruptError, OSError):
        return False


FORMAT = N5Format()
