"""Mark the boundary behind which a library reads somebody else's file: what it raises there names the file."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from wkwdask.errors import CorruptError, WkwDaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def reading(name: str, kind: str, place: Callable[[], str] | None = None) -> Iterator[None]:
    """Turn whatever a broken file makes a library raise into a ``CorruptError``.

    Errors of this package, of a package that is not installed, and of the operating system pass: they say nothing about the content.

    Examples
    --------
    >>> with reading("a.json", "JSON"):
    ...     {}["scale"]
    Traceback (most recent call last):
    wkwdask.errors.CorruptError: a.json: not readable as JSON: KeyError: 'scale'
    """
    try:
        yield
    except (WkwDaskError, ModuleNotFoundError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptError(f"{name}: not readable as {kind}: {reason_of(error)}{'' if place is None else f', {place()}'}") from error


def reason_of(error: Exception) -> str:
    """Say what an error means where its class is not shown.

    Examples
    --------
    >>> reason_of(ValueError("not a number")), reason_of(KeyError("scale")), reason_of(EOFError())
    ('not a number', "KeyError: 'scale'", 'EOFError')
    """
    text = str(error)
    return text if text and isinstance(error, (OSError, ValueError, WkwDaskError)) else f"{type(error).__name__}: {text}" if text else type(error).__name__
