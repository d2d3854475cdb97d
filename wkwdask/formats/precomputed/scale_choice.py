"""Finding the scale of a volume that somebody means: by its mag, its key or its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def mag_of_odd(info: VolumeInfo, odd: OddScale) -> Mag | None:
    """Give the mag of a scale that cannot be used, None where it has none."""
    base = base_resolution(info)
    return None if base is None or odd.resolution is None else _mag(odd.resolution, base)


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
