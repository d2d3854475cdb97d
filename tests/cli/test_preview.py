"""Slices for pictures: exact for few voxels, in bounded memory for many."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pytest
import xarray as xr
from PIL import Image
from support.inside import limited
from support.precomputed_volumes import (
    chunk_id,
    chunk_name,
    scale_entry,
    write_info,
    write_shard,
    write_volume,
)
from support.range_server import range_server

import wkwdask
from wkwdask import Sharding
from wkwdask.formats.opening import open_stored
from wkwdask.formats.precomputed.chunk import PrecomputedCodec
from wkwdask.viewer import preview, slices

HUGE = 1 << 20
EM = np.random.default_rng(4).integers(1, 255, (2, 90, 70, 50)).astype(np.uint8)


@pytest.fixture
def _few_voxels():
    with limited(picture_whole_vx=100, picture_tile_vx=20):
        yield


def middle(array, columns, rows):
    """The slice (c, rows, columns) of an array (c, x, y, z)."""
    (normal,) = set("xyz") - {columns, rows}
    plane = array.take(array.shape["cxyz".index(normal)] // 2, axis="cxyz".index(normal))
    axes = [axis for axis in "xyz" if axis != normal]
    return plane if axes == [rows, columns] else plane.swapaxes(1, 2)


@pytest.mark.usefixtures("_few_voxels")
@pytest.mark.parametrize(("columns", "rows"), [("x", "y"), ("z", "y"), ("x", "z")])
def test_means_and_ids(tmp_path, columns, rows):
    """Each pixel is the mean of its voxels or the voxel in its middle, at tile borders too; the
    last pixels have fewer voxels."""
    write_volume(tmp_path, EM, offset=(-13, 5, 7))
    volume = open_stored(tmp_path)[1]
    plane = middle(EM, columns, rows)
    found = {
        are_ids: slices.read_slice(volume, volume.box, columns, rows, (15, 12), are_ids=are_ids)
        for are_ids in (False, True)
    }
    (width, height), steps = (
        plane.shape[:0:-1],
        [-(-n // (2 * pixels)) for n, pixels in zip(plane.shape[:0:-1], (15, 12), strict=True)],
    )
    assert found[False].shape == (2, -(-height // steps[1]), -(-width // steps[0]))
    for y, x in np.ndindex(found[False].shape[1:]):
        part = plane[:, y * steps[1] : (y + 1) * steps[1], x * steps[0] : (x + 1) * steps[0]]
        np.testing.assert_allclose(found[False][:, y, x], part.mean(axis=(1, 2)))
        inside = [min(step // 2, n - 1) for step, n in zip(steps, part.shape[:0:-1], strict=True)]
        np.testing.assert_array_equal(found[True][:, y, x], part[:, inside[1], inside[0]])
    exact = slices.read_slice(volume, volume.box, columns, rows, (100, 100), are_ids=False)
    np.testing.assert_array_equal(exact, plane)


@pytest.mark.usefixtures("_few_voxels")
@pytest.mark.parametrize("remote", [False, True])
def test_only_the_middle_chunk_of_a_pixel_is_read(tmp_path, remote):
    if remote:
        pytest.importorskip("obstore", reason="reads http")
    array = EM[:1]
    write_volume(tmp_path / "v", array, offset=(-13, 5, 7), chunk=(4, 4, 4))
    with range_server(tmp_path) as server:
        volume = open_stored(f"precomputed://{server.url}/v" if remote else tmp_path / "v")[1]
        server.requests.clear()
        found = slices.read_slice(volume, volume.box, "x", "y", (3, 3), are_ids=False)
        assert len(server.requests) == 9 * remote
    plane = middle(array, "x", "y")
    assert found.shape == (1, 3, 3)
    for row, y in enumerate((12, 36, 56)):
        # middles of 24, 24 and 22 rows, down to a chunk's border
        for column, x in enumerate((12, 44, 72)):
            np.testing.assert_allclose(found[0, row, column], plane[0, y : y + 4, x : x + 4].mean())


def _huge(folder, kind):
    """Make a volume of 2^60 voxels with one chunk in its middle."""
    cells, first = np.full((1, 64, 64, 64), 7, np.uint32), HUGE // 2
    if kind == "wkw":
        wkwdask.create_dataset(folder, (4, 4, 4))
        wkwdask.write(folder / "cells" / "1", (first,) * 3, cells, category="segmentation")
        wkwdask.open_dataset(folder).set_bounding_box("cells", (0, 0, 0, HUGE, HUGE, HUGE))
    elif kind == "n5":
        wkwdask.to_n5(cells, folder / "s0", voxel_size=(4, 4, 4))
        (folder / "s0" / "0" / "0" / "0").rename(folder / "block")
        (folder / "s0" / str(first // 64) / str(first // 64)).mkdir(parents=True)
        (folder / "block").rename(
            folder / "s0" / str(first // 64) / str(first // 64) / str(first // 64)
        )
        document = json.loads((folder / "s0" / "attributes.json").read_text())
        (folder / "s0" / "attributes.json").write_text(
            json.dumps({**document, "dimensions": [HUGE] * 3})
        )
    else:
        entry = scale_entry(
            "4_4_4",
            (HUGE,) * 3,
            chunk=(64,) * 3,
            resolution=(4, 4, 4),
            sharding=None if kind == "files" else Sharding(9, 6, 27),
        )
        (scale,) = write_info(folder, [entry], "uint32", 1, "segmentation").scales
        cell, data = (
            (first // 64,) * 3,
            PrecomputedCodec.of_scale(scale, cells.dtype, 1).encode(cells, "test"),
        )
        (folder / "4_4_4").mkdir()
        if scale.sharding is None:
            (folder / "4_4_4" / chunk_name(scale, cell)).write_bytes(data)
            return
        chunk = chunk_id(scale, cell)
        shard = int(scale.sharding.locate(np.array([chunk], np.uint64))[0][0])
        write_shard(
            folder / "4_4_4" / scale.sharding.shard_name(shard), {chunk: data}, scale.sharding
        )


@pytest.mark.long
@pytest.mark.parametrize("kind", ["wkw", "files", "shards", "n5"])
def test_huge_volumes(tmp_path, kind):
    """A plane of 2^40 voxels, almost all absent: the voxel in the middle of a pixel is shown."""
    _huge(tmp_path / "v", kind)
    with Image.open(wkwdask.preview(tmp_path / "v", tmp_path / "p.png", size=33)) as picture:
        assert picture.size == (33 + 33 + 24, 33 + 33 + 24)
    volume = open_stored(tmp_path / "v")[1]
    found = slices.read_slice(volume, volume.box, "x", "y", (33, 33), are_ids=True)
    assert np.argwhere(found).tolist() == [[0, 16, 16]]


def test_a_picture_is_saved_whole_or_not_at_all(tmp_path, monkeypatch):
    wkwdask.to_precomputed(EM, tmp_path / "em", voxel_size=(4, 4, 4))
    output = tmp_path / "picture.png"
    wkwdask.preview(tmp_path / "em", output, size=50)
    before = output.read_bytes()
    pwrite = os.pwrite

    def write(fd, data, offset):
        if offset:
            raise OSError(errno.ENOSPC, "full")
        return pwrite(fd, data[:10], offset)

    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(OSError, match="No space left"):
        wkwdask.preview(tmp_path / "em", output, size=60)
    assert output.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["em", "picture.png"]


@pytest.mark.parametrize(
    ("output", "error", "match"),
    [
        ("s3://bucket/picture.png", wkwdask.UnsupportedError, "s3://bucket/picture.png"),
        ("https://host/picture.png", wkwdask.UnsupportedError, "https://host/picture.png"),
        ("absent/p.png", wkwdask.MissingError, "absent/p.png: its folder does not exist"),
        ("em/folder.png", wkwdask.ExistsError, "folder.png: is a folder; name a file"),
        ("picture.xyz", ValueError, "picture.xyz: expected the suffix of a format of pictures"),
        ("picture", ValueError, "picture: expected the suffix of a format of pictures, such as"),
    ],
)
def test_a_picture_that_cannot_be_saved_is_not_drawn(tmp_path, monkeypatch, output, error, match):
    monkeypatch.chdir(tmp_path)
    wkwdask.to_precomputed(EM, "em", voxel_size=(4, 4, 4))
    (tmp_path / "em" / "folder.png").mkdir()
    monkeypatch.setattr(preview, "draw", None)
    with pytest.raises(error, match=match):
        wkwdask.preview("em", output, size=50)
    with pytest.raises(error, match=match):
        xr.open_dataarray("em", engine="precomputed").wkw.preview(output, size=50)
    assert [path.name for path in tmp_path.iterdir()] == ["em"]


def test_sizes_and_labels_of_no_picture_are_refused(tmp_path):
    url, output = tmp_path / "em", tmp_path / "picture.png"
    wkwdask.to_precomputed(EM, url, voxel_size=(4, 4, 4))
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        xr.open_dataarray(url, engine="precomputed").wkw.preview(size=0)
    with pytest.raises(ValueError, match=r"mesh must be the id of a label, below 2\^64, got 1844"):
        wkwdask.preview(url, output, mesh=2**64)
    for option in ({"mag": 2}, {"index": {"t": 0}}):
        with pytest.raises(ValueError, match="mesh= draws no slices: omit mag= and index="):
            wkwdask.preview(url, output, mesh=1, **option)


def test_infinite_values_do_not_hide_the_others(tmp_path):
    voxels = np.linspace(1, 2, 4000, dtype=np.float32).reshape(20, 20, 10)
    voxels[::5], voxels[1::5] = np.inf, -np.inf
    wkwdask.save(voxels, tmp_path / "em" / "1", voxel_size=(4, 4, 4))
    wkwdask.preview(tmp_path / "em", tmp_path / "picture.png", size=20)
    with Image.open(tmp_path / "picture.png") as picture:
        row = np.asarray(picture)[18, 8:28, 0].astype(int)
    assert set(row[::5]) == {255}
    assert set(row[1::5]) == {0}
    assert len(set(row) - {0, 255}) > 3
