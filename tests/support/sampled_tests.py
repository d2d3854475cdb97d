"""Sample of the cases of a test that has many, so that CI ends in time; the nightly profile of
hypothesis runs all."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING
from zlib import crc32

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Sequence

ONE_IN = "one_in"
"""Marker of tests of which one case in so many runs."""


@pytest.hookimpl(tryfirst=True)  # the same cases with any -m, and with any packages
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if settings.get_current_profile_name() == "nightly":
        return
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker(ONE_IN):
            cases[item.nodeid.partition("[")[0]].append(item)
    left_out = {
        item
        for of_one_test in cases.values()
        for item in of_one_test
        if item.nodeid not in _sample([each.nodeid for each in of_one_test], _number(item))
    }
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _number(item: pytest.Item) -> int:
    marker = item.get_closest_marker(ONE_IN)
    assert marker is not None
    return int(marker.args[0])


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
