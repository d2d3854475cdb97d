"""Storage options: one record for each format, from which checks, help and reference come."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from support.options_reference import reference

import wkwdask
from wkwdask.cli import cli
from wkwdask.formats.n5.options import N5Options
from wkwdask.formats.precomputed.options import PrecomputedOptions
from wkwdask.formats.registry import storage_records
from wkwdask.formats.wkw.options import WkwOptions
from wkwdask.formats.zarr.options import ZarrOptions
from wkwdask.model.options import make_options, options_of


@pytest.mark.parametrize("edge", [16, np.int64(16)])
@pytest.mark.parametrize("record", [WkwOptions, N5Options, PrecomputedOptions, ZarrOptions])
def test_one_length_is_a_cube(record, edge):
    assert make_options(record, chunk_shape=edge).chunk_shape == (16, 16, 16)
    if record is not N5Options:
        assert make_options(record, shard_shape=edge).shard_shape == (16, 16, 16)


@pytest.mark.parametrize(
    ("record", "given", "message"),
    [
        (
            PrecomputedOptions,
            {"block_len": 32},
            (
                "precomputed has no option block_len; it has: chunk_shape, shard_shape, encoding, "
                "quality, compression, force"
            ),
        ),
        (
            N5Options,
            {"force": True, "ngff": "0.5"},
            "n5 has no options force, ngff; it has: chunk_shape, compression, level",
        ),
        (
            WkwOptions,
            {"chunk_shape": (32, 32, 16)},
            "chunk_shape of WKW must be a cube whose edge is a power of two",
        ),
        (
            WkwOptions,
            {"chunk_shape": (24, 24, 24)},
            "chunk_shape of WKW must be a cube whose edge is a power of two",
        ),
        (WkwOptions, {"chunk_shape": (32, 32)}, "chunk_shape must be three whole numbers"),
        (
            WkwOptions,
            {"chunk_shape": (32, 32, 32), "block_len": 32},
            "block_len= is chunk_shape= as one number: pass only one of them",
        ),
        (
            WkwOptions,
            {"shard_shape": (64, 64, 64), "file_len": 2},
            "file_len= is shard_shape= in blocks: pass only one of them",
        ),
        (
            WkwOptions,
            {"shard_shape": (16, 16, 16), "block_len": 32},
            "shard_shape must be a power of two of blocks",
        ),
        (WkwOptions, {"shard_shape": True}, "shard_shape must be one or three whole numbers"),
        (N5Options, {"chunk_shape": 2.5}, "chunk_shape must be one or three whole numbers"),
        (N5Options, {"chunk_shape": (2, 2)}, "chunk_shape must be three whole numbers"),
        (WkwOptions, {"level": 13}, r'level must be in 1\.\.12 or "auto", got 13'),
        (WkwOptions, {"level": "best"}, "level must be a whole number or \"auto\", got 'best'"),
        (ZarrOptions, {"level": "auto"}, "level must be a whole number, got 'auto'"),
        (WkwOptions, {"file_len": 2.5}, "file_len must be a whole number, got 2.5"),
        (
            WkwOptions,
            {"compression": "zip"},
            "compression of WKW must be one of lz4hc, lz4, raw, got 'zip'",
        ),
        (PrecomputedOptions, {"chunk_shape": (0, 1, 1)}, "chunk_shape must be positive"),
        (
            PrecomputedOptions,
            {"shard_shape": 2.5},
            (
                r'shard_shape must be one length, three lengths, True \(or "auto"\) or False '
                r'\(or "none"\), got 2.5'
            ),
        ),
        (
            ZarrOptions,
            {"shard_shape": "big"},
            (
                r'shard_shape must be one length, three lengths, True \(or "auto"\) or False '
                r'\(or "none"\), got .big'
            ),
        ),
        (PrecomputedOptions, {"quality": 101}, r"quality must be in 0\.\.100"),
        (
            ZarrOptions,
            {"compression": "raw", "level": 1},
            "compression raw of OME-NGFF has no level",
        ),
        (N5Options, {"compression": "xz", "level": 22}, r"level of xz must be in 0\.\.9, got 22"),
    ],
)
def test_what_a_format_does_not_have(record, given, message):
    with pytest.raises(ValueError, match=message):
        make_options(record, **given)


def test_aliases_of_wkw():
    by_shape, by_length = (
        make_options(WkwOptions, chunk_shape=[64, 64, 64], shard_shape=(256,) * 3),
        make_options(WkwOptions, block_len=64, file_len=4),
    )
    assert by_shape.block_len_or(32) == by_length.block_len_or(32) == 64
    assert by_shape.file_len_of(64) == by_length.file_len_of(64) == 4
    assert (WkwOptions().block_len_or(16), WkwOptions().file_len_of(16)) == (16, None)


def test_given_and_defaults():
    assert [
        make_options(ZarrOptions, shard_shape=word).shard_shape for word in ("auto", "none")
    ] == [True, False]
    stored = make_options(PrecomputedOptions, encoding="png", chunk_shape=None, force=False)
    assert stored.explicit() == {"encoding": "png"}
    assert replace(stored.with_defaults(), encoding=None) == PrecomputedOptions((64, 64, 64), False)


@pytest.mark.parametrize("record", storage_records(exports=True))
def test_documentation(record):
    for name, option in options_of(record):
        assert option.doc.endswith("."), name
    assert f"## {record.title}\n" in reference([record])


def test_shards_of_a_shape(tmp_path):
    voxels = np.arange(64**3, dtype=np.uint32).reshape(64, 64, 64)
    for number, shape in enumerate([(32, 32, 32), (64, 32, 32), (128, 128, 128)]):
        report = wkwdask.to_precomputed(
            voxels,
            tmp_path / str(number),
            voxel_size=(4, 4, 4),
            encoding="raw",
            chunk_shape=(8, 8, 8),
            shard_shape=shape,
        )
        assert report.files == 64**3 // np.prod(np.minimum(shape, 64))
        assert "sharding" in json.loads((tmp_path / str(number) / "info").read_text())["scales"][0]
        np.testing.assert_array_equal(wkwdask.open(tmp_path / str(number))[0].compute(), voxels)
    with pytest.raises(ValueError, match="its shards can have 8x8x8, 16x8x8, 16x16x8, 16x16x16, "):
        wkwdask.to_precomputed(
            voxels,
            tmp_path / "x",
            voxel_size=(4, 4, 4),
            chunk_shape=(8, 8, 8),
            shard_shape=(8, 8, 64),
        )


def test_the_command_line(tmp_path):
    wkwdask.write(
        tmp_path / "ds" / "color" / "1",
        (0, 0, 0),
        np.ones((64, 64, 64), np.uint8),
        voxel_size=(4, 4, 4),
    )
    run = CliRunner().invoke
    shown = run(cli, ["convert", "--help"]).output
    assert [line for line in shown.splitlines() if line.endswith(" options:")] == [
        f"{record.title} options:" for record in storage_records(exports=True)
    ]
    done = run(
        cli,
        ["rechunk", f"{tmp_path}/ds", "--chunk-shape", "16,16,16", "--shard-shape", "32,32,32"],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    assert wkwdask.info(tmp_path / "ds").layers[0].mags[0].block_len == 16
    target = f"precomputed://{tmp_path}/v"
    done = run(
        cli,
        ["convert", f"{tmp_path}/ds", target, "--shard-shape", "auto", "--chunk-shape", "32,32,32"],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    assert "sharding" in json.loads((tmp_path / "v" / "info").read_text())["scales"][0]
    assert (
        "expected three whole numbers"
        in run(cli, ["convert", f"{tmp_path}/ds", target, "--chunk-shape", "a"]).output
    )
