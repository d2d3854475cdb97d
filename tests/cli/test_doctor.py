"""``wkwdask doctor``: what is missing is named with its remedy."""

from __future__ import annotations

import json
import sys
from importlib import metadata

import pytest
from support.commands import run_here

import wkwdask
from wkwdask.kernels import compiler

OF_THE_MACHINE = ("kernels", "free memory", "free /dev/shm", "open files")


def _findings(*urls):
    done = run_here("doctor", *urls, "--json")
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == (0 if all(finding["is_fine"] for finding in findings.values()) else 1)
    return findings


def test_a_sound_machine_is_fine(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    found = _findings(tmp_path / "ds")
    assert [
        finding
        for name, finding in found.items()
        if not finding["is_fine"] and name not in OF_THE_MACHINE
    ] == []
    assert found["numpy"]["value"] == metadata.version("numpy")
    assert {
        "python",
        "wkwdask",
        "dask",
        "extra remote",
        "sbatch",
        "free memory",
        "open files",
        str(tmp_path / "ds"),
    } <= set(found)
    assert not any(
        name.startswith("extra ") and name.split()[1] in ("test", "dev") for name in found
    )


@pytest.mark.parametrize(
    ("variables", "is_red"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colors_are_for_terminals_and_respect_no_color(tmp_path, monkeypatch, variables, is_red):
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    line = run_here("doctor", tmp_path / "missing").stdout.splitlines()[-1]
    assert ("\x1b[31mWRONG" in line, "WRONG" in line) == (is_red, True)


def test_what_is_wrong_is_named_with_its_remedy(tmp_path, monkeypatch):
    installed = metadata.version

    def version(name):
        if name == "zarr":
            raise metadata.PackageNotFoundError(name)
        return "1.0" if name == "numpy" else installed(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv(compiler.CACHE_VARIABLE, str(tmp_path))
    compiler.cache_folder.cache_clear()
    try:
        found = _findings(tmp_path / "missing")
    finally:
        monkeypatch.undo()
        compiler.cache_folder.cache_clear()
    wrong = {name: finding["remedy"] for name, finding in found.items() if not finding["is_fine"]}
    assert set(wrong) >= {"numpy", "bytecode", "kernels", str(tmp_path / "missing")}
    assert wrong["numpy"].startswith("pip install 'numpy>=")
    assert "unset PYTHONDONTWRITEBYTECODE" in wrong["bytecode"]
    assert "wkwdask warmup" in wrong["kernels"]
    assert "no such folder" in found[str(tmp_path / "missing")]["value"]
    extra = found["extra zarr"]
    assert (extra["is_fine"], extra["remedy"]) == (True, "pip install 'wkwdask[zarr]'")
    assert "zarr" in extra["value"].removeprefix("without ").split(", ")
