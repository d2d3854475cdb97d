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


def items_of(mags: Sequence[MagLike] | str) -> Sequence[MagLike]:
    """Take a list of mags or keys apart, which may be a text with commas."""
    if isinstance(mags, (Mag, int)):
        raise TypeError(f"mags must be a sequence of mags, got {mags!r}")
    return mags.split(",") if isinstance(mags, str) else mags


def parse_mags(mags: Sequence[MagLike] | str | None) -> tuple[Mag, ...] | None:
    """Parse a list of mags, None where there is none."""
    return None if mags is None else tuple(map(Mag.parse, items_of(mags)))


def parsed_mags(values: dict[str, Any]) -> dict[str, Any]:
    """Parse the mags among options; they may come in any form."""
    single = {name: Mag.parse(values[name]) for name in ("source", "finest", "coarsest") if values.get(name) is not None}
    return {**values, **single, "mags": parse_mags(values.get("mags"))}
