"""Later steps of a segmentation: match labels at the faces of blocks, number the objects, and write
them.

1. Match: tasks pair the labels of neighbouring blocks.
2. Number: the driver unites the pairs, and assigns ids in the order of blocks and their labels.
3. Write: tasks replace the labels that scratch files hold by ids, on the grid of the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, IncompleteWriteError, ResumeError
from wkwdask.geometry.bounding_box import counted_from, moved, part_of_array
from wkwdask.geometry.grid import cell_range, cells, clipped_cell, is_inside, mark_cells
from wkwdask.geometry.vectors import divide, plus, times
from wkwdask.ids.arrays_file import ArraysFile, format_arrays
from wkwdask.ids.faces import load_table, map_ids_of_nodes, read_ids, write_ids
from wkwdask.ids.guards import REASONS, GuardedSets, best_first
from wkwdask.ids.label_statistics import label_columns
from wkwdask.ids.planes import FacePlanes
from wkwdask.ids.segmentation import BlockTable, extra_name, pieces_in
from wkwdask.ids.table_file import write_parts, write_table
from wkwdask.kernels.labels.components import DisjointSets, add_to_roots, unique_pairs
from wkwdask.kernels.labels.layout import COUNT
from wkwdask.kernels.labels.tables import LabelRows, LabelTable
from wkwdask.kernels.labels.values import map_ids
from wkwdask.model.summary import counted
from wkwdask.plans.apply import BrickPlan
from wkwdask.plans.cells import cell_map
from wkwdask.runs.job import Result, ScratchJob, Task
from wkwdask.store import by_path
from wkwdask.store.store import store_at
from wkwdask.verbs.apply_job import ApplyJob, BrickByBrick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.array_types import IntArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.ids.guards import ScoredPairs
    from wkwdask.ids.planes import Nodes
    from wkwdask.ids.segmentation import Segmentation
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.plans.cells import CellMap
    from wkwdask.verbs.apply_job import Stored


_GROUP = (4, 4, 4)
"""Blocks that one task matches."""
_KEPT_FILES = 64
_NODES_AT_ONCE = 1 << 20
_ROWS_AT_ONCE = 1 << 18
_REFUSED_NAME = "refused"
_REFUSED = np.dtype([("pair", "<i8", 2), ("score", "<f8"), ("reason", "<i8")])


class BlockFiles:
    """Files of all blocks with labels. A file that was replaced since the blocks were tabulated is
    an error."""

    def __init__(self, segmentation: Segmentation) -> None:
        self._segmentation = segmentation
        self.table = load_table(segmentation.table_path, BlockTable)
        self.file = lru_cache(maxsize=_KEPT_FILES)(self._open)

    def row_of(self, block: Vec3) -> int | None:
        """Return the row of a block, None without labels."""
        inside = cell_range(self._segmentation.plan.box, self._segmentation.plan.brick_shape)
        if not is_inside(block, inside):
            return None
        return self.table.row_of(self._segmentation.plan.code_of(block))

    def _open(self, block: Vec3, row: int) -> ArraysFile:
        file = ArraysFile(self._segmentation.folder, self._segmentation.name_of(block))
        if file.digest != self.table.digests[row]:
            raise IncompleteWriteError(f"{file.path}: was replaced; start the same call again")
        return file

    def plane(self, block: Vec3, name: str) -> tuple[int, npt.NDArray[np.uint32]] | None:
        """Return the row of a block and the labels at one of its faces; None without labels."""
        row = self.row_of(block)
        if row is None:
            return None
        return row, self.file(block, row).read(name)


# ------------------------------------------------------------------------------------------------
# match


@dataclass(frozen=True, slots=True)
class MatchSpec:
    """Task that pairs the labels of a group of blocks with those beyond their upper faces."""

    segmentation: Segmentation
    group: Vec3

    def task(self) -> Task:
        box = clipped_cell(self.group, self._shape, self.segmentation.plan.box)
        return Task(
            f"{box}, matched across faces",
            "match {},{},{}".format(*self.group),
            MatchSpec.run,
            self,
        )

    @property
    def _shape(self) -> Vec3:
        return times(_GROUP, self.segmentation.plan.brick_shape)

    def run(self) -> Result:
        segmentation = self.segmentation
        plan, files = segmentation.plan, BlockFiles(segmentation)
        matched = _touching if segmentation.match == "touch" else _overlapping
        match = matched(segmentation, files)
        pairs, scores = [np.zeros((0, 2), np.int64)], [np.zeros(0)]
        for block in BrickPlan(plan.box, self._shape, plan.brick_shape).bricks(self.group):
            row = files.row_of(block)
            if row is None:
                continue
            if files.file(block, row).record["sources"] != segmentation.application.states(block):
                raise segmentation.changed(plan.brick_box(block))
            for joined, score in match(block):
                pairs.append(joined)
                scores.append(score)
        data = format_arrays(
            [("pairs", np.concatenate(pairs)), ("scores", np.concatenate(scores))],
            {"table": files.table.digest},
        )
        store_at(segmentation.folder).put(pairs_name(self.group), data)
        return Result(())


def pairs_name(group: Vec3) -> str:
    return "z{}y{}x{}.pairs".format(*reversed(group))


def _touching(
    segmentation: Segmentation, files: BlockFiles
) -> Callable[[Vec3], Iterator[ScoredPairs]]:
    def read(block: Vec3, face: int) -> Nodes | None:
        found = files.plane(block, f"{('low', 'high')[face % 2]} {face // 2}")
        if found is None:
            return None
        nodes = files.table.nodes(*found)
        return nodes, np.zeros(nodes.shape, np.uint64)

    def read_inner(block: Vec3, face: int) -> Nodes | None:
        core = segmentation.plan.brick_box(block)
        return read(block, face) if segmentation.has_neighbour(core, face // 2, face % 2) else None

    blocks = cell_range(segmentation.plan.box, segmentation.plan.brick_shape)
    planes = FacePlanes(read_inner, blocks, segmentation.connectivity, segmentation.axes)

    def pairs(block: Vec3) -> Iterator[ScoredPairs]:
        found = np.concatenate([np.zeros((0, 2), np.int64), *planes.pairs(block)])
        joined = unique_pairs(np.sort(found, axis=1))
        yield joined, contacts(joined, planes, block)

    return pairs


def contacts(
    pairs: npt.NDArray[np.int64], planes: FacePlanes, block: Vec3
) -> npt.NDArray[np.float64]:
    """Return for each pair of a block the voxels that face each other across its upper faces; 0 for
    nodes that meet only across edges or corners."""
    facing: dict[tuple[int, int], int] = {}
    for axis in planes.axes:
        beyond = (block[0] + (axis == 0), block[1] + (axis == 1), block[2] + (axis == 2))
        ours, theirs = planes.read(block, 2 * axis + 1), planes.read(beyond, 2 * axis)
        if ours is None or theirs is None:
            continue
        both = np.stack([ours[0].ravel(), theirs[0].ravel()], axis=1)
        found, counts = np.unique(both[(both >= 0).all(axis=1)], axis=0, return_counts=True)
        facing.update(zip(map(tuple, found.tolist()), counts.tolist(), strict=True))
    return np.array([facing.get((a, b), 0) for a, b in pairs.tolist()], np.float64)


def _overlapping(
    segmentation: Segmentation, files: BlockFiles
) -> Callable[[Vec3], Iterator[ScoredPairs]]:
    def pairs(block: Vec3) -> Iterator[ScoredPairs]:
        core = segmentation.plan.brick_box(block)
        for axis in segmentation.axes:
            if not segmentation.has_neighbour(core, axis, 1):
                continue
            beyond = (block[0] + (axis == 0), block[1] + (axis == 1), block[2] + (axis == 2))
            ours, theirs = files.plane(block, f"high {axis}"), files.plane(beyond, f"low {axis}")
            if ours is not None and theirs is not None:
                (row, low), (other, high) = ours, theirs
                joined, scores = overlapping_labels(low, high, segmentation.min_overlap)
                # labels that are no nodes count in sums, but are not joined
                is_node = (joined <= files.table.num_nodes[[row, other]]).all(axis=1)
                first = files.table.first_node[[row, other]]
                yield joined[is_node] + (first - 1), scores[is_node]

    return pairs


def overlapping_labels(
    low: npt.NDArray[np.integer[Any]], high: npt.NDArray[np.integer[Any]], least: float
) -> ScoredPairs:
    """Return the pairs of labels of two arrays whose intersection over union exceeds a limit, shape
    (n, 2), and that ratio for each.

    Examples
    --------
    >>> low, high = np.array([1, 1, 1, 2, 2]), np.array([5, 5, 0, 5, 7])
    >>> pairs, ratios = overlapping_labels(low, high, 0.4)
    >>> pairs.tolist(), ratios.tolist()
    ([[1, 5], [2, 7]], [0.5, 0.5])
    """
    a, b = low.ravel().astype(np.int64), high.ravel().astype(np.int64)
    both = (a > 0) & (b > 0)
    keys, common = np.unique(a[both] << 32 | b[both], return_counts=True)
    pairs = np.stack([keys >> 32, keys & 0xFFFFFFFF], axis=1)
    either = np.bincount(a)[pairs[:, 0]] + np.bincount(b)[pairs[:, 1]] - common
    is_joined = common > least * either
    return pairs[is_joined], (common / either)[is_joined]


def groups_of(segmentation: Segmentation) -> list[Vec3]:
    """Return the groups of blocks that are matched together."""
    return sorted({divide(block, _GROUP) for block in segmentation.blocks()})


def match_job(segmentation: Segmentation) -> ScratchJob:
    """Return the job that pairs the labels of all blocks."""
    digest = load_table(segmentation.table_path, BlockTable).digest

    def is_written(task: Task, result: Result) -> bool:
        try:
            file = ArraysFile(segmentation.folder, pairs_name(task.spec.group))
            file.check()
        except (CorruptError, FileNotFoundError):
            return False
        return bool(file.record["table"] == digest)

    return ScratchJob(
        [MatchSpec(segmentation, group).task() for group in groups_of(segmentation)], is_written
    )


# ------------------------------------------------------------------------------------------------
# number


@dataclass(frozen=True, slots=True)
class ObjectNumbers:
    """Result of the numbering."""

    num_objects: int
    """Number of objects, with ids from 1."""
    num_dropped: int
    """Number of objects below the minimal size."""
    num_cut: int
    """Number of objects that touch the border of what is segmented."""
    num_pairs: int
    """Number of pairs of labels that were joined."""
    num_merged: int
    """Labels that were joined with another one of their block, through other blocks."""
    sizes: tuple[int, int, int]
    """Voxels of the smallest, the median and the largest object."""
    refused: tuple[tuple[str, int], ...]
    """Guards and the number of pairs that each refused."""

    def __str__(self) -> str:
        least, median, most = self.sizes
        parts = [
            counted(self.num_objects, "object")
            + (f" of {least:,} to {most:,} voxels (median {median:,})" if most else ""),
            f"{self.num_dropped:,} smaller ones left out" if self.num_dropped else "",
            f"{self.num_cut:,} cut by the box",
            f"{counted(self.num_pairs, 'pair')} of labels joined",
            f"{counted(self.num_merged, 'label')} with another one of its block"
            if self.num_merged
            else "",
            *(f"{counted(n, 'pair')} refused by {guard}" for guard, n in self.refused if n),
        ]
        return ", ".join(filter(None, parts))


def number(segmentation: Segmentation) -> ObjectNumbers:
    """Unite all pairs and assign ids in the order of nodes."""
    files, num_merged = BlockFiles(segmentation), 0
    united = _united_by_guards if segmentation.guards else _united
    roots, counts = united(segmentation, files)
    totals, is_cut = np.zeros(len(roots), np.int64), np.zeros(len(roots), np.bool_)
    for first, file in _files_of_nodes(segmentation, files):
        sizes = np.ascontiguousarray(file.read("extents")[:, COUNT])
        add_to_roots(roots, sizes, first, totals)
        own_roots = roots[first : first + len(sizes)]
        is_cut[own_roots[file.read("is_cut")]] = True
        num_merged += len(sizes) - len(np.unique(own_roots))
    # the size of an object is stored at its root, its least node
    is_kept, num_roots = np.zeros(len(roots), np.bool_), 0
    for part in _parts(len(roots)):
        is_root = roots[part] == np.arange(part.start, part.stop)
        is_kept[part] = is_root & (totals[part] >= segmentation.min_voxels)
        num_roots += int(is_root.sum())
    sizes, num_cut = totals[is_kept], int((is_cut & is_kept).sum())
    del totals, is_cut  # there may be 10^8 nodes
    ids = np.cumsum(is_kept, dtype=np.uint64)
    ids[~is_kept] = 0
    write_ids(segmentation.folder, (ids[roots[part]] for part in _parts(len(roots))))
    return ObjectNumbers(
        len(sizes),
        num_roots - len(sizes),
        num_cut,
        counts[0],
        num_merged,
        _least_median_most(sizes),
        tuple(zip(REASONS[1:], counts[1:], strict=True)),
    )


def _parts(num_nodes: int) -> Iterator[slice]:
    """Yield the nodes in parts, so that arrays over all of them are few."""
    for start in range(0, num_nodes, _NODES_AT_ONCE):
        yield slice(start, min(start + _NODES_AT_ONCE, num_nodes))


def _least_median_most(sizes: npt.NDArray[np.int64]) -> tuple[int, int, int]:
    if not len(sizes):
        return 0, 0, 0
    return int(sizes.min()), int(np.median(sizes, overwrite_input=True)), int(sizes.max())


def _united(segmentation: Segmentation, files: BlockFiles) -> tuple[IntArray, list[int]]:
    """Return the least node of each node's object, and the number of pairs by reason."""
    sets, counts = DisjointSets(files.table.total_nodes), [0] * len(REASONS)
    for pairs, _ in _pairs_of_groups(segmentation):
        sets.unite(pairs)
        counts[0] += len(pairs)
    return sets.roots(), counts


def _united_by_guards(segmentation: Segmentation, files: BlockFiles) -> tuple[IntArray, list[int]]:
    """Do the same in the order of scores, and write the refused pairs for the table."""
    sizes = np.zeros(files.table.total_nodes, np.int64)
    for first, file in _files_of_nodes(segmentation, files):
        of_block = file.read("extents")[:, COUNT]
        sizes[first : first + len(of_block)] = of_block
    sets = GuardedSets(segmentation.guards, files.table.num_nodes, sizes)
    counts, nbytes = np.zeros(len(REASONS), np.int64), 0
    with store_at(segmentation.folder).new_file(_REFUSED_NAME) as out:
        for pairs, scores in best_first(_pairs_of_groups(segmentation), segmentation.folder):
            reasons = sets.unite_in_order(pairs)
            counts += np.bincount(reasons, minlength=len(REASONS))
            is_refused = reasons > 0
            rows = np.empty(int(is_refused.sum()), _REFUSED)
            columns = pairs[is_refused], scores[is_refused], reasons[is_refused]
            rows["pair"], rows["score"], rows["reason"] = columns
            out.write(rows.view(np.uint8), nbytes)
            nbytes += rows.nbytes
    return sets.roots(), counts.tolist()


def _pairs_of_groups(segmentation: Segmentation) -> Iterator[ScoredPairs]:
    for group in groups_of(segmentation):
        file = ArraysFile(segmentation.folder, pairs_name(group))
        yield file.read("pairs"), file.read("scores")


def _files_of_nodes(
    segmentation: Segmentation, files: BlockFiles
) -> Iterator[tuple[int, ArraysFile]]:
    """Yield the first node and the file of each block with labels."""
    for block in segmentation.blocks():
        row = files.row_of(block)
        if row is not None:
            yield int(files.table.first_node[row]), files.file(block, row)


# ------------------------------------------------------------------------------------------------
# write


@dataclass(frozen=True, slots=True)
class FromBlocks(BrickByBrick):
    """Voxels from the scratch files of all blocks, as a
    :class:`wkwdask.verbs.apply_job.Computation`."""

    segmentation: Segmentation
    plan: BrickPlan
    """Regions and bricks of the target, in its coordinates."""
    origin: Vec3
    """Absolute voxel from which the boxes of the plan count."""

    @property
    def sources(self) -> tuple[Volume, ...]:
        """Nothing: the labels lie in scratch files."""
        return ()

    def occupied(self, region_shape: Vec3) -> CellMap:
        marks = cell_map(self.plan.box, region_shape, self.segmentation.name)
        plan = self.segmentation.plan
        blocks = [counted_from(plan.brick_box(b), self.origin) for b in self.segmentation.blocks()]
        low, high = (
            np.array([getattr(box, name) for box in blocks], np.int64).reshape(-1, 3)
            for name in ("topleft", "bottomright")
        )
        mark_cells(marks, low, high, self.plan.box, region_shape)
        return marks

    def states(self, region: Vec3) -> int:
        """Return a number that changes with the labels of any block, since all ids do then."""
        del region
        return load_table(self.segmentation.table_path, BlockTable).digest

    def region_box(self, region: Vec3) -> BoundingBox:
        return moved(self.plan.region_box(region), self.origin)

    def files_in(self, inside: BoundingBox) -> Iterator[tuple[int, BoundingBox, ArraysFile]]:
        """Yield the row, the box and the file of each block that a box touches."""
        files, plan = BlockFiles(self.segmentation), self.segmentation.plan
        for block in cells(inside, plan.brick_shape):
            row = files.row_of(block)
            if row is not None:
                yield row, plan.brick_box(block), files.file(block, row)


class Relabelling(FromBlocks):
    """Ids in place of labels."""

    __slots__ = ()

    @property
    def title(self) -> str:
        return f"objects of {self.segmentation.name}"

    def voxels(self, box: BoundingBox, target: Stored) -> npt.NDArray[Any] | None:
        """Return the ids of a brick, shape (c, x, y, z); None where all of them are zero."""
        segmentation = self.segmentation
        table = load_table(segmentation.table_path, BlockTable)
        inside = moved(box, self.origin).intersection(segmentation.plan.box)
        corner, out = plus(box.topleft, self.origin), None
        for row, core, file in self.files_in(inside):
            nodes = int(table.first_node[row]), int(table.num_nodes[row])
            ids = np.append(np.uint64(0), read_ids(segmentation.folder, *nodes))
            lookup = ids.astype(target.dtype)
            for name, piece in pieces_in(core.intersection(inside)):
                if name not in file:
                    continue
                piece = piece.intersection(core)
                labels = file.read(name)
                found = np.empty(labels.shape, target.dtype)
                map_ids(labels, None, lookup, found, keeps=False)
                if out is None:
                    out = np.zeros((1, *box.size), target.dtype, order="F")
                common = piece.intersection(inside)
                part_of_array(out, common, corner)[0] = part_of_array(
                    found.T, common, piece.topleft
                )
        return out


class ExtraVoxels(FromBlocks):
    """Second array of the function."""

    __slots__ = ()

    @property
    def title(self) -> str:
        return f"second array of {self.segmentation.name}"

    def voxels(self, box: BoundingBox, target: Stored) -> npt.NDArray[Any] | None:
        """Return the values of a brick, shape (c, x, y, z); None where all of them are zero."""
        inside = moved(box, self.origin).intersection(self.segmentation.plan.box)
        corner, out = plus(box.topleft, self.origin), None
        for _, core, file in self.files_in(inside):
            for name, piece in pieces_in(core.intersection(inside)):
                if extra_name(name) not in file:
                    continue
                piece = piece.intersection(core)
                values = file.read(extra_name(name)).T
                if out is None:
                    out = np.zeros((target.num_channels, *box.size), target.dtype, order="F")
                common = piece.intersection(inside)
                part_of_array(out, common, corner)[...] = part_of_array(
                    values, common, piece.topleft
                )
        return out


class FromBlocksJob(ApplyJob):
    """Job that writes voxels from all blocks. Those that an earlier start wrote hold only if no
    block was segmented again with another result since."""

    def __init__(self, computation: Relabelling | ExtraVoxels, target: TargetArray) -> None:
        super().__init__(computation, target)
        self._computation = computation

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        if result.sources and result.sources != self._computation.states((0, 0, 0)):
            raise ResumeError(
                f"{self._computation.title}: scratch files of finished blocks were lost, and the "
                'function returned other labels the second time; existing="restart" starts over'
            )
        return self._collector.still_exists(result, known)


# ------------------------------------------------------------------------------------------------
# table


def write_objects(
    segmentation: Segmentation, voxel_size_nm: Sequence[float] | None, path: str
) -> None:
    """Write a table of the objects: voxels, box and centre of each."""
    import pandas as pd

    objects = LabelTable(np.dtype(np.uint64))
    for first, file in _files_of_nodes(segmentation, BlockFiles(segmentation)):
        if "extents" in file:
            extents = file.read("extents")
            ids = read_ids(segmentation.folder, first, len(extents))
            objects.merge(LabelRows.without_values(ids[ids > 0], extents[ids > 0]))
    rows = objects.rows().sorted()
    columns = label_columns(rows, segmentation.plan.box, voxel_size_nm)
    write_table(pd.DataFrame(columns, pd.Index(rows.labels, name="label")), path)


def write_refused(segmentation: Segmentation, path: str) -> None:
    """Write a table of the refused pairs, best first: both objects, score and guard."""
    import pandas as pd

    num_nodes = load_table(segmentation.table_path, BlockTable).total_nodes
    refused = f"{segmentation.folder}/{_REFUSED_NAME}"

    def frames() -> Iterator[pd.DataFrame]:
        ids, offset = map_ids_of_nodes(segmentation.folder, num_nodes), 0
        while True:
            rows = by_path.read_array(refused, _REFUSED, _ROWS_AT_ONCE, offset)
            offset += rows.nbytes
            columns = {
                "other": ids[rows["pair"][:, 1]],
                "score": rows["score"],
                "refused_by": np.array(REASONS, object)[rows["reason"]],
            }
            yield pd.DataFrame(columns, pd.Index(ids[rows["pair"][:, 0]], name="label"))
            if len(rows) < _ROWS_AT_ONCE:
                return

    write_parts(frames(), path)
