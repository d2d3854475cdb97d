"""Mags of a pyramid, by the rule of WEBKNOSSOS."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

from wkwdask.geometry.mag import MAX_FACTOR, Mag
from wkwdask.geometry.vectors import is_multiple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3

Sampling = Literal["anisotropic", "isotropic", "constant_z"]
SAMPLINGS: tuple[str, ...] = get_args(Sampling)

# Relative difference below which two lengths count as equal. WEBKNOSSOS compares floats exactly and
# treats (4, 4.0001, 40) nm as three different lengths.
_SAME_LENGTH = 1e-3


def default_coarsest(box: BoundingBox) -> Mag:
    """Return the default coarsest mag of a layer: the mag in which it is about a hundred voxels
    wide, but at least mag 4.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> [default_coarsest(BoundingBox((0, 0, 0), (n, n, n))).name for n in (256, 1000, 65536)]
    ['4', '16', '1024']
    """
    longest = max(box.size[0], box.size[1], 1)
    return Mag.parse(min(MAX_FACTOR, max(4, 1 << max(0, math.ceil(math.log2(longest / 100))))))


def sorted_mags(mags: Collection[Mag], origin: Mag, option: str) -> list[Mag]:
    """Sort the mags that a user lists, finest first; raise ValueError if they include their source,
    which ``option`` names in the error."""
    if origin in mags:
        raise ValueError(
            f"mags= lists mag {origin}, which is the {option}: it is what the others are made from"
        )
    return sorted(set(mags), key=lambda mag: (mag.x * mag.y * mag.z, mag.factors))


def check_one_ladder(folder: str, existing: Collection[Mag], new: Collection[Mag]) -> None:
    """Raise ValueError for a new mag with the largest factor of another mag of the layer:
    WEBKNOSSOS identifies mags by that factor.

    Examples
    --------
    >>> check_one_ladder(
    ...     "ds/em", [Mag.parse("1"), Mag.parse("2-2-1")], [Mag.parse("2-2-1"), Mag.parse("4-4-2")]
    ... )
    >>> check_one_ladder("ds/em", [Mag.parse("1"), Mag.parse("2-2-1")], [Mag.parse("2")])
    Traceback (most recent call last):
    ...
    ValueError: ds/em: mag 2 would lie beside mag 2-2-1: a layer has one ladder of mags; remove that mag first, or choose mags that go with it
    """  # noqa: E501
    known = {max(mag.factors): mag for mag in existing}
    for mag in new:
        other = known.get(max(mag.factors))
        if mag not in existing and other is not None:
            raise ValueError(
                f"{folder}: mag {mag} would lie beside mag {other}: a layer has one ladder of "
                "mags; remove that mag first, or choose mags that go with it"
            )


def mag_ladder(
    finest: Mag,
    coarsest: Mag,
    voxel_size_nm: Sequence[float] | None = None,
    sampling: str = "anisotropic",
    others: Collection[Mag] = (),
) -> list[Mag]:
    """List the mags of a pyramid above ``finest``; mags that ``others`` (other layers) have are
    preferred.

    Notes
    -----
    ``calculate_mags_to_downsample`` of webknossos 4.3.3, with lengths compared by a relative
    tolerance.

    Examples
    --------
    >>> mag_ladder(Mag(1, 1, 1), Mag.parse(16), (11.24, 11.24, 28))
    [Mag(2, 2, 1), Mag(4, 4, 2), Mag(8, 8, 4), Mag(16, 16, 8)]
    """
    if sampling not in SAMPLINGS:
        raise ValueError(f"sampling must be one of {', '.join(SAMPLINGS)}, got {sampling!r}")
    if sampling == "constant_z":
        coarsest = Mag(coarsest.x, coarsest.y, finest.z)
    doubles_all = sampling != "anisotropic" or voxel_size_nm is None
    return list(
        _climb(
            finest,
            coarsest,
            (1.0, 1.0, 1.0) if voxel_size_nm is None else tuple(voxel_size_nm),
            doubles_all,
            others,
        )
    )


def _climb(
    finest: Mag,
    coarsest: Mag,
    voxel_size: Sequence[float],
    doubles_all: bool,
    others: Collection[Mag],
) -> Iterator[Mag]:
    current = finest
    while current.maximum < coarsest.maximum:
        shared = _next_of(others, current)
        if shared is not None:
            current = shared
            yield current
            continue
        doubled = (
            _doubled(current.factors, (True,) * 3)
            if doubles_all
            else _most_cubic(current.factors, voxel_size)
        )
        clipped = Mag(*(min(a, b) for a, b in zip(doubled, coarsest.factors, strict=True)))
        if (
            any(a < b for a, b in zip(clipped.factors, current.factors, strict=True))
            or clipped == current
        ):
            raise ValueError(
                f"the mags from {finest} do not reach {coarsest}: after {current} comes "
                f"{'-'.join(map(str, doubled))}; choose another coarsest mag"
            )
        # WEBKNOSSOS identifies mags by their largest factor
        grows = clipped.maximum > current.maximum
        current = clipped
        if grows:
            yield current


def _next_of(others: Collection[Mag], current: Mag) -> Mag | None:
    """Return the mag after ``current`` in other layers, None if they have none that fits."""
    fitting = [
        mag
        for mag in others
        if mag.maximum == 2 * current.maximum and is_multiple(mag.factors, current.factors)
    ]
    return min(fitting, default=None)


def _doubled(factors: Vec3, axes: Sequence[bool]) -> tuple[int, ...]:
    return tuple(
        factor * 2 if double else factor for factor, double in zip(factors, axes, strict=True)
    )


def _most_cubic(factors: Vec3, voxel_size: Sequence[float]) -> tuple[int, ...]:
    """Double all axes, or only those with the shortest voxels, whichever makes voxels more cubic;
    in a tie, only the latter."""
    lengths = [factor * length for factor, length in zip(factors, voxel_size, strict=True)]
    shortest = min(lengths)
    doubled_all = _doubled(factors, (True,) * 3)
    doubled_short = _doubled(
        factors, [length <= shortest * (1 + _SAME_LENGTH) for length in lengths]
    )
    return (
        doubled_all
        if _elongation(doubled_all, voxel_size) < _elongation(doubled_short, voxel_size)
        else doubled_short
    )


def _elongation(factors: Sequence[int], voxel_size: Sequence[float]) -> float:
    lengths = [factor * length for factor, length in zip(factors, voxel_size, strict=True)]
    return max(lengths) / min(lengths)
