"""Plans of rows, results that are saved one by one, and the tables of the documentation."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from typing import TYPE_CHECKING

import pytest

from . import command, pages
from .measure import Outcome, Sample
from .plan import PLANS, Plan, planned_rows
from .race import Race
from .results import Results, result_of
from .table import VOXELS_DIFFER, Row

if TYPE_CHECKING:
    from pathlib import Path

_PLAN = Plan(64, 2, 1)


def _outcome(label: str, cpu: float, version: str = "1.2", **sample: int) -> Outcome:
    samples = [Sample(cpu, 2 * cpu, **sample), Sample(cpu, 2 * cpu, **sample)]
    return Outcome(label, 8_000_000, samples, ["hash"], version=version)


def _lines(page: str) -> list[list[str]]:
    """Split the lines of a table below its head into cells."""
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line[:2] == "| "][2:]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Results of three rows as another process reads them from a file."""
    results = Results(tmp_path / "results.jsonl")
    ours = _outcome("wkwdask, level auto", 1.0, written=2_000_000)
    webknossos, coarsen = (
        _outcome("webknossos, level 9", 4.0, written=3_000_000),
        _outcome("dask, coarsen", 8.0),
    )
    pyramid = [Row("pyramid", ours, coarsen), Row("pyramid", ours, webknossos)]
    results.add(result_of("pyramid/em/lz4hc/1", _PLAN, 1.0, pyramid))
    differs = Row("pyramid", ours, webknossos, voxels=VOXELS_DIFFER)
    results.add(result_of("pyramid/seg/lz4hc/1", _PLAN, 1.0, [differs]))
    sides = (_outcome(tool, 0.5, requests=3, received=10**6) for tool in ("wkwdask", "tensorstore"))
    results.add(result_of("remote/zarr/box", _PLAN, 1.0, [Row("box", *sides)]))
    return Results(tmp_path / "results.jsonl")


def test_rows_of_the_tables_exist(tmp_path):
    cases = {row.case.name: row.case for row in planned_rows(tmp_path, 64, None)}
    assert pages.documented_rows() <= cases.keys()
    tables = [table for table in pages.TABLES.values() if hasattr(table, "lines")]
    for line in [line for table in tables for line in table.lines]:
        for case in (cases[name] for name in line.rows()):
            assert isinstance(case, Race)
            labels = [unit.label for unit in case.units]
            assert any(fnmatch.fnmatchcase(label, line.tool) for label in labels), line
            assert any(map(line.is_peer, labels)), line


def test_marks_of_the_pages_name_tables():
    names = [name for page in pages.PAGES for name in pages.names_of(page.read_text())]
    assert sorted(names) == sorted(pages.TABLES)
    assert sum(page.read_text().count("<!-- table: ") for page in pages.PAGES) == len(names)


def test_documented_rows_take_less_than_45_minutes(tmp_path):
    rows = planned_rows(tmp_path, None, None)
    documented = [row for row in rows if row.case.name in pages.documented_rows()]
    assert sum(row.plan.seconds for row in documented) < 45 * 60
    names = [row.case.name for row in rows]
    assert all(any(fnmatch.fnmatchcase(name, pattern) for name in names) for pattern in PLANS)


def test_tables_show_the_fastest_peer(results):
    line = pages.Line("pyramid", "pyramid/{}/lz4hc/1", "wkwdask, level auto")
    (cells,) = _lines(pages.Speeds((line,)).format(results))
    assert cells == [
        "pyramid",
        "8.0 / 8.0",
        "`webknossos`, level 9 2.0 / 2.0",
        "4.00 / 4.00, voxels differ",
        "2 / 2",
        "3 / 3",
    ]
    one = dataclasses.replace(line, peers="dask*")
    assert _lines(pages.Speeds((one,)).format(results))[0][2:4] == [
        "`dask`, coarsen 1.0 / -",
        "8.00 / -",
    ]
    (cells,) = _lines(pages.Traffic((pages.Line("box", "remote/zarr/box"),)).format(results))
    assert cells[1:] == ["3, 1, 1.00, 0.50", "`tensorstore` 3, 1, 1.00, 0.50", "1.00"]
    assert "webknossos 1.2" in pages.Conditions().format(results)


def test_only_marked_tables_are_replaced(results):
    page = "prose\n<!-- table: {} -->\nold\n<!-- end -->\nmore\n"
    rendered = pages.render(page.format("servers") + page.format("start"), results)
    assert "old" not in rendered
    assert rendered.count("prose\n<!-- table: ") == rendered.count("<!-- end -->\nmore\n") == 2
    assert pages.render(rendered, results) == rendered


def test_rows_are_saved_at_once_and_measured_once(tmp_path, monkeypatch):
    measured = []

    def run(case: Race, repeat: int, work: Path) -> tuple[list[Row], float]:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(case.name)
        problem = "FAILED: so" if len(measured) == 1 else ""
        return [Row("work", dataclasses.replace(_outcome("wkwdask", 1.0), problem=problem))], 1.0

    monkeypatch.setattr(command, "run_case", run)
    monkeypatch.setattr(command, "real_volumes", lambda size: {})
    file = tmp_path / "results.jsonl"
    arguments = ["--size", "64", "--repeat", "1", "--rows", "read/em", "--results", str(file)]
    with pytest.raises(KeyboardInterrupt):
        command.main(arguments)
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record["row"] for record in records] == measured == ["read/em/whole", "read/em/open"]
    assert records[0]["comparisons"][0]["tool"]["mb_per_cpu_second"] == 8.0
    measured.clear()
    with pytest.raises(KeyboardInterrupt):
        command.main(arguments)
    assert measured == ["read/em/whole", "read/em/box32"]  # the first of them had failed
