"""Files that are named by their place in a grid, as those of N5 blocks and Zarr chunks are: ``3/0/12``, ``c/3/0/12``, ``3.0.12``."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.formats.precomputed.files import summed_states
from wkwdask.formats.wkw.stored_file import check_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.states import States

_NUMBER = re.compile(r"0|[1-9]\d{0,17}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Naming:
    """How a file is named by its place."""

    prefix: str = ""
    """What stands before the numbers."""
    separator: str = "/"
    """What stands between them; with a slash they are nested folders."""

    def name(self, cell: Sequence[int]) -> str:
        """Name the file of a cell inside of the folder of all.

        Examples
        --------
        >>> Naming().name((0, 4, 1)), Naming("c/").name((0, 4, 1)), Naming("", ".").name((0, 4, 1))
        ('0/4/1', 'c/0/4/1', '0.4.1')
        """
        return self.prefix + self.separator.join(map(str, cell))

    def listed(self, folder: str, grid: Sequence[int]) -> Iterator[tuple[tuple[int, ...], os.DirEntry[str]]]:
        """List the files that are there, in no order; other names are left out."""
        above, _, stem = self.prefix.rpartition("/")
        folder = f"{folder}/{above}" if above else folder
        if self.separator == "/" and not stem:
            yield from _nested(folder, grid)
            return
        for entry in _entries(folder):
            numbers = entry.name.removeprefix(stem).split(self.separator)
            if entry.name.startswith(stem) and len(numbers) == len(grid) and all(map(_NUMBER.fullmatch, numbers)):
                cell = tuple(map(int, numbers))
                if all(n < count for n, count in zip(cell, grid, strict=True)) and entry.is_file():
                    yield cell, entry


def _nested(folder: str, grid: Sequence[int]) -> Iterator[tuple[tuple[int, ...], os.DirEntry[str]]]:
    for entry in _entries(folder):
        if not _NUMBER.fullmatch(entry.name) or int(entry.name) >= grid[0]:
            continue
        if len(grid) > 1:
            for rest, file in _nested(entry.path, grid[1:]):
                yield (int(entry.name), *rest), file
        elif entry.is_file():
            yield (int(entry.name),), entry


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        check_folder(folder)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of an array in a local folder."""

    folder: str
    """The folder."""
    grid: tuple[int, ...]
    """Files along each axis."""
    axes: str
    """A letter for each axis: ``x``, ``y``, ``z``, ``c``, or ``-`` for another one of length 1."""
    naming: Naming
    """How they are named."""

    def name(self, cell: Vec3, channel_block: int = 0) -> str:
        """Name a file by its place along x, y, z and c."""
        named = {**dict(zip("xyz", cell, strict=True)), "c": channel_block}
        return self.naming.name([named.get(letter, 0) for letter in self.axes])

    def any(self) -> bool:
        """Tell whether there is any; the listing ends with the first."""
        return next(self.naming.listed(self.folder, self.grid), None) is not None

    def cells(self) -> npt.NDArray[np.int64]:
        """List the places along x, y, z of files that are there, shape (n, 3), each once."""
        cells = [self._vec3(cell) for cell, _ in self.naming.listed(self.folder, self.grid)]
        return np.unique(np.array(cells, np.int64).reshape(-1, 3), axis=0)

    def _vec3(self, cell: Sequence[int]) -> Vec3:
        named = dict(zip(self.axes, cell, strict=True))
        return named.get("x", 0), named.get("y", 0), named.get("z", 0)

    def count(self) -> tuple[int, int]:
        """Count the files, and their bytes."""
        sizes = []
        for _, entry in self.naming.listed(self.folder, self.grid):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                sizes.append(entry.stat().st_size)
        return len(sizes), sum(sizes)

    def all_states(self, shard_cells: Vec3) -> States:
        """Look at all groups of files."""
        rows: list[tuple[int, ...]] = []
        for cell, entry in self.naming.listed(self.folder, self.grid):
            place = self._vec3(cell)
            block = cell[self.axes.index("c")] if "c" in self.axes else 0
            rows += _row(entry.path, [n // edge for n, edge in zip(place, shard_cells, strict=True)], place, block)
        return summed_states(rows)

    def states_of(self, shard_cells: Vec3, indices: Iterable[Vec3]) -> States:
        """Look at some groups, file by file; absent files are left out."""
        along = dict(zip(self.axes, self.grid, strict=True))
        rows: list[tuple[int, ...]] = []
        for index in indices:
            ranges = [range(n * edge, min((n + 1) * edge, along.get(letter, 1))) for n, edge, letter in zip(index, shard_cells, "xyz", strict=True)]
            for z, y, x, c in product(*reversed(ranges), range(along.get("c", 1))):
                rows += _row(f"{self.folder}/{self.name((x, y, z), c)}", index, (x, y, z), c)
        return summed_states(rows)


def _row(path: str, index: Sequence[int], cell: Vec3, channel_block: int) -> Iterator[tuple[int, ...]]:
    """Look at a file; nothing where it is absent."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISREG(status.st_mode):
        yield (*index, *cell, channel_block, status.st_size, status.st_mtime_ns)
