"""Precomputed volumes through the functions and commands that people call."""

from __future__ import annotations

import json
import os
import shutil

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from PIL import Image
from support.commands import run_here
from support.precomputed_volumes import labels, scale_entry, write_info, write_scale, write_volume

import wkwdask
from wkwdask import Mag, Sharding
from wkwdask.errors import BoundsError, MissingError, UnsupportedError

SHAPE = (50, 37, 23)
EM = np.random.default_rng(3).integers(0, 255, (2, *SHAPE)).astype(np.uint8)
IDS = labels(SHAPE, np.uint32)
OFFSET = (101, 7, 40)


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """An image ``em`` with two channels and three scales, the last of an odd ratio, and a
    segmentation ``cells`` in shards."""
    folder = tmp_path_factory.mktemp("volumes")
    coarse, odd = EM[:, ::2, ::2], EM[:, ::3, ::3, ::3]
    scales = [
        scale_entry("4_4_40", SHAPE, OFFSET, chunk_sizes=[[16, 16, 8], [10, 10, 10]]),
        scale_entry(
            "8_8_40",
            coarse.shape[1:],
            (50, 3, 40),
            resolution=(8, 8, 40),
            sharding=Sharding(1, 1, 9),
        ),
        scale_entry("12_12_120", odd.shape[1:], (33, 2, 13), resolution=(12, 12, 120)),
    ]
    info = write_info(folder / "em", scales, "uint8", 2)
    for scale, array in zip(info.scales, (EM, coarse, odd), strict=True):
        write_scale(folder / "em", scale, array)
    write_scale(folder / "em", info.scales[0].with_chunk_size((10, 10, 10)), EM)
    write_volume(
        folder / "cells",
        IDS,
        "segmentation",
        offset=OFFSET,
        encoding="compressed_segmentation",
        sharding=Sharding(2, 1, 9),
    )
    return folder


def test_open(volumes):
    array = wkwdask.open(volumes / "em")
    assert array.shape == EM.shape
    np.testing.assert_array_equal(array[:, 3:40:2, 7, ::-1].compute(), EM[:, 3:40:2, 7, ::-1])
    np.testing.assert_array_equal(
        wkwdask.open(f"precomputed://{volumes}/em", mag="2-2-1"), EM[:, ::2, ::2]
    )
    url = f"file://{volumes}/em/|neuroglancer-precomputed:"
    np.testing.assert_array_equal(
        wkwdask.open(url, mag="12_12_120", channel=1, axes="zyx"), EM[1, ::3, ::3, ::3].T
    )
    np.testing.assert_array_equal(wkwdask.open(volumes / "em" / "8_8_40"), EM[:, ::2, ::2])
    np.testing.assert_array_equal(
        wkwdask.open(volumes / "em", bounding_box=(111, 17, 45, 4, 5, 6)), EM[:, 10:14, 10:15, 5:11]
    )
    with pytest.raises(BoundsError):
        wkwdask.open(volumes / "em", bounding_box=(0, 17, 45, 4, 5, 6))


def test_chunks_lie_on_the_grid_of_what_is_stored(volumes):
    assert wkwdask.open(volumes / "em", chunks="block").chunks[1:] == (
        (16, 16, 16, 2),
        (16, 16, 5),
        (8, 8, 7),
    )
    assert wkwdask.open(volumes / "em", chunks="block", chunk_size=(10, 10, 10)).chunks[1:] == (
        (10,) * 5,
        (10, 10, 10, 7),
        (10, 10, 3),
    )
    cropped = wkwdask.open(volumes / "em", chunks="block", bounding_box=(111, 7, 40, 30, 37, 23))
    assert cropped.chunks[1] == (6, 16, 8)
    absolute = wkwdask.open(volumes / "em", chunks="block", origin="absolute")
    assert absolute.chunks[1] == (101, 16, 16, 16, 2)
    assert absolute[:, :101].max().compute() == 0
    np.testing.assert_array_equal(absolute[:, 101:, 7:, 40:], EM)
    # a shard has 2 x 2 x 2 chunks
    assert wkwdask.open(volumes / "cells", chunks="file").chunks[1:] == ((32, 18), (32, 5), (16, 7))
    with pytest.raises(ValueError, match="has no chunks of"):
        wkwdask.open(volumes / "em", chunk_size=(9, 9, 9))


def test_boxes_below_zero(tmp_path):
    write_volume(tmp_path, IDS, "segmentation", offset=(-3, 0, 0))
    np.testing.assert_array_equal(wkwdask.open(tmp_path), IDS)
    with pytest.raises(BoundsError, match="starts below 0"):
        wkwdask.open(tmp_path, origin="absolute")
    np.testing.assert_array_equal(wkwdask.read(tmp_path, ((-3, 0, 0), (20, 37, 23))), IDS[:, :23])


def test_read_and_sample(volumes):
    np.testing.assert_array_equal(wkwdask.read(volumes / "em"), EM)
    assert wkwdask.read(volumes / "em").flags.f_contiguous
    for _ in range(2):  # the second one opens nothing anew
        np.testing.assert_array_equal(
            wkwdask.read(volumes / "cells", ((110, 10, 41), (150, 44, 63)), mag=1),
            IDS[:, 9:49, 3:, 1:],
        )
    with pytest.raises(BoundsError):
        wkwdask.read(volumes / "cells", ((0, 0, 0), (5, 5, 5)))
    points = np.random.default_rng(5).integers(0, SHAPE, (40, 3))
    np.testing.assert_array_equal(
        wkwdask.sample(volumes / "em", points + OFFSET), EM[:, *points.T].T
    )
    np.testing.assert_array_equal(
        wkwdask.sample(volumes / "cells", points + OFFSET), IDS[0, *points.T]
    )
    with pytest.raises(BoundsError, match="lies outside"):
        wkwdask.sample(volumes / "cells", [[0, 0, 0]])


def test_a_volume_that_is_made_anew_is_read_anew(tmp_path):
    write_volume(tmp_path, IDS, "segmentation")
    box = ((0, 0, 0), SHAPE)
    np.testing.assert_array_equal(wkwdask.read(tmp_path, box, mag=1), IDS)
    write_volume(tmp_path, IDS[:, ::-1], "segmentation", key="other")
    np.testing.assert_array_equal(wkwdask.read(tmp_path, box, mag=1), IDS[:, ::-1])


def test_what_is_one(tmp_path, volumes):
    """A folder with WKW in it, or an info of something else, is no precomputed volume."""
    with pytest.raises(MissingError, match="no dataset"):
        wkwdask.open(volumes)
    with pytest.raises(ValueError, match="chunk_size= applies to precomputed volumes only"):
        wkwdask.open(volumes, chunk_size=(8, 8, 8))
    (tmp_path / "info").write_text('{"@type": "neuroglancer_skeletons"}')
    with pytest.raises(MissingError, match="no dataset"):
        wkwdask.open(tmp_path)
    wkwdask.write(tmp_path / "1", (0, 0, 0), IDS, file_len=1)
    (tmp_path / "info").write_text((volumes / "em" / "info").read_text())
    assert wkwdask.open(tmp_path).dtype == np.uint32
    with pytest.raises(MissingError, match="no layer 'x'; there are em"):
        wkwdask.open(volumes / "em", layer="x")
    assert wkwdask.open(volumes / "em", layer="em").dtype == np.uint8


def _printed(*arguments):
    done = run_here(*arguments)
    assert done.returncode == 0, done.output
    return done.output


def test_info(volumes):
    summary = wkwdask.info(volumes / "em")
    assert (summary.type, summary.dtype, summary.num_channels) == ("image", "uint8", 2)
    assert [scale.mag for scale in summary.scales] == [Mag(1, 1, 1), Mag(2, 2, 1), None]
    assert summary.scales[1].files == len(os.listdir(volumes / "em" / "8_8_40"))
    printed = _printed("info", volumes / "em")
    for text in (
        "voxel [nm]",
        "precomputed image, uint8 x 2 channels",
        "8 x 8 x 40",
        "16x16x8, 10x10x10",
        "32 x 32 x 8 voxels",
        "12_12_120",
    ):
        assert text in printed
    as_json = json.loads(_printed("info", f"precomputed://{volumes}/cells", "--json"))
    assert as_json["scales"][0]["box"] == [*OFFSET, *SHAPE]
    write_info(volumes / "odd", [scale_entry("bad", size=(0, 0, 0)), scale_entry("good")])
    assert "cannot be opened" in _printed("info", volumes / "odd")


def test_preview(volumes, tmp_path):
    for name, options in (("em", {}), ("cells", {}), ("em", {"mag": "12_12_120"})):
        with Image.open(
            wkwdask.preview(volumes / name, tmp_path / "p.png", size=64, **options)
        ) as picture:
            assert np.asarray(picture).std() > 10
    with pytest.raises(
        MissingError, match="no layer with data files to draw in mag 64; there are 1"
    ):
        wkwdask.preview(volumes / "em", tmp_path / "p.png", mag=64)


def test_xarray(volumes):
    opened = xr.open_dataarray(f"precomputed://{volumes}/cells", engine="precomputed")
    np.testing.assert_array_equal(opened.transpose("x", "y", "z"), IDS[0])
    assert (opened.name, opened.attrs["category"], opened.attrs["mag"]) == (
        "cells",
        "segmentation",
        "1",
    )
    np.testing.assert_allclose(opened.x[:2], [4 * 101.5, 4 * 102.5])
    np.testing.assert_allclose(opened.z[:1], [40 * 40.5])
    assert opened.x.attrs["units"] == "nm"
    coarse = xr.open_dataarray(volumes / "em", engine="precomputed", mag=Mag(2, 2, 1), chunks={})
    assert isinstance(coarse.data, da.Array)
    np.testing.assert_array_equal(coarse, EM[:, ::2, ::2])
    np.testing.assert_allclose(coarse.x[0], 8 * 50.5)
    odd = xr.open_dataarray(volumes / "em", engine="precomputed", mag="12_12_120")
    np.testing.assert_allclose([odd.x[0], odd.z[1]], [12 * 33.5, 120 * 14.5])
    points = xr.DataArray([3, 30, 7], dims="p")
    np.testing.assert_array_equal(
        opened.isel(x=points, y=points, z=[2, 1]), IDS[0][[3, 30, 7], [3, 30, 7]][:, [2, 1]]
    )
    np.testing.assert_array_equal(
        opened.isel(x=[40, 3, 17], z=slice(None, None, -4)), IDS[0][[40, 3, 17]][:, :, ::-4]
    )
    part = xr.open_dataarray(
        volumes / "cells", engine="precomputed", bounding_box=(111, 17, 45, 4, 5, 6)
    )
    np.testing.assert_array_equal(part, IDS[0, 10:14, 10:15, 5:11])
    small = xr.open_dataarray(volumes / "em", engine="precomputed", chunk_size=(10, 10, 10))
    np.testing.assert_array_equal(small, EM)


def test_another_mag_of_an_opened_array(volumes):
    opened = xr.open_dataarray(volumes / "em", engine="precomputed", mag=1)
    other = opened.sel(c=1).wkw.at_mag("2-2-1")
    np.testing.assert_array_equal(other, EM[1, ::2, ::2])


def test_xarray_guesses_and_trees(volumes):
    for url, is_one in (
        (volumes / "cells", True),
        (f"precomputed://{volumes}/cells", True),
        (volumes, False),
        ("https://host/v", False),
        (5, False),
    ):
        assert xr.backends.list_engines()["precomputed"].guess_can_open(url) is is_one
        assert not xr.backends.list_engines()["wkw"].guess_can_open(url)
    tree = xr.open_datatree(volumes / "em", engine="precomputed")
    assert {node.path for node in tree.leaves} == {"/1", "/2-2-1", "/12_12_120"}
    np.testing.assert_array_equal(tree["2-2-1/em"], EM[:, ::2, ::2])
    assert tree.attrs["voxel_size_nm"] == (4, 4, 40)
    for attrs in (tree["12_12_120"].attrs, tree["12_12_120/em"].attrs):
        # it has no mag, and its voxels are its own
        assert {name: attrs.get(name) for name in ("mag", "key", "voxel_size_nm")} == {
            "mag": None,
            "key": "12_12_120",
            "voxel_size_nm": (12, 12, 120),
        }
    assert {name: tree["2-2-1"].attrs.get(name) for name in ("mag", "key")} == {
        "mag": "2-2-1",
        "key": None,
    }
    assert {
        node.path
        for node in xr.open_datatree(volumes / "em" / "8_8_40", engine="precomputed").leaves
    } == {"/2-2-1"}
    write_info(volumes / "halves", [scale_entry("bad", size=(0, 0, 0)), scale_entry("good")])
    assert (
        "scales[0].size"
        in xr.open_datatree(volumes / "halves", engine="precomputed")["bad"].attrs["problem"]
    )


def _wkw(folder, name, array):
    wkwdask.create_dataset(folder, (4, 4, 40), existing="keep")
    wkwdask.write(folder / name / "1", OFFSET, array, file_len=1)
    return folder / name


def test_diff(volumes, tmp_path):
    same = _wkw(tmp_path, "cells", IDS)
    found = wkwdask.diff(volumes / "cells", same)
    assert found.equal
    assert found.voxels_compared == IDS.size
    changed = IDS.copy()
    changed[0, 11, 12, 13] += 1
    other = wkwdask.diff(_wkw(tmp_path, "changed", changed), f"precomputed://{volumes}/cells")
    assert [one.voxel for one in other.volumes[0].listed] == [(112, 19, 53)]
    again = wkwdask.diff(volumes / "em", volumes / "em")
    assert again.equal
    assert [volume.name for volume in again.volumes] == ["em/1", "em/2-2-1", "em/12_12_120"]
    part = wkwdask.diff(
        volumes / "em" / "4_4_40", volumes / "em", bounding_box=(111, 17, 45, 4, 5, 6)
    )
    assert part.voxels_compared == 120
    np.save(tmp_path / "cells.npy", IDS[0].transpose(2, 1, 0))
    assert wkwdask.diff(volumes / "cells", tmp_path / "cells.npy").equal


def test_diff_asks_which_of_several_layers_is_meant(volumes, tmp_path):
    _wkw(tmp_path, "one", IDS)
    _wkw(tmp_path, "two", EM)
    for pair in (
        (volumes / "cells", tmp_path),
        (tmp_path, volumes / "cells"),
        (tmp_path, tmp_path / "other"),
    ):
        if "other" in str(pair[1]):
            _wkw(tmp_path / "other", "cells", IDS)
        with pytest.raises(ValueError, match=r"several layers.*layer=.*one, two"):
            wkwdask.diff(*pair)
        assert wkwdask.diff(*pair, layer="one").equal
        with pytest.raises(MissingError):
            wkwdask.diff(*pair, layer="three")


def test_diff_of_scales_without_a_mag(volumes, tmp_path):
    wkwdask.rechunk(volumes / "em", tmp_path / "copy", shard_shape=True)
    odd = EM[:, ::3, ::3, ::3].copy()
    odd[1, 3, 2, 1] += 1
    wkwdask.to_precomputed(odd, tmp_path / "other", voxel_size=(12, 12, 120), offset=(33, 2, 13))
    shutil.rmtree(tmp_path / "copy" / "12_12_120")
    os.rename(tmp_path / "other" / "12_12_120", tmp_path / "copy" / "12_12_120")
    info = json.loads((tmp_path / "copy" / "info").read_text())
    info["scales"][2] = json.loads((tmp_path / "other" / "info").read_text())["scales"][0]
    (tmp_path / "copy" / "info").write_text(json.dumps(info))
    found = wkwdask.diff(volumes / "em", tmp_path / "copy", bounding_box=(101, 7, 40, 20, 20, 10))
    assert [(one.name, one.voxels_different) for one in found.volumes] == [
        ("em/1", 0),
        ("em/2-2-1", 0),
        ("em/12_12_120", 1),
    ]
    for pair in [
        ("em", "copy/12_12_120"),
        ("em/12_12_120", "copy"),
        ("em/12_12_120", "copy/12_12_120"),
    ]:
        (one,) = wkwdask.diff(volumes / pair[0], tmp_path / pair[1]).volumes
        assert [difference.voxel for difference in one.listed] == [(36, 4, 14)]
    with pytest.raises(MissingError):
        wkwdask.diff(volumes / "em" / "12_12_120", volumes / "cells")
    info["scales"][2]["encoding"] = "crackle"
    (tmp_path / "copy" / "info").write_text(json.dumps(info))
    with pytest.raises(UnsupportedError, match="crackle"):
        wkwdask.diff(volumes / "em", tmp_path / "copy")
    assert wkwdask.diff(volumes / "em", tmp_path / "copy", mag=1).equal


def test_convert_of_scales(volumes, tmp_path):
    wkwdask.convert(volumes / "em" / "8_8_40", tmp_path / "one", layer="em")
    assert os.listdir(tmp_path / "one" / "em") == ["2-2-1"]
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "one", mag="2-2-1"), EM[:, ::2, ::2])
    report = wkwdask.convert(volumes / "em", tmp_path / "all", layer="em")
    assert sorted(os.listdir(tmp_path / "all" / "em")) == ["1", "2-2-1"]
    assert "'12_12_120' (no mag)" in report.note
    with pytest.raises(MissingError, match="nothing: no such folder"):
        wkwdask.convert(tmp_path / "nothing", f"precomputed://{tmp_path}/v")


def test_the_first_scale_cannot_be_read(volumes, tmp_path):
    """It still says how large voxels are, and another one takes its place only by name."""
    shutil.copytree(volumes / "em", tmp_path / "em")
    info = json.loads((tmp_path / "em" / "info").read_text())
    info["scales"][0]["encoding"] = "crackle"
    (tmp_path / "em" / "info").write_text(json.dumps(info))
    for call in (
        lambda: wkwdask.convert(tmp_path / "em", tmp_path / "wkw", layer="em"),
        lambda: wkwdask.build_pyramid(tmp_path / "em", mags="4-4-2"),
    ):
        with pytest.raises(UnsupportedError, match=r"scales\[0\]\.encoding"):
            call()
    wkwdask.convert(tmp_path / "em", tmp_path / "wkw", layer="em", mag="2-2-1")
    assert os.listdir(tmp_path / "wkw" / "em") == ["2-2-1"]
    assert wkwdask.info(tmp_path / "wkw").voxel_size_nm == (4, 4, 40)
    (made,) = wkwdask.build_pyramid(tmp_path / "em", finest="2-2-1", mags="4-4-2").mags
    assert made.path.endswith("/16_16_80")


def test_statistics(volumes, tmp_path):
    pytest.importorskip("pandas", reason="tables")
    layer = _wkw(tmp_path, "cells", IDS)
    table = wkwdask.label_statistics(volumes / "cells")
    expected = wkwdask.label_statistics(layer)
    np.testing.assert_allclose(table.to_numpy(float), expected.to_numpy(float), rtol=1e-12)
    assert table.attrs["voxel_size_nm"] == [4, 4, 40]
    both = wkwdask.label_statistics(layer, volumes / "em" / "4_4_40")
    assert "mean_0" in both.columns or any(name.startswith("mean") for name in both.columns)
    counts = wkwdask.histogram(volumes / "em")
    np.testing.assert_array_equal(counts.sel(c=1), np.bincount(EM[1].ravel(), minlength=256))


def _plus_one(brick):
    return brick + np.uint8(1)


def test_apply_and_export(volumes, tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 40))
    wkwdask.apply(
        _plus_one, volumes / "em" / "4_4_40", tmp_path / "ds" / "plus" / "1", channels=2, file_len=1
    )
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds" / "plus" / "1", (OFFSET, np.add(OFFSET, SHAPE))),
        EM + np.uint8(1),
    )
    wkwdask.convert(
        volumes / "em", tmp_path / "em.npy", channels=[1], bounding_box=(101, 7, 40, 20, 37, 23)
    )
    np.testing.assert_array_equal(np.load(tmp_path / "em.npy").squeeze(), EM[1, :20].T)
    pytest.importorskip("tifffile", reason="TIFF")
    report = wkwdask.convert(f"precomputed://{volumes}/cells", tmp_path / "cells.tif")
    assert report.mags[0].voxels == IDS.size
