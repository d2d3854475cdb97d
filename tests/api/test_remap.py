"""Mapped ids: the same as numpy makes of the whole array, for every form of a mapping."""

from __future__ import annotations

import os
import warnings

import dask
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faults.drivers import ENVIRONMENT, regions_of, stopping, without_flushing
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run_here
from support.datasets import layer_of
from support.inside import before_task, limited
from support.references import mapped
from support.strategies import HEAVY

import wkwdask
from wkwdask.api import segmentations
from wkwdask.errors import (
    DiscardWarning,
    ExistsError,
    FormatError,
    IncompleteWriteError,
    LockedError,
    MissingError,
    ResumeError,
    UnsupportedError,
)

SMALL = {"block_len": 8, "file_len": 2}
OFFSET = (13, 8, 5)
SHAPE = (60, 45, 30)
assert ENVIRONMENT  # progress of cluster processes is off


def labels(seed=1, dtype="uint32", most=300):
    random = np.random.default_rng(seed)
    coarse = random.integers(0, most, [-(-n // 4) for n in SHAPE])
    return np.kron(coarse, np.ones((4, 4, 4), int))[tuple(slice(n) for n in SHAPE)].astype(dtype)


@pytest.fixture(autouse=True)
def _small_tasks():
    with (
        dask.config.set(scheduler="synchronous"),
        regions_of(32),
        without_flushing(),
        limited(brick_nbytes=16**3 * 8),
    ):
        yield


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (4, 4, 4))
    wkwdask.write(folder / "seg" / "1", OFFSET, labels(), **SMALL)
    return folder


def result(folder):
    return wkwdask.read(folder)[0]


PAIRS = np.array([[7, 3], [299, 4], [12, 3], [1, 1000], [5000, 9], [250, 0], [12, 3]])
# for the ids 0 to 201; 0 becomes another one
TABLE = np.append(np.random.default_rng(3).integers(1, 90, 200), [0, 5])
TABLE[0] = 0


def csv(path, rows, header=""):
    path.write_text(header + "".join(f"{a},{b}\n" for a, b in rows))
    return path


def forms(folder):
    """The same pairs in every form."""
    np.save(folder / "pairs.npy", PAIRS)
    np.save(folder / "swapped.npy", PAIRS.astype(">u4"))
    pq.write_table(
        pa.table({"a": PAIRS[:, 0], "b": PAIRS[:, 1].astype(np.uint16)}),
        folder / "plain.parquet",
        row_group_size=2,
    )
    pd.DataFrame({"new": PAIRS[:, 1]}, pd.Index(PAIRS[:, 0], name="old")).to_parquet(
        folder / "indexed.parquet"
    )
    return {
        "dict": dict(PAIRS.tolist()),
        "array": PAIRS,
        "tuple": (PAIRS[:, 0].tolist(), PAIRS[:, 1]),
        "series": pd.Series(PAIRS[:, 1], PAIRS[:, 0]),
        "frame": pd.DataFrame(PAIRS, columns=["old", "new"]),
        "csv": csv(folder / "a.csv", PAIRS),
        "csv with a header": csv(folder / "b.csv", PAIRS, "old,new\n"),
        "npy": folder / "pairs.npy",
        "npy of other bytes": str(folder / "swapped.npy"),
        "parquet": folder / "plain.parquet",
        "parquet of pandas": folder / "indexed.parquet",
    }


def dense_forms(folder):
    """The same entries for the ids from 0 on in every form."""
    np.save(folder / "dense.npy", TABLE)
    np.save(folder / "dense16.npy", TABLE.astype(np.uint16))
    np.save(folder / "dense-swapped.npy", TABLE.astype(">i8"))
    with h5py.File(folder / "view.hdf5", "w") as file:
        file.create_dataset("segment_to_agglomerate", data=TABLE.astype(np.uint64), chunks=(64,))
        file.create_dataset("agglomerate_to_segments_offsets", data=np.zeros(3, np.uint64))
    return {
        "array": TABLE,
        "npy": folder / "dense.npy",
        "short npy": folder / "dense16.npy",
        "swapped npy": folder / "dense-swapped.npy",
        "agglomerates": folder / "view.hdf5",
    }


# ----------------------------------------------------------------------------- equal to numpy


@pytest.mark.long
@pytest.mark.parametrize(("default", "rows"), [("keep", 2), ("zero", 1 << 20)])
def test_pairs_are_accepted_in_every_form(dataset, tmp_path, default, rows):
    expected = mapped(labels(), PAIRS, default)
    with limited(rows_of_ids=rows):
        for number, (name, mapping) in enumerate(forms(tmp_path).items()):
            wkwdask.remap(
                dataset / "seg" / "1", dataset / f"m{number}" / "1", mapping, default=default
            )
            np.testing.assert_array_equal(
                result(dataset / f"m{number}" / "1"), expected, err_msg=name
            )
            layer = layer_of(dataset, f"m{number}")
            assert (layer["category"], layer["elementClass"], layer["largestSegmentId"]) == (
                "segmentation",
                "uint32",
                expected.max(),
            )


@pytest.mark.parametrize(("default", "rows"), [("zero", 50), ("keep", 1 << 20)])
def test_tables_of_all_ids_are_accepted_in_every_form(dataset, tmp_path, default, rows):
    expected = mapped(labels(), enumerate(TABLE.tolist()), default)
    with limited(rows_of_ids=rows):
        for number, (name, mapping) in enumerate(dense_forms(tmp_path).items()):
            wkwdask.remap(
                dataset / "seg" / "1", dataset / f"m{number}" / "1", mapping, default=default
            )
            np.testing.assert_array_equal(
                result(dataset / f"m{number}" / "1"), expected, err_msg=name
            )


def test_ids_may_exceed_32_bits(dataset):
    values = labels(4, "uint64") + np.where(labels(4) > 100, np.uint64(2**63), np.uint64(0))
    wkwdask.write(dataset / "long" / "1", OFFSET, values, **SMALL)
    pairs = {2**63 + 150: 2**64 - 1, 2**63 + 151: 1, 50: 2**40}
    wkwdask.remap(dataset / "long" / "1", dataset / "m" / "1", pairs)
    np.testing.assert_array_equal(result(dataset / "m" / "1"), mapped(values, pairs.items()))


def test_zero_is_mapped_and_absent_files_stay_absent(dataset):
    values = np.zeros((200, 40, 40), np.uint32)
    values[:20], values[190:] = 5, 6
    wkwdask.write(dataset / "sparse" / "1", (0, 0, 0), values, **SMALL)
    wkwdask.remap(dataset / "sparse" / "1", dataset / "same" / "1", {5: 7}, default="zero")
    np.testing.assert_array_equal(result(dataset / "same" / "1"), np.where(values == 5, 7, 0))
    assert wkwdask.info(dataset / "same").layers[0].mags[0].files == 2 * 3 * 3
    wkwdask.remap(dataset / "sparse" / "1", dataset / "named" / "1", {0: 9})
    np.testing.assert_array_equal(result(dataset / "named" / "1"), np.where(values == 0, 9, values))
    wkwdask.remap(dataset / "sparse" / "1", dataset / "none" / "1", {})
    np.testing.assert_array_equal(result(dataset / "none" / "1"), values)


def test_ids_are_stored_in_the_requested_type(dataset):
    report = wkwdask.remap(
        dataset / "seg" / "1", dataset / "m8" / "1", np.arange(300) % 250, dtype="uint8"
    )
    np.testing.assert_array_equal(result(dataset / "m8" / "1"), labels() % 250)
    assert result(dataset / "m8" / "1").dtype == np.uint8
    assert report.mags[0].maximum == 249
    wkwdask.remap(dataset / "seg" / "1", dataset / "m64" / "1", {7: 2**50}, dtype="uint64")
    np.testing.assert_array_equal(result(dataset / "m64" / "1"), mapped(labels(), [(7, 2**50)]))
    with pytest.raises(
        ValueError,
        match=(
            r"mapping: contains id 1125899906842624, which "
            r"uint32 cannot hold: set another dtype="
        ),
    ):
        wkwdask.remap(dataset / "seg" / "1", dataset / "no" / "1", {7: 2**50})
    with pytest.raises(ValueError, match=r"id \d+ is not in the mapping, and uint8 cannot hold it"):
        wkwdask.remap(dataset / "seg" / "1", dataset / "no" / "1", {7: 3}, dtype="uint8")
    assert not (dataset / "no" / "1").exists()


def test_where_restricts_the_mapping_to_a_box(dataset):
    low, size = (20, 19, 11), (30, 22, 17)
    wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", PAIRS, where=(low, np.add(low, size)))
    inside = tuple(slice(a - o, a - o + n) for a, o, n in zip(low, OFFSET, size, strict=True))
    expected = np.zeros(SHAPE, np.uint64)
    expected[inside] = mapped(labels(), PAIRS)[inside]
    np.testing.assert_array_equal(result(dataset / "m" / "1"), expected)


# ----------------------------------------------------------------------------- merger mode


def nml(path, trees):
    nodes = iter(range(1, 10_000))
    things = "".join(
        f'<thing id="{n}" name="t"><nodes>'
        + "".join(
            f'<node id="{next(nodes)}" x="{x}" y="{y}" z="{z}" radius="1"/>' for x, y, z in tree
        )
        + "</nodes><edges/></thing>"
        for n, tree in enumerate(trees, 1)
    )
    path.write_text(
        '<?xml version="1.0"?><things><parameters><editPosition x="1" y="2" '
        f'z="3"/></parameters>{things}<comments/></things>'
    )
    return path


def test_trees_of_merger_mode_merge_their_segments(dataset, tmp_path):
    array = labels()
    random = np.random.default_rng(2)
    trees = [random.integers(0, SHAPE, (5, 3)) for _ in range(12)]
    trees[5] = np.concatenate([trees[5], trees[0][:1], trees[9][-1:]])  # three trees share segments
    groups = [{int(array[tuple(node)]) for node in tree} - {0} for tree in trees]
    merged = True
    while merged:  # the plainest way to close the merges
        merged = False
        for a in range(len(groups)):
            for b in range(a):
                if groups[a] and groups[a] & groups[b]:
                    groups[b], groups[a], merged = groups[a] | groups[b], set(), True
    pairs = [(segment, min(group)) for group in groups for segment in group]
    outside = [np.array([[5000, 3, 3]]) - OFFSET, np.array([[0, 0, 0]]) - OFFSET]
    path = nml(tmp_path / "a.nml", [tree + np.array(OFFSET) for tree in (*trees, *outside)])
    report = wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", path)
    np.testing.assert_array_equal(result(dataset / "m" / "1"), mapped(array, pairs))
    on_zero = sum(int(array[tuple(node)] == 0) for tree in trees for node in tree)
    assert f"{2 + on_zero} of {sum(map(len, trees)) + 2} nodes lie on no segment" in report.note
    wkwdask.remap(dataset / "seg" / "1", dataset / "only" / "1", path, default="zero")
    np.testing.assert_array_equal(result(dataset / "only" / "1"), mapped(array, pairs, "zero"))


def test_nodes_are_in_voxels_of_mag_1(dataset, tmp_path):
    coarse = labels(5)
    wkwdask.write(dataset / "coarse" / "4-4-2", (3, 2, 1), coarse, **SMALL)
    path = nml(
        tmp_path / "a.nml", [[(4 * 13 + 3.9, 4 * 12 + 0.5, 2 * 11 + 1), (4 * 43, 4 * 32, 2 * 21)]]
    )
    a, b = sorted((int(coarse[10, 10, 10]), int(coarse[40, 30, 20])))
    wkwdask.remap(dataset / "coarse" / "4-4-2", dataset / "m" / "4-4-2", path)
    np.testing.assert_array_equal(
        wkwdask.read(dataset / "m" / "4-4-2")[0], mapped(coarse, [(b, a)])
    )


# ----------------------------------------------------------------------------- malformed mappings


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff7,3\n8,1\n",
        "\ufeffold,new\r\n7,3\r\n8,1\r\n",
        '"7","3"\n"8","1"\n',
        "+7, 3\n 8 ,1",
        ",0\n7,3\n8,1\n",
        "7,3\n8,1\n7,3\n",
    ],
    ids=["mark", "mark-header", "quotes", "spaces", "series", "again"],
)
def test_common_forms_of_csv_are_accepted(dataset, tmp_path, text):
    """No form loses its first line."""
    (tmp_path / "map.csv").write_bytes(text.encode())
    wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", tmp_path / "map.csv")
    np.testing.assert_array_equal(result(dataset / "m" / "1"), mapped(labels(), [(7, 3), (8, 1)]))


def test_malformed_mappings_are_refused(dataset, tmp_path):
    def written(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    np.save(tmp_path / "float.npy", np.zeros(3))
    np.save(tmp_path / "wide.npy", np.zeros((3, 3), int))
    np.save(tmp_path / "negative.npy", np.array([0, 5, -3]))
    np.save(tmp_path / "negative-pairs.npy", np.array([[0, 5], [4, -3]]))
    pq.write_table(pa.table({"a": [1], "b": [2], "c": [3]}), tmp_path / "three.parquet")
    pq.write_table(pa.table({"a": [1, 2], "b": [2, None]}), tmp_path / "null.parquet")
    pq.write_table(pa.table({"a": [1, 2], "b": [2, -1]}), tmp_path / "negative.parquet")
    with (tmp_path / "archive.npy").open("wb") as file:
        np.savez(file, np.zeros((3, 2), int))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["data"] = np.zeros((3, 3))
    cases = [
        (
            ValueError,
            "mapping: row 3: id 7 becomes 5, but 3 in row 1",
            np.array([[7, 3], [8, 1], [7, 5]]),
        ),
        (
            ValueError,
            r"a\.csv: line 4: id 7 becomes 5, but 3 in line 2",
            written("a.csv", "old,new\n7,3\n8,1\n7,5\n"),
        ),
        (
            FormatError,
            r"b\.csv: line 2: found '8,-1', expected two ids",
            written("b.csv", "7,3\n8,-1\n"),
        ),
        (
            FormatError,
            r"c\.csv: line 3: found '8,1.5', expected two ids",
            written("c.csv", "a,b\n7,3\n8,1.5\n"),
        ),
        (FormatError, r"d\.csv: line 2: found '8', expected two ids", written("d.csv", "7,3\n8\n")),
        (
            FormatError,
            r"e\.csv: line 1: found '7,3,4', expected two ids",
            written("e.csv", "7,3,4\n8,3,4\n"),
        ),
        (
            FormatError,
            r"f\.csv: line 2: found '8,18446744073709551616'",
            written("f.csv", f"7,3\n8,{2**64}\n"),
        ),
        (
            FormatError,
            r"g\.csv: line 2: found '', expected two ids",
            written("g.csv", "7,3\n\n8,1\n"),
        ),
        (FormatError, r"h\.csv: line 2: found '8,abc'", written("h.csv", "7,3\n8,abc\n")),
        *(
            (
                FormatError,
                rf"first{n}\.csv: line 1: found '{line}', expected two ids",
                written(f"first{n}.csv", f"{line}\n8,1\n"),
            )
            for n, line in enumerate(
                ["7.0,3", "1.5,3", "7,", "7,nan", "7,3x", "7,True", "1e1,3", "-7,3"]
            )
        ),
        (
            FormatError,
            r"exponent\.csv: line 2: found '1e1,3'",
            written("exponent.csv", "7,3\n1e1,3\n"),
        ),
        (
            FormatError,
            r"true\.csv: line 2: found '8,True'",
            written("true.csv", "old,new\n8,True\n"),
        ),
        (FormatError, r"empty\.npy: not readable as \.npy file", written("empty.npy", "")),
        (FormatError, r"archive\.npy: not readable as \.npy file", tmp_path / "archive.npy"),
        (
            FormatError,
            r"nan\.nml: node 1 lies at nan, 1, 2",
            written(
                "nan.nml",
                '<things><thing><nodes><node x="nan" y="1" z="2"/></nodes></thing></things>',
            ),
        ),
        (FormatError, r"float\.npy: holds float64 of shape \(3,\)", tmp_path / "float.npy"),
        (FormatError, r"wide\.npy: holds int64 of shape \(3, 3\)", tmp_path / "wide.npy"),
        (FormatError, r"x\.npy: not readable as \.npy file", written("x.npy", "nothing")),
        (
            ValueError,
            r"negative\.npy: id 2 becomes -3, expected no negative id",
            tmp_path / "negative.npy",
        ),
        (
            ValueError,
            r"negative-pairs\.npy: not readable as mapping: rows 1 to 2: -3 is not an id",
            tmp_path / "negative-pairs.npy",
        ),
        (
            FormatError,
            r"three\.parquet: has 3 columns \(a, b, c\), expected two",
            tmp_path / "three.parquet",
        ),
        (FormatError, r"null\.parquet: row 2: column b is empty", tmp_path / "null.parquet"),
        (
            ValueError,
            r"negative\.parquet: column b, rows 1 to 2: -1 is not an id",
            tmp_path / "negative.parquet",
        ),
        (
            FormatError,
            r"x\.parquet: not readable as Parquet file",
            written("x.parquet", "nothing at all in here"),
        ),
        (FormatError, r"x\.hdf5: not readable as HDF5 file", written("x.hdf5", "nothing")),
        (
            FormatError,
            (
                r"other\.h5: expected a list of integers segment_to_agglomerate, as in agglomerate "
                r"files; the file contains data"
            ),
            tmp_path / "other.h5",
        ),
        (FormatError, r"x\.nml: not readable as NML", written("x.nml", "nothing")),
        (FormatError, r"y\.nml: the root element is <html>", written("y.nml", "<html/>")),
        (
            FormatError,
            r"z\.nml: .* NML: KeyError: 'z', in node 1",
            written("z.nml", '<things><thing><nodes><node x="1" y="2"/></nodes></thing></things>'),
        ),
        (UnsupportedError, r"x\.txt: a mapping is read from", written("x.txt", "1,2")),
        (MissingError, "no such file", tmp_path / "absent.csv"),
        (MissingError, "no such file", tmp_path / "absent.nml"),
        (ValueError, "values of the mapping: -1 is not an id", {3: -1}),
        (ValueError, "ids of the mapping: 18446744073709551616 is not an id", {2**64: 1}),
        (TypeError, "values of the mapping: holds float64, expected whole numbers", {3: 1.5}),
        (TypeError, "a mapping is a dict", [[1, 2], [3, 4]]),
        (TypeError, r"a mapping is a dict.* got ndarray of shape \(2, 3\)", np.zeros((2, 3), int)),
        (ValueError, "expected two lists of one length", ([1, 2, 3], [4, 5])),
    ]
    for error, match, mapping in cases:
        with pytest.raises(error, match=match):
            wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", mapping)
        assert not (dataset / "m" / "1").exists()
        assert not list(dataset.rglob(".wkwdask-job-*")), mapping


@pytest.mark.parametrize("rows", [1, 3, 1 << 20])
def test_contradictions_far_apart_are_found(dataset, tmp_path, rows):
    random = np.random.default_rng(5)
    keys = random.permutation(1000).astype(np.uint64)
    pairs = np.stack([keys, keys // 3], axis=1)
    path = csv(tmp_path / "a.csv", [*pairs.tolist(), pairs[17].tolist(), (int(pairs[30, 0]), 4444)])
    message = rf"a\.csv: line 1002: id {pairs[30, 0]} becomes 4444, but {pairs[30, 1]} in line 31"
    with limited(rows_of_ids=rows * 100), pytest.raises(ValueError, match=message):
        wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", path)
    assert not list(dataset.rglob(".wkwdask-job-*"))


@HEAVY
@given(st.integers(1, 3000), st.integers(1, 400), st.integers(0, 99))
def test_mappings_larger_than_memory_are_sorted_in_files(tmp_path_factory, count, rows, seed):
    folder = tmp_path_factory.mktemp("sorted")
    random = np.random.default_rng(seed)
    keys = random.integers(0, random.choice([50, 2000, 2**62]), count).astype(np.uint64)
    values = (keys * np.uint64(7)) % np.uint64(1001)
    ids = np.append(
        random.choice(keys, 300), random.integers(0, 2**62, 212).astype(np.uint64)
    ).reshape(8, 8, 8)
    wkwdask.write(folder / "seg" / "1", (0, 0, 0), ids, **SMALL)
    with limited(rows_of_ids=rows):
        wkwdask.remap(
            folder / "seg" / "1",
            folder / "m" / "1",
            csv(folder / "a.csv", zip(keys, values, strict=True)),
        )
    place = np.searchsorted(known := np.unique(keys), ids).clip(max=len(known) - 1)
    np.testing.assert_array_equal(
        wkwdask.read(folder / "m" / "1", ((0, 0, 0), (8, 8, 8)))[0],
        np.where(known[place] == ids, known[place] * np.uint64(7) % np.uint64(1001), ids),
    )


# ----------------------------------------------------------------------------- interruptions


class StopError(Exception):
    """The end of a run."""


def stored(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.wkw"))
    }


def test_an_interrupted_run_is_resumed_with_the_same_mapping_only(dataset, tmp_path):
    wkwdask.remap(dataset / "seg" / "1", dataset / "once" / "1", PAIRS)
    path = csv(tmp_path / "a.csv", PAIRS)
    log = tmp_path / "log"
    with pytest.raises(StopError), stopping(log, 9, StopError()):
        wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", path)
    with pytest.raises(ResumeError, match="mapping was"):
        wkwdask.remap(
            dataset / "seg" / "1", dataset / "m" / "1", csv(tmp_path / "b.csv", PAIRS[:-2])
        )
    with stopping(log, 10_000, StopError()):
        report = wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", path)
    begun = [line for line in log.read_text().splitlines() if line.startswith("begin")]
    assert len(begun) == len(set(begun))
    assert "9 tasks had been finished before" in report.note
    assert stored(dataset / "m") == stored(dataset / "once")
    with pytest.raises(ExistsError):
        wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", path)
    assert (
        "nothing to do"
        in wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", path, existing="resume").note
    )


def test_a_table_that_changes_during_the_run_is_an_error(dataset, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(300))
    change = before_task(1, lambda: np.save(tmp_path / "a.npy", np.arange(301)))
    with (
        change,
        pytest.raises(IncompleteWriteError, match=r"a\.npy: was changed while ids were mapped"),
    ):
        wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", tmp_path / "a.npy")


def test_a_table_is_identified_by_its_content(dataset, tmp_path):
    """Another file has the same length and time."""
    first, second = np.arange(300)[::-1], np.arange(300)[::-1].copy()
    second[5] = 1
    np.save(tmp_path / "map.npy", first)
    with pytest.raises(StopError), stopping(tmp_path / "log", 5, StopError()):
        wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", tmp_path / "map.npy")
    (tmp_path / "map.npy").rename(tmp_path / "moved.npy")
    os.utime(tmp_path / "moved.npy", (5, 5))
    assert (
        "had been finished before"
        in wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", tmp_path / "moved.npy").note
    )
    np.testing.assert_array_equal(result(dataset / "m" / "1"), first[labels()])
    np.save(tmp_path / "new.npy", second)
    os.utime(tmp_path / "new.npy", (5, 5))
    (tmp_path / "new.npy").replace(tmp_path / "moved.npy")
    wkwdask.remap(
        dataset / "seg" / "1", dataset / "m" / "1", tmp_path / "moved.npy", existing="overwrite"
    )
    np.testing.assert_array_equal(result(dataset / "m" / "1"), second[labels()])


def test_a_second_run_is_refused(dataset):
    refused = []

    def meanwhile():
        with pytest.raises(LockedError):
            wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", {1: 2})
        refused.append(True)

    with before_task(1, meanwhile):
        wkwdask.remap(dataset / "seg" / "1", dataset / "m" / "1", {1: 2})
    assert refused


# ----------------------------------------------------------------------------- dust, compact ids,
# commands


def test_small_segments_are_removed(dataset):
    ids, counts = np.unique(labels(), return_counts=True)
    least = int(np.median(counts))
    report = wkwdask.remove_dust(dataset / "seg" / "1", dataset / "clean" / "1", least)
    np.testing.assert_array_equal(
        result(dataset / "clean" / "1"),
        np.where(np.isin(labels(), ids[counts >= least]), labels(), 0),
    )
    small = int((counts[ids > 0] < least).sum())
    assert report.note == f"{small} of {int((ids > 0).sum())} segments removed"
    assert 0 < small < len(ids)


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npy"])
def test_renumbering_writes_a_mapping_that_repeats_it(dataset, tmp_path, suffix):
    values = labels(3).astype(np.uint64) * np.uint64(10**12)
    wkwdask.write(dataset / "long" / "1", OFFSET, values, **SMALL)
    path = tmp_path / f"ids{suffix}"
    report = wkwdask.renumber(
        dataset / "long" / "1", dataset / "compact" / "1", dtype="uint16", mapping=path
    )
    ids = np.unique(values[values > 0])
    expected = np.where(values > 0, np.searchsorted(ids, values) + 1, 0)
    found = result(dataset / "compact" / "1")
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.uint16
    assert report.note == f"{len(ids)} segments, old and new ids in {path}"
    assert layer_of(dataset, "compact")["largestSegmentId"] == len(ids)
    wkwdask.remap(dataset / "long" / "1", dataset / "again" / "1", path, dtype="uint16")
    assert stored(dataset / "again") == stored(dataset / "compact")
    with pytest.raises(ValueError, match=r"a mapping is written as \.npy"):
        wkwdask.renumber(
            dataset / "long" / "1", dataset / "other" / "1", mapping=tmp_path / "ids.txt"
        )
    for name, text in (("absent/ids.npy", "its folder does not exist"), ("", "is a folder")):
        (tmp_path / "taken.npy").mkdir(exist_ok=True)
        with pytest.raises((MissingError, ExistsError), match=text):
            wkwdask.renumber(
                dataset / "long" / "1",
                dataset / "other" / "1",
                mapping=tmp_path / (name or "taken.npy"),
            )


@pytest.mark.parametrize("verb", ["renumber", "remove_dust"])
def test_a_source_that_changes_after_its_segments_were_counted_is_an_error(
    dataset, monkeypatch, verb
):
    """An id that comes could be the new one of another segment, and a segment that is removed could
    have become large."""
    source, target = dataset / "late" / "1", dataset / "new" / "1"
    wkwdask.write(source, OFFSET, labels().clip(5), **SMALL)
    count = segmentations._count_labels
    arguments = (source, target) if verb == "renumber" else (source, target, 100)

    def count_and_write(*options):
        counted = count(*options)
        wkwdask.to_wkw(np.ones((3, 3, 3), np.uint32), source, region=((20, 20, 20), (23, 23, 23)))
        return counted

    with monkeypatch.context() as late:
        late.setattr(segmentations, "_count_labels", count_and_write)
        with pytest.raises(IncompleteWriteError, match="after its segments had been counted"):
            getattr(wkwdask, verb)(*arguments)
    assert not target.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiscardWarning)
        getattr(wkwdask, verb)(*arguments, existing="restart")
    values = result(source)
    ids, numbers, counts = np.unique(values, return_inverse=True, return_counts=True)
    expected = (
        numbers.reshape(values.shape) + 1
        if verb == "renumber"
        else np.where((counts >= 100)[numbers].reshape(values.shape), values, 0)
    )
    assert ids[0] == 1
    np.testing.assert_array_equal(result(target), expected)


def test_errors_of_dust_and_renumbering_name_the_layer_and_no_mapping(dataset):
    voxels = np.full((9, 9, 9), 300, np.int16)
    voxels[0, 0, :3] = -4
    wkwdask.write(dataset / "signed" / "1", OFFSET, voxels)
    source, target = dataset / "signed" / "1", dataset / "no" / "1"
    for call in (
        lambda: wkwdask.remove_dust(source, target, 10),
        lambda: wkwdask.renumber(source, target),
    ):
        with pytest.raises(ValueError, match=r"signed/1: -4 is not an id, expected 0 to 2\^64 - 1"):
            call()
    with pytest.raises(
        ValueError,
        match=r"id -4 is not removed, and uint8 cannot hold it: set another dtype=\n",
    ):
        wkwdask.remove_dust(source, target, 1, dtype="uint8")
    assert not target.exists()


def test_malformed_calls_are_refused(dataset):
    wkwdask.write(dataset / "float" / "1", OFFSET, np.ones((9, 9, 9), np.float32), **SMALL)
    source, target = dataset / "seg" / "1", dataset / "m" / "1"
    for error, match, call in [
        (
            ValueError,
            "default must be 'keep' or 'zero', got 'drop'",
            lambda: wkwdask.remap(source, target, {}, default="drop"),
        ),
        (
            ValueError,
            "is the source; name another place",
            lambda: wkwdask.remap(source, source, {}, existing="overwrite"),
        ),
        (
            ValueError,
            "min_voxels must be at least 0, got -1",
            lambda: wkwdask.remove_dust(source, target, -1),
        ),
        (
            TypeError,
            "ids are integers, got float32",
            lambda: wkwdask.remap(dataset / "float", target, {}),
        ),
        (
            TypeError,
            "ids are integers, got uint32 to be stored as float32",
            lambda: wkwdask.remap(source, target, {}, dtype="float32"),
        ),
        (MissingError, "absent", lambda: wkwdask.remap(dataset / "absent" / "1", target, {})),
    ]:
        with pytest.raises(error, match=match):
            call()
    assert not (dataset / "m").exists()


def test_commands(dataset, tmp_path):
    path = csv(tmp_path / "a.csv", PAIRS)
    assert (
        run_here(
            "remap", dataset / "seg" / "1", dataset / "m" / "1", path, "--default", "zero"
        ).returncode
        == 0
    )
    np.testing.assert_array_equal(result(dataset / "m" / "1"), mapped(labels(), PAIRS, "zero"))
    done = run_here("dust", dataset / "m" / "1", dataset / "clean" / "1", "--min-voxels", 1)
    assert "0 of 3 segments removed" in done.output
    done = run_here(
        "renumber",
        dataset / "m" / "1",
        dataset / "small" / "1",
        "--dtype",
        "uint8",
        "--mapping",
        tmp_path / "ids.csv",
    )
    assert "3 segments, old and new ids in" in done.output
    ids = np.unique(result(dataset / "m" / "1"))[1:]
    assert (tmp_path / "ids.csv").read_text() == "old,new\n" + "".join(
        f"{old},{new}\n" for new, old in enumerate(ids, 1)
    )
