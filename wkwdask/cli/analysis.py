"""The commands that find something out about layers."""

from __future__ import annotations

from typing import Any

import click

from wkwdask.cli.shared import cluster_at, scheduler_option

_SHOWN = 20

box_option = click.option("--box", "bounding_box", metavar="X,Y,Z,W,H,D", help="What counts [voxels of mag 1]. Default: all.")


@click.command(short_help="Tabulate labels: sizes, boxes, centroids, values of another layer.")
@click.argument("path")
@click.option("--layer", help="The layer with the labels; may be omitted where there is one segmentation.")
@click.option("--mag", help="Its mag. Default: the finest that has files.")
@click.option("--color", metavar="LAYER", help="Another layer, by name or path: mean, std, min and max inside each label.")
@click.option("--color-mag", metavar="MAG", help="Its mag. Default: the finest that is not finer than the labels.")
@box_option
@click.option("--with-zero", is_flag=True, help="Count the label 0 too.")
@click.option("-o", "--output", metavar="FILE", help="Write the table: .csv or .parquet. Default: the largest labels are printed.")
@scheduler_option
def labels(path: str, with_zero: bool, output: str | None, scheduler: str | None, **options: Any) -> None:
    """Tabulate the labels of a segmentation, streamed block by block: voxels, volume, bounding box, centroid, and mean, std, min and max of another layer.

    Boxes are half-open, in voxels of mag 1; so are centroids, where the centre of voxel i is (i + 0.5) * mag.

    \b
    Examples:
      wkwdask labels dataset
      wkwdask labels dataset --layer segmentation --color color -o table.csv
      wkwdask labels dataset/segmentation/4-4-2 --box 0,0,0,2048,2048,512 -o table.parquet
    """
    from wkwdask.api.labels import label_statistics

    with cluster_at(scheduler):
        table = label_statistics(path, ignore_zero=not with_zero, output=output, **options)
    shown = table.nlargest(_SHOWN, "voxels") if output is None else table.head(0)
    if len(shown):
        click.echo(shown.to_string())
    click.echo(f"{len(table):,} labels, {int(table.voxels.sum()):,} voxels{f': {output}' if output else ''}")


COMMANDS = (labels,)
