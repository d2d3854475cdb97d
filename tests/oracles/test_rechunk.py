"""Oracle: the reference library wkw 1.1.24 reads rechunked mags of any lengths, compression, box
and type."""

from __future__ import annotations

import os

import dask
import numpy as np
import pytest

import wkwdask

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
COMPRESSIONS = {
    "raw": wkw.Header.BLOCK_TYPE_RAW,
    "lz4": wkw.Header.BLOCK_TYPE_LZ4,
    "lz4hc": wkw.Header.BLOCK_TYPE_LZ4HC,
}
NUM_CASES = int(os.environ.get("WKWDASK_RECHUNKS", "60"))


def random_case(random):
    """Draw a geometry, and an array that does not fill it."""
    block_len, file_len = (int(2**n) for n in random.integers([1, 0], [6, 5]))
    # a raw file of 512^3 voxels would hold a gigabyte of zeros
    file_len = min(file_len, 64 // block_len)
    return {
        "block_len": block_len,
        "file_len": file_len,
        "compression": str(random.choice(list(COMPRESSIONS))),
    }


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_any_geometry_and_box(tmp_path, seed):
    random = np.random.default_rng(seed)
    before, after = random_case(random), random_case(random)
    if seed % 3 == 0:  # only the files' length: nothing is decoded
        after = before | {"file_len": after["file_len"]}
    dtype = np.dtype(DTYPES[seed % len(DTYPES)])
    channels = int(random.choice([1, 1, 3])) if dtype == np.uint8 else 1
    edge = before["block_len"] * before["file_len"]
    shape = np.minimum(random.integers(1, 3 * edge + 2, 3), 70)
    offset = random.integers(0, 2 * edge, 3)
    array = random.integers(0, 100, (channels, *shape)).astype(dtype)
    array[:, : shape[0] // 2] = random.integers(0, 2)
    header = wkw.Header(
        dtype.type,
        num_channels=channels,
        block_len=before["block_len"],
        file_len=before["file_len"],
        block_type=COMPRESSIONS["raw"],
    )
    with wkw.Dataset.create(str(tmp_path / "raw"), header) as reference:
        reference.write(offset.tolist(), array)
    if before["compression"] == "raw":
        source = tmp_path / "raw"
    else:
        source = tmp_path / "source"
        with wkw.Dataset.open(str(tmp_path / "raw")) as reference:
            reference.compress(str(source), compress_files=True) if before[
                "compression"
            ] == "lz4hc" else wkwdask.rechunk(tmp_path / "raw", source, compression="lz4")
    low = offset + random.integers(0, shape)
    size = [int(random.integers(1, n + 1)) for n in offset + shape - low]
    box = None if seed % 2 else (*low.tolist(), *size)
    with dask.config.set(scheduler="synchronous"):
        wkwdask.rechunk(source, tmp_path / "1", **after, bounding_box=box)
    expected = np.zeros((channels, *(offset + shape)), dtype)
    inside = (slice(None), *(slice(a, a + n) for a, n in zip(offset, shape, strict=True)))
    expected[inside] = array
    if box is not None:
        kept = (slice(None), *(slice(a, a + n) for a, n in zip(low, size, strict=True)))
        cut = np.zeros_like(expected)
        cut[kept] = expected[kept]
        expected = cut
    with wkw.Dataset.open(str(tmp_path / "1")) as found:
        stored = found.header
        assert (stored.block_len, stored.file_len, stored.block_type) == (
            after["block_len"],
            after["file_len"],
            COMPRESSIONS[after["compression"]],
        )
        np.testing.assert_array_equal(
            found.read((0, 0, 0), tuple(int(n) for n in offset + shape)), expected
        )
