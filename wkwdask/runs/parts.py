"""Shards that one task writes whole, or several tasks in parts: assembly of bricks, joining of
parts, totals, and scratch files.

Scratch files hold voxels of a part until its other voxels are computed.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import lz4.block
import numpy as np

from wkwdask.errors import CorruptError, IncompleteWriteError, ResumeError
from wkwdask.geometry.bounding_box import moved, part_of_array
from wkwdask.geometry.grid import cell_range, cells, clipped_cell, mark_cells
from wkwdask.geometry.vectors import times
from wkwdask.model.states import FILE_RECORD_COLUMNS, describe_last_change, grouped_digests
from wkwdask.model.volume import relative_to
from wkwdask.model.writing.receipts import greatest, least
from wkwdask.plans.cells import cell_map
from wkwdask.runs.job import Result, Task
from wkwdask.runs.report import MagReport
from wkwdask.runs.shared_loop import num_sharing, share
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.states import States
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.encoding import EncodedChunks
    from wkwdask.model.writing.receipts import Receipt
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.model.writing.writers import Writer
    from wkwdask.plans.cells import CellMap


_MAX_BUFFERED_NBYTES = 32 << 20  # buffered in all open shards together


@dataclass(frozen=True, slots=True)
class BrickPiece:
    """Piece of a brick inside one shard, encoded."""

    shard: Vec3
    box: BoundingBox
    encoded: EncodedChunks | None
    """None if all voxels are zero."""


class BrickWriter:
    """Writer that distributes the bricks of one mag over its shards or parts. As a context manager
    it discards the shards that were not closed."""

    def __init__(
        self,
        target: TargetArray,
        brick_shape: Vec3,
        part: Vec3 | None,
        region: BoundingBox,
    ) -> None:
        """Start with ``region``, the box of all bricks. Shards may come in any order: each is
        closed when its part of the region is complete."""
        self._target = target
        self._encoder = target.encoder
        self._brick_shape = brick_shape
        self._part = part
        self._region = region.intersection(target.box)
        self._received: Counter[Vec3] = Counter()
        self._open: dict[Vec3, Writer] = {}
        self._receipts: list[Receipt] = []

    def put(self, index: Vec3, voxels: npt.NDArray[Any] | None) -> None:
        """Write a brick: the voxels inside the target's box, shape (c, x, y, z), or None if all are
        zero."""
        self.add(self.encode(index, voxels))

    def encode(
        self, index: Vec3, voxels: npt.NDArray[Any] | None, *, is_shared: bool = False
    ) -> list[BrickPiece]:
        """Encode a brick, which :meth:`add` then writes. Several threads can encode bricks at once,
        or share one."""
        # A brick may cut several shards, and a shard several bricks; each intersection goes to the
        # writer of its shard:
        #
        #   shard 0   |   shard 1
        #   +-----+---|-+-----+
        #   |  A  |  B| |  C  |     B is written in two pieces
        #   +-----+---|-+-----+
        box = self._target.box
        brick = clipped_cell(index, self._brick_shape, box)
        boxes = [
            (shard, clipped_cell(shard, self._target.shard_shape, brick))
            for shard in cells(brick, self._target.shard_shape)
        ]
        if voxels is None:
            return [BrickPiece(shard, inside, None) for shard, inside in boxes]
        if is_shared and num_sharing() > 1:
            boxes = [(shard, octant) for shard, inside in boxes for octant in self._octants(inside)]
        encoded: list[EncodedChunks | None] = [None] * len(boxes)

        def encode(n: int) -> None:
            inside = boxes[n][1]
            encoded[n] = self._encoder.encode_box(
                part_of_array(voxels, inside, brick.topleft),
                inside.topleft,
                is_part=self._part is not None,
            )

        share(range(len(boxes)), encode) if len(boxes) > 1 else encode(0)
        return [
            BrickPiece(shard, inside, piece)
            for (shard, inside), piece in zip(boxes, encoded, strict=True)
        ]

    def _octants(self, box: BoundingBox) -> Iterator[BoundingBox]:
        """Cut a box of a brick into up to 8 boxes whose chunks follow each other in Morton
        order."""
        chunk_shape = self._target.chunk_shape
        length, *others = {
            edge // chunk for edge, chunk in zip(self._brick_shape, chunk_shape, strict=True)
        }
        if not self._encoder.has_morton_order or others or length % 2:
            yield box
            return
        shape = times(chunk_shape, (length // 2,) * 3)
        for octant in cells(box, shape):
            yield clipped_cell(octant, shape, box)

    def add(self, pieces: Sequence[BrickPiece]) -> None:
        """Write an encoded brick."""
        for piece in pieces:
            writer = self._writer(piece.shard)
            if piece.encoded is None:
                writer.skip(piece.box)
            else:
                writer.add(piece.encoded)
            self._close_if_whole(piece.shard, piece.box)
        if (
            len(self._open) > 1
            and sum(writer.buffered_nbytes for writer in self._open.values()) > _MAX_BUFFERED_NBYTES
        ):
            for writer in self._open.values():
                writer.flush()

    def _close_if_whole(self, shard: Vec3, received: BoundingBox) -> None:
        self._received[shard] += received.volume
        inside = clipped_cell(shard, self._target.shard_shape, self._region)
        if self._received[shard] == inside.volume:
            self._receipts.append(self._open[shard].close())
            del self._open[shard]

    def _writer(self, shard: Vec3) -> Writer:
        writer = self._open.get(shard)
        if writer is None:
            writer = self._open[shard] = self._target.open_part(shard, self._part)
        return writer

    def close(self) -> list[Receipt]:
        """Return all receipts."""
        assert not self._open
        return self._receipts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._open.values():
            writer.discard()


@dataclass(frozen=True, slots=True)
class JoinSpec:
    target: TargetArray
    level: int
    """Index of the mag in the job."""
    shard: Vec3
    parts: tuple[Receipt, ...]

    def task(self) -> Task:
        return Task(
            f"file {self.shard} of mag {self.target.box.mag}",
            join_key(self.level, self.shard),
            JoinSpec.run,
            self,
        )

    def run(self) -> Result:
        return Result(((self.level, self.target.join_shard(self.shard, self.parts)),))


def join_key(level: int, shard: Vec3) -> str:
    return "join {} {},{},{}".format(level, *shard)


class ReceiptCollector:
    """Receipts received so far. Those of whole shards are added to the totals; those of parts wait
    for the other parts of their shard."""

    def __init__(self, targets: Sequence[TargetArray]) -> None:
        self.targets = tuple(targets)
        self.tallies = [ShardTally(target, 0) for target in targets]
        self._parts: dict[tuple[int, Vec3], list[Receipt]] = {}

    def add(self, task: Task, result: Result, num_parts: Callable[[int, Vec3], int]) -> list[Task]:
        """Accept the result of a task; return the joins that can start now."""
        if isinstance(task.spec, JoinSpec):
            # only now, since the journal contains the receipt of the joined shard
            task.spec.target.files.remove_parts(task.spec.shard)
        joins: list[Task] = []
        for level, receipt in result.receipts:
            if receipt.part is None:
                self.tallies[level].add(receipt)
                continue
            parts = self._parts.setdefault((level, receipt.shard), [])
            parts.append(receipt)
            if len(parts) == num_parts(level, receipt.shard):
                joins.insert(
                    0,
                    JoinSpec(
                        self.targets[level],
                        level,
                        receipt.shard,
                        tuple(self._parts.pop((level, receipt.shard))),
                    ).task(),
                )
        return joins

    def still_exists(self, result: Result, known: Callable[[str], Result | None]) -> bool:
        """Check that all output of an earlier start still exists, or the shards into which it was
        joined."""
        return all(self._holds(level, receipt, known) for level, receipt in result.receipts)

    def _holds(self, level: int, receipt: Receipt, known: Callable[[str], Result | None]) -> bool:
        target = self.targets[level]
        if receipt.part is not None:
            joined = known(join_key(level, receipt.shard))
            if joined is not None and all(
                target.files.has_files_of(whole) for _, whole in joined.receipts
            ):
                return True
        return target.files.has_files_of(receipt)


def states_of_part(
    states: States, file_shape: Vec3, shard: BoundingBox, region: BoundingBox
) -> States:
    """Select the source files counted by one part of a shard. A file read by several parts counts
    in one of them only."""
    # A file counts in the part that contains its lowest corner, or the lowest corner of the shard
    # if the file begins before the shard:
    #
    #   parts   |   0   |   1   |
    #   files     | a  | b  | c |     a and b count in part 0, c in part 1, although part 1 reads b too  # noqa: E501
    files = states[:, :3] * file_shape
    corners = np.maximum(files, shard.topleft)
    low, high = np.maximum(shard.topleft, region.topleft), region.bottomright
    is_counted = (corners >= low) & (corners < np.minimum(shard.bottomright, high))
    counted: States = states[(is_counted & (files + file_shape > shard.topleft)).all(axis=1)]
    return counted


def source_changed(task: Task, states: States, source: Volume) -> ResumeError:
    """Return the error of a task whose source has changed since an earlier start."""
    change = describe_last_change(states, source.files.shard_path)
    return ResumeError(
        f"{task.name}: the source has changed since the job was interrupted ({change}); "
        'existing="restart" starts over'
    )


@dataclass(frozen=True, slots=True)
class ScratchPiece:
    """Voxels of one chunk of an array that belong to one part, kept in a scratch file."""

    part: Vec3
    box: BoundingBox
    channels: tuple[int, int]
    """Half-open."""
    path: str
    offset: int
    """Offset in the scratch file [bytes]."""
    nbytes: int
    """Compressed size [bytes]."""


def write_scratch(
    folder: str,
    name: str,
    pieces: Iterable[tuple[Vec3, BoundingBox, tuple[int, int], npt.NDArray[Any]]],
) -> tuple[ScratchPiece, ...]:
    """Write pieces to one scratch file, atomically and repeatably; pieces of zeros are left out."""
    store = store_at(folder)
    store_at(folder).make(in_existing=True)
    written, offset = [], 0
    with store.new_file(name, flush=False) as file:
        for part, box, channels, voxels in pieces:
            values = np.asfortranarray(voxels).ravel("K").view(np.uint8)
            if not values.any():
                continue
            data = lz4.block.compress(values, store_size=True)
            file.write(data, offset)
            written.append(ScratchPiece(part, box, channels, file.path, offset, len(data)))
            offset += len(data)
    return tuple(written)


def read_scratch(piece: ScratchPiece, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    with store_at(piece.path).open_stream() as file:
        file.seek(piece.offset)
        data = file.read(piece.nbytes)
    shape = (piece.channels[1] - piece.channels[0], *piece.box.size)
    try:
        return np.frombuffer(lz4.block.decompress(data), dtype).reshape(shape, order="F")
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise CorruptError(
            f"{piece.path}: byte {piece.offset}: {len(data)} bytes do not decode to the voxels of "
            f"{piece.box}: {error}"
        ) from None


class ShardTally:
    """Totals of the receipts of a target."""

    def __init__(self, target: TargetArray, expected: int) -> None:
        self.target = target
        self.expected = expected
        self._rows = array("q")
        self._files = 0
        self._nbytes = 0
        self.voxels = 0
        self.outside = 0
        """Copied chunks found with nonzero voxels outside of the box."""
        self._minimum: Any = None
        self._maximum: Any = None
        self._nonzero: BoundingBox | None = None
        self._is_known = True

    def add(self, receipt: Receipt) -> None:
        """Add the receipt of a whole shard."""
        self._rows.extend((*receipt.shard, receipt.nbytes, receipt.mtime_ns, receipt.sources))
        self._files += receipt.files if receipt.path is not None else 0
        self._nbytes += receipt.nbytes
        self.voxels += receipt.voxels
        self.outside += receipt.outside
        if receipt.minimum is not None and receipt.maximum is not None:
            self._widen(receipt.minimum, receipt.maximum)
        elif receipt.path is not None:
            self._is_known = False
        if receipt.nonzero is not None:
            self._nonzero = (
                receipt.nonzero if self._nonzero is None else self._nonzero.union(receipt.nonzero)
            )

    def _widen(self, low: float, high: float) -> None:
        self._minimum, self._maximum = least(self._minimum, low), greatest(self._maximum, high)

    @property
    def is_complete(self) -> bool:
        """Whether all receipts have arrived."""
        return len(self._rows) == self.expected * FILE_RECORD_COLUMNS

    @property
    def shards(self) -> npt.NDArray[np.int64]:
        """File record: one row per shard, see ``wkwdask.store.records``."""
        return np.array(self._rows, np.int64).reshape(-1, FILE_RECORD_COLUMNS)

    def set_sources(self, sources: dict[Vec3, int]) -> None:
        """Record the digest of the source files of each shard; 0 for other shards."""
        rows = self.shards
        rows[:, 5] = [sources.get((x, y, z), 0) for x, y, z in rows[:, :3].tolist()]
        self._rows = array("q", rows.tobytes())

    def occupied(self, cell_shape: Vec3, shift: Vec3) -> CellMap:
        """Return the cells with voxels in a stored shard; cells are counted in the coordinates of
        the target plus ``shift``."""
        box = moved(self.target.box, shift)
        marks = cell_map(box, cell_shape, self.target.folder)
        shards = self.shards
        low = shards[shards[:, 3] > 0, :3] * self.target.shard_shape + shift
        mark_cells(marks, low, low + self.target.shard_shape, box, cell_shape)
        return marks

    def check(self) -> None:
        """Check that each shard was written once."""
        num_written = len(np.unique(self.shards[:, :3], axis=0))
        if not self.is_complete or num_written != self.expected:
            raise IncompleteWriteError(
                f"{self.target.folder}: receipts for {num_written} files, expected {self.expected}"
            )

    def report(self, folder: str, *, whole: bool = True) -> MagReport:
        voxels = self.target.box.volume if whole else self.voxels
        minimum, maximum = self._minimum, self._maximum
        if self.voxels < voxels:  # voxels outside the written shards are zero
            minimum, maximum = least(minimum, 0), greatest(maximum, 0)
        if not self._is_known:
            minimum = maximum = None
        nonzero = None if self._nonzero is None else moved(self._nonzero, self.target.origin)
        return MagReport(folder, self._files, voxels, self._nbytes, minimum, maximum, nonzero)


def tally_of(target: TargetArray, receipts: Iterable[Receipt]) -> ShardTally:
    """Return the totals of a target whose shards are all written."""
    tally = ShardTally(
        target, math.prod(len(r) for r in cell_range(target.box, target.shard_shape))
    )
    for receipt in receipts:
        tally.add(receipt)
    return tally


def pyramid_records(tallies: Sequence[ShardTally]) -> list[npt.NDArray[np.int64]]:
    """Return the file records of a pyramid. The sources of each mag after the first are the files
    of the previous mag."""
    rows = [tally.shards for tally in tallies]
    for n, (finer, coarser) in enumerate(pairwise(tallies)):
        target, factor = coarser.target, finer.target.box.mag.step_to(coarser.target.box.mag)
        # A coarse file is built from the finer files in its footprint, its shape times the factor
        # [voxels of the finer mag]:
        #
        #   finer mag    | 0 | 1 | 2 | 3 |
        #   coarser mag  |   0   |   1   |     digest of 0 = states of finer files 0 and 1
        # The file grids of the two mags need not be aligned.
        volume = finer.target.as_volume().moved(finer.target.origin)
        volume = relative_to(volume, times(target.origin, factor))
        sources = grouped_digests(
            volume.files.recorded_states(rows[n]),
            volume.shard_shape,
            times(target.shard_shape, factor),
        )
        rows[n + 1][:, 5] = [sources.get((x, y, z), 0) for x, y, z in rows[n + 1][:, :3].tolist()]
    return rows
