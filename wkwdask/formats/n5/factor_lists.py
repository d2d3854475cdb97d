"""Lists of downsampling factors in the attributes of groups. Other software uses entry N for level
N.

Neuroglancer opens no group whose list has an entry without a level. So a group that lacks a number
has no list, and each of its levels states its own factors, which Neuroglancer and n5-viewer read
too. BigDataViewer reads one list for all time points of a setup, and its levels never change their
numbers.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

from wkwdask.errors import FormatError, UnsupportedError
from wkwdask.formats.axes import axis_letter
from wkwdask.formats.n5.array import read_attributes
from wkwdask.formats.n5.attributes import FACTOR_LISTS, FILE_NAME, is_factor_list, level_number
from wkwdask.formats.n5.big_data_viewer import SETUP_KEY, TIME_POINT, has_path_of_time_point
from wkwdask.formats.n5.layer import inherited_attributes, read_level
from wkwdask.formats.n5.placement import level_sizes, ratios_to
from wkwdask.model.levels import finest_first, is_whole_number, scale_lengths
from wkwdask.store.paths import dirname
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from wkwdask.formats.n5.placement import LevelMetadata
    from wkwdask.model.json_text import JsonObject

Factors = dict[str, "list[Any] | None"]
"""Downsampling factors along all axes, x first, by the name of the level; None if they are not
known."""


def level_folders(group: str) -> set[str]:
    """Return the names of the datasets in a group that are named like levels."""
    return {
        name
        for name in store_at(group).names()
        if level_number(name) is not None and store_at(group).is_file(f"{name}/{FILE_NAME}")
    }


def factors_in(
    group: str, known: Mapping[str, list[Any]], without: Collection[str] = ()
) -> Factors:
    """Return the factors of all levels of a group: the known ones, else those that its attributes
    state, else those of their voxel sizes."""
    store, levels = store_at(group), dict[str, "LevelMetadata"]()
    factors: Factors = dict.fromkeys(level_folders(group) - set(without))
    for name in factors:
        with contextlib.suppress(FormatError, UnsupportedError):
            levels[name] = read_level(store, name)
    factors.update(_factors_of(levels))
    return {**factors, **{name: value for name, value in known.items() if name in factors}}


def _factors_of(levels: Mapping[str, LevelMetadata]) -> Factors:
    """Return the factors of the levels that state factors or voxel sizes."""
    known = list(levels.values())
    factors: Factors = {}
    if not known:
        return factors
    base = known[finest_first(level_sizes(known))[0]]
    for (name, level), ratio in zip(levels.items(), ratios_to(base, known), strict=True):
        xyz = level.factors or (
            None if ratio is None else scale_lengths(ratio, base.factors or (1.0, 1.0, 1.0))
        )
        if xyz is not None:
            by_letter = dict(zip("xyz", xyz, strict=True))
            factors[name] = [
                _number(by_letter.get(letter, 1)) for letter in map(axis_letter, level.names)
            ]
    return factors


def _number(factor: float) -> float:
    return int(factor) if is_whole_number(factor) else factor


def with_factor_lists(
    document: JsonObject, factors: Factors, inherited: Mapping[str, Any]
) -> JsonObject:
    """Return the attributes of a group whose lists describe exactly its levels; without lists if a
    level is missing or unknown."""
    keys = [key for key in FACTOR_LISTS if is_factor_list(document.get(key))]
    listed = [factors.get(f"s{n}") for n in range(len(factors))]
    if not listed or None in listed:
        return {key: value for key, value in document.items() if key not in keys}
    above = [
        key
        for key in FACTOR_LISTS
        if is_factor_list(inherited.get(key)) and inherited[key] != listed
    ]
    # Neuroglancer needs a list where it cannot list folders. Groups with axes are its own or ours.
    keys = keys or above or (["scales"] if isinstance(document.get("axes"), list) else [])
    return {**document, **dict.fromkeys(keys, listed)}


def has_lists(document: Mapping[str, Any]) -> bool:
    return any(is_factor_list(document.get(key)) for key in FACTOR_LISTS)


def inherited_by(group: str) -> JsonObject:
    """Return the attributes that a group inherits from the folders above it."""
    return inherited_attributes(store_at(group))


# ----------------------------------------------------------------------------- BigDataViewer


def setup_of(group: str) -> str | None:
    """Return the folder of the setup of BigDataViewer that has a group as time point, or None."""
    setup = dirname(group)
    return setup if has_path_of_time_point(group) and setup_factors(setup) else None


def check_list_of_setup(group: str) -> None:
    """Raise UnsupportedError for a time point that is a link out of its setup: the list of only one
    of both setups would follow its levels."""
    setup, real = setup_of(group), store_at(group).real()
    if setup is not None and store_at(setup).real() != dirname(real):
        raise UnsupportedError(
            f"{group}: leads to {real}, and {setup}/{FILE_NAME} lists the levels of it: its levels "
            f"are changed in {real} only; name that folder directly"
        )


def other_time_points(group: str) -> dict[str, set[str]]:
    """Return the levels of the other time points of a setup that have some, by their folders."""
    setup = dirname(group)
    points = {
        f"{setup}/{name}" for name in store_at(setup).names() if TIME_POINT.fullmatch(name)
    } - {group}
    return {point: names for point in sorted(points) if (names := level_folders(point))}


def setup_factors(setup: str) -> list[Any]:
    """Return the factors that a setup lists for the levels of all its time points; empty if there
    are none."""
    listed = (read_attributes(store_at(setup)) or {}).get(SETUP_KEY)
    return listed if isinstance(listed, list) and is_factor_list(listed) else []


def with_levels_of_time_points(
    document: JsonObject, group: str, factors: Factors, removed: Collection[str]
) -> JsonObject:
    """Return the attributes of a setup whose list describes the levels of all time points.

    The list of a single time point is that of its levels, with some entry for a number that is
    missing. A list of several ones gets the next levels if all have them, and loses the last ones
    if none has them anymore.
    """
    listed, others = list(document[SETUP_KEY]), other_time_points(group)
    if not others:
        numbers = [level_number(name) or 0 for name, value in factors.items() if value is not None]
        filled = [
            factors.get(f"s{n}") or (listed[n] if n < len(listed) else listed[-1])
            for n in range(max(numbers, default=-1) + 1)
        ]
        return {**document, SETUP_KEY: filled or listed}
    while (
        len(listed) > 1
        and (last := f"s{len(listed) - 1}") in removed
        and not any(last in names for names in others.values())
    ):
        listed.pop()
    while (new := f"s{len(listed)}") in factors and all(new in names for names in others.values()):
        stated = [factors[new], *(_stated_factors(f"{point}/{new}") for point in others)]
        if (
            stated[0] is None
            or any(each != stated[0] for each in stated)
            or not is_coarser(stated[0], listed[-1])
        ):
            break
        listed.append(stated[0])
    return {**document, SETUP_KEY: listed}


def is_coarser(factors: Sequence[float], other: Sequence[float]) -> bool:
    return math.prod(factors) > math.prod(other)


def _stated_factors(dataset: str) -> list[Any] | None:
    value = (read_attributes(store_at(dataset)) or {}).get(SETUP_KEY)
    return value if isinstance(value, list) and is_factor_list([value]) else None
