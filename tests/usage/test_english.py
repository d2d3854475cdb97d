"""Help texts, reports and errors are in plain words, and numbers agree with their nouns."""

from __future__ import annotations

import re

import click
import numpy as np
import pytest
from support.commands import COMMAND, run_here

import wkwdask

ODD = re.compile(
    r"\b(that is there|are there already|is there already|anew|go(es)? on|as it is|in (its|their) "
    r"own place|in place of|what of|wherein|hence"
    r"|of (its|their) own|gives? one|stays? as|mend|left-overs?)\b|\b1 "
    r"(files|tasks|actions|errors|warnings|workers)\b",
    re.IGNORECASE,
)


def all_commands(command, name="wkwdask"):
    yield name, command
    for below, other in getattr(command, "commands", {}).items():
        yield from all_commands(other, f"{name} {below}")


def test_help_is_in_plain_words():
    found = []
    for name, command in all_commands(COMMAND):
        texts = [
            command.help or "",
            command.short_help or "",
            *(
                getattr(one, "help", None) or ""
                for one in command.params
                if isinstance(one, click.Option)
            ),
        ]
        found += [
            f"{name}: {' '.join(text.split())}"
            for text in texts
            if ODD.search(" ".join(text.split()))
        ]
    assert found == []


@pytest.fixture
def dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 35))
    wkwdask.to_wkw(
        np.arange(1, 4097, dtype=np.uint16).reshape(16, 16, 16),
        tmp_path / "ds" / "color" / "1",
        block_len=8,
        file_len=1,
        category="color",
    )
    return tmp_path / "ds"


def test_one_action(dataset):
    (dataset / "color" / "1" / "z0" / "y0" / "x0.wkw").write_bytes(b"WKW")
    repaired = run_here("repair", dataset, "--quarantine").stdout
    assert repaired.splitlines()[-1] == "1 action; no errors or warnings remain"
    assert (
        run_here("repair", dataset / "color", "--dry-run").stdout.splitlines()[-1]
        == "nothing was changed (dry run); no errors or warnings remain"
    )


def test_values_that_do_not_fit(tmp_path):
    np.save(tmp_path / "a.npy", np.full((8, 8, 8), 2096, np.uint16))
    done = run_here(
        "convert",
        tmp_path / "a.npy",
        tmp_path / "out",
        "--voxel-size",
        "4,4,35",
        "--dtype",
        "uint8",
    )
    assert "2096 does not fit into uint8; scale the values with --range (while" in done.stderr
    assert "--range" in done.stderr


def test_broken_json(dataset):
    (dataset / "datasource-properties.json").write_text('{"id": 1 "x": 2}')
    assert (
        "datasource-properties.json: byte 9: not valid JSON: Expecting ',' delimiter"
        in run_here("info", dataset).stderr
    )


def fails_in_a_corner(em):
    if em[0, 0, 0] == 1:
        raise ValueError("this corner")
    return em


def test_one_task_that_fails(dataset):
    with pytest.raises(wkwdask.TaskFailedError) as caught:
        wkwdask.apply(
            fails_in_a_corner, dataset / "color" / "1", dataset / "same" / "1", chunks=8, retries=0
        )
    message = f"{caught.value} {' '.join(getattr(caught.value, '__notes__', ()))}"
    assert re.search(
        r"\b1 task failed( for this reason)?; all tasks that do not depend on them are done",
        message,
    )


def test_an_existing_mag(dataset):
    done = run_here("apply", "numpy:negative", dataset / "color" / "1", dataset / "copy" / "1")
    again = run_here(
        "apply", "numpy:positive", dataset / "color" / "1", dataset / "copy" / "1"
    ).stderr
    assert done.returncode == 0, done.stderr
    assert "already exists; --overwrite replaces it whole" in again
    assert not ODD.search(again)
