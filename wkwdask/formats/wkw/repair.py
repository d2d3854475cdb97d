"""Repair of one data file: copy every decodable block byte for byte behind a new header and jump
table.

A broken block is replaced by that of a spare file if it is intact there, or else by zeros::

    broken file   | head | 0 | 1 | X | 3 |
    spare file                 | 2 |
    new file      | head | 0 | 1 | 2 | 3 |
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from wkwdask.errors import CorruptError, FormatError, UnsupportedError
from wkwdask.formats.leftovers import quarantine, withdraw_equal
from wkwdask.formats.repair import Probe
from wkwdask.formats.wkw.file import format_file_head
from wkwdask.formats.wkw.folder import file_name, file_path, open_data_file
from wkwdask.formats.wkw.header import HEADER_NBYTES, BlockType, WkwHeader, parse_header
from wkwdask.formats.wkw.options import DEFAULT_LEVEL
from wkwdask.kernels.blocks.batch import zero_encoding
from wkwdask.model.writing.file_buffer import FileBuffer
from wkwdask.store.paths import split
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.formats.wkw.file_check import IntactBlocks, WkwCheck
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.store import NewFile, OpenFile


def repair_file(
    check: WkwCheck,
    shard: Vec3,
    header: WkwHeader | None,
    why: str,
    *,
    salvage: bool,
    spare: WkwCheck | None = None,
) -> tuple[int, int]:
    """Rewrite a file from its decodable blocks, replace it atomically, and return its size and
    modification time [ns].

    ``header`` replaces a broken header of the file. With ``salvage``, blocks that are broken in
    both files become zeros.
    """
    path = store_at(file_path(check.folder, shard)).real()
    blocks = check.intact_blocks(shard, header)
    num_blocks = len(blocks.bounds)
    if blocks.header is None or not blocks.num_intact:
        raise CorruptError(f"{path}: no block can be decoded")
    if blocks.num_intact < num_blocks and not salvage:
        raise CorruptError(
            f"{path}: {num_blocks - blocks.num_intact} of its {num_blocks} blocks are broken"
        )
    source, bounds = _with_spare(blocks, spare, shard)
    folders = (check.folder, "" if spare is None else spare.folder)
    header, place = blocks.header.for_data_file(), ""
    file = _write_blocks(path, header, source, bounds, shard, folders)
    try:
        # The old file is kept aside before the new one replaces it, so that no crash loses the
        # blocks that could not be decoded.
        if salvage:
            lost = int((source == _NOWHERE).sum())
            text = (
                f"{why}\n{num_blocks - blocks.num_intact} of its {num_blocks} blocks were broken, "
                f"{lost} of them became zeros."
            )
            place = quarantine(
                path, check.folder, file_path("", shard).lstrip("/"), text, keep=True
            )
    except BaseException:
        file.discard()
        raise
    file.publish(keep_equal=True)
    if place:
        withdraw_equal(path, place)
    status = store_at(path).status()
    return status.st_size, status.st_mtime_ns


def _write_blocks(
    path: str,
    header: WkwHeader,
    source: npt.NDArray[np.int64],
    bounds: npt.NDArray[np.int64],
    shard: Vec3,
    folders: tuple[str, str],
) -> NewFile:
    """Write a new file without publishing it; each block comes from one of two files, or is
    zeros."""
    zero = zero_encoding(header.block_nbytes, header.block_type, DEFAULT_LEVEL)
    folder, name = split(path)
    output = FileBuffer(lambda: store_at(folder).new_file(name), header.smallest_data_offset)
    with ExitStack() as opened:
        opened.callback(output.discard)
        sources: dict[int, OpenFile] = {}
        for where, start, nbytes, count in _runs(source, bounds):
            if where == _NOWHERE:
                output.repeat(zero, count)
                continue
            if where not in sources:
                sources[where] = open_data_file(folders[where], shard)
            output.copy(sources[where], start, nbytes)
        file = output.close()
        file.write(
            format_file_head(
                header, np.where(source == _NOWHERE, zero.size, bounds[:, 1] - bounds[:, 0])
            ),
            0,
        )
        opened.pop_all()
    return file


_OWN, _SPARE, _NOWHERE = range(3)  # origin of a block


def _with_spare(
    blocks: IntactBlocks, spare: WkwCheck | None, shard: Vec3
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Choose the origin of each block (the file, the spare file or nowhere) and its boundaries
    there."""
    source, bounds = np.where(blocks.bounds[:, 1] > 0, _OWN, _NOWHERE), blocks.bounds.copy()
    if spare is not None and store_at(file_path(spare.folder, shard)).exists():
        other = spare.intact_blocks(shard)
        if (
            other.header is not None
            and blocks.header is not None
            and other.header.is_compressed == blocks.header.is_compressed
        ):
            fills = (source == _NOWHERE) & (other.bounds[:, 1] > 0)
            source[fills], bounds[fills] = _SPARE, other.bounds[fills]
    return source, bounds


def _runs(
    source: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield runs of blocks that are consecutive in one file: origin, start [bytes], size [bytes]
    and number of blocks."""
    continues = (source[1:] == source[:-1]) & (bounds[1:, 0] == bounds[:-1, 1])
    starts = np.concatenate([[0], np.flatnonzero(~continues) + 1, [len(bounds)]]).tolist()
    for first, end in pairwise(starts):
        start = int(bounds[first, 0])
        yield int(source[first]), start, int(bounds[end - 1, 1]) - start, end - first


# Kinds of faults after which other headers are tried: the file's own header is invalid, or valid
# but contradicts header.wkw.
_DAMAGED_HEADERS = {
    f"file.{name}"
    for name in (
        "magic",
        "version",
        "bad_block_type",
        "bad_voxel_type",
        "bad_voxel_size",
        "block_nbytes",
        "data_offset",
    )
}
_OTHER_HEADERS = {f"file.{name}" for name in ("block_len", "file_len", "voxel_type", "channels")}


@dataclass(frozen=True, slots=True)
class WkwRepair:
    """Repair of the files of a mag; picklable."""

    keeps_files: ClassVar[bool] = False
    check: WkwCheck

    @property
    def folder(self) -> str:
        return self.check.folder

    @property
    def replacement(self) -> str:
        return "ZEROS"

    def probe(self, shard: Vec3, kinds: frozenset[str]) -> Probe:
        num_chunks = self.check.header.blocks_per_file
        if kinds & (_DAMAGED_HEADERS | _OTHER_HEADERS):
            for header in self._candidate_headers(shard):
                blocks = self.check.intact_blocks(shard, header)
                if blocks.is_whole:
                    return Probe(header, blocks.num_intact, num_chunks)
            return Probe(None, 0, num_chunks)
        return Probe(None, self.check.intact_blocks(shard).num_intact, num_chunks)

    def repair_shard(
        self,
        shard: Vec3,
        head: WkwHeader | None,
        why: str,
        spare_folder: str | None,
        *,
        salvage: bool,
    ) -> tuple[int, int]:
        spare = None if spare_folder is None else replace(self.check, folder=spare_folder)
        state = repair_file(self.check, shard, head, why, salvage=salvage, spare=spare)
        remaining = [
            fault for fault in self.check.check_shard(shard).faults if fault.severity == "error"
        ]
        if remaining:
            raise CorruptError(f"still broken after the repair: {remaining[0]}")
        return state

    def _candidate_headers(self, shard: Vec3) -> Iterator[WkwHeader]:
        """Yield candidate headers under which a wrong guess cannot parse."""
        # LZ4 blocks fail to decode under a header with another size or number of blocks, so that
        # decoding rejects a wrong candidate. Raw blocks always decode: there, only the size of the
        # file distinguishes the headers.
        mag = self.check.header
        own = _own_header(file_path(self.check.folder, shard))
        nbytes = store_at(self.check.folder).status(file_name(shard)).st_size
        for block_type in (
            mag.block_type,
            BlockType.LZ4HC if mag.block_type is BlockType.RAW else BlockType.RAW,
        ):
            header = mag.with_block_type(block_type).for_data_file()
            if own is None or (
                _is_incompatible(own, header)
                if header.is_compressed
                else _fits_only(own, header, nbytes)
            ):
                yield header


def _is_incompatible(own: WkwHeader, header: WkwHeader) -> bool:
    """Return whether blocks that decode under one header cannot decode under the other."""
    return (own.block_nbytes, own.blocks_per_file) != (header.block_nbytes, header.blocks_per_file)


def _fits_only(own: WkwHeader, header: WkwHeader, nbytes: int) -> bool:
    """Return whether a raw file has exactly the size that the mag's header implies, and not the
    size that its own header implies."""
    return not own.is_compressed and nbytes == _raw_nbytes(header) != _raw_nbytes(own)


def _raw_nbytes(header: WkwHeader) -> int:
    return HEADER_NBYTES + header.blocks_per_file * header.block_nbytes


def _own_header(path: str) -> WkwHeader | None:
    """Read the header of a data file; None if it is invalid."""
    with store_at(path).open_stream() as file:
        try:
            return parse_header(file.read(HEADER_NBYTES), path, is_data_file=True)
        except (FormatError, UnsupportedError):
            return None
