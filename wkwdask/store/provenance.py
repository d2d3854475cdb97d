"""What a job leaves in a mag: how it was made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.store.json_record import read_record
from wkwdask.store.new_files import publish_bytes

if TYPE_CHECKING:
    from wkwdask.geometry.mag import Mag

PROVENANCE_NAME = ".wkwdask.json"
PROGRESS_NAME = ".wkwdask-progress.jsonl"
_BEYOND = 1 << 31  # no coordinate is as large


def read_provenance(folder: str) -> dict[str, Any]:
    """Read what a job left in a mag, an empty record where there is none, or none that can be understood."""
    try:
        value = read_record(f"{folder}/{PROVENANCE_NAME}") or {}
    except (CorruptError, OSError):
        return {}
    parts = [value, value.get("made", {})]
    return value if all(isinstance(part, dict) and isinstance(part.get("settings", {}), dict) for part in parts) else {}


def read_making(folder: str) -> dict[str, Any]:
    """Read the settings of the job that made a mag's voxels, whatever stored them anew since; an empty record where nobody knows."""
    provenance = read_provenance(folder)
    settings: dict[str, Any] = provenance.get("made", provenance).get("settings", {})
    return settings


def read_box(folder: str, mag: Mag) -> BoundingBox | None:
    """Read where the job that made a mag wrote data, None where nobody knows."""
    numbers = read_provenance(folder).get("box")
    if not isinstance(numbers, list) or len(numbers) != 6 or not all(type(number) is int and 0 <= number < _BEYOND for number in numbers):
        return None
    return BoundingBox((numbers[0], numbers[1], numbers[2]), (numbers[3], numbers[4], numbers[5]), mag)


def write_provenance(folder: str, provenance: dict[str, Any]) -> None:
    """Leave a record in a mag of how it was made."""
    publish_bytes(f"{folder}/{PROVENANCE_NAME}", json.dumps(provenance, indent=1).encode())
