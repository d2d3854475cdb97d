"""The jobs that find connected components: label each brick, join labels across faces, write.

Each brick is labelled by itself. What it leaves in a scratch file is enough to join: the labels on its faces, and the sizes and values of the components that
touch one. Tasks pair the labels of faces that lie beside each other; the driver unites the pairs, in some ten bytes for each component that touches a face,
and numbers everything brick by brick. Then bricks are labelled again, which costs less than to keep them, and written with their final ids. Nothing depends
on the number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, IncompleteWriteError, MissingError
from wkwdask.geometry.bounding_box import part_of_array
from wkwdask.geometry.grid import cell_range
from wkwdask.ids.faces import (
    BrickFaces,
    BrickTable,
    FacesFile,
    faces_path,
    load_table,
    read_ids,
    read_pairs,
    write_faces,
    write_ids,
    write_pairs,
)
from wkwdask.kernels.labels.components import Sets, add_to_roots, label_brick, pairs_of_faces, unique_pairs
from wkwdask.runs.job import FlatJob, Result, Task, voxel_nbytes
from wkwdask.runs.parts import source_changed
from wkwdask.store import files
from wkwdask.store.paths import dirname
from wkwdask.verbs.apply_job import AppliedFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Volume
    from wkwdask.plans.apply import BrickPlan
    from wkwdask.plans.cells import CellMap
    from wkwdask.verbs.apply_job import Stored

    Nodes = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]

_KEPT_PLANES = 64
_ALL = slice(None)
_TAKEN = {-1: slice(-1, None), 0: _ALL, 1: slice(0, 1)}
_PUT = {-1: slice(0, 1), 0: slice(1, -1), 1: slice(-1, None)}


@dataclass(frozen=True, slots=True)
class Labelling:
    """What is labelled, and how."""

    source: Volume
    """What is read; one channel."""
    plan: BrickPlan
    """Regions and bricks."""
    area: BoundingBox
    """What is labelled of the plan's box."""
    limits: tuple[Any, Any] | None
    """Least and greatest value of the voxels that count; None where equal voxels that are not zero are joined."""
    connectivity: int
    """Neighbours of a voxel: 6, 18 or 26."""
    min_voxels: int
    """Components of fewer voxels are left out."""
    folder: str
    """For scratch files."""

    @property
    def sources(self) -> tuple[Volume, ...]:
        """What is read."""
        return (self.source,)

    @property
    def title(self) -> str:
        """What an error calls it."""
        return f"components of {self.source.name}"

    @property
    def table_path(self) -> str:
        """The table of all bricks."""
        return f"{self.folder}/bricks"

    @property
    def _zero_counts(self) -> bool:
        return self.limits is not None and bool(self.limits[0] <= 0 <= self.limits[1])

    def _application(self) -> AppliedFunction:
        return AppliedFunction(label_brick, self.sources, self.plan, where=self.area, skips_empty=not self._zero_counts)

    def occupied(self, region_shape: Vec3) -> CellMap:
        """Tell which regions can hold components, shape (x, y, z)."""
        return self._application().occupied(region_shape)

    def regions(self) -> list[Vec3]:
        """List the regions that can hold components."""
        return list(self.plan.regions(self.occupied(self.plan.region_shape)))

    def states(self, region: Vec3) -> int:
        """Sum up the states of all files that are read for a region."""
        return self._application().states(region)

    def code_of(self, brick: Vec3) -> int:
        """Name a brick by one number, which grows with z, then y, then x."""
        x, y, z = cell_range(self.plan.box, self.plan.brick_shape)
        return ((brick[2] - z.start) * len(y) + brick[1] - y.start) * len(x) + brick[0] - x.start

    def region_of(self, brick: Vec3) -> Vec3:
        """Say in which region a brick lies."""
        x, y, z = (i * n // m for i, n, m in zip(brick, self.plan.brick_shape, self.plan.region_shape, strict=True))
        return x, y, z

    def inside(self, brick: Vec3) -> BoundingBox:
        """Give the voxels of a brick that are labelled."""
        return self.plan.brick_box(brick).intersection(self.area)

    def read(self, box: BoundingBox) -> npt.NDArray[Any] | None:
        """Read what is labelled, shape (x, y, z); None where all is zero."""
        voxels = np.empty((1, *box.size), self.source.dtype, order="F")
        if not self.source.read_into(voxels, box.topleft, fill_zeros=self._zero_counts) and not self._zero_counts:
            return None
        labels: npt.NDArray[Any] = voxels[0]
        if self.limits is None:
            return labels
        low, high = self.limits
        counts: npt.NDArray[Any] = labels >= low if high == np.inf else (labels >= low) & (labels <= high)
        return counts

    def label(self, brick: Vec3) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint32], int, npt.NDArray[np.int64]] | None:
        """Label a brick."""
        box = self.inside(brick)
        voxels = None if box.is_empty else self.read(box)
        if voxels is None:
            return None
        low = [a > b for a, b in zip(box.topleft, self.area.topleft, strict=True)]
        high = [a < b for a, b in zip(box.bottomright, self.area.bottomright, strict=True)]
        labels, num_touching, sizes = label_brick(voxels, self.connectivity, list(zip(low, high, strict=True)))
        return (voxels, labels, num_touching, sizes) if len(sizes) else None

    def faces(self, brick: Vec3) -> BrickFaces | None:
        """Label a brick and give what it leaves; None where there is nothing."""
        found = self.label(brick)
        if found is None:
            return None
        voxels, labels, num_touching, sizes = found
        planes = []
        values = np.zeros(num_touching, np.uint64)
        for axis in range(3):
            for side in (0, -1):
                at = tuple(side if n == axis else _ALL for n in range(3))
                plane = labels[at].T
                touching = (plane > 0) & (plane <= num_touching)
                planes.append(np.where(touching, plane, np.uint32(0)) if touching.any() else None)
                seen = voxels[at].T[touching]
                values[plane[touching] - 1] = seen.view(f"u{seen.dtype.itemsize}")
        num_kept = int(np.count_nonzero(sizes[num_touching:] >= self.min_voxels))
        return BrickFaces(brick, num_kept, len(sizes) - num_touching - num_kept, sizes[:num_touching], values, tuple(planes))


# ------------------------------------------------------------------------------------------------ label


@dataclass(frozen=True, slots=True)
class RegionSpec:
    """One region of what is labelled."""

    labelling: Labelling
    """What is labelled."""
    region: Vec3
    """Which region."""

    def task(self, what: str, verb: str, run: Callable[[RegionSpec], Result]) -> Task:
        """Give the task that does something to it."""
        return Task(f"{self.labelling.plan.region_box(self.region)}, {what}", "{} {},{},{}".format(verb, *self.region), run, self)


def label_region(spec: RegionSpec) -> Result:
    """Label the bricks of a region, and keep what they leave."""
    labelling, region = spec.labelling, spec.region
    states = labelling.states(region)  # before the reading: a file that changes meanwhile is seen as changed later
    found = (labelling.faces(brick) for brick in labelling.plan.bricks(region))
    write_faces(labelling.folder, region, (faces for faces in found if faces is not None), states)
    return Result((), states, nbytes_in=voxel_nbytes(labelling.source, labelling.plan.region_box(region)))


class ScratchJob(FlatJob):
    """A job whose tasks leave scratch files and lead to no others."""

    def __init__(self, tasks: Sequence[Task], is_there: Callable[[Task, Result], bool]) -> None:
        super().__init__(lambda: iter(tasks), len(tasks), lambda *_: None)
        self._is_there = is_there

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        """Tell whether the result of an earlier start is still good."""
        return self._is_there(task, result)


def label_job(labelling: Labelling) -> ScratchJob:
    """Make the job that labels all bricks.

    Its tasks refuse to go on, with a :class:`ResumeError`, where the source has changed since an earlier start.
    """

    def is_there(task: Task, result: Result) -> bool:
        if labelling.states(task.spec.region) != result.sources:
            raise source_changed(task, labelling.source.shard_states(labelling.plan.region_box(task.spec.region)), labelling.source)
        try:
            return bool(FacesFile(faces_path(labelling.folder, task.spec.region)).sources == result.sources)
        except (CorruptError, FileNotFoundError):
            return False

    return ScratchJob([RegionSpec(labelling, region).task("labelled", "label", label_region) for region in labelling.regions()], is_there)


# ------------------------------------------------------------------------------------------------ join


class _Planes:
    """Reads the nodes on faces of bricks, and keeps the last ones."""

    def __init__(self, labelling: Labelling) -> None:
        self._labelling = labelling
        self._table = load_table(labelling.table_path)
        self._file = lru_cache(maxsize=_KEPT_PLANES)(self._open)
        self.nodes = lru_cache(maxsize=_KEPT_PLANES)(self._read)

    def _open(self, region: Vec3) -> FacesFile | None:
        try:
            return FacesFile(faces_path(self._labelling.folder, region))
        except FileNotFoundError:  # nothing is stored there
            return None

    def _read(self, brick: Vec3, face: int) -> Nodes | None:
        """Read the node and the value of each voxel on a face, None where there are none."""
        row = self._table.row_of(self._labelling.code_of(brick))
        file = None if row is None else self._file(self._labelling.region_of(brick))
        if row is None or file is None:
            return None
        inside = file.row_of(brick)
        plane = None if inside is None else file.plane(inside, face)
        if inside is None or plane is None:
            return None
        nodes = np.where(plane > 0, plane.astype(np.int64) + (self._table.first_node[row] - 1), np.int64(-1))
        return nodes, np.append(np.uint64(0), file.values(inside))[plane]

    def around(self, brick: Vec3, axis: int, shape: tuple[int, int], reach: int) -> Nodes:
        """Read the lower face of a brick with a border of one voxel, which belongs to the bricks around it."""
        v, u = (n for n in (2, 1, 0) if n != axis)
        nodes = np.full((shape[0] + 2, shape[1] + 2), -1, np.int64)
        values = np.zeros(nodes.shape, np.uint64)
        steps = (-1, 0, 1) if reach else (0,)
        x_range, y_range, z_range = cell_range(self._labelling.plan.box, self._labelling.plan.brick_shape)
        for dv in steps:
            for du in steps:
                other = list(brick)
                other[v] += dv
                other[u] += du
                if other[0] not in x_range or other[1] not in y_range or other[2] not in z_range:
                    continue
                found = self.nodes((other[0], other[1], other[2]), 2 * axis)
                if found is not None:
                    nodes[_PUT[dv], _PUT[du]], values[_PUT[dv], _PUT[du]] = (array[_TAKEN[dv], _TAKEN[du]] for array in found)
        return nodes, values


def join_region(spec: RegionSpec) -> Result:
    """Pair the components of the bricks of a region with those beyond their upper faces, and keep the pairs."""
    labelling, planes = spec.labelling, _Planes(spec.labelling)
    found = [np.zeros((0, 2), np.int64)]
    for brick in labelling.plan.bricks(spec.region):
        for axis in range(3):
            here = planes.nodes(brick, 2 * axis + 1)
            if here is None:
                continue
            beyond = (brick[0] + (axis == 0), brick[1] + (axis == 1), brick[2] + (axis == 2))
            shape = (here[0].shape[0], here[0].shape[1])
            found.append(pairs_of_faces(here, planes.around(beyond, axis, shape, labelling.connectivity > 6), labelling.connectivity))
    write_pairs(labelling.folder, spec.region, unique_pairs(np.concatenate(found)))
    return Result(())


def faces_job(labelling: Labelling) -> ScratchJob:
    """Make the job that pairs components across faces."""

    def is_there(task: Task, result: Result) -> bool:
        try:
            read_pairs(labelling.folder, task.spec.region)
        except (CorruptError, FileNotFoundError):
            return False
        return True

    return ScratchJob([RegionSpec(labelling, region).task("joined across faces", "faces", join_region) for region in labelling.regions()], is_there)


def tabulate(labelling: Labelling) -> BrickTable:
    """List all bricks that have components, for the tasks that pair them."""
    files.make_folders_below(dirname(labelling.folder), labelling.folder)  # where no region holds anything, no task made it
    rows = [FacesFile(faces_path(labelling.folder, region)).bricks for region in labelling.regions()]
    bricks = np.concatenate([np.zeros((0, 6), np.int64), *rows])
    codes = np.array([labelling.code_of((x, y, z)) for x, y, z in bricks[:, :3].tolist()], np.int64)
    order = np.argsort(codes)
    table = BrickTable.make(codes[order], bricks[order, 3])
    table.save(labelling.table_path)
    return table


@dataclass(frozen=True, slots=True)
class Numbering:
    """What came out."""

    num_components: int
    """Components that are kept: their ids are 1 to this."""
    num_dropped: int
    """Components that are too small."""

    def __str__(self) -> str:
        dropped = f", {self.num_dropped} smaller ones left out" if self.num_dropped else ""
        return f"{self.num_components} components{dropped}"


def number(labelling: Labelling) -> Numbering:
    """Unite all pairs, and give each component its final id: brick by brick, in a brick first those that began there and go on beyond it."""
    table = load_table(labelling.table_path)
    sets = Sets(table.num_nodes)
    for region in labelling.regions():
        sets.unite(read_pairs(labelling.folder, region))
    roots = sets.roots()
    totals = np.zeros(len(roots), np.int64)
    others = np.zeros(len(table.codes), np.int64)
    num_dropped = 0
    for region in labelling.regions():
        file = FacesFile(faces_path(labelling.folder, region))
        for inside, (x, y, z, _, num_others, dropped) in enumerate(file.bricks.tolist()):
            row = table.row_of(labelling.code_of((x, y, z)))
            if row is None:
                raise MissingError(f"{labelling.table_path}: brick {x}, {y}, {z} of {file.path} is not in it")
            add_to_roots(roots, file.sizes(inside), int(table.first_node[row]), totals)
            others[row] = num_others
            num_dropped += dropped
    is_root = roots == np.arange(len(roots))
    is_kept = is_root & (totals >= labelling.min_voxels)
    num_dropped += int(is_root.sum() - is_kept.sum())
    ids, first_other, num_components = _ids(table, roots, is_kept, others)
    write_ids(labelling.folder, ids)
    BrickTable(table.codes, table.num_touching, table.first_node, first_other).save(labelling.table_path)
    return Numbering(num_components, num_dropped)


def _ids(
    table: BrickTable, roots: npt.NDArray[np.int64], is_kept: npt.NDArray[np.bool_], others: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], int]:
    """Give the id of each node, the id of the first component of each brick that touches no open face, and the number of all."""
    kept_before = np.append(np.int64(0), np.cumsum(is_kept))
    others_before = np.cumsum(others) - others
    ids = kept_before[1:] + np.repeat(others_before, table.num_touching)
    ids[~is_kept] = 0
    first_other = 1 + kept_before[table.first_node + table.num_touching] + others_before
    return ids[roots].astype(np.uint64), first_other, int(kept_before[-1] + others.sum())


# ------------------------------------------------------------------------------------------------ write


@dataclass(frozen=True, slots=True)
class Components:
    """The components as a volume that is written brick by brick."""

    labelling: Labelling
    """What is labelled."""

    @property
    def plan(self) -> BrickPlan:
        """Regions and bricks."""
        return self.labelling.plan

    @property
    def sources(self) -> tuple[Volume, ...]:
        """What is read."""
        return self.labelling.sources

    @property
    def title(self) -> str:
        """What an error calls it."""
        return self.labelling.title

    def occupied(self, region_shape: Vec3) -> CellMap:
        """Tell which regions can hold components, shape (x, y, z)."""
        return self.labelling.occupied(region_shape)

    def states(self, region: Vec3) -> int:
        """Sum up the states of all files that are read for a region."""
        states = self.labelling.states(region)
        if FacesFile(faces_path(self.labelling.folder, region)).sources != states:
            raise self._changed(self.plan.region_box(region))
        return states

    def _changed(self, box: BoundingBox) -> IncompleteWriteError:
        return IncompleteWriteError(f'{self.labelling.source.name}: {box} was changed while it was read; existing="overwrite" starts over')

    def region_box(self, region: Vec3) -> BoundingBox:
        """Give the voxels of a region that are read, in the coordinates of the target."""
        return self.plan.region_box(region)

    def voxels(self, box: BoundingBox, target: Stored) -> npt.NDArray[Any] | None:
        """Give the ids of a brick, shape (c, x, y, z); None where all of them are zero."""
        labelling = self.labelling
        x, y, z = (t // n for t, n in zip(box.topleft, self.plan.brick_shape, strict=True))
        table = load_table(labelling.table_path)
        row = table.row_of(labelling.code_of((x, y, z)))
        found = None if row is None else labelling.label((x, y, z))
        if row is None or found is None:
            return None
        _, labels, num_touching, sizes = found
        if num_touching != table.num_touching[row]:
            raise self._changed(box)
        is_kept = sizes[num_touching:] >= labelling.min_voxels
        lookup = np.zeros(len(sizes) + 1, target.dtype)
        lookup[1 : num_touching + 1] = read_ids(labelling.folder, int(table.first_node[row]), num_touching)
        lookup[num_touching + 1 :] = np.where(is_kept, np.cumsum(is_kept) + (table.first_other[row] - 1), 0)
        inside = labelling.inside((x, y, z))
        ids: npt.NDArray[Any] = lookup[labels.T].T[np.newaxis]
        if inside == box:
            return ids
        out = np.zeros((1, *box.size), target.dtype, order="F")
        part_of_array(out, inside, box.topleft)[...] = ids
        return out
