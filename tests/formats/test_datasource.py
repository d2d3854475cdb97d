"""``datasource-properties.json``: what is read, what is refused, and that nothing unknown is
lost."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.errors import CorruptError, FormatError
from wkwdask.formats.webknossos.datasource import (
    NewLayer,
    format_datasource,
    new_document,
    parse_datasource,
    with_layer,
    with_mags,
)
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag

# As webknossos 4.3.3 writes it, with fields that wkwdask has no use for.
DOCUMENT = {
    "id": {"name": "ds4", "team": ""},
    "scale": {"factor": [11.24, 11.24, 28.0], "unit": "nanometer"},
    "dataLayers": [
        {
            "name": "seg",
            "category": "segmentation",
            "boundingBox": {"topLeft": [10, 20, 30], "width": 101, "height": 67, "depth": 45},
            "dataFormat": "wkw",
            "mags": [
                {
                    "mag": [2, 2, 1],
                    "path": "./seg/2-2-1",
                    "cubeLength": 64,
                    "axisOrder": {"c": 0, "x": 1, "y": 2, "z": 3},
                },
                {
                    "mag": [1, 1, 1],
                    "path": "./seg/1",
                    "cubeLength": 64,
                    "axisOrder": {"c": 0, "x": 1, "y": 2, "z": 3},
                    "channelIndex": 0,
                },
            ],
            "largestSegmentId": {"customJsonEncoding": "bigint", "value": "1152921504606846976"},
            "numChannels": 1,
            "elementClass": "uint64",
            "mappings": ["agglomerate_view_1"],
            "defaultViewConfiguration": {"color": [255, 0, 0]},
        }
    ],
    "version": 1,
    "defaultViewConfiguration": {"zoom": 0.5},
}


def _parse(document):
    return parse_datasource(json.dumps(document), "ds/datasource-properties.json")


def _use_all(text, source):
    """Parse a document and use each of its layers."""
    for layer in parse_datasource(text, source).invalid_layers:
        layer.raise_error()


def _changed(*path, value):
    """Copy the document with one value changed; a value of ``None`` for a dictionary key removes
    it."""
    document = copy.deepcopy(DOCUMENT)
    at = document
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return document


def test_current_form():
    source = _parse(DOCUMENT)
    assert source.name == "ds4"
    assert source.voxel_size_nm == (11.24, 11.24, 28.0)
    layer = source.layer("seg")
    assert layer is source.layers[0]
    assert (layer.category, layer.element_class, layer.num_channels, layer.data_format) == (
        "segmentation",
        "uint64",
        1,
        "wkw",
    )
    assert layer.bounding_box == BoundingBox((10, 20, 30), (101, 67, 45))
    # finest first
    assert [(record.mag, record.path) for record in layer.mags] == [
        (Mag(1, 1, 1), "./seg/1"),
        (Mag(2, 2, 1), "./seg/2-2-1"),
    ]
    assert source.layer("other") is None
    assert source.document == DOCUMENT


def test_legacy_form():
    document = {
        "id": {"name": "old"},
        "scale": [11.24, 11.24, 28],
        "dataLayers": [
            {
                "name": "color",
                "category": "color",
                "boundingBox": {"topLeft": [0, 0, 0], "width": 1, "height": 2, "depth": 3},
                "wkwResolutions": [
                    {"resolution": 1, "cubeLength": 1024},
                    {"resolution": [2, 2, 1], "cubeLength": 1024},
                ],
                "elementClass": "uint24",
                "numChannels": 3,
                "dataFormat": "wkw",
            }
        ],
    }
    source = _parse(document)
    assert source.voxel_size_nm == (11.24, 11.24, 28)
    assert [(record.mag.name, record.path) for record in source.layers[0].mags] == [
        ("1", None),
        ("2-2-1", None),
    ]
    assert source.layers[0].num_channels == 3


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (None, None),
        ([4, 4, 40], (4, 4, 40)),
        ({"factor": [4, 4, 40]}, (4, 4, 40)),  # nanometers unless it says otherwise
        ({"factor": [1, 2, 3], "unit": "micrometer"}, (1000, 2000, 3000)),
        ({"factor": [1, 2, 3], "unit": "µm"}, (1000, 2000, 3000)),
        ({"factor": [1, 2, 3], "unit": "um"}, (1000, 2000, 3000)),
        ({"factor": [1, 2, 3], "unit": "mm"}, (1e6, 2e6, 3e6)),
        ({"factor": [10, 10, 10], "unit": "angstrom"}, (1, 1, 1)),
        ({"factor": [1, 1, 1], "unit": "inch"}, (2.54e7, 2.54e7, 2.54e7)),
        ({"factor": [1, 1, 1], "unit": "yottameter"}, (1e33, 1e33, 1e33)),
    ],
)
def test_voxel_size(scale, expected):
    assert _parse({**DOCUMENT, "scale": scale}).voxel_size_nm == (
        expected if expected is None else pytest.approx(expected)
    )


def test_empty_dataset():
    source = _parse({})
    assert (source.name, source.voxel_size_nm, source.layers) == ("", None, ())


LAYER = ("dataLayers", 0)
BROKEN = [
    # document, message
    ([], "expected an object at the top, found list"),
    (
        _changed("scale", value={"factor": [1, 1], "unit": "nm"}),
        r"scale.factor: expected three positive numbers, found \[1, 1\]",
    ),
    (
        _changed("scale", value=[1, 0, 1]),
        r"scale.factor: expected three positive numbers, found \[1, 0, 1\]",
    ),
    (_changed("scale", value=[1, "2", 1]), "scale.factor: expected three positive numbers"),
    (
        _changed("scale", value={"factor": [1, 1, 1], "unit": "parrot"}),
        'scale.unit: expected a unit of length, found "parrot"',
    ),
    (
        _changed("scale", value={"factor": [1, 1, 1], "unit": ["nm"]}),
        "scale.unit: expected a unit of length",
    ),
    (_changed("dataLayers", value={}), "dataLayers: expected a list, found {}"),
    (_changed("dataLayers", value=[3]), r"dataLayers\[0\]: expected an object, found 3"),
    (_changed(*LAYER, "name", value=""), r'dataLayers\[0\].name: expected a name, found ""'),
    (_changed(*LAYER, "name", value=7), r"dataLayers\[0\].name: expected a name, found 7"),
    (
        _changed(*LAYER, "category", value="mask"),
        r'dataLayers\[0\].category: expected "color" or "segmentation", found "mask"',
    ),
    (
        _changed(*LAYER, "boundingBox", value=None),
        (
            r"dataLayers\[0\].boundingBox: expected topLeft \(three whole numbers\), width, height "
            r"and depth, found null"
        ),
    ),
    (_changed(*LAYER, "boundingBox", "width", value=-1), r"dataLayers\[0\].boundingBox: expected"),
    (_changed(*LAYER, "boundingBox", "width", value=1.5), r"dataLayers\[0\].boundingBox: expected"),
    (
        _changed(*LAYER, "boundingBox", "topLeft", value=[1, 2]),
        r"dataLayers\[0\].boundingBox: expected",
    ),
    (
        _changed(*LAYER, "boundingBox", "topLeft", value="123"),
        r"dataLayers\[0\].boundingBox: expected",
    ),
    (
        _changed(*LAYER, "numChannels", value=-1),
        r"dataLayers\[0\].numChannels: expected a positive number, found -1",
    ),
    (
        _changed(*LAYER, "numChannels", value="3"),
        r"dataLayers\[0\].numChannels: expected a positive number",
    ),
    (_changed(*LAYER, "mags", value=None), r"dataLayers\[0\].mags: expected a list, found null"),
    (
        _changed(*LAYER, "mags", 1, "mag", value=[3, 1, 1]),
        r"dataLayers\[0\].mags\[1\].mag: expected a mag of powers of two",
    ),
    (
        _changed(*LAYER, "mags", 0, "mag", value=None),
        r"dataLayers\[0\].mags\[0\].mag: expected a mag of powers of two",
    ),
    (
        _changed(*LAYER, "mags", value=[5]),
        r"dataLayers\[0\].mags\[0\].mag: expected a mag of powers of two, found 5",
    ),
]


@pytest.mark.parametrize(("document", "message"), BROKEN)
def test_broken_document(document, message):
    with pytest.raises(CorruptError, match=f"^ds/datasource-properties.json: .*{message}"):
        _use_all(json.dumps(document), "ds/datasource-properties.json")


def test_all_problems_are_listed():
    document = _changed(*LAYER, "category", value="mask")
    document["scale"] = 5
    document["dataLayers"].append({"name": "x"})
    with pytest.raises(CorruptError) as caught:
        _parse(document)
    for place in ("scale.factor: ", "dataLayers[0].category: ", "dataLayers[1].boundingBox: "):
        assert place in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ds.json: byte 0: not valid JSON"),
        ('{"a": 1', "ds.json: byte 7: not valid JSON: .*line 1, column 8"),
        # bytes, not characters
        ('{"µ": 1,\n x}', "ds.json: byte 11: not valid JSON: .*line 2, column 2"),
    ],
)
def test_no_json(text, message):
    with pytest.raises(CorruptError, match=message):
        parse_datasource(text, "ds.json")


@pytest.mark.parametrize(
    "text",
    [
        # infinity
        (
            '{"dataLayers": [{"name": "a", "boundingBox": {"topLeft": [1e999, 0, 0], "width": 1, '
            '"height": 1, "depth": 1}}]}'
        ),
        (
            '{"dataLayers": [{"name": "a", "boundingBox": {"topLeft": [NaN, 0, 0], "width": 1, '
            '"height": 1, "depth": 1}}]}'
        ),
        (
            '{"dataLayers": [{"name": "a", "boundingBox": {"topLeft": [0, 0, 0], "width": 1, '
            '"height": 1, "depth": 1}, "mags": [{"mag": [1e999, 1, 1]}]}]}'
        ),
        '{"scale": [NaN, 1, 1]}',
        '{"version": ' + "1" * 5000 + "}",  # longer than Python converts
        "[" * 100_000,  # deeper than Python recurses
    ],
    ids=[
        "infinite corner",
        "NaN corner",
        "infinite mag",
        "NaN scale",
        "long number",
        "deep nesting",
    ],
)
def test_numbers_and_nesting_that_python_refuses(text):
    """Text of any kind is a dataset or a FormatError; nothing else leaves the parser."""
    with pytest.raises(FormatError, match=r"^ds\.json: "):
        _use_all(text, "ds.json")


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([2**70, 0.5, 1e300, float("inf"), float("nan")])
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["mag", "topLeft", "factor", "unit", "path", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
_paths = st.sampled_from(
    [
        ("id",),
        ("id", "name"),
        ("scale",),
        ("scale", "factor"),
        ("scale", "unit"),
        ("dataLayers",),
        LAYER,
        (*LAYER, "name"),
        (*LAYER, "category"),
        (*LAYER, "boundingBox"),
        (*LAYER, "boundingBox", "topLeft"),
        (*LAYER, "boundingBox", "depth"),
        (*LAYER, "numChannels"),
        (*LAYER, "elementClass"),
        (*LAYER, "dataFormat"),
        (*LAYER, "mags"),
        (*LAYER, "mags", 0),
        (*LAYER, "mags", 0, "mag"),
        (*LAYER, "mags", 0, "path"),
    ]
)


@given(_paths, _json)
def test_any_value_in_any_place(path, value):
    try:
        source = _parse(_changed(*path, value=value))
    except FormatError as error:
        assert str(error).startswith("ds/datasource-properties.json: ")  # noqa: PT017
        return
    for layer in source.layers:
        assert layer.num_channels >= 1
        assert layer.category in ("color", "segmentation")


def test_text_is_kept():
    text = format_datasource(DOCUMENT)
    assert text.startswith('{\n    "id": {\n        "name": "ds4"')
    assert text.endswith("}\n")
    assert json.loads(text) == DOCUMENT
    assert "µ" in format_datasource({"unit": "µm"})


def test_new_document():
    source = _parse(new_document("made", (4, 4, 40)))
    assert (source.name, source.voxel_size_nm, source.layers) == ("made", (4, 4, 40), ())


class TestWithMags:
    """Edits keep all that they do not know."""

    def test_add_and_replace(self):
        before = copy.deepcopy(DOCUMENT)
        changed = with_mags(
            DOCUMENT, "seg", [(Mag(4, 4, 2), "./seg/4-4-2", 128), (Mag(2, 2, 1), "./seg/new", 256)]
        )
        assert before == DOCUMENT
        entry = changed["dataLayers"][0]
        assert [(item["mag"], item["path"], item["cubeLength"]) for item in entry["mags"]] == [
            ([1, 1, 1], "./seg/1", 64),
            ([2, 2, 1], "./seg/new", 256),
            ([4, 4, 2], "./seg/4-4-2", 128),
        ]
        assert entry["mags"][0]["channelIndex"] == 0
        assert all(item["axisOrder"] == {"c": 0, "x": 1, "y": 2, "z": 3} for item in entry["mags"])
        entry["mags"] = DOCUMENT["dataLayers"][0]["mags"]
        assert changed == DOCUMENT

    def test_legacy_layer_stays_legacy(self):
        document = {
            "dataLayers": [
                {
                    "name": "color",
                    "wkwResolutions": [{"resolution": 1, "cubeLength": 1024}],
                    "mystery": 1,
                }
            ]
        }
        changed = with_mags(document, "color", [(Mag(2, 2, 2), "./color/2", 512)])
        assert changed["dataLayers"][0] == {
            "name": "color",
            "wkwResolutions": [
                {"resolution": 1, "cubeLength": 1024},
                {"resolution": [2, 2, 2], "cubeLength": 512},
            ],
            "mystery": 1,
        }


class TestWithLayer:
    """A layer is added, or its box and type are set."""

    box = BoundingBox((1, 2, 3), (4, 5, 6))

    def test_add(self):
        changed = with_layer(DOCUMENT, "color", NewLayer("color", self.box, "uint24", 3))
        assert changed["dataLayers"][0] == DOCUMENT["dataLayers"][0]
        layer = _parse(changed).layer("color")
        assert (
            layer.category,
            layer.bounding_box,
            layer.element_class,
            layer.num_channels,
            layer.mags,
        ) == ("color", self.box, "uint24", 3, ())

    def test_change(self):
        changed = with_layer(DOCUMENT, "seg", NewLayer("segmentation", self.box, "uint32", 1))
        assert changed["dataLayers"][0]["mappings"] == ["agglomerate_view_1"]
        assert changed["dataLayers"][0]["mags"] == DOCUMENT["dataLayers"][0]["mags"]
        layer = _parse(changed).layer("seg")
        assert (layer.bounding_box, layer.element_class) == (self.box, "uint32")
        assert DOCUMENT["dataLayers"][0]["elementClass"] == "uint64"
