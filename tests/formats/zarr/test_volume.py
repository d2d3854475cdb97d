"""Zarr arrays and OME-NGFF images of versions 2 and 3, local and behind a server, as volumes: axes,
places, what is stored, arrays that change."""

from __future__ import annotations

import contextlib
import json
import os
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.precomputed_volumes import labels
from support.range_server import range_server

import wkwdask
from wkwdask import BoundingBox, Mag
from wkwdask.errors import (
    CorruptError,
    MissingError,
    ReplacedError,
    TransformationWarning,
    TruncatedError,
    UnsupportedError,
    WkwDaskError,
)

zarr = pytest.importorskip("zarr", reason="the extra zarr")

ARRAY = labels((50, 37, 23), np.uint16)[0]


def write(folder, array, chunks, **options):
    """Write an array; ``keys`` says how chunks are named."""
    keys = options.pop("keys", ("default", "/"))
    options.setdefault("fill_value", 0)
    options |= {"chunk_key_encoding": {"name": keys[0], "separator": keys[1]}}
    stored = zarr.create_array(
        folder, shape=array.shape, dtype=array.dtype, chunks=chunks, **options
    )
    stored[...] = array
    return stored


def opened(folder):
    """The whole array; nothing is read before it is computed."""
    return wkwdask.open(folder, axes="cxyz", chunks=1024)


def computed(array):
    return array.compute(scheduler="synchronous")


def levels_of(url):
    return [
        (scale.key, scale.mag, scale.resolution, scale.box) for scale in wkwdask.info(url).scales
    ]


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
    options = (
        {"dimension_names": list("xyz"), "shards": shards}
        if version == 3
        else {"attributes": {"_ARRAY_DIMENSIONS": list("xyz")}}
    )
    write(
        tmp_path / "a",
        ARRAY,
        (8, 8, 8),
        keys=keys,
        zarr_format=version,
        config={"write_empty_chunks": False},
        **options,
    )
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "a")[0], ARRAY)
    assert not wkwdask.read(tmp_path / "a", ((0, 0, 0), (32, 16, 23))).any()
    (scale,) = wkwdask.info(tmp_path / "a").scales
    files = [
        path
        for path in (tmp_path / "a").rglob("*")
        if path.is_file() and path.name not in ("zarr.json", ".zarray", ".zattrs")
    ]
    assert (scale.files, scale.nbytes) == (len(files), sum(path.stat().st_size for path in files))
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 40))
    wkwdask.convert(tmp_path / "a", tmp_path / "ds", layer="em", axes="xyz")
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds", layer="em", mag=1)[0], ARRAY)


@given(st.data())
def test_any_box(tmp_path_factory, data):
    """Any box, in any order of axes, beside the array in memory."""
    axes = data.draw(st.sampled_from(["zyx", "czyx", "xyz", "yx", "tczyx"]))
    lengths = {"x": 20, "y": 17, "z": 9, "c": 3, "t": 1}
    shape = [lengths[letter] for letter in axes]
    array = ARRAY.ravel()[: np.prod(shape)].reshape(shape)
    folder = tmp_path_factory.mktemp("any") / "a"
    write(
        folder,
        array,
        tuple(data.draw(st.integers(-(-n // 3), n)) for n in shape),
        dimension_names=list(axes),
    )
    kept = axes.removeprefix("t")
    letters = [letter for letter in "cxyz" if letter not in kept] + list(kept)
    whole = array.reshape([1] * (4 - len(kept)) + [lengths[letter] for letter in kept]).transpose(
        [letters.index(letter) for letter in "cxyz"]
    )
    np.testing.assert_array_equal(wkwdask.read(folder), whole)
    low = data.draw(st.tuples(*[st.integers(0, n - 1) for n in whole.shape[1:]]))
    high = [data.draw(st.integers(a + 1, n)) for a, n in zip(low, whole.shape[1:], strict=True)]
    part = (slice(None), *map(slice, low, high))
    np.testing.assert_array_equal(wkwdask.read(folder, (low, high)), whole[part])
    channel = data.draw(st.integers(0, len(whole) - 1))
    np.testing.assert_array_equal(
        computed(wkwdask.open(folder, channel=channel, axes="xyz", chunks=9)[part[1:]]),
        whole[channel][part[1:]],
    )


def test_a_fill_value_in_hexadecimal_fills_absent_chunks(tmp_path):
    stored = zarr.create_array(
        tmp_path / "a.zarr", shape=(20, 20, 20), dtype=np.float32, chunks=(8, 8, 8), fill_value=2.5
    )
    stored[:8] = 1
    path = tmp_path / "a.zarr" / "zarr.json"
    path.write_text(path.read_text().replace('"fill_value": 2.5', '"fill_value": "0x40200000"'))
    expected = zarr.open_array(tmp_path / "a.zarr", mode="r")[:].transpose(2, 1, 0)[None]
    assert expected[0, 0, 0, 19] == 2.5
    array = wkwdask.open(tmp_path / "a.zarr", axes="cxyz")
    np.testing.assert_array_equal(array.compute(), expected)
    wkwdask.convert(
        tmp_path / "a.zarr", tmp_path / "ds" / "color" / "1", axes="zyx", voxel_size=(1, 1, 1)
    )
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds" / "color" / "1"), expected)


def test_absent_chunks_that_are_not_zero(tmp_path):
    """Then nothing is known of what is stored, and all is read."""
    stored = zarr.create_array(
        tmp_path / "a", shape=(20, 20, 20), dtype=np.uint8, chunks=(8, 8, 8), fill_value=5
    )
    stored[:8] = 1
    expected = np.full((1, 20, 20, 20), 5)
    expected[:, :, :, :8] = 1  # the axes are those of zyx
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "a"), expected)
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 40))
    wkwdask.convert(tmp_path / "a", tmp_path / "ds", layer="em")
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds", layer="em", mag=1), expected)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("length", [0, -4])
def test_chunks_without_voxels_are_refused(tmp_path, zarr_format, length):
    write(
        tmp_path / "a",
        ARRAY,
        (16, 16, 16),
        zarr_format=zarr_format,
        keys=("v2", ".") if zarr_format == 2 else ("default", "/"),
    )
    path = tmp_path / "a" / (".zarray" if zarr_format == 2 else "zarr.json")
    document = json.loads(path.read_text())
    grid = document if zarr_format == 2 else document["chunk_grid"]["configuration"]
    grid["chunks" if zarr_format == 2 else "chunk_shape"] = [16, length, 16]
    path.write_text(json.dumps(document))
    message = f"{path}: cannot be read: chunks: expected 3 positive lengths, found [16, {length}"
    with pytest.raises(CorruptError, match=re.escape(message)):
        wkwdask.read(tmp_path / "a")


def test_types(tmp_path):
    for dtype, expected in (("bool", "bool"), ("float16", "float16"), (">i4", "int32")):
        array = (ARRAY % 2).astype(dtype)
        write(tmp_path / dtype, array, (16, 16, 16), dimension_names=list("xyz"))
        found = wkwdask.read(tmp_path / dtype)
        assert found.dtype == expected
        np.testing.assert_array_equal(found[0], array)
    write(tmp_path / "c", ARRAY.astype(np.complex64), (16, 16, 16))
    with pytest.raises(
        UnsupportedError, match="holds complex64, expected integers or real numbers"
    ):
        wkwdask.open(tmp_path / "c")


def test_broken_and_replaced(tmp_path):
    write(tmp_path / "a", ARRAY, (16, 16, 16), dimension_names=list("xyz"), shards=(32, 32, 32))
    array = opened(tmp_path / "a")
    shard = tmp_path / "a" / "c" / "0" / "0" / "0"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(
        CorruptError, match=r"a/c/0/0/0: the index of the shard does not have the checksum"
    ):
        computed(array)
    record = tmp_path / "a" / "zarr.json"
    document = json.loads(record.read_text())
    record.write_text(json.dumps({**document, "attributes": {"more": 1}}))
    record.write_text(json.dumps({**document, "shape": [50, 37, 40]}))
    with pytest.raises(
        ReplacedError, match=r"zarr.json describes another array since it was opened"
    ):
        computed(array)
    os.rename(tmp_path / "a", tmp_path / "old")
    with pytest.raises(MissingError, match="the array is gone"):
        computed(array)


# ------------------------------------------------------------------------------------------------
# layers


def image(scales, centers=None, units="nanometer", **others):
    """Attributes of an image of axes z, y, x."""
    datasets = []
    for number, scale in enumerate(scales):
        steps = [{"type": "scale", "scale": scale}]
        if centers is not None:
            steps.append({"type": "translation", "translation": centers[number]})
        datasets.append({"path": f"{number}", "coordinateTransformations": steps})
    axes = [
        {"name": letter, "type": "space", **({} if units is None else {"unit": units})}
        for letter in "zyx"
    ]
    return {
        "ome": {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets, **others}]}
    }


def placed(folder, attributes, shapes):
    """Write an image of empty levels; where each of them is."""
    group = zarr.create_group(folder)
    for number, shape in enumerate(shapes):
        group.create_array(str(number), shape=shape, chunks=(8, 8, 8), dtype="u1")
    group.attrs.update(attributes)
    return [(mag, lengths, box and box.topleft) for _, mag, lengths, box in levels_of(folder)]


SHAPES = [(30, 40, 50), (30, 20, 25)]
PLACES = [
    # attributes, mag, lengths and offset of the two levels
    (image([[40, 4, 4], [40, 8, 8]]), (4.0, 4.0, 40.0), (0, 0, 0), (8.0, 8.0, 40.0), (0, 0, 0)),
    (
        image([[40, 4, 4], [40, 8, 8]], [[80, 40, 48], [80, 42, 50]]),
        (4.0, 4.0, 40.0),
        (12, 10, 2),
        (8.0, 8.0, 40.0),
        (6, 5, 2),
    ),
    # corners of voxels
    (
        image([[40, 4, 4], [40, 8, 8]], [[80, 40, 48], [80, 40, 48]]),
        (4.0, 4.0, 40.0),
        (12, 10, 2),
        (8.0, 8.0, 40.0),
        (6, 5, 2),
    ),
    (
        image([[0.04, 0.004, 0.004], [0.04, 0.008, 0.008]], units="micrometer"),
        (4.0, 4.0, 40.0),
        (0, 0, 0),
        (8.0, 8.0, 40.0),
        (0, 0, 0),
    ),
    (
        # one for all levels
        image(
            [[1, 1, 1], [1, 2, 2]],
            coordinateTransformations=[{"type": "scale", "scale": [40, 4, 4]}],
        ),
        (4.0, 4.0, 40.0),
        (0, 0, 0),
        (8.0, 8.0, 40.0),
        (0, 0, 0),
    ),
    (image([[1, 1, 1], [1, 2, 2]], units=None), None, (0, 0, 0), None, (0, 0, 0)),
    # version 0.1: by the lengths alone
    (
        {"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}]}]},
        None,
        (0, 0, 0),
        None,
        (0, 0, 0),
    ),
]


@pytest.mark.parametrize(("attributes", "finest_nm", "first", "coarser_nm", "second"), PLACES)
def test_places(tmp_path, attributes, finest_nm, first, coarser_nm, second):
    assert placed(tmp_path / "em", attributes, SHAPES) == [
        (Mag(1, 1, 1), finest_nm, first),
        (Mag(2, 2, 1), coarser_nm, second),
    ]


@pytest.mark.parametrize(
    ("scale", "centers", "text"),
    [
        ([1, 40, 4, 4], None, "scale of the array '0', 4 numbers for 3 axes"),
        ([40, -4, 4], None, r"scale of the array '0', which is not positive: \[40.0, -4.0, 4.0\]"),
        ([40, 4, 4], [[8, 4]], "translation of the array '0', 2 numbers for 3 axes"),
    ],
)
def test_a_warning_names_numbers_that_place_nothing(tmp_path, scale, centers, text):
    group = zarr.create_group(tmp_path / "em")
    group.create_array("0", shape=SHAPES[0], chunks=(8, 8, 8), dtype="u1")
    group.attrs.update(image([scale], centers))
    with pytest.warns(TransformationWarning, match=f"em: not applied: {text}$"):
        wkwdask.open(tmp_path / "em")
    (note,) = wkwdask.info(tmp_path / "em").notes
    assert re.fullmatch(f"not applied: {text}", note)


def test_levels_that_are_listed_coarsest_first(tmp_path):
    """The finest one is told by its voxels, or where nobody says how large these are, by its
    length."""
    scales = [[40, 8, 8], [40, 4, 4]]
    assert placed(tmp_path / "a", image(scales, [[80, 42, 50], [80, 40, 48]]), SHAPES[::-1]) == [
        (Mag(1, 1, 1), (4, 4, 40), (12, 10, 2)), (Mag(2, 2, 1), (8, 8, 40), (6, 5, 2)),
    ]  # fmt: skip
    unscaled = {"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}]}]}
    assert {mag for mag, _, _ in placed(tmp_path / "b", unscaled, SHAPES[::-1])} == {
        Mag(2, 2, 1),
        Mag(1, 1, 1),
    }
    group = zarr.create_group(tmp_path / "em")
    fine = np.random.default_rng(0).integers(0, 255, SHAPES[0]).astype("u1")
    for name, array in (("0", fine[:, ::2, ::2]), ("1", fine)):
        group.create_array(name, shape=array.shape, chunks=(8, 8, 8), dtype="u1")[...] = array
    group.attrs.update(image(scales))
    assert [(mag.name, key) for key, mag, _, _ in levels_of(tmp_path / "em")] == [
        ("1", "1"),
        ("2-2-1", "0"),
    ]
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "em")[0], fine.T)
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 40))
    wkwdask.convert(tmp_path / "em", tmp_path / "ds", layer="em")
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds", layer="em", mag=1)[0], fine.T)


@pytest.fixture
def group(tmp_path):
    """A group with an image, its labels, and an array with the attributes of an export."""
    root = tmp_path / "g.zarr"
    zarr.open_group(root, mode="w", zarr_format=3)
    whole = np.ascontiguousarray(ARRAY.T)
    made = zarr.open_group(root / "em", mode="w", zarr_format=3)
    made.attrs.update(image([[40, 4, 4], [80, 8, 8], [1, 1, 1]]))
    for number, step in enumerate((1, 2)):
        write(
            root / "em" / str(number),
            np.ascontiguousarray(whole[::step, ::step, ::step]),
            (8, 16, 16),
        )
    attributes = {"mag": [2, 2, 1], "offset_vx": [5, 6, 7], "voxel_size_nm": [8, 8, 40]}
    write(root / "alone", whole, (8, 16, 16), dimension_names=list("zyx"), attributes=attributes)
    return root


def test_layers_of_a_group(group):
    assert levels_of(group / "alone") == [
        (
            "alone",
            Mag(2, 2, 1),
            (8.0, 8.0, 40.0),
            BoundingBox((5, 6, 7), (50, 37, 23), Mag(2, 2, 1)),
        )
    ]
    assert [level[:3] for level in levels_of(group / "em")[:2]] == [
        ("0", Mag(1, 1, 1), (4, 4, 40)),
        ("1", Mag(2, 2, 2), (8, 8, 80)),
    ]
    assert [scale.problem.rpartition(": ")[2] for scale in wkwdask.info(group / "em").scales] == [
        "",
        "",
        "not found, though the image lists it",
    ]
    np.testing.assert_array_equal(wkwdask.read(f"zarr://{group}/em/1")[0], ARRAY[::2, ::2, ::2])


def test_what_is_zarr(tmp_path):
    with pytest.raises(MissingError, match="no Zarr array or group here"):
        wkwdask.open(f"zarr://{tmp_path}/nothing")
    zarr.open_group(tmp_path / "empty", mode="w")
    with pytest.raises(MissingError, match="a Zarr group without arrays"):
        wkwdask.open(tmp_path / "empty")
    (tmp_path / "empty" / "zarr.json").write_text("{")
    with pytest.raises(CorruptError, match="not readable as Zarr array or group"):
        wkwdask.open(tmp_path / "empty")


def test_remote(group):
    pytest.importorskip("obstore", reason="reads http")
    with range_server(group) as server:
        assert [level[:3] for level in levels_of(f"zarr://{server.url}/em")[:2]] == [
            ("0", Mag(1, 1, 1), (4, 4, 40)),
            ("1", Mag(2, 2, 2), (8, 8, 80)),
        ]
        np.testing.assert_array_equal(
            wkwdask.read(f"zarr://{server.url}/em", ((30, 20, 3), (40, 30, 13)))[0],
            ARRAY[30:40, 20:30, 3:13],
        )
        with pytest.raises(MissingError):
            wkwdask.open(f"zarr://{server.url}/nothing")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.sampled_from(["x", "y", "z", "scale", "translation", "nanometer", "0"])
    | st.just(10**400)
    | st.integers(-3, 9),
    lambda some: (
        st.lists(some, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "unit", "type", "path", "scale", "translation"]), some
        )
    ),
    max_leaves=10,
)


@pytest.mark.filterwarnings("ignore::wkwdask.errors.TransformationWarning")
@given(
    st.dictionaries(st.sampled_from(["axes", "datasets", "coordinateTransformations"]), JSON),
    st.lists(JSON, max_size=2),
)
def test_any_attributes(tmp_path_factory, first, steps):
    """Whatever a group says: its levels are placed somewhere, or it is no image, or an error of the
    package says why."""
    for document in (
        first,
        {**first, "datasets": [{"path": "0", "coordinateTransformations": steps}, {"path": "1"}]},
    ):
        folder = tmp_path_factory.mktemp("any")
        group = zarr.create_group(folder / "em")
        for name in "01":
            group.create_array(name, shape=(30, 40, 50), chunks=(8, 8, 8), dtype="u1")
        path = folder / "em" / "zarr.json"
        path.write_text(
            json.dumps(
                {**json.loads(path.read_text()), "attributes": {"ome": {"multiscales": [document]}}}
            )
        )
        with contextlib.suppress(WkwDaskError):
            wkwdask.info(folder / "em")
        with contextlib.suppress(WkwDaskError, ValueError):
            wkwdask.open(folder / "em")


@pytest.mark.parametrize("channels", [1, 4])
def test_an_empty_shard_is_no_zeros(tmp_path, channels):
    """A full disk leaves an empty file, which zarr-python takes for a shard without chunks where it
    reads the whole of one."""
    array = np.ones((channels, 16, 16, 32), np.uint16)
    write(
        tmp_path / "a",
        array,
        (1, 8, 8, 8),
        shards=(max(1, channels // 2), 16, 16, 16),
        dimension_names=list("czyx"),
    )
    path = tmp_path / "a" / "c" / str(channels // 4) / "0" / "0" / "1"
    path.write_bytes(b"")
    assert wkwdask.read(tmp_path / "a", ((0, 0, 0), (16, 16, 16)))[0].all()
    for box in (None, ((15, 0, 0), (19, 4, 4))):
        with pytest.raises(TruncatedError, match=f"{path}: ends at byte 0, expected a shard"):
            wkwdask.read(tmp_path / "a", box)


@pytest.mark.parametrize(
    ("path", "shape", "message"),
    [
        ("../b", (8, 8, 8), "expected a path inside the group"),
        ("c", (0, 8, 8, 8), "'c' of length 0, expected at least one channel"),
    ],
)
def test_an_array_of_an_image_that_cannot_be_used(tmp_path, path, shape, message):
    """It leaves the others alone."""
    group = zarr.create_group(tmp_path / "a")
    axes = "czyx" if len(shape) == 4 else "zyx"
    group.create_array("0", shape=(2, 8, 8, 8)[-len(shape) :], dtype="u1")[...] = 3
    if ".." not in path:
        group.create_array(path, shape=shape, chunks=(1,) * len(shape), dtype="u1")
    scale = [{"type": "scale", "scale": [2] * len(axes)}]
    entries = [
        {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1] * len(axes)}]},
        {"path": path, "coordinateTransformations": scale},
    ]
    named = [{"name": letter, "type": "channel" if letter == "c" else "space"} for letter in axes]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": named, "datasets": entries}]}
    scales = wkwdask.info(tmp_path / "a").scales
    assert [message in scale.problem for scale in scales if scale.problem] == [True]
    assert (wkwdask.read(tmp_path / "a", mag="0") == 3).all()
