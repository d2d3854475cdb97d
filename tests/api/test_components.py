"""Connected components across bricks and files: the same as scipy finds in the whole array."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import ENVIRONMENT, logged, regions_of, runs, stopping, without_flushing
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from support.commands import run_here
from support.datasets import layer_of
from support.inside import before_task, limited
from support.references import assert_same_components, of_labels, of_mask

import wkwdask
from wkwdask import BoundingBox
from wkwdask.errors import BoundsError, ExistsError, IncompleteWriteError, LockedError, ResumeError

SMALL = {"block_len": 8, "file_len": 2}
OFFSET = (13, 8, 5)
SHAPE = (70, 50, 40)
assert ENVIRONMENT  # progress of cluster processes is off


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(autouse=True)
def small_bricks():
    """Let there be many bricks and regions, however small the volume."""
    with limited(components_nbytes=16**3 * 5), regions_of(16), without_flushing():
        yield


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (4, 4, 4))
    return folder


def without_small(labels, min_voxels):
    sizes = np.bincount(labels.ravel())
    return np.where(sizes[labels] >= min_voxels, labels, 0)


def blobs(seed, shape=SHAPE, low=118):
    random = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(random.integers(0, 255, shape).astype(np.float32), 1.2)
    return np.where(smooth > low, smooth, 0).astype(np.uint8)


def snake(shape=SHAPE):
    """One component that goes through all bricks and touches itself nowhere, and another that runs beside it."""
    labels = np.zeros(shape, np.uint32)
    for z in range(0, shape[2], 4):
        for y in range(0, shape[1], 2):
            labels[:, y, z] = 5
            if y + 2 < shape[1]:
                labels[(-1 if y % 4 == 0 else 0), y + 1, z] = 5
        if z + 4 < shape[2]:
            end = (-1 if (shape[1] - 1) // 2 % 2 == 0 else 0, (shape[1] - 1) // 2 * 2) if z % 8 == 0 else (0, 0)
            labels[end[0], end[1], z : z + 4] = 5
    labels[labels == 0] = np.where(np.indices(shape)[2] % 4 == 2, 9, 0)[labels == 0]
    return labels


def result(folder):
    return wkwdask.read(folder)[0]


def leftovers(folder):
    return [path.name for path in Path(folder).rglob(".wkwdask-job-*")]


# ----------------------------------------------------------------------------- whole volumes


@settings(max_examples=25)
@given(
    st.tuples(*[st.integers(1, 45)] * 3), st.tuples(*[st.integers(0, 30)] * 3), st.sampled_from([6, 18, 26]), st.sampled_from([0.05, 0.3, 0.6]),
    st.sampled_from([None, 1]), st.sampled_from([0, 2, 30]), st.sampled_from([16, 32]), st.integers(0, 99),
)  # fmt: skip
def test_any_box(tmp_path_factory, shape, offset, connectivity, density, threshold, min_voxels, region, seed):
    folder = tmp_path_factory.mktemp("any")
    random = np.random.default_rng(seed)
    labels = np.where(random.random(shape) < density, random.integers(1, 3, shape), 0).astype(np.uint16)
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
    expected = of_labels(labels, connectivity) if threshold is None else of_mask(labels >= threshold, connectivity)
    assert_same_components(result(folder / "c" / "1"), without_small(expected, min_voxels))


@pytest.mark.parametrize("connectivity", [6, 18, 26])
def test_smooth_labels_and_thresholds(dataset, connectivity):
    voxels = blobs(1)
    wkwdask.write(dataset / "color" / "1", OFFSET, voxels, **SMALL)
    for name, threshold, expected in [
        ("least", 127, of_mask(voxels >= 127, connectivity)),
        ("between", (120.5, 129.5), of_mask((voxels > 120) & (voxels < 130), connectivity)),
        ("background", (0, 0), of_mask(voxels == 0, connectivity)),
        ("labels", None, of_labels(voxels, connectivity)),
    ]:
        report = wkwdask.connected_components(dataset / "color", dataset / name / "1", threshold=threshold, connectivity=connectivity)
        assert_same_components(result(dataset / name / "1"), expected)
        assert report.note == f"{expected.max()} components"
        layer = layer_of(dataset, name)
        assert (layer["category"], layer["elementClass"], layer["largestSegmentId"]) == ("segmentation", "uint32", expected.max())
        assert layer["boundingBox"]["topLeft"] == list(OFFSET)
    assert not leftovers(dataset)


@pytest.mark.parametrize("connectivity", [6, 18, 26])
def test_a_component_that_winds_through_all_files(dataset, connectivity):
    labels = snake()
    wkwdask.write(dataset / "seg" / "1", OFFSET, labels, **SMALL)
    wkwdask.connected_components(dataset / "seg" / "1", dataset / "cc" / "1", connectivity=connectivity)
    found = result(dataset / "cc" / "1")
    assert_same_components(found, of_labels(labels, connectivity))
    assert len(np.unique(found[labels == 5])) == 1


def test_diagonal_neighbours_in_eight_bricks(dataset):
    """Two voxels that meet at a corner of bricks, in each of the four ways."""
    for number, (dx, dy) in enumerate([(1, 1), (1, -1), (-1, 1), (-1, -1)]):
        labels = np.zeros((32, 32, 32), np.uint8)
        labels[15 if dx > 0 else 16, 15 if dy > 0 else 16, 15] = 1
        labels[16 if dx > 0 else 15, 16 if dy > 0 else 15, 16] = 1
        wkwdask.write(dataset / f"s{number}" / "1", (0, 0, 0), labels, **SMALL)
        found = [
            wkwdask.connected_components(dataset / f"s{number}", dataset / f"c{number}-{connectivity}" / "1", connectivity=connectivity).note
            for connectivity in (6, 18, 26)
        ]
        assert found == ["2 components", "2 components", "1 components"]


def test_absent_files_are_background(dataset, tmp_path):
    labels = np.zeros((200, 200, 48), np.uint32)
    labels[3:40, 3:20, 3:20] = 7
    labels[180:, 190:, 20:] = 7
    wkwdask.write(dataset / "seg" / "1", (0, 0, 0), labels, **SMALL)
    with logged(tmp_path / "log"):
        wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    assert_same_components(result(dataset / "cc" / "1"), of_labels(labels, 26))
    assert sum(name.startswith("label") for name in runs(tmp_path / "log")) == 3 * 2 * 2 + 2 * 2 * 2  # regions of 16 voxels that touch a file, of 13 * 13 * 3


def test_an_empty_layer(dataset):
    wkwdask.create(dataset / "seg" / "1", BoundingBox((3, 4, 5), (50, 60, 20)), np.uint32, **SMALL)
    report = wkwdask.connected_components(dataset / "seg" / "1", dataset / "cc" / "1")
    assert (report.note, report.files) == ("0 components", 0)
    assert not result(dataset / "cc" / "1").any()
    wkwdask.connected_components(dataset / "seg" / "1", dataset / "all" / "1", threshold=(-1, 1))
    assert (result(dataset / "all" / "1") == 1).all()


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint64])
def test_types(dataset, dtype):
    voxels = (blobs(5).astype(np.float64) - 125).astype(dtype)
    if voxels.dtype.kind == "f":
        voxels[3:9, 5] = np.nan
    wkwdask.write(dataset / "raw" / "1", OFFSET, voxels, **SMALL)
    wkwdask.connected_components(dataset / "raw" / "1", dataset / "cc" / "1", threshold=0.5)
    assert_same_components(result(dataset / "cc" / "1"), of_mask(voxels >= 0.5, 26))
    if voxels.dtype.kind != "f":
        wkwdask.connected_components(dataset / "raw" / "1", dataset / "labels" / "1", connectivity=6)
        assert_same_components(result(dataset / "labels" / "1"), of_labels(voxels, 6))


@pytest.mark.parametrize("threshold", [2**63 + 1, np.uint64(2**63 + 1), (np.uint64(2**63 + 1), 2**64 - 1), (float(2**63 + 2048), np.inf)])
def test_thresholds_beyond_what_floats_hold(dataset, threshold):
    voxels = np.where(blobs(5) > 125, np.uint64(2**63 + (1 if np.ndim(threshold) == 0 or threshold[1] < 2**64 else 2048)), np.uint64(2**63))
    wkwdask.write(dataset / "raw" / "1", OFFSET, voxels, **SMALL)
    wkwdask.connected_components(dataset / "raw" / "1", dataset / "cc" / "1", threshold=threshold)
    assert_same_components(result(dataset / "cc" / "1"), of_mask(voxels > 2**63, 26))


def test_only_a_part(dataset):
    labels = snake()
    wkwdask.write(dataset / "seg" / "1", OFFSET, labels, **SMALL)
    low, size = (20, 19, 11), (30, 22, 17)
    wkwdask.connected_components(dataset / "seg" / "1", dataset / "cc" / "1", where=(*low, *size), connectivity=6)
    inside = tuple(slice(a - o, a - o + n) for a, o, n in zip(low, OFFSET, size, strict=True))
    expected = np.zeros(labels.shape, np.int64)
    expected[inside] = of_labels(labels[inside], 6)
    assert_same_components(result(dataset / "cc" / "1"), expected)


def test_a_mag_that_is_not_the_finest(dataset):
    labels = blobs(3)
    wkwdask.write(dataset / "seg" / "1", (0, 0, 0), np.kron(labels, np.ones((2, 2, 1), np.uint8)), category="segmentation", **SMALL)
    wkwdask.build_pyramid(dataset, "seg", mags=["2-2-1"])
    wkwdask.connected_components(dataset, dataset / "cc" / "2-2-1", layer="seg", mag="2-2-1", threshold=1)
    assert_same_components(wkwdask.read(dataset / "cc" / "2-2-1")[0], of_mask(labels >= 1, 26))


# ----------------------------------------------------------------------------- the same whoever runs it


def stored(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.wkw"))}


def test_threads_processes_and_regions_give_the_same_files(dataset):
    wkwdask.write(dataset / "seg" / "1", OFFSET, blobs(4), **SMALL)
    wkwdask.connected_components(dataset / "seg", dataset / "serial" / "1", min_voxels=3)
    with dask.config.set(scheduler="threads", num_workers=3), regions_of(64):
        wkwdask.connected_components(dataset / "seg", dataset / "threads" / "1", min_voxels=3)
    with dask.config.set(scheduler="processes", num_workers=2), regions_of(32):
        wkwdask.connected_components(dataset / "seg", dataset / "processes" / "1", min_voxels=3)
    assert stored(dataset / "serial") == stored(dataset / "threads") == stored(dataset / "processes")


def test_a_cluster(dataset):
    from support.local_cluster import local_cluster

    wkwdask.write(dataset / "seg" / "1", OFFSET, blobs(4), **SMALL)
    wkwdask.connected_components(dataset / "seg", dataset / "serial" / "1")
    with dask.config.set(scheduler=None), local_cluster() as cluster, cluster.get_client():
        wkwdask.connected_components(dataset / "seg", dataset / "cluster" / "1")
    assert stored(dataset / "serial") == stored(dataset / "cluster")


# ----------------------------------------------------------------------------- interruptions


def change(folder):
    wkwdask.to_wkw(blobs(5)[:16, :16, :16], folder, region=BoundingBox(OFFSET, (16, 16, 16)))


class StopError(Exception):
    """The end of a run."""


@pytest.mark.parametrize("after", [1, 20, 41, 70, 90, 110])
def test_an_interrupted_run_goes_on(dataset, tmp_path, after):
    wkwdask.write(dataset / "seg" / "1", OFFSET, blobs(4), **SMALL)
    wkwdask.connected_components(dataset / "seg", dataset / "once" / "1")
    log = tmp_path / "log"
    with pytest.raises(StopError), stopping(log, after, StopError()):
        wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    assert not (dataset / "cc" / "1").exists()
    with stopping(log, 10_000, StopError()):
        wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    begun = [line for line in log.read_text().splitlines() if line.startswith("begin")]
    assert len(begun) == len(set(begun)) > 110
    assert stored(dataset / "once") == stored(dataset / "cc")
    assert not leftovers(dataset)


def test_other_settings_and_other_data_do_not_go_on(dataset, tmp_path):
    wkwdask.write(dataset / "seg" / "1", OFFSET, blobs(4), **SMALL)
    with pytest.raises(StopError), stopping(tmp_path / "log", 30, StopError()):
        wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    with pytest.raises(ResumeError, match="connectivity was 26, is 6"):
        wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1", connectivity=6)
    change(dataset / "seg" / "1")
    with pytest.raises(ResumeError, match="the source has changed"):
        wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1", existing="overwrite")
    assert_same_components(result(dataset / "cc" / "1"), of_labels(result(dataset / "seg" / "1"), 26))
    with pytest.raises(ExistsError):
        wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    assert "nothing to do" in wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1", existing="resume").note


def test_a_source_that_changes_meanwhile(dataset):
    wkwdask.write(dataset / "seg" / "1", OFFSET, blobs(4), **SMALL)
    with before_task(60, partial(change, dataset / "seg" / "1")), pytest.raises(IncompleteWriteError, match="was changed while it was read"):
        wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    assert not (dataset / "cc" / "1").exists()


def test_a_second_run_is_refused(dataset):
    wkwdask.write(dataset / "seg" / "1", OFFSET, blobs(4), **SMALL)
    refused = []

    def meanwhile():
        with pytest.raises(LockedError):
            wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
        refused.append(True)

    with before_task(60, meanwhile):
        wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    assert refused


def test_damaged_scratch_files_are_made_again(dataset, tmp_path):
    wkwdask.write(dataset / "seg" / "1", OFFSET, blobs(4), **SMALL)
    wkwdask.connected_components(dataset / "seg", dataset / "once" / "1")
    with pytest.raises(StopError), stopping(tmp_path / "log", 40, StopError()):
        wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    files = sorted(dataset.rglob("*.faces"))
    files[0].write_bytes(files[0].read_bytes()[:-9])
    files[1].write_bytes(files[1].read_bytes()[:40] + b"\0" * 400)
    files[2].unlink()
    wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    assert stored(dataset / "once") == stored(dataset / "cc")


def test_damaged_pairs_are_made_again(dataset, tmp_path):
    wkwdask.write(dataset / "seg" / "1", OFFSET, blobs(4), **SMALL)
    wkwdask.connected_components(dataset / "seg", dataset / "once" / "1")
    with pytest.raises(StopError), stopping(tmp_path / "log", 85, StopError()):
        wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    first, second, third, fourth = sorted(dataset.rglob("*.pairs"), key=lambda path: -path.stat().st_size)[:4]
    first.write_bytes(first.read_bytes()[:-16])
    second.write_bytes(b"")
    third.write_bytes(bytes([third.read_bytes()[0] ^ 1]) + third.read_bytes()[1:])
    fourth.unlink()
    wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    assert stored(dataset / "once") == stored(dataset / "cc")


# ----------------------------------------------------------------------------- types of ids, errors, the command


def test_ids_become_longer_where_there_are_too_many(dataset):
    wkwdask.write(dataset / "seg" / "1", OFFSET, blobs(4), **SMALL)
    with limited(ids_of_32_bits=5):
        wkwdask.connected_components(dataset / "seg", dataset / "cc" / "1")
    found = result(dataset / "cc" / "1")
    assert found.dtype == np.uint64
    assert_same_components(found, of_labels(blobs(4), 26))
    layer = layer_of(dataset, "cc")
    assert layer["elementClass"] == "uint64"
    with pytest.raises(ValueError, match=r"components are too many for uint8; set dtype= to a longer type"):
        wkwdask.connected_components(dataset / "seg", dataset / "short" / "1", dtype="uint8")


def test_what_makes_no_sense(dataset):
    wkwdask.write(dataset / "seg" / "1", OFFSET, blobs(4), **SMALL)
    wkwdask.write(dataset / "rgb" / "1", OFFSET, np.ones((3, 9, 9, 9), np.uint8), **SMALL)
    wkwdask.write(dataset / "float" / "1", OFFSET, np.ones((9, 9, 9), np.float32), **SMALL)
    source, target = dataset / "seg" / "1", dataset / "cc" / "1"
    for error, match, call in [
        (ValueError, "connectivity must be 6, 18 or 26, got 4", lambda: wkwdask.connected_components(source, target, connectivity=4)),
        (ValueError, "min_voxels must not be negative", lambda: wkwdask.connected_components(source, target, min_voxels=-1)),
        (ValueError, "the lower one first", lambda: wkwdask.connected_components(source, target, threshold=(3, 2))),
        (ValueError, r"a number or two, .* got \(1, 2, 3\)", lambda: wkwdask.connected_components(source, target, threshold=(1, 2, 3))),
        (ValueError, "a number or two, .* got '5'", lambda: wkwdask.connected_components(source, target, threshold="5")),
        (ValueError, "a number or two, .* got array", lambda: wkwdask.connected_components(source, target, threshold=np.array([1, 2]))),
        (ValueError, "is the source", lambda: wkwdask.connected_components(source, source)),
        (ValueError, "lies inside the source", lambda: wkwdask.connected_components(source, source / "1")),
        (ValueError, "is mag 2, but", lambda: wkwdask.connected_components(source, dataset / "cc" / "2")),
        (ValueError, "has 3 channels, expected one", lambda: wkwdask.connected_components(dataset / "rgb", target)),
        (TypeError, "only equal integers can be joined: set threshold=", lambda: wkwdask.connected_components(dataset / "float", target)),
        (TypeError, "ids are integers", lambda: wkwdask.connected_components(source, target, dtype=np.float32)),
        (BoundsError, "lies outside of its box", lambda: wkwdask.connected_components(source, target, where=(500, 0, 0, 9, 9, 9))),
    ]:
        with pytest.raises(error, match=match):
            call()
    assert not (dataset / "cc").exists()


def test_the_command(dataset):
    wkwdask.write(dataset / "color" / "1", OFFSET, blobs(1), **SMALL)
    for arguments, expected in [
        (["--threshold", "127", "--connectivity", "6"], of_mask(blobs(1) >= 127, 6)),
        (["--threshold", "120,130", "--overwrite"], of_mask((blobs(1) >= 120) & (blobs(1) <= 130), 26)),
        (["--min-voxels", "10", "--overwrite"], without_small(of_labels(blobs(1), 26), 10)),
    ]:
        done = run_here("components", dataset / "color" / "1", dataset / "cells" / "1", *arguments)
        assert done.returncode == 0, done.output
        assert f"{len(np.unique(expected)) - 1} components" in done.output
        assert_same_components(result(dataset / "cells" / "1"), expected)
    wkwdask.write(dataset / "wide" / "1", OFFSET, np.arange(2**63, 2**63 + 8, dtype=np.uint64).reshape(2, 2, 2), **SMALL)
    done = run_here("components", dataset / "wide", dataset / "w" / "1", "--threshold", f"{2**63 + 3},{2**63 + 5}")
    assert np.count_nonzero(wkwdask.read(dataset / "w" / "1")) == 3, done.output
    done = run_here("components", dataset / "color", dataset / "x" / "1", "--threshold", "1,2,3")
    assert "--threshold takes one number or two" in done.output
