"""Names of the files of a stored array: from an index in the grid of files to a name, and back."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wkwdask.geometry.grid import is_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from wkwdask.array_types import IntArray
    from wkwdask.model.chunk_grid import ChunkGrid, Ranges, Vec4
    from wkwdask.model.store import Store, StoredEntry

    FolderFilter = Callable[[Mapping[str, int]], bool]

_AXES = {"c": 0, "x": 1, "y": 2, "z": 3}
_NUMBER = re.compile(r"0|[1-9]\d{0,17}", re.ASCII)


class ListedFile(NamedTuple):
    """Stored file of an array, as its folder lists it."""

    file: Vec4
    """Index in the grid of files; a running number if the chunks of a file form no box."""
    entry: StoredEntry
    """Directory entry."""
    variant: int = 0
    """Index into the names that the file may have."""


class FileVariant(NamedTuple):
    """State of a stored file."""

    variant: int
    """Index into the names that the file may have."""
    nbytes: int
    mtime_ns: int


class KeyNaming(ABC):
    """Base class of naming schemes."""

    __slots__ = ()

    @abstractmethod
    def key(self, file: Vec4) -> str:
        """Return the name of the file at an index.

        Parameters
        ----------
        file : tuple of 4 int
            Index (c, x, y, z) in the grid of files.

        Returns
        -------
        str
            Path relative to the folder of the array, with ``/``.
        """

    @abstractmethod
    def list_files(
        self, store: Store, ranges: Ranges, folder_filter: FolderFilter | None = None
    ) -> Iterator[ListedFile]:
        """Yield the stored files of a box, in no order.

        Parameters
        ----------
        store : Store
            Folder of the array.
        ranges : tuple of 4 range
            Indices of files along c, x, y, z.
        folder_filter : callable, optional
            Called with the indices of a folder by axis letter; folders for which it returns False
            may be skipped.
        """

    def keys(self, ranges: Ranges) -> Iterator[tuple[Vec4, str]]:
        """Yield index and name of the files of a box, c fastest, then x."""
        cs, xs, ys, zs = ranges
        # itertools.product() would store the ranges
        return (
            ((c, x, y, z), self.key((c, x, y, z))) for z in zs for y in ys for x in xs for c in cs
        )

    def locate(self, cells: IntArray, grid: ChunkGrid) -> Iterator[tuple[str, IntArray]]:
        """Group chunks, shape (n, 4), by the files that contain them; yields name and rows."""
        assert grid.file is not None
        files = cells // (np.array(grid.file) // grid.chunk)
        order = np.lexsort(files.T)
        cuts = np.flatnonzero((np.diff(files[order], axis=0) != 0).any(axis=1)) + 1
        for members in np.split(order, cuts):
            c, x, y, z = files[members[0]].tolist()
            yield self.key((c, x, y, z)), members

    def by_file(self, cells: Iterable[Vec4], grid: ChunkGrid) -> dict[str, list[Vec4]]:
        """Group a few chunks by the names of the files that contain them, see :meth:`locate`."""
        assert grid.file is not None
        c, x, y, z = (file // edge for file, edge in zip(grid.file, grid.chunk, strict=True))
        members: dict[Vec4, list[Vec4]] = {}
        for cell in cells:
            file = cell[0] // c, cell[1] // x, cell[2] // y, cell[3] // z
            members.setdefault(file, []).append(cell)
        return {self.key(file): inside for file, inside in members.items()}

    def array_path(self, store: Store) -> str:
        """Return the path of the array: its folder, unless one file contains all of it."""
        return store.url

    def names(self, file: Vec4) -> tuple[str, ...]:
        """Return all names that a file may have, in the order of lookup."""
        return (self.key(file),)

    def file_states(self, store: Store, file: Vec4) -> Iterator[FileVariant]:
        """Yield the state of each existing variant of a file; in a bucket, where each name is a
        request, of the one that readers find."""
        names = self.names(file)
        groups = [(name,) for name in names] if store.can.compares else [names]
        variants = enumerate(state for group in groups for state in store.states(group))
        for variant, state in variants:
            if state is not None:
                yield FileVariant(variant, state.nbytes, state.mtime_ns)
                if store.can.compares:
                    return

    def states_of_files(
        self, store: Store, files: Sequence[Vec4]
    ) -> Iterator[tuple[Vec4, FileVariant]]:
        """Yield the existing variants of some files with their states."""
        return ((file, variant) for file in files for variant in self.file_states(store, file))


@dataclass(frozen=True, slots=True)
class GridNaming(KeyNaming):
    """Names made of the indices of a file, such as ``3/0/12``, ``c/3/0/12``, ``3.0.12`` or
    ``z12/y0/x3.wkw``."""

    axes: str
    """One letter per number: ``x``, ``y``, ``z``, ``c``, or ``-`` for a constant."""
    prefix: str = ""
    """Text before the numbers."""
    separator: str = "/"
    """Text between the numbers; with a slash they are nested folders."""
    is_lettered: bool = False
    """Whether each number follows its axis letter."""
    suffix: str = ""
    """Text after the last number."""
    constants: tuple[int, ...] = ()
    """Constants in the order of the axes, by default 0."""

    def key(self, file: Vec4) -> str:
        """Return the name of the file at an index.

        Examples
        --------
        >>> (
        ...     GridNaming("zyx", "c/").key((0, 12, 0, 3)),
        ...     GridNaming("zyx", "", "/", True, ".wkw").key((0, 12, 0, 3)),
        ... )
        ('c/3/0/12', 'z3/y0/x12.wkw')
        """
        constants = iter(self.constants)
        numbers = [
            str(file[_AXES[letter]] if letter != "-" else next(constants, 0))
            for letter in self.axes
        ]
        if self.is_lettered:
            numbers = [letter + number for letter, number in zip(self.axes, numbers, strict=True)]
        return f"{self.prefix}{self.separator.join(numbers)}{self.suffix}"

    def parse(self, key: str) -> tuple[int, ...] | None:
        """Return the numbers in a name, in the order of the axes; None if the name has another
        form.

        Examples
        --------
        >>> GridNaming("zyx", "c/").parse("c/3/0/12"), GridNaming("zyx", "c/").parse("3.0.12")
        ((3, 0, 12), None)
        """
        if not key.startswith(self.prefix):
            return None
        parts = key[len(self.prefix) :].removesuffix(self.suffix).split(self.separator)
        letters = self.axes if self.is_lettered else [""] * len(self.axes)
        if (
            len(parts) != len(self.axes)
            or key != f"{self.prefix}{self.separator.join(parts)}{self.suffix}"
        ):
            return None
        numbers = [_number(part, letter, "") for part, letter in zip(parts, letters, strict=True)]
        return None if None in numbers else tuple(n for n in numbers if n is not None)

    def list_files(
        self, store: Store, ranges: Ranges, folder_filter: FolderFilter | None = None
    ) -> Iterator[ListedFile]:
        # an axis without a number has find() == -1: the 0 appended below
        c, x, y, z = (self.axes.find(letter) for letter in "cxyz")
        constants = iter(self.constants)
        wanted = [
            ranges[_AXES[letter]] if letter != "-" else range(n := next(constants, 0), n + 1)
            for letter in self.axes
        ]
        for numbers, entry in self.numbered(store, wanted, folder_filter):
            index = (*numbers, 0)
            yield ListedFile((index[c], index[x], index[y], index[z]), entry)

    def numbered(
        self, store: Store, ranges: Sequence[range], folder_filter: FolderFilter | None = None
    ) -> Iterator[tuple[tuple[int, ...], StoredEntry]]:
        """Yield the numbers of the stored files inside some ranges, with their directory
        entries."""
        folder, _, stem = self.prefix.rpartition("/")
        if self.separator == "/":
            return self._nested(
                store, f"{folder}/" if folder else "", stem, ranges, (), folder_filter
            )
        return self._flat(store, folder, stem, ranges)

    def _nested(
        self,
        store: Store,
        folder: str,
        stem: str,
        ranges: Sequence[range],
        above: tuple[int, ...],
        folder_filter: FolderFilter | None,
    ) -> Iterator[tuple[tuple[int, ...], StoredEntry]]:
        axis = len(above)
        prefix, is_last = (
            (stem if axis == 0 else "") + (self.axes[axis] if self.is_lettered else ""),
            axis == len(ranges) - 1,
        )
        for entry in store.entries(folder[:-1]):
            number = _number(entry.name, prefix, self.suffix if is_last else "")
            if number is None or number not in ranges[axis]:
                continue
            numbers = (*above, number)
            if is_last:
                # also broken links and folders: reading them fails, which must not pass for zeros
                yield numbers, entry
            elif (
                folder_filter is None
                or axis < len(ranges) - 2
                or folder_filter(dict(zip(self.axes, numbers, strict=False)))
            ):
                yield from self._nested(
                    store, f"{folder}{entry.name}/", stem, ranges, numbers, folder_filter
                )

    def _flat(
        self, store: Store, folder: str, stem: str, ranges: Sequence[range]
    ) -> Iterator[tuple[tuple[int, ...], StoredEntry]]:
        for entry in store.entries(folder):
            parts = entry.name.removeprefix(stem).removesuffix(self.suffix).split(self.separator)
            if (
                len(parts) == len(ranges)
                and all(map(_NUMBER.fullmatch, parts))
                and entry.name == stem + self.separator.join(parts) + self.suffix
            ):
                numbers = tuple(map(int, parts))
                if is_inside(numbers, ranges):
                    yield numbers, entry


@dataclass(frozen=True, slots=True)
class OneFile(KeyNaming):
    """Name of the file that contains all chunks of an array, and perhaps other arrays."""

    name: str
    inside: str = ""
    """Path of the array inside the file, empty if it contains no other array."""

    def key(self, file: Vec4) -> str:
        return self.name

    def array_path(self, store: Store) -> str:
        """Return the path of the file, and of the array inside it as h5py writes it:
        ``folder/em.h5:/raw``."""
        return (
            f"{store.path_of(self.name)}:/{self.inside}"
            if self.inside
            else store.path_of(self.name)
        )

    def list_files(
        self, store: Store, ranges: Ranges, folder_filter: FolderFilter | None = None
    ) -> Iterator[ListedFile]:
        return (
            ListedFile((0, 0, 0, 0), entry) for entry in store.entries() if entry.name == self.name
        )


def _number(name: str, prefix: str, suffix: str) -> int | None:
    """Parse the number in a name, None if the name has another form."""
    digits = name[len(prefix) : len(name) - len(suffix)]
    return (
        int(digits) if name == f"{prefix}{digits}{suffix}" and _NUMBER.fullmatch(digits) else None
    )
