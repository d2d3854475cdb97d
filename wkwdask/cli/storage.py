"""Storage options of commands: one option for each name that the records of the formats have. The help lists them by format."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import click

from wkwdask.model.options import WORDS, Option, StorageOptions, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_METAVARS = {"block_len": "VOXELS", "file_len": "BLOCKS"}


class _Shape(click.ParamType):
    """Three lengths with commas between them, or a word."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a shape."""
        if not isinstance(value, str):
            return value
        try:
            return WORDS[value] if value in WORDS else tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"expected three whole numbers such as 64,64,64, or {' or '.join(WORDS)}, got {value!r}", param, ctx)


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


def storage_options(*records: type[StorageOptions], default: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
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


def _option(name: str, options: Sequence[Option]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
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
        return "|".join(["X,Y,Z", *(WORDS if option.takes_words else ())])
    if option.kind == "choice":
        return f"[{'|'.join(option.choices)}]"
    return "" if option.kind == "flag" else _METAVARS.get(name, "N" if option.bounds is None else f"{option.bounds[0]}..{option.bounds[1]}")


def _help(option: Option, default: str) -> str:
    text = option.text("auto", "none", with_default=not default)
    return re.sub(r"`(\w+)`", lambda found: _flag(found[1]), text)
