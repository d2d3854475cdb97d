"""Oracle: webknossos 4.3.3, which opens what we write, whose datasets open here, and whose median
is ours.

It mirrors at the border of a layer, which for factor 2 equals counting the voxels inside alone. Its
mode breaks ties by the order of visiting, ours takes the smallest value: there a voxel of its must
be one of the most frequent in its window. Its median of 64-bit integers goes through float64 and is
wrong, so that it is no oracle for them.
"""

from __future__ import annotations

import json
import logging
import warnings

import numpy as np
import pytest

import wkwdask

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns of image readers that are not installed
    webknossos = pytest.importorskip(
        "webknossos", reason="the oracle webknossos 4.3.3 is not installed"
    )
    cluster_tools = pytest.importorskip(
        "cluster_tools", reason="the oracle webknossos 4.3.3 is not installed"
    )
    downsampling = pytest.importorskip(
        "webknossos.dataset.layer._downsampling_utils",
        reason="the oracle webknossos 4.3.3 is not installed",
    )

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:webknossos"),
    pytest.mark.filterwarnings("ignore::UserWarning:cluster_tools"),
]

OFFSET = (21, 6, 35)
SHAPE = (61, 43, 29)  # odd edges in every mag
VOXEL_SIZE = (11.24, 11.24, 28)


def images(shape, dtype="uint8"):
    """Noise on a gradient, and a corner of zeros."""
    random = np.random.default_rng(11)
    limits = np.iinfo(dtype)
    values = random.integers(max(limits.min, -120), min(limits.max, 250), shape).astype(dtype)
    values[:9, :9, :9] = 0
    return values


def labels(shape, dtype="uint32"):
    """Small segments of few ids, so that there are ties."""
    random = np.random.default_rng(12)
    seeds = random.integers(0, 5, [-(-n // 3) for n in shape]).astype(dtype) * 1000
    return np.kron(seeds, np.ones((3, 3, 3), dtype))[: shape[0], : shape[1], : shape[2]]


@pytest.fixture
def dataset_folder(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, VOXEL_SIZE)
    wkwdask.to_wkw(
        images(SHAPE),
        folder / "color" / "1",
        offset=OFFSET,
        block_len=8,
        file_len=4,
        compression="lz4",
    )
    wkwdask.to_wkw(
        labels(SHAPE), folder / "segmentation" / "1", offset=OFFSET, block_len=8, file_len=4
    )
    return folder


@pytest.fixture
def executor():
    with cluster_tools.get_executor("sequential") as sequential:
        yield sequential


def test_webknossos_opens_what_we_write(dataset_folder):
    for layer in ("color", "segmentation"):
        wkwdask.build_pyramid(dataset_folder, layer, coarsest="8-8-4")
    dataset = webknossos.Dataset.open(dataset_folder)
    assert set(dataset.layers) == {"color", "segmentation"}
    assert dataset.get_layer("color").category == "color"
    assert dataset.get_layer("segmentation").category == "segmentation"
    assert tuple(dataset.voxel_size) == VOXEL_SIZE
    for name, dtype in (("color", "uint8"), ("segmentation", "uint32")):
        layer = dataset.get_layer(name)
        assert tuple(layer.bounding_box.topleft) == OFFSET
        assert tuple(layer.bounding_box.size) == SHAPE
        assert [mag.to_layer_name() for mag in sorted(layer.mags)] == [
            "1",
            "2-2-1",
            "4-4-2",
            "8-8-4",
        ]
        assert layer.dtype == np.dtype(dtype)
        edges = {
            stored.mag.name: stored.block_len * stored.file_len
            for one in wkwdask.info(dataset_folder).layers
            if one.name == name
            for stored in one.mags
        }
        for mag, view in layer.mags.items():
            ours = wkwdask.read(dataset_folder / name / mag.to_layer_name())
            theirs = view.read()
            assert theirs.any()
            np.testing.assert_array_equal(ours, theirs)
            assert tuple(view.info.chunk_shape) == (8, 8, 8)
            assert tuple(view.info.shard_shape) == (edges[mag.to_layer_name()],) * 3


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_median_pyramid_equals_webknossos(tmp_path, executor, dtype):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, VOXEL_SIZE)
    wkwdask.to_wkw(
        images(SHAPE, dtype),
        folder / "color" / "1",
        offset=OFFSET,
        block_len=8,
        file_len=4,
        compression="lz4",
        category="color",
    )
    layer = webknossos.Dataset.open(folder).get_layer("color")
    layer.downsample(
        coarsest_mag=webknossos.Mag("8-8-4"), interpolation_mode="median", executor=executor
    )
    expected = {mag.to_layer_name(): view.read() for mag, view in layer.mags.items()}
    assert list(expected) == ["1", "2-2-1", "4-4-2", "8-8-4"]
    wkwdask.build_pyramid(folder, coarsest="8-8-4", existing="overwrite")
    for name, voxels in expected.items():
        np.testing.assert_array_equal(wkwdask.read(folder / "color" / name), voxels, err_msg=name)


@pytest.mark.parametrize(
    ("voxel_size", "coarsest"), [((10, 20, 40), "8-4-2"), ((4, 4, 40), "8-8-1"), ((8, 8, 8), "8")]
)
def test_default_mags_and_their_median_equal_webknossos(tmp_path, executor, voxel_size, coarsest):
    """The mags are those that each library chooses; one folder is downsampled by each."""
    array = images((70, 33, 18))
    for name in ("ours", "theirs"):
        folder = tmp_path / name
        wkwdask.create_dataset(folder, voxel_size)
        wkwdask.to_wkw(
            array,
            folder / "color" / "1",
            offset=(5, 0, 3),
            block_len=8,
            file_len=2,
            compression="lz4",
        )
    wkwdask.build_pyramid(tmp_path / "ours", coarsest=coarsest)
    layer = webknossos.Dataset.open(tmp_path / "theirs").get_layer("color")
    layer.downsample(coarsest_mag=webknossos.Mag(coarsest), executor=executor)
    ours = webknossos.Dataset.open(tmp_path / "ours").get_layer("color")
    assert list(ours.mags) == list(layer.mags)
    for mag, view in layer.mags.items():
        np.testing.assert_array_equal(ours.get_mag(mag).read(), view.read(), err_msg=str(mag))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32"])
@pytest.mark.parametrize(
    "factor", [(2, 2, 1), (2, 2, 2), (1, 2, 1), (4, 4, 1), (4, 4, 4), (2, 2, 16)]
)
def test_windows_equal_webknossos(tmp_path, factor, dtype):
    """Whole windows of any size, with values of the whole type."""
    limits = np.iinfo(dtype)
    shape = [n * f for n, f in zip((7, 5, 3), factor, strict=True)]
    source = np.asfortranarray(
        np.random.default_rng(13).integers(limits.min, limits.max, shape, dtype, endpoint=True)
    )
    wkwdask.create_dataset(tmp_path, VOXEL_SIZE)
    wkwdask.to_wkw(source, tmp_path / "em" / "1", block_len=8, file_len=8, category="color")
    modes = downsampling.InterpolationModes
    for method, interpolation in (("median", modes.MEDIAN), ("min", modes.MIN), ("max", modes.MAX)):
        wkwdask.build_pyramid(tmp_path, mags=[factor], method=method, existing="overwrite")
        out = wkwdask.read(tmp_path, mag=factor)[0]
        np.testing.assert_array_equal(
            out, downsampling.downsample_cube(source, list(factor), interpolation), err_msg=method
        )


def test_mode_of_webknossos_is_a_mode(dataset_folder, executor):
    """Both agree on windows with one most frequent value; in a tie ours is the smallest."""
    layer = webknossos.Dataset.open(dataset_folder).get_layer("segmentation")
    layer.downsample(coarsest_mag=webknossos.Mag("2-2-1"), executor=executor)
    theirs = layer.get_mag("2-2-1").read()[0]
    wkwdask.build_pyramid(dataset_folder, "segmentation", coarsest="2-2-1", existing="overwrite")
    ours = wkwdask.read(dataset_folder / "segmentation" / "2-2-1")[0]
    assert ours.shape == theirs.shape
    # -1: outside the box
    source = np.zeros([2 * ours.shape[0], 2 * ours.shape[1], ours.shape[2]], np.int64) - 1
    low = [OFFSET[0] % 2, OFFSET[1] % 2]
    source[low[0] : low[0] + SHAPE[0], low[1] : low[1] + SHAPE[1]] = labels(SHAPE)
    windows = (
        source.reshape(ours.shape[0], 2, ours.shape[1], 2, ours.shape[2])
        .transpose(0, 2, 4, 1, 3)
        .reshape(*ours.shape, 4)
    )
    counts = np.where(windows >= 0, (windows[..., None] == windows[..., None, :]).sum(-1), 0)
    most = counts.max(-1, keepdims=True)
    smallest = np.where(counts == most, windows, np.iinfo(np.int64).max).min(-1)
    np.testing.assert_array_equal(ours, smallest)
    assert ((windows == theirs[..., None]) & (counts == most)).any(-1).all()
    assert (ours != theirs).any()  # there are ties that the two break in different ways


@pytest.mark.parametrize("compress", [False, True])
def test_a_dataset_made_by_webknossos_opens_here(tmp_path, executor, compress):
    dataset = webknossos.Dataset(tmp_path / "ds", voxel_size=VOXEL_SIZE)
    box = webknossos.BoundingBox(OFFSET, SHAPE)
    image, label = (
        np.stack([images(SHAPE), images(SHAPE) // 2, images(SHAPE) // 3]),
        labels(SHAPE, "uint64") * np.uint64(2**40 + 1),
    )
    arrays = {"color": image, "segmentation": label[np.newaxis]}
    for name, options in (
        ("color", {"dtype": np.uint8, "num_channels": 3}),
        ("segmentation", {"dtype": np.uint64}),
    ):
        layer = dataset.add_layer(name, name, data_format="wkw", bounding_box=box, **options)
        mag = layer.add_mag(1, chunk_shape=8, shard_shape=32, compress=compress)
        mag.write(arrays[name], absolute_offset=OFFSET, allow_unaligned=True)
    dataset.get_layer("color").downsample(coarsest_mag=webknossos.Mag("4-4-2"), executor=executor)
    for name, array in arrays.items():
        np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds", layer=name, mag=1), array)
        opened = wkwdask.open(tmp_path / "ds", layer=name)
        assert opened.shape == array.shape
        np.testing.assert_array_equal(opened.compute(), array)
    for mag, view in dataset.get_layer("color").mags.items():
        np.testing.assert_array_equal(
            wkwdask.read(tmp_path / "ds" / "color", mag=mag.to_layer_name()), view.read()
        )
    summary = wkwdask.info(tmp_path / "ds")
    assert [(layer.name, layer.category, layer.element_class) for layer in summary.layers] == [
        ("color", "color", "uint24"),
        ("segmentation", "segmentation", "uint64"),
    ]


def test_our_mags_join_a_layer_that_webknossos_made(tmp_path):
    dataset = webknossos.Dataset(tmp_path / "ds", voxel_size=VOXEL_SIZE)
    layer = dataset.add_layer(
        "segmentation", "segmentation", data_format="wkw", dtype=np.uint32, largest_segment_id=2**60
    )
    layer.bounding_box = webknossos.BoundingBox(OFFSET, SHAPE)
    layer.add_mag(1, chunk_shape=8, shard_shape=32, compress=True).write(
        labels(SHAPE), absolute_offset=OFFSET, allow_unaligned=True
    )
    before = json.loads((tmp_path / "ds" / "datasource-properties.json").read_text())
    wkwdask.build_pyramid(tmp_path / "ds", coarsest="4-4-2")
    after = json.loads((tmp_path / "ds" / "datasource-properties.json").read_text())
    assert len(after["dataLayers"][0]["mags"]) == 3
    before["dataLayers"][0]["mags"] = after["dataLayers"][0]["mags"]
    assert after == before
    reopened = webknossos.Dataset.open(tmp_path / "ds").get_layer("segmentation")
    assert reopened.largest_segment_id == 2**60
    for mag, view in reopened.mags.items():
        np.testing.assert_array_equal(
            view.read(), wkwdask.read(tmp_path / "ds", mag=mag.to_layer_name())
        )


@pytest.fixture(autouse=True)
def _quiet():
    """It logs every step."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_meshes_are_an_attachment(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", voxel_size=VOXEL_SIZE)
    wkwdask.save(labels(SHAPE), tmp_path / "ds" / "seg" / "1", category="segmentation")
    wkwdask.meshes(tmp_path / "ds" / "seg", cell=32)
    layer = webknossos.Dataset.open(tmp_path / "ds").get_layer("seg")
    (meshes,) = layer.attachments.meshes
    assert (meshes.name, meshes.data_format.value) == ("mesh", "neuroglancerPrecomputed")
    assert str(meshes.path) == str(tmp_path / "ds" / "seg" / "mesh")
    # the library writes the document again, and keeps the entry
    layer.dataset.name = "renamed"
    assert wkwdask.open_dataset(tmp_path / "ds")["seg"].attachments[0].name == "mesh"
    assert wkwdask.verify(tmp_path / "ds").is_sound
