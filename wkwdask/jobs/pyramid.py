"""The pyramid job: regions stream a source mag into all coarser mags of a pass, joins make files of parts, and the next pass goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from wkwdask.geometry.grid import cell_box, cell_range, cells
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
    first_level: int = 0
    """Index in the whole pyramid of the first mag of the pass."""

    @property
    def name(self) -> str:
        """What an error calls the task."""
        return f"region {self.region} of {self.source.name}"

    def run(self) -> list[tuple[int, Receipt]]:
        """Read the region and write its share of every mag.

        Returns
        -------
        list of (int, Receipt)
            Index of the mag in the pyramid, and the receipt of each file or part.
        """
        stream = PyramidStream(self.plan, self.method, self.source.dtype, self.source.num_channels)
        writers = [_LevelWriter(target, self.plan, level, self.region) for level, target in enumerate(self.targets)]
        try:
            for brick in self.plan.bricks(self.region):
                nonzero = self.source.read_into(stream.source_view(brick), stream.source_box(brick).topleft)
                for done in stream.push(brick, nonzero == 0):
                    writers[done.level].put(done.index, done.voxels)
            return [(self.first_level + level, receipt) for level, writer in enumerate(writers) for receipt in writer.close()]
        except BaseException:
            for writer in writers:
                writer.discard()
            raise
        finally:
            stream.close()


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
    """Index of the mag in the pyramid."""
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
        self._passes = self._plan_passes()
        self._started = 0
        self._parts: dict[tuple[int, Vec3], list[Receipt]] = {}
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
        return sum(self._num_shards(first + n) for n in range(len(plan.levels)) if not plan.writes_whole(n, self.targets[first + n].shard_shape))

    def _num_shards(self, level: int) -> int:
        target = self.targets[level]
        x, y, z = cell_range(target.box, target.shard_shape)
        return len(x) * len(y) * len(z)

    def tasks(self) -> Iterator[Task]:
        """Give the regions of the first pass."""
        return self._start_pass()

    def _start_pass(self) -> Iterator[Task]:
        first, plan = self._passes[self._started]
        self._started += 1
        source = self.source if first == 0 else self.targets[first - 1].as_volume()
        targets = tuple(self.targets[first : first + len(plan.levels)])
        return (RegionTask(source, plan, targets, self.method, region, first) for region in plan.regions())

    def receive(self, task: Task, result: list[tuple[int, Receipt]]) -> Iterable[Task]:
        """Take receipts; give the joins whose parts are all there, and the next pass as soon as the mag that it reads is complete."""
        joins: list[Task] = []
        for level, receipt in result:
            if receipt.part is None:
                self.receipts[level].append(receipt)
                continue
            parts = self._parts.setdefault((level, receipt.shard), [])
            parts.append(receipt)
            first, plan = next((first, plan) for first, plan in reversed(self._passes) if first <= level)
            if len(parts) == plan.num_parts(level - first, receipt.shard, self.targets[level].shard_shape):
                # the coarsest first: the next pass waits for it
                joins.insert(0, JoinTask(self.targets[level], level, receipt.shard, tuple(self._parts.pop((level, receipt.shard)))))
        if self._started < len(self._passes):
            reads = self._passes[self._started][0] - 1
            if len(self.receipts[reads]) == self._num_shards(reads):
                return chain(self._start_pass(), joins)
        return joins
