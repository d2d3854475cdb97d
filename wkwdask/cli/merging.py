"""Commands for volume annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from wkwdask.cli.shared import cluster_options, existing_of, external_option, resume_option
from wkwdask.cli.storage import StorageCommand, storage_options
from wkwdask.cli.words import on_command_line
from wkwdask.formats.wkw.options import WkwOptions

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


@click.command(cls=StorageCommand, short_help="Merge volume annotations into a segmentation.")
@click.argument("base")
@click.argument("annotations", nargs=-1, required=True)
@click.argument("target")
@click.option("--layer", help="The layer of BASE. Default: the only one, or the only segmentation.")
@click.option("--mag", help="The mag. Default: the finest that an annotation holds blocks of.")
@click.option("--volume-layer", metavar="NAME", help="The volume layer of annotations with several. Default: the one that was made on the layer.")
@click.option("--relabel", is_flag=True, help="Give the new segments of each annotation unique ids.")
@click.option("--largest-id", type=int, metavar="ID", help="The largest id of BASE, with --relabel. Default: the largestSegmentId of its JSON.")
@click.option("--verify", is_flag=True, help="Compare all voxels before the mag is published.")
@storage_options(WkwOptions, default="as in BASE")
@resume_option
@click.option("--overwrite", is_flag=True, help="Replace an existing mag; discard an interrupted run.")
@external_option
@cluster_options
def merge(
    base: str,
    annotations: tuple[str, ...],
    target: str,
    relabel: bool,
    largest_id: int | None,
    resume: bool,
    overwrite: bool,
    cluster: AbstractContextManager[Any],
    **options: Any,
) -> None:
    """Merge volume ANNOTATIONs, zips as WEBKNOSSOS exports them, into the segmentation BASE, and write one mag of TARGET.

    A block stored in an annotation replaces the block of BASE, zeros included. Where several annotations store a block, the last one counts.

    \b
    Examples:
      wkwdask merge dataset annotation.zip corrected --layer segmentation
      wkwdask merge dataset/segmentation/1 first.zip second.zip corrected/segmentation/1 --relabel
    """
    from wkwdask import merge as merge_annotations

    if largest_id is not None and not relabel:
        raise click.UsageError("--largest-id is for --relabel")
    with cluster:
        report = merge_annotations(
            base, annotations, target, relabel=relabel if largest_id is None else largest_id, existing=existing_of(resume, overwrite), **options
        )
    click.echo(on_command_line(str(report)))


COMMANDS = (merge,)
