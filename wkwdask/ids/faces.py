"""Scratch files of connected components: labelled bricks, pairs of connected labels, and final ids.

A faces file holds one region: compressed tables, planes and runs of its bricks, each with a
checksum, an index with a row per brick that has components, and a footer. All files are published
atomically.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import lz4.block
import numpy as np

from wkwdask.errors import CorruptError, MissingError
from wkwdask.ids.sorted_runs import map_column
from wkwdask.kernels.labels.components import LabelRuns
from wkwdask.store import by_path
from wkwdask.store.paths import split
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.store import OpenFile

    Plane = npt.NDArray[np.uint32]

_MAGIC = 0x32534543414657  # "WFACES2"
_NUM_FACES = 6
_NUM_RUN_ARRAYS = 4
_FOOTER = 4  # int64 numbers: bricks, digest of the source, CRC-32 of the index, magic
_BLOB = 4  # int64 numbers: offset, compressed bytes, their CRC-32, rows
_COLUMNS = 6 + _BLOB * (2 + _NUM_FACES + _NUM_RUN_ARRAYS)
_IDS_NAME = "ids"
T = TypeVar("T", bound="NodeTable")


@dataclass(frozen=True, slots=True)
class BrickFaces:
    """Data of one labelled brick that joining needs."""

    brick: Vec3
    num_others: int
    """Number of kept components that touch no open face."""
    num_dropped: int
    """Number of components that touch no open face and are too small."""
    sizes: npt.NDArray[np.int64]
    """Voxels of the components 1, 2... that touch an open face."""
    values: npt.NDArray[np.uint64]
    """Values of these components, as bits."""
    planes: tuple[Plane | None, ...]
    """Labels on the lower and upper faces along x, y, z, shape (v, u): the remaining axes, slower
    one first. None for a face without labels, or beyond which there is nothing to join."""
    runs: LabelRuns
    """All labels of the brick: those of components that touch an open face, then those of the
    others, and 0 for components that are too small."""

    def arrays(self) -> Iterator[AnyArray | None]:
        """Yield all arrays in the order of the file."""
        yield from (self.sizes, self.values, *self.planes)
        # narrower types compress faster
        runs, width = self.runs, self.runs.shape[0]
        yield np.diff(runs.first).astype(np.min_scalar_type(width))
        yield runs.begin.astype(np.min_scalar_type(width))
        yield (runs.end - runs.begin).astype(np.min_scalar_type(width))
        yield runs.labels


def write_faces(folder: str, region: Vec3, bricks: Iterable[BrickFaces], sources: int) -> None:
    """Write the faces file of a region. Repeating it is harmless."""
    store_at(folder).make(in_existing=True)
    rows, offset = [], 0
    with store_at(folder).new_file(_name_of(region, "faces")) as file:
        for faces in bricks:
            row = [*faces.brick, len(faces.sizes), faces.num_others, faces.num_dropped]
            for array in faces.arrays():
                data = (
                    b""
                    if array is None or not array.size
                    else lz4.block.compress(
                        np.ascontiguousarray(array).view(np.uint8), store_size=True
                    )
                )
                file.write(data, offset)
                rows_of_array = len(array) if array is not None and array.ndim == 2 else 1
                row += [offset, len(data), zlib.crc32(data), rows_of_array]
                offset += len(data)
            rows.append(row)
        index = np.array(rows, np.int64).reshape(-1, _COLUMNS).tobytes()
        file.write(
            index + np.array([len(rows), sources, zlib.crc32(index), _MAGIC], np.int64).tobytes(),
            offset,
        )


def _name_of(region: Vec3, suffix: str) -> str:
    return "z{}y{}x{}.{}".format(*reversed(region), suffix)


class FacesFile:
    """Faces file of one region."""

    def __init__(self, folder: str, region: Vec3) -> None:
        self._store, self._name = store_at(folder), _name_of(region, "faces")
        self.path = self._store.path_of(self._name)
        with self._open() as file:
            nbytes = file.nbytes
            footer = (
                self._read(file, nbytes - _FOOTER * 8, _FOOTER * 8).view(np.int64)
                if nbytes >= _FOOTER * 8
                else np.zeros(_FOOTER, np.int64)
            )
            num_bricks, self.sources, checksum, magic = footer.tolist()
            begin = nbytes - (_FOOTER + num_bricks * _COLUMNS) * 8
            if magic != _MAGIC or begin < 0:
                raise CorruptError(
                    f"{self.path}: {nbytes} bytes have no valid footer of a faces file"
                )
            index = self._read(file, begin, num_bricks * _COLUMNS * 8)
        if zlib.crc32(index.tobytes()) != checksum:
            raise CorruptError(f"{self.path}: the index at byte {begin} is damaged")
        self._rows = index.view(np.int64).reshape(num_bricks, _COLUMNS)

    def _open(self) -> OpenFile:
        (file,) = self._store.open_heads([self._name], 0)
        if file is None:
            raise MissingError(f"{self.path}: not found")
        return file

    def _read(self, file: OpenFile, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        data = np.empty(nbytes, np.uint8)
        file.read_into(data, offset)
        return data

    def check(self) -> None:
        """Read everything; raises CorruptError for damage."""
        for row in range(len(self._rows)):
            for number in range((_COLUMNS - 6) // _BLOB):
                self._blob(row, number, np.dtype(np.uint8))

    @property
    def bricks(self) -> npt.NDArray[np.int64]:
        """Columns: index along x, y, z, components on open faces, kept ones without, dropped ones;
        shape (n, 6)."""
        bricks: npt.NDArray[np.int64] = self._rows[:, :6]
        return bricks

    def row_of(self, brick: Vec3) -> int | None:
        """Return the row of a brick, None without components."""
        rows = np.flatnonzero((self._rows[:, :3] == brick).all(axis=1))
        return int(rows[0]) if len(rows) else None

    def sizes(self, row: int) -> npt.NDArray[np.int64]:
        sizes: npt.NDArray[np.int64] = self._blob(row, 0, np.dtype(np.int64)).ravel()
        return sizes

    def values(self, row: int) -> npt.NDArray[np.uint64]:
        values: npt.NDArray[np.uint64] = self._blob(row, 1, np.dtype(np.uint64)).ravel()
        return values

    def plane(self, row: int, face: int) -> Plane | None:
        """Read the labels on a face: 2 * axis for the lower, 2 * axis + 1 for the upper one; None
        without labels."""
        plane: Plane = self._blob(row, 2 + face, np.dtype(np.uint32))
        return plane if plane.size else None

    def runs(self, row: int, shape: Vec3) -> LabelRuns:
        """Read all labels of a brick of a shape."""
        narrow, number = np.min_scalar_type(shape[0]), 2 + _NUM_FACES
        counts, begin, lengths = (self._blob(row, number + n, narrow).ravel() for n in range(3))
        first = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=first[1:])
        starts = begin.astype(np.int32)
        ends = np.add(starts, lengths, dtype=np.int32)
        labels = self._blob(row, number + 3, np.dtype(np.uint32)).ravel()
        return LabelRuns(shape, first, starts, ends, labels)

    def _blob(self, row: int, number: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        begin = 6 + _BLOB * number
        offset, nbytes, checksum, height = self._rows[row, begin : begin + _BLOB].tolist()
        if not nbytes:
            return np.zeros((0, 0), dtype)
        with self._open() as file:
            data = self._read(file, offset, nbytes)
        if zlib.crc32(data.tobytes()) != checksum:
            raise CorruptError(f"{self.path}: {nbytes} bytes at byte {offset} are damaged")
        blob = np.frombuffer(lz4.block.decompress(data), np.uint8).reshape(height, -1)
        return blob.view(dtype)


def load_faces(folder: str, region: Vec3) -> FacesFile:
    """Open the faces file of a region; each process keeps the last ones open."""
    (state,) = store_at(folder).states([_name_of(region, "faces")])
    return _opened(folder, region, *(state or ()))


@lru_cache(maxsize=2)
def _opened(folder: str, region: Vec3, *_: int) -> FacesFile:
    return FacesFile(folder, region)


# ------------------------------------------------------------------------------------------------
# all bricks


@dataclass(frozen=True)
class NodeTable:
    """Table of all bricks with nodes: labels of one brick that may be joined with those of
    others."""

    codes: npt.NDArray[np.int64]
    """Numbers of the bricks, ascending."""
    num_nodes: npt.NDArray[np.int64]
    """Number of nodes of each brick."""

    @cached_property
    def first_node(self) -> npt.NDArray[np.int64]:
        """First node of each brick; nodes are numbered brick by brick."""
        first: npt.NDArray[np.int64] = np.cumsum(self.num_nodes) - self.num_nodes
        return first

    @property
    def total_nodes(self) -> int:
        return int(self.num_nodes.sum())

    def row_of(self, code: int) -> int | None:
        """Return the row of a brick; None without nodes."""
        row = int(np.searchsorted(self.codes, code))
        return row if row < len(self.codes) and self.codes[row] == code else None

    def nodes(self, row: int, labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the nodes of some labels of a brick, -1 for background."""
        return np.where(labels > 0, labels.astype(np.int64) + (self.first_node[row] - 1), -1)

    def save(self, path: str) -> None:
        folder, name = split(path)
        columns = [getattr(self, field.name) for field in fields(self)]
        store_at(folder).put(name, np.array(columns, np.int64).tobytes())


@dataclass(frozen=True)
class BrickTable(NodeTable):
    """Table of all bricks with components; those on open faces are nodes."""

    first_other: npt.NDArray[np.int64]
    """Id of the first component of each brick without an open face."""


def load_table(path: str, kind: type[T]) -> T:
    """Read the table of all bricks; each process caches the last ones."""
    folder, name = split(path)
    (state,) = store_at(folder).states([name])
    table: T = _loaded(path, cast("Any", kind), *(state or ()))
    return table


@lru_cache(maxsize=2)
def _loaded(path: str, kind: Any, *_: int) -> Any:
    columns = by_path.read_array(path, np.int64)
    return kind(*columns.reshape(len(fields(kind)), -1))


def write_pairs(folder: str, region: Vec3, pairs: npt.NDArray[np.int64]) -> None:
    """Write the pairs of joined nodes of a region, shape (n, 2), with a checksum. Repeating it is
    harmless."""
    data = np.ascontiguousarray(pairs).tobytes()
    checksum = np.int64(zlib.crc32(data)).tobytes()
    store_at(folder).put(_name_of(region, "pairs"), data + checksum)


def read_pairs(folder: str, region: Vec3) -> npt.NDArray[np.int64]:
    """Read the pairs of a region, shape (n, 2)."""
    store, name = store_at(folder), _name_of(region, "pairs")
    data, nbytes = by_path.read_array(store.path_of(name), np.int64), store.status(name).st_size
    if nbytes % 16 != 8 or zlib.crc32(data[:-1].tobytes()) != data[-1]:
        raise CorruptError(
            f"{store.path_of(name)}: {nbytes} bytes are no pairs with a valid checksum"
        )
    return data[:-1].reshape(-1, 2)


def write_ids(folder: str, parts: Iterable[npt.NDArray[np.uint64]]) -> None:
    """Write the final ids of all nodes, given in parts."""
    offset = 0
    with store_at(folder).new_file(_IDS_NAME) as file:
        for ids in parts:
            file.write(ids.view(np.uint8), offset)
            offset += ids.nbytes


def read_ids(folder: str, first: int, num_nodes: int) -> npt.NDArray[np.uint64]:
    """Read the final ids of consecutive nodes."""
    path = store_at(folder).path_of(_IDS_NAME)
    return by_path.read_array(path, np.uint64, num_nodes, offset=8 * first)


def map_ids_of_nodes(folder: str, num_nodes: int) -> npt.NDArray[np.uint64]:
    """Map the final ids of all nodes into memory."""
    return map_column(store_at(folder).path_of(_IDS_NAME), np.dtype(np.uint64), 0, num_nodes)
