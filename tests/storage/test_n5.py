"""N5 datasets in folders and behind a server: voxels of blocks that are whole or cut off, absent and broken files, what is stored, datasets that change."""

from __future__ import annotations

import os
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from n5_volumes import write_attributes, write_dataset
from precomputed_volumes import labels
from range_server import range_server

from wkwdask import BoundingBox, Mag
from wkwdask.errors import CorruptError, MissingError, ReplacedError, TruncatedError, UnsupportedError
from wkwdask.formats.n5.block import VARLENGTH
from wkwdask.formats.n5.layer import choose, find_n5_layers, is_n5, is_named_n5, open_n5_layer
from wkwdask.geometry.grid import cell_box, cells

ARRAY = labels((50, 37, 23), np.uint16)[0]


def read(volume, box=None, order="C", **options):
    box = box or volume.box
    out = np.full((volume.num_channels, *box.size), 77, volume.dtype, order=order)
    count = volume.read_into(out, box.topleft, **options)
    return out, count


@pytest.fixture(params=["cut", "whole", "varlength", "mixed"])
def stored(request, tmp_path):
    """A folder with ARRAY, in blocks of one of the kinds, or of all."""
    write_dataset(tmp_path / "v", ARRAY, cut=request.param != "whole", mode=VARLENGTH if request.param == "varlength" else 0)
    if request.param == "mixed":
        write_dataset(tmp_path / "whole", ARRAY, cut=False, mode=VARLENGTH)
        shutil.rmtree(tmp_path / "v" / "3")
        shutil.move(tmp_path / "whole" / "3", tmp_path / "v" / "3")
    return tmp_path / "v"


def test_voxels(stored):
    volume = open_n5_layer(stored).volume().volume
    for order in "CF":
        found, count = read(volume, order=order)
        np.testing.assert_array_equal(found[0], ARRAY)
        assert count == sum(ARRAY[x : x + 16, y : y + 16, z : z + 8].any() for x in range(0, 50, 16) for y in range(0, 37, 16) for z in range(0, 23, 8))
    assert read(volume, BoundingBox((0, 0, 0), (32, 16, 23)), fill_zeros=False)[1] == 0
    again = pickle.loads(pickle.dumps(volume))
    assert (again, again.token) == (volume, volume.token)
    assert len(pickle.dumps(volume)) < 4000


AXES = [
    # axes, shape of an array with them
    ("xyz", (20, 17, 9)),
    ("xy", (20, 17)),
    ("xyzc", (20, 17, 9, 3)),
    ("xycz", (20, 17, 3, 9)),
    ("zyx", (9, 17, 20)),
]


@given(st.data())
def test_any_box(tmp_path_factory, data):
    """Any box of any geometry, in any order of axes, beside the array in memory."""
    axes, shape = data.draw(st.sampled_from(AXES))
    block = tuple(data.draw(st.integers(max(1, n // 4), n + 3)) for n in shape)
    array = labels((60, 60, 60), np.uint16, data.draw(st.integers(0, 9)))[0].ravel()[: np.prod(shape)].reshape(shape)
    folder = tmp_path_factory.mktemp("any")
    write_dataset(folder, array, block, "raw", cut=data.draw(st.booleans()), axes=list(axes))
    volume = open_n5_layer(folder).volume().volume
    letters = [letter for letter in "cxyz" if letter not in axes] + list(axes)
    whole = array.reshape((1,) * (4 - array.ndim) + shape).transpose([letters.index(letter) for letter in "cxyz"])
    assert (volume.num_channels, *volume.box.size) == whole.shape
    first = data.draw(st.tuples(*[st.integers(-3, n) for n in whole.shape[1:]]))
    size = data.draw(st.tuples(*[st.integers(1, n + 6) for n in whole.shape[1:]]))
    channel = data.draw(st.integers(0, len(whole) - 1))
    out = np.full((data.draw(st.integers(1, len(whole) - channel)), *size), 9, np.uint16, order=data.draw(st.sampled_from("CF")))
    volume.read_into(out, first, channel)
    padded = np.pad(whole, [(0, 0)] + [(30, 30)] * 3)
    part = tuple(slice(a + 30, a + 30 + n) for a, n in zip(first, size, strict=True))
    np.testing.assert_array_equal(out, padded[(slice(channel, channel + len(out)), *part)])
    cell = data.draw(st.tuples(*[st.integers(1, 30)] * 3))
    for index, found in zip(cells(volume.box, cell), volume.occupied(cell).transpose(2, 1, 0).ravel(), strict=True):
        box = cell_box(index, cell, volume.box).intersection(volume.box)
        assert found or not whole[(slice(None), *(slice(a, b) for a, b in zip(box.topleft, box.bottomright, strict=True)))].any()
    states = volume.stored_states()
    np.testing.assert_array_equal(states, volume.shard_states(volume.box))
    assert {tuple(row[:3]) for row in states.tolist()} == {index for index in cells(volume.box, volume.shard_shape) if volume.shard_exists(index)}
    assert states[:, 3].sum() == sum(path.stat().st_size for path in folder.rglob("*") if path.name.isdecimal() and path.is_file())


def test_a_part_counts(stored):
    volume = open_n5_layer(stored).volume().volume.cropped(BoundingBox((20, 3, 9), (20, 30, 10)))
    assert volume.occupied((8, 8, 8)).shape == (3, 5, 2)
    np.testing.assert_array_equal(read(volume)[0][0], ARRAY[20:40, 3:33, 9:19])
    assert volume.shard_path((0, 0, 0)) == f"{stored}/0/0/0"


def test_broken_files(tmp_path):
    write_dataset(tmp_path, ARRAY, compression="raw")
    volume = open_n5_layer(tmp_path).volume().volume
    block = tmp_path / "2" / "1" / "0"
    good = block.read_bytes()
    for data, error, message in (
        (good[:100], TruncatedError, "2/1/0: byte 16: raw data of 84 bytes"),
        (b"", TruncatedError, "2/1/0: has 0 bytes"),
        (good + bytes(9000), CorruptError, "2/1/0: has .* bytes, expected at most"),
        (b"\0\2" + good[2:], UnsupportedError, "2/1/0: byte 0: an N5 block of objects"),
        (good[:4] + b"\0\0\0\x11" + good[8:], CorruptError, r"2/1/0: byte 4: an N5 block of \(17, 16, 8\) values, expected at most \(16, 16, 8\)"),
    ):
        block.write_bytes(data)
        with pytest.raises(error, match=message):
            read(volume)
    block.unlink()
    block.symlink_to("nowhere")
    with pytest.raises(MissingError, match="a symbolic link to a file that is not there"):
        read(volume)


def test_datasets_that_change(tmp_path):
    write_dataset(tmp_path / "v", ARRAY)
    volume = open_n5_layer(tmp_path / "v").volume().volume
    assert volume.is_unchanged()
    document = (tmp_path / "v" / "attributes.json").read_text()
    (tmp_path / "v" / "attributes.json").write_text(document.replace("{", '{"more": 1, ', 1))
    assert not volume.is_unchanged()
    assert volume.is_current()  # what is stored is the same
    (tmp_path / "v" / "attributes.json").write_text(document.replace("16", "32"))
    with pytest.raises(ReplacedError, match=r"attributes.json describes another array since it was opened"):
        read(volume)
    os.rename(tmp_path / "v", tmp_path / "old")
    with pytest.raises(MissingError, match="the array is gone"):
        read(volume)
    write_dataset(tmp_path / "v", ARRAY)
    with pytest.raises(ReplacedError, match="was replaced since it was opened"):
        volume.check_absence()


def test_names_of_files(tmp_path):
    """Other names than those of blocks are no blocks."""
    write_dataset(tmp_path, ARRAY)
    volume = open_n5_layer(tmp_path).volume().volume
    before = volume.files.count()
    for name in ("9/0/0", "0/0/07", "0/0/x", "0/0/0.old", "1"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(b"no block")
    assert volume.files.count() == before


# ------------------------------------------------------------------------------------------------ layers


@pytest.fixture
def container(tmp_path):
    """A container with two layers: a group of levels, and a dataset by itself."""
    root = tmp_path / "c.n5"
    write_attributes(root, n5="4.0.0")
    for number, step in enumerate((1, 2)):
        factors = {"downsamplingFactors": [step] * 3}
        write_dataset(root / "volumes" / "em" / f"s{number}", np.ascontiguousarray(ARRAY[::step, ::step, ::step]), **factors)
    write_attributes(root / "volumes" / "em", pixelResolution={"dimensions": [4, 4, 40], "unit": "nm"})
    write_dataset(root / "seg", ARRAY.astype(np.uint64), compression="xz", axes=["x", "y", "z"], resolution=[0.004, 0.004, 0.04], units=["um"] * 3)
    return root


def test_layers_of_a_container(container):
    layers = find_n5_layers(container)
    assert [(layer.name, layer.mag, list(layer.mags), layer.voxel_size_nm) for layer in layers] == [
        ("seg", Mag(1, 1, 1), [Mag(1, 1, 1)], (4.0, 4.0, 40.0)),
        ("volumes/em", None, [Mag(1, 1, 1), Mag(2, 2, 2)], (4.0, 4.0, 40.0)),
    ]
    assert choose(layers, "volumes/em", "c") is layers[1]
    with pytest.raises(ValueError, match=r"holds several layers: choose one with layer=: seg, volumes/em"):
        choose(layers, None, "c")
    with pytest.raises(MissingError, match="no layer 'em'; there are seg, volumes/em"):
        choose(layers, "em", "c")


def test_one_level(container):
    layer = open_n5_layer(f"n5://{container}/volumes/em/s1")
    assert (layer.name, layer.key, layer.mag) == ("em", "s1", Mag(2, 2, 2))
    assert layer.volume().box == BoundingBox((0, 0, 0), (25, 19, 12), Mag(2, 2, 2))
    with pytest.raises(ValueError, match="is the array 's1', not 1"):
        layer.volume(Mag(1, 1, 1))
    group = open_n5_layer(container / "volumes" / "em")
    assert group.volume("s1") == layer.volume()
    with pytest.raises(MissingError, match=r"no mag or array 8; there are 's0' \(mag 1\), 's1' \(mag 2\)"):
        group.volume(8)


def test_big_data_viewer(tmp_path):
    """Its factors stand above the time points."""
    write_attributes(tmp_path / "setup0", downsamplingFactors=[[1, 1, 1], [2, 2, 1]], dataType="uint16")
    for number, step in enumerate((1, 2)):
        write_dataset(tmp_path / "setup0" / "timepoint0" / f"s{number}", np.ascontiguousarray(ARRAY[::step, ::step]))
    write_attributes(tmp_path, n5="2.0.0")
    (layer,) = find_n5_layers(tmp_path)
    assert (layer.name, list(layer.mags)) == ("setup0/timepoint0", [Mag(1, 1, 1), Mag(2, 2, 1)])


def test_levels_that_cannot_be_used(container):
    write_attributes(container / "volumes" / "em" / "s2", dimensions=[5, 5, 5], blockSize=[0, 1, 1], dataType="uint16", compression={"type": "raw"})
    layer = open_n5_layer(container / "volumes" / "em")
    assert [level.problem != "" for level in layer.levels] == [False, False, True]
    with pytest.raises(CorruptError, match=r"em/s2/attributes.json: blockSize: expected"):
        layer.volume("s2")
    assert len(find_n5_layers(container)) == 2


def test_what_is_n5(container, tmp_path):
    for url in (container, container / "seg", f"n5://{tmp_path}/x", "https://host/em|n5:"):
        assert is_n5(url)
    for url in (tmp_path, container / "volumes", "", "https://host/em.n5", 5, f"precomputed://{tmp_path}"):
        assert not is_n5(url)
    assert is_named_n5("gs://bucket/em/|n5")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "attributes.json").write_text('{"of": "somebody else"}')
    assert not is_n5(tmp_path / "other")
    with pytest.raises(MissingError, match="no N5 dataset found here or below"):
        find_n5_layers(tmp_path / "other")
    with pytest.raises(MissingError, match="no such folder"):
        find_n5_layers(tmp_path / "nothing")


def test_remote(container):
    """Behind a web server, which lists nothing: levels are found one after the other, absent blocks are zero."""
    pytest.importorskip("aiohttp")
    with range_server(container) as server:
        layer = open_n5_layer(f"n5://{server.url}/volumes/em")
        assert (list(layer.mags), layer.voxel_size_nm) == ([Mag(1, 1, 1), Mag(2, 2, 2)], (4.0, 4.0, 40.0))
        np.testing.assert_array_equal(read(layer.volume().volume)[0][0], ARRAY)
        assert open_n5_layer(f"n5://{server.url}/volumes/em/s1").mag == Mag(2, 2, 2)
        volume = open_n5_layer(f"n5://{server.url}/seg").volume().volume
        np.testing.assert_array_equal(read(volume, BoundingBox((30, 20, 3), (10, 10, 10)))[0][0], ARRAY[30:40, 20:30, 3:13])
        assert volume.occupied((64, 64, 64)).all()
        assert len(volume.stored_states()) == 0
        with pytest.raises(MissingError, match="name one, since remote folders cannot be listed"):
            open_n5_layer(f"n5://{server.url}/volumes")
