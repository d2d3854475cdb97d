"""Command that segments volumes block by block."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

import wkwdask
from wkwdask.cli.functions import (
    arguments_option,
    calls_options,
    import_function,
    mask_option,
    retries_option,
    shape_option,
    token_option,
)
from wkwdask.cli.options import (
    StorageCommand,
    external_option,
    resume_options,
    runs_on_cluster,
    space_option,
    storage_options,
    where_option,
)


@click.command(cls=StorageCommand, short_help="Segment layers of any size with your own function.")
@click.argument("function")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE... TARGET")
@shape_option(
    "--halo", "Margin around each block [voxels], about the diameter of an object.", required=True
)
@shape_option(
    "--chunks",
    "Block that one call segments [voxels]; one number for all axes.",
    default="256",
    show_default=True,
)
@click.option(
    "--match",
    type=click.Choice(("overlap", "touch")),
    default="overlap",
    show_default=True,
    help="Join labels that overlap at the faces of blocks, or labels that touch there.",
)
@click.option(
    "--min-overlap",
    type=float,
    default=0.5,
    show_default=True,
    help="Intersection over union above which labels are joined.",
)
@click.option(
    "--connectivity",
    type=click.Choice(("6", "18", "26")),
    default="26",
    show_default=True,
    help="Neighbors of a voxel for --match touch: sharing a face, also an edge, also a corner.",
)
@click.option(
    "--stitch",
    metavar="AXES",
    default="xyz",
    show_default=True,
    help="Axes along which blocks are joined; xy segments every section for itself.",
)
@click.option(
    "--one-per-block",
    is_flag=True,
    help="Do not join labels into an object with two labels of one block.",
)
@click.option(
    "--max-voxels",
    type=click.IntRange(1),
    help="Do not join labels into an object with more voxels.",
)
@click.option(
    "--min-voxels",
    type=click.IntRange(0),
    default=0,
    help="Minimum size of an object; smaller ones become 0.",
)
@mask_option
@where_option("Corners of the box to segment [voxels of the mag]; everything else becomes zero.")
@click.option(
    "--skip-empty/--no-skip-empty",
    default=True,
    show_default=True,
    help="Skip blocks in which the first source is zero.",
)
@arguments_option
@calls_options
@click.option(
    "--dtype", help="Data type of the ids. Default: uint32, or uint64 for more than 2^32 - 1 ids."
)
@click.option(
    "--category",
    type=click.Choice(("color", "segmentation")),
    help="Category of a new layer. Default: segmentation.",
)
@click.option(
    "--table",
    metavar="FILE",
    help="Table of the objects, .csv or .parquet: voxels, box and centroid of each.",
)
@click.option(
    "--refused",
    metavar="FILE",
    help="Table of the pairs of labels that --one-per-block or --max-voxels refuse.",
)
@click.option(
    "--extra",
    metavar="MAG",
    help="Mag for a second array that the function returns, such as probabilities.",
)
@token_option
@retries_option
@click.option(
    "--on-error",
    type=click.Choice(("fail", "fill")),
    default="fail",
    show_default=True,
    help="Fail if the function does, after all other blocks; or leave such blocks empty.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show the blocks that would be segmented; write nothing."
)
@storage_options("as in the first source, lz4hc if that is raw")
@resume_options("Replace an existing mag, and start over: the function may have changed.")
@external_option
@space_option
@runs_on_cluster
def segment(
    function: str,
    sources: tuple[str, ...],
    connectivity: str,
    arguments: tuple[str, ...],
    **options: Any,
) -> Any:
    """Segment one or several SOURCEs block by block with FUNCTION, named as module:function or
    file.py:function, and write the mag TARGET with one id per object.

    The function receives one numpy array (x, y, z) per source and returns integer labels of the
    same shape. Labels of neighbouring blocks that show the same object are joined. The mag is
    published when it is complete; the same command continues an interrupted run.

    \b
    Examples:
      wkwdask segment cells.py:watershed dataset/color/1 dataset/cells/1 --halo 32
      wkwdask segment cells.py:watershed dataset/color/2 dataset/cells/2 --halo 16,16,8 --chunks 512,512,128 --table cells.csv
      wkwdask segment skimage.measure:label dataset/mask/1 dataset/parts/1 --halo 0 --match touch
    """  # noqa: E501
    *urls, target = sources
    if not urls:
        raise click.UsageError("name the sources and a target")
    neighbors: Any = int(connectivity)
    called = import_function(function, arguments)
    return partial(wkwdask.segment, called, urls, target, connectivity=neighbors, **options)
