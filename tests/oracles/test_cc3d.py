"""Oracle: cc3d (connected-components-3d) 4.1.1, whose ``statistics`` are those of an array in
memory; its centroids are means of indices, not of centers.

Its memory grows with the largest label: real labels are renumbered by fastremap first.
"""

from __future__ import annotations

import numpy as np
import pytest

import wkwdask

cc3d = pytest.importorskip("cc3d", reason="the oracle connected-components-3d is not installed")
fastremap = pytest.importorskip(
    "fastremap", reason="fastremap, which comes with connected-components-3d, is not installed"
)


def test_label_statistics_of_real_neurons(shared_data):
    labels, names = fastremap.renumber(
        wkwdask.read(shared_data / "connectomics_seg")[0], preserve_zero=True
    )
    theirs = cc3d.statistics(labels)
    ours = wkwdask.label_statistics(shared_data / "connectomics_seg", ignore_zero=False)
    names[0] = 0
    of_number = {number: name for name, number in names.items()}
    order = sorted(range(len(theirs["voxel_counts"])), key=of_number.__getitem__)
    assert len(ours) == len(order) == 2524
    assert ours.index.tolist() == [of_number[n] for n in order]
    np.testing.assert_array_equal(ours.voxels, theirs["voxel_counts"][order])
    for axis, name in enumerate("xyz"):
        boxes = [theirs["bounding_boxes"][n][axis] for n in order]
        np.testing.assert_array_equal(ours[f"min_{name}"], [box.start for box in boxes])
        np.testing.assert_array_equal(ours[f"max_{name}"], [box.stop for box in boxes])
        np.testing.assert_allclose(
            ours[f"centroid_{name}"] - 0.5, theirs["centroids"][order, axis], rtol=1e-9
        )
