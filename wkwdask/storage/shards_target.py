"""What writers of parts and shards need of a target, whatever the format: a scale of a precomputed volume, or an array of Zarr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.storage.part_file import Run
    from wkwdask.storage.pieces import Pieces


class ShardFile(Protocol):
    """A new shard, to which chunks are appended."""

    pieces: Pieces

    def begin(self, codes: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64]) -> None:
        """Take note of chunks whose bytes are appended to ``pieces`` next."""

    def copy_all(self, runs: Sequence[Run], num_codes: int) -> None:
        """Append the chunks of all runs; ``num_codes`` is how many the shard can have."""

    def publish(self) -> None:
        """Let the file appear."""

    def discard(self) -> None:
        """Remove the file."""


class ShardsTarget(Protocol):
    """What is written chunk by chunk into shards."""

    @property
    def parts_folder(self) -> str:
        """Where part files and temporary files are."""

    @property
    def mag(self) -> Mag:
        """The mag."""

    def within(self, array: npt.NDArray[Any], topleft: Vec3) -> npt.NDArray[Any]:
        """Leave out voxels beyond the box."""

    def encoded_chunks(self, array: npt.NDArray[Any], topleft: Vec3) -> Iterator[tuple[Vec3, int, bytes]]:
        """Encode whole chunks, in the order of their codes: cell, code and bytes of each, none where all voxels are zero."""

    def first_id(self, shard: Vec3) -> int:
        """Give the lowest code of the chunks in a shard."""

    def shard_path(self, shard: Vec3) -> str:
        """Name a shard."""

    def part_path(self, shard: Vec3, part: Vec3) -> str:
        """Name a part file."""

    def open_shard(self, shard: Vec3) -> ShardFile:
        """Start a shard."""

    def write_shard(self, shard: Vec3, runs: Sequence[Run]) -> None:
        """Copy the chunks of all runs into a shard."""
