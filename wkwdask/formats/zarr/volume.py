"""One Zarr array of version 2 or 3, read through zarr-python, on a local disk or remote: a volume that starts at voxel 0.

zarr-python is imported when voxels are read for the first time.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, FormatError, MissingError, TruncatedError, UnsupportedError
from wkwdask.formats.block_files import Files, Naming
from wkwdask.formats.blocked import Blocked, in_order
from wkwdask.formats.pictures.slices import stored_dtype
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.grid import cells
from wkwdask.kernels.arrays import copy_into, is_zero
from wkwdask.model.extras import need
from wkwdask.store.lru import Lru
from wkwdask.store.paths import is_remote
from wkwdask.store.store import remote_options

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.formats.blocked import Opened
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths

_open_arrays: Lru[Any] = Lru(16)


@dataclass(frozen=True, slots=True)
class ZarrVolume(Blocked):
    """One array. Holds no open file and is small to pickle."""

    url: str
    """Its folder or URL."""
    record_name: str
    """The file that describes it."""
    shape: tuple[int, ...]
    """Its lengths along all axes."""
    stored: str
    """Type of its values as it is stored."""
    chunks: tuple[int, ...]
    """What is decoded at once, along all axes."""
    shards: tuple[int, ...]
    """What one file holds, along all axes."""
    axes: str
    """A letter for each axis: ``x``, ``y``, ``z``, ``c``, or ``-`` for another one of length 1."""
    naming: Naming | None = None
    """How chunks are named; None where nobody knows, or where absent ones are not zero."""
    mag: Mag = MAG_1
    """Its mag; mag 1 where it has none."""
    lengths_nm: Lengths | None = None
    """Edge lengths of a voxel [nm]."""
    opened: Opened | None = None
    """What was there when it was opened; None for a remote one."""
    part: BoundingBox | None = None
    """The part of it that counts; None for all."""
    channels: tuple[int, int] | None = None
    """The first channel that counts, and their number; None for all."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel, in native byte order; bits are uint8."""
        return stored_dtype(self.stored)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.shape

    @property
    def chunk_lengths(self) -> tuple[int, ...]:
        """What is decoded at once, along all axes."""
        return self.chunks

    @property
    def file_lengths(self) -> tuple[int, ...]:
        """What one file holds, along all axes."""
        return self.shards

    @property
    def name(self) -> str:
        """Its folder or URL."""
        return self.url

    @property
    def record(self) -> str:
        """The file that describes it."""
        return f"{self.url}/{self.record_name}"

    @property
    def files(self) -> Files | None:
        """Its chunks or shards, None where they cannot be looked at."""
        return None if self.naming is None or is_remote(self.url) else Files(self.url, self.grid, self.axes, self.naming)

    @property
    def token(self) -> tuple[Any, ...]:
        """Values that change when the array is another one."""
        return ("zarr", self.url, self.shape, self.stored, self.chunks, self.shards, self.axes, self.box, self.channels, self.opened)

    def is_still_described(self) -> bool:
        """Tell whether the file that describes it still says the same of how the array is stored; its attributes may change."""
        try:
            now = self._open()
            return (tuple(now.shape), np.dtype(now.dtype).str, tuple(now.chunks)) == (self.shape, self.stored, self.chunks)
        except (OSError, ValueError, KeyError, TypeError, NotImplementedError):
            return False

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True) -> int:
        """Fill an array with voxels."""
        asked = BoundingBox(topleft, (out.shape[1], out.shape[2], out.shape[3]), self.mag)
        inside = asked.intersection(self.extent)
        is_whole = inside == asked
        first_channel += self.first_channel
        found = self._read(inside, range(first_channel, first_channel + len(out))) if not inside.is_empty else None
        if found is None or is_zero(found):
            if fill_zeros:
                out[...] = 0
            return 0
        if not is_whole:
            out[...] = 0
        corner = tuple(slice(a - b, a - b + n) for a, b, n in zip(inside.topleft, topleft, inside.size, strict=True))
        copy_into(found.astype(self.dtype, order="K", copy=False), out[(slice(None), *corner)])
        return 1

    def _read(self, box: BoundingBox, channels: range) -> npt.NDArray[Any]:
        """Read voxels of the array, shape (c, x, y, z)."""
        named = {letter: slice(low, high) for letter, low, high in zip("xyz", box.topleft, box.bottomright, strict=True)}
        named |= {"c": slice(channels.start, channels.stop), "-": slice(0, 1)}
        self.check_absence()  # an absent chunk is no error for zarr-python, whatever else is absent
        self._check_shards(box, channels)
        try:
            values = np.asarray(self._array()[tuple(named[letter] for letter in self.axes)])
        except FileNotFoundError:
            raise MissingError(f"{self.url}: is gone") from None
        except MemoryError:
            raise UnsupportedError(f"{self.record}: {box} in chunks of {self.chunks} values of type {self.dtype} does not fit into memory") from None
        except (ModuleNotFoundError, FormatError, UnsupportedError, OSError):
            raise
        except Exception as error:
            raise CorruptError(f"{self.url}: {box} cannot be read: {error or type(error).__name__}") from error
        return in_order(values, self.axes)

    def _check_shards(self, box: BoundingBox, channels: range) -> None:
        """Refuse empty files, as a full disk leaves them: zarr-python takes them for shards without chunks where it reads whole ones."""
        files = self.files
        if self.shards == self.chunks or files is None:
            return
        edge = self.along(self.shards, "c")
        blocks = range(channels.start // edge, -(-channels.stop // edge))
        for cell, block in product(cells(box, self.vec3(self.shards)), blocks):
            path = f"{files.folder}/{files.name(cell, block)}"
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if not os.stat(path).st_size:
                    raise TruncatedError(f"{path}: ends at byte 0, expected a shard")

    def _array(self) -> Any:
        """Give the open array; a few are kept, and a forked process opens its own."""
        key = (os.getpid(), self.url, self.opened)
        array = _open_arrays.get(key)
        if array is None:
            array = self._open()
            _open_arrays.put(key, array)
        return array

    def _open(self) -> Any:
        return open_array(self.url)


def open_array(url: str) -> Any:
    """Open an array for reading, with compressors that give no more than a chunk has."""
    array = need("zarr", url, "zarr").open_array(url, mode="r", **remote_options(url))
    from wkwdask.formats.zarr.codecs.bounded import bound_decoders

    return bound_decoders(array)
