"""Mags whose files hold one block: reads of many files at once return the voxels and errors of
reads of single files."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from formats.encoded_wkw import encode_file
from hypothesis import given
from hypothesis import strategies as st
from support.other_user import nobody, public_folder
from support.strategies import vectors

from wkwdask import BoundingBox
from wkwdask.errors import CorruptError, MissingError, TruncatedError, WkwDaskError
from wkwdask.formats.marks import HEADER_NAME
from wkwdask.formats.wkw import layout as wkw
from wkwdask.formats.wkw import stored_file as wkw_file
from wkwdask.formats.wkw import stored_file as wkw_small_files
from wkwdask.formats.wkw.array import open_mag
from wkwdask.formats.wkw.folder import list_files
from wkwdask.formats.wkw.header import BlockType, format_header, make_header
from wkwdask.formats.wkw.layout import header_of
from wkwdask.geometry.grid import cell_range, cells
from wkwdask.kernels.blocks import batch as blocks
from wkwdask.store import local
from wkwdask.store.lru import LruCache

SHAPE = (40, 20, 28)
PATHS = ("many", "single", "without LZ4's functions")


def voxels(shape, dtype="uint16", seed=1):
    return np.random.default_rng(seed).integers(1, 250, shape).astype(dtype)


def make(folder, array, *, block_len=8, file_len=1, compression="lz4"):
    """Store an array; files of zeros are left out."""
    array = array if array.ndim == 4 else array[None]
    header = make_header(
        array.dtype,
        len(array),
        block_len=block_len,
        file_len=file_len,
        block_type=BlockType.parse(compression),
    )
    folder.mkdir(parents=True)
    (folder / HEADER_NAME).write_bytes(format_header(header))
    edge = header.file_len_vx
    for index in cells(BoundingBox((0, 0, 0), array.shape[1:]), (edge,) * 3):
        part = array[(slice(None), *(slice(n * edge, (n + 1) * edge) for n in index))]
        if part.any():
            store(
                folder,
                index,
                np.pad(part, [(0, 0), *((0, edge - n) for n in part.shape[1:])]),
                header,
            )
    return folder


def store(folder, index, array, header):
    file = Path(wkw.file_path(str(folder), index))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encode_file(array, header))


def read(folder, low=(0, 0, 0), shape=SHAPE):
    volume = open_mag(str(folder), BoundingBox((0, 0, 0), SHAPE))
    out = np.full((volume.num_channels, *shape), 99, volume.dtype)
    volume.read_into(out, low)
    return out


def take(path, monkeypatch):
    """Read files one by one, or decode by python-lz4."""
    if path == "single":
        monkeypatch.setattr(wkw, "has_small_files", lambda header: False)
    elif path == "without LZ4's functions":
        monkeypatch.setattr(blocks, "_compiled", lambda: None)


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    take(request.param, monkeypatch)
    return request.param


@pytest.fixture
def mag(tmp_path):
    return make(tmp_path / "color" / "1", voxels(SHAPE))


def test_small_files_are_read_together(mag, monkeypatch):
    calls = []
    before = wkw_small_files.read_batch
    monkeypatch.setattr(
        wkw_small_files, "read_batch", lambda *args: calls.append(args) or before(*args)
    )
    monkeypatch.setattr(
        wkw, "open_if_stored", lambda *args: pytest.fail("a file was opened by itself")
    )
    np.testing.assert_array_equal(read(mag)[0], voxels(SHAPE))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"file_len": 2}, False),
        ({"block_len": 128}, False),
        ({"compression": "raw"}, True),
    ],
)
def test_which_mags_have_small_files(tmp_path, options, expected):
    folder = make(tmp_path / "1", voxels((8, 8, 8)), **options)
    assert wkw_small_files.has_small_files(header_of(open_mag(str(folder)))) == expected


@pytest.mark.parametrize(("channels", "compression"), [(1, "raw"), (3, "lz4"), (1, "lz4hc")])
def test_any_box(tmp_path, path, channels, compression):
    array = voxels((channels, *SHAPE), "uint32")
    volume = open_mag(str(make(tmp_path / "1", array, compression=compression)))
    random = np.random.default_rng(5)
    for n in range(20):
        low = random.integers(0, np.array(SHAPE) - 1)
        shape = random.integers(1, np.array(SHAPE) - low + 1)
        part = array[(slice(None), *map(slice, low, low + shape))]
        out = np.full(part.shape, 9, np.uint32, order="CF"[n % 2])
        assert volume.read_into(out, tuple(low.tolist())) == np.prod(
            -(-(low + shape) // 8) - low // 8
        )
        np.testing.assert_array_equal(out, part)
        one = np.full((1, *part.shape[1:]), 9, np.uint32)
        volume.read_into(one, tuple(low.tolist()), channels - 1)
        np.testing.assert_array_equal(one[0], part[channels - 1])


def test_batches_are_bounded(tmp_path, path, monkeypatch):
    sizes = []
    before = wkw_small_files.read_batch
    monkeypatch.setattr(
        wkw_small_files, "read_batch", lambda *args: sizes.append(args[-1].nbytes) or before(*args)
    )
    array = voxels((256, 256, 64), "uint8")
    folder = make(tmp_path / "1", array, block_len=32, compression="raw")
    np.testing.assert_array_equal(read(folder, shape=array.shape)[0], array)
    if path != "single":
        assert len(sizes) > 1
        assert max(sizes) <= 8 << 20


def test_voxels_outside_the_files_are_zero(mag, path):
    out = read(mag, (-10, -3, -20), (60, 40, 60))
    np.testing.assert_array_equal(out[0, 10:50, 3:23, 20:48], voxels(SHAPE))
    out[0, 10:50, 3:23, 20:48] = 0
    assert not out.any()
    assert not read(mag, (1000, 2000, 3000)).any()


def test_missing_files_and_folders_are_zeros(mag, path):
    expected = voxels(SHAPE)
    (mag / "z0" / "y0" / "x1.wkw").unlink()
    expected[8:16, :8, :8] = 0
    shutil.rmtree(mag / "z1" / "y1")
    expected[:, 8:16, 8:16] = 0
    shutil.rmtree(mag / "z2")
    expected[:, :, 16:24] = 0
    shutil.rmtree(mag / "z3" / "y0")
    (mag / "z3" / "y0").write_bytes(b"a file where a folder should be")
    expected[:, :8, 24:] = 0
    np.testing.assert_array_equal(read(mag)[0], expected)


def test_files_with_another_encoding_than_the_mag(tmp_path, path):
    array = voxels(SHAPE)
    folder = make(tmp_path / "1", array, compression="lz4hc")
    for n, compression in enumerate(("raw", "lz4")):
        other = make(tmp_path / compression, array, compression=compression)
        shutil.copyfile(other / "z1" / "y1" / f"x{n}.wkw", folder / "z1" / "y1" / f"x{n}.wkw")
    np.testing.assert_array_equal(read(folder)[0], array)
    for block_type in BlockType:
        raw = bytearray((folder / HEADER_NAME).read_bytes())
        raw[5] = block_type
        (folder / HEADER_NAME).write_bytes(raw)
        np.testing.assert_array_equal(read(folder)[0], array)


def test_links_are_followed(mag, path, tmp_path):
    for name in ("z0/y0/x1.wkw", "z1/y1", "z2"):
        moved = tmp_path / name.replace("/", "-")
        (mag / name).rename(moved)
        (mag / name).symlink_to(moved)
    np.testing.assert_array_equal(read(mag)[0], voxels(SHAPE))


# ----------------------------------------------------------------------------- faults


def _u64(value):
    return value.to_bytes(8, "little")


BROKEN = {
    "empty": (lambda raw: b"", TruncatedError, "header ends at byte 0, expected 16 bytes"),
    "cut header": (
        lambda raw: raw[:10],
        TruncatedError,
        "header ends at byte 10, expected 16 bytes",
    ),
    "cut table": (
        lambda raw: raw[:20],
        TruncatedError,
        "jump table ends at byte 20, expected 1 entries up to byte 24",
    ),
    "cut block": (lambda raw: raw[:-1], TruncatedError, "byte 16: block 0 ends at byte "),
    "magic": (
        lambda raw: b"WKX" + raw[3:],
        CorruptError,
        "byte 0: expected magic b'WKW', found b'WKX'",
    ),
    "version": (
        lambda raw: raw[:3] + b"\2" + raw[4:],
        CorruptError,
        "byte 3: expected version 1, found 2",
    ),
    "block_len": (
        lambda raw: raw[:4] + b"\4" + raw[5:],
        CorruptError,
        "byte 4: block_len is 16, but the mag's header.wkw says 8",
    ),
    "file_len": (
        lambda raw: raw[:4] + b"\x13" + raw[5:],
        CorruptError,
        "byte 8: data offset 24 lies inside the header and jump table",
    ),
    "block type": (
        lambda raw: raw[:5] + b"\7" + raw[6:],
        CorruptError,
        "byte 5: expected block type 1 (raw), 2 (lz4) or 3 (lz4hc), found 7",
    ),
    "voxel type": (
        lambda raw: raw[:6] + b"\x08" + raw[7:],
        CorruptError,
        "byte 6: voxel type is int16, but the mag's header.wkw says uint16",
    ),
    "channels": (
        lambda raw: raw[:7] + b"\4" + raw[8:],
        CorruptError,
        "byte 7: number of channels is 2, but the mag's header.wkw says 1",
    ),
    "data offset": (
        lambda raw: raw[:8] + _u64(20) + raw[16:],
        CorruptError,
        "byte 8: data offset 20 lies inside the header and jump table",
    ),
    "table falls": (
        lambda raw: raw[:16] + _u64(3) + raw[24:],
        CorruptError,
        "byte 16: jump table decreases: block 0 starts at byte 24 and ends at byte 3",
    ),
    "table beyond the end": (
        lambda raw: raw[:16] + _u64(1 << 40) + raw[24:],
        TruncatedError,
        "block 0 ends at byte 1099511627776, but the file has",
    ),
    "too short for its voxels": (
        lambda raw: raw[:16] + _u64(26) + raw[24:],
        CorruptError,
        "2 stored bytes cannot decode to 1024 bytes",
    ),
    "no LZ4": (
        lambda raw: raw[:24] + b"\xff" * (len(raw) - 24),
        CorruptError,
        "block 0 at byte 24: ",
    ),
    "other length": (
        lambda raw: raw[:16] + _u64(31) + b"\x60aaaaaa",
        CorruptError,
        "7 stored bytes decode to 6 bytes, expected 1024",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file_raises_the_error_of_a_single_read(mag, name):
    damage, error, text = BROKEN[name]
    file = mag / "z1" / "y1" / "x3.wkw"
    file.write_bytes(damage(file.read_bytes()))
    messages = []
    for which in PATHS[:2]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            take(which, monkeypatch)
            with pytest.raises(error) as caught:
                read(mag)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert messages[0].startswith(str(file))
    assert text in messages[0]
    # other files are readable
    np.testing.assert_array_equal(read(mag, shape=(24, 20, 28))[0], voxels(SHAPE)[:24])


def test_truncated_raw_file(tmp_path, path):
    folder = make(tmp_path / "1", voxels(SHAPE), compression="raw")
    os.truncate(folder / "z1" / "y0" / "x2.wkw", 16 + 1023)
    with pytest.raises(
        TruncatedError,
        match=r"z1/y0/x2\.wkw: block 0 at byte 16: the file has 1039 bytes, expected 1040",
    ):
        read(folder)


@pytest.mark.parametrize("first_of_its_batch", [True, False])
def test_broken_block_that_is_sound_on_the_second_read(mag, monkeypatch, first_of_its_batch):
    """A file that is replaced between both reads is no error, and later blocks are decoded."""
    file = mag / "z0" / "y0" / ("x0.wkw" if first_of_its_batch else "x3.wkw")
    good = file.read_bytes()
    file.write_bytes(good[:24] + b"\xff" * (len(good) - 24))
    before = wkw.open_if_stored

    def replace_and_open(*args):
        file.write_bytes(good)
        wkw_file.read_buffer(1 << 20)[:] = 0xEE  # as reading a long block would
        return before(*args)

    monkeypatch.setattr(wkw, "open_if_stored", replace_and_open)
    np.testing.assert_array_equal(read(mag)[0], voxels(SHAPE))


def _pipe(file):
    file.unlink()
    os.mkfifo(file)


def _folder(file):
    file.unlink()
    file.mkdir()


def _link_to_nowhere(file):
    file.unlink()
    file.symlink_to("not-mounted")


def _loop(file):
    file.unlink()
    file.symlink_to(file)


def _folder_linked_to_nowhere(file):
    shutil.rmtree(file.parent)
    file.parent.symlink_to("not-mounted")


def _slab_linked_to_nowhere(file):
    shutil.rmtree(file.parent.parent)
    file.parent.parent.symlink_to("not-mounted")


NO_FILES = [
    (_pipe, CorruptError, r"z1/y1/x3\.wkw: not a regular file"),
    (_folder, CorruptError, r"z1/y1/x3\.wkw: not a regular file"),
    (_link_to_nowhere, MissingError, r"z1/y1/x3\.wkw: a symbolic link to a missing file"),
    (_loop, OSError, r"symbolic links: '.*z1/y1/x3\.wkw'"),
    (_folder_linked_to_nowhere, MissingError, r"z1/y1: a symbolic link to a missing folder"),
    (_slab_linked_to_nowhere, MissingError, r"z1: a symbolic link to a missing folder"),
]


@pytest.mark.parametrize(("change", "error", "text"), NO_FILES)
def test_special_files_and_broken_links_are_errors(mag, path, change, error, text):
    change(mag / "z1" / "y1" / "x3.wkw")
    with pytest.raises(error, match=text):
        read(mag)
    with pytest.raises(error, match=text):
        read(mag, (24, 8, 8), (1, 1, 1))


@pytest.fixture
def public_mag():
    """Mag in a folder that every user may enter."""
    with public_folder() as folder:
        yield make(folder / "color" / "1", voxels(SHAPE))


@pytest.mark.parametrize("name", ["z1/y1/x3.wkw", "z1/y1", "z1"])
def test_files_without_permission_are_errors(public_mag, path, name, monkeypatch):
    read(public_mag)  # as a user who may, so that all code is loaded
    monkeypatch.setattr(wkw_file, "_open_files", LruCache(1))
    place = public_mag / name
    place.chmod(0)
    with nobody(), pytest.raises(PermissionError, match=r"z1/y./x.\.wkw"):
        read(public_mag)
    place.chmod(0o711)  # a folder that may be entered and not be listed
    with nobody():
        if place.is_dir():
            np.testing.assert_array_equal(read(public_mag)[0], voxels(SHAPE))


def test_removed_mag_is_an_error(mag, path):
    volume = open_mag(str(mag))
    out = np.zeros((1, *SHAPE), np.uint16)
    (mag / HEADER_NAME).rename(mag / "elsewhere")
    volume.read_into(out, (0, 0, 0))  # nothing is absent
    (mag / "z0" / "y0" / "x1.wkw").unlink()
    for low, shape in (((0, 0, 0), SHAPE), ((8, 0, 0), (8, 8, 8)), ((100, 100, 100), SHAPE)):
        out = np.zeros((1, *shape), np.uint16)
        for fill_zeros in (True, False):
            with pytest.raises(
                MissingError, match=r"color/1/header\.wkw: not found: the mag is gone"
            ):
                volume.read_into(out, low, fill_zeros=fill_zeros)
    shutil.rmtree(mag)
    with pytest.raises(MissingError, match=r"color/1/header\.wkw: not found: the mag is gone"):
        volume.read_into(np.zeros((1, *SHAPE), np.uint16), (0, 0, 0))
    mag.write_bytes(b"a file in its place")
    with pytest.raises(MissingError, match=r"color/1/header\.wkw: not found: the mag is gone"):
        volume.read_into(np.zeros((1, *SHAPE), np.uint16), (0, 0, 0))


def test_mag_replaced_during_a_read(mag, monkeypatch):
    """Removed files of the old mag must not read as zeros."""
    old = mag.parent / "old"
    make(mag.parent / "new", voxels(SHAPE, seed=2))
    before = local._read_small

    def replace_and_read(*args):
        if not old.exists():
            mag.rename(old)
            (mag.parent / "new").rename(mag)
            shutil.rmtree(old / "z1")
        return before(*args)

    monkeypatch.setattr(local, "_read_small", replace_and_read)
    expected = voxels(SHAPE)
    expected[:, :, 8:16] = voxels(SHAPE, seed=2)[:, :, 8:16]
    np.testing.assert_array_equal(read(mag)[0], expected)
    np.testing.assert_array_equal(read(mag)[0], voxels(SHAPE, seed=2))


def test_mag_removed_during_a_read(mag, monkeypatch):
    before = local._read_small

    def remove_and_read(*args):
        shutil.rmtree(mag)
        return before(*args)

    monkeypatch.setattr(local, "_read_small", remove_and_read)
    with pytest.raises(MissingError, match=r"color/1/header\.wkw: not found: the mag is gone"):
        read(mag)


def test_absent_files_need_few_stat_calls(mag, path, monkeypatch):
    """One call for each absent file, and one for the folders of each row."""
    for name in ("z0", "z2", "z1/y1"):
        shutil.rmtree(mag / name)
    looks = []
    for name in ("stat", "lstat"):
        before = getattr(os, name)
        monkeypatch.setattr(
            os,
            name,
            lambda path, *args, before=before, **options: (
                looks.append(str(path)) or before(path, *args, **options)
            ),
        )
    read(mag)
    files = [look for look in looks if look.endswith(".wkw") and HEADER_NAME not in look]
    assert len(files) == len(set(files))
    assert len(files) == (5 * 3 * 4 if path == "single" else 0)
    assert len(looks) - len(files) < 40  # at folders and header.wkw


def test_threads_read_one_state_of_a_changing_file(mag):
    """Between any two steps the file may be removed, restored or replaced."""
    file = mag / "z0" / "y0" / "x1.wkw"
    good = file.read_bytes()
    other = make(mag.parent / "2", voxels(SHAPE, seed=2)) / "z0" / "y0" / "x1.wkw"
    states = [
        voxels(SHAPE)[8:16, :8, :8],
        voxels(SHAPE, seed=2)[8:16, :8, :8],
        np.zeros((8, 8, 8), np.uint16),
    ]
    rest = voxels(SHAPE)
    rest[8:16, :8, :8] = 0
    raws = [good, other.read_bytes(), None]
    stop, problems, seen = threading.Event(), [], set()

    def hammer():
        while not stop.is_set():
            try:
                out = read(mag)[0]
            except (OSError, WkwDaskError) as error:
                problems.append(repr(error))
                continue
            seen.update(
                n for n, state in enumerate(states) if np.array_equal(out[8:16, :8, :8], state)
            )
            if not any(np.array_equal(out[8:16, :8, :8], state) for state in states):
                problems.append("a mixture")
            out[8:16, :8, :8] = 0
            if not np.array_equal(out, rest):
                problems.append("another file")

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(150):
        if raws[n % 3] is None:
            file.unlink()
        else:
            (mag / ".new").write_bytes(raws[n % 3])
            os.replace(mag / ".new", file)
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems, problems[:3]
    assert seen


# ----------------------------------------------------------------------------- reads without zero
# fill


def _sparse_voxels():
    """Draw sparse blocks, and a region without any."""
    random = np.random.default_rng(6)
    array = voxels((40, 40, 40), seed=3)
    for corner in np.ndindex(5, 5, 5):
        if random.random() < 0.8:
            array[tuple(slice(8 * n, 8 * n + 8) for n in corner)] = 0
    array[:16, :, :32] = 0
    return array


@pytest.fixture(scope="module", params=[(1, "lz4"), (2, "raw"), (4, "lz4hc")], ids=str)
def sparse_mag(request, tmp_path_factory):
    """Mag whose files and blocks are absent, zero or neither."""
    file_len, compression = request.param
    mag = make(
        tmp_path_factory.mktemp("sparse") / "1",
        _sparse_voxels(),
        file_len=file_len,
        compression=compression,
    )
    header = header_of(open_mag(str(mag)))
    for n, index in enumerate(np.ndindex((-(-5 // file_len),) * 3)):
        if n % 3 and not os.path.exists(wkw.file_path(str(mag), index)):
            store(mag, index, np.zeros((1, *(header.file_len_vx,) * 3), np.uint16), header)
    return mag


@pytest.mark.parametrize("path_name", PATHS)
@given(st.data())
def test_array_without_zero_fill_is_complete_or_untouched(sparse_mag, path_name, data):
    with pytest.MonkeyPatch.context() as monkeypatch:
        take(path_name, monkeypatch)
        low = data.draw(vectors(-5, 39))
        shape = data.draw(vectors(1, 24))
        expected = np.zeros(shape, np.uint16)
        inside = tuple(slice(max(0, a), max(0, a + n)) for a, n in zip(low, shape, strict=True))
        part = _sparse_voxels()[inside]
        expected[
            tuple(slice(max(0, -a), max(0, -a) + n) for a, n in zip(low, part.shape, strict=True))
        ] = part
        volume = open_mag(str(sparse_mag))
        out = np.full((1, *shape), 99, np.uint16, order=data.draw(st.sampled_from("CF")))
        nonzero = volume.read_into(out, low, fill_zeros=False)
        if nonzero:
            np.testing.assert_array_equal(out[0], expected)
        else:
            assert not expected.any()
            assert (out == 99).all()
        assert volume.read_into(out, low) == nonzero
        np.testing.assert_array_equal(out[0], expected)


def test_zeros_of_earlier_batches_are_filled(tmp_path, path, monkeypatch):
    monkeypatch.setattr(wkw_small_files, "_BATCH_NBYTES", 3000)
    monkeypatch.setattr(wkw_file, "_BATCH_NBYTES", 3000)
    for file_len in (1, 4):
        for place in ((0, 0, 0), (31, 31, 0), (17, 3, 20), (31, 31, 31), None):
            array = np.zeros((1, 32, 32, 32), np.uint16)
            folder = make(
                tmp_path / f"{file_len}-{place}", array, file_len=file_len, compression="raw"
            )
            if place is not None:
                array[(0, *place)] = 1
            header, edge = header_of(open_mag(str(folder))), 8 * file_len
            for x, y, z in cells(BoundingBox((0, 0, 0), (32, 32, 32)), (edge,) * 3):
                part = array[
                    :,
                    x * edge : (x + 1) * edge,
                    y * edge : (y + 1) * edge,
                    z * edge : (z + 1) * edge,
                ]
                store(folder, (x, y, z), part, header)
            out = np.full((1, 32, 32, 32), 99, np.uint16)
            assert open_mag(str(folder)).read_into(out, (0, 0, 0), fill_zeros=False) == (
                place is not None
            )
            np.testing.assert_array_equal(
                out, array if place is not None else np.full_like(array, 99)
            )


# ----------------------------------------------------------------------------- occupied cells


@given(st.data())
def test_occupied_cells_equal_the_stored_files(tmp_path_factory, data):
    file_len = data.draw(st.sampled_from([1, 2]))
    folder = make(
        tmp_path_factory.mktemp("occupied") / "1",
        np.zeros((1, 1, 1), np.uint8),
        block_len=4,
        file_len=file_len,
    )
    edge = 4 * file_len
    for index in data.draw(st.lists(vectors(0, 5), max_size=12)):
        file = Path(wkw.file_path(str(folder), index))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    box = BoundingBox(data.draw(vectors(0, 20)), data.draw(vectors(0, 30)))
    cell = data.draw(st.tuples(*[st.sampled_from([1, 2, 4, 8, 16, 32, 6])] * 3))
    volume = open_mag(str(folder), box)
    found = volume.files.occupied(cell)
    stored = np.zeros((64, 64, 64), bool)
    for x, y, z in list_files(str(folder)):
        stored[x * edge : (x + 1) * edge, y * edge : (y + 1) * edge, z * edge : (z + 1) * edge] = (
            True
        )
    inside = np.zeros_like(stored)
    inside[tuple(slice(a, b) for a, b in zip(box.topleft, box.bottomright, strict=True))] = True
    ranges = cell_range(box, cell)
    assert found.shape == tuple(len(r) for r in ranges)
    for n in np.ndindex(found.shape):
        place = tuple(
            slice((r.start + i) * c, (r.start + i + 1) * c)
            for r, i, c in zip(ranges, n, cell, strict=True)
        )
        assert found[n] == (stored & inside)[place].any()
    wanted = cell_range(box, (edge,) * 3)
    stored_ones = sorted(map(tuple, volume.files.stored_states()[:, :3].tolist()))
    assert stored_ones == sorted(
        i for i in list_files(str(folder)) if all(n in r for n, r in zip(i, wanted, strict=True))
    )


def test_occupied_only_lists_folders(mag, monkeypatch):
    volume = open_mag(str(mag), BoundingBox((0, 0, 0), SHAPE))
    listed = []
    before = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or before(path))
    accessed = []
    for name in ("stat", "lstat", "open"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os,
            name,
            lambda path, *args, real=real, **options: (
                accessed.append(str(path)) or real(path, *args, **options)
            ),
        )
    assert volume.files.occupied((8, 8, 8)).all()
    # threads of other tests may open other files
    assert [path for path in accessed if path.startswith(f"{mag}/")] == []
    assert len(listed) == 1 + 4 + 12
    listed.clear()
    assert volume.files.occupied((64, 16, 16)).all()
    assert len(listed) == 1 + 4 + 4  # one row of each cell suffices
    assert volume.files.occupied((8, 8, 8)).shape == (5, 3, 4)


def test_occupied_lists_only_folders_in_the_box(mag, monkeypatch):
    volume = open_mag(str(mag), BoundingBox((8, 8, 8), (8, 8, 8)))
    listed = []
    before = os.scandir
    monkeypatch.setattr(
        os, "scandir", lambda path: listed.append(os.path.relpath(path, mag)) or before(path)
    )
    assert volume.files.occupied((8, 8, 8)).tolist() == [[[True]]]
    assert listed == [".", "z1", "z1/y1"]


@pytest.mark.parametrize("name", ["z1", "z1/y1"])
def test_occupied_refuses_broken_links(mag, name):
    shutil.rmtree(mag / name)
    (mag / name).symlink_to("not-mounted")
    volume = open_mag(str(mag), BoundingBox((0, 0, 0), SHAPE))
    with pytest.raises(MissingError, match=f"{name}: a symbolic link to a missing folder"):
        volume.files.occupied((8, 8, 8))


def test_occupied_of_a_removed_mag(mag):
    volume = open_mag(str(mag), BoundingBox((0, 0, 0), SHAPE))
    shutil.rmtree(mag)
    with pytest.raises(MissingError, match="the mag is gone"):
        volume.files.occupied((8, 8, 8))


def test_file_removed_after_listing_reads_as_zeros(mag):
    volume = open_mag(str(mag), BoundingBox((0, 0, 0), SHAPE))
    assert volume.files.occupied((8, 8, 8)).all()
    (mag / "z1" / "y1" / "x1.wkw").unlink()
    expected = voxels(SHAPE)
    expected[8:16, 8:16, 8:16] = 0
    np.testing.assert_array_equal(read(mag)[0], expected)


def test_states_of_files_with_missing_folders(mag):
    shutil.rmtree(mag / "z1")
    shutil.rmtree(mag / "z2" / "y1")
    (mag / "z3" / "y1" / "x2.wkw").unlink()
    volume = open_mag(str(mag), BoundingBox((0, 0, 0), SHAPE))
    states = volume.files.shard_states(BoundingBox((8, 0, 0), (100, 100, 100)))
    assert {tuple(index) for index in states[:, :3].tolist()} == {
        tuple(index) for index in volume.files.stored_states()[:, :3].tolist() if index[0] > 0
    }
    assert volume.files.has_shards()
    assert not open_mag(str(mag), BoundingBox((0, 0, 8), (40, 20, 8))).files.has_shards()
