"""Commands that copy and remove what is there."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from wkwdask.cli.shared import cluster_options, existing_of, external_option, resume_option, split_mags
from wkwdask.cli.words import on_command_line

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
from wkwdask.errors import MissingError


class Triple(click.ParamType):
    """Three whole numbers."""

    name = "X,Y,Z"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read them."""
        try:
            x, y, z = (int(number) for number in value.split(","))
        except ValueError:
            self.fail(f"expected three whole numbers such as 100,0,-20, got {value!r}", param, ctx)
        return x, y, z


@click.command(short_help="Copy a dataset, a layer or a mag, or a box of it.")
@click.argument("path")
@click.argument("target")
@click.option("--layer", "layers", multiple=True, help="The layer; several times for several. Default: all.")
@click.option("--mags", metavar="MAG,MAG", help="The mags, such as 1,2-2-1. Default: all.")
@click.option("--box", "bounding_box", metavar="X,Y,Z,W,H,D", help="Bounding box to copy [voxels of mag 1].")
@click.option("--translate", type=Triple(), help="Offset added to all positions [voxels of mag 1].")
@click.option("--verify", is_flag=True, help="Compare all voxels before a mag is published.")
@resume_option
@click.option("--overwrite", is_flag=True, help="Replace existing mags of the target; discard an interrupted run.")
@external_option
@cluster_options
def copy(
    path: str, target: str, layers: tuple[str, ...], mags: str | None, resume: bool, overwrite: bool, cluster: AbstractContextManager[Any], **options: Any
) -> None:
    """Copy a dataset, a layer or a mag to TARGET, under the same name or another one.

    Files or stored blocks are copied without decoding where possible. If it is interrupted, the same command continues.

    \b
    Examples:
      wkwdask copy dataset backup
      wkwdask copy dataset/color other/raw --mags 1,2
      wkwdask copy dataset cutout --box 1000,1000,500,512,512,256 --translate=-1000,-1000,-500
    """
    from wkwdask import copy as copy_mags

    if options["translate"] is None:
        del options["translate"]
    with cluster:
        report = copy_mags(path, target, layer=layers or None, mags=split_mags(mags), existing=existing_of(resume, overwrite), **options)
    click.echo(on_command_line(str(report)))


@click.command(short_help="Delete a dataset, a layer or mags.")
@click.argument("path")
@click.option("--layer", "layers", multiple=True, help="The layer; several times for several. Default: all.")
@click.option("--mags", metavar="MAG,MAG", help="The mags, such as 1,2-2-1. Default: all.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@external_option
@cluster_options
def rm(path: str, layers: tuple[str, ...], mags: str | None, dry_run: bool, yes: bool, allow_external: bool, cluster: AbstractContextManager[Any]) -> None:
    """Remove a dataset, a layer or a mag: its files, and what the JSON says about it.

    Files that belong to no mag stay. If it is interrupted, the same command deletes the rest.

    \b
    Examples:
      wkwdask rm dataset/color/1
      wkwdask rm dataset --layer prediction --dry-run
    """
    from wkwdask import rm as remove

    chosen: dict[str, Any] = {"layer": layers or None, "mags": split_mags(mags), "allow_external": allow_external}
    if dry_run or not yes:
        if not dry_run and not _is_terminal():
            raise click.UsageError("nobody can be asked here: give --yes to remove without asking, or --dry-run to look")
        try:
            found = remove(path, **chosen, dry_run=True)
            click.echo(str(found if dry_run else replace(found, note="")))
        except MissingError:  # of a removal that was interrupted, nothing but its hidden rest may be there
            if dry_run:
                raise
        if dry_run:
            return
        click.confirm("Remove?", abort=True)
    with cluster:
        report = remove(path, **chosen)
    click.echo(on_command_line(str(report)))


def _is_terminal() -> bool:
    return sys.stdin.isatty()


COMMANDS = (copy, rm)
