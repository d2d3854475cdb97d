"""The job that puts the parts of shards together from pieces of an array that were set aside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry.grid import cell_box, cells
from wkwdask.runs.job import Result, Task
from wkwdask.runs.parts import Gathering
from wkwdask.runs.scratch import read_piece
from wkwdask.verbs.write import encode_part, num_parts, part_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.receipts import Receipt
    from wkwdask.model.volume import Target
    from wkwdask.runs.scratch import Piece


@dataclass(frozen=True, slots=True)
class AssembleSpec:
    """Put one part together and encode it."""

    target: Target
    """The mag."""
    part: Vec3
    """Index of the part."""
    part_shape: Vec3
    """Its shape [voxels]."""
    pieces: tuple[Piece, ...]
    """What of it is not zero."""

    def task(self) -> Task:
        """Give the task."""
        return Task(f"part {self.part} of mag {self.target.box.mag}", "part {},{},{}".format(*self.part), AssembleSpec.run, self)

    def run(self) -> Result:
        """Read the pieces, encode the part and store it."""
        target = self.target
        box = cell_box(self.part, self.part_shape, target.box).intersection(target.box)
        voxels = np.zeros((target.num_channels, *box.size), target.dtype, order="F")
        for piece in self.pieces:
            x, y, z = (slice(a - t, b - t) for a, b, t in zip(piece.box.topleft, piece.box.bottomright, box.topleft, strict=True))
            voxels[slice(*piece.channels), x, y, z] = read_piece(piece, target.dtype)
        return Result(((0, encode_part(target, self.part, self.part_shape, voxels, box.topleft)),), nbytes_in=voxels.nbytes)


class AssembleJob:
    """Write a mag from pieces."""

    def __init__(self, target: Target, part_shape: Vec3, pieces: Iterable[Piece], done: set[Vec3], take: Callable[[Receipt], None]) -> None:
        self._target = target
        self._part_shape = part_shape
        self._take = take
        self._gathering = Gathering([target])
        self._pieces: dict[Vec3, list[Piece]] = {}
        for piece in pieces:
            self._pieces.setdefault(piece.part, []).append(piece)
        self._parts = [part for part in cells(target.box, part_shape) if part_of(target, part, part_shape)[0] not in done]
        shards = {part_of(target, part, part_shape)[0] for part in self._parts}
        self.num_tasks = len(self._parts) + (len(shards) if part_shape != target.shard_shape else 0)

    def tasks(self) -> Iterator[Task]:
        """Give all parts."""
        return (AssembleSpec(self._target, part, self._part_shape, tuple(self._pieces.get(part, ()))).task() for part in self._parts)

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Take receipts; give the joins whose parts are all there."""
        for _, receipt in result.receipts:
            if receipt.part is None:
                self._take(receipt)
        return self._gathering.take(task, result, lambda _, shard: num_parts(self._target.box, shard, self._target.shard_shape, self._part_shape))
