"""A volume format for tests that is no WKW: anisotropic chunks and shards in a dictionary, or in
one ``.npy`` file per shard.

With it the graphs and jobs show that they know no format. A store is named, so that a target can be
pickled and find its voxels again in the same process; a store with a folder is found by all
processes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import zlib
from dataclasses import dataclass, replace

import numpy as np

from wkwdask.errors import IncompleteWriteError
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.model.writing.receipts import Stats, merge_receipts
from wkwdask.plans.chunks import largest_multiple

CHUNK_SHAPE = (8, 8, 4)
SHARD_SHAPE = (32, 32, 16)

_lock = threading.Lock()
_stores = {}
_stamps = itertools.count(1)


class Store:
    """Arrays by name, what was read from them, and the names of all that was ever put."""

    def __init__(self):
        self.arrays = {}
        self.stamps = {}
        self.reads = []
        self.puts = []

    def clear(self):
        with _lock:
            for known in (self.arrays, self.stamps, self.reads, self.puts):
                known.clear()

    def put(self, name, array):
        with _lock:
            self.arrays[name] = array
            self.stamps[name] = next(_stamps)
            self.puts.append(name)

    def get(self, name):
        return self.arrays.get(name)

    def pop(self, name):
        with _lock:
            self.arrays.pop(name, None)

    def names(self):
        with _lock:
            return list(self.arrays)

    def state(self, name):
        """Return size and modification time, None for absent files."""
        array = self.arrays.get(name)
        return None if array is None else (array.nbytes, self.stamps[name])


class FolderStore:
    """The same in a folder; an array appears whole."""

    def __init__(self, folder):
        self.folder = folder
        self.reads = []

    def put(self, name, array):
        os.makedirs(self.folder, exist_ok=True)
        temporary = f"{self.folder}/.{name}.{os.getpid()}.{threading.get_ident()}.npy"
        np.save(temporary, array)
        os.replace(temporary, f"{self.folder}/{name}.npy")

    def get(self, name):
        try:
            return np.load(f"{self.folder}/{name}.npy")
        except FileNotFoundError:
            return None

    def pop(self, name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.folder}/{name}.npy")

    def names(self):
        return (
            [
                name.removesuffix(".npy")
                for name in os.listdir(self.folder)
                if not name.startswith(".")
            ]
            if os.path.isdir(self.folder)
            else []
        )

    def state(self, name):
        array = self.get(name)
        return (
            None
            if array is None
            else (array.nbytes, os.stat(f"{self.folder}/{name}.npy").st_mtime_ns)
        )


def store_of(name):
    """Find a store; a name with a slash is a folder."""
    with _lock:
        if name not in _stores:
            _stores[name] = FolderStore(name) if "/" in name else Store()
        return _stores[name]


def _shard_name(index):
    return "shard-{}-{}-{}".format(*index)


def _slices(box, corner):
    return tuple(
        slice(a - c, b - c) for a, b, c in zip(box.topleft, box.bottomright, corner, strict=True)
    )


@dataclass(frozen=True)
class MemoryVolume:
    """One mag, a ``Volume``."""

    store: str
    dtype_name: str
    num_channels: int
    box: BoundingBox
    chunk_shape: tuple = CHUNK_SHAPE
    shard_shape: tuple = SHARD_SHAPE
    origin = (0, 0, 0)
    written = None

    @property
    def dtype(self):
        return np.dtype(self.dtype_name)

    @property
    def name(self):
        return f"memory:{self.store}"

    @property
    def token(self):
        return (
            "memory",
            self.store,
            self.dtype_name,
            self.num_channels,
            self.box,
            self.chunk_shape,
            self.shard_shape,
        )

    def moved(self, shift):
        assert not any(shift)
        return self

    def shard_exists(self, index):
        return store_of(self.store).get(_shard_name(index)) is not None

    @property
    def files(self):
        return self

    def occupied(self, cell_shape):
        ranges = cell_range(self.box, cell_shape)
        found = np.zeros([len(r) for r in ranges], bool)
        for index in cells(self.box, self.shard_shape):
            if self.shard_exists(index):
                touched = cell_range(
                    cell_box(index, self.shard_shape, self.box).intersection(self.box), cell_shape
                )
                found[
                    tuple(
                        slice(t.start - r.start, t.stop - r.start)
                        for t, r in zip(touched, ranges, strict=True)
                    )
                ] = True
        return found

    def read_into(self, out, topleft, first_channel=0, *, fill_zeros=True):
        """Fill ``out`` (c, x, y, z), and record the request; zeros that the caller ignores are
        garbage."""
        store = store_of(self.store)
        requested = BoundingBox(topleft, out.shape[1:], self.box.mag)
        store.reads.append((requested, first_channel, out.shape[0]))
        nonzero = 0
        for index in cells(requested, self.shard_shape):
            shard = cell_box(index, self.shard_shape, requested)
            part = shard.intersection(requested)
            here = out[(slice(None), *_slices(part, topleft))]
            voxels = store.get(_shard_name(index))
            if voxels is None:
                here[...] = 0
                continue
            here[...] = voxels[
                (slice(first_channel, first_channel + out.shape[0]), *_slices(part, shard.topleft))
            ]
            nonzero += bool(here.any())
        if not nonzero and not fill_zeros:
            out[...] = 77
        return nonzero

    def shard_path(self, index):
        return f"{self.name}/{_shard_name(index)}"

    def shard_states(self, box):
        store = store_of(self.store)
        found = [
            (index, store.state(_shard_name(index)))
            for index in cells(box.intersection(self.box), self.shard_shape)
        ]
        return np.array(
            [(*index, *state) for index, state in found if state is not None], np.int64
        ).reshape(-1, 5)

    def stored_states(self):
        return self.shard_states(self.box)

    def recorded_states(self, record):
        return record[record[:, 3] > 0, :5]

    def chunks_touched(self):
        """Count the chunks that all reads so far have touched."""
        return sum(
            1 for box, _, _ in store_of(self.store).reads for _ in cells(box, self.chunk_shape)
        )


@dataclass(frozen=True)
class MemoryTarget:
    """One mag that is being written, a ``Target``."""

    folder: str
    dtype_name: str
    num_channels: int
    box: BoundingBox
    chunk_shape: tuple = CHUNK_SHAPE
    shard_shape: tuple = SHARD_SHAPE
    most_part_nbytes: int = 1 << 40
    merges: bool = False
    origin: tuple = (0, 0, 0)
    has_morton_order = True

    @property
    def dtype(self):
        return np.dtype(self.dtype_name)

    @property
    def files(self):
        return self

    @property
    def encoder(self):
        return self

    @property
    def part_unit(self):
        return self.chunk_shape

    def swapped(self, write):
        return write(self)

    def part_shape(self, nbytes):
        voxel_nbytes = self.dtype.itemsize * self.num_channels
        return largest_multiple(
            self.chunk_shape, self.shard_shape, voxel_nbytes, min(nbytes, self.most_part_nbytes)
        )

    def prepare(self):
        store_of(self.folder).put("prepared", np.ones(1))

    def as_volume(self):
        return MemoryVolume(
            self.folder,
            self.dtype_name,
            self.num_channels,
            self.box,
            self.chunk_shape,
            self.shard_shape,
        )

    def open_part(self, shard, part):
        if store_of(self.folder).get("prepared") is None:
            raise AssertionError("a part was opened before the target was prepared")
        return MemoryPartWriter(self, shard, part)

    def encode_box(self, array, topleft, *, is_part=False):
        return array.copy(), topleft

    def part_name(self, shard, part):
        return "part-{}-{}-{}-of-{}-{}-{}".format(*part, *shard)

    def path_of(self, receipt):
        return (
            _shard_name(receipt.shard)
            if receipt.part is None
            else self.part_name(receipt.shard, receipt.part)
        )

    def has_files_of(self, receipt):
        stored = store_of(self.folder).get(self.path_of(receipt))
        if stored is None or not receipt.nbytes:
            return not receipt.nbytes
        return stored.nbytes == receipt.nbytes and (
            receipt.part is None or zlib.crc32(stored.tobytes()) == receipt.checksum
        )

    def encoded_nbytes(self, array, topleft):
        return array.nbytes

    def expected_nbytes(self, files, voxel_nbytes, ratio):
        return int(
            files * np.prod(self.shard_shape) * self.dtype.itemsize * self.num_channels * ratio
        )

    def remove_parts(self, shard):
        store = store_of(self.folder)
        for name in store.names():
            if name.startswith("part-") and name.endswith("-of-{}-{}-{}".format(*shard)):
                store.pop(name)

    def join_shard(self, shard, parts):
        receipt = merge_receipts(shard, parts)
        store = store_of(self.folder)
        voxels = None
        for part in parts:
            if part.path is None:
                continue
            stored = store.get(part.path)
            if stored is None:
                if store.get(_shard_name(shard)) is not None:  # by an earlier run of the task
                    return _published(store, receipt)
                raise IncompleteWriteError(f"{part.path}: gone before it was joined")
            voxels = stored.copy() if voxels is None else voxels + stored
        if voxels is None:
            return receipt
        store.put(_shard_name(shard), voxels)
        return _published(store, receipt)


def _published(store, receipt):
    """Say in a receipt where its shard is, and its state."""
    name = _shard_name(receipt.shard)
    nbytes, mtime_ns = store.state(name)
    return replace(receipt, path=name, nbytes=nbytes, mtime_ns=mtime_ns)


class MemoryPartWriter:
    """Gathers the voxels of a part in an array of the size of its shard, a ``PartWriter``; each
    voxel must come once."""

    buffered_nbytes = 0

    def __init__(self, target, shard, part):
        self._target, self._shard, self._part = target, shard, part
        self._box = cell_box(shard, target.shard_shape, target.box)
        self._voxels = np.zeros((target.num_channels, *target.shard_shape), target.dtype)
        self._seen = np.zeros(target.shard_shape, bool)
        self._stats = Stats(target.box.mag)

    def append(self, array, topleft):
        assert array.dtype == self._target.dtype
        box = BoundingBox(topleft, array.shape[1:], self._target.box.mag)
        self._take(box)
        self._voxels[(slice(None), *_slices(box, self._box.topleft))] = array
        self._stats.add(array, topleft)

    def add(self, encoded):
        self.append(*encoded)

    def skip(self, box):
        self._take(box)
        self._stats.add_zeros(box)

    def _take(self, box):
        assert self._box.contains(box), f"{box} is not in shard {self._shard}"
        low = [a - a % n for a, n in zip(box.topleft, self._target.chunk_shape, strict=True)]
        whole = box.aligned(self._target.chunk_shape).intersection(self._target.box)
        assert whole.intersection(self._box) == box.intersection(self._target.box), (
            f"{box} cuts a chunk, from {low} on"
        )
        seen = self._seen[_slices(box, self._box.topleft)]
        assert not seen.any(), f"{box} came twice"
        seen[...] = True

    def close(self):
        receipt = self._stats.receipt(self._shard, self._part)
        store, name = store_of(self._target.folder), self._target.files.path_of(receipt)
        if not self._voxels.any():
            store.pop(name)
            return receipt
        store.put(name, self._voxels)
        if self._part is None:
            return _published(store, receipt)
        return replace(
            receipt,
            path=name,
            nbytes=self._voxels.nbytes,
            checksum=zlib.crc32(self._voxels.tobytes()),
        )

    def flush(self):
        """All is there at once."""

    def discard(self):
        self._voxels[...] = 0


def make_volume(store, array, topleft=(0, 0, 0), **options):
    """Store an array (c, x, y, z) and open it."""
    box = BoundingBox(topleft, array.shape[1:])
    volume = MemoryVolume(store, array.dtype.name, array.shape[0], box, **options)
    for index in cells(box, volume.shard_shape):
        shard = cell_box(index, volume.shard_shape, box)
        part = shard.intersection(box)
        voxels = np.zeros((array.shape[0], *volume.shard_shape), array.dtype)
        voxels[(slice(None), *_slices(part, shard.topleft))] = array[
            (slice(None), *_slices(part, topleft))
        ]
        if voxels.any():
            store_of(store).put(_shard_name(index), voxels)
    return volume


def read_whole(volume):
    """Read all voxels of a volume."""
    out = np.empty((volume.num_channels, *volume.box.size), volume.dtype)
    volume.read_into(out, volume.box.topleft)
    return out
