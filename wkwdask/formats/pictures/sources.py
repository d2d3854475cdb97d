"""Finding out what a source of another format is: stacks of images, and arrays in files, with what they say about their voxels."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from wkwdask.errors import BoundsError, CorruptError, FormatError, MissingError, UnsupportedError
from wkwdask.formats.opening import open_stored
from wkwdask.formats.pictures.array_file import ArrayRef, ArrayVolume, bytes_ref, check_axes, default_axes, find_item, npy_ref, open_hdf5
from wkwdask.formats.pictures.image_stack import ImageStack
from wkwdask.formats.pictures.images import IMAGE_SUFFIXES, slices_of
from wkwdask.formats.pictures.slices import Slice, file_stamp
from wkwdask.formats.pictures.tiff_pages import TIFF_SUFFIXES, open_checked_tiff, series_axes, series_of, series_slices
from wkwdask.formats.zarr.layer import PREFIX, find_zarr_layers, is_plain_zarr, open_zarr_volume
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.model.extras import import_extra
from wkwdask.model.levels import length_nm
from wkwdask.model.parsing import reading
from wkwdask.model.volume import in_frame
from wkwdask.store import files
from wkwdask.store.paths import basename, dirname, local_path, splitext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume

HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")
MRC_SUFFIXES = (".mrc", ".rec", ".st", ".map", ".mrcs", ".ali", ".preali")
_HEADER_THREADS = 16
_TOLD = 5  # how many bad slices an error lists
_IMOD = slice(152, 160)
_IMOD_STAMP = 1146047817
_MRC_DTYPES = {0: "i1", 1: "i2", 2: "f4", 6: "u2", 12: "f2"}


@dataclass(frozen=True, slots=True)
class PlainSource:
    """A source, opened."""

    volume: ImageStack | ArrayVolume | StoredArray
    voxel_size_nm: Lengths | None = None
    """Edge lengths of a voxel along x, y, z [nm], None where the source does not say."""
    notes: tuple[str, ...] = ()
    """What a user should know."""


@dataclass(frozen=True, slots=True)
class PlainOptions:
    """Where a source goes, and what is done about bad slices."""

    corner: Vec3
    """Absolute voxel that its first one becomes."""
    mag: Mag
    axes: str | None = None
    """Order of the axes, where a user says so."""
    fill: bool = False
    """Whether bad and missing slices become zeros."""
    allow_external: bool = False
    """Whether HDF5 data outside of the folder of the file are read."""


def open_plain(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], placing: PlainOptions) -> PlainSource:
    if not isinstance(source, (str, os.PathLike)):
        return _open_images([local_path(path) for path in source], "images", placing)
    text = os.fspath(source)
    file, colon, key = text.rpartition(":")
    if colon and file.lower().endswith(HDF5_SUFFIXES):  # first, since file.h5://dataset is no URL
        return _open_hdf5(local_path(file), key.strip("/"), placing)
    if not files.exists(local_path(text)) and files.has_magic(text):
        return _open_images(sort_naturally(files.matching(local_path(text))), text, placing)
    path = local_path(text)
    if not files.exists(path):
        raise MissingError(f"{path}: no such file or folder")
    if files.isdir(path):
        return _open_folder(path, placing)
    files.check_regular(path)
    suffix = splitext(path)[1].lower()
    if suffix in TIFF_SUFFIXES:
        return _open_tiff(path, placing)
    if suffix in IMAGE_SUFFIXES:
        return _open_images([path], path, placing)
    if suffix == ".npy":
        return _open_npy(path, placing)
    if suffix in HDF5_SUFFIXES:
        return _open_hdf5(path, "", placing)
    if suffix in MRC_SUFFIXES:
        return _open_mrc(path, placing)
    raise UnsupportedError(f"{path}: not a kind that is read: {', '.join((*IMAGE_SUFFIXES, '.npy', *HDF5_SUFFIXES, '.zarr', *MRC_SUFFIXES))}")


def open_sized(url: str | os.PathLike[str]) -> tuple[Volume, Lengths | None]:
    """Open one volume of any format, whose first voxel is voxel 0 where it has no place, with the edge lengths of a voxel of mag 1 [nm]."""
    if is_plain_zarr(url):
        return _plain(url)
    try:
        image, volume = open_stored(url)
    except MissingError as missing:
        try:
            return _plain(url)
        except (MissingError, UnsupportedError):
            raise missing from None
    return volume, image.voxel_size_nm


def _plain(url: str | os.PathLike[str]) -> tuple[Volume, Lengths | None]:
    foreign = open_plain(url, PlainOptions((0, 0, 0), MAG_1))
    return foreign.volume, foreign.voxel_size_nm


def sort_naturally(paths: Sequence[str]) -> list[str]:
    """Sort names by their numbers, so that ``section_9`` comes before ``section_10``.

    Examples
    --------
    >>> sort_naturally(["s10.png", "s9.png", "s010.png"])
    ['s9.png', 's010.png', 's10.png']
    """
    return sorted(paths, key=lambda path: ([int(part) if part.isdecimal() else part for part in _parts(path)], path))


def _parts(path: str) -> list[str]:
    """Cut a path at its numbers: text and number by turns."""
    return re.split(r"(\d+)", path)


# ------------------------------------------------------------------------------------------------ images


def _open_folder(path: str, placing: PlainOptions) -> PlainSource:
    if any(files.isfile(f"{path}/{name}") for name in ("zarr.json", ".zarray", ".zgroup")):
        return _open_zarr(path, placing)
    above = dirname(path)
    if any(files.isfile(f"{above}/{name}") for name in ("zarr.json", ".zgroup")):
        raise MissingError(f"{path}: no Zarr array or group here")
    names = [name for name in files.listdir(path) if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")]
    kinds = sorted({splitext(name)[1].lower() for name in names})
    if not names:
        raise MissingError(f"{path}: no images here ({', '.join(IMAGE_SUFFIXES)})")
    if len({"tif" if kind in TIFF_SUFFIXES else "jpg" if kind in (".jpg", ".jpeg") else kind for kind in kinds}) > 1:
        raise ValueError(f"{path}: images of several kinds ({', '.join(kinds)}): choose with a pattern, such as {path}/*{kinds[0]}")
    return _open_images([f"{path}/{name}" for name in sort_naturally(names)], path, placing)


def _open_images(paths: list[str], name: str, placing: PlainOptions) -> PlainSource:
    """Open a stack of image files, headers first, many at a time."""
    if not paths:
        raise MissingError(f"{name}: no file matches")
    unknown = [path for path in paths if not path.lower().endswith(IMAGE_SUFFIXES)]
    if unknown:
        raise UnsupportedError(f"{unknown[0]}: no image that is read: {', '.join(IMAGE_SUFFIXES)}")
    with ThreadPoolExecutor(_HEADER_THREADS, thread_name_prefix="wkwdask-headers") as threads:
        of_files = list(threads.map(slices_of, paths))
    missing = missing_numbers(paths) if all(len(slices) == 1 for slices in of_files) else []
    notes = []
    if missing and placing.fill:
        by_number = dict(zip(_section_numbers(paths), of_files, strict=True)) | {number: [Slice(())] for number in missing}
        of_files = [by_number[number] for number in sorted(by_number)]
        notes.append(f"sections that are missing, filled with zeros: {_ranges(missing)}")
    stack = _stack([slice_ for slices in of_files for slice_ in slices], name, placing, notes)
    if missing and not placing.fill:
        raise MissingError(
            f'{name}: sections seem to be missing: {_ranges(missing)}; on_error="fill" leaves zeros for them; '
            "if none is missing, number the files (or links to them) without a gap"
        )
    return stack


def _section_numbers(paths: Sequence[str]) -> list[int]:
    """Give the one number in which names differ, an empty list where there is no such."""
    parts = [_parts(basename(path)) for path in paths]
    if len({len(one) for one in parts}) != 1:
        return []
    varying = [n for n in range(len(parts[0])) if len({one[n] for one in parts}) > 1]
    if len(varying) != 1 or varying[0] % 2 == 0:
        return []
    return [int(one[varying[0]]) for one in parts]


def missing_numbers(paths: Sequence[str]) -> list[int]:
    """Find the gaps in the numbers of sections; numbers that are all a step apart have none.

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
    return sorted(set(range(numbers[0], numbers[-1], step)) - set(numbers)) if (numbers[-1] - numbers[0]) // step < 1000 * len(numbers) else []


def _ranges(numbers: Sequence[int]) -> str:
    """Write down numbers, neighbours as a range."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    text = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(text if len(text) <= 20 else [*text[:20], f"and {len(text) - 20} more"])


def _stack(slices: list[Slice], name: str, placing: PlainOptions, notes: list[str]) -> PlainSource:
    """Make a stack of slices that are all alike; the others are errors, or zeros."""
    formats = Counter(slice_.format for slice_ in slices if slice_.format is not None)
    bad = [slice_ for slice_ in slices if slice_.problem]
    if not formats:
        raise CorruptError(f"{(bad or slices)[0].name}: cannot be read: {(bad or slices)[0].problem}")
    expected = formats.most_common(1)[0][0]
    problems = [
        f"{slice_.name}: {f'cannot be read: {slice_.problem}' if slice_.format is None else f'has {slice_.format}, expected {expected} as most of the others'}"
        for slice_ in slices
        if slice_.pages and slice_.format != expected
    ]
    if problems and not placing.fill:
        more = f"; and {len(problems) - _TOLD} more" if len(problems) > _TOLD else ""
        raise CorruptError("; ".join(problems[:_TOLD]) + more + ' (on_error="fill" puts zeros in their place)')
    notes += [f"filled with zeros: {problem}" for problem in problems]
    good = next(slice_ for slice_ in slices if slice_.format == expected)
    box = BoundingBox(placing.corner, (expected.width, expected.height, len(slices)), placing.mag)
    return PlainSource(ImageStack(name, tuple(slices), expected, placing.corner, box, good.tile_shape), None, tuple(notes))


def _open_tiff(path: str, placing: PlainOptions) -> PlainSource:
    """Open one TIFF file: its pages are sections, or its bytes lie behind each other."""
    with open_checked_tiff(path) as tiff:
        with reading(path, "TIFF file"):
            voxel_size = _tiff_voxel_size(tiff)
            described = tiff.is_ome or tiff.is_imagej or tiff.is_shaped
            series = series_of(tiff, path) if described or placing.axes is not None else []
            first: Any = series[0] if series else None
            is_one_block = len(series) == 1 and len(first.pages) == 1 and len(first.shape) > first.pages[0].ndim
            offset = first.dataoffset if is_one_block else None
        if first is None:
            return replace(_stack(slices_of(path), path, placing, []), voxel_size_nm=voxel_size)
        axes = placing.axes
        if offset is not None:
            letters = check_axes(series_axes(first, path, axes), first.shape, path)
            with reading(path, "TIFF file"):
                ref = bytes_ref(path, first.shape, first.dtype.newbyteorder(tiff.byteorder), offset)
            return _array(ref, letters, placing, voxel_size)
        if axes is not None and len(series) > 1 and len(axes) == len(first.shape) + 1:
            axes = axes.removeprefix("z")  # a user counts the series as an axis
        letters = series_axes(first, path, None if axes is None else check_axes(axes, first.shape, path))
        with reading(path, "TIFF file"):
            slices = series_slices(series, path, letters)
        return replace(_stack(slices, path, placing, []), voxel_size_nm=voxel_size)


def _tiff_voxel_size(tiff: Any) -> Lengths | None:
    if not tiff.is_ome:
        return None
    try:
        pixels = next(element for element in ElementTree.fromstring(tiff.ome_metadata).iter() if element.tag.rpartition("}")[2] == "Pixels")
        lengths = [length_nm(float(pixels.attrib[f"PhysicalSize{axis}"]), pixels.attrib.get(f"PhysicalSize{axis}Unit", "µm")) for axis in "XYZ"]
    except (StopIteration, KeyError, ValueError, ElementTree.ParseError):
        return None
    return _known(lengths)


def _known(lengths: Sequence[float]) -> Lengths | None:
    """Take a voxel size that a file tells where it can be one."""
    if len(lengths) != 3 or not all(math.isfinite(length) and length > 0 for length in lengths):
        return None
    return lengths[0], lengths[1], lengths[2]


# ------------------------------------------------------------------------------------------------ arrays


def _array(ref: ArrayRef, axes: str, placing: PlainOptions, voxel_size: Lengths | None, *notes: str) -> PlainSource:
    if np.dtype(ref.dtype).kind not in "biuf":
        raise UnsupportedError(f"{ref.name}: holds {np.dtype(ref.dtype)}, expected whole or real numbers")
    if 0 in ref.shape:
        raise BoundsError(f"{ref.name}: the source holds no voxels: it is an array of shape {ref.shape}")
    lengths = dict(zip(axes, ref.shape, strict=True))
    size = (lengths["x"], lengths["y"], lengths.get("z", 1))
    return PlainSource(ArrayVolume(ref, axes, placing.corner, BoundingBox(placing.corner, size, placing.mag)), voxel_size, notes)


def _axes_of(placing: PlainOptions, shape: tuple[int, ...], name: str, found: str | None = None) -> str:
    """Take the axes that a user gives, else those that the file tells, else the usual ones."""
    try:
        return check_axes(placing.axes or found or default_axes(shape, name), shape, name)
    except ValueError as error:
        if found and not placing.axes:
            raise CorruptError(str(error)) from None
        raise


def _open_npy(path: str, placing: PlainOptions) -> PlainSource:
    ref, is_reversed = npy_ref(path)
    axes = _axes_of(placing, ref.shape[::-1] if is_reversed else ref.shape, path)
    return _array(ref, axes[::-1] if is_reversed else axes, placing, None)


def _open_hdf5(path: str, key: str, placing: PlainOptions) -> PlainSource:
    """Open a dataset of an HDF5 file; its name may be left out where there is one."""
    with open_hdf5(path) as file:
        h5py, known = import_extra("h5py", path), list[str]()
        with reading(path, "HDF5 file"):
            file.visititems(lambda name, item: known.append(name) if isinstance(item, h5py.Dataset) and item.ndim > 1 else None)
        key = key or (known[0] if len(known) == 1 else "")
        data = find_item(file, key, allow_external=placing.allow_external) if key else None
        if not isinstance(data, h5py.Dataset) or data.ndim < 2:
            names = ", ".join(f"{path}:/{name}" for name in known)
            raise MissingError(
                f"{path}: {f'no dataset {key!r} of two or more axes' if key else 'several datasets, or none'}: name one: {names or 'there is none'}"
            )
        with reading(f"{path}:/{key}", "HDF5 dataset"):
            chunks = tuple(data.chunks or (*(1,) * (data.ndim - 1), data.shape[-1]))
            ref = ArrayRef("hdf5", path, key, tuple(data.shape), data.dtype.str, chunks, 0, file_stamp(path))
            labels = "".join(dim.label.lower() if len(dim.label) == 1 else "?" for dim in data.dims)
            voxel_size = _hdf5_voxel_size(data)
        axes = _axes_of(placing, ref.shape, ref.name, labels if {"x", "y"} <= set(labels) <= set("xyzc") else None)
        return _array(ref, axes, placing, voxel_size)


def _hdf5_voxel_size(data: Any) -> Lengths | None:
    """Read what ilastik and Fiji (micrometers) or CREMI (nanometers) write beside a dataset, both in the order z, y, x."""
    for name, per_unit in (("element_size_um", 1e3), ("resolution", 1.0)):
        value = np.asarray(data.attrs[name], np.float64).ravel() if name in data.attrs else np.zeros(0)
        known = _known([float(length) * per_unit for length in reversed(value)])
        if known is not None:
            return known
    return None


def _open_zarr(path: str, placing: PlainOptions) -> PlainSource:
    """Open a Zarr array, or the finest one of an OME-NGFF image."""
    images = find_zarr_layers(PREFIX + path)
    image, level = images[0], next(iter(images[0].selected))
    if len(images) > 1 or path not in (image.folder, level.folder):
        raise FormatError(f"{path}: a group without multiscales: name an array in it: {', '.join(one.folder for one in images)}")
    lengths = None if level.lengths_nm is None else _known(level.lengths_nm)
    if placing.axes is None and not level.problem and level.key:
        volume = level.open()
        volume = in_frame(volume, volume.origin)
    else:
        volume = open_zarr_volume(level.folder, lambda shape, names: _axes_of(placing, tuple(shape), level.folder, _plain_axes(names)))
    if volume.box.is_empty:
        raise BoundsError(f"{volume.name}: the source holds no voxels: it has {volume.box.size}")
    return PlainSource(replace(volume, mag=placing.mag).moved(placing.corner), lengths)


def _plain_axes(names: Sequence[str] | None) -> str | None:
    """Take the names of axes of an array, where they are those that are known here."""
    return "".join(names).lower() if names and all(name and name.lower() in "xyzc" for name in names) else None


def _open_mrc(path: str, placing: PlainOptions) -> PlainSource:
    mrcfile = import_extra("mrcfile", path)
    with reading(path, "MRC file"), mrcfile.open(path, mode="r", header_only=True, permissive=False) as mrc:
        header = mrc.header
        order = header.nx.dtype.byteorder
        shape = (int(header.nz), int(header.ny), int(header.nx))
        mode, offset = int(header.mode), 1024 + int(header.nsymbt)
        maps = tuple(int(header[name]) for name in ("mapc", "mapr", "maps"))
        size = [length_nm(float(length), "angstrom") for length in mrc.voxel_size.tolist()]
        stamp, flags = np.frombuffer(header.tobytes()[_IMOD], np.dtype("i4").newbyteorder(order)).tolist()
    if mode not in _MRC_DTYPES:
        raise UnsupportedError(f"{path}: mode {mode}, expected one of {', '.join(map(str, _MRC_DTYPES))}")
    if min(shape) <= 0 or offset < 1024:
        raise CorruptError(f"{path}: holds {shape} sections, rows and columns from byte {offset} on")
    stored = "".join("xyz"[n - 1] for n in reversed(maps)) if sorted(maps) == [1, 2, 3] else "zyx"
    dtype = "u1" if mode == 0 and stamp == _IMOD_STAMP and not flags & 1 else _MRC_DTYPES[mode]  # IMOD's bytes have no sign unless it says so
    ref = bytes_ref(path, shape, np.dtype(dtype).newbyteorder(order), offset)
    return _array(ref, _axes_of(placing, shape, path, stored), placing, _known(size))
