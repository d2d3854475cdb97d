"""Completion of paths, layers and mags in bash, zsh and fish, by click."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.model.image import Image


_PLACES = ("path", "source", "sources", "first", "base", "target", "other", "second", "folder", "root", "annotations", "mapping")


class _Place(click.types.StringParamType):
    """A path or URL."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell complete it as a file."""
        return [CompletionItem(incomplete, type="file")]


class _LayerName(click.types.StringParamType):
    """The name of a layer of the dataset that the command names."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """List the layers that begin so."""
        return [CompletionItem(layer.name, help=layer.category) for layer in _layers(ctx) if layer.name.startswith(incomplete)]


class _MagNames(click.types.StringParamType):
    """Mags of the layer that the command names, with commas between them."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """List the mags that begin as the last one."""
        before, comma, last = incomplete.rpartition(",")
        wanted = ctx.params.get("layer") or ctx.params.get("layers")
        mags = {mag: None for layer in _layers(ctx) if not wanted or layer.name == wanted or layer.name in wanted for mag in layer.mags}
        named = before.split(",")
        return [CompletionItem(f"{before}{comma}{mag.name}") for mag in mags if mag.name.startswith(last) and mag.name not in named]


_TYPES = {
    **dict.fromkeys(_PLACES, _Place()),
    **dict.fromkeys(("layer", "layers", "old", "align_with"), _LayerName()),
    **dict.fromkeys(("mag", "mags", "finest", "coarsest"), _MagNames()),
}


def _layers(ctx: click.Context) -> Iterator[Image]:
    """Find the layers of what is named so far; whatever is wrong with it, nothing is completed."""
    from wkwdask.formats.opening import find

    values = [value for name in _PLACES for value in _several(ctx.params.get(name))] or ctx.args  # where an option still wants its value
    with contextlib.suppress(Exception):
        yield from find(values[0]).layers


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def complete_parameters(command: click.Command) -> None:
    """Give the parameters of a command, and of its commands, the types that complete them, by their names."""
    for parameter in command.params:
        flag = max(parameter.opts, key=len).lstrip("-").replace("-", "_")
        found = _TYPES.get(parameter.name or "") if isinstance(parameter, click.Argument) else _TYPES.get(flag)
        if found is not None and isinstance(parameter.type, click.types.StringParamType):
            parameter.type = found
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            complete_parameters(inner)
