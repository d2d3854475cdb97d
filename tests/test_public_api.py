"""The public names: sorted, importable one by one, documented, and light to import."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from support.options_reference import reference
from support.public_surface import GOLDEN, surface

import wkwdask
from wkwdask.api.options import StorageKeywords
from wkwdask.formats.n5.options import N5Options
from wkwdask.formats.precomputed.options import PrecomputedOptions
from wkwdask.formats.registry import storage_records
from wkwdask.formats.wkw.options import WkwOptions
from wkwdask.formats.zarr.options import ZarrOptions
from wkwdask.model.options import options_of

RECORDS = storage_records(exports=True)
REFERENCE = Path(__file__).parent.parent / "docs" / "options.md"
FUNCTIONS = [name for name in wkwdask.__all__ if inspect.isfunction(getattr(wkwdask, name))]
CLASSES = [name for name in wkwdask.__all__ if inspect.isclass(getattr(wkwdask, name))]

# Packages that take long to load; numpy loads with the first name that needs it.
HEAVY = (
    "numpy",
    "numba",
    "llvmlite",
    "lz4",
    "dask",
    "distributed",
    "xarray",
    "pandas",
    "scipy",
    "PIL",
    "click",
    "rich",
    "http.server",
    "asyncio",
)


def test_all_is_sorted_and_unique():
    assert list(wkwdask.__all__) == sorted(set(wkwdask.__all__))


def test_names_resolve():
    for name in wkwdask.__all__:
        value = getattr(wkwdask, name)
        assert value.__module__.split(".")[0] == "wkwdask"
        assert value.__name__ == name
    assert set(FUNCTIONS) | set(CLASSES) == set(wkwdask.__all__)
    assert {"open", "read", "to_wkw", "build_pyramid"} <= set(FUNCTIONS)


def test_surface_is_as_recorded():
    """No name, parameter or default changes by accident; ``python -m support.public_surface``
    records a change that is meant."""
    assert surface().splitlines() == GOLDEN.read_text().splitlines()


def test_dir_lists_the_names():
    assert set(wkwdask.__all__) <= set(dir(wkwdask))


def test_unknown_name():
    with pytest.raises(AttributeError, match="module 'wkwdask' has no attribute 'opens'"):
        _ = wkwdask.opens


def test_type_checkers_see_the_same_names():
    """The imports for type checkers name exactly what is loaded on demand."""
    tree = ast.parse(inspect.getsource(wkwdask))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    found = {alias.asname or alias.name: node.module for node in block.body for alias in node.names}
    assert found == {name: getattr(wkwdask, name).__module__ for name in wkwdask.__all__}


@pytest.mark.parametrize("name", ["to_n5", "to_precomputed", "to_wkw", "to_zarr"])
def test_type_checkers_see_the_same_options(name):
    """The overloads of a function have its parameters, of the same types."""
    function = getattr(wkwdask, name)
    parameters = {
        key: each.annotation for key, each in inspect.signature(function).parameters.items()
    }
    assert (parameters.pop("url"), parameters.pop("compute")) == ("str | os.PathLike[str]", "bool")
    assert parameters.pop("array") == "da.Array | npt.NDArray[Any] | DataArray"
    options = getattr(
        sys.modules[function.__module__], f"{name.removeprefix('to_').capitalize()}Keywords"
    )
    assert {
        key: each.__forward_arg__ for key, each in options.__annotations__.items()
    } == parameters
    record = {
        "to_n5": N5Options,
        "to_precomputed": PrecomputedOptions,
        "to_wkw": WkwOptions,
        "to_zarr": ZarrOptions,
    }[name]
    names = [key for key, _ in options_of(record)]
    assert [key for key in parameters if key in names] == names


def test_type_checkers_see_the_same_options_of_any_format():
    """The overloads of ``save`` have its parameters and all storage options."""
    parameters = {
        key: each.annotation for key, each in inspect.signature(wkwdask.save).parameters.items()
    }
    for name in ("array", "url", "compute"):
        parameters.pop(name)
    assert parameters.pop("options") == "Unpack[StorageKeywords]"
    module = sys.modules[wkwdask.save.__module__]
    own = {
        key: each.__forward_arg__
        for key, each in module.SaveKeywords.__annotations__.items()
        if key not in StorageKeywords.__annotations__
    }
    assert own == parameters
    assert StorageKeywords.__annotations__.items() <= module.SaveKeywords.__annotations__.items()


def test_type_checkers_see_all_storage_options():
    assert set(StorageKeywords.__annotations__) == {
        name for record in RECORDS for name, _ in options_of(record)
    }


def test_the_reference_of_options_is_current():
    """``python tests/test_public_api.py`` writes it."""
    assert REFERENCE.read_text() == reference(RECORDS)


def test_version():
    """All files that a release needs state the same version."""
    root = REFERENCE.parent.parent
    patterns = {
        "pyproject.toml": r'^version = "(\S+)"',
        "CITATION.cff": r"^version: (\S+)",
        "CHANGELOG.md": r"\A# Changelog\n\n## (\S+)",
        "cluster-configs/kubernetes.yaml": r"wkwdask:(\S+)",
    }
    found = {
        name: set(re.findall(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE))
        for name, pattern in patterns.items()
    }
    assert found == {name: {wkwdask.__version__} for name in patterns}
    assert version("wkwdask") == wkwdask.__version__


def _sections(text):
    """Split a numpydoc docstring into its sections."""
    parts = re.split(r"^([A-Z][A-Za-z ]+)\n-{3,}\n", inspect.cleandoc(text), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def _documented(section):
    names = re.findall(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: : .*)?$", section, flags=re.MULTILINE)
    return [name.strip().lstrip("*") for line in names for name in line.split(",")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring(name):
    function = getattr(wkwdask, name)
    sections = _sections(function.__doc__)
    summary = sections[""].strip().split("\n")[0]
    assert summary.endswith(".")
    parameters = list(inspect.signature(function).parameters)
    assert parameters
    # each once, in the order of the signature
    assert _documented(sections["Parameters"]) == parameters
    assert "Returns" in sections
    assert "Raises" in sections


@pytest.mark.parametrize("name", CLASSES)
def test_class_docstring(name):
    assert inspect.cleandoc(getattr(wkwdask, name).__doc__).split("\n")[0].endswith((".", ")"))


def _loaded_after(code):
    report = "import sys\nprint(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{code}\n{report}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_import_is_light():
    before = _loaded_after("")
    loaded = _loaded_after("import wkwdask; assert wkwdask.__all__") - before
    assert "wkwdask" in loaded
    assert [name for name in HEAVY if name in loaded] == []
    assert {name for name in loaded if name.startswith("wkwdask.")} == set()


def test_records_need_no_array_library():
    loaded = _loaded_after("from wkwdask import BoundingBox, FormatError, Mag")
    assert [module for module in HEAVY if module in loaded] == []


def test_verbs_load_without_schedulers_and_compilers():
    """Numba, dask, distributed and xarray load when a call first needs them."""
    loaded = _loaded_after("from wkwdask import build_pyramid, open, plan_pyramid, read")
    assert [
        module
        for module in ("numba", "llvmlite", "dask", "distributed", "xarray", "pandas")
        if module in loaded
    ] == []


if __name__ == "__main__":
    REFERENCE.write_text(reference(RECORDS))
