"""Layers of a dataset that its JSON says are Zarr or N5: opened by dataset, layer or mag, with the
JSON's box and voxel size."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import xarray as xr
from PIL import Image
from support.n5_volumes import write_dataset

import wkwdask
from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.viewer.layers import layers_of

pytestmark = pytest.mark.needs("zarr")

SIZE, CORNER = (20, 18, 12), (4, 6, 8)
EM = np.random.default_rng(1).integers(1, 255, (2, *SIZE)).astype(np.uint8)
IDS = EM[0].astype(np.uint32)


def placed(array, step=1):
    """Put an array (c, x, y, z) at its absolute place, with other values around it that are not of
    the layer."""
    out = np.full(
        (len(array), *(-(-(c + n) // step) + 3 for c, n in zip(CORNER, SIZE, strict=True))),
        9,
        array.dtype,
    )
    x, y, z = (
        slice(c // step, c // step + n) for c, n in zip(CORNER, array.shape[1:], strict=True)
    )
    out[:, x, y, z] = array
    return out


def layer(name, category, data_format, element_class, channels, mags):
    box = {"topLeft": list(CORNER), "width": SIZE[0], "height": SIZE[1], "depth": SIZE[2]}
    entries = [
        {
            "mag": list(mag),
            "path": f"./{name}/{mag[0]}",
            "axisOrder": {"c": 0, "x": 1, "y": 2, "z": 3},
        }
        for mag in mags
    ]
    return {
        "name": name,
        "category": category,
        "boundingBox": box,
        "dataFormat": data_format,
        "mags": entries,
        "numChannels": channels,
        "elementClass": element_class,
    }


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A dataset with an image in Zarr, in two mags, and a segmentation in N5."""
    import zarr

    folder = tmp_path_factory.mktemp("dataset") / "ds"
    folder.mkdir()
    layers = [
        layer("em", "color", "zarr3", "uint16", 2, [(1, 1, 1), (2, 2, 2), (4, 4, 4)]),
        layer("cells", "segmentation", "n5", "uint32", 1, [(1, 1, 1)]),
    ]
    document = {
        "id": {"name": "ds", "team": ""},
        "scale": {"factor": [4, 4, 40], "unit": "nanometer"},
        "dataLayers": layers,
        "version": 1,
    }
    (folder / "datasource-properties.json").write_text(json.dumps(document))
    for step in (1, 2):
        array = placed(EM[:, ::step, ::step, ::step], step)
        stored = zarr.create_array(
            folder / "em" / str(step),
            shape=array.shape,
            dtype=array.dtype,
            chunks=(2, 8, 8, 8),
            dimension_names=list("cxyz"),
        )
        stored[...] = array
    write_dataset(folder / "cells" / "1", placed(IDS[np.newaxis])[0])
    return folder


def test_opening(dataset):
    for url, options in (
        (dataset, {"layer": "em"}),
        (dataset / "em", {}),
        (dataset / "em" / "1", {}),
    ):
        np.testing.assert_array_equal(wkwdask.open(url, **options), EM)
    np.testing.assert_array_equal(wkwdask.open(dataset / "em", mag=2), EM[:, ::2, ::2, ::2])
    np.testing.assert_array_equal(wkwdask.open(dataset / "em" / "2"), EM[:, ::2, ::2, ::2])
    np.testing.assert_array_equal(wkwdask.open(dataset, layer="cells")[0], IDS)
    np.testing.assert_array_equal(
        wkwdask.read(dataset / "cells" / "1", ((10, 10, 10), (15, 15, 15)))[0], IDS[6:11, 4:9, 2:7]
    )
    assert wkwdask.sample(dataset, [list(CORNER)], layer="em").tolist() == [EM[:, 0, 0, 0].tolist()]
    coarse = next(
        mag for mag in wkwdask.info(dataset).layers[0].mags if mag.mag == wkwdask.Mag(2, 2, 2)
    )
    assert coarse.box == wkwdask.BoundingBox((2, 3, 4), (10, 9, 6), wkwdask.Mag(2, 2, 2))
    with pytest.raises(ValueError, match="is mag 2, not mag 1"):
        wkwdask.open(dataset / "em" / "2", mag=1)
    with pytest.raises(MissingError, match="em/4: no Zarr array here"):
        wkwdask.open(dataset / "em", mag=4)


def test_checking(dataset):
    """The second layer is N5; values around the box are no fault, and a listed mag that does not
    exist is."""
    report = wkwdask.verify(dataset)
    assert [(mag.layer, mag.mag) for mag in report.mags] == [
        ("em", "1"),
        ("em", "2"),
        ("cells", "1"),
    ]
    assert [(fault.kind, fault.path) for fault in report.faults if fault.severity == "error"] == [
        ("mag.missing", f"{dataset}/em/4")
    ]
    assert (report.mags[2].largest, IDS.max() > report.mags[2].largest) == (IDS.max(), False)
    for path in ("cells", "cells/1", "em/1"):
        assert wkwdask.verify(dataset / path).faults == ()


def test_the_largest_id_is_computed_inside_of_the_box(dataset):
    opened = wkwdask.open_dataset(dataset)
    assert opened["cells"].compute_largest_segment_id() == IDS.max()
    assert opened["em"].compute_largest_segment_id() == EM.max()


def test_damage_of_an_n5_layer_is_found(dataset, tmp_path):
    copied = shutil.copytree(dataset, tmp_path / "ds")
    path = next(
        path
        for path in (copied / "cells" / "1").rglob("*")
        if path.is_file() and path.name != "attributes.json"
    )
    path.write_bytes(path.read_bytes()[:20])
    for url in (copied, copied / "cells", copied / "cells" / "1"):
        assert str(path) in {
            fault.path for fault in wkwdask.verify(url).faults if fault.severity == "error"
        }
    with pytest.raises(FormatError, match="is cut off"):
        wkwdask.compress(copied / "cells")


def test_viewing(dataset):
    """Arrays of Zarr v3 are sent unchanged, below a group with the voxel size of the dataset."""
    em, cells = layers_of(dataset, (), None)
    assert (em.is_decoded, cells.is_decoded) == (False, True)
    for key in ("1/zarr.json", "2/c/0/0/0/0"):
        content = em.source.open(key)
        assert content.read(0, content.nbytes) == (dataset / "em" / key).read_bytes()
    content = em.source.open("zarr.json")
    image = json.loads(content.read(0, content.nbytes))["attributes"]["ome"]["multiscales"][0]
    assert [axis["name"] for axis in image["axes"]] == list("cxyz")
    fine, coarse = (
        [step.get("scale", step.get("translation")) for step in level["coordinateTransformations"]]
        for level in image["datasets"]
    )
    assert fine[0] == [1, 4, 4, 40]
    assert coarse == [[1, 8, 8, 80], [0, 2, 2, 20]]
    assert layers_of(dataset / "em", (), wkwdask.Mag(2, 2, 2))[0].is_decoded is False


def test_looking(dataset, tmp_path):
    tree = xr.open_datatree(dataset, engine="wkw")
    assert tree["/em/2/em"].attrs["voxel_size_nm"] == (4.0, 4.0, 40.0)
    assert "no Zarr array here" in tree["/em/4"].attrs["problem"]
    np.testing.assert_array_equal(tree["/cells/1/cells"].values, IDS)
    summary = wkwdask.info(dataset)
    assert [(mag.compression, mag.dtype, bool(mag.problem)) for mag in summary.layers[0].mags] == [
        ("zarr3", "uint8", False), ("zarr3", "uint8", False), ("", "", True),
    ]  # fmt: skip
    assert summary.layers[1].mags[0].files > 0
    with Image.open(wkwdask.preview(dataset, tmp_path / "p.png", size=32)) as picture:
        assert picture.size[0] > 32


@pytest.mark.parametrize("version", [2, 3])
def test_the_order_of_axes_is_that_of_the_json(tmp_path, version):
    """As datasets have it that were made of OME-NGFF images; names of axes are no part of Zarr
    2."""
    import zarr

    record = layer("em", "color", "zarr", "uint16", 2, [(1, 1, 1)])
    record["mags"][0]["axisOrder"] = {"c": 0, "z": 1, "y": 2, "x": 3}
    document = {
        "id": {"name": "ds", "team": ""},
        "scale": {"factor": [4, 4, 40], "unit": "nanometer"},
        "dataLayers": [record],
        "version": 1,
    }
    (tmp_path / "datasource-properties.json").write_text(json.dumps(document))
    array = placed(EM).transpose(0, 3, 2, 1)
    zarr.create_array(
        tmp_path / "em" / "1",
        shape=array.shape,
        dtype=array.dtype,
        chunks=(2, 8, 8, 8),
        zarr_format=version,
    )[...] = array
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "em"), EM)
    record["mags"][0]["axisOrder"] = {"x": 9, "y": "no", "c": [], "z": 1}  # makes no sense
    (tmp_path / "datasource-properties.json").write_text(json.dumps(document))
    with pytest.raises(
        FormatError,
        match=(
            "layer em, mag 1: axisOrder: expected the index of a dimension for each of x, y and z, "
            "found"
        ),
    ):
        wkwdask.open(tmp_path / "em")


@pytest.mark.parametrize("existing", ["error", "overwrite"])
def test_no_wkw_is_written_among_arrays(dataset, existing):
    message = r"em/.* lies in a layer that is stored as .*, but to_wkw\(\) writes WKW; use save\(\)"
    for mag in ("1", "8-8-8"):
        with pytest.raises(ValueError, match=message):
            wkwdask.to_wkw(EM, dataset / "em" / mag, offset=CORNER, existing=existing)
    np.testing.assert_array_equal(wkwdask.open(dataset / "em"), EM)


def test_one_mag_becomes_wkw(dataset, tmp_path):
    (made,) = wkwdask.convert(dataset / "em" / "2", tmp_path / "ds").mags
    assert made.path == str(tmp_path / "ds" / "em" / "2")
    np.testing.assert_array_equal(
        wkwdask.read(made.path, ((2, 3, 4), (12, 12, 10))), EM[:, ::2, ::2, ::2]
    )
    wkwdask.convert(dataset / "em" / "1", tmp_path / "em.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "em.npy"), EM.transpose(0, 3, 2, 1))


def test_conversion(dataset, tmp_path):
    wkwdask.convert(dataset / "em" / "1", f"n5://{tmp_path}/c.n5/em")
    wkwdask.convert(dataset / "em" / "2", f"n5://{tmp_path}/c.n5/coarse")
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "c.n5" / "em"), EM)
    assert wkwdask.info(tmp_path / "c.n5" / "coarse").scales[0].resolution == (8.0, 8.0, 80.0)


def test_comparing_and_seeing_as_zarr(dataset, tmp_path):
    """By dataset and by layer, as all that can be opened."""
    zarr = pytest.importorskip(
        "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
    )
    assert [volume.name for volume in wkwdask.diff(dataset, dataset).volumes] == [
        "em/1",
        "em/2",
        "cells/1",
    ]
    wkwdask.convert(dataset / "em", tmp_path / "em.ome.zarr", mag=1)
    (volume,) = wkwdask.diff(dataset / "em", tmp_path / "em.ome.zarr", mag=1).volumes
    assert volume.equal
    assert volume.voxels_compared == EM[0].size
    group = zarr.open_group(wkwdask.zarr_view(dataset), mode="r")
    np.testing.assert_array_equal(group["em/2"][...], EM[:, ::2, ::2, ::2].transpose(0, 3, 2, 1))
    np.testing.assert_array_equal(group["cells/1"][...], IDS.T)


def test_the_voxel_size_of_a_layer_is_that_of_its_dataset(dataset):
    for name in ("cells", "em"):
        with pytest.raises(ValueError, match=r"voxels of mag 1 have .*, got voxel_size"):
            wkwdask.upsample(dataset, layer=name, voxel_size=(2, 2, 20))


def test_an_array_with_channels_of_several_layers_is_not_replaced(tmp_path):
    dataset = wkwdask.create_dataset(tmp_path / "ds", (4, 4, 40))
    box = (*CORNER, *SIZE)
    dataset.add_layer("two", "color", "uint8", box, num_channels=2, data_format="zarr")
    wkwdask.save(EM, tmp_path / "ds" / "two" / "1", offset=CORNER, chunk_shape=(8, 8, 8))
    path = tmp_path / "ds" / "datasource-properties.json"
    document = json.loads(path.read_text())
    (two,) = document["dataLayers"]
    mags = [{**two["mags"][0], "channelIndex": 1}]
    document["dataLayers"].append(
        {**two, "name": "second", "mags": mags, "numChannels": 1, "elementClass": "uint8"}
    )
    path.write_text(json.dumps(document))
    with pytest.raises(UnsupportedError, match="holds channels of other layers, too"):
        wkwdask.rechunk(tmp_path / "ds", layer="second", chunk_shape=(16, 16, 16))
    wkwdask.build_pyramid(tmp_path / "ds", layer="second", mags=["2-2-1"])
    wkwdask.copy(tmp_path / "ds", tmp_path / "copy", layer="second")
    for name in ("ds", "copy"):
        np.testing.assert_array_equal(wkwdask.open(tmp_path / name, layer="second")[0], EM[1])
        assert wkwdask.verify(tmp_path / name).is_sound
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "ds", layer="two"), EM)


@pytest.mark.parametrize("existing", ["error", "overwrite"])
def test_an_array_that_is_the_folder_of_its_layer_is_not_replaced(tmp_path, existing):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 40))
    ids = placed(IDS[np.newaxis])
    wkwdask.save(ids, f"n5://{tmp_path}/ds/cells", voxel_size=(4, 4, 40))
    path = tmp_path / "ds" / "datasource-properties.json"
    entry = layer("cells", "segmentation", "n5", "uint32", 1, [(1, 1, 1)])
    entry["mags"] = [{"mag": [1, 1, 1], "path": "./cells"}]
    path.write_text(json.dumps({**json.loads(path.read_text()), "dataLayers": [entry]}))
    target, source = tmp_path / "ds" / "cells", tmp_path / "other" / "1"
    wkwdask.save(ids + 1, source)
    for write in (
        lambda: wkwdask.save(ids + 1, target, existing=existing),
        lambda: wkwdask.copy(source, target, existing=existing),
        lambda: wkwdask.rechunk(source, target, existing=existing),
    ):
        with pytest.raises(UnsupportedError, match=r"cells: is the folder of layer cells and of "):
            write()
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "ds")[0], IDS)


@pytest.mark.parametrize("form", ["neuroglancerPrecomputed", "n5"])
def test_a_mag_without_voxels_is_not_missing(tmp_path, form):
    dataset = wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    dataset.add_layer("em", "color", "uint8", (0, 0, 0, 32, 32, 32), data_format=form)
    wkwdask.save(np.zeros((32, 32, 32), np.uint8), tmp_path / "ds" / "em" / "1")
    assert wkwdask.verify(tmp_path / "ds").is_sound
    wkwdask.copy(tmp_path / "ds" / "em", tmp_path / "ds" / "copy")
    report = wkwdask.verify(tmp_path / "ds")
    assert report.is_sound
    assert {fault.kind for fault in report.faults} == {"mag.empty"}
