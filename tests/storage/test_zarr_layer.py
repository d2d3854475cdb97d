"""Zarr arrays and OME-NGFF images of versions 2 and 3, local and behind a server, as volumes: axes, places, what is stored, arrays that change."""

from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from precomputed_volumes import labels
from range_server import range_server

import wkwdask
from wkwdask import BoundingBox, Mag
from wkwdask.errors import CorruptError, MissingError, ReplacedError, TruncatedError, UnsupportedError
from wkwdask.formats.pictures.foreign import Placing, open_foreign
from wkwdask.formats.zarr.layer import find_zarr_layers, is_plain_zarr, is_zarr
from wkwdask.formats.zarr.ngff import axes_of, parse_image, place_levels
from wkwdask.geometry.grid import cell_box, cells

zarr = pytest.importorskip("zarr", reason="the extra zarr")

ARRAY = labels((50, 37, 23), np.uint16)[0]


def write(folder, array, chunks, **options):
    """Write an array; ``keys`` says how chunks are named."""
    keys = options.pop("keys", ("default", "/"))
    options.setdefault("fill_value", 0)
    options |= {"chunk_key_encoding": {"name": keys[0], "separator": keys[1]}}
    stored = zarr.create_array(folder, shape=array.shape, dtype=array.dtype, chunks=chunks, **options)
    stored[...] = array
    return stored


def volume_of(url, layer=0):
    return find_zarr_layers(url)[layer].volume().volume


def read(volume, box=None, channels=None, **options):
    box = box or volume.box
    out = np.full((channels or volume.num_channels, *box.size), 77, volume.dtype)
    return out, volume.read_into(out, box.topleft, **options)


LAYOUTS = [
    # version, names of chunks, shards
    (3, ("default", "/"), None),
    (3, ("default", "."), (16, 16, 16)),
    (3, ("v2", "/"), (16, 16, 16)),
    (2, ("v2", "."), None),
    (2, ("v2", "/"), None),
]


@pytest.mark.parametrize(("version", "keys", "shards"), LAYOUTS)
def test_layouts(tmp_path, version, keys, shards):
    """Whatever files are named, they are found: cells without any are known to be zero."""
    options = {"dimension_names": list("xyz"), "shards": shards} if version == 3 else {"attributes": {"_ARRAY_DIMENSIONS": list("xyz")}}
    write(tmp_path / "a", ARRAY, (8, 8, 8), keys=keys, zarr_format=version, config={"write_empty_chunks": False}, **options)
    volume = volume_of(tmp_path / "a")
    np.testing.assert_array_equal(read(volume)[0][0], ARRAY)
    assert read(volume, BoundingBox((0, 0, 0), (32, 16, 23)), fill_zeros=False)[1] == 0
    assert (volume.chunk_shape, volume.vec3(volume.shards)) == ((8, 8, 8), shards or (8, 8, 8))
    occupied = volume.occupied((16, 16, 16))
    assert not occupied.all()
    for index, found in zip(cells(volume.box, (16, 16, 16)), occupied.transpose(2, 1, 0).ravel(), strict=True):
        x, y, z = (slice(n * 16, n * 16 + 16) for n in index)
        assert found == ARRAY[x, y, z].any()
    states = volume.stored_states()
    np.testing.assert_array_equal(states, volume.shard_states(volume.box))
    assert volume.files.count()[1] == states[:, 3].sum() > 0
    assert pickle.loads(pickle.dumps(volume)) == volume


@given(st.data())
def test_any_box(tmp_path_factory, data):
    """Any box, in any order of axes, beside the array in memory."""
    axes = data.draw(st.sampled_from(["zyx", "czyx", "xyz", "yx", "tczyx"]))
    lengths = {"x": 20, "y": 17, "z": 9, "c": 3, "t": 1}
    shape = [lengths[letter] for letter in axes]
    array = ARRAY.ravel()[: np.prod(shape)].reshape(shape)
    folder = tmp_path_factory.mktemp("any") / "a"
    write(folder, array, tuple(data.draw(st.integers(-(-n // 3), n)) for n in shape), dimension_names=list(axes))
    volume = volume_of(folder)
    kept = axes.removeprefix("t")
    letters = [letter for letter in "cxyz" if letter not in kept] + list(kept)
    whole = array.reshape([1] * (4 - len(kept)) + [lengths[letter] for letter in kept]).transpose([letters.index(letter) for letter in "cxyz"])
    assert (volume.num_channels, *volume.box.size) == whole.shape
    first = data.draw(st.tuples(*[st.integers(-3, n) for n in whole.shape[1:]]))
    size = data.draw(st.tuples(*[st.integers(1, n + 6) for n in whole.shape[1:]]))
    channel = data.draw(st.integers(0, len(whole) - 1))
    out = np.full((len(whole) - channel, *size), 9, np.uint16, order=data.draw(st.sampled_from("CF")))
    volume.read_into(out, first, channel)
    padded = np.pad(whole, [(0, 0)] + [(30, 30)] * 3)
    part = tuple(slice(a + 30, a + 30 + n) for a, n in zip(first, size, strict=True))
    np.testing.assert_array_equal(out, padded[(slice(channel, None), *part)])


def test_absent_chunks_that_are_not_zero(tmp_path):
    """Then nothing is known of what is stored, and all is read."""
    stored = zarr.create_array(tmp_path / "a", shape=(20, 20, 20), dtype=np.uint8, chunks=(8, 8, 8), fill_value=5)
    stored[:8] = 1
    volume = volume_of(tmp_path / "a")
    assert volume.occupied((8, 8, 8)).all()
    assert volume.shard_exists((0, 0, 0))
    assert read(volume)[0].min() == 1
    assert len(volume.stored_states()) == 1  # the state of its record


def test_types(tmp_path):
    for dtype, expected in (("bool", "uint8"), ("float16", "float32"), (">i4", "int32")):
        array = (ARRAY % 2).astype(dtype)
        write(tmp_path / dtype, array, (16, 16, 16), dimension_names=list("xyz"))
        volume = volume_of(tmp_path / dtype)
        assert volume.dtype == expected
        np.testing.assert_array_equal(read(volume)[0][0], array)
    write(tmp_path / "c", ARRAY.astype(np.complex64), (16, 16, 16))
    with pytest.raises(UnsupportedError, match="holds complex64, expected whole or real numbers"):
        volume_of(tmp_path / "c")


def test_broken_and_replaced(tmp_path):
    write(tmp_path / "a", ARRAY, (16, 16, 16), dimension_names=list("xyz"), shards=(32, 32, 32))
    volume = volume_of(tmp_path / "a")
    shard = tmp_path / "a" / "c" / "0" / "0" / "0"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CorruptError, match=r"a: \(0, 0, 0\) \+ \(50, 37, 23\) in mag 1 cannot be read: Stored and computed checksum do not match"):
        read(volume)
    record = tmp_path / "a" / "zarr.json"
    document = json.loads(record.read_text())
    record.write_text(json.dumps({**document, "attributes": {"more": 1}}))
    assert volume.is_current()  # what is stored is the same
    record.write_text(json.dumps({**document, "shape": [50, 37, 40]}))
    with pytest.raises(ReplacedError, match=r"zarr.json describes another array since it was opened"):
        read(volume)
    os.rename(tmp_path / "a", tmp_path / "old")
    with pytest.raises(MissingError, match="the array is gone"):
        read(volume)


# ------------------------------------------------------------------------------------------------ layers


def image(scales, centres=None, units="nanometer", **others):
    """Attributes of an image of axes z, y, x."""
    datasets = []
    for number, scale in enumerate(scales):
        steps = [{"type": "scale", "scale": scale}]
        if centres is not None:
            steps.append({"type": "translation", "translation": centres[number]})
        datasets.append({"path": f"{number}", "coordinateTransformations": steps})
    axes = [{"name": letter, "type": "space", **({} if units is None else {"unit": units})} for letter in "zyx"]
    return {"ome": {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets, **others}]}}


def placed(attributes, shapes):
    found = parse_image(attributes, "em")
    return [(place.mag, place.lengths_nm, place.offset) for place in place_levels(found, ["zyx"] * len(shapes), shapes)]


SHAPES = [(30, 40, 50), (30, 20, 25)]
PLACES = [
    # attributes, mag, lengths and offset of the two levels
    (image([[40, 4, 4], [40, 8, 8]]), (4.0, 4.0, 40.0), (0, 0, 0), (8.0, 8.0, 40.0), (0, 0, 0)),
    (image([[40, 4, 4], [40, 8, 8]], [[80, 40, 48], [80, 42, 50]]), (4.0, 4.0, 40.0), (12, 10, 2), (8.0, 8.0, 40.0), (6, 5, 2)),
    (image([[40, 4, 4], [40, 8, 8]], [[80, 40, 48], [80, 40, 48]]), (4.0, 4.0, 40.0), (12, 10, 2), (8.0, 8.0, 40.0), (6, 5, 2)),  # corners of voxels
    (image([[0.04, 0.004, 0.004], [0.04, 0.008, 0.008]], units="micrometer"), (4.0, 4.0, 40.0), (0, 0, 0), (8.0, 8.0, 40.0), (0, 0, 0)),
    (
        image([[1, 1, 1], [1, 2, 2]], coordinateTransformations=[{"type": "scale", "scale": [40, 4, 4]}]),  # one for all levels
        (4.0, 4.0, 40.0), (0, 0, 0), (8.0, 8.0, 40.0), (0, 0, 0),
    ),
    (image([[1, 1, 1], [1, 2, 2]], units=None), None, (0, 0, 0), None, (0, 0, 0)),
    ({"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}]}]}, None, (0, 0, 0), None, (0, 0, 0)),  # version 0.1: by the lengths alone
]  # fmt: skip


@pytest.mark.parametrize(("attributes", "finest_nm", "first", "coarser_nm", "second"), PLACES)
def test_places(attributes, finest_nm, first, coarser_nm, second):
    assert placed(attributes, SHAPES) == [(Mag(1, 1, 1), finest_nm, first), (Mag(2, 2, 1), coarser_nm, second)]


def test_levels_that_are_listed_coarsest_first(tmp_path):
    """The finest one is told by its voxels, or where nobody says how large these are, by its length."""
    scales = [[40, 8, 8], [40, 4, 4]]
    found = parse_image(image(scales, [[80, 42, 50], [80, 40, 48]]), "em")
    assert [level.path for level in found.levels] == ["1", "0"]
    assert [(place.mag, place.offset) for place in place_levels(found, ["zyx"] * 2, SHAPES)] == [(Mag(1, 1, 1), (12, 10, 2)), (Mag(2, 2, 1), (6, 5, 2))]
    unscaled = {"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}]}]}
    assert [mag for mag, _, _ in placed(unscaled, SHAPES[::-1])] == [Mag(2, 2, 1), Mag(1, 1, 1)]
    group = zarr.create_group(tmp_path / "em")
    fine = np.random.default_rng(0).integers(0, 255, SHAPES[0]).astype("u1")
    for name, array in (("0", fine[:, ::2, ::2]), ("1", fine)):
        group.create_array(name, shape=array.shape, chunks=(8, 8, 8), dtype="u1")[...] = array
    group.attrs.update(image(scales))
    (layer,) = find_zarr_layers(tmp_path / "em")
    assert [(mag.name, path.rpartition("/")[2]) for mag, path in layer.mags.items()] == [("1", "1"), ("2-2-1", "0")]
    assert layer.voxel_size_nm == (4, 4, 40)
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "em")[0], fine.T)
    opened = open_foreign(tmp_path / "em", Placing((0, 0, 0), Mag(1, 1, 1)))
    assert (opened.volume.box.size, opened.voxel_size_nm) == ((50, 40, 30), (4, 4, 40))


def test_other_attributes():
    for attributes in ({}, {"ome": {"multiscales": []}}, {"multiscales": 5}, {"multiscales": [{"axes": ["x"]}]}, {"ome": {"plate": {}}}):
        assert parse_image(attributes, "em") is None
    assert parse_image({"ome": {"image-label": {}, "multiscales": [{"axes": list("zyx"), "datasets": [{"path": "0"}]}]}}, "em").is_labels
    assert placed(image([[1, 1, 1], [1, 3, 3]]), SHAPES)[1][0] is None


def test_axes():
    assert axes_of((30, 40, 50), (None, None, None), "f") == "zyx"
    assert axes_of((40, 50), (), "f") == "yx"
    assert axes_of((50, 40, 2), ("X", "Y", "Channel"), "f") == "xyc"
    with pytest.raises(UnsupportedError, match="f: has an axis 't' of length 2"):
        axes_of((2, 1, 30, 40, 50), (), "f")
    with pytest.raises(UnsupportedError, match=r"f: an array of shape \(5,\) whose axes have no names"):
        axes_of((5,), (), "f")


@pytest.fixture
def group(tmp_path):
    """A group with an image, its labels, and an array with the attributes of an export."""
    root = tmp_path / "g.zarr"
    zarr.open_group(root, mode="w", zarr_format=3)
    whole = np.ascontiguousarray(ARRAY.T)
    made = zarr.open_group(root / "em", mode="w", zarr_format=3)
    made.attrs.update(image([[40, 4, 4], [80, 8, 8], [1, 1, 1]]))
    for number, step in enumerate((1, 2)):
        write(root / "em" / str(number), np.ascontiguousarray(whole[::step, ::step, ::step]), (8, 16, 16))
    attributes = {"mag": [2, 2, 1], "offset_vx": [5, 6, 7], "voxel_size_nm": [8, 8, 40]}
    write(root / "alone", whole, (8, 16, 16), dimension_names=list("zyx"), attributes=attributes)
    return root


def test_layers_of_a_group(group):
    layers = find_zarr_layers(group)
    assert [(layer.name, list(layer.mags), layer.voxel_size_nm) for layer in layers] == [
        ("alone", [Mag(2, 2, 1)], (4.0, 4.0, 40.0)), ("em", [Mag(1, 1, 1), Mag(2, 2, 2)], (4.0, 4.0, 40.0)),
    ]  # fmt: skip
    assert layers[0].volume().box == BoundingBox((5, 6, 7), (50, 37, 23), Mag(2, 2, 1))
    assert [level.problem.rpartition(": ")[2] for level in layers[1].levels] == ["", "", "not found, though the image lists it"]
    (one,) = find_zarr_layers(f"zarr://{group}/em/1")
    assert (one.name, one.key, one.mag, one.volume().box.size) == ("em", "1", Mag(2, 2, 2), (25, 19, 12))
    with pytest.raises(MissingError, match="em/2: not found, though the image lists it"):
        layers[1].levels[2].open()


def test_what_is_zarr(group, tmp_path):
    for url in (group, group / "em", group / "em" / "0", f"zarr://{tmp_path}/x", "zarr3://https://host/x", "s3://bucket/x.zarr/|zarr3:"):
        assert is_zarr(url)
    assert is_plain_zarr(group)
    assert not is_plain_zarr(f"zarr://{group}")
    for url in (tmp_path, "", 5, "https://host/x.zarr", f"n5://{tmp_path}"):
        assert not is_zarr(url)
    with pytest.raises(MissingError, match="no Zarr array or group here"):
        find_zarr_layers(f"zarr://{tmp_path}/nothing")
    zarr.open_group(tmp_path / "empty", mode="w")
    with pytest.raises(MissingError, match="a Zarr group without arrays"):
        find_zarr_layers(tmp_path / "empty")
    (tmp_path / "empty" / "zarr.json").write_text("{")
    with pytest.raises(CorruptError, match="not readable as Zarr array or group"):
        find_zarr_layers(tmp_path / "empty")


def test_remote(group):
    pytest.importorskip("aiohttp", reason="the driver of http")
    with range_server(group) as server:
        (layer,) = find_zarr_layers(f"zarr://{server.url}/em")
        assert (list(layer.mags), layer.voxel_size_nm) == ([Mag(1, 1, 1), Mag(2, 2, 2)], (4.0, 4.0, 40.0))
        volume = layer.volume().volume
        box = BoundingBox((30, 20, 3), (10, 10, 10))
        np.testing.assert_array_equal(read(volume, box)[0][0], ARRAY[30:40, 20:30, 3:13])
        assert volume.occupied(cell_box((0, 0, 0), (64, 64, 64), volume.box).size).all()
        assert (volume.opened, len(volume.stored_states())) == (None, 0)
        with pytest.raises(MissingError):
            find_zarr_layers(f"zarr://{server.url}/nothing")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.sampled_from(["x", "y", "z", "scale", "translation", "nanometer", "0"])
    | st.just(10**400)
    | st.integers(-3, 9),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(["name", "unit", "type", "path", "scale", "translation"]), some),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["axes", "datasets", "coordinateTransformations"]), JSON), st.lists(JSON, max_size=2))
def test_any_attributes(first, steps):
    """Whatever a group says: it is an image whose arrays are placed somewhere, or none."""
    for document in (first, {**first, "datasets": [{"path": "0", "coordinateTransformations": steps}, {"path": "1"}]}):
        found = parse_image({"ome": {"multiscales": [document]}}, "em")
        if found is not None:
            shapes = [(30, 40, 50)] * len(found.levels)
            assert len(place_levels(found, ["zyx"] * len(shapes), shapes)) == len(shapes)


@pytest.mark.parametrize("channels", [1, 4])
def test_an_empty_shard_is_no_zeros(tmp_path, channels):
    """A full disk leaves an empty file, which zarr-python takes for a shard without chunks where it reads the whole of one."""
    array = np.ones((channels, 16, 16, 32), np.uint16)
    write(tmp_path / "a", array, (1, 8, 8, 8), shards=(max(1, channels // 2), 16, 16, 16), dimension_names=list("czyx"))
    volume = volume_of(tmp_path / "a")
    path = tmp_path / "a" / "c" / str(channels // 4) / "0" / "0" / "1"
    path.write_bytes(b"")
    assert read(volume, BoundingBox((0, 0, 0), (16, 16, 16)))[0].all()
    for box in (volume.box, BoundingBox((15, 0, 0), (4, 4, 4))):
        with pytest.raises(TruncatedError, match=f"{path}: ends at byte 0, expected a shard"):
            read(volume, box)


@pytest.mark.parametrize(
    ("path", "shape", "message"),
    [("../b", (8, 8, 8), "not readable as array: The path"), ("c", (0, 8, 8, 8), "'c' of length 0, expected a channel or more")],
)
def test_an_array_of_an_image_that_cannot_be_used(tmp_path, path, shape, message):
    """It leaves the others alone."""
    group = zarr.create_group(tmp_path / "a")
    group.create_array("0", shape=(8, 8, 8), dtype="u1")[...] = 3
    axes = "czyx" if len(shape) == 4 else "zyx"
    if ".." not in path:
        group.create_array(path, shape=shape, chunks=(1,) * len(shape), dtype="u1")
    scale = [{"type": "scale", "scale": [2] * len(axes)}]
    entries = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1] * len(axes)}]}, {"path": path, "coordinateTransformations": scale}]
    named = [{"name": letter, "type": "channel" if letter == "c" else "space"} for letter in axes]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": named, "datasets": entries}]}
    (layer,) = find_zarr_layers(tmp_path / "a")
    assert [message in level.problem for level in layer.levels if level.problem] == [True]
