"""Remote volumes: ranges, absent files, errors, drivers that are missing."""

from __future__ import annotations

import gzip
import pickle
import sys

import numpy as np
import pytest
from support.inside import limited
from support.precomputed_volumes import labels, write_volume
from support.range_server import range_server
from support.shelf import empty_shelf

import wkwdask
from wkwdask import Sharding
from wkwdask.errors import AccessWarning, MissingError, TruncatedError, UnsupportedError

ARRAY = labels()
SHARDED = Sharding(2, 2, 2, minishard_index_encoding="gzip", data_encoding="gzip")


@pytest.fixture(autouse=True)
def _limited(pauses=(0.0, 0.0)):
    with limited(pauses=(0.0, 0.0)):
        yield


@pytest.fixture
def memory():
    """An empty file system in memory."""
    yield empty_shelf()
    empty_shelf()


def test_a_driver_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"https://host/v: needs the package obstore.*wkwdask\[remote\]"
    ):
        wkwdask.open("precomputed://https://host/v")
    with pytest.raises(UnsupportedError, match="quux://host/v"):
        wkwdask.open("precomputed://quux://host/v")


@pytest.mark.needs("obstore")
@pytest.mark.parametrize("sharding", [None, SHARDED, Sharding(1, 2, 2, "murmurhash3_x86_128")])
def test_over_http(tmp_path, sharding):
    write_volume(tmp_path / "v", ARRAY, "segmentation", offset=(-5, 7, 100), sharding=sharding)
    with range_server(tmp_path) as server:
        url = f"precomputed://{server.url}/v"
        np.testing.assert_array_equal(wkwdask.read(url), ARRAY)
        array = wkwdask.open(url)
        assert wkwdask.info(url).scales[0].box.topleft == (-5, 7, 100)
        server.requests.clear()
        box = ((35, 37, 110), (36, 38, 111))
        assert wkwdask.read(url, box, mag=1).shape == (1, 1, 1, 1)
        names = [path for path, _ in server.requests]
        # info; the chunk; or shard index, minishard index and chunk
        assert len(names) == (2 if sharding is None else 4), names
        server.requests.clear()
        wkwdask.read(url, box, mag=1)
        assert len(server.requests) == 1  # the tables are known
        assert wkwdask.info(url).scales[0].files is None
        np.testing.assert_array_equal(
            pickle.loads(pickle.dumps(array)).compute(scheduler="synchronous"), ARRAY
        )
        assert wkwdask.open(url).name == array.name  # whichever opening


@pytest.mark.needs("obstore")
@pytest.mark.parametrize(("key", "path"), [("a#b", "a%23b"), ("a?b", "a%3Fb")])
def test_keys_that_would_end_a_url(tmp_path, key, path):
    write_volume(tmp_path / "v", ARRAY, "segmentation", key=key)
    (tmp_path / "v" / key).rename(tmp_path / "v" / path)
    with range_server(tmp_path) as server:
        found = wkwdask.read(f"precomputed://{server.url}/v", ((34, 24, 0), (46, 36, 8)))
    assert found.any()
    np.testing.assert_array_equal(found, ARRAY[:, 34:46, 24:36, :8])


@pytest.mark.needs("obstore")
def test_http_that_fails(tmp_path):
    write_volume(tmp_path / "v", ARRAY, "segmentation", sharding=SHARDED)
    with range_server(tmp_path) as server:
        url = f"precomputed://{server.url}/v"
        array = wkwdask.open(url)
        server.failures[:] = [500]
        np.testing.assert_array_equal(wkwdask.read(url), ARRAY)  # it is tried again
        server.failures[:] = [503] * 40
        with pytest.raises(OSError, match="cannot be read: 503"):
            wkwdask.open(url)
        server.failures[:] = [403] * 40
        with pytest.raises(OSError, match="403"):
            array.compute(scheduler="synchronous")
        server.failures.clear()
        with pytest.raises(MissingError, match=f"{server.url}/w/info: not found"):
            wkwdask.open(f"precomputed://{server.url}/w")
        path = max((tmp_path / "v" / "4_4_40").iterdir())
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(TruncatedError, match=f"{server.url}/v/4_4_40/{path.name}"):
            wkwdask.read(f"precomputed://{server.url}/v")


@pytest.mark.needs("obstore")
@pytest.mark.parametrize("sharding", [None, Sharding(1, 1, 6, data_encoding="gzip")])
def test_a_server_that_refuses_absent_files(tmp_path, sharding):
    """Buckets that may not be listed answer 403 where a file is absent: it is, as long as ``info``
    is readable."""
    array = labels((80, 70, 30))
    array[:, :48] = 0
    write_volume(tmp_path / "v", array, "segmentation", sharding=sharding)
    with range_server(tmp_path, absent=403) as server:
        with pytest.warns(
            AccessWarning, match=r"v/4_4_40/.*, while info is readable: they are treated as absent"
        ):
            np.testing.assert_array_equal(wkwdask.read(f"precomputed://{server.url}/v"), array)
        opened = wkwdask.open(f"precomputed://{server.url}/v")
        # without another warning
        assert not wkwdask.read(f"precomputed://{server.url}/v", ((0, 0, 0), (20, 20, 20))).any()
        with pytest.raises(PermissionError, match=r"403.*w/info"):
            wkwdask.open(f"precomputed://{server.url}/w")
        info = tmp_path / "v" / "info"
        info.rename(tmp_path / "info.kept")  # access is lost: nobody knows whether a chunk is there
        with pytest.raises(OSError, match="403"):
            opened[:, :20, :20, :20].compute(scheduler="synchronous")


@pytest.mark.needs("obstore")
def test_blocks_of_n5_that_are_refused(tmp_path):
    array = labels((80, 70, 30))
    wkwdask.to_n5(array, tmp_path / "v.n5" / "s0", voxel_size=(4, 4, 40), chunk_shape=(16, 16, 16))
    for path in (tmp_path / "v.n5" / "attributes.json",):
        path.unlink(missing_ok=True)
    with (
        range_server(tmp_path, absent=403) as server,
        pytest.warns(AccessWarning, match=r"while (s0/)?attributes\.json is readable"),
    ):
        np.testing.assert_array_equal(wkwdask.read(f"n5://{server.url}/v.n5/s0"), array)


@pytest.mark.needs("obstore")
def test_a_server_without_ranges(tmp_path):
    write_volume(tmp_path / "v", ARRAY, "segmentation", sharding=SHARDED)
    with (
        range_server(tmp_path, serves_ranges=False) as server,
        pytest.raises(UnsupportedError, match="does not support range requests"),
    ):
        wkwdask.read(f"precomputed://{server.url}/v")


def test_remote_absent_shards_and_endings(memory, tmp_path):
    for sharding, name in ((None, "a"), (SHARDED, "b")):
        write_volume(tmp_path / name, ARRAY, "segmentation", sharding=sharding)
        for path in (tmp_path / name).rglob("*"):
            if path.is_file():
                memory.pipe(f"/{name}/{path.relative_to(tmp_path / name)}", path.read_bytes())
        found = wkwdask.read(f"precomputed://shelf://{name}")
        np.testing.assert_array_equal(found, ARRAY)
    for path in list(memory.store):
        if path.startswith("/a/4_4_40/"):
            memory.pipe(f"{path}.gz", memory.store.pop(path).getvalue())
    for path in list(memory.store):
        if path.endswith(".gz"):
            memory.pipe(path, gzip.compress(memory.store[path].getvalue()))
    np.testing.assert_array_equal(wkwdask.read("precomputed://shelf://a"), ARRAY)


def test_redirect_to_a_local_path_is_not_followed(memory):
    memory.pipe("/v/info", b'{"redirect": "/etc"}')
    with pytest.raises(
        UnsupportedError, match="redirects from a remote volume to the local path /etc"
    ):
        wkwdask.open("precomputed://shelf://v")
