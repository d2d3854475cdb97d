"""WKW behind a web server: the voxels are those of the source, requests are few, and every failure
is an error."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inside import limited
from support.precomputed_volumes import write_volume
from support.range_server import range_server
from support.shelf import empty_shelf

import wkwdask
from wkwdask.errors import (
    AccessWarning,
    CorruptError,
    FormatError,
    MissingError,
    TruncatedError,
    UnsupportedError,
)
from wkwdask.store.objects import remote

pytest.importorskip("obstore", reason="reads http")

SHAPE = (90, 40, 50)


def sparse(dtype="uint8", channels=1, shape=SHAPE, seed=0):
    """Voxels with files, blocks and rows that are zero."""
    rng = np.random.default_rng(seed)
    array = rng.integers(0, 200, (channels, *shape)).astype(dtype)
    array[:, :33] = 0
    array[:, 40:, 16:32] = 0
    return array


def write(folder, array, **options):
    wkwdask.create_dataset(folder, (4, 4, 35), existing="keep")
    wkwdask.to_wkw(array, folder / "color" / "1", category="color", offset=(16, 0, 48), **options)


@pytest.fixture(autouse=True)
def _without_pauses():
    with limited(pauses=(0.0, 0.0)):
        yield


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server of a dataset with mags 1 and 2-2-1, whose files have 32^3 voxels."""
    folder = tmp_path_factory.mktemp("served")
    write(folder / "ds", sparse(), block_len=8, file_len=4)
    wkwdask.build_pyramid(folder / "ds", "color", mags=["2-2-1"])
    with range_server(folder) as server:
        yield server


@pytest.mark.parametrize(
    ("dtype", "channels", "options"),
    [
        ("uint8", 1, {"block_len": 8, "file_len": 4}),
        ("uint8", 3, {"block_len": 16, "file_len": 2, "compression": "lz4"}),
        ("float32", 1, {"block_len": 8, "file_len": 8, "compression": "raw"}),
        ("uint64", 2, {"block_len": 8, "file_len": 1}),  # each file is one block
        ("int16", 1, {"block_len": 2, "file_len": 64}),  # several pages of a jump table
    ],
)
def test_voxels_are_those_of_the_source(tmp_path, dtype, channels, options):
    array = sparse(dtype, channels)
    write(tmp_path / "ds", array, **options)
    with range_server(tmp_path) as server:
        url = f"{server.url}/ds"
        np.testing.assert_array_equal(wkwdask.read(url), array)
        np.testing.assert_array_equal(wkwdask.read(f"{url}/color/1"), array)
        lazy = wkwdask.open(url, chunks=(32, 32, 32))
        np.testing.assert_array_equal(
            pickle.loads(pickle.dumps(lazy)).compute(scheduler="threads"), array
        )
        boxes = [
            ((16 + n, n, 48 + n), (16 + n + size, n + size, 48 + n + size))
            for n, size in ((0, 9), (20, 20), (25, 15))
        ]
        for (low, high), voxels in zip(boxes, wkwdask.read_many(url, boxes), strict=True):
            np.testing.assert_array_equal(
                voxels,
                array[
                    :,
                    *(slice(a - o, b - o) for a, b, o in zip(low, high, (16, 0, 48), strict=True)),
                ],
            )
        points = np.array([(0, 0, 0), (89, 39, 49), (50, 30, 30), (50, 30, 31)])
        np.testing.assert_array_equal(
            wkwdask.sample(url, np.add(points, (16, 0, 48))).reshape(4, channels),
            array[:, *points.T].T,
        )


@given(st.data())
def test_any_box(served, data):
    low = [data.draw(st.integers(0, n - 1)) for n in SHAPE]
    high = [data.draw(st.integers(a + 1, n)) for a, n in zip(low, SHAPE, strict=True)]
    found = wkwdask.read(
        f"{served.url}/ds/color/1",
        (np.add(low, (16, 0, 48)).tolist(), np.add(high, (16, 0, 48)).tolist()),
    )
    np.testing.assert_array_equal(found, sparse()[:, *map(slice, low, high)])


def test_requests_of_a_slice(tmp_path, monkeypatch):
    # on a busy machine, documents would be read again
    monkeypatch.setattr(remote, "_TRUSTED_SECONDS", 600.0)
    array = np.random.default_rng(1).integers(0, 255, (1, 256, 256, 256), np.uint8)
    write(tmp_path / "ds", array, block_len=32, file_len=16)
    data_file = tmp_path / "ds/color/1/z0/y0/x0.wkw"
    with range_server(tmp_path) as server:
        url = f"{server.url}/ds/color/1"
        wkwdask.sample(url, [(16, 0, 48)])
        server.requests.clear()
        found = wkwdask.read(url, ((16, 0, 100), (272, 256, 101)), mag=1)
        np.testing.assert_array_equal(found[0, :, :, 0], array[0, :, :, 52])
        spans = [
            tuple(map(int, span.removeprefix("bytes=").split("-")))
            for path, span in server.requests
            if path.endswith("x0.wkw")
        ]
        assert spans[0][0] == 0  # header and jump table
        assert spans[0][1] >= 16 + 8 * 16**3 - 1
        assert sum(stop - start + 1 for start, stop in spans) < data_file.stat().st_size / 3
        # one file, and at most one range for four blocks
        assert len(spans) == len(server.requests) <= 1 + 64
        server.requests.clear()
        wkwdask.read(url, ((16, 0, 100), (272, 256, 101)), mag=1)
        assert len(server.requests) == len(spans) - 1  # the table is known


def test_requests_of_a_whole_mag(tmp_path):
    write(tmp_path / "ds", sparse(shape=(200, 100, 100)), block_len=32, file_len=2)
    files = list((tmp_path / "ds/color/1").rglob("x*.wkw"))
    with range_server(tmp_path) as server:
        wkwdask.sample(f"{server.url}/ds", [(16, 0, 48)])
        server.requests.clear()
        wkwdask.read(f"{server.url}/ds", ((16, 0, 48), (216, 100, 148)), mag=1)
        names = [path for path, _ in server.requests if "/z" in path]
        assert all(names.count(f"/{file.relative_to(tmp_path)}") <= 2 for file in files)
        assert len(set(names)) <= 4 * 2 * 3  # each file of the box, absent or not
        server.requests.clear()
        assert not wkwdask.read(f"{server.url}/ds", ((16, 0, 48), (30, 100, 148)), mag=1).any()
        # absent files are remembered
        assert not [
            path for path, _ in server.requests if not (tmp_path / path.lstrip("/")).exists()
        ]


def test_refused_files_are_absent_while_the_header_is_readable(tmp_path):
    array = sparse()
    write(tmp_path / "ds", array, block_len=8, file_len=4)
    with range_server(tmp_path, absent=403) as server:
        with pytest.warns(AccessWarning, match=r"while header\.wkw is readable"):
            np.testing.assert_array_equal(wkwdask.read(f"{server.url}/ds"), array)
        with pytest.raises(PermissionError, match="403 Forbidden"):
            wkwdask.open(f"{server.url}/none")


def read_two(url):
    return wkwdask.read_many(url, [((16, 0, 48), (60, 40, 60)), ((20, 0, 48), (64, 40, 60))])


@pytest.mark.parametrize("read", [wkwdask.read, read_two])
def test_damage_is_an_error_that_names_the_file(tmp_path, read):
    write(tmp_path / "ds", sparse(), block_len=8, file_len=8)
    path = tmp_path / "ds/color/1/z0/y0/x0.wkw"
    whole = path.read_bytes()
    with range_server(tmp_path) as server:
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(
            TruncatedError, match=r"http://.*/z0/y0/x0\.wkw: byte \d+: block \d+ ends at byte"
        ):
            read(f"{server.url}/ds/color/1")
        path.write_bytes(b"WKX" + whole[3:])
        with pytest.raises(CorruptError, match=r"http://.*/z0/y0/x0\.wkw: byte 0: expected magic"):
            read(f"{server.url}/ds/color/../color/1")
        path.write_bytes(whole[:4200] + bytes([255]) * (len(whole) - 4200))
        with pytest.raises(FormatError, match=r"http://.*/z0/y0/x0\.wkw: block \d+ at byte \d+"):
            read(f"{server.url}/ds")


def test_paths_in_the_json(tmp_path):
    """Relative paths count from the dataset, URLs are followed, mags without a path have a
    conventional name, and local paths are not followed."""
    array = sparse()
    write(tmp_path / "store", array, block_len=8, file_len=4)
    (tmp_path / "ds").mkdir()
    document = json.loads((tmp_path / "store/datasource-properties.json").read_text())
    mag = document["dataLayers"][0]["mags"][0]

    def publish(path, folder="ds"):
        mag.pop("path", None)
        mag.update({} if path is None else {"path": path})
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "datasource-properties.json").write_text(json.dumps(document))

    with range_server(tmp_path) as server:
        publish("../store/color/1", "relative")
        np.testing.assert_array_equal(wkwdask.read(f"{server.url}/relative"), array)
        publish(f"{server.url}/store/color/1", "absolute")
        np.testing.assert_array_equal(wkwdask.read(f"{server.url}/absolute"), array)
        # a local dataset with a remote mag
        np.testing.assert_array_equal(wkwdask.read(tmp_path / "absolute"), array)
        (tmp_path / "bare/color").mkdir(parents=True)
        (tmp_path / "store/color/1").rename(tmp_path / "bare/color/1-1-1")
        publish(None, "bare")
        np.testing.assert_array_equal(wkwdask.read(f"{server.url}/bare"), array)
        publish(str(tmp_path / "bare/color/1-1-1"), "local")
        with pytest.raises(UnsupportedError, match=r"at the local path .* which is not followed"):
            wkwdask.open(f"{server.url}/local", mag=1)


def test_layers_in_other_formats(tmp_path):
    array = sparse()
    wkwdask.to_zarr(array, tmp_path / "ds/zarr3/1", voxel_size=(4, 4, 35), chunk_shape=(16, 16, 16))
    wkwdask.to_n5(array, tmp_path / "ds/n5/1/s0", voxel_size=(4, 4, 35), chunk_shape=(16, 16, 16))
    layers = [
        {
            "name": kind,
            "category": "color",
            "dataFormat": kind,
            "elementClass": "uint8",
            "mags": [{"mag": [1, 1, 1], "path": f"./{kind}/1{level}"}],
            "boundingBox": {"topLeft": [0, 0, 0], "width": 90, "height": 40, "depth": 50},
        }
        for kind, level in (("zarr3", "/1"), ("n5", "/s0"))
    ]
    document = {"id": {"name": "ds", "team": ""}, "scale": [4, 4, 35], "dataLayers": layers}
    (tmp_path / "ds/datasource-properties.json").write_text(json.dumps(document))
    with range_server(tmp_path) as server:
        for kind in ("zarr3", "n5"):
            np.testing.assert_array_equal(
                wkwdask.read(f"{server.url}/ds", layer=kind, mag=1), array
            )


def test_other_protocols(tmp_path):
    """fsspec reads them: a file system in memory stands for ftp, sftp and others."""
    array = sparse()
    write(tmp_path / "ds", array, block_len=8, file_len=4)
    shelf = empty_shelf()
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        shelf.pipe(f"/{path.relative_to(tmp_path)}", path.read_bytes())
    np.testing.assert_array_equal(wkwdask.read("shelf://ds"), array)
    boxes = [((16, 0, 48), (60, 40, 60)), ((20, 0, 48), (64, 40, 60))]
    for found, expected in zip(
        wkwdask.read_many("shelf://ds/color/1", boxes),
        wkwdask.read_many(tmp_path / "ds", boxes),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)
    assert wkwdask.verify("shelf://ds").files == wkwdask.verify(tmp_path / "ds").files
    with pytest.raises(MissingError, match="no dataset"):
        wkwdask.open("shelf://none")
    empty_shelf()


def test_a_mag_without_a_dataset_says_what_it_needs(tmp_path):
    wkwdask.write(tmp_path / "alone", (0, 0, 0), np.ones((64, 64, 64), np.uint8), file_len=1)
    with range_server(tmp_path) as server:
        assert wkwdask.read(f"{server.url}/alone").all()  # the job that wrote it recorded its box
        (tmp_path / "alone/.wkwdask.json").unlink()
        with pytest.raises(
            UnsupportedError, match=r"cannot be listed.*needs a datasource-properties\.json"
        ):
            wkwdask.open(f"{server.url}//alone")


def test_verbs_read_from_a_server(served, tmp_path):
    url, array = f"{served.url}/ds", sparse()
    wkwdask.copy(url, tmp_path / "copy")
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "copy/color/1"), array)
    assert wkwdask.diff(url, tmp_path / "copy").equal
    wkwdask.rechunk(f"{url}/color/1", tmp_path / "chunks/color/1", file_len=2)
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "chunks/color/1"), array)
    wkwdask.convert(f"{url}/color/1", f"precomputed://{tmp_path}/em")
    np.testing.assert_array_equal(wkwdask.read(f"precomputed://{tmp_path}/em"), array)
    wkwdask.apply(lambda voxels: voxels + 1, [f"{url}/color/1"], tmp_path / "more/color/1")
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "more/color/1"), array + 1)
    layer = wkwdask.open_dataset(url)["color"]
    np.testing.assert_array_equal(layer.open().compute(scheduler="threads"), array)
    assert [mag.files for mag in wkwdask.info(url).layers[0].mags] == [None, None]
    wkwdask.preview(url, tmp_path / "em.png")
    assert (tmp_path / "em.png").stat().st_size


def test_verify(tmp_path):
    write(tmp_path / "ds", sparse(), block_len=8, file_len=4)
    wkwdask.to_zarr(
        sparse(),
        tmp_path / "em.zarr",
        voxel_size=(4, 4, 35),
        chunk_shape=(8, 8, 8),
        shard_shape=(32, 32, 32),
    )
    for kind, sharding in (("a", None), ("b", wkwdask.Sharding(3, 3, 1))):
        write_volume(tmp_path / kind, sparse(), "image", sharding=sharding)
    with range_server(tmp_path) as server:
        for url in (
            "{}/ds",
            "{}/ds/color/1",
            "zarr://{}/em.zarr",
            "precomputed://{}/a",
            "precomputed://{}/b",
        ):
            here, there = (wkwdask.verify(url.format(place)) for place in (tmp_path, server.url))
            assert there.is_sound
            assert (there.files, there.nbytes) == (here.files, here.nbytes)
        path = tmp_path / "ds/color/1/z1/y0/x1.wkw"
        path.write_bytes(path.read_bytes()[:-1])
        report = wkwdask.verify(f"{server.url}/ds")
        assert not report.is_sound
        assert f"{server.url}/ds/color/1/z1/y0/x1.wkw" in {fault.path for fault in report.faults}


def test_xarray(served):
    xr = pytest.importorskip("xarray")
    opened = xr.open_dataset(f"{served.url}/ds", engine="wkw", layer="color", mag=1)
    np.testing.assert_array_equal(opened["color"].values.reshape(SHAPE), sparse()[0])
    assert "2-2-1" in xr.open_datatree(f"{served.url}/ds", engine="wkw")["color"]


@pytest.mark.parametrize(
    "write",
    [
        lambda url: wkwdask.to_wkw(np.ones((8, 8, 8), np.uint8), f"{url}/new/1"),
        lambda url: wkwdask.write(f"{url}/color/1", (0, 0, 0), np.ones((8, 8, 8), np.uint8)),
        lambda url: wkwdask.build_pyramid(url, "color"),
        lambda url: wkwdask.upsample(url, "color"),
        lambda url: wkwdask.compress(url),
        lambda url: wkwdask.repair(url),
        lambda url: wkwdask.rm(f"{url}/color/1"),
        lambda url: wkwdask.create_dataset(f"{url}2", (1, 1, 1)),
        lambda url: wkwdask.open_dataset(url).remove_layer("color"),
        lambda url: wkwdask.copy(f"{url}/color/1", f"{url}/color2/1"),
    ],
)
def test_writing_is_one_clear_error(served, write):
    with pytest.raises(
        UnsupportedError,
        match=f"{served.url}.*(remote locations are read-only|nothing is removed there)",
    ):
        write(f"{served.url}/ds")


def test_missing_datasets(served):
    with pytest.raises(
        MissingError,
        match=(
            r"/none: no dataset, layer or mag of WEBKNOSSOS here; other formats need a prefix: "
            r"precomputed://http"
        ),
    ):
        wkwdask.open(f"{served.url}/none")
    with pytest.raises(MissingError, match="no mag 4"):
        wkwdask.open(f"{served.url}/ds", mag=4)
