"""A mag outside any dataset: writing it warns, its box is kept, and ``voxel_size=`` creates a
dataset."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import wkwdask

ARRAY = np.random.default_rng(1).integers(1, 255, (50, 40, 30), np.uint8)
OFFSET = (100, 210, 320)
BOX = wkwdask.BoundingBox(OFFSET, ARRAY.shape)


@pytest.fixture
def mag(tmp_path):
    with pytest.warns(UserWarning, match=r"belongs to no dataset.*voxel_size=.*create_dataset"):
        wkwdask.to_wkw(ARRAY, tmp_path / "typo-dataset" / "color" / "1", offset=OFFSET)
    return tmp_path / "typo-dataset" / "color" / "1"


def check(url, array=ARRAY, box=BOX):
    np.testing.assert_array_equal(wkwdask.open(url).compute()[0], array)
    np.testing.assert_array_equal(wkwdask.read(url)[0], array)
    assert wkwdask.info(url).layers[0].mags[0].box == box


def test_the_box_is_kept(mag):
    check(mag)
    check(mag.parent)


def test_xarray_sees_the_box(mag):
    xr = pytest.importorskip("xarray")
    (array,) = xr.open_dataset(mag, engine="wkw").data_vars.values()
    assert dict(array.sizes) == {"x": 50, "y": 40, "z": 30}
    np.testing.assert_array_equal(array.transpose("x", "y", "z").values, ARRAY)


def test_the_box_follows_the_folder(mag, tmp_path):
    shutil.move(mag, tmp_path / "elsewhere")
    check(tmp_path / "elsewhere")
    wkwdask.copy(tmp_path / "elsewhere", tmp_path / "copied")
    check(tmp_path / "copied")
    wkwdask.copy(tmp_path / "elsewhere", tmp_path / "moved" / "1", translate=(-100, -210, -320))
    check(tmp_path / "moved" / "1", box=wkwdask.BoundingBox((0, 0, 0), ARRAY.shape))


def test_rechunk_and_compress_in_place_keep_the_box(mag):
    report = wkwdask.rechunk(mag, file_len=8)
    check(mag)
    assert (report.nbytes_in, report.mags[0].voxels) == (ARRAY.nbytes, ARRAY.size)
    wkwdask.compress(mag)
    check(mag)


def test_a_pyramid_has_the_same_box(mag):
    wkwdask.build_pyramid(mag.parent, method="nearest", mags=[2])
    assert wkwdask.info(mag.parent).layers[0].mags[1].box == BOX.in_mag(wkwdask.Mag.parse(2))
    assert wkwdask.open(mag.parent / "2").shape == (1, 25, 20, 15)


def test_files_outside_the_box_extend_it(mag, tmp_path):
    wkwdask.to_wkw(
        np.ones((8, 8, 8), np.uint8),
        tmp_path / "other" / "1",
        offset=(0, 0, 0),
        file_len=wkwdask.info(mag).layers[0].mags[0].file_len,
    )
    (path,) = (tmp_path / "other" / "1").rglob("x*.wkw")
    (mag / path.relative_to(tmp_path / "other" / "1").parent).mkdir(parents=True, exist_ok=True)
    shutil.copy(path, mag / path.relative_to(tmp_path / "other" / "1"))
    box = wkwdask.info(mag).layers[0].mags[0].box
    assert box.contains(BOX)
    assert box.topleft == (0, 0, 0)


@pytest.mark.parametrize(
    "box",
    [
        None,
        3,
        "x",
        [1, 2],
        [0, 0, 0, -1, 5, 5],
        [0.5] * 6,
        [True] * 6,
        [0, 0, 0, 1 << 40, 1, 1],
        {"a": 1},
    ],
)
def test_a_broken_record_is_ignored(mag, box):
    record = json.loads((mag / ".wkwdask.json").read_text())
    (mag / ".wkwdask.json").write_text(json.dumps({**record, "box": box}))
    assert wkwdask.info(mag).layers[0].mags[0].box.contains(BOX)
    np.testing.assert_array_equal(wkwdask.read(mag, (BOX.topleft, BOX.bottomright))[0], ARRAY)


def test_an_empty_mag_keeps_its_box(tmp_path):
    with pytest.warns(UserWarning, match="belongs to no dataset"):
        wkwdask.create(tmp_path / "color" / "1", ((10, 20, 30), (110, 70, 50)), "uint8")
    wkwdask.to_wkw(
        np.full((5, 5, 5), 3, np.uint8),
        tmp_path / "color" / "1",
        region=((20, 30, 40), (25, 35, 45)),
    )
    assert wkwdask.open(tmp_path / "color" / "1").shape == (1, 100, 50, 20)
    assert int(wkwdask.read(tmp_path / "color" / "1").sum()) == 3 * 125


def test_voxel_size_creates_the_dataset(tmp_path, recwarn):
    wkwdask.to_wkw(ARRAY, tmp_path / "new" / "color" / "1", offset=OFFSET, voxel_size=(4, 4, 35))
    wkwdask.create(
        tmp_path / "new" / "seg" / "1", ((0, 0, 0), (9, 9, 9)), "uint32", voxel_size=(4, 4, 35)
    )
    assert not [warning for warning in recwarn if issubclass(warning.category, UserWarning)]
    dataset = wkwdask.open_dataset(tmp_path / "new")
    assert (dataset.voxel_size_nm, list(dataset.layers)) == ((4.0, 4.0, 35.0), ["color", "seg"])
    check(tmp_path / "new" / "color" / "1")


def test_the_voxel_size_must_agree_with_an_existing_dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 35))
    wkwdask.to_wkw(ARRAY, tmp_path / "ds" / "color" / "1", voxel_size=(4, 4, 35))
    with pytest.raises(
        ValueError, match=r"the voxel size is \(4.0, 4.0, 35.0\) nm, not \(4, 4, 30\) nm"
    ):
        wkwdask.to_wkw(ARRAY, tmp_path / "ds" / "other" / "1", voxel_size=(4, 4, 30))
    with pytest.raises(ValueError, match="creates a dataset, whose mags are folders"):
        wkwdask.to_wkw(ARRAY, tmp_path / "volume", voxel_size=(4, 4, 30))
    with pytest.raises(ValueError, match="three positive numbers"):
        wkwdask.to_wkw(ARRAY, tmp_path / "new" / "color" / "1", voxel_size=(4, 0, 30))
    with pytest.raises(ValueError, match="voxel_size= is for a new one"):
        wkwdask.to_wkw(
            ARRAY,
            tmp_path / "ds" / "color" / "1",
            region=((0, 0, 0), ARRAY.shape),
            voxel_size=(4, 4, 35),
        )
