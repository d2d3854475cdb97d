"""README.md and the pages of docs/: every command and Python block of a page runs in order, in a
folder with the demo dataset.

Blocks in ``text`` are shown only. Python blocks whose title is the name of other software run where
it is installed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shlex
import shutil
import sys
import traceback
import warnings
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from support import annotations
from support.commands import run_here

from wkwdask.formats import registry

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    "README.md",
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))),
]
EXTRAS = (
    "DracoPy",
    "compresso",
    "h5py",
    "imagecodecs",
    "isal",
    "matplotlib",
    "neuroglancer",
    "pandas",
    "pyarrow",
    "pyfqmr",
    "scipy",
    "tifffile",
    "zarr",
    "zmesh",
)
PACKAGES = {
    "cellpose": "cellpose",
    "cloud-volume": "cloudvolume",
    "dask-image": "dask_image",
    "igneous": "igneous",
    "ngff-zarr": "ngff_zarr",
    "scikit-image": "skimage",
    "stardist": "stardist",
    "tensorstore": "tensorstore",
    "torch": "torch",
    "volara": "volara",
    "webknossos": "webknossos",
    "zarr-python": "zarr",
}
"""Titles of blocks, and the packages that they need."""

SKIPPED = {
    "pip install .": "installs from the network",
    "wkwdask convert precomputed://gs://bucket/em ": "a bucket",
    'import wkwdask\n\nurl = "https://host/datasets/': "a server",
    'import wkwdask\n\narray = wkwdask.open("https://host/': "a server",
    'import wkwdask\n\ncube = wkwdask.read(\n    "s3://lab-bucket/': "a bucket",
    "import wkwdask\n\nsource = "
    '"precomputed://https://host/em"': "a server; tests of remote verbs run it",
    'wkwdask.sample("n5://s3://bucket/volume.n5/em/s0"': "a bucket",
    "python3 -m venv .venv ": "installs from the network",
    "python3 -m pip install ": "installs from the network",
    "wkwdask view ": "serves until it is interrupted",
    "napari ": "opens a window",
    "wkwdask demo demo-dataset": "runs first",
    "wkwdask doctor ": "the answer depends on the machine",
    "wkwdask submit ": "SLURM",
    "wkwdask status demo-dataset --follow": "a job of SLURM to follow",
    "sed 's/^jobs: 10/": "makes a configuration for SLURM",
    "import numpy as np\nimport torch": "test_training runs it",
    "import torch\nfrom patches": "test_training runs it",
    "wkwdask cluster check mine.yaml ": "SLURM",
    "wkwdask pyramid demo-dataset --layer segmentation --overwrite --cluster mine.yaml": "SLURM",
}
"""Prefixes of commands and Python blocks that are skipped, and the reason."""


@dataclass(frozen=True)
class Step:
    """A Python block, a command or a file, and the output that the page shows for it."""

    line: int
    text: str
    is_python: bool
    printed: str = ""
    file: str = ""
    """Name of the file that the text becomes."""


def read_steps(text):
    """List the steps of a page. A block that begins with a comment of a file name is a file. One
    without language and commands is the output of a step."""
    steps = []
    for match in re.finditer(
        r'^```(\w*)(?: title="([^"]*)")?\n(.*?)^```$', text, re.MULTILINE | re.DOTALL
    ):
        line, block = text.count("\n", 0, match.start()) + 2, match[3]
        if (
            match[1] == "text"
            or block.startswith("python3 -m venv ")
            or not find_spec(PACKAGES.get(match[2], "wkwdask"))
        ):
            # shown only, the two commands that install, and code of other software that is not
            # installed
            continue
        if match[1] == "json":  # to paste into what another program reads
            json.loads(block)
            continue
        named = re.match(r"# (\w+\.(?:py|toml))\n", block)
        if named is not None:
            steps.append(Step(line, block, False, file=named[1]))
        elif match[1] == "python":
            steps.append(Step(line, block, True))
        elif block.startswith("$ "):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, printed = part.partition("\n")
                steps.append(Step(line, command.partition("  #")[0].strip(), False, printed))
                line += part.count("\n")
        else:
            assert not match[1], (
                f"line {line}: a block in {match[1]} is neither Python nor commands"
            )
            steps[-1] = replace(steps[-1], printed=block)
    return steps


def make_input_of_readers(folder):
    """Sections of 12 bits, an HDF5 volume, two annotations of the demonstration dataset, an
    agglomerate file and a merger-mode NML."""
    import h5py
    import tifffile

    random = np.random.default_rng(0)
    for name in ("raw", "sections", "agglomerates"):
        (folder / name).mkdir()
    for z in range(8):
        tifffile.imwrite(
            folder / "raw" / f"section_{z}.tif", random.integers(0, 4096, (100, 120), np.uint16)
        )
        tifffile.imwrite(
            folder / "sections" / f"{z}.tif", random.integers(0, 256, (100, 120), np.uint8)
        )
    with h5py.File(folder / "volume.h5", "w") as file:
        file["raw"] = random.integers(0, 256, (20, 30, 40), np.uint8)
    with h5py.File(folder / "agglomerates" / "view_70.hdf5", "w") as file:
        file["segment_to_agglomerate"] = np.arange(1_200_000, dtype=np.uint64) // 2
    for name, block in (("first", (32, 64, 10)), ("second", (40, 70, 12))):
        annotations.write_annotation(
            folder / f"{name}_annotation.zip",
            {"1": {block: np.full((32, 32, 32), 1_200_000)}},
            "segmentation",
            "demo-dataset",
        )
    nodes = '<node id="1" x="1200" y="2100" z="350"/><node id="2" x="1300" y="2300" z="400"/>'
    (folder / "merger_mode.nml").write_text(
        f'<things><thing id="1"><nodes>{nodes}</nodes><edges/></thing></things>'
    )


def run_python(step, names):
    """Run a block as the interactive interpreter does and return its output; values in comments
    after expressions are compared."""
    lines, printed = step.text.splitlines(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        nodes = ast.parse(step.text).body
        for node in nodes:
            source = ast.get_source_segment(step.text, node)
            if not isinstance(node, ast.Expr):
                exec(source, names)
                continue
            value = eval(source, names)
            comment = lines[node.end_lineno - 1][node.end_col_offset :].strip().removeprefix("# ")
            if re.match(r"[\d(\[]", comment) and not comment.startswith((str(value), repr(value))):
                raise AssertionError(f"{source}: the page says {comment!r}, found {value!r}")
            if node is nodes[-1] and step.printed and value is not None:
                print(repr(value))
    return printed.getvalue()


def run_command(step):
    program, *arguments = shlex.split(step.text)
    assert program == "wkwdask", f"only commands of wkwdask can run here, found {program}"
    done = run_here(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def comparable(text, folder):
    """Remove the folder and all measured numbers."""
    text = text.replace(f"{folder}/", "")
    text = re.sub(r"\d[\d.]* s\b", "N s", text)
    text = re.sub(r"\d[\d.,]* MB/s", "N MB/s", text)
    text = re.sub(r"memory +about .*", "memory about N", text)
    text = re.sub(r"on \d+ workers? like this machine's cores?", "on N workers", text)
    text = re.sub(r"\d[\d.]* .B free", "N free", text)
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def differs(printed, found, folder):
    """Compare line by line; a line of three dots stands for any lines."""
    pattern = "\n".join(
        ".*" if line == "..." else re.escape(line)
        for line in comparable(printed, folder).splitlines()
    )
    return printed and not re.fullmatch(pattern, comparable(found, folder), re.DOTALL)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    done = run_here("demo", folder / "demo-dataset")
    assert done.returncode == 0, done.stderr
    make_input_of_readers(folder)
    return folder


@pytest.fixture
def folder(start, tmp_path, monkeypatch):
    shutil.copytree(start, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_added", [])
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.delenv("WKWDASK_CLUSTER", raising=False)
    return tmp_path


@pytest.mark.needs(*EXTRAS)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if read_steps((ROOT / page).read_text(encoding="utf-8"))]
)
def test_the_blocks_of_a_page_print_what_it_shows(page, folder):
    problems, names = [], {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as a reader's interpreter does, these are no errors
        for step in read_steps((ROOT / page).read_text(encoding="utf-8")):
            if step.text.startswith(tuple(SKIPPED)):
                continue
            if step.file:
                (folder / step.file).write_text(step.text, encoding="utf-8")
                continue
            try:
                found = run_python(step, names) if step.is_python else run_command(step)
                if differs(step.printed, found, folder):
                    problems.append(
                        f"{page}, line {step.line}: {step.text.strip()}\nprints\n{found}\nand not\n"
                        f"{step.printed}"
                    )
            except (Exception, SystemExit):
                problems.append(
                    f"{page}, line {step.line}: {step.text.strip()}\n"
                    f"{traceback.format_exc(limit=-3)}"
                )
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
    assert not problems, "\n\n".join(problems)


def test_skipped_blocks_are_on_a_page():
    texts = [
        step.text
        for page in PAGES
        for step in read_steps((ROOT / page).read_text(encoding="utf-8"))
    ]
    assert [
        beginning for beginning in SKIPPED if not any(text.startswith(beginning) for text in texts)
    ] == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
