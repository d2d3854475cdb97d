"""Where OME-NGFF images are written: their group, what it holds already, and the folders of arrays."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import ExistsError, FormatError, UnsupportedError
from wkwdask.formats.precomputed.layer import holds_wkw
from wkwdask.formats.zarr.folder import array_record
from wkwdask.formats.zarr.ngff_edit import LABELS, image_of, read_attributes
from wkwdask.geometry.mag import Mag
from wkwdask.store import files
from wkwdask.store.paths import basename, dirname, is_remote, local_path

if TYPE_CHECKING:
    from collections.abc import Collection

    from wkwdask.model.levels import Lengths

PREFIX = "zarr://"
_SUFFIX = ".ome.zarr"


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """A local group in which arrays are or will be."""

    folder: str
    """The group."""
    image: dict[str, Any] | None
    """What its ``multiscales`` says, None where there is none yet."""
    version: str | None
    """Version of OME-NGFF that it has."""

    def folder_of(self, mag: Mag) -> str:
        """Say where the array of a mag is or will be."""
        return f"{self.folder}/{mag.name}"

    def check_alone(self, mag: Mag, lengths: Lengths) -> None:
        """Make sure that no array of another name has the voxels of a mag."""
        for entry in () if self.image is None else self.image["datasets"]:
            steps = [step["scale"] for step in entry.get("coordinateTransformations", []) if step.get("type") == "scale"]
            same = bool(steps) and all(abs(a / b - 1) < 1e-3 for a, b in zip(steps[0][-3:], reversed(lengths), strict=True) if b)
            if same and entry.get("path") != mag.name:
                raise ExistsError(f"{self.folder}: has voxels of that size already, in the array {entry.get('path')!r}, which something else wrote")

    @property
    def voxel_size(self) -> Lengths | None:
        """Edge lengths of a voxel of mag 1, as an array says whose name is a mag."""
        return next((size for size in self._sizes().values() if size is not None), None)

    def check_voxel_size(self, size: Lengths, replaced: Collection[Mag]) -> None:
        """Make sure that the arrays that stay say the same of a voxel of mag 1; an image that something else wrote is left to :meth:`check_alone`."""
        names = {mag.name for mag in replaced}
        for path, found in self._sizes().items():
            if found is None:
                return
            if path not in names and any(abs(a / b - 1) > 1e-3 for a, b in zip(size, found, strict=True)):
                told = " x ".join(f"{n:g}" for n in found)
                raise FormatError(f"{self.folder}: a voxel of mag 1 has {told} nm there, as its array {path!r} says, got {' x '.join(f'{n:g}' for n in size)}")

    def _sizes(self) -> dict[str, Lengths | None]:
        """Edge lengths of a voxel of mag 1 by each array, None where its name is no mag."""
        sizes: dict[str, Lengths | None] = {}
        for entry in () if self.image is None else self.image["datasets"]:
            try:
                a, b, c = Mag.parse(entry["path"]).factors
                z, y, x = (float(n) for n in next(s["scale"] for s in entry["coordinateTransformations"] if s["type"] == "scale")[-3:])
            except (KeyError, TypeError, ValueError, StopIteration):
                sizes[str(entry.get("path"))] = None
                continue
            sizes[entry["path"]] = (x / a, y / b, z / c) if min(x, y, z) > 0 else None
        return sizes


def is_zarr_image(target: object) -> bool:
    """Tell whether a target is named as an OME-NGFF image: ``zarr://`` before it, or ``.ome.zarr`` in it.

    Examples
    --------
    >>> is_zarr_image("em.ome.zarr"), is_zarr_image("em.ome.zarr/labels/neurons"), is_zarr_image("zarr://em"), is_zarr_image("em.zarr")
    (True, True, True, False)
    """
    if not isinstance(target, (str, os.PathLike)):
        return False
    text = os.fspath(target)
    return text.startswith(PREFIX) or any(part.lower().endswith(_SUFFIX) for part in text.split("/"))


def image_place(url: str | os.PathLike[str]) -> ImagePlace:
    """Find out what is in the folder of an image that is written."""
    text = os.fspath(url).removeprefix(PREFIX)
    if is_remote(text):
        raise UnsupportedError(f"{text}: images are written to local folders only; write to one and copy it there, such as with aws s3 or gsutil")
    folder = files.realpath(local_path(text))
    if holds_wkw(folder):
        raise ExistsError(f"{folder}: holds WKW data; write an image to a folder of its own (write_zarr_view shows WKW as Zarr where it is)")
    if array_record(folder) is not None:
        raise ExistsError(f"{folder}: is a Zarr array; an image is a group of arrays")
    if files.lexists(folder) and not files.isdir(folder):
        raise ExistsError(f"{folder}: is a file, expected nothing or a folder")
    there = read_attributes(folder)
    found = None if there is None else image_of(there[1], folder)
    if basename(folder) == LABELS and _is_image(dirname(folder)):
        raise ExistsError(f"{folder}: is where the labels of an image are listed; write to a folder in it, such as {folder}/neurons")
    other = _something_else(folder) if there is None and files.isdir(folder) else None
    if other is not None:
        raise ExistsError(f"{folder}: holds something else than an image ({other})")
    return ImagePlace(folder, None if found is None else found[1], None if found is None else found[0])


def _is_image(folder: str) -> bool:
    there = read_attributes(folder)
    return there is not None and image_of(there[1], folder) is not None


def _something_else(folder: str) -> str | None:
    """Name what is neither a job's nor an array that a job let appear and was killed before it could list it."""
    return min((name for name in files.listdir(folder) if not name.startswith(".") and array_record(f"{folder}/{name}") is None), default=None)


def labels_note(url: str | os.PathLike[str]) -> str:
    """Say that labels have another number of arrays than their image, which breaks the specification; an empty text where they have not."""
    place = image_place(url)
    above = dirname(place.folder)
    if basename(above) != LABELS or place.image is None:
        return ""
    there = read_attributes(dirname(above))
    image = None if there is None else image_of(there[1], dirname(above))
    if image is None or len(image[1]["datasets"]) == len(place.image["datasets"]):
        return ""
    return f"{place.folder}: has {len(place.image['datasets'])} arrays, its image {len(image[1]['datasets'])}; OME-NGFF wants as many: mag= takes some"
