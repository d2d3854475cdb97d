"""The scripts that people start from, run as they run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import wkwdask
from wkwdask.formats.datasource import FILE_NAME, format_datasource, new_document

WORKFLOWS = Path(__file__).resolve().parent.parent / "workflows"
ARRAY = np.random.default_rng(0).integers(0, 4, (60, 50, 40)).astype(np.uint8)


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    folder.mkdir()
    (folder / FILE_NAME).write_text(format_datasource(new_document("ds", (11.24, 11.24, 28))))
    wkwdask.to_wkw(ARRAY, folder / "color" / "1", block_len=8, file_len=1, compression="raw", category="color")
    return folder


def run(name, *arguments):
    """Give what a script prints."""
    environment = {**os.environ, "WKWDASK_PROGRESS": "off"}
    done = subprocess.run([sys.executable, WORKFLOWS / name, *map(str, arguments)], capture_output=True, text=True, check=True, env=environment)
    return done.stdout


def stored(folder):
    (layer,) = wkwdask.info(folder).layers
    return [(mag.file_len, mag.compression) for mag in layer.mags]


def test_rechunk(dataset, tmp_path):
    assert "8 files" in run("rechunk.py", dataset, tmp_path / "new", "--file-len", 4)
    assert stored(tmp_path / "new") == [(4, "raw")]
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "new").compute()[0], ARRAY)
    assert "nothing to do" in run("rechunk.py", dataset, tmp_path / "new", "--file-len", 4)


def test_compress(dataset):
    assert run("compress.py", dataset, "--level", 3).startswith("color: 0.1 MB of voxels take 0.")
    assert stored(dataset) == [(1, "lz4hc")]
    np.testing.assert_array_equal(wkwdask.open(dataset).compute()[0], ARRAY)
    assert run("compress.py", dataset) == "color: nothing is raw\n"


def test_import_image_stack(tmp_path):
    array = np.random.default_rng(0).integers(0, 200, (40, 50, 60)).astype(np.uint16)
    (tmp_path / "raw").mkdir()
    for z, section in enumerate(array):
        Image.fromarray(section).save(tmp_path / "raw" / f"section_{z}.png")
    printed = run("import_image_stack.py", f"{tmp_path}/raw/section_*.png", tmp_path / "ds", "--voxel-size", "4,4,35", "--range", "0,510")
    assert "color: uint8 of shape (c, x, y, z) = (1, 60, 50, 40)" in printed
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds", mag=1)[0].T, np.rint(array / 2))
    assert len(wkwdask.info(tmp_path / "ds").layers[0].mags) > 1
