"""Damaged records of jobs: any bytes are understood, or named in one of our errors, and nothing but
the dataset changes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal

import dask
import pytest
from click.testing import CliRunner
from faults.drivers import regions_of, stopping
from safety.mutations import MUTATIONS, mutated
from safety.test_job_records import (
    NEW,
    OPTIONS,
    ended_owner,
    fork,
    killed_between_record_and_rename,
    make_dataset,
    tree,
)
from support.commands import COMMAND

import wkwdask
from wkwdask.errors import CorruptError, WkwDaskError

EVERY = 25
"""Of so many mutations, one is tried by a job that writes; ``status`` reads all."""


def write(folder):
    wkwdask.to_wkw(NEW, folder / "color" / "1", existing="overwrite", **OPTIONS)


def remove(folder):
    wkwdask.rm(folder / "color" / "2")


def to_precomputed(folder):
    wkwdask.to_precomputed(
        NEW, folder / "scales", voxel_size=(4, 4, 4), chunk_shape=(32, 32, 32), existing="overwrite"
    )


def to_n5(folder):
    wkwdask.to_n5(NEW[0], folder / "em.n5" / "raw" / "s0", existing="overwrite")


def to_zarr(folder):
    pytest.importorskip("zarr", reason="the extra zarr")
    wkwdask.to_zarr(NEW, folder / "em.ome.zarr", voxel_size=(4, 4, 4), existing="overwrite")


def resume(folder):
    with regions_of(8):
        wkwdask.build_pyramid(folder, "color", mags=["2"], method="max", existing="resume")


def update(folder):
    wkwdask.build_pyramid(folder, "color", update=True)


def export(folder):
    wkwdask.convert(folder / "color" / "1", folder / "out.npy")


def element(folder):
    (root,) = (folder / "color").glob(".wkwdask-job-*")
    _invoke("batch-element", root, "0")


def interrupted(job, folder):
    """Stop a job after its first task."""
    log = folder.parent.parent / "log"
    with (
        contextlib.suppress(KeyboardInterrupt),
        stopping(log, 1, KeyboardInterrupt()),
        regions_of(8),
    ):
        job(folder)


def pyramid_stopped(folder):
    """An interrupted pyramid that has been shared out, with lines of its progress and of what
    failed."""
    interrupted(
        lambda folder: wkwdask.build_pyramid(
            folder, "color", mags=["2"], method="max", existing="overwrite"
        ),
        folder,
    )
    (root,) = (folder / "color").glob(".wkwdask-job-*")
    size = {"elements": None, "cpus": None, "seconds": None, "memory_nbytes": None}
    one = {
        "array": "7",
        "finish": "8",
        "tasks": 3,
        "elements": 1,
        "journaled": 1,
        "time": 1.5,
        "file": "round-0.tasks",
    }
    batch = {
        "arguments": ["pyramid"],
        "folder": "/",
        "script": "",
        "logs": "/",
        "size": size,
        "options": [],
        "rounds": [one],
    }
    (root / "batch.json").write_text(json.dumps({"layout": 1, **batch}))
    progress = {
        "title": "p",
        "done": 1,
        "known": 0,
        "total": 8,
        "failed": 0,
        "nbytes_in": 8,
        "nbytes_out": 8,
        "seconds": 1.5,
        "workers": 1,
        "time": 9e9,
    }
    (root / "progress-0.jsonl").write_text(f"{json.dumps(progress)}\n" * 3)
    failure = {"task": "t", "name": "file", "reason": "no", "attempts": 2, "time": 1.5, "host": "h"}
    (root / "failures-0.jsonl").write_text(f"{json.dumps(failure)}\n")
    groups = [[0, 9, 1, "0" * 64], [9, 9, 1, "0" * 64]]
    (root / "round-0.tasks.index").write_text(json.dumps({"groups": groups}))
    (root / "round-0.tasks").write_bytes(b"0" * 18)


def locked(folder):
    """A layer with the locks that dead jobs left."""
    (folder / "color" / ".1.wkwdask-lock").write_text(json.dumps(ended_owner("A")))
    (folder / "color" / ".1.B.wkwdask-region-lock").write_text(
        json.dumps(ended_owner("B", region=[[0, 0, 0], [1, 1, 1]]))
    )


def killed(job):
    def begin(folder):
        if job in (to_precomputed, to_n5, to_zarr):  # there is something to replace
            job(folder)
        assert fork(killed_between_record_and_rename, job, folder) == -signal.SIGKILL

    return begin


# what is damaged: how it came to be, which file it is, and the job that meets it
RECORDS = {
    "publish": (killed(write), "color/.wkwdask-job-*/publish.json", write),
    "removal": (killed(remove), "color/.wkwdask-job-*/publish.json", write),
    "publish_scales": (
        killed(to_precomputed),
        "scales/.wkwdask-job-*/publish.json",
        to_precomputed,
    ),
    "publish_n5": (killed(to_n5), "em.n5/raw/.wkwdask-job-*/publish.json", to_n5),
    "publish_zarr": (killed(to_zarr), "em.ome.zarr/.wkwdask-job-*/publish.json", to_zarr),
    "plan": (pyramid_stopped, "color/.wkwdask-job-*/plan.json", resume),
    "owner": (pyramid_stopped, "color/.wkwdask-job-*/owner.json", resume),
    "journal": (pyramid_stopped, "color/.wkwdask-job-*/journal-0.jsonl", resume),
    "progress": (pyramid_stopped, "color/.wkwdask-job-*/progress-0.jsonl", resume),
    "failures": (pyramid_stopped, "color/.wkwdask-job-*/failures-0.jsonl", resume),
    "batch": (pyramid_stopped, "color/.wkwdask-job-*/batch.json", resume),
    "shares": (pyramid_stopped, "color/.wkwdask-job-*/round-0.tasks.index", element),
    "lock": (locked, "color/.1.wkwdask-lock", write),
    "region_lock": (locked, "color/.1.B.wkwdask-region-lock", write),
    "provenance": (lambda _: None, "color/2/.wkwdask.json", update),
    "report": (
        lambda _: None,
        "color/2/.wkwdask.json",
        lambda folder: wkwdask.build_pyramid(folder, "color", mags=["2"], existing="resume"),
    ),
    "files": (lambda _: None, "color/2/.wkwdask-files.npy", update),
    "export": (
        lambda folder: interrupted(export, folder),
        ".wkwdask-job-*/plan.json",
        export,
    ),
}


def _invoke(*arguments):
    result = CliRunner().invoke(COMMAND, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("dataset") / "dataset")


@pytest.mark.long
@pytest.mark.parametrize("record", RECORDS)
def test_damaged_record(dataset, tmp_path, monkeypatch, record):
    begin, pattern, job = RECORDS[record]
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    monkeypatch.setattr(os, "fsync", lambda _: None)
    sandbox = tmp_path / "sandbox"
    folder = sandbox / "dataset"
    shutil.copytree(dataset, folder)
    (sandbox / "victim").mkdir()
    (sandbox / "victim" / "file").write_text("mine")
    with dask.config.set(scheduler="synchronous"):
        begin(folder)
        (path,) = folder.glob(pattern)
        shutil.copytree(folder, tmp_path / "before", symlinks=True)
        name, sample = path.relative_to(folder), path.read_bytes()
        around = tree(sandbox / "victim")
        for seed in range(MUTATIONS):
            (folder / name).write_bytes(mutated(sample, seed))
            for action in (
                lambda folder: _invoke("status", folder),
                *([job] if seed % EVERY == 0 else []),
            ):
                try:
                    with contextlib.suppress(WkwDaskError, OSError):
                        action(folder)
                except Exception as error:
                    error.add_note(f"mutation {seed} of {name}")
                    raise
            if seed % EVERY == 0:
                assert sorted(os.listdir(sandbox)) == ["dataset", "victim"]
                assert tree(sandbox / "victim") == around
                shutil.rmtree(folder)
                shutil.copytree(tmp_path / "before", folder, symlinks=True)


@pytest.mark.parametrize(
    "record",
    [
        "publish",
        "removal",
        "publish_scales",
        "publish_n5",
        "publish_zarr",
        "plan",
        "batch",
        "export",
    ],
)
@pytest.mark.parametrize("layout", [None, 2])
def test_a_record_of_another_version(dataset, tmp_path, monkeypatch, record, layout):
    """A job of another version is neither resumed nor finished, and stays unchanged."""
    begin, pattern, job = RECORDS[record]
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    monkeypatch.setattr(os, "fsync", lambda _: None)
    folder = tmp_path / "dataset"
    shutil.copytree(dataset, folder)
    with dask.config.set(scheduler="synchronous"):
        begin(folder)
        (path,) = folder.glob(pattern)
        before = json.loads(path.read_text())
        assert before["layout"] == 1
        changed = json.dumps(
            {
                **{name: value for name, value in before.items() if name != "layout"},
                **({} if layout is None else {"layout": layout}),
            }
        )
        path.write_text(changed)
        with pytest.raises(
            CorruptError,
            match=f"{path.name}: has .*layout.*, expected 1: another version of wkwdask wrote it",
        ):
            job(folder)
        assert path.read_text() == changed
