"""States of files and their digests: a change of any number shows, an order does not; and sums by cells against brute force."""

from __future__ import annotations

import os
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask import BoundingBox
from wkwdask.geometry.grid import cell_box, cells
from wkwdask.model.states import add_digests, describe, digest, digests, file_states, grouped_digests

NUMBERS = st.integers(0, 2**63 - 1) | st.integers(0, 5)
ROWS = st.tuples(*[st.integers(0, 2**40) | st.integers(0, 3)] * 3, NUMBERS, NUMBERS)


def rows_of(values):
    return np.array(values, np.int64).reshape(-1, 5)


def by_hand(rows):
    """The digest in Python's own integers: mags keep it for years, so that it must never change."""
    total = 0
    for row in rows:
        mixed = 0x9E3779B97F4A7C15
        for number in row:
            mixed = (mixed ^ int(number)) * 0xFF51AFD7ED558CCD % 2**64
            mixed ^= mixed >> 33
        total += mixed
    return total % 2**63


@given(st.lists(ROWS, max_size=6))
def test_digest_by_hand(rows):
    assert digest(rows_of(rows)) == by_hand(rows)


def test_digests_that_mags_have_kept():
    assert digest(rows_of([])) == 0
    assert digest(rows_of([(0, 0, 0, 0, 0)])) == 1973453016078924165
    assert digest(rows_of([(1, 2, 3, 40960, 1_700_000_000_123_456_789)])) == 8675056716292738261


@given(st.lists(ROWS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_order_does_not_matter(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert digest(rows_of(shuffled)) == digest(rows_of(rows)) == add_digests(*(digest(rows_of([row])) for row in rows))


@given(st.lists(ROWS, min_size=1, max_size=4, unique_by=lambda row: row[:3]), st.data())
def test_any_number_counts(rows, data):
    """Index along each axis, size, time: another value is another digest, and so is one file more or less."""
    which, column = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, 4))
    before = rows_of(rows)
    after = before.copy()
    after[which, column] = data.draw(st.integers(0, 2**63 - 1).filter(lambda value: value != before[which, column]) | st.just(before[which, column] ^ 1))
    assert digest(after) != digest(before)
    assert digest(np.delete(before, which, axis=0)) != digest(before)


def test_files_that_trade_places():
    """Sums of hashes of single numbers would not see these."""
    a, b = (0, 0, 0, 700, 5), (1, 0, 0, 800, 6)
    for other in ([(0, 0, 0, 800, 5), (1, 0, 0, 700, 6)], [(0, 0, 0, 700, 6), (1, 0, 0, 800, 5)], [(1, 0, 0, 700, 5), (0, 0, 0, 800, 6)]):
        assert digest(rows_of(other)) != digest(rows_of([a, b]))
    assert len({digest(rows_of([row])) for row in [(1, 2, 3, 4, 5), (2, 1, 3, 4, 5), (3, 2, 1, 4, 5), (1, 2, 3, 5, 4), (4, 2, 3, 1, 5)]}) == 5


def test_many_files_have_many_digests():
    """Neighbours that were written one after the other differ in few bits."""
    index = np.stack([axis.ravel() for axis in np.indices((40, 40, 40))], axis=1)
    states = np.concatenate([index, np.full((64000, 1), 4096), 1_700_000_000_000_000_000 + 1000 * np.arange(64000)[:, np.newaxis]], axis=1)
    found = digests(states)
    assert found.dtype == np.uint64
    assert len(np.unique(found)) == 64000
    assert len(np.unique(found & np.uint64(2**63 - 1))) == 64000


@given(st.lists(st.integers(0, 2**63 - 1), max_size=5))
def test_digests_fit_a_signed_integer_of_64_bits(values):
    total = add_digests(*values)
    assert 0 <= total < 2**63
    assert total == sum(values) % 2**63


POWERS = st.sampled_from([1, 2, 4, 8, 32, 1024])


@given(
    st.lists(st.tuples(*[st.integers(0, 9)] * 3, st.integers(0, 99), st.integers(0, 99)), max_size=8, unique_by=lambda row: row[:3]),
    st.tuples(*[st.sampled_from([1, 2, 4, 8])] * 3),
    st.tuples(*[st.sampled_from([1, 2, 4, 8, 16])] * 3),
)
def test_groups_by_brute_force(rows, shard_shape, footprint):
    """Files longer and shorter than cells, along each axis on its own: every cell has all files that touch it."""
    expected = defaultdict(int)
    for row in rows:
        for cell in cells(cell_box(row[:3], shard_shape, BoundingBox((0, 0, 0), (1, 1, 1))), footprint):
            expected[cell] = add_digests(expected[cell], digest(rows_of([row])))
    found = grouped_digests(rows_of(rows), shard_shape, footprint)
    assert found == expected
    assert all(type(total) is int and 0 <= total < 2**63 for total in found.values())


def test_groups_of_nothing():
    assert grouped_digests(rows_of([]), (8, 8, 8), (2, 2, 2)) == {}


@given(st.lists(ROWS, max_size=5, unique_by=lambda row: row[:3]), POWERS)
def test_groups_of_files_are_the_files(rows, edge):
    rows = [(x % 2**20, y % 2**20, z % 2**20, *rest) for x, y, z, *rest in rows]
    expected = defaultdict(int)
    for row in rows:
        expected[row[:3]] = add_digests(expected[row[:3]], digest(rows_of([row])))
    assert grouped_digests(rows_of(rows), (edge,) * 3, (edge,) * 3) == expected


# ----------------------------------------------------------------------------- files


def test_file_states(tmp_path):
    (tmp_path / "0-0-0").write_bytes(b"12345")
    (tmp_path / "2-0-0").write_bytes(b"")
    (tmp_path / "3-0-0").mkdir()
    (tmp_path / "4-0-0").symlink_to("nowhere")
    (tmp_path / "5-0-0").symlink_to("0-0-0")
    os.utime(tmp_path / "0-0-0", ns=(1, 1_700_000_000_123_456_789))
    os.utime(tmp_path / "2-0-0", ns=(1, 7))
    states = file_states([(x, 0, 0) for x in range(7)], lambda index: str(tmp_path / "-".join(map(str, index))))
    assert states.dtype == np.int64
    assert states.tolist() == [[0, 0, 0, 5, 1_700_000_000_123_456_789], [2, 0, 0, 0, 7], [5, 0, 0, 5, 1_700_000_000_123_456_789]]


def test_no_files(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "nowhere" / "x", tmp_path / "file" / "x"):
        assert file_states([(0, 0, 0)], lambda index, path=path: str(path)).shape == (0, 5)
    assert file_states([], str).shape == (0, 5)


def test_an_unreadable_folder_is_an_error():
    """It is not the same as an absent file."""

    def path_of(index):
        return "x" * 5000

    with pytest.raises(OSError, match="too long"):
        file_states([(0, 0, 0)], path_of)


def test_describe():
    rows = rows_of([(0, 0, 1, 10, 5), (0, 2, 0, 20, 9), (3, 0, 0, 30, 7)])
    assert describe(rows, lambda index: f"file{index}") == "file(0, 2, 0) was changed last, it has 20 bytes"
    assert describe(rows_of([]), str) == "all its files are gone"
