"""Commands that check, mend and compare what is stored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from wkwdask.cli.shared import METHODS, cluster_options, external_option, split_mags
from wkwdask.cli.words import on_command_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON in place of text.")
_layer_option = click.option("--layer", "layers", multiple=True, help="The layer; several times for several. Default: all.")
_mags_option = click.option("--mags", metavar="MAG,MAG", help="The mags, such as 1,2-2-1. Default: all.")
_method_option = click.option(
    "--method", type=click.Choice(METHODS[1:]), help="How coarser mags were made that do not say so. Default: as most software does, or as intact files show."
)


def _print(report: Any, as_json: bool, show: Callable[[Any], None]) -> None:
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        show(report)


def _exit(code: int) -> None:
    if code:
        click.get_current_context().exit(code)


@click.command(short_help="Check every file, block and record; write nothing.")
@click.argument("path")
@_layer_option
@_mags_option
@click.option("--quick", is_flag=True, help="Headers, jump tables, names and JSON; no block is decoded.")
@click.option("--pyramid", is_flag=True, help="Compute coarser mags anew from finer ones, and compare.")
@click.option("--sample", type=click.FloatRange(0, 1), metavar="SHARE", help="Do --pyramid for a share of the files, the same in each run, such as 0.05.")
@_method_option
@click.option("--manifest", type=click.Choice(["write", "check"]), help="Write the hashes of all files to wkwdask-manifest.txt, or compare with it; no more.")
@click.option("--strict", is_flag=True, help="Warnings count too for the exit code.")
@click.option("--limit", type=click.IntRange(0), default=50, show_default=True, help="How many faults to print.")
@_json_option
@cluster_options
def verify(
    path: str, layers: tuple[str, ...], mags: str | None, quick: bool, pyramid: bool, sample: float | None, method: str | None, manifest: str | None,
    strict: bool, limit: int, as_json: bool, cluster: AbstractContextManager[Any],
) -> None:  # fmt: skip
    """Check a dataset, a layer or a mag: headers, sizes, jump tables, every block, names, left-overs, the JSON.

    Each fault is named with file, block and meaning. Exit code 0: sound; 1: an error was found (with --strict a warning too), or files differ from the
    manifest.

    \b
    Examples:
      wkwdask verify dataset
      wkwdask verify dataset --quick --json
      wkwdask verify dataset --layer color --pyramid --sample 0.05
      wkwdask verify dataset --manifest write
    """
    from wkwdask import api
    from wkwdask.cli.tables import print_verification

    with cluster:
        if manifest is not None:
            hashed = api.write_manifest(path) if manifest == "write" else api.check_manifest(path)
            _print(hashed, as_json, lambda report: click.echo(on_command_line(str(report))))
            _exit(0 if hashed.is_equal else 1)
            return
        share = sample if sample is not None else pyramid
        found = api.verify(path, layer=layers or None, mags=split_mags(mags), quick=quick, pyramid=share, method=method)
    _print(found, as_json, lambda report: print_verification(report, limit))
    _exit(1 if not found.is_sound or (strict and found.count("warning")) else 0)


@click.command(short_help="Mend what verify finds; good data are never touched.")
@click.argument("path")
@_layer_option
@_mags_option
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@click.option("--salvage", is_flag=True, help="Broken blocks that cannot be rebuilt become ZEROS, all others stay; the old files are set aside.")
@click.option("--quarantine", is_flag=True, help="Set files aside that cannot be mended: their place reads as ZEROS.")
@click.option("--drop-missing", is_flag=True, help="Take mags off the JSON that are not there.")
@click.option("--grow-box", is_flag=True, help="Let boxes in the JSON grow around all voxels that are not zero.")
@click.option("--pyramid", "rebuild_differing", is_flag=True, help="Rebuild files of coarser mags that differ from the finer one; the old ones are set aside.")
@_method_option
@click.option("--voxel-size", metavar="X,Y,Z", help="For a JSON that has to be written anew [nm].")
@click.option("--older-than", type=float, default=3600, show_default=True, metavar="SECONDS", help="Younger temporary files of other software are left alone.")
@click.option("--remove-copies", is_flag=True, help="Remove mags that webknossos left half-way, where the layer has every voxel that they hold.")
@_json_option
@external_option
@cluster_options
def repair(
    path: str, layers: tuple[str, ...], mags: str | None, voxel_size: str | None, as_json: bool, cluster: AbstractContextManager[Any], **options: Any
) -> None:
    """Mend a dataset, a layer or a mag.

    Removes what dead processes left, writes headers anew where the blocks prove what they should say, rebuilds broken files of coarser mags from the finer
    one, corrects the JSON. What cannot be mended is left as it is and named, unless an option says what is to become of it. Exit code 1: an error stays.

    \b
    Examples:
      wkwdask repair dataset --dry-run
      wkwdask repair dataset
      wkwdask repair dataset --layer color --salvage
    """
    from wkwdask import api

    size = None if voxel_size is None else [float(length) for length in voxel_size.split(",")]
    with cluster:
        report = api.repair(path, layer=layers or None, mags=split_mags(mags), voxel_size=size, **options)
    _print(report, as_json, lambda done: click.echo(on_command_line(str(done))))
    _exit(0 if report.is_sound else 1)


@click.command(short_help="Compare two datasets, layers or mags voxel by voxel.")
@click.argument("first")
@click.argument("second")
@click.option("--layer", help="The layer. Default: all that both have.")
@click.option("--mag", help="The mag. Default: all that both have.")
@click.option("--box", "bounding_box", metavar="X,Y,Z,W,H,D", help="Where [voxels of mag 1]. Default: everywhere.")
@_json_option
@cluster_options
def diff(first: str, second: str, as_json: bool, cluster: AbstractContextManager[Any], **options: Any) -> None:
    """Compare two datasets, layers or mags voxel by voxel, however each is stored.

    Exit code 0: equal; 1: different; 2: they could not be compared.

    \b
    Examples:
      wkwdask diff dataset copy
      wkwdask diff dataset/color/1 other/color/1 --box 0,0,0,512,512,512
    """
    from wkwdask import api

    try:
        with cluster:
            found = api.diff(first, second, **options)
    except Exception as error:
        error.exit_code = 2  # type: ignore[attr-defined]
        raise
    _print(found, as_json, lambda report: click.echo(on_command_line(str(report))))
    _exit(0 if found.equal else 1)


COMMANDS = (verify, repair, diff)
