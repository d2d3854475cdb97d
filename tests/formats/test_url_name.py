"""Paths that look a little like the URL of a format are paths."""

from __future__ import annotations

import numpy as np
import pytest

import wkwdask


@pytest.mark.parametrize("name", ["n5", "neuroglancer-precomputed", "zarr"])
def test_a_dataset_that_is_called_like_a_format(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    wkwdask.create_dataset(name, voxel_size=(4, 4, 40))
    wkwdask.to_wkw(np.ones((1, 8, 8, 8), np.uint8), f"{name}/color/1")
    assert int(wkwdask.open(name).sum().compute()) == 512
