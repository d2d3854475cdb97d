"""The order in which a document lists levels changes neither their mags nor what is read by
default, and neither does a level that cannot be read."""

from __future__ import annotations

import itertools
import json
import shutil

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import wkwdask
from wkwdask.errors import WkwDaskError
from wkwdask.formats.precomputed.info import Scale, new_document, with_scales
from wkwdask.formats.zarr.ngff import merge_entries
from wkwdask.geometry.mag import Mag
from wkwdask.model.levels import base_level, finest_first

zarr = pytest.importorskip("zarr", reason="writes images")
MAGS = (Mag(1, 1, 1), Mag(2, 2, 1), Mag(4, 4, 2))
SIZE_NM = (4, 4, 20)
SHAPE = (32, 24, 16)
ORDERS = list(itertools.permutations(range(3)))


def lengths(mag):
    return [int(length * factor) for length, factor in zip(SIZE_NM, mag.factors, strict=True)]


def level(number):
    """The voxels (x, y, z) of a level: its number plus one."""
    shape = [
        -(-length // factor) for length, factor in zip(SHAPE, MAGS[number].factors, strict=True)
    ]
    return np.full(shape, number + 1, np.uint16)


def write_precomputed(folder, order):
    cloudvolume = pytest.importorskip("cloudvolume", reason="writes precomputed volumes")
    info = cloudvolume.CloudVolume.create_new_info(
        1, "image", "uint16", "raw", SIZE_NM, (0, 0, 0), SHAPE, chunk_size=(16, 16, 8)
    )
    volume = cloudvolume.CloudVolume(f"file://{folder}", info=info)
    for mag in MAGS[1:]:
        volume.add_scale(mag.factors)
    volume.commit_info()
    for number in range(len(MAGS)):
        cloudvolume.CloudVolume(f"file://{folder}", mip=number, progress=False, compress=False)[
            :, :, :
        ] = level(number)
    document = json.loads((folder / "info").read_text())
    document["scales"] = [document["scales"][n] for n in order]
    (folder / "info").write_text(json.dumps(document))
    return (
        f"precomputed://{folder}",
        [scale["key"] for scale in document["scales"]],
        folder / "info",
    )


def write_ngff(folder, order):
    group = zarr.create_group(folder, zarr_format=3)
    for number in range(len(MAGS)):
        voxels = np.ascontiguousarray(level(number).T)
        group.create_array(str(number), shape=voxels.shape, chunks=(8, 16, 16), dtype="u2")[:] = (
            voxels
        )
    axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    steps = [
        [{"type": "scale", "scale": [float(n) for n in reversed(lengths(mag))]}] for mag in MAGS
    ]
    datasets = [{"path": str(n), "coordinateTransformations": steps[n]} for n in order]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    return f"zarr://{folder}", [str(n) for n in order], folder / "zarr.json"


def write_n5(folder, order):
    tensorstore = pytest.importorskip("tensorstore", reason="writes N5")
    for number in range(len(MAGS)):
        voxels = level(number)
        metadata = {
            "dataType": "uint16",
            "dimensions": voxels.shape,
            "blockSize": (16, 16, 8),
            "compression": {"type": "gzip"},
        }
        path = {"driver": "file", "path": f"{folder}/level{number}"}
        tensorstore.open(
            {"driver": "n5", "kvstore": path, "metadata": metadata, "create": True}
        ).result()[...] = voxels
    transforms = [
        {
            "axes": ["z", "y", "x"],
            "scale": lengths(mag)[::-1],
            "translate": [0, 0, 0],
            "units": ["nm"] * 3,
        }
        for mag in MAGS
    ]
    datasets = [{"path": f"level{n}", "transform": transforms[n]} for n in order]
    (folder / "attributes.json").write_text(
        json.dumps({"n5": "4.0.0", "multiscales": [{"name": "", "datasets": datasets}]})
    )
    return f"n5://{folder}", [f"level{n}" for n in order], folder / "attributes.json"


WRITERS = {"precomputed": write_precomputed, "ngff": write_ngff, "n5": write_n5}


@pytest.fixture(params=WRITERS)
def write(request):
    return WRITERS[request.param]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("order", ORDERS)
def test_mag_1_is_the_finest_level(tmp_path, write, order):
    url, _, _ = write(tmp_path / "em", order)
    for number, mag in enumerate(MAGS):
        np.testing.assert_array_equal(wkwdask.read(url, mag=mag)[0], level(number))
    np.testing.assert_array_equal(wkwdask.open(url).compute()[0], level(0))
    assert wkwdask.sample(url, [(31, 23, 15)]).tolist() == [1]
    assert wkwdask.label_statistics(url).index.tolist() == [1]
    scales = wkwdask.info(url).scales
    assert [tuple(scale.resolution) for scale in scales] == [tuple(lengths(mag)) for mag in MAGS]
    orders = [fault for fault in wkwdask.verify(url).faults if fault.kind == "image.order"]
    assert len(orders) == (order != (0, 1, 2))


def test_a_conversion_has_all_levels(tmp_path, write):
    url, _, _ = write(tmp_path / "em", (2, 1, 0))
    wkwdask.convert(url, tmp_path / "ds", layer="em", category="color")
    dataset = wkwdask.open_dataset(tmp_path / "ds")
    assert tuple(dataset["em"].mags) == MAGS
    for number, mag in enumerate(MAGS):
        np.testing.assert_array_equal(
            wkwdask.read(tmp_path / "ds", layer="em", mag=mag)[0], level(number)
        )


def test_a_pyramid_starts_from_the_finest_level(tmp_path, write):
    url, keys, document = write(tmp_path / "em", (2, 1, 0))
    wkwdask.build_pyramid(url, mags=[Mag(8, 8, 4)])
    assert {int(wkwdask.read(url, mag=mag).max()) for mag in MAGS} == {1, 2, 3}
    made = wkwdask.read(url, mag=Mag(8, 8, 4))
    assert (made.shape, set(np.unique(made))) == ((1, 4, 3, 4), {1})
    assert keys[0] in document.read_text()
    assert "image.order" not in {fault.kind for fault in wkwdask.verify(url).faults}


def spoil_precomputed(folder, document, key):
    info = json.loads(document.read_text())
    next(scale for scale in info["scales"] if scale["key"] == key)["encoding"] = "crackle"
    document.write_text(json.dumps(info))


def spoil_array(folder, document, key):
    for record in ("zarr.json", "attributes.json"):
        if (folder / key / record).exists():
            (folder / key / record).write_text("{")


def remove_array(folder, document, key):
    shutil.rmtree(folder / key)


SPOILT = [
    (write_precomputed, spoil_precomputed),
    (write_ngff, spoil_array),
    (write_ngff, remove_array),
    (write_n5, spoil_array),
    (write_n5, remove_array),
]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize(("write", "spoil"), SPOILT)
def test_a_level_that_cannot_be_read_leaves_the_mags_of_others(tmp_path, write, spoil, order):
    for number, mag in enumerate(MAGS):
        url, keys, document = write(tmp_path / f"em{number}", order)
        spoil(tmp_path / f"em{number}", document, keys[order.index(number)])
        for other, its_mag in enumerate(MAGS):
            if other == number:
                with pytest.raises(WkwDaskError):
                    wkwdask.read(url, mag=mag)
            else:
                np.testing.assert_array_equal(wkwdask.read(url, mag=its_mag)[0], level(other))
        readable = MAGS[(number + 1) % len(MAGS)]
        opened = xr.open_dataset(url, engine="wkw", mag=readable)
        assert opened.attrs["voxel_size_nm"] == SIZE_NM


def test_mags_are_unknown_where_the_first_level_is_and_nothing_states_its_size(tmp_path):
    url, keys, document = write_ngff(tmp_path / "em", (0, 1, 2))
    attributes = json.loads(document.read_text())
    for entry in attributes["attributes"]["ome"]["multiscales"][0]["datasets"]:
        del entry["coordinateTransformations"]
    document.write_text(json.dumps(attributes))
    assert [scale.mag for scale in wkwdask.info(url).scales] == list(MAGS)
    remove_array(tmp_path / "em", document, keys[0])
    assert [scale.mag for scale in wkwdask.info(url).scales] == [None, None, None]
    np.testing.assert_array_equal(wkwdask.read(url, mag=keys[1])[0], level(1))


# ------------------------------------------------------------------------------------------------
# edits


def scale(length):
    return Scale(str(length), (8, 8, 8), (0, 0, 0), (8, 8, 8), (length, length, 40.0), "raw")


@given(st.permutations([4.0, 8.0, 16.0, 32.0]), st.integers(0, 3))
def test_a_new_scale_puts_all_in_order(listed, new):
    document = {
        **new_document("image", "uint8", 1),
        "scales": [{"key": str(n), "resolution": [n, n, 40.0]} for n in listed if n != listed[new]],
    }
    added = with_scales(document, [scale(listed[new])])
    assert [entry["resolution"][0] for entry in added["scales"]] == [4, 8, 16, 32]
    # nothing is new
    replaced = with_scales(document, [scale(document["scales"][0]["resolution"][0])])
    assert [entry["key"] for entry in replaced["scales"]] == [
        entry["key"] for entry in document["scales"]
    ]


def test_levels_of_unknown_size_stay_behind_those_before_them():
    assert finest_first([(8, 8, 8), None, (4, 4, 4), None]) == [2, 3, 0, 1]
    assert finest_first([None, (8, 8, 8), (4, 4, 4)]) == [0, 2, 1]
    listed = [
        {"path": path, "coordinateTransformations": steps}
        for path, steps in (("b", []), ("a", [{"type": "scale", "scale": [8, 8, 8]}]))
    ]
    new = {"path": "c", "coordinateTransformations": [{"type": "scale", "scale": [4, 4, 4]}]}
    assert [entry["path"] for entry in merge_entries(listed[::-1], [new])] == ["c", "a", "b"]


def test_sizes_that_differ_by_rounding_keep_their_order():
    assert finest_first([(4.0001, 4, 40), (4, 4, 40), (2, 2, 40)]) == [2, 0, 1]
    assert finest_first([(8, 8, 10), (4, 4, 40)]) == [0, 1]


def test_an_unreadable_level_off_the_grid_of_the_others_does_not_count():
    sizes = [(8, 8, 8), (16, 16, 16), (3, 3, 3)]
    assert [base_level(sizes, readable) for readable in ([True] * 3, [True, True, False])] == [2, 0]
    assert base_level([(8, 8, 8), (4, 4, 4)], [True, False]) == 1
    assert base_level([None, (4, 4, 4)], [False, True]) == 0
