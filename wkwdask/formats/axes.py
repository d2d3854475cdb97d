"""Axes of arrays by the names that a file states. Does no I/O.

Names that are understood are used, and no name at all means the usual axes of the format. All other
names are an error: voxels would end up in wrong places.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

from wkwdask.errors import BoundsError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REMEDY = 'convert(axes=) states other ones, such as axes="zyxc", with - for an axis of length 1'
_CHANNELS = ("c", "channel", "channels", "ch")
# Names that software writes for axes without a name: xarray, netCDF, vigra.
_PLACEHOLDER = re.compile(r"(phony_)?dim_\d+|\?|", re.ASCII)


def axis_letter(name: str) -> str:
    """Return the letter of an axis by its name, ``-`` for an axis that is neither spatial nor
    channels."""
    lower = name.lower()
    return lower if lower in ("x", "y", "z") else "c" if lower in _CHANNELS else "-"


def axis_order(letters: str) -> dict[str, Any]:
    """Return the dimension of each axis as datasets of WEBKNOSSOS state it.

    Examples
    --------
    >>> axis_order("czyx")
    {'axisOrder': {'c': 0, 'x': 3, 'y': 2, 'z': 1}}
    """
    return {"axisOrder": {each: letters.index(each) for each in "cxyz" if each in letters}}


def name_by_type(axis: Any) -> str | None:
    """Return the name of an axis from a text, or an object with a name (or label) and a type; None
    if it has no name."""
    if axis is None or isinstance(axis, str):
        return axis
    if not isinstance(axis, dict):
        return str(axis)
    name, kind = axis.get("name", axis.get("label")), axis.get("type")
    if kind == "channel":
        return "c"
    if name is None:
        return None
    letter = axis_letter(str(name))
    contradicts = (kind == "space" and letter == "c") or (kind == "time" and letter != "-")
    return f"{name} ({kind})" if contradicts else str(name)


def names_in(value: Any) -> list[str | None]:
    """Return the axis names that a document states: a text with a letter for each axis, or a list;
    empty if it states none."""
    if value is None:
        return []
    if isinstance(value, str):
        return list(value)
    return [name_by_type(axis) for axis in value] if isinstance(value, list) else [str(value)]


def axes_of(
    names: Sequence[str | None],
    shape: Sequence[int],
    source: str,
    *,
    usual: str,
    needed: str = "xy",
    remedy: str = REMEDY,
    index: Mapping[str, int] | None = None,
) -> str:
    """Return the letter of each axis of an array, ``-`` for an axis of length 1 without meaning;
    raises UnsupportedError for axes that are not supported.

    ``usual`` are the names of the axes of an array of this rank that states none, empty if there
    are none. They also complete names that agree with them. ``index`` are the further axes along
    which one index is chosen, also named ``-``; None if none can be.

    Examples
    --------
    >>> axes_of(("t", "c", "z", "y", "x"), (1, 3, 10, 20, 30), "em", usual="tczyx")
    '-czyx'
    >>> axes_of((None, "y", "x"), (10, 20, 30), "em", usual="zyx")
    'zyx'
    """
    named, is_stated = _completed(names, shape, source, usual, remedy)
    letters: list[str] = []
    problem = ""
    for name, length in zip(named, shape, strict=True):
        letter = "-" if name is None else axis_letter(name)
        if letter == "c" and not length:
            raise UnsupportedError(
                f"{source}: has an axis {name!r} of length 0, expected at least one channel"
            )
        is_further = letter == "-" or letter in letters
        if is_further and length != 1 and (name is None or name.lower() not in (index or ())):
            if not problem and name is not None and length and index is not None:
                remedy = f'index={{"{name}": 0}} chooses its first element; {remedy}'
            problem = problem or f"an axis {name or 'without a name'!r} of length {length}"
        letters.append("-" if letter in letters else letter)
    problem = problem or next(
        (f"no axis {letter}" for letter in needed if letter not in letters), ""
    )
    if problem:
        stated = (
            f"; it states {_listed(named)} for the shape {tuple(shape)}"
            if is_stated
            else f"; its shape is {tuple(shape)}"
        )
        raise UnsupportedError(
            f"{source}: has {problem}, expected the axes x, y, z and c{stated}; {remedy}"
        )
    return "".join(letters)


def _completed(
    names: Sequence[str | None], shape: Sequence[int], source: str, usual: str, remedy: str
) -> tuple[list[str | None], bool]:
    """Return the name of each axis, completed by the usual ones, and whether any is stated."""
    named = [None if name is None or _PLACEHOLDER.fullmatch(name) else name for name in names]
    is_stated = any(named)
    if is_stated and len(named) != len(shape):
        raise UnsupportedError(
            f"{source}: states {len(named)} axes ({_listed(named)}) for an array of shape "
            f"{tuple(shape)}; {remedy}"
        )
    if len(usual) == len(shape) and all(
        name is None or axis_letter(name) == letter
        for name, letter in zip(named, usual, strict=is_stated)
    ):
        return list(usual), is_stated
    if not is_stated:
        raise UnsupportedError(
            f"{source}: the axes of an array of shape {tuple(shape)} have no names, expected the "
            f"axes x, y, z and c; {remedy}"
        )
    return named, is_stated


def positions_along(
    letters: str,
    names: Sequence[str | None],
    shape: Sequence[int],
    source: str,
    *,
    usual: str,
    index: Mapping[str, int],
) -> tuple[int, ...]:
    """Return the chosen index along each axis named ``-``, by default 0; ``names``, ``shape`` and
    ``usual`` are those that gave the letters, see :func:`axes_of`.

    Examples
    --------
    >>> positions_along("-zyx", ("t", "z", "y", "x"), (5, 9, 9, 9), "em", usual="", index={"t": 3})
    (3,)
    """
    named, _ = _completed(names, shape, source, usual, REMEDY)
    further = [
        ((name or "").lower(), length)
        for name, letter, length in zip(named, letters, shape, strict=True)
        if letter == "-"
    ]
    for name, n in index.items():
        length = dict(further).get(name)
        if length is None:
            others = ", ".join(other for other, _ in further) or "none"
            raise ValueError(
                f"{source}: has no further axis {name!r}, along which index= chooses {n}; there "
                f"are {others} besides x, y, z and channels"
            )
        if not 0 <= n < length:
            raise BoundsError(
                f"{source}: index {n} is out of range along the axis {name!r} of length {length}"
            )
    return tuple(index.get(name, 0) for name, _ in further)


def parse_index(index: Mapping[str, int]) -> dict[str, int]:
    """Return the index chosen along each further axis, by names in lower case."""
    try:
        return {name.lower(): operator.index(n) for name, n in index.items()}
    except (AttributeError, TypeError):
        raise TypeError(
            f'index must map names of axes to whole numbers, such as {{"t": 3}}, got {index!r}'
        ) from None


def _listed(names: Sequence[str | None]) -> str:
    return ", ".join("no name" if name is None else name for name in names)
