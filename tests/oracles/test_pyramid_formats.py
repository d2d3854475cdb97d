"""Oracle: tensorstore 0.1.86 reads the levels of pyramids in OME-NGFF, N5 and precomputed, and its
``downsample`` makes the same of each level before."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from oracles.test_tensorstore import METHODS, random_voxels
from verbs.forms import IMAGES
from verbs.other_readers import read_by_tensorstore

import wkwdask

ts = pytest.importorskip("tensorstore", reason="the oracle tensorstore 0.1.86 is not installed")

DTYPES = ("uint8", "uint64", "int16", "float32", "uint32")
STEPS = {"2-2-1": (2, 2, 1), "4-4-2": (2, 2, 2), "4-8-8": (1, 2, 4)}
OFFSET = (5, 3, 7)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "form", [form for form in IMAGES if form.engine not in ("wkw", "toy")], ids=str
)
def test_each_level_is_what_tensorstore_makes_of_the_level_before(tmp_path, form, method):
    if form.needs is not None:
        pytest.importorskip(form.needs, reason=f"{form.needs} is not installed")
    dtype = DTYPES[(IMAGES.index(form) + list(METHODS).index(method)) % len(DTYPES)]
    array, url = random_voxels(dtype, (37, 29, 23), 1), form.url(str(tmp_path), "image")
    with dask.config.set(scheduler="synchronous"):
        form.save(array[np.newaxis], url, OFFSET)
        wkwdask.build_pyramid(url, mags=list(STEPS), method=method)
    finer, low = array, np.array(OFFSET)
    for mag, step in STEPS.items():
        reduced = ts.downsample(
            ts.array(finer)[ts.d[:].label["x", "y", "z"].translate_to[low.tolist()]],
            list(step),
            METHODS[method],
        )
        end = -(-(low + finer.shape) // step)
        low = low // step
        (ours,) = read_by_tensorstore(url, mag)
        assert ours.shape == tuple(end - low)
        # For nearest, tensorstore drops windows whose lowest voxel lies outside of the array.
        inside = tuple(
            slice(a - b, a - b + n)
            for a, b, n in zip(reduced.domain.origin, low, reduced.domain.shape, strict=True)
        )
        np.testing.assert_array_equal(
            ours[inside], reduced.read().result(), err_msg=f"{method} {mag}"
        )
        finer = np.ascontiguousarray(ours)
