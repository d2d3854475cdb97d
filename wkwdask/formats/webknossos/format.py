"""The format ``webknossos``: datasets, layers and mags whose files are WKW, as an entry of the
registry of formats."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, MissingError, UnsupportedError, WkwDaskError
from wkwdask.formats.format import ArrayFormat
from wkwdask.formats.webknossos.dataset import (
    check_datasource_writable,
    check_stored_as_wkw,
    find_listed_arrays,
    locate,
    mag_from_name,
    read_ahead,
    read_datasource,
    update_datasource,
)
from wkwdask.formats.webknossos.datasource import FILE_NAME, empty_like
from wkwdask.formats.webknossos.inspection import inspect_dataset
from wkwdask.formats.webknossos.json_repair import JsonRepair
from wkwdask.formats.webknossos.layer_edit import LargestIdEdit, LayerEdit, MagRemoval
from wkwdask.formats.webknossos.layer_metadata import attachments_of
from wkwdask.formats.webknossos.target import (
    LayerTarget,
    mag_target,
    other_layers_with,
)
from wkwdask.formats.wkw.array import filled_box, wkw_target
from wkwdask.formats.wkw.folder import (
    HEADER_NAME,
    files_extent,
    is_mag,
    is_mag_or_dataset,
    stray_in,
)
from wkwdask.formats.wkw.layout import header_of
from wkwdask.formats.wkw.options import WkwOptions, level_number
from wkwdask.formats.wkw.remote import open_in
from wkwdask.geometry.mag import Mag
from wkwdask.model.writing.target_image import Destination, LevelCopy
from wkwdask.store import files
from wkwdask.store.documents import remove_document
from wkwdask.store.paths import any_path, basename, dirname, is_remote, local_path
from wkwdask.store.store import FolderStore

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from wkwdask.formats.format import MetadataEdit, Summary, Url
    from wkwdask.formats.inspection import Scope
    from wkwdask.formats.repair import RepairOptions
    from wkwdask.model.faults import Findings
    from wkwdask.model.image import Image, Level, ResolvedUrl
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import InPlaceWrite, TargetArray
    from wkwdask.model.writing.target_image import TargetImage

# files that cover more than this many times the box are searched for blocks of zeros
_SPARSE_RATIO = 2
_MAX_LISTED = 5  # names in a note


class WebknossosFormat(ArrayFormat):
    """Format of datasets with a JSON, of their layers, and of mags."""

    name = "webknossos"
    why_no_zarr_files = ""
    options = WkwOptions
    edits = (LayerEdit, MagRemoval)
    image_files = (FILE_NAME,)
    level_record = HEADER_NAME
    unlisting = "wkwdask dataset remove-layer removes the layer from the JSON and keeps its files"

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
        if not files.isdir(path):
            return False
        try:
            datasource = read_datasource(path)
        except CorruptError:
            return True  # a dataset; opening it raises the error
        if datasource is not None and (datasource.layers or datasource.invalid_layers):
            return bool(datasource.invalid_layers) or any(
                record.data_format == "wkw" for record in datasource.layers
            )
        with files.scandir(path) as entries:
            return any(
                entry.name == HEADER_NAME or files.isfile(f"{entry.path}/{HEADER_NAME}")
                for entry in entries
            )

    def claims(self, path: str) -> bool:
        """Return whether the JSON of a dataset lists a folder as a Zarr or N5 layer, or as a mag of
        such a layer."""
        return find_listed_arrays(path) is not None

    def find(self, url: Url, chunk_size: Sequence[int] | None = None) -> ResolvedUrl:
        path = any_path(url)
        read_ahead(path)
        return locate(path)

    def summarize(self, url: Url) -> Summary:
        from wkwdask.formats.webknossos.summary import summarize

        return summarize(url)

    def target(self, destination: Destination) -> TargetImage:
        return mag_target(destination)

    def target_in(self, image: Image, *, allow_external: bool) -> TargetImage:
        return LayerTarget(
            image, Destination(local_path(image.folder), allow_external=allow_external)
        )

    def level_copies(
        self,
        url: Url,
        target: Url | None,
        layers: Sequence[str] | None,
        levels: Sequence[Mag | str] | None,
        *,
        allow_external: bool = False,
    ) -> list[LevelCopy]:
        """Return the selected mags with their destinations: a dataset is copied to a dataset, a
        layer to a layer, a mag to a mag."""
        located = locate(url, allow_external=allow_external)
        mags = None if levels is None else list(map(Mag.parse, levels))
        root = None if target is None else local_path(target)
        if root is not None and files.realpath(root) == files.realpath(located.path):
            raise ValueError(
                f"{root}: is the source; pass another target (rechunk and compress work in place "
                "without a target)"
            )
        if layers is None and located.invalid_layers:
            located.invalid_layers[0].raise_error()

        def destination(layer: Image, mag: Mag) -> Destination | None:
            return (
                None
                if root is None
                else Destination(
                    _target_folder(root, located, layer, mag), image=layer, needs_container=False
                )
            )

        chosen = located.layers if layers is None else tuple(map(located.choose_listed, layers))
        for layer in chosen:
            check_stored_as_wkw(layer)
        level_copies = [
            LevelCopy(layer, layer.find(mag), destination(layer, mag))
            for layer in chosen
            for mag in _select_mags(located, layer, mags)
        ]
        if not level_copies:
            raise MissingError(f"{located.path}: no mags found")
        return level_copies

    def layers_to_copy(self, url: Url) -> list[str] | None:
        located = locate(url)
        stored = [layer.name for layer in located.layers if layer.container.data_format == "wkw"]
        return (
            stored if 0 < len(stored) < len(located.layers) + len(located.invalid_layers) else None
        )

    def copy_warnings(
        self, url: Url, level_copies: Sequence[LevelCopy], layers: Sequence[str] | None
    ) -> list[str]:
        """Return notes on layers and files that are not copied, and on target datasets with another
        voxel size."""
        located = locate(url)
        skipped = (
            []
            if located.mag is not None
            else list(
                _not_copied(located, [level_copy.image for level_copy in level_copies], layers)
            )
        )
        more = f" and {len(skipped) - _MAX_LISTED} more" if len(skipped) > _MAX_LISTED else ""
        return [
            *_other_voxel_sizes(level_copies),
            *([f"not copied: {', '.join(skipped[:_MAX_LISTED])}{more}"] if skipped else []),
        ]

    @contextlib.contextmanager
    def prepare_copy(self, url: Url, target: Url | None) -> Iterator[None]:
        datasource = read_datasource(locate(url).path)
        root = None if target is None else local_path(target)
        if root is None or datasource is None or read_datasource(root) is not None:
            yield
            return
        new_folders = files.missing_folders(root)
        files.makedirs(root)
        update_datasource(
            root, lambda document: document, empty_like(datasource.document, basename(root))
        )
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError, WkwDaskError):
                if files.listdir(root) == [FILE_NAME]:  # neither layers nor jobs
                    files.unlink(f"{root}/{FILE_NAME}")
                    files.remove_empty(new_folders)
            raise

    def in_place_target(self, volume: StoredArray, write: InPlaceWrite) -> TargetArray:
        level = level_number(write.level)
        return replace(
            wkw_target(write.folder, header_of(volume), level, write.box, write.staging),
            is_in_place=True,
            merges=write.merges,
        )

    def partial_write_edit(self, image: Image) -> MetadataEdit | None:
        dataset = image.container.dataset_folder
        return (
            LargestIdEdit(dataset, image.name)
            if dataset is not None and image.category == "segmentation"
            else None
        )

    def with_all_files(self, volume: StoredArray) -> StoredArray:
        """Return a mag with the box of all stored voxels: a mag that is replaced must keep voxels
        outside of the layer's box."""
        stored = files_extent(volume.folder, header_of(volume), volume.box.mag)
        # few files, mostly zeros: worth reading their jump tables
        is_mostly_outside = stored.volume > _SPARSE_RATIO * volume.box.volume
        return volume.cropped(filled_box(volume) if is_mostly_outside else volume.box.union(stored))

    def is_uniform(self, volume: StoredArray) -> bool:
        """Return whether all files have the block type of the header; files of other software may
        differ."""
        header = header_of(volume)
        for x, y, z in volume.files.stored_states()[:, :3].tolist():
            file = open_in(volume.store, (x, y, z), header)
            if file is not None and file.header.block_type is not header.block_type:
                return False
        return True

    def category_of(self, image: Image, volume: Volume) -> str | None:
        """Return the category in the JSON; without a JSON it is not guessed."""
        return image.category

    def is_level_folder(self, folder: str) -> bool:
        return is_mag(folder)

    def record_of(self, folder: str) -> str | None:
        path = f"{folder}/{self.level_record}"
        return path if files.exists(path) else None

    def why_not_replaceable(self, folder: str) -> str:
        return (
            f"contains other files than one mag{stray_in(folder)} and is not replaced; name the "
            "folder of a mag, such as DATASET/LAYER/1"
        )

    def container_around(self, folder: str) -> str | None:
        return next(
            (path for path in (folder, dirname(folder)) if files.isfile(f"{path}/{FILE_NAME}")),
            None,
        )

    def inspect(
        self, url: Url, layers: Sequence[str] | None, mags: Sequence[Mag] | None, *, pyramid: bool
    ) -> Scope:
        del pyramid
        return inspect_dataset(url, layers, mags)

    def document_repair(
        self, scope: Any, findings: Mapping[str, Findings], options: RepairOptions
    ) -> JsonRepair:
        return JsonRepair(scope, findings, options)

    def find_removable(self, url: Url, *, allow_external: bool) -> ResolvedUrl:
        return locate(url, allow_external=allow_external)

    def why_not_removable(self, image: Image) -> str:
        stored = image.container.data_format
        return (
            ""
            if stored == "wkw"
            else f"the layer is stored as {stored}, only mags of wkw are removed"
        )

    def check_removable(self, image: Image, folder: str) -> str:
        """Return the real folder of a mag; raises UnsupportedError if it lies outside of the
        dataset or another layer lists it."""
        dataset = image.container.dataset_folder
        if dataset is not None:
            check_datasource_writable(dataset)
        real = super().check_removable(image, folder)
        for other in other_layers_with(image, real):
            raise UnsupportedError(
                f"{real}: layer {other} lists this mag too; remove it from the JSON of one of them "
                "first"
            )
        return real

    def why_not_level(self, folder: str) -> str:
        return f"is not a mag, or contains other files too{stray_in(folder)}"

    def removal_edit(self, image: Image, levels: Sequence[Level]) -> MetadataEdit | None:
        """Return the edit that removes mags from the JSON, and a layer with its last mag."""
        dataset = image.container.dataset_folder
        if dataset is None or image.container.record is None:
            return None
        return MagRemoval(
            dataset, image.name, tuple(level.mag for level in levels if level.mag is not None)
        )

    def remove_image_files(self, folder: str) -> None:
        # Checked again under the lock: another job may add a layer in the meantime.
        def lists_nothing() -> bool:
            datasource = read_datasource(folder)
            return datasource is not None and not datasource.document.get("dataLayers")

        if self.is_bare(folder):
            remove_document(FolderStore(folder), FILE_NAME, lists_nothing, f"rm of {folder}")


FORMAT = WebknossosFormat()


def _select_mags(located: ResolvedUrl, layer: Image, mags: Sequence[Mag] | None) -> list[Mag]:
    existing = [located.mag] if located.mag is not None else list(layer.mags)
    missing = [mag for mag in mags or () if mag not in existing]
    if missing:
        raise MissingError(
            f"{located.path}: layer {layer.name} has no mag {missing[0]}; there are "
            f"{', '.join(map(str, existing)) or 'none'}"
        )
    return existing if mags is None else [mag for mag in existing if mag in mags]


def _target_folder(root: str, located: ResolvedUrl, layer: Image, mag: Mag) -> str:
    if located.mag is not None:
        _check_name(root, located, mag)
        return root
    return (
        f"{root}/{mag.name}"
        if layer.container.dataset_folder != located.path
        else f"{root}/{layer.name}/{mag.name}"
    )


def _check_name(folder: str, located: ResolvedUrl, mag: Mag) -> None:
    """Raise ValueError for a target folder that is named after another mag."""
    named = mag_from_name(basename(folder))
    if named not in (None, mag) and mag_from_name(basename(located.path)) is not None:
        raise ValueError(
            f"{folder}: is named after mag {named}, but {located.path} is mag {mag}; name it "
            f"{mag.name}"
        )


def _other_voxel_sizes(level_copies: Sequence[LevelCopy]) -> Iterator[str]:
    """Yield notes on target datasets with another voxel size."""
    for folder in {
        dirname(dirname(level_copy.destination.url))
        for level_copy in level_copies
        if level_copy.destination is not None
    }:
        target, source = read_datasource(folder), level_copies[0].image.container.datasource
        sizes = [
            None if datasource is None else datasource.voxel_size_nm
            for datasource in (target, source)
        ]
        if None not in sizes and sizes[0] != sizes[1]:
            yield f"voxels of {folder} are {sizes[0]} nm, the copied ones {sizes[1]} nm"


def _not_copied(
    located: ResolvedUrl, copied: Sequence[Image], names: Sequence[str] | None
) -> Iterator[str]:
    """Yield the names of layers of other formats, and other files in the folders."""
    for layer in located.layers:
        if layer.container.data_format != "wkw":
            yield f"layer {layer.name} ({layer.container.data_format})"
    yield from (f"layer {invalid.name} (invalid in the JSON)" for invalid in located.invalid_layers)
    for layer in {layer.folder: layer for layer in copied}.values():
        yield from _other_files(layer.folder, {basename(folder) for folder in layer.mags.values()})
        entry = {} if layer.container.record is None else layer.container.record.entry
        yield from (
            f"attachment {each.name} ({each.kind}) of layer {layer.name}"
            for each in attachments_of(entry)
        )
    if names is None and copied and copied[0].folder != located.path:
        yield from _other_files(located.path, {layer.name for layer in located.layers})


def _other_files(folder: str, known: Collection[str]) -> Iterator[str]:
    """Return the paths in a folder of a dataset that are neither known, nor hidden, nor its
    JSON."""
    names = sorted(files.listdir(folder)) if files.isdir(folder) else []
    return (
        f"{folder}/{name}"
        for name in names
        if name not in known and name != FILE_NAME and not name.startswith(".")
    )
