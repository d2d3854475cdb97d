"""Folding memory: what differs anywhere gives other bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.kernels.arrays import quick_hash, quick_hash_in_order


@given(st.data(), st.sampled_from(["uint8", "int16", "float32", "uint64"]), st.integers(1, 300))
def test_any_two_changes_are_seen(data, dtype, size):
    """The highest bit of two words, one lane apart or not, does not cancel out."""
    array = np.random.default_rng(size).integers(0, 200, size).astype(dtype)
    changed = array.copy()
    raw = changed.view(np.uint8)
    for place in data.draw(
        st.lists(st.integers(0, raw.size - 1), min_size=1, max_size=2, unique=True)
    ):
        raw[place] ^= data.draw(st.sampled_from([1, 0x80]))
    assert quick_hash(array) == quick_hash(array.copy())
    assert quick_hash(array) != quick_hash(changed)


@pytest.mark.parametrize("places", [(0, 8), (7, 71), (63, 127), (63, 64 * 20 + 63)])
def test_two_highest_bits(places):
    array = np.zeros(64 * 32, np.uint8)
    changed = array.copy()
    changed[list(places)] = 0x80
    assert quick_hash(array) != quick_hash(changed)


def test_words_that_change_places():
    array = np.arange(1, 1025, dtype=np.uint64)
    turned = array.copy()
    turned[[3, 11]] = turned[[11, 3]]
    assert (
        len(
            {
                quick_hash(array),
                quick_hash(turned),
                quick_hash(array[::-1].copy()),
                quick_hash(array[:-1]),
            }
        )
        == 4
    )


@given(st.data(), st.sampled_from(["u1", ">u2", "f4", "u8", "c16"]))
def test_any_memory_order_has_one_hash(data, dtype):
    shape = (
        data.draw(st.integers(1, 3)),
        data.draw(st.sampled_from([0, 1, 8, 16, 24, 64])),
        *data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5))),
    )
    room = [(n + data.draw(st.integers(0, 8)), data.draw(st.integers(1, 2))) for n in shape]
    whole = np.random.default_rng(1).integers(0, 250, [n * step for n, step in room], np.uint8)
    order = data.draw(st.sampled_from("CF"))
    part = tuple(slice(0, n * step, step) for n, (_, step) in zip(shape, room, strict=True))
    array = whole.astype(dtype, order=order)[part]
    assert array.shape == shape
    ordered = array.copy(order="F")
    assert quick_hash_in_order(array, np.empty(array.size, dtype)) == quick_hash(ordered)
    if dtype in ("u1", "f4", "u8") and ordered[..., 0, 0].nbytes % 64 == 0:
        no_memory = np.empty(0, dtype)  # it is not copied
        assert quick_hash_in_order(ordered, no_memory) == quick_hash(ordered)


def test_memory_that_starts_at_any_byte():
    memory = np.arange(201, dtype=np.uint8)
    assert quick_hash(memory[1:]) == quick_hash(memory[1:].copy())
    assert quick_hash(np.zeros(0, np.uint8)) != quick_hash(np.zeros(1, np.uint8))
