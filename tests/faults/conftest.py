"""Fixtures of all tests of this folder."""

from __future__ import annotations

import pytest
from faults.drivers import without_flushing


@pytest.fixture(autouse=True)
def _without_flushing():
    """Flushing to disk helps when the machine goes down, not when a process does; without it there
    is time for many more kills."""
    with without_flushing():
        yield
