"""Shares of an array: together they are all tasks, once each; a damaged file is named."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.errors import CorruptError
from wkwdask.runs.shares import Share, write_shares


@given(num_tasks=st.integers(0, 60), group=st.integers(1, 9), elements=st.integers(1, 12))
def test_every_task_is_in_one_share(tmp_path_factory, num_tasks, group, elements):
    path = str(tmp_path_factory.mktemp("shares") / "tasks")
    assert write_shares(path, iter(range(num_tasks)), group, pickle.dumps) == num_tasks
    shares = [Share(path, element, elements) for element in range(elements)]
    assert sorted(task for share in shares for task in share.tasks()) == list(range(num_tasks))
    assert [len(share) for share in shares] == [len(list(share.tasks())) for share in shares]
    assert max(map(len, shares)) - min(map(len, shares)) <= group  # none has more than one group more than another


def test_damage_is_named(tmp_path):
    path = tmp_path / "tasks"
    write_shares(str(path), range(10), 5, pickle.dumps)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(CorruptError, match=r"tasks: \d+ bytes at offset \d+, expected"):
        list(Share(str(path), 0, 1).tasks())
    path.write_bytes(whole)
    index = json.loads((tmp_path / "tasks.index").read_text())
    index["groups"][1][2] = 4
    (tmp_path / "tasks.index").write_text(json.dumps(index))
    with pytest.raises(CorruptError, match="are not signed"):
        list(Share(str(path), 0, 1).tasks())


def test_nothing_stays_of_shares_that_cannot_be_written(tmp_path):
    with pytest.raises(AttributeError):
        write_shares(str(tmp_path / "tasks"), [lambda: None], 1, pickle.dumps)
    assert not list(tmp_path.iterdir())
