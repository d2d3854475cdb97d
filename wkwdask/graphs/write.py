"""A dask array as the source of a volume: chunks are encoded as parts, one task per shard joins them and publishes it.

Built from ``map_blocks`` and ``rechunk`` alone. Between tasks travel receipts, one object each; voxels go from a chunk straight to its part file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np

from wkwdask.geometry.grid import borders, cell_box
from wkwdask.graphs.runners import active_client, num_workers
from wkwdask.jobs.progress import Progress
from wkwdask.jobs.write import PART_NBYTES, encode_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.storage.receipts import Receipt
    from wkwdask.storage.volume import Target

_META = np.empty((0, 0, 0, 0), object)


def shard_receipts(array: da.Array, target: Target, prepare: Callable[[], None] | None = None) -> da.Array:
    """Build the graph that writes an array.

    Parameters
    ----------
    array : dask.array.Array, shape (c, x, y, z)
        The voxels, in any chunks, of the target's type; element 0 is the corner of the target's box.
    target : Target
        The mag.
    prepare : callable, optional
        Runs in a task of its own before any other.

    Returns
    -------
    dask.array.Array of Receipt, shape (1, x, y, z)
        One receipt per shard.
    """
    box, part_shape, shard_shape = target.box, target.part_shape(PART_NBYTES), target.shard_shape
    lengths = [borders(low, high, step) for low, high, step in zip(box.topleft, box.bottomright, part_shape, strict=True)]
    parts = array.rechunk(((target.num_channels,), *lengths), method="tasks")
    before = () if prepare is None else (_first_task(prepare),)
    receipts: da.Array = da.map_blocks(
        _encode, parts, *before, target=target, part_shape=part_shape, dtype=object, meta=_META, chunks=((1,), *((1,) * len(axis) for axis in lengths)),
    )  # fmt: skip
    if part_shape == shard_shape:
        return receipts
    # how many parts each shard has along each axis
    per_shard = [
        borders(low // part, -(-high // part), shard // part)
        for low, high, part, shard in zip(box.topleft, box.bottomright, part_shape, shard_shape, strict=True)
    ]
    grouped = receipts.rechunk(((1,), *per_shard), method="tasks")
    joined: da.Array = da.map_blocks(_join, grouped, target=target, dtype=object, meta=_META, chunks=((1,), *((1,) * len(axis) for axis in per_shard)))
    return joined


def finished(receipts: da.Array, finish: Callable[[list[Receipt]], Any]) -> Any:
    """Add a last task that takes all receipts.

    Parameters
    ----------
    receipts : dask.array.Array of Receipt
        What :func:`shard_receipts` gave.
    finish : callable
        Gets the list of receipts; its result is the result of the whole.

    Returns
    -------
    Delayed
    """
    return dask.delayed(_finish, pure=False)(finish, receipts.rechunk(receipts.shape, method="tasks"))


def compute_receipts(receipts: da.Array, title: str) -> list[Receipt]:
    """Run the graph and show its progress.

    Parameters
    ----------
    receipts : dask.array.Array of Receipt
        What :func:`shard_receipts` gave.
    title : str
        What the progress is called.

    Returns
    -------
    list of Receipt
    """
    total = int(np.prod(receipts.numblocks))
    client = active_client()
    with Progress(title, total) as progress:
        if client is not None:
            return _compute_on_client(receipts, client, progress)

        def count_all(_: Any, state: Any) -> None:
            progress.set_total(len(state["ready"]) + len(state["waiting"]))

        def count(*_: Any) -> None:
            progress.advance()

        options = {} if dask.base.get_scheduler() is not None else {"scheduler": "threads", "num_workers": num_workers()}
        with dask.callbacks.Callback(start_state=count_all, posttask=count):
            (values,) = dask.compute(receipts, **options)
        return list(values.ravel())


def _compute_on_client(receipts: da.Array, client: Any, progress: Progress) -> list[Receipt]:
    """Take each receipt as soon as it is there and let go of it, so that a lost worker takes no finished shard with it."""
    from distributed import as_completed, futures_of

    futures = futures_of(client.persist(receipts))
    found: list[Receipt] = []
    try:
        for future in as_completed(futures):
            found.extend(future.result().ravel())
            future.release()
            progress.advance()
    except BaseException:
        client.cancel(futures, force=True)
        raise
    return found


def _first_task(prepare: Callable[[], None]) -> da.Array:
    """Make an array of one chunk whose only task prepares.

    A lone block would be fused into every task that it is broadcast to, and so run once for each; behind a rechunk it is not.
    """
    pair: da.Array = da.map_blocks(_prepare, prepare, chunks=((1, 1), (1,), (1,), (1,)), dtype=object, meta=_META)
    first: da.Array = pair.rechunk((2, 1, 1, 1), method="tasks")
    return first


def _prepare(prepare: Callable[[], None], *, block_id: Sequence[int]) -> npt.NDArray[Any]:
    if block_id[0] == 0:
        prepare()
    return np.full((1, 1, 1, 1), None, object)


def _encode(voxels: npt.NDArray[Any], *_: Any, target: Target, part_shape: Vec3, block_id: Sequence[int]) -> npt.NDArray[Any]:
    """Encode one chunk; dask calls this once for each."""
    low = target.box.topleft
    part = (low[0] // part_shape[0] + block_id[1], low[1] // part_shape[1] + block_id[2], low[2] // part_shape[2] + block_id[3])
    box = cell_box(part, part_shape, target.box).intersection(target.box)
    if voxels.shape[1:] != box.size:
        raise ValueError(f"a chunk of shape {voxels.shape} came for the box {box}: the array's chunks are not what it says they are")
    if voxels.dtype.newbyteorder("=") != target.dtype:
        raise ValueError(f"a chunk is {voxels.dtype.name}, but the array says {target.dtype.name}: check the dtype= or meta= that it was made with")
    return _object(encode_part(target, part, part_shape, voxels, box.topleft))


def _join(receipts: npt.NDArray[Any], *, target: Target) -> npt.NDArray[Any]:
    parts: list[Receipt] = list(receipts.ravel())
    joined = target.join_shard(parts[0].shard, parts)
    target.remove_parts(parts[0].shard)
    return _object(joined)


def _object(value: Any) -> npt.NDArray[Any]:
    out = np.empty((1, 1, 1, 1), object)
    out[0, 0, 0, 0] = value
    return out


def _finish(finish: Callable[[list[Receipt]], Any], receipts: npt.NDArray[Any]) -> Any:
    return finish(list(receipts.ravel()))
