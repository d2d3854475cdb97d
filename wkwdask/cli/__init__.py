"""The command ``wkwdask``. Commands import what they need when they run, so that the fast ones stay fast."""

from __future__ import annotations

import functools
import io
import sys
import warnings
from typing import Any

import click

from wkwdask.cli import analysis, apply, checks, cluster, commands, convert, copies, datasets, segmentations
from wkwdask.cli.completion import complete_parameters
from wkwdask.cli.words import learn_options, on_command_line


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="wkwdask")
@click.option("--debug", is_flag=True, help="Show the traceback of an error; works behind a command too.")
def cli(debug: bool) -> None:
    """Process webKNOSSOS-wrap (WKW) voxel data.

    \b
    Look at a dataset          wkwdask info DATASET
    See it                     wkwdask preview DATASET -o picture.png
    Make its coarser mags      wkwdask pyramid DATASET --layer color
    Make finer mags            wkwdask upsample DATASET --layer prediction
    Store it in another way    wkwdask rechunk DATASET --file-len 32
    Compress it                wkwdask compress DATASET
    Your own function          wkwdask apply module:function SOURCE TARGET
    Connected components       wkwdask components SOURCE TARGET
    Merge, rename segments     wkwdask remap SOURCE TARGET MAPPING.csv, wkwdask dust, wkwdask renumber
    Measure its labels         wkwdask labels DATASET --color color -o table.csv
    Set its contrast           wkwdask contrast DATASET --layer color --write
    Copy it, or a part of it   wkwdask copy DATASET TARGET
    Merge annotations          wkwdask merge DATASET ANNOTATION.zip TARGET
    Remove it                  wkwdask rm DATASET
    Check it, repair it        wkwdask verify DATASET, wkwdask repair DATASET
    Compare two of them        wkwdask diff DATASET OTHER
    Images to WKW and back     wkwdask convert sections/ DATASET --voxel-size 4,4,35
    N5 as Zarr                 wkwdask n5-as-zarr VOLUME.n5
    Zarr chunks as TIFF files  wkwdask tiff-prefix 256,256 uint16
    See it as Zarr             wkwdask zarr-view DATASET
    Edit its JSON              wkwdask dataset rename-layer DATASET OLD NEW
    Run on a cluster           wkwdask cluster list, wkwdask pyramid DATASET --cluster slurm-jobqueue
    As a SLURM job array       wkwdask submit pyramid DATASET --cluster slurm-array
    Show progress              wkwdask status DATASET, wkwdask cancel DATASET
    Try all of it              wkwdask demo
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # names of files and texts of records may hold what cannot be encoded


for module in (commands, datasets, convert, copies, apply, analysis, segmentations, checks, cluster):
    for command in module.COMMANDS:
        cli.add_command(command)
complete_parameters(cli)
learn_options(cli)


def _show_once(shown: set[str], message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning on one line, in place of :func:`warnings.showwarning`, unless the same one was printed before."""
    if str(message) not in shown:
        shown.add(str(message))
        click.echo(on_command_line(f"warning: {message}"), err=True)


def main() -> None:
    """Run the command line: errors become one line on standard error and the exit code 1, or the one that they carry."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) != len(sys.argv) - 1
    try:
        with warnings.catch_warnings():
            warnings.showwarning = functools.partial(_show_once, set())
            code = cli.main(arguments, prog_name="wkwdask", standalone_mode=False)  # what a command exits with comes back as a number
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        if debug and error.__cause__ is not None:
            raise
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        click.echo(on_command_line(f"error: {error or type(error).__name__}{notes}"), err=True)
        sys.exit(getattr(error, "exit_code", 1))
