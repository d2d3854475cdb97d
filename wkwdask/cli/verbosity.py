"""Options ``-v`` and ``-q``: what a command prints on standard error beside its errors. Results are
not affected."""

from __future__ import annotations

import os
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import logging

_HANDLER = "wkwdask.cli.verbosity"


def verbosity_options(*, hidden: bool) -> list[click.Option]:
    """Return the options of one command."""
    shared: dict[str, Any] = {"expose_value": False, "hidden": hidden}
    return [
        click.Option(
            ["-v", "--verbose"],
            count=True,
            callback=_log,
            help="Log what is done on standard error; -vv also each task, file and request.",
            **shared,
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            callback=_silence,
            help="Print results and errors only: no progress, no warnings.",
            **shared,
        ),
    ]


def _log(ctx: click.Context, _param: click.Parameter, count: int) -> None:
    """Log to standard error until the command ends. The library itself never configures logging."""
    if not count or ctx.resilient_parsing:
        return
    import logging

    logger, root = logging.getLogger("wkwdask"), ctx.find_root()
    if _HANDLER not in root.meta:
        root.meta[_HANDLER] = handler = _handler()
        logger.addHandler(handler)
        root.call_on_close(lambda: logger.removeHandler(handler))
        root.call_on_close(partial(logger.setLevel, logger.level))
    logger.setLevel(logging.INFO if count == 1 else logging.DEBUG)


def _handler() -> logging.Handler:
    import logging

    class ToStandardError(logging.Handler):
        """Handler that prints through click, so that lines and a progress bar do not mix."""

        def emit(self, record: logging.LogRecord) -> None:
            click.echo(self.format(record), err=True)

    handler = ToStandardError()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
    return handler


def _silence(ctx: click.Context, _param: click.Parameter, is_quiet: bool) -> None:
    if not is_quiet or ctx.resilient_parsing:
        return
    import logging

    from wkwdask.runs.progress import PROGRESS_VARIABLE

    logger, before = logging.getLogger("wkwdask"), os.environ.get(PROGRESS_VARIABLE)
    ctx.find_root().call_on_close(partial(logger.setLevel, logger.level))
    ctx.find_root().call_on_close(
        lambda: (
            os.environ.pop(PROGRESS_VARIABLE)
            if before is None
            else os.environ.update({PROGRESS_VARIABLE: before})
        )
    )
    logger.setLevel(logging.ERROR)
    os.environ[PROGRESS_VARIABLE] = "off"  # processes that this one starts are quiet too
    warnings.showwarning = lambda *_, **__: None
