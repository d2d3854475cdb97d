"""Copies of datasets, layers and mags: each is copied to one of its kind."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from wkwdask.errors import MissingError, UnsupportedError, WkwDaskError
from wkwdask.formats.copies import Copies, check_all_open
from wkwdask.formats.webknossos.dataset import (
    STORED_IN,
    check_supported,
    dataset_of,
    is_arrays_layer,
    locate,
    mag_from_name,
)
from wkwdask.formats.webknossos.datasource import FILE_NAME, empty_like
from wkwdask.formats.webknossos.document import read_datasource, update_datasource
from wkwdask.formats.webknossos.layer_metadata import attachments_of
from wkwdask.geometry.mag import Mag
from wkwdask.model.placement import job_in
from wkwdask.model.writing.target_image import Destination, LevelCopy
from wkwdask.store import by_path
from wkwdask.store.paths import basename, dirname, target_path
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from wkwdask.model.image import Image, ResolvedUrl

_MAX_LISTED = 5  # names in a note


class DatasetCopies(Copies):
    """Copies of all selected layers and mags."""

    def levels(
        self,
        found: ResolvedUrl,
        target: str | None,
        layers: Sequence[str] | None,
        levels: Sequence[Mag | str] | None,
    ) -> list[LevelCopy]:
        """Return the selected mags with their destinations: a dataset is copied to a dataset, a
        layer to a layer, a mag to a mag."""
        mags = None if levels is None else list(map(Mag.parse, levels))
        root = None if target is None else target_path(target)
        if root is not None and store_at(root).real() == store_at(found.path).real():
            raise ValueError(
                f"{root}: is the source; pass another target (rechunk and compress work in place "
                "without a target)"
            )
        if layers is None and found.invalid_layers:
            found.invalid_layers[0].raise_error()

        def destination(layer: Image, mag: Mag) -> Destination | None:
            return (
                None
                if root is None
                else Destination(
                    _target_folder(root, found, layer, mag), image=layer, needs_container=False
                )
            )

        chosen = found.layers if layers is None else tuple(map(found.choose_listed, layers))
        for layer in chosen:
            check_supported(layer)
            if root is not None:
                _check_in_dataset(root, found, layer)
        readable = list(map(found.readable, chosen))
        if mags is None and found.mag is None:
            for layer in readable:
                check_all_open(layer)
        level_copies = [
            LevelCopy(layer, layer.find(mag), destination(layer, mag))
            for layer in readable
            for mag in _select_mags(found, layer, mags)
        ]
        if not level_copies:
            raise MissingError(f"{found.path}: no mags found")
        return level_copies

    def default_layers(self, source: str) -> list[str] | None:
        located = locate(source)
        stored = [
            layer.name for layer in located.layers if dataset_of(layer).data_format in STORED_IN
        ]
        return (
            stored if 0 < len(stored) < len(located.layers) + len(located.invalid_layers) else None
        )

    def warnings(
        self, source: str, level_copies: Sequence[LevelCopy], layers: Sequence[str] | None
    ) -> list[str]:
        """Return notes on layers and files that are not copied, and on target datasets with another
        voxel size."""
        located = locate(source)
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
    def prepare(self, source: str, target: str) -> Iterator[None]:
        datasource = read_datasource(source)
        root = target_path(target)
        if datasource is None or read_datasource(root) is not None:
            yield
            return
        new_folders = by_path.missing_folders(root)
        store_at(root).make()
        update_datasource(
            root, lambda document: document, empty_like(datasource.document, basename(root))
        )
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError, WkwDaskError):
                if store_at(root).names() == [FILE_NAME]:  # neither layers nor jobs
                    store_at(root).delete(FILE_NAME)
                    by_path.remove_empty(new_folders)
            raise


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
        if dataset_of(layer).dataset_folder != located.path
        else f"{root}/{layer.name}/{mag.name}"
    )


def _check_in_dataset(root: str, located: ResolvedUrl, layer: Image) -> None:
    """Raise UnsupportedError for the copy of arrays to a place without a dataset, which states
    their box."""
    if not is_arrays_layer(layer) or dataset_of(layer).dataset_folder == located.path:
        return
    above = dirname(root) if located.mag is None else dirname(dirname(root))
    if read_datasource(above) is None:
        raise UnsupportedError(
            f"{root}: a layer that is stored as {dataset_of(layer).data_format} needs a dataset, "
            f"which states its box, and {above} has no {FILE_NAME}: copy it into a dataset, or "
            "convert() it"
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
        target, source = read_datasource(folder), dataset_of(level_copies[0].image).datasource
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
        if dataset_of(layer).data_format not in STORED_IN:
            yield f"layer {layer.name} ({dataset_of(layer).data_format})"
    yield from (f"layer {invalid.name} (invalid in the JSON)" for invalid in located.invalid_layers)
    for layer in {layer.folder: layer for layer in copied}.values():
        yield from _other_files(layer.folder, {basename(folder) for folder in layer.mags.values()})
        record = dataset_of(layer).record
        entry = {} if record is None else record.entry
        yield from (
            f"attachment {each.name} ({each.kind}) of layer {layer.name}"
            for each in attachments_of(entry)
        )
    if names is None and copied and copied[0].folder != located.path:
        yield from _other_files(located.path, {layer.name for layer in located.layers})


def _other_files(folder: str, known: Collection[str]) -> Iterator[str]:
    """Return the paths in a folder of a dataset that are neither known, nor hidden, nor its
    JSON."""
    names = sorted(store_at(folder).names()) if store_at(folder).is_folder() else []
    return (
        f"{folder}/{name}"
        for name in names
        if name not in known and name != FILE_NAME and not name.startswith(".") and not job_in(name)
    )
