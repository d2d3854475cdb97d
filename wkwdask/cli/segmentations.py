"""The commands that make segmentations and change their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from wkwdask.cli.shared import cluster_options, existing_of, external_option, resume_option
from wkwdask.cli.storage import StorageCommand, storage_options
from wkwdask.cli.words import on_command_line
from wkwdask.formats.registry import storage_records

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


@click.command(cls=StorageCommand, short_help="Label connected components.")
@click.argument("source")
@click.argument("target")
@click.option(
    "--threshold", metavar="LEAST[,GREATEST]", help="Join voxels with at least this value, or with values from LEAST to GREATEST. Default: join equal labels."
)
@click.option(
    "--connectivity",
    type=click.Choice(("6", "18", "26")),
    default="26",
    show_default=True,
    help="Neighbours across faces (6), also edges (18), also corners (26).",
)
@click.option("--min-voxels", type=click.IntRange(0), default=0, help="Smaller components become 0.")
@click.option("--layer", help="The layer, where SOURCE is a dataset.")
@click.option("--mag", help="The mag. Default: the finest.")
@click.option("--where", metavar="X,Y,Z,W,H,D", help="Bounding box to label [voxels of mag 1]; everything else becomes zero.")
@click.option("--dtype", help="Type of the ids. Default: uint32, uint64 where there are too many.")
@storage_options(*storage_records(), default="as in the source, lz4hc if that is raw")
@resume_option
@click.option("--overwrite", is_flag=True, help="Replace an existing mag; discard an interrupted run.")
@external_option
@cluster_options
def components(
    source: str, target: str, threshold: str | None, connectivity: str, resume: bool, overwrite: bool, cluster: AbstractContextManager[Any], **options: Any
) -> None:
    """Label the connected components of SOURCE, a mag or layer, as the mag TARGET: each gets one id across all files.

    With a threshold, voxels are joined that reach it; without one, neighbours with the same label. If it is interrupted, the same command continues.

    \b
    Examples:
      wkwdask components dataset/color/1 dataset/bright/1 --threshold 180 --min-voxels 100
      wkwdask components dataset/prediction/1 dataset/cells/1 --threshold 0.5,1 --connectivity 6
      wkwdask components dataset/segmentation/1 dataset/split/1
    """
    from wkwdask import connected_components

    with cluster:
        report = connected_components(
            source, target, threshold=_limits(threshold), connectivity=int(connectivity), existing=existing_of(resume, overwrite),  # type: ignore[arg-type]
            **options,
        )  # fmt: skip
    click.echo(on_command_line(str(report)))


def _limits(text: str | None) -> Any:
    if text is None:
        return None
    try:
        numbers = [_number(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2:
        raise click.UsageError(f"--threshold takes one number or two, LEAST,GREATEST, got {text!r}")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def _number(text: str) -> float:
    try:
        return int(text)  # a float cannot tell ids beyond 2^53 apart
    except ValueError:
        return float(text)


@click.command(cls=StorageCommand, short_help="Map ids to other ids: merge, rename or remove segments.")
@click.argument("source")
@click.argument("target")
@click.argument("mapping")
@click.option(
    "--default", type=click.Choice(("keep", "zero")), default="keep", show_default=True, help="Keep the ids that MAPPING does not name, or set them to zero."
)
@click.option("--layer", help="The layer, where SOURCE is a dataset.")
@click.option("--mag", help="The mag. Default: the finest.")
@click.option("--where", metavar="X,Y,Z,W,H,D", help="Bounding box to map [voxels of mag 1]; everything else becomes zero.")
@click.option("--dtype", help="Type of the new ids. Default: as in the source.")
@storage_options(*storage_records(), default="as in the source, lz4hc if that is raw")
@resume_option
@click.option("--overwrite", is_flag=True, help="Replace an existing mag; discard an interrupted run.")
@external_option
@cluster_options
def remap(source: str, target: str, mapping: str, resume: bool, overwrite: bool, cluster: AbstractContextManager[Any], **options: Any) -> None:
    """Map the ids of SOURCE, a mag or layer, to those that MAPPING names, as the mag TARGET.

    MAPPING is a .csv or .parquet of two columns, a .npy of shape (n, 2) or with an entry for each id, an agglomerate file of WEBKNOSSOS (.hdf5), or a
    merger-mode annotation (.nml), each tree of which merges the segments under its nodes. If it is interrupted, the same command continues.

    \b
    Examples:
      wkwdask remap dataset/segmentation/1 dataset/merged/1 merges.csv
      wkwdask remap dataset/segmentation/1 dataset/neurons/1 agglomerates/view_70.hdf5 --dtype uint64
      wkwdask remap dataset/segmentation/1 dataset/proofread/1 merger_mode.nml
      wkwdask remap dataset/segmentation/1 dataset/chosen/1 chosen.parquet --default zero
    """
    from wkwdask import remap as remap_function

    with cluster:
        report = remap_function(source, target, mapping, existing=existing_of(resume, overwrite), **options)
    click.echo(on_command_line(str(report)))


@click.command(cls=StorageCommand, short_help="Remove small segments.")
@click.argument("source")
@click.argument("target")
@click.option("--min-voxels", type=click.IntRange(0), required=True, help="Segments of fewer voxels become 0.")
@click.option("--layer", help="The layer, where SOURCE is a dataset.")
@click.option("--mag", help="The mag. Default: the finest.")
@click.option("--dtype", help="Type of the ids. Default: as in the source.")
@storage_options(*storage_records(), default="as in the source, lz4hc if that is raw")
@resume_option
@click.option("--overwrite", is_flag=True, help="Replace an existing mag; discard an interrupted run.")
@external_option
@cluster_options
def dust(source: str, target: str, resume: bool, overwrite: bool, cluster: AbstractContextManager[Any], **options: Any) -> None:
    """Remove the segments of few voxels from SOURCE, a mag or layer, as the mag TARGET; all others keep their ids.

    \b
    Examples:
      wkwdask dust dataset/segmentation/1 dataset/clean/1 --min-voxels 100
    """
    from wkwdask import remove_dust

    with cluster:
        report = remove_dust(source, target, existing=existing_of(resume, overwrite), **options)
    click.echo(on_command_line(str(report)))


@click.command(cls=StorageCommand, short_help="Renumber segments to 1, 2, 3...")
@click.argument("source")
@click.argument("target")
@click.option("--mapping", metavar="FILE", help="Write the old and the new ids: .csv, .parquet or .npy, which remap reads.")
@click.option("--layer", help="The layer, where SOURCE is a dataset.")
@click.option("--mag", help="The mag. Default: the finest.")
@click.option("--dtype", help="Type of the new ids. Default: as in the source.")
@storage_options(*storage_records(), default="as in the source, lz4hc if that is raw")
@resume_option
@click.option("--overwrite", is_flag=True, help="Replace an existing mag; discard an interrupted run.")
@external_option
@cluster_options
def renumber(source: str, target: str, resume: bool, overwrite: bool, cluster: AbstractContextManager[Any], **options: Any) -> None:
    """Renumber the n segments of SOURCE, a mag or layer, to 1 to n in the order of their ids, and write the mag TARGET.

    \b
    Examples:
      wkwdask renumber dataset/segmentation/1 dataset/compact/1 --dtype uint16 --mapping ids.csv
    """
    from wkwdask import renumber as renumber_function

    with cluster:
        report = renumber_function(source, target, existing=existing_of(resume, overwrite), **options)
    click.echo(on_command_line(str(report)))


COMMANDS = (components, remap, dust, renumber)
