"""Writing one WKW mag: parts, joins, whole files; what a task leaves when it fails or runs
twice."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from formats.encoded_wkw import encode_file
from hypothesis import given, settings
from hypothesis import strategies as st

from wkwdask import BoundingBox
from wkwdask.errors import FormatError, IncompleteWriteError, WkwDaskError
from wkwdask.formats.wkw.array import wkw_target
from wkwdask.formats.wkw.file import decode_file
from wkwdask.formats.wkw.folder import file_path, read_header
from wkwdask.formats.wkw.header import BlockType, make_header
from wkwdask.formats.wkw.layout import header_of
from wkwdask.geometry.grid import cell_box, cells

BLOCK_TYPES = list(BlockType)


def make_target(
    folder, array, offset=(0, 0, 0), *, block_len=4, file_len=4, block_type=BlockType.LZ4, level=5
):
    header = make_header(
        array.dtype, array.shape[0], block_len=block_len, file_len=file_len, block_type=block_type
    )
    return wkw_target(
        str(folder / "mag"),
        header,
        level,
        BoundingBox(offset, array.shape[1:]),
        str(folder / "parts"),
    )


def voxels(shape, dtype="uint16", seed=1):
    return np.random.default_rng(seed).integers(1, 250, shape).astype(dtype)


def inside(box, corner):
    return (
        slice(None),
        *(
            slice(a - t, b - t)
            for a, b, t in zip(box.topleft, box.bottomright, corner, strict=True)
        ),
    )


def write_parts(target, array, shard, part_shape):
    """Write the parts of one file, and give their receipts."""
    receipts = []
    here = cell_box(shard, target.shard_shape, target.box).intersection(target.box)
    for part in cells(here, part_shape):
        box = cell_box(part, part_shape, here).intersection(here)
        writer = target.open_part(shard, part)
        writer.append(array[inside(box, target.box.topleft)], box.topleft)
        receipts.append(writer.close())
    return receipts


def write_all(target, array, part_shape):
    target.prepare()
    receipts = []
    for shard in cells(target.box, target.shard_shape):
        receipts.append(target.join_shard(shard, write_parts(target, array, shard, part_shape)))
        target.files.remove_parts(shard)
    return receipts


def lasting(receipt):
    """All of a receipt but the time of writing."""
    return replace(receipt, mtime_ns=0)


def read_all(target):
    out = np.full((target.num_channels, *target.box.size), 99, target.dtype)
    target.as_volume().read_into(out, target.box.topleft)
    return out


def whole_file(folder, array, block_type=BlockType.LZ4):
    """The bytes of a file that is written straight away."""
    target = make_target(folder, array, block_type=block_type)
    target.prepare()
    writer = target.open_part((0, 0, 0), None)
    writer.append(array, (0, 0, 0))
    return Path(writer.close().path).read_bytes()


def files(folder):
    return sorted(
        str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("block_type", BLOCK_TYPES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("part_shape", [(4, 4, 4), (8, 8, 8), (16, 16, 16), (8, 4, 16)])
def test_parts_join_to_the_file_that_is_encoded_at_once(tmp_path, block_type, channels, part_shape):
    array = voxels((channels, 16, 16, 16))
    array[:, 4:8, :, 8:] = 0
    target = make_target(tmp_path, array, block_type=block_type)
    (receipt,) = write_all(target, array, part_shape)
    path = Path(file_path(target.folder, (0, 0, 0)))
    raw = path.read_bytes()
    assert receipt.path == str(path) == target.files.path_of(receipt)
    assert (receipt.nbytes, receipt.mtime_ns) == (len(raw), path.stat().st_mtime_ns)
    np.testing.assert_array_equal(decode_file(raw), array)
    if block_type is not BlockType.LZ4:
        # whose bytes are those of the compiled calls, not of python-lz4
        assert raw == encode_file(array, header_of(target.array))
    assert raw == whole_file(tmp_path / "whole", array, block_type)
    assert files(target.staging.url) == []
    assert (receipt.voxels, receipt.minimum, receipt.maximum) == (16**3, 0, array.max())
    assert receipt.nonzero == target.box
    assert read_header(target.folder) == header_of(target.array)


@settings(max_examples=20)
@given(data=st.data())
def test_any_box_and_parts(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("target")
    offset = tuple(data.draw(st.integers(0, 30)) for _ in range(3))
    shape = tuple(data.draw(st.integers(1, 20)) for _ in range(3))
    part_shape = tuple(data.draw(st.sampled_from([4, 8, 16])) for _ in range(3))
    array = np.random.default_rng(shape[0]).integers(0, 2, (1, *shape), dtype=np.uint8)
    for axis in range(3):
        if data.draw(st.booleans()):
            array[
                inside(
                    BoundingBox(
                        (0, 0, 0),
                        tuple(n // 2 + 1 if k == axis else n for k, n in enumerate(shape)),
                    ),
                    (0, 0, 0),
                )
            ] = 0
    target = make_target(folder, array, offset, block_type=data.draw(st.sampled_from(BLOCK_TYPES)))
    receipts = write_all(target, array, part_shape)
    np.testing.assert_array_equal(read_all(target), array)
    stored = {receipt.path for receipt in receipts if receipt.path is not None}
    assert stored == {str(path) for path in Path(target.folder).rglob("x*.wkw")}
    for receipt in receipts:
        box = cell_box(receipt.shard, target.shard_shape, target.box).intersection(target.box)
        part = array[inside(box, offset)]
        assert (receipt.path is not None) == bool(part.any())
        assert (receipt.voxels, receipt.minimum, receipt.maximum) == (
            part[0].size,
            part.min(),
            part.max(),
        )
        where = np.argwhere(part.any(0))
        expected = (
            None
            if not len(where)
            else BoundingBox.from_corners(
                (where.min(0) + box.topleft).tolist(), (where.max(0) + 1 + box.topleft).tolist()
            )
        )
        assert receipt.nonzero == expected
    assert files(target.staging.url) == []


def test_a_whole_file_equals_joined_parts(tmp_path):
    array = voxels((2, 16, 16, 16))
    array[:, :, 8:, :4] = 0
    target = make_target(tmp_path, array)
    target.prepare()
    writer = target.open_part((0, 0, 0), None)
    for z, y, x in product((0, 8), repeat=3):  # bricks in Morton order
        box = BoundingBox((x, y, z), (8, 8, 8))
        part = array[inside(box, (0, 0, 0))]
        writer.append(part, box.topleft) if part.any() else writer.skip(box)
    receipt = writer.close()
    raw = Path(receipt.path).read_bytes()
    np.testing.assert_array_equal(decode_file(raw), array)
    assert raw == whole_file(tmp_path / "whole", array)
    (joined,) = write_all(make_target(tmp_path / "joined", array), array, (8, 8, 8))
    assert raw == Path(joined.path).read_bytes()
    assert (receipt.nbytes, receipt.part, receipt.voxels) == (len(raw), None, 16**3)


@pytest.mark.parametrize("whole", [True, False])
def test_zeros_are_not_stored(tmp_path, whole):
    array = np.zeros((1, 16, 16, 16), np.float32)
    target = make_target(tmp_path, array)
    target.prepare()
    writer = target.open_part((0, 0, 0), None if whole else (0, 0, 0))
    writer.append(array[:, :8], (0, 0, 0))
    writer.skip(BoundingBox((8, 0, 0), (8, 16, 16)))
    receipt = writer.close()
    assert (
        receipt.path,
        receipt.nbytes,
        receipt.minimum,
        receipt.maximum,
        receipt.nonzero,
        receipt.voxels,
    ) == (None, 0, 0, 0, None, 16**3)
    assert target.join_shard((0, 0, 0), [receipt]).path is None
    assert files(tmp_path) == ["mag/header.wkw"]


def test_a_zero_file_takes_the_place_of_an_older_one(tmp_path):
    """A duplicate of a task with other data: what is published last holds."""
    array = voxels((1, 16, 16, 16))
    target = make_target(tmp_path, array)
    target.prepare()
    for content in (array, array * 0):
        writer = target.open_part((0, 0, 0), None)
        writer.append(content, (0, 0, 0))
        receipt = writer.close()
    assert receipt.path is None
    assert files(tmp_path) == ["mag/header.wkw"]


# ----------------------------------------------------------------------------- twice, interrupted,
# damaged


@pytest.mark.parametrize("part_shape", [(8, 8, 8), (16, 16, 16)])
def test_tasks_that_run_twice(tmp_path, part_shape):
    array = voxels((1, 16, 16, 16))
    target = make_target(tmp_path, array)
    target.prepare()
    first = write_parts(target, array, (0, 0, 0), part_shape)
    assert write_parts(target, array, (0, 0, 0), part_shape) == first
    joined = lasting(target.join_shard((0, 0, 0), first))
    raw = Path(joined.path).read_bytes()
    assert lasting(target.join_shard((0, 0, 0), first)) == joined  # the parts are still there
    target.files.remove_parts((0, 0, 0))
    target.files.remove_parts((0, 0, 0))
    # the parts are gone, the file is there
    assert lasting(target.join_shard((0, 0, 0), first)) == joined
    again = write_parts(target, array, (0, 0, 0), part_shape)
    assert lasting(target.join_shard((0, 0, 0), again)) == joined
    assert Path(joined.path).read_bytes() == raw
    target.prepare()
    assert Path(joined.path).read_bytes() == raw


def test_a_part_that_is_gone(tmp_path):
    array = voxels((1, 16, 16, 16))
    target = make_target(tmp_path, array)
    target.prepare()
    receipts = write_parts(target, array, (0, 0, 0), (8, 8, 8))
    os.unlink(receipts[3].path)
    with pytest.raises(
        IncompleteWriteError, match=rf"{receipts[3].path}: a part of .*x0\.wkw is missing"
    ):
        target.join_shard((0, 0, 0), receipts)
    with pytest.raises(IncompleteWriteError, match="no parts"):
        target.join_shard((0, 0, 0), [])
    assert files(target.folder) == ["header.wkw"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_discarded_part_leaves_nothing(tmp_path, whole):
    array = voxels((1, 16, 16, 16))
    target = make_target(tmp_path, array)
    target.prepare()
    writer = target.open_part((0, 0, 0), None if whole else (0, 0, 0))
    writer.append(array[:, :8, :8, :8], (0, 0, 0))
    writer.flush()
    assert len(files(tmp_path)) == 2
    writer.discard()
    assert files(tmp_path) == ["mag/header.wkw"]
    target.open_part((0, 0, 0), None).discard()


def test_damaged_parts_are_never_joined_in_silence(tmp_path):
    """Every truncation, and damage anywhere in the tables: an error, and no file."""
    array = voxels((1, 8, 8, 8))
    target = make_target(tmp_path, array, block_len=4, file_len=2)
    target.prepare()
    receipts = write_parts(target, array, (0, 0, 0), (8, 8, 4))
    path = Path(receipts[0].path)
    raw = path.read_bytes()
    damaged = [raw[:n] for n in range(0, len(raw), 7)]
    tail = len(raw) - 2 * 8 * 4 - 28
    damaged += [raw[:n] + bytes([raw[n] ^ 0x41]) + raw[n + 1 :] for n in range(tail, len(raw))]
    damaged.append(raw + b"more")
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(FormatError, match=path.name):
            target.join_shard((0, 0, 0), receipts)
        assert files(target.folder) == ["header.wkw"]
    path.write_bytes(raw)
    target.join_shard((0, 0, 0), receipts)
    np.testing.assert_array_equal(read_all(target), array)


def test_parts_that_overlap_are_refused(tmp_path):
    array = voxels((1, 16, 16, 16))
    target = make_target(tmp_path, array)
    target.prepare()
    receipts = write_parts(target, array, (0, 0, 0), (8, 8, 8))
    with pytest.raises((WkwDaskError, ValueError)):
        target.join_shard((0, 0, 0), [*receipts, receipts[0]])
    assert files(target.folder) == ["header.wkw"]


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    """The join fails, the parts stay, no temporary file does; then it is done again."""
    array = voxels((1, 16, 16, 16))
    target = make_target(tmp_path, array)
    target.prepare()
    receipts = write_parts(target, array, (0, 0, 0), (8, 8, 8))
    before = files(tmp_path)

    def fail(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(OSError, match="No space left"):
            target.join_shard((0, 0, 0), receipts)
    assert files(tmp_path) == before
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            target.join_shard((0, 0, 0), receipts)
    assert files(tmp_path) == before
    target.join_shard((0, 0, 0), receipts)
    np.testing.assert_array_equal(read_all(target), array)


# ----------------------------------------------------------------------------- shapes


def test_files_have_the_header_of_a_data_file(tmp_path):
    array = voxels((1, 8, 8, 8))
    for n, block_type in enumerate(BLOCK_TYPES):
        target = make_target(
            tmp_path / str(n), array, block_len=4, file_len=2, block_type=block_type
        )
        (receipt,) = write_all(target, array, (8, 8, 8))
        raw = Path(receipt.path).read_bytes()
        assert int.from_bytes(raw[8:16], "little") == (
            16 if block_type is BlockType.RAW else 16 + 8 * 8
        )
        if block_type is not BlockType.RAW:
            assert int.from_bytes(raw[72:80], "little") == len(raw)
        assert Path(target.folder, "header.wkw").read_bytes()[8:] == bytes(8)


# ----------------------------------------------------------------------------- what a journal needs


def test_a_published_file_has_the_state_of_its_group(tmp_path):
    """Groups of one file are not listed: the state of that file is what the general path
    returns."""
    array = voxels((1, 8, 8, 8))
    target = make_target(tmp_path, array, block_len=4, file_len=2)
    target.prepare()
    writer = target.open_part((0, 0, 0), None)
    writer.append(array, (0, 0, 0))
    receipt = writer.close()
    assert target.array.files.has_single_file_shards
    assert (1, receipt.nbytes, receipt.mtime_ns) == target.as_volume().files.group_state((0, 0, 0))
    assert receipt.files == 1
    Path(receipt.path).unlink()
    gone = target.files.published_receipt(receipt)
    assert (gone.path, gone.nbytes, gone.mtime_ns) == (
        None,
        *target.as_volume().files.group_state((0, 0, 0))[1:],
    )


@pytest.mark.parametrize("block_type", BLOCK_TYPES)
def test_a_part_is_there_if_every_byte_is(tmp_path, block_type):
    array = voxels((1, 8, 8, 8))
    target = make_target(tmp_path, array, block_len=4, file_len=2, block_type=block_type)
    target.prepare()
    receipt, other = write_parts(target, array, (0, 0, 0), (8, 8, 4))
    path = Path(receipt.path)
    assert path == Path(target.files.path_of(receipt)) != Path(other.path)
    raw = path.read_bytes()
    assert target.files.has_files_of(receipt)
    for content in (
        raw[:-1],
        raw + b"x",
        b"",
        *(raw[:n] + bytes([raw[n] ^ 1]) + raw[n + 1 :] for n in range(0, len(raw), 5)),
    ):
        path.write_bytes(content)
        assert not target.files.has_files_of(receipt)
    path.unlink()
    assert not target.files.has_files_of(receipt)
    path.write_bytes(raw)
    assert target.files.has_files_of(receipt)
    assert target.files.has_files_of(other)


@pytest.mark.parametrize("block_type", BLOCK_TYPES)
def test_a_file_is_there_if_size_header_and_table_are(tmp_path, block_type):
    array = voxels((1, 8, 8, 8))
    target = make_target(tmp_path, array, block_len=4, file_len=2, block_type=block_type)
    (receipt,) = write_all(target, array, (8, 8, 4))
    path = Path(receipt.path)
    raw = path.read_bytes()
    assert target.files.has_files_of(receipt)
    # the journal keeps no path, and a restored file has another time
    assert target.files.has_files_of(replace(receipt, mtime_ns=7, path=None))
    damaged = [raw[:-1], raw + b"x", b"", b"WKX" + raw[3:], raw[:8] + b"\xff" * 8 + raw[16:]]
    if block_type is not BlockType.RAW:
        damaged += [raw[: 16 + 8 * n] + b"\xff" * 8 + raw[24 + 8 * n :] for n in range(8)]
    for content in damaged:
        path.write_bytes(content)
        assert not target.files.has_files_of(receipt)
    path.unlink()
    assert not target.files.has_files_of(receipt)
    (tmp_path / "mag" / "header.wkw").unlink()
    path.write_bytes(raw)
    assert target.files.has_files_of(receipt)


def test_what_is_all_zero_is_always_there(tmp_path):
    array = np.zeros((1, 8, 8, 8), np.uint8)
    target = make_target(tmp_path, array, block_len=4, file_len=2)
    target.prepare()
    for part in (None, (0, 0, 0)):
        writer = target.open_part((0, 0, 0), part)
        writer.skip(target.box)
        receipt = writer.close()
        assert receipt.nbytes == 0
        assert target.files.has_files_of(receipt)


def test_parts_of_other_files_stay(tmp_path):
    array = voxels((1, 32, 16, 16))
    target = make_target(tmp_path, array)
    target.prepare()
    first, second = (write_parts(target, array, (x, 0, 0), (8, 8, 8)) for x in range(2))
    target.join_shard((0, 0, 0), first)
    target.files.remove_parts((0, 0, 0))
    assert not any(Path(receipt.path).exists() for receipt in first)
    assert all(target.files.has_files_of(receipt) for receipt in second)
    target.join_shard((1, 0, 0), second)
    np.testing.assert_array_equal(read_all(target), array)


def test_an_equal_file_is_left_alone(tmp_path):
    """In an update: other programs see by its time that nothing has changed."""
    array = voxels((1, 16, 16, 16))
    target = replace(make_target(tmp_path, array), is_in_place=True)
    target.prepare()

    def write(content):
        writer = target.open_part((0, 0, 0), None)
        writer.append(content, (0, 0, 0))
        return writer.close()

    first = write(array)
    path = Path(first.path)
    os.utime(path, ns=(5, 5))
    kept = write(array)
    assert (kept.mtime_ns, path.stat().st_mtime_ns) == (5, 5)
    assert files(tmp_path / "parts") == []
    changed = write(array + 1)
    assert changed.mtime_ns == path.stat().st_mtime_ns != 5
    np.testing.assert_array_equal(read_all(target), array + 1)
    assert write(array * 0).path is None
    assert not path.exists()
