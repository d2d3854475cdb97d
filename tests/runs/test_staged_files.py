"""Results that are no arrays have the life of all others."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from click.testing import CliRunner
from faults.drivers import regions_of, stopping
from faults.trees import leftovers
from support.commands import COMMAND

import wkwdask
from wkwdask.errors import ResumeError
from wkwdask.runs.job_folder import Publisher


@pytest.fixture
def mag(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", voxel_size=(4, 4, 4))
    mag = tmp_path / "ds" / "color" / "1"
    voxels = np.random.default_rng(0).integers(0, 255, (32, 32, 32), np.uint8)
    wkwdask.to_wkw(voxels, mag, block_len=8, file_len=2)
    return mag


def interrupted(mag, target, **options):
    with stopping(target.parent / "log", 1, KeyboardInterrupt()), suppress(KeyboardInterrupt):
        wkwdask.convert(mag, target, **options)


def command(*arguments):
    return CliRunner().invoke(COMMAND, list(map(str, arguments))).output


def test_an_interrupted_export_is_listed_and_removed(mag, tmp_path):
    target = tmp_path / "out" / "em.npy"
    target.parent.mkdir()
    with regions_of(8):
        interrupted(mag, target)
        assert f"writes {target}" in (shown := command("status", target.parent))
        assert " 1/" in shown
        with pytest.raises(ResumeError, match=r"compression|dtype was uint8, is uint16"):
            wkwdask.convert(mag, target, dtype="uint16")
        assert "removed" in command("cancel", target.parent, "--discard")
    assert leftovers(target.parent) == []


def test_a_folder_that_replaces_another_keeps_no_record(mag, tmp_path):
    pytest.importorskip("tifffile", reason="tifffile, of the extra convert, is not installed")
    target = tmp_path / "sections"
    wkwdask.convert(mag, target)
    wkwdask.convert(mag, target, existing="overwrite", bounding_box="0,0,0,32,32,4")
    assert sorted(path.name for path in target.iterdir()) == [f"z{n:04}.tif" for n in range(4)]
    assert leftovers(tmp_path) == []


def test_the_same_call_reports_what_it_completes(mag, tmp_path, monkeypatch):
    target = tmp_path / "em.npy"

    def killed(_):
        raise OSError("as if killed")

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "publish", killed)
        with pytest.raises(OSError, match="as if killed"):
            wkwdask.convert(mag, target)
    assert not target.exists()
    report = wkwdask.convert(mag, target)
    assert "the publication is now complete" in report.note
    assert (report.files, report.nbytes_out) == (1, target.stat().st_size)
    np.testing.assert_array_equal(np.load(target).T, wkwdask.read(mag)[0])
    assert leftovers(tmp_path) == []
