"""Help in sections with the examples last, further names of commands, and suggestions for mistyped
ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ALIASES = {"downsample": "pyramid"}
_UNLIMITED = 1000
_EXAMPLES = re.compile(r"^ *\x08\n *Examples?:$", re.MULTILINE)


class Commands(click.Group):
    """A group that lists its commands in sections and suggests the nearest names for one that does
    not exist."""

    sections: Mapping[str, Sequence[click.Command]] = {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name or alias."""
        return super().get_command(
            ctx, cmd_name if cmd_name in self.commands else _ALIASES.get(cmd_name, cmd_name)
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names."""
        name = args[0]
        if (
            not ctx.resilient_parsing
            and not name.startswith("-")
            and self.get_command(ctx, name) is None
        ):
            near = nearest(name, [*self.commands, *_ALIASES])
            ctx.fail(
                f"No such command {name!r}. "
                f"{f'Did you mean {near}?' if near else f'{ctx.command_path} --help lists all.'}"
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, one line for each."""
        width = max(len(name) for name, command in self.commands.items() if not command.hidden)
        for title, commands in (
            self.sections or {"Commands": tuple(self.commands.values())}
        ).items():
            rows = [
                (f"{command.name:{width}}", command.get_short_help_str(_UNLIMITED))
                for command in commands
                if not command.hidden
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


def nearest(name: str, names: Sequence[str]) -> str:
    """Return the name that a mistyped one probably means; empty if none is similar.

    Examples
    --------
    >>> nearest("colr", ["color", "cells"]), nearest("x", ["color"])
    ('color', '')
    """
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, names, 1)), "")


def walk(command: click.Command) -> Iterator[click.Command]:
    """Iterate over a command and all commands below it."""
    yield command
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from walk(each)


def move_examples(command: click.Command) -> None:
    """Move the examples of a command's docstring below its options."""
    found = _EXAMPLES.search(command.help or "")
    if found and command.help:
        command.help, command.epilog = (
            command.help[: found.start()].rstrip(),
            command.help[found.start() :],
        )
