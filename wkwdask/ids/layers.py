"""The layers that an analysis reads, as people name them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wkwdask.errors import MissingError
from wkwdask.formats.opening import find
from wkwdask.formats.webknossos.dataset import listed_layer
from wkwdask.model.image import Found, check_inside

if TYPE_CHECKING:
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image
    from wkwdask.model.volume import StoredVolume


@dataclass(frozen=True)
class Opened:
    """One mag of a layer, opened."""

    layer: Image
    """The layer."""
    volume: StoredVolume
    """Its mag."""

    @property
    def voxel_size_nm(self) -> tuple[float, float, float] | None:
        """Edge lengths of a mag-1 voxel [nm], None where nobody says."""
        return self.layer.voxel_size_of(self.volume)

    def part(self, box: BoundingBox | None) -> BoundingBox:
        """Count a part of the layer in voxels of the mag."""
        if box is None:
            return self.volume.box
        part = box.in_mag(self.volume.box.mag)
        check_inside(self.volume.name, self.volume.box, part)
        return part


def open_layer(url: str | os.PathLike[str], layer: str | None, mag: Mag | str | None, category: str | None = None) -> Opened:
    """Open the mag that a user names."""
    found = find(url)
    if layer is None and category is not None:
        fitting = tuple(one for one in found.layers if one.category == category)
        found = replace(found, layers=fitting or found.layers)
    return Opened(*found.open(layer, mag))


def open_beside(first: Opened, color: str | os.PathLike[str], mag: Mag | str | None) -> Opened:
    """Open a layer that is read together with another one."""
    dataset = first.layer.container
    named = None if dataset is None or dataset.datasource is None else dataset.datasource.layer(os.fspath(color))
    found = find(color) if named is None else Found(dataset.dataset_folder, (listed_layer(dataset.dataset_folder, dataset.datasource, named),))
    layer = found.choose(None)
    if mag is not None or found.mag is not None:
        return Opened(*found.open(None, mag))
    for candidate in layer.mags:
        if not all(a <= b for a, b in zip(first.volume.box.mag.factors, candidate.factors, strict=True)):
            continue
        try:
            volume = layer.volume(candidate)
        except MissingError:
            continue
        if volume.has_shards():
            return Opened(layer, volume)
    raise MissingError(f"{layer.folder}: no mag that is as coarse as mag {first.volume.box.mag} of layer {first.layer.name}; choose a finer mag of that layer")
