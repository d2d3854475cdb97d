"""Many files of one block in one call: which are found, where they come to lie, and what is left to a careful look."""

from __future__ import annotations

import os
from itertools import product

import numpy as np
import pytest

from wkwdask.formats.wkw.file import encode_file
from wkwdask.formats.wkw.header import BlockType, format_header, make_header
from wkwdask.kernels.blocks import small_files
from wkwdask.kernels.blocks.batch import compress_bound
from wkwdask.kernels.blocks.layout import OFFSET, SIZE, START, X, Z
from wkwdask.kernels.blocks.libc_names import FOLDER_FLAGS
from wkwdask.kernels.blocks.small_files import Layout, read_files

EDGE = 4
pytestmark = pytest.mark.skipif(not small_files.is_available(), reason="the C library has not the functions that are called")


def _header(block_type=BlockType.LZ4):
    return make_header("uint8", block_len=EDGE, file_len=1, block_type=block_type)


def _layout(header):
    most_nbytes = header.smallest_data_offset + (compress_bound(header.block_nbytes) if header.is_compressed else header.block_nbytes)
    return Layout(np.frombuffer(format_header(header)[:8], np.uint8), header.is_compressed, EDGE, header.block_nbytes, most_nbytes)


def _raw(header, value):
    return encode_file(np.full((1, EDGE, EDGE, EDGE), value, np.uint8), header)


def _put(folder, index, raw):
    path = folder / f"z{index[2]}" / f"y{index[1]}" / f"x{index[0]}.wkw"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


@pytest.fixture
def mag(tmp_path):
    fd = os.open(tmp_path, FOLDER_FLAGS)
    yield fd
    os.close(fd)


def _read(mag, low, counts, header, origin=(0, 0, 0), nbytes=1 << 16, first=0):
    memory = np.zeros(nbytes, np.uint8)
    files = tuple(range(a, a + n) for a, n in zip(low, counts, strict=True))
    return memory, read_files(mag, files, first, _layout(header), origin, memory)


@pytest.mark.parametrize("block_type", list(BlockType))
def test_files_of_a_box(tmp_path, mag, block_type):
    """Names of one digit and of many, x fastest; what is not stored is told with its place."""
    header = _header(block_type)
    low, counts = (8, 98, 0), (5, 4, 2)
    stored = {}
    for n, index in enumerate(product(*(range(a, a + c) for a, c in zip(low, counts, strict=True)))):
        if n % 3:
            stored[index] = _raw(header, n + 1)
            _put(tmp_path, index, stored[index])
    memory, found = _read(mag, low, counts, header, (30, 400, -5))
    assert found.stop == 40
    in_order = [(x, y, z) for z, y, x in product(range(2), range(98, 102), range(8, 13))]
    corners = {index: tuple((np.array(index) * EDGE - (30, 400, -5)).tolist()) for index in in_order}
    assert [tuple(row) for row in found.blocks[:, X : Z + 1].tolist()] == [corners[index] for index in in_order if index in stored]
    assert [tuple(row) for row in found.absent[:, X : Z + 1].tolist()] == [corners[index] for index in in_order if index not in stored]
    assert not len(found.unusual)
    for row, index in zip(found.blocks.tolist(), [index for index in in_order if index in stored], strict=True):
        offset = int.from_bytes(stored[index][8:16], "little")
        assert row[OFFSET] == offset
        assert memory[row[START] :][: row[SIZE]].tobytes() == stored[index][offset:]


def test_large_and_negative_numbers(tmp_path, mag):
    header = _header()
    far = 1234567890123
    for index in ((far, far + 1, far - 1), (0, 0, 0), (9, 10, 100), (99, 999, 1000)):
        _put(tmp_path, index, _raw(header, 1))
        _, found = _read(mag, index, (1, 1, 1), header)
        assert len(found.blocks) == 1
    for name in ("z-1/y0", "z0/y-1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x0.wkw").write_bytes(b"")
    (tmp_path / "z0" / "y0" / "x-1.wkw").write_bytes(b"")
    _, found = _read(mag, (-1, -1, -1), (2, 2, 2), header)
    assert len(found.absent) == 7
    assert len(found.blocks) == 1


def test_a_full_memory_ends_the_call(tmp_path, mag):
    """Each call goes on where the last one ended, and never leaves the memory; a file may always be as long as the longest."""
    header = _header(BlockType.RAW)
    for index in np.ndindex(3, 4, 5):
        if index != (1, 2, 3):
            _put(tmp_path, index, _raw(header, 1 + sum(index)))
    most = _layout(header).most_nbytes
    for nbytes, per_call in ((most, 1), (2 * most - 1, 1), (5 * most + 3, 5)):
        first, values, calls = 0, [], 0
        while first < 60:
            memory, found = _read(mag, (0, 0, 0), (3, 4, 5), header, nbytes=nbytes, first=first)
            assert first < found.stop
            assert len(found.blocks) <= per_call
            assert len(found.blocks) + len(found.absent) == found.stop - first
            assert (found.blocks[:, START] + found.blocks[:, SIZE] <= nbytes).all()
            values += [int(memory[start]) for start in found.blocks[:, START]]
            first, calls = found.stop, calls + 1
        assert calls >= 59 // per_call
        assert values == [1 + x + y + z for z, y, x in product(range(5), range(4), range(3)) if (x, y, z) != (1, 2, 3)]
    with pytest.raises(ValueError, match=f"a file takes up to {most} bytes, got memory for {most - 1}"):
        _read(mag, (0, 0, 0), (3, 4, 5), header, nbytes=most - 1)


def test_a_call_has_an_end_where_nothing_is_stored(mag):
    _, found = _read(mag, (0, 0, 0), (100, 100, 100), _header())
    assert found.stop == len(found.absent) == small_files._MOST_FILES


def _u64(value):
    return value.to_bytes(8, "little")


UNUSUAL = {
    "empty": lambda raw: b"",
    "cut header": lambda raw: raw[:15],
    "cut table": lambda raw: raw[:23],
    "no block": lambda raw: raw[:24],
    "cut block": lambda raw: raw[:-1],
    "magic": lambda raw: b"W" + b"X" + raw[2:],
    "version": lambda raw: raw[:3] + b"\2" + raw[4:],
    "lengths": lambda raw: raw[:4] + b"\3" + raw[5:],
    "raw": lambda raw: raw[:5] + b"\1" + raw[6:],
    "block type": lambda raw: raw[:5] + b"\4" + raw[6:],
    "voxel type": lambda raw: raw[:6] + b"\6" + raw[7:],
    "voxel size": lambda raw: raw[:7] + b"\2" + raw[8:],
    "data offset in the table": lambda raw: raw[:8] + _u64(23) + raw[16:],
    "data offset beyond the end": lambda raw: raw[:8] + _u64(len(raw) + 1) + raw[16:],
    "negative data offset": lambda raw: raw[:8] + b"\xff" * 8 + raw[16:],
    "end before the start": lambda raw: raw[:16] + _u64(23) + raw[24:],
    "end beyond the end": lambda raw: raw[:16] + _u64(len(raw) + 1) + raw[24:],
    "negative end": lambda raw: raw[:16] + _u64((1 << 64) - 1) + raw[24:],
    "an empty block": lambda raw: raw[:16] + _u64(24) + raw[24:],
    "far padding": lambda raw: raw[:8] + _u64(10_000) + _u64(10_000 + len(raw) - 24) + bytes(10_000 - 24) + raw[24:],
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_bytes(tmp_path, mag, name):
    header = _header()
    for x in range(3):
        _put(tmp_path, (x, 0, 0), _raw(header, 7))
    _put(tmp_path, (1, 0, 0), UNUSUAL[name](_raw(header, 7)))
    _, found = _read(mag, (0, 0, 0), (3, 1, 1), header)
    assert found.unusual.tolist() == [[1, 0, 0]]
    assert found.blocks[:, X].tolist() == [0, 2 * EDGE]


@pytest.mark.parametrize("nbytes", [0, 15, 16, 16 + EDGE**3 - 1])
def test_a_raw_file_that_is_cut(tmp_path, mag, nbytes):
    header = _header(BlockType.RAW)
    _put(tmp_path, (0, 0, 0), _raw(header, 7)[:nbytes])
    _, found = _read(mag, (0, 0, 0), (1, 1, 1), header)
    assert found.unusual.tolist() == [[0, 0, 0]]


def test_what_is_harmless(tmp_path, mag):
    """The other LZ4, bytes behind the block, a gap before it, links."""
    header = _header()
    raw = _raw(header, 7)
    _put(tmp_path, (0, 0, 0), raw[:5] + b"\3" + raw[6:])
    _put(tmp_path, (1, 0, 0), raw + b"trailing")
    _put(tmp_path, (2, 0, 0), raw[:8] + _u64(30) + _u64(30 + len(raw) - 24) + bytes(6) + raw[24:])
    (tmp_path / "z0" / "y0" / "x3.wkw").symlink_to("x0.wkw")
    (tmp_path / "z0" / "y1").symlink_to("y0")
    (tmp_path / "z1").symlink_to(tmp_path / "z0")
    memory, found = _read(mag, (0, 0, 0), (4, 2, 2), header)
    assert len(found.blocks) == 16
    for row in found.blocks.tolist():
        assert memory[row[START] :][: row[SIZE]].tobytes() == raw[24:]


def test_what_is_no_file(tmp_path, mag):
    """A pipe is not waited for; links to nowhere are not absent."""
    header = _header()
    paths = [_put(tmp_path, (x, 0, 0), _raw(header, 7)) for x in range(6)]
    for path in paths[1:]:
        path.unlink()
    os.mkfifo(paths[1])
    paths[2].mkdir()
    paths[3].symlink_to("nowhere")
    paths[4].symlink_to(paths[4])
    (tmp_path / "z0" / "y1").symlink_to("nowhere")
    (tmp_path / "z0" / "y2").write_bytes(b"a file where a folder should be")
    (tmp_path / "z1").symlink_to("nowhere")
    _, found = _read(mag, (0, 0, 0), (6, 4, 3), header)
    assert len(found.blocks) == 1
    expected = {(x, 0, 0) for x in range(1, 5)} | {(x, y, 0) for x in range(6) for y in (1, 2)} | {(x, y, 1) for x in range(6) for y in range(4)}
    assert {tuple(index) for index in found.unusual.tolist()} == expected
    assert len(found.absent) == 6 * 4 * 3 - 1 - len(expected)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files cannot be counted here")
def test_nothing_stays_open(tmp_path, mag):
    header = _header()
    for index in np.ndindex(3, 3, 3):
        _put(tmp_path, index, _raw(header, 7) if sum(index) % 2 else b"")
    (tmp_path / "z1" / "y1" / "x1.wkw").unlink()
    (tmp_path / "z2" / "y3").symlink_to("nowhere")
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        _, found = _read(mag, (0, 0, 0), (4, 4, 4), header)
        assert min(len(found.blocks), len(found.absent), len(found.unusual)) > 0
        _read(mag, (0, 0, 0), (4, 4, 4), header, nbytes=_layout(header).most_nbytes)
    assert os.listdir("/proc/self/fd") == before
