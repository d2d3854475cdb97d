"""Options that several commands share, and the decorators that run a command on a cluster and print
its result.

Each name of a storage option is one click option, even if several formats have it. The help lists
storage options by format.
"""

from __future__ import annotations

import functools
import math
import re
import time
from typing import TYPE_CHECKING, Any

import click

from wkwdask.cli.messages import on_command_line
from wkwdask.cli.results import prints_facts
from wkwdask.errors import ExistsError, LockedError, MissingError
from wkwdask.formats.registry import storage_records
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.model.options import SHAPE_WORDS, Option, StorageOptions, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

METHODS = ("median", "mode", "mean", "min", "max", "nearest")
"""Methods of ``kernels.window.reduce``, which imports numpy; the command line must start without
it. A test compares both."""
_METAVARS = {"block_len": "VOXELS", "file_len": "BLOCKS"}

_LOCK_POLL_SECONDS = 1.0

external_option = click.option(
    "--allow-external",
    is_flag=True,
    help=(
        "Allow writing and deleting where paths or links lead out of the dataset. Default: refuse."
    ),
)
space_option = click.option(
    "--force-space",
    is_flag=True,
    help="Start although the result very probably does not fit on the disk. Default: refuse.",
)
layers_option = click.option(
    "--layer",
    multiple=True,
    callback=lambda ctx, param, names: names or None,
    help="Layer to process; may be repeated. Default: all.",
)
mags_option = click.option(
    "--mags", metavar="MAG,MAG", help="Mags to process, such as 1,2-2-1. Default: all."
)


def combined_options(*options: Decorator) -> Decorator:
    """Combine decorators. The help lists their options in this order."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def parse_callback(parse: Callable[[str], Any], expected: str) -> Callable[..., Any]:
    """Return a callback that parses the text of an option. ``expected`` begins the error message
    about an invalid text."""

    def callback(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except ValueError:
            raise click.UsageError(f"{expected}, got {text!r}") from None

    return callback


def numbers_callback(name: str, number: Callable[[str], Any]) -> Callable[..., Any]:
    """Return a callback that parses a list of numbers."""
    return parse_callback(
        lambda text: tuple(map(number, text.split(","))),
        f"--{name} takes numbers with commas between them",
    )


def box_option(text: str) -> Decorator:
    """Add the option ``--bounding-box``."""
    parse = parse_callback(
        BoundingBox.parse,
        "--bounding-box takes six whole numbers X,Y,Z,W,H,D, top left and size in voxels of mag 1",
    )
    return click.option("--bounding-box", metavar="X,Y,Z,W,H,D", callback=parse, help=text)


index_option = click.option(
    "--index",
    metavar="AXIS=N,AXIS=N",
    callback=parse_callback(
        lambda text: {name: int(n) for name, n in (pair.split("=") for pair in text.split(","))},
        "--index takes an axis and a number, such as t=3",
    ),
    help="Index along each further axis of OME-NGFF and Zarr, such as t=3.",
)


def where_option(text: str) -> Decorator:
    """Add the option ``--where``."""
    parse = parse_callback(
        _corners,
        "--where takes two corners X,Y,Z:X,Y,Z in voxels of the mag, the second one exclusive",
    )
    return click.option("--where", metavar="X,Y,Z:X,Y,Z", callback=parse, help=text)


def _corners(text: str) -> tuple[tuple[int, ...], ...]:
    corners = tuple(tuple(map(int, corner.split(","))) for corner in text.split(":"))
    if [len(corner) for corner in corners] != [3, 3]:
        raise ValueError
    return corners


def resume_options(replaced: str, finished: str = "do nothing if the job is finished") -> Decorator:
    """Add ``--resume``, ``--overwrite`` and ``--restart``; the command receives them as
    ``existing``. ``replaced`` is the help of ``--overwrite``, and ``finished`` states what
    ``--resume`` does if no run is interrupted."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(
            "--resume",
            is_flag=True,
            help=f"Resume an interrupted run; {finished}.",
        )
        @click.option("--overwrite", is_flag=True, help=replaced)
        @click.option(
            "--restart",
            is_flag=True,
            help="Like --overwrite, but discard an interrupted run and start over.",
        )
        @functools.wraps(command)
        def run(*args: Any, resume: bool, overwrite: bool, restart: bool, **options: Any) -> Any:
            if resume and (overwrite or restart):
                other = "--restart discards it" if restart else "--overwrite replaces what exists"
                raise click.UsageError(f"--resume continues a run, {other}: use one of them")
            return command(
                *args,
                existing="restart"
                if restart
                else "overwrite"
                if overwrite
                else "resume"
                if resume
                else "error",
                **options,
            )

        return run

    return decorated


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a cluster. The command receives ``cluster``, a context manager to
    enter when the work begins."""

    @click.option(
        "--cluster",
        metavar="FILE|NAME",
        help=(
            "Run on this cluster (wkwdask cluster list). Default: $WKWDASK_CLUSTER, else the cores "
            "of this machine."
        ),
    )
    @click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Run on the dask cluster at this address, such as tcp://host:8786.",
    )
    @click.option(
        "--performance-report",
        metavar="FILE.html",
        help="Save dask's performance report of the run; needs a cluster and bokeh.",
    )
    @functools.wraps(command)
    def run(
        *args: Any,
        cluster: str | None,
        scheduler: str | None,
        performance_report: str | None,
        **options: Any,
    ) -> Any:
        if cluster is not None and scheduler is not None:
            raise click.UsageError(
                "--cluster names a configuration, --scheduler an address: use one of them"
            )
        from wkwdask.clusters.connect import cluster as run_on

        return command(
            *args, cluster=run_on(cluster or scheduler, report=performance_report), **options
        )

    return run


def runs_on_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a cluster. The command checks its arguments and returns a
    function; its result is computed on the cluster and printed."""

    @prints_facts
    @click.option(
        "--report",
        metavar="FILE.html",
        callback=_check_folder,
        help="Save a report: files, speed, failures and a picture of the result.",
    )
    @click.option(
        "--lock-wait",
        metavar="TIME",
        default="0",
        callback=_parse_time,
        help=(
            "Wait so long, such as 30s or 2h, while another job writes the same mags. Default: end "
            "at once."
        ),
    )
    @cluster_options
    @functools.wraps(command)
    def run(*args: Any, cluster: Any, report: str | None, lock_wait: float, **options: Any) -> Any:
        call = command(*args, **options)
        outcome: dict[str, Any] = {}
        try:
            with cluster:
                outcome["result"] = _called_when_unlocked(call, lock_wait)
        except Exception as error:
            outcome["error"] = error
            raise
        finally:
            if report is not None and outcome:
                from wkwdask.cli.report_page import write_page

                write_page(
                    report,
                    **outcome,
                    performance_report=click.get_current_context().params["performance_report"],
                )
        return outcome["result"]

    return run


def _called_when_unlocked(call: Callable[[], Any], seconds: float) -> Any:
    """Call a function; repeat the call for so long while another job holds a lock that it needs."""
    until = time.monotonic() + seconds
    is_told = False
    while True:
        try:
            return call()
        except LockedError as error:
            left = until - time.monotonic()
            if left <= 0:
                raise
            if not is_told:
                click.echo(f"waiting: {on_command_line(str(error))}", err=True)
            is_told = True
        time.sleep(min(left, _LOCK_POLL_SECONDS))


def _parse_time(ctx: click.Context, param: click.Parameter, text: str) -> float:
    if text == param.default:  # completion starts without dask
        return 0.0
    from dask.utils import parse_timedelta

    try:
        seconds = float(parse_timedelta(text))
    except (KeyError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise click.UsageError(f"{param.opts[0]} takes a time such as 30s, 10m or 2h, got {text!r}")
    return seconds


def _check_folder(ctx: click.Context, param: click.Parameter, file: str | None) -> str | None:
    """Check that a file can be written, before a long job starts."""
    if file is not None:
        from wkwdask.store.store import check_new_file

        try:
            check_new_file(file)
        except (ExistsError, MissingError) as error:
            raise click.UsageError(f"{param.opts[0]} {error}") from None
    return file


class _Shape(click.ParamType):
    """Three lengths with commas between them, one length, or a word such as ``auto``."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a shape."""
        if not isinstance(value, str):
            return value
        try:
            if value in SHAPE_WORDS:
                return SHAPE_WORDS[value]
            lengths = [int(part) for part in value.split(",")]
            return lengths[0] if len(lengths) == 1 else lengths
        except ValueError:
            self.fail(
                (
                    "expected three whole numbers such as 64,64,64, or "
                    f"{' or '.join(SHAPE_WORDS)}, got {value!r}"
                ),
                param,
                ctx,
            )


class _Number(click.ParamType):
    """A whole number, or one of some words."""

    name = "number"

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a number or a word."""
        try:
            return value if value in self._words else int(value)
        except ValueError:
            self.fail(
                f"expected a whole number or {' or '.join(self._words)}, got {value!r}", param, ctx
            )


class _StorageOption(click.Option):
    """Storage option of a format, which the help lists in the format's section."""


class StorageCommand(click.Command):
    """A command with storage options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the general options, then the storage options of each format in its own section."""
        listed = [
            each.get_help_record(ctx)
            for each in self.get_params(ctx)
            if not isinstance(each, _StorageOption)
        ]
        with formatter.section("Options"):
            formatter.write_dl([row for row in listed if row is not None])
        records, default = self.callback.storage  # type: ignore[union-attr]
        for record in records:
            with formatter.section(
                f"{record.title} options{f' (default: {default})' if default else ''}"
            ):
                formatter.write_dl(
                    [
                        (f"{_flag(name)} {_metavar(name, option)}".strip(), _help(option, default))
                        for name, option in options_of(record)
                    ]
                )


def storage_options(
    default: str = "", records: Sequence[type[StorageOptions]] = storage_records()
) -> Decorator:
    """Add the storage options of formats; the command receives those that are set. ``default``
    describes the values of all others in the help."""
    options_by_name: dict[str, list[Option]] = {}
    for record in records:
        for name, option in options_of(record):
            options_by_name.setdefault(name, []).append(option)

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(*args: Any, **options: Any) -> Any:
            return command(
                *args,
                **{
                    name: value
                    for name, value in options.items()
                    if name not in options_by_name or value is not None
                },
            )

        run.storage = (records, default)  # type: ignore[attr-defined]
        wrapped: Callable[..., Any] = run
        for name, options in reversed(options_by_name.items()):
            wrapped = _option(name, options)(wrapped)
        return wrapped

    return decorated


def _option(name: str, options: Sequence[Option]) -> Decorator:
    """Return the click option for a name that several formats may have."""
    if options[0].kind == "flag":
        return click.option(_flag(name), cls=_StorageOption, is_flag=True, default=None)
    return click.option(
        _flag(name), cls=_StorageOption, type=_type(options), metavar=_metavar(name, options[0])
    )


def _type(options: Sequence[Option]) -> click.ParamType:
    if options[0].kind == "shape":
        return _Shape()
    if options[0].kind == "choice":
        return click.Choice(
            list(dict.fromkeys(choice for option in options for choice in option.choices))
        )
    words = [word for option in options for word in option.words]
    if words:
        return _Number(words)
    bounds = options[0].bounds if len(options) == 1 else None
    return click.INT if bounds is None else click.IntRange(*bounds)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _metavar(name: str, option: Option) -> str:
    if option.kind == "shape":
        return "|".join(["X,Y,Z", *(SHAPE_WORDS if option.accepts_bool else ())])
    if option.kind == "choice":
        return f"[{'|'.join(option.choices)}]"
    numbers = "N" if option.bounds is None else f"{option.bounds[0]}..{option.bounds[1]}"
    return "" if option.kind == "flag" else "|".join([*option.words, _METAVARS.get(name, numbers)])


def _help(option: Option, default: str) -> str:
    text = option.text("auto", "none", with_default=not default)
    return re.sub(r"`(\w+)`", lambda match: _flag(match[1]), text)
