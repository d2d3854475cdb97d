"""Options that several commands have, and what happens around a command: where it runs, and what it prints.

Storage options are one for each name that the records of the formats have. The help lists them by format.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import click

from wkwdask.cli.words import on_command_line
from wkwdask.formats.registry import storage_records
from wkwdask.model.options import SHAPE_WORDS, Option, StorageOptions, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

METHODS = ("default", "median", "mode", "mean", "min", "max", "nearest")
_METAVARS = {"block_len": "VOXELS", "file_len": "BLOCKS"}

external_option = click.option(
    "--allow-external", is_flag=True, help="Allow writing and deleting where paths or links lead out of the dataset. Default: refuse."
)
layers_option = click.option("--layer", multiple=True, callback=lambda *given: given[2] or None, help="The layer; several times for several. Default: all.")
mags_option = click.option("--mags", metavar="MAG,MAG", help="The mags, such as 1,2-2-1. Default: all.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def together(*options: Decorator) -> Decorator:
    """Make one decorator of several, in the order in which the help lists what they add."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def parsed(parse: Callable[[str], Any], expected: str) -> Callable[..., Any]:
    """Make the callback of an option whose text is parsed. ``expected`` is what an error says before it names the text."""

    def callback(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except ValueError:
            raise click.UsageError(f"{expected}, got {text!r}") from None

    return callback


def numbers(name: str, number: Callable[[str], Any]) -> Callable[..., Any]:
    """Make the callback of an option that takes a list of numbers."""
    return parsed(lambda text: tuple(map(number, text.split(","))), f"--{name} takes numbers with commas between them")


def resume_options(replaced: str) -> Decorator:
    """Make the two options that say what is done with what is there already. A command gets them as ``existing``."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--resume", is_flag=True, help="Resume an interrupted run; do nothing if it has finished.")
        @click.option("--overwrite", is_flag=True, help=replaced)
        @functools.wraps(command)
        def run(*args: Any, resume: bool, overwrite: bool, **options: Any) -> Any:
            if resume and overwrite:
                raise click.UsageError("--resume goes on with a run, --overwrite starts over: give one of them")
            return command(*args, existing="overwrite" if overwrite else "resume" if resume else "error", **options)

        return run

    return decorated


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say where it runs; it gets the argument ``cluster``, to be entered when the work begins."""

    @click.option(
        "--cluster", metavar="FILE|NAME", help="Run on this cluster (wkwdask cluster list). Default: what $WKWDASK_CLUSTER says, else this machine's cores."
    )
    @click.option("--scheduler", metavar="ADDRESS", help="Run on the dask cluster at this address, such as tcp://host:8786.")
    @click.option("--report", "performance_report", metavar="FILE.html", help="Keep dask's performance report of the run; needs a cluster and bokeh.")
    @functools.wraps(command)
    def run(*args: Any, cluster: str | None, scheduler: str | None, performance_report: str | None, **options: Any) -> Any:
        if cluster is not None and scheduler is not None:
            raise click.UsageError("--cluster names a configuration, --scheduler an address: give one of them")
        from wkwdask.clusters.connect import cluster as run_on

        return command(*args, cluster=run_on(cluster or scheduler, report=performance_report), **options)

    return run


def runs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say where it runs. It checks what was asked for and returns the call that does the work, whose result is printed."""

    @cluster_options
    @functools.wraps(command)
    def run(*args: Any, cluster: Any, **options: Any) -> None:
        call = command(*args, **options)
        with cluster:
            result = call()
        click.echo(on_command_line(str(result)))

    return run


class _Shape(click.ParamType):
    """Three lengths with commas between them, or a word."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a shape."""
        if not isinstance(value, str):
            return value
        try:
            return SHAPE_WORDS[value] if value in SHAPE_WORDS else tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"expected three whole numbers such as 64,64,64, or {' or '.join(SHAPE_WORDS)}, got {value!r}", param, ctx)


class _StorageOption(click.Option):
    """An option that a format takes."""


class StorageCommand(click.Command):
    """A command with storage options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options, those of each format by themselves."""
        listed = [each.get_help_record(ctx) for each in self.get_params(ctx) if not isinstance(each, _StorageOption)]
        with formatter.section("Options"):
            formatter.write_dl([row for row in listed if row is not None])
        records, default = self.callback.storage  # type: ignore[union-attr]
        for record in records:
            with formatter.section(f"{record.title} options{f' (default: {default})' if default else ''}"):
                formatter.write_dl([(f"{_flag(name)} {_metavar(name, option)}".strip(), _help(option, default)) for name, option in options_of(record)])


def storage_options(default: str = "", records: Sequence[type[StorageOptions]] = storage_records()) -> Decorator:
    """Give a command the options of formats; it gets those that are given. ``default`` says what all others are, where a source is stored already."""
    found: dict[str, list[Option]] = {}
    for record in records:
        for name, option in options_of(record):
            found.setdefault(name, []).append(option)

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(*args: Any, **options: Any) -> Any:
            return command(*args, **{name: value for name, value in options.items() if name not in found or value is not None})

        run.storage = (records, default)  # type: ignore[attr-defined]
        given: Callable[..., Any] = run
        for name, options in reversed(found.items()):
            given = _option(name, options)(given)
        return given

    return decorated


def _option(name: str, options: Sequence[Option]) -> Decorator:
    """Make the option of a name that several formats may have."""
    if options[0].kind == "flag":
        return click.option(_flag(name), cls=_StorageOption, is_flag=True, default=None)
    return click.option(_flag(name), cls=_StorageOption, type=_type(options), metavar=_metavar(name, options[0]))


def _type(options: Sequence[Option]) -> click.ParamType:
    if options[0].kind == "shape":
        return _Shape()
    if options[0].kind == "choice":
        return click.Choice(list(dict.fromkeys(choice for option in options for choice in option.choices)))
    bounds = options[0].bounds if len(options) == 1 else None
    return click.INT if bounds is None else click.IntRange(*bounds)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _metavar(name: str, option: Option) -> str:
    if option.kind == "shape":
        return "|".join(["X,Y,Z", *(SHAPE_WORDS if option.accepts_bool else ())])
    if option.kind == "choice":
        return f"[{'|'.join(option.choices)}]"
    return "" if option.kind == "flag" else _METAVARS.get(name, "N" if option.bounds is None else f"{option.bounds[0]}..{option.bounds[1]}")


def _help(option: Option, default: str) -> str:
    text = option.text("auto", "none", with_default=not default)
    return re.sub(r"`(\w+)`", lambda found: _flag(found[1]), text)
