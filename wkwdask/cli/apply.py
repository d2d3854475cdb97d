"""Command that applies a function."""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import click

import wkwdask
from wkwdask.cli.options import (
    StorageCommand,
    external_option,
    parse_callback,
    resume_options,
    runs_on_cluster,
    space_option,
    storage_options,
    where_option,
)


def _parse_shape(text: str) -> Any:
    numbers = [int(part) for part in text.split(",")]
    return numbers[0] if len(numbers) == 1 else numbers


_shape_callback = parse_callback(_parse_shape, "expected one or three whole numbers")


@click.command(cls=StorageCommand, short_help="Apply your own function to layers.")
@click.argument("function")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE... [TARGET]")
@click.option(
    "--reduce",
    "is_reduction",
    is_flag=True,
    help="Write no target: print the sum of what the function returns.",
)
@click.option(
    "--halo",
    metavar="X,Y,Z",
    callback=_shape_callback,
    help="Margin that the function reads around its box [voxels]; one number for all axes.",
)
@click.option(
    "--mask",
    metavar="MAG",
    help="Mag of any resolution; the result is zero, and not computed, where this mag is zero.",
)
@where_option("Corners of the box to compute [voxels of the mag]; everything else becomes zero.")
@click.option(
    "--skip-empty",
    is_flag=True,
    help="Skip boxes in which the first source is zero; their result is zero.",
)
@click.option(
    "--chunks",
    metavar="X,Y,Z",
    callback=_shape_callback,
    help="Box that one call computes [voxels]; one number for all axes.",
)
@click.option(
    "--arg",
    "arguments",
    metavar="NAME=VALUE",
    multiple=True,
    help="Keyword argument of the function, as JSON or else as text; may be repeated.",
)
@click.option("--dtype", help="Data type of the result. Default: that of the first source.")
@click.option(
    "--channels",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of channels of the result.",
)
@click.option(
    "--category",
    type=click.Choice(("color", "segmentation")),
    help="Category of a new layer. Default: chosen by the data type.",
)
@click.option(
    "--token", help="Version of the function: an interrupted run of another version is not resumed."
)
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=2,
    show_default=True,
    help="Retries after an error that may pass, such as a timeout.",
)
@storage_options("as in the first source, lz4hc if that is raw")
@resume_options("Replace an existing mag, and start over: the function may have changed.")
@external_option
@space_option
@runs_on_cluster
def apply(
    function: str,
    sources: tuple[str, ...],
    is_reduction: bool,
    halo: Any,
    arguments: tuple[str, ...],
    **options: Any,
) -> Any:
    """Apply FUNCTION, named as module:function or file.py:function, to one or several SOURCEs, and
    write the mag TARGET.

    The function receives one numpy array (x, y, z) per source and returns an array of the same
    shape. The mag is published when it is complete; the same command continues an interrupted run.
    Boxes in which the function failed are listed.

    \b
    Examples:
      wkwdask apply scipy.ndimage:gaussian_filter --arg sigma=2 --halo 8 dataset/color/1 dataset/smooth/1
      wkwdask apply my_functions.py:threshold dataset/color/2 dataset/mask/2 --dtype uint8
      wkwdask apply my_functions.py:clean dataset/seg/1 dataset/tissue/8 dataset/clean/1 --mask dataset/tissue/8
      wkwdask apply numpy:count_nonzero dataset/seg/1 --reduce
    """  # noqa: E501
    called = partial(
        _import_function(function), **dict(_parse_argument(text) for text in arguments)
    )
    called.__name__ = function  # type: ignore[attr-defined]  # the name in messages
    target = None if is_reduction else sources[-1]
    urls = sources if is_reduction else sources[:-1]
    if not urls:
        raise click.UsageError("name the sources and a target, or --reduce")
    return partial(wkwdask.apply, called, list(urls), target, halo=halo or 0, **options)


def _import_function(name: str) -> Any:
    """Import a function by the name of its module or file."""
    from wkwdask.runs.job import format_user_trace

    module, _, attribute = name.rpartition(":")
    if not module or not attribute:
        raise click.UsageError(
            f"name the function as module:function or file.py:function, got {name!r}"
        )
    try:
        if module.endswith(".py"):
            owner = _import_file(module)
        else:
            sys.path.append(".")
            owner = import_module(module)
    except click.ClickException:
        raise
    except Exception as error:
        raise click.UsageError(
            f"{module} cannot be imported: {type(error).__name__}: {error}\n"
            f"{format_user_trace(error)}".rstrip()
        ) from error
    for part in attribute.split("."):
        if not hasattr(owner, part):
            raise click.UsageError(f"{module} has no {attribute}")
        owner = getattr(owner, part)
    if not callable(owner):
        raise click.UsageError(f"{name} is not a function")
    return owner


def _import_file(file: str) -> Any:
    """Import a file as a module that is not in ``sys.modules``, so that its functions are pickled
    by value for the processes of a cluster."""
    path = Path(file).resolve()
    if not path.is_file():
        raise click.UsageError(f"{path}: no such file")
    spec = spec_from_file_location(f"wkwdask_function_file_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{path}: cannot be imported")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        # cloudpickle sends functions by value if their module cannot be imported
        del sys.modules[spec.name]
    return module


def _parse_argument(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.UsageError(f"--arg takes NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
