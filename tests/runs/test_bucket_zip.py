"""Zipped images that are built on this machine and stored as one new object of a bucket."""

from __future__ import annotations

import errno
import io
import os
import tempfile
import zipfile

import numpy as np
import pytest
from support.bucket_faults import URL, faulty_bucket
from support.commands import run_here

import wkwdask
from wkwdask.errors import ExistsError, UnsupportedError
from wkwdask.store import by_path
from wkwdask.store.objects import memory_bucket, object_store
from wkwdask.store.store import store_at

pytestmark = pytest.mark.needs("zarr")
SOURCE, TARGET = f"precomputed://{URL}/v", f"{URL}/em.ozx"
VOXELS = np.random.default_rng(1).integers(1, 255, (1, 20, 18, 12), np.uint8)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def bucket(scratch):
    with faulty_bucket() as bucket:
        wkwdask.save(VOXELS, SOURCE, voxel_size=(4, 4, 8))
        bucket.requests = []
        yield bucket


def stored():
    return store_at(URL).read_whole(["em.ozx"], 1 << 24)[0]


def pack(**options):
    return wkwdask.convert(SOURCE, TARGET, **options)


def test_one_object_with_the_whole_image(bucket, scratch):
    report = pack()
    assert [mag.path for mag in report.mags] == [f"{TARGET}|zip:/1"]
    with zipfile.ZipFile(io.BytesIO(stored())) as file:
        assert file.testzip() is None
        assert file.namelist()[:2] == ["zarr.json", "1/zarr.json"]
    np.testing.assert_array_equal(wkwdask.read(TARGET), VOXELS)
    puts = [url for name, url in bucket.requests if name == "put_once" and "em.ozx" in url]
    assert puts == [TARGET]
    assert [path.name for path in scratch.iterdir() if path.name.startswith("wkwdask-")] == []


def test_an_existing_object_is_kept_or_replaced_whole(bucket):
    store_at(URL).put("em.ozx", b"mine")
    for existing in ("error", "resume"):
        with pytest.raises(ExistsError, match="replaces it whole"):
            pack(existing=existing)
    assert stored() == b"mine"
    pack(existing="overwrite")
    np.testing.assert_array_equal(wkwdask.read(TARGET), VOXELS)


@pytest.mark.parametrize("existing", ["error", "overwrite"])
def test_the_object_of_another_process_is_not_replaced(bucket, monkeypatch, existing):
    if existing == "overwrite":
        store_at(URL).put("em.ozx", b"mine")
    real = by_path.upload

    def late(*args):
        store_at(URL).put("em.ozx", b"theirs")
        real(*args)

    monkeypatch.setattr(by_path, "upload", late)
    with pytest.raises(ExistsError, match="another process has written it meanwhile"):
        pack(existing=existing)
    assert stored() == b"theirs"


def test_killed_at_any_request(bucket):
    start = bucket.snapshot()
    bucket.requests = []
    pack()
    number, whole = len(bucket.requests), stored()
    for after in (False, True):
        for n in range(0, number, 3):
            bucket.restore(start)
            with bucket.killed_at(n, after=after):
                pack()
            assert stored() in (None, whole)
            pack(existing="overwrite")
            assert stored() == whole


def test_a_plan_writes_nothing(bucket, scratch):
    before = memory_bucket._objects.copy()
    done = run_here("convert", SOURCE, TARGET, "--dry-run")
    assert done.returncode == 0, done.output
    assert f"{TARGET}|zip:/1: 20 x 18 x 12 voxels" in done.output
    assert "scratch" not in done.output
    assert str(scratch) not in done.output
    assert "that write" not in done.output
    assert {**memory_bucket._objects} == before
    assert [path.name for path in scratch.iterdir() if path.name.startswith("wkwdask-")] == []


def test_a_failed_packing_keeps_what_was_built(bucket, monkeypatch):
    """The image is complete, and only the file was left."""
    with monkeypatch.context() as patch:
        patch.setattr("wkwdask.formats.zarr.single_file.write_zip", _full_disk)
        with pytest.raises(OSError, match="No space left") as caught:
            pack()
    (note,) = [each for each in caught.value.__notes__ if "finished work" in each]
    assert "0 tasks" not in note
    pack()
    np.testing.assert_array_equal(wkwdask.read(TARGET), VOXELS)


def _full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "em.ozx")


def test_scratch_of_somebody_else_is_not_used(scratch):
    folder = by_path.scratch_folder("a")
    assert by_path.scratch_folder("a") == folder
    store_at(folder).delete_folder()
    (scratch / "elsewhere").mkdir(mode=0o700)
    by_path.files.symlink(str(scratch / "elsewhere"), folder)
    with pytest.raises(PermissionError, match="not a private folder"):
        by_path.scratch_folder("a")


def test_what_the_server_cannot_store_in_one_step(monkeypatch):
    monkeypatch.setattr(object_store, "LARGEST_NBYTES", 10)
    with pytest.raises(UnsupportedError, match="not written in one step"):
        object_store.put_once("s3://b/em.ozx", io.BytesIO(bytes(11)), None, "", None)
