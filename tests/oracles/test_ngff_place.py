"""Position of the levels of an OME-NGFF image, as tensorstore, ngff-zarr and napari read it.

A cube of whole voxels of the coarsest level is marked in every level. All readers must see its
corners in one place, and the shapes of the levels must have the exact ratios of their mags, because
napari places coarser levels by these alone.
"""

from __future__ import annotations

import json
import warnings
from itertools import pairwise
from pathlib import Path

import dask
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import wkwdask
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag

zarr = pytest.importorskip("zarr", reason="zarr, of the extra zarr, is not installed")

VOXEL_SIZE = (4.0, 4.0, 40.0)
LADDERS = [
    ("1", "2-2-1", "4-4-2"),
    ("1", "2", "4", "8"),
    ("2-2-1", "4-4-1", "8-8-2"),
    ("1", "4-4-1"),
]
MARK = 9


@pytest.fixture(autouse=True, scope="module")
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


@st.composite
def layers(draw):
    """Draw mags, the box of the finest one in mag 1, and the first voxel of the mark in voxels of
    the coarsest mag."""
    mags = [Mag.parse(name) for name in draw(st.sampled_from(LADDERS))]
    topleft = [draw(st.integers(0, 90)) for _ in range(3)]
    # the box contains at least one whole voxel of the coarsest mag
    size = [draw(st.integers(2 * factor, 2 * factor + 50)) for factor in mags[-1].factors]
    mark = [-(-low // factor) for low, factor in zip(topleft, mags[-1].factors, strict=True)]
    return mags, topleft, size, mark


def write_dataset(folder, mags, topleft, size, mark, **options):
    """Write a layer whose voxels are 1, and ``MARK`` in the cube."""
    wkwdask.create_dataset(folder, VOXEL_SIZE)
    coarsest = np.array(mags[-1].factors)
    for mag in mags:
        low = np.array(topleft) // mag.factors
        high = -(-(np.array(topleft) + size) // mag.factors)
        array = np.ones(high - low, np.uint8)
        first, edge = np.array(mark) * coarsest // mag.factors - low, coarsest // mag.factors
        array[
            tuple(slice(a, a + n) for a, n in zip(first.tolist(), edge.tolist(), strict=True))
        ] = MARK
        wkwdask.write(
            folder / "em" / mag.name, tuple(low.tolist()), array, category="color", **options
        )
    return folder


def corners(voxels):
    """Return the first voxel of the mark and the one after its last along z, y, x."""
    places = np.argwhere(np.asarray(voxels) == MARK)
    return places.min(axis=0), places.max(axis=0) + 1


def place_in_metadata(image, key):
    """Return scale and translation along z, y, x as the documents state them."""
    document = Path(image) / "zarr.json"
    group = (
        json.loads(document.read_text())["attributes"]["ome"]
        if document.exists()
        else json.loads((Path(image) / ".zattrs").read_text())
    )
    entry = next(entry for entry in group["multiscales"][0]["datasets"] if entry["path"] == key)
    steps = entry["coordinateTransformations"]
    steps = steps[0]["transformations"] if steps[0]["type"] == "sequence" else steps
    return tuple(
        np.array(next(step[name] for step in steps if step["type"] == name))
        for name in ("scale", "translation")
    )


def levels_by_tensorstore(image, keys):
    tensorstore = pytest.importorskip(
        "tensorstore", reason="tensorstore, of the extra oracles, is not installed"
    )
    for key in keys:
        driver = "zarr3" if (Path(image) / key / "zarr.json").exists() else "zarr"
        array = (
            tensorstore.open(
                {"driver": driver, "kvstore": {"driver": "file", "path": f"{image}/{key}/"}}
            )
            .result()
            .read()
            .result()
        )
        yield array, *place_in_metadata(image, key)


def levels_by_ngff_zarr(image, keys):
    ngff_zarr = pytest.importorskip("ngff_zarr", reason="ngff-zarr is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ngff_zarr.from_ngff_zarr(str(image))
        for level in found.images:
            yield (
                level.data.compute(scheduler="synchronous"),
                *(
                    np.array([each[axis] for axis in "zyx"])
                    for each in (level.scale, level.translation)
                ),
            )


def expect_one_place(levels, mags, mark):
    """Check that all levels begin and end in one place, and that the mark is where it was
    written."""
    levels = list(levels)
    size = np.array(VOXEL_SIZE)[::-1]
    expected = [(np.array(mark) + shift) * mags[-1].factors for shift in (0, 1)]
    extents = []
    for array, scale, translation in levels:
        first = translation - scale / 2  # coordinates are centers of voxels
        extents.append((first, first + array.shape * scale))
        for corner, place in zip(corners(array), expected, strict=True):
            np.testing.assert_allclose(first + corner * scale + size / 2, place[::-1] * size)
    for one, other in pairwise(extents):
        np.testing.assert_allclose(one, other)
    for (array, _, _), mag in zip(levels, mags, strict=True):
        assert tuple(np.divide(levels[0][0].shape, array.shape)) == mags[0].step_to(mag)[::-1]


def expect_exact_by_all(image, mags, mark):
    keys = [mag.name for mag in mags]
    for read in (levels_by_tensorstore, levels_by_ngff_zarr):
        expect_one_place(read(image, keys), mags, mark)
    assert not wkwdask.verify(image).faults


@given(
    layer=layers(),
    block_len=st.sampled_from([2, 4, 8]),
    file_len=st.sampled_from([1, 2, 4]),
    ngff=st.sampled_from(["0.4", "0.5", "0.6"]),
)
def test_converted_levels(tmp_path_factory, layer, block_len, file_len, ngff):
    mags, _, _, mark = layer
    folder = tmp_path_factory.mktemp("place")
    source = write_dataset(folder / "ds", *layer, block_len=block_len, file_len=file_len)
    wkwdask.convert(source, folder / "em.ome.zarr", layer="em", ngff=ngff)
    expect_exact_by_all(folder / "em.ome.zarr", mags, mark)


@given(
    layer=layers(), block_len=st.sampled_from([4, 8]), ngff=st.sampled_from(["0.4", "0.5", "0.6"])
)
@example(
    layer=(
        [Mag.parse(name) for name in ("1", "2-2-1", "4-4-2")],
        [75, 46, 5],
        [49, 44, 50],
        [19, 12, 3],
    ),
    block_len=4,
    ngff="0.4",
)  # the array is larger than its box, and so are its groups of files
def test_copied_levels(tmp_path_factory, layer, block_len, ngff):
    mags, topleft, size, mark = layer
    folder = tmp_path_factory.mktemp("place")
    source = write_dataset(folder / "ds", *layer, block_len=block_len, file_len=2)
    wkwdask.convert(source, folder / "em.ome.zarr", layer="em", ngff=ngff)
    wkwdask.rechunk(folder / "em.ome.zarr", folder / "rechunked.ome.zarr", chunk_shape=(8, 8, 8))
    expect_exact_by_all(folder / "rechunked.ome.zarr", mags, mark)
    wkwdask.copy(folder / "em.ome.zarr", folder / "copy.ome.zarr")
    for mag in mags:
        array, copy = (
            zarr.open_array(str(folder / name / mag.name), mode="r")
            for name in ("em.ome.zarr", "copy.ome.zarr")
        )
        assert (
            array.shape,
            dict(array.attrs),
            place_in_metadata(folder / "em.ome.zarr", mag.name)[1].tolist(),
        ) == (
            copy.shape,
            dict(copy.attrs),
            place_in_metadata(folder / "copy.ome.zarr", mag.name)[1].tolist(),
        )
    box = (
        *(np.multiply(mark, mags[-1].factors)).tolist(),
        *(
            n - (m * f - low)
            for n, m, f, low in zip(size, mark, mags[-1].factors, topleft, strict=True)
        ),
    )
    wkwdask.copy(folder / "em.ome.zarr", folder / "cut.ome.zarr", bounding_box=box)
    expect_exact_by_all(folder / "cut.ome.zarr", mags, mark)


@given(layer=layers(), ngff=st.sampled_from(["0.4", "0.5", "0.6"]))
def test_levels_that_are_added_begin_with_the_image(tmp_path_factory, layer, ngff):
    mags, _, _, mark = layer
    folder = tmp_path_factory.mktemp("place")
    source = write_dataset(folder / "ds", *layer, block_len=8, file_len=2)
    wkwdask.convert(source, folder / "em.ome.zarr", layer="em", ngff=ngff)
    for mag in mags[1:]:
        wkwdask.rm(folder / "em.ome.zarr" / mag.name)
    plan = wkwdask.plan_pyramid(folder / "em.ome.zarr", mags=mags[1:], method="mode")
    report = wkwdask.build_pyramid(folder / "em.ome.zarr", mags=mags[1:], method="mode")
    expect_exact_by_all(folder / "em.ome.zarr", mags, mark)
    has_margins = any(
        "inner_box_vx" in zarr.open_array(str(folder / "em.ome.zarr" / mag.name), mode="r").attrs
        for mag in mags[1:2]
    )
    assert [has_margins] * 2 == ["arrays begin" in str(text) for text in (plan, report)]


@given(
    layer=layers().filter(lambda layer: layer[0][0].name == "1"),
    ngff=st.sampled_from(["0.4", "0.5", "0.6"]),
)
def test_levels_added_to_an_image_at_any_voxel_state_their_place(tmp_path_factory, layer, ngff):
    """The first voxels of coarser levels may begin before the image: scale and translation say
    where they are."""
    mags, topleft, size, mark = layer
    path = tmp_path_factory.mktemp("place") / "em.ome.zarr"
    array, finest = np.ones(size, np.uint8), np.array(mags[-1].factors)
    first = np.array(mark) * finest - topleft
    array[tuple(slice(a, a + n) for a, n in zip(first.tolist(), finest.tolist(), strict=True))] = (
        MARK
    )
    wkwdask.to_zarr(
        array, path, offset=topleft, voxel_size=VOXEL_SIZE, ngff=ngff, chunk_shape=(8, 8, 8)
    )
    wkwdask.build_pyramid(path, mags=mags[1:], method="mode")
    edge, keys = np.array(VOXEL_SIZE)[::-1], [mag.name for mag in mags]
    for read in (levels_by_tensorstore, levels_by_ngff_zarr):
        levels = list(read(path, keys))
        assert len(levels) == len(keys)
        for voxels, scale, translation in levels:
            for corner, place in zip(
                corners(voxels),
                (np.array(mark) * finest, (np.array(mark) + 1) * finest),
                strict=True,
            ):
                np.testing.assert_allclose(
                    translation - scale / 2 + corner * scale + edge / 2, place[::-1] * edge
                )
    whole = BoundingBox(tuple(topleft), tuple(size))
    assert [scale.box for scale in wkwdask.info(path).scales] == [whole.in_mag(mag) for mag in mags]
    assert not wkwdask.verify(path, pyramid=True).faults


@pytest.mark.filterwarnings("ignore")  # those of napari and its dependencies
@pytest.mark.parametrize("ngff", ["0.4", "0.5", "0.6"])
def test_napari_places_all_levels_alike(tmp_path, ngff, npe2pm):
    """napari takes scale and translation of the finest level, and the ratios of lengths for the
    others."""
    pytest.importorskip("napari_ome_zarr", reason="napari-ome-zarr is not installed")
    layers = pytest.importorskip(
        "napari.layers", reason="napari, of the extra napari, is not installed"
    )
    import npe2

    mags, mark = [Mag.parse(name) for name in ("1", "2-2-1", "4-4-2")], (25, 9, 9)
    write_dataset(tmp_path / "ds", mags, (99, 35, 17), (75, 64, 41), mark, block_len=8, file_len=2)
    wkwdask.convert(tmp_path / "ds", tmp_path / "em.ome.zarr", layer="em", ngff=ngff)
    with npe2pm.tmp_plugin(package="napari-ome-zarr"):
        ((data, attributes, _),) = npe2.read([str(tmp_path / "em.ome.zarr")], stack=False)
    layer = layers.Image(data, **attributes)
    np.testing.assert_array_equal(layer.downsample_factors, [(1, 1, 1), (1, 2, 2), (2, 4, 4)])
    first = zarr.open_array(str(tmp_path / "em.ome.zarr" / "1"), mode="r").attrs["offset_vx"]
    for data, factor in zip(layer.data, layer.downsample_factors, strict=True):
        for corner, place in zip(corners(data), (mark, np.add(mark, 1)), strict=True):
            np.testing.assert_array_equal(
                corner * factor, (np.multiply(place, mags[-1].factors) - first)[::-1]
            )
