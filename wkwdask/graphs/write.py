"""A dask array as the source of a mag.

::

    chunks of the array  --rechunk-->  parts  --_encode-->  part files  --_join-->  shard, published
                                       inside one shard     one receipt each        one task per shard

The graph is built from ``map_blocks`` and ``rechunk`` alone. Voxels go from the parts straight to
part files, and only receipts travel between the last tasks. If the chunks that a part touches do
not fit into memory (wide sections, for example), a first graph cuts all chunks into scratch files,
and a job reads these.
"""  # noqa: E501

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from socket import gethostname
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np

from wkwdask.geometry.bounding_box import BoundingBox, part_of_array
from wkwdask.geometry.grid import cell_range, cells, clipped_cell, piece_lengths
from wkwdask.graphs.client_run import PauseWatch
from wkwdask.graphs.runners import (
    active_client,
    check_reachable,
    check_space_of,
    memory_per_task,
    num_workers,
    run_job,
    run_plan,
)
from wkwdask.model.summary import counted, format_nbytes
from wkwdask.model.volume import voxel_nbytes
from wkwdask.model.writing.receipts import Receipt
from wkwdask.plans.chunks import plan_parts
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.job import FlatJob, Result, Task, mark_final
from wkwdask.runs.journal import Journal, entry_of
from wkwdask.runs.parts import tally_of, write_scratch
from wkwdask.runs.progress import Progress
from wkwdask.runs.retries import FailedAttempt, FailurePolicy, RetryingJob
from wkwdask.runs.space import Size
from wkwdask.verbs.space import SURE_SHARE, is_raw, need_of_targets
from wkwdask.verbs.write import PART_NBYTES, StagedRegion, WriteJob, encode_part, part_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.plans.chunks import PartPlan
    from wkwdask.runs.parts import ScratchPiece
    from wkwdask.runs.report import Report
    from wkwdask.runs.space import Need, RunTasks
    from wkwdask.runs.staged import StagedMags


_SAMPLES, _SAMPLED_NBYTES = 8, 4 << 20  # parts of an array in memory, and the size of each
_POLL_SECONDS = 5.0


def compute_receipts(
    graphs: Sequence[da.Array],
    title: str,
    take: Callable[[Receipt], None],
    folder: str | None = None,
) -> None:
    """Run graphs of receipts, and pass the receipt of each shard to ``take``, once and as early as
    possible."""
    seen: set[Vec3] = set()

    def take_once(value: Any) -> None:
        if isinstance(value, Receipt) and value.part is None and value.shard not in seen:
            seen.add(value.shard)
            take(value)

    for value in compute_values(graphs, title, take_once, folder):
        take_once(value)


def compute_values(
    graphs: Sequence[da.Array],
    title: str,
    on_value: Callable[[Any], None] = lambda _: None,
    folder: str | None = None,
) -> list[Any]:
    """Run graphs whose chunks are single objects, show the progress, and return the objects.
    ``on_value`` may receive an object early, and more than once."""
    total = sum(int(np.prod(graph.numblocks)) for graph in graphs)
    if folder is not None:
        check_reachable(folder)
    client = active_client()
    with Progress(title, total, folder, num_workers()) as progress:
        if client is not None:
            return _compute_on_client(graphs, client, progress, on_value)

        def count_all(_: Any, state: Any) -> None:
            progress.set_total(len(state["ready"]) + len(state["waiting"]))

        def count(key: Any, result: Any, *_: Any) -> None:
            progress.advance()
            if isinstance(result, np.ndarray) and result.dtype == object and result.size == 1:
                on_value(result.item())

        with dask.callbacks.Callback(start_state=count_all, posttask=count):
            if dask.base.get_scheduler() is not None:
                values = dask.compute(*graphs)
            else:
                with ThreadPoolExecutor(num_workers()) as pool:
                    # after a failure, it waits for tasks that still write
                    values = dask.compute(*graphs, scheduler="threads", pool=pool)
        return [item for value in values for item in value.ravel()]


def _compute_on_client(
    graphs: Sequence[da.Array], client: Any, progress: Progress, on_value: Callable[[Any], None]
) -> list[Any]:
    """Fetch and release each object when it is computed, so that a worker lost later costs no
    finished shard.

    A failure stops only the tasks that depend on it, and is reported at the end.
    """
    from distributed import futures_of

    futures = futures_of(client.persist(list(graphs)))
    values: list[Any] = []

    def take(_: Task, result: Result) -> None:
        for item in result.value:
            on_value(item)
        values.extend(result.value)

    with RetryingJob(
        FlatJob(lambda: iter(()), len(futures), take), progress, FailurePolicy()
    ) as job:
        try:
            for future in _as_completed(futures, client):
                _deliver(job, future)
            job.check()
        except BaseException:
            client.cancel(futures, force=True)
            raise
    return values


def _deliver(job: RetryingJob, future: Any) -> None:
    """Pass the result or the error of a graph task to the job. The cluster has already retried it
    as often as dask is configured to."""
    task = Task(str(future.key), str(future.key), _run_by_the_cluster, None)
    if future.status != "error":
        job.receive(task, Result((), value=list(future.result().ravel())))
        future.release()
        return
    error = future.exception()
    mark_final(error)
    job.fail(task, FailedAttempt(error, gethostname()))


def _run_by_the_cluster(spec: None) -> Result:
    raise NotImplementedError


def _as_completed(futures: Sequence[Any], client: Any) -> Iterator[Any]:
    """Yield futures as they end, and check meanwhile that the workers are not paused for good."""
    ended: SimpleQueue[Any] = SimpleQueue()
    for future in futures:
        future.add_done_callback(ended.put)
    watch = PauseWatch(client)
    for _ in futures:
        while True:
            try:
                future = ended.get(timeout=_POLL_SECONDS)
            except Empty:
                watch.check()
            else:
                break
        yield future


# chunks get a quarter of a task's memory; waiting chunks, the part and the user's own functions
# need the rest
_MEMORY_DIVISOR = 4
_META = np.empty((0, 0, 0, 0), object)


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Choice of parts and scratch files for an array."""

    part_shape: Vec3
    """Shape that is encoded at once [voxels]."""
    scratch_nbytes: int = 0
    """Voxels that go through scratch files, before compression [bytes]; 0 if the chunks that a part
    touches fit into memory."""


def plan_write(array: da.Array, target: TargetArray) -> WritePlan:
    """Choose the parts of an array, so that the memory of a task is bounded by its chunks and by
    parts of the target."""
    budget = memory_per_task() // _MEMORY_DIVISOR
    plan = _parts(array, target, budget)
    chunk_nbytes = math.prod(max(axis) for axis in array.chunks) * array.dtype.itemsize
    if plan.touched_nbytes <= max(budget, 2 * chunk_nbytes):
        return WritePlan(plan.part_shape)
    return WritePlan(
        target.part_shape(min(PART_NBYTES, budget)), math.prod(array.shape) * array.dtype.itemsize
    )


def _parts(array: da.Array, target: TargetArray, budget: int) -> PartPlan:
    nbytes_per_voxel = voxel_nbytes(target)
    return plan_parts(
        array.chunks[1:],
        target.box,
        target.part_unit,
        target.shard_shape,
        nbytes_per_voxel,
        min(PART_NBYTES, budget),
    )


def build_write_graph(
    array: da.Array, target: TargetArray, prepare: Callable[[], object] | None = None
) -> da.Array:
    """Build the graph that writes an array."""
    box, shard_shape = target.box, target.shard_shape
    part_shape = _parts(array, target, memory_per_task() // _MEMORY_DIVISOR).part_shape
    lengths = [
        piece_lengths(low, high, step)
        for low, high, step in zip(box.topleft, box.bottomright, part_shape, strict=True)
    ]
    parts = array.rechunk(((target.num_channels,), *lengths), method="tasks")
    before = () if prepare is None else (_first_task(prepare),)
    receipts: da.Array = da.map_blocks(
        _encode,
        parts,
        *before,
        target=target,
        part_shape=part_shape,
        dtype=object,
        meta=_META,
        chunks=((1,), *((1,) * len(axis) for axis in lengths)),
    )
    if part_shape == shard_shape:
        return receipts
    # Parts of each shard along each axis. Shards at the border of the box have fewer.
    per_shard = [
        piece_lengths(low // part, -(-high // part), shard // part)
        for low, high, part, shard in zip(
            box.topleft, box.bottomright, part_shape, shard_shape, strict=True
        )
    ]
    grouped = receipts.rechunk(((1,), *per_shard), method="tasks")
    joined: da.Array = da.map_blocks(
        _join,
        grouped,
        target=target,
        dtype=object,
        meta=_META,
        chunks=((1,), *((1,) * len(axis) for axis in per_shard)),
    )
    return joined


def write_shards(
    array: da.Array,
    target: TargetArray,
    title: str,
    folder: str,
    done: set[Vec3],
    take: Callable[[Receipt], None],
) -> str:
    """Write the shards of an array that are not done yet."""
    plan = plan_write(array, target)
    if not plan.scratch_nbytes:
        compute_receipts(
            _without(build_write_graph(array, target), target, done), title, take, folder
        )
        return ""
    pieces_of_chunks: list[tuple[ScratchPiece, ...]] = compute_values(
        [_cutting_graph(array, target, plan.part_shape, done)],
        f"{title}: setting chunks aside",
        folder=folder,
    )
    pieces = [piece for pieces_of_chunk in pieces_of_chunks for piece in pieces_of_chunk]
    run_job(WriteJob(target, pieces, take, done, plan.part_shape), title, folder=folder)
    return (
        f"chunks of {array.chunksize[1:]} voxels touch too many parts of files to be held in "
        "memory: "
        f"{format_nbytes(plan.scratch_nbytes)} of voxels went through scratch files, compressed"
    )


def _without(receipts: da.Array, target: TargetArray, done: set[Vec3]) -> list[da.Array]:
    """Drop the shards that are done. Chunks that only they need are not computed."""
    if not done:
        return [receipts]
    low = [axis.start for axis in cell_range(target.box, target.shard_shape)]
    missing = (shard for shard in cells(target.box, target.shard_shape) if shard not in done)
    return [
        receipts.blocks[(0, *(n - first for n, first in zip(shard, low, strict=True)))]
        for shard in missing
    ]


def _cutting_graph(
    array: da.Array, target: TargetArray, part_shape: Vec3, done: set[Vec3]
) -> da.Array:
    """Build the graph that cuts each chunk of an array along the borders of parts, and stores the
    pieces in scratch files."""
    borders_of = [
        np.cumsum([first, *axis]).tolist()
        for first, axis in zip((0, *target.box.topleft), array.chunks, strict=True)
    ]
    pieces: da.Array = da.map_blocks(
        _set_aside,
        array,
        target=target,
        part_shape=part_shape,
        borders_of=borders_of,
        done=done,
        dtype=object,
        meta=_META,
        chunks=tuple((1,) * len(axis) for axis in array.chunks),
    )
    return pieces


def _set_aside(
    voxels: AnyArray,
    *,
    target: TargetArray,
    part_shape: Vec3,
    borders_of: Sequence[Sequence[int]],
    done: set[Vec3],
    block_id: Sequence[int],
) -> AnyArray:
    channel, x, y, z = (axis[n] for axis, n in zip(borders_of, block_id, strict=True))
    channels, width, height, depth = (
        axis[n + 1] - axis[n] for axis, n in zip(borders_of, block_id, strict=True)
    )
    voxels = _checked_chunk(voxels, (channels, width, height, depth), target)
    box = BoundingBox((x, y, z), (width, height, depth), target.box.mag)

    def pieces() -> Iterator[tuple[Vec3, BoundingBox, tuple[int, int], AnyArray]]:
        for part in cells(box, part_shape):
            if part_of(target, part, part_shape)[0] not in done:
                inside = clipped_cell(part, part_shape, box)
                yield (
                    part,
                    inside,
                    (channel, channel + voxels.shape[0]),
                    part_of_array(voxels, inside, box.topleft),
                )

    return _object(
        write_scratch(target.scratch_folder, "c{}x{}y{}z{}.pieces".format(*block_id), pieces())
    )


def with_final_task(receipts: da.Array, finish: Callable[[list[Receipt]], Any]) -> Any:
    """Add a last task that receives all receipts."""
    return dask.delayed(_finish, pure=False)(
        finish, receipts.rechunk(receipts.shape, method="tasks")
    )


def _first_task(prepare: Callable[[], object]) -> da.Array:
    """Return an array of one chunk whose only task calls ``prepare``; tasks that take it as an
    argument run after it."""
    # dask would fuse a single block into every task that uses it, and so call ``prepare`` in each
    # of them. It does not fuse across a rechunk.
    pair: da.Array = da.map_blocks(
        _prepare, prepare, chunks=((1, 1), (1,), (1,), (1,)), dtype=object, meta=_META
    )
    first: da.Array = pair.rechunk((2, 1, 1, 1), method="tasks")
    return first


def _prepare(prepare: Callable[[], object], *, block_id: Sequence[int]) -> AnyArray:
    if block_id[0] == 0:
        prepare()
    return np.full((1, 1, 1, 1), None, object)


def _encode(
    voxels: AnyArray, *_: Any, target: TargetArray, part_shape: Vec3, block_id: Sequence[int]
) -> AnyArray:
    """Encode one part."""
    low = target.box.topleft
    part = (
        low[0] // part_shape[0] + block_id[1],
        low[1] // part_shape[1] + block_id[2],
        low[2] // part_shape[2] + block_id[3],
    )
    box = clipped_cell(part, part_shape, target.box)
    voxels = _checked_chunk(voxels, (target.num_channels, *box.size), target)
    return _object(encode_part(target, part, part_shape, voxels, box.topleft))


def _checked_chunk(voxels: AnyArray, shape: tuple[int, ...], target: TargetArray) -> AnyArray:
    """Check that a chunk has the shape and type that its array declares, and return it in native
    byte order."""
    if isinstance(voxels, np.ma.MaskedArray):
        raise TypeError("a chunk is a masked array: fill it (dask.array.ma.filled)")
    if voxels.shape != shape:
        raise ValueError(
            f"a chunk has shape {voxels.shape}, but the array declares {shape}: check the chunks= "
            "that it was made with"
        )
    if voxels.dtype.newbyteorder("=") != target.dtype:
        raise ValueError(
            f"a chunk is {voxels.dtype.name}, but the array declares {target.dtype.name}: check "
            "the dtype= or meta= that it was made with"
        )
    return voxels.astype(target.dtype, copy=False)


def _join(receipts: AnyArray, *, target: TargetArray) -> AnyArray:
    parts: list[Receipt] = list(receipts.ravel())
    joined = target.join_shard(parts[0].shard, parts)
    target.files.remove_parts(parts[0].shard)
    return _object(joined)


def _object(value: Any) -> AnyArray:
    out = np.empty((1, 1, 1, 1), object)
    out[0, 0, 0, 0] = value
    return out


def _finish(finish: Callable[[list[Receipt]], Any], receipts: AnyArray) -> Any:
    return finish(list(receipts.ravel()))


# ----------------------------------------------------------------------------- mags


@dataclass(frozen=True, slots=True)
class ArrayWrite(Plan):
    """Plan that writes an array as a mag, or as a part of one."""

    staged: StagedMags
    array: da.Array | AnyArray
    """Voxels, shape (c, x, y, z); this process writes an array in memory itself."""
    trust_note: str
    """Reason to assume that the files of an interrupted call came from the same array, for the
    report."""

    def need(self) -> Need | None:
        """Return the space of a new mag. Voxels in memory are encoded on trial; those of a graph
        are not known before they are computed."""
        array = self.array
        if isinstance(self.staged, StagedRegion):
            return None  # files are replaced one by one
        if not isinstance(array, np.ndarray) or not array.size:
            return need_of_targets(self.staged, self._size)
        return need_of_targets(self.staged, lambda _: self._size_in_memory(array))

    def _size(self, _: RunTasks) -> Size:
        (target,) = self.staged.targets
        nbytes = voxel_nbytes(target, target.box)
        return Size(int(SURE_SHARE * nbytes) if is_raw(target) else 0, nbytes, 0)

    def _size_in_memory(self, array: AnyArray) -> Size:
        (target,) = self.staged.targets
        parts, shape = (
            list(cells(target.box, target.part_shape(_SAMPLED_NBYTES))),
            target.part_shape(_SAMPLED_NBYTES),
        )
        stored = decoded = 0
        for part in parts[:: -(-len(parts) // _SAMPLES)]:
            box = clipped_cell(part, shape, target.box)
            stored += target.encoder.encoded_nbytes(
                np.asfortranarray(part_of_array(array, box, target.box.topleft), target.dtype),
                box.topleft,
            )
            decoded += voxel_nbytes(target, box)
        nbytes = voxel_nbytes(target, target.box) * stored // decoded
        return Size(int(SURE_SHARE * nbytes), nbytes, 0)

    def finished_before(self, report: Report) -> Report:
        """Add to the report why the array is assumed to be the same."""
        return replace(report, note=f"{report.note}; {self.trust_note}") if report.note else report

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Write the files that are missing."""
        staged, (target,), array = self.staged, self.staged.targets, self.array
        receipts = staged.known_shards()
        notes = (
            [f"{counted(len(receipts), 'file')} had been finished before; {self.trust_note}"]
            if receipts
            else []
        )
        done, title = set(receipts), f"writing {staged.folders[0]}"
        with Journal(staged.root) as journal:

            def take(receipt: Receipt) -> None:
                journal.append(
                    entry_of("file {},{},{}".format(*receipt.shard), Result(((0, receipt),)))
                )
                receipts[receipt.shard] = receipt

            if isinstance(array, np.ndarray):
                job = WriteJob(target, array.astype(target.dtype, copy=False), take, done)
                yield Phase(job, title, in_process=True, is_journaled=False)
            elif array.size:
                notes.append(write_shards(array, target, title, staged.root, done, take))
        return Outcome([tally_of(target, receipts.values())], "; ".join(filter(None, notes)))


def write_array(
    staged: StagedMags,
    array: da.Array | AnyArray,
    trust_note: str,
    *,
    compute: bool,
    force_space: bool,
) -> Any:
    """Write an array and return a Report; without ``compute``, return a Delayed with that
    result."""
    plan = ArrayWrite(staged, array, trust_note)
    if compute:
        return run_plan(plan, force_space=force_space)
    check_space_of([plan], force_space=force_space)
    return delayed_write(staged, array)


def delayed_write(staged: StagedMags, array: da.Array | AnyArray) -> Any:
    """Check now that an array can be written, and return a Delayed whose last task publishes the
    mag."""
    staged.check_free()
    done = staged.done()
    if done is not None:
        return dask.delayed(done)
    (target,) = staged.targets
    lazy = (
        da.from_array(array, chunks=(array.shape[0], *target.part_shape(PART_NBYTES)))
        if isinstance(array, np.ndarray)
        else array
    )
    if not array.size:
        return dask.delayed(_publish_nothing, pure=False)(staged)
    return with_final_task(build_write_graph(lazy, target, staged.start), partial(_publish, staged))


def _publish(staged: StagedMags, receipts: list[Receipt]) -> Report:
    return staged.publish([tally_of(staged.targets[0], receipts)])


def _publish_nothing(staged: StagedMags) -> Report:
    """Publish a mag without voxels."""
    report = staged.start()
    return report if report is not None else _publish(staged, [])
