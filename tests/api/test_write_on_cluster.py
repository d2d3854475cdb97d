"""Writers and functions on processes and on a dask cluster: the same mags as by one thread."""

from __future__ import annotations

from functools import partial

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
from scipy import ndimage
from support.failing_jobs import fail_behind, fail_first
from support.local_cluster import local_cluster

import wkwdask

SHAPE = (70, 50, 60)
OPTIONS = {"block_len": 8, "file_len": 4}


@pytest.fixture(scope="module", params=["processes", "cluster"])
def runner(request):
    """Two processes of a pool, or two workers of a cluster."""
    if request.param == "processes":
        with dask.config.set(scheduler="processes", num_workers=2):
            yield request.param
    else:
        with local_cluster() as cluster, distributed.Client(cluster):
            yield request.param


def voxels():
    return np.random.default_rng(7).integers(0, 200, SHAPE, np.uint8)


def stored(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("x*.wkw"))}


def test_a_function(runner, tmp_path):
    wkwdask.write(tmp_path / "a" / "1", (3, 0, 5), voxels(), **OPTIONS)
    smooth = partial(ndimage.gaussian_filter, sigma=1)
    wkwdask.apply(smooth, tmp_path / "a" / "1", tmp_path / "b" / "1", halo=4, chunks=16)
    assert wkwdask.apply(np.max, tmp_path / "b" / "1", chunks=16, combine=max) == smooth(voxels()).max()
    with dask.config.set(scheduler="synchronous"):
        wkwdask.apply(smooth, tmp_path / "a" / "1", tmp_path / "c" / "1", halo=4, chunks=16)
    assert stored(tmp_path / "b") == stored(tmp_path / "c")


@pytest.mark.parametrize("memory", [1 << 40, 4 << 13])
def test_sections_into_a_region(runner, tmp_path, monkeypatch, memory):
    """With little memory they go through scratch files, which other processes read."""
    monkeypatch.setattr("wkwdask.graphs.write.memory_per_task", lambda: memory)
    wkwdask.create(tmp_path / "1", ((0, 0, 0), (96, 64, 96)), np.uint8, **OPTIONS)
    low = (11, 2, 13)
    region = (low, tuple(a + n for a, n in zip(low, SHAPE, strict=True)))
    report = wkwdask.to_wkw(da.from_array(voxels(), chunks=(70, 50, 1)), tmp_path / "1", region=region)
    assert ("scratch files" in report.note) == (memory < 1 << 20)
    with dask.config.set(scheduler="synchronous"):
        wkwdask.create(tmp_path / "one" / "1", ((0, 0, 0), (96, 64, 96)), np.uint8, **OPTIONS)
        wkwdask.write(tmp_path / "one" / "1", None, voxels(), region=region)
    assert stored(tmp_path / "1") == stored(tmp_path / "one" / "1")


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("runner", ["cluster"], indirect=True)
def test_a_chunk_that_fails(tmp_path):
    """On a cluster the others are written, and are not computed again; each chunk leaves a byte where it was computed."""
    trace = tmp_path / "trace"
    trace.mkdir()
    whole = da.from_array(np.pad(voxels(), ((0, 26), (0, 14), (0, 68))), chunks=(32, 32, 32))
    array = [da.map_blocks(fail_first, whole, trace, fails, dtype=np.uint8, meta=np.empty((0, 0, 0), np.uint8)) for fails in (True, False)]
    with pytest.raises(ZeroDivisionError, match="the first chunk") as caught:
        wkwdask.to_wkw(array[0], tmp_path / "ds" / "1", **OPTIONS)
    assert any("all tasks that do not depend on them are done" in note for note in caught.value.__notes__)
    assert caught.value.exit_code == 3
    assert not (tmp_path / "ds" / "1").exists()
    assert len(list(trace.iterdir())) == 3 * 2 * 4 - 1
    wkwdask.to_wkw(array[1], tmp_path / "ds" / "1", existing="resume", **OPTIONS)
    assert all(path.stat().st_size == 1 for path in trace.iterdir())
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds" / "1", ((0, 0, 0), SHAPE))[0], voxels())


def test_going_on(runner, tmp_path):
    """Files that came to their end before something failed are not made again."""
    whole = da.from_array(np.pad(voxels(), ((0, 26), (0, 14), (0, 68))), chunks=(32, 32, 32))
    array = [da.map_blocks(fail_behind, whole, limit, dtype=np.uint8, meta=np.empty((0, 0, 0), np.uint8)) for limit in (96, None)]
    with pytest.raises(OverflowError):
        wkwdask.to_wkw(array[0], tmp_path / "1", **OPTIONS)
    assert not (tmp_path / "1").exists()
    report = wkwdask.to_wkw(array[1], tmp_path / "1", existing="resume", **OPTIONS)
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "1", ((0, 0, 0), SHAPE))[0], voxels())
    assert report.files == 3 * 2 * 2
