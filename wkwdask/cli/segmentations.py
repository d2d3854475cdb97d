"""Commands that create segmentations, map their ids, and merge annotations into them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

import wkwdask
from wkwdask.cli.options import (
    StorageCommand,
    combined_options,
    external_option,
    parse_callback,
    resume_options,
    runs_on_cluster,
    space_option,
    storage_options,
    where_option,
)
from wkwdask.formats.wkw.options import WkwOptions

if TYPE_CHECKING:
    from wkwdask.cli.options import Decorator

_BOX_TO_LABEL = "Corners of the box to label [voxels of the mag]; everything else becomes zero."
_BOX_TO_MAP = "Corners of the box to map [voxels of the mag]; everything else becomes zero."


def _makes_segmentation(dtype: str, where: str | None = None) -> Decorator:
    """Add the options of commands that read a layer and write ids."""
    return combined_options(
        click.option("--layer", help="Layer of SOURCE, if that is a dataset."),
        click.option("--mag", help="Mag of SOURCE. Default: the finest."),
        *([] if where is None else [where_option(where)]),
        click.option("--dtype", help=dtype),
        storage_options("as in the source, lz4hc if that is raw"),
        resume_options("Replace an existing mag; continue an interrupted run."),
        external_option,
        space_option,
        runs_on_cluster,
    )


def _number(text: str) -> float:
    try:
        return int(text)  # float cannot represent all ids above 2^53
    except ValueError:
        return float(text)


def _limits(text: str) -> Any:
    numbers = [_number(part) for part in text.split(",")]
    if len(numbers) == 1:
        return numbers[0]
    least, greatest = numbers
    return least, greatest


@click.command(cls=StorageCommand, short_help="Label connected components.")
@click.argument("source")
@click.argument("target")
@click.option(
    "--threshold",
    metavar="LEAST[,GREATEST]",
    callback=parse_callback(_limits, "--threshold takes one number or two, LEAST,GREATEST"),
    help=(
        "Join voxels with at least this value, or with values from LEAST to GREATEST. Default: "
        "join equal labels."
    ),
)
@click.option(
    "--connectivity",
    type=click.Choice(("6", "18", "26")),
    default="26",
    show_default=True,
    help=(
        "Neighbors of a voxel: those that share a face (6), also an edge (18), also a corner (26)."
    ),
)
@click.option(
    "--min-voxels",
    type=click.IntRange(0),
    default=0,
    help="Minimum size of a component; smaller ones become 0.",
)
@_makes_segmentation(
    "Data type of the ids. Default: uint32, or uint64 for more than 2^32 - 1 components.",
    _BOX_TO_LABEL,
)
def components(source: str, target: str, connectivity: str, **options: Any) -> Any:
    """Label the connected components of SOURCE, a mag or layer, as the mag TARGET. Each component
    gets one id across all files.

    With --threshold, neighbors that reach it are joined; without it, neighbors with the same label.
    The same command continues an interrupted run.

    \b
    Examples:
      wkwdask components dataset/color/1 dataset/bright/1 --threshold 180 --min-voxels 100
      wkwdask components dataset/prediction/1 dataset/cells/1 --threshold 0.5,1 --connectivity 6
      wkwdask components dataset/segmentation/1 dataset/split/1
    """
    neighbors: Any = int(connectivity)
    return partial(wkwdask.connected_components, source, target, connectivity=neighbors, **options)


@click.command(
    cls=StorageCommand, short_help="Map ids to other ids: merge, rename or remove segments."
)
@click.argument("source")
@click.argument("target")
@click.argument("mapping")
@click.option(
    "--default",
    type=click.Choice(("keep", "zero")),
    default="keep",
    show_default=True,
    help="Keep the ids that MAPPING does not name, or set them to zero.",
)
@_makes_segmentation("Data type of the new ids. Default: that of the source.", _BOX_TO_MAP)
def remap(source: str, target: str, mapping: str, **options: Any) -> Any:
    """Map the ids of SOURCE, a mag or layer, to those in MAPPING, and write the mag TARGET.

    MAPPING is a .csv or .parquet file with two columns, a .npy of shape (n, 2) or with an entry for
    each id, an agglomerate file of WEBKNOSSOS (.hdf5), or a merger-mode annotation (.nml), in which
    each tree merges the segments under its nodes. The same command continues an interrupted run.

    \b
    Examples:
      wkwdask remap dataset/segmentation/1 dataset/merged/1 merges.csv
      wkwdask remap dataset/segmentation/1 dataset/neurons/1 agglomerates/view_70.hdf5 --dtype uint64
      wkwdask remap dataset/segmentation/1 dataset/proofread/1 merger_mode.nml
      wkwdask remap dataset/segmentation/1 dataset/chosen/1 chosen.parquet --default zero
    """  # noqa: E501
    return partial(wkwdask.remap, source, target, mapping, **options)


@click.command(cls=StorageCommand, short_help="Remove small segments.")
@click.argument("source")
@click.argument("target")
@click.option(
    "--min-voxels",
    type=click.IntRange(0),
    required=True,
    help="Minimum size of a segment; smaller ones become 0.",
)
@_makes_segmentation("Data type of the ids. Default: that of the source.")
def dust(source: str, target: str, **options: Any) -> Any:
    """Remove small segments from SOURCE, a mag or layer, and write the mag TARGET. All other
    segments keep their ids.

    \b
    Examples:
      wkwdask dust dataset/segmentation/1 dataset/clean/1 --min-voxels 100
    """
    return partial(wkwdask.remove_dust, source, target, **options)


@click.command(cls=StorageCommand, short_help="Renumber segments to 1, 2, 3...")
@click.argument("source")
@click.argument("target")
@click.option(
    "--mapping",
    metavar="FILE",
    help="Write the old and the new ids: .csv, .parquet or .npy, which remap reads.",
)
@_makes_segmentation("Data type of the new ids. Default: that of the source.")
def renumber(source: str, target: str, **options: Any) -> Any:
    """Renumber the n segments of SOURCE, a mag or layer, to 1 to n in the order of their ids, and
    write the mag TARGET.

    \b
    Examples:
      wkwdask renumber dataset/segmentation/1 dataset/compact/1 --dtype uint16 --mapping ids.csv
    """
    return partial(wkwdask.renumber, source, target, **options)


@click.command(cls=StorageCommand, short_help="Merge volume annotations into a segmentation.")
@click.argument("base")
@click.argument("annotations", nargs=-1, required=True)
@click.argument("target")
@click.option("--layer", help="Layer of BASE. Default: the only one, or the only segmentation.")
@click.option(
    "--mag", help="Mag to merge. Default: the finest for which an annotation stores blocks."
)
@click.option(
    "--volume-layer",
    metavar="NAME",
    help="Volume layer of annotations with several. Default: the one created on the layer.",
)
@click.option(
    "--relabel", is_flag=True, help="Assign unique ids to the new segments of each annotation."
)
@click.option(
    "--largest-id",
    type=int,
    metavar="ID",
    help="Largest id of BASE, for --relabel. Default: the largestSegmentId in its JSON.",
)
@click.option("--verify", is_flag=True, help="Compare all voxels before the mag is published.")
@storage_options("as in BASE", [WkwOptions])
@resume_options("Replace an existing mag; continue an interrupted run.")
@external_option
@space_option
@runs_on_cluster
def merge(
    base: str,
    annotations: tuple[str, ...],
    target: str,
    relabel: bool,
    largest_id: int | None,
    **options: Any,
) -> Any:
    """Merge volume ANNOTATIONS, zips as WEBKNOSSOS exports them, into the segmentation BASE, and
    write one mag of TARGET.

    A block stored in an annotation replaces the block of BASE, including its zeros. If several
    annotations store a block, the last one wins.

    \b
    Examples:
      wkwdask merge dataset annotation.zip corrected --layer segmentation
      wkwdask merge dataset/segmentation/1 first.zip second.zip corrected/segmentation/1 --relabel
    """
    if largest_id is not None and not relabel:
        raise click.UsageError("--largest-id is for --relabel")
    return partial(
        wkwdask.merge,
        base,
        annotations,
        target,
        relabel=relabel if largest_id is None else largest_id,
        **options,
    )
