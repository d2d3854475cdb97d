"""Errors name options of commands on the command line, and arguments of functions in Python."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.cli import messages
from wkwdask.clusters import connect
from wkwdask.errors import BoundsError, TaskFailedError, WkwDaskError
from wkwdask.formats.axes import REMEDY


@pytest.fixture
def dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    voxels = np.random.default_rng(1).integers(1, 255, (40, 40, 40)).astype(np.uint8)
    for layer in ("one", "two"):
        wkwdask.to_wkw(voxels, tmp_path / f"ds/{layer}/1", block_len=8, file_len=2)
    return tmp_path / "ds"


def test_errors_name_options_or_arguments(dataset):
    wkwdask.build_pyramid(dataset, "one", mags=["2"])
    calls = [
        (["pyramid", dataset], "--layer", lambda: wkwdask.build_pyramid(dataset), "layer="),
        (
            ["pyramid", dataset / "one", "--mags", "2", "--method", "min"],
            "--overwrite replaces",
            lambda: wkwdask.build_pyramid(dataset / "one", mags=["2"], method="min"),
            'existing="overwrite"',
        ),
        (
            ["pyramid", dataset / "one", "--mags", "2", "--coarsest", "4"],
            "--mags lists the mags; --coarsest, --sampling and --align-with choose them",
            lambda: wkwdask.build_pyramid(dataset / "one", mags=["2"], coarsest=4),
            "mags= lists the mags; coarsest=, sampling= and align_with= choose them",
        ),
        (
            ["apply", "numpy:copy", dataset / "one/1", "--reduce", "--halo", "1"],
            "--halo and --mask need a target",
            lambda: wkwdask.apply(np.copy, dataset / "one/1", halo=1),
            "halo= and mask= need a target",
        ),
        (
            ["apply", "numpy:max", dataset / "one/1", "--reduce", "--overwrite", "--level", "5"],
            "of no use without a target: --overwrite, --level",
            lambda: wkwdask.apply(np.max, dataset / "one/1", existing="overwrite", level=5),
            'of no use without a target: existing="overwrite", level=',
        ),
    ]
    for command, on_command_line, call, in_python in calls:
        done = run_here(*command)
        assert done.returncode == 1
        assert on_command_line in done.stderr
        assert not re.search(r"\w+=", done.stderr), done.stderr
        with pytest.raises((WkwDaskError, ValueError)) as failed:
            call()
        assert in_python in str(failed.value)
        assert "--" not in str(failed.value)


def test_the_library_names_no_options_of_commands():
    package = Path(wkwdask.__file__).parent
    for path in package.rglob("*.py"):
        if path.parent.name != "cli":
            assert not re.search(
                r"""["'(= ](--(layer|mag|overwrite|voxel-size|dtype|method|allow-external))\b""",
                path.read_text(),
            ), path


def test_a_box_outside_of_an_array_names_both_boxes(dataset):
    xr = pytest.importorskip("xarray")
    coordinates = {
        axis: (axis, (np.arange(10) + 0.5) * 4, {"units": "nm", "mag": 1, "voxel_size_nm": 4.0})
        for axis in "xyz"
    }
    array = xr.DataArray(np.zeros((10, 10, 10), np.uint8), coordinates, dims=("x", "y", "z"))
    xr.open_dataarray(dataset / "one" / "1", engine="wkw")  # registers the accessor
    assert array.wkw.crop_nm(x=(0, 20)).shape == (5, 10, 10)
    with pytest.raises(
        BoundsError,
        match=(
            r"the box x 100 to 200, y 0 to 40 does not touch the array along x; the array has x 0 "
            r"to 40, y 0 to 40"
        ),
    ):
        array.wkw.crop_nm(x=(100, 200), y=(0, 40))
    with pytest.raises(
        BoundsError, match=r"the box z start to -4 does not touch the array along z"
    ):
        array.wkw.crop_nm(z=(None, -4))


def test_an_absent_scheduler_is_an_error_within_seconds(dataset, monkeypatch):
    assert connect._ADDRESS_SECONDS <= 10
    monkeypatch.setattr(connect, "_ADDRESS_SECONDS", 0.3)
    done = run_here("pyramid", dataset / "one", "--scheduler", "tcp://127.0.0.1:9")
    assert done.returncode == 1
    assert (
        "tcp://127.0.0.1:9: no dask scheduler answered within 0.3 s; check that it runs, and its "
        "address" in done.stderr
    )
    with (
        pytest.raises(TaskFailedError, match=r"within 0\.2 s"),
        wkwdask.cluster("tcp://127.0.0.1:9", timeout=0.2),
    ):
        pass


def test_remedies_are_commands_and_options_that_exist(dataset, tmp_path):
    np.save(tmp_path / "cube.npy", np.ones((4, 4, 4), np.uint8))
    (tmp_path / "empty").mkdir()
    for command, remedy in [
        (["convert", tmp_path / "cube.npy", tmp_path / "new"], "such as --voxel-size 4,4,35 in nm"),
        (["dataset", "voxel-size", tmp_path / "empty", "8,8,8"], "; wkwdask dataset create makes"),
        (
            ["copy", dataset / "one", tmp_path / "moved", "--translate=-1024,0,0"],
            "move it with --translate,",
        ),
        (
            ["convert", tmp_path / "cube.npy", tmp_path / "em.ome.zarr", "--pyramid"],
            "--pyramid is not for it; wkwdask pyramid makes the coarser mags afterwards",
        ),
        (["labels", dataset / "one", "--color", "two2"], "; there are one, two; did you mean two?"),
    ]:
        done = run_here(*command)
        assert done.returncode == 1
        assert remedy in done.stderr
    with pytest.raises(BoundsError, match="move it with translate=,"):
        wkwdask.copy(dataset / "one", tmp_path / "moved", translate=(-1024, 0, 0))


def test_a_call_with_an_argument_is_a_command_with_an_option():
    assert messages.on_command_line(f"1 axis; {REMEDY}") == (
        "1 axis; wkwdask convert --axes states other ones, such as --axes zyxc, with - for an axis "
        "of length 1"
    )
    assert messages.on_command_line('meshes(existing="overwrite") makes them again') == (
        "wkwdask meshes --overwrite makes them again"
    )
    assert messages.on_command_line("where=((0, 0, -5), (10, 10, 10)) lies outside") == (
        "--where 0,0,-5:10,10,10 lies outside"
    )
    assert messages.on_command_line("convert() it to WKW") == "convert() it to WKW"
