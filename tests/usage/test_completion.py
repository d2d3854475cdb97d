"""Completion of paths, layers and mags."""

from __future__ import annotations

import numpy as np
import pytest
from click.shell_completion import BashComplete, FishComplete, ZshComplete
from support.commands import COMMAND

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
    return [(item.type, item.value) for item in shell(COMMAND, {}, "wkwdask", "_WKWDASK_COMPLETE").get_completions(before, last)]


@pytest.mark.parametrize("shell", [BashComplete, ZshComplete, FishComplete])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("info", "some/fol"), [("file", "some/fol")]),
        (("convert", "a.tif", "data"), [("file", "data")]),
        (("pyramid", "DS", "--layer", ""), [("plain", "cells"), ("plain", "color")]),
        (("pyramid", "DS", "--layer", "co"), [("plain", "color")]),
        (("pyramid", "DS", "--layer", "color", "--mags", "2-2-1,4"), [("plain", "2-2-1,4-4-1")]),
        (("pyramid", "DS", "--layer", "color", "--mags", "1,"), [("plain", "1,2-2-1"), ("plain", "1,4-4-1")]),
        (("preview", "DS", "--layer", "cells", "--mag", ""), [("plain", "1")]),
        (("dataset", "rename-layer", "DS", "ce"), [("plain", "cells")]),
        (("dataset", "remove-mag", "DS", "color", "2"), [("plain", "2-2-1")]),
        (("pyramid", "nothing-here", "--layer", ""), []),
    ],
)
def test_completion(dataset, shell, words, expected):
    found = completed(shell, *(str(dataset) if word == "DS" else word for word in words))
    assert sorted(found) == expected
