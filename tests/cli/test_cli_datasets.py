"""Commands that create datasets and edit their JSON."""

from __future__ import annotations

import json
import os
import pickle
import re

import numpy as np
import pytest
from support.commands import run_here

import wkwdask

OPTIONS = {"block_len": 8, "file_len": 2, "compression": "lz4"}
IDS = np.arange(20 * 18 * 16, dtype=np.uint32).reshape(20, 18, 16)


@pytest.fixture
def dataset(tmp_path):
    created = wkwdask.create_dataset(tmp_path / "ds", (4, 4, 35))
    wkwdask.write(f"{created.path}/seg/1", (0, 0, 0), IDS, **OPTIONS)
    return created.refreshed()


def call(*arguments, ok=True):
    result = run_here(*arguments)
    assert (result.returncode == 0) is ok, result.output
    return result.stdout if ok else result.stderr.rstrip()


def test_the_life_of_a_dataset(tmp_path, dataset):
    path = tmp_path / "new"
    assert call(
        "dataset", "create", path, "0.004,0.004,0.035", "--unit", "um", "--name", "cells"
    ).startswith(f"Dataset 'cells' at {path}, voxel size 0.004 x 0.004")
    call("dataset", "create", path, "4,4,35", "--keep")
    assert call("dataset", "create", path, "4,4,35", ok=False).endswith("--keep keeps it")
    wkwdask.write(path / "raw" / "1", (0, 0, 0), IDS.astype(np.uint8), **OPTIONS)
    assert "'em': color, uint8" in call("dataset", "rename-layer", path, "raw", "em")
    assert "(1, 2, 3) + (4, 5, 6)" in call("dataset", "bounding-box", path, "em", "1,2,3,4,5,6")
    assert "voxel size 1 x 1 x 2.5 nanometer" in call("dataset", "voxel-size", path, "1,1,2.5")
    assert "mags none" in call("dataset", "remove-mag", path, "em", "1")
    assert "mags 1" in call("dataset", "add-mags", path, "em")
    assert "'em'" not in call("dataset", "remove-layer", path, "em")
    assert "'em': segmentation, uint8" in call(
        "dataset",
        "add-layer",
        path,
        "em",
        "--category",
        "segmentation",
        "--bounding-box",
        "0,0,0,20,18,16",
    )
    assert "voxels are" in call("dataset", "add-ref", path, f"{dataset.path}/seg", ok=False)
    assert f"mags 1 (at {dataset.path}/seg/1)" in call(
        "dataset",
        "add-ref",
        path,
        f"{dataset.path}/seg",
        "--name",
        "cells",
        "--relative",
        "--any-voxel-size",
    )
    shown = call("info", path)
    assert f"elsewhere: mag 1 of cells: {dataset.path}/seg/1" in shown
    assert "remove-layer removes the layer from the JSON" in call(
        "dataset", "remove-layer", path, "cells", "--delete-files", ok=False
    )
    call("dataset", "remove-layer", path, "cells")
    call("dataset", "remove-layer", path, "em", "--delete-files")
    assert sorted(os.listdir(path)) == ["datasource-properties.json"]
    np.testing.assert_array_equal(dataset["seg"].read()[0], IDS)


def test_largest_id(dataset):
    assert (
        call("dataset", "largest-id", dataset.path, "seg", "--dry-run")
        == f"largest id of seg: {IDS.max()}, in the JSON: {IDS.max()}\n"
    )
    dataset.set_largest_segment_id("seg", None)
    assert dataset.refreshed()["seg"].largest_segment_id is None
    call("dataset", "largest-id", dataset.path, "seg")
    assert dataset.refreshed()["seg"].largest_segment_id == IDS.max()
    call("dataset", "largest-id", dataset.path, "seg", "--id", 2**60)
    assert dataset.refreshed()["seg"].largest_segment_id == 2**60


def test_info_shows_units_formats_and_problems(dataset):
    dataset.set_voxel_size((0.004, 0.004, 0.035), "micrometer").add_layer(
        "other", "color", "uint8", (0, 0, 0, 1, 1, 1)
    ).add_layer("odd", "color", "uint8", (0,) * 6)
    path = os.path.join(dataset.path, "datasource-properties.json")
    with open(path) as file:
        document = json.load(file)
    document["dataLayers"][1]["dataFormat"] = "zarr3"
    document["dataLayers"][2]["category"] = "mask"
    with open(path, "w") as file:
        json.dump(document, file)
    shown = call("info", dataset.path)
    assert "voxel size 0.004 x 0.004 x 0.035 micrometer (4 x 4 x 35 nm)" in shown
    assert "uint8 (zarr3)" in shown
    assert "cannot be used" in shown
    assert "dataLayers[2].category" in shown
    found = json.loads(call("info", dataset.path, "--json"))
    assert (found["voxel_size_nm"], found["unit"]) == ([4, 4, 35], "micrometer")
    assert "dataLayers[2].category" in found["layers"][2]["problem"]


def test_pyramids_of_all_layers_leave_out_one_without_mags(dataset):
    dataset.add_layer("empty", "segmentation", "uint8", (0, 0, 0, 20, 18, 16))
    done = run_here("pyramid", dataset.path, "--all-layers", "--coarsest", "2-2-1")
    assert done.returncode == 3
    assert re.search(r"left out: .*no mag of layer empty has data files", done.stderr)
    layers = {layer.name: layer for layer in wkwdask.info(dataset.path).layers}
    assert [mag.mag.name for mag in layers["seg"].mags] == ["1", "2-2-1"]
    assert layers["empty"].mags == ()


def test_each_command_has_an_example():
    names = [
        line.split()[0]
        for line in call("dataset", "--help")
        .partition("Commands:\n")[2]
        .partition("\n\n")[0]
        .splitlines()
        if line.startswith("  ") and line[2] != " "
    ]
    assert len(names) > 9
    for name in names:
        assert f"wkwdask dataset {name} " in call("dataset", name, "--help")


def test_records_travel(dataset):
    """Between processes, with the numbers of the JSON as they were written."""
    dataset.set_voxel_size((11.24, 11.24, 28))
    opened = dataset.refreshed()
    unpickled = pickle.loads(pickle.dumps(opened))
    assert unpickled == opened
    assert unpickled.document["scale"]["factor"][2].text == "28.0"
    np.testing.assert_array_equal(unpickled["seg"][1].read()[0], IDS)
