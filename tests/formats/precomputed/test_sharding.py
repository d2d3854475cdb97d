"""Shards of precomputed volumes: published vectors, the worked example byte for byte, limits, and
every damage of a table."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.precomputed_volumes import assemble_shard, parse_shard_index, sharding_for
from support.strategies import vectors

from wkwdask.errors import CorruptError, FormatError
from wkwdask.formats.compressed_streams import decompress_gzip
from wkwdask.formats.precomputed.layouts import PrecomputedShards
from wkwdask.formats.precomputed.sharding import (
    Sharding,
    choose_sharding,
    format_minishard_index,
    format_shard_index,
    format_sharding,
    murmurhash3,
    parse_minishard_index,
    parse_sharding,
)
from wkwdask.geometry.compressed_morton import bit_axes, encode
from wkwdask.model.json_text import Problems
from wkwdask.store.store import open_store

MURMUR = [
    # key, hash; as mmh3, cloud-volume and tensorstore have it
    (0, 0x4772B084E028AE41),
    (1, 0xE8BD67D616D4CE9A),
    (2, 0xD62F9CD21B013F5A),
    (12345, 0x1D31307E3A65E510),
    (2**40 + 7, 0xF6B242E1DF6537B4),
]


def test_murmurhash():
    keys, hashes = zip(*MURMUR, strict=True)
    assert murmurhash3(np.array(keys, np.uint64)).tolist() == list(hashes)


# What tensorstore wrote for uint8 0xa0 + 16 y + x of 3 x 2 x 1 voxels in chunks of one voxel, as
# raw bytes.
EXAMPLE = Sharding(1, 1, 1)
EXAMPLE_CHUNKS = {0: b"\xa0", 1: b"\xa1", 4: b"\xa2", 2: b"\xb0", 3: b"\xb1", 6: b"\xb2"}
EXAMPLE_SHARDS = (
    (
        struct.pack("<4Q", 2, 50, 52, 100)
        + b"\xa0\xa1"
        + struct.pack("<6Q", 0, 1, 0, 0, 1, 1)
        + b"\xb0\xb1"
        + struct.pack("<6Q", 2, 1, 50, 0, 1, 1)
    ),
    struct.pack("<4Q", 1, 25, 26, 50)
    + b"\xa2"
    + struct.pack("<3Q", 4, 0, 1)
    + b"\xb2"
    + struct.pack("<3Q", 6, 25, 1),
)


@pytest.mark.parametrize("shard", [0, 1])
def test_worked_example_written(shard):
    ids = np.array(sorted(EXAMPLE_CHUNKS), np.uint64)
    members = ids[EXAMPLE.locate(ids)[0] == shard].tolist()
    assert (
        b"".join(assemble_shard({chunk: EXAMPLE_CHUNKS[chunk] for chunk in members}, EXAMPLE))
        == EXAMPLE_SHARDS[shard]
    )
    assert len(EXAMPLE_SHARDS[shard]) == (132, 82)[shard]
    assert EXAMPLE.shard_name(shard) == f"{shard}.shard"


def _read_shard(raw, sharding, source="shard"):
    """Read all chunks of a shard as a reader does, with every check."""
    chunks = {}
    starts, ends = parse_shard_index(raw, sharding)
    for minishard in range(1 << sharding.minishard_bits):
        start, end = (
            sharding.index_nbytes + int(starts[minishard]),
            sharding.index_nbytes + int(ends[minishard]),
        )
        index = raw[start:end] if end > start else b""
        if index and sharding.minishard_index_encoding == "gzip":
            index = decompress_gzip(index, 24 * 4096, source, start)
        for chunk, at, size in zip(
            *parse_minishard_index(index, source, start, len(raw) - sharding.index_nbytes),
            strict=True,
        ):
            begin = sharding.index_nbytes + int(at)
            chunks[int(chunk)] = raw[begin : begin + int(size)]
    return chunks


def test_worked_example_read():
    found = {}
    for raw in EXAMPLE_SHARDS:
        found |= _read_shard(raw, EXAMPLE)
    assert found == EXAMPLE_CHUNKS


def test_minishard_index_of_tensorstore():
    """Chunk 1 at bytes 3 to 10 and chunk 7 at bytes 12 to 15 (its uint64_sharded_encoder_test)."""
    raw = format_minishard_index(
        np.array([1, 7], np.uint64),
        np.array([3, 12], np.uint64),
        np.array([7, 3], np.uint64),
        "raw",
    )
    assert raw == struct.pack("<6Q", 1, 6, 3, 2, 7, 3)
    assert [column.tolist() for column in parse_minishard_index(raw, "a", 0)] == [
        [1, 7],
        [3, 12],
        [7, 3],
    ]


@st.composite
def _shardings(draw, largest=6):
    preshift, minishard, shard = (draw(st.integers(0, largest)) for _ in range(3))
    return Sharding(
        preshift,
        minishard,
        shard,
        *(
            draw(st.sampled_from(pair))
            for pair in (("identity", "murmurhash3_x86_128"), ("raw", "gzip"))
        ),
    )


@given(_shardings(), st.dictionaries(st.integers(0, 2**64 - 1), st.binary(max_size=5), max_size=12))
def test_round_trip(sharding, chunks):
    ids = np.array(sorted(chunks), np.uint64)
    shards, minishards = sharding.locate(ids)
    assert (minishards < 1 << sharding.minishard_bits).all()
    assert (shards < 1 << sharding.shard_bits).all()
    for shard in np.unique(shards).tolist():
        members = {chunk: chunks[chunk] for chunk in ids[shards == shard].tolist()}
        assert _read_shard(b"".join(assemble_shard(members, sharding)), sharding) == members


def test_places_of_wide_bits():
    ids = np.array([2**64 - 1, 5], np.uint64)
    assert [column.tolist() for column in Sharding(64, 0, 0).locate(ids)] == [[0, 0], [0, 0]]
    assert [column.tolist() for column in Sharding(0, 0, 64).locate(ids)] == [
        [2**64 - 1, 5],
        [0, 0],
    ]
    assert [column.tolist() for column in Sharding(0, 32, 32).locate(ids)] == [
        [2**32 - 1, 0],
        [2**32 - 1, 5],
    ]


def test_names():
    assert Sharding(0, 0, 0).shard_name(0) == "0.shard"
    assert Sharding(0, 0, 4).shard_name(10) == "a.shard"
    assert Sharding(0, 0, 9).shard_name(0x1F) == "01f.shard"
    assert Sharding(0, 0, 9).split_names(0x1F) == ("01f.index", "01f.data")


TABLE = struct.pack("<6Q", 2, 5, 10, 3, 7, 1)  # chunks 2 and 7, at 10 to 17 and at 20 to 21
DAMAGES = [
    # table, bytes behind the shard index, what is said
    (TABLE[:-1], None, "byte 99: a minishard index has a multiple of 24 bytes, found 47"),
    (
        struct.pack("<6Q", 7, 0, 0, 0, 1, 1),
        None,
        "expected ascending chunk identifiers in a minishard index, found 7 after 7",
    ),
    (
        struct.pack("<6Q", 7, 2**64 - 5, 0, 0, 1, 1),
        None,
        "expected ascending chunk identifiers in a minishard index, found 2 after 7",
    ),
    (
        TABLE,
        20,
        "chunk 7 of a minishard index, 1 bytes, lies outside the 20 bytes behind the shard index",
    ),
    # a start before the last end
    (
        struct.pack("<6Q", 2, 5, 10, 2**64 - 3, 7, 1),
        100,
        "chunk 7 of a minishard index, 1 bytes, lies outside",
    ),
    # ends before it starts
    (
        struct.pack("<6Q", 2, 5, 10, 0, 2**64 - 4, 1),
        100,
        "chunk 2 of a minishard index, 18446744073709551612 bytes, lies outside",
    ),
    (struct.pack("<3Q", 2, 2**63, 1), None, "lies outside the file"),
]


@pytest.mark.parametrize(("raw", "nbytes", "message"), DAMAGES)
def test_damaged_minishard_index(raw, nbytes, message):
    with pytest.raises(CorruptError, match="f: byte 99: "):
        parse_minishard_index(raw, "f", 99, nbytes)
    with pytest.raises(CorruptError, match=message):
        parse_minishard_index(raw, "f", 99, nbytes)


def test_a_sound_minishard_index_fits_exactly():
    assert parse_minishard_index(TABLE, "f", 0, 21)[1].tolist() == [10, 20]
    assert [len(column) for column in parse_minishard_index(b"", "f", 0, 0)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        # minishard 0 is empty, wherever it is
        (
            (999, 999, 5, 4),
            "byte 16: the shard index places the index of minishard 1 from 5 to 4 of the 68 bytes",
        ),
        (
            (5, 69, 0, 0),
            "byte 0: the shard index places the index of minishard 0 from 5 to 69 of the 68 bytes",
        ),
        ((5, 2**63, 0, 0), "byte 0: the shard index places the index of minishard 0"),
    ],
)
def test_damaged_shard_index(tmp_path, index, message):
    (tmp_path / "0.shard").write_bytes(struct.pack("<4Q", *index) + bytes(68))
    with (
        PrecomputedShards(Sharding(0, 1, 0), (2, 1, 1)).opened(
            open_store(tmp_path), "0.shard"
        ) as shard,
        pytest.raises(CorruptError, match=message),
    ):
        [shard.minishard_range(minishard) for minishard in (0, 1)]


@given(
    st.binary(max_size=24 * 5)
    | st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9), max_size=15).map(
        lambda n: struct.pack(f"<{len(n)}Q", *n)
    )
)
def test_any_bytes(raw):
    """Tables are read and mean what they say, or are refused."""
    try:
        ids, starts, sizes = parse_minishard_index(raw, "f", 0, 50)
    except FormatError:
        return
    assert sorted(set(ids.tolist())) == ids.tolist()
    assert all(
        0 <= start <= start + size <= 50
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    )


def test_json():
    sharding = Sharding(9, 6, 15, "murmurhash3_x86_128", "gzip", "raw")
    entry = json.loads(json.dumps(format_sharding(sharding)))
    assert entry["@type"] == "neuroglancer_uint64_sharded_v1"
    problems = Problems()
    assert parse_sharding(entry, "s", problems) == sharding
    del entry["minishard_index_encoding"], entry["@type"]
    entry["data_encoding"] = None
    entry["shard_bits"] = 15.0
    assert parse_sharding(entry, "s", problems) == Sharding(9, 6, 15, "murmurhash3_x86_128")
    assert problems.messages == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preshift_bits": 65}, "s.preshift_bits: expected a whole number from 0 to 64, found 65"),
        (
            {"preshift_bits": True},
            "s.preshift_bits: expected a whole number from 0 to 64, found true",
        ),
        (
            {"minishard_bits": 33},
            "s.minishard_bits: expected a whole number from 0 to 32, found 33",
        ),
        (
            {"minishard_bits": -1},
            "s.minishard_bits: expected a whole number from 0 to 32, found -1",
        ),
        ({"shard_bits": 62}, "s.shard_bits: expected a whole number from 0 to 61, found 62"),
        ({"shard_bits": 1.5}, "s.shard_bits: expected a whole number from 0 to 61, found 1.5"),
        ({"hash": "md5"}, 's.hash: expected "identity" or "murmurhash3_x86_128", found "md5"'),
        ({"data_encoding": "zstd"}, 's.data_encoding: expected "raw" or "gzip", found "zstd"'),
        ({"@type": "other"}, 's.@type: expected "neuroglancer_uint64_sharded_v1", found "other"'),
    ],
)
def test_wrong_json(change, message):
    problems = Problems()
    assert parse_sharding({**format_sharding(Sharding(0, 3, 0)), **change}, "s", problems) is None
    assert problems.messages == [message]


SIZES = [
    # grid, bytes of a chunk, preshift, minishard and shard bits, chunks of a shard
    ((538, 618, 805), 64**3, (9, 3, 18), (16, 16, 16)),
    ((1, 1, 1), 64**3, (0, 0, 0), (1, 1, 1)),
    ((16, 16, 1), 2 * 64**3, (8, 0, 0), (16, 16, 1)),
    # a chunk that is larger than a shard may be
    ((1000, 1000, 1000), 1 << 31, (0, 0, 30), (1, 1, 1)),
    # small chunks: minishards grow, not the shard index
    ((4096, 4096, 4096), 512, (11, 10, 15), (128, 128, 128)),
]


@pytest.mark.parametrize(("grid", "nbytes", "bits", "cells"), SIZES)
def test_chosen_bits(grid, nbytes, bits, cells):
    sharding = sharding_for(grid, nbytes)
    assert (sharding.preshift_bits, sharding.minishard_bits, sharding.shard_bits) == bits
    assert sharding.shard_cells(grid) == cells


@given(vectors(1, 5000), st.integers(1, 1 << 24), st.integers(1, 1 << 31))
def test_chosen_bits_are_sound(grid, nbytes, target):
    sharding = sharding_for(grid, nbytes, target_shard_nbytes=target)
    total = len(bit_axes(grid))
    assert sharding.preshift_bits + sharding.minishard_bits + sharding.shard_bits == total
    cells = sharding.shard_cells(grid)
    count = int(np.prod(cells))
    assert count == 1 or count * nbytes <= target
    assert count * 2 * nbytes > target or count == 1 << total  # not one bit more would fit
    assert sharding.preshift_bits <= 9 or sharding.minishard_bits == 10
    assert sharding.minishard_chunks(grid) <= 1 << sharding.preshift_bits


@given(vectors(1, 6), st.integers(1, 40))
def test_shards_are_boxes(grid, target):
    sharding = sharding_for(grid, 1, target_shard_nbytes=target)
    box = np.array(sharding.shard_cells(grid))
    cells = np.array(np.meshgrid(*(np.arange(n) for n in grid), indexing="ij")).reshape(3, -1).T
    shards = sharding.locate(encode(cells, grid))[0]
    boxes = {tuple(cell) for cell in (cells // box).tolist()}
    assert len(boxes) == len(np.unique(shards))
    for one in boxes:
        assert len(np.unique(shards[(cells // box == one).all(axis=1)])) == 1


def test_choosing_for_people():
    assert (
        choose_sharding((2000, 2000, 100), (64, 64, 64), "uint64", encoding="png").data_encoding
        == "raw"
    )
    chosen = choose_sharding(
        (2000, 2000, 100), (64, 64, 64), "uint16", num_channels=2, target_shard_nbytes=1 << 26
    )
    assert chosen == sharding_for((32, 32, 2), 4 * 64**3, target_shard_nbytes=1 << 26)
    with pytest.raises(ValueError, match="must be positive"):
        choose_sharding((0, 1, 1), (64, 64, 64))
    with pytest.raises(
        ValueError, match="identifiers of 69 bits, more than 64: choose larger chunks"
    ):
        choose_sharding((1 << 23,) * 3, (1, 1, 1))


@given(vectors(1, 200), vectors(1, 200), st.integers(1, 1 << 12))
def test_fitted_to_another_volume(grid, other, target):
    fitted = sharding_for(grid, 1, target_shard_nbytes=target).fitted(other)
    assert fitted.preshift_bits + fitted.minishard_bits + fitted.shard_bits == len(bit_axes(other))
    assert fitted.shard_cells(other) is not None


def test_shards_that_are_no_boxes():
    assert Sharding(0, 1, 1, "murmurhash3_x86_128").shard_cells((2, 2, 1)) is None
    assert Sharding(0, 1, 0).shard_cells((2, 2, 1)) is None  # several boxes share a shard
    assert Sharding(0, 1, 0).minishard_chunks((2, 2, 1)) == 2
    assert Sharding(0, 1, 1, "murmurhash3_x86_128").minishard_chunks((2, 2, 1)) == 4


def test_a_shard_index():
    assert format_shard_index(
        np.array([0, 3], np.uint64), np.array([0, 9], np.uint64)
    ) == struct.pack("<4Q", 0, 0, 3, 9)
