"""A format that is registered, and nothing else, is opened, read, shown, compared and converted as
all others."""

from __future__ import annotations

import os

import numpy as np
import pytest
import support.toy_format as toy
from formats.toy_volumes import box_of, save_toy

import wkwdask
from wkwdask import BoundingBox, Mag
from wkwdask.errors import CorruptError, MissingError, TruncatedError
from wkwdask.formats import registry

SIZE = (40, 30, 20)
OFFSET = (4, 6, 8)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(registry, "_added", [])
    registry.register(toy.FORMAT)


@pytest.fixture
def array():
    rng = np.random.default_rng(5)
    found = rng.integers(0, 255, (1, *SIZE), np.uint8)
    found[:, 8:16, :16, 8:16] = 0  # a chunk that is not stored
    return found


@pytest.fixture
def volume(tmp_path, array):
    folder = tmp_path / "em"
    coarse = np.ascontiguousarray(array[:, ::2, ::2, ::2])
    save_toy(
        folder, {"fine": (Mag(1, 1, 1), OFFSET, array), "coarse": (Mag(2, 2, 2), (2, 3, 4), coarse)}
    )
    return folder


def test_opening_and_reading(volume, array):
    assert not os.path.exists(volume / "fine" / "1.0.1.raw")
    for url in (volume, f"toy://{volume}", volume / "fine", f"{volume}|toy:"):
        np.testing.assert_array_equal(wkwdask.open(url).compute(), array)
    np.testing.assert_array_equal(wkwdask.open(volume, mag=2).compute(), array[:, ::2, ::2, ::2])
    np.testing.assert_array_equal(
        wkwdask.open(volume, mag="coarse").compute(), array[:, ::2, ::2, ::2]
    )
    box = BoundingBox((9, 8, 9), (20, 11, 5))
    np.testing.assert_array_equal(wkwdask.read(volume, box), array[:, 5:25, 2:13, 1:6])
    np.testing.assert_array_equal(
        np.ravel(wkwdask.sample(volume, [(4, 6, 8), (17, 21, 15)])),
        [array[0, 0, 0, 0], array[0, 13, 15, 7]],
    )
    with pytest.raises(
        MissingError, match=r"no mag or array 8; there are 'fine' \(mag 1\), 'coarse' \(mag 2\)"
    ):
        wkwdask.open(volume, mag=8)


def test_what_it_holds(volume, array):
    summary = wkwdask.info(volume)
    assert (summary.format, summary.type, summary.dtype, summary.num_channels) == (
        "toy",
        "color",
        "uint8",
        1,
    )
    fine, coarse = summary.scales
    assert (fine.key, fine.mag, fine.resolution, fine.box) == (
        "fine",
        Mag(1, 1, 1),
        (4.0, 4.0, 40.0),
        box_of(Mag(1, 1, 1), OFFSET, array),
    )
    assert (coarse.mag, coarse.resolution) == (Mag(2, 2, 2), (8.0, 8.0, 80.0))
    assert fine.files == len(
        [name for name in os.listdir(volume / "fine") if name.endswith(".raw")]
    )


def test_xarray(volume, array):
    xr = pytest.importorskip("xarray")
    opened = xr.open_dataset(volume, engine="wkw")
    np.testing.assert_array_equal(opened["em"].values, array[0])
    assert opened["em"].encoding["source"] == f"toy://{volume}"
    assert opened.x.values[0] == (OFFSET[0] + 0.5) * 4
    tree = xr.open_datatree(volume, engine="wkw")
    assert sorted(tree.children) == ["1", "2"]
    assert tree.attrs["data_format"] == "toy"


def test_comparing_and_converting(volume, array, tmp_path):
    for target in (
        tmp_path / "wkw",
        f"precomputed://{tmp_path}/precomputed",
        f"n5://{tmp_path}/volume.n5/em",
    ):
        wkwdask.convert(volume, target)
        found = wkwdask.diff(
            volume, str(target).removeprefix("precomputed://").removeprefix("n5://")
        )
        assert [one.name.rpartition("/")[2] for one in found.volumes] == ["1", "2"]
        assert not any(one.voxels_different or one.mismatches for one in found.volumes)
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "wkw" / "color" / "2"), array[:, ::2, ::2, ::2]
    )


def test_broken_ones(volume):
    (volume / "fine" / "0.0.0.raw").write_bytes(b"short")
    with pytest.raises(
        TruncatedError,
        match=r"0\.0\.0\.raw: byte 0: a raw chunk of \(8, 16, 8\) voxels has 1024 bytes, found 5",
    ):
        wkwdask.read(volume)
    (volume / "toy.json").write_text("{")
    with pytest.raises(CorruptError, match=r"toy\.json"):
        wkwdask.open(volume)
