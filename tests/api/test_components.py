"""Connected components across bricks and files: the same as those of scipy in the whole array."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import ENVIRONMENT, logged, regions_of, runs, stopping, without_flushing
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from support.commands import run_here
from support.datasets import layer_of
from support.inside import before_task, limited
from support.references import assert_same_components, of_labels, of_mask
from support.strategies import HEAVY

import wkwdask
from wkwdask import BoundingBox
from wkwdask.errors import BoundsError, ExistsError, IncompleteWriteError, LockedError, ResumeError
from wkwdask.model.summary import counted

SMALL = {"block_len": 8, "file_len": 2}
OFFSET = (13, 8, 5)
SHAPE = (50, 38, 30)
assert ENVIRONMENT  # progress of cluster processes is off


@pytest.fixture(autouse=True, scope="module")
def small_bricks():
    """Many bricks and regions in small volumes, worked on by one thread."""
    with (
        limited(components_nbytes=16**3 * 5),
        regions_of(16),
        without_flushing(),
        dask.config.set(scheduler="synchronous"),
    ):
        yield


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (4, 4, 4))
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small_bricks):
    """Labels of layer ``seg``, and their components in ``once``."""
    folder = tmp_path_factory.mktemp("finished") / "ds"
    wkwdask.create_dataset(folder, (4, 4, 4))
    wkwdask.write(folder / "seg" / "1", OFFSET, blobs(4), **SMALL)
    wkwdask.connected_components(folder / "seg", folder / "once" / "1")
    return folder


@pytest.fixture
def blob_dataset(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "ds"))


def without_small(labels, min_voxels):
    sizes = np.bincount(labels.ravel())
    return np.where(sizes[labels] >= min_voxels, labels, 0)


def blobs(seed, shape=SHAPE, low=118):
    random = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(random.integers(0, 255, shape).astype(np.float32), 1.2)
    return np.where(smooth > low, smooth, 0).astype(np.uint8)


def snake(shape=SHAPE):
    """A component that winds through all bricks, and another beside it."""
    labels = np.zeros(shape, np.uint32)
    for z in range(0, shape[2], 4):
        for y in range(0, shape[1], 2):
            labels[:, y, z] = 5
            if y + 2 < shape[1]:
                labels[(-1 if y % 4 == 0 else 0), y + 1, z] = 5
        if z + 4 < shape[2]:
            end = (
                (-1 if (shape[1] - 1) // 2 % 2 == 0 else 0, (shape[1] - 1) // 2 * 2)
                if z % 8 == 0
                else (0, 0)
            )
            labels[end[0], end[1], z : z + 4] = 5
    labels[labels == 0] = np.where(np.indices(shape)[2] % 4 == 2, 9, 0)[labels == 0]
    return labels


def result(folder):
    return wkwdask.read(folder)[0]


def leftovers(folder):
    return [path.name for path in Path(folder).rglob(".wkwdask-job-*")]


# ----------------------------------------------------------------------------- whole volumes


@HEAVY
@given(
    st.tuples(*[st.integers(1, 45)] * 3),
    st.tuples(*[st.integers(0, 30)] * 3),
    st.sampled_from([6, 18, 26]),
    st.sampled_from([0.05, 0.3, 0.6]),
    st.sampled_from([None, 1]),
    st.sampled_from([0, 2, 30]),
    st.sampled_from([16, 32]),
    st.integers(0, 99),
)
def test_any_box_equals_scipy(
    tmp_path_factory, shape, offset, connectivity, density, threshold, min_voxels, region, seed
):
    folder = tmp_path_factory.mktemp("any")
    random = np.random.default_rng(seed)
    labels = np.where(random.random(shape) < density, random.integers(1, 3, shape), 0).astype(
        np.uint16
    )
    wkwdask.write(folder / "a" / "1", offset, labels, **SMALL)
    wkwdask.create_dataset(folder, (4, 4, 4))
    wkwdask.write(folder / "b" / "1", offset, labels, **SMALL)
    with dask.config.set(scheduler="synchronous"), regions_of(region):
        wkwdask.connected_components(
            folder / "b" / "1",
            folder / "c" / "1",
            connectivity=connectivity,
            threshold=threshold,
            min_voxels=min_voxels,
            file_len=int(random.choice([1, 2, 4])),
        )
    expected = (
        of_labels(labels, connectivity)
        if threshold is None
        else of_mask(labels >= threshold, connectivity)
    )
    assert_same_components(result(folder / "c" / "1"), without_small(expected, min_voxels))


def test_labels_and_thresholds_equal_scipy(dataset):
    voxels = blobs(1, (50, 40, 30))
    wkwdask.write(dataset / "color" / "1", OFFSET, voxels, **SMALL)
    for name, threshold, connectivity, expected in [
        ("least", 127, 6, of_mask(voxels >= 127, 6)),
        ("between", (120.5, 129.5), 18, of_mask((voxels > 120) & (voxels < 130), 18)),
        ("background", (0, 0), 26, of_mask(voxels == 0, 26)),
        ("labels", None, 18, of_labels(voxels, 18)),
    ]:
        report = wkwdask.connected_components(
            dataset / "color", dataset / name / "1", threshold=threshold, connectivity=connectivity
        )
        assert_same_components(result(dataset / name / "1"), expected)
        assert report.note == f"{expected.max():,} components"
        layer = layer_of(dataset, name)
        assert (layer["category"], layer["elementClass"], layer["largestSegmentId"]) == (
            "segmentation",
            "uint32",
            expected.max(),
        )
        assert layer["boundingBox"]["topLeft"] == list(OFFSET)
    assert not leftovers(dataset)


@pytest.mark.parametrize("connectivity", [6, 26])
def test_a_component_that_winds_through_all_files_has_one_id(dataset, connectivity):
    labels = snake((40, 34, 24))
    wkwdask.write(dataset / "seg" / "1", OFFSET, labels, **SMALL)
    wkwdask.connected_components(
        dataset / "seg" / "1", dataset / "cc" / "1", connectivity=connectivity
    )
    found = result(dataset / "cc" / "1")
    assert_same_components(found, of_labels(labels, connectivity))
    assert len(np.unique(found[labels == 5])) == 1


def test_connectivity_decides_whether_corners_of_bricks_connect(dataset):
    for number, (dx, dy) in enumerate([(1, 1), (1, -1), (-1, 1), (-1, -1)]):
        labels = np.zeros((32, 32, 32), np.uint8)
        labels[15 if dx > 0 else 16, 15 if dy > 0 else 16, 15] = 1
        labels[16 if dx > 0 else 15, 16 if dy > 0 else 15, 16] = 1
        wkwdask.write(dataset / f"s{number}" / "1", (0, 0, 0), labels, **SMALL)
        found = [
            wkwdask.connected_components(
                dataset / f"s{number}",
                dataset / f"c{number}-{connectivity}" / "1",
                connectivity=connectivity,
            ).note
            for connectivity in (6, 18, 26)
        ]
        assert found == ["2 components", "2 components", "1 component"]


def test_absent_files_are_background(dataset, tmp_path):
    labels = np.zeros((120, 120, 48), np.uint32)
    labels[3:40, 3:20, 3:20] = 7
    labels[100:, 110:, 20:] = 7
    wkwdask.write(dataset / "seg" / "1", (0, 0, 0), labels, **SMALL)
    with logged(tmp_path / "log"):
        wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    assert_same_components(result(dataset / "cc" / "1"), of_labels(labels, 26))
    # regions of 16 voxels that touch a file, of 8 * 8 * 3
    assert sum(name.startswith("label") for name in runs(tmp_path / "log")) == 3 * 2 * 2 + 2 * 2 * 2


def test_an_empty_layer_has_no_components(dataset):
    wkwdask.create(dataset / "seg" / "1", BoundingBox((3, 4, 5), (50, 60, 20)), np.uint32, **SMALL)
    report = wkwdask.connected_components(dataset / "seg" / "1", dataset / "cc" / "1")
    assert (report.note, report.files) == ("0 components", 0)
    assert not result(dataset / "cc" / "1").any()
    wkwdask.connected_components(dataset / "seg" / "1", dataset / "all" / "1", threshold=(-1, 1))
    assert (result(dataset / "all" / "1") == 1).all()


@pytest.mark.long
@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint64])
def test_values_of_other_types_are_compared_with_a_threshold(dataset, dtype):
    voxels = (blobs(5, (40, 30, 20)).astype(np.float64) - 125).astype(dtype)
    if voxels.dtype.kind == "f":
        voxels[3:9, 5] = np.nan
    wkwdask.write(dataset / "raw" / "1", OFFSET, voxels, **SMALL)
    wkwdask.connected_components(dataset / "raw" / "1", dataset / "cc" / "1", threshold=0.5)
    assert_same_components(result(dataset / "cc" / "1"), of_mask(voxels >= 0.5, 26))
    if voxels.dtype.kind != "f":
        wkwdask.connected_components(
            dataset / "raw" / "1", dataset / "labels" / "1", connectivity=6
        )
        assert_same_components(result(dataset / "labels" / "1"), of_labels(voxels, 6))


@pytest.mark.parametrize(
    "threshold",
    [
        2**63 + 1,
        np.uint64(2**63 + 1),
        (np.uint64(2**63 + 1), 2**64 - 1),
        (float(2**63 + 2048), np.inf),
    ],
)
def test_thresholds_of_64_bits_are_exact(dataset, threshold):
    voxels = np.where(
        blobs(5, (20, 20, 20)) > 125,
        np.uint64(2**63 + (1 if np.ndim(threshold) == 0 or threshold[1] < 2**64 else 2048)),
        np.uint64(2**63),
    )
    wkwdask.write(dataset / "raw" / "1", OFFSET, voxels, **SMALL)
    wkwdask.connected_components(dataset / "raw" / "1", dataset / "cc" / "1", threshold=threshold)
    assert_same_components(result(dataset / "cc" / "1"), of_mask(voxels > 2**63, 26))


def test_where_cuts_components_at_its_border(dataset):
    labels = snake()
    wkwdask.write(dataset / "seg" / "1", OFFSET, labels, **SMALL)
    low, size = (20, 19, 11), (30, 22, 17)
    wkwdask.connected_components(
        dataset / "seg" / "1", dataset / "cc" / "1", where=(low, np.add(low, size)), connectivity=6
    )
    inside = tuple(slice(a - o, a - o + n) for a, o, n in zip(low, OFFSET, size, strict=True))
    expected = np.zeros(labels.shape, np.int64)
    expected[inside] = of_labels(labels[inside], 6)
    assert_same_components(result(dataset / "cc" / "1"), expected)


def test_a_coarser_mag_is_chosen(dataset):
    labels = blobs(3, (40, 30, 20))
    wkwdask.write(
        dataset / "seg" / "1",
        (0, 0, 0),
        np.kron(labels, np.ones((2, 2, 1), np.uint8)),
        category="segmentation",
        **SMALL,
    )
    wkwdask.build_pyramid(dataset, "seg", mags=["2-2-1"])
    wkwdask.connected_components(
        dataset, dataset / "cc" / "2-2-1", layer="seg", mag="2-2-1", threshold=1
    )
    assert_same_components(wkwdask.read(dataset / "cc" / "2-2-1")[0], of_mask(labels >= 1, 26))


# ----------------------------------------------------------------------------- tasks and
# interruptions


def stored(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.wkw"))
    }


def test_threads_and_regions_give_the_same_files(blob_dataset):
    with dask.config.set(scheduler="threads", num_workers=3), regions_of(64):
        wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "threads" / "1")
    assert stored(blob_dataset / "once") == stored(blob_dataset / "threads")


def change(folder):
    wkwdask.to_wkw(blobs(5)[:16, :16, :16], folder, region=BoundingBox(OFFSET, (16, 16, 16)))


class StopError(Exception):
    """The end of a run."""


@pytest.mark.parametrize("after", [1, 30, 60, 105])
def test_an_interrupted_run_is_resumed(blob_dataset, tmp_path, after):
    log = tmp_path / "log"
    with pytest.raises(StopError), stopping(log, after, StopError()):
        wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "cc" / "1")
    assert not (blob_dataset / "cc" / "1").exists()
    with stopping(log, 10_000, StopError()):
        wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "cc" / "1")
    begun = [line for line in log.read_text().splitlines() if line.startswith("begin")]
    assert len(begun) == len(set(begun)) > 105
    assert stored(blob_dataset / "once") == stored(blob_dataset / "cc")
    assert not leftovers(blob_dataset)


@pytest.mark.long
@pytest.mark.filterwarnings("default::wkwdask.errors.DiscardWarning")
def test_other_settings_and_data_are_not_resumed(blob_dataset, tmp_path):
    with pytest.raises(StopError), stopping(tmp_path / "log", 30, StopError()):
        wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "cc" / "1")
    with pytest.raises(ResumeError, match="connectivity was 26, is 6"):
        wkwdask.connected_components(
            blob_dataset / "seg", blob_dataset / "cc" / "1", connectivity=6
        )
    change(blob_dataset / "seg" / "1")
    with pytest.raises(ResumeError, match="the source has changed"):
        wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "cc" / "1")
    wkwdask.connected_components(
        blob_dataset / "seg", blob_dataset / "cc" / "1", existing="restart"
    )
    assert_same_components(
        result(blob_dataset / "cc" / "1"), of_labels(result(blob_dataset / "seg" / "1"), 26)
    )
    with pytest.raises(ExistsError):
        wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "cc" / "1")
    assert (
        "nothing to do"
        in wkwdask.connected_components(
            blob_dataset / "seg", blob_dataset / "cc" / "1", existing="resume"
        ).note
    )


def test_a_source_that_changes_during_the_run_is_an_error(blob_dataset):
    with (
        before_task(60, partial(change, blob_dataset / "seg" / "1")),
        pytest.raises(IncompleteWriteError, match="was changed while it was read"),
    ):
        wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "cc" / "1")
    assert not (blob_dataset / "cc" / "1").exists()


def test_a_second_run_is_refused(blob_dataset):
    refused = []

    def meanwhile():
        with pytest.raises(LockedError):
            wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "cc" / "1")
        refused.append(True)

    with before_task(60, meanwhile):
        wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "cc" / "1")
    assert refused


def test_damaged_scratch_files_are_rebuilt(blob_dataset, tmp_path):
    with pytest.raises(StopError), stopping(tmp_path / "log", 40, StopError()):
        wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "cc" / "1")
    files = sorted(blob_dataset.rglob("*.faces"))
    files[0].write_bytes(files[0].read_bytes()[:-9])
    files[1].write_bytes(files[1].read_bytes()[:40] + b"\0" * 400)
    files[2].unlink()
    data = bytearray(files[3].read_bytes())
    runs = len(data) // 2
    data[runs] ^= 1
    files[3].write_bytes(data)
    wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "cc" / "1")
    assert stored(blob_dataset / "once") == stored(blob_dataset / "cc")


def test_damaged_pairs_are_rebuilt(blob_dataset, tmp_path):
    with pytest.raises(StopError), stopping(tmp_path / "log", 85, StopError()):
        wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "cc" / "1")
    first, second, third, fourth = sorted(
        blob_dataset.rglob("*.pairs"), key=lambda path: -path.stat().st_size
    )[:4]
    first.write_bytes(first.read_bytes()[:-16])
    second.write_bytes(b"")
    third.write_bytes(bytes([third.read_bytes()[0] ^ 1]) + third.read_bytes()[1:])
    fourth.unlink()
    wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "cc" / "1")
    assert stored(blob_dataset / "once") == stored(blob_dataset / "cc")


# ----------------------------------------------------------------------------- types of ids,
# errors, the command


@pytest.mark.long
def test_too_many_components_make_64_bit_ids(blob_dataset):
    with limited(ids_of_32_bits=5):
        wkwdask.connected_components(blob_dataset / "seg", blob_dataset / "cc" / "1")
    found = result(blob_dataset / "cc" / "1")
    assert found.dtype == np.uint64
    assert_same_components(found, of_labels(blobs(4), 26))
    layer = layer_of(blob_dataset, "cc")
    assert layer["elementClass"] == "uint64"
    with pytest.raises(
        ValueError, match=r"components are too many for uint8; set dtype= to a longer type"
    ):
        wkwdask.connected_components(
            blob_dataset / "seg", blob_dataset / "short" / "1", dtype="uint8"
        )


def test_malformed_calls_are_refused(dataset):
    wkwdask.write(dataset / "seg" / "1", OFFSET, blobs(4), **SMALL)
    wkwdask.write(dataset / "rgb" / "1", OFFSET, np.ones((3, 9, 9, 9), np.uint8), **SMALL)
    wkwdask.write(dataset / "float" / "1", OFFSET, np.ones((9, 9, 9), np.float32), **SMALL)
    source, target = dataset / "seg" / "1", dataset / "cc" / "1"
    for error, match, call in [
        (
            ValueError,
            "connectivity must be 6, 18 or 26, got 4",
            lambda: wkwdask.connected_components(source, target, connectivity=4),
        ),
        (
            ValueError,
            "min_voxels must be at least 0, got -1",
            lambda: wkwdask.connected_components(source, target, min_voxels=-1),
        ),
        (
            ValueError,
            "the lower one first",
            lambda: wkwdask.connected_components(source, target, threshold=(3, 2)),
        ),
        (
            ValueError,
            r"a number or two, .* got \(1, 2, 3\)",
            lambda: wkwdask.connected_components(source, target, threshold=(1, 2, 3)),
        ),
        (
            ValueError,
            "a number or two, .* got '5'",
            lambda: wkwdask.connected_components(source, target, threshold="5"),
        ),
        (
            ValueError,
            "a number or two, .* got array",
            lambda: wkwdask.connected_components(source, target, threshold=np.array([1, 2])),
        ),
        (ValueError, "is the source", lambda: wkwdask.connected_components(source, source)),
        (
            ValueError,
            "lies inside the source",
            lambda: wkwdask.connected_components(source, source / "1"),
        ),
        (
            ValueError,
            "is mag 2, but",
            lambda: wkwdask.connected_components(source, dataset / "cc" / "2"),
        ),
        (
            ValueError,
            "has 3 channels, expected one",
            lambda: wkwdask.connected_components(dataset / "rgb", target),
        ),
        (
            TypeError,
            "only equal integers can be joined: set threshold=",
            lambda: wkwdask.connected_components(dataset / "float", target),
        ),
        (
            TypeError,
            "ids are integers",
            lambda: wkwdask.connected_components(source, target, dtype=np.float32),
        ),
        (
            BoundsError,
            "lies outside of its box",
            lambda: wkwdask.connected_components(source, target, where=((500, 0, 0), (509, 9, 9))),
        ),
    ]:
        with pytest.raises(error, match=match):
            call()
    assert not (dataset / "cc").exists()


def test_command(dataset):
    voxels = blobs(1, (40, 30, 20))
    wkwdask.write(dataset / "color" / "1", OFFSET, voxels, **SMALL)
    for arguments, expected in [
        (["--threshold", "127", "--connectivity", "6"], of_mask(voxels >= 127, 6)),
        (["--threshold", "120,130", "--overwrite"], of_mask((voxels >= 120) & (voxels <= 130), 26)),
        (["--min-voxels", "10", "--overwrite"], without_small(of_labels(voxels, 26), 10)),
    ]:
        done = run_here("components", dataset / "color" / "1", dataset / "cells" / "1", *arguments)
        assert done.returncode == 0, done.output
        assert counted(len(np.unique(expected)) - 1, "component") in done.output
        assert_same_components(result(dataset / "cells" / "1"), expected)
    wkwdask.write(
        dataset / "wide" / "1",
        OFFSET,
        np.arange(2**63, 2**63 + 8, dtype=np.uint64).reshape(2, 2, 2),
        **SMALL,
    )
    done = run_here(
        "components",
        dataset / "wide",
        dataset / "w" / "1",
        "--threshold",
        f"{2**63 + 3},{2**63 + 5}",
    )
    assert np.count_nonzero(wkwdask.read(dataset / "w" / "1")) == 3, done.output
    done = run_here("components", dataset / "color", dataset / "x" / "1", "--threshold", "1,2,3")
    assert "--threshold takes one number or two" in done.output
