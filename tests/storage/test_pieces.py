"""Writing in large pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.store import pieces
from wkwdask.store.local import NewFile
from wkwdask.store.pieces import Pieces

SIZE = pieces.MEMORY_NBYTES


@pytest.fixture(autouse=True)
def _no_memory_of_others(monkeypatch):
    monkeypatch.setattr(pieces._kept, "memories", [], raising=False)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 90)), max_size=30), st.integers(0, 5))
def test_any_pieces(tmp_path_factory, appended, offset):
    """Copies of bytes, and bytes that are put in place, one behind the other."""
    pieces._kept.memories = [np.empty(40, np.uint8)]
    path = tmp_path_factory.mktemp("pieces") / "file"
    random = np.random.default_rng(0)
    output, expected = Pieces(lambda: NewFile(str(path)), offset), [np.zeros(offset, np.uint8)]
    for in_place, count in appended:
        data = random.integers(0, 256, count, np.uint8)
        if in_place:
            room = output.room(count)
            assert room.size == count
            room[...] = data
            output.advance(count)
        else:
            output.append(data)
        expected.append(data)
        assert output.end == sum(map(len, expected))
    output.close().publish()
    written = np.concatenate(expected)
    assert path.read_bytes() == (written.tobytes() if written.size > offset else b"")


def test_writes_are_large(tmp_path, monkeypatch):
    """And there is no file before the first."""
    written = []
    monkeypatch.setattr(NewFile, "write", lambda self, data, offset: written.append((offset, len(data))))
    output = Pieces(lambda: NewFile(str(tmp_path / "file")), 100)
    for _ in range(7):
        output.room(SIZE // 4)
        output.advance(SIZE // 4)
        assert written or not list(tmp_path.iterdir())
    output.close().discard()
    assert written == [(100, SIZE), (100 + SIZE, SIZE // 4 * 3)]


def test_memory_is_used_again(tmp_path):
    """By the next file of the thread; a few pieces are kept, and none of another size."""
    outputs = [Pieces(lambda: NewFile(str(tmp_path / "file")), 0) for _ in range(6)]
    memories = [output._memory for output in outputs]
    outputs[0].room(2 * SIZE)
    for output in outputs:
        output.discard()
    assert pieces._kept.memories == memories[1:5]
    assert Pieces(lambda: NewFile(str(tmp_path / "file")), 0)._memory is memories[4]
    assert not list(tmp_path.iterdir())
