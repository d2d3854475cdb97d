"""Files in the folder of a job: its journal, shares of an array and voxels set aside, whole or
damaged."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask import BoundingBox
from wkwdask.errors import CorruptError, TruncatedError
from wkwdask.runs import journal as module
from wkwdask.runs.batch_file import ElementTasks, write_tasks
from wkwdask.runs.journal import Journal, has_journal, read_journal
from wkwdask.runs.parts import read_scratch, write_scratch
from wkwdask.store import files


def entries(folder):
    return [json.loads(line) for line in read_journal(str(folder))]


def test_a_line_is_readable_at_once(tmp_path):
    """By this process and by others, while the journal is open."""
    with Journal(str(tmp_path)) as journal:
        assert not has_journal(str(tmp_path))
        for n in range(3):
            journal.append({"n": n})
            assert entries(tmp_path) == [{"n": k} for k in range(n + 1)]
        other = subprocess.run(
            ["cat", tmp_path / "journal-0.jsonl"], capture_output=True, text=True, check=True
        )
        assert other.stdout == '{"n":0}\n{"n":1}\n{"n":2}\n'
        assert has_journal(str(tmp_path))


def test_a_process_that_is_killed_leaves_its_lines(tmp_path):
    code = (
        "import os, sys\nfrom wkwdask.runs.journal import Journal\nj = "
        f"Journal({str(tmp_path)!r})\nj.append({{'n': 1}})\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -9
    assert entries(tmp_path) == [{"n": 1}]


def test_each_start_has_a_file_of_its_own(tmp_path):
    """Together they are the journal, oldest first, also beyond ten."""
    for n in range(12):
        with Journal(str(tmp_path)) as journal:
            journal.append({"start": n})
            journal.append({"start": n, "more": True})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"journal-{n}.jsonl" for n in range(12)
    )
    assert [entry["start"] for entry in entries(tmp_path)] == [
        n for n in range(12) for _ in range(2)
    ]


def test_two_at_once(tmp_path):
    with Journal(str(tmp_path)) as first, Journal(str(tmp_path)) as second:
        second.append({"n": 2})
        first.append({"n": 1})
        second.append({"n": 3})
    assert entries(tmp_path) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [len(path.read_bytes().splitlines()) for path in sorted(tmp_path.iterdir())] == [1, 2]


def test_a_number_that_was_just_taken(tmp_path, monkeypatch):
    """Another process may make the file between the look and the making."""
    (tmp_path / "journal-0.jsonl").write_text('{"n":0}\n')
    monkeypatch.setattr(module, "numbered", lambda *args: iter(()))
    with Journal(str(tmp_path)) as journal:
        journal.append({"n": 1})
    assert (tmp_path / "journal-0.jsonl").read_text() == '{"n":0}\n'
    assert (tmp_path / "journal-1.jsonl").read_text() == '{"n":1}\n'


@pytest.mark.parametrize("torn", ["", "{", '{"n":1}', '{"n":1,"text":"half'])
def test_a_torn_last_line_is_no_line(tmp_path, torn):
    (tmp_path / "journal-0.jsonl").write_text('{"n":0}\n' + torn)
    assert entries(tmp_path) == [{"n": 0}]
    with Journal(str(tmp_path)) as journal:  # the next start does not write behind it
        journal.append({"n": 5})
    assert entries(tmp_path) == [{"n": 0}, {"n": 5}]
    assert (tmp_path / "journal-0.jsonl").read_text() == '{"n":0}\n' + torn


@given(
    st.lists(
        st.dictionaries(
            st.text(max_size=5),
            st.none() | st.integers() | st.text() | st.floats(allow_nan=False),
            max_size=3,
        ),
        max_size=5,
    ),
    st.data(),
)
def test_every_truncation(tmp_path_factory, values, data):
    folder = tmp_path_factory.mktemp("journal")
    with Journal(str(folder)) as journal:
        for value in values:
            journal.append(value)
    assert entries(folder) == values
    path = folder / "journal-0.jsonl"
    raw = path.read_bytes()
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    path.write_bytes(cut)
    assert entries(folder) == values[: cut.count(b"\n")]
    assert has_journal(str(folder)) == (b"\n" in cut)


def test_what_is_no_journal(tmp_path):
    for name in (
        "journal-1.json",
        "journal-x.jsonl",
        "journal-01.jsonl",
        ".journal-3.jsonl",
        "plan.json",
    ):
        (tmp_path / name).write_text('{"n":0}\n')
    assert entries(tmp_path) == []
    assert not has_journal(str(tmp_path))
    assert not has_journal(str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError):
        Journal(str(tmp_path / "nowhere"))


def test_a_write_that_takes_only_some_bytes(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    with Journal(str(tmp_path)) as journal:
        journal.append({"text": "longer than three bytes"})
    assert entries(tmp_path) == [{"text": "longer than three bytes"}]


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    """A task that could not be noted is not taken for done."""

    def fails(fd, data):
        raise OSError(28, "No space left on device")

    with Journal(str(tmp_path)) as journal, monkeypatch.context() as patch:
        patch.setattr(os, "write", fails)
        with pytest.raises(OSError, match="No space left"):
            journal.append({"n": 1})


def test_lines_reach_the_disk_within_seconds(tmp_path, monkeypatch):
    """Not each at once, which would cost more than a small task does."""
    now, flushed = [100.0], []
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(now[0]))
    with Journal(str(tmp_path)) as journal:
        del flushed[:]  # of the folder
        for n in range(100):
            now[0] = 100 + n / 10
            journal.append({"n": n})
        assert flushed == [102.0, 104.0, 106.0, 108.0]
    assert flushed[4:] == [109.9]  # at its end


def test_the_new_file_is_in_the_folder_for_good(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(files, "fsync", flushed.append)
    with Journal(str(tmp_path)):
        assert flushed == [str(tmp_path)]


def test_it_is_closed_in_any_case(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir())) if os.path.isdir("/proc/self/fd") else None
    with pytest.raises(ZeroDivisionError), Journal(str(tmp_path)):
        _ = 1 / 0
    if before is not None:
        assert len(list(Path("/proc/self/fd").iterdir())) == before


# ----------------------------------------------------------------------------- shares of an array


@given(num_tasks=st.integers(0, 60), group=st.integers(1, 9), elements=st.integers(1, 12))
def test_every_task_is_in_one_share(tmp_path_factory, num_tasks, group, elements):
    path = str(tmp_path_factory.mktemp("shares") / "tasks")
    assert write_tasks(path, iter(range(num_tasks)), group, pickle.dumps) == num_tasks
    shares = [ElementTasks(path, element, elements) for element in range(elements)]
    assert sorted(task for share in shares for task in share.tasks()) == list(range(num_tasks))
    assert [len(share) for share in shares] == [len(list(share.tasks())) for share in shares]
    # none has more than one group more than another
    assert max(map(len, shares)) - min(map(len, shares)) <= group


def test_damage_is_named(tmp_path):
    path = tmp_path / "tasks"
    write_tasks(str(path), range(10), 5, pickle.dumps)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(TruncatedError, match=r"tasks: ends at byte \d+, expected \d+ bytes from"):
        list(ElementTasks(str(path), 0, 1).tasks())
    path.write_bytes(whole)
    index = json.loads((tmp_path / "tasks.index").read_text())
    index["groups"][1][2] = 4
    (tmp_path / "tasks.index").write_text(json.dumps(index))
    with pytest.raises(CorruptError, match="are not signed"):
        list(ElementTasks(str(path), 0, 1).tasks())


def test_nothing_stays_of_shares_that_cannot_be_written(tmp_path):
    with pytest.raises(AttributeError):
        write_tasks(str(tmp_path / "tasks"), [lambda: None], 1, pickle.dumps)
    assert not list(tmp_path.iterdir())


# ----------------------------------------------------------------------------- voxels set aside


BOX = BoundingBox((5, 6, 7), (3, 4, 5))


def pieces(dtype="uint16"):
    values = np.arange(2 * BOX.volume, dtype=dtype).reshape(2, *BOX.size)
    return [
        ((0, 0, 0), BOX, (0, 2), values),
        ((1, 0, 0), BOX, (1, 2), np.zeros((1, *BOX.size), dtype)),
        ((2, 0, 0), BOX, (1, 2), values[1:]),
    ]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float64"])
def test_what_is_set_aside_comes_back(tmp_path, dtype):
    found = write_scratch(f"{tmp_path}/scratch", "a.pieces", pieces(dtype))
    assert [piece.part for piece in found] == [(0, 0, 0), (2, 0, 0)]  # zeros are left out
    for piece, (_, box, channels, values) in zip(found, pieces(dtype)[::2], strict=True):
        assert (piece.box, piece.channels) == (box, channels)
        np.testing.assert_array_equal(read_scratch(piece, np.dtype(dtype)), values)
    assert write_scratch(f"{tmp_path}/scratch", "a.pieces", pieces(dtype)) == found


def test_bits_count_and_not_values(tmp_path):
    """Negative zero is not left out."""
    values = np.full((1, *BOX.size), -0.0)
    (piece,) = write_scratch(f"{tmp_path}/scratch", "a.pieces", [((0, 0, 0), BOX, (0, 1), values)])
    assert np.signbit(read_scratch(piece, values.dtype)).all()


def test_a_damaged_file_is_named(tmp_path):
    first, second = write_scratch(f"{tmp_path}/scratch", "a.pieces", pieces())
    path = tmp_path / "scratch" / "a.pieces"
    path.write_bytes(path.read_bytes()[: second.offset + 20])
    read_scratch(first, np.dtype("uint16"))
    with pytest.raises(
        CorruptError, match=rf"a.pieces: byte {second.offset}: 20 bytes do not decode to"
    ):
        read_scratch(second, np.dtype("uint16"))


def test_a_job_that_is_gone_does_not_come_back(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_scratch(f"{tmp_path}/gone/scratch", "a.pieces", pieces())
    assert not (tmp_path / "gone").exists()
