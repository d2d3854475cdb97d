"""The command line: what it prints, its exit codes, its one-line errors."""

import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import regions_of
from PIL import Image
from support.commands import run_here
from support.locks import put_lock, this_process

import wkwdask
from wkwdask.cli.options import METHODS
from wkwdask.kernels.window.reduce import METHODS as KERNEL_METHODS


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "a dataset [v2]"
    wkwdask.create_dataset(folder, (11.24, 11.24, 28))
    ramp = np.arange(40, dtype=np.uint8)
    color = np.add.outer(np.add.outer(ramp, ramp), ramp[:24])
    wkwdask.write(folder / "color" / "1", (5, 6, 7), color, block_len=8, file_len=2)
    wkwdask.write(
        folder / "cells" / "1", (5, 6, 7), (color // 30).astype(np.uint32), block_len=8, file_len=2
    )
    return folder


def test_info(dataset):
    done = run_here("info", dataset)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == str(dataset)
    assert lines[1] == "voxel size 11.24 x 11.24 x 28 nm"
    assert [line.split()[:4] for line in lines[3:]] == [
        ["color", "color", "uint8", "1"],
        ["cells", "segmentation", "uint32", "1"],
    ]
    assert "5, 6, 7 + 40, 40, 24" in lines[3]


def test_json_equals_the_result_of_info(dataset):
    done = run_here("info", dataset / "color" / "1", "--json")
    assert json.loads(done.stdout) == json.loads(
        json.dumps(wkwdask.info(dataset / "color" / "1").to_json())
    )
    (layer,) = json.loads(done.stdout)["layers"]
    assert (layer["mags"][0]["mag"], layer["mags"][0]["files"]) == ("1", 3 * 3 * 2)


def test_info_of_one_layer(dataset):
    done = run_here("info", dataset, "--layer", "cells", "--json")
    assert [layer["name"] for layer in json.loads(done.stdout)["layers"]] == ["cells"]
    missing = run_here("info", dataset, "--layer", "cell")
    assert missing.returncode == 1
    assert missing.stderr.endswith("no layer 'cell'; there are color, cells; did you mean cells?\n")


def test_an_existing_pyramid_needs_overwrite(dataset):
    done = run_here(
        "pyramid", dataset, "--layer", "color", "--method", "mean", "--coarsest", "4-4-2"
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:2]] == [
        str(dataset / "color" / mag) for mag in ("2-2-1", "4-4-2")
    ]
    assert wkwdask.open(dataset, layer="color", mag="4-4-2").shape == (1, 11, 11, 13)
    again = run_here("pyramid", dataset, "--layer", "color", "--coarsest", "4-4-2")
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1
    assert again.stderr.startswith("error: ")
    assert "--overwrite" in again.stderr
    assert (
        run_here(
            "pyramid", dataset, "--layer", "color", "--coarsest", "4-4-2", "--overwrite"
        ).returncode
        == 0
    )


# ----------------------------------------------------------------------------- options of pyramid


@pytest.fixture
def call():
    """Run the command in this process, on one thread; returns exit code, output and errors."""

    def run(*arguments):
        with dask.config.set(scheduler="synchronous"):
            done = run_here(*arguments)
        return done.returncode, done.stdout, done.stderr

    return run


def tree(folder):
    """Inode and modification time of each file, to detect writes."""
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }


def mags_of(dataset, layer="color"):
    return sorted(path.name for path in (dataset / layer).iterdir())


def damage(dataset):
    """Truncate a file of the finest mag; returns a function that repairs it."""
    path = dataset / "color" / "1" / "z1" / "y2" / "x2.wkw"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    return lambda: path.write_bytes(whole)


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--overwrite",),
        ("--resume",),
        ("--mags", "2,8"),
        ("--ignore-zero", "--method", "mean"),
        ("--block-len", 4, "--file-len", 1),
    ],
)
def test_dry_run_prints_the_plan_alone(dataset, call, more):
    before = tree(dataset)
    code, out, err = call("pyramid", dataset, "--layer", "color", "--dry-run", *more)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith(
        f"pyramid of {dataset / 'color' / '1'}, by "
        f"{'mean ignoring zeros' if more[:1] == ('--ignore-zero',) else 'median'}, stored as"
    )
    assert [line.split()[0] for line in lines[-5:]] == [
        "reads",
        "writes",
        "space",
        "memory",
        "time",
    ]
    assert "reads    18 files" in out
    assert tree(dataset) == before
    assert call("pyramid", dataset, "--layer", "color", *more)[0] == 0
    for line in lines:
        if ": up to " in line and "files" in line:
            mag, size = line.strip().split(": up to ")
            assert len(list(Path(mag).rglob("x*.wkw"))) == int(size.split()[0])


def test_dry_run_of_several_layers(dataset, call):
    _, out, _ = call("pyramid", dataset, "--all-layers", "--dry-run")
    first, second = out.split("\n\n")
    assert [text.split(",")[0] for text in (first, second)] == [
        f"pyramid of {dataset / name / '1'}" for name in ("color", "cells")
    ]
    assert "by mode" in second
    assert mags_of(dataset) == ["1"]


@pytest.mark.parametrize(
    "other", [("--update",), ("--update-content",), ("--bounding-box", "5,6,7,9,9,9")]
)
def test_dry_run_of_an_update(dataset, call, other):
    assert call("pyramid", dataset, "--layer", "color", "--mags", "2-2-1")[0] == 0
    code, out, _ = call("pyramid", dataset, "--layer", "color", "--dry-run", *other)
    assert code == 0
    assert ("nothing to do" if other == ("--update",) else "\nwrites   up to ") in out


def test_resume(dataset, call):
    repair = damage(dataset)
    command = (
        "pyramid",
        dataset,
        "--layer",
        "color",
        "--mags",
        "2,4",
        "--block-len",
        4,
        "--file-len",
        1,
    )
    with regions_of(4):
        code, _, err = call(*command)
    assert code == 3  # some tasks failed, the others are done
    assert err.count("\n") == 1  # one line, with its notes
    assert err.startswith("error: ")
    assert "x2.wkw" in err
    assert re.search(
        (
            r"finished work is kept \(\d+ tasks, .*B\): the same command resumes, --restart starts "
            r"over"
        ),
        err,
    )
    repair()
    code, _, err = call(*command, "--method", "mean", "--resume")
    assert code == 1
    assert "made with other settings: method was median, is mean" in err
    code, out, err = call(*command, "--resume")
    assert (code, err) == (0, "")
    assert mags_of(dataset) == ["1", "2", "4"]
    before = tree(dataset / "color")
    code, out, _ = call(*command, "--resume")
    assert code == 0
    assert "nothing to do: the mags were finished before with the same settings" in out
    assert {
        name: state for name, state in tree(dataset / "color").items() if not name.startswith(".")
    } == before
    code, out, _ = call(*command)
    assert code == 0
    assert "nothing to do: the mags were finished before with the same settings" in out
    code, _, err = call(*command, "--method", "mean")
    assert code == 1
    assert "--overwrite" in err
    code, _, err = call(*command, "--resume", "--overwrite")
    assert code == 2
    assert "--resume continues a run, --overwrite replaces what exists: use one of them" in err


@pytest.mark.filterwarnings("default::wkwdask.errors.DiscardWarning")
def test_restart_discards_an_interrupted_run(dataset, call):
    repair = damage(dataset)
    command = (
        "pyramid",
        dataset,
        "--layer",
        "color",
        "--mags",
        "2,4",
        "--block-len",
        4,
        "--file-len",
        1,
    )
    with regions_of(4):
        assert call(*command)[0] == 3  # some tasks failed
    repair()
    assert len(mags_of(dataset)) == 2
    code, _, err = call(*command, "--method", "max", "--overwrite")
    assert code == 1
    assert "the same settings continue it, --restart starts over" in err
    code, _, err = call(*command, "--method", "max", "--restart")
    assert code == 0
    assert err.startswith("warning: discards the finished work of an interrupted job: ")
    assert mags_of(dataset) == ["1", "2", "4"]


def test_a_locked_mag_is_waited_for(dataset, call):
    """A command ends at once where another job writes the mag, or repeats its call for a while."""
    command = ("rechunk", dataset, "--layer", "color", "--mags", "1", "--file-len", "4")
    lock = put_lock(dataset / "color" / "1", this_process())
    code, _, err = call(*command)
    assert code == 1
    assert "another job" in err
    code, _, err = call(*command, "--lock-wait", "1s")
    assert code == 1
    assert re.match(r"waiting: .*another job.*\nerror: .*another job", err), err
    threading.Timer(0.5, lock.unlink).start()
    code, _, err = call(*command, "--lock-wait", "5m")
    assert code == 0
    assert err.count("waiting: ") == 1
    assert call(*command, "--lock-wait", "soon")[0] == 2


@pytest.mark.parametrize(
    "update", [("--update",), ("--update-content",), ("--bounding-box", "5,6,7,40,40,24")]
)
def test_update(dataset, call, update):
    command = ("pyramid", dataset, "--layer", "color")
    code, _, err = call(*command, *update)
    assert code == 1
    assert "no mags that build_pyramid made from mag 1" in err
    assert call(*command, "--mags", "2,4")[0] == 0
    code, out, _ = call(*command, *update)
    assert code == 0
    assert (
        "nothing to do: no finer file has changed"
        if update == ("--update",)
        else "0 of them changed"
    ) in out
    shutil.copyfile(
        dataset / "color" / "1" / "z0" / "y1" / "x1.wkw",
        dataset / "color" / "1" / "z1" / "y1" / "x1.wkw",
    )
    before = tree(dataset / "color" / "2")
    code, out, _ = call(*command, *update)
    assert code == 0
    assert "of them changed" in out
    changed = {
        name
        for name, state in tree(dataset / "color" / "2").items()
        if before.get(name) != state and name.endswith(".wkw")
    }
    assert changed == {"z0/y0/x0.wkw"}
    shutil.copytree(dataset, dataset.parent / "fresh")
    wkwdask.build_pyramid(dataset.parent / "fresh", "color", mags=[2, 4], existing="overwrite")
    np.testing.assert_array_equal(
        wkwdask.read(dataset, layer="color", mag=4),
        wkwdask.read(dataset.parent / "fresh", layer="color", mag=4),
    )


@pytest.mark.parametrize("more", ["--overwrite", "--resume"])
def test_update_excludes_overwrite_and_resume(dataset, call, more):
    code, _, err = call("pyramid", "--layer", "color", "--update", more, dataset)
    assert code == 1
    assert "use one or the other" in err


@pytest.mark.parametrize("box", ["1,2,3", "a,b,c,d,e,f", "0,0,0,-1,1,1"])
def test_malformed_boxes_are_errors(dataset, call, box):
    commands = {
        "takes six whole numbers X,Y,Z,W,H,D": (
            "pyramid",
            dataset,
            "--layer",
            "color",
            "--bounding-box",
            box,
        ),
        "takes two corners X,Y,Z:X,Y,Z": (
            "components",
            dataset / "cells/1",
            dataset / "new/1",
            "--where",
            box,
        ),
    }
    for message, command in commands.items():
        code, _, err = call(*command)
        assert code == 2
        assert message in err
        assert repr(box) in err


def test_chosen_mags(dataset, call):
    code, out, _ = call(
        "pyramid", dataset, "--layer", "color", "--mags", "2-2-1,8-8-2", "--method", "max"
    )
    assert code == 0
    assert mags_of(dataset) == ["1", "2-2-1", "8-8-2"]
    assert [line.split(":")[0] for line in out.splitlines()[:2]] == [
        str(dataset / "color" / mag) for mag in ("2-2-1", "8-8-2")
    ]
    for more in (("--coarsest", "16"), ("--sampling", "isotropic"), ("--align-with", "none")):
        code, _, err = call("pyramid", dataset, "--layer", "color", "--mags", "16", *more)
        assert code == 1
        assert "--mags lists the mags" in err
    code, _, err = call("pyramid", dataset, "--layer", "color", "--mags", "2-2-1,,8")
    assert code == 1
    assert "a mag looks like" in err


def test_layers(dataset, call):
    code, out, _ = call(
        "pyramid", dataset, "--layer", "cells", "--layer", "color", "--coarsest", "2-2-1"
    )
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()[:2]] == [
        str(dataset / layer / "2-2-1") for layer in ("cells", "color")
    ]
    code, out, _ = call("pyramid", dataset, "--all-layers", "--mags", "16")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()[:2]] == [
        str(dataset / layer / "16") for layer in ("color", "cells")
    ]
    assert (mags_of(dataset, "cells"), mags_of(dataset)) == (["1", "16", "2-2-1"],) * 2
    code, _, err = call("pyramid", dataset, "--all-layers", "--layer", "color")
    assert code == 2
    assert "use --layer or --all-layers, not both" in err
    code, _, err = call("pyramid", dataset, "--mags", "4")
    assert code == 1
    assert "layer" in err
    assert call("pyramid", dataset / "color", "--all-layers", "--mags", "32")[0] == 0
    assert "32" in mags_of(dataset)


def test_ladders(dataset, call):
    def planned(*more):
        code, out, _ = call(
            "pyramid", dataset, "--layer", "cells", "--dry-run", "--coarsest", "4-4-4", *more
        )
        assert code == 0
        return [
            line.split(":")[0].rsplit("/", 1)[1]
            for line in out.splitlines()
            if ": up to " in line and "cells" in line
        ]

    assert call("pyramid", dataset, "--layer", "color", "--mags", "2,4-4-2")[0] == 0
    assert planned() == planned("--align-with", "color") == ["2", "4-4-2"]
    assert planned("--align-with", "none") == ["2-2-1", "4-4-2"]
    assert planned("--align-with", "none", "--sampling", "isotropic") == ["2", "4"]
    code, _, err = call("pyramid", dataset, "--layer", "cells", "--align-with", "nobody")
    assert code == 1
    assert "no other layer 'nobody' to align with" in err
    assert call("pyramid", dataset, "--layer", "color", "--sampling", "cubic")[0] == 2
    assert (
        call("pyramid", dataset, "--layer", "color", "--finest", "4-4-2", "--mags", "8-8-4")[0] == 0
    )
    assert mags_of(dataset) == ["1", "2", "4-4-2", "8-8-4"]


def test_zeros_and_lengths(dataset, call):
    code, _, err = call(
        "pyramid", dataset, "--layer", "color", "--mags", "2", "--ignore-zero", "--method", "max"
    )
    assert code == 1
    assert "ignore_zero requires method" in err
    assert (
        call(
            "pyramid",
            dataset,
            "--layer",
            "cells",
            "--mags",
            "2",
            "--ignore-zero",
            "--block-len",
            4,
            "--file-len",
            8,
            "--compression",
            "raw",
        )[0]
        == 0
    )
    cells = {layer.name: layer for layer in wkwdask.info(dataset).layers}["cells"]
    assert [(mag.block_len, mag.file_len, mag.compression) for mag in cells.mags] == [
        (8, 2, "lz4hc"),
        (4, 8, "raw"),
    ]
    source = wkwdask.read(dataset, layer="cells", mag=1)[0]
    coarse = wkwdask.read(dataset, layer="cells", mag=2)[0]
    # one voxel along x and z, two along y: nothing but zeros
    assert coarse[0, 0, 0] == source[0, :2, 0].max() == 0
    assert (coarse[7:, 7:, 4:] > 0).all()
    code, _, err = call("pyramid", dataset, "--layer", "color", "--mags", "2", "--block-len", 24)
    assert code == 1
    assert "block_len" in err


def test_a_note_about_all_layers_is_printed_once(dataset, call):
    assert (
        call(
            "pyramid",
            dataset,
            "--layer",
            "color",
            "--layer",
            "cells",
            "--mags",
            "2-2-1",
            "--resume",
        )[0]
        == 0
    )
    code, out, _ = call("pyramid", dataset, "--all-layers", "--mags", "2-2-1", "--resume")
    assert (code, out.count("nothing to do")) == (0, 1)
    assert call("pyramid", dataset, "--layer", "color", "--update")[1].count("nothing to do") == 1


def test_preview_shows_both_layers(dataset, tmp_path):
    done = run_here("preview", dataset, "-o", tmp_path / "x.png", "--size", "200")
    assert done.returncode == 0, done.stderr
    picture = np.asarray(Image.open(tmp_path / "x.png")).astype(int)
    # 40 x 40 voxels of 11.24 nm and 24 of 28 nm: the longest edge, along z, takes the 200 pixels
    assert picture.shape == (134 + 200 + 3 * 8, 134 + 200 + 3 * 8, 3)
    panel = picture[8 : 8 + 134, 8 : 8 + 134]
    assert np.ptp(panel, axis=2).max() > 40  # colours, so the segmentation is there
    alone = run_here(
        "preview", dataset, "--layer", "color", "-o", tmp_path / "y.png", "--size", "200"
    )
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
        (["pyramid", "x", "--level", "13"], 'level must be in 1..12 or "auto", got 13', 1),
        (["pyramid", "x", "--level", "best"], "expected a whole number or auto, got 'best'", 2),
        (["nonsense"], "No such command", 2),
    ],
)
def test_errors_are_short(arguments, message, code):
    done = run_here(*arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback():
    """In a process, as ``python -m wkwdask``."""
    done = subprocess.run(
        [sys.executable, "-m", "wkwdask", "info", "not-there", "--debug"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_methods_are_those_of_the_kernels():
    """The command line repeats their names, because it starts without numpy."""
    assert sorted(METHODS) == sorted(KERNEL_METHODS)


def test_only_exports_have_options_of_pictures():
    assert "TIFF options" in run_here("convert", "--help").output
    assert "TIFF options" not in run_here("pyramid", "--help").output


def test_demo_image_matches_its_segmentation(tmp_path):
    """No seams between chunks; membranes are dark where the segmentation is 0."""
    wkwdask.make_demo(tmp_path / "demo", shape=(130, 100, 60))
    color = wkwdask.read(tmp_path / "demo" / "color" / "1")[0].astype(float)
    cells = wkwdask.read(tmp_path / "demo" / "segmentation" / "1")[0]
    assert color.shape == (130, 100, 60)
    assert color[cells == 0].mean() < color[cells != 0].mean() - 20
    assert len(np.unique(cells)) > 10
    # between two chunks: 1024 is 24 voxels behind the offset
    border = np.abs(np.diff(color[23:25], axis=0)).mean()
    assert border < 1.5 * np.abs(np.diff(color, axis=0)).mean()
    names = [mag.mag.name for layer in wkwdask.info(tmp_path / "demo").layers for mag in layer.mags]
    assert names == ["1", "2-2-1", "4-4-2"] * 2
    with pytest.raises(wkwdask.ExistsError, match="not empty"):
        wkwdask.make_demo(tmp_path / "demo")
