"""Levels before the finest one, and shards that are compressed in another way, as tensorstore
0.1.86 and cloud-volume 12 read them."""

from __future__ import annotations

import json

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import vectors

import wkwdask

ts = pytest.importorskip("tensorstore", reason="the oracle tensorstore 0.1.86 is not installed")

STEPS = ((2, 2, 2), (2, 2, 1), (4, 4, 1), (1, 1, 4))


def voxels(shape, dtype, seed):
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 7, [-(-n // 3) for n in shape])
    return (
        coarse.repeat(3, 0)
        .repeat(3, 1)
        .repeat(3, 2)[: shape[0], : shape[1], : shape[2]]
        .astype(dtype)
    )


def repeated(array, step):
    for axis, factor in enumerate(step):
        array = array.repeat(factor, axis)
    return array


def stored(folder, **spec):
    return ts.open(
        {"driver": "neuroglancer_precomputed", "kvstore": f"file://{folder}/", **spec}
    ).result()


@settings(max_examples=max(3, settings.default.max_examples // 5), deadline=None)
@given(
    shape=vectors(1, 20),
    offset=vectors(-30, 30),
    step=st.sampled_from(STEPS),
    sharded=st.booleans(),
    dtype=st.sampled_from(["uint8", "uint32"]),
    seed=st.integers(0, 99),
)
def test_scale_before_the_finest(tmp_path_factory, shape, offset, step, sharded, dtype, seed):
    folder, array = tmp_path_factory.mktemp("volume") / "v", voxels(shape, dtype, seed)
    options = {
        "offset": offset,
        "voxel_size": (8, 8, 40),
        "chunk_shape": (8, 8, 8),
        "shard_shape": sharded,
    }
    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_precomputed(array, folder, **options)
        wkwdask.build_pyramid(folder, mags=["2"], method="max")
        coarser = wkwdask.open(folder, mag=2).compute()[0]
        wkwdask.upsample(folder, mags=["1"], voxel_size=np.divide((8, 8, 40), step))
    finer, same, last = (stored(folder, scale_index=n) for n in range(3))
    assert finer.domain.origin[:3] == tuple(o * n for o, n in zip(offset, step, strict=True))
    assert finer.schema.dimension_units[0].multiplier == 8 / step[0]
    np.testing.assert_array_equal(finer[..., 0].read().result(), repeated(array, step))
    assert same.domain.origin[:3] == offset
    np.testing.assert_array_equal(same[..., 0].read().result(), array)
    np.testing.assert_array_equal(last[..., 0].read().result(), coarser)
    assert [scale.mag.factors for scale in wkwdask.info(folder).scales] == [
        (1, 1, 1),
        step,
        tuple(2 * n for n in step),
    ]


def test_cloud_volume_counts_from_the_new_scale(tmp_path):
    cloudvolume = pytest.importorskip(
        "cloudvolume", reason="the oracle cloud-volume 12 is not installed"
    )
    array = voxels((20, 18, 11), "uint32", 0)
    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_precomputed(
            array,
            tmp_path / "v",
            offset=(3, 4, 5),
            voxel_size=(8, 8, 40),
            chunk_shape=(8, 8, 8),
            shard_shape=True,
        )
        wkwdask.upsample(tmp_path / "v", voxel_size=(4, 4, 40))
        wkwdask.compress(tmp_path / "v", compression="raw")
    for mip, (step, offset) in enumerate((((2, 2, 1), (6, 8, 5)), ((1, 1, 1), (3, 4, 5)))):
        volume = cloudvolume.CloudVolume(f"file://{tmp_path}/v", mip=mip, progress=False)
        assert tuple(volume.voxel_offset) == offset
        assert tuple(volume.resolution) == (8 / step[0], 8 / step[1], 40)
        assert tuple(volume.downsample_ratio) == ((1, 1, 1), (2, 2, 1))[mip]
        np.testing.assert_array_equal(volume[:][..., 0], repeated(array, step))


@pytest.mark.parametrize("dtype", ["uint8", "uint32"])
def test_shards_that_are_compressed_in_another_way(tmp_path, dtype):
    """Voxels are not encoded again: the size with compression is that of the first writing."""
    folder, array = tmp_path / "v", voxels((70, 60, 30), dtype, 1)
    sizes = []
    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_precomputed(
            array, folder, voxel_size=(4, 4, 40), chunk_shape=(16, 16, 16), shard_shape=(32, 32, 32)
        )
        for compression in ("gzip", "raw", "gzip"):
            report = wkwdask.compress(folder, compression=compression)
            assert report.files == (0 if not sizes else 6)
            (scale,) = json.loads((folder / "info").read_text())["scales"]
            sharding = scale["sharding"]
            assert (sharding["data_encoding"], sharding["minishard_index_encoding"]) == (
                compression,
                compression,
            )
            np.testing.assert_array_equal(stored(folder)[..., 0].read().result(), array)
            shards = (folder / scale["key"]).glob("*.shard")
            sizes.append(sum(path.stat().st_size for path in shards))
    assert sizes[0] == sizes[2] < sizes[1]


def test_levels_of_n5_are_numbered_from_the_new_one(tmp_path):
    array = voxels((20, 18, 11), "uint8", 0)
    group = tmp_path / "v.n5" / "em"
    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_n5(
            array, group / "s0", offset=(3, 4, 5), voxel_size=(8, 8, 40), chunk_shape=(8, 8, 8)
        )
        wkwdask.build_pyramid(group, mags=["2-2-1"], method="max")
        coarser = wkwdask.open(group, mag="2-2-1").compute()[0]
        wkwdask.upsample(group, voxel_size=(2, 2, 40))
    for name, expected in {
        "s0": repeated(array, (4, 4, 1)),
        "s1": repeated(array, (2, 2, 1)),
        "s2": array,
        "s3": coarser,
    }.items():
        level = ts.open({"driver": "n5", "kvstore": f"file://{group / name}/"}).result()
        np.testing.assert_array_equal(level.read().result(), expected)
    # n5-viewer and BigDataViewer multiply the size of a voxel of s0 by the factors of each level
    attributes = [json.loads((group / f"s{n}" / "attributes.json").read_text()) for n in range(4)]
    assert [each["downsamplingFactors"] for each in attributes] == [
        [1, 1, 1],
        [2, 2, 1],
        [4, 4, 1],
        [8, 8, 1],
    ]
    document = json.loads((group / "attributes.json").read_text())
    assert document["pixelResolution"] == {"dimensions": [2.0, 2.0, 40.0], "unit": "nm"}
    assert document["scales"] == [each["downsamplingFactors"] for each in attributes]
    # the centers of the first voxels, counted from that of voxel 0 of s0
    assert [each["transform"]["translate"] for each in attributes] == [
        [200, 32, 24],
        [200, 33, 25],
        [200, 35, 27],
        [200, 39, 23],
    ]
    assert document["multiscales"][0]["datasets"] == [
        {"path": f"s{n}", "transform": each["transform"]} for n, each in enumerate(attributes)
    ]
