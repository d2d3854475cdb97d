"""Layers that are shown in a browser: how their files are served, and what the first view needs to
know of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.as_zarr.served import SHOWN_TYPES, serve_image
from wkwdask.formats.opening import find, format_of_documents, format_of_image
from wkwdask.formats.roots import check_served, root_of
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.store.content import ContentSource, served_folder
from wkwdask.store.paths import is_on_disk, is_remote
from wkwdask.store.store import open_store
from wkwdask.viewer.slices import is_segmentation, read_slice

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.formats.format import ViewerFiles
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image
    from wkwdask.model.levels import Lengths
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.viewer.slices import Sliceable

SAMPLE_PIXELS = (256, 256)
_PERCENTILES = (0.5, 99.5)


@dataclass(frozen=True, slots=True)
class ShownLayer:
    """A layer in the viewer."""

    name: str
    source: ContentSource
    scheme: str
    """Scheme of its URL in Neuroglancer."""
    is_segmentation: bool
    is_rgb: bool
    """Whether its channels are red, green and blue."""
    is_decoded: bool
    """Whether chunks are decoded by the server, because no viewer can read them."""
    box: BoundingBox
    """Bounding box [voxels of mag 1]."""
    voxel_size_nm: Lengths | None
    coarsest: Sliceable
    """Coarsest mag, from which the contrast is sampled."""
    sampled: BoundingBox
    """Box with the slice of the sample [voxels of mag 1]."""
    meshes: ContentSource | None = None
    """Folder of meshes that the files of the source do not name."""

    def contrast(self) -> tuple[float, float] | None:
        """Return the range of most values in a slice through the middle, None if it has no two
        values."""
        with suppress(FormatError, MissingError, UnsupportedError, ModuleNotFoundError):
            return contrast_of(
                read_slice(self.coarsest, self.sampled, "x", "y", SAMPLE_PIXELS, are_ids=False)
            )
        return None


def contrast_of(values: AnyArray) -> tuple[float, float] | None:
    """Return the range of most values other than 0, None if there are no two."""
    inside = values[np.isfinite(values) & (values != 0)]
    low, high = (
        (float(n) for n in np.percentile(inside, _PERCENTILES)) if inside.size else (0.0, 0.0)
    )
    return (low, high) if low < high else None


def layers_of(
    url: str | os.PathLike[str],
    names: Sequence[str],
    mag: Mag | None,
    *,
    allow_external: bool = False,
) -> list[ShownLayer]:
    """Open the layers of a dataset, or a layer, mag, volume or array; ``names`` selects layers,
    none for all."""
    resolved = find(url)
    chosen = [resolved.choose(name) for name in names] or [
        resolved.readable(image) for image in resolved.layers
    ]
    for image in chosen:
        check_served(replace(image, allow_external=allow_external))
    layers = [
        layer for image in chosen if (layer := _shown(image, mag or resolved.mag)) is not None
    ]
    if not layers:
        if resolved.invalid_layers:
            resolved.invalid_layers[0].raise_error()
        raise MissingError(
            f"{resolved.path}: no layer with voxels to show"
            + (f" in mag {mag}" if mag is not None else "")
        )
    return layers


def _shown(image: Image, mag: Mag | None) -> ShownLayer | None:
    volumes = open_mags(image, mag)
    if not volumes:
        return None
    finest, *_, coarsest = [*volumes.values()] * 2
    has_labels = is_segmentation(image, finest)
    is_rgb = not has_labels and _is_rgb(finest)
    size = image.voxel_size_of(finest) or image.voxel_size_nm
    stored = None if mag is not None else _stored_files(image, [*volumes.values()], is_rgb=is_rgb)
    if stored is not None:
        source: ContentSource = served_folder(image.folder, stored.documents, finest.store)
        scheme, is_decoded = stored.scheme, False
    else:
        source = served = serve_image(
            image.name, volumes, size, is_segmentation=has_labels, is_rgb=is_rgb
        )
        scheme, is_decoded = "zarr3", served.is_decoded
    box = finest.box.in_mag(MAG_1)
    meshes = _meshes_of(image) if has_labels and stored is None else None
    return ShownLayer(
        image.name, source, scheme, has_labels, is_rgb, is_decoded, box, size, coarsest, box, meshes
    )


def _meshes_of(image: Image) -> ContentSource | None:
    """Return the first folder of meshes that a document names, None if there is none, or if it lies
    outside of what the document describes."""
    folder = next(iter(format_of_documents(image).mesh_folders(image)), None)
    if folder is None or (not image.allow_external and root_of(image).outside(folder)):
        return None
    return served_folder(folder, {}, open_store(folder))


def shown_array(
    name: str, volume: Any, voxel_size_nm: Lengths | None, *, is_segmentation: bool
) -> ShownLayer:
    """Return a volume of one mag that is not stored as a layer. Only the middle is sampled, because
    each voxel may be slow to compute."""
    box = volume.box.in_mag(MAG_1)
    x, y, z = lengths = tuple(map(min, box.size, (*SAMPLE_PIXELS, 1)))
    first = [
        t + (n - length) // 2 for t, n, length in zip(box.topleft, box.size, lengths, strict=True)
    ]
    is_rgb = not is_segmentation and _is_rgb(volume)
    source = serve_image(
        name,
        {volume.box.mag: volume},
        voxel_size_nm,
        is_segmentation=is_segmentation,
        is_rgb=is_rgb,
    )
    return ShownLayer(
        name,
        source,
        "zarr3",
        is_segmentation,
        is_rgb,
        False,
        box,
        voxel_size_nm,
        volume,
        BoundingBox((first[0], first[1], first[2]), (x, y, z)),
    )


def _is_rgb(volume: Sliceable) -> bool:
    return volume.num_channels == 3 and volume.dtype == np.uint8


def open_mags(image: Image, mag: Mag | None) -> dict[Mag, StoredArray]:
    """Open the levels of an image with voxels; those that cannot be opened are left out if there
    are others."""
    if not image.mags:  # an array without a position in space
        volume = image.volume(mag)
        return {} if volume.box.is_empty else {volume.box.mag: volume}
    volumes: dict[Mag, StoredArray] = {}
    error: Exception | None = None
    for candidate in image.mags:
        if mag not in (None, candidate) or (image.key is not None and image.mag != candidate):
            continue
        try:
            volume = image.volume(candidate)
        except (FormatError, MissingError, UnsupportedError, ModuleNotFoundError) as its_error:
            error = its_error
            continue
        if not volume.box.is_empty:
            volumes[candidate] = volume
    if not volumes and error is not None and not isinstance(error, MissingError):
        raise error
    return volumes


def _stored_files(
    image: Image, volumes: Sequence[StoredArray], *, is_rgb: bool
) -> ViewerFiles | None:
    """Return how the viewer reads the files of an image, None if they must be decoded."""
    is_plain = (
        not image.is_layer
        and not image.key
        and (is_on_disk(image.folder) or is_remote(image.folder))
        and len(volumes) == len(image.levels)
    )
    if not is_plain or any(root_of(image).outside(level.folder) for level in image.levels):
        # only files in the folder of the image are sent
        return None
    if any(
        volume.dtype.name not in SHOWN_TYPES or volume.channels is not None for volume in volumes
    ):
        return None
    return format_of_image(image).viewer_files(image, volumes, is_rgb=is_rgb)
