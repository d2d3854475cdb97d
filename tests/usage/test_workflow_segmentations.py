"""The scripts that make segmentations, run as people run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage
from support.commands import run_script_here

import wkwdask

WORKFLOWS = Path(__file__).resolve().parent.parent.parent / "workflows"
VALUES = ndimage.gaussian_filter(np.random.default_rng(0).random((60, 50, 40)), 1)
EM = (VALUES / VALUES.max() * 255).astype(np.uint8)
LABELS = np.kron(np.random.default_rng(1).integers(0, 9, (15, 10, 8)), np.ones((4, 5, 5), int)).astype(np.uint32)


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (4, 4, 4))
    wkwdask.to_wkw(EM, folder / "color" / "1", block_len=8, file_len=2, category="color")
    wkwdask.to_wkw(LABELS, folder / "seg" / "1", block_len=8, file_len=2)
    return folder


def run(folder, name, *arguments):
    """Give what a script prints."""
    environment = {**os.environ, "WKWDASK_PROGRESS": "off"}
    command = [sys.executable, WORKFLOWS / name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=folder)
    return done.stdout


def test_connected_components(dataset):
    expected, count = ndimage.label(EM >= 180)
    arguments = (dataset / "color" / "1", dataset / "cells" / "1", "--threshold", 180, "--connectivity", 6, "--pyramid")
    assert f"{count} components" in run(dataset, "connected_components.py", *arguments)
    found = wkwdask.read(dataset / "cells" / "1")[0]
    np.testing.assert_array_equal(np.sort(np.bincount(found.ravel())), np.sort(np.bincount(expected.ravel())))
    assert len(next(layer for layer in wkwdask.info(dataset).layers if layer.name == "cells").mags) > 1
    assert "nothing to do" in run_script_here(WORKFLOWS / "connected_components.py", *arguments)


def test_remap(dataset, tmp_path):
    (tmp_path / "merges.csv").write_text("7,3\n8,0\n")
    run(tmp_path, "remap.py", dataset / "seg" / "1", dataset / "merged" / "1", tmp_path / "merges.csv", "--min-voxels", 10_000)
    expected = np.array([0, 1, 2, 3, 4, 5, 6, 3, 0])[LABELS]
    np.testing.assert_array_equal(wkwdask.read(dataset / "merged" / "1")[0], expected)
    counts = np.bincount(expected.ravel())
    kept = [number for number in range(1, 9) if number < len(counts) and counts[number] >= 10_000]
    lookup = np.zeros(9, int)
    lookup[kept] = np.arange(1, len(kept) + 1)
    assert kept
    np.testing.assert_array_equal(wkwdask.read(dataset / "merged-compact" / "1")[0], lookup[expected])
    assert (tmp_path / "ids.csv").read_text() == "old,new\n" + "".join(f"{old},{new}\n" for new, old in enumerate(kept, 1))
