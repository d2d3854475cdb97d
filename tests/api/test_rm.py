"""Removals of datasets, layers and mags: other files, refusals and interruptions."""

from __future__ import annotations

import contextlib
import json
import os
from functools import partial
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import regions_of, stopping
from support.commands import run_here
from support.datasets import FILE_NAME, document_of, edit
from support.inside import limited
from support.kept_files import open_files_are_kept
from support.locks import dead_process, put_lock, this_process

import wkwdask
from wkwdask.errors import DiscardWarning, LockedError, MissingError, UnsupportedError

ARRAY = np.random.default_rng(0).integers(0, 4, (50, 41, 30)).astype(np.uint32)


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (11.24, 11.24, 28))
    for layer in ("cells", "other"):
        wkwdask.to_wkw(ARRAY, folder / layer / "1", block_len=8, file_len=2)
        wkwdask.build_pyramid(folder, layer, mags=["2-2-1"])
    return folder


def listed(folder):
    return {
        layer["name"]: [mag["path"] for mag in layer["mags"]]
        for layer in document_of(folder)["dataLayers"]
    }


def everything(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


def test_a_mag_is_removed(dataset):
    before = everything(dataset)
    found = wkwdask.rm(dataset / "cells" / "1", dry_run=True)
    assert everything(dataset) == before
    report = wkwdask.rm(dataset / "cells" / "1")
    gone = {name: content for name, content in before.items() if name.startswith("cells/1/")}
    assert (report.files, report.nbytes, report.paths) == (
        len(gone),
        sum(map(len, gone.values())),
        (f"{dataset}/cells/1",),
    )
    assert (found.files, found.nbytes, found.paths) == (report.files, report.nbytes, report.paths)
    assert listed(dataset) == {"cells": ["./cells/2-2-1"], "other": ["./other/1", "./other/2-2-1"]}
    after = everything(dataset)
    assert {name for name in after if name != FILE_NAME} == {
        name for name in before if name not in gone and name != FILE_NAME
    }
    assert not (dataset / "cells" / "1").exists()
    with pytest.raises(MissingError):
        wkwdask.rm(dataset / "cells" / "1")


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("verb", ["rm", "pyramid"])
def test_files_that_are_open_may_stay_on_nfs(dataset, verb, is_held):
    """This process closes what it has read; others may keep files, which NFS removes later."""
    layer = dataset / "cells"
    wkwdask.read(layer, mag="2-2-1")
    with contextlib.ExitStack() as held, open_files_are_kept():
        for path in sorted((layer / "2-2-1").rglob("*.wkw")) if is_held else ():
            held.enter_context(path.open("rb"))
        if verb == "rm":
            wkwdask.rm(layer, mags="2-2-1")
        else:
            wkwdask.build_pyramid(layer, mags=["2-2-1"], method="max", existing="restart")
    assert (layer / "2-2-1").exists() == (verb != "rm")
    left = [path for path in layer.glob(".wkwdask-job*/**/*") if path.is_file()]
    assert all(path.name.startswith(".nfs") for path in left)
    assert bool(left) == is_held
    assert any(layer.glob(".wkwdask-job*")) == is_held
    assert wkwdask.verify(layer).is_sound


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_a_layer_is_removed(dataset, scheduler):
    with dask.config.set(scheduler=scheduler):
        report = wkwdask.rm(dataset, layer="cells")
    assert len(report.paths) == 2
    assert listed(dataset) == {"other": ["./other/1", "./other/2-2-1"]}
    assert sorted(os.listdir(dataset)) == [FILE_NAME, "other"]
    wkwdask.rm(dataset / "other", mags="1")
    assert listed(dataset) == {"other": ["./other/2-2-1"]}


def test_a_dataset_is_removed(dataset):
    wkwdask.rm(dataset)
    assert not dataset.exists()


def test_other_files_and_folders_stay(dataset):
    (dataset / "cells" / "agglomerates").mkdir()
    (dataset / "notes.txt").write_text("mine")
    report = wkwdask.rm(dataset)
    assert report.remaining == (f"{dataset}/cells/agglomerates", f"{dataset}/notes.txt")
    assert {name for name in everything(dataset) if not name.startswith(".")} == {
        FILE_NAME,
        "notes.txt",
    }
    assert os.listdir(dataset / "cells") == ["agglomerates"]
    assert listed(dataset) == {}
    os.unlink(dataset / "notes.txt")
    os.rmdir(dataset / "cells" / "agglomerates")
    os.rmdir(dataset / "cells")
    wkwdask.rm(dataset)
    assert not dataset.exists()


def test_folders_without_a_json_are_removed(tmp_path):
    for mag in ("1", "2"):
        wkwdask.write(tmp_path / "layer" / mag, (0, 0, 0), ARRAY, block_len=8, file_len=2)
    wkwdask.rm(tmp_path / "layer" / "2")
    assert os.listdir(tmp_path / "layer") == ["1"]
    wkwdask.rm(tmp_path / "layer")
    assert os.listdir(tmp_path) == []


def test_a_listed_mag_without_files_is_removed(dataset):
    edit(
        dataset,
        lambda document: document["dataLayers"][0]["mags"].append(
            {"mag": [4, 4, 2], "path": "./cells/4-4-2"}
        ),
    )
    wkwdask.rm(dataset, layer="cells", mags="4-4-2")
    assert listed(dataset)["cells"] == ["./cells/1", "./cells/2-2-1"]


def test_refused_calls_remove_nothing(dataset, tmp_path):
    before = everything(dataset)
    with pytest.raises(MissingError, match="no layer 'x'"):
        wkwdask.rm(dataset, layer="x")
    with pytest.raises(MissingError, match="has no mag 8"):
        wkwdask.rm(dataset, layer="cells", mags=[8])
    (dataset / "cells" / "2-2-1" / "notes.txt").write_text("mine")
    with pytest.raises(UnsupportedError, match=r"2-2-1: is not a mag, or contains other files too"):
        wkwdask.rm(dataset)
    os.unlink(dataset / "cells" / "2-2-1" / "notes.txt")
    lock = put_lock(dataset / "cells" / "2-2-1", this_process("test"))
    with pytest.raises(LockedError, match="another job writes it: test"):
        wkwdask.rm(dataset / "cells")
    lock.unlink()
    assert everything(dataset) == before
    edit(dataset, lambda document: document["dataLayers"][1].update({"dataFormat": "dicom"}))
    with pytest.raises(UnsupportedError, match="stored as dicom"):
        wkwdask.rm(dataset, layer="other")
    assert wkwdask.rm(dataset).remaining == (f"{dataset}/other",)
    assert listed(dataset) == {"other": ["./other/1", "./other/2-2-1"]}


def test_links_are_not_followed(dataset, tmp_path):
    outside = tmp_path / "outside"
    os.rename(dataset / "cells", outside)
    os.symlink(outside, dataset / "cells")
    with pytest.raises(UnsupportedError, match="outside the dataset"):
        wkwdask.rm(dataset / "cells" / "1")
    os.unlink(dataset / "cells")
    (dataset / "cells").mkdir()
    os.symlink(dataset / "other" / "1", dataset / "cells" / "1")
    with pytest.raises(UnsupportedError, match="is a symbolic link"):
        wkwdask.rm(dataset, layer="cells", mags="1")
    os.unlink(dataset / "cells" / "1")
    before = everything(outside)
    os.symlink(outside / "1", dataset / "other" / "1" / "z9")
    os.symlink(outside / "1" / "header.wkw", dataset / "other" / "1" / "z0" / "y9")
    wkwdask.rm(dataset / "other" / "1")
    assert everything(outside) == before
    assert not (dataset / "other" / "1").exists()


@pytest.mark.parametrize("again", ["", "cells", "cells/1"])
def test_an_interrupted_removal_is_completed(dataset, tmp_path, again):
    """The same call or the next job in the layer completes it."""
    path = dataset / again if again else dataset
    options = {} if again == "cells/1" else {"layer": "cells", "mags": "1"}
    with (
        limited(folders_of_a_task=1),
        stopping(tmp_path / "log", 3, KeyboardInterrupt()),
        pytest.raises(KeyboardInterrupt),
    ):
        wkwdask.rm(path, **options)
    assert listed(dataset)["cells"] == ["./cells/2-2-1"]
    assert not (dataset / "cells" / "1").exists()
    assert [name for name in os.listdir(dataset / "cells") if name.startswith(".wkwdask-job-")]
    wkwdask.to_wkw(ARRAY, dataset / "cells" / "4", block_len=8) if again == "cells" else wkwdask.rm(
        dataset / "cells" / "1"
    )
    assert not [name for name in os.listdir(dataset / "cells") if name.startswith(".")]
    assert "./cells/2-2-1" in listed(dataset)["cells"]


def test_locks_of_dead_jobs_are_removed_with_the_mag(dataset):
    put_lock(dataset / "cells" / "1", dead_process())
    wkwdask.rm(dataset, layer="cells")
    assert not (dataset / "cells").exists()


def test_an_interrupted_job_is_removed_with_its_layer(dataset, tmp_path):
    """A running one is not."""
    with (
        regions_of(16),
        stopping(tmp_path / "log", 1, KeyboardInterrupt()),
        pytest.raises(KeyboardInterrupt),
    ):
        wkwdask.build_pyramid(dataset, "cells", mags=["2-2-1"], method="max", existing="overwrite")
    (job,) = (dataset / "cells").glob(".wkwdask-job-*")
    owner = json.loads((job / "owner.json").read_text())
    lock = put_lock(dataset / "cells" / "2-2-1", {**owner, "folder": str(dataset / "cells")})
    with pytest.raises(LockedError, match=f"another job works here: {owner['command']}"):
        wkwdask.rm(dataset / "cells")
    lock.unlink()
    with pytest.warns(DiscardWarning, match="1 task, .* of build_pyramid"):
        wkwdask.rm(dataset / "cells")
    assert not (dataset / "cells").exists()


def test_command(dataset):
    run = partial(run_here, "rm", dataset)

    shown = run("--layer", "cells", "--dry-run")
    assert shown.returncode == 0
    assert f"{dataset}/cells/2-2-1" in shown.output
    assert "nothing was removed" in shown.output
    assert run("--layer", "cells").returncode == 2
    assert "cells" in listed(dataset)
    assert run("--layer", "cells", typed="n\n").returncode == 130
    assert "cells" in listed(dataset)
    assert run("--layer", "cells", typed="y\n").returncode == 0
    assert "cells" not in listed(dataset)
    assert f"{dataset}/other/1" in run("--yes").output
    assert not dataset.exists()


def test_a_link_to_a_dataset_or_layer_is_refused(dataset, tmp_path):
    before = everything(dataset)
    os.symlink(dataset, tmp_path / "link")
    os.symlink(dataset / "cells", tmp_path / "cells")
    for path in (tmp_path / "link", tmp_path / "cells", tmp_path / "cells" / "1"):
        with pytest.raises(UnsupportedError, match="is a symbolic link"):
            wkwdask.rm(path)
    assert everything(dataset) == before
