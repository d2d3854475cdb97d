"""MkDocs hook that executes the notebooks and adds each as a page."""

from __future__ import annotations

import base64
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbclient
import nbformat
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page and its pictures for each notebook. All run in one folder, so the demo dataset is made once."""
    os.environ["WKWDASK_PROGRESS"] = "off"
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(NOTEBOOKS.glob("*.ipynb")):
            notebook = nbformat.read(path, 4)
            nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=folder)
            parts = [block for number, cell in enumerate(notebook.cells) for block in blocks(cell, f"{path.stem}_{number}", files, config)]
            text = "\n\n".join(parts).replace(f"{folder}/", "")
            source = f"This page is the notebook `notebooks/{path.name}`, executed when the site was built."
            files.append(File.generated(config, f"notebooks/{path.stem}.md", content=f"{text}\n\n{source}\n"))
    return files


def blocks(cell: Any, name: str, files: Files, config: MkDocsConfig) -> Iterator[str]:
    """Yield the Markdown of a cell and of its outputs. Pictures become files."""
    if cell.cell_type == "markdown":
        yield cell.source
        return
    yield f"```python\n{cell.source}\n```"
    for number, output in enumerate(cell.outputs):
        data = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in data:
            picture = f"{name}_{number}.png"
            files.append(File.generated(config, f"notebooks/{picture}", content=base64.b64decode(data["image/png"])))
            yield f"![Output of the cell above]({picture})"
        elif "text/html" in data:
            yield f'<div class="notebook-output">\n{data["text/html"]}\n</div>'
        else:
            yield f"```text\n{data['text/plain'].rstrip()}\n```"
