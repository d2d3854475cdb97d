"""Files made of the stored blocks of other files: any lengths of files, boxes that cut blocks, files that are absent, broken or of another kind."""

from __future__ import annotations

import os
from pathlib import Path

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wkwdask
from wkwdask.errors import CorruptError, TruncatedError

STEP = 4


@pytest.fixture(autouse=True, scope="module")
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def labels(shape, seed=0):
    """Labels with whole blocks of zeros, and of one other value, which take as many bytes."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 3, [-(-n // STEP) for n in shape])
    array = np.kron(coarse, np.ones((STEP,) * 3, int))[tuple(slice(n) for n in shape)]
    noise = np.kron(random.random(coarse.shape) < 0.3, np.ones((STEP,) * 3, bool))[tuple(slice(n) for n in shape)]
    return np.where(noise, random.integers(0, 200, shape), array).astype(np.uint16)


def files(folder):
    """The files of a mag, by their places."""
    found = {}
    for path in Path(folder).glob("z*/y*/x*.wkw"):
        found[tuple(int(name[1:]) for name in (path.stem, path.parent.name, path.parent.parent.name))] = path.read_bytes()
    return found


def read_all(folder, offset, shape):
    """Give the voxels of a box, and make sure that its mag has no others."""
    assert wkwdask.open(folder).shape[1:] == tuple(shape)
    return wkwdask.read(folder, (offset, np.add(offset, shape).tolist()))


def expected_files(array, offset, edge):
    """The places of files that are not all zero."""
    return {tuple(((place + offset) // edge).tolist()) for place in np.argwhere(array.any(axis=0))}


def box_in(shape, corners):
    low = [min(int(a * n), n - 1) for a, n in zip(corners[:3], shape, strict=True)]
    return low, [max(1, int(b * (n - a))) for a, b, n in zip(low, corners[3:], shape, strict=True)]


@given(
    shape=st.tuples(*[st.integers(1, 40)] * 3), offset=st.tuples(*[st.integers(0, 30)] * 3), lengths=st.tuples(*[st.sampled_from([1, 2, 4, 8])] * 2),
    compression=st.sampled_from(["raw", "lz4", "lz4hc"]), corners=st.tuples(*[st.floats(0, 1)] * 6), channels=st.sampled_from([1, 3]),
)  # fmt: skip
def test_any_lengths_and_boxes(tmp_path_factory, shape, offset, lengths, compression, corners, channels):
    folder = tmp_path_factory.mktemp("splice")
    array = np.stack([labels(shape, n) for n in range(channels)])
    wkwdask.write(folder / "a" / "1", offset, array, block_len=STEP, file_len=lengths[0], compression=compression)
    low, size = box_in(shape, corners)
    place = np.add(low, offset).tolist()
    report = wkwdask.rechunk(folder / "a" / "1", folder / "b" / "1", file_len=lengths[1], bounding_box=(*place, *size))
    part = array[(slice(None), *(slice(a, a + n) for a, n in zip(low, size, strict=True)))]
    np.testing.assert_array_equal(read_all(folder / "b" / "1", place, size), part)
    made = files(folder / "b" / "1")
    assert set(made) == expected_files(part, place, STEP * lengths[1])
    assert (report.files, report.nbytes_out) == (len(made), sum(map(len, made.values())))
    # voxels beyond the box were left out
    (folder / "b" / "1" / ".wkwdask.json").unlink()
    assert np.count_nonzero(wkwdask.read(folder / "b" / "1")) == np.count_nonzero(part)


def test_a_file_of_another_kind_than_its_mag(tmp_path):
    """A raw file in a compressed mag, which the reference library reads: it is encoded."""
    array = labels((16, 8, 8))
    for name, compression in (("a", "lz4"), ("raw", "raw")):
        wkwdask.write(tmp_path / name / "1", (0, 0, 0), array, block_len=STEP, file_len=2, compression=compression)
    os.replace(tmp_path / "raw" / "1" / "z0" / "y0" / "x1.wkw", tmp_path / "a" / "1" / "z0" / "y0" / "x1.wkw")
    wkwdask.rechunk(tmp_path / "a" / "1", tmp_path / "b" / "1", file_len=4)
    np.testing.assert_array_equal(read_all(tmp_path / "b" / "1", (0, 0, 0), array.shape)[0], array)
    assert wkwdask.info(tmp_path / "b" / "1").layers[0].mags[0].compression == "lz4"


def test_broken_sources(tmp_path):
    """Named with file and byte, and nothing appears."""
    wkwdask.write(tmp_path / "a" / "1", (0, 0, 0), labels((16, 16, 16), 3), block_len=STEP, file_len=4, compression="lz4")
    path = tmp_path / "a" / "1" / "z0" / "y0" / "x0.wkw"
    whole = path.read_bytes()
    cases = {
        CorruptError: whole[:16] + (1 << 40).to_bytes(8, "little") + bytes(8) + whole[32:],
        TruncatedError: whole[: len(whole) // 2],
    }
    for error, raw in cases.items():
        path.write_bytes(raw)
        with pytest.raises(error, match=f"{path}.*byte"):
            wkwdask.rechunk(tmp_path / "a" / "1", tmp_path / "b" / "1", file_len=2)
        assert not (tmp_path / "b" / "1").exists()


@given(
    shape=st.tuples(*[st.integers(1, 30)] * 3), offset=st.tuples(*[st.integers(8, 30)] * 3), file_len=st.sampled_from([1, 2, 4, 8]),
    shift=st.tuples(*[st.integers(-8, 36)] * 3), in_blocks=st.booleans(),
    corners=st.tuples(*[st.floats(0, 1)] * 6), compression=st.sampled_from(["raw", "lz4"]),
)  # fmt: skip
def test_moved(tmp_path_factory, shape, offset, file_len, shift, in_blocks, corners, compression):
    """By blocks, whose bytes are kept, and by any voxels; also from places below a file's corner."""
    folder = tmp_path_factory.mktemp("moved")
    array = labels(shape)
    by = [n - n % STEP for n in shift] if in_blocks else list(shift)
    wkwdask.create_dataset(folder / "a", (4, 4, 4))
    wkwdask.write(folder / "a" / "em" / "1", offset, array, block_len=STEP, file_len=file_len, compression=compression)
    low, size = box_in(shape, corners)
    wkwdask.copy(folder / "a", folder / "b", bounding_box=(*np.add(low, offset).tolist(), *size), translate=by)
    part = array[tuple(slice(a, a + n) for a, n in zip(low, size, strict=True))][np.newaxis]
    place = np.add(np.add(low, offset), by).tolist()
    np.testing.assert_array_equal(read_all(folder / "b" / "em" / "1", place, size), part)


def test_whole_files(tmp_path):
    """A file becomes one file again, byte for byte, where the box covers it."""
    wkwdask.create_dataset(tmp_path / "a", (4, 4, 4))
    wkwdask.write(tmp_path / "a" / "em" / "1", (0, 0, 0), labels((60, 60, 32)), block_len=STEP, file_len=8, compression="lz4")
    wkwdask.copy(tmp_path / "a", tmp_path / "b", translate=(32, 0, 64))
    before = files(tmp_path / "a" / "em" / "1")
    assert len(before) == 4
    assert files(tmp_path / "b" / "em" / "1") == {(x + 1, y, z + 2): raw for (x, y, z), raw in before.items()}
