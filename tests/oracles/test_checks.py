"""Oracles: the reference library wkw 1.1.24 reads repaired mags, and webknossos 4.3.3 opens a
rebuilt JSON."""

from __future__ import annotations

import warnings

import dask
import numpy as np
import pytest
from support.damage_matrix import (
    CASES,
    FILE_NAME,
    MAGS,
    add,
    both,
    cut,
    edit,
    labels,
    make_dataset,
    prepare,
    remove,
    voxels,
)

import wkwdask

wkw = pytest.importorskip("wkw", reason="the oracle wkw 1.1.24 is not installed")

MENDED = [case for case in CASES if not case.stays and not case.zeros and case.restored]
SALVAGED = [case for case in CASES if case.options.get("salvage")]


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    with dask.config.set(scheduler="synchronous"):
        return make_dataset(tmp_path_factory.mktemp("checks") / "ds")


def theirs(folder, layer, mag):
    """Read by the reference library, outside the box too."""
    with wkw.Dataset.open(str(folder / layer / mag)) as dataset:
        return dataset.read((0, 0, 0), (64, 64, 64))[0]


@pytest.mark.parametrize("case", MENDED, ids=[case.name for case in MENDED])
def test_the_reference_library_reads_repaired_files(sound, tmp_path, case):
    folder = prepare(sound, tmp_path / "ds", case)
    wkwdask.repair(folder, **case.options)
    for layer, mag in (("cells", "1"), ("color", "1"), *(("cells", mag) for mag in MAGS)):
        if (folder / layer / mag).exists():
            np.testing.assert_array_equal(theirs(folder, layer, mag), voxels(sound, layer, mag))


@pytest.mark.parametrize("case", SALVAGED, ids=[case.name for case in SALVAGED])
def test_the_reference_library_reads_salvaged_files(sound, tmp_path, case):
    folder = prepare(sound, tmp_path / "ds", case)
    wkwdask.repair(folder, **case.options)
    for layer in ("cells", "color"):
        found, before = theirs(folder, layer, "1"), voxels(sound, layer)
        np.testing.assert_array_equal(found, voxels(folder, layer))
        assert np.all((found == before) | (found == 0))
        blocks = (found != before).reshape(8, 8, 8, 8, 8, 8).any(axis=(1, 3, 5))
        assert blocks.sum() <= 2


def test_files_that_the_reference_library_reads_as_zeros_are_reported(sound, tmp_path):
    for number, damage in enumerate(
        (
            cut("cells/1/z1/y0/x1.wkw", 0),
            cut("cells/1/z1/y0/x1.wkw", 9),
            remove("cells/1/z1/y0/x1.wkw"),
        )
    ):
        folder = tmp_path / str(number)
        prepare(sound, folder, type("Damage", (), {"damage": staticmethod(damage)}))
        assert not theirs(folder, "cells", "1")[16:32, :16, 16:32].any()
        assert not wkwdask.verify(folder).is_sound


def test_webknossos_opens_a_rebuilt_json(sound, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of image readers that are not installed
        webknossos = pytest.importorskip(
            "webknossos", reason="the oracle webknossos 4.3.3 is not installed"
        )
        for name, damage, options in (
            ("missing", remove(FILE_NAME), {"voxel_size": (11.24, 11.24, 28)}),
            (
                "box",
                lambda folder: edit(folder, lambda layers: layers["cells"].pop("boundingBox")),
                {},
            ),
            (
                "id",
                lambda folder: edit(
                    folder, lambda layers: layers["cells"].update(largestSegmentId=3)
                ),
                {},
            ),
        ):
            folder = prepare(
                sound, tmp_path / name, type("Damage", (), {"damage": staticmethod(damage)})
            )
            assert wkwdask.repair(folder, **options).is_sound
            dataset = webknossos.Dataset.open(folder)
            assert set(dataset.layers) == {"cells", "color"}
            layer = dataset.get_layer("cells")
            assert layer.category == "segmentation"
            found = layer.get_finest_mag().read(absolute_offset=(3, 0, 5), size=(40, 36, 30))[0]
            np.testing.assert_array_equal(found, labels())
            assert name == "missing" or layer.largest_segment_id == labels().max()


def test_webknossos_opens_a_repaired_dataset(sound, tmp_path):
    """Its own check of the files passes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        webknossos = pytest.importorskip(
            "webknossos", reason="the oracle webknossos 4.3.3 is not installed"
        )
        damage = both(
            add("cells/1/z1/y0/x1.wkw"),
            cut("cells/2/z0/y0/x1.wkw", -9),
            remove("color/1/header.wkw"),
        )
        folder = prepare(
            sound, tmp_path / "ds", type("Damage", (), {"damage": staticmethod(damage)})
        )
        assert wkwdask.repair(folder).is_sound
        dataset = webknossos.Dataset.open(folder)
        for layer, mag in (("cells", "1"), ("cells", "2"), ("color", "1")):
            view = dataset.get_layer(layer).get_mag(mag)
            box = wkwdask.open(folder, layer=layer, mag=mag).compute()
            np.testing.assert_array_equal(view.read(), box)
