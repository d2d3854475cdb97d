"""What stands beside a scale in a precomputed volume, in its ``info`` and in its folders, when
scales are made or stored anew."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from faults.trees import contents

import wkwdask
from wkwdask.errors import ExistsError, ResumeError, UnsupportedError

VOXELS = np.random.default_rng(0).integers(1, 9, (40, 30, 20)).astype(np.uint32)


@pytest.fixture
def volume(tmp_path):
    wkwdask.to_precomputed(
        VOXELS, tmp_path / "v", voxel_size=(4, 4, 40), chunk_shape=(16, 16, 16), offset=(-3, 0, 5)
    )
    return tmp_path / "v"


def change(folder, edit):
    """Edit ``info`` as its owner would."""
    document = json.loads((folder / "info").read_text())
    edit(document, document["scales"])
    (folder / "info").write_text(json.dumps(document))
    return document


def info_of(folder):
    return json.loads((folder / "info").read_text())


def read(folder, **options):
    return wkwdask.read(folder, **options)[0]


def test_meshes_and_fields_stay(volume):
    def edit(document, scales):
        document |= {
            "mesh": "mesh",
            "skeletons": "skeletons",
            "segment_properties": "names",
            "comment": {"by": None},
        }
        scales[0] |= {"rois": [[0, 0, 0, 9, 9, 9]], "note": 1.5}

    before = change(volume, edit)
    for name in ("mesh", "skeletons", "names"):
        (volume / name).mkdir()
        (volume / name / "info").write_text('{"@type": "neuroglancer_legacy_mesh"}')
    beside = {
        name: data
        for name, data in contents(volume).items()
        if not name.startswith(("4_4_40", "info"))
    }
    wkwdask.build_pyramid(volume, mags=["2", "4"])
    wkwdask.rechunk(volume, shard_shape=True, chunk_shape=(8, 8, 8))
    after = info_of(volume)
    assert {name: value for name, value in after.items() if name != "scales"} == {
        name: value for name, value in before.items() if name != "scales"
    }
    assert [(scale.get("rois"), scale.get("note")) for scale in after["scales"]] == [
        ([[0, 0, 0, 9, 9, 9]], 1.5),
        (None, None),
        (None, None),
    ]
    assert {name: data for name, data in contents(volume).items() if name in beside} == beside
    np.testing.assert_array_equal(read(volume, mag="1"), VOXELS)


@pytest.mark.parametrize(
    "job",
    [
        lambda folder: wkwdask.rechunk(folder, shard_shape=True),
        lambda folder: wkwdask.to_precomputed(VOXELS, folder, existing="overwrite"),
    ],
)
def test_a_folder_that_holds_more_than_a_scale(volume, job):
    (volume / "4_4_40" / "mesh").mkdir()
    before = contents(volume)
    with pytest.raises(
        ExistsError, match=r"contains other files than a precomputed scale \(.*/4_4_40/mesh\)"
    ):
        job(volume)
    assert contents(volume) == before


@pytest.mark.parametrize("key", ["4_4_40", "./4_4_40", "4_4_40/", "../v/4_4_40"])
def test_two_scales_in_one_folder(volume, key):
    change(
        volume, lambda _, scales: scales.append({**scales[0], "key": key, "resolution": [8, 8, 40]})
    )
    before = contents(volume)
    for job in (
        lambda: wkwdask.rechunk(volume, shard_shape=True),
        lambda: wkwdask.rechunk(volume, shard_shape=True, mags=["2-2-1"]),
        lambda: wkwdask.to_precomputed(VOXELS, volume, existing="overwrite"),
        lambda: wkwdask.build_pyramid(volume, mags=["2-2-1"], existing="overwrite"),
    ):
        with pytest.raises(
            UnsupportedError,
            match=r"info: scales\[0\] \('4_4_40'\) and scales\[1\] .* use the folder of scale",
        ):
            job()
    assert contents(volume) == before
    for mag in ("1", "2-2-1"):
        np.testing.assert_array_equal(read(volume, mag=mag), VOXELS)


def test_a_new_scale_in_the_folder_of_another(volume):
    change(
        volume,
        lambda _, scales: scales.append(
            {**scales[0], "key": "x/../8_8_40", "resolution": [12, 12, 40]}
        ),
    )
    with pytest.raises(
        UnsupportedError, match=r"scales\[1\] \('x/../8_8_40'\) uses the folder of scale '8_8_40'"
    ):
        wkwdask.build_pyramid(volume, mags=["2-2-1"])


def test_a_scale_below_another(volume):
    shutil.copytree(volume / "4_4_40", volume / "4_4_40" / "sub")
    change(
        volume,
        lambda _, scales: scales.append(
            {**scales[0], "key": "4_4_40/sub", "resolution": [8, 8, 40]}
        ),
    )
    with pytest.raises(ExistsError, match="contains other files than a precomputed scale"):
        wkwdask.rechunk(volume, shard_shape=True, mags=["1"])
    wkwdask.rechunk(volume, shard_shape=True, mags=["2-2-1"])
    for mag in ("1", "2-2-1"):
        np.testing.assert_array_equal(read(volume, mag=mag), VOXELS)


def test_a_locked_scale(volume):
    """As cloud-volume locks them."""
    change(volume, lambda _, scales: scales[0].update(locked=True))
    before = contents(volume)
    for job in (
        lambda: wkwdask.rechunk(volume, shard_shape=True),
        lambda: wkwdask.to_precomputed(VOXELS, volume, existing="overwrite"),
    ):
        with pytest.raises(ExistsError, match="scale '4_4_40' is locked"):
            job()
    assert contents(volume) == before
    wkwdask.build_pyramid(volume, mags=["2"])
    assert [scale.get("locked") for scale in info_of(volume)["scales"]] == [True, None]


def test_scales_of_a_hidden_one_are_seen(volume):
    change(volume, lambda _, scales: scales[0].update(hidden=True))
    wkwdask.build_pyramid(volume, mags=["2"])
    wkwdask.rechunk(volume, shard_shape=True)
    assert [scale.get("hidden") for scale in info_of(volume)["scales"]] == [True, None]


def test_several_chunk_sizes(volume):
    wkwdask.to_precomputed(
        VOXELS,
        volume.parent / "flat",
        voxel_size=(4, 4, 40),
        chunk_shape=(40, 30, 1),
        offset=(-3, 0, 5),
    )
    for path in (volume.parent / "flat" / "4_4_40").iterdir():
        if not path.name.startswith("."):
            shutil.copy(path, volume / "4_4_40")
    change(volume, lambda _, scales: scales[0]["chunk_sizes"].append([40, 30, 1]))
    before = contents(volume)
    assert "nothing to do" in wkwdask.rechunk(volume).note
    assert contents(volume) == before
    np.testing.assert_array_equal(wkwdask.open(volume, chunk_size=(40, 30, 1)).compute()[0], VOXELS)
    wkwdask.rechunk(volume, chunk_shape=(16, 16, 16))
    assert info_of(volume)["scales"][0]["chunk_sizes"] == [[16, 16, 16]]
    assert not (volume / "4_4_40" / "-3-37_0-30_5-6").exists()
    np.testing.assert_array_equal(read(volume), VOXELS)


def test_a_source_that_has_changed(volume):
    wkwdask.build_pyramid(volume, mags=["2"])
    wkwdask.to_precomputed(
        VOXELS + 1, volume, chunk_shape=(16, 16, 16), offset=(-3, 0, 5), existing="overwrite"
    )
    with pytest.raises(ResumeError, match="files of the source have changed"):
        wkwdask.build_pyramid(volume, mags=["2"], existing="resume")


@pytest.mark.parametrize("protocol", ["nothing-that-is-known", "reference"])
def test_redirects_to_what_a_url_does_not_name(tmp_path, protocol):
    """The second driver wants to know more than a URL says."""
    (tmp_path / "info").write_text(f'{{"redirect": "{protocol}://host/v"}}')
    with pytest.raises(UnsupportedError, match=f"{protocol}://host/v: cannot be read"):
        wkwdask.open(tmp_path)
