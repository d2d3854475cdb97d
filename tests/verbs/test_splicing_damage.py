"""Chunks that do not decode are not copied into files that are assembled anew: an error names file,
chunk and byte, and nothing is published."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import dask
import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.errors import FormatError
from wkwdask.formats.opening import open_stored

STEP = 8


@pytest.fixture(autouse=True, scope="module")
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


def voxels():
    random = np.random.default_rng(0)
    return (random.integers(0, 3, (32, 32, 32)) * random.integers(0, 99, (32, 32, 32))).astype(
        np.uint8
    )


@pytest.fixture
def wkw(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    wkwdask.write(
        tmp_path / "ds" / "em" / "1",
        (0, 0, 0),
        voxels(),
        block_len=STEP,
        file_len=2,
        compression="lz4",
        category="color",
    )
    return tmp_path / "ds"


def damage(url, **where):
    """Change the first token of a stored chunk so that its lengths do not add up any more; return
    the file, and a pattern of the chunk."""
    _, array = open_stored(url, mag=1, **where)
    chunk = list(array.layout.chunks(array, (range(1), *[range(4)] * 3)))[5]
    path = array.store.path_of(chunk.path.removeprefix(f"{array.store.url}/"))
    with open(path, "r+b") as file:
        raw = file.read()
        at = chunk.offset + (
            24 if raw[chunk.offset : chunk.offset + 2] == b"\2\1" and "zarr" in str(url) else 0
        )
        file.seek(at)
        file.write(bytes([raw[at] ^ 0xF0]))
    return path, chunk.offset


def expect_error(call, target, path, offset):
    with pytest.raises(FormatError, match=f"{re.escape(path)}: (block|chunk) .*byte {offset}: "):
        call()
    assert not target.exists()


@pytest.mark.needs("zarr")
def test_wkw_to_zarr(wkw, tmp_path):
    where = damage(wkw, layer="em")
    expect_error(
        lambda: wkwdask.convert(wkw, tmp_path / "em.ome.zarr", layer="em"),
        tmp_path / "em.ome.zarr" / "1",
        *where,
    )


@pytest.mark.needs("zarr")
def test_the_command_names_file_block_and_byte(wkw, tmp_path):
    path, offset = damage(wkw, layer="em")
    done = run_here("convert", str(wkw), str(tmp_path / "em.ome.zarr"), "--layer", "em")
    assert done.returncode != 0
    assert path in done.stderr
    assert f"byte {offset}" in done.stderr
    assert "Traceback" not in done.stderr


def test_wkw_to_wkw(wkw, tmp_path):
    """Files are assembled from blocks; files that are copied whole are copied as they are, as cp
    does."""
    path, offset = damage(wkw, layer="em")
    expect_error(
        lambda: wkwdask.rechunk(wkw, tmp_path / "b", file_len=4),
        tmp_path / "b" / "em" / "1",
        path,
        offset,
    )
    wkwdask.copy(wkw, tmp_path / "c")
    assert (tmp_path / "c" / os.path.relpath(path, wkw)).read_bytes() == Path(path).read_bytes()


def test_a_box_of_wkw(wkw, tmp_path):
    where = damage(wkw, layer="em")
    box = (0, 0, 0, 24, 32, 32)
    expect_error(
        lambda: wkwdask.copy(wkw, tmp_path / "b", bounding_box=box, translate=(8, 0, 0)),
        tmp_path / "b" / "em" / "1",
        *where,
    )


@pytest.mark.needs("zarr")
@pytest.mark.filterwarnings("ignore::wkwdask.errors.DiscardWarning")
def test_zarr_to_wkw_and_to_other_shards(wkw, tmp_path):
    wkwdask.convert(wkw, tmp_path / "em.ome.zarr", layer="em")
    shutil.copytree(tmp_path / "em.ome.zarr", tmp_path / "sound.ome.zarr")
    where = damage(tmp_path / "em.ome.zarr")
    expect_error(
        lambda: wkwdask.convert(tmp_path / "em.ome.zarr", tmp_path / "back", layer="em"),
        tmp_path / "back" / "em" / "1",
        *where,
    )
    for name, verb, options in (
        ("a", wkwdask.copy, {}),
        ("b", wkwdask.rechunk, {"shard_shape": (32, 32, 32)}),
    ):
        target = tmp_path / f"{name}.ome.zarr"
        expect_error(
            lambda verb=verb, target=target, options=options: verb(
                tmp_path / "em.ome.zarr", target, **options
            ),
            target / "1",
            *where,
        )
        verb(tmp_path / "sound.ome.zarr", target, existing="restart", **options)
        np.testing.assert_array_equal(wkwdask.open(target, mag=1)[0], voxels())


@pytest.mark.parametrize(
    "target", ["n5://b.n5", pytest.param("zarr://b.ome.zarr", marks=pytest.mark.needs("zarr"))]
)
def test_n5_to_others(wkw, tmp_path, monkeypatch, target):
    """Values of N5 are stored raw, so their number shows damage."""
    monkeypatch.chdir(tmp_path)
    wkwdask.convert(wkw, "n5://a.n5", layer="em", compression="raw", chunk_shape=(STEP,) * 3)
    path = next(
        one
        for one in sorted((tmp_path / "a.n5").rglob("*"))
        if one.is_file() and one.name.isdigit()
    )
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=re.escape(str(path.relative_to(tmp_path)))):
        (wkwdask.copy if target.startswith("n5") else wkwdask.convert)("n5://a.n5", target)


@pytest.mark.parametrize("encoding", ["raw", "compressed_segmentation"])
@pytest.mark.parametrize("box", [None, (0, 0, 0, 2 * STEP, 2 * STEP, 2 * STEP)])
def test_precomputed_to_shards(tmp_path, encoding, box):
    source, target = f"precomputed://{tmp_path}/em", f"precomputed://{tmp_path}/sharded"
    dtype = np.uint8 if encoding == "raw" else np.uint32
    wkwdask.save(
        voxels().astype(dtype),
        source,
        voxel_size=(4, 4, 4),
        encoding=encoding,
        chunk_shape=STEP,
        shard_shape=False,
    )
    chunk = tmp_path / "em" / "4_4_4" / "0-8_8-16_0-8"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(FormatError, match=rf"{chunk}: chunk \(0, 1, 0\): byte 0: .* found"):
        wkwdask.rechunk(source, target, bounding_box=box, chunk_shape=STEP, shard_shape=2 * STEP)
    assert not (tmp_path / "sharded" / "info").exists()


@pytest.mark.needs("zarr")
def test_verify_compares_all_voxels(wkw, tmp_path):
    report = wkwdask.convert(wkw, tmp_path / "a.ome.zarr", layer="em", verify=True)
    assert report.files
    done = run_here("convert", str(wkw), str(tmp_path / "b.ome.zarr"), "--layer", "em", "--verify")
    assert done.returncode == 0, done.stderr
