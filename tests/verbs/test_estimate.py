"""Estimates of plan_pyramid against the files and tasks of the same call of build_pyramid."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from faults.drivers import tasks_run_by
from hypothesis import given, settings
from hypothesis import strategies as st
from support.inside import limited
from support.strategies import vectors

import wkwdask
from wkwdask.errors import SpaceWarning, TruncatedError

OPTIONS = {"block_len": 4, "file_len": 4, "compression": "lz4"}


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


def make_dataset(folder, array, offset=(0, 0, 0), **options):
    wkwdask.create_dataset(folder, (8, 8, 8))
    wkwdask.write(folder / "color" / "1", offset, array, **{**OPTIONS, **options})
    return folder


def tree(folder):
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns for path in Path(folder).rglob("*")
    }


@contextlib.contextmanager
def counted():
    """Count the tasks that run: regions and joins."""
    kinds = Counter()

    def count(task):
        kinds[task.key.startswith("region ")] += 1
        return task.run()

    with tasks_run_by(count):
        yield kinds


def build_and_compare(folder, *, exact, **options):
    """Plan and build a pyramid, compare files and tasks, and return the plan and the report."""
    before = tree(folder)
    plan = wkwdask.plan_pyramid(folder, **options)
    assert tree(folder) == before
    with counted() as kinds:
        report = wkwdask.build_pyramid(folder, **options)
    assert [mag.folder for mag in plan.mags] == [mag.path for mag in report.mags]
    files = {mag.folder: len(list(Path(mag.folder).rglob("x*.wkw"))) for mag in plan.mags}
    for planned in plan.mags:
        assert files[planned.folder] <= planned.files
        assert files[planned.folder] == planned.files or not exact
    regions, joins = sum(one.regions for one in plan.passes), sum(one.joins for one in plan.passes)
    assert (plan.tasks, plan.files) == (regions + joins, sum(mag.files for mag in plan.mags))
    assert kinds[True] <= regions
    assert kinds[False] <= joins
    assert kinds.total() == plan.tasks or not exact
    return plan, report


@pytest.mark.parametrize(
    ("region_vx", "options"),
    [
        (8, {"coarsest": 4}),
        (512, {"coarsest": 4}),
        (32, {"mags": ["2-2-1", "8-8-4"]}),
        (8, {"mags": [2, 4, 8, 16, 32], "file_len": 2}),
        (32, {"mags": [8], "block_len": 2}),
    ],
)
def test_estimate_is_exact_for_dense_data(tmp_path, region_vx, options):
    array = np.random.default_rng(1).integers(1, 250, (70, 41, 50), dtype=np.uint8)
    folder = make_dataset(tmp_path / "ds", array, (13, 7, 0))
    with limited(region_vx=region_vx):
        plan, report = build_and_compare(folder, exact=True, method="max", **options)
    assert sum(len(one.makes) for one in plan.passes) == len(plan.mags) > 0
    assert [one.reads for one in plan.passes] == ["1", *(one.makes[-1] for one in plan.passes[:-1])]
    assert (plan.files_in, plan.nbytes_in) == _stored(folder / "color" / "1")
    assert plan.voxel_nbytes_in == report.nbytes_in == array.size
    assert plan.seconds > 0


@settings(max_examples=max(1, settings.default.max_examples // 2))
@given(st.data())
def test_estimate_is_an_upper_bound_for_sparse_data(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("sparse") / "ds"
    size, offset = data.draw(vectors(1, 50)), data.draw(vectors(0, 40))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    array = random.integers(0, 3, size, dtype=np.uint8)
    array[random.random(size) < 0.5] = 0
    for axis in range(3):
        if data.draw(st.booleans()):
            array[
                tuple(
                    slice(None, n // 2 + 1) if k == axis else slice(None)
                    for k, n in enumerate(size)
                )
            ] = 0
    array[-1, -1, -1] = 1
    make_dataset(folder, array, offset)
    with limited(region_vx=data.draw(st.sampled_from([8, 32]))):
        plan, report = build_and_compare(
            folder,
            exact=False,
            method="min",
            mags=data.draw(st.sampled_from([[2, 4], ["2-2-1", "8-8-2", "16-16-16", 32]])),
        )
    assert (plan.files_in, plan.nbytes_in) == _stored(folder / "color" / "1")
    assert plan.voxel_nbytes_in <= report.nbytes_in


def _stored(folder):
    sizes = [path.stat().st_size for path in folder.rglob("x*.wkw")]
    return len(sizes), sum(sizes)


def test_absent_files_are_not_counted(tmp_path):
    array = np.zeros((128, 64, 64), np.uint8)
    array[100, 1, 1] = 1
    plan = wkwdask.plan_pyramid(
        make_dataset(tmp_path / "ds", array), mags=[2], block_len=4, file_len=2
    )
    # a region of the finest mag is the box; mag 2 of it has this many files of 8
    assert (plan.files_in, plan.files) == (1, 8 * 4 * 4)
    with limited(region_vx=8):
        plan = wkwdask.plan_pyramid(tmp_path / "ds", mags=[2], block_len=4, file_len=2)
    assert (plan.files_in, plan.files, plan.passes[0].regions, plan.voxel_nbytes_in) == (
        1,
        1,
        1,
        16**3,
    )


def test_estimate_of_many_files_samples_some(tmp_path):
    array = np.random.default_rng(1).integers(1, 250, (64, 64, 64), dtype=np.uint8)
    folder = make_dataset(tmp_path / "ds", array)
    with limited(sampled_files=5):
        plan = wkwdask.plan_pyramid(folder, mags=[2])
    files, nbytes = _stored(folder / "color" / "1")
    assert plan.files_in == files == 64
    assert plan.nbytes_in == pytest.approx(nbytes, rel=0.1)


def test_estimate_of_a_single_voxel(tmp_path):
    array = np.zeros((64, 64, 64), np.uint8)
    array[63, 0, 5] = 1
    plan, _ = build_and_compare(make_dataset(tmp_path / "ds", array), exact=False, mags=[2, 4])
    assert plan.files >= 2


def test_plan_without_mags(tmp_path):
    folder = make_dataset(tmp_path / "ds", np.ones((9, 9, 9), np.uint8))
    plan = wkwdask.plan_pyramid(folder, coarsest=1)
    assert (plan.passes, plan.mags, plan.tasks, plan.files, plan.nbytes_out, plan.files_in) == (
        (),
        (),
        0,
        0,
        0,
        1,
    )
    assert str(plan)


def test_plan_notes_existing_mags(tmp_path):
    folder = make_dataset(tmp_path / "ds", np.ones((1, 32, 32, 32), np.uint8))
    wkwdask.build_pyramid(folder, "color", coarsest=2)
    plan = wkwdask.plan_pyramid(folder, "color", coarsest=2)
    assert "would be refused" in str(plan)
    assert "already exists" in str(plan)


def test_plan_of_an_interrupted_pyramid_keeps_its_regions(tmp_path):
    with limited(region_vx=32, smallest_region_vx=8, small_task_nbytes=0):
        folder = make_dataset(
            tmp_path / "ds",
            np.random.default_rng(1).integers(1, 250, (128, 64, 64), dtype=np.uint8),
        )
        path = folder / "color" / "1" / "z3" / "y3" / "x7.wkw"
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(TruncatedError) as caught:
            wkwdask.build_pyramid(folder, mags=[2])
        assert any("finished work is kept" in note for note in caught.value.__notes__)
        path.write_bytes(whole)
        with dask.config.set(scheduler="processes", num_workers=1000):
            again, fresh = (
                wkwdask.plan_pyramid(folder, mags=[2], existing=existing)
                for existing in ("overwrite", "restart")
            )
    assert again.passes[0].region_shape == (64,) * 3
    assert fresh.passes[0].region_shape == (16,) * 3
    assert (again.workers, fresh.workers) == (1000, 1000)


# ----------------------------------------------------------------------------- space


def fake_disk(monkeypatch, **values):
    """Simulate a file system with few free bytes and files."""
    free = SimpleNamespace(
        **{"f_bavail": 10, "f_frsize": 100, "f_files": 50, "f_favail": 5, **values}
    )
    monkeypatch.setattr(os, "statvfs", lambda folder: free)


def test_plan_notes_too_little_space(tmp_path, monkeypatch):
    folder = make_dataset(
        tmp_path / "ds", np.random.default_rng(1).integers(1, 250, (64, 64, 64), dtype=np.uint8)
    )
    assert wkwdask.plan_pyramid(folder, mags=[2]).notes == ()
    fake_disk(monkeypatch)
    plan = wkwdask.plan_pyramid(folder, mags=[2])
    assert len(plan.notes) == 2
    assert str(plan).endswith("\n".join(plan.notes))
    assert str(folder / "color") in plan.notes[0]


def test_a_pyramid_that_is_forced_warns_of_too_little_space_and_continues(tmp_path, monkeypatch):
    folder = make_dataset(
        tmp_path / "ds", np.random.default_rng(1).integers(1, 250, (64, 64, 64), dtype=np.uint8)
    )
    fake_disk(monkeypatch, f_favail=1000)
    with pytest.warns(SpaceWarning, match="will be written, 1.0 kB are free") as caught:
        report = wkwdask.build_pyramid(folder, mags=[2], force_space=True)
    assert Path(caught[0].filename) == Path(__file__)  # the user's own line
    assert report.files == 8


# ----------------------------------------------------------------------------- text


def test_text(tmp_path):
    array = np.random.default_rng(1).integers(1, 250, (70, 41, 50), dtype=np.uint16)
    plan = wkwdask.plan_pyramid(
        make_dataset(tmp_path / "ds", array), mags=[2, 4], compression="lz4hc", level=9
    )
    lines = str(plan).splitlines()
    layer = tmp_path / "ds" / "color"
    assert lines[0] == (
        f"pyramid of {layer}/1, by median, stored as lz4hc level 9, blocks of 4^3 and files of "
        "16^3 voxels"
    )
    assert lines[1].startswith("  mag 1 -> 2, 4: 1 region of 1024 x 1024 x 1024 voxels")
    assert [line.split(":")[0] for line in lines[2:4]] == [f"  {layer}/2", f"  {layer}/4"]
    assert [line.split()[0] for line in lines[4:]] == ["reads", "writes", "space", "memory", "time"]
    assert f"reads    {plan.files_in} files" in lines[4]
    assert "on 1 worker" in lines[-1]
    ignoring = wkwdask.plan_pyramid(tmp_path / "ds", mags=[2], ignore_zero=True)
    assert "by median ignoring zeros, stored as lz4, blocks of 4^3" in str(ignoring)


# ----------------------------------------------------------------------------- real data


def check_nbytes(folder, plan, report):
    """Compare the bytes of each mag, within a factor of two."""
    assert plan.files_in == len(list(Path(plan.source).rglob("x*.wkw")))
    for planned, built in zip(plan.mags, report.mags, strict=True):
        assert built.nbytes / 2 <= planned.nbytes <= built.nbytes * 2, (
            f"{planned.folder}: estimated {planned.nbytes}, took {built.nbytes}"
        )
        assert built.files <= planned.files


@pytest.fixture(scope="module")
def real(shared_data, tmp_path_factory):
    """Writable copies of the real data."""
    folder = tmp_path_factory.mktemp("real")
    for name in ("l4_sample", "connectomics_seg"):
        shutil.copytree(shared_data / name, folder / (name if name == "l4_sample" else f"{name}/1"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    ("layer", "options"),
    [
        ("l4_sample/segmentation", {"coarsest": "8-8-4", "existing": "overwrite"}),
        ("l4_sample/color", {"coarsest": "16-16-8", "existing": "overwrite"}),
        ("connectomics_seg", {"coarsest": 4, "method": "mode"}),
        (
            "connectomics_seg",
            {
                "mags": [8],
                "method": "mode",
                "block_len": 64,
                "file_len": 1,
                "existing": "overwrite",
            },
        ),
    ],
)
def test_bytes_of_real_data(real, layer, options):
    with dask.config.set(scheduler="threads", num_workers=2):
        plan = wkwdask.plan_pyramid(real / layer, **options)
        check_nbytes(real / layer, plan, wkwdask.build_pyramid(real / layer, **options))


@pytest.mark.long
def test_bytes_of_an_image(shared_data, tmp_path):
    subprocess.run(
        [sys.executable, shared_data / "make_em.py", "256", tmp_path / "em.npy"],
        check=True,
        capture_output=True,
    )
    folder = make_dataset(
        tmp_path / "ds",
        np.load(tmp_path / "em.npy"),
        (100, 37, 11),
        block_len=32,
        file_len=4,
        compression="lz4hc",
    )
    for method in ("median", "mean"):
        options = {"mags": ["2-2-1", "4-4-2"], "method": method, "existing": "overwrite"}
        plan = wkwdask.plan_pyramid(folder, **options)
        check_nbytes(folder, plan, wkwdask.build_pyramid(folder, **options))
