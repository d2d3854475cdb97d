"""What a process imports before it works: a command, a first read, a worker. Each import that is
not needed costs time and memory in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import wkwdask
from wkwdask.clusters.config import load_config
from wkwdask.clusters.connect import local_client
from wkwdask.graphs.local_run import _process_pool

ARRAYS = {"numpy"}
SCHEDULERS = {"dask", "distributed"}
COMPILERS = {"llvmlite", "numba"}
# What can only come with something else: dask.array imports the first four where they are
# installed, numba the fifth where it compiles.
LARGE = {
    "dask.array",
    "pandas",
    "pyarrow",
    "xarray",
    "scipy.linalg",
    "bokeh",
    "matplotlib",
    "zarr",
    "tensorstore",
    "aiohttp",
}


LOADED = f"sorted({ARRAYS | SCHEDULERS | COMPILERS | LARGE} & set(__import__('sys').modules))"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "ds"
    wkwdask.create_dataset(folder, (4, 4, 35))
    wkwdask.to_wkw(
        np.ones((16, 16, 16), np.uint8),
        folder / "color" / "1",
        block_len=8,
        file_len=2,
        category="color",
    )
    # machine code of the kernels is there from now on
    wkwdask.read(folder / "color" / "1", ((1, 0, 0), (12, 16, 16)))
    return folder


def _loaded_after(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint('\\n', *{LOADED})"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *output, modules = done.stdout.splitlines()
    return set(modules.split()), output


def _command(*arguments):
    """Return code that runs a command in its process and survives its end."""
    words = ["wkwdask", *map(str, arguments)]
    return (
        f"import sys\nfrom wkwdask.cli import main\nsys.argv = {words}\ntry:\n    main()\nexcept "
        "SystemExit as stop:\n    assert not stop.code, stop.code"
    )


@pytest.mark.parametrize("module", ["wkwdask.cli", "wkwdask.cli.convert", "wkwdask.api.access"])
@pytest.mark.parametrize(
    "interrupt",
    ["raise KeyboardInterrupt", "raise RuntimeError('in a class') from KeyboardInterrupt()"],
)
def test_an_interrupt_during_imports_is_told_in_one_word(module, interrupt, dataset):
    code = (
        "import runpy, sys\nclass Interrupted:\n    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n            {interrupt}\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        f"sys.argv = ['wkwdask', 'info', {str(dataset)!r}]\n"
        "runpy.run_module('wkwdask', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "interrupted")


@pytest.mark.parametrize("arguments", [("--help",), ("pyramid", "--help"), ("--version",)])
def test_help_needs_no_arrays(arguments):
    modules, output = _loaded_after(_command(*arguments))
    assert any("wkwdask" in line for line in output)
    assert modules == set()


def test_completion_of_a_command_needs_no_arrays():
    complete = {
        "_WKWDASK_COMPLETE": "bash_complete",
        "COMP_WORDS": "wkwdask pyr",
        "COMP_CWORD": "1",
    }
    modules, output = _loaded_after(_command(), **complete)
    assert output[0] == "plain,pyramid"
    assert modules == set()


def test_completion_of_a_layer_needs_numpy_only(dataset):
    complete = {
        "_WKWDASK_COMPLETE": "bash_complete",
        "COMP_WORDS": f"wkwdask pyramid {dataset} --layer ",
        "COMP_CWORD": "4",
    }
    modules, output = _loaded_after(_command(), **complete)
    assert output[0] == "plain,color"
    assert modules == {"numpy"}


@pytest.mark.parametrize("words", [("info",), ("info", "--json")])
def test_info_needs_numpy_only(dataset, words):
    modules, output = _loaded_after(_command(words[0], dataset, *words[1:]))
    assert any("color" in line for line in output)
    assert modules == {"numpy"}


def test_read_needs_neither_dask_nor_scipy(dataset):
    modules, _ = _loaded_after(
        f"import wkwdask\nassert wkwdask.read({str(dataset / 'color' / '1')!r}, ((1, 0, 0), (12, "
        "16, 16))).all()"
    )
    assert modules == {"numpy", "numba", "llvmlite"}


@pytest.mark.long
def test_open_needs_no_compiler(dataset):
    array_alone, _ = _loaded_after("import dask.array")
    modules, _ = _loaded_after(
        f"import wkwdask\nassert wkwdask.open({str(dataset / 'color' / '1')!r}).shape == (1, 16, "
        "16, 16)"
    )
    assert modules == array_alone
    assert not modules & COMPILERS


def test_workers_of_a_cluster_start_small(tmp_path):
    with local_client(
        load_config({"kind": "local", "workers": 1, "local-directory": str(tmp_path)})
    ) as client:
        (modules,) = client.run(lambda: eval(LOADED)).values()
    assert set(modules) == {"numpy", "dask", "distributed"}


def test_workers_of_a_local_cluster_keep_freed_memory_as_any_process_does(tmp_path, monkeypatch):
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    with local_client(
        load_config({"kind": "local", "workers": 1, "local-directory": str(tmp_path)})
    ) as client:
        (threshold,) = client.run(lambda: os.environ.get("MALLOC_TRIM_THRESHOLD_")).values()
    assert threshold is None


def test_processes_of_a_pool_start_small():
    with _process_pool(1) as pool:
        assert set(pool.submit(eval, LOADED).result()) <= {"numpy"}
