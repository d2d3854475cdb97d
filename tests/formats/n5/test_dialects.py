"""N5 groups as other software describes them: levels that a job adds, replaces or removes leave all others as they were."""

from __future__ import annotations

import json

import dask
import numpy as np
import pytest
from support.n5_volumes import write_attributes

import wkwdask
from wkwdask.errors import ExistsError

ts = pytest.importorskip("tensorstore", reason="tensorstore is not installed")

SIZE = (48, 40, 24)
FINE = np.random.default_rng(1).integers(1, 200, SIZE).astype("u1")
LEVELS = [FINE[(slice(None, None, 1 << n),) * 3] for n in range(4)]
FACTORS = [[1, 1, 1], [2, 2, 2], [4, 4, 4]]
RESOLUTION = {"pixelResolution": {"dimensions": [4, 4, 8], "unit": "nm"}}


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


def write_by_tensorstore(folder, array, labels=None, units=None, **attributes):
    schema = {"dtype": str(array.dtype), "domain": {"shape": array.shape}, "chunk_layout": {"chunk": {"shape": [16, 16, 8]}}}
    if labels is not None:
        schema["domain"]["labels"] = labels
        schema["dimension_units"] = units
    store = ts.open({"driver": "n5", "kvstore": f"file://{folder}/", "create": True, "metadata": {"compression": {"type": "gzip"}}, "schema": schema}).result()
    store[...] = array
    write_attributes(folder, **json.loads((folder / "attributes.json").read_text()), **attributes)


def write_levels(group, own=lambda n: {}, axes="xyz"):
    for n, array in enumerate(LEVELS[:3]):
        write_by_tensorstore(group / f"s{n}", array if axes == "xyz" else array.T, **own(n))


def units_of(n, axes="xyz"):
    return {"labels": list(axes), "units": [f"{(8 if axis == 'z' else 4) << n} nm" for axis in axes]}


def cosem(n):
    scale = [8 << n, 4 << n, 4 << n]
    centre = [length / 2 - first / 2 for length, first in zip(scale, (8, 4, 4), strict=True)]
    return {"transform": {"axes": ["z", "y", "x"], "scale": scale, "translate": centre, "units": ["nm"] * 3}}


def factors_of(n, first=0):
    return {"downsamplingFactors": FACTORS[n]} if n >= first else {}


def no_attributes(group):
    write_levels(group)


def version_alone(group):
    write_levels(group)
    write_attributes(group.parent, n5="2.5.1")


def bigdataviewer(group):
    write_levels(group, factors_of)
    write_attributes(group.parent, downsamplingFactors=FACTORS, dataType="uint8", n5="2.5.1")
    write_attributes(group, resolution=[4, 4, 8], saved_completely=True, multiScale=True)


def factors_in_the_group(group):
    write_levels(group)
    write_attributes(group, downsamplingFactors=FACTORS, **RESOLUTION)


def scales_of_n5_viewer(group):
    write_levels(group)
    write_attributes(group, scales=FACTORS, **RESOLUTION)


def levels_of_n5_viewer(group):
    write_levels(group, lambda n: factors_of(n) | RESOLUTION)


def resolution_in_the_group(group):
    write_levels(group, lambda n: factors_of(n, 1))
    write_attributes(group, **RESOLUTION)


def neuroglancer(group):
    write_levels(group)
    write_attributes(group, axes=["x", "y", "z"], units=["nm"] * 3, resolution=[4, 4, 8], downsamplingFactors=FACTORS)


def neuroglancer_zyx(group):
    write_levels(group, axes="zyx")
    write_attributes(group, axes=["z", "y", "x"], units=["nm"] * 3, resolution=[8, 4, 4], downsamplingFactors=FACTORS)


def tensorstore(group):
    write_levels(group, units_of)


def tensorstore_zyx(group):
    write_levels(group, lambda n: units_of(n, "zyx"), axes="zyx")


def transforms(group):
    write_levels(group, cosem)


def paintera(group):
    write_levels(group, lambda n: factors_of(n, 1))
    write_attributes(group.parent, painteraData={"type": "raw"})
    write_attributes(group, multiScale=True, resolution=[4, 4, 8], offset=[0, 0, 0], maxId=3)


DIALECTS = [
    no_attributes, version_alone, bigdataviewer, factors_in_the_group, scales_of_n5_viewer, levels_of_n5_viewer, resolution_in_the_group, neuroglancer,
    neuroglancer_zyx, tensorstore, tensorstore_zyx, transforms, paintera,
]  # fmt: skip
each_dialect = pytest.mark.parametrize("describe", DIALECTS, ids=lambda describe: describe.__name__)
SIZED = [describe for describe in DIALECTS if describe not in (no_attributes, version_alone)]


@pytest.fixture
def group(tmp_path):
    return tmp_path / "c.n5" / "setup0" / "timepoint0"


def seen(group):
    """Return what our reader sees: key, mag, first voxel and voxel size of each level."""
    return {scale.key: (scale.mag.name, scale.box.topleft, scale.resolution) for scale in wkwdask.info(f"n5://{group}").scales}


def document_of(folder):
    path = folder / "attributes.json"
    return json.loads(path.read_text()) if path.exists() else {}


def seen_by_neuroglancer(group):
    """Return the voxel sizes of levels as Neuroglancer's N5 page defines them; None where it cannot open the group without a list of its folders."""
    merged = {}
    for folder in (group.parent.parent, group.parent, group):
        merged |= document_of(folder)
    factors = merged.get("scales", merged.get("downsamplingFactors"))
    if factors is None:
        return None
    resolution = merged["pixelResolution"]["dimensions"] if "pixelResolution" in merged else merged.get("resolution", [1] * 3)
    return {f"s{n}": [a * b for a, b in zip(resolution, listed, strict=True)] for n, listed in enumerate(factors)}


def seen_by_tensorstore(group, name):
    """Return the labels, units and voxels that tensorstore reads."""
    store = ts.open({"driver": "n5", "kvstore": f"file://{group}/{name}/"}).result()
    return store.domain.labels, [unit and str(unit) for unit in store.dimension_units], store.read().result()


def add_by_pyramid(group):
    wkwdask.build_pyramid(f"n5://{group}", mags=["8-8-8"], method="nearest")


def add_by_save(group):
    wkwdask.save(LEVELS[3], f"n5://{group}/s3", mag="8-8-8")


def add_by_to_n5(group):
    wkwdask.to_n5(LEVELS[3], f"{group}/s3", mag="8-8-8", chunk_shape=(8, 8, 8))


@each_dialect
@pytest.mark.parametrize("add", [add_by_pyramid, add_by_save, add_by_to_n5], ids=lambda add: add.__name__)
def test_a_new_level_leaves_the_others_as_they_were(group, describe, add):
    describe(group)
    before, by_neuroglancer, labels = seen(group), seen_by_neuroglancer(group), seen_by_tensorstore(group, "s0")[0]
    add(group)
    after = seen(group)
    assert {key: after[key] for key in before} == before
    assert after.keys() - before.keys() == {"s3"}
    finest = before["s0"][2]
    assert after["s3"] == ("8", (0, 0, 0), finest and tuple(8 * length for length in finest))
    for n, array in enumerate(LEVELS):
        np.testing.assert_array_equal(wkwdask.read(f"n5://{group}", mag=1 << n)[0], array)
    names, units, voxels = seen_by_tensorstore(group, "s3")
    assert labels in (("", "", ""), names)
    assert np.array_equal(voxels if names[0] == "x" else voxels.T, LEVELS[3])
    if describe in (tensorstore, tensorstore_zyx):
        assert units == [f"{64 if axis == 'z' else 32} nm" for axis in names]
    if by_neuroglancer is not None and describe is not bigdataviewer:  # its factors are of all time points
        coarse = {"s3": [8 * length for length in by_neuroglancer["s0"]]}
        assert seen_by_neuroglancer(group) == by_neuroglancer | coarse
    assert not wkwdask.verify(f"n5://{group}").faults
    assert "multiscales" not in document_of(group)


@each_dialect
@pytest.mark.parametrize("number", [0, 1])
def test_a_replaced_level_leaves_the_others_as_they_were(group, describe, number):
    describe(group)
    before, by_neuroglancer = seen(group), seen_by_neuroglancer(group)
    wkwdask.rechunk(f"n5://{group}/s{number}", chunk_shape=(8, 8, 8))
    assert seen(group) == before
    wkwdask.build_pyramid(f"n5://{group}", mags=["2-2-2"], method="nearest", existing="overwrite")
    assert seen(group) == before
    assert seen_by_neuroglancer(group) == by_neuroglancer
    for n, array in enumerate(LEVELS[:3]):
        np.testing.assert_array_equal(wkwdask.read(f"n5://{group}", mag=1 << n)[0], array)


@pytest.mark.parametrize("describe", SIZED, ids=lambda describe: describe.__name__)
def test_the_finest_level_is_removed_and_made_again(group, describe):
    """Voxel sizes stay those of the remaining levels; a coarser level is described by factors of the full resolution."""
    describe(group)
    before, by_neuroglancer = seen(group), seen_by_neuroglancer(group)
    wkwdask.rm(f"n5://{group}", mags=["1"])
    coarse = {key: ({"2": "1", "4": "2"}[mag], first, size) for key, (mag, first, size) in before.items() if key != "s0"}
    assert seen(group) == coarse
    wkwdask.build_pyramid(f"n5://{group}", mags=["4-4-4"], method="nearest")
    assert seen(group) == coarse | {"s3": ("4", (0, 0, 0), (32.0, 32.0, 64.0))}
    if by_neuroglancer is not None and describe is not bigdataviewer:
        assert seen_by_neuroglancer(group) == by_neuroglancer | {"s3": [8 * length for length in by_neuroglancer["s0"]]}
    wkwdask.upsample(f"n5://{group}", mags=["1"], voxel_size=(4, 4, 8))
    assert seen(group) == before | {"s3": ("8", (0, 0, 0), (32.0, 32.0, 64.0))}
    for n, array in enumerate(LEVELS[1:], 1):
        np.testing.assert_array_equal(wkwdask.read(f"n5://{group}", mag=1 << n)[0], array)
    stated = {n: seen_by_tensorstore(group, f"s{n}") for n in range(4)}
    if describe in (tensorstore, tensorstore_zyx):
        assert [units for _, units, _ in stated.values()] == [[f"{(8 if axis == 'z' else 4) << n} nm" for axis in stated[0][0]] for n in stated]
    assert not wkwdask.verify(f"n5://{group}").faults


@pytest.mark.parametrize("describe", [bigdataviewer, neuroglancer_zyx, tensorstore, paintera], ids=lambda describe: describe.__name__)
def test_a_conversion_into_such_a_group_leaves_other_levels(group, describe):
    describe(group)
    before = seen(group)
    source = group.parents[2] / "source.n5"
    wkwdask.to_n5(LEVELS[0], source / "s0", voxel_size=(4, 4, 8))
    wkwdask.convert(f"n5://{source}", f"n5://{group}", existing="overwrite")
    assert seen(group) == before
    np.testing.assert_array_equal(wkwdask.read(f"n5://{group}", mag=1)[0], LEVELS[0])


def test_a_level_without_a_mag_keeps_its_folder(group):
    """Its number is not given to a new level, neither by a coarser nor by a finer one."""
    write_by_tensorstore(group / "s0", FINE)
    write_by_tensorstore(group / "s1", FINE[::3, ::3, ::3], downsamplingFactors=[3, 3, 3])
    write_attributes(group, **RESOLUTION)
    wkwdask.build_pyramid(f"n5://{group}", mags=["2-2-2"], method="nearest", existing="overwrite")
    wkwdask.upsample(f"n5://{group}", mags=["1"], voxel_size=(2, 2, 4))
    np.testing.assert_array_equal(seen_by_tensorstore(group, "s1")[2], FINE[::3, ::3, ::3])
    np.testing.assert_array_equal(wkwdask.read(f"n5://{group}", mag="2")[0], FINE)
    np.testing.assert_array_equal(wkwdask.read(f"n5://{group}", mag="4")[0], LEVELS[1])


def test_two_levels_do_not_get_one_mag(group):
    no_attributes(group)
    before = seen(group)
    with pytest.raises(ExistsError, match=r"s0 is mag 1 already; mag= states the mag of a new level"):
        wkwdask.to_n5(LEVELS[3], group / "s3")
    assert seen(group) == before


def test_a_single_level_that_is_overwritten_takes_its_description_along(group):
    write_by_tensorstore(group / "s0", FINE)
    write_attributes(group, multiScale=True, resolution=[4, 4, 8], offset=[8, 8, 8], downsamplingFactors=[[1, 1, 1]])
    wkwdask.to_n5(FINE, group / "s0", voxel_size=(5, 5, 10), offset=(6, 2, 9), existing="overwrite")
    assert seen(group) == {"s0": ("1", (6, 2, 9), (5.0, 5.0, 10.0))}
    found = document_of(group)
    assert (found["resolution"], found["offset"]) == ([5.0, 5.0, 10.0], [30.0, 10.0, 90.0])
    assert seen_by_neuroglancer(group) == {"s0": [5.0, 5.0, 10.0]}


# ----------------------------------------------------------------------------- positions


def first_voxels(url):
    return {scale.key: scale.box.topleft for scale in wkwdask.info(url).scales}


def test_a_position_without_a_voxel_size_is_kept(tmp_path):
    """By every verb that writes N5 without a voxel size, and by levels that are computed."""
    em = f"n5://{tmp_path}/c.n5/em"
    wkwdask.to_n5(FINE, f"{em}/s0", offset=(6, 2, 9))
    assert first_voxels(em) == {"s0": (6, 2, 9)}
    wkwdask.build_pyramid(em, mags=["2-2-2"], method="nearest")
    assert first_voxels(em) == {"s0": (6, 2, 9), "s1": (3, 1, 4)}
    assert not wkwdask.verify(em).faults
    fine, coarse = wkwdask.read(em, mag=1), wkwdask.read(em, mag=2)
    box = (8, 4, 10, 20, 20, 20)
    targets = {name: f"n5://{tmp_path}/{name}.n5/em" for name in ("copied", "moved", "part", "stored", "converted", "applied")}
    wkwdask.copy(em, targets["copied"])
    wkwdask.copy(em, targets["moved"], translate=(2, 2, 2))
    wkwdask.copy(em, targets["part"], bounding_box=box)
    wkwdask.rechunk(em, targets["stored"], bounding_box=box, chunk_shape=(8, 8, 8))
    wkwdask.convert(em, targets["converted"])
    wkwdask.apply(np.copy, f"{em}/s0", f"{targets['applied']}/s0")
    assert {name: first_voxels(url) for name, url in targets.items()} == {
        "copied": {"s0": (6, 2, 9), "s1": (3, 1, 4)},
        "moved": {"s0": (8, 4, 11), "s1": (4, 2, 5)},
        "part": {"s0": (8, 4, 10), "s1": (4, 2, 5)},
        "stored": {"s0": (8, 4, 10), "s1": (4, 2, 5)},
        "converted": {"s0": (6, 2, 9), "s1": (3, 1, 4)},
        "applied": {"s0": (6, 2, 9)},
    }
    np.testing.assert_array_equal(wkwdask.read(targets["stored"], mag=1), fine[:, 2:22, 2:22, 1:21])
    np.testing.assert_array_equal(wkwdask.read(targets["stored"], mag=2), coarse[:, 1:11, 1:11, 1:11])
    wkwdask.rechunk(f"{em}/s0", chunk_shape=(8, 8, 8))
    assert first_voxels(em) == {"s0": (6, 2, 9), "s1": (3, 1, 4)}
    wkwdask.to_n5(FINE, tmp_path / "one.n5", offset=(-6, 2, 9))
    assert first_voxels(f"n5://{tmp_path}/one.n5") == {"one.n5": (-6, 2, 9)}


@pytest.mark.parametrize("unit", ["", "pixel", "a.u."])
def test_a_transform_in_an_unknown_unit_states_mags_and_positions(group, unit):
    for n, array in enumerate(LEVELS[:3]):
        edge = float(1 << n)
        place = {"axes": ["z", "y", "x"], "scale": [edge] * 3, "translate": [8.5 * edge - 0.5] * 3}
        write_by_tensorstore(group / f"s{n}", array, transform=place | ({"units": [unit] * 3} if unit else {}))
    assert seen(group) == {f"s{n}": (str(1 << n), (8, 8, 8), None) for n in range(3)}


PAINTERA = [
    # attributes of the group, first voxels, voxel size
    ({"resolution": [4, 4, 8], "offset": [24, 8, 72]}, [(6, 2, 9), (3, 1, 4), (1, 0, 2)], (4, 4, 8)),
    ({"resolution": [4, 4, 8], "offset": [-32, 0, 64]}, [(-8, 0, 8), (-4, 0, 4), (-2, 0, 2)], (4, 4, 8)),
    ({"resolution": [0.004, 0.004, 0.008], "units": ["um"] * 3, "offset": [0.032, 0, 0.064]}, [(8, 0, 8), (4, 0, 4), (2, 0, 2)], (4, 4, 8)),
    ({"offset": [8, 4, 0]}, [(8, 4, 0), (4, 2, 0), (2, 1, 0)], None),  # its resolution is 1 then
    ({"resolution": [4, 4, 8], "offset": [24, 8]}, [(0, 0, 0)] * 3, (4, 4, 8)),
    ({"resolution": [4, 4, 8], "offset": 3}, [(0, 0, 0)] * 3, (4, 4, 8)),
]


@pytest.mark.parametrize(("attributes", "places", "size"), PAINTERA)
def test_the_offset_of_paintera_is_a_position(group, attributes, places, size):
    write_levels(group, lambda n: factors_of(n, 1))
    write_attributes(group, multiScale=True, **attributes)
    sizes = [size and tuple(length * (1 << n) for length in size) for n in range(3)]
    assert seen(group) == {f"s{n}": (str(1 << n), place, edge) for n, (place, edge) in enumerate(zip(places, sizes, strict=True))}
    before = seen(group)
    wkwdask.build_pyramid(f"n5://{group}", mags=["8-8-8"], method="nearest")
    assert {key: place for key, place in seen(group).items() if key != "s3"} == before
    assert not wkwdask.verify(f"n5://{group}").faults


def test_the_offset_of_a_single_dataset_is_a_position(tmp_path):
    write_by_tensorstore(tmp_path / "c.n5" / "raw", FINE, resolution=[4, 4, 8], offset=[24, 8, 72])
    assert first_voxels(f"n5://{tmp_path}/c.n5/raw") == {"raw": (6, 2, 9)}
    wkwdask.convert(f"n5://{tmp_path}/c.n5/raw", tmp_path / "ds", layer="em")
    assert wkwdask.open_dataset(tmp_path / "ds")["em"].bounding_box.topleft == (6, 2, 9)


def test_voxel_sizes_of_single_arrays_give_mags_where_shapes_do_not(group):
    """One section: its length does not tell that z was halved, too."""
    for n in range(3):
        write_by_tensorstore(group / f"s{n}", FINE[:: 1 << n, :: 1 << n, :1], **units_of(n))
    assert seen(group) == {f"s{n}": (str(1 << n), (0, 0, 0), (4.0 * (1 << n), 4.0 * (1 << n), 8.0 * (1 << n))) for n in range(3)}
