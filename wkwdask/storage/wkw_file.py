"""Reading one WKW data file: header, pages of its jump table, and batches of stored blocks.

Open files and their table pages are kept for a while, within fixed bounds, and belong to one state of the file: a replaced file is opened anew.
"""

from __future__ import annotations

import itertools
import os
import stat
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, MissingError
from wkwdask.formats.wkw.block import MAX_LZ4_RATIO
from wkwdask.formats.wkw.header import HEADER_NBYTES, WkwHeader, parse_header
from wkwdask.formats.wkw.jump_table import parse_jump_table, raw_block_bounds, slice_range
from wkwdask.kernels.blocks import decode_into
from wkwdask.kernels.blocks_layout import CODE, OFFSET, SIZE
from wkwdask.kernels.locate import Located, locate_blocks, read_ranges
from wkwdask.storage.local import pread_into
from wkwdask.storage.lru import Lru

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3

PAGE_LEN = 32
_PAGE_ENTRIES = PAGE_LEN**3  # 256 KiB: the whole table of a file of 32^3 blocks, and an aligned cube of any larger one
_PAGES_PER_FILE = 4
_OPEN_FILES = 64
_BATCH_NBYTES = 8 << 20
_MAX_STORED_NBYTES = (1 << 31) - 1  # what LZ4's functions take
_GAP_NBYTES = 16 << 10  # reading across a smaller gap costs less than another call
_buffers = threading.local()


class WkwFile:
    """One open data file.

    Parameters
    ----------
    path : str
        The file.
    fd : int
        The open file; closed with this object.
    mag_header : WkwHeader
        What ``header.wkw`` says.

    Raises
    ------
    FormatError
        The file's own header is broken or of another mag.
    """

    def __init__(self, path: str, fd: int, mag_header: WkwHeader) -> None:
        self._fd = fd
        self.path = path
        self.nbytes = os.fstat(fd).st_size
        self.mag_header = mag_header
        self.header = parse_header(os.pread(fd, HEADER_NBYTES, 0), path, is_data_file=True)
        mag_header.check_same_mag(self.header, path)
        self._pages: Lru[npt.NDArray[np.int64]] = Lru(_PAGES_PER_FILE)

    def __del__(self) -> None:
        os.close(self._fd)

    def read_into(self, out: npt.NDArray[Any], first_channel: int, page: int, low: Vec3, high: Vec3, origin: Vec3) -> int:
        """Read and decode the blocks of a box that lie in one page of the jump table.

        Parameters
        ----------
        out : ndarray, shape (c, x, y, z)
            What to fill.
        first_channel : int
            Stored channel that goes to channel 0 of the array.
        page : int
            Page of the table: an aligned cube of ``PAGE_LEN`` blocks, or the whole file.
        low, high : tuple of 3 int
            The box inside the cube [blocks], half-open.
        origin : tuple of 3 int
            Lowest voxel of the cube relative to the array.

        Returns
        -------
        int
            Number of blocks that are not all-zero.

        Raises
        ------
        FormatError
            Table, length of the file or a block is broken.
        """
        header = self.header
        found = locate_blocks(self._page(page), low, high, header.block_len, origin, _GAP_NBYTES, _BATCH_NBYTES)
        self._check_sizes(found, page)
        nonzero = 0
        batches = found.batches.tolist()
        for (first, first_range, nbytes), (last, last_range, _) in itertools.pairwise(batches):
            memory = _buffer(nbytes)
            self._read_ranges(found.ranges[first_range:last_range], memory)
            decoded = decode_into(
                memory, found.blocks[first:last], out,
                block_len=header.block_len, num_channels=header.num_channels, first_channel=first_channel, block_type=header.block_type,
            )  # fmt: skip
            if decoded.broken >= 0:
                found_nbytes = "are no LZ4 block" if decoded.broken_nbytes < 0 else f"decode to {decoded.broken_nbytes} bytes"
                where, size = self._where(found, page, first + decoded.broken)
                raise CorruptError(f"{where}: {size} stored bytes {found_nbytes}, expected {header.block_nbytes} decoded bytes")
            nonzero += decoded.nonzero
        return nonzero

    def _read_ranges(self, ranges: npt.NDArray[np.int64], memory: npt.NDArray[np.uint8]) -> None:
        """Read byte ranges; what one fast pass did not fill is read again with care, so that errors are told in full."""
        missed = read_ranges(self._fd, ranges, memory)
        if missed >= 0:
            for offset, place, length in ranges[missed:].tolist():
                pread_into(self._fd, memory[place : place + length], offset, self.path)

    def _where(self, found: Located, page: int, n: int) -> tuple[str, int]:
        """Name a block for an error, with its stored length."""
        row = found.blocks[n]
        return f"{self.path}: block {page * _PAGE_ENTRIES + int(row[CODE])} at byte {int(row[OFFSET])}", int(row[SIZE])

    def _check_sizes(self, found: Located, page: int) -> None:
        """Refuse stored lengths that LZ4 cannot have, before memory is taken on their word."""
        header = self.header
        if not header.is_compressed:
            return
        sizes = found.blocks[:, SIZE]
        if header.block_nbytes > MAX_LZ4_RATIO * int(sizes[found.smallest]):
            where, size = self._where(found, page, found.smallest)
            raise CorruptError(f"{where}: {size} stored bytes cannot decode to {header.block_nbytes} bytes")
        if sizes[found.largest] > _MAX_STORED_NBYTES:
            where, size = self._where(found, page, found.largest)
            raise CorruptError(f"{where}: {size} stored bytes, expected at most {_MAX_STORED_NBYTES}")

    def _page(self, number: int) -> npt.NDArray[np.int64]:
        """Give the block boundaries of one page of the jump table, read and checked once."""
        page = self._pages.get(number)
        if page is None:
            header = self.header
            first = number * _PAGE_ENTRIES
            count = min(_PAGE_ENTRIES, header.blocks_per_file - first)
            if header.is_compressed:
                offset, nbytes = slice_range(first, count)
                page = parse_jump_table(os.pread(self._fd, nbytes, offset), header, first, count, self.nbytes, self.path)
            else:
                page = raw_block_bounds(header, first, count, self.nbytes, self.path)
            self._pages.put(number, page)
        return page


_open_files: Lru[tuple[tuple[int, int, int], WkwFile]] = Lru(_OPEN_FILES)


def open_wkw_file(path: str, mag_header: WkwHeader, header_path: str) -> WkwFile | None:
    """Open a data file, or give the one that is open already.

    Parameters
    ----------
    path : str
        The file.
    mag_header : WkwHeader
        What ``header.wkw`` says.
    header_path : str
        Where ``header.wkw`` is: where it is gone too, the mag is gone, which is an error and not zeros.

    Returns
    -------
    WkwFile or None
        None where the file is absent, which means zeros.

    Raises
    ------
    FormatError
        The file's own header is broken or of another mag.
    MissingError
        The whole mag is gone.
    OSError
        The file is there and cannot be opened.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.exists(header_path):
            raise MissingError(f"{header_path}: not found: the mag is gone or its file system is not mounted") from None
        if os.path.islink(path):
            raise MissingError(f"{path}: a symbolic link to a file that is not there") from None
        return None
    if not stat.S_ISREG(status.st_mode):
        raise CorruptError(f"{path}: no regular file")
    signature = (status.st_ino, status.st_mtime_ns, status.st_size)
    kept = _open_files.get(path)
    if kept is not None and kept[0] == signature and (kept[1].mag_header is mag_header or kept[1].mag_header == mag_header):
        return kept[1]
    file = WkwFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC), mag_header)
    _open_files.put(path, (signature, file))
    return file


def _buffer(nbytes: int) -> npt.NDArray[np.uint8]:
    """Give this thread's read buffer, grown when a batch needs more."""
    memory: npt.NDArray[np.uint8] | None = getattr(_buffers, "memory", None)
    if memory is None or memory.size < nbytes:
        memory = np.empty(max(nbytes, 1 << 20), np.uint8)
        _buffers.memory = memory
    return memory[:nbytes]
