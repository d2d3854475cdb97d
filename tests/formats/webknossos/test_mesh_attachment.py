"""Meshes as attachments of a layer of a WEBKNOSSOS dataset."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.errors import ExistsError, MissingError
from wkwdask.formats.precomputed.mesh_reader import open_meshes
from wkwdask.formats.webknossos.datasource import FILE_NAME
from wkwdask.formats.webknossos.layer_metadata import Attachment
from wkwdask.formats.webknossos.mesh_attachment import MeshAttachment, attached_meshes
from wkwdask.viewer.layers import layers_of

OFFSET, LENGTHS = (13, 8, 5), (8, 6, 30)
NEUROGLANCER = "neuroglancerPrecomputed"


@pytest.fixture
def layer(tmp_path):
    voxels = np.zeros((40, 30, 20), np.uint32)
    voxels[3:35, 4:12, 4:16], voxels[3:40, 15:25, 4:16] = 1, 2
    wkwdask.create_dataset(tmp_path / "ds", voxel_size=LENGTHS)
    wkwdask.save(voxels, tmp_path / "ds" / "seg" / "1", category="segmentation", offset=OFFSET)
    return tmp_path / "ds" / "seg"


def entry_of(layer):
    (entry,) = json.loads((layer.parent / FILE_NAME).read_bytes())["dataLayers"]
    return entry


def edited(layer, **fields):
    document = json.loads((layer.parent / FILE_NAME).read_bytes())
    document["dataLayers"][0].update(fields)
    (layer.parent / FILE_NAME).write_text(json.dumps(document))


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_meshes_become_an_attachment(layer):
    agglomerates = {"name": "a", "path": "./seg/agglomerates/a", "dataFormat": "zarr3"}
    edited(layer, attachments={"agglomerates": [agglomerates]})
    before = entry_of(layer)
    report = wkwdask.meshes(layer, cell=12)
    own = {"name": "mesh", "path": "./seg/mesh", "dataFormat": NEUROGLANCER}
    attachments = {"agglomerates": [agglomerates], "meshes": [own]}
    assert entry_of(layer) == {**before, "attachments": attachments}
    assert report.mags[0].path == str(layer / "mesh")
    assert wkwdask.open_dataset(layer.parent)["seg"].attachments[-1] == Attachment(
        "meshes", "mesh", "./seg/mesh", NEUROGLANCER
    )
    # the server multiplies positions by this, and reads shards only
    info = json.loads((layer / "mesh" / "info").read_bytes())
    assert info["lod_scale_multiplier"] == 1
    assert "sharding" in info
    vertices = open_meshes(str(layer / "mesh")).triangles(1, 0).vertices
    expected = [(np.array([a, b, c]) + OFFSET) * LENGTHS for a, b, c in ((3, 4, 4), (35, 12, 16))]
    np.testing.assert_allclose([vertices.min(0), vertices.max(0)], expected, atol=0.1)


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_other_verbs_know_them(layer, tmp_path):
    wkwdask.meshes(layer, cell=12)
    for path in (layer, layer.parent):
        report = wkwdask.verify(path)
        assert report.is_sound
        assert [mag.mag for mag in report.mags] == ["1", "mesh"]
    assert [mag.mag for mag in wkwdask.verify(layer / "1").mags] == ["1"]
    assert wkwdask.preview(layer, tmp_path / "m.png", mesh=2).exists()
    (note,) = wkwdask.info(layer.parent).to_json()["notes"]
    assert note.startswith(f"meshes in {layer / 'mesh'}: 2 labels in 2 files, ")
    assert note in run_here("info", layer).stdout
    assert "notes" not in wkwdask.info(layer / "1").to_json()
    shard = layer / "mesh" / "0.shard"
    shard.write_bytes(shard.read_bytes()[:-30])
    (fault,) = wkwdask.verify(layer.parent).faults
    assert (fault.kind, fault.path) == ("mesh.shard", str(shard))
    (layer / "mesh").rename(tmp_path / "elsewhere")
    (fault,) = wkwdask.verify(layer.parent).faults
    assert (fault.kind, fault.path) == ("mesh.missing", str(layer.parent / FILE_NAME))


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_names_that_exist(layer):
    wkwdask.meshes(layer, cell=12)
    with pytest.raises(ExistsError, match="mesh: already exists"):
        wkwdask.meshes(layer, cell=12)
    wkwdask.meshes(layer, layer / "fine", cell=12, error=0)
    assert [each["name"] for each in entry_of(layer)["attachments"]["meshes"]] == ["mesh", "fine"]
    elsewhere = [{"name": "third", "path": "../m", "dataFormat": "hdf5"}]
    edited(layer, attachments={"meshes": elsewhere})
    with pytest.raises(ExistsError, match=r"lists the meshes 'third' in \.\./m; existing="):
        wkwdask.meshes(layer, layer / "third", cell=12)
    assert not (layer / "third").exists()
    wkwdask.meshes(layer, layer / "third", cell=12, existing="overwrite")
    (own,) = entry_of(layer)["attachments"]["meshes"]
    assert own == {"name": "third", "path": "./seg/third", "dataFormat": NEUROGLANCER}


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_all_attachments_are_known(layer):
    wkwdask.meshes(layer, cell=12)
    wkwdask.meshes(layer, layer / "fine", cell=12, error=0)
    assert [mag.mag for mag in wkwdask.verify(layer).mags] == ["1", "mesh", "fine"]
    shard = layer / "fine" / "0.shard"
    shard.write_bytes(shard.read_bytes()[:-30])
    (fault,) = wkwdask.verify(layer).faults
    assert (fault.kind, fault.path) == ("mesh.shard", str(shard))
    with pytest.warns(UserWarning, match="are those of the old voxels") as warned:
        wkwdask.save(np.ones((1, 1, 1), np.uint32), layer / "1", region=(OFFSET, (14, 9, 6)))
    named = [str(each.message).partition(":")[0] for each in warned]
    assert named == [str(layer / "mesh"), str(layer / "fine")]


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
@pytest.mark.parametrize(
    ("data_format", "scheme", "key"),
    [("zarr3", "zarr", "1"), (NEUROGLANCER, "precomputed", "8_6_30")],
)
def test_layers_of_other_formats(layer, tmp_path, data_format, scheme, key):
    dataset, stored = layer.parent, layer.parent / "stored"
    wkwdask.convert(layer, f"{scheme}://{stored}")
    mags = [{"mag": [1, 1, 1], "path": f"./stored/{key}"}]
    edited(layer, name="stored", dataFormat=data_format, mags=mags)
    shutil.rmtree(layer)
    (shown,) = layers_of(dataset, ["stored"], None)
    assert shown.meshes is None
    wkwdask.meshes(dataset, stored / "mesh", cell=12)
    (shown,) = layers_of(dataset, ["stored"], None)
    assert shown.meshes is not None
    assert [mag.mag for mag in wkwdask.verify(dataset).mags] == ["1", "mesh"]
    (note,) = wkwdask.info(dataset).to_json()["notes"]
    assert note.startswith(f"meshes in {stored / 'mesh'}: 2 labels in 2 files, ")
    assert wkwdask.preview(dataset, tmp_path / "m.png", mesh=2).exists()
    assert wkwdask.rm(dataset, layer="stored").remaining == ()


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_wrong_layers(layer, tmp_path):
    with pytest.raises(ValueError, match="reads meshes in shards, expected sharded=True"):
        wkwdask.meshes(layer, sharded=False)
    with pytest.raises(ValueError, match="segment_properties is for Neuroglancer precomputed"):
        wkwdask.meshes(layer, segment_properties=True)
    edited(layer, category="color")
    with pytest.raises(ValueError, match="expected a segmentation, found layer 'seg' of category"):
        wkwdask.meshes(layer)
    (layer.parent / FILE_NAME).unlink()
    with pytest.raises(ValueError, match="name the folder of the meshes in"):
        wkwdask.meshes(layer)


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr", "obstore")
def test_in_a_bucket(layer):
    dataset = "memory://attachments/ds"
    wkwdask.create_dataset(dataset, voxel_size=LENGTHS)
    voxels = wkwdask.read(layer / "1")
    wkwdask.save(voxels, f"{dataset}/seg/1", category="segmentation", offset=OFFSET)
    wkwdask.meshes(f"{dataset}/seg", cell=12)
    (first,) = wkwdask.open_dataset(dataset)["seg"].attachments
    assert first.path.startswith("./seg/mesh.")
    assert wkwdask.verify(f"{dataset}/seg").mags[-1].blocks > 10
    wkwdask.meshes(f"{dataset}/seg", cell=14, existing="overwrite")
    (second,) = wkwdask.open_dataset(dataset)["seg"].attachments
    assert second.path != first.path
    assert wkwdask.clean(f"{dataset}/seg", grace_seconds=0) == [f"{dataset}/{first.path[2:]}"]
    assert wkwdask.verify(dataset).is_sound


def test_remote_datasets_name_no_local_meshes():
    entry = {"attachments": {"meshes": [{"name": "m", "path": "/etc", "dataFormat": NEUROGLANCER}]}}
    assert attached_meshes("https://host/ds", entry) == []
    assert attached_meshes("/ds", entry) == ["/etc"]
    entry["attachments"]["meshes"][0]["path"] = "./seg/m"
    assert attached_meshes("https://host/ds", entry) == ["https://host/ds/seg/m"]
    entry["attachments"]["meshes"][0]["dataFormat"] = "hdf5"
    assert attached_meshes("/ds", entry) == []


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_new_voxels_leave_old_meshes(layer, tmp_path):
    wkwdask.meshes(layer, cell=12)
    voxels = wkwdask.read(layer / "1")
    wkwdask.save(voxels, tmp_path / "other", offset=OFFSET)
    warned = pytest.warns(UserWarning, match="seg/mesh: the meshes are those of the old voxels; me")
    with warned:
        wkwdask.save(voxels[:, :8], layer / "1", region=((13, 8, 5), (21, 38, 25)))
    with warned:
        wkwdask.remap(tmp_path / "other", layer / "1", {1: 7}, existing="overwrite")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(wkwdask.WkwDaskError, match="no mags that"):
            wkwdask.build_pyramid(layer, update=True)  # refused: changes nothing
    wkwdask.build_pyramid(layer, mags=["2"])  # changes no voxels that were there
    assert wkwdask.verify(layer).is_sound


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_meshes_are_removed_with_their_layer(layer):
    wkwdask.meshes(layer, cell=12)
    wkwdask.meshes(layer, layer / "fine", cell=12, error=0)
    (layer / "fine" / "notes.txt").write_text("mine")
    assert wkwdask.rm(layer, mags="1", dry_run=True).paths == (str(layer / "1"),)
    planned = wkwdask.rm(layer.parent, layer="seg", dry_run=True)
    assert planned.paths == (str(layer / "1"), str(layer / "mesh"))
    report = wkwdask.rm(layer.parent, layer="seg")
    assert report.paths == planned.paths
    assert report.remaining == (str(layer / "fine"),)
    assert [path.name for path in layer.iterdir()] == ["fine"]
    assert json.loads((layer.parent / FILE_NAME).read_bytes())["dataLayers"] == []


def test_a_layer_that_is_gone(layer):
    edit = MeshAttachment(str(layer.parent), "other", "mesh", "./other/mesh")
    with pytest.raises(MissingError, match=f"{FILE_NAME}: lists no layer 'other'"):
        edit.check_current()
    assert MeshAttachment.from_json(edit.to_json()) == edit
