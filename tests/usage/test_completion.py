"""Completion of paths, layers and mags."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.shell_completion import BashComplete, FishComplete, ZshComplete
from support.commands import COMMAND, run_here

import wkwdask


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion") / "ds"
    wkwdask.create_dataset(folder, (4, 4, 40))
    voxels = np.random.default_rng(1).integers(1, 255, (40, 40, 40)).astype(np.uint8)
    for layer in ("color", "cells"):
        wkwdask.to_wkw(voxels, folder / layer / "1", block_len=8, file_len=2)
    wkwdask.build_pyramid(folder, "color", mags=["2-2-1", "4-4-1"])
    return folder


def completed(shell, *words):
    *before, last = map(str, words)
    return [
        (item.type, item.value)
        for item in shell(COMMAND, {}, "wkwdask", "_WKWDASK_COMPLETE").get_completions(before, last)
    ]


@pytest.mark.parametrize("shell", [BashComplete, ZshComplete, FishComplete])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("info", "some/fol"), [("file", "some/fol")]),
        (("convert", "a.tif", "data"), [("file", "data")]),
        (("pyramid", "DS", "--layer", ""), [("plain", "cells"), ("plain", "color")]),
        (("pyramid", "DS", "--layer", "co"), [("plain", "color")]),
        (("pyramid", "DS", "--layer", "color", "--mags", "2-2-1,4"), [("plain", "2-2-1,4-4-1")]),
        (
            ("pyramid", "DS", "--layer", "color", "--mags", "1,"),
            [("plain", "1,2-2-1"), ("plain", "1,4-4-1")],
        ),
        (("preview", "DS", "--layer", "cells", "--mag", ""), [("plain", "1")]),
        (("labels", "DS", "--color", "co"), [("plain", "color")]),
        (("dataset", "rename-layer", "DS", "ce"), [("plain", "cells")]),
        (("dataset", "remove-mag", "DS", "color", "2"), [("plain", "2-2-1")]),
        (("pyramid", "nothing-here", "--layer", ""), []),
    ],
)
def test_completion(dataset, shell, words, expected):
    found = completed(shell, *(str(dataset) if word == "DS" else word for word in words))
    assert sorted(found) == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_with_the_printed_script(dataset, tmp_path):
    command = tmp_path / "bin" / "wkwdask"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m wkwdask "$@"\n')
    command.chmod(0o755)
    (tmp_path / "script").write_text(run_here("completion", "bash").stdout)
    typed = [
        ["wkwdask", "pyr"],
        ["wkwdask", "pyramid", str(dataset), "--all-"],
        ["wkwdask", "pyramid", str(dataset), "--layer", "c"],
    ]
    lines = [
        f"COMPREPLY=(); COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        f"_wkwdask_completion wkwdask; echo ${{COMPREPLY[*]}}"
        for words in typed
    ]
    environment = os.environ | {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(wkwdask.__file__).parents[1]),
    }
    done = subprocess.run(
        ["bash", "-c", "\n".join([". ./script", *lines])],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["pyramid"],
        ["--all-layers"],
        ["color", "cells"],
    ]


@pytest.mark.parametrize(
    ("shell", "begin"), [("zsh", "#compdef wkwdask"), ("fish", "function _wkwdask_completion")]
)
def test_other_shells_get_their_script(shell, begin):
    assert run_here("completion", shell).stdout.startswith(begin)
