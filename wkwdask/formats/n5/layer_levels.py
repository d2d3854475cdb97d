"""Datasets of a layer that a dataset of WEBKNOSSOS stores as N5: they begin at voxel 0, and the
dataset states the box."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.axes import axis_order
from wkwdask.formats.container import check_same_mags, patterns
from wkwdask.formats.n5.array import N5Codec, n5_array
from wkwdask.formats.n5.attributes import FILE_NAME
from wkwdask.formats.n5.layer import PREFIX, find_n5_layers
from wkwdask.formats.n5.target import DatasetTarget, choose_dataset, target_beside
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.model.json_text import format_json
from wkwdask.model.writing.target_array import TargetArray
from wkwdask.model.writing.target_image import Destination, NewLevels
from wkwdask.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.n5.options import N5Options
    from wkwdask.model.image import Image
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_image import LevelSpec


def layer_levels(
    layer: Image,
    folders: Sequence[str],
    specs: Sequence[LevelSpec],
    options: N5Options,
    like: Volume | None,
    existing: str,
) -> NewLevels:
    """Lay out datasets of a layer: levels of its group if it has one, else datasets alone."""
    whole = [replace(spec, box=_from_zero(spec)) for spec in specs]
    group = _group_of(layer)
    if group is not None:
        check_same_mags(layer, group)
        target = target_beside(replace(group, allow_external=layer.allow_external))
        levels = target.new_levels(whole, options, like, existing)
        if levels.edit is not None and levels.edit.makes_room:
            raise UnsupportedError(
                f"{layer.folder}: N5 numbers levels from fine to coarse, and a finer level would "
                "rename others, which the dataset lists; convert() stores the layer as WKW"
            )
    elif like is not None and like.name in folders:
        target = DatasetTarget(folders[0], Destination(PREFIX + folders[0]))  # type: ignore[assignment]
        levels = target.new_levels(whole, options, like)
    else:
        levels = _datasets(layer, folders, whole, options, like)
    targets = tuple(
        replace(target, array=replace(target.array, crop=spec.box))
        for target, spec in zip(levels.targets, specs, strict=True)
    )
    stated = tuple(axis_order(target.array.codec.axes) for target in targets)  # type: ignore[attr-defined]
    return replace(levels, targets=targets, stated=stated)


def _from_zero(spec: LevelSpec) -> BoundingBox:
    whole = spec.box if spec.extent is None else spec.box.union(spec.extent)
    return BoundingBox((0, 0, 0), whole.bottomright, whole.mag)


def _group_of(layer: Image) -> Image | None:
    """Return the image of the group in the folder of a layer, None if there is none that has mags
    of the layer."""
    try:
        images = find_n5_layers(layer.folder)
    except (FormatError, MissingError, UnsupportedError):
        return None
    folders = {level.folder for level in layer.levels}
    return next(
        (
            image
            for image in images
            if image.key is None and any(level.folder in folders for level in image.levels)
        ),
        None,
    )


def _datasets(
    layer: Image,
    folders: Sequence[str],
    specs: Sequence[LevelSpec],
    options: N5Options,
    like: Volume | None,
) -> NewLevels:
    """Lay out datasets that belong to no group, stored like others of the layer."""
    alike = (array for array in patterns(layer, like) if isinstance(array.codec, N5Codec))
    pattern = next(alike, None)
    targets, settings = [], []
    for folder, spec in zip(folders, specs, strict=True):
        axes = "xyz" if pattern is None else pattern.codec.axes  # type: ignore[attr-defined]
        if "c" not in axes and spec.num_channels > 1:
            axes += "c"
        dataset = choose_dataset(spec, options, pattern, axes)
        dataset = replace(dataset, document=dataset.to_json())
        store = open_store(folder)
        array = n5_array(store, dataset, axes, spec.box.mag, is_new=True)
        document = format_json(dataset.document).encode()
        targets.append(TargetArray(array, store, ((FILE_NAME, document),)))
        settings.append({"mag": spec.box.mag.name, **dataset.document})
    return NewLevels(layer.folder, tuple(folders), tuple(targets), {"datasets": settings})
