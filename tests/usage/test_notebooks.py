"""The notebooks, executed one after the other in one Jupyter kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent.parent / "notebooks").glob("*.ipynb"))
NUM_PICTURES = {
    "1_first_look": 4,
    "2_filter_and_segment": 2,
    "3_label_statistics": 3,
    "4_segment_block_by_block": 1,
    "5_tutorial": 2,
}
RUN = """
import sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=".")
nbformat.write(notebook, sys.argv[2])
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_stored(path):
    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.long
@pytest.mark.needs("moto", "obstore", "skimage", "zmesh")
def test_notebooks_run_and_draw_their_pictures(tmp_path):
    """A kernel takes seconds to start and to import everything, so all share one; ``%reset``
    removes the names of the notebook before."""
    cells = []
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, 4)
        cells += [
            nbformat.v4.new_code_cell("%reset -f", metadata={"notebook": path.stem}),
            *notebook.cells,
        ]
    for number, cell in enumerate(cells):
        cell.id = str(number)  # those of two notebooks are equal
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "all.ipynb")
    environment = {
        **os.environ,
        "WKWDASK_PROGRESS": "off",
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, "all.ipynb", "done.ipynb"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    num_pictures, name = dict.fromkeys(NUM_PICTURES, 0), ""
    for cell in nbformat.read(tmp_path / "done.ipynb", 4).cells:
        name = cell.metadata.get("notebook", name)
        outputs = cell.get("outputs", ())
        assert [output.text for output in outputs if output.get("name") == "stderr"] == []
        num_pictures[name] += sum("image/png" in output.get("data", {}) for output in outputs)
    assert num_pictures == NUM_PICTURES
