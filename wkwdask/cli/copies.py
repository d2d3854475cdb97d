"""Commands that copy and remove what is there."""

from __future__ import annotations

from typing import Any

import click

from wkwdask.cli.shared import cluster_at, existing_of, resume_option, scheduler_option, split_mags


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
@click.option("--box", "bounding_box", metavar="X,Y,Z,W,H,D", help="What to copy [voxels of mag 1].")
@click.option("--translate", type=Triple(), help="By what all voxels move [voxels of mag 1].")
@click.option("--verify", is_flag=True, help="Compare all voxels before a mag appears.")
@resume_option
@click.option("--overwrite", is_flag=True, help="Replace mags of the target that are there already; forget an interrupted run.")
@scheduler_option
def copy(path: str, target: str, layers: tuple[str, ...], mags: str | None, resume: bool, overwrite: bool, scheduler: str | None, **options: Any) -> None:
    """Copy a dataset, a layer or a mag to TARGET, under the same name or another one.

    Files or stored blocks are copied as they are wherever each becomes one again. The same command goes on where it was interrupted.

    \b
    Examples:
      wkwdask copy dataset backup
      wkwdask copy dataset/color other/raw --mags 1,2
      wkwdask copy dataset cutout --box 1000,1000,500,512,512,256 --translate=-1000,-1000,-500
    """
    from wkwdask.api import copy as copy_mags

    if options["translate"] is None:
        del options["translate"]
    with cluster_at(scheduler):
        report = copy_mags(path, target, layer=layers or None, mags=split_mags(mags), existing=existing_of(resume, overwrite), **options)
    click.echo(str(report))


COMMANDS = (copy,)
