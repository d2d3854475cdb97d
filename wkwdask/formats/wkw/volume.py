"""One mag of a WKW layer as a volume: a folder with ``header.wkw`` and files ``z{Z}/y{Y}/x{X}.wkw``.

The translation between the words of all formats (chunk, shard) and those of WKW (block, file) happens here.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import MissingError, ReplacedError
from wkwdask.formats.wkw.header import HEADER_NBYTES, WkwHeader, parse_header
from wkwdask.formats.wkw.small_files import has_small_files, read_small_files
from wkwdask.formats.wkw.stored_file import PAGE_LEN, Reading, check_absence, check_folder, open_if_stored
from wkwdask.formats.zarr.marks import is_view
from wkwdask.geometry import morton
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range
from wkwdask.kernels.blocks.batch import Zeros
from wkwdask.kernels.blocks.layout import cube_table
from wkwdask.plans.cells import SparseCells, cell_map, count_cells
from wkwdask.store import files
from wkwdask.store.files import file_states
from wkwdask.store.provenance import read_box

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.states import States
    from wkwdask.plans.cells import CellMap

HEADER_NAME = "header.wkw"
_MOST_TRIED = 1 << 12
_SAMPLED_FILES = 256
_Z_FOLDER, _Y_FOLDER, _X_FILE = re.compile(r"z\d+"), re.compile(r"y\d+"), re.compile(r"x\d+\.wkw")
# our records and temporary files, the reference library's, the Scala library's, NFS's files that were removed while open, and what desktops strew
_LEFT_BY_SOFTWARE = re.compile(r"\.wkwdask.*|\..*\.wkwdask-tmp|x\d+\.wkw_tmp|x\d+\.wkw\.tmp|\.nfs.*|\.DS_Store|\._.*|Thumbs\.db")


def file_path(folder: str, index: Vec3) -> str:
    """Name a data file by its index along x, y, z [files]."""
    return f"{folder}/z{index[2]}/y{index[1]}/x{index[0]}.wkw"


def read_header(folder: str) -> WkwHeader:
    """Read ``header.wkw`` of a mag."""
    path = f"{folder}/{HEADER_NAME}"
    try:
        with files.open_stream(path) as file:
            raw = file.read(HEADER_NBYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingError(f"{path}: not found: no WKW mag here") from None
    return parse_header(raw, path, is_data_file=False)


def list_files(folder: str) -> Iterator[Vec3]:
    """Go through the data files of a mag, in no order."""
    for z, z_folder in files.numbered(folder, "z"):
        for y, y_folder in files.numbered(z_folder, "y"):
            for x, _ in files.numbered(y_folder, "x", ".wkw"):
                yield x, y, z


def count_files(folder: str, until: float) -> tuple[int, int, bool]:
    """Count the data files of a mag and their bytes, for as long as there is time."""
    count = nbytes = 0
    for index in list_files(folder):
        if time.monotonic() > until:
            return count, nbytes, False
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            nbytes += files.stat(file_path(folder, index)).st_size
            count += 1
    return count, nbytes, True


def _listed(folder: str, prefix: str, wanted: range, suffix: str = "") -> list[tuple[int, str]]:
    """List numbered entries of a folder; that it is a link to nowhere is an error."""
    entries = [(number, path) for number, path in files.numbered(folder, prefix, suffix) if number in wanted]
    if not entries:
        check_folder(folder)
    return entries


def is_mag(folder: str) -> bool:
    """Tell whether a folder is a mag and nothing else, so that it can be replaced: a header, files in their folders, records and left-overs."""
    return files.isfile(f"{folder}/{HEADER_NAME}") and next(_strays(folder), None) is None


def what_else(folder: str) -> str:
    """Name something in a folder that is no part of a mag, for an error; an empty text where there is nothing."""
    stray = next(_strays(folder), None)
    return "" if stray is None else f" ({stray})"


def _strays(folder: str) -> Iterator[str]:
    """Go through what is no part of a mag: neither file nor folder of one, nor what software leaves there."""
    of_view = ("zarr.json",) if is_view(f"{folder}/zarr.json") else ()
    yield from _others(folder, _Z_FOLDER, (HEADER_NAME, *of_view))
    for _, z_folder in _own(folder, "z"):
        yield from _others(z_folder, _Y_FOLDER)
        for _, y_folder in _own(z_folder, "y"):
            yield from _others(y_folder, _X_FILE)


def _own(folder: str, prefix: str) -> Iterator[tuple[int, str]]:
    """List numbered folders, but not links to some: what is behind these stays."""
    return ((number, path) for number, path in files.numbered(folder, prefix) if not files.islink(path))


def _others(folder: str, pattern: re.Pattern[str], names: tuple[str, ...] = ()) -> Iterator[str]:
    try:
        with files.scandir(folder) as entries:
            for entry in entries:
                is_right_kind = entry.is_symlink() or entry.is_dir() is (pattern is not _X_FILE)
                expected = entry.name in names or (pattern.fullmatch(entry.name) is not None and is_right_kind)
                if not expected and not _LEFT_BY_SOFTWARE.fullmatch(entry.name):
                    yield entry.path
    except (FileNotFoundError, NotADirectoryError):
        return


@dataclass(frozen=True, slots=True)
class WkwVolume:
    """One mag of a WKW layer, open for reading. Holds no open file and is small to pickle."""

    folder: str
    """The mag's folder."""
    header: WkwHeader
    """What its ``header.wkw`` says."""
    box: BoundingBox
    """Where the volume has data [voxels of its mag]."""
    state: tuple[int, int] = (0, 0)
    """Inode and time of ``header.wkw`` when it was read, so that a replaced mag is another volume."""

    @classmethod
    def open(cls, folder: str, box: BoundingBox | None = None, mag: Mag = MAG_1) -> WkwVolume:
        """Open a mag."""
        header = read_header(folder)
        status = files.stat(f"{folder}/{HEADER_NAME}")
        extent = box.in_mag(mag) if box is not None else own_box(folder, header, mag)
        return cls(folder, header, extent, (status.st_ino, status.st_mtime_ns))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel, in native byte order."""
        return self.header.dtype.newbyteorder("=")

    @property
    def num_channels(self) -> int:
        """Values per voxel."""
        return self.header.num_channels

    @property
    def origin(self) -> Vec3:
        """Files count from absolute voxel 0."""
        return 0, 0, 0

    @property
    def chunk_shape(self) -> Vec3:
        """A block along x, y, z [voxels]."""
        return (self.header.block_len,) * 3

    @property
    def shard_shape(self) -> Vec3:
        """A file along x, y, z [voxels]."""
        return (self.header.file_len_vx,) * 3

    @property
    def name(self) -> str:
        """The folder."""
        return self.folder

    @property
    def token(self) -> tuple[Any, ...]:
        """Values that change when the mag is replaced."""
        return ("wkw", self.folder, self.header, self.box, self.state)

    @property
    def content_token(self) -> tuple[Any, ...]:
        """Values that change when the mag holds something else, wherever it is."""
        return self.header, self.box, self.state[1]

    @property
    def is_regular(self) -> bool:
        """Files are cubes of powers of two from voxel 0 on."""
        return True

    def is_current(self) -> bool:
        """Tell whether the mag that is there is still the one that was opened."""
        return WkwVolume.open(self.folder, self.box, self.box.mag).content_token == self.content_token

    @property
    def lengths_nm(self) -> None:
        """Nothing in a mag says them."""
        return

    def count_files(self) -> tuple[int, int] | None:
        """Count the files, and estimate their bytes from the sizes of some of them."""
        found = sampled = nbytes = 0
        for index in self.shards():
            found += 1
            if sampled < _SAMPLED_FILES:
                with contextlib.suppress(FileNotFoundError):
                    nbytes += files.stat(self.shard_path(index)).st_size
                    sampled += 1
        return found, nbytes * found // max(1, sampled)

    def shard_exists(self, index: Vec3) -> bool:
        """Tell whether a file is stored."""
        return files.exists(file_path(self.folder, index))

    def shards(self) -> Iterator[Vec3]:
        """List the stored files that the box touches, in no order."""
        x_range = cell_range(self.box, self.shard_shape)[0]
        return ((x, y, z) for y, z, row in self._rows() for x, _ in _listed(row, "x", x_range, ".wkw"))

    def _rows(self) -> Iterator[tuple[int, int, str]]:
        """List the folders of files that the box touches, with their index along y, z."""
        _, y_range, z_range = cell_range(self.box, self.shard_shape)
        return ((y, z, row) for z, slab in _listed(self.folder, "z", z_range) for y, row in _listed(slab, "y", y_range))

    def occupied(self, cell_shape: Vec3) -> CellMap:
        """Tell which cells of a grid have voxels of the box in a stored file, by listing folders."""
        found = cell_map(self.box, cell_shape, self.folder)
        x_range = cell_range(self.box, self.shard_shape)[0]
        for y, z, row in self._rows():
            y_cells, z_cells = self._cells_of(y, 1, cell_shape), self._cells_of(z, 2, cell_shape)
            # Other rows may have marked the same cells: most folders of a dense mag need not be listed.
            if not isinstance(found, SparseCells) and found[:, y_cells, z_cells].all():
                continue
            for x, _ in _listed(row, "x", x_range, ".wkw"):
                found[self._cells_of(x, 0, cell_shape), y_cells, z_cells] = True
        if not found.any():
            check_absence(f"{self.folder}/{HEADER_NAME}")
        return found

    def _cells_of(self, index: int, axis: int, cell_shape: Vec3) -> slice:
        """Give the place, among all cells that the box touches, of those that hold a file's voxels inside the box."""
        low, high = self.box.topleft[axis], self.box.bottomright[axis]
        edge, cell = self.header.file_len_vx, cell_shape[axis]
        first = low // cell
        return slice(max(low, index * edge) // cell - first, -(-min(high, (index + 1) * edge) // cell) - first)

    def shard_states(self, box: BoundingBox) -> States:
        """Look at the stored files that a part of the volume touches."""
        return file_states(self._likely_shards(box.intersection(self.box)), self.shard_path)

    def stored_states(self) -> States:
        """Look at all stored files that the box touches."""
        return file_states(self.shards(), self.shard_path)

    def shard_path(self, index: Vec3) -> str:
        """Name a file."""
        return file_path(self.folder, index)

    def has_shards(self) -> bool:
        """Tell whether any file of the box is stored; no folder is listed where few files are possible."""
        if count_cells(self.box, self.shard_shape) > _MOST_TRIED:
            return next(self.shards(), None) is not None
        return any(self.shard_exists(index) for index in self._likely_shards(self.box))

    def cropped(self, box: BoundingBox) -> WkwVolume:
        """Give a part of the mag."""
        return replace(self, box=box)

    def is_unchanged(self) -> bool:
        """Tell whether ``header.wkw`` is the one that was read; what the JSON says is not looked at."""
        return self.is_current()

    def _likely_shards(self, box: BoundingBox) -> Iterator[Vec3]:
        """Go through the files that a box touches and whose folders are there."""
        x_range, y_range, z_range = cell_range(box, self.shard_shape)
        for z in z_range:
            if files.isdir(f"{self.folder}/z{z}"):
                for y in y_range:
                    if files.isdir(f"{self.folder}/z{z}/y{y}"):
                        yield from ((x, y, z) for x in x_range)

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True) -> int:
        """Fill an array with voxels."""
        if not out.size:
            return 0
        edge = self.header.file_len_vx
        x_files, y_files, z_files = (range(t // edge, -(-(t + n) // edge)) for t, n in zip(topleft, out.shape[1:], strict=True))
        reading = Reading(out, topleft, first_channel, Zeros(out, at_once=fill_zeros))
        header_path = f"{self.folder}/{HEADER_NAME}"
        if has_small_files(self.header) and len(x_files) * len(y_files) * len(z_files) > 1:
            nonzero = read_small_files(header_path, self.header, (x_files, y_files, z_files), reading, self._read_file)
        else:
            nonzero = sum(self._read_file(reading, (x, y, z)) for z in z_files for y in y_files for x in x_files)
        if reading.has_absent:
            check_absence(header_path, reading.absent.values())
            self._check_not_replaced()
        return nonzero

    def _check_not_replaced(self) -> None:
        """Make sure that absent files are zeros, and not files that the mag does not have any more since it was stored in another way."""
        if self.state[1] and files.stat(f"{self.folder}/{HEADER_NAME}").st_mtime_ns != self.state[1]:
            raise ReplacedError(f"{self.folder}: was replaced since it was opened; open it anew")

    def _read_file(self, reading: Reading, index: Vec3) -> int:
        """Fill the part of the array that lies in one file."""
        header, edge = self.header, self.header.file_len_vx
        topleft, shape = reading.topleft, reading.out.shape
        corner = (index[0] * edge - topleft[0], index[1] * edge - topleft[1], index[2] * edge - topleft[2])
        path = file_path(self.folder, index)
        file = open_if_stored(path, header)
        if file is None:
            reading.has_absent = True
            reading.absent[index[1], index[2]] = path
            reading.zeros.add(cube_table(corner), edge)
            return 0
        step = header.block_len
        page_len = min(header.file_len, PAGE_LEN)
        page_edge = page_len * step
        x_pages, y_pages, z_pages = (range(max(0, -at) // page_edge, -(-min(edge, n - at) // page_edge)) for at, n in zip(corner, shape[1:], strict=True))
        nonzero = 0
        for z, y, x in product(z_pages, y_pages, x_pages):
            # Corner of the page's cube as seen from the array, and the blocks of the cube that the array covers.
            origin = (corner[0] + x * page_edge, corner[1] + y * page_edge, corner[2] + z * page_edge)
            low = (max(0, -origin[0]) // step, max(0, -origin[1]) // step, max(0, -origin[2]) // step)
            high = (
                min(page_len, -(-(shape[1] - origin[0]) // step)),
                min(page_len, -(-(shape[2] - origin[1]) // step)),
                min(page_len, -(-(shape[3] - origin[2]) // step)),
            )
            nonzero += file.read_into(reading, _page_number(x, y, z), low, high, origin)
        return nonzero


@lru_cache(maxsize=1024)
def _page_number(x: int, y: int, z: int) -> int:
    """Number the page of a jump table by the place of its cube of blocks in the file [cubes]."""
    return int(morton.encode([(x, y, z)])[0])


def own_box(folder: str, header: WkwHeader, mag: Mag) -> BoundingBox:
    """Find where a mag has data that no dataset lists: the box in its own record, and the extent of files that lie outside of it or have no record."""
    stored, kept = files_box(folder, header, mag), read_box(folder, mag)
    if kept is None:
        return stored
    return kept if kept.aligned((header.file_len_vx,) * 3).contains(stored) else kept.union(stored)


def filled_box(volume: WkwVolume, level: int) -> BoundingBox:
    """Find where a mag has voxels, whatever its box says: the box, and all blocks outside of it that are not stored as a block of zeros."""
    header, filled = volume.header, volume.box
    for index in list_files(volume.folder):
        corner = [n * header.file_len for n in index]
        cube = cell_box(index, volume.shard_shape, volume.box)
        file = None if filled.contains(cube) else open_if_stored(volume.shard_path(index), header)
        codes = np.empty(0, np.int64) if file is None else file.nonzero_codes(level)
        if len(codes):
            blocks = (morton.decode(codes.astype(np.uint64)) + corner) * header.block_len
            filled = filled.union(BoundingBox.from_corners(blocks.min(axis=0).tolist(), (blocks.max(axis=0) + header.block_len).tolist(), filled.mag))
    return filled


def files_box(folder: str, header: WkwHeader, mag: Mag) -> BoundingBox:
    """Find the extent of the files of a mag."""
    low, high = [0, 0, 0], [0, 0, 0]
    for n, index in enumerate(list_files(folder)):
        low = [min(a, i) for a, i in zip(low, index, strict=True)] if n else list(index)
        high = [max(b, i + 1) for b, i in zip(high, index, strict=True)]
    edge = header.file_len_vx
    return BoundingBox.from_corners([a * edge for a in low], [b * edge for b in high], mag)
