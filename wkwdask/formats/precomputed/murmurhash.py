"""MurmurHash3_x86_128 of chunk identifiers, which spreads the chunks of some sharded volumes over their shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Column = npt.NDArray[np.uint64]

_MULTIPLIER_1, _MULTIPLIER_2, _MULTIPLIER_3 = 0x239B961B, 0xAB0E9789, 0x38B34AE5
_BITS_32 = np.uint64(0xFFFFFFFF)


def murmurhash3(keys: Column) -> Column:
    """Hash the eight little-endian bytes of each key with MurmurHash3_x86_128, seed 0, and keep the first 64 bits.

    Notes
    -----
    Austin Appleby's MurmurHash3, in the public domain, for a message of eight bytes: no whole block of 16, a tail in the first two lanes.

    Examples
    --------
    >>> hex(int(murmurhash3(np.array([12345], np.uint64))[0]))
    '0x1d31307e3a65e510'
    """
    low, high = keys & _BITS_32, keys >> np.uint64(32)
    h2 = _times(_rotated(_times(high, _MULTIPLIER_2), 16), _MULTIPLIER_3)
    h1 = _times(_rotated(_times(low, _MULTIPLIER_1), 15), _MULTIPLIER_2)
    eight = np.uint64(8)  # the length of the message, which is mixed into all four lanes
    h1, h2, others = h1 ^ eight, h2 ^ eight, eight
    h1 = (h1 + h2 + others + others) & _BITS_32
    h2, h3 = (h2 + h1) & _BITS_32, (others + h1) & _BITS_32
    h1, h2, h3 = _mixed(h1), _mixed(h2), _mixed(h3)
    h1 = (h1 + h2 + h3 + h3) & _BITS_32
    return h1 | ((h2 + h1) & _BITS_32) << np.uint64(32)


def _times(values: Column, factor: int) -> Column:
    return values * np.uint64(factor) & _BITS_32


def _rotated(values: Column, bits: int) -> Column:
    return (values << np.uint64(bits) | values >> np.uint64(32 - bits)) & _BITS_32


def _mixed(values: Column) -> Column:
    values = _times(values ^ values >> np.uint64(16), 0x85EBCA6B)
    values = _times(values ^ values >> np.uint64(13), 0xC2B2AE35)
    return values ^ values >> np.uint64(16)
