"""Volumes of one array in a file: ``.npy``, HDF5, MRC, NIfTI, or raw bytes at an offset. The axes
may have any order.

A read of a box reads only the rows or chunks that the box touches. Files are not memory-mapped,
since a read beyond a truncated file would kill the process.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import os
import re
import weakref
import zlib
from collections import deque
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.errors import (
    CorruptError,
    MissingError,
    TruncatedError,
    UnsupportedError,
    WkwDaskError,
)
from wkwdask.formats.axes import axes_of
from wkwdask.formats.pictures.slices import check_plausible, file_stamp
from wkwdask.model.extras import import_extra
from wkwdask.model.parsing import reading
from wkwdask.model.volume import PlainVolume, RandomAccessVolume
from wkwdask.model.voxel_type import common_dtype
from wkwdask.store import by_path
from wkwdask.store.lru import LruCache
from wkwdask.store.paths import abspath, basename, dirname, is_below, join, split
from wkwdask.store.store import FolderStore, store_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.states import States
    from wkwdask.model.store import OpenFile


_MAX_LINKS = 64
_BOUNDED_FILTERS = (2, 3, 5, 6)
"""Shuffle, Fletcher32, N-bit and scale-offset return as many bytes as a chunk has (H5Zpublic.h)."""
# placeholder for a block number in the sources of an unlimited virtual dataset (`H5Pset_virtual`)
_PATTERN = re.compile(r"%\d*b")


def open_hdf5(path: str, extra: str = "convert", **options: Any) -> Any:
    by_path.check_regular(path)
    h5py = import_extra("h5py", path, extra)
    with reading(path, "HDF5 file"):
        # The real path, since HDF5 resolves relative external links against the folder of the
        # opened name.
        return h5py.File(store_at(path).real(), "r", **options)


def find_item(file: Any, key: str, *, allow_external: bool = False) -> Any:
    """Return the item of a name in an HDF5 file, or None; other files are followed in the same
    folder, or anywhere if ``allow_external``."""
    path = abspath(file.filename)
    with reading(f"{path}:/{key.lstrip('/')}", "HDF5 dataset"):
        return _LinkResolver(dirname(store_at(path).real()), allow_external=allow_external).item(
            file, key, path
        )


def check_filters(data: Any, name: str) -> None:
    """Raise ModuleNotFoundError if a dataset is compressed with a filter that is not installed;
    ``hdf5plugin`` is imported where HDF5 itself lacks one."""
    h5z, plist = import_extra("h5py", name).h5z, data.id.get_create_plist()
    for number, _, _, title in map(plist.get_filter, range(plist.get_nfilters())):
        if h5z.filter_avail(number):
            continue
        with contextlib.suppress(ModuleNotFoundError):
            import_module("hdf5plugin")  # registers its filters in this process
        if not h5z.filter_avail(number):
            label = f"{number} ({title.decode(errors='replace')})" if title else str(number)
            raise ModuleNotFoundError(
                (
                    f"{name}: needs the HDF5 filter {label}, which is not installed: pip install "
                    "hdf5plugin"
                ),
                name="hdf5plugin",
            )


def check_chunks(data: Any, name: str) -> None:
    """Raise an error if chunks of a dataset may decode to more than its file can hold: HDF5 does
    not bound what filters return."""
    plist = data.id.get_create_plist()
    kinds = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
    compressors = [str(kind) for kind in kinds if kind not in _BOUNDED_FILTERS]
    if len(compressors) > 1:
        raise UnsupportedError(
            f"{name}: is compressed by several HDF5 filters ({', '.join(compressors)}), which may "
            "return any number of bytes; expected one"
        )
    if data.chunks is not None:
        nbytes = math.prod(data.chunks) * data.dtype.itemsize
        check_plausible(nbytes, file_stamp(abspath(data.file.filename))[0], f"{name}: a chunk")


class _LinkResolver:
    """Resolver of names in HDF5 files that rejects data outside of a folder."""

    # A crafted file must not make wkwdask read files that its user did not name. HDF5 leads to
    # other files in three ways: external links, external storage, and virtual datasets. The library
    # follows all of them silently, so each is checked first.

    def __init__(self, folder: str, *, allow_external: bool) -> None:
        self._folder, self._allow_external = folder, allow_external
        # virtual datasets whose sources are being checked
        self._open_datasets: set[tuple[str, str]] = set()

    def item(self, file: Any, key: str, path: str, links: int = 0) -> Any:
        """Resolve a name link by link, and check the storage of the dataset at its end."""
        h5py = import_extra("h5py", path)
        found, names = file, deque(key.split("/"))
        while names:
            name = names.popleft()
            if name in ("", "."):
                continue
            link = found.get(name, getlink=True) if isinstance(found, h5py.Group) else None
            if link is None:
                return None
            if isinstance(link, h5py.HardLink):
                found = found[name]
                continue
            links += 1
            if links > _MAX_LINKS:
                raise CorruptError(
                    f"{path}:/{key.lstrip('/')}: leads through more than {_MAX_LINKS} links"
                )
            if isinstance(link, h5py.ExternalLink):
                other = self._allowed(path, join(dirname(path), link.filename), f"the link {name}")
                return (
                    self.item(open_hdf5(other), "/".join((link.path, *names)), other, links)
                    if store_at(other).exists()
                    else None
                )
            # a soft link: an absolute path starts again at the root, a relative one at the current
            # group
            if link.path.startswith("/"):
                found = file
            names.extendleft(reversed(link.path.split("/")))
        if isinstance(found, h5py.Dataset):
            check_chunks(found, f"{path}:{found.name}")
            self._check_external(found, path)
            self._check_virtual(found, path)
        return found

    def _allowed(self, path: str, other: str, what: str) -> str:
        real = store_at(other).real()
        if not self._allow_external and not is_below(real, self._folder):
            raise UnsupportedError(
                f"{path}: {what} leads to {real}, outside of the folder of the file; move it "
                "there, or, if you trust it, convert with allow_external=True"
            )
        return other

    def _check_external(self, data: Any, path: str) -> None:
        """Check the files of external storage. HDF5 resolves their names against the current
        folder."""
        remaining = data.size * data.dtype.itemsize
        for name, offset, max_nbytes in data.external or ():
            other = self._allowed(path, abspath(name), f"external storage of {data.name}")
            by_path.check_regular(other)
            needed = min(remaining, max_nbytes)
            stored = max(0, store_at(other).status().st_size - offset)
            if stored < needed:
                raise TruncatedError(
                    f"{other}: has {stored} bytes from byte {offset}, and {path}:{data.name} needs "
                    f"{needed}"
                )
            remaining -= needed

    def _check_virtual(self, data: Any, path: str) -> None:
        """Check the source datasets of a virtual dataset."""
        sources = (
            {(source.file_name, source.dset_name) for source in data.virtual_sources()}
            if data.is_virtual
            else set()
        )
        for file_name, key in sorted(sources):
            if _PATTERN.search(file_name + key):
                if self._allow_external:
                    continue
                raise UnsupportedError(
                    f"{path}:{data.name}: is a virtual dataset of all files and datasets "
                    f"{file_name}:{key}, which allow_external=True reads"
                )
            other = (
                path
                if file_name == "."
                else self._allowed(
                    path, join(dirname(path), file_name), f"the virtual dataset {data.name}"
                )
            )
            source = (store_at(other).real(), key)
            if source in self._open_datasets:
                raise CorruptError(f"{path}:{data.name}: is a virtual dataset of itself")
            self._open_datasets.add(source)
            with open_hdf5(other) as file:
                if self.item(file, key, other) is None:
                    raise MissingError(
                        f"{other}: no dataset {key}, a source of the virtual dataset "
                        f"{path}:{data.name}"
                    )
            self._open_datasets.discard(source)


_UNBOUNDED = 1 << 40  # larger than any box
_HDF5_CACHE_NBYTES = 64 << 20
_UNPACKED_NBYTES = 1 << 20  # of a gzipped file, at once
_unpacked_files: LruCache[OpenFile] = LruCache(4)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ArrayRef:
    """Reference to an array in a file; small to pickle."""

    kind: str
    """``"bytes"``, ``"gzip"`` (bytes after unpacking) or ``"hdf5"``."""
    path: str
    key: str
    """Name of the dataset, empty for ``"bytes"``."""
    shape: tuple[int, ...]
    dtype: str
    """Stored type with its byte order."""
    chunks: tuple[int, ...]
    """Shape of the parts that are decoded at once."""
    offset: int = 0
    """First byte in the file, for ``"bytes"`` and ``"gzip"``."""
    stamp: tuple[int, int] = (0, 0)
    """Size [bytes] and time of modification [ns] of the file."""

    @property
    def name(self) -> str:
        return f"{self.path}:/{self.key}" if self.kind == "hdf5" else self.path

    def read(self, where: tuple[slice, ...]) -> AnyArray:
        if self.kind == "gzip":
            return _read_bytes(self, where, _unpacked(self))
        if self.kind == "bytes":
            folder, name = split(self.path)
            file = FolderStore(folder).open(name)
            if file is None:
                raise MissingError(f"{self.path}: is gone")
            with file:
                return _read_bytes(self, where, file)
        try:
            array: AnyArray = np.asarray(_opened(self)[where])
        except FileNotFoundError:
            raise MissingError(f"{self.name}: is gone") from None
        except (MemoryError, ModuleNotFoundError, WkwDaskError):
            raise
        except Exception as error:
            box = ", ".join(f"{part.start}:{part.stop}" for part in where)
            raise CorruptError(
                f"{self.name}: [{box}] cannot be read: {error or type(error).__name__}"
            ) from error
        return array


_open_datasets: weakref.WeakKeyDictionary[ArrayRef, tuple[int, Any]] = weakref.WeakKeyDictionary()
"""Open datasets, with the process that opened them: a forked one must not share HDF5 handles."""


def _opened(ref: ArrayRef) -> Any:
    """Return the open dataset. It is closed with the reference, because nobody can write into an
    open file."""
    process, array = _open_datasets.get(ref, (None, None))
    if process != os.getpid():
        array = open_hdf5(ref.path, rdcc_nbytes=_HDF5_CACHE_NBYTES)[ref.key]
        check_filters(array, ref.name)
        _open_datasets[ref] = os.getpid(), array
    return array


def _unpacked(ref: ArrayRef) -> OpenFile:
    """Return the unpacked file of a gzipped one. Each process unpacks it once, to a file without a
    name that the system frees with the process."""
    (file,) = _unpacked_files.get_or_make(
        [(os.getpid(), ref.path, ref.stamp)], lambda _: [_unpack(ref)]
    )
    return file


def _unpack(ref: ArrayRef) -> OpenFile:
    remaining = ref.offset + math.prod(ref.shape) * np.dtype(ref.dtype).itemsize
    output, file = by_path.unnamed_file()
    with (
        contextlib.closing(output),
        store_at(ref.path).open_stream() as packed,
        gzip.GzipFile(fileobj=packed) as stream,
    ):
        done = 0
        while remaining:
            try:
                data = stream.read(min(remaining, _UNPACKED_NBYTES))
            except (EOFError, OSError, zlib.error) as error:
                raise CorruptError(f"{ref.path}: byte {done} after unpacking: {error}") from error
            if not data:
                raise TruncatedError(
                    f"{ref.path}: has {done} bytes after unpacking, expected {done + remaining} "
                    f"for {ref.dtype} of shape {ref.shape}"
                )
            output.write(memoryview(data), done)
            done, remaining = done + len(data), remaining - len(data)
    return file


def _read_bytes(ref: ArrayRef, where: tuple[slice, ...], file: OpenFile) -> AnyArray:
    """Read a box of an array in C order, with one read for each index of the axes before the last
    two."""
    # Each read covers whole consecutive rows, since many small reads are slower; the columns of the
    # box are then cut out:
    #     . . . . . . .
    #     r r X X X r r    X: in the box
    #     r r X X X r r    r: read and dropped
    #     . . . . . . .
    dtype = np.dtype(ref.dtype)
    lengths = [part.stop - part.start for part in where]
    axis = max(0, len(where) - 2)
    row = math.prod(ref.shape[axis + 1 :])
    rows = np.empty((lengths[axis], *ref.shape[axis + 1 :]), dtype)
    out = np.empty(lengths, dtype)
    columns = (slice(None), *where[axis + 1 :])
    for outer in product(*(range(part.start, part.stop) for part in where[:axis])):
        first = 0
        for n, length in zip(outer, ref.shape, strict=False):
            first = first * length + n
        first = (first * ref.shape[axis] + where[axis].start) * row
        file.read_into(rows.reshape(-1).view(np.uint8), ref.offset + first * dtype.itemsize)
        out[tuple(n - part.start for n, part in zip(outer, where, strict=False))] = rows[columns]
    return out


@dataclass(frozen=True, slots=True)
class ArrayVolume(PlainVolume, RandomAccessVolume):
    ref: ArrayRef
    axes: str
    """A letter of ``c``, ``z``, ``y``, ``x`` for each axis; ``-`` for an axis of length 1 without
    meaning."""
    origin: Vec3
    """Absolute voxel of element 0."""
    box: BoundingBox
    """Part of the array [voxels of its mag]."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return common_dtype(self.ref.dtype)

    @property
    def num_channels(self) -> int:
        return self._along(self.ref.shape, "c")

    @property
    def chunk_shape(self) -> Vec3:
        return (
            self._along(self.ref.chunks, "x"),
            self._along(self.ref.chunks, "y"),
            self._along(self.ref.chunks, "z"),
        )

    def _along(self, lengths: tuple[int, ...], letter: str) -> int:
        return lengths[self.axes.index(letter)] if letter in self.axes else 1

    @property
    def shard_shape(self) -> Vec3:
        # The whole array is one shard, larger than any box: its index is always (0, 0, 0).
        return (_UNBOUNDED,) * 3

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def token(self) -> tuple[Any, ...]:
        return (
            "array",
            basename(self.ref.path),
            replace(self.ref, path=""),
            self.axes,
            self.origin,
            self.box,
        )

    def cropped(self, box: BoundingBox) -> ArrayVolume:
        return replace(self, box=box)

    def shard_path(self, index: Vec3) -> str:
        del index
        return self.ref.path

    def shard_states(self, box: BoundingBox) -> States:
        del box
        return by_path.file_states([(0, 0, 0)], self.shard_path)

    def read_into(
        self, out: AnyArray, topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True
    ) -> int:
        lows = {
            "c": first_channel,
            **{letter: t - c for letter, t, c in zip("xyz", topleft, self.origin, strict=True)},
        }
        lengths = dict(zip("cxyz", out.shape, strict=True))
        where = tuple(
            slice(lows[letter], lows[letter] + lengths[letter]) if letter != "-" else slice(0, 1)
            for letter in self.axes
        )
        voxels = self.ref.read(where)
        if voxels.shape != tuple(part.stop - part.start for part in where):
            raise CorruptError(
                f"{self.name}: reads with shape {voxels.shape}, expected "
                f"{tuple(part.stop - part.start for part in where)}"
            )
        # Drop the axes without meaning, put missing ones of length 1 in front, and transpose to (c,
        # x, y, z).
        named = [letter for letter in self.axes if letter != "-"]
        missing = [letter for letter in "cxyz" if letter not in named]
        voxels = voxels.reshape((1,) * len(missing) + tuple(lengths[letter] for letter in named))
        order = [*missing, *named]
        np.copyto(
            out, voxels.transpose([order.index(letter) for letter in "cxyz"]), casting="same_kind"
        )
        return 1


def check_axes(axes: str, shape: tuple[int, ...], name: str) -> str:
    letters = axes.lower()
    used = [letter for letter in letters if letter != "-"]
    if not set(used) <= set("xyzc") or len(set(used)) != len(used) or not {"x", "y"} <= set(used):
        raise ValueError(
            f"{name}: axes are c, z, y and x in some order, such as zyx or czyx (- for one of "
            f"length 1), got {axes!r}"
        )
    if len(letters) != len(shape):
        raise ValueError(
            f"{name}: axes {axes!r} for an array of shape {shape}, expected one letter for each "
            "axis"
        )
    if any(letter == "-" and length != 1 for letter, length in zip(letters, shape, strict=True)):
        raise ValueError(
            f"{name}: axes {axes!r} leave out an axis of an array of shape {shape} that is longer "
            "than 1"
        )
    return letters


def decimal(number: Any) -> float:
    """Return a number of a file. One of single precision has seven digits: 0.00404 micrometers are
    no 4.040000029 nanometers.

    Examples
    --------
    >>> decimal(np.float32(0.00404)), decimal(0.123456789)
    (0.00404, 0.123456789)
    """
    dtype = np.asarray(number).dtype
    return float(f"{number:.7g}") if (dtype.kind, dtype.itemsize) == ("f", 4) else float(number)


def named_axes(names: Sequence[str | None], shape: tuple[int, ...], name: str) -> str:
    """Return the axes of an array by their names, else the usual ones for its number of dimensions:
    channels first, then sections."""
    extra = max(0, len(shape) - 4)
    has_usual = len(shape) > 1 and shape[:extra] == (1,) * extra
    return axes_of(
        names, shape, name, usual="-" * extra + "czyx"[-len(shape) :] if has_usual else ""
    )


def npy_ref(path: str) -> tuple[ArrayRef, bool]:
    with store_at(path).open_stream() as file:
        with reading(path, ".npy file"):
            version = np.lib.format.read_magic(file)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, is_fortran, dtype = read(file)
        offset = file.tell()
    if dtype.hasobject or dtype.fields is not None:
        raise CorruptError(f"{path}: holds {dtype}, expected plain numbers")
    if min(shape, default=0) < 0:
        raise CorruptError(f"{path}: holds an array of shape {shape}")
    return bytes_ref(path, shape[::-1] if is_fortran else shape, dtype, offset), is_fortran


class DescribedArray(NamedTuple):
    """Array of a file, and what the header states of it."""

    ref: ArrayRef
    axis_names: Sequence[str | None]
    """Name of each axis, slowest first."""
    lengths_nm: Sequence[float]
    """Edge lengths of a voxel along x, y, z [nm], 0 if unknown."""
    notes: tuple[str, ...]
    """Remarks for the user."""


def bytes_ref(path: str, shape: tuple[int, ...], dtype: Any, offset: int) -> ArrayRef:
    """Return the reference to an array in C order at an offset of a file."""
    stamp = file_stamp(path)
    expected = offset + math.prod(shape) * np.dtype(dtype).itemsize
    if stamp[0] < expected:
        raise TruncatedError(
            f"{path}: has {stamp[0]} bytes, expected {expected} for {np.dtype(dtype)} of shape "
            f"{shape} from byte {offset}"
        )
    return ArrayRef(
        "bytes", path, "", tuple(shape), np.dtype(dtype).str, _rows(shape), offset, stamp
    )


def gzip_ref(path: str, shape: tuple[int, ...], dtype: Any, offset: int) -> ArrayRef:
    """Return the reference to an array in C order at an offset of an unpacked file. A file that is
    too short is an error of the first read."""
    stamp = file_stamp(path)
    check_plausible(
        offset + math.prod(shape) * np.dtype(dtype).itemsize, stamp[0], f"{path}: the header"
    )
    return ArrayRef(
        "gzip", path, "", tuple(shape), np.dtype(dtype).str, _rows(shape), offset, stamp
    )


def _rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if n < len(shape) - 1 else length for n, length in enumerate(shape))
