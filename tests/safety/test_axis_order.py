"""Layers of WEBKNOSSOS datasets that are N5 or Zarr arrays: ``axisOrder``, ``numChannels`` and
``channelIndex`` say what their dimensions are."""

import json

import numpy as np
import pytest
from support.commands import run_here
from support.n5_volumes import write_dataset

import wkwdask
from wkwdask.errors import FormatError, UnsupportedError

NEEDS_ZARR = pytest.mark.needs("zarr")
VOXELS = np.arange(3 * 4 * 5 * 6, dtype=np.uint8).reshape(3, 4, 5, 6)  # c, x, y, z


def write_layer(folder, array, data_format, channels, mag_entry=None, extra=None):
    """Write a dataset of one layer, whose array has its dimensions as ``axisOrder`` counts them."""
    box = {"topLeft": [0, 0, 0], "width": 4, "height": 5, "depth": 6}
    layer = {
        "name": "em",
        "category": "color",
        "boundingBox": box,
        "dataFormat": data_format,
        "elementClass": "uint8",
        "numChannels": channels,
        "mags": [{"mag": [1, 1, 1], "path": "./em/1", **(mag_entry or {})}],
        **(extra or {}),
    }
    if channels is None:
        del layer["numChannels"]
    folder.mkdir()
    document = {
        "id": {"name": "ds", "team": ""},
        "scale": {"factor": [4, 4, 40], "unit": "nanometer"},
        "dataLayers": [layer],
        "version": 1,
    }
    (folder / "datasource-properties.json").write_text(json.dumps(document))
    if data_format == "n5":
        write_dataset(folder / "em" / "1", array, block=(2,) * array.ndim)
    else:
        zarr = pytest.importorskip("zarr", reason="the extra zarr")
        version = 3 if data_format == "zarr3" else 2
        zarr.create_array(
            folder / "em" / "1",
            shape=array.shape,
            dtype=array.dtype,
            chunks=(2,) * array.ndim,
            zarr_format=version,
        )[...] = array
    return folder


CASES = {
    "the usual order": ("cxyz", {}, 3),
    "as the library writes it": ("cxyz", {"axisOrder": {"c": 0, "x": 1, "y": 2, "z": 3}}, 3),
    "channels last": ("xyzc", {"axisOrder": {"x": 0, "y": 1, "z": 2, "c": 3}}, 3),
    "turned": ("zcyx", {"axisOrder": {"c": 1, "x": 3, "y": 2, "z": 0}}, 3),
    "channels that are not listed": ("cxyz", {"axisOrder": {"x": 1, "y": 2, "z": 3}}, 3),
    "no channel axis": ("zyx", {"axisOrder": {"x": 2, "y": 1, "z": 0}}, 1),
    "a channel axis that the array does not have": (
        "xyz",
        {"axisOrder": {"c": 0, "x": 1, "y": 2, "z": 3}},
        1,
    ),
    "one channel of several": (
        "cxyz",
        {"axisOrder": {"c": 0, "x": 1, "y": 2, "z": 3}, "channelIndex": 1},
        1,
    ),
    "the first two": ("cxyz", {}, 2),
    "a number of channels that nobody says": ("cxyz", {}, None),
}


@pytest.mark.parametrize(
    "data_format",
    ["n5", pytest.param("zarr", marks=NEEDS_ZARR), pytest.param("zarr3", marks=NEEDS_ZARR)],
)
@pytest.mark.parametrize("name", CASES)
def test_dimensions(tmp_path, name, data_format):
    axes, entry, channels = CASES[name]
    first = entry.get("channelIndex", 0)
    expected = VOXELS[first : first + (channels or 3)] if "c" in axes else VOXELS[:1]
    turned = (
        VOXELS.transpose(["cxyz".index(letter) for letter in axes])
        if "c" in axes
        else VOXELS[0].transpose(["xyz".index(letter) for letter in axes])
    )
    dataset = write_layer(tmp_path / "ds", turned, data_format, channels, entry)
    array = wkwdask.open(dataset)
    np.testing.assert_array_equal(array, expected)
    np.testing.assert_array_equal(
        wkwdask.read(dataset / "em" / "1", ((1, 1, 1), (4, 4, 4))), expected[:, 1:4, 1:4, 1:4]
    )
    np.testing.assert_array_equal(array[-1:, 1:3, 0:5, 3:6].compute(), expected[-1:, 1:3, 0:5, 3:6])
    report = wkwdask.convert(dataset, tmp_path / "wkw")
    np.testing.assert_array_equal(wkwdask.open(report.mags[0].path), expected)


REFUSED = {
    "one dimension twice": (
        VOXELS,
        3,
        {"axisOrder": {"c": 0, "x": 1, "y": 1, "z": 3}},
        {},
        FormatError,
        "index of one of 4 dimensions",
    ),
    "a dimension that is not there": (
        VOXELS[0],
        1,
        {"axisOrder": {"x": 1, "y": 2, "z": 3}},
        {},
        FormatError,
        "index of one of 3 dimensions",
    ),
    "no number": (
        VOXELS,
        3,
        {"axisOrder": {"c": 0, "x": "1", "y": 2, "z": 3}},
        {},
        FormatError,
        "axisOrder: expected the index",
    ),
    "a list": (
        VOXELS,
        3,
        {"axisOrder": ["c", "x", "y", "z"]},
        {},
        FormatError,
        "axisOrder: expected the index",
    ),
    "too many channels": (VOXELS, 5, {}, {}, FormatError, "found 3 in the array"),
    "channels of an array without": (VOXELS[0], 3, {}, {}, FormatError, "found 1 in the array"),
    "a channel that is not there": (
        VOXELS,
        1,
        {"channelIndex": 3},
        {},
        FormatError,
        "found 3 in the array",
    ),
    "time": (
        VOXELS,
        1,
        {"axisOrder": {"x": 1, "y": 2, "z": 3}},
        {"additionalAxes": [{"name": "t", "index": 0, "bounds": [0, 3]}]},
        UnsupportedError,
        "axis 't' of length 3",
    ),
}


@pytest.mark.parametrize("data_format", ["n5", pytest.param("zarr3", marks=NEEDS_ZARR)])
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(tmp_path, name, data_format):
    array, channels, entry, extra, error, message = REFUSED[name]
    dataset = write_layer(tmp_path / "ds", array, data_format, channels, entry, extra)
    with pytest.raises(error, match=rf"datasource-properties.json: layer em, mag 1: .*{message}"):
        wkwdask.open(dataset)


def test_the_library_agrees(tmp_path):
    webknossos = pytest.importorskip("webknossos", reason="the oracle webknossos")
    turned = VOXELS.transpose([0, 3, 2, 1])
    for data_format in ("n5", "zarr3"):
        dataset = write_layer(
            tmp_path / data_format,
            turned,
            data_format,
            3,
            {"axisOrder": {"c": 0, "x": 3, "y": 2, "z": 1}},
            {"elementClass": "uint24"},
        )
        # in the order of the dimensions
        theirs = webknossos.Dataset.open(dataset).get_layer("em").get_mag(1).read()
        np.testing.assert_array_equal(
            np.squeeze(theirs).transpose([0, 3, 2, 1]), wkwdask.read(dataset)
        )


def test_no_summary_claims_that_arrays_were_checked(tmp_path):
    dataset = write_layer(tmp_path / "ds", VOXELS, "n5", 3)
    path = dataset / "datasource-properties.json"
    path.write_text(path.read_text().replace('"n5"', '"dicom"'))
    report = wkwdask.verify(dataset)
    assert not report.is_sound
    assert report.unchecked == (f"{dataset}/em",)
    found = run_here("verify", dataset)
    assert found.returncode == 1
    assert "NOT CHECKED" in found.stdout
    assert "every block was decoded" not in found.stdout
    assert "not checked" in run_here("repair", dataset).stdout
    wkwdask.to_wkw(VOXELS, dataset / "raw" / "1", offset=(0, 0, 0), file_len=1)
    found = run_here("verify", dataset)
    assert found.returncode == 0
    assert f" (1 blocks were decoded; not checked: {dataset}/em)" in " ".join(found.stdout.split())
    assert "every block was decoded" in run_here("verify", dataset, "--layer", "raw").stdout
