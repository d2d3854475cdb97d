"""What can be wrong with stored volumes: every kind of fault, what it means to who reads them, and the record of one that was found.

Opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wkwdask.geometry.mag import Vec3

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
"""An error: data are lost, cannot be read, or are read as something else. A warning: they read well here, other software or people may stumble."""

_GONE = "reads of this file fail; the reference library gives zeros without a word"
_BLOCK = "reads of this block fail"

KINDS: dict[str, tuple[str, str]] = {
    # header.wkw
    "header.missing": (ERROR, "nothing can open the mag"),
    "header.short": (ERROR, "nothing can open the mag"),
    "header.magic": (ERROR, "nothing can open the mag"),
    "header.version": (ERROR, "nothing can open the mag"),
    "header.block_type": (ERROR, "nothing can open the mag"),
    "header.voxel_type": (ERROR, "nothing can open the mag"),
    "header.voxel_size": (ERROR, "nothing can open the mag"),
    "header.block_nbytes": (ERROR, "the blocks are larger than LZ4 can hold: nothing can open the mag"),
    "header.lengths": (WARNING, "the reference library holds lengths in one byte and misreads them"),
    "header.data_offset": (ERROR, "the reference library looks for a jump table here and fails"),
    "header.long": (NOTE, "bytes behind the header are read by nobody"),
    "header.differs": (ERROR, "reads of the files fail, since most of them say something else than header.wkw"),
    "header.other_block_type": (WARNING, "read well here; the WEBKNOSSOS server goes by header.wkw and misreads the files"),
    "header.unreadable": (ERROR, "nothing can open the mag"),
    # the header of a data file
    "file.empty": (ERROR, _GONE),
    "file.short": (ERROR, _GONE),
    "file.magic": (ERROR, _GONE),
    "file.version": (ERROR, _GONE),
    "file.bad_block_type": (ERROR, _GONE),
    "file.bad_voxel_type": (ERROR, _GONE),
    "file.bad_voxel_size": (ERROR, _GONE),
    "file.block_nbytes": (ERROR, _GONE),
    "file.data_offset": (ERROR, "reads of this file fail; offset 0 ends a process that reads it with the reference library"),
    "file.padding": (NOTE, "unused bytes between the jump table and the first block; all software skips them"),
    "file.block_len": (ERROR, "reads of this file fail: it is not of this mag, or its header is damaged"),
    "file.file_len": (ERROR, "reads of this file fail: it is not of this mag, or its header is damaged"),
    "file.voxel_type": (ERROR, "reads of this file fail: it is not of this mag, or its header is damaged"),
    "file.channels": (ERROR, "reads of this file fail: it is not of this mag, or its header is damaged"),
    "file.block_type": (WARNING, "read well here; the WEBKNOSSOS server goes by header.wkw and misreads the file"),
    "file.lz4_level": (NOTE, "LZ4 and LZ4HC blocks are decoded alike"),
    # jump table and blocks
    "table.truncated": (ERROR, "reads of this file fail: the jump table is cut off"),
    "table.inside": (ERROR, "reads of this file fail: a block would lie inside the header and jump table"),
    "table.falls": (ERROR, "reads of this file fail: a block would end before it starts"),
    "table.beyond": (ERROR, "reads of this file fail: a block would end beyond the file"),
    "table.empty_block": (ERROR, "reads of this block fail: no bytes are stored for it"),
    "file.truncated": (ERROR, "the file is cut off: blocks are lost from the one named on"),
    "file.trailing": (WARNING, "bytes behind the last block: ignored here, refused by WEBKNOSSOS"),
    "block.undecodable": (ERROR, _BLOCK),
    "block.too_few": (ERROR, _BLOCK),
    "block.too_many": (ERROR, _BLOCK),
    "file.zeros": (NOTE, "stored, though all its voxels are zero: an absent file reads the same"),
    # what is there of files and folders
    "file.lost": (ERROR, "reads as zeros; it was there when the mag was written"),
    "file.size_changed": (WARNING, "other software has written it since, or it is damaged"),
    "file.unreadable": (ERROR, "reads of this file fail; the reference library gives zeros without a word"),
    "file.dangling": (ERROR, "a link to nowhere: reads of this file fail; the reference library gives zeros without a word"),
    "file.no_file": (ERROR, "reads of this file fail; the reference library gives zeros without a word"),
    "folder.unreadable": (ERROR, "reads of all files below fail"),
    "folder.dangling": (ERROR, "a link to nowhere: reads of all files below fail"),
    "folder.no_folder": (ERROR, "all files that should be below read as zeros"),
    "file.outside": (WARNING, "lies outside the layer's box: reads of the layer never see it"),
    "name.unread": (WARNING, "looks like data, but no software reads a file of this name: its place reads as zeros"),
    "name.stray": (NOTE, "no part of a mag"),
    "mag.missing": (ERROR, "the JSON lists the mag, but there is no folder with data: WEBKNOSSOS shows nothing there"),
    "mag.unlisted": (WARNING, "the JSON does not list this mag: WEBKNOSSOS does not show it"),
    "mag.twice": (WARNING, "two folders of one mag: software does not agree which of them is meant"),
    "mag.gap": (NOTE, "a step of the pyramid is left out: zooming there reads more than it needs to"),
    "mag.remote": (WARNING, "not on this file system: not checked"),
    "mag.empty": (NOTE, "no data files: all of it reads as zeros"),
    "layer.format": (WARNING, "not stored as WKW: not checked"),
    "layer.unlisted": (WARNING, "the JSON does not list this layer: WEBKNOSSOS does not show it"),
    # left over
    "leftover.temporary": (WARNING, "half a file that a process left; nobody reads it"),
    "leftover.folder": (WARNING, "nobody reads it; where webknossos was killed while it replaced the mag, it may be the only complete copy"),
    "leftover.lock": (WARNING, "the lock of a job that has ended"),
    "job.dead": (WARNING, "the folder of a job that has ended; the next job that writes here removes it"),
    "job.unpublished": (WARNING, "a job was killed while its mags appeared; the next job that writes here completes it"),
    "job.interrupted": (WARNING, "a job was interrupted and can go on: the same command does"),
    "job.refused": (ERROR, "jobs that write here stop, since they would have to complete or remove what it names"),
    "job.running": (NOTE, "a job is at work here: what it writes may look damaged"),
    "quarantine": (NOTE, "files that a repair set aside; remove them when nobody misses them"),
    "record.broken": (WARNING, "wkwdask's own record of the files is damaged: lost files go unseen, updates are refused"),
    # datasource-properties.json
    "json.missing": (ERROR, "WEBKNOSSOS cannot open the dataset"),
    "json.broken": (ERROR, "nothing can open the dataset"),
    "json.element_class": (ERROR, "WEBKNOSSOS misreads the layer"),
    "json.num_channels": (ERROR, "WEBKNOSSOS misreads the layer"),
    "json.cube_length": (WARNING, "software that trusts the JSON looks for the wrong files"),
    "json.box_smaller": (WARNING, "voxels that are not zero lie outside the layer's box: they are not shown"),
    "json.box_larger": (NOTE, "no files are near one side of the box: nothing but zeros is there"),
    "json.largest_id": (WARNING, "larger ids are stored: WEBKNOSSOS would give the next new segment an id that is taken"),
    # precomputed volumes
    "info.broken": (ERROR, "nothing can open the volume"),
    "info.scale": (ERROR, "nothing can open the scale"),
    "info.unsupported": (WARNING, "the scale cannot be read here"),
    "info.absent": (WARNING, "read well here; other software refuses the volume without it, or guesses"),
    "info.null": (WARNING, "read well here; Neuroglancer cannot open the volume"),
    "info.twice": (ERROR, "the files of one scale are read as those of the other"),
    "chunk.undecodable": (ERROR, "reads of this chunk fail"),
    "chunk.empty": (ERROR, "reads of this chunk fail"),
    "chunk.twice": (WARNING, "two files of one chunk: software does not agree which is read"),
    "shard.twice": (WARNING, "two forms of one shard: software does not agree which is read"),
    "shard.half": (ERROR, "reads of this shard fail: one of its two files is absent"),
    "shard.short": (ERROR, "reads of this shard fail: its index is cut off"),
    "shard.index": (ERROR, "reads of all chunks of this minishard fail"),
    "shard.overlap": (WARNING, "bytes that belong to two chunks or indices: one of them is probably damaged"),
    "minishard.broken": (ERROR, "reads of all chunks of this minishard fail"),
    "minishard.foreign": (ERROR, "no software looks for the chunk here: its place reads as zeros"),
    "minishard.outside": (WARNING, "a chunk that the volume does not have: nobody reads it"),
    # coarser mags
    "pyramid.differs": (WARNING, "the coarser mag shows something else than the finer one"),
    "pyramid.unknown": (NOTE, "not compared"),
}
"""Severity and meaning of every kind of fault."""
UNCHECKED = ("mag.remote", "layer.format")
"""Kinds that say that something was not checked."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong, and where."""

    kind: str
    """One of ``KINDS``."""
    path: str
    """The file or folder."""
    found: str
    """What is there."""
    expected: str = ""
    """What should be."""
    block: int | None = None
    """Morton code of the block in its file."""
    voxel: Vec3 | None = None
    """Lowest voxel of the block [voxels of the mag]."""
    offset: int | None = None
    """Where in the file [bytes]."""
    more: int = 0
    """How many more of this kind in the same file are not listed one by one."""
    graver: str = ""
    """A severity in place of the kind's, where more is known than the kind says."""

    @property
    def severity(self) -> str:
        """``"error"``, ``"warning"`` or ``"note"``."""
        return self.graver or KINDS[self.kind][0]

    @property
    def meaning(self) -> str:
        """What it means to a user."""
        return KINDS[self.kind][1]

    @property
    def place(self) -> str:
        """Where in the file, for people."""
        parts = [] if self.block is None else [f"block {self.block}"]
        if self.voxel is not None:
            parts.append("voxel {}, {}, {}".format(*self.voxel))
        if self.offset is not None:
            parts.append(f"byte {self.offset}")
        return ", ".join(parts)

    def __str__(self) -> str:
        place = f" ({self.place})" if self.place else ""
        expected = f", expected {self.expected}" if self.expected else ""
        more = f" (and {self.more} more)" if self.more else ""
        return f"{self.severity} {self.kind}: {self.path}{place}: {self.found}{expected}{more}: {self.meaning}"

    def to_json(self) -> dict[str, Any]:
        """Give plain values for ``json.dumps``."""
        return {
            "kind": self.kind, "severity": self.severity, "path": self.path, "block": self.block, "voxel": self.voxel, "offset": self.offset,
            "found": self.found, "expected": self.expected, "meaning": self.meaning, "more": self.more,
        }  # fmt: skip
