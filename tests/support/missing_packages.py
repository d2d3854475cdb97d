"""Tests that need packages, by their mark, or real data, by their fixture: where these are missing,
one skipped test of a file stands for all."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

NEEDS = "needs"
"""Marker of tests that need packages."""
_REPOSITORY = Path(__file__).resolve().parent.parent.parent
REAL_DATA = Path(os.environ.get("WKWDASK_TEST_DATA", _REPOSITORY.parent / "shared" / "data"))
"""Folder of real data, which lies outside of the repository and may be absent."""


def leave_out_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that need a missing package or real data, but the first of each file,
    which is skipped and states what the others lack."""
    missing = {item: reason for item in items if (reason := _first_missing(item)) is not None}
    first: dict[Path, pytest.Item] = {}
    reasons: defaultdict[Path, Counter[str]] = defaultdict(Counter)
    for item, reason in missing.items():
        first.setdefault(item.path, item)
        reasons[item.path][reason] += 1
    for path, item in first.items():
        told = ", ".join(f"{reason} (tests: {n})" for reason, n in reasons[path].items())
        item.add_marker(pytest.mark.skip(reason=told))
    left_out = missing.keys() - first.values()
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _first_missing(item: pytest.Item) -> str | None:
    names: Iterable[str] = (name for mark in item.iter_markers(NEEDS) for name in mark.args)
    missing = next((name for name in names if not _is_installed(name)), None)
    if missing is not None:
        return f"{missing} is not installed"
    if "shared_data" in getattr(item, "fixturenames", ()) and not REAL_DATA.is_dir():
        return f"no folder of real data {REAL_DATA} (WKWDASK_TEST_DATA)"
    return None


@cache
def _is_installed(name: str) -> bool:
    return find_spec(name) is not None
