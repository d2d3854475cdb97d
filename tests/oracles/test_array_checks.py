"""Zarr and N5 images that zarr-python 3, tensorstore 0.1 and wkwdask wrote: sound ones verify as
sound, and damage is named and repaired."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import dask
import numpy as np
import pytest

pytest.importorskip("tensorstore", reason="the oracle tensorstore is not installed")
pytest.importorskip("zarr", reason="the oracle zarr-python is not installed")

import zarr
from faults.drivers import KILLS, killed_at
from support.commands import run_here
from support.damage_matrix import hashes, matches
from support.damaged_arrays import CASES, COARSE, TARGET, add, beside, coarse, cut, fine, garbage
from support.foreign_arrays import CHUNK, LEVELS, WRITERS, read, url
from support.inside import KINDS_OF_FAULTS

import wkwdask


def writers_of(number, case):
    """Return some of the writers whose images can have a damage, others for each case; in the
    nightly profile all."""
    fitting = [writer for writer in WRITERS if case.fits(writer)]
    return (fitting[number % len(fitting) :] + fitting[: number % len(fitting)])[:WRITERS_PER_CASE]


WRITERS_PER_CASE = len(WRITERS) if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 2
ROWS = [(case, writer) for number, case in enumerate(CASES) for writer in writers_of(number, case)]


@pytest.fixture(autouse=True)
def _in_this_thread(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # no machine goes down here
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    with dask.config.set(scheduler="synchronous"):
        root = tmp_path_factory.mktemp("images")
        for writer in WRITERS:
            writer.write(str(root / writer.name))
    return root


def test_the_cases_cover_the_kinds():
    # of precomputed volumes
    elsewhere = {"shard.index", "shard.half", "shard.twice", "chunk.twice"}
    kinds_of_arrays = {
        kind
        for kind in KINDS_OF_FAULTS
        if kind.startswith(("level.", "image.", "document.", "chunk.", "shard."))
    }
    assert kinds_of_arrays - elsewhere == {
        kind for case in CASES for kind in kinds_of_arrays - elsewhere if kind in case.says
    }


def kinds(faults):
    return sorted({fault.kind for fault in faults if fault.severity != "note"})


@pytest.mark.parametrize("writer", WRITERS, ids=[writer.name for writer in WRITERS])
def test_sound_images_have_no_faults(images, writer):
    report = wkwdask.verify(url(writer, images / writer.name), pyramid=True, method="mean")
    assert report.faults == ()
    assert report.is_sound
    assert sum(mag.compared for mag in report.mags) == 1
    assert wkwdask.repair(url(writer, images / writer.name), dry_run=True).actions == ()


@pytest.mark.filterwarnings("ignore:.*not applied:wkwdask.errors.TransformationWarning")
@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("case", "writer"), ROWS, ids=[f"{case.name}: {writer.name}" for case, writer in ROWS]
)
def test_damage_is_named_and_repaired(images, tmp_path, case, writer):
    """A dry run changes nothing, and a repair changes no sound file."""
    folder = Path(shutil.copytree(images / writer.name, tmp_path / "image"))
    case.damage(folder, writer)
    damaged = hashes(folder)
    report = wkwdask.verify(url(writer, folder))
    check_report(folder, case, writer, report)
    planned = wkwdask.repair(url(writer, folder), dry_run=True, **case.options)
    assert hashes(folder) == damaged
    done = wkwdask.repair(url(writer, folder), **case.options)
    assert (
        [action.verb for action in done.actions]
        == [action.verb for action in planned.actions]
        == list(case.does)
    )
    check_remaining(kinds([left.fault for left in done.remaining]), case.stays)
    check_remaining(kinds(wkwdask.verify(url(writer, folder)).faults), case.stays)
    check_files(images / writer.name, folder, report, damaged)
    if case.lost is not None:
        expected = LEVELS[0].copy()
        for cell in case.lost:
            expected[
                tuple(slice(n * edge, n * edge + edge) for n, edge in zip(cell, CHUNK, strict=True))
            ] = 0
        np.testing.assert_array_equal(read(writer, folder, 0), expected)
        np.testing.assert_array_equal(read(writer, folder, 1), LEVELS[1])


def check_report(folder, case, writer, report):
    found = {
        (fault.kind, os.path.relpath(fault.path, folder))
        for fault in report.faults
        if fault.severity != "note"
    }
    for pattern, places in case.says.items():
        here = {path for kind, path in found if matches(kind, pattern)}
        assert here, f"{pattern} was not found: {found}"
        if places is not None:
            assert here == {
                place(writer) for place in (places if isinstance(places, tuple) else (places,))
            }
    assert [
        kind for kind, _ in found if not any(matches(kind, pattern) for pattern in case.says)
    ] == []
    assert all(fault.meaning and fault.found for fault in report.faults)
    assert report.is_sound == (not any(fault.severity == "error" for fault in report.faults))


def check_remaining(found, stays):
    assert all(any(matches(kind, pattern) for pattern in stays) for kind in found), found
    assert all(any(matches(kind, pattern) for kind in found) for pattern in stays), found


def check_files(sound, folder, report, damaged):
    """Files without a fault stay unchanged, and new ones are in the quarantine."""
    before, after = hashes(sound), hashes(folder)
    named = {os.path.relpath(fault.path, folder) for fault in report.faults}
    for name, digest in before.items():
        if damaged.get(name) == digest and name not in named and not name.endswith(".npy"):
            assert after.get(name) == digest, name
    assert all(
        ".wkwdask-quarantine" in name
        for name in after
        if name not in damaged and name not in before
    )


@pytest.mark.parametrize("writer", [WRITERS[2], WRITERS[6]], ids=[WRITERS[2].name, WRITERS[6].name])
def test_a_killed_repair_is_completed_by_the_next(images, tmp_path, writer):
    """At every step, sound files stay unchanged and nothing is lost."""
    damaged = Path(shutil.copytree(images / writer.name, tmp_path / "damaged"))
    for damage in (garbage(0, TARGET), cut(coarse, 0), add(beside(".__lock"))):
        damage(damaged, writer)
    before = hashes(damaged)
    broken = before[fine(writer)]
    good = {
        name: digest
        for name, digest in hashes(images / writer.name).items()
        if before.get(name) == digest
    }
    options = {"salvage": True, "method": "mean"}

    def work(folder):
        with dask.config.set(scheduler="synchronous"):
            wkwdask.repair(url(writer, folder), **options)

    whole = Path(shutil.copytree(damaged, tmp_path / "whole"))
    changes, _ = killed_at(0, work, whole)
    expected = [read(writer, whole, level) for level in (0, 1)]
    for step in sorted({*range(1, changes + 1, max(1, changes // (KILLS or 8))), changes}):
        folder = Path(shutil.copytree(damaged, tmp_path / f"step {step}"))
        killed_at(step, work, folder)
        found = hashes(folder)
        assert {name: found.get(name) for name in good} == good, step
        assert broken in found.values(), step
        assert wkwdask.repair(url(writer, folder), **options).is_sound, step
        assert kinds(wkwdask.verify(url(writer, folder)).faults) == [], step
        for level, array in enumerate(expected):
            np.testing.assert_array_equal(read(writer, folder, level), array)
        assert broken in hashes(folder).values(), step


def test_sound_chunks_beside_a_rebuilt_one_stay(images, tmp_path):
    """A level that something else wrote is not computed again as a whole, and not at all by a
    method that contradicts its chunks."""
    writer = WRITERS[1]
    folder = Path(shutil.copytree(images / writer.name, tmp_path / "image"))
    other = zarr.open_array(folder / writer.paths[1])
    other[:8] = 99  # no mean
    garbage(1, COARSE)(folder, writer)
    before = hashes(folder)
    report = wkwdask.repair(url(writer, folder), method="mean")
    assert report.actions == ()
    assert "its sound blocks differ from the mean of the finer mag" in str(report)
    assert hashes(folder) == before


def test_exit_codes_and_json(images, tmp_path):
    writer = WRITERS[2]
    folder = Path(shutil.copytree(images / writer.name, tmp_path / "image"))
    assert run_here("verify", url(writer, folder)).returncode == 0
    garbage(0, TARGET)(folder, writer)
    result = run_here("verify", url(writer, folder), "--json")
    assert result.returncode == 1
    (fault,) = json.loads(result.output)["faults"]
    assert (fault["kind"], fault["voxel"]) == ("chunk.undecodable", [16, 8, 8])
    assert fault["offset"] is not None
    assert "--salvage" in fault["remedy"]
    assert run_here("verify", url(writer, folder), "--quick").returncode == 0
    assert run_here("repair", url(writer, folder), "--salvage", "--dry-run").returncode == 0
    assert run_here("verify", url(writer, folder)).returncode == 1
    assert run_here("repair", url(writer, folder), "--salvage").returncode == 0
    assert run_here("verify", url(writer, folder)).returncode == 0
