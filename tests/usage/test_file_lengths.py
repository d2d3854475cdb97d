"""Default file lengths fit the box of a mag: small volumes take little space, large ones few
files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import run_here

import wkwdask
from wkwdask import BoundingBox

RANDOM = np.random.default_rng(0)


def voxels(shape, dtype=np.uint8):
    """Incompressible noise."""
    return np.frombuffer(
        RANDOM.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype
    ).reshape(shape)


def stored(folder):
    """Approximate bytes on disk: a file takes whole disk blocks."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in Path(folder).rglob("x*.wkw"))


def file_len(url):
    return wkwdask.info(url).layers[0].mags[0].file_len


def file_lengths(dataset):
    """File lengths of the mags of the only layer, from the JSON and equal to those of the headers
    [blocks]."""
    (layer,) = json.loads((Path(dataset) / "datasource-properties.json").read_text())["dataLayers"]
    lengths = {tuple(mag["mag"]): mag["cubeLength"] // 32 for mag in layer["mags"]}
    assert lengths == {
        mag.mag.factors: mag.file_len for mag in wkwdask.info(dataset).layers[0].mags
    }
    return [lengths[mag] for mag in sorted(lengths)]


@pytest.fixture
def dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    return tmp_path / "ds"


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64])
@pytest.mark.parametrize("compression", ["lz4hc", "lz4", "raw"])
def test_a_small_volume_takes_about_its_own_bytes(dataset, dtype, compression):
    array = voxels((64, 64, 64), dtype)
    report = wkwdask.to_wkw(array, dataset / "x" / "1", compression=compression)
    assert report.nbytes_out < 1.02 * array.nbytes
    np.testing.assert_array_equal(wkwdask.read(dataset / "x" / "1")[0], array)


@given(
    topleft=st.tuples(*[st.integers(0, 200)] * 3),
    size=st.tuples(*[st.integers(1, 70)] * 3),
    block_len=st.sampled_from([8, 16]),
    compression=st.sampled_from(["lz4", "raw"]),
)
@settings(max_examples=8 if settings.get_current_profile_name() == "nightly" else 3)
def test_no_other_length_takes_much_less(tmp_path_factory, topleft, size, block_len, compression):
    folder = tmp_path_factory.mktemp("any")
    array, options = (
        voxels(size),
        {"offset": topleft, "block_len": block_len, "compression": compression},
    )
    wkwdask.to_wkw(array, folder / "auto" / "1", **options)
    nbytes = {
        length: stored(folder / str(length))
        for length in (1, 2, 4, 8, 16)
        if wkwdask.to_wkw(array, folder / f"{length}/1", file_len=length, **options)
    }
    assert stored(folder / "auto") <= min(nbytes.values()) + array.nbytes // (
        8 if compression == "raw" else 128
    ) + 4096 * len(list(folder.rglob("1/z*/y*/x*")))
    np.testing.assert_array_equal(wkwdask.read(folder / "auto" / "1")[0], array)


@pytest.mark.parametrize("compression", ["lz4hc", "raw"])
def test_a_large_volume_has_large_files(tmp_path, compression):
    wkwdask.create(
        tmp_path / "1", ((0, 0, 0), (100_000, 100_000, 100_000)), "uint8", compression=compression
    )
    assert file_len(tmp_path / "1") == 32


def test_an_explicit_length_is_kept(dataset):
    wkwdask.to_wkw(voxels((64, 64, 64)), dataset / "x" / "1", file_len=4)
    assert file_len(dataset / "x" / "1") == 4
    assert run_here("rechunk", dataset / "x" / "1", "--file-len", "8").returncode == 0
    assert file_len(dataset / "x" / "1") == 8


def test_each_mag_of_a_pyramid_has_its_own_length(dataset):
    """Finest mags of 32 blocks are what all other software writes."""
    array = voxels((300, 200, 100))
    wkwdask.to_wkw(array, dataset / "color" / "1", offset=(100, 50, 30), file_len=32)
    plan = run_here("pyramid", dataset, "--dry-run")
    assert (plan.returncode, "files of 128^3 then 64^3 voxels" in plan.stdout) == (0, True)
    report = wkwdask.build_pyramid(dataset, method="mean", coarsest="8")
    assert [
        one.nbytes < 1.3 * array.nbytes / 8**n + 20_000 for n, one in enumerate(report.mags, 1)
    ] == [True] * 3
    assert file_lengths(dataset) == [32, 4, 2, 2]
    voxels_before = {length: wkwdask.read(dataset, mag=length) for length in (2, 4, 8)}
    wkwdask.build_pyramid(dataset, method="mean", coarsest="8", existing="overwrite", file_len=1)
    for length, before in voxels_before.items():
        np.testing.assert_array_equal(wkwdask.read(dataset, mag=length), before)


def test_an_update_and_a_region_keep_the_lengths(dataset):
    wkwdask.to_wkw(voxels((130, 70, 40)), dataset / "color" / "1", offset=(10, 20, 30))
    wkwdask.build_pyramid(dataset, method="mean", coarsest="4")
    before = file_lengths(dataset)
    region = BoundingBox((60, 40, 30), (20, 20, 20))
    wkwdask.to_wkw(voxels(region.size), dataset / "color" / "1", region=region)
    wkwdask.build_pyramid(dataset, coarsest="4", update=True)
    assert file_lengths(dataset) == before
    found = wkwdask.read(dataset, mag=2)
    wkwdask.build_pyramid(dataset, method="mean", coarsest="4", existing="overwrite")
    np.testing.assert_array_equal(wkwdask.read(dataset, mag=2), found)


def test_all_verbs(dataset, tmp_path):
    """Results of a small mag in large files are stored in small ones; a whole copy keeps its
    length."""
    labels = RANDOM.integers(1, 5, (64, 64, 64)).astype(np.uint32)
    source = dataset / "seg" / "1"
    wkwdask.to_wkw(labels, source, file_len=32, category="segmentation")
    wkwdask.copy(source, dataset / "cut" / "1", bounding_box=(0, 0, 0, 40, 40, 32))
    assert file_len(dataset / "cut" / "1") == 2
    np.testing.assert_array_equal(wkwdask.read(dataset / "cut" / "1")[0], labels[:40, :40, :32])
    wkwdask.apply(np.negative, source, dataset / "applied" / "1")
    wkwdask.connected_components(source, dataset / "components" / "1")
    wkwdask.remap(source, dataset / "remapped" / "1", {1: 2})
    wkwdask.convert(source, f"precomputed://{tmp_path}/volume")
    wkwdask.convert(f"precomputed://{tmp_path}/volume", dataset / "converted" / "1")
    np.save(tmp_path / "array.npy", labels)
    plan = run_here("convert", tmp_path / "array.npy", dataset / "imported" / "1", "--dry-run")
    assert (plan.returncode, "shards of 64 x 64 x 64" in plan.stdout) == (0, True)
    wkwdask.convert(tmp_path / "array.npy", dataset / "imported" / "1")
    wkwdask.create(dataset / "created" / "1", ((0, 0, 0), (64, 64, 64)), "uint8")
    assert {
        name: file_len(dataset / name / "1")
        for name in ("applied", "components", "remapped", "converted", "imported", "created")
    } == dict.fromkeys(("applied", "components", "remapped", "converted", "imported", "created"), 2)
    wkwdask.copy(source, dataset / "copied" / "1")
    assert file_len(dataset / "copied" / "1") == 32


def test_finer_mags_have_longer_files(dataset):
    wkwdask.to_wkw(voxels((64, 64, 64)), dataset / "color" / "4")
    wkwdask.upsample(dataset)
    assert [mag.file_len for mag in wkwdask.info(dataset).layers[0].mags] == [8, 4, 2]


def test_an_interrupted_call_resumes(dataset):
    """The length follows from the box, so the same call writes the same files."""
    array = da.from_array(voxels((130, 64, 64)), chunks=(64, 64, 64))

    def fails(block, block_info=None):
        if os.path.exists(dataset / "fail") and block_info[0]["chunk-location"][0] == 2:
            raise RuntimeError("stop here")
        return block

    (dataset / "fail").touch()
    with pytest.raises(Exception, match="stop here"):
        wkwdask.to_wkw(array.map_blocks(fails, dtype=np.uint8), dataset / "color" / "1", token="a")
    (dataset / "fail").unlink()
    wkwdask.to_wkw(
        array.map_blocks(fails, dtype=np.uint8),
        dataset / "color" / "1",
        token="a",
        existing="resume",
    )
    np.testing.assert_array_equal(wkwdask.read(dataset)[0], array.compute())


def test_webknossos_opens_it(dataset):
    webknossos = pytest.importorskip("webknossos")
    array = voxels((100, 70, 50))
    wkwdask.to_wkw(array, dataset / "color" / "1", offset=(30, 20, 10))
    wkwdask.build_pyramid(dataset, method="mean", coarsest="4")
    layer = webknossos.Dataset.open(dataset).get_layer("color")
    for mag, length in zip(("1", "2", "4"), file_lengths(dataset), strict=True):
        view = layer.get_mag(mag)
        np.testing.assert_array_equal(view.read(), wkwdask.read(dataset, mag=mag))
        assert view.info.chunk_shape.to_tuple() == (32, 32, 32)
        assert view.info.shard_shape.to_tuple() == (32 * length,) * 3


@pytest.mark.long
def test_zeros_around_a_small_volume_are_skipped(dataset):
    """In files of 1024^3 around a volume of 50^3, only blocks with voxels are read, decoded and
    encoded."""
    array = voxels((50, 50, 50))
    wkwdask.to_wkw(
        array, dataset / "color" / "1", offset=(1000, 10, 10), file_len=32, compression="lz4"
    )
    report = wkwdask.compress(dataset)
    assert (report.files, report.nbytes_in, report.mags[0].voxels) == (2, array.nbytes, array.size)
    np.testing.assert_array_equal(wkwdask.read(dataset)[0], array)
    assert wkwdask.info(dataset).layers[0].mags[0].compression == "lz4hc"
    assert wkwdask.verify(dataset).is_sound


def test_voxels_outside_the_box_of_a_layer_are_kept(dataset):
    """Both in a block that the box cuts, and far away in the same file."""
    array = np.zeros((300, 40, 40), np.uint8)
    array[:20], array[20:24], array[290:] = 1, 2, 3
    wkwdask.to_wkw(array, dataset / "color" / "1", file_len=32, compression="lz4")
    wkwdask.open_dataset(dataset).set_bounding_box("color", (0, 0, 0, 20, 40, 40))
    assert wkwdask.compress(dataset).mags[0].voxels == 20 * 40 * 40
    assert wkwdask.open(dataset).shape == (1, 20, 40, 40)
    wkwdask.open_dataset(dataset).set_bounding_box("color", (0, 0, 0, 300, 40, 40))
    np.testing.assert_array_equal(wkwdask.read(dataset)[0], array)
