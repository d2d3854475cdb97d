"""Oracle: the reference library wkw 1.1.24, for mags of small files and for the zeros that it
writes."""

from __future__ import annotations

import numpy as np
import pytest

import wkwdask

wkw = pytest.importorskip("wkw", reason="the oracle wkw 1.1.24 is not installed")

BLOCK_TYPES = {
    "raw": wkw.Header.BLOCK_TYPE_RAW,
    "lz4": wkw.Header.BLOCK_TYPE_LZ4,
    "lz4hc": wkw.Header.BLOCK_TYPE_LZ4HC,
}


def _create(folder, dtype, channels, compression, block_len, file_len):
    header = wkw.Header(
        np.dtype(dtype).type,
        num_channels=channels,
        block_len=block_len,
        file_len=file_len,
        block_type=BLOCK_TYPES[compression],
    )
    return wkw.Dataset.create(str(folder), header)


@pytest.mark.parametrize("compression", BLOCK_TYPES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("file_len", [1, 2, 4])
def test_we_read_what_wkw_reads(tmp_path, file_len, channels, compression):
    random = np.random.default_rng(file_len)
    array = random.integers(0, 1 << 16, (channels, 64, 64, 64)).astype(np.uint16)
    array[:, :, 32:] //= 30000
    array[:, 16:32] = 0
    with _create(tmp_path / "1", np.uint16, channels, compression, 16, file_len) as reference:
        for x in (0, 128):  # with nothing between them
            reference.write((x, 0, 0), array)
    with wkw.Dataset.open(str(tmp_path / "1")) as reference:
        for _ in range(40):
            low = random.integers(0, (190, 63, 63))
            shape = random.integers(1, np.minimum(70, (193, 65, 65) - low))
            expected = reference.read(low.tolist(), shape.tolist())
            found = wkwdask.read(tmp_path / "1", (low.tolist(), (low + shape).tolist()))
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("compression", BLOCK_TYPES)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "float32"])
def test_zeros_of_wkw_are_not_stored_again(tmp_path, dtype, compression):
    for n, (channels, block_len, file_len) in enumerate(
        [(1, 32, 1), (3, 32, 1), (1, 8, 4), (3, 64, 1), (1, 1, 8), (1, 2, 4)]
    ):
        edge = block_len * file_len
        folder = tmp_path / str(n) / "1"
        with _create(folder, dtype, channels, compression, block_len, file_len) as reference:
            reference.write((0, 0, 0), np.zeros((channels, 2 * edge, edge, edge), dtype))
        assert len(list(folder.glob("z*/y*/x*.wkw"))) == 2
        assert not wkwdask.read(folder).any()
        wkwdask.rechunk(folder, tmp_path / f"other{n}" / "1", block_len=2 * block_len, file_len=1)
        assert not list(tmp_path.glob("other*/1/z*/y*/x*.wkw"))
