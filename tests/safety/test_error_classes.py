"""Errors that a newcomer meets: each has the right class, and names the file, what was found, and
the remedy."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
import zipfile
from subprocess import run

import numpy as np
import pytest

import wkwdask
from wkwdask.errors import (
    CorruptError,
    FormatError,
    MetadataWarning,
    MissingError,
    UnsupportedError,
)

WKWDASK = (sys.executable, "-m", "wkwdask")
VOXELS = np.arange(210, dtype=np.uint8).reshape(5, 6, 7)


def n5_without_root_attributes(folder):
    """Write an N5 container whose root and groups have no attributes, as ``createGroup`` of n5
    leaves it."""
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
        "zarr_format": 3,
        "node_type": "array",
        "shape": [1 << 53, 4, 4],
        "data_type": "uint8",
        "chunk_grid": grid,
        "chunk_key_encoding": keys,
        "fill_value": 0,
        "codecs": [
            {"name": "bytes"},
            {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
        ],
    }
    (folder / "huge.zarr/zarr.json").write_text(json.dumps(document))


def zarr_of_a_rectilinear_grid(folder):
    (folder / "rect.zarr").mkdir()
    grid = {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[2, 3], [3, 3], [7]]},
    }
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [5, 6, 7],
        "data_type": "uint8",
        "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
    }
    (folder / "rect.zarr/zarr.json").write_text(json.dumps(document))


def nothing(folder):
    pass


NO_ZIP = [
    f"{prefix}nosuch.zip{inside}"
    for prefix in ("", "zarr://", "n5://", "precomputed://")
    for inside in ("|zip:", "|zip:a/b", "|zip:in.zip|zip:")
]
ERRORS = [  # prepare, URL, layer, class, parts of the text
    *((zip_of_text, url, None, MissingError, ["/nosuch.zip: no such zip file"]) for url in NO_ZIP),
    (
        zip_of_text,
        "a.zip|zip:in.zip|zip:",
        None,
        MissingError,
        ["/a.zip|zip:/in.zip: no such zip file"],
    ),
    (
        empty_container,
        "empty.n5",
        None,
        MissingError,
        ["/empty.n5: no N5 dataset found here or below", "attributes.json"],
    ),
    (
        dataset_with_layer_twice,
        "ds",
        "color",
        CorruptError,
        ["/ds/datasource-properties.json: dataLayers[0].name: 2 layers", "'color'", "rename"],
    ),
    (
        dataset_with_layer_twice,
        "ds/color/1",
        None,
        CorruptError,
        ["/ds/datasource-properties.json: dataLayers[0].name: 2 layers", "'color'", "rename"],
    ),
    (
        zarr_of_huge_chunks,
        "huge.zarr",
        None,
        UnsupportedError,
        ["/huge.zarr/zarr.json: expected chunks of at most", "[9007199254740992, 4, 4]", "smaller"],
    ),
    (
        zarr_of_a_rectilinear_grid,
        "rect.zarr",
        None,
        UnsupportedError,
        ["/rect.zarr: chunk_grid: 'rectilinear'", "'regular'", "with chunks of one size"],
    ),
    *(
        (nothing, f"{prefix}a\udcff/b", None, MissingError, ["/a\udcff/b"])
        for prefix in ("", "zarr://", "n5://", "precomputed://")
    ),
    (nothing, "a\udcff.zip|zip:", None, MissingError, ["/a\udcff.zip: no such zip file"]),
]


@pytest.mark.parametrize(
    ("prepare", "url", "layer", "kind", "parts"),
    ERRORS,
    ids=[ascii(f"{row[1]} {row[2] or ''}") for row in ERRORS],
)
def test_the_error_names_the_file_and_the_remedy(
    tmp_path, monkeypatch, prepare, url, layer, kind, parts
):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    with pytest.raises(kind) as caught:
        wkwdask.read(url, layer=layer)
    assert type(caught.value) is kind
    assert all(part in str(caught.value) for part in parts), caught.value


@pytest.mark.parametrize("command", ["info", "verify", "repair", "pyramid", "compress"])
def test_the_command_line_names_a_path_that_is_no_text(tmp_path, command):
    result = run([*WKWDASK, command, str(tmp_path / "a\udcff")], capture_output=True, check=False)
    assert result.returncode in (1, 2)
    assert b"/a\\udcff: no such folder" in result.stderr
    assert b"Traceback" not in result.stderr


@pytest.mark.needs("zarr")
@pytest.mark.parametrize("dtype", ["u1", "<u2", "<u4"])
def test_zarr_2_with_shuffled_bytes_in_zlib_is_read(tmp_path, dtype):
    import numcodecs
    import zarr

    filters, compressor = [numcodecs.Shuffle(np.dtype(dtype).itemsize)], numcodecs.Zlib(1)
    array = zarr.create_array(
        str(tmp_path / "a.zarr"),
        shape=(5, 6, 7),
        chunks=(3, 3, 3),
        dtype=dtype,
        zarr_format=2,
        filters=filters,
        compressors=compressor,
    )
    array[...] = VOXELS
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "a.zarr")[0], VOXELS.T)
    assert wkwdask.verify(tmp_path / "a.zarr").is_sound


LINKED = ["ds", "ds/color"]


@pytest.mark.parametrize("link", LINKED)
@pytest.mark.parametrize("write", ["convert", "to_wkw"])
def test_a_dangling_link_above_a_new_mag_is_named_with_its_target(tmp_path, write, link):
    wkwdask.to_n5(VOXELS[None], tmp_path / "a.n5")
    (tmp_path / "ds").mkdir() if "/" in link else None
    (tmp_path / link).symlink_to(tmp_path / "nowhere")
    source = tmp_path / "a.n5" if write == "convert" else VOXELS[None]
    with pytest.raises(
        MissingError,
        match=(
            rf"/{link}: a symbolic link to {tmp_path}/nowhere, which does not exist; create that "
            r"folder, or remove the link"
        ),
    ):
        getattr(wkwdask, write)(source, tmp_path / "ds/color/1", voxel_size=(4, 4, 40))
    assert not (tmp_path / "nowhere").exists()


TARGETS = [
    "precomputed://{}",
    "precomputed://{}/em",
    "n5://{}",
    "n5://{}/em",
    "n5://{}/em/s0",
    "zarr://{}",
    "zarr://{}/em",
    "{}/em.ome.zarr",
    "{}/ds/color",
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("write", ["convert", "copy", "save"])
def test_a_dangling_link_above_any_new_image_is_named_and_nothing_is_created(
    tmp_path, write, target
):
    wkwdask.to_precomputed(VOXELS[None], tmp_path / "v", voxel_size=(4, 4, 40))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    source, url = f"precomputed://{tmp_path}/v", target.format(tmp_path / "link")
    if write == "copy":
        source = (
            f"{target.partition('://')[0]}://{tmp_path}/same"
            if "://" in target
            else str(tmp_path / ("same.ome.zarr" if "zarr" in target else "same/color"))
        )
        wkwdask.convert(
            f"precomputed://{tmp_path}/v",
            source,
            **({"compression": "raw", "shard_shape": False} if "zarr" in target else {}),
        )
    before = sorted(tmp_path.rglob("*"))
    call = (
        (VOXELS[None], f"{url}/1" if target.endswith("color") else url)
        if write == "save"
        else (source, url)
    )
    with pytest.raises(
        MissingError,
        match=(
            rf"/link: a symbolic link to {tmp_path}/nowhere, which does not exist; create that "
            r"folder, or remove the link"
        ),
    ):
        getattr(wkwdask, write)(*call, **({"voxel_size": (4, 4, 40)} if write == "save" else {}))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_scale_that_is_a_dangling_link_is_reported_beside_the_others(tmp_path):
    wkwdask.to_precomputed(
        np.ones((1, 64, 64, 64), np.uint8), tmp_path / "v", voxel_size=(4, 4, 40)
    )
    wkwdask.build_pyramid(f"precomputed://{tmp_path}/v", mags=["2-2-1", "4-4-1"])
    shutil.rmtree(tmp_path / "v/8_8_40")
    (tmp_path / "v/8_8_40").symlink_to(tmp_path / "nowhere")
    problems = {scale.key: scale.problem for scale in wkwdask.info(tmp_path / "v").scales}
    assert "v/8_8_40: a symbolic link to a missing folder" in problems.pop("8_8_40")
    assert problems == {"4_4_40": "", "16_16_40": ""}
    for allow_external in (False, True):
        assert "not repaired: error folder.dangling: " in str(
            wkwdask.repair(tmp_path / "v", allow_external=allow_external)
        )


@pytest.mark.needs("webknossos")
@pytest.mark.parametrize("data_format", ["zarr", "zarr3"])
def test_axes_to_which_no_array_can_be_added_name_the_remedy(tmp_path, data_format):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # readers of microscopes that are not installed
        import webknossos

    dataset = webknossos.Dataset(tmp_path / "ds", voxel_size=(4, 4, 40))
    box = webknossos.BoundingBox((0, 0, 0), (64, 64, 64))
    layer = dataset.add_layer(
        "seg",
        "segmentation",
        dtype="uint8",
        data_format=data_format,
        bounding_box=box,
        largest_segment_id=1,
    )
    layer.add_mag(1).write(np.ones((1, 64, 64, 64), np.uint8), absolute_offset=(0, 0, 0))
    for verb in (wkwdask.build_pyramid, wkwdask.compress):
        with pytest.raises(
            FormatError,
            match=r"/seg: the axes of the image are .*; wkwdask convert stores it as a new image",
        ):
            verb(f"zarr://{tmp_path}/ds/seg")
    wkwdask.convert(f"zarr://{tmp_path}/ds/seg", f"zarr://{tmp_path}/new")
    wkwdask.build_pyramid(f"zarr://{tmp_path}/new", mags=["2-2-1"])
    assert wkwdask.read(f"zarr://{tmp_path}/new", mag="2-2-1").any()


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
    assert [fault.found.split(":")[0] for fault in twice] == [
        "dataLayers[0].name",
        "dataLayers[2].name",
    ]
    assert wkwdask.read(tmp_path / "ds", layer="other").all()
    before = (tmp_path / "ds/datasource-properties.json").read_bytes()
    wkwdask.repair(tmp_path / "ds")
    assert (tmp_path / "ds/datasource-properties.json").read_bytes() == before


def write_zarr(path):
    zarr = pytest.importorskip("zarr", reason="the extra zarr")
    zarr.create_array(
        str(path), shape=VOXELS.shape, chunks=(3, 3, 3), dtype="u1", dimension_names=["x", "y", "z"]
    )[...] = VOXELS


def write_n5(path):
    wkwdask.to_n5(VOXELS[None], path)
    document = json.loads((path / "attributes.json").read_text())
    (path / "attributes.json").write_text(json.dumps({**document, "axes": ["x", "y", "z"]}))


def write_hdf5(path):
    h5py = pytest.importorskip("h5py", reason="the extra convert")
    with h5py.File(path, "w") as file:
        for dim, name in zip(file.create_dataset("a", data=VOXELS).dims, "xyz", strict=True):
            dim.label = name


@pytest.mark.parametrize(
    ("name", "write"), [("a.zarr", write_zarr), ("a.n5", write_n5), ("a.h5", write_hdf5)]
)
def test_axes_that_contradict_the_names_in_the_file_are_used_with_a_warning(
    tmp_path, monkeypatch, name, write
):
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
        # no registered filter, so no plugin can have it
        properties.set_filter(444, h5py.h5z.FLAG_OPTIONAL, ())
        data = h5py.h5d.create(
            file.id,
            b"raw",
            h5py.h5t.NATIVE_UINT8,
            h5py.h5s.create_simple((4, 4, 4)),
            dcpl=properties,
        )
        data.write_direct_chunk((0, 0, 0), bytes(64), 0)
    with pytest.raises(
        ModuleNotFoundError, match=r"/a.h5:/raw: needs the HDF5 filter 444.*pip install hdf5plugin"
    ):
        wkwdask.convert(tmp_path / "a.h5", tmp_path / "ds/color/1", voxel_size=(4, 4, 40))
    assert not (tmp_path / "ds").exists()


def test_stores_for_zarr_name_the_extra_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    wkwdask.to_n5(np.ones((1, 8, 8, 8), np.uint8), tmp_path / "v.n5/raw")
    for make in (wkwdask.n5_store, wkwdask.zarr_view):
        with pytest.raises(
            ModuleNotFoundError, match=rf"{make.__name__}: needs the package zarr.*wkwdask\[zarr\]"
        ):
            make(tmp_path / "v.n5/raw")


@pytest.mark.parametrize(
    "verb", [wkwdask.copy, wkwdask.compress, wkwdask.rechunk], ids=lambda verb: verb.__name__
)
def test_attachments_that_are_not_copied_are_named(tmp_path, verb):
    wkwdask.create_dataset(tmp_path / "ds", voxel_size=(4, 4, 40))
    wkwdask.to_wkw(
        np.ones((1, 8, 8, 8), np.uint32), tmp_path / "ds/cells/1", category="segmentation"
    )
    path = tmp_path / "ds/datasource-properties.json"
    document = json.loads(path.read_text())
    document["dataLayers"][0]["attachments"] = {
        "meshes": [{"name": "large", "path": "/elsewhere/large.hdf5", "dataFormat": "hdf5"}]
    }
    path.write_text(json.dumps(document))
    assert (
        "not copied: attachment large (meshes) of layer cells"
        in verb(tmp_path / "ds", tmp_path / "new").note
    )
