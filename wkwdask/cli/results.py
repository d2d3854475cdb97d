"""Results of commands: text or JSON on standard output, and exit codes."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import click

from wkwdask.cli.messages import on_command_line
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag

if TYPE_CHECKING:
    from collections.abc import Callable

FOUND = 1
"""Exit code of a check that found something."""
NOT_CHECKED = 2
"""Exit code of a check that could not be made."""

_PROSE = frozenset({"note", "notes", "remedy", "reason", "why", "how"})
"""Keys of JSON whose texts may name arguments of functions."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Result of a command."""

    value: Any
    """Record or plain values, which become JSON."""
    text: str | Callable[[], None] | None = None
    """Text, nothing if it is empty, or function that prints it; by default the text of the
    value."""
    exit_code: int = 0


def prints_facts(command: Callable[..., Any]) -> Callable[..., None]:
    """Print what a command returns, as text or, with ``--json``, as one JSON document. An error is
    a document too, beside its line on standard error."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
    @functools.wraps(command)
    def run(*args: Any, as_json: bool, **options: Any) -> None:
        try:
            result = command(*args, **options)
        except Exception as error:
            if as_json and not isinstance(error, (click.UsageError, click.Abort)):
                _print_json(
                    {
                        "error": on_command_line(str(error) or type(error).__name__),
                        "kind": type(error).__name__,
                    }
                )
            raise
        facts = result if isinstance(result, Facts) else Facts(result)
        if as_json:
            _print_json(facts.value)
        elif callable(facts.text):
            facts.text()
        elif text := on_command_line(str(facts.value) if facts.text is None else facts.text):
            click.echo(text)
        if facts.exit_code:
            click.get_current_context().exit(facts.exit_code)

    return run


def prints_check(command: Callable[..., Any]) -> Callable[..., None]:
    """Like :func:`prints_facts`, for a command whose exit code is 1 if it finds something: an error
    exits with 2."""

    @prints_facts
    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except Exception as error:
            error.exit_code = NOT_CHECKED  # type: ignore[attr-defined]
            raise

    return run


def _print_json(value: Any) -> None:
    click.echo(json.dumps(_with_options(plain(value)), indent=2, default=str))


def _with_options(value: Any, *, is_prose: bool = False) -> Any:
    """Name options in the notes and remedies of a JSON document, as text output does."""
    if isinstance(value, dict):
        return {name: _with_options(item, is_prose=name in _PROSE) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_options(item, is_prose=is_prose) for item in value]
    return on_command_line(value) if is_prose and isinstance(value, str) else value


def plain(value: Any) -> Any:
    """Return the values of a record for JSON: a box as six numbers, a mag as text, numbers that
    JSON does not have as null.

    Examples
    --------
    >>> plain({"box": BoundingBox((1, 2, 3), (4, 5, 6)), "mag": Mag(2, 2, 1), "mean": float("nan")})
    {'box': [1, 2, 3, 4, 5, 6], 'mag': '2-2-1', 'mean': None}
    """
    if isinstance(value, BoundingBox):
        return [*value.topleft, *value.size]
    if isinstance(value, Mag):
        return value.name
    if hasattr(value, "to_json") and not hasattr(value, "from_json"):
        # what can be parsed again has its stored form there
        return plain(value.to_json())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(map(plain, value))
    if hasattr(value, "tolist"):  # of numpy
        return plain(value.tolist())
    return value if not isinstance(value, float) or math.isfinite(value) else None
