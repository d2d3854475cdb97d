"""Arrays to volumes: any chunks and any scheduler write the same files."""

from __future__ import annotations

import json
import os
import re
import time
from itertools import pairwise
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.inside import limited

import wkwdask
from wkwdask import BoundingBox
from wkwdask.errors import BoundsError, ExistsError, LockedError

PROGRESS_NAME, PROVENANCE_NAME, RECORD_NAME = (
    ".wkwdask-progress.jsonl",
    ".wkwdask.json",
    ".wkwdask-files.npy",
)
OPTIONS = {"block_len": 8, "file_len": 4, "compression": "lz4"}
OFFSET = (13, 40, 7)
SHAPE = (1, 50, 37, 70)


def voxels(shape=SHAPE, dtype="uint16", seed=1):
    """Draw noise, constant in its last half."""
    random = np.random.default_rng(seed)
    array = random.integers(1, 100, shape).astype(dtype)
    array[..., shape[-1] // 2 :] = 7
    return array


@pytest.fixture
def array():
    values = voxels()
    values[0, 19:51] = 0
    return values


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (11, 11, 28))
    return folder


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*.wkw"))
    }


def leftovers(folder):
    return [
        path.name
        for path in Path(folder).rglob(".*")
        if path.name not in (PROVENANCE_NAME, RECORD_NAME, PROGRESS_NAME)
    ]


def test_chunks_of_another_shape_than_declared_are_refused(tmp_path, array):
    liar = da.from_array(array, chunks=array.shape).map_blocks(
        lambda block: block[:, :-1], dtype=array.dtype
    )
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.raises(ValueError, match="but the array declares"),
    ):
        wkwdask.to_wkw(liar, tmp_path / "ds" / "1", **OPTIONS)
    assert not (tmp_path / "ds" / "1").exists()


# ----------------------------------------------------------------------------- files


@settings(max_examples=max(1, settings.default.max_examples // 2))
@given(data=st.data())
def test_any_chunks_write_the_same_files(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("chunks")
    shape = tuple(data.draw(st.integers(1, 40)) for _ in range(3))
    offset = tuple(data.draw(st.integers(0, 40)) for _ in range(3))
    chunks = []
    for length in shape:
        cuts = sorted(data.draw(st.sets(st.integers(1, length), max_size=4)) | {0, length})
        chunks.append(tuple(b - a for a, b in pairwise(cuts)))
    values = np.random.default_rng(len(chunks[0])).integers(0, 3, shape, dtype=np.uint8)
    options = {"block_len": 4, "file_len": 4, "compression": "lz4"}
    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_wkw(values, folder / "numpy" / "1", offset=offset, **options)
        wkwdask.to_wkw(
            da.from_array(values, chunks=chunks), folder / "dask" / "1", offset=offset, **options
        )
    assert contents(folder / "numpy") == contents(folder / "dask")
    np.testing.assert_array_equal(wkwdask.read(folder / "dask" / "1")[0], values)
    # as of other software: the box is that of the files
    (folder / "dask" / "1" / ".wkwdask.json").unlink()
    assert np.count_nonzero(wkwdask.read(folder / "dask" / "1")) == np.count_nonzero(values)


@pytest.mark.long
@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_every_scheduler_writes_the_same_files(tmp_path, array, scheduler):
    wkwdask.to_wkw(array, tmp_path / "numpy" / "1", offset=OFFSET, **OPTIONS)
    with dask.config.set(scheduler=scheduler, num_workers=1 if scheduler == "processes" else 2):
        report = wkwdask.to_wkw(
            da.from_array(array, chunks=(1, 20, 37, 33)),
            tmp_path / "dask" / "1",
            offset=OFFSET,
            **OPTIONS,
        )
    assert contents(tmp_path / "dask") == contents(tmp_path / "numpy")
    assert report.files == len(contents(tmp_path / "dask")) - 1
    assert leftovers(tmp_path) == []


def test_files_of_parts_equal_files_written_whole(tmp_path, array):
    wkwdask.to_wkw(array, tmp_path / "whole" / "1", offset=OFFSET, **OPTIONS)
    with limited(part_nbytes=16**3 * 2):
        wkwdask.to_wkw(array, tmp_path / "job" / "1", offset=OFFSET, **OPTIONS)
        wkwdask.to_wkw(
            da.from_array(array, chunks=17), tmp_path / "graph" / "1", offset=OFFSET, **OPTIONS
        )
    assert (
        contents(tmp_path / "job") == contents(tmp_path / "graph") == contents(tmp_path / "whole")
    )
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("dtype", "lazy"),
    [(">u2", False), (">i4", True), (">f8", True), ("<u8", True), ("=f4", False), ("|u1", False)],
)
def test_any_byte_order_is_written(tmp_path, dtype, lazy):
    values = (np.arange(6 * 5 * 4).reshape(6, 5, 4) * 3 + 1).astype(dtype)
    wkwdask.to_wkw(
        da.from_array(values, chunks=3) if lazy else values,
        tmp_path / "1",
        offset=(1, 2, 3),
        **OPTIONS,
    )
    stored = wkwdask.read(tmp_path / "1", ((1, 2, 3), (7, 7, 7)))
    assert stored.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(stored[0], values)


@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_any_memory_order_is_written(tmp_path, order):
    values = np.arange(3 * 20 * 18 * 10, dtype=np.uint32).reshape(3, 20, 18, 10)
    given_values = np.asfortranarray(values) if order == "F" else values
    if order == "strided":
        given_values = np.repeat(values, 2, axis=2)[:, :, ::2][:, ::-1]
        values = values[:, ::-1]
    wkwdask.to_wkw(given_values, tmp_path / "1", **OPTIONS)
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "1", ((0, 0, 0), (20, 18, 10))), values)


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [
        ("float16", 'cast with .astype("float32")'),
        ("bool", 'cast with .astype("uint8")'),
        ("complex64", "store real and imaginary parts as two channels"),
    ],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_types_without_wkw_voxel_type_are_refused(tmp_path, dtype, advice, lazy):
    values = np.zeros((4, 4, 4), dtype)
    text = rf"WKW has no voxel type for {dtype}; .*{re.escape(advice)}"
    with pytest.raises(TypeError, match=text):
        wkwdask.to_wkw(da.from_array(values) if lazy else values, tmp_path / "1")
    assert not list(tmp_path.iterdir())


def test_invalid_arguments_leave_no_files(tmp_path):
    unknown = da.from_array(np.arange(64, dtype=np.uint8), chunks=4)
    unknown = da.stack([unknown[unknown > 3]])[np.newaxis]
    for bad, match in (
        (np.zeros((4, 4), np.uint8), "shape"),
        (np.zeros((1, 1, 4, 4, 4), np.uint8), "shape"),
        (unknown, "compute_chunk_sizes"),
        (np.zeros((256, 4, 4, 4), np.uint8), r"allows 1\.\.255 channels, got 256"),
        (np.zeros((0, 4, 4, 4), np.uint8), "channels"),
    ):
        with pytest.raises(ValueError, match=match):
            wkwdask.to_wkw(bad, tmp_path / "1")
    for options in (
        {"offset": (-1, 0, 0)},
        {"offset": (0, 0)},
        {"offset": (0.5, 0, 0)},
        {"block_len": 24},
        {"block_len": 256},
        {"file_len": 0},
        {"file_len": 256},
        {"compression": "zstd"},
        {"level": 0},
        {"level": 13},
        {"existing": "append"},
        {"category": "mesh"},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            wkwdask.to_wkw(np.zeros((4, 4, 4), np.uint8), tmp_path / "1", **options)
    assert not list(tmp_path.iterdir())


def test_all_zero_files_are_not_written(tmp_path, array):
    array[...] = 0
    array[0, 40, 30, 60] = 5
    for name, values in (("numpy", array), ("dask", da.from_array(array, chunks=30))):
        report = wkwdask.to_wkw(values, tmp_path / name / "1", offset=OFFSET, **OPTIONS)
        assert set(contents(tmp_path / name / "1")) == {"header.wkw", "z2/y2/x1.wkw"}
        assert report.files == 1
        assert report.voxels == array.size
        (mag,) = report.mags
        assert (mag.minimum, mag.maximum, mag.nonzero) == (
            0,
            5,
            BoundingBox((53, 70, 67), (1, 1, 1)),
        )
        assert report.nbytes_out == (tmp_path / name / "1" / "z2" / "y2" / "x1.wkw").stat().st_size
    report = wkwdask.to_wkw(np.zeros((4, 4, 4), np.uint8), tmp_path / "empty" / "1")
    assert set(contents(tmp_path / "empty" / "1")) == {"header.wkw"}
    assert (report.files, report.mags[0].nonzero, report.mags[0].maximum) == (0, None, 0)


@pytest.mark.parametrize("lazy", [False, True])
def test_negative_zero_and_nan_are_stored(tmp_path, lazy):
    for name, value, limits in (("zero", -0.0, (0, 0)), ("nan", np.nan, (0, 0))):
        values = np.zeros((16, 16, 16), np.float64)
        values[3, 4, 5] = value
        report = wkwdask.to_wkw(
            da.from_array(values, chunks=9) if lazy else values,
            tmp_path / name / "1",
            block_len=4,
            file_len=2,
        )
        assert wkwdask.read(tmp_path / name / "1").tobytes() == values[np.newaxis].tobytes()
        assert report.files == 1
        assert (report.mags[0].minimum, report.mags[0].maximum) == limits


@pytest.mark.parametrize("shape", [(0, 4, 4), (4, 0, 4), (2, 4, 4, 0)])
@pytest.mark.parametrize("lazy", [False, True])
def test_empty_array_writes_no_files(tmp_path, shape, lazy):
    values = np.zeros(shape, np.uint8)
    report = wkwdask.to_wkw(
        da.from_array(values, chunks=3) if lazy else values, tmp_path / "ds" / "1"
    )
    assert (report.files, report.voxels, report.mags[0].minimum) == (0, 0, None)
    assert set(contents(tmp_path / "ds" / "1")) == {"header.wkw"}
    assert leftovers(tmp_path) == []


def test_existing_mag_is_refused_or_overwritten(tmp_path, array):
    url = tmp_path / "1"
    wkwdask.to_wkw(array, url, offset=OFFSET, **OPTIONS)
    before = contents(url)
    with pytest.raises(
        ExistsError,
        match=(
            r'1: already exists; existing="overwrite" replaces it whole, region= writes a part of '
            r"it"
        ),
    ):
        wkwdask.to_wkw(array + 1, url, offset=OFFSET, **OPTIONS)
    with pytest.raises(ExistsError, match="already exists"):
        wkwdask.to_wkw(da.from_array(array), url, offset=OFFSET, **OPTIONS)
    assert contents(url) == before
    wkwdask.to_wkw(
        array[:, :3, :3, :3],
        url,
        offset=(100, 0, 0),
        existing="overwrite",
        **{**OPTIONS, "block_len": 16},
    )
    assert set(contents(url)) == {"header.wkw", "z0/y0/x1.wkw"}  # no file of the old mag
    np.testing.assert_array_equal(
        wkwdask.read(url, ((100, 0, 0), (103, 3, 3))), array[:, :3, :3, :3]
    )
    assert leftovers(tmp_path) == []


def test_failing_source_keeps_the_old_mag(tmp_path, array):
    url = tmp_path / "ds" / "1"
    wkwdask.to_wkw(array, url, offset=OFFSET, **OPTIONS)
    before = contents(url)

    def fail(block, block_info=None):
        # each file needs a chunk of the second row: none is finished, which the job would keep
        if block_info[None]["chunk-location"][2] == 1:
            raise OSError("the source is gone")
        return block

    broken = da.from_array(array, chunks=(1, 20, 20, 20)).map_blocks(fail, dtype=array.dtype)
    for target, existing in ((url, "overwrite"), (tmp_path / "ds" / "2", "error")):
        with pytest.raises(OSError, match="the source is gone"):
            wkwdask.to_wkw(broken, target, offset=OFFSET, existing=existing, **OPTIONS)
    assert contents(url) == before
    assert not (tmp_path / "ds" / "2").exists()
    assert leftovers(tmp_path) == []


# ----------------------------------------------------------------------------- delayed


def test_delayed_write_checks_first_and_publishes_last(dataset, array):
    url = dataset / "color" / "1"
    with pytest.raises(TypeError, match="bool"):
        wkwdask.to_wkw(array > 3, url, compute=False)
    delayed = wkwdask.to_wkw(
        da.from_array(array, chunks=20), url, offset=OFFSET, compute=False, **OPTIONS
    )
    assert not (dataset / "color").exists() or not os.listdir(dataset / "color")
    assert not wkwdask.open_dataset(dataset).layers
    report = delayed.compute(scheduler="threads", num_workers=2)
    assert report.files == len(contents(url)) - 1
    np.testing.assert_array_equal(wkwdask.read(url), array)
    assert leftovers(dataset) == []


@pytest.mark.parametrize("lazy", [False, True])
def test_delayed_write_equals_immediate_write(tmp_path, array, lazy):
    values = da.from_array(array, chunks=20) if lazy else array
    wkwdask.to_wkw(
        values, tmp_path / "later" / "1", offset=OFFSET, compute=False, **OPTIONS
    ).compute(scheduler="synchronous")
    wkwdask.to_wkw(values, tmp_path / "now" / "1", offset=OFFSET, **OPTIONS)
    assert contents(tmp_path / "later") == contents(tmp_path / "now")
    assert leftovers(tmp_path) == []


def test_delayed_write_of_an_empty_array(tmp_path):
    report = wkwdask.to_wkw(
        da.zeros((0, 3, 3), dtype=np.uint8), tmp_path / "1", compute=False
    ).compute(scheduler="synchronous")
    assert report.files == 0
    assert set(contents(tmp_path / "1")) == {"header.wkw"}


def test_delayed_write_refuses_existing_and_locked_mags_at_once(tmp_path, array):
    url = tmp_path / "ds" / "1"
    wkwdask.to_wkw(array, url, **OPTIONS)
    with pytest.raises(ExistsError):
        wkwdask.to_wkw(da.from_array(array), url, compute=False, **OPTIONS)

    def during_another_job(block):
        with pytest.raises(LockedError, match="another job writes it: to_wkw"):
            wkwdask.to_wkw(
                da.from_array(array), url, existing="overwrite", compute=False, **OPTIONS
            )
        return block

    other = da.from_array(array, chunks=array.shape).map_blocks(
        during_another_job, dtype=array.dtype, meta=np.empty((0,) * 4, array.dtype)
    )
    wkwdask.to_wkw(other, url, existing="overwrite", **OPTIONS)
    assert leftovers(tmp_path) == []


def test_delayed_write_computed_twice(tmp_path, array):
    """The second computation is refused, or overwrites the mag with the current voxels."""
    source = array.copy()
    lazy = da.map_blocks(
        lambda: source.copy(),
        chunks=tuple((n,) for n in array.shape),
        dtype=array.dtype,
        meta=np.empty((0,) * 4, array.dtype),
    )
    once = wkwdask.to_wkw(lazy, tmp_path / "once" / "1", offset=OFFSET, compute=False, **OPTIONS)
    once.compute(scheduler="synchronous")
    with pytest.raises(ExistsError):
        once.compute(scheduler="synchronous")
    assert leftovers(tmp_path) == []
    twice = wkwdask.to_wkw(
        lazy,
        tmp_path / "twice" / "1",
        offset=OFFSET,
        compute=False,
        existing="overwrite",
        **OPTIONS,
    )
    twice.compute(scheduler="synchronous")
    source[...] = 3
    twice.compute(scheduler="synchronous")
    volume = wkwdask.open(tmp_path / "twice" / "1", origin="absolute")
    low = OFFSET
    stored = volume[
        :, low[0] : low[0] + SHAPE[1], low[1] : low[1] + SHAPE[2], low[2] : low[2] + SHAPE[3]
    ].compute()
    assert (stored == 3).all()
    assert leftovers(tmp_path) == []


# ----------------------------------------------------------------------------- the JSON


def layer_of(dataset, name):
    return wkwdask.open_dataset(dataset)[name]


def test_the_json_is_kept_up_to_date(dataset, array):
    path = dataset / "datasource-properties.json"
    document = json.loads(path.read_text())
    document["unknown"] = {"kept": [1, 2.5, None]}
    path.write_text(json.dumps(document))
    wkwdask.to_wkw(array, dataset / "color" / "1", offset=OFFSET, **OPTIONS)
    color = layer_of(dataset, "color")
    assert (color.category, color.element_class, color.num_channels, color.data_format) == (
        "color",
        "uint16",
        1,
        "wkw",
    )
    assert color.bounding_box == BoundingBox(OFFSET, SHAPE[1:])
    assert color.entry["mags"][0]["path"] == "./color/1"
    assert list(color.mags) == [wkwdask.Mag(1, 1, 1)]
    entry = json.loads(path.read_text())
    assert entry["unknown"] == document["unknown"]
    assert entry["dataLayers"][0]["mags"][0]["cubeLength"] == 32

    wkwdask.to_wkw(
        np.ones((3, 4, 4, 4), np.uint8), dataset / "rgb" / "2-2-1", offset=(1, 1, 1), **OPTIONS
    )
    rgb = layer_of(dataset, "rgb")
    assert (rgb.element_class, rgb.num_channels, rgb.bounding_box) == (
        "uint24",
        3,
        BoundingBox((2, 2, 1), (8, 8, 4)),
    )
    wkwdask.to_wkw(np.ones((4, 4, 4), np.uint32), dataset / "labels" / "1", **OPTIONS)
    wkwdask.to_wkw(
        np.ones((4, 4, 4), np.uint32), dataset / "counts" / "1", category="color", **OPTIONS
    )
    assert (layer_of(dataset, "labels").category, layer_of(dataset, "counts").category) == (
        "segmentation",
        "color",
    )

    # a second mag grows the box where it reaches outside, and no further
    wkwdask.to_wkw(
        np.ones((2, 2, 2), np.uint16), dataset / "color" / "2", offset=(8, 21, 5), **OPTIONS
    )
    assert layer_of(dataset, "color").bounding_box == BoundingBox(OFFSET, SHAPE[1:])
    wkwdask.to_wkw(
        np.ones((2, 2, 2), np.uint16),
        dataset / "color" / "2",
        offset=(0, 21, 5),
        existing="overwrite",
        **OPTIONS,
    )
    assert layer_of(dataset, "color").bounding_box == BoundingBox((0, 40, 7), (63, 37, 70))
    assert [mag.name for mag in layer_of(dataset, "color").mags] == ["1", "2"]


def test_other_type_than_the_layer_is_refused(dataset, array):
    wkwdask.to_wkw(array, dataset / "color" / "1", **OPTIONS)
    for other in (array.astype(np.uint8), np.concatenate([array, array])):
        with pytest.raises(ValueError, match="the layer stores uint16, the array is"):
            wkwdask.to_wkw(other, dataset / "color" / "2", **OPTIONS)
    # its only mag may change
    wkwdask.to_wkw(array.astype(np.uint8), dataset / "color" / "1", existing="overwrite", **OPTIONS)
    assert layer_of(dataset, "color").element_class == "uint8"


def test_a_position_beyond_all_documents_is_refused(dataset, array):
    before = (dataset / "datasource-properties.json").read_bytes()
    far = (2**54, 0, 0)
    for call in (
        lambda: wkwdask.to_wkw(array, dataset / "color" / "1", offset=far),
        lambda: wkwdask.create(dataset / "color" / "1", (far, (2**54 + 8, 8, 8)), "uint8"),
        lambda: wkwdask.save(array, f"n5://{dataset}/../a.n5", offset=far, voxel_size=(1, 1, 1)),
        lambda: wkwdask.open_dataset(dataset).add_layer("em", "color", "uint8", (*far, 1, 1, 1)),
    ):
        with pytest.raises(BoundsError, match=r"of at most 2\^53, got"):
            call()
    assert (dataset / "datasource-properties.json").read_bytes() == before
    assert [path.name for path in dataset.iterdir()] == ["datasource-properties.json"]


@pytest.mark.parametrize("name", ["3", "2-2", "2_2_1", "2,2,1"])
def test_a_folder_of_digits_that_is_no_mag_is_refused(dataset, array, name):
    with pytest.raises(ValueError, match=f"color/{name}: a mag of a layer is named like 2 "):
        wkwdask.to_wkw(array, dataset / "color" / name)
    with pytest.warns(UserWarning, match=r"color/raw: belongs to no layer .* not named like a"):
        wkwdask.to_wkw(array, dataset / "color" / "raw")


def test_first_mag_of_a_declared_layer(dataset, array):
    declared = BoundingBox((0, 0, 0), (500, 400, 100))
    edited = wkwdask.open_dataset(dataset)
    for name, box in (("em", declared), ("small", BoundingBox((9, 9, 9), (2, 2, 2)))):
        edited = edited.add_layer(name, "color", dtype="uint16", bounding_box=box)
    edited.add_layer("unknown", "color", dtype="uint16", bounding_box=(0, 0, 0, 0, 0, 0))
    for other in (array.astype(np.uint8), np.concatenate([array, array])):
        with pytest.raises(ValueError, match="the layer is declared in the JSON as uint16, the"):
            wkwdask.to_wkw(other, dataset / "em" / "1", **OPTIONS)
    for name in ("em", "small", "unknown"):
        wkwdask.to_wkw(array, dataset / name / "1", offset=OFFSET, **OPTIONS)
    written = BoundingBox(OFFSET, SHAPE[1:])
    boxes = [layer_of(dataset, name).bounding_box for name in ("em", "small", "unknown")]
    assert boxes == [declared, written.union(BoundingBox((9, 9, 9), (2, 2, 2))), written]


def test_no_dataset_json_is_created(tmp_path, array):
    wkwdask.to_wkw(array, tmp_path / "ds" / "color" / "1", **OPTIONS)
    assert not list(tmp_path.rglob("*.json")) or [
        path.name for path in tmp_path.rglob("*.json")
    ] == [".wkwdask.json"]


def test_folder_name_need_not_be_a_mag(tmp_path, array):
    array[...] += 1
    wkwdask.to_wkw(array, tmp_path / "volume", **OPTIONS)
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "volume", ((0, 0, 0), SHAPE[1:])), array)


def test_chunk_of_another_type_is_refused(tmp_path):
    """A wrong ``dtype=`` in map_blocks must not cast silently."""
    wrong = da.zeros((16, 16, 16), chunks=8, dtype=np.uint8).map_blocks(
        lambda block: (block + 0.5).astype(np.float32), dtype=np.uint8
    )
    with pytest.raises(ValueError, match="a chunk is float32, but the array declares uint8"):
        wkwdask.to_wkw(wrong, tmp_path / "x" / "1", block_len=8, file_len=1)
    assert list(tmp_path.rglob("*")) == []


# of the chunks that were written
@pytest.mark.filterwarnings("default::wkwdask.errors.DiscardWarning")
def test_failing_chunk_leaves_no_visible_files(tmp_path):
    """Tasks that still run after the failure must not create the job's folder again, which the next
    job removes."""

    def chunk(block_id):
        time.sleep(0.02 * (1 + sum(block_id) % 3))
        if block_id == (0, 0, 1):
            raise OverflowError("no")
        return np.ones((16, 16, 16), np.uint8)

    array = da.map_blocks(
        chunk, chunks=((16,) * 4,) * 3, dtype=np.uint8, meta=np.empty((0, 0, 0), np.uint8)
    )
    with pytest.raises(OverflowError, match="no"):
        wkwdask.to_wkw(array, tmp_path / "x" / "1", block_len=8, file_len=2)
    seen = [path.name for path in (tmp_path / "x").iterdir()]
    assert all(name.startswith(".wkwdask-job-") for name in seen)
    wkwdask.to_wkw(np.ones((8, 8, 8), np.uint8), tmp_path / "x" / "1", block_len=8, file_len=2)
    time.sleep(0.3)
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["1"]
