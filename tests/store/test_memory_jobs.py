"""Jobs in buckets in the memory of this process: on threads, beside each other, and refused where
other processes would run them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import dask
import numpy as np
import pytest
from support.bucket_faults import empty_bucket

import wkwdask
from wkwdask.errors import ExistsError, MissingError, UnsupportedError
from wkwdask.model.store import Expected, State
from wkwdask.store.objects import writing
from wkwdask.store.objects.access import Access
from wkwdask.store.paths import MEMORY

ARRAY = np.random.default_rng(0).integers(0, 99, (70, 40, 30)).astype(np.uint8)
OPTIONS = {"voxel_size": (4, 4, 8), "chunk_shape": (8, 8, 8)}
EM = f"precomputed://{MEMORY}bucket/em"


@pytest.fixture(autouse=True)
def _nothing_is_left():
    with empty_bucket():
        yield


def test_an_image_on_threads():
    with dask.config.set(scheduler="threads", num_workers=4):
        wkwdask.save(ARRAY, EM, **OPTIONS)
        wkwdask.build_pyramid(EM, mags=["2-2-1", "4-4-2"])
        np.testing.assert_array_equal(wkwdask.open(EM, mag=1).compute()[0], ARRAY)
        assert wkwdask.verify(EM).is_sound
        with pytest.raises(ExistsError, match="already exists"):
            wkwdask.save(ARRAY, EM, **OPTIONS)
        wkwdask.save(ARRAY // 2, EM, existing="overwrite", **OPTIONS)
        np.testing.assert_array_equal(wkwdask.read(EM, mag=1)[0], ARRAY // 2)
    with pytest.raises(MissingError, match=f"{MEMORY}other"):
        wkwdask.open(f"precomputed://{MEMORY}other")


def test_from_memory_to_disk_and_back(tmp_path):
    with dask.config.set(scheduler="synchronous"):
        wkwdask.save(ARRAY, EM, **OPTIONS)
        wkwdask.convert(EM, tmp_path / "ds", layer="color")
        wkwdask.convert(tmp_path / "ds", f"{EM}-back", layer="color")
        np.testing.assert_array_equal(wkwdask.read(f"{EM}-back", mag=1)[0], ARRAY)


def test_several_jobs_at_once():
    def write(n):
        wkwdask.save(ARRAY + np.uint8(n), f"{EM}-{n}", **OPTIONS)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(8)))
    for n in range(8):
        np.testing.assert_array_equal(wkwdask.read(f"{EM}-{n}")[0], ARRAY + np.uint8(n))


def test_other_processes_are_refused(tmp_path):
    wkwdask.save(ARRAY, EM, **OPTIONS)
    refused = pytest.raises(
        UnsupportedError, match=f"{MEMORY}.*other processes run needs a path on a file system"
    )
    with dask.config.set(scheduler="processes"), refused:
        wkwdask.build_pyramid(EM)
    distributed = pytest.importorskip("distributed")
    with (
        distributed.Client(
            n_workers=1, processes=False, dashboard_address=":0", local_directory=tmp_path
        ),
        refused,
    ):
        wkwdask.save(wkwdask.open(EM), f"{EM}-copy", **OPTIONS)
    with pytest.raises(MissingError):
        wkwdask.open(EM, mag="2-2-1")


@pytest.mark.parametrize("found", [None, mock.Mock(writer="another")], ids=["absent", "another"])
def test_a_refused_write_without_conditions_is_repeated(found, monkeypatch):
    monkeypatch.setattr(writing, "_PAUSES_SECONDS", (0.0, 0.0))
    client, url = mock.Mock(), f"{MEMORY}bucket/file"
    client.head.return_value = found
    client.put_once.side_effect = [writing.RefusedPut(may_repeat=True), State("tag", None)]
    assert writing.put(client, url, b"", Expected.ANY, Access()) == State("tag", None)
    client.put_once.side_effect = writing.RefusedPut(may_repeat=True)
    with pytest.raises(OSError, match=r"refuses each write.*bucket/file"):
        writing.put(client, url, b"", Expected.ANY, Access())
