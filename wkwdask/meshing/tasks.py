"""Tasks that make meshes: surfaces of cells, and their union in coarser levels of detail."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, IncompleteWriteError
from wkwdask.geometry.bounding_box import part_of_array
from wkwdask.geometry.vectors import divide, minus
from wkwdask.ids.arrays_file import ArraysFile, format_arrays
from wkwdask.kernels.labels.tables import LabelTable
from wkwdask.kernels.labels.values import map_ids
from wkwdask.meshing.cell_file import CellFile, Fragment, cell_name, group_of, write_cell
from wkwdask.meshing.label_tables import LabelTables, is_in
from wkwdask.meshing.surface import UNIT, Simplifier, Surface, encode, joined, marching_cubes
from wkwdask.model.states import add_digests, digest
from wkwdask.model.volume import voxel_nbytes
from wkwdask.plans.cells import marked_cells
from wkwdask.runs.job import LazyTasks, Result, ScratchJob, Task
from wkwdask.store.store import store_at
from wkwdask.verbs.region_job import SourceSpec, check_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.ids.id_map import IdMap
    from wkwdask.meshing.grid import CellGrid
    from wkwdask.model.states import States
    from wkwdask.model.volume import Volume

_IDS_NAME = "ids"
_MOST_FACES, _MOST_ERROR = 1 << 19, 16
"""Faces of a coarse fragment beyond which the error may be larger, and how many times."""
MOST_FRAGMENT_FACES = 1 << 20
"""Faces of a coarse fragment beyond which its label has no such level."""
_CORNERS = np.stack(np.meshgrid(*[[0, 1]] * 3, indexing="ij"), axis=-1).reshape(-1, 3)


@dataclass(frozen=True, slots=True)
class Meshing:
    """Labels to mesh, and how."""

    source: Volume
    grid: CellGrid
    simplifier: Simplifier
    error: float
    """Largest distance between the surfaces of the finest level and those of the voxels, about
    [voxels]; twice as much in each coarser level."""
    reduction: float
    """Most faces of a level for each face of the next."""
    num_groups: int
    """Number of groups of labels; a task holds one at a time."""
    folder: str
    """Folder of scratch files."""
    target: str
    """Folder in which the files of labels are written."""
    has_ids: bool = False
    """Whether a scratch file lists the labels to mesh."""
    mapping: IdMap | None = None
    """Table by which ids are mapped first."""

    # ------------------------------------------------------------------------- labels

    def read(self, cell: Vec3) -> AnyArray | None:
        """Read the labels of a cell with those that pad them, shape (x, y, z); None if all are
        zero."""
        box = self.grid.voxels(cell)
        inside = box.intersection(self.grid.box)
        voxels = np.empty((1, *inside.size), self.source.dtype, order="F")
        if not inside.volume or not self.source.read_into(voxels, inside.topleft, fill_zeros=False):
            return None
        labels, least = self._selected(voxels[0])
        if least < 0:
            raise ValueError(
                f"{self.source.name}: label {least} in {inside}; labels are not negative"
            )
        if labels.shape == box.size:
            return labels
        padded = np.zeros(box.size, labels.dtype, order="F")
        part_of_array(padded, inside, box.topleft)[...] = labels
        return padded

    def _selected(self, labels: AnyArray) -> tuple[AnyArray, int]:
        """Map ids, and return zero in place of those that were not asked for, and the least id."""
        if self.mapping is not None:
            dtype = np.result_type(labels.dtype, np.min_scalar_type(self.mapping.largest))
            dtype = dtype if dtype.kind in "iu" else np.dtype(np.uint64)
            mapped = np.empty(labels.shape, dtype, order="F")
            unfit = map_ids(labels, *self.mapping.arrays(), mapped, keeps=True)
            if unfit is not None:  # a negative one, and uint64
                return mapped, unfit
            labels = mapped
        if self.has_ids:
            ids = ArraysFile(self.folder, _IDS_NAME).read(_IDS_NAME)
            ids = ids[ids <= np.iinfo(labels.dtype).max]
            chosen = np.empty(labels.shape, labels.dtype, order="F")
            map_ids(labels, ids, ids, chosen, keeps=False)
            labels = chosen
        return labels, int(labels.min()) if labels.dtype.kind == "i" else 0

    def save_ids(self, ids: npt.NDArray[np.uint64]) -> None:
        """Write the labels to mesh, ascending, for all tasks."""
        store_at(self.folder).put(_IDS_NAME, format_arrays([(_IDS_NAME, ids)], {}))

    # ------------------------------------------------------------------------- surfaces

    def mesh_cell(self, cell: Vec3) -> None:
        """Write the surfaces of a cell in the finest level."""
        labels = self.read(cell)
        groups: dict[int, list[Fragment]] = {}
        record = {"raw": 0, "kept": 0}
        table = LabelTable(np.dtype(np.uint64) if labels is None else labels.dtype)
        if labels is not None:
            box, own = self.grid.voxels(cell), self.grid.own_voxels(cell)
            table.add(np.asfortranarray(part_of_array(labels, own, box.topleft)), (0, 0, 0))
            for label, surface in self.surfaces(labels, box):
                simple = self.simplified(surface, cell, 0, self.error, np.inf)
                record["raw"] += len(surface.faces)
                record["kept"] += simple is None
                fragment = self._fragment(label, simple or surface, cell, 0)
                groups.setdefault(group_of(label, self.num_groups), []).append(fragment)
        rows = table.rows()
        sizes = rows.labels.astype(np.uint64), rows.counts
        self._write(0, cell, sorted(groups.items()), sizes, record)

    def surfaces(self, labels: AnyArray, box: BoundingBox) -> Iterator[tuple[int, Surface]]:
        """Yield labels with their surfaces, whose vertices count from the origin of the grid."""
        if min(labels.shape) < 2:
            return
        corner = np.array(minus(box.topleft, self.grid.origin), np.int32) * UNIT
        for label, surface in marching_cubes(labels):
            yield label, Surface(surface.vertices + corner, surface.faces)

    def join_cells(self, lod: int, cell: Vec3, children: Sequence[Vec3]) -> None:
        """Write the surfaces of a cell in a coarser level: the surfaces of eight cells, simplified
        one by one, so that no face crosses a plane between them."""
        record = {"kept": 0, "ended": []}
        self._write(lod, cell, self._joined(lod, cell, children, record), None, record)

    def _joined(
        self, lod: int, cell: Vec3, children: Sequence[Vec3], record: dict[str, Any]
    ) -> Iterator[tuple[int, list[Fragment]]]:
        """Yield the fragments of a coarser cell, one group of labels at a time."""
        continued = LabelTables(self.folder).continued(lod - 1)
        files = [(child, CellFile(self.folder, lod - 1, child)) for child in children]
        chosen = [set(file.labels[is_in(file.labels, continued)].tolist()) for _, file in files]
        for group in sorted({group for _, file in files for group in file.groups()}):
            parts: dict[int, list[tuple[Vec3, Surface]]] = {}
            for (child, file), labels in zip(files, chosen, strict=True):
                for label, surface in file.surfaces(group):
                    if label in labels:
                        parts.setdefault(label, []).append((child, surface))
            fragments = []
            for label in sorted(parts):
                united = self._united(parts.pop(label), lod, record)
                if united is None:
                    record["ended"].append(label)
                else:
                    fragments.append(self._fragment(label, united, cell, lod))
            yield group, fragments

    def _united(
        self, parts: Sequence[tuple[Vec3, Surface]], lod: int, record: dict[str, Any]
    ) -> Surface | None:
        """Simplify the surfaces of a label in finer cells, and join them; return None if too many
        faces remain."""
        error, reduction, simple = self.error * (1 << lod), self.reduction, []
        num_faces = sum(len(surface.faces) for _, surface in parts)
        if num_faces > reduction * _MOST_FACES:
            # a label that fills cells would get twice as many faces in each level
            error, reduction = _MOST_ERROR * error, num_faces / _MOST_FACES
        for child, surface in parts:
            found = self.simplified(surface, child, lod - 1, error, reduction)
            record["kept"] += found is None
            simple.append(found or surface)
            if sum(len(part.faces) for part in simple) > MOST_FRAGMENT_FACES:
                return None
        return joined(simple)

    def simplified(
        self, surface: Surface, cell: Vec3, lod: int, error: float, reduction: float
    ) -> Surface | None:
        return self.simplifier.simplify(surface, self.grid.bounds(cell, lod), error, reduction)

    def _fragment(self, label: int, surface: Surface, cell: Vec3, lod: int) -> Fragment:
        positions = self.grid.quantised(surface, cell, lod)
        return Fragment(label, surface, encode(positions, surface.faces))

    # ------------------------------------------------------------------------- scratch files

    def _write(
        self,
        lod: int,
        cell: Vec3,
        groups: Iterable[tuple[int, Sequence[Fragment]]],
        sizes: tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]] | None,
        record: dict[str, Any],
    ) -> None:
        store_at(self.folder).make(in_existing=True)
        write_cell(self.folder, cell_name(lod, cell), groups, sizes, record)

    def is_written(self, lod: int, cell: Vec3) -> bool:
        """Check whether a cell has a sound file."""
        try:
            CellFile(self.folder, lod, cell).check()
        except (CorruptError, FileNotFoundError):
            return False
        return True


def cells_to_mesh(source: Volume, grid: CellGrid) -> npt.NDArray[np.int64]:
    """Return the cells that touch a stored file, shape (n, 3)."""
    shape = (grid.edge,) * 3
    from_origin = source.moved(minus((0, 0, 0), grid.origin))
    first = divide(from_origin.box.topleft, shape)
    stored = marked_cells(from_origin.files.occupied(shape)) + np.array(first)
    # a cell has the first layer of the next ones, too
    cells = np.unique((stored[:, np.newaxis] - _CORNERS).reshape(-1, 3), axis=0)
    return np.asarray(cells[((cells >= 0) & (cells < grid.counts)).all(axis=1)])


# ------------------------------------------------------------------------------------------------
# tasks


@dataclass(frozen=True, slots=True)
class CellSpec(SourceSpec):
    """Task that makes the surfaces of one cell."""

    meshing: Meshing
    cell: Vec3

    @property
    def source(self) -> Volume:
        return self.meshing.source

    def task(self) -> Task:
        return Task(
            f"meshes of {self.meshing.grid.voxels(self.cell)} of {self.source.name}",
            "mesh {},{},{}".format(*self.cell),
            CellSpec.run,
            self,
        )

    def states(self) -> States:
        return self.source.files.shard_states(self._box)

    @property
    def _box(self) -> BoundingBox:
        return self.meshing.grid.voxels(self.cell).intersection(self.meshing.grid.box)

    def run(self) -> Result:
        # before reading: a file that changes during the read then fails the check on resume
        states = self.states()
        self.meshing.mesh_cell(self.cell)
        return Result((), digest(states), nbytes_in=voxel_nbytes(self.source, self._box))


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """Task that makes the surfaces of one cell in a coarser level."""

    meshing: Meshing
    lod: int
    cell: Vec3
    children: tuple[Vec3, ...]
    """Cells of the finer level in it."""

    def task(self) -> Task:
        where = "{},{},{}".format(*self.cell)
        return Task(
            f"cell {where} of level of detail {self.lod}",
            f"join {self.lod} {where}",
            JoinSpec.run,
            self,
        )

    def run(self) -> Result:
        self.meshing.join_cells(self.lod, self.cell, self.children)
        return Result(())


class MeshJob(ScratchJob):
    """Job that makes the surfaces of all cells. It raises an error if the source has changed since
    an earlier start."""

    def __init__(self, meshing: Meshing, cells: npt.NDArray[np.int64]) -> None:
        def is_written(task: Task, result: Result) -> bool:
            check_source(task, result)
            return meshing.is_written(0, task.spec.cell)

        def tasks() -> Iterator[Task]:
            return (CellSpec(meshing, (x, y, z)).task() for x, y, z in cells.tolist())

        super().__init__(LazyTasks(len(cells), tasks), is_written)
        self._source, self._digest = meshing.source, 0

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        self._digest = add_digests(self._digest, result.sources)
        return ()

    def check_unchanged(self) -> None:
        """Raise an error if the source was changed after some cells had been read: they would not
        fit the others."""
        if add_digests(*(task.spec.digest() for task in self.tasks())) != self._digest:
            raise IncompleteWriteError(
                f'{self._source.name}: was changed while it was read; existing="restart" starts '
                "over with the new voxels"
            )


def join_job(meshing: Meshing, lod: int, below: npt.NDArray[np.int64]) -> ScratchJob:
    """Return the job that makes all cells of a coarser level from those of the level below."""
    cells, numbers = np.unique(below >> 1, axis=0, return_inverse=True)
    order = np.argsort(numbers.reshape(-1), kind="stable")
    starts = np.searchsorted(numbers.reshape(-1)[order], np.arange(len(cells) + 1))

    def tasks() -> Iterator[Task]:
        for (x, y, z), (start, end) in zip(cells.tolist(), pairwise(starts.tolist()), strict=True):
            children = tuple((a, b, c) for a, b, c in below[order[start:end]].tolist())
            yield JoinSpec(meshing, lod, (x, y, z), children).task()

    return ScratchJob(
        LazyTasks(len(cells), tasks), lambda task, _: meshing.is_written(lod, task.spec.cell)
    )
