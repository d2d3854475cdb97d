"""Requests of a read: tables once, neighbours together, and never a whole large file."""

from __future__ import annotations

import json

import dask
import numpy as np
import pytest
from remote.volumes import FORMS, PARTS
from support import wkw_files
from support.inside import limited
from support.nginx import nginx, nginx_program
from support.proxy import proxy

import wkwdask

pytestmark = pytest.mark.needs("obstore")

BLOCK, EDGE = 16, 256
FILE = "z0/y0/x0.wkw"
SHARDED = [form for form in FORMS if "sharded" in form.name]
TABLE_NBYTES = 16 + 8 * (EDGE // BLOCK) ** 3


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A mag of one file of noise of 17 MB, and its voxels (x, y, z)."""
    folder = tmp_path_factory.mktemp("large")
    voxels = np.random.default_rng(0).integers(0, 256, (1, EDGE, EDGE, EDGE), np.uint8)
    path = folder / "ds" / "color" / "1" / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(wkw_files.encode_file(voxels, BLOCK))
    (folder / "ds/color/1/header.wkw").write_bytes(path.read_bytes()[:16])
    box = {"topLeft": [0, 0, 0], "width": EDGE, "height": EDGE, "depth": EDGE}
    layer = {
        "name": "color",
        "category": "color",
        "boundingBox": box,
        "elementClass": "uint8",
        "dataFormat": "wkw",
        "mags": [{"mag": 1, "cubeLength": EDGE}],
    }
    document = {
        "id": {"name": "ds", "team": ""},
        "scale": {"factor": [4, 4, 4], "unit": "nanometer"},
        "dataLayers": [layer],
    }
    (folder / "ds/datasource-properties.json").write_text(json.dumps(document))
    return folder, voxels[0]


@pytest.fixture
def noise(large, tmp_path):
    """A proxy in front of that mag, and its voxels."""
    if nginx_program() is None:
        pytest.skip("nginx is absent: apt-get install nginx-light")
    with nginx(large[0], tmp_path) as web, proxy(web.url) as running:
        yield running, large[1]


def of_file(far):
    """List the ranges that were requested of the file of voxels."""
    return [request.range for request in far.requests if request.path.endswith(FILE)]


def test_a_file_costs_one_request_for_its_table(noise):
    far, voxels = noise
    url = f"{far.url}/ds/color/1"
    found = wkwdask.read(url, ((3, 4, 5), (7, 8, 9)))
    np.testing.assert_array_equal(found[0], voxels[3:7, 4:8, 5:9])
    table, *block = of_file(far)
    first, last = map(int, table.removeprefix("bytes=").split("-"))
    assert first == 0
    assert TABLE_NBYTES <= last + 1 <= voxels.nbytes // 16  # it may bring some blocks along
    assert len(block) <= 1
    far.clear()
    np.testing.assert_array_equal(
        wkwdask.read(url, ((130, 4, 5), (131, 8, 9)))[0], voxels[130:131, 4:8, 5:9]
    )
    assert len(far.requests) == len(of_file(far)) == 1  # the table and all documents are known
    assert of_file(far) != [table]


def test_a_mag_is_opened_in_one_round_trip(web):
    form = FORMS[0]
    with proxy(web.url, latency=0.1) as far:
        wkwdask.open(form.url(far.url))
        assert sorted(request.path for request in far.requests) == [
            "/wkw/color/1/datasource-properties.json",
            "/wkw/color/1/header.wkw",
            "/wkw/color/datasource-properties.json",
            "/wkw/datasource-properties.json",
        ]
        assert {request.method for request in far.requests} == {"GET"}
        assert far.most_at_once == 4


@pytest.mark.parametrize("name", ["wkw", "wkw/color"])
def test_a_dataset_or_layer_is_opened_without_a_request_twice(far, name):
    wkwdask.open(f"{far.url}/{name}", layer="color", mag=1)
    requests = [(request.method, request.path) for request in far.requests]
    assert len(requests) == len(set(requests)) <= 5
    assert ("GET", "/wkw/color/1/header.wkw") in requests
    assert {method for method, _ in requests} == {"GET"}


@pytest.mark.parametrize(
    "name", ["ngff-0.4", "ngff-0.5", "n5", "precomputed", "precomputed-sharded"]
)
def test_no_document_is_requested_twice(far, name):
    (form,) = (form for form in FORMS if form.name == name)
    pytest.importorskip(form.needs, reason="writes the volume")
    wkwdask.open(form.url(far.url))
    requests = [(request.method, request.path) for request in far.requests]
    assert len(requests) == len(set(requests)) <= 10
    assert {method for method, _ in requests} == {"GET"}


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_slice_never_downloads_the_file(noise, axis):
    far, voxels = noise
    array = wkwdask.open(f"{far.url}/ds/color/1")
    place = tuple(100 if n == axis else slice(None) for n in range(3))
    far.clear()
    np.testing.assert_array_equal(array[(0, *place)].compute(), voxels[place])
    assert None not in of_file(far)
    assert far.nbytes() < voxels.nbytes // 3
    assert len(of_file(far)) <= 1 + 64  # 256 blocks lie in at most 64 runs of the Morton order


def test_a_whole_file_is_read_in_large_pieces(noise):
    far, voxels = noise
    np.testing.assert_array_equal(wkwdask.read(f"{far.url}/ds/color/1")[0], voxels)
    assert len(of_file(far)) <= 8
    assert far.nbytes() < 1.1 * voxels.nbytes


def test_points_of_a_file_share_its_table(noise):
    far, voxels = noise
    points = np.random.default_rng(1).integers(0, EDGE, (20, 3))
    np.testing.assert_array_equal(
        wkwdask.sample(f"{far.url}/ds/color/1", points), voxels[tuple(points.T)]
    )
    ranges = of_file(far)
    assert len(ranges) == len(set(ranges)) <= 1 + len(points)


@pytest.mark.parametrize("form", SHARDED, ids=str)
def test_points_of_a_shard_share_its_tables(web, form):
    pytest.importorskip(form.needs, reason="writes the volume")
    points = np.random.default_rng(1).integers(0, form.array().shape[1:], (20, 3))
    with proxy(web.url, latency=0.02) as far:
        found = wkwdask.sample(form.url(far.url), points + form.offset)
        np.testing.assert_array_equal(
            found.reshape(len(points), -1), form.array()[(slice(None), *points.T)].T
        )
        requests = [(request.path, request.range) for request in far.requests]
        assert len(requests) == len(set(requests))


@pytest.mark.parametrize("form", SHARDED, ids=str)
def test_a_whole_shard_is_one_request(far, form):
    pytest.importorskip(form.needs, reason="writes the volume")
    np.testing.assert_array_equal(wkwdask.read(form.url(far.url), form.box()), form.array())
    paths = [request.path for request in far.requests]
    assert len(paths) == len(set(paths))
    with limited(request_nbytes=500):  # less than a shard
        np.testing.assert_array_equal(wkwdask.read(form.url(far.url)), form.array())


def test_a_whole_wkw_file_is_one_request(web):
    voxels = np.random.default_rng(0).integers(0, 256, (64, 64, 128), np.uint8)
    # more bytes than are read with a table
    wkwdask.write(web.root / "whole" / "1", (0, 0, 0), voxels, file_len=2)
    with proxy(web.url) as far:
        np.testing.assert_array_equal(
            wkwdask.read(f"{far.url}/whole/1", ((0, 0, 0), voxels.shape))[0], voxels
        )
        assert sorted(
            name for name in far.names() if name.endswith(".wkw") and name != "header.wkw"
        ) == ["x0.wkw", "x0.wkw"]


def test_suffixes_of_few_absent_chunks_are_looked_for(far):
    (form,) = (form for form in FORMS if form.name == "precomputed")
    pytest.importorskip(form.needs, reason="writes the volume")
    url, corner = form.url(far.url), ((0, 0, 0), (1, 1, 1))
    assert not wkwdask.read(url, form.box(corner)).any()
    assert len(far.requests) <= 1 + 6  # info, and the names of the absent chunk
    far.clear()
    np.testing.assert_array_equal(wkwdask.read(url, form.box(PARTS[1])), form.crop(PARTS[1]))
    paths = [request.path for request in far.requests]
    # the names of the chunk in the middle, if no chunk was found before
    assert len(paths) - len(set(paths)) <= 6
    assert len([path for path in paths if path.endswith(".gz")]) <= 8


def test_levels_are_opened_at_the_same_time(web):
    image = web.root / "levels.ome.zarr"
    wkwdask.to_zarr(np.ones((64, 64, 64), np.uint8), image, voxel_size=(4, 4, 4))
    wkwdask.build_pyramid(image)
    with proxy(web.url, latency=0.05) as far:
        assert len(wkwdask.info(f"zarr://{far.url}/{image.name}").scales) >= 3
        assert far.most_at_once > 1


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_repeated_reads_do_not_fetch_documents_and_tables_again(far, form):
    if form.needs is not None:
        pytest.importorskip(form.needs, reason="writes the volume")
    url = form.url(far.url)
    np.testing.assert_array_equal(wkwdask.read(url, form.box(PARTS[3])), form.crop(PARTS[3]))
    first = [(request.path, request.range) for request in far.requests]
    far.clear()
    np.testing.assert_array_equal(wkwdask.read(url, form.box(PARTS[3])), form.crop(PARTS[3]))
    again = [(request.path, request.range) for request in far.requests]
    assert len(again) < len(first)
    assert set(again) <= set(first)
    assert not [
        path
        for path, _ in again
        if path.endswith((".json", "info", "header.wkw", ".zarray", ".zattrs"))
    ]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_files_are_requested_at_the_same_time(web, form):
    """Each waits for a while, and all of a box must not wait one after the other."""
    if form.needs is not None:
        pytest.importorskip(form.needs, reason="writes the volume")
    with proxy(web.url, latency=0.1) as far:
        url = form.url(far.url)
        wkwdask.read(url, form.box(PARTS[0]))
        far.clear()
        np.testing.assert_array_equal(wkwdask.read(url, form.box()), form.array())
        assert far.most_at_once > 1


def test_blocks_that_are_neighbours_come_together(noise):
    far, voxels = noise
    url = f"{far.url}/ds/color/1"
    wkwdask.read(url, ((0, 0, 0), (1, 1, 1)))
    far.clear()
    np.testing.assert_array_equal(
        wkwdask.read(url, ((0, 0, 0), (64, 64, 64)))[0], voxels[:64, :64, :64]
    )
    assert len(of_file(far)) == 1  # an aligned cube is one run of the file


def test_copied_blocks_are_requested_once(noise, tmp_path):
    far, voxels = noise
    source = f"{far.url}/ds"
    (planned,) = wkwdask.plan_convert(source, tmp_path / "em.ome.zarr", layer="color").mags
    assert planned.path.startswith("copies stored chunks")
    far.requests.clear()
    wkwdask.convert(source, tmp_path / "em.ome.zarr", layer="color")
    ranges = [tuple(map(int, text.removeprefix("bytes=").split("-"))) for text in of_file(far)]
    assert len(ranges) < 12
    assert sum(last + 1 - first for first, last in ranges) < 1.02 * voxels.nbytes
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "em.ome.zarr", mag=1)[0], voxels)
