"""OME-NGFF in one file: ``.ozx``, written by convert and read by others."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
from support.commands import run_here
from support.inner_box import inside

import wkwdask
from wkwdask.errors import (
    CorruptError,
    DiscardWarning,
    ExistsError,
    MissingError,
    ResumeError,
    UnsupportedError,
)
from wkwdask.formats.zarr import single_file

pytest.importorskip("zarr", reason="the codecs of zarr")

VOXELS = np.random.default_rng(9).integers(1, 200, (1, 20, 18, 12)).astype(np.uint16)
CHUNKS = {"chunk_shape": (4, 4, 4), "shard_shape": (8, 8, 8)}


@pytest.fixture
def dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 8))
    wkwdask.to_wkw(VOXELS, tmp_path / "ds/color/1", block_len=8, file_len=1)
    wkwdask.build_pyramid(tmp_path / "ds", layer="color")
    return tmp_path / "ds"


def test_a_layer_becomes_one_file_that_others_read(dataset, tmp_path):
    report = wkwdask.convert(dataset, tmp_path / "em.ozx", layer="color", **CHUNKS)
    assert [mag.path for mag in report.mags][:2] == [
        f"{tmp_path}/em.ozx|zip:/1",
        f"{tmp_path}/em.ozx|zip:/2-2-1",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds", "em.ozx"]
    with zipfile.ZipFile(tmp_path / "em.ozx") as file:
        assert file.testzip() is None
        names = file.namelist()
        assert names[:3] == ["zarr.json", "1/zarr.json", "2-2-1/zarr.json"]
        assert not any(name.endswith("zarr.json") for name in names[names.index("1/c/0/0/0") :])
        assert {info.compress_type for info in file.infolist()} == {zipfile.ZIP_STORED}
        assert json.loads(file.comment) == {
            "ome": {"version": "0.5", "zipFile": {"centralDirectory": {"jsonFirst": True}}}
        }
    assert wkwdask.diff(dataset, tmp_path / "em.ozx", layer="color").equal
    zarr = pytest.importorskip("zarr", reason="the extra zarr")
    with zarr.storage.ZipStore(tmp_path / "em.ozx", mode="r") as store:
        array = zarr.open_group(store, mode="r")["1"]
        np.testing.assert_array_equal(inside(array[...], array.attrs).T, VOXELS[0])


def test_levels_of_another_interrupted_call_are_left_out(dataset, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(single_file, "write_zip", interrupt)
        with pytest.raises(KeyboardInterrupt):
            wkwdask.convert(dataset, tmp_path / "em.ozx", layer="color", mag="2-2-1", **CHUNKS)
    options = {"layer": "color", "mag": "1", **CHUNKS}
    for existing in ("error", "overwrite"):
        with pytest.raises(ResumeError, match=r"mag was 2-2-1, is 1; .*\"restart\" starts over"):
            wkwdask.convert(dataset, tmp_path / "em.ozx", existing=existing, **options)
    with pytest.warns(DiscardWarning):
        wkwdask.convert(dataset, tmp_path / "em.ozx", existing="restart", **options)
    with zipfile.ZipFile(tmp_path / "em.ozx") as file:
        assert {name.partition("/")[0] for name in file.namelist()} == {"zarr.json", "1"}
        assert [
            entry["path"]
            for entry in json.loads(file.read("zarr.json"))["attributes"]["ome"]["multiscales"][0][
                "datasets"
            ]
        ] == ["1"]


def test_a_note_names_the_levels_in_the_zip_once(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", voxel_size=(4, 4, 4))
    for mag in ("1", "2"):
        wkwdask.save(np.zeros((40, 40, 40), np.uint8), tmp_path / "ds" / "em" / mag)
    report = wkwdask.convert(tmp_path / "ds", tmp_path / "em.ozx", **CHUNKS)
    notes = report.note.split("; ")
    assert f"{tmp_path}/em.ozx|zip:/1 is all zero, as {tmp_path}/ds/em/1 is" in notes
    assert len(set(notes)) == len(notes)
    assert "wkwdask-job" not in report.note


def _attributes(path):
    with zipfile.ZipFile(path) as file:
        return json.loads(file.read("1/zarr.json"))["attributes"]


def test_tensorstore_reads_it(dataset, tmp_path):
    tensorstore = pytest.importorskip("tensorstore", reason="tensorstore is not installed")
    wkwdask.convert(dataset, tmp_path / "em.ozx", layer="color", **CHUNKS)
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "zip", "base": f"file://{tmp_path}/em.ozx", "path": "1/"},
    }
    np.testing.assert_array_equal(
        inside(tensorstore.open(spec).result().read().result(), _attributes(tmp_path / "em.ozx")).T,
        VOXELS[0],
    )


@pytest.mark.parametrize("version", ["0.5", "0.6"])
def test_ngff_zarr_reads_it_and_is_read(dataset, tmp_path, version):
    ngff_zarr = pytest.importorskip("ngff_zarr", reason="ngff-zarr is not installed")
    wkwdask.convert(dataset, tmp_path / "em.ozx", layer="color", ngff=version, **CHUNKS)
    found = ngff_zarr.from_ngff_zarr(str(tmp_path / "em.ozx"), validate=True)
    attributes = _attributes(tmp_path / "em.ozx")
    np.testing.assert_array_equal(inside(found.images[0].data, attributes).T, VOXELS[0])
    ngff_zarr.to_ngff_zarr(str(tmp_path / "other.ozx"), found, version=version)
    # without the attribute, the box of a level is its array
    other = np.asarray(wkwdask.open(tmp_path / "other.ozx", mag=1))
    np.testing.assert_array_equal(inside(other[0].T, attributes).T, VOXELS[0])


def test_the_files_of_an_image_are_zipped_as_they_are(dataset, tmp_path):
    """With labels and foreign files, without records of jobs; equal folders become equal zips."""
    image = tmp_path / "em.ome.zarr"
    wkwdask.convert(dataset, image, layer="color", **CHUNKS)
    wkwdask.to_zarr(
        VOXELS.astype(np.uint32),
        image / "labels/cells",
        voxel_size=(4, 4, 8),
        category="segmentation",
        **CHUNKS,
    )
    (image / "OME").mkdir()
    (image / "OME/METADATA.ome.xml").write_text("<OME/>")
    for name in ("a.ozx", "b.ozx"):
        assert "unchanged" in wkwdask.convert(image, tmp_path / name).note
    assert (tmp_path / "a.ozx").read_bytes() == (tmp_path / "b.ozx").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.ozx") as file:
        assert {name: file.read(name) for name in file.namelist()} == {
            str(path.relative_to(image)): path.read_bytes()
            for path in image.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        }
    np.testing.assert_array_equal(wkwdask.open(f"{tmp_path}/a.ozx|zip:labels/cells|zarr3:"), VOXELS)
    wkwdask.convert(tmp_path / "a.ozx", tmp_path / "c.ozx")  # also from a zip
    assert (tmp_path / "c.ozx").read_bytes() == (tmp_path / "a.ozx").read_bytes()


def test_parts_and_other_storage_are_converted(dataset, tmp_path):
    wkwdask.convert(dataset, tmp_path / "em.ome.zarr", layer="color", **CHUNKS)
    wkwdask.convert(
        tmp_path / "em.ome.zarr",
        tmp_path / "part.ozx",
        bounding_box=(4, 4, 2, 8, 8, 8),
        compression="gzip",
    )
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "part.ozx", ((4, 4, 2), (12, 12, 10)), mag=1),
        VOXELS[:, 4:12, 4:12, 2:10],
    )
    wkwdask.convert(
        tmp_path / "em.ome.zarr",
        tmp_path / "array.ozx",
        bounding_box=np.array([4, 4, 2, 8, 8, 8]),
        chunk_shape=np.array([4, 4, 4]),
        offset=np.array([0, 0, 0]),
        voxel_size=np.array([4.0, 4, 8]),
    )
    assert wkwdask.diff(tmp_path / "array.ozx", tmp_path / "part.ozx").equal
    np.save(tmp_path / "stack.npy", VOXELS[0].T)
    wkwdask.convert(tmp_path / "stack.npy", tmp_path / "stack.ozx", voxel_size=(4, 4, 8))
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "stack.ozx"), VOXELS)
    assert wkwdask.verify(tmp_path / "stack.ozx").is_sound


def test_a_call_that_was_interrupted_before_the_zip_continues(dataset, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(single_file, "write_zip", interrupt)
        with pytest.raises(KeyboardInterrupt):
            wkwdask.convert(dataset, tmp_path / "em.ozx", layer="color", **CHUNKS)
    assert not (tmp_path / "em.ozx").exists()
    report = wkwdask.convert(dataset, tmp_path / "em.ozx", layer="color", **CHUNKS)
    assert "nothing to do" in report.note
    assert wkwdask.diff(dataset, tmp_path / "em.ozx", layer="color").equal
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds", "em.ozx"]


def test_an_existing_zip_is_kept_or_replaced_whole(dataset, tmp_path):
    (tmp_path / "em.ozx").write_text("mine")
    for existing in ("error", "resume"):
        with pytest.raises(
            ExistsError, match=r"em.ozx: already exists; existing=.overwrite. replaces it whole"
        ):
            wkwdask.convert(dataset, tmp_path / "em.ozx", layer="color", existing=existing)
    wkwdask.convert(dataset, tmp_path / "em.ozx", layer="color", existing="overwrite", **CHUNKS)
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "em.ozx", mag=1), VOXELS)


def test_what_is_refused(dataset, tmp_path):
    for target, error, message in (
        (tmp_path / "em.zip", UnsupportedError, r"a new zip needs a name that ends with \.ozx"),
        (f"{tmp_path}/em.ozx|zip:labels", UnsupportedError, "a new zip needs a name"),
        (tmp_path / "none/em.ozx", MissingError, "none: no such folder"),
    ):
        with pytest.raises(error, match=message):
            wkwdask.convert(dataset, target, layer="color")
    with pytest.raises(UnsupportedError, match=r"em.ozx: OME-NGFF 0\.4 is not stored in one file"):
        wkwdask.convert(dataset, tmp_path / "em.ozx", layer="color", ngff="0.4")
    (tmp_path / "text.ozx").write_text("no zip")
    with pytest.raises(
        CorruptError, match=r"text.ozx: not readable as zip: no end of central directory"
    ):
        wkwdask.open(tmp_path / "text.ozx")
    with pytest.raises(MissingError):
        wkwdask.open(tmp_path / "missing.ozx")


def test_commands(dataset, tmp_path):
    plan = run_here("convert", dataset, tmp_path / "em.ozx", "--layer", "color", "--dry-run")
    assert plan.returncode in (0, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds"]
    assert (
        f"{tmp_path}/em.ozx|zip:/1: "
        in run_here("convert", dataset, tmp_path / "em.ozx", "--layer", "color").stdout
    )
    assert "uint16" in run_here("info", tmp_path / "em.ozx").stdout


@pytest.mark.parametrize("name", ["em.ozx", "zarr://em.ozx", "em.zip", "n5://em.zip"])
def test_save_names_the_way_to_a_zip(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedError, match="a zip is read-only; write to a folder"):
        wkwdask.save(np.ones((4, 4, 4), np.uint8), name, voxel_size=(4, 4, 4))
    assert not any(tmp_path.iterdir())
