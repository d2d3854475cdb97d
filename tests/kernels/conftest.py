"""Which types kernels are tested with."""

from __future__ import annotations

import os

from strategies import DTYPE_NAMES


def pytest_collection_modifyitems(config, items):
    """Keep the types that ``WKWDASK_TEST_TYPES`` names, separated by spaces, where it is set: each takes seconds to compile."""
    chosen = os.environ.get("WKWDASK_TEST_TYPES", "").split()
    others = set(DTYPE_NAMES).difference(chosen) if chosen else set()
    left_out = [item for item in items if getattr(item, "callspec", None) is not None and item.callspec.params.get("dtype") in others]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
