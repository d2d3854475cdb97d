"""Files assembled from the stored blocks of other files: any file lengths, boxes that cut blocks,
and files that are absent, broken or of another kind."""

from __future__ import annotations

import os
from pathlib import Path

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wkwdask
from wkwdask.errors import CorruptError, TruncatedError

STEP = 4
FEWER = settings(max_examples=max(1, settings.default.max_examples // 2))


@pytest.fixture(autouse=True, scope="module")
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


def labels(shape, seed=0):
    """Draw labels with whole blocks of zeros and of one other value."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 3, [-(-n // STEP) for n in shape])
    array = np.kron(coarse, np.ones((STEP,) * 3, int))[tuple(slice(n) for n in shape)]
    noise = np.kron(random.random(coarse.shape) < 0.3, np.ones((STEP,) * 3, bool))[
        tuple(slice(n) for n in shape)
    ]
    return np.where(noise, random.integers(0, 200, shape), array).astype(np.uint16)


def files(folder):
    """Map the indices of the files of a mag to their bytes."""
    found = {}
    for path in Path(folder).glob("z*/y*/x*.wkw"):
        found[
            tuple(int(name[1:]) for name in (path.stem, path.parent.name, path.parent.parent.name))
        ] = path.read_bytes()
    return found


def read_all(folder, offset, shape):
    """Read a box, which must be that of the mag."""
    assert wkwdask.open(folder).shape[1:] == tuple(shape)
    return wkwdask.read(folder, (offset, np.add(offset, shape).tolist()))


def expected_files(array, offset, edge):
    """Return the indices of files with nonzero voxels."""
    return {tuple(((place + offset) // edge).tolist()) for place in np.argwhere(array.any(axis=0))}


def box_in(shape, corners):
    low = [min(int(a * n), n - 1) for a, n in zip(corners[:3], shape, strict=True)]
    return low, [max(1, int(b * (n - a))) for a, b, n in zip(low, corners[3:], shape, strict=True)]


@FEWER
@given(
    shape=st.tuples(*[st.integers(1, 40)] * 3),
    offset=st.tuples(*[st.integers(0, 30)] * 3),
    lengths=st.tuples(*[st.sampled_from([1, 2, 4, 8])] * 2),
    compression=st.sampled_from(["raw", "lz4", "lz4hc"]),
    corners=st.tuples(*[st.floats(0, 1)] * 6),
    channels=st.sampled_from([1, 3]),
)
def test_any_lengths_and_boxes(
    tmp_path_factory, shape, offset, lengths, compression, corners, channels
):
    folder = tmp_path_factory.mktemp("splice")
    array = np.stack([labels(shape, n) for n in range(channels)])
    wkwdask.write(
        folder / "a" / "1",
        offset,
        array,
        block_len=STEP,
        file_len=lengths[0],
        compression=compression,
    )
    low, size = box_in(shape, corners)
    place = np.add(low, offset).tolist()
    report = wkwdask.rechunk(
        folder / "a" / "1", folder / "b" / "1", file_len=lengths[1], bounding_box=(*place, *size)
    )
    part = array[(slice(None), *(slice(a, a + n) for a, n in zip(low, size, strict=True)))]
    np.testing.assert_array_equal(read_all(folder / "b" / "1", place, size), part)
    stored = files(folder / "b" / "1")
    assert set(stored) == expected_files(part, place, STEP * lengths[1])
    assert (report.files, report.nbytes_out) == (len(stored), sum(map(len, stored.values())))
    # no voxels outside the box are stored
    (folder / "b" / "1" / ".wkwdask.json").unlink()
    assert np.count_nonzero(wkwdask.read(folder / "b" / "1")) == np.count_nonzero(part)


def test_raw_file_in_a_compressed_mag_is_encoded(tmp_path):
    array = labels((16, 8, 8))
    for name, compression in (("a", "lz4"), ("raw", "raw")):
        wkwdask.write(
            tmp_path / name / "1",
            (0, 0, 0),
            array,
            block_len=STEP,
            file_len=2,
            compression=compression,
        )
    os.replace(
        tmp_path / "raw" / "1" / "z0" / "y0" / "x1.wkw",
        tmp_path / "a" / "1" / "z0" / "y0" / "x1.wkw",
    )
    wkwdask.rechunk(tmp_path / "a" / "1", tmp_path / "b" / "1", file_len=4)
    np.testing.assert_array_equal(read_all(tmp_path / "b" / "1", (0, 0, 0), array.shape)[0], array)
    assert wkwdask.info(tmp_path / "b" / "1").layers[0].mags[0].compression == "lz4"


def test_broken_source_leaves_no_target(tmp_path):
    wkwdask.write(
        tmp_path / "a" / "1",
        (0, 0, 0),
        labels((16, 16, 16), 3),
        block_len=STEP,
        file_len=4,
        compression="lz4",
    )
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


@FEWER
@given(
    shape=st.tuples(*[st.integers(1, 30)] * 3),
    offset=st.tuples(*[st.integers(8, 30)] * 3),
    file_len=st.sampled_from([1, 2, 4, 8]),
    shift=st.tuples(*[st.integers(-8, 36)] * 3),
    in_blocks=st.booleans(),
    corners=st.tuples(*[st.floats(0, 1)] * 6),
    compression=st.sampled_from(["raw", "lz4"]),
)
def test_copy_to_another_place(
    tmp_path_factory, shape, offset, file_len, shift, in_blocks, corners, compression
):
    """Move by whole blocks, whose bytes are kept, or by any voxels."""
    folder = tmp_path_factory.mktemp("moved")
    array = labels(shape)
    by = [n - n % STEP for n in shift] if in_blocks else list(shift)
    wkwdask.create_dataset(folder / "a", (4, 4, 4))
    wkwdask.write(
        folder / "a" / "em" / "1",
        offset,
        array,
        block_len=STEP,
        file_len=file_len,
        compression=compression,
    )
    low, size = box_in(shape, corners)
    wkwdask.copy(
        folder / "a",
        folder / "b",
        bounding_box=(*np.add(low, offset).tolist(), *size),
        translate=by,
    )
    part = array[tuple(slice(a, a + n) for a, n in zip(low, size, strict=True))][np.newaxis]
    place = np.add(np.add(low, offset), by).tolist()
    np.testing.assert_array_equal(read_all(folder / "b" / "em" / "1", place, size), part)


def test_covered_files_are_copied_byte_by_byte(tmp_path):
    wkwdask.create_dataset(tmp_path / "a", (4, 4, 4))
    wkwdask.write(
        tmp_path / "a" / "em" / "1",
        (0, 0, 0),
        labels((60, 60, 32)),
        block_len=STEP,
        file_len=8,
        compression="lz4",
    )
    wkwdask.copy(tmp_path / "a", tmp_path / "b", translate=(32, 0, 64))
    before = files(tmp_path / "a" / "em" / "1")
    assert len(before) == 4
    assert files(tmp_path / "b" / "em" / "1") == {
        (x + 1, y, z + 2): raw for (x, y, z), raw in before.items()
    }
