"""Images and arrays that become N5 or OME-NGFF in one step."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import xarray as xr
from faults.drivers import imports_of, stopping
from PIL import Image
from support.commands import run_here

import wkwdask
from wkwdask.errors import BoundsError, ExistsError, MissingError, ResumeError, SectionWarning

pytest.importorskip("zarr", reason="the extra zarr")

SIZE = (4, 4, 35)
VOXELS = np.random.default_rng(0).integers(0, 255, (21, 30, 41)).astype(np.uint8)  # z, y, x
TARGETS = {"n5": "n5://{}/v.n5/em", "ngff": "{}/em.ome.zarr"}


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def sections(tmp_path):
    folder = tmp_path / "sections"
    folder.mkdir()
    for z, section in enumerate(VOXELS):
        Image.fromarray(section).save(folder / f"s{z}.png")
    return folder


@pytest.fixture(params=TARGETS)
def target(request, tmp_path):
    return TARGETS[request.param].format(tmp_path)


def opened(target):
    return target if target.startswith("n5://") else f"zarr://{target}"


def test_sections_become_each_format(target, sections):
    options = {"voxel_size": SIZE, "offset": (-5, 6, 7), "chunk_shape": (16, 16, 8)}
    report = wkwdask.convert(sections, target, **options)
    assert (report.mags[0].voxels, report.mags[0].minimum, report.mags[0].maximum) == (
        21 * 30 * 41,
        0,
        254,
    )
    np.testing.assert_array_equal(
        wkwdask.read(opened(target), ((-5, 6, 7), (36, 36, 28)))[0], VOXELS.T
    )
    assert (
        xr.open_dataset(
            target.removeprefix("n5://"), engine="n5" if target.startswith("n5") else "ngff"
        ).attrs["voxel_size_nm"]
        == SIZE
    )
    with pytest.raises(ExistsError):
        wkwdask.convert(sections, target, **options)
    assert "nothing to do" in wkwdask.convert(sections, target, existing="resume", **options).note
    with pytest.raises(ResumeError, match="was"):
        wkwdask.convert(sections, target, existing="resume", **{**options, "offset": (0, 0, 0)})
    assert wkwdask.plan_convert(sections, target, existing="overwrite", **options).mags[0].size == (
        41,
        30,
        21,
    )


def test_boxes_types_and_broken_sections(target, sections):
    (sections / "s4.png").write_bytes(b"no picture")
    box = (0, 10, 9, 20, 100, 5)
    with pytest.warns(SectionWarning):
        wkwdask.convert(
            sections,
            target,
            voxel_size=SIZE,
            offset=(-5, 6, 7),
            bounding_box=box,
            dtype="int16",
            on_error="fill",
        )
    expected = VOXELS.copy()
    expected[4] = 0
    found = wkwdask.read(opened(target), ((0, 10, 9), (20, 36, 14)))[0]
    assert found.dtype == np.int16
    np.testing.assert_array_equal(found, expected.T[5:25, 4:, 2:7])
    with pytest.raises(BoundsError, match="lies outside of the source"):
        wkwdask.convert(
            sections,
            f"{target}2",
            voxel_size=SIZE,
            bounding_box=(100, 0, 0, 5, 5, 5),
            on_error="fill",
        )


def test_an_interrupted_import_is_resumed(tmp_path, target, sections):
    options = {"voxel_size": SIZE, "chunk_shape": (16, 16, 8)}
    with (
        imports_of(8),
        stopping(tmp_path / "log", 2, OSError("the plug")),
        pytest.raises(OSError, match="the plug"),
    ):
        wkwdask.convert(sections, target, **options)
    with pytest.raises(ResumeError):
        wkwdask.convert(sections, target, **{**options, "offset": (1, 0, 0)})
    assert "2 tasks had been finished before" in wkwdask.convert(sections, target, **options).note
    np.testing.assert_array_equal(wkwdask.read(opened(target))[0], VOXELS.T)


def test_labels_and_channels_are_kept(tmp_path):
    ids = np.kron(
        np.random.default_rng(1).integers(0, 1 << 30, (6, 5, 7), np.uint32),
        np.ones((3, 6, 6), np.uint32),
    )
    np.save(tmp_path / "ids.npy", ids)
    np.save(tmp_path / "two.npy", np.stack([VOXELS, VOXELS[::-1]]))
    wkwdask.convert(tmp_path / "two.npy", tmp_path / "em.ome.zarr", voxel_size=SIZE)
    wkwdask.convert(
        tmp_path / "ids.npy",
        tmp_path / "em.ome.zarr" / "labels" / "cells",
        voxel_size=SIZE,
        shard_shape=False,
    )
    np.testing.assert_array_equal(
        wkwdask.read(f"zarr://{tmp_path}/em.ome.zarr/labels/cells")[0], ids.T
    )
    # the image says how large voxels are
    wkwdask.convert(tmp_path / "two.npy", tmp_path / "em.ome.zarr", mag="2-2-1", channels=(1, 0))
    np.testing.assert_array_equal(
        wkwdask.read(f"zarr://{tmp_path}/em.ome.zarr", mag="2-2-1")[0], VOXELS[::-1].T
    )
    wkwdask.convert(tmp_path / "two.npy", f"n5://{tmp_path}/two", compression="raw")
    np.testing.assert_array_equal(wkwdask.read(f"n5://{tmp_path}/two")[1], VOXELS[::-1].T)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ngff", {"voxel_size": None}, r"voxel_size= is needed for a new image"),
        ("ngff", {"category": "raw"}, 'category must be "color" or "segmentation"'),
        ("ngff", {"encoding": "jpeg"}, "zarr has no option encoding"),
        ("n5", {"mag": 2}, "gets its finest level of images: mag= is not for it"),
        ("n5", {"category": "color"}, "category= is not for it"),
        ("n5", {"layer": "em"}, "layer= is not for it"),
        ("n5", {"pyramid": True}, "pyramid= is not for it"),
    ],
)
def test_malformed_options_are_refused(tmp_path, sections, name, options, message):
    with pytest.raises(ValueError, match=message):
        wkwdask.convert(sections, TARGETS[name].format(tmp_path), **{"voxel_size": SIZE, **options})


def test_command(target, sections):
    done = run_here("convert", f"{sections}/s*.png", target, "--voxel-size", "4,4,35")
    assert done.returncode == 0, done.output
    with pytest.raises(MissingError):
        wkwdask.convert(f"{sections}/none", target, voxel_size=SIZE, existing="overwrite")
