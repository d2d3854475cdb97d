"""What graphs and jobs need of a volume to read it, whatever its format. Chunks are the smallest encoded cubes, shards the stored files or objects."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from wkwdask.geometry.bounding_box import moved
from wkwdask.geometry.vectors import minus, plus
from wkwdask.plans.cells import cell_map

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.states import States
    from wkwdask.plans.cells import CellMap


V = TypeVar("V", bound="Volume")


class Volume(Protocol):
    """One mag of a layer that can be read."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel."""

    @property
    def num_channels(self) -> int:
        """Values per voxel."""

    @property
    def box(self) -> BoundingBox:
        """Where the volume has data [voxels of its mag]."""

    @property
    def origin(self) -> Vec3:
        """Absolute voxel at which the grid of chunks starts."""

    @property
    def chunk_shape(self) -> Vec3:
        """The smallest encoded box along x, y, z [voxels]."""

    @property
    def shard_shape(self) -> Vec3:
        """One stored file along x, y, z [voxels]."""

    @property
    def name(self) -> str:
        """What an error or a progress line calls the volume."""

    @property
    def token(self) -> Sequence[Any]:
        """Values that change when the volume is another one."""

    @property
    def content_token(self) -> Sequence[Any]:
        """Values that change when the volume holds something else, wherever it is."""

    @property
    def is_regular(self) -> bool:
        """Whether its shards are cubes of powers of two from voxel 0 on, so that each of another such volume is made of whole ones."""

    def moved(self, shift: Vec3) -> Self:
        """Give the volume at another place: what is added to that of each voxel."""

    def is_current(self) -> bool:
        """Tell whether what is there is still the volume that was opened; nobody knows of a remote one, which is taken to be."""

    @property
    def lengths_nm(self) -> Lengths | None:
        """Edge lengths of its voxels [nm], None where it does not say them itself."""

    def count_files(self) -> tuple[int, int] | None:
        """Count the stored files, and their bytes, perhaps from a sample; None of a remote volume."""

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True) -> int:
        """Fill an array (c, x, y, z) of any memory order with the voxels from ``topleft`` on; returns 0 where all of them are zero.

        Without ``fill_zeros`` the content of the array is undefined when 0 is returned, and complete in every other case.
        """

    def occupied(self, cell_shape: Vec3) -> CellMap:
        """Tell which of the cells that the box touches have voxels of the box in a stored shard, shape (x, y, z).

        The volume reads as zeros in all other cells. Nothing but names is looked at; a cell is any length of voxels along x, y, z.
        """

    def shard_path(self, index: Vec3) -> str:
        """Name a shard."""

    def shard_states(self, box: BoundingBox) -> States:
        """Look at the stored shards that a part of the volume touches, see ``wkwdask.model.states``."""

    def stored_states(self) -> States:
        """Look at all stored shards that the box touches."""


def delegate_to(part: str, name: str) -> Any:
    """Declare a property or method that is as in a part of an object."""
    return property(attrgetter(f"{part}.{name}"))


class RandomAccessVolume:
    """What an import asks of a source whose pieces can be read in any order: nothing is held until it is read, and nothing filled with zeros."""

    __slots__ = ()

    @property
    def unit_shape(self) -> Vec3:
        """What is best read at once."""
        return self.chunk_shape  # type: ignore[attr-defined,no-any-return]

    def with_notes(self, folder: str) -> Self:
        """Return the same, of which nothing is filled with zeros."""
        del folder
        return self

    def held(self, reading_shape: Vec3, scratch: str) -> AbstractContextManager[Self]:
        """Read what is asked for: nothing is kept."""
        del reading_shape, scratch
        return nullcontext(self)


class PlainVolume:
    """What a volume says that is no level of an image: images and arrays in files."""

    __slots__ = ()
    is_regular = False
    lengths_nm = None

    @property
    def content_token(self) -> Sequence[Any]:
        """Values that change when the files are other ones."""
        return self.token  # type: ignore[attr-defined,no-any-return]

    def is_current(self) -> bool:
        """Nobody knows; a job compares the token."""
        return True

    def count_files(self) -> tuple[int, int] | None:
        """Nothing is known of them."""
        return None

    def occupied(self, cell_shape: Vec3) -> CellMap:
        """Tell which cells have voxels: all do."""
        return cell_map(self.box, cell_shape, self.name, fill=True)  # type: ignore[attr-defined]

    def stored_states(self) -> States:
        """Look at all files."""
        return self.shard_states(self.box)  # type: ignore[attr-defined,no-any-return]

    def moved(self, shift: Vec3) -> Self:
        """Give the volume at another place."""
        return replace(self, origin=plus(self.origin, shift), box=moved(self.box, shift))  # type: ignore[type-var,attr-defined]


def in_frame(volume: V, origin: Vec3) -> V:
    """Give a volume in coordinates that count from an absolute voxel of its mag."""
    return volume.moved(minus((0, 0, 0), origin))
