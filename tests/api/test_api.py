"""Public functions on WKW: what they refuse, edges, and the real sample whose coarser mags are
rebuilt."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import regions_of

import wkwdask
from wkwdask import BoundingBox, Mag
from wkwdask.errors import BoundsError, ExistsError, MissingError, ResumeError, TruncatedError

OPTIONS = {"block_len": 8, "file_len": 2, "compression": "lz4"}
OFFSET = (5, 14, 7)
SHAPE = (40, 33, 20)


def voxels(shape=SHAPE, seed=1, dtype="uint8"):
    return np.random.default_rng(seed).integers(1, 250, shape).astype(dtype)


@pytest.fixture(autouse=True)
def _threads():
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (11.24, 11.24, 28))
    wkwdask.write(folder / "color" / "1", OFFSET, voxels(), **OPTIONS)
    return folder


HIGH = tuple(a + n for a, n in zip(OFFSET, SHAPE, strict=True))


# ----------------------------------------------------------------------------- read


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (OFFSET, HIGH),
        (OFFSET, (6, 15, 8)),
        ((44, 46, 26), HIGH),
        ((15, 15, 15), (17, 17, 17)),  # eight files
        ((16, 16, 16), (32, 32, 27)),  # one whole file
        ((5, 20, 8), (45, 21, 9)),
        ((7, 16, 7), (7, 20, 10)),  # no voxels
        (OFFSET, OFFSET),
        (HIGH, HIGH),
    ],
)
def test_read_returns_the_voxels_of_a_box(dataset, low, high):
    expected = voxels()[
        tuple(slice(a - t, b - t) for a, b, t in zip(low, high, OFFSET, strict=True))
    ]
    for box in ((low, high), [list(low), np.array(high)], BoundingBox.from_corners(low, high)):
        array = wkwdask.read(dataset, box)
        assert array.shape == (1, *expected.shape)
        assert array.dtype == np.uint8
        assert array.flags.f_contiguous
        np.testing.assert_array_equal(array[0], expected)


def test_a_box_of_another_mag_grows_to_whole_voxels(dataset):
    wkwdask.build_pyramid(dataset, coarsest="2-2-1")
    whole = wkwdask.read(dataset, mag="2-2-1")
    assert whole.shape == (1, 21, 17, 20)
    np.testing.assert_array_equal(
        wkwdask.read(dataset, BoundingBox((7, 14, 8), (4, 3, 5)), mag="2-2-1"),
        whole[:, 1:4, :2, 1:6],
    )
    np.testing.assert_array_equal(
        wkwdask.read(dataset, BoundingBox((3, 7, 8), (2, 2, 5), Mag(2, 2, 1)), mag="2-2-1"),
        whole[:, 1:3, :2, 1:6],
    )
    np.testing.assert_array_equal(
        wkwdask.read(dataset, BoundingBox((3, 7, 8), (2, 2, 5), Mag(2, 2, 1))),
        wkwdask.read(dataset, ((6, 14, 8), (10, 18, 13))),
    )


@pytest.mark.parametrize(
    "box",
    [
        ((4, 14, 7), (6, 15, 8)),
        ((5, 14, 7), (46, 15, 8)),
        ((-1, -1, -1), (1, 1, 1)),
        ((0, 0, 0), (10**9, 10**9, 10**9)),
    ],
)
def test_read_refuses_a_box_outside_the_layer(dataset, box):
    with pytest.raises(
        BoundsError,
        match=r"color/1: box .* reaches outside \(5, 14, 7\) \+ \(40, 33, 20\) in mag 1",
    ):
        wkwdask.read(dataset, box)
    with pytest.raises(BoundsError):
        wkwdask.read(dataset, BoundingBox.from_corners(*box))


@pytest.mark.parametrize(
    "box",
    [
        ((0, 0), (1, 1)),
        ((0, 0, 0),),
        ((0, 0, 0), (1, 1, 1), (2, 2, 2)),
        ((0.5, 0, 0), (1, 1, 1)),
        ((9, 20, 9), (8, 21, 10)),
        (0, 0, 0, 1, 1, 1),
    ],
)
def test_read_refuses_malformed_boxes(dataset, box):
    with pytest.raises(ValueError, match=r"corner|box|topleft|bottomright|size"):
        wkwdask.read(dataset, box)


@pytest.mark.parametrize("mag", ["2-2-1", [2, 2, 1], (2, 2, 1), Mag(2, 2, 1), np.array([2, 2, 1])])
def test_a_mag_is_accepted_in_every_form(dataset, mag):
    wkwdask.build_pyramid(dataset, coarsest=mag)
    assert wkwdask.read(dataset, mag=mag).shape == (1, 21, 17, 20)
    assert wkwdask.open(dataset, mag=mag).shape == (1, 21, 17, 20)
    assert (
        wkwdask.sample(dataset, [[3, 8, 9]], mag=mag)
        == wkwdask.read(dataset, ((3, 8, 9), (4, 9, 10)), mag=mag).item()
    )


@pytest.mark.parametrize("mag", [np.int64(1), np.uint8(1)])
def test_a_numpy_number_is_a_mag(dataset, mag):
    assert wkwdask.read(dataset, mag=mag).shape == (1, *SHAPE)


@pytest.mark.parametrize("mag", ["one", "2-2", "", 0, -1, 3, (1, 1), (2, 2, 3), "01-1-1-1", 1.5])
def test_malformed_mags_are_refused(dataset, mag):
    for verb in (wkwdask.read, wkwdask.open):
        with pytest.raises((ValueError, TypeError), match="mag"):
            verb(dataset, mag=mag)


def test_the_caller_may_change_what_read_returns(dataset):
    first = wkwdask.read(dataset)
    first[...] = 0
    assert wkwdask.read(dataset).all()


# ----------------------------------------------------------------------------- open


def test_open_crops(dataset):
    whole = wkwdask.open(dataset)
    assert whole.shape == (1, *SHAPE)
    np.testing.assert_array_equal(whole.compute()[0], voxels())
    for box in ("10, 20, 10, 4, 3, 2", [10, 20, 10, 4, 3, 2], BoundingBox((10, 20, 10), (4, 3, 2))):
        np.testing.assert_array_equal(
            wkwdask.open(dataset, bounding_box=box).compute()[0], voxels()[5:9, 6:9, 3:5]
        )
        absolute = wkwdask.open(dataset, bounding_box=box, origin="absolute")
        assert absolute.shape == (1, 14, 23, 12)
        np.testing.assert_array_equal(absolute[0, 10:, 20:, 10:].compute(), voxels()[5:9, 6:9, 3:5])
    absolute = wkwdask.open(dataset, origin="absolute")
    np.testing.assert_array_equal(absolute[0, 5:, 14:, 7:].compute(), voxels())
    assert not absolute[0, :5].any().compute()


def test_a_bounding_box_is_in_mag_1(dataset):
    wkwdask.build_pyramid(dataset, coarsest="2-2-1")
    whole = wkwdask.read(dataset, mag="2-2-1")
    part = wkwdask.open(dataset, mag="2-2-1", bounding_box=(7, 14, 8, 4, 3, 5))
    np.testing.assert_array_equal(part.compute(), whole[:, 1:4, :2, 1:6])


def test_chunk_borders_lie_on_file_borders(dataset):
    assert wkwdask.open(dataset, chunks="file").chunks == ((1,), (11, 16, 13), (2, 16, 15), (9, 11))
    assert wkwdask.open(dataset, chunks="block").chunks[1] == (3, 8, 8, 8, 8, 5)
    assert wkwdask.open(dataset, chunks="file", origin="absolute").chunks[1] == (16, 16, 13)


@pytest.mark.parametrize(
    "options",
    [
        {"origin": "corner"},
        {"bounding_box": "1,2,3"},
        {"bounding_box": 7},
        {"chunks": "wide"},
        {"axes": "xy"},
    ],
)
def test_open_refuses_malformed_options(dataset, options):
    with pytest.raises(
        (ValueError, TypeError),
        match=next(iter(options)).replace("bounding_box", "bounding box|object"),
    ):
        wkwdask.open(dataset, **options)


def test_open_refuses_a_box_outside(dataset):
    with pytest.raises(BoundsError, match="reaches outside"):
        wkwdask.open(dataset, bounding_box=(0, 0, 0, 10, 10, 10))


def test_open_of_an_empty_box(dataset):
    array = wkwdask.open(dataset, bounding_box=(10, 20, 10, 0, 3, 2))
    assert array.shape == (1, 0, 3, 2)
    assert array.compute().shape == (1, 0, 3, 2)


def test_channels_and_axes_are_chosen(tmp_path):
    array = voxels((3, 10, 9, 8))
    wkwdask.write(tmp_path / "rgb" / "1", (0, 0, 0), array, **OPTIONS)
    np.testing.assert_array_equal(
        wkwdask.open(tmp_path / "rgb", channel=1)[:10, :9, :8].compute(), array[1]
    )
    np.testing.assert_array_equal(
        wkwdask.open(tmp_path / "rgb", axes="czyx")[:, :8, :9, :10].compute(),
        array.transpose(0, 3, 2, 1),
    )
    np.testing.assert_array_equal(
        wkwdask.open(tmp_path / "rgb", axes="zyx", channel=-1)[:8, :9, :10].compute(), array[2].T
    )
    np.testing.assert_array_equal(
        wkwdask.sample(tmp_path / "rgb", [[3, 4, 5], [0, 0, 0]]),
        [array[:, 3, 4, 5], array[:, 0, 0, 0]],
    )


def test_sample_returns_voxels_at_points(dataset):
    points = np.array([[5, 14, 7], [44, 46, 26], [16, 16, 16], [5, 14, 7]], np.int32)
    expected = voxels()[tuple((points - OFFSET).T)]
    for given in (points, points.tolist(), points.astype(np.uint64), np.asfortranarray(points)):
        np.testing.assert_array_equal(wkwdask.sample(dataset, given), expected)
    with pytest.raises(BoundsError, match=r"point \[45, 14, 7\]"):
        wkwdask.sample(dataset, [[45, 14, 7]])


# ----------------------------------------------------------------------------- write


def test_write_reports(tmp_path):
    array = voxels()
    report = wkwdask.write(tmp_path / "ds" / "1", OFFSET, array, **OPTIONS)
    paths = list((tmp_path / "ds" / "1").rglob("x*.wkw"))
    assert report.files == len(paths) == 3 * 3 * 2
    assert report.voxels == array.size
    assert report.nbytes_in == array.nbytes
    assert report.nbytes_out == sum(path.stat().st_size for path in paths)
    (mag,) = report.mags
    assert (mag.path, mag.minimum, mag.maximum, mag.nonzero) == (
        str(tmp_path / "ds" / "1"),
        1,
        249,
        BoundingBox(OFFSET, SHAPE),
    )
    assert "18 files" in str(report)
    again = wkwdask.Report.from_json(json.loads(json.dumps(report.to_json())), "a note", [mag.path])
    assert (again.mags, again.nbytes_in, again.note) == (report.mags, report.nbytes_in, "a note")


def test_write_accepts_nested_lists(tmp_path):
    wkwdask.write(tmp_path / "1", (0, 0, 0), [[[1, 2], [3, 4]]], **OPTIONS)
    assert wkwdask.read(tmp_path / "1", ((0, 0, 0), (1, 2, 2))).tolist() == [[[[1, 2], [3, 4]]]]
    with pytest.raises(TypeError, match="compute"):
        wkwdask.write(tmp_path / "2", (0, 0, 0), voxels(), compute=False)


def test_a_single_voxel_makes_one_file(tmp_path):
    report = wkwdask.write(
        tmp_path / "1", (1000, 2000, 3000), np.full((1, 1, 1), 7, np.int64), block_len=1, file_len=1
    )
    assert report.files == 1
    assert (tmp_path / "1" / "z3000" / "y2000" / "x1000.wkw").is_file()
    assert wkwdask.read(tmp_path / "1").item() == 7


def test_coordinates_may_exceed_32_bits(tmp_path):
    far = (2**33 + 5, 2**40, 2**31 - 1)
    array = voxels((3, 3, 3))
    wkwdask.write(tmp_path / "1", far, array, **OPTIONS)
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "1", (far, np.add(far, 3).tolist()))[0], array
    )


@pytest.mark.parametrize("far", [(2**29, 0, 0), (2**33 + 5, 2**40, 2**31 - 1)])
def test_a_pyramid_far_from_the_origin_is_built_and_updated(tmp_path, far):
    wkwdask.write(tmp_path / "1", far, voxels(), **OPTIONS)
    wkwdask.build_pyramid(tmp_path, mags=[2], method="max")
    expected = largest(voxels(), BoundingBox(far, SHAPE), Mag(2, 2, 2))
    box = BoundingBox(far, SHAPE).in_mag(Mag(2, 2, 2))
    np.testing.assert_array_equal(wkwdask.read(tmp_path, box, mag=2)[0], expected)
    wkwdask.build_pyramid(tmp_path, update="content")
    np.testing.assert_array_equal(wkwdask.read(tmp_path, box, mag=2)[0], expected)


# ----------------------------------------------------------------------------- build_pyramid


def test_pyramid_follows_webknossos(dataset):
    report = wkwdask.build_pyramid(dataset)
    assert sorted(os.listdir(dataset / "color")) == ["1", "2-2-1", "4-4-2"]
    assert [mag.name for mag in wkwdask.open_dataset(dataset)["color"].mags] == [
        "1",
        "2-2-1",
        "4-4-2",
    ]
    assert [Path(mag.path).name for mag in report.mags] == ["2-2-1", "4-4-2"]
    assert report.nbytes_in == voxels().size


def test_pyramid_refuses_malformed_options(dataset, tmp_path):
    for options, match in (
        ({"method": "bicubic"}, "method"),
        ({"method": ""}, "method"),
        ({"coarsest": 3}, "powers of two"),
        ({"coarsest": "16-16-1"}, "do not reach|coarsest"),
        ({"compression": "zip"}, "compression"),
        ({"level": 0}, "level"),
        ({"existing": "merge"}, "existing"),
    ):
        with pytest.raises(ValueError, match=match):
            wkwdask.build_pyramid(dataset, **options)
    with pytest.raises(MissingError):
        wkwdask.build_pyramid(dataset, "labels")
    with pytest.raises(MissingError):
        wkwdask.build_pyramid(tmp_path / "nowhere")
    assert sorted(os.listdir(dataset / "color")) == ["1"]


def test_pyramid_with_nothing_to_do(dataset):
    report = wkwdask.build_pyramid(dataset, coarsest=1)
    assert report.files == 0
    assert "nothing to do" in report.note
    assert os.listdir(dataset / "color") == ["1"]


def test_pyramid_replaces_mags_only_with_overwrite(dataset):
    wkwdask.build_pyramid(dataset, coarsest="4-4-2", method="max")
    before = wkwdask.read(dataset, mag="2-2-1")
    with pytest.raises(ExistsError, match=r"2-2-1: already exists \(and 1 more\)"):
        wkwdask.build_pyramid(dataset, coarsest="4-4-2", method="min")
    np.testing.assert_array_equal(wkwdask.read(dataset, mag="2-2-1"), before)
    wkwdask.build_pyramid(dataset, coarsest="4-4-2", method="min", existing="overwrite")
    assert (wkwdask.read(dataset, mag="2-2-1") < before).any()


def test_pyramid_starts_at_the_mag_that_the_path_names(dataset):
    wkwdask.build_pyramid(dataset, coarsest="2-2-1")
    shutil.copytree(dataset, dataset.parent / "copy")
    wkwdask.build_pyramid(dataset.parent / "copy" / "color" / "2-2-1", coarsest="4-4-2")
    wkwdask.build_pyramid(dataset, coarsest="4-4-2", existing="overwrite")
    np.testing.assert_array_equal(
        wkwdask.read(dataset.parent / "copy", mag="4-4-2"), wkwdask.read(dataset, mag="4-4-2")
    )


def largest(array, box, mag):
    """The greatest voxel of each window, by numpy; what lies outside the box does not count."""
    target, factor = box.in_mag(mag), box.mag.step_to(mag)
    pad = [
        (a - t * f, u * f - b)
        for a, b, t, u, f in zip(
            box.topleft, box.bottomright, target.topleft, target.bottomright, factor, strict=True
        )
    ]
    (x, y, z), (fx, fy, fz) = target.size, factor
    return np.pad(array, pad).reshape(x, fx, y, fy, z, fz).max(axis=(1, 3, 5))


def test_pyramid_steps_may_differ_between_axes(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (8, 8, 8))
    wkwdask.write(folder / "color" / "8-8-1", OFFSET, voxels(), **OPTIONS)
    wkwdask.build_pyramid(folder, coarsest=16, method="max")
    assert sorted(os.listdir(folder / "color")) == ["16", "8-8-1"]
    expected = largest(voxels(), BoundingBox(OFFSET, SHAPE, Mag(8, 8, 1)), Mag(16, 16, 16))
    np.testing.assert_array_equal(wkwdask.read(folder, mag=16)[0], expected)


@pytest.mark.parametrize(
    "mags",
    [
        ["4-4-1", "8-8-2"],
        [[8, 8, 2], "4-4-1", Mag(4, 4, 1)],
        [8],
        ["2-2-1", "2-2-2", "2-2-4"],
        [64],
    ],
)
def test_chosen_mags_come_in_any_form_and_order(dataset, mags):
    report = wkwdask.build_pyramid(dataset, mags=mags, method="max")
    chosen = sorted({Mag.parse(mag) for mag in mags}, key=lambda mag: mag.x * mag.y * mag.z)
    assert [Path(mag.path).name for mag in report.mags] == [mag.name for mag in chosen]
    assert list(wkwdask.open_dataset(dataset)["color"].mags) == [Mag(1, 1, 1), *chosen]
    for mag in chosen:  # a maximum of maxima
        np.testing.assert_array_equal(
            wkwdask.read(dataset, mag=mag)[0], largest(voxels(), BoundingBox(OFFSET, SHAPE), mag)
        )


@pytest.mark.parametrize(
    "other",
    [{"coarsest": 4}, {"sampling": "isotropic"}, {"align_with": False}, {"align_with": "labels"}],
)
def test_mags_are_chosen_in_one_way(dataset, other):
    for verb in (wkwdask.build_pyramid, wkwdask.plan_pyramid):
        with pytest.raises(
            ValueError,
            match=(
                r"mags= lists the mags; coarsest=, sampling= and align_with= choose them: give one "
                r"or the other"
            ),
        ):
            verb(dataset, mags=[2], **other)


@pytest.mark.parametrize(
    ("mags", "match"),
    [
        ([1, 2], "mags= lists mag 1, which is the finest"),
        (["2-2-1", "1-1-4", "4"], "mag 2-2-1 is not coarser than mag 1-1-4 on every axis"),
        ([3], "powers of two"),
        (["2-2"], "a mag looks like"),
    ],
)
def test_mags_that_do_not_ascend_are_refused(dataset, mags, match):
    with pytest.raises(ValueError, match=match):
        wkwdask.build_pyramid(dataset, mags=mags)
    assert os.listdir(dataset / "color") == ["1"]


def test_mags_finer_than_the_source_are_refused(dataset):
    wkwdask.write(dataset / "color" / "2-2-1", (2, 7, 7), voxels((20, 16, 20)), **OPTIONS)
    for mags in ([1], ["1", "4-4-2"], ["1-4-4"]):
        with pytest.raises(ValueError, match=r"is not coarser than mag 2-2-1 on every axis"):
            wkwdask.build_pyramid(dataset, finest="2-2-1", mags=mags)


def test_finest_names_the_source_mag(dataset):
    wkwdask.build_pyramid(dataset, mags=[2, 4], method="max")
    with pytest.raises(ValueError, match="is mag 2, but finest= says 4"):
        wkwdask.build_pyramid(dataset / "color" / "2", finest=4, coarsest=8)
    wkwdask.build_pyramid(dataset, finest=4, mags=[8], method="max")
    wkwdask.build_pyramid(dataset / "color" / "2", finest=2, mags=[16], method="max")
    for mag in (8, 16):
        np.testing.assert_array_equal(
            wkwdask.read(dataset, mag=mag)[0],
            largest(voxels(), BoundingBox(OFFSET, SHAPE), Mag.parse(mag)),
        )


def test_ladders_follow_sampling_and_other_layers(dataset):
    wkwdask.write(dataset / "labels" / "1", OFFSET, voxels(dtype="uint32"), **OPTIONS)
    wkwdask.build_pyramid(dataset, "color", coarsest="4-4-1", sampling="constant_z")
    assert sorted(os.listdir(dataset / "color")) == ["1", "2-2-1", "4-4-1"]

    def mags(**options):
        return [
            Path(mag.folder).name
            for mag in wkwdask.plan_pyramid(dataset, "labels", coarsest=8, **options).mags
        ]

    assert mags() == mags(align_with="color") == ["2-2-1", "4-4-1", "8-8-4"]
    assert mags(align_with=False) == ["2-2-1", "4-4-2", "8-8-4"]
    assert mags(align_with=False, sampling="isotropic") == ["2", "4", "8"]
    with pytest.raises(MissingError, match="no other layer 'cells' to align with"):
        mags(align_with="cells")


def test_zeros_can_be_ignored(tmp_path):
    array = np.zeros((8, 8, 8), np.uint32)
    array[::2, ::2, ::2] = 7  # one voxel of each window
    array[:2, :2, :2] = 0
    wkwdask.write(tmp_path / "1", (0, 0, 0), array, **OPTIONS)
    for method in ("mode", "mean", "median"):
        wkwdask.build_pyramid(
            tmp_path, method=method, mags=[2], ignore_zero=True, existing="overwrite"
        )
        made = wkwdask.read(tmp_path / "2", ((0, 0, 0), (4, 4, 4)))[0]
        assert made[0, 0, 0] == 0
        assert made.sum() == 7 * 63
    for method in ("max", "min", "nearest"):
        with pytest.raises(
            ValueError, match=f"ignore_zero requires method mean, median, mode, got {method}"
        ):
            wkwdask.build_pyramid(
                tmp_path, method=method, mags=[2], ignore_zero=True, existing="overwrite"
            )


@pytest.mark.parametrize(
    ("block_len", "file_len", "stored"),
    [(4, None, (4, 2)), (None, 1, (8, 1)), (16, 4, (16, 4)), (1, 16, (1, 16))],
)
def test_block_and_file_lengths_of_new_mags_are_chosen(dataset, block_len, file_len, stored):
    """The finest mag has blocks of 8 and files of 2 blocks."""
    wkwdask.build_pyramid(
        dataset, mags=[2, 4], method="max", block_len=block_len, file_len=file_len
    )
    for mag in wkwdask.info(dataset).layers[0].mags[1:]:
        assert (mag.block_len, mag.file_len) == stored
        np.testing.assert_array_equal(
            wkwdask.read(dataset, mag=mag.mag)[0],
            largest(voxels(), BoundingBox(OFFSET, SHAPE), mag.mag),
        )
    entries = json.loads((dataset / "datasource-properties.json").read_text())["dataLayers"][0][
        "mags"
    ]
    assert [entry["cubeLength"] for entry in entries] == [
        16,
        stored[0] * stored[1],
        stored[0] * stored[1],
    ]


def test_a_pyramid_of_one_block_files_gets_larger_files(tmp_path):
    """With ``file_len=1`` a task writes more files than a process may open."""
    array = np.random.default_rng(3).integers(1, 9, (1, 24, 32, 64), dtype=np.uint8)
    wkwdask.write(tmp_path / "1", (0, 0, 0), array, block_len=4, file_len=1, compression="lz4")
    wkwdask.build_pyramid(tmp_path, method="max", mags=["2-2-1"])
    assert wkwdask.info(tmp_path).layers[0].mags[1].file_len == 8
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # far fewer than the files that a task makes
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 80, before[1]))
    try:
        wkwdask.build_pyramid(
            tmp_path,
            method="max",
            mags=["2-2-1", "4-4-1", "8-8-1"],
            file_len=1,
            existing="overwrite",
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(list((tmp_path / "4-4-1").rglob("x*.wkw"))) == 2 * 2 * 16
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path, mag="4-4-1"), array.reshape(1, 6, 4, 8, 4, 64).max(axis=(2, 4))
    )


@pytest.mark.parametrize(
    "options",
    [
        {"block_len": 24},
        {"block_len": 256},
        {"block_len": 0},
        {"file_len": 0},
        {"file_len": 256},
        {"block_len": -8},
    ],
)
def test_malformed_lengths_are_refused(dataset, options):
    for verb in (wkwdask.build_pyramid, wkwdask.plan_pyramid):
        with pytest.raises(ValueError, match=next(iter(options))):
            verb(dataset, mags=[2], **options)
    assert os.listdir(dataset / "color") == ["1"]


def test_several_layers_are_built_in_one_call(dataset):
    wkwdask.write(dataset / "labels" / "1", OFFSET, voxels(dtype="uint32"), **OPTIONS)
    report = wkwdask.build_pyramid(dataset, ["labels", "color"], mags=[2])
    assert [mag.path for mag in report.mags] == [
        str(dataset / layer / "2") for layer in ("labels", "color")
    ]
    assert report.nbytes_in == 5 * voxels().size
    assert report.files == sum(mag.files for mag in report.mags) == 2 * 2 * 2 * 1
    for layer in ("labels", "color"):
        assert [mag.name for mag in wkwdask.open_dataset(dataset)[layer].mags] == ["1", "2"]
    one = wkwdask.build_pyramid(dataset, ["color"], mags=[4])
    assert [Path(mag.path).name for mag in one.mags] == ["4"]
    with pytest.raises(ValueError, match="layer"):
        wkwdask.build_pyramid(dataset, mags=[8])  # which one?
    with pytest.raises(MissingError):
        wkwdask.build_pyramid(dataset, ["color", "cells"], mags=[16])
    assert not (dataset / "color" / "16").exists()  # nothing is begun


def test_pyramid_of_a_single_section(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (8, 8, 8))
    wkwdask.write(folder / "color" / "1", (3, 4, 5), voxels((40, 30, 1)), **OPTIONS)
    wkwdask.build_pyramid(folder, coarsest=4)
    assert sorted(os.listdir(folder / "color")) == ["1", "2-2-1", "4-4-1"]
    assert wkwdask.read(folder, mag="4-4-1").shape == (1, 11, 8, 1)


def test_pyramid_keeps_the_encoding_of_its_source(tmp_path):
    for compression, expected in (("lz4", "lz4"), ("raw", "lz4hc"), ("lz4hc", "lz4hc")):
        folder = tmp_path / compression
        wkwdask.write(
            folder / "1", (0, 0, 0), voxels(), block_len=4, file_len=8, compression=compression
        )
        wkwdask.build_pyramid(folder, method="mean", coarsest=2)
        mag = wkwdask.info(folder).layers[0].mags[1]
        assert (mag.compression, mag.block_len, mag.file_len) == (expected, 4, 8)
        wkwdask.build_pyramid(
            folder, method="mean", coarsest=2, compression="raw", existing="overwrite"
        )
        assert wkwdask.info(folder).layers[0].mags[1].compression == "raw"


def test_voxels_outside_the_box_never_count(dataset):
    wkwdask.build_pyramid(dataset, coarsest="2-2-1", method="max")
    expected = wkwdask.read(dataset, mag="2-2-1")
    document = (dataset / "datasource-properties.json").read_text()
    wkwdask.write(
        dataset / "color" / "1",
        (0, 0, 0),
        np.full((64, 64, 64), 255, np.uint8),
        existing="overwrite",
        **OPTIONS,
    )
    array = np.full((64, 64, 64), 255, np.uint8)
    array[tuple(slice(a, b) for a, b in zip(OFFSET, HIGH, strict=True))] = voxels()
    wkwdask.write(dataset / "color" / "1", (0, 0, 0), array, existing="overwrite", **OPTIONS)
    (dataset / "datasource-properties.json").write_text(document)
    wkwdask.build_pyramid(dataset, coarsest="2-2-1", method="max", existing="overwrite")
    np.testing.assert_array_equal(wkwdask.read(dataset, mag="2-2-1"), expected)


# ----------------------------------------------------------------------------- repeated
# build_pyramid


@pytest.fixture
def interrupted(dataset):
    """A pyramid that failed in the middle; the value repairs its source."""
    path = dataset / "color" / "1" / "z1" / "y2" / "x2.wkw"
    whole, times = path.read_bytes(), path.stat()
    path.write_bytes(whole[:-1])

    def repair():
        path.write_bytes(whole)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    with (
        regions_of(8),
        dask.config.set(scheduler="synchronous"),
        pytest.raises(TruncatedError) as caught,
    ):
        wkwdask.build_pyramid(dataset, mags=["2-2-1", "4-4-2"], method="max")
    assert re.fullmatch(
        (
            r'finished work is kept \(\d+ tasks, .*B\): the same call resumes, existing="restart" '
            r"starts over"
        ),
        caught.value.__notes__[-1],
    )
    assert sorted(
        name for name in os.listdir(dataset / "color") if not name.startswith(".wkwdask-job-")
    ) == ["1"]
    assert len(os.listdir(dataset / "color")) == 2
    return repair


SAME = {"mags": ["2-2-1", "4-4-2"], "method": "max"}


def test_an_interrupted_pyramid_is_resumed(dataset, interrupted):
    interrupted()
    with dask.config.set(scheduler="threads", num_workers=7):
        report = wkwdask.build_pyramid(dataset, **SAME)
    assert sorted(os.listdir(dataset / "color")) == ["1", "2-2-1", "4-4-2"]
    for mag in (Mag(2, 2, 1), Mag(4, 4, 2)):
        np.testing.assert_array_equal(
            wkwdask.read(dataset, mag=mag)[0], largest(voxels(), BoundingBox(OFFSET, SHAPE), mag)
        )
    assert report.files == len(list(dataset.rglob("x*.wkw"))) - 18
    assert report.voxels == sum(
        BoundingBox(OFFSET, SHAPE).in_mag(mag).volume for mag in (Mag(2, 2, 1), Mag(4, 4, 2))
    )
    assert "nothing to do" in wkwdask.build_pyramid(dataset, existing="resume", **SAME).note


@pytest.mark.parametrize("num_files", [1, 2])
def test_removed_source_files_leave_nothing_in_a_resumed_pyramid(dataset, interrupted, num_files):
    """The call is refused or correct, even if a task has nothing left to read."""
    interrupted()
    for x, y in np.ndindex(num_files, num_files):
        (dataset / "color" / "1" / "z0" / f"y{y}" / f"x{x}.wkw").unlink()
    array = voxels()
    array[: 16 * num_files - OFFSET[0], : 16 * num_files - OFFSET[1], : 16 - OFFSET[2]] = 0
    try:
        wkwdask.build_pyramid(dataset, **SAME)
    except ResumeError:
        return
    for mag in (Mag(2, 2, 1), Mag(4, 4, 2)):
        np.testing.assert_array_equal(
            wkwdask.read(dataset, mag=mag)[0], largest(array, BoundingBox(OFFSET, SHAPE), mag)
        )


def test_resuming_nothing_is_building(dataset):
    assert wkwdask.build_pyramid(dataset, existing="resume", **SAME).files > 0
    assert sorted(os.listdir(dataset / "color")) == ["1", "2-2-1", "4-4-2"]


@pytest.mark.parametrize("update", ["changed", "yes", None, 2, "Content"])
def test_malformed_update_is_refused(dataset, update):
    with pytest.raises(ValueError, match=r'update must be True, False or "content", got'):
        wkwdask.build_pyramid(dataset, update=update)


@pytest.mark.parametrize(
    "options", [{"update": True}, {"update": "content"}, {"bounding_box": (5, 14, 7, 10, 20, 10)}]
)
def test_update_excludes_existing(dataset, options):
    for existing in ("overwrite", "resume"):
        with pytest.raises(ValueError, match="use one or the other"):
            wkwdask.build_pyramid(dataset, existing=existing, **options)


# ----------------------------------------------------------------------------- the real sample


@pytest.fixture
def l4_sample(shared_data, tmp_path):
    """A writable copy."""
    folder = tmp_path / "l4_sample"
    shutil.copytree(shared_data / "l4_sample", folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def interior(array):
    """All but the outermost voxels: an older writer mixed zeros into the border of the stored
    mags."""
    return array[:, 1:-1, 1:-1, 1:-1]


def test_segmentation_of_the_sample(l4_sample):
    """Mag 2-2-1 from mag 1, voxel for voxel, with every tie."""
    stored = {
        mag: wkwdask.read(l4_sample, layer="segmentation", mag=mag) for mag in ("2-2-1", "4-4-2")
    }
    report = wkwdask.build_pyramid(
        l4_sample, "segmentation", coarsest="4-4-2", existing="overwrite"
    )
    assert [Path(mag.path).name for mag in report.mags] == ["2-2-1", "4-4-2"]
    made = {mag: wkwdask.read(l4_sample, layer="segmentation", mag=mag) for mag in stored}
    assert made["2-2-1"].shape == (1, 129, 128, 150)
    np.testing.assert_array_equal(interior(made["2-2-1"]), interior(stored["2-2-1"]))
    np.testing.assert_array_equal(
        made["4-4-2"][:, 2:-2, 2:-2, 2:-2], stored["4-4-2"][:, 2:-2, 2:-2, 2:-2]
    )


def test_color_of_the_sample(l4_sample):
    """Mag 4-4-2 from mag 2-2-1: the finest that has files, although the JSON lists mag 1."""
    stored = wkwdask.read(l4_sample, layer="color", mag="4-4-2")
    report = wkwdask.build_pyramid(l4_sample, "color", coarsest="4-4-2", existing="overwrite")
    assert [Path(mag.path).name for mag in report.mags] == ["4-4-2"]
    made = wkwdask.read(l4_sample, layer="color", mag="4-4-2")
    assert made.shape == (1, 65, 64, 76)
    np.testing.assert_array_equal(interior(made), interior(stored))


def test_the_samples_json_keeps_its_legacy_form(l4_sample, shared_data):
    """The mags that are made have the length of file that suits their boxes, of 64 x 64 x 75 and 32
    x 32 x 38 voxels; the others are left alone."""
    wkwdask.build_pyramid(l4_sample, "color", coarsest="8-8-4", existing="overwrite")
    before = json.loads((shared_data / "l4_sample" / "datasource-properties.json").read_text())
    after = json.loads((l4_sample / "datasource-properties.json").read_text())
    resolutions = after["dataLayers"][0]["wkwResolutions"]
    made = [
        {"cubeLength": 128, "resolution": [4, 4, 2]},
        {"cubeLength": 64, "resolution": [8, 8, 4]},
    ]
    assert resolutions == [*before["dataLayers"][0]["wkwResolutions"][:2], *made]
    for document in (before, after):
        del document["dataLayers"][0]["wkwResolutions"]
    assert after == before


@pytest.mark.parametrize("array", [[[[1]]], np.ma.masked_array(np.zeros((2, 2, 2), np.uint8))])
def test_to_wkw_refuses_other_objects_than_arrays(tmp_path, array):
    with pytest.raises(TypeError, match="must be a dask or numpy array"):
        wkwdask.to_wkw(array, tmp_path / "x" / "1")


def test_open_refuses_chunks_of_none(tmp_path):
    wkwdask.write(
        tmp_path / "x" / "1", (0, 0, 0), np.ones((4, 4, 4), np.uint8), block_len=4, file_len=1
    )
    with pytest.raises(ValueError, match="chunks in voxels"):
        wkwdask.open(tmp_path / "x" / "1", chunks=None)


def test_blocks_longer_than_the_reference_library_allows_need_any_length(tmp_path):
    voxels = np.arange(27, dtype=np.uint16).reshape(3, 3, 3)
    with pytest.raises(ValueError, match=r"block_len must be a power of two in 1\.\.128, got 256"):
        wkwdask.write(tmp_path / "x" / "1", (0, 0, 0), voxels, block_len=256, file_len=1)
    wkwdask.write(
        tmp_path / "x" / "1", (0, 0, 0), voxels, block_len=256, file_len=1, any_length=True
    )
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "x" / "1", ((0, 0, 0), (3, 3, 3)))[0], voxels
    )
