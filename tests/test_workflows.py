"""The workflows run as they are, as programs of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from faults.drivers import ENVIRONMENT
from PIL import Image

import wkwdask

WORKFLOWS = Path(__file__).resolve().parent.parent / "workflows"


def run(name, *arguments):
    """Run a workflow and give what it prints."""
    command = [sys.executable, str(WORKFLOWS / name), *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout


def test_import_image_stack(tmp_path):
    array = np.random.default_rng(0).integers(0, 200, (40, 50, 60)).astype(np.uint16)
    (tmp_path / "raw").mkdir()
    for z, section in enumerate(array):
        Image.fromarray(section).save(tmp_path / "raw" / f"section_{z}.png")
    printed = run("import_image_stack.py", f"{tmp_path}/raw/section_*.png", tmp_path / "ds", "--voxel-size", "4,4,35", "--range", "0,510")
    assert "color: uint8 of shape (c, x, y, z) = (1, 60, 50, 40)" in printed
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds", mag=1)[0].T, np.rint(array / 2))
    assert len(wkwdask.info(tmp_path / "ds").layers[0].mags) > 1
