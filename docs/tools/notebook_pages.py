"""MkDocs hook that executes the notebooks and adds each as a page."""

from __future__ import annotations

import base64
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbclient
import nbformat
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

cards: dict[str, str] = {}
"""HTML of outputs, by the id of the element that shows it."""
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page and its pictures for each notebook. All run in one folder, so the demo dataset is
    made once."""
    os.environ["WKWDASK_PROGRESS"] = "off"
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(NOTEBOOKS.glob("*.ipynb")):
            notebook = nbformat.read(path, 4)
            nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(
                cwd=folder
            )
            parts = [
                block
                for number, cell in enumerate(notebook.cells)
                for block in blocks(cell, f"{path.stem}_{number}", files, config)
            ]
            text = "\n\n".join(parts).replace(f"{folder}/", "")
            cards.update({name: html.replace(f"{folder}/", "") for name, html in cards.items()})
            source = (
                f"This page is the notebook `notebooks/{path.name}`, executed when the site was "
                "built."
            )
            files.append(
                File.generated(config, f"notebooks/{path.stem}.md", content=f"{text}\n\n{source}\n")
            )
    return files


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Insert the HTML of outputs, which Markdown would change, into a page."""
    if not page.file.src_uri.startswith("notebooks/"):
        return html
    return re.sub(r'id="(\w+)">(?=</div>)', lambda match: match[0] + cards.get(match[1], ""), html)


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
            files.append(
                File.generated(
                    config, f"notebooks/{picture}", content=base64.b64decode(data["image/png"])
                )
            )
            yield f"![Output of the cell above]({picture})"
        elif "text/html" in data:
            # tables with a class keep their own style
            cards[f"{name}_{number}"] = data["text/html"].replace(
                "<table>", '<table class="notebook-table">'
            )
            yield (
                '<div class="notebook-output" data-md-color-scheme="default" '
                f'id="{name}_{number}"></div>'
            )
        else:
            yield f"```text\n{data['text/plain'].rstrip()}\n```"
