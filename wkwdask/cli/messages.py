"""Translate messages for the command line: arguments of functions become options, function calls
become commands."""

from __future__ import annotations

import functools
import re

import click

from wkwdask.cli.help import nearest

_FLAGS = {
    'existing="overwrite"': "--overwrite",
    'existing="resume"': "--resume",
    'existing="restart"': "--restart",
    'existing="keep"': "--keep",
    'update="content"': "--update-content",
    "pyramid=True": "--pyramid",
}
_VERBS = {
    "build_pyramid": "pyramid",
    "open_dataset": "info",
    "connected_components": "components",
    "create_dataset": "dataset create",
}
_COMMANDS: list[click.Command] = []
_ARGUMENT = re.compile(
    r"""(?<![\w/.?&=-])([a-z]\w*)=(?:"([^"]*)"|'([^']*)'|(True|False)|\(([\d., ]+)\)|(\d+(?=[^\w.]|$))|\{"(\w+)": (\d+)\}|\((\([-\d, ]+\), \([-\d, ]+\))\))?"""  # noqa: E501
)
_LIST = re.compile(r"(?<= has no option )\w+|(?<= has no options )[\w, ]+|(?<=; it has: )[\w, ]+")
_NOT_THERE = re.compile(r"\bno (?:layer|mag) '?([^\s';]+)'?(?: in [^;]*)?; there are ([^;:]+)$")
# convert() without arguments stays: it is also a verb, as in "convert() it"
_CALL = re.compile(r"\b(" + "|".join(_VERBS) + r"|(?:convert|meshes)(?=\([^()]))\(([^()]*)\)")


def register_options(command: click.Command) -> None:
    """Add the options of a command to those that :func:`on_command_line` knows."""
    _COMMANDS.append(command)


def on_command_line(text: str) -> str:
    """Replace the arguments of functions in a message by options of commands.

    Examples
    --------
    >>> on_command_line(
    ...     'existing="restart" starts over; choose one with layer=, or build_pyramid(update=True)'
    ... )
    '--restart starts over; choose one with --layer, or wkwdask pyramid --update'
    """
    text = _LIST.sub(
        lambda match: re.sub(r"\w+", lambda name: _options().get(name[0], name[0]), match[0]), text
    )
    text = _CALL.sub(
        lambda match: f"wkwdask {_VERBS.get(match[1], match[1])} {match[2]}".rstrip(), text
    )
    return _ARGUMENT.sub(_as_option, _NOT_THERE.sub(_with_nearest, text))


def _with_nearest(match: re.Match[str]) -> str:
    near = nearest(match[1], match[2].split(", "))
    return f"{match[0]}; did you mean {near}?" if near else match[0]


def _as_option(match: re.Match[str]) -> str:
    if match[0] in _FLAGS:
        return _FLAGS[match[0]]
    option = _options().get(match[1])
    if option is None or match[4] == "False":
        return match[0]
    value = match[2] or match[3] or (match[5] or "").replace(" ", "") or match[6]
    if match[7]:
        value = f"{match[7]}={match[8]}"
    if match[9]:  # two corners
        value = match[9].replace("), (", ":").replace(" ", "").strip("()")
    return f"{option} {value}" if value else option


@functools.cache
def _options() -> dict[str, str]:
    """Map argument names to options; parameters of commands have the names of function
    arguments."""
    options: dict[str, str] = {}
    for command in _COMMANDS:
        for option in (
            parameter for parameter in command.params if isinstance(parameter, click.Option)
        ):
            flag = max(option.opts, key=len)
            options.setdefault(flag.lstrip("-").replace("-", "_"), flag)
            options.setdefault(option.name or "", flag)
    return options
