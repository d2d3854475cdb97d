"""The notebooks, executed as people execute them, in a folder of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import wkwdask

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent.parent / "notebooks").glob("*.ipynb"))
RUN = """
import sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=".")
nbformat.write(notebook, sys.argv[2])
"""


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The dataset that the notebooks would make, each for itself."""
    folder = tmp_path_factory.mktemp("notebooks") / "demo-dataset"
    wkwdask.make_demo(folder, shape=(320, 320, 128))
    return folder


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["1_first_look", "2_filter_and_segment", "3_label_statistics"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_stored(path):
    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.parametrize(("path", "pictures"), list(zip(NOTEBOOKS, (4, 2, 3), strict=False)), ids=lambda value: getattr(value, "stem", ""))
def test_it_runs(path, pictures, demo, tmp_path):
    """Every cell runs, nothing is said on standard error, and there are as many pictures as it draws."""
    shutil.copytree(demo, tmp_path / "demo-dataset")
    environment = {**os.environ, "WKWDASK_PROGRESS": "off", "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"), "IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run([sys.executable, "-c", RUN, path, "done.ipynb"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    outputs = [output for cell in nbformat.read(tmp_path / "done.ipynb", 4).cells for output in cell.get("outputs", ())]
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    assert sum("image/png" in output.get("data", {}) for output in outputs) == pictures
