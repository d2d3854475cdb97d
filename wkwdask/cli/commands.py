"""The commands, each a thin shell around a public function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from wkwdask.jobs.report import Report

_METHODS = ("default", "median", "mode", "mean", "min", "max", "nearest")
_COMPRESSIONS = ("lz4hc", "lz4", "raw")
_CLOSE_SECONDS = 30


@click.command(short_help="Show what is in a dataset, a layer or a mag.")
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
def info(path: str, as_json: bool) -> None:
    """Show what is in a dataset, a layer or a mag.

    Boxes are voxels of each mag: top left + size. Blocks and files are voxels along an edge.

    \b
    Examples:
      wkwdask info dataset
      wkwdask info dataset/color/1 --json
    """
    from wkwdask.cli.tables import print_summary
    from wkwdask.storage.summary import summarize

    summary = summarize(path)
    if as_json:
        import json

        click.echo(json.dumps(summary.to_json(), indent=2))
    else:
        print_summary(summary)


@click.command(short_help="Make all coarser mags of a layer.")
@click.argument("path")
@click.option("--layer", help="The layer; may be omitted where there is one.")
@click.option(
    "--method", type=click.Choice(_METHODS), default="default", help="How a window becomes a voxel. Default: median for color, mode for segmentation."
)
@click.option("--coarsest", metavar="MAG", help="Where the pyramid ends, such as 16 or 16-16-4. Default: as WEBKNOSSOS chooses.")
@click.option("--compression", type=click.Choice(_COMPRESSIONS), help="Default: as in the finest mag, lz4hc if that is raw.")
@click.option("--level", type=click.IntRange(1, 12), default=5, show_default=True, help="LZ4HC level; 9 makes the smallest usual files, slowly.")
@click.option("--overwrite", is_flag=True, help="Replace mags that are there already.")
@click.option("--scheduler", metavar="ADDRESS", help="Run on the dask cluster at this address, such as tcp://host:8786. Default: on this machine's cores.")
def pyramid(
    path: str, layer: str | None, method: str, coarsest: str | None, compression: str | None, level: int, overwrite: bool, scheduler: str | None
) -> None:
    """Make all coarser mags of a layer, in one pass over its finest mag.

    The new mags appear when all of them are complete; an interrupted run leaves nothing behind that could be mistaken for data.

    \b
    Examples:
      wkwdask pyramid dataset --layer color
      wkwdask pyramid dataset/segmentation --coarsest 16-16-4 --overwrite
      wkwdask pyramid folder-without-json --method mode
    """
    from contextlib import nullcontext

    from wkwdask.api import build_pyramid

    with _client(scheduler) if scheduler is not None else nullcontext():
        report = build_pyramid(
            path,
            layer,
            method=method,
            coarsest=coarsest,
            compression=compression,
            level=level,
            existing="overwrite" if overwrite else "error",
        )
    click.echo(str(report))


@click.command(short_help="Draw three orthogonal slices.")
@click.argument("path")
@click.option("-o", "--output", default="preview.png", show_default=True, help="The picture to write.")
@click.option("--layer", help="Draw this layer alone. Default: the first color layer under the first segmentation.")
@click.option("--mag", help="The mag to draw. Default: one that is just fine enough.")
@click.option("--size", type=click.IntRange(32, 8192), default=640, show_default=True, help="Longest edge of the largest panel [pixels].")
def preview(path: str, output: str, layer: str | None, mag: str | None, size: int) -> None:
    """Draw three orthogonal slices through the middle of a dataset, a layer or a mag.

    \b
    Examples:
      wkwdask preview dataset -o picture.png
      wkwdask preview dataset --layer segmentation --size 1200
    """
    from wkwdask.viewer.preview import preview as draw

    click.echo(f"wrote {draw(path, output, layer=layer, mag=mag, size=size)}")


@click.command(short_help="Make a small dataset with pyramids, and draw it.")
@click.argument("folder", default="demo-dataset", type=click.Path(path_type=Path))
@click.option("--workers", type=click.IntRange(1), help="Processes of the local cluster. Default: one per core.")
def demo(folder: Path, workers: int | None) -> None:
    """Make a small dataset with pyramids in FOLDER, on a local cluster, and draw it.

    \b
    Example:
      wkwdask demo my-first-dataset
    """
    from wkwdask.cli.tables import print_summary
    from wkwdask.graphs.runners import available_cores
    from wkwdask.storage.summary import summarize
    from wkwdask.viewer.preview import preview as draw

    workers = workers or available_cores()
    click.echo(f"making {folder} with {workers} worker processes: an image and a segmentation, then the pyramid of each")
    reports = _on_local_cluster(workers, folder)
    for report in reports:
        click.echo(str(report))
    print_summary(summarize(folder))
    picture = draw(folder, folder / "preview.png")
    click.echo(
        f"""
a picture of it:       {picture}
open it in Python:     import wkwdask; wkwdask.open("{folder}", layer="color", mag=1)
look at one slice:     wkwdask.open("{folder}", layer="color")[0, :, :, 96].compute()
another pyramid:       wkwdask pyramid {folder} --layer color --method mean --overwrite
what is in there:      wkwdask info {folder}"""
    )


def _client(address: str) -> Any:
    from distributed import Client

    return Client(address)


def _on_local_cluster(workers: int, folder: Path) -> list[Report]:
    from contextlib import suppress

    from distributed import Client, LocalCluster

    from wkwdask.viewer.demo import make_demo

    cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0")
    try:
        with Client(cluster):
            return make_demo(folder)
    finally:
        with suppress(TimeoutError):  # a worker that does not answer is ended with this process
            cluster.close(timeout=_CLOSE_SECONDS)


COMMANDS = (info, pyramid, preview, demo)
