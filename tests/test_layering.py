"""The floors of the house: a module imports only lower floors, or its own folder.

Imports are read from the source, those inside functions and for type checkers included: an arrow is
an arrow.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import wkwdask

PACKAGE = Path(wkwdask.__file__).resolve().parent
FLOORS = {
    "array_types": -1,
    "errors": 0, "geometry": 0, "kernels": 0,
    "plans": 1,
    "model": 2,
    "streams": 3, "store": 3,
    "formats": 4,
    "runs": 5,
    "verbs": 6,
    "ids": 7,
    "meshing": 8,
    "graphs": 9,
    "api": 10, "cli": 10, "clusters": 10, "viewer": 10, "xarray": 10, "__main__": 10, "": 10,
}  # fmt: skip
TOP = FLOORS["api"]
WITHOUT_DASK = FLOORS["graphs"] - 1  # the highest floor that never imports dask
HAS_NO_FILES = {
    "array_types",
    "errors",
    "geometry",
    "kernels",
    "plans",
    "model",
    "streams",
    "formats",
    "runs",
    "verbs",
    "ids",
    "meshing",
    "graphs",
    "api",
    "viewer",
    "xarray",
}
"""Folders whose modules reach files through ``store`` alone. ``clusters`` writes scripts, and
``cli`` its own output."""
HAS_FILES = {
    "kernels.compiler": "the cache of compiled kernels lies in a folder of the user",
    "runs.job": "errors leave out the lines of this package, by its path",
    "graphs.job_array": "SLURM must be allowed to write the logs",
    "viewer.preview": "the picture goes where the caller says, and the path is returned",
}
"""Modules of these that touch files all the same, and why."""
FILE_MODULES = {"glob", "mmap", "pathlib", "shutil", "tempfile"}
HARMLESS = {
    "PathLike",
    "_exit",
    "environ",
    "environb",
    "fspath",
    "getpid",
    "register_at_fork",
    "strerror",
    "stat_result",
}
"""Names of ``os`` that touch no file."""
BY_PATH = {
    "api.conversion": "patterns of paths",
    "formats.leftovers": "moves files into the quarantine",
    "formats.n5.target": "where the links above a new folder lead",
    "formats.as_zarr.n5_view": "temporary files of killed calls",
    "formats.pictures.array_file": "files of the user; scratch files without a name",
    "formats.pictures.image_stack": "files of the user",
    "formats.pictures.images": "files of the user",
    "formats.pictures.scratch": "scratch files without a name",
    "formats.pictures.sources": "patterns of paths; files of the user",
    "formats.precomputed.target": "where the links above a new folder lead",
    "formats.webknossos.copies": "folders that a copy has created",
    "formats.zarr.target": "where the links above a new folder lead",
    "ids.faces": "scratch files that are read at any offset",
    "ids.id_map": "tables of the user, read in parts",
    "ids.id_source": "a table of the user that is mapped into memory",
    "ids.sorted_runs": "scratch tables that are mapped into memory",
    "ids.stitching": "scratch tables that are read in parts",
    "meshing.plan": "scratch files of a sample",
    "runs.garbage": "temporary files of killed jobs",
    "runs.job_folder": "publishes folders",
    "runs.region_records": "temporary files of killed jobs",
    "runs.staged": "folders that a job has created; the size of interrupted jobs",
    "runs.staged_files": "the size of results in buckets",
    "verbs.remove": "counts and deletes folders",
    "verbs.update.in_place": "temporary files of killed jobs",
    "verbs.update.new_levels": "copies of objects",
    "verbs.write": "temporary files of killed jobs",
}
"""Modules above ``store`` that use its functions by path (``store.by_path``, ``store.new_files``),
and for what. All others reach bytes, names, links and folders through a ``Store`` and its
``folders``; none imports ``store.files``."""
FORMAT_FOLDERS = {"n5", "pictures", "precomputed", "webknossos", "wkw", "zarr"}
MOST_MODULES = 25  # in one folder, __init__ not counted


def _module_name(path, root):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _package_nodes(path):
    return _parse(path)


def _parse(path):
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def _nodes(path):
    """Return all nodes of a module; those of the package, which no test changes, are parsed
    once."""
    return (_package_nodes if path.is_relative_to(PACKAGE) else _parse)(path)


def _imported(nodes, module, is_package, package):
    """Return (line, absolute module name) of every import; ``from a import b`` counts as ``a.b``,
    since ``b`` may be a module."""
    parent = [package, *module.split(".")] if module else [package]
    if not is_package:
        parent = parent[:-1]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parent[: len(parent) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, (ast.Name, ast.Attribute))
            and node.args
        ):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            argument = node.args[0]
            if (
                name in ("import_module", "__import__")
                and isinstance(argument, ast.Constant)
                and isinstance(argument.value, str)
            ):
                yield node.lineno, argument.value


def _touched(nodes):
    """Return (line, call) of everything that touches files: the builtin ``open``, functions of
    ``os`` and ``numpy``, modules of the standard library."""
    for node in nodes:
        if isinstance(node, ast.Name) and node.id == "open" and isinstance(node.ctx, ast.Load):
            yield node.lineno, "open"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if (node.value.id == "os" and node.attr not in HARMLESS) or name in (
                "io.open",
                "np.fromfile",
                "np.memmap",
                "np.load",
            ):
                yield node.lineno, name
        elif isinstance(node, ast.Import):
            yield from (
                (node.lineno, alias.name) for alias in node.names if alias.name in FILE_MODULES
            )
        elif isinstance(node, ast.ImportFrom) and node.module in FILE_MODULES:
            yield node.lineno, node.module
        elif isinstance(node, ast.ImportFrom) and node.module in (
            "os",
            "os.path",
            "io",
            "builtins",
        ):
            harmless = HARMLESS if node.module == "os" else {"BytesIO", "StringIO", "TextIOWrapper"}
            yield from (
                (node.lineno, f"{node.module}.{alias.name}")
                for alias in node.names
                if alias.name not in harmless
            )


def broken_arrows(root, package="wkwdask"):
    """List every import and every open that breaks the rules, as ``file:line: what``."""
    found = []
    for path in sorted(root.rglob("*.py")):
        module = _module_name(path, root)
        folder = module.split(".")[0]
        where = f"{path.relative_to(root).as_posix()}"
        if folder not in FLOORS:
            found.append(f"{where}:1: {folder} is on no floor")
            continue
        floor = FLOORS[folder]
        nodes = _nodes(path)
        for line, name in _imported(nodes, module, path.name == "__init__.py", package):
            top, _, rest = name.partition(".")
            if top in ("dask", "distributed") and floor <= WITHOUT_DASK:
                found.append(f"{where}:{line}: {folder} imports {name}")
            if top != package:
                continue
            target = rest.split(".")[0]
            target = target if target in FLOORS else ""
            allowed = target == folder or FLOORS[target] < floor or FLOORS[target] == floor == TOP
            if not allowed:
                found.append(f"{where}:{line}: {folder or package} imports {target or package}")
        if folder in HAS_NO_FILES and module not in HAS_FILES:
            found += [
                f"{where}:{line}: {folder} touches files by {name}"
                for line, name in _touched(nodes)
            ]
    return found


@pytest.mark.long
def test_the_house():
    assert broken_arrows(PACKAGE) == []


def imports_of(root, package="wkwdask"):
    """Return what each module imports of the package; a package that is imported for a name in it
    counts as its ``__init__``."""
    modules = {_module_name(path, root): path for path in sorted(root.rglob("*.py"))}
    found = {}
    for module, path in modules.items():
        found[module] = set()
        for _, name in _imported(_nodes(path), module, path.name == "__init__.py", package):
            top, _, target = name.partition(".")
            while top == package and target and target not in modules:
                target = target.rpartition(".")[0]
            if top == package and target != module:
                found[module].add(target)
    return found


def circles(imports):
    """List the circles of modules that import each other, directly or through others."""
    waiting = {module: set(targets) for module, targets in imports.items()}
    while ends := [module for module, targets in waiting.items() if not targets & waiting.keys()]:
        for module in ends:
            del waiting[module]
    is_reached = True
    while is_reached:  # modules that only import a circle are none of it
        targets = set().union(*waiting.values()) if waiting else set()
        before = len(waiting)
        waiting = {module: of for module, of in waiting.items() if module in targets}
        is_reached = len(waiting) < before
    return sorted(waiting)


def test_exceptions_are_needed():
    """Each module that may touch files does."""
    for module in HAS_FILES:
        assert list(_touched(_nodes(PACKAGE / f"{module.replace('.', '/')}.py"))), module


def test_no_circle():
    assert circles(imports_of(PACKAGE)) == []


def test_a_circle_is_found(tmp_path):
    (tmp_path / "a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from wkwdask.b import B"
    )
    (tmp_path / "b.py").write_text("def f():\n    from wkwdask import c")
    (tmp_path / "c.py").write_text("import wkwdask.a")
    (tmp_path / "d.py").write_text("import wkwdask.a\nimport wkwdask.e")
    (tmp_path / "e.py").write_text("x = 1")
    assert circles(imports_of(tmp_path)) == ["a", "b", "c"]


def test_folders_are_small():
    folders = {path for path in PACKAGE.rglob("*") if path.is_dir()}
    counts = {
        folder.relative_to(PACKAGE).as_posix(): sum(
            path.name != "__init__.py" for path in folder.glob("*.py")
        )
        for folder in folders
    }
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def unused_names(root):
    """Private names at the top of modules that nothing in their module uses."""
    unused = []
    for path in sorted(root.rglob("*.py")):
        defined, used = set(), set()
        nodes = _nodes(path)
        for node in nodes[0].body:
            targets = node.targets if isinstance(node, ast.Assign) else [node]
            names = {getattr(target, "id", getattr(target, "name", None)) for target in targets}
            if isinstance(node, ast.AnnAssign):
                names = {getattr(node.target, "id", None)}
            defined |= {name for name in names - {None} if re.match("_[^_]", name)}
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.update(re.findall(r"\w+", node.value))  # types as text, __all__
        unused += [f"{path.relative_to(root)}: {name}" for name in sorted(defined - used)]
    return unused


def test_private_names_are_used(tmp_path):
    assert unused_names(PACKAGE) == []
    (tmp_path / "a.py").write_text(
        "_A = 1\n_B: int = 2\n_C = D = 3\ndef _e(): return _B\nclass _F: pass\n"
    )
    assert unused_names(tmp_path) == ["a.py: _A", "a.py: _C", "a.py: _F", "a.py: _e"]


def test_all_floors_were_seen():
    """The checker reads the real package: every lower folder of the table is there, with modules in
    it."""
    folders = {_module_name(path, PACKAGE).split(".")[0] for path in PACKAGE.rglob("*.py")}
    assert {
        "errors",
        "geometry",
        "formats",
        "kernels",
        "plans",
        "streams",
        "store",
        "runs",
        "verbs",
        "graphs",
        "api",
    } <= folders
    imports = [
        name
        for path in PACKAGE.rglob("*.py")
        for _, name in _imported(_nodes(path), "", True, "wkwdask")
    ]
    assert len([name for name in imports if name.startswith("wkwdask.")]) > 50


BROKEN = [
    # file, source, what is found
    ("geometry/x.py", "from wkwdask.model.voxel_type import by_dtype", "geometry imports model"),
    ("geometry/x.py", "import wkwdask.store.files", "geometry imports store"),
    # the same floor, another folder
    ("geometry/x.py", "from wkwdask import errors", "geometry imports errors"),
    ("formats/wkw/x.py", "from wkwdask.graphs.read import read", "formats imports graphs"),
    # inside a function
    ("formats/wkw/x.py", "def f():\n    from wkwdask.runs import job", "formats imports runs"),
    ("formats/wkw/x.py", "from ...runs import job", "formats imports runs"),  # relative
    (
        "streams/x.py",
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from "
            "wkwdask.formats.wkw.header import WkwHeader"
        ),
        "streams imports formats",
    ),
    ("store/x.py", "import wkwdask", "store imports wkwdask"),
    ("store/x.py", "from wkwdask import read", "store imports wkwdask"),
    ("graphs/x.py", "from wkwdask.api import open", "graphs imports api"),
    (
        "runs/x.py",
        "import importlib\nimportlib.import_module('wkwdask.graphs.runners')",
        "runs imports graphs",
    ),
    ("runs/x.py", "import dask.array as da", "runs imports dask.array"),
    (
        "runs/x.py",
        "def f():\n    from distributed import Client",
        "runs imports distributed.Client",
    ),
    (
        "model/x.py",
        "def f(path):\n    with open(path) as file:\n        return file.read()",
        "model touches files by open",
    ),
    ("kernels/x.py", "import os\nfd = os.open('a', 0)", "kernels touches files by os.open"),
    ("plans/x.py", "from os import open as o", "plans touches files by os.open"),
    ("formats/wkw/x.py", "import os\nos.fspath(os.path)", "formats touches files by os.path"),
    ("runs/x.py", "def f(path):\n    from shutil import rmtree", "runs touches files by shutil"),
    ("verbs/x.py", "from pathlib import Path", "verbs touches files by pathlib"),
    ("ids/x.py", "import numpy as np\nnp.memmap('a')", "ids touches files by np.memmap"),
    ("attic/x.py", "x = 1", "attic is on no floor"),
]


@pytest.mark.parametrize(("name", "source", "message"), BROKEN)
def test_the_checker_can_fail(tmp_path, name, source, message):
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_text(source, encoding="utf-8")
    found = broken_arrows(tmp_path)
    assert len(found) == 1
    assert found[0].startswith(f"{name}:")
    assert message in found[0]


ALLOWED = [
    ("geometry/x.py", "from wkwdask.geometry.mag import Mag\nfrom . import grid"),
    (
        "formats/wkw/x.py",
        (
            "from wkwdask.errors import FormatError\nfrom ..voxel_type import by_dtype\nimport "
            "numpy, json"
        ),
    ),
    ("graphs/x.py", "import dask.array as da\nfrom wkwdask.runs.job import Job"),
    (
        "api.py",
        "from wkwdask.viewer.demo import make_demo\nimport wkwdask\nfrom wkwdask import cli",
    ),
    ("cli/x.py", "from wkwdask import api, open\nopen('a')"),
    ("store/x.py", "import os\nos.open('a', 0)\nopen('b')"),
    (
        "api/x.py",
        "import os\nfrom wkwdask.store import store\nstore.open_store(os.environ['A'])",
    ),
    ("clusters/x.py", "import shutil\nopen('b')"),
    ("streams/x.py", "def f(volume):\n    return volume.open()"),
    ("xarray/backend.py", "import wkwdask.api"),
]


@pytest.mark.parametrize(("name", "source"), ALLOWED)
def test_the_checker_allows(tmp_path, name, source):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
    assert broken_arrows(tmp_path) == []


FORMATS = ["wkw", "webknossos", "precomputed", "n5", "zarr", "pictures"]
NAMES = {
    *FORMATS,
    "zarr2",
    "zarr3",
    "ngff",
    *(f"{name}://" for name in (*FORMATS, "zarr2", "zarr3")),
}
NAMES_FORMATS = {
    "__init__": "public names",
    "api.access": "info",
    "api.codecs": "offset_codec, pad_codec, tiff_prefix, tiff_shard_codec",
    "api.datasets": "datasource-properties.json",
    "api.layers": "datasource-properties.json",
    "api.saving": "an error that names datasource-properties.json",
    "api.segmentations": "volume annotations of WEBKNOSSOS",
    "api.statistics": "the view of a layer in datasource-properties.json",
    "api.to_n5": "to_n5",
    "api.to_precomputed": "to_precomputed",
    "api.to_wkw": "to_wkw",
    "api.to_zarr": "to_zarr",
    "api.zarr_views": "zarr_view, n5_as_zarr, n5_store",
    "viewer.demo": "makes a dataset of WEBKNOSSOS",
    "viewer.layers": "serves layers as Zarr",
    "viewer.mesh_picture": "meshes",
    "viewer.client_state": "the scheme of meshes",
    "xarray.accessor": "xarray's accessor",
    "xarray.backend": "xarray's engines",
    # pictures and arrays in files, which no registry lists
    "ids.id_source": "tables in HDF5 and npy",
    "verbs.diff": "images",
    "verbs.export": "images",
    "verbs.image_import": "images",
    "verbs.sources": "images",
    # what only WEBKNOSSOS has
    "ids.remap_layer": "NML",
    "ids.survey": "datasource-properties.json",
    # meshes are files of one format
    "meshing.grid": "positions in a fragment",
    "meshing.fragments": "levels of a manifest",
    "meshing.shard_tasks": "manifests and shards",
    "meshing.plan": "info of a volume and of its meshes",
    # what follows goes when options and summaries are asked of the registry
    "api.checks": "verify",
    "api.options": "the type of sharding=",
    "api.pyramids": "build_pyramid",
    "cli.segmentations": "options",
    "cli.tables": "summaries of datasets",
    "store.paths": "an error that lists prefixes",
}
"""Modules outside of formats that name one, and why."""
ALL_MAY = ("formats.", "verbs.webknossos.")
"""Folders in which every module may."""


def names_of_formats(root, package="wkwdask"):
    """Yield ``file:line: what`` of every import of a format, and of every string that is the name
    of one, outside of formats."""
    for path in sorted(root.rglob("*.py")):
        module = _module_name(path, root)
        if f"{module}.".startswith(ALL_MAY) or (module or "__init__") in NAMES_FORMATS:
            continue
        nodes = _nodes(path)
        where = path.relative_to(root).as_posix()
        for line, name in _imported(nodes, module, path.name == "__init__.py", package):
            parts = name.split(".")
            if parts[:2] == [package, "formats"] and len(parts) > 2 and parts[2] in FORMATS:
                yield f"{where}:{line}: imports {name}"
        for node in nodes:
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value in NAMES
            ):
                yield f"{where}:{node.lineno}: names {node.value}"


def test_formats_are_named_in_few_places():
    assert list(names_of_formats(PACKAGE)) == []


def test_a_name_of_a_format_is_found(tmp_path):
    for folder in ("api", "formats"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "new.py").write_text(
            "from wkwdask.formats.n5.layer import is_n5\nfrom wkwdask.formats import registry\n"
            "name = 'zarr'\n"
        )
    assert list(names_of_formats(tmp_path)) == [
        "api/new.py:1: imports wkwdask.formats.n5.layer.is_n5",
        "api/new.py:3: names zarr",
    ]


def test_formats_have_no_types_outside():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        nodes = _nodes(path)
        if f"{_module_name(path, PACKAGE)}.".startswith(ALL_MAY):
            continue
        classes = {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("wkwdask.formats.")
            for alias in node.names
        }
        calls = (
            node
            for node in nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "isinstance"
        )
        for call in calls:
            asked = {node.id for node in ast.walk(call.args[1]) if isinstance(node, ast.Name)}
            found += [f"{path.name}:{call.lineno}: {name}" for name in sorted(asked & classes)]
    assert found == []


def importers(root, *targets):
    """Return the modules above ``store`` that import one of some modules."""
    return {
        module
        for module, imported in imports_of(root).items()
        if module.split(".")[0] != "store" and imported & set(targets)
    }


def test_modules_that_reach_files_beside_a_store():
    assert importers(PACKAGE, "store.files") == set()
    assert importers(PACKAGE, "store.by_path", "store.new_files") == BY_PATH.keys()


def meetings(root):
    """Return the imports of one format by another: what several need lies beside them."""
    found = []
    for module, imported in imports_of(root).items():
        floor, _, name = module.partition(".")
        own = name.split(".")[0]
        for target in sorted(imported) if floor == "formats" else ():
            other = target.removeprefix("formats.").split(".")[0]
            if (
                target.startswith("formats.")
                and {own, other} <= FORMAT_FOLDERS
                and own != other
                and (own, other) != ("webknossos", "wkw")
            ):
                found.append(f"{module} imports {target}")
    return found


def test_formats_do_not_import_each_other():
    """A dataset of WEBKNOSSOS is made of WKW. ``formats.as_zarr`` knows two formats."""
    assert {path.name for path in (PACKAGE / "formats").iterdir() if path.is_dir()} - {
        "__pycache__",
        "as_zarr",
    } == FORMAT_FOLDERS
    assert meetings(PACKAGE) == []


def test_a_format_that_imports_another_is_found(tmp_path):
    for name, code in (("n5", "from wkwdask.formats.zarr import ngff"), ("zarr", "")):
        (tmp_path / "formats" / name).mkdir(parents=True)
        (tmp_path / "formats" / name / "ngff.py").write_text(code)
    assert meetings(tmp_path) == ["formats.n5.ngff imports formats.zarr.ngff"]


def test_an_import_beside_the_store_is_found(tmp_path):
    code = {
        "store/files.py": "",
        "store/locks.py": "from wkwdask.store import files",
        "ids/a.py": "def f():\n    from wkwdask.store import files",
        "verbs/b.py": "from wkwdask.store.files import isdir",
        "verbs/c.py": "from wkwdask.store.store import store_at",
    }
    for name, text in code.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert importers(tmp_path, "store.files") == {"ids.a", "verbs.b"}
