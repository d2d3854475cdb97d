"""Jobs record the largest id of a segmentation if they know it, and never one that is too small."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from support.commands import run_here

import wkwdask

OPTIONS = {"block_len": 8, "file_len": 2}
# up to 40
LABELS = np.kron(
    np.arange(1, 9, dtype=np.uint32).reshape(2, 2, 2) * 5, np.ones((8, 8, 8), np.uint32)
)


@pytest.fixture
def dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    wkwdask.to_wkw(LABELS, tmp_path / "ds" / "seg" / "1", **OPTIONS)
    return tmp_path / "ds"


def largest(dataset, layer="seg"):
    return wkwdask.open_dataset(dataset)[layer].largest_segment_id


def without_largest_id(dataset):
    wkwdask.open_dataset(dataset).set_largest_segment_id("seg", None)
    return dataset


JOBS = {
    "apply": lambda ds, new: wkwdask.apply(np.copy, ds / "seg" / "1", new),
    "rechunk": lambda ds, new: wkwdask.rechunk(ds / "seg" / "1", new, block_len=4),
    "segment": lambda ds, new: wkwdask.segment(np.copy, ds / "seg" / "1", new, halo=1),
    "components": lambda ds, new: wkwdask.connected_components(ds / "seg" / "1", new),
    "remap": lambda ds, new: wkwdask.remap(ds / "seg" / "1", new, {40: 77}, default="keep"),
    "dust": lambda ds, new: wkwdask.remove_dust(ds / "seg" / "1", new, min_voxels=2),
    "renumber": lambda ds, new: wkwdask.renumber(ds / "seg" / "1", new),
}
EXPECTED = {"segment": 8, "components": 8, "remap": 77, "renumber": 8}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", list(JOBS))
def test_jobs_record_the_largest_id(dataset, name):
    JOBS[name](without_largest_id(dataset), dataset / "new" / "1")
    assert largest(dataset, "new") == EXPECTED.get(name, 40)


def test_arrays_and_images_record_the_largest_id(dataset, tmp_path):
    assert largest(dataset) == 40
    np.save(tmp_path / "labels.npy", LABELS[:8])
    wkwdask.convert(
        tmp_path / "labels.npy",
        tmp_path / "made",
        voxel_size=(4, 4, 4),
        category="segmentation",
        layer="ids",
    )
    assert largest(tmp_path / "made", "ids") == 20
    wkwdask.to_wkw(np.full((8, 8, 8), 2**63, np.uint64), dataset / "wide" / "1", **OPTIONS)
    assert largest(dataset, "wide") == 2**63
    wkwdask.to_wkw(np.ones((8, 8, 8), np.uint8), dataset / "em" / "1", **OPTIONS)
    assert largest(dataset, "em") is None
    wkwdask.create(dataset / "empty" / "1", ((0, 0, 0), (8, 8, 8)), "uint32", **OPTIONS)
    assert largest(dataset, "empty") is None


def test_a_larger_recorded_id_is_kept_until_all_voxels_are_replaced(dataset):
    opened = wkwdask.open_dataset(dataset).set_largest_segment_id("seg", 1000)
    wkwdask.compress(dataset / "seg", level=1)
    wkwdask.build_pyramid(dataset, "seg", mags=[2])
    wkwdask.to_wkw(LABELS[::4, ::4, ::4] * 0 + 3, dataset / "seg" / "4", **OPTIONS)
    wkwdask.to_wkw(LABELS + 100, dataset / "seg" / "1", region=((0, 0, 0), (16, 16, 16)))
    assert largest(dataset) == 1000
    wkwdask.to_wkw(LABELS * 0, dataset / "seg" / "1", existing="overwrite", **OPTIONS)
    assert largest(dataset) == 0
    opened.add_layer(
        "reserved", "segmentation", "uint32", (0, 0, 0, 16, 16, 16), largest_segment_id=500
    )
    wkwdask.to_wkw(LABELS, dataset / "reserved" / "1", **OPTIONS)
    assert largest(dataset, "reserved") == 500


def test_a_smaller_recorded_id_is_raised(dataset):
    wkwdask.to_wkw(LABELS[:8, :8, :8] + 90, dataset / "seg" / "1", region=((0, 0, 0), (8, 8, 8)))
    assert largest(dataset) == 95
    wkwdask.to_wkw(LABELS[:8, :8, :8] + 900, dataset / "seg" / "2", **OPTIONS)
    assert largest(dataset) == 905
    wkwdask.to_wkw(
        LABELS[:8, :8, :8] + 9000,
        without_largest_id(dataset) / "seg" / "1",
        region=((0, 0, 0), (8, 8, 8)),
    )
    assert largest(dataset) is None  # the rest of the layer is unknown


def test_relabel_uses_the_recorded_ids(dataset, tmp_path):
    for number, name in enumerate(("first", "second")):
        wkwdask.to_wkw(
            LABELS[:8, :8, :8] * 0 + 41 + number, tmp_path / name / "1", block_len=8, file_len=1
        )
    shutil.copytree(tmp_path / "first", tmp_path / "third")
    ended = run_here(
        "merge",
        dataset,
        tmp_path / "first",
        tmp_path / "second",
        tmp_path / "third",
        tmp_path / "merged",
        "--layer",
        "seg",
        "--relabel",
    )
    assert ended.returncode == 0, ended.stderr
    assert largest(tmp_path / "merged") == 44
