"""The command line ``wkwdask``, one module per group of commands.

A command parses its arguments and calls a function of :mod:`wkwdask`. Here, :mod:`options` has the
options that commands share, :mod:`messages` translates argument names in messages, :mod:`results`
prints what a command returns, and :mod:`tables` prints tables. Heavy modules are imported inside
commands, so that ``--help`` and completion stay fast. Nothing imports this folder. Start with
:func:`main`.
"""

from __future__ import annotations

import functools
import io
import os
import sys
import warnings
from typing import Any, NoReturn

import click

from wkwdask.cli import (
    analysis,
    apply,
    checks,
    cluster,
    commands,
    completion,
    convert,
    copies,
    datasets,
    doctor,
    meshes,
    segment,
    segmentations,
    view,
    warmup,
)
from wkwdask.cli.help import Commands, move_examples, walk
from wkwdask.cli.messages import on_command_line, register_options
from wkwdask.cli.verbosity import verbosity_options
from wkwdask.runs.calls import Command, same_call


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="wkwdask")
@click.option(
    "--debug", is_flag=True, help="Show the traceback of an error; may also follow the command."
)
def cli(debug: bool) -> None:
    """Process WKW, Neuroglancer precomputed, N5 and OME-NGFF voxel volumes.

    A dataset is a folder of layers, such as an image and a segmentation. Each layer is stored in
    several mags: 1 is the full resolution, and a voxel of mag 2-2-1 covers 2 x 2 x 1 voxels of mag
    1. wkwdask COMMAND --help shows the options of a command, with examples.

    \b
    Examples:
      wkwdask demo
      wkwdask info demo-dataset
      wkwdask convert sections/ dataset --voxel-size 4,4,35
      wkwdask pyramid dataset --layer color --dry-run
      wkwdask pyramid dataset --layer color
      wkwdask verify dataset

    \b
    Exit codes:
      0    done; a check found nothing
      1    the command failed; a check found something
      2    the command line is wrong; a check could not be made
      3    some tasks failed, or a job was interrupted; the same command resumes it
      130  interrupted by Ctrl-C
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            # file names and texts of records may contain characters that the terminal cannot encode
            stream.reconfigure(errors="backslashreplace")


cli.sections = {
    "Look": (commands.demo, commands.info, commands.preview, *view.COMMANDS),
    "Convert": (
        convert.convert,
        copies.rechunk,
        copies.compress,
        convert.zarr_view,
        convert.n5_as_zarr,
        convert.tiff_prefix,
    ),
    "Copy and edit": (copies.copy, copies.rm, datasets.dataset),
    "Pyramids": (commands.pyramid, commands.upsample),
    "Analyse": (
        analysis.labels,
        analysis.histogram,
        analysis.contrast,
        apply.apply,
        segment.segment,
        segmentations.components,
        segmentations.remap,
        segmentations.dust,
        segmentations.renumber,
        segmentations.merge,
        meshes.meshes,
    ),
    "Check and repair": (checks.verify, checks.repair, checks.diff, checks.clean),
    "Clusters": (
        cluster.cluster,
        cluster.submit,
        cluster.status,
        cluster.cancel,
        cluster.batch_element,
        cluster.batch_finish,
    ),
    "Installation": (doctor.doctor, warmup.warmup, completion.completion),
}
for section in cli.sections.values():
    for command in section:
        cli.add_command(command)
for command in walk(cli):
    move_examples(command)
    if not command.ignore_unknown_options:  # a command that passes options on
        command.params += verbosity_options(hidden=command is not cli)
    completion.complete_parameters(command)
    register_options(command)


def _show_once(shown: set[str], message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning in one line, unless the same text was printed before; replaces
    :func:`warnings.showwarning`."""
    if str(message) not in shown:
        shown.add(str(message))
        click.echo(on_command_line(f"warning: {message}"), err=True)


def _end_interrupted(stop: BaseException) -> NoReturn:
    click.echo(on_command_line("; ".join(["interrupted", *_notes_of(stop)])), err=True)
    sys.exit(130)


def _notes_of(error: BaseException) -> list[str]:
    return [
        note.replace("the same call ", "the same command ")
        for note in getattr(error, "__notes__", ())
    ]


def main() -> None:
    """Run the command line. An error is printed as one line on standard error; the exit code is 1,
    or the ``exit_code`` of the error."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) != len(sys.argv) - 1
    try:
        with warnings.catch_warnings():
            warnings.showwarning = functools.partial(_show_once, set())
            with same_call(Command(tuple(arguments), os.getcwd())):
                # an exit code is returned as a number
                code = cli.main(arguments, prog_name="wkwdask", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        if debug and error.__cause__ is not None:
            raise
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt) as stop:
        # click wraps the interrupt
        _end_interrupted(stop.__cause__ or stop)
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            # Python 3.11 wraps it while a class is created
            _end_interrupted(error.__cause__)
        if debug:
            raise
        notes = "".join(f" ({note})" for note in _notes_of(error))
        click.echo(on_command_line(f"error: {error or type(error).__name__}{notes}"), err=True)
        sys.exit(getattr(error, "exit_code", 1))
