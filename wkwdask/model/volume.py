"""Protocol of volumes: the interface through which graphs and jobs read any format.

A chunk is the smallest encoded box of voxels, a shard is one stored file or object.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np

from wkwdask.geometry.bounding_box import moved
from wkwdask.geometry.vectors import minus, plus
from wkwdask.plans.cells import cell_map

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.states import States
    from wkwdask.model.store import FileState
    from wkwdask.plans.cells import CellMap


V = TypeVar("V", bound="Volume")


class VolumeFiles(Protocol):
    """Stored files of a volume."""

    def occupied(self, cell_shape: Vec3) -> CellMap:
        """Return the cells that can contain nonzero voxels, by listing file names only.

        Parameters
        ----------
        cell_shape : tuple of 3 int
            Shape (x, y, z) of a cell [voxels], any length.

        Returns
        -------
        CellMap, shape (x, y, z)
            For each cell that the box touches, whether a stored shard has voxels of the box in it.
            All other cells read as zeros.
        """

    def shard_path(self, index: Vec3) -> str:
        """Return the path of a shard, given its index (x, y, z)."""

    def shard_states(self, box: BoundingBox) -> States:
        """Return the states of stored shards that a box touches, see ``wkwdask.model.states``."""

    def stored_states(self) -> States:
        """Return the states of all stored shards that the bounding box touches."""

    @property
    def written(self) -> FileState | None:
        """State of the record that jobs replace when they write into the volume; None without one,
        and for a remote volume."""

    def count(self) -> tuple[int, int] | None:
        """Return number and total size of the stored files, possibly estimated from a sample; None
        for a remote volume."""


class Volume(Protocol):
    """One mag of a layer that can be read. Boxes and voxels are absolute and of its mag."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of one channel."""

    @property
    def num_channels(self) -> int:
        """Values per voxel."""

    @property
    def box(self) -> BoundingBox:
        """Bounding box [voxels of its mag]."""

    @property
    def origin(self) -> Vec3:
        """Absolute voxel at which the grid of chunks starts."""

    @property
    def chunk_shape(self) -> Vec3:
        """Shape (x, y, z) of a chunk [voxels]."""

    @property
    def shard_shape(self) -> Vec3:
        """Shape (x, y, z) of a shard [voxels]."""

    @property
    def name(self) -> str:
        """Name in errors and progress lines."""

    @property
    def token(self) -> Sequence[Any]:
        """Values that identify the volume, for dask's tokens and for journals."""

    @property
    def content_token(self) -> Sequence[Any]:
        """Values that identify the content of the volume at any location."""

    @property
    def is_regular(self) -> bool:
        """Whether shards are cubes with an edge of a power of two, aligned with voxel 0: shards of
        two such volumes nest."""

    def moved(self, shift: Vec3) -> Self:
        """Return the volume shifted by a vector [voxels of its mag]."""

    def is_current(self) -> bool:
        """Return whether it is still the volume that was opened; remote volumes are assumed to
        be."""

    @property
    def lengths_nm(self) -> Lengths | None:
        """Edge lengths of a voxel [nm], None if the volume does not state them."""

    @property
    def files(self) -> VolumeFiles:
        """Its stored files."""

    def read_into(
        self, out: AnyArray, topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True
    ) -> int:
        """Fill an array with voxels.

        Parameters
        ----------
        out : ndarray, shape (c, x, y, z)
            Array of any memory order to fill. Voxels outside the volume are zero.
        topleft : tuple of 3 int
            Absolute voxel of the first element along x, y, z.
        first_channel : int
            Channel of the first element.
        fill_zeros : bool
            If False, the content of the array is undefined when 0 is returned, and complete
            otherwise.

        Returns
        -------
        int
            0 if all voxels are zero.
        """


class Voxels(Protocol):
    """Data type and channels of stored voxels."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def num_channels(self) -> int: ...


def voxel_nbytes(voxels: Voxels, box: BoundingBox | None = None) -> int:
    """Return the decoded size of one voxel with all its channels, or of all voxels of a box
    [bytes]."""
    return voxels.dtype.itemsize * voxels.num_channels * (1 if box is None else box.volume)


def read_voxels(volume: Volume, box: BoundingBox) -> AnyArray:
    """Read a box, shape (c, x, y, z)."""
    out = np.empty((volume.num_channels, *box.size), volume.dtype, order="F")
    volume.read_into(out, box.topleft)
    return out


def delegate_to(attribute: str, name: str) -> Any:
    """Declare a property or method that an attribute provides."""
    return property(attrgetter(f"{attribute}.{name}"))


class RandomAccessVolume:
    """Defaults for import sources whose parts can be read in any order: nothing is cached, and no
    section is missing."""

    __slots__ = ()

    @property
    def unit_shape(self) -> Vec3:
        """Shape (x, y, z) that is best read at once [voxels]."""
        return self.chunk_shape  # type: ignore[attr-defined,no-any-return]

    def with_zero_fill(self, folder: str) -> Self:
        """Return the source with zeros in place of sections that cannot be decoded; these sources
        have no sections."""
        del folder
        return self

    def cached(self, reading_shape: Vec3, scratch: str) -> AbstractContextManager[Self]:
        """Return a context in which decoded parts are cached for reads of some shape; here nothing
        is cached."""
        del reading_shape, scratch
        return nullcontext(self)


class PlainVolume:
    """Defaults for volumes outside of images with several mags: image stacks and arrays in single
    files."""

    __slots__ = ()
    is_regular = False
    lengths_nm = None
    written = None

    @property
    def content_token(self) -> Sequence[Any]:
        return self.token  # type: ignore[attr-defined,no-any-return]

    def is_current(self) -> bool:
        """Return True: a job compares the token instead."""
        return True

    @property
    def files(self) -> Self:
        """The volume itself, which knows its few files."""
        return self

    def count(self) -> tuple[int, int] | None:
        return None

    def occupied(self, cell_shape: Vec3) -> CellMap:
        return cell_map(self.box, cell_shape, self.name, fill=True)  # type: ignore[attr-defined]

    def stored_states(self) -> States:
        return self.shard_states(self.box)  # type: ignore[attr-defined,no-any-return]

    def moved(self, shift: Vec3) -> Self:
        return replace(self, origin=plus(self.origin, shift), box=moved(self.box, shift))  # type: ignore[type-var,attr-defined]


def relative_to(volume: V, origin: Vec3) -> V:
    """Return a volume in coordinates relative to an absolute voxel of its mag."""
    return volume.moved(minus((0, 0, 0), origin))
