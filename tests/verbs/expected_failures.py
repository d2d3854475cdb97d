"""Cells of the matrix that fail. Delete the line of a cell when it passes; the mark is strict."""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Fault:
    """Reason for failures, and the errors that show it; AssertionError stands for wrong results
    without an error."""

    reason: str
    raises: tuple[type[Exception], ...] = (AssertionError,)


EXPECTED_FAILURES: dict[tuple[str, str], Fault] = {}


def marks(name: str, form: object) -> list[pytest.MarkDecorator]:
    """Return the marks of a cell."""
    fault = EXPECTED_FAILURES.get((name, str(form)))
    return (
        []
        if fault is None
        else [pytest.mark.xfail(strict=True, raises=fault.raises, reason=fault.reason)]
    )
