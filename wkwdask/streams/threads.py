"""Read large arrays on several threads: codecs and compiled loops release the GIL."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from wkwdask.geometry.bounding_box import BoundingBox, part_of_array
from wkwdask.model.stored_array import StoredArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Volume

_Item = TypeVar("_Item")

MIN_NBYTES = 8 << 20
"""Arrays up to this size are read by one thread unless the caller asks for more."""
_PARTS_PER_THREAD = 4
_MIN_PART_NBYTES = 1 << 20


def read_on_threads(
    volume: Volume, out: AnyArray, topleft: Vec3, threads: int, first_channel: int = 0
) -> None:
    """Fill an array, see :meth:`wkwdask.model.volume.Volume.read_into`. No chunk is decoded
    twice."""
    parts, chunk = num_parts(threads, out.nbytes), volume.chunk_shape
    if isinstance(volume, StoredArray) and volume.store.is_remote:
        # A remote volume reads files ahead, so each thread needs one part. It is split between
        # files only: their ranges stay long.
        parts, chunk = (1, chunk) if volume.grid.file is None else (threads, volume.grid.file[1:])
    if parts == 1:
        volume.read_into(out, topleft, first_channel)
        return
    boxes = split_box(
        BoundingBox(topleft, out.shape[1:], volume.box.mag),
        volume.origin,
        chunk,
        volume.shard_shape,
        parts,
    )
    for_each(
        lambda box: volume.read_into(part_of_array(out, box, topleft), box.topleft, first_channel),
        boxes,
        threads,
    )


def num_parts(threads: int, nbytes: int) -> int:
    """Return the number of parts in which threads decode so many bytes: several for each thread, so
    that all finish at about the same time."""
    return (
        1 if threads == 1 else max(1, min(_PARTS_PER_THREAD * threads, nbytes // _MIN_PART_NBYTES))
    )


def split_box(
    box: BoundingBox, origin: Vec3, chunk: Vec3, shard: Vec3, count: int
) -> list[BoundingBox]:
    """Split a box into at least ``count`` parts if it has so many chunks, in the order of the
    memory of a Fortran array.

    Parts are cut between shards if there are enough of them, else between groups of 2**k chunks,
    which are few ranges of a file in Morton order. An axis is split only if the later ones do not
    give enough parts.
    """
    cuts: list[list[int]] = []
    for axis in (2, 1, 0):
        low, high = box.topleft[axis] - origin[axis], box.bottomright[axis] - origin[axis]
        step = shard[axis] if (high - low) // shard[axis] >= count else chunk[axis]
        while (high - low) // (2 * step) >= count:
            step *= 2
        borders = (
            [low, *range(low // step * step + step, high, step), high] if count > 1 else [low, high]
        )
        count = -(-count // (len(borders) - 1))
        cuts.append([border + origin[axis] for border in borders])
    z, y, x = cuts
    return [
        BoundingBox.from_corners((x[i], y[j], z[k]), (x[i + 1], y[j + 1], z[k + 1]), box.mag)
        for k in range(len(z) - 1)
        for j in range(len(y) - 1)
        for i in range(len(x) - 1)
    ]


def for_each(function: Callable[[_Item], object], items: Sequence[_Item], threads: int) -> None:
    """Call a function for each item on this thread and on ``threads - 1`` others, which end before
    this returns.

    Items are started in order. After an error no more are started, and of several errors that of
    the first item is raised, as in a loop.
    """
    pending, errors = deque(enumerate(items)), {}  # its methods are atomic
    interrupted = -1

    def work() -> None:
        while True:
            try:
                number, item = pending.popleft()
            except IndexError:
                return
            try:
                function(item)
            except BaseException as error:
                errors[number if isinstance(error, Exception) else interrupted] = error
                pending.clear()

    others = [
        threading.Thread(target=work, name="wkwdask-read")
        for _ in range(min(threads, len(items)) - 1)
    ]
    try:
        for thread in others:
            with suppress(RuntimeError):  # the system grants no more threads
                thread.start()
        work()
    except BaseException as error:  # an interrupt between two items
        errors[interrupted] = error
    pending.clear()
    for thread in others:
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt as error:
                # wait all the same: the thread writes into memory of the caller
                errors[interrupted] = error
    if errors:
        try:
            raise errors[min(errors)]
        finally:
            # tracebacks refer to this frame, so they would keep the caller's array alive
            errors.clear()
