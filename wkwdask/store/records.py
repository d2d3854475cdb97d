"""Records that jobs keep in a mag: its provenance, and the states of its files and of the files
that they were built from."""

from __future__ import annotations

import contextlib
import io
import json
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.model.states import FILE_RECORD_COLUMNS, FILE_RECORD_NAME, parse_file_record
from wkwdask.model.store import Conflict
from wkwdask.store import json_record
from wkwdask.store.leases import check_fence
from wkwdask.store.new_files import publish_bytes
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wkwdask.array_types import IntArray
    from wkwdask.model.json_text import JsonObject


PROVENANCE_NAME = ".wkwdask.json"
PROGRESS_NAME = ".wkwdask-progress.jsonl"
_MAX_NBYTES = 1 << 32
_COORDINATE_LIMIT = 1 << 31  # larger than any coordinate


def read_provenance(folder: str) -> JsonObject:
    """Read the provenance of a mag; empty if it is absent or not valid."""
    try:
        value = json_record.read_record(f"{folder}/{PROVENANCE_NAME}") or {}
    except (CorruptError, OSError):
        return {}
    parts = [value, value.get("made", {})]
    return (
        value
        if all(
            isinstance(part, dict) and isinstance(part.get("settings", {}), dict) for part in parts
        )
        else {}
    )


def is_complete(folder: str) -> bool:
    """Check whether a job has completed a level, by its provenance; an unreadable one may be of a
    complete level."""
    try:
        return "publication" in (json_record.read_record(f"{folder}/{PROVENANCE_NAME}") or {})
    except CorruptError:
        return True


def read_creation_settings(folder: str, mag: Mag | None) -> JsonObject:
    """Read the settings of the job that computed the voxels of a mag, even if a later job rewrote
    its files; empty if unknown.

    Their mags count as ``mag`` does. That of the level changes if a format counts from the finest
    level, and a finer one was added.
    """
    provenance = read_provenance(folder)
    made: JsonObject = provenance.get("made", provenance)
    settings: JsonObject = made.get("settings", {})
    if mag is None or made.get("mag", mag.name) == mag.name:
        return settings
    try:
        step = Mag.parse(Mag.parse(made["mag"]).step_to(mag))
        recounted = {
            name: [Mag.parse(text).times(step).name for text in settings[name].split(",")]
            for name in ("source", "mags")
            if name in settings
        }
    except (AttributeError, TypeError, ValueError):
        return {}
    return {**settings, **{name: ",".join(names) for name, names in recounted.items()}}


def read_box(folder: str, mag: Mag) -> BoundingBox | None:
    """Read the box that the job wrote into a mag; None if unknown."""
    numbers = read_provenance(folder).get("box")
    if (
        not isinstance(numbers, list)
        or len(numbers) != 6
        or not all(type(number) is int and 0 <= number < _COORDINATE_LIMIT for number in numbers)
    ):
        return None
    return BoundingBox(
        (numbers[0], numbers[1], numbers[2]), (numbers[3], numbers[4], numbers[5]), mag
    )


def write_provenance(folder: str, provenance: JsonObject) -> None:
    publish_bytes(f"{folder}/{PROVENANCE_NAME}", format_provenance(provenance))


def format_provenance(provenance: JsonObject) -> bytes:
    return json.dumps(provenance, indent=1).encode()


def write_file_record(folder: str, rows: IntArray) -> None:
    publish_bytes(f"{folder}/{FILE_RECORD_NAME}", format_file_record(rows))


def format_file_record(rows: IntArray) -> bytes:
    memory = io.BytesIO()
    np.save(memory, rows, allow_pickle=False)
    return memory.getvalue()


def read_file_record(folder: str) -> IntArray | None:
    """Read the file record of a mag; None if it is absent."""
    path = f"{folder}/{FILE_RECORD_NAME}"
    try:
        with store_at(path).open_stream() as file:
            return parse_file_record(file.read(), path)
    except FileNotFoundError:
        return None


def merge_file_record(folder: str, rows: IntArray) -> None:
    """Update some rows of the file record of a mag."""

    def merged(before: IntArray) -> IntArray:
        row_of = {tuple(row[:3]): row for row in before.tolist()}
        row_of.update({tuple(row[:3]): row for row in rows.tolist()})
        return np.array(list(row_of.values()), np.int64).reshape(-1, FILE_RECORD_COLUMNS)

    _change_file_record(folder, merged)


def _change_file_record(folder: str, change: Callable[[IntArray], IntArray]) -> None:
    """Change the file record of a mag, if it has one: rows of a part of the mag alone would state
    that all other files are absent."""
    store = store_at(folder)
    if not store.can.compares:
        before = read_file_record(folder)
        if before is not None:
            write_file_record(folder, change(before))
        return
    while (found := store.read_state(FILE_RECORD_NAME, _MAX_NBYTES)) is not None:
        rows = parse_file_record(found[0], store.path_of(FILE_RECORD_NAME))
        check_fence()
        with contextlib.suppress(Conflict):  # another job has changed other rows
            store.put(FILE_RECORD_NAME, format_file_record(change(rows)), found[1])
            return


def recorded_states(
    folder: str, shards: Iterable[tuple[int, int, int]]
) -> dict[tuple[int, int, int], tuple[int, ...]]:
    """Return size and modification time of some files from the file record; empty if the mag has no
    record."""
    rows = read_file_record(folder)
    selected = set(shards)
    return (
        {}
        if rows is None
        else {
            (x, y, z): (nbytes, mtime_ns)
            for x, y, z, nbytes, mtime_ns, _ in rows.tolist()
            if (x, y, z) in selected
        }
    )


def patch_file_record(folder: str, states: dict[tuple[int, int, int], tuple[int, ...]]) -> None:
    """Update the file record after a repair changed files: size (0 if removed), modification time,
    and the digest if sources changed."""
    if not states:
        return

    def patched(rows: IntArray) -> IntArray:
        changed = rows.copy()
        for row in changed:
            state = states.get((int(row[0]), int(row[1]), int(row[2])))
            if state is not None:
                row[3 : 3 + len(state)] = state
        return changed.reshape(-1, FILE_RECORD_COLUMNS)

    _change_file_record(folder, patched)
