"""Targets whose shards are any number of chunks, in small regions: zarr-python and tensorstore read
what numpy computes."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from verbs.cases import Case, components_of, draw_of_size, largest_of_windows

import wkwdask
from wkwdask.plans import apply, pyramid, regions, upsample

pytestmark = [pytest.mark.needs("zarr"), pytest.mark.filterwarnings("ignore::UserWarning")]

VOXEL_SIZE = (4, 4, 8)
COUNTS = (1, 2, 3, 4, 5, 6, 7)


@st.composite
def geometries(draw):
    """Draw chunks and the shards of a target."""
    chunk = draw(st.tuples(*[st.integers(4, 9)] * 3))
    counts = draw(st.tuples(*[st.sampled_from(COUNTS)] * 3))
    return chunk, tuple(n * m for n, m in zip(chunk, counts, strict=True))


@st.composite
def cases(draw):
    size = draw(st.tuples(*[st.integers(1, 45)] * 3))
    offset = draw(st.tuples(*[st.sampled_from((0, 1, 13, 100))] * 3))
    dtype = draw(st.sampled_from(("uint8", "int16", "uint32", "float64")))
    channels = draw(st.sampled_from((1, 1, 2)))
    return draw_of_size(draw(st.integers(0, 99)), dtype, (channels, *size), offset)


@pytest.fixture(params=["shards nest in regions", "regions cut shards"])
def _small_regions(request, monkeypatch):
    """Regions of few chunks, so that small arrays have many."""
    monkeypatch.setattr(pyramid, "_REGION_VX", 24)
    monkeypatch.setattr(pyramid, "_SMALLEST_REGION_VX", 12)
    monkeypatch.setattr(pyramid, "_BRICK_SOURCE_NBYTES", 1 << 12)
    monkeypatch.setattr(upsample, "_BRICK_NBYTES", 1 << 10)
    monkeypatch.setattr(upsample, "_READING_NBYTES", 1 << 12)
    monkeypatch.setattr(upsample, "_LARGEST_READING_NBYTES", 1 << 12)
    monkeypatch.setattr(apply, "BRICK_NBYTES", 1 << 12)
    if request.param == "regions cut shards":
        monkeypatch.setattr(regions, "_LARGEST_UNIT_NBYTES", 0)
    with dask.config.set(scheduler="synchronous"):
        yield


def _runs(count):
    return settings(
        max_examples=max(2, settings().max_examples // count),
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),  # each example is a whole job
        deadline=None,
    )


def _save(case, url, chunk=(8, 8, 8), shard=(16, 16, 16), array=None, **options):
    return wkwdask.to_zarr(
        case.array if array is None else array,
        url,
        offset=case.offset,
        voxel_size=VOXEL_SIZE,
        chunk_shape=chunk,
        shard_shape=shard,
        **options,
    )


def _check(folder, case, chunk, shard, level="1"):
    """Compare a level with an array, as other software reads it."""
    import zarr

    path = f"{folder}/{level}"
    array = zarr.open_array(path, mode="r")
    assert array.chunks[-3:][::-1] == chunk
    assert array.shards[-3:][::-1] == shard
    _compare(array[...], case)
    tensorstore = pytest.importorskip("tensorstore")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
    _compare(tensorstore.open(spec, read=True).result().read().result(), case)


def _compare(voxels, case):
    if voxels.ndim == 3:
        voxels = voxels[np.newaxis]
    voxels = voxels.transpose(0, 3, 2, 1)
    assert voxels.dtype == case.array.dtype
    np.testing.assert_array_equal(voxels, case.array)


@pytest.mark.usefixtures("_small_regions")
@_runs(2)
@given(case=cases(), geometry=geometries(), data=st.data())
def test_save(case, geometry, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("save")
    _save(case, folder / "a.zarr", *geometry)
    _check(folder / "a.zarr", case, *geometry)
    chunks = data.draw(st.tuples(*[st.integers(5, 30)] * 3))
    _save(case, folder / "b.zarr", *geometry, da.from_array(case.array, (-1, *chunks)))
    _check(folder / "b.zarr", case, *geometry)
    # a part of it again
    box = case.part(np.random.default_rng(data.draw(st.integers(0, 99))))
    changed = Case(case.array.copy(), case.offset)
    changed.crop(box)[...] += 1
    wkwdask.write(folder / "a.zarr/1", None, changed.crop(box), region=box)
    _check(folder / "a.zarr", changed, *geometry)


@pytest.mark.usefixtures("_small_regions")
@_runs(2)
@given(case=cases(), geometry=geometries(), compression=st.sampled_from(("gzip", "zstd")))
def test_rechunk(case, geometry, compression, tmp_path_factory):
    """Other chunks are decoded; equal ones are copied into other shards."""
    folder = tmp_path_factory.mktemp("rechunk")
    _save(case, folder / "a.zarr", compression="zstd")
    options = {"chunk_shape": geometry[0], "shard_shape": geometry[1]}
    wkwdask.rechunk(folder / "a.zarr", folder / "b.zarr", **options, compression=compression)
    _check(folder / "b.zarr", case, *geometry)
    shard = tuple(3 * n for n in geometry[0])
    wkwdask.rechunk(folder / "b.zarr", folder / "c.zarr", shard_shape=shard)
    _check(folder / "c.zarr", case, geometry[0], shard)
    wkwdask.copy(folder / "c.zarr", folder / "d.zarr")
    _check(folder / "d.zarr", case, geometry[0], shard)
    wkwdask.compress(folder / "d.zarr", compression="gzip")
    _check(folder / "d.zarr", case, geometry[0], shard)


@pytest.mark.usefixtures("_small_regions")
@_runs(2)
@given(case=cases(), geometry=geometries(), mags=st.sampled_from((("2", "4"), ("2-2-1", "4-4-2"))))
def test_pyramid(case, geometry, mags, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pyramid")
    _save(case, folder / "a.zarr", *geometry)
    wkwdask.build_pyramid(folder / "a.zarr", mags=list(mags), method="max")
    for mag in mags:
        factor = wkwdask.Mag.parse(mag).factors
        _check(folder / "a.zarr", largest_of_windows(case, factor), *geometry, level=mag)
    # a changed voxel reaches the coarser levels, and the others stay
    changed = Case(case.array.copy(), case.offset)
    last = tuple(n - 1 for n in case.end), case.end
    changed.crop(last)[...] = 101
    wkwdask.write(folder / "a.zarr/1", None, changed.crop(last), region=last)
    wkwdask.build_pyramid(folder / "a.zarr", mags=list(mags), method="max", update=True)
    for mag in mags:
        factor = wkwdask.Mag.parse(mag).factors
        _check(folder / "a.zarr", largest_of_windows(changed, factor), *geometry, level=mag)
    report = wkwdask.build_pyramid(folder / "a.zarr", mags=list(mags), method="max", update=True)
    assert "nothing to do" in report.note
    assert wkwdask.verify(folder / "a.zarr", pyramid=True).is_sound


@pytest.mark.usefixtures("_small_regions")
@_runs(2)
@given(case=cases(), geometry=geometries(), counts=st.tuples(*[st.integers(1, 4)] * 3))
def test_apply(case, geometry, counts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("apply")
    _save(case, folder / "a.zarr")
    options = {"chunk_shape": geometry[0], "shard_shape": geometry[1]}
    bricks = tuple(n * m for n, m in zip(geometry[0], counts, strict=True))
    channels = len(case.array)
    for name, chunks in (("b.zarr", None), ("c.zarr", bricks)):
        wkwdask.apply(
            np.positive,
            folder / "a.zarr",
            f"zarr://{folder}/{name}",
            chunks=chunks,
            channels=channels,
            **options,
        )
        _check(folder / name, case, *geometry)


@pytest.mark.usefixtures("_small_regions")
@_runs(2)
@given(case=cases(), geometry=geometries())
def test_components(case, geometry, tmp_path_factory):
    folder = tmp_path_factory.mktemp("components")
    labels = Case((case.array[:1] != 0).astype(np.uint8), case.offset)
    _save(labels, folder / "a.zarr")
    options = {"chunk_shape": geometry[0], "shard_shape": geometry[1]}
    wkwdask.connected_components(folder / "a.zarr", f"zarr://{folder}/b.zarr", **options)
    found = np.asarray(wkwdask.open(folder / "b.zarr", channel=0))
    _check(folder / "b.zarr", Case(found[np.newaxis], case.offset), *geometry)
    expected = components_of(labels.array[0])
    pairs = {*zip(found.ravel().tolist(), expected.ravel().tolist(), strict=True)}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
