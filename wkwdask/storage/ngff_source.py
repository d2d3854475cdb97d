"""An OME-NGFF image as a source: which of its arrays is which mag, and where each lies."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, MissingError, UnsupportedError
from wkwdask.formats.datasource import length_nm
from wkwdask.formats.extras import need
from wkwdask.geometry.mag import Mag
from wkwdask.storage.dataset import choose_layer, locate
from wkwdask.storage.local import is_remote, local_path
from wkwdask.storage.ngff_edit import LABELS, image_of, read_attributes
from wkwdask.storage.zarr_folder import array_record

if TYPE_CHECKING:
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3

    Lengths = tuple[float, float, float]

_SAME = 0.02  # of a step between two arrays: other software rounds sizes of odd lengths
_PREFIX = "zarr://"
_ZARR_FORMATS = ("zarr3", "zarr")


@dataclass(frozen=True, slots=True)
class ImageLevel:
    """One array of an image."""

    path: str
    """Its folder."""
    mag: Mag
    """Its mag."""
    corner: Vec3
    """Absolute voxel of the mag that is element 0; may be negative."""
    axes: str
    """Its axes, ``-`` for time of length 1."""


@dataclass(frozen=True, slots=True)
class SourceImage:
    """What a group says about its arrays."""

    name: str
    """Its folder."""
    levels: tuple[ImageLevel, ...]
    """Its arrays, finest first."""
    odd: tuple[str, ...]
    """Arrays that are no mag, and why."""
    voxel_size_nm: Lengths | None
    """Edge lengths of a voxel of mag 1 [nm], None where the group names no units."""
    is_label: bool
    """Whether voxels are ids."""
    box: BoundingBox | None = None
    """What counts of them [voxels of mag 1]; None for all."""
    layer: str | None = None
    """Name of the layer, where it is one of a dataset."""

    def find(self, mag: Mag) -> ImageLevel | None:
        """Find a mag, None where there is none."""
        return next((level for level in self.levels if level.mag == mag), None)


def find_image(source: object) -> SourceImage | None:
    """Read what a local group says about its arrays.

    Parameters
    ----------
    source : object
        A folder, with or without ``zarr://`` before it, or anything else.

    Returns
    -------
    SourceImage or None
        None where it is no image, or does not say how long its voxels are along which axes.

    Raises
    ------
    CorruptError
        Its metadata is broken.
    ModuleNotFoundError
        zarr is not installed.
    UnsupportedError
        It has several points in time.
    """
    if not isinstance(source, (str, os.PathLike)):
        return None
    text = os.fspath(source).removeprefix(_PREFIX)
    if "://" in text and not text.startswith("file://"):
        return None
    folder = local_path(text)
    there = read_attributes(folder) if os.path.isdir(folder) and array_record(folder) is None else None
    found = None if there is None else image_of(there[1], folder)
    if there is None or found is None:
        return None
    return _parsed(folder, found[1], is_label=_is_label(there[1], folder))


def find_zarr_layer(source: object, layer: str | None) -> SourceImage | None:
    """Read what a WEBKNOSSOS dataset says of a layer whose mags are Zarr arrays, as the webknossos library writes them.

    Parameters
    ----------
    source : object
        The folder of a dataset or layer, or anything else.
    layer : str, optional
        The layer; may be omitted where there is one.

    Returns
    -------
    SourceImage or None
        None where it is something else.

    Raises
    ------
    MissingError
        There is no such layer.
    UnsupportedError
        A mag is remote.
    ValueError
        Several layers could be meant.
    """
    if not isinstance(source, (str, os.PathLike)) or is_remote(os.fspath(source)):
        return None
    try:
        located = locate(source)
    except (MissingError, UnsupportedError, NotADirectoryError):
        return None
    if not any(one.record is not None and one.record.data_format in _ZARR_FORMATS for one in located.layers):
        return None
    chosen = choose_layer(located, layer)
    record, size = chosen.record, chosen.voxel_size_nm
    if record is None or record.data_format not in _ZARR_FORMATS or size is None:
        return None
    levels = []
    for mag, folder in chosen.mags.items():
        if is_remote(folder):
            raise UnsupportedError(f"{located.path}: mag {mag} of layer {chosen.name} is at {folder}: only local ones are read")
        array = need("zarr", folder, "zarr").open_array(folder, mode="r")
        names = getattr(array.metadata, "dimension_names", None)
        axes = "".join(names).lower() if names and all(names) else "cxyz"[-len(array.shape) :]
        levels.append(ImageLevel(folder, mag, (0, 0, 0), axes))
    return SourceImage(chosen.folder, tuple(levels), (), size, record.category == "segmentation", record.bounding_box, chosen.name)


def _is_label(attributes: dict[str, Any], folder: str) -> bool:
    inner = attributes.get("ome", attributes)
    return "image-label" in inner or os.path.basename(os.path.dirname(folder)) == LABELS


def _parsed(folder: str, image: dict[str, Any], *, is_label: bool) -> SourceImage | None:
    axes = [axis if isinstance(axis, dict) else {"name": axis} for axis in image.get("axes", [])]
    letters = "".join(str(axis.get("name", "")).lower()[:1] for axis in axes)
    units = [axis.get("unit") for axis in axes]
    if not set("xyz") <= set(letters) or not set(letters) <= set("tcxyz") or len(set(letters)) != len(letters):
        return None
    spatial = [letters.index(letter) for letter in "xyz"]
    named = all(units[n] is not None for n in spatial)
    placed = [_placed(entry, image, spatial, [str(units[n]) if named else "nanometer" for n in spatial], folder) for entry in image["datasets"]]
    if not placed or any(one is None for one in placed):
        return None
    known = sorted((one for one in placed if one is not None), key=lambda one: (max(one[1]), one[1]))
    group = need("zarr", folder, "zarr").open_group(folder, mode="r")
    base = _base(known[0][1], dict(_array(group, known[0][0], folder).attrs))
    levels, odd = [], []
    for path, lengths, centre in known:
        mag = _mag(lengths, base)
        if mag is None:
            steps = ", ".join(f"{length / one:g}" for length, one in zip(lengths, base, strict=True))
            odd.append(f"{path}: its voxels are {steps} times as long as those of the finest array, which is no mag")
            continue
        corner = [round((at - (factor - 1) / 2 * one) / length) for at, factor, one, length in zip(centre, mag.factors, base, lengths, strict=True)]
        shape = _array(group, path, folder).shape
        its_axes = "".join("-" if letter == "t" and length == 1 else letter for letter, length in zip(letters, shape, strict=False))
        if "t" in its_axes:
            raise UnsupportedError(f"{folder}/{path}: has {shape[letters.index('t')]} points in time; name one array and its axes to take over one of them")
        levels.append(ImageLevel(f"{folder}/{path}", mag, (corner[0], corner[1], corner[2]), its_axes))
    return SourceImage(folder, tuple(levels), tuple(odd), base if named else None, is_label)


def _array(group: Any, path: str, folder: str) -> Any:
    try:
        return group[path]
    except KeyError:
        raise CorruptError(f"{folder}: datasets: lists {path!r}, but there is no such array") from None


def _placed(
    entry: dict[str, Any], image: dict[str, Any], spatial: list[int], units: list[str], folder: str
) -> tuple[str, Lengths, Lengths] | None:  # fmt: skip
    """Give the path of an array, the edge lengths of its voxels and the centre of its voxel 0 along x, y, z [nm]; None where lengths are not told."""
    scale, shift, is_told = [1.0, 1.0, 1.0], [0.0, 0.0, 0.0], False
    try:
        steps = [*entry.get("coordinateTransformations", []), *image.get("coordinateTransformations", [])]  # the second ones are for all arrays
        for step in steps:
            if step["type"] == "scale":
                values = [float(step["scale"][n]) for n in spatial]
                scale, shift, is_told = [a * b for a, b in zip(scale, values, strict=True)], [a * b for a, b in zip(shift, values, strict=True)], True
            elif step["type"] == "translation":
                shift = [a + float(step["translation"][n]) for a, n in zip(shift, spatial, strict=True)]
        path = str(entry["path"])
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise CorruptError(f"{folder}: datasets: {entry!r:.200} cannot be read: {error or type(error).__name__}") from None
    lengths = [length_nm(length, unit) for length, unit in zip(scale, units, strict=True)]
    centre = [length_nm(at, unit) for at, unit in zip(shift, units, strict=True)]
    if not is_told or not all(math.isfinite(length) and length > 0 for length in lengths) or not all(map(math.isfinite, centre)):
        return None
    return path, (lengths[0], lengths[1], lengths[2]), (centre[0], centre[1], centre[2])


def _base(lengths: Lengths, attributes: dict[str, Any]) -> Lengths:
    """Give the edge lengths of a voxel of mag 1: those of the finest array, unless it says that it is another mag, as arrays of ours do."""
    try:
        factors = Mag.parse(attributes["mag"]).factors
    except (KeyError, TypeError, ValueError):
        return lengths
    x, y, z = (length / factor for length, factor in zip(lengths, factors, strict=True))
    return x, y, z


def _mag(lengths: Lengths, base: Lengths) -> Mag | None:
    """Give the mag of an array, None where its voxels are no whole multiple of those of mag 1."""
    steps = [length / one for length, one in zip(lengths, base, strict=True)]
    x, y, z = (max(1, round(step)) for step in steps)
    if any(abs(step / whole - 1) > _SAME for step, whole in zip(steps, (x, y, z), strict=True)):
        return None
    try:
        return Mag(x, y, z)
    except ValueError:
        return None
