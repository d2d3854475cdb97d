"""What ``wkwdask submit`` understands, without any SLURM; jobs on a real one are in ``tests/slurm``."""

from __future__ import annotations

import click
import numpy as np
import pytest
from click.testing import CliRunner
from faults.trees import leftovers, make_dataset

import wkwdask
from wkwdask.cli import cli
from wkwdask.cli.batch import _going_on, _nbytes, _seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10", 600), ("10:30", 630), ("1:00:00", 3600), ("2-0", 172800), ("1-2:30", 95400), ("1-00:00:01", 86401)],
)
def test_walltimes_as_slurm_reads_them(text, seconds):
    assert _seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "1h", "1:2:3:4", "-1", "1-"])
def test_what_is_no_walltime(text):
    with pytest.raises(click.UsageError, match="--walltime takes"):
        _seconds(text)


@pytest.mark.parametrize(("text", "nbytes"), [("900", 900 << 20), ("900M", 900 << 20), ("4g", 4 << 30), ("4GiB", 4 << 30), ("2T", 2 << 40)])
def test_memory(text, nbytes):
    assert _nbytes(text) == nbytes


def test_what_goes_on():
    assert _going_on(("pyramid", "ds", "--overwrite", "--layer", "seg")) == ["pyramid", "ds", "--layer", "seg", "--resume"]
    assert _going_on(("rechunk", "a", "b", "--resume")) == ["rechunk", "a", "b", "--resume"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pyramid", "ds"], "Missing option '--cluster'"),
        (["pyramid", "ds", "--cluster", "local"], "give the command itself, wkwdask pyramid ... --cluster local"),
        (["pyramid", "ds", "--cluster", "slurm-array", "--memory", "much"], "--memory takes a size"),
    ],
)
def test_what_cannot_be_submitted(arguments, said):
    result = CliRunner().invoke(cli, ["submit", *arguments])
    assert result.exit_code == 2
    assert said in result.output


def test_without_slurm(tmp_path, monkeypatch):
    """The error names the command that is not there, and nothing stays."""
    make_dataset(tmp_path / "ds", (1, 1, 1))
    wkwdask.to_wkw(np.ones((1, 64, 64, 64), np.uint8), tmp_path / "ds" / "color" / "1", file_len=1)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(cli, ["submit", "pyramid", str(tmp_path / "ds"), "--cluster", "slurm-array", "--logs", str(tmp_path / "logs")])
    assert "sbatch: no such command" in str(result.exception)
    assert not leftovers(tmp_path / "ds")
