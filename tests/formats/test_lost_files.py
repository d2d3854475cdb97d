"""Files that a job wrote and that are gone: the record of the job reveals them in every format."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

pytest.importorskip("zarr", reason="zarr is not installed")
import zarr

import wkwdask

FORMS = {
    "wkw": ("{}/wkw/1", {"block_len": 8, "file_len": 2}),
    "zarr": ("zarr://{}/image.zarr", {"chunk_shape": (8, 8, 8), "shard_shape": (8, 8, 8)}),
    "zarr-shards": (
        "zarr://{}/image.zarr",
        {"chunk_shape": (8, 8, 8), "shard_shape": (16, 16, 16)},
    ),
    "ngff-0.4": ("zarr://{}/image.zarr", {"chunk_shape": (8, 8, 8), "ngff": "0.4"}),
    "n5": ("n5://{}/image.n5/s0", {"chunk_shape": (8, 8, 8)}),
    "precomputed": (
        "precomputed://{}/volume",
        {"chunk_shape": (8, 8, 8), "shard_shape": (8, 8, 8)},
    ),
    "precomputed-shards": (
        "precomputed://{}/volume",
        {"chunk_shape": (8, 8, 8), "shard_shape": (16, 16, 16)},
    ),
}
SINGLE = ("wkw", "zarr-shards", "precomputed-shards")
"""Forms whose record has one row for each file."""


def voxels():
    array = np.random.default_rng(7).integers(1, 200, (1, 40, 32, 24), np.uint8)
    array[:, :8, :8, :8] = 0
    return array


def data_files(folder):
    """List the data files below a folder."""
    documents = ("info", "provenance", "header.wkw")
    paths = (
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    return [path for path in paths if path.name not in documents and path.suffix != ".json"]


@pytest.fixture(params=FORMS)
def written(request, tmp_path):
    url, options = FORMS[request.param]
    wkwdask.save(voxels(), url.format(tmp_path), voxel_size=(4, 4, 4), **options)
    assert wkwdask.verify(url.format(tmp_path)).is_sound
    return request.param, url.format(tmp_path), data_files(tmp_path)


def test_one_lost_file_is_an_error(written):
    _, url, paths = written
    paths[len(paths) // 2].unlink()
    report = wkwdask.verify(url)
    assert not report.is_sound
    assert report.kinds() == {"file.lost": 1}
    assert len(wkwdask.repair(url).remaining) == 1


def test_files_that_are_all_lost_are_errors(written):
    _, url, paths = written
    for path in paths:
        path.unlink()
    report = wkwdask.verify(url)
    assert not report.is_sound
    assert set(report.kinds()) == {"file.lost", "mag.empty"}


def test_restored_file_is_sound(written, tmp_path):
    _, url, paths = written
    shutil.copyfile(paths[0], tmp_path / ".kept")
    paths[0].unlink()
    shutil.copyfile(tmp_path / ".kept", paths[0])
    assert not wkwdask.verify(url).faults


def test_copy_without_times_is_sound_until_its_files_are_lost(written, tmp_path):
    _, url, _ = written
    copy = tmp_path.with_name(f"{tmp_path.name}-copy")
    shutil.copytree(tmp_path, copy, copy_function=shutil.copyfile)
    url = url.replace(str(tmp_path), str(copy))
    assert not wkwdask.verify(url).faults
    for path in data_files(copy):
        path.unlink()
    assert "file.lost" in wkwdask.verify(url).kinds()


@pytest.mark.parametrize("form", ["zarr", "ngff-0.4"])
def test_file_that_other_software_wrote_is_sound(tmp_path, form):
    url, options = FORMS[form]
    wkwdask.save(voxels(), url.format(tmp_path), voxel_size=(4, 4, 4), **options)
    array = zarr.open_array(tmp_path / "image.zarr" / "1", mode="r+")
    array[:8, 8:16, :8] = np.random.default_rng(3).integers(0, 9, (8, 8, 8))
    report = wkwdask.verify(url.format(tmp_path))
    assert report.is_sound
    assert set(report.kinds()) <= {"file.size_changed"}
    wkwdask.repair(url.format(tmp_path), accept_changes=True)
    assert not wkwdask.verify(url.format(tmp_path)).faults


def test_region_write_updates_the_record(written):
    _, url, _ = written
    wkwdask.save(np.zeros((1, 20, 20, 20), np.uint8), url, region=((0, 0, 0), (20, 20, 20)))
    assert not wkwdask.verify(url).faults


def test_quarantine_updates_the_record(written):
    name, url, paths = written
    paths[-1].write_bytes(paths[-1].read_bytes()[:5])
    wkwdask.repair(url, quarantine=True)
    report = wkwdask.verify(url)
    assert set(report.kinds()) <= {"quarantine", "mag.empty"}, f"{name}: {report}"


@pytest.mark.parametrize("method", [None, "mean"])
def test_lost_file_of_a_coarser_level_is_rebuilt(written, tmp_path, method):
    name, url, before = written
    image = url.removesuffix("/1").removesuffix("/s0")
    wkwdask.build_pyramid(image, mags=["2"], method="mean")
    coarse = sorted({*data_files(tmp_path)} - {*before})
    expected = wkwdask.read(image, mag="2")
    coarse[-1].unlink()
    assert "file.lost" in wkwdask.verify(image).kinds()
    wkwdask.repair(image, method=method)
    assert coarse[-1].exists(), name
    np.testing.assert_array_equal(wkwdask.read(image, mag="2"), expected)
    assert wkwdask.verify(image, pyramid=True).is_sound


def _image_of(url):
    return url.removesuffix("/1").removesuffix("/s0")


def test_finest_level_of_zeros_alone_is_the_default(written, tmp_path):
    _, url, before = written
    image = _image_of(url)
    wkwdask.build_pyramid(image, mags=["2"], method="mean")
    wkwdask.save(np.zeros_like(voxels()), url, region=((0, 0, 0), voxels().shape[1:]))
    assert not any(path.exists() for path in before)
    array = wkwdask.open(image)
    assert array.shape == voxels().shape
    assert not array.any().compute(scheduler="synchronous")
    wkwdask.build_pyramid(image, mags=["2"], method="mean", update=True)
    assert not wkwdask.read(image, mag="2").any()


@pytest.mark.parametrize("form", FORMS)
def test_volume_of_zeros_alone_is_open_at_its_finest_level(tmp_path, form):
    url, options = FORMS[form]
    wkwdask.save(np.zeros_like(voxels()), url.format(tmp_path), voxel_size=(4, 4, 4), **options)
    image = _image_of(url.format(tmp_path))
    assert wkwdask.open(image).shape == voxels().shape
    wkwdask.build_pyramid(image, mags=["2"], method="mean")
    assert wkwdask.open(image).shape == voxels().shape


@pytest.mark.parametrize("fill_value", [0, 7])
def test_finest_array_without_chunks_is_the_default(tmp_path, fill_value):
    """As zarr-python stores a level whose voxels all have the fill value."""
    group = zarr.open_group(tmp_path / "image.zarr", mode="w", zarr_format=3)
    datasets = []
    for number, n in enumerate((16, 8)):
        array = group.create_array(
            str(number), shape=(n,) * 3, chunks=(8,) * 3, dtype="uint8", fill_value=fill_value
        )
        if number:
            array[...] = 3
        datasets.append(
            {
                "path": str(number),
                "coordinateTransformations": [{"type": "scale", "scale": [4.0 * 2**number] * 3}],
            }
        )
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    assert (
        wkwdask.open(tmp_path / "image.zarr").compute(scheduler="synchronous")
        == np.full((1, 16, 16, 16), fill_value)
    ).all()


def test_file_of_another_size_is_a_warning(written, tmp_path):
    """Sound chunks that another process wrote, which knows nothing of the record."""
    _, url, _ = written
    (record,) = tmp_path.rglob(".wkwdask-files.npy")
    kept, status = record.read_bytes(), record.stat()
    wkwdask.save(np.ones((1, 16, 16, 16), np.uint8), url, region=((16, 0, 0), (32, 16, 16)))
    record.write_bytes(kept)
    os.utime(record, ns=(status.st_atime_ns, status.st_mtime_ns))
    report = wkwdask.verify(url)
    assert report.is_sound
    assert report.kinds().keys() == {"file.size_changed"}
    assert {action.verb for action in wkwdask.repair(url, accept_changes=True).actions} == {
        "accept"
    }
    assert not wkwdask.verify(url).faults


def test_damaged_record_does_not_hinder_the_repair(written, tmp_path):
    _, url, paths = written
    (record,) = tmp_path.rglob(".wkwdask-files.npy")
    os.truncate(record, 40)
    os.truncate(paths[0], 3)
    assert "record.broken" in wkwdask.verify(url).kinds()
    assert wkwdask.repair(url, quarantine=True, salvage=True).is_sound
    assert not record.exists()
    assert not [fault for fault in wkwdask.verify(url).faults if fault.severity != "note"]


@pytest.mark.parametrize("software", ["zarr-python", "tensorstore"])
@pytest.mark.parametrize("form", ["zarr", "zarr-shards"])
def test_chunks_that_other_software_removed_are_accepted(tmp_path, form, software):
    url, options = FORMS[form]
    wkwdask.save(voxels(), url.format(tmp_path), voxel_size=(4, 4, 4), **options)
    folder = tmp_path / "image.zarr" / "1"
    if software == "zarr-python":
        zarr.open_array(folder, mode="r+")[:16, :16, :16] = 0
    else:
        tensorstore = pytest.importorskip(
            "tensorstore", reason="tensorstore, of the extra oracles, is not installed"
        )
        tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}
        ).result()[:16, :16, :16].write(0).result()
    report = wkwdask.verify(url.format(tmp_path))
    assert report.kinds().keys() == {"file.lost"}
    assert "other software removed it because its voxels became background" in str(report)
    assert not wkwdask.repair(url.format(tmp_path)).is_sound
    accepted = wkwdask.repair(url.format(tmp_path), accept_changes=True)
    assert {action.verb for action in accepted.actions} == {"accept"}
    assert "its voxels stay ZEROS; the record forgets it" in str(accepted)
    assert not wkwdask.verify(url.format(tmp_path)).faults
    (lost,) = (path for path in data_files(tmp_path)[:1])
    lost.unlink()
    assert "file.lost" in wkwdask.verify(url.format(tmp_path)).kinds()


def test_coarser_level_is_rebuilt_after_changes_are_accepted(written):
    _, url, before = written
    image = _image_of(url)
    wkwdask.build_pyramid(image, mags=["2"], method="mean")
    before[0].unlink()
    wkwdask.repair(image, accept_changes=True)
    assert wkwdask.verify(image).is_sound
    wkwdask.build_pyramid(image, mags=["2"], method="mean", update=True)
    assert wkwdask.verify(image, pyramid=True).is_sound
