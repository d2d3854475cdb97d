"""Threads that share the regions of a pyramid write the same files as one thread."""

from __future__ import annotations

import os
import re
from pathlib import Path

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.inside import limited
from support.strategies import vectors
from verbs.forms import IMAGES

import wkwdask
from wkwdask.runs import shared_loop

_JOB = re.compile(rb"\.\d{8}T\d{6}-[0-9a-f]{8}")
"""What the name of a level contains where the level was replaced as a whole."""


def files_of(folder):
    """Return the content of all files but the records; names of levels are without their job."""
    return {
        _JOB.sub(b"", os.fsencode(path.relative_to(folder))): _JOB.sub(b"", path.read_bytes())
        for path in Path(folder).rglob("*")
        if path.is_file() and not path.name.startswith(".wkwdask")
    }


def build(form, folder, array, offset, options, **scheduler):
    """Save an array, build its pyramid, and return all files and the report."""
    url = form.url(folder, "image")
    with dask.config.set(scheduler="synchronous"):
        form.save(array, url, offset, **({"compression": "lz4"} if form.name == "wkw" else {}))
    with dask.config.set(**scheduler):
        report = wkwdask.build_pyramid(url, **options)
    return files_of(folder), [
        (mag.minimum, mag.maximum, mag.nonzero, mag.nbytes) for mag in report.mags
    ]


@pytest.mark.one_in(3)
@pytest.mark.long
@pytest.mark.parametrize("form", [form for form in IMAGES if form.name != "toy"], ids=str)
@settings(max_examples=10)
@given(
    vectors(1, 60),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from(["mean", "mode", "max"]),
    st.integers(2, 5),
)
def test_any_number_of_threads_writes_the_same_files(
    tmp_path_factory, form, size, seed, share_of_data, method, threads
):
    pytest.importorskip(form.needs or "wkwdask")
    generator = np.random.default_rng(seed)
    array = generator.integers(0, 9, (1, *size), dtype=np.uint16)
    for corner in np.ndindex(*(-(-n // 16) for n in size)):
        if generator.random() >= share_of_data:
            array[(0, *(slice(16 * n, 16 * n + 16) for n in corner))] = 0
    array[:, 0, 0, 0] = 1
    offset = tuple(generator.integers(0, 20, 3).tolist())
    options = {"mags": [2, 4, "8-8-4"], "method": method}
    one, many = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("many")
    with limited(
        brick_source_nbytes=1 << 14,
        tile_nbytes=1 << 12,
        region_vx=128 if seed % 2 else 16,
        smallest_region_vx=8,
    ):
        expected = build(form, one, array, offset, options, scheduler="synchronous")
        assert (
            build(form, many, array, offset, options, scheduler="threads", num_workers=threads)
            == expected
        )


def test_all_threads_work_on_the_only_region(tmp_path, monkeypatch):
    array = np.random.default_rng(1).integers(1, 250, (64, 64, 64), dtype=np.uint8)
    wkwdask.create_dataset(tmp_path, (4, 4, 4))
    wkwdask.write(
        tmp_path / "color" / "1", (0, 0, 0), array, block_len=8, file_len=8, compression="lz4"
    )
    helped, enter = [], shared_loop._SharedLoop.help
    monkeypatch.setattr(
        shared_loop._SharedLoop, "help", lambda loop: (helped.append(loop), enter(loop))
    )
    with limited(brick_source_nbytes=1 << 12), dask.config.set(scheduler="threads", num_workers=3):
        plan = wkwdask.plan_pyramid(tmp_path, "color", mags=[2, 4])
        wkwdask.build_pyramid(tmp_path, "color", mags=[2, 4])
    assert [(part.regions, part.joins) for part in plan.passes] == [(1, 0)]
    assert len(helped) > len(set(helped))
