"""A pyramid job without data: the package's own plan, tasks and journal over files that nobody
wrote, by tasks that do nothing.

Not simulated: the reading and writing of files, on workers and (listing a source, looking at what
it is made of) on the client.

All knowledge of a real task is in :func:`result_of`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask import BoundingBox, Mag
from wkwdask.formats.wkw.array import wkw_array, wkw_target
from wkwdask.formats.wkw.header import BlockType, make_header
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.graphs.runners import num_workers, run_job
from wkwdask.model.array_files import ArrayFiles
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.writing.receipts import Receipt, merge_receipts
from wkwdask.model.writing.target_array import TargetArray
from wkwdask.plans.pyramid import plan_passes
from wkwdask.plans.regions import Tiling
from wkwdask.runs.job import Result
from wkwdask.runs.journal import Journal, JournaledJob
from wkwdask.runs.parts import pyramid_records
from wkwdask.verbs.pyramid import PyramidJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["PretendedJob", "num_workers", "run_job"]

FILE_VX = 1024
_BLOCK_LEN = 32
_COARSEST_VX = 512
_FILE_NBYTES = 1 << 28
_DIGEST = 1 << 61  # as long as real ones, in a journal


class _Files(ArrayFiles):
    """Files that are all said to be there."""

    __slots__ = ()

    def occupied(self, cell_shape: tuple[int, int, int]) -> np.ndarray:
        """Say that all cells have data."""
        return np.ones([len(r) for r in cell_range(self.box, cell_shape)], bool)


class _Volume(StoredArray):
    """A mag all of whose files are said to be there."""

    __slots__ = ()

    @property
    def files(self) -> _Files:
        """Files that are all said to be there."""
        return _as(_Files, super().files)


class _Target(TargetArray):
    """A mag whose files are said to be written."""

    __slots__ = ()

    def as_volume(self) -> _Volume:
        """Read what is said to be there."""
        return _as(_Volume, self.array)


def _as(kind: type, one: Any) -> Any:
    return kind(*(getattr(one, field.name) for field in fields(one)))


@dataclass(frozen=True, slots=True)
class PretendedTask:
    """As large to send as the task that it stands for, but does nothing."""

    task: Any
    """The task."""

    @property
    def name(self) -> str:
        """Name in errors."""
        return self.task.name

    @property
    def key(self) -> str:
        """Key in the journal."""
        return self.task.key

    def run(self) -> Result:
        """Return the result of the real task."""
        return result_of(self.task.spec)


def result_of(spec: Any) -> Result:
    """Say what a task would give back if all voxels were there: a region or another task that
    writes ``targets``, or a join, which has one ``target``."""
    if hasattr(spec, "target"):
        return Result(((spec.level, _stored(merge_receipts(spec.shard, spec.parts), None)),))
    receipts = []
    for number, (level, target) in enumerate(zip(spec.plan.levels, spec.targets, strict=True)):
        region = cell_box(spec.region, level.region_shape, level.box).intersection(level.box)
        part = None if spec.plan.writes_whole_shards(number, target.shard_shape) else spec.region
        for shard in cells(region, target.shard_shape):
            box = cell_box(shard, target.shard_shape, region).intersection(region)
            receipts.append(
                (
                    spec.first_level + number,
                    _stored(
                        Receipt(shard, box, voxels=box.volume, minimum=0, maximum=255, nonzero=box),
                        part,
                    ),
                )
            )
    return Result(tuple(receipts), _DIGEST)


def _stored(receipt: Receipt, part: tuple[int, int, int] | None) -> Receipt:
    return replace(
        receipt,
        path="a/file/that/nobody/wrote.wkw",
        nbytes=_FILE_NBYTES,
        part=part,
        checksum=1 << 31,
        mtime_ns=1 << 60,
        sources=_DIGEST,
    )


class PretendedJob:
    """The pyramid of a cube of files of 1024^3 voxels, uint8, with all its tasks pretended.

    Parameters
    ----------
    files_per_edge : int
        Files along each edge of the cube.
    workers : int
        Number of concurrent tasks.
    folder : str
        Folder of the journal.
    """

    def __init__(self, files_per_edge: int, workers: int, folder: str) -> None:
        edge = files_per_edge * FILE_VX
        box = BoundingBox((0, 0, 0), (edge, edge, edge), Mag(1, 1, 1))
        header = make_header(
            np.uint8,
            1,
            block_len=_BLOCK_LEN,
            file_len=FILE_VX // _BLOCK_LEN,
            block_type=BlockType.LZ4HC,
        )
        mags = [
            Mag(n, n, n)
            for n in takewhile(
                lambda n: n == 2 or edge // n >= _COARSEST_VX, (2**level for level in count(1))
            )
        ]
        targets = [
            _as(
                _Target,
                wkw_target(
                    f"{folder}/{mag.name}", header, 5, box.in_mag(mag), f"{folder}/{mag.name}.parts"
                ),
            )
            for mag in mags
        ]
        passes = plan_passes(
            box,
            mags,
            [Tiling((_BLOCK_LEN,) * 3, (FILE_VX,) * 3, header.voxel_nbytes)] * len(mags),
            workers,
        )
        self._pyramid = PyramidJob(
            _as(_Volume, wkw_array(f"{folder}/1", header, box)), targets, passes, "median"
        )
        self._journal = Journal(folder)
        self._job = JournaledJob(self._pyramid, self._journal.append, (), targets)
        self.num_voxels = math.prod(box.size)
        self.num_given = 0
        self.num_received = 0
        self.most_in_flight = 0

    @property
    def num_tasks(self) -> int:
        """Total number of tasks."""
        return self._job.num_tasks

    def tasks(self) -> Iterator[PretendedTask]:
        """Return the tasks to start with."""
        return self._pretended(self._job.tasks())

    def receive(self, task: PretendedTask, result: Result) -> Iterable[PretendedTask]:
        """Hand a result on."""
        self.num_received += 1
        return self._pretended(self._job.receive(task.task, result))

    def _pretended(self, tasks: Iterable[Any]) -> Iterator[PretendedTask]:
        for task in tasks:
            self.num_given += 1
            self.most_in_flight = max(self.most_in_flight, self.num_given - self.num_received)
            yield PretendedTask(task)

    def finish(self) -> int:
        """Make sure that all files were written, and give their number."""
        self._journal.__exit__(None, None, None)
        for tally in self._pyramid.tallies:
            tally.check()
        return sum(len(rows) for rows in pyramid_records(self._pyramid.tallies))
