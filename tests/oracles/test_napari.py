"""The reader for napari, found by npe2, and its layers in napari where that is installed."""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import wkwdask

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of pydantic
    npe2 = pytest.importorskip("npe2", reason="npe2 is not installed")
ROOT = Path(wkwdask.__file__).parent
MANIFEST = ROOT / "viewer" / "napari.yaml"
TOPLEFT, VOXEL_SIZE = (101, 35, 17), (11.0, 11.0, 22.0)
RANDOM = np.random.default_rng(2)
EM = RANDOM.integers(1, 255, (75, 64, 40), np.uint8)
IDS = RANDOM.integers(1, 1 << 60, (75, 64, 40), np.uint64)
RGB = RANDOM.integers(1, 255, (3, 75, 64, 40), np.uint8)
PLACED = {"offset": TOPLEFT, "voxel_size": VOXEL_SIZE}
ARRAY = '{"zarr_format":2,"shape":[4,5,6],"chunks":[4,5,6],"dtype":"|u1","compressor":null,"fill_value":0,"order":"C","filters":null}'  # noqa: E501


@pytest.fixture(autouse=True)
def _plugin(npe2pm):
    with npe2pm.tmp_plugin(manifest=MANIFEST):
        yield


def _read(path):
    return npe2.read([str(path)], stack=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("napari")
    wkwdask.create_dataset(root / "ds", VOXEL_SIZE)
    for name, voxels in (("cells", IDS), ("em", EM), ("rgb", RGB)):
        wkwdask.to_wkw(voxels, root / "ds" / name / "1", offset=TOPLEFT, block_len=16, file_len=1)
    wkwdask.build_pyramid(root / "ds", "em", mags=["2-2-1", "4-4-2"])
    wkwdask.to_precomputed(IDS, root / "precomputed", **PLACED)
    wkwdask.to_n5(EM, root / "v.n5" / "em", **PLACED)
    wkwdask.to_zarr(EM, root / "v3.zarr", **PLACED)
    wkwdask.to_zarr(IDS, root / "v2.zarr", **PLACED, ngff="0.4")
    return root


def test_the_entry_point_names_the_manifest():
    project = ROOT.parent / "pyproject.toml"
    if not project.exists():
        pytest.skip("no checkout: the package is installed")
    name, _, file = tomllib.loads(project.read_text())["project"]["entry-points"][
        "napari.manifest"
    ]["wkwdask"].partition(":")
    assert ROOT.parent / name.replace(".", "/") / file == MANIFEST


def test_layers_of_a_dataset(root):
    layers = _read(root / "ds")
    assert [(kind, attributes["name"]) for _, attributes, kind in layers] == [
        ("image", "em"),
        ("image", ["rgb 0", "rgb 1", "rgb 2"]),
        ("labels", "cells"),
    ]
    for _, attributes, _ in layers:
        assert (attributes["scale"], attributes["units"], attributes["axis_labels"]) == (
            (22, 11, 11),
            ("nm",) * 3,
            ("z", "y", "x"),
        )
    em, rgb, cells = layers
    # mag 4-4-2 begins at voxel (100, 32, 16) and ends at (176, 100, 58); all mags cover that
    assert [level.shape for level in em[0]] == [(42, 68, 76), (42, 34, 38), (21, 17, 19)]
    assert em[1]["translate"] == (16 * 22, 32 * 11, 100 * 11)
    assert_array_equal(em[0][0][1:41, 3:67, 1:76], EM.T)
    assert not em[0][0][0].any()
    assert_array_equal(em[0][1][1:41, 1:34], wkwdask.read(root / "ds" / "em" / "2-2-1")[0].T)
    assert_array_equal(em[0][2], wkwdask.read(root / "ds" / "em" / "4-4-2")[0].T)
    low, high = em[1]["contrast_limits"]
    assert 1 <= low < high < 255
    assert_array_equal(rgb[0], RGB.transpose(0, 3, 2, 1))
    assert (rgb[1]["channel_axis"], rgb[1]["colormap"], len(rgb[1]["contrast_limits"])) == (
        0,
        ["red", "green", "blue"],
        3,
    )
    assert_array_equal(cells[0], IDS.T)
    assert cells[1]["translate"] == (17 * 22, 35 * 11, 101 * 11)
    assert "contrast_limits" not in cells[1]


@pytest.mark.parametrize(
    ("path", "voxels", "kind"),
    [
        ("ds/em", EM, "image"),
        ("ds/cells/1", IDS, "labels"),
        ("precomputed", IDS, "labels"),
        ("v.n5", EM, "image"),
        ("v3.zarr", EM, "image"),
        ("v2.zarr", IDS, "labels"),
        ("v2.zarr/1", IDS, "labels"),
    ],
)
def test_layers_of_all_formats(root, path, voxels, kind):
    [(data, attributes, found)] = _read(root / path)
    finest = data[0][1:41, 3:67, 1:76] if attributes["multiscale"] else data
    assert (found, attributes["scale"], attributes["units"]) == (kind, (22, 11, 11), ("nm",) * 3)
    assert attributes["multiscale"] or attributes["translate"] == (17 * 22, 35 * 11, 101 * 11)
    assert_array_equal(finest, voxels.T)


def test_layers_of_a_coarse_mag_and_of_a_plain_array(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4.0, 4.0, 40.0))
    wkwdask.to_wkw(
        np.ones((3, 20, 10, 8), np.uint32),
        tmp_path / "ds" / "seg" / "4-4-1",
        offset=(5, 0, 7),
        block_len=8,
        category="segmentation",
    )
    layers = _read(tmp_path / "ds")
    assert [(attributes["name"], kind) for _, attributes, kind in layers] == [
        ("seg 0", "labels"),
        ("seg 1", "labels"),
        ("seg 2", "labels"),
    ]
    # the center of a voxel of mag 4 is 1.5 voxels of mag 1 beyond the center of its first one
    assert (layers[0][1]["scale"], layers[0][1]["translate"]) == (
        (40, 16, 16),
        (7 * 40, 1.5 * 4, 5 * 16 + 1.5 * 4),
    )
    (tmp_path / "array").mkdir()
    (tmp_path / "array" / ".zarray").write_text(ARRAY)
    [(data, attributes, kind)] = _read(tmp_path / "array")
    assert (data.shape, attributes["scale"], kind) == ((4, 5, 6), (1, 1, 1), "image")
    assert "units" not in attributes
    assert "contrast_limits" not in attributes


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"info": "some text"},
        {"info": '{"@type": "neuroglancer_legacy_mesh"}'},
        {"attributes.json": '{"author": "somebody"}'},
        {"attributes.json": "{"},
        {".zgroup": '{"zarr_format":2}', ".zattrs": "{}"},
        {".zgroup": '{"zarr_format":2}', "X/.zarray": ARRAY},
        {".zarray": ARRAY.replace("[4,5,6]", "[4]")},
        {"zarr.json": "{"},
        {"zarr.json": '{"zarr_format":3,"node_type":"group"}'},
        {
            "datasource-properties.json": '{"id":{"name":"a","team":""},"dataLayers":[],"scale":[1,1,1]}'  # noqa: E501
        },
    ],
    ids=lambda files: "+".join(files) or "empty",
)
def test_other_folders_are_left_to_others(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match="No readers returned data"):
        _read(tmp_path)


@pytest.mark.parametrize("name", ["info", "datasource-properties.json"])
def test_a_damaged_record_is_an_error(tmp_path, name):
    (tmp_path / name).write_text('{"scales": [')
    with pytest.raises(wkwdask.CorruptError, match=name):
        _read(tmp_path)


@pytest.mark.filterwarnings("ignore")  # those of napari and its dependencies
def test_layers_in_napari(root):
    components = pytest.importorskip(
        "napari.components", reason="napari, of the extra napari, is not installed"
    )
    viewer = components.ViewerModel()
    layers = viewer.open(str(root / "ds"), plugin="wkwdask")
    assert [(layer.name, type(layer).__name__) for layer in layers] == [
        ("em", "Image"),
        *((f"rgb {n}", "Image") for n in range(3)),
        ("cells", "Labels"),
    ]
    assert np.array_equal(layers[0].downsample_factors, [(1, 1, 1), (1, 2, 2), (2, 4, 4)])
    x, y, z = 120, 70, 30
    viewer.dims.set_point(range(3), (z * 22, y * 11, x * 11))
    assert layers[4].get_value((z * 22, y * 11, x * 11), world=True) == IDS[x - 101, y - 35, z - 17]
    assert (
        layers[2].get_value((z * 22, y * 11, x * 11), world=True) == RGB[1, x - 101, y - 35, z - 17]
    )
    assert {str(unit) for layer in layers for unit in layer.units} == {"nanometer"}
