"""The scripts in ``workflows/``, run from the command line or in this process."""

from __future__ import annotations

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
SMOOTH = ndimage.gaussian_filter(np.random.default_rng(0).random((60, 50, 40)), 1)
EM = (SMOOTH / SMOOTH.max() * 255).astype(np.uint8)
LABELS = np.kron(
    np.random.default_rng(1).integers(0, 9, (15, 10, 8)), np.ones((4, 5, 5), int)
).astype(np.uint32)


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (11.24, 11.24, 28))
    wkwdask.to_wkw(
        ARRAY, folder / "color" / "1", block_len=8, file_len=1, compression="raw", category="color"
    )
    return folder


def run(name, *arguments):
    """Return what a script prints."""
    return run_script_here(WORKFLOWS / name, *arguments)


def num_mags(layer):
    return len(wkwdask.info(layer).layers[0].mags)


def stored(folder):
    (layer,) = wkwdask.info(folder).layers
    return [(mag.file_len, mag.compression) for mag in layer.mags]


def test_rechunk(dataset, tmp_path):
    assert "8 files" in run("rechunk.py", dataset, tmp_path / "new", "--file-len", 4)
    assert stored(tmp_path / "new") == [(4, "raw")]
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "new").compute()[0], ARRAY)
    assert "nothing to do" in run("rechunk.py", dataset, tmp_path / "new", "--file-len", 4)


def test_compress(dataset):
    assert run("compress.py", dataset, "--level", 3).startswith("color: 0.1 MB compressed to 0.")
    assert stored(dataset) == [(1, "lz4hc")]
    np.testing.assert_array_equal(wkwdask.open(dataset).compute()[0], ARRAY)
    assert run("compress.py", dataset) == "color: no raw mags\n"


def test_import_image_stack(tmp_path):
    array = np.random.default_rng(0).integers(0, 200, (40, 50, 60)).astype(np.uint16)
    (tmp_path / "raw").mkdir()
    for z, section in enumerate(array):
        Image.fromarray(section).save(tmp_path / "raw" / f"section_{z}.png")
    printed = run(
        "import_image_stack.py",
        f"{tmp_path}/raw/section_*.png",
        tmp_path / "ds",
        "--voxel-size",
        "4,4,35",
        "--range",
        "0,510",
    )
    assert "color: uint8 of shape (c, x, y, z) = (1, 60, 50, 40)" in printed
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds", mag=1)[0].T, np.rint(array / 2))
    assert num_mags(tmp_path / "ds") > 1


def test_pyramid(dataset):
    assert "1 file, " in run("pyramid.py", dataset, "--coarsest", "4-4-2")
    assert [str(mag.mag) for mag in wkwdask.info(dataset).layers[0].mags] == ["1", "2-2-1", "4-4-2"]
    assert "nothing to do" in run("pyramid.py", dataset, "--coarsest", "4-4-2")


@pytest.mark.long
def test_workers_import_the_function_of_a_script(dataset, tmp_path):
    """The script runs in a process, its function in that of a worker; the result equals that of
    scipy."""
    (tmp_path / "one.yaml").write_text("kind: local\nworkers: 1\nmemory-limit: 1GiB\n")
    arguments = (
        dataset / "color" / "1",
        dataset / "smooth" / "1",
        "--radius",
        "2",
        "--pyramid",
        "--cluster",
        tmp_path / "one.yaml",
    )
    done = subprocess.run(
        [sys.executable, WORKFLOWS / "apply.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "files" in done.stdout
    padded = ndimage.uniform_filter(np.pad(ARRAY, 2).astype(float), 5, mode="constant")
    counts = ndimage.uniform_filter(np.pad(np.ones(ARRAY.shape), 2), 5, mode="constant")
    inside = (slice(2, -2),) * 3
    difference = wkwdask.read(dataset / "smooth", mag=1)[0] - (padded / counts)[inside]
    assert np.abs(difference).max() < 0.5 + 1e-4  # rounded to the nearest integer
    assert num_mags(dataset / "smooth") > 1


def test_connected_components(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    wkwdask.to_wkw(EM, tmp_path / "ds" / "color" / "1", block_len=8, file_len=2, category="color")
    expected, count = ndimage.label(EM >= 180)
    arguments = (
        tmp_path / "ds" / "color" / "1",
        tmp_path / "ds" / "cells" / "1",
        "--threshold",
        180,
        "--connectivity",
        6,
        "--pyramid",
    )
    assert f"{count:,} components" in run("connected_components.py", *arguments)
    found = wkwdask.read(tmp_path / "ds" / "cells" / "1")[0]
    np.testing.assert_array_equal(
        np.sort(np.bincount(found.ravel())), np.sort(np.bincount(expected.ravel()))
    )
    assert num_mags(tmp_path / "ds" / "cells") > 1
    assert "nothing to do" in run("connected_components.py", *arguments)


def test_remap(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # ids.csv is written here
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    wkwdask.to_wkw(LABELS, tmp_path / "ds" / "seg" / "1", block_len=8, file_len=2)
    (tmp_path / "merges.csv").write_text("7,3\n8,0\n")
    run(
        "remap.py",
        tmp_path / "ds" / "seg" / "1",
        tmp_path / "ds" / "merged" / "1",
        "merges.csv",
        "--min-voxels",
        10_000,
    )
    expected = np.array([0, 1, 2, 3, 4, 5, 6, 3, 0])[LABELS]
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds" / "merged" / "1")[0], expected)
    counts = np.bincount(expected.ravel())
    kept = [number for number in range(1, 9) if number < len(counts) and counts[number] >= 10_000]
    lookup = np.zeros(9, int)
    lookup[kept] = np.arange(1, len(kept) + 1)
    assert kept
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds" / "merged-compact" / "1")[0], lookup[expected]
    )
    assert (tmp_path / "ids.csv").read_text() == "old,new\n" + "".join(
        f"{old},{new}\n" for new, old in enumerate(kept, 1)
    )
