"""OME-NGFF ("OME-Zarr") metadata of pyramids, versions 0.4 and 0.5: records to JSON and back. Opens nothing.

The specification does not say where in a voxel its coordinates lie; here they are those of its centre, and coordinate 0 is the centre of voxel 0 of mag 1, as
most readers take it. A voxel of mag m covers m voxels of mag 1, so that its centre lies (m - 1) / 2 of these further: each level has an explicit translation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.model.levels import lengths_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths

VERSIONS = ("0.5", "0.4")
_RED_GREEN_BLUE = ("FF0000", "00FF00", "0000FF")


@dataclass(frozen=True, slots=True)
class Level:
    """One array of a pyramid."""

    path: str
    """Where it is, below the group."""
    lengths: Lengths
    """Edge lengths of its voxels along x, y, z."""
    translation: Lengths
    """The centre of its voxel 0 along x, y, z."""


def level_of(path: str, mag: Mag, topleft: Vec3, voxel_size: Lengths | None) -> Level:
    """Place the array of a mag.

    Examples
    --------
    >>> from wkwdask.geometry.mag import Mag
    >>> level_of("2-2-1", Mag(2, 2, 1), (10, 0, 0), (4, 4, 40)).translation
    (82.0, 2.0, 0.0)
    """
    size = (1.0, 1.0, 1.0) if voxel_size is None else voxel_size
    lengths = lengths_in(mag, size)
    shift = [first * length + (factor - 1) / 2 * one for first, length, factor, one in zip(topleft, lengths, mag.factors, size, strict=True)]
    return Level(path, lengths, (shift[0], shift[1], shift[2]))


def letters_of(num_channels: int) -> str:
    """Give a letter for each axis of an array as it is stored here; one channel has no axis."""
    return "czyx" if num_channels > 1 else "zyx"


def _axis_entry(letter: str, unit: str | None) -> dict[str, str]:
    return {"name": "c", "type": "channel"} if letter == "c" else {"name": letter, "type": "space", **({"unit": unit} if unit else {})}


def _dataset_entry(level: Level, axes: str) -> dict[str, Any]:
    """Write what ``datasets`` says of a level."""
    steps = [
        {"type": "scale", "scale": _along(axes, level.lengths, 1.0)},
        {"type": "translation", "translation": _along(axes, level.translation, 0.0)},
    ]
    return {"path": level.path, "coordinateTransformations": steps}


def _along(axes: str, lengths: Lengths, of_channels: float) -> list[float]:
    of_axes = {"c": of_channels, **dict(zip("xyz", lengths, strict=True))}
    return [float(of_axes[letter]) for letter in axes]


def multiscale(name: str, levels: Iterable[Level], axes: str, unit: str | None = "nanometer") -> dict[str, Any]:
    """Write one image of ``multiscales``."""
    datasets = with_entries([], (_dataset_entry(level, axes) for level in levels))
    return {"name": name, "axes": [_axis_entry(letter, unit) for letter in axes], "datasets": datasets}


def with_entries(datasets: Sequence[dict[str, Any]], new: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put entries in place of those with the same path, and all in order, finest first."""
    by_path = {entry["path"]: entry for entry in (*datasets, *new)}
    return sorted(by_path.values(), key=lambda entry: (max(_scale(entry)[-3:]), _scale(entry)))


def _scale(entry: dict[str, Any]) -> list[float]:
    return next((list(map(float, step["scale"])) for step in entry.get("coordinateTransformations", []) if step.get("type") == "scale"), [0.0])


def image_attributes(image: dict[str, Any], *, version: str, is_label: bool = False, rgb: Sequence[float] | None = None) -> dict[str, Any]:
    """Write the attributes of an image's group."""
    more: dict[str, Any] = {"image-label": {} if version == "0.5" else {"version": version}} if is_label else {}
    if rgb is not None:
        window = {"min": rgb[0], "max": rgb[1], "start": rgb[0], "end": rgb[1]}
        more["omero"] = {"channels": [{"color": color, "window": window, "active": True} for color in _RED_GREEN_BLUE]}
    if version == "0.5":
        return {"ome": {"version": version, "multiscales": [image], **more}}
    return {"multiscales": [{"version": version, **image}], **more}


def label_attributes(names: Sequence[str], version: str) -> dict[str, Any]:
    """Write the attributes of a group of labels."""
    return {"ome": {"version": version, "labels": list(names)}} if version == "0.5" else {"labels": list(names)}
