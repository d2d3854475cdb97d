"""Oracle: webknossos 4.3.3 opens datasets that wkwdask created and edited, and reads the same
metadata."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from formats.webknossos import test_datasource_documents as documents
from support.inside import without_exchange

import wkwdask

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns of image readers that are not installed
    webknossos = pytest.importorskip(
        "webknossos", reason="the oracle webknossos 4.3.3 is not installed"
    )
    structuring = pytest.importorskip(
        "webknossos.dataset_properties.structuring",
        reason="the oracle webknossos 4.3.3 is not installed",
    )
    properties = pytest.importorskip(
        "webknossos.dataset_properties", reason="the oracle webknossos 4.3.3 is not installed"
    )

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:webknossos"),
    pytest.mark.filterwarnings("ignore::UserWarning:cluster_tools"),
]

# What it cannot read: the file lacks what it needs, or says it in a form that it does not know.
REFUSED = {
    "a layer that is none",
    "additional axes",
    "an odd layer",
    "malformed attachments",
    "no id",
    "no scale",
    "null channels",
    "null scale",
    "transformations",
    "uint24 without channels",
}


def agree(theirs, path):
    """Compare what it says of a dataset with what we say."""
    ours = wkwdask.open_dataset(path)
    assert set(theirs.layers) == set(ours.layers)
    np.testing.assert_allclose(theirs.voxel_size_with_unit.to_nanometer(), ours.voxel_size_nm)
    for name, layer in theirs.layers.items():
        mine = ours[name]
        assert layer.category == mine.category
        assert (tuple(layer.bounding_box.topleft_xyz), tuple(layer.bounding_box.size_xyz)) == (
            mine.bounding_box.topleft,
            mine.bounding_box.size,
        )
        assert {tuple(mag.to_list()) for mag in layer.mags} == {mag.factors for mag in mine.mags}
        assert (np.dtype(layer.dtype), layer.num_channels) == (mine.dtype, mine.num_channels)
        if layer.category == "segmentation":
            assert layer.largest_segment_id == mine.largest_segment_id
        for mag, view in layer.mags.items():
            np.testing.assert_array_equal(view.read(), mine[mag.to_list()].read())


@pytest.fixture
def l4(shared_data, tmp_path):
    """A copy of real data that can be written."""
    folder = tmp_path / "l4"
    shutil.copytree(shared_data / "l4_sample", folder, copy_function=shutil.copyfile)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


EDITS = {
    "rename": lambda dataset: dataset.rename_layer("color", "em"),
    "remove": lambda dataset: dataset.remove_layer("color"),
    "remove and delete": lambda dataset: dataset.remove_layer("color", delete_files=True),
    "remove mag": lambda dataset: dataset.remove_mag("segmentation", "2-2-1"),
    "mag comes back": lambda dataset: dataset.remove_mag("segmentation", 1).add_mags_from_disk(
        "segmentation"
    ),
    "voxel size": lambda dataset: dataset.set_voxel_size((0.01124, 0.01124, 0.028), "um"),
    "box": lambda dataset: dataset.set_bounding_box(
        "segmentation", (2700, 4300, 1720, 100, 90, 80)
    ),
    "largest id": lambda dataset: dataset.set_largest_segment_id(
        "segmentation", dataset["segmentation"].compute_largest_segment_id()
    ),
    "huge id": lambda dataset: dataset.set_largest_segment_id("segmentation", 2**63 + 1),
    "no id": lambda dataset: dataset.set_largest_segment_id("segmentation", None),
    "view": lambda dataset: dataset.set_view_configuration(
        {"alpha": 30.5, "color": [1, 2, 3], "intensityRange": [1, 99]}, "color"
    ),
    "view of the dataset": lambda dataset: dataset.set_view_configuration(
        {"zoom": 2.5, "position": [1, 2, 3], "colorLayerOrder": ["color"]}
    ),
    "new layer": lambda dataset: dataset.add_layer(
        "more", "color", "uint16", (0, 0, 0, 8, 8, 8), num_channels=2
    ),
    "from disk": lambda dataset: dataset.remove_layer("segmentation").add_layer_from_disk(
        "segmentation", bounding_box=(2679, 4224, 1719, 256, 256, 150)
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("edit", sorted(EDITS))
def test_edits_of_real_data(l4, edit):
    dataset = wkwdask.open_dataset(l4)
    EDITS[edit](dataset)
    agree(webknossos.Dataset.open(l4), l4)


@pytest.mark.parametrize("relative", [True, False])
def test_references(l4, tmp_path, relative):
    created = wkwdask.create_dataset(tmp_path / "new", wkwdask.open_dataset(l4).voxel_size)
    after = created.add_layer_as_ref(l4 / "segmentation", "cells", relative=relative)
    assert after["cells"].largest_segment_id == 5238529
    agree(webknossos.Dataset.open(created.path), created.path)
    after.rename_layer("cells", "other").set_bounding_box("other", (2679, 4224, 1719, 64, 64, 64))
    agree(webknossos.Dataset.open(created.path), created.path)


def test_file_systems_that_cannot_swap_names(l4):
    with without_exchange():
        wkwdask.open_dataset(l4).rename_layer("segmentation", "cells")
    assert (l4 / "segmentation").is_dir()
    agree(webknossos.Dataset.open(l4), l4)


def test_each_keeps_the_edits_of_the_other(tmp_path):
    created = wkwdask.create_dataset(tmp_path / "ds", (4, 4, 35), unit="nanometer")
    wkwdask.write(f"{created.path}/color/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8), file_len=1)
    created.set_view_configuration({"alpha": 30.0}, "color").set_view_configuration({"zoom": 2.0})
    theirs = webknossos.Dataset.open(created.path)
    theirs.get_layer("color").name = "em"
    theirs.add_layer(
        "seg",
        "segmentation",
        dtype_per_channel="uint64",
        largest_segment_id=2**60,
        data_format="wkw",
    )
    ours = created.refreshed()
    assert list(ours.layers) == ["em", "seg"]
    assert (
        ours["em"].view_configuration,
        ours.view_configuration,
        ours["seg"].largest_segment_id,
    ) == ({"alpha": 30}, {"zoom": 2}, 2**60)
    ours.rename_layer("em", "color")
    theirs = webknossos.Dataset.open(created.path)
    assert theirs.get_layer("color").default_view_configuration.alpha == 30
    assert theirs.get_layer("seg").largest_segment_id == 2**60
    agree(theirs, created.path)


def structured(document):
    """Let it read a document."""
    return structuring.get_dataset_converter().structure(document, properties.DatasetProperties)


@pytest.mark.parametrize("name", sorted(set(documents.DOCUMENTS) - REFUSED))
def test_both_read_the_same_from_each_document(tmp_path, name):
    text = documents.DOCUMENTS[name]
    (tmp_path / "datasource-properties.json").write_text(text)
    theirs, ours = structured(json.loads(text)), wkwdask.open_dataset(tmp_path)
    np.testing.assert_allclose(theirs.scale.to_nanometer(), ours.voxel_size_nm)
    assert len(theirs.data_layers) == len(ours.layers)
    for layer, mine in zip(theirs.data_layers, ours.layers.values(), strict=True):
        assert (layer.name, layer.category, layer.data_format.value) == (
            mine.name,
            mine.category,
            mine.data_format,
        )
        assert (tuple(layer.bounding_box.topleft_xyz), tuple(layer.bounding_box.size_xyz)) == (
            mine.bounding_box.topleft,
            mine.bounding_box.size,
        )
        assert np.dtype(layer.dtype) == mine.dtype
        assert sorted(tuple(mag.mag.to_list()) for mag in layer.mags) == sorted(
            mag.factors for mag in mine.mags
        )
        for mag in layer.mags:
            folder = mine[mag.mag.to_list()].folder
            assert mag.path in (None, folder) or tmp_path / mag.path == Path(folder)
        if layer.category == "segmentation":
            assert layer.largest_segment_id == mine.largest_segment_id
            assert tuple(layer.mappings) == mine.mappings


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_documents_that_only_wkwdask_reads(name):
    """Move a document to the other test once webknossos reads it."""
    with pytest.raises(Exception):  # noqa: B017, PT011 (of any kind)
        structured(json.loads(documents.DOCUMENTS[name]))


@pytest.mark.parametrize("data_format", ["wkw", "zarr3"])
def test_a_layer_without_voxels_is_copied_with_its_dataset(tmp_path, data_format):
    """The library makes layers before it writes into them."""
    dataset = webknossos.Dataset(tmp_path / "ds", voxel_size=(4, 4, 40))
    layer = dataset.add_layer("new", "color", dtype="uint8", data_format=data_format)
    for mag in ("1", "2"):
        layer.add_mag(mag)
    em = dataset.add_layer("em", "color", dtype="uint8", data_format=data_format)
    voxels = np.arange(8**3, dtype=np.uint8).reshape(1, 8, 8, 8)
    em.add_mag("1").write(voxels, absolute_offset=(0, 0, 0), allow_resize=True)
    wkwdask.copy(tmp_path / "ds", tmp_path / "copied")
    copied = webknossos.Dataset.open(tmp_path / "copied")
    np.testing.assert_array_equal(copied.get_layer("em").get_mag("1").read(), voxels)
    assert [str(mag) for mag in copied.get_layer("new").mags] == ["1", "2"]
    assert copied.get_layer("new").bounding_box.is_empty()
    assert wkwdask.verify(tmp_path / "copied").is_sound
    picture = wkwdask.preview(tmp_path / "copied", tmp_path / "em.png")
    assert (
        picture.read_bytes()
        == wkwdask.preview(tmp_path / "ds/em", tmp_path / "same.png").read_bytes()
    )
