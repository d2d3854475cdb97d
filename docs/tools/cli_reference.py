"""MkDocs hook that adds the reference of all commands, from their help."""

from __future__ import annotations

import inspect
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from mkdocs.structure.files import File, Files

from wkwdask.cli import cli

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mkdocs.config.defaults import MkDocsConfig

INTRODUCTION = (
    "# Commands\n\nThis page is made from the help of the commands. `wkwdask COMMAND --help` "
    "prints the same in a terminal."
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page ``cli-reference.md``."""
    files.append(
        File.generated(
            config,
            "cli-reference.md",
            content="\n\n".join(
                [INTRODUCTION, *sections(click.Context(cli, info_name="wkwdask"), 2)]
            ),
        )
    )
    return files


def sections(group: click.Context, level: int) -> Iterator[str]:
    """Yield the Markdown of all commands of a group, with the commands below them."""
    assert isinstance(group.command, click.Group)
    for name in group.command.list_commands(group):
        command = group.command.get_command(group, name)
        assert command is not None
        if command.hidden:
            continue
        context = click.Context(command, info_name=name, parent=group)
        table = Tables()
        command.format_options(context, table)
        yield f"{'#' * level} {context.command_path}"
        yield (
            "```console\n"
            f"{' '.join([f'$ {context.command_path}', *command.collect_usage_pieces(context)])}\n"
            "```"
        )
        yield from paragraphs(inspect.cleandoc(command.help or ""))
        yield from table.blocks
        yield from paragraphs(inspect.cleandoc(command.epilog or ""))
        if isinstance(command, click.Group):
            yield from sections(context, level + 1)


def paragraphs(text: str) -> Iterator[str]:
    r"""Yield the paragraphs of a help text. Those that keep their lines (``\b``) become blocks of
    text."""
    for paragraph in re.split(r"\n\s*\n", text):
        head, _, kept = paragraph.partition("\b\n")
        if head.strip():
            yield escaped(head)
        if kept:
            yield f"```text\n{kept}\n```"


def escaped(text: str) -> str:
    """Return text on one line, with the characters escaped that Markdown would interpret."""
    return re.sub(r"([\\*_<>|\[\]])", r"\\\1", " ".join(text.split()))


class Tables(click.HelpFormatter):
    """Formatter that turns the lists of a help text into tables."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[str] = []

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Write the name of a section before its table."""
        self.blocks.append(f"**{escaped(name)}**")
        yield

    def write_dl(self, rows: Sequence[tuple[str, str]], *_: Any, **__: Any) -> None:
        """Write a table of options or commands."""
        lines = [f"| `{name.replace('|', ' or ')}` | {escaped(text)} |" for name, text in rows]
        self.blocks.append("\n".join(["| name | meaning |", "|---|---|", *lines]))
