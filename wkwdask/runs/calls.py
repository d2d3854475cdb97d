"""Calls of the user, recorded by their jobs.

So ``status`` names the command that resumes a job, and a repeated call of several jobs finds those
that it has finished.
"""

from __future__ import annotations

import contextlib
import secrets
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from wkwdask.store.looks import looking

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Command:
    """Command of a user."""

    arguments: tuple[str, ...]
    """Arguments, without the name of the program."""
    folder: str
    """Working directory."""


@dataclass(slots=True)
class Call:
    """One call of a function, or one command."""

    command: Command | None = None
    """Command that it is; None for a function."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    """A call that continues an interrupted one has its id."""
    has_written: bool = False
    """Whether a job of this call was not finished before."""
    new_folders: list[str] = field(default_factory=list)
    """Folders that did not exist before its jobs, outermost first."""

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, **({} if self.command is None else asdict(self.command))}


_current: ContextVar[Call | None] = ContextVar("wkwdask_call", default=None)


def current_call() -> Call:
    """Return the call that runs; a job outside of any has its own."""
    return _current.get() or Call()


@contextlib.contextmanager
def same_call(command: Command | None = None) -> Iterator[Call]:
    """Let all jobs of this block belong to one call, which is that around the block if there is
    one."""
    call = _current.get() or Call(command)
    token = _current.set(call)
    try:
        with looking():
            yield call
    finally:
        _current.reset(token)


def command_of(record: Any) -> Command | None:
    """Return the command in the record of a call; None for a function, or if the record cannot be
    one."""
    arguments, folder = (
        (record.get("arguments"), record.get("folder"))
        if isinstance(record, dict)
        else (None, None)
    )
    if not isinstance(arguments, list) or not all(
        isinstance(text, str) and text.isprintable() for text in (*arguments, folder)
    ):
        return None
    return Command(tuple(arguments), str(folder))
