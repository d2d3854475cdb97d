"""Layers of datasets that are stored as N5 or as a precomputed volume: the webknossos library
reads what jobs write into them, and cloud-volume the volume."""

from __future__ import annotations

import json

import numpy as np
import pytest

import wkwdask
from wkwdask.model.placement import plain_name

pytestmark = [
    pytest.mark.needs("webknossos"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:webknossos"),
    pytest.mark.filterwarnings("ignore::UserWarning:cluster_tools"),
]

CORNER, SIZE = (6, 4, 2), (38, 20, 14)
EM = np.random.default_rng(1).integers(1, 255, (1, *SIZE)).astype("uint8")


@pytest.fixture(params=["n5", "neuroglancerPrecomputed"])
def layer(request, tmp_path):
    dataset = wkwdask.create_dataset(tmp_path / "ds", (4, 4, 8))
    dataset.add_layer("em", "color", "uint8", (*CORNER, *SIZE), data_format=request.param)
    wkwdask.save(EM, tmp_path / "ds" / "em" / "1", offset=CORNER, chunk_shape=(8, 8, 8))
    return tmp_path / "ds" / "em"


def read_by_webknossos(layer):
    import webknossos

    opened = webknossos.Dataset.open(layer.parent).get_layer(layer.name)
    return {mag.to_layer_name(): view.read() for mag, view in opened.mags.items()}


def entry_of(layer):
    document = json.loads((layer.parent / "datasource-properties.json").read_text())
    return next(each for each in document["dataLayers"] if each["name"] == layer.name)


JOBS = {
    "save": lambda layer: None,
    "pyramid": lambda layer: wkwdask.build_pyramid(layer, mags=["2-2-1", "4-4-2"]),
    "region": lambda layer: wkwdask.write(
        layer / "1", None, EM[:, :4, :5, :6], region=((9, 9, 9), (13, 14, 15))
    ),
    "rechunk": lambda layer: wkwdask.rechunk(layer, chunk_shape=(16, 16, 16)),
    "apply": lambda layer: wkwdask.apply(np.invert, layer / "1", layer / "1", existing="overwrite"),
    "copy": lambda layer: wkwdask.copy(layer, f"{layer}-copy"),
}


@pytest.mark.parametrize("job", JOBS)
def test_webknossos_reads_what_jobs_write(layer, job):
    JOBS[job](layer)
    assert wkwdask.verify(layer.parent).is_sound
    for name in ("em", "em-copy") if job == "copy" else ("em",):
        read = read_by_webknossos(layer.parent / name)
        folders = [mag["path"].rpartition("/")[2] for mag in entry_of(layer)["mags"]]
        assert list(read) == list(map(plain_name, folders))
        for mag, voxels in read.items():  # opens the folder that the dataset lists
            np.testing.assert_array_equal(
                wkwdask.open(layer.parent / name / mag), voxels.reshape(1, *voxels.shape[-3:])
            )


def test_the_info_of_a_volume_lists_what_the_dataset_lists(layer):
    wkwdask.build_pyramid(layer, mags=["2-2-1", "4-4-2"])
    wkwdask.rm(layer / "4-4-2")
    entry = entry_of(layer)
    paths = [mag["path"] for mag in entry["mags"]]
    assert paths == ["./em/1", "./em/2-2-1"]
    if entry["dataFormat"] == "n5":
        assert entry["mags"][0]["axisOrder"] == {"x": 0, "y": 1, "z": 2}
        return
    assert "axisOrder" not in entry["mags"][0]
    info = json.loads((layer / "info").read_text())
    assert [f"./em/{scale['key']}" for scale in info["scales"]] == paths
    assert [scale["resolution"] for scale in info["scales"]] == [[4, 4, 8], [8, 8, 8]]
    cloudvolume = pytest.importorskip("cloudvolume", reason="the oracle cloud-volume")
    for mip, mag in enumerate(("1", "2-2-1")):
        volume = cloudvolume.CloudVolume(f"file://{layer}", mip=mip, progress=False)
        np.testing.assert_array_equal(
            np.asarray(volume[:, :, :]).transpose(3, 0, 1, 2), wkwdask.open(layer / mag)
        )
    wkwdask.rm(layer)
    assert not layer.exists()


def test_levels_of_an_n5_group_keep_their_numbers(tmp_path):
    """The group lists the new level, too."""
    dataset = wkwdask.create_dataset(tmp_path / "ds", (4, 4, 8))
    layer = tmp_path / "ds" / "em"
    wkwdask.to_n5(EM, f"n5://{layer}/s0", voxel_size=(4, 4, 8), chunk_shape=(8, 8, 8))
    path = tmp_path / "ds" / "datasource-properties.json"
    dataset.add_layer("em", "color", "uint8", (0, 0, 0, *SIZE), data_format="n5")
    document = json.loads(path.read_text())
    document["dataLayers"][0]["mags"] = [
        {"mag": [1, 1, 1], "path": "./em/s0", "axisOrder": {"x": 0, "y": 1, "z": 2}}
    ]
    path.write_text(json.dumps(document))
    wkwdask.build_pyramid(layer, mags=["2-2-1"])
    assert [mag["path"] for mag in entry_of(layer)["mags"]] == ["./em/s0", "./em/s1"]
    half = wkwdask.open(layer, mag="2-2-1")
    np.testing.assert_array_equal(half, wkwdask.open(f"n5://{layer}", mag="2-2-1"))
    np.testing.assert_array_equal(read_by_webknossos(layer)["2-2-1"].reshape(half.shape), half)
    wkwdask.rm(layer / "s1")
    assert [mag["path"] for mag in entry_of(layer)["mags"]] == ["./em/s0"]
    assert "2-2-1" not in [str(each.mag) for each in wkwdask.info(f"n5://{layer}").scales]
