"""Tests marked with the packages that they need: where one is missing, one skipped test of a file
stands for all."""

from __future__ import annotations

from collections import Counter
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

NEEDS = "needs"
"""Marker of tests that need packages."""


def leave_out_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that need a missing package, but the first of each file, which is skipped
    and states their number."""
    needed = [(item, (item.path, _first_missing(item))) for item in items]
    counts = Counter(key for _, key in needed if key[1] is not None)
    kept, seen = [], set()
    for item, key in needed:
        if key[1] is not None and key not in seen:
            item.add_marker(
                pytest.mark.skip(
                    reason=(
                        f"{key[1]} is not installed; tests of this file that need it: {counts[key]}"
                    )
                )
            )
        if key[1] is None or key not in seen:
            kept.append(item)
        seen.add(key)
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


def _first_missing(item: pytest.Item) -> str | None:
    names: Iterable[str] = (name for mark in item.iter_markers(NEEDS) for name in mark.args)
    return next((name for name in names if not _is_installed(name)), None)


@cache
def _is_installed(name: str) -> bool:
    return find_spec(name) is not None
