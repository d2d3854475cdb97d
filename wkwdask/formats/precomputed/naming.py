"""File names of a precomputed scale: chunks are named by the voxels they span, shards by their
hexadecimal numbers.

Sources: neuroglancer, ``precomputed/volume.rst``, "unsharded chunk storage", and
``precomputed/sharded.rst``, "sharded chunk storage".
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wkwdask.formats.level_folders import IGNORED_NAMES
from wkwdask.formats.precomputed.sharding import locate_one
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.grid import is_inside
from wkwdask.geometry.vectors import times
from wkwdask.model.naming import FileVariant, KeyNaming, ListedFile
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wkwdask.array_types import IntArray
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import ChunkGrid, Ranges, Vec4
    from wkwdask.model.naming import FolderFilter
    from wkwdask.model.store import Store, StoredEntry

SUFFIXES = ("", ".gz", ".br", ".zstd", ".xz", ".bz2")
"""Suffixes of chunk files in the order of lookup. cloud-volume compresses files on local disks and
appends the suffix."""
_NUMBER = r"(0|-?[1-9]\d{0,17})"  # no leading zeros, and within 64 bits
_CHUNK_NAME = re.compile(
    "_".join([f"{_NUMBER}-{_NUMBER}"] * 3) + f"({'|'.join(map(re.escape, SUFFIXES[1:]))})?",
    re.ASCII,
)
_SHARD_NAME = re.compile(r"([0-9a-f]+)\.(shard|index|data)", re.ASCII)
_KINDS = ("shard", "index", "data")
_SAMPLED_NAMES = 1000


@lru_cache(maxsize=1 << 14)  # the names of a volume are made of few spans
def _span(n: int, edge: int, first: int, size: int) -> str:
    return f"{first + n * edge}-{first + min((n + 1) * edge, size)}"


class ChunkFiles(NamedTuple):
    """Listing of the chunk files in a folder."""

    cells: IntArray
    """Grid positions along x, y, z, shape (n, 3)."""
    entries: list[StoredEntry]
    suffixes: IntArray
    """Indices in ``SUFFIXES``."""


@dataclass(frozen=True, slots=True)
class SpanNaming(KeyNaming):
    """Names of unsharded chunks, such as ``0-64_0-64_64-100``: absolute voxels, clipped to the size
    of the scale."""

    offset: Vec3
    """First absolute voxel of the scale."""
    chunk: Vec3
    size: Vec3
    suffix: str = ""
    """Suffix of new files; existing files are found with any suffix."""

    def _span(self, n: int, axis: int) -> str:
        return _span(n, self.chunk[axis], self.offset[axis], self.size[axis])

    def stems(self, ranges: Ranges) -> Iterator[tuple[Vec4, str]]:
        """Yield cells and names without suffix of the files in a box, x fastest."""
        x_names, y_names, z_names = (
            {n: self._span(n, axis) for n in cells} for axis, cells in enumerate(ranges[1:])
        )
        return (
            ((0, x, y, z), f"{x_names[x]}_{y_names[y]}_{z_names[z]}")
            for z, y, x in product(z_names, y_names, x_names)
        )

    def stem(self, file: Vec4) -> str:
        _, x, y, z = file
        return f"{self._span(x, 0)}_{self._span(y, 1)}_{self._span(z, 2)}"

    def key(self, file: Vec4) -> str:
        """Return the name of a file.

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
        return tuple(stem + suffix for suffix in SUFFIXES)

    def file_states(self, store: Store, file: Vec4) -> Iterator[FileVariant]:
        """Yield the stored file of a chunk; of several with different suffixes, the first in the
        order of lookup."""
        stem = self.stem(file)
        for variant, suffix in enumerate(SUFFIXES):
            (state,) = store.states([stem + suffix])
            if state is not None:
                yield FileVariant(variant, state.nbytes, state.mtime_ns)
                return

    def states_of_files(
        self, store: Store, files: Sequence[Vec4]
    ) -> Iterator[tuple[Vec4, FileVariant]]:
        # mostly all files have the first suffix, which is none
        plain = store.states(map(self.stem, files))
        for file, state in zip(files, plain, strict=True):
            if state is not None:
                yield file, FileVariant(0, *state)
            else:
                yield from ((file, variant) for variant in self.file_states(store, file))

    def list_files(
        self, store: Store, ranges: Ranges, folder_filter: FolderFilter | None = None
    ) -> Iterator[ListedFile]:
        """List the stored files of a box; of several for one chunk, the first in the order of
        lookup."""
        del folder_filter
        if 0 not in ranges[0]:
            return
        files = self.files(store)
        low, high = ([getattr(part, end) for part in ranges[1:]] for end in ("start", "stop"))
        inside = np.flatnonzero(((files.cells >= low) & (files.cells < high)).all(axis=1))
        inside = inside[np.argsort(files.suffixes[inside], kind="stable")]
        seen = set()
        for n, (x, y, z), suffix in zip(
            inside.tolist(),
            files.cells[inside].tolist(),
            files.suffixes[inside].tolist(),
            strict=True,
        ):
            if (x, y, z) not in seen:
                seen.add((x, y, z))
                yield ListedFile((0, x, y, z), files.entries[n], suffix)

    def files(self, store: Store) -> ChunkFiles:
        """List all chunk files of a folder, without names that match no chunk of the grid."""
        numbers, entries, suffixes = [], [], []
        for entry in store.entries():
            named = _CHUNK_NAME.fullmatch(entry.name)
            if named is not None:
                numbers.append(named.groups()[:6])
                suffixes.append(SUFFIXES.index(named[7] or ""))
                entries.append(entry)
        # All names of a folder are checked at once: there may be millions.
        bounds = np.array(numbers, object).reshape(-1, 3, 2)
        spans = bounds.astype(np.int64) - np.array(self.offset)[:, np.newaxis]
        edge, size = np.array(self.chunk), np.array(self.size)
        cells, rest = np.divmod(spans[:, :, 0], edge)
        is_on_grid = (
            (rest == 0)
            & (cells >= 0)
            & (spans[:, :, 0] < size)
            & (spans[:, :, 1] == np.minimum(spans[:, :, 0] + edge, size))
        )
        rows = np.flatnonzero(is_on_grid.all(axis=1))
        return ChunkFiles(
            cells[rows], [entries[n] for n in rows.tolist()], np.array(suffixes, np.int64)[rows]
        )


@dataclass(frozen=True, slots=True)
class ShardNaming(KeyNaming):
    """Names of shards: ``0a.shard``, or ``0a.index`` and ``0a.data`` in the obsolete layout of two
    files."""

    sharding: Sharding
    counts: Vec3

    def key(self, file: Vec4) -> str:
        return self.sharding.shard_name(self.number(file))

    def number(self, file: Vec4) -> int:
        """Return the number of a shard, given as :meth:`index` returns it."""
        if file[0]:
            return file[1] << 62 | (file[0] - 1)
        cells = self.sharding.shard_cells(self.counts)
        assert cells is not None
        first = times(file[1:], cells)
        return int(self.sharding.locate(compressed_morton.encode([first], self.counts))[0][0])

    def index(self, number: int) -> Vec4:
        """Return the position of a shard in the grid of shards; its number in two parts, the first
        one plus 1, if shards are not boxes or the shard is outside of the grid."""
        cells, within = self.sharding.shard_cells(self.counts), self.sharding.within_bits
        if cells is not None:
            code = number << within if within < 64 else 0
            (first,) = compressed_morton.decode([code], self.counts).tolist()
            file = (0, first[0] // cells[0], first[1] // cells[1], first[2] // cells[2])
            if all(n < count for n, count in zip(first, self.counts, strict=True)) and (
                self.number(file) == number
            ):
                return file
        return 1 + (number & (1 << 62) - 1), number >> 62, 0, 0

    def locate(self, cells: IntArray, grid: ChunkGrid) -> Iterator[tuple[str, IntArray]]:
        """Group chunks by shard, also if shards are not boxes."""
        del grid
        shards, _ = self.sharding.locate(compressed_morton.encode(cells[:, 1:], self.counts))
        order = np.argsort(shards, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            yield self.sharding.shard_name(int(shards[members[0]])), members

    def by_file(self, cells: Iterable[Vec4], grid: ChunkGrid) -> dict[str, list[Vec4]]:
        del grid
        members: dict[str, list[Vec4]] = {}
        for cell in cells:
            code = compressed_morton.code_of(cell[1:], self.counts)
            name = self.sharding.shard_name(locate_one(self.sharding, code)[0])
            members.setdefault(name, []).append(cell)
        return members

    def names(self, file: Vec4) -> tuple[str, ...]:
        stem = self.key(file).removesuffix("shard")
        return tuple(stem + kind for kind in _KINDS)

    def list_files(
        self, store: Store, ranges: Ranges, folder_filter: FolderFilter | None = None
    ) -> Iterator[ListedFile]:
        """List the files of shards in a box. Shards that are not boxes are all listed, with their
        number instead of a position."""
        del folder_filter
        is_box = self.sharding.shard_cells(self.counts) is not None
        for number, entries in self.files(store).items():
            file = self.index(number)
            for entry in entries if not is_box or is_inside(file, ranges) else ():
                yield ListedFile(file, entry, _KINDS.index(entry.name.rpartition(".")[2]))

    def files(self, store: Store) -> dict[int, list[StoredEntry]]:
        """Return the files of each shard by its number, without names that match no shard."""
        sharding = self.sharding
        by_number: dict[int, list[StoredEntry]] = {}
        for entry in store.entries():
            named = _SHARD_NAME.fullmatch(entry.name)
            if named is not None and len(named[1]) <= 16:
                number = int(named[1], 16)
                if number >> sharding.shard_bits == 0 and entry.name in (
                    sharding.shard_name(number),
                    *sharding.split_names(number),
                ):
                    by_number.setdefault(number, []).append(entry)
        return by_number


def stored_suffix(store: Store) -> str:
    """Return the most frequent suffix of the chunk files in a folder, by the first of them; empty
    if there are none."""
    matches = (
        _CHUNK_NAME.fullmatch(entry.name) for entry in islice(store.entries(), _SAMPLED_NAMES)
    )
    counts = Counter(named[7] or "" for named in matches if named is not None)
    return max(SUFFIXES, key=counts.__getitem__)


def file_sizes(store: Store, *, is_sharded: bool) -> tuple[int, int]:
    """Return number and total size of the chunk files (of any chunk size) or shards of a folder."""
    pattern = _SHARD_NAME if is_sharded else _CHUNK_NAME
    sizes = []
    for entry in store.entries():
        if pattern.fullmatch(entry.name):
            try:
                sizes.append(entry.stat().st_size)
            except FileNotFoundError:  # removed meanwhile
                continue
    return len(sizes), sum(sizes)


# ------------------------------------------------------------------------------------------------
# the folder of a scale

_RANGE = r"-?\d+--?\d+"
_DATA_FILE = re.compile(
    rf"{_RANGE}_{_RANGE}_{_RANGE}({'|'.join(map(re.escape, SUFFIXES[1:]))})?|[0-9a-f]+\.(shard|index|data)"  # noqa: E501
)


def first_data_file(folder: str) -> str | None:
    """Return the path of a chunk or shard in a folder, None if there is none."""
    return next((entry.path for entry, is_data in _entries(folder) if is_data), None)


def first_stray_file(folder: str) -> str:
    """Return the path of an entry that does not belong to a scale, ``""`` if there is none."""
    return next(
        (
            entry.path
            for entry, is_data in _entries(folder)
            if not is_data and not IGNORED_NAMES.fullmatch(entry.name)
        ),
        "",
    )


def _entries(folder: str) -> Iterator[tuple[StoredEntry, bool]]:
    """Yield the entries of a folder, and whether each is a chunk or shard."""
    for entry in store_at(folder).entries():
        yield entry, _DATA_FILE.fullmatch(entry.name) is not None and entry.is_file()
