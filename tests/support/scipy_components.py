"""Connected components as scipy finds them in a whole array."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

RANK = {6: 1, 18: 2, 26: 3}


def of_mask(mask, connectivity):
    """What scipy finds in a whole array."""
    return ndimage.label(mask, ndimage.generate_binary_structure(3, RANK[connectivity]))[0]


def of_labels(labels, connectivity):
    """Components of equal labels, one scipy call for each label."""
    out, count = np.zeros(labels.shape, np.int64), 0
    for value in np.unique(labels[labels != 0]):
        found = of_mask(labels == value, connectivity)
        out += np.where(found > 0, found + count, 0)
        count += found.max()
    return out


def assert_same_components(found, expected):
    """The same voxels together, whatever the ids, and ids 1 to n."""
    pairs = np.unique(np.stack([found.ravel(), expected.ravel()]).astype(np.int64), axis=1)
    assert len(np.unique(pairs[0])) == len(np.unique(pairs[1])) == pairs.shape[1]
    assert ((found == 0) == (expected == 0)).all()
    np.testing.assert_array_equal(np.unique(found[found > 0]), np.arange(1, found.max() + 1))
    np.testing.assert_array_equal(np.sort(np.bincount(found.ravel().astype(np.int64))[1:]), np.sort(np.unique(expected[expected > 0], return_counts=True)[1]))
