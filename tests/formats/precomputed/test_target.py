"""Building one scale of a precomputed volume: shard files byte for byte, parts, orders, zeros, and
what is believed of an interrupted start."""

from __future__ import annotations

import itertools
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from support.precomputed_volumes import assemble_shard, chunk_id

from wkwdask import BoundingBox, Mag
from wkwdask.errors import IncompleteWriteError
from wkwdask.formats.precomputed.array import scale_identity, target_scale
from wkwdask.formats.precomputed.chunk import PrecomputedCodec
from wkwdask.formats.precomputed.info import Scale
from wkwdask.formats.precomputed.sharding import Sharding
from wkwdask.geometry.grid import cell_box, cells
from wkwdask.model.writing.receipts import Receipt
from wkwdask.store import new_files
from wkwdask.store.store import open_store

SHARDING = Sharding(
    preshift_bits=2,
    minishard_bits=2,
    shard_bits=2,
    data_encoding="gzip",
    minishard_index_encoding="gzip",
)
CHUNK = (8, 8, 4)
SIZE = (30, 26, 12)  # 4 x 4 x 3 chunks: identifiers of 6 bits


def target_of(folder, sharding=SHARDING, size=SIZE, chunk=CHUNK, dtype="uint16", packing=""):
    scale = Scale(
        "4_4_40", size, (-5, 3, 0), chunk, (4, 4, 40), "raw", sharding, chunk_sizes=(chunk,)
    )
    store = open_store(str(folder))
    target = target_scale(
        store,
        store,
        scale,
        PrecomputedCodec.of_scale(scale, np.dtype(dtype), 1, packing),
        Mag(1, 1, 1),
    ).built_in(f"{folder}/scale-0")
    target.prepare()
    return target


def voxels(size=SIZE):
    array = np.random.default_rng(3).integers(0, 1 << 16, (1, *size), np.uint16)
    array[:, 8:16, :8, :4] = 0  # one chunk
    return array


def write_whole(target, shard, array, bricks=None):
    """Write a shard, brick by brick in any order of chunks."""
    writer = target.open_part(shard, None)
    inside = cell_box(shard, target.shard_shape, target.box).intersection(target.box)
    for brick in bricks or [inside]:
        writer.append(cut(array, brick), brick.topleft)
    return writer.close()


def cut(array, box):
    return array[
        (slice(None), *(slice(a, b) for a, b in zip(box.topleft, box.bottomright, strict=True)))
    ]


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_the_worked_example(tmp_path):
    """tensorstore wrote the same bytes."""
    target = target_of(tmp_path, Sharding(1, 1, 1), (3, 2, 1), (1, 1, 1), "uint8")
    array = np.array([[[[0xA0 + 16 * y + x] for y in range(2)] for x in range(3)]], np.uint8)
    assert target.shard_shape == (2, 2, 1)
    for shard in cells(target.box, target.shard_shape):
        write_whole(target, shard, array)

    def words(*values):
        return struct.pack(f"<{len(values)}Q", *values)

    first = (
        words(2, 50, 52, 100)
        + b"\xa0\xa1"
        + words(0, 1, 0, 0, 1, 1)
        + b"\xb0\xb1"
        + words(2, 1, 50, 0, 1, 1)
    )
    second = words(1, 25, 26, 50) + b"\xa2" + words(4, 0, 1) + b"\xb2" + words(6, 25, 1)
    assert files(target.folder) == {"0.shard": first, "1.shard": second}


def expected_shard(target, shard, array):
    """The shard as it is put together in memory."""
    chunks = {}
    for cell in cells(
        cell_box(shard, target.shard_shape, target.box).intersection(target.box), CHUNK
    ):
        box = cell_box(cell, CHUNK, target.box).intersection(target.box)
        voxels = cut(array, box)
        if voxels.any():
            chunks[chunk_id(scale_identity(target.array).scale, cell)] = target.array.codec.encode(
                voxels, "f"
            )
    return b"".join(assemble_shard(chunks, scale_identity(target.array).scale.sharding))


def bricks_of(target, shard):
    inside = cell_box(shard, target.shard_shape, target.box).intersection(target.box)
    return [
        cell_box(cell, CHUNK, target.box).intersection(target.box) for cell in cells(inside, CHUNK)
    ]


@pytest.mark.parametrize("order", ["one brick", "x fastest", "backwards", "shuffled"])
def test_chunks_in_any_order_make_the_same_shards(tmp_path, order):
    target, array = target_of(tmp_path), voxels()
    for shard in cells(target.box, target.shard_shape):
        bricks = bricks_of(target, shard)
        if order == "backwards":
            bricks.reverse()
        elif order == "shuffled":
            np.random.default_rng(1).shuffle(bricks)
        receipt = write_whole(target, shard, array, None if order == "one brick" else bricks)
        path = Path(target.files.shard_path(shard))
        assert path.read_bytes() == expected_shard(target, shard, array)
        assert (receipt.path, receipt.nbytes) == (str(path), path.stat().st_size)
        assert target.files.has_files_of(receipt)
    assert os.listdir(target.staging.url) == []
    found = np.empty_like(array)
    target.as_volume().read_into(found, (0, 0, 0))
    np.testing.assert_array_equal(found, array)


def write_parts(target, shard, array, part_shape):
    inside = cell_box(shard, target.shard_shape, target.box).intersection(target.box)
    receipts = []
    for part in cells(inside, part_shape):
        box = cell_box(part, part_shape, inside).intersection(inside)
        writer = target.open_part(shard, part)
        writer.append(cut(array, box), box.topleft)
        receipts.append(writer.close())
    return receipts


@pytest.mark.parametrize("part_shape", [(8, 8, 4), (16, 8, 4), (8, 16, 8)])
def test_parts_are_joined_to_the_same_shards(tmp_path, part_shape):
    target, array = target_of(tmp_path), voxels()
    for shard in cells(target.box, target.shard_shape):
        parts = write_parts(target, shard, array, part_shape)
        assert all(target.files.has_files_of(part) for part in parts)
        receipt = target.join_shard(shard, parts)
        assert Path(receipt.path).read_bytes() == expected_shard(target, shard, array)
        target.files.remove_parts(shard)
        assert target.join_shard(shard, parts) == receipt  # a task that runs twice
        os.unlink(receipt.path)
        with pytest.raises(
            IncompleteWriteError, match="is missing, though the shard is not joined yet"
        ):
            target.join_shard(shard, parts)


def test_a_part_that_was_damaged_is_not_believed(tmp_path):
    target, array = target_of(tmp_path), voxels()
    part = write_parts(target, (0, 0, 0), array, (8, 8, 4))[0]
    data = bytearray(Path(part.path).read_bytes())
    data[3] ^= 1
    Path(part.path).write_bytes(data)
    assert not target.files.has_files_of(part)


@pytest.mark.parametrize("damage", ["short", "gone", "index"])
def test_a_shard_that_was_damaged_is_not_believed(tmp_path, damage):
    target, array = target_of(tmp_path), voxels()
    receipt = write_whole(target, (0, 0, 0), array)
    path = Path(receipt.path)
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "short" else b"\xff" * 8 + data[8:])
    assert not target.files.has_files_of(receipt)


@pytest.mark.parametrize("sharding", [SHARDING, None])
def test_zeros_are_not_stored(tmp_path, sharding):
    """And what an earlier attempt left there goes."""
    target = target_of(tmp_path, sharding)
    write_whole(target, (0, 0, 0), voxels())
    assert os.listdir(target.folder)
    if sharding is None:
        receipt = write_whole(target, (0, 0, 0), np.zeros_like(voxels()))
    else:
        writer = target.open_part((0, 0, 0), None)
        writer.skip(cell_box((0, 0, 0), target.shard_shape, target.box).intersection(target.box))
        receipt = writer.close()
    assert (receipt.path, receipt.nbytes, receipt.maximum) == (None, 0, 0)
    assert target.files.has_files_of(receipt)
    assert os.listdir(target.folder) == []


def test_the_negative_zero_is_no_zero(tmp_path):
    target = target_of(tmp_path, None, (8, 8, 4), dtype="float32")
    array = np.zeros((1, 8, 8, 4), np.float32)
    array[0, 1, 1, 1] = -0.0
    assert write_whole(target, (0, 0, 0), array).files == 1


@pytest.mark.parametrize("compress", [None, "gzip"])
def test_chunks_that_are_files(tmp_path, monkeypatch, compress):
    """A group has one receipt for all of its files, which are flushed a few at a time."""
    monkeypatch.setattr(new_files, "_OPEN_AT_ONCE", 5)
    target, array = target_of(tmp_path, None, packing=".gz" if compress else ""), voxels()
    assert target.shard_shape == (32, 32, 16)
    receipt = write_whole(target, (0, 0, 0), array, bricks_of(target, (0, 0, 0))[::-1])
    found = files(target.folder)
    assert (
        (receipt.files, receipt.nbytes)
        == (len(found), sum(map(len, found.values())))
        == (47, receipt.nbytes)
    )
    suffix = ".gz" if compress else ""
    assert f"19-25_19-27_0-4{suffix}" in found
    assert f"3-11_3-11_0-4{suffix}" not in found  # all zero
    assert target.files.has_files_of(receipt)
    os.unlink(f"{target.folder}/19-25_19-27_0-4{suffix}")
    assert not target.files.has_files_of(receipt)


def test_parts_of_a_group_add_up(tmp_path):
    target, array = target_of(tmp_path, None), voxels()
    parts = write_parts(target, (0, 0, 0), array, (16, 16, 8))
    assert all(target.files.has_files_of(part) for part in parts)
    joined = target.join_shard((0, 0, 0), parts)
    whole = write_whole(target_of(tmp_path / "whole", None), (0, 0, 0), array)
    assert (joined.files, joined.nbytes, joined.voxels, joined.box) == (
        whole.files,
        whole.nbytes,
        whole.voxels,
        whole.box,
    )
    assert target.files.has_files_of(Receipt.from_json(joined.to_json(), Mag(1, 1, 1)))
    assert files(target.folder) == files(tmp_path / "whole" / "scale-0")


def test_nothing_stays_of_what_is_discarded(tmp_path):
    for n, (sharding, part) in enumerate(itertools.product([SHARDING, None], [None, (0, 0, 0)])):
        target = target_of(tmp_path / str(n), sharding)
        writer = target.open_part((0, 0, 0), part)
        writer.append(voxels()[:, :8, :8, :4], (0, 0, 0))
        writer.flush()
        writer.discard()
        left = [name for _, _, names in os.walk(tmp_path / str(n)) for name in names]
        assert left == []


def test_voxels_beyond_the_box_are_left_out(tmp_path):
    target, array = target_of(tmp_path), voxels()
    padded = np.full((1, 32, 32, 16), 7, np.uint16)
    padded[:, : SIZE[0], : SIZE[1], : SIZE[2]] = array
    shard = (0, 1, 1)
    box = BoundingBox((0, 16, 8), (32, 16, 8))
    writer = target.open_part(shard, None)
    writer.append(cut(padded, box), box.topleft)
    writer.close()
    assert Path(target.files.shard_path(shard)).read_bytes() == expected_shard(target, shard, array)
