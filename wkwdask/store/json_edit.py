"""Changing a JSON file that describes what lies beside it: whole, and by one process at a time. Reading one that may be anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.errors import FormatError, MissingError
from wkwdask.model.json_text import parse_object
from wkwdask.store import files
from wkwdask.store.locks import locked_file
from wkwdask.store.new_files import publish_bytes
from wkwdask.store.paths import split

if TYPE_CHECKING:
    from collections.abc import Callable


def read_object(path: str) -> dict[str, Any] | None:
    """Read a JSON file that holds an object, None where there is no such file, or another content."""
    try:
        return parse_object(files.read_bytes(path), path)
    except (OSError, FormatError):
        return None


def update_json(
    path: str, read: Callable[[], dict[str, Any] | None], change: Callable[[dict[str, Any]], dict[str, Any]], format_document: Callable[[dict[str, Any]], str],
    new: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Change a JSON file; it appears whole, and no process that honours the lock overwrites what another one wrote."""
    real = files.realpath(path)
    with locked_file(real, f"change of {real}"):
        files.remove_temporaries(*split(real))  # whoever wrote one held this lock, and is dead
        current = read()
        document = new if current is None else current
        if document is None:
            raise MissingError(f"{path}: not found")
        after = change(document)
        if current is None or after != current:
            publish_bytes(real, format_document(after).encode())
