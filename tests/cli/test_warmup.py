"""``wkwdask warmup`` compiles what reading, writing and pyramids of a type need."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.commands import run_here

from wkwdask.cli import warmup
from wkwdask.kernels import compiler

USE = """
import sys, numpy as np, wkwdask
from wkwdask.cli import warmup
from wkwdask.kernels import compiler
for function, arguments in warmup._jobs("uint8", everything=False):
    function(*arguments)

def refuse(self, signature, context):
    raise AssertionError(f"{self._name}{signature} was not compiled by the warmup")

compiler._MachineCode.load_overload = refuse
folder = sys.argv[1]
wkwdask.create_dataset(folder, (4, 4, 8))
voxels = np.arange(70 * 61 * 50, dtype=np.uint8).reshape(70, 61, 50)
for method in ("median", "mean", "mode"):
    wkwdask.to_wkw(voxels, f"{folder}/{method}/1", offset=(3, 0, 5), category="color")
    wkwdask.build_pyramid(folder, method, method=method)
assert (wkwdask.read(f"{folder}/mode/1", ((3, 0, 5), (73, 61, 55)))[0] == voxels).all()
assert wkwdask.open(f"{folder}/mode/1", axes="czyx").compute().max() == 255
"""


@pytest.mark.long
def test_nothing_is_left_to_compile(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", USE, tmp_path / "ds"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_command_says_where_the_machine_code_is(tmp_path, monkeypatch):
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "kernel").write_bytes(b"")
    monkeypatch.delenv(compiler.CACHE_VARIABLE, raising=False)
    monkeypatch.setattr(compiler, "cache_folder", lambda: folder)
    monkeypatch.setattr(warmup, "_jobs", lambda dtype, everything: [(os.getpid, ())])
    done = run_here("warmup", "uint8", "--workers", "1")
    assert done.returncode == 0
    assert done.stdout.startswith(f"1 kernels in {folder}, after ")
    assert done.stderr == "compiling kernels in 1 process, once for this version\n"


def test_demo_compiles_first_in_an_empty_folder_only(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(
        warmup,
        "compile_kernels",
        lambda jobs: started.append(
            [(function.__name__, *arguments[:1]) for function, arguments in jobs]
        ),
    )
    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path)
    warmup.compile_for_demo()
    pyramids = [("_build_pyramids", "uint8"), ("_build_pyramids", "uint32")]
    assert started == [[*pyramids, ("_use_positions",)]]
    (tmp_path / "kernel").write_bytes(b"")
    warmup.compile_for_demo()
    monkeypatch.setattr(compiler, "cache_folder", lambda: None)
    warmup.compile_for_demo()
    assert len(started) == 1


def test_all_covers_every_type():
    for dtype in warmup._TYPES:
        functions = {function.__name__ for function, _ in warmup._jobs(dtype, everything=True)}
        assert functions >= {"_build_pyramids", "_use_arrays", "_use_windows"}
        assert ("_use_labels" in functions) == dtype.startswith("u")


@pytest.mark.parametrize("mode", [0o777, None])
def test_chosen_folder_must_be_usable(tmp_path, monkeypatch, mode):
    """A cache in another folder than the chosen one would help nobody."""
    folder = tmp_path / "cache"
    if mode is None:
        folder.write_bytes(b"")
    else:
        folder.mkdir()
        folder.chmod(mode)
    monkeypatch.setenv(compiler.CACHE_VARIABLE, str(folder))
    monkeypatch.setattr(compiler, "cache_folder", compiler.cache_folder.__wrapped__)
    done = run_here("warmup", "uint8")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {folder}: no folder for machine code")
