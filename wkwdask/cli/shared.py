"""What several commands have in common."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

METHODS = ("default", "median", "mode", "mean", "min", "max", "nearest")
SAMPLINGS = ("anisotropic", "isotropic", "constant_z")

external_option = click.option(
    "--allow-external", is_flag=True, help="Allow writing and deleting where paths or links lead out of the dataset. Default: refuse."
)
resume_option = click.option("--resume", is_flag=True, help="Resume an interrupted run; do nothing if it has finished.")


def existing_of(resume: bool, overwrite: bool) -> Any:
    """Turn the two flags into what ``existing=`` takes."""
    if resume and overwrite:
        raise click.UsageError("--resume goes on with a run, --overwrite starts anew: give one of them")
    return "overwrite" if overwrite else "resume" if resume else "error"


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say where it runs; it gets the argument ``cluster``, to be entered when the work begins."""

    @click.option(
        "--cluster", metavar="FILE|NAME", help="Run on this cluster (wkwdask cluster list). Default: what $WKWDASK_CLUSTER says, else this machine's cores."
    )
    @click.option("--scheduler", metavar="ADDRESS", help="Run on the dask cluster at this address, such as tcp://host:8786.")
    @click.option("--report", "performance_report", metavar="FILE.html", help="Keep dask's performance report of the run; needs a cluster and bokeh.")
    @functools.wraps(command)
    def run(*args: Any, cluster: str | None, scheduler: str | None, performance_report: str | None, **options: Any) -> Any:
        if cluster is not None and scheduler is not None:
            raise click.UsageError("--cluster names a configuration, --scheduler an address: give one of them")
        from wkwdask.clusters.connect import cluster as run_on

        return command(*args, cluster=run_on(cluster or scheduler, report=performance_report), **options)

    return run


def numbers(text: str, option: str, number: Any) -> tuple[Any, ...]:
    """Part a list of numbers."""
    try:
        return tuple(number(part) for part in text.split(","))
    except ValueError:
        raise click.UsageError(f"--{option} takes numbers with commas between them, got {text!r}") from None


def split_mags(mags: str | None) -> list[str] | None:
    """Part a list of mags."""
    return None if mags is None else mags.split(",")
