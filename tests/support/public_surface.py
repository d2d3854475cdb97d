"""The public surface as text: what people type, of which a change must be meant. ``python -m
support.public_surface`` from ``tests`` writes it anew."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import click

import wkwdask
from wkwdask.cli import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = Path(__file__).parent.parent / "golden" / "public_surface.txt"


def surface() -> str:
    """Write the names, parameters and defaults of the package and of all commands, one a line."""
    return "\n".join([*_package(), *_commands(cli, click.Context(cli, info_name="wkwdask"))]) + "\n"


def _package() -> Iterator[str]:
    for name in wkwdask.__all__:
        value = getattr(wkwdask, name)
        if not inspect.isclass(value):
            yield f"{name}{_parameters(value)}"
            continue
        yield (
            "class "
            f"{name}({', '.join(base.__name__ for base in value.__bases__ if base is not object)})"
        )
        ours = [vars(base) for base in value.__mro__ if base.__module__.startswith("wkwdask")]
        for member in sorted(
            {each for names in ours for each in names if not each.startswith("_")}
        ):
            found = getattr(value, member, None)
            yield f"  {name}.{member}{_parameters(found) if callable(found) else ''}"


def _parameters(value: object) -> str:
    """Write names and defaults; annotations are for type checkers, which have their own tests."""
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"
    plain = [
        each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()
    ]
    return str(inspect.Signature(plain))


def _commands(command: click.Command, context: click.Context) -> Iterator[str]:
    yield context.command_path
    for each in command.params:  # without --help, whose two names click keeps in a set
        several = " ..." if each.nargs == -1 or getattr(each, "multiple", False) else ""
        required = " (required)" if each.required else ""
        if isinstance(each, click.Option):
            default = each.to_info_dict()["default"]
            shown = (
                ""
                if default is None or callable(each.default) or each.is_flag
                else f" = {default!r}"
            )
            yield (
                f"  {' '.join([*each.opts, *each.secondary_opts])} "
                f"{each.type.name}{several}{shown}{required}"
            )
        else:
            yield f"  {each.human_readable_name}{several}{required}"
    if isinstance(command, click.Group):
        for name in sorted(command.list_commands(context)):
            found = command.get_command(context, name)
            assert found is not None, name
            yield from _commands(found, click.Context(found, parent=context, info_name=name))


if __name__ == "__main__":
    GOLDEN.write_text(surface())
