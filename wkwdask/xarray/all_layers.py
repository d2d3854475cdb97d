"""One mag of all layers of a dataset as the variables of one xarray dataset."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import xarray as xr

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.model.image import check_inside
from wkwdask.xarray.variables import open_variables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image, ResolvedUrl
    from wkwdask.model.stored_array import StoredArray


def open_layers(
    located: ResolvedUrl,
    mag: Mag | None,
    bounding_box: BoundingBox | str | Sequence[Any] | None,
) -> xr.Dataset:
    """Open one mag of all layers, by default the finest that all have, in the box around them; a
    layer is zero outside of its box.

    The attribute ``left_out`` names the layers that lack the mag or cannot be opened.
    """
    images = [located.readable(image) for image in located.layers]
    mag = mag or located.mag or _finest_common_mag(located.path, images)
    opened: list[tuple[Image, StoredArray]] = []
    left_out = [f"{invalid.name}: {invalid.problem}" for invalid in located.invalid_layers]
    for image in images:
        try:
            opened.append((image, image.volume(mag)))
        except (FormatError, MissingError, ModuleNotFoundError, UnsupportedError) as error:
            left_out.append(f"{image.name}: {error}")
    if not opened:
        raise MissingError(f"{located.path}: no layer has mag {mag}; {'; '.join(left_out)}")
    whole = reduce(BoundingBox.union, (volume.box for _, volume in opened))
    extent = whole if bounding_box is None else BoundingBox.parse(bounding_box).in_mag(mag)
    check_inside(located.path, whole, extent)
    variables = [open_variables(image, volume, extent=extent) for image, volume in opened]
    if len({variable.sizes["c"] for variable in variables if "c" in variable.sizes}) > 1:
        variables = [
            variable.rename({"c": f"c_{name}"}) if "c" in variable.sizes else variable
            for variable in variables
            for name in variable.data_vars
        ]
    dataset = xr.merge(variables, join="exact", combine_attrs="drop_conflicts")
    return dataset.assign_attrs(left_out=left_out) if left_out else dataset


def _finest_common_mag(path: str, images: Sequence[Image]) -> Mag:
    mags = [image.mags for image in images if image.mags]
    common = [mag for mag in mags[0] if all(mag in others for others in mags)] if mags else []
    if not common:
        listed = "; ".join(
            f"{image.name}: {', '.join(mag.name for mag in image.mags) or 'none'}"
            for image in images
        )
        raise ValueError(f"{path}: no mag that all layers have: name one with mag= ({listed})")
    return common[0]
