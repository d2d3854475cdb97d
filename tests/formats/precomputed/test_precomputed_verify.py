"""``verify`` of precomputed volumes: a sound one has no faults, and each kind of damage is found,
named and nothing else is."""

from __future__ import annotations

import gzip
import json
import os

import numpy as np
import pytest
from support.commands import run_here
from support.inside import KINDS_OF_FAULTS
from support.precomputed_volumes import (
    labels,
    read_shard,
    scale_entry,
    split_shard,
    write_info,
    write_minishards,
    write_scale,
    write_shard,
    write_volume,
)

import wkwdask
from wkwdask import Sharding
from wkwdask.errors import MissingError
from wkwdask.store.records import PROVENANCE_NAME

ARRAY = np.maximum(labels((40, 33, 20), np.uint32), 1)
RAW = Sharding(1, 1, 9)
GZIP = Sharding(1, 1, 9, minishard_index_encoding="gzip", data_encoding="gzip")
OFFSET = (5, -6, 7)


def make(folder, sharding):
    write_volume(folder, ARRAY, "segmentation", offset=OFFSET, sharding=sharding)
    return folder / "4_4_40"


def largest(place):
    return max(place.iterdir(), key=lambda path: (path.stat().st_size, path.name))


def errors(report):
    return [fault for fault in report.faults if fault.severity != "note"]


@pytest.mark.parametrize(
    "sharding", [None, RAW, GZIP, Sharding(1, 2, 1, "murmurhash3_x86_128", "gzip", "raw")]
)
def test_sound(tmp_path, sharding):
    place = make(tmp_path, sharding)
    report = wkwdask.verify(tmp_path)
    assert report.is_sound, str(report)
    assert report.faults == ()
    (mag,) = report.mags
    chunks = sum(
        ARRAY[0, x : x + 16, y : y + 16, z : z + 8].any()
        for x in range(0, 40, 16)
        for y in range(0, 33, 16)
        for z in range(0, 20, 8)
    )
    assert (mag.mag, mag.files, mag.blocks, mag.largest) == (
        "1",
        len(list(place.iterdir())),
        chunks,
        int(ARRAY.max()),
    )
    assert mag.nbytes == sum(path.stat().st_size for path in place.iterdir())
    quick = wkwdask.verify(tmp_path, quick=True)
    assert (quick.is_sound, quick.mags[0].blocks, quick.mags[0].files) == (True, 0, mag.files)
    assert (
        wkwdask.verify(place).mags[0].files
        == wkwdask.verify(tmp_path, mags=[1]).mags[0].files
        == mag.files
    )


def test_what_it_is_not_for(tmp_path):
    make(tmp_path, None)
    with pytest.raises(MissingError, match="no mag 2"):
        wkwdask.verify(tmp_path, mags=[2])
    with pytest.raises(MissingError, match="no layer 'em'; a precomputed volume has one"):
        wkwdask.verify(tmp_path, layer="em")
    from support.shelf import empty_shelf

    empty_shelf().pipe("/verified/info", (tmp_path / "info").read_bytes())
    assert wkwdask.verify("precomputed://shelf://verified").kinds() == {"mag.empty": 1}
    assert run_here("verify", tmp_path).returncode == 0


# ------------------------------------------------------------------------------------------------
# damage to files


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def empty(path):
    path.write_bytes(b"")


def dangle(path):
    path.unlink()
    path.symlink_to("nowhere")


def make_folder(path):
    path.unlink()
    path.mkdir()


def copy_as(name):
    return lambda path: (path.parent / name).write_bytes(path.read_bytes())


def with_chunk(change):
    """Change the chunks of a shard, and rewrite it in place of one minishard."""

    def damage(path):
        chunks = read_shard(path, RAW)
        ids = np.array(sorted(chunks), np.uint64)
        minishards = RAW.locate(ids)[1]
        ids, minishards = change(ids, minishards)
        parts = [
            [
                (int(chunk), chunks.get(int(chunk), bytes(1)))
                for chunk in ids[minishards == minishard]
            ]
            for minishard in range(2)
        ]
        write_minishards(path, parts)

    return damage


def overlap(path):
    """The first chunk's length grows by one byte."""
    raw = bytearray(path.read_bytes())
    (start, end), head = np.frombuffer(raw, "<u8", 2).tolist(), RAW.index_nbytes
    rows = (end - start) // 24
    at = head + start + 16 * rows
    raw[at : at + 8] = (int.from_bytes(raw[at : at + 8], "little") + 1).to_bytes(8, "little")
    path.write_bytes(bytes(raw))


def index_beyond(path):
    raw = path.read_bytes()
    path.write_bytes(raw[:8] + (1 << 40).to_bytes(8, "little") + raw[16:])


def minishard_shorter(path):
    raw = bytearray(path.read_bytes())
    raw[8:16] = (int.from_bytes(raw[8:16], "little") - 1).to_bytes(8, "little")
    path.write_bytes(bytes(raw))


def twice(path):
    (path.parent / path.name.replace("shard", "index")).write_bytes(b"x")


def half(path):
    split_shard(path, RAW)
    path.with_suffix(".data").unlink()


DAMAGE = [
    # layout, what is done to the largest file, kinds that are found
    (None, cut, {"chunk.undecodable"}),
    (None, empty, {"chunk.empty"}),
    (None, dangle, {"file.dangling"}),
    (None, make_folder, {"file.no_file"}),
    (
        None,
        lambda path: path.with_name(path.name + ".gz").write_bytes(
            gzip.compress(path.read_bytes())
        ),
        {"chunk.twice"},
    ),
    (
        None,
        lambda path: path.with_name(path.name + ".gz").write_bytes(b"no gzip"),
        {"chunk.twice", "chunk.undecodable"},
    ),
    (None, copy_as("6-22_-6-10_7-15"), {"name.unread"}),  # off the grid
    (None, copy_as("05-21_-6-10_7-15"), {"name.unread"}),
    (None, copy_as("notes.txt"), {"name.stray"}),
    (None, copy_as(".5-21_-6-10_7-15.0123456789abcdef.wkwdask-tmp"), {"leftover.temporary"}),
    (RAW, cut, {"shard.index"}),
    (RAW, empty, {"shard.short"}),
    (RAW, dangle, {"file.dangling"}),
    (RAW, make_folder, {"file.no_file"}),
    (RAW, index_beyond, {"shard.index"}),
    (RAW, minishard_shorter, {"minishard.broken"}),
    (RAW, overlap, {"chunk.undecodable", "shard.overlap"}),
    (RAW, copy_as("1ff0.shard"), {"name.unread"}),
    (RAW, lambda path: path.rename(path.parent / "1fe.shard"), {"minishard.foreign"}),
    (RAW, with_chunk(lambda ids, places: (ids, places[::-1])), {"minishard.foreign"}),
    (
        RAW,
        with_chunk(lambda ids, places: (np.append(ids[:-1], np.uint64(1 << 20)), places)),
        {"minishard.outside"},
    ),
    (RAW, twice, {"shard.twice"}),
    (RAW, half, {"shard.half"}),
    (GZIP, cut, {"shard.index"}),
]


@pytest.mark.parametrize(("sharding", "damage", "kinds"), DAMAGE)
def test_damage(tmp_path, sharding, damage, kinds):
    place = make(tmp_path, sharding)
    path = largest(place)
    damage(path)
    report = wkwdask.verify(tmp_path)
    assert {fault.kind for fault in report.faults} == kinds, str(report)
    assert report.is_sound == all(fault.severity != "error" for fault in report.faults)
    assert all(str(place) in fault.path for fault in report.faults)
    json.dumps(report.to_json())
    if not report.is_sound:
        assert run_here("verify", tmp_path).returncode == 1


def test_broken_chunks_are_named(tmp_path):
    """Chunk, lowest voxel and byte; all other chunks of the shard are still checked."""
    place = make(tmp_path, GZIP)
    path = largest(place)
    chunks = read_shard(path, GZIP)
    broken = sorted(chunks)[1]
    chunks[broken] = b"no gzip"
    write_shard(path, chunks, GZIP)
    report = wkwdask.verify(tmp_path)
    (fault,) = report.faults
    assert (fault.kind, fault.block) == ("chunk.undecodable", broken)
    assert path.read_bytes()[fault.offset : fault.offset + 7] == b"no gzip"
    assert all(
        (at - first) % edge == 0
        for at, first, edge in zip(fault.voxel, OFFSET, (16, 16, 8), strict=True)
    )
    assert report.mags[0].blocks == wkwdask.verify(tmp_path).mags[0].blocks > 0
    assert wkwdask.verify(tmp_path, quick=True).is_sound


def test_links_and_folders(tmp_path):
    place = make(tmp_path, None)
    os.rename(place, tmp_path / "old")
    found = wkwdask.verify(tmp_path)
    # all zero, or not copied along
    assert [(fault.kind, fault.found) for fault in found.faults] == [("mag.empty", "no folder")]
    assert found.is_sound
    place.mkdir()
    assert [fault.kind for fault in wkwdask.verify(tmp_path).faults] == ["mag.empty"]
    place.rmdir()
    place.symlink_to("nowhere")
    assert [fault.kind for fault in wkwdask.verify(tmp_path).faults] == ["folder.dangling"]
    place.unlink()
    place.write_text("a file")
    assert [fault.kind for fault in wkwdask.verify(tmp_path).faults] == ["folder.no_folder"]


def test_quick_finds_raw_chunks_of_a_wrong_size(tmp_path):
    wkwdask.to_precomputed(
        ARRAY,
        tmp_path / "em",
        voxel_size=(4, 4, 40),
        chunk_shape=(16, 16, 8),
        encoding="raw",
        compression="raw",
    )
    cut(min((tmp_path / "em" / "4_4_40").glob("0-16_*")))
    assert wkwdask.verify(tmp_path / "em", quick=True).kinds() == {"chunk.undecodable": 1}


def test_sound_chunks_beside_a_repaired_one_stay(tmp_path):
    """Broken chunks of a level without a record are computed again, and those of the finest one are
    removed; others keep their bytes."""
    array = np.maximum(ARRAY, 1)
    wkwdask.to_precomputed(
        array,
        tmp_path / "em",
        voxel_size=(4, 4, 40),
        chunk_shape=(16, 16, 8),
        compression="gzip",
        offset=OFFSET,
    )
    wkwdask.build_pyramid(
        f"precomputed://{tmp_path}/em", mags=["2-2-1"], method="max", compression="gzip"
    )
    for record in (tmp_path / "em").rglob(PROVENANCE_NAME):
        record.unlink()
    paths = [
        path
        for folder in ("4_4_40", "8_8_40")
        for path in sorted((tmp_path / "em" / folder).glob("*.gz"))
    ]
    broken = [
        next(path for path in paths if path.parent.name == folder)
        for folder in ("4_4_40", "8_8_40")
    ]
    before = {path: path.read_bytes() for path in paths if path not in broken}
    coarse = wkwdask.read(f"precomputed://{tmp_path}/em", mag="2-2-1")
    cut(broken[1])
    assert wkwdask.repair(tmp_path / "em", method="max").is_sound
    np.testing.assert_array_equal(wkwdask.read(f"precomputed://{tmp_path}/em", mag="2-2-1"), coarse)
    cut(broken[0])
    assert not wkwdask.repair(tmp_path / "em", method="max").is_sound
    assert wkwdask.repair(tmp_path / "em", salvage=True, quarantine=True).is_sound
    left = wkwdask.read(f"precomputed://{tmp_path}/em", mag=1)
    np.testing.assert_array_equal(left[left > 0], array[left > 0])
    assert 0 < np.count_nonzero(left == 0) <= 16 * 16 * 8
    assert {path: path.read_bytes() for path in before} == before


def break_chunk(path):
    """Damage the largest chunk, in its gzip stream."""
    raw, chunk = path.read_bytes(), max(read_shard(path, GZIP).values(), key=len)
    at = raw.index(chunk) + len(chunk) // 2
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 0x5A]) + raw[at + 1 :])


@pytest.mark.parametrize("damage", [break_chunk, cut])
def test_salvage_keeps_the_intact_chunks_of_a_shard(tmp_path, damage):
    place = make(tmp_path, GZIP)
    path = largest(place)
    before, others = (
        read_shard(path, GZIP),
        {other: other.read_bytes() for other in place.iterdir() if other != path},
    )
    damage(path)
    damaged = path.read_bytes()
    assert not wkwdask.repair(tmp_path).is_sound
    assert path.read_bytes() == damaged
    (action,) = wkwdask.repair(tmp_path, salvage=True).actions
    after = read_shard(path, GZIP)
    assert action.verb == "salvage"
    assert 0 < len(after) < len(before)
    assert after == {chunk: data for chunk, data in before.items() if chunk in after}
    assert wkwdask.verify(tmp_path).kinds() == {"quarantine": 1}
    assert {other: other.read_bytes() for other in others} == others
    assert damaged in [
        kept.read_bytes() for kept in (tmp_path / ".wkwdask-quarantine").rglob(path.name)
    ]
    left = wkwdask.read(tmp_path)
    np.testing.assert_array_equal(left[left > 0], ARRAY[left > 0])


def test_lost_chunks_of_a_coarser_shard_are_computed_again(tmp_path):
    make(tmp_path, GZIP)
    wkwdask.build_pyramid(tmp_path, mags=["2-2-1"], method="max")
    coarse = wkwdask.read(tmp_path, mag="2-2-1")
    for record in tmp_path.rglob(PROVENANCE_NAME):
        record.unlink()
    path = largest(tmp_path / "8_8_40")
    before = read_shard(path, GZIP)
    cut(path)
    assert wkwdask.repair(tmp_path, method="max").is_sound
    np.testing.assert_array_equal(wkwdask.read(tmp_path, mag="2-2-1"), coarse)
    assert read_shard(path, GZIP) == before


# ------------------------------------------------------------------------------------------------
# info

ENTRY = scale_entry(size=ARRAY.shape[1:])
INFOS = [
    # scales, other fields, kinds
    ([{**ENTRY, "size": [0, 1, 1]}, {**ENTRY, "key": "b"}], {}, {"info.scale", "mag.empty"}),
    (
        [{**ENTRY, "encoding": "fpzip"}, {**ENTRY, "key": "b"}],
        {},
        {"info.unsupported", "mag.empty"},
    ),
    ([{**ENTRY, "sharding": None}], {}, {"info.null"}),
    ([ENTRY, {**ENTRY, "resolution": [8, 8, 40]}], {}, {"info.twice"}),
    ([ENTRY], {"type": None}, {"info.absent"}),
    ([ENTRY], {"data_type": "complex"}, {"info.broken"}),
]


@pytest.mark.parametrize(("scales", "others", "kinds"), INFOS)
def test_info(tmp_path, scales, others, kinds):
    info = write_info(tmp_path, [ENTRY], "uint32", kind="segmentation")
    write_scale(tmp_path, info.scales[0], ARRAY)
    document = {**json.loads((tmp_path / "info").read_text()), "scales": scales, **others}
    (tmp_path / "info").write_text(
        json.dumps({name: value for name, value in document.items() if value is not None})
    )
    report = wkwdask.verify(tmp_path)
    assert {fault.kind for fault in report.faults} == kinds, str(report)


def test_several_chunk_sizes(tmp_path):
    info = write_info(
        tmp_path, [scale_entry(size=(48, 48, 16), chunk_sizes=[[16, 16, 8], [8, 8, 8]])]
    )
    for size in info.scales[0].chunk_sizes:
        write_scale(
            tmp_path, info.scales[0].with_chunk_size(size), np.ones((1, 48, 48, 16), np.uint8)
        )
    report = wkwdask.verify(tmp_path)
    assert report.faults == ()
    assert [(mag.mag, mag.files) for mag in report.mags] == [
        ("1 in chunks of 16x16x8", 18),
        ("1 in chunks of 8x8x8", 72),
    ]


def test_every_kind_is_found_somewhere():
    found = set().union(*(kinds for _, _, kinds in [*DAMAGE, *INFOS]))
    others = {"chunk.shape", "chunk.outside", "shard.checksum", "shard.place"}  # of Zarr and N5
    assert {
        kind
        for kind in KINDS_OF_FAULTS
        if kind.startswith(("info.", "chunk.", "shard.", "minishard."))
    } - others <= found
