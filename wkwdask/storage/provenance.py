"""What a job leaves in a mag: how it was made."""

from __future__ import annotations

import json
from typing import Any

from wkwdask.storage.local import publish_bytes

PROVENANCE_NAME = ".wkwdask.json"


def read_provenance(folder: str) -> dict[str, Any]:
    """Read what a job left in a mag, an empty record where there is none."""
    try:
        with open(f"{folder}/{PROVENANCE_NAME}", "rb") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_making(folder: str) -> dict[str, Any]:
    """Read the settings of the job that made a mag's voxels, whatever stored them anew since; an empty record where nobody knows."""
    provenance = read_provenance(folder)
    made = provenance.get("made", provenance)
    settings = made.get("settings", {}) if isinstance(made, dict) else {}
    return settings if isinstance(settings, dict) else {}


def write_provenance(folder: str, provenance: dict[str, Any]) -> None:
    """Leave a record in a mag of how it was made."""
    publish_bytes(f"{folder}/{PROVENANCE_NAME}", json.dumps(provenance, indent=1).encode())
