"""Commands that show a dataset, build its pyramid, draw it, and make a demo dataset."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import wkwdask
from wkwdask.cli.messages import on_command_line
from wkwdask.cli.options import (
    METHODS,
    StorageCommand,
    box_option,
    cluster_options,
    external_option,
    index_option,
    numbers_callback,
    resume_options,
    runs_on_cluster,
    space_option,
    storage_options,
)
from wkwdask.cli.results import Facts, prints_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.model.image import Image


@click.command(short_help="Show the contents of a dataset or volume.")
@click.argument("path")
@click.option("--layer", help="Layer of a dataset to show. Default: all.")
@index_option
@prints_facts
def info(path: str, layer: str | None, index: dict[str, int] | None) -> Facts:
    """Show the contents of a dataset, a layer or a mag, or of a precomputed volume, N5 or Zarr.

    Boxes are top left + size [voxels of the mag]. Blocks and files are edge lengths [voxels].

    \b
    Examples:
      wkwdask info dataset
      wkwdask info dataset/color/1 --json
      wkwdask info precomputed://https://host/volume
      wkwdask info n5://volume.n5/em
    """
    # else the import of numpy starts a thread for each core
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from wkwdask.cli.tables import print_contents

    summary = wkwdask.info(path, layer=layer, index=index)
    return Facts(summary, partial(print_contents, summary))


@click.command(
    cls=StorageCommand, short_help="Build the coarser mags of layers (also: downsample)."
)
@click.argument("path")
@click.option(
    "--layer",
    "layers",
    multiple=True,
    help="Layer to process; may be repeated, or omitted if there is only one.",
)
@click.option(
    "--all-layers",
    is_flag=True,
    help=(
        "Process all layers of the dataset. Layers in a format that is unknown here are left out; "
        "then the exit code is 3."
    ),
)
@click.option(
    "--finest", metavar="MAG", help="Mag to start from. Default: the finest that has files."
)
@click.option(
    "--mags",
    metavar="MAG,MAG",
    help="Mags to build, such as 2-2-1,4-4-2,8. Default: WEBKNOSSOS's ladder.",
)
@click.option(
    "--coarsest",
    metavar="MAG",
    help="Last mag of the ladder, such as 16 or 16-16-4. Default: as WEBKNOSSOS chooses.",
)
@click.option(
    "--sampling",
    type=click.Choice(("anisotropic", "isotropic", "constant_z")),
    help="Rule of the ladder. Default: anisotropic (approaches cubic voxels).",
)
@click.option(
    "--align-with",
    metavar="LAYER",
    help=(
        'Align the ladder with the mags of this layer, or of none ("none"). Default: all other '
        "layers."
    ),
)
@click.option(
    "--method",
    type=click.Choice(("default", *METHODS)),
    default="default",
    help=(
        "Reduction of a window to a voxel. Default: mode for segmentation, median for color, mean "
        "for precomputed images."
    ),
)
@click.option("--ignore-zero", is_flag=True, help="Ignore zeros (mode, mean, median).")
@storage_options("as in the finest mag; raw blocks of WKW become lz4hc")
@resume_options("Replace existing mags; continue an interrupted run.")
@click.option(
    "--update", is_flag=True, help="Rebuild, in place, only the files whose source files changed."
)
@click.option(
    "--update-content",
    is_flag=True,
    help="Compute all files again, and replace those that differ in place.",
)
@box_option("Rebuild, in place, only the files that show this part of the layer [voxels of mag 1].")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the plan: tasks, files, bytes, memory, time. Nothing is written.",
)
@external_option
@space_option
@runs_on_cluster
def pyramid(
    path: str,
    layers: tuple[str, ...],
    all_layers: bool,
    align_with: str | None,
    update: bool,
    update_content: bool,
    dry_run: bool,
    **options: Any,
) -> Any:
    """Build all coarser mags of a layer, in one pass over its finest mag.

    The new mags are published when all of them are complete. An interrupted run leaves no
    incomplete mags; the same command continues it.

    \b
    Examples:
      wkwdask pyramid dataset --layer color --dry-run
      wkwdask pyramid dataset --all-layers
      wkwdask pyramid dataset/segmentation --coarsest 16-16-4 --overwrite
      wkwdask pyramid dataset/segmentation --mags 4-4-1,8-8-2 --ignore-zero
      wkwdask pyramid dataset/segmentation --update --dry-run
      wkwdask pyramid folder-without-json --method mode
      wkwdask pyramid precomputed://neurons
    """
    if all_layers and layers:
        raise click.UsageError("use --layer or --all-layers, not both")
    names: list[Any]
    names, left_out = _all_layers(path) if all_layers else (list(layers), [])
    options["align_with"] = {None: True, "none": False}.get(align_with, align_with)
    options["update"] = "content" if update_content else update
    if dry_run:
        return lambda: _without(
            [wkwdask.plan_pyramid(path, name, **options) for name in names or [None]], left_out
        )
    build = partial(wkwdask.build_pyramid, path, names or None, **options)
    return partial(_build_without, build, left_out) if left_out else build


def _build_without(build: Callable[[], Any], left_out: list[str]) -> Facts:
    """Build the pyramids of some layers of a dataset; see :func:`_without`. The exit code holds
    after a submission to SLURM too."""
    from wkwdask.runs.batch_file import HandedToSlurm

    try:
        result = build()
    except HandedToSlurm as submission:
        submission.exit_code = _without(None, left_out).exit_code
        raise
    return _without(result, left_out)


def _without(result: Any, left_out: list[str]) -> Facts:
    """Return the result for some layers of a dataset, and print the reason for each layer that is
    left out to standard error."""
    from wkwdask.runs.retries import EXIT_CODE

    for reason in left_out:
        click.echo(on_command_line(f"left out: {reason}"), err=True)
    text = "\n\n".join(map(str, result)) if isinstance(result, list) else None
    return Facts(result, text, EXIT_CODE if left_out else 0)


def _all_layers(path: str) -> tuple[list[str], list[str]]:
    """Return the names of the layers of a dataset to process, and the reason for each other layer.

    Invalid layers are included, so that they raise their errors, and so are all layers if none can
    be processed.
    """
    from wkwdask.errors import MissingError
    from wkwdask.formats.opening import find, why_not_written

    def why_not(layer: Image) -> str:
        if reason := why_not_written(layer):
            return reason
        try:
            located.readable(layer).finest_mag()
        except MissingError as error:
            return str(error)
        return ""

    located = find(path)
    reasons = {layer.name: why_not(layer) for layer in located.layers}
    names = [
        *(name for name, reason in reasons.items() if not reason),
        *(invalid.name for invalid in located.invalid_layers),
    ]
    return (names, list(filter(None, reasons.values()))) if names else (list(reasons), [])


@click.command(cls=StorageCommand, short_help="Upsample a layer to finer mags.")
@click.argument("path")
@click.option("--layer", help="Layer to upsample; may be omitted if there is only one.")
@click.option(
    "--mag",
    "source",
    metavar="MAG",
    help="Coarse mag to start from. Default: the finest that has files.",
)
@click.option(
    "--finest",
    metavar="MAG",
    help=(
        "Finest mag to build; missing mags between it and the coarse mag are built too. Default: 1."
    ),
)
@click.option("--mags", metavar="MAG,MAG", help="Mags to build instead, such as 1,2-2-1.")
@click.option(
    "--voxel-size",
    metavar="X,Y,Z",
    callback=numbers_callback("voxel-size", float),
    help=(
        "Size of a voxel of mag 1 [nm]. A smaller one than now adds finer levels to a precomputed "
        "volume or an N5 group."
    ),
)
@storage_options("as in the coarse mag, lz4hc if that is raw")
@resume_options("Replace existing mags; continue an interrupted run.")
@external_option
@space_option
@runs_on_cluster
def upsample(path: str, **options: Any) -> Any:
    """Upsample a layer or an image to finer mags: each voxel becomes a block of equal voxels.

    The new mags are published when all of them are complete. An interrupted run leaves no
    incomplete mags; the same command continues it.

    \b
    Examples:
      wkwdask upsample dataset --layer prediction
      wkwdask upsample dataset/prediction --mag 4 --finest 2
      wkwdask upsample dataset/prediction --mag 4-4-1 --mags 1 --overwrite
      wkwdask upsample precomputed://prediction --voxel-size 4,4,40
    """
    return partial(wkwdask.upsample, path, **options)


@click.command(short_help="Draw three orthogonal slices, or a mesh.")
@click.argument("path")
@click.option(
    "-o", "--output", default="preview.png", show_default=True, help="File of the picture."
)
@click.option(
    "--layer",
    help="Draw only this layer. Default: the first color layer under the first segmentation.",
)
@click.option("--mag", help="Mag to draw. Default: the coarsest that has a voxel for each pixel.")
@index_option
@click.option(
    "--size",
    type=click.IntRange(32, 8192),
    default=640,
    show_default=True,
    help="Longest edge of the largest panel [pixels].",
)
@click.option("--mesh", type=click.IntRange(1), metavar="ID", help="Draw the mesh of this label.")
@prints_facts
def preview(path: str, output: str, **options: Any) -> Facts:
    """Draw three orthogonal slices through the middle of a dataset, a layer or a mag, or one mesh.

    \b
    Examples:
      wkwdask preview dataset -o picture.png
      wkwdask preview dataset --layer segmentation --size 1200
      wkwdask preview precomputed://neurons --mesh 17
    """
    picture = wkwdask.preview(path, output, **options)
    return Facts({"picture": picture}, f"wrote {picture}")


@click.command(short_help="Make a small dataset with pyramids, and draw it.")
@click.argument("folder", default="demo-dataset", type=click.Path(path_type=Path))
@cluster_options
def demo(folder: Path, cluster: Any) -> None:
    """Make a small dataset with pyramids in FOLDER, and draw it.

    \b
    Example:
      wkwdask demo my-first-dataset
    """
    from wkwdask.cli.tables import print_contents
    from wkwdask.cli.warmup import compile_for_demo

    click.echo(f"making {folder}: an image and a segmentation, then the pyramid of each")
    compile_for_demo()
    with cluster:
        reports = wkwdask.make_demo(folder)
    for report in reports:
        click.echo(on_command_line(str(report)))
    print_contents(wkwdask.info(folder))
    picture = wkwdask.preview(folder, folder / "preview.png")
    click.echo(
        f"""
preview:               {picture}
open it in Python:     import wkwdask; wkwdask.open("{folder}", layer="color", mag=1)
compute one slice:     wkwdask.open("{folder}", layer="color")[0, :, :, 96].compute()
build another pyramid: wkwdask pyramid {folder} --layer color --method mean --overwrite
show its contents:     wkwdask info {folder}"""
    )
