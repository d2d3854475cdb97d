"""What was written: receipts, digests of files, and both added up for the report and the records
that mags keep."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.memory_volume import MemoryTarget
from support.strategies import boxes, damaged, vectors, voxel_array

from wkwdask import BoundingBox, Mag
from wkwdask.errors import CorruptError, IncompleteWriteError
from wkwdask.geometry.grid import cell_box, cells
from wkwdask.model.states import (
    FILE_RECORD_COLUMNS,
    FILE_RECORD_NAME,
    add_digests,
    describe_last_change,
    digest,
    digests,
    grouped_digests,
)
from wkwdask.model.writing.receipts import Receipt, Stats, merge_receipts
from wkwdask.runs.parts import ShardTally, pyramid_records, tally_of
from wkwdask.store.by_path import file_states
from wkwdask.store.records import read_file_record, write_file_record

MAG = Mag(4, 4, 2)
DIGESTS = st.integers(0, 2**63 - 1)
VALUES = st.one_of(
    st.sampled_from([0, -1, 2**64 - 1, -(2**63), 0.0, -0.0, math.inf, -math.inf, math.nan, 0.1]),
    st.integers(-9, 9),
    st.floats(),
)


@st.composite
def receipts(draw):
    """Receipts of files and parts, with extremes of every type: 0 and NaN are values, None says
    that there is none."""
    limits = draw(st.none() | st.tuples(VALUES, VALUES))
    return Receipt(
        draw(vectors(0, 2**40)),
        draw(boxes(mag=MAG)),
        None,
        draw(st.integers(0, 2**40)),
        draw(st.integers(0, 2**60)),
        *(limits or (None, None)),
        draw(st.none() | boxes(mag=MAG)),
        draw(st.none() | vectors(0, 3)),
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(0, 2**62)),
        draw(DIGESTS),
    )


def through_json(receipt):
    return Receipt.from_json(json.loads(json.dumps(receipt.to_json())), receipt.box.mag)


@given(receipts())
def test_through_a_journal(receipt):
    """All fields come back, of the same types."""
    again = through_json(receipt)
    assert repr(again) == repr(receipt)  # NaN is not equal to itself
    assert [type(getattr(again, field.name)) for field in fields(Receipt)] == [
        type(getattr(receipt, field.name)) for field in fields(Receipt)
    ]


@pytest.mark.parametrize(
    "limits",
    [
        (0, 0),
        (0, 7),
        (-3, 0),
        (0.0, 0.0),
        (-0.0, 0.0),
        (math.nan, math.nan),
        (math.nan, 1.5),
        (-math.inf, math.inf),
        (None, None),
    ],
)
@pytest.mark.parametrize("part", [None, (0, 0, 0), (5, 0, 1)])
def test_zero_is_a_value(limits, part):
    receipt = Receipt(
        (0, 0, 0),
        BoundingBox((0, 0, 0), (1, 1, 1), MAG),
        minimum=limits[0],
        maximum=limits[1],
        part=part,
    )
    assert repr(through_json(receipt)) == repr(receipt)


def test_the_path_is_not_kept():
    """It follows from shard and part, and a dataset may be moved between two starts."""
    receipt = Receipt((1, 2, 3), BoundingBox((0, 0, 0), (1, 1, 1), MAG), "/here/z3/y2/x1.wkw", 77)
    assert through_json(receipt) == replace(receipt, path=None)
    assert "/here" not in json.dumps(receipt.to_json())


def test_an_empty_receipt_is_short():
    """A journal may have millions of lines."""
    assert Receipt((1, 2, 3), BoundingBox((4, 5, 6), (7, 8, 9)), voxels=504).to_json() == {
        "shard": (1, 2, 3),
        "box": [4, 5, 6, 7, 8, 9],
        "voxels": 504,
    }


def test_another_mag_is_another_box():
    receipt = Receipt(
        (0, 0, 0),
        BoundingBox((1, 2, 3), (4, 5, 6), MAG),
        nonzero=BoundingBox((1, 2, 3), (1, 1, 1), MAG),
    )
    other = Receipt.from_json(receipt.to_json(), Mag(2, 2, 1))
    assert (other.box.mag, other.nonzero.mag) == (Mag(2, 2, 1),) * 2


# ----------------------------------------------------------------------------- what was seen


@given(
    st.sampled_from(["uint8", "int64", "uint64", "float32"]),
    st.sampled_from(["zeros", "few", "noise", "extremes"]),
    st.integers(0, 99),
    st.data(),
)
def test_stats_are_those_of_numpy(dtype, kind, seed, data):
    box = BoundingBox(data.draw(vectors(0, 9)), data.draw(vectors(1, 6)), MAG)
    array = np.array(voxel_array(dtype, (2, *box.size), seed, kind))
    if data.draw(st.booleans()):
        array[:, : array.shape[1] // 2] = 0
    stats = Stats(MAG)
    cut = data.draw(st.integers(0, box.size[2]))
    for low, high in ((0, cut), (cut, box.size[2])):
        piece, corner = array[..., low:high], (box.topleft[0], box.topleft[1], box.topleft[2] + low)
        if piece.any() or data.draw(st.booleans()):
            stats.add(piece, corner)
        else:
            stats.add_zeros(BoundingBox(corner, piece.shape[1:], MAG))
    receipt = stats.receipt((1, 2, 3), None)
    assert (receipt.box.intersection(box), receipt.voxels) == (box, box.volume)
    where = np.argwhere(array.any(axis=0))
    expected = (
        BoundingBox.from_corners(
            (where.min(0) + box.topleft).tolist(), (where.max(0) + 1 + box.topleft).tolist(), MAG
        )
        if len(where)
        else None
    )
    assert receipt.nonzero == expected
    values = array[~np.isnan(array)] if array.dtype.kind == "f" else array
    if values.size:
        assert (receipt.minimum, receipt.maximum) == (values.min().item(), values.max().item())


@pytest.mark.parametrize("first", [True, False])
def test_nan_aside(first):
    """A piece of nothing but NaN says nothing of the least and greatest value, whether it comes
    first or last."""
    stats = Stats(MAG)
    pieces = [np.full((1, 2, 2, 2), np.nan, np.float32), np.full((1, 2, 2, 2), 3, np.float32)]
    for n, piece in enumerate(pieces if first else reversed(pieces)):
        stats.add(piece, (0, 0, 2 * n))
    receipt = stats.receipt((0, 0, 0), None)
    assert (receipt.minimum, receipt.maximum) == (3, 3)
    assert receipt.nonzero == BoundingBox((0, 0, 0), (2, 2, 4), MAG)


@given(st.lists(receipts(), min_size=1, max_size=4))
def test_parts_add_up(parts):
    whole = merge_receipts((7, 8, 9), parts)
    assert (whole.shard, whole.part, whole.path, whole.nbytes, whole.mtime_ns) == (
        (7, 8, 9),
        None,
        None,
        0,
        0,
    )
    assert whole.voxels == sum(part.voxels for part in parts)
    assert whole.sources == add_digests(*(part.sources for part in parts))
    assert all(whole.box.contains(part.box) for part in parts)
    assert all(whole.nonzero.contains(part.nonzero) for part in parts if part.nonzero is not None)
    limits = [(part.minimum, part.maximum) for part in parts if part.minimum is not None]
    if not np.isnan(limits).any():
        assert (whole.minimum, whole.maximum) == (
            (min(low for low, _ in limits), max(high for _, high in limits))
            if limits
            else (None, None)
        )


@pytest.mark.parametrize("first", [True, False])
def test_a_part_of_nothing_but_nan(first):
    box = BoundingBox((0, 0, 0), (1, 1, 1), MAG)
    parts = [
        Receipt((0, 0, 0), box, voxels=1, minimum=low, maximum=low, part=(0, 0, 0))
        for low in ((math.nan, 2.0) if first else (2.0, math.nan))
    ]
    whole = merge_receipts((0, 0, 0), parts)
    assert (whole.minimum, whole.maximum) == (2, 2)


def test_no_parts():
    with pytest.raises(IncompleteWriteError, match=r"no parts for file \(1, 2, 3\)"):
        merge_receipts((1, 2, 3), [])


def test_a_signalling_nan_is_a_nan():
    """Without a warning, which is an error here."""
    values = np.array([0x7FA00000, 0], np.uint32).view(np.float32).reshape(1, 2, 1, 1)
    stats = Stats(Mag(1, 1, 1))
    stats.add(values, (0, 0, 0))
    receipt = stats.receipt((0, 0, 0), None)
    assert receipt.nonzero.size == (1, 1, 1)


# ----------------------------------------------------------------------------- states of files


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
    assert (
        digest(rows_of(shuffled))
        == digest(rows_of(rows))
        == add_digests(*(digest(rows_of([row])) for row in rows))
    )


@given(st.lists(ROWS, min_size=1, max_size=4, unique_by=lambda row: row[:3]), st.data())
def test_any_number_counts(rows, data):
    """Index along each axis, size, time: another value is another digest, and so is one file more
    or less."""
    which, column = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, 4))
    before = rows_of(rows)
    after = before.copy()
    after[which, column] = data.draw(
        st.integers(0, 2**63 - 1).filter(lambda value: value != before[which, column])
        | st.just(before[which, column] ^ 1)
    )
    assert digest(after) != digest(before)
    assert digest(np.delete(before, which, axis=0)) != digest(before)


def test_files_that_trade_places():
    """Sums of hashes of single numbers would not see these."""
    a, b = (0, 0, 0, 700, 5), (1, 0, 0, 800, 6)
    for other in (
        [(0, 0, 0, 800, 5), (1, 0, 0, 700, 6)],
        [(0, 0, 0, 700, 6), (1, 0, 0, 800, 5)],
        [(1, 0, 0, 700, 5), (0, 0, 0, 800, 6)],
    ):
        assert digest(rows_of(other)) != digest(rows_of([a, b]))
    assert (
        len(
            {
                digest(rows_of([row]))
                for row in [
                    (1, 2, 3, 4, 5),
                    (2, 1, 3, 4, 5),
                    (3, 2, 1, 4, 5),
                    (1, 2, 3, 5, 4),
                    (4, 2, 3, 1, 5),
                ]
            }
        )
        == 5
    )


def test_many_files_have_many_digests():
    """Neighbours that were written one after the other differ in few bits."""
    index = np.stack([axis.ravel() for axis in np.indices((40, 40, 40))], axis=1)
    states = np.concatenate(
        [
            index,
            np.full((64000, 1), 4096),
            1_700_000_000_000_000_000 + 1000 * np.arange(64000)[:, np.newaxis],
        ],
        axis=1,
    )
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
    st.lists(
        st.tuples(*[st.integers(0, 9)] * 3, st.integers(0, 99), st.integers(0, 99)),
        max_size=8,
        unique_by=lambda row: row[:3],
    ),
    st.tuples(*[st.sampled_from([1, 2, 4, 8])] * 3),
    st.tuples(*[st.sampled_from([1, 2, 4, 8, 16])] * 3),
)
def test_groups_by_brute_force(rows, shard_shape, footprint):
    """Files longer and shorter than cells, along each axis on its own: every cell has all files
    that touch it."""
    expected = defaultdict(int)
    for row in rows:
        for cell in cells(
            cell_box(row[:3], shard_shape, BoundingBox((0, 0, 0), (1, 1, 1))), footprint
        ):
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
    states = file_states(
        [(x, 0, 0) for x in range(7)], lambda index: str(tmp_path / "-".join(map(str, index)))
    )
    assert states.dtype == np.int64
    assert states.tolist() == [
        [0, 0, 0, 5, 1_700_000_000_123_456_789],
        [2, 0, 0, 0, 7],
        [5, 0, 0, 5, 1_700_000_000_123_456_789],
    ]


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
    assert (
        describe_last_change(rows, lambda index: f"file{index}")
        == "file(0, 2, 0) was changed last, it has 20 bytes"
    )
    assert describe_last_change(rows_of([]), str) == "all its files are gone"


# ----------------------------------------------------------------------------- tallies


BOX = BoundingBox((3, 0, 5), (40, 30, 20), Mag(2, 2, 1))  # four files


def target_of(box=BOX, **options):
    return MemoryTarget("/layer/.job/2-2-1", "int16", 1, box, **options)


def receipt_of(shard, target=None, **values):
    box = cell_box(shard, (target or target_of()).shard_shape, BOX).intersection(BOX)
    return Receipt(shard, box, **{"voxels": box.volume, **values})


def all_receipts():
    """Four files: one with everything, one without a voxel, and two between."""
    return [
        receipt_of(
            (0, 0, 0),
            path="a",
            nbytes=100,
            minimum=-5,
            maximum=9,
            nonzero=BoundingBox((4, 0, 5), (1, 1, 1), BOX.mag),
            mtime_ns=11,
            sources=7,
        ),
        receipt_of((1, 0, 0), minimum=0, maximum=0),
        receipt_of(
            (0, 0, 1),
            path="b",
            nbytes=50,
            minimum=2,
            maximum=3,
            nonzero=BoundingBox((7, 8, 20), (2, 2, 2), BOX.mag),
            mtime_ns=12,
        ),
        receipt_of(
            (1, 0, 1),
            path="c",
            nbytes=7,
            minimum=0,
            maximum=300,
            nonzero=BoundingBox((40, 29, 24), (1, 1, 1), BOX.mag),
            mtime_ns=2**62,
            sources=2**63 - 1,
        ),
    ]


def test_a_target_that_counts_from_elsewhere():
    """The report speaks of absolute voxels; the record does of the target's own files."""
    tally = tally_of(target_of(origin=(-10, 3, 0)), all_receipts())
    assert tally.report("/layer/2-2-1").nonzero == BoundingBox.from_corners(
        (-6, 3, 5), (31, 33, 25), BOX.mag
    )
    assert tally.shards.tolist() == tally_of(target_of(), all_receipts()).shards.tolist()


def test_several_files_of_one_receipt():
    tally = tally_of(
        target_of(),
        [receipt_of((0, 0, 0), path="a", nbytes=100, files=17), receipt_of((1, 0, 0), files=3)],
    )
    assert tally.report("/layer/2-2-1").files == 17


def test_a_whole_mag():
    receipts = all_receipts()
    tally = tally_of(target_of(), receipts)
    assert tally.expected == len(receipts) == sum(1 for _ in cells(BOX, target_of().shard_shape))
    assert tally.is_complete
    tally.check()
    report = tally.report("/layer/2-2-1")
    assert (report.path, report.files, report.voxels, report.nbytes) == (
        "/layer/2-2-1",
        3,
        BOX.volume,
        157,
    )
    assert (report.minimum, report.maximum) == (-5, 300)
    assert report.nonzero == BoundingBox.from_corners((4, 0, 5), (41, 30, 25), BOX.mag)
    assert tally.shards.dtype == np.int64
    assert tally.shards.tolist() == [
        [0, 0, 0, 100, 11, 7],
        [1, 0, 0, 0, 0, 0],
        [0, 0, 1, 50, 12, 0],
        [1, 0, 1, 7, 2**62, 2**63 - 1],
    ]


@pytest.mark.parametrize(
    ("which", "limits", "limits_alone"),
    [
        ([2, 3], (0, 300), (0, 300)),
        ([2], (0, 3), (2, 3)),
        ([0], (-5, 9), (-5, 9)),
        ([], (0, 0), (None, None)),
    ],
)
def test_files_that_nothing_is_expected_of_are_zeros(which, limits, limits_alone):
    for whole in (True, False):
        tally = ShardTally(target_of(), len(which))
        for n in which:
            tally.add(all_receipts()[n])
        tally.check()
        report = tally.report("x", whole=whole)
        assert (report.voxels, report.files) == (BOX.volume if whole else tally.voxels, len(which))
        assert (report.minimum, report.maximum) == (limits if whole else limits_alone)


def test_nothing_at_all():
    tally = ShardTally(target_of(), 0)
    assert tally.is_complete
    tally.check()
    assert tally.shards.shape == (0, FILE_RECORD_COLUMNS)
    report = tally.report("x")
    assert (
        report.files,
        report.voxels,
        report.nbytes,
        report.minimum,
        report.maximum,
        report.nonzero,
    ) == (0, BOX.volume, 0, 0, 0, None)
    empty = tally_of(target_of(BoundingBox((5, 5, 5), (0, 3, 3))), [])
    empty.check()
    assert (empty.expected, empty.report("x").voxels, empty.report("x").minimum) == (0, 0, None)


@pytest.mark.parametrize(
    "which",
    [
        [0, 1, 2],  # one is missing
        [0, 1, 2, 2],  # one came twice in the place of another
        [0, 1, 2, 3, 3],  # one came twice
        [],
    ],
)
def test_what_is_not_complete(which):
    receipts = all_receipts()
    tally = tally_of(target_of(), [receipts[n] for n in which])
    with pytest.raises(
        IncompleteWriteError,
        match=rf"/layer/\.job/2-2-1: receipts for {len(set(which))} files, expected 4",
    ):
        tally.check()
    if len(which) != 4:
        assert not tally.is_complete


@pytest.mark.parametrize("first", [True, False])
def test_a_file_of_nothing_but_nan(first):
    values = (math.nan, 2.5) if first else (2.5, math.nan)
    tally = ShardTally(target_of(), 2)
    for x, value in enumerate(values):
        tally.add(receipt_of((x, 0, 0), path="x", nbytes=1, minimum=value, maximum=value))
    report = tally.report("x", whole=False)
    assert (report.minimum, report.maximum) == (2.5, 2.5)


@given(st.permutations(range(4)))
def test_the_order_of_receipts_does_not_matter(order):
    receipts = all_receipts()
    tally = tally_of(target_of(), [receipts[n] for n in order])
    assert tally.report("x") == tally_of(target_of(), receipts).report("x")
    assert sorted(tally.shards.tolist()) == sorted(tally_of(target_of(), receipts).shards.tolist())


# ----------------------------------------------------------------------------- records

STEPS = st.sampled_from([(2, 2, 2), (2, 2, 1), (1, 1, 2), (4, 1, 8)])


@given(st.lists(STEPS, min_size=1, max_size=3), st.booleans(), st.integers(0, 99))
def test_records_name_the_files_that_each_file_is_made_from(steps, cubes, seed):
    """By brute force: all stored files of the finer mag that its footprint touches; those of the
    first mag are what the tasks have read."""
    random = np.random.default_rng(seed)
    shape = {"chunk_shape": (4, 4, 4), "shard_shape": (8, 8, 8) if cubes else (16, 8, 4)}
    tallies, mag = [], Mag(1, 1, 1)
    for step in [(1, 1, 1), *steps]:
        mag = Mag(*(a * b for a, b in zip(mag.factors, step, strict=True)))
        target = MemoryTarget(
            "x", "uint8", 1, BoundingBox((13, 5, 0), (60, 40, 30)).in_mag(mag), **shape
        )
        receipts = [
            Receipt(
                index,
                target.box,
                nbytes=int(random.integers(1, 9)) * int(random.random() < 0.7),
                mtime_ns=int(random.integers(1, 2**62)),
                sources=int(n),
            )
            for n, index in enumerate(cells(target.box, target.shard_shape), start=5)
        ]
        tallies.append(tally_of(target, receipts))
    rows = pyramid_records(tallies)
    assert len(rows) == len(tallies)
    assert rows[0].tolist() == tallies[0].shards.tolist()
    for n, step in enumerate(steps):
        finer, coarser = rows[n], rows[n + 1]
        target = tallies[n + 1].target
        assert coarser[:, :5].tolist() == tallies[n + 1].shards[:, :5].tolist()
        for row in coarser.tolist():
            footprint = cell_box(
                tuple(row[:3]), [a * b for a, b in zip(target.shard_shape, step, strict=True)], BOX
            )
            below = [
                file
                for file in finer.tolist()
                if file[3] and tuple(file[:3]) in set(cells(footprint, target.shard_shape))
            ]
            assert row[5] == digest(np.array([file[:5] for file in below], np.int64).reshape(-1, 5))


@given(st.lists(st.tuples(vectors(0, 2**40), vectors(0, 2**62)), max_size=5))
def test_a_record_through_a_file(tmp_path_factory, values):
    folder = str(tmp_path_factory.mktemp("record"))
    rows = np.array([(*a, *b) for a, b in values], np.int64).reshape(-1, FILE_RECORD_COLUMNS)
    assert read_file_record(folder) is None
    write_file_record(folder, rows)
    np.testing.assert_array_equal(read_file_record(folder), rows)
    write_file_record(folder, rows[:1])
    np.testing.assert_array_equal(read_file_record(folder), rows[:1])


@given(st.data())
def test_any_bytes_are_a_record_or_refused(tmp_path_factory, data):
    """Nothing but the two ever comes of damage: header and all."""
    folder = str(tmp_path_factory.mktemp("record"))
    write_file_record(folder, np.arange(12, dtype=np.int64).reshape(2, 6))
    path = Path(folder) / FILE_RECORD_NAME
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    try:
        rows = read_file_record(folder)
    except CorruptError as error:
        assert FILE_RECORD_NAME in str(error)  # noqa: PT017
    else:
        assert (rows.dtype, rows.shape[1]) == (np.int64, FILE_RECORD_COLUMNS)


def test_damaged_records(tmp_path):
    write_file_record(str(tmp_path), np.arange(12, dtype=np.int64).reshape(2, 6))
    path = tmp_path / FILE_RECORD_NAME
    raw = path.read_bytes()
    for content in (
        b"",
        raw[:50],
        raw[:-1],
        b"text",
        raw[:10] + b"\xff" * 20 + raw[30:],
        raw.replace(b"'descr'", b"'descr("),
        raw.replace(b"(2, 6)", b"(2, 6 "),
    ):
        path.write_bytes(content)
        with pytest.raises(CorruptError, match=r"\.wkwdask-files\.npy"):
            read_file_record(str(tmp_path))
    for rows in (
        np.zeros((2, 5), np.int64),
        np.zeros((2, 6), np.int32),
        np.zeros(6, np.int64),
        np.array([{"an": "object"}]),
    ):
        np.save(path, rows)
        with pytest.raises(CorruptError, match=r"\.wkwdask-files\.npy"):
            read_file_record(str(tmp_path))
