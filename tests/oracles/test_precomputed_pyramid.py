"""Oracle: tensorstore 0.1.86, for pyramids, copies and conversions of precomputed volumes at any
place, below 0 too.

Each scale is compared with tensorstore's ``downsample`` of the one before it, and read by
tensorstore's own driver.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.inside import limited
from support.strategies import vectors

import wkwdask
from wkwdask import Mag

ts = pytest.importorskip("tensorstore", reason="the oracle tensorstore 0.1.86 is not installed")

METHODS = {"mean": "mean", "mode": "mode", "min": "min", "max": "max"}
LADDERS = (
    ["2", "4", "8"],
    ["2-2-1", "4-4-2", "8-8-4", "16-16-8"],
    ["4-4-1", "4"],
    ["1-2-2", "2-4-4"],
    ["2-2-16", "4-4-16"],
)


def scales_of(folder):
    """Open all scales by tensorstore."""
    info = ts.KvStore.open(f"file://{folder}/").result().read("info").result().value
    count = bytes(info).count(b'"key"')
    return [
        ts.open(
            {"driver": "neuroglancer_precomputed", "kvstore": f"file://{folder}/", "scale_index": n}
        ).result()
        for n in range(count)
    ]


def blobs(shape, dtype, seed):
    """Voxels with many equal neighbours, zeros, and noise, so that windows have ties and chunks are
    absent."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 7, [-(-n // 3) for n in shape[1:]])
    labels = coarse.repeat(3, 0).repeat(3, 1).repeat(3, 2)[: shape[1], : shape[2], : shape[3]]
    voxels = np.where(random.random(shape) < 0.8, labels, random.integers(0, 200, shape)).astype(
        dtype
    )
    voxels[:, shape[1] // 2 :, :, shape[3] // 2 :] = 0
    return voxels


@st.composite
def volumes(draw):
    """Any place and extent; chunks that are no cubes, and no powers of two."""
    kind, dtype, channels = draw(
        st.sampled_from(
            [
                ("segmentation", "uint32", 1),
                ("segmentation", "uint64", 1),
                ("image", "uint8", 1),
                ("image", "uint16", 2),
            ]
        )
    )
    size = draw(st.tuples(*[st.integers(1, 50)] * 3))
    chunk = draw(st.sampled_from([(8, 8, 8), (16, 8, 4), (32, 32, 1), (5, 7, 3)]))
    return (
        kind,
        dtype,
        (channels, *size),
        draw(vectors(-40, 40)),
        chunk,
        draw(st.booleans()),
        draw(st.integers(0, 99)),
    )


@given(
    volumes(),
    st.sampled_from(LADDERS),
    st.sampled_from([None, "min"]),
    st.sampled_from([8, 32, 512]),
)
@settings(max_examples=20, deadline=None)
def test_pyramids(tmp_path_factory, volume, mags, method, region_vx):
    kind, dtype, shape, offset, chunk, sharded, seed = volume
    folder = tmp_path_factory.mktemp("volume") / "v"
    voxels = blobs(shape, dtype, seed)
    wkwdask.to_precomputed(
        voxels,
        folder,
        type=kind,
        voxel_size=(4, 4, 40),
        offset=offset,
        chunk_shape=chunk,
        shard_shape=sharded,
    )
    with limited(region_vx=region_vx, smallest_region_vx=min(region_vx, 128)):
        wkwdask.build_pyramid(folder, mags=mags, method=method or "default")
    finest, *coarser = scales_of(folder)
    assert len(coarser) == len(mags)
    assert np.array_equal(finest.read().result().transpose(3, 0, 1, 2), voxels)
    before, factors = finest, (1, 1, 1)
    for scale, mag in zip(coarser, mags, strict=True):
        step = [b // a for a, b in zip(factors, Mag.parse(mag).factors, strict=True)]
        expected = ts.downsample(
            before, [*step, 1], METHODS[method or ("mode" if kind == "segmentation" else "mean")]
        )
        assert scale.domain == expected.domain
        assert np.array_equal(scale.read().result(), expected.read().result())
        before, factors = scale, Mag.parse(mag).factors


@given(volumes(), st.sampled_from([(8, 8, 8), (16, 16, 2), (9, 4, 5)]), st.booleans())
@settings(max_examples=8, deadline=None)
def test_chunks_of_another_size(tmp_path_factory, volume, chunk_size, sharded):
    kind, dtype, shape, offset, chunk, was_sharded, seed = volume
    folder = tmp_path_factory.mktemp("volume")
    voxels = blobs(shape, dtype, seed)
    wkwdask.to_precomputed(
        voxels,
        folder / "v",
        type=kind,
        voxel_size=(4, 4, 40),
        offset=offset,
        chunk_shape=chunk,
        shard_shape=was_sharded,
    )
    wkwdask.build_pyramid(folder / "v", mags=["2"])
    wkwdask.rechunk(
        folder / "v",
        f"precomputed://{folder}/elsewhere",
        chunk_shape=chunk_size,
        shard_shape=sharded,
        encoding="raw",
    )
    wkwdask.rechunk(folder / "v", chunk_shape=chunk_size, shard_shape=sharded, encoding="raw")
    for name in ("elsewhere", "v"):
        finest, coarser = scales_of(folder / name)
        assert finest.chunk_layout.read_chunk.shape[:3] == chunk_size
        assert np.array_equal(finest.read().result().transpose(3, 0, 1, 2), voxels)
        assert np.array_equal(
            coarser.read().result(),
            ts.downsample(finest, [2, 2, 2, 1], "mode" if kind == "segmentation" else "mean")
            .read()
            .result(),
        )


@given(volumes(), st.booleans())
@settings(max_examples=8, deadline=None)
def test_to_wkw_and_back(tmp_path_factory, volume, sharded):
    kind, dtype, shape, offset, chunk, _, seed = volume
    folder = tmp_path_factory.mktemp("volume")
    offset = tuple(abs(n) for n in offset)
    voxels = blobs(shape, dtype, seed)
    wkwdask.to_precomputed(
        voxels, folder / "v", type=kind, voxel_size=(4, 4, 40), offset=offset, chunk_shape=chunk
    )
    wkwdask.build_pyramid(folder / "v", mags=["2-2-1", "4-4-2"])
    wkwdask.convert(folder / "v", folder / "ds", block_len=8, file_len=2)
    category = "segmentation" if kind == "segmentation" else "color"
    dataset = wkwdask.open_dataset(folder / "ds")
    (layer,) = dataset.layers.values()
    assert (layer.name, layer.category, dataset.voxel_size_nm) == (category, category, (4, 4, 40))
    wkwdask.convert(
        folder / "ds", f"precomputed://{folder}/again", shard_shape=sharded, chunk_shape=chunk
    )
    for first, second in zip(scales_of(folder / "v"), scales_of(folder / "again"), strict=True):
        assert np.array_equal(first.read().result(), second[first.domain].read().result())
        assert first.dtype == second.dtype
    assert np.array_equal(wkwdask.open(folder / "ds", mag="1").compute(), voxels)
