"""Parts of compressed chunks equal those of the whole ones, whoever compressed them, and damaged
chunks are refused."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from wkwdask.model import decompression
from wkwdask.model.decompression import compress_zstd, decompress, decompress_part

numcodecs = pytest.importorskip(
    "numcodecs", reason="numcodecs, of the extra zarr, is not installed"
)
if any(decompression._functions(module) is None for module in ("_zstd", "_blosc")):
    pytest.skip("imagecodecs, of the extra zarr, has not these functions", allow_module_level=True)

NBYTES = 600_000
ZSTD = [
    {"level": level, "checksum": checksum} for level, checksum in product((1, 19), (False, True))
]
BLOSC = [
    {"cname": cname, "clevel": 3, "shuffle": shuffle, "blocksize": block}
    for cname, shuffle, block in product(
        ("lz4", "zstd", "zlib", "blosclz"), (0, 1, 2), (0, 50_000, NBYTES)
    )
]
SETTINGS = [*(("zstd", one) for one in ZSTD), *(("blosc", one) for one in BLOSC)]
"""Compressions and their settings, those of numcodecs."""


@cache
def _plain(kind="labels", dtype="u4"):
    """Return values that compress well, or noise that Blosc stores as it is."""
    random = np.random.default_rng(3)
    if kind == "noise":
        return random.integers(0, 256, NBYTES, np.uint8)
    values = np.repeat(random.integers(0, 1000, NBYTES // 100), 100).astype(dtype)
    return values.view(np.uint8)[:NBYTES]


@cache
def _compressed(number, content):
    kind, settings = SETTINGS[number]
    values = _plain(content).view(np.uint32)
    return kind, bytes(numcodecs.get_codec({"id": kind, **settings}).encode(values))


@given(
    number=st.integers(0, len(SETTINGS) - 1),
    content=st.sampled_from(["labels", "noise"]),
    ends=st.tuples(st.integers(0, NBYTES), st.integers(0, NBYTES)),
)
def test_parts_equal_the_values(number, content, ends):
    first, end = sorted(ends)
    assume(first < end)
    kind, data = _compressed(number, content)
    memory = np.full(NBYTES, 77, np.uint8)
    part = decompress_part(kind, data, memory, first, end)
    if part is not None:
        assert part.size == NBYTES
        assert np.array_equal(part[first:end], _plain(content)[first:end])
    whole = decompress(kind, data, memory)
    assert whole is not None
    assert np.array_equal(whole, _plain(content))


@pytest.mark.parametrize(
    ("kind", "settings", "is_part"),
    [
        ("zstd", {"level": 3}, True),
        ("zstd", {"level": 3, "checksum": True}, False),  # only a whole frame proves its checksum
        ("blosc", {"cname": "zstd", "shuffle": 0, "blocksize": NBYTES}, True),
        ("blosc", {"cname": "zstd", "shuffle": 1, "blocksize": NBYTES}, False),
        ("blosc", {"cname": "lz4", "shuffle": 1, "blocksize": 100_000}, True),
        ("blosc", {"cname": "lz4", "shuffle": 1, "blocksize": NBYTES}, False),
    ],
)
def test_only_what_is_needed_is_decompressed(kind, settings, is_part):
    values = _plain().view(np.uint32)
    data = bytes(numcodecs.get_codec({"id": kind, **settings}).encode(values))
    memory = np.full(NBYTES, 77, np.uint8)
    part = decompress_part(kind, data, memory, 1000, 90_000)
    assert (part is not None) == is_part
    if is_part:
        assert np.array_equal(part[1000:90_000], _plain()[1000:90_000])
        assert (part[-100_000:] == 77).all()


def test_stored_values_are_not_copied():
    data = bytes(numcodecs.Blosc("lz4", 5, 0).encode(_plain("noise")))
    part = decompress_part("blosc", data, np.empty(NBYTES, np.uint8), 0, 10)
    assert part is not None
    assert np.shares_memory(part, np.frombuffer(data, np.uint8))
    assert np.array_equal(part, _plain("noise"))


@given(
    number=st.integers(0, len(SETTINGS) - 1),
    damage=st.lists(st.tuples(st.integers(0, NBYTES), st.integers(0, 255)), max_size=4),
    length=st.integers(0, NBYTES),
    cut=st.booleans(),
)
def test_damaged_chunks_decode_or_are_refused(number, damage, length, cut):
    kind, intact = _compressed(number, "labels")
    data = bytearray(intact[: length % len(intact)] if cut else intact)
    for place, value in damage:
        data[place % len(data) : place % len(data) + 1] = [value] if data else []
    memory = np.empty(NBYTES, np.uint8)
    for values in (
        decompress(kind, bytes(data), memory),
        decompress_part(kind, bytes(data), memory, 0, 1000),
        decompress_part(kind, bytes(data), memory, NBYTES - 1000, NBYTES),
    ):
        assert values is None or values.size <= NBYTES


@given(
    count=st.integers(1, NBYTES), level=st.sampled_from([-5, 0, 1, 3, 7]), checksum=st.booleans()
)
def test_others_decompress_our_frames(count, level, checksum):
    values = _plain()[:count]
    data = compress_zstd(values, level, has_checksum=checksum)
    assert data is not None
    assert bytes(numcodecs.Zstd().decode(data)) == values.tobytes()
    assert len(data) <= len(numcodecs.Zstd(level, checksum).encode(values)) + 16


@pytest.mark.parametrize("kind", ["zstd", "blosc"])
def test_without_the_c_functions_the_packages_decode(kind, monkeypatch):
    monkeypatch.setattr(decompression, "_functions", lambda _: None)
    data = bytes(numcodecs.get_codec({"id": kind}).encode(_plain()))
    memory = np.empty(NBYTES, np.uint8)
    assert decompress(kind, data, memory) is None
    assert decompress_part(kind, data, memory, 0, 1000) is None
    assert compress_zstd(_plain(), 3, has_checksum=False) is None
