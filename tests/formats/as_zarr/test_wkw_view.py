"""WKW as Zarr without a copy: small files beside the data, and a store that holds nothing."""

from __future__ import annotations

import os
import pickle

import dask
import dask.array as da
import numpy as np
import pytest
from support.commands import run_here
from support.zarr_sources import VOXEL_SIZE, absolute, document, make_dataset, voxels

import wkwdask
from wkwdask.errors import ExistsError, MissingError, UnsupportedError

zarr = pytest.importorskip(
    "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
)

from zarr.registry import get_codec_class  # noqa: E402

try:
    get_codec_class("wkw")
except KeyError:
    pytest.skip(
        "the package is not installed, so that zarr does not find its codecs",
        allow_module_level=True,
    )

MAGS = {"color": ("1", "2-2-1", "4-4-2"), "neurons": ("1", "2-2-1", "4-4-2")}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    with dask.config.set(scheduler="synchronous"):
        return make_dataset(tmp_path_factory.mktemp("ds"))


@pytest.fixture
def dataset(original, tmp_path):
    """A dataset whose metadata can be changed: data files are linked, hard."""
    folder = tmp_path / "ds"
    for path in original.rglob("*"):
        target = folder / path.relative_to(original)
        if path.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)
    return folder


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def transforms(attributes, path):
    (entry,) = (
        entry for entry in attributes["ome"]["multiscales"][0]["datasets"] if entry["path"] == path
    )
    scale, translation = entry["coordinateTransformations"]
    return scale["scale"], translation["translation"]


# ----------------------------------------------------------------------------- files


def test_files(dataset):
    before = names(dataset)
    paths = wkwdask.write_zarr_view(dataset)
    assert set(names(dataset)) - set(before) >= {
        os.path.relpath(path, dataset) for path in paths if not os.path.islink(path)
    }
    group = zarr.open_group(str(dataset), mode="r")
    assert sorted(group.group_keys()) == ["color", "neurons"]
    for layer, mags in MAGS.items():
        for mag in mags:
            np.testing.assert_array_equal(
                group[f"{layer}/{mag}"][...], absolute(dataset / layer / mag)
            )
    color = zarr.open_group(str(dataset / "color"), mode="r")
    assert color.attrs["ome"]["multiscales"][0]["axes"][0] == {
        "name": "z",
        "type": "space",
        "unit": "nanometer",
    }
    assert transforms(color.attrs, "1") == ([40, 5, 4], [0, 0, 0])
    # half a voxel less half one of mag 1
    assert transforms(color.attrs, "4-4-2") == ([80, 20, 16], [20, 7.5, 6])
    assert color["labels"].attrs["ome"]["labels"] == ["neurons"]
    assert "image-label" in color["labels/neurons"].attrs["ome"]
    np.testing.assert_array_equal(
        color["labels/neurons/2-2-1"][...], absolute(dataset / "neurons" / "2-2-1")
    )
    assert wkwdask.write_zarr_view(dataset) == paths  # again, nothing changes
    assert set(wkwdask.remove_zarr_view(dataset)) == set(paths)
    assert names(dataset) == before
    assert wkwdask.remove_zarr_view(dataset) == ()


def test_verify_knows_them(dataset):
    before = [fault.kind for fault in wkwdask.verify(dataset).faults]
    wkwdask.write_zarr_view(dataset)
    assert [fault.kind for fault in wkwdask.verify(dataset).faults] == before


def test_other_zarr_stays(dataset):
    (dataset / "neurons" / "zarr.json").write_text(
        '{"zarr_format": 3, "node_type": "group", "attributes": {}}'
    )
    before = names(dataset)
    with pytest.raises(
        ExistsError, match=r"neurons/zarr\.json: already exists, and wkwdask did not write it"
    ):
        wkwdask.write_zarr_view(dataset)
    assert names(dataset) == before
    wkwdask.write_zarr_view(dataset, layer="color")
    wkwdask.remove_zarr_view(dataset)
    assert names(dataset) == before
    (dataset / "neurons" / "zarr.json").unlink()
    (dataset / "color" / "labels" / "neurons" / "1").mkdir(parents=True)
    with pytest.raises(ExistsError, match="expected a link to the array of a segmentation"):
        wkwdask.write_zarr_view(dataset)


def test_one_layer_and_one_mag(dataset):
    paths = wkwdask.write_zarr_view(dataset / "neurons")
    assert [os.path.relpath(path, dataset) for path in paths] == [
        *(f"neurons/{mag}/zarr.json" for mag in MAGS["neurons"]), "neurons/zarr.json",
    ]  # fmt: skip
    assert "image-label" in zarr.open_group(str(dataset / "neurons"), mode="r").attrs["ome"]
    assert len(wkwdask.write_zarr_view(dataset / "color" / "2-2-1")) == 1
    wkwdask.remove_zarr_view(dataset / "color" / "2-2-1")
    assert len(wkwdask.remove_zarr_view(dataset, layer="neurons")) == 4
    with pytest.raises(MissingError, match="no layer 'nuclei'; there are color, neurons"):
        wkwdask.write_zarr_view(dataset, layer="nuclei")


def test_a_view_follows(dataset):
    """A mag with a view can be replaced; then the view is written again."""
    wkwdask.write_zarr_view(dataset)
    wkwdask.to_wkw(
        voxels((20, 20, 20), seed=5),
        dataset / "color" / "1",
        existing="overwrite",
        offset=(0, 8, 0),
        block_len=4,
        file_len=4,
    )
    assert not (dataset / "color" / "1" / "zarr.json").exists()
    wkwdask.write_zarr_view(dataset)
    array = zarr.open_array(str(dataset / "color" / "1"), mode="r")
    assert array.chunks == (16, 16, 16)
    np.testing.assert_array_equal(array[...], absolute(dataset / "color" / "1"))
    # what the root says of it too
    np.testing.assert_array_equal(
        zarr.open_group(str(dataset), mode="r")["color/1"][...], array[...]
    )


def test_removing_a_layer_leaves_what_is_linked(dataset):
    wkwdask.write_zarr_view(dataset)
    expected = absolute(dataset / "neurons" / "1")
    wkwdask.rm(dataset / "color")
    np.testing.assert_array_equal(absolute(dataset / "neurons" / "1"), expected)


def test_what_is_left_of_a_removed_layer(dataset):
    """It is no longer in the JSON of the dataset, and its view goes with the others."""
    wkwdask.write_zarr_view(dataset)
    wkwdask.rm(dataset / "neurons")
    assert (dataset / "neurons" / "zarr.json").exists()
    wkwdask.remove_zarr_view(dataset)
    assert not [name for name in names(dataset) if "zarr.json" in name or "neurons" in name]


def test_labels_need_all_mags(dataset):
    wkwdask.write_zarr_view(dataset)
    wkwdask.rm(dataset / "neurons" / "4-4-2")
    paths = wkwdask.write_zarr_view(dataset)
    assert not any("/labels" in path.removeprefix(str(dataset)) for path in paths)
    assert not (dataset / "color" / "labels").exists()
    assert "labels" not in zarr.open_group(wkwdask.zarr_view(dataset), mode="r")["color"]
    wkwdask.rm(dataset / "color" / "2-2-1")
    wkwdask.rm(dataset / "color" / "4-4-2")
    wkwdask.write_zarr_view(dataset)
    group = zarr.open_group(wkwdask.zarr_view(dataset), mode="r")
    for one in (group, zarr.open_group(str(dataset), mode="r")):
        assert list(one["color/labels/neurons"].array_keys()) == ["1"]
    assert os.listdir(dataset / "color" / "labels" / "neurons") in (
        ["1", "zarr.json"],
        ["zarr.json", "1"],
    )


def test_links_that_lead_out(dataset, tmp_path):
    os.rename(dataset / "color" / "1", tmp_path / "elsewhere")
    (dataset / "color" / "1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsupportedError, match="lies outside the dataset"):
        wkwdask.write_zarr_view(dataset)
    wkwdask.write_zarr_view(dataset, allow_external=True)
    assert (tmp_path / "elsewhere" / "zarr.json").exists()


def test_channels(tmp_path):
    array = voxels((3, 20, 17, 9))
    wkwdask.create_dataset(tmp_path, (1, 1, 1))
    wkwdask.to_wkw(array, tmp_path / "rgb" / "1", block_len=4, file_len=4)
    wkwdask.write_zarr_view(tmp_path / "rgb")
    for group in (
        zarr.open_group(str(tmp_path / "rgb"), mode="r"),
        zarr.open_group(wkwdask.zarr_view(tmp_path / "rgb"), mode="r"),
    ):
        np.testing.assert_array_equal(group["1"][...], array.transpose(0, 3, 2, 1))
        assert [axis["name"] for axis in group.attrs["ome"]["multiscales"][0]["axes"]] == list(
            "czyx"
        )
        assert len(group.attrs["ome"]["omero"]["channels"]) == 3


def test_command(dataset):
    done = run_here("zarr-view", dataset)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"{dataset}/color/1/zarr.json")
    done = run_here("zarr-view", dataset, "--remove")
    assert f"removed {dataset}/zarr.json" in done.stdout.splitlines()


# ----------------------------------------------------------------------------- the store


def test_store(original):
    before = names(original)
    store = pickle.loads(pickle.dumps(wkwdask.zarr_view(original)))
    group = zarr.open_group(store, mode="r")
    assert (sorted(group.group_keys()), sorted(group["color"].keys())) == (
        ["color", "neurons"],
        ["1", "2-2-1", "4-4-2", "labels"],
    )
    for layer, mags in MAGS.items():
        for mag in mags:
            array = group[f"{layer}/{mag}"]
            np.testing.assert_array_equal(
                array[...], wkwdask.open(original / layer / mag)[0].compute().T
            )
            np.testing.assert_array_equal(
                array[3:5, ::4, 7], wkwdask.open(original / layer / mag)[0].compute().T[3:5, ::4, 7]
            )
    np.testing.assert_array_equal(group["color/labels/neurons/1"][...], group["neurons/1"][...])
    scale, translation = transforms(group["color"].attrs, "2-2-1")
    assert (scale, translation) == ([40, 10, 8], [30 * 40, 10 * 10 + 2.5, 5 * 8 + 2])
    assert names(original) == before


def test_store_of_a_layer(original):
    group = zarr.open_group(
        wkwdask.zarr_view(original, layer="neurons", chunk_shape=(7, 9, 11)), mode="r"
    )
    assert "image-label" in group.attrs["ome"]
    assert group["1"].chunks == (11, 9, 7)
    with dask.config.set(scheduler="threads"):
        lazy = da.from_zarr(group["1"])
        np.testing.assert_array_equal(
            lazy.compute(), wkwdask.open(original / "neurons" / "1")[0].compute().T
        )
    assert list(
        zarr.open_group(wkwdask.zarr_view(original / "color" / "2-2-1"), mode="r").keys()
    ) == ["2-2-1"]


def test_store_is_read_only(original):
    store = wkwdask.zarr_view(original)
    assert store.read_only
    assert store == wkwdask.zarr_view(original) != wkwdask.zarr_view(original, layer="color")
    with pytest.raises(ValueError, match=r"read-only|cannot be written"):
        zarr.open_array(store, path="color/1", mode="r+")[0] = 1
    with pytest.raises(ValueError, match="chunk_shape must be positive"):
        wkwdask.zarr_view(original, chunk_shape=(0, 1, 1))
    with pytest.raises(MissingError):
        wkwdask.zarr_view(original, layer="nuclei")


def test_store_of_a_precomputed_volume(tmp_path):
    array = voxels((30, 20, 10), "uint16")
    wkwdask.to_precomputed(
        array, tmp_path / "v", voxel_size=VOXEL_SIZE, offset=(-7, 0, 2), chunk_shape=(8, 8, 8)
    )
    group = zarr.open_group(wkwdask.zarr_view(tmp_path / "v"), mode="r")
    np.testing.assert_array_equal(group["1"][...], array.T)
    assert transforms(group.attrs, "1") == ([40, 5, 4], [80, 0, -28])


def test_documents_are_those_of_the_store(dataset):
    """Both ways say the same, but for where arrays begin."""
    wkwdask.write_zarr_view(dataset)
    there = document(dataset / "color" / "zarr.json")["attributes"]["ome"]
    virtual = dict(zarr.open_group(wkwdask.zarr_view(dataset), mode="r")["color"].attrs)["ome"]
    assert there.keys() == virtual.keys()
    assert [transforms({"ome": there}, mag)[0] for mag in MAGS["color"]] == [
        transforms({"ome": virtual}, mag)[0] for mag in MAGS["color"]
    ]
