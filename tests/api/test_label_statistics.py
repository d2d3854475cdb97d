"""Tables of labels: the same as those of numpy and scipy over the whole array, for any cut into
bricks."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import dask
import numpy as np
import pandas as pd
import pytest
from faults.drivers import ENVIRONMENT
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from support.commands import run_here, run_script_here
from support.memory_volume import make_volume
from support.strategies import HEAVY, vectors, voxel_array

import wkwdask
from wkwdask.errors import BoundsError, ExistsError, MissingError, TaskFailedError
from wkwdask.graphs.runners import run_work
from wkwdask.ids.label_statistics import label_columns, make_label_survey
from wkwdask.ids.survey import SurveyWork

SMALL = {"block_len": 8, "file_len": 2, "compression": "lz4"}
VOXEL_SIZE = (11.24, 11.24, 28.0)
WORKFLOW = Path(__file__).resolve().parent.parent.parent / "workflows" / "label_statistics.py"
assert ENVIRONMENT  # progress of cluster processes is off


def reference(
    labels, color=None, *, offset=(0, 0, 0), mag=(1, 1, 1), voxel_size=VOXEL_SIZE, ignore_zero=True
):
    """Make the table from arrays in memory, shape (x, y, z) and (c, x, y, z), by numpy and
    scipy."""
    ids, places = np.unique(labels, return_inverse=True)
    places = places.reshape(labels.shape)
    rows = np.arange(len(ids))
    frame = pd.DataFrame(
        index=pd.Index(ids.astype("int64" if ids.dtype.kind == "i" else "uint64"), name="label")
    )
    frame["voxels"] = np.bincount(places.ravel(), minlength=len(ids))
    if voxel_size is not None:
        frame["volume_um3"] = frame.voxels * np.prod(np.multiply(mag, voxel_size)) / 1e9
    boxes = ndimage.find_objects(places + 1)
    for name in ("start", "stop"):
        for axis in range(3):
            frame[f"{'min' if name == 'start' else 'max'}_{'xyz'[axis]}"] = [
                (getattr(box[axis], name) + offset[axis]) * mag[axis] for box in boxes
            ]
    centers = np.array(ndimage.center_of_mass(np.ones(labels.shape), places, rows)).reshape(-1, 3)
    for suffix, unit in (("", (1, 1, 1)), ("_nm", voxel_size)):
        for axis in range(3 if unit is not None else 0):
            frame[f"centroid_{'xyz'[axis]}{suffix}"] = (
                (centers[:, axis] + offset[axis] + 0.5) * mag[axis] * unit[axis]
            )
    for channel in range(0 if color is None else len(color)):
        suffix, values = f"_{channel}" if len(color) > 1 else "", color[channel]
        lists = [values[places == row] for row in rows]
        for name, function in (
            ("mean", np.mean),
            ("std", np.std),
            ("min", np.min),
            ("max", np.max),
        ):
            precise = {"dtype": np.float64} if name in ("mean", "std") else {}
            with np.errstate(all="ignore"):
                frame[f"{name}{suffix}"] = [function(one, **precise) for one in lists]
    return frame[frame.index != 0] if ignore_zero else frame


def check_equal(found, expected, *, scale=None):
    """Whole numbers are equal, others are up to what float64 can do (for a std of values of a
    scale)."""
    assert found.columns.tolist() == expected.columns.tolist()
    assert found.index.equals(expected.index)
    assert found.index.dtype == expected.index.dtype
    for name in found.columns:
        ours, theirs = found[name].to_numpy(), expected[name].to_numpy()
        if theirs.dtype.kind in "iu" or name.startswith(("min", "max")):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
        else:
            np.testing.assert_allclose(
                ours, theirs, rtol=1e-11, atol=0 if scale is None else scale * 1e-7, err_msg=name
            )


def make_dataset(folder, layers, voxel_size=VOXEL_SIZE):
    """Write layers: name, mag, offset, array."""
    wkwdask.create_dataset(folder, voxel_size)
    for name, mag, offset, array in layers:
        wkwdask.write(
            folder / name / mag,
            offset,
            array,
            category="segmentation" if name.startswith("seg") else "color",
            **SMALL,
        )
    return folder


def make_labels(dtype, shape, seed, kind):
    rng = np.random.default_rng(seed)
    limits = np.iinfo(dtype)
    choices = np.array([0, 0, 1, 7, limits.max, limits.min, limits.max - 1], dtype)
    coarse = rng.choice(choices, [-(-n // 6) for n in shape])
    labels = coarse.repeat(6, 0).repeat(6, 1).repeat(6, 2)[: shape[0], : shape[1], : shape[2]]
    if kind == "sparse":  # whole files are absent
        labels = np.where(np.arange(shape[0])[:, None, None] < shape[0] // 2, 0, labels).astype(
            dtype
        )
    if kind == "noise":
        labels = rng.choice(choices, shape)
    return labels


@contextlib.contextmanager
def many_regions(edge=16):
    """Jobs of many tasks."""
    with (
        mock.patch("wkwdask.plans.apply.choose_region", return_value=(edge,) * 3),
        mock.patch("wkwdask.plans.apply.BRICK_NBYTES", 1 << 12),
    ):
        yield


@HEAVY
@given(
    st.sampled_from(["uint8", "int16", "uint32", "int32", "uint64", "int64"]),
    st.sampled_from(
        [None, "uint8", "int8", "uint16", "int16", "uint32", "uint64", "float32", "float64"]
    ),
    st.integers(1, 3),
    vectors(1, 40),
    vectors(0, 20),
    st.sampled_from(["blobs", "sparse", "noise"]),
    st.sampled_from(["few", "noise"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_any_labels_and_values_equal_numpy(
    dtype, value_dtype, channels, shape, offset, kind, value_kind, ignore_zero, in_part, seed
):
    labels = make_labels(dtype, shape, seed, kind)
    layers = [("seg", "1", offset, labels)]
    color = None
    if value_dtype is not None:
        color = voxel_array(value_dtype, (channels, *shape), seed, value_kind)
        layers.append(("color", "1", offset, color))
    low = [(seed >> axis) % n if in_part else 0 for axis, n in enumerate(shape)]
    box = (
        None
        if not in_part
        else (
            [a + b for a, b in zip(low, offset, strict=True)],
            [n - a for a, n in zip(low, shape, strict=True)],
        )
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        many_regions(),
        dask.config.set(scheduler="synchronous"),
    ):
        dataset = make_dataset(Path(folder) / "ds", layers)
        found = wkwdask.label_statistics(
            dataset / "seg" / "1",
            None if color is None else dataset / "color" / "1",
            bounding_box=box,
            ignore_zero=ignore_zero,
        )
    part = tuple(slice(a, None) for a in low)
    inside = None if color is None else color[(slice(None), *part)]
    expected = reference(
        labels[part],
        inside,
        offset=[a + b for a, b in zip(low, offset, strict=True)],
        ignore_zero=ignore_zero,
    )
    check_equal(
        found,
        expected,
        scale=None if color is None else float(np.abs(color.astype(np.float64)).max()),
    )


@pytest.fixture(scope="module")
def anisotropic(tmp_path_factory):
    """Labels of mag 2-2-1, and values of mag 2-2-1 and 4-4-2."""
    labels, values = (
        make_labels("uint32", (44, 30, 21), 3, "blobs"),
        voxel_array("uint8", (1, 44, 30, 21), 4, "noise"),
    )
    coarse = voxel_array("uint16", (1, 22, 15, 11), 5, "noise")
    layers = [
        ("seg", "2-2-1", (6, 4, 3), labels),
        ("color", "2-2-1", (6, 4, 3), values),
        ("coarse", "4-4-2", (3, 2, 1), coarse),
    ]
    return (
        make_dataset(tmp_path_factory.mktemp("anisotropic") / "ds", layers),
        labels,
        values,
        coarse,
    )


def test_boxes_and_centroids_are_in_voxels_of_mag_1(anisotropic):
    dataset, labels, values, _ = anisotropic
    found = wkwdask.label_statistics(dataset, "color")
    check_equal(found, reference(labels, values, offset=(6, 4, 3), mag=(2, 2, 1)))
    assert found.attrs["mag"] == "2-2-1"
    assert found.attrs["voxel_size_nm"] == list(VOXEL_SIZE)
    assert found.attrs["bounding_box"] == [6, 4, 3, 44, 30, 21]


def test_a_coarser_layer_counts_for_each_voxel_that_it_covers(anisotropic):
    dataset, labels, _, coarse = anisotropic
    fine = np.zeros((1, 44, 30, 21), np.uint16)
    # z 3 is the upper half of voxel 1
    spread = coarse.repeat(2, 1).repeat(2, 2).repeat(2, 3)[..., 1:]
    fine[...] = spread[:, :44, :30, :21]
    check_equal(
        wkwdask.label_statistics(dataset, dataset / "coarse" / "4-4-2"),
        reference(labels, fine, offset=(6, 4, 3), mag=(2, 2, 1)),
    )


def test_a_finer_layer_is_refused(anisotropic, tmp_path):
    dataset, *_ = anisotropic
    wkwdask.write(tmp_path / "labels" / "4", (0, 0, 0), np.ones((8, 8, 8), np.uint32), **SMALL)
    with pytest.raises(ValueError, match="is finer than the labels' mag 4"):
        wkwdask.label_statistics(tmp_path / "labels" / "4", dataset / "color" / "2-2-1")
    with pytest.raises(MissingError, match="no mag that is as coarse as mag 4 of layer labels"):
        wkwdask.label_statistics(tmp_path / "labels" / "4", dataset / "color")


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_volume_without_files_is_zero(tmp_path, has_folder):
    ones = np.ones((1, 8, 8, 8), np.uint8)
    labels, color = (f"precomputed://{tmp_path}/{name}" for name in ("labels", "color"))
    wkwdask.write(labels, (0, 0, 0), ones, voxel_size=(4, 4, 8))
    wkwdask.write(color, (0, 0, 0), 0 * ones, voxel_size=(4, 4, 8))
    if not has_folder:
        shutil.rmtree(tmp_path / "color" / "4_4_8")
    (row,) = wkwdask.label_statistics(labels, color).itertuples()
    assert (row.voxels, row.mean, row.max) == (512, 0, 0)


def test_a_layer_that_ends_before_the_labels_is_zero_there(tmp_path):
    labels = np.ones((20, 20, 20), np.uint32)
    dataset = make_dataset(
        tmp_path / "ds",
        [
            ("seg", "1", (0, 0, 0), labels),
            ("color", "1", (5, 5, 5), np.full((50, 10, 10), 8, np.uint8)),
        ],
    )
    expected = np.zeros((1, 20, 20, 20), np.uint8)
    expected[:, 5:, 5:15, 5:15] = 8
    check_equal(
        wkwdask.label_statistics(
            dataset, dataset / "color" / "1", layer="seg", bounding_box=(0, 0, 0, 20, 20, 20)
        ),
        reference(labels, expected),
    )


def test_nan_and_infinity_spread_as_in_numpy(tmp_path):
    labels = np.repeat(np.arange(1, 5, dtype=np.uint8), 5)[:, None, None] * np.ones(
        (1, 3, 2), np.uint8
    )
    color = np.random.default_rng(0).normal(size=(1, *labels.shape)).astype(np.float32)
    color[0, 2, 1, 0], color[0, 7, 0, 0], color[0, 13, 2, 1] = np.nan, np.inf, -np.inf
    dataset = make_dataset(
        tmp_path / "ds", [("seg", "1", (0, 0, 0), labels), ("color", "1", (0, 0, 0), color)]
    )
    found = wkwdask.label_statistics(dataset, "color")
    check_equal(found, reference(labels, color))
    assert np.isnan(found.loc[1, ["mean", "std", "min", "max"]].to_numpy(float)).all()
    assert found.loc[2, "mean"] == np.inf


def test_std_of_large_labels_is_exact(tmp_path):
    """The squares of sums exceed 64 bits."""
    color = np.full((1, 96, 64, 52), 65534, np.uint16)
    color[0, 17] = 65535
    labels = np.full(color.shape[1:], 5, np.uint64)
    dataset = make_dataset(
        tmp_path / "ds", [("seg", "1", (0, 0, 0), labels), ("color", "1", (0, 0, 0), color)]
    )
    share = 1 / 96
    np.testing.assert_allclose(
        wkwdask.label_statistics(dataset, "color").loc[5, "std"],
        np.sqrt(share * (1 - share)),
        rtol=1e-14,
    )


def test_a_box_without_labels_has_no_rows(tmp_path):
    dataset = make_dataset(
        tmp_path / "ds",
        [
            ("seg", "1", (0, 0, 0), np.zeros((20, 20, 20), np.uint32)),
            ("color", "1", (0, 0, 0), np.ones((20, 20, 20), np.uint8)),
        ],
    )
    found = wkwdask.label_statistics(
        dataset / "seg" / "1", dataset / "color" / "1", bounding_box=(2, 2, 2, 9, 9, 9)
    )
    assert len(found) == 0
    assert found.columns[-4:].tolist() == ["mean", "std", "min", "max"]
    background = wkwdask.label_statistics(
        dataset / "seg" / "1",
        dataset / "color" / "1",
        bounding_box=(2, 2, 2, 9, 9, 9),
        ignore_zero=False,
    )
    check_equal(
        background,
        reference(
            np.zeros((9, 9, 9), np.uint32),
            np.ones((1, 9, 9, 9), np.uint8),
            offset=(2, 2, 2),
            ignore_zero=False,
        ),
    )


def test_without_a_json_there_are_no_lengths(tmp_path):
    labels = make_labels("uint16", (30, 20, 10), 0, "blobs")
    wkwdask.write(tmp_path / "seg" / "1", (0, 0, 0), labels, **SMALL)
    check_equal(
        wkwdask.label_statistics(tmp_path / "seg" / "1"), reference(labels, voxel_size=None)
    )


def test_jobs_depend_on_no_format():
    labels, values = (
        make_labels("int32", (70, 50, 40), 1, "blobs"),
        voxel_array("float32", (2, 70, 50, 40), 2, "noise"),
    )
    seg, color = (
        make_volume("statistics-seg", labels[None], (7, 9, 11)),
        make_volume("statistics-color", values, (7, 9, 11)),
    )
    with many_regions(32), dask.config.set(scheduler="synchronous"):
        rows = run_work(
            SurveyWork(make_label_survey(seg, color, seg.box, ignore_zero=True), "test")
        ).sorted()
        counted = run_work(
            SurveyWork(make_label_survey(seg, None, seg.box, ignore_zero=False), "test")
        ).sorted()
    frame = pd.DataFrame(
        label_columns(rows, seg.box, None), pd.Index(rows.labels.astype(np.int64), name="label")
    )
    check_equal(frame, reference(labels, values, offset=(7, 9, 11), voxel_size=None), scale=1e4)
    expected = np.unique(labels, return_counts=True)
    np.testing.assert_array_equal(counted.labels, expected[0])
    np.testing.assert_array_equal(counted.counts, expected[1])


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    labels, values = (
        make_labels("uint64", (60, 50, 40), 8, "blobs"),
        voxel_array("float32", (1, 60, 50, 40), 9, "noise"),
    )
    return (
        make_dataset(
            tmp_path_factory.mktemp("floats") / "ds",
            [("seg", "1", (3, 0, 0), labels), ("color", "1", (3, 0, 0), values)],
        ),
        labels,
        values,
    )


def test_threads_give_the_same_bits(floats):
    dataset, labels, values = floats
    with many_regions():
        with dask.config.set(scheduler="synchronous"):
            expected = wkwdask.label_statistics(dataset, "color")
        check_equal(expected, reference(labels, values, offset=(3, 0, 0)), scale=1e4)
        with dask.config.set(scheduler="threads", num_workers=5):
            found = wkwdask.label_statistics(dataset, "color")
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


def test_unreadable_files_are_listed(floats, tmp_path):
    broken = tmp_path / "ds"
    shutil.copytree(floats[0], broken)
    path = sorted((broken / "seg" / "1").rglob("x*.wkw"))[3]
    path.write_bytes(path.read_bytes()[:100])
    with (
        many_regions(),
        dask.config.set(scheduler="synchronous"),
        pytest.raises(TaskFailedError, match=rf"1 task failed; .*\n.*{path.name}"),
    ):
        wkwdask.label_statistics(broken)


def test_malformed_calls_are_refused(floats, tmp_path):
    dataset, *_ = floats
    with pytest.raises(TypeError, match=r"labels are integers, these voxels are float32"):
        wkwdask.label_statistics(dataset, layer="color")
    with pytest.raises(BoundsError, match="reaches outside"):
        wkwdask.label_statistics(dataset, bounding_box=(0, 0, 0, 10, 10, 10))
    with pytest.raises(MissingError, match="nowhere"):
        wkwdask.label_statistics(dataset, "nowhere")
    with pytest.raises(ValueError, match=r"a table is written as \.csv or \.parquet"):
        wkwdask.label_statistics(dataset, output=tmp_path / "table.xls")
    with pytest.raises(MissingError, match=r"table.csv: its folder does not exist"):
        wkwdask.label_statistics(dataset, output=tmp_path / "none" / "table.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ExistsError, match="is a folder; name a file"):
        wkwdask.label_statistics(dataset, output=tmp_path / "folder.csv")
    with pytest.raises(ValueError, match=r"mag 1, not mag 2"):
        wkwdask.label_statistics(dataset / "seg" / "1", mag=2)
    with pytest.raises(ValueError, match=r"color_mag= is the mag of another layer: it needs color"):
        wkwdask.label_statistics(dataset, color_mag=1)


# ----------------------------------------------------------------------------- real data


def test_real_labels_with_a_coarser_color_layer_equal_numpy(shared_data, tmp_path):
    sample = shared_data / "l4_sample"
    # odd and even corners in the voxels of mag 2-2-1
    low = np.add(wkwdask.info(sample).layers[1].mags[0].box.topleft, (33, 40, 51))
    box = wkwdask.BoundingBox(low, (90, 81, 40))
    labels = wkwdask.read(sample, box, layer="segmentation", mag=1)[0]
    color = wkwdask.read(sample, box, layer="color", mag="2-2-1")
    spread = color.repeat(2, 1).repeat(2, 2)[:, low[0] % 2 :, low[1] % 2 :][
        :, : labels.shape[0], : labels.shape[1]
    ]
    voxel_size = (11.239999771118164, 11.239999771118164, 28.0)
    found = wkwdask.label_statistics(
        sample, "color", bounding_box=box, output=tmp_path / "table.csv"
    )
    check_equal(found, reference(labels, spread, offset=low, voxel_size=voxel_size))
    assert len(found) > 50
    assert found.to_xarray().sizes == {"label": len(found)}
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "table.csv", index_col="label", dtype={"label": "uint64"}),
        found,
        check_dtype=False,
        rtol=1e-13,
    )


def test_real_neurons_equal_numpy(shared_data):
    """The part cuts blocks and files; the whole is compared with cc3d in ``oracles``."""
    labels = wkwdask.read(shared_data / "connectomics_seg", ((100, 37, 211), (290, 230, 321)))[0]
    found = wkwdask.label_statistics(
        shared_data / "connectomics_seg",
        bounding_box=(100, 37, 211, 190, 193, 110),
        ignore_zero=False,
    )
    check_equal(found, reference(labels, offset=(100, 37, 211), voxel_size=None, ignore_zero=False))


# ----------------------------------------------------------------------------- command and workflow


def test_command(floats, tmp_path):
    dataset, labels, _ = floats
    done = run_here("labels", dataset, "--color", "color", "-o", tmp_path / "table.parquet")
    found = wkwdask.label_statistics(dataset, "color")
    assert (
        done.output
        == f"{len(found)} labels, {np.count_nonzero(labels):,} voxels: {tmp_path}/table.parquet\n"
    )
    table = pd.read_parquet(tmp_path / "table.parquet")
    pd.testing.assert_frame_equal(table, found)
    assert table.attrs == found.attrs
    printed = run_here("labels", dataset, "--with-zero", "--bounding-box", "3,0,0,10,10,10").output
    assert printed.endswith("labels, 1,000 voxels\n")
    assert str(int(labels[:10, :10, :10].max())) in printed


def test_the_workflow_writes_the_table(floats, tmp_path):
    printed = run_script_here(WORKFLOW, floats[0], tmp_path / "table.csv", "--color", "color")
    found = pd.read_csv(tmp_path / "table.csv", index_col="label", dtype={"label": "uint64"})
    assert printed.startswith(f"{len(found)} labels; the largest are\n")
    # float32 in text
    pd.testing.assert_frame_equal(
        found, wkwdask.label_statistics(floats[0], "color"), rtol=1e-6, check_dtype=False
    )
