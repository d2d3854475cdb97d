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
from wkwdask.kernels import compiler
folder = sys.argv[1]
wkwdask.create_dataset(folder, (4, 4, 8))
voxels = np.arange(70 * 61 * 50, dtype=np.uint8).reshape(70, 61, 50)
for method in ("median", "mean", "mode"):
    wkwdask.to_wkw(voxels, f"{folder}/{method}/1", offset=(3, 0, 5), category="color")
    wkwdask.build_pyramid(folder, method, method=method)
assert (wkwdask.read(f"{folder}/mode/1", ((3, 0, 5), (73, 61, 55)))[0] == voxels).all()
assert wkwdask.open(f"{folder}/mode/1", axes="czyx").compute().max() == 255
assert not compiler._say_that_it_compiles.cache_info().currsize
"""


def test_nothing_is_left_to_compile(tmp_path):
    environment = os.environ | {"WKWDASK_CACHE_DIR": "./cache/"}
    command = [sys.executable, "-m", "wkwdask", "warmup", "uint8", "--workers", "1"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "cache").iterdir()
    assert done.stdout.startswith(f"{len(list(folder.iterdir()))} kernels in cache/{folder.name}, after ")
    assert done.stderr == "compiling kernels in 1 process, once for this version\n"
    done = subprocess.run([sys.executable, "-c", USE, tmp_path / "ds"], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_demo_compiles_first_in_an_empty_folder_only(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(warmup, "compile_kernels", lambda jobs, workers: started.append(([arguments[0] for _, arguments in jobs], workers)))
    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path)
    warmup.compile_for_demo(2)
    assert started == [(["uint8", "uint32"], 2)]
    (tmp_path / "kernel").write_bytes(b"")
    warmup.compile_for_demo(2)
    monkeypatch.setattr(compiler, "cache_folder", lambda: None)
    warmup.compile_for_demo(2)
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
