"""Configurations of clusters: each shipped one loads and renders; an error lists all problems of
one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from support.commands import run_here

import wkwdask
from wkwdask.clusters import check, jobqueue
from wkwdask.clusters.check import file_system, findings, versions
from wkwdask.clusters.config import (
    CLUSTER_VARIABLE,
    FOLDERS_VARIABLE,
    find_config,
    known_configs,
    load_config,
    shipped_folder,
)
from wkwdask.clusters.jobqueue import exports, job_arguments, render
from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.store import slurm

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SHIPPED = sorted(path.name for path in shipped_folder().iterdir())
JOBQUEUE = [
    name
    for name in SHIPPED
    if name.endswith(".yaml") and "kind: jobqueue" in (shipped_folder() / name).read_text()
]
SCRIPTS = [name for name in SHIPPED if name.endswith(".sbatch")]
MINIMAL = {"kind": "jobqueue", "class": "SLURMCluster", "jobs": 2, "cores": 4, "memory": "8GiB"}


@pytest.fixture(autouse=True)
def _no_site(monkeypatch, tmp_path):
    """Hide the configurations of the user who runs the tests."""
    monkeypatch.delenv(CLUSTER_VARIABLE, raising=False)
    monkeypatch.delenv(FOLDERS_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))


def test_shipped_configurations():
    assert {
        "local.yaml",
        "scheduler.yaml",
        "slurm-jobqueue.yaml",
        "slurm-jobqueue-adaptive.yaml",
        "slurm-preemptible.yaml",
    } <= set(SHIPPED)
    assert {
        "slurm-gpu.yaml",
        "slurm-container.yaml",
        "slurm-allocation.sbatch",
        "slurm-allocation-preemptible.sbatch",
    } <= set(SHIPPED)
    assert {"pbs.yaml", "lsf.yaml", "kubernetes.yaml"} <= set(SHIPPED)
    assert {path.name for path in known_configs().values()} == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_file_loads_and_renders(name):
    config = load_config(name)
    assert config == load_config(Path(name).stem) == load_config(shipped_folder() / name)
    text = render(config)
    assert text
    if name.endswith(".yaml") and config.kind != "kubernetes":
        assert (shipped_folder() / name).read_text().count("# CHANGE") > 0 or config.kind == "local"


@pytest.mark.parametrize("name", JOBQUEUE)
def test_defaults_that_hold_for_image_work(name):
    config = load_config(name)
    settings = config.dask_settings
    assert [
        settings[f"distributed.worker.memory.{key}"]
        for key in ("target", "spill", "pause", "terminate")
    ] == [False, False, 0.8, 0.95]
    assert settings["distributed.scheduler.allowed-failures"] >= 10
    script = render(config)
    assert "export DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False" in script
    assert "--nthreads 1 " in script
    assert (
        "--lifetime 25200s --lifetime-stagger 1800s" in script
        or "--lifetime 3600s --lifetime-stagger 900s" in script
    )
    assert "--death-timeout 60" in script
    assert "--local-directory" in script
    assert (
        subprocess.run(
            ["bash", "-n"], input=script, text=True, check=True, capture_output=True
        ).stderr
        == ""
    )


DIRECTIVES = {
    "slurm-jobqueue.yaml": [
        "#SBATCH -J wkwdask",
        "#SBATCH -n 1",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --mem=32G",
        "#SBATCH -t 08:00:00",
    ],
    "slurm-preemptible.yaml": [
        "#SBATCH -p preemptible",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH -t 02:00:00",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
    ],
    "slurm-gpu.yaml": ["#SBATCH -p gpu", "#SBATCH --cpus-per-task=8", "#SBATCH --gpus=1"],
    "slurm-container.yaml": [
        "module load apptainer",
        (
            "apptainer exec --bind /shared /shared/images/wkwdask.sif python -m "
            "distributed.cli.dask_worker"
        ),
    ],
    "pbs.yaml": [
        "#PBS -N wkwdask",
        "#PBS -q workq",
        "#PBS -l select=1:ncpus=8:mem=32gb",
        "#PBS -l walltime=08:00:00",
    ],
    "lsf.yaml": [
        "#BSUB -J wkwdask",
        "#BSUB -q normal",
        "#BSUB -n 8",
        "#BSUB -M 34360",
        "#BSUB -W 08:00",
    ],
}


@pytest.mark.parametrize("name", DIRECTIVES)
def test_directives(name):
    lines = render(load_config(name)).splitlines()
    for directive in DIRECTIVES[name]:
        assert any(
            line == directive or (not directive.startswith("#") and line.startswith(directive))
            for line in lines
        ), directive


def test_options_of_a_site_reach_the_script():
    config = load_config(
        "slurm-jobqueue",
        {
            "interface": "ib0",
            "account": "project",
            "queue": "short",
            "job_script_prologue": ["module load x"],
            "jobs": 3,
        },
    )
    script = render(config)
    assert "--interface ib0" in script
    assert "#SBATCH -A project" in script
    assert "#SBATCH -p short" in script
    lines = script.splitlines()
    # lines of a site come last
    assert lines.index("module load x") > lines.index(
        "export DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False"
    )


def directives(text):
    """List what a batch script tells SLURM."""
    return [
        line.removeprefix("#SBATCH").partition(" #")[0].strip()
        for line in text.splitlines()
        if line.startswith("#SBATCH")
    ]


@pytest.mark.parametrize("name", SCRIPTS)
def test_batch_scripts(name):
    path = shipped_folder() / name
    assert (
        subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=True).stderr
        == ""
    )
    given = directives(path.read_text())
    is_array = "array" in name  # wkwdask submit proposes time and memory
    assert any(line.startswith("--time=") for line in given) is not is_array
    assert any(line.startswith("--output=") for line in given) is not is_array
    assert ("--requeue" in given) == (is_array or "preemptible" in name)


def test_kubernetes_manifests_by_their_schemas():
    import kubernetes_validate

    documents = list(yaml.safe_load_all(render(load_config("kubernetes"))))
    assert [document["kind"] for document in documents] == [
        "PersistentVolumeClaim",
        "Service",
        "NetworkPolicy",
        "Deployment",
        "Deployment",
        "Job",
    ]
    for document in documents:
        kubernetes_validate.validate(document, "1.31", strict=True)
    documents[3]["spec"]["replicas"] = "one"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(documents[3], "1.31", strict=True)


WRONG = [
    # what is given, every problem
    ({"kind": "jobqeue"}, ["kind: found 'jobqeue', expected one of local, scheduler, jobqueue"]),
    ({"kind": "local", "worker": 3}, ["worker: unknown key"]),
    (
        {"kind": "local", "workers": 0, "memory-limit": "lots"},
        ["workers: found 0, expected a number from", "memory-limit: found 'lots', expected"],
    ),
    ({**MINIMAL, "jobs": None}, ["jobs, adaptive: set exactly one of the two"]),
    ({**MINIMAL, "adaptive": {"maximum": 3}}, ["jobs, adaptive: set exactly one of the two"]),
    (
        {**MINIMAL, "jobs": None, "adaptive": {"max": 3}},
        ["adaptive.max: unknown key", "adaptive.maximum: missing"],
    ),
    (
        {**MINIMAL, "jobs": None, "adaptive": {"minimum": 4, "maximum": 3}},
        ["adaptive.minimum: 4 is more than the maximum, 3"],
    ),
    # YAML reads 01:00:00 as this
    ({**MINIMAL, "walltime": 3600}, ["walltime: found 3600, expected a time in quotes"]),
    (
        {**MINIMAL, "class": "SlurmCluster"},
        ["class: found 'SlurmCluster', expected one of SLURMCluster"],
    ),
    ({**MINIMAL, "project": "x"}, ["project: unknown key"]),  # a key of LSF
    ({**MINIMAL, "processes": 3}, ["processes: 3 processes cannot share 4 cores evenly"]),
    (
        {**MINIMAL, "walltime": "01:00:00", "lifetime": "1h"},
        ["lifetime: 3600 s and a stagger of 0 s are not less than the walltime, 3600 s"],
    ),
    (
        {**MINIMAL, "walltime": "01:00:00", "lifetime": "55m", "lifetime-stagger": "5m"},
        ["lifetime: 3300 s and a stagger of 300 s are not less than"],
    ),
    (
        {**MINIMAL, "lifetime": "5m", "lifetime-stagger": "6m"},
        ["lifetime-stagger: 360 s is not less than the lifetime"],
    ),
    ({**MINIMAL, "lifetime-stagger": "6m"}, ["lifetime-stagger: set without a lifetime"]),
    (
        {**MINIMAL, "dask": {"distributed": {"worker": {"memory": {"spil": False}}}}},
        ["dask.distributed.worker.memory.spil: unknown setting of dask"],
    ),
    (
        {**MINIMAL, "job-script-prologue": "module load x"},
        ["job-script-prologue: found 'module load x', expected a list of lines"],
    ),
    ({"kind": "scheduler"}, ["address, scheduler-file: set exactly one of the two"]),
    ([1], ["not a cluster configuration"]),
]


@pytest.mark.parametrize(("values", "problems"), WRONG)
def test_wrong_configurations(tmp_path, values, problems):
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(FormatError) as caught:
        load_config(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(problems)
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(f"{path}: {problem}")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "kind: local\nkind: scheduler\n", "duplicate key 'kind'"),
        ("a.yaml", "kind: [local\n", "not YAML"),
        ("a.yaml", "kind: local\n---\nkind: local\n", "found 2 YAML documents"),
        ("a.yaml", f"kind: local\nworkers: 0x{'f' * 5000}\n", "found a number of 5002 digits"),
        ("a.yaml", f"kind: 0x{'f' * 5000}\n", "found a number of 5002 digits"),
        ("a.yaml", "kind: scheduler\naddress: a\ntimeout: ''\n", "timeout: found '', expected"),
        (
            "a.sbatch",
            "#!/bin/bash\necho\n",
            "found no '# kind: ...', expected one of # kind: allocation, # kind: array",
        ),
        ("a.sbatch", "# kind: array\n", "expected #!"),
    ],
)
def test_other_files_are_rejected(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(FormatError, match=message.replace("[", r"\[")):
        load_config(tmp_path / name)


def test_names_are_searched_in_order(tmp_path, monkeypatch):
    """Existing files, folders of the variable, folder of the user, shipped configurations."""
    with pytest.raises(
        MissingError,
        match=r"mine: neither a file nor a known cluster; known clusters: .*local.*slurm-jobqueue",
    ):
        find_config("mine")
    user, first, second = (
        tmp_path / "no-config" / "wkwdask" / "clusters",
        tmp_path / "first",
        tmp_path / "second",
    )
    for number, folder in enumerate((user, second, first), 1):
        folder.mkdir(parents=True)
        (folder / "mine.yaml").write_text(f"kind: local\nworkers: {number}\n")
        if number > 1:
            monkeypatch.setenv(FOLDERS_VARIABLE, f"{first}:{second}")
        assert load_config("mine").values["workers"] == number
    (first / "local.yaml").write_text("kind: local\nworkers: 7\n")
    assert load_config("local").values["workers"] == 7


def test_overrides():
    config = load_config(
        "slurm-jobqueue-adaptive",
        {
            "jobs": 3,
            "lifetime_stagger": None,
            "dask": {"distributed": {"scheduler": {"allowed-failures": 5}}},
        },
    )
    assert (
        config.values["jobs"],
        config.values["adaptive"],
        config.values["lifetime-stagger"],
    ) == (3, None, None)
    assert config.dask_settings["distributed.scheduler.allowed-failures"] == 5
    assert config.dask_settings["distributed.worker.memory.spill"] is False  # sections are joined
    with pytest.raises(FormatError, match=r"slurm-jobqueue\.yaml: colour: unknown key"):
        load_config("slurm-jobqueue", {"colour": 1})
    with pytest.raises(FormatError, match="jobs: cannot be overridden"):
        load_config("slurm-allocation", {"jobs": 1})


def test_addresses():
    assert load_config("tcp://host:8786").values["address"] == "tcp://host:8786"
    assert (
        load_config("/shared/scheduler.json").values["scheduler-file"] == "/shared/scheduler.json"
    )
    assert load_config({"kind": "local", "workers": 2}).values["workers"] == 2


def test_settings_reach_workers_as_dask_reads_them():
    import dask.config

    lines = exports(
        {
            "distributed.worker.memory.spill": False,
            "distributed.scheduler.worker-ttl": "5 minutes",
            "distributed.worker.resources": {},
        }
    )
    printed = subprocess.run(
        ["bash", "-c", "\n".join(lines) + "\nenv -0"], capture_output=True, text=True, check=True
    ).stdout
    # older dask sets others
    environment = dict(
        line.split("=", 1) for line in printed.split("\0") if line.startswith("DASK_DISTRIBUTED__")
    )
    assert dask.config.collect_env(environment) == {
        "distributed": {
            "worker": {"memory": {"spill": False}, "resources": {}},
            "scheduler": {"worker_ttl": "5 minutes"},
        }
    }


def test_scripts_and_manifests_do_not_run_in_this_process():
    with (
        pytest.raises(
            UnsupportedError, match=r"wkwdask submit VERB \.\.\. --cluster slurm-allocation"
        ),
        wkwdask.cluster("slurm-allocation"),
    ):
        pass
    with pytest.raises(UnsupportedError, match="kubectl apply"), wkwdask.cluster("kubernetes"):
        pass


def test_no_cluster():
    with wkwdask.cluster() as client:
        assert client is None
    with (
        pytest.raises(TypeError, match="jobs: overrides need a configuration"),
        wkwdask.cluster(jobs=3),
    ):
        pass
    with (
        pytest.raises(ValueError, match="a performance report needs a dask cluster"),
        wkwdask.cluster(report="a.html"),
    ):
        pass


def test_missing_packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(ModuleNotFoundError, match=r"wkwdask\[cluster\]"):
        render(load_config("slurm-jobqueue"))
    monkeypatch.setattr("wkwdask.clusters.connect.find_spec", lambda _: None)
    with (
        pytest.raises(ModuleNotFoundError, match=r"pip install .wkwdask\[cluster\]"),
        wkwdask.cluster("local", report="a.html"),
    ):
        pass


def test_ctrl_c_still_raises_keyboard_interrupt():
    """On import, dask-jobqueue installs a handler that exits with code 0."""
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed")
    lines = [
        "import signal",
        # commands in the background of a shell inherit that it is ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)",
        "from wkwdask.clusters.config import load_config",
        "from wkwdask.clusters.jobqueue import render",
        "render(load_config('slurm-jobqueue'))",
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler",
        "signal.raise_signal(signal.SIGINT)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=False,
        restore_signals=True,
    )
    assert "KeyboardInterrupt" in done.stderr, done.stderr
    assert done.returncode not in (0, 1)


def test_log_directory_knows_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("LOGS", str(tmp_path))
    assert job_arguments(load_config("slurm-jobqueue", {"log_directory": "$LOGS/x"}))[
        "log_directory"
    ] == str(tmp_path / "x")


FACTS = {
    "host": "n1",
    "address": "tcp://10.0.0.2:1",
    "versions": versions(),
    "sees": True,
    "writes": "",
    "scratch_folder": "/scratch",
    "scratch": {"problem": "", "kind": "xfs", "is_network": False, "free": 1 << 40},
    "memory_limit": 4 << 30,
    "spill": False,
}
BAD = [
    ({"address": "tcp://127.0.0.1:1"}, "worker"),
    ({"versions": {**versions(), "numba": "0.1"}}, "numba"),
    ({"sees": False}, "shared folder, to node"),
    ({"writes": "Permission denied"}, "shared folder, from node"),
    ({"scratch": {"problem": "read-only", "kind": "", "is_network": False, "free": 0}}, "scratch"),
    ({"scratch": {"problem": "", "kind": "nfs4", "is_network": True, "free": 1 << 40}}, "scratch"),
    ({"scratch": {"problem": "", "kind": "xfs", "is_network": False, "free": 1 << 20}}, "scratch"),
    ({"memory_limit": 1 << 20}, "memory of a worker"),
    ({"spill": 0.7}, "spilling"),
]


def test_findings():
    assert all(one.is_fine for one in findings(FACTS, is_token_visible=True, folder="/shared"))
    assert [
        one.name
        for one in findings(FACTS, is_token_visible=False, folder="/shared")
        if not one.is_fine
    ] == ["shared folder, from node"]
    tmpfs = findings(
        {
            **FACTS,
            "scratch": {"problem": "", "kind": "tmpfs", "is_network": False, "free": 1 << 40},
        },
        is_token_visible=True,
        folder="/shared",
    )
    assert ["it is in memory" in one.remedy for one in tmpfs if one.name == "scratch"] == [True]


@pytest.mark.parametrize(("facts", "what"), BAD)
def test_findings_that_are_wrong(facts, what):
    wrong = [
        one
        for one in findings({**FACTS, **facts}, is_token_visible=True, folder="/shared")
        if not one.is_fine
    ]
    assert [one.name for one in wrong] == [what]
    assert wrong[0].remedy


def test_file_system(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "a / ext4 rw 0 0\nb /data nfs4 rw 0 0\nc /data/fast\\040disk xfs rw 0 0\nd /database "
        "lustre rw 0 0\n"
    )
    places = ["/x", "/data", "/data/a", "/data/fast disk/a", "/database/x"]
    assert [file_system(place, str(mounts)) for place in places] == [
        "ext4",
        "nfs4",
        "nfs4",
        "xfs",
        "lustre",
    ]


def test_commands(tmp_path):
    listed = run_here("cluster", "list")
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == sorted(
        Path(name).stem for name in SHIPPED
    )
    assert (
        run_here("cluster", "render", "slurm-jobqueue").stdout.rstrip()
        == render(load_config("slurm-jobqueue")).rstrip()
    )
    both = run_here("verify", tmp_path, "--cluster", "local", "--scheduler", "tcp://a:1")
    assert (both.returncode, "use one of them" in both.stderr) == (2, True)
    unknown = run_here("verify", tmp_path, "--cluster", "mine")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith(
        "error: mine: neither a file nor a known cluster; known clusters: "
    )


def test_check_on_this_machine(tmp_path):
    (tmp_path / "one.yaml").write_text(
        (shipped_folder() / "local.yaml")
        .read_text()
        .replace("# memory-limit: 8GiB", "memory-limit: 512MiB")
    )
    done = run_here("cluster", "check", tmp_path / "one.yaml", "--folder", tmp_path)
    assert [
        line.split("  ")[1] for line in done.stdout.splitlines() if line.startswith("WRONG")
    ] == ["memory of a worker"]
    assert done.returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["one.yaml"]


def test_the_wheel_contains_the_configurations():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"] == {
        "cluster-configs": "wkwdask/cluster_configs"
    }


@pytest.mark.parametrize(
    "command", [(sys.executable, "-c", "import time; time.sleep(600)"), ("no-such-command",)]
)
def test_a_queue_that_does_not_answer(monkeypatch, command):
    class StalledCluster:
        pass

    monkeypatch.setattr(jobqueue, "_QUEUE_COMMANDS", {"StalledCluster": command})
    monkeypatch.setattr(jobqueue, "_ANSWER_SECONDS", 0.2)
    states = jobqueue.ResubmittingAdaptive._states(SimpleNamespace(_jobs=StalledCluster()))
    assert asyncio.run(asyncio.wait_for(states, 30)) is None


def test_a_job_whose_worker_came_and_went_between_two_looks_has_not_failed():
    """A short lifetime ends while the cluster is not looked at; the job only needs a successor."""
    plugins = []
    scheduler = SimpleNamespace(
        workers={}, add_plugin=lambda plugin, **options: plugins.append(plugin)
    )
    job = SimpleNamespace(job_id="7", status=None)
    jobs = SimpleNamespace(
        scheduler=scheduler, workers={"Job-0": job}, worker_spec={"Job-0": {"group": ("-0", "-1")}}
    )
    keeper = jobqueue.ResubmittingAdaptive(jobs, minimum=0, maximum=1, interval=0)
    ended = {"7": ("COMPLETED", "")}
    assert keeper._is_lost("Job-0", ended)
    assert keeper._num_failed == {"Job-0": 1}
    scheduler.workers["tcp://a:1"] = SimpleNamespace(name="Job-0-1")
    plugins[0].add_worker(scheduler, "tcp://a:1")
    del scheduler.workers["tcp://a:1"]
    assert keeper._is_lost("Job-0", ended)
    assert not keeper._num_failed


def test_a_check_does_not_wait_for_a_queue_that_does_not_answer(monkeypatch, tmp_path):
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nexec sleep 600\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "_ANSWER_SECONDS", 0.2)
    assert check._state("1") == ""


@pytest.mark.parametrize("value", ["[SLURMCluster]", "{a: b}", "5", "null"])
def test_a_class_that_is_no_name_is_an_error(tmp_path, value):
    path = tmp_path / "site.yaml"
    path.write_text(f"kind: jobqueue\nclass: {value}\ncores: 4\nmemory: 16GB\njobs: 2\n")
    with pytest.raises(FormatError, match=f"{path}: class: "):
        load_config(path)
