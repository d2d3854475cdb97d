"""URLs say which format they are of, and paths that look a little like it do not."""

from __future__ import annotations

import numpy as np
import pytest

import wkwdask
from wkwdask.formats.n5 import layer as n5_layer
from wkwdask.formats.precomputed import layer as precomputed_layer
from wkwdask.formats.zarr import layer as zarr_layer


@pytest.mark.parametrize(
    ("url", "is_named"),
    [
        ("n5://a", "n5"), ("a|n5:", "n5"), ("a|n5", "n5"), ("precomputed://a", "precomputed"), ("a|neuroglancer-precomputed:", "precomputed"),
        ("zarr://a", "zarr"), ("zarr2://a", "zarr"), ("a|zarr3:", "zarr"),
        ("n5", ""), ("n5:", ""), ("neuroglancer-precomputed", ""), ("zarr", ""), ("a|n5:x", ""), ("a|", ""), (3, ""), (None, ""),
    ],
)  # fmt: skip
def test_which_format(url, is_named):
    found = {"n5": n5_layer.is_named_n5, "precomputed": precomputed_layer.is_named_precomputed, "zarr": zarr_layer.is_named_zarr}
    assert [name for name, tells in found.items() if tells(url)] == ([is_named] if is_named else [])


@pytest.mark.parametrize("name", ["n5", "neuroglancer-precomputed", "zarr"])
def test_a_dataset_that_is_called_like_a_format(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    wkwdask.create_dataset(name, voxel_size=(4, 4, 40))
    wkwdask.to_wkw(np.ones((1, 8, 8, 8), np.uint8), f"{name}/color/1")
    assert int(wkwdask.open(name).sum().compute()) == 512
