"""Cache of decoded blocks for reads that follow each other, such as slices z, z + 1, z + 2.

A block is a chunk with some channels. A process has one cache for all local arrays. Blocks are
found by array, file and chunk, and are valid while the files are unchanged::

    slice 1 of a layer of blocks    decoded in part, as without a cache; the blocks are noted
    slice 2                         the same blocks: each is decoded as a whole, and kept
    slice 3, 4, ...                 copied from the kept blocks, after one stat for each file
    first slice of the next layer   blocks beside those of the last call: kept at once

So boxes at random places do not fill it. Blocks that one call decodes are evicted together.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.geometry.bounding_box import BoundingBox, part_of_array
from wkwdask.geometry.mag import whole_number
from wkwdask.geometry.vectors import plus
from wkwdask.kernels.blocks.decoded import place_blocks
from wkwdask.kernels.blocks.read import array_memory
from wkwdask.model.stored_array import StoredArray
from wkwdask.streams.boxes import read_boxes
from wkwdask.streams.threads import for_each, num_parts

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from wkwdask.array_types import AnyArray, IntArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.kernels.blocks.read import ArrayMemory
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.store import Store
    from wkwdask.model.volume import Volume

SIZE_VARIABLE = "WKWDASK_CACHE_NBYTES"
_DEFAULT_NBYTES = 256 << 20
_WORKER_SHARE = 0.05  # of the memory limit of a dask worker
_MOST_ARRAYS = 128  # whose last call is noted
# A second change within one tick of the clock of a file system does not show. The coarsest clocks
# have ticks of two seconds.
_LEAST_AGE_NS = 2_000_000_000
_TURNED_NBYTES = 4 << 20  # of blocks that are decoded before their axes are exchanged
_UNKNOWN = ()

_State = tuple[int, ...] | None
"""Device, inode, size, modification and change time of a file; None if it is absent, ``_UNKNOWN``
if it cannot be compared."""
_Cells = tuple[range, range, range]
"""Box of chunks along x, y, z, counted from the first chunk of the array."""
_local = threading.local()


@dataclass(slots=True, eq=False)
class _Call:
    """One read of a box; voxels and chunks are counted from the first stored one."""

    volume: StoredArray
    first_channel: int
    channels: tuple[int, int]
    """First and end of the channels of its chunks."""
    low: Vec3
    high: Vec3
    cells: _Cells

    @property
    def shape(self) -> Vec4:
        """Shape (c, x, y, z) of a block."""
        grid, (first, end) = self.volume.grid, self.channels
        x, y, z = map(min, grid.chunk[1:], grid.size[1:])
        return end - first, x, y, z

    def limited(self, count: int) -> _Call | None:
        """Return the first part of the call with at most ``count`` blocks, cut along its longest
        axis; None if that is nothing."""
        lengths = [len(cells) for cells in self.cells]
        axis = max(range(3), key=lengths.__getitem__)
        length = count * lengths[axis] // math.prod(lengths)
        if length >= lengths[axis]:
            return self
        if length == 0:
            return None
        cells, high = list(self.cells), list(self.high)
        cells[axis] = cells[axis][:length]
        high[axis] = cells[axis].stop * self.volume.grid.chunk[axis + 1]
        return replace(self, cells=(cells[0], cells[1], cells[2]), high=(high[0], high[1], high[2]))

    def box(self, low: Vec3) -> BoundingBox:
        """Return the box from a voxel to the end, in absolute voxels."""
        origin = self.volume.origin
        return BoundingBox.from_corners(plus(low, origin), plus(self.high, origin), self.volume.mag)

    def file_names(self) -> list[str]:
        """Return all names that the files of the blocks may have."""
        grid, naming = self.volume.grid, self.volume.naming
        assert grid.file is not None
        assert naming is not None
        first, end = self.channels
        c = range(first // grid.file[0], -(-end // grid.file[0]))
        x, y, z = (
            range(cells.start * chunk // file, -(-cells.stop * chunk // file))
            for cells, chunk, file in zip(self.cells, grid.chunk[1:], grid.file[1:], strict=True)
        )
        return [name for file in product(c, x, y, z) for name in naming.names(file)]

    @property
    def order(self) -> tuple[int, int, int]:
        """Axes of a kept block from the fastest to the slowest: x comes last if the call is a slice
        across x, whose voxels would each lie in another line of the CPU cache."""
        width, *others = (b - a for a, b in zip(self.low, self.high, strict=True))
        return (1, 2, 0) if width < min(others) else (0, 1, 2)

    def decode(self, cells: list[Vec3], threads: int) -> AnyArray:
        """Decode blocks; each is a part of the first axis, with the axes of :attr:`order` from the
        last to the first, and the channels."""
        shape, order, dtype = self.shape, self.order, self.volume.dtype
        if order == (0, 1, 2):
            blocks = np.zeros((len(cells), *shape[::-1]), dtype)
            self._decode_into(blocks, cells, threads)
        else:
            channels, width, height, depth = shape
            blocks = np.empty((len(cells), width, depth, height, channels), dtype)
            step = max(1, _TURNED_NBYTES // (blocks.nbytes // len(cells)))

            def decode(first: int) -> None:
                some = cells[first : first + step]
                decoded = np.zeros((len(some), *shape[::-1]), dtype)
                self._decode_into(decoded, some, 1)
                # an array of blocks beside each other along x
                row = blocks[first : first + step].reshape(-1, depth, height, channels)
                memory = array_memory(row.transpose(3, 0, 2, 1), 0)
                assert memory is not None
                corners = np.zeros((len(some), 3), np.int64)
                corners[:, 0] = np.arange(len(some)) * width
                place_blocks(_addresses(decoded), corners, shape, memory)

            for_each(decode, range(0, len(cells), step), threads)
        blocks.flags.writeable = False
        return blocks

    def _decode_into(self, blocks: AnyArray, cells: list[Vec3], threads: int) -> None:
        volume, (first, end) = self.volume, self.channels
        channels = None if end - first == volume.grid.size[0] else (first, end - first)
        edges, origin = np.array(volume.grid.chunk[1:]), np.array(volume.origin)
        corners = np.array(cells, np.int64) * edges + origin
        outs = list(blocks.transpose(0, 4, 3, 2, 1))
        read_boxes(replace(volume, channels=channels), corners, outs, threads)


@dataclass(slots=True, eq=False)
class _Kept:
    """Blocks that one call decoded."""

    array: _Array
    cells: list[Vec3]
    states: dict[str, _State]
    """States of the files of the call, the same before and after it read them."""
    order: tuple[int, int, int]
    """Axes of a block from the fastest to the slowest."""
    memory: AnyArray
    """Blocks, along the first axis."""
    last_call: int


@dataclass(slots=True, eq=False)
class _Array:
    """An array that was read, and its kept blocks."""

    last_call: int = 0
    last_cells: tuple[int, ...] = (0, 0, 0, -1, -1, -1)
    """First and last chunk of that call, none before the first call."""
    was_kept: bool = False
    """Whether that call was filled with kept blocks."""
    blocks: dict[Vec3, tuple[int, _Kept]] = field(default_factory=dict)
    """Address and owner of each kept block."""
    found: _Found | None = None
    """The last blocks that were looked up."""


class _Seen(NamedTuple):
    """An array, under the volume and channels by which calls name it."""

    volume: StoredArray
    array: _Array
    edges: Vec3
    """Shape (x, y, z) of a chunk."""


class _Found(NamedTuple):
    """Kept blocks of a box of chunks."""

    cells: _Cells
    names: list[str]
    """Names that their files may have."""
    parts: list[_Part]
    missing: list[Vec3]
    """Chunks that are not kept."""


class _Part(NamedTuple):
    """Blocks that were decoded together."""

    kept: _Kept
    corners: IntArray
    """First voxels (x, y, z) of the blocks, counted from the first stored one, shape (n, 3)."""
    addresses: IntArray


class BlockCache:
    """Decoded blocks of local arrays; safe for threads and forks. Blocks are decoded and copied
    outside of its lock."""

    def __init__(self) -> None:
        self._limit_nbytes: int | None = None
        self._clear()
        os.register_at_fork(after_in_child=self._clear)

    def _clear(self) -> None:
        # a forked child needs a new lock: another thread of the parent may have held this one
        self._lock = threading.Lock()
        self._arrays: OrderedDict[Hashable, _Array] = OrderedDict()
        self._seen: dict[tuple[int, int, int], _Seen] = {}
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        """All kept blocks by the identity of their record, the least recently used first."""
        self._calls = count(1)
        self.nbytes = 0
        """Size of all kept blocks, and of those that are being decoded to be kept."""

    @property
    def limit_nbytes(self) -> int:
        """Largest size of all kept blocks."""
        if self._limit_nbytes is None:
            self._limit_nbytes = _configured_nbytes()
        return self._limit_nbytes

    @limit_nbytes.setter
    def limit_nbytes(self, nbytes: int) -> None:
        with self._lock:
            self._limit_nbytes = nbytes
            while self.nbytes > nbytes and self._kept:
                self._evict(next(iter(self._kept.values())))

    def read(
        self, volume: Volume, out: AnyArray, topleft: Vec3, first_channel: int, threads: int
    ) -> list[BoundingBox] | None:
        """Fill an array (c, x, y, z) with voxels of kept blocks; return the boxes that are left to
        read, None if nothing was filled."""
        if not self.limit_nbytes or not isinstance(volume, StoredArray):
            return None
        # Most calls end after these lines, which therefore make no objects: small boxes are read in
        # a hundred microseconds.
        seen = self._seen.get((id(volume), first_channel, out.shape[0])) or self._see(
            volume, first_channel, out.shape[0]
        )
        array, (i, j, k), (a, b, c) = seen.array, seen.edges, volume.grid.origin
        x, y, z = topleft[0] - a, topleft[1] - b, topleft[2] - c
        cells = (
            x // i,
            y // j,
            z // k,
            (x + out.shape[1] - 1) // i,
            (y + out.shape[2] - 1) // j,
            (z + out.shape[3] - 1) // k,
        )
        previous, array.last_call = array.last_call, next(self._calls)
        last, array.last_cells = array.last_cells, cells
        is_again = (
            last[0] <= cells[0]
            and cells[3] <= last[3]
            and last[1] <= cells[1]
            and cells[4] <= last[4]
            and last[2] <= cells[2]
            and cells[5] <= last[5]
        )
        was_kept, array.was_kept = array.was_kept, False
        is_again = is_again or (was_kept and _are_beside(cells, last))
        if not is_again and (not array.blocks or cells[:3] not in array.blocks):
            return None
        whole = _call_of(volume, out, topleft, first_channel)
        if whole is None:
            return None
        shape = whole.shape
        block_nbytes = math.prod(shape) * volume.dtype.itemsize
        limit = min(self.limit_nbytes, _worker_nbytes())
        call = whole.limited(limit // block_nbytes)
        if call is None:
            return None
        box = call.box(call.low)
        part = part_of_array(out, box, topleft)
        memory = array_memory(part, call.first_channel - call.channels[0])
        if memory is None:
            return None
        now, noted = time.time_ns(), array.found
        is_same = noted is not None and noted.cells == call.cells
        names = noted.names if noted is not None and is_same else call.file_names()
        states = _states(volume.store, names)
        if _UNKNOWN in states.values():
            return None
        found = self._find(array, call, names, states)
        if found.missing:
            nbytes = block_nbytes * len(found.missing)
            if (
                not is_again
                or not all(_is_settled(state, now) for state in states.values())
                or not self._reserve(nbytes, limit, previous)
            ):
                return None
            if not self._decode(array, call, found.missing, states, nbytes, threads):
                return None
            found = self._find(array, call, names, states)
            if found.missing:  # evicted by another thread
                return None
        volume.identity.check(has_absent=None in states.values())
        for kept, corners, addresses in found.parts:
            _place(kept.order, addresses, corners - call.low, shape, memory, threads)
        array.was_kept = True
        return list(_beyond(whole, call))

    def _see(self, volume: StoredArray, first_channel: int, num_channels: int) -> _Seen:
        """Return the array that a volume reads; two volumes may read the same one."""
        key = _key(volume, *_channels(volume, first_channel, num_channels))
        with self._lock:
            array = self._arrays.setdefault(key, _Array())
            self._arrays.move_to_end(key)
            if len(self._arrays) > _MOST_ARRAYS:
                _, forgotten = self._arrays.popitem(last=False)
                for kept in {id(kept): kept for _, kept in forgotten.blocks.values()}.values():
                    self._evict(kept)
                self._seen.clear()
            seen = _Seen(volume, array, volume.grid.chunk[1:])
            if len(self._seen) > _MOST_ARRAYS:
                self._seen.clear()
            self._seen[id(volume), first_channel, num_channels] = seen
        return seen

    def _find(
        self, array: _Array, call: _Call, names: list[str], states: dict[str, _State]
    ) -> _Found:
        """Look up the blocks of a call. Those of files with other states are evicted."""
        with self._lock:
            found = _look_up(array, call, names)
            stale = [
                kept
                for kept, _, _ in found.parts
                if any(kept.states.get(name, state) != state for name, state in states.items())
            ]
            for kept in stale:
                self._evict(kept)
            if stale:
                found = _look_up(array, call, names)
            for kept, _, _ in found.parts:
                kept.last_call = array.last_call
                self._kept.move_to_end(id(kept))
        return found

    def _reserve(self, nbytes: int, limit: int, previous: int) -> bool:
        """Make room for new blocks. Blocks that were used since the ``previous`` call of the array
        are not evicted: otherwise arrays that are read in turn would replace each other."""
        with self._lock:
            while self.nbytes + nbytes > limit:
                oldest = next(iter(self._kept.values()), None)
                if oldest is None or oldest.last_call > previous:
                    return False
                self._evict(oldest)
            self.nbytes += nbytes
        return True

    def _decode(
        self,
        array: _Array,
        call: _Call,
        cells: list[Vec3],
        states: dict[str, _State],
        nbytes: int,
        threads: int,
    ) -> bool:
        """Decode blocks and keep them in their reserved room, unless their files change meanwhile
        or are broken: then the caller reads without the cache, and raises the error."""
        kept = None
        try:
            memory = call.decode(cells, threads)
            if _states(call.volume.store, list(states)) == states:
                kept = _Kept(array, cells, states, call.order, memory, array.last_call)
        except Exception:
            return False
        finally:
            with self._lock:
                if kept is None:
                    self.nbytes -= nbytes
                else:
                    self._kept[id(kept)] = kept
                    array.blocks.update(
                        (cell, (address, kept))
                        for cell, address in zip(cells, _addresses(memory).tolist(), strict=True)
                    )
                    array.found = None
        return kept is not None

    def _evict(self, kept: _Kept) -> None:
        if self._kept.pop(id(kept), None) is None:
            return
        blocks = kept.array.blocks
        for cell in kept.cells:
            if blocks.get(cell, (0, None))[1] is kept:
                del blocks[cell]
        kept.array.found = None
        self.nbytes -= kept.memory.nbytes


def _channels(volume: StoredArray, first_channel: int, num_channels: int) -> tuple[int, int]:
    """Return the first and the end of the stored channels in the chunks of some channels."""
    first = first_channel + (0 if volume.channels is None else volume.channels[0])
    step = volume.grid.chunk[0]
    end = min(volume.grid.size[0], -(-(first + num_channels) // step) * step)
    return first // step * step, end


def _key(volume: StoredArray, first_channel: int, end_channel: int) -> Hashable:
    """Return what the content of blocks depends on, besides their files."""
    grid = volume.grid
    return (
        volume.store.url,
        volume.naming,
        volume.layout,
        volume.codec,
        volume.dtype,
        volume.fill,
        grid.size,
        grid.chunk,
        grid.file,
        first_channel,
        end_channel,
    )


def _call_of(volume: StoredArray, out: AnyArray, topleft: Vec3, first_channel: int) -> _Call | None:
    """Return a read as a call; None if its blocks cannot be kept, or it reaches beyond the
    array."""
    grid, store = volume.grid, volume.store
    if (
        store.is_remote
        or store.folders is None
        or volume.naming is None
        or grid.file is None  # the names of files are not known before these are read
        or out.dtype != volume.dtype
        or not out.size
        or getattr(_local, "is_off", False)
    ):
        return None
    channel = first_channel + (0 if volume.channels is None else volume.channels[0])
    (a, b, c), (num_channels, width, height, depth) = grid.origin, out.shape
    x, y, z = low = topleft[0] - a, topleft[1] - b, topleft[2] - c
    high = x + width, y + height, z + depth
    channels, *size = grid.size
    if (
        min(channel, x, y, z) < 0
        or channel + num_channels > channels
        or high[0] > size[0]
        or high[1] > size[1]
        or high[2] > size[2]
    ):
        return None
    _, *edges = grid.chunk
    return _Call(
        volume,
        channel,
        _channels(volume, first_channel, num_channels),
        low,
        high,
        (
            range(x // edges[0], -(-high[0] // edges[0])),
            range(y // edges[1], -(-high[1] // edges[1])),
            range(z // edges[2], -(-high[2] // edges[2])),
        ),
    )


def _are_beside(cells: tuple[int, ...], last: tuple[int, ...]) -> bool:
    """Return whether two boxes of chunks, each by its first and last chunk, are neighbours with a
    common face."""
    axes = [axis for axis in range(3) if cells[axis::3] != last[axis::3]]
    if len(axes) != 1:
        return False
    (axis,) = axes
    return cells[axis] == last[axis + 3] + 1 or cells[axis + 3] == last[axis] - 1


def _look_up(array: _Array, call: _Call, names: list[str]) -> _Found:
    found, cells = array.found, call.cells
    if found is None or found.cells != cells:
        owned: dict[int, list[tuple[Vec3, int, _Kept]]] = {}
        missing = []
        for z, y, x in product(*cells[::-1]):
            block = array.blocks.get((x, y, z))
            if block is None:
                missing.append((x, y, z))
            else:
                owned.setdefault(id(block[1]), []).append(((x, y, z), *block))
        edges = np.array(call.shape[1:])
        parts = [
            _Part(
                blocks[0][2],
                np.array([number for number, _, _ in blocks], np.int64) * edges,
                np.array([address for _, address, _ in blocks], np.int64),
            )
            for blocks in owned.values()
        ]
        found = array.found = _Found(cells, names, parts, missing)
    return found


def _addresses(blocks: AnyArray) -> IntArray:
    """Return the addresses of blocks along the first axis of an array."""
    return blocks.ctypes.data + np.arange(len(blocks), dtype=np.int64) * blocks.strides[0]


def _place(
    order: tuple[int, int, int],
    addresses: IntArray,
    corners: IntArray,
    shape: Vec4,
    out: ArrayMemory,
    threads: int,
) -> None:
    """Copy blocks whose axes are in some order to an array."""
    x, y, z = (1 + axis for axis in order)
    turned = out._replace(
        shape=(out.shape[0], out.shape[x], out.shape[y], out.shape[z]),
        strides=(out.strides[0], out.strides[x], out.strides[y], out.strides[z]),
    )
    block = shape[0], shape[x], shape[y], shape[z]
    corners = np.ascontiguousarray(corners[:, order])
    parts = min(len(corners), num_parts(threads, math.prod(out.shape) * out.flat.itemsize))
    if parts == 1:
        place_blocks(addresses, corners, block, turned)
        return
    borders = [len(corners) * n // parts for n in range(parts + 1)]
    for_each(
        lambda span: place_blocks(addresses[slice(*span)], corners[slice(*span)], block, turned),
        list(pairwise(borders)),
        threads,
    )


def _beyond(whole: _Call, call: _Call) -> Iterator[BoundingBox]:
    """Yield the part of a call that its first part lacks."""
    for axis in range(3):
        if call.high[axis] < whole.high[axis]:
            low = list(whole.low)
            low[axis] = call.high[axis]
            yield whole.box((low[0], low[1], low[2]))


def _states(store: Store, names: list[str]) -> dict[str, _State]:
    """Ask for the states of files."""
    states: dict[str, _State] = {}
    for name in names:
        try:
            status = store.status(name)
        except (FileNotFoundError, NotADirectoryError):
            # a broken link is no absent file
            states[name] = _UNKNOWN if store.is_taken(name) else None
        except (OSError, ValueError):
            states[name] = _UNKNOWN
        else:
            states[name] = (
                status.st_dev,
                status.st_ino,
                status.st_size,
                status.st_mtime_ns,
                status.st_ctime_ns,
            )
    return states


def _is_settled(state: _State, now_ns: int) -> bool:
    """Return whether any later change of a file must show in its times."""
    return state is None or now_ns - max(state[3:]) >= _LEAST_AGE_NS


def _worker_nbytes() -> int:
    """Return the share of the memory limit of the dask worker whose task runs on this thread;
    unlimited elsewhere."""
    distributed: Any = sys.modules.get("distributed.worker")
    try:
        limit = (
            None if distributed is None else distributed.get_worker().memory_manager.memory_limit
        )
    except ValueError:  # no worker
        limit = None
    return sys.maxsize if limit is None else int(limit * _WORKER_SHARE)


def _configured_nbytes() -> int:
    text = os.environ.get(SIZE_VARIABLE, "")
    if text and not text.isdecimal():
        raise ValueError(f"{SIZE_VARIABLE}: expected a number of bytes, got {text!r}")
    return int(text or _DEFAULT_NBYTES)


@contextmanager
def without_cache() -> Iterator[None]:
    """Read without the cache on this thread: tasks of jobs read each block once, and plan their
    memory."""
    was_off, _local.is_off = getattr(_local, "is_off", False), True
    try:
        yield
    finally:
        _local.is_off = was_off


block_cache = BlockCache()
"""The cache of this process."""


def set_block_cache(cache_nbytes: int) -> int:
    """Set the size of the cache of decoded blocks of this process.

    Reads that follow each other and touch the same blocks, such as slices z and z + 1, decode these
    once. The cache holds blocks of local files, and compares the files at each read. It serves
    :func:`read`, :func:`open` and all that builds on them, but no jobs.

    Parameters
    ----------
    cache_nbytes : int
        Largest size of the decoded blocks [bytes]; 0 turns the cache off. By default 256 MiB, or
        what the environment variable ``WKWDASK_CACHE_NBYTES`` states. Tasks on a dask worker use at
        most 5 % of its memory limit.

    Returns
    -------
    int
        The size before [bytes].

    Raises
    ------
    ValueError
        The size is negative.
    TypeError
        The size is no whole number.

    Examples
    --------
    >>> import wkwdask
    >>> before = wkwdask.set_block_cache(64 << 20)
    >>> wkwdask.set_block_cache(before)
    67108864
    """
    limit_nbytes = whole_number(cache_nbytes, "cache_nbytes", 0)
    before, block_cache.limit_nbytes = block_cache.limit_nbytes, limit_nbytes
    return before
