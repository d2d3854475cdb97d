"""Jobs as SLURM job arrays write the files of serial runs; lost elements are replaced, and
cancelled jobs resume."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from faults.trees import contents, lay_out, leftovers, make_dataset
from scipy import ndimage
from slurm.array import element_states, finished, submit
from support.commands import COMMAND

import wkwdask
from wkwdask.errors import LockedError, UnsupportedError

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Files of a dataset whose label layer has 48 files in mag 1."""
    folder = make_dataset(tmp_path_factory.mktemp("source") / "ds", (10, 10, 20))
    random = np.random.default_rng(1)
    coarse = random.integers(0, 3, (1, 16, 16, 12)) * random.integers(1, 500, (1, 16, 16, 12))
    labels = np.kron(coarse, np.ones((1, 8, 8, 8), np.int64)).astype(np.uint32)
    wkwdask.to_wkw(labels, folder / "seg" / "1", block_len=8, file_len=4, compression="lz4")
    return contents(folder)


@pytest.fixture
def ds(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lay_out(source, tmp_path / "ds")


@pytest.fixture(scope="module")
def pyramid(source, tmp_path_factory):
    """Files after a serial run."""
    folder = lay_out(source, tmp_path_factory.mktemp("serial") / "ds")
    with dask.config.set(scheduler="sync"):
        wkwdask.build_pyramid(folder)
    return contents(folder)


def test_the_work_of_a_lost_element_is_done_by_others(slurm, ds, pyramid, capsys):
    """The array is held back, one element is cancelled, and the others start."""
    jobs = submit(capsys, "pyramid", ds, "--sbatch", "--begin=now+1hour", elements=3)
    slurm.run("scancel", f"{jobs[0]}_1")
    with pytest.raises(LockedError, match=f"SLURM job {jobs[1]}"):
        wkwdask.build_pyramid(ds)
    slurm.run("scontrol", "update", f"jobid={jobs[0]}", "StartTime=now")
    slurm.run("scontrol", "update", f"jobid={jobs[1]}", "StartTime=now")
    state, printed = finished(slurm, jobs)
    assert state == "COMPLETED", printed
    assert "1 element did not complete: this job does the rest of their work" in printed
    # SLURM lists no element that never started
    assert element_states(slurm, jobs[0]) == {"COMPLETED": 2}
    assert contents(ds) == pyramid
    assert not leftovers(ds)


def test_a_cancelled_job_resumes(slurm, ds, pyramid, capsys):
    jobs = submit(capsys, "pyramid", ds, "--sbatch", "--begin=now+1hour")
    COMMAND.main(["cancel", str(ds)], standalone_mode=False)
    assert f"{jobs[0]}, {jobs[1]}" in capsys.readouterr().out
    slurm.wait_for(jobs[1], "CANCELLED")
    again = submit(capsys, "pyramid", ds, "--sbatch", "--begin=now+1hour")
    assert again is not None
    slurm.run("scancel", again[1])  # the array does not know
    slurm.wait_for(again[1], "CANCELLED")
    COMMAND.main(["cancel", str(ds / "seg" / "2-2-1")], standalone_mode=False)
    assert not slurm.jobs()
    wkwdask.build_pyramid(ds)
    assert contents(ds) == pyramid
    assert not leftovers(ds)


def test_each_phase_reads_the_results_of_the_one_before(slurm, ds, capsys):
    """Components are labelled, joined and numbered."""
    wkwdask.connected_components(ds / "seg" / "1", ds / "serial" / "1")
    jobs = submit(capsys, "components", ds / "seg" / "1", ds / "components" / "1")
    state, printed = finished(slurm, jobs)
    assert state == "COMPLETED", printed
    np.testing.assert_array_equal(
        wkwdask.read(ds / "components" / "1"), wkwdask.read(ds / "serial" / "1")
    )


def labelled(em):
    return ndimage.label(em > 0)[0]


def test_blocks_are_segmented_matched_and_numbered(slurm, ds, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from scipy import ndimage\ndef cells(em):\n    return ndimage.label(em > 0)[0]\n"
    )
    url = ds / "seg" / "1"
    wkwdask.segment(labelled, url, ds / "serial" / "1", halo=4, chunks=24)
    jobs = submit(
        capsys, "segment", "mine.py:cells", ds / "seg" / "1", ds / "cells" / "1", "--halo", "4",
        "--chunks", "24",
    )  # fmt: skip
    state, printed = finished(slurm, jobs)
    assert state == "COMPLETED", printed
    np.testing.assert_array_equal(
        wkwdask.read(ds / "cells" / "1"), wkwdask.read(ds / "serial" / "1")
    )


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_labels_are_meshed(slurm, ds, tmp_path, capsys):
    volume = tmp_path / "volume"
    wkwdask.convert(ds / "seg", f"precomputed://{volume}")
    wkwdask.meshes(f"precomputed://{volume}", volume / "serial", cell=24)
    jobs = submit(
        capsys, "meshes", f"precomputed://{volume}", volume / "mesh", "--cell", "24", "--overwrite"
    )
    state, printed = finished(slurm, jobs)
    assert state == "COMPLETED", printed
    serial, array = (
        {path.name: path.read_bytes() for path in (volume / name).iterdir()}
        for name in ("serial", "mesh")
    )
    assert array == serial


def test_elements_import_a_function_from_a_file(slurm, ds, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def double(x):\n    return x * 2\n")
    state, printed = finished(
        slurm,
        submit(
            capsys, "apply", "mine.py:double", ds / "seg" / "1", ds / "double" / "1", elements=1
        ),
    )
    assert state == "COMPLETED", printed
    np.testing.assert_array_equal(
        wkwdask.read(ds / "double" / "1"), wkwdask.read(ds / "seg" / "1") * 2
    )


def test_a_mag_is_compressed_in_place(slurm, ds, capsys):
    voxels = wkwdask.read(ds / "seg" / "1")
    jobs = submit(capsys, "compress", ds / "seg" / "1", "--level", "9", elements=1)
    state, printed = finished(slurm, jobs)
    assert state == "COMPLETED", printed
    np.testing.assert_array_equal(wkwdask.read(ds / "seg" / "1"), voxels)
    assert wkwdask.open_dataset(ds).layers["seg"].mags
    assert not leftovers(ds)


def test_a_mag_is_exported(slurm, ds, tmp_path, capsys):
    target = tmp_path / "labels.npy"
    state, printed = finished(slurm, submit(capsys, "convert", ds / "seg" / "1", target))
    assert state == "COMPLETED", printed
    np.testing.assert_array_equal(np.load(target).T, wkwdask.read(ds / "seg" / "1")[0])
    assert not leftovers(tmp_path)


def test_commands_without_a_journal_are_rejected(slurm, ds, capsys):
    with pytest.raises(UnsupportedError, match="slurm-allocation"):
        submit(capsys, "verify", ds)
    assert not slurm.jobs()
