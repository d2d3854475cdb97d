"""Metadata that the copy of an OME-NGFF image takes over from its source, and those that it does
not. Does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.formats.marks import VIEW_MARK
from wkwdask.formats.zarr.coordinate_systems import INTRINSIC, steps_of
from wkwdask.formats.zarr.documents import INNER_BOX
from wkwdask.formats.zarr.ngff import is_valid_entry, ome_of, stated_version

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from wkwdask.model.image import Level
    from wkwdask.model.json_text import JsonObject

_PLACEMENT = (
    "mag",
    "offset_vx",
    "box_vx",
    "voxel_size_nm",
    "_ARRAY_DIMENSIONS",
    INNER_BOX,
    VIEW_MARK,
)
"""Attributes of arrays that name axes, or state what the image states too."""
_WRITTEN = ("version", "name", "axes", "datasets")
"""Keys that every image has, so that a new one states them in its own way."""


@dataclass(frozen=True, slots=True)
class NgffGroup:
    """Group of an image that was read."""

    attributes: Mapping[str, Any]
    axes: tuple[str | None, ...]
    ignored: str = ""
    """Warning about transformations that are not applied, empty if there are none."""

    @property
    def version(self) -> str:
        return stated_version(self.attributes)

    @property
    def image(self) -> JsonObject:
        """First entry of ``multiscales``, the one that is read."""
        image: JsonObject = ome_of(self.attributes)["multiscales"][0]
        return image

    def entry_of(self, key: str, num_axes: int) -> JsonObject | None:
        """Return the dataset entry of an array with a number of axes, None if it states no place
        along these."""
        entry = next((entry for entry in self.image["datasets"] if entry["path"] == key), None)
        if entry is None or not is_valid_entry(entry) or not entry.get("coordinateTransformations"):
            return None
        numbers = [
            step[name]
            for step in steps_of(entry)
            for name in ("scale", "translation")
            if name in step
        ]
        return (
            entry
            if num_axes == len(self.axes)
            and all(isinstance(each, list) and len(each) == num_axes for each in numbers)
            else None
        )

    def copied(
        self, entry: JsonObject, keys: Collection[str], *, is_moved: bool, is_cropped: bool
    ) -> tuple[JsonObject, list[str]]:
        """Return the attributes of a copy whose first array is that of ``entry``, and what it does
        not take over; ``keys`` are its arrays."""
        image, lost = {**self.image, "datasets": [entry]}, []
        if "coordinateSystems" in image:
            lost = list(_lose_transformations(image, keys, is_moved=is_moved))
        ome = {**ome_of(self.attributes), "multiscales": [image]}
        lost += ["further multiscales"] if len(ome_of(self.attributes)["multiscales"]) > 1 else []
        view = ome.get("omero")
        if is_cropped and isinstance(view, dict) and "defaultZ" in (view.get("rdefs") or {}):
            ome["omero"] = {
                **view,
                "rdefs": {
                    name: value for name, value in view["rdefs"].items() if name != "defaultZ"
                },
            }
            lost.append("omero.rdefs.defaultZ, which is the number of a section")
        attributes = {**self.attributes, "ome": ome} if "ome" in self.attributes else ome
        return {name: value for name, value in attributes.items() if name != VIEW_MARK}, lost

    def lost_in(self, attributes: Mapping[str, Any], levels: Sequence[Level]) -> list[str]:
        """Return the names of metadata that a new image of the same voxels does not have;
        ``levels`` are those of this image."""
        before, after, image = ome_of(self.attributes), ome_of(attributes), self.image
        names = (
            [name for name in self.attributes if name not in ("ome", VIEW_MARK)]
            if "ome" in self.attributes
            else []
        )
        names += [
            name
            for name in before
            if name not in ("multiscales", *_WRITTEN) and before[name] != after.get(name)
        ]
        is_placement = () if "coordinateSystems" in image else ("coordinateTransformations",)
        others = [
            name for name in image if name not in (*_WRITTEN, "coordinateSystems", *is_placement)
        ]
        if (
            len(image.get("coordinateSystems", ())) > 1
            and "coordinateTransformations" not in others
        ):
            others.append("coordinateSystems")
        of_levels = {
            f"{level.key}.{name}": None
            for level in levels
            for name in level.details or ()
            if name not in _PLACEMENT
        }
        return [*names, *(f"multiscales.{name}" for name in others), *of_levels]


def moved_entry(entry: JsonObject, path: str, shift: Sequence[int]) -> JsonObject:
    """Return the dataset entry of an array at another path, whose element 0 lies where element
    ``shift`` of the array of ``entry`` does."""
    outer = entry["coordinateTransformations"][0]
    renamed = _with_input(outer, path) if "input" in outer else outer
    if not any(shift):
        return {
            **entry,
            "path": path,
            "coordinateTransformations": [renamed, *entry["coordinateTransformations"][1:]],
        }
    first, *others = (
        {key: value for key, value in step.items() if key not in ("input", "output")}
        for step in steps_of(entry)
    )
    if "scale" in first and [step["type"] for step in others] in ([], ["translation"]):
        before = others[0]["translation"] if others else [0.0] * len(shift)
        moved = [
            low + number * factor
            for low, number, factor in zip(before, shift, first["scale"], strict=True)
        ]
        steps = [first, {"type": "translation", "translation": moved}]
    else:
        steps = [{"type": "translation", "translation": list(map(float, shift))}, first, *others]
    if "input" not in outer:
        return {**entry, "path": path, "coordinateTransformations": steps}
    step = {key: value for key, value in renamed.items() if key not in ("scale", "translation")}
    return {
        **entry,
        "path": path,
        "coordinateTransformations": [{**step, "type": "sequence", "transformations": steps}],
    }


def _with_input(step: JsonObject, path: str) -> JsonObject:
    return {
        **step,
        "input": path if isinstance(step["input"], str) else {**step["input"], "path": path},
    }


def _lose_transformations(
    image: JsonObject, keys: Collection[str], *, is_moved: bool
) -> Iterator[str]:
    """Remove the transformations to other systems that do not hold in a copy, and these systems;
    yield a description of each."""
    kept, lost = [], []
    for step in image.get("coordinateTransformations") or ():
        missing = next((path for path in _paths_in(step) if path not in keys), None)
        if missing is None and not is_moved:
            kept.append(step)
            continue
        lost.append(step)
        why = "because voxels move" if is_moved else f"which refers to {missing!r}"
        yield (
            f"the {step['type']} from {_system(step, 'input')!r} to {_system(step, 'output')!r}, "
            f"{why}"
        )
    if not lost:
        return
    named, unnamed = (
        {_system(step, end) for step in steps for end in ("input", "output")}
        for steps in (kept, lost)
    )
    outer = image["datasets"][0]["coordinateTransformations"][0]
    unnamed -= named | {_system(outer, "output")}
    image["coordinateSystems"] = [
        system for system in image["coordinateSystems"] if system["name"] not in unnamed
    ]
    image["coordinateTransformations"] = kept
    if not kept:
        del image["coordinateTransformations"]


def _system(step: Mapping[str, Any], end: str) -> str:
    value = step[end]
    return str(
        value if isinstance(value, str) else value.get("name") or value.get("path") or INTRINSIC
    )


def _paths_in(value: Any) -> Iterator[str]:
    """Yield the paths to arrays and images that a transformation contains."""
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        if key == "path" and isinstance(inner, str):
            yield inner
        yield from _paths_in(inner)
