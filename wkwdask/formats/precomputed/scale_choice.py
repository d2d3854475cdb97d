"""Finding the scale of a volume that somebody means: by its mag, its key or its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.errors import MissingError
from wkwdask.geometry.mag import Mag

if TYPE_CHECKING:
    from wkwdask.formats.precomputed.info import Lengths, OddScale, Scale, VolumeInfo

_TOLERANCE = 1e-3  # of the ratio of two resolutions, which are often rounded
_LARGEST_POWER = 30


def mags_of(info: VolumeInfo) -> tuple[Mag | None, ...]:
    """Give the mag of each scale: its resolution, divided by that of the first scale of the file.

    Examples
    --------
    >>> from wkwdask.formats.precomputed.info import parse_info
    >>> entry = {"size": [9, 9, 9], "chunk_sizes": [[8, 8, 8]], "encoding": "raw"}
    >>> scales = [{**entry, "key": str(length), "resolution": [length, length, 40]} for length in (11.24, 22.48, 30)]
    >>> import json
    >>> mags_of(parse_info(json.dumps({"data_type": "uint8", "scales": scales}), "info"))
    (Mag(1, 1, 1), Mag(2, 2, 1), None)
    """
    base = base_resolution(info)
    return tuple(None if base is None else _mag(scale.resolution, base) for scale in info.scales)


def find_scale(info: VolumeInfo, source: str, *, mag: Mag | str | int | None = None, key: str | None = None, index: int | None = None) -> Scale:
    """Find one scale."""
    for scale, its_mag in zip(info.scales, mags_of(info), strict=True):
        if (mag is None or (its_mag is not None and its_mag == Mag.parse(mag))) and key in (None, scale.key) and index in (None, scale.index):
            return scale
    base = base_resolution(info)
    for odd in info.odd:
        its_mag = None if base is None or odd.resolution is None else _mag(odd.resolution, base)
        if (mag is None or (its_mag is not None and its_mag == Mag.parse(mag))) and key in (None, odd.key) and index in (None, odd.index):
            odd.refuse()
    wanted = " and ".join(f"{name} {value!s}" for name, value in (("mag", mag), ("key", key), ("index", index)) if value is not None)
    raise MissingError(f"{source}: no scale {'with ' + wanted if wanted else 'at all'}; there are {describe_scales(info)}")


def describe_scales(info: VolumeInfo) -> str:
    """List the scales of a volume for an error."""
    usable = [(scale.index, f"{scale.key!r}" + (f" (mag {mag})" if mag else "")) for scale, mag in zip(info.scales, mags_of(info), strict=True)]
    odd = [(scale.index, f"{scale.key!r} (cannot be used)") for scale in info.odd]
    return ", ".join(text for _, text in sorted(usable + odd)) or "none"


def base_resolution(info: VolumeInfo) -> Lengths | None:
    """Give the resolution of the first scale of the file, which may be an odd one."""
    listed: list[Scale | OddScale] = sorted([*info.scales, *info.odd], key=lambda scale: scale.index)
    return listed[0].resolution if listed else None


def _mag(resolution: Lengths, base: Lengths) -> Mag | None:
    factors = []
    for length, unit in zip(resolution, base, strict=True):
        ratio = length / unit
        power = round(ratio) if ratio < 2 << _LARGEST_POWER else 0
        if power < 1 or power & (power - 1) or power > 1 << _LARGEST_POWER or abs(ratio / power - 1) > _TOLERANCE:
            return None
        factors.append(power)
    return Mag.parse(factors)
