"""How the files of a precomputed scale are named: chunks by the voxels that they span, shards by their numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wkwdask.formats.format import IGNORED_NAMES
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.vectors import times
from wkwdask.model.naming import FileVariant, KeyNaming, ListedFile
from wkwdask.store import files

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import ChunkGrid, Ranges, Vec4
    from wkwdask.model.naming import FolderFilter
    from wkwdask.model.store import Store, StoredEntry

SUFFIXES = ("", ".gz", ".br", ".zstd", ".xz", ".bz2")
"""What the name of a chunk may end with: as it is, or compressed as a whole, as cloud-volume does on local disks."""
_NUMBER = r"(0|-?[1-9]\d{0,17})"  # no leading zeros, and no more than an integer of 64 bits holds
_CHUNK_NAME = re.compile("_".join([f"{_NUMBER}-{_NUMBER}"] * 3) + f"({'|'.join(map(re.escape, SUFFIXES[1:]))})?", re.ASCII)
_SHARD_NAME = re.compile(r"([0-9a-f]+)\.(shard|index|data)", re.ASCII)
_KINDS = ("shard", "index", "data")


class ChunkFiles(NamedTuple):
    """Files of chunks that lie on the grid."""

    cells: npt.NDArray[np.int64]
    """Their cells along x, y, z, shape (n, 3)."""
    entries: list[StoredEntry]
    """What the folder says of each."""
    suffixes: npt.NDArray[np.int64]
    """The place of each one's ending in ``SUFFIXES``."""


@dataclass(frozen=True, slots=True)
class SpanNaming(KeyNaming):
    """Chunks that are files of their own, ``0-64_0-64_64-100``: absolute voxels, the last ones of an axis cut off."""

    offset: Vec3
    """Absolute voxel that is stored first."""
    chunk: Vec3
    size: Vec3
    suffix: str = ""
    """Ending of files that are written; those with others are found too."""

    def _span(self, n: int, axis: int) -> str:
        edge, first = self.chunk[axis], self.offset[axis]
        return f"{first + n * edge}-{first + min((n + 1) * edge, self.size[axis])}"

    def stems(self, ranges: Ranges) -> Iterator[tuple[Vec4, str]]:
        """Name the files of a box without their endings, x fastest."""
        x_names, y_names, z_names = ({n: self._span(n, axis) for n in cells} for axis, cells in enumerate(ranges[1:]))
        return (((0, x, y, z), f"{x_names[x]}_{y_names[y]}_{z_names[z]}") for z, y, x in product(z_names, y_names, x_names))

    def stem(self, file: Vec4) -> str:
        """Name the file of a place without its ending."""
        return "_".join(self._span(n, axis) for axis, n in enumerate(file[1:]))

    def key(self, file: Vec4) -> str:
        """Name the file of a place.

        Examples
        --------
        >>> SpanNaming((-5, 0, 0), (64, 64, 64), (100, 100, 100)).key((0, 1, 0, 0))
        '59-95_0-64_0-64'
        """
        return self.stem(file) + self.suffix

    def keys(self, ranges: Ranges) -> Iterator[tuple[Vec4, str]]:
        return ((cell, stem + self.suffix) for cell, stem in self.stems(ranges))

    def names(self, file: Vec4) -> tuple[str, ...]:
        stem = self.stem(file)
        return (stem + self.suffix, *(stem + suffix for suffix in SUFFIXES if suffix != self.suffix))

    def file_states(self, store: Store, file: Vec4) -> Iterator[FileVariant]:
        """Look at the file of a place, of several at the one that readers look for first; nothing where it is absent."""
        stem = self.stem(file)
        for variant, suffix in enumerate(SUFFIXES):
            (state,) = store.states([stem + suffix])
            if state is not None:
                yield FileVariant(variant, state.nbytes, state.mtime_ns)
                return

    def list_files(self, store: Store, ranges: Ranges, wants: FolderFilter | None = None) -> Iterator[ListedFile]:
        """List the stored files of a box, of several of a chunk the one that readers look for first."""
        del wants
        files = self.files(store)
        seen = set()
        for n in np.argsort(files.suffixes, kind="stable").tolist():
            x, y, z = files.cells[n].tolist()
            if (x, y, z) not in seen and _is_in((0, x, y, z), ranges):
                seen.add((x, y, z))
                yield ListedFile((0, x, y, z), files.entries[n], int(files.suffixes[n]))

    def files(self, store: Store) -> ChunkFiles:
        """List all files of chunks; names that no chunk has are left out."""
        numbers, entries, suffixes = [], [], []
        for entry in store.entries():
            named = _CHUNK_NAME.fullmatch(entry.name)
            if named is not None:
                numbers.append(named.groups()[:6])
                suffixes.append(SUFFIXES.index(named[7] or ""))
                entries.append(entry)
        bounds = np.array(numbers, object).reshape(-1, 3, 2)
        spans = bounds.astype(np.int64) - np.array(self.offset)[:, np.newaxis]
        edge, size = np.array(self.chunk), np.array(self.size)
        cells, rest = np.divmod(spans[:, :, 0], edge)
        good = (rest == 0) & (cells >= 0) & (spans[:, :, 0] < size) & (spans[:, :, 1] == np.minimum(spans[:, :, 0] + edge, size))
        kept = np.flatnonzero(good.all(axis=1))
        return ChunkFiles(cells[kept], [entries[n] for n in kept.tolist()], np.array(suffixes, np.int64)[kept])


@dataclass(frozen=True, slots=True)
class ShardNaming(KeyNaming):
    """Shards, ``0a.shard``, or ``0a.index`` and ``0a.data`` in the obsolete layout."""

    sharding: Sharding
    counts: Vec3

    def key(self, file: Vec4) -> str:
        cells = self.sharding.shard_cells(self.counts)
        assert cells is not None
        first = times(file[1:], cells)
        return self.sharding.shard_name(int(self.sharding.places(compressed_morton.encode([first], self.counts))[0][0]))

    def locate(self, cells: npt.NDArray[np.int64], grid: ChunkGrid) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
        """Group chunks by the shards that hold them, boxes or not."""
        del grid
        shards, _ = self.sharding.places(compressed_morton.encode(cells[:, 1:], self.counts))
        order = np.argsort(shards, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            yield self.sharding.shard_name(int(shards[members[0]])), members

    def names(self, file: Vec4) -> tuple[str, ...]:
        stem = self.key(file).removesuffix("shard")
        return tuple(stem + kind for kind in _KINDS)

    def list_files(self, store: Store, ranges: Ranges, wants: FolderFilter | None = None) -> Iterator[ListedFile]:
        """List the files of shards of a box; where these are no boxes, their numbers stand for places."""
        del wants
        cells, within = self.sharding.shard_cells(self.counts), self.sharding.within_bits
        for number, entries in self.files(store).items():
            file = (number & (1 << 62) - 1, number >> 62, 0, 0)
            if cells is not None:
                (first,) = compressed_morton.decode([number << within if within < 64 else 0], self.counts).tolist()
                file = (0, first[0] // cells[0], first[1] // cells[1], first[2] // cells[2])
                if not _is_in(file, ranges):
                    continue
            for entry in entries:
                yield ListedFile(file, entry, _KINDS.index(entry.name.rpartition(".")[2]))

    def files(self, store: Store) -> dict[int, list[StoredEntry]]:
        """List the files of shards by their numbers; names that no shard has are left out."""
        sharding = self.sharding
        found: dict[int, list[StoredEntry]] = {}
        for entry in store.entries():
            named = _SHARD_NAME.fullmatch(entry.name)
            if named is not None and len(named[1]) <= 16:
                number = int(named[1], 16)
                if number >> sharding.shard_bits == 0 and entry.name in (sharding.shard_name(number), *sharding.split_names(number)):
                    found.setdefault(number, []).append(entry)
        return found


def _is_in(file: Vec4, ranges: Ranges) -> bool:
    return all(n in part for n, part in zip(file, ranges, strict=True))


def file_sizes(store: Store, *, is_sharded: bool) -> tuple[int, int]:
    """Count the files of chunks of any size, or of shards, and their bytes."""
    pattern = _SHARD_NAME if is_sharded else _CHUNK_NAME
    sizes = []
    for entry in store.entries():
        if pattern.fullmatch(entry.name):
            try:
                sizes.append(entry.stat().st_size)
            except FileNotFoundError:  # removed meanwhile
                continue
    return len(sizes), sum(sizes)


# ------------------------------------------------------------------------------------------------ the folder of a scale

_RANGE = r"-?\d+--?\d+"
_DATA_FILE = re.compile(rf"{_RANGE}_{_RANGE}_{_RANGE}({'|'.join(map(re.escape, SUFFIXES[1:]))})?|[0-9a-f]+\.(shard|index|data)")


def first_data_file(folder: str) -> str | None:
    """Find a chunk or shard in a folder, None where there is none."""
    return next((entry.path for entry, is_data in _entries(folder) if is_data), None)


def first_stray_file(folder: str) -> str:
    """Name something in a folder that is no part of a scale, an empty text where there is nothing."""
    return next((entry.path for entry, is_data in _entries(folder) if not is_data and not IGNORED_NAMES.fullmatch(entry.name)), "")


def _entries(folder: str) -> Iterator[tuple[StoredEntry, bool]]:
    """List a folder, and tell what is a chunk or shard."""
    try:
        with files.scandir(folder) as entries:
            for entry in entries:
                yield entry, _DATA_FILE.fullmatch(entry.name) is not None and entry.is_file()
    except (FileNotFoundError, NotADirectoryError):
        return
