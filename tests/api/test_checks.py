"""Checks, repairs, comparisons and manifests of whole datasets, for every kind of damage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, killed_at, logged, stopping
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run_here
from support.damage_matrix import (
    ABOVE,
    BROKEN_BLOCK,
    CASES,
    COARSE,
    FILE_NAME,
    FINE,
    MAGS,
    OFFSET,
    RAW,
    SHAPE,
    add,
    as_raw,
    blocks,
    both,
    cut,
    edit,
    hashes,
    labels,
    layer,
    make_dataset,
    matches,
    prepare,
    remove,
    set_block,
    strangers_mag,
    voxels,
)
from support.file_events import counting
from support.inside import KINDS_OF_FAULTS
from support.locks import dead_process, put_lock, this_process
from support.strategies import HEAVY, VOXEL_KINDS, voxel_array

import wkwdask
from wkwdask.errors import BoundsError, CorruptError, LockedError, MissingError, ResumeError

MANIFEST_NAME = "wkwdask-manifest.txt"
QUARANTINE_NAME = ".wkwdask-quarantine"

IN_PLACE = (".wkwdask-files.npy",)  # what a repair keeps up to date beside the data


@pytest.fixture(autouse=True)
def _in_this_thread(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # no machine goes down here
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="session")
def sound(tmp_path_factory):
    with dask.config.set(scheduler="synchronous"):
        return make_dataset(tmp_path_factory.mktemp("checks") / "ds")


@pytest.fixture
def dataset(sound, tmp_path):
    return Path(shutil.copytree(sound, tmp_path / "ds"))


def kinds(faults, *, notes=False):
    return sorted({fault.kind for fault in faults if notes or fault.severity != "note"})


def test_the_undamaged_dataset_is_sound(sound):
    report = wkwdask.verify(sound, pyramid=True)
    assert report.faults == ()
    assert report.is_sound
    assert {(mag.layer, mag.mag, mag.files) for mag in report.mags} == {
        ("cells", "1", 25),
        ("cells", "2", 8),
        ("cells", "4", 1),
        ("color", "1", 27),
    }
    assert sum(mag.blocks for mag in report.mags) == 8 * (25 + 8 + 1 + 27)
    assert sum(mag.compared for mag in report.mags) == 9
    assert [mag.largest for mag in report.mags if mag.mag == "1"] == [labels().max(), None]
    assert wkwdask.repair(sound).actions == ()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=pytest.mark.long if number % 3 else ())
        for number, case in enumerate(CASES)
    ],
)
def test_damage_is_named_and_repaired(sound, tmp_path, case):
    """A dry run changes nothing, and a repair changes no sound file."""
    if case.needs_user and os.geteuid() == 0:
        pytest.skip("a superuser can read every file")
    folder = prepare(sound, tmp_path / "ds", case)
    damaged = hashes(folder) if not case.needs_user else None
    report = wkwdask.verify(folder, **case.verify)
    check_report(folder, case, report)
    planned = wkwdask.repair(folder, dry_run=True, **case.options)
    assert damaged is None or hashes(folder) == damaged
    done = wkwdask.repair(folder, **case.options)
    assert (
        not planned.is_dry_run
        or [action.verb for action in planned.actions]
        == [action.verb for action in done.actions][: len(planned.actions)]
    )
    assert [action.verb for action in done.actions] == list(case.does)
    check_remaining(kinds([unrepaired.fault for unrepaired in done.remaining]), case.stays)
    check_remaining(kinds(wkwdask.verify(folder, **case.verify).faults), case.stays)
    if damaged is not None:
        check_untouched(sound, folder, case, report, damaged)
    if not case.stays and not case.zeros and case.restored:
        for layer, mag in (("cells", "1"), ("color", "1"), *(("cells", mag) for mag in MAGS)):
            if (folder / layer / mag).exists():
                np.testing.assert_array_equal(voxels(folder, layer, mag), voxels(sound, layer, mag))


def check_report(folder, case, report):
    found = Counter((fault.kind, os.path.relpath(fault.path, folder)) for fault in report.faults)
    for pattern, paths in case.says.items():
        here = {path for kind, path in found if matches(kind, pattern)}
        assert here, f"{pattern} was not found: {found}"
        if paths is not None:
            assert here == ({paths} if isinstance(paths, str) else set(paths))
    others = [kind for kind, _ in found if not any(matches(kind, pattern) for pattern in case.says)]
    assert others == []
    assert all(fault.meaning and fault.found for fault in report.faults)
    assert report.is_sound == (not any(fault.severity == "error" for fault in report.faults))


def check_remaining(found, stays):
    assert all(any(matches(kind, pattern) for pattern in stays) for kind in found), found
    assert all(any(matches(kind, pattern) for kind in found) for pattern in stays), found


def check_untouched(sound, folder, case, report, damaged):
    """Files that equal those of the sound dataset stay so, except rebuilt ones and the JSON."""
    before, after = hashes(sound), hashes(folder)
    named = {os.path.relpath(fault.path, folder) for fault in report.faults}
    for name, digest in before.items():
        if (
            damaged.get(name) == digest
            and not name.endswith(IN_PLACE)
            and name not in (FILE_NAME, *named)
        ):
            assert after.get(name) == digest, name
    fresh = {name for name in after if name not in damaged and name not in before}
    assert all(QUARANTINE_NAME in name or name.endswith(IN_PLACE) for name in fresh), fresh


def test_the_matrix_covers_the_kinds():
    """The others have tests with their own datasets."""
    elsewhere = {
        "header.unreadable",
        "header.lengths",
        "file.block_nbytes",
        "file.lz4_level",
        "file.bad_voxel_type",
        "mag.remote",
        "mag.empty",
        "layer.format",
        "job.running",
        "job.refused",
        "job.unpublished",
        "quarantine",
        "pyramid.unknown",
        "pyramid.smaller",
        "folder.unreadable",
        "file.size_changed",
        "file.checksum",
        "layer.twice",
    }
    # see test_precomputed_verify.py, support/damaged_arrays.py and oracles/test_meshes.py
    of_arrays = {
        kind
        for kind in KINDS_OF_FAULTS
        if kind.startswith(
            ("info.", "level.", "image.", "document.", "chunk.", "shard.", "minishard.", "mesh.")
        )
    }
    covered = of_arrays | {
        kind
        for case in CASES
        for kind in KINDS_OF_FAULTS
        for pattern in case.says
        if matches(kind, pattern)
    }
    assert set(KINDS_OF_FAULTS) - covered <= elsewhere
    assert len(CASES) >= 80


# ----------------------------------------------------------------------------- single kinds of
# damage


def test_every_broken_block_is_listed(dataset):
    header = wkwdask.Fault("block.undecodable", "", "").severity
    blocks(lambda stored: [set_block(n, b"\xff" * 50)(stored) for n in (1, 2, 6)])(dataset)
    report = wkwdask.verify(dataset)
    assert [(fault.block, fault.voxel) for fault in report.faults] == [
        (1, (24, 0, 16)),
        (2, (16, 8, 16)),
        (6, (16, 8, 24)),
    ]
    assert header == "error"
    assert report.count("error") == 3


def test_broken_blocks_beyond_a_limit_are_counted(tmp_path):
    wkwdask.write(
        tmp_path / "1",
        (0, 0, 0),
        np.random.default_rng(1).integers(0, 255, (64, 64, 64)).astype(np.uint8),
        block_len=8,
        file_len=8,
    )
    path = tmp_path / "1" / "z0" / "y0" / "x0.wkw"
    raw = path.read_bytes()
    path.write_bytes(raw[: 16 + 8 * 512] + b"\xff" * (len(raw) - 16 - 8 * 512))
    report = wkwdask.verify(tmp_path / "1")
    assert len(report.faults) == 20
    assert report.count("error") == 512
    assert "(and 492 more)" in str(report)


def test_salvage_keeps_all_other_blocks(dataset, sound):
    blocks(BROKEN_BLOCK)(dataset)
    broken = (dataset / FINE).read_bytes()
    wkwdask.repair(dataset, salvage=True)
    expected = voxels(sound).copy()
    expected[24:32, 0:8, 24:32] = 0  # block 5 of the file (1, 0, 1)
    np.testing.assert_array_equal(voxels(dataset), expected)
    aside = dataset / "cells" / QUARANTINE_NAME / FINE.removeprefix("cells/")
    assert aside.read_bytes() == broken
    text = Path(f"{aside}.txt").read_text()
    assert "block.undecodable" in text
    assert "1 of its 8 blocks were broken, 1 of them became zeros" in text
    report = wkwdask.verify(dataset)
    assert kinds(report.faults, notes=True) == ["quarantine"]


def test_a_salvaged_coarser_file_takes_broken_blocks_from_the_finer_mag(dataset, sound):
    """Its sound blocks stay unchanged, even above zeros of the finer mag."""
    # block 7 of the one is not above block 5 of the other
    both(blocks(BROKEN_BLOCK), blocks(set_block(7, b"\xff" * 90), ABOVE))(dataset)
    wkwdask.repair(dataset, salvage=True)
    np.testing.assert_array_equal(voxels(dataset, mag="2"), voxels(sound, mag="2"))
    assert not voxels(dataset)[24:32, 0:8, 24:32].any()
    assert not [name for name in os.listdir(dataset / "cells") if name.startswith(".wkwdask-job")]


def test_quarantine_never_replaces_a_file(dataset):
    for _ in range(2):
        (dataset / FINE).parent.mkdir(exist_ok=True)
        (dataset / FINE).write_bytes(b"rubbish")
        wkwdask.repair(dataset, quarantine=True)
    folder = (dataset / "cells" / QUARANTINE_NAME / FINE.removeprefix("cells/")).parent
    assert sorted(path.name for path in folder.iterdir()) == [
        "x1.wkw",
        "x1.wkw.1",
        "x1.wkw.1.txt",
        "x1.wkw.txt",
    ]


def test_an_update_rebuilds_files_above_a_salvaged_one(dataset):
    blocks(BROKEN_BLOCK)(dataset)
    wkwdask.repair(dataset, salvage=True)
    report = wkwdask.build_pyramid(dataset, "cells", update=True)
    assert "2 files rebuilt" in report.note
    assert wkwdask.verify(dataset, pyramid=True).is_sound
    assert kinds(wkwdask.verify(dataset, pyramid=True).faults) == []


def test_an_update_has_nothing_to_do_after_a_rebuild(dataset):
    cut(COARSE, -20)(dataset)
    wkwdask.repair(dataset)
    report = wkwdask.build_pyramid(dataset, "cells", mags=["2"], update=True)
    assert "nothing to do" in report.note


def test_a_mag_of_unknown_method_is_rebuilt_only_by_request(dataset):
    """The default method would be wrong."""
    wkwdask.build_pyramid(dataset, "cells", mags=MAGS, method="max", existing="overwrite")
    before = voxels(dataset, mag="2")
    strangers_mag(cut(COARSE, -20))(dataset)
    report = wkwdask.repair(dataset)
    assert report.actions == ()
    assert "the method that made the mag is unknown: set method=" in str(report)
    assert "by max, as requested" in str(wkwdask.repair(dataset, method="max"))
    np.testing.assert_array_equal(voxels(dataset, mag="2"), before)
    assert (dataset / "cells" / QUARANTINE_NAME / COARSE.removeprefix("cells/")).exists()


def test_a_method_that_contradicts_sound_blocks_is_not_applied(dataset):
    noise = np.random.default_rng(3).integers(1, 9, (20, 18, 16)).astype(np.uint32)
    shutil.rmtree(dataset / "cells" / "2")
    wkwdask.write(
        dataset / "cells" / "2", (2, 0, 2), noise, block_len=8, file_len=2, compression="lz4"
    )
    (dataset / "cells" / "2" / ".wkwdask-files.npy").unlink(missing_ok=True)
    cut(COARSE, -20)(dataset)
    report = wkwdask.repair(dataset, method="mode")
    assert report.actions == ()
    assert not report.is_sound
    assert "its sound blocks differ from the mode of the finer mag" in str(report)
    cut(COARSE, 0)(dataset)
    report = wkwdask.repair(dataset, method="mode")
    assert "by mode, as requested" in str(report)
    assert wkwdask.verify(dataset).is_sound


def coarser_of_others(folder, array, method="max"):
    """Write two mags of an image without provenance."""
    wkwdask.create_dataset(folder, (4, 4, 4))
    wkwdask.to_wkw(array, folder / "color" / "1", block_len=8, file_len=2, category="color")
    wkwdask.build_pyramid(folder, "color", mags=["2"], method=method)
    for path in (folder / "color").glob("*/.wkwdask*"):
        path.unlink()
    return wkwdask.open(folder, mag="2").compute()


def noise(*shape):
    return np.random.default_rng(2).integers(1, 250, shape).astype(np.uint8)


def test_sound_blocks_of_a_mag_without_provenance_stay(tmp_path):
    """The finer mag holds only a part of the coarser one: no block becomes zeros."""
    folder = tmp_path / "ds"
    before = coarser_of_others(folder, noise(32, 32, 64))
    path = "color/2/z0/y0/x0.wkw"
    blocks(set_block(2, b"\xff" * 50), path)(folder)
    broken = (folder / path).read_bytes()
    shutil.copytree(folder, tmp_path / "part")
    for z in (0, 1):
        shutil.rmtree(tmp_path / "part" / f"color/1/z{z}/y0")
    report = wkwdask.repair(tmp_path / "part", method="max")
    assert report.actions == ()
    assert "its sound blocks differ from the" in str(report)
    assert (tmp_path / "part" / path).read_bytes() == broken
    report = wkwdask.repair(folder, method="max")
    assert "its 7 sound blocks stay" in str(report)
    np.testing.assert_array_equal(wkwdask.open(folder, mag="2").compute(), before)
    assert (folder / "color" / QUARANTINE_NAME / "2/z0/y0/x0.wkw").read_bytes() == broken


def test_samples_of_a_pyramid_are_the_same_in_each_run(dataset):
    wkwdask.build_pyramid(dataset, "cells", mags=MAGS, method="nearest", existing="overwrite")
    strangers_mag()(dataset)
    everything = {fault.path for fault in wkwdask.verify(dataset, pyramid=1.0).faults}
    assert len(everything) > 4
    half = [{fault.path for fault in wkwdask.verify(dataset, pyramid=0.5).faults} for _ in range(2)]
    assert half[0] == half[1]
    assert half[0] < everything
    assert wkwdask.verify(dataset, pyramid=0).faults == ()
    assert wkwdask.verify(dataset, pyramid=True, method="nearest").faults == ()


def test_a_mag_that_contradicts_its_provenance_is_an_error(dataset):
    """Without provenance the method is a guess, and the difference a warning."""
    wkwdask.build_pyramid(dataset, "cells", mags=MAGS, method="nearest", existing="overwrite")
    assert wkwdask.verify(dataset, pyramid=True).faults == ()
    path = dataset / "cells" / "2" / ".wkwdask.json"
    path.write_text(path.read_text().replace('"nearest"', '"max"'))
    report = wkwdask.verify(dataset, pyramid=True)
    assert {(fault.kind, fault.severity) for fault in report.faults} == {
        ("pyramid.differs", "error")
    }
    assert not report.is_sound
    assert run_here("verify", dataset, "--pyramid").returncode == 1
    strangers_mag()(dataset)
    report = wkwdask.verify(dataset, pyramid=True)
    assert {(fault.kind, fault.severity) for fault in report.faults} == {
        ("pyramid.differs", "warning")
    }
    assert run_here("verify", dataset, "--pyramid").returncode == 0


def test_mixed_compression_is_answered_with_advice(dataset):
    as_raw(FINE)(dataset)
    assert "wkwdask compress stores all files of the mag alike" in str(wkwdask.repair(dataset))


def test_quick_reads_no_block(dataset):
    both(blocks(BROKEN_BLOCK), cut(RAW, -5))(dataset)
    report = wkwdask.verify(dataset, quick=True)
    # the record knows the size of the one
    assert {fault.kind for fault in report.faults} == {"file.truncated", "file.size_changed"}
    assert {mag.blocks for mag in report.mags} == {0}


@pytest.mark.parametrize(
    ("path", "folders"), [("cells", 3), ("cells/1", 1), ("cells/2", 1), ("", 4)]
)
def test_a_layer_or_mag_is_checked_alone(dataset, path, folders):
    report = wkwdask.verify(dataset / path)
    assert len(report.mags) == folders
    assert report.faults == ()
    cut(FINE, -20)(dataset)
    assert wkwdask.verify(dataset / path).is_sound == (path == "cells/2")


def test_a_mag_without_a_header_is_found_by_its_path(dataset):
    (dataset / "cells" / "1" / "header.wkw").unlink()
    for path in (dataset / "cells" / "1", dataset / "cells"):
        assert kinds(wkwdask.verify(path).faults) == ["header.missing"]
    assert wkwdask.repair(dataset / "cells" / "1").is_sound
    assert wkwdask.verify(dataset).faults == ()


def test_mags_without_a_json_are_checked_and_repaired(dataset, tmp_path):
    shutil.copytree(dataset / "cells" / "1", tmp_path / "alone")
    assert wkwdask.verify(tmp_path / "alone").faults == ()
    shutil.copytree(dataset / "cells", tmp_path / "layer")
    assert wkwdask.verify(tmp_path / "layer", pyramid=True).faults == ()
    (tmp_path / "layer" / "2" / COARSE.removeprefix("cells/2/")).write_bytes(b"")
    assert wkwdask.repair(tmp_path / "layer").is_sound
    assert wkwdask.verify(tmp_path / "layer", pyramid=True).faults == ()


def test_layers_mags_and_options_are_checked(dataset):
    cut(FINE, -20)(dataset)
    assert wkwdask.verify(dataset, layer="color").is_sound
    assert wkwdask.verify(dataset, mags=["2", 4]).is_sound
    assert not wkwdask.verify(dataset, layer=["cells", "color"], mags="1").is_sound
    with pytest.raises(MissingError, match="no layer 'x'; there are cells, color"):
        wkwdask.verify(dataset, layer="x")
    for path, mag, there in ((dataset, 16, "1, 2, 4"), (dataset / "cells" / "1", 2, "1")):
        for check in (wkwdask.verify, wkwdask.repair):
            with pytest.raises(MissingError, match=f"no mag {mag}; there are {there}$"):
                check(path, mags=[mag])
    with pytest.raises(MissingError, match="no such folder"):
        wkwdask.verify(dataset / "nothing")
    (dataset.parent / "empty").mkdir()
    with pytest.raises(MissingError, match="no dataset"):
        wkwdask.verify(dataset.parent / "empty")
    for options, message in (
        ({"pyramid": 2}, "pyramid must be"),
        ({"pyramid": True, "method": "median!"}, "method must be"),
        ({"method": "median"}, "it needs pyramid="),
    ):
        with pytest.raises(ValueError, match=message):
            wkwdask.verify(dataset, **options)
    with pytest.raises(ValueError, match="voxel_size must be"):
        wkwdask.repair(dataset, voxel_size=(1, 2))


# ----------------------------------------------------------------------------- other jobs


def running_job(folder):
    """Lock a mag for this living process."""
    put_lock(folder / "cells" / "1", this_process("a test", "here"))


def test_a_mag_of_a_running_job_is_not_repaired(dataset):
    both(running_job, blocks(BROKEN_BLOCK))(dataset)
    report = wkwdask.verify(dataset)
    assert kinds(report.faults, notes=True) == ["block.undecodable", "job.running"]
    before = hashes(dataset)
    with pytest.raises(LockedError, match="another job writes it"):
        wkwdask.repair(dataset, salvage=True)
    assert hashes(dataset) == before


def test_mags_of_an_interrupted_job_are_not_repaired(dataset):
    """Others are repaired beside it."""
    root = dataset / "cells" / ".wkwdask-job-dead"
    root.mkdir()
    (root / "owner.json").write_text(json.dumps(dead_process("a test", "dead")))
    (root / "plan.json").write_text(
        json.dumps(
            {"layout": 1, "targets": ["2"], "existing": "overwrite", "settings": {}, "plan": None}
        )
    )
    (root / "journal-0.jsonl").write_text('{"task": "region 0 0,0,0"}\n')
    cut(COARSE, -20)(dataset)
    with pytest.raises(ResumeError, match="interrupted job writes"):
        wkwdask.repair(dataset)
    (dataset / "cells" / "2").rename(dataset / "kept")
    shutil.copytree(dataset / "kept", dataset / "cells" / "2")
    blocks(BROKEN_BLOCK)(dataset)
    with pytest.raises(ResumeError, match="interrupted job writes"):
        wkwdask.repair(dataset, salvage=True)
    assert [
        action.verb for action in wkwdask.repair(dataset / "cells" / "1", salvage=True).actions
    ] == ["salvage"]
    assert root.exists()


def test_a_job_that_died_while_publishing_is_finished(dataset):
    before = voxels(dataset, mag="4")
    root = dataset / "cells" / ".wkwdask-job-dead"
    root.mkdir()
    shutil.copytree(dataset / "cells" / "4", root / "8")
    for name in (".wkwdask.json", ".wkwdask-files.npy"):
        (root / "8" / name).unlink()
    (root / "8" / ".wkwdask.json").write_text(json.dumps({"publication": "p"}))
    (root / "owner.json").write_text(json.dumps(dead_process("a test", "dead")))
    (root / "plan.json").write_text(
        json.dumps(
            {"layout": 1, "targets": ["8"], "existing": "error", "settings": {}, "plan": None}
        )
    )
    mag = {"staged": "8", "folder": str(dataset / "cells" / "8")}
    (root / "publish.json").write_text(
        json.dumps({"layout": 1, "job": "dead", "publication": "p", "mags": [mag], "edit": None})
    )
    assert kinds(wkwdask.verify(dataset).faults) == ["job.unpublished"]
    assert [action.verb for action in wkwdask.repair(dataset).actions] == ["finish"]
    assert not root.exists()
    np.testing.assert_array_equal(voxels(dataset, mag="8"), before)
    assert kinds(wkwdask.verify(dataset).faults) == ["mag.unlisted"]


def test_a_job_that_cannot_be_finished_keeps_its_folder(dataset):
    """Its files may be the only copy."""
    root = dataset / "cells" / ".wkwdask-job-dead"
    (root / "8").mkdir(parents=True)
    (root / "owner.json").write_text(json.dumps(dead_process("a test", "dead")))
    mag = {"staged": "not there", "folder": str(dataset / "cells" / "8")}
    (root / "publish.json").write_text(
        json.dumps({"layout": 1, "job": "dead", "publication": "p", "mags": [mag], "edit": None})
    )
    wkwdask.repair(dataset)
    assert (root / "8").exists()


def test_temporary_files_of_a_running_job_stay(dataset):
    path = "cells/1/z1/y0/.x1.wkw.0123456789abcdef.wkwdask-tmp"
    both(running_job, add(path))(dataset)
    with pytest.raises(LockedError):
        wkwdask.repair(dataset)
    assert (dataset / path).exists()


def test_region_locks_of_dead_jobs_are_removed(dataset):
    mag, region = dataset / "cells" / "1", [(0, 0, 0), (1, 1, 1)]
    dead = put_lock(mag, dead_process("a test", "gone"), region)
    assert kinds(wkwdask.verify(dataset).faults) == ["leftover.lock"]
    assert [action.verb for action in wkwdask.repair(dataset).actions] == ["remove"]
    assert not dead.exists()
    living = put_lock(mag, this_process("a test", "here"), region)
    assert kinds(wkwdask.verify(dataset).faults, notes=True) == ["job.running"]
    cut(COARSE, -20)(dataset)
    assert wkwdask.repair(dataset).is_sound
    assert living.exists()
    blocks(BROKEN_BLOCK)(dataset)
    with pytest.raises(LockedError):
        wkwdask.repair(dataset, salvage=True)
    assert living.exists()


@pytest.mark.parametrize(
    "damage",
    [cut(FINE, 40), cut(COARSE, -20), remove("cells/1/header.wkw")],
    ids=["finest", "coarser", "header"],
)
def test_files_changed_since_the_check_are_left_alone(dataset, sound, damage):
    damage(dataset)

    def mend():
        for name in ("cells/1", "cells/2"):
            shutil.copytree(sound / name, dataset / name, dirs_exist_ok=True)

    begins = counting(dataset / "cells" / ".wkwdask-job-", 1, mend, {"os.mkdir"})
    with begins, pytest.raises(LockedError, match="was changed since it was checked"):
        wkwdask.repair(dataset, quarantine=True)
    assert wkwdask.verify(dataset).faults == ()
    assert not (dataset / "cells" / QUARANTINE_NAME).exists()


@pytest.mark.parametrize("num_done", range(4))
def test_an_interrupted_repair_is_completed_by_the_next(dataset, sound, tmp_path, num_done):
    both(
        cut(COARSE, -20),
        cut("cells/4/z0/y0/x0.wkw", 9),
        add(FINE),
        blocks(BROKEN_BLOCK, "cells/1/z0/y0/x0.wkw"),
    )(dataset)
    broken = (dataset / "cells/1/z0/y0/x0.wkw").read_bytes()
    whole = Path(shutil.copytree(dataset, tmp_path / "whole"))
    with logged(tmp_path / "log"):
        wkwdask.repair(whole, salvage=True)
    begun = [
        line.split()[1]
        for line in (tmp_path / "log").read_text().splitlines()
        if line.startswith("begin")
    ]
    first = next(n for n, name in enumerate(begun) if name in ("rewrite", "region"))
    with (
        stopping(tmp_path / "log", first + num_done, KeyboardInterrupt()),
        pytest.raises(KeyboardInterrupt),
    ):
        wkwdask.repair(dataset, salvage=True)
    assert [
        name
        for name in os.listdir(dataset / "cells")
        if name.startswith(".wkwdask-job") or name.endswith("-lock")
    ] == []
    assert wkwdask.repair(dataset, salvage=True).is_sound
    assert kinds(wkwdask.verify(dataset).faults) == []
    aside = dataset / "cells" / QUARANTINE_NAME / "1/z0/y0/x0.wkw"
    assert aside.read_bytes() == broken
    for mag in MAGS:
        np.testing.assert_array_equal(voxels(dataset, mag=mag), voxels(sound, mag=mag))


@pytest.mark.long
def test_a_killed_repair_is_completed_by_the_next(sound, tmp_path):
    """At every step, sound files stay unchanged and nothing is lost."""
    salvaged, temporary = (
        "cells/1/z0/y0/x0.wkw",
        "cells/1/z1/y0/.x1.wkw.0123456789abcdef.wkwdask-tmp",
    )
    damage = (
        cut(COARSE, -20),
        cut("cells/4/z0/y0/x0.wkw", 9),
        add(FINE),
        blocks(BROKEN_BLOCK, salvaged),
        add(temporary),
        cut("cells/2/header.wkw", 7),
    )
    options = {"salvage": True, "grow_box": True}
    damaged = Path(shutil.copytree(sound, tmp_path / "damaged"))
    both(*damage, layer("cells", largestSegmentId=7))(damaged)
    before, broken = hashes(damaged), hashes(damaged)[salvaged]
    good = {
        name: digest
        for name, digest in hashes(sound).items()
        if name.endswith(".wkw") and before[name] == digest
    }
    assert len(good) > 50

    def work(folder):
        wkwdask.repair(folder, **options)

    whole = Path(shutil.copytree(damaged, tmp_path / "whole"))
    changes, _ = killed_at(0, work, whole)
    assert len(wkwdask.repair(damaged, dry_run=True, **options).actions) >= 6
    expected = {
        (layer, mag): voxels(whole, layer, mag)
        for layer, mag in (("color", "1"), *(("cells", mag) for mag in ("1", *MAGS)))
    }
    ends = 0
    for step in sorted({*range(1, changes + 1, max(1, changes // (KILLS or 14))), changes}):
        folder = Path(shutil.copytree(damaged, tmp_path / f"step {step}"))
        ends += killed_at(step, work, folder) is None
        found = hashes(folder)
        assert {name: found.get(name) for name in good} == good, step
        assert broken in found.values(), step
        done = wkwdask.repair(folder, **options)
        assert done.is_sound, (step, str(done))
        assert kinds(wkwdask.verify(folder).faults) == [], step
        for (layer_name, mag), array in expected.items():
            np.testing.assert_array_equal(voxels(folder, layer_name, mag), array)
        assert broken in hashes(folder).values(), step
        shutil.rmtree(folder)
    assert ends > 10


def test_unchecked_mags_and_layers_are_named(dataset):
    edit(dataset, lambda layers: layers["cells"]["mags"][2].update(path="s3://bucket/cells/4"))
    edit(dataset, lambda layers: layers["color"].update(dataFormat="dicom"))
    shutil.rmtree(dataset / "cells" / "4")
    assert kinds(wkwdask.verify(dataset).faults, notes=True) == ["layer.format", "mag.remote"]
    shutil.rmtree(dataset / "cells" / "1" / "z0")
    (dataset / "cells" / "1" / ".wkwdask-files.npy").unlink()
    for z in (1, 2):
        shutil.rmtree(dataset / "cells" / "1" / f"z{z}")
    assert "mag.empty" in kinds(wkwdask.verify(dataset).faults, notes=True)


def without_json(folder):
    """Return the layer's box after a repair of the JSON, and before its loss."""
    before = wkwdask.info(folder).layers[0].bounding_box
    (folder / FILE_NAME).unlink()
    assert wkwdask.repair(folder, voxel_size=(4, 4, 4)).is_sound
    return wkwdask.info(folder).layers[0].bounding_box, before


@pytest.mark.parametrize(
    "step", ["to_wkw", "pyramid", "rechunk", "copy", "moved", "part", "merge", "upsample"]
)
def test_a_lost_json_gets_the_box_of_the_voxels(tmp_path, step):
    """The box of the source in the provenance is not that of the mag."""
    first, second = tmp_path / "ds", tmp_path / "other"
    wkwdask.create_dataset(first, (4, 4, 4))
    mag = "color/2" if step == "upsample" else "color/1"
    wkwdask.to_wkw(
        noise(40, 30, 30), first / mag, offset=(4, 0, 6), block_len=8, file_len=2, category="color"
    )
    copies = {
        "copy": {},
        "moved": {"translate": (36, 20, 50)},
        "part": {"bounding_box": (10, 4, 8, 20, 20, 20)},
    }
    if step in copies:
        wkwdask.copy(first, second, **copies[step])
    elif step == "rechunk":
        wkwdask.rechunk(first, second, file_len=1)
    elif step == "pyramid":
        wkwdask.build_pyramid(first, mags=["2", "4"])
        (first / "color" / "1" / ".wkwdask.json").unlink()
    elif step == "upsample":
        wkwdask.upsample(first, mags=["1"])
    elif step == "merge":
        path = first / "color" / "1" / ".wkwdask.json"
        path.write_text(
            path.read_text()
            .replace('"to_wkw"', '"merge"')
            .replace('"box": "', '"source": "1", "box": "9')
        )
    box, before = without_json(second if step in copies or step == "rechunk" else first)
    if step == "merge":
        assert box == wkwdask.BoundingBox((0, 0, 0), (48, 32, 48))  # that of its files
    else:
        assert box == before


def test_the_box_of_a_new_json_holds_all_voxels(tmp_path):
    """Other software wrote more than the recorded box."""
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    wkwdask.to_wkw(
        noise(40, 30, 30),
        tmp_path / "ds" / "color" / "1",
        offset=(4, 0, 6),
        block_len=8,
        file_len=2,
        category="color",
    )
    file = tmp_path / "ds" / "color" / "1" / "z1" / "y0" / "x0.wkw"
    target = tmp_path / "ds" / "color" / "1" / "z7" / "y3" / "x5.wkw"
    target.parent.mkdir(parents=True)
    shutil.copy(file, target)
    box, before = without_json(tmp_path / "ds")
    assert before == wkwdask.BoundingBox((4, 0, 6), (40, 30, 30))
    assert box == wkwdask.BoundingBox((4, 0, 6), (92, 64, 122))


def test_a_pyramid_without_provenance_and_category_is_not_compared(dataset):
    strangers_mag()(dataset)
    (dataset / FILE_NAME).unlink()
    assert kinds(wkwdask.verify(dataset / "cells", pyramid=True).faults, notes=True) == [
        "pyramid.unknown"
    ]
    (dataset / "cells" / "2" / ".wkwdask.json").write_text(
        '{"settings": {"command": "build_pyramid", "source": 7}}'
    )
    assert kinds(wkwdask.verify(dataset / "cells", pyramid=True).faults, notes=True) == [
        "pyramid.unknown"
    ]
    assert not wkwdask.verify(dataset / "cells", pyramid=True, method="mode").count("error")


def test_one_mag_does_not_change_the_type_of_its_layer(dataset):
    shutil.rmtree(dataset / "cells" / "4")
    wkwdask.write(
        dataset / "elsewhere" / "4",
        (0, 0, 0),
        np.ones((11, 9, 9), np.uint16),
        block_len=8,
        file_len=2,
    )
    shutil.copytree(dataset / "elsewhere" / "4", dataset / "cells" / "4")
    before = (dataset / FILE_NAME).read_text()
    report = wkwdask.repair(dataset / "cells" / "4")
    assert "not all mags" in str(report)
    assert "differ from each other" in str(wkwdask.repair(dataset / "cells"))
    assert (dataset / FILE_NAME).read_text() == before


def test_a_missing_mag_is_dropped_from_the_layer_that_lists_it(dataset):
    """Its folder is that of another layer, which has a mag of the same name elsewhere."""
    edit(
        dataset,
        lambda layers: layers["color"]["mags"].append(
            {**layers["color"]["mags"][-1], "mag": [2, 2, 2], "path": "./cells/gone"}
        ),
    )
    before = {
        entry["name"]: entry["mags"]
        for entry in json.loads((dataset / FILE_NAME).read_text())["dataLayers"]
    }
    (fault,) = (fault for fault in wkwdask.verify(dataset).faults if fault.kind == "mag.missing")
    assert fault.path == f"{dataset}/cells/gone"
    wkwdask.repair(dataset, drop_missing=True)
    after = {
        entry["name"]: entry["mags"]
        for entry in json.loads((dataset / FILE_NAME).read_text())["dataLayers"]
    }
    assert after == {**before, "color": before["color"][:-1]}


def test_a_mag_outside_the_dataset_is_left_alone(dataset, tmp_path):
    shutil.move(dataset / "cells" / "1", tmp_path / "elsewhere")
    edit(dataset, lambda layers: layers["cells"]["mags"][0].update(path="../elsewhere"))
    path = tmp_path / "elsewhere" / FINE.removeprefix("cells/1/")
    add(os.path.relpath(path, dataset))(dataset)
    before = path.read_bytes()
    report = wkwdask.repair(dataset)
    assert "outside the dataset" in str(report)
    assert path.read_bytes() == before
    assert wkwdask.repair(tmp_path / "elsewhere").actions[0].verb == "cut off"
    assert wkwdask.verify(dataset).is_sound


# ----------------------------------------------------------------------------- comparisons


@HEAVY
@given(data=st.data())
def test_diff_equals_numpy(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("diff")
    dtype = data.draw(st.sampled_from(["uint8", "uint16", "float32", "int64"]))
    shape = data.draw(st.tuples(st.integers(1, 3), *[st.integers(1, 20)] * 3))
    offset = np.array(data.draw(st.tuples(*[st.integers(0, 20)] * 3)))
    first = voxel_array(
        dtype, shape, data.draw(st.integers(0, 99)), data.draw(st.sampled_from(VOXEL_KINDS))
    )
    second = first.copy()
    bits = second.view(f"u{second.dtype.itemsize}")
    for _ in range(data.draw(st.integers(0, 15))):
        bits[tuple(data.draw(st.integers(0, n - 1)) for n in shape)] ^= bits.dtype.type(1)
    for name, array in (("a", first), ("b", second)):
        lengths = {
            "block_len": data.draw(st.sampled_from([2, 4, 8])),
            "file_len": data.draw(st.sampled_from([1, 2, 4])),
        }
        wkwdask.write(
            folder / name / "1",
            offset,
            array,
            compression=data.draw(st.sampled_from(["raw", "lz4", "lz4hc"])),
            **lengths,
        )
    found = wkwdask.diff(folder / "a" / "1", folder / "b" / "1")
    (volume,) = found.volumes
    differs = first.view(bits.dtype) != bits
    assert found.equal == (not differs.any())
    assert found.voxels_different == differs.any(axis=0).sum()
    order = np.argwhere(differs.transpose(3, 2, 1, 0))[:10]  # z, y, x, channel
    assert [(*one.voxel, one.channel) for one in volume.listed] == [
        (x + offset[0], y + offset[1], z + offset[2], c) for z, y, x, c in order.tolist()
    ]
    for one, (z, y, x, c) in zip(volume.listed, order.tolist(), strict=True):
        np.testing.assert_array_equal(
            [one.first, one.second], [first[c, x, y, z].item(), second[c, x, y, z].item()]
        )
    if differs.any():
        places = np.argwhere(differs.any(axis=0)) + offset
        assert volume.box_of_differences == wkwdask.BoundingBox.from_corners(
            places.min(axis=0).tolist(), (places.max(axis=0) + 1).tolist()
        )


def test_diff_compares_layers_and_mags(dataset, sound, tmp_path):
    assert wkwdask.diff(dataset, sound).equal
    wkwdask.rechunk(dataset, tmp_path / "other", block_len=4, file_len=8, compression="lz4hc")
    assert wkwdask.diff(dataset, tmp_path / "other").equal
    wkwdask.write(tmp_path / "other" / "cells" / "8", (0, 0, 0), np.ones((6, 5, 5), np.uint32))
    shutil.rmtree(dataset / "cells" / "4")
    found = wkwdask.diff(dataset, tmp_path / "other")
    assert not found.equal
    assert found.only_second == ("cells/4", "cells/8")
    assert found.voxels_different == 0
    assert wkwdask.diff(dataset, tmp_path / "other", mag=2).equal
    assert wkwdask.diff(dataset, tmp_path / "other", layer="color").equal
    edit(dataset, lambda layers: layers.update(layers["color"].update(name="image") or {}))
    found = wkwdask.diff(dataset, tmp_path / "other")
    assert (found.only_first, found.only_second[0]) == (("image",), "color")


def test_diff_reports_other_boxes_types_and_channels(dataset, sound, tmp_path):
    edit(dataset, lambda layers: layers["cells"]["boundingBox"].update(width=30))
    found = wkwdask.diff(dataset / "cells" / "1", sound / "cells" / "1")
    assert not found.equal
    assert found.voxels_different == 0
    assert found.voxels_compared == 30 * SHAPE[1] * SHAPE[2]
    assert "only voxels in both are compared" in str(found)
    assert wkwdask.diff(
        dataset / "cells" / "1", sound / "cells" / "1", bounding_box=(*OFFSET, 30, 10, 10)
    ).equal
    found = wkwdask.diff(sound / "cells" / "1", sound / "color" / "1")
    assert (found.equal, found.voxels_compared) == (False, 0)
    assert "uint32 and uint8" in str(found)
    wkwdask.write(tmp_path / "1", OFFSET, np.zeros((3, *SHAPE), np.uint8))
    assert "3 channels and 1:" in str(wkwdask.diff(tmp_path / "1", sound / "color" / "1"))


def test_diff_of_a_part_and_of_other_layers_says_what_differs(tmp_path):
    voxels = np.random.default_rng(5).integers(1, 255, (40, 40, 40), np.uint8)
    options = {"category": "color", "voxel_size": (4, 4, 4)}
    wkwdask.save(voxels, tmp_path / "a" / "em" / "1", **options)
    wkwdask.save(voxels[:32, :32, :32], tmp_path / "b" / "em" / "1", **options)
    text = str(wkwdask.diff(tmp_path / "a", tmp_path / "b"))
    assert "DIFFERENT, though not in the voxels compared: 0 of 32,768 voxels differ" in text
    for dataset, names in (("c", ("raw", "cells")), ("d", ("em", "mask"))):
        for name in names:
            wkwdask.save(voxels, tmp_path / dataset / name / "1", **options)
    with pytest.raises(MissingError, match=r"no layer in common; there are .*raw.* and .*mask"):
        wkwdask.diff(tmp_path / "c", tmp_path / "d")


def test_diff_refuses_other_mags_and_boxes(dataset, sound):
    with pytest.raises(ValueError, match="only equal mags can be compared"):
        wkwdask.diff(dataset / "cells" / "1", sound / "cells" / "2")
    with pytest.raises(MissingError, match="have no mag 8 in common"):
        wkwdask.diff(dataset, sound, mag=8)
    with pytest.raises(BoundsError, match="lies outside"):
        wkwdask.diff(dataset, sound, layer="cells", bounding_box=(900, 0, 0, 1, 1, 1))
    cut(FINE, -20)(dataset)
    with pytest.raises(wkwdask.FormatError):
        wkwdask.diff(dataset, sound, layer="cells")


def test_diff_shows_bits_of_values_that_print_alike(tmp_path):
    array = np.full((8, 8, 8), np.nan, np.float32)
    wkwdask.write(tmp_path / "a" / "1", (0, 0, 0), array)
    array.view(np.uint32)[1, 2, 3] = 0xFFC00001
    array[1, 2, 4] = 7
    wkwdask.write(tmp_path / "b" / "1", (0, 0, 0), array)
    found = wkwdask.diff(tmp_path / "a" / "1", tmp_path / "b" / "1")
    assert "voxel (1, 2, 3) of channel 0: nan and nan (bits 0x7fc00000 and 0xffc00001)" in str(
        found
    )
    assert "voxel (1, 2, 4) of channel 0: nan and 7.0\n" in str(found)
    assert [one.get("bits") for one in found.to_json()["volumes"][0]["listed"]] == [
        ("0x7fc00000", "0xffc00001"),
        None,
    ]


# ----------------------------------------------------------------------------- manifests


def sha256sum(folder):
    return subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", MANIFEST_NAME],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_manifest_agrees_with_sha256sum(dataset):
    odd = dataset / "cells" / "back\\slash and\nline"
    odd.write_text("a name that is escaped")
    report = wkwdask.write_manifest(dataset)
    assert report.files == sum(path.is_file() for path in dataset.rglob("*")) - 1  # itself
    assert sha256sum(dataset).returncode == 0
    assert wkwdask.check_manifest(dataset).is_equal
    both(cut(FINE, -1), remove(RAW), add("cells/new.txt"))(dataset)
    found = wkwdask.check_manifest(dataset)
    assert (found.missing, found.changed, found.additional) == ((RAW,), (FINE,), ("cells/new.txt",))
    assert not found.is_equal
    failed = sha256sum(dataset)
    assert failed.returncode == 1
    assert f"{FINE}: FAILED" in failed.stdout
    assert f"{RAW}: FAILED open or read" in failed.stdout


def test_a_manifest_leaves_nothing_of_a_killed_writer(dataset):
    left = dataset / f".{MANIFEST_NAME}.0123456789abcdef.wkwdask-tmp"
    left.write_bytes(b"# wkwdask manifest")
    wkwdask.write_manifest(dataset)
    assert not left.exists()
    assert wkwdask.check_manifest(dataset).is_equal


def test_a_manifest_of_sha256sum_is_accepted(dataset):
    lines = subprocess.run(
        "find . -type f ! -name '.datasource*' -print0 | xargs -0 sha256sum",
        shell=True,
        cwd=dataset,
        capture_output=True,
        check=True,
    ).stdout
    (dataset / MANIFEST_NAME).write_bytes(lines)
    assert wkwdask.check_manifest(dataset).is_equal


def test_manifests_leave_jobs_out_and_follow_links(dataset, tmp_path):
    shutil.move(dataset / "color", tmp_path / "elsewhere")
    (dataset / "color").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "round").symlink_to(dataset)  # never ends, if followed twice
    before = wkwdask.write_manifest(dataset)
    assert RAW in (dataset / MANIFEST_NAME).read_text()
    both(running_job, add("cells/1/.x.wkw.00.wkwdask-tmp"), add("cells/.wkwdask-job-1/owner.json"))(
        dataset
    )
    assert wkwdask.check_manifest(dataset).is_equal
    assert wkwdask.write_manifest(dataset).files == before.files


def test_manifests_list_files_under_all_their_names(dataset, tmp_path):
    (dataset / "alias").symlink_to("color")
    wkwdask.write_manifest(dataset)
    shutil.copytree(dataset, tmp_path / "copy")  # as most transfers: links become folders
    assert (tmp_path / "copy" / "alias" / "1").is_dir()
    assert wkwdask.check_manifest(tmp_path / "copy").is_equal
    next((tmp_path / "copy" / "alias").rglob("x*.wkw")).write_bytes(b"")
    assert len(wkwdask.check_manifest(tmp_path / "copy").changed) == 1


def test_manifests_skip_pipes_and_broken_links(dataset):
    os.mkfifo(dataset / "cells" / "pipe")
    (dataset / "nowhere").symlink_to("/nowhere/at/all")
    report = wkwdask.write_manifest(dataset)
    assert report.not_hashed == ("cells/pipe", "nowhere")
    assert "not hashed: cells/pipe" in str(report)
    assert "pipe" not in (dataset / MANIFEST_NAME).read_text()
    found = wkwdask.check_manifest(dataset)
    assert found.is_equal
    assert found.not_hashed == report.not_hashed


def test_missing_and_broken_manifests_are_errors(dataset):
    with pytest.raises(MissingError, match="write a manifest first"):
        wkwdask.check_manifest(dataset)
    (dataset / MANIFEST_NAME).write_text("no hash\n")
    with pytest.raises(CorruptError, match="line 1"):
        wkwdask.check_manifest(dataset)
    for call in (wkwdask.write_manifest, wkwdask.check_manifest):
        with pytest.raises(MissingError, match="is a file, expected a folder"):
            call(dataset / MANIFEST_NAME)


# ----------------------------------------------------------------------------- commands


def test_verify_command(dataset):
    result = run_here("verify", dataset)
    assert result.returncode == 0
    assert "sound: 0 errors" in result.output
    add(FINE)(dataset)
    assert run_here("verify", dataset).returncode == 0
    assert run_here("verify", dataset, "--strict").returncode == 1
    blocks(BROKEN_BLOCK)(dataset)
    result = run_here("verify", dataset, "--pyramid", "--sample", "0.5")
    assert result.returncode == 1
    assert "block 5" in result.output
    assert "NOT SOUND" in result.output
    assert "block.undecodable" not in run_here("verify", dataset, "--limit", "0").output
    found = json.loads(run_here("verify", dataset, "--json").output)
    assert [
        (fault["kind"], fault["block"], fault["voxel"])
        for fault in found["faults"]
        if fault["severity"] == "error"
    ] == [("block.undecodable", 5, [24, 0, 24])]
    assert found["sound"] is False


def test_a_voxel_size_that_is_no_number(dataset):
    result = run_here("repair", dataset, "--voxel-size", "4,a,35")
    assert result.returncode == 2
    assert "--voxel-size takes numbers with commas between them, got '4,a,35'" in result.output


def test_repair_command(dataset):
    blocks(BROKEN_BLOCK)(dataset)
    result = run_here("repair", dataset, "--dry-run", "--json")
    assert result.returncode == 1
    assert json.loads(result.output)["left"][0]["kind"] == "block.undecodable"
    result = run_here("repair", dataset, "--salvage", "--dry-run")
    assert "would salvage" in result.output
    assert "nothing was changed" in result.output
    result = run_here("repair", dataset, "--salvage")
    assert result.returncode == 0
    assert "no errors or warnings remain" in result.output
    (dataset / FILE_NAME).unlink()
    assert run_here("repair", dataset, "--voxel-size", "11.24,11.24,28").returncode == 0
    assert wkwdask.info(dataset).voxel_size_nm == (11.24, 11.24, 28)


def test_manifest_command(dataset):
    refused = run_here("verify", dataset, "--layer", "color", "--manifest", "write")
    assert refused.returncode == 2
    assert "--manifest hashes all files below PATH: omit --layer" in refused.stderr
    assert not (dataset / MANIFEST_NAME).exists()
    assert run_here("verify", dataset, "--manifest", "write").returncode == 0
    assert run_here("verify", dataset, "--manifest", "check").returncode == 0
    cut(FINE, -1)(dataset)
    result = run_here("verify", dataset, "--manifest", "check", "--json")
    assert result.returncode == 1
    assert json.loads(result.output)["changed"] == [FINE]


def test_diff_command(dataset, sound):
    assert run_here("diff", dataset, sound).returncode == 0
    wkwdask.write(dataset / "color" / "1", OFFSET, np.zeros(SHAPE, np.uint8), existing="overwrite")
    result = run_here("diff", dataset, sound, "--layer", "color", "--json")
    assert result.returncode == 1
    assert json.loads(result.output)["voxels_different"] == np.count_nonzero(voxels(sound, "color"))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("verify", "damaged"), 1, "NOT SOUND"),
        (("verify", "sound"), 0, "sound: 0 errors"),
        (("repair", "damaged", "--dry-run"), 1, "1 error remains"),
        (("diff", "damaged", "sound", "--layer", "color"), 0, "equal"),
        (("diff", "sound", "other"), 1, "only the first has cells"),
        (("diff", "sound", "nothing"), 2, "no such folder"),
        (("verify", "sound", "--manifest", "check"), 2, "write a manifest first"),
    ],
)
def test_exit_codes(dataset, sound, monkeypatch, arguments, code, message):
    cut(FINE, 40)(dataset)
    dataset.rename(dataset.parent / "damaged")
    for name in ("sound", "other"):
        shutil.copytree(sound, dataset.parent / name)
    edit(dataset.parent / "other", lambda layers: layers["cells"].update(name="ids"))
    monkeypatch.chdir(dataset.parent)
    done = run_here(*arguments)
    assert done.returncode == code, done.output
    assert message in done.output
