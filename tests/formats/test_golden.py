"""Files written by the reference library wkw 1.1.24 (``tests/golden/PROVENANCE.md``) hold the
voxels of their formulas."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from formats.encoded_wkw import encode_file

from wkwdask.formats.wkw.array import open_mag
from wkwdask.formats.wkw.file import decode_file
from wkwdask.formats.wkw.header import format_header, parse_header

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def _load_generator():
    spec = importlib.util.spec_from_file_location("golden_generate", GOLDEN / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generator = _load_generator()


def test_corpus_is_complete():
    """Every case has its folder, every folder its case, and the corpus stays small enough for a
    repository."""
    assert len(generator.CASES) >= 10
    assert {folder.name for folder in GOLDEN.iterdir() if (folder / "header.wkw").is_file()} == set(
        generator.CASES
    )
    assert {case[0] for case in generator.CASES.values()} == {
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
    }
    assert {case[2] for case in generator.CASES.values()} == {1, 2, 3}
    sizes = [file.stat().st_size for file in GOLDEN.glob("*/**/*.wkw")]
    assert sum(sizes) < 60_000
    for name in generator.CASES:
        assert generator.expected(name).any()


@pytest.mark.parametrize("name", list(generator.CASES))
def test_header(name):
    dtype, channels, block_type, block_len, file_len, _ = generator.CASES[name]
    raw = (GOLDEN / name / "header.wkw").read_bytes()
    header = parse_header(raw, name, is_data_file=False)
    assert (header.dtype, header.num_channels, header.block_type) == (
        np.dtype(dtype),
        channels,
        block_type,
    )
    assert (header.block_len, header.file_len, header.data_offset) == (block_len, file_len, 0)
    assert format_header(header) == raw


@pytest.mark.parametrize("name", list(generator.CASES))
def test_files(name):
    _, _, _, block_len, file_len, files = generator.CASES[name]
    expected = generator.expected(name)
    edge = block_len * file_len
    for x, y, z in np.ndindex(*files):
        raw = (GOLDEN / name / f"z{z}" / f"y{y}" / f"x{x}.wkw").read_bytes()
        array = decode_file(raw, name)
        part = expected[
            :, x * edge : (x + 1) * edge, y * edge : (y + 1) * edge, z * edge : (z + 1) * edge
        ]
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, part)
        header = parse_header(raw, name, is_data_file=True)
        if not header.is_compressed:
            assert encode_file(part, header) == raw  # raw files are equal byte for byte


@pytest.mark.parametrize("name", list(generator.CASES))
@pytest.mark.parametrize("order", ["C", "F"])
def test_volume(name, order):
    expected = generator.expected(name)
    volume = open_mag(str(GOLDEN / name))
    assert (volume.dtype, volume.num_channels, volume.box.size) == (
        expected.dtype,
        expected.shape[0],
        expected.shape[1:],
    )
    out = np.empty(expected.shape, expected.dtype, order=order)
    assert volume.read_into(out, (0, 0, 0)) > 0
    np.testing.assert_array_equal(out, expected)


def test_part_of_a_volume():
    """A box that starts inside a block, crosses files, and takes one channel."""
    volume = open_mag(str(GOLDEN / "uint32_lz4hc_files"))
    out = np.empty((1, 5, 7, 3), np.uint32)
    volume.read_into(out, (1, 3, 2))
    np.testing.assert_array_equal(out, generator.expected("uint32_lz4hc_files")[:, 1:6, 3:10, 2:5])
    volume = open_mag(str(GOLDEN / "uint8_three_channels_lz4hc"))
    out = np.empty((2, 3, 2, 5), np.uint8)
    volume.read_into(out, (2, 3, 1), first_channel=1)
    np.testing.assert_array_equal(
        out, generator.expected("uint8_three_channels_lz4hc")[1:, 2:5, 3:5, 1:6]
    )


def test_reference_library_wrote_this():
    """The version in the generator is the one that the provenance names."""
    assert f"`wkw` {generator.WRITER_VERSION}" in (GOLDEN / "PROVENANCE.md").read_text(
        encoding="utf-8"
    )
