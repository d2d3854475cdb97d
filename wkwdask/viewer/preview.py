"""Draw three orthogonal slices of a dataset as one picture: the image in gray, the segmentation in
colors over it, and a scale bar; or the mesh of one label."""

from __future__ import annotations

import io
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw, ImageFont

from wkwdask.errors import MissingError
from wkwdask.formats.opening import find, is_readable
from wkwdask.geometry.mag import Mag, whole_number
from wkwdask.model.image import mag_or_key
from wkwdask.store.documents import replace_document
from wkwdask.store.paths import local_path, splitext
from wkwdask.store.store import check_new_file, store_at
from wkwdask.viewer.mesh_picture import draw_mesh, find_mesh
from wkwdask.viewer.slices import is_segmentation, read_slice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wkwdask.array_types import AnyArray, ByteArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.image import Image, ResolvedUrl
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.viewer.slices import Sliceable

_GAP = 8
_BACKGROUND = (24, 26, 30)
_OVERLAY = 0.38
_GOLDEN_ANGLE = 0.618033988749895
# columns and rows of the panels: large, right of it, below it
_PLANES = (("x", "y"), ("z", "y"), ("x", "z"))


@dataclass(frozen=True, slots=True)
class _Scene:
    """Volumes to draw and the size of the picture."""

    image: Sliceable | None
    segmentation: Sliceable | None
    box: BoundingBox
    """Box to draw [voxels of mag 1]."""
    pixels: dict[str, int]
    """Length of each axis in the picture [pixels]."""
    nm_per_pixel: float | None
    """None if the voxel size is unknown."""


def preview(
    url: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    layer: str | None = None,
    mag: Mag | str | int | Sequence[int] | None = None,
    index: Mapping[str, int] | None = None,
    size: int = 640,
    mesh: int | None = None,
) -> Path:
    """Draw three orthogonal slices through the middle of a dataset, layer or mag, or one mesh.

    Parameters
    ----------
    url : str or path
        A dataset (its first color and its first segmentation layer are drawn), a layer or a mag.
    output : str or path
        File of the picture on this machine; its suffix selects the format, such as ``.png``.
    layer : str, optional
        Draw only this layer.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag to draw; by default the coarsest that has a voxel for each pixel.
    index : mapping of str to int, optional
        Index along each further axis, as for :func:`open`.
    size : int
        Longest edge of the largest panel, or edge of the picture of a mesh [pixels].
    mesh : int, optional
        Draw the mesh of this label instead, which needs the extra ``meshes``.

    Returns
    -------
    Path
        File of the picture.

    Raises
    ------
    MissingError
        There is no such dataset, layer or mag, or it has no files; or no such mesh. Or the folder
        of ``output`` does not exist.
    ExistsError
        ``output`` is a folder.
    FormatError
        A file is broken.
    UnsupportedError
        ``output`` is in a bucket or on a server.
    ValueError
        The suffix of ``output`` is that of no format of pictures, or an option is invalid.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(f"{folder}/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8))
    >>> wkwdask.preview(f"{folder}/1", f"{folder}/preview.png", size=100).name
    'preview.png'
    """
    check_output(output)
    path, size = Path(output), whole_number(size, "size", 1)
    if mesh is not None:
        if whole_number(mesh, "mesh", 0) >= 2**64:
            raise ValueError(f"mesh must be the id of a label, below 2^64, got {mesh}")
        if mag is not None or index is not None:
            raise ValueError("mesh= draws no slices: omit mag= and index=")
        save_picture(_draw_mesh(url, layer, whole_number(mesh, "mesh", 0), size), path)
        return path
    resolved = find(url, index=index)
    image, segmentation, voxel_size = _find_volumes(resolved, layer, mag_or_key(mag), size)
    save_picture(draw(image, segmentation, voxel_size, size), path)
    return path


def check_output(output: str | os.PathLike[str]) -> None:
    """Check, before anything is drawn, that a picture can be written to a path."""
    path = local_path(output)  # raises an error for a bucket or a server
    if Picture.registered_extensions().get(splitext(path)[1].lower()) not in Picture.SAVE:
        raise ValueError(
            f"{path}: expected the suffix of a format of pictures, such as .png or .jpg"
        )
    check_new_file(path)


def save_picture(picture: Picture.Image, path: str | os.PathLike[str]) -> None:
    """Save a picture in the format of its suffix, whole or not at all."""
    folder, name = os.path.split(os.path.abspath(path))
    buffer = io.BytesIO()
    buffer.name = name  # whose suffix Pillow looks up
    picture.save(buffer)
    replace_document(store_at(folder), name, buffer.getvalue())


def _draw_mesh(
    url: str | os.PathLike[str], layer: str | None, label: int, size: int
) -> Picture.Image:
    color = _colors(np.array([label], np.uint64))[0]
    picture, per_pixel = draw_mesh(find_mesh(url, layer, label), color, _BACKGROUND, size)
    _draw_scale_bar(picture, per_pixel, (0, 0), (size, size), is_nm=True)
    return picture


def draw(
    image: Sliceable | None,
    segmentation: Sliceable | None,
    voxel_size: Sequence[float] | None,
    size: int,
) -> Picture.Image:
    """Draw three orthogonal slices through the middle of an image, a segmentation, or a
    segmentation over an image."""
    scene = _make_scene(image, segmentation, voxel_size, size)
    width, depth = scene.pixels["x"], scene.pixels["z"]
    height = scene.pixels["y"]
    picture = Picture.new("RGB", (width + depth + 3 * _GAP, height + depth + 3 * _GAP), _BACKGROUND)
    corners = ((_GAP, _GAP), (width + 2 * _GAP, _GAP), (_GAP, height + 2 * _GAP))
    for (columns, rows), corner in zip(_PLANES, corners, strict=True):
        picture.paste(_panel(scene, columns, rows), corner)
    # voxels of a volume without a voxel size are cubes
    per_pixel = scene.nm_per_pixel or max(scene.box.size) / max(scene.pixels.values())
    is_nm = scene.nm_per_pixel is not None
    _draw_scale_bar(picture, per_pixel, corners[0], (width, height), is_nm=is_nm)
    return picture


def _find_volumes(
    resolved: ResolvedUrl, layer: str | None, mag: Mag | str | None, size: int
) -> tuple[StoredArray | None, StoredArray | None, Sequence[float] | None]:
    """Find the image and the segmentation to draw, and the voxel size [nm]."""
    layers = (
        [resolved.choose(layer)]
        if layer is not None or len(resolved.layers) == 1
        else [resolved.choose(one.name) for one in resolved.layers]
    )
    image = segmentation = None
    voxel_size: Sequence[float] | None = None
    for candidate in layers:
        volume = _volume(candidate, mag if mag is not None else resolved.mag, size)
        if volume is None or volume.box.is_empty:
            continue
        voxel_size = voxel_size or candidate.voxel_size_of(volume)
        if is_segmentation(candidate, volume):
            segmentation = segmentation or volume
        else:
            image = image or volume
    if image is None and segmentation is None:
        if resolved.invalid_layers:
            resolved.invalid_layers[0].raise_error()
        mags = (
            ", ".join(
                dict.fromkeys(
                    str(mag_of_layer) for candidate in layers for mag_of_layer in candidate.mags
                )
            )
            or "none"
        )
        raise MissingError(
            f"{resolved.path}: no layer with data files to draw"
            + ("" if mag is None else f" in mag {mag}; there are {mags}")
        )
    return image, segmentation, voxel_size


def _make_scene(
    image: Sliceable | None,
    segmentation: Sliceable | None,
    voxel_size: Sequence[float] | None,
    size: int,
) -> _Scene:
    shown = image or segmentation
    if shown is None:
        raise ValueError("there is neither an image nor a segmentation to draw")
    box = shown.box.in_mag(Mag(1, 1, 1))
    lengths = [n * s for n, s in zip(box.size, voxel_size or (1.0, 1.0, 1.0), strict=True)]
    per_pixel = max(lengths) / size
    pixels = {
        axis: max(1, round(length / per_pixel)) for axis, length in zip("xyz", lengths, strict=True)
    }
    return _Scene(image, segmentation, box, pixels, per_pixel if voxel_size is not None else None)


def _volume(layer: Image, mag: Mag | str | None, size: int) -> StoredArray | None:
    """Open the coarsest mag that has a voxel for each pixel, or the finest mag if none has."""
    if not layer.is_layer and (isinstance(mag, str) or not layer.mags):
        return layer.volume(mag)
    readable = [
        known_mag
        for known_mag in layer.mags
        if mag in (None, known_mag) and is_readable(layer, known_mag)
    ]
    if not readable:
        return None
    fine_enough = [
        known_mag for known_mag in readable if max(layer.volume(known_mag).box.size) >= size
    ]
    return layer.volume(fine_enough[-1] if fine_enough else readable[0])


def _panel(scene: _Scene, columns: str, rows: str) -> Picture.Image:
    """Draw one slice."""
    shape = (scene.pixels[columns], scene.pixels[rows])
    panel = Picture.new("RGB", shape)
    if scene.image is not None:
        panel = Picture.fromarray(
            _gray(read_slice(scene.image, scene.box, columns, rows, shape, are_ids=False))
        ).resize(shape, Picture.Resampling.BICUBIC)
    if scene.segmentation is not None:
        ids = read_slice(scene.segmentation, scene.box, columns, rows, shape, are_ids=True)[0]
        colors = Picture.fromarray(_colors(ids)).resize(shape, Picture.Resampling.NEAREST)
        strength = _OVERLAY if scene.image is not None else 1.0
        mask = Picture.fromarray(((ids != 0) * round(255 * strength)).astype(np.uint8)).resize(
            shape, Picture.Resampling.NEAREST
        )
        panel.paste(colors, (0, 0), mask)
    return panel


def _gray(plane: AnyArray) -> ByteArray:
    """Scale values from the range between their 0.5 and 99.5 percentiles to bytes, shape (rows,
    columns, 3)."""
    channels = plane if plane.shape[0] == 3 else np.repeat(plane[:1], 3, axis=0)
    values = channels.astype(np.float64)
    values[np.isnan(values)] = 0
    inside = values[np.isfinite(values) & (values != 0)]
    low, high = np.percentile(inside, (0.5, 99.5)) if inside.size else (0.0, 1.0)
    stretched = (values - low) / max(high - low, 1e-12) * 255
    pixels: ByteArray = np.moveaxis(stretched.clip(0, 255), 0, -1).round().astype(np.uint8)
    return pixels


def _colors(ids: AnyArray) -> ByteArray:
    """Color each id with a hue far from those of consecutive ids, shape (rows, columns, 3)."""
    labels, positions = np.unique(ids, return_inverse=True)
    # Only the low bits: multiples of the golden angle would lose precision for ids of 64 bits.
    low_bits = np.array([int(label) & 0xFFFFF for label in labels], np.float64)
    hue = (low_bits * _GOLDEN_ANGLE) % 1
    value = 0.75 + 0.25 * ((low_bits * 0.7548776662466927) % 1)
    table = np.stack(
        [value * (0.5 + 0.5 * np.cos(2 * math.pi * (hue - shift))) for shift in (0, 1 / 3, 2 / 3)],
        axis=1,
    )
    table[labels == 0] = 0
    colors: ByteArray = (table * 255).round().astype(np.uint8)
    picture: ByteArray = colors[positions.reshape(ids.shape)]
    return picture


def _draw_scale_bar(
    picture: Picture.Image,
    per_pixel: float,
    corner: tuple[int, int],
    shape: tuple[int, int],
    *,
    is_nm: bool,
) -> None:
    """Draw a scale bar of a round length in the lower left corner of a panel."""
    length = _round_length(per_pixel * shape[0] / 4)
    pixels = max(1, round(length / per_pixel))
    x, y = corner[0] + 14, corner[1] + shape[1] - 18
    # The font has no micro sign.
    label = (
        f"{length:g} voxels"
        if not is_nm
        else f"{length:g} nm"
        if length < 1000
        else f"{length / 1000:g} micrometer{'s' * (length != 1000)}"
    )
    draw = ImageDraw.Draw(picture)
    draw.rectangle((x - 1, y - 1, x + pixels + 1, y + 6), fill=(0, 0, 0))
    draw.rectangle((x, y, x + pixels, y + 5), fill=(255, 255, 255))
    draw.text(
        (x, y - 22),
        label,
        fill=(255, 255, 255),
        font=ImageFont.load_default(15),
        stroke_width=2,
        stroke_fill=(0, 0, 0),
    )


def _round_length(length: float) -> float:
    """Round down to 1, 2 or 5 times a power of ten.

    Examples
    --------
    >>> [_round_length(n) for n in (7.3, 49, 1400)]
    [5.0, 20.0, 1000.0]
    """
    power = 10.0 ** math.floor(math.log10(max(length, 1e-9)))
    return next(step * power for step in (5.0, 2.0, 1.0) if step * power <= length * (1 + 1e-9))
