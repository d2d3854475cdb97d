"""Oracle: webknossos 4.3 merges the same annotation with its fallback layer, and wkw 1.1.24 reads
what was copied and merged."""

from __future__ import annotations

import subprocess
import sys
import warnings

import dask
import numpy as np
import pytest
from support.annotations import write_annotation

import wkwdask

wkw = pytest.importorskip("wkw", reason="the oracle wkw 1.1.24 is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    webknossos = pytest.importorskip("webknossos", reason="the oracle webknossos is not installed")

SHAPE = (160, 128, 96)
# in a separate process: it leaves files open
THEIRS = """
import sys
from webknossos import Annotation
if __name__ == "__main__":
    path, target, datasets = sys.argv[1:]
    Annotation.load(path).merge_fallback_layer(target, datasets)
"""


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    dataset = wkwdask.create_dataset(folder, (11.24, 11.24, 28))
    array = np.random.default_rng(0).integers(0, 9, SHAPE).astype(np.uint32)
    wkwdask.to_wkw(array, folder / "seg" / "1", file_len=2, category="segmentation")
    dataset.refreshed().set_largest_segment_id("seg", 8)
    return folder


def blocks(*indices):
    random = np.random.default_rng(1)
    return {index: random.integers(0, 40, (32, 32, 32)) for index in indices} | {
        (1, 1, 1): np.zeros((32, 32, 32), int)
    }


def test_merge_fallback(dataset, tmp_path):
    path = write_annotation(
        tmp_path / "annotation.zip", {"1": blocks((0, 0, 0), (4, 3, 2), (2, 0, 1)), "2-2-1": {}}
    )
    subprocess.run([sys.executable, "-c", THEIRS, path, tmp_path / "theirs", tmp_path], check=True)
    wkwdask.merge(dataset, path, tmp_path / "ours", file_len=4)
    theirs = webknossos.Dataset.open(tmp_path / "theirs").get_layer("seg").get_mag(1).read()
    with wkw.Dataset.open(str(tmp_path / "ours" / "seg" / "1")) as ours:
        # their box has grown to whole files
        np.testing.assert_array_equal(ours.read((0, 0, 0), theirs.shape[1:]), theirs)
    layer = webknossos.Dataset.open(tmp_path / "ours").get_layer("seg")
    assert layer.largest_segment_id == int(theirs.max())
    assert layer.bounding_box.size.to_tuple() == SHAPE


@pytest.mark.parametrize("translate", [(0, 0, 0), (64, 0, 128), (32, 96, 0), (5, 6, 7)])
@pytest.mark.parametrize("box", [None, (33, 20, 10, 100, 90, 70)])
def test_copies(dataset, tmp_path, translate, box):
    wkwdask.copy(dataset, tmp_path / "copy", translate=translate, bounding_box=box)
    with (
        wkw.Dataset.open(str(dataset / "seg" / "1")) as source,
        wkw.Dataset.open(str(tmp_path / "copy" / "seg" / "1")) as copy,
    ):
        corner, size = ((0, 0, 0), SHAPE) if box is None else (box[:3], box[3:])
        place = tuple(a + b for a, b in zip(corner, translate, strict=True))
        expected = np.zeros((1, *(a + n + 40 for a, n in zip(place, size, strict=True))), np.uint32)
        expected[(slice(None), *(slice(a, a + n) for a, n in zip(place, size, strict=True)))] = (
            source.read(corner, size)
        )
        np.testing.assert_array_equal(copy.read((0, 0, 0), expected.shape[1:]), expected)
