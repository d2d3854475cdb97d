"""Every kind of ``datasource-properties.json``: what is read of it, and that an edit changes what
it names and nothing else, not even the form of a number."""

from __future__ import annotations

import json

import pytest

from wkwdask import BoundingBox, Mag
from wkwdask.formats.webknossos.datasource import (
    NewLayer,
    format_datasource,
    parse_datasource,
    with_box,
    with_entry,
    with_largest_id,
    with_layer,
    with_mags,
    with_new_name,
    with_scale,
    with_view_configuration,
    without_layer,
)
from wkwdask.formats.webknossos.layer_metadata import (
    Attachment,
    Axis,
    attachments_of,
    axes_of,
    dtype_of,
    mappings_of,
    transformations_of,
    view_of,
)

BOX = '"boundingBox": {"topLeft": [10, 20, 30], "width": 101, "height": 67, "depth": 45}'
MAGS = (
    '"mags": [{"mag": [1, 1, 1], "path": "./a/1", "cubeLength": 64, "axisOrder": {"c": 0, "x": 1, '
    '"y": 2, "z": 3}}]'
)
SCALE = '"scale": {"factor": [11.24, 11.24, 28.0], "unit": "nanometer"}'


def layer(
    more="", *, name="a", category="color", elements="uint8", stored="wkw", box=BOX, mags=MAGS
):
    """Write a layer's entry."""
    parts = [
        f'"name": "{name}", "category": "{category}"',
        box,
        f'"elementClass": "{elements}", "dataFormat": "{stored}"',
        mags,
        more,
    ]
    return "{" + ", ".join(part for part in parts if part) + "}"


def document(*layers, scale=SCALE, more=""):
    """Write a document."""
    return (
        "{"
        + ", ".join(
            part
            for part in (
                '"id": {"name": "ds", "team": "t"}',
                scale,
                f'"dataLayers": [{", ".join(layers)}]',
                more,
            )
            if part
        )
        + "}"
    )


DOCUMENTS = {  # one for each row of what WEBKNOSSOS and its libraries have written
    "current": document(layer(), more='"version": 1'),
    "no id": '{"scale": [1, 1, 1], "dataLayers": []}',
    "bare scale": document(layer(), scale='"scale": [11.24, 11.24, 28]'),
    "no scale": document(layer(), scale=""),
    "null scale": document(layer(), scale='"scale": null'),
    "scale without a unit": document(layer(), scale='"scale": {"factor": [4, 4, 40]}'),
    "long unit": document(
        layer(), scale='"scale": {"factor": [0.00404, 0.00404, 0.04], "unit": "micrometer"}'
    ),
    "short unit": document(layer(), scale='"scale": {"factor": [4.04, 4.04, 40], "unit": "nm"}'),
    "micro sign": document(layer(), scale='"scale": {"factor": [1, 1, 1], "unit": "µm"}'),
    "angstrom": document(layer(), scale='"scale": {"factor": [40, 40, 400], "unit": "angstrom"}'),
    "numbers of all forms": document(
        layer(
            '"x": [1e3, 1E-7, 28.0, 0.10, -0.0, 100000000000000000000000, 11.239999771118164, '
            "1.0000000000000000000001]"
        )
    ),
    "other version": document(layer(), more='"version": 7'),
    "legacy resolutions": document(
        layer(
            mags=(
                '"wkwResolutions": [{"resolution": [1, 1, 1], "cubeLength": 1024}, {"resolution": '
                '[2, 2, 1], "cubeLength": 1024}]'
            )
        )
    ),
    "legacy resolution as a number": document(
        layer(
            mags=(
                '"wkwResolutions": [{"resolution": 1, "cubeLength": 1024}, {"resolution": 2, '
                '"cubeLength": 1024}]'
            )
        )
    ),
    "mag as a number": document(
        layer(mags='"mags": [{"mag": 1, "path": "a/1"}, {"mag": 4, "path": "a/4"}]')
    ),
    "no paths": document(layer(mags='"mags": [{"mag": [1, 1, 1], "cubeLength": 32}]')),
    "null paths": document(
        layer(mags='"mags": [{"mag": [1, 1, 1], "path": null, "cubeLength": 32}]')
    ),
    "absolute path": document(
        layer(mags='"mags": [{"mag": [1, 1, 1], "path": "/data/other/a/1"}]')
    ),
    "URL": document(
        layer(
            mags='"mags": [{"mag": [1, 1, 1], "path": "s3://host/bucket/a/1", "credentialId": "c"}]'
        )
    ),
    "mags in another order": document(
        layer(
            mags=(
                '"mags": [{"mag": [4, 4, 2], "path": "a/4-4-2"}, {"mag": [1, 1, 1], "path": "a/1"}]'
            )
        )
    ),
    "channel index": document(
        layer(
            mags=(
                '"mags": [{"mag": [1, 1, 1], "path": "a/1", "channelIndex": 0, "axisOrder": {"x": '
                '0, "y": 1, "z": 2}}]'
            )
        )
    ),
    "no mags": document(layer(mags='"mags": []')),
    "uint24": document(layer('"numChannels": 3', elements="uint24")),
    "uint24 without channels": document(layer(elements="uint24")),
    "uint80": document(layer('"numChannels": 5', elements="uint80")),
    "float": document(layer(elements="float")),
    "double": document(layer(elements="double")),
    "int64": document(layer(category="segmentation", elements="int64")),
    "null channels": document(layer('"numChannels": null')),
    "largest id": document(
        layer('"largestSegmentId": 5238529', category="segmentation", elements="uint32")
    ),
    "null largest id": document(
        layer('"largestSegmentId": null', category="segmentation", elements="uint32")
    ),
    "bigint": document(
        layer(
            '"largestSegmentId": {"customJsonEncoding": "bigint", "value": "1152921504606846976"}',
            category="segmentation",
            elements="uint64",
        )
    ),
    "large id as a number": document(
        layer(
            '"largestSegmentId": 18446744073709551615', category="segmentation", elements="uint64"
        )
    ),
    "mappings": document(layer('"mappings": ["agglomerate_view_5", "x"]', category="segmentation")),
    "attachments": document(
        layer(
            '"attachments": {"meshes": [{"name": "m", "path": "./a/meshes/m", "dataFormat": '
            '"neuroglancerPrecomputed", "new": 1}], "agglomerates": '
            '[{"name": "v", "path": "/abs/v.hdf5", "dataFormat": "hdf5"}], "segmentIndex": '
            '{"name": "i", "path": "a/i", "dataFormat": "hdf5"}, "cumsum": null}',
            category="segmentation",
        )
    ),
    "malformed attachments": document(
        layer(
            '"attachments": {"meshes": [{"name": 3}, 7], "connectomes": "none"}, "mappings": 5',
            category="segmentation",
        )
    ),
    "additional axes": document(
        layer(
            '"additionalAxes": [{"name": "t", "bounds": [0, 10], "index": 1}, {"name": 5}]',
            stored="zarr3",
        )
    ),
    "transformations": document(
        layer(
            '"coordinateTransformations": [{"type": "affine", "matrix": [[1.0, 0, 0, 1e1], [0, 0, '
            '0, 1]]}, {"type": "thin_plate_spline"}]'
        )
    ),
    "view of a layer": document(
        layer(
            '"defaultViewConfiguration": {"color": [255, 0, 0], "alpha": 20.50, "intensityRange": '
            '[70.0, 180.0], "gammaCorrectionValue": 1}'
        )
    ),
    "admin view": document(layer('"adminViewConfiguration": {"isDisabled": true}')),
    "view of a dataset": document(
        layer(),
        layer(name="b"),
        more='"defaultViewConfiguration": {"zoom": 0.50, "layers": {"b": {"alpha": 5}, "a": {}}, '
        '"colorLayerOrder": ["b", "a"], "nativelyRenderedLayerName": "a"}',
    ),
    "zarr": document(layer(stored="zarr", mags='"mags": [{"mag": [1, 1, 1], "path": "a/1"}]')),
    "zarr3": document(layer(stored="zarr3")),
    "n5": document(layer(stored="n5")),
    "precomputed": document(
        layer(
            stored="neuroglancerPrecomputed",
            mags='"mags": [{"mag": [1, 1, 1], "path": "https://host/x/8_8_8"}]',
        )
    ),
    "unknown fields": document(
        layer('"mystery": {"b": [null, {"c": "ü\\u2028\\ud800"}], "a": true}'),
        more='"folderId": "x", "tags": [], "empty": {}',
    ),
    "several layers": document(
        layer(), layer(name="b", category="segmentation", elements="uint32")
    ),
    "an odd layer": document(
        layer(), layer(name="odd", category="mask", box='"boundingBox": null')
    ),
    "a layer that is none": document(layer(), "3"),
}
WITH_LAYER_A = sorted(name for name in DOCUMENTS if name != "no id")


def exact(text):
    """Read a document so that order, and the form of each number, count."""
    return json.loads(
        text,
        parse_float=lambda text: ("float", text),
        parse_int=lambda text: ("int", text),
        object_pairs_hook=lambda pairs: ("object", pairs),
    )


def parsed(name):
    return parse_datasource(DOCUMENTS[name], "ds.json")


def without(value, *path):
    """Take a value out of what :func:`exact` gives; layers are found by their names."""
    first, *rest = path
    if isinstance(value, tuple):
        pairs = [
            (key, without(item, *rest) if rest and key == first else item)
            for key, item in value[1]
            if rest or key != first
        ]
        return ("object", pairs)
    return [
        without(item, *rest)
        if isinstance(item, tuple) and item[0] == "object" and ("name", first) in item[1]
        else item
        for item in value
    ]


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_nothing_is_lost(name):
    assert exact(format_datasource(parsed(name).document)) == exact(DOCUMENTS[name])


EDITS = {  # what is edited, and where that is in the document
    "scale": (lambda document: with_scale(document, (1, 2, 3.5), "mm"), [("scale",)]),
    "box": (
        lambda document: with_box(document, "a", BoundingBox((0, 0, 0), (7, 8, 9))),
        [("dataLayers", "a", "boundingBox")],
    ),
    "largest id": (
        lambda document: with_largest_id(document, "a", 2**59),
        [("dataLayers", "a", "largestSegmentId")],
    ),
    "view": (
        lambda document: with_view_configuration(document, "a", {"intensityRange": [1, 2]}),
        [("dataLayers", "a", "defaultViewConfiguration")],
    ),
    "view of the dataset": (
        lambda document: with_view_configuration(document, None, {"zoom": 2}),
        [("defaultViewConfiguration",)],
    ),
    "mags": (
        lambda document: with_mags(document, "a", [(Mag(8, 8, 8), "./a/8", 64)]),
        [("dataLayers", "a", "mags"), ("dataLayers", "a", "wkwResolutions")],
    ),
}


@pytest.mark.parametrize("edit", sorted(EDITS))
@pytest.mark.parametrize("name", WITH_LAYER_A)
def test_an_edit_changes_what_it_names(name, edit):
    change, places = EDITS[edit]
    before, after = exact(DOCUMENTS[name]), exact(format_datasource(change(parsed(name).document)))
    assert before != after
    for place in places:
        before, after = without(before, *place), without(after, *place)
    assert after == before
    assert (
        parse_datasource(format_datasource(change(parsed(name).document)), "ds.json").layer("a")
        is not None
    )


@pytest.mark.parametrize("name", WITH_LAYER_A)
def test_layers_come_and_go(name):
    source = parsed(name)
    made = with_layer({}, "made", NewLayer("color", BoundingBox((0, 0, 0), (1, 1, 1)), "uint8", 1))[
        "dataLayers"
    ][0]
    more = with_entry(source.document, made)
    assert exact(format_datasource(without_layer(more, "made"))) == exact(DOCUMENTS[name])
    gone = without_layer(source.document, "a")
    assert gone["dataLayers"] == source.document["dataLayers"][1:]
    there_and_back = with_new_name(with_new_name(source.document, "a", "z", str), "z", "a", str)
    assert exact(format_datasource(there_and_back)) == exact(DOCUMENTS[name])


def test_a_new_name_is_used_everywhere():
    changed = with_new_name(parsed("view of a dataset").document, "a", "z", str)
    view = changed["defaultViewConfiguration"]
    assert list(view["layers"]) == ["b", "z"]
    assert (view["colorLayerOrder"], view["nativelyRenderedLayerName"]) == (["b", "z"], "z")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bare scale", (11.24, 11.24, 28)),
        ("no scale", None),
        ("null scale", None),
        ("scale without a unit", (4, 4, 40)),
        ("long unit", (4.04, 4.04, 40)),  # exactly: no 4.039999999999999
        ("short unit", (4.04, 4.04, 40)),
        ("micro sign", (1000, 1000, 1000)),
        ("angstrom", (4, 4, 40)),
    ],
)
def test_voxel_size(name, expected):
    assert parsed(name).voxel_size_nm == expected


def test_voxel_size_as_it_is_stated():
    source = parsed("short unit")
    assert (source.voxel_size, source.unit) == ((4.04, 4.04, 40), "nanometer")
    source = parsed("micro sign")
    assert (source.voxel_size, source.unit) == ((1, 1, 1), "micrometer")


@pytest.mark.parametrize(
    ("name", "mags"),
    [
        ("legacy resolutions", [("1", None, 1024), ("2-2-1", None, 1024)]),
        ("legacy resolution as a number", [("1", None, 1024), ("2", None, 1024)]),
        ("mag as a number", [("1", "a/1", None), ("4", "a/4", None)]),
        ("null paths", [("1", None, 32)]),
        ("mags in another order", [("1", "a/1", None), ("4-4-2", "a/4-4-2", None)]),
        ("URL", [("1", "s3://host/bucket/a/1", None)]),
        ("no mags", []),
    ],
)
def test_mags(name, mags):
    assert [
        (record.mag.name, record.path, record.cube_length) for record in parsed(name).layers[0].mags
    ] == mags


@pytest.mark.parametrize(
    ("name", "dtype", "num_channels"),
    [
        ("uint24", "uint8", 3),
        ("uint24 without channels", "uint8", 3),
        ("uint80", "uint16", 5),
        ("float", "float32", 1),
        ("double", "float64", 1),
        ("int64", "int64", 1),
    ],
)
def test_types(name, dtype, num_channels):
    record = parsed(name).layers[0]
    assert record.num_channels == num_channels
    assert dtype_of(record.element_class, record.num_channels) == dtype


def test_types_that_wkw_does_not_have():
    assert dtype_of("uint24", 1) is None
    assert dtype_of("parrot", 1) is None


def test_what_else_a_layer_says():
    entry = parsed("attachments").layers[0].entry
    assert attachments_of(entry) == (
        Attachment("meshes", "m", "./a/meshes/m", "neuroglancerPrecomputed"),
        Attachment("agglomerates", "v", "/abs/v.hdf5", "hdf5"),
        Attachment("segmentIndex", "i", "a/i", "hdf5"),
    )
    entry = parsed("malformed attachments").layers[0].entry
    assert (attachments_of(entry), mappings_of(entry)) == ((), ())
    assert mappings_of(parsed("mappings").layers[0].entry) == ("agglomerate_view_5", "x")
    assert axes_of(parsed("additional axes").layers[0].entry) == (Axis("t", (0, 10), 1),)
    assert [
        one["type"] for one in transformations_of(parsed("transformations").layers[0].entry)
    ] == ["affine", "thin_plate_spline"]
    assert view_of(parsed("view of a layer").layers[0].entry)["intensityRange"] == [70, 180]


def test_an_odd_layer_leaves_the_others():
    source = parsed("an odd layer")
    assert [record.name for record in source.layers] == ["a"]
    (odd,) = source.invalid_layers
    assert (odd.name, odd.path) == ("odd", "dataLayers[1]")
    assert odd.problem.startswith(
        'ds.json: dataLayers[1].category: expected "color" or "segmentation", found "mask"; '
        "dataLayers[1].boundingBox: "
    )
    assert [odd.name for odd in parsed("a layer that is none").invalid_layers] == ["dataLayers[1]"]


def test_paths_change_with_the_folder():
    """Attachments too; what is elsewhere stays."""
    changed = with_new_name(
        parsed("attachments").document,
        "a",
        "z",
        lambda path: path.replace("a/", "z/", 1) if path.startswith(("./a/", "a/")) else path,
    )
    attachments = changed["dataLayers"][0]["attachments"]
    assert [
        attachments["meshes"][0]["path"],
        attachments["agglomerates"][0]["path"],
        attachments["segmentIndex"]["path"],
    ] == [
        "./z/meshes/m",
        "/abs/v.hdf5",
        "z/i",
    ]
    assert changed["dataLayers"][0]["mags"][0]["path"] == "./z/1"
