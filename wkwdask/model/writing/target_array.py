"""Arrays that are being written, in any format. Coordinates are relative to the first voxel of the
grid.

A shard is a box along x, y, z with all channels. Other software stores channels in several chunks,
or in several files: then a shard is all of these.

A part is a box of whole chunks inside a shard.

Sharded arrays: the encoded chunks of a part are a part file (``wkwdask.model.writing.run``). One
task joins the part files of a shard without decoding, or a task writes the whole shard directly.

    parts of a shard (boxes of chunks)      part files              shard, in the order of codes
      +----+----+                            a: 0 1 2 3
      | a  | b  |      encode  ->            b: 4 5 6 7    join ->   header, 0 1 2 3 4 5 6 7, tables
      +----+----+

Unsharded arrays: a shard is a group of chunks that one task writes, each a file with its final
name. A part has some of these files; a join adds up receipts. All-zero chunks are not stored,
unless the layout stores all chunks of a file.
"""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from wkwdask.errors import BoundsError, LockedError, UnsupportedError
from wkwdask.model.store import Conflict, Expected
from wkwdask.model.stored_array import StoredArray, by_files
from wkwdask.model.volume import relative_to, voxel_nbytes
from wkwdask.model.writing.encoding import BoxEncoder
from wkwdask.model.writing.joining import join_shard
from wkwdask.model.writing.merging import MergingWriter
from wkwdask.model.writing.splice import Splice
from wkwdask.model.writing.spliced_shards import splice_shard
from wkwdask.model.writing.target_files import TargetFiles
from wkwdask.model.writing.writers import FilesWriter, PartWriter, ShardWriter
from wkwdask.plans.chunks import largest_multiple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.store import Store
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.receipts import Receipt
    from wkwdask.model.writing.writers import Writer


_MAX_TURNS = 200


@dataclass(frozen=True, slots=True)
class InPlaceWrite:
    """In-place write to an existing level, file by file."""

    folder: str
    """Folder of the level."""
    staging: str
    """Folder of part files, and of files before they are published."""
    box: BoundingBox
    """Box to write [absolute voxels of its mag]."""
    merges: bool = False
    """Whether files keep their voxels around the box."""
    level: int | str | None = None
    """Compression level or its word, if the stored array does not state it."""
    record: str = ""
    """Record of the job in a bucket, where files are replaced only while it exists."""


class Splicer(Protocol):
    """Creates shards from the stored files of arrays of the same format without decoding chunks;
    small to pickle."""

    def can_splice(self, source: Volume, target: TargetArray) -> bool:
        """Return whether that is possible."""

    def splice_shard(self, source: Any, target: TargetArray, shard: Vec3) -> Receipt:
        """Create a shard from the source's files in the same place, and publish it."""


@dataclass(frozen=True, slots=True)
class TargetArray:
    """Array that is being written; small to pickle.

    The unit of work is a part: a box of whole chunks inside one shard, or a whole shard. Only the
    task that joins the parts publishes a shard.
    """

    array: StoredArray
    """Array to write, at its absolute position."""
    staging: Store
    """Folder of part files, and of files before they are published."""
    documents: tuple[tuple[str, bytes], ...] = ()
    """Names and contents of the files in its folder that describe it."""
    merges: bool = False
    """Whether shards keep their stored voxels outside the box; then all shards are joined from
    parts."""
    is_in_place: bool = False
    """Whether the array existed before; then each published file must be durable at once."""
    keeps_files: bool = False
    """Whether files and chunks that are copied from another array keep voxels outside the box."""
    splicer: Splicer | None = None
    listed: str | None = None
    """Folder that the document of the image names for the level now, where it can be another than
    that in which the new one is known."""
    record: str = ""
    """Record of a job in a bucket, where files of an existing array are replaced only while it
    exists."""

    def built_in(self, folder: str) -> TargetArray:
        """Return the array to build in another folder."""
        store = self.array.store
        return replace(
            self, array=self.array.at(store.at(folder)), staging=store.at(f"{folder}.parts")
        )

    # --------------------------------------------------------------------------------------------
    # geometry

    @property
    def folder(self) -> str:
        """Folder in which files are published for now."""
        return self.array.store.url

    @property
    def scratch_folder(self) -> str:
        """Folder for scratch files of the job."""
        return f"{self.staging.url}/scratch"

    @property
    def mag(self) -> Mag:
        return self.array.mag

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def num_channels(self) -> int:
        return self.array.num_channels

    @property
    def origin(self) -> Vec3:
        """Absolute voxel of its coordinate 0; can be negative."""
        return self.array.grid.origin

    @property
    def box(self) -> BoundingBox:
        """Box to write [voxels of the mag, relative to ``origin``]."""
        return self.as_volume().box

    @property
    def chunk_shape(self) -> Vec3:
        """Shape (x, y, z) of a chunk [voxels]."""
        return self.array.grid.chunk[1:]

    @property
    def shard_shape(self) -> Vec3:
        """Shape (x, y, z) of a shard or group of chunks [voxels]."""
        return self.array.grid.unit

    @property
    def is_swapped(self) -> bool:
        """Whether each file is read, changed, and replaced if it is still the same: in a bucket,
        where other writers of the same file may exist."""
        return self.is_in_place and self.array.store.can.compares

    @property
    def part_unit(self) -> Vec3:
        """Shape (x, y, z) of the smallest part [voxels]: a chunk, or what is read and replaced in
        one step."""
        is_whole = self.is_swapped and self.array.layout.is_sharded
        return self.shard_shape if is_whole else self.chunk_shape

    def part_shape(self, nbytes: int) -> Vec3:
        """Return the largest box of chunks inside a shard whose voxels have at most ``nbytes``
        bytes."""
        nbytes_per_voxel = voxel_nbytes(self)
        return largest_multiple(self.part_unit, self.shard_shape, nbytes_per_voxel, nbytes)

    # --------------------------------------------------------------------------------------------
    # its files and its codec

    def as_volume(self) -> StoredArray:
        """Return the published part of the array for reading."""
        return relative_to(self.array, self.array.grid.origin)

    @property
    def files(self) -> TargetFiles:
        """Part files and published files."""
        return TargetFiles(self.as_volume(), self.staging, self.is_in_place)

    @property
    def encoder(self) -> BoxEncoder:
        """Encoder of its chunks."""
        return BoxEncoder(self.as_volume(), self.merges)

    # --------------------------------------------------------------------------------------------
    # writing

    def prepare(self) -> None:
        """Create folders and documents; repeating it changes nothing."""
        self.array.store.make()
        self.staging.make()
        expect = Expected.ABSENT if self.array.store.can.compares else Expected.ANY
        for name, document in self.documents:
            if self.array.store.states([name]) == [None]:
                with contextlib.suppress(Conflict):  # another process has just created it
                    self.array.store.put(name, document, expect)

    def describe(self) -> None:
        """Write the documents of the array, replacing existing ones."""
        for name, document in self.documents:
            self.array.store.put(name, document)

    def swapped(self, write: Callable[[TargetArray], Receipt]) -> Receipt:
        """Call a function that reads and writes files; in a bucket with files that stay as first
        read, and again if another process has changed one of them since."""
        if not self.is_swapped:
            return write(self)
        for turn in range(_MAX_TURNS):
            store = self.array.store.snapshot(self.record)
            try:
                return write(replace(self, array=self.array.at(store)))
            except Conflict:
                time.sleep(random.uniform(0, min(0.5, 0.01 * 1.3 ** min(turn, 20))))
        raise LockedError(f"{self.folder}: other processes change its files all the time")

    def open_part(self, shard: Vec3, part: Vec3 | None) -> Writer:
        """Start a part of a shard, or a whole shard if ``part`` is None."""
        files, encoder = self.files, self.encoder
        if not files.is_sharded:
            return FilesWriter(files, encoder, shard, part)
        if part is not None:
            return PartWriter(files, encoder, shard, part)
        return (MergingWriter if self.merges else ShardWriter)(files, encoder, shard)

    def join_shard(self, shard: Vec3, parts: Sequence[Receipt]) -> Receipt:
        """Join part files into a shard without decoding chunks, and publish it; single-chunk files
        are published already."""
        return join_shard(self.files, self.encoder, shard, parts)

    def why_decoded(self, source: Volume) -> str:
        """Return why chunks of a volume must be decoded, an empty text if shards can be created
        from its stored bytes."""
        if self.splicer is not None and self.splicer.can_splice(source, self):
            return ""
        if not isinstance(source, StoredArray):
            return "its voxels are converted"
        return (
            "stored voxels around the box are kept"
            if self.merges
            else Splice(source, self.as_volume(), keeps_outside=self.keeps_files).obstacle()
        )

    def splice_shard(self, source: Any, shard: Vec3) -> Receipt:
        """Create a shard from the stored bytes of a volume in the same place, and publish it."""
        if self.splicer is not None and self.splicer.can_splice(source, self):
            return self.splicer.splice_shard(source, self, shard)
        return splice_shard(self.files, source, shard, keeps_outside=self.keeps_files)


def in_place_target(array: StoredArray, write: InPlaceWrite) -> TargetArray:
    """Return an existing array as the target of an in-place write."""
    name, grid = array.name, array.grid
    is_read_only = array.store.is_remote and not array.store.can.compares
    if is_read_only or array.naming is None or array.codec.is_opaque or grid.file is None:
        raise UnsupportedError(
            f"{name}: only arrays on disk or in a bucket, whose files contain boxes of chunks, can "
            "be written in place"
        )
    if array.fill:
        raise UnsupportedError(
            f"{name}: missing chunks read as {array.fill}; only arrays with fill value 0 can be "
            "written in place"
        )
    if array.channels is not None:
        raise UnsupportedError(
            f"{name}: the layer shows {array.num_channels} of the array's {grid.size[0]} channels; "
            "such layers are read-only"
        )
    if not array.extent.contains(write.box):
        raise BoundsError(f"{name}: box {write.box} reaches outside {array.extent}")
    target = replace(by_files(array.at(array.store.at(write.folder))), crop=write.box)
    return TargetArray(
        target,
        target.store.at(write.staging),
        merges=write.merges,
        is_in_place=True,
        record=write.record,
    )
