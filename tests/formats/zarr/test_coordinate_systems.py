"""OME-NGFF 0.6: coordinate systems and transformations that are read, written, kept by edits, and
refused."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run_here

import wkwdask
from wkwdask.errors import CorruptError, TransformationWarning, UnsupportedError
from wkwdask.formats.zarr.coordinate_systems import Placement, describe_scene, parse_placed
from wkwdask.formats.zarr.ngff import parse_image

SHAPE = (20, 18, 12)
VOXELS = np.random.default_rng(6).integers(1, 200, SHAPE).astype(np.uint16)
AXES = [{"name": letter, "type": "space", "unit": "micrometer"} for letter in "zyx"]
SCALE, SHIFT = (
    {"type": "scale", "scale": [0.03, 0.01, 0.01]},
    {"type": "translation", "translation": [0.3, 0.2, 0.1]},
)
AFFINE = {"type": "affine", "affine": [[1, 0, 0, 5], [0, 1, 0.5, 0], [0, 0, 1, 0]]}


def image_of(step, path="s0", **more):
    """The entry of ``multiscales`` with one dataset."""
    step = {"input": {"path": path}, "output": {"name": "physical"}, **step}
    return {
        "name": "em", "coordinateSystems": [{"name": "physical", "axes": AXES}],
        "datasets": [{"path": path, "coordinateTransformations": [step]}], **more,
    }  # fmt: skip


def placement_of(step):
    return parse_placed(image_of(step), "em: multiscales[0]").placements[0][1]


def sequence(*steps):
    return {"type": "sequence", "transformations": list(steps)}


def write_image(folder, image, version="0.6", **attributes):
    """An image whose array was written by zarr-python."""
    zarr = pytest.importorskip("zarr", reason="the extra zarr")
    group = zarr.create_group(
        folder,
        attributes={"ome": {"version": version, "multiscales": [image], **attributes}},
        zarr_format=3,
    )
    group.create_array("s0", shape=SHAPE[::-1], dtype=VOXELS.dtype, chunks=(6, 6, 6))[...] = (
        VOXELS.T
    )
    return folder


def ome_of(folder):
    return json.loads((Path(folder) / "zarr.json").read_text())["attributes"]["ome"]


def validate(folder, model="image"):
    """Check a group against the schemas of the specification."""
    pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schemas = pytest.importorskip("ngff_zarr.validate", reason="ngff-zarr is not installed")
    ome = ome_of(folder)
    schemas.validate({"ome": ome}, version=ome["version"], model=model)
    return ome


@pytest.mark.parametrize(
    ("step", "scale", "translation"),
    [
        ({"type": "identity"}, (1, 1, 1), (0, 0, 0)),
        ({"type": "mapAxis", "mapAxis": [0, 1, 2]}, (1, 1, 1), (0, 0, 0)),
        ({"type": "scale", "scale": [3, 2, 1]}, (3, 2, 1), (0, 0, 0)),
        ({"type": "translation", "translation": [3, 2, 1]}, (1, 1, 1), (3, 2, 1)),
        (
            sequence(
                {"type": "scale", "scale": [3, 2, 1]},
                {"type": "translation", "translation": [1, 2, 3]},
            ),
            (3, 2, 1),
            (1, 2, 3),
        ),
        (
            sequence(
                {"type": "translation", "translation": [1, 2, 3]},
                {"type": "scale", "scale": [3, 2, 1]},
            ),
            (3, 2, 1),
            (3, 4, 3),
        ),
        (
            sequence(
                {"type": "identity"},
                sequence({"type": "scale", "scale": [3, 2, 1]}),
                {"type": "scale", "scale": [2, 2, 2]},
            ),
            (6, 4, 2),
            (0, 0, 0),
        ),
    ],
)
def test_transformations_that_are_applied(step, scale, translation):
    assert placement_of(step) == Placement(scale, translation)


@pytest.mark.needs("zarr")
@pytest.mark.parametrize(
    "step",
    [
        AFFINE,
        {"type": "rotation", "rotation": [[1, 0, 0], [0, 1, 0], [0, 0, 1]]},
        {"type": "displacements", "path": "field"},
        {"type": "mapAxis", "mapAxis": [2, 1, 0]},
        {"type": "scale", "path": "factors"},
        {"type": "scale", "scale": [1, -1, 1]},
        sequence({"type": "scale", "scale": [3, 2, 1]}, AFFINE),
        {"type": "of tomorrow"},
    ],
    ids=lambda step: step["type"],
)
def test_other_transformations_are_not_applied_and_named_by_a_warning(tmp_path, step):
    folder = write_image(tmp_path / "em", image_of(step))
    with pytest.warns(
        TransformationWarning,
        match=(
            rf"{folder}: opens in the coordinate system 'physical'; not applied: {step['type']} of "
            r"the array 's0'"
        ),
    ):
        np.testing.assert_array_equal(wkwdask.open(folder)[0], VOXELS)
    assert wkwdask.info(folder).scales[0].resolution is None


@pytest.mark.needs("zarr")
@pytest.mark.parametrize("version", ["0.6", "0.6rc0", "0.6.dev4", "0.6dev2", "0.6.1"])
def test_images_open_in_their_intrinsic_system(tmp_path, version):
    others = [
        {**AFFINE, "input": {"name": "physical"}, "output": {"name": "atlas"}},
        {
            "type": "identity",
            "input": {"name": "physical"},
            "output": {"path": "labels/x", "name": "physical"},
        },
    ]
    image = image_of(sequence(SCALE, SHIFT), coordinateTransformations=others)
    image["coordinateSystems"].insert(0, {"name": "atlas", "axes": AXES})
    folder = write_image(tmp_path / "em", image, version)
    found = wkwdask.info(folder)
    assert found.notes == (
        "coordinate system 'physical'",
        "not applied: affine from 'physical' to 'atlas'",
    )
    assert [(scale.resolution, scale.box.topleft) for scale in found.scales] == [
        ((10.0, 10.0, 30.0), (10, 20, 10))
    ]
    with pytest.warns(
        TransformationWarning, match="not applied: affine from 'physical' to 'atlas'$"
    ):
        np.testing.assert_array_equal(
            wkwdask.read(folder, ((10, 20, 10), (12, 25, 16)))[0], VOXELS[:2, :5, :6]
        )
    assert "coordinate system 'physical'" in run_here("info", folder).stdout


def test_drafts_with_texts_as_inputs_and_outputs(tmp_path):
    folder = write_image(
        tmp_path / "em", image_of({**SCALE, "input": "s0", "output": "physical"}), "0.6.dev3"
    )
    assert wkwdask.info(folder).scales[0].resolution == (10.0, 10.0, 30.0)


def _wrong(change):
    image = copy.deepcopy(
        image_of(
            sequence(SCALE, SHIFT),
            coordinateTransformations=[
                {"type": "identity", "input": {"name": "physical"}, "output": {"name": "b"}}
            ],
        )
    )
    image["coordinateSystems"].append({"name": "b", "axes": AXES})
    change(
        image,
        image["datasets"][0]["coordinateTransformations"][0],
        image["coordinateTransformations"][0],
    )
    return image


WRONG = {
    "no systems": (
        lambda i, d, t: i.pop("coordinateSystems"),
        r"coordinateSystems: expected a list",
    ),
    "no names": (
        lambda i, d, t: i["coordinateSystems"][1].update(name="physical"),
        r"coordinateSystems\[1\]\.name: expected a name that no other system has",
    ),
    "no axes": (
        lambda i, d, t: i["coordinateSystems"][0].pop("axes"),
        r"coordinateSystems\[0\]\.axes: expected a list",
    ),
    "equal axes": (
        lambda i, d, t: i["coordinateSystems"][0].update(axes=[{"name": "x"}] * 3),
        r"Systems\[0\]\.axes: expected a list of objects with",
    ),
    "no datasets": (
        lambda i, d, t: i.update(datasets=[]),
        r"datasets: expected a list of at least one",
    ),
    "no path": (
        lambda i, d, t: i["datasets"][0].pop("path"),
        r"datasets\[0\]: expected an object with the path",
    ),
    "no transformation": (
        lambda i, d, t: i["datasets"][0].update(coordinateTransformations=[]),
        r"datasets\[0\]\.coordinateTransformations: expected",
    ),
    "no type": (
        lambda i, d, t: d.pop("type"),
        r"coordinateTransformations\[0\]\.type: expected the type",
    ),
    "no input": (
        lambda i, d, t: d.pop("input"),
        r"datasets\[0\]\.coordinateTransformations\[0\]\.input: expected an object with",
    ),
    "input of another": (
        lambda i, d, t: d.update(input={"path": "s1"}),
        r"\.input: expected the path of the dataset, 's0', found",
    ),
    "no output": (lambda i, d, t: d.pop("output"), r"\.output: expected an object with"),
    "unknown output": (
        lambda i, d, t: d.update(output={"name": "space"}),
        r"\.output: expected the name of a coordinate system: 'physical', 'b', found",
    ),
    "wrong length": (
        lambda i, d, t: d["transformations"][0].update(scale=[1, 2]),
        r"\[0\]\.scale: expected 3 numbers, one for each axis, found \[1, 2\]",
    ),
    "no number": (
        lambda i, d, t: d["transformations"][1].update(translation=[float("nan"), 0, 0]),
        r"transformations\[1\]\.translation: expected 3 numbers",
    ),
    "huge": (
        lambda i, d, t: d["transformations"][0].update(scale=[1e200, 1, 1]),
        r"transformations\[0\]\.scale: expected 3 numbers",
    ),
    "far": (
        lambda i, d, t: d["transformations"][1].update(translation=[1e90, 0, 0]),
        r"expected a translation by at most 2\^53 voxels",
    ),
    "zero": (
        lambda i, d, t: d["transformations"][0].update(scale=[0, 1, 1]),
        r"scale: expected numbers other than zero",
    ),
    "empty": (
        lambda i, d, t: d.update(transformations=[]),
        r"\.transformations: expected a list of transformations",
    ),
    "circle": (
        lambda i, d, t: t.update(output={"name": "physical"}),
        r"coordinateTransformations\[0\]\.output: expected another coordinate system",
    ),
    "unknown input": (
        lambda i, d, t: t.update(input={"name": "c"}),
        r"coordinateTransformations\[0\]\.input: expected the name of a coordinate system",
    ),
    "axes twice": (
        lambda i, d, t: t.update(type="mapAxis", mapAxis=[0, 0, 1]),
        r"mapAxis: expected the axis numbers 0 to 2, each once",
    ),
    "too deep": (lambda i, d, t: d.update(_nested(20)), r"at most 8 in each other"),
}


def _nested(depth):
    step = SCALE
    for _ in range(depth):
        step = sequence(step)
    return step


@pytest.mark.parametrize("name", WRONG)
def test_invalid_documents_are_errors_that_name_the_place(name):
    change, message = WRONG[name]
    with pytest.raises(CorruptError, match=rf"^em: multiscales\[0\].*{message}"):
        parse_image({"ome": {"version": "0.6", "multiscales": [_wrong(change)]}}, "em")


def test_ways_back_between_systems_are_no_error(tmp_path):
    # The specification allows an inverse transformation beside its forward one, so the graph may
    # have circles.
    steps = [
        {**SCALE, "input": {"name": a}, "output": {"name": b}}
        for a, b in (("physical", "b"), ("b", "c"), ("c", "physical"), ("b", "physical"))
    ]
    image = image_of(SCALE, coordinateTransformations=steps)
    image["coordinateSystems"] += [{"name": name, "axes": AXES} for name in "bc"]
    np.testing.assert_array_equal(wkwdask.open(write_image(tmp_path / "em", image))[0], VOXELS)


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from(
        [
            0,
            -1,
            3,
            1e308,
            float("nan"),
            float("inf"),
            1 << 70,
            "",
            "s0",
            "physical",
            "scale",
            "sequence",
            "identity",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "scale", "path", "name", "input", "output", "axes", "transformations"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)


@given(st.data())
def test_any_change_of_a_document_parses_or_is_a_format_error(data):
    image = _wrong(lambda *_: None)
    node, key = {"top": image}, "top"
    while isinstance(node[key], (dict, list)) and node[key] and data.draw(st.integers(0, 4)):
        node = node[key]
        key = data.draw(
            st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node)))
        )
    node[key] = data.draw(_values)
    try:
        found = parse_image({"ome": {"version": "0.6", "multiscales": [image]}}, "em")
    except (CorruptError, UnsupportedError):
        return
    assert found is None or all(
        level.scale is None
        or (np.isfinite(level.scale).all() and np.isfinite(level.translation).all())
        for level in found.levels
    )


def test_a_level_with_other_axes_is_not_opened(tmp_path):
    image = image_of({"type": "scale", "scale": [1, 1]})
    image["coordinateSystems"][0]["axes"] = AXES[1:]
    with pytest.raises(UnsupportedError, match=r"states 2 axes \(y, x\) for an array of shape"):
        wkwdask.open(write_image(tmp_path / "em", image))


def test_scenes_are_listed_by_info(tmp_path):
    zarr = pytest.importorskip("zarr", reason="the extra zarr")
    step = {
        **AFFINE,
        "input": {"path": "a", "name": "physical"},
        "output": {"path": "b", "name": "physical"},
    }
    zarr.create_group(
        tmp_path / "scene.zarr",
        attributes={"ome": {"version": "0.6", "scene": {"coordinateTransformations": [step]}}},
        zarr_format=3,
    )
    for name in "ab":
        write_image(tmp_path / "scene.zarr" / name, image_of(SCALE))
    found = wkwdask.info(tmp_path / "scene.zarr")
    assert found.notes == ("scene: a/physical to b/physical: affine (not applied)",)
    assert [scale.key for scale in found.scales] == ["a/s0", "b/s0"]
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "scene.zarr", layer="b")[0], VOXELS)
    for scene in (
        {},
        {"coordinateTransformations": [{"type": "affine", "output": {"name": "b"}}]},
        3,
    ):
        with pytest.raises(CorruptError, match=r"scene: scene\.coordinateTransformations"):
            describe_scene(scene, "scene: scene")


def save(url, **options):
    pytest.importorskip("zarr", reason="the codecs of zarr")
    return wkwdask.to_zarr(
        VOXELS,
        url,
        voxel_size=(4, 4, 8),
        offset=(4, 6, 3),
        ngff="0.6",
        chunk_shape=(4, 4, 4),
        shard_shape=(8, 8, 8),
        **options,
    )


def test_images_of_ngff_zarr_open(tmp_path):
    ngff_zarr = pytest.importorskip("ngff_zarr", reason="ngff-zarr is not installed")
    image = ngff_zarr.to_ngff_image(
        VOXELS.T.copy(),
        ("z", "y", "x"),
        {"z": 0.03, "y": 0.01, "x": 0.01},
        {"z": 0.3, "y": 0.2, "x": 0.1},
        axes_units=dict.fromkeys("zyx", "micrometer"),
    )
    ngff_zarr.to_ngff_zarr(
        str(tmp_path / "em.ome.zarr"), ngff_zarr.to_multiscales(image, [2], chunks=8), version="0.6"
    )
    scales = wkwdask.info(tmp_path / "em.ome.zarr").scales
    assert [(scale.resolution, scale.box.topleft) for scale in scales] == [
        ((10.0, 10.0, 30.0), (10, 20, 10)),
        ((20.0, 20.0, 60.0), (5, 10, 5)),
    ]
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "em.ome.zarr", mag=1)[0], VOXELS)


@pytest.mark.parametrize("version", ["0.6", "0.6.dev3"])
def test_edits_keep_the_document_valid_and_what_others_added(tmp_path, version):
    url = tmp_path / "em.ome.zarr"
    save(url)
    document = json.loads((url / "zarr.json").read_text())
    ome = document["attributes"]["ome"]
    image = ome["multiscales"][0]
    ome["version"], document["attributes"]["others"] = version, {"a": 1}
    ends = [{"name": "physical"}, {"name": "atlas"}]
    if version != "0.6":  # a draft with texts
        image["datasets"][0]["coordinateTransformations"][0] |= {"input": "1", "output": "physical"}
        ends = ["physical", "atlas"]
    image["coordinateSystems"].append({"name": "atlas", "axes": AXES})
    image["coordinateTransformations"] = [
        {**AFFINE, "name": "registration", "input": ends[0], "output": ends[1]}
    ]
    image["datasets"][0]["note"] = "mine"
    (url / "zarr.json").write_text(json.dumps(document))

    def check(*paths):
        found = validate(url) if version == "0.6" else ome_of(url)
        now = found["multiscales"][0]
        assert [entry["path"] for entry in now["datasets"]] == list(paths)
        assert {
            key: now[key] for key in ("coordinateSystems", "coordinateTransformations", "name")
        } == {key: image[key] for key in ("coordinateSystems", "coordinateTransformations", "name")}
        assert now["datasets"][0].get("note") == "mine"
        assert {
            type(entry["coordinateTransformations"][0]["input"]) for entry in now["datasets"]
        } == {dict if version == "0.6" else str}
        assert (
            found["version"],
            json.loads((url / "zarr.json").read_text())["attributes"]["others"],
        ) == (version, {"a": 1})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TransformationWarning)
        wkwdask.build_pyramid(url)
        check("1", "2-2-1", "4-4-2")
        wkwdask.rm(url, mags=["2-2-1"])
        check("1", "4-4-2")
        wkwdask.build_pyramid(url, existing="overwrite", ngff="0.6")
        check("1", "2-2-1", "4-4-2")
        wkwdask.rechunk(url, chunk_shape=(8, 8, 8), shard_shape=False)
        check("1", "2-2-1", "4-4-2")
        assert wkwdask.verify(url, pyramid=True).is_sound
        wkwdask.repair(url)
        check("1", "2-2-1", "4-4-2")
        np.testing.assert_array_equal(wkwdask.open(url, mag=1)[0], VOXELS)
        image["coordinateTransformations"][0]["input"] = (
            {"path": "2-2-1"} if version == "0.6" else "2-2-1"
        )
        document["attributes"]["ome"]["multiscales"][0] = {
            **image,
            "datasets": ome_of(url)["multiscales"][0]["datasets"],
        }
        image["coordinateSystems"].append({"name": "2-2-1", "axes": AXES})
        (url / "zarr.json").write_text(json.dumps(document))
        with pytest.raises(
            CorruptError,
            match=(
                r"coordinateTransformations\[0\]\.input: refers to the array '2-2-1', which would "
                r"be removed"
            ),
        ):
            wkwdask.rm(url, mags=["2-2-1"])
        assert (url / "2-2-1").exists()


def test_labels_follow_the_version_of_their_image(tmp_path):
    url = tmp_path / "em.ome.zarr"
    save(url)
    wkwdask.to_zarr(
        VOXELS.astype(np.uint32),
        url / "labels" / "cells",
        voxel_size=(4, 4, 8),
        category="segmentation",
        chunk_shape=(8, 8, 8),
    )
    assert validate(url / "labels" / "cells", "label")["version"] == "0.6"
    assert ome_of(url / "labels") == {"version": "0.6", "labels": ["cells"]}
