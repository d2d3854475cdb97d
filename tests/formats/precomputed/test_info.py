"""``info`` of precomputed volumes: everything that is tolerated, everything that is wrong, and
edits that keep what they do not know."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.precomputed_volumes import sharding_for

from wkwdask.errors import CorruptError, FormatError, MissingError, UnsupportedError
from wkwdask.formats.precomputed.array import scale_array
from wkwdask.formats.precomputed.info import (
    Scale,
    default_key,
    mag_of,
    new_document,
    parse_info,
    with_scales,
)
from wkwdask.formats.precomputed.layer import VolumeSource
from wkwdask.formats.precomputed.sharding import Sharding
from wkwdask.formats.precomputed.writable import check_encoding, check_writable, is_lossy
from wkwdask.geometry.mag import Mag
from wkwdask.model.json_text import format_json
from wkwdask.store.store import open_store

ENTRY = {
    "key": "8_8_40",
    "size": [100, 90, 80],
    "voxel_offset": [-7, 0, 3],
    "chunk_sizes": [[64, 64, 64]],
    "resolution": [8, 8, 40],
    "encoding": "raw",
}
DOCUMENT = {
    "@type": "neuroglancer_multiscale_volume",
    "type": "image",
    "data_type": "uint8",
    "num_channels": 1,
    "scales": [ENTRY],
}
SHARDING = {
    "@type": "neuroglancer_uint64_sharded_v1",
    "hash": "identity",
    "preshift_bits": 1,
    "minishard_bits": 1,
    "shard_bits": 2,
}


def _mags(info):
    return tuple(mag_of(info, scale) for scale in info.scales)


def _parsed(changes=(), entry=(), without=()):
    scale = {name: value for name, value in {**ENTRY, **dict(entry)}.items() if name not in without}
    document = {**DOCUMENT, "scales": [scale], **dict(changes)}
    return parse_info(
        json.dumps({name: value for name, value in document.items() if name not in without}),
        "v/info",
    )


def test_all_fields():
    info = _parsed(
        {"type": "segmentation", "data_type": "uint64", "mesh": "mesh"},
        {"hidden": True, "rois": [1], "sharding": SHARDING},
    )
    assert (info.type, info.dtype, info.num_channels, info.unusable, info.redirect) == (
        "segmentation",
        np.dtype("uint64"),
        1,
        (),
        None,
    )
    (scale,) = info.scales
    assert scale == Scale(
        "8_8_40",
        (100, 90, 80),
        (-7, 0, 3),
        (64, 64, 64),
        (8, 8, 40),
        "raw",
        Sharding(1, 1, 2),
        None,
        True,
        ((64, 64, 64),),
        {},
    )
    assert info.document["mesh"] == "mesh"
    assert scale.entry["rois"] == [1]
    assert scale.grid == (2, 2, 2)


def test_names_and_lengths_of_chunks():
    info = _parsed()
    array = scale_array(open_store("/v"), info, info.scales[0], Mag(1, 1, 1)).moved((7, 0, -3))
    assert array.files.shard_path((0, 0, 0)) == "/v/8_8_40/-7-57_0-64_3-67"
    assert [
        name for _, name in array.naming.keys((range(1), range(1, 2), range(1), range(1, 2)))
    ] == ["57-93_0-64_67-83"]
    assert array.grid.shape_at((0, 1, 0, 1)) == (1, 36, 64, 16)


TOLERATED = [
    # changes of the volume, changes of the scale, without, what is read
    ({}, {}, ["@type"], lambda i: i.scales[0].key == "8_8_40"),
    ({"data_type": "UINT8"}, {}, [], lambda i: i.dtype == np.uint8),
    ({}, {}, ["num_channels"], lambda i: i.num_channels == 1),
    ({"num_channels": 3.0}, {}, [], lambda i: i.num_channels == 3),
    ({}, {}, ["type"], lambda i: i.type == "image"),
    ({"type": "SEGMENTATION"}, {}, [], lambda i: i.type == "segmentation"),
    ({}, {}, ["voxel_offset"], lambda i: i.scales[0].voxel_offset == (0, 0, 0)),
    ({}, {"voxel_offset": None}, [], lambda i: i.scales[0].voxel_offset == (0, 0, 0)),
    ({}, {"size": [8.0, 1e1, 3]}, [], lambda i: i.scales[0].size == (8, 10, 3)),
    ({}, {"resolution": [4.5, 4, 40.25]}, [], lambda i: i.scales[0].resolution == (4.5, 4, 40.25)),
    ({}, {"sharding": None}, [], lambda i: i.scales[0].sharding is None),
    ({}, {"encoding": "RAW"}, [], lambda i: i.scales[0].encoding == "raw"),
    ({}, {"sharding": SHARDING}, [], lambda i: i.scales[0].sharding.data_encoding == "raw"),
    ({}, {"key": "../other/8_8_40"}, [], lambda i: i.scales[0].key == "../other/8_8_40"),
    (
        {},
        {"compressed_segmentation_block_size": "nonsense that nobody needs"},
        [],
        lambda i: i.scales[0].block_size is None,
    ),
    (
        {},
        {"jpeg_quality": 3, "jxl_effort": 2},
        [],
        lambda i: i.scales[0].options == {"jpeg_quality": 3, "jxl_effort": 2},
    ),
    ({"scales": []}, {}, [], lambda i: i.scales == ()),
]


@pytest.mark.parametrize(("changes", "entry", "without", "check"), TOLERATED)
def test_tolerated(changes, entry, without, check):
    info = _parsed(changes, entry, without)
    assert info.unusable == ()
    assert check(info)


WRONG_SCALES = [
    # changes of the scale, what is said
    ({"key": 3}, "scales[0].key: expected a folder, found 3"),
    ({"size": [1, 2]}, "scales[0].size: expected three whole numbers of 1 to 2^53, found [1, 2]"),
    ({"key": "8\0"}, 'scales[0].key: expected a folder, found "8\\u0000"'),
    ({"key": "\ud800"}, 'scales[0].key: expected a folder, found "\\ud800"'),
    (
        {"size": [1, 2, 0]},
        "scales[0].size: expected three whole numbers of 1 to 2^53, found [1, 2, 0]",
    ),
    (
        {"size": [1, 2, 2.5]},
        "scales[0].size: expected three whole numbers of 1 to 2^53, found [1, 2, 2.5]",
    ),
    (
        {"size": [1, 2, True]},
        "scales[0].size: expected three whole numbers of 1 to 2^53, found [1, 2, true]",
    ),
    (
        {"voxel_offset": [0, 0, "1"]},
        'scales[0].voxel_offset: expected three whole numbers of at most 2^53, found [0, 0, "1"]',
    ),
    (
        {"voxel_offset": [0, 0, 2**63]},
        (
            "scales[0].voxel_offset: expected three whole numbers of at most 2^53, found [0, 0, "
            f"{2**63}]"
        ),
    ),
    ({"chunk_sizes": []}, "scales[0].chunk_sizes: expected a list of chunk sizes, found []"),
    (
        {"chunk_sizes": [[8, 8, 8], [8, 8]]},
        "scales[0].chunk_sizes[1]: expected three whole numbers of 1 to 2^53, found [8, 8]",
    ),
    (
        {"resolution": [8, 8, 0]},
        "scales[0].resolution: expected three positive numbers, found [8, 8, 0]",
    ),
    (
        {"resolution": [8, 8, float("nan")]},
        "scales[0].resolution: expected three positive numbers, found [8, 8, NaN]",
    ),
    (
        {"resolution": [8, 8, float("inf")]},
        "scales[0].resolution: expected three positive numbers, found [8, 8, Infinity]",
    ),
    (
        {"encoding": None},
        (
            "scales[0].encoding: expected one of raw, compressed_segmentation, compresso, jpeg, "
            "png, jxl, found null"
        ),
    ),
    (
        {"encoding": "compressed_segmentation"},
        (
            "scales[0].compressed_segmentation_block_size: expected three whole numbers of 1 to "
            "2^53, found null"
        ),
    ),
    ({"sharding": [1]}, "scales[0].sharding: expected an object, found [1]"),
    (
        {"sharding": SHARDING, "chunk_sizes": [[8, 8, 8], [9, 9, 9]]},
        (
            "scales[0].chunk_sizes: expected one chunk size, since the scale is sharded, found "
            "[[8, 8, 8], [9, 9, 9]]"
        ),
    ),
    (
        {"sharding": SHARDING, "size": [2**40] * 3},
        "scales[0].chunk_sizes[0]: expected chunks whose identifiers have at most 64 bits, not 102",
    ),
    (
        {"size": [2**40] * 3, "chunk_sizes": [[2**30] * 3]},
        "scales[0].chunk_sizes[0]: expected chunks of at most 17179869184 bytes",
    ),
]


def _image(info):
    return VolumeSource(
        SimpleNamespace(
            url="v", path_of=str, below=lambda key: SimpleNamespace(url=key), is_remote=True
        ),
        info,
    ).image()


@pytest.mark.parametrize(("entry", "message"), WRONG_SCALES)
def test_a_wrong_scale_leaves_the_others_alone(entry, message):
    text = json.dumps({**DOCUMENT, "scales": [{**ENTRY, **entry}, {**ENTRY, "key": "sound"}]})
    info = parse_info(text, "v/info")
    assert [(scale.key, scale.index) for scale in info.scales] == [("sound", 1)]
    (unusable,) = info.unusable
    assert unusable.problem.startswith(f"v/info: {message}")
    with pytest.raises(CorruptError, match=r"^v/info: scales\["):
        _image(info).levels[1].open()
    assert _image(info).levels[0].key == "sound"
    assert _image(info).find().details is info.scales[0]


def test_an_encoding_that_is_not_implemented():
    info = parse_info(
        json.dumps(
            {
                **DOCUMENT,
                "scales": [
                    {**ENTRY, "encoding": "crackle"},
                    {**ENTRY, "key": "b", "resolution": [16, 16, 40]},
                ],
            }
        ),
        "v/info",
    )
    with pytest.raises(
        UnsupportedError, match=r'v/info: scales\[0\].encoding: expected one of .*, found "crackle"'
    ):
        _image(info).volume("8_8_40")
    # mags count from the first scale of the file, whether it can be used or not
    assert _mags(info) == (Mag(2, 2, 1),)
    with pytest.raises(UnsupportedError):
        _image(info).volume(1)
    assert _image(info).find("2-2-1").key == "b"


def test_all_problems_at_once():
    with pytest.raises(CorruptError) as caught:
        _parsed(
            {"@type": "neuroglancer_skeletons", "data_type": "int64", "num_channels": 0},
            {"size": None, "key": 5, "sharding": {**SHARDING, "hash": 1}},
        )
    assert str(caught.value) == (
        'v/info: @type: expected "neuroglancer_multiscale_volume", found "neuroglancer_skeletons"; '
        "data_type: expected one of uint8, uint16, uint32, uint64, float32, int8, int16, int32, "
        'found "int64"; '
        "num_channels: expected a whole number of at least 1, found 0; scales[0].key: expected a "
        "folder, found 5; "
        "scales[0].size: expected three whole numbers of 1 to 2^53, found null; "
        'scales[0].sharding.hash: expected "identity" or "murmurhash3_x86_128", found 1'
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "v/info: byte 1: not valid JSON"),
        ("[]", "v/info: expected an object at the top, found list"),
        ("{}", "v/info: data_type: .*; scales: expected a list"),
    ],
)
def test_no_info_at_all(text, message):
    with pytest.raises(CorruptError, match=message):
        parse_info(text, "v/info")


def test_redirect():
    info = parse_info('{"redirect": "../elsewhere"}', "v/info")
    assert (info.redirect, info.scales) == ("../elsewhere", ())
    with pytest.raises(CorruptError, match="redirect: expected a path or URL"):
        parse_info('{"redirect": "a\\u0000"}', "v/info")
    with pytest.raises(CorruptError, match="@type"):
        parse_info('{"redirect": "../elsewhere", "@type": "neuroglancer_annotations_v1"}', "v/info")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**65) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
)


@given(st.data())
def test_any_values(data):
    """Whatever is put in place of one or two values, an info is read or refused, and what was read
    can be used."""
    document = json.loads(
        json.dumps({**DOCUMENT, "scales": [{**ENTRY, "sharding": SHARDING}, ENTRY]})
    )
    places = [document, document["scales"][0], document["scales"][0]["sharding"]]
    for _ in range(data.draw(st.integers(1, 2))):
        target = places[data.draw(st.integers(0, 2))]
        target[data.draw(st.sampled_from(sorted(target)))] = data.draw(JSON)
    try:
        info = parse_info(json.dumps(document), "v/info")
    except FormatError:
        return
    _mags(info)
    for scale in info.scales:
        with contextlib.suppress(CorruptError):  # an encoding that does not have the type
            assert scale_array(open_store("/v"), info, scale, Mag(1, 1, 1)).files.shard_path(
                (0, 0, 0)
            )


@given(st.text(max_size=30) | st.binary(max_size=30).map(lambda raw: raw.decode("latin-1")))
def test_any_text(text):
    with pytest.raises(FormatError):
        parse_info(text, "v/info")


def test_mags():
    resolutions = (
        [11.24, 11.24, 28],
        [22.48, 22.479, 28],
        [44.96, 44.96, 56],
        [33.72, 33.72, 28],
        [5.62, 112.4, 280],
        [11.24, 11.24, 28.2],
    )
    info = _parsed(
        {
            "scales": [
                {**ENTRY, "key": str(n), "resolution": resolution}
                for n, resolution in enumerate(resolutions)
            ]
        }
    )
    assert {scale.key: mag_of(info, scale) for scale in info.scales} == {
        "0": Mag(1, 1, 1), "1": Mag(2, 2, 1), "2": Mag(4, 4, 2), "3": None, "4": None, "5": None,
    }  # fmt: skip
    assert _image(info).find("4-4-2").key == "2"
    assert _image(info).find("3").details.index == 3
    assert _mags(_parsed({"scales": []})) == ()


def test_a_scale_that_is_not_there():
    with pytest.raises(MissingError, match=r"v: no mag or scale 2; there are '8_8_40' \(mag 1\)"):
        _image(_parsed()).find(2)
    with pytest.raises(MissingError, match="v: no mag or scale b; there are"):
        _image(_parsed()).find("b")
    with pytest.raises(MissingError, match="v: no scale at all; there are none"):
        _image(_parsed({"scales": []})).find()


def test_several_chunk_sizes():
    (scale,) = _parsed(entry={"chunk_sizes": [[64, 64, 64], [100, 100, 1]]}).scales
    other = scale.with_chunk_size([100, 100, 1])
    assert (scale.grid, other.grid) == ((2, 2, 2), (1, 1, 80))
    assert other.with_chunk_size((64, 64, 64)) == scale
    with pytest.raises(
        ValueError,
        match=(
            r"scale '8_8_40' has no chunks of \(1, 2, 3\) voxels, but of \(64, 64, 64\) and \(100, "
            r"100, 1\)"
        ),
    ):
        scale.with_chunk_size((1, 2, 3))


SCALE = Scale("8_8_40", (100, 90, 80), (-7, 0, 3), (64, 64, 64), (8.0, 8.0, 40.0), "raw")


def _coarser(factor):
    resolution = (8.0 * factor, 8.0 * factor, 40.0)
    return replace(SCALE, key=default_key(resolution), resolution=resolution)


def test_a_new_volume():
    document = with_scales(
        new_document("segmentation", "uint64", 1), [_coarser(4), SCALE, _coarser(2)]
    )
    assert [entry["key"] for entry in document["scales"]] == ["8_8_40", "16_16_40", "32_32_40"]
    assert document["scales"][0] == {
        "key": "8_8_40",
        "size": [100, 90, 80],
        "resolution": [8, 8, 40],
        "voxel_offset": [-7, 0, 3],
        "chunk_sizes": [[64, 64, 64]],
        "encoding": "raw",
    }
    info = parse_info(format_json(document), "v/info")
    assert (info.type, info.dtype.name, info.num_channels, len(info.scales)) == (
        "segmentation",
        "uint64",
        1,
        3,
    )
    assert "null" not in format_json(document)


@given(st.permutations(range(5)))
def test_scales_are_listed_finest_first(order):
    document = new_document("image", "uint8", 1)
    for n in order:
        document = with_scales(document, [_coarser(1 << n)])
    assert [entry["resolution"][0] for entry in document["scales"]] == [8, 16, 32, 64, 128]


def test_what_is_not_known_stays():
    text = """{"owner": "me", "scales": [{"key": "a", "size": [1, 1, 1], "resolution": [8.0, 8.00, 4e1], "chunk_sizes": [[1, 1, 1]], "encoding": "jpeg",
        "jpeg_quality": 50, "rois": [[1.50]], "sharding": null}, "nonsense"], "data_type": "uint8", "type": "image", "num_channels": 1, "x": 1.10}"""  # noqa: E501
    before = parse_info(text, "v/info")
    # the same resolution
    document = with_scales(
        before.document,
        [replace(SCALE, encoding="png", options={"png_level": 3}, entry={"note": 1})],
    )
    assert document["scales"][1] == "nonsense"
    entry = document["scales"][0]
    assert (entry["key"], entry["encoding"], entry["png_level"], entry["rois"], entry["note"]) == (
        "8_8_40",
        "png",
        3,
        [[1.5]],
        1,
    )
    assert "jpeg_quality" not in entry
    assert "sharding" not in entry
    assert before.document["scales"][0]["encoding"] == "jpeg"  # a copy was changed
    written = format_json(document)
    assert "1.10" in written
    assert "1.50" in written
    assert document["owner"] == "me"


def test_a_scale_written_as_it_was_read():
    entry = {
        **ENTRY,
        "encoding": "compressed_segmentation",
        "compressed_segmentation_block_size": [8, 8, 8],
        "hidden": True,
        "x": 1,
        "sharding": {**SHARDING, "minishard_index_encoding": "gzip", "data_encoding": "gzip"},
    }
    document = {**DOCUMENT, "data_type": "uint32", "scales": [entry]}
    info = parse_info(json.dumps(document), "v/info")
    assert with_scales(info.document, info.scales) == document
    assert with_scales(new_document("image", "uint32", 1), info.scales) == document


SHARDED = replace(SCALE, sharding=sharding_for(SCALE.grid, 64**3))
REFUSED = [
    # scale, type, channels, kind, what is said
    (SCALE, "int64", 1, "image", "the format has no int64, only .*: cast to uint64"),
    (SCALE, "float64", 1, "image", "the format has no float64, only .*: cast to float32"),
    (SCALE, "uint8", 1, "labels", 'type must be "image" or "segmentation", got \'labels\''),
    (SCALE, "uint8", 2, "segmentation", "a segmentation has one channel, got 2"),
    (SCALE, "float32", 1, "segmentation", "a segmentation has integers, got float32"),
    (SCALE, "uint8", 0, "image", "num_channels must be at least 1, got 0"),
    (
        replace(SCALE, encoding="zstd"),
        "uint8",
        1,
        "image",
        "encoding must be one of raw, .*, got 'zstd'",
    ),
    (replace(SCALE, encoding="png"), "int16", 1, "image", "png encodes uint8, uint16, not int16"),
    (
        replace(SCALE, encoding="png"),
        "uint16",
        5,
        "image",
        "png encodes 1 or 2 or 3 or 4 channels, not 5",
    ),
    (replace(SCALE, encoding="jpeg"), "uint8", 2, "image", "jpeg encodes 1 or 3 channels, not 2"),
    (replace(SCALE, encoding="jpeg"), "uint16", 1, "image", "jpeg encodes uint8, not uint16"),
    (
        replace(SCALE, encoding="jxl"),
        "uint8",
        2,
        "image",
        "jxl encodes 1 or 3 or 4 channels, not 2",
    ),
    (
        replace(SCALE, encoding="compresso"),
        "int32",
        1,
        "segmentation",
        "compresso encodes uint8, uint16, uint32, uint64, not int32",
    ),
    (
        replace(SCALE, encoding="compresso", chunk_size=(70000, 1, 1)),
        "uint32",
        1,
        "segmentation",
        "compresso encodes sides of at most 65535 voxels",
    ),
    (
        replace(SCALE, encoding="compressed_segmentation"),
        "uint32",
        1,
        "segmentation",
        "compressed_segmentation needs a positive block size, got None",
    ),
    (
        replace(SCALE, encoding="compressed_segmentation", block_size=(8, 8, 8)),
        "uint16",
        1,
        "segmentation",
        "compressed_segmentation encodes uint32, uint64, not uint16",
    ),
    (
        replace(SCALE, block_size=(8, 8, 8)),
        "uint8",
        1,
        "image",
        "compressed_segmentation_block_size belongs to compressed_segmentation, not to raw",
    ),
    (
        replace(SCALE, options={"jpeg_quality": 80}),
        "uint8",
        1,
        "image",
        "jpeg_quality belongs to jpeg, not to raw",
    ),
    (
        replace(SCALE, encoding="jpeg", options={"jpeg_quality": 101}),
        "uint8",
        1,
        "image",
        "jpeg_quality must be from 0 to 100, got 101",
    ),
    (
        replace(SCALE, encoding="jpeg"),
        "uint8",
        1,
        "segmentation",
        "jpeg changes the ids of a segmentation: .* force=True",
    ),
    (
        replace(SCALE, encoding="jxl", options={"jxl_quality": 90}),
        "uint8",
        1,
        "segmentation",
        "jxl changes the ids",
    ),
    (replace(SCALE, key=""), "uint8", 1, "image", "key must not be empty"),
    (
        replace(SCALE, size=(0, 1, 1)),
        "uint8",
        1,
        "image",
        r"size must be positive, got \(0, 1, 1\)",
    ),
    (replace(SCALE, chunk_size=(0, 1, 1)), "uint8", 1, "image", "chunk sizes must be positive"),
    (
        replace(SCALE, resolution=(8, 8, 0)),
        "uint8",
        1,
        "image",
        r"resolution must be positive, got \(8, 8, 0\)",
    ),
    (
        replace(SCALE, voxel_offset=(2**53, 0, 0)),
        "uint8",
        1,
        "image",
        r"exceed the coordinate limit of 2\^53",
    ),
    (
        replace(SHARDED, chunk_sizes=((64, 64, 64), (8, 8, 8))),
        "uint8",
        1,
        "image",
        "a sharded scale has one chunk size, got 2",
    ),
    (
        replace(SHARDED, sharding=Sharding(0, 1, 1)),
        "uint8",
        1,
        "image",
        r"the bits \(0, 1, 1\) must cover identifiers of 3 bits",
    ),
    (
        replace(SHARDED, sharding=Sharding(0, 1, 2, "murmurhash3_x86_128")),
        "uint8",
        1,
        "image",
        "hash must be identity",
    ),
    (
        replace(SHARDED, sharding=Sharding(0, 40, 1)),
        "uint8",
        1,
        "image",
        "with at most 20 minishard bits",
    ),
    (
        replace(SHARDED, size=(2**50, 2**50, 1), chunk_size=(1, 1, 1)),
        "uint8",
        1,
        "image",
        "identifiers of 100 bits, more than 64: choose larger chunks",
    ),
]


@pytest.mark.parametrize(("scale", "dtype", "channels", "kind", "message"), REFUSED)
def test_refused(scale, dtype, channels, kind, message):
    with pytest.raises(ValueError, match=message):
        check_writable(scale, dtype, channels, kind)


def test_everything_that_is_refused_is_said_at_once():
    with pytest.raises(
        ValueError,
        match=(
            r"^scale '': a segmentation has one channel, got 2; key must not be empty; png encodes "
            r"uint8, uint16, not uint32$"
        ),
    ):
        check_writable(replace(SCALE, key="", encoding="png"), "uint32", 2, "segmentation")


def test_written_by_force():
    assert (
        check_writable(replace(SCALE, encoding="jpeg"), "uint8", 1, "segmentation", force=True)
        == []
    )


ALLOWED = [
    # encoding, types, channels
    (
        "raw",
        ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32"),
        tuple(range(1, 8)),
    ),
    ("compressed_segmentation", ("uint32", "uint64"), tuple(range(1, 8))),
    ("compresso", ("uint8", "uint16", "uint32", "uint64"), (1,)),
    ("jpeg", ("uint8",), (1, 3)),
    ("png", ("uint8", "uint16"), (1, 2, 3, 4)),
    ("jxl", ("uint8",), (1, 3, 4)),
]


@pytest.mark.parametrize(("encoding", "dtypes", "channels"), ALLOWED)
def test_types_and_channels_of_encodings(encoding, dtypes, channels):
    for dtype, number in product(
        ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32"), range(1, 8)
    ):
        if dtype in dtypes and number in channels:
            check_encoding(encoding, dtype, number)
        else:
            with pytest.raises(ValueError, match=f"{encoding} encodes"):
                check_encoding(encoding, dtype, number)


WARNED = [
    # scale, type, channels, what is said
    (
        replace(SCALE, chunk_size=(4096, 1, 1)),
        "uint8",
        1,
        "cannot show chunks with a side of more than 2048 voxels",
    ),
    (
        replace(SCALE, encoding="png"),
        "uint16",
        2,
        "shows png of uint16 with 2 channels incorrectly",
    ),
    (replace(SCALE, encoding="jxl"), "uint8", 3, "shows jxl with 3 channels incorrectly"),
    (
        replace(SCALE, encoding="compresso"),
        "uint64",
        1,
        r"truncates compresso ids of 2\^32 and more",
    ),
]


@pytest.mark.parametrize(("scale", "dtype", "channels", "message"), WARNED)
def test_shown_wrong(scale, dtype, channels, message):
    (warning,) = check_writable(scale, dtype, channels, "image")
    assert message.replace("\\", "") in warning


def test_shown_right():
    for encoding, dtype, channels in (
        ("png", "uint16", 1),
        ("png", "uint8", 4),
        ("jxl", "uint8", 1),
        ("compresso", "uint32", 1),
        ("raw", "uint64", 1),
    ):
        assert check_writable(replace(SCALE, encoding=encoding), dtype, channels, "image") == []
    assert check_writable(SHARDED, "uint8", 1, "image") == []


def test_lossy():
    assert [
        is_lossy(*case)
        for case in (
            ("jpeg", None),
            ("jpeg", 100),
            ("jxl", 99),
            ("jxl", 100),
            ("jxl", None),
            ("png", 5),
            ("raw", None),
        )
    ] == [
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]
