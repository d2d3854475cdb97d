"""Folder from which the tests of SLURM submit jobs."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _submit_folder(tmp_path, monkeypatch):
    """Submit jobs from a separate folder, where SLURM writes their output."""
    (tmp_path / "submitted-from").mkdir()
    monkeypatch.chdir(tmp_path / "submitted-from")
