"""JSON of other software: parsed with errors that state the position, and written so that unchanged
numbers keep their digits. Opens no file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

from wkwdask.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterator

JsonObject = dict[str, Any]

_MAX_DEPTH = 100
_QUOTED = 400  # characters of a value in an error: enough for most paths


class Number(float):
    """Float that is written exactly as it was read."""

    text: str

    def __new__(cls, text: str | float) -> Self:
        number = super().__new__(cls, text)
        number.text = str(text)
        return number

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class Problems:
    """Collects the problems of a document, each with its path."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def add(self, path: str, expected: str, value: Any) -> None:
        """Add a problem: a value other than the expected one."""
        self.messages.append(f"{path}: expected {expected}, found {json.dumps(value)[:_QUOTED]}")


def parse_object(content: str | bytes, source: str) -> JsonObject:
    """Parse a JSON file that contains an object."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptError(f"{source}: byte {error.start}: not UTF-8") from None
    try:
        document = json.loads(text, parse_float=Number, parse_constant=Number)
    except json.JSONDecodeError as error:
        raise CorruptError(
            f"{source}: byte {len(text[: error.pos].encode())}: not valid JSON: {error.msg} (line "
            f"{error.lineno}, column {error.colno})"
        ) from None
    except (ValueError, RecursionError) as error:
        # a number of thousands of digits, brackets of thousands of levels
        raise CorruptError(f"{source}: not readable as JSON: {error}") from None
    if not isinstance(document, dict):
        raise CorruptError(
            f"{source}: expected an object at the top, found {type(document).__name__}"
        )
    _check_depth(document, source)
    return document


def _check_depth(document: JsonObject, source: str) -> None:
    """Reject documents that are nested so deeply that recursion through them could fail."""
    level: list[Any] = [document]
    for _ in range(_MAX_DEPTH):
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise CorruptError(f"{source}: nested deeper than {_MAX_DEPTH} levels")


def format_json(value: Any) -> str:
    """Return a value as indented JSON; numbers that were read keep their digits."""
    return "".join(_format_parts(value, "\n")) + "\n"


def _format_parts(value: Any, start: str) -> Iterator[str]:
    """Yield the parts of a value; ``start`` is the line break and indentation of its first line."""
    inner = f"{start}    "
    if isinstance(value, dict) and value:
        for number, (key, item) in enumerate(value.items()):
            yield f"{',' if number else '{'}{inner}{_format_scalar(str(key))}: "
            yield from _format_parts(item, inner)
        yield f"{start}}}"
    elif isinstance(value, (list, tuple)) and value:
        for number, item in enumerate(value):
            yield f"{',' if number else '['}{inner}"
            yield from _format_parts(item, inner)
        yield f"{start}]"
    elif isinstance(value, Number):
        yield value.text
    else:
        yield _format_scalar(value)


def _format_scalar(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate, which JSON can only contain as an escape
        return json.dumps(value)
    return text
