"""Which types kernels are tested with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings
from support.strategies import DTYPE_NAMES


def _chosen_types():
    """Return what ``WKWDASK_TEST_TYPES`` names, separated by spaces; by default two, since each
    takes seconds to compile, and all in the nightly profile."""
    chosen = os.environ.get("WKWDASK_TEST_TYPES", "").split()
    if unknown := set(chosen).difference(DTYPE_NAMES):
        raise pytest.UsageError(
            f"WKWDASK_TEST_TYPES: found {', '.join(sorted(unknown))}, expected some of "
            f"{', '.join(DTYPE_NAMES)}"
        )
    return chosen or (
        DTYPE_NAMES if settings.get_current_profile_name() == "nightly" else ("uint8", "float32")
    )


def pytest_collection_modifyitems(config, items):
    """Leave out the other types."""
    others = set(DTYPE_NAMES).difference(_chosen_types())
    left_out = [
        item
        for item in items
        if item.path.is_relative_to(Path(__file__).parent) and _type_of(item) in others
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _type_of(item):
    return getattr(item, "callspec", None) and item.callspec.params.get("dtype")
