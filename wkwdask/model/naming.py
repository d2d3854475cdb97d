"""How the files of a stored array are named: from a place in the grid of files to a name, and back."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from wkwdask.model.chunk_grid import ChunkGrid, Ranges, Vec4
    from wkwdask.model.store import Store, StoredEntry

    FolderFilter = Callable[[Mapping[str, int]], bool]

_AXES = {"c": 0, "x": 1, "y": 2, "z": 3}
_NUMBER = re.compile(r"0|[1-9]\d{0,17}", re.ASCII)


class ListedFile(NamedTuple):
    """One file of an array that is stored."""

    file: Vec4
    """Its place in the grid of files; of files whose chunks are no box, its number."""
    entry: StoredEntry
    """What its folder says of it."""
    variant: int = 0
    """Which of the names that the file may have."""


class FileVariant(NamedTuple):
    """State of one file that is stored."""

    variant: int
    """Which of the names that the file may have."""
    nbytes: int
    """Its size."""
    mtime_ns: int
    """Time of modification [ns]."""


class KeyNaming(ABC):
    """How files are named."""

    __slots__ = ()

    @abstractmethod
    def key(self, file: Vec4) -> str:
        """Name the file of a place."""

    @abstractmethod
    def list_files(self, store: Store, ranges: Ranges, wants: FolderFilter | None = None) -> Iterator[ListedFile]:
        """List the stored files of a box, in no order; folders of files are left out that are not wanted, of which the numbers along some axes are known."""

    def keys(self, ranges: Ranges) -> Iterator[tuple[Vec4, str]]:
        """Name the files of a box, c fastest, then x."""
        cs, xs, ys, zs = ranges
        return (((c, x, y, z), self.key((c, x, y, z))) for z in zs for y in ys for x in xs for c in cs)  # product() would hold the ranges

    def locate(self, cells: npt.NDArray[np.int64], grid: ChunkGrid) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
        """Group chunks, shape (n, 4), by the files that hold them: name, and which rows."""
        assert grid.file is not None
        files = cells // (np.array(grid.file) // grid.chunk)
        order = np.lexsort(files.T)
        cuts = np.flatnonzero((np.diff(files[order], axis=0) != 0).any(axis=1)) + 1
        for members in np.split(order, cuts):
            c, x, y, z = files[members[0]].tolist()
            yield self.key((c, x, y, z)), members

    def names(self, file: Vec4) -> tuple[str, ...]:
        """Return all names that the file of a place may have, that of :meth:`key` first."""
        return (self.key(file),)

    def file_states(self, store: Store, file: Vec4) -> Iterator[FileVariant]:
        """Look at the file of a place; nothing where it is absent."""
        for variant, state in enumerate(store.states(self.names(file))):
            if state is not None:
                yield FileVariant(variant, state.nbytes, state.mtime_ns)


@dataclass(frozen=True, slots=True)
class GridNaming(KeyNaming):
    """Files that are named by the numbers of their place: ``3/0/12``, ``c/3/0/12``, ``3.0.12``, ``z12/y0/x3.wkw``."""

    axes: str
    """A letter for each number: ``x``, ``y``, ``z``, ``c``, or ``-`` for 0."""
    prefix: str = ""
    """What comes before the numbers."""
    separator: str = "/"
    """What comes between them; with a slash they are nested folders."""
    is_lettered: bool = False
    """Whether each number follows its letter."""
    suffix: str = ""
    """What comes after the last number."""

    def key(self, file: Vec4) -> str:
        """Name the file of a place.

        Examples
        --------
        >>> GridNaming("zyx", "c/").key((0, 12, 0, 3)), GridNaming("zyx", "", "/", True, ".wkw").key((0, 12, 0, 3))
        ('c/3/0/12', 'z3/y0/x12.wkw')
        """
        numbers = [str(file[_AXES[letter]]) if letter != "-" else "0" for letter in self.axes]
        if self.is_lettered:
            numbers = [letter + number for letter, number in zip(self.axes, numbers, strict=True)]
        return f"{self.prefix}{self.separator.join(numbers)}{self.suffix}"

    def list_files(self, store: Store, ranges: Ranges, wants: FolderFilter | None = None) -> Iterator[ListedFile]:
        """List the stored files of a box, in no order, see :meth:`KeyNaming.list_files`."""
        c, x, y, z = (self.axes.find(letter) for letter in "cxyz")  # of an axis without a number, the 0 behind all numbers
        for numbers, entry in self.numbered(store, [ranges[_AXES[letter]] if letter != "-" else range(1) for letter in self.axes], wants):
            places = (*numbers, 0)
            yield ListedFile((places[c], places[x], places[y], places[z]), entry)

    def numbered(self, store: Store, ranges: Sequence[range], wants: FolderFilter | None = None) -> Iterator[tuple[tuple[int, ...], StoredEntry]]:
        """List the numbers of the files that are stored, each in its range, and what their folders say of them."""
        folder, _, stem = self.prefix.rpartition("/")
        if self.separator == "/":
            return self._nested(store, f"{folder}/" if folder else "", stem, ranges, (), wants)
        return self._flat(store, folder, stem, ranges)

    def _nested(
        self, store: Store, folder: str, stem: str, ranges: Sequence[range], above: tuple[int, ...], wants: FolderFilter | None
    ) -> Iterator[tuple[tuple[int, ...], StoredEntry]]:
        axis = len(above)
        start, is_last = (stem if axis == 0 else "") + (self.axes[axis] if self.is_lettered else ""), axis == len(ranges) - 1
        for entry in store.entries(folder[:-1]):
            number = _number(entry.name, start, self.suffix if is_last else "")
            if number is None or number not in ranges[axis]:
                continue
            numbers = (*above, number)
            if is_last:
                if not entry.is_dir():  # a link to nowhere is one that readers trip over
                    yield numbers, entry
            elif wants is None or axis < len(ranges) - 2 or wants(dict(zip(self.axes, numbers, strict=False))):
                yield from self._nested(store, f"{folder}{entry.name}/", stem, ranges, numbers, wants)

    def _flat(self, store: Store, folder: str, stem: str, ranges: Sequence[range]) -> Iterator[tuple[tuple[int, ...], StoredEntry]]:
        for entry in store.entries(folder):
            parts = entry.name.removeprefix(stem).removesuffix(self.suffix).split(self.separator)
            if len(parts) == len(ranges) and all(map(_NUMBER.fullmatch, parts)) and entry.name == stem + self.separator.join(parts) + self.suffix:
                numbers = tuple(map(int, parts))
                if all(n in part for n, part in zip(numbers, ranges, strict=True)) and not entry.is_dir():
                    yield numbers, entry


def _number(name: str, start: str, end: str) -> int | None:
    """Read the number in a name, None where it is another one."""
    digits = name[len(start) : len(name) - len(end)]
    return int(digits) if name == f"{start}{digits}{end}" and _NUMBER.fullmatch(digits) else None
