"""Commands that measure layers: labels, histogram, contrast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import wkwdask
from wkwdask.cli.options import box_option, cluster_options, index_option, parse_callback
from wkwdask.cli.results import Facts, prints_facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_SHOWN = 20


def _pair(text: str) -> tuple[float, float]:
    low, high = map(float, text.split(","))
    return low, high


def _pair_of(option: str) -> Callable[..., Any]:
    return parse_callback(_pair, f"{option} takes two numbers with a comma between them")


_box_option = box_option("Bounding box to count [voxels of mag 1]. Default: all.")


@click.command(short_help="Tabulate labels: sizes, boxes, centroids, values in an image.")
@click.argument("path")
@click.option(
    "--layer", help="Layer with the labels; may be omitted if there is only one segmentation."
)
@click.option("--mag", help="Mag of the labels. Default: the finest that has files.")
@click.option(
    "--color",
    metavar="LAYER",
    help="Another layer, by name or path: mean, std, min and max inside each label.",
)
@click.option(
    "--color-mag",
    metavar="MAG",
    help="Mag of the other layer. Default: the finest that is not finer than that of the labels.",
)
@index_option
@_box_option
@click.option("--with-zero", is_flag=True, help="Count the label 0 too.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the table: .csv or .parquet. Default: print the largest labels.",
)
@prints_facts
@cluster_options
def labels(
    path: str,
    with_zero: bool,
    output: str | None,
    cluster: AbstractContextManager[Any],
    **options: Any,
) -> Facts:
    """Tabulate the labels of a segmentation, streamed block by block: voxels, volume, bounding box,
    centroid, and mean, std, min and max of another layer.

    Boxes are half-open. Boxes and centroids are in voxels of mag 1; the center of voxel i is (i +
    0.5) * mag.

    \b
    Examples:
      wkwdask labels dataset
      wkwdask labels dataset --layer segmentation --color color -o table.csv
      wkwdask labels dataset/segmentation/4-4-2 --bounding-box 0,0,0,2048,2048,512 -o table.parquet
    """
    with cluster:
        table = wkwdask.label_statistics(path, ignore_zero=not with_zero, output=output, **options)
    shown, voxels = (
        table.nlargest(_SHOWN, "voxels") if output is None else table.head(0),
        int(table.voxels.sum()),
    )
    line = f"{len(table):,} labels, {voxels:,} voxels{f': {output}' if output else ''}"
    return _table({"labels": len(table), "voxels": voxels, "output": output}, shown, line)


def _table(facts: dict[str, Any], table: Any, *lines: str) -> Facts:
    """Return a table of pandas as a result, with lines below it."""
    from wkwdask.cli.tables import print_records

    rows: list[dict[str, Any]] = table.reset_index().to_dict("records")

    def show() -> None:
        print_records(rows)
        for line in lines:
            click.echo(line)

    return Facts({**facts, "rows": rows}, show)


@click.command(short_help="Count the voxel values of a layer.")
@click.argument("path")
@click.option("--layer", help="Layer to count; may be omitted if there is only one color layer.")
@click.option("--mag", help="Mag to count. Default: the finest that has files.")
@click.option(
    "--bins",
    type=click.IntRange(1),
    help="Number of bins. Default: each value of 8 and 16 bits, 4096 bins for other types.",
)
@click.option(
    "--range",
    "limits",
    metavar="LOW,HIGH",
    callback=_pair_of("--range"),
    help="Lower and upper limit of the bins. Default: the minimum and the maximum.",
)
@index_option
@_box_option
@click.option("--per-slice", is_flag=True, help="Count each slice along z separately.")
@click.option("--ignore-zero", is_flag=True, help="Ignore zeros.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the counts that are not 0: .csv or .parquet. Default: print them.",
)
@prints_facts
@cluster_options
def histogram(
    path: str,
    limits: tuple[float, float] | None,
    output: str | None,
    cluster: AbstractContextManager[Any],
    **options: Any,
) -> Facts:
    """Count the voxel values of a layer, or of each of its slices, exactly.

    \b
    Examples:
      wkwdask histogram dataset --layer color
      wkwdask histogram dataset --layer color --per-slice -o slices.parquet
      wkwdask histogram dataset --layer prediction --bins 100 --range 0,1
    """
    from wkwdask.ids.table_file import table_path, write_table

    target = None if output is None else table_path(output)
    with cluster:
        counts = wkwdask.histogram(path, range=limits, **options)
    table = counts.reset_coords(["nan", "below", "above"], drop=True).to_dataframe()
    table = table[table["count"] > 0]
    if target is not None:
        write_table(table, target)
    outside = {name: int(counts[name].sum()) for name in ("nan", "below", "above")}
    lines = [
        f"{number:,} values {'are NaN' if name == 'nan' else f'lie {name} the bins'}"
        for name, number in outside.items()
        if number
    ]
    return _table({**outside, "output": output}, table if target is None else table.head(0), *lines)


@click.command(short_help="Find a range of values that shows a layer well.")
@click.argument("path")
@click.option("--layer", help="Layer to count; may be omitted if there is only one color layer.")
@click.option("--mag", help="Mag to count. Default: the finest that has files.")
@click.option(
    "--percentiles",
    default="1,99",
    show_default=True,
    metavar="LOW,HIGH",
    callback=_pair_of("--percentiles"),
    help="Lower and upper percentile.",
)
@index_option
@_box_option
@click.option("--per-slice", is_flag=True, help="Print a row for each slice along z.")
@click.option(
    "--with-zero", is_flag=True, help="Count zeros too; they are usually an empty margin."
)
@click.option(
    "--write", is_flag=True, help="Store the range for WEBKNOSSOS (intensityRange in the JSON)."
)
@prints_facts
@cluster_options
def contrast(
    path: str,
    percentiles: tuple[float, float],
    with_zero: bool,
    write: bool,
    cluster: AbstractContextManager[Any],
    **options: Any,
) -> Facts:
    """Find two percentiles of a layer's values, exact for integers of 8 and 16 bits.

    \b
    Examples:
      wkwdask contrast dataset --layer color --write
      wkwdask contrast dataset --layer color --percentiles 0.5,99.5 --mag 8 --write
      wkwdask contrast dataset --layer color --per-slice
    """
    with cluster:
        table = wkwdask.contrast(
            path, percentiles, ignore_zero=not with_zero, write=write, **options
        )
    low, high = table.attrs["intensityRange"]
    return _table(
        {"intensity_range": [low, high], "written": write},
        table,
        f"intensityRange {low}, {high}{' written' if write else ''}",
    )
