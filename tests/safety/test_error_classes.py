"""Errors that a newcomer meets: each has the right class, and names the file, what was found, and the remedy."""

from __future__ import annotations

import json
import sys
import zipfile

import numpy as np
import pytest

import wkwdask
from wkwdask.errors import CorruptError, MetadataWarning, MissingError, UnsupportedError

VOXELS = np.arange(210, dtype=np.uint8).reshape(5, 6, 7)


def n5_without_root_attributes(folder):
    """Write an N5 container whose root and groups have no attributes, as ``createGroup`` of n5 leaves it."""
    wkwdask.to_n5(np.ones((1, 8, 8, 8), np.uint8), folder / "x.n5/a/raw")
    for group in ("x.n5", "x.n5/a"):
        (folder / group / "attributes.json").unlink(missing_ok=True)


def dataset_with_layer_twice(folder):
    wkwdask.create_dataset(folder / "ds", voxel_size=(4, 4, 40))
    for name in ("color", "other"):
        wkwdask.to_wkw(np.ones((1, 8, 8, 8), np.uint8), folder / f"ds/{name}/1")
    path = folder / "ds/datasource-properties.json"
    document = json.loads(path.read_text())
    document["dataLayers"].append(document["dataLayers"][0])
    path.write_text(json.dumps(document))


def zip_of_text(folder):
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("readme.txt", "no image")


def empty_container(folder):
    (folder / "empty.n5").mkdir()


def zarr_of_huge_chunks(folder):
    (folder / "huge.zarr").mkdir()
    grid = {"name": "regular", "configuration": {"chunk_shape": [1 << 53, 4, 4]}}
    keys = {"name": "default", "configuration": {"separator": "/"}}
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [1 << 53, 4, 4], "data_type": "uint8", "chunk_grid": grid, "chunk_key_encoding": keys,
        "fill_value": 0, "codecs": [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
    }  # fmt: skip
    (folder / "huge.zarr/zarr.json").write_text(json.dumps(document))


NO_ZIP = [f"{prefix}nosuch.zip{inside}" for prefix in ("", "zarr://", "n5://", "precomputed://") for inside in ("|zip:", "|zip:a/b", "|zip:in.zip|zip:")]
ERRORS = [  # prepare, URL, layer, class, parts of the text
    *((zip_of_text, url, None, MissingError, ["/nosuch.zip: no such zip file"]) for url in NO_ZIP),
    (zip_of_text, "a.zip|zip:in.zip|zip:", None, MissingError, ["/a.zip|zip:/in.zip: no such zip file"]),
    (empty_container, "empty.n5", None, MissingError, ["/empty.n5: no N5 dataset found here or below", "attributes.json"]),
    (dataset_with_layer_twice, "ds", "color", CorruptError, ["/ds/datasource-properties.json: dataLayers[0].name: 2 layers", "'color'", "rename"]),
    (dataset_with_layer_twice, "ds/color/1", None, CorruptError, ["/ds/datasource-properties.json: dataLayers[0].name: 2 layers", "'color'", "rename"]),
    (zarr_of_huge_chunks, "huge.zarr", None, UnsupportedError, ["/huge.zarr/zarr.json: expected chunks of at most", "[9007199254740992, 4, 4]", "smaller"]),
]


@pytest.mark.parametrize(("prepare", "url", "layer", "kind", "parts"), ERRORS, ids=[f"{row[1]} {row[2] or ''}" for row in ERRORS])
def test_the_error_names_the_file_and_the_remedy(tmp_path, monkeypatch, prepare, url, layer, kind, parts):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    with pytest.raises(kind) as caught:
        wkwdask.read(url, layer=layer)
    assert type(caught.value) is kind
    assert all(part in str(caught.value) for part in parts), caught.value


def test_info_and_verify_name_a_zip_that_does_not_exist(tmp_path):
    for command in (wkwdask.info, wkwdask.verify):
        with pytest.raises(MissingError, match=r"/nosuch\.zip: no such zip file"):
            command(tmp_path / "nosuch.zip|zip:")


def test_n5_without_attributes_of_the_root_opens_without_prefix(tmp_path):
    n5_without_root_attributes(tmp_path)
    for path in ("x.n5", "x.n5/a", "x.n5/a/raw"):
        assert wkwdask.read(tmp_path / path).all()
        assert wkwdask.info(tmp_path / path).dtype == "uint8"
        assert not wkwdask.verify(tmp_path / path).faults


def test_verify_reports_two_layers_of_one_name_and_others_remain_usable(tmp_path):
    dataset_with_layer_twice(tmp_path)
    report = wkwdask.verify(tmp_path / "ds")
    twice = [fault for fault in report.faults if fault.kind == "layer.twice"]
    assert [fault.found.split(":")[0] for fault in twice] == ["dataLayers[0].name", "dataLayers[2].name"]
    assert wkwdask.read(tmp_path / "ds", layer="other").all()
    before = (tmp_path / "ds/datasource-properties.json").read_bytes()
    wkwdask.repair(tmp_path / "ds")
    assert (tmp_path / "ds/datasource-properties.json").read_bytes() == before


def write_zarr(path):
    zarr = pytest.importorskip("zarr", reason="the extra zarr")
    zarr.create_array(str(path), shape=VOXELS.shape, chunks=(3, 3, 3), dtype="u1", dimension_names=["x", "y", "z"])[...] = VOXELS


def write_n5(path):
    wkwdask.to_n5(VOXELS[None], path)
    document = json.loads((path / "attributes.json").read_text())
    (path / "attributes.json").write_text(json.dumps({**document, "axes": ["x", "y", "z"]}))


def write_hdf5(path):
    h5py = pytest.importorskip("h5py", reason="the extra convert")
    with h5py.File(path, "w") as file:
        for dim, name in zip(file.create_dataset("a", data=VOXELS).dims, "xyz", strict=True):
            dim.label = name


@pytest.mark.parametrize(("name", "write"), [("a.zarr", write_zarr), ("a.n5", write_n5), ("a.h5", write_hdf5)])
def test_axes_that_contradict_the_names_in_the_file_are_used_with_a_warning(tmp_path, monkeypatch, name, write):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name)
    with pytest.warns(MetadataWarning, match=rf"/{name}.*states the axes x, y, z, but axes='zyx'"):
        wkwdask.convert(name, "ds/color/1", axes="zyx", voxel_size=(4, 4, 40))
    np.testing.assert_array_equal(wkwdask.read("ds/color/1")[0], VOXELS.T)
    wkwdask.convert(name, "ds/same/1", axes="xyz", voxel_size=(4, 4, 40))
    np.testing.assert_array_equal(wkwdask.read("ds/same/1")[0], VOXELS)


@pytest.mark.needs("h5py")
def test_a_missing_filter_of_hdf5_is_named_before_anything_is_written(tmp_path, monkeypatch):
    import h5py

    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((4, 4, 4))
        properties.set_filter(444, h5py.h5z.FLAG_OPTIONAL, ())  # no registered filter, so no plugin can have it
        data = h5py.h5d.create(file.id, b"raw", h5py.h5t.NATIVE_UINT8, h5py.h5s.create_simple((4, 4, 4)), dcpl=properties)
        data.write_direct_chunk((0, 0, 0), bytes(64), 0)
    with pytest.raises(ModuleNotFoundError, match=r"/a.h5:/raw: needs the HDF5 filter 444.*pip install hdf5plugin"):
        wkwdask.convert(tmp_path / "a.h5", tmp_path / "ds/color/1", voxel_size=(4, 4, 40))
    assert not (tmp_path / "ds").exists()


def test_stores_for_zarr_name_the_extra_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    wkwdask.to_n5(np.ones((1, 8, 8, 8), np.uint8), tmp_path / "v.n5/raw")
    for make in (wkwdask.n5_store, wkwdask.zarr_view):
        with pytest.raises(ModuleNotFoundError, match=rf"{make.__name__}: needs the package zarr.*wkwdask\[zarr\]"):
            make(tmp_path / "v.n5/raw")


@pytest.mark.parametrize("verb", [wkwdask.copy, wkwdask.compress, wkwdask.rechunk], ids=lambda verb: verb.__name__)
def test_attachments_that_are_not_copied_are_named(tmp_path, verb):
    wkwdask.create_dataset(tmp_path / "ds", voxel_size=(4, 4, 40))
    wkwdask.to_wkw(np.ones((1, 8, 8, 8), np.uint32), tmp_path / "ds/cells/1", category="segmentation")
    path = tmp_path / "ds/datasource-properties.json"
    document = json.loads(path.read_text())
    document["dataLayers"][0]["attachments"] = {"meshes": [{"name": "large", "path": "/elsewhere/large.hdf5", "dataFormat": "hdf5"}]}
    path.write_text(json.dumps(document))
    assert "not copied: attachment large (meshes) of layer cells" in verb(tmp_path / "ds", tmp_path / "new").note
