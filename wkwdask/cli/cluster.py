"""The commands that show, render and check configurations of clusters."""

from __future__ import annotations

import click


@click.group(short_help="Show, render and check clusters that jobs can run on.")
def cluster() -> None:
    """Show, render and check clusters that jobs can run on.

    A cluster is a file of settings, known by its name: copy a shipped one to ~/.config/wkwdask/clusters, change in it what says CHANGE, check it, and give
    its name to any verb.

    \b
    Examples:
      wkwdask cluster list
      wkwdask cluster render slurm-jobqueue
      wkwdask cluster check my-cluster --folder /shared/folder
      wkwdask pyramid dataset --cluster my-cluster
    """


@cluster.command("list", short_help="List the clusters that have a name.")
def list_clusters() -> None:
    """List the clusters that have a name, with their kinds and files.

    They are looked for in the folders of $WKWDASK_CLUSTERS, in ~/.config/wkwdask/clusters, then among the shipped ones; the first of a name counts.
    """
    from wkwdask.clusters.config import known_configs, load_config
    from wkwdask.errors import FormatError

    known = known_configs()
    width = max(map(len, known), default=0)
    for name, path in known.items():
        try:
            kind = load_config(path).kind
        except FormatError:
            kind = "broken"
        click.echo(f"{name:{width}}  {kind:10}  {path}")


@cluster.command(short_help="Print the job script of a cluster.")
@click.argument("config")
def render(config: str) -> None:
    """Print what would be submitted: the script of one job, the batch script, the manifests. Nothing is submitted.

    \b
    Examples:
      wkwdask cluster render slurm-jobqueue
      wkwdask cluster render slurm-allocation > ~/.config/wkwdask/clusters/mine.sbatch
    """
    from wkwdask.clusters.config import load_config
    from wkwdask.clusters.render import render as write

    click.echo(write(load_config(config)).rstrip("\n"))


COMMANDS = (cluster,)
