"""List of the tests that have passed, so that a run in another environment takes only the
others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CHECKS_MORE = "checks_more"
"""Marker of tests that check more where other software is installed: they run again in each
environment."""


class PassedTests:
    """Plugin of pytest that leaves out the tests in a file, and adds those that pass."""

    def __init__(self, path: Path, *, adds: bool) -> None:
        self._path, self._adds = path, adds
        lines = path.read_text().splitlines() if path.exists() else []
        passed = [(place, name) for place, _, name in (line.partition("\t") for line in lines)]
        self._anywhere = {name for _, name in passed}
        self._here = {name for place, name in passed if place == sys.prefix}

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        chosen = [
            item
            for item in items
            if item.nodeid
            not in (self._here if item.get_closest_marker(CHECKS_MORE) else self._anywhere)
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._adds and report.when == "call" and report.passed:
            with self._path.open("a") as file:
                file.write(f"{sys.prefix}\t{report.nodeid}\n")
