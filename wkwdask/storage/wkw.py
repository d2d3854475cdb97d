"""One mag of a WKW layer as a volume: a folder with ``header.wkw`` and files ``z{Z}/y{Y}/x{X}.wkw``.

The translation between the words of all formats (chunk, shard) and those of WKW (block, file) happens here.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import BoundsError, MissingError
from wkwdask.formats.wkw.header import HEADER_NBYTES, WkwHeader, parse_header
from wkwdask.geometry import morton
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.grid import cell_range
from wkwdask.storage.local import numbered
from wkwdask.storage.wkw_file import PAGE_LEN, open_wkw_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.geometry.mag import Mag, Vec3

HEADER_NAME = "header.wkw"
_Z_FOLDER = re.compile(r"z\d+")


def file_path(folder: str, index: Vec3) -> str:
    """Name a data file by its index along x, y, z [files]."""
    return f"{folder}/z{index[2]}/y{index[1]}/x{index[0]}.wkw"


def read_header(folder: str) -> WkwHeader:
    """Read ``header.wkw`` of a mag.

    Parameters
    ----------
    folder : str
        The mag's folder.

    Returns
    -------
    WkwHeader

    Raises
    ------
    MissingError
        There is none.
    FormatError
        It is broken.
    """
    path = f"{folder}/{HEADER_NAME}"
    try:
        with open(path, "rb") as file:
            raw = file.read(HEADER_NBYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingError(f"{path}: not found: no WKW mag here") from None
    return parse_header(raw, path, is_data_file=False)


def list_files(folder: str) -> Iterator[Vec3]:
    """Go through the data files of a mag, in no order.

    Yields
    ------
    tuple of 3 int
        Index of a file along x, y, z [files].
    """
    for z, z_folder in numbered(folder, "z"):
        for y, y_folder in numbered(z_folder, "y"):
            for x, _ in numbered(y_folder, "x", ".wkw"):
                yield x, y, z


def is_mag(folder: str) -> bool:
    """Tell whether a folder is a mag and nothing else, so that it can be replaced: a header, folders of files, hidden records."""
    with os.scandir(folder) as entries:
        names = {entry.name: entry.is_dir() for entry in entries}
    others = [name for name, is_folder in names.items() if name != HEADER_NAME and not name.startswith(".") and not (is_folder and _Z_FOLDER.fullmatch(name))]
    return names.get(HEADER_NAME) is False and not others


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
        """Open a mag.

        Parameters
        ----------
        folder : str
            The mag's folder.
        box : BoundingBox, optional
            Where it has data, in any mag; by default the extent of its files.
        mag : Mag
            The mag.

        Returns
        -------
        WkwVolume

        Raises
        ------
        MissingError
            There is no ``header.wkw``.
        FormatError
            ``header.wkw`` is broken.
        """
        header = read_header(folder)
        status = os.stat(f"{folder}/{HEADER_NAME}")
        extent = box.in_mag(mag) if box is not None else files_box(folder, header, mag)
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

    def shard_exists(self, index: Vec3) -> bool:
        """Tell whether a file is stored."""
        return os.path.exists(file_path(self.folder, index))

    def shards(self) -> Iterator[Vec3]:
        """List the stored files that the box touches, in no order."""
        ranges = cell_range(self.box, self.shard_shape)
        return (index for index in list_files(self.folder) if all(i in r for i, r in zip(index, ranges, strict=True)))

    def has_shards(self) -> bool:
        """Tell whether any file of the box is stored, without listing a folder."""
        x_range, y_range, z_range = cell_range(self.box, self.shard_shape)
        return any(
            self.shard_exists((x, y, z))
            for z in z_range
            if os.path.isdir(f"{self.folder}/z{z}")
            for y in y_range
            if os.path.isdir(f"{self.folder}/z{z}/y{y}")
            for x in x_range
        )

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0) -> int:
        """Fill an array with voxels.

        Parameters
        ----------
        out : ndarray, shape (c, x, y, z)
            What to fill, of the volume's type, any memory order with positive strides.
        topleft : tuple of 3 int
            Absolute voxel of the mag that goes to voxel 0 of the array.
        first_channel : int
            Stored channel that goes to channel 0 of the array.

        Returns
        -------
        int
            Number of stored blocks that are not all-zero.

        Raises
        ------
        FormatError
            A file is broken; the message names file, block and byte offset.
        """
        if not out.size:
            return 0
        edge = self.header.file_len_vx
        _, width, height, depth = out.shape
        x, y, z = topleft
        return sum(
            self._read_file_into(out, topleft, (file_x, file_y, file_z), first_channel)
            for file_z in range(z // edge, -(-(z + depth) // edge))
            for file_y in range(y // edge, -(-(y + height) // edge))
            for file_x in range(x // edge, -(-(x + width) // edge))
        )

    def _read_file_into(self, out: npt.NDArray[Any], topleft: Vec3, index: Vec3, first_channel: int) -> int:
        """Fill the part of the array that lies in one file."""
        header, edge = self.header, self.header.file_len_vx
        file = open_wkw_file(file_path(self.folder, index), header, f"{self.folder}/{HEADER_NAME}")
        if file is None:
            inside = (slice(max(0, i * edge - t), (i + 1) * edge - t) for i, t in zip(index, topleft, strict=True))
            out[(slice(None), *inside)] = 0
            return 0
        step = header.block_len
        page_len = min(header.file_len, PAGE_LEN)
        page_edge = page_len * step
        corner = (index[0] * edge - topleft[0], index[1] * edge - topleft[1], index[2] * edge - topleft[2])
        x_pages, y_pages, z_pages = (range(max(0, -at) // page_edge, -(-min(edge, n - at) // page_edge)) for at, n in zip(corner, out.shape[1:], strict=True))
        nonzero = 0
        for z, y, x in product(z_pages, y_pages, x_pages):
            # Corner of the page's cube as seen from the array, and the blocks of the cube that the array covers.
            origin = (corner[0] + x * page_edge, corner[1] + y * page_edge, corner[2] + z * page_edge)
            low = (max(0, -origin[0]) // step, max(0, -origin[1]) // step, max(0, -origin[2]) // step)
            high = (
                min(page_len, -(-(out.shape[1] - origin[0]) // step)),
                min(page_len, -(-(out.shape[2] - origin[1]) // step)),
                min(page_len, -(-(out.shape[3] - origin[2]) // step)),
            )
            nonzero += file.read_into(out, first_channel, _page_number(x, y, z), low, high, origin)
        return nonzero

    def sample(self, points: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Read the values at points, each block once.

        Parameters
        ----------
        points : ndarray of int64, shape (n, 3)
            Absolute voxels of the mag along x, y, z, inside the box.

        Returns
        -------
        ndarray, shape (n, c)

        Raises
        ------
        BoundsError
            A point lies outside the box.
        FormatError
            A file is broken.
        """
        outside = np.flatnonzero((points < self.box.topleft).any(axis=1) | (points >= self.box.bottomright).any(axis=1))
        if outside.size:
            raise BoundsError(f"{self.folder}: point {points[outside[0]].tolist()} lies outside the box {self.box}")
        values = np.zeros((len(points), self.num_channels), self.dtype)
        step = self.header.block_len
        block_of, place = np.unique(points // step, axis=0, return_inverse=True)
        by_block = np.argsort(place.reshape(-1), kind="stable")
        cuts = np.searchsorted(place.reshape(-1)[by_block], np.arange(len(block_of) + 1))
        block = np.empty((self.num_channels, step, step, step), self.dtype, order="F")
        for n, corner in enumerate((block_of * step).tolist()):
            members = by_block[cuts[n] : cuts[n + 1]]
            self.read_into(block, _vec3(corner))
            x, y, z = (points[members] - corner).T
            values[members] = block[:, x, y, z].T
        return values


@lru_cache(maxsize=1024)
def _page_number(x: int, y: int, z: int) -> int:
    """Number the page of a jump table by the place of its cube of blocks in the file [cubes]."""
    return int(morton.encode([(x, y, z)])[0])


def files_box(folder: str, header: WkwHeader, mag: Mag) -> BoundingBox:
    """Find the extent of the files of a mag.

    Parameters
    ----------
    folder : str
        The mag's folder; all its subfolders are listed.
    header : WkwHeader
        What its ``header.wkw`` says.
    mag : Mag
        The mag.

    Returns
    -------
    BoundingBox
        The smallest box of whole files around all of them, empty where there are none.
    """
    low, high = [0, 0, 0], [0, 0, 0]
    for n, index in enumerate(list_files(folder)):
        low = [min(a, i) for a, i in zip(low, index, strict=True)] if n else list(index)
        high = [max(b, i + 1) for b, i in zip(high, index, strict=True)]
    edge = header.file_len_vx
    return BoundingBox.from_corners([a * edge for a in low], [b * edge for b in high], mag)


def _vec3(values: list[int]) -> Vec3:
    return values[0], values[1], values[2]
