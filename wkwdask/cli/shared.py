"""What several commands have in common."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

METHODS = ("default", "median", "mode", "mean", "min", "max", "nearest")
COMPRESSIONS = ("lz4hc", "lz4", "raw")
SAMPLINGS = ("anisotropic", "isotropic", "constant_z")

scheduler_option = click.option(
    "--scheduler", metavar="ADDRESS", help="Run on the dask cluster at this address, such as tcp://host:8786. Default: on this machine's cores."
)
external_option = click.option(
    "--allow-external", is_flag=True, help="Write (or delete) where paths or links lead out of the dataset. Default: that is refused."
)
resume_option = click.option("--resume", is_flag=True, help="Go on with an interrupted run; do nothing if it was finished.")


def existing_of(resume: bool, overwrite: bool) -> Any:
    """Turn the two flags into what ``existing=`` takes."""
    if resume and overwrite:
        raise click.UsageError("--resume goes on with a run, --overwrite starts anew: give one of them")
    return "overwrite" if overwrite else "resume" if resume else "error"


def cluster_at(address: str | None) -> AbstractContextManager[Any]:
    """Connect to a dask cluster; without an address, jobs run on this machine."""
    if address is None:
        return nullcontext()
    from distributed import Client

    client: AbstractContextManager[Any] = Client(address)
    return client


def split_mags(mags: str | None) -> list[str] | None:
    """Part a list of mags."""
    return None if mags is None else mags.split(",")
