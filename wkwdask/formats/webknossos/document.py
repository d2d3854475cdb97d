"""Read and change ``datasource-properties.json``, the document of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.errors import MissingError
from wkwdask.formats.roots import OWN_COPY, Root
from wkwdask.formats.webknossos.datasource import (
    FILE_NAME,
    DataSource,
    format_datasource,
    parse_datasource,
)
from wkwdask.store.documents import check_replaceable, update_json
from wkwdask.store.paths import dirname, is_remote, local_path
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable

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
    change: Callable[[dict[str, Any]], dict[str, Any]],
    new: dict[str, Any] | None = None,
    *,
    allow_external: bool = False,
) -> None:
    """Apply a change to the ``datasource-properties.json`` of a folder, atomically and under a
    lock; ``new`` is the document if there is no file yet.

    Other software ignores the lock: a change that it makes in the milliseconds between read and
    write is lost. ``allow_external`` is for jobs, which check before they begin whether the JSON is
    a link to that of another dataset; all other changes of such a link raise UnsupportedError.
    """
    store = store_at(local_path(folder))
    if not store.is_folder():
        raise MissingError(f"{store.path_of(FILE_NAME)}: no such folder")
    if not allow_external:
        check_own_datasource(folder)
    check_datasource_writable(folder)
    update_json(
        store, FILE_NAME, change, new, parse=_parse_document, format_document=format_datasource
    )


def _parse_document(raw: bytes, path: str) -> dict[str, Any]:
    return parse_datasource(raw, path).document


def check_own_datasource(folder: str) -> None:
    """Raise UnsupportedError if the ``datasource-properties.json`` of a folder is a link to that of
    another dataset."""
    Root(local_path(folder), noun="dataset").check_documents(local_path(folder), OWN_COPY)


def check_datasource_writable(folder: str) -> None:
    """Raise PermissionError if the ``datasource-properties.json`` of a folder, or the target of its
    link, cannot be replaced."""
    check_replaceable(store_at(local_path(folder)), FILE_NAME, "dataset")


def dataset_above(layer_folder: str) -> str | None:
    """Return the parent folder of a layer if it has a JSON, even one that does not list the
    layer."""
    folder = dirname(layer_folder)
    # a dangling link states a dataset, too
    return folder if store_at(folder).is_taken(FILE_NAME) else None
