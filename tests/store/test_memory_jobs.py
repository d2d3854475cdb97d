"""Jobs in the memory of this process: on threads, beside each other, and refused where other
processes would run them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import dask
import numpy as np
import pytest
from support.inside import empty_memory

import wkwdask
from wkwdask.errors import ExistsError, MissingError, UnsupportedError

ARRAY = np.random.default_rng(0).integers(0, 99, (70, 40, 30)).astype(np.uint8)
OPTIONS = {"voxel_size": (4, 4, 8), "block_len": 8, "file_len": 2}


@pytest.fixture(autouse=True)
def _nothing_is_left():
    empty_memory()
    yield
    empty_memory()


def test_a_dataset_on_threads():
    with dask.config.set(scheduler="threads", num_workers=4):
        wkwdask.to_wkw(ARRAY, "memory://ds/color/1", **OPTIONS)
        wkwdask.build_pyramid("memory://ds", layer="color", mags=["2-2-1", "4-4-2"])
        np.testing.assert_array_equal(wkwdask.open("memory://ds/color/1").compute()[0], ARRAY)
        assert wkwdask.verify("memory://ds").is_sound
        with pytest.raises(ExistsError, match="memory://ds/color/1: already exists"):
            wkwdask.to_wkw(ARRAY, "memory://ds/color/1", **OPTIONS)
        wkwdask.to_wkw(ARRAY // 2, "memory://ds/color/1", existing="overwrite", **OPTIONS)
        np.testing.assert_array_equal(wkwdask.read("memory://ds/color/1")[0], ARRAY // 2)
        wkwdask.rm("memory://ds", layer="color", mags=["2-2-1"])
    assert [str(mag.mag) for mag in wkwdask.info("memory://ds").layers[0].mags] == ["1", "4-4-2"]
    with pytest.raises(MissingError, match="memory://other"):
        wkwdask.open("memory://other")


def test_from_memory_to_disk_and_back(tmp_path):
    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_wkw(ARRAY, "memory://ds/color/1", **OPTIONS)
        wkwdask.convert("memory://ds", f"precomputed://{tmp_path}/volume")
        wkwdask.convert(f"precomputed://{tmp_path}/volume", "memory://back", layer="color")
        np.testing.assert_array_equal(wkwdask.read("memory://back/color/1")[0], ARRAY)


def test_several_jobs_at_once():
    def write(n):
        wkwdask.to_wkw(ARRAY + np.uint8(n), f"memory://ds/color-{n}/1", **OPTIONS)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(8)))
    assert sorted(layer.name for layer in wkwdask.info("memory://ds").layers) == [
        f"color-{n}" for n in range(8)
    ]
    for n in range(8):
        np.testing.assert_array_equal(
            wkwdask.read(f"memory://ds/color-{n}/1")[0], ARRAY + np.uint8(n)
        )


def test_other_processes_are_refused(tmp_path):
    wkwdask.to_wkw(ARRAY, "memory://ds/color/1", **OPTIONS)
    with (
        dask.config.set(scheduler="processes"),
        pytest.raises(
            UnsupportedError, match=r"memory://.*other processes run needs a path on a file system"
        ),
    ):
        wkwdask.build_pyramid("memory://ds", layer="color")
    distributed = pytest.importorskip("distributed")
    with (
        distributed.Client(
            n_workers=1, processes=False, dashboard_address=":0", local_directory=tmp_path
        ),
        pytest.raises(
            UnsupportedError, match=r"memory://.*other processes run needs a path on a file system"
        ),
    ):
        wkwdask.to_wkw(wkwdask.open("memory://ds/color/1"), "memory://ds/seg/1", **OPTIONS)
    assert [layer.name for layer in wkwdask.info("memory://ds").layers] == ["color"]
