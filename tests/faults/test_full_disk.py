"""A disk that is full: the error says so, nothing half-written is seen, the old data is there, and
with more room the same call completes."""

from __future__ import annotations

import errno
import os
import subprocess

import dask
import dask.array as da
import numpy as np
import pytest
from faults.drivers import imports_of, rechunks_of, regions_of
from faults.trees import contents, differences, leftovers, make_dataset

import wkwdask
from wkwdask import Sharding

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore::wkwdask.errors.SpaceWarning")]

SHAPE = (128, 128, 96)
OPTIONS = {"block_len": 8, "file_len": 4, "compression": "raw"}
SOURCE_NBYTES = 4 * 128 * 128 * 96
PRECOMPUTED = {
    "force_space": True,
    "chunk_shape": (16, 16, 16),
    "encoding": "raw",
    "voxel_size": (4, 4, 40),
    "existing": "resume",
}
REGION = ((3, 5, 7), (125, 128, 90))


def voxels(seed=1, shape=SHAPE):
    """Noise that does not get smaller by compression."""
    return np.random.default_rng(seed).integers(0, 1 << 32, shape, np.uint32)


def compress(folder):
    with rechunks_of(32):
        wkwdask.compress(folder / "seg" / "1", compression="lz4", force_space=True)


def cut_files(folder):
    with rechunks_of(32):
        wkwdask.rechunk(folder / "seg" / "1", file_len=2, force_space=True)


def to_larger_blocks_elsewhere(folder):
    with rechunks_of(32):
        wkwdask.rechunk(folder / "seg" / "1", folder / "copy" / "1", block_len=16, force_space=True)


def copy_whole(folder):
    with rechunks_of(32):
        wkwdask.copy(folder / "seg", folder / "same", force_space=True)


def convert_to_zarr(folder):
    with rechunks_of(32):
        wkwdask.convert(
            folder / "seg" / "1", f"zarr://{folder}/em.zarr", voxel_size=(4, 4, 4), force_space=True
        )


def write_region(folder):
    """Raw files are replaced one by one, which takes room for one; the parts of all of them take
    more."""
    new = voxels(2, [b - a for a, b in zip(*REGION, strict=True)])
    wkwdask.to_wkw(da.from_array(new, chunks=(61, 61, 9)), folder / "seg" / "1", region=REGION)


def write_more(folder):
    wkwdask.to_wkw(
        da.from_array(voxels(3), chunks=(61, 61, 9)),
        folder / "more" / "1",
        existing="resume",
        force_space=True,
        **OPTIONS,
    )


def invert(folder):
    with regions_of(32):
        wkwdask.apply(np.invert, folder / "seg" / "1", folder / "inverse" / "1", force_space=True)


def import_array(folder):
    """An array of another format, which lies on another disk."""
    source = folder.parent.parent / "source.npy"
    if not source.exists():
        np.save(source, voxels(4).T)
    with imports_of(32):
        wkwdask.convert(source, folder / "imported" / "1", force_space=True, **OPTIONS)


def write_shards(folder):
    """One file per shard, joined of parts."""
    sharding = Sharding(preshift_bits=2, minishard_bits=1, shard_bits=6)
    wkwdask.to_precomputed(
        da.from_array(voxels(5), chunks=(61, 61, 9)),
        folder / "volume",
        shard_shape=sharding,
        **PRECOMPUTED,
    )


def write_chunks(folder):
    """One file per chunk."""
    wkwdask.to_precomputed(
        da.from_array(voxels(5), chunks=(61, 61, 9)), folder / "volume", **PRECOMPUTED
    )


JOBS = [
    import_array,
    copy_whole,
    convert_to_zarr,
    compress,
    cut_files,
    to_larger_blocks_elsewhere,
    write_region,
    write_more,
    invert,
    write_shards,
    write_chunks,
]


def mount(folder, *options):
    return (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)],
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )


@pytest.fixture
def small_disk(tmp_path):
    """A file system with little more room than the source takes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mount(folder, f"size={SOURCE_NBYTES + (2 << 20)}"):
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        # files that were read are kept open for a while
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def start(folder):
    make_dataset(folder, (4, 4, 4))
    wkwdask.to_wkw(voxels(), folder / "seg" / "1", **OPTIONS)


@pytest.mark.long
@pytest.mark.parametrize(
    ("scheduler", "job"), [*(("threads", job) for job in JOBS), ("synchronous", write_region)]
)
def test_a_full_disk(tmp_path, small_disk, job, scheduler):
    undisturbed = tmp_path / "undisturbed"
    with dask.config.set(scheduler=scheduler):
        for folder in (undisturbed, small_disk / "ds"):
            start(folder)
        before = contents(undisturbed)
        job(undisturbed)
        after = contents(undisturbed)
        room = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        if job is write_region:  # its parts need little room at a time
            (small_disk / "filler").write_bytes(bytes(room - (200 << 10)))
        with pytest.raises(OSError) as failed:  # noqa: PT011  the code is looked at
            job(small_disk / "ds")
        assert failed.value.errno == errno.ENOSPC
        assert str(small_disk) in str(failed.value)
        seen = contents(small_disk / "ds")
        if job is write_region:
            assert all(
                seen.get(name) in (before.get(name), after.get(name)) for name in {**before, **seen}
            )
        else:
            assert differences(seen, before) == []
        (small_disk / "filler").unlink(missing_ok=True)
        assert mount(small_disk, "remount", "size=64m")
        job(small_disk / "ds")
    assert differences(contents(small_disk / "ds"), after) == []
    assert leftovers(small_disk / "ds") == []
