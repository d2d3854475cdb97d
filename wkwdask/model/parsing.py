"""Translation of errors from libraries that read files of other software into errors that name the
file."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from wkwdask.errors import CorruptError, WkwDaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def reading(name: str, kind: str, place: Callable[[], str] | None = None) -> Iterator[None]:
    """Convert any error that a broken file causes in a library to ``CorruptError``.

    ``place`` describes the position that was reached. Errors of this package, of missing packages
    and of the operating system pass unchanged: they do not depend on the content.

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
        raise CorruptError(
            f"{name}: not readable as {kind}: "
            f"{reason_of(error)}{'' if place is None else f', {place()}'}"
        ) from error


def reason_of(error: Exception) -> str:
    """Return the message of an error, with its class if the message alone is not clear.

    Examples
    --------
    >>> reason_of(ValueError("not a number")), reason_of(KeyError("scale")), reason_of(EOFError())
    ('not a number', "KeyError: 'scale'", 'EOFError')
    """
    text = str(error)
    return (
        text
        if text and isinstance(error, (OSError, ValueError, WkwDaskError))
        else f"{type(error).__name__}: {text}"
        if text
        else type(error).__name__
    )
