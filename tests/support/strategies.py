"""Hypothesis strategies for boxes, mags, headers, voxels and damage. Each says why its odd cases
are drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from wkwdask import BoundingBox, Mag
from wkwdask.formats.wkw.header import BlockType, make_header
from wkwdask.model.voxel_type import VOXEL_TYPES

HEAVY = settings(max_examples=max(1, settings.default.max_examples // 3))
"""Examples of a test that writes a volume for each of them."""
DTYPE_NAMES = tuple(voxel_type.dtype.name for voxel_type in VOXEL_TYPES)


def vectors(low, high):
    """Three integers: an axis may be at either limit while the others are not, which is where
    mixed-up axes show."""
    return st.tuples(*[st.integers(low, high)] * 3)


def mags(largest=64):
    """Mags of any powers of two, anisotropic ones as often as not: most code is right for 2-2-2 by
    accident."""
    powers = st.sampled_from([1 << n for n in range(largest.bit_length())])
    return st.builds(Mag, powers, powers, powers)


@st.composite
def boxes(draw, low=-100, high=100, max_size=60, min_size=0, mag=None):
    """Boxes anywhere, below zero too (integer division rounds the other way there), and empty or
    one voxel thick along some axes."""
    topleft = draw(vectors(low, high))
    size = draw(
        st.tuples(
            *[
                st.one_of(
                    st.integers(min_size, min(min_size + 2, max_size)),
                    st.integers(min_size, max_size),
                )
            ]
            * 3
        )
    )
    return BoundingBox(topleft, size, draw(mags(8)) if mag is None else mag)


@st.composite
def headers(draw, max_block_len=4, max_file_len=4, block_types=tuple(BlockType), max_channels=3):
    """Headers of every voxel type and block type; lengths of 1 too, where a file is one block or a
    block is one voxel.

    Channels that fill a voxel's 255 bytes are drawn as well: there the size byte of the header is
    at its limit.
    """
    dtype = draw(st.sampled_from(DTYPE_NAMES))
    lengths = [1, 2, 4, 8, 16]
    block_len = draw(st.sampled_from([n for n in lengths if n <= max_block_len]))
    file_len = draw(st.sampled_from([n for n in lengths if n <= max_file_len]))
    most = 255 // np.dtype(dtype).itemsize
    channels = (
        draw(st.one_of(st.integers(1, max_channels), st.just(most)))
        if block_len * file_len <= 4
        else draw(st.integers(1, max_channels))
    )
    return make_header(
        dtype,
        channels,
        block_len=block_len,
        file_len=file_len,
        block_type=draw(st.sampled_from(block_types)),
    )


def voxel_array(dtype, shape, seed, kind):
    """Make voxels of one kind from a seed.

    ``zeros`` has a separate encoding, ``few`` has ties and compresses, ``noise`` uses every bit and
    grows under LZ4, ``extremes`` holds the limits of the type (sums of them leave it), NaN and
    infinities. Bits are drawn, so that 64-bit integers lose theirs in any detour over floats.
    """
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    if kind == "zeros":
        return np.zeros(shape, dtype)
    if kind == "few":
        return rng.integers(0, 4, shape).astype(dtype)
    if kind == "extremes":
        if dtype.kind == "f":
            values = np.array([0, 1, -1, 0.1, np.nan, np.inf, -np.inf], dtype)
        else:
            limits = np.iinfo(dtype)
            values = np.array([limits.min, limits.min + 1, 0, 1, limits.max - 1, limits.max], dtype)
        return rng.choice(values, shape)
    if dtype.kind == "f":
        return rng.normal(0, 1000, shape).astype(dtype)
    return np.frombuffer(bytearray(rng.bytes(int(np.prod(shape)) * dtype.itemsize)), dtype).reshape(
        shape
    )


VOXEL_KINDS = ("zeros", "few", "noise", "extremes")


@st.composite
def voxels(draw, dtype, shape, kinds=VOXEL_KINDS):
    """Arrays of :func:`voxel_array`: a seed and a kind are drawn, which shrinks well and is far
    faster than drawing every voxel."""
    return voxel_array(dtype, shape, draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from(kinds)))


@st.composite
def file_voxels(draw, header):
    """Voxels of a whole file, some of whose blocks are all zero: those take another way through
    encoders and joins."""
    edge = header.file_len_vx
    array = np.array(draw(voxels(header.dtype, (header.num_channels, edge, edge, edge))))
    for block in draw(st.lists(vectors(0, header.file_len - 1), max_size=3)):
        low = [n * header.block_len for n in block]
        array[(slice(None), *(slice(n, n + header.block_len) for n in low))] = 0
    return array


@st.composite
def damaged(draw, raw):
    """Bytes that differ a little from valid ones: cut anywhere, one byte changed, a stretch
    overwritten, or bytes appended.

    Half of the changes hit the first 64 bytes: header and jump table decide what everything else
    means.
    """
    how = draw(st.sampled_from(["truncate", "byte", "stretch", "append", "none"]))
    places = st.integers(0, max(len(raw) - 1, 0)) | st.integers(0, min(63, max(len(raw) - 1, 0)))
    if how == "truncate":
        return raw[: draw(places)]
    if how == "byte" and raw:
        changed = bytearray(raw)
        changed[draw(places)] = draw(
            st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)
        )
        return bytes(changed)
    if how == "stretch" and raw:
        at = draw(places)
        new = draw(st.binary(min_size=1, max_size=16))
        return raw[:at] + new + raw[at + len(new) :]
    if how == "append":
        return raw + draw(st.binary(min_size=1, max_size=20))
    return raw


def any_length_headers():
    """Headers up to the format's limits, which no one can hold in memory: only their 16 bytes are
    of interest."""
    lengths = st.sampled_from([1 << n for n in range(16)])
    return st.builds(
        lambda header, block_len, file_len, offset: replace(
            header, block_len=block_len, file_len=file_len, data_offset=offset
        ),
        headers(1, 1),
        lengths,
        lengths,
        st.integers(0, 2**64 - 1),
    )
