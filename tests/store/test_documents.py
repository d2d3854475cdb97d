"""Changes of documents that list data."""

import json
import operator
import os
import threading
from functools import partial

import pytest

from wkwdask.errors import CorruptError, MissingError
from wkwdask.store.documents import (
    check_replaceable,
    create_document,
    read_object,
    remove_document,
    update_document,
    update_json,
)
from wkwdask.store.store import FolderStore


@pytest.fixture
def store(tmp_path):
    return FolderStore(str(tmp_path))


def _read(store, name="info"):
    return store.read_whole([name], 1 << 20)[0]


def test_a_change_gets_the_content_and_returns_the_new_one(store):
    seen = []

    def change(raw):
        seen.append(raw)
        return b"%d" % (int(raw or 0) + 1)

    update_document(store, "info", change)
    update_document(store, "info", change)
    assert (seen, _read(store), store.names()) == ([None, b"1"], b"2", ["info"])


def test_no_change_writes_nothing(store):
    update_document(store, "info", lambda raw: raw)
    assert store.names() == []
    store.put("info", b'{"a": 1.50}')
    (before,) = store.states(["info"])
    update_json(store, "info", lambda document: {**document})
    assert (_read(store), store.states(["info"])) == (b'{"a": 1.50}', [before])


def test_no_change_of_many_writers_is_lost(store):
    def add(number):
        for step in range(10):
            update_json(store, "info", partial(operator.or_, {f"{number}.{step}": 1}), {})

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads(_read(store))) == 40
    assert store.names() == ["info"]


def test_an_absent_document_needs_a_new_one(store):
    with pytest.raises(MissingError, match="info: not found"):
        update_json(store, "info", lambda document: document)
    update_json(store, "info", lambda document: {}, {})  # an empty document is not created
    assert store.names() == []


def test_a_damaged_document_is_not_replaced(store):
    store.put("info", b"{")
    with pytest.raises(CorruptError, match="info: byte 1: not valid JSON"):
        update_json(store, "info", lambda document: {"a": 1}, {})
    assert _read(store) == b"{"
    assert read_object(store, "info") is None


def test_a_document_is_created_once(store):
    create_document(store, "provenance", b"first")
    create_document(store, "provenance", b"second")
    assert _read(store, "provenance") == b"first"


def test_a_document_is_removed_only_while_the_condition_holds(store):
    store.put("info", b"{}")
    remove_document(store, "info", lambda: False, "removal")
    assert store.exists("info")
    remove_document(store, "info", lambda: True, "removal")
    remove_document(store, "info", lambda: True, "removal")
    assert store.names() == []


def test_a_link_inside_the_folder_is_kept_and_one_that_leads_out_is_replaced(tmp_path):
    folder, other = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    other.mkdir()
    (folder / "info.v1").write_text('{"n": 1}')
    (folder / "info").symlink_to("info.v1")
    (other / "info").write_text('{"n": 5}')
    (folder / "outside").symlink_to("../b/info")
    store = FolderStore(str(folder))
    for name in ("info", "outside"):
        update_json(store, name, lambda document: {"n": document["n"] + 1})
    assert (folder / "info").is_symlink()
    assert json.loads((folder / "info.v1").read_text()) == {"n": 2}
    assert not (folder / "outside").is_symlink()
    assert json.loads((folder / "outside").read_text()) == {"n": 6}
    assert json.loads((other / "info").read_text()) == {"n": 5}


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(PermissionError, match="the volume's info could not be updated"):
        check_replaceable(FolderStore(str(tmp_path)), "info", "volume")
