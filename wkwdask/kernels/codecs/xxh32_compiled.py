"""Compiled loop of the checksum XXH32 (xxHash specification 0.1.1, "XXH32 Algorithm")."""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.compiler import helper, kernel

# Numbers of 32 bits in uint64, so that products keep their upper bits until they are cut off.
_P1, _P2, _P3, _P4, _P5 = map(
    np.uint64, (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
)
_MASK = np.uint64(0xFFFFFFFF)
_WORD, _STRIPE = 4, 16  # bytes


@helper
def _rotated(value, bits):
    value &= _MASK
    return ((value << np.uint64(bits)) | (value >> np.uint64(32 - bits))) & _MASK


@helper
def _word(data, at):
    low = np.uint64(data[at]) | np.uint64(data[at + 1]) << np.uint64(8)
    return low | np.uint64(data[at + 2]) << np.uint64(16) | np.uint64(data[at + 3]) << np.uint64(24)


@helper
def _mixed(lane, data, at):
    return _rotated(lane + _word(data, at) * _P2, 13) * _P1 & _MASK


@kernel
def xxh32(data, seed):
    """Return the checksum of some bytes; data and seed are of the types uint8 and uint64."""
    at, value = 0, seed + _P5
    if data.size >= _STRIPE:
        a, b, c, d = (
            (seed + _P1 + _P2) & _MASK,
            (seed + _P2) & _MASK,
            seed,
            (seed + (_MASK - _P1) + np.uint64(1)) & _MASK,
        )
        while at + _STRIPE <= data.size:
            a, b, c, d = (
                _mixed(a, data, at),
                _mixed(b, data, at + 4),
                _mixed(c, data, at + 8),
                _mixed(d, data, at + 12),
            )
            at += _STRIPE
        value = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
    value += np.uint64(data.size)
    while at + _WORD <= data.size:
        value = _rotated((value & _MASK) + _word(data, at) * _P3, 17) * _P4
        at += _WORD
    while at < data.size:
        value = _rotated((value & _MASK) + np.uint64(data[at]) * _P5, 11) * _P1
        at += 1
    value &= _MASK
    value = (value ^ value >> np.uint64(15)) * _P2 & _MASK
    value = (value ^ value >> np.uint64(13)) * _P3 & _MASK
    return value ^ value >> np.uint64(16)
