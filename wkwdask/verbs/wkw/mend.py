"""The tasks of a repair: find out what can be saved of a broken file, and write it anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wkwdask.errors import CorruptError, FormatError, UnsupportedError
from wkwdask.formats.wkw.folder import file_path
from wkwdask.formats.wkw.header import HEADER_NBYTES, BlockType, WkwHeader, parse_header
from wkwdask.formats.wkw.mend import mend_file
from wkwdask.runs.job import Result, Task
from wkwdask.store import files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.formats.wkw.file_check import WkwCheck
    from wkwdask.geometry.mag import Vec3
    from wkwdask.verbs.pyramid_job import RegionSpec

_DAMAGED_HEADERS = {f"file.{name}" for name in ("magic", "version", "bad_block_type", "bad_voxel_type", "bad_voxel_size", "block_nbytes", "data_offset")}
_OTHER_HEADERS = {f"file.{name}" for name in ("block_len", "file_len", "voxel_type", "channels")}


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """Find out what can be saved of a broken file; changes nothing."""

    check: WkwCheck
    """The mag."""
    shard: Vec3
    """Which file."""
    kinds: frozenset[str]
    """What is wrong with it."""

    def task(self) -> Task:
        """Give the task."""
        return Task(f"probe of {file_path(self.check.folder, self.shard)}", f"probe {file_path(self.check.folder, self.shard)}", ProbeSpec.run, self)

    def run(self) -> Result:
        """Decode all blocks; the value is a header by which the file is whole or None, and how many blocks can be decoded by its own."""
        if self.kinds & (_DAMAGED_HEADERS | _OTHER_HEADERS):
            for header in self._headers():
                sound = self.check.sound_blocks(self.shard, header)
                if sound.is_whole:
                    return Result((), value=(header, sound.num_sound))
            return Result((), value=(None, 0))
        return Result((), value=(None, self.check.sound_blocks(self.shard).num_sound))

    def _headers(self) -> Iterator[WkwHeader]:
        """Give the headers that the file may have had; only such by which its bytes would be no file at all if they were wrong."""
        mag = self.check.header
        own = _own_header(file_path(self.check.folder, self.shard))
        nbytes = files.getsize(file_path(self.check.folder, self.shard))
        for block_type in (mag.block_type, BlockType.LZ4HC if mag.block_type is BlockType.RAW else BlockType.RAW):
            header = mag.with_block_type(block_type).for_data_file()
            if own is None or (_is_other(own, header) if header.is_compressed else _fits_alone(own, header, nbytes)):
                yield header


def _is_other(own: WkwHeader, header: WkwHeader) -> bool:
    """Tell whether blocks that decode by one header cannot do so by the other."""
    return (own.block_nbytes, own.blocks_per_file) != (header.block_nbytes, header.blocks_per_file)


def _fits_alone(own: WkwHeader, header: WkwHeader, nbytes: int) -> bool:
    """Tell whether a raw file has exactly the size of the mag's, and not that of its own header."""
    return not own.is_compressed and nbytes == _raw_nbytes(header) != _raw_nbytes(own)


def _raw_nbytes(header: WkwHeader) -> int:
    return HEADER_NBYTES + header.blocks_per_file * header.block_nbytes


def _own_header(path: str) -> WkwHeader | None:
    """Read the header of a data file, None where it is impossible."""
    with files.open_stream(path) as file:
        try:
            return parse_header(file.read(HEADER_NBYTES), path, is_data_file=True)
        except (FormatError, UnsupportedError):
            return None


@dataclass(frozen=True, slots=True)
class MendSpec:
    """Write a file anew from its blocks that can be decoded."""

    check: WkwCheck
    """The mag."""
    shard: Vec3
    """Which file."""
    header: WkwHeader | None
    """In place of the file's own."""
    why: str
    """What is wrong with it."""
    salvage: bool
    """Whether broken blocks are replaced."""
    remake: RegionSpec | None = None
    """Makes the file anew elsewhere, which gives the broken blocks; else they become zeros."""

    def task(self) -> Task:
        """Give the task."""
        return Task(f"mending of {file_path(self.check.folder, self.shard)}", f"mend {file_path(self.check.folder, self.shard)}", MendSpec.run, self)

    def run(self) -> Result:
        """Do it, and check the new file; the value is its index, size and time."""
        spare = None
        if self.remake is not None:
            self.remake.run()
            spare = replace(self.check, folder=self.remake.targets[0].folder)
        nbytes, mtime_ns = mend_file(self.check, self.shard, self.header, self.why, salvage=self.salvage, spare=spare)
        left = [fault for fault in self.check.check_shard(self.shard).faults if fault.severity == "error"]
        if left:
            raise CorruptError(f"still broken after it was mended: {left[0]}")
        return Result((), value=(self.shard, (nbytes, mtime_ns)))
