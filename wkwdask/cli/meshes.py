"""Command that makes meshes."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

import wkwdask
from wkwdask.cli.options import resume_options, runs_on_cluster, space_option, where_option


@click.command(short_help="Mesh the labels of a segmentation for Neuroglancer.")
@click.argument("source")
@click.argument("target", required=False)
@click.option("--layer", help="Layer of SOURCE, if that is a dataset.")
@click.option("--mag", help="Mag to mesh, such as 2. Default: the finest.")
@click.option(
    "--lods",
    type=click.IntRange(1),
    metavar="N",
    help="Most levels of detail. Default: until each label is in one cell.",
)
@click.option(
    "--error",
    type=click.FloatRange(0),
    default=0.35,
    show_default=True,
    help="Distance by which the finest level may differ [voxels], about; 0 keeps all faces.",
)
@click.option(
    "--reduction",
    type=click.FloatRange(1),
    default=4,
    show_default=True,
    help="Most faces of a level for each face of the next one.",
)
@click.option(
    "--simplifier",
    type=click.Choice(("pyfqmr", "meshoptimizer")),
    default="pyfqmr",
    show_default=True,
    help="Library that simplifies; meshoptimizer is faster, and needs the extra meshes-fast.",
)
@click.option(
    "--cell",
    type=click.IntRange(2, 1000),
    metavar="VOXELS",
    default=128,
    show_default=True,
    help="Edge of the cell that one task meshes.",
)
@click.option("--ids", metavar="FILE", help="Mesh these labels only: a file with one id per line.")
@click.option(
    "--mapping",
    metavar="FILE",
    help="Map ids first, as remap does: an agglomerate file, .csv, .parquet, .npy or .nml.",
)
@click.option(
    "--min-voxels",
    type=click.IntRange(0),
    default=0,
    help="Minimum size of a label; smaller ones get no mesh.",
)
@where_option("Corners of the box to mesh [voxels of the mag].")
@click.option(
    "--close/--open",
    default=True,
    show_default=True,
    help="Close meshes at the border of the box, or leave them open.",
)
@click.option(
    "--sharded/--unsharded",
    default=True,
    show_default=True,
    help="Write the meshes of many labels into one file, or two files for each label.",
)
@click.option(
    "--segment-properties",
    is_flag=True,
    help="Also write the voxels of each label, by which Neuroglancer lists and filters segments.",
)
@click.option(
    "--dry-run", is_flag=True, help="Estimate faces, bytes and memory from a sample; write nothing."
)
@resume_options(
    "Replace existing meshes; continue an interrupted run.", "finished meshes are an error"
)
@space_option
@runs_on_cluster
def meshes(source: str, target: str | None, **options: Any) -> Any:
    """Mesh the labels of SOURCE in several levels of detail, into TARGET, a folder inside a
    Neuroglancer precomputed segmentation, or inside a layer of a WEBKNOSSOS dataset. Without
    TARGET, SOURCE is such a segmentation or layer, and the folder is called mesh.

    The folder appears when all meshes are complete, and the metadata name it; the same
    command continues an interrupted run. Needs the packages of the extra meshes.

    \b
    Examples:
      wkwdask meshes precomputed://neurons --mag 2
      wkwdask meshes dataset/segmentation/2-2-1 precomputed://neurons/mesh --min-voxels 100
      wkwdask meshes precomputed://neurons --ids proofread.txt --mapping agglomerates.hdf5
    """
    return partial(wkwdask.meshes, source, target, **options)
