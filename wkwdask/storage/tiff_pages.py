"""Pages of TIFF files as slices, by tifffile: only the strips or tiles are decoded that are needed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, UnsupportedError
from wkwdask.formats.extras import need
from wkwdask.storage.slices import Format, Page, Slice, stored_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

TIFF_SUFFIXES = (".tif", ".tiff")
_TOLD = 5  # how many series an error lists


def is_tiff(path: str) -> bool:
    """Tell whether a path is that of a TIFF file, by its name."""
    return path.lower().endswith(TIFF_SUFFIXES)


def open_tiff(path: str) -> Any:
    """Open a TIFF file.

    Returns
    -------
    tifffile.TiffFile
    """
    return need("tifffile", path).TiffFile(path)


def tiff_slices(path: str) -> list[Slice]:
    with open_tiff(path) as tiff:
        # In a set of OME-TIFFs each file describes all of them: in a folder, each gives its own pages.
        described = tiff.series if tiff.is_ome or tiff.is_imagej or tiff.is_shaped else []
        if described and all(page is not None and page.parent is tiff for series in described for page in series.pages):
            return series_slices(series_of(tiff, path), path, None)
        pages = [page for page in tiff.pages if not page.is_reduced]
        return [_page_slice(((page, _number(n, len(pages))),), path) for n, page in enumerate(pages)]


def _number(n: int, count: int) -> int | None:
    return n if count > 1 else None


def series_of(tiff: Any, path: str) -> list[Any]:
    """Give the series whose pages are the sections of a file: the only one, or all that lie behind each other, as where each page was written by itself.

    Parameters
    ----------
    tiff : tifffile.TiffFile
        The file.
    path : str
        Its name, for errors.

    Returns
    -------
    list of tifffile.TiffPageSeries
        All of one shape and type.

    Raises
    ------
    UnsupportedError
        They differ, or are several stacks of an OME-TIFF.
    """
    series = [one for one in tiff.series if not one.keyframe.is_reduced] if len(tiff.series) > 1 else []
    if len(series) < 2:
        return series or list(tiff.series[:1])
    if len({(one.shape, one.axes, one.dtype) for one in series}) > 1 or (tiff.is_ome and len(series[0].pages) > 1):
        told = ", ".join(f"{one.dtype} {one.axes} {one.shape}" for one in series[:_TOLD])
        more = f", and {len(series) - _TOLD} more" if len(series) > _TOLD else ""
        raise UnsupportedError(f"{path}: holds {len(series)} images, expected one, or sections that are all alike: {told}{more}; store each in its own file")
    return series


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


def series_slices(series: Sequence[Any], path: str, axes: str | None) -> list[Slice]:
    """List the slices of series of pages, one behind the other, by their axes.

    Parameters
    ----------
    series : sequence of tifffile.TiffPageSeries
        The series, all of one shape and type.
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
    first = series[0]
    letters = series_axes(first, path, axes)
    pages = [page for one in series for page in one.pages]
    inner = pages[0].ndim if pages and pages[0] is not None else 2
    outer = letters[: len(letters) - inner]
    shape = (len(series), *first.shape[: len(outer)])
    if "y" in outer or "x" in outer or math.prod(shape) != len(pages):
        raise UnsupportedError(f"{path}: {len(pages)} pages with the axes {letters} of the whole {first.shape}: the pages are no sections")
    table = np.arange(len(pages)).reshape(shape)
    order = [0, *(1 + outer.index(letter) for letter in "zc" if letter in outer)]
    rest = [n for n in range(len(shape)) if n not in order]
    depth = len(series) * (shape[1 + outer.index("z")] if "z" in outer else 1)
    table = table.transpose(*order, *rest).reshape(depth, -1)
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
    piece = (width, 1) if _is_plain(frame) else _segment_shape(frame)
    return Slice(found, Format(width, height, channels, stored_dtype(frame.dtype).name), piece)


def read_tiff_page(page: Page, columns: slice, rows: slice) -> npt.NDArray[Any]:
    """Decode the strips or tiles of a page that a part of it touches."""
    tifffile = need("tifffile", page.path)
    with open_tiff(page.path) as tiff:
        file = tiff.filehandle
        file.seek(page.offset or tiff.pages[0].offset)
        frame = tifffile.TiffPage(tiff, 0)
        _, _, height, width, _ = frame.shaped
        columns, rows = (slice(*part.indices(length)[:2]) for part, length in ((columns, width), (rows, height)))
        if _is_plain(frame):
            return _read_rows(file, frame, columns, rows)
        return _read_segments(file, frame, columns, rows)


def _is_plain(frame: Any) -> bool:
    """Tell whether the rows of a page lie in the file one behind the other."""
    return bool(frame.is_memmappable) and frame.shaped[0] == 1


def _read_rows(file: Any, frame: Any, columns: slice, rows: slice) -> npt.NDArray[Any]:
    """Read rows as they lie in the file."""
    _, _, _, width, samples = frame.shaped
    dtype = np.dtype(frame.parent.byteorder + frame.dtype.char)
    row_nbytes = width * samples * dtype.itemsize
    start, nbytes = frame.dataoffsets[0] + rows.start * row_nbytes, (rows.stop - rows.start) * row_nbytes
    file.seek(start)
    data = file.read(nbytes)
    if len(data) < nbytes:
        raise CorruptError(f"ends at byte {start + len(data)}, expected {nbytes - len(data)} more bytes")
    pixels = np.frombuffer(data, dtype).reshape(-1, width, samples)[:, columns]
    return pixels.astype(stored_dtype(dtype), copy=False)


def _read_segments(file: Any, frame: Any, columns: slice, rows: slice) -> npt.NDArray[Any]:
    """Decode strips or tiles."""
    separate, _, _, _, samples = frame.shaped
    out = np.zeros((separate, rows.stop - rows.start, columns.stop - columns.start, samples), stored_dtype(frame.dtype))
    for index in _segments(frame, columns, rows):
        nbytes = frame.databytecounts[index] if index < len(frame.databytecounts) else 0
        if not nbytes:
            continue  # a sparse file leaves out what is zero
        start = frame.dataoffsets[index]
        file.seek(start)
        data = file.read(nbytes)
        if len(data) < nbytes:
            raise CorruptError(f"ends in strip or tile {index}, at byte {start + len(data)}, expected {nbytes - len(data)} more bytes")
        segment, (s, _, y, x, _), (_, h, w, _) = frame.decode(data, index, jpegtables=frame.jpegtables)
        if segment is not None:
            top, bottom, left, right = max(y, rows.start), min(y + h, rows.stop), max(x, columns.start), min(x + w, columns.stop)
            part = segment[0, top - y : bottom - y, left - x : right - x]
            out[s, top - rows.start : bottom - rows.start, left - columns.start : right - columns.start] = part
    return out[0] if separate == 1 else out.transpose(1, 2, 0, 3).reshape(*out.shape[1:3], -1)


def _segment_shape(frame: Any) -> tuple[int, int]:
    """Give width and height of a strip or tile."""
    _, _, height, width, _ = frame.shaped
    return (frame.tilewidth, frame.tilelength) if frame.is_tiled else (width, min(height, frame.rowsperstrip or height))


def _segments(frame: Any, columns: slice, rows: slice) -> Iterator[int]:
    """Number the strips or tiles that a part of a page touches."""
    separate, _, height, width, _ = frame.shaped
    tile_width, tile_height = _segment_shape(frame)
    across, down = -(-width // tile_width), -(-height // tile_height)
    for s in range(separate):
        for y in range(rows.start // tile_height, -(-rows.stop // tile_height)):
            for x in range(columns.start // tile_width, -(-columns.stop // tile_width)):
                yield (s * down + y) * across + x
