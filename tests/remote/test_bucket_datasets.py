"""Datasets of WEBKNOSSOS in a bucket: the JSON names the folders of mags, which contain their
jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.bucket_faults import empty_bucket

import wkwdask
from wkwdask.errors import MissingError, UnsupportedError
from wkwdask.model.placement import job_in, plain_name
from wkwdask.model.store import Expected
from wkwdask.store import leases
from wkwdask.store.objects import memory_bucket
from wkwdask.store.paths import basename
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from pathlib import Path

URL = "memory://bucket/em"
VOXELS = np.random.default_rng(1).integers(1, 255, (1, 40, 36, 20), np.uint8)


@pytest.fixture
def dataset():
    with empty_bucket():
        made = wkwdask.create_dataset(URL, (4, 4, 8))
        save(VOXELS)
        yield made.refreshed()


def save(voxels, layer="color", **options):
    return wkwdask.to_wkw(voxels, f"{URL}/{layer}/1", block_len=8, file_len=2, **options)


def document():
    return json.loads(store_at(URL).read_document("datasource-properties.json", 1 << 20))


def paths(layer="color"):
    (entry,) = [entry for entry in document()["dataLayers"] if entry["name"] == layer]
    return [mag["path"] for mag in entry["mags"]]


def names(folder):
    return sorted(name for name in store_at(f"{URL}/{folder}").names() if not name.startswith("."))


def test_the_json_switches_to_the_new_folder(dataset):
    (first,) = paths()
    assert job_in(first)
    assert plain_name(first) == "./color/1"
    opened, unread = wkwdask.open(f"{URL}/color/1"), wkwdask.open(f"{URL}/color/1")
    save(VOXELS[..., ::-1], existing="overwrite")
    (second,) = paths()
    assert plain_name(second) == "./color/1"
    assert second != first
    assert names("color") == sorted(map(basename, (first, second)))
    np.testing.assert_array_equal(opened.compute(), VOXELS)
    for url in (f"{URL}/color/1", f"{URL}/{second[2:]}"):
        np.testing.assert_array_equal(wkwdask.read(url), VOXELS[..., ::-1])
    assert wkwdask.clean(URL) == []
    assert wkwdask.clean(URL, grace_seconds=0) == [f"{URL}/{first[2:]}"]
    with pytest.raises(wkwdask.ReplacedError, match="open it again"):  # never zeros
        unread.compute()
    np.testing.assert_array_equal(wkwdask.read(URL), VOXELS[..., ::-1])


def test_a_replaced_mag_makes_its_pyramid_stale(dataset):
    wkwdask.build_pyramid(URL, method="max")
    assert "nothing to do" in wkwdask.build_pyramid(URL, method="max").note
    save(VOXELS[..., ::-1], existing="overwrite")
    with pytest.raises(wkwdask.ExistsError, match="overwrite"):
        wkwdask.build_pyramid(URL, method="max")
    wkwdask.build_pyramid(URL, method="max", existing="overwrite")
    expected = VOXELS[..., ::-1].reshape(1, 20, 2, 18, 2, 20).max(axis=(2, 4))
    np.testing.assert_array_equal(wkwdask.read(URL, mag="2-2-1"), expected)
    assert wkwdask.verify(URL).is_sound


def test_edits(dataset):
    edited = dataset.set_bounding_box("color", (0, 0, 0, 40, 36, 10))
    assert edited["color"].bounding_box.size == (40, 36, 10)
    edited = edited.add_layer("labels", "segmentation", "uint32", (0, 0, 0, 8, 8, 8))
    assert edited.set_largest_segment_id("labels", 7).layers["labels"].largest_segment_id == 7
    assert list(edited.remove_layer("labels").layers) == ["color"]
    assert edited.set_voxel_size((1, 2, 3)).voxel_size == (1, 2, 3)


def test_a_renamed_layer_keeps_its_objects(dataset):
    wkwdask.build_pyramid(URL)
    before = dict(memory_bucket._objects)
    renamed = dataset.rename_layer("color", "em")
    changed = {name for name, data in memory_bucket._objects.items() if before.get(name) != data}
    assert changed == {f"{URL}/datasource-properties.json"}
    np.testing.assert_array_equal(renamed["em"].read(), VOXELS)
    with pytest.raises(MissingError):
        wkwdask.open(URL, layer="color")
    wkwdask.build_pyramid(URL, layer="em", existing="overwrite", method="max")
    assert wkwdask.verify(URL).is_sound
    np.testing.assert_array_equal(wkwdask.read(URL, layer="em", mag=1), VOXELS)


def test_layers_without_paths_are_renamed_and_replaced(dataset):
    """Mags of other software have plain names, and a legacy list states no paths."""
    (path,) = paths()
    for name in [name for name in memory_bucket._objects if basename(path) in name]:
        memory_bucket._objects[name.replace(basename(path), "1")] = memory_bucket._objects.pop(name)
    legacy = document()
    (entry,) = legacy["dataLayers"]
    del entry["mags"]
    entry["wkwResolutions"] = [{"resolution": 1, "cubeLength": 16}]
    store_at(URL).put("datasource-properties.json", json.dumps(legacy).encode())
    wkwdask.open_dataset(URL).rename_layer("color", "em")
    assert paths("em") == ["./color/1"]
    np.testing.assert_array_equal(wkwdask.read(URL, mag=1), VOXELS)
    store_at(URL).put("datasource-properties.json", json.dumps(legacy).encode())
    save(VOXELS[..., ::-1], existing="overwrite")
    assert [plain_name(path) for path in paths()] == ["./color/1"]
    assert job_in(paths()[0])
    np.testing.assert_array_equal(wkwdask.read(URL, mag=1), VOXELS[..., ::-1])


def test_files_of_removed_entries_stay_and_can_be_added_again(dataset):
    save(VOXELS[..., ::-1], existing="overwrite")
    (path,) = paths()
    removed = dataset.remove_layer("color")
    assert wkwdask.clean(URL) == []
    assert basename(path) in names("color")
    added = removed.add_layer_from_disk("color")
    assert paths() == [path]
    np.testing.assert_array_equal(added["color"].read()[:, :40, :36, :20], VOXELS[..., ::-1])
    emptied = added.remove_mag("color", 1)
    assert list(emptied.add_mags_from_disk("color")["color"].mags) == list(added["color"].mags)


def test_an_incomplete_mag_is_not_added(dataset):
    dataset.remove_layer("color", delete_files=True)
    wkwdask.clean(URL, grace_seconds=0)
    folder = f"{URL}/color/1.20261101T000000-0123abcd"
    store_at(folder).put("header.wkw", b"x")
    store_at(folder).put(".wkwdask.json", b"{}")
    with pytest.raises(MissingError, match="no mags"):
        dataset.refreshed().add_layer_from_disk("color")
    assert wkwdask.clean(URL) == [folder]


def test_copies_between_folders_and_buckets(dataset, tmp_path):
    wkwdask.build_pyramid(URL)
    wkwdask.copy(URL, tmp_path / "copy")
    assert wkwdask.diff(URL, tmp_path / "copy").equal
    assert sorted(path.name for path in (tmp_path / "copy/color").iterdir()) == [
        "1",
        "2-2-1",
        "4-4-2",
    ]
    wkwdask.copy(tmp_path / "copy", "memory://bucket/back")
    wkwdask.copy(URL, "memory://bucket/again")
    for url in ("memory://bucket/back", "memory://bucket/again"):
        assert wkwdask.diff(URL, url).equal


def test_a_downloaded_dataset_is_an_ordinary_one(dataset, tmp_path):
    """Every tool can copy a dataset out of a bucket; wkwdask works on the copy."""
    wkwdask.build_pyramid(URL)
    download(tmp_path / "em")
    local = str(tmp_path / "em")
    assert wkwdask.diff(URL, local).equal
    assert wkwdask.verify(local).is_sound
    wkwdask.build_pyramid(local, existing="overwrite", method="max")
    np.testing.assert_array_equal(wkwdask.read(local, mag=1), VOXELS)


def download(folder: Path):
    for name, found in memory_bucket._objects.items():
        if name.startswith(f"{URL}/"):
            path = folder / name.removeprefix(f"{URL}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(found.data)


@pytest.mark.needs("webknossos")
def test_webknossos_reads_a_downloaded_dataset(dataset, tmp_path):
    webknossos = pytest.importorskip("webknossos")
    wkwdask.build_pyramid(URL)
    download(tmp_path / "em")
    layer = webknossos.Dataset.open(tmp_path / "em").get_layer("color")
    assert sorted(map(str, layer.mags)) == ["1", "2-2-1", "4-4-2"]
    np.testing.assert_array_equal(layer.get_mag(1).read(), VOXELS)


@pytest.mark.needs("wkw")
def test_wkw_reads_a_downloaded_mag(dataset, tmp_path):
    wkw = pytest.importorskip("wkw")
    download(tmp_path / "em")
    (path,) = paths()
    with wkw.Dataset.open(str(tmp_path / "em" / path)) as mag:
        np.testing.assert_array_equal(mag.read((0, 0, 0), VOXELS.shape[1:]), VOXELS)


def test_rm_of_a_mag_and_of_a_layer(dataset):
    wkwdask.build_pyramid(URL)
    mags = list(wkwdask.open_dataset(URL)["color"].mags)
    wkwdask.rm(URL, layer="color", mags=mags[-1:])
    assert list(wkwdask.open_dataset(URL)["color"].mags) == mags[:-1]
    wkwdask.clean(URL, grace_seconds=0)
    assert len(names("color")) == len(mags) - 1
    assert "stay for a week" in wkwdask.rm(URL, layer="color").note
    wkwdask.clean(URL, grace_seconds=0)
    assert [name for name in memory_bucket._objects if name.endswith(".wkw")] == []


def test_a_server_that_ignores_conditions_is_refused(monkeypatch):
    real = memory_bucket.put_once
    monkeypatch.setattr(leases, "_probed", set())
    monkeypatch.setattr(
        memory_bucket,
        "put_once",
        lambda url, data, expect, writer, access: real(url, data, Expected.ANY, writer, access),
    )
    with empty_bucket(), pytest.raises(UnsupportedError, match="does not honour conditional"):
        wkwdask.create_dataset(URL, (4, 4, 8))
