"""Every format in a zip: verbs that read it, verbs with it as their source, and one error for verbs
that would write into it."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr
from support import toy_format
from verbs.forms import FORMS, VOXEL_SIZE, needs

import wkwdask
from wkwdask.errors import MissingError, UnsupportedError
from wkwdask.formats import registry

VOXELS = np.random.default_rng(4).integers(1, 99, (1, 20, 18, 12)).astype(np.uint32)
OFFSET = (8, 4, 6)
BOX = ((9, 5, 7), (20, 20, 16))


@pytest.fixture(autouse=True)
def _toy_format(monkeypatch):
    monkeypatch.setattr(registry, "_added", [toy_format.FORMAT])


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(
    params=[
        pytest.param(form, marks=needs(form))
        for form in FORMS
        if form.name not in ("ngff-0.4", "ngff-0.6")
    ],
    ids=str,
)
def form(request):
    return request.param


def zip_of(folder, path, compression):
    with zipfile.ZipFile(path, "w", compression) as file:
        for one in sorted(folder.rglob("*")):
            if one.is_file():
                file.write(one, one.relative_to(folder))


def zipped(form, folder, compression=zipfile.ZIP_STORED):
    """An image and its URL in a zip of everything around it."""
    options = (
        {"type": "segmentation"} if form.engine == "precomputed" else {"category": "segmentation"}
    )
    (folder / "stored").mkdir()
    url = form.url(folder / "stored", "image")
    form.save(VOXELS, url, OFFSET, **options)
    zip_of(folder / "stored", folder / "image.zip", compression)
    return url, url.replace(f"{folder}/stored/", f"{folder}/image.zip|zip:")


@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"]
)
def test_a_zip_is_read_as_its_folder(form, tmp_path, compression):
    plain, url = zipped(form, tmp_path, compression)
    array = wkwdask.open(url, mag=1)
    np.testing.assert_array_equal(array, VOXELS)
    np.testing.assert_array_equal(wkwdask.read(url, BOX, mag=1), wkwdask.read(plain, BOX, mag=1))
    np.testing.assert_array_equal(
        wkwdask.sample(url, [OFFSET, (12, 12, 12)], mag=1),
        wkwdask.sample(plain, [OFFSET, (12, 12, 12)], mag=1),
    )
    path = re.sub(r"^\w+://", "", url) + ("/1" if form.engine == "wkw" else "")
    found = xr.open_dataarray(path, engine="wkw" if form.engine == "toy" else form.engine)
    np.testing.assert_array_equal(found.transpose("x", "y", "z"), VOXELS[0])
    assert wkwdask.verify(url).is_sound
    assert wkwdask.diff(url, plain).equal
    wkwdask.info(url)
    assert Path(wkwdask.preview(url, tmp_path / "picture.png", mag=1)).exists()


def test_a_changed_byte_of_a_zip_is_found(form, tmp_path):
    """Also one that decodes to another voxel: the zip has a checksum for each file."""
    plain, url = zipped(form, tmp_path)
    path = tmp_path / "image.zip"
    with zipfile.ZipFile(path) as file:
        chunks = (
            info
            for info in file.infolist()
            if "/." not in info.filename and not info.filename.endswith((".json", "info"))
        )
        member = max(chunks, key=lambda info: info.file_size)
        at = member.header_offset + 30 + len(member.filename) + member.file_size // 2
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    report = wkwdask.verify(url)
    assert not report.is_sound
    assert [
        fault.path.rpartition("|zip:")[2].strip("/")
        for fault in report.faults
        if fault.kind == "file.checksum"
    ] == [member.filename]
    assert wkwdask.verify(plain).is_sound


def test_a_zip_is_the_source_of_a_conversion(form, tmp_path):
    plain, url = zipped(form, tmp_path)
    target = f"n5://{tmp_path}/other.n5/em" if form.engine == "wkw" else f"{tmp_path}/other"
    wkwdask.convert(url, target, voxel_size=None if form.engine != "toy" else VOXEL_SIZE)
    np.testing.assert_array_equal(wkwdask.read(target, BOX, mag=1), wkwdask.read(plain, BOX, mag=1))
    (tmp_path / "copies").mkdir()
    if form.name.startswith("layer-"):  # which only a dataset lists
        wkwdask.create_dataset(tmp_path / "copies" / "dataset", VOXEL_SIZE)
    copied = form.url(tmp_path / "copies", "image")
    wkwdask.copy(url, copied)
    np.testing.assert_array_equal(wkwdask.read(copied, BOX, mag=1), wkwdask.read(plain, BOX, mag=1))


def test_nothing_is_written_into_a_zip(form, tmp_path):
    plain, url = zipped(form, tmp_path)
    before = (tmp_path / "image.zip").read_bytes()
    other = url.replace("image.zip|zip:", "image.zip|zip:new/")
    calls = {
        "pyramid": lambda: wkwdask.build_pyramid(url),
        "copy": lambda: wkwdask.copy(plain, other),
        "save": lambda: form.save(VOXELS, other, OFFSET),
        "convert": lambda: wkwdask.convert(plain, other),
        "rm": lambda: wkwdask.rm(url, mags=[1]),
        "rechunk": lambda: wkwdask.rechunk(
            url,
            chunk_shape=(4, 4, 4),
            **(
                {"shard_shape": (8, 8, 8)}
                if "sharded" in form.name or form.name in ("wkw", "layer-zarr3")
                else {}
            ),
        ),
        "manifest": lambda: wkwdask.write_manifest(url),
    }
    reasons = "a zip is read-only|a zip that exists is not changed|has no datasource-properties"
    for call in calls.values():
        with pytest.raises(UnsupportedError, match=rf"image\.zip.*({reasons})"):
            call()
    assert (tmp_path / "image.zip").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"image.zip", "stored"}


def test_a_dataset_in_a_zip_opens_with_all_its_layers(tmp_path):
    _, url = zipped(FORMS[0], tmp_path)
    dataset = wkwdask.open_dataset(url.removesuffix("/image"))
    assert list(dataset.layers) == ["image"]
    tree = xr.open_datatree(url.removesuffix("/image"), engine="wkw")
    np.testing.assert_array_equal(
        next(iter(tree["image"].leaves)).to_dataset()["image"].transpose("x", "y", "z"), VOXELS[0]
    )


def test_errors_name_the_url_that_works(tmp_path):
    pytest.importorskip("zarr", reason="the extra zarr")
    wkwdask.to_zarr(VOXELS, tmp_path / "stored" / "i.ome.zarr", voxel_size=VOXEL_SIZE)
    zip_of(tmp_path / "stored", tmp_path / "b.zip", zipfile.ZIP_STORED)
    bare, through = f"{tmp_path}/b.zip", f"{tmp_path}/b.zip/i.ome.zarr"
    inside = f"{tmp_path}/b.zip|zip:i.ome.zarr"
    for call in (wkwdask.open, wkwdask.info, lambda url: wkwdask.convert(url, tmp_path / "ds")):
        for url, message in (
            (bare, f"{bare}: no image at the root of the zip; it contains {inside}"),
            (f"n5://{bare}", f"n5://{bare}: no image at the root of the zip; it contains {inside}"),
            (through, f"{through}: is a path in a zip; write {inside}"),
            (f"zarr://{through}", f"zarr://{through}: is a path in a zip; write zarr://{inside}"),
        ):
            with pytest.raises(MissingError, match=f"^{re.escape(message)}$"):
                call(url)
    np.testing.assert_array_equal(wkwdask.open(inside), VOXELS)
