"""Axes that files of other software state: they are used where they are understood, and an error
says how to state others."""

import json

import numpy as np
import pytest
from support.n5_volumes import write_dataset

import wkwdask
from wkwdask.errors import UnsupportedError, WkwDaskError

LENGTHS = {"t": 1, "c": 3, "x": 12, "y": 14, "z": 5}
VOXELS = np.random.default_rng(1).integers(1, 60000, [LENGTHS[axis] for axis in "cxyz"], np.uint16)
VIGRA_FLAGS = {"c": 1, "x": 2, "y": 2, "z": 2, "t": 8}
ORDERS = ["zyxc", "xyz", "yxc", "tzyxc", "txyzc", "tzyx", "tyx", "czyx", "yx"]


def stored(axes, **lengths):
    """Return the voxels in the order of the axes, and as wkwdask shall read them."""
    expected = VOXELS[: (None if "c" in axes else 1), :, :, : (None if "z" in axes else 1)]
    lacking = [letter for letter in "cz" if letter not in axes]
    inner = expected[tuple(0 if letter in lacking else slice(None) for letter in "cxyz")]
    kept = [letter for letter in "cxyz" if letter not in lacking]
    array = inner.transpose([kept.index(letter) for letter in axes if letter != "t"])
    if "t" in axes:
        array = np.repeat(
            np.expand_dims(array, axes.index("t")), lengths.get("t", 1), axes.index("t")
        )
    return array, expected


def write_ilastik(path, array, axes):
    h5py = pytest.importorskip("h5py", reason="h5py, of the extra convert")
    tags = [
        {"key": axis, "typeFlags": VIGRA_FLAGS[axis], "resolution": 0, "description": ""}
        for axis in axes
    ]
    with h5py.File(path, "w") as file:
        file.create_dataset("exported_data", data=array, chunks=True).attrs["axistags"] = (
            json.dumps({"axes": tags})
        )


def converted(source, tmp_path, **options):
    report = wkwdask.convert(
        source, tmp_path / "out" / "color", voxel_size=(4, 4, 40), category="color", **options
    )
    return wkwdask.read(report.mags[0].path)


@pytest.mark.parametrize("axes", ORDERS)
def test_hdf5_of_ilastik(tmp_path, axes):
    array, expected = stored(axes)
    write_ilastik(tmp_path / "a.h5", array, axes)
    np.testing.assert_array_equal(converted(tmp_path / "a.h5", tmp_path), expected)


@pytest.mark.parametrize("axes", ORDERS)
@pytest.mark.parametrize("form", ["labels", "netCDF"])
def test_hdf5_with_named_dimensions(tmp_path, axes, form):
    h5py = pytest.importorskip("h5py", reason="h5py, of the extra convert")
    array, expected = stored(axes)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("em", data=array)
        for axis, dim in zip(axes, data.dims, strict=True):
            if form == "labels":
                dim.label = {"c": "channel"}.get(axis, axis.upper())
            else:
                file.create_dataset(axis, data=np.arange(array.shape[axes.index(axis)])).make_scale(
                    axis
                )
                dim.attach_scale(file[axis])
    np.testing.assert_array_equal(converted(f"{tmp_path}/a.h5:/em", tmp_path), expected)


def refused(call, *words):
    with pytest.raises(WkwDaskError) as raised:
        call()
    assert not [word for word in words if word not in str(raised.value)], str(raised.value)


def test_time_in_hdf5_is_an_error_with_a_way_out(tmp_path):
    array, _ = stored("tzyx", t=2)
    write_ilastik(tmp_path / "a.h5", array, "tzyx")
    refused(
        lambda: converted(tmp_path / "a.h5", tmp_path),
        "a.h5:/exported_data",
        "t, z, y, x",
        "(2, 5, 14, 12)",
        "axes=",
    )
    np.testing.assert_array_equal(
        converted(tmp_path / "a.h5", tmp_path, axes="czyx"), array.transpose(0, 3, 2, 1)
    )


@pytest.mark.parametrize("axistags", ["zyx", '{"axes": [{"key": "z"}]}', '{"axes": 3}', "[]"])
def test_broken_axistags_are_an_error(tmp_path, axistags):
    h5py = pytest.importorskip("h5py", reason="h5py, of the extra convert")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=stored("zyx")[0]).attrs["axistags"] = axistags
    refused(lambda: converted(tmp_path / "a.h5", tmp_path), "a.h5:/a")
    np.testing.assert_array_equal(
        converted(tmp_path / "a.h5", tmp_path, axes="zyx"), stored("zyx")[1]
    )


# ------------------------------------------------------------------------------------------------
# Zarr


def write_zarr(path, array, names, zarr_format=3):
    zarr = pytest.importorskip("zarr", reason="the extra zarr")
    named = (
        {"dimension_names": names}
        if zarr_format == 3
        else {"attributes": {"_ARRAY_DIMENSIONS": names}}
    )
    zarr.create_array(
        str(path),
        shape=array.shape,
        dtype=array.dtype,
        chunks=(3,) * array.ndim,
        zarr_format=zarr_format,
        **named,
    )[...] = array


@pytest.mark.parametrize("axes", ORDERS)
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.needs("zarr")
def test_zarr_with_named_dimensions(tmp_path, axes, zarr_format):
    array, expected = stored(axes)
    write_zarr(
        tmp_path / "a.zarr",
        array,
        [{"c": "channel"}.get(axis, axis.upper()) for axis in axes],
        zarr_format,
    )
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "a.zarr"), expected)
    np.testing.assert_array_equal(converted(tmp_path / "a.zarr", tmp_path), expected)


@pytest.mark.parametrize(
    "names", [["a", "b", "c"], ["time", "y", "x"], ["z", "lat", "x"], ["z", "y", "y"]]
)
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.needs("zarr")
def test_zarr_with_other_dimensions_is_an_error_with_a_way_out(tmp_path, names, zarr_format):
    array, expected = stored("zyx")
    write_zarr(tmp_path / "a.zarr", array, names, zarr_format)
    for call in (
        wkwdask.read,
        wkwdask.open,
        lambda path: converted(path, tmp_path),
        lambda path: wkwdask.read(f"zarr://{path}"),
    ):
        refused(
            lambda call=call: call(tmp_path / "a.zarr"),
            "a.zarr",
            ", ".join(names),
            "(5, 14, 12)",
            "axes=",
        )
    for source in (tmp_path / "a.zarr", f"zarr://{tmp_path}/a.zarr"):
        np.testing.assert_array_equal(
            converted(source, tmp_path, axes="zyx", existing="overwrite"), expected
        )
    report = wkwdask.convert(
        tmp_path / "a.zarr", f"zarr://{tmp_path}/new", axes="zyx", voxel_size=(4, 4, 40)
    )
    np.testing.assert_array_equal(wkwdask.read(report.mags[0].path), expected)


@pytest.mark.parametrize(
    "names", [None, ["dim_0", "dim_1", "dim_2"], [None, "y", "x"], ["", "", ""]]
)
@pytest.mark.needs("zarr")
def test_zarr_without_names_has_the_usual_axes(tmp_path, names):
    array, expected = stored("zyx")
    write_zarr(tmp_path / "a.zarr", array, names)
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "a.zarr"), expected)


def test_tensorstore_labels_are_the_axes(tmp_path):
    tensorstore = pytest.importorskip("tensorstore", reason="the oracle tensorstore")
    for driver, prefix in (("zarr3", "zarr"), ("n5", "n5")):
        for labels in ("xzy", "uvw"):
            path = tmp_path / driver / labels
            lengths = {"u": 5, "v": 6, "w": 7, **LENGTHS}
            spec = {
                "driver": driver,
                "kvstore": {"driver": "file", "path": f"{path}/"},
                "create": True,
                "dtype": "uint16",
            }
            shape = [lengths[label] for label in labels]
            domain = tensorstore.IndexDomain(shape=shape, labels=list(labels))
            array = np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)
            tensorstore.open(spec, domain=domain).result()[...] = array
            if labels == "xzy":
                np.testing.assert_array_equal(
                    wkwdask.read(f"{prefix}://{path}")[0], array.transpose(0, 2, 1)
                )
            else:
                refused(
                    lambda path=path, prefix=prefix: wkwdask.read(f"{prefix}://{path}"),
                    str(path),
                    "u, v, w",
                    "axes=",
                )
                found = converted(f"{prefix}://{path}", tmp_path, axes="xyz", existing="overwrite")
                np.testing.assert_array_equal(found[0], array)


# ------------------------------------------------------------------------------------------------
# OME-NGFF


def write_ngff(folder, array, axes, version):
    zarr = pytest.importorskip("zarr", reason="the extra zarr")
    group = zarr.create_group(str(folder), zarr_format=2 if version == "0.4" else 3)
    group.create_array("0", shape=array.shape, dtype=array.dtype, chunks=(3,) * array.ndim)[...] = (
        array
    )
    step = {"type": "scale", "scale": [1.0] * len(axes)}
    datasets = [{"path": "0", "coordinateTransformations": [step]}]
    if version == "0.6":
        system = {"name": "physical", "axes": axes}
        placed = {**step, "input": {"path": "0"}, "output": {"name": "physical"}}
        group.attrs["ome"] = {
            "version": "0.6",
            "multiscales": [
                {
                    "coordinateSystems": [system],
                    "datasets": [{**datasets[0], "coordinateTransformations": [placed]}],
                }
            ],
        }
    elif version == "0.5":
        group.attrs["ome"] = {
            "version": "0.5",
            "multiscales": [{"axes": axes, "datasets": datasets}],
        }
    else:
        group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": datasets}]


def named(axes, **types):
    kinds = {"t": "time", "c": "channel", **types}
    return [{"name": axis, "type": kinds.get(axis, "space")} for axis in axes]


VERSIONS = ["0.4", "0.5", "0.6"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("axes", ["tczyx", "zyxc", "xyz", "tzyx", "yx", "xyzct"])
@pytest.mark.needs("zarr")
def test_ngff_axes_of_any_order(tmp_path, axes, version):
    array, expected = stored(axes)
    write_ngff(tmp_path / "a", array, named(axes), version)
    np.testing.assert_array_equal(wkwdask.read(f"zarr://{tmp_path}/a"), expected)
    np.testing.assert_array_equal(converted(tmp_path / "a", tmp_path), expected)


@pytest.mark.needs("zarr")
def test_a_channel_axis_is_known_by_its_type(tmp_path):
    array, expected = stored("czyx")
    write_ngff(tmp_path / "a", array, [{"name": "dye", "type": "channel"}, *named("zyx")], "0.5")
    np.testing.assert_array_equal(wkwdask.read(f"zarr://{tmp_path}/a"), expected)


ODD = {
    "four axes of five": ("tczyx", named("czyx")),
    "five axes of four": ("czyx", named("tczyx")),
    "other names": ("zyx", named("uvw")),
    "channels in space": ("czyx", named("czyx", c="space")),
    "time named z": ("zyx", named("zyx", z="time")),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", ODD)
@pytest.mark.needs("zarr")
def test_ngff_axes_that_are_not_understood_are_an_error_with_a_way_out(tmp_path, case, version):
    axes, stated = ODD[case]
    array, expected = stored(axes)
    write_ngff(tmp_path / "a", array, stated, version)
    for call in (
        wkwdask.read,
        lambda path: wkwdask.read(f"zarr://{path}/0"),
        lambda path: converted(path, tmp_path),
    ):
        refused(
            lambda call=call: call(tmp_path / "a"),
            f"{tmp_path}/a/0",
            str(array.shape),
            "axes=",
        )
    for source in (tmp_path / "a", f"zarr://{tmp_path}/a/0"):
        np.testing.assert_array_equal(
            converted(source, tmp_path, axes=axes.replace("t", "-"), existing="overwrite"), expected
        )


# ------------------------------------------------------------------------------------------------
# N5


N5_AXES = {
    "Neuroglancer": (
        {"axes": ["z", "y", "x"], "units": ["nm"] * 3, "resolution": [40, 4, 4]},
        "zyx",
    ),
    "one text": ({"axes": "cxyz"}, "cxyz"),
    "n5-ij, canonical": (
        {"axes": [{"label": axis, "type": "space", "unit": "um"} for axis in "yxz"]},
        "yxz",
    ),
    "Paintera": ({"axisOrder": "CXYZ", "resolution": [1, 4, 4, 40]}, "cxyz"),
    "n5-ij, as in ImageJ": (
        {"numChannels": 3, "numSlices": 5, "numFrames": 1, "pixelWidth": 1.0},
        "xycz",
    ),
    "n5-ij, all axes": ({"numChannels": 3, "numSlices": 5, "numFrames": 1}, "xyczt"),
    "COSEM": (
        {
            "transform": {
                "axes": ["z", "y", "x"],
                "scale": [40, 4, 4],
                "translate": [0, 0, 0],
                "units": ["nm"] * 3,
            }
        },
        "xyz",
    ),
    "none": ({}, "xyzc"),
}


@pytest.mark.parametrize("case", N5_AXES)
def test_n5_axes(tmp_path, case):
    attributes, axes = N5_AXES[case]
    array, expected = stored(axes)
    write_dataset(tmp_path / "a", array, block=(4,) * array.ndim, **attributes)
    np.testing.assert_array_equal(wkwdask.read(f"n5://{tmp_path}/a"), expected)


N5_ODD = {
    "other names": ({"axes": ["u", "v", "w"]}, "xyz"),
    "no names": ({"axes": [1, 2, 3]}, "xyz"),
    "two axes of three": ({"axes": ["x", "y"]}, "xyz"),
    "Paintera": ({"axisOrder": "XYZC"}, "xyz"),
    "three axes of four": (
        {
            "transform": {
                "axes": ["z", "y", "x"],
                "scale": [40, 4, 4],
                "translate": [0, 0, 0],
                "units": ["nm"] * 3,
            }
        },
        "xyzc",
    ),
    "n5-ij": ({"numChannels": 3, "numSlices": 5, "numFrames": 7}, "xycz"),
}


@pytest.mark.parametrize("case", N5_ODD)
def test_n5_axes_that_are_not_understood_are_an_error_with_a_way_out(tmp_path, case):
    attributes, axes = N5_ODD[case]
    array, expected = stored(axes)
    write_dataset(tmp_path / "a.n5", array, block=(4,) * array.ndim, n5="4.0.0", **attributes)
    for call in (wkwdask.read, lambda path: converted(path, tmp_path)):
        refused(
            lambda call=call: call(tmp_path / "a.n5"),
            f"{tmp_path}/a.n5",
            str(array.shape),
            "axes=",
            "attributes.json",
        )
    np.testing.assert_array_equal(converted(tmp_path / "a.n5", tmp_path, axes=axes), expected)
    document = json.loads((tmp_path / "a.n5" / "attributes.json").read_text())
    (tmp_path / "a.n5" / "attributes.json").write_text(json.dumps({**document, "axes": list(axes)}))
    if "transform" not in attributes:
        np.testing.assert_array_equal(wkwdask.read(tmp_path / "a.n5"), expected)


# ------------------------------------------------------------------------------------------------
# layers of datasets


@pytest.mark.parametrize("names", [["u", "v", "w", "k"], ["t", "x", "y", "z"]])
@pytest.mark.needs("zarr")
def test_a_layer_whose_names_are_not_understood_needs_an_axis_order(tmp_path, names):
    write_zarr(tmp_path / "em" / "1", VOXELS, names)
    box = {"topLeft": [0, 0, 0], "width": 12, "height": 14, "depth": 5}
    mag = {"mag": [1, 1, 1], "path": "./em/1"}
    layer = {
        "name": "em",
        "category": "color",
        "boundingBox": box,
        "dataFormat": "zarr3",
        "elementClass": "uint16",
        "numChannels": 3,
        "mags": [mag],
    }
    document = {
        "id": {"name": "ds", "team": ""},
        "scale": {"factor": [4, 4, 40], "unit": "nanometer"},
        "dataLayers": [layer],
        "version": 1,
    }
    (tmp_path / "datasource-properties.json").write_text(json.dumps(document))
    refused(
        lambda: wkwdask.read(tmp_path, layer="em"),
        "datasource-properties.json: layer em, mag 1",
        ", ".join(names),
        "axisOrder",
    )
    mag["axisOrder"] = {"x": 1, "y": 2}
    (tmp_path / "datasource-properties.json").write_text(json.dumps(document))
    refused(
        lambda: wkwdask.read(tmp_path, layer="em"),
        "datasource-properties.json: layer em, mag 1",
        "axisOrder",
    )
    mag["axisOrder"] = {"x": 1, "y": 2, "z": 3}
    (tmp_path / "datasource-properties.json").write_text(json.dumps(document))
    np.testing.assert_array_equal(wkwdask.read(tmp_path, layer="em"), VOXELS)


# ------------------------------------------------------------------------------------------------
# TIFF


@pytest.mark.needs("tifffile")
@pytest.mark.parametrize("form", ["ome", "imagej", "shaped"])
def test_time_in_tiff_is_an_error_with_a_way_out(tmp_path, form):
    import tifffile

    array, _ = stored("tyx", t=3)
    (tmp_path / "s").mkdir()
    name = "1.ome.tif" if form == "ome" else "1.tif"
    tifffile.imwrite(
        tmp_path / "s" / name,
        array,
        imagej=form == "imagej",
        photometric="minisblack",
        metadata={"axes": "TYX"},
    )
    for source in (tmp_path / "s" / name, tmp_path / "s"):
        refused(
            lambda source=source: converted(source, tmp_path),
            name,
            "TYX",
            "(3, 14, 12)",
            "axes=",
        )
        found = converted(source, tmp_path, axes="zyx", existing="overwrite")
        np.testing.assert_array_equal(found[0], array.transpose(2, 1, 0))


def test_the_axes_of_png_are_known(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow, of the extra convert")
    image.fromarray(np.ones((14, 12), np.uint8)).save(tmp_path / "1.png")
    with pytest.raises(ValueError, match="axes 'xyz' for PNG or JPEG, expected zyx or zyxc"):
        converted(tmp_path / "1.png", tmp_path, axes="xyz")
    assert converted(tmp_path / "1.png", tmp_path, axes="zyx").shape == (1, 12, 14, 1)


def test_sections_that_mrc_does_not_order_are_an_error(tmp_path):
    mrcfile = pytest.importorskip("mrcfile", reason="mrcfile, of the extra convert")
    array, expected = stored("zyx")
    for maps, is_understood in (((1, 2, 3), True), ((0, 0, 0), True), ((1, 1, 3), False)):
        with mrcfile.new(tmp_path / "a.mrc", array, overwrite=True) as file:
            file.header.mapc, file.header.mapr, file.header.maps = maps
        if is_understood:
            np.testing.assert_array_equal(
                converted(tmp_path / "a.mrc", tmp_path, existing="overwrite"), expected
            )
        else:
            refused(
                lambda: converted(tmp_path / "a.mrc", tmp_path),
                "a.mrc",
                "(5, 14, 12)",
                "axes=",
            )


@pytest.mark.needs("zarr")
def test_every_error_is_about_what_is_not_supported(tmp_path):
    write_zarr(tmp_path / "a.zarr", stored("zyx")[0], ["a", "b", "c"])
    with pytest.raises(UnsupportedError):
        wkwdask.open(tmp_path / "a.zarr")
