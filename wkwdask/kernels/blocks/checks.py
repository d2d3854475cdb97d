"""Public function that checks stored blocks without decoding them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wkwdask.array_types import ByteArray, IntArray


def first_invalid_lz4(memory: ByteArray, places: IntArray, decoded_nbytes: int) -> int:
    """Return the index of the first LZ4 block whose lengths do not add up to a decoded size, -1 if
    there is none.

    Parameters
    ----------
    memory : ndarray of uint8
        Stored bytes.
    places : ndarray of int64, shape (n, 2)
        First byte and size of each block.
    decoded_nbytes : int
        Decoded size of a block [bytes].
    """
    from wkwdask.kernels.blocks import checks_compiled

    if (places < 0).any() or (places.sum(axis=1) > memory.size).any():
        raise ValueError("blocks lie outside of the memory")
    memory = memory.view()
    # always: numba compiles one loop for writeable and one for read-only arrays
    memory.flags.writeable = False
    return int(checks_compiled.first_invalid_lz4(memory, places, decoded_nbytes))
