"""Small boxes of local shards, whose chunks are looked up one by one, against lookups by arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wkwdask
from wkwdask.formats.opening import open_stored
from wkwdask.formats.precomputed.naming import ShardNaming
from wkwdask.formats.precomputed.sharding import Sharding, locate_one
from wkwdask.geometry.compressed_morton import code_of, encode
from wkwdask.model import layout as layouts
from wkwdask.model.layout import Shards, box_cells

SIZE = (37, 26, 41)
SHARDINGS = [
    Sharding(preshift_bits=3, minishard_bits=1, shard_bits=4),
    Sharding(preshift_bits=1, minishard_bits=2, shard_bits=4, hash="murmurhash3_x86_128"),
    Sharding(preshift_bits=2, minishard_bits=0, shard_bits=6, data_encoding="gzip"),
]
AXES = ["zyx", "xyz", "czyx", "tczyx", "xzcy"]


def _voxels() -> np.ndarray:
    """Return voxels with whole chunks, and whole shards, of zeros."""
    voxels = np.random.default_rng(0).integers(0, 200, SIZE, np.uint8)
    voxels[:16, :16, :16] = 0
    voxels[20:, 8:16, 8:24] = 0
    return voxels


def _write_zarr(path, axes: str, voxels: np.ndarray) -> None:
    zarr = pytest.importorskip("zarr")
    lengths = dict(zip("xyz", SIZE, strict=True))
    array = zarr.create_array(
        str(path),
        shape=[lengths.get(letter, 1) for letter in axes],
        chunks=[8 if letter in lengths else 1 for letter in axes],
        shards=[16 if letter in lengths else 1 for letter in axes],
        dtype="uint8",
        dimension_names=list(axes),
    )
    kept = [letter for letter in axes if letter in lengths]
    ordered = voxels.transpose(["xyz".index(letter) for letter in kept])
    array[...] = ordered[tuple(slice(None) if a in lengths else None for a in axes)]


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    folder, voxels, found = tmp_path_factory.mktemp("shards"), _voxels(), []
    for number, sharding in enumerate(SHARDINGS):
        if sharding.hash == "identity":
            path = folder / str(number)
            wkwdask.to_precomputed(
                voxels, path, chunk_shape=(8, 8, 8), shard_shape=sharding, voxel_size=(4, 4, 4)
            )
            found.append(open_stored(f"precomputed://{path}")[1])
    return found


def _chunks(array, ranges, few: int) -> list:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layouts, "_FEW_CELLS", few)
        return sorted(array.layout.chunks(array, ranges))


def check_few_chunks(array, data: st.DataObject) -> None:
    """Compare both lookups of a box."""
    counts = array.grid.counts
    low = [data.draw(st.integers(0, count - 1)) for count in counts]
    high = [data.draw(st.integers(a + 1, n)) for a, n in zip(low, counts, strict=True)]
    ranges = tuple(map(range, low, high))
    few, many = _chunks(array, ranges, 1 << 30), _chunks(array, ranges, 0)
    assert few == many
    cells = box_cells(ranges)
    assert isinstance(array.layout, Shards)
    by_file = array.naming.by_file(map(tuple, cells.tolist()), array.grid)
    assert {name: set(inside) for name, inside in by_file.items()} == {
        name: {tuple(cell) for cell in cells[rows].tolist()}
        for name, rows in array.naming.locate(cells, array.grid)
    }


@given(st.data())
def test_precomputed(arrays, data):
    check_few_chunks(data.draw(st.sampled_from(arrays)), data)


@pytest.fixture(scope="module")
def raw_volumes(tmp_path_factory):
    """Uncompressed volumes, and the voxels of each."""
    folder, found = tmp_path_factory.mktemp("raw"), []
    voxels = np.random.default_rng(1).integers(1, 9, (2, *SIZE), np.uint16)
    voxels[:, :16, :16, :16] = 0
    shards = Sharding(preshift_bits=3, minishard_bits=1, shard_bits=4)
    for sharding, channels in ((False, 1), (shards, 1), (False, 2)):
        path = folder / str(len(found))
        wkwdask.to_precomputed(
            voxels[:channels],
            path,
            chunk_shape=(8, 8, 8),
            shard_shape=sharding,
            voxel_size=(4, 4, 4),
            offset=(3, 5, 7),
        )
        found.append((open_stored(f"precomputed://{path}")[1], voxels[:channels]))
    return found


@given(st.data())
def test_slabs_of_uncompressed_chunks(raw_volumes, data):
    array, voxels = data.draw(st.sampled_from(raw_volumes))
    low = [data.draw(st.integers(0, n - 1)) for n in SIZE]
    high = [data.draw(st.integers(a + 1, n)) for a, n in zip(low, SIZE, strict=True)]
    out = np.full((len(voxels), *np.subtract(high, low)), 77, np.uint16, order="F")
    array.read_into(out, tuple(a + o for a, o in zip(low, (3, 5, 7), strict=True)))
    np.testing.assert_array_equal(out, voxels[:, *map(slice, low, high)])


def test_a_slab_of_a_truncated_file_is_an_error(tmp_path):
    voxels = np.ones((16, 16, 16), np.uint8)
    wkwdask.to_precomputed(
        voxels, tmp_path / "a", chunk_shape=(8, 8, 8), shard_shape=False, voxel_size=(4, 4, 4)
    )
    url, box = f"precomputed://{tmp_path}/a", ((0, 0, 1), (16, 16, 3))
    np.testing.assert_array_equal(wkwdask.read(url, box), 1)
    (file,) = (tmp_path / "a").rglob("8-16_0-8_0-8")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(wkwdask.TruncatedError, match="8-16_0-8_0-8"):
        wkwdask.read(url, box)
    file.unlink()
    np.testing.assert_array_equal(wkwdask.read(url, box)[0, 8:, :8], 0)


@pytest.mark.needs("zarr")
@pytest.mark.parametrize("axes", AXES)
def test_zarr(axes, tmp_path_factory):
    path = tmp_path_factory.mktemp("zarr") / "a.zarr"
    voxels = _voxels()
    _write_zarr(path, axes, voxels)
    array = open_stored(f"zarr://{path}")[1]
    assert json.loads((path / "zarr.json").read_bytes())["codecs"][0]["name"] == "sharding_indexed"
    np.testing.assert_array_equal(wkwdask.read(f"zarr://{path}")[0], voxels)

    @given(st.data())
    def compare(data: st.DataObject) -> None:
        check_few_chunks(array, data)
        corner = [data.draw(st.integers(0, n - 1)) for n in SIZE]
        end = [data.draw(st.integers(a + 1, n)) for a, n in zip(corner, SIZE, strict=True)]
        expected = voxels[tuple(map(slice, corner, end))]
        np.testing.assert_array_equal(wkwdask.read(f"zarr://{path}", (corner, end))[0], expected)

    compare()


@given(st.data())
def test_names_of_hashed_shards(data):
    sharding = data.draw(st.sampled_from(SHARDINGS))
    counts = data.draw(st.tuples(*[st.integers(1, 9)] * 3))
    cell = tuple(data.draw(st.integers(0, n - 1)) for n in counts)
    code = int(encode([cell], counts)[0])
    assert code_of(cell, counts) == code
    shards, minishards = sharding.locate(np.array([code], np.uint64))
    assert locate_one(sharding, code) == (int(shards[0]), int(minishards[0]))
    assert ShardNaming(sharding, counts).by_file([(0, *cell)], None) == {
        sharding.shard_name(int(shards[0])): [(0, *cell)]
    }
