"""Functions of users on the command line: their names, arguments and the boxes that they read."""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wkwdask.cli.options import combined_options, parse_callback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.cli.options import Decorator


def _parse_shape(text: str) -> Any:
    numbers = [int(part) for part in text.split(",")]
    return numbers[0] if len(numbers) == 1 else numbers


_shape_callback = parse_callback(_parse_shape, "expected one or three whole numbers")


def shape_option(name: str, text: str, **more: Any) -> Decorator:
    """Add an option that takes one or three numbers of voxels."""
    return click.option(name, metavar="X,Y,Z", callback=_shape_callback, help=text, **more)


mask_option = click.option(
    "--mask",
    metavar="MAG",
    help="Mag of any resolution; the result is zero, and not computed, where this mag is zero.",
)
arguments_option = click.option(
    "--arg",
    "arguments",
    metavar="NAME=VALUE",
    multiple=True,
    help="Keyword argument of the function, as JSON or else as text; may be repeated.",
)
token_option = click.option(
    "--token", help="Version of the function: an interrupted run of another version is not resumed."
)
retries_option = click.option(
    "--retries",
    type=click.IntRange(0),
    default=2,
    show_default=True,
    help="Retries after an error that may pass, such as a timeout.",
)


def _parse_resources(text: str) -> dict[str, float]:
    pairs = [part.partition("=") for part in text.split(",")]
    return {name: float(amount) for name, _, amount in pairs}


calls_options = combined_options(
    click.option(
        "--setup",
        metavar="FUNCTION",
        callback=lambda ctx, param, name: None if name is None else import_function(name, ()),
        help="Function called once in each process; its result is the first argument of FUNCTION.",
    ),
    click.option(
        "--batch",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Boxes of one call; from 2 on, each argument of FUNCTION is a list.",
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(1),
        help="Calls at the same time in one process. Default: any number, 1 with --setup.",
    ),
    click.option(
        "--resources",
        metavar="NAME=AMOUNT",
        callback=parse_callback(_parse_resources, "--resources takes NAME=AMOUNT, such as GPU=1"),
        help="Resources of dask that a worker needs to call FUNCTION, such as GPU=1.",
    ),
)


def import_function(name: str, arguments: Sequence[str]) -> Any:
    """Import a function by its name, and bind the arguments of the command line."""
    called = partial(_import(name), **dict(_parse_argument(text) for text in arguments))
    called.__name__ = name  # type: ignore[attr-defined]  # the name in messages
    return called


def _import(name: str) -> Any:
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
