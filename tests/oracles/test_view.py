"""``wkwdask view`` in the real Neuroglancer client, in a headless browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from urllib.request import urlopen

import numpy as np
import pytest
from oracles.neuroglancer_client import missing
from support.browser_page import look

import wkwdask

pytestmark = pytest.mark.needs("neuroglancer")
SHAPE = (64, 48, 40)
TOPLEFT = (100, 35, 17)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """An image of 8 bits and labels of 64 bits, with values that no other software put there."""
    folder, random = tmp_path_factory.mktemp("view") / "ds", np.random.default_rng(1)
    wkwdask.create_dataset(folder, voxel_size=(11.0, 11.0, 22.0))
    wkwdask.to_wkw(
        random.integers(1, 255, SHAPE, np.uint8),
        folder / "color" / "1",
        offset=TOPLEFT,
        block_len=16,
        file_len=2,
    )
    labels = np.kron(random.integers(1, 2**60, (8, 6, 5), np.uint64), np.ones((8, 8, 8), np.uint64))
    wkwdask.to_wkw(labels, folder / "cells" / "1", offset=TOPLEFT, block_len=16, file_len=2)
    return folder


def _state_of(view):
    with urlopen(view.url) as page:
        return json.loads(re.search(rb"const state = (.*);\n", page.read())[1])


def test_first_state(dataset):
    with wkwdask.view(dataset) as view:
        state = _state_of(view)
    assert view.notes == ()
    assert [(layer["name"], layer["type"]) for layer in state["layers"]] == [
        ("color", "image"),
        ("cells", "segmentation"),
    ]
    sources = [url for layer in state["layers"] for url in layer["source"]]
    assert [url.partition("://")[0] for url in sources] == ["zarr3", "zarr3"]
    assert state["position"] == [132.5, 59.5, 37.5]
    assert state["dimensions"] == {"x": [11e-9, "m"], "y": [11e-9, "m"], "z": [22e-9, "m"]}
    low, high = state["layers"][0]["shaderControls"]["normalized"]["range"]
    assert 1 <= low < 20 < 235 < high <= 255


@pytest.mark.parametrize("path", ["./cells/mesh", "../outside"])
def test_meshes_that_the_dataset_names_are_a_second_source(dataset, tmp_path, path):
    folder = tmp_path / "ds"
    shutil.copytree(dataset, folder)
    document = json.loads((folder / "datasource-properties.json").read_text())
    mesh = {"name": "mesh", "path": path, "dataFormat": "neuroglancerPrecomputed"}
    document["dataLayers"][1]["attachments"] = {"meshes": [mesh]}
    (folder / "datasource-properties.json").write_text(json.dumps(document))
    (folder / path).mkdir()
    (folder / path / "info").write_text('{"@type": "neuroglancer_multilod_draco"}')
    with wkwdask.view(folder) as view:
        cells = _state_of(view)["layers"][1]["source"]
        if path.startswith(".."):  # files beside the dataset are not served
            assert len(cells) == 1
            return
        assert [url.partition("://")[0] for url in cells] == ["zarr3", "precomputed"]
        with urlopen(
            cells[1].partition("://")[2].replace("DATA", f"{view.url}data") + "info"
        ) as info:
            assert json.load(info) == {"@type": "neuroglancer_multilod_draco"}


def test_options_of_the_first_view(dataset):
    with wkwdask.view(
        dataset, dataset, layer="color", position=(1, 2, 3), shader="void main() {}"
    ) as view:
        state = _state_of(view)
    assert [layer["name"] for layer in state["layers"]] == ["color", "color 2"]
    assert [layer["shader"] for layer in state["layers"]] == ["void main() {}"] * 2
    assert state["position"] == [1.5, 2.5, 3.5]
    with pytest.raises(ValueError, match="position must be three whole numbers"):
        wkwdask.view(dataset, position=(1, 2))


def test_the_command_prints_the_url_and_stops_on_ctrl_c(dataset):
    environment = {**os.environ, "SSH_CONNECTION": "10.0.0.1 5 10.0.0.7 22"}
    command = [sys.executable, "-m", "wkwdask", "view", dataset]
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        url = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/[\w-]{32}/\n", process.stdout.readline())
        assert (
            process.stderr.readline()
            == f"on your own machine: ssh -L {url[1]}:127.0.0.1:{url[1]} 10.0.0.7\n"
        )
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


needs_browser = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@needs_browser
def test_the_first_view_shows_both_layers(dataset):
    def has_colors(picture):
        return (np.ptp(picture.astype(int), axis=2) > 20).mean() > 0.2

    with wkwdask.view(dataset) as view:
        picture, messages = asyncio.run(look(view.url, has_colors))
    colored = picture[np.ptp(picture.astype(int), axis=2) > 20]
    # labels in colors, with the gray values of the image
    assert len(np.unique(colored, axis=0)) > 500
    assert [
        text
        for kind, text in messages
        if kind in ("error", "warning") and "GPU stall" not in text and "WebGL" not in text
    ] == []
