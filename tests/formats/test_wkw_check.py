"""Checks of single files against the readers: any damage is either named or does no harm, and what
is mended keeps what was good."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from formats.encoded_wkw import encode_file
from hypothesis import given
from hypothesis import strategies as st
from support.damage_matrix import hashes
from support.strategies import VOXEL_KINDS, damaged, headers, voxel_array

from wkwdask import BoundingBox
from wkwdask.errors import CorruptError, FormatError, UnsupportedError
from wkwdask.formats.leftovers import QUARANTINE_NAME
from wkwdask.formats.webknossos.inspection import inspect_dataset
from wkwdask.formats.wkw import file_check as wkw_check
from wkwdask.formats.wkw.array import wkw_array
from wkwdask.formats.wkw.file import decode_block, decode_file
from wkwdask.formats.wkw.file_check import WkwCheck
from wkwdask.formats.wkw.folder import file_path, list_mag
from wkwdask.formats.wkw.header import (
    HEADER_NBYTES,
    BlockType,
    format_header,
    make_header,
    parse_header,
)
from wkwdask.formats.wkw.repair import WkwRepair
from wkwdask.model.faults import KINDS
from wkwdask.store.new_files import RenamedFile
from wkwdask.store.records import patch_file_record, read_file_record, write_file_record

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
SHARD = (2, 0, 1)


def stored(folder, raw, shard=SHARD):
    """Store a file's bytes in a mag."""
    path = Path(file_path(str(folder), shard))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


EVERYWHERE = BoundingBox((0, 0, 0), (1 << 30,) * 3)


def check_of(folder, header, box=None, **options):
    array = wkw_array(str(folder), header, box or EVERYWHERE)
    return WkwCheck(array, decode=True, box=box, **options)


def check_file(check):
    return check.check_file((0, *SHARD), 0)


def repair_file(check, head=None, *, salvage):
    return WkwRepair(check).repair_shard(SHARD, head, "why", None, salvage=salvage)


def voxels_of(header, data):
    shape = (header.num_channels, *[header.file_len_vx] * 3)
    return voxel_array(
        header.dtype.name,
        shape,
        data.draw(st.integers(0, 99)),
        data.draw(st.sampled_from(VOXEL_KINDS)),
    )


def errors(findings):
    return [fault for fault in findings.faults if fault.severity == "error"]


def reads(raw, header):
    """Read a file as the package does; what is wrong with it, or None."""
    try:
        header.check_same_mag(parse_header(raw[:HEADER_NBYTES], "file", is_data_file=True), "file")
        return decode_file(raw)
    except (FormatError, UnsupportedError):
        return None


@given(data=st.data())
def test_an_error_is_what_no_reader_reads(tmp_path_factory, data):
    """Whatever bytes there are: nothing is raised, and there is an error just where the readers
    give up."""
    folder = tmp_path_factory.mktemp("mag")
    header = data.draw(headers())
    raw = data.draw(damaged(encode_file(voxels_of(header, data), header)))
    stored(folder, raw)
    found = check_file(check_of(folder, header))
    assert bool(errors(found)) == (reads(raw, header) is None)
    assert (found.files, found.nbytes) == (1, len(raw))
    assert {fault.kind for fault in found.faults} <= set(KINDS)


@given(data=st.data())
def test_what_is_mended_keeps_what_was_good(tmp_path_factory, data):
    """Blocks that could be decoded are the same voxels afterwards, all others are zeros, and the
    file is sound."""
    folder = tmp_path_factory.mktemp("layer") / "1"
    header = data.draw(headers())
    array = voxels_of(header, data)
    raw = encode_file(array, header)
    broken = data.draw(damaged(raw))
    stored(folder, broken)
    check = check_of(folder, header)
    sound = check.intact_blocks(SHARD)
    if sound.header is None or not sound.num_intact:
        with pytest.raises(CorruptError):
            repair_file(check, salvage=True)
        assert Path(file_path(str(folder), SHARD)).read_bytes() == broken
        return
    before = [
        decode_block(broken[a:b], sound.header, "file", n, a) if b else None
        for n, (a, b) in enumerate(sound.bounds.tolist())
    ]
    nbytes, _ = repair_file(check, salvage=True)
    found = check_file(check)
    assert errors(found) == []
    assert found.nbytes == nbytes
    after = check.intact_blocks(SHARD)
    mended = Path(file_path(str(folder), SHARD)).read_bytes()
    for n, (a, b) in enumerate(after.bounds.tolist()):
        block = decode_block(mended[a:b], after.header, "file", n, a)
        assert (
            block.tobytes() == (np.zeros_like(block) if before[n] is None else before[n]).tobytes()
        )


@given(data=st.data())
def test_a_damaged_header_is_proven_by_the_blocks(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("mag")
    header = data.draw(headers())
    array = voxels_of(header, data)
    raw = bytearray(encode_file(array, header))
    place = data.draw(st.integers(0, HEADER_NBYTES - 1))
    raw[place] = data.draw(st.integers(0, 255))
    stored(folder, bytes(raw))
    check = check_of(folder, header)
    kinds = frozenset(fault.kind for fault in errors(check_file(check)))
    if not kinds:
        return
    new = WkwRepair(check).probe(SHARD, kinds).head
    if new is not None:
        repair_file(check, new, salvage=False)
        assert errors(check_file(check)) == []
        assert (
            decode_file(Path(file_path(str(folder), SHARD)).read_bytes()).tobytes()
            == decode_file(encode_file(array, header)).tobytes()
        )
    if header.is_compressed and "file.magic" in kinds:
        assert new is not None


def test_golden_files_are_sound():
    """Those of the reference library, of all types."""
    folders = sorted(path.parent for path in GOLDEN.rglob("header.wkw"))
    assert len(folders) >= 10
    for folder in folders:
        scope = inspect_dataset(folder)
        assert scope.faults == []
        (mag,) = scope.layers[0].mags
        found = [
            check_of(folder, mag.header).check_file((0, *shard), 0)
            for shard in mag.listing.shards.tolist()
        ]
        assert [fault for one in found for fault in one.faults if fault.kind != "file.zeros"] == []
        assert sum(one.blocks for one in found) == len(found) * mag.header.blocks_per_file


def test_pages_and_batches(tmp_path, monkeypatch):
    """Files of several pages of the table and many batches give the same."""
    header = make_header("uint16", 2, block_len=2, file_len=8, block_type=BlockType.LZ4)
    array = np.random.default_rng(0).integers(0, 3, (2, 16, 16, 16)).astype(np.uint16)
    raw = bytearray(encode_file(array, header))
    raw[header.smallest_data_offset + 100 : header.smallest_data_offset + 130] = b"\xff" * 30
    raw[16 + 8 * 300 : 16 + 8 * 301] = (1 << 50).to_bytes(8, "little")
    stored(tmp_path, bytes(raw))
    whole = check_file(check_of(tmp_path, header))
    assert {fault.kind for fault in whole.faults} == {
        "table.beyond",
        "table.falls",
        "block.undecodable",
    }
    monkeypatch.setattr(wkw_check, "_PAGE_ENTRIES", 64)
    monkeypatch.setattr(wkw_check, "_BATCH_NBYTES", 100)
    piecewise = check_file(check_of(tmp_path, header))
    assert set(piecewise.faults) == set(whole.faults)
    assert piecewise.blocks == whole.blocks


def test_values_and_places_outside_the_box(tmp_path):
    header = make_header("int16", block_len=4, file_len=2, block_type=BlockType.LZ4HC)
    array = np.zeros((1, 8, 8, 8), np.int16)
    array[0, 1, 2, 3], array[0, 6, 7, 5] = -7, 500
    stored(tmp_path, encode_file(array, header))
    corner = np.array(SHARD) * 8
    box = BoundingBox(tuple(corner.tolist()), (6, 8, 8))
    found = check_file(check_of(tmp_path, header, box, find_largest=True))
    assert found.largest == 500
    assert found.outside == BoundingBox(tuple(np.add(corner, (6, 7, 5)).tolist()), (1, 1, 1))
    inside = check_file(check_of(tmp_path, header, BoundingBox((0, 0, 0), (99, 99, 99))))
    assert (inside.outside, inside.faults) == (None, ())


def test_other_kinds_of_compression(tmp_path):
    header = make_header("uint8", block_len=4, file_len=2, block_type=BlockType.LZ4)
    array = np.ones((1, 8, 8, 8), np.uint8)
    stored(tmp_path, encode_file(array, header.with_block_type(BlockType.LZ4HC)))
    assert [fault.kind for fault in check_file(check_of(tmp_path, header)).faults] == [
        "file.lz4_level"
    ]


def test_lengths_that_the_reference_library_misreads(tmp_path):
    (tmp_path / "header.wkw").write_bytes(
        format_header(make_header("uint8", block_len=256, file_len=1, any_length=True))
    )
    assert [fault.kind for fault in inspect_dataset(tmp_path).faults] == [
        "header.lengths",
        "mag.empty",
    ]


def test_sizes_are_not_believed(tmp_path):
    """Headers that speak of petabytes take neither time nor memory."""
    header = make_header(
        "uint8", block_len=1, file_len=1 << 15, block_type=BlockType.RAW, any_length=True
    )
    stored(tmp_path, format_header(header.for_data_file()) + bytes(5))
    (fault,) = check_file(check_of(tmp_path, header)).faults
    assert (fault.kind, fault.block) == ("file.truncated", 5)
    assert check_of(tmp_path, header).intact_blocks(SHARD).num_intact == 0


def test_a_file_that_vanishes_is_no_fault(tmp_path):
    """A mag may be written while it is checked."""
    assert check_file(check_of(tmp_path, make_header("uint8"))).files == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="a superuser can read every file")
def test_what_cannot_be_read(tmp_path):
    header = make_header("uint8", block_len=4, file_len=2)
    path = stored(tmp_path, encode_file(np.ones((1, 8, 8, 8), np.uint8), header))
    path.chmod(0)
    assert [fault.kind for fault in check_file(check_of(tmp_path, header)).faults] == [
        "file.unreadable"
    ]
    path.parent.chmod(0)
    try:
        assert [fault.kind for fault in list_mag(str(tmp_path)).faults] == ["folder.unreadable"]
    finally:
        path.parent.chmod(0o755)


def test_a_mending_that_fails_changes_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "1"
    header = make_header("uint8", block_len=4, file_len=2, block_type=BlockType.LZ4)
    path = stored(folder, encode_file(np.ones((1, 8, 8, 8), np.uint8), header)[:-3])
    before = hashes(folder)

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RenamedFile, "publish", full_disk)
    with pytest.raises(OSError, match="No space left"):
        repair_file(check_of(folder, header), salvage=True)
    monkeypatch.undo()
    assert path.exists()
    assert {
        name: digest for name, digest in hashes(folder).items() if not name.endswith("wkwdask-tmp")
    } == before
    assert (tmp_path / QUARANTINE_NAME / "1").exists()


def test_links_are_mended_where_they_point(tmp_path):
    folder = tmp_path / "1"
    header = make_header("uint8", block_len=4, file_len=2, block_type=BlockType.LZ4)
    path = stored(folder, encode_file(np.ones((1, 8, 8, 8), np.uint8), header) + b"more")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    repair_file(check_of(folder, header), salvage=False)
    assert path.is_symlink()
    assert check_file(check_of(folder, header)).faults == ()


def test_records_follow(tmp_path):
    write_file_record(
        str(tmp_path), np.array([[0, 0, 0, 10, 11, 12], [1, 0, 0, 20, 21, 22]], np.int64)
    )
    patch_file_record(str(tmp_path), {(1, 0, 0): (5, 6), (7, 7, 7): (1, 1)})
    assert read_file_record(str(tmp_path)).tolist() == [[0, 0, 0, 10, 11, 12], [1, 0, 0, 5, 6, 22]]
    patch_file_record(str(tmp_path / "nothing"), {(1, 0, 0): (5, 6)})
