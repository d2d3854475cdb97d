"""The write job: an array in memory becomes one mag, part by part, without dask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cells
from wkwdask.model.place import LevelSpec
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.job import Result, Task
from wkwdask.runs.parts import Gathering
from wkwdask.runs.scratch import read_piece
from wkwdask.runs.stage import check_existing, stage_array
from wkwdask.runs.staged import settings_of
from wkwdask.runs.tally import ShardTally

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.place import Place
    from wkwdask.model.receipts import Receipt
    from wkwdask.model.volume import Target
    from wkwdask.runs.content import Content
    from wkwdask.runs.scratch import Piece
    from wkwdask.runs.staged import StagedMags


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


PART_NBYTES = 128 << 20


def part_of(target: Target, part: Vec3, part_shape: Vec3) -> tuple[Vec3, Vec3 | None]:
    """Give the shard that a part lies in, and the part's name, which a part that is a whole shard does not have."""
    shard_shape = target.shard_shape
    shard = (part[0] * part_shape[0] // shard_shape[0], part[1] * part_shape[1] // shard_shape[1], part[2] * part_shape[2] // shard_shape[2])
    return shard, None if part_shape == shard_shape else part


def encode_part(target: Target, part: Vec3, part_shape: Vec3, voxels: npt.NDArray[Any], topleft: Vec3) -> Receipt:
    """Encode the voxels of one part and store them."""
    shard, name = part_of(target, part, part_shape)
    writer = target.open_part(shard, part if target.merges else name)
    try:
        writer.append(voxels, topleft)
        receipt = writer.close()
    except BaseException:
        writer.discard()
        raise
    if name is None and target.merges:
        receipt = target.join_shard(shard, [receipt])
        target.remove_parts(shard)
    return receipt


@dataclass(frozen=True, slots=True)
class EncodeSpec:
    """Encode one part of an array in memory."""

    target: Target
    """The mag."""
    part: Vec3
    """Index of the part."""
    part_shape: Vec3
    """Its shape [voxels]."""
    voxels: npt.NDArray[Any]
    """Its voxels, shape (c, x, y, z)."""
    topleft: Vec3
    """Absolute voxel of element 0."""

    def task(self) -> Task:
        """Give the task."""
        return Task(f"part {self.part} of mag {self.target.box.mag}", "part {},{},{}".format(*self.part), EncodeSpec.run, self)

    def run(self) -> Result:
        """Encode and store the part."""
        return Result(((0, encode_part(self.target, self.part, self.part_shape, self.voxels, self.topleft)),), nbytes_in=self.voxels.nbytes)


class WriteJob:
    """Write an array to one mag."""

    def __init__(self, target: Target, array: npt.NDArray[Any], take: Callable[[Receipt], None], done: Collection[Vec3] = ()) -> None:
        self._target = target
        self._array = array
        self._take = take
        self._part_shape = target.part_shape(PART_NBYTES)
        self._gathering = Gathering([target])
        self._shards = [shard for shard in cells(target.box, target.shard_shape) if shard not in done]
        num_joins = len(self._shards) if self._part_shape != target.shard_shape else 0
        self.num_tasks = sum(self._num_parts(0, shard) for shard in self._shards) + num_joins

    def _num_parts(self, level: int, shard: Vec3) -> int:
        return num_parts(self._target.box, shard, self._target.shard_shape, self._part_shape)

    def tasks(self) -> Iterator[Task]:
        """Give the parts, those of one file together."""
        target, box = self._target, self._target.box
        for shard in self._shards:
            inside = cell_box(shard, target.shard_shape, box).intersection(box)
            for part in cells(inside, self._part_shape):
                here = cell_box(part, self._part_shape, box).intersection(box)
                corner = tuple(slice(a - t, b - t) for a, b, t in zip(here.topleft, here.bottomright, box.topleft, strict=True))
                yield EncodeSpec(target, part, self._part_shape, self._array[(slice(None), *corner)], here.topleft).task()

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Take a receipt; give the join of a file whose parts are all there."""
        for _, receipt in result.receipts:
            if receipt.part is None:
                self._take(receipt)
        return self._gathering.take(task, result, self._num_parts)


def num_parts(box: BoundingBox, shard: Vec3, shard_shape: Vec3, part_shape: Vec3) -> int:
    """Count the parts of a shard that a box touches."""
    return sum(1 for _ in cells(cell_box(shard, shard_shape, box).intersection(box), part_shape))


@dataclass(frozen=True, slots=True)
class Creation(Plan):
    """A mag without data that appears."""

    staged: StagedMags
    """The mag."""

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Write nothing."""
        yield from ()
        return Outcome([ShardTally(self.staged.targets[0], 0)])


def lay_out_write(place: Place, topleft: Vec3, content: Content, options: Any, existing: str, command: str) -> tuple[StagedMags, tuple[str, ...]]:
    """Check and lay out the writing of an array as one level, with what a user should know of it."""
    check_existing(existing)
    spec = LevelSpec(BoundingBox(topleft, content.shape[1:], place.mag), content.dtype, content.shape[0])
    levels = place.new_levels([spec], options, existing=existing)
    (folder,) = levels.folders
    settings = {**settings_of(command, folder=folder, box=spec.box), **levels.settings}
    draft = stage_array(f"{command} into {folder}", levels.parent, folder, settings, existing, content)
    staged = draft.mags(levels.staged(draft.root), spec.nbytes, levels.edit, goes_on_by_itself=False, not_compared=content.not_compared)
    return staged, levels.warnings
