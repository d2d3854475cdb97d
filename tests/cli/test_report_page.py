"""``--report`` and the cards of reports and plans in notebooks."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.cli.report_page import write_page
from wkwdask.runs.report import Report

PICTURE = "<img alt='three slices' src='data:image/png;base64,"


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wkwdask.create_dataset("ds", (4, 4, 4))
    wkwdask.write("ds/color/1", (0, 0, 0), np.ones((8, 8, 8), np.uint8), block_len=8, file_len=1)
    with dask.config.set(scheduler="synchronous"):
        yield "ds"


def test_the_report_shows_result_speed_and_picture(dataset):
    for command in (
        ("pyramid", dataset, "--mags", "2,4"),
        ("convert", dataset, "n5://x.n5/em"),
        ("convert", dataset, "precomputed://p"),
    ):
        done = run_here(*command, "--report", "report.html")
        assert done.returncode == 0, done.stderr
        page = Path("report.html").read_text()
        assert f"<h1>wkwdask {' '.join(command)} --report report.html</h1>" in page
        for line in done.stdout.splitlines():
            assert line.split(":")[0].split(",")[0] in page
        assert page.count(PICTURE) == 1


def test_the_report_of_a_failed_command_shows_the_error(dataset):
    assert run_here("pyramid", dataset, "--mags", "2").returncode == 0
    done = run_here("pyramid", dataset, "--mags", "2", "--method", "min", "--report", "report.html")
    assert done.returncode == 1
    page = Path("report.html").read_text()
    assert done.stderr.removeprefix("error: ").strip() in page
    assert "<h2>Failed</h2>" in page
    assert PICTURE not in page
    assert run_here("pyramid", dataset, "--report", "missing/report.html").returncode == 2
    Path("folder").mkdir()
    done = run_here("pyramid", dataset, "--report", "folder")
    assert done.returncode == 2
    assert "--report folder: is a folder; name a file" in done.stderr


def test_the_report_links_the_performance_report(tmp_path):
    write_page(
        str(tmp_path / "a.html"),
        result="<done>",
        performance_report=str(tmp_path / "sub" / "dask.html"),
    )
    page = (tmp_path / "a.html").read_text()
    assert "<a href='sub/dask.html'>" in page
    assert "&lt;done&gt;" in page


def test_reports_and_plans_are_tables_in_notebooks(dataset):
    plan = wkwdask.plan_pyramid(dataset, mags=["2"])
    report = wkwdask.build_pyramid(dataset, mags=["2"])
    conversion = wkwdask.plan_convert(dataset, "n5://y.n5/em")
    for shown, first in ((plan, "ds/color/2"), (report, "ds/color/2"), (conversion, "y.n5/em/s0")):
        text = shown._repr_html_()
        assert text.count("<table>") == (1 if shown is report else 2)
        assert text.count(PICTURE) == 1
        assert f"{first}</td>" in text
    for name in ("reads", "writes", "memory", "time"):
        assert f"<tr><td>{name}</td>" in plan._repr_html_()
    Path("ds/color/2/z0/y0/x0.wkw").write_bytes(b"damaged")
    Path("ds/color/2/header.wkw").unlink()
    assert PICTURE not in report._repr_html_()  # and no error
    assert "&lt;note&gt;" in Report((), 0, 0.0, "<note>")._repr_html_()
