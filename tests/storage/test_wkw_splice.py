"""Files made of the stored blocks of other files: any lengths of files, boxes that cut blocks, files that are absent, broken or of another kind."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wkwdask
from wkwdask import BoundingBox
from wkwdask.errors import CorruptError, MissingError, TruncatedError
from wkwdask.formats.wkw import splice as wkw_splice
from wkwdask.formats.wkw.header import BlockType
from wkwdask.formats.wkw.splice import can_splice, splice_file
from wkwdask.formats.wkw.target import WkwTarget
from wkwdask.formats.wkw.volume import WkwVolume, file_path, list_files
from wkwdask.geometry.grid import cells
from wkwdask.model.translated import TranslatedVolume
from wkwdask.store.local import NewFile

STEP = 4


def labels(shape, seed=0):
    """Labels with whole blocks of zeros, and of one other value, which take as many bytes."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 3, [-(-n // STEP) for n in shape])
    array = np.kron(coarse, np.ones((STEP,) * 3, int))[tuple(slice(n) for n in shape)]
    noise = np.kron(random.random(coarse.shape) < 0.3, np.ones((STEP,) * 3, bool))[tuple(slice(n) for n in shape)]
    return np.where(noise, random.integers(0, 200, shape), array).astype(np.uint16)


def make_source(folder, array, offset, file_len, compression="lz4"):
    wkwdask.write(folder, offset, array, block_len=STEP, file_len=file_len, compression=compression)
    return WkwVolume.open(str(folder), BoundingBox(offset, array.shape))


def make_target(folder, source, file_len, box=None):
    header = replace(source.header, file_len=file_len)
    target = WkwTarget(f"{folder}/new", f"{folder}/new.parts", header, 5, source.box if box is None else box)
    target.prepare()
    return target


def read_all(folder, shape):
    """Give all voxels from the origin on, shape (c, x, y, z); what is not stored is zero."""
    volume = WkwVolume.open(str(folder), BoundingBox((0, 0, 0), shape))
    out = np.empty((volume.num_channels, *shape), volume.dtype)
    volume.read_into(out, (0, 0, 0))
    return out


def splice_all(source, target):
    source = replace(source, box=target.box)
    return [splice_file(source, target, shard) for shard in cells(target.box, target.shard_shape)]


@given(
    shape=st.tuples(*[st.integers(1, 40)] * 3), offset=st.tuples(*[st.integers(0, 30)] * 3), lengths=st.tuples(*[st.sampled_from([1, 2, 4, 8])] * 2),
    compression=st.sampled_from(["raw", "lz4", "lz4hc"]), corners=st.tuples(*[st.floats(0, 1)] * 6), channels=st.sampled_from([1, 3]),
)  # fmt: skip
def test_any_lengths_and_boxes(tmp_path_factory, shape, offset, lengths, compression, corners, channels):
    folder = tmp_path_factory.mktemp("splice")
    array = np.stack([labels(shape, n) for n in range(channels)])
    wkwdask.write(folder / "1", offset, array, block_len=STEP, file_len=lengths[0], compression=compression)
    source = WkwVolume.open(str(folder / "1"), BoundingBox(offset, shape))
    low = [int(a * n) for a, n in zip(corners[:3], shape, strict=True)]
    size = [int(b * (n - a)) for a, b, n in zip(low, corners[3:], shape, strict=True)]
    box = BoundingBox([a + b for a, b in zip(low, offset, strict=True)], size)
    target = make_target(folder, source, lengths[1], box)
    receipts = splice_all(source, target)
    inside = (slice(None), *(slice(a, a + n) for a, n in zip(low, size, strict=True)))
    everything = np.zeros((channels, *(b + n for b, n in zip(offset, shape, strict=True))), array.dtype)
    everything[(slice(None), *(slice(a, a + n) for a, n in zip(box.topleft, size, strict=True)))] = array[inside]
    np.testing.assert_array_equal(read_all(target.folder, everything.shape[1:]), everything)
    stored = {receipt.shard for receipt in receipts if receipt.path is not None}
    assert stored == set(list_files(target.folder))
    edge = target.header.file_len_vx
    assert stored == {tuple(int(n) // edge for n in voxel) for voxel in np.argwhere(everything.any(axis=0))}
    assert sum(receipt.nbytes for receipt in receipts) == sum(path.stat().st_size for path in Path(target.folder).rglob("x*.wkw"))
    assert sum(receipt.voxels for receipt in receipts) == box.volume


@pytest.mark.parametrize("file_lens", [(8, 2), (2, 8), (1, 4), (4, 4)])
def test_nothing_is_decoded(tmp_path, monkeypatch, file_lens):
    """Not even a block at the border of the volume, which is stored whole, with zeros beyond."""
    array = labels((40, 33, 31))
    source = make_source(tmp_path / "1", array, (0, 0, 0), file_lens[0])
    source = replace(source, box=BoundingBox((0, 0, 0), (40, 36, 32)))
    for name in ("encode_from",):
        monkeypatch.setattr(wkw_splice, name, None)
    monkeypatch.setattr(WkwVolume, "read_into", None)
    splice_all(source, make_target(tmp_path, source, file_lens[1]))
    monkeypatch.undo()
    np.testing.assert_array_equal(read_all(tmp_path / "new", array.shape)[0], array)


def test_writes_are_as_large_as_the_data(tmp_path, monkeypatch):
    """One file of many is written in one piece, or a few."""
    source = make_source(tmp_path / "1", labels((64, 64, 64)), (0, 0, 0), 2)
    written = []
    write = NewFile.write
    monkeypatch.setattr(NewFile, "write", lambda self, data, offset: (written.append(len(data)), write(self, data, offset)))
    splice_all(source, make_target(tmp_path, source, 16))
    assert len(written) == 3  # header.wkw, all blocks, their header and table


def test_a_file_of_another_kind_than_its_mag(tmp_path):
    """A raw file in a compressed mag, which the reference library reads: it is encoded."""
    array = labels((16, 8, 8))
    source = make_source(tmp_path / "1", array, (0, 0, 0), 2)
    make_source(tmp_path / "raw", array, (0, 0, 0), 2, "raw")
    os.replace(file_path(str(tmp_path / "raw"), (1, 0, 0)), file_path(str(tmp_path / "1"), (1, 0, 0)))
    splice_all(source, make_target(tmp_path, source, 4))
    np.testing.assert_array_equal(read_all(tmp_path / "new", array.shape)[0], array)
    assert wkwdask.info(tmp_path / "new").layers[0].mags[0].compression == "lz4"


def test_what_can_be_spliced(tmp_path):
    source = make_source(tmp_path / "1", labels((8, 8, 8)), (0, 0, 0), 2)
    target = make_target(tmp_path, source, 8)
    assert can_splice(source, target)
    for change in ({"block_len": 8}, {"block_type": BlockType.LZ4HC}, {"num_channels": 2}):
        assert not can_splice(source, replace(target, header=replace(target.header, **change)))


def test_broken_sources(tmp_path):
    """Named with file and byte, and nothing appears."""
    array = labels((16, 16, 16), 3)
    source = make_source(tmp_path / "1", array, (0, 0, 0), 4)
    target = make_target(tmp_path, source, 2)
    path = Path(file_path(source.folder, (0, 0, 0)))
    whole = path.read_bytes()
    cases = {
        CorruptError: whole[:16] + (1 << 40).to_bytes(8, "little") + bytes(8) + whole[32:],
        TruncatedError: whole[: len(whole) // 2],
    }
    for error, raw in cases.items():
        path.write_bytes(raw)
        with pytest.raises(error, match=f"{path}.*byte"):
            splice_all(source, target)
        assert list(list_files(target.folder)) == []
    path.write_bytes(whole)
    os.rename(source.folder, tmp_path / "away")
    with pytest.raises(MissingError, match="the mag is gone"):
        splice_all(source, target)
    assert not [name for _, _, names in os.walk(tmp_path / "new") for name in names if name != "header.wkw"]
    assert not os.listdir(target.parts_folder)


@given(
    shape=st.tuples(*[st.integers(1, 30)] * 3), offset=st.tuples(*[st.integers(8, 30)] * 3), lengths=st.tuples(*[st.sampled_from([1, 2, 4, 8])] * 2),
    shift=st.tuples(*[st.integers(-2, 9)] * 3), corners=st.tuples(*[st.floats(0, 1)] * 6), compression=st.sampled_from(["raw", "lz4"]),
)  # fmt: skip
def test_moved_by_blocks(tmp_path_factory, shape, offset, lengths, shift, corners, compression):
    """Also from places below a file's corner; nothing but blocks that the box cuts is decoded."""
    folder = tmp_path_factory.mktemp("moved")
    array = labels(shape)
    source = make_source(folder / "1", array, offset, lengths[0], compression)
    low = [int(a * n) for a, n in zip(corners[:3], shape, strict=True)]
    size = [int(b * (n - a)) for a, b, n in zip(low, corners[3:], shape, strict=True)]
    by = tuple(n * STEP for n in shift)
    box = BoundingBox([a + b for a, b in zip(low, offset, strict=True)], size)
    volume = TranslatedVolume(replace(source, box=box), by)
    target = make_target(folder, source, lengths[1], volume.box)
    assert can_splice(volume, target)
    assert not can_splice(replace(volume, shift=(by[0], by[1] + 1, by[2])), target)
    receipts = [splice_file(volume, target, shard) for shard in cells(target.box, target.shard_shape)]
    expected = np.zeros((96, 96, 96), array.dtype)
    place = tuple(slice(a, a + n) for a, n in zip(volume.box.topleft, size, strict=True))
    expected[place] = array[tuple(slice(a, a + n) for a, n in zip(low, size, strict=True))]
    np.testing.assert_array_equal(read_all(target.folder, expected.shape)[0], expected)
    assert sum(receipt.voxels for receipt in receipts) == box.volume


@pytest.mark.parametrize(("shift", "keeps_files", "same"), [((32, 0, 64), False, 1), ((32, 0, 64), True, 4), ((16, 0, 0), True, 0)])
def test_whole_files(tmp_path, shift, keeps_files, same):
    """A file becomes one file again where the box covers it, or where voxels outside of the box may come along."""
    source = make_source(tmp_path / "1", labels((60, 60, 32)), (0, 0, 0), 8, "lz4")
    volume = TranslatedVolume(replace(source, box=BoundingBox((0, 0, 0), (57, 57, 32))), shift)
    target = replace(make_target(tmp_path, source, 8, volume.box), keeps_files=keeps_files)
    receipts = [splice_file(volume, target, shard) for shard in cells(target.box, target.shard_shape)]
    before = {Path(file_path(source.folder, index)).read_bytes() for index in list_files(source.folder)}
    assert len(before) == 4
    assert sum(Path(receipt.path).read_bytes() in before for receipt in receipts if receipt.path is not None) == same
