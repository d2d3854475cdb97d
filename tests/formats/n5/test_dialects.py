"""N5 groups as other software describes them: levels that a job adds, replaces or removes leave all
others as they were."""

from __future__ import annotations

import warnings

import dask
import numpy as np
import pytest
from support.n5_dialects import (
    DIALECTS,
    FACTORS,
    FINE,
    LEVELS,
    RESOLUTION,
    SIZED,
    bigdataviewer,
    factors_of,
    neuroglancer_zyx,
    no_attributes,
    paintera,
    tensorstore,
    tensorstore_zyx,
    two_time_points,
    units_of,
    write_by_tensorstore,
    write_levels,
    write_xml,
)
from support.n5_readers import (
    CannotOpenError,
    attributes_of,
    by_bigdataviewer,
    by_n5_viewer,
    by_neuroglancer,
    by_paintera,
)
from support.n5_volumes import write_attributes

import wkwdask
from wkwdask.errors import ExistsError, MetadataWarning, UnsupportedError
from wkwdask.geometry.mag import Mag

ts = pytest.importorskip("tensorstore", reason="tensorstore is not installed")


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


each_dialect = pytest.mark.parametrize("describe", DIALECTS, ids=lambda describe: describe.__name__)


@pytest.fixture
def group(tmp_path):
    return tmp_path / "c.n5" / "setup0" / "timepoint0"


def seen(group):
    """Return what our reader sees: key, mag, first voxel and voxel size of each level."""
    return {
        scale.key: (scale.mag.name, scale.box.topleft, scale.resolution)
        for scale in wkwdask.info(f"n5://{group}").scales
    }


def seen_by_neuroglancer(group):
    """Return the voxel sizes of levels; None where Neuroglancer cannot open the group."""
    try:
        return by_neuroglancer(group, group.parents[1])
    except CannotOpenError:
        return None


def seen_by_tensorstore(group, name):
    """Return the labels, units and voxels that tensorstore reads."""
    store = ts.open({"driver": "n5", "kvstore": f"file://{group}/{name}/"}).result()
    return (
        store.domain.labels,
        [unit and str(unit) for unit in store.dimension_units],
        store.read().result(),
    )


def add_by_pyramid(group):
    wkwdask.build_pyramid(f"n5://{group}", mags=["8-8-8"], method="nearest")


def add_by_save(group):
    wkwdask.save(LEVELS[3], f"n5://{group}/s3", mag="8-8-8")


def add_by_to_n5(group):
    wkwdask.to_n5(LEVELS[3], f"{group}/s3", mag="8-8-8", chunk_shape=(8, 8, 8))


@each_dialect
@pytest.mark.parametrize(
    "add", [add_by_pyramid, add_by_save, add_by_to_n5], ids=lambda add: add.__name__
)
def test_a_new_level_leaves_the_others_as_they_were(group, describe, add):
    describe(group)
    before, by_neuroglancer, labels = (
        seen(group),
        seen_by_neuroglancer(group),
        seen_by_tensorstore(group, "s0")[0],
    )
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
    if by_neuroglancer is not None:
        coarse = {"s3": [8 * length for length in by_neuroglancer["s0"]]}
        assert seen_by_neuroglancer(group) == by_neuroglancer | coarse
    assert not wkwdask.verify(f"n5://{group}").faults
    assert "multiscales" not in attributes_of(group)


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
    """Voxel sizes stay those of the remaining levels; a coarser level is described by factors of
    the full resolution."""
    describe(group)
    before, by_neuroglancer = seen(group), seen_by_neuroglancer(group)
    wkwdask.rm(f"n5://{group}", mags=["1"])
    coarse = {
        key: ({"2": "1", "4": "2"}[mag], first, size)
        for key, (mag, first, size) in before.items()
        if key != "s0"
    }
    assert seen(group) == coarse
    wkwdask.build_pyramid(f"n5://{group}", mags=["4-4-4"], method="nearest")
    assert seen(group) == coarse | {"s3": ("4", (0, 0, 0), (32.0, 32.0, 64.0))}
    if by_neuroglancer is not None:
        coarse = {"s3": [8 * length for length in by_neuroglancer["s0"]]}
        # that of all time points, where Neuroglancer expects the finest level
        has_list = describe is bigdataviewer
        assert seen_by_neuroglancer(group) == (
            None
            if has_list
            else {key: size for key, size in (by_neuroglancer | coarse).items() if key != "s0"}
        )
    wkwdask.upsample(f"n5://{group}", mags=["1"], voxel_size=(4, 4, 8))
    assert seen(group) == before | {"s3": ("8", (0, 0, 0), (32.0, 32.0, 64.0))}
    if by_neuroglancer is not None:
        assert seen_by_neuroglancer(group) == by_neuroglancer | coarse
    for n, array in enumerate(LEVELS[1:], 1):
        np.testing.assert_array_equal(wkwdask.read(f"n5://{group}", mag=1 << n)[0], array)
    stated = {n: seen_by_tensorstore(group, f"s{n}") for n in range(4)}
    if describe in (tensorstore, tensorstore_zyx):
        assert [units for _, units, _ in stated.values()] == [
            [f"{(8 if axis == 'z' else 4) << n} nm" for axis in stated[0][0]] for n in stated
        ]
    assert not wkwdask.verify(f"n5://{group}").faults


@pytest.mark.parametrize(
    "describe",
    [bigdataviewer, neuroglancer_zyx, tensorstore, paintera],
    ids=lambda describe: describe.__name__,
)
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


def test_levels_below_the_list_of_several_time_points_keep_their_numbers(group):
    """BigDataViewer takes the factors of all time points from one list."""
    two_time_points(group)
    other = group.parent / "timepoint1"
    with pytest.raises(
        UnsupportedError,
        match=(
            r"s3: would have the factors \[2, 2, 1\], but .*setup0/attributes.json lists \[\[1, 1, "
            r"1\], .*mags="
        ),
    ):
        wkwdask.build_pyramid(f"n5://{group}")  # its voxels are not cubes, so 2-2-1 comes first
    with pytest.raises(UnsupportedError, match="would have the factors"):
        wkwdask.to_n5(
            LEVELS[3], group.parent / "timepoint2" / "s1", mag="4-4-4", voxel_size=(4, 4, 8)
        )
    with pytest.raises(UnsupportedError, match="would have the factors"):
        wkwdask.upsample(f"n5://{group}", mags=["1"], voxel_size=(2, 2, 4))
    assert (
        by_bigdataviewer(group)
        == by_bigdataviewer(other)
        == {f"s{n}": [1 << n] * 3 for n in range(3)}
    )
    for point in (group, other):  # the list gets the level that all time points have
        assert attributes_of(group.parent)["downsamplingFactors"] == FACTORS
        wkwdask.build_pyramid(f"n5://{point}", mags=["8"], method="nearest")
    assert (
        by_bigdataviewer(group)
        == by_bigdataviewer(other)
        == {f"s{n}": [1 << n] * 3 for n in range(4)}
    )
    wkwdask.rm(f"n5://{group}", mags=["8"])
    assert by_bigdataviewer(other)["s3"] == [8, 8, 8]
    wkwdask.rm(f"n5://{other}", mags=["8"])
    assert attributes_of(group.parent)["downsamplingFactors"] == FACTORS


def test_the_list_of_a_single_time_point_follows_its_levels(group):
    bigdataviewer(group)
    wkwdask.build_pyramid(f"n5://{group}", method="nearest")
    factors = [[1, 1, 1], [2, 2, 1], [2, 2, 2], [4, 4, 2], [4, 4, 4]]
    assert by_bigdataviewer(group) == {f"s{n}": each for n, each in enumerate(factors)}
    wkwdask.rm(f"n5://{group}", mags=["2", "4-4-2", "4"])
    assert attributes_of(group.parent)["downsamplingFactors"] == factors[:2]


def test_levels_whose_numbers_are_not_ordered_keep_them(group):
    for name, step in (("s0", 1), ("s1", 4), ("s2", 2)):
        write_by_tensorstore(
            group / name, FINE[::step, ::step, ::step], downsamplingFactors=[step] * 3, **RESOLUTION
        )
    wkwdask.compress(f"n5://{group}", compression="raw")
    assert {key: mag for key, (mag, _, _) in seen(group).items()} == {
        "s0": "1",
        "s1": "4",
        "s2": "2",
    }
    wkwdask.build_pyramid(f"n5://{group}", mags=["2-2-1", "8"], method="nearest")
    assert {key: mag for key, (mag, _, _) in seen(group).items()} == {
        "s0": "1",
        "s1": "4",
        "s2": "2",
        "s3": "2-2-1",
        "s4": "8",
    }
    np.testing.assert_array_equal(wkwdask.read(f"n5://{group}", mag=4)[0], LEVELS[2])


def test_a_level_that_is_stored_again_stays_on_the_grid_of_a_removed_one(group):
    paintera(group)
    wkwdask.rechunk(f"n5://{group}/s1", chunk_shape=(8, 8, 8))
    wkwdask.rm(f"n5://{group}", mags=["1"])
    wkwdask.build_pyramid(f"n5://{group}", mags=["2-2-1"], method="nearest")
    assert seen(group) == {
        "s1": ("1", (0, 0, 0), (8.0, 8.0, 16.0)),
        "s2": ("2-2-1", (0, 0, 0), (16.0, 16.0, 16.0)),
        "s3": ("2", (0, 0, 0), (16.0, 16.0, 32.0)),
    }
    assert by_n5_viewer(group) == {"s1": [2, 2, 2], "s2": [4, 4, 2], "s3": [4, 4, 4]}


def test_a_level_of_unknown_origin_that_is_stored_again_is_updated_as_before(group):
    paintera(group)
    wkwdask.rechunk(f"n5://{group}/s1", chunk_shape=(8, 8, 8))
    wkwdask.save(np.full((8, 8, 8), 7, "u1"), f"n5://{group}/s0", region=((0, 0, 0), (8, 8, 8)))
    wkwdask.build_pyramid(f"n5://{group}", mags=["2"], method="nearest", update="content")
    assert (wkwdask.read(f"n5://{group}", mag=2)[0, :4, :4, :4] == 7).all()


def test_two_levels_do_not_get_one_mag(group):
    no_attributes(group)
    before = seen(group)
    with pytest.raises(
        ExistsError, match=r"s0 is mag 1 already; mag= states the mag of a new level"
    ):
        wkwdask.to_n5(LEVELS[3], group / "s3")
    assert seen(group) == before


def test_a_single_level_that_is_overwritten_takes_its_description_along(group):
    write_by_tensorstore(group / "s0", FINE)
    write_attributes(
        group,
        multiScale=True,
        resolution=[4, 4, 8],
        offset=[8, 8, 8],
        downsamplingFactors=[[1, 1, 1]],
    )
    wkwdask.to_n5(FINE, group / "s0", voxel_size=(5, 5, 10), offset=(6, 2, 9), existing="overwrite")
    assert seen(group) == {"s0": ("1", (6, 2, 9), (5.0, 5.0, 10.0))}
    found = attributes_of(group)
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
    targets = {
        name: f"n5://{tmp_path}/{name}.n5/em"
        for name in ("copied", "moved", "part", "stored", "converted", "applied")
    }
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
    np.testing.assert_array_equal(
        wkwdask.read(targets["stored"], mag=2), coarse[:, 1:11, 1:11, 1:11]
    )
    wkwdask.rechunk(f"{em}/s0", chunk_shape=(8, 8, 8))
    assert first_voxels(em) == {"s0": (6, 2, 9), "s1": (3, 1, 4)}
    wkwdask.to_n5(FINE, tmp_path / "one.n5", offset=(-6, 2, 9))
    assert first_voxels(f"n5://{tmp_path}/one.n5") == {"one.n5": (-6, 2, 9)}


def one_offset(group, offset):
    """Paintera."""
    write_by_tensorstore(group / "s0", FINE)
    write_attributes(
        group,
        multiScale=True,
        resolution=[4, 4, 8],
        offset=[a * b for a, b in zip(offset, (4, 4, 8), strict=True)],
    )


def own_level(group, offset):
    wkwdask.to_n5(FINE, group / "s0", voxel_size=(4, 4, 8), offset=offset)


def place_per_level(group, offset):
    """Janelia: nothing but transforms."""
    place = [length * first for length, first in zip((8, 4, 4), offset[::-1], strict=True)]
    write_by_tensorstore(
        group / "s0",
        FINE,
        transform={
            "axes": ["z", "y", "x"],
            "scale": [8, 4, 4],
            "translate": place,
            "units": ["nm"] * 3,
        },
    )


def no_offset(group, offset):
    del offset
    neuroglancer_zyx(group)
    wkwdask.rm(f"n5://{group}", mags=["2", "4"])


def shifts(group):
    """Return how far readers that know one place of all levels show them behind their own [voxels
    of mag 1]."""
    finders = [lambda: by_neuroglancer(group, group.parents[1]), lambda: by_paintera(group)[0]]
    places, found = seen(group), {}
    for finder in finders:
        try:
            levels = finder()
        except CannotOpenError:
            continue
        first = places["s0"][1]
        for name in levels:
            factors = Mag.parse(places[name][0]).factors
            shift = tuple(
                a - b * factor for a, b, factor in zip(first, places[name][1], factors, strict=True)
            )
            assert found.setdefault(name, shift) == shift
    return {name: shift for name, shift in found.items() if any(shift)}


@pytest.mark.parametrize("mag", ["2", "4", "8-8-2"])
@pytest.mark.parametrize("offset", [(0, 0, 0), (10, 20, 20), (16, 8, 24), (-6, 4, 3)])
@pytest.mark.parametrize(
    "describe",
    [one_offset, own_level, place_per_level, no_offset],
    ids=lambda describe: describe.__name__,
)
def test_a_warning_names_new_levels_that_other_software_shows_elsewhere(
    group, describe, offset, mag
):
    describe(group, offset)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wkwdask.build_pyramid(f"n5://{group}", mags=[mag], method="nearest")
    texts = [
        str(warning.message) for warning in caught if issubclass(warning.category, MetadataWarning)
    ]
    assert [
        f"{group}/{name}: other software shows mag {mag} shifted by {shift} voxels of mag 1"
        for name, shift in shifts(group).items()
    ] == [text.partition(": it")[0] for text in texts]


@pytest.mark.parametrize("offset", [(0, 0, 0), (10, 20, 20), (16, 8, 24)])
@pytest.mark.parametrize("describe", [one_offset, place_per_level])
@pytest.mark.parametrize("verb", [wkwdask.copy, wkwdask.convert])
def test_copies_of_all_levels_into_a_new_group_name_them_too(
    group, describe, offset, verb, tmp_path_factory
):
    describe(group, offset)
    source = f"n5://{group}"
    with warnings.catch_warnings(action="ignore"):
        wkwdask.build_pyramid(source, mags=["2", "4"], method="nearest")
        if verb is wkwdask.convert:
            source = tmp_path_factory.mktemp("ds") / "ds" / "color"
            wkwdask.convert(f"n5://{group}", source)
    target = group.parents[1] / "new.n5" / "em"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        verb(source, f"n5://{target}")
    texts = [
        str(warning.message) for warning in caught if "other software shows" in str(warning.message)
    ]
    assert [text.partition(": it")[0] for text in texts] == [
        f"{target}/{name}: other software shows mag {Mag.parse(seen(target)[name][0])} shifted by "
        f"{shift} voxels of mag 1"
        for name, shift in shifts(target).items()
    ]
    assert bool(texts) == (offset == (10, 20, 20))


def test_the_warning_states_the_remedy(group):
    one_offset(group, (10, 20, 20))
    with pytest.warns(
        MetadataWarning,
        match=(
            r"mag 1 starts at \(10, 20, 20\), and mag 4 at \(8, 20, 20\)\. Give the image an "
            r"offset .* or write OME-NGFF or WKW"
        ),
    ):
        wkwdask.plan_pyramid(f"n5://{group}", mags=["4"], method="nearest")
    with pytest.warns(MetadataWarning, match=r"s1: .* shifted by \(2, 0, 0\) voxels of mag 1"):
        wkwdask.to_n5(FINE[:12, :10, :6], group / "s1", mag="4", offset=(2, 5, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wkwdask.rechunk(f"n5://{group}/s1", chunk_shape=(8, 8, 8))


@pytest.mark.parametrize("unit", ["", "pixel", "a.u."])
def test_a_transform_in_an_unknown_unit_states_mags_and_positions(group, unit):
    for n, array in enumerate(LEVELS[:3]):
        edge = float(1 << n)
        place = {"axes": ["z", "y", "x"], "scale": [edge] * 3, "translate": [8.5 * edge - 0.5] * 3}
        write_by_tensorstore(
            group / f"s{n}", array, transform=place | ({"units": [unit] * 3} if unit else {})
        )
    assert seen(group) == {f"s{n}": (str(1 << n), (8, 8, 8), None) for n in range(3)}


PAINTERA = [
    # attributes of the group, first voxels, voxel size
    (
        {"resolution": [4, 4, 8], "offset": [24, 8, 72]},
        [(6, 2, 9), (3, 1, 4), (1, 0, 2)],
        (4, 4, 8),
    ),
    (
        {"resolution": [4, 4, 8], "offset": [-32, 0, 64]},
        [(-8, 0, 8), (-4, 0, 4), (-2, 0, 2)],
        (4, 4, 8),
    ),
    (
        {"resolution": [0.004, 0.004, 0.008], "units": ["um"] * 3, "offset": [0.032, 0, 0.064]},
        [(8, 0, 8), (4, 0, 4), (2, 0, 2)],
        (4, 4, 8),
    ),
    ({"offset": [8, 4, 0]}, [(8, 4, 0), (4, 2, 0), (2, 1, 0)], None),  # its resolution is 1 then
    ({"resolution": [4, 4, 8], "offset": [24, 8]}, [(0, 0, 0)] * 3, (4, 4, 8)),
    ({"resolution": [4, 4, 8], "offset": 3}, [(0, 0, 0)] * 3, (4, 4, 8)),
]


@pytest.mark.parametrize(("attributes", "places", "size"), PAINTERA)
def test_the_offset_of_paintera_is_a_position(group, attributes, places, size):
    write_levels(group, lambda n: factors_of(n, 1))
    write_attributes(group, multiScale=True, **attributes)
    sizes = [size and tuple(length * (1 << n) for length in size) for n in range(3)]
    assert seen(group) == {
        f"s{n}": (str(1 << n), place, edge)
        for n, (place, edge) in enumerate(zip(places, sizes, strict=True))
    }
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
    assert seen(group) == {
        f"s{n}": (str(1 << n), (0, 0, 0), (4.0 * (1 << n), 4.0 * (1 << n), 8.0 * (1 << n)))
        for n in range(3)
    }


@pytest.mark.parametrize(
    ("unit", "size"),
    [("nm", (4, 4, 8)), ("µm", (0.004, 0.004, 0.008)), ("micrometer", (0.004, 0.004, 0.008))],
)
def test_the_voxel_size_of_a_setup_is_that_of_its_xml(group, unit, size):
    bigdataviewer(group)
    write_attributes(group, resolution=size, saved_completely=True, multiScale=True)
    write_xml(group.parents[1], unit, size)
    sizes = {f"s{n}": tuple(length * (1 << n) for length in (4.0, 4.0, 8.0)) for n in range(3)}
    assert {key: found for key, (_, _, found) in seen(group).items()} == sizes
    wkwdask.rechunk(f"n5://{group}/s0", chunk_shape=(8, 8, 8))
    wkwdask.build_pyramid(f"n5://{group}", mags=["8"], method="nearest")
    assert {key: found for key, (_, _, found) in seen(group).items()} == sizes | {
        "s3": (32.0, 32.0, 64.0)
    }
    assert attributes_of(group)["resolution"] == list(size)
    assert "units" not in attributes_of(group)


@pytest.mark.parametrize("xml", ["none", "pixels", "other container", "other setup", "broken"])
def test_without_its_xml_the_voxel_size_of_a_setup_is_unknown(group, xml):
    bigdataviewer(group)
    path = group.parents[2] / "c.xml"
    if xml == "none":
        path.unlink()
    elif xml == "broken":
        path.write_text("<SpimData><Seq")
    else:
        write_xml(
            group.parents[1], "pixels" if xml == "pixels" else "nm", setup=int(xml == "other setup")
        )
        path.write_text(
            path.read_text().replace("c.n5", "d.n5")
            if xml == "other container"
            else path.read_text()
        )
    with pytest.warns(
        MetadataWarning,
        match=(
            r"timepoint0/attributes.json: resolution \[4, 4, 8\] has no unit, and no XML .* "
            r"voxel_size="
        ),
    ):
        image = wkwdask.open(f"n5://{group}")
    assert image.shape[1:] == FINE.shape
    with pytest.warns(MetadataWarning, match="has no unit"):
        wkwdask.convert(f"n5://{group}", group.parents[2] / "ds", layer="em", voxel_size=(5, 5, 10))
    assert tuple(wkwdask.open_dataset(group.parents[2] / "ds").voxel_size) == (5, 5, 10)
