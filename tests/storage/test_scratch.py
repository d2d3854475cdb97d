"""Voxels set aside in scratch files."""

from __future__ import annotations

import numpy as np
import pytest

from wkwdask import BoundingBox
from wkwdask.errors import CorruptError
from wkwdask.runs.scratch import read_piece, set_aside

BOX = BoundingBox((5, 6, 7), (3, 4, 5))


def pieces(dtype="uint16"):
    values = np.arange(2 * BOX.volume, dtype=dtype).reshape(2, *BOX.size)
    return [((0, 0, 0), BOX, (0, 2), values), ((1, 0, 0), BOX, (1, 2), np.zeros((1, *BOX.size), dtype)), ((2, 0, 0), BOX, (1, 2), values[1:])]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float64"])
def test_what_is_set_aside_comes_back(tmp_path, dtype):
    found = set_aside(f"{tmp_path}/scratch", "a.pieces", pieces(dtype))
    assert [piece.part for piece in found] == [(0, 0, 0), (2, 0, 0)]  # zeros are left out
    for piece, (_, box, channels, values) in zip(found, pieces(dtype)[::2], strict=True):
        assert (piece.box, piece.channels) == (box, channels)
        np.testing.assert_array_equal(read_piece(piece, np.dtype(dtype)), values)
    assert set_aside(f"{tmp_path}/scratch", "a.pieces", pieces(dtype)) == found


def test_bits_count_and_not_values(tmp_path):
    """Negative zero is not left out."""
    values = np.full((1, *BOX.size), -0.0)
    (piece,) = set_aside(f"{tmp_path}/scratch", "a.pieces", [((0, 0, 0), BOX, (0, 1), values)])
    assert np.signbit(read_piece(piece, values.dtype)).all()


def test_a_damaged_file_is_named(tmp_path):
    first, second = set_aside(f"{tmp_path}/scratch", "a.pieces", pieces())
    path = tmp_path / "scratch" / "a.pieces"
    path.write_bytes(path.read_bytes()[: second.offset + 20])
    read_piece(first, np.dtype("uint16"))
    with pytest.raises(CorruptError, match=rf"a.pieces: byte {second.offset}: 20 bytes are not the"):
        read_piece(second, np.dtype("uint16"))


def test_a_job_that_is_gone_does_not_come_back(tmp_path):
    with pytest.raises(FileNotFoundError):
        set_aside(f"{tmp_path}/gone/scratch", "a.pieces", pieces())
    assert not (tmp_path / "gone").exists()
