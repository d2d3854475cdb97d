"""Sharded meshes equal those in files of their own, fragment by fragment, however they are cut."""

from __future__ import annotations

import json
import tracemalloc
import zlib

import dask
import numpy as np
import pytest
from support.mesh_files import labels_of, read_fragments

import wkwdask
from wkwdask.errors import FormatError
from wkwdask.formats.precomputed import mesh_writer
from wkwdask.formats.precomputed.sharding import Sharding
from wkwdask.geometry import morton
from wkwdask.meshing import fragments, shard_tasks
from wkwdask.meshing.fragments import FragmentFile, FragmentRows, ShardFragments

SHARDING = Sharding(0, 1, 2, "murmurhash3_x86_128", "gzip", "gzip")


def many_labels(dtype=np.uint64):
    """Cubes with ids anywhere, and a long one through many cells."""
    random = np.random.default_rng(5)
    labels = np.zeros((50, 30, 30), dtype)
    for x, y, z in np.ndindex(8, 4, 5):
        labels[6 * x : 6 * x + 5, 7 * y : 7 * y + 5, 6 * z : 6 * z + 5] = random.integers(2**63)
    labels[:, 7:12, 6:11] = 2**53 + 1
    return labels


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_shards_equal_files_of_labels(tmp_path, monkeypatch):
    url, labels = f"precomputed://{tmp_path / 'v'}", many_labels()
    wkwdask.save(labels, url, voxel_size=(8, 8, 20), category="segmentation")
    ids = np.unique(labels[labels > 0]).tolist()
    monkeypatch.setattr(mesh_writer, "_SHARD_LABELS", 20)
    monkeypatch.setattr(mesh_writer, "_MINISHARD_LABELS", 4)
    found = []
    with dask.config.set(scheduler="synchronous"):
        for sharded in (False, True):
            wkwdask.meshes(url, sharded=sharded, cell=12, existing="overwrite")
            found.append({label: [*read_fragments(tmp_path / "v/mesh", label)] for label in ids})
            assert labels_of(tmp_path / "v/mesh") == ids
        info = json.loads((tmp_path / "v/mesh/info").read_bytes())
        shards = {path.name: path.read_bytes() for path in (tmp_path / "v/mesh").glob("*.shard")}
        assert info["sharding"]["shard_bits"] == 3
        assert info["sharding"]["minishard_bits"] == 3
        assert len(shards) == 8
        # many batches of cells, and windows of one fragment
        monkeypatch.setattr(shard_tasks, "_BATCH_NBYTES", 5000)
        monkeypatch.setattr(fragments, "_WINDOW_NBYTES", 1)
        wkwdask.meshes(url, cell=12, existing="overwrite")
    assert shards == {
        path.name: path.read_bytes() for path in (tmp_path / "v/mesh").glob("*.shard")
    }
    for label in ids:
        for a, b in zip(*(each[label] for each in found), strict=True):
            assert a[:2] == b[:2]
            assert (a[2] == b[2]).all()
            assert (a[3] == b[3]).all()


def saved(folder, number, labels, *, size=50):
    """Write a file of fragments, whose bytes tell their label, level and cell."""
    rows = FragmentRows()
    for label in labels:
        for lod in range(2):
            rows.add(label, lod, number >> 3 * lod, f"{label},{lod},{number}".encode().ljust(size))
    rows.write(str(folder), f"sorted{number}", SHARDING)
    return FragmentFile(str(folder), f"sorted{number}", 4)


@pytest.mark.parametrize("window", [1, 60, 10**6])
def test_labels_of_all_files_are_merged(tmp_path, monkeypatch, window):
    monkeypatch.setattr(fragments, "_WINDOW_NBYTES", window)
    files = [saved(tmp_path, 8 * n, range(n, 40 + n)) for n in range(5)]
    seen = []
    for shard in range(4):
        merged, order = ShardFragments(files, SHARDING, shard), []
        for label, levels, data in merged.labels():
            seen.append(label)
            shards, minishards = SHARDING.locate(np.array([label], np.uint64))
            assert int(shards[0]) == shard
            order.append((int(minishards[0]), label))
            numbers = [8 * n for n in range(5) if n <= label < 40 + n]
            expected = [f"{label},{lod},{n}".encode().ljust(50) for lod in (0, 1) for n in numbers]
            assert list(data) == expected
            for lod, level in enumerate(levels):
                assert morton.encode(level.positions).tolist() == [n >> 3 * lod for n in numbers]
        assert order == sorted(order)
        assert merged.num_labels == len(order)
    assert sorted(seen) == list(range(44))


def test_every_damage_is_found(tmp_path):
    file = saved(tmp_path, 3, [5, 6, 2**60], size=12)
    path = tmp_path / "sorted3"
    whole = path.read_bytes()
    file.check()
    for n in range(len(whole)):
        for damaged in (whole[:n], whole[:n] + bytes([whole[n] ^ 4]) + whole[n + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(FormatError):
                file.check()


def test_a_label_of_any_size_is_streamed(tmp_path, monkeypatch):
    """The fragments of a label larger than the memory for it come one by one."""
    monkeypatch.setattr(fragments, "_WINDOW_NBYTES", 1 << 16)
    files = [saved(tmp_path, n, [7], size=1 << 18) for n in range(40)]
    (shard,) = SHARDING.locate(np.array([7], np.uint64))[0].tolist()
    tracemalloc.start()
    checksum = 0
    with mesh_writer.writing_meshes(
        *[str(tmp_path)] * 2, SHARDING, shard, is_sharded=True
    ) as writer:
        tracemalloc.reset_peak()
        for label, _, data in ShardFragments(files, SHARDING, shard).labels():
            writer.add(label, data, b"manifest")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    written = (tmp_path / SHARDING.shard_name(shard)).read_bytes()
    for lod in (0, 1):
        for n in range(40):
            checksum = zlib.crc32(f"7,{lod},{n}".encode().ljust(1 << 18), checksum)
    base = SHARDING.index_nbytes
    assert zlib.crc32(written[base : base + (80 << 18)]) == checksum
    assert peak < 16 << 20 < 80 << 18
