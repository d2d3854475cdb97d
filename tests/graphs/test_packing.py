"""Tasks as bytes: what they share is pickled once, and what is unpacked equals what was packed."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wkwdask import BoundingBox, Mag
from wkwdask.formats.wkw.array import wkw_array
from wkwdask.formats.wkw.header import BlockType, make_header
from wkwdask.graphs import packing
from wkwdask.graphs.packing import Packer, run_packed


def volume(number):
    header = make_header(np.uint8, 1, block_len=8, file_len=2, block_type=BlockType.RAW)
    return wkw_array(f"ds/{number}/1", header, BoundingBox((0, 0, 0), (16, 16, 16), Mag(1, 1, 1)))


def pair(task):
    return task


def identity(task):
    return id(task[0])


VOLUMES = [volume(number) for number in range(4)]
VALUES = st.recursive(
    st.sampled_from(VOLUMES) | st.integers() | st.text(max_size=3),
    lambda inner: st.tuples(inner, inner) | st.lists(inner, max_size=3),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(VALUES, max_size=6), st.integers(1, 3))
def test_what_is_unpacked_equals_what_was_packed(tasks, most_shared):
    before, packing._MOST_SHARED = packing._MOST_SHARED, most_shared
    try:
        packer = Packer()
        assert [pickle.loads(run_packed(packer.pack(pair, task))) for task in tasks] == tasks
    finally:
        packing._MOST_SHARED = before


def test_what_tasks_share_is_unpickled_once():
    packer, shared = Packer(), volume(7)
    first, second, other = (
        pickle.loads(run_packed(packer.pack(identity, task)))
        for task in [(shared, 1), (shared, 2), (volume(8), 1)]
    )
    assert first == second != other


def test_arrays_are_most_of_a_task_and_pickled_once(monkeypatch):
    dumped = []
    dumps = packing._dumps
    monkeypatch.setattr(packing, "_dumps", lambda value: dumped.append(value) or dumps(value))
    packer, shared = Packer(), volume(9)
    for number in range(5):
        packer.pack(pair, (shared, number))
    assert dumped == [shared]


def test_functions_without_a_name_are_pickled_by_value():
    assert pickle.loads(run_packed(Packer().pack(lambda task: task[1] + 1, (VOLUMES[0], 1)))) == 2


def test_functions_of_the_main_script_are_pickled_by_value():
    script = (
        "from wkwdask.graphs.packing import Packer\nimport sys\ndef double(task): return 2 * task\n"
        "sys.stdout.buffer.write(Packer().pack(double, 21))"
    )
    packed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert pickle.loads(run_packed(packed)) == 42
