"""Verbs on a dask cluster and on a pool of processes: the same files as those of one thread."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor

import dask
import dask.array as da
import numpy as np
import pytest
from faults.drivers import imports_of, rechunks_of, regions_of
from scipy import ndimage
from support.annotations import write_annotation
from support.failing_jobs import fail_behind, fail_first
from support.inside import memory_of_tasks

import wkwdask

SHAPE = (70, 50, 60)
OPTIONS = {"block_len": 8, "file_len": 4}
LZ4 = {"block_len": 8, "file_len": 2, "compression": "lz4"}
OFFSET = (3, 0, 5)


def voxels():
    return np.random.default_rng(7).integers(0, 200, SHAPE, np.uint8)


def stored(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("x*.wkw"))
    }


# ----------------------------------------------------------------------------- verbs


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """An image, labels with a pyramid, and floats."""
    folder = tmp_path_factory.mktemp("source") / "ds"
    blobs = ndimage.gaussian_filter(
        np.random.default_rng(4).integers(0, 255, (40, 30, 25)).astype(np.float32), 1.2
    )
    labels = np.where(blobs > 120, blobs // 4, 0).astype(np.uint32)
    with dask.config.set(scheduler="synchronous"):
        wkwdask.create_dataset(folder, (4, 4, 4))
        wkwdask.write(folder / "color" / "1", OFFSET, blobs.astype(np.uint8), **LZ4)
        wkwdask.write(folder / "floats" / "1", OFFSET, blobs, category="color", **LZ4)
        wkwdask.write(folder / "seg" / "1", OFFSET, labels, category="segmentation", **LZ4)
        wkwdask.build_pyramid(folder, "seg", mags=["2"])
    return folder


def apply_function(folder):
    wkwdask.apply(
        lambda array: ndimage.gaussian_filter(array, 1),
        folder / "color" / "1",
        folder / "smooth" / "1",
        halo=4,
        chunks=16,
    )
    return wkwdask.apply(
        lambda array: array.astype(np.float64).sum(), folder / "floats" / "1", chunks=16
    )


def find_components(folder):
    wkwdask.connected_components(folder / "seg" / "1", folder / "components" / "1", min_voxels=3)


def map_ids(folder):
    np.save(folder / "map.npy", np.arange(70)[::-1])
    wkwdask.remap(folder / "seg" / "1", folder / "mapped" / "1", folder / "map.npy")
    wkwdask.remove_dust(folder / "mapped" / "1", folder / "clean" / "1", 5)
    wkwdask.renumber(
        folder / "clean" / "1", folder / "compact" / "1", dtype="uint16", mapping=folder / "ids.csv"
    )


def merge_and_move(folder):
    annotation = write_annotation(
        folder / "annotation.zip", {"1": {(1, 0, 1): np.full((16,) * 3, 9)}}, block_len=16
    )
    wkwdask.merge(folder / "seg" / "1", annotation, folder / "merged" / "1")
    wkwdask.merge(folder / "seg" / "1", annotation, folder / "encoded" / "1", block_len=16)
    wkwdask.copy(folder / "merged" / "1", folder / "moved" / "1", translate=(16, 5, 0))
    wkwdask.rechunk(folder / "moved" / "1", block_len=4)
    wkwdask.rm(folder, layer="merged")


def check_and_repair(folder):
    damaged = folder / "seg" / "1" / "z0" / "y0" / "x1.wkw"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    (folder / "seg" / "2" / "z0" / "y0" / "x0.wkw").write_bytes(b"")
    kinds = sorted(fault.kind for fault in wkwdask.verify(folder, layer="seg", pyramid=True).faults)
    verbs = [action.verb for action in wkwdask.repair(folder, layer="seg", salvage=True).actions]
    wkwdask.write_manifest(folder)
    assert wkwdask.check_manifest(folder).is_equal
    (folder / "wkwdask-manifest.txt").unlink()
    shutil.rmtree(folder / "seg" / ".wkwdask-quarantine")
    return (
        kinds,
        verbs,
        wkwdask.diff(
            folder / "seg" / "1", folder / "color" / "1", bounding_box=(*OFFSET, 9, 9, 9)
        ).equal,
    )


def count(folder):
    wkwdask.label_statistics(
        folder / "seg" / "1", folder / "floats" / "1", output=folder / "labels.csv"
    )
    np.save(folder / "histogram.npy", wkwdask.histogram(folder, layer="color", per_slice=True))


def change_mags(folder):
    wkwdask.upsample(folder, "seg", source="2", mags=["1"], existing="overwrite")
    wkwdask.to_wkw(
        np.full((9, 9, 9), 7, np.uint32), folder / "seg" / "1", region=((20, 5, 8), (29, 14, 17))
    )
    wkwdask.build_pyramid(folder, "seg", mags=["2"], existing="overwrite")
    wkwdask.to_wkw(
        np.full((9, 9, 9), 8, np.uint32), folder / "seg" / "1", region=((4, 5, 8), (13, 14, 17))
    )
    wkwdask.build_pyramid(folder, "seg", update=True)


def convert(folder):
    wkwdask.convert(folder / "color" / "1", folder / "color.npy")
    wkwdask.convert(
        folder / "color.npy", folder / "again" / "1", block_len=8, file_len=4, offset=OFFSET
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "work",
    [
        apply_function,
        find_components,
        map_ids,
        merge_and_move,
        check_and_repair,
        count,
        change_mags,
        convert,
    ],
)
def test_verbs_make_the_files_of_one_thread(source, tmp_path, client, work):
    results, files = [], []
    for scheduler in ("synchronous", client):
        folder = shutil.copytree(source, tmp_path / str(len(results)) / "ds")
        with dask.config.set(scheduler=scheduler), regions_of(16), rechunks_of(16), imports_of(8):
            results.append(work(folder))
        files.append(
            {
                path.relative_to(folder): path.read_bytes()
                for path in folder.rglob("[!.]*")
                if path.is_file() and path.suffix != ".zip"
            }
        )
        assert not list(folder.rglob(".wkwdask-job-*"))
    assert files[0] == files[1]
    assert results[0] == results[1]


# ----------------------------------------------------------------------------- arrays


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("memory", [1 << 40, 4 << 13])
def test_sections_into_a_region(tmp_path, memory):
    """With little memory they go through scratch files, which other processes read."""
    wkwdask.create(tmp_path / "1", ((0, 0, 0), (96, 64, 96)), np.uint8, **OPTIONS)
    low = (11, 2, 13)
    region = (low, tuple(a + n for a, n in zip(low, SHAPE, strict=True)))
    with memory_of_tasks(memory):
        report = wkwdask.to_wkw(
            da.from_array(voxels(), chunks=(70, 50, 1)), tmp_path / "1", region=region
        )
    assert ("scratch files" in report.note) == (memory < 1 << 20)
    with dask.config.set(scheduler="synchronous"):
        wkwdask.create(tmp_path / "one" / "1", ((0, 0, 0), (96, 64, 96)), np.uint8, **OPTIONS)
        wkwdask.write(tmp_path / "one" / "1", None, voxels(), region=region)
    assert stored(tmp_path / "1") == stored(tmp_path / "one" / "1")


@pytest.mark.usefixtures("client")
def test_a_failed_chunk_stops_no_other(tmp_path):
    """Each chunk leaves a byte where it is computed: those that are written are not computed
    again."""
    trace = tmp_path / "trace"
    trace.mkdir()
    whole = da.from_array(np.pad(voxels(), ((0, 26), (0, 14), (0, 68))), chunks=(32, 32, 32))
    array = [
        da.map_blocks(
            fail_first, whole, trace, fails, dtype=np.uint8, meta=np.empty((0, 0, 0), np.uint8)
        )
        for fails in (True, False)
    ]
    with pytest.raises(ZeroDivisionError, match="the first chunk") as caught:
        wkwdask.to_wkw(array[0], tmp_path / "ds" / "1", **OPTIONS)
    assert any(
        "all tasks that do not depend on them are done" in note for note in caught.value.__notes__
    )
    assert caught.value.exit_code == 3
    assert not (tmp_path / "ds" / "1").exists()
    assert len(list(trace.iterdir())) == 3 * 2 * 4 - 1
    wkwdask.to_wkw(array[1], tmp_path / "ds" / "1", existing="resume", **OPTIONS)
    assert all(path.stat().st_size == 1 for path in trace.iterdir())
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds" / "1", ((0, 0, 0), SHAPE))[0], voxels()
    )


@pytest.mark.long
@pytest.mark.parametrize("runner", ["processes", "cluster"])
def test_a_failed_write_is_resumed(tmp_path, runner, request):
    whole = da.from_array(np.pad(voxels(), ((0, 26), (0, 14), (0, 68))), chunks=(32, 32, 32))
    array = [
        da.map_blocks(fail_behind, whole, limit, dtype=np.uint8, meta=np.empty((0, 0, 0), np.uint8))
        for limit in (96, None)
    ]
    with contextlib.ExitStack() as stack:
        if runner == "cluster":
            request.getfixturevalue("client")
        else:
            # dask would start one for each computation
            pool = stack.enter_context(ProcessPoolExecutor(2, multiprocessing.get_context("spawn")))
            stack.enter_context(dask.config.set(scheduler="processes", pool=pool, num_workers=2))
        with pytest.raises(OverflowError):
            wkwdask.to_wkw(array[0], tmp_path / "1", **OPTIONS)
        assert not (tmp_path / "1").exists()
        report = wkwdask.to_wkw(array[1], tmp_path / "1", existing="resume", **OPTIONS)
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "1", ((0, 0, 0), SHAPE))[0], voxels())
    assert report.files == 3 * 2 * 2
