"""Tables, reports and manifests that are written to a bucket, each by one put."""

from __future__ import annotations

import contextlib

import numpy as np
import pandas as pd
import pytest
from support.bucket_faults import URL, faulty_bucket
from support.commands import run_here

import wkwdask
from wkwdask.store.objects import memory_bucket
from wkwdask.store.store import store_at

LABELS = f"precomputed://{URL}/labels"
VOXELS = np.random.default_rng(1).integers(0, 5, (1, 20, 20, 20), np.uint32)


@pytest.fixture
def bucket():
    with faulty_bucket() as bucket:
        wkwdask.save(VOXELS, LABELS, voxel_size=(4, 4, 8), category="segmentation")
        bucket.requests = []
        yield bucket


def read(name):
    return store_at(URL).read_whole([name], 1 << 24)[0]


def puts(bucket, name):
    return [url for call, url in bucket.requests if (call, url) == ("put_once", f"{URL}/{name}")]


@pytest.mark.parametrize(
    "suffix", ["csv", pytest.param("parquet", marks=pytest.mark.needs("pyarrow"))]
)
def test_a_table_replaces_another(bucket, tmp_path, suffix):
    name = f"tables/voxels.{suffix}"
    store_at(URL).put(name, b"of an earlier call")
    bucket.requests = []
    frame = wkwdask.label_statistics(LABELS, output=f"{URL}/{name}")
    assert len(puts(bucket, name)) == 1
    (tmp_path / f"copy.{suffix}").write_bytes(read(name))
    loaded = getattr(pd, f"read_{suffix}")(tmp_path / f"copy.{suffix}")
    assert loaded["voxels"].tolist() == frame["voxels"].tolist()
    assert not any("clock" in url for url in memory_bucket._objects)


def test_a_histogram_by_the_command(bucket):
    run_here("histogram", LABELS, "-o", f"{URL}/histogram.csv")
    lines = read("histogram.csv").decode().split()
    assert sum(int(line.split(",")[-1]) for line in lines[1:]) == VOXELS.size


def test_no_permission_shows_before_the_work(bucket, monkeypatch):
    def refuse(url, *_):
        raise PermissionError(13, "refused", url)

    monkeypatch.setattr(memory_bucket, "put_once", refuse)
    with pytest.raises(PermissionError, match="refused"):
        wkwdask.label_statistics(LABELS, output=f"{URL}/voxels.csv")
    assert not any("/labels/" in str(url) for _, url in bucket.requests)


def test_a_report_page(bucket):
    target = f"{URL}/reports/pyramid.html"
    done = run_here("pyramid", LABELS, "--report", target)
    assert done.returncode == 0, done.output
    page = read("reports/pyramid.html").decode()
    assert page.startswith("<!doctype html>")
    assert "wkwdask pyramid" in page


def test_a_manifest_names_each_object(bucket):
    report = wkwdask.write_manifest(f"{URL}/labels")
    names = {
        url.removeprefix(f"{URL}/labels/")
        for url in memory_bucket._objects
        if url.startswith(f"{URL}/labels/")
    }
    lines = read("labels/wkwdask-manifest.txt").decode().splitlines()
    assert {line.split("  ", 1)[1] for line in lines[1:]} == names - {"wkwdask-manifest.txt"}
    assert report.files == len(names) - 1
    assert wkwdask.check_manifest(f"{URL}/labels").is_equal
    store_at(URL).put("labels/info", read("labels/info") + b" ")
    assert wkwdask.check_manifest(f"{URL}/labels").changed == ("info",)


def test_killed_at_any_request(bucket):
    """Half a table is never seen."""
    start = bucket.snapshot()
    url, name = f"{URL}/voxels.csv", "voxels.csv"
    wkwdask.label_statistics(LABELS, output=url)
    number, whole = len(bucket.requests), read(name)
    for after in (False, True):
        for n in range(number):
            bucket.restore(start)
            with bucket.killed_at(n, after=after), contextlib.suppress(OSError):
                wkwdask.label_statistics(LABELS, output=url)
            assert read(name) in (None, whole)
