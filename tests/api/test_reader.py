"""Readers: opened once, and never stale."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

import wkwdask
from wkwdask.formats import open_level

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

FORMATS = [
    pytest.param("wkw", id="wkw"),
    pytest.param("precomputed", id="precomputed"),
    pytest.param("n5", id="n5", marks=pytest.mark.needs("imagecodecs")),
    pytest.param("zarr", id="zarr", marks=pytest.mark.needs("zarr")),
]
SIZE = 48
BOX = ((5, 6, 7), (40, 21, 33))


def voxels_of(value: int, dtype: str = "uint8") -> np.ndarray:
    return np.random.default_rng(value).integers(1, 200, (SIZE, SIZE, SIZE), dtype)


def write(name: str, path: Path, voxels: np.ndarray) -> tuple[str, str]:
    """Write an image of one level; return its URL and that of the level."""
    if name == "wkw":
        dataset = wkwdask.create_dataset(path, (4, 4, 4))
        wkwdask.write(f"{dataset.path}/raw/1", (0, 0, 0), voxels, block_len=16, file_len=1)
        return str(path), f"{path}/raw/1"
    if name == "precomputed":
        wkwdask.to_precomputed(voxels, path, chunk_shape=(16, 16, 16), voxel_size=(4, 4, 4))
        return f"precomputed://{path}", f"precomputed://{path}/4_4_4"
    if name == "n5":
        wkwdask.to_n5(voxels, path / "s0", chunk_shape=(16, 16, 16), voxel_size=(4, 4, 4))
        return f"n5://{path}", f"n5://{path}/s0"
    wkwdask.to_zarr(voxels, path, chunk_shape=(16, 16, 16), voxel_size=(4, 4, 4))
    return f"zarr://{path}", f"zarr://{path}/1"


def age(path: Path) -> None:
    """Make everything in a folder look as if it was written an hour ago."""
    for entry in [path, *path.rglob("*")]:
        status = entry.stat()
        os.utime(entry, ns=(status.st_atime_ns, status.st_mtime_ns - 3_600_000_000_000))


@pytest.fixture
def openings(monkeypatch):
    """URLs of all openings."""
    found, find = [], open_level.find

    def logged(url, **options):
        found.append(url)
        return find(url, **options)

    monkeypatch.setattr(open_level, "find", logged)
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_a_reader_is_like_reading_by_path(name, tmp_path):
    voxels = voxels_of(1)
    url, level = write(name, tmp_path / "image", voxels)
    (x0, y0, z0), (x1, y1, z1) = BOX
    for reader in (wkwdask.reader(url), wkwdask.reader(level), wkwdask.reader(url, mag=1)):
        assert (reader.shape, reader.dtype, reader.mag) == (
            (1, *voxels.shape),
            voxels.dtype,
            wkwdask.Mag(1, 1, 1),
        )
        assert reader.box == wkwdask.BoundingBox((0, 0, 0), (SIZE, SIZE, SIZE))
        assert reader.chunk_shape == (16, 16, 16)
        np.testing.assert_array_equal(reader.read()[0], voxels)
        np.testing.assert_array_equal(reader.read(BOX)[0], voxels[x0:x1, y0:y1, z0:z1])
        many = reader.read_many([BOX, BOX])
        np.testing.assert_array_equal(many[1, 0], voxels[x0:x1, y0:y1, z0:z1])
        assert reader.sample([(1, 2, 3)]).tolist() == [voxels[1, 2, 3]]
        assert "image" in repr(reader)
        assert "uint8" in repr(reader)


def test_unsigned_positions_beyond_int64_are_outside(tmp_path):
    url, _ = write("wkw", tmp_path / "image", voxels_of(1))
    with pytest.raises(wkwdask.BoundsError, match=r"point \[9223372036854775813, 1, 2\] lies"):
        wkwdask.sample(url, np.array([[2**63 + 5, 1, 2]], np.uint64))
    boxes = np.array([[[0, 1, 2], [2**63 + 5, 2, 3]]], np.uint64)
    with pytest.raises(wkwdask.BoundsError, match="a box has more than 63 bits"):
        wkwdask.read_many(url, boxes)


def test_points_far_apart_in_a_huge_volume(tmp_path):
    """There are more chunks between them than 64 bits can number."""
    edge, corner = 1 << 30, (1 << 30) - 8
    url = tmp_path / "huge" / "1"
    wkwdask.create(url, ((0, 0, 0), (edge,) * 3), "uint8", voxel_size=(4, 4, 4), file_len=1)
    region = ((corner,) * 3, (edge,) * 3)
    wkwdask.save(np.arange(8**3).reshape(8, 8, 8).astype(np.uint8), url, region=region)
    points = np.array([[0, 0, 0], [edge - 1, edge - 1, edge - 8], [5, edge - 1, 3], [corner] * 3])
    points = np.concatenate([points, [[corner, corner, corner + 3]]])
    assert wkwdask.sample(url, points).tolist() == [0, 8**3 - 8 - 256, 0, 0, 3]


@pytest.mark.parametrize("name", FORMATS)
def test_unchanged_documents_are_not_read_again(name, tmp_path, openings):
    url, level = write(name, tmp_path / "image", voxels_of(1))
    age(tmp_path)
    reader = wkwdask.reader(url)
    for _ in range(5):
        reader.read(BOX)
    # without a mag, more files than documents decide which mag of a layer is meant
    assert len(openings) == (3 if name == "wkw" else 2)
    del openings[:]
    for path in (level, url) if name != "wkw" else (level,):
        for _ in range(5):
            wkwdask.read(path, BOX)
            wkwdask.read_many(path, [BOX])
            wkwdask.sample(path, [(1, 2, 3)])
    assert len(openings) == (4 if name != "wkw" else 2)


@pytest.mark.parametrize("name", FORMATS)
def test_documents_that_changed_just_now_are_not_trusted(name, tmp_path, openings, monkeypatch):
    monkeypatch.setattr(open_level, "_SETTLED_SECONDS", 3600)
    _, level = write(name, tmp_path / "image", voxels_of(1))
    reader = wkwdask.reader(level)
    for _ in range(3):
        reader.read(BOX)
    assert len(openings) == 4


@pytest.mark.parametrize("name", FORMATS)
def test_a_relative_path_means_another_image_in_another_folder(name, tmp_path, monkeypatch):
    for value, folder in ((1, "first"), (2, "second")):
        _, level = write(name, tmp_path / folder / "image", voxels_of(value))
    age(tmp_path)
    for value, folder in ((1, "first"), (2, "second")):
        monkeypatch.chdir(tmp_path / folder)
        for _ in range(3):
            read = wkwdask.read(level.replace(f"{tmp_path}/second/", ""), BOX)
            np.testing.assert_array_equal(read[0, 0, 0, 0], voxels_of(value)[BOX[0]])


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_replaced_image_is_never_read_by_a_stale_reader(name, dtype, tmp_path):
    url, level = write(name, tmp_path / "image", voxels_of(1))
    other = voxels_of(2, dtype)
    write(name, tmp_path / "other", other)
    age(tmp_path)
    readers = [wkwdask.reader(url), wkwdask.reader(level)]
    for _ in range(3):
        for reader in readers:
            np.testing.assert_array_equal(reader.read()[0], voxels_of(1))
        np.testing.assert_array_equal(
            wkwdask.read(level, ((0, 0, 0), (SIZE,) * 3))[0], voxels_of(1)
        )
    (tmp_path / "image").rename(tmp_path / "old")
    (tmp_path / "other").rename(tmp_path / "image")
    for reader in readers:
        np.testing.assert_array_equal(reader.read(((0, 0, 0), (SIZE,) * 3))[0], other)
        assert reader.dtype == other.dtype
    np.testing.assert_array_equal(wkwdask.read(level, ((0, 0, 0), (SIZE,) * 3))[0], other)
    np.testing.assert_array_equal(wkwdask.read_many(level, [((0, 0, 0), (SIZE,) * 3)])[0, 0], other)
    assert wkwdask.sample(level, [(1, 2, 3)]).tolist() == [other[1, 2, 3]]


@pytest.mark.parametrize("name", FORMATS)
def test_a_removed_image_is_missing(name, tmp_path):
    url, level = write(name, tmp_path / "image", voxels_of(1))
    age(tmp_path)
    reader = wkwdask.reader(url)
    for _ in range(3):
        reader.read(BOX)
        wkwdask.read(level, BOX)
    (tmp_path / "image").rename(tmp_path / "old")
    for read in (lambda: reader.read(BOX), lambda: wkwdask.read(level, BOX)):
        with pytest.raises(wkwdask.MissingError):
            read()
    (tmp_path / "old").rename(tmp_path / "image")
    np.testing.assert_array_equal(reader.read()[0], voxels_of(1))


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("wkw", "datasource-properties.json"),
        ("precomputed", "info"),
        pytest.param("n5", "s0/attributes.json", marks=pytest.mark.needs("imagecodecs")),
        pytest.param("zarr", "zarr.json", marks=pytest.mark.needs("zarr")),
    ],
)
def test_a_document_that_is_rewritten_in_place_is_noticed(name, document, tmp_path):
    _, level = write(name, tmp_path / "image", voxels_of(1))
    age(tmp_path)
    reader = wkwdask.reader(level)
    for _ in range(3):
        reader.read(BOX)
    file = tmp_path / "image" / document
    record = json.loads(file.read_bytes())
    if name == "wkw":
        record["dataLayers"][0]["boundingBox"]["width"] = 16
    elif name == "precomputed":
        record["scales"][0]["voxel_offset"] = [16, 0, 0]
    elif name == "n5":
        record["dimensions"] = [16, SIZE, SIZE]
    else:
        (image,) = record["attributes"]["ome"]["multiscales"]
        image["datasets"][0]["coordinateTransformations"].append(
            {"type": "translation", "translation": [0.0, 0.0, 64.0]}
        )
    file.write_text(json.dumps(record))
    assert reader.box == wkwdask.open(level)._reader.box
    assert reader.box != wkwdask.BoundingBox((0, 0, 0), (SIZE, SIZE, SIZE))


@pytest.mark.parametrize("name", FORMATS[1:])
def test_a_path_means_the_finest_level_and_a_reader_keeps_its_own(name, tmp_path):
    url, _ = write(name, tmp_path / "image", voxels_of(1))
    wkwdask.build_pyramid(url, coarsest=2)
    age(tmp_path)
    reader = wkwdask.reader(url, mag=2)
    finest = wkwdask.reader(url)
    for _ in range(3):
        assert wkwdask.read(url, ((0, 0, 0), (48, 1, 1))).size == 48
        coarse = reader.read()
    assert coarse.shape == (1, 24, 24, 24)
    wkwdask.rm(url, mags=[1])
    with pytest.raises((wkwdask.MissingError, wkwdask.BoundsError)):
        wkwdask.read(url, ((0, 0, 0), (48, 1, 1)))
    np.testing.assert_array_equal(wkwdask.read(url, ((0, 0, 0), (24, 24, 24))), coarse)
    if name == "zarr":  # mags of others count from the finest level
        with pytest.raises(wkwdask.MissingError):
            finest.read(BOX)


@pytest.mark.needs("imagecodecs")
def test_a_finer_level_in_a_group_that_lists_none_is_noticed(tmp_path):
    voxels, group, aside = voxels_of(1), tmp_path / "a.n5", tmp_path / "aside"
    wkwdask.to_n5(voxels, group / "s0", chunk_shape=(16, 16, 16), voxel_size=(4, 4, 4))
    wkwdask.build_pyramid(f"n5://{group}", coarsest=2)
    (group / "attributes.json").unlink(missing_ok=True)
    (group / "s0").rename(aside)
    (group / "s0").mkdir()
    age(tmp_path)
    for _ in range(3):
        assert wkwdask.read(f"n5://{group}").shape == (1, 24, 24, 24)
        wkwdask.read(f"n5://{group}", ((0, 0, 0), (1, 1, 1)))
    for entry in aside.iterdir():
        entry.rename(group / "s0" / entry.name)
    box = ((0, 0, 0), (1, 2, 3))
    np.testing.assert_array_equal(wkwdask.read(f"n5://{group}", box)[0], voxels[:1, :2, :3])


@pytest.mark.parametrize("name", FORMATS)
def test_readers_are_small_to_pickle_and_open_again(name, tmp_path, monkeypatch):
    voxels = voxels_of(1)
    monkeypatch.chdir(tmp_path)
    url, _ = write(name, tmp_path / "image", voxels)
    reader = wkwdask.reader(url.replace(f"{tmp_path}/", ""))
    data = pickle.dumps(reader)
    assert len(data) < 500
    code = (
        "import pickle, sys; reader = pickle.loads(sys.stdin.buffer.read());"
        "print(int(reader.read().astype('u8').sum()), reader.shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=data, capture_output=True, cwd="/", check=True
    )
    assert done.stdout.decode().split(maxsplit=1) == [
        str(voxels.sum(dtype="u8")),
        "(1, 48, 48, 48)\n",
    ]


def _sum_into(reader: wkwdask.Reader, pipe: Connection) -> None:
    pipe.send([int(reader.read(BOX).sum()), int(wkwdask.read(reader.url, BOX).sum())])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_readers_are_safe_in_forked_processes(name, tmp_path):
    _, level = write(name, tmp_path / "image", voxels_of(1))
    age(tmp_path)
    reader = wkwdask.reader(level)
    expected = [int(reader.read(BOX).sum()), int(wkwdask.read(level, BOX).sum())]
    stopped = threading.Event()

    def read_on() -> None:
        while not stopped.is_set():
            reader.read(BOX)
            wkwdask.read(level, BOX)

    busy = threading.Thread(target=read_on)
    busy.start()
    try:
        context = multiprocessing.get_context("fork")
        for _ in range(5):
            ours, theirs = context.Pipe()
            child = context.Process(target=_sum_into, args=(reader, theirs))
            child.start()
            assert ours.poll(60)
            assert ours.recv() == expected
            child.join()
    finally:
        stopped.set()
        busy.join()


@pytest.mark.parametrize("name", FORMATS)
def test_threads_see_one_image_or_the_other_while_it_is_replaced(name, tmp_path):
    images = {}
    for value, folder in ((1, "image"), (2, "other")):
        _, level = write(name, tmp_path / folder, voxels_of(value))
        images[folder] = voxels_of(value)
    age(tmp_path)
    level = level.replace("other", "image")
    reader = wkwdask.reader(level)
    problems, counts, stopped = [], [0] * 3, threading.Event()
    box = ((3, 3, 3), (12, 12, 12))
    valid = {voxels[3:12, 3:12, 3:12].tobytes() for voxels in images.values()}

    def read(number: int) -> None:
        while not stopped.is_set():
            try:
                voxels = reader.read(box) if number else wkwdask.read(level, box)
            except (wkwdask.MissingError, wkwdask.ReplacedError):
                continue  # between two renames
            if np.ascontiguousarray(voxels[0]).tobytes() not in valid:
                problems.append(voxels)
            counts[number] += 1

    threads = [threading.Thread(target=read, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            for path, now in (("image", "old"), ("other", "image"), ("old", "other")):
                (tmp_path / path).rename(tmp_path / now)
            # each read sees at most one replacement
            goal = [count + 2 for count in counts]
            while any(count < wanted for count, wanted in zip(counts, goal, strict=True)):
                assert all(thread.is_alive() for thread in threads)
                stopped.wait(0.001)
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert not problems
    np.testing.assert_array_equal(reader.read()[0], images["image"])
