"""Choice between LZ4HC and the fast LZ4 encoder for one block.

Both save bytes where 4 bytes or more occur again. LZ4HC finds nearly all of these repeats, LZ4 the
long ones and some others. So LZ4HC makes a block hardly smaller than LZ4 does if few short repeats
are in it, as in noise. Samples show how many there are::

    bytes   |..aaaa..|.bbbb...|aaaa....|...   one sample of 4 bytes in each step of 8, at places without a period
    tags    |   | a |   |   | b |   |         tag of the last sample in the slot of its hash: the same tag again is a repeat

Encoding a few blocks both ways would show it too, but then the bytes of a file would depend on
which blocks a task encodes together. This choice depends on the voxels of one block alone, so tasks
of any shape, updates and repairs write the same bytes.
"""  # noqa: E501

from __future__ import annotations

import numpy as np

STRETCH_NBYTES = 1 << 16
"""Samples are compared within stretches of this length, the longest distance in LZ4. One stretch
with enough repeats decides for LZ4HC."""

SHORT_NBYTES, LONG_NBYTES = 2400, 256
"""LZ4HC is used if there is a short repeat for each 2400 bytes: so many are found where it saves 1
% to 3 %. LZ4, too, finds repeats longer than 256 bytes."""

MIN_DENSE = 64
"""LZ4HC is also used as soon as so many repeats, short or long, are half of the samples, as in
labels."""

MIN_NBYTES = 1 << 14
"""Smaller blocks have too few samples, and use LZ4HC."""

STEP, SLOT_BITS = 8, 13
JITTER, HASH = 0x9E3779, 0x9E3779B97F4A7C15
"""Factors of the place of a sample in its step, and of the hash of a sample: any odd numbers with
mixed bits."""


def has_repeats(raw: bytes) -> bool:
    """Return whether a block has enough repeats for LZ4HC, exactly as the compiled loop does."""
    if len(raw) < MIN_NBYTES:
        return True
    for start in range(0, len(raw), STRETCH_NBYTES):
        values = np.frombuffer(raw[start : start + STRETCH_NBYTES], np.uint8).astype(np.uint64)
        n = np.arange((len(values) - 3) // STEP)  # each sample ends inside the stretch
        at = n * STEP + (n * n * JITTER >> 16) % STEP
        samples = values[at] | values[at + 1] << 8 | values[at + 2] << 16 | values[at + 3] << 24
        hashes = samples * np.uint64(HASH)
        slots, tags = hashes >> (64 - SLOT_BITS), hashes >> 32 & 0xFFFF | 1
        order = np.argsort(slots, kind="stable")  # samples of one slot come one after the other
        is_repeat = (slots[order][1:] == slots[order][:-1]) & (tags[order][1:] == tags[order][:-1])
        first, second = order[:-1][is_repeat], order[1:][is_repeat]
        short = sum(
            not _is_long(raw, a, b)
            for a, b in zip(
                (start + at[first]).tolist(), (start + at[second]).tolist(), strict=True
            )
        )
        count = np.arange(1, len(second) + 1)
        if (
            short * SHORT_NBYTES >= len(values)
            or ((count >= MIN_DENSE) & (2 * count > np.sort(second))).any()
        ):
            return True
    return False


def _is_long(raw: bytes, first: int, second: int) -> bool:
    """Return whether the bytes at a distance of ``LONG_NBYTES``, before or after a repeat, are
    equal too."""
    pairs = ((first + shift, second + shift) for shift in (-LONG_NBYTES, LONG_NBYTES))
    return any(a >= 0 and b + 8 <= len(raw) and raw[a : a + 8] == raw[b : b + 8] for a, b in pairs)
