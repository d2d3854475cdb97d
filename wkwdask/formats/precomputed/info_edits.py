"""Writing ``info`` and ``provenance``: changes of a document that keep everything they do not know. Opens nothing."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.formats.precomputed.info import HINTS, TYPE
from wkwdask.formats.precomputed.sharding import format_sharding
from wkwdask.model.json_text import format_json

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.model.levels import Lengths

PROVENANCE_FILE_NAME = "provenance"
_KNOWN = (
    "key", "size", "voxel_offset", "chunk_sizes", "resolution", "encoding", "sharding", "compressed_segmentation_block_size", "hidden", *HINTS,
)  # fmt: skip
_SAME = 1e-3  # of a resolution: these are the same

PROVENANCE = {"description": "", "sources": [], "owners": [], "processing": []}
"""A ``provenance`` file that says nothing yet."""


def new_document(kind: str, dtype: Any, num_channels: int) -> dict[str, Any]:
    """Make the document of a volume without scales."""
    return {"@type": TYPE, "type": kind, "data_type": np.dtype(dtype).name, "num_channels": num_channels, "scales": []}


def format_info(document: dict[str, Any]) -> str:
    """Write a document; numbers that were read keep their digits."""
    return format_json(document)


def with_scales(document: dict[str, Any], scales: Sequence[Scale]) -> dict[str, Any]:
    """Add scales to a volume, or replace them; everything else is kept."""
    changed = copy.deepcopy(document)
    listed = changed.get("scales")
    entries = changed["scales"] = listed if isinstance(listed, list) else []
    for scale in scales:
        place = _place(entries, scale)
        if place is None:
            entries.insert(_first_coarser(entries, scale.resolution), scale_entry(scale))
        else:
            entries[place] = {**_unknown(entries[place]), **scale_entry(scale)}
    return changed


def without_scales(document: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Take scales off a volume; everything else is kept."""
    return {**document, "scales": [entry for entry in document["scales"] if not isinstance(entry, dict) or entry.get("key") not in keys]}


def scale_entry(scale: Scale) -> dict[str, Any]:
    """Write one scale, with what is not known here from its own entry."""
    entry: dict[str, Any] = {
        "key": scale.key,
        "size": list(scale.size),
        "resolution": [_length(length) for length in scale.resolution],
        "voxel_offset": list(scale.voxel_offset),
        "chunk_sizes": [list(chunk) for chunk in scale.chunk_sizes or (scale.chunk_size,)],
        "encoding": scale.encoding,
    }
    if scale.block_size is not None:
        entry["compressed_segmentation_block_size"] = list(scale.block_size)
    if scale.sharding is not None:
        entry["sharding"] = format_sharding(scale.sharding)
    if scale.hidden:
        entry["hidden"] = True
    return {**_unknown(scale.entry), **entry, **scale.options}


def _place(entries: list[Any], scale: Scale) -> int | None:
    """Find the entry that a scale replaces."""
    keys = [entry.get("key") if isinstance(entry, dict) else None for entry in entries]
    if scale.key in keys:
        return keys.index(scale.key)
    alike = [place for place, entry in enumerate(entries) if _is_close(_lengths(entry), scale.resolution)]
    return alike[0] if alike else None


def _is_close(lengths: Lengths | None, resolution: Lengths) -> bool:
    return lengths is not None and all(abs(a / b - 1) <= _SAME for a, b in zip(lengths, resolution, strict=True))


def _first_coarser(entries: list[Any], resolution: Lengths) -> int:
    """Find the place of the first entry whose voxels are larger."""
    volume = resolution[0] * resolution[1] * resolution[2]
    for place, entry in enumerate(entries):
        lengths = _lengths(entry)
        if lengths is not None and lengths[0] * lengths[1] * lengths[2] > volume:
            return place
    return len(entries)


def _lengths(entry: Any) -> Lengths | None:
    lengths = entry.get("resolution") if isinstance(entry, dict) else None
    if isinstance(lengths, list) and len(lengths) == 3 and all(isinstance(length, (int, float)) for length in lengths):
        return lengths[0], lengths[1], lengths[2]
    return None


def _unknown(entry: Any) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in _KNOWN} if isinstance(entry, dict) else {}


def _length(length: float) -> float:
    return int(length) if float(length).is_integer() and length < 1 << 53 else length
