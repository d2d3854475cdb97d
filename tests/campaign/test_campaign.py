"""The campaign itself: its arithmetic, and that it finds nothing in one cell and something in the
same cell without a check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import results
from .power import Crashes
from .synced import stated_steps, violations
from .system_calls import SOURCE, Call, compile_library
from .trees import mixtures, tree_of

TOP = "/top"


def _call(name, path, new_path="", inode=0, offset=0, data=b""):
    prefix = f"{TOP}/"
    return Call(name, prefix + path, new_path and prefix + new_path, inode, offset, data)


def _after(crashes, crash, folder):
    crashes.lay_out(crash.kept, folder)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


RENAMED = (
    _call("open", ".new", inode=7, offset=os.O_CREAT | os.O_WRONLY),
    _call("write", ".new", inode=7, data=b"new"),
    _call("fsync", ".new", inode=7),
    _call("rename", ".new", "file", inode=7),
    _call("fsync", ""),
)


@pytest.mark.parametrize(
    ("left_out", "found"),
    [
        ((), {b"old", b"new"}),
        # the name may be there before its contents
        ((2,), {b"old", b"new", b""}),
    ],
)
def test_contents_that_are_not_synced_may_be_missing(tmp_path, left_out, found):
    before = tmp_path / "before"
    before.mkdir()
    (before / "file").write_bytes(b"old")
    calls = [call for number, call in enumerate(RENAMED) if number not in left_out]
    crashes = Crashes(before, TOP, {5: "file"}, calls)
    states = [*crashes.prefixes(), *map(crashes.reordered, range(50))]
    seen = {_after(crashes, crash, tmp_path / "after")["file"] for crash in states}
    assert seen == found
    ends = [crash for crash in crashes.prefixes() if crash.is_after_end]
    assert all(_after(crashes, crash, tmp_path / "after")["file"] in found for crash in ends)


def test_a_name_that_is_not_synced_may_be_missing(tmp_path):
    before = tmp_path / "before"
    before.mkdir()
    crashes = Crashes(before, TOP, {}, [_call("mkdir", "a"), *RENAMED[:4]])
    ends = [crash for crash in crashes.prefixes() if crash.is_after_end]
    found = [_after(crashes, crash, tmp_path / "after") for crash in ends]
    assert found == [{}, {"file": b"new"}]
    crashes = Crashes(before, TOP, {}, RENAMED)
    assert {len(list(crash.kept)) for crash in crashes.prefixes() if crash.is_after_end} == {3}


def _lay_out(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return tree_of(folder)


@pytest.mark.parametrize(
    ("found", "by_file", "count"),
    [
        ({"1/a": b"old", "1/b": b"old"}, False, 0),
        ({"1/a": b"new", "1/b": b"new"}, False, 0),
        ({"1/a": b"new", "1/b": b"old"}, False, 1),
        ({"1/a": b"new", "1/b": b"old"}, True, 0),
        ({"1/a": b"ne", "1/b": b"old"}, True, 1),
        ({"1/a": b"new"}, False, 1),
        ({"1/a": b"new"}, True, 1),
    ],
)
def test_mixtures_are_found(tmp_path, found, by_file, count):
    header = {"1/header.wkw": b"WKW"}
    old, new, seen = (
        _lay_out(tmp_path / name, header | files)
        for name, files in {
            "old": {"1/a": b"old", "1/b": b"old"},
            "new": {"1/a": b"new", "1/b": b"new"},
            "found": found,
        }.items()
    )
    assert len(mixtures(seen, old, new, frozenset(), by_file=by_file)) == count


@pytest.mark.parametrize(
    ("found", "count"), [([], 0), (["1"], 0), (["1", "2"], 0), (["1", "2", "3"], 1)]
)
def test_documents_list_old_and_new_levels(tmp_path, found, count):
    old, new, seen = (
        _lay_out(tmp_path / name, {"a.json": json.dumps({"mags": mags}).encode()})
        for name, mags in {"old": [], "new": ["1", "2"], "found": found}.items()
    )
    assert len(mixtures(seen, old, new, frozenset(), by_file=False)) == count


IN_JOB = "ds/.wkwdask-job-1"
PUBLISHED = (
    _call("write", f"{IN_JOB}/1.parts/.x0.tmp", inode=7, data=b"voxels"),
    _call("fsync", f"{IN_JOB}/1.parts/.x0.tmp", inode=7),
    _call("rename", f"{IN_JOB}/1.parts/.x0.tmp", f"{IN_JOB}/1/z0/x0.wkw", inode=7),
    _call("fsync", f"{IN_JOB}/1/z0"),
    _call("rename", f"{IN_JOB}/1", "ds/1", inode=6),
    _call("fsync", "ds"),
    _call("write", "ds/.info.tmp", inode=8, data=b"{}"),
    _call("fsync", "ds/.info.tmp", inode=8),
    _call("rename", "ds/.info.tmp", "ds/info", inode=8),
    _call("fsync", "ds"),
    _call("unlink", "ds/.info.wkwdask-lock"),
)


def test_the_documentation_states_what_is_synced():
    assert list(violations(PUBLISHED, stated_steps())) == []


@pytest.mark.parametrize(
    ("left_out", "found"),
    [
        (1, "a file of a level has a name before its contents are synced"),
        (3, "a file of a level is not synced before the level is in its place"),
        (5, "a level is not synced before a document lists it"),
        (7, "a document has a name before its contents are synced"),
        (9, "a document is not synced before its lock is released"),
    ],
)
def test_what_is_not_synced_is_found(left_out, found):
    calls = [call for number, call in enumerate(PUBLISHED) if number != left_out]
    (problem,) = violations(calls, stated_steps())
    assert problem.startswith(found)


def test_a_part_is_documented_without_the_others(tmp_path, monkeypatch):
    page = tmp_path / "safety.md"
    tables = (f"<!-- {part} -->\nof {part}\n<!-- end -->\n" for part in ("calls", "power"))
    page.write_text("text\n".join(["", *tables, ""]))
    monkeypatch.setattr(results, "_DOCUMENTATION", page)
    monkeypatch.setattr(results, "_git", lambda *_: "")
    trials = [
        results.Trial(f"{n}", "EIO", "save", was_hit=n > 0, outcome=outcome)
        for n, outcome in enumerate(("succeeded", "failed", "succeeded"))
    ]
    results.document([results.Part("calls", {0: trials}, 90.0)], "command")
    calls, power = page.read_text().split("<!-- power -->")
    assert "3 points in 1.5 CPU minutes (`command --parts calls`, " in calls
    assert calls.endswith("| EIO | 3 | 2 | 1 | 0 | 0 |\n\n<!-- end -->\ntext\n")
    assert "of calls" not in calls
    assert power == "\nof power\n<!-- end -->\ntext\n"


@pytest.mark.long
@pytest.mark.faults
def test_a_cell_is_sound_and_its_points_replay(tmp_path):
    if compile_library(tmp_path) is None:
        pytest.skip("needs Linux and cc")
    command = [sys.executable, Path(SOURCE).with_name("run.py"), "--cell", "write_region-wkw"]
    for options in (
        ("--points", "8", "--parts", "calls", "power"),
        ("--point", "0:9:killed after", "--parts", "calls"),
    ):
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "1 points" in done.stdout
