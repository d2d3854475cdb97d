"""File systems behave alike: the same steps on the local one and in memory."""

from __future__ import annotations

import errno
import fcntl
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from wkwdask.errors import CorruptError, LockedError, MissingError, TruncatedError, UnsupportedError
from wkwdask.store import by_path, files, new_files, paths, user_key, zip_members
from wkwdask.store.local import LocalFileSystem
from wkwdask.store.locks import guarded, locked_file
from wkwdask.store.new_files import (
    RenamedFile,
    RenamedFiles,
    copy_file,
    create_whole,
    move,
    publish_bytes,
)
from wkwdask.store.store import FolderStore, open_store


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path)


def put(path, data=b"data"):
    files.makedirs(paths.dirname(path))
    publish_bytes(path, data)
    return path


def failing(code, call=None):
    """Return a function that fails, after a call that it makes."""

    def fail(*arguments, **options):
        if call is not None:
            call(*arguments, **options)
        raise OSError(code, os.strerror(code), arguments[0])

    return fail


def raises(code):
    return pytest.raises(OSError, match=rf"\[Errno {code}\]")


def test_reading(folder):
    path = put(f"{folder}/file", bytes(range(100)))
    with files.open_file(path) as file:
        assert (file.name, file.nbytes) == (path, 100)
        assert file.read([(3, 5), (0, 0), (99, 100)]) == [b"\3\4", b"", b"c"]
        assert file.read_some(10, 95) == bytes(range(95, 100))
        assert file.read_some(10, 100) == b""
        with pytest.raises(
            TruncatedError, match="ends at byte 100, expected 2 bytes from byte 99 on"
        ):
            file.read([(99, 101)])
        memory = np.zeros(10, np.uint8)
        file.read_into(memory, 90)
        assert memory.tolist() == list(range(90, 100))
        with pytest.raises(TruncatedError, match="ends at byte 100, expected 1 more bytes"):
            file.read_into(memory, 91)
        file.read_ranges(np.array([[50, 0, 2], [10, 5, 3]]), memory)
        assert memory[[0, 1, 5, 6, 7]].tolist() == [50, 51, 10, 11, 12]
    assert files.read_bytes(path) == bytes(range(100))
    with files.open_stream(path) as stream:
        assert stream.read(3) == b"\0\1\2"
    assert by_path.read_array(path, "<u2", 3, 2).tolist() == [0x0302, 0x0504, 0x0706]
    assert by_path.map_array(path, np.uint8, 4, (2, 3), "F").tolist() == [[4, 6, 8], [5, 7, 9]]


def test_a_file_that_is_open_stays_what_it_was(folder):
    path = put(f"{folder}/file", b"old")
    with files.open_file(path) as file:
        before = file.state
        put(path, b"newer")
        assert file.read([(0, 3)]) == [b"old"]
    with files.open_file(path) as file:
        assert file.state != before
    files.unlink(path)


def test_what_is_absent(folder):
    for read in (
        files.open_file,
        files.read_bytes,
        files.stat,
        files.listdir,
        files.unlink,
        files.rmdir,
        files.readlink,
    ):
        with raises(errno.ENOENT):
            read(f"{folder}/absent")
    put(f"{folder}/file")
    for read in (files.open_file, files.stat, files.listdir, files.unlink):
        with raises(errno.ENOTDIR):
            read(f"{folder}/file/below")
    assert not files.exists(f"{folder}/absent")
    assert files.state_of(f"{folder}/absent") is files.state_of(f"{folder}/file/below") is None
    assert not list(files.walk(f"{folder}/absent"))
    files.remove_file(f"{folder}/absent")
    files.remove_tree(f"{folder}/absent")
    assert by_path.delete_tree(f"{folder}/absent") == (0, 0)


def test_folders(folder):
    files.makedirs(f"{folder}/a/b/c")
    files.makedirs(f"{folder}/a/b/c")
    put(f"{folder}/a/file", b"12345")
    with raises(errno.EEXIST):
        files.mkdir(f"{folder}/a")
    with raises(errno.EEXIST):
        files.mkdir(f"{folder}/a/.")
    files.make_folders_below(f"{folder}/a", f"{folder}/a")
    with raises(errno.EEXIST):
        files.makedirs(f"{folder}/a/file")
    with raises(errno.ENOENT):
        files.mkdir(f"{folder}/x/y")
    with raises(errno.ENOTEMPTY):
        files.rmdir(f"{folder}/a")
    with pytest.raises(OSError, match=r"directory|permitted"):
        files.unlink(f"{folder}/a")
    with pytest.raises(CorruptError, match="not a regular file"):
        files.open_file(f"{folder}/a")
    assert sorted(files.listdir(f"{folder}/a")) == ["b", "file"]
    with files.scandir(f"{folder}/a") as entries:
        found = {
            entry.name: (entry.path, entry.is_dir(), entry.is_file(), entry.is_symlink())
            for entry in entries
        }
    assert found == {
        "b": (f"{folder}/a/b", True, False, False),
        "file": (f"{folder}/a/file", False, True, False),
    }
    assert [(path[len(folder) :], names) for path, _, names in files.walk(folder)] == [
        ("", []),
        ("/a", ["file"]),
        ("/a/b", []),
        ("/a/b/c", []),
    ]
    assert by_path.count_tree(folder) == (1, 5)
    assert by_path.delete_tree(f"{folder}/a") == (1, 5)
    assert files.listdir(folder) == []


def test_names_of_new_folders_are_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "fsync", synced.append)
    files.makedirs(f"{tmp_path}/a/b")
    files.makedirs(f"{tmp_path}/a/b")
    assert synced == [str(tmp_path), f"{tmp_path}/a"]


def test_renames(folder):
    put(f"{folder}/a/file", b"a")
    put(f"{folder}/b/file", b"b")
    inode = files.stat(f"{folder}/a").st_ino
    with raises(errno.ENOTEMPTY):
        files.rename(f"{folder}/a", f"{folder}/b")
    with raises(errno.EINVAL):
        files.rename(f"{folder}/a", f"{folder}/a/b")
    with raises(errno.ENOTDIR):
        files.rename(f"{folder}/a", f"{folder}/b/file")
    with raises(errno.ENOENT):
        files.rename(f"{folder}/absent", f"{folder}/b/file")
    files.mkdir(f"{folder}/c")
    files.rename(f"{folder}/a", f"{folder}/c")
    assert files.stat(f"{folder}/c").st_ino == inode
    assert not files.exists(f"{folder}/a")
    if files.exchange(f"{folder}/b", f"{folder}/c"):
        assert files.read_bytes(f"{folder}/b/file") == b"a"
        assert files.read_bytes(f"{folder}/c/file") == b"b"
        with raises(errno.ENOENT):
            files.exchange(f"{folder}/b", f"{folder}/absent")
    move(f"{folder}/b", f"{folder}/moved")
    copy_file(f"{folder}/moved/file", f"{folder}/copy")
    assert sorted(files.listdir(folder)) == ["c", "copy", "moved"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT])
@pytest.mark.parametrize("exchange", [True, False])
def test_renames_that_are_made_and_reported_as_failed(folder, monkeypatch, exchange, code):
    swap = LocalFileSystem.exchange

    def swap_and_fail(self, first, second):
        failing(code, lambda *_: swap(self, first, second))(first)

    monkeypatch.setattr(os, "replace", failing(code, os.replace))
    monkeypatch.setattr(LocalFileSystem, "exchange", swap_and_fail if exchange else lambda *_: 0)
    put(f"{folder}/staged/file", b"new")
    put(f"{folder}/target/file", b"old")
    by_path.publish_folder(f"{folder}/staged", f"{folder}/target")
    assert files.read_bytes(f"{folder}/target/file") == b"new"
    assert files.read_bytes(f"{folder}/staged/file") == b"old"
    move(f"{folder}/target/file", f"{folder}/moved")
    assert files.read_bytes(f"{folder}/moved") == b"new"
    monkeypatch.setattr(os, "replace", failing(code))
    with raises(code):
        files.rename(f"{folder}/staged", f"{folder}/target")


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN])
def test_nothing_is_absent_while_a_disk_or_server_does_not_answer(folder, monkeypatch, code):
    path, store = put(f"{folder}/a/file"), FolderStore(f"{folder}/a")
    asks = [
        files.exists,
        files.lexists,
        files.isdir,
        files.isfile,
        files.islink,
        lambda path: list(files.walk(folder)),
        lambda path: store.exists("file"),
        lambda path: store.is_taken("file"),
    ]
    for name in ("access", "stat", "lstat", "scandir"):
        monkeypatch.setattr(os, name, failing(code))
    for ask in asks:
        with raises(code):
            ask(path)


@pytest.mark.parametrize("exchange", [True, False])
def test_published_folders(folder, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(files, "exchange", lambda first, second: False)
    put(f"{folder}/staged/file", b"new")
    put(f"{folder}/target/file", b"old")
    by_path.publish_folder(f"{folder}/staged", f"{folder}/target")
    assert files.read_bytes(f"{folder}/target/file") == b"new"
    assert files.read_bytes(f"{folder}/staged/file") == b"old"


@pytest.mark.parametrize("code", [errno.EIO, errno.EEXIST])
def test_a_link_or_key_that_is_made_and_reported_as_failed(folder, monkeypatch, code):
    monkeypatch.setenv("XDG_STATE_HOME", folder)
    monkeypatch.setattr(os, "link", failing(code, os.link))
    monkeypatch.setattr(os, "symlink", failing(code, os.symlink))
    monkeypatch.setattr(os, "unlink", failing(errno.ENOENT, os.unlink))
    key = user_key.user_key(create=True)
    assert files.listdir(f"{folder}/wkwdask") == ["key"]
    assert user_key.user_key() == key
    files.symlink("key", f"{folder}/wkwdask/link")
    with raises(errno.EEXIST):
        files.symlink("other", f"{folder}/wkwdask/link")
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    monkeypatch.setenv("XDG_STATE_HOME", f"{folder}/other")
    with raises(errno.EPERM):
        user_key.user_key(create=True)


def test_links(folder):
    put(f"{folder}/a/file", b"a")
    files.symlink("a", f"{folder}/link")
    files.symlink(f"{folder}/a/file", f"{folder}/a/other")
    files.symlink("nowhere", f"{folder}/dangling")
    files.symlink("loop", f"{folder}/loop")
    assert files.read_bytes(f"{folder}/link/other") == b"a"
    assert files.readlink(f"{folder}/link") == "a"
    assert files.realpath(f"{folder}/link/other") == f"{files.realpath(folder)}/a/file"
    assert files.realpath(f"{folder}/dangling/x") == f"{files.realpath(folder)}/nowhere/x"
    assert files.islink(f"{folder}/link")
    assert files.isdir(f"{folder}/link")
    assert files.lexists(f"{folder}/dangling")
    assert not files.exists(f"{folder}/dangling")
    with raises(errno.ELOOP):
        files.stat(f"{folder}/loop")
    with pytest.raises(MissingError, match="a symbolic link to a missing file"):
        FolderStore(folder).open("dangling")
    files.unlink(f"{folder}/link")
    assert files.read_bytes(f"{folder}/a/file") == b"a"
    files.link(f"{folder}/a/file", f"{folder}/second")
    assert files.samefile(f"{folder}/a/file", f"{folder}/second")
    with raises(errno.EEXIST):
        files.link(f"{folder}/a/file", f"{folder}/second")
    assert by_path.delete_tree(folder) == (
        5,
        1 + 1 + len(f"{folder}/a/file") + len("nowhere") + len("loop"),
    )
    files.makedirs(folder)


def test_new_files(folder):
    path = put(f"{folder}/file", b"old")
    if not path.startswith("memory:"):
        # two files that are written within a tick of the clock have the same time
        os.utime(path, (1, 1))
    before = files.stat(path)
    file = RenamedFile(path)
    file.write(b"content", 4)
    file.write(np.frombuffer(b"new ", np.uint8), 0)
    with file.open_written() as written:
        assert written.read([(0, 11)]) == [b"new content"]
    assert files.read_bytes(path) == b"old"
    (temporary,) = set(files.listdir(folder)) - {"file"}
    assert temporary.startswith(".file.")
    file.set_nbytes(3)
    file.publish()
    assert files.read_bytes(path) == b"new"
    after = files.stat(path)
    assert after.st_ino != before.st_ino
    assert after.st_mtime_ns > before.st_mtime_ns
    assert (after.st_mode, after.st_gid) == (before.st_mode, before.st_gid)
    same, other = RenamedFile(path), RenamedFile(path)
    same.write(b"new", 0)
    same.publish(keep_equal=True)
    assert files.stat(path).st_ino == after.st_ino
    other.write(b"xxx", 0)
    other.discard()
    with files.open_file(path) as source:
        copy = RenamedFile(f"{folder}/copy")
        copy.copy_from(source, 2)
        copy.publish()
    assert files.read_bytes(f"{folder}/copy") == b"ne"
    assert sorted(files.listdir(folder)) == ["copy", "file"]


@pytest.mark.parametrize("patience", [0, 1000], ids=["threads", "one thread"])
def test_many_files_are_flushed_before_any_is_renamed(folder, monkeypatch, patience):
    monkeypatch.setattr(new_files, "_PATIENCE_S", patience)
    steps, sync, rename = [], RenamedFile.sync, files.rename
    monkeypatch.setattr(RenamedFile, "sync", lambda file: (steps.append("sync"), sync(file)))
    monkeypatch.setattr(files, "rename", lambda *paths: (steps.append("rename"), rename(*paths)))
    many = RenamedFiles(folder, folder)
    for n in range(5):
        many.write(f"{n}", memoryview(bytes([n])))
    many.publish()
    assert steps == ["sync"] * 5 + ["rename"] * 5
    assert [files.read_bytes(f"{folder}/{n}") for n in range(5)] == [bytes([n]) for n in range(5)]


@pytest.mark.parametrize(
    ("is_in_place", "flushed"), [(True, {"", "a", "a/b"}), (False, set())], ids=["in place", "new"]
)
def test_names_of_many_files_in_place_are_flushed(folder, monkeypatch, is_in_place, flushed):
    found, fsync = [], files.fsync
    monkeypatch.setattr(files, "fsync", lambda path: (found.append(path), fsync(path)))
    many = FolderStore(folder).new_files(folder, is_in_place=is_in_place)
    for name in ("a/b/0", "a/b/1", "2"):
        many.write(name, memoryview(b"data"))
    many.publish()
    assert {path.removeprefix(str(folder)).lstrip("/") for path in found} == flushed


def test_whole_files(folder):
    store = FolderStore(folder)
    put(f"{folder}/file", b"data")
    put(f"{folder}/empty", b"")
    assert store.read_whole(["file", "absent", "empty", "file/below"], 4) == [
        b"data",
        None,
        b"",
        None,
    ]
    with pytest.raises(CorruptError, match=r"file: has 4 bytes, expected at most 3"):
        store.read_whole(["file"], 3)
    files.makedirs(f"{folder}/folder")
    with pytest.raises(CorruptError, match="folder: not a regular file"):
        store.read_whole(["folder"], 100)
    assert store.states(["file", "absent", "folder", "file/below"]) == [
        files.state_of(f"{folder}/file"),
        None,
        None,
        None,
    ]


def test_appended_lines(folder):
    first = files.create(f"{folder}/lines", append=True)
    with raises(errno.EEXIST):
        files.create(f"{folder}/lines")
    second = files.create(f"{folder}/lines", exclusive=False, append=True)
    for n, output in enumerate((first, second, first)):
        assert output.append(b"%d\n" % n) == 2
    first.close()
    second.close()
    assert files.read_bytes(f"{folder}/lines") == b"0\n1\n2\n"
    output, file = by_path.unnamed_file(folder)
    output.write(memoryview(b"kept"), 2)
    assert file.read_some(10, 0) == b"\0\0kept"
    output.close()
    file.close()
    assert files.listdir(folder) == ["lines"]


def test_one_of_many_makes_a_file(folder):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: create_whole(f"{folder}/file", b"%d" % n), range(8)))
    assert made.count(True) == 1
    assert files.read_bytes(f"{folder}/file") == b"%d" % made.index(True)
    assert files.listdir(folder) == ["file"]


_KILLED = """
import os, sys
from wkwdask.store.local import LocalOutput
from wkwdask.store.new_files import create_whole
setattr(LocalOutput, sys.argv[1], lambda *_, **__: os._exit(9))
create_whole(f"{sys.argv[2]}/file", b"0")
"""


@pytest.mark.parametrize("step", ["write", "sync", "link"])
def test_a_process_that_is_killed_before_it_links_a_file_leaves_nothing(tmp_path, step):
    if files.create_unnamed(str(tmp_path)) is None:
        pytest.skip("the file system has no files without a name (O_TMPFILE)")
    assert (
        subprocess.run([sys.executable, "-c", _KILLED, step, tmp_path], check=False).returncode == 9
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["open", "link"])
def test_a_file_is_made_by_one_of_many_without_files_without_a_name(tmp_path, monkeypatch, missing):
    """Some file systems have no O_TMPFILE, and some containers no /proc."""
    calls = {"open": os.open, "link": os.link}
    refused = []

    def refuse(path, *arguments, **options):
        if "src_dir_fd" in options or (
            missing == "open"
            and arguments
            and arguments[0] & getattr(os, "O_TMPFILE", 0) == getattr(os, "O_TMPFILE", -1)
        ):
            refused.append(path)
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        return calls[missing](path, *arguments, **options)

    monkeypatch.setattr(os, missing, refuse)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: create_whole(f"{tmp_path}/file", b"%d" % n), range(8)))
    assert len(refused) == 8
    assert made.count(True) == 1
    assert (tmp_path / "file").read_bytes() == b"%d" % made.index(True)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("has_unnamed_files", [True, False])
@pytest.mark.parametrize("code", [errno.EIO, errno.EEXIST])
def test_a_name_that_is_made_and_reported_as_failed_is_ones_own(
    tmp_path, monkeypatch, has_unnamed_files, code
):
    link, failed = os.link, []

    def link_and_fail(*arguments, **options):
        link(*arguments, **options)
        failed.append(arguments[1])
        raise OSError(code, os.strerror(code), arguments[1])

    monkeypatch.setattr(os, "link", link_and_fail)
    if not has_unnamed_files:
        monkeypatch.setattr(files, "create_unnamed", lambda folder: None)
    assert create_whole(f"{tmp_path}/first", b"0")
    with locked_file(f"{tmp_path}/second", "a change", timeout_seconds=0):
        publish_bytes(f"{tmp_path}/second", b"1")
    assert len(failed) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def test_a_file_that_is_created_whole_has_the_permissions_of_others(tmp_path):
    create_whole(f"{tmp_path}/first", b"0")
    publish_bytes(f"{tmp_path}/second", b"0")
    assert (tmp_path / "first").stat().st_mode == (tmp_path / "second").stat().st_mode


def test_locks(folder):
    path = put(f"{folder}/file", b"0")

    def add_one(_):
        with locked_file(path, "a change"):
            publish_bytes(path, b"%d" % (int(files.read_bytes(path)) + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_one, range(12)))
    assert files.read_bytes(path) == b"12"
    with (
        locked_file(path, "a change"),
        pytest.raises(LockedError, match="another process changes it"),
        locked_file(path, "another", timeout_seconds=0.05),
    ):
        pass
    inside, most = 0, 0
    lock = threading.Lock()

    def alone(_):
        nonlocal inside, most
        with guarded(folder):
            with lock:
                inside += 1
                most = max(most, inside)
            with lock:
                inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(alone, range(12)))
    assert most == 1
    assert files.listdir(folder) == ["file"]
    with pytest.raises(MissingError, match="renamed or removed"), guarded(f"{folder}/absent"):
        pass


@pytest.mark.parametrize("call", ["unlink", "stat"])
def test_a_guard_that_cannot_be_removed_or_read_is_released(folder, monkeypatch, call):
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing(errno.EIO))
        with pytest.raises(OSError, match="Input/output error"), guarded(folder):
            pass
    with open(f"{folder}/.wkwdask-guard") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_small_files_of_a_folder(folder):
    for name in "abc":
        put(f"{folder}/below/{name}", name.encode() * 3)
    memory = bytearray(8)
    assert files.read_small(
        folder, ["below/a", "below/x", "below/b", "below/c"], 4, memoryview(memory)
    ) == [(0, 3), (3, -1), (3, 3)]
    assert bytes(memory[:6]) == b"aaabbb"
    with raises(errno.ENOENT):
        files.read_small(f"{folder}/absent", ["a"], 4, memoryview(memory))


def test_patterns(folder):
    for name in ("s1.png", "s2.png", "t.png", "deep/s3.png"):
        put(f"{folder}/{name}")
    assert sorted(by_path.matching(f"{folder}/s*.png")) == [f"{folder}/s1.png", f"{folder}/s2.png"]
    assert sorted(by_path.matching(f"{folder}/*/s[0-9].png")) == [f"{folder}/deep/s3.png"]
    put(f"{folder}/deep/deeper/s4.png")
    put(f"{folder}/.s5.png")
    assert sorted(by_path.matching(f"{folder}/*.png")) == [
        f"{folder}/{name}" for name in ("s1.png", "s2.png", "t.png")
    ]
    assert sorted(by_path.matching(f"{folder}/**/s*.png")) == [
        f"{folder}/{name}" for name in ("deep/deeper/s4.png", "deep/s3.png", "s1.png", "s2.png")
    ]
    assert sorted(by_path.matching(f"{folder}/*/**/s*.png")) == [
        f"{folder}/{name}" for name in ("deep/deeper/s4.png", "deep/s3.png")
    ]
    assert by_path.matching(f"{folder}/.s*.png") == [f"{folder}/.s5.png"]


def test_stores(folder):
    store = pickle.loads(pickle.dumps(open_store(f"{folder}/a/")))
    assert (store.url, store.can.states) == (f"{folder}/a", True)
    assert store.open("x") is None
    assert not list(store.entries())
    files.makedirs(store.url)
    store.put("b/x", b"x")
    file = store.new_file("b/y")
    file.write(b"yy", 0)
    file.publish()
    assert store.read_whole(["b/x", "b/z", "b/y"], 10) == [b"x", None, b"yy"]
    with pytest.raises(CorruptError, match="has 2 bytes, expected at most 1"):
        store.read_whole(["b/y"], 1)
    assert sorted(entry.name for entry in store.entries("b")) == ["x", "y"]
    x, absent, y = store.states(["b/x", "b/z", "b/y"])
    assert (x.nbytes, absent, y.nbytes) == (1, None, 2)
    store.delete("b/x")
    store.delete("b/x")
    assert [entry.name for entry in store.entries("b")] == ["y"]


def test_stores_know_absent_names_from_broken_links(folder):
    store = FolderStore(folder)
    files.symlink("nowhere", f"{folder}/link")
    for name in ("absent", "link"):
        assert store.read_document(name, 10) is None
        with pytest.raises(FileNotFoundError):
            store.status(name)
    assert (store.open("absent"), list(store.entries("absent"))) == (None, [])
    with raises(errno.ENOENT):
        list(store.scandir("absent"))
    with pytest.raises(MissingError, match="link: a symbolic link to nowhere, which does not"):
        list(store.scandir("link"))
    for ask in (store.open, lambda name: list(store.entries(name))):
        with pytest.raises(MissingError, match="link: a symbolic link to a missing"):
            ask("link")
    assert store.status("link", follow_symlinks=False).st_size == len("nowhere")


@pytest.mark.parametrize(
    ("path", "folder", "name"),
    [
        ("s3://bucket/a/b", "s3://bucket/a", "b"),
        ("s3://bucket/a", "s3://bucket", "a"),
        ("/a/b", "/a", "b"),
        ("/a", "/", "a"),
    ],
)
def test_parts_of_a_path(path, folder, name):
    assert paths.split(path) == (folder, name)
    assert paths.dirname(path) == folder
    assert paths.basename(path) == name


def test_urls_as_paths():
    assert paths.target_path("s3://b/a/./b/../c/") == "s3://b/a/c"
    assert paths.join("s3://b/a", "b") == "s3://b/a/b"
    assert paths.join("/a", "s3://b") == "s3://b"
    assert paths.relpath("s3://b/a/b", "s3://b/a/c/d") == "../../b"
    assert paths.relpath("s3://b/a", "/a") == "s3://b/a"
    assert paths.normpath("s3://b/a/../../b") == "s3://b/b"
    assert paths.is_below("s3://b/a/b", "s3://b/a")
    assert not paths.is_below("s3://b/ab", "s3://b/a")
    memory = f"{paths.MEMORY}a"
    with pytest.raises(
        UnsupportedError, match=f"{memory}: a cluster needs a path on a file system"
    ):
        paths.need_file_system(memory, "a cluster")


def test_forked_processes_read_an_unpacked_zip_independently(tmp_path, monkeypatch):
    # Large compressed inner zips are unpacked to a temporary file. A child must not move the
    # position at which its parent reads.
    monkeypatch.setattr(zip_members, "_MEMORY_NBYTES", 1 << 16)
    data = {name: np.random.default_rng(n).bytes(1 << 20) for n, name in enumerate(("a", "b"))}
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as file:
        for name, content in data.items():
            file.writestr(name, content)
    with zipfile.ZipFile(tmp_path / "outer.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("inner.zip", inner.getvalue())
    inside = f"{tmp_path}/outer.zip|zip:/inner.zip|zip:"
    with files.open_file(f"{inside}/a") as file:
        begin = file.read_some(1 << 19, 0)
        child = multiprocessing.get_context("fork").Process(
            target=files.read_bytes, args=(f"{inside}/b",)
        )
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert begin + file.read_some(1 << 20, 1 << 19) == data["a"]
    assert files.read_bytes(f"{inside}/b") == data["b"]
