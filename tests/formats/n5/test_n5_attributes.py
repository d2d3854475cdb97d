"""``attributes.json``, and what attributes of all conventions say of where datasets lie."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.errors import CorruptError, FormatError, UnsupportedError
from wkwdask.formats.array_images import ArrayGeometry
from wkwdask.formats.n5.attributes import (
    DTYPES,
    dataset_axes,
    is_dataset,
    level_attributes,
    level_names,
    parse_dataset,
)
from wkwdask.formats.n5.edit import LevelGeometry, dataset_document, with_level
from wkwdask.formats.n5.factor_lists import with_factor_lists
from wkwdask.formats.n5.placement import place_levels
from wkwdask.geometry.mag import Mag
from wkwdask.model.json_text import parse_object

GOOD = {
    "dimensions": [100, 200, 300],
    "blockSize": [64, 64, 64],
    "dataType": "uint16",
    "compression": {"type": "gzip", "level": -1},
}


def dataset(**changes):
    return parse_dataset({**GOOD, **changes}, "f")


def test_record():
    found = parse_dataset(parse_object(json.dumps({**GOOD, "n5": "4.0.0", "mine": 5}), "f"), "f")
    assert (found.dimensions, found.block_size, found.dtype.name) == (
        (100, 200, 300),
        (64, 64, 64),
        "uint16",
    )
    assert found.grid == (2, 4, 5)
    assert found.to_json() == GOOD
    assert is_dataset(GOOD)
    assert not is_dataset({"n5": "2.0.0"})


BROKEN = [
    # changes, message
    (
        {"dimensions": [100, -1, 300]},
        r"dimensions: expected 1..32 whole numbers of 0 to 2\^53, found \[100, -1, 300\]",
    ),
    ({"blockSize": [64, 0, 64]}, "blockSize: expected"),
    ({"blockSize": [64, 64]}, "blockSize: expected 3 numbers, as many as there are dimensions"),
    ({"blockSize": [1 << 16, 1 << 16, 1]}, "blocks of at most 2147483648 bytes"),
    ({"dataType": "uint24"}, "dataType: expected one of uint8"),
    ({"compression": 5}, 'compression: expected an object with a "type"'),
    (
        {"compression": {"type": "blosc", "shuffle": None}},
        "compression.shuffle: expected a whole number",
    ),
    (
        {"compression": {"type": "gzip", "level": "best"}},
        "compression.level: expected a whole number",
    ),
    ({"dimensions": [True, 1, 1], "dataType": None}, "dimensions: .*; dataType:"),  # all at once
]


@pytest.mark.parametrize(("changes", "message"), BROKEN)
def test_broken(changes, message):
    with pytest.raises(CorruptError, match=f"^f: .*{message}"):
        dataset(**changes)


def test_unsupported():
    with pytest.raises(UnsupportedError, match="dataType: holds objects"):
        dataset(dataType="object")
    with pytest.raises(UnsupportedError, match="compressor 'other' inside Blosc"):
        dataset(compression={"type": "blosc", "cname": "other"})
    with pytest.raises(UnsupportedError, match="isLabelMultiset"):
        dataset(isLabelMultiset=True)


@given(
    st.dictionaries(
        st.sampled_from(list(GOOD)),
        st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=4),
    )
)
def test_any_json(changes):
    try:
        found = parse_dataset({**GOOD, **changes}, "f")
    except (FormatError, UnsupportedError):
        return
    assert found.dtype.name in DTYPES


AXES = [
    # attributes, dimensions, letters
    ({}, [5, 6, 7], "xyz"),
    ({}, [5, 6], "xy"),
    ({}, [5, 6, 7, 2], "xyzc"),
    ({}, [5, 6, 7, 2, 1], "xyzc-"),
    ({"axes": ["z", "y", "x"]}, [5, 6, 7], "zyx"),
    ({"axes": ["x", "y", "c", "z", "t"]}, [5, 6, 2, 7, 1], "xycz-"),
    ({"axes": ["dim_0", "dim_1", "dim_2"]}, [5, 6, 7], "xyz"),  # names that say nothing
    # listed as numpy has them
    ({"transform": {"axes": ["z", "y", "x"], "scale": [1, 1, 1]}}, [5, 6, 7], "xyz"),
    ({"transform": {"axes": ["x", "y", "z"], "ordering": "F"}}, [5, 6, 7], "xyz"),
]


@pytest.mark.parametrize(("attributes", "dimensions", "letters"), AXES)
def test_axes(attributes, dimensions, letters):
    assert (
        dataset_axes(
            dataset(dimensions=dimensions, blockSize=[4] * len(dimensions)), attributes, "f"
        )
        == letters
    )


def test_odd_axes():
    with pytest.raises(
        UnsupportedError, match="f: has an axis 't' of length 3, expected the axes x, y, z and c"
    ):
        dataset_axes(dataset(dimensions=[5, 6, 7, 1, 3], blockSize=[4] * 5), {}, "f")


def cosem(length, center=0.0, unit="nm"):
    """``transform`` as Janelia's software writes it."""
    return {
        "transform": {
            "axes": ["z", "y", "x"],
            "scale": [length] * 3,
            "translate": [center] * 3,
            "units": [unit] * 3,
        }
    }


def placed(group, *levels):
    """Place levels (s0, s1... by turns), given as (dimensions, attributes)."""
    found = []
    for number, (dimensions, attributes) in enumerate(levels):
        name, own = (
            f"s{number}",
            {**GOOD, "dimensions": dimensions, "blockSize": [8] * len(dimensions), **attributes},
        )
        found.append((name, parse_dataset(own, "f"), level_attributes(own, group, name)))
    return place_levels(found, group, "f")


def imagej(length):
    sizes = dict.fromkeys(("pixelWidth", "pixelHeight", "pixelDepth"), length)
    return {**sizes, "pixelUnit": "micron", "xOrigin": 0.0}


def test_conventions():
    one, two = (
        ArrayGeometry("xyz", Mag(1, 1, 1), (4.0, 4.0, 4.0), (0, 0, 0)),
        ArrayGeometry("xyz", Mag(2, 2, 2), (8.0, 8.0, 8.0), (0, 0, 0)),
    )
    sizes = [100] * 3, [50] * 3
    resolution = {"pixelResolution": {"dimensions": [4, 4, 4], "unit": "nm"}}
    factors = {"downsamplingFactors": [2, 2, 2]}
    assert placed({}, (sizes[0], cosem(4)), (sizes[1], cosem(8, 2))) == [one, two]
    assert placed(resolution, (sizes[0], {}), (sizes[1], factors)) == [one, two]  # Paintera
    # n5-viewer
    assert placed(
        {"scales": [[1, 1, 1], [2, 2, 2]], **resolution}, (sizes[0], {}), (sizes[1], {})
    ) == [one, two]
    # BigDataViewer
    assert placed(
        {"downsamplingFactors": [[1, 1, 1], [2, 2, 2]], **resolution},
        (sizes[0], {}),
        (sizes[1], {}),
    ) == [one, two]
    # Neuroglancer
    assert placed(
        {"resolution": [4, 4, 4], "units": ["nm"] * 3}, (sizes[0], {}), (sizes[1], factors)
    ) == [one, two]
    assert placed(resolution, (sizes[0], {}), (sizes[1], {})) == [one, two]  # by the lengths alone
    # n5-ij
    assert placed({}, (sizes[0], imagej(0.004)), (sizes[1], imagej(0.008))) == [one, two]
    listed = {
        "multiscales": [
            {
                "datasets": [
                    {"path": "s0", **cosem(0.004, unit="um")},
                    {"path": "s1", **cosem(0.008, 0.002, "um")},
                ]
            }
        ]
    }
    assert placed(listed, (sizes[0], {}), (sizes[1], {})) == [one, two]
    assert placed({}, (sizes[0], {}))[0].lengths_nm is None


def test_places():
    """Levels are put on the nearest voxels of their mags, whether centers of voxels are stated, or
    corners."""
    found = placed({}, ([100] * 3, cosem(4, 400)), ([50] * 3, cosem(8, 402)))
    assert [level.offset for level in found] == [(100, 100, 100), (50, 50, 50)]
    found = placed(
        {}, ([100] * 3, cosem(4, 400)), ([50] * 3, cosem(8, 400)), ([25] * 3, cosem(16, 400))
    )
    assert [level.offset for level in found] == [(100, 100, 100), (50, 50, 50), (25, 25, 25)]
    # where the corner of voxel 0 is the origin
    found = placed({}, ([100] * 3, cosem(4, 402)), ([50] * 3, cosem(8, 404)))
    assert [level.offset for level in found] == [(100, 100, 100), (50, 50, 50)]


def test_nonsense_is_left_aside():
    odd = {
        "pixelResolution": {"dimensions": ["a", 1, 1], "unit": "nm"},
        "scales": "many",
        "transform": {"axes": None, "scale": 5},
    }
    assert placed(odd, ([100] * 3, odd), ([33] * 3, {"downsamplingFactors": [3, 3, 3]})) == [
        ArrayGeometry("xyz", Mag(1, 1, 1), None, (0, 0, 0)),
        ArrayGeometry("xyz", None, None, (0, 0, 0)),
    ]


@pytest.mark.parametrize("channels", [0, 1])
def test_what_is_written_is_read(channels):
    """A group of levels that is written says the same when it is read."""
    group, levels = {"mine": 1}, []
    dimensions = [40, 30, 20, *[2] * channels]
    for number, (mag, offset) in enumerate(
        [(Mag(1, 1, 1), (-7, 5, 0)), (Mag(2, 2, 1), (-4, 2, 0)), (Mag(4, 4, 2), (-2, 1, 0))]
    ):
        place = LevelGeometry(mag, offset, (4.0, 4.0, 35.0))
        names = "xyzc"[: len(dimensions)]
        new = dataset_document(
            dataset(dimensions=dimensions, blockSize=[8] * len(dimensions)),
            place,
            names,
            is_level=True,
            is_root=False,
        )
        assert new["axes"] == list(names)
        group = with_level(group, f"s{number}", names, place, is_ours=True)
        levels.append((dimensions, new))
    # again
    group = with_level(
        group, "s1", names, LevelGeometry(Mag(2, 2, 1), (-4, 2, 0), (4.0, 4.0, 35.0)), is_ours=True
    )
    assert group["mine"] == 1
    assert [entry["path"] for entry in group["multiscales"][0]["datasets"]] == ["s0", "s1", "s2"]
    group = with_factor_lists(
        group, {f"s{n}": new["downsamplingFactors"] for n, (_, new) in enumerate(levels)}, {}
    )
    assert group["scales"] == [
        [1, 1, 1, *[1] * channels],
        [2, 2, 1, *[1] * channels],
        [4, 4, 2, *[1] * channels],
    ]
    for found in (
        placed(group, *levels),
        placed({}, *levels),
        placed(group, *[(size, {}) for size, _ in levels]),
    ):
        assert [(level.mag, level.offset) for level in found] == [
            (Mag(1, 1, 1), (-7, 5, 0)),
            (Mag(2, 2, 1), (-4, 2, 0)),
            (Mag(4, 4, 2), (-2, 1, 0)),
        ]
        assert found[2].lengths_nm == (16.0, 16.0, 70.0)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats()
    | st.sampled_from(["x", "y", "z", "nm", "s0", "../s1", "c"])
    | st.just(10**400),
    lambda some: (
        st.lists(some, max_size=3)
        | st.dictionaries(
            st.sampled_from(["axes", "scale", "units", "translate", "dimensions", "unit", "path"]),
            some,
        )
    ),
    max_leaves=8,
)
NAMES = (
    "axes",
    "transform",
    "units",
    "resolution",
    "pixelResolution",
    "pixelWidth",
    "pixelHeight",
    "pixelDepth",
    "pixelUnit",
    "downsamplingFactors",
    "scales",
)


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), min_size=2, max_size=3), VALUES)
def test_any_attributes(documents, datasets):
    """Whatever software wrote beside what is specified: levels are placed, somewhere."""
    group = {**documents[0], "multiscales": [{"datasets": datasets}]}
    level_names(group)
    for level in placed(group, *[([30, 20, 10], attributes) for attributes in documents[1:]]):
        assert isinstance(level, UnsupportedError) or len(level.axes) == 3
