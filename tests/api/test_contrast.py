"""Histograms and contrast: the same as numpy's of the whole array and of each slice."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
from faults.drivers import regions_of
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run_here, run_script_here
from support.datasets import FILE_NAME
from support.inside import limited
from support.strategies import HEAVY, vectors, voxel_array

import wkwdask
from wkwdask.errors import MissingError

SMALL = {"block_len": 8, "file_len": 2, "compression": "lz4"}
DTYPES = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float32",
    "float64",
)
WORKFLOW = Path(__file__).resolve().parent.parent.parent / "workflows" / "contrast.py"


@contextlib.contextmanager
def many_regions(edge=16):
    with regions_of(edge), limited(brick_nbytes=1 << 12):
        yield


def make_dataset(folder, **layers):
    """Write layers of arrays at voxel (5, 0, 9)."""
    wkwdask.create_dataset(folder, (4, 4, 40))
    for name, array in layers.items():
        wkwdask.write(folder / name / "1", (5, 0, 9), array, category="color", **SMALL)
    return folder


def half_empty(array):
    """Return an array whose second half has no files."""
    array = array.copy()
    array[:, array.shape[1] // 2 :] = 0
    return array


def check_histogram(found, values, dtype, bins, limits):
    """Compare the counts of one channel of one slice, or of all of them."""
    if bins is None and limits is None and dtype.itemsize <= 2 and dtype.kind != "f":
        ids, counts = np.unique(values, return_counts=True)
        np.testing.assert_array_equal(found.value[found.to_numpy() > 0], ids)
        np.testing.assert_array_equal(found[found.to_numpy() > 0], counts)
        assert found.sizes["value"] == 1 << 8 * dtype.itemsize
        return
    expected, _ = np.histogram(values, found.sizes["value"], limits)
    np.testing.assert_array_equal(found, expected)
    assert int(found.nan) == (np.isnan(values).sum() if dtype.kind == "f" else 0)
    assert int(found.below) == (values < limits[0]).sum()
    assert int(found.above) == (values > limits[1]).sum()


@HEAVY
@given(
    st.sampled_from(DTYPES),
    st.integers(1, 3),
    vectors(1, 30),
    st.sampled_from(["few", "noise", "extremes", "zeros"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 1, 7, 100]),
    st.sampled_from([None, (0, 3), (-10.5, 300)]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_histograms_of_any_voxels_equal_numpy(
    dtype, channels, shape, kind, per_slice, ignore_zero, bins, limits, empty, seed
):
    dtype = np.dtype(dtype)
    array = voxel_array(dtype, (channels, *shape), seed, kind)
    array = half_empty(array) if empty else array
    with (
        tempfile.TemporaryDirectory() as folder,
        many_regions(),
        dask.config.set(scheduler="synchronous"),
    ):
        url = make_dataset(Path(folder) / "ds", color=array) / "color" / "1"
        found = wkwdask.histogram(
            url, bins=bins, range=limits, per_slice=per_slice, ignore_zero=ignore_zero
        )
    counted = array[array != 0] if ignore_zero else array.ravel()
    finite = counted[np.isfinite(counted)]
    if limits is None:
        limits = (finite.min(), finite.max()) if finite.size else (dtype.type(0), dtype.type(1))
        bins = bins if bins is not None or (dtype.kind != "f" and dtype.itemsize <= 2) else 4096
        limits = None if bins is None else limits
    assert found.dims == (("c", "z", "value") if per_slice else ("c", "value"))
    for channel, part in enumerate(found):
        for n, one in enumerate(part if per_slice else [part]):
            values = array[channel, ..., n] if per_slice else array[channel]
            check_histogram(
                one, values[values != 0] if ignore_zero else values.ravel(), dtype, bins, limits
            )
            if per_slice:
                assert int(one.z) == 9 + n


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    random = np.random.default_rng(0)
    em = random.normal(120, 20, (1, 40, 30, 25)).astype(np.uint8)
    em[:, :, :, 7] //= 2
    em[:, 20:, :10] = 0
    em[..., 3] = 0
    two = np.stack([em[0], em[0] // 3]).astype(np.uint16)
    floats = em.astype(np.float32) / 7
    floats[0, 1, 1, 1] = np.nan
    return (
        make_dataset(tmp_path_factory.mktemp("contrast") / "ds", em=em, two=two, floats=floats),
        em,
        two,
        floats,
    )


def test_contrast_equals_numpy(dataset):
    folder, em, two, floats = dataset
    for layer, array in (("em", em), ("two", two)):
        found = wkwdask.contrast(folder, (2, 97.5), layer=layer)
        expected = [np.percentile(channel[channel != 0], (2, 97.5, 0, 100)) for channel in array]
        np.testing.assert_array_equal(found[["low", "high", "min", "max"]], expected)
        np.testing.assert_array_equal(
            found.voxels, [np.count_nonzero(channel) for channel in array]
        )
        assert found.attrs["intensityRange"] == np.percentile(array[array != 0], (2, 97.5)).tolist()
    with_zero = wkwdask.contrast(folder, (0, 50), layer="em", ignore_zero=False)
    np.testing.assert_array_equal(with_zero[["low", "high"]], [np.percentile(em, (0, 50))])
    found = wkwdask.contrast(folder, layer="floats")
    values = floats[(floats != 0) & np.isfinite(floats)]
    np.testing.assert_allclose(
        found[["low", "high"]],
        [np.percentile(values, (1, 99))],
        atol=1.01 * float(np.ptp(values)) / 4096 + 0.15,
    )
    np.testing.assert_allclose(found[["min", "max"]], [[values.min(), values.max()]], rtol=1e-6)


@HEAVY
@given(
    st.lists(st.integers(1, 255), min_size=1, max_size=200),
    st.tuples(st.floats(0, 100), st.floats(0, 100)).filter(lambda two: two[0] < two[1]),
)
def test_percentiles_equal_numpy(tmp_path_factory, values, percents):
    """Those of floats lie in the right bin of their range."""
    column = np.array(values).reshape(1, 1, 1, -1)
    folder = make_dataset(
        tmp_path_factory.mktemp("column") / "ds",
        em=column.astype(np.uint8),
        floats=column.astype(np.float32) / 3,
    )
    np.testing.assert_array_equal(
        wkwdask.contrast(folder, percents, layer="em")[["low", "high"]],
        [np.percentile(np.array(values, np.float64), percents)],
    )
    found = wkwdask.contrast(folder, percents, layer="floats")[["low", "high"]].to_numpy()[0]
    floats = column.ravel().astype(np.float32) / 3
    low, high = (np.percentile(floats, percents, method=method) for method in ("lower", "higher"))
    width = 1.01 * max(float(np.ptp(floats)), 1) / 4096
    assert (found >= low - width).all()
    assert (found <= high + width).all()


def test_contrast_of_each_slice_equals_numpy(dataset):
    folder, _, two, _ = dataset
    found = wkwdask.contrast(folder, layer="two", per_slice=True)
    assert found.index.names == ["z", "c"]
    assert found.index[0] == (9, 0)
    for z in range(25):
        for channel in range(2):
            values = two[channel, ..., z]
            values = values[values != 0]
            expected = np.percentile(values, (1, 99, 0, 100)) if values.size else [np.nan] * 4
            np.testing.assert_array_equal(
                found.loc[(9 + z, channel), ["low", "high", "min", "max"]], expected
            )
            assert found.loc[(9 + z, channel), "voxels"] == values.size
    assert found.loc[(9 + 3, 0)].isna().sum() == 4
    assert found.attrs["intensityRange"] == np.percentile(two[two != 0], (1, 99)).tolist()


def test_contrast_is_written_to_the_json(tmp_path):
    random = np.random.default_rng(0)
    folder = make_dataset(
        tmp_path / "ds",
        em=random.integers(1, 200, (1, 20, 20, 20), np.uint8),
        other=np.ones((1, 20, 20, 20), np.uint8),
    )
    path = folder / FILE_NAME
    document = json.loads(path.read_text())
    document["dataLayers"][0]["defaultViewConfiguration"] = {
        "color": [255, 0, 0],
        "intensityRange": [0, 1],
    }
    document["somethingElse"] = {"kept": 1.5}
    path.write_text(json.dumps(document))
    found = wkwdask.contrast(folder, layer="em", write=True, per_slice=True)
    low, high = found.attrs["intensityRange"]
    document["dataLayers"][0]["defaultViewConfiguration"] |= {
        "intensityRange": [low, high],
        "min": 1,
        "max": 199,
    }
    assert json.loads(path.read_text()) == document
    wkwdask.contrast(folder / "other" / "1", write=True)
    assert json.loads(path.read_text())["dataLayers"][1]["defaultViewConfiguration"] == {
        "intensityRange": [1, 2],
        "min": 1,
        "max": 1,
    }
    assert sorted(entry.name for entry in folder.iterdir() if not entry.name.endswith(".lock")) == [
        FILE_NAME,
        "em",
        "other",
    ]


def test_malformed_calls_are_refused(dataset, tmp_path):
    folder, *_ = dataset
    for wrong in ((99, 1), (-1, 50), (5, 101)):
        with pytest.raises(ValueError, match="percentiles must be two ascending numbers"):
            wkwdask.contrast(folder, wrong, layer="em")
    for wrong in ((1, "99"), 5 * (1,), "1,99"):
        with pytest.raises(ValueError, match="percentiles must be two numbers, the lower one"):
            wkwdask.contrast(folder, wrong, layer="em")
    with pytest.raises(ValueError, match="range must be two numbers, the lower one first, got"):
        wkwdask.histogram(folder, layer="em", range=(1, None))
    with pytest.raises(TypeError, match="bins must be a whole number, got 'ten'"):
        wkwdask.histogram(folder, layer="em", bins="ten")
    with pytest.raises(ValueError, match="no voxels to count except zeros"):
        wkwdask.contrast(folder, layer="em", bounding_box=(5, 0, 12, 40, 30, 1))
    with pytest.raises(ValueError, match="several layers"):
        wkwdask.contrast(folder)
    for limits in ((3, 1), (np.nan, 5), (0, np.inf)):
        with pytest.raises(ValueError, match="range must be finite, the lower limit first, got "):
            wkwdask.histogram(folder, layer="em", range=limits)
    wkwdask.write(tmp_path / "lone" / "1", (0, 0, 0), np.ones((8, 8, 8), np.uint8), **SMALL)
    with pytest.raises(MissingError, match=r"no datasource-properties\.json lists the layer"):
        wkwdask.contrast(tmp_path / "lone" / "1", write=True)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("float32", 1e4, 1e4 + 1),
        ("float32", 1e10, 1e10),
        ("float64", 1e300, 1e300),
        ("float64", -1e17, -1e17),
        ("uint64", 2**64 - 1, 2**64 - 1),
        ("int64", -(2**63), -(2**63)),
        ("uint64", 2**64 - 3000, 2**64 - 1),
    ],
)
def test_close_and_huge_values_are_counted(tmp_path, dtype, low, high):
    array = np.full((1, 16, 16, 16), low, dtype)
    array[0, 3:] = high
    url = make_dataset(tmp_path / "ds", color=array) / "color" / "1"
    counts = wkwdask.histogram(url)
    assert counts.sum() == array.size
    assert [int(counts[name].sum()) for name in ("nan", "below", "above")] == [0, 0, 0]
    least, greatest = np.percentile(array.astype(np.float64), [1, 99])
    np.testing.assert_allclose(
        np.array(wkwdask.contrast(url).attrs["intensityRange"], np.float64),
        [least, greatest],
        rtol=1e-6,
    )


@pytest.mark.parametrize("dtype", ["uint64", "int64", "float32"])
@pytest.mark.parametrize(
    "limits", [(0, 2**64 - 1), (2**63, 2**64 - 1), (-1, 2**64 - 1), (-(2**63), 2**63), (0, 2**70)]
)
def test_a_range_beyond_int64_is_counted(tmp_path, dtype, limits):
    """numpy.histogram refuses integers of Python that int64 does not hold; as floats it takes
    them."""
    array = np.arange(16**3, dtype=dtype).reshape(1, 16, 16, 16)
    array[0, 8:] = 2**64 - 1 if dtype == "uint64" else -5
    url = make_dataset(tmp_path / "ds", color=array) / "color" / "1"
    found = wkwdask.histogram(url, range=limits, bins=4)
    expected, _ = np.histogram(array, 4, tuple(map(float, limits)))
    np.testing.assert_array_equal(found[0], expected)
    assert int(found.below.sum()) == (array.astype(object) < limits[0]).sum()
    assert int(found.above.sum()) == (array.astype(object) > limits[1]).sum()


def test_a_range_of_one_value_is_one_wide(dataset):
    """As in numpy.histogram."""
    folder, em, *_ = dataset
    found = wkwdask.histogram(folder, layer="em", range=(90, 90), bins=4)
    np.testing.assert_array_equal(found[0], np.histogram(em, 4, (90, 90))[0])
    assert int(found.sum()) == (em == 90).sum()
    assert [int(found.below.sum()), int(found.above.sum())] == [(em < 90).sum(), (em > 90).sum()]
    floats = (em[0] / 3).astype(np.float32)
    wkwdask.write(Path(folder) / "thirds" / "1", (5, 0, 9), floats, **SMALL)
    counts = wkwdask.histogram(folder, layer="thirds", range=(30, 30), bins=2)
    assert [int(n.sum()) for n in (counts, counts.below, counts.above)] == [
        (abs(floats - 30) <= 0.5).sum(),
        (floats < 29.5).sum(),
        (floats > 30.5).sum(),
    ]


def test_the_command_prints_what_it_writes(tmp_path):
    make_dataset(tmp_path / "ds", color=np.full((1, 8, 8, 8), 5230632, np.uint32))
    with many_regions():
        done = run_here("contrast", tmp_path / "ds", "--write")
    shown = json.loads((tmp_path / "ds" / FILE_NAME).read_text())["dataLayers"][0][
        "defaultViewConfiguration"
    ]["intensityRange"]
    assert done.output.splitlines()[-1] == f"intensityRange {shown[0]!r}, {shown[1]!r} written"


def test_a_box_without_slices_has_no_counts(dataset):
    folder, *_ = dataset
    nothing = (5, 0, 12, 40, 30, 0)
    assert wkwdask.histogram(folder, layer="em", bounding_box=nothing, per_slice=True).shape == (
        1,
        0,
        256,
    )
    assert wkwdask.histogram(
        folder, layer="em", bounding_box=nothing, per_slice=True, bins=3
    ).shape == (1, 0, 3)
    with pytest.raises(ValueError, match="no voxels to count"):
        wkwdask.contrast(folder, layer="em", bounding_box=nothing, per_slice=True)


def test_threads_count_the_same(dataset):
    folder, em, *_ = dataset
    with dask.config.set(scheduler="threads", num_workers=2), many_regions():
        found = wkwdask.histogram(folder, layer="em", per_slice=True)
    for n in range(em.shape[3]):
        np.testing.assert_array_equal(found[0, n], np.bincount(em[..., n].ravel(), minlength=256))


def test_real_em_equals_numpy(shared_data):
    array = wkwdask.read(shared_data / "l4_sample", layer="color", mag="2-2-1")
    found = wkwdask.histogram(shared_data / "l4_sample", per_slice=True)
    assert found.sizes == {"c": 1, "z": 150, "value": 256}
    for n in range(150):
        np.testing.assert_array_equal(
            found[0, n], np.bincount(array[..., n].ravel(), minlength=256)
        )
    np.testing.assert_array_equal(
        wkwdask.contrast(shared_data / "l4_sample")[["low", "high"]],
        [np.percentile(array[array != 0], (1, 99))],
    )


def test_commands(dataset, tmp_path):
    folder, em, *_ = dataset
    done = run_here(
        "histogram", folder, "--layer", "em", "--per-slice", "-o", tmp_path / "counts.csv"
    )
    assert done.output == ""
    table = pd.read_csv(tmp_path / "counts.csv")
    assert table["count"].sum() == em.size
    assert table[(table.z == 9 + 3) & (table.value == 0)]["count"].item() == 40 * 30
    printed = run_here(
        "histogram", folder, "--layer", "floats", "--bins", "2", "--range", "0,10"
    ).output
    assert "1 values are NaN" in printed
    assert "values lie above the bins" in printed
    expected = np.percentile(em[em != 0], (5, 95))
    shown = run_here("contrast", folder, "--layer", "em", "--percentiles", "5,95").output
    assert shown.endswith(f"intensityRange {expected[0]:g}, {expected[1]:g}\n")
    assert run_here("contrast", folder, "--percentiles", "5").returncode == 2


def test_the_workflow_writes_the_contrast(tmp_path):
    em = np.random.default_rng(0).normal(120, 5, (1, 20, 20, 30)).astype(np.uint8)
    em[..., 11] //= 2
    folder = make_dataset(tmp_path / "ds", em=em)
    printed = run_script_here(WORKFLOW, folder)
    expected = np.percentile(em, (1, 99)).tolist()
    assert printed.startswith(f"em: {[int(n) if n.is_integer() else n for n in expected]}\n")
    assert [line.split()[0] for line in printed.splitlines()[3:]] == ["20"]
    assert (
        json.loads((folder / FILE_NAME).read_text())["dataLayers"][0]["defaultViewConfiguration"][
            "intensityRange"
        ]
        == expected
    )
