"""What was written, added up: completeness, the report, and the records that mags keep of their files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_volume import MemoryTarget
from strategies import damaged, vectors

from wkwdask import BoundingBox, Mag
from wkwdask.errors import CorruptError, IncompleteWriteError
from wkwdask.geometry.grid import cell_box, cells
from wkwdask.model.receipts import Receipt
from wkwdask.model.states import digest
from wkwdask.runs.tally import ShardTally, ladder_records, tally_of
from wkwdask.store.records import RECORD_COLUMNS, RECORD_NAME, read_record, write_record

BOX = BoundingBox((3, 0, 5), (40, 30, 20), Mag(2, 2, 1))  # four files


def target_of(box=BOX, **options):
    return MemoryTarget("/layer/.job/2-2-1", "int16", 1, box, **options)


def receipt_of(shard, target=None, **values):
    box = cell_box(shard, (target or target_of()).shard_shape, BOX).intersection(BOX)
    return Receipt(shard, box, **{"voxels": box.volume, **values})


def all_receipts():
    """Four files: one with everything, one without a voxel, and two between."""
    return [
        receipt_of((0, 0, 0), path="a", nbytes=100, minimum=-5, maximum=9, nonzero=BoundingBox((4, 0, 5), (1, 1, 1), BOX.mag), mtime_ns=11, sources=7),
        receipt_of((1, 0, 0), minimum=0, maximum=0),
        receipt_of((0, 0, 1), path="b", nbytes=50, minimum=2, maximum=3, nonzero=BoundingBox((7, 8, 20), (2, 2, 2), BOX.mag), mtime_ns=12),
        receipt_of(
            (1, 0, 1), path="c", nbytes=7, minimum=0, maximum=300, nonzero=BoundingBox((40, 29, 24), (1, 1, 1), BOX.mag), mtime_ns=2**62, sources=2**63 - 1
        ),
    ]


def test_a_target_that_counts_from_elsewhere():
    """The report speaks of absolute voxels; the record does of the target's own files."""
    tally = tally_of(target_of(origin=(-10, 3, 0)), all_receipts())
    assert tally.report("/layer/2-2-1").nonzero == BoundingBox.from_corners((-6, 3, 5), (31, 33, 25), BOX.mag)
    assert tally.shards.tolist() == tally_of(target_of(), all_receipts()).shards.tolist()


def test_several_files_of_one_receipt():
    tally = tally_of(target_of(), [receipt_of((0, 0, 0), path="a", nbytes=100, files=17), receipt_of((1, 0, 0), files=3)])
    assert tally.report("/layer/2-2-1").files == 17


@pytest.mark.parametrize(("origin", "is_nested"), [((-10, 4, 0), True), ((-9, 4, 0), False)])
def test_a_ladder_of_targets_that_count_from_elsewhere(origin, is_nested):
    """Where the files of two mags do not lie on one grid, the record names no sources."""
    places = ((Mag(1, 1, 1), origin), (Mag(2, 2, 1), (-5, 2, 0)))
    targets = [MemoryTarget("/x", "int16", 1, BoundingBox((0, 0, 0), (32, 32, 16), mag), origin=start) for mag, start in places]
    tallies = [tally_of(target, [Receipt((0, 0, 0), target.box, path="a", nbytes=9, mtime_ns=4)]) for target in targets]
    assert bool(ladder_records(tallies)[1][0, 5]) is is_nested


def test_a_whole_mag():
    receipts = all_receipts()
    tally = tally_of(target_of(), receipts)
    assert tally.expected == len(receipts) == sum(1 for _ in cells(BOX, target_of().shard_shape))
    assert tally.is_complete
    tally.check()
    report = tally.report("/layer/2-2-1")
    assert (report.path, report.files, report.voxels, report.nbytes) == ("/layer/2-2-1", 3, BOX.volume, 157)
    assert (report.minimum, report.maximum) == (-5, 300)
    assert report.nonzero == BoundingBox.from_corners((4, 0, 5), (41, 30, 25), BOX.mag)
    assert tally.shards.dtype == np.int64
    assert tally.shards.tolist() == [[0, 0, 0, 100, 11, 7], [1, 0, 0, 0, 0, 0], [0, 0, 1, 50, 12, 0], [1, 0, 1, 7, 2**62, 2**63 - 1]]


@pytest.mark.parametrize(
    ("which", "limits", "limits_alone"), [([2, 3], (0, 300), (0, 300)), ([2], (0, 3), (2, 3)), ([0], (-5, 9), (-5, 9)), ([], (0, 0), (None, None))]
)
def test_files_that_nothing_is_expected_of_are_zeros(which, limits, limits_alone):
    """In a whole mag; an update tells of what it made alone."""
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
    assert tally.shards.shape == (0, RECORD_COLUMNS)
    report = tally.report("x")
    assert (report.files, report.voxels, report.nbytes, report.minimum, report.maximum, report.nonzero) == (0, BOX.volume, 0, 0, 0, None)
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
    with pytest.raises(IncompleteWriteError, match=rf"/layer/\.job/2-2-1: receipts for {len(set(which))} files, expected 4"):
        tally.check()
    if len(which) != 4:
        assert not tally.is_complete


@pytest.mark.parametrize("first", [True, False])
def test_a_file_of_nothing_but_nan(first):
    """The report tells the least and greatest value, NaN aside, in whatever order files are done."""
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
    """By brute force: all stored files of the finer mag that its footprint touches; those of the first mag are what the tasks have read."""
    random = np.random.default_rng(seed)
    shape = {"chunk_shape": (4, 4, 4), "shard_shape": (8, 8, 8) if cubes else (16, 8, 4)}
    tallies, mag = [], Mag(1, 1, 1)
    for step in [(1, 1, 1), *steps]:
        mag = Mag(*(a * b for a, b in zip(mag.factors, step, strict=True)))
        target = MemoryTarget("x", "uint8", 1, BoundingBox((13, 5, 0), (60, 40, 30)).in_mag(mag), **shape)
        receipts = [
            Receipt(index, target.box, nbytes=int(random.integers(1, 9)) * int(random.random() < 0.7), mtime_ns=int(random.integers(1, 2**62)), sources=int(n))
            for n, index in enumerate(cells(target.box, target.shard_shape), start=5)
        ]
        tallies.append(tally_of(target, receipts))
    rows = ladder_records(tallies)
    assert len(rows) == len(tallies)
    assert rows[0].tolist() == tallies[0].shards.tolist()
    for n, step in enumerate(steps):
        finer, coarser = rows[n], rows[n + 1]
        target = tallies[n + 1].target
        assert coarser[:, :5].tolist() == tallies[n + 1].shards[:, :5].tolist()
        for row in coarser.tolist():
            footprint = cell_box(tuple(row[:3]), [a * b for a, b in zip(target.shard_shape, step, strict=True)], BOX)
            below = [file for file in finer.tolist() if file[3] and tuple(file[:3]) in set(cells(footprint, target.shard_shape))]
            assert row[5] == digest(np.array([file[:5] for file in below], np.int64).reshape(-1, 5))


@given(st.lists(st.tuples(vectors(0, 2**40), vectors(0, 2**62)), max_size=5))
def test_a_record_through_a_file(tmp_path_factory, values):
    folder = str(tmp_path_factory.mktemp("record"))
    rows = np.array([(*a, *b) for a, b in values], np.int64).reshape(-1, RECORD_COLUMNS)
    assert read_record(folder) is None
    write_record(folder, rows)
    np.testing.assert_array_equal(read_record(folder), rows)
    write_record(folder, rows[:1])
    np.testing.assert_array_equal(read_record(folder), rows[:1])


@given(st.data())
def test_any_bytes_are_a_record_or_refused(tmp_path_factory, data):
    """Nothing but the two ever comes of damage: header and all."""
    folder = str(tmp_path_factory.mktemp("record"))
    write_record(folder, np.arange(12, dtype=np.int64).reshape(2, 6))
    path = Path(folder) / RECORD_NAME
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    try:
        rows = read_record(folder)
    except CorruptError as error:
        assert RECORD_NAME in str(error)  # noqa: PT017
    else:
        assert (rows.dtype, rows.shape[1]) == (np.int64, RECORD_COLUMNS)


def test_damaged_records(tmp_path):
    write_record(str(tmp_path), np.arange(12, dtype=np.int64).reshape(2, 6))
    path = tmp_path / RECORD_NAME
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
            read_record(str(tmp_path))
    for rows in (np.zeros((2, 5), np.int64), np.zeros((2, 6), np.int32), np.zeros(6, np.int64), np.array([{"an": "object"}])):
        np.save(path, rows)
        with pytest.raises(CorruptError, match=r"\.wkwdask-files\.npy"):
            read_record(str(tmp_path))
