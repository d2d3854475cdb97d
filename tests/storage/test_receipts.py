"""Receipts: what a journal keeps of them, what they collect, and how parts add up."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import boxes, vectors, voxel_array

from wkwdask import BoundingBox, Mag
from wkwdask.errors import IncompleteWriteError
from wkwdask.model.receipts import Receipt, Stats, merge_receipts
from wkwdask.model.states import add_digests

MAG = Mag(4, 4, 2)
DIGESTS = st.integers(0, 2**63 - 1)
VALUES = st.one_of(st.sampled_from([0, -1, 2**64 - 1, -(2**63), 0.0, -0.0, math.inf, -math.inf, math.nan, 0.1]), st.integers(-9, 9), st.floats())


@st.composite
def receipts(draw):
    """Receipts of files and parts, with extremes of every type: 0 and NaN are values, None says that there is none."""
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
    assert [type(getattr(again, field.name)) for field in fields(Receipt)] == [type(getattr(receipt, field.name)) for field in fields(Receipt)]


@pytest.mark.parametrize(
    "limits", [(0, 0), (0, 7), (-3, 0), (0.0, 0.0), (-0.0, 0.0), (math.nan, math.nan), (math.nan, 1.5), (-math.inf, math.inf), (None, None)]
)
@pytest.mark.parametrize("part", [None, (0, 0, 0), (5, 0, 1)])
def test_zero_is_a_value(limits, part):
    receipt = Receipt((0, 0, 0), BoundingBox((0, 0, 0), (1, 1, 1), MAG), minimum=limits[0], maximum=limits[1], part=part)
    assert repr(through_json(receipt)) == repr(receipt)


def test_the_path_is_not_kept():
    """It follows from shard and part, and a dataset may be moved between two starts."""
    receipt = Receipt((1, 2, 3), BoundingBox((0, 0, 0), (1, 1, 1), MAG), "/here/z3/y2/x1.wkw", 77)
    assert through_json(receipt) == replace(receipt, path=None)
    assert "/here" not in json.dumps(receipt.to_json())


def test_an_empty_receipt_is_short():
    """A journal may have millions of lines."""
    assert Receipt((1, 2, 3), BoundingBox((4, 5, 6), (7, 8, 9)), voxels=504).to_json() == {"shard": (1, 2, 3), "box": [4, 5, 6, 7, 8, 9], "voxels": 504}


def test_another_mag_is_another_box():
    receipt = Receipt((0, 0, 0), BoundingBox((1, 2, 3), (4, 5, 6), MAG), nonzero=BoundingBox((1, 2, 3), (1, 1, 1), MAG))
    other = Receipt.from_json(receipt.to_json(), Mag(2, 2, 1))
    assert (other.box.mag, other.nonzero.mag) == (Mag(2, 2, 1),) * 2


# ----------------------------------------------------------------------------- what was seen


@given(st.sampled_from(["uint8", "int64", "uint64", "float32"]), st.sampled_from(["zeros", "few", "noise", "extremes"]), st.integers(0, 99), st.data())
def test_stats_are_those_of_numpy(dtype, kind, seed, data):
    """In whatever pieces the voxels come, and whether zeros are shown or only told of."""
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
    expected = BoundingBox.from_corners((where.min(0) + box.topleft).tolist(), (where.max(0) + 1 + box.topleft).tolist(), MAG) if len(where) else None
    assert receipt.nonzero == expected
    values = array[~np.isnan(array)] if array.dtype.kind == "f" else array
    if values.size:
        assert (receipt.minimum, receipt.maximum) == (values.min().item(), values.max().item())


@pytest.mark.parametrize("first", [True, False])
def test_nan_aside(first):
    """A piece of nothing but NaN says nothing of the least and greatest value, whether it comes first or last."""
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
    assert (whole.shard, whole.part, whole.path, whole.nbytes, whole.mtime_ns) == ((7, 8, 9), None, None, 0, 0)
    assert whole.voxels == sum(part.voxels for part in parts)
    assert whole.sources == add_digests(*(part.sources for part in parts))
    assert all(whole.box.contains(part.box) for part in parts)
    assert all(whole.nonzero.contains(part.nonzero) for part in parts if part.nonzero is not None)
    limits = [(part.minimum, part.maximum) for part in parts if part.minimum is not None]
    if not np.isnan(limits).any():
        assert (whole.minimum, whole.maximum) == ((min(low for low, _ in limits), max(high for _, high in limits)) if limits else (None, None))


@pytest.mark.parametrize("first", [True, False])
def test_a_part_of_nothing_but_nan(first):
    box = BoundingBox((0, 0, 0), (1, 1, 1), MAG)
    parts = [Receipt((0, 0, 0), box, voxels=1, minimum=low, maximum=low, part=(0, 0, 0)) for low in ((math.nan, 2.0) if first else (2.0, math.nan))]
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
