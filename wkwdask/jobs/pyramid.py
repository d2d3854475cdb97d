"""The pyramid job: regions stream a source mag into all coarser mags of a pass, joins make files of parts, and the next pass goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wkwdask.geometry.grid import cell_box, cells
from wkwdask.plans.pyramid import Pass, plan_pass
from wkwdask.streams.pyramid import PyramidStream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.jobs.job import Task
    from wkwdask.storage.receipts import Receipt
    from wkwdask.storage.volume import PartWriter, Target, Volume


@dataclass(frozen=True, slots=True)
class RegionTask:
    """Stream one region of a pass."""

    source: Volume
    """What is read."""
    plan: Pass
    """Mags, boxes and bricks."""
    targets: tuple[Target, ...]
    """What is written, one per mag of the pass."""
    method: str
    """How a window becomes a voxel."""
    region: Vec3
    """Which region."""

    @property
    def name(self) -> str:
        """What an error calls the task."""
        return f"region {self.region} of {self.source.name}"

    def run(self) -> list[tuple[int, Receipt]]:
        """Read the region and write its share of every mag.

        Returns
        -------
        list of (int, Receipt)
            Mag of the pass, and the receipt of each file or part.
        """
        stream = PyramidStream(self.plan, self.method, self.source.dtype, self.source.num_channels)
        writers = [_LevelWriter(target, self.plan, level, self.region) for level, target in enumerate(self.targets)]
        try:
            for brick in self.plan.bricks(self.region):
                nonzero = self.source.read_into(stream.source_view(brick), stream.source_box(brick).topleft)
                for done in stream.push(brick, nonzero == 0):
                    writers[done.level].put(done.index, done.voxels)
            return [(level, receipt) for level, writer in enumerate(writers) for receipt in writer.close()]
        except BaseException:
            for writer in writers:
                writer.discard()
            raise


class _LevelWriter:
    """Hands the bricks of one mag to the writers of their files or parts."""

    def __init__(self, target: Target, plan: Pass, level: int, region: Vec3) -> None:
        self._target = target
        self._level = plan.levels[level]
        self._part = None if plan.writes_whole(level, target.shard_shape) else region
        self._open: dict[Vec3, PartWriter] = {}
        self._receipts: list[Receipt] = []

    def put(self, index: Vec3, voxels: npt.NDArray[Any] | None) -> None:
        """Write a brick."""
        brick = cell_box(index, self._level.brick_shape, self._level.box).intersection(self._level.box)
        for shard in cells(brick, self._target.shard_shape):
            box = cell_box(shard, self._target.shard_shape, brick).intersection(brick)
            writer = self._writer(shard)
            if voxels is None:
                writer.skip(box)
            else:
                inside = tuple(slice(a - t, b - t) for a, b, t in zip(box.topleft, box.bottomright, brick.topleft, strict=True))
                writer.append(voxels[(slice(None), *inside)], box.topleft)

    def _writer(self, shard: Vec3) -> PartWriter:
        writer = self._open.get(shard)
        if writer is None:
            if self._part is None:  # whole files come one after the other
                self._finish()
            writer = self._open[shard] = self._target.open_part(shard, self._part)
        return writer

    def _finish(self) -> None:
        for shard in list(self._open):
            self._receipts.append(self._open[shard].close())
            del self._open[shard]

    def close(self) -> list[Receipt]:
        """Publish what is open, and give all receipts."""
        self._finish()
        return self._receipts

    def discard(self) -> None:
        """Remove what is open."""
        for writer in self._open.values():
            writer.discard()


@dataclass(frozen=True, slots=True)
class JoinTask:
    """Join the parts of one file."""

    target: Target
    """The mag."""
    level: int
    """Index of the mag in its pass."""
    shard: Vec3
    """Which file."""
    parts: tuple[Receipt, ...]
    """All its parts."""

    @property
    def name(self) -> str:
        """What an error calls the task."""
        return f"file {self.shard} of mag {self.target.box.mag}"

    def run(self) -> list[tuple[int, Receipt]]:
        """Join, and give the receipt of the file."""
        return [(self.level, self.target.join_shard(self.shard, self.parts))]


@dataclass
class PyramidJob:
    """All coarser mags of one mag.

    Parameters
    ----------
    source : Volume
        The finest mag.
    targets : sequence of Target
        The coarser mags, finest first.
    layer_box : BoundingBox
        Where the layer has data.
    method : str
        How a window becomes a voxel.
    workers : int
        How many tasks run at once.
    """

    source: Volume
    targets: Sequence[Target]
    layer_box: BoundingBox
    method: str
    workers: int
    receipts: list[list[Receipt]] = field(default_factory=list)
    """Receipts of the files of each mag."""

    def __post_init__(self) -> None:
        self.receipts = [[] for _ in self.targets]
        self._first_level = 0
        self._passes = self._plan_passes()
        self.num_tasks = sum(plan.num_regions + self._num_joins(first, plan) for first, plan in self._passes)

    def _plan_passes(self) -> list[tuple[int, Pass]]:
        """Plan all passes: each goes on from the coarsest mag of the one before."""
        passes = []
        first, box = 0, self.source.box
        while first < len(self.targets):
            rest = self.targets[first:]
            target = rest[0]
            voxel_nbytes = self.source.dtype.itemsize * self.source.num_channels
            mags = [target.box.mag for target in rest]
            plan = plan_pass(box, mags, self.layer_box, target.chunk_shape, target.shard_shape, voxel_nbytes, self.workers)
            passes.append((first, plan))
            first += len(plan.levels)
            box = plan.levels[-1].box
        return passes

    def _num_joins(self, first: int, plan: Pass) -> int:
        return sum(
            sum(1 for _ in cells(level.box, self.targets[first + n].shard_shape))
            for n, level in enumerate(plan.levels)
            if not plan.writes_whole(n, self.targets[first + n].shard_shape)
        )

    def tasks(self) -> Iterator[Task]:
        """Give the regions of the first pass."""
        for target in self.targets:
            target.prepare()
        return self._start_pass(0)

    def _start_pass(self, number: int) -> Iterator[Task]:
        self._pass_number = number
        first, plan = self._passes[number]
        source = self.source if first == 0 else self.targets[first - 1].as_volume()
        targets = tuple(self.targets[first : first + len(plan.levels)])
        self._waiting = plan.num_regions + self._num_joins(first, plan)
        self._parts: dict[tuple[int, Vec3], list[Receipt]] = {}
        return (RegionTask(source, plan, targets, self.method, region) for region in plan.regions())

    def receive(self, task: Task, result: list[tuple[int, Receipt]]) -> Iterable[Task]:
        """Take receipts; give the joins whose parts are all there, and after the last task of a pass the next pass."""
        first, plan = self._passes[self._pass_number]
        joins: list[Task] = []
        for level, receipt in result:
            if receipt.part is None:
                self.receipts[first + level].append(receipt)
                continue
            target = self.targets[first + level]
            parts = self._parts.setdefault((level, receipt.shard), [])
            parts.append(receipt)
            if len(parts) == plan.num_parts(level, receipt.shard, target.shard_shape):
                joins.append(JoinTask(target, level, receipt.shard, tuple(self._parts.pop((level, receipt.shard)))))
        self._waiting -= 1
        if self._waiting == 0 and self._pass_number + 1 < len(self._passes):
            return self._start_pass(self._pass_number + 1)
        return joins
