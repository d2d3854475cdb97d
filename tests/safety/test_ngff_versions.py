"""OME-NGFF images of versions that are not known: refused by every function, with the way to the
plain array."""

import json

import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.errors import UnsupportedError

zarr = pytest.importorskip("zarr", reason="the extra zarr")
VOXELS = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)  # x, y, z
AXES = [{"name": letter, "type": "space", "unit": "nanometer"} for letter in "zyx"]
SCALE = [{"type": "scale", "scale": [40.0, 4.0, 4.0]}]
KNOWN = {
    "multiscales": [
        {"axes": AXES, "datasets": [{"path": "s0", "coordinateTransformations": SCALE}]}
    ]
}
ODD = {
    "0.7": ({"ome": {**KNOWN, "version": "0.7"}}, "version '0.7'"),
    "1.0": ({"ome": {**KNOWN, "version": "1.0"}}, "version '1.0'"),
    "0.10": ({"ome": {**KNOWN, "version": "0.10"}}, "version '0.10'"),
    "version of the first images": (
        {"multiscales": [{**KNOWN["multiscales"][0], "version": "0.7"}]},
        "version '0.7'",
    ),
    "no text": ({"ome": {**KNOWN, "version": [0, 5]}}, r"version '\[0, 5\]'"),
}


def write_image(folder, attributes):
    group = zarr.create_group(
        folder, attributes=attributes, zarr_format=3 if "ome" in attributes else 2
    )
    group.create_array("s0", shape=VOXELS.T.shape, dtype=VOXELS.dtype, chunks=(2, 2, 2))[...] = (
        VOXELS.T
    )
    return folder


@pytest.mark.parametrize("name", ODD)
def test_every_function_refuses_it(tmp_path, name):
    attributes, what = ODD[name]
    image = write_image(tmp_path / "em", attributes)
    message = (
        rf"{image}: found an OME-NGFF image with {what}, expected one of version 0.1 to 0.6; "
        rf"zarr://{image}/s0 opens one of its arrays"
    )
    known = write_image(tmp_path / "known", {"ome": {"version": "0.5", **KNOWN}})
    for url in (image, f"zarr://{image}"):
        for call in (
            wkwdask.open,
            wkwdask.info,
            wkwdask.read,
            lambda url: wkwdask.convert(url, tmp_path / "ds"),
            lambda url: wkwdask.plan_convert(url, tmp_path / "ds"),
            lambda url: wkwdask.diff(url, known),
            lambda url: wkwdask.diff(known, url),
            lambda url: wkwdask.preview(url, tmp_path / "p.png"),
        ):
            with pytest.raises(UnsupportedError, match=message):
                call(url)
    with pytest.raises(UnsupportedError, match=message):
        wkwdask.to_zarr(VOXELS, image, voxel_size=(4, 4, 40))
    assert not (tmp_path / "ds").exists()


def test_xarray(tmp_path):
    xarray = pytest.importorskip("xarray", reason="the extra xarray")
    image = write_image(tmp_path / "em", ODD["0.7"][0])
    for function in (xarray.open_dataset, xarray.open_datatree):
        with pytest.raises(UnsupportedError, match=r"version '0\.7'"):
            function(f"zarr://{image}", engine="ngff")


def test_the_plain_array_opens(tmp_path):
    image = write_image(tmp_path / "em", ODD["0.7"][0])
    for url in (f"zarr://{image}/s0", image / "s0"):
        np.testing.assert_array_equal(wkwdask.open(url)[0], VOXELS)
    assert "nothing" not in run_here("info", f"zarr://{image}/s0").stderr
    found = run_here("info", image)
    assert found.returncode == 1
    assert "version '0.7'" in found.stderr


def test_the_others_of_a_container_open(tmp_path):
    zarr.create_group(tmp_path / "all.zarr", zarr_format=3)
    write_image(tmp_path / "all.zarr" / "a", {"ome": {"version": "0.5", **KNOWN}})
    write_image(tmp_path / "all.zarr" / "b", ODD["0.7"][0])
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "all.zarr", layer="a")[0], VOXELS)
    with pytest.raises(UnsupportedError, match=r"version '0\.7'"):
        wkwdask.open(tmp_path / "all.zarr", layer="b")
    assert "version '0.7'" in " ".join(run_here("info", tmp_path / "all.zarr").stdout.split())


@pytest.mark.parametrize("version", ["0.5", "0.5.2", "0.5-dev-spatialdata", None])
def test_known_versions_open(tmp_path, version):
    image = write_image(
        tmp_path / "em", {"ome": {**({} if version is None else {"version": version}), **KNOWN}}
    )
    np.testing.assert_array_equal(wkwdask.open(image)[0], VOXELS)


def test_layers_of_a_dataset_have_their_json(tmp_path):
    """It defines axes, voxel size and place, also against the group of the arrays."""
    box = {"topLeft": [0, 0, 0], "width": 4, "height": 5, "depth": 6}
    layer = {
        "name": "em",
        "category": "color",
        "boundingBox": box,
        "dataFormat": "zarr3",
        "elementClass": "uint8",
        "numChannels": 1,
    }
    write_image(tmp_path / "em", ODD["0.7"][0])
    for path in ("./em/s0", "./em"):
        mags = [{"mag": [1, 1, 1], "path": path, "axisOrder": {"x": 2, "y": 1, "z": 0}}]
        document = {"scale": [4, 4, 40], "dataLayers": [{**layer, "mags": mags}]}
        (tmp_path / "datasource-properties.json").write_text(json.dumps(document))
        if path == "./em/s0":
            np.testing.assert_array_equal(wkwdask.open(tmp_path)[0], VOXELS)
            continue
        with pytest.raises(UnsupportedError, match=f"version '0.7'.*zarr://{tmp_path}/em/s0 opens"):
            wkwdask.open(tmp_path)
