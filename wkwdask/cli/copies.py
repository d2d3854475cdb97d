"""Commands that copy, remove, rechunk and compress stored mags."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

import wkwdask
from wkwdask.cli.options import (
    StorageCommand,
    box_option,
    cluster_options,
    combined_options,
    external_option,
    layers_option,
    mags_option,
    resume_options,
    runs_on_cluster,
    space_option,
    storage_options,
)
from wkwdask.cli.results import prints_facts
from wkwdask.errors import MissingError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Triple(click.ParamType):
    """Three whole numbers."""

    name = "X,Y,Z"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse three numbers with commas between them."""
        try:
            x, y, z = (int(number) for number in value.split(","))
        except ValueError:
            self.fail(f"expected three whole numbers such as 100,0,-20, got {value!r}", param, ctx)
        return x, y, z


@click.command(short_help="Copy a dataset, a layer or a mag, or a box of it.")
@click.argument("path")
@click.argument("target")
@layers_option
@mags_option
@box_option("Bounding box to copy [voxels of mag 1].")
@click.option(
    "--translate",
    type=Triple(),
    default="0,0,0",
    help="Offset added to all positions [voxels of mag 1].",
)
@click.option("--verify", is_flag=True, help="Compare all voxels before a mag is published.")
@resume_options("Replace existing mags of the target; continue an interrupted run.")
@external_option
@space_option
@runs_on_cluster
def copy(path: str, target: str, **options: Any) -> Any:
    """Copy a dataset, a layer or a mag to TARGET, under the same name or another one.

    Files or stored blocks are copied without decoding where possible. The same command continues an
    interrupted run.

    \b
    Examples:
      wkwdask copy dataset backup
      wkwdask copy dataset/color other/raw --mags 1,2
      wkwdask copy dataset cutout --bounding-box 1000,1000,500,512,512,256 --translate=-1000,-1000,-500
    """  # noqa: E501
    return partial(wkwdask.copy, path, target, **options)


@click.command(short_help="Delete a dataset, a layer or mags.")
@click.argument("path")
@layers_option
@mags_option
@click.option("--dry-run", is_flag=True, help="Show what would be removed; delete nothing.")
@click.option("--yes", is_flag=True, help="Remove without confirmation.")
@external_option
@prints_facts
@cluster_options
def rm(
    path: str, dry_run: bool, yes: bool, cluster: AbstractContextManager[Any], **options: Any
) -> Any:
    """Delete a dataset, a layer or a mag: its files and its entry in the JSON.

    Files that belong to no mag stay. The same command completes an interrupted removal.

    \b
    Examples:
      wkwdask rm dataset/color/1
      wkwdask rm dataset --layer prediction --dry-run
    """
    if dry_run or not yes:
        if not dry_run and not _is_terminal():
            raise click.UsageError(
                "standard input is not a terminal: use --yes to remove without confirmation, or "
                "--dry-run to see what would be removed"
            )
        try:
            planned = wkwdask.rm(path, **options, dry_run=True)
            if dry_run:
                return planned
            click.echo(str(replace(planned, note="")), err=True)
        except MissingError:
            # an interrupted removal may have left only hidden folders, which the removal below
            # deletes
            if dry_run:
                raise
        click.confirm("Remove?", abort=True, err=True)
    with cluster:
        return wkwdask.rm(path, **options)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


_rechunk_options = combined_options(
    click.argument("path"),
    click.argument("target", required=False),
    layers_option,
    mags_option,
    box_option("Bounding box to store [voxels of mag 1]; needs a target."),
    click.option(
        "--verify/--no-verify",
        default=None,
        help=(
            "Compare all voxels before a mag is published. Default: only if it replaces a mag in "
            "place."
        ),
    ),
    resume_options("Replace existing mags of the target; continue an interrupted run."),
    external_option,
    space_option,
    runs_on_cluster,
)


@click.command(cls=StorageCommand, short_help="Store mags with other files, blocks or compression.")
@_rechunk_options
@storage_options("unchanged")
def rechunk(path: str, target: str | None, **options: Any) -> Any:
    """Store mags with other files, blocks or compression, in place or at TARGET. Voxel values do
    not change.

    TARGET is of the same kind as PATH: a dataset, a layer, a mag or a precomputed volume. A mag is
    published when it is complete. In place, the old mag is kept until all voxels of the new one
    have been compared with it.

    \b
    Examples:
      wkwdask rechunk dataset --file-len 32
      wkwdask rechunk dataset/color/1 --block-len 64 --file-len 16
      wkwdask rechunk dataset small-copy --bounding-box 1000,1000,500,512,512,256
      wkwdask rechunk precomputed://neurons precomputed://sharded-neurons --shard-shape auto
    """
    return partial(wkwdask.rechunk, path, target, **options)


@click.command(
    cls=StorageCommand, short_help="Compress mags that are raw, or compress them better."
)
@_rechunk_options
@storage_options("LZ4HC in WKW, Zstandard in Zarr, gzip in N5, all else unchanged")
def compress(path: str, target: str | None, **options: Any) -> Any:
    """Compress mags, in place or at TARGET. Voxel values do not change.

    \b
    Examples:
      wkwdask compress dataset
      wkwdask compress dataset --layer color --level 9
      wkwdask compress dataset/color/1 elsewhere/color/1 --compression lz4
      wkwdask compress precomputed://volume --encoding jpeg
    """
    return partial(wkwdask.compress, path, target, **options)
