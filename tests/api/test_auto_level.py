"""Level ``auto`` of LZ4HC: noisy blocks are LZ4, all others LZ4HC, and a block has the same bytes
whatever job and task writes it."""

from __future__ import annotations

import json
from itertools import pairwise

import dask
import dask.array as da
import numpy as np
import pytest

import wkwdask
from wkwdask.formats.wkw.file import block_bounds, decode_block, encode_raw_block
from wkwdask.formats.wkw.header import HEADER_NBYTES, BlockType, parse_header
from wkwdask.kernels.blocks.repeats import has_repeats

SHAPE = (150, 129, 200)  # no whole blocks, files or bricks


def _volume(dtype="uint8"):
    """Make noise that LZ4HC can hardly compress, and half as much with structure."""
    rng = np.random.default_rng(3)
    scale = 1 if dtype == "uint8" else 250
    voxels = rng.normal(128 * scale, 12 * scale, SHAPE).astype(dtype)
    voxels[:, :, 140:] = np.arange(60) // 3 + rng.integers(0, 4, (150, 129, 60))
    return np.asfortranarray(voxels)


def _files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("x*.wkw"))
    }


def _blocks(raw):
    header = parse_header(raw[:HEADER_NBYTES], "file", is_data_file=True)
    bounds = block_bounds(raw, header, "file").tolist()
    return header, [raw[a:b] for a, b in pairwise(bounds)]


def test_every_block_is_lz4_or_lz4hc(tmp_path):
    wkwdask.write(tmp_path / "ds" / "color" / "1", (0, 0, 0), _volume(), voxel_size=(4, 4, 4))
    chosen = []
    for raw in _files(tmp_path).values():
        header, stored = _blocks(raw)
        assert header.block_type is BlockType.LZ4HC
        for number, block in enumerate(stored):
            voxels = decode_block(block, header, "file", number, 0).tobytes(order="F")
            if any(voxels):
                is_high = has_repeats(voxels)
                assert (block == encode_raw_block(voxels, BlockType.LZ4HC, 5)) == is_high
                chosen.append(is_high)
    assert 20 < sum(chosen) < len(chosen) - 20


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_bytes_of_a_file_depend_on_its_voxels_only(tmp_path, dtype):
    """Whole files and joined parts, many tasks and one, bricks of any shape, writes of regions, and
    recompression."""
    voxels, lengths = _volume(dtype), {"file_len": 4}
    wkwdask.write(
        tmp_path / "whole" / "color" / "1", (0, 0, 0), voxels, voxel_size=(4, 4, 4), **lengths
    )
    expected = _files(tmp_path / "whole" / "color" / "1")
    array = da.from_array(voxels, chunks=(50, 129, 32))
    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_wkw(array, tmp_path / "chunks" / "color" / "1", voxel_size=(4, 4, 4), **lengths)
    wkwdask.create(
        tmp_path / "regions" / "color" / "1",
        ((0, 0, 0), SHAPE),
        dtype,
        voxel_size=(4, 4, 4),
        **lengths,
    )
    for low, high in ((0, 64), (64, 100), (100, 129)):
        part = ((0, low, 0), (SHAPE[0], high, SHAPE[2]))
        wkwdask.to_wkw(voxels[:, low:high], tmp_path / "regions" / "color" / "1", region=part)
    wkwdask.rechunk(tmp_path / "whole", tmp_path / "lz4", compression="lz4", file_len=1)
    wkwdask.rechunk(tmp_path / "lz4", tmp_path / "again", compression="lz4hc", **lengths)
    for name in ("chunks", "regions", "again"):
        assert _files(tmp_path / name / "color" / "1") == expected, name
    wkwdask.compress(tmp_path / "whole", level=5)
    assert _files(tmp_path / "whole" / "color" / "1") != expected
    wkwdask.compress(tmp_path / "whole", level="auto")
    assert _files(tmp_path / "whole" / "color" / "1") == expected


@pytest.mark.long
def test_an_update_by_content_changes_nothing(tmp_path):
    """Its tasks have other shapes than those of the pyramid, and small files make all levels of a
    pass differ in their bricks."""
    dataset = tmp_path / "ds"
    rng = np.random.default_rng(1)
    coarse = rng.integers(0, 200, (40, 40, 40), dtype=np.uint8)
    wkwdask.write(
        dataset / "color" / "1",
        (0, 0, 0),
        coarse.repeat(4, 0).repeat(4, 1).repeat(4, 2),
        voxel_size=(4, 4, 4),
        file_len=2,
    )
    wkwdask.build_pyramid(dataset, method="nearest", coarsest=8)
    before = _files(dataset)
    stored = [
        decode_block(block, header, "file", 0, 0)
        for header, blocks in map(_blocks, before.values())
        for block in blocks
    ]
    assert {has_repeats(voxels.tobytes(order="F")) for voxels in stored} == {False, True}
    report = wkwdask.build_pyramid(dataset, method="nearest", coarsest=8, update="content")
    assert report.note.endswith(" 0 of them changed")
    assert _files(dataset) == before


def test_records_and_text(tmp_path):
    wkwdask.write(
        tmp_path / "ds" / "color" / "1", (0, 0, 0), _volume()[:64, :64, :64], voxel_size=(4, 4, 4)
    )
    for given, expected in ((None, "auto"), ("auto", "auto"), (5, 5)):
        options = (
            {"existing": "overwrite"}
            if given is None
            else {"level": given, "existing": "overwrite"}
        )
        assert f"stored as lz4hc level {expected}, " in str(
            wkwdask.plan_pyramid(tmp_path / "ds", **options)
        )
        wkwdask.build_pyramid(tmp_path / "ds", **options)
        assert (
            json.loads((tmp_path / "ds" / "color" / "2" / ".wkwdask.json").read_text())["settings"][
                "level"
            ]
            == expected
        )
        assert (
            "nothing to do"
            in wkwdask.build_pyramid(tmp_path / "ds", **{**options, "existing": "error"}).note
        )


def test_wkw_reads_it(tmp_path):
    wkw = pytest.importorskip("wkw", reason="the oracle wkw 1.1.24 is not installed")
    voxels = _volume()
    wkwdask.write(tmp_path / "ds" / "color" / "1", (0, 0, 0), voxels, voxel_size=(4, 4, 4))
    with wkw.Dataset.open(str(tmp_path / "ds" / "color" / "1")) as dataset:
        assert dataset.header.block_type == wkw.Header.BLOCK_TYPE_LZ4HC
        np.testing.assert_array_equal(dataset.read((0, 0, 0), SHAPE)[0], voxels)
