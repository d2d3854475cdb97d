"""Command that applies a function."""

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


@click.command(cls=StorageCommand, short_help="Apply your own function to layers.")
@click.argument("function")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE... [TARGET]")
@click.option(
    "--reduce",
    "is_reduction",
    is_flag=True,
    help="Write no target: print the sum of what the function returns.",
)
@shape_option(
    "--halo", "Margin that the function reads around its box [voxels]; one number for all axes."
)
@mask_option
@where_option("Corners of the box to compute [voxels of the mag]; everything else becomes zero.")
@click.option(
    "--skip-empty",
    is_flag=True,
    help="Skip boxes in which the first source is zero; their result is zero.",
)
@shape_option("--chunks", "Box that one call computes [voxels]; one number for all axes.")
@arguments_option
@calls_options
@click.option("--dtype", help="Data type of the result. Default: that of the first source.")
@click.option(
    "--channels",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of channels of the result.",
)
@click.option(
    "--category",
    type=click.Choice(("color", "segmentation")),
    help="Category of a new layer. Default: chosen by the data type.",
)
@token_option
@retries_option
@storage_options("as in the first source, lz4hc if that is raw")
@resume_options("Replace an existing mag, and start over: the function may have changed.")
@external_option
@space_option
@runs_on_cluster
def apply(
    function: str,
    sources: tuple[str, ...],
    is_reduction: bool,
    halo: Any,
    arguments: tuple[str, ...],
    **options: Any,
) -> Any:
    """Apply FUNCTION, named as module:function or file.py:function, to one or several SOURCEs, and
    write the mag TARGET.

    The function receives one numpy array (x, y, z) per source and returns an array of the same
    shape. The mag is published when it is complete; the same command continues an interrupted run.
    Boxes in which the function failed are listed.

    \b
    Examples:
      wkwdask apply scipy.ndimage:gaussian_filter --arg sigma=2 --halo 8 dataset/color/1 dataset/smooth/1
      wkwdask apply my_functions.py:threshold dataset/color/2 dataset/mask/2 --dtype uint8
      wkwdask apply my_functions.py:clean dataset/seg/1 dataset/tissue/8 dataset/clean/1 --mask dataset/tissue/8
      wkwdask apply numpy:count_nonzero dataset/seg/1 --reduce
    """  # noqa: E501
    called = import_function(function, arguments)
    target = None if is_reduction else sources[-1]
    urls = sources if is_reduction else sources[:-1]
    if not urls:
        raise click.UsageError("name the sources and a target, or --reduce")
    return partial(wkwdask.apply, called, list(urls), target, halo=halo or 0, **options)
