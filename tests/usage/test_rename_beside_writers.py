"""A layer is renamed while a job writes it, or a job starts during a renaming: one of the two
fails, and no mag is lost."""

from __future__ import annotations

import errno
import json
import os

import dask
import numpy as np
import pytest
from support.file_events import Meanwhile, counting

import wkwdask

OPTIONS = {"block_len": 8, "file_len": 2}
COARSE = np.full((8, 8, 8), 7, np.uint8)
FINE = np.full((16, 16, 16), 3, np.uint8)


@pytest.fixture(autouse=True)
def _without_flushing(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    wkwdask.to_wkw(FINE, tmp_path / "ds" / "em" / "1", **OPTIONS)
    return tmp_path / "ds"


def fresh(dataset, number):
    """Create another dataset like the first one."""
    folder = dataset.parent / f"ds{number}"
    wkwdask.create_dataset(folder, (4, 4, 4))
    wkwdask.to_wkw(FINE, folder / "em" / "1", **OPTIONS)
    return folder


def write_mag(folder):
    return wkwdask.to_wkw(COARSE, folder / "em" / "2", **OPTIONS)


def write_region(folder):
    return wkwdask.to_wkw(COARSE, folder / "em" / "1", region=((0, 0, 0), (8, 8, 8)))


def build(folder):
    with dask.config.set(scheduler="synchronous"):
        return wkwdask.build_pyramid(folder, mags=[2])


def rename(folder):
    return wkwdask.open_dataset(folder).rename_layer("em", "raw")


WRITERS = {"mag": write_mag, "region": write_region, "pyramid": build}


def check(folder, writer, written, renamed):
    """Check that one of the two succeeded, or both in turn; every mag on disk is listed and holds
    its voxels."""
    is_between_swap_and_unlink = isinstance(written, OSError) and written.errno == errno.ELOOP
    assert (
        written is None
        or is_between_swap_and_unlink
        or isinstance(written, (wkwdask.LockedError, wkwdask.MissingError))
    ), written
    assert renamed is None or isinstance(renamed, wkwdask.LockedError), renamed
    layers = wkwdask.open_dataset(folder).layers
    assert {
        name: sorted(os.listdir(folder / name))
        for name in os.listdir(folder)
        if name != "datasource-properties.json"
    } == {layer.name: sorted(str(mag) for mag in layer.mags) for layer in layers.values()}
    names = ["em"] if renamed is not None else ["raw"]
    # the writer began after the renaming
    assert list(layers) in (
        names,
        ["raw", "em"] if written is None and writer is write_mag else names,
    )
    assert layers[names[0]].read(mag=1).min() == 3
    found = [
        (str(mag), int(layer.read(mag=mag).max()))
        for layer in layers.values()
        for mag in layer.mags
    ]
    fine, coarse = (7, None) if writer is write_region else (3, 7 if writer is write_mag else 3)
    assert found == (
        [("1", 3)]
        if written is not None
        else [("1", fine)] + [("2", coarse)] * (coarse is not None)
    )


def outcome(function, folder):
    try:
        function(folder)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", list(WRITERS))
def test_a_layer_is_renamed_at_any_moment_of_a_writer(dataset, name):
    writer = WRITERS[name]
    with counting(dataset) as counter:
        writer(dataset)
    assert counter.count > 20
    for number in range(1, counter.count + 1, max(1, counter.count // 10)):
        folder = fresh(dataset, number)
        other = Meanwhile(lambda folder=folder: rename(folder), seconds=0.1)
        with counting(folder, number, other):
            written = outcome(writer, folder)
        other.end()
        check(folder, writer, written, other.error)


@pytest.mark.parametrize("name", list(WRITERS))
def test_a_writer_starts_at_any_moment_of_a_renaming(dataset, name):
    writer = WRITERS[name]
    with counting(dataset) as counter:
        rename(dataset)
    assert counter.count > 10
    for number in range(1, counter.count + 1, max(1, counter.count // 8)):
        folder = fresh(dataset, number)
        other = Meanwhile(lambda folder=folder: writer(folder), seconds=0.1)
        with counting(folder, number, other):
            renamed = outcome(rename, folder)
        other.end()
        check(folder, writer, other.error, renamed)


def write_new_layer(folder):
    return wkwdask.to_wkw(COARSE, folder / "raw" / "2", **OPTIONS)


def test_a_writer_starts_at_any_moment_of_a_renaming_to_its_empty_folder(dataset):
    """The folder of a job that was killed becomes that of the renamed layer, or of the writer."""
    (dataset / "raw").mkdir()
    with counting(dataset) as counter:
        rename(dataset)
    assert counter.count > 10
    endings = set()
    for number in range(1, counter.count + 1, max(1, counter.count // 16)):
        folder = fresh(dataset, number)
        (folder / "raw").mkdir()
        other = Meanwhile(lambda folder=folder: write_new_layer(folder), seconds=0.1)
        with counting(folder, number, other):
            renamed = outcome(rename, folder)
        other.end()
        assert isinstance(renamed, (wkwdask.ExistsError, type(None))), renamed
        assert other.error is None or isinstance(
            other.error, (OSError, wkwdask.LockedError, wkwdask.ExistsError)
        ), other.error
        layers = wkwdask.open_dataset(folder).layers
        kept = layers["em" if renamed else "raw"]
        assert kept.read(mag=1).min() == 3
        on_disk = {name for name in os.listdir(folder) if name != "datasource-properties.json"}
        assert on_disk == set(layers), "what is left is listed"
        if other.error is None:
            assert layers["raw"].read(mag=2).max() == 7
        endings.add((renamed is None, other.error is None))
    assert (True, True) in endings
    assert (False, True) in endings, "no writer was faster"


def test_a_layer_that_is_being_written_is_not_renamed(dataset):
    errors = []

    def seen(voxels):
        errors.append(outcome(rename, dataset))
        return voxels

    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_wkw(
            dask.array.from_array(COARSE, chunks=8).map_blocks(seen, meta=COARSE[:0, :0, :0]),
            dataset / "em" / "2",
            **OPTIONS,
        )
    assert errors
    assert all(isinstance(error, wkwdask.LockedError) for error in errors)
    assert [str(mag) for mag in wkwdask.open_dataset(dataset)["em"].mags] == ["1", "2"]


def test_renaming_a_layer_named_like_a_file_moves_no_file(dataset):
    path = dataset / "datasource-properties.json"
    document = json.loads(path.read_text())
    document["dataLayers"][0]["name"] = path.name
    path.write_text(json.dumps(document))
    wkwdask.open_dataset(dataset).rename_layer(path.name, "raw")
    assert [layer.name for layer in wkwdask.open_dataset(dataset)] == ["raw"]
