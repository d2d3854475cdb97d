"""Faults of stored volumes: all kinds with their severity and meaning, and the record of one
fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.model.remedies import REMEDIES

if TYPE_CHECKING:
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3

_LISTED = 20  # faults of one kind in one file that are listed; more are counted
ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
"""Error: data are lost, unreadable or misread. Warning: readable here, but other software may fail.
Note: harmless."""

_FILE_FAILS = "reads of this file fail; the reference library returns zeros without an error"
_BLOCK_FAILS = "reads of this block fail"

KINDS: dict[str, tuple[str, str]] = {
    # header.wkw
    "header.missing": (ERROR, "nothing can open the mag"),
    "header.short": (ERROR, "nothing can open the mag"),
    "header.magic": (ERROR, "nothing can open the mag"),
    "header.version": (ERROR, "nothing can open the mag"),
    "header.block_type": (ERROR, "nothing can open the mag"),
    "header.voxel_type": (ERROR, "nothing can open the mag"),
    "header.voxel_size": (ERROR, "nothing can open the mag"),
    "header.block_nbytes": (
        ERROR,
        "the blocks are larger than LZ4 can hold: nothing can open the mag",
    ),
    "header.lengths": (
        WARNING,
        "the reference library holds lengths in one byte and misreads them",
    ),
    "header.data_offset": (ERROR, "the reference library looks for a jump table here and fails"),
    "header.long": (NOTE, "bytes behind the header, which no software reads"),
    "header.differs": (
        ERROR,
        "reads of the files fail: the headers of most files differ from header.wkw",
    ),
    "header.other_block_type": (
        WARNING,
        "readable here; the WEBKNOSSOS server trusts header.wkw and misreads the files",
    ),
    "header.unreadable": (ERROR, "nothing can open the mag"),
    # the header of a data file
    "file.empty": (ERROR, _FILE_FAILS),
    "file.short": (ERROR, _FILE_FAILS),
    "file.magic": (ERROR, _FILE_FAILS),
    "file.version": (ERROR, _FILE_FAILS),
    "file.bad_block_type": (ERROR, _FILE_FAILS),
    "file.bad_voxel_type": (ERROR, _FILE_FAILS),
    "file.bad_voxel_size": (ERROR, _FILE_FAILS),
    "file.block_nbytes": (ERROR, _FILE_FAILS),
    "file.data_offset": (
        ERROR,
        "reads of this file fail; with offset 0 the reference library crashes",
    ),
    "file.padding": (
        NOTE,
        "unused bytes between the jump table and the first block; all software skips them",
    ),
    "file.block_len": (
        ERROR,
        "reads of this file fail: it belongs to another mag, or its header is damaged",
    ),
    "file.file_len": (
        ERROR,
        "reads of this file fail: it belongs to another mag, or its header is damaged",
    ),
    "file.voxel_type": (
        ERROR,
        "reads of this file fail: it belongs to another mag, or its header is damaged",
    ),
    "file.channels": (
        ERROR,
        "reads of this file fail: it belongs to another mag, or its header is damaged",
    ),
    "file.block_type": (
        WARNING,
        "readable here; the WEBKNOSSOS server trusts header.wkw and misreads the file",
    ),
    "file.lz4_level": (NOTE, "LZ4 and LZ4HC blocks are decoded alike"),
    # jump table and blocks
    "table.truncated": (ERROR, "reads of this file fail: the jump table is cut off"),
    "table.inside": (
        ERROR,
        "reads of this file fail: a block would lie inside the header and jump table",
    ),
    "table.falls": (ERROR, "reads of this file fail: a block would end before it starts"),
    "table.beyond": (ERROR, "reads of this file fail: a block would end beyond the file"),
    "table.empty_block": (ERROR, "reads of this block fail: no bytes are stored for it"),
    "file.truncated": (ERROR, "the file is cut off: the named block and all later ones are lost"),
    "file.trailing": (WARNING, "bytes behind the last block: ignored here, refused by WEBKNOSSOS"),
    "block.undecodable": (ERROR, _BLOCK_FAILS),
    "block.too_few": (ERROR, _BLOCK_FAILS),
    "block.too_many": (ERROR, _BLOCK_FAILS),
    "file.zeros": (NOTE, "all its voxels are zero: a missing file would read the same"),
    # existence of files and folders
    "file.lost": (
        ERROR,
        (
            "reads as zeros; it existed when the mag was written, or other software removed it "
            "because its voxels became background"
        ),
    ),
    "file.size_changed": (WARNING, "other software has written it since, or it is damaged"),
    "file.unreadable": (ERROR, _FILE_FAILS),
    "file.checksum": (
        ERROR,
        "its bytes have changed in the zip: voxels may be wrong without an error",
    ),
    "file.dangling": (ERROR, f"a broken link: {_FILE_FAILS}"),
    "file.no_file": (ERROR, _FILE_FAILS),
    "folder.unreadable": (ERROR, "reads of all files below fail"),
    "folder.dangling": (ERROR, "a broken link: reads of all files below fail"),
    "folder.no_folder": (ERROR, "all files expected below it read as zeros"),
    "file.outside": (WARNING, "lies outside the layer's box: reads of the layer never see it"),
    "name.unread": (
        WARNING,
        "looks like data, but no software reads a file of this name: its voxels read as zeros",
    ),
    "name.stray": (NOTE, "not part of a mag"),
    "mag.missing": (
        ERROR,
        "the JSON lists the mag, but no folder with data exists: WEBKNOSSOS shows nothing",
    ),
    "mag.unlisted": (WARNING, "the JSON does not list this mag: WEBKNOSSOS does not show it"),
    "mag.twice": (WARNING, "two folders of one mag: software disagrees which one to read"),
    "mag.gap": (NOTE, "a step of the pyramid is missing: zooming reads more data than necessary"),
    "mag.remote": (WARNING, "not on this file system: not checked"),
    "mag.empty": (NOTE, "no data files: the whole mag reads as zeros"),
    "layer.format": (WARNING, "stored in a format that is unknown here: not checked"),
    "layer.twice": (
        ERROR,
        (
            "software disagrees which layer of this name to read; opening it by its name or folder "
            "fails"
        ),
    ),
    "layer.unlisted": (WARNING, "the JSON does not list this layer: WEBKNOSSOS does not show it"),
    # left over
    "leftover.temporary": (
        WARNING,
        "an incomplete file of an interrupted process; no software reads it",
    ),
    "leftover.folder": (
        WARNING,
        (
            "no software reads it; if webknossos was killed while it replaced the mag, this may be "
            "the only complete copy"
        ),
    ),
    "leftover.lock": (WARNING, "the lock of a job that has ended"),
    "job.dead": (
        WARNING,
        "the folder of a job that has ended; the next job that writes here removes it",
    ),
    "job.unpublished": (
        WARNING,
        "a job was killed while it published its mags; the next job that writes here completes it",
    ),
    "job.interrupted": (WARNING, "the same command continues the job"),
    "job.refused": (
        ERROR,
        "jobs that write here stop, since they would have to complete or remove what it names",
    ),
    "job.running": (NOTE, "a job is running here: files that it writes may look damaged"),
    "quarantine": (
        NOTE,
        "files that a repair set aside; delete them when they are no longer needed",
    ),
    "record.broken": (
        WARNING,
        (
            "wkwdask's own record of the files is damaged: missing files are not detected, updates "
            "are refused"
        ),
    ),
    # datasource-properties.json
    "json.missing": (ERROR, "WEBKNOSSOS cannot open the dataset"),
    "json.broken": (ERROR, "nothing can open the dataset"),
    "json.element_class": (ERROR, "WEBKNOSSOS misreads the layer"),
    "json.num_channels": (ERROR, "WEBKNOSSOS misreads the layer"),
    "json.cube_length": (WARNING, "software that trusts the JSON looks for the wrong files"),
    "json.box_smaller": (
        WARNING,
        "voxels that are not zero lie outside the layer's box: they are not shown",
    ),
    "json.box_larger": (NOTE, "no files lie near one side of the box: only zeros are there"),
    "json.largest_id": (
        WARNING,
        "larger ids are stored: WEBKNOSSOS would give the next new segment an existing id",
    ),
    # levels of other formats, and the documents of their images
    "level.unsupported": (
        WARNING,
        "a feature that is not supported or not installed here: not checked",
    ),
    "level.broken": (ERROR, "nothing can open the level"),
    "level.missing": (
        ERROR,
        "the image lists a level that does not exist: software that opens it fails",
    ),
    "level.unlisted": (
        WARNING,
        "the image does not list this array: software that opens the image does not show it",
    ),
    "level.names": (ERROR, "no software finds these chunks: they read as the fill value"),
    "level.dtype": (
        ERROR,
        "the levels of an image have one data type: software misreads this level or the first one",
    ),
    "level.axes": (
        ERROR,
        "the levels of an image have the same axes: software misreads this level or the first one",
    ),
    "image.broken": (
        ERROR,
        "nothing can open the image: its arrays are read without voxel size and position",
    ),
    "image.scale": (ERROR, "software shows the level in a wrong size"),
    "image.translation": (ERROR, "software shows the level in a wrong place"),
    "image.order": (
        WARNING,
        "software that takes the first level for the finest reads a coarser one",
    ),
    "document.twice": (
        WARNING,
        "two versions of one document: software disagrees which one to read",
    ),
    "document.differs": (
        ERROR,
        "two versions of one document contradict each other: what is read depends on the software",
    ),
    "document.consolidated": (
        WARNING,
        "software that reads only the consolidated metadata misses or misreads this",
    ),
    # precomputed volumes
    "info.broken": (ERROR, "nothing can open the volume"),
    "info.scale": (ERROR, "nothing can open the scale"),
    "info.unsupported": (WARNING, "the scale cannot be read here"),
    "info.absent": (
        WARNING,
        "readable here; other software refuses the volume without it, or guesses",
    ),
    "info.null": (WARNING, "readable here; Neuroglancer cannot open the volume"),
    "info.twice": (ERROR, "the files of one scale are read as those of the other"),
    "chunk.undecodable": (ERROR, "reads of this chunk fail"),
    "chunk.empty": (ERROR, "reads of this chunk fail"),
    "chunk.shape": (
        WARNING,
        "the chunk is smaller than its place: the other voxels there read as zeros",
    ),
    "chunk.outside": (WARNING, "a chunk outside of the array: no software reads it"),
    "chunk.twice": (WARNING, "two files of one chunk: software disagrees which one to read"),
    "shard.twice": (WARNING, "two forms of one shard: software disagrees which one to read"),
    "shard.half": (ERROR, "reads of this shard fail: one of its two files is missing"),
    "shard.short": (ERROR, "reads of this shard fail: its index is cut off"),
    "shard.checksum": (
        ERROR,
        "reads of this shard fail: its index is damaged, or the file is cut off",
    ),
    "shard.place": (
        ERROR,
        "reads of this shard fail: its index is damaged, or the file is cut off",
    ),
    "shard.index": (ERROR, "reads of all chunks of this minishard fail"),
    "shard.overlap": (
        WARNING,
        "bytes that belong to two chunks or indices: one of them is probably damaged",
    ),
    "minishard.broken": (ERROR, "reads of all chunks of this minishard fail"),
    "minishard.foreign": (ERROR, "no software looks for the chunk here: its voxels read as zeros"),
    "minishard.outside": (WARNING, "a chunk outside of the volume: no software reads it"),
    # meshes
    "mesh.missing": (ERROR, "viewers show no mesh"),
    "mesh.info": (ERROR, "nothing can open the meshes"),
    "mesh.unsupported": (
        WARNING,
        "meshes of another kind, or a package that is not installed: not checked",
    ),
    "mesh.shard": (ERROR, "reads of all meshes of this shard, or of a part of them, fail"),
    "mesh.manifest": (ERROR, "viewers cannot show the mesh of this label"),
    "mesh.fragment": (ERROR, "viewers cannot show a part of the mesh of this label"),
    "mesh.foreign": (ERROR, "no software looks for the mesh here: viewers do not show it"),
    "mesh.overlap": (
        WARNING,
        "bytes that belong to two labels: the mesh of one of them is probably damaged",
    ),
    "mesh.orphan": (WARNING, "no manifest names these bytes: no software reads them"),
    # coarser mags
    "pyramid.differs": (WARNING, "the coarser mag does not match the finer one"),
    "pyramid.smaller": (WARNING, "the coarser mag leaves out voxels of the finer one"),
    "pyramid.unknown": (NOTE, "not compared"),
}
"""Severity and meaning of every kind of fault."""
UNCHECKED = ("mag.remote", "layer.format", "level.unsupported", "mesh.unsupported")
"""Kinds of layers, mags and meshes that were not checked."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and its place."""

    kind: str
    """Key of ``KINDS``."""
    path: str
    """File or folder."""
    found: str
    """Actual content."""
    expected: str = ""
    """Expected content."""
    block: int | None = None
    """Morton code of the block in its file."""
    voxel: Vec3 | None = None
    """Lowest voxel of the block [voxels of the mag]."""
    offset: int | None = None
    """Offset in the file [bytes]."""
    more: int = 0
    """Number of further faults of this kind in the same file that are not listed."""
    severity_override: str = ""
    """Severity of this fault if it differs from that of its kind."""

    @property
    def severity(self) -> str:
        """``"error"``, ``"warning"`` or ``"note"``."""
        return self.severity_override or KINDS[self.kind][0]

    @property
    def meaning(self) -> str:
        """Consequence for users."""
        return KINDS[self.kind][1]

    @property
    def remedy(self) -> str:
        """Action of ``repair``, or advice for users; empty for notes."""
        return REMEDIES.get(self.kind, "")

    @property
    def place(self) -> str:
        """Block, voxel and offset as text."""
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
        return (
            f"{self.severity} {self.kind}: {self.path}{place}: {self.found}{expected}{more}: "
            f"{self.meaning}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": self.severity,
            "path": self.path,
            "block": self.block,
            "voxel": self.voxel,
            "offset": self.offset,
            "found": self.found,
            "expected": self.expected,
            "meaning": self.meaning,
            "remedy": self.remedy,
            "more": self.more,
        }


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of checking some files; ``+`` combines results."""

    faults: tuple[Fault, ...] = ()
    files: int = 0
    """Number of existing files."""
    nbytes: int = 0
    """Total size of these files."""
    blocks: int = 0
    """Number of decoded blocks."""
    largest: int | None = None
    """Largest value, None if it was not determined."""
    outside: BoundingBox | None = None
    """Smallest box around nonzero voxels outside the bounding box of the layer [voxels of the
    mag]."""

    def __add__(self, other: Findings) -> Findings:
        largest = max((n for n in (self.largest, other.largest) if n is not None), default=None)
        outside = (
            self.outside
            if other.outside is None
            else other.outside
            if self.outside is None
            else self.outside.union(other.outside)
        )
        faults = self.faults + other.faults
        return Findings(
            faults,
            self.files + other.files,
            self.nbytes + other.nbytes,
            self.blocks + other.blocks,
            largest,
            outside,
        )


class FaultList:
    """Faults of one file; beyond a limit, faults of a kind are only counted."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._counts: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._faults)

    def count(self, kind: str) -> bool:
        """Count a fault, and return whether it is below the limit."""
        self._counts[kind] += 1
        return self._counts[kind] <= _LISTED

    def add(self, *faults: Fault) -> None:
        """Count faults, and list those below the limit."""
        for fault in faults:
            if self.count(fault.kind):
                self._faults.append(fault)

    def append_counted(self, fault: Fault) -> None:
        """List a fault that was counted already."""
        self._faults.append(fault)

    def to_tuple(self) -> tuple[Fault, ...]:
        """Return the faults; the last one of a kind states how many more there are."""
        faults = list(self._faults)
        for kind, count in self._counts.items():
            if count > _LISTED:
                last = max(n for n, fault in enumerate(faults) if fault.kind == kind)
                faults[last] = replace(faults[last], more=count - _LISTED)
        return tuple(faults)
