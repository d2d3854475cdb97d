"""Commands that verify, repair and compare stored volumes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

import wkwdask
from wkwdask.cli.options import (
    METHODS,
    box_option,
    cluster_options,
    external_option,
    layers_option,
    mags_option,
    numbers_callback,
)
from wkwdask.cli.results import FOUND, Facts, prints_check, prints_facts

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_method_option = click.option(
    "--method",
    type=click.Choice(METHODS),
    help="Downsampling method of coarser mags that do not record it. verify: median for images and mode for labels by default; repair: their files are "  # noqa: E501
    "rebuilt only with this option.",
)


@click.command(short_help="Check every file, block and record; write nothing.")
@click.argument("path")
@layers_option
@mags_option
@click.option(
    "--quick",
    is_flag=True,
    help="Check headers, jump tables, names and JSON only; decode no block.",
)
@click.option(
    "--pyramid", is_flag=True, help="Compute coarser mags again from finer ones and compare."
)
@click.option(
    "--sample",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="As --pyramid, for this share of the files, such as 0.05; the same files in each run.",
)
@_method_option
@click.option(
    "--manifest",
    type=click.Choice(["write", "check"]),
    help=(
        "Write the hashes of all files to wkwdask-manifest.txt, or compare with it; check nothing "
        "else."
    ),
)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=50,
    show_default=True,
    help="Maximum number of faults to print.",
)
@prints_check
@cluster_options
def verify(
    path: str,
    pyramid: bool,
    sample: float | None,
    manifest: str | None,
    strict: bool,
    limit: int,
    cluster: AbstractContextManager[Any],
    **options: Any,
) -> Facts:
    """Check a dataset, a layer or a mag: headers, sizes, jump tables, every block, names, leftover
    files, the JSON.

    Each fault is named with file, block and meaning. Exit code 0: sound; 1: an error was found
    (with --strict a warning too), or files differ from the manifest; 2: the check could not be
    made.

    \b
    Examples:
      wkwdask verify dataset
      wkwdask verify dataset --quick --json
      wkwdask verify dataset --layer color --pyramid --sample 0.05
      wkwdask verify dataset --manifest write
    """
    from wkwdask.cli.tables import print_verification

    if manifest is not None:
        _refuse_with_manifest(pyramid=pyramid, sample=sample, **options)
    with cluster:
        if manifest is not None:
            manifest_report = (
                wkwdask.write_manifest(path)
                if manifest == "write"
                else wkwdask.check_manifest(path)
            )
            return Facts(manifest_report, exit_code=0 if manifest_report.is_equal else FOUND)
        share = sample if sample is not None else pyramid
        report = wkwdask.verify(path, pyramid=share, **options)
    return Facts(
        report,
        partial(print_verification, report, limit),
        FOUND if not report.is_sound or (strict and report.count("warning")) else 0,
    )


def _refuse_with_manifest(**options: Any) -> None:
    """Raise UsageError for options that a manifest of all files does not have."""
    refused = [name for name, value in options.items() if value not in (None, False)]
    if refused:
        raise click.UsageError(f"--manifest hashes all files below PATH: omit --{refused[0]}")


@click.command(short_help="Repair what verify finds; intact data are never changed.")
@click.argument("path")
@layers_option
@mags_option
@click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
@click.option(
    "--salvage",
    is_flag=True,
    help=(
        "Replace broken blocks that cannot be rebuilt by ZEROS and keep all others; the old files "
        "are set aside."
    ),
)
@click.option(
    "--quarantine",
    is_flag=True,
    help="Set aside files that cannot be repaired; their voxels read as ZEROS.",
)
@click.option("--drop-missing", is_flag=True, help="Remove missing mags from the JSON.")
@click.option(
    "--grow-box",
    is_flag=True,
    help="Extend the bounding boxes in the JSON to all voxels that are not zero.",
)
@click.option(
    "--pyramid",
    "rebuild_differing",
    is_flag=True,
    help=(
        "Rebuild files of coarser mags that differ from the finer one; the old ones are set aside."
    ),
)
@_method_option
@click.option(
    "--voxel-size",
    metavar="X,Y,Z",
    callback=numbers_callback("voxel-size", float),
    help="Size of a voxel of mag 1 [nm], for a JSON that must be rewritten.",
)
@click.option(
    "--older-than",
    type=float,
    default=3600,
    show_default=True,
    metavar="SECONDS",
    help="Keep temporary files of other software that are younger than this.",
)
@click.option(
    "--accept-changes",
    is_flag=True,
    help=(
        "Accept files that other software removed or wrote; the record of the files takes them "
        "over."
    ),
)
@click.option(
    "--remove-copies",
    is_flag=True,
    help="Remove unfinished mags of webknossos if the layer holds all of their voxels.",
)
@external_option
@prints_check
@cluster_options
def repair(path: str, cluster: AbstractContextManager[Any], **options: Any) -> Facts:
    """Repair a dataset, a layer or a mag.

    Removes leftover files, rewrites headers that the blocks determine, rebuilds broken files of
    coarser mags from the finer one, and corrects the JSON. Without an option, faults that cannot be
    repaired stay and are listed. Exit code 0: sound; 1: an error remains; 2: the repair failed.

    \b
    Examples:
      wkwdask repair dataset --dry-run
      wkwdask repair dataset
      wkwdask repair dataset --layer color --salvage
    """
    with cluster:
        report = wkwdask.repair(path, **options)
    return Facts(report, exit_code=0 if report.is_sound else FOUND)


@click.command(short_help="Compare two datasets, layers or mags voxel by voxel.")
@click.argument("first")
@click.argument("second")
@click.option("--layer", help="Layer to compare. Default: all common layers.")
@click.option("--mag", help="Mag to compare. Default: all common mags.")
@box_option("Bounding box to compare [voxels of mag 1]. Default: everything.")
@prints_check
@cluster_options
def diff(first: str, second: str, cluster: AbstractContextManager[Any], **options: Any) -> Facts:
    """Compare two datasets, layers or mags voxel by voxel, however each is stored.

    Exit code 0: equal; 1: different; 2: the comparison failed.

    \b
    Examples:
      wkwdask diff dataset copy
      wkwdask diff dataset/color/1 other/color/1 --bounding-box 0,0,0,512,512,512
    """
    with cluster:
        difference = wkwdask.diff(first, second, **options)
    return Facts(difference, exit_code=0 if difference.equal else FOUND)


@click.command(short_help="Remove what dead jobs and replaced levels have left.")
@click.argument("url")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option(
    "--grace",
    "grace_seconds",
    type=click.FloatRange(0),
    default=None,
    help="Age of replaced levels that are removed [s]; by default 0 on disk, a week in a bucket.",
)
@prints_facts
def clean(url: str, **options: Any) -> Facts:
    """Remove what dead jobs and replaced levels have left, never what a document names. Jobs that
    were interrupted and can resume stay.

    \b
    Examples:
      wkwdask clean precomputed://s3://bucket/em --dry-run
      wkwdask clean dataset
    """
    removed = wkwdask.clean(url, **options)
    verb = "would remove" if options["dry_run"] else "removed"
    lines = [f"{verb} {folder}" for folder in removed] or ["nothing to remove"]
    return Facts({"removed": removed}, "\n".join(lines))
