"""The scripts that people start from, run as they run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from support.commands import run_script_here

import wkwdask

WORKFLOWS = Path(__file__).resolve().parent.parent.parent / "workflows"
ARRAY = np.random.default_rng(0).integers(0, 4, (60, 50, 40)).astype(np.uint8)


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (11.24, 11.24, 28))
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
    assert "nothing to do" in run_script_here(WORKFLOWS / "rechunk.py", dataset, tmp_path / "new", "--file-len", 4)


def test_compress(dataset):
    assert run("compress.py", dataset, "--level", 3).startswith("color: 0.1 MB compressed to 0.")
    assert stored(dataset) == [(1, "lz4hc")]
    np.testing.assert_array_equal(wkwdask.open(dataset).compute()[0], ARRAY)
    assert run_script_here(WORKFLOWS / "compress.py", dataset) == "color: no raw mags\n"


def test_import_image_stack(tmp_path):
    array = np.random.default_rng(0).integers(0, 200, (40, 50, 60)).astype(np.uint16)
    (tmp_path / "raw").mkdir()
    for z, section in enumerate(array):
        Image.fromarray(section).save(tmp_path / "raw" / f"section_{z}.png")
    printed = run("import_image_stack.py", f"{tmp_path}/raw/section_*.png", tmp_path / "ds", "--voxel-size", "4,4,35", "--range", "0,510")
    assert "color: uint8 of shape (c, x, y, z) = (1, 60, 50, 40)" in printed
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds", mag=1)[0].T, np.rint(array / 2))
    assert len(wkwdask.info(tmp_path / "ds").layers[0].mags) > 1


def test_pyramid(dataset):
    assert "1 file, " in run("pyramid.py", dataset, "--coarsest", "4-4-2")
    assert [str(mag.mag) for mag in wkwdask.info(dataset).layers[0].mags] == ["1", "2-2-1", "4-4-2"]
    assert "nothing to do" in run_script_here(WORKFLOWS / "pyramid.py", dataset, "--coarsest", "4-4-2")


def test_apply_on_a_local_cluster(dataset, tmp_path):
    """Worker processes get the function of a script; the result is that of scipy."""
    (tmp_path / "two.yaml").write_text("kind: local\nworkers: 2\nmemory-limit: 1GiB\n")
    printed = run("apply.py", dataset / "color" / "1", dataset / "smooth" / "1", "--radius", 2, "--pyramid", "--cluster", tmp_path / "two.yaml")
    assert "files" in printed
    padded = ndimage.uniform_filter(np.pad(ARRAY, 2).astype(float), 5, mode="constant")
    counts = ndimage.uniform_filter(np.pad(np.ones(ARRAY.shape), 2), 5, mode="constant")
    inside = (slice(2, -2),) * 3
    difference = wkwdask.read(dataset / "smooth", mag=1)[0] - (padded / counts)[inside]
    assert np.abs(difference).max() < 0.5 + 1e-4  # rounded to the nearer whole number
    assert len(wkwdask.info(dataset / "smooth").layers[0].mags) > 1
