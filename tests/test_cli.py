"""The command line: what it prints, its exit codes, its one-line errors."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import wkwdask
from wkwdask.formats.datasource import FILE_NAME, format_datasource, new_document


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "a dataset [v2]"
    folder.mkdir()
    (folder / FILE_NAME).write_text(format_datasource(new_document("ds", (11.24, 11.24, 28))))
    ramp = np.arange(40, dtype=np.uint8)
    color = np.add.outer(np.add.outer(ramp, ramp), ramp[:24])
    wkwdask.write(folder / "color" / "1", (5, 6, 7), color, block_len=8, file_len=2)
    wkwdask.write(folder / "cells" / "1", (5, 6, 7), (color // 30).astype(np.uint32), block_len=8, file_len=2)
    return folder


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "wkwdask", *map(str, arguments)], capture_output=True, text=True, check=False)


def test_info(dataset):
    done = run("info", dataset)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == str(dataset)
    assert lines[1] == "voxel size 11.24 x 11.24 x 28 nm"
    assert [line.split()[:4] for line in lines[3:]] == [["color", "color", "uint8", "1"], ["cells", "segmentation", "uint32", "1"]]
    assert "5, 6, 7 + 40, 40, 24" in lines[3]


def test_info_json_is_what_info_gives(dataset):
    done = run("info", dataset / "color" / "1", "--json")
    assert json.loads(done.stdout) == json.loads(json.dumps(wkwdask.info(dataset / "color" / "1").to_json()))
    assert json.loads(done.stdout)["layers"][0]["mags"][0]["files"] == 3 * 3 * 2


def test_pyramid_and_its_refusal(dataset):
    done = run("pyramid", dataset, "--layer", "color", "--method", "mean", "--coarsest", "4-4-2")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:2]] == [str(dataset / "color" / mag) for mag in ("2-2-1", "4-4-2")]
    assert wkwdask.open(dataset, layer="color", mag="4-4-2").shape == (1, 11, 11, 13)
    again = run("pyramid", dataset, "--layer", "color", "--coarsest", "4-4-2")
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1
    assert again.stderr.startswith("error: ")
    assert "--overwrite" in again.stderr
    assert run("pyramid", dataset, "--layer", "color", "--coarsest", "4-4-2", "--overwrite").returncode == 0


def test_preview_shows_both_layers(dataset, tmp_path):
    done = run("preview", dataset, "-o", tmp_path / "x.png", "--size", "200")
    assert done.returncode == 0, done.stderr
    picture = np.asarray(Image.open(tmp_path / "x.png")).astype(int)
    # 40 x 40 voxels of 11.24 nm and 24 of 28 nm: the longest edge, along z, takes the 200 pixels
    assert picture.shape == (134 + 200 + 3 * 8, 134 + 200 + 3 * 8, 3)
    panel = picture[8 : 8 + 134, 8 : 8 + 134]
    assert np.ptp(panel, axis=2).max() > 40  # colours, so the segmentation is there
    alone = run("preview", dataset, "--layer", "color", "-o", tmp_path / "y.png", "--size", "200")
    assert alone.returncode == 0, alone.stderr
    grey = np.asarray(Image.open(tmp_path / "y.png")).astype(int)[8 : 8 + 100, 8 : 8 + 134]
    assert np.ptp(grey, axis=2).max() == 0
    assert grey[:, -10:].mean() > grey[:, :10].mean() + 50  # the ramp grows along x


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["info", "not-there"], "error: ", 1),
        (["pyramid", "not-there"], "error: ", 1),
        (["info"], "Missing argument", 2),
        (["pyramid", "x", "--level", "13"], "13 is not in the range", 2),
        (["nonsense"], "No such command", 2),
    ],
)
def test_errors_are_short(arguments, message, code):
    done = run(*arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback():
    assert "Traceback" in run("info", "not-there", "--debug").stderr


@pytest.mark.parametrize("command", ["info", "pyramid", "preview", "demo"])
def test_help_teaches(command):
    done = run(command, "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout
    assert f"wkwdask {command}" in done.stdout


def test_demo_dataset_fits_together(tmp_path):
    """Chunks that are made apart are one picture; membranes are dark where the segmentation is 0."""
    wkwdask.make_demo(tmp_path / "demo", shape=(160, 130, 70))
    color = wkwdask.read(tmp_path / "demo" / "color" / "1")[0].astype(float)
    cells = wkwdask.read(tmp_path / "demo" / "segmentation" / "1")[0]
    assert color.shape == (160, 130, 70)
    assert color[cells == 0].mean() < color[cells != 0].mean() - 20
    assert len(np.unique(cells)) > 10
    border = np.abs(np.diff(color[23:25], axis=0)).mean()  # between two chunks: 1024 is 24 voxels behind the offset
    assert border < 1.5 * np.abs(np.diff(color, axis=0)).mean()
    names = [mag.mag.name for layer in wkwdask.info(tmp_path / "demo").layers for mag in layer.mags]
    assert names == ["1", "2-2-1", "4-4-2"] * 2
    with pytest.raises(wkwdask.ExistsError, match="not empty"):
        wkwdask.make_demo(tmp_path / "demo")
