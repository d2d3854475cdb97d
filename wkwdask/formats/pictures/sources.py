"""Open plain sources: stacks of images and arrays in files, with the voxel sizes that they state.

A path may name a file, a folder of images, a pattern, a list of files, or a dataset in an HDF5 file
(``file.h5:name``).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from wkwdask.errors import (
    BoundsError,
    CorruptError,
    FormatError,
    MetadataWarning,
    MissingError,
    UnsupportedError,
)
from wkwdask.formats.axes import axes_of
from wkwdask.formats.file_suffixes import (
    HDF5_SUFFIXES,
    IMAGE_SUFFIXES,
    READ_SUFFIXES,
    TIFF_SUFFIXES,
)
from wkwdask.formats.opening import open_stored
from wkwdask.formats.pictures.array_file import (
    ArrayRef,
    ArrayVolume,
    DescribedArray,
    bytes_ref,
    check_axes,
    check_filters,
    decimal,
    find_item,
    named_axes,
    npy_ref,
    open_hdf5,
)
from wkwdask.formats.pictures.image_stack import ImageStack
from wkwdask.formats.pictures.images import slices_of
from wkwdask.formats.pictures.mrc import is_mrc, open_mrc
from wkwdask.formats.pictures.nifti import is_nifti, open_nifti
from wkwdask.formats.pictures.slices import Slice, file_stamp
from wkwdask.formats.pictures.tiff_pages import (
    files_of_set,
    is_contiguous,
    is_tiff,
    open_checked_tiff,
    series_axes,
    series_of,
    series_slices,
)
from wkwdask.formats.plain_arrays import contains_plain_arrays, format_with_axes, images_at
from wkwdask.formats.registry import format_named, location_of
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.model.extras import import_extra
from wkwdask.model.levels import length_nm, offset_from_center
from wkwdask.model.parsing import reading
from wkwdask.model.volume import relative_to
from wkwdask.store import by_path
from wkwdask.store.paths import any_path, basename, dirname, local_path, splitext
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.format import Url
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume

_HEADER_THREADS = 16
_MAX_LISTED = 5  # bad slices in an error message
_VIGRA_CHANNELS = 1  # typeFlags of an axis of channels (vigra, AxisType)
_MOST_VALUES = 32  # of an attribute in HDF5, whose datasets have at most as many axes


@dataclass(frozen=True, slots=True)
class PlainSource:
    """Opened stack of images or array."""

    volume: ImageStack | ArrayVolume | StoredArray
    voxel_size_nm: Lengths | None = None
    """Edge lengths of a voxel along x, y, z [nm], None if the source does not state them."""
    notes: tuple[str, ...] = ()
    """Remarks for the user, such as filled sections."""


@dataclass(frozen=True, slots=True)
class PlainOptions:
    """Position and axes of a plain source, and treatment of unreadable slices."""

    corner: Vec3 | None
    """Absolute voxel of the first voxel of the source; None for the position that the source
    states, else voxel 0."""
    mag: Mag
    axes: str | None = None
    """Order of the axes, None to take it from the source."""
    fill: bool = False
    """Whether unreadable and missing slices become zeros."""
    allow_external: bool = False
    """Whether HDF5 data outside of the folder of the file are read."""


def open_plain(source: Url | Sequence[Url], options: PlainOptions) -> PlainSource:
    if not isinstance(source, (str, os.PathLike)):
        return _open_images([local_path(path) for path in source], "images", options)
    text = os.fspath(source)
    file, colon, key = text.rpartition(":")
    if colon and file.lower().endswith(HDF5_SUFFIXES):
        # checked first: file.h5://dataset is not a URL
        return _open_hdf5(local_path(file), key.strip("/"), options)
    stored_format = None if options.axes is None else format_with_axes(text)
    if stored_format is not None:
        open_array = _open_n5 if stored_format == "n5" else _open_zarr
        return open_array(any_path(location_of(text)), options)
    if not store_at(local_path(text)).exists() and by_path.has_magic(text):
        return _open_images(sort_naturally(by_path.matching(local_path(text))), text, options)
    path = local_path(text)
    if not store_at(path).exists():
        raise MissingError(f"{path}: no such file or folder")
    if store_at(path).is_folder():
        return _open_folder(path, options)
    by_path.check_regular(path)
    suffix = splitext(path)[1].lower()
    if suffix in TIFF_SUFFIXES:
        return _open_tiff(path, options)
    if suffix in IMAGE_SUFFIXES:
        return _open_images([path], path, options)
    if suffix == ".npy":
        return _open_npy(path, options)
    if suffix in HDF5_SUFFIXES:
        return _open_hdf5(path, "", options)
    if is_mrc(path):
        return _described(open_mrc(path), options)
    if is_nifti(path):
        return _described(open_nifti(path), options)
    raise UnsupportedError(f"{path}: unknown suffix, expected one of {', '.join(READ_SUFFIXES)}")


def open_sized(url: Url) -> tuple[Volume, Lengths | None]:
    """Open one volume of any format, and return the edge lengths of a voxel of mag 1 [nm]."""
    if contains_plain_arrays(url):
        return _plain(url)
    try:
        image, volume = open_stored(url)
    except MissingError as missing:
        try:
            return _plain(url)
        except (MissingError, UnsupportedError):
            raise missing from None
    return volume, image.voxel_size_nm


def _plain(url: Url) -> tuple[Volume, Lengths | None]:
    source = open_plain(url, PlainOptions(None, MAG_1))
    return source.volume, source.voxel_size_nm


def sort_naturally(paths: Sequence[str]) -> list[str]:
    """Sort names by the numbers in them, so that ``section_9`` comes before ``section_10``.

    Examples
    --------
    >>> sort_naturally(["s10.png", "s9.png", "s010.png"])
    ['s9.png', 's010.png', 's10.png']
    """
    return sorted(
        paths,
        key=lambda path: ([int(part) if part.isdecimal() else part for part in _parts(path)], path),
    )


def _parts(path: str) -> list[str]:
    """Split a path into text and numbers, alternately."""
    return re.split(r"(\d+)", path)


# ------------------------------------------------------------------------------------------------
# images


def _open_folder(path: str, options: PlainOptions) -> PlainSource:
    if any(store_at(path).is_file(name) for name in ("zarr.json", ".zarray", ".zgroup")):
        return _open_zarr(path, options)
    above = dirname(path)
    if any(store_at(above).is_file(name) for name in ("zarr.json", ".zgroup")):
        raise MissingError(f"{path}: not a Zarr array or group")
    names = [
        name
        for name in store_at(path).names()
        if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")
    ]
    kinds = sorted({splitext(name)[1].lower() for name in names})
    if not names:
        raise MissingError(f"{path}: no images ({', '.join(IMAGE_SUFFIXES)}) in this folder")
    if (
        len(
            {
                "tif" if kind in TIFF_SUFFIXES else "jpg" if kind in (".jpg", ".jpeg") else kind
                for kind in kinds
            }
        )
        > 1
    ):
        raise ValueError(
            f"{path}: images of several kinds ({', '.join(kinds)}): choose with a pattern, such as "
            f"{path}/*{kinds[0]}"
        )
    return _open_images([f"{path}/{name}" for name in sort_naturally(names)], path, options)


def _open_images(paths: list[str], name: str, options: PlainOptions) -> PlainSource:
    """Open a stack of image files by reading all headers in threads."""
    if not paths:
        raise MissingError(f"{name}: no file matches")
    unknown = [path for path in paths if not path.lower().endswith(IMAGE_SUFFIXES)]
    if unknown:
        raise UnsupportedError(
            f"{unknown[0]}: not an image, expected one of {', '.join(IMAGE_SUFFIXES)}"
        )
    if options.axes not in (None, "yx", "zyx", "yxc", "zyxc") and not all(map(is_tiff, paths)):
        raise ValueError(
            f"{name}: axes {options.axes!r} for PNG or JPEG, expected zyx or zyxc: their rows are "
            "y, their columns x, and the files z"
        )
    if len(paths) > 1 and is_tiff(paths[0]) and files_of_set(paths[0]) == set(paths):
        return _open_tiff(paths[0], options)
    with ThreadPoolExecutor(_HEADER_THREADS, thread_name_prefix="wkwdask-headers") as threads:
        slices_by_file = list(threads.map(partial(slices_of, axes=options.axes), paths))
    missing = missing_numbers(paths) if all(len(slices) == 1 for slices in slices_by_file) else []
    notes = []
    if missing and options.fill:
        by_number = dict(zip(_section_numbers(paths), slices_by_file, strict=True)) | {
            number: [Slice(())] for number in missing
        }
        slices_by_file = [by_number[number] for number in sorted(by_number)]
        notes.append(f"missing sections, filled with zeros: {_ranges(missing)}")
    # Slices are compared before the error about missing numbers is raised: an unreadable file is
    # the worse error.
    stack = _stack([slice_ for slices in slices_by_file for slice_ in slices], name, options, notes)
    if missing and not options.fill:
        raise MissingError(
            f'{name}: sections seem to be missing: {_ranges(missing)}; on_error="fill" replaces '
            "them by zeros; "
            "if none is missing, number the files (or links to them) without gaps"
        )
    return stack


def _section_numbers(paths: Sequence[str]) -> list[int]:
    """Return the section number in each name: the only number in which the names differ. An empty
    list if they differ in several numbers or in text."""
    parts = [_parts(basename(path)) for path in paths]
    if len({len(name_parts) for name_parts in parts}) != 1:
        return []
    varying = [n for n in range(len(parts[0])) if len({name_parts[n] for name_parts in parts}) > 1]
    if len(varying) != 1 or varying[0] % 2 == 0:  # even parts are text
        return []
    return [int(name_parts[varying[0]]) for name_parts in parts]


def missing_numbers(paths: Sequence[str]) -> list[int]:
    """Return the numbers that are missing in a regular sequence of sections; the step may be larger
    than 1.

    Examples
    --------
    >>> missing_numbers(["s8.png", "s10.png", "s14.png"]), missing_numbers(["a.png", "b.png"])
    ([12], [])
    """
    numbers = _section_numbers(paths)
    steps = [b - a for a, b in pairwise(numbers)]
    if not steps or min(steps) <= 0:
        return []
    step = reduce(math.gcd, steps)
    return (
        sorted(set(range(numbers[0], numbers[-1], step)) - set(numbers))
        if (numbers[-1] - numbers[0]) // step < 1000 * len(numbers)
        else []
    )


def _ranges(numbers: Sequence[int]) -> str:
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    text = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(text if len(text) <= 20 else [*text[:20], f"and {len(text) - 20} more"])


def _stack(slices: list[Slice], name: str, options: PlainOptions, notes: list[str]) -> PlainSource:
    """Return a stack of the slices with the most common format; all other slices are errors, or
    zeros with ``fill``."""
    formats = Counter(slice_.format for slice_ in slices if slice_.format is not None)
    bad = [slice_ for slice_ in slices if slice_.problem]
    if not formats:
        raise CorruptError(
            f"{(bad or slices)[0].name}: cannot be read: {(bad or slices)[0].problem}"
        )
    expected = formats.most_common(1)[0][0]
    problems = [
        f"{slice_.name}: "
        f"{f'cannot be read: {slice_.problem}' if slice_.format is None else f'has {slice_.format}, expected {expected} like most slices'}"  # noqa: E501
        for slice_ in slices
        if slice_.pages and slice_.format != expected
    ]
    if problems and not options.fill:
        more = f"; and {len(problems) - _MAX_LISTED} more" if len(problems) > _MAX_LISTED else ""
        raise CorruptError(
            "; ".join(problems[:_MAX_LISTED]) + more + ' (on_error="fill" replaces them by zeros)'
        )
    notes += [f"filled with zeros: {problem}" for problem in problems]
    good = next(slice_ for slice_ in slices if slice_.format == expected)
    corner = options.corner or (0, 0, 0)
    box = BoundingBox(corner, (expected.width, expected.height, len(slices)), options.mag)
    return PlainSource(
        ImageStack(name, tuple(slices), expected, corner, box, good.tile_shape), None, tuple(notes)
    )


def _open_tiff(path: str, options: PlainOptions) -> PlainSource:
    """Open one TIFF file, as a stack of pages or as one contiguous array."""
    with open_checked_tiff(path) as tiff:
        with reading(path, "TIFF file"):
            voxel_size = _tiff_voxel_size(tiff)
            described = tiff.is_ome or tiff.is_imagej or tiff.is_shaped
            series = series_of(tiff, path) if described or options.axes is not None else []
            first: Any = series[0] if series else None
            offset = first.dataoffset if len(series) == 1 and is_contiguous(first) else None
        if first is None:
            return replace(_stack(slices_of(path), path, options, []), voxel_size_nm=voxel_size)
        axes = options.axes
        if offset is not None:
            letters = check_axes(series_axes(first, path, axes), first.shape, path)
            with reading(path, "TIFF file"):
                ref = bytes_ref(path, first.shape, first.dtype.newbyteorder(tiff.byteorder), offset)
            return _array(ref, letters, options, voxel_size)
        if axes is not None and len(series) > 1 and len(axes) == len(first.shape) + 1:
            axes = axes.removeprefix("z")  # the user counts the series as an axis
        letters = series_axes(
            first, path, None if axes is None else check_axes(axes, first.shape, path)
        )
        with reading(path, "TIFF file"):
            slices = series_slices(series, path, letters)
        return replace(_stack(slices, path, options, []), voxel_size_nm=voxel_size)


def _tiff_voxel_size(tiff: Any) -> Lengths | None:
    try:
        return _valid_lengths(
            _ome_lengths(tiff.ome_metadata)
            if tiff.is_ome
            else _imagej_lengths(tiff)
            if tiff.is_imagej
            else []
        )
    except (
        StopIteration,
        KeyError,
        TypeError,
        ValueError,
        ZeroDivisionError,
        ElementTree.ParseError,
    ):
        return None


def _ome_lengths(text: str) -> list[float]:
    pixels = next(
        element
        for element in ElementTree.fromstring(text).iter()
        if element.tag.rpartition("}")[2] == "Pixels"
    )
    return [
        length_nm(
            float(pixels.attrib[f"PhysicalSize{axis}"]),
            pixels.attrib.get(f"PhysicalSize{axis}Unit", "µm"),
        )
        for axis in "XYZ"
    ]


def _imagej_lengths(tiff: Any) -> list[float]:
    """Return the edge lengths of a voxel: ImageJ stores pixels per unit in the resolution tags, and
    omits a spacing of 1."""
    described, tags = tiff.imagej_metadata, tiff.pages[0].tags
    unit = str(described["unit"]).replace("\\u00B5", "µ")
    across = [tags[f"{axis}Resolution"].value for axis in "XY"]
    lengths = [units / pixels for pixels, units in across] + [float(described.get("spacing", 1))]
    return [length_nm(abs(length), unit) for length in lengths]


def _valid_lengths(lengths: Sequence[float]) -> Lengths | None:
    """Return three finite positive lengths, None for other values: many files state 0."""
    if len(lengths) != 3 or not all(math.isfinite(length) and length > 0 for length in lengths):
        return None
    return lengths[0], lengths[1], lengths[2]


# ------------------------------------------------------------------------------------------------
# arrays


def _array(
    ref: ArrayRef,
    axes: str,
    options: PlainOptions,
    voxel_size: Lengths | None,
    *notes: str,
    position: Vec3 = (0, 0, 0),
) -> PlainSource:
    if np.dtype(ref.dtype).kind not in "biuf":
        raise UnsupportedError(
            f"{ref.name}: holds {np.dtype(ref.dtype)}, expected integers, floats or bool"
        )
    if 0 in ref.shape:
        raise BoundsError(f"{ref.name}: the source holds no voxels: its shape is {ref.shape}")
    lengths = dict(zip(axes, ref.shape, strict=True))
    size = (lengths["x"], lengths["y"], lengths.get("z", 1))
    corner = position if options.corner is None else options.corner
    return PlainSource(
        ArrayVolume(ref, axes, corner, BoundingBox(corner, size, options.mag)), voxel_size, notes
    )


def _axes_of(
    options: PlainOptions, shape: tuple[int, ...], name: str, stated: Sequence[str | None] = ()
) -> str:
    """Return the axes from the user, else from the file, else the usual ones for the number of
    dimensions."""
    if options.axes is None:
        return named_axes(stated, shape, name)
    axes = check_axes(options.axes, shape, name)
    with contextlib.suppress(UnsupportedError):
        # names that are not understood contradict nothing: axes= is the remedy
        found = axes_of(stated, shape, name, usual="")
        if any(
            one != other
            for one, other, length in zip(found, axes, shape, strict=True)
            if length > 1
        ):
            names = ", ".join(map(str, stated))
            warnings.warn(
                (
                    f"{name}: states the axes {names}, but axes={options.axes!r} says others, "
                    "which are used"
                ),
                MetadataWarning,
                stacklevel=2,
            )
    return axes


def _open_npy(path: str, options: PlainOptions) -> PlainSource:
    # an array in Fortran order is read as its transpose in C order
    ref, is_reversed = npy_ref(path)
    axes = _axes_of(options, ref.shape[::-1] if is_reversed else ref.shape, path)
    return _array(ref, axes[::-1] if is_reversed else axes, options, None)


def _open_hdf5(path: str, key: str, options: PlainOptions) -> PlainSource:
    """Open a dataset of an HDF5 file; ``key`` may be empty if the file has only one."""
    with open_hdf5(path) as file:
        h5py, dataset_names = import_extra("h5py", path), list[str]()
        with reading(path, "HDF5 file"):
            file.visititems(
                lambda name, item: (
                    dataset_names.append(name)
                    # a name that is not UTF-8 is bytes, and nobody can name it
                    if isinstance(name, str) and isinstance(item, h5py.Dataset) and item.ndim > 1
                    else None
                )
            )
        key = key or (dataset_names[0] if len(dataset_names) == 1 else "")
        data = find_item(file, key, allow_external=options.allow_external) if key else None
        if not isinstance(data, h5py.Dataset) or data.ndim < 2:
            names = ", ".join(f"{path}:/{name}" for name in dataset_names)
            raise MissingError(
                f"{path}: "
                f"{f'no dataset {key!r} of two or more axes' if key else 'several datasets, or none'}: "  # noqa: E501
                f"name one of: {names or 'none found'}"
            )
        with reading(f"{path}:/{key}", "HDF5 dataset"):
            check_filters(data, f"{path}:/{key}")
            chunks = tuple(data.chunks or (*(1,) * (data.ndim - 1), data.shape[-1]))
            ref = ArrayRef(
                "hdf5", path, key, tuple(data.shape), data.dtype.str, chunks, 0, file_stamp(path)
            )
            try:
                axis_names = _hdf5_axis_names(data)
            except (KeyError, TypeError, ValueError):
                if options.axes is None:
                    raise
                axis_names = []
            voxel_size, position = _hdf5_voxel_size(data), _cremi_position(data)
        return _array(
            ref,
            _axes_of(options, ref.shape, ref.name, axis_names),
            options,
            voxel_size,
            position=position,
        )


def _hdf5_axis_names(data: Any) -> list[str | None]:
    """Return the axis names of a dataset: the axistags of ilastik (vigra), or else the labels or
    scales of its dimensions."""
    if "axistags" in data.attrs:
        tags = json.loads(_attribute(data, "axistags"))["axes"]
        return ["c" if tag.get("typeFlags") == _VIGRA_CHANNELS else str(tag["key"]) for tag in tags]
    # netCDF names a dimension by the dataset that is its scale. These attributes are those of the
    # HDF5 Dimension Scale Specification, whose C functions (dims) crash where they are damaged.
    labels, scales = (
        _attribute(data, name) if name in data.attrs else [()] * data.ndim
        for name in ("DIMENSION_LABELS", "DIMENSION_LIST")
    )
    return [
        _text(label) if len(label) else basename(data.file[scale[0]].name) if len(scale) else None
        for label, scale in zip(labels, scales, strict=True)
    ]


def _text(label: str | bytes) -> str:
    """Return a text, which h5py returns as bytes if its length is fixed."""
    return label.decode() if isinstance(label, bytes) else str(label)


def _hdf5_voxel_size(data: Any) -> Lengths | None:
    """Return the voxel size in the attributes that ilastik and Fiji (micrometers) or CREMI
    (nanometers) write, in the order z, y, x."""
    for name, per_unit in (("element_size_um", 1e3), ("resolution", 1.0)):
        lengths = _valid_lengths([length * per_unit for length in _xyz_attribute(data, name)])
        if lengths is not None:
            return lengths
    return None


def _cremi_position(data: Any) -> Vec3:
    """Return the voxel that is closest to the ``offset`` beside ``resolution``, both in nanometers
    in the order z, y, x (https://cremi.org/data)."""
    lengths, offset = (
        _valid_lengths(_xyz_attribute(data, "resolution")),
        _xyz_attribute(data, "offset"),
    )
    if lengths is None or len(offset) != 3 or not all(math.isfinite(place) for place in offset):
        return 0, 0, 0
    return offset_from_center(offset, lengths, (1.0, 1.0, 1.0))


def _xyz_attribute(data: Any, name: str) -> list[float]:
    """Return the numbers of an attribute in the order x, y, z; empty if it is missing, is no
    numbers, or has more than a few values."""
    if name not in data.attrs or not _has_few(data, name):
        return []
    values = np.asarray(data.attrs[name]).ravel()
    return [decimal(value) for value in reversed(values)] if values.dtype.kind in "iuf" else []


def _attribute(data: Any, name: str) -> Any:
    """Return an attribute of few values."""
    if not _has_few(data, name):
        shape = data.attrs.get_id(name).shape
        raise ValueError(f"attribute {name}: expected a few values, found the shape {shape}")
    return data.attrs[name]


def _has_few(data: Any, name: str) -> bool:
    """Return whether an attribute has few values; a damaged file may state billions."""
    shape = data.attrs.get_id(name).shape
    return shape is not None and math.prod(shape) <= _MOST_VALUES


def _open_zarr(path: str, options: PlainOptions) -> PlainSource:
    """Open a Zarr array, or the finest array of an OME-NGFF image."""
    images = images_at(path)
    image, level = images[0], next(iter(images[0].selected))
    if len(images) > 1 or path not in (image.folder, level.folder):
        raise FormatError(
            f"{path}: a group without multiscales: name an array in it: "
            f"{', '.join(one.folder for one in images)}"
        )
    if path != level.folder and options.axes is None:
        image.check_finest()
    lengths = None if level.lengths_nm is None else _valid_lengths(level.lengths_nm)
    if options.axes is None and (level.key or level.problem):
        volume = level.open()  # or raise its error
    else:
        volume = format_named("zarr").open_listed(
            level.folder, lambda shape, names: _axes_of(options, tuple(shape), level.folder, names)
        )
    return _stored(volume, options, lengths)


def _open_n5(path: str, options: PlainOptions) -> PlainSource:
    """Open an N5 dataset with stated axes, the fastest first as in its ``dimensions``."""
    return _stored(
        format_named("n5").open_listed(
            path, lambda shape, names: _axes_of(options, tuple(shape), path, names)
        ),
        options,
        None,
    )


def _stored(volume: StoredArray, options: PlainOptions, lengths: Lengths | None) -> PlainSource:
    if volume.box.is_empty:
        raise BoundsError(
            f"{volume.name}: the source holds no voxels: its size is {volume.box.size}"
        )
    if options.corner is not None:
        volume = relative_to(volume, volume.origin).moved(options.corner)
    return PlainSource(replace(volume, mag=options.mag), lengths)


def _described(array: DescribedArray, options: PlainOptions) -> PlainSource:
    for note in array.notes:
        warnings.warn(note, MetadataWarning, stacklevel=2)
    axes = _axes_of(options, array.ref.shape, array.ref.path, array.axis_names)
    return _array(array.ref, axes, options, _valid_lengths(array.lengths_nm))
