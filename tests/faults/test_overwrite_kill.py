"""Commands with ``--overwrite`` are killed while other voxels exist: ``status`` names the command,
which continues and repeats no finished task."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shlex
import signal
from unittest import mock

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, imports_of, journaled, logged, rechunks_of, regions_of, runs
from faults.trees import JSON_NAME, contents, differences, lay_out, leftovers, make_dataset
from PIL import Image
from support.commands import run_here
from support.inside import limited

import wkwdask
from wkwdask.runs import journal

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("default::wkwdask.errors.DiscardWarning"),
]

SHAPE = (64, 64, 32)
VOXEL_SIZE = (4, 4, 4)
OPTIONS = {"block_len": 8, "file_len": 2}

COMMANDS = {
    "pyramid": "pyramid {0}/seg --coarsest 4 --method max --overwrite",
    "rechunk": "rechunk {0}/seg/1 {0}/other/1 --file-len 4 --overwrite",
    "compress": "compress {0}/seg/1 {0}/other/1 --compression lz4hc --overwrite",
    "compress_in_place": "compress {0}/seg/1 --compression lz4hc --overwrite",
    "copy": "copy {0}/seg/1 {0}/other/1 --overwrite",
    "convert": "convert {0}/seg/1 precomputed://{0}/scales --chunk-shape 16,16,16 --overwrite",
    "import": "convert {0}/sections {0}/other/1 --block-len 8 --file-len 2 --overwrite",
    "export": "convert {0}/seg/1 {0}/array.npy --overwrite",
    "remap": "remap {0}/seg/1 {0}/other/1 {0}/mapping.csv --overwrite",
    "components": "components {0}/seg/1 {0}/other/1 --overwrite",
    "dust": "dust {0}/seg/1 {0}/other/1 --min-voxels 3 --overwrite",
    "renumber": "renumber {0}/seg/1 {0}/other/1 --overwrite",
    "upsample": "upsample {0}/coarse/2 --mags 1 --overwrite",
}
QUICK = ("pyramid", "copy")


def labels(seed):
    random = np.random.default_rng(seed)
    return np.where(random.random(SHAPE) < 0.4, random.integers(1, 5, SHAPE), 0).astype(np.uint32)


def make_source(folder):
    """Labels, and other voxels at each place that a command overwrites."""
    make_dataset(folder, VOXEL_SIZE)
    wkwdask.to_wkw(labels(1), folder / "seg" / "1", compression="lz4", **OPTIONS)
    wkwdask.build_pyramid(folder / "seg", coarsest=4, method="min")
    wkwdask.to_wkw(labels(2), folder / "other" / "1", **OPTIONS)
    wkwdask.to_wkw(labels(3)[::2, ::2, ::2], folder / "coarse" / "2", **OPTIONS)
    wkwdask.to_wkw(labels(4), folder / "coarse" / "1", **OPTIONS)
    wkwdask.convert(
        folder / "other" / "1", f"precomputed://{folder}/scales", chunk_shape=(16, 16, 16)
    )
    wkwdask.convert(folder / "other" / "1", folder / "array.npy")
    (folder / "mapping.csv").write_text("1,7\n2,7\n")
    (folder / "sections").mkdir()
    for z, section in enumerate(labels(5).astype(np.uint8).T):
        Image.fromarray(np.ascontiguousarray(section)).save(folder / "sections" / f"{z:02}.png")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overwrite") / "ds"
    with dask.config.set(scheduler="synchronous"):
        make_source(folder)
    return contents(folder)


@contextlib.contextmanager
def many_tasks():
    bricks = limited(components_nbytes=16**3 * 8, brick_nbytes=16**3 * 8, exported_nbytes=1 << 12)
    with (
        regions_of(16),
        rechunks_of(16),
        imports_of(8),
        bricks,
        dask.config.set(scheduler="synchronous"),
    ):
        yield


def run(command, log):
    """Run a command; return it and the number of times that each task ran."""
    with many_tasks(), logged(log):
        done = run_here(*command)
    return done, runs(log)


def num_journaled(command):
    """Run a command, and count the tasks that it writes to its journals; other tasks run again each
    time."""
    append, count = journal.Journal.append, 0

    def counted(*args):
        nonlocal count
        count += 1
        append(*args)

    with many_tasks(), mock.patch.object(journal.Journal, "append", counted):
        assert run_here(*command).returncode == 0
    return count


def killed_after(num_tasks, command):
    """Run a command in a process that kills itself once so many tasks are in the journal."""

    def target():
        append, left = journal.Journal.append, num_tasks

        def counted(*args):
            nonlocal left
            append(*args)
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

        with many_tasks(), mock.patch.object(journal.Journal, "append", counted):
            run_here(*command)

    child = multiprocessing.get_context("fork").Process(target=target)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def finished_tasks(folder):
    """List the tasks that journals name, also that of an export, which lies beside its target."""
    hidden = [path.parent for path in folder.glob(".*/journal-*.jsonl")]
    lines = [line for root in hidden for line in journal.read_journal(str(root))]
    return journaled(folder) | {json.loads(line)["task"] for line in lines}


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in COMMANDS],
)
def test_the_same_command_continues(tmp_path, source, name):
    folder = tmp_path / "ds"
    command = shlex.split(COMMANDS[name].format(folder))
    lay_out(source, folder)
    whole, tasks = run(command, tmp_path / "whole.log")
    assert whole.returncode == 0, whole.output
    expected = contents(folder)
    assert expected != source
    folder.rename(tmp_path / "whole")
    lay_out(source, folder)
    last = num_journaled(command) - 1
    steps = range(1, last + 1) if KILLS else sorted({1, last // 2, last})
    assert len(steps) > 1
    for step in steps:
        folder.rename(tmp_path / f"before {step}")
        lay_out(source, folder)
        killed_after(step, command)
        assert not differences(contents(folder), source)
        done = finished_tasks(folder)
        assert done, step
        if name != "export":  # status shows jobs of datasets
            (job,) = [
                job
                for job in json.loads(run_here("status", folder, "--json").stdout)
                if job["state"] != "finished"
            ]
            assert job["resume"] == {"arguments": command, "folder": os.getcwd()}
            assert (
                f"resumed by: cd {os.getcwd()} && wkwdask {shlex.join(command)}\n"
                in run_here("status", folder).stdout
            )
        again, ran = run(command, tmp_path / f"{step}.log")
        assert again.returncode == 0, again.output
        assert not done & set(ran), step
        assert set(ran) | done >= set(tasks), step
        assert not differences(contents(folder), expected)
        assert not leftovers(folder)
    # A finished command is no interrupted one.
    again, ran = run(command, tmp_path / "again.log")
    assert again.returncode == 0, again.output
    if name != "compress_in_place":  # which finds nothing to change
        assert set(ran) == set(tasks)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_restart_starts_over_and_says_what_it_discards(tmp_path, source):
    folder = tmp_path / "ds"
    command = shlex.split(COMMANDS["pyramid"].format(folder))
    lay_out(source, folder)
    _, tasks = run(command, tmp_path / "whole.log")
    expected = contents(folder)
    folder.rename(tmp_path / "whole")
    lay_out(source, folder)
    restart = [*command[:-1], "--restart"]
    killed_after(2, command)
    killed_after(3, restart)
    assert len(finished_tasks(folder)) == 3
    (job,) = [
        job
        for job in json.loads(run_here("status", folder, "--json").stdout)
        if job["state"] != "finished"
    ]
    assert job["resume"]["arguments"] == command  # the restarting command would start over again
    again, ran = run(restart, tmp_path / "again.log")
    assert again.returncode == 0, again.output
    assert "discards the finished work of an interrupted job: 3 tasks, " in again.stderr
    assert set(ran) == set(tasks)
    assert not differences(contents(folder), expected)
    assert not leftovers(folder)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_function_starts_over_and_says_what_it_discards(tmp_path, source):
    """A function of the same name may be another one."""
    folder = tmp_path / "ds"
    lay_out(source, folder)
    (tmp_path / "functions.py").write_text("def invert(voxels):\n    return ~voxels\n")
    command = [
        "apply",
        f"{tmp_path}/functions.py:invert",
        f"{folder}/seg/1",
        f"{folder}/other/1",
        "--overwrite",
    ]
    killed_after(5, command)
    (job,) = [
        job
        for job in json.loads(run_here("status", folder, "--json").stdout)
        if job["state"] != "finished"
    ]
    resuming = [*command[:-1], "--resume"]
    assert job["resume"]["arguments"] == resuming
    killed_after(6, resuming)
    done = finished_tasks(folder)
    assert len(done) == 11
    again, ran = run(command, tmp_path / "again.log")
    assert again.returncode == 0, again.output
    assert "discards the finished work of an interrupted job: 11 tasks, " in again.stderr
    assert done < set(ran)
    np.testing.assert_array_equal(wkwdask.read(folder / "other" / "1")[0], ~labels(1))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("verb", ["copy", "pyramid"])
def test_a_command_of_several_jobs_repeats_none_of_its_finished_ones(tmp_path, source, verb):
    """Jobs that an earlier command has finished are repeated."""
    folder = tmp_path / "ds"
    lay_out(source, folder)
    command = ["copy", f"{folder}/seg", f"{folder}/new", "--overwrite"]
    if verb == "pyramid":
        command = [
            "pyramid",
            str(folder),
            "--layer",
            "seg",
            "--layer",
            "other",
            "--coarsest",
            "4",
            "--overwrite",
        ]
    _, tasks = run(command, tmp_path / "whole.log")
    whole = sum(tasks.values())
    expected = contents(folder)
    killed_after(whole - 2, command)
    done, ran = run(command, tmp_path / "again.log")
    assert done.returncode == 0, done.output
    assert sum(ran.values()) == 2
    assert not differences(contents(folder), expected)
    assert not leftovers(folder)
    assert sum(run(command, tmp_path / "third.log")[1].values()) == whole


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_conversion_with_its_pyramid_continues(tmp_path, source):
    folder = tmp_path / "ds"
    lay_out(source, folder)
    command = [
        "convert",
        f"{folder}/sections",
        f"{folder}/other/1",
        "--block-len",
        "8",
        "--file-len",
        "2",
        "--pyramid",
        "--overwrite",
    ]
    run(command, tmp_path / "first.log")
    whole = sum(run(command, tmp_path / "whole.log")[1].values())
    expected = contents(folder)
    killed_after(whole - 2, command)
    done, ran = run(command, tmp_path / "again.log")
    assert done.returncode == 0, done.output
    assert sum(ran.values()) == 2
    # The level is made again, and then the interrupted pyramid is that of another level.
    killed_after(whole - 2, command)
    os.utime(folder / "sections" / "00.png", (1, 1))
    done, ran = run(command, tmp_path / "changed.log")
    assert done.returncode == 0, done.output
    assert "discards the finished work of an interrupted job" in done.stderr
    assert sum(ran.values()) == whole
    assert not differences(contents(folder), expected)
    assert not leftovers(folder)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_changed_source_is_not_mixed_with_finished_work(tmp_path, source):
    """The one message says what starts over."""
    folder = tmp_path / "ds"
    lay_out(source, folder)
    command = shlex.split(COMMANDS["pyramid"].format(folder))
    killed_after(3, command)
    for path in (folder / "seg" / "1").rglob("x*.wkw"):
        os.utime(path, (1, 1))
    before = contents(folder)
    refused, ran = run(command, tmp_path / "refused.log")
    assert refused.returncode == 1
    assert "the source has changed since the job was interrupted" in refused.stderr
    assert refused.stderr.endswith("; --restart starts over\n")
    assert "resumes" not in refused.stderr
    assert not ran
    assert not differences(contents(folder), before)
    assert json.loads((folder / JSON_NAME).read_text()) == before[JSON_NAME]
    assert run([*command, "--restart"], tmp_path / "again.log")[0].returncode == 0
    assert not leftovers(folder)
