"""Pages of TIFF files as slices. tifffile decodes only the strips or tiles that a read touches.

The directories (IFDs) of a file are checked before tifffile follows them, since small damage could
make it work for hours. Directories of an intact file do not overlap, so their total size is less
than that of the file. The total of a loop of directories soon exceeds it.
"""

from __future__ import annotations

import math
import struct
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from wkwdask.errors import CorruptError, FormatError, MissingError, UnsupportedError
from wkwdask.formats.axes import REMEDY
from wkwdask.formats.file_suffixes import TIFF_SUFFIXES
from wkwdask.formats.pictures.array_file import check_axes
from wkwdask.formats.pictures.slices import Page, PixelFormat, Slice, check_plausible
from wkwdask.model.extras import import_extra
from wkwdask.model.parsing import reading
from wkwdask.model.voxel_type import common_dtype
from wkwdask.store.paths import dirname, join, split
from wkwdask.store.store import FolderStore, store_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.array_types import AnyArray
    from wkwdask.model.store import OpenFile

_TYPE_NBYTES = np.zeros(1 << 16, np.uint64)
# TIFF 6.0, section 2, and BigTIFF's 16 to 18
_TYPE_NBYTES[1:19] = [1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 2, 8, 8, 8, 8]
_WIDTH, _HEIGHT, _SUB_IFDS = 256, 257, 330
_LENGTH_TYPES = {3: "H", 4: "I", 16: "Q"}  # SHORT, LONG and LONG8 as codes of struct
_MAX_SHARING = 4  # pages may share tag values: this many uses of each byte are allowed on average
_SLACK_NBYTES = 1 << 16


def smallest_page(path: str) -> int:
    """Return the number of pixels of the smallest page; raise CorruptError if the directories of a
    TIFF file overlap or form a loop."""
    folder, name = split(path)
    file = FolderStore(folder).open(name)
    if file is None:
        raise MissingError(f"{path}: not found")
    with file:
        return _DirectoryWalk(file).smallest()


class _DirectoryWalk:
    """Walk through all directories of a TIFF file, which adds up their sizes and those of their tag
    values."""

    def __init__(self, file: OpenFile) -> None:
        self._file, self._path, self._nbytes = file, file.name, file.nbytes
        self._directories_nbytes = self._values_nbytes = 0
        head = self._read(0, 4, "header")
        order = {b"II": "<", b"MM": ">"}.get(head[:2], "")
        version = struct.unpack(f"{order}H", head[2:])[0] if order else 0
        if version not in (42, 43):
            raise CorruptError(
                f"{file.name}: begins with {head.hex(' ')}, expected II or MM and 42 or 43, as a "
                "TIFF file does"
            )
        width, offset, count = (8, "Q", "Q") if version == 43 else (4, "I", "H")  # BigTIFF, or TIFF
        self._order, self._count, self._offset, self._offset_nbytes = (
            order,
            f"{order}{count}",
            f"{order}{offset}",
            width,
        )
        self._tag = np.dtype(
            [
                ("code", f"{order}u2"),
                ("type", f"{order}u2"),
                ("count", f"{order}u{width}"),
                ("value", f"V{width}"),
            ]
        )

    def smallest(self) -> int:
        """Follow the chain of pages and the SubIFDs of each page."""
        sizes, offset = [], self._offset_at(self._offset_nbytes, "header")
        while offset:
            offset, sub_offsets, num_pixels = self._directory(offset)
            sizes.append(num_pixels)
            while sub_offsets:
                sub_offsets += self._directory(sub_offsets.pop())[1]
        return max(1, min(sizes, default=1))

    def _read(self, offset: int, nbytes: int, what: str) -> bytes:
        data = self._file.read_some(nbytes, offset) if offset + nbytes <= self._nbytes else b""
        if len(data) < nbytes:
            raise CorruptError(
                f"{self._path}: the {what} at byte {offset} takes {nbytes} bytes, and the file has "
                f"{self._nbytes}"
            )
        return data

    def _offset_at(self, offset: int, what: str) -> int:
        value: int = struct.unpack(self._offset, self._read(offset, self._offset_nbytes, what))[0]
        return value

    def _directory(self, offset: int) -> tuple[int, list[int], int]:
        """Check one directory, and return the offset of the next one, the offsets of its SubIFDs,
        and its number of pixels."""
        start = offset + struct.calcsize(self._count)
        (num_tags,) = struct.unpack(self._count, self._read(offset, start - offset, "directory"))
        tags = np.frombuffer(
            self._read(start, num_tags * self._tag.itemsize, f"directory of {num_tags} tags"),
            self._tag,
        )
        self._directories_nbytes += start - offset + tags.nbytes
        if self._directories_nbytes > self._nbytes:
            raise CorruptError(
                f"{self._path}: the directories of its pages overlap or form a loop, at byte "
                f"{offset}"
            )
        with np.errstate(over="ignore"):
            nbytes = tags["count"].astype(np.uint64) * _TYPE_NBYTES[tags["type"]]
        # tifffile does not read values beyond the file
        inside = nbytes[(nbytes <= self._nbytes) & (tags["count"] <= self._nbytes)]
        self._values_nbytes += int(inside.sum())
        if self._values_nbytes > _MAX_SHARING * self._nbytes + _SLACK_NBYTES:
            raise CorruptError(
                f"{self._path}: tags claim {self._values_nbytes} bytes up to the directory at byte "
                f"{offset}, and the file has {self._nbytes}"
            )
        sub_offsets: list[int] = []
        for tag in tags[tags["code"] == _SUB_IFDS]:
            sub_offsets += self._sub_directories(
                int(tag["count"]), int(_TYPE_NBYTES[tag["type"]]), bytes(tag["value"])
            )
        num_pixels = self._length(tags, _WIDTH) * self._length(tags, _HEIGHT)
        return (
            self._offset_at(start + tags.nbytes, "offset of the next directory"),
            sub_offsets,
            num_pixels,
        )

    def _length(self, tags: npt.NDArray[np.void], code: int) -> int:
        """Return a width or height, 0 if the tag is missing or has another type."""
        for tag in tags[tags["code"] == code][:1]:
            kind = _LENGTH_TYPES.get(int(tag["type"]))
            return (
                0
                if kind is None
                else int(
                    struct.unpack_from(self._order + kind, bytes(tag["value"]).ljust(8, b"\0"))[0]
                )
            )
        return 0

    def _sub_directories(self, count: int, item_nbytes: int, value: bytes) -> list[int]:
        """Return the offsets of SubIFDs within the file; tifffile handles the others."""
        nbytes = count * item_nbytes
        if item_nbytes not in (4, 8) or nbytes > self._nbytes:
            return []
        at = struct.unpack(self._offset, value)[0]
        # values that fit into the tag lie there, longer ones at the offset that it holds (TIFF 6.0,
        # section 2, "Value/Offset")
        data = (
            value[:nbytes]
            if nbytes <= len(value)
            else self._read(at, nbytes, "list of directories")
            if at + nbytes <= self._nbytes
            else b""
        )
        offsets: list[int] = np.frombuffer(data, f"{self._order}u{item_nbytes}").tolist()
        return [offset for offset in offsets if 8 <= offset < self._nbytes]


_MAX_LISTED = 5  # series in an error message
_BYTE_COUNTS = (279, 325, 514)  # StripByteCounts, TileByteCounts, JPEGInterchangeFormatLength
_FAX_COMPRESSIONS = (2, 3, 4)  # tifffile estimates their byte counts
_MAX_PLANES = 1 << 20


def is_tiff(path: str) -> bool:
    return path.lower().endswith(TIFF_SUFFIXES)


def open_tiff(path: str) -> Any:
    return import_extra("tifffile", path).TiffFile(path)


def open_checked_tiff(path: str) -> Any:
    """Open a TIFF file whose pages can then be listed in bounded time."""
    smallest = smallest_page(path)
    with reading(path, "TIFF file"):
        tiff = open_tiff(path)
    try:
        with reading(path, "OME-TIFF"):
            if tiff.is_ome:
                _check_ome(tiff.ome_metadata, path, smallest)
    except BaseException:
        tiff.close()
        raise
    return tiff


def _check_ome(text: str, path: str, smallest: int) -> None:
    """Raise an error if an OME description claims too many planes for a list, or names files in
    other folders."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return  # tifffile ignores it, too
    real = store_at(path).real()
    folder, seen = dirname(real), {real}
    claimed = 0.0
    for element in root.iter():
        kind, values = element.tag.rpartition("}")[2], element.attrib
        if kind == "UUID" and "FileName" in values:
            other = store_at(join(dirname(path), values["FileName"])).real()
            if dirname(other) != folder:
                raise UnsupportedError(
                    f"{path}: names {other} as one of its files, which lies outside of its folder; "
                    "put all files of the set into one folder"
                )
            if other not in seen and store_at(other).is_file():
                smallest = min(smallest, smallest_page(other))
            seen.add(other)
        elif kind == "Pixels":
            claimed += (
                math.prod(int(values[f"Size{axis}"]) for axis in values["DimensionOrder"])
                / smallest
            )
        elif kind == "TiffData":
            claimed += int(values.get("PlaneCount", values.get("NumPlanes", 0)))
        elif kind.startswith("ModuloAlong") and "Start" in values:
            claimed += abs(
                (float(values["End"]) - float(values["Start"])) / float(values.get("Step", 1))
            )
    if not claimed <= _MAX_PLANES:  # also true for NaN
        raise CorruptError(
            f"{path}: its OME description claims {claimed:.0f} planes, expected at most "
            f"{_MAX_PLANES}"
        )


def tiff_slices(path: str, axes: str | None = None) -> list[Slice]:
    """Return the slices of one file of a stack; ``axes`` are those of the file, or of the stack
    with the files along z."""
    with open_checked_tiff(path) as tiff:
        described = (
            tiff.series
            if axes is not None or tiff.is_ome or tiff.is_imagej or tiff.is_shaped
            else []
        )
        if described and all(
            page is not None and page.parent is tiff
            for series in described
            for page in series.pages
        ):
            found = series_of(tiff, path)
            if axes is not None:
                axes = check_axes(
                    axes[1:] if axes[:1] == "z" and len(axes) > len(found[0].shape) else axes,
                    found[0].shape,
                    path,
                )
            return series_slices(found, path, axes)
        # Each file of a set of OME-TIFFs describes the whole set. Without the others, it
        # contributes its own pages.
        for series in described:
            if any(
                length > 1
                for axis, length in zip(series.axes, series.shape, strict=True)
                if axis not in "ZYXS"
            ):
                raise UnsupportedError(
                    f"is one file of a set with axes {series.axes} of shape {series.shape}: name "
                    "one file of the set alone, or all of them"
                )
        pages = [page for page in tiff.pages if not page.keyframe.is_reduced]
        if not pages:
            raise CorruptError("holds no pages")
        return [
            _page_slice((_Plane(page, n if len(pages) > 1 else None),), path)
            for n, page in enumerate(pages)
        ]


def files_of_set(path: str) -> set[str]:
    """Return the files of the set of OME-TIFFs that a TIFF file describes, only the file itself for
    other and for damaged files."""
    try:
        with open_checked_tiff(path) as tiff, reading(path, "OME-TIFF"):
            series = tiff.series if tiff.is_ome else []
            return {
                path,
                *(
                    page.parent.filehandle.path
                    for one in series
                    for page in one.pages
                    if page is not None
                ),
            }
    except (CorruptError, UnsupportedError):
        return {path}


def series_of(tiff: Any, path: str) -> list[Any]:
    """Return the series whose pages are the sections of a file: the only one, or several of equal
    shape, such as pages written one by one."""
    # tifffile falls back to these kinds if the ImageJ description contradicts the pages.
    if tiff.is_imagej and tiff.series and tiff.series[0].kind in ("generic", "uniform"):
        claimed, stored = tiff.imagej_metadata.get("images", 1), len(tiff.pages)
        if claimed > stored:
            raise CorruptError(
                f"{path}: its ImageJ description claims {claimed} sections, which the file cannot "
                f"hold: it has {stored} pages"
            )
    series = (
        [one for one in tiff.series if not one.keyframe.is_reduced] if len(tiff.series) > 1 else []
    )
    if len(series) < 2:
        return series or list(tiff.series[:1])
    if len({(one.shape, one.axes, one.dtype) for one in series}) > 1 or (
        tiff.is_ome and len(series[0].pages) > 1
    ):
        listed = ", ".join(f"{one.dtype} {one.axes} {one.shape}" for one in series[:_MAX_LISTED])
        more = f", and {len(series) - _MAX_LISTED} more" if len(series) > _MAX_LISTED else ""
        raise UnsupportedError(
            f"{path}: holds {len(series)} images, expected one, or sections of equal shape: "
            f"{listed}{more}; store each in its own file"
        )
    return series


def series_axes(series: Any, path: str, axes: str | None) -> str:
    """Return the axes of a TIFF series as letters of c, z, y, x, and ``-`` for axes of length 1
    without meaning."""
    # tifffile's letters are S (samples), I (image sequence) and Q (unknown), besides those of OME.
    if axes is not None:
        if len(axes) != len(series.shape):
            raise ValueError(
                f"{path}: axes {axes!r} for an array of shape {series.shape}, whose axes are "
                f"{series.axes}"
            )
        return axes
    letters = ""
    for letter, length in zip(series.axes.lower(), series.shape, strict=True):
        axis = {"s": "c", "i": "z", "q": "z"}.get(letter, letter)
        if length == 1 and letter in "iq" and "x" in letters:
            axis = "-"  # an axis behind the columns is not a depth
        letters += (
            axis if axis in "xyzc" and axis not in letters else "-" if length == 1 else letter
        )
    unknown = [letter for letter in letters if letter not in "xyzc-"]
    if unknown:
        raise FormatError(
            f"{path}: axes {series.axes} of shape {series.shape}: expected c, z, y and x; {REMEDY}"
        )
    return letters


def series_slices(series: Sequence[Any], path: str, axes: str | None) -> list[Slice]:
    """Return the slices of consecutive series: number pages in an array of their outer axes, and
    bring z to the front, then c."""
    # For axes `czyx` of 2 channels and 3 sections:
    #     pages:  c0z0 c0z1 c0z2 c1z0 c1z1 c1z2
    #     slices: (c0z0, c1z0), (c0z1, c1z1), (c0z2, c1z2)
    first = series[0]
    letters = series_axes(first, path, axes)
    size = math.prod(first.keyframe.shape)
    planes = (
        _planes_of_one_page(first, path)
        if len(series) == 1 and is_contiguous(first)
        else [_Plane(page) for one in series for page in one.pages]
    )
    if len(planes) > 1:
        planes = [plane._replace(number=n) for n, plane in enumerate(planes)]
    # The innermost axes that make up one page hold y and x; a page may also hold interleaved
    # channels.
    within = (
        n
        for n in range(2, len(letters) + 1)
        if math.prod(first.shape[-n:]) == size and {"y", "x"} <= set(letters[-n:])
    )
    outer = letters[: len(letters) - next(within, 2)]
    shape = (len(series), *first.shape[: len(outer)])
    if "y" in outer or "x" in outer or math.prod(shape) != len(planes):
        raise UnsupportedError(
            f"{path}: {len(planes)} pages with the axes {letters} of the whole {first.shape}: the "
            "pages are not sections"
        )
    table = np.arange(len(planes)).reshape(shape)
    order = [0, *(1 + outer.index(letter) for letter in "zc" if letter in outer)]
    rest = [n for n in range(len(shape)) if n not in order]
    depth = len(series) * (shape[1 + outer.index("z")] if "z" in outer else 1)
    table = table.transpose(*order, *rest).reshape(depth, -1)
    return [_page_slice(tuple(planes[n] for n in row), path) for row in table.tolist()]


class _Plane(NamedTuple):
    """One image of a series."""

    page: Any
    """Page of tifffile, None if it is missing."""
    number: int | None = None
    """Number of the image in the series, None if it is the only one."""
    data_offset: int | None = None
    """Offset of its pixels [bytes], None if the page states it."""


def is_contiguous(series: Any) -> bool:
    """Return whether a series has one page, followed by the pixels of all sections, as ImageJ and
    tifffile may write it."""
    return (
        len(series.pages) == 1
        and len(series.shape) > series.pages[0].ndim
        and series.dataoffset is not None
    )


def _planes_of_one_page(series: Any, path: str) -> list[_Plane]:
    page = series.pages[0]
    nbytes, size = page.nbytes, page.parent.filehandle.size
    count = math.prod(series.shape) // math.prod(page.shape)
    if series.dataoffset + count * nbytes > size:
        raise CorruptError(
            f"{path}: its sections reach to byte {series.dataoffset + count * nbytes}, and the "
            f"file has {size}"
        )
    return [_Plane(page, data_offset=series.dataoffset + n * nbytes) for n in range(count)]


def _page_slice(planes: tuple[_Plane, ...], path: str) -> Slice:
    if any(plane.page is None for plane in planes):
        return Slice(
            (Page(path, 0, next(plane.number for plane in planes if plane.page is None)),),
            problem="the page is missing in the file",
        )
    pages_in_files = tuple(
        Page(page.parent.filehandle.path, page.offset, number, data_offset)
        for page, number, data_offset in planes
    )
    frame = planes[0].page.keyframe
    _, depth, height, width, _ = frame.shaped
    if depth != 1 or frame.dtype is None:
        return Slice(
            pages_in_files,
            problem=f"a page of depth {depth}" if depth != 1 else "values of an unknown type",
        )
    try:
        _check_segments(frame)
    except CorruptError as error:
        return Slice(pages_in_files, problem=str(error))
    channels = sum(
        plane.page.keyframe.shaped[0] * plane.page.keyframe.shaped[4] for plane in planes
    )
    tile_shape = (width, 1) if _is_plain(frame) else _segment_shape(frame)
    return Slice(
        pages_in_files,
        PixelFormat(width, height, channels, common_dtype(frame.dtype).name),
        tile_shape,
    )


def read_tiff_page(page: Page, columns: slice, rows: slice) -> AnyArray:
    """Read a part of a page, shape (y, x, c), by decoding only the strips or tiles that it
    touches."""
    tifffile = import_extra("tifffile", page.path)
    with open_tiff(page.path) as tiff:
        file = tiff.filehandle
        file.seek(page.offset or tiff.pages[0].offset)
        frame = tifffile.TiffPage(tiff, 0)
        _, _, height, width, _ = frame.shaped
        _check_segments(frame)
        columns, rows = (
            slice(*part.indices(length)[:2]) for part, length in ((columns, width), (rows, height))
        )
        if _is_plain(frame):
            return _read_rows(
                file,
                frame,
                columns,
                rows,
                frame.dataoffsets[0] if page.data_offset is None else page.data_offset,
            )
        return _read_segments(file, frame, columns, rows)


def _is_plain(frame: Any) -> bool:
    """Return whether the rows of a page are stored contiguously and uncompressed."""
    is_stored = (
        bool(frame.dataoffsets)
        and frame.dataoffsets[0] > 0
        and sum(frame.databytecounts) >= frame.nbytes
    )
    return is_stored and bool(frame.is_memmappable) and frame.shaped[0] == 1


def _check_segments(frame: Any) -> None:
    """Raise CorruptError unless each strip or tile is stored, or absent as in sparse files, with
    offset 0 and byte count 0."""
    separate, _, height, width, samples = frame.shaped
    tile_width, tile_height = _segment_shape(frame)
    if min(frame.shaped) < 1 or min(tile_width, tile_height) < 1:
        raise CorruptError(
            f"holds {width} x {height} pixels of {samples} values, in strips or tiles of "
            f"{tile_width} x {tile_height}"
        )
    if _is_plain(frame):
        end = frame.dataoffsets[0] + frame.nbytes
        if end > frame.parent.filehandle.size:
            raise CorruptError(
                f"its rows reach to byte {end}, and the file has {frame.parent.filehandle.size}"
            )
        return
    if frame.compression not in _FAX_COMPRESSIONS and not any(
        tag in frame.tags for tag in _BYTE_COUNTS
    ):
        raise CorruptError("has no byte counts of its strips or tiles (tag 279 or 325)")
    offsets, counts = np.asarray(frame.dataoffsets), np.asarray(frame.databytecounts)
    expected = separate * -(-height // tile_height) * -(-width // tile_width)
    if not len(offsets) == len(counts) == expected:
        raise CorruptError(
            f"has {len(offsets)} offsets and {len(counts)} byte counts, expected {expected} of "
            "each, one for each strip or tile"
        )
    half_absent = np.flatnonzero((offsets == 0) != (counts == 0))
    if len(half_absent):
        n = half_absent[0]
        raise CorruptError(
            f"strip or tile {n} has offset {offsets[n]} and {counts[n]} bytes, expected both, or 0 "
            "and 0 for an absent one"
        )
    check_plausible(
        tile_width * tile_height * samples * frame.dtype.itemsize,
        int(counts.min()),
        "a strip or tile",
    )


def _read_rows(file: Any, frame: Any, columns: slice, rows: slice, data_offset: int) -> AnyArray:
    _, _, _, width, samples = frame.shaped
    dtype = np.dtype(frame.parent.byteorder + frame.dtype.char)
    row_nbytes = width * samples * dtype.itemsize
    start, nbytes = data_offset + rows.start * row_nbytes, (rows.stop - rows.start) * row_nbytes
    file.seek(start)
    data = file.read(nbytes)
    if len(data) < nbytes:
        raise CorruptError(
            f"ends at byte {start + len(data)}, expected {nbytes - len(data)} more bytes"
        )
    pixels = np.frombuffer(data, dtype).reshape(-1, width, samples)[:, columns]
    return pixels.astype(common_dtype(dtype), copy=False)


def _read_segments(file: Any, frame: Any, columns: slice, rows: slice) -> AnyArray:
    separate, _, height, width, samples = frame.shaped
    tile_width, tile_height = _segment_shape(frame)
    across, down = -(-width // tile_width), -(-height // tile_height)
    touched = (
        range(rows.start // tile_height, -(-rows.stop // tile_height)),
        range(columns.start // tile_width, -(-columns.stop // tile_width)),
    )
    out = np.zeros(
        (separate, rows.stop - rows.start, columns.stop - columns.start, samples),
        common_dtype(frame.dtype),
    )
    for plane, row, column in product(range(separate), *touched):
        index = (plane * down + row) * across + column
        start, nbytes = frame.dataoffsets[index], frame.databytecounts[index]
        if not nbytes:
            continue  # absent in a sparse file: zeros
        file.seek(start)
        data = file.read(min(nbytes, file.size))  # a damaged count would be allocated
        if len(data) < nbytes:
            raise CorruptError(
                f"ends in strip or tile {index}, at byte {start + len(data)}, expected "
                f"{nbytes - len(data)} more bytes"
            )
        # the segment, its index, and its shape without padding
        segment, (s, _, y, x, _), (_, h, w, _) = frame.decode(
            data, index, jpegtables=frame.jpegtables
        )
        if segment is not None:
            top, bottom, left, right = (
                max(y, rows.start),
                min(y + h, rows.stop),
                max(x, columns.start),
                min(x + w, columns.stop),
            )
            part = segment[0, top - y : bottom - y, left - x : right - x]
            out[
                s,
                top - rows.start : bottom - rows.start,
                left - columns.start : right - columns.start,
            ] = part
    return out[0] if separate == 1 else out.transpose(1, 2, 0, 3).reshape(*out.shape[1:3], -1)


def _segment_shape(frame: Any) -> tuple[int, int]:
    _, _, height, width, _ = frame.shaped
    return (
        (frame.tilewidth, frame.tilelength)
        if frame.is_tiled
        else (width, min(height, frame.rowsperstrip or height))
    )
