"""Files of a stored array: which shards are stored, under which names, and in which states."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice, product
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry.bounding_box import BoundingBox, counted_from
from wkwdask.geometry.grid import cell_range
from wkwdask.model.layout import cell_batches
from wkwdask.model.naming import FileVariant
from wkwdask.model.states import FILE_RECORD_NAME, FILE_RECORD_NBYTES, summed_states
from wkwdask.plans.cells import SparseCells, cell_map

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wkwdask.array_types import IntArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import ChunkGrid, Ranges, Vec4
    from wkwdask.model.identity import Identity
    from wkwdask.model.naming import FolderFilter, KeyNaming, ListedFile
    from wkwdask.model.states import States
    from wkwdask.model.store import FileState, Store
    from wkwdask.plans.cells import CellMap

_FIRST_TRIED = 16  # files asked for by name before folders are listed
_SAMPLED_FILES = 256  # files whose sizes are averaged
# for more files, list folders: one listing replaces a request for each missing file
_TRIED_FILES = 1 << 10


@dataclass(frozen=True, slots=True)
class ArrayFiles:
    """Files of a stored array, found by name or by listing folders, see
    :class:`wkwdask.model.volume.VolumeFiles`."""

    store: Store
    """Folder of the array."""
    grid: ChunkGrid
    naming: KeyNaming | None
    """Names of the files, None if unknown."""
    identity: Identity
    box: BoundingBox
    """Bounding box [absolute voxels of its mag]."""
    fill: int | float
    """Value of missing chunks."""

    @property
    def name(self) -> str:
        """Path of the array."""
        return self.store.url if self.naming is None else self.naming.array_path(self.store)

    @property
    def extent(self) -> BoundingBox:
        """Box of the whole array [voxels of its mag]."""
        return BoundingBox(self.grid.origin, self.grid.size[1:], self.box.mag)

    @property
    def written(self) -> FileState | None:
        """State of the record of the files, which each job that writes into the array replaces."""
        return self.store.states([FILE_RECORD_NAME])[0] if self.store.can.states else None

    @property
    def can_list(self) -> bool:
        """Whether files can be listed; if not, all are assumed to exist."""
        return self.naming is not None and self.store.can.lists

    def possible_names(self) -> Iterator[tuple[str, ...]]:
        """Yield all names that each file of the box may have."""
        assert self.naming is not None
        if self.grid.file is not None:
            yield from (
                self.naming.names(file) for file, _ in self.naming.keys(self._files(self.box))
            )
            return
        # shards are no boxes, so each chunk is asked for its shard
        cells = self.grid.cells((0, 0, 0, 0), self.grid.size)
        yield from (
            (key,)
            for key in {
                key
                for batch in cell_batches(cells, self.grid)
                for key, _ in self.naming.locate(batch, self.grid)
            }
        )

    def listed(self, folder_filter: FolderFilter | None = None) -> Iterator[ListedFile]:
        """List the stored files that contain parts of the box."""
        assert self.naming is not None
        return self.naming.list_files(self.store, self._files(self.box), folder_filter)

    def _files(self, box: BoundingBox) -> Ranges:
        """Return the files that contain parts of a box; all files if their chunks form no box."""
        grid, counts = self.grid, self.grid.file_counts
        if grid.file is None:
            c, x, y, z = map(range, counts)
            return c, x, y, z
        inside = box.intersection(self.extent)
        touched = cell_range(counted_from(inside, grid.origin), grid.file[1:])
        return range(counts[0]), *touched

    def nested_names(self, box: BoundingBox) -> Iterator[str]:
        """Yield the names of the files that contain parts of a box, if they lie in folders below
        that of the array."""
        if self.naming is not None and "/" in self.naming.key((0, 0, 0, 0)):
            yield from (name for _, name in self.naming.keys(self._files(box)))

    def has_shards(self) -> bool:
        """Return whether any file is stored; always True if files cannot be listed."""
        if not self.can_list:
            return True
        assert self.naming is not None
        if self.grid.file is not None:
            # Ask for a few files by name first: a dense array has one of them, and no large folder
            # needs to be listed.
            c, x, y, z = (cells[:_FIRST_TRIED] for cells in self._files(self.box))
            first = islice(self.naming.keys((c, x, y, z)), _FIRST_TRIED)
            if any(True for file, _ in first for _ in self.naming.file_states(self.store, file)):
                return True
        return next(self.listed(), None) is not None

    def count(self) -> tuple[int, int] | None:
        """Return number and estimated size of the files of the box, None if they cannot be
        listed."""
        if not self.can_list:
            return None
        count = 0
        sizes: list[int] = []
        for file in self.listed():
            count += 1
            if len(sizes) < _SAMPLED_FILES:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    sizes.append(file.entry.stat().st_size)
        return count, sum(sizes) * count // max(1, len(sizes))

    def shard_path(self, index: Vec3) -> str:
        """Return the path of the file with the first voxel of a shard, or of the array if names are
        unknown."""
        if self.naming is None or self.grid.file is None:
            return self.name
        axes = zip(index, self.grid.unit, self.grid.origin, self.grid.file[1:], strict=True)
        x, y, z = (max(0, (n * edge - o) // edge) * edge // file for n, edge, o, file in axes)
        return self.store.path_of(self.naming.key((0, x, y, z)))

    def occupied(self, cell_shape: Vec3) -> CellMap:
        """Return the cells with voxels of the box in a stored file, by one listing; all cells if
        files cannot be listed."""
        is_known = self.can_list and not self.fill
        occupied = cell_map(self.box, cell_shape, self.name, fill=not is_known)
        if not is_known:
            return occupied
        grid = self.grid
        if grid.file is None:
            if self.has_shards():
                occupied[...] = True
            else:
                self.identity.check(has_absent=True)
            return occupied
        cells_of = lru_cache(maxsize=None)(partial(self._cells_of, cell_shape))

        def has_unmarked_cells(known: Mapping[str, int]) -> bool:
            """Return whether a folder can contain files of unmarked cells: most folders of a dense
            array need not be listed."""
            if isinstance(occupied, SparseCells):
                return True
            return not occupied[
                cells_of(0, known.get("x")),
                cells_of(1, known.get("y")),
                cells_of(2, known.get("z")),
            ].all()

        for (_, x, y, z), _, _ in self.listed(has_unmarked_cells):
            occupied[cells_of(0, x), cells_of(1, y), cells_of(2, z)] = True
        if not occupied.any():
            self.identity.check(has_absent=True)
        return occupied

    def _cells_of(self, cell_shape: Vec3, axis: int, file: int | None) -> slice:
        """Return the cells, along one axis, that a file's voxels inside the box touch; all cells
        without a file."""
        if file is None:
            return slice(None)
        assert self.grid.file is not None
        low, high, cell, edge = (
            self.box.topleft[axis],
            self.box.bottomright[axis],
            cell_shape[axis],
            self.grid.file[axis + 1],
        )
        corner = file * edge + self.grid.origin[axis]
        return slice(
            max(low, corner) // cell - low // cell,
            -(-min(high, corner + edge) // cell) - low // cell,
        )

    def names_of_shards(self, box: BoundingBox) -> Iterator[str]:
        """Yield all names that the files of the shards that a box touches may have."""
        assert self.naming is not None
        files = self._files_of_units(self._units_in(box.intersection(self.box)))
        for file, _ in self.naming.keys(files):
            yield from self.naming.names(file)

    def shard_states(self, box: BoundingBox) -> States:
        """Return the states of stored shards that a box touches; a file has one row for each shard
        that contains a part of it."""
        units = self._units_in(box.intersection(self.box))
        if not self.can_list:
            state = self.identity.record if self.store.can.states else None
            rows = (
                [(x, y, z, *state) for z in units[2] for y in units[1] for x in units[0]]
                if state is not None
                else []
            )
            return self._absolute(np.array(rows, np.int64).reshape(-1, 5))
        files = self._files_of_units(units)
        return self._states(
            self._listed_file_states(files)
            if math.prod(map(len, files)) > _TRIED_FILES
            else self._file_states(files)
        )

    def stored_states(self) -> States:
        """Return the states of all stored shards that the bounding box touches, by one listing."""
        if not self.can_list:
            return self.shard_states(self.box)
        return self._states(
            self._listed_file_states(self._files_of_units(self._units_in(self.box)))
        )

    def files_of_shard(self, shard: Vec3) -> list[tuple[Vec4, int]]:
        """List the stored files of a shard, given by its index counted from the array's first
        voxel, each with the index of its name."""
        assert self.naming is not None
        files = self._files_of_units([range(n, n + 1) for n in shard])
        return [
            (listed.file, listed.variant) for listed in self.naming.list_files(self.store, files)
        ]

    def recorded_states(self, record: IntArray) -> States:
        """Return the states in the file record of the level as :meth:`stored_states` has them."""
        return self._absolute(record[record[:, FILE_RECORD_NBYTES] > 0, :5])

    def recorded_names(self, record: IntArray) -> Iterator[str]:
        """Yield the names that the files in the file record of the level can have."""
        assert self.naming is not None
        for x, y, z, nbytes in record[:, : FILE_RECORD_NBYTES + 1].tolist():
            units = [range(n, n + 1) for n in (x, y, z)]
            for file, _ in self.naming.keys(self._files_of_units(units)) if nbytes else ():
                yield from self.naming.names(file)

    def _units_in(self, box: BoundingBox) -> tuple[range, range, range]:
        """Return the groups of files that a box touches, counted from the array's first voxel."""
        return cell_range(counted_from(box, self.grid.origin), self.grid.unit)

    def _files_of_units(self, units: Sequence[range]) -> Ranges:
        edges = zip(units, self.grid.unit, self.grid.origin, strict=True)
        low, high = zip(
            *((unit.start * edge + o, unit.stop * edge + o) for unit, edge, o in edges), strict=True
        )
        return self._files(BoundingBox.from_corners(low, high, self.box.mag))

    def _file_states(self, files: Ranges) -> Iterator[tuple[Vec4, FileVariant]]:
        """Yield the states of files, asking for each by name."""
        if self.grid.file is None:
            yield from self._listed_file_states(files)
            return
        naming = self.naming
        assert naming is not None
        indices = [(c, x, y, z) for z, y, x, c in product(*files[::-1])]
        if not self._has_variants:
            states = self.store.states(map(naming.key, indices))
            yield from (
                (file, FileVariant(0, *state))
                for file, state in zip(indices, states, strict=True)
                if state is not None
            )
            return
        yield from naming.states_of_files(self.store, indices)

    @property
    def has_single_file_shards(self) -> bool:
        """Whether each shard is a single file with one possible name."""
        grid = self.grid
        return (
            grid.file is not None
            and grid.file_counts[0] == 1
            and grid.unit == grid.file[1:]
            and not self._has_variants
        )

    @property
    def _has_variants(self) -> bool:
        """Whether a file has several possible names."""
        return self.naming is not None and len(self.naming.names((0, 0, 0, 0))) > 1

    def _listed_file_states(self, files: Ranges) -> Iterator[tuple[Vec4, FileVariant]]:
        """Yield the states of files as their folders list them."""
        assert self.naming is not None
        for file, entry, variant in self.naming.list_files(self.store, files):
            try:
                status = entry.stat()
            except FileNotFoundError:  # removed meanwhile
                continue
            yield file, FileVariant(variant, status.st_size, status.st_mtime_ns)

    def _states(self, file_states: Iterator[tuple[Vec4, FileVariant]]) -> States:
        """Return one row per shard: size and time of its file, or a digest of the states of its
        files."""
        rows = np.array([(*file, *variant) for file, variant in file_states], np.int64).reshape(
            -1, 7
        )
        if self.has_single_file_shards:
            return self._absolute(rows[:, [1, 2, 3, 5, 6]])
        units: IntArray = np.zeros_like(rows[:, 1:4])
        if self.grid.file is not None:
            units[...] = rows[:, 1:4] * self.grid.file[1:] // self.grid.unit
        return self._absolute(summed_states(units, rows))

    def states_of_shard(self, unit: Vec3) -> list[tuple[Vec4, FileVariant]]:
        """Return the states of the stored files of a shard, given by its index counted from the
        array's first voxel."""
        return list(self._file_states(self._files_of_units([range(n, n + 1) for n in unit])))

    def group_state(self, unit: Vec3) -> tuple[int, int, int]:
        """Return number and size of the files of a shard, and the digest of a group or the time of
        a single file, as :meth:`stored_states` has them."""
        file_states = self.states_of_shard(unit)
        states = self._states(iter(file_states))
        return (
            len(file_states),
            sum(variant.nbytes for _, variant in file_states),
            int(states[0, 4]) if file_states else 0,
        )

    def _absolute(self, states: States) -> States:
        """Convert indices counted from the array's first voxel to those of the absolute shards that
        the files touch."""
        for axis, (edge, origin) in enumerate(zip(self.grid.unit, self.grid.origin, strict=True)):
            # Without a common origin a file lies in two shards of the absolute grid, and has a row
            # for each:
            #     absolute grid   |    0    |    1    |    2
            #     files               |    0    |    1    |
            first, rest = divmod(origin, edge)
            if rest:
                states = np.repeat(states, 2, axis=0)
                states[1::2, axis] += 1
            states[:, axis] += first
        return states
