"""Ids at the ends of their types: every verb treats them as numpy does."""

from __future__ import annotations

import dask
import h5py
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.annotations import write_annotation
from support.commands import run_here
from support.datasets import edit
from support.references import assert_same_components, mapped, of_labels
from support.strategies import HEAVY

import wkwdask
from wkwdask.errors import UnsupportedError
from wkwdask.kernels.labels.values import map_ids

LARGEST = 2**64 - 1
WKW = {"block_len": 8, "file_len": 2}
TYPES = ["uint64", "int64", "uint32", "int32", "uint16", "uint8"]
SHAPE = (24, 20, 18)


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def ends(dtype):
    """Ids at the ends of a type, and at those of shorter types and of exact floats."""
    info = np.iinfo(dtype)
    near = [2**bits + n for bits in (0, 7, 8, 15, 16, 31, 32, 53, 63, 64) for n in (-2, -1, 0, 1)]
    return sorted({n for n in near if 0 <= n <= info.max})


@st.composite
def segmentations(draw, dtypes=TYPES):
    dtype = draw(st.sampled_from(dtypes))
    ids = [0, int(np.iinfo(dtype).max), *draw(st.lists(st.sampled_from(ends(dtype)), max_size=5))]
    coarse = np.random.default_rng(draw(st.integers(0, 99))).choice(
        np.array(ids, dtype), [-(-n // 4) for n in SHAPE]
    )
    return np.kron(coarse, np.ones((4, 4, 4), dtype))[tuple(slice(n) for n in SHAPE)]


@st.composite
def mappings(draw, dtype):
    keys = draw(st.lists(st.sampled_from(ends(dtype)), unique=True, max_size=8))
    return {key: draw(st.sampled_from(ends(dtype))) for key in keys} | {
        int(np.iinfo(dtype).max): draw(st.sampled_from(ends(dtype)))
    }


def forms(folder, pairs):
    """The same mapping in every form."""
    rows = np.array(list(pairs.items()), np.uint64)
    frame = pd.DataFrame(rows, columns=["old", "new"])
    np.save(folder / "pairs.npy", rows)
    frame.to_csv(folder / "pairs.csv", index=False)
    frame.to_parquet(folder / "pairs.parquet")
    return [
        pairs,
        {np.uint64(key): value for key, value in pairs.items()},
        rows,
        (list(pairs), list(pairs.values())),
        pd.Series(rows[:, 1], rows[:, 0]),
        frame,
        frame.astype(object),
        folder / "pairs.npy",
        folder / "pairs.csv",
        folder / "pairs.parquet",
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ids")


def stored(folder, labels):
    wkwdask.to_wkw(
        labels,
        folder / "seg" / "1",
        existing="overwrite",
        voxel_size=(4, 4, 4),
        category="segmentation",
        **WKW,
    )
    return folder / "seg" / "1"


def made(folder):
    return wkwdask.read(folder / "new" / "1")[0]


@HEAVY
@given(st.data(), segmentations(), st.sampled_from(["keep", "zero"]))
def test_remapped_in_every_form(folder, data, labels, default):
    source, pairs = stored(folder, labels), data.draw(mappings(labels.dtype))
    expected = mapped(labels, pairs.items(), default)
    for mapping in data.draw(st.permutations(forms(folder, pairs)))[:2]:
        wkwdask.remap(source, folder / "new" / "1", mapping, default=default, existing="overwrite")
        np.testing.assert_array_equal(made(folder), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_table_of_all_ids_reaches_the_last_one(folder, dtype):
    count = np.iinfo(dtype).max + 1
    labels = np.resize(np.array([0, 1, count - 1], dtype), SHAPE)
    source, table = stored(folder, labels), np.arange(count, dtype=np.uint64)[::-1]
    np.save(folder / "table.npy", table)
    with h5py.File(folder / "table.hdf5", "w") as file:
        file.create_dataset("segment_to_agglomerate", data=table)
    for mapping in (table, folder / "table.npy", folder / "table.hdf5"):
        wkwdask.remap(source, folder / "new" / "1", mapping, existing="overwrite")
        np.testing.assert_array_equal(made(folder), table[labels])
        wkwdask.remap(source, folder / "new" / "1", table[: count - 1], existing="overwrite")
        np.testing.assert_array_equal(
            made(folder), np.append(table[: count - 1], count - 1)[labels]
        )


@given(
    st.lists(
        st.integers(-(2**63), 2**63 - 1).map(lambda n: n >> 8 * (n % 7)), min_size=1, max_size=30
    ),
    st.sampled_from(["int64", "uint64"]),
    st.booleans(),
)
def test_signed_ids_are_not_those_of_their_bits(ids, dtype, keeps):
    array, out = np.array([*ids, -1, 2**63 - 1, -(2**63)], np.int64), np.empty(len(ids) + 3, dtype)
    keys = np.array(
        sorted({2**63 - 1, 2**63, LARGEST, *(n for n in ids[::2] if n >= 0)}), np.uint64
    )
    values = np.arange(100, 100 + len(keys), dtype=np.uint64)
    lookup = dict(zip(keys.tolist(), values.tolist(), strict=True))
    expected = [lookup.get(n, n if keeps else 0) for n in array.tolist()]
    lost = next((n for n in expected if n < 0), None) if dtype == "uint64" else None
    assert map_ids(array, keys, values, out, keeps=keeps) == lost
    if lost is None:
        assert out.tolist() == expected


def test_an_empty_table_maps_nothing():
    ids = np.array([0, 3, LARGEST], np.uint64)
    for keys in (None, np.zeros(0, np.uint64)):
        for keeps in (True, False):
            out = np.empty(3, np.uint64)
            assert map_ids(ids, keys, np.zeros(0, np.uint64), out, keeps=keeps) is None
            assert out.tolist() == (ids.tolist() if keeps else [0, 0, 0])


@HEAVY
@given(
    segmentations(), st.integers(1, 2000), st.sampled_from(["ids.csv", "ids.parquet", "ids.npy"])
)
def test_dust_numbers_and_statistics(folder, labels, min_voxels, name):
    source = stored(folder, labels)
    ids, counts = (
        values[1 if labels.min() == 0 else 0 :] for values in np.unique(labels, return_counts=True)
    )
    table = wkwdask.label_statistics(source)
    assert (table.index.tolist(), table["voxels"].tolist()) == (ids.tolist(), counts.tolist())
    for number in ids.tolist():
        places = np.argwhere(labels == number)
        assert (
            table.loc[number, ["min_x", "min_y", "min_z"]].tolist() == places.min(axis=0).tolist()
        )
        assert (
            table.loc[number, ["max_x", "max_y", "max_z"]].tolist()
            == (places.max(axis=0) + 1).tolist()
        )
    wkwdask.remove_dust(source, folder / "new" / "1", min_voxels, existing="overwrite")
    np.testing.assert_array_equal(
        made(folder), np.where(np.isin(labels, ids[counts >= min_voxels]), labels, 0)
    )
    numbered = np.where(labels == 0, 0, np.searchsorted(ids, labels) + 1)
    wkwdask.renumber(source, folder / "new" / "1", mapping=folder / name, existing="overwrite")
    np.testing.assert_array_equal(made(folder), numbered)
    wkwdask.remap(source, folder / "new" / "1", folder / name, existing="overwrite")
    np.testing.assert_array_equal(made(folder), numbered)


@HEAVY
@given(segmentations(), st.sampled_from([6, 18, 26]))
def test_components(folder, labels, connectivity):
    source = stored(folder, labels)
    wkwdask.connected_components(
        source, folder / "new" / "1", connectivity=connectivity, existing="overwrite"
    )
    assert_same_components(made(folder), of_labels(labels, connectivity))
    top = int(labels.max())
    wkwdask.connected_components(
        source, folder / "new" / "1", threshold=(top, top), existing="overwrite"
    )
    np.testing.assert_array_equal(made(folder) > 0, labels == top)


def test_the_command_compares_with_exact_thresholds(folder):
    labels = np.resize(np.array([LARGEST, LARGEST - 1, 7, 0], np.uint64), SHAPE)
    source = stored(folder, labels)
    run_here("components", source, folder / "command" / "1", "--threshold", LARGEST)
    np.testing.assert_array_equal(wkwdask.read(folder / "command" / "1")[0] > 0, labels == LARGEST)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_largest_id_is_recorded(folder, dtype):
    labels = np.ones(SHAPE, dtype)
    largest = labels[3, 4, 5] = np.iinfo(dtype).max
    stored(folder, labels)
    edit(folder, lambda document: document["dataLayers"][0].pop("largestSegmentId", None))
    wkwdask.apply(np.copy, folder / "seg" / "1", folder / "copied" / "1", existing="overwrite")
    dataset = wkwdask.open_dataset(folder)
    assert dataset["copied"].largest_segment_id == largest
    dataset.set_largest_segment_id("seg", int(largest))
    assert wkwdask.verify(folder, layer="seg").is_sound
    assert wkwdask.sample(folder / "seg" / "1", [(3, 4, 5), (0, 0, 0)]).tolist() == [largest, 1]


def test_merges_of_annotations(tmp_path):
    base = np.full((64, 32, 32), LARGEST, np.uint64)
    base[32:] = 9
    wkwdask.to_wkw(
        base,
        tmp_path / "ds" / "seg" / "1",
        voxel_size=(4, 4, 4),
        category="segmentation",
        file_len=1,
    )
    drawn = np.full((32, 32, 32), LARGEST, np.uint64)
    drawn[5] = LARGEST - 1
    annotation = write_annotation(tmp_path / "a.zip", {"1": {(1, 0, 0): drawn}}, dtype=np.uint64)
    wkwdask.merge(tmp_path / "ds", annotation, tmp_path / "merged")
    base[32:] = drawn
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "merged", layer="seg")[0], base)
    assert wkwdask.open_dataset(tmp_path / "merged")["seg"].largest_segment_id == LARGEST
    other = write_annotation(tmp_path / "b.zip", {"1": {(1, 0, 0): drawn}}, dtype=np.uint64)
    with pytest.raises(UnsupportedError, match="do not fit into uint64"):
        wkwdask.merge(tmp_path / "ds", [annotation, other], tmp_path / "unique", relabel=9)
