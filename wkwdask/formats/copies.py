"""Copies of a path or URL: which levels are copied or stored again, and where to."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from wkwdask.model.writing.target_image import Destination, LevelCopy, LevelSpec
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image, ResolvedUrl


def check_all_open(image: Image) -> None:
    """Raise the error of a level that cannot be opened: a copy of all levels would lack it."""
    for level in image.levels:
        if level.problem:
            level.open()


class Copies:
    """Copies of images, one at a time."""

    def levels(
        self,
        found: ResolvedUrl,
        target: str | None,
        layers: Sequence[str] | None,
        levels: Sequence[Mag | str] | None,
    ) -> list[LevelCopy]:
        """Return the levels to copy or to store again, with their destinations in an image of the
        same format at a path or URL; by default all selected levels."""
        image = found.choose(None if layers is None else layers[0])
        selected = image.selected if levels is None else tuple(map(image.find, levels))
        if levels is None:
            check_all_open(image)
        if target is None or store_at(target).real() == store_at(image.folder).real():
            return [LevelCopy(image, level) for level in selected]
        arrays = [level.open() for level in selected if level.mag is not None]
        specs = tuple(
            replace(LevelSpec.like(array, is_copy=True), source=array) for array in arrays
        )
        destination = Destination(
            f"{image.format}://{target}",
            levels=specs,
            category=image.category,
            source_voxel_size_nm=image.voxel_size_nm,
            names_image=True,
            image=image,
        )
        return [LevelCopy(image, level, replace(destination, mag=level.mag)) for level in selected]

    def default_layers(self, source: str) -> list[str] | None:
        """Return the names of the layers that are copied by default, None for all."""
        del source
        return None

    def warnings(
        self,
        source: str,
        level_copies: Sequence[LevelCopy],
        layers: Sequence[str] | None,
    ) -> list[str]:
        """Return notes on files that are not copied, and on differences from the target."""
        del source, level_copies, layers
        return []

    def prepare(self, source: str, target: str) -> AbstractContextManager[None]:
        """Create the container of the copied levels if writing them does not create it. One that is
        still empty after an error is removed."""
        del source, target
        return contextlib.nullcontext()
