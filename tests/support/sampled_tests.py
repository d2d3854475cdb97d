"""Sample of the cases of a test that has many, so that CI ends in time; the nightly profile of
hypothesis runs all."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

ONE_IN = "one_in"
"""Marker of tests of which one case in so many runs."""


@pytest.hookimpl(tryfirst=True)  # the same cases with any -m, and with any packages
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("HYPOTHESIS_PROFILE") == "nightly":
        return
    cases: defaultdict[str, list[str]] = defaultdict(list)
    numbers: dict[str, int] = {}
    for item in items:
        marker = item.get_closest_marker(ONE_IN)
        if marker is not None:
            test = item.nodeid.partition("[")[0]
            cases[test].append(item.nodeid)
            numbers[test] = marker.args[0]
    left_out = {
        name for test, names in cases.items() for name in set(names) - _sample(names, numbers[test])
    }
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def _sample(names: Sequence[str], number: int) -> set[str]:
    """Choose one name in ``number``, the same ones in every run, and more where a word that stands
    in ``number`` names or more would be missing."""
    words = {name: set(re.split(r"[-\[\]]", name.partition("[")[2])) for name in names}
    counts = Counter(word for each in words.values() for word in each)
    missing = {word for word, count in counts.items() if count >= number}
    drawn = sorted(names, key=lambda name: crc32(name.encode()))
    chosen = set()
    for name in drawn:
        if words[name] & missing:
            chosen.add(name)
            missing -= words[name]
    rest = -(-len(names) // number) - len(chosen)
    return chosen.union([name for name in drawn if name not in chosen][: max(rest, 0)])
