"""What graphs and jobs need of a volume, whatever its format: one protocol to read, one to write.

Chunks are the smallest encoded cubes, shards the stored files or objects. A writer's unit of work is a part: a box of whole chunks
inside one shard (or a whole shard); parts are joined into their shard by one task, which is the shard's only publisher.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.receipts import Receipt
    from wkwdask.model.states import States
    from wkwdask.plans.cells import CellMap


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

    def is_current(self) -> bool:
        """Tell whether what is there is still the volume that was opened; nobody knows of a remote one, which is taken to be."""

    def has_shards(self) -> bool:
        """Tell whether any shard is stored; of a remote volume that is taken to be so."""

    @property
    def lengths_nm(self) -> Lengths | None:
        """Edge lengths of its voxels [nm], None where it does not say them itself."""

    def count_files(self) -> tuple[int, int] | None:
        """Count the stored files, and their bytes, perhaps from a sample; None of a remote volume."""

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True) -> int:
        """Fill an array (c, x, y, z) of any memory order with the voxels from ``topleft`` on; returns 0 where all of them are zero.

        Without ``fill_zeros`` the content of the array is undefined when 0 is returned, and complete in every other case.
        """

    def shard_exists(self, index: Vec3) -> bool:
        """Tell whether a shard is stored; an absent one reads as zeros."""

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


@runtime_checkable
class StoredVolume(Volume, Protocol):
    """One level of an image, opened where it is stored, in absolute voxels."""

    def has_shards(self) -> bool:
        """Tell whether any shard is stored; of a remote volume it is taken to be so."""

    def cropped(self, box: BoundingBox) -> Self:
        """Give a part of the volume."""

    def is_current(self) -> bool:
        """Tell whether what is stored there is still what was opened."""

    def is_unchanged(self) -> bool:
        """Tell whether the records that it was opened by are still the same, so that it need not be opened again."""


class ReadyVolume:
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

    def has_shards(self) -> bool:
        """It was found by its files."""
        return True

    def count_files(self) -> tuple[int, int] | None:
        """Nothing is known of them."""
        return None


@runtime_checkable
class ChunkedVolume(Protocol):
    """A volume whose chunks are decoded one by one, so that each can be used while it is in the cache of the core."""

    @property
    def decodes_chunks(self) -> bool:
        """Whether that is better than decoding larger boxes."""

    @property
    def chunk_shape(self) -> Vec3:
        """A chunk along x, y, z [voxels]."""

    def decoded_chunks(self, box: BoundingBox, memory: npt.NDArray[Any]) -> Iterator[tuple[Vec3, npt.NDArray[Any]]]:
        """Decode the chunks that a box touches: first voxel of each, and its voxels (c, x, y, z), which are valid until the next is asked for.

        Those that are absent or all zero are left out; those at the end of the volume may be shorter. The memory, of one chunk, may be used.
        """


class Target(Protocol):
    """One mag of a layer that is being written: picklable, so that tasks carry it."""

    @property
    def folder(self) -> str:
        """Where shards are published for now."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel."""

    @property
    def num_channels(self) -> int:
        """Values per voxel."""

    @property
    def box(self) -> BoundingBox:
        """Where data goes [voxels of the mag, counted from ``origin``]."""

    @property
    def origin(self) -> Vec3:
        """Absolute voxel of the mag at which the target's coordinates start, and its grids of chunks and shards; may be negative."""

    @property
    def chunk_shape(self) -> Vec3:
        """The smallest encoded box along x, y, z [voxels]."""

    @property
    def shard_shape(self) -> Vec3:
        """One stored file along x, y, z [voxels]."""

    @property
    def scratch_folder(self) -> str:
        """Where scratch files of the job can be; it goes with the job."""

    @property
    def merges(self) -> bool:
        """Whether shards keep what is stored outside the box: then all are joined of parts."""

    def part_shape(self, nbytes: int) -> Vec3:
        """Choose the largest part whose voxels take at most so many bytes."""

    def open_part(self, shard: Vec3, part: Vec3 | None) -> PartWriter:
        """Start a part of a shard, or the whole shard where ``part`` is None."""

    def join_shard(self, shard: Vec3, parts: Sequence[Receipt]) -> Receipt:
        """Make one shard of its parts and publish it."""

    def encoded_nbytes(self, array: npt.NDArray[Any], topleft: Vec3) -> int:
        """Encode an array (c, x, y, z) without storing it, and give the number of bytes."""

    def expected_nbytes(self, files: int, voxel_nbytes: int, ratio: float) -> int:
        """Estimate what files take that hold some voxels, which are encoded at a ratio."""

    def most_files(self, shards: int, chunks: int) -> int:
        """Count the files, at most, of some shards with some chunks."""

    def remove_parts(self, shard: Vec3) -> None:
        """Remove the parts of a shard that was joined."""

    def path_of(self, receipt: Receipt) -> str:
        """Say where a shard or part is stored."""

    def holds(self, receipt: Receipt) -> bool:
        """Tell whether the shard or part that a receipt speaks of is there and whole."""

    def can_splice(self, source: Volume) -> bool:
        """Tell whether shards can be made of what a volume has stored, without decoding its chunks."""

    def splice_shard(self, source: Any, shard: Vec3) -> Receipt:
        """Make one shard of what such a volume has stored in its place, and publish it."""

    def describe(self) -> None:
        """Write the documents of the level, in place of others that may be there."""

    def built_in(self, folder: str) -> Self:
        """Give the level as it is built in another folder."""

    def prepare(self) -> None:
        """Make what tasks write into; doing it again changes nothing."""

    def as_volume(self) -> Volume:
        """Read what has been published so far."""


class PartWriter(Protocol):
    """Takes the voxels of one part, box by box."""

    @property
    def gathered_nbytes(self) -> int:
        """What is held in memory until there is enough to be written."""

    def flush(self) -> None:
        """Write it now."""

    def append(self, array: npt.NDArray[Any], topleft: Vec3) -> None:
        """Encode an array (c, x, y, z) of whole chunks (voxels beyond the target's box left out or not) and store it."""

    def skip(self, box: BoundingBox) -> None:
        """Take note of voxels that are all zero, in place of appending them."""

    def close(self) -> Receipt:
        """Publish the part and give its receipt."""

    def discard(self) -> None:
        """Remove what was stored so far."""
