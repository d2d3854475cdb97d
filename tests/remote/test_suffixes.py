"""Chunks of precomputed scales as files with suffixes: cloud-volume writes them, wkwdask writes
into them, and both read them, also from a server."""

from __future__ import annotations

import gzip
import os
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nginx import nginx, nginx_program
from support.proxy import proxy
from support.range_server import range_server

import wkwdask
from wkwdask.store.new_files import RenamedFile

cloudvolume = pytest.importorskip("cloudvolume", reason="writes volumes")
pytest.importorskip("obstore", reason="reads from servers")
SHAPE, CHUNK = (40, 24, 16), (8, 8, 8)
SUFFIXES = {"gzip": ".gz", "br": ".br", "zstd": ".zstd", "xz": ".xz", "bz2": ".bz2", "": ""}
REGION = ((3, 5, 1), (21, 13, 9))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if nginx_program() is None:
        pytest.skip("nginx is absent: apt-get install nginx-light")
    with nginx(tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("nginx")) as running:
        yield running


def write_volume(folder, compress, seed=0):
    """Write a volume with cloud-volume, and return its voxels."""
    voxels = np.random.default_rng(seed).integers(1, 200, SHAPE, np.uint32)
    info = cloudvolume.CloudVolume.create_new_info(
        1,
        "segmentation",
        "uint32",
        "compressed_segmentation",
        (4, 4, 40),
        (0, 0, 0),
        SHAPE,
        chunk_size=CHUNK,
    )
    volume = cloudvolume.CloudVolume(
        f"file://{folder}", info=info, compress=compress, progress=False
    )
    volume.commit_info()
    volume[:, :, :] = voxels
    return voxels


def suffixes_in(folder):
    return {
        os.path.splitext(name)[1]
        for name in os.listdir(folder / "4_4_40")
        if not name.startswith(".")
    }


def part(voxels, box):
    return voxels[tuple(slice(low, high) for low, high in zip(*box, strict=True))]


def write_region(folder, region, values):
    wkwdask.write(
        folder,
        None,
        np.broadcast_to(np.uint32(values), np.subtract(region[1], region[0])),
        region=region,
    )


@pytest.mark.parametrize("compress", SUFFIXES)
def test_a_region_keeps_the_suffix_of_the_scale(server, compress):
    if compress in ("br", "zstd"):
        pytest.importorskip("imagecodecs", reason="compresses")
    folder = server.root / f"region-{compress}"
    voxels = write_volume(folder, compress)
    part(voxels, REGION)[...] += 1000
    write_region(folder, REGION, part(voxels, REGION))
    write_region(folder, ((0, 0, 0), CHUNK), 0)
    voxels[:8, :8, :8] = 0
    assert suffixes_in(folder) == {SUFFIXES[compress]}
    volume = cloudvolume.CloudVolume(f"file://{folder}", progress=False, fill_missing=True)
    np.testing.assert_array_equal(np.asarray(volume[:, :, :])[..., 0], voxels)
    np.testing.assert_array_equal(wkwdask.read(folder)[0], voxels)
    np.testing.assert_array_equal(
        wkwdask.read(f"precomputed://{server.url}/{folder.name}", REGION)[0], part(voxels, REGION)
    )
    np.testing.assert_array_equal(
        wkwdask.read(f"precomputed://{server.url}/{folder.name}")[0], voxels
    )
    report = wkwdask.verify(folder)
    assert not [fault for fault in report.faults if fault.kind != "info.absent"]


@pytest.mark.parametrize("verb", ["update", "repair"])
def test_other_writes_in_place_keep_the_suffix(tmp_path, verb):
    folder = tmp_path / "volume"
    write_volume(folder, "gzip")
    wkwdask.build_pyramid(folder, mags=["2-2-1"])
    finer, coarser = folder / "4_4_40", folder / "8_8_40"
    for path in coarser.iterdir():
        if not path.name.startswith("."):
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    assert {path.suffix for path in finer.iterdir() if not path.name.startswith(".")} == {".gz"}
    if verb == "update":
        write_region(folder, REGION, 5)
        wkwdask.build_pyramid(folder, update=True)
    else:
        (coarser / "0-8_0-8_0-8.gz").write_bytes(b"damaged")
        wkwdask.repair(folder)
    assert {path.suffix for path in coarser.iterdir() if not path.name.startswith(".")} == {".gz"}
    assert wkwdask.verify(folder, pyramid=True).is_sound


@given(st.data())
def test_any_suffixes_in_any_order(server, data):
    """A scale whose chunks have one of two suffixes or are absent, read chunk by chunk in any
    order, as if by a new client."""
    folder = server.root / "mixed"
    shutil.rmtree(folder, ignore_errors=True)
    voxels = write_volume(folder, "")
    names = sorted(name for name in os.listdir(folder / "4_4_40") if not name.startswith("."))
    kinds = data.draw(
        st.lists(st.sampled_from(["", ".gz", None]), min_size=len(names), max_size=len(names))
    )
    for name, kind in zip(names, kinds, strict=True):
        path = folder / "4_4_40" / name
        if kind == ".gz":
            path.with_name(f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        if kind != "":
            path.unlink()
        if kind is None:
            spans = [map(int, span.split("-")) for span in name.split("_")]
            voxels[tuple(slice(*span) for span in spans)] = 0
    fresh = data.draw(st.integers(0, 10**9))
    for name in data.draw(st.permutations(names)):
        box = tuple(zip(*(map(int, span.split("-")) for span in name.split("_")), strict=True))
        np.testing.assert_array_equal(
            wkwdask.read(f"precomputed://{server.url}/fresh-{fresh}/mixed", box)[0],
            part(voxels, box),
        )


def test_all_chunks_have_two_names_where_two_suffixes_were_seen(server):
    folder = server.root / "many"
    voxels = write_volume(folder, "")
    names = sorted(name for name in os.listdir(folder / "4_4_40") if not name.startswith("."))
    for name in names[:-2]:
        (folder / "4_4_40" / name).unlink()
    for name in names[-1:]:
        path = folder / "4_4_40" / name
        path.with_name(f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    url = f"precomputed://{server.url}/many"
    for name in [*names[-2:], *names[:-2], names[-1], names[-2]]:
        box = tuple(zip(*(map(int, span.split("-")) for span in name.split("_")), strict=True))
        expected = part(voxels, box) if name in names[-2:] else 0
        np.testing.assert_array_equal(wkwdask.read(url, box)[0], expected)


def test_a_gzipped_chunk_is_found_after_many_absent_ones_for_one_more_request_each(server):
    folder = server.root / "sparse"
    voxels = write_volume(folder, "")
    names = sorted(name for name in os.listdir(folder / "4_4_40") if not name.startswith("."))
    plain, gzipped, absent = names[0], names[-1], names[1:-1]
    for name in absent:
        (folder / "4_4_40" / name).unlink()
    path = folder / "4_4_40" / gzipped
    path.with_name(f"{gzipped}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    with proxy(server.url) as far:
        for number, name in enumerate([plain, *absent, gzipped]):
            box = tuple(zip(*(map(int, span.split("-")) for span in name.split("_")), strict=True))
            far.clear()
            found = wkwdask.read(f"precomputed://{far.url}/sparse", box)[0]
            np.testing.assert_array_equal(
                found, part(voxels, box) if name in (plain, gzipped) else 0
            )
            chunks = [request.path for request in far.requests if "/4_4_40/" in request.path]
            if number > 8:
                assert [chunk.rpartition("/")[2] for chunk in chunks] == [name, f"{name}.gz"]


def test_the_old_file_stays_until_one_with_another_suffix_is_published(tmp_path, monkeypatch):
    folder = tmp_path / "volume"
    voxels = write_volume(folder, "gzip")
    chunk = folder / "4_4_40" / "0-8_0-8_0-8"
    chunk.write_bytes(gzip.decompress(chunk.with_name(f"{chunk.name}.gz").read_bytes()))
    chunk.with_name(f"{chunk.name}.gz").unlink()

    def fail(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RenamedFile, "publish", fail)
        with pytest.raises(KeyboardInterrupt):
            write_region(folder, ((1, 1, 1), (3, 3, 3)), 1)
    np.testing.assert_array_equal(wkwdask.read(folder)[0], voxels)
    write_region(folder, ((1, 1, 1), (3, 3, 3)), 1)
    voxels[1:3, 1:3, 1:3] = 1
    np.testing.assert_array_equal(wkwdask.read(folder)[0], voxels)
    assert suffixes_in(folder) == {".gz"}


def test_every_suffixed_chunk_of_a_dense_scale_is_found_by_the_first_read(tmp_path):
    """Many threads look for their chunks at once; none may end the search of the others."""
    array = np.random.default_rng(0).integers(1, 200, (1, 40, 40, 40)).astype(np.uint8)
    wkwdask.save(array, f"precomputed://{tmp_path}/em", voxel_size=(4, 4, 4), chunk_shape=(8, 8, 8))
    files = sorted(
        path for path in (tmp_path / "em" / "4_4_4").iterdir() if not path.name.startswith(".")
    )
    assert len(files) == 125
    for path in files[1::2]:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    with range_server(tmp_path) as server:
        for _ in range(3):
            np.testing.assert_array_equal(wkwdask.read(f"precomputed://{server.url}/em"), array)
