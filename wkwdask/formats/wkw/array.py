"""One mag of a WKW layer as a stored array, for reading and for writing.

Files have no end, so that the grid reaches far beyond them: the box says what counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from wkwdask.errors import ReplacedError
from wkwdask.formats.wkw.folder import HEADER_NAME, list_files, mag_extent, read_header
from wkwdask.formats.wkw.header import WkwHeader, format_header
from wkwdask.formats.wkw.layout import WkwCodec, WkwFiles, header_of
from wkwdask.formats.wkw.options import DEFAULT_LEVEL
from wkwdask.formats.wkw.splice import WkwSplicer
from wkwdask.formats.wkw.stored_file import missing_mag, open_if_stored
from wkwdask.geometry import morton
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.grid import cell_box
from wkwdask.model.chunk_grid import ChunkGrid
from wkwdask.model.naming import GridNaming
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.target_array import TargetArray
from wkwdask.store import files
from wkwdask.store.store import FolderStore

if TYPE_CHECKING:
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.store import Store

_END = 1 << 53  # voxels along an axis, as far as a box reaches
_NAMES = GridNaming("zyx", "", "/", is_lettered=True, suffix=".wkw")


@dataclass(frozen=True, slots=True)
class MagIdentity:
    """What shows that a mag is still the one that was opened: its ``header.wkw``."""

    store: Store
    """The mag's folder."""
    header: WkwHeader
    """What it says."""
    state: tuple[int, int] = (0, 0)
    """Its inode and time when it was read; zeros of a mag that is being written, or that is known by other means."""

    @property
    def token(self) -> tuple[Any, ...]:
        """Values that change when the mag is replaced."""
        return "wkw", self.header, self.state

    def content(self, box: BoundingBox) -> tuple[Any, ...]:
        """Values that change when the mag holds something else, wherever it lies."""
        return self.header, box, self.state[1]

    def at(self, store: Store) -> Self:
        """Return the record of the mag in another folder."""
        return replace(self, store=store)

    def check(self, *, has_absent: bool) -> None:
        """Make sure that absent files are zeros, and not out of reach, or gone since the mag was stored in another way."""
        if has_absent and self._mtime_ns() != self.state[1] and self.state[1]:
            raise ReplacedError(f"{self.store.url}: was replaced since it was opened; open it anew")

    def _mtime_ns(self) -> int:
        path = self.store.path_of(HEADER_NAME)
        try:
            return files.stat(path).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            raise missing_mag(path) from None

    def is_unchanged(self) -> bool:
        """Check whether ``header.wkw`` is the one that was read."""
        return read_header(self.store.url) == self.header and self._mtime_ns() == self.state[1]

    @property
    def record(self) -> None:
        """The files themselves are looked at."""


def open_mag(folder: str, box: BoundingBox | None = None, mag: Mag = MAG_1) -> StoredArray:
    """Open a mag."""
    header = read_header(folder)
    status = files.stat(f"{folder}/{HEADER_NAME}")
    extent = box.in_mag(mag) if box is not None else mag_extent(folder, header, mag)
    array = wkw_array(folder, header, extent)
    return replace(array, identity=MagIdentity(array.store, header, (status.st_ino, status.st_mtime_ns)))


def wkw_array(folder: str, header: WkwHeader, box: BoundingBox, level: int = DEFAULT_LEVEL) -> StoredArray:
    """Describe a mag by what its header says, or should."""
    block, file = (header.block_len,) * 3, (header.file_len_vx,) * 3
    grid = ChunkGrid((header.num_channels, _END, _END, _END), (header.num_channels, *block), (header.num_channels, *file), file)
    store, dtype = FolderStore(folder), header.dtype.newbyteorder("=")
    return StoredArray(store, grid, _NAMES, WkwFiles(header, level), WkwCodec(header, level), dtype, MagIdentity(store, header), mag=box.mag, part=box)


def wkw_placement(folder: str, header: WkwHeader, level: int, box: BoundingBox, parts_folder: str = "") -> TargetArray:
    """Describe a mag that is written."""
    array = wkw_array(folder, header, box, level)
    return TargetArray(array, FolderStore(parts_folder), ((HEADER_NAME, format_header(header)),), splicer=WkwSplicer())


def filled_box(array: StoredArray) -> BoundingBox:
    """Find where a mag has voxels, whatever its box says: the box, and all blocks outside of it that are not stored as a block of zeros."""
    header, filled = header_of(array), array.box
    for index in list_files(array.folder):
        corner = [n * header.file_len for n in index]
        cube = cell_box(index, array.shard_shape, array.box)
        file = None if filled.contains(cube) else open_if_stored(array.shard_path(index), header)
        codes = np.empty(0, np.int64) if file is None else file.nonzero_codes(DEFAULT_LEVEL)
        if len(codes):
            blocks = (morton.decode(codes.astype(np.uint64)) + corner) * header.block_len
            filled = filled.union(BoundingBox.from_corners(blocks.min(axis=0).tolist(), (blocks.max(axis=0) + header.block_len).tolist(), filled.mag))
    return filled
