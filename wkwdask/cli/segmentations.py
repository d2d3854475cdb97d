"""The commands that make segmentations and change their ids."""

from __future__ import annotations

from typing import Any

import click

from wkwdask.cli.shared import COMPRESSIONS, cluster_at, existing_of, resume_option, scheduler_option


@click.command(short_help="Label connected components.")
@click.argument("source")
@click.argument("target")
@click.option("--threshold", metavar="LEAST[,GREATEST]", help="Voxels count that are at least this, or lie between the two. Default: equal labels are joined.")
@click.option("--connectivity", type=click.Choice(("6", "18", "26")), default="26", show_default=True, help="Neighbours across faces, edges, corners.")
@click.option("--min-voxels", type=click.IntRange(0), default=0, help="Smaller components become 0.")
@click.option("--layer", help="The layer, where SOURCE is a dataset.")
@click.option("--mag", help="The mag. Default: the finest.")
@click.option("--where", metavar="X,Y,Z,W,H,D", help="What to label [voxels of mag 1]; everything else becomes zero.")
@click.option("--dtype", help="Type of the ids. Default: uint32, uint64 where there are too many.")
@click.option("--block-len", type=int, metavar="VOXELS", help="Edge of a block. Default: as in the source.")
@click.option("--file-len", type=int, metavar="BLOCKS", help="Edge of a file. Default: as in the source.")
@click.option("--compression", type=click.Choice(COMPRESSIONS), help="Default: as in the source, lz4hc if that is raw.")
@click.option("--level", type=click.IntRange(1, 12), default=5, show_default=True, help="LZ4HC level.")
@resume_option
@click.option("--overwrite", is_flag=True, help="Replace a mag that is there already; forget an interrupted run.")
@scheduler_option
def components(
    source: str, target: str, threshold: str | None, connectivity: str, resume: bool, overwrite: bool, scheduler: str | None, **options: Any
) -> None:
    """Label the connected components of SOURCE, a mag or layer, as the mag TARGET: each gets one id across all files.

    With a threshold, voxels are joined that reach it; without one, neighbours with the same label. Interrupted, the same command goes on.

    \b
    Examples:
      wkwdask components dataset/color/1 dataset/bright/1 --threshold 180 --min-voxels 100
      wkwdask components dataset/prediction/1 dataset/cells/1 --threshold 0.5,1 --connectivity 6
      wkwdask components dataset/segmentation/1 dataset/split/1
    """
    from wkwdask.api.segmentations import connected_components

    with cluster_at(scheduler):
        report = connected_components(
            source, target, threshold=_limits(threshold), connectivity=int(connectivity), existing=existing_of(resume, overwrite),  # type: ignore[arg-type]
            **options,
        )  # fmt: skip
    click.echo(str(report))


def _limits(text: str | None) -> Any:
    if text is None:
        return None
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2:
        raise click.UsageError(f"--threshold takes one number or two, LEAST,GREATEST, got {text!r}")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


COMMANDS = (components,)
