"""Blocks that one compiled call reads, decodes and copies equal those that are read in steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wkwdask
from wkwdask.formats.opening import open_stored
from wkwdask.formats.wkw import stored_file
from wkwdask.kernels.blocks import read as blocks

EDGE, FILE_LEN = 32, 2
SIZE = EDGE * FILE_LEN
CASES = [
    ("uint8", 1, "lz4"),
    ("uint8", 3, "lz4hc"),
    ("uint16", 1, "raw"),
    ("uint32", 1, "lz4"),
    ("float32", 2, "lz4hc"),
    ("uint64", 1, "lz4hc"),
]
ORDERS = ("cxyz", "czyx", "xyzc", "cyxz", "cxzy", "cyzx")


def _voxels(dtype, channels):
    """Fill blocks with zeros, constants, runs and noise: stored blocks of all lengths."""
    rng = np.random.default_rng(3)
    voxels = np.zeros((channels, SIZE, SIZE, SIZE), dtype)
    for at in np.ndindex((FILE_LEN,) * 3):
        block = voxels[(slice(None), *(slice(n * EDGE, n * EDGE + EDGE) for n in at))]
        kind = rng.integers(4)
        if kind == 1:
            block[...] = 7
        elif kind == 2:
            block[...] = rng.integers(0, 100, block.shape)
            block[:, :, 5:] = block[:, :, 4:5]
        elif kind == 3:
            block[...] = rng.integers(0, 256, block.shape)
    return voxels


@pytest.fixture(scope="module")
def mags(tmp_path_factory):
    """One mag of a single file for each case, with its voxels."""
    if blocks._compiled() is None:
        pytest.skip("python-lz4 does not export LZ4's functions here, or WKWDASK_LZ4=python is set")
    made = {}
    for dtype, channels, compression in CASES:
        voxels = _voxels(dtype, channels)
        folder = tmp_path_factory.mktemp("mags") / "1"
        wkwdask.write(
            folder, (0, 0, 0), voxels, block_len=EDGE, file_len=FILE_LEN, compression=compression
        )
        made[dtype, channels, compression] = folder, voxels
    return made


def _read(folder, low, size, order, fill_zeros, first, count):
    """Read into an array of one memory order, filled with a value that a forgotten write leaves
    behind."""
    volume = open_stored(folder)[1]
    lengths = dict(zip("cxyz", (count, *size), strict=True))
    out = np.full([lengths[axis] for axis in order], 77, volume.dtype).transpose(
        [order.index(axis) for axis in "cxyz"]
    )
    return volume.read_into(out, low, first, fill_zeros=fill_zeros), out


@given(st.data())
def test_any_box(mags, data):
    case = data.draw(st.sampled_from(CASES))
    folder, voxels = mags[case]
    low = data.draw(st.tuples(*[st.integers(0, SIZE - 1)] * 3))
    size = tuple(data.draw(st.integers(1, SIZE - a)) for a in low)
    order, fill_zeros = data.draw(st.sampled_from(ORDERS)), data.draw(st.booleans())
    first = data.draw(st.integers(0, case[1] - 1))
    count = data.draw(st.integers(1, case[1] - first))
    expected = voxels[
        (slice(first, first + count), *(slice(a, a + n) for a, n in zip(low, size, strict=True)))
    ]
    results = []
    with pytest.MonkeyPatch.context() as patched:
        # not called: the compiled call reads all
        patched.setattr(stored_file.WkwFile, "_read_in_steps", None)
        results.append(_read(folder, low, size, order, fill_zeros, first, count))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stored_file, "read_blocks", lambda *_, **__: -1)
        results.append(_read(folder, low, size, order, fill_zeros, first, count))
    assert results[0][0] == results[1][0]
    for nonzero, out in results:
        if nonzero or fill_zeros:
            assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("estimate", [0, 1, 100])
def test_an_estimate_of_stored_bytes_that_is_too_low(mags, tmp_path, monkeypatch, estimate):
    """Blocks whose first part is hard to compress need more stored bytes than their share: the rest
    is read then."""
    rng = np.random.default_rng(estimate)
    voxels = np.zeros((64, 64, 64), np.uint8)
    voxels[:, :, ::32] = rng.integers(0, 256, (64, 64, 2))
    voxels[:, : estimate // 2 + 1, 1::32] = 3
    voxels[:, :, 20:32] = rng.integers(0, 3, (64, 64, 12))
    wkwdask.write(tmp_path / "1", (0, 0, 0), voxels, block_len=32, file_len=2, compression="lz4")
    monkeypatch.setattr(stored_file.WkwFile, "_read_in_steps", None)  # not called
    for depth in range(1, 64, 5):
        assert (
            wkwdask.read(tmp_path / "1", ((3, 5, 0), (64, 60, depth)))[0]
            == voxels[3:, 5:60, :depth]
        ).all()
