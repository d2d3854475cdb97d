"""``--json``: each command that prints facts prints one JSON document with the keys of docs/cli.md,
also if it finds something or fails."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import click
import dask
import numpy as np
import pytest
from support.commands import COMMAND, run_here

import wkwdask
from wkwdask.clusters import check

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
WITHOUT_JSON = {"demo", "view", "submit", "cluster render", "completion"}
FOUND = 1

# Arguments, in the order in which the commands run; DS is a dataset, N5 a volume. A number is the
# exit code.
CALLS = [
    ("info", "DS"),
    ("pyramid --dry-run", "DS", "--all-layers"),
    ("pyramid", "DS", "--all-layers", "--coarsest", "2"),
    ("labels", "DS"),
    ("labels", "DS", "-o", "labels.csv"),
    ("histogram", "DS", "--layer", "nan", "--bins", "2"),
    ("contrast", "DS", "--layer", "color"),
    ("preview", "DS", "-o", "x.png", "--size", "32"),
    ("convert --dry-run", "DS", "n5://x.n5/em", "--layer", "color"),
    ("convert", "DS", "precomputed://x", "--layer", "color"),
    ("info", "precomputed://x"),
    ("upsample", "DS/cells/2", "--finest", "1", "--overwrite"),
    ("rechunk", "DS/color", "--file-len", "2"),
    ("compress", "DS/color", "--level", "3"),
    ("apply", "numpy:copy", "DS/color/1", "DS/copied/1"),
    ("apply --reduce", "numpy:count_nonzero", "DS/cells/1"),
    ("segment --dry-run", "numpy:copy", "DS/cells/1", "DS/blocks/1", "--halo", "2"),
    ("segment", "numpy:copy", "DS/cells/1", "DS/blocks/1", "--halo", "2"),
    ("meshes", "precomputed://missing", FOUND),
    ("components", "DS/cells/1", "DS/split/1"),
    ("remap", "DS/cells/1", "DS/mapped/1", "map.csv"),
    ("dust", "DS/cells/1", "DS/clean/1", "--min-voxels", "2"),
    ("renumber", "DS/cells/1", "DS/compact/1"),
    ("copy", "DS", "copy"),
    ("diff", "DS", "copy"),
    ("dataset create", "other", "4,4,4"),
    ("dataset add-ref", "other", "DS/cells"),
    ("dataset rename-layer", "DS", "copied", "old"),
    ("dataset remove-mag", "DS", "old", "1"),
    ("dataset add-mags", "DS", "old"),
    ("dataset remove-layer", "DS", "old"),
    ("dataset add-layer", "DS", "old"),
    ("dataset voxel-size", "DS", "4,4,4"),
    ("dataset bounding-box", "DS", "color", "0,0,0,8,8,8"),
    ("dataset largest-id", "DS", "cells"),
    ("rm", "copy/color", "--yes"),
    ("diff", "DS", "copy", FOUND),
    ("status", "DS"),
    ("zarr-view", "DS"),
    ("zarr-view", "DS", "--remove"),
    ("verify", "DS", "--quick"),
    ("verify --manifest", "write", "DS"),
    ("verify", "damaged", FOUND),
    ("repair", "damaged", "--dry-run", FOUND),
    ("cancel", "DS", FOUND),
    ("cluster list",),
    ("cluster check", "local", "--folder", ".", FOUND),
    ("n5-as-zarr", "N5"),
    ("tiff-prefix", "64,64", "uint8"),
    ("merge", "DS", "missing.zip", "merged", FOUND),
    ("warmup", "uint8"),
    ("doctor", "missing", FOUND),
]


def _documented():
    """Return the keys that the page names for each command."""
    documented = {}
    for names, keys in re.findall(
        r"^\| (`.*?) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    ):
        for name in re.findall(r"`([^`]+)`", names):
            documented.setdefault(name, set()).update(re.findall(r"`(\w+)`", keys))
    return documented


def _nested(name, value):
    """Yield each object in lists of an answer with its path and keys."""
    for key, items in value.items() if isinstance(value, dict) else ():
        for item in items if isinstance(items, list) and key not in ("rows", "slurm") else ():
            if isinstance(item, dict):
                yield f"{name}.{key}", set(item)
                yield from _nested(f"{name}.{key}", item)


def _names(group=COMMAND, before=""):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _names(command, f"{name} ")
        elif not command.hidden:
            yield before + name


def _parse(text):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.fixture
def volumes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wkwdask.create_dataset("DS", (4, 4, 4))
    ramp = np.arange(16**3, dtype=np.uint8).reshape(16, 16, 16)
    fractions = np.where(ramp < 9, np.nan, ramp).astype(np.float32)
    for layer, voxels in {
        "color": ramp,
        "cells": (ramp // 60).astype(np.uint32),
        "nan": fractions,
    }.items():
        wkwdask.write(
            f"DS/{layer}/1",
            (0, 0, 0),
            voxels,
            block_len=8,
            file_len=1,
            category="segmentation" if layer == "cells" else "color",
        )
    Path("map.csv").write_text("old,new\n1,7\n")
    wkwdask.to_n5(ramp[:8, :8, :8], "n5://N5/s0")
    shutil.copytree("DS", "damaged")
    Path("damaged/cells/1/z0/y0/x0.wkw").write_bytes(b"WKW")
    monkeypatch.setattr("wkwdask.cli.warmup.compile_kernels", lambda *_: None)
    monkeypatch.setattr(
        check, "check_cluster", lambda *_: [check.Finding("memory", "1 GB", False, "raise memory")]
    )


def test_each_command_that_prints_facts_has_documented_json(volumes):
    documented = _documented()
    assert {name.partition(" --")[0] for name in documented if "." not in name} - {
        "mags",
        "--dry-run",
        "reason",
    } == set(_names()) - WITHOUT_JSON
    with dask.config.set(scheduler="synchronous"):
        for name, *arguments in CALLS:
            code = arguments.pop() if arguments and arguments[-1] == FOUND else 0
            done = run_here(*name.split(), *arguments, "--json")
            assert done.returncode == code, f"{name} {arguments}: {done.stderr}"
            answer = _parse(done.stdout)
            found = (
                set().union(*answer)
                if isinstance(answer, list)
                else set(answer)
                if isinstance(answer, dict)
                else set()
            )
            if found != {"error", "kind"}:
                assert found <= documented[name] or name == "n5-as-zarr", name
            for one in answer if isinstance(answer, list) else [answer]:
                for path, keys in _nested(name.split()[0], one):
                    if not path.startswith("n5-as-zarr"):
                        assert keys <= documented.get(path, documented["mags"]) | (
                            documented["mags"] if path.endswith(".mags") else set()
                        ), path


def test_a_check_that_cannot_be_made_differs_from_one_that_finds_something(tmp_path):
    missing = tmp_path / "no"
    for command in (
        ("verify", missing),
        ("repair", missing),
        ("diff", missing, tmp_path),
        ("cluster", "check", "no", "--folder", tmp_path),
    ):
        done = run_here(*command, "--json")
        assert (done.returncode, _parse(done.stdout)["kind"]) == (2, "MissingError"), command
        assert done.stderr.startswith("error: ")


def test_notes_name_options(tmp_path):
    wkwdask.to_wkw(np.ones((8, 8, 8), np.uint8), tmp_path / "ds/em/1", voxel_size=(4, 4, 4))
    done = run_here("upsample", tmp_path / "ds", "--finest", "1", "--json")
    assert json.loads(done.stdout)["note"].endswith("--mags names existing mags to make again")
