"""Scratch files of connected components: faces of labelled bricks, pairs of connected labels, and
final ids.

A faces file holds one region: compressed tables and planes of its bricks, an index with a row per
brick that has components, and a footer. All files are published atomically.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import lz4.block
import numpy as np

from wkwdask.errors import CorruptError, MissingError
from wkwdask.store import by_path
from wkwdask.store.paths import dirname, split
from wkwdask.store.store import folders_of, store_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.store import OpenFile

    Plane = npt.NDArray[np.uint32]

_MAGIC = 0x31534543414657  # "WFACES1"
_NUM_FACES = 6
_FOOTER = 4  # int64 numbers: bricks, digest of the source, CRC-32 of the index, magic
_BLOB = 4  # int64 numbers: offset, compressed bytes, shape (2)
_COLUMNS = 6 + _BLOB * (2 + _NUM_FACES)
_TABLE = 4
_IDS_NAME = "ids"


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
    one first. None for a face without labels."""


def write_faces(folder: str, region: Vec3, bricks: Iterable[BrickFaces], sources: int) -> None:
    """Write the faces file of a region. Repeating it is harmless."""
    folders_of(folder).make_folders_below(dirname(folder), folder)
    rows, offset = [], 0
    with store_at(folder).new_file(_name_of(region, "faces")) as file:
        for faces in bricks:
            row = [*faces.brick, len(faces.sizes), faces.num_others, faces.num_dropped]
            for array in (faces.sizes, faces.values, *faces.planes):
                data = (
                    b""
                    if array is None or not array.size
                    else lz4.block.compress(
                        np.ascontiguousarray(array).view(np.uint8), store_size=True
                    )
                )
                file.write(data, offset)
                shape = (0, 0) if array is None else (1, *array.shape)[-2:]
                row += [offset, len(data), *shape]
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

    def _blob(self, row: int, number: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        begin = 6 + _BLOB * number
        offset, nbytes, height, width = self._rows[row, begin : begin + _BLOB].tolist()
        if not nbytes:
            return np.zeros((0, 0), dtype)
        with self._open() as file:
            data = self._read(file, offset, nbytes)
        try:
            return np.frombuffer(lz4.block.decompress(data), dtype).reshape(height, width)
        except (lz4.block.LZ4BlockError, ValueError) as error:
            raise CorruptError(
                f"{self.path}: byte {offset}: {nbytes} bytes are no valid compressed labels: "
                f"{error}"
            ) from None


# ------------------------------------------------------------------------------------------------
# all bricks


@dataclass(frozen=True)
class BrickTable:
    """Table of all bricks with components: the numbers of their nodes and their ids."""

    codes: npt.NDArray[np.int64]
    """Numbers of the bricks, ascending."""
    num_touching: npt.NDArray[np.int64]
    """Number of components of each brick on open faces: its nodes."""
    first_node: npt.NDArray[np.int64]
    first_other: npt.NDArray[np.int64]
    """Id of the first component of each brick without an open face."""

    @classmethod
    def make(cls, codes: npt.NDArray[np.int64], num_touching: npt.NDArray[np.int64]) -> Self:
        """Number the nodes brick by brick."""
        return cls(
            codes,
            num_touching,
            np.cumsum(num_touching) - num_touching,
            np.zeros(len(codes), np.int64),
        )

    @property
    def num_nodes(self) -> int:
        return int(self.num_touching.sum())

    def row_of(self, code: int) -> int | None:
        """Return the row of a brick, None without components."""
        row = int(np.searchsorted(self.codes, code))
        return row if row < len(self.codes) and self.codes[row] == code else None

    def save(self, path: str) -> None:
        columns = [self.codes, self.num_touching, self.first_node, self.first_other]
        folder, name = split(path)
        store_at(folder).put(name, np.array(columns, np.int64).tobytes())


def load_table(path: str) -> BrickTable:
    """Read the table of all bricks; each process caches the last ones."""
    status = store_at(path).status()
    return _loaded(path, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=2)
def _loaded(path: str, *_: int) -> BrickTable:
    return BrickTable(*by_path.read_array(path, np.int64).reshape(_TABLE, -1))


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


def write_ids(folder: str, ids: npt.NDArray[np.uint64]) -> None:
    """Write the final id of each node."""
    with store_at(folder).new_file(_IDS_NAME) as file:
        file.write(ids.view(np.uint8), 0)


def read_ids(folder: str, first: int, num_nodes: int) -> npt.NDArray[np.uint64]:
    """Read the final ids of consecutive nodes."""
    path = store_at(folder).path_of(_IDS_NAME)
    return by_path.read_array(path, np.uint64, num_nodes, offset=8 * first)
