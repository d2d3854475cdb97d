"""Small JSON files: read as an object, or rejected with the path of the file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from wkwdask.errors import CorruptError
from wkwdask.model.json_text import parse_object
from wkwdask.store.paths import dirname, split
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from wkwdask.model.json_text import JsonObject

LAYOUT = 1
"""Layout version of a job's records and journal. Jobs of another version are rejected."""
_MAX_NBYTES = 1 << 28


def read_record(path: str) -> JsonObject | None:
    """Read the object in a JSON file; None if the file is absent."""
    folder, name = split(path)
    try:
        (data,) = store_at(folder).read_whole([name], _MAX_NBYTES)
    except FileNotFoundError:  # a dangling link
        return None
    return None if data is None else parse_object(data, path)


def format_job_record(record: JsonObject) -> bytes:
    """Encode a record of a job, with its layout version."""
    return json.dumps({"layout": LAYOUT, **record}).encode()


def read_job_record(path: str) -> JsonObject | None:
    """Read a record of a job; None if it is absent."""
    record = read_record(path)
    if record is None:
        return None
    layout = record.pop("layout", None)
    if layout != LAYOUT:
        found = "no layout" if layout is None else f"layout {layout!r}"
        raise CorruptError(
            f"{path}: has {found}, expected {LAYOUT}: another version of wkwdask wrote it; finish "
            "the job with that version, or discard its work: "
            f"wkwdask repair removes {dirname(path)}"
        )
    return record
