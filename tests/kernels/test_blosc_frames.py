"""Blosc frames around LZ4 blocks, decoded by numcodecs and by lz4."""

from __future__ import annotations

import lz4.block
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.kernels.codecs.blosc_frames import are_zero_outside, convert_chunks, encode_frame
from wkwdask.kernels.codecs.blosc_layout import ADD_FRAMES, COPY, FRAME_NBYTES, REMOVE_FRAMES

numcodecs = pytest.importorskip("numcodecs", reason="an oracle of Blosc")


def values_of(kind, nbytes, seed):
    random = np.random.default_rng(seed)
    top = {"zeros": 1, "labels": 2, "image": 40, "noise": 256}[kind]
    return random.integers(0, top, nbytes, np.uint8).tobytes()


def compress(values, *, hc=False):
    return lz4.block.compress(
        values, store_size=False, mode="high_compression" if hc else "default"
    )


def convert(chunks, conversion, nbytes, itemsize=1):
    """Convert chunks that lie one after another; return those before the first that must be
    decoded."""
    sizes = np.array([len(chunk) for chunk in chunks], np.int64)
    places, out = (
        np.stack([np.cumsum(sizes) - sizes, sizes], axis=1),
        np.empty(sizes.sum() + FRAME_NBYTES * len(chunks), np.uint8),
    )
    found = convert_chunks(
        np.frombuffer(b"".join(chunks), np.uint8), places, conversion, nbytes, itemsize, out
    )
    ends = np.cumsum(found).tolist()
    return [out[end - size : end].tobytes() for end, size in zip(ends, found.tolist(), strict=True)]


def values_with_equal_size(nbytes=64):
    """Return values whose LZ4 block has as many bytes as they have."""
    for length in range(4, 20):
        start = (
            np.random.default_rng(length).integers(1, 256, nbytes - 12 - length, np.uint8).tobytes()
        )
        values = start + start[:length] + bytes(range(1, 13))
        if len(compress(values)) == nbytes:
            return values
    raise AssertionError("no such values found")


@given(
    kinds=st.lists(st.sampled_from(["zeros", "labels", "image", "noise"]), max_size=4),
    nbytes=st.sampled_from([1, 2, 8, 12, 13, 64, 512, 4096, 40_000]),
    itemsize=st.sampled_from([1, 2, 4, 8]),
    hc=st.booleans(),
    seed=st.integers(0, 9),
)
def test_framed_blocks_decode_to_their_values_and_back_to_their_bytes(
    kinds, nbytes, itemsize, hc, seed
):
    values = [values_of(kind, nbytes, seed) for kind in kinds]
    blocks = [compress(one, hc=hc) for one in values]
    frames = convert(blocks, ADD_FRAMES, nbytes, itemsize)
    for one, frame in zip(values, frames, strict=True):
        assert (frame == b"") == (not any(one))
        assert frame == b"" or numcodecs.Blosc().decode(frame) == one
    assert convert(list(filter(None, frames)), REMOVE_FRAMES, nbytes) == [
        block for block, one in zip(blocks, values, strict=True) if any(one)
    ]
    assert convert(values, COPY, nbytes) == [one if any(one) else b"" for one in values]


def test_blocks_as_large_as_their_values_must_be_decoded():
    values = values_with_equal_size()
    assert (
        convert([compress(b"\1" * 64), compress(values), compress(b"\1" * 64)], ADD_FRAMES, 64)[1:]
        == []
    )


@given(
    kind=st.sampled_from(["zeros", "labels", "image", "noise"]),
    nbytes=st.sampled_from([1, 64, 512, 70_000]),
    hc=st.sampled_from([None, 5]),
)
def test_encoded_frames_have_one_block_or_the_values(kind, nbytes, hc):
    values = values_of(kind, nbytes, 0)
    frame = encode_frame(values, 1, hc)
    assert numcodecs.Blosc().decode(frame) == values
    assert len(frame) <= 16 + nbytes
    assert len(convert([frame], REMOVE_FRAMES, nbytes)) == (len(frame) < 16 + nbytes)


@pytest.mark.parametrize(
    "blosc",
    [
        {"cname": "zstd", "shuffle": 0},
        {"cname": "lz4", "shuffle": 1},
        {"cname": "lz4", "shuffle": 2},
        {"cname": "lz4", "shuffle": 0, "blocksize": 1024},
    ],
    ids=["zstd", "shuffle", "bitshuffle", "blocks"],
)
def test_other_frames_must_be_decoded(blosc):
    values = np.repeat(np.arange(2048, dtype=np.uint32), 2)
    frame = numcodecs.Blosc(**blosc).encode(values)
    assert convert([frame], REMOVE_FRAMES, values.nbytes) == []


def test_frames_of_bytes_by_numcodecs_are_one_block():
    values = np.repeat(np.arange(64, dtype=np.uint8), 64)
    (block,) = convert(
        [numcodecs.Blosc("lz4", shuffle=0).encode(values)], REMOVE_FRAMES, values.nbytes
    )
    assert lz4.block.decompress(block, uncompressed_size=values.nbytes) == values.tobytes()


@given(data=st.data(), kind=st.sampled_from(["zeros", "labels", "image", "noise"]))
def test_of_damaged_frames_only_valid_blocks_remain(data, kind):
    nbytes = 512
    frame = bytearray(encode_frame(values_of(kind, nbytes, 1), 1, None))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(frame[: data.draw(st.integers(1, len(frame)))])
    for block in filter(None, convert([damaged], REMOVE_FRAMES, nbytes)):
        assert len(lz4.block.decompress(block, uncompressed_size=nbytes)) == nbytes


@given(
    data=st.data(),
    length=st.sampled_from([1, 2, 4, 8]),
    voxel_nbytes=st.sampled_from([1, 3, 8]),
    is_compressed=st.booleans(),
)
def test_values_outside_of_boxes_are_found(data, length, voxel_nbytes, is_compressed):
    ends = st.tuples(*[st.integers(0, length)] * 2).map(sorted)
    boxes, blocks, expected = [], [], []
    for _ in range(data.draw(st.integers(1, 4))):
        (x, to_x), (y, to_y), (z, to_z) = data.draw(st.tuples(ends, ends, ends))
        voxels, inside = (
            np.zeros((length, length, length, voxel_nbytes), np.uint8),
            np.zeros((length,) * 3, bool),
        )
        inside[z:to_z, y:to_y, x:to_x] = True
        for place in data.draw(st.lists(st.tuples(*[st.integers(0, length - 1)] * 3), max_size=2)):
            voxels[place][data.draw(st.integers(0, voxel_nbytes - 1))] = 1
        is_broken = is_compressed and data.draw(st.booleans())
        boxes.append((x, y, z, to_x, to_y, to_z))
        blocks.append(
            b"\xff" * 9
            if is_broken
            else compress(voxels.tobytes())
            if is_compressed
            else voxels.tobytes()
        )
        expected.append(not is_broken and not voxels[~inside].any())
    sizes = np.array(list(map(len, blocks)), np.int64)
    memory, places = (
        np.frombuffer(b"".join(blocks), np.uint8),
        np.stack([np.cumsum(sizes) - sizes, sizes], axis=1),
    )
    assert (
        are_zero_outside(
            memory, places, np.array(boxes), length, voxel_nbytes, is_compressed=is_compressed
        ).tolist()
        == expected
    )
