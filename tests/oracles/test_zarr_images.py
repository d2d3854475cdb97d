"""Oracles of Zarr: tensorstore, ome-zarr, ome-zarr-models and the schemas of OME-NGFF read what is
exported and what is only seen as Zarr; what ome-zarr, ngff-zarr and webknossos write becomes WKW;
the reference library wkw reads files that zarr wrote by the codec."""

from __future__ import annotations

import json
import warnings
from importlib.resources import files
from importlib.util import find_spec

import dask
import numpy as np
import pytest
from support.inner_box import inside
from support.zarr_sources import VOXEL_SIZE, absolute, make_dataset, voxels

import wkwdask
from wkwdask.errors import ExistsError, FormatError, MissingError

zarr = pytest.importorskip(
    "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
)

from zarr.registry import get_codec_class  # noqa: E402

try:
    get_codec_class("wkw")
except KeyError:
    pytest.skip(
        "the package is not installed, so that zarr does not find its codecs",
        allow_module_level=True,
    )

MAGS = ("1", "2-2-1", "4-4-2")


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    with dask.config.set(scheduler="synchronous"):
        folder = make_dataset(tmp_path_factory.mktemp("ds"))
        wkwdask.write_zarr_view(folder)
        return folder


@pytest.fixture(scope="module", params=["0.5", "0.4"])
def image(request, dataset, tmp_path_factory):
    """An image with labels, in both versions."""
    folder = tmp_path_factory.mktemp("image") / "em.ome.zarr"
    with dask.config.set(scheduler="synchronous"):
        wkwdask.convert(dataset, folder, layer="color", ngff=request.param, chunk_shape=(16, 16, 8))
        wkwdask.convert(dataset, folder / "labels" / "neurons", layer="neurons", ngff=request.param)
    return request.param, folder


def expected(dataset, path):
    return wkwdask.open(dataset / path)[0].compute().T


# ----------------------------------------------------------------------------- what others read


@pytest.mark.parametrize(
    "options",
    [
        {"shard_shape": (32, 16, 16)},
        {"shard_shape": False, "compression": "zstd"},
        {"ngff": "0.4"},
        {"compression": "gzip"},
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint64", "float32"])
def test_tensorstore(tmp_path, dtype, options):
    tensorstore = pytest.importorskip(
        "tensorstore", reason="tensorstore, of the extra oracles, is not installed"
    )
    array = voxels((2, 40, 20, 30), dtype)
    wkwdask.to_zarr(array, tmp_path / "a", voxel_size=VOXEL_SIZE, chunk_shape=(16, 8, 8), **options)
    driver = "zarr" if options.get("ngff") == "0.4" else "zarr3"
    found = (
        tensorstore.open(
            {"driver": driver, "kvstore": {"driver": "file", "path": str(tmp_path / "a" / "1")}}
        )
        .result()
        .read()
        .result()
    )
    np.testing.assert_array_equal(found, array.transpose(0, 3, 2, 1))


def schema_errors(document, version, name):
    """Check a document with the schemas of the specification, as ngff-zarr ships them."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    referencing = pytest.importorskip(
        "referencing", reason="referencing, which comes with jsonschema, is not installed"
    )
    pytest.importorskip("referencing.jsonschema")
    if find_spec("ngff_zarr") is None:
        pytest.skip("ngff-zarr, which ships the schemas, is not installed")
    folder = files("ngff_zarr") / "spec" / version / "schemas"
    schemas = {
        path.name: json.loads(path.read_text())
        for path in folder.iterdir()
        if path.name.endswith(".schema")
    }
    resources = [
        (
            schema["$id"],
            referencing.Resource.from_contents(
                schema, default_specification=referencing.jsonschema.DRAFT202012
            ),
        )
        for schema in schemas.values()
    ]
    validator = jsonschema.Draft202012Validator(
        schemas[name], registry=referencing.Registry().with_resources(resources)
    )
    return [error.message for error in validator.iter_errors(document)]


def checked(group, version):
    attributes = json.loads(json.dumps(dict(group.attrs)))
    assert schema_errors(attributes, version, "image.schema") == []
    if (
        "neurons" not in group.path
        and "neurons" not in group.name
        and "omero" not in str(attributes)
    ):
        wrong = json.loads(json.dumps(attributes).replace('"datasets"', '"data"'))
        assert schema_errors(wrong, version, "image.schema")  # the schema can fail
    return attributes


def test_schemas(image, dataset):
    version, folder = image
    group = zarr.open_group(str(folder), mode="r")
    checked(group, version)
    checked(group["labels/neurons"], version)
    assert schema_errors(dict(group["labels/neurons"].attrs), version, "label.schema") == []
    for view in (
        zarr.open_group(str(dataset), mode="r"),
        zarr.open_group(wkwdask.zarr_view(dataset), mode="r"),
    ):
        checked(view["color"], "0.5")
        assert schema_errors(dict(view["neurons"].attrs), "0.5", "label.schema") == []


def test_ome_zarr_models(image, dataset):
    models = pytest.importorskip("ome_zarr_models", reason="ome-zarr-models is not installed")
    version, folder = image
    model = models.v05.Image if version == "0.5" else models.v04.Image
    found = model.from_zarr(zarr.open_group(str(folder), mode="r"))
    assert [
        entry.path
        for entry in (found.ome_attributes if version == "0.5" else found.attributes)
        .multiscales[0]
        .datasets
    ] == list(MAGS)
    store = wkwdask.zarr_view(dataset)
    models.v05.Image.from_zarr(zarr.open_group(store, path="color", mode="r"))


def nodes(path):
    """Read an image with its labels as ome-zarr does."""
    io = pytest.importorskip("ome_zarr.io", reason="ome-zarr is not installed")
    reader = pytest.importorskip("ome_zarr.reader", reason="ome-zarr is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            str(node.zarr).split("/")[-1].split(" ")[0]: node
            for node in reader.Reader(io.parse_url(str(path)))()
            if node.data
        }


def test_ome_zarr_reads_images(image, dataset):
    _, folder = image
    found = nodes(folder)
    for array, mag in zip(found["em.ome.zarr"].data, MAGS, strict=True):
        np.testing.assert_array_equal(
            inside(array, zarr.open_array(str(folder / mag), mode="r").attrs),
            expected(dataset, f"color/{mag}"),
        )
    attributes = zarr.open_array(str(folder / "labels/neurons/2-2-1"), mode="r").attrs
    np.testing.assert_array_equal(
        inside(found["neurons"].data[1], attributes), expected(dataset, "neurons/2-2-1")
    )


def test_ome_zarr_reads_wkw(dataset):
    """In place and lazily: the codec comes with the package."""
    found = nodes(dataset / "color")
    for array, mag in zip(found["color"].data, MAGS, strict=True):
        np.testing.assert_array_equal(array.compute(), absolute(dataset / "color" / mag))
    np.testing.assert_array_equal(
        found["neurons"].data[0].compute(), absolute(dataset / "neurons" / "1")
    )


def test_wkw_reads_what_zarr_writes(tmp_path):
    wkw = pytest.importorskip("wkw", reason="wkw, of the extra oracles, is not installed")
    folder = tmp_path / "ds" / "color" / "1"
    wkwdask.create_dataset(tmp_path / "ds", VOXEL_SIZE)
    wkwdask.create(
        folder, ((0, 0, 0), (30, 20, 10)), "uint16", block_len=8, file_len=2, compression="lz4"
    )
    wkwdask.write_zarr_view(tmp_path / "ds")
    array = voxels((30, 20, 10), "uint16")
    zarr.open_array(str(folder), mode="r+")[...] = array.T
    with wkw.Dataset.open(str(folder)) as reference:
        np.testing.assert_array_equal(reference.read((0, 0, 0), (30, 20, 10))[0], array)


# ----------------------------------------------------------------------------- what others write


def test_images_of_ome_zarr(tmp_path):
    writer = pytest.importorskip("ome_zarr.writer", reason="ome-zarr is not installed")
    array = voxels((32, 64, 64))
    scales = [[{"type": "scale", "scale": [0.04, 0.008 * f, 0.004 * f]}] for f in (1, 2)]
    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
        writer.write_multiscale(
            [array, array[:, ::2, ::2]], group, axes=axes, coordinate_transformations=scales
        )
    # some versions of it leave out units
    wkwdask.convert(
        tmp_path / "a.zarr", tmp_path / "ds", block_len=8, file_len=4, voxel_size=(4, 8, 40)
    )
    np.testing.assert_array_equal(expected(tmp_path / "ds", "color/1"), array)
    np.testing.assert_array_equal(expected(tmp_path / "ds", "color/2-2-1"), array[:, ::2, ::2])


def test_images_of_ngff_zarr(tmp_path):
    """Its levels have translations of half voxels, as ours."""
    ngff_zarr = pytest.importorskip("ngff_zarr", reason="ngff-zarr is not installed")
    array = voxels((32, 64, 64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = ngff_zarr.to_ngff_image(
            array,
            dims=("z", "y", "x"),
            scale={"z": 40.0, "y": 4.0, "x": 4.0},
            translation={"z": 80.0, "y": 8.0, "x": 40.0},
            axes_units=dict.fromkeys("zyx", "nanometer"),
        )
        multiscales = (
            ngff_zarr.to_multiscales(
                image, scale_factors=[2], method=ngff_zarr.Methods.DASK_BIN_SHRINK
            )
            if hasattr(ngff_zarr.Methods, "DASK_BIN_SHRINK")
            else None
        )
        if multiscales is None:
            pytest.skip("this ngff-zarr has no method that needs no further package")
        ngff_zarr.to_ngff_zarr(str(tmp_path / "a.zarr"), multiscales, version="0.5")
    wkwdask.convert(tmp_path / "a.zarr", tmp_path / "ds", block_len=8, file_len=4)
    layer = wkwdask.open_dataset(tmp_path / "ds")["color"]
    assert ([mag.name for mag in layer.mags], layer.bounding_box.topleft) == (
        ["1", "2"],
        (10, 2, 2),
    )
    np.testing.assert_array_equal(expected(tmp_path / "ds", "color/1"), array)


def test_datasets_of_webknossos(tmp_path):
    """Layers whose mags are Zarr arrays: their boxes and mags are those of the JSON."""
    webknossos = pytest.importorskip(
        "webknossos", reason="webknossos, of the extra oracles, is not installed"
    )
    array = voxels((3, 50, 40, 30))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        created = webknossos.Dataset(tmp_path / "ds", voxel_size=VOXEL_SIZE)
        layer = created.add_layer(
            "rgb", "color", dtype="uint8", num_channels=3, data_format="zarr3"
        )
        for mag, values in (("1", array), ("2-2-1", array[:, ::2, ::2])):
            mag_view = layer.add_mag(mag, chunk_shape=(32, 32, 32), shard_shape=(64, 64, 64))
            factors = np.array(webknossos.Mag(mag).to_list())
            mag_view.write(
                values,
                absolute_offset=tuple(np.array((8, 16, 4)) // factors * factors),
                allow_resize=True,
            )
        box = layer.bounding_box
    wkwdask.convert(tmp_path / "ds", tmp_path / "wkw", block_len=8, file_len=4)
    found = wkwdask.open_dataset(tmp_path / "wkw")["rgb"]
    assert (found.bounding_box.topleft, found.bounding_box.size) == (
        tuple(box.topleft),
        tuple(box.size),
    )
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "wkw" / "rgb" / "1").compute(), array)
    np.testing.assert_array_equal(
        wkwdask.open(tmp_path / "wkw" / "rgb" / "2-2-1").compute(), array[:, ::2, ::2]
    )
    wkwdask.convert(
        tmp_path / "ds" / "rgb" / "1", tmp_path / "one", layer="rgb", voxel_size=VOXEL_SIZE
    )
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "one" / "rgb" / "1").compute(), array)


def test_real_data(tmp_path, shared_data):
    """ome-zarr and zarr read l4_sample in place and exported."""
    sample = shared_data / "l4_sample"
    view = zarr.open_group(wkwdask.zarr_view(sample), mode="r")
    wkwdask.convert(
        sample, tmp_path / "l4.ome.zarr", layer="color", mag="2-2-1", compression="zstd"
    )
    wkwdask.convert(
        sample,
        tmp_path / "l4.ome.zarr" / "labels" / "cells",
        layer="segmentation",
        mag="2-2-1",
        compression="zstd",
    )
    found = nodes(tmp_path / "l4.ome.zarr")
    for path, image in (("color/2-2-1", "l4.ome.zarr"), ("segmentation/2-2-1", "cells")):
        voxels = expected(sample, path)
        assert voxels.any()
        np.testing.assert_array_equal(view[path][...], voxels)
        np.testing.assert_array_equal(found[image].data[0].compute(), voxels)


@pytest.mark.parametrize("version", [2, 3])
def test_levels_and_copies_keep_the_blosc_settings_of_other_software(tmp_path, version):
    array = voxels((1, 16, 16, 16), "uint16")[0].T
    if version == 3:
        compressor = zarr.codecs.BloscCodec(cname="lz4", clevel=4, shuffle="bitshuffle", typesize=2)
    else:
        compressor = pytest.importorskip("numcodecs").Blosc("lz4", 4, 2)
    group = zarr.open_group(str(tmp_path / "a.ome.zarr"), mode="w", zarr_format=version)
    group.create_array("0", data=array, chunks=(8, 8, 8), compressors=compressor)
    scale = {
        "path": "0",
        "coordinateTransformations": [{"type": "scale", "scale": [8.0, 4.0, 4.0]}],
    }
    image = {
        "axes": [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"],
        "datasets": [scale],
    }
    group.attrs.update(
        {"ome": {"version": "0.5", "multiscales": [image]}}
        if version == 3
        else {"multiscales": [{"version": "0.4", **image}]}
    )
    wkwdask.build_pyramid(tmp_path / "a.ome.zarr", mags=["2"], method="max")
    wkwdask.copy(tmp_path / "a.ome.zarr", f"zarr://{tmp_path}/b.ome.zarr", mags=["1"])
    level, copied = (
        zarr.open_array(str(tmp_path / "a.ome.zarr" / "2"), mode="r"),
        zarr.open_array(str(tmp_path / "b.ome.zarr" / "0"), mode="r"),
    )
    assert level.compressors == copied.compressors == group["0"].compressors
    np.testing.assert_array_equal(level[...], array.reshape(8, 2, 8, 2, 8, 2).max((1, 3, 5)))
    np.testing.assert_array_equal(copied[...], array)


@pytest.mark.parametrize("shards", [(8, 8, 8), (16, 16, 32), (32, 8, 16)])
def test_shards_of_zarr_python_are_cut_and_joined(tmp_path, shards):
    array = voxels((1, 40, 24, 37), "uint16")[0].T.copy()
    array[:16, :, 8:] = 0  # shards and chunks that are not stored
    group = zarr.open_group(str(tmp_path / "a.ome.zarr"), mode="w")
    codec = zarr.codecs.ZstdCodec(level=3)
    group.create_array("1", data=array, chunks=(8, 8, 8), shards=(16, 16, 16), compressors=codec)
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    datasets = [
        {"path": "1", "coordinateTransformations": [{"type": "scale", "scale": [8.0, 4.0, 4.0]}]}
    ]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    wkwdask.rechunk(
        tmp_path / "a.ome.zarr", f"zarr://{tmp_path}/b.ome.zarr", shard_shape=shards[::-1]
    )
    found = zarr.open_array(str(tmp_path / "b.ome.zarr" / "1"), mode="r")
    assert (found.shards, found.chunks, found.compressors) == (shards, (8, 8, 8), (codec,))
    np.testing.assert_array_equal(found[...], array)


@pytest.mark.parametrize(
    ("version", "axes", "units", "scale", "common"),
    [
        ("0.4", "tczyx", "nanometer", (0.5, 1, 28, 11, 11), []),
        (
            "0.5",
            "tczyx",
            "micrometer",
            (0.5, 1, 0.028, 0.011, 0.011),
            [{"type": "scale", "scale": [2, 1, 1, 1, 1]}],
        ),
        ("0.5", "zyx", "micrometer", (0.028, 0.011, 0.011), []),
        ("0.5", "zyx", None, (2, 1, 1), []),
        (
            "0.4",
            "zyx",
            "nanometer",
            (2.8, 1.1, 1.1),
            [
                {"type": "scale", "scale": [10, 10, 10]},
                {"type": "translation", "translation": [56, 440, 0]},
            ],
        ),
    ],
)
def test_new_levels_have_the_axes_and_units_of_the_image(
    tmp_path, version, axes, units, scale, common
):
    url = f"zarr://{tmp_path}/a"
    array = np.random.default_rng(1).integers(0, 255, (1, 2, 16, 24, 32)[5 - len(axes) :], np.uint8)
    group = zarr.create_group(tmp_path / "a", zarr_format=2 if version == "0.4" else 3)
    named = (
        {"dimension_names": list(axes)}
        if version == "0.5"
        else {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
    )
    group.create_array(
        "0", shape=array.shape, chunks=(1, 1, 8, 8, 8)[5 - len(axes) :], dtype="uint8", **named
    )[...] = array
    kinds = {"t": {"type": "time", "unit": "second"}, "c": {"type": "channel"}}
    space = {"type": "space", **({} if units is None else {"unit": units})}
    image = {
        "name": "a",
        "axes": [{"name": letter, **kinds.get(letter, space)} for letter in axes],
        "datasets": [
            {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": list(scale)}]}
        ],
        **({"coordinateTransformations": common} if common else {}),
    }
    group.attrs.update(
        {"multiscales": [{"version": "0.4", **image}]}
        if version == "0.4"
        else {"ome": {"version": "0.5", "multiscales": [image]}}
    )
    before = wkwdask.info(url).scales[0]
    wkwdask.build_pyramid(url, mags=["2-2-1", "4-4-2"], method="mean")
    stored = json.loads(
        (tmp_path / "a" / (".zattrs" if version == "0.4" else "zarr.json")).read_text()
    )
    after = (stored if version == "0.4" else stored["attributes"]["ome"])["multiscales"][0]
    assert {key: value for key, value in after.items() if key not in ("datasets", "version")} == {
        key: value for key, value in image.items() if key != "datasets"
    }
    assert after["datasets"][0] == image["datasets"][0]
    for entry, factor in zip(after["datasets"][1:], ((1, 2, 2), (2, 4, 4)), strict=True):
        steps = {step["type"]: step[step["type"]] for step in entry["coordinateTransformations"]}
        factors = (*[1] * (len(axes) - 3), *factor)
        np.testing.assert_allclose(steps["scale"], np.multiply(scale, factors))
        np.testing.assert_allclose(
            steps["translation"], np.multiply(scale, np.subtract(factors, 1)) / 2, atol=1e-12
        )
        level = zarr.open_group(tmp_path / "a", mode="r")[entry["path"]]
        assert level.shape == tuple(-(-n // f) for n, f in zip(array.shape, factors, strict=True))
        assert version == "0.4" or level.metadata.dimension_names == tuple(axes)
    means = (
        array.reshape(*array.shape[:-2], array.shape[-2] // 2, 2, array.shape[-1] // 2, 2)
        .astype(float)
        .mean((-3, -1))
    )
    np.testing.assert_array_equal(
        zarr.open_group(tmp_path / "a", mode="r")["2-2-1"][...], np.rint(means)
    )
    finest, *_ = wkwdask.info(url).scales
    assert (finest.box, finest.resolution) == (before.box, before.resolution)
    assert wkwdask.verify(url, pyramid=True).faults == ()
    if find_spec("ome_zarr_models") is not None:
        from ome_zarr_models import open_ome_zarr

        assert (
            len(
                open_ome_zarr(zarr.open_group(tmp_path / "a", mode="r")).attributes.model_dump(
                    by_alias=True
                )
            )
            > 0
        )


def test_a_new_level_leaves_the_arrays_of_other_mags(tmp_path):
    """Names of other software are numbers of levels: its array 2 is no mag 2."""
    factors = {"0": 1, "1": 4, "2": 8}
    group = zarr.open_group(tmp_path / "em.zarr", mode="w", zarr_format=3)
    fine = voxels((24, 16, 16))[::-1, ::-1, ::-1]
    datasets = []
    for name, factor in factors.items():
        array = fine[::factor, ::factor, ::factor]
        group.create_array(
            name, shape=array.shape, dtype="uint8", chunks=(8, 8, 8), dimension_names=list("zyx")
        )[...] = array
        datasets.append(
            {
                "path": name,
                "coordinateTransformations": [{"type": "scale", "scale": [4.0 * factor] * 3}],
            }
        )
    axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    expected = fine.reshape(12, 2, 8, 2, 8, 2).max((1, 3, 5)).T
    for existing in ("error", "overwrite"):
        wkwdask.build_pyramid(tmp_path / "em.zarr", mags=["2"], method="max", existing=existing)
        np.testing.assert_array_equal(wkwdask.open(tmp_path / "em.zarr", mag=2)[0], expected)
        for name, factor in factors.items():
            np.testing.assert_array_equal(
                zarr.open_array(tmp_path / "em.zarr" / name)[...],
                fine[::factor, ::factor, ::factor],
            )
        assert sorted(
            entry["path"]
            for entry in zarr.open_group(tmp_path / "em.zarr").attrs["ome"]["multiscales"][0][
                "datasets"
            ]
        ) == ["0", "1", "2", "2-2-2"]
    assert wkwdask.verify(tmp_path / "em.zarr").is_sound


@pytest.mark.parametrize("paths", [("0", "1"), ("scale0/image", "scale1/image")], ids=["0", "deep"])
def test_a_level_of_other_software_is_replaced_under_its_name(tmp_path, paths):
    folder = tmp_path / "em.zarr"
    group = zarr.open_group(folder, mode="w", zarr_format=3)
    fine = voxels((24, 16, 16))[::-1, ::-1, ::-1]
    datasets = []
    for path, factor in zip(paths, (1, 2), strict=True):
        array = fine[::factor, ::factor, ::factor]
        group.create_array(path, shape=array.shape, dtype="uint8", chunks=(8, 8, 8))[...] = array
        scale = {"type": "scale", "scale": [4.0 * factor] * 3}
        datasets.append({"path": path, "coordinateTransformations": [scale]})
    axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    options = {"mags": ["2", "4"], "method": "max"}
    with pytest.raises(ExistsError, match=f"{paths[1]}: already exists"):
        wkwdask.build_pyramid(folder, **options)
    for existing in ("overwrite", "resume", "restart"):
        wkwdask.build_pyramid(folder, existing=existing, **options)
        image = zarr.open_group(folder, mode="r")
        stored = [entry["path"] for entry in image.attrs["ome"]["multiscales"][0]["datasets"]]
        assert stored == [*paths, "4"]
        expected = fine.reshape(12, 2, 8, 2, 8, 2).max((1, 3, 5))
        np.testing.assert_array_equal(image[paths[1]][...], expected)
        np.testing.assert_array_equal(wkwdask.open(folder, mag=2)[0], expected.T)
    assert wkwdask.verify(folder, pyramid=True).is_sound


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_levels_of_an_image_without_sections_are_removed(tmp_path, version):
    folder = tmp_path / "em.zarr"
    group = zarr.open_group(folder, mode="w", zarr_format=2 if version == "0.4" else 3)
    fine = voxels((1, 16, 24))[0]
    datasets = []
    for path, factor in (("0", 1), ("1", 2)):
        array = fine[::factor, ::factor]
        group.create_array(path, shape=array.shape, dtype="uint8", chunks=(8, 8))[...] = array
        scale = {"type": "scale", "scale": [4.0 * factor] * 2}
        datasets.append({"path": path, "coordinateTransformations": [scale]})
    axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "yx"]
    image = {"version": "0.4", "axes": axes, "datasets": datasets}
    group.attrs.update(
        {"multiscales": [image]}
        if version == "0.4"
        else {"ome": {"version": "0.5", "multiscales": [image]}}
    )
    with pytest.raises(FormatError, match="wkwdask convert stores it as a new image"):
        wkwdask.build_pyramid(folder, mags=["4-4-1"])
    wkwdask.rm(folder, mags=["2-2-1"])
    np.testing.assert_array_equal(wkwdask.open(folder)[0, :, :, 0], fine.T)
    assert [level.key for level in wkwdask.info(folder).scales] == ["0"]
    assert sorted(zarr.open_group(folder).array_keys()) == ["0"]


def test_arrays_of_length_zero_stay_what_they_are(tmp_path):
    group = zarr.open_group(tmp_path / "em.ome.zarr", mode="w", zarr_format=3)
    group.create_array("0", shape=(0, 5, 6), chunks=(1, 5, 5), dtype="uint8")
    axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    scale = [{"type": "scale", "scale": [4.0, 4.0, 4.0]}]
    datasets = [{"path": "0", "coordinateTransformations": scale}]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    source = tmp_path / "em.ome.zarr"
    wkwdask.copy(source, tmp_path / "copied.ome.zarr")
    assert zarr.open_group(tmp_path / "copied.ome.zarr")["0"].shape == (0, 5, 6)
    wkwdask.convert(source, tmp_path / "converted.ome.zarr", chunk_shape=(8, 8, 8))
    assert zarr.open_group(tmp_path / "converted.ome.zarr")["1"].shape == (0, 5, 6)
    wkwdask.rechunk(source, chunk_shape=(8, 8, 8))
    assert zarr.open_group(source)["0"].chunks == (8, 8, 8)
    wkwdask.build_pyramid(source, mags=["2"])
    assert wkwdask.open(source, mag=2).shape == (1, 3, 3, 0)
    assert wkwdask.plan_convert(source, tmp_path / "planned.ome.zarr").mags
    with pytest.raises(MissingError, match="to draw"):
        wkwdask.preview(source, tmp_path / "em.png")
