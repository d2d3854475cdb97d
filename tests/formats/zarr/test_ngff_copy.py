"""Copies of OME-NGFF images of other software keep version, axes, names and metadata; what does not
hold for a copy is named in a warning."""

from __future__ import annotations

import json
import warnings

import dask
import numpy as np
import pytest
from support.inner_box import inside

import wkwdask
from wkwdask.errors import MetadataWarning, TransformationWarning

zarr = pytest.importorskip("zarr", reason="the extra zarr")

VOXELS = np.random.default_rng(3).integers(1, 200, (20, 18, 12)).astype(np.uint16)
AXES = [
    {"name": "t", "type": "time"},
    {"name": "c", "type": "channel"},
    *({"name": letter, "type": "space", "unit": "micrometer"} for letter in "zyx"),
]
SCALE, SHIFT = (0.03, 0.01, 0.01), (0.3, 0.2, 0.1)
WINDOW = {"min": 0, "max": 255, "start": 10, "end": 200}
OMERO = {
    "channels": [{"color": "FF0000", "label": "DAPI", "window": WINDOW}],
    "rdefs": {"defaultZ": 3, "model": "color"},
}
AFFINE = {"type": "affine", "affine": [[1, 0, 0, 0, 0, 5]], "name": "registration"}
VERSIONS = ("0.4", "0.5", "0.6")


@pytest.fixture(autouse=True)
def _quiet():
    with dask.config.set(scheduler="synchronous"), warnings.catch_warnings():
        warnings.simplefilter("ignore", TransformationWarning)
        yield


def _entry(number, version):
    scale = [1.0, 1.0, *(length * 2**number for length in SCALE)]
    shift = [
        0.0,
        0.0,
        *(low + length * (2**number - 1) / 2 for low, length in zip(SHIFT, SCALE, strict=True)),
    ]
    steps = [{"type": "scale", "scale": scale}, {"type": "translation", "translation": shift}]
    if version == "0.6":
        steps = [
            {
                "type": "sequence",
                "input": {"path": f"s{number}"},
                "output": {"name": "physical"},
                "transformations": steps,
            }
        ]
    return {"path": f"s{number}", "coordinateTransformations": steps, "note": "of the level"}


def write_image(folder, version, **more):
    """An image with two levels and the axes t, c, z, y, x, as zarr-python writes it."""
    image = {
        "name": "em",
        "type": "gaussian",
        "datasets": [_entry(number, version) for number in range(2)],
        **more,
    }
    if version == "0.6":
        image["coordinateSystems"] = [
            {"name": name, "axes": AXES} for name in ("physical", "atlas")
        ]
        image.setdefault(
            "coordinateTransformations",
            [{**AFFINE, "input": {"name": "physical"}, "output": {"name": "atlas"}}],
        )
    else:
        image["axes"] = AXES
    ome = {"multiscales": [image], "omero": OMERO}
    attributes = (
        {"ome": {"version": version, **ome}}
        if version != "0.4"
        else {**ome, "multiscales": [{**image, "version": version}]}
    )
    group = zarr.create_group(
        folder,
        attributes={**attributes, "pixels": {"mine": 1}},
        zarr_format=2 if version == "0.4" else 3,
    )
    for number in range(2):
        voxels = VOXELS[:: 2**number, :: 2**number, :: 2**number].T[np.newaxis, np.newaxis]
        names = {} if version == "0.4" else {"dimension_names": list("tczyx")}
        group.create_array(
            f"s{number}",
            shape=voxels.shape,
            dtype=voxels.dtype,
            chunks=(1, 1, 4, 4, 4),
            attributes={"detector": 7},
            **names,
        )[...] = voxels
    return group


def attributes_of(folder):
    return dict(zarr.open_group(folder, mode="r").attrs)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_copy_has_all_metadata_of_its_source(tmp_path, version):
    source = write_image(tmp_path / "a.ome.zarr", version)
    (tmp_path / "a.ome.zarr" / "labels").mkdir()
    report = wkwdask.copy(tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr")
    assert report.note.startswith(f"not copied: {tmp_path}/a.ome.zarr/labels")
    group = zarr.open_group(tmp_path / "b.ome.zarr", mode="r")
    assert dict(group.attrs) == dict(source.attrs)
    for name in ("s0", "s1"):
        np.testing.assert_array_equal(group[name][...], source[name][...])
        before, after = source[name].metadata.to_dict(), group[name].metadata.to_dict()
        kept = (
            "zarr_format",
            "shape",
            "data_type",
            "dtype",
            "chunk_grid",
            "chunks",
            "dimension_names",
        )
        assert [after.get(key) for key in kept] == [before.get(key) for key in kept]
        assert after["attributes"]["detector"] == 7
    models = pytest.importorskip("ome_zarr_models", reason="ome-zarr-models is not installed")
    if version != "0.6":
        getattr(models, f"v{version.replace('.', '')}").Image.from_zarr(group)


@pytest.mark.parametrize("version", VERSIONS)
def test_levels_are_stored_again_in_place_with_all_metadata(tmp_path, version):
    source = write_image(tmp_path / "a.ome.zarr", version)
    before = dict(source.attrs)
    wkwdask.rechunk(tmp_path / "a.ome.zarr", chunk_shape=(8, 8, 8))
    found = zarr.open_group(tmp_path / "a.ome.zarr", mode="r")
    assert dict(found.attrs) == before
    assert found["s1"].chunks == (1, 1, 8, 8, 8)
    np.testing.assert_array_equal(found["s0"][0, 0].T, VOXELS)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_moved_box_has_metadata_that_hold_and_a_warning_names_the_others(tmp_path, version):
    write_image(tmp_path / "a.ome.zarr", version)
    lost = (
        "the affine from 'physical' to 'atlas', because voxels move; " if version == "0.6" else ""
    )
    with pytest.warns(
        MetadataWarning,
        match=(
            f"b.ome.zarr: does not take over from {tmp_path}/a.ome.zarr: "
            f"{lost}omero.rdefs.defaultZ, which"
        ),
    ) as found:
        wkwdask.copy(
            tmp_path / "a.ome.zarr",
            tmp_path / "b.ome.zarr",
            bounding_box=(12, 22, 12, 8, 8, 6),
            translate=(2, 4, 6),
        )
    assert [warning.category for warning in found].count(MetadataWarning) == 1
    attributes = attributes_of(tmp_path / "b.ome.zarr")
    ome = attributes.get("ome", attributes)
    assert ome["omero"] == {**OMERO, "rdefs": {"model": "color"}}
    assert attributes["pixels"] == {"mine": 1}
    places = [
        (scale.key, scale.resolution, scale.box.topleft, scale.box.size)
        for scale in wkwdask.info(tmp_path / "b.ome.zarr").scales
    ]
    assert places == [
        ("s0", (10, 10, 30), (14, 26, 18), (8, 8, 6)),
        ("s1", (20, 20, 60), (7, 13, 9), (4, 4, 3)),
    ]
    array = zarr.open_group(tmp_path / "b.ome.zarr", mode="r")["s0"]
    np.testing.assert_array_equal(inside(array[0, 0], array.attrs).T, VOXELS[2:10, 2:10, 2:8])


def test_transformations_that_refer_to_levels_that_are_not_copied_are_named(tmp_path):
    steps = [
        {**AFFINE, "input": {"name": "physical"}, "output": {"name": "atlas"}},
        {"type": "identity", "input": {"path": "s1"}, "output": {"name": "atlas"}},
    ]
    write_image(tmp_path / "a.ome.zarr", "0.6", coordinateTransformations=steps)
    with pytest.warns(
        MetadataWarning, match="the identity from 's1' to 'atlas', which refers to 's1'"
    ):
        wkwdask.copy(tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr", mags=["1"])
    (image,) = attributes_of(tmp_path / "b.ome.zarr")["ome"]["multiscales"]
    assert image["coordinateTransformations"] == steps[:1]
    assert [system["name"] for system in image["coordinateSystems"]] == ["physical", "atlas"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_conversion_names_the_metadata_that_it_drops(tmp_path, version):
    write_image(tmp_path / "a.ome.zarr", version)
    with pytest.warns(
        MetadataWarning,
        match=(
            r"b.ome.zarr: does not take over from .*omero.*multiscales\.type.*; s0\.detector; "
            r"s1\.detector$"
        ),
    ):
        wkwdask.convert(tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr")
    assert attributes_of(tmp_path / "b.ome.zarr")["ome"]["version"] == "0.5"
    # an image of this package has no more metadata than a new one
    wkwdask.convert(tmp_path / "b.ome.zarr", tmp_path / "c.ome.zarr")


def test_other_versions_of_a_copy_are_written_as_a_conversion(tmp_path):
    write_image(tmp_path / "a.ome.zarr", "0.4")
    with pytest.warns(MetadataWarning, match="omero; pixels"):
        wkwdask.rechunk(tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr", ngff="0.5")
    assert attributes_of(tmp_path / "b.ome.zarr")["ome"]["version"] == "0.5"
    assert wkwdask.diff(tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr").equal


def test_an_array_of_zarr_2_is_copied_to_an_image_of_zarr_2(tmp_path):
    write_image(tmp_path / "a.ome.zarr", "0.4")
    array = zarr.create_array(
        tmp_path / "a",
        shape=VOXELS.T.shape,
        dtype=VOXELS.dtype,
        chunks=(4, 4, 4),
        zarr_format=2,
        attributes={"voxel_size_nm": [4, 4, 8], "mine": 1},
    )
    array[...] = VOXELS.T
    wkwdask.copy(f"zarr://{tmp_path}/a", f"zarr://{tmp_path}/b")
    assert json.loads((tmp_path / "b" / "1" / ".zattrs").read_text())["mine"] == 1
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "b", mode="r")["1"][...].T, VOXELS)
