"""One mag of a WKW layer as a stored array, for reading and for writing.

WKW does not record the size of a mag: its grid of files is practically unbounded, and the bounding
box says which voxels belong to the layer.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from wkwdask.errors import FormatError, MissingError, ReplacedError, UnsupportedError
from wkwdask.formats.marks import HEADER_NAME
from wkwdask.formats.wkw.folder import Listing, list_files, list_mag, mag_extent, read_header
from wkwdask.formats.wkw.header import WkwHeader, format_header
from wkwdask.formats.wkw.layout import WkwCodec, WkwFiles, header_of
from wkwdask.formats.wkw.options import DEFAULT_LEVEL
from wkwdask.formats.wkw.remote import open_in
from wkwdask.formats.wkw.splice import WkwSplicer
from wkwdask.formats.wkw.stored_file import missing_mag
from wkwdask.geometry import morton
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.grid import cell_box
from wkwdask.model.chunk_grid import ChunkGrid
from wkwdask.model.naming import GridNaming
from wkwdask.model.placement import job_in
from wkwdask.model.stored_array import StoredArray, with_listing
from wkwdask.model.writing.target_array import TargetArray
from wkwdask.store.paths import basename, is_bucket, is_remote
from wkwdask.store.records import PROVENANCE_NAME
from wkwdask.store.store import FolderStore, open_store, store_at, with_witness

if TYPE_CHECKING:
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.store import Store

_END = 1 << 53  # size of the grid along an axis [voxels], the largest coordinate of a bounding box
_NAMES = GridNaming("zyx", "", "/", is_lettered=True, suffix=".wkw")


@dataclass(frozen=True, slots=True)
class MagIdentity:
    """Identity of an opened mag: its ``header.wkw``."""

    store: Store
    header: WkwHeader
    state: tuple[int, int] = (0, 0)
    """Inode and modification time [ns] of ``header.wkw`` when it was read; zeros skip the
    comparison, for a mag that is being written."""

    @property
    def token(self) -> tuple[Any, ...]:
        return "wkw", self.header, self.state

    def content(self, box: BoundingBox) -> tuple[Any, ...] | None:
        """Return header and time; None for a remote mag, whose time is unknown."""
        return (self.header, box, self.state[1]) if self.store.can.states else None

    def at(self, store: Store) -> Self:
        return replace(self, store=store)

    def check(self, *, has_absent: bool) -> None:
        """Raise ReplacedError or MissingError if the mag was replaced or is missing: then an absent
        file does not mean zeros."""
        if has_absent and self.store.can.compares and not self._is_in_place():
            raise ReplacedError(
                f"{self.store.url}: was replaced since it was opened; open it again"
            )
        if (
            has_absent
            and self.store.can.states
            and self._mtime_ns() != self.state[1]
            and self.state[1]
        ):
            raise ReplacedError(
                f"{self.store.url}: was replaced since it was opened; open it again"
            )

    def _is_in_place(self) -> bool:
        """Ask the server whether a mag in a bucket is still there."""
        name = PROVENANCE_NAME if job_in(basename(self.store.url)) else HEADER_NAME
        return self.store.written_at(name) is not None

    def _mtime_ns(self) -> int:
        try:
            return self.store.status(HEADER_NAME).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            raise missing_mag(self.store.path_of(HEADER_NAME)) from None

    @property
    def document(self) -> tuple[Store, str]:
        return self.store, HEADER_NAME

    @property
    def record(self) -> None:
        """None, because a mag has no record of its state; the states of its files are compared."""


def open_mag(folder: str, box: BoundingBox | None = None, mag: Mag = MAG_1) -> StoredArray:
    """Open a mag with a bounding box, by default that of its record or the extent of its files."""
    header = read_header(folder)
    extent = box.in_mag(mag) if box is not None else mag_extent(folder, header, mag)
    array = wkw_array(folder, header, extent)
    if is_remote(folder):
        return array
    try:
        status = array.store.status(HEADER_NAME)
    except (FileNotFoundError, NotADirectoryError):  # removed after it was read
        raise missing_mag(array.store.path_of(HEADER_NAME)) from None
    return replace(
        array, identity=MagIdentity(array.store, header, (status.st_ino, status.st_mtime_ns))
    )


def wkw_array(
    folder: str, header: WkwHeader, box: BoundingBox, level: int = DEFAULT_LEVEL
) -> StoredArray:
    """Return a mag as a stored array, given its header."""
    block, file = (header.block_len,) * 3, (header.file_len_vx,) * 3
    grid = ChunkGrid(
        (header.num_channels, _END, _END, _END),
        (header.num_channels, *block),
        (header.num_channels, *file),
        file,
    )
    store = (
        with_witness(open_store(folder), HEADER_NAME) if is_remote(folder) else FolderStore(folder)
    )
    dtype = header.dtype.newbyteorder("=")
    return StoredArray(
        store,
        grid,
        _NAMES,
        WkwFiles(header, level),
        WkwCodec(header, level),
        dtype,
        MagIdentity(store, header),
        mag=box.mag,
        crop=box,
    )


def list_remote_mag(folder: str, box: BoundingBox | None) -> tuple[Listing, Store]:
    """List the files of a remote mag, those of its box if the server has no listing; without a
    valid header, those of a bucket alone. Also return a store that knows them."""
    try:
        header = read_header(folder)
        array = with_listing(
            wkw_array(folder, header, mag_extent(folder, header, MAG_1) if box is None else box)
        )
    except (FormatError, MissingError, UnsupportedError):
        with contextlib.suppress(PermissionError):  # of a user who may not list
            if is_bucket(folder):
                return list_mag(folder), open_store(folder)
        return Listing(np.zeros((0, 3), np.int64), ()), open_store(folder)
    shards = np.array([file[1:] for file, _, _ in array.files.listed()], np.int64).reshape(-1, 3)
    return Listing(shards[np.lexsort(shards.T)], ()), array.store


def wkw_target(
    folder: str, header: WkwHeader, level: int, box: BoundingBox, staging_folder: str = ""
) -> TargetArray:
    """Return a mag as the target of a write."""
    array = wkw_array(folder, header, box, level)
    return TargetArray(
        array,
        store_at(staging_folder),
        ((HEADER_NAME, format_header(header)),),
        splicer=WkwSplicer(),
    )


def filled_box(array: StoredArray) -> BoundingBox:
    """Return the box of a mag, extended to all blocks that are not stored as blocks of zeros."""
    header, filled = header_of(array), array.box
    for index in list_files(array.folder):
        corner = [n * header.file_len for n in index]
        cube = cell_box(index, array.shard_shape, array.box)
        file = None if filled.contains(cube) else open_in(array.store, index, header)
        codes = np.empty(0, np.int64) if file is None else file.nonzero_codes(DEFAULT_LEVEL)
        if len(codes):
            blocks = (morton.decode(codes.astype(np.uint64)) + corner) * header.block_len
            filled = filled.union(
                BoundingBox.from_corners(
                    blocks.min(axis=0).tolist(),
                    (blocks.max(axis=0) + header.block_len).tolist(),
                    filled.mag,
                )
            )
    return filled
