"""The calls of models and of other software on two pages fit the signatures of the packages, where
these are installed; those of torch are run with a small network."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage
from support.segmenting import smooth_noise

import wkwdask

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS / "guides" / "segment-with-a-model.md", DOCS / "migrate" / "block-segmentation.md"]
CALLS = {
    "cellpose": [
        "cellpose.models.CellposeModel",
        "cellpose.models.CellposeModel.eval",
        "cellpose.contrib.distributed_segmentation.distributed_eval",
    ],
    "stardist": [
        "stardist.models.StarDist3D.from_pretrained",
        "stardist.models.StarDist3D.predict_instances",
        "csbdeep.utils.normalize",
    ],
    "torch": ["torch.jit.load"],
    "volara": [
        *(
            f"volara.blockwise.{name}"
            for name in ("AffAgglom", "ExtractFrags", "GraphMWS", "Relabel")
        ),
        "volara.datasets.Affs",
        "volara.datasets.Labels",
        "volara.dbs.SQLite",
        "volara.lut.LUT",
    ],
}
"""Functions that the block of a package calls."""


def blocks():
    """Return the blocks of each package, those of all pages together."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = defaultdict(str)
    for package, block in re.findall(r'^```python title="([\w-]+)"\n(.*?)^```$', text, re.M | re.S):
        found[package] += block
    return found


def calls_of(source, name):
    """Return the number of arguments and the keywords of each call of a function or method."""
    return [
        (len(node.args), [keyword.arg for keyword in node.keywords])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and name in (getattr(node.func, "attr", ""), getattr(node.func, "id", ""))
    ]


@pytest.mark.parametrize("package", CALLS)
def test_the_page_calls_what_is_compared(package):
    for path in CALLS[package]:
        assert calls_of(blocks()[package], path.rpartition(".")[2]), path


@pytest.mark.parametrize(
    ("package", "path"),
    [
        pytest.param(package, path, marks=pytest.mark.needs(package))
        for package, paths in CALLS.items()
        for path in paths
    ],
)
def test_calls_fit_the_signatures(package, path):
    module = next(
        part
        for part in (path.rpartition(".")[0], path.rpartition(".")[0].rpartition(".")[0])
        if part and inspect.ismodule(_imported(part))
    )
    found = _imported(module)
    for name in path.removeprefix(f"{module}.").split("."):
        found = getattr(found, name)
    is_method = inspect.isfunction(found) and "." in path.removeprefix(f"{module}.")
    for num_arguments, keywords in calls_of(blocks()[package], path.rpartition(".")[2]):
        arguments = range(num_arguments + is_method)
        inspect.signature(found).bind(*arguments, **dict.fromkeys(keywords))


def _imported(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_network_labels_blocks_as_it_labels_the_whole(tmp_path, monkeypatch):
    """The block of torch on the page, on processors in place of GPUs."""
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = torch.nn.Conv3d(1, 1, 3, padding=1)
            with torch.no_grad():
                self.mean.weight.fill_(1 / 27 / 16)
                self.mean.bias.fill_(-165 / 16)

        def forward(self, voxels):
            return torch.sigmoid(self.mean(voxels))

    code = re.findall(r"(?s)^# torch_cells.py\n.*", blocks()["torch"], re.M)
    (tmp_path / "torch_cells.py").write_text(code[0].replace('"cuda"', '"cpu"'))
    torch.jit.script(Network()).save(tmp_path / "model.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("torch_cells")
    em = smooth_noise(1, (60, 50, 40))
    wkwdask.create_dataset("ds", (4, 4, 4))
    wkwdask.write("ds/color/1", (0, 0, 0), em, block_len=8, file_len=2)
    wkwdask.segment(
        module.cells, "ds/color/1", "ds/cells/1", halo=1, chunks=20, match="touch",
        connectivity=6, extra="ds/probability/1", setup=module.load,
    )  # fmt: skip
    labels, probability = module.cells(module.load(), em)
    found = wkwdask.read("ds/probability/1")[0]
    np.testing.assert_allclose(found, probability, rtol=1e-5)
    found = wkwdask.read("ds/cells/1")[0]
    pairs = np.unique(np.stack([found.ravel(), labels.ravel()]), axis=1)
    assert len(pairs.T) == labels.max() + 1 == found.max() + 1 > 3
    np.testing.assert_array_equal(found > 0, ndimage.label(probability > 0.5)[0] > 0)
