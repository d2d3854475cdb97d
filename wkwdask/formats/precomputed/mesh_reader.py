"""Read meshes of labels in several levels of detail, in shards or not (neuroglancer,
``precomputed/meshes.rst``, "multi-resolution mesh format"). Never writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wkwdask.errors import CorruptError, MissingError, TruncatedError, UnsupportedError
from wkwdask.formats.compressed_streams import decompress_gzip
from wkwdask.formats.precomputed.meshes import MANIFEST_SUFFIX, TYPE, LevelOfDetail
from wkwdask.formats.precomputed.sharding import (
    INDEX_ENTRY_NBYTES,
    locate_one,
    parse_minishard_index,
    parse_sharding,
)
from wkwdask.model.extras import import_extra
from wkwdask.model.json_text import Problems, parse_object
from wkwdask.model.levels import is_number
from wkwdask.model.parsing import reading
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.model.store import Store, StoredFile

_INFO = "info"
_MOST_INFO_NBYTES = 1 << 20
_MOST_MANIFEST_NBYTES = 1 << 30
_MOST_INDEX_NBYTES = 1 << 28  # of a minishard, unpacked
_BATCH_NBYTES = 32 << 20
_MOST_DRAWN_NBYTES = 8 << 20
_HEAD_NBYTES, _LEVEL_NBYTES, _FRAGMENT_NBYTES = 28, 20, 16
_MOST_LEVELS = 64
_MOST_TABLES = 1 << 12  # of minishards, each read for a count of labels


@dataclass(frozen=True, slots=True)
class MeshInfo:
    """``info`` of a folder of meshes."""

    bits: int
    """Bits of a coordinate of a vertex in its fragment."""
    transform: npt.NDArray[np.float64]
    """Affine map from positions of the format to those of the volume [nm], shape (3, 4)."""
    sharding: Sharding | None
    """Shards, None if each label has two files."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Manifest of one label."""

    chunk_shape: npt.NDArray[np.float64]
    """Edge lengths of a cell of the finest level."""
    origin: npt.NDArray[np.float64]
    """Lowest corner of the cells."""
    offsets: npt.NDArray[np.float64]
    """Offset of the vertices of each level, shape (n, 3)."""
    levels: tuple[LevelOfDetail, ...]
    """Fragments of each level, finest first."""

    @property
    def nbytes(self) -> int:
        """Size of all fragments."""
        return sum(sum(level.sizes) for level in self.levels)


class StoredMesh(NamedTuple):
    """Place of the fragments of one label."""

    label: int
    manifest: Manifest
    name: str
    """File that holds the fragments."""
    start: int
    """First byte of the fragments in it."""


class Triangles(NamedTuple):
    """Surface of one label."""

    vertices: npt.NDArray[np.float64]
    """Positions along x, y, z [nm], shape (n, 3)."""
    faces: npt.NDArray[np.int64]
    """Vertices of each face, shape (m, 3)."""


def parse_mesh_info(raw: bytes, path: str) -> MeshInfo:
    """Parse the ``info`` of a folder of meshes; raises UnsupportedError for other kinds of them."""
    document = parse_object(raw, path)
    if document.get("@type") != TYPE:
        raise UnsupportedError(f"{path}: meshes of type {document.get('@type')!r}, not {TYPE!r}")
    problems = Problems()
    bits = document.get("vertex_quantization_bits")
    if bits not in (10, 16):
        problems.add("vertex_quantization_bits", "10 or 16", bits)
    numbers = document.get("transform", np.eye(3, 4).ravel().tolist())
    if not (isinstance(numbers, list) and len(numbers) == 12 and all(map(is_number, numbers))):
        problems.add("transform", "12 numbers", numbers)
    stated = document.get("sharding")
    sharding = None if stated is None else parse_sharding(stated, "sharding", problems)
    if problems.messages:
        raise CorruptError(f"{path}: {'; '.join(problems.messages)}")
    return MeshInfo(int(bits or 0), np.array(numbers, float).reshape(3, 4), sharding)


def parse_manifest(raw: bytes, path: str, offset: int = 0) -> Manifest:
    """Parse a manifest that begins at some byte of a file.

    Examples
    --------
    >>> from wkwdask.formats.precomputed.meshes import format_manifest
    >>> level = LevelOfDetail(np.array([[0, 0, 0], [1, 0, 0]]), [100, 80])
    >>> parse_manifest(format_manifest((256, 256, 256), [level]), "1.index").nbytes
    180
    """
    where = f"{path}: byte {offset}: a manifest of {len(raw)} bytes"
    num_levels = int(np.frombuffer(raw, "<u4", 1, 24)[0]) if len(raw) >= _HEAD_NBYTES else 0
    if num_levels > _MOST_LEVELS or (num_levels < 1 and len(raw) >= _HEAD_NBYTES):
        raise CorruptError(f"{where} states {num_levels} levels of detail, expected 1 to 64")
    first = _HEAD_NBYTES + _LEVEL_NBYTES * num_levels
    if len(raw) < first:
        raise TruncatedError(f"{where} ends in its head, expected at least {first} bytes")
    chunk_shape, origin = np.frombuffer(raw, "<f4", 6).astype(float).reshape(2, 3)
    scales = np.frombuffer(raw, "<f4", num_levels, _HEAD_NBYTES)
    at = _HEAD_NBYTES + 4 * num_levels
    offsets = np.frombuffer(raw, "<f4", 3 * num_levels, at).astype(float).reshape(-1, 3)
    counts = np.frombuffer(raw, "<u4", num_levels, at + 12 * num_levels).tolist()
    if len(raw) != first + _FRAGMENT_NBYTES * sum(counts):
        expected = first + _FRAGMENT_NBYTES * sum(counts)
        raise CorruptError(f"{where}, expected {expected} for {sum(counts)} fragments")
    used = scales[scales != 0]
    if not (np.isfinite([*chunk_shape, *origin, *scales]).all() and (chunk_shape > 0).all()):
        raise CorruptError(f"{where}: expected finite numbers, and cells that are not empty")
    if (np.diff(used) < 0).any():
        raise CorruptError(f"{where}: lod_scales {scales.tolist()} decrease")
    levels = []
    for count in counts:
        cells = np.frombuffer(raw, "<u4", 3 * count, first).reshape(3, count).T.astype(np.int64)
        sizes = np.frombuffer(raw, "<u4", count, first + 12 * count).tolist()
        levels.append(LevelOfDetail(cells, sizes))
        first += _FRAGMENT_NBYTES * count
    return Manifest(chunk_shape, origin, offsets, tuple(levels))


@dataclass(frozen=True, slots=True)
class MeshShard:
    """Tables of an open shard: a manifest is listed, and its fragments lie directly before it."""

    file: StoredFile
    sharding: Sharding

    def minishards(self) -> Iterator[tuple[int, npt.NDArray[np.uint64]]]:
        """Yield numbers of minishards, with labels, first bytes and sizes of manifests, shape
        (3, n)."""
        ends = self._read(0, self.sharding.index_nbytes, "its index")
        table = np.frombuffer(ends, "<u8").reshape(-1, 2).tolist()
        for number, (start, stop) in enumerate(table):
            if start != stop:
                yield number, self._parse(number, start, stop)

    def minishard(self, number: int) -> npt.NDArray[np.uint64]:
        """Return labels, first bytes and sizes of the manifests of a minishard, shape (3, n)."""
        row = number * INDEX_ENTRY_NBYTES
        ends = self._read(row, row + INDEX_ENTRY_NBYTES, "its index")
        start, stop = np.frombuffer(ends, "<u8").tolist()
        return np.zeros((3, 0), np.uint64) if start == stop else self._parse(number, start, stop)

    def manifest(self, label: int, start: int, nbytes: int) -> Manifest:
        """Read and parse a manifest."""
        raw = self._read(start, start + nbytes, f"the manifest of label {label}")
        if self.sharding.data_encoding == "gzip":
            raw = decompress_gzip(raw, _MOST_MANIFEST_NBYTES, self.file.name, start)
        return parse_manifest(raw, self.file.name, start)

    def _parse(self, number: int, start: int, stop: int) -> npt.NDArray[np.uint64]:
        base, what = self.sharding.index_nbytes, f"the index of minishard {number}"
        if not start < stop <= start + _MOST_INDEX_NBYTES:
            raise CorruptError(f"{self.file.name}: {what} lies from {start} to {stop}")
        raw = self._read(base + start, base + stop, what)
        if self.sharding.minishard_index_encoding == "gzip":
            raw = decompress_gzip(raw, _MOST_INDEX_NBYTES, self.file.name, base + start)
        size = None if self.file.nbytes is None else self.file.nbytes - base
        labels, starts, sizes = parse_minishard_index(raw, self.file.name, base + start, size)
        return np.stack([labels, starts + np.uint64(base), sizes])

    def _read(self, start: int, stop: int, what: str) -> bytes:
        return read_range(self.file, start, stop, what)


def read_range(file: StoredFile, start: int, stop: int, what: str) -> bytes:
    """Read bytes of a file; raises TruncatedError or MissingError that names them."""
    if file.nbytes is not None and stop > file.nbytes:
        raise TruncatedError(
            f"{file.name}: ends at byte {file.nbytes}, expected {what} from byte {start} to {stop}"
        )
    parts = file.read([(start, stop)])
    if parts is None:
        raise MissingError(f"{file.name}: no such file")
    return parts[0]


@dataclass(frozen=True, slots=True)
class MeshFolder:
    """Folder of meshes; small to pickle."""

    store: Store
    info: MeshInfo

    @property
    def folder(self) -> str:
        return self.store.url

    def labels(self) -> Sequence[int]:
        """List the labels with a manifest, ascending."""
        sharding, names = self.info.sharding, self.store.names()
        if sharding is None:
            stems = (name.removesuffix(MANIFEST_SUFFIX) for name in names if "." in name)
            return sorted(int(stem) for stem in stems if stem.isdecimal())
        found: list[int] = []
        for name in self.shard_names():
            with self.opened(name) as file:
                for _, table in MeshShard(file, sharding).minishards():
                    found += table[0].tolist()
        return sorted(found)

    def count_labels(self) -> int | None:
        """Count the labels with a manifest; None if the tables of their shards are many."""
        sharding = self.info.sharding
        if sharding and len(self.shard_names()) << sharding.minishard_bits > _MOST_TABLES:
            return None
        return len(self.labels())

    def opened(self, name: str) -> StoredFile:
        """Open a file; raises MissingError if it is absent."""
        file = self.store.open(name)
        if file is None:
            raise MissingError(f"{self.store.path_of(name)}: no such file")
        return file

    def shard_names(self) -> list[str]:
        return [name for name in self.store.names() if name.endswith(".shard")]

    def find(self, label: int) -> StoredMesh:
        """Find the mesh of a label; raises MissingError if there is none."""
        missing = MissingError(f"{self.folder}: no mesh of label {label}")
        sharding = self.info.sharding
        if sharding is None:
            name = f"{label}{MANIFEST_SUFFIX}"
            (raw,) = self.store.read_whole([name], _MOST_MANIFEST_NBYTES)
            if raw is None:
                raise missing
            return StoredMesh(label, parse_manifest(raw, self.store.path_of(name)), str(label), 0)
        shard, minishard = locate_one(sharding, label)
        file = self.store.open(sharding.shard_name(shard))
        if file is None:
            raise missing
        with file:
            opened = MeshShard(file, sharding)
            table = opened.minishard(minishard)
            row = int(np.searchsorted(table[0], np.uint64(label)))
            if row == table.shape[1] or int(table[0][row]) != label:
                raise missing
            start, nbytes = (int(n) for n in table[1:, row])
            manifest = opened.manifest(label, start, nbytes)
        return StoredMesh(label, manifest, sharding.shard_name(shard), start - manifest.nbytes)

    def triangles(self, label: int, lod: int | None = None) -> Triangles:
        """Read the surface of a label in a level of detail, by default the finest one that is
        quickly drawn."""
        mesh = self.find(label)
        sizes = [sum(level.sizes) for level in mesh.manifest.levels]
        if lod is None:
            quick = (n for n, nbytes in enumerate(sizes) if nbytes <= _MOST_DRAWN_NBYTES)
            lod = next(quick, len(sizes) - 1)
        vertices, faces, count = [np.zeros((0, 3))], [np.zeros((0, 3), np.int64)], 0
        with self.opened(mesh.name) as file:
            for level, cell, data in fragments(mesh, file, [lod]):
                points, triangles = decode_fragment(data, self.info, f"{file.name}: label {label}")
                size = mesh.manifest.chunk_shape * (1 << level)
                local = cell + points / ((1 << self.info.bits) - 1)
                vertices.append(mesh.manifest.offsets[level] + size * local)
                faces.append(triangles + count)
                count += len(points)
        placed = np.concatenate(vertices) + mesh.manifest.origin
        transform = self.info.transform
        return Triangles(placed @ transform[:, :3].T + transform[:, 3], np.concatenate(faces))


def open_meshes(folder: str) -> MeshFolder:
    """Open a folder of meshes."""
    store = store_at(folder)
    (raw,) = store.read_whole([_INFO], _MOST_INFO_NBYTES)
    if raw is None:
        raise MissingError(f"{store.path_of(_INFO)}: no such file: no meshes here")
    return MeshFolder(store, parse_mesh_info(raw, store.path_of(_INFO)))


def fragments(
    mesh: StoredMesh, file: StoredFile, lods: Sequence[int]
) -> Iterator[tuple[int, npt.NDArray[np.int64], bytes]]:
    """Yield level, cell and bytes of the fragments of some levels that are not empty."""
    start = mesh.start
    for lod, level in enumerate(mesh.manifest.levels):
        ends = start + np.cumsum([0, *level.sizes])
        start, n = int(ends[-1]), 0
        while lod in lods and n < len(level.sizes):
            stop = max(n + 1, int(np.searchsorted(ends, ends[n] + _BATCH_NBYTES)))
            stop = min(stop, len(level.sizes))
            low, high = int(ends[n]), int(ends[stop])
            data = read_range(file, low, high, f"fragments of label {mesh.label}")
            for row in range(n, stop):
                if level.sizes[row]:
                    part = data[int(ends[row]) - low : int(ends[row + 1]) - low]
                    yield lod, level.positions[row], part
            n = stop


def decode_fragment(
    data: bytes, info: MeshInfo, source: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Decode a fragment: positions of vertices in their cell, and faces."""
    draco = import_extra("DracoPy", "meshes", "meshes")
    with reading(source, "Draco"):
        decoded = draco.decode(data)
        points = np.asarray(decoded.points, float).reshape(-1, 3)
        faces = np.asarray(decoded.faces, np.int64).reshape(-1, 3)
    largest = (1 << info.bits) - 1
    if not ((points >= 0) & (points <= largest)).all():
        raise CorruptError(f"{source}: vertices lie outside of their cell, expected 0 to {largest}")
    if not len(faces) or faces.min() < 0 or faces.max() >= len(points):
        raise CorruptError(f"{source}: expected faces between {len(points)} vertices")
    return points, faces
