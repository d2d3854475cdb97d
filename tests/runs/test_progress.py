"""Progress: lines that a batch log can hold, a bar on a terminal, and JSON lines that stay."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import sys
import time

import dask
import numpy as np
import pytest
from rich.console import Console

import wkwdask
from wkwdask import BoundingBox
from wkwdask.graphs.runners import run_job
from wkwdask.model.writing.receipts import Receipt
from wkwdask.runs.job import FlatJob, Result
from wkwdask.runs.journal import entry_of, receipts_of
from wkwdask.runs.progress import (
    FILE_VARIABLE,
    PROGRESS_VARIABLE,
    SECONDS_VARIABLE,
    LineFile,
    Progress,
    format_line,
    keep_progress,
    read_failures,
    read_progress,
)
from wkwdask.store.records import PROGRESS_NAME

LINE = re.compile(
    r"a title: \d+/\d+ tasks(, \d+\.\d [GM]B in)?(, \d+\.\d [GM]B out)?(, \d+ MB/s)?(, \d+ "
    r"failed)?, \d+ workers?(, (ETA|after) \d\d:\d\d:\d\d)?"
)
KEYS = {
    "time",
    "title",
    "done",
    "known",
    "total",
    "failed",
    "nbytes_in",
    "nbytes_out",
    "seconds",
    "workers",
    "first",
    "host",
    "pid",
}
RECEIPT = Receipt((0, 0, 0), BoundingBox((0, 0, 0), (1, 1, 1)), "x", 1 << 20)


class Terminal(io.StringIO):
    """Standard error."""

    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


class Slow:
    """A task that waits until a condition holds, and reads and writes some bytes."""

    def __init__(self, number, ready):
        self.name = self.key = f"slow {number}"
        self.number, self.ready = number, ready
        self.spec = self

    def run(self):
        until = time.monotonic() + 60
        while not self.ready():
            assert time.monotonic() < until, "nothing came"
            time.sleep(0.001)
        if self.number == 3:
            raise ValueError("broken")
        return Result(
            (
                (0, RECEIPT),
                (0, Receipt(RECEIPT.shard, RECEIPT.box, "part", 5 << 20, part=(0, 0, 0))),
            ),
            nbytes_in=2 << 20,
        )


def run_slow(ready=lambda: True, err=None, **options):
    job = FlatJob(lambda: (Slow(n, ready) for n in range(6)), 6, lambda *_: None)
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.raises(ValueError, match="broken"),
        contextlib.redirect_stderr(err or sys.stderr),
    ):
        run_job(job, "a title", **options)


@pytest.fixture
def err(monkeypatch):
    monkeypatch.delenv(PROGRESS_VARIABLE)
    monkeypatch.setenv(SECONDS_VARIABLE, "0.01")
    return Terminal(is_terminal=False)


def test_a_log_gets_whole_lines(err):
    run_slow(lambda: err.getvalue().count("\n") >= 3, err)
    text = err.getvalue()
    assert "\r" not in text
    assert "\x1b" not in text
    lines = text.splitlines()
    assert all(LINE.fullmatch(line) for line in lines), lines
    assert re.match(
        (
            r"a title: 5/6 tasks, 10\.5 MB in, 5\.2 MB out(, \d+ MB/s)?, 1 failed, 1 worker, after "
            r"00:00:\d\d"
        ),
        lines[-1],
    ), lines[-1]


def test_no_line_for_what_is_over_at_once(err, monkeypatch):
    monkeypatch.delenv(SECONDS_VARIABLE)
    run_slow(err=err)
    assert err.getvalue() == ""


def test_silence(err, monkeypatch, tmp_path):
    """The JSON lines are there all the same."""
    monkeypatch.setenv(PROGRESS_VARIABLE, "off")
    run_slow(err=err, folder=str(tmp_path))
    assert err.getvalue() == ""
    first, *_, last = [
        json.loads(line) for line in (tmp_path / "progress-0.jsonl").read_text().splitlines()
    ]
    assert set(first) == set(last) == KEYS
    assert (first["done"], first["total"]) == (0, 6)
    expected = {
        "title": "a title",
        "done": 5,
        "known": 0,
        "total": 6,
        "failed": 1,
        "nbytes_in": 10 << 20,
        "nbytes_out": 5 << 20,
        "workers": 1,
    }
    assert last | expected == last
    assert last["pid"] == os.getpid()
    assert read_progress(str(tmp_path)) == [last]


@pytest.mark.usefixtures("err")
def test_a_reader_that_has_gone():
    """Lines are no reason to end a job."""

    class Closed(Terminal):
        def write(self, text):
            raise BrokenPipeError

    with contextlib.redirect_stderr(Closed(is_terminal=False)), Progress("a title", 3) as progress:
        time.sleep(0.05)
        progress.advance()
    assert progress.record()["done"] == 1


def test_a_bar_on_a_terminal(err, monkeypatch):
    import rich.console

    monkeypatch.setattr("wkwdask.runs.progress._FIRST_BAR_SECONDS", 0.0)
    monkeypatch.setattr("wkwdask.runs.progress._BAR_SECONDS", 0.01)
    err.is_terminal = True
    monkeypatch.setattr(
        rich.console, "Console", lambda **_: Console(file=err, force_terminal=True, width=160)
    )
    run_slow(lambda: "a title" in err.getvalue(), err)
    text = err.getvalue()
    assert "5/6" in text
    assert "10.5 MB in" in text
    assert "1 failed, 1 worker" in text
    assert not any(LINE.fullmatch(line) for line in text.splitlines())


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ({}, "t: 0/10 tasks, 1 worker"),
        ({"done": 4, "seconds": 20.0}, "t: 4/10 tasks, 1 worker, ETA 00:00:30"),
        ({"done": 4, "known": 2, "seconds": 20.0}, "t: 6/10 tasks, 1 worker, ETA 00:00:20"),
        (
            {"done": 4, "failed": 1, "seconds": 50.0, "workers": 8},
            "t: 4/10 tasks, 1 failed, 8 workers, ETA 00:00:50",
        ),
        (
            {"done": 9, "failed": 1, "seconds": 3661.0},
            "t: 9/10 tasks, 1 failed, 1 worker, after 01:01:01",
        ),
        (
            {"done": 1, "nbytes_out": 3 << 30, "seconds": 10.0},
            "t: 1/10 tasks, 3.2 GB out, 322 MB/s, 1 worker, ETA 00:01:30",
        ),
        # the first tasks load and compile
        ({"done": 2, "seconds": 90.0, "workers": 2, "first": None}, "t: 2/10 tasks, 2 workers"),
        (
            {"done": 4, "seconds": 94.0, "workers": 2, "first": (2, 90.0)},
            "t: 4/10 tasks, 2 workers, ETA 00:00:12",
        ),
        # nobody knows how long a task takes
        ({"failed": 1, "seconds": 10.0}, "t: 0/10 tasks, 1 failed, 1 worker"),
    ],
)
def test_lines(record, line):
    nothing = {
        "title": "t",
        "done": 0,
        "known": 0,
        "total": 10,
        "failed": 0,
        "nbytes_in": 0,
        "nbytes_out": 0,
        "seconds": 0.0,
        "workers": 1,
    }
    assert format_line(nothing | record) == line


# ----------------------------------------------------------------------------- JSON lines


def test_processes_do_not_share_a_file(tmp_path):
    with Progress("first", 1, str(tmp_path)), Progress("second", 1, str(tmp_path)) as second:
        second.advance()
    assert sorted(os.listdir(tmp_path)) == ["progress-0.jsonl", "progress-1.jsonl"]
    assert [(record["title"], record["done"]) for record in read_progress(str(tmp_path))] == [
        ("first", 0),
        ("second", 1),
    ]


def test_a_file_that_was_asked_for(monkeypatch, tmp_path):
    path = tmp_path / "lines.jsonl"
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    run_slow()
    run_slow()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["done"] for record in records] == [0, 5, 0, 5]


def test_a_full_disk_is_no_reason_to_stop(tmp_path, monkeypatch):
    """And the next line that fits is one."""
    lines = LineFile(str(tmp_path), "progress-")
    lines.append({"n": 0})
    write = os.write
    left = [3, None, 0]

    def full(fd, data):
        room = left.pop()
        if room == 0:
            raise OSError(errno.ENOSPC, "full")
        return write(fd, data if room is None else data[:room])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        lines.append({"n": 1})
        lines.append({"n": 2})
        lines.append({"n": 3})
    lines.append({"n": 4})
    lines.close()
    path = tmp_path / "progress-0.jsonl"
    assert path.read_bytes() == b'{"n":0}\n{"n":2}\n{"n\n{"n":4}\n'
    assert read_progress(str(tmp_path)) == [{"n": 4}]
    path.write_bytes(b'{"n":0}\n{"n":')
    assert read_progress(str(tmp_path)) == [{"n": 0}]
    assert read_progress(str(tmp_path / "nowhere")) == []
    with Progress("a title", 1, str(tmp_path / "nowhere")):
        pass


def test_lines_stay_with_a_mag_but_not_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr("wkwdask.runs.progress._KEPT_LINES", 5)
    for n in (0, 1, 10):
        (tmp_path / f"progress-{n}.jsonl").write_text(
            "".join(f'{{"n":{n},"line":{line}}}\n' for line in range(3)) + '{"n":'
        )
    (tmp_path / "mag").mkdir()
    keep_progress(str(tmp_path), str(tmp_path / "mag"))
    kept = [
        json.loads(line) for line in (tmp_path / "mag" / PROGRESS_NAME).read_text().splitlines()
    ]
    assert [(record["n"], record["line"]) for record in kept] == [
        (1, 1),
        (1, 2),
        (10, 0),
        (10, 1),
        (10, 2),
    ]
    keep_progress(str(tmp_path), str(tmp_path / "nowhere"))


def test_failures_that_cannot_be_read(tmp_path):
    (tmp_path / "failures-0.jsonl").write_text('{"task": "a"}\n[1]\nnonsense\n')
    assert read_failures(str(tmp_path)) == []


def test_journals_of_before_are_read():
    """Without times."""
    entry = entry_of("a", Result(((0, RECEIPT),), seconds=1.23456, nbytes_in=7))
    assert (entry["seconds"], entry["nbytes_in"]) == (1.235, 7)
    assert entry["time"] > 1.7e9
    assert not {"seconds", "nbytes_in"} & set(entry_of("a", Result(())))

    class Files:
        def path_of(self, receipt):
            return "x"

    class Target:
        box = RECEIPT.box
        files = Files()

    old = {name: value for name, value in entry.items() if name in ("task", "sources", "receipts")}
    for value in (entry, old):
        assert list(receipts_of([json.dumps(value).encode() + b"\n"], [Target()])) == [(0, RECEIPT)]


def test_every_job_that_makes_a_mag_leaves_its_lines(tmp_path):
    voxels = np.arange(32**3, dtype=np.uint8).reshape(32, 32, 32)
    mag = tmp_path / "color" / "1"
    wkwdask.to_wkw(voxels, mag, block_len=8, file_len=2)
    wkwdask.rechunk(mag, tmp_path / "other" / "1", file_len=1)
    wkwdask.apply(np.copy, mag, tmp_path / "copy" / "1")
    for layer, nbytes_in in (("color", 32**3), ("other", 32**3), ("copy", 32**3)):
        records = [
            json.loads(line)
            for line in (tmp_path / layer / "1" / PROGRESS_NAME).read_text().splitlines()
        ]
        assert records[-1]["nbytes_in"] == nbytes_in, layer
        assert records[-1]["nbytes_out"] == sum(
            path.stat().st_size for path in (tmp_path / layer / "1").rglob("x*.wkw")
        ), layer
        assert wkwdask.verify(tmp_path / layer / "1").is_sound
    assert wkwdask.diff(mag, tmp_path / "other" / "1").equal
    wkwdask.to_wkw(voxels, mag, block_len=8, file_len=2, existing="overwrite")
