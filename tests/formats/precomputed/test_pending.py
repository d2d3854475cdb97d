"""Scales that are replaced by others of another layout: until ``info`` switches, readers see the
old one."""

from __future__ import annotations

import os

import numpy as np
import pytest
from support.inside import without_exchange

import wkwdask
from wkwdask.errors import ReplacedError

VOXELS = np.random.default_rng(0).integers(1, 99, (40, 30, 20)).astype(np.uint8)
BETWEEN = "is being replaced; open it in a moment"


class _Killed(BaseException):
    """The end of a process."""


def write(folder):
    wkwdask.to_precomputed(VOXELS, folder, voxel_size=(4, 4, 40), chunk_shape=(10, 10, 10))
    return folder


def die_at(patch, name):
    """Die before a file or folder of this name gets its place."""

    def stopping(before):
        def rename(source, target, **options):
            if str(target).endswith(f"/{name}"):
                raise _Killed
            return before(source, target, **options)

        return rename

    for function in ("rename", "replace"):
        patch.setattr(os, function, stopping(getattr(os, function)))


def into_shards(folder):
    wkwdask.rechunk(folder, shard_shape=True)


def other_chunks(folder):
    wkwdask.rechunk(folder, chunk_shape=(16, 16, 16))


def elsewhere(folder):
    wkwdask.to_precomputed(
        VOXELS, folder, chunk_shape=(10, 10, 10), offset=(5, 0, 0), existing="overwrite"
    )


@pytest.fixture(params=[into_shards, other_chunks, elsewhere])
def left(request, tmp_path, monkeypatch):
    """A volume whose scale was replaced by a job that was killed before ``info`` said so; and that
    job."""
    write(tmp_path / "v")
    with monkeypatch.context() as patch:
        die_at(patch, "info")
        with pytest.raises(_Killed):
            request.param(tmp_path / "v")
    return tmp_path / "v", request.param


def test_the_old_one_is_read(left):
    folder, job = left
    np.testing.assert_array_equal(wkwdask.read(folder)[0], VOXELS)
    np.testing.assert_array_equal(wkwdask.open(folder).compute()[0], VOXELS)
    assert wkwdask.verify(folder).is_sound
    job(folder)
    np.testing.assert_array_equal(wkwdask.read(folder)[0], VOXELS)
    assert wkwdask.verify(folder).is_sound


def test_another_job_ends_it(left):
    folder, _ = left
    wkwdask.build_pyramid(folder, mags=["2-2-1"], method="nearest")
    np.testing.assert_array_equal(wkwdask.read(folder, mag="1")[0], VOXELS)
    assert wkwdask.read(folder, mag="2-2-1").all()  # made of the new voxels, all above zero


def test_between_two_renames(tmp_path, monkeypatch):
    write(tmp_path / "v")
    with without_exchange():
        with monkeypatch.context() as patch:
            die_at(patch, "4_4_40")
            with pytest.raises(_Killed):
                wkwdask.to_precomputed(
                    VOXELS[::-1], tmp_path / "v", chunk_shape=(10, 10, 10), existing="overwrite"
                )
        assert not (tmp_path / "v" / "4_4_40").exists()
        with pytest.raises(ReplacedError, match=BETWEEN):
            wkwdask.read(tmp_path / "v")
        wkwdask.build_pyramid(tmp_path / "v", mags=["2-2-1"], method="nearest")
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "v", mag="1")[0], VOXELS[::-1])
