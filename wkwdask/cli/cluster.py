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


@cluster.command("list", short_help="List the named clusters.")
def list_clusters() -> None:
    """List the named clusters with their kinds and files.

    They are searched in the folders of $WKWDASK_CLUSTERS, in ~/.config/wkwdask/clusters, then among the shipped ones; the first of a name counts.
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
    from wkwdask.clusters.jobqueue import render as write

    click.echo(write(load_config(config)).rstrip("\n"))


@cluster.command(short_help="Start one worker, check its environment, and stop it.")
@click.argument("config")
@click.option("--folder", required=True, type=click.Path(exists=True, file_okay=False), help="A folder that workers must see, such as the one with the data.")
@click.option("--timeout", "seconds", type=click.FloatRange(1), default=600, show_default=True, help="How long to wait for the worker [s].")
def check(config: str, folder: str, seconds: float) -> None:
    """Start one worker, compare its versions with those here, try the shared folder from both sides, look at scratch and memory, and stop everything.

    Exit code 1: something is wrong.

    \b
    Example:
      wkwdask cluster check slurm-jobqueue --folder /shared/folder
    """
    from wkwdask.clusters.check import check_cluster
    from wkwdask.clusters.config import load_config

    found = check_cluster(load_config(config), folder, seconds)
    widths = [max(len(text) for text in column) for column in zip(*((one.what, one.found) for one in found), strict=True)]
    for one in found:
        click.echo(f"{'fine ' if one.is_fine else 'WRONG'}  {one.what:{widths[0]}}  {one.found:{widths[1]}}  {one.remedy}".rstrip())
    if not all(one.is_fine for one in found):
        click.get_current_context().exit(1)


@cluster.command(hidden=True)
@click.option("--folder", required=True)
@click.option("--token", required=True)
@click.option("--output", required=True)
def probe(folder: str, token: str, output: str) -> None:
    """Look around inside a job, on one of its workers where it has some, and write what was found as JSON."""
    import json

    from wkwdask.clusters import check
    from wkwdask.clusters.connect import cluster as connect
    from wkwdask.clusters.probe import probe as look
    from wkwdask.store import files

    with connect() as client:
        facts = look(folder, token) if client is None else check.on_worker(client, folder, token, 300)
    with open(f"{output}.part", "w", encoding="utf-8") as file:
        json.dump(facts, file)
    files.rename(f"{output}.part", output)


COMMANDS = (cluster,)
