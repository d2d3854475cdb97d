"""What volumes over arrays of N5 and Zarr have in common: named axes, a box from voxel 0 on, and files that lie on a grid."""

from __future__ import annotations

import contextlib
import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from wkwdask.errors import MissingError, ReplacedError
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_range, cells, mark_cells
from wkwdask.plans.cells import cell_map
from wkwdask.plans.chunks import group_of_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.formats.block_files import Files
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.states import States
    from wkwdask.plans.cells import CellMap


@dataclass(frozen=True, slots=True)
class Opened:
    """What says that a local array is still the one that was opened."""

    record: tuple[int, int, int]
    """Inode, time and size of the file that describes it."""
    folder: int
    """Inode of its folder."""


def look(record: str) -> Opened | None:
    """Look at the file that describes an array, None where it is absent."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = os.stat(record)
        return Opened((status.st_ino, status.st_mtime_ns, status.st_size), os.stat(os.path.dirname(record)).st_ino)
    return None


class Blocked(ABC):
    """An array with named axes whose files lie on a grid.

    Its shards are groups of files of about 64 MiB: files are too small to be handled one by one.
    """

    __slots__ = ()

    axes: str
    mag: Mag
    part: BoundingBox | None
    channels: tuple[int, int] | None
    opened: Opened | None

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel, in native byte order."""

    @property
    @abstractmethod
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the axes."""

    @property
    @abstractmethod
    def chunk_lengths(self) -> tuple[int, ...]:
        """What is decoded at once, along all axes."""

    @property
    def file_lengths(self) -> tuple[int, ...]:
        """What one file holds, along all axes."""
        return self.chunk_lengths

    @property
    @abstractmethod
    def files(self) -> Files | None:
        """Its files, None where they cannot be looked at: then all are taken to be there."""

    @property
    @abstractmethod
    def record(self) -> str:
        """The file that describes it."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its folder or URL."""

    @abstractmethod
    def is_still_described(self) -> bool:
        """Tell whether the file that describes it still says the same."""

    # -------------------------------------------------------------------------------------------- geometry

    def along(self, lengths: Sequence[int], letter: str) -> int:
        """Pick the length of the axis of a letter; 1 where there is none."""
        return lengths[self.axes.index(letter)] if letter in self.axes else 1

    def vec3(self, lengths: Sequence[int]) -> Vec3:
        """Pick the lengths along x, y, z."""
        return self.along(lengths, "x"), self.along(lengths, "y"), self.along(lengths, "z")

    @property
    def num_channels(self) -> int:
        """Values per voxel."""
        return self.along(self.lengths, "c") if self.channels is None else self.channels[1]

    @property
    def first_channel(self) -> int:
        """The channel of the array that is channel 0 of the volume."""
        return 0 if self.channels is None else self.channels[0]

    @property
    def extent(self) -> BoundingBox:
        """All of it, from voxel 0 on [voxels of its mag]."""
        return BoundingBox((0, 0, 0), self.vec3(self.lengths), self.mag)

    @property
    def box(self) -> BoundingBox:
        """Where it has data [voxels of its mag]."""
        return self.extent if self.part is None else self.part

    def cropped(self, box: BoundingBox) -> Self:
        """Give a part of the volume; reading reaches beyond it as before."""
        return replace(self, part=box)  # type: ignore[type-var]

    @property
    def chunk_shape(self) -> Vec3:
        """What is decoded at once along x, y, z [voxels]."""
        return self.vec3(self.chunk_lengths)

    @property
    def shard_shape(self) -> Vec3:
        """A group of files along x, y, z [voxels]."""
        x, y, z = (n * edge for n, edge in zip(self.shard_cells, self.vec3(self.file_lengths), strict=True))
        return x, y, z

    @property
    def shard_cells(self) -> Vec3:
        """A group of files along x, y, z [files]."""
        edges = self.vec3(self.file_lengths)
        grid = tuple(-(-n // edge) for n, edge in zip(self.extent.size, edges, strict=True))
        return group_of_chunks((grid[0], grid[1], grid[2]), math.prod(edges) * self.along(self.lengths, "c") * self.dtype.itemsize)

    @property
    def grid(self) -> tuple[int, ...]:
        """Files along all axes."""
        return tuple(-(-n // edge) for n, edge in zip(self.lengths, self.file_lengths, strict=True))

    @property
    def folder(self) -> str:
        """Its folder or URL."""
        return self.name

    # -------------------------------------------------------------------------------------------- what is stored

    def check_absence(self) -> None:
        """Make sure that absent files are zeros, and not out of reach or part of another array by now.

        Of a remote array, and of one that is being written, absent files are taken for zeros.
        """
        if self.opened is None:
            return
        if os.path.islink(self.folder) and not os.path.exists(self.folder):
            raise MissingError(f"{self.folder}: a symbolic link to a folder that is not there")
        now = look(self.record)
        if now is None:
            raise MissingError(f"{self.record}: not found: the array is gone or its file system is not mounted")
        if now.folder != self.opened.folder:
            raise ReplacedError(f"{self.folder}: was replaced since it was opened; open it anew")
        if now.record != self.opened.record and not self.is_still_described():
            raise ReplacedError(f"{self.folder}: {os.path.basename(self.record)} describes another array since it was opened; open it anew")

    def is_unchanged(self) -> bool:
        """Tell whether what said that the array is the one that was opened has not changed since."""
        return self.opened is not None and look(self.record) == self.opened

    def is_current(self) -> bool:
        """Tell whether what is there is still the array that was opened; nobody knows of a remote one, which is taken to be."""
        try:
            self.check_absence()
        except (MissingError, ReplacedError):
            return False
        return True

    def has_shards(self) -> bool:
        """Tell whether any file is stored; where they cannot be looked at it is taken to be so."""
        files = self.files
        return files is None or files.any()

    def shard_exists(self, index: Vec3) -> bool:
        """Tell whether any file of a group is stored; where they cannot be looked at they are taken to be."""
        files = self.files
        return files is None or bool(len(files.states_of(self.shard_cells, [index])))

    def shard_path(self, index: Vec3) -> str:
        """Name the first file of a group, or the array where nobody knows how files are named."""
        files = self.files
        x, y, z = (n * edge for n, edge in zip(index, self.shard_cells, strict=True))
        return self.name if files is None else f"{files.folder}/{files.name((x, y, z))}"

    def occupied(self, cell_shape: Vec3) -> CellMap:
        """Tell which cells of a grid have voxels of the box in a stored file, by one listing; all, where files cannot be looked at."""
        files = self.files
        found = cell_map(self.box, cell_shape, self.record, fill=files is None)
        if files is None:
            return found
        stored, edges = files.cells(), self.vec3(self.file_lengths)
        if not len(stored):
            self.check_absence()
        mark_cells(found, stored * edges, (stored + 1) * edges, self.box, cell_shape)
        return found

    def shard_states(self, box: BoundingBox) -> States:
        """Look at the stored groups of files that a part of the volume touches."""
        indices, files = list(cells(box.intersection(self.box), self.shard_shape)), self.files
        if files is not None:
            return files.states_of(self.shard_cells, indices)
        now = None if self.opened is None else look(self.record)
        return np.array([(*index, now.record[2], now.record[1]) for index in indices] if now is not None else [], np.int64).reshape(-1, 5)

    def stored_states(self) -> States:
        """Look at all stored groups of files, as :meth:`shard_states` does, by one listing."""
        files = self.files
        if files is None:
            return self.shard_states(self.box)
        states = files.all_states(self.shard_cells)
        touched = cell_range(self.box, self.shard_shape)
        return states[np.all([(states[:, axis] >= part.start) & (states[:, axis] < part.stop) for axis, part in enumerate(touched)], axis=0)]


def in_order(values: npt.NDArray[Any], axes: str) -> npt.NDArray[Any]:
    """Turn an array with named axes to (c, x, y, z), as a view.

    Examples
    --------
    >>> in_order(np.zeros((5, 4, 1, 2)), "xy-c").shape
    (2, 5, 4, 1)
    """
    kept = [letter for letter in axes if letter != "-"]
    values = values[tuple(slice(None) if letter != "-" else 0 for letter in axes)]
    missing = [letter for letter in "cxyz" if letter not in kept]
    values = values[(np.newaxis,) * len(missing)]
    order = [*missing, *kept]
    return values.transpose([order.index(letter) for letter in "cxyz"])
