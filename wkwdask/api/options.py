"""What the verbs take in several forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from wkwdask.geometry.mag import Mag

Existing = Literal["error", "resume", "overwrite"]
MagLike = Mag | str | int | Sequence[int]


class WriteOptions(TypedDict, total=False):
    """What all functions take that write an array; type checkers read here what such a function says of itself at run time."""

    offset: Sequence[int] | None
    existing: Existing
    token: str | None


class PlacedOptions(WriteOptions, total=False):
    """What those take, too, whose format says how large voxels are."""

    voxel_size: Sequence[float] | None
    mag: MagLike | None


def parsed_mags(values: dict[str, Any]) -> dict[str, Any]:
    """Parse the mags among options; they may come in any form."""
    for name in ("source", "finest", "coarsest"):
        if values.get(name) is not None:
            values[name] = Mag.parse(values[name])
    mags = values.get("mags")
    if mags is not None:
        if isinstance(mags, (Mag, int)):
            raise TypeError(f"mags must be a sequence of mags, got {mags!r}")
        values["mags"] = tuple(Mag.parse(mag) for mag in (mags.split(",") if isinstance(mags, str) else mags))
    return values
