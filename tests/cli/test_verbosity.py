"""``-v`` and ``-q``: what goes to standard error. The library itself configures no logging."""

from __future__ import annotations

import logging
import os
import warnings

import dask
import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.runs.progress import PROGRESS_VARIABLE


@pytest.fixture
def dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    wkwdask.write(
        tmp_path / "ds" / "color" / "1",
        (0, 0, 0),
        np.ones((8, 8, 8), np.uint8),
        block_len=8,
        file_len=1,
    )
    return tmp_path / "ds"


def _pyramid(dataset, *flags, before=()):
    with dask.config.set(scheduler="synchronous"):
        done = run_here(*before, "pyramid", dataset, "--overwrite", "--mags", "2", *flags)
    assert done.returncode == 0, done.stderr
    assert logging.getLogger("wkwdask").handlers == []
    assert logging.getLogger("wkwdask").level == logging.NOTSET
    return done


def test_verbose_commands_log_jobs_and_publications_on_standard_error(dataset):
    silent = _pyramid(dataset)
    assert silent.stderr == ""
    for done in (_pyramid(dataset, "-v"), _pyramid(dataset, before=["-v"])):
        assert len(done.stdout.splitlines()) == len(silent.stdout.splitlines())
        assert "wkwdask.graphs.runners: pyramid of " in done.stderr
        assert f"wkwdask.runs.staged: published {dataset}/color/2" in done.stderr
        assert "bytes read" not in done.stderr
    assert "bytes read" in _pyramid(dataset, "-vv").stderr


def test_quiet_commands_print_results_and_errors_only(dataset, tmp_path, monkeypatch):
    monkeypatch.delenv(PROGRESS_VARIABLE)

    def draw(*_, **__):
        warnings.warn("careful", stacklevel=2)
        return f"{PROGRESS_VARIABLE}={os.environ.get(PROGRESS_VARIABLE)}"

    monkeypatch.setattr(wkwdask, "preview", draw)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        loud, quiet = run_here("preview", dataset), run_here("preview", dataset, "-q")
    assert (loud.stdout, loud.stderr) == (f"wrote {PROGRESS_VARIABLE}=None\n", "warning: careful\n")
    assert (quiet.stdout, quiet.stderr) == (f"wrote {PROGRESS_VARIABLE}=off\n", "")
    failed = run_here("-q", "info", tmp_path / "no")
    assert (failed.returncode, failed.stderr[:7]) == (1, "error: ")
    assert PROGRESS_VARIABLE not in os.environ
