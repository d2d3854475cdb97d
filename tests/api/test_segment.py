"""Segmentations block by block: the same as those of plain numpy for any blocks, halos and masks,
on every runner, and after every interruption."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
from faults.drivers import (
    ENVIRONMENT,
    logged,
    regions_of,
    runs,
    stopping,
    tasks_run_by,
    without_flushing,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from support.commands import run_here
from support.datasets import layer_of
from support.inside import before_task, limited
from support.local_cluster import local_cluster
from support.references import assert_same_components, of_mask
from support.segmenting import (
    blocks_of,
    bright,
    numbered,
    smooth_noise,
    stitched,
    with_values,
)
from support.strategies import HEAVY, vectors

import wkwdask
from wkwdask import BoundingBox
from wkwdask.errors import (
    BoundsError,
    ExistsError,
    IncompleteWriteError,
    LockedError,
    ResumeError,
    TaskFailedError,
    UnsupportedError,
)
from wkwdask.graphs.job_array import submitting_to
from wkwdask.runs.batch_file import Batch

SMALL = {"block_len": 8, "file_len": 2}
OFFSET = (13, 8, 5)
SHAPE = (50, 38, 30)
END = tuple(a + n for a, n in zip(OFFSET, SHAPE, strict=True))
assert ENVIRONMENT  # progress of cluster processes is off


@pytest.fixture(autouse=True, scope="module")
def small_regions():
    """Many bricks and regions in small volumes, worked on by one thread."""
    with (
        limited(brick_nbytes=16**3 * 8),
        regions_of(16),
        without_flushing(),
        dask.config.set(scheduler="synchronous"),
    ):
        yield


def image(seed=1, shape=SHAPE):
    return smooth_noise(seed, shape)


def noise(em, read_box, seed=0):
    """Labels in blobs of few voxels that differ from block to block."""
    random = np.random.default_rng([seed, *(n + 1000 for n in read_box.topleft)])
    coarse = random.integers(0, 4, [-(-n // 4) for n in em.shape])
    return coarse.repeat(4, 0).repeat(4, 1).repeat(4, 2)[tuple(slice(n) for n in em.shape)]


def box_noise(low, high, seed=0):
    box = BoundingBox.from_corners(low, high)
    return noise(np.empty(box.size), box, seed)


def cut_bright(array, offset, low, high):
    part = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offset, strict=True))
    return bright(array[part])


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (4, 4, 35))
    wkwdask.write(folder / "color" / "1", OFFSET, image(), **SMALL)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small_regions):
    """An image, and its segmentation in ``once``."""
    folder = tmp_path_factory.mktemp("finished") / "ds"
    wkwdask.create_dataset(folder, (4, 4, 35))
    wkwdask.write(folder / "color" / "1", OFFSET, image(), **SMALL)
    segment(folder, "once")
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "ds"))


def segment(folder, name="cells", function=bright, **options):
    settings = {"halo": 6, "chunks": 16, **options}
    return wkwdask.segment(function, folder / "color" / "1", folder / name / "1", **settings)


def result(folder):
    return wkwdask.read(folder)[0]


def stored(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.wkw"))
    }


def leftovers(folder):
    return [path.name for path in Path(folder).rglob(".wkwdask-job-*")]


# ----------------------------------------------------------------------------- equal to plain numpy


@HEAVY
@given(
    shape=vectors(1, 40),
    offset=vectors(0, 30),
    chunks=st.tuples(*[st.sampled_from([5, 8, 13, 24, 64])] * 3),
    halo=vectors(1, 9),
    least=st.sampled_from([0.5, 0.6, 0.9]),
    stitch=st.sampled_from(["xyz", "xy", "z"]),
    min_voxels=st.sampled_from([0, 30]),
    one_per_block=st.booleans(),
    max_voxels=st.sampled_from([None, 1, 200, 1000]),
    has_mask=st.booleans(),
    has_where=st.booleans(),
    is_noise=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_blocks_equal_the_reference(
    tmp_path_factory, shape, offset, chunks, halo, least, stitch, min_voxels, one_per_block,
    max_voxels, has_mask, has_where, is_noise, seed,
):  # fmt: skip
    folder = tmp_path_factory.mktemp("any")
    random = np.random.default_rng(seed)
    wkwdask.create_dataset(folder, (4, 4, 4))
    array = image(seed, shape)
    wkwdask.write(folder / "color" / "1", offset, array, **SMALL)
    end = tuple(a + n for a, n in zip(offset, shape, strict=True))
    inside = (offset, end)
    options = {}
    mask = None
    if has_mask:
        mask = image(seed + 1, shape) > 120
        wkwdask.write(folder / "mask" / "1", offset, mask.astype(np.uint8), **SMALL)
        options["mask"] = folder / "mask" / "1"
    if has_where:
        low = tuple(int(random.integers(a, b)) for a, b in zip(*inside, strict=True))
        high = tuple(int(random.integers(a + 1, b + 1)) for a, b in zip(low, end, strict=True))
        inside = options["where"] = (low, high)
    function, reference = (
        (partial(noise, seed=seed), partial(box_noise, seed=seed))
        if is_noise
        else (bright, partial(cut_bright, array, offset))
    )
    segment(
        folder, function=function, chunks=chunks, halo=halo, min_overlap=least, stitch=stitch,
        min_voxels=min_voxels, skip_empty=False, one_per_block=one_per_block,
        max_voxels=max_voxels, **refused_table(folder, one_per_block, max_voxels), **options,
    )  # fmt: skip
    ids, refused = stitched(
        reference, (offset, end), inside, chunks, halo,
        least=least, stitch=stitch, mask=mask, min_voxels=min_voxels,
        one_per_block=one_per_block, max_voxels=max_voxels,
    )  # fmt: skip
    expected = np.zeros(shape, np.int64)
    expected[tuple(slice(a - o, b - o) for a, b, o in zip(*inside, offset, strict=True))] = ids
    np.testing.assert_array_equal(result(folder / "cells" / "1"), expected)
    assert_refused(folder, refused, one_per_block, max_voxels)


def refused_table(folder, one_per_block, max_voxels):
    has_guard = one_per_block or max_voxels is not None
    return {"refused": folder / "refused.csv"} if has_guard else {}


def assert_refused(folder, expected, one_per_block, max_voxels):
    if not refused_table(folder, one_per_block, max_voxels):
        return
    table = pd.read_csv(folder / "refused.csv")
    assert list(table.columns) == ["label", "other", "score", "refused_by"]
    rows = [(a, b, float(score), guard) for a, b, score, guard in expected]
    assert list(table.itertuples(index=False, name=None)) == rows


@HEAVY
@given(
    shape=vectors(1, 30),
    chunks=st.tuples(*[st.sampled_from([4, 7, 11, 30])] * 3),
    connectivity=st.sampled_from([6, 18, 26]),
    one_per_block=st.booleans(),
    max_voxels=st.sampled_from([None, 1, 100, 400]),
    seed=st.integers(0, 99),
)
def test_guards_of_touching_labels_equal_the_reference(
    tmp_path_factory, shape, chunks, connectivity, one_per_block, max_voxels, seed
):
    folder, offset = tmp_path_factory.mktemp("guards"), (5, 3, 2)
    wkwdask.create_dataset(folder, (4, 4, 4))
    wkwdask.write(folder / "color" / "1", offset, image(seed, shape), **SMALL)
    box = (offset, tuple(a + n for a, n in zip(offset, shape, strict=True)))
    segment(
        folder, function=partial(noise, seed=seed), chunks=chunks, halo=0, match="touch",
        connectivity=connectivity, one_per_block=one_per_block, max_voxels=max_voxels,
        skip_empty=False, **refused_table(folder, one_per_block, max_voxels),
    )  # fmt: skip
    expected, refused = stitched(
        partial(box_noise, seed=seed), box, box, chunks, (0, 0, 0), connectivity=connectivity,
        one_per_block=one_per_block, max_voxels=max_voxels,
    )  # fmt: skip
    np.testing.assert_array_equal(result(folder / "cells" / "1"), expected)
    assert_refused(folder, refused, one_per_block, max_voxels)


@HEAVY
@given(
    shape=vectors(1, 45),
    offset=vectors(0, 30),
    chunks=st.tuples(*[st.sampled_from([4, 7, 11, 16, 30])] * 3),
    halo=st.integers(0, 3),
    connectivity=st.sampled_from([6, 18, 26]),
    density=st.sampled_from([0.05, 0.3, 0.6]),
    seed=st.integers(0, 99),
)
def test_touching_parts_equal_scipy(
    tmp_path_factory, shape, offset, chunks, halo, connectivity, density, seed
):
    folder = tmp_path_factory.mktemp("touch")
    wkwdask.create_dataset(folder, (4, 4, 4))
    voxels = (np.random.default_rng(seed).random(shape) < density).astype(np.uint8)
    wkwdask.write(folder / "color" / "1", offset, voxels, **SMALL)
    segment(
        folder,
        function=lambda em: of_mask(em > 0, connectivity),
        chunks=chunks,
        halo=halo,
        match="touch",
        connectivity=connectivity,
    )
    assert_same_components(result(folder / "cells" / "1"), of_mask(voxels > 0, connectivity))


def test_a_section_is_segmented_for_itself(dataset):
    segment(dataset, chunks=(16, 16, 1), halo=(4, 4, 0), stitch="xy")
    found = result(dataset / "cells" / "1")
    sections = [set(np.unique(section)) - {0} for section in found.T]
    assert all(not a & b for n, a in enumerate(sections) for b in sections[:n])
    segment(
        dataset, "flat", chunks=(16, 16, 1), halo=(4, 4, 0), stitch="xy", match="touch",
        connectivity=6,
    )  # fmt: skip
    flat = np.stack([of_mask(section[..., np.newaxis] > 140, 6)[..., 0] for section in image().T])
    flat = np.where(flat > 0, flat + 1000 * np.arange(1, 31)[:, np.newaxis, np.newaxis], 0)
    assert_same_components(result(dataset / "flat" / "1"), flat.T)


def test_several_sources_channels_and_mags(dataset):
    """The function gets the sources in their order, and the box, the read box and the voxel
    size."""
    wkwdask.write(dataset / "rgb" / "1", OFFSET, np.stack([image(n) for n in (2, 3)]), **SMALL)
    for name in ("color", "rgb"):
        wkwdask.build_pyramid(dataset, name, mags=["2-2-1"])
    seen = []

    def function(em, rgb, box, read_box, voxel_size):
        assert (em.shape, rgb.shape) == (read_box.size, (2, *read_box.size))
        assert read_box.contains(box)
        assert voxel_size == (8.0, 8.0, 35.0)
        seen.append(box)
        return (em > 140) & (rgb[0] > 60)

    sources = [dataset / name / "2-2-1" for name in ("color", "rgb")]
    wkwdask.segment(function, sources, dataset / "cells" / "2-2-1", halo=4, chunks=16)
    assert len(seen) == len(set(seen)) == 2 * 2 * 3
    assert wkwdask.open_dataset(dataset)["cells"].category == "segmentation"


# ----------------------------------------------------------------------------- ids and the report


def test_report_and_table(dataset):
    report = segment(dataset, table=dataset / "cells.csv", min_voxels=4)
    found = result(dataset / "cells" / "1")
    ids, sizes = np.unique(found[found > 0], return_counts=True)
    assert ids.tolist() == list(range(1, len(ids) + 1))
    on_border = set()
    for axis in range(3):
        on_border |= set(np.take(found, [0, -1], axis).ravel().tolist())
    note = report.note.split("; ")
    assert note[0].startswith(
        f"{len(ids)} objects of {sizes.min():,} to {sizes.max():,} voxels "
        f"(median {int(np.median(sizes)):,})"
    )
    assert f"{len(on_border - {0})} cut by the box" in note[0]
    assert "s in the function" in note[1]
    layer = layer_of(dataset, "cells")
    assert (layer["category"], layer["elementClass"], layer["largestSegmentId"]) == (
        "segmentation",
        "uint32",
        len(ids),
    )
    table = pd.read_csv(dataset / "cells.csv", index_col="label")
    expected = wkwdask.label_statistics(dataset, layer="cells")
    pd.testing.assert_frame_equal(table, expected, check_dtype=False, check_index_type=False)
    assert not leftovers(dataset)


def rows_of_ones(em):
    """Every voxel of a row in x is an object."""
    return np.arange(1, em.size + 1).reshape(em.shape)


def test_too_many_objects_are_refused_before_a_voxel_is_written(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    voxels = np.ones((50, 50, 28), np.uint8)
    wkwdask.write(tmp_path / "ds" / "color" / "1", (0, 0, 0), voxels, **SMALL)
    options = {"function": rows_of_ones, "halo": 0, "chunks": 30, "match": "touch", "stitch": ""}
    with (
        logged(tmp_path / "log"),
        pytest.raises(ValueError, match="70000 objects are too many for uint16; set dtype="),
    ):
        segment(tmp_path / "ds", dtype=np.uint16, **options)
    assert not (tmp_path / "ds" / "cells" / "1").exists()
    assert not any(name.startswith("region") for name in runs(tmp_path / "log"))
    segment(tmp_path / "ds", "wide", **options)
    found = result(tmp_path / "ds" / "wide" / "1")
    assert found.dtype == np.uint32
    assert np.unique(found).tolist() == list(range(1, 70_001))
    with limited(ids_of_32_bits=69_999):
        segment(tmp_path / "ds", "wider", **options)
    assert result(tmp_path / "ds" / "wider" / "1").dtype == np.uint64
    np.testing.assert_array_equal(result(tmp_path / "ds" / "wider" / "1"), found)


def test_labels_that_are_not_connected_keep_one_id_and_are_counted(dataset):
    def two_corners(em):
        labels = np.zeros(em.shape, np.uint8)
        labels[:2, :2, :2] = labels[-2:, -2:, -2:] = 7
        return labels

    report = segment(dataset, function=two_corners, halo=1, chunks=64)
    assert "1 object" in report.note
    assert "1 further part of labels" in report.note


def test_an_empty_result_has_no_objects(dataset):
    report = segment(dataset, function=np.zeros_like)
    assert (report.files, report.note.partition(",")[0]) == (0, "0 objects")
    assert not result(dataset / "cells" / "1").any()


def test_empty_blocks_and_masked_blocks_are_not_computed(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (4, 4, 4))
    voxels = np.zeros((64, 64, 16), np.uint8)
    voxels[:20, :20] = image(2, (20, 20, 16)) | 1
    wkwdask.write(folder / "color" / "1", (0, 0, 0), voxels, **SMALL)
    wkwdask.write(folder / "mask" / "1", (0, 0, 0), voxels[:16], **SMALL)
    seen = []

    def function(em, box):
        seen.append(box.topleft)
        return bright(em)

    segment(folder, function=function)
    # two of the blocks are empty, but their halo is not
    assert sorted(seen) == [(0, 0, 0), (0, 16, 0), (16, 0, 0), (16, 16, 0)]
    seen.clear()
    segment(folder, "masked", function=function, mask=folder / "mask" / "1")
    assert sorted(seen) == [(0, 0, 0), (0, 16, 0)]
    seen.clear()
    segment(folder, "all", function=function, skip_empty=False)
    assert len(seen) == 16


def test_bool_and_signed_labels_are_accepted(dataset):
    for name, dtype in (("bool", bool), ("signed", np.int64), ("unsigned", np.uint64)):
        segment(dataset, name, lambda em, dtype=dtype: of_mask(em > 140, 26).astype(dtype))
    np.testing.assert_array_equal(
        result(dataset / "signed" / "1"), result(dataset / "unsigned" / "1")
    )
    segment(dataset, "touching", lambda em: em > 140, match="touch", chunks=64)
    assert result(dataset / "touching" / "1").max() == 1


# ----------------------------------------------------------------------------- runners and
# interruptions


GUARDS = {"one_per_block": True, "max_voxels": 300}


@pytest.mark.parametrize("match", ["overlap", "touch"])
@pytest.mark.parametrize("guards", [{}, GUARDS], ids=["", "guarded"])
def test_runners_and_regions_give_the_same_files(dataset, match, guards):
    def run(name):
        table = {"refused": dataset / f"{name}.csv"} if guards else {}
        return segment(dataset, name, match=match, **guards, **table)

    report = run("once")
    with dask.config.set(scheduler="threads", num_workers=3), regions_of(64):
        run("threads")
    with local_cluster() as cluster, cluster.get_client():
        run("cluster")
    if guards:
        table = pd.read_csv(dataset / "once.csv")
        assert len(table) > 3
        for guard, count in table["refused_by"].value_counts().items():
            pairs = "1 pair" if count == 1 else f"{count} pairs"
            assert f"{pairs} refused by {guard}" in report.note
        for name in ("threads", "cluster"):
            assert (dataset / f"{name}.csv").read_text() == (dataset / "once.csv").read_text()
    expected = stored(dataset / "once")
    assert expected
    assert stored(dataset / "threads") == expected
    assert stored(dataset / "cluster") == expected


class StopError(BaseException):
    """The end of a run."""


@pytest.mark.parametrize("max_voxels", [None, 100, 400])
@pytest.mark.parametrize("match", ["overlap", "touch"])
def test_the_best_pairs_are_joined_first(tmp_path, match, max_voxels):
    """In crowds of labels, most pairs compete with others of another score."""
    wkwdask.create_dataset(tmp_path, (4, 4, 4))
    wkwdask.write(tmp_path / "color" / "1", OFFSET, image(), **SMALL)
    options = {"one_per_block": True, "max_voxels": max_voxels}
    function, reference, halo = (
        (noise, box_noise, 0)
        if match == "touch"
        else (bright, partial(cut_bright, image(), OFFSET), 2)
    )
    segment(
        tmp_path, function=function, chunks=7, halo=halo, match=match, skip_empty=False,
        refused=tmp_path / "refused.csv", **options,
    )  # fmt: skip
    box = (OFFSET, END)
    expected, refused = stitched(
        reference, box, box, (7, 7, 7), (halo,) * 3,
        connectivity=26 if match == "touch" else None, **options,
    )  # fmt: skip
    assert len({score for _, _, score, _ in refused}) > 3
    np.testing.assert_array_equal(result(tmp_path / "cells" / "1"), expected)
    assert_refused(tmp_path, refused, **options)


@pytest.mark.parametrize("after", [1, 20, 37, 41, 60])
def test_an_interrupted_run_is_resumed(copied, tmp_path, after):
    log = tmp_path / "log"
    with pytest.raises(StopError), stopping(log, after, StopError()):
        segment(copied)
    assert not (copied / "cells" / "1").exists()
    with stopping(log, 10_000, StopError()):
        segment(copied)
    begun = [line for line in log.read_text().splitlines() if line.startswith("begin")]
    assert len(begun) == len(set(begun)) > 60
    assert stored(copied / "once") == stored(copied / "cells")
    assert not leftovers(copied)


def counting(calls, start=0):
    """Return a function that labels other voxels every time that a block is computed."""

    def function(em, box):
        calls.append(box.topleft)
        labels = bright(em)
        return np.where(labels % 5 == (start + calls.count(box.topleft)) % 5, 0, labels)

    return function


@pytest.mark.parametrize("is_journaled", [True, False])
def test_a_block_that_was_computed_is_not_computed_again(copied, tmp_path, is_journaled):
    """The first labels that were published are used, also if the journal does not know it."""
    calls = []
    segment(copied, "once", counting(calls), existing="overwrite")
    first = len(calls)
    calls.clear()
    with pytest.raises(StopError), stopping(tmp_path / "log", 20, StopError()):
        segment(copied, function=counting(calls))
    if not is_journaled:
        for journal in copied.rglob("journal-*.jsonl"):
            journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    segment(copied, function=counting(calls))
    assert len(calls) == len(set(calls)) == first
    assert stored(copied / "once") == stored(copied / "cells")


def test_a_task_that_runs_twice_uses_the_labels_that_were_published_first(dataset):
    """Both runs compute a block before either has published it, and their labels differ."""
    barrier, number = threading.Barrier(2, timeout=60), threading.local()

    def function(em):
        barrier.wait()
        return np.where(bright(em) % 2 == number.value, bright(em), 0)

    def run(task, value):
        number.value = value
        return task.run()

    def twice(task):
        if not task.key.startswith("segment"):
            return task.run()
        with ThreadPoolExecutor(2) as pool:
            return max(pool.map(run, [task, task], [0, 1]), key=id)

    with tasks_run_by(twice):
        segment(dataset, function=function, halo=0, stitch="")
    found, em = result(dataset / "cells" / "1"), image()
    winners = set()
    for _, low, high in blocks_of(OFFSET, END, (16, 16, 16)):
        part = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, OFFSET, strict=True))
        labels = bright(em[part])
        seen = found[part] > 0
        matching = [n for n in (0, 1) if ((labels > 0) & (labels % 2 == n) == seen).all()]
        assert matching, low
        winners.update(matching if len(matching) == 1 else ())
    assert winners


def test_labels_that_are_replaced_during_the_run_are_an_error(copied):
    def replace():
        path = max(copied.rglob("*.labels"), key=lambda path: path.stat().st_size)
        other = min(copied.rglob("*.labels"), key=lambda path: path.stat().st_size)
        path.write_bytes(other.read_bytes())

    with before_task(40, replace), pytest.raises(IncompleteWriteError, match="was replaced"):
        segment(copied)
    assert not (copied / "cells" / "1").exists()


def test_damaged_scratch_files_are_rebuilt(copied, tmp_path):
    with pytest.raises(StopError), stopping(tmp_path / "log", 40, StopError()):
        segment(copied)
    first, second, third = sorted(copied.rglob("*.labels"), key=lambda path: -path.stat().st_size)[
        :3
    ]
    first.write_bytes(first.read_bytes()[:-9])
    second.write_bytes(bytes([second.read_bytes()[0] ^ 1]) + second.read_bytes()[1:])
    third.unlink()
    pairs = max(copied.rglob("*.pairs"), key=lambda path: path.stat().st_size)
    pairs.write_bytes(pairs.read_bytes()[:-1])
    segment(copied)
    assert stored(copied / "once") == stored(copied / "cells")


def test_scratch_files_of_another_job_are_not_adopted(copied, tmp_path):
    """Two jobs on the same blocks and sources; the function of the first labels other voxels."""
    folders = []
    for name, start in (("others", 1), ("cells", 0)):
        with pytest.raises(StopError), stopping(tmp_path / name, 10, StopError()):
            segment(copied, name, function=counting([], start))
        folders += {path.parent for path in (copied / name).rglob("*.labels")}
    for path in folders[0].iterdir():
        shutil.copy(path, folders[1])
    segment(copied, function=counting([]))
    segment(copied, "alone", function=counting([]))
    assert stored(copied / "cells") == stored(copied / "alone")


def test_other_labels_after_ids_were_written_are_refused(copied, tmp_path):
    with pytest.raises(StopError), stopping(tmp_path / "log", 55, StopError()):
        segment(copied, function=counting([]))
    max(copied.rglob("*.labels"), key=lambda path: path.stat().st_size).unlink()
    with pytest.raises(ResumeError, match="returned other labels the second time"):
        segment(copied, function=counting([], start=1))


@pytest.mark.filterwarnings("default::wkwdask.errors.DiscardWarning")
def test_other_settings_and_data_are_not_resumed(copied, tmp_path):
    with pytest.raises(StopError), stopping(tmp_path / "log", 20, StopError()):
        segment(copied)
    for options, change in (
        ({"halo": 7}, "halo was 6,6,6, is 7,7,7"),
        ({"match": "touch"}, "match was overlap, is touch"),
        ({"token": "2"}, "token was None, is 2"),
        ({"stitch": "xy"}, "stitch was xyz, is xy"),
        ({"one_per_block": True}, "one_per_block was 0, is 1"),
        ({"max_voxels": 9}, "max_voxels was None, is 9"),
    ):
        with pytest.raises(ResumeError, match=change):
            segment(copied, **options)
    change_source(copied)
    with pytest.raises(ResumeError, match="the source has changed"):
        segment(copied)
    segment(copied, existing="restart")
    with pytest.raises(ExistsError):
        segment(copied)
    assert "nothing to do" in segment(copied, existing="resume").note


def change_source(folder):
    wkwdask.to_wkw(
        image(5)[:16, :16, :16], folder / "color" / "1", region=BoundingBox(OFFSET, (16, 16, 16))
    )


def test_a_source_that_changes_during_the_run_is_an_error(copied):
    with (
        before_task(37, partial(change_source, copied)),
        pytest.raises(IncompleteWriteError, match="was changed while it was read"),
    ):
        segment(copied)
    assert not (copied / "cells" / "1").exists()


def test_a_second_run_is_refused(copied):
    refused = []

    def meanwhile():
        with pytest.raises(LockedError):
            segment(copied)
        refused.append(True)

    with before_task(38, meanwhile):
        segment(copied)
    assert refused


# ----------------------------------------------------------------------------- a second array


def segment_both(folder, name="cells", function=with_values, **options):
    return segment(folder, name, function, extra=folder / f"{name}_values" / "1", **options)


def test_a_second_array_is_written(dataset):
    report = segment_both(dataset)
    segment(dataset, "once")
    assert stored(dataset / "cells") == stored(dataset / "once")
    values = wkwdask.read(dataset / "cells_values" / "1")
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, with_values(image())[1])
    assert "second array as float32 in 2 channels in" in report.note
    assert layer_of(dataset, "cells_values")["category"] == "color"
    assert not leftovers(dataset)


@pytest.mark.parametrize(
    "url",
    [
        "precomputed://{}/values",
        pytest.param("n5://{}/values.n5/values", marks=pytest.mark.needs("zarr")),
        pytest.param("zarr://{}/values.zarr", marks=pytest.mark.needs("zarr")),
        pytest.param("zarr://memory://second/{}/values.zarr", marks=pytest.mark.needs("zarr")),
    ],
)
def test_a_second_array_is_written_in_any_format(dataset, url):
    url = url.format(dataset)
    segment(dataset, "cells", with_values, extra=url)
    np.testing.assert_array_equal(wkwdask.read(url), with_values(image())[1])
    assert not leftovers(dataset)


def test_a_second_array_in_a_bucket_replaces_no_mag_without_a_dataset(dataset):
    calls, url = [], f"memory://{dataset}/values/1"
    segment(dataset, "cells", with_values, extra=url)
    np.testing.assert_array_equal(wkwdask.read(url), with_values(image())[1])

    def function(em):
        calls.append(em.shape)
        return with_values(em)

    with pytest.raises(UnsupportedError, match="only created"):
        segment(dataset, "others", function, extra=url)
    assert not calls


def test_a_second_array_follows_the_mask_the_box_and_empty_blocks(dataset):
    mask = image(4) > 120
    wkwdask.write(dataset / "mask" / "1", OFFSET, mask.astype(np.uint8), **SMALL)
    low, high = (20, 10, 7), (50, 40, 31)
    segment_both(
        dataset,
        function=lambda em: (np.zeros_like(em), em),  # no labels at all
        mask=dataset / "mask" / "1",
        where=(low, high),
    )
    expected = np.zeros(SHAPE, np.uint8)
    part = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, OFFSET, strict=True))
    expected[part] = np.where(mask, image(), 0)[part]
    found = wkwdask.read(dataset / "cells_values" / "1")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found[0], expected)
    assert not result(dataset / "cells" / "1").any()


@pytest.mark.parametrize("after", [1, 36, 40, 45, 55, 62, 70])
@pytest.mark.parametrize("existing", ["error", "restart"])
def test_an_interrupted_run_with_a_second_array_is_resumed(copied, tmp_path, after, existing):
    segment_both(copied, "once", existing="overwrite")
    if existing == "restart":
        segment_both(copied, function=lambda em: (em > 200, em))
    log = tmp_path / "log"
    with pytest.raises(StopError), stopping(log, after, StopError()):
        segment_both(copied, existing=existing)
    with stopping(log, 10_000, StopError()):
        segment_both(copied, existing="resume" if existing == "restart" else "error")
    calls = [line for line in log.read_text().splitlines() if line.startswith("begin segment")]
    assert len(calls) == len(set(calls)) == 36
    for name in ("", "_values"):
        assert stored(copied / f"once{name}") == stored(copied / f"cells{name}")
    assert not leftovers(copied)
    with pytest.raises(ExistsError):
        segment_both(copied)
    assert "nothing to do" in segment_both(copied, existing="resume").note


def test_a_second_array_is_not_replaced_unasked(dataset):
    segment(dataset, "cells_values")
    before = stored(dataset / "cells_values")
    with pytest.raises(ExistsError, match="cells_values"):
        segment_both(dataset)
    assert not (dataset / "cells").exists()
    assert stored(dataset / "cells_values") == before
    segment_both(dataset, existing="overwrite")
    assert wkwdask.read(dataset / "cells_values" / "1").dtype == np.float32


def test_a_second_array_is_the_same_on_every_runner(dataset):
    segment_both(dataset, "once")
    with dask.config.set(scheduler="threads", num_workers=3), regions_of(64):
        segment_both(dataset, "threads", batch=1)
    with local_cluster() as cluster, cluster.get_client():
        segment_both(dataset, "cluster")
    expected = stored(dataset / "once_values")
    assert expected
    assert stored(dataset / "threads_values") == expected
    assert stored(dataset / "cluster_values") == expected


def test_job_arrays_write_no_second_array(dataset):
    batch = Batch(("segment",), "/", "", "/")
    with submitting_to(batch), pytest.raises(UnsupportedError, match="a job array writes one mag"):
        segment_both(dataset)


def test_malformed_second_arrays_are_errors(dataset):
    for function, match in [
        (bright, "TypeError.*returned ndarray, expected a pair of labels and an array"),
        (lambda em: (bright(em), 3), "TypeError.*returned int, expected a second array"),
        (lambda em: (bright(em), em[1:]), "ValueError.*returned a second array of shape"),
    ]:
        with pytest.raises(TaskFailedError, match=f"(?s)13, 8, 5.*{match}"):
            segment_both(dataset, function=function, most_failures=0, existing="restart")

    def two_types(em, box):
        return bright(em), em.astype(np.float32 if box.topleft[0] < 20 else np.uint8)

    with pytest.raises(TypeError, match=r"second arrays of different types: .*uint8 in 1 channel"):
        segment_both(dataset, function=two_types, existing="restart")
    with pytest.raises(ValueError, match="is the target of the ids"):
        segment(dataset, extra=dataset / "cells" / "1", existing="restart")
    with pytest.raises(ValueError, match="is the source"):
        segment(dataset, extra=dataset / "color" / "1", existing="restart")
    with pytest.raises(ValueError, match="is mag 2-2-1, but the ids are written as mag 1"):
        segment(dataset, extra=dataset / "values" / "2-2-1", existing="restart")


# ----------------------------------------------------------------------------- errors of functions


def broken(em, box):
    if box.topleft[:2] == (16, 16):
        raise ZeroDivisionError("no cell here")
    return bright(em)


def test_blocks_in_which_the_function_fails_are_listed(dataset):
    with pytest.raises(TaskFailedError) as failed:
        segment(dataset, function=broken)
    text = str(failed.value)
    assert "3 tasks failed; all tasks that do not depend on them are done" in text
    assert "ZeroDivisionError: no cell here" in text
    assert "(16, 16, 16) + (16, 16, 16)" in text
    assert 'raise ZeroDivisionError("no cell here")' in text  # the user's frames
    assert "apply_job.py" not in text
    assert not (dataset / "cells" / "1").exists()


def test_blocks_in_which_the_function_fails_stay_empty_on_demand(dataset):
    report = segment(dataset, function=broken, on_error="fill")
    found = result(dataset / "cells" / "1")
    assert "3 blocks left empty, since the function failed: the first is (16, 16, 5)" in report.note
    assert "ZeroDivisionError: no cell here" in report.note
    x, y, _ = (slice(16 - o, 32 - o) for o in OFFSET)
    assert not found[x, y].any()
    assert found.any()


def test_errors_that_may_pass_are_retried(dataset):
    left = [2]

    def flaky(em):
        if left[0]:
            left[0] -= 1
            raise OSError("device busy")
        return bright(em)

    segment(dataset, function=flaky)
    segment(dataset, "other")
    assert stored(dataset / "cells") == stored(dataset / "other")


def test_malformed_labels_are_errors_that_name_the_block(dataset):
    for function, match in [
        (lambda em: em / 2, "TypeError.*returned float64, expected an array of integer labels"),
        (lambda em: 3, "TypeError.*returned int, expected an array of integer labels"),
        (lambda em: em[1:], "ValueError.*returned shape .* voxels \\(with the halo\\)"),
        (lambda em: em.astype(int) - 300, "ValueError.*returned label -[0-9]+; labels are not"),
        (lambda em: np.stack([em, em]), "ValueError.*expected labels of"),
    ]:
        with pytest.raises(TaskFailedError, match=f"(?s)13, 8, 5.*{match}"):
            segment(dataset, function=function, most_failures=0, existing="overwrite")


def test_malformed_calls_are_refused(dataset):
    source, target = dataset / "color" / "1", dataset / "cells" / "1"
    call = partial(wkwdask.segment, bright, source, target)
    for error, match, options in [
        (ValueError, 'match must be "overlap" or "touch"', {"match": "best"}),
        (ValueError, "min_overlap must be at least 0.5", {"min_overlap": 0.4}),
        (ValueError, "min_overlap must be at least 0.5 and below 1", {"min_overlap": 1.0}),
        (ValueError, "connectivity must be 6, 18 or 26", {"connectivity": 4}),
        (ValueError, 'stitch names axes, such as "xyz" or "xy", got \'xx\'', {"stitch": "xx"}),
        (TypeError, "min_overlap must be a number, got 'half'", {"min_overlap": "half"}),
        (ValueError, "min_voxels must be at least 0, got -1", {"min_voxels": -1}),
        (TypeError, "min_voxels must be a whole number, got None", {"min_voxels": None}),
        (ValueError, "max_voxels must be at least 1, got 0", {"max_voxels": 0}),
        (TypeError, "retries must be a whole number, got 'few'", {"retries": "few"}),
        (TypeError, "dtype must be a type of numpy", {"dtype": "ids"}),
        (ValueError, "refused lists pairs that", {"refused": dataset / "refused.csv"}),
        (ValueError, 'on_error must be "fail" or "fill"', {"on_error": "skip"}),
        (TypeError, "most_failures must be a whole number", {"most_failures": "few"}),
        (ValueError, r"chunks must be at least 1, got \(8, 0, 8\)", {"chunks": (8, 0, 8)}),
        (ValueError, "halo must be at least 0, got -1", {"halo": -1}),
        (ValueError, "halo is 0 along z: about the diameter", {"halo": (4, 4, 0)}),
        (TypeError, "ids are integers", {"dtype": np.float32}),
        (BoundsError, "lies outside of its box", {"where": ((500, 0, 0), (509, 9, 9))}),
        (ValueError, "a table is written as .csv or .parquet", {"table": "cells.txt"}),
    ]:
        with pytest.raises(error, match=match):
            call(**{"halo": 4, "chunks": 16, **options})
    with pytest.raises(TypeError, match="cannot be called with 2 arrays"):
        wkwdask.segment(bright, [source, source], target, halo=4)
    with pytest.raises(ValueError, match="is the source"):
        wkwdask.segment(bright, source, source, halo=4)
    assert not (dataset / "cells").exists()
    # blocks along an axis that is not stitched, or a single block, need no halo
    segment(dataset, halo=(4, 4, 0), stitch="xy")
    segment(dataset, "one", halo=0, chunks=64)


# ----------------------------------------------------------------------------- the command


def test_command(dataset, tmp_path):
    (tmp_path / "cells.py").write_text(
        "from scipy import ndimage\n"
        "def bright(em, least):\n"
        "    return ndimage.label(em > least)[0]\n"
    )
    arguments = [
        f"{tmp_path}/cells.py:bright", dataset / "color/1", dataset / "cells/1", "--halo", "6",
        "--chunks", "16,16,8", "--arg", "least=140",
    ]  # fmt: skip
    planned = run_here("segment", *arguments, "--dry-run")
    assert planned.returncode == 0, planned.output
    assert "60 blocks of 16 x 16 x 8 voxels" in " ".join(planned.stdout.split())
    assert "each read 7.66 times" in " ".join(planned.stdout.split())
    assert not (dataset / "cells").exists()
    done = run_here("segment", *arguments, "--table", tmp_path / "cells.csv", "--json")
    assert done.returncode == 0, done.output
    segment(dataset, "same", lambda em: ndimage.label(em > 140)[0], chunks=(16, 16, 8))
    np.testing.assert_array_equal(result(dataset / "cells" / "1"), result(dataset / "same" / "1"))
    assert len(pd.read_csv(tmp_path / "cells.csv")) == result(dataset / "same" / "1").max()
    assert numbered(result(dataset / "same" / "1")).max() == result(dataset / "same" / "1").max()
    guarded = run_here(
        "segment", *arguments, "--overwrite", "--one-per-block", "--max-voxels", "200",
        "--refused", tmp_path / "refused.csv", "--json",
    )  # fmt: skip
    assert guarded.returncode == 0, guarded.output
    assert "max_voxels" in pd.read_csv(tmp_path / "refused.csv")["refused_by"].tolist()
    refused = run_here("segment", "numpy:copy", dataset / "color/1", "--halo", "6")
    assert "name the sources and a target" in refused.output
