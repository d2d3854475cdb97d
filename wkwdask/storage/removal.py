"""Mags that are taken away: a record says what is to go, the JSON forgets it, it is set aside in the folder of the job, and deleted there.

Whoever finds the record of a job that was killed can do what is left to be done; doing it again changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from wkwdask.storage.local import fsync_folder, publish_bytes
from wkwdask.storage.metadata import edit_from_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.storage.metadata import MetadataEdit

_KEY = "removed"


def format_removal(folders: Sequence[str], edit: MetadataEdit | None) -> bytes:
    """Write the record of mags that are to go.

    Parameters
    ----------
    folders : sequence of str
        The mags.
    edit : MetadataEdit, optional
        What the metadata is to forget.
    """
    return json.dumps({_KEY: list(folders), "edit": edit.to_json() if edit is not None else None}).encode()


def is_removal(record: dict[str, Any]) -> bool:
    """Tell whether a job's record is one of mags that are to go."""
    return _KEY in record


def set_aside(record_path: str) -> None:
    """Let the JSON forget mags, and move them beside a record; from then on it says that nothing but deleting is left.

    Parameters
    ----------
    record_path : str
        The record, in the folder of the job.
    """
    root = os.path.dirname(record_path)
    with open(record_path, "rb") as file:
        record = json.load(file)
    if record["edit"] is not None:
        edit_from_json(record["edit"]).apply()
    for number, folder in enumerate(record[_KEY]):
        with contextlib.suppress(FileNotFoundError):  # moved before, or listed in the JSON and not there
            os.rename(folder, f"{root}/{number}-{os.path.basename(folder)}")
            fsync_folder(os.path.dirname(folder))
    fsync_folder(root)
    publish_bytes(record_path, format_removal((), None))
