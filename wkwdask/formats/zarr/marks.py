"""By what a ``zarr.json`` that was put beside WKW files is known again."""

from __future__ import annotations

from wkwdask.store.json_edit import read_object

MARK = "wkwdask_view"
"""Its attribute."""


def is_view(path: str) -> bool:
    """Tell whether a ``zarr.json`` was made by :func:`wkwdask.write_zarr_view`."""
    attributes = (read_object(path) or {}).get("attributes")
    return isinstance(attributes, dict) and MARK in attributes
