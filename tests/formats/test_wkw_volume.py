"""Reads of one WKW mag: missing, broken and replaced files, tables in pages, threads and forks."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import threading
import time

import numpy as np
import pytest

import wkwdask
from wkwdask.errors import BoundsError, CorruptError, FormatError, MissingError, TruncatedError


def voxels(shape, dtype="uint16", seed=1):
    return np.random.default_rng(seed).integers(1, 250, shape).astype(dtype)


def make(folder, array, offset=(0, 0, 0), **options):
    wkwdask.write(
        folder,
        offset,
        array,
        existing="overwrite",
        **{"block_len": 8, "file_len": 2, "compression": "lz4", **options},
    )
    return folder


def read(folder, box=None):
    """Read in this thread."""
    return wkwdask.read(folder, box)


@pytest.fixture
def mag(tmp_path):
    return make(tmp_path / "color" / "1", voxels((40, 20, 20)))


# ----------------------------------------------------------------------------- missing


def test_missing_file_reads_as_zeros(mag):
    whole = read(mag)
    os.unlink(mag / "z0" / "y0" / "x1.wkw")
    seen = read(mag)
    assert not seen[:, 16:32, :16, :16].any()
    whole[:, 16:32, :16, :16] = 0
    np.testing.assert_array_equal(seen, whole)


def test_missing_folder_reads_as_zeros(mag):
    shutil.rmtree(mag / "z0")
    out = read(mag, ((0, 0, 0), (40, 20, 20)))
    assert not out[..., :16].any()
    assert out[..., 16:].all()


def test_header_without_files_is_an_empty_mag(tmp_path):
    folder = make(tmp_path / "1", np.zeros((8, 8, 8), np.uint8))
    assert not list(folder.rglob("x*.wkw"))
    (folder / ".wkwdask.json").unlink()  # which keeps the box
    assert read(folder).shape == (1, 0, 0, 0)


def test_removed_mag_is_an_error(mag):
    array = wkwdask.open(mag)
    array.compute()
    shutil.rmtree(mag)
    with pytest.raises(MissingError, match=r"color/1/header\.wkw: not found: the mag is gone"):
        array.compute(scheduler="synchronous")
    with pytest.raises(MissingError):
        wkwdask.read(mag, ((0, 0, 0), (1, 1, 1)))


def test_files_of_other_names_are_ignored(mag):
    expected = read(mag)
    for name in ("z00", "z-1", "z1x", "z", "y0", "z٣"):
        (mag / name / "y0").mkdir(parents=True)
        (mag / name / "y0" / "x0.wkw").write_bytes(b"")
    for name in ("x01.wkw", "x1.wkw_tmp", "x1.wkw.tmp", ".x1.wkw.0123.wkwdask-tmp", "x.wkw"):
        (mag / "z0" / "y0" / name).write_bytes(b"")
    (mag / "z7").write_bytes(b"a file where a folder should be")
    np.testing.assert_array_equal(read(mag), expected)


# ----------------------------------------------------------------------------- broken


def change(path, offset, new):
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(new)] = new
    path.write_bytes(raw)


def u64(value):
    return int(value).to_bytes(8, "little")


BROKEN = {
    "empty": (lambda raw: b"", TruncatedError, "header ends at byte 0, expected 16 bytes"),
    "short header": (lambda raw: raw[:10], TruncatedError, "header ends at byte 10"),
    "magic": (lambda raw: b"WKX" + raw[3:], CorruptError, "byte 0: expected magic"),
    "version": (
        lambda raw: raw[:3] + b"\x02" + raw[4:],
        CorruptError,
        "byte 3: expected version 1, found 2",
    ),
    "block_len": (
        lambda raw: raw[:4] + b"\x14" + raw[5:],
        CorruptError,
        "block_len is 16, but the mag's header.wkw says 8",
    ),
    "file_len": (
        lambda raw: raw[:4] + b"\x03" + raw[5:],
        CorruptError,
        "file_len is 1, but the mag's header.wkw says 2",
    ),
    "block type": (lambda raw: raw[:5] + b"\x07" + raw[6:], CorruptError, "byte 5"),
    "voxel type": (
        lambda raw: raw[:6] + b"\x08" + raw[7:],
        CorruptError,
        "voxel type is int16, but the mag's header.wkw says uint16",
    ),
    "unknown voxel type": (lambda raw: raw[:6] + b"\x0b" + raw[7:], CorruptError, "byte 6"),
    "channels": (
        lambda raw: raw[:7] + b"\x04" + raw[8:],
        CorruptError,
        "number of channels is 2, but the mag's header.wkw says 1",
    ),
    "voxel size": (lambda raw: raw[:7] + b"\x03" + raw[8:], CorruptError, "byte 7"),
    "data offset zero": (lambda raw: raw[:8] + u64(0) + raw[16:], CorruptError, "byte 8"),
    "data offset inside the table": (
        lambda raw: raw[:8] + u64(20) + raw[16:],
        CorruptError,
        "byte 8",
    ),
    "cut table": (lambda raw: raw[:40], TruncatedError, ""),
    "cut block": (lambda raw: raw[:-5], TruncatedError, ""),
    "table goes back": (lambda raw: raw[:24] + u64(3) + raw[32:], CorruptError, ""),
    "table beyond the end": (lambda raw: raw[:72] + u64(1 << 40) + raw[80:], FormatError, ""),
    "table all zero": (lambda raw: raw[:16] + bytes(64) + raw[80:], CorruptError, ""),
    "block": (
        lambda raw: raw[:80] + b"\xff" * 30 + raw[110:],
        CorruptError,
        r"block 0 at byte 80: \d+ stored bytes",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file_is_an_error_that_names_it(mag, name):
    damage, error, text = BROKEN[name]
    path = mag / "z0" / "y0" / "x1.wkw"
    expected = read(mag)
    path.write_bytes(damage(path.read_bytes()))
    for attempt in (
        lambda: read(mag),
        lambda: wkwdask.read(mag),
        lambda: wkwdask.sample(mag, [[16, 0, 0], [23, 7, 7], [31, 15, 15], [20, 9, 1]]),
    ):
        with pytest.raises(error) as caught:
            attempt()
        assert str(caught.value).startswith(str(path))
        assert re.search(text, str(caught.value)), caught.value
    # other files are readable
    np.testing.assert_array_equal(read(mag, ((0, 0, 0), (16, 20, 20))), expected[:, :16, :20, :20])


def test_damaged_block_affects_no_other_block(mag):
    path = mag / "z0" / "y0" / "x1.wkw"
    expected = read(mag)
    change(path, 80, b"\xff" * 30)
    np.testing.assert_array_equal(read(mag, ((24, 0, 0), (40, 8, 8))), expected[:, 24:40, :8, :8])


def test_bytes_after_the_last_block_are_ignored(mag):
    expected = read(mag)
    path = mag / "z0" / "y0" / "x1.wkw"
    path.write_bytes(path.read_bytes() + b"trailing")
    np.testing.assert_array_equal(read(mag), expected)


@pytest.mark.parametrize("compression", ["raw", "lz4"])
def test_gap_between_table_and_first_block(tmp_path, compression):
    folder = make(tmp_path / "1", voxels((16, 16, 16)), compression=compression)
    path = folder / "z0" / "y0" / "x0.wkw"
    raw = path.read_bytes()
    offset = int.from_bytes(raw[8:16], "little")
    ends = np.frombuffer(raw[16:offset], "<u8") + 100
    path.write_bytes(raw[:8] + u64(offset + 100) + ends.tobytes() + bytes(100) + raw[offset:])
    np.testing.assert_array_equal(read(folder)[0], voxels((16, 16, 16)))


def test_truncated_raw_file(tmp_path):
    folder = make(tmp_path / "1", voxels((16, 16, 16)), compression="raw")
    path = folder / "z0" / "y0" / "x0.wkw"
    os.truncate(path, 16 + 8**3 * 2 * 3 + 5)
    with pytest.raises(TruncatedError, match=r"x0\.wkw"):
        read(folder)


def test_error_names_a_broken_header_wkw(mag):
    (mag / "header.wkw").write_bytes(b"WKW")
    for attempt in (wkwdask.read, wkwdask.open):
        with pytest.raises(TruncatedError, match=r"color/1/header\.wkw: header ends at byte 3"):
            attempt(mag)


def test_folder_instead_of_a_file_is_an_error(mag):
    path = mag / "z0" / "y0" / "x1.wkw"
    path.unlink()
    path.mkdir()
    with pytest.raises((OSError, FormatError), match=r"x1\.wkw|[Dd]irectory"):
        read(mag)


def test_file_without_permission_is_an_error(mag, monkeypatch):
    """Root may open all files, so the refusal is simulated."""
    path = str(mag / "z0" / "y0" / "x1.wkw")
    before = os.open

    def refuse(name, *args, **options):
        if name == path:
            raise PermissionError(13, "Permission denied", name)
        return before(name, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError, match=r"x1\.wkw"):
        read(mag)
    if os.getuid() != 0:
        monkeypatch.undo()
        os.chmod(path, 0)
        with pytest.raises(PermissionError, match=r"x1\.wkw"):
            read(mag)


def test_folder_without_permission_is_an_error(mag, monkeypatch):
    path = str(mag / "z0" / "y0" / "x1.wkw")
    before = os.stat

    def refuse(name, *args, **options):
        if name == path:
            raise PermissionError(13, "Permission denied", name)
        return before(name, *args, **options)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(PermissionError, match=r"x1\.wkw"):
        read(mag)


def test_error_numbers_a_block_within_its_file(tmp_path):
    """The number does not count from the page of the table."""
    array = np.arange(64**3, dtype=np.uint32).reshape(1, 64, 64, 64).astype(np.uint8) | 1
    folder = make(tmp_path / "1", array, block_len=1, file_len=64)
    raw = bytearray((folder / "z0" / "y0" / "x0.wkw").read_bytes())
    code = sum(
        (n >> bit & 1) << 3 * bit + axis for axis, n in enumerate((40, 50, 60)) for bit in range(6)
    )
    start = int.from_bytes(raw[8 + 8 * code : 16 + 8 * code], "little")
    end = int.from_bytes(raw[16 + 8 * code : 24 + 8 * code], "little")
    raw[start:end] = b"\xff" * (end - start)
    (folder / "z0" / "y0" / "x0.wkw").write_bytes(raw)
    with pytest.raises(CorruptError, match=rf"x0\.wkw: block {code} at byte {start}"):
        read(folder, ((40, 50, 60), (41, 51, 61)))
    np.testing.assert_array_equal(read(folder, ((0, 0, 0), (64, 50, 60))), array[:, :, :50, :60])


# ----------------------------------------------------------------------------- pages of the table


@pytest.mark.parametrize(
    ("block_len", "file_len", "compression"),
    [(1, 64, "lz4"), (2, 64, "lz4"), (1, 128, "lz4"), (1, 64, "raw")],
)
def test_large_tables_are_read_in_pages(tmp_path, block_len, file_len, compression):
    edge = block_len * file_len
    array = voxels((edge, edge, edge), "uint8")
    folder = make(
        tmp_path / "1", array, block_len=block_len, file_len=file_len, compression=compression
    )
    random = np.random.default_rng(2)
    for _ in range(40):
        low = random.integers(0, edge - 1, 3)
        high = np.minimum(low + random.integers(1, [edge, 9, 9], 3)[random.permutation(3)], edge)
        np.testing.assert_array_equal(
            read(folder, (low.tolist(), high.tolist()))[0], array[tuple(map(slice, low, high))]
        )
    if file_len == 64:
        np.testing.assert_array_equal(read(folder)[0], array)


def test_sample(tmp_path):
    for channels in (1, 3):
        array = voxels((channels, 40, 20, 25))
        folder = make(tmp_path / str(channels) / "1", array, offset=(5, 0, 3))
        random = np.random.default_rng(3)
        points = random.integers((5, 0, 3), (45, 20, 28), (500, 3))
        points[100:200] = points[:100]
        expected = array[:, points[:, 0] - 5, points[:, 1], points[:, 2] - 3].T
        np.testing.assert_array_equal(
            wkwdask.sample(folder, points), expected[:, 0] if channels == 1 else expected
        )
        assert wkwdask.sample(folder, []).shape == ((0,) if channels == 1 else (0, 3))


def test_sample_refuses_invalid_points(mag):
    with pytest.raises(BoundsError, match=r"point \[0, -1, 0\] lies outside the box"):
        wkwdask.sample(mag, [[0, 0, 0], [0, -1, 0]])
    with pytest.raises(BoundsError, match=r"point \[48, 0, 0\]"):
        wkwdask.sample(mag, [[48, 0, 0]])
    for bad in ([[0.5, 0, 0]], [0, 0, 0], [[0, 0]], [["a", "b", "c"]]):
        with pytest.raises(TypeError, match="points must be whole numbers of shape"):
            wkwdask.sample(mag, bad)


# ----------------------------------------------------------------------------- replaced


def test_replaced_file_is_read(mag, tmp_path):
    before = wkwdask.read(mag)
    other = make(tmp_path / "other" / "1", voxels((40, 20, 20), seed=2))
    os.replace(other / "z0" / "y0" / "x1.wkw", mag / "z0" / "y0" / "x1.wkw")
    after = wkwdask.read(mag)
    assert (after != before)[:, 16:32, :16, :16].any()
    after[:, 16:32, :16, :16] = before[:, 16:32, :16, :16]
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("options", [{}, {"block_len": 4}, {"file_len": 1}, {"compression": "raw"}])
def test_replaced_mag_is_read(mag, options):
    box = ((0, 0, 0), (40, 20, 20))
    for seed in range(2, 4):
        array = voxels((40, 20, 20), seed=seed)
        make(mag, array, **options)
        np.testing.assert_array_equal(wkwdask.read(mag, box)[0], array)
    array = voxels((2, 40, 20, 20), "int8", seed=9)
    make(mag, array, **options)
    np.testing.assert_array_equal(wkwdask.read(mag, box), array)


def test_removed_and_restored_file(mag):
    path = mag / "z0" / "y0" / "x1.wkw"
    whole, raw = wkwdask.read(mag), path.read_bytes()
    path.unlink()
    assert not wkwdask.read(mag)[:, 16:32, :16, :16].any()
    path.write_bytes(raw)
    np.testing.assert_array_equal(wkwdask.read(mag), whole)


def test_opened_array_reads_a_replaced_file(mag, tmp_path):
    array = wkwdask.open(mag)
    array.compute()
    other = make(tmp_path / "other" / "1", voxels((40, 20, 20), seed=2))
    for path in sorted(other.rglob("x*.wkw")):
        os.replace(path, mag / path.relative_to(other))
    np.testing.assert_array_equal(
        array[:, :40, :20, :20].compute()[0], voxels((40, 20, 20), seed=2)
    )
    assert wkwdask.open(mag).name == array.name  # header.wkw was not replaced
    make(mag, voxels((40, 20, 20), seed=3))
    assert wkwdask.open(mag).name != array.name


def test_files_are_closed(tmp_path):
    folder = make(tmp_path / "1", voxels((60, 20, 16), "uint8"), block_len=2, file_len=2)
    num_files = len(list(folder.rglob("x*.wkw")))
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    wkwdask.read(folder)
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) < before + num_files // 2


# ----------------------------------------------------------------------------- threads and forks


def test_threads_read_old_or_new_voxels_of_a_replaced_file(tmp_path):
    folder = make(tmp_path / "1", np.full((16, 16, 16), 1, np.uint16), compression="lz4hc")
    path = folder / "z0" / "y0" / "x0.wkw"
    random = np.random.default_rng(4)
    versions = {}
    for value in range(2, 8):  # versions differ in the lengths of all blocks
        array = np.full((1, 16, 16, 16), value, np.uint16)
        array[:, :, ::value] = value + 100
        array[:, value:, value] = random.integers(1000, 2000, (16 - value, 16))
        versions[value] = (
            array,
            (
                make(tmp_path / f"{value}" / "1", array, compression="lz4hc")
                / "z0"
                / "y0"
                / "x0.wkw"
            ).read_bytes(),
        )
    known = [np.full((1, 16, 16, 16), 1, np.uint16), *(array for array, _ in versions.values())]
    stop, problems, seen = threading.Event(), [], set()

    def hammer():
        while not stop.is_set():
            try:
                voxels_now = wkwdask.read(folder, ((0, 0, 0), (16, 16, 16)))
                matches = [n for n, array in enumerate(known) if np.array_equal(array, voxels_now)]
                if not matches:
                    problems.append("a mixture")
                seen.update(matches)
            except Exception as error:
                problems.append(repr(error))

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    replaced, until = 0, time.monotonic() + 300  # the first read may compile
    while replaced < 150 or (len(seen) < 3 and time.monotonic() < until):
        _, raw = versions[2 + replaced % len(versions)]
        temporary = folder / "new"
        temporary.write_bytes(raw)
        os.replace(temporary, path)
        replaced += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems, problems[:3]
    assert len(seen) >= 3


def test_threads_read_many_files(tmp_path):
    """More files than are kept open, in many threads."""
    array = voxels((60, 60, 60), "uint8")
    folder = make(tmp_path / "1", array, block_len=4, file_len=2)
    problems = []

    def work(seed):
        random = np.random.default_rng(seed)
        for _ in range(30):
            low = random.integers(0, 50, 3)
            high = low + random.integers(1, 11, 3)
            if not np.array_equal(
                wkwdask.read(folder, (low.tolist(), high.tolist()))[0],
                array[tuple(map(slice, low, high))],
            ):
                problems.append((low, high))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def _read_in_child(folder, expected, result):
    same = all(
        np.array_equal(wkwdask.read(folder, ((n, 0, 0), (n + 5, 20, 20))), expected[:, n : n + 5])
        for n in range(30)
    )
    result.put(bool(same))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forks_read_after_the_parent_has_read(mag):
    """Children inherit open files, tables and locks from a parent whose threads read."""
    expected = wkwdask.read(mag, ((0, 0, 0), (40, 20, 20)))
    stop = threading.Event()

    def hammer():
        while not stop.is_set():
            wkwdask.read(mag, ((3, 3, 3), (30, 15, 15)))

    threads = [threading.Thread(target=hammer) for _ in range(2)]
    for thread in threads:
        thread.start()
    context = multiprocessing.get_context("fork")
    result = context.SimpleQueue()
    children = [
        context.Process(target=_read_in_child, args=(mag, expected, result)) for _ in range(4)
    ]
    for child in children:
        child.start()
    answers = [result.get() for _ in children]
    for child in children:
        child.join()
    stop.set()
    for thread in threads:
        thread.join()
    assert answers == [True] * 4
    np.testing.assert_array_equal(wkwdask.read(mag, ((0, 0, 0), (40, 20, 20))), expected)


def test_link_to_a_missing_file_and_pipe_are_errors(tmp_path):
    """A link into an archive that is not mounted must not read as zeros, and a read must not wait
    for a pipe."""
    wkwdask.write(
        tmp_path / "x" / "1", (0, 0, 0), np.ones((8, 8, 8), np.uint8), block_len=8, file_len=1
    )
    file = tmp_path / "x" / "1" / "z0" / "y0" / "x0.wkw"
    file.unlink()
    file.symlink_to("not-mounted")
    with pytest.raises(MissingError, match="symbolic link to a missing file"):
        wkwdask.read(tmp_path / "x" / "1", ((0, 0, 0), (8, 8, 8)))
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(CorruptError, match="not a regular file"):
        wkwdask.read(tmp_path / "x" / "1", ((0, 0, 0), (8, 8, 8)))


@pytest.mark.parametrize("name", ["z0", "z0/y0"])
def test_folder_linked_to_a_missing_folder_is_an_error(mag, name):
    shutil.rmtree(mag / name)
    (mag / name).symlink_to("not-mounted")
    with pytest.raises(MissingError, match=f"{name}: a symbolic link to a missing folder"):
        read(mag, ((0, 0, 0), (20, 20, 20)))


def test_replaced_target_of_a_link_is_read(mag, tmp_path):
    other = make(tmp_path / "other" / "1", voxels((40, 20, 20), seed=2))
    file = mag / "z0" / "y0" / "x1.wkw"
    moved = tmp_path / "moved.wkw"
    file.rename(moved)
    file.symlink_to(moved)
    before = wkwdask.read(mag)
    np.testing.assert_array_equal(before[0, 16:32, :16, :16], voxels((40, 20, 20))[16:32, :16, :16])
    os.replace(other / "z0" / "y0" / "x1.wkw", moved)
    np.testing.assert_array_equal(
        wkwdask.read(mag)[0, 16:32, :16, :16], voxels((40, 20, 20), seed=2)[16:32, :16, :16]
    )
