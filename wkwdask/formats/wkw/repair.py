"""Repair of WKW files: the header under which the blocks of a file decode if its own is broken or
that of another mag."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from wkwdask.errors import FormatError, UnsupportedError
from wkwdask.formats.array_repair import ArrayRepair, Probe
from wkwdask.formats.wkw.folder import file_name, open_data_file
from wkwdask.formats.wkw.header import HEADER_NBYTES, BlockType, WkwHeader, parse_header
from wkwdask.store.paths import split
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.formats.wkw.file_check import WkwCheck
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.store import Store

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


class WkwRepair(ArrayRepair):
    """Repair of the files of a mag; lost blocks become zeros."""

    check: WkwCheck
    keeps_files: ClassVar[bool] = False
    noun: ClassVar[str] = "blocks"
    loss: ClassVar[str] = "zeros"

    @property
    def replacement(self) -> str:
        return "ZEROS"

    def probe(self, shard: Vec3, kinds: frozenset[str]) -> Probe:
        if not kinds & (_DAMAGED_HEADERS | _OTHER_HEADERS):
            return super().probe(shard, kinds)
        num_chunks = self.check.header.blocks_per_file
        for header in self._candidate_headers(shard):
            if self.check.intact_blocks(shard, header).is_whole:
                return Probe(header, num_chunks, num_chunks)
        return Probe(None, 0, num_chunks)

    def _place(self, name: str) -> tuple[Store, str]:
        """Return folder and name of a file, for a link those of its target."""
        if self._store.folders is None:
            return super()._place(name)
        folder, key = split(self._store.real(name))
        return store_at(folder), key

    def _candidate_headers(self, shard: Vec3) -> Iterator[WkwHeader]:
        """Yield candidate headers under which a wrong guess cannot parse."""
        # LZ4 blocks fail to decode under a header with another size or number of blocks, so that
        # decoding rejects a wrong candidate. Raw blocks always decode: there, only the size of the
        # file distinguishes the headers.
        mag = self.check.header
        own = _own_header(self._store, shard)
        nbytes = self._store.status(file_name(shard)).st_size
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


def _own_header(store: Store, shard: Vec3) -> WkwHeader | None:
    """Read the header of a data file; None if it is invalid."""
    with open_data_file(store, shard) as file:
        try:
            return parse_header(file.read_some(HEADER_NBYTES, 0), file.name, is_data_file=True)
        except (FormatError, UnsupportedError):
            return None
