"""Single images in files: PNG and JPEG by Pillow, pages of TIFF files by tifffile. What is one slice, and its pixels.

Pixels are given as they are stored: indices where an image has a palette, 0 and 1 where it has one bit.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, MissingError, UnsupportedError
from wkwdask.storage.extras import need

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

TIFF_SUFFIXES = (".tif", ".tiff")
IMAGE_SUFFIXES = (*TIFF_SUFFIXES, ".png", ".jpg", ".jpeg")

# Pillow's modes that hold values; 16-bit files in color are read by imagecodecs, since Pillow halves their bits.
_MODES = {"1": ("uint8", 1), "L": ("uint8", 1), "P": ("uint8", 1), "LA": ("uint8", 2), "RGB": ("uint8", 3), "RGBA": ("uint8", 4), "I;16": ("uint16", 1)}
_PNG_HEAD_NBYTES = 26
_PNG_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}


@dataclass(frozen=True, slots=True)
class Page:
    """One image in a file."""

    path: str
    """The file."""
    offset: int = 0
    """Where a TIFF file has the directory of the page [bytes]."""
    number: int | None = None
    """Which page of the file it is, None where it has one."""

    @property
    def name(self) -> str:
        """What an error calls it."""
        return self.path if self.number is None else f"{self.path}: page {self.number}"


@dataclass(frozen=True, slots=True)
class Format:
    """What all slices of a stack must have in common."""

    width: int
    """[pixels]"""
    height: int
    """[pixels]"""
    num_channels: int
    """Values per pixel."""
    dtype: str
    """Type of one of them, in native byte order."""

    def __str__(self) -> str:
        channels = "" if self.num_channels == 1 else f" in {self.num_channels} channels"
        return f"{self.width} x {self.height} pixels of {self.dtype}{channels}"


@dataclass(frozen=True, slots=True)
class Slice:
    """One section of a stack: an image, or one for each of its channels."""

    pages: tuple[Page, ...]
    """Where its channels are; none where the section is missing."""
    format: Format | None = None
    """What the headers say, None where they cannot be read."""
    piece: tuple[int, int] = (0, 0)
    """The smallest box that can be decoded along x, y [pixels]."""
    problem: str = ""
    """Why they cannot be read."""

    @property
    def name(self) -> str:
        """What an error calls it."""
        return self.pages[0].name if self.pages else "a section that is missing"


def stored_dtype(dtype: Any) -> np.dtype[Any]:
    """Choose the type that holds all values of a stored one: native byte order, bits become bytes, half floats single ones."""
    native = np.dtype(dtype).newbyteorder("=")
    wider = {"bool": "uint8", "float16": "float32"}.get(native.name)
    return native if wider is None else np.dtype(wider)


def is_tiff(path: str) -> bool:
    """Tell whether a path is that of a TIFF file, by its name."""
    return path.lower().endswith(TIFF_SUFFIXES)


def slices_of(path: str) -> list[Slice]:
    """Read the headers of an image file.

    Parameters
    ----------
    path : str
        A TIFF, PNG or JPEG file.

    Returns
    -------
    list of Slice
        One, or those of a file with several pages. A file that cannot be read is one slice with a problem.

    Raises
    ------
    MissingError
        There is no such file.
    ModuleNotFoundError
        A package is not installed.
    """
    try:
        return _tiff_slices(path) if is_tiff(path) else [_image_slice(path)]
    except FileNotFoundError:
        raise MissingError(f"{path}: not found") from None
    except (MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:
        _raise_if_of_the_system(error)
        return [Slice((Page(path),), problem=_reason(error))]


def read_pixels(slice_: Slice, columns: slice, rows: slice) -> npt.NDArray[Any]:
    """Decode a part of a slice.

    Parameters
    ----------
    slice_ : Slice
        The slice.
    columns, rows : slice
        What is needed along x and y; more may be decoded.

    Returns
    -------
    ndarray, shape (y, x, c)

    Raises
    ------
    CorruptError
        The file cannot be decoded, or is another one than its header said.
    MissingError
        It is gone.
    """
    images = [_read_page(page, columns, rows) for page in slice_.pages]
    return images[0] if len(images) == 1 else np.concatenate(images, axis=2)


def _read_page(page: Page, columns: slice, rows: slice) -> npt.NDArray[Any]:
    try:
        if is_tiff(page.path):
            return _read_tiff_page(page, columns, rows)
        return _read_image(page.path)[rows, columns]
    except FileNotFoundError:
        raise MissingError(f"{page.path}: is gone") from None
    except (MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:
        _raise_if_of_the_system(error)
        raise CorruptError(f"{page.name}: cannot be decoded: {_reason(error)}") from error


def _raise_if_of_the_system(error: Exception) -> None:
    """Tell a disk or system that fails from a file that is broken: the first says nothing about the file."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


# ------------------------------------------------------------------------------------------------ PNG and JPEG


def _open_image(path: str, file: Any) -> Any:
    """Open an image by its name's format; not by ``Image.open``, which takes a large section for an attack."""
    from PIL import JpegImagePlugin, PngImagePlugin

    return PngImagePlugin.PngImageFile(file, path) if path.lower().endswith(".png") else JpegImagePlugin.JpegImageFile(file, path)


def _deep_png(path: str, file: Any) -> tuple[str, int] | None:
    """Tell type and channels of a PNG of 16 bits."""
    if not path.lower().endswith(".png"):
        return None
    head = file.read(_PNG_HEAD_NBYTES)
    file.seek(0)
    is_deep = len(head) == _PNG_HEAD_NBYTES and head[24] == 16 and head[25] in _PNG_CHANNELS
    return ("uint16", _PNG_CHANNELS[head[25]]) if is_deep else None


def _image_slice(path: str) -> Slice:
    with open(path, "rb") as file:
        deep = _deep_png(path, file)
        image = _open_image(path, file)
        known = deep or _MODES.get(image.mode)
        if known is None:
            raise UnsupportedError(f"pixels of the kind {image.mode}")
        dtype, channels = known
        return Slice((Page(path),), Format(image.width, image.height, channels, dtype), (image.width, image.height))


def _read_image(path: str) -> npt.NDArray[Any]:
    with open(path, "rb") as file:
        deep = _deep_png(path, file)
        if deep is not None and deep[1] > 1:
            array: npt.NDArray[Any] = need("imagecodecs", path).png_decode(file.read())
        else:
            image = _open_image(path, file)
            array = np.asarray(image)
            array = array.astype("uint16" if deep else stored_dtype(array.dtype), copy=False)
    return array[:, :, np.newaxis] if array.ndim == 2 else array


# ------------------------------------------------------------------------------------------------ TIFF


def open_tiff(path: str) -> Any:
    """Open a TIFF file.

    Returns
    -------
    tifffile.TiffFile
    """
    return need("tifffile", path).TiffFile(path)


def _tiff_slices(path: str) -> list[Slice]:
    with open_tiff(path) as tiff:
        if tiff.is_ome or tiff.is_imagej or tiff.is_shaped:
            return series_slices(tiff.series[0], path, None)
        pages = [page for page in tiff.pages if not page.is_reduced]
        return [_page_slice(((page, _number(n, len(pages))),), path) for n, page in enumerate(pages)]


def _number(n: int, count: int) -> int | None:
    return n if count > 1 else None


def series_axes(series: Any, path: str, axes: str | None) -> str:
    """Name the axes of a TIFF series by c, z, y, x, and ``-`` for those of length 1 that mean nothing here.

    Parameters
    ----------
    series : tifffile.TiffPageSeries
        The series.
    path : str
        The file, for errors.
    axes : str, optional
        What a user says; by default what the file says.

    Raises
    ------
    ValueError
        The axes do not fit.
    """
    if axes is not None:
        if len(axes) != len(series.shape):
            raise ValueError(f"{path}: axes {axes!r} for an array of shape {series.shape}, whose axes are {series.axes}")
        return axes
    letters = ""
    for letter, length in zip(series.axes.lower(), series.shape, strict=True):
        known = {"s": "c", "i": "z", "q": "z"}.get(letter, letter)
        letters += known if known in "xyzc" and known not in letters else "-" if length == 1 else letter
    unknown = [letter for letter in letters if letter not in "xyzc-"]
    if unknown:
        raise ValueError(f"{path}: axes {series.axes} of shape {series.shape}: say with axes= which of them are c, z, y and x")
    return letters


def series_slices(series: Any, path: str, axes: str | None) -> list[Slice]:
    """List the slices of a series of pages, by its axes.

    Parameters
    ----------
    series : tifffile.TiffPageSeries
        The series.
    path : str
        The file, for errors.
    axes : str, optional
        What a user says; by default what the file says.

    Returns
    -------
    list of Slice

    Raises
    ------
    UnsupportedError
        The pages are no sections.
    """
    letters = series_axes(series, path, axes)
    pages = list(series.pages)
    inner = pages[0].ndim if pages and pages[0] is not None else 2
    outer = letters[: len(letters) - inner]
    shape = series.shape[: len(outer)]
    if "y" in outer or "x" in outer or math.prod(shape) != len(pages):
        raise UnsupportedError(f"{path}: {len(pages)} pages with the axes {letters} of the whole {series.shape}: the pages are no sections")
    table = np.arange(len(pages)).reshape(shape)
    order = [outer.index(letter) for letter in "zc" if letter in outer]
    rest = [n for n in range(len(outer)) if n not in order]
    table = table.transpose(*order, *rest)
    table = table.reshape(table.shape[0] if "z" in outer else 1, -1)
    return [_page_slice(tuple((pages[n], _number(n, len(pages))) for n in row), path) for row in table.tolist()]


def _page_slice(pages: tuple[tuple[Any, int | None], ...], path: str) -> Slice:
    """Describe a slice by its pages."""
    if any(page is None for page, _ in pages):
        return Slice((Page(path, 0, next(number for page, number in pages if page is None)),), problem="the page is missing in the file")
    found = tuple(Page(page.parent.filehandle.path, page.offset, number) for page, number in pages)
    frame = pages[0][0].keyframe
    _, depth, height, width, _ = frame.shaped
    if depth != 1 or frame.dtype is None:
        return Slice(found, problem=f"a page of depth {depth}" if depth != 1 else "values of a type that is not known")
    channels = sum(page.keyframe.shaped[0] * page.keyframe.shaped[4] for page, _ in pages)
    piece = (frame.tilewidth, frame.tilelength) if frame.is_tiled else (width, min(height, frame.rowsperstrip or height))
    return Slice(found, Format(width, height, channels, stored_dtype(frame.dtype).name), piece)


def _read_tiff_page(page: Page, columns: slice, rows: slice) -> npt.NDArray[Any]:
    """Decode the strips or tiles of a page that a part of it touches."""
    tifffile = need("tifffile", page.path)
    with open_tiff(page.path) as tiff:
        file = tiff.filehandle
        file.seek(page.offset or tiff.pages[0].offset)
        frame = tifffile.TiffPage(tiff, 0)
        separate, _, height, width, samples = frame.shaped
        columns, rows = (slice(*part.indices(length)[:2]) for part, length in ((columns, width), (rows, height)))
        out = np.zeros((separate, rows.stop - rows.start, columns.stop - columns.start, samples), stored_dtype(frame.dtype))
        for index in _segments(frame, columns, rows):
            nbytes = frame.databytecounts[index] if index < len(frame.databytecounts) else 0
            if not nbytes:
                continue  # a sparse file leaves out what is zero
            file.seek(frame.dataoffsets[index])
            data = file.read(nbytes)
            if len(data) < nbytes:
                raise CorruptError(
                    f"ends in the data of segment {index}, at byte {frame.dataoffsets[index] + len(data)} of {frame.dataoffsets[index] + nbytes}"
                )
            segment, (s, _, y, x, _), (_, h, w, _) = frame.decode(data, index, jpegtables=frame.jpegtables)
            top, left = max(y, rows.start), max(x, columns.start)
            bottom, right = min(y + h, rows.stop), min(x + w, columns.stop)
            if segment is not None:
                out[s, top - rows.start : bottom - rows.start, left - columns.start : right - columns.start] = segment[
                    0, top - y : bottom - y, left - x : right - x
                ]
    return out[0] if separate == 1 else out.transpose(1, 2, 0, 3).reshape(*out.shape[1:3], -1)


def _segments(frame: Any, columns: slice, rows: slice) -> Iterator[int]:
    """Number the strips or tiles that a part of a page touches."""
    separate, _, height, width, _ = frame.shaped
    tile_width, tile_height = (frame.tilewidth, frame.tilelength) if frame.is_tiled else (width, min(height, frame.rowsperstrip or height))
    across, down = -(-width // tile_width), -(-height // tile_height)
    for s in range(separate):
        for y in range(rows.start // tile_height, -(-rows.stop // tile_height)):
            for x in range(columns.start // tile_width, -(-columns.stop // tile_width)):
                yield (s * down + y) * across + x


def file_stamp(path: str) -> tuple[int, int]:
    """Give size and time of modification of a file, zeros where it is gone."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return 0, 0
    return status.st_size, status.st_mtime_ns
