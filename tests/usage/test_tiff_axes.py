"""TIFF files whose last axis, after the columns, has length 1."""

from __future__ import annotations

import numpy as np
import pytest

import wkwdask

tifffile = pytest.importorskip(
    "tifffile", reason="tifffile, of the extra convert, is not installed"
)

VOXELS = np.random.default_rng(0).integers(1, 255, (3, 20, 30), np.uint8)


def converted(source, tmp_path):
    wkwdask.convert(source, tmp_path / "ds", voxel_size=(4, 4, 35))
    return wkwdask.read(tmp_path / "ds")[0].T


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zlib"},
        {"metadata": {"axes": "YXS"}},
        {"metadata": {"axes": "YXC"}},
        {"tile": (16, 16)},
    ],
)
def test_sections_with_a_last_axis_of_length_1(tmp_path, options):
    (tmp_path / "s").mkdir()
    for z, section in enumerate(VOXELS):
        tifffile.imwrite(tmp_path / "s" / f"{z}.tif", section[..., None], **options)
    np.testing.assert_array_equal(converted(tmp_path / "s", tmp_path), VOXELS)


@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"metadata": {"axes": "ZYXS"}}])
def test_a_stack_with_a_last_axis_of_length_1(tmp_path, options):
    tifffile.imwrite(tmp_path / "a.tif", VOXELS[..., None], photometric="minisblack", **options)
    np.testing.assert_array_equal(converted(tmp_path / "a.tif", tmp_path), VOXELS)


def test_one_section_with_a_last_axis_of_length_1(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", VOXELS[0, ..., None], compression="zlib")
    np.testing.assert_array_equal(converted(tmp_path / "a.tif", tmp_path), VOXELS[:1])
