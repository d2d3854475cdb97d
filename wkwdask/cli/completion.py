"""Shell completion of paths, layers and mags in bash, zsh and fish, and the command that prints its
script."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.model.image import Image


_URL_PARAMETERS = (
    "path",
    "source",
    "sources",
    "first",
    "base",
    "target",
    "other",
    "second",
    "folder",
    "root",
    "annotations",
    "mapping",
)


class _Url(click.types.StringParamType):
    """A path or URL."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the value as a file name."""
        return [CompletionItem(incomplete, type="file")]


class _LayerName(click.types.StringParamType):
    """The name of a layer of the dataset that the command names."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete names of layers."""
        return [
            CompletionItem(layer.name, help=layer.category)
            for layer in _layers(ctx)
            if layer.name.startswith(incomplete)
        ]


class _MagNames(click.types.StringParamType):
    """Mags of the layer that the command names, separated by commas."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the last mag of the list."""
        before, comma, last = incomplete.rpartition(",")
        layer_names = ctx.params.get("layer") or ctx.params.get("layers")
        mags = {
            mag: None
            for layer in _layers(ctx)
            if not layer_names or layer.name == layer_names or layer.name in layer_names
            for mag in layer.mags
        }
        named = before.split(",")
        return [
            CompletionItem(f"{before}{comma}{mag.name}")
            for mag in mags
            if mag.name.startswith(last) and mag.name not in named
        ]


_TYPES = {
    **dict.fromkeys(_URL_PARAMETERS, _Url()),
    **dict.fromkeys(("layer", "layers", "old", "align_with", "color"), _LayerName()),
    **dict.fromkeys(("mag", "mags", "finest", "coarsest", "color_mag"), _MagNames()),
}


def _layers(ctx: click.Context) -> Iterator[Image]:
    """Return the layers of the first path on the command line. Errors are suppressed: completion
    must not print them."""
    # else the import of numpy starts a thread for each core
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from wkwdask.formats.opening import find

    # click leaves paths in args while an option lacks its value
    values = [
        value for name in _URL_PARAMETERS for value in _several(ctx.params.get(name))
    ] or ctx.args
    with contextlib.suppress(Exception):
        yield from find(values[0]).layers


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def complete_parameters(command: click.Command) -> None:
    """Set the types that complete parameters, by name."""
    for parameter in command.params:
        option_name = max(parameter.opts, key=len).lstrip("-").replace("-", "_")
        completing_type = (
            _TYPES.get(parameter.name or "")
            if isinstance(parameter, click.Argument)
            else _TYPES.get(option_name)
        )
        if completing_type is not None and isinstance(parameter.type, click.types.StringParamType):
            parameter.type = completing_type


@click.command(short_help="Print the script for shell completion.")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script for SHELL that completes commands, options, paths, and the layers and mags of
    the dataset typed.

    \b
    Examples:
      eval "$(wkwdask completion bash)"
      wkwdask completion zsh > ~/.zsh/functions/_wkwdask
      wkwdask completion fish > ~/.config/fish/completions/wkwdask.fish
    """
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(ctx.find_root().command, {}, "wkwdask", "_WKWDASK_COMPLETE").source())
