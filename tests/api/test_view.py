"""``wkwdask.view``: objects of notebooks, and arrays that are computed chunk by chunk while they
are looked at."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import subprocess
import sys
import threading
import urllib.request
from urllib.error import HTTPError, URLError

import dask.array as da
import numpy as np
import pytest
import xarray as xr

import wkwdask


@pytest.fixture(autouse=True)
def _no_client(monkeypatch):
    monkeypatch.setattr("wkwdask.viewer.view.client_files", dict)
    monkeypatch.delenv("JUPYTERHUB_SERVICE_PREFIX", raising=False)


def fetch(view, path="", **headers):
    url = f"http://127.0.0.1:{view.port}/{view.url.split('/')[-2]}/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return answer.read()


def state_of(view):
    return json.loads(re.search(rb"const state = (.*);\n", fetch(view))[1])


def document(view, number=0, path="1"):
    return json.loads(fetch(view, f"data/{number}/{path}/zarr.json"))


def chunk(view, key, number=0):
    found = document(view, number)
    shape = found["chunk_grid"]["configuration"]["chunk_shape"]
    return (
        np.frombuffer(fetch(view, f"data/{number}/1/c/{key}"), found["data_type"]).reshape(shape).T
    )


def counted(shape, chunks, dtype=np.uint8):
    """Return an array whose chunks are their numbers, and the list of those that were computed."""
    computed = []

    def compute(block_info=None):
        where = block_info[None]
        computed.append(where["chunk-location"])
        return np.full(
            where["chunk-shape"],
            (1 + np.ravel_multi_index(where["chunk-location"], where["num-chunks"])) % 256,
            dtype,
        )

    normalized = da.core.normalize_chunks(chunks, shape, dtype=dtype)
    return da.map_blocks(
        compute, chunks=normalized, dtype=dtype, meta=np.empty((0, 0, 0), dtype)
    ), computed


def test_nothing_is_computed_before_it_is_asked_for():
    array, computed = counted((4096, 4096, 2048), 128)
    with wkwdask.view(array) as view:
        assert computed == []
        assert (
            chunk(view, "15/31/30") == (1 + np.ravel_multi_index((30, 31, 7), (32, 32, 16))) % 256
        ).all()
        assert computed == [(30, 31, 7)]
        state = state_of(view)
        assert len(computed) <= 1 + 9  # the contrast is that of the middle
        assert state["crossSectionScale"] == 4  # there are no coarser mags


def test_a_chunk_is_computed_once_for_all_that_is_asked_of_it():
    array, computed = counted((400, 256, 256), (200, 256, 256))
    with wkwdask.view(array) as view:
        for key in ("0/0/0", "0/1/0", "1/0/0"):
            assert (chunk(view, key) == 1).all()
        assert computed == [(0, 0, 0)]
        found = chunk(view, "0/0/1")  # both chunks
        np.testing.assert_array_equal(found[[0, 71, 72, -1], 0, 0], [1, 1, 2, 2])
        assert computed == [(0, 0, 0), (1, 0, 0)]


def test_the_cache_is_bounded():
    array, computed = counted((128, 128, 256), (128, 128, 64))
    with wkwdask.view(array, cache_nbytes=2 * 128 * 128 * 64) as view:
        for key in ("0/0/0", "1/0/0", "2/0/0", "0/0/0"):
            chunk(view, key)
    assert computed == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 0)]


def test_chunks_that_exceed_the_cache_are_read_in_part():
    array = da.ones((512, 512, 512), np.uint8, chunks=512)
    with wkwdask.view(array, cache_nbytes=1 << 20) as view:
        assert (chunk(view, "0/0/0") == 1).all()


@pytest.mark.parametrize(
    ("dtype", "channels", "kind"),
    [
        ("uint8", 3, "image"),
        ("bool", 1, "segmentation"),
        ("int64", 1, "segmentation"),
        ("float64", 2, "image"),
    ],
)
@pytest.mark.needs("tensorstore")
def test_other_software_reads_served_arrays(dtype, channels, kind):
    import tensorstore

    voxels = (
        np.random.default_rng(1)
        .integers(0, 2 if dtype == "bool" else 99, (channels, 150, 37, 70))
        .astype(dtype)
    )
    arrays = {"memory": voxels, "dask": da.from_array(voxels, chunks=(2, 33, 20, 64))}
    with wkwdask.view(arrays, offset=(-3, 0, 100), voxel_size=(4, 4, 35)) as view:
        assert [(layer["name"], layer["type"]) for layer in state_of(view)["layers"]] == [
            ("memory", kind),
            ("dask", kind),
        ]
        for number in (0, 1):
            base = f"http://127.0.0.1:{view.port}/{view.url.split('/')[-2]}/data/{number}/1/"
            found = np.asarray(
                tensorstore.open({"driver": "zarr3", "kvstore": base}, read=True, open=True)
                .result()
                .read()
                .result()
            )
            np.testing.assert_array_equal(
                found.reshape(channels, *found.shape[-3:]).transpose(0, 3, 2, 1), voxels
            )


def test_arrays_have_the_place_of_their_coordinates_and_the_voxel_size_of_the_others(tmp_path):
    wkwdask.to_wkw(
        np.ones((64, 64, 64), np.uint8),
        tmp_path / "ds" / "raw" / "1",
        offset=(32, 0, 0),
        voxel_size=(4, 4, 35),
    )
    opened = xr.open_dataarray(tmp_path / "ds", engine="wkw", layer="raw", chunks={})
    dataset = wkwdask.open_dataset(tmp_path / "ds")
    with wkwdask.view(
        dataset.path, {"mean": opened.astype("float32") / 2}, np.ones((64, 64, 64), np.uint8)
    ) as view:
        images = [
            json.loads(fetch(view, f"data/{n}/zarr.json"))["attributes"]["ome"]["multiscales"][0]
            for n in range(3)
        ]
        corners = [
            tuple(
                step["translation"][::-1]
                for step in image["datasets"][0]["coordinateTransformations"][1:]
            )
            for image in images
        ]
        # a cube of blocks begins at 0
        assert corners == [([0.0, 0.0, 0.0],), ([128.0, 0.0, 0.0],), ([0.0, 0.0, 0.0],)]
        assert [image["coordinateTransformations"] for image in images] == [
            [{"type": "translation", "translation": [17.5, 2.0, 2.0]}]
        ] * 3
        assert view.names == ("raw", "mean", "array")
    with dataset["raw"].view() as view, dataset.view(layer="raw") as other:
        assert view.names == other.names == ("raw",)


def test_it_works_beside_a_running_event_loop():
    async def run():
        with wkwdask.view(np.ones((10, 10, 10), np.uint8)) as view:
            return await asyncio.to_thread(fetch, view)

    assert b"location.replace" in asyncio.run(run())


def test_the_server_stops_with_the_object():
    view = wkwdask.view(np.ones((10, 10, 10), np.uint8))
    assert f'<iframe src="{view.url}"' in view._repr_html_()
    fetch(view)
    port = view.port
    view.close()
    view.close()
    assert repr(view) == "View of array: closed"
    assert "iframe" not in view._repr_html_()
    forgotten = wkwdask.view(np.ones((10, 10, 10), np.uint8), port=port)
    fetch(forgotten)
    del forgotten
    gc.collect()
    with pytest.raises(URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)


def test_threads_end_with_the_view():
    before = set(threading.enumerate())
    with wkwdask.view(np.ones((10, 10, 10), np.uint8)) as view:
        assert chunk(view, "0/0/0").any()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert set(threading.enumerate()) <= before


_COLLECTED = """
import gc, threading
import numpy as np
import wkwdask

gc.disable()
view = wkwdask.view(np.ones((10, 10, 10), np.uint8))
(thread,) = [each for each in threading.enumerate() if each.name == "wkwdask-view"]
(loop,) = [it._loop for it in gc.get_objects() if type(it).__name__ == "ViewerServer"]
cycle = [view]
cycle.append(cycle)
del view, cycle
loop.call_soon_threadsafe(gc.collect)
thread.join(10)
assert not thread.is_alive()
"""
_FORKED = """
import os
import numpy as np
import wkwdask

view = wkwdask.view(np.ones((10, 10, 10), np.uint8))
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("script", [_COLLECTED, _FORKED])
def test_the_thread_of_the_server_and_forked_processes_may_close_it(script):
    script = f"import wkwdask.viewer.view as v; v.client_files = dict\n{script}"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_behind_a_proxy_the_link_is_that_of_the_proxy(monkeypatch):
    array = np.ones((10, 10, 10), np.uint8)
    with wkwdask.view(array) as view, pytest.raises(HTTPError, match="403"):
        fetch(view, Host="hub.example")
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/me/")
    with (
        wkwdask.view(array) as view,
        wkwdask.view(array, proxy="https://jupyter.example/proxy/") as other,
    ):
        assert re.fullmatch(rf"/user/me/proxy/{view.port}/[\w-]{{32}}/", view.url)
        assert other.url.startswith(f"https://jupyter.example/proxy/{other.port}/")
        assert b"location.href" in fetch(view, Host="hub.example")


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        (np.ones((4, 4, 4), complex), ValueError, "numbers"),
        (np.ones((4, 0, 4)), ValueError, "numbers"),
        (np.ones((4, 4)), ValueError, "shape"),
        (None, TypeError, "expected a path"),
    ],
)
def test_what_cannot_be_shown_is_refused(source, error, match):
    with pytest.raises(error, match=match):
        wkwdask.view(source)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"position": (1.5, 2, 3)}, ValueError, "position must be three whole numbers"),
        ({"position": "abc"}, ValueError, "position must be three whole numbers"),
        ({"position": 5}, ValueError, "position must be three whole numbers"),
        ({"category": "labels"}, ValueError, 'category must be "color" or "segmentation"'),
        ({"port": "x"}, TypeError, "port must be a whole number, got 'x'"),
        ({"port": 70000}, ValueError, "port must be below 65536, got 70000"),
    ],
)
def test_wrong_options_are_refused_at_once(options, error, match):
    with pytest.raises(error, match=match):
        wkwdask.view(np.ones((4, 4, 4)), **options)


def test_a_wrong_name_of_a_layer_is_refused(tmp_path):
    wkwdask.save(np.ones((4, 4, 4), np.uint8), tmp_path / "ds" / "em" / "1", voxel_size=(1, 1, 1))
    with pytest.raises(TypeError, match="layer must be the name of a layer, got 5"):
        wkwdask.view(tmp_path / "ds", layer=5)


def test_a_port_in_use_is_named():
    with wkwdask.view(np.ones((4, 4, 4))) as view:
        text = f"port {view.port}: Address already in use; port=0 takes any free one"
        with pytest.raises(OSError, match=text):
            wkwdask.view(np.ones((4, 4, 4)), port=view.port)
