"""Damage to bytes, from a seed: what fuzz tests feed to readers. As many mutations as the profile
of hypothesis asks for."""

from __future__ import annotations

import os
import re

import numpy as np

MUTATIONS = {"nightly": 100_000, "few": 20}.get(os.environ.get("HYPOTHESIS_PROFILE", "ci"), 30)
"""Mutations of each sample."""

# Values that readers of text trust too easily: other types, huge and negative numbers, paths that
# lead elsewhere, half a surrogate pair.
TOKENS = (
    *(b"null", b"true", b"[]", b"{}", b"-1", b"0", b"1e308", b"NaN", b"1" * 25, b'""'),
    *(b'".."', b'"/"', b'"\\ud800"', b'"\\u0000"', b"[" * 2000, b'{"a":' * 2000),
)
_VALUES = re.compile(rb'"[^"]*"|-?\d+(?:\.\d+)?|true|false|null')


def mutated(sample: bytes, seed: int) -> bytes:
    """Damage a sample in one to three places: bytes, ranges, its length, or a value of its text.

    Parameters
    ----------
    sample : bytes
        Valid content, not empty.
    seed : int
        Chooses the damage: the same seed returns the same bytes.
    """
    rng = np.random.default_rng(seed)
    for _ in range(rng.integers(1, 4)):
        sample = _DAMAGE[rng.integers(len(_DAMAGE))](sample or b"\0", rng)
    return sample


def _flip(data: bytes, rng: np.random.Generator) -> bytes:
    at = int(rng.integers(len(data)))
    return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]


def _overwrite(data: bytes, rng: np.random.Generator) -> bytes:
    at, size = int(rng.integers(len(data))), int(rng.choice([1, 2, 4, 8]))
    new = (
        rng.choice([b"\0", b"\xff", b"\x7f", b"\x80"]) * size
        if rng.integers(2)
        else rng.bytes(size)
    )
    return data[:at] + new + data[at + size :]


def _cut(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: int(rng.integers(len(data) + 1))]


def _remove(data: bytes, rng: np.random.Generator) -> bytes:
    at = int(rng.integers(len(data)))
    return data[:at] + data[at + int(rng.integers(1, 17)) :]


def _repeat(data: bytes, rng: np.random.Generator) -> bytes:
    at, size = int(rng.integers(len(data))), int(rng.integers(1, 65))
    return data[: at + size] + data[at : at + size] * int(rng.integers(1, 4)) + data[at + size :]


def _replace_value(data: bytes, rng: np.random.Generator) -> bytes:
    found = list(_VALUES.finditer(data[:100_000]))
    if not found:
        return _flip(data, rng)
    match = found[int(rng.integers(len(found)))]
    return data[: match.start()] + TOKENS[int(rng.integers(len(TOKENS)))] + data[match.end() :]


_DAMAGE = (_flip, _overwrite, _cut, _remove, _repeat, _replace_value, _replace_value)
