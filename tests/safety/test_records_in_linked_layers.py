"""Jobs of layers that a link leads to: their records are about the folder that they really lie in,
and jobs of the same call are completed there."""

from __future__ import annotations

import shutil
import signal

import numpy as np
import pytest
from safety.test_job_records import (
    NEW,
    OPTIONS,
    compress,
    fork,
    killed_between_record_and_rename,
    make_dataset,
    make_job,
    pyramid,
    remove,
    tree,
    write,
)

import wkwdask
from wkwdask.errors import UnsupportedError


def linked(tmp_path):
    """A dataset whose layer lies on another disk."""
    dataset = make_dataset(tmp_path / "a" / "dataset")
    (tmp_path / "disk").mkdir()
    shutil.move(dataset / "color", tmp_path / "disk" / "color")
    (dataset / "color").symlink_to(tmp_path / "disk" / "color")
    return dataset


JOBS = {
    write: lambda folder: wkwdask.to_wkw(
        NEW, folder / "color" / "1", existing="overwrite", allow_external=True, **OPTIONS
    ),
    pyramid: lambda folder: wkwdask.build_pyramid(
        folder, "color", mags=["2"], method="max", existing="overwrite", allow_external=True
    ),
    compress: lambda folder: wkwdask.compress(
        folder / "color" / "1", compression="lz4hc", allow_external=True
    ),
    remove: lambda folder: wkwdask.rm(folder / "color" / "2", allow_external=True),
}


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
@pytest.mark.parametrize("finisher", ["the same call", "repair"])
def test_a_killed_job_is_completed(tmp_path, job, finisher):
    dataset, expected = linked(tmp_path), make_dataset(tmp_path / "expected")
    job(expected)
    assert fork(killed_between_record_and_rename, JOBS[job], dataset) == -signal.SIGKILL
    if finisher == "the same call":
        JOBS[job](dataset)
    else:
        wkwdask.repair(dataset)
        # it is outside of the dataset
        assert list((tmp_path / "disk" / "color").glob(".wkwdask-job-*"))
        assert "finish" in {
            action.verb for action in wkwdask.repair(dataset, allow_external=True).actions
        }
    for mag in (mag.mag for mag in wkwdask.info(expected).layers[0].mags):
        np.testing.assert_array_equal(
            wkwdask.read(dataset, mag=mag), wkwdask.read(expected, mag=mag)
        )
    assert len(wkwdask.info(dataset).layers[0].mags) == len(wkwdask.info(expected).layers[0].mags)
    assert (dataset / "color" / "2").exists() == (job is not remove)
    assert not list((tmp_path / "disk" / "color").glob(".wkwdask-job-*"))


@pytest.mark.faults
def test_a_write_into_a_part_completes_what_was_killed(tmp_path):
    dataset = linked(tmp_path)
    assert fork(killed_between_record_and_rename, JOBS[write], dataset) == -signal.SIGKILL
    wkwdask.to_wkw(
        NEW[:, :8, :8, :8],
        dataset / "color" / "1",
        region=((8, 8, 8), (16, 16, 16)),
        allow_external=True,
    )
    expected = NEW.copy()
    expected[:, 8:16, 8:16, 8:16] = NEW[:, :8, :8, :8]
    np.testing.assert_array_equal(wkwdask.read(dataset, mag=1), expected)


RECORDS = {
    "removal": {"removed": ["../seg/1"], "edit": None},
    "edit": {
        "removed": [],
        "edit": {
            "kind": "removal of mags",
            "dataset_folder": "..",
            "layer": "seg",
            "mags": [[1, 1, 1]],
        },
    },
    "publication": {
        "job": "X",
        "publication": "p",
        "mags": [{"staged": "b", "folder": "../seg/1"}],
        "edit": None,
    },
}


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_in_a_linked_layer_is_not_about_the_dataset_with_the_link(tmp_path, record):
    """The layer is somebody else's, who can write records there."""
    dataset, other = make_dataset(tmp_path / "dataset"), make_dataset(tmp_path / "other")
    wkwdask.to_wkw(NEW, dataset / "seg" / "1")
    shutil.rmtree(dataset / "color")
    (dataset / "color").symlink_to("../other/color")
    make_job(other / "color", RECORDS[record])
    before = tree(dataset), tree(other)
    with pytest.raises(UnsupportedError, match="lies outside the dataset"):
        wkwdask.rm(dataset / "color" / "2")
    wkwdask.repair(dataset)
    assert (tree(dataset), tree(other)) == before
