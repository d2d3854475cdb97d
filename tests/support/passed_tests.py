"""List of the tests that have passed, so that a run in another environment takes only the
others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CHECKS_MORE = "checks_more"
"""Marker of tests that check more where other software is installed: they run again."""


class PassedTests:
    """Plugin of pytest that leaves out the tests in a file, and adds those that pass."""

    def __init__(self, path: Path, *, adds: bool) -> None:
        self._path, self._adds = path, adds
        self._before = set(path.read_text().splitlines()) if path.exists() else set()

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        chosen = [
            item
            for item in items
            if item.nodeid not in self._before or item.get_closest_marker(CHECKS_MORE)
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._adds and report.when == "call" and report.passed:
            with self._path.open("a") as file:
                file.write(f"{report.nodeid}\n")
