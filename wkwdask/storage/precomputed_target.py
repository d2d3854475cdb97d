"""One scale of a precomputed volume that is being built in a job's folder, in coordinates that count from its ``voxel_offset``.

Sharded, a part is a part file of encoded chunks (``wkwdask.storage.part_file``), and a shard file is joined of parts without decoding, or written straight
away. Unsharded, a shard is a group of chunks that one task writes, each a file under its final name; a part is some of these files, and a join adds up.
Chunks that are all zero are not stored.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import IncompleteWriteError
from wkwdask.formats.precomputed.gzip_stream import compress_gzip
from wkwdask.formats.precomputed.sharding import INDEX_ENTRY_NBYTES
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.plans.chunks import largest_multiple
from wkwdask.storage.local import NewFile, count_files, remove_tree
from wkwdask.storage.part_file import PartFile, is_whole_part
from wkwdask.storage.precomputed import PrecomputedVolume, is_zero
from wkwdask.storage.precomputed_files import group_cells
from wkwdask.storage.precomputed_splice import splice_shard
from wkwdask.storage.precomputed_writers import ChunkFilesWriter, PartFileWriter, ShardWriter, published
from wkwdask.storage.receipts import Receipt, merge_receipts
from wkwdask.storage.shard_output import ShardOutput
from wkwdask.storage.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.formats.precomputed.chunk import ChunkCodec
    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.storage.part_file import Run
    from wkwdask.storage.volume import PartWriter

SUFFIXES = {None: "", "gzip": ".gz"}
"""What is appended to the name of a chunk's own file, by the way in which it is compressed."""


@dataclass(frozen=True, slots=True)
class PrecomputedTarget:
    """One scale that is being built; small to pickle."""

    folder: str
    """Where its files are published for now."""
    parts_folder: str
    """Where its part files are."""
    scale: Scale
    """What is made."""
    codec: ChunkCodec
    """How its chunks are encoded."""
    mag: Mag
    """Its mag."""
    compress: str | None = None
    """How chunks that are files of their own are compressed, None or ``"gzip"``."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel, in native byte order."""
        return self.codec.dtype

    @property
    def num_channels(self) -> int:
        """Values per voxel."""
        return self.codec.num_channels

    @property
    def box(self) -> BoundingBox:
        """Where data goes [voxels of the scale, counted from ``origin``]."""
        return BoundingBox((0, 0, 0), self.scale.size, self.mag)

    @property
    def origin(self) -> Vec3:
        """Absolute voxel of the scale at which its coordinates start."""
        return self.scale.voxel_offset

    @property
    def chunk_shape(self) -> Vec3:
        """A chunk along x, y, z [voxels]."""
        return self.scale.chunk_size

    @property
    def shard_shape(self) -> Vec3:
        """A shard file, or a group of chunks, along x, y, z [voxels]."""
        x, y, z = (n * edge for n, edge in zip(group_cells(self.scale, self._voxel_nbytes), self.chunk_shape, strict=True))
        return x, y, z

    @property
    def scratch_folder(self) -> str:
        """Where scratch files of the job can be."""
        return f"{self.parts_folder}/scratch"

    @property
    def merges(self) -> bool:
        """Nothing is there before."""
        return False

    @property
    def _voxel_nbytes(self) -> int:
        return self.dtype.itemsize * self.num_channels

    def part_shape(self, nbytes: int) -> Vec3:
        """Choose the largest box of chunks inside a shard whose voxels take at most so many bytes."""
        return largest_multiple(self.chunk_shape, self.shard_shape, self._voxel_nbytes, nbytes)

    def prepare(self) -> None:
        """Make the folders; doing it again changes nothing."""
        os.makedirs(self.folder, exist_ok=True)
        os.makedirs(self.parts_folder, exist_ok=True)

    def as_volume(self) -> PrecomputedVolume:
        """Read what has been published so far."""
        store, key = LocalStore(os.path.dirname(self.folder)), os.path.basename(self.folder)
        return PrecomputedVolume(store, self.dtype, self.num_channels, replace(self.scale, key=key), self.mag)

    def open_part(self, shard: Vec3, part: Vec3 | None) -> PartWriter:
        """Start a part of a shard, or the whole shard where ``part`` is None; chunks come in any order, but in that of identifiers they are written once."""
        if self.scale.sharding is None:
            return ChunkFilesWriter(self, shard, part)
        return ShardWriter(self, shard) if part is None else PartFileWriter(self, shard, part)

    def encoded_chunks(self, array: npt.NDArray[Any], topleft: Vec3) -> Iterator[tuple[Vec3, int, bytes]]:
        """Encode whole chunks, in the order of their identifiers.

        Parameters
        ----------
        array : ndarray, shape (c, x, y, z)
            Voxels inside the box.
        topleft : tuple of 3 int
            Voxel of element 0.

        Yields
        ------
        cell : tuple of 3 int
            Index of the chunk along x, y, z.
        code : int
            Its identifier.
        data : bytes
            The encoded chunk, none where all voxels are zero.
        """
        box = BoundingBox(topleft, array.shape[1:], self.mag)
        places = list(cells(box, self.chunk_shape))
        codes = compressed_morton.encode(places, self.scale.grid)
        for n in np.argsort(codes).tolist():
            inside = cell_box(places[n], self.chunk_shape, box).intersection(box)
            x, y, z = (slice(a - t, b - t) for a, b, t in zip(inside.topleft, inside.bottomright, topleft, strict=True))
            yield places[n], int(codes[n]), self._encoded(array[:, x, y, z], places[n])

    def _encoded(self, chunk: npt.NDArray[Any], cell: Vec3) -> bytes:
        if is_zero(chunk):
            return b""
        return self.packed(self.codec.encode(chunk, self.chunk_path(cell)))

    def packed(self, data: bytes) -> bytes:
        """Compress an encoded chunk as it is stored."""
        gzips = self.compress == "gzip" if self.scale.sharding is None else self.scale.sharding.data_encoding == "gzip"
        is_image = self.scale.encoding == "raw" and self.dtype.itemsize <= 2  # of labels there is more to be gained
        return compress_gzip(data, is_image=is_image) if gzips else data

    def within(self, array: npt.NDArray[Any], topleft: Vec3) -> npt.NDArray[Any]:
        """Leave out voxels beyond the box."""
        x, y, z = (slice(0, high - t) for high, t in zip(self.box.bottomright, topleft, strict=True))
        return array[:, x, y, z]

    def chunk_path(self, cell: Vec3) -> str:
        """Name the file of a chunk that is stored by itself."""
        return f"{self.folder}/{self.scale.chunk_name(cell)}{SUFFIXES[self.compress]}"

    def first_id(self, shard: Vec3) -> int:
        """Give the lowest identifier of the chunks in a shard."""
        x, y, z = (n * edge // step for n, edge, step in zip(shard, self.shard_shape, self.chunk_shape, strict=True))
        return self.scale.chunk_id((x, y, z))

    def shard_path(self, shard: Vec3) -> str:
        """Name a shard file, or the first chunk of a group."""
        sharding = self.scale.sharding
        if sharding is None:
            low = [axis.start for axis in self._cells_of(shard, None)]
            return self.chunk_path((low[0], low[1], low[2]))
        return f"{self.folder}/{sharding.shard_name(self.first_id(shard) >> (sharding.preshift_bits + sharding.minishard_bits))}"

    def part_path(self, shard: Vec3, part: Vec3) -> str:
        """Name a part file."""
        return f"{self._parts_of(shard)}/z{part[2]}y{part[1]}x{part[0]}.run"

    def path_of(self, receipt: Receipt) -> str:
        """Say where a shard or part is stored; of a group of files, where the first one is, or would be."""
        if receipt.part is None or self.scale.sharding is None:
            return self.shard_path(receipt.shard)
        return self.part_path(receipt.shard, receipt.part)

    def _parts_of(self, shard: Vec3) -> str:
        return f"{self.parts_folder}/z{shard[2]}y{shard[1]}x{shard[0]}"

    def _cells_of(self, shard: Vec3, box: BoundingBox | None) -> tuple[range, range, range]:
        """Give the chunks of a shard, or of that part of it which a box touches."""
        whole = cell_box(shard, self.shard_shape, self.box).intersection(self.box)
        return cell_range(whole if box is None else whole.intersection(box), self.chunk_shape)

    def holds(self, receipt: Receipt) -> bool:
        """Tell whether what a receipt says is there and whole: of a shard its size and index are checked, of files their sizes, of a part every byte."""
        if not receipt.nbytes:
            return True
        if self.scale.sharding is None:
            return self._holds_files(receipt)
        if receipt.part is not None:
            return is_whole_part(self.path_of(receipt), receipt.nbytes, receipt.checksum)
        return _is_whole_shard(self.path_of(receipt), receipt.nbytes, self.scale.sharding)

    def _holds_files(self, receipt: Receipt) -> bool:
        xs, ys, zs = self._cells_of(receipt.shard, receipt.box)
        paths = (self.chunk_path((x, y, z)) for z in zs for y in ys for x in xs)
        return count_files(paths) == (receipt.files, receipt.nbytes)

    def encoded_nbytes(self, array: npt.NDArray[Any], topleft: Vec3) -> int:
        """Encode an array (c, x, y, z) of whole chunks, and give the number of bytes."""
        return sum(len(data) for _, _, data in self.encoded_chunks(self.within(array, topleft), topleft))

    def expected_nbytes(self, files: int, voxel_nbytes: int, ratio: float) -> int:
        """Estimate what files take that hold some voxels, encoded at a ratio."""
        tables = 0
        if self.scale.sharding is not None:
            x, y, z = self.chunk_shape
            tables = files * self.scale.sharding.index_nbytes + 24 * (voxel_nbytes // (x * y * z * self._voxel_nbytes))
        return int(voxel_nbytes * ratio) + tables

    def remove_parts(self, shard: Vec3) -> None:
        """Remove the part files of a shard that was joined."""
        if self.scale.sharding is not None:
            remove_tree(self._parts_of(shard))

    def join_shard(self, shard: Vec3, parts: Sequence[Receipt]) -> Receipt:
        """Join part files into one shard, without decoding a chunk, and publish it; chunks that are files of their own are there already.

        Raises
        ------
        IncompleteWriteError
            A part file is gone, and the shard that it was joined into is not there either.
        FormatError
            A part file is damaged.
        """
        receipt = merge_receipts(shard, parts)
        sharding = self.scale.sharding
        stored = [part for part in parts if part.path is not None]
        if sharding is None:
            path = self.shard_path(shard) if stored else None
            return replace(receipt, path=path, nbytes=sum(part.nbytes for part in stored), files=sum(part.files for part in stored) if stored else 1)
        path = self.shard_path(shard)
        try:
            runs: list[Run] = [PartFile(part.path) for part in stored if part.path is not None]
        except FileNotFoundError as error:
            # dask may run a task twice: then the shard was published by the first run, which removed the parts
            if not os.path.exists(path):
                raise IncompleteWriteError(f"{error.filename}: part of {path} is gone before they were joined") from None
            return published(receipt, path)
        if not runs:
            return receipt
        self.write_shard(shard, runs)
        return published(receipt, path)

    def write_shard(self, shard: Vec3, runs: Sequence[Run]) -> None:
        """Copy the chunks of all runs into a shard file, in the order of their identifiers."""
        output = self.open_shard(shard)
        try:
            output.copy_all(runs, math.prod(self.shard_shape) // math.prod(self.chunk_shape))
            output.publish()
        except BaseException:
            output.discard()
            raise

    def splice_shard(self, source: PrecomputedVolume, shard: Vec3) -> Receipt:
        """Make a shard of the chunks that a scale has stored in its place, see :func:`wkwdask.storage.precomputed_splice.splice_shard`."""
        return splice_shard(source, self, shard)

    def open_shard(self, shard: Vec3) -> ShardOutput:
        """Start a shard file."""
        assert self.scale.sharding is not None
        return ShardOutput(self.scale.sharding, self.first_id(shard), lambda: NewFile(self.shard_path(shard), self.parts_folder))


def _is_whole_shard(path: str, nbytes: int, sharding: Sharding) -> bool:
    """Tell whether a shard file is there, has its size, and an index that ends where the file does, as all do that are written here."""
    try:
        with open(path, "rb") as file:
            raw = file.read(sharding.index_nbytes)
            size = os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        return False
    if size != nbytes or len(raw) != sharding.index_nbytes:
        return False
    index = np.frombuffer(raw, "<u8").reshape(-1, INDEX_ENTRY_NBYTES // 8)
    return bool((index[:, 0] <= index[:, 1]).all()) and int(index.max()) == size - sharding.index_nbytes
