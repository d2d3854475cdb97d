"""Oracles: components on real data equal those of cc3d 4 and scipy, and merges those of webknossos
4."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from scipy import ndimage

import wkwdask

LABELS = "connectomics_seg"
L4 = "l4_sample"
OFFSET = (101, 190, 170)


def assert_same_components(found, expected, expected_count):
    """Check that each id of one is one id of the other."""
    both = (found.astype(np.uint64) << np.uint64(32) | expected.astype(np.uint64)).ravel("K")
    pairs = np.unique(both[np.append(True, both[1:] != both[:-1])])
    ids, others = pairs >> np.uint64(32), pairs & np.uint64(2**32 - 1)
    assert len(np.unique(ids)) == len(np.unique(others)) == len(pairs)
    assert ((ids == 0) == (others == 0)).all()
    assert int(found.max()) == expected_count == np.count_nonzero(ids)


@pytest.fixture(scope="module")
def neurons(shared_data, tmp_path_factory):
    """A part of the neurons, not aligned to files."""
    folder = tmp_path_factory.mktemp("neurons") / "1"
    part = wkwdask.read(shared_data / LABELS, wkwdask.BoundingBox(OFFSET, (160, 150, 140)))
    wkwdask.write(folder, OFFSET, part, file_len=2)
    return folder


@pytest.fixture(scope="module")
def labels(neurons):
    return np.asfortranarray(wkwdask.read(neurons)[0])


def test_neurons_of_all_files_equal_cc3d(shared_data, tmp_path):
    cc3d = pytest.importorskip("cc3d")
    box = wkwdask.BoundingBox((0, 0, 192), (512, 512, 128))
    labels = np.asfortranarray(wkwdask.read(shared_data / LABELS, box)[0])
    expected, count = cc3d.connected_components(labels, connectivity=26, return_N=True)
    report = wkwdask.connected_components(shared_data / LABELS, tmp_path / "cc" / "1", where=box)
    assert report.note == f"{count:,} components"
    assert_same_components(wkwdask.read(tmp_path / "cc" / "1", box)[0], expected, count)


@pytest.mark.parametrize("connectivity", [6, 18])
def test_neurons_equal_cc3d(neurons, labels, tmp_path, connectivity):
    cc3d = pytest.importorskip("cc3d")
    expected, count = cc3d.connected_components(labels, connectivity=connectivity, return_N=True)
    report = wkwdask.connected_components(neurons, tmp_path / "cc" / "1", connectivity=connectivity)
    assert report.note == f"{count:,} components"
    assert_same_components(wkwdask.read(tmp_path / "cc" / "1")[0], expected, count)


def test_dust_equals_cc3d(neurons, labels, tmp_path):
    cc3d = pytest.importorskip("cc3d")
    kept = cc3d.dust(labels, threshold=500, connectivity=26, in_place=False)
    expected, count = cc3d.connected_components(kept, connectivity=26, return_N=True)
    report = wkwdask.connected_components(neurons, tmp_path / "cc" / "1", min_voxels=500)
    assert report.note.startswith(f"{count:,} components, ")
    assert_same_components(wkwdask.read(tmp_path / "cc" / "1")[0], expected, count)


@pytest.fixture
def l4(shared_data, tmp_path):
    shutil.copytree(shared_data / L4, tmp_path / "l4")
    return tmp_path / "l4"


def test_thresholded_em_equals_scipy_and_cc3d(l4):
    cc3d = pytest.importorskip("cc3d")
    em = wkwdask.read(l4, layer="color", mag="2-2-1")[0]
    dark = em <= 90
    wkwdask.connected_components(
        l4 / "color", l4 / "dark" / "2-2-1", threshold=(0, 90), connectivity=18
    )
    found = wkwdask.read(l4, layer="dark", mag="2-2-1")[0]
    expected, count = ndimage.label(dark, ndimage.generate_binary_structure(3, 2))
    assert_same_components(found, expected, count)
    assert_same_components(
        found, cc3d.connected_components(np.asfortranarray(dark), connectivity=18), count
    )


def test_a_layer_that_is_not_aligned_equals_cc3d(l4):
    cc3d = pytest.importorskip("cc3d")
    webknossos = pytest.importorskip("webknossos")
    segmentation = wkwdask.read(l4, layer="segmentation", mag=1)[0]
    expected, count = cc3d.connected_components(
        np.asfortranarray(segmentation), connectivity=26, return_N=True
    )
    wkwdask.connected_components(l4 / "segmentation", l4 / "split" / "1")
    assert_same_components(wkwdask.read(l4, layer="split", mag=1)[0], expected, count)
    layer = webknossos.Dataset.open(l4).get_layer("split")
    assert layer.category == "segmentation"
    assert layer.largest_segment_id == count
    np.testing.assert_array_equal(
        layer.get_mag(1).read()[0], wkwdask.read(l4, layer="split", mag=1)[0]
    )


def test_merger_mode_of_webknossos(l4, tmp_path):
    """webknossos writes the skeleton and looks up its segments."""
    webknossos = pytest.importorskip("webknossos")
    segmentation = wkwdask.read(l4, layer="segmentation", mag=1)[0]
    box = wkwdask.info(l4).layers[1].mags[0].box
    random = np.random.default_rng(4)
    skeleton = webknossos.Skeleton(dataset_name="l4", voxel_size=(11.24, 11.24, 28))
    trees = []
    for number in range(6):
        tree = skeleton.add_tree(f"tree {number}")
        trees.append(random.integers(box.topleft, box.bottomright, (4, 3)).tolist())
        for position in trees[-1]:
            tree.add_node(position=position)
    skeleton.save(tmp_path / "merger.nml")
    view = webknossos.Dataset.open(l4).get_layer("segmentation").get_mag(1)
    groups = [
        {int(view.read(absolute_offset=position, size=(1, 1, 1)).item()) for position in tree} - {0}
        for tree in trees
    ]
    ids, places = np.unique(segmentation, return_inverse=True)
    merged = ids.copy()
    for _ in groups:  # as often as merges can be handed on
        for group in groups:
            present = np.unique(merged[np.isin(ids, list(group))])
            merged[np.isin(merged, present)] = present.min(initial=2**32 - 1)
    expected = merged[places].reshape(segmentation.shape)
    wkwdask.remap(l4 / "segmentation" / "1", l4 / "merged" / "1", tmp_path / "merger.nml")
    np.testing.assert_array_equal(wkwdask.read(l4, layer="merged", mag=1)[0], expected)
    assert (
        json.loads((l4 / "datasource-properties.json").read_text())["dataLayers"][-1][
            "largestSegmentId"
        ]
        == expected.max()
    )


def test_agglomerates_on_neurons(labels, tmp_path):
    h5py = pytest.importorskip("h5py")
    labels = labels % 200_003  # the table has one entry for each id, and real ids reach 98 million
    wkwdask.write(tmp_path / "source" / "1", OFFSET, labels, file_len=2)
    table = np.random.default_rng(7).integers(1, 300, int(labels.max()) + 1).astype(np.uint64)
    table[0] = 0
    with h5py.File(tmp_path / "view_70.hdf5", "w") as file:
        file["segment_to_agglomerate"] = table
    wkwdask.remap(
        tmp_path / "source" / "1", tmp_path / "agglomerates" / "1", tmp_path / "view_70.hdf5"
    )
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "agglomerates" / "1")[0], table[labels])


def test_compact_ids_and_dust_on_neurons(neurons, labels, tmp_path):
    counts = np.bincount(labels.ravel("K"))
    new_ids = np.cumsum(counts[1:] > 0, dtype=np.uint16)
    report = wkwdask.renumber(neurons, tmp_path / "compact" / "1", dtype="uint16")
    assert report.note == f"{new_ids[-1]} segments"
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "compact" / "1")[0],
        np.where(labels > 0, np.append(np.uint16(0), new_ids)[labels], 0),
    )
    wkwdask.remove_dust(neurons, tmp_path / "clean" / "1", 10_000)
    keeps = (counts >= 10_000)[labels]
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "clean" / "1")[0], np.where(keeps, labels, 0)
    )
