"""Using records and arrays of a renamed layer is an error; they never return zeros or another
layer."""

from __future__ import annotations

import numpy as np
import pytest

import wkwdask

OPTIONS = {"block_len": 8, "file_len": 2}


@pytest.fixture
def dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    wkwdask.to_wkw(np.full((16, 16, 16), 3, np.uint32), tmp_path / "ds" / "seg" / "1", **OPTIONS)
    return wkwdask.open_dataset(tmp_path / "ds")


USES = {
    "layer.open": lambda layer: layer.open(),
    "layer.read": lambda layer: layer.read(),
    "layer.compute_largest_segment_id": lambda layer: layer.compute_largest_segment_id(),
    "mag.open": lambda layer: layer[1].open(),
    "mag.read": lambda layer: layer[1].read(),
}


@pytest.mark.parametrize("use", list(USES))
def test_a_record_of_a_renamed_layer_is_an_error(dataset, use):
    layer = dataset["seg"]
    renamed = dataset.rename_layer("seg", "cells")
    with pytest.raises(
        wkwdask.MissingError,
        match=(
            r"layer 'seg' was renamed, removed or replaced since this record was read; .* \(its "
            r"layers are cells\)"
        ),
    ):
        USES[use](layer)
    assert USES[use](renamed["cells"]) is not None


def test_another_layer_of_that_name_is_not_read(dataset):
    layer = dataset["seg"]
    dataset.rename_layer("seg", "cells")
    wkwdask.to_wkw(np.zeros((16, 16, 16), np.uint8), f"{dataset.path}/seg/2", **OPTIONS)
    for use in USES.values():
        with pytest.raises(wkwdask.MissingError, match="since this record was read"):
            use(layer)


def test_an_array_of_a_renamed_layer_is_an_error(dataset):
    array = dataset["seg"].open()
    dataset.rename_layer("seg", "cells")
    with pytest.raises(
        wkwdask.MissingError, match=r"seg/1/header\.wkw: not found: the mag is gone"
    ):
        array.compute()


def test_a_record_survives_other_edits(dataset):
    layer = dataset["seg"]
    wkwdask.build_pyramid(dataset.path, mags=[2])
    dataset.set_bounding_box("seg", (0, 0, 0, 8, 8, 8))
    assert layer.read(mag=2).max() == 3
    assert layer[1].read().shape == (1, 8, 8, 8)
