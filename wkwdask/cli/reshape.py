"""Commands that store what is there in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from wkwdask.cli.shared import cluster_options, existing_of, external_option, resume_option, split_mags
from wkwdask.cli.storage import StorageCommand, storage_options
from wkwdask.cli.words import on_command_line
from wkwdask.formats.registry import storage_records

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_MOVES = (
    click.argument("path"),
    click.argument("target", required=False),
    click.option("--layer", "layers", multiple=True, help="The layer; several times for several. Default: all."),
    click.option("--mags", metavar="MAG,MAG", help="The mags, such as 1,2-2-1. Default: all."),
    click.option("--box", "bounding_box", metavar="X,Y,Z,W,H,D", help="Bounding box to store [voxels of mag 1]; needs a target."),
    click.option("--verify/--no-verify", default=None, help="Compare all voxels before a mag is published. Default: if it replaces a mag in place."),
    resume_option,
    click.option("--overwrite", is_flag=True, help="Replace existing mags of the target; discard an interrupted run."),
    external_option,
    cluster_options,
)


def _moves(command: Any) -> Any:
    """Give a command the options of all commands that store mags anew."""
    for option in reversed(_MOVES):
        command = option(command)
    return command


@click.command(cls=StorageCommand, short_help="Store mags with other files, blocks or compression.")
@_moves
@storage_options(*storage_records(), default="unchanged")
def rechunk(**options: Any) -> None:
    """Store mags with other files, blocks or compression, in place or at TARGET. Voxel values do not change.

    A dataset becomes a dataset, a layer a layer, a mag a mag, a precomputed volume one. A mag is published when it is complete. In place, the old mag is
    kept until all voxels of the new one have been compared with it.

    \b
    Examples:
      wkwdask rechunk dataset --file-len 32
      wkwdask rechunk dataset/color/1 --block-len 64 --file-len 16
      wkwdask rechunk dataset small-copy --box 1000,1000,500,512,512,256
      wkwdask rechunk precomputed://neurons precomputed://sharded-neurons --shard-shape auto
    """
    _store_anew(**options)


@click.command(cls=StorageCommand, short_help="Compress mags that are raw, or compress them better.")
@_moves
@storage_options(*storage_records(), default="lz4hc, all else unchanged")
def compress(**options: Any) -> None:
    """Compress mags, in place or at TARGET. Voxel values do not change.

    \b
    Examples:
      wkwdask compress dataset
      wkwdask compress dataset --layer color --level 9
      wkwdask compress dataset/color/1 elsewhere/color/1 --compression lz4
    """
    _store_anew(**{"compression": "lz4hc", **options})


def _store_anew(
    path: str,
    target: str | None,
    layers: tuple[str, ...],
    mags: str | None,
    resume: bool,
    overwrite: bool,
    cluster: AbstractContextManager[Any],
    **options: Any,
) -> None:
    from wkwdask import rechunk as store_anew

    existing = existing_of(resume, overwrite)
    with cluster:
        report = store_anew(path, target, layer=layers or None, mags=split_mags(mags), existing=existing, **options)
    click.echo(on_command_line(str(report)))


COMMANDS = (rechunk, compress)
