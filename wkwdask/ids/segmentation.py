"""First step of a segmentation: a user's function labels each block, and a scratch file keeps the
result.

The file of a block is published once: each task that finds a valid one uses it. So all
later steps see the same labels, even if the function returns others the second time.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, IncompleteWriteError
from wkwdask.geometry.bounding_box import BoundingBox, part_of_array
from wkwdask.geometry.grid import cell_box, cells, clipped_cell
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import minus, plus
from wkwdask.ids.arrays_file import ArraysFile, format_arrays
from wkwdask.ids.faces import NodeTable
from wkwdask.ids.guards import Guards
from wkwdask.kernels.labels.components import label_brick
from wkwdask.kernels.labels.layout import HIGH, LOW, NUM_COLUMNS
from wkwdask.kernels.labels.tables import LabelTable
from wkwdask.kernels.labels.values import map_ids
from wkwdask.model.placement import job_of_folder
from wkwdask.model.states import add_digests
from wkwdask.model.store import Conflict, Expected
from wkwdask.model.summary import counted
from wkwdask.model.volume import voxel_nbytes
from wkwdask.runs.job import Result, ScratchJob, Task, is_fatal, is_final
from wkwdask.runs.parts import source_changed
from wkwdask.store.store import store_at
from wkwdask.verbs.apply_job import AppliedFunction, function_name, read_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.plans.apply import BrickPlan

MATCHES = ("overlap", "touch")
_PIECE = (64, 64, 64)
"""Shape of the pieces in which the labels of a block are stored [voxels]."""
_PLANES = ("low", "high")
_ATTEMPTS = 3  # to publish a file in place of a damaged one


@dataclass(frozen=True, slots=True)
class Segmentation:
    """Volumes to segment, and the rules by which labels of neighbouring blocks are joined."""

    application: AppliedFunction
    """Function whose bricks are the blocks, in absolute voxels; its box is all that is
    segmented."""
    match: str
    """``"overlap"`` joins labels that agree on the two planes at a face, ``"touch"`` those that
    touch."""
    min_overlap: float
    """Intersection over union above which two labels are joined."""
    connectivity: int
    """Neighbours of a voxel for ``"touch"``: 6, 18 or 26."""
    axes: tuple[int, ...]
    """Axes along which blocks are joined."""
    min_voxels: int
    """Size of the smallest object to keep."""
    fills: bool
    """Whether a block in which the function fails stays empty."""
    folder: str
    """Folder of scratch files."""
    guards: Guards = field(default_factory=Guards)
    """Rules by which pairs of labels are refused."""
    has_extra: bool = False
    """Whether the function returns a second array."""

    @property
    def plan(self) -> BrickPlan:
        return self.application.plan

    @property
    def name(self) -> str:
        return self.application.sources[0].name

    @property
    def table_path(self) -> str:
        return f"{self.folder}/blocks"

    def blocks(self) -> list[Vec3]:
        """Return the blocks to compute."""
        occupied = self.application.occupied(self.plan.region_shape)
        return list(self.plan.regions(occupied))

    def has_neighbour(self, core: BoundingBox, axis: int, side: int) -> bool:
        """Return whether labels are joined across the lower (0) or upper (1) face of a block."""
        area = self.plan.box
        return axis in self.axes and (
            core.bottomright[axis] < area.bottomright[axis]
            if side
            else core.topleft[axis] > area.topleft[axis]
        )

    def rim(self, core: BoundingBox) -> BoundingBox:
        """Return a block with the planes beyond its faces that matching needs."""
        if self.match == "touch":
            return core
        low, high = (
            vec3([int(self.has_neighbour(core, axis, side)) for axis in range(3)])
            for side in (0, 1)
        )
        return BoundingBox.from_corners(
            minus(core.topleft, low), plus(core.bottomright, high), core.mag
        )

    # ------------------------------------------------------------------------- computation

    def compute(self, blocks: Sequence[Vec3]) -> list[BlockLabels]:
        """Call the function on some blocks."""
        cores = [self.plan.region_box(block) for block in blocks]
        rims = [self.rim(core) for core in cores]
        volume = self.application.mask
        masks = [None if volume is None else read_mask(volume, rim) for rim in rims]
        numbers = [
            n
            for n, mask in enumerate(masks)
            if mask is None or part_of_array(mask, cores[n], rims[n].topleft).any()
        ]
        computed = self.application.compute_all([cores[n] for n in numbers])
        out = [BlockLabels(self, core, None) for core in cores]
        for n, (result, box, seconds) in zip(numbers, computed, strict=True):
            labels: npt.NDArray[Any] | None = None
            extra: npt.NDArray[Any] | None = None
            if result:
                returned, extra = self._split(result[0], box)
                labels = _checked(returned, box, self.application.function)
                labels = part_of_array(labels, rims[n], box.topleft)
                extra = None if extra is None else part_of_array(extra, cores[n], box.topleft)
                mask = masks[n]
                if mask is not None:
                    labels = np.where(mask, labels, labels.dtype.type(0))
                if mask is not None and extra is not None:
                    inside = part_of_array(mask, cores[n], rims[n].topleft)
                    extra = np.where(inside, extra, extra.dtype.type(0))
            out[n] = BlockLabels(self, cores[n], labels, seconds, extra=extra)
        return out

    def _split(self, result: Any, box: BoundingBox) -> tuple[Any, npt.NDArray[Any] | None]:
        """Return the labels and the second array, shape (c, x, y, z)."""
        if not self.has_extra:
            return result, None
        name = function_name(self.application.function)
        if not isinstance(result, tuple) or len(result) != 2:
            what = type(result).__name__
            raise TypeError(f"{name} returned {what}, expected a pair of labels and an array")
        labels, extra = result
        if not isinstance(extra, np.ndarray) or extra.dtype.kind not in "biuf":
            what = extra.dtype.name if isinstance(extra, np.ndarray) else type(extra).__name__
            raise TypeError(f"{name} returned {what}, expected a second array of numbers")
        array = extra[np.newaxis] if extra.ndim == 3 else extra
        if array.ndim != 4 or array.shape[1:] != box.size or not len(array):
            raise ValueError(
                f"{name} returned a second array of shape {extra.shape}, expected {box.size} "
                "voxels, with channels first if there are several"
            )
        return labels, array.astype(array.dtype.newbyteorder("="), copy=False)

    def compute_or_fill(self, blocks: Sequence[Vec3]) -> list[BlockLabels]:
        """Call the function on some blocks. Those in which it fails stay empty if the user wants
        that."""
        try:
            return self.compute(blocks)
        except Exception as error:
            if not self.fills or not is_final(error) or is_fatal(error):
                raise
            if len(blocks) > 1:
                return [labels for block in blocks for labels in self.compute_or_fill([block])]
            failure = f"{type(error).__name__}: {error}"
            return [BlockLabels(self, self.plan.region_box(blocks[0]), None, failure=failure)]

    # ------------------------------------------------------------------------- files

    def name_of(self, block: Vec3) -> str:
        return "z{}y{}x{}.labels".format(*reversed(block))

    def find(self, block: Vec3, states: int) -> ArraysFile | None:
        """Open the valid file of a block that this job made from its present sources; None without
        one."""
        try:
            file = ArraysFile(self.folder, self.name_of(block))
            file.check()
        except (CorruptError, FileNotFoundError):
            return None
        wanted = (states, job_of_folder(self.folder))
        return file if (file.record["sources"], file.record["job"]) == wanted else None

    def publish(self, block: Vec3, labels: BlockLabels, states: int) -> None:
        """Write the file of a block, unless there is a valid one."""
        store_at(self.folder).make(in_existing=True)
        store, name = store_at(self.folder), self.name_of(block)
        made_by = {"block": block, "job": job_of_folder(self.folder), "sources": states}
        data = format_arrays(labels.arrays(), {**made_by, **labels.record})
        for _ in range(_ATTEMPTS):
            try:
                store.put(name, data, Expected.ABSENT)
            except Conflict:
                if self.find(block, states) is not None:
                    return
                store.delete(name)  # damaged, or made from sources that have changed since
            else:
                return
        raise IncompleteWriteError(f"{store.path_of(name)}: another process writes other content")

    def changed(self, box: BoundingBox) -> IncompleteWriteError:
        return IncompleteWriteError(
            f'{self.name}: {box} was changed while it was read; existing="restart" starts over'
        )


def _checked(
    result: Any, box: BoundingBox, function: Callable[..., Any]
) -> npt.NDArray[np.integer[Any]]:
    """Check that a function returned labels, and return them in shape (x, y, z)."""
    name = function_name(function)
    if not isinstance(result, np.ndarray) or result.dtype.kind not in "iub":
        what = result.dtype.name if isinstance(result, np.ndarray) else type(result).__name__
        raise TypeError(f"{name} returned {what}, expected an array of integer labels")
    labels = result[0] if result.ndim == 4 and len(result) == 1 else result
    if labels.shape != box.size:
        raise ValueError(f"{name} returned shape {result.shape}, expected labels of {box.size}")
    if labels.dtype.kind == "b":
        labels = labels.view(np.uint8)
    if labels.dtype.kind == "i" and labels.size and labels.min() < 0:
        raise ValueError(f"{name} returned label {labels.min()}; labels are not negative")
    return labels.astype(labels.dtype.newbyteorder("="), copy=False)


@dataclass(frozen=True)
class BlockLabels:
    """Labels of one block. Those with a voxel in the block are numbered by their first one, x
    fastest; they are the nodes that are joined."""

    segmentation: Segmentation
    core: BoundingBox
    """The block without its halo."""
    labels: npt.NDArray[Any] | None
    """Labels of the block and of the planes around it, as the function numbers them, shape (x, y,
    z); None for an empty block."""
    seconds: tuple[float, float] = (0.0, 0.0)
    """Time for reading and for the function."""
    failure: str = ""
    """Error of the function."""
    extra: npt.NDArray[Any] | None = None
    """Second array that the function returned, without halo, shape (c, x, y, z)."""

    @property
    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "nodes": len(self.extents),
            "parts": self._num_parts,
            "seconds": self.seconds,
        }
        if self.extra is not None:
            record["extra"] = [self.extra.dtype.name, len(self.extra)]
        return {**record, "failure": self.failure} if self.failure else record

    @cached_property
    def _inside(self) -> npt.NDArray[Any]:
        """Labels of the block as the function numbers them."""
        assert self.labels is not None
        rim = self.segmentation.rim(self.core)
        return np.asfortranarray(part_of_array(self.labels, self.core, rim.topleft))

    @cached_property
    def _table(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Labels and extents of the nodes, in their order; extents count from the corner of all
        that is segmented."""
        if self.labels is None:
            return np.zeros(0, np.uint64), np.zeros((0, NUM_COLUMNS), np.int64)
        table = LabelTable(self._inside.dtype)
        table.add(self._inside, minus(self.core.topleft, self.segmentation.plan.box.topleft))
        rows = table.rows()
        return rows.labels.astype(np.uint64), rows.extents

    @property
    def extents(self) -> npt.NDArray[np.int64]:
        return self._table[1]

    @cached_property
    def nodes(self) -> npt.NDArray[Any]:
        """Numbers of the nodes in the block, from 1 on, in the smallest type, shape (x, y, z)."""
        return self._numbered(self._inside)

    def _numbered(self, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the numbers of nodes in place of labels; other labels become 0."""
        names, _ = self._table
        order = np.argsort(names)
        numbers = order.astype(np.uint64) + np.uint64(1)
        out = np.empty(labels.shape, np.min_scalar_type(len(names)), order="F")
        map_ids(np.asfortranarray(labels), names[order], numbers, out, keeps=False)
        return out

    @cached_property
    def _num_parts(self) -> int:
        """Number of connected parts of all labels inside the block."""
        return len(label_brick(self.nodes, 26).sizes) if len(self.extents) else 0

    def arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield what later steps need: sizes, marks of objects at the border, planes at the faces,
        and the labels in pieces."""
        if not len(self.extents) and self.extra is None:
            return
        area = self.segmentation.plan.box
        axes = list(self.segmentation.axes)
        low, high = self.extents[:, LOW : LOW + 3], self.extents[:, HIGH : HIGH + 3]
        yield "extents", self.extents
        yield "is_cut", ((low == 0) | (high == area.size))[:, axes].any(axis=1)
        for axis in axes:
            for side, name in enumerate(_PLANES):
                if self.segmentation.has_neighbour(self.core, axis, side):
                    yield f"{name} {axis}", self._plane(axis, side)
        for piece in cells(self.core, _PIECE):
            box = clipped_cell(piece, _PIECE, self.core)
            part = part_of_array(self.nodes, box, self.core.topleft)
            if part.any():
                yield piece_name(piece), part.T
            if self.extra is not None:
                values = part_of_array(self.extra, box, self.core.topleft)
                if values.any():
                    yield extra_name(piece_name(piece)), values.T

    def _plane(self, axis: int, side: int) -> npt.NDArray[np.uint32]:
        """Return the numbers at a face, shape (v, u), slower axis first. For overlaps these are the
        two planes at the face, lower one first; labels that are no nodes have higher numbers."""
        if self.segmentation.match == "touch":
            at = [slice(None)] * 3
            at[axis] = slice(-1, None) if side else slice(0, 1)
            face = self.nodes[tuple(at)].squeeze(axis).T
            return face.astype(np.uint32)
        assert self.labels is not None
        position = self.core.bottomright[axis] if side else self.core.topleft[axis]
        low, high = list(self.core.topleft), list(self.core.bottomright)
        low[axis], high[axis] = position - 1, position + 1
        box = BoundingBox.from_corners(low, high, self.core.mag)
        labels = part_of_array(self.labels, box, self.segmentation.rim(self.core).topleft)
        numbers = self._numbered(labels).astype(np.uint32)
        is_other = (numbers == 0) & (labels != 0)
        if is_other.any():
            _, others = np.unique(labels[is_other], return_inverse=True)
            numbers[is_other] = others.ravel() + (len(self.extents) + 1)
        return np.moveaxis(numbers, axis, 0).transpose(0, 2, 1)


def piece_name(piece: Vec3) -> str:
    return "piece {},{},{}".format(*piece)


def extra_name(piece: str) -> str:
    """Return the name of the second array in a piece."""
    return f"extra {piece}"


def pieces_in(box: BoundingBox) -> Iterator[tuple[str, BoundingBox]]:
    """Yield the name and the box of each piece that a box touches."""
    for piece in cells(box, _PIECE):
        yield piece_name(piece), cell_box(piece, _PIECE, box)


# ------------------------------------------------------------------------------------------------
# tasks


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """Task that segments the blocks of one call."""

    segmentation: Segmentation
    blocks: tuple[Vec3, ...]

    def task(self) -> Task:
        boxes = ", ".join(str(self.segmentation.plan.region_box(block)) for block in self.blocks)
        return Task(
            f"{boxes}, {self.segmentation.application.title}",
            "segment {},{},{}".format(*self.blocks[0]),
            BlockSpec.run,
            self,
        )

    def states(self) -> list[int]:
        """Return the digest of the states of all files that each block reads."""
        return [self.segmentation.application.states(block) for block in self.blocks]

    def is_written(self, states: Sequence[int]) -> list[bool]:
        """Return which blocks have a valid file."""
        pairs = zip(self.blocks, states, strict=True)
        return [self.segmentation.find(block, state) is not None for block, state in pairs]

    def run(self) -> Result:
        """Segment the blocks that have no valid file."""
        segmentation = self.segmentation
        # before reading, so that a file that changes during the read fails later checks
        states = self.states()
        is_written = self.is_written(states)
        missing = {
            block: state
            for block, state, written in zip(self.blocks, states, is_written, strict=True)
            if not written
        }
        if missing:
            all_labels = segmentation.compute_or_fill(list(missing))
            for (block, state), labels in zip(missing.items(), all_labels, strict=True):
                segmentation.publish(block, labels, state)
        nbytes_in = sum(
            voxel_nbytes(source, segmentation.plan.region_box(block).in_mag(source.box.mag))
            for source in segmentation.application.sources
            for block in self.blocks
        )
        return Result((), add_digests(*states), nbytes_in=nbytes_in)


def segment_job(segmentation: Segmentation) -> ScratchJob:
    """Return the job that segments all blocks. It raises :class:`ResumeError` if a source has
    changed since an earlier start."""
    application = segmentation.application

    def is_written(task: Task, result: Result) -> bool:
        states = task.spec.states()
        if add_digests(*states) != result.sources:
            source = application.sources[0]
            boxes = [application.region_box(block) for block in task.spec.blocks]
            files = [source.files.shard_states(box.in_mag(source.box.mag)) for box in boxes]
            raise source_changed(task, np.concatenate(files), source)
        return all(task.spec.is_written(states))

    blocks, batch = segmentation.blocks(), application.batch
    groups = [tuple(blocks[n : n + batch]) for n in range(0, len(blocks), batch)]
    return ScratchJob([BlockSpec(segmentation, group).task() for group in groups], is_written)


# ------------------------------------------------------------------------------------------------
# all blocks


@dataclass(frozen=True)
class BlockTable(NodeTable):
    """Table of all blocks with labels or a second array; each label is a node."""

    digests: npt.NDArray[np.int64]
    """Digest of the labels in each file, which can differ if a file is written again."""

    @property
    def digest(self) -> int:
        """Number that changes with every file."""
        columns = np.concatenate([self.codes, self.num_nodes, self.digests])
        return zlib.crc32(columns.tobytes())


@dataclass(frozen=True, slots=True)
class BlockTotals:
    """Totals over all blocks."""

    num_split: int
    """Number of connected parts of labels inside their blocks, less the number of labels."""
    failures: tuple[tuple[Vec3, str], ...]
    """Blocks that stay empty, with the error of the function."""
    seconds: tuple[float, float]
    """Time for reading and for the function, over all blocks."""
    extra: tuple[str, int] | None
    """Type and channels of the second array; None if no block has one."""


def tabulate(segmentation: Segmentation) -> BlockTotals:
    """Write the table of all blocks with labels, which the next tasks read."""
    # no task has created it if there is no block
    folder = segmentation.folder
    store_at(folder).make(in_existing=True)
    rows, failures, num_split, seconds = [], [], 0, np.zeros(2)
    extras: dict[tuple[str, int], Vec3] = {}
    for block in segmentation.blocks():
        file = ArraysFile(folder, segmentation.name_of(block))
        record = file.record
        seconds += record["seconds"]
        num_split += record["parts"] - record["nodes"]
        if "failure" in record:
            failures.append((block, record["failure"]))
        if "extra" in record:
            dtype, channels = record["extra"]
            extras.setdefault((dtype, channels), block)
        if record["nodes"] or "extra" in record:
            rows.append((segmentation.plan.code_of(block), record["nodes"], file.digest))
    if len(extras) > 1:
        found = ", ".join(
            f"{dtype} in {counted(channels, 'channel')} in {segmentation.plan.region_box(block)}"
            for (dtype, channels), block in extras.items()
        )
        raise TypeError(
            f"{function_name(segmentation.application.function)} returned second arrays of "
            f'different types: {found}; return one type, and start over with existing="restart"'
        )
    columns = np.array(sorted(rows), np.int64).reshape(-1, 3).T
    BlockTable(*columns).save(segmentation.table_path)
    return BlockTotals(
        num_split,
        tuple(failures),
        (float(seconds[0]), float(seconds[1])),
        next(iter(extras), None),
    )
