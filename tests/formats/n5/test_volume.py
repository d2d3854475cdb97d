"""N5 datasets in folders and behind a server: voxels of blocks that are whole or cut off, absent
and broken files, what is stored, datasets that change."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.n5_volumes import VARLENGTH, write_attributes, write_dataset
from support.precomputed_volumes import labels
from support.range_server import range_server

import wkwdask
from wkwdask import BoundingBox, Mag
from wkwdask.errors import (
    CorruptError,
    MissingError,
    ReplacedError,
    TruncatedError,
    UnsupportedError,
)

ARRAY = labels((50, 37, 23), np.uint16)[0]


def opened(folder, **options):
    """The whole array; nothing is read before it is computed."""
    return wkwdask.open(folder, axes="cxyz", chunks=1024, **options)


def computed(array):
    return array.compute(scheduler="synchronous")


@pytest.fixture(params=["cut", "whole", "varlength", "mixed"])
def stored(request, tmp_path):
    """A folder with ARRAY, in blocks of one of the kinds, or of all."""
    write_dataset(
        tmp_path / "v",
        ARRAY,
        cut=request.param != "whole",
        mode=VARLENGTH if request.param == "varlength" else 0,
    )
    if request.param == "mixed":
        write_dataset(tmp_path / "whole", ARRAY, cut=False, mode=VARLENGTH)
        shutil.rmtree(tmp_path / "v" / "3")
        shutil.move(tmp_path / "whole" / "3", tmp_path / "v" / "3")
    return tmp_path / "v"


def test_voxels(stored):
    np.testing.assert_array_equal(wkwdask.read(stored)[0], ARRAY)
    np.testing.assert_array_equal(
        wkwdask.read(stored, ((20, 3, 9), (40, 33, 19)))[0], ARRAY[20:40, 3:33, 9:19]
    )
    np.testing.assert_array_equal(computed(opened(stored))[0], ARRAY)


AXES = [
    # axes, shape of an array with them
    ("xyz", (20, 17, 9)),
    ("xy", (20, 17)),
    ("xyzc", (20, 17, 9, 3)),
    ("xycz", (20, 17, 3, 9)),
    ("zyx", (9, 17, 20)),
]


@given(st.data())
def test_any_box(tmp_path_factory, data):
    """Any box of any geometry, in any order of axes, beside the array in memory."""
    axes, shape = data.draw(st.sampled_from(AXES))
    block = tuple(data.draw(st.integers(max(1, n // 4), n + 3)) for n in shape)
    array = (
        labels((60, 60, 60), np.uint16, data.draw(st.integers(0, 9)))[0]
        .ravel()[: np.prod(shape)]
        .reshape(shape)
    )
    folder = tmp_path_factory.mktemp("any")
    write_dataset(folder, array, block, "raw", cut=data.draw(st.booleans()), axes=list(axes))
    letters = [letter for letter in "cxyz" if letter not in axes] + list(axes)
    whole = array.reshape((1,) * (4 - array.ndim) + shape).transpose(
        [letters.index(letter) for letter in "cxyz"]
    )
    np.testing.assert_array_equal(wkwdask.read(folder), whole)
    low = data.draw(st.tuples(*[st.integers(0, n - 1) for n in whole.shape[1:]]))
    high = [data.draw(st.integers(a + 1, n)) for a, n in zip(low, whole.shape[1:], strict=True)]
    part = (slice(None), *map(slice, low, high))
    np.testing.assert_array_equal(wkwdask.read(folder, (low, high)), whole[part])
    channel = data.draw(st.integers(0, len(whole) - 1))
    np.testing.assert_array_equal(
        computed(wkwdask.open(folder, channel=channel, axes="xyz", chunks=9)[part[1:]]),
        whole[channel][part[1:]],
    )


def test_broken_files(tmp_path):
    write_dataset(tmp_path, ARRAY, compression="raw")
    block = tmp_path / "2" / "1" / "0"
    good = block.read_bytes()
    for data, error, message in (
        (good[:100], TruncatedError, "2/1/0: byte 16: raw data of 84 bytes"),
        (b"", TruncatedError, "2/1/0: has 0 bytes"),
        (good + bytes(9000), CorruptError, "2/1/0: has .* bytes, expected at most"),
        (b"\0\2" + good[2:], UnsupportedError, "2/1/0: byte 0: N5 blocks of objects"),
        (
            good[:4] + b"\0\0\0\x11" + good[8:],
            CorruptError,
            r"2/1/0: byte 4: an N5 block of \(17, 16, 8\) values, expected at most \(16, 16, 8\)",
        ),
    ):
        block.write_bytes(data)
        with pytest.raises(error, match=message):
            wkwdask.read(tmp_path)
    block.unlink()
    block.symlink_to("nowhere")
    with pytest.raises(MissingError, match="a symbolic link to a missing file"):
        wkwdask.read(tmp_path)


def test_datasets_that_change(tmp_path):
    write_dataset(tmp_path / "v", ARRAY)
    array = opened(tmp_path / "v")
    document = (tmp_path / "v" / "attributes.json").read_text()
    (tmp_path / "v" / "attributes.json").write_text(document.replace("{", '{"more": 1, ', 1))
    np.testing.assert_array_equal(computed(array)[0], ARRAY)  # what is stored is the same
    (tmp_path / "v" / "attributes.json").write_text(document.replace("16", "32"))
    # as many bytes, perhaps within a tick of the clock
    os.utime(tmp_path / "v" / "attributes.json", (1, 1))
    with pytest.raises(
        ReplacedError, match=r"attributes.json describes another array since it was opened"
    ):
        computed(array)
    os.rename(tmp_path / "v", tmp_path / "old")
    with pytest.raises(MissingError, match="the array is gone"):
        computed(array)
    write_dataset(tmp_path / "v", ARRAY)
    with pytest.raises(ReplacedError, match="was replaced since it was opened"):
        computed(array)


def test_names_of_files(tmp_path):
    """Other names than those of blocks are no blocks."""
    write_dataset(tmp_path, ARRAY)
    before = wkwdask.info(tmp_path).scales[0].files
    for name in ("9/0/0", "0/0/07", "0/0/x", "0/0/0.old", "1"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(b"no block")
    assert wkwdask.info(tmp_path).scales[0].files == before
    np.testing.assert_array_equal(wkwdask.read(tmp_path)[0], ARRAY)


# ------------------------------------------------------------------------------------------------
# layers


@pytest.fixture
def container(tmp_path):
    """A container with two layers: a group of levels, and a dataset by itself."""
    root = tmp_path / "c.n5"
    write_attributes(root, n5="4.0.0")
    for number, step in enumerate((1, 2)):
        factors = {"downsamplingFactors": [step] * 3}
        write_dataset(
            root / "volumes" / "em" / f"s{number}",
            np.ascontiguousarray(ARRAY[::step, ::step, ::step]),
            **factors,
        )
    write_attributes(
        root / "volumes" / "em", pixelResolution={"dimensions": [4, 4, 40], "unit": "nm"}
    )
    write_dataset(
        root / "seg",
        ARRAY.astype(np.uint64),
        compression="xz",
        axes=["x", "y", "z"],
        resolution=[0.004, 0.004, 0.04],
        units=["um"] * 3,
    )
    return root


def levels_of(url):
    return [(scale.key, scale.mag, scale.resolution) for scale in wkwdask.info(url).scales]


def test_layers_of_a_container(container):
    assert levels_of(container / "seg") == [("seg", Mag(1, 1, 1), (4.0, 4.0, 40.0))]
    assert levels_of(container / "volumes" / "em") == [
        ("s0", Mag(1, 1, 1), (4.0, 4.0, 40.0)),
        ("s1", Mag(2, 2, 2), (8.0, 8.0, 80.0)),
    ]
    np.testing.assert_array_equal(wkwdask.read(container, layer="seg")[0], ARRAY)
    np.testing.assert_array_equal(
        wkwdask.read(container, layer="volumes/em", mag=2)[0], ARRAY[::2, ::2, ::2]
    )
    with pytest.raises(ValueError, match=r"several layers: name one with layer=: seg, volumes/em"):
        wkwdask.open(container)
    with pytest.raises(MissingError, match="no layer 'em'; there are seg, volumes/em"):
        wkwdask.open(container, layer="em")


def test_one_level(container):
    level = f"n5://{container}/volumes/em/s1"
    np.testing.assert_array_equal(wkwdask.read(level)[0], ARRAY[::2, ::2, ::2])
    assert next(
        scale.box for scale in wkwdask.info(level).scales if scale.key == "s1"
    ) == BoundingBox((0, 0, 0), (25, 19, 12), Mag(2, 2, 2))
    with pytest.raises(ValueError, match="is the array 's1', not 1"):
        wkwdask.open(level, mag=1)
    with pytest.raises(
        MissingError, match=r"no mag or array 8; there are 's0' \(mag 1\), 's1' \(mag 2\)"
    ):
        wkwdask.open(container / "volumes" / "em", mag=8)


def test_big_data_viewer(tmp_path):
    """Its factors stand above the time points."""
    write_attributes(
        tmp_path / "setup0", downsamplingFactors=[[1, 1, 1], [2, 2, 1]], dataType="uint16"
    )
    for number, step in enumerate((1, 2)):
        write_dataset(
            tmp_path / "setup0" / "timepoint0" / f"s{number}",
            np.ascontiguousarray(ARRAY[::step, ::step]),
        )
    write_attributes(tmp_path, n5="2.0.0")
    assert [mag for _, mag, _ in levels_of(tmp_path)] == [Mag(1, 1, 1), Mag(2, 2, 1)]
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path, layer="setup0/timepoint0", mag="2-2-1")[0], ARRAY[::2, ::2]
    )


def test_levels_that_cannot_be_used(container):
    write_attributes(
        container / "volumes" / "em" / "s2",
        dimensions=[5, 5, 5],
        blockSize=[0, 1, 1],
        dataType="uint16",
        compression={"type": "raw"},
    )
    assert [scale.problem != "" for scale in wkwdask.info(container / "volumes" / "em").scales] == [
        False,
        False,
        True,
    ]
    with pytest.raises(CorruptError, match=r"em/s2/attributes.json: blockSize: expected"):
        wkwdask.open(container / "volumes" / "em", mag="s2")
    np.testing.assert_array_equal(wkwdask.read(container, layer="volumes/em")[0], ARRAY)


def test_what_is_n5(container, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "attributes.json").write_text('{"of": "somebody else"}')
    with pytest.raises(MissingError, match="no dataset"):
        wkwdask.open(tmp_path / "other")
    # a group without attributes in a container
    assert len(wkwdask.info(container / "volumes", layer="em").scales) == 2
    with pytest.raises(MissingError, match="no N5 dataset found here or below"):
        wkwdask.open(f"n5://{tmp_path}/other")
    with pytest.raises(MissingError, match="no such folder"):
        wkwdask.open(f"n5://{tmp_path}/nothing")


def test_remote(container):
    """Behind a web server, which lists nothing: levels are found one after the other, absent blocks
    are zero."""
    pytest.importorskip("obstore", reason="reads http")
    with range_server(container) as server:
        assert [mag for _, mag, _ in levels_of(f"n5://{server.url}/volumes/em")] == [
            Mag(1, 1, 1),
            Mag(2, 2, 2),
        ]
        np.testing.assert_array_equal(wkwdask.read(f"n5://{server.url}/volumes/em")[0], ARRAY)
        np.testing.assert_array_equal(
            wkwdask.read(f"n5://{server.url}/volumes/em/s1")[0], ARRAY[::2, ::2, ::2]
        )
        np.testing.assert_array_equal(
            wkwdask.read(f"{server.url}/seg|n5:", ((30, 20, 3), (40, 30, 13)))[0],
            ARRAY[30:40, 20:30, 3:13],
        )
        with pytest.raises(MissingError, match="name one, since remote folders cannot be listed"):
            wkwdask.open(f"n5://{server.url}/volumes")
        for before, after in (("s1", "s2"), ("s0", "s1")):  # as after the removal of a level
            (container / "volumes" / "em" / before).rename(container / "volumes" / "em" / after)
        assert [mag for _, mag, _ in levels_of(f"n5://{server.url}/volumes/em")] == [
            Mag(1, 1, 1),
            Mag(2, 2, 2),
        ]
