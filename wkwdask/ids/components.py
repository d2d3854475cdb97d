"""Jobs that find connected components in three steps: label each brick, join labels across faces,
write.

1. Label: tasks label each brick by itself. They store its labels as runs in scratch files, and what
   joining needs: the labels on the faces of bricks, and the sizes and values of the components that
   touch a face.
2. Join: tasks pair the labels on adjacent faces. The driver unites the pairs, which takes some ten
   bytes per component that touches a face, and assigns final ids brick by brick.
3. Write: tasks replace the labels by final ids.

The result does not depend on the number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, IncompleteWriteError, MissingError
from wkwdask.geometry.grid import cell_range
from wkwdask.geometry.vectors import divide, minus, times
from wkwdask.ids.faces import (
    BrickFaces,
    BrickTable,
    FacesFile,
    load_faces,
    load_table,
    read_ids,
    read_pairs,
    write_faces,
    write_ids,
    write_pairs,
)
from wkwdask.ids.planes import FacePlanes
from wkwdask.kernels.labels.components import (
    DisjointSets,
    add_to_roots,
    label_brick,
    unique_pairs,
)
from wkwdask.model.summary import counted
from wkwdask.model.volume import voxel_nbytes
from wkwdask.runs.job import Result, ScratchJob, Task
from wkwdask.runs.parts import source_changed
from wkwdask.store.store import store_at
from wkwdask.verbs.apply_job import AppliedFunction, BrickByBrick

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.ids.planes import Nodes
    from wkwdask.model.volume import Volume
    from wkwdask.plans.apply import BrickPlan
    from wkwdask.plans.cells import CellMap
    from wkwdask.verbs.apply_job import Stored

_KEPT_FILES = 64


@dataclass(frozen=True, slots=True)
class Labelling(BrickByBrick):
    """Volume to label, and the rules of labelling. Its third step is a
    :class:`wkwdask.verbs.apply_job.Computation`."""

    source: Volume
    """Volume with one channel."""
    plan: BrickPlan
    area: BoundingBox
    """Box to label."""
    limits: tuple[Any, Any] | None
    """Least and greatest value of the foreground; None joins equal nonzero voxels."""
    connectivity: int
    """Neighbours of a voxel: 6, 18 or 26."""
    min_voxels: int
    """Size of the smallest component to keep."""
    folder: str
    """Folder of scratch files."""

    @property
    def sources(self) -> tuple[Volume, ...]:
        return (self.source,)

    @property
    def title(self) -> str:
        return f"components of {self.source.name}"

    @property
    def table_path(self) -> str:
        return f"{self.folder}/bricks"

    @property
    def _is_zero_foreground(self) -> bool:
        return self.limits is not None and bool(self.limits[0] <= 0 <= self.limits[1])

    def _application(self) -> AppliedFunction:
        return AppliedFunction(
            label_brick,
            self.sources,
            self.plan,
            where=self.area,
            skips_empty=not self._is_zero_foreground,
        )

    def occupied(self, region_shape: Vec3) -> CellMap:
        return self._application().occupied(region_shape)

    def regions(self) -> list[Vec3]:
        return list(self.plan.regions(self.occupied(self.plan.region_shape)))

    def source_states(self, region: Vec3) -> int:
        """Return the digest of the states of all files that a region reads."""
        return self._application().states(region)

    def region_of(self, brick: Vec3) -> Vec3:
        return divide(times(brick, self.plan.brick_shape), self.plan.region_shape)

    def inside(self, brick: Vec3) -> BoundingBox:
        """Return the part of a brick inside the box to label."""
        return self.plan.brick_box(brick).intersection(self.area)

    def read(self, box: BoundingBox) -> npt.NDArray[Any] | None:
        """Read the labels or the foreground mask of a box, shape (x, y, z); None if all voxels are
        background."""
        voxels = np.empty((1, *box.size), self.source.dtype, order="F")
        if (
            not self.source.read_into(voxels, box.topleft, fill_zeros=self._is_zero_foreground)
            and not self._is_zero_foreground
        ):
            return None
        labels: npt.NDArray[Any] = voxels[0]
        if self.limits is None:
            return labels
        low, high = self.limits
        foreground: npt.NDArray[Any] = (
            labels >= low if high == np.inf else (labels >= low) & (labels <= high)
        )
        return foreground

    def faces(self, brick: Vec3) -> BrickFaces | None:
        """Label a brick; None without components."""
        box = self.inside(brick)
        voxels = None if box.is_empty else self.read(box)
        if voxels is None:
            return None
        # A face is open if voxels to label lie beyond it.
        low = [a > b for a, b in zip(box.topleft, self.area.topleft, strict=True)]
        high = [a < b for a, b in zip(box.bottomright, self.area.bottomright, strict=True)]
        is_open = list(zip(low, high, strict=True))
        runs, values, sizes = label_brick(voxels, self.connectivity, is_open)
        if not len(sizes):
            return None
        num_touching = len(values)
        is_kept = sizes >= self.min_voxels
        is_kept[:num_touching] = True  # their size is known when they are joined
        num_kept = int(np.count_nonzero(is_kept))
        labels = np.zeros(len(sizes) + 1, np.uint32)
        labels[1:][is_kept] = np.arange(1, num_kept + 1)
        planes = [
            runs.face(axis, side, labels) if is_open[axis][side] else None
            for axis in range(3)
            for side in (0, 1)
        ]
        return BrickFaces(
            brick,
            num_kept - num_touching,
            len(sizes) - num_kept,
            sizes[:num_touching],
            values,
            tuple(planes),
            replace(runs, labels=labels[runs.labels]),
        )

    # --------------------------------------------------------------------------------------------
    # the third step, as a Computation

    def states(self, region: Vec3) -> int:
        """Return the digest of a region's files; raises IncompleteWriteError if they have changed
        since the region was labelled."""
        states = self.source_states(region)
        if FacesFile(self.folder, region).sources != states:
            raise self._changed(self.plan.region_box(region))
        return states

    def _changed(self, box: BoundingBox) -> IncompleteWriteError:
        return IncompleteWriteError(
            f'{self.source.name}: {box} was changed while it was read; existing="restart" starts '
            "over"
        )

    def region_box(self, region: Vec3) -> BoundingBox:
        return self.plan.region_box(region)

    def voxels(self, box: BoundingBox, target: Stored) -> npt.NDArray[Any] | None:
        """Return the final ids of a brick, shape (c, x, y, z); None where all of them are zero."""
        brick = divide(box.topleft, self.plan.brick_shape)
        table = load_table(self.table_path, BrickTable)
        row = table.row_of(self.plan.code_of(brick))
        if row is None:
            return None
        file = load_faces(self.folder, self.region_of(brick))
        inside, number = self.inside(brick), file.row_of(brick)
        num_touching, num_others = (0, 0) if number is None else file.bricks[number, 3:5].tolist()
        if number is None or num_touching != table.num_nodes[row]:
            raise self._changed(box)
        # label     0 | 1 ... num_touching    | num_touching + 1 ...
        # final id  0 | id of the joined set  | consecutive ids of this brick alone
        lookup = np.zeros(num_touching + num_others + 1, target.dtype)
        lookup[1 : num_touching + 1] = read_ids(
            self.folder, int(table.first_node[row]), num_touching
        )
        lookup[num_touching + 1 :] = np.arange(num_others) + table.first_other[row]
        out = np.zeros((1, *box.size), target.dtype, order="F")
        corner = minus(inside.topleft, box.topleft)
        file.runs(number, inside.size).paint(lookup, out[0], corner)
        return out


# ------------------------------------------------------------------------------------------------
# label


@dataclass(frozen=True, slots=True)
class RegionSpec:
    """Task on one region."""

    labelling: Labelling
    region: Vec3

    def task(self, what: str, verb: str, run: Callable[[RegionSpec], Result]) -> Task:
        """Return the task that runs a function on the region."""
        return Task(
            f"{self.labelling.plan.region_box(self.region)}, {what}",
            "{} {},{},{}".format(verb, *self.region),
            run,
            self,
        )


def label_region(spec: RegionSpec) -> Result:
    """Label the bricks of a region and write its faces file."""
    labelling, region = spec.labelling, spec.region
    # before reading, so that a file that changes during the read fails later checks
    states = labelling.source_states(region)
    all_faces = (labelling.faces(brick) for brick in labelling.plan.bricks(region))
    write_faces(
        labelling.folder, region, (faces for faces in all_faces if faces is not None), states
    )
    return Result(
        (), states, nbytes_in=voxel_nbytes(labelling.source, labelling.plan.region_box(region))
    )


def label_job(labelling: Labelling) -> ScratchJob:
    """Return the job that labels all bricks. It raises :class:`ResumeError` if the source has
    changed since an earlier start."""

    def is_written(task: Task, result: Result) -> bool:
        if labelling.source_states(task.spec.region) != result.sources:
            raise source_changed(
                task,
                labelling.source.files.shard_states(labelling.plan.region_box(task.spec.region)),
                labelling.source,
            )
        try:
            file = FacesFile(labelling.folder, task.spec.region)
            file.check()
        except (CorruptError, FileNotFoundError):
            return False
        return bool(file.sources == result.sources)

    return ScratchJob(
        [
            RegionSpec(labelling, region).task("labelled", "label", label_region)
            for region in labelling.regions()
        ],
        is_written,
    )


# ------------------------------------------------------------------------------------------------
# join


class _NodeReader:
    """Reader of the nodes on brick faces."""

    def __init__(self, labelling: Labelling) -> None:
        self._labelling = labelling
        self._table = load_table(labelling.table_path, BrickTable)
        self._file = lru_cache(maxsize=_KEPT_FILES)(self._open)

    def _open(self, region: Vec3) -> FacesFile | None:
        try:
            return FacesFile(self._labelling.folder, region)
        except FileNotFoundError:  # a region without stored voxels has no file
            return None

    def read(self, brick: Vec3, face: int) -> Nodes | None:
        """Read node and value of each voxel on a face; None for a face without nodes."""
        row = self._table.row_of(self._labelling.plan.code_of(brick))
        file = None if row is None else self._file(self._labelling.region_of(brick))
        if row is None or file is None:
            return None
        inside = file.row_of(brick)
        plane = None if inside is None else file.plane(inside, face)
        if inside is None or plane is None:
            return None
        values = np.append(np.uint64(0), file.values(inside))[plane]
        return self._table.nodes(row, plane), values


def join_region(spec: RegionSpec) -> Result:
    """Pair the components of each brick of a region with those beyond its upper faces."""
    labelling = spec.labelling
    planes = FacePlanes(
        _NodeReader(labelling).read,
        cell_range(labelling.plan.box, labelling.plan.brick_shape),
        labelling.connectivity,
    )
    pairs = [pairs for brick in labelling.plan.bricks(spec.region) for pairs in planes.pairs(brick)]
    write_pairs(
        labelling.folder,
        spec.region,
        unique_pairs(np.concatenate([np.zeros((0, 2), np.int64), *pairs])),
    )
    return Result(())


def faces_job(labelling: Labelling) -> ScratchJob:
    """Return the job that pairs components across faces."""

    def is_written(task: Task, result: Result) -> bool:
        try:
            read_pairs(labelling.folder, task.spec.region)
        except (CorruptError, FileNotFoundError):
            return False
        return True

    return ScratchJob(
        [
            RegionSpec(labelling, region).task("joined across faces", "faces", join_region)
            for region in labelling.regions()
        ],
        is_written,
    )


def tabulate(labelling: Labelling) -> BrickTable:
    """Write the table of all bricks with components, which the join tasks read."""
    # no task has created it if no region has components
    folder = labelling.folder
    store_at(folder).make(in_existing=True)
    rows = [FacesFile(folder, region).bricks for region in labelling.regions()]
    bricks = np.concatenate([np.zeros((0, 6), np.int64), *rows])
    codes = np.array(
        [labelling.plan.code_of((x, y, z)) for x, y, z in bricks[:, :3].tolist()], np.int64
    )
    order = np.argsort(codes)
    table = BrickTable(codes[order], bricks[order, 3], np.zeros(len(bricks), np.int64))
    table.save(labelling.table_path)
    return table


@dataclass(frozen=True, slots=True)
class Numbering:
    """Result of the numbering."""

    num_components: int
    """Number of kept components, with ids from 1."""
    num_dropped: int
    """Number of components below the minimal size."""

    def __str__(self) -> str:
        dropped = f", {self.num_dropped} smaller ones left out" if self.num_dropped else ""
        return f"{counted(self.num_components, 'component')}{dropped}"


def number(labelling: Labelling) -> Numbering:
    """Unite all pairs and assign final ids."""
    table = load_table(labelling.table_path, BrickTable)
    sets = DisjointSets(table.total_nodes)
    for region in labelling.regions():
        sets.unite(read_pairs(labelling.folder, region))
    roots = sets.roots()
    totals = np.zeros(len(roots), np.int64)
    others = np.zeros(len(table.codes), np.int64)
    num_dropped = 0
    for region in labelling.regions():
        file = FacesFile(labelling.folder, region)
        for inside, (x, y, z, _, num_others, dropped) in enumerate(file.bricks.tolist()):
            row = table.row_of(labelling.plan.code_of((x, y, z)))
            if row is None:
                raise MissingError(
                    f"{labelling.table_path}: brick {x}, {y}, {z} of {file.path} is missing"
                )
            add_to_roots(roots, file.sizes(inside), int(table.first_node[row]), totals)
            others[row] = num_others
            num_dropped += dropped
    # the size of a whole set is stored at its root, and decides whether the set is kept
    is_root = roots == np.arange(len(roots))
    is_kept = is_root & (totals >= labelling.min_voxels)
    num_dropped += int(is_root.sum() - is_kept.sum())
    ids, first_other, num_components = _ids(table, roots, is_kept, others)
    write_ids(labelling.folder, [ids])
    replace(table, first_other=first_other).save(labelling.table_path)
    return Numbering(num_components, num_dropped)


def _ids(
    table: BrickTable,
    roots: npt.NDArray[np.int64],
    is_kept: npt.NDArray[np.bool_],
    others: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], int]:
    """Return the id of each node, the id of the first component of each brick without an open face,
    and the number of components."""
    # Ids ascend brick by brick. Within a brick, roots of joined sets come first, then the
    # components that touch no open face:
    #
    #   brick 0: root, root | other, other, other    brick 1: root | other    ...
    #   ids      1     2    | 3      4      5                 6    | 7
    kept_before = np.append(np.int64(0), np.cumsum(is_kept))
    others_before = np.cumsum(others) - others
    ids = kept_before[1:] + np.repeat(others_before, table.num_nodes)
    ids[~is_kept] = 0
    first_other = 1 + kept_before[table.first_node + table.num_nodes] + others_before
    return ids[roots].astype(np.uint64), first_other, int(kept_before[-1] + others.sum())
