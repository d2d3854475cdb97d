"""One function for every format: the URL chooses it, and functions of formats are names for it."""

from __future__ import annotations

import json

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import wkwdask
from wkwdask.errors import ExistsError, UnsupportedError
from wkwdask.formats.opening import find
from wkwdask.store import documents

ARRAY = np.random.default_rng(0).integers(0, 99, (20, 12, 9)).astype(np.uint8)
SIZE = (4, 4, 40)


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("{}/ds/em/1", "ds/datasource-properties.json"),
        ("precomputed://{}/p", "p/info"),
        ("n5://{}/v/em/s0", "v/em/s0/attributes.json"),
        ("{}/v.n5/em/s0", "v.n5/em/s0/attributes.json"),
        pytest.param("zarr://{}/z", "z/1/zarr.json", marks=pytest.mark.needs("zarr")),
        pytest.param("{}/z.ome.zarr", "z.ome.zarr/1/zarr.json", marks=pytest.mark.needs("zarr")),
        pytest.param("{}/z.zarr", "z.zarr/1/zarr.json", marks=pytest.mark.needs("zarr")),
        pytest.param(
            "{}/z.ome.zarr/labels/cells",
            "z.ome.zarr/labels/cells/1/zarr.json",
            marks=pytest.mark.needs("zarr"),
        ),
    ],
)
def test_the_url_chooses_the_format(tmp_path, url, stored):
    array = ARRAY.astype(np.uint32) if "labels" in url else ARRAY
    report = wkwdask.save(
        da.from_array(array, chunks=8), url.format(tmp_path), offset=(1, 2, 3), voxel_size=SIZE
    )
    assert report.voxels == array.size
    assert (tmp_path / stored).exists()
    np.testing.assert_array_equal(
        wkwdask.read(url.format(tmp_path), ((1, 2, 3), (21, 14, 12)), mag=1)[0], array
    )


def test_an_existing_image_chooses_the_format(tmp_path):
    wkwdask.save(ARRAY, f"precomputed://{tmp_path}/p", voxel_size=SIZE)
    wkwdask.save(ARRAY[::2, ::2], tmp_path / "p", mag="2-2-1", chunk_shape=(8, 8, 8))
    assert [
        scale["resolution"] for scale in json.loads((tmp_path / "p" / "info").read_text())["scales"]
    ] == [[4, 4, 40], [8, 8, 40]]
    wkwdask.save(ARRAY[:4, :4, :4] + 1, tmp_path / "p", region=((2, 2, 2), (6, 6, 6)))
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "p", ((2, 2, 2), (6, 6, 6)))[0], ARRAY[:4, :4, :4] + 1
    )


def test_names_for_one_format_do_the_same(tmp_path):
    wkwdask.to_precomputed(
        ARRAY, tmp_path / "a", voxel_size=SIZE, compression="gzip", type="segmentation"
    )
    wkwdask.save(
        ARRAY,
        f"precomputed://{tmp_path}/b",
        voxel_size=SIZE,
        compression="gzip",
        category="segmentation",
    )
    a, b = (
        {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("[!.]*")
            if path.is_file()
        }
        for folder in (tmp_path / "a", tmp_path / "b")
    )
    assert a == b
    assert any(path.suffix == ".gz" for path in a)
    # an interrupted or finished job of one name is one of the other
    note = wkwdask.save(
        ARRAY,
        f"precomputed://{tmp_path}/a",
        voxel_size=SIZE,
        compression="gzip",
        category="segmentation",
        existing="resume",
    ).note
    assert "nothing to do" in note


def test_delayed(tmp_path):
    delayed = wkwdask.save(ARRAY, tmp_path / "v.n5" / "em" / "s0", voxel_size=SIZE, compute=False)
    assert not (tmp_path / "v.n5" / "em" / "s0").exists()
    assert delayed.compute().voxels == ARRAY.size


@pytest.mark.needs("zarr")
def test_a_mag_that_the_json_does_not_list_yet_is_completed(tmp_path, monkeypatch):
    """The mag of a Zarr layer is in its place, and the job has failed before the JSON named it."""
    dataset = wkwdask.create_dataset(tmp_path / "ds", SIZE)
    dataset.add_layer("em", "color", "uint8", (5, 6, 7, *ARRAY.shape), data_format="zarr3")
    url = tmp_path / "ds" / "em" / "1"

    def fail(path, data):
        raise OSError("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(documents, "publish_bytes", fail)
        with pytest.raises(OSError, match="connection broke"):
            wkwdask.save(ARRAY, url, offset=(5, 6, 7))
    assert (url / "zarr.json").exists()
    wkwdask.save(ARRAY, url, offset=(5, 6, 7))
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds", mag=1)[0], ARRAY)
    assert not [path for path in (url.parent).iterdir() if "job" in path.name]


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
@pytest.mark.parametrize(
    "url",
    [
        "ds/em/1",
        "n5://v.n5/em",
        "precomputed://v",
        pytest.param("zarr://v.zarr", marks=pytest.mark.needs("zarr")),
    ],
)
def test_a_voxel_size_of_any_numbers(tmp_path, monkeypatch, url, dtype):
    monkeypatch.chdir(tmp_path)
    wkwdask.save(ARRAY, url, voxel_size=np.array([4, 4, 40], dtype))
    (image,) = find(url).layers
    assert image.voxel_size_of(image.volume(next(iter(image.mags)))) == (4, 4, 40)


@pytest.mark.needs("zarr")
def test_an_error_shows_a_voxel_size_of_numpy_as_plain_numbers(tmp_path):
    url = tmp_path / "v.ome.zarr"
    wkwdask.save(ARRAY, url, voxel_size=SIZE)
    with pytest.raises(ValueError, match=r"got voxel_size \(2\.0, 2\.0, 40\.0\)$"):
        wkwdask.upsample(url, voxel_size=np.array([2.0, 2, 40]))


def test_what_is_refused(tmp_path):
    wkwdask.save(ARRAY, tmp_path / "v.n5" / "em" / "s0", voxel_size=SIZE)
    with pytest.raises(ExistsError):
        wkwdask.save(ARRAY, tmp_path / "v.n5" / "em" / "s0", voxel_size=SIZE)
    with pytest.raises(ValueError, match="n5 has no option file_len"):
        wkwdask.save(ARRAY, tmp_path / "v.n5" / "em" / "s1", file_len=2)
    with pytest.raises(ValueError, match="N5 does not store a category"):
        wkwdask.save(ARRAY, tmp_path / "v.n5" / "em" / "s1", category="color")
    with pytest.raises(ValueError, match="mag= does not apply to WKW"):
        wkwdask.save(ARRAY, tmp_path / "ds" / "em" / "1", mag=1)
    with pytest.raises(ValueError, match=r"named as N5, but to_wkw\(\) writes WKW; use save\(\)"):
        wkwdask.to_wkw(ARRAY, f"n5://{tmp_path}/v.n5/em/s1")
    with pytest.raises(UnsupportedError, match="remote locations are read-only"):
        wkwdask.save(ARRAY, "precomputed://https://host/em", voxel_size=SIZE)


def test_of_data_arrays(tmp_path):
    wkwdask.save(ARRAY, tmp_path / "ds" / "em" / "1", offset=(1, 2, 3), voxel_size=SIZE)
    array = xr.open_dataarray(tmp_path / "ds", engine="wkw", layer="em")
    # position and voxel size are those of the coordinates
    array.wkw.save(f"precomputed://{tmp_path}/p")
    info = json.loads((tmp_path / "p" / "info").read_text())
    assert (info["scales"][0]["voxel_offset"], info["scales"][0]["resolution"]) == (
        [1, 2, 3],
        [4, 4, 40],
    )
    np.testing.assert_array_equal(wkwdask.open(f"precomputed://{tmp_path}/p").compute()[0], ARRAY)


@pytest.mark.parametrize("name", ["out.npy", "out.TIF", "out.png", "out.h5", "out.mrc"])
def test_no_mag_is_named_like_a_file(tmp_path, name):
    wkwdask.save(ARRAY, tmp_path / "mag")
    for write in (
        lambda path: wkwdask.save(ARRAY, path),
        lambda path: wkwdask.copy(tmp_path / "mag", path),
        lambda path: wkwdask.rechunk(tmp_path / "mag", path),
        lambda path: wkwdask.remap(tmp_path / "mag", path, {1: 2}),
    ):
        with pytest.raises(
            ValueError, match=f"{name}: is named like a file, but would be a folder"
        ):
            write(tmp_path / name)
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["out.zarr", "out.n5", "out.n5/1"])
def test_no_wkw_is_named_like_another_format(tmp_path, name):
    wkwdask.save(ARRAY, tmp_path / "mag")
    for write in (
        lambda path: wkwdask.copy(tmp_path / "mag", path),
        lambda path: wkwdask.rechunk(tmp_path / "mag", path),
        lambda path: wkwdask.remap(tmp_path / "mag", path, {1: 2}),
    ):
        with pytest.raises(ValueError, match=f"{name}: is named like (OME-NGFF|N5); write"):
            write(tmp_path / name)
        assert not (tmp_path / name).exists()
