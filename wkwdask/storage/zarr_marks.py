"""By what a ``zarr.json`` that was put beside WKW files is known again."""

from __future__ import annotations

import json

MARK = "wkwdask_view"
"""Its attribute."""


def is_view(path: str) -> bool:
    """Tell whether a ``zarr.json`` was made by :func:`wkwdask.write_zarr_view`."""
    try:
        with open(path, "rb") as file:
            document = json.load(file)
    except (OSError, ValueError):
        return False
    attributes = document.get("attributes") if isinstance(document, dict) else None
    return isinstance(attributes, dict) and MARK in attributes
