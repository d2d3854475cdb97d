"""Oracles: cc3d (connected-components-3d) 4.1.1 for labels that touch, and cells whose truth is
known, segmented by the watershed of scikit-image."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from faults.drivers import without_flushing
from oracles.test_segmentations import assert_same_components
from support.segmenting import cells, smooth_noise, splits_and_merges, watershed_of_cells

import wkwdask

cc3d = pytest.importorskip("cc3d", reason="the oracle connected-components-3d is not installed")
BLOCKS = (7, 16, 21, 32, 40, (64, 8, 8), (8, 64, 24), (100, 100, 5), (13, 17, 19), 200)
OFFSET, SHAPE = (13, 8, 5), (60, 47, 33)
TYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("connectivity", [6, 18, 26])
@pytest.mark.parametrize(("number", "chunks"), list(enumerate(BLOCKS)))
def test_labels_that_touch_equal_cc3d(tmp_path, number, chunks, connectivity):
    """All types in turn, and random boxes: without a halo, since that reaches beyond ``where``."""
    random = np.random.default_rng(number)
    dense = random.random(SHAPE) < (0.1, 0.3, 0.6)[number % 3]
    voxels = np.where(dense if number % 2 else smooth_noise(number, SHAPE) > 130, 7, 0)
    voxels = voxels.astype(TYPES[number % len(TYPES)])
    wkwdask.write(tmp_path / "em" / "1", OFFSET, voxels, block_len=16, file_len=2)
    low, high, halo = [0, 0, 0], list(SHAPE), number % 4
    if not halo:
        low = [int(random.integers(0, n // 3)) for n in SHAPE]
        high = [int(random.integers(2 * n // 3, n + 1)) for n in SHAPE]
    where = np.add([low, high], OFFSET).tolist()
    with dask.config.set(scheduler="synchronous"), without_flushing():
        wkwdask.segment(
            lambda em: cc3d.connected_components(
                (em > 0).astype(np.uint8), connectivity=connectivity
            ),
            tmp_path / "em" / "1",
            tmp_path / "cells" / "1",
            halo=halo,
            chunks=chunks,
            match="touch",
            connectivity=connectivity,
            where=where,
        )
    part = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    expected, count = cc3d.connected_components(
        (voxels[part] > 0).astype(np.uint8), connectivity=connectivity, return_N=True
    )
    found = wkwdask.read(tmp_path / "cells" / "1")[0]
    assert_same_components(found[part], expected, count)
    assert np.count_nonzero(found) == np.count_nonzero(expected)


# splits and merges against the watershed of the whole volume of 400 cells
CELLS = [
    ("ellipsoids", 32, 4, (1, 2)),  # a halo far below the diameter
    ("ellipsoids", 48, 8, (0, 0)),
    ("ellipsoids", 64, 16, (0, 0)),
    ("voronoi", 48, 8, (1, 0)),
    ("voronoi", 80, 16, (0, 0)),
]


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """Images of cells, and their watersheds."""
    pytest.importorskip("skimage", reason="scikit-image is not installed")
    found = {}
    for kind in ("ellipsoids", "voronoi"):
        _, image = cells(kind)
        url = tmp_path_factory.mktemp(kind) / "em" / "1"
        wkwdask.write(url, (0, 0, 0), image, file_len=2)
        found[kind] = url, watershed_of_cells(image)
    return found


@pytest.mark.one_in(2)
@pytest.mark.long
@pytest.mark.parametrize(("kind", "chunks", "halo", "expected"), CELLS)
def test_splits_and_merges_of_cells(volumes, tmp_path, kind, chunks, halo, expected):
    url, whole = volumes[kind]
    wkwdask.segment(watershed_of_cells, url, tmp_path / "cells" / "1", halo=halo, chunks=chunks)
    found = wkwdask.read(tmp_path / "cells" / "1")[0]
    assert splits_and_merges(whole, found) == expected
