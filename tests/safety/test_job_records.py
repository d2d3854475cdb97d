"""Records of jobs never reach out of their dataset: not those of a copy, nor those of a dataset
from elsewhere."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner
from faults.drivers import regions_of, stopping
from support.commands import COMMAND

import wkwdask
from wkwdask.errors import CorruptError, LockedError, MissingError
from wkwdask.store import leases

OPTIONS = {"block_len": 8, "file_len": 2, "compression": "lz4"}
VOXELS = np.random.default_rng(0).integers(1, 200, (1, 32, 32, 32), dtype=np.uint8)
NEW = VOXELS // 2 + 1


def tree(folder):
    """All that is in a folder, by name: bytes of files, targets of links."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = path.relative_to(folder).as_posix()
        found[name] = (
            os.readlink(path)
            if path.is_symlink()
            else hashlib.sha256(path.read_bytes()).hexdigest()
            if path.is_file()
            else None
        )
    return found


def make_dataset(folder, layer="color", mags=("1", "2")):
    folder.mkdir(parents=True)
    (folder / "datasource-properties.json").write_text(
        json.dumps(
            {
                "id": {"name": folder.name, "team": ""},
                "dataLayers": [],
                "scale": {"factor": [4, 4, 4], "unit": "nanometer"},
            }
        )
    )
    wkwdask.to_wkw(VOXELS, folder / layer / "1", **OPTIONS)
    if "2" in mags:
        wkwdask.build_pyramid(folder, layer, mags=["2"])
    return folder


def fork(function, *arguments):
    """Run a function in a separate process and return the exit code."""
    child = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    child.start()
    child.join()
    return child.exitcode


def killed_between_record_and_rename(job, folder):
    """End this process when the record of a job is there, and before what it says is done."""
    is_recorded = False

    def watch(event, args):
        nonlocal is_recorded
        if event == "os.rename" and str(args[1]).endswith("/publish.json"):
            is_recorded = True
        elif is_recorded and (
            (event == "os.rename" and str(args[0]).startswith(str(folder)))
            or (event == "ctypes.dlsym" and args[1] == "renameat2")
        ):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    with dask.config.set(scheduler="synchronous"):
        job(folder)


def write(folder):
    wkwdask.to_wkw(NEW, folder / "color" / "1", existing="overwrite", **OPTIONS)


def pyramid(folder):
    wkwdask.build_pyramid(folder, "color", mags=["2"], method="max", existing="overwrite")


def compress(folder):
    wkwdask.compress(folder / "color" / "1", compression="lz4hc")


def remove(folder):
    wkwdask.rm(folder / "color" / "2")


def to_precomputed(folder):
    wkwdask.to_precomputed(
        NEW, folder / "scales", voxel_size=(4, 4, 4), chunk_shape=(16, 16, 16), existing="overwrite"
    )


def to_n5(folder):
    wkwdask.to_n5(NEW[0], folder / "em.n5" / "raw" / "s0", existing="overwrite")


def to_zarr(folder):
    pytest.importorskip("zarr", reason="the extra zarr")
    wkwdask.to_zarr(NEW, folder / "em.ome.zarr", voxel_size=(4, 4, 4), existing="overwrite")


READ = {
    write: lambda folder: wkwdask.read(folder / "color" / "1"),
    pyramid: lambda folder: wkwdask.read(folder / "color" / "2"),
    compress: lambda folder: wkwdask.read(folder / "color" / "1"),
    to_precomputed: lambda folder: wkwdask.read(folder / "scales"),
    to_n5: lambda folder: wkwdask.read(f"n5://{folder}/em.n5/raw/s0"),
    to_zarr: lambda folder: wkwdask.read(f"zarr://{folder}/em.ome.zarr"),
}


@pytest.mark.faults
@pytest.mark.parametrize(
    "job",
    [write, pyramid, compress, remove, to_precomputed, to_n5, to_zarr],
    ids=lambda job: job.__name__,
)
def test_a_copy_of_a_dataset_with_a_killed_job(tmp_path, job):
    """The same job in the copy completes what began, there; the original keeps every byte."""
    expected = make_dataset(tmp_path / "expected")
    original = make_dataset(tmp_path / "original")
    if job in (to_precomputed, to_n5, to_zarr):  # there is something to replace
        job(original)
    assert fork(killed_between_record_and_rename, job, original) == -signal.SIGKILL
    assert list(original.rglob("publish.json"))
    copied = tmp_path / "other" / "copied"
    copied.parent.mkdir()
    shutil.copytree(original, copied, symlinks=True)
    before = tree(original)
    job(expected)
    if job is remove:
        job(copied)
        with pytest.raises(MissingError):
            job(copied)
        assert not (copied / "color" / "2").exists()
        assert [len(layer.mags) for layer in wkwdask.info(copied).layers] == [1]
    else:
        job(copied)
        np.testing.assert_array_equal(READ[job](copied), READ[job](expected))
    assert tree(original) == before
    assert not [
        path
        for path in copied.rglob("*wkwdask*")
        if path.name.startswith((".wkwdask-job", ".1.", ".2."))
    ]


def test_a_copied_lock_is_not_that_of_a_living_job(tmp_path):
    """The job works in the original: the copy is free, the original is not."""
    original, copied = make_dataset(tmp_path / "original"), tmp_path / "copied"
    begun, go_on = threading.Event(), threading.Event()

    def wait(block):
        begun.set()
        assert go_on.wait(60)
        return block

    array = da.from_array(NEW, chunks=-1).map_blocks(wait, meta=NEW[:0])
    running = threading.Thread(
        target=wkwdask.to_wkw,
        args=(array, original / "color" / "1"),
        kwargs={"existing": "overwrite", **OPTIONS},
    )
    running.start()
    try:
        assert begun.wait(60)
        shutil.copytree(original, copied)
        before = tree(original)
        write(copied)
        np.testing.assert_array_equal(wkwdask.read(copied / "color" / "1"), NEW)
        with pytest.raises(LockedError, match="another job writes it"):
            write(original)
        assert tree(original) == before
    finally:
        go_on.set()
        running.join()
    np.testing.assert_array_equal(wkwdask.read(original / "color" / "1"), NEW)


def test_the_report_of_a_copy_names_the_copy(tmp_path):
    original = make_dataset(tmp_path / "original")
    before = tree(original)
    shutil.copytree(original, tmp_path / "copied", copy_function=shutil.copy2)
    report = wkwdask.build_pyramid(tmp_path / "copied", "color", mags=["2"], existing="resume")
    assert [mag.path for mag in report.mags] == [f"{tmp_path}/copied/color/2"]
    assert tree(original) == before


# ----------------------------------------------------------------------------- records from
# elsewhere


def ended_owner(job, **changes):
    """An owner that died on this machine."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    values = {
        "job": job,
        "command": "a job",
        "host": os.uname().nodename,
        "boot": boot,
        "pid": 1,
        "process_start": "0",
        "user": "me",
    }
    return {
        **values,
        "since": "2026-01-01 00:00:00",
        "namespace": os.readlink("/proc/self/ns/pid"),
        "batch": "",
        **changes,
    }


def make_job(layer, record=None, plan=None, job="X"):
    """Craft the folder of a job that died."""
    root = layer / f".wkwdask-job-{job}"
    (root / "b").mkdir(parents=True)
    (root / "b" / "header.wkw").write_bytes((layer / "1" / "header.wkw").read_bytes())
    (root / "owner.json").write_text(json.dumps(ended_owner(job)))
    for name, content in (("publish.json", record), ("plan.json", plan)):
        if content is not None:
            (root / name).write_text(json.dumps({"layout": 1, **content}))
    return root


@pytest.fixture
def case(tmp_path):
    """A dataset from elsewhere, somebody's folder beside it, and a link in the first that leads to
    the second."""
    make_dataset(tmp_path / "victim", mags=("1",))
    dataset = make_dataset(tmp_path / "dataset")
    (dataset / ".linked").symlink_to(tmp_path / "victim")
    return dataset, tmp_path / "victim"


NAMED = {
    "absolute": lambda dataset, victim: f"{victim}/color/1",
    "dots": lambda dataset, victim: "../../victim/color/1",
    "link": lambda dataset, victim: "../.linked/color/1",
    "all": lambda dataset, victim: "../..",
}


def published(path):
    return {"job": "X", "publication": "p", "mags": [{"staged": "b", "folder": path}], "edit": None}


def removed(path):
    return {"removed": [path], "edit": None}


def edited(path):
    dataset = "../../victim" if path == "../.." else os.path.dirname(os.path.dirname(path))
    edit = {
        "kind": "removal of mags",
        "dataset_folder": dataset,
        "layer": "color",
        "mags": [[1, 1, 1]],
    }
    return {**published("1"), "edit": edit}


VERBS = {"to_wkw": write, "pyramid": pyramid, "compress": compress, "rm": remove, "repair": None}


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("record", [published, removed, edited])
def test_a_record_that_names_somebody_elses_folder(case, verb, record):
    dataset, victim = case
    before = tree(victim)
    for named in NAMED.values():
        root = make_job(dataset / "color", record(named(dataset, victim)))
        mags = {mag: tree(dataset / "color" / mag) for mag in ("1", "2")}
        dry = wkwdask.repair(dataset, dry_run=True)
        assert [(action.verb, action.path) for action in dry.actions] == [("remove", str(root))]
        if verb != "repair":
            with pytest.raises(
                CorruptError, match=r"publish\.json: names .* wkwdask repair removes the record"
            ):
                VERBS[verb](dataset)
            assert root.exists()
        assert tree(victim) == before
        assert [action.path for action in wkwdask.repair(dataset).actions] == [str(root)]
        assert not root.exists()
        assert {mag: tree(dataset / "color" / mag) for mag in mags} == mags
    assert tree(victim) == before
    write(dataset)
    np.testing.assert_array_equal(wkwdask.read(dataset / "color" / "1"), NEW)


@pytest.mark.parametrize("named", NAMED)
def test_a_plan_that_names_somebody_elses_folder(case, named):
    """Locks there, of a job of that name, are not touched either."""
    dataset, victim = case
    target = NAMED[named](dataset, victim)
    make_job(
        dataset / "color",
        plan={"targets": [target, "1"], "existing": "overwrite", "settings": {}, "plan": None},
    )
    (victim / "color" / ".1.wkwdask-lock").write_text(json.dumps(ended_owner("X")))
    before = tree(victim)
    for verb in (write, pyramid, lambda folder: wkwdask.rm(folder, layer="color")):
        with pytest.raises(CorruptError, match=r"plan\.json: names"):
            verb(dataset)
    assert tree(victim) == before
    wkwdask.repair(dataset)
    write(dataset)
    assert tree(victim) == before


@pytest.mark.parametrize("staged", ["../../../victim/color/1", "..", "", "/", "linked"])
def test_a_record_that_takes_somebody_elses_folder(case, staged):
    dataset, victim = case
    root = make_job(
        dataset / "color",
        {"job": "X", "publication": "p", "mags": [{"staged": staged, "folder": "8"}], "edit": None},
    )
    (root / "linked").symlink_to(victim / "color")
    before = tree(victim)
    with pytest.raises(CorruptError, match=r"publish\.json: names"):
        write(dataset)
    assert tree(victim) == before
    assert not (dataset / "color" / "8").exists()


@pytest.mark.parametrize("job", ["../../../victim", "/../victim", "X/../../../victim"])
def test_a_lock_whose_job_is_a_path(case, job):
    """The folder of its job would be removed."""
    dataset, victim = case
    (dataset / "color" / ".wkwdask-job-..").mkdir()
    (dataset / "color" / ".wkwdask-job-X").mkdir()
    (dataset / "color" / ".1.wkwdask-lock").write_text(json.dumps(ended_owner(job)))
    before = tree(victim)
    with pytest.raises(LockedError, match=r"1\.wkwdask-lock: this lock cannot be read"):
        write(dataset)
    assert tree(victim) == before


def test_the_folder_of_a_job_that_is_a_link(case):
    dataset, victim = case
    (dataset / "color" / ".wkwdask-job-X").symlink_to(victim / "color")
    (dataset / "color" / ".1.wkwdask-lock").write_text(json.dumps(ended_owner("X")))
    before = tree(victim)
    with pytest.raises(CorruptError, match="wkwdask-job-X: is a symbolic link"):
        write(dataset)
    assert tree(victim) == before


def test_a_resumed_job_does_not_write_through_links(case):
    """An unfinished job from elsewhere, whose half-built mag is a link."""
    dataset, victim = case
    with (
        regions_of(8),
        stopping(dataset.parent / "log", 1, KeyboardInterrupt()),
        pytest.raises(KeyboardInterrupt),
    ):
        pyramid(dataset)
    (root,) = (dataset / "color").glob(".wkwdask-job-*")
    shutil.rmtree(root / "2-2-2")
    (root / "2-2-2").symlink_to(victim / "color" / "1")
    before = tree(victim)
    with regions_of(8), pytest.raises(CorruptError, match="2-2-2: is a symbolic link"):
        wkwdask.build_pyramid(dataset, "color", mags=["2"], method="max", existing="resume")
    assert tree(victim) == before


def test_records_of_older_versions_are_completed_where_they_stay_inside(tmp_path):
    """They name folders absolutely."""
    dataset = make_dataset(tmp_path / "dataset")
    assert fork(killed_between_record_and_rename, write, dataset) == -signal.SIGKILL
    (path,) = dataset.rglob("publish.json")
    record = json.loads(path.read_text())
    record["mags"][0]["folder"] = f"{dataset}/color/1"
    record["edit"]["dataset_folder"] = str(dataset)
    path.write_text(json.dumps(record))
    assert list(dataset.rglob("publish.json"))
    write(dataset)
    np.testing.assert_array_equal(wkwdask.read(dataset / "color" / "1"), NEW)


@pytest.mark.faults
@pytest.mark.parametrize("allow_external", [True, False])
def test_a_job_on_a_linked_mag_goes_on_where_that_is_allowed(tmp_path, allow_external):
    """Its metadata are in one dataset and its mag in another."""
    dataset, other = (
        make_dataset(tmp_path / "dataset", mags=("1",)),
        make_dataset(tmp_path / "other"),
    )
    path = dataset / "datasource-properties.json"
    document = json.loads(path.read_text())
    document["dataLayers"][0]["mags"].append({"mag": [2, 2, 2], "path": "../other/color/2"})
    path.write_text(json.dumps(document))

    def job(folder):
        wkwdask.build_pyramid(
            folder, "color", mags=["2"], method="max", existing="overwrite", allow_external=True
        )

    assert fork(killed_between_record_and_rename, job, dataset) == -signal.SIGKILL
    before = tree(other / "color" / "2")
    if allow_external:
        job(dataset)
        np.testing.assert_array_equal(
            wkwdask.read(dataset, mag="2"), wkwdask.read(other / "color" / "2")
        )
        assert not list(other.rglob(".wkwdask-job-*"))
    else:
        with pytest.raises(
            CorruptError, match=rf"publish\.json: names '{dataset}', .*allow_external"
        ):
            pyramid(other)
        assert tree(other / "color" / "2") == before


def test_status_shows_what_is_refused(case):
    dataset, victim = case
    root = make_job(dataset / "color", published(f"{victim}/color/1"))
    shown = CliRunner().invoke(COMMAND, ["status", str(dataset)])
    assert shown.exit_code == 3
    assert "its records are rejected; wkwdask repair removes it" in shown.output
    assert f"{root}/publish.json: names '{victim}/color/1'" in shown.output
    with pytest.raises(
        LockedError, match="its records cannot be read, or name paths outside the dataset"
    ):
        wkwdask.open_dataset(dataset).rename_layer("color", "colour")


# ----------------------------------------------------------------------------- exports


def test_an_export_does_not_go_on_through_links(case, tmp_path):
    dataset, _ = case
    secret = tmp_path / "secret"
    secret.write_bytes(b"mine" * 100_000)
    with (
        stopping(tmp_path / "log", 1, KeyboardInterrupt()),
        regions_of(8),
        suppress(KeyboardInterrupt),
    ):
        wkwdask.convert(dataset / "color" / "1", tmp_path / "out.npy")
    (root,) = tmp_path.glob(".wkwdask-job-*")
    (root / "out.npy").unlink()
    (root / "out.npy").symlink_to(secret)
    with pytest.raises(CorruptError, match=r"out\.npy: is a symbolic link"):
        wkwdask.convert(dataset / "color" / "1", tmp_path / "out.npy")
    assert secret.read_bytes() == b"mine" * 100_000


# ----------------------------------------------------------------------------- tasks of job arrays


class Evil:
    """Runs when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """A pyramid that was handed to a SLURM which runs nothing, and what runs its one element."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, line in (
        ("sbatch", f"echo >> {tmp_path}/asked; wc -l < {tmp_path}/asked"),
        ("scontrol", "true"),
        ("scancel", "true"),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    monkeypatch.chdir(tmp_path)
    dataset = tmp_path / "dataset"
    make_dataset(dataset, mags=("1",))
    wkwdask.to_wkw(np.ones((1, 64, 64, 64), np.uint8), dataset / "other" / "1", file_len=1)
    done = CliRunner().invoke(
        COMMAND, ["submit", "pyramid", "dataset", "--layer", "other", "--cluster", "slurm-array"]
    )
    assert done.exit_code == 0, done.output
    (root,) = dataset.rglob(".wkwdask-job-*")
    return root, lambda: CliRunner().invoke(COMMAND, ["batch-element", str(root), "0"])


def test_an_element_runs_what_its_user_submitted(submitted, tmp_path):
    root, run = submitted
    assert run().exit_code == 0
    assert list(root.glob("journal-*"))
    key = tmp_path / "state" / "wkwdask" / "key"
    assert key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("change", ["tasks", "key", "no key", "open key", "another round"])
def test_an_element_runs_nothing_else(submitted, tmp_path, change):
    root, run = submitted
    key, tasks, index = (
        tmp_path / "state" / "wkwdask" / "key",
        root / "round-0.tasks",
        root / "round-0.tasks.index",
    )
    said = "are not signed with the key"
    if change == "tasks":
        data = pickle.dumps([Evil(f"{tmp_path}/evil")])
        tasks.write_bytes(data)
        groups = json.loads(index.read_text())["groups"]
        index.write_text(json.dumps({"groups": [[0, len(data), 1, groups[0][3]]]}))
    elif change == "key":
        key.write_bytes(os.urandom(32))
    elif change == "no key":
        key.unlink()
        said = "key not found"
    elif change == "open key":
        key.chmod(0o644)
        said = "only this user can read"
    else:
        other = root.with_name(".wkwdask-job-other")
        shutil.copytree(root, other)
        run = lambda: CliRunner().invoke(COMMAND, ["batch-element", str(other), "0"])  # noqa: E731
    failed = run()
    assert said in str(failed.exception)
    assert not (tmp_path / "evil").exists()


def test_the_job_after_an_array_runs_what_was_submitted(submitted, tmp_path):
    root, _ = submitted
    record = json.loads((root / "batch.json").read_text())
    again = json.dumps(
        {**{name: value for name, value in record.items() if name != "layout"}, "rounds": []}
    )
    (root / "batch.json").write_text(
        json.dumps({**record, "arguments": ["rm", f"{tmp_path}/dataset", "--yes"]})
    )
    CliRunner().invoke(COMMAND, ["batch-finish", str(root), again])
    assert (tmp_path / "dataset" / "color" / "1" / "header.wkw").exists()


def test_a_lock_on_a_disk_leads_to_no_lease(tmp_path, monkeypatch):
    """A lock that names an object somewhere asks nobody for it."""
    asked = []
    monkeypatch.setattr(leases, "_read", asked.append)
    dataset = make_dataset(tmp_path / "ds")
    lock = dataset / "color" / ".1.wkwdask-lock"
    owner = ended_owner("X", folder=str(lock.parent), lease="memory://elsewhere/owner.json")
    lock.write_text(json.dumps(owner))
    with pytest.raises(LockedError, match="this lock cannot be read"):
        write(dataset)
    # what was copied from a bucket is dead
    lock.write_text(json.dumps({**owner, "folder": "memory://bucket/color"}))
    write(dataset)
    assert asked == []
