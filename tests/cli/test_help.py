"""Help: sections, one line for each command, examples at the end, names of commands and layers that
were meant."""

from __future__ import annotations

import click
import numpy as np
import pytest
from support.commands import COMMAND, run_here

import wkwdask


def _paths(group=COMMAND, before=()):
    """List the words of each command that is shown."""
    for name, command in group.commands.items():
        if not command.hidden:
            yield (*before, name)
            if isinstance(command, click.Group):
                yield from _paths(command, (*before, name))


def test_sections_list_each_command_once_in_one_line():
    lines = run_here("--help").stdout.splitlines()
    start = lines.index("Look:")
    rows = [line for line in lines[start : lines.index("  Examples:")] if line.startswith("  ")]
    assert [row.split()[0] for row in rows] == [
        command.name
        for section in COMMAND.sections.values()
        for command in section
        if not command.hidden
    ]
    assert len(rows) == len(
        [command for command in COMMAND.commands.values() if not command.hidden]
    )
    assert all(row[2] != " " and len(row) <= 80 for row in rows), "a line is continued"


@pytest.mark.parametrize("words", list(_paths()), ids=" ".join)
def test_the_help_of_a_command_ends_with_examples(words):
    text = run_here(*words, "--help").stdout
    _, _, examples = text.partition("  Example")
    assert "wkwdask " in examples
    assert "Options:" not in examples
    if not isinstance(COMMAND.commands[words[0]], click.Group) or len(words) > 1:
        assert f"wkwdask {' '.join(words)} " in f"{examples} ".replace("\n", " ")


def test_help_uses_the_width_of_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert (
        50
        < max(
            map(len, run_here("verify", "--help").stdout.partition("  Examples:")[0].splitlines())
        )
        <= 60
    )
    monkeypatch.setenv("COLUMNS", "110")
    assert 80 < max(map(len, run_here("verify", "--help").stdout.splitlines())) <= 110


def test_mistyped_names_are_answered_with_those_that_exist(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    for layer in ("color", "cells"):
        wkwdask.write(
            tmp_path / "ds" / layer / "1",
            (0, 0, 0),
            np.ones((8, 8, 8), np.uint8),
            block_len=8,
            file_len=1,
        )
    for words, code, answer in (
        (("pyramd",), 2, "Did you mean pyramid?"),
        (("downsampel",), 2, "Did you mean downsample?"),
        (("nonsense",), 2, "wkwdask --help lists all"),
        (("dataset", "rename"), 2, "Did you mean rename-layer?"),
        (("verify", "x", "--layr", "color"), 2, "--layer"),
        (
            ("pyramid", tmp_path / "ds", "--layer", "colr"),
            1,
            "no layer 'colr'; there are color, cells; did you mean color?",
        ),
    ):
        done = run_here(*words)
        assert (done.returncode, answer in done.stderr) == (code, True), done.stderr


def test_downsample_is_pyramid():
    assert run_here("downsample", "--help").stdout == run_here("pyramid", "--help").stdout.replace(
        "Usage: wkwdask pyramid", "Usage: wkwdask downsample"
    )
