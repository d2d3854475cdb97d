"""A job that very probably does not fit on its disk ends before any work, in every verb that writes
levels or files."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner
from faults.drivers import regions_of, stopping
from faults.trees import contents, leftovers
from support.commands import COMMAND
from support.inside import limited

import wkwdask
from wkwdask.errors import SpaceError, SpaceWarning

SHAPE = (64, 64, 64)
NOISE = np.random.default_rng(1).integers(1, 1 << 32, SHAPE, np.uint32)
RAW = {"block_len": 8, "file_len": 2, "compression": "raw"}
FOREIGN = {"voxel_size": (4, 4, 4), "chunk_shape": (16, 16, 16)}


def add(ids):
    return ids + np.uint32(1)


VERBS = {
    "copy": lambda ds, **force: wkwdask.copy(ds / "seg", ds / "new", **force),
    "copy of a box": lambda ds, **force: wkwdask.copy(
        ds / "seg", ds / "new", bounding_box=(3, 3, 3, 60, 60, 60), **force
    ),
    "convert": lambda ds, **force: wkwdask.convert(
        ds / "seg" / "1", f"zarr://{ds}/em.zarr", **FOREIGN, **force
    ),
    "import": lambda ds, **force: wkwdask.convert(
        ds.parent / "stack.npy", ds / "new" / "1", axes="xyz", **RAW, **force
    ),
    "export": lambda ds, **force: wkwdask.convert(ds / "seg" / "1", ds / "sections", **force),
    "export npy": lambda ds, **force: wkwdask.convert(ds / "seg" / "1", ds / "stack.npy", **force),
    "rechunk": lambda ds, **force: wkwdask.rechunk(ds / "seg" / "1", file_len=4, **force),
    "rechunk blocks": lambda ds, **force: wkwdask.rechunk(
        ds / "seg" / "1", ds / "new" / "1", block_len=16, **force
    ),
    "compress": lambda ds, **force: wkwdask.compress(ds / "seg" / "1", compression="lz4", **force),
    "apply": lambda ds, **force: wkwdask.apply(add, ds / "seg" / "1", ds / "new" / "1", **force),
    "remap": lambda ds, **force: wkwdask.remap(ds / "seg" / "1", ds / "new" / "1", {1: 2}, **force),
    "pyramid": lambda ds, **force: wkwdask.build_pyramid(ds, "seg", method="mode", **force),
    "upsample": lambda ds, **force: wkwdask.upsample(ds, "coarse", **force),
    "save": lambda ds, **force: wkwdask.save(NOISE, ds / "new" / "1", **RAW, **force),
    "save zarr": lambda ds, **force: wkwdask.save(
        NOISE, f"zarr://{ds}/em.zarr", **FOREIGN, **force
    ),
    "save dask": lambda ds, **force: wkwdask.save(
        da.from_array(NOISE, chunks=32), ds / "new" / "1", **RAW, **force
    ),
}
NEEDS = {"convert": "zarr", "save zarr": "zarr", "export": "tifffile"}


def marked(verb):
    return pytest.param(verb, marks=[pytest.mark.needs(NEEDS[verb])] if verb in NEEDS else [])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    np.save(folder / "stack.npy", NOISE)
    wkwdask.create_dataset(folder / "ds", voxel_size=(4, 4, 4))
    wkwdask.save(NOISE, folder / "ds" / "seg" / "1", **RAW)
    wkwdask.save(NOISE, folder / "ds" / "coarse" / "2", **RAW)
    return folder


@pytest.fixture
def ds(source, tmp_path):
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    return tmp_path / "ds"


def fake_disk(monkeypatch, nbytes, num_files=1 << 30):
    """Let every file system have so many bytes and files free."""
    free = SimpleNamespace(f_bavail=nbytes, f_frsize=1, f_files=1 << 31, f_favail=num_files)
    monkeypatch.setattr(os, "statvfs", lambda folder: free)


@pytest.mark.parametrize("verb", [marked(verb) for verb in VERBS])
def test_a_job_that_cannot_fit_ends_before_any_work(ds, monkeypatch, verb):
    before = contents(ds)
    fake_disk(monkeypatch, 50_000)
    with pytest.raises(
        SpaceError,
        match=(
            rf"^{ds}.*: about [\d.]+ [kM]B will be written, "
            r"50.0 kB are free; .*force_space=True$"
        ),
    ):
        VERBS[verb](ds)
    assert contents(ds) == before
    assert leftovers(ds) == []
    with pytest.warns(SpaceWarning, match=r"50\.0 kB are free$") as caught:
        VERBS[verb](ds, force_space=True)
    assert caught[0].filename == __file__
    assert contents(ds) != before


@pytest.mark.parametrize("verb", [marked(verb) for verb in VERBS])
def test_a_job_that_fits_says_nothing(ds, monkeypatch, verb):
    fake_disk(monkeypatch, 30 << 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpaceWarning)
        VERBS[verb](ds)


@pytest.mark.needs("zarr")
def test_data_that_compress_well_are_not_refused(tmp_path, monkeypatch):
    """One million voxels of four bytes, which take a few kilobytes."""
    ids = np.zeros((100, 100, 100), np.uint32)
    ids[50:] = 7
    wkwdask.create_dataset(tmp_path / "ds", voxel_size=(4, 4, 4))
    wkwdask.save(ids, tmp_path / "ds" / "seg" / "1")
    fake_disk(monkeypatch, 1_000_000)
    for verb in ("copy", "convert", "compress", "apply", "remap", "pyramid"):
        VERBS[verb](shutil.copytree(tmp_path / "ds", tmp_path / verb))


def test_between_half_of_the_estimate_and_all_of_it_there_is_a_warning(ds, monkeypatch):
    fake_disk(monkeypatch, 700_000)
    with pytest.warns(SpaceWarning, match=r"about 1\.\d MB will be written, 700\.0 kB are free"):
        VERBS["apply"](ds)


def test_levels_of_one_call_are_added_up(ds, monkeypatch):
    wkwdask.build_pyramid(ds, "seg", mags=[2], method="mode")
    fake_disk(monkeypatch, 1_100_000)  # the first level has a megabyte, the second an eighth
    with pytest.raises(SpaceError):
        wkwdask.copy(ds / "seg", ds / "new")
    assert not (ds / "new").exists()


def test_what_an_interrupted_job_wrote_is_counted(ds, monkeypatch):
    with dask.config.set(scheduler="synchronous"), regions_of(16):
        with stopping(ds.parent / "log", 20, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            wkwdask.apply(add, ds / "seg" / "1", ds / "new" / "1", chunks=16)
        fake_disk(monkeypatch, 400_000)
        with pytest.raises(SpaceError):
            wkwdask.apply(add, ds / "seg" / "1", ds / "other" / "1", chunks=16)
        with pytest.warns(SpaceWarning):
            wkwdask.apply(add, ds / "seg" / "1", ds / "new" / "1", chunks=16)
    np.testing.assert_array_equal(wkwdask.read(ds / "new" / "1")[0], add(NOISE))


def test_a_region_and_a_finished_job_need_no_space(ds, monkeypatch):
    wkwdask.copy(ds / "seg", ds / "new")
    fake_disk(monkeypatch, 10)
    wkwdask.copy(ds / "seg", ds / "new", existing="resume")
    wkwdask.save(NOISE[:16, :16, :16], ds / "seg" / "1", region=((0, 0, 0), (16, 16, 16)))


def test_files_are_counted_too(ds, monkeypatch):
    fake_disk(monkeypatch, 1 << 30, 5)
    with pytest.warns(SpaceWarning, match=r"up to \d+ files will be written, 5 more are possible"):
        VERBS["copy"](ds)


def label_all(voxels):
    return np.ones(voxels.shape, np.uint32)


@pytest.mark.parametrize(
    "find",
    [
        lambda *urls: wkwdask.connected_components(*urls, **RAW),
        lambda *urls: wkwdask.segment(label_all, *urls, halo=1, chunks=16, **RAW),
        lambda *urls: wkwdask.remap(*urls, {1: 2}, **RAW),
    ],
)
def test_ids_of_a_sparse_volume_are_counted_where_it_has_data(tmp_path, monkeypatch, find):
    """Two files of 16^3 voxels in a box of 128^3, which is one region."""
    wkwdask.create_dataset(tmp_path / "ds", voxel_size=(4, 4, 4))
    source, target = tmp_path / "ds" / "seg" / "1", tmp_path / "ds" / "ids" / "1"
    wkwdask.create(source, ((0, 0, 0), (128, 128, 128)), np.uint32, **RAW)
    for low, high in ((0, 16), (112, 128)):
        wkwdask.save(NOISE[:16, :16, :16], source, region=((low,) * 3, (high,) * 3))
    fake_disk(monkeypatch, 2_000_000)
    with warnings.catch_warnings(), limited(components_nbytes=16**3 * 8):
        warnings.simplefilter("error", SpaceWarning)
        find(source, target)
    assert wkwdask.read(target).any()


@pytest.mark.needs("zarr")
def test_the_command_has_the_option_and_the_plan_both_numbers(ds, monkeypatch):
    fake_disk(monkeypatch, 50_000)
    for command in (
        ["copy", f"{ds}/seg", f"{ds}/new"],
        ["pyramid", f"{ds}/seg", "--method", "mode"],
        ["compress", f"{ds}/seg/1", "--compression", "lz4"],
    ):
        refused = CliRunner().invoke(COMMAND, command)
        assert "force_space=True" in str(refused.exception)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpaceWarning)
            assert CliRunner().invoke(COMMAND, [*command, "--force-space"]).exit_code == 0
    for command in (
        ["pyramid", f"{ds}/seg", "--method", "mode", "--dry-run", "--overwrite"],
        ["convert", f"{ds}/seg/1", f"zarr://{ds}/em.zarr", "--dry-run"],
    ):
        assert "needed, 50.0 kB free" in CliRunner().invoke(COMMAND, command).output


@pytest.mark.long
@pytest.mark.parametrize(
    "verb",
    [
        marked(verb)
        for verb in ("copy", "convert", "rechunk blocks", "apply", "compress", "pyramid", "save")
    ],
)
def test_a_real_small_disk(source, tmp_path, verb):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        ds = shutil.copytree(source / "ds", disk / "ds")
        before = contents(ds)
        (disk / "filler").write_bytes(
            bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - 60_000)
        )
        with pytest.raises(SpaceError, match=f"{ds}.* kB are free"):
            VERBS[verb](ds)
        assert contents(ds) == before
        assert leftovers(ds) == []
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
