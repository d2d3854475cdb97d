"""Oracle: the reference library wkw 1.1.24, for reading and for writing, and the fingerprints of
the real data.

wkw never returns from a read of a zero-size box, so none is asked of it. Compressed bytes are never
compared: they differ between builds of LZ4.
"""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest

import wkwdask
from wkwdask.errors import CorruptError

wkw = pytest.importorskip("wkw", reason="the oracle wkw 1.1.24 is not installed")

DTYPES = (
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
)
COMPRESSIONS = ("raw", "lz4", "lz4hc")
BLOCK_TYPES = {
    "raw": wkw.Header.BLOCK_TYPE_RAW,
    "lz4": wkw.Header.BLOCK_TYPE_LZ4,
    "lz4hc": wkw.Header.BLOCK_TYPE_LZ4HC,
}
NUM_BOXES = 200

# (layer, mag, sha256 of the C-order bytes [x, y, z] over the box of the mag, first 16 hex digits)
L4_MAGS = (
    ("color", "2-2-1", (129, 128, 150), "2b59b477652aecf8"),
    ("color", "4-4-2", (65, 64, 76), "5d8cd4090f1d285b"),
    ("segmentation", "1", (256, 256, 150), "08a46cba878d6b4a"),
    ("segmentation", "2-2-1", (129, 128, 150), "904c42230e9a9221"),
    ("segmentation", "4-4-2", (65, 64, 76), "c047d4a2badf6f9a"),
)
CONNECTOMICS_SHA256 = "4f5ad1c03f6fa0478a5c332a1ff51cf7636a83a59c87e1d086e07fb0a5fc77d6"


def random_boxes(seed, low, high, longest=70):
    """Corners of boxes of all sorts: mostly small, some slabs, none empty."""
    random = np.random.default_rng(seed)
    low, high = np.array(low), np.array(high)
    for _ in range(NUM_BOXES):
        size = np.minimum(random.integers(1, longest, 3), high - low)
        size[random.integers(0, 6, 3) == 0] = 1
        start = random.integers(low, high - size + 1)
        yield start.tolist(), (start + size).tolist()


def random_voxels(dtype, shape, seed):
    """Voxels that compress in part: blobs of few values and some noise, with every bit of the type
    in use."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        values = random.normal(0, 1e5, shape).astype(dtype)
    else:
        limits = np.iinfo(dtype)
        values = random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    values[..., shape[-1] // 2 :] = values.flat[0]
    return values


@pytest.mark.parametrize(("layer", "mag", "shape", "fingerprint"), L4_MAGS)
def test_l4_sample_reads_as_wkw_reads_it(shared_data, layer, mag, shape, fingerprint):
    folder = shared_data / "l4_sample" / layer / mag
    whole = wkwdask.read(folder)
    assert whole.shape == (1, *shape)
    assert hashlib.sha256(whole[0].tobytes(order="C")).hexdigest()[:16] == fingerprint
    box = wkwdask.open(folder)
    assert box.shape == whole.shape
    low = np.array(
        wkwdask.BoundingBox((2679, 4224, 1719), (256, 256, 150))
        .in_mag(wkwdask.Mag.parse(mag))
        .topleft
    )
    with wkw.Dataset.open(str(folder)) as reference:
        for start, stop in random_boxes(1, low, low + shape):
            expected = reference.read(start, (np.array(stop) - start).tolist())
            np.testing.assert_array_equal(wkwdask.read(folder, (start, stop)), expected)


def test_connectomics_reads_as_wkw_reads_it(shared_data):
    folder = shared_data / "connectomics_seg"
    whole = wkwdask.read(folder)
    assert whole.shape == (1, 512, 512, 512)
    assert hashlib.sha256(whole[0].tobytes(order="F")).hexdigest() == CONNECTOMICS_SHA256
    with wkw.Dataset.open(str(folder)) as reference:
        for start, stop in random_boxes(2, (0, 0, 0), (512, 512, 512)):
            voxels = wkwdask.read(folder, (start, stop))
            np.testing.assert_array_equal(
                voxels, reference.read(start, (np.array(stop) - start).tolist())
            )
            np.testing.assert_array_equal(
                voxels[0], whole[0][tuple(slice(a, b) for a, b in zip(start, stop, strict=True))]
            )


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_wkw_reads_what_we_write(tmp_path, dtype, compression):
    for n, (channels, block_len, file_len) in enumerate(itertools.product((1, 3), (8, 32), (1, 4))):
        edge = block_len * file_len
        offset = (3, edge - 2, 0)
        size = (min(edge, 37), 5, 9)  # crosses a file border along y, ends inside blocks
        array = random_voxels(dtype, (channels, *size), seed=n)
        folder = tmp_path / str(n) / "1"
        wkwdask.write(
            folder, offset, array, block_len=block_len, file_len=file_len, compression=compression
        )
        with wkw.Dataset.open(str(folder)) as reference:
            header = reference.header
            assert (header.block_len, header.file_len, header.num_channels) == (
                block_len,
                file_len,
                channels,
            )
            assert np.dtype(header.voxel_type) == np.dtype(dtype)
            assert header.block_type == BLOCK_TYPES[compression]
            np.testing.assert_array_equal(reference.read(offset, size), array)
            around = reference.read(
                (0, 0, 0),
                (offset[0] + size[0] + 1, offset[1] + size[1] + 1, offset[2] + size[2] + 1),
            )
        inside = tuple(slice(a, a + n) for a, n in zip(offset, size, strict=True))
        np.testing.assert_array_equal(around[(slice(None), *inside)], array)
        around[(slice(None), *inside)] = 0
        assert not around.any()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_we_read_what_wkw_writes(tmp_path, dtype, compression):
    for n, (channels, block_len, file_len) in enumerate(
        ((1, 8, 4), (3, 8, 2), (2, 32, 1), (1, 1, 8))
    ):
        edge = block_len * file_len
        array = random_voxels(dtype, (channels, 2 * edge, edge, edge), seed=n)
        folder = tmp_path / str(n)
        header = wkw.Header(
            np.dtype(dtype).type,
            num_channels=channels,
            block_len=block_len,
            file_len=file_len,
            block_type=BLOCK_TYPES[compression],
        )
        with wkw.Dataset.create(str(folder), header) as reference:
            reference.write((edge, 0, 2 * edge), array)
        voxels = wkwdask.read(folder)
        assert voxels.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(voxels, array)  # without a JSON the box is that of the files
        start, stop = (edge + 3, 1, 2 * edge), (3 * edge - 2, edge, 2 * edge + 5)
        part = array[:, 3 : 2 * edge - 2, 1:edge, :5]
        np.testing.assert_array_equal(wkwdask.read(folder, (start, stop)), part)


def test_raw_file_that_wkw_wrote_in_part(tmp_path):
    header = wkw.Header(np.uint16, block_len=8, file_len=4, block_type=wkw.Header.BLOCK_TYPE_RAW)
    array = random_voxels("uint16", (1, 5, 9, 11), seed=3)
    with wkw.Dataset.create(str(tmp_path / "1"), header) as reference:
        reference.write((14, 7, 3), array)
    whole = wkwdask.read(tmp_path / "1")
    assert whole.shape == (1, 32, 32, 32)
    np.testing.assert_array_equal(whole[:, 14:19, 7:16, 3:14], array)
    whole[:, 14:19, 7:16, 3:14] = 0
    assert not whole.any()


@pytest.mark.parametrize(("stored", "declared"), list(itertools.permutations(COMPRESSIONS, 2)))
def test_block_type_of_a_file_may_differ_from_header_wkw(tmp_path, stored, declared):
    array = random_voxels("uint32", (1, 32, 32, 32), seed=4)
    header = wkw.Header(np.uint32, block_len=8, file_len=4, block_type=BLOCK_TYPES[stored])
    with wkw.Dataset.create(str(tmp_path / "1"), header) as reference:
        reference.write((0, 0, 0), array)
    path = tmp_path / "1" / "header.wkw"
    raw = bytearray(path.read_bytes())
    raw[5] = {"raw": 1, "lz4": 2, "lz4hc": 3}[declared]
    path.write_bytes(raw)
    assert wkwdask.info(tmp_path / "1").layers[0].mags[0].compression == declared
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "1"), array)
    with wkw.Dataset.open(str(tmp_path / "1")) as reference:
        np.testing.assert_array_equal(reference.read((0, 0, 0), (32, 32, 32)), array)


def test_a_file_that_wkw_takes_for_zeros_is_an_error_here(tmp_path):
    """The reference library swallows the error of a file that it cannot open."""
    wkwdask.write(tmp_path / "1", (0, 0, 0), np.ones((8, 8, 8), np.uint8), block_len=8, file_len=1)
    path = tmp_path / "1" / "z0" / "y0" / "x0.wkw"
    path.write_bytes(b"")
    with wkw.Dataset.open(str(tmp_path / "1")) as reference:
        assert not reference.read((0, 0, 0), (8, 8, 8)).any()
    with pytest.raises(wkwdask.TruncatedError, match=r"x0\.wkw.*header ends at byte 0"):
        wkwdask.read(tmp_path / "1")


def test_voxel_type_of_a_file_must_be_that_of_header_wkw(tmp_path):
    for name, dtype in (("a", np.uint8), ("b", np.int8)):
        header = wkw.Header(dtype, block_len=8, file_len=1, block_type=wkw.Header.BLOCK_TYPE_RAW)
        with wkw.Dataset.create(str(tmp_path / name), header) as reference:
            reference.write((0, 0, 0), np.ones((8, 8, 8), dtype))
    (tmp_path / "a" / "header.wkw").write_bytes((tmp_path / "b" / "header.wkw").read_bytes())
    with pytest.raises(
        CorruptError,
        match=r"x0\.wkw: byte 6: voxel type is uint8, but the mag's header\.wkw says int8",
    ):
        wkwdask.read(tmp_path / "a")


def test_header_bytes_are_those_of_wkw(tmp_path):
    for n, (dtype, compression) in enumerate(itertools.product(DTYPES, COMPRESSIONS)):
        header = wkw.Header(
            np.dtype(dtype).type,
            num_channels=3,
            block_len=16,
            file_len=2,
            block_type=BLOCK_TYPES[compression],
        )
        wkw.Dataset.create(str(tmp_path / f"wkw{n}"), header).close()
        array = random_voxels(dtype, (3, 32, 32, 32), seed=n)
        wkwdask.write(
            tmp_path / f"our{n}" / "1",
            (0, 0, 0),
            array,
            block_len=16,
            file_len=2,
            compression=compression,
        )
        assert (tmp_path / f"our{n}" / "1" / "header.wkw").read_bytes() == Path(
            tmp_path / f"wkw{n}" / "header.wkw"
        ).read_bytes()
        with wkw.Dataset.open(str(tmp_path / f"wkw{n}")) as reference:
            reference.write((0, 0, 0), array)
        ours, theirs = (
            tmp_path / f"our{n}" / "1" / "z0" / "y0" / "x0.wkw",
            tmp_path / f"wkw{n}" / "z0" / "y0" / "x0.wkw",
        )
        assert ours.read_bytes()[:16] == theirs.read_bytes()[:16]
        if compression == "raw":
            assert ours.read_bytes() == theirs.read_bytes()
