"""Read and change ``datasource-properties.json``, the document of a dataset."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from wkwdask.errors import MissingError
from wkwdask.formats.marks import HEADER_NAME
from wkwdask.formats.roots import OWN_COPY, Root
from wkwdask.formats.webknossos.datasource import (
    FILE_NAME,
    DataSource,
    format_datasource,
    parse_datasource,
)
from wkwdask.store.documents import check_replaceable, update_json
from wkwdask.store.paths import dirname, is_remote, stated_path, target_path
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.formats.webknossos.datasource import LayerRecord
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.json_text import JsonObject

_MAX_DOCUMENT_NBYTES = 64 << 20


def read_datasource(folder: str) -> DataSource | None:
    """Read the ``datasource-properties.json`` of a folder; None if there is none."""
    path = f"{folder}/{FILE_NAME}"
    try:
        raw = store_at(folder).read_document(FILE_NAME, _MAX_DOCUMENT_NBYTES)
    except PermissionError:
        if is_remote(path):  # buckets that may not be listed refuse absent files
            return None
        raise
    return None if raw is None else parse_datasource(raw, path)


def update_datasource(
    folder: str,
    change: Callable[[JsonObject], JsonObject],
    new: JsonObject | None = None,
    *,
    allow_external: bool = False,
) -> None:
    """Apply a change to the ``datasource-properties.json`` of a folder, atomically and under a
    lock; ``new`` is the document if there is no file yet.

    Other software ignores the lock: a change that it makes in the milliseconds between read and
    write is lost. ``allow_external`` is for jobs, which check before they begin whether the JSON is
    a link to that of another dataset; all other changes of such a link raise UnsupportedError.
    """
    store = store_at(target_path(folder))
    if store.folders is not None and not store.is_folder():
        raise MissingError(f"{store.path_of(FILE_NAME)}: no such folder")
    if not allow_external:
        check_own_datasource(folder)
    check_datasource_writable(folder)
    update_json(
        store, FILE_NAME, change, new, parse=_parse_document, format_document=format_datasource
    )


def _parse_document(raw: bytes, path: str) -> JsonObject:
    return parse_datasource(raw, path).document


def check_own_datasource(folder: str) -> None:
    """Raise UnsupportedError if the ``datasource-properties.json`` of a folder is a link to that of
    another dataset."""
    Root(target_path(folder), noun="dataset").check_documents(target_path(folder), OWN_COPY)


def check_datasource_writable(folder: str) -> None:
    """Raise PermissionError if the ``datasource-properties.json`` of a folder, or the target of its
    link, cannot be replaced."""
    check_replaceable(store_at(target_path(folder)), FILE_NAME, "dataset")


def dataset_above(layer_folder: str) -> str | None:
    """Return the parent folder of a layer if it has a JSON, even one that does not list the
    layer."""
    folder = dirname(layer_folder)
    # a dangling link states a dataset, too
    return folder if store_at(folder).is_taken(FILE_NAME) else None


def folders_of_mags(layer_folder: str, dataset_folder: str, record: LayerRecord) -> dict[Mag, str]:
    """Return the folders of all mags of a layer that the JSON lists."""
    unstated = tuple(listed.mag for listed in record.mags if listed.path is None)
    remote = _remote_folders(layer_folder, unstated) if is_remote(layer_folder) else {}
    return {
        listed.mag: remote.get(listed.mag)
        or _listed_folder(layer_folder, dataset_folder, listed.mag, listed.path)
        for listed in record.mags
    }


def _listed_folder(layer_folder: str, dataset_folder: str, mag: Mag, path: str | None) -> str:
    """Return the folder of a mag that the JSON lists: its path, or else the folder with a
    conventional name (``2`` or ``2-2-2``)."""
    if path is not None:
        return stated_path(dataset_folder, path)
    for name in (mag.name, mag.long_name):
        if store_at(layer_folder).is_folder(name):
            return f"{layer_folder}/{name}"
    return f"{layer_folder}/{mag.name}"


@lru_cache(maxsize=256)
def _remote_folders(layer_folder: str, mags: tuple[Mag, ...]) -> dict[Mag, str]:
    """Return the folders of mags without a path in a remote layer: a folder is known by its
    header."""
    store = store_at(layer_folder)
    found: dict[Mag, str] = {}
    for is_long in (False, True):
        names = {mag: mag.long_name if is_long else mag.name for mag in mags if mag not in found}
        store.read_ahead(f"{name}/{HEADER_NAME}" for name in names.values())
        found |= {
            mag: f"{layer_folder}/{name}"
            for mag, name in names.items()
            if store.is_file(f"{name}/{HEADER_NAME}")
        }
    return {mag: found.get(mag, f"{layer_folder}/{mag.name}") for mag in mags}
