"""One array of an OME-NGFF pyramid that is being built in a job's folder, in coordinates that count from its element 0.

Sharded, a part is a part file of encoded chunks (``wkwdask.storage.part_file``), and one task joins a shard of its parts without decoding, or writes it
straight away. Unsharded, a shard is a group of chunks that one task writes, each a file under its final name. Chunks that are all zero are not stored.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import IncompleteWriteError
from wkwdask.formats.zarr3.chunks import CHECKSUM_NBYTES, checksum, index_nbytes
from wkwdask.formats.zarr3.documents import FILE_NAME, format_document
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.plans.chunks import largest_multiple
from wkwdask.storage.array_file import ArrayRef, ArrayVolume
from wkwdask.storage.local import NewFile, count_files, make_folders_below, publish_bytes, remove_tree
from wkwdask.storage.part_file import PartFile, is_whole_part
from wkwdask.storage.precomputed import is_zero
from wkwdask.storage.precomputed_writers import ChunkFilesWriter, PartFileWriter, ShardWriter, published
from wkwdask.storage.receipts import Receipt, merge_receipts
from wkwdask.storage.slices import file_stamp
from wkwdask.storage.zarr_shard import ZarrShardOutput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.formats.zarr3.chunks import ChunkEncoding
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.storage.part_file import Run
    from wkwdask.storage.volume import PartWriter


@dataclass(frozen=True, slots=True)
class ZarrTarget:
    """One array that is being built; small to pickle."""

    folder: str
    """Where its files are published for now."""
    parts_folder: str
    """Where its part files are."""
    size: Vec3
    """Its voxels along x, y, z."""
    origin: Vec3
    """Absolute voxel of the mag that is element 0."""
    encoding: ChunkEncoding
    """How chunks are stored."""
    shard_cells: Vec3
    """Chunks of a shard, or of a group of chunks that one task writes, along x, y, z: powers of two."""
    is_sharded: bool
    """Whether these are one file."""
    mag: Mag
    """Its mag."""
    zarr_format: int = 3
    """Version of Zarr, 3 or 2."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel, in native byte order."""
        return self.encoding.dtype

    @property
    def num_channels(self) -> int:
        """Values per voxel."""
        return self.encoding.num_channels

    @property
    def box(self) -> BoundingBox:
        """Where data goes [voxels of the mag, counted from ``origin``]."""
        return BoundingBox((0, 0, 0), self.size, self.mag)

    @property
    def chunk_shape(self) -> Vec3:
        """A chunk along x, y, z [voxels]."""
        return self.encoding.chunk_shape

    @property
    def shard_shape(self) -> Vec3:
        """A shard, or a group of chunks, along x, y, z [voxels]."""
        x, y, z = (n * edge for n, edge in zip(self.shard_cells, self.chunk_shape, strict=True))
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
    def _chunks_per_shard(self) -> int:
        return math.prod(self.shard_cells)

    @property
    def _voxel_nbytes(self) -> int:
        return self.dtype.itemsize * self.num_channels

    @property
    def documents(self) -> dict[str, dict[str, Any]]:
        """The files that describe the array, by their names."""
        attributes = {"mag": list(self.mag.factors), "offset_vx": list(self.origin)}
        if self.zarr_format == 2:
            return {".zarray": self.encoding.document_v2(self.size), ".zattrs": attributes}
        return {FILE_NAME: self.encoding.document(self.size, self.shard_shape if self.is_sharded else None, attributes)}

    def part_shape(self, nbytes: int) -> Vec3:
        """Choose the largest box of chunks inside a shard whose voxels take at most so many bytes."""
        return largest_multiple(self.chunk_shape, self.shard_shape, self._voxel_nbytes, nbytes)

    def prepare(self) -> None:
        """Make the folders, and describe the array; doing it again changes nothing."""
        os.makedirs(self.folder, exist_ok=True)
        os.makedirs(self.parts_folder, exist_ok=True)
        for name, document in self.documents.items():
            if not os.path.exists(f"{self.folder}/{name}"):
                publish_bytes(f"{self.folder}/{name}", format_document(document))

    def as_volume(self) -> ArrayVolume:
        """Read what has been published so far, through zarr."""
        record = f"{self.folder}/{next(iter(self.documents))}"
        axes = "".join(self.encoding.axes)
        lengths = dict(zip("cxyz", (self.num_channels, *self.size), strict=True))
        chunks = dict(zip("cxyz", (self.num_channels, *self.chunk_shape), strict=True))
        ref = ArrayRef(
            "zarr", self.folder, "", tuple(lengths[n] for n in axes), self.dtype.newbyteorder("<").str, tuple(chunks[n] for n in axes), 0, file_stamp(record)
        )
        return ArrayVolume(ref, axes, (0, 0, 0), self.box)

    def open_part(self, shard: Vec3, part: Vec3 | None) -> PartWriter:
        """Start a part of a shard, or the whole shard where ``part`` is None."""
        if not self.is_sharded:
            return ChunkFilesWriter(self, shard, part)
        return ShardWriter(self, shard) if part is None else PartFileWriter(self, shard, part)

    def encoded_chunks(self, array: npt.NDArray[Any], topleft: Vec3) -> Iterator[tuple[Vec3, int, bytes]]:
        """Encode whole chunks of one shard, in the order of their codes.

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
            Its compressed Morton code in the shard.
        data : bytes
            The encoded chunk, none where all voxels are zero.
        """
        box = BoundingBox(topleft, array.shape[1:], self.mag)
        places = list(cells(box, self.chunk_shape))
        codes = compressed_morton.encode(np.array(places) % np.array(self.shard_cells), self.shard_cells)
        made = ""
        for n in np.argsort(codes).tolist():
            inside = cell_box(places[n], self.chunk_shape, box).intersection(box)
            x, y, z = (slice(a - t, b - t) for a, b, t in zip(inside.topleft, inside.bottomright, topleft, strict=True))
            voxels = array[:, x, y, z]
            data = b"" if is_zero(voxels) else self.encoding.encode(voxels)
            folder = os.path.dirname(self.chunk_path(places[n]))
            if data and not self.is_sharded and folder != made:
                make_folders_below(self.folder, folder)
                made = folder
            yield places[n], int(codes[n]), data

    def within(self, array: npt.NDArray[Any], topleft: Vec3) -> npt.NDArray[Any]:
        """Leave out voxels beyond the box."""
        x, y, z = (slice(0, high - t) for high, t in zip(self.box.bottomright, topleft, strict=True))
        return array[:, x, y, z]

    def chunk_path(self, cell: Vec3) -> str:
        """Name what has a key: a chunk, or a shard."""
        first = "c/" if self.zarr_format == 3 else ""
        channel = "0/" if self.num_channels > 1 else ""
        return f"{self.folder}/{first}{channel}{cell[2]}/{cell[1]}/{cell[0]}"

    def shard_path(self, shard: Vec3) -> str:
        """Name a shard, or the first chunk of a group."""
        if self.is_sharded:
            return self.chunk_path(shard)
        x, y, z = (n * count for n, count in zip(shard, self.shard_cells, strict=True))
        return self.chunk_path((x, y, z))

    def first_id(self, shard: Vec3) -> int:
        """Give the lowest code of a shard: codes count anew in each."""
        del shard
        return 0

    def part_path(self, shard: Vec3, part: Vec3) -> str:
        """Name a part file."""
        return f"{self._parts_of(shard)}/z{part[2]}y{part[1]}x{part[0]}.run"

    def path_of(self, receipt: Receipt) -> str:
        """Say where a shard or part is stored; of a group of files, where the first one is, or would be."""
        if receipt.part is None or not self.is_sharded:
            return self.shard_path(receipt.shard)
        return self.part_path(receipt.shard, receipt.part)

    def _parts_of(self, shard: Vec3) -> str:
        return f"{self.parts_folder}/z{shard[2]}y{shard[1]}x{shard[0]}"

    def holds(self, receipt: Receipt) -> bool:
        """Tell whether what a receipt says is there and whole: of a shard its size and index are checked, of files their sizes, of a part every byte."""
        if not receipt.nbytes:
            return True
        if not self.is_sharded:
            return self._holds_files(receipt)
        if receipt.part is not None:
            return is_whole_part(self.path_of(receipt), receipt.nbytes, receipt.checksum)
        return _is_whole_shard(self.path_of(receipt), receipt.nbytes, index_nbytes(self._chunks_per_shard))

    def _holds_files(self, receipt: Receipt) -> bool:
        whole = cell_box(receipt.shard, self.shard_shape, self.box).intersection(self.box)
        xs, ys, zs = cell_range(whole if receipt.box is None else whole.intersection(receipt.box), self.chunk_shape)
        paths = (self.chunk_path((x, y, z)) for z in zs for y in ys for x in xs)
        return count_files(paths) == (receipt.files, receipt.nbytes)

    def encoded_nbytes(self, array: npt.NDArray[Any], topleft: Vec3) -> int:
        """Encode an array (c, x, y, z) of whole chunks, and give the number of bytes."""
        return sum(0 if is_zero(array) else len(self.encoding.encode(array)) for array in self._chunks_of(self.within(array, topleft), topleft))

    def _chunks_of(self, array: npt.NDArray[Any], topleft: Vec3) -> Iterator[npt.NDArray[Any]]:
        box = BoundingBox(topleft, array.shape[1:], self.mag)
        for cell in cells(box, self.chunk_shape):
            inside = cell_box(cell, self.chunk_shape, box).intersection(box)
            x, y, z = (slice(a - t, b - t) for a, b, t in zip(inside.topleft, inside.bottomright, topleft, strict=True))
            yield array[:, x, y, z]

    def expected_nbytes(self, files: int, voxel_nbytes: int, ratio: float) -> int:
        """Estimate what files take that hold some voxels, encoded at a ratio."""
        return int(voxel_nbytes * ratio) + (files * index_nbytes(self._chunks_per_shard) if self.is_sharded else 0)

    def remove_parts(self, shard: Vec3) -> None:
        """Remove the part files of a shard that was joined."""
        if self.is_sharded:
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
        stored = [part for part in parts if part.path is not None]
        path = self.shard_path(shard)
        if not self.is_sharded:
            files = sum(part.files for part in stored) if stored else 1
            return replace(receipt, path=path if stored else None, nbytes=sum(part.nbytes for part in stored), files=files)
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
        """Copy the chunks of all runs into a shard, in the order of their codes."""
        output = self.open_shard(shard)
        try:
            output.copy_all(runs, self._chunks_per_shard)
            output.publish()
        except BaseException:
            output.discard()
            raise

    def open_shard(self, shard: Vec3) -> ZarrShardOutput:
        """Start a shard."""
        return ZarrShardOutput(self.shard_cells, lambda: self._new_file(self.shard_path(shard)))

    def _new_file(self, path: str) -> NewFile:
        make_folders_below(self.folder, os.path.dirname(path))
        return NewFile(path, self.parts_folder)


def _is_whole_shard(path: str, nbytes: int, tail: int) -> bool:
    """Tell whether a shard is there, has its size, and an index that is not damaged."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size != nbytes or nbytes < tail:
                return False
            file.seek(nbytes - tail)
            index = file.read(tail)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return len(index) == tail and checksum(index[:-CHECKSUM_NBYTES]) == index[-CHECKSUM_NBYTES:]
