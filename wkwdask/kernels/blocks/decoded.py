"""Public function to copy decoded blocks into an array."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wkwdask.array_types import IntArray
    from wkwdask.kernels.blocks.read import ArrayMemory


def place_blocks(
    addresses: IntArray, corners: IntArray, shape: tuple[int, int, int, int], out: ArrayMemory
) -> None:
    """Copy the parts of blocks that lie inside an array to it.

    ``addresses`` are those of Fortran arrays of shape (c, x, y, z) with the type of the array.
    ``corners``, shape (n, 3), are the first voxels of the blocks, counted from the array.
    """
    from wkwdask.kernels.blocks import decoded_compiled

    channels, *edges = shape
    decoded_compiled.place_blocks(
        addresses,
        corners,
        tuple(edges),
        channels,
        out.first_channel,
        out.flat,
        out.shape,
        out.strides,
    )
