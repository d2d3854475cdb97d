"""The loop that maps ids gives what numpy gives, for all sizes of types."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.references import mapped

from wkwdask.kernels.labels.values import map_ids

# Types of ids, of values and of what is made of them: every size of each, and sizes that grow and
# shrink. Each triple of sizes takes time to compile.
LOOPS = [
    ("u1", "u1", "u2"),
    ("u2", "u8", "u4"),
    ("u4", "u8", "u1"),
    ("u4", "u8", "u4"),
    ("i4", "i8", "u8"),
    ("u8", "u8", "i4"),
    ("i8", "u2", "u8"),
    ("u8", "u4", "u4"),
]


@given(st.sampled_from(LOOPS), st.booleans(), st.booleans(), st.integers(0, 99))
def test_the_loop_equals_numpy(dtypes, keeps, is_dense, seed):
    dtype, value_dtype, out_dtype = dtypes
    random = np.random.default_rng(seed)
    most = min(int(np.iinfo(dtype).max), int(np.iinfo(out_dtype).max))
    near = np.unique(
        np.array(
            [*random.integers(0, min(most, 20_000) + 1, 40).tolist(), 0, most - 1, most], np.uint64
        )
    )
    ids = np.repeat(random.choice(near, 500), random.integers(1, 5, 500)).astype(dtype)
    if is_dense:
        keys, values = None, random.integers(0, 100, 50).astype(value_dtype)
        pairs = enumerate(values.tolist())
    else:
        keys = np.unique(random.choice(near, 15))
        values = random.integers(0, 100, len(keys)).astype(value_dtype)
        pairs = zip(keys.tolist(), values.tolist(), strict=True)
    out = np.empty(ids.shape, out_dtype)
    assert map_ids(ids, keys, values, out, keeps=keeps) is None
    np.testing.assert_array_equal(
        out, mapped(ids, list(pairs), "keep" if keeps else "zero").astype(out_dtype)
    )


def test_negative_ids_are_named_by_nobody():
    ids = np.array([-1, 3, -(2**31)], np.int32)
    keys, values = np.array([3, 2**31, 2**32 - 1], np.uint64), np.array([5, 6, 7], np.uint64)
    out = np.empty(3, np.int32)
    assert map_ids(ids, keys, values, out, keeps=True) is None
    assert out.tolist() == [-1, 5, -(2**31)]
    wide = np.empty(3, np.uint32)
    assert map_ids(ids, keys, values, wide, keeps=True) == -1
    assert map_ids(ids, keys, values, wide, keeps=False) is None
    assert wide.tolist() == [0, 5, 0]
