"""Levels of N5 groups as other software finds and places them, by the rules of its own source or
specification; wkwdask reads nothing here."""

from __future__ import annotations

import json
import re
from math import isfinite

LEVEL = re.compile(r"s(?:0|[1-9][0-9]*)")


class CannotOpenError(Exception):
    """The software opens no level of the group."""


def attributes_of(folder):
    path = folder / "attributes.json"
    return json.loads(path.read_text()) if path.exists() else {}


def level_folders(group):
    return sorted(
        (
            path
            for path in group.iterdir()
            if LEVEL.fullmatch(path.name) and "dimensions" in attributes_of(path)
        ),
        key=lambda path: int(path.name[1:]),
    )


def merged_attributes(folder, root):
    """Return the attributes of a folder over those of the folders above it (Neuroglancer,
    ``getAttributes``)."""
    merged = {}
    for path in [*reversed(folder.parents), folder]:
        if path == root or root in path.parents:
            merged |= attributes_of(path)
    return merged


def is_list_of_lists(value):
    return isinstance(value, list) and bool(value) and all(isinstance(item, list) for item in value)


def by_neuroglancer(group, root):
    """Return the voxel size of each level: a list of factors names all levels; without one, levels
    are listed, and state their own factors."""
    attributes = merged_attributes(group, root)
    for key in ("downsamplingFactors", "scales"):
        if attributes.get(key) == []:
            raise CannotOpenError(f"{key}: expected a non-empty list")
    factors = next(
        (
            attributes[key]
            for key in ("scales", "downsamplingFactors")
            if is_list_of_lists(attributes.get(key))
        ),
        None,
    )
    resolution = (
        attributes["pixelResolution"]["dimensions"]
        if "pixelResolution" in attributes
        else attributes.get("resolution")
    )
    ranks = {
        len(value)
        for value in (resolution, attributes.get("axes"), attributes.get("units"), *(factors or ()))
        if value is not None
    }
    if len(ranks) != 1:
        raise CannotOpenError(f"numbers of axes: {ranks}")
    found = {}
    for name in (
        [path.name for path in level_folders(group)]
        if factors is None
        else [f"s{n}" for n in range(len(factors))]
    ):
        own = merged_attributes(group / name, root)
        if "dimensions" not in own:
            raise CannotOpenError(f"{name} is listed and not there")
        stated = (
            own.get("downsamplingFactors", [1] * ranks.copy().pop() if name == "s0" else None)
            if factors is None
            else factors[int(name[1:])]
        )
        if stated is None or len(stated) != len(own["dimensions"]):
            raise CannotOpenError(f"{name} states no factors")
        found[name] = [a * b for a, b in zip(resolution or [1] * len(stated), stated, strict=True)]
    if not found:
        raise CannotOpenError("no levels")
    return found


def by_n5_viewer(group):
    """Return the downsampling factors of each level (n5-universe, ``N5SingleScaleMetadataParser``):
    its own, else those that its number suggests."""
    own = {path.name: attributes_of(path) for path in level_folders(group)}
    return {
        name: found.get("downsamplingFactors", [2 ** int(name[1:])] * len(found["dimensions"]))
        for name, found in own.items()
    }


def by_bigdataviewer(group):
    """Return the factors of each level of a time point (BigDataViewer N5 format): those of its
    setup, for all time points."""
    listed = attributes_of(group.parent)["downsamplingFactors"]
    assert all(isfinite(factor) and factor >= 1 for factors in listed for factor in factors)
    return {
        f"s{n}": factors
        for n, factors in enumerate(listed)
        if "dimensions" in attributes_of(group / f"s{n}")
    }


def by_paintera(group):
    """Return the voxel size of each level of a group with ``multiScale``, and the place of the
    first voxel of all (Paintera, ``N5Helpers``)."""
    attributes = attributes_of(group)
    if not attributes.get("multiScale"):
        raise CannotOpenError("no multiScale")
    resolution, names = (
        attributes.get("resolution", [1, 1, 1]),
        [path.name for path in level_folders(group)],
    )
    factors = {
        name: attributes_of(group / name).get("downsamplingFactors", [1, 1, 1]) for name in names
    }
    return {
        name: [a * b for a, b in zip(resolution, factors[name], strict=True)] for name in names
    }, attributes.get("offset", [0, 0, 0])
