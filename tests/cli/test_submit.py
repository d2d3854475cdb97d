"""Options of ``wkwdask submit``, without SLURM; ``tests/slurm`` runs jobs on a real one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from faults.drivers import journaled, regions_of
from faults.trees import contents, leftovers, make_dataset
from support.commands import run_here
from support.inside import last_jobs_of, submitted_to

import wkwdask
from wkwdask.errors import BatchError
from wkwdask.store import slurm
from wkwdask.store.cores import slurm_cores


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pyramid", "ds"], "Missing option '--cluster'"),
        (
            ["pyramid", "ds", "--cluster", "local"],
            "run the command directly: wkwdask pyramid ... --cluster local",
        ),
        (
            ["pyramid", "ds", "--cluster", "slurm-array", "--memory", "much"],
            "--memory takes a size",
        ),
        *(
            (["pyramid", "ds", "--cluster", "slurm-array", "--walltime", text], "--walltime takes")
            for text in ("", "1h", "1:2:3:4", "-1", "1-")
        ),
    ],
)
def test_wrong_options_are_usage_errors(arguments, said):
    result = run_here("submit", *arguments)
    assert result.returncode == 2
    assert said in result.output


def test_without_slurm_the_error_names_the_missing_command(tmp_path, monkeypatch):
    make_dataset(tmp_path / "ds", (1, 1, 1))
    wkwdask.to_wkw(np.ones((1, 64, 64, 64), np.uint8), tmp_path / "ds" / "color" / "1", file_len=1)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run_here(
        "submit",
        "pyramid",
        tmp_path / "ds",
        "--cluster",
        "slurm-array",
        "--logs",
        tmp_path / "logs",
    )
    assert "sbatch: command not found" in result.stderr
    assert not leftovers(tmp_path / "ds")


@pytest.fixture
def sbatch_calls(tmp_path, monkeypatch):
    """Replace SLURM by scripts that accept all jobs and run none; returns the options of each call
    of ``sbatch``."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, line in (
        ("sbatch", f'printf "%s\\n" "$*" >> {tmp_path}/calls; wc -l < {tmp_path}/calls'),
        ("scontrol", "true"),
        ("scancel", "true"),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return lambda: (
        [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
        if (tmp_path / "calls").exists()
        else []
    )


@pytest.fixture
def ds(tmp_path):
    folder = make_dataset(tmp_path / "ds", (1, 1, 1))
    for layer in ("color", "other"):
        wkwdask.to_wkw(np.ones((1, 64, 64, 64), np.uint8), folder / layer / "1", file_len=1)
    return folder


def test_options_of_the_user_reach_sbatch(sbatch_calls, ds, tmp_path):
    """A dependency applies to the array only; the job after it depends on the array. The script
    sets the cores."""
    (tmp_path / "mine.sbatch").write_text('#!/bin/bash\n# kind: array\n#SBATCH -c 4\nexec "$@"\n')
    arguments = [
        "submit",
        "pyramid",
        "ds",
        "--layer",
        "color",
        "--cluster",
        "mine.sbatch",
        "--logs",
        "100% mine",
    ]
    result = run_here(*arguments, "--sbatch", "--dependency=afterok:99 --partition=short")
    assert "1 element of 4 cores" in result.output, result.stderr
    array, after = sbatch_calls()
    assert [option for option in array if "dependency" in option] == ["--dependency=afterok:99"]
    assert [option for option in after if option.startswith("--dependency")][
        -1
    ] == "--dependency=afterany:1"
    assert "--partition=short" in array
    assert "--partition=short" in after
    assert "100%%" in " ".join(array)


def test_the_exit_code_tells_of_layers_that_are_left_out(sbatch_calls, ds):
    wkwdask.convert(ds / "color", ds / "zarr.ome.zarr", compression="raw", shard_shape=False)
    path = ds / "datasource-properties.json"
    document = json.loads(path.read_text())
    stored_as_zarr = {**document["dataLayers"][0], "name": "zarr.ome.zarr", "dataFormat": "dicom"}
    stored_as_zarr["mags"] = [{"mag": [1, 1, 1], "path": "./zarr.ome.zarr/s0"}]
    path.write_text(
        json.dumps({**document, "dataLayers": [*document["dataLayers"], stored_as_zarr]})
    )
    result = run_here("submit", "pyramid", ds, "--all-layers", "--cluster", "slurm-array")
    assert len(sbatch_calls()) == 2, result.stderr
    assert "left out: " in result.stderr
    assert result.returncode == 3


def test_at_once_limits_the_elements_that_run(sbatch_calls, ds):
    result = run_here(
        "submit", "pyramid", ds, "--layer", "color", "--cluster", "slurm-array", "--at-once", "2"
    )
    assert result.returncode == 0, result.stderr
    assert "--array=0-0%2" in sbatch_calls()[0]
    assert (
        run_here("submit", "pyramid", ds, "--layer", "other", "--cluster", "slurm-array").returncode
        == 0
    )
    assert "--array=0-0" in sbatch_calls()[2]


def test_waiting_goes_on_while_the_controller_is_away(monkeypatch):
    away = BatchError("squeue: Unable to contact slurm controller")
    answers = [{"RUNNING": 1}, away, away, {"RUNNING": 1}, away, {"COMPLETED": 1}]

    def count_states(number):
        assert number == "7"
        answer = answers.pop(0)
        if isinstance(answer, BatchError):
            raise answer
        return answer

    monkeypatch.setattr(slurm, "count_states", count_states)
    monkeypatch.setattr(slurm, "_POLL_SECONDS", 0)
    told = []
    assert slurm.wait_for_end("7", told.append) == "COMPLETED"
    # once for each time
    assert told == ["squeue: Unable to contact slurm controller; still waiting for job 7"] * 2
    answers += [away]
    monkeypatch.setattr(slurm, "_AWAY_SECONDS", -1)
    with pytest.raises(BatchError, match="Unable to contact"):
        slurm.wait_for_end("7", told.append)


@pytest.mark.parametrize(
    ("variables", "cores"),
    [
        ({}, None),
        ({"SLURM_CPUS_PER_TASK": "3", "SLURM_JOB_CPUS_PER_NODE": "16"}, 3),
        ({"SLURM_JOB_CPUS_PER_NODE": "16"}, 16),
        ({"SLURM_JOB_CPUS_PER_NODE": "16(x3),8", "SLURM_NODEID": "3"}, 8),
        (
            {
                "SLURM_JOB_CPUS_PER_NODE": "16",
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
            },
            4,
        ),
        ({"SLURM_JOB_CPUS_PER_NODE": "many"}, None),
    ],
)
def test_cores_that_slurm_gives(variables, cores):
    assert slurm_cores(variables) == cores


def batch_of(layer):
    """Read the record of a job's arrays."""
    (path,) = layer.glob(".wkwdask-job-*/batch.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 600),
        ("10:30", 630),
        ("1:00:00", 3600),
        ("2-0", 172800),
        ("1-2:30", 95400),
        ("1-00:00:01", 86401),
    ],
)
def test_walltimes_as_slurm_reads_them(sbatch_calls, ds, text, seconds):
    assert (
        run_here(
            "submit",
            "pyramid",
            ds,
            "--layer",
            "color",
            "--cluster",
            "slurm-array",
            "--walltime",
            text,
        ).returncode
        == 0
    )
    assert batch_of(ds / "color")["size"]["seconds"] == seconds


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("900", 900 << 20), ("900M", 900 << 20), ("4g", 4 << 30), ("4GiB", 4 << 30), ("2T", 2 << 40)],
)
def test_memory(sbatch_calls, ds, text, nbytes):
    assert (
        run_here(
            "submit",
            "pyramid",
            ds,
            "--layer",
            "color",
            "--cluster",
            "slurm-array",
            "--memory",
            text,
        ).returncode
        == 0
    )
    assert batch_of(ds / "color")["size"]["memory_nbytes"] == nbytes


@pytest.mark.parametrize("option", ["--array=0-9%2", "-a 3", "--output=mine", "--wait"])
def test_options_that_submit_sets_are_rejected(option, ds):
    result = run_here("submit", "pyramid", ds, "--cluster", "slurm-array", "--sbatch", option)
    assert result.returncode == 2
    assert "of sbatch is set by wkwdask submit" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["pyramid", "ds", "--all-layers", "--overwrite"],
        ["copy", "ds", "new", "--overwrite"],
        ["compress", "ds", "--level", "9"],
    ],
)
def test_overwriting_several_layers_is_rejected(arguments, sbatch_calls, ds):
    """The job after the first array could not distinguish finished layers from old ones."""
    result = run_here("submit", *arguments, "--cluster", "slurm-array")
    assert "submit one command for each" in result.stderr
    assert not sbatch_calls()
    assert not leftovers(ds)


def test_sigterm_cancels_submitted_jobs(sbatch_calls, ds, tmp_path):
    (tmp_path / "programs" / "sbatch").write_text(
        f"#!/bin/sh\ntest -e {tmp_path}/calls && kill -TERM $PPID && sleep 9\necho 7 | tee "
        f"{tmp_path}/calls\n"
    )
    (tmp_path / "programs" / "scancel").write_text(f"#!/bin/sh\necho $@ > {tmp_path}/cancelled\n")
    assert run_here(
        "submit", "pyramid", "ds", "--layer", "color", "--cluster", "slurm-array"
    ).returncode not in (0, None)
    assert (tmp_path / "cancelled").read_text() == "7\n"
    assert not leftovers(ds)


@pytest.fixture
def commands(sbatch_calls):
    """Commands of the submitted jobs."""
    found = []
    with submitted_to(found):
        yield found


def in_slurm(monkeypatch, number, restarts, command, element=0):
    """Run the command of a job."""
    of_job = {
        "SLURM_JOB_ID": number,
        "SLURM_RESTART_COUNT": restarts,
        "SLURM_ARRAY_TASK_ID": element,
        "SLURMD_NODENAME": "n0",
        "SLURM_CLUSTER_NAME": "",
    }
    with monkeypatch.context() as patch:
        for name, value in of_job.items():
            patch.setenv(name, str(value))
        return run_here(*command)


def test_a_job_requeued_between_two_layers_continues(commands, ds, monkeypatch):
    """The job after an array has published the first layer, and is requeued before it submits the
    second one."""
    run_here(
        "submit", "pyramid", "ds", "--all-layers", "--coarsest", "2", "--cluster", "slurm-array"
    )
    element, finish = commands
    in_slurm(monkeypatch, 1, 0, element)
    wkwdask.build_pyramid(ds, "other", coarsest=2, method="min")
    assert "other/2" in in_slurm(monkeypatch, 2, 0, finish).stderr  # it fails between the two
    assert wkwdask.open(ds / "color" / "2").shape == (1, 32, 32, 32)
    wkwdask.rm(ds / "other" / "2")
    in_slurm(monkeypatch, 2, 0, finish)
    assert len(commands) == 2
    in_slurm(monkeypatch, 2, 1, finish)
    assert len(commands) == 4
    in_slurm(monkeypatch, 3, 0, commands[2])
    in_slurm(monkeypatch, 4, 0, commands[3])
    assert wkwdask.open(ds / "other" / "2").shape == (1, 32, 32, 32)
    assert not leftovers(ds)


@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_arrays_follow_until_all_tasks_are_done(commands, tmp_path, monkeypatch, options):
    """Half of each array is lost, and the job after it has time for one task; the next array gets
    the remaining tasks and overwrites nothing."""
    volume = np.random.default_rng(0).integers(1, 255, (1, 128, 128, 64), np.uint8)
    folder = make_dataset(tmp_path / "ds", (1, 1, 1))
    wkwdask.to_wkw(volume, folder / "color" / "1", block_len=8, file_len=2)
    left = []
    if options:
        wkwdask.build_pyramid(folder, method="min")
    with regions_of(32), last_jobs_of(1):
        run_here(
            "submit", "pyramid", folder, "--cluster", "slurm-array", "--elements", "2", *options
        )
        while len(commands) > 2 * len(left):
            root = commands[-2][-2]
            left.append(json.loads(Path(root, "batch.json").read_text())["rounds"][-1]["tasks"])
            in_slurm(monkeypatch, len(commands) - 1, 0, commands[-2])
            in_slurm(monkeypatch, len(commands), 0, commands[-1])
    assert left == [4, 2]
    found = contents(folder)
    wkwdask.build_pyramid(folder, existing="overwrite")
    assert contents(folder) == found
    assert not leftovers(folder)


def test_the_same_submit_continues_after_its_jobs_were_killed(commands, tmp_path, monkeypatch):
    """One of two elements has done its share, which the second array does not repeat."""
    volume = np.random.default_rng(0).integers(1, 255, (1, 128, 128, 64), np.uint8)
    folder = make_dataset(tmp_path / "ds", (1, 1, 1))
    wkwdask.to_wkw(volume, folder / "color" / "1", block_len=8, file_len=2)
    wkwdask.build_pyramid(folder, method="min")
    arguments = [
        "submit",
        "pyramid",
        "ds",
        "--cluster",
        "slurm-array",
        "--elements",
        "2",
        "--overwrite",
    ]
    scontrol = tmp_path / "programs" / "scontrol"
    with regions_of(32), last_jobs_of(1):
        run_here(*arguments)
        in_slurm(monkeypatch, 1, 0, commands[0])
        done = journaled(folder)
        assert done
        scontrol.write_text(
            '#!/bin/sh\ntest "$2" != show && exit\necho "slurm_load_jobs error: Invalid job id '
            'specified" >&2\nexit 1\n'
        )
        (job,) = [
            job
            for job in json.loads(run_here("status", folder, "--json").stdout)
            if job["state"] != "finished"
        ]
        assert job["resume"] == {"arguments": arguments, "folder": str(tmp_path)}
        again = run_here(*job["resume"]["arguments"])
        assert again.returncode == 0, again.output
        scontrol.write_text("#!/bin/sh\n")
        assert len(commands) == 4
        assert commands[2][-2] == job["folder"]
        rounds = json.loads(Path(job["folder"], "batch.json").read_text())["rounds"]
        assert [(one["tasks"], one["journaled"]) for one in rounds] == [
            (rounds[0]["tasks"], 0),
            (rounds[0]["tasks"] - len(done), len(done)),
        ]
        for number in range(2):
            in_slurm(monkeypatch, 3, 0, commands[2], number)
        assert in_slurm(monkeypatch, 4, 0, commands[3]).returncode == 0
    found = contents(folder)
    wkwdask.build_pyramid(folder, existing="overwrite")
    assert contents(folder) == found
    assert not leftovers(folder)
