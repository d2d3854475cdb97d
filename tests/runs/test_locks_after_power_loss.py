"""Locks that a power loss left empty: on a disk of this machine they belong to nobody, on a network
file system they may."""

import os
import time

import numpy as np
import pytest

import wkwdask
from wkwdask.errors import LockedError
from wkwdask.store import local
from wkwdask.store.locks import GUARD_NAME
from wkwdask.store.new_files import create_whole

VOXELS = np.ones((16, 16, 16), np.uint8)
REGION = ((0, 0, 0), (8, 8, 8))
LOCKS = {
    "mag": "color/.1.wkwdask-lock",
    "shards": "color/.1.20260101T000000-12345678.wkwdask-region-lock",
    "next mag": "color/.2.wkwdask-lock",
    "JSON": ".datasource-properties.json.wkwdask-lock",
}
BOOT = (
    time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else None
)
pytestmark = pytest.mark.skipif(BOOT is None, reason="the system does not say when it was started")


@pytest.fixture
def dataset(tmp_path):
    wkwdask.to_wkw(
        VOXELS, tmp_path / "ds" / "color" / "1", voxel_size=(4, 4, 4), block_len=8, file_len=1
    )
    return tmp_path / "ds"


def leave_empty(path, seconds, monkeypatch, kind="ext4"):
    """An empty lock, written so many seconds after the start of the machine, on a file system of
    this kind."""
    path.write_bytes(b"")
    os.utime(path, (BOOT + seconds,) * 2)
    monkeypatch.setattr(local, "file_system", lambda path: kind)
    return path


def write(dataset):
    wkwdask.to_wkw(VOXELS[:8, :8, :8] * 3, dataset / "color" / "1", region=REGION)
    wkwdask.build_pyramid(dataset, "color", mags=["2"], method="mean")


@pytest.mark.parametrize("name", LOCKS)
@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 300])
def test_a_lock_from_before_the_start_is_dead(dataset, monkeypatch, name, content):
    lock = leave_empty(dataset / LOCKS[name], -60, monkeypatch)
    lock.write_bytes(content)
    os.utime(lock, (BOOT - 60,) * 2)
    write(dataset)
    assert not lock.exists()
    np.testing.assert_array_equal(wkwdask.read(dataset / "color" / "1", REGION), 3)
    assert sorted(wkwdask.open_dataset(dataset)["color"].mags) == [
        wkwdask.Mag.parse(1),
        wkwdask.Mag.parse(2),
    ]


@pytest.mark.parametrize(
    ("seconds", "kind"), [(60, "ext4"), (-60, "nfs4"), (-60, "lustre"), (-60, "tmpfs"), (-60, "")]
)
def test_any_other_unreadable_lock_stays_and_is_named(dataset, monkeypatch, seconds, kind):
    lock = leave_empty(dataset / LOCKS["mag"], seconds, monkeypatch, kind)
    with pytest.raises(
        LockedError, match=rf"{lock}: this lock cannot be read.*remove it if no job writes here"
    ):
        write(dataset)
    assert lock.exists()
    (fault,) = [fault for fault in wkwdask.verify(dataset).faults if fault.kind == "leftover.lock"]
    assert (fault.path, fault.found) == (str(lock), "unreadable lock")


@pytest.mark.parametrize("name", ["mag", "shards"])
def test_a_repair_removes_it_at_once(dataset, monkeypatch, name):
    lock = leave_empty(dataset / LOCKS[name], -60, monkeypatch)
    (fault,) = [fault for fault in wkwdask.verify(dataset).faults if fault.kind == "leftover.lock"]
    assert "older than the last start of this machine" in fault.found
    wkwdask.repair(dataset)
    assert not lock.exists()


def test_a_lock_has_its_content_before_its_name(tmp_path, monkeypatch):
    """After a power loss a name may be all that is left of a file that was not flushed."""
    events = []
    for name in ("fsync", "link"):
        call = getattr(os, name)
        monkeypatch.setattr(
            os,
            name,
            lambda *arguments, name=name, call=call, **options: (
                events.append(name),
                call(*arguments, **options),
            )[1],
        )
    assert create_whole(str(tmp_path / "lock"), b"owner")
    assert events[:2] == ["fsync", "link"]


def test_clean_removes_a_guard_that_a_power_loss_brought_back(tmp_path):
    """Its removal is not synced, and may be lost while that of the job is kept."""
    image = tmp_path / "em"
    wkwdask.to_precomputed(VOXELS, image, voxel_size=(4, 4, 4))
    before = sorted(image.iterdir())
    (image / GUARD_NAME).touch()
    wkwdask.clean(image)
    assert sorted(image.iterdir()) == before
