"""Zips as folders: members, ranges, damage, bombs, nesting, and the syntax of paths in zips."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import tempfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.range_server import range_server

import wkwdask
from wkwdask.errors import CorruptError, FormatError, MissingError, UnsupportedError
from wkwdask.store import files, zip_directory, zip_members
from wkwdask.store.local import LocalFile
from wkwdask.store.paths import basename, dirname, join, local_path, normpath, relpath, split
from wkwdask.store.store import open_store, store_at
from wkwdask.store.zip_writer import write_zip


def zip_of(members, compression=zipfile.ZIP_STORED):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", compression) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return raw.getvalue()


@contextlib.contextmanager
def _stored(raw):
    """A zip as a folder."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x.zip").write_bytes(raw)
        yield f"{folder}/x.zip|zip:"


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        ("/a/em.ozx", "/a/em.ozx|zip:"),
        ("/a/EM.ZIP", "/a/EM.ZIP|zip:"),
        ("/a/em.ozx|zip:", "/a/em.ozx|zip:"),
        ("/a/em.bin|zip:em/1/", "/a/em.bin|zip:/em/1"),
        ("/a/em.ozx|zip:/em/../1", "/a/em.ozx|zip:/1"),
        ("/a/em.ozx|zip:../../b", "/a/em.ozx|zip:/b"),  # nothing leads out of a zip
        ("/a/outer.zip|zip:inner.zip", "/a/outer.zip|zip:/inner.zip|zip:"),
        ("/a/outer.zip|zip:inner.zip|zip:1", "/a/outer.zip|zip:/inner.zip|zip:/1"),
        ("file:///a/b/../em.ozx", "/a/em.ozx|zip:"),
        ("https://host/em.ozx", "https://host/em.ozx|zip:"),
        ("https://host/em.zip?v=1|zip:em", "https://host/em.zip?v=1|zip:/em"),
    ],
)
def test_paths_in_zips(typed, path):
    assert local_path(typed) == path
    assert local_path(path) == path


def test_parts_of_paths_in_zips():
    assert split("/a/em.ozx|zip:/0/zarr.json") == ("/a/em.ozx|zip:/0", "zarr.json")
    assert (dirname("/a/em.ozx|zip:/0"), basename("/a/em.ozx|zip:")) == ("/a/em.ozx|zip:", "em.ozx")
    assert dirname("/a/em.ozx|zip:") == "/a/em.ozx|zip:"  # as for the root of a file system
    assert relpath("/a/em.ozx|zip:/0/c", "/a/em.ozx|zip:") == "0/c"
    assert relpath("/a/em.ozx|zip:/0", "/a") == "/a/em.ozx|zip:/0"
    assert join("/a/em.ozx|zip:", "0") == "/a/em.ozx|zip:/0"
    assert normpath("/a/em.ozx|zip:/./0//1") == "/a/em.ozx|zip:/0/1"


def test_a_folder_named_like_a_zip_is_a_folder(tmp_path):
    (tmp_path / "em.zip").mkdir()
    assert local_path(tmp_path / "em.zip") == f"{tmp_path}/em.zip"


names = st.lists(st.sampled_from(["a", "b", "é", "c.json"]), min_size=1, max_size=3).map("/".join)


@given(st.dictionaries(names, st.binary(max_size=300), max_size=8), st.booleans(), st.data())
def test_members_and_folders_are_those_of_zipfile(members, is_packed, data):
    members = {
        name: content
        for name, content in members.items()
        if not any(other.startswith(f"{name}/") for other in members)
    }
    with _stored(zip_of(members, 8 if is_packed else 0)) as root:
        listed = {
            path[len(root) + 1 :]
            for folder, _, found in files.walk(root)
            for path in (f"{folder}/{name}" for name in found)
        }
        assert listed == set(members)
        for name, content in members.items():
            assert files.read_bytes(f"{root}/{name}") == content
            start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(content))] * 2)))
            with files.open_file(f"{root}/{name}") as file:
                assert (file.nbytes, file.read([(start, stop), (0, stop)])) == (
                    len(content),
                    [content[start:stop], content[:stop]],
                )
                out = np.zeros(stop - start, np.uint8)
                file.read_into(out, start)
                assert out.tobytes() == content[start:stop]
        assert not files.exists(f"{root}/missing")


def test_a_chunk_of_a_stored_member_costs_one_read(tmp_path, monkeypatch):
    (tmp_path / "x.zip").write_bytes(zip_of({"shard": bytes(1 << 20)}))
    path = f"{tmp_path}/x.zip|zip:/shard"
    files.open_file(path).read([(0, 1)])
    reads = []
    monkeypatch.setattr(
        LocalFile,
        "read",
        lambda self, ranges, read=LocalFile.read: reads.append(ranges) or read(self, ranges),
    )
    assert files.open_file(path).read([(500, 510)]) == [bytes(10)]
    assert [stop - start for ((start, stop),) in reads] == [10]


def test_a_zip_that_is_replaced_is_opened_again(tmp_path):
    for content in (b"old", b"newer"):
        (tmp_path / "x.zip").write_bytes(zip_of({"a": content}))
        os.utime(tmp_path / "x.zip", ns=(len(content), len(content)))
        assert files.read_bytes(f"{tmp_path}/x.zip|zip:/a") == content


def test_zips_in_zips_and_threads(tmp_path):
    contents = {f"{n}": np.random.default_rng(n).bytes(50_000) for n in range(8)}
    raw = zip_of(contents, zipfile.ZIP_DEFLATED)
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raw = zip_of({"in.zip": raw}, compression)
    (tmp_path / "x.zip").write_bytes(raw)
    store = pickle.loads(pickle.dumps(open_store(f"{tmp_path}/x.zip|zip:in.zip|zip:in.zip")))
    assert len(pickle.dumps(store)) < 300
    found = {}

    def read(name):
        found[name] = store.read_whole([name], 1 << 20)[0]

    threads = [threading.Thread(target=read, args=(name,)) for name in contents]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == contents
    assert sorted(entry.name for entry in store.entries()) == sorted(contents)
    assert store.states(["0", "missing"])[1] is None
    assert store.open("missing") is None


def test_nothing_is_written_into_a_zip(tmp_path):
    (tmp_path / "x.zip").write_bytes(zip_of({"a": b"a"}))
    store = open_store(tmp_path / "x.zip")
    for call in (
        lambda: store.put("b", b""),
        lambda: store.new_file("b"),
        lambda: store.delete("a"),
        lambda: store.delete_folder("a"),
        store.make,
        lambda: files.rename(store.path_of("a"), store.path_of("b")),
        lambda: files.symlink("a", store.path_of("b")),
    ):
        with pytest.raises(
            UnsupportedError, match=rf"{tmp_path}/x.zip: a zip is read-only; write to a folder"
        ):
            call()


def _use(root):
    for folder, _, found in files.walk(root):
        for name in found:
            files.read_whole(f"{folder}/{name}", 1 << 20)
    files.isfile(f"{root}/b/c")


SOUND = {
    "stored": zip_of({"a": b"some bytes", "b/c": bytes(50)}),
    "deflated": zip_of({"a": b"some bytes", "b/c": bytes(50)}, zipfile.ZIP_DEFLATED),
}


@pytest.fixture(scope="module")
def with_zip64(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zip64")
    (folder / "b").mkdir()
    (folder / "a").write_bytes(b"some bytes")
    (folder / "b/c").write_bytes(bytes(50))
    write_zip(f"{folder}/x.zip", str(folder), ["a", "b/c"], b"comment")
    return (folder / "x.zip").read_bytes()


@pytest.mark.parametrize("kind", ["stored", "deflated", "zip64"])
def test_every_truncation_and_every_damaged_byte_is_an_error_or_harmless(kind, with_zip64):
    raw = SOUND.get(kind, with_zip64)
    damaged = [raw[:end] for end in range(len(raw))]
    damaged += [
        raw[:at] + bytes([byte]) + raw[at + 1 :]
        for at in range(len(raw))
        for byte in {255, raw[at] ^ 1}
    ]
    for content in damaged:
        with _stored(content) as root, contextlib.suppress(FormatError, UnsupportedError):
            _use(root)


def _patched(raw, signature, offset, format_, value):
    at = raw.rindex(signature) + offset
    return raw[:at] + struct.pack(format_, value) + raw[at + struct.calcsize(format_) :]


def test_members_that_share_bytes_are_refused():
    raw = SOUND["stored"]
    with (
        _stored(_patched(raw, b"PK\1\2", 42, "<L", 0)) as root,
        pytest.raises(CorruptError, match=r"x.zip: .*reach into what begins at byte"),
    ):
        _use(root)


@pytest.mark.parametrize(
    ("signature", "offset", "format_", "value", "message"),
    [
        (b"PK\5\6", 10, "<H", 60_000, "one part of a zip|lists 60000 files"),
        (b"PK\5\6", 4, "<H", 1, "one part of a zip in several files"),
        (b"PK\5\6", 16, "<L", 1 << 30, "the central directory of the zip ends at byte"),
        (b"PK\5\6", 16, "<L", 0xFFFFFFFF, "Zip64 record, which is missing"),
        (b"PK\1\2", 20, "<L", 0xFFFFFFFF, "Zip64 field, which is missing"),
        (b"PK\1\2", 24, "<L", 1 << 31, "is not compressed, but has 2147483648 bytes"),
        (b"PK\1\2", 10, "<H", 14, "compressed by method 14"),
        (b"PK\1\2", 8, "<H", 1, "is encrypted"),
        (b"PK\1\2", 16, "<L", 7, "has the checksum .*, expected 00000007"),
    ],
)
def test_false_directories_are_errors_that_say_what_is_wrong(
    signature, offset, format_, value, message
):
    with (
        _stored(_patched(SOUND["stored"], signature, offset, format_, value)) as root,
        pytest.raises((FormatError, UnsupportedError), match=message),
    ):
        _use(root)


def test_a_member_unpacks_to_no_more_than_the_directory_states(monkeypatch):
    raw = SOUND["deflated"]
    with (
        _stored(_patched(raw, b"PK\1\2", 24, "<L", 10)) as root,
        pytest.raises(CorruptError, match="unpacks to more than 10 bytes"),
    ):
        _use(root)
    monkeypatch.setattr(zip_members, "_MEMORY_NBYTES", 0)
    with (
        _stored(_patched(raw, b"PK\1\2", 24, "<L", 1 << 31)) as root,
        pytest.raises(CorruptError, match=r"unpacks from .* expected at most"),
    ):
        files.open_file(f"{root}/b/c")


@pytest.mark.parametrize("memory_nbytes", [64 << 20, 1000])
def test_large_compressed_members_are_unpacked_in_pieces(monkeypatch, memory_nbytes):
    monkeypatch.setattr(zip_members, "_MEMORY_NBYTES", memory_nbytes)
    monkeypatch.setattr(zip_members, "_PIECE_NBYTES", 1000)
    rng = np.random.default_rng(0)
    members = {
        str(n): bytes(np.repeat(rng.integers(0, 256, 400, np.uint8), rng.integers(1, 300, 400)))
        for n in range(20)
    }
    with _stored(zip_of(members, zipfile.ZIP_DEFLATED)) as root:
        assert {name: files.read_bytes(f"{root}/{name}") for name in members} == members


def test_the_number_of_members_is_bounded(monkeypatch):
    monkeypatch.setattr(zip_directory, "_MAX_MEMBERS", 1)
    with (
        _stored(SOUND["stored"]) as root,
        pytest.raises(UnsupportedError, match=r"lists 2 files in .* expected at most 1 files"),
    ):
        _use(root)


def test_names_that_lead_elsewhere_are_not_listed():
    with _stored(
        zip_of({"../up": b"", "/root": b"", "a/./b": b"", "./": b"", "fine": b"", "./here/x": b"1"})
    ) as root:
        assert sorted(files.listdir(root)) == ["fine", "here"]
        assert files.read_bytes(f"{root}/here/x") == b"1"
    with (
        _stored(zip_of({"a": b"", "a/b": b""})) as root,
        pytest.raises(CorruptError, match="a is both a file and a folder"),
    ):
        files.listdir(root)


@given(st.dictionaries(names, st.binary(max_size=50), max_size=5))
def test_zipfile_reads_what_is_written(tmp_path_factory, members):
    members = {
        name: content
        for name, content in members.items()
        if not any(other.startswith(f"{name}/") for other in members)
    }
    with _stored(b"") as root:
        folder = dirname(root).removesuffix("/x.zip|zip:")
        for name, content in members.items():
            files.makedirs(dirname(f"{folder}/in/{name}"))
            files.create(f"{folder}/in/{name}").write(memoryview(content), 0)
        nbytes = write_zip(f"{folder}/x.zip", f"{folder}/in", members, b"{}")
        raw = files.read_bytes(f"{folder}/x.zip")
        assert len(raw) == nbytes
        with zipfile.ZipFile(io.BytesIO(raw)) as file:
            assert {name: file.read(name) for name in file.namelist()} == members
            assert list(file.namelist()) == list(members)
            assert file.comment == b"{}"
        assert {name: files.read_bytes(f"{root}/{name}") for name in members} == members


def test_a_zip_on_a_server_is_read_in_few_requests(tmp_path):
    pytest.importorskip("aiohttp", reason="the extra remote")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/zarr.json").write_text("{}")
    (tmp_path / "in/shard").write_bytes(bytes(300_000))
    write_zip(f"{tmp_path}/x.ozx", f"{tmp_path}/in", ["zarr.json", "shard"], b"")
    with range_server(tmp_path) as server:
        store = open_store(f"{server.url}/x.ozx")
        assert store.read_whole(["zarr.json", "missing"], 10) == [b"{}", None]
        before = len(server.requests)
        with store.open("shard") as file:
            assert file.read([(0, 10)]) == [bytes(10)]
        assert store.read_whole(["zarr.json"], 10) == [b"{}"]
        assert len(server.requests) == before + 1
        assert sorted(entry.name for entry in store.entries()) == ["shard", "zarr.json"]
        assert not files.exists(f"{server.url}/none.ozx|zip:/a")


@pytest.mark.needs("obstore")
def test_a_path_below_a_zip_on_a_server_that_names_no_zip_folder_is_absent(tmp_path):
    with zipfile.ZipFile(tmp_path / "em.zip", "w") as archive:
        archive.writestr("color/1/header.wkw", b"")
    with range_server(tmp_path) as server:
        assert store_at(f"{server.url}/em.zip").read_document("x.json", 10) is None
        with pytest.raises(MissingError, match="no dataset, layer or mag"):
            wkwdask.info(f"{server.url}/em.zip/color")


@pytest.mark.needs("obstore")
def test_a_zip_that_is_gone_from_its_server_has_no_absent_files(tmp_path):
    """Else its chunks would be read as zeros."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", b"data")
    with range_server(tmp_path) as server:
        store = open_store(f"{server.url}/a.zip")
        assert store.read_whole(["b"], 10) == [None]
        path.unlink()
        with pytest.raises(MissingError, match="its zip is gone"):
            store.read_whole(["a"], 10)
