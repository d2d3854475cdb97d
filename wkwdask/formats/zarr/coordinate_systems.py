"""Coordinate systems and transformations of OME-NGFF 0.6 (RFC-5). Does no I/O.

All datasets of an image are transformed to one system, its intrinsic system, in which the image
opens. Transformations to other systems are not applied::

    "s0" -- scale ---------------------+
    "s1" -- sequence(scale, translation) --> "physical" -- affine --> "atlas"
                                             intrinsic

Source: NGFF specification 0.6, cited by section. In drafts before 0.6.dev4, ``input`` and
``output`` are texts instead of objects.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from wkwdask.errors import CorruptError
from wkwdask.model.levels import is_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wkwdask.model.json_text import JsonObject

INTRINSIC = "physical"
"""Name of the intrinsic system of new images."""
_MAX_DEPTH = 8  # of sequences in sequences
_MAX_OFFSET = 1 << 53  # voxels; floats hold larger integers inexactly


@dataclass(frozen=True, slots=True)
class Placement:
    """Scale and translation of an array in the intrinsic system, along all axes."""

    scale: tuple[float, ...]
    translation: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """Parsed entry of ``multiscales`` with coordinate systems."""

    system: str
    """Name of the intrinsic system."""
    axes: tuple[JsonObject, ...]
    """Axes of the intrinsic system."""
    placements: tuple[tuple[str, Placement | None], ...]
    """Path and placement of each dataset; None if it is no scale and translation."""
    ignored: tuple[str, ...]
    """Transformations that are not applied, for a warning."""


def dataset_entry(path: str, scale: Sequence[float], translation: Sequence[float]) -> JsonObject:
    """Return the entry of a new dataset ("multiscales" metadata, ``datasets``)."""
    steps = [
        {"type": "scale", "scale": list(scale)},
        {"type": "translation", "translation": list(translation)},
    ]
    step = {
        "type": "sequence",
        "input": {"path": path},
        "output": {"name": INTRINSIC},
        "transformations": steps,
    }
    return {"path": path, "coordinateTransformations": [step]}


def steps_of(entry: Mapping[str, Any]) -> Iterator[JsonObject]:
    """Yield the transformations of a dataset entry of any version, those of a sequence one by
    one."""
    for step in entry.get("coordinateTransformations", ()):
        yield from step.get("transformations", ()) if step.get("type") == "sequence" else (step,)


def in_style_of(entry: JsonObject, image: Mapping[str, Any]) -> JsonObject:
    """Return a new dataset entry with the intrinsic system of an existing image, referred to in the
    way of its draft of the specification."""
    (step,) = entry["coordinateTransformations"]
    others = [
        other for dataset in image["datasets"] for other in dataset["coordinateTransformations"][:1]
    ]
    first = (
        others[0]
        if others
        else {"input": {}, "output": {"name": image["coordinateSystems"][0]["name"]}}
    )
    new_input = entry["path"] if isinstance(first["input"], str) else {"path": entry["path"]}
    return {
        **entry,
        "coordinateTransformations": [{**step, "input": new_input, "output": first["output"]}],
    }


def intrinsic_axes(image: Mapping[str, Any], where: str) -> list[JsonObject]:
    """Return the names, types and units of the axes of the intrinsic system."""
    known = ("name", "type", "unit")
    return [
        {key: axis[key] for key in known if key in axis} for axis in parse_placed(image, where).axes
    ]


def check_unreferenced(image: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    """Raise CorruptError if a transformation between systems refers to a dataset that would be
    removed."""
    for number, step in enumerate(image.get("coordinateTransformations") or ()):
        for end in ("input", "output"):
            value = step.get(end)
            path = value.get("path") if isinstance(value, dict) else value
            if path in keys:
                at = f"{where}.coordinateTransformations[{number}].{end}"
                raise CorruptError(
                    f"{at}: refers to the array {path!r}, which would be removed; change this "
                    "transformation first"
                )


def parse_placed(image: Mapping[str, Any], where: str) -> PlacedImage:
    """Parse an entry of ``multiscales``; raises CorruptError with the path of what is wrong in the
    document. ``where`` is the path of the entry."""
    systems = _parse_systems(image.get("coordinateSystems"), f"{where}.coordinateSystems")
    datasets = image.get("datasets")
    if not isinstance(datasets, list) or not datasets:
        _fail(f"{where}.datasets", "a list of at least one object", datasets)
    system: str | None = None
    placements, ignored = [], []
    for number, entry in enumerate(datasets):
        at = f"{where}.datasets[{number}]"
        path = entry.get("path") if isinstance(entry, dict) else None
        if not isinstance(path, str):
            _fail(at, "an object with the path of an array", entry)
        steps = entry.get("coordinateTransformations")
        if not isinstance(steps, list) or not steps:
            _fail(f"{at}.coordinateTransformations", "a list of one transformation", steps)
        step, at = steps[0], f"{at}.coordinateTransformations[0]"
        _check_input(step, path, at)
        output = _reference(step, "output", at)[1]
        if output not in systems or (system is not None and output != system):
            names = (
                ", ".join(map(repr, systems))
                if system is None
                else f"{system!r}, as for the first dataset"
            )
            _fail(f"{at}.output", f"the name of a coordinate system: {names}", step.get("output"))
        system = output
        placement = _evaluate(step, len(systems[output]), at)
        if placement is None:
            ignored.append(f"{step['type']} of the array {path!r}")
        elif any(
            abs(shift) > abs(factor) * _MAX_OFFSET
            for factor, shift in zip(placement.scale, placement.translation, strict=True)
        ):
            _fail(at, "a translation by at most 2^53 voxels", placement.translation)
        placements.append((path, placement))
    assert system is not None
    ignored += _parse_others(
        image.get("coordinateTransformations"), systems, f"{where}.coordinateTransformations"
    )
    return PlacedImage(system, tuple(systems[system]), tuple(placements), tuple(ignored))


def describe_scene(scene: Any, where: str) -> list[str]:
    """Describe the transformations of a scene ("scene" metadata) in a line each; raises
    CorruptError for a malformed scene."""
    steps = scene.get("coordinateTransformations") if isinstance(scene, dict) else None
    if not isinstance(steps, list) or not steps:
        _fail(f"{where}.coordinateTransformations", "a list of transformations", steps)
    lines = []
    for number, step in enumerate(steps):
        at = f"{where}.coordinateTransformations[{number}]"
        ends = []
        for end in ("input", "output"):
            path, name = _reference(step, end, at)
            ends.append("/".join(filter(None, [path, name])))
        lines.append(f"{ends[0]} to {ends[1]}: {_kind_of(step, at)}")
    return lines


def scene_paths(scene: Any) -> tuple[str, ...]:
    """Return the paths of the images in a scene."""
    steps = scene.get("coordinateTransformations") if isinstance(scene, dict) else None
    ends = [
        step.get(end)
        for step in (steps if isinstance(steps, list) else ())
        if isinstance(step, dict)
        for end in ("input", "output")
    ]
    paths = [end.get("path") for end in ends if isinstance(end, dict)]
    return tuple(dict.fromkeys(path for path in paths if isinstance(path, str) and path))


def _parse_systems(value: Any, where: str) -> dict[str, list[JsonObject]]:
    """Return the axes of the systems by their names ("coordinateSystems" metadata)."""
    if not isinstance(value, list) or not value:
        _fail(where, "a list of coordinate systems", value)
    systems: dict[str, list[JsonObject]] = {}
    for number, system in enumerate(value):
        at = f"{where}[{number}]"
        name, axes = (
            (system.get("name"), system.get("axes")) if isinstance(system, dict) else (None, None)
        )
        if not isinstance(axes, list):
            _fail(f"{at}.axes", "a list of objects", axes)
        if not isinstance(name, str) or not name or name in systems:
            _fail(f"{at}.name", "a name that no other system has", name)
        names = [axis.get("name") if isinstance(axis, dict) else None for axis in axes]
        if (
            not names
            or not all(isinstance(one, str) and one for one in names)
            or len(set(names)) != len(names)
        ):
            _fail(f"{at}.axes", "a list of objects with different names", axes)
        systems[name] = axes
    return systems


def _parse_others(value: Any, systems: Mapping[str, Sequence[Any]], where: str) -> list[str]:
    """Check the transformations between the intrinsic and other systems; return a description of
    those that are more than scale and translation."""
    if value is None:
        return []
    if not isinstance(value, list):
        _fail(where, "a list of transformations", value)
    ignored = []
    for number, step in enumerate(value):
        at = f"{where}[{number}]"
        ends = {end: _reference(step, end, at) for end in ("input", "output")}
        for end, (path, name) in ends.items():
            if not path and name not in systems:
                _fail(
                    f"{at}.{end}",
                    f"the name of a coordinate system: {', '.join(map(repr, systems))}",
                    step[end],
                )
        if ends["input"] == ends["output"]:
            _fail(
                f"{at}.output", "another coordinate system than that of the input", step["output"]
            )
        path, name = ends["input"]
        if _evaluate(step, None if path or name is None else len(systems[name]), at) is None:
            ignored.append(f"{step['type']} from {name!r} to {ends['output'][1]!r}")
    return ignored


def _check_input(step: Any, path: str, at: str) -> None:
    """Raise CorruptError unless the input of a transformation is the array of its dataset."""
    stated, name = _reference(step, "input", at)
    if (stated or name or "").removeprefix("./") != path.removeprefix("./"):
        _fail(f"{at}.input", f"the path of the dataset, {path!r}", step["input"])


def _reference(step: Any, end: str, at: str) -> tuple[str | None, str | None]:
    """Return the path and the name of the input or output of a transformation; a text, in drafts,
    counts as a name."""
    if not isinstance(step, dict):
        _fail(at, "an object", step)
    value = step.get(end)
    if isinstance(value, str) and value:
        return None, value
    path, name = (value.get("path"), value.get("name")) if isinstance(value, dict) else (None, None)
    if not all(isinstance(part, (str, type(None))) for part in (path, name)) or not (path or name):
        _fail(f"{at}.{end}", "an object with a name or a path", value)
    return path, name


def _kind_of(step: Any, at: str) -> str:
    kind = step.get("type") if isinstance(step, dict) else None
    if not isinstance(kind, str):
        _fail(f"{at}.type", "the type of a transformation", kind)
    return kind


def _evaluate(step: Any, num_axes: int | None, at: str, depth: int = 0) -> Placement | None:
    """Return a transformation as scale and translation, None if it is more than that. ``num_axes``
    is None where it is not known."""
    kind = _kind_of(step, at)
    if kind == "identity":
        return Placement((1.0,) * (num_axes or 0), (0.0,) * (num_axes or 0))
    if kind in ("scale", "translation") and not (kind not in step and "path" in step):
        # drafts could refer to an array of numbers
        numbers = _numbers(step.get(kind), num_axes, f"{at}.{kind}")
        if kind == "translation":
            return Placement((1.0,) * len(numbers), numbers)
        if not all(numbers):
            _fail(f"{at}.scale", "numbers other than zero", step["scale"])
        return Placement(numbers, (0.0,) * len(numbers)) if min(numbers) > 0 else None
    if kind == "mapAxis":
        return _evaluate_axes(step.get("mapAxis"), num_axes, f"{at}.mapAxis")
    if kind != "sequence":
        return None
    steps = step.get("transformations")
    if not isinstance(steps, list) or not steps or depth == _MAX_DEPTH:
        _fail(
            f"{at}.transformations",
            f"a list of transformations, at most {_MAX_DEPTH} in each other",
            steps,
        )
    parts = [
        _evaluate(part, num_axes, f"{at}.transformations[{number}]", depth + 1)
        for number, part in enumerate(steps)
    ]
    whole = parts[0]
    for number, part in enumerate(parts[1:], 1):
        if whole is None or part is None:
            return None
        if len(whole.scale) != len(part.scale) and whole.scale and part.scale:
            _fail(f"{at}.transformations[{number}]", f"{len(whole.scale)} numbers", part.scale)
        whole = _compose(whole, part)
    if whole is not None and not all(map(is_number, (*whole.scale, *whole.translation))):
        _fail(f"{at}.transformations", "numbers whose products are finite", steps)
    return whole


def _compose(first: Placement, second: Placement) -> Placement:
    """Return the transformation that applies one after another."""
    if not first.scale or not second.scale:  # an identity of unknown length
        return second if second.scale else first
    scale = tuple(a * b for a, b in zip(first.scale, second.scale, strict=True))
    return Placement(
        scale,
        tuple(
            a * b + c
            for a, b, c in zip(first.translation, second.scale, second.translation, strict=True)
        ),
    )


def _evaluate_axes(value: Any, num_axes: int | None, at: str) -> Placement | None:
    """Return the identity for axes in their own order, None for another order ("mapAxis")."""
    if isinstance(value, dict):  # names of axes by names, in drafts
        return (
            Placement((1.0,) * len(value), (0.0,) * len(value))
            if all(key == name for key, name in value.items())
            else None
        )
    length = num_axes if num_axes is not None or not isinstance(value, list) else len(value)
    is_order = (
        isinstance(value, list)
        and all(isinstance(one, int) for one in value)
        and sorted(value) == list(range(length or 0))
    )
    if not is_order:
        _fail(
            at,
            "each axis number once"
            if num_axes is None
            else f"the axis numbers 0 to {num_axes - 1}, each once",
            value,
        )
    is_identity = value == sorted(value)
    return Placement((1.0,) * len(value), (0.0,) * len(value)) if is_identity else None


def _numbers(value: Any, count: int | None, at: str) -> tuple[float, ...]:
    if (
        not isinstance(value, list)
        or not value
        or not all(map(is_number, value))
        or count not in (None, len(value))
    ):
        _fail(at, "numbers" if count is None else f"{count} numbers, one for each axis", value)
    return tuple(map(float, value))


def _fail(at: str, expected: str, found: Any) -> NoReturn:
    raise CorruptError(f"{at}: expected {expected}, found {json.dumps(found)[:80]}")
