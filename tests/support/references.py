"""Results of numpy and scipy on whole arrays: mapped ids and connected components."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

RANK = {6: 1, 18: 2, 26: 3}


def mapped(array, pairs, default="keep"):
    """Replace ids."""
    out = array.astype(np.uint64) if default == "keep" else np.zeros(array.shape, np.uint64)
    for old, new in pairs:
        out[array == old] = new
    return out


def of_mask(mask, connectivity):
    """Label the components of a mask."""
    return ndimage.label(mask, ndimage.generate_binary_structure(3, RANK[connectivity]))[0]


def of_labels(labels, connectivity):
    """Label the components of equal labels, by one call of scipy for each label."""
    out, count = np.zeros(labels.shape, np.int64), 0
    for value in np.unique(labels[labels != 0]):
        found = of_mask(labels == value, connectivity)
        out += np.where(found > 0, found + count, 0)
        count += found.max()
    return out


def assert_same_components(found, expected):
    """Check that both group the same voxels, whose ids may differ, and that the ids found are 1 to
    n."""
    pairs = np.unique(np.stack([found.ravel(), expected.ravel()]).astype(np.int64), axis=1)
    assert len(np.unique(pairs[0])) == len(np.unique(pairs[1])) == pairs.shape[1]
    assert ((found == 0) == (expected == 0)).all()
    np.testing.assert_array_equal(np.unique(found[found > 0]), np.arange(1, found.max() + 1))
    np.testing.assert_array_equal(
        np.sort(np.bincount(found.ravel().astype(np.int64))[1:]),
        np.sort(np.unique(expected[expected > 0], return_counts=True)[1]),
    )
