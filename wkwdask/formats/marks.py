"""Files that mark a folder as WKW data or as a generated Zarr view: no format writes into the
folder of another."""

from __future__ import annotations

from wkwdask.store.documents import read_object
from wkwdask.store.paths import split
from wkwdask.store.store import store_at

HEADER_NAME = "header.wkw"
"""Description of a mag of WKW."""
DATASOURCE_NAME = "datasource-properties.json"
"""Description of a dataset of WEBKNOSSOS."""
VIEW_MARK = "wkwdask_view"
"""Attribute that marks each ``zarr.json`` that :func:`wkwdask.write_zarr_view` wrote beside WKW
files."""


def is_view(path: str, mark: str = VIEW_MARK) -> bool:
    """Return whether a ``zarr.json`` has an attribute that marks it as generated."""
    folder, name = split(path)
    attributes = (read_object(store_at(folder), name) or {}).get("attributes")
    return isinstance(attributes, dict) and mark in attributes


def is_mag_or_dataset(folder: str) -> bool:
    """Return whether a folder is a mag, or a dataset with a JSON."""
    return any(map(store_at(folder).is_file, (DATASOURCE_NAME, HEADER_NAME)))


def contains_wkw(folder: str) -> bool:
    """Return whether a folder is a mag, a dataset with a JSON, or a layer, which has no file but
    those of its mags."""
    try:
        entries = list(store_at(folder).scandir())
    except OSError:
        return is_mag_or_dataset(folder)
    return any(
        entry.name in (DATASOURCE_NAME, HEADER_NAME)
        if entry.is_file()
        else store_at(entry.path).is_file(HEADER_NAME)
        for entry in entries
    )
