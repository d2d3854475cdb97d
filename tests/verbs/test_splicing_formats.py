"""Chunks that keep their shape and encoding are copied between files, shards and formats: none is
decoded, and their bytes are equal."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np
import pytest

import wkwdask
from wkwdask.formats.n5.array import N5Codec
from wkwdask.formats.opening import open_stored
from wkwdask.formats.precomputed.chunk import PrecomputedCodec
from wkwdask.formats.zarr.codec import ZarrCodec
from wkwdask.model.codec import ChunkCodec

pytest.importorskip("numcodecs", reason="compressions of Zarr need the extra zarr")

CHUNK, OFFSET, VOXEL_SIZE = (8, 8, 8), (3, 5, 7), (4, 4, 40)
WHOLE = (32, 16, 24)
CODECS = (ChunkCodec, N5Codec, PrecomputedCodec, ZarrCodec)


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


def voxels(shape=WHOLE, dtype="uint8"):
    array = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    array[:8, :8, :8] = 0  # a chunk that is not stored
    return array


def save(url, array, **options):
    wkwdask.save(array, url, offset=OFFSET, voxel_size=VOXEL_SIZE, chunk_shape=CHUNK, **options)
    return url


@pytest.fixture
def calls(monkeypatch):
    """Count the chunks that are decoded or encoded."""
    counts = {"decode": 0, "encode": 0}
    for cls in CODECS:
        for name in counts:
            if name in vars(cls):
                monkeypatch.setattr(cls, name, _counted(vars(cls)[name], name, counts))
    return counts


def _counted(function, name, counts):
    def counted(*args, **kwargs):
        counts[name] += 1
        return function(*args, **kwargs)

    return counted


def payloads(url, mag=1):
    """Map the first voxel of each stored chunk to its bytes without a header."""
    _, array = open_stored(url, mag=mag)
    ranges = tuple(map(range, array.grid.counts))
    return {
        tuple(
            n * edge + o
            for n, edge, o in zip(chunk.cell[1:], array.grid.chunk[1:], array.origin, strict=True)
        ): array.codec.without_header(chunk.data, chunk.path)
        for chunk in array.layout.chunks(array, ranges)
    }


def expect_copied(calls, source, target, array, offset=OFFSET):
    assert calls == {"decode": 0, "encode": 0}
    found = wkwdask.open(target, mag=1)
    np.testing.assert_array_equal(found.compute().reshape(array.shape), array)
    shift = np.subtract(offset, OFFSET)
    stored = payloads(source)
    copied = {
        tuple((np.array(voxel) - shift).tolist()): data for voxel, data in payloads(target).items()
    }
    assert copied
    assert copied == {voxel: stored[voxel] for voxel in copied}


ZARR_2, ZARR_3 = {"ngff": "0.4"}, {"ngff": "0.5", "shard_shape": False}
SHARDS, OTHER_SHARDS = (
    {"ngff": "0.5", "shard_shape": (16, 16, 16)},
    {"ngff": "0.5", "shard_shape": (8, 16, 32)},
)


@pytest.mark.parametrize("compression", ["raw", "gzip", "zstd", "blosc"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ZARR_2, SHARDS),
        (SHARDS, ZARR_2),
        (ZARR_3, SHARDS),
        (SHARDS, OTHER_SHARDS),
        (SHARDS, ZARR_3),
    ],
    ids=["v2-shards", "shards-v2", "v3-shards", "shards-shards", "shards-v3"],
)
def test_between_versions_and_shards_of_zarr(tmp_path, calls, before, after, compression):
    source, target = f"zarr://{tmp_path}/a", f"zarr://{tmp_path}/b"
    array = voxels((29, 16, 17), "uint16")  # chunks at the end are padded by both
    save(source, array, compression=compression, **before)
    calls.update(decode=0, encode=0)
    wkwdask.convert(source, target, chunk_shape=CHUNK, compression=compression, **after)
    expect_copied(calls, source, target, array)


@pytest.mark.parametrize("compression", ["raw", "gzip", "zstd", "blosc"])
@pytest.mark.parametrize("zarr", [ZARR_2, SHARDS], ids=["v2", "shards"])
def test_between_n5_and_zarr(tmp_path, calls, zarr, compression):
    """Blocks lose or get a header; values of one byte have no byte order."""
    n5, image, again = (
        f"n5://{tmp_path}/a.n5/em",
        f"zarr://{tmp_path}/b",
        f"n5://{tmp_path}/c.n5/em",
    )
    save(f"{n5}/s0", voxels(), compression=compression)
    calls.update(decode=0, encode=0)
    wkwdask.convert(n5, image, chunk_shape=CHUNK, compression=compression, **zarr)
    expect_copied(calls, n5, image, voxels())
    calls.update(decode=0, encode=0)
    wkwdask.convert(image, again, chunk_shape=CHUNK, compression=compression)
    expect_copied(calls, n5, again, voxels())
    blocks = {
        path.relative_to(tmp_path / "a.n5"): path.read_bytes()
        for path in (tmp_path / "a.n5").rglob("[0-9]*")
        if path.is_file()
    }
    assert blocks == {
        path.relative_to(tmp_path / "c.n5"): path.read_bytes()
        for path in (tmp_path / "c.n5").rglob("[0-9]*")
        if path.is_file()
    }


def test_blocks_at_the_end_are_encoded_again(tmp_path, calls):
    """N5 cuts them off, and Zarr pads them."""
    array = voxels((29, 16, 24))
    n5, image = (
        save(f"n5://{tmp_path}/a.n5/em/s0", array, compression="gzip").removesuffix("/s0"),
        f"zarr://{tmp_path}/b",
    )
    calls.update(decode=0, encode=0)
    wkwdask.convert(n5, image, chunk_shape=CHUNK, compression="gzip")
    assert calls == {"decode": 6, "encode": 6}
    np.testing.assert_array_equal(wkwdask.open(image, mag=1).compute()[0], array)
    zarr = pytest.importorskip("zarr")
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "b", mode="r")["1"][...].T, array)


@pytest.mark.parametrize(
    ("array", "options"),
    [
        (voxels(dtype="uint16"), {"compression": "gzip"}),  # N5 is big-endian
        (voxels(), {"compression": "zstd"}),  # another compression
        (voxels(), {"compression": "gzip", "level": 9}),  # a level that the user chose
        (voxels(), {"compression": "gzip", "chunk_shape": (16, 8, 8)}),
    ],
)
def test_other_encodings_are_decoded(tmp_path, calls, array, options):
    n5, image = (
        save(f"n5://{tmp_path}/a.n5/em/s0", array, compression="gzip").removesuffix("/s0"),
        f"zarr://{tmp_path}/b",
    )
    calls.update(decode=0, encode=0)
    wkwdask.convert(n5, image, **{"chunk_shape": CHUNK} | options)
    assert min(calls.values()) > 0
    np.testing.assert_array_equal(wkwdask.open(image, mag=1).compute()[0], array)


@pytest.mark.parametrize("dtype", ["uint8", "uint32"])
@pytest.mark.parametrize("sharded", [False, True])
def test_precomputed_shards_and_files(tmp_path, calls, sharded, dtype):
    """Raw voxels and labels are compressed or decompressed, but not decoded."""
    source, target = f"precomputed://{tmp_path}/a", f"precomputed://{tmp_path}/b"
    array = voxels((29, 16, 17), dtype)
    save(source, array, shard_shape=sharded)
    calls.update(decode=0, encode=0)
    wkwdask.rechunk(source, target, shard_shape=not sharded, compression="gzip")
    assert calls == {"decode": 0, "encode": 0}
    np.testing.assert_array_equal(wkwdask.open(target).compute()[0], array)
    if sharded:  # the streams of the shard are now files
        streams = set(payloads(source).values())
        assert {path.read_bytes() for path in Path(tmp_path, "b").rglob("*.gz")} == streams


@pytest.mark.parametrize("url", ["n5://{}/a.n5/em", "zarr://{}/a", "precomputed://{}/a"])
def test_boxes_of_whole_chunks(tmp_path, calls, url):
    source, target = url.format(tmp_path), url.format(tmp_path / "other")
    array = voxels((29, 16, 24))
    save(f"{source}/s0" if "n5" in source else source, array)
    calls.update(decode=0, encode=0)
    low, end = np.add(OFFSET, (8, 0, 16)), np.add(OFFSET, (29, 16, 24))
    wkwdask.copy(
        source, target, bounding_box=[*low.tolist(), *(end - low).tolist()], translate=(1, 2, 3)
    )
    expect_copied(calls, source, target, array[8:, :, 16:], offset=np.add(OFFSET, (1, 2, 3)))
    calls.update(decode=0, encode=0)
    # a box that cuts chunks
    wkwdask.copy(source, url.format(tmp_path / "cut"), bounding_box=[*low.tolist(), 9, 8, 8])
    assert calls["decode"] > 0
    np.testing.assert_array_equal(
        wkwdask.open(url.format(tmp_path / "cut"), mag=1).compute()[0], array[8:17, :8, 16:]
    )
