"""The files of one scale of a precomputed volume in its folder: their names, which of them are there, and what they look like from outside."""

from __future__ import annotations

import contextlib
import re
import stat
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.formats.bounded_streams import BZIP2, XZ, decompress_streams
from wkwdask.formats.precomputed.gzip_stream import decompress_gzip
from wkwdask.formats.wkw.stored_file import check_folder
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_range, mark_cells
from wkwdask.model.extras import need
from wkwdask.model.states import summed_states
from wkwdask.plans.chunks import group_of_chunks
from wkwdask.store import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.formats.precomputed.chunk import ChunkCodec
    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.states import States
    from wkwdask.model.store import StoredEntry
    from wkwdask.plans.cells import CellMap

SUFFIXES = ("", ".gz", ".br", ".zstd", ".xz", ".bz2")
"""What the name of a chunk may end with: as it is, or compressed as a whole, as cloud-volume does on local disks."""
GZIP_MAGIC = b"\x1f\x8b"
_NUMBER = r"(0|-?[1-9]\d*)"  # no leading zeros
_CHUNK_NAME = re.compile("_".join([f"{_NUMBER}-{_NUMBER}"] * 3) + f"({'|'.join(map(re.escape, SUFFIXES[1:]))})?", re.ASCII)
_SHARD_NAME = re.compile(r"([0-9a-f]+)\.(shard|index|data)", re.ASCII)
_MOST_ROOM = 1 << 32  # for a stream that need not say what it gives


# ------------------------------------------------------------------------------------------------ names


def span_name(scale: Scale, n: int, axis: int) -> str:
    """Name the voxels of a chunk along one axis, as the names of files do: absolute voxels, the last ones of the axis cut off."""
    edge, first = scale.chunk_size[axis], scale.voxel_offset[axis]
    return f"{first + n * edge}-{first + min((n + 1) * edge, scale.size[axis])}"


def group_cells(scale: Scale, voxel_nbytes: int) -> Vec3:
    """Say how many chunks along x, y, z are stored together.

    Examples
    --------
    >>> from wkwdask.formats.precomputed.info import Scale
    >>> group_cells(Scale("1", (5000, 5000, 100), (0, 0, 0), (64, 64, 64), (1, 1, 1), "raw"), 4)
    (8, 4, 2)
    """
    grid = scale.grid
    if scale.sharding is not None:
        x, y, z = (1 << (n - 1).bit_length() for n in grid)
        return scale.shard_cells or (x, y, z)
    return group_of_chunks(grid, scale.chunk_size[0] * scale.chunk_size[1] * scale.chunk_size[2] * voxel_nbytes)


def shard_name(scale: Scale, shard_cells: Vec3, index: Vec3) -> str:
    """Name what is stored together, inside the volume's folder: a shard, the first chunk of a group, or the folder where shards are no boxes."""
    first = (index[0] * shard_cells[0], index[1] * shard_cells[1], index[2] * shard_cells[2])
    if scale.sharding is None:
        return f"{scale.key}/{'_'.join(span_name(scale, n, axis) for axis, n in enumerate(first))}"
    if scale.shard_cells is None:
        return scale.key
    shards, _ = scale.sharding.places(compressed_morton.encode([first], scale.grid))
    return f"{scale.key}/{scale.sharding.shard_name(int(shards[0]))}"


# ------------------------------------------------------------------------------------------------ bytes


def largest_nbytes(codec: ChunkCodec, shape: Sequence[int]) -> int:
    """Say how many bytes an encoded chunk has at most; what claims to have more is broken."""
    raw = int(np.prod(shape, dtype=object)) * codec.num_channels * codec.dtype.itemsize
    return raw if codec.encoding == "raw" else 64 * raw + (1 << 20)


def largest_file(largest: int) -> int:
    """Say how many bytes a file has at most that gives so many: compressing what cannot be compressed makes it a little larger."""
    return largest + largest // 8 + 4096


def decompress_file(data: bytes, name: str, path: str, largest: int, codec: ChunkCodec, shape: Vec3) -> bytes:
    """Undo the compression of a chunk's whole file, which its ending says, or its first bytes where a web server or a copy from one kept silent."""
    if name.endswith(".gz") or (data[:2] == GZIP_MAGIC and _is_wrapped(data, codec, shape)):
        return decompress_gzip(data, largest, path, 0)
    if name.endswith(".br"):
        return _decompressed(lambda codecs, room: codecs.brotli_decode(data, out=room), data, "Brotli", largest, path)
    if name.endswith(".zstd"):
        return _decompressed(lambda codecs, room: codecs.zstd_decode(data, out=room), data, "Zstandard", largest, path)
    if name.endswith(".xz"):
        return _no_more(decompress_streams(XZ, data, largest, path, 0), data, "xz", largest, path)
    if name.endswith(".bz2"):
        return _no_more(decompress_streams(BZIP2, data, largest, path, 0), data, "bzip2", largest, path)
    return data


def _is_wrapped(data: bytes, codec: ChunkCodec, shape: Vec3) -> bool:
    """Tell whether what looks like gzip is that: a raw chunk of the right length is not, and no other encoding begins like it."""
    return codec.encoding != "raw" or len(data) != shape[0] * shape[1] * shape[2] * codec.num_channels * codec.dtype.itemsize


def _decompressed(decode: Any, data: bytes, what: str, largest: int, path: str) -> bytes:
    codecs = need("imagecodecs", path, "precomputed")
    try:
        out: bytes = decode(codecs, min(largest, max(_MOST_ROOM, largest // 64)))  # of the room only what is filled takes memory
    except MemoryError:
        raise
    except Exception as error:
        raise CorruptError(f"{path}: byte 0: expected a {what} stream of {len(data)} bytes that gives at most {largest}: {error}") from None
    return out


def _no_more(out: bytes, data: bytes, what: str, largest: int, path: str) -> bytes:
    if len(out) > largest:
        raise CorruptError(f"{path}: byte 0: a {what} stream of {len(data)} bytes gives {len(out)}, expected at most {largest}")
    return out


# ------------------------------------------------------------------------------------------------ what is there


class ChunkFiles(NamedTuple):
    """Files of chunks that lie on the grid."""

    cells: npt.NDArray[np.int64]
    """Their cells along x, y, z, shape (n, 3)."""
    entries: list[StoredEntry]
    """What the folder says of each."""
    suffixes: npt.NDArray[np.int64]
    """The place of each one's ending in ``SUFFIXES``."""


def list_chunks(folder: str, scale: Scale) -> ChunkFiles:
    """List the files of chunks; names that no chunk has are left out."""
    numbers, entries, suffixes = [], [], []
    for entry in _entries(folder):
        named = _CHUNK_NAME.fullmatch(entry.name)
        if named is not None:
            numbers.append(named.groups()[:6])
            suffixes.append(SUFFIXES.index(named[7] or ""))
            entries.append(entry)
    bounds = np.array(numbers, object).reshape(-1, 3, 2)
    is_long = (np.frompyfunc(len, 1, 1)(bounds) > 18).any(axis=(1, 2)) if len(bounds) else np.zeros(0, np.bool_)
    bounds[is_long] = "-9"
    spans = bounds.astype(np.int64) - np.array(scale.voxel_offset)[:, np.newaxis]
    edge, size = np.array(scale.chunk_size), np.array(scale.size)
    cells, rest = np.divmod(spans[:, :, 0], edge)
    good = (rest == 0) & (cells >= 0) & (spans[:, :, 0] < size) & (spans[:, :, 1] == np.minimum(spans[:, :, 0] + edge, size))
    kept = np.flatnonzero(good.all(axis=1) & ~is_long)
    return ChunkFiles(cells[kept], [entries[n] for n in kept.tolist()], np.array(suffixes, np.int64)[kept])


def list_shards(folder: str, scale: Scale) -> dict[int, list[StoredEntry]]:
    """List the files of shards by their numbers; names that no shard has are left out."""
    sharding = scale.sharding
    assert sharding is not None
    found: dict[int, list[StoredEntry]] = {}
    for entry in _entries(folder):
        named = _SHARD_NAME.fullmatch(entry.name)
        if named is not None and len(named[1]) <= 16:
            number = int(named[1], 16)
            if number >> sharding.shard_bits == 0 and entry.name in (sharding.shard_name(number), *sharding.split_names(number)):
                found.setdefault(number, []).append(entry)
    return found


def _entries(folder: str) -> Iterator[StoredEntry]:
    try:
        with files.scandir(folder) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        check_folder(folder)


def file_sizes(folder: str, scale: Scale) -> tuple[int, int]:
    """Count the files of chunks or shards, and their bytes."""
    pattern = _CHUNK_NAME if scale.sharding is None else _SHARD_NAME
    sizes = []
    for entry in _entries(folder):
        if pattern.fullmatch(entry.name):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                sizes.append(entry.stat().st_size)
    return len(sizes), sum(sizes)


def num_files(folder: str, scale: Scale) -> int:
    """Count the files of chunks or shards, by their names alone."""
    pattern = _CHUNK_NAME if scale.sharding is None else _SHARD_NAME
    return sum(1 for entry in _entries(folder) if pattern.fullmatch(entry.name))


def has_files(folder: str, scale: Scale) -> bool:
    """Tell whether a chunk or shard is stored; the listing ends with the first."""
    pattern = _CHUNK_NAME if scale.sharding is None else _SHARD_NAME
    return any(pattern.fullmatch(entry.name) for entry in _entries(folder))


def stored_boxes(folder: str, scale: Scale) -> npt.NDArray[np.int64]:
    """List what is stored: first cell and the one beyond the last, shape (n, 2, 3)."""
    grid = np.array(scale.grid)
    if scale.sharding is None:
        cells = list_chunks(folder, scale).cells
        return np.stack([cells, cells + 1], axis=1)
    numbers = list(list_shards(folder, scale))
    if scale.shard_cells is None:
        return np.array([[[0, 0, 0], grid]] if numbers else [], np.int64).reshape(-1, 2, 3)
    low = _first_cells(scale, numbers)
    low = low[(low < grid).all(axis=1)]
    return np.stack([low, np.minimum(low + scale.shard_cells, grid)], axis=1)


def _first_cells(scale: Scale, shards: Sequence[int]) -> npt.NDArray[np.int64]:
    """Give the first chunk of each shard, where shards are boxes."""
    assert scale.sharding is not None
    within = scale.sharding.preshift_bits + scale.sharding.minishard_bits
    return compressed_morton.decode([shard << within if within < 64 else 0 for shard in shards], scale.grid)


def mark_occupied(found: CellMap, boxes: npt.NDArray[np.int64], scale: Scale, box: BoundingBox, cell_shape: Vec3) -> None:
    """Mark the cells of another grid that hold voxels of some chunks."""
    mark_cells(found, boxes[:, 0] * scale.chunk_size, np.minimum(boxes[:, 1] * scale.chunk_size, scale.size), box, cell_shape)


# ------------------------------------------------------------------------------------------------ states


def states_of(folder: str, scale: Scale, shard_cells: Vec3, indices: Iterable[Vec3]) -> States:
    """Look at some shards or groups of chunks, file by file; absent ones are left out."""
    if scale.sharding is not None and scale.shard_cells is None:
        return all_states(folder, scale, shard_cells)
    rows = [row for index in indices for row in _rows_of(folder, scale, shard_cells, index)]
    return summed_states(rows)


def all_states(folder: str, scale: Scale, shard_cells: Vec3) -> States:
    """Look at all shards or groups of chunks, by one listing of the folder."""
    rows: list[tuple[int, ...]] = []
    if scale.sharding is None:
        files = list_chunks(folder, scale)
        seen = set()
        for n in np.argsort(files.suffixes, kind="stable").tolist():  # of several files of a chunk the one that readers look for first
            x, y, z = files.cells[n].tolist()
            row = _row(files.entries[n].path, (x // shard_cells[0], y // shard_cells[1], z // shard_cells[2]), (x, y, z, int(files.suffixes[n])))
            if row is not None and (x, y, z) not in seen:
                seen.add((x, y, z))
                rows.append(row)
        return summed_states(rows)
    found = list_shards(folder, scale)
    cells = np.zeros((len(found), 3), np.int64) if scale.shard_cells is None else _first_cells(scale, list(found)) // shard_cells
    for index, (shard, entries) in zip(cells.tolist(), found.items(), strict=True):
        found_rows = (_row(entry.path, index, _shard_fields(shard, entry.name.rpartition(".")[2])) for entry in entries)
        rows += [row for row in found_rows if row is not None]
    return summed_states(rows)


_KINDS = ("shard", "index", "data")


def _shard_fields(shard: int, kind: str) -> tuple[int, int, int, int]:
    """Say in numbers which file of a shard is meant."""
    return shard & (1 << 62) - 1, shard >> 62, 0, _KINDS.index(kind)


def _rows_of(folder: str, scale: Scale, shard_cells: Vec3, index: Vec3) -> Iterator[tuple[int, ...]]:
    """Look at the files of one shard, or of one group; of several files of a chunk at the one that readers look for first."""
    if scale.sharding is not None:
        name = shard_name(scale, shard_cells, index).rpartition("/")[2].removesuffix("shard")
        for kind in _KINDS:
            row = _row(f"{folder}/{name}{kind}", index, _shard_fields(int(name[:-1], 16), kind))
            if row is not None:
                yield row
        return
    box = BoundingBox((index[0] * shard_cells[0], index[1] * shard_cells[1], index[2] * shard_cells[2]), shard_cells)
    ranges = cell_range(box.intersection(BoundingBox((0, 0, 0), scale.grid)), (1, 1, 1))
    x_names, y_names, z_names = ({n: span_name(scale, n, axis) for n in cells} for axis, cells in enumerate(ranges))
    for z, y, x in product(z_names, y_names, x_names):
        path = f"{folder}/{x_names[x]}_{y_names[y]}_{z_names[z]}"
        rows = (_row(path + suffix, index, (x, y, z, number)) for number, suffix in enumerate(SUFFIXES))
        row = next((row for row in rows if row is not None), None)
        if row is not None:
            yield row


def _row(path: str, index: Sequence[int], what: tuple[int, ...]) -> tuple[int, ...] | None:
    """Look at a file: the index that it belongs to, what it is, size and time; None where it is absent."""
    try:
        status = files.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (*index, *what, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None
