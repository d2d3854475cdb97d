"""Commands for clusters: list, render and check configurations; submit jobs to SLURM, show and
cancel them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from wkwdask.cli.doctor import facts_of
from wkwdask.cli.help import Commands
from wkwdask.cli.messages import on_command_line
from wkwdask.cli.results import Facts, prints_check, prints_facts
from wkwdask.errors import BatchError, FormatError, MissingError, TaskFailedError
from wkwdask.store.paths import abspath, basename, dirname, splitext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.clusters.config import ClusterConfig
    from wkwdask.runs.batch_file import Batch, HandedToSlurm
    from wkwdask.runs.status import JobStatus

_UNITS = {"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_VERBATIM: dict[str, Any] = {"ignore_unknown_options": True, "allow_interspersed_args": True}


@click.group(cls=Commands, short_help="Show, render and check clusters that jobs can run on.")
def cluster() -> None:
    """Show, render and check clusters that jobs can run on.

    A cluster is a configuration file with a name. Copy a shipped file to
    ~/.config/wkwdask/clusters, edit the lines marked CHANGE, check it, and pass its name to any
    command with --cluster.

    \b
    Examples:
      wkwdask cluster list
      wkwdask cluster render slurm-jobqueue
      wkwdask cluster check my-cluster --folder /shared/folder
      wkwdask pyramid dataset --cluster my-cluster
    """


@cluster.command("list", short_help="List the named clusters.")
@prints_facts
def list_clusters() -> Facts:
    """List the named clusters with their kinds and files.

    Files are searched in the folders of $WKWDASK_CLUSTERS, in ~/.config/wkwdask/clusters, then
    among the shipped ones; the first match of a name is used.

    \b
    Example:
      wkwdask cluster list
    """
    from wkwdask.cli.tables import print_records
    from wkwdask.clusters.config import known_configs, load_config

    known = known_configs()
    clusters = []
    for name, path in known.items():
        try:
            kind = load_config(path).kind
        except FormatError:
            kind = "broken"
        clusters.append({"name": name, "kind": kind, "file": str(path)})
    return Facts(clusters, partial(print_records, clusters))


@cluster.command(short_help="Print the job script of a cluster.")
@click.argument("config")
def render(config: str) -> None:
    """Print the job script, batch script or manifests of a cluster, without submitting them.

    \b
    Examples:
      wkwdask cluster render slurm-jobqueue
      wkwdask cluster render slurm-allocation > ~/.config/wkwdask/clusters/mine.sbatch
    """
    from wkwdask.clusters.config import load_config
    from wkwdask.clusters.jobqueue import render as write

    click.echo(write(load_config(config)).rstrip("\n"))


@cluster.command(short_help="Start one worker, check its environment, and stop it.")
@click.argument("config")
@click.option(
    "--folder",
    required=True,
    type=click.Path(exists=True, file_okay=False),
    help="Folder that workers must be able to access, such as that of the data.",
)
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(1),
    default=600,
    show_default=True,
    help="Maximum time to wait for the worker [s].",
)
@prints_check
def check(config: str, folder: str, seconds: float) -> Facts:
    """Start one worker, compare its package versions with the local ones, test the shared folder
    from both sides, check scratch and memory, and stop it.

    Exit code 0: all is fine; 1: something is wrong; 2: no worker could be checked.

    \b
    Example:
      wkwdask cluster check slurm-jobqueue --folder /shared/folder
    """
    from wkwdask.clusters.check import check_cluster
    from wkwdask.clusters.config import load_config

    return facts_of(check_cluster(load_config(config), folder, seconds))


@cluster.command(hidden=True)
@click.option("--folder", required=True)
@click.option("--token", required=True)
@click.option("--output", required=True)
def probe(folder: str, token: str, output: str) -> None:
    """Collect facts about the environment of a job, on one of its workers if it has any, and write
    them as JSON."""
    from wkwdask.clusters import check
    from wkwdask.clusters.connect import cluster as connect
    from wkwdask.store.store import folders_of

    with connect() as client:
        facts = (
            check.probe(folder, token)
            if client is None
            else check.probe_worker(client, folder, token, 300)
        )
    with open(f"{output}.part", "w", encoding="utf-8") as file:
        json.dump(facts, file)
    folders_of(output).rename(f"{output}.part", output)


@click.command(short_help="Submit a command to SLURM.", context_settings=_VERBATIM)
@click.argument("verb")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--cluster",
    "config",
    metavar="FILE|NAME",
    required=True,
    help="Batch script: slurm-array, slurm-allocation, or your own file.",
)
@click.option(
    "--elements",
    type=click.IntRange(1),
    help="Elements of the job array. Default: half an hour of work for each.",
)
@click.option(
    "--cpus",
    type=click.IntRange(1),
    help=(
        "Cores of each element, which is also the number of its parallel tasks. Default: as in the "
        "script, else 1."
    ),
)
@click.option(
    "--at-once",
    type=click.IntRange(1),
    metavar="N",
    help="Largest number of elements that run at the same time.",
)
@click.option(
    "--walltime",
    metavar="HH:MM:SS",
    help="Time limit of each element. Default: as in the script, else estimated from the plan.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help=(
        "Memory of each element, such as 4G. Default: as in the script, else estimated from the "
        "plan."
    ),
)
@click.option(
    "--sbatch",
    "options",
    metavar="OPTION",
    multiple=True,
    help='More options of sbatch, such as "--partition=short --nodes=2".',
)
@click.option(
    "--wait", is_flag=True, help="Wait until the command ends; the exit code is 0 if it succeeded."
)
@click.option(
    "--logs", default="wkwdask-logs", show_default=True, help="Folder for the output of the jobs."
)
def submit(
    verb: str,
    arguments: tuple[str, ...],
    config: str,
    walltime: str | None,
    memory: str | None,
    wait: bool,
    logs: str,
    **options: Any,
) -> None:
    """Submit the command VERB with its ARGUMENTS to SLURM, and print the ids of the jobs.

    With a job array (slurm-array), this machine makes the plan, the elements share the tasks, and a
    final job joins, checks and publishes the result. With an allocation (slurm-allocation), the
    command, or a Python script, runs in a job with its own dask cluster.

    \b
    Examples:
      wkwdask submit pyramid dataset --layer color --cluster slurm-array
      wkwdask submit rechunk dataset other --file-len 32 --cluster slurm-array --elements 100 --sbatch --partition=short
      wkwdask submit labels dataset --layer segmentation -o labels.parquet --cluster slurm-allocation
    """  # noqa: E501
    from wkwdask.clusters.config import load_config
    from wkwdask.plans.batch_size import ArraySize
    from wkwdask.runs.batch_file import Batch
    from wkwdask.runs.calls import current_call

    options["options"] = tuple(
        option for text in options["options"] for option in shlex.split(text)
    )
    loaded = load_config(config)
    _check_options(loaded.text, options["options"])
    logs = abspath(logs)
    if loaded.kind == "allocation":
        if memory or options["elements"] or options["cpus"] or options["at_once"]:
            raise click.UsageError(
                "--elements, --at-once, --cpus and --memory are for job arrays; edit the script of "
                "an allocation, or use --sbatch"
            )
        asked = [] if walltime is None else [f"--time={walltime}"]
        ended = _submit_allocation(
            loaded, (verb, *arguments), logs, [*asked, *options["options"]], wait=wait
        )
    elif loaded.kind == "array":
        size = ArraySize(
            options["elements"],
            options["cpus"],
            None if walltime is None else _seconds(walltime),
            _nbytes(memory),
            options["at_once"],
        )
        command = current_call().command
        batch = Batch(
            (verb, *arguments),
            os.getcwd(),
            loaded.text,
            logs,
            size,
            options["options"],
            command=() if command is None else command.arguments,
        )
        code = _submit_array(batch, (verb, *arguments), wait=wait)
        if code:
            click.get_current_context().exit(code)
        ended = code is not None
    else:
        raise click.UsageError(
            f"--cluster {config}: a cluster of kind {loaded.kind}, expected a batch script; run "
            f"the command directly: wkwdask {verb} ... --cluster {config}"
        )
    if not ended:
        raise TaskFailedError(
            f"wkwdask {verb} did not complete; see the output of its jobs in {logs}"
        )


def _check_options(script: str, options: Sequence[str]) -> None:
    """Raise if the script or the user sets an option of sbatch that this command sets itself."""
    from wkwdask.store.slurm import options_in

    remedies = {
        "array": "--elements sets the number of elements",
        "output": "--logs names the folder",
        "wait": "--wait waits for all jobs",
    }
    given_names = options_in("#SBATCH " + " ".join(options)).keys() | (
        options_in(script).keys() - {"output"}
    )
    for name in remedies.keys() & given_names:
        raise click.UsageError(f"--{name} of sbatch is set by wkwdask submit: {remedies[name]}")


def _submit_allocation(
    config: ClusterConfig,
    arguments: Sequence[str],
    logs: str,
    options: Sequence[str],
    *,
    wait: bool,
) -> bool:
    """Run a command or Python script in one job with its own dask cluster. Return False if ``wait``
    is set and the job failed."""
    from wkwdask.store.slurm import submit_job, wait_for_end
    from wkwdask.store.store import store_at

    verb = splitext(basename(arguments[0]))[0]
    program = [] if arguments[0].endswith(".py") else ["-m", "wkwdask"]
    store_at(logs).make()
    asked = [f"--job-name=wkwdask-{verb}", f"--output={logs}/{verb}-%j.log", *options]
    number = submit_job(
        str(config.path), [sys.executable, *program, *arguments], asked, os.getcwd()
    )
    click.echo(f"job {number}; output in {logs}/{verb}-{number}.log")
    return not wait or wait_for_end(number, partial(click.echo, err=True)) == "COMPLETED"


def _submit_array(batch: Batch, arguments: Sequence[str], *, wait: bool = False) -> int | None:
    """Run a command until its tasks are submitted as a job array, or to its end if few tasks are
    left.

    Return the exit code of a command that ended here or was submitted, None if ``wait`` is set and
    the array failed.
    """
    from wkwdask.clusters.config import CLUSTER_VARIABLE
    from wkwdask.graphs.job_array import submitting_to
    from wkwdask.runs.batch_file import HandedToSlurm
    from wkwdask.runs.status import wait_for_batch

    os.environ.pop(CLUSTER_VARIABLE, None)
    try:
        with submitting_to(batch):
            code = (
                click.get_current_context()
                .find_root()
                .command.main(list(arguments), prog_name="wkwdask", standalone_mode=False)
            )
    except HandedToSlurm as submission:
        _print_submission(submission)
        return (
            submission.exit_code
            if not wait
            or wait_for_batch(submission.root, submission.batch, partial(click.echo, err=True))
            else None
        )
    return code if isinstance(code, int) else 0


def _print_submission(handed: HandedToSlurm) -> None:
    last = handed.batch.rounds[-1]
    parent = shlex.quote(dirname(handed.root))
    click.echo(f"{last.tasks:,} tasks: {handed.size}")
    click.echo(f"array {last.array}, then job {last.finish}; output in {handed.batch.logs}")
    click.echo(
        f"wkwdask status {parent}    shows the progress; wkwdask cancel {parent} cancels the jobs "
        "and keeps finished work"
    )


@click.command("batch-element", hidden=True)
@click.argument("root")
@click.argument("number", type=int)
def batch_element(root: str, number: int) -> None:
    """Run the tasks of one element of a job array."""
    from wkwdask.graphs.job_array import element_job
    from wkwdask.graphs.runners import run_job

    element = int(os.environ["SLURM_ARRAY_TASK_ID"])
    with element_job(root, number, element, has_started_before=_has_started_before()) as job:
        if job is None:
            click.echo(f"{root}: the job is over")
        else:
            run_job(job, f"element {element}")


@click.command("batch-finish", hidden=True)
@click.argument("root")
@click.argument("again")
def batch_finish(root: str, again: str) -> None:
    """Finish a job after its array has ended.

    The command to run comes from AGAIN, an argument of this SLURM job, and not from the job's
    folder, which others may be able to write. If SLURM requeued this job after it had published its
    result, the folder is gone, and the command continues with its next step.
    """
    from wkwdask.model.summary import counted
    from wkwdask.runs.batch_file import Batch, read_batch
    from wkwdask.runs.calls import Command, current_call
    from wkwdask.store.slurm import count_states, describe_states

    before = read_batch(root)
    if before is None and not _has_started_before():
        click.echo(f"{root}: the job is over")
        return
    batch = replace(
        Batch.from_json(json.loads(again)), rounds=() if before is None else before.rounds
    )
    # it resumes the jobs that this one starts
    current_call().command = Command(batch.command, batch.folder)
    with contextlib.suppress(BatchError):  # the states are only information
        for last in batch.rounds[-1:]:
            states = count_states(last.array)
            click.echo(f"array {last.array}: {describe_states(states)}")
            # SLURM lists no element that never started
            failed = last.elements - states.get("COMPLETED", 0)
            if states and failed:
                click.echo(
                    f"{counted(failed, 'element')} did not complete: this job does the rest of "
                    f"their work, or submits it again; see {batch.logs}"
                )
    _submit_array(batch, with_policy(batch.arguments, "resume"))


def _has_started_before() -> bool:
    """Return whether SLURM requeued this job."""
    return os.environ.get("SLURM_RESTART_COUNT", "0") != "0"


def with_policy(arguments: Sequence[str], existing: str) -> list[str]:
    """Return the arguments of a command with another policy for existing data.

    Examples
    --------
    >>> with_policy(["pyramid", "ds", "--restart", "--layer", "a"], "overwrite")
    ['pyramid', 'ds', '--overwrite', '--layer', 'a']
    """
    policies = ("--resume", "--overwrite", "--restart")
    first = next(
        (n for n, argument in enumerate(arguments) if argument in policies), len(arguments)
    )
    return [
        *arguments[:first],
        f"--{existing}",
        *(argument for argument in arguments[first:] if argument not in policies),
    ]


def _with_command(status: JobStatus) -> JobStatus:
    """Return the status of a job with the command that resumes it."""
    command, existing = status.job.command, status.job.resumed_by
    if command is None or status.job.is_running:
        return status
    return replace(
        status,
        resume=command
        if existing is None
        else replace(command, arguments=tuple(with_policy(command.arguments, existing))),
    )


@click.command(short_help="Show the progress of jobs.")
@click.argument("path")
@click.option(
    "--follow",
    is_flag=True,
    help="Repeat until no job is running; all but the last are printed on standard error.",
)
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="Seconds between two updates, with --follow.",
)
@prints_facts
def status(path: str, follow: bool, every: float) -> Facts:
    """Show the progress of running, interrupted and finished jobs that write PATH, from any machine
    that can access the folder.

    The exit code is 3 if a job was interrupted or has failed tasks.

    \b
    Examples:
      wkwdask status dataset
      wkwdask status dataset/color --follow
    """
    from wkwdask.runs.retries import EXIT_CODE
    from wkwdask.runs.status import finished_jobs, jobs_of, status_of

    while True:
        statuses = [_with_command(status_of(job)) for job in jobs_of(path)]
        is_last = not follow or not any(status.job.is_running for status in statuses)
        shown: list[Any] = [*statuses, *(finished_jobs(path) if is_last else ())]
        text = (
            on_command_line("\n".join(map(str, shown)))
            or f"{path}: no running job, and no record of an earlier one"
        )
        if is_last:
            return Facts(
                shown,
                text,
                EXIT_CODE
                if any(not status.job.is_running or status.failures for status in statuses)
                else 0,
            )
        click.echo(text, err=True)
        time.sleep(every)


@click.command(short_help="Cancel the SLURM jobs of a dataset, a layer or a mag.")
@click.argument("path")
@click.option(
    "--discard", is_flag=True, help="Also remove interrupted jobs and their finished work."
)
@prints_facts
def cancel(path: str, discard: bool) -> Facts:
    """Cancel the SLURM jobs that write PATH. Finished work is kept for the same command to resume,
    unless --discard removes it.

    \b
    Examples:
      wkwdask cancel dataset/color
      wkwdask cancel dataset/color --discard
    """
    from wkwdask.runs.job_folder import discard_interrupted
    from wkwdask.runs.status import jobs_of
    from wkwdask.store.slurm import cancel_jobs

    jobs = [
        (job, job.slurm_jobs() if job.is_running else job.orphaned_arrays())
        for job in jobs_of(path)
    ]
    running = [(job, numbers) for job, numbers in jobs if job.is_running or numbers]
    interrupted = [job for job, _ in jobs if not job.is_running] if discard else []
    if not running and not interrupted:
        interrupted_job = next((job for job, _ in jobs if not job.is_running), None)
        raise MissingError(
            f"{path}: no running job"
            + (
                f"; {interrupted_job.owner} was interrupted, --discard removes it"
                if interrupted_job
                else ""
            )
        )
    for job, numbers in running:
        if not numbers:
            raise BatchError(f"{job.root}: {job.owner}: not a SLURM job; end its process there")
        cancel_jobs(reversed(numbers))  # the final job first: it would start once the array is gone
    for job in interrupted:
        discard_interrupted(job.root)
    lines = [f"cancelled {', '.join(numbers)}: {job.owner}" for job, numbers in running] + [
        f"removed {job.root}: {job.owner}" for job in interrupted
    ]
    return Facts(
        {
            "cancelled": [number for _, numbers in running for number in numbers],
            "removed": [job.root for job in interrupted],
        },
        "\n".join(lines),
    )


def _seconds(walltime: str) -> float:
    from wkwdask.clusters.config import walltime_seconds

    try:
        return float(walltime_seconds(walltime, "SLURMCluster"))
    except ValueError:
        raise click.UsageError(
            f"--walltime takes HH:MM:SS, D-HH:MM:SS or minutes, got {walltime!r}"
        ) from None


def _nbytes(memory: str | None) -> int | None:
    if memory is None:
        return None
    match = re.fullmatch(r"(\d+)([KMGT]?)i?B?", memory, re.IGNORECASE)
    if match is None:
        raise click.UsageError(f"--memory takes a size such as 4G or 900M, got {memory!r}")
    return int(match[1]) * _UNITS[match[2].upper()]
