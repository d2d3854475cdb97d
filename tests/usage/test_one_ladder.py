"""A layer has one ladder of mags, since WEBKNOSSOS identifies mags by their largest factor."""

from __future__ import annotations

import numpy as np
import pytest

import wkwdask


@pytest.fixture
def dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 40))
    wkwdask.to_wkw(
        np.ones((40, 40, 40), np.uint8), tmp_path / "ds/color/1", block_len=8, file_len=2
    )
    wkwdask.build_pyramid(tmp_path / "ds", "color", mags=["2-2-1", "4-4-1"])
    return tmp_path / "ds"


def mags(dataset):
    return [str(mag) for mag in wkwdask.open_dataset(dataset)["color"].mags]


def test_a_second_ladder_is_rejected(dataset):
    voxels = np.ones((20, 20, 20), np.uint8)
    np.save(dataset.parent / "two.npy", voxels)
    for call in (
        lambda: wkwdask.build_pyramid(dataset, "color", mags=["2", "4"]),
        lambda: wkwdask.build_pyramid(dataset, "color", mags=["2", "4"], existing="overwrite"),
        lambda: wkwdask.to_wkw(voxels, dataset / "color/2", block_len=8, file_len=2),
        lambda: wkwdask.convert(dataset.parent / "two.npy", dataset / "color/2", axes="xyz"),
    ):
        with pytest.raises(
            ValueError,
            match=r"ds/color: mag 2 would lie beside mag 2-2-1: a layer has one ladder of mags",
        ):
            call()
    assert mags(dataset) == ["1", "2-2-1", "4-4-1"]
    assert sorted(
        path.name for path in (dataset / "color").iterdir() if not path.name.startswith(".")
    ) == ["1", "2-2-1", "4-4-1"]


def test_the_existing_ladder_can_be_rebuilt_and_extended(dataset):
    wkwdask.build_pyramid(dataset, "color", mags=["2-2-1", "4-4-1", "8-8-2"], existing="overwrite")
    assert mags(dataset) == ["1", "2-2-1", "4-4-1", "8-8-2"]
