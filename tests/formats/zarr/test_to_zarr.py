"""``to_zarr`` and ``convert`` to OME-NGFF and back: what is chosen and refused, shards of one task,
interruptions, places."""

from __future__ import annotations

import gzip
import os

import dask
import dask.array as da
import numpy as np
import pytest
from faults.drivers import stopping
from faults.trees import leftovers
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run_here
from support.inner_box import inside
from support.inside import limited
from support.zarr_sources import VOXEL_SIZE, document, make_dataset, voxels

import wkwdask
from wkwdask.errors import (
    BoundsError,
    ExistsError,
    MissingError,
    ResumeError,
    TaskFailedError,
    UnsupportedError,
)

zarr = pytest.importorskip(
    "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
)

OPTIONS = {"voxel_size": VOXEL_SIZE, "chunk_shape": (8, 8, 8)}


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    with dask.config.set(scheduler="synchronous"):
        return make_dataset(tmp_path_factory.mktemp("ds"))


def read(image, mag="1"):
    """Return the voxels in the box of a level."""
    array = zarr.open_group(str(image), mode="r")[mag]
    return inside(array[...], array.attrs)


def datasets(image):
    attributes = dict(zarr.open_group(str(image), mode="r").attrs)
    inner = attributes.get("ome", attributes)
    return {
        entry["path"]: [step[step["type"]] for step in entry["coordinateTransformations"]]
        for entry in inner["multiscales"][0]["datasets"]
    }


def files(folder):
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".wkwdask")
    )


def left(folder):
    """List what jobs left behind; some names of Zarr 2 begin with a dot too."""
    return [
        name
        for name in leftovers(folder)
        if os.path.basename(name) not in (".zarray", ".zattrs", ".zgroup")
    ]


# ----------------------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    ("options", "stored"),
    [
        ({}, ["1/c/0/0/0"]),
        ({"shard_shape": (16, 64, 16)}, [f"1/c/{z}/0/{x}" for z in range(2) for x in range(2)]),
        (
            {"shard_shape": False, "chunk_shape": (32, 32, 16)},
            [f"1/c/{z}/{y}/0" for z in range(2) for y in range(2)],
        ),
        (
            {"ngff": "0.4", "chunk_shape": (32, 32, 16)},
            [f"1/{z}/{y}/0" for z in range(2) for y in range(2)],
        ),
    ],
)
@pytest.mark.parametrize("kind", ["numpy", "dask"])
def test_forms(tmp_path, options, stored, kind):
    array = voxels()
    source = array if kind == "numpy" else da.from_array(array, chunks=(13, 41, 9))
    report = wkwdask.to_zarr(
        source, tmp_path / "a.ome.zarr", offset=(-3, 0, 7), **{**OPTIONS, **options}
    )
    np.testing.assert_array_equal(read(tmp_path / "a.ome.zarr"), array.T)
    assert [
        name
        for name in files(tmp_path / "a.ome.zarr")
        if not name.endswith(("zarr.json", ".zarray", ".zattrs", ".zgroup"))
    ] == stored
    assert datasets(tmp_path / "a.ome.zarr") == {"1": [[40, 5, 4], [280, 0, -12]]}
    assert report.files == len(stored)
    assert report.mags[0].nonzero.topleft == (-3, 0, 7)
    assert left(tmp_path) == []


@given(data=st.data())
def test_any_shapes(tmp_path_factory, data):
    """Chunks, shards and dask chunks that do not fit each other, channels, and types of either byte
    order."""
    folder = tmp_path_factory.mktemp("zarr")
    shape = data.draw(st.tuples(*[st.integers(1, 40)] * 3))
    channels = data.draw(st.sampled_from([1, 2]))
    dtype = np.dtype(data.draw(st.sampled_from(["u1", ">u2", "<f4", "i8"])))
    chunk = data.draw(st.tuples(*[st.sampled_from([3, 8, 16])] * 3))
    shard = tuple(edge * data.draw(st.sampled_from([1, 2, 4])) for edge in chunk)
    array = voxels((channels, *shape), dtype)
    cuts = tuple(data.draw(st.integers(1, 40)) for _ in range(3))
    compression = data.draw(st.sampled_from(["blosc", "zstd", "gzip", "raw"]))
    wkwdask.to_zarr(
        da.from_array(array, chunks=(channels, *cuts)),
        folder / "a",
        voxel_size=(1, 1, 1),
        chunk_shape=chunk,
        shard_shape=shard,
        compression=compression,
    )
    found = read(folder / "a")
    np.testing.assert_array_equal(
        found if channels > 1 else found[np.newaxis], array.transpose(0, 3, 2, 1)
    )


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("form", ["zarr{}://{}", "{1}|zarr{0}:", "{1}|zarr{0}"])
def test_names_that_state_the_version_of_zarr(tmp_path, form, zarr_format):
    folder = tmp_path / "image"
    url = form.format(zarr_format, folder)
    voxels = np.arange(512, dtype=np.uint8).reshape(8, 8, 8)
    wkwdask.save(voxels, url, voxel_size=VOXEL_SIZE)
    wkwdask.build_pyramid(url)
    assert os.listdir(tmp_path) == ["image"]
    group = document(folder / ("zarr.json" if zarr_format == 3 else ".zgroup"))
    assert group["zarr_format"] == zarr_format
    np.testing.assert_array_equal(wkwdask.read(url, mag=1)[0], voxels)
    assert wkwdask.read(folder, mag="2-1-1").shape == (1, 4, 8, 8)


def test_what_is_told_of_it(tmp_path):
    """Units, types and axes; a further mag, and what is never stored."""
    wkwdask.to_zarr(voxels((3, 20, 10, 8)), tmp_path / "a.ome.zarr", **OPTIONS)
    wkwdask.to_zarr(
        voxels((3, 10, 5, 8)), tmp_path / "a.ome.zarr", mag="2-2-1", chunk_shape=(8, 8, 8)
    )
    ome = document(tmp_path / "a.ome.zarr" / "zarr.json")["attributes"]["ome"]
    assert (ome["version"], ome["multiscales"][0]["name"]) == ("0.5", "a")
    assert [axis["name"] for axis in ome["multiscales"][0]["axes"]] == list("czyx")
    assert datasets(tmp_path / "a.ome.zarr") == {
        "1": [[1, 40, 5, 4], [0, 0, 0, 0]],
        "2-2-1": [[1, 40, 10, 8], [0, 0, 2.5, 2]],
    }
    array = zarr.open_group(str(tmp_path / "a.ome.zarr"), mode="r")["1"]
    assert (array.metadata.dimension_names, array.chunks, array.shards) == (
        ("c", "z", "y", "x"),
        (3, 8, 8, 8),
        (3, 8, 16, 32),
    )
    assert dict(array.attrs) == {"mag": [1, 1, 1], "offset_vx": [0, 0, 0]}
    wkwdask.to_zarr(
        np.zeros((20, 10, 8), np.uint32), tmp_path / "a.ome.zarr" / "labels" / "ids", **OPTIONS
    )
    labels = zarr.open_group(str(tmp_path / "a.ome.zarr"), mode="r")["labels"]
    assert (labels.attrs["ome"]["labels"], "image-label" in labels["ids"].attrs["ome"]) == (
        ["ids"],
        True,
    )
    assert files(tmp_path / "a.ome.zarr" / "labels" / "ids") == ["1/zarr.json", "zarr.json"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"voxel_size": None}, "voxel_size= is needed"),
        ({"compression": "lz4"}, "compression of OME-NGFF must be one of"),
        ({"level": 99}, r"level of zstd must be in -7\.\.22"),
        ({"ngff": "0.7"}, "ngff of OME-NGFF must be one of 0.6, 0.5, 0.4"),
        ({"ngff": "0.4", "shard_shape": (8, 8, 8)}, "which has no shards"),
        ({"chunk_shape": (0, 8, 8)}, "chunk_shape must be positive"),
        ({"category": "labels"}, "category must be"),
    ],
)
def test_refused_before_anything_is_written(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        wkwdask.to_zarr(voxels(), tmp_path / "a", **{**OPTIONS, **options})
    with pytest.raises(TypeError, match="cast it with"):
        wkwdask.to_zarr(voxels(dtype="complex64"), tmp_path / "a", **OPTIONS)
    assert not (tmp_path / "a").exists()


def test_other_data_is_left_alone(tmp_path, dataset):
    with pytest.raises(UnsupportedError, match="remote locations are read-only"):
        wkwdask.to_zarr(voxels(), "zarr://https://host/a.ome.zarr", **OPTIONS)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    zarr.create_array(str(tmp_path / "array"), shape=(3,), dtype="uint8")
    for target, message in (
        ("notes", "contains other files than an image"),
        ("array", "is a Zarr array"),
        (dataset, "holds WKW data"),
    ):
        with pytest.raises(ExistsError, match=message):
            wkwdask.to_zarr(voxels(), tmp_path / target, **OPTIONS)
    wkwdask.to_zarr(voxels(), f"zarr://{tmp_path}/a", **OPTIONS)
    for options, error, message in (
        ({}, ExistsError, "already exists"),
        ({"mag": 2, "ngff": "0.4"}, ValueError, "is a group of Zarr 3"),
        (
            {"mag": 2, "voxel_size": (2, 2.5, 20)},
            ExistsError,
            "the array '1' has the voxel size of mag 2 already",
        ),
    ):
        with pytest.raises(error, match=message):
            wkwdask.to_zarr(voxels(), tmp_path / "a", **{**OPTIONS, **options})
    with pytest.raises(ValueError, match="the axes of the image are"):
        wkwdask.to_zarr(voxels((2, 4, 4, 4)), tmp_path / "a", mag=2, **OPTIONS)
    (tmp_path / "a" / "1" / "notes").write_text("mine")
    with pytest.raises(ExistsError, match=r"contains other files than one Zarr array \(.*notes\)"):
        wkwdask.to_zarr(voxels(), tmp_path / "a", existing="overwrite", **OPTIONS)
    (tmp_path / "a" / "1" / "notes").unlink()
    wkwdask.to_zarr(voxels(seed=2), tmp_path / "a", existing="overwrite", **OPTIONS)
    np.testing.assert_array_equal(read(tmp_path / "a"), voxels(seed=2).T)


def test_later(tmp_path):
    delayed = wkwdask.to_zarr(
        da.from_array(voxels(), chunks=16), tmp_path / "a", compute=False, **OPTIONS
    )
    assert not (tmp_path / "a" / "zarr.json").exists()
    assert delayed.compute().files == 1
    np.testing.assert_array_equal(read(tmp_path / "a"), voxels().T)


class BrokenError(Exception):
    pass


@pytest.fixture
def _small_groups():
    with limited(chunks_of_a_group=8):
        yield


@pytest.mark.usefixtures("_small_groups")
@pytest.mark.parametrize("shard", [False, (16, 16, 16)])
def test_what_was_finished_is_kept(tmp_path, shard):
    asked, state = [], {"left": 6}

    def chunk(block, block_info=None):
        if block.size and block_info:
            asked.append(block_info[0]["chunk-location"])
            state["left"] -= 1
            if state["left"] < 0:
                raise BrokenError
        return block

    array = da.from_array(voxels(), chunks=(16, 16, 8)).map_blocks(chunk, dtype=np.uint8)
    options = {**OPTIONS, "shard_shape": shard}
    with pytest.raises((BrokenError, TaskFailedError)) as failed:
        wkwdask.to_zarr(array, tmp_path / "a", **options)
    assert 'existing="resume" resumes with any array' in "".join(
        getattr(failed.value, "__notes__", [])
    )
    assert not (tmp_path / "a" / "zarr.json").exists()
    with pytest.raises(ResumeError, match="compression was"):
        wkwdask.to_zarr(array, tmp_path / "a", existing="resume", compression="gzip", **options)
    kept = sorted(
        path for path in (tmp_path / "a").glob(".wkwdask-job-*/1-1-1/c/**/*") if path.is_file()
    )
    assert kept
    os.truncate(kept[0], 7)
    before, state["left"] = len(asked), 1000
    report = wkwdask.to_zarr(array, tmp_path / "a", existing="resume", **options)
    assert 0 < len(asked) - before <= 18
    assert (
        "nothing to do" in wkwdask.to_zarr(array, tmp_path / "a", existing="resume", **options).note
    )
    assert report.files == len(
        [name for name in files(tmp_path / "a" / "1") if name.startswith("c/")]
    )
    np.testing.assert_array_equal(read(tmp_path / "a"), voxels().T)
    assert left(tmp_path) == []


# ----------------------------------------------------------------------------- all mags of a layer


@pytest.mark.parametrize("version", ["0.5", "0.4"])
def test_a_layer_and_back(tmp_path, dataset, version):
    """All mags come back to where they were, and so does what they are."""
    image = tmp_path / "em.ome.zarr"
    report = wkwdask.convert(dataset, image, layer="color", ngff=version, chunk_shape=(16, 16, 16))
    assert len(report.mags) == 3
    wkwdask.convert(dataset, image / "labels" / "neurons", layer="neurons", ngff=version)
    for mag in ("1", "2-2-1", "4-4-2"):
        np.testing.assert_array_equal(
            read(image, mag), wkwdask.open(dataset / "color" / mag)[0].compute().T
        )
        absolute = {"mag": mag, "origin": "absolute"}  # the same voxels at the same places
        np.testing.assert_array_equal(
            wkwdask.open(image, **absolute).compute(),
            wkwdask.open(dataset, layer="color", **absolute).compute(),
        )
    # the array begins at a chunk of mag 4-4-2
    assert datasets(image)["2-2-1"] == [[40, 10, 8], [0, 2.5, 2]]
    wkwdask.convert(image, tmp_path / "back", layer="color")
    wkwdask.convert(image / "labels" / "neurons", tmp_path / "back", layer="neurons")
    back, before = wkwdask.open_dataset(tmp_path / "back"), wkwdask.open_dataset(dataset)
    assert back.voxel_size == before.voxel_size
    for name in ("color", "neurons"):
        assert (back[name].category, back[name].bounding_box) == (
            before[name].category,
            before[name].bounding_box,
        )
        assert list(back[name].mags) == list(before[name].mags)
    for path in ("color/1", "color/4-4-2", "neurons/2-2-1"):
        np.testing.assert_array_equal(
            wkwdask.open(tmp_path / "back" / path).compute(), wkwdask.open(dataset / path).compute()
        )
    assert left(tmp_path) == []


def test_parts_of_a_layer(tmp_path, dataset):
    """One mag, a box, other values, another place."""
    box = (12, 22, 32, 8, 6, 10)
    wkwdask.convert(
        dataset / "color" / "1",
        tmp_path / "a.ome.zarr",
        bounding_box=box,
        dtype="uint16",
        value_range=(0, 255),
        offset=(-100, 0, 0),
    )
    expected = (
        wkwdask.read(dataset / "color" / "1", wkwdask.BoundingBox((12, 22, 32), (8, 6, 10)))[
            0
        ].T.astype("uint16")
        * 257
    )
    np.testing.assert_array_equal(read(tmp_path / "a.ome.zarr"), expected)
    assert datasets(tmp_path / "a.ome.zarr") == {"1": [[40, 5, 4], [1280, 110, -88 * 4]]}
    with pytest.raises(BoundsError, match=r"starts at voxel \(-88, 22, 32\)"):
        wkwdask.convert(tmp_path / "a.ome.zarr", tmp_path / "back")
    wkwdask.convert(tmp_path / "a.ome.zarr", tmp_path / "back", offset=(100, 0, 0))
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "back").compute()[0].T, expected)
    assert wkwdask.open_dataset(tmp_path / "back")["color"].bounding_box.topleft == (12, 22, 32)
    wkwdask.convert(dataset, tmp_path / "b.ome.zarr", layer="color", mag="4-4-2")
    # the finest array says that it is a coarser mag
    wkwdask.convert(tmp_path / "b.ome.zarr", tmp_path / "b")
    assert [mag.name for mag in wkwdask.open_dataset(tmp_path / "b")["color"].mags] == ["4-4-2"]


def test_labels_with_fewer_mags(tmp_path, dataset):
    wkwdask.convert(dataset, tmp_path / "a.ome.zarr", layer="color")
    with pytest.warns(wkwdask.errors.ViewerWarning, match="has 1 arrays, its image 3"):
        wkwdask.convert(dataset, tmp_path / "a.ome.zarr" / "labels" / "ids", layer="neurons", mag=1)
    with pytest.raises(ValueError, match="labels must be integers in one channel"):
        wkwdask.convert(dataset, tmp_path / "a.ome.zarr" / "labels" / "em", layer="color")


def test_a_precomputed_volume_becomes_an_image(tmp_path):
    wkwdask.to_precomputed(
        voxels(dtype="uint16"),
        tmp_path / "v",
        voxel_size=VOXEL_SIZE,
        offset=(-5, 0, 0),
        chunk_shape=(8, 8, 8),
    )
    wkwdask.convert(tmp_path / "v", tmp_path / "a.ome.zarr")
    np.testing.assert_array_equal(read(tmp_path / "a.ome.zarr"), voxels(dtype="uint16").T)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"pyramid": True}, ValueError, "pyramid= is not for it"),
        ({"encoding": "raw"}, ValueError, "zarr has no option encoding; it has: chunk_shape"),
        ({}, ValueError, "several layers"),
        ({"layer": "color", "mag": 8}, MissingError, "has no mag 8"),
        ({"layer": "color", "offset": (1, 0, 0)}, ValueError, "must be a multiple of every mag"),
        ({"layer": "color", "compression": "lz4hc"}, ValueError, "compression of OME-NGFF"),
    ],
)
def test_conversions_that_are_refused(tmp_path, dataset, options, error, message):
    with pytest.raises(error, match=message):
        wkwdask.convert(dataset, tmp_path / "a.ome.zarr", **options)
    with pytest.raises(ValueError, match="an export has no option ngff"):
        wkwdask.convert(dataset, tmp_path / "a.npy", layer="color", ngff="0.5")
    assert os.listdir(tmp_path) == []


def test_an_interrupted_conversion(tmp_path, dataset):
    options = {"layer": "color", "chunk_shape": (8, 8, 8), "shard_shape": False}
    with (
        stopping(tmp_path / "log", 1, BrokenError()),
        pytest.raises((BrokenError, TaskFailedError)),
    ):
        wkwdask.convert(dataset, tmp_path / "a.ome.zarr", **options)
    finished = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "a.ome.zarr" / "1" / "c").rglob("*")
        if path.is_file()
    }
    assert finished
    wkwdask.convert(dataset, tmp_path / "a.ome.zarr", existing="resume", **options)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    np.testing.assert_array_equal(
        read(tmp_path / "a.ome.zarr", "1"), wkwdask.open(dataset / "color" / "1")[0].compute().T
    )
    np.testing.assert_array_equal(
        read(tmp_path / "a.ome.zarr", "4-4-2"),
        wkwdask.open(dataset / "color" / "4-4-2")[0].compute().T,
    )
    assert left(tmp_path) == []


# ----------------------------------------------------------------------------- what others write


def make_image(folder, scales, units="micrometer", translations=None, shape=(8, 16, 16)):
    """An image as other software writes one: levels 0, 1, ... with scales z, y, x."""
    group = zarr.create_group(str(folder))
    entries = []
    for n, scale in enumerate(scales):
        size = tuple(
            max(1, round(length * a / b))
            for length, a, b in zip(shape, scales[0], scale, strict=True)
        )
        group.create_array(str(n), shape=size, chunks=(4, 8, 8), dtype="uint8")[...] = n + 1
        steps = [{"type": "scale", "scale": list(scale)}]
        if translations is not None:
            steps.append({"type": "translation", "translation": list(translations[n])})
        entries.append({"path": str(n), "coordinateTransformations": steps})
    axes = [{"name": name, "type": "space", "unit": units} for name in "zyx"]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": entries}]}
    return folder


def test_images_of_others(tmp_path):
    """Without translations, as most are written, all levels begin at voxel 0."""
    image = make_image(
        tmp_path / "a.zarr", [(0.04, 0.01, 0.01), (0.04, 0.02, 0.02), (0.08, 0.04, 0.04)]
    )
    report = wkwdask.convert(image, tmp_path / "ds", layer="em", block_len=8, file_len=2)
    assert [os.path.basename(mag.path) for mag in report.mags] == ["1", "2-2-1", "4-4-2"]
    dataset = wkwdask.open_dataset(tmp_path / "ds")
    assert (tuple(dataset.voxel_size), dataset["em"].bounding_box.topleft) == (
        (10, 10, 40),
        (0, 0, 0),
    )
    assert int(wkwdask.open(tmp_path / "ds" / "em" / "4-4-2").min().compute()) == 3
    wkwdask.convert(image, tmp_path / "one", mag="2-2-1")
    assert [mag.name for mag in wkwdask.open_dataset(tmp_path / "one")["color"].mags] == ["2-2-1"]
    wkwdask.convert(image, tmp_path / "built", pyramid=True)  # of the finest alone
    assert int(wkwdask.open(tmp_path / "built" / "color" / "2-2-1").max().compute()) == 1


def test_levels_of_other_types(tmp_path):
    """They are refused before the first is made, unless a type is named."""
    image = make_image(tmp_path / "a.zarr", [(1, 1, 1), (2, 2, 2)], units="nanometer")
    group = zarr.open_group(str(image))
    del group["1"]
    group.create_array("1", shape=(4, 8, 8), chunks=(4, 8, 8), dtype="uint16")[...] = 300
    for target in (tmp_path / "ds", f"precomputed://{tmp_path}/p", tmp_path / "b.ome.zarr"):
        with pytest.raises(
            wkwdask.UnsupportedError,
            match=r"1: has 1 x uint16, but .* 1 x uint8; mags of a layer have one type",
        ):
            wkwdask.convert(image, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr"]
    wkwdask.convert(image, tmp_path / "ds", dtype="uint16")
    assert int(wkwdask.open(tmp_path / "ds", mag=2).max().compute()) == 300


def test_levels_that_are_no_mags(tmp_path):
    image = make_image(
        tmp_path / "a.zarr",
        [(1, 1, 1), (1.5, 1.5, 1.5), (2.01, 2.01, 2.01)],
        translations=[(5, 0, 3), (5, 0, 3), (5.5, 0.5, 3.5)],
        units="nanometer",
    )
    report = wkwdask.convert(image, tmp_path / "ds")
    assert report.note.splitlines()[-1] == "levels left out: '1' (no mag)"
    layer = wkwdask.open_dataset(tmp_path / "ds")["color"]
    assert ([mag.name for mag in layer.mags], layer.bounding_box.topleft) == (["1", "2"], (3, 0, 5))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"type": "scale"', '"typ": "scale"', "a new dataset needs a voxel size"),
        ("1.5", '"x"', "a new dataset needs a voxel size"),
        ('"datasets"', '"data"', "a group without multiscales"),
        ('"path": "0"', '"path": "9"', "a.zarr/9: not found, though the image lists it"),
        ("{", "", "not readable as Zarr array or group"),
    ],
)
def test_broken_images(tmp_path, old, new, message):
    image = make_image(tmp_path / "a.zarr", [(1.5, 1.5, 1.5)])
    text = (image / "zarr.json").read_text()
    assert old in text
    (image / "zarr.json").write_text(text.replace(old, new))
    with pytest.raises((wkwdask.WkwDaskError, ValueError), match=message):
        wkwdask.convert(image, tmp_path / "ds")
    assert not (tmp_path / "ds").exists()


def test_command(tmp_path, dataset):
    done = run_here(
        "convert",
        dataset,
        tmp_path / "a.ome.zarr",
        "--layer",
        "color",
        "--ngff",
        "0.4",
        "--chunk-shape",
        "8,8,8",
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.ome.zarr" / "4-4-2" / ".zarray").exists()


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_an_image_does_not_hide_arrays_that_a_group_holds_already(tmp_path, version):
    """``multiscales`` would list the new array alone, and the arrays beside it would no longer be
    found."""
    fine = np.arange(16**3, dtype="u2").reshape(16, 16, 16)
    group, options = (
        zarr.open_group(str(tmp_path / "g"), mode="w", zarr_format=2 if version == "0.4" else 3),
        {"ngff": version, "voxel_size": (4, 4, 8)},
    )
    for name in ("0", "others/1"):
        group.create_array(name, data=fine, chunks=(8, 8, 8))
    before = wkwdask.info(f"zarr://{tmp_path}/g")
    with pytest.raises(
        ExistsError, match=r"/g: holds 0, others/1, and no multiscales lists them: .* new group"
    ):
        wkwdask.save(fine[::4, ::4, ::4], f"zarr://{tmp_path}/g", mag="4-4-4", **options)
    with pytest.raises(ExistsError, match="hide them"):
        wkwdask.convert(f"zarr://{tmp_path}/g/0", f"zarr://{tmp_path}/g", **options)
    assert wkwdask.info(f"zarr://{tmp_path}/g") == before
    wkwdask.save(fine[::4, ::4, ::4], f"zarr://{tmp_path}/g/image", mag="4-4-4", **options)
    np.testing.assert_array_equal(
        wkwdask.read(f"zarr://{tmp_path}/g/image", mag="4-4-4")[0], fine[::4, ::4, ::4]
    )


def test_the_list_of_labels_is_no_image(tmp_path, dataset):
    image = tmp_path / "em.ome.zarr"
    wkwdask.convert(dataset, image, layer="color", mag="4-4-2")
    with pytest.raises(
        ExistsError,
        match=(
            "labels: is the group that lists the labels of an image; write to a folder in it, such "
            "as"
        ),
    ):
        wkwdask.convert(dataset, image / "labels", layer="neurons", mag="4-4-2")
    assert not (image / "labels").exists()
    wkwdask.convert(dataset, image / "labels" / "neurons", layer="neurons", mag="4-4-2")


def test_levels_of_another_voxel_size_are_refused(tmp_path, dataset):
    """Two levels of one image would not lie over each other; replaced with all others, they may."""
    image = tmp_path / "em.ome.zarr"
    wkwdask.to_zarr(voxels(), image, **OPTIONS)
    message = "the voxel size of mag 1 is 4 x 5 x 40 nm according to its array '1', got 8 x 5 x 40"
    with pytest.raises(ValueError, match=message):
        wkwdask.to_zarr(voxels((15, 20, 11)), image, mag=2, **OPTIONS | {"voxel_size": (8, 5, 40)})
    with pytest.raises(ValueError, match=message):
        wkwdask.convert(dataset, image, layer="color", mag="2-2-1", voxel_size=(8, 5, 40))
    assert not (image / "2").exists()
    wkwdask.convert(dataset, image, layer="color", voxel_size=(8, 5, 40), existing="overwrite")
    assert datasets(image)["2-2-1"][0] == [40, 10, 16]


def test_equal_voxels_have_equal_bytes(tmp_path, monkeypatch):
    """Also at another time, which a gzip member could state."""
    written = []
    for name, now in (("a", 1.0), ("b", 2e9)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        options = {"voxel_size": VOXEL_SIZE, "compression": "gzip", "chunk_shape": (8, 8, 8)}
        wkwdask.to_zarr(np.ones((8, 8, 8), np.uint8), tmp_path / name, ngff="0.4", **options)
        files = (path for path in tmp_path.glob(f"{name}/1/**/*") if path.is_file())
        (chunk,) = (path for path in files if not path.name.startswith("."))
        written.append(chunk.read_bytes())
    assert written[0] == written[1]
    assert gzip.decompress(written[0]) == bytes([1] * 512)
