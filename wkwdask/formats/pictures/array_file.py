"""An array in a file as a volume, read by slices: ``.npy``, HDF5, MRC, or plain bytes somewhere in a file.

The array has its axes in any order. Nothing is mapped into memory, and no more is read than what a box needs, in whole chunks.
"""

from __future__ import annotations

import math
import os
import re
from collections import deque
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, FormatError, MissingError, TruncatedError, UnsupportedError, WkwDaskError
from wkwdask.formats.pictures.slices import file_stamp, stored_dtype
from wkwdask.model.extras import import_extra
from wkwdask.model.parsing import reading
from wkwdask.model.volume import PlainVolume, RandomAccessVolume
from wkwdask.store import files
from wkwdask.store.files import file_states
from wkwdask.store.lru import LruCache
from wkwdask.store.paths import abspath, basename, dirname, is_below, join

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.states import States


_MOST_HOPS = 64
_PATTERN = re.compile(r"%\d*b")
"""Stands for the numbers of files or datasets in a virtual dataset without end."""


def open_hdf5(path: str, extra: str = "convert", **options: Any) -> Any:
    files.check_regular(path)
    h5py = import_extra("h5py", path, extra)
    with reading(path, "HDF5 file"):
        return h5py.File(files.realpath(path), "r", **options)  # what it leads to lies beside the file, not beside a link to it


def find_item(file: Any, key: str, *, allow_external: bool = False) -> Any:
    """Follow a name in an HDF5 file, through links of all kinds."""
    path = abspath(file.filename)
    with reading(f"{path}:/{key.lstrip('/')}", "HDF5 dataset"):
        return _Reach(dirname(files.realpath(path)), is_anywhere=allow_external).item(file, key, path)


class _Reach:
    """Other files that one may lead to: those in its folder, or all."""

    def __init__(self, folder: str, *, is_anywhere: bool) -> None:
        self._folder, self._is_anywhere = folder, is_anywhere
        self._entered: set[tuple[str, str]] = set()

    def item(self, file: Any, key: str, path: str, hops: int = 0) -> Any:
        """Follow a name, link by link, and check what it leads to."""
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
            hops += 1
            if hops > _MOST_HOPS:
                raise CorruptError(f"{path}:/{key.lstrip('/')}: leads through more than {_MOST_HOPS} links")
            if isinstance(link, h5py.ExternalLink):
                other = self._allowed(path, join(dirname(path), link.filename), f"the link {name}")
                return self.item(open_hdf5(other), "/".join((link.path, *names)), other, hops) if files.exists(other) else None
            if link.path.startswith("/"):
                found = file
            names.extendleft(reversed(link.path.split("/")))
        if isinstance(found, h5py.Dataset):
            self._check_external(found, path)
            self._check_virtual(found, path)
        return found

    def _allowed(self, path: str, other: str, what: str) -> str:
        real = files.realpath(other)
        if not self._is_anywhere and not is_below(real, self._folder):
            raise UnsupportedError(
                f"{path}: {what} leads to {real}, outside of the folder of the file; put it there, or, where you trust it, convert with allow_external=True"
            )
        return other

    def _check_external(self, data: Any, path: str) -> None:
        """Check the plain files that hold the bytes of a dataset; their names count from the current folder."""
        left = data.size * data.dtype.itemsize
        for name, offset, most in data.external or ():
            other = self._allowed(path, abspath(name), f"external storage of {data.name}")
            files.check_regular(other)
            needed, stored = min(left, most), max(0, files.getsize(other) - offset)
            if stored < needed:
                raise TruncatedError(f"{other}: has {stored} bytes from byte {offset} on, and {path}:{data.name} needs {needed}")
            left -= needed

    def _check_virtual(self, data: Any, path: str) -> None:
        """Check the datasets of which a virtual one is made."""
        sources = {(source.file_name, source.dset_name) for source in data.virtual_sources()} if data.is_virtual else set()
        for file_name, key in sorted(sources):
            if _PATTERN.search(file_name + key):
                if self._is_anywhere:
                    continue
                raise UnsupportedError(f"{path}:{data.name}: is made of all files and datasets {file_name}:{key}, which allow_external=True reads")
            other = path if file_name == "." else self._allowed(path, join(dirname(path), file_name), f"the virtual dataset {data.name}")
            place = (files.realpath(other), key)
            if place in self._entered:
                raise CorruptError(f"{path}:{data.name}: is made of itself")
            self._entered.add(place)
            with open_hdf5(other) as file:
                if self.item(file, key, other) is None:
                    raise MissingError(f"{other}: no dataset {key}, of which {path}:{data.name} is made")
            self._entered.discard(place)


_WHOLE = 1 << 40  # more than any box
_HDF5_CACHE_NBYTES = 64 << 20
_open_files: LruCache[Any] = LruCache(4)


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """Where an array is; small to pickle."""

    kind: str
    """``"bytes"`` or ``"hdf5"``."""
    path: str
    """The file or folder."""
    key: str
    """Name of the dataset in it, or nothing."""
    shape: tuple[int, ...]
    dtype: str
    """Type as it is stored, with its byte order."""
    chunks: tuple[int, ...]
    """What is decoded at once."""
    offset: int = 0
    stamp: tuple[int, int] = (0, 0)
    """Size and time of modification of the file, or of the array's record."""

    @property
    def name(self) -> str:
        """What an error calls it."""
        return f"{self.path}:/{self.key}" if self.kind == "hdf5" else self.path

    def read(self, where: tuple[slice, ...]) -> npt.NDArray[Any]:
        if self.kind == "bytes":
            return _read_bytes(self, where)
        try:
            array: npt.NDArray[Any] = np.asarray(_opened(self)[where])
        except FileNotFoundError:
            raise MissingError(f"{self.name}: is gone") from None
        except (MemoryError, ModuleNotFoundError, WkwDaskError):
            raise
        except Exception as error:
            box = ", ".join(f"{part.start}:{part.stop}" for part in where)
            raise CorruptError(f"{self.name}: [{box}] cannot be read: {error or type(error).__name__}") from error
        return array


def _opened(ref: ArrayRef) -> Any:
    """Give the open array; a few are kept, and a forked process opens its own."""
    key = (os.getpid(), ref.path, ref.key, ref.stamp)
    array = _open_files.get(key)
    if array is None:
        array = open_hdf5(ref.path, rdcc_nbytes=_HDF5_CACHE_NBYTES)[ref.key]
        _open_files.put(key, array)
    return array


def _read_bytes(ref: ArrayRef, where: tuple[slice, ...]) -> npt.NDArray[Any]:
    """Read a box of an array in C order: whole rows, one stretch of them for each place on the axes before the last two."""
    dtype = np.dtype(ref.dtype)
    lengths = [part.stop - part.start for part in where]
    axis = max(0, len(where) - 2)
    row = math.prod(ref.shape[axis + 1 :])
    stretch = np.empty((lengths[axis], *ref.shape[axis + 1 :]), dtype)
    out = np.empty(lengths, dtype)
    cut = (slice(None), *where[axis + 1 :])
    try:
        file = files.open_file(ref.path)
    except FileNotFoundError:
        raise MissingError(f"{ref.path}: is gone") from None
    with file:
        for place in product(*(range(part.start, part.stop) for part in where[:axis])):
            first = 0
            for n, length in zip(place, ref.shape, strict=False):
                first = first * length + n
            first = (first * ref.shape[axis] + where[axis].start) * row
            file.read_into(stretch.reshape(-1).view(np.uint8), ref.offset + first * dtype.itemsize)
            out[tuple(n - part.start for n, part in zip(place, where, strict=False))] = stretch[cut]
    return out


@dataclass(frozen=True, slots=True)
class ArrayVolume(PlainVolume, RandomAccessVolume):
    """An array with axes, a ``Volume``."""

    ref: ArrayRef
    axes: str
    """Its axes: ``z``, ``y``, ``x``, and ``c`` or not; ``-`` for others, of length 1."""
    origin: Vec3
    """Absolute voxel of element 0."""
    box: BoundingBox
    """Which part of it is meant [voxels of its mag]."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return stored_dtype(self.ref.dtype)

    @property
    def num_channels(self) -> int:
        return self._along(self.ref.shape, "c")

    @property
    def chunk_shape(self) -> Vec3:
        return self._along(self.ref.chunks, "x"), self._along(self.ref.chunks, "y"), self._along(self.ref.chunks, "z")

    def _along(self, lengths: tuple[int, ...], letter: str) -> int:
        return lengths[self.axes.index(letter)] if letter in self.axes else 1

    @property
    def shard_shape(self) -> Vec3:
        """All of it: larger than any box, so that its index is (0, 0, 0)."""
        return (_WHOLE,) * 3

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def token(self) -> tuple[Any, ...]:
        return "array", basename(self.ref.path), replace(self.ref, path=""), self.axes, self.origin, self.box

    def cropped(self, box: BoundingBox) -> ArrayVolume:
        return replace(self, box=box)

    def shard_path(self, index: Vec3) -> str:
        del index
        return self.ref.path

    def shard_states(self, box: BoundingBox) -> States:
        del box
        return file_states([(0, 0, 0)], self.shard_path)

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True) -> int:
        lows = {"c": first_channel, **{letter: t - c for letter, t, c in zip("xyz", topleft, self.origin, strict=True)}}
        lengths = dict(zip("cxyz", out.shape, strict=True))
        where = tuple(slice(lows[letter], lows[letter] + lengths[letter]) if letter != "-" else slice(0, 1) for letter in self.axes)
        found = self.ref.read(where)
        if found.shape != tuple(part.stop - part.start for part in where):
            raise CorruptError(f"{self.name}: reads as {found.shape} where {[part.stop - part.start for part in where]} was asked for")
        kept = [letter for letter in self.axes if letter != "-"]
        found = found.reshape([lengths[letter] for letter in kept])
        missing = [letter for letter in "cxyz" if letter not in kept]
        found = found.reshape((1,) * len(missing) + found.shape)
        order = [*missing, *kept]
        np.copyto(out, found.transpose([order.index(letter) for letter in "cxyz"]), casting="same_kind")
        return 1


def check_axes(axes: str, shape: tuple[int, ...], name: str) -> str:
    letters = axes.lower()
    used = [letter for letter in letters if letter != "-"]
    odd = [letter for letter in used if letter not in "xyzc"]
    if odd or len(set(used)) != len(used) or not {"x", "y"} <= set(used):
        raise ValueError(f"{name}: axes are c, z, y and x in some order, such as zyx or czyx (- for one of length 1), got {axes!r}")
    if len(letters) != len(shape):
        raise ValueError(f"{name}: axes {axes!r} for an array of shape {shape}: give one letter for each axis")
    if any(letter == "-" and length != 1 for letter, length in zip(letters, shape, strict=True)):
        raise ValueError(f"{name}: axes {axes!r} leave out an axis of an array of shape {shape} that is longer than 1")
    return letters


def default_axes(shape: tuple[int, ...], name: str) -> str:
    """Choose axes by the number of them: sections come one after the other, channels first."""
    known = {2: "yx", 3: "zyx", 4: "czyx"}
    extra = len(shape) - 4
    if extra > 0 and shape[:extra] == (1,) * extra:
        return "-" * extra + known[4]
    if len(shape) not in known:
        raise FormatError(f"{name}: an array of shape {shape}: name its axes with axes=, such as zyx")
    return known[len(shape)]


def npy_ref(path: str) -> tuple[ArrayRef, bool]:
    with files.open_stream(path) as file:
        with reading(path, ".npy file"):
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = read(file)
        offset = file.tell()
    if dtype.hasobject or dtype.fields is not None:
        raise CorruptError(f"{path}: holds {dtype}, expected plain numbers")
    if min(shape, default=0) < 0:
        raise CorruptError(f"{path}: holds an array of shape {shape}")
    return bytes_ref(path, shape[::-1] if is_fortran else shape, dtype, offset), is_fortran


def bytes_ref(path: str, shape: tuple[int, ...], dtype: Any, offset: int) -> ArrayRef:
    """Describe an array in C order that lies somewhere in a file."""
    stamp = file_stamp(path)
    expected = offset + math.prod(shape) * np.dtype(dtype).itemsize
    if stamp[0] < expected:
        raise TruncatedError(f"{path}: has {stamp[0]} bytes, expected {expected} for {np.dtype(dtype)} of shape {shape} from byte {offset} on")
    chunks = tuple(1 if n < len(shape) - 1 else length for n, length in enumerate(shape))
    return ArrayRef("bytes", path, "", tuple(shape), np.dtype(dtype).str, chunks, offset, stamp)
