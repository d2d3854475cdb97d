"""Positioned reads, and files and folders that appear whole."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys

import numpy as np
import pytest

from wkwdask.errors import TruncatedError, UnsupportedError
from wkwdask.store import local
from wkwdask.store.by_path import publish_folder
from wkwdask.store.files import create, exchange, fsync, open_file, remove_tree
from wkwdask.store.new_files import RenamedFile, publish_bytes
from wkwdask.store.paths import TEMPORARY_SUFFIX, local_path
from wkwdask.store.store import numbered, store_at


@pytest.fixture
def umask():
    """Sets the umask, and puts the old one back."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def names(folder):
    return sorted(os.listdir(folder))


def test_local_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in (tmp_path / "a", f"file://{tmp_path}/a", "a", "./b/../a/", "~/a"):
        assert local_path(url) == str(tmp_path / "a")
    for url in ("s3://bucket/a", "http://host/a", "gs://a"):
        with pytest.raises(UnsupportedError, match=url):
            local_path(url)


def test_a_file_appears_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    file = RenamedFile(str(path))
    file.write(b"new ", 0)
    file.write(np.frombuffer(b"content", np.uint8), 4)
    assert path.read_bytes() == b"old"
    (temporary,) = set(names(tmp_path)) - {"file"}
    assert temporary.startswith(".file.")
    assert temporary.endswith(TEMPORARY_SUFFIX)
    file.publish()
    assert path.read_bytes() == b"new content"
    assert names(tmp_path) == ["file"]


def test_a_discarded_file_leaves_the_old(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    file = RenamedFile(str(tmp_path / "file"))
    file.write(b"new", 0)
    file.discard()
    file.discard()
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_set_nbytes(tmp_path):
    file = RenamedFile(str(tmp_path / "file"))
    file.write(b"x", 3)
    file.set_nbytes(6)
    file.publish()
    assert (tmp_path / "file").read_bytes() == b"\0\0\0x\0\0"


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_file_that_cannot_be_published_is_removed(tmp_path, monkeypatch, failing):
    def fail(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space left"):
        publish_bytes(str(tmp_path / "file"), b"new")
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match="quota"):
        publish_bytes(str(tmp_path / "file"), b"new")
    assert names(tmp_path) == []


def test_short_writes_go_on(tmp_path, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:3], offset))
    publish_bytes(str(tmp_path / "file"), b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_new_files_follow_the_umask(tmp_path, umask, mask, mode):
    umask(mask)
    publish_bytes(str(tmp_path / "file"), b"")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
def test_a_replaced_file_keeps_mode_and_group(tmp_path, umask, mode):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    if os.getuid() == 0:
        os.chown(path, -1, 12345)
    path.chmod(mode)
    before = path.stat()
    publish_bytes(str(path), b"new")
    after = path.stat()
    assert (after.st_mode, after.st_gid) == (before.st_mode, before.st_gid)
    assert after.st_ino != before.st_ino


def test_a_group_that_may_not_be_set_is_no_error(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)

    def refuse(*args):
        raise PermissionError(1, "not your group")

    monkeypatch.setattr(os, "chown", refuse)
    publish_bytes(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_setgid_folders_hand_on_their_group(tmp_path):
    if os.getuid() != 0:
        pytest.skip("only root may give a folder a group of its choice")
    os.chown(tmp_path, -1, 12345)
    tmp_path.chmod(0o2775)
    publish_bytes(str(tmp_path / "file"), b"")
    assert (tmp_path / "file").stat().st_gid == 12345


def test_two_writers_of_one_file(tmp_path):
    first, second = RenamedFile(str(tmp_path / "file")), RenamedFile(str(tmp_path / "file"))
    first.write(b"first" * 100, 0)
    second.write(b"second", 0)
    second.publish()
    first.publish()
    assert (tmp_path / "file").read_bytes() == b"first" * 100
    assert names(tmp_path) == ["file"]


def test_read_into(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    with open_file(str(path)) as file:
        buffer = np.zeros(10, np.uint8)
        file.read_into(buffer, 90)
        assert buffer.tolist() == list(range(90, 100))
        with pytest.raises(TruncatedError, match="file: ends at byte 100, expected 1 more bytes"):
            file.read_into(buffer, 91)
        with pytest.raises(TruncatedError, match="expected 10 more bytes"):
            file.read_into(buffer, 1000)
        file.read_into(np.zeros(0, np.uint8), 0)


def test_short_reads_go_on(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    preadv = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda fd, buffers, offset: preadv(fd, [buffers[0][:7]], offset)
    )
    with open_file(str(path)) as file:
        buffer = np.zeros(60, np.uint8)
        file.read_into(buffer, 20)
    assert buffer.tolist() == list(range(20, 80))


def put(folder, text):
    folder.mkdir()
    (folder / "file").write_text(text)
    return str(folder)


@pytest.mark.parametrize("exchange", [True, False])
def test_publish_folder_replaces(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(local.LocalFileSystem, "exchange", lambda *_: False)
    staged, target = put(tmp_path / "staged", "new"), put(tmp_path / "target", "old")
    publish_folder(staged, target)
    assert (tmp_path / "target" / "file").read_text() == "new"
    assert (tmp_path / "staged" / "file").read_text() == "old"
    assert names(tmp_path) == ["staged", "target"]


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("empty", [True, False])
def test_publish_folder_into_a_free_place(tmp_path, monkeypatch, exchange, empty):
    if not exchange:
        monkeypatch.setattr(local.LocalFileSystem, "exchange", lambda *_: False)
    if empty:
        (tmp_path / "target").mkdir()
    publish_folder(put(tmp_path / "staged", "new"), str(tmp_path / "target"))
    assert (tmp_path / "target" / "file").read_text() == "new"
    assert names(tmp_path) == (["staged", "target"] if empty else ["target"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="renameat2 is Linux's")
def test_exchange_is_one_step_here(tmp_path):
    first, second = put(tmp_path / "first", "1"), put(tmp_path / "second", "2")
    assert exchange(first, second)
    assert (tmp_path / "first" / "file").read_text() == "2"
    with pytest.raises(FileNotFoundError):
        exchange(first, str(tmp_path / "absent"))


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.ENOTSUP])
def test_a_system_without_exchange(tmp_path, monkeypatch, code):
    """The call is there, and the file system refuses it."""
    import ctypes

    class Library:
        @staticmethod
        def renameat2(*args):
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(local.ctypes, "CDLL", lambda *args, **options: Library)
    publish_folder(put(tmp_path / "staged", "new"), put(tmp_path / "target", "old"))
    assert (tmp_path / "target" / "file").read_text() == "new"


def test_remove_tree(tmp_path):
    put(tmp_path / "folder", "x")
    remove_tree(str(tmp_path / "folder"))
    remove_tree(str(tmp_path / "folder"))
    assert names(tmp_path) == []


def test_remove_tree_tells_what_it_may_not_remove(tmp_path, monkeypatch):
    put(tmp_path / "folder", "x")

    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(PermissionError):
        remove_tree(str(tmp_path / "folder"))


def test_numbered(tmp_path):
    for name in ("z0", "z12", "z007", "z-1", "z1a", "z", "y3", "Z3", "z\u0663", "z4.wkw"):
        (tmp_path / name).mkdir()
    assert sorted(n for n, _ in numbered(store_at(str(tmp_path)), "z")) == [0, 12]
    assert [n for n, _ in numbered(store_at(str(tmp_path)), "z", ".wkw")] == [4]
    assert list(numbered(store_at(str(tmp_path / "absent")), "z")) == []


def test_fsync_where_folders_cannot_be_flushed(tmp_path, monkeypatch):
    def refuse(fd, code=errno.EINVAL):
        raise OSError(code, "cannot flush")

    monkeypatch.setattr(os, "fsync", refuse)
    fsync(str(tmp_path))
    monkeypatch.setattr(os, "fsync", lambda fd: refuse(fd, errno.EIO))
    with pytest.raises(OSError, match="cannot flush"):
        fsync(str(tmp_path))


def test_a_file_is_closed_once(tmp_path, monkeypatch):
    """Also where Ctrl-C comes while it is closed: by then its number may be that of a file of
    another thread."""
    close, closed = os.close, []

    def interrupted(fd):
        close(fd)
        closed.append(fd)
        if len(closed) == 1:
            raise KeyboardInterrupt

    file = RenamedFile(str(tmp_path / "file"))
    fd = file._output._fd
    monkeypatch.setattr(os, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        file.publish()
    file.discard()
    monkeypatch.undo()
    assert closed == [fd]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_named_when_a_line_is_appended():
    with (
        contextlib.closing(create("/dev/full", exclusive=False, append=True)) as output,
        pytest.raises(OSError, match="/dev/full") as failed,
    ):
        output.append(b"line")
    assert failed.value.errno == errno.ENOSPC
