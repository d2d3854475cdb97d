"""A user without the permissions of root, and a folder that this user may enter."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534


@contextmanager
def nobody() -> Iterator[None]:
    """Drop the permissions of root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def public_folder() -> Iterator[Path]:
    """Make a folder that every user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with nobody():
            if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
                pytest.skip("temporary folders cannot be entered by other users here")
        yield Path(folder)
