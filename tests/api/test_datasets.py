"""Datasets as objects: text, edits, concurrent and killed processes, and data outside the
dataset."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support.datasets import FILE_NAME, document_of, edit
from support.file_events import counting
from support.inside import exchanging, impatient, limited, without_exchange
from support.locks import dead_process, far_process, lock_path, put_lock, this_process

import wkwdask
from wkwdask import BoundingBox, Mag
from wkwdask.errors import CorruptError, ExistsError, LockedError, MissingError, UnsupportedError

OFFSET = (6, 4, 2)
OPTIONS = {"block_len": 8, "file_len": 2, "compression": "lz4"}
VOXELS = np.random.default_rng(3).integers(1, 250, (30, 26, 22), dtype=np.uint8)
IDS = (VOXELS[::-1].astype(np.uint64) // 16) << 56


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """An image with a pyramid and a segmentation, and a field that this package does not know."""
    folder = tmp_path_factory.mktemp("original") / "ds"
    wkwdask.create_dataset(folder, (4, 4, 35))
    wkwdask.write(folder / "color" / "1", OFFSET, VOXELS, **OPTIONS)
    wkwdask.build_pyramid(folder, "color", coarsest=4)
    wkwdask.write(folder / "seg" / "1", OFFSET, IDS, category="segmentation", **OPTIONS)
    edit(folder, lambda document: document.update(mystery={"x": 1}))
    return folder


@pytest.fixture
def dataset(original, tmp_path):
    return wkwdask.open_dataset(shutil.copytree(original, tmp_path / "ds"))


# ----------------------------------------------------------------------------- layers and mags


def test_layers_and_mags_are_opened(dataset):
    assert list(dataset.layers) == ["color", "seg"]
    assert [layer.name for layer in dataset] == ["color", "seg"]
    assert (dataset.voxel_size, dataset.unit, dataset.voxel_size_nm) == (
        (4, 4, 35),
        "nanometer",
        (4, 4, 35),
    )
    color = dataset["color"]
    assert [mag.name for mag in color.mags] == ["1", "2-2-1", "4-4-1"]
    assert (color.dtype, color.num_channels, color.category, color.bounding_box) == (
        np.uint8,
        1,
        "color",
        BoundingBox(OFFSET, VOXELS.shape),
    )
    assert color["2-2-1"].box == BoundingBox((3, 2, 2), (15, 13, 22), Mag(2, 2, 1))
    np.testing.assert_array_equal(color.read()[0], VOXELS)
    np.testing.assert_array_equal(color.open(mag="2-2-1").compute(), color["2-2-1"].read())
    np.testing.assert_array_equal(color[1].open(axes="xyz").compute(), VOXELS)
    assert dataset["seg"].largest_segment_id == IDS.max()
    with pytest.raises(MissingError, match="no layer 'x'; there are color, seg"):
        dataset["x"]
    with pytest.raises(MissingError, match="layer color has no mag 8; there are 1, 2-2-1, 4-4-1"):
        color[8]
    with pytest.raises(
        MissingError, match=r"not a dataset: datasource-properties\.json is missing"
    ):
        wkwdask.open_dataset(Path(dataset.path) / "color")


def test_repr_lists_layers_and_mags(dataset):
    assert repr(dataset).splitlines() == [
        f"Dataset 'ds' at {dataset.path}, voxel size 4 x 4 x 35 nanometer",
        "  'color': color, uint8, (6, 4, 2) + (30, 26, 22), mags 1, 2-2-1, 4-4-1",
        "  'seg': segmentation, uint64, (6, 4, 2) + (30, 26, 22), mags 1",
    ]
    assert repr(dataset["color"][1]) == "LayerMag 1 of layer 'color': (6, 4, 2) + (30, 26, 22)"


def test_html_shows_pictures_and_escapes_names(dataset):
    shown = dataset._repr_html_()
    assert "data:image/png;base64," in shown
    assert "2-2-1" in shown
    assert "8" in shown
    assert "data:image/png;base64," in dataset["seg"]._repr_html_()
    edit(dataset.path, lambda document: document["dataLayers"][0].update(name="<script>"))
    assert "<script>" not in wkwdask.open_dataset(dataset.path)._repr_html_()
    with limited(card_seconds=-1, card_nbytes=10):
        shown = dataset._repr_html_()
    assert "\N{GREATER-THAN OR EQUAL TO} 0" in shown
    assert "data:image" not in shown


def test_html_of_broken_files_is_shown(dataset):
    for path in Path(dataset.path).rglob("*.wkw"):
        path.write_bytes(b"")
    assert "2-2-1" in dataset._repr_html_()


def test_layers_of_other_formats_are_listed(dataset):
    edit(dataset.path, lambda document: document["dataLayers"][1].update(dataFormat="zarr3"))
    seg = dataset.refreshed()["seg"]
    assert "(zarr3)" in repr(seg)
    assert "zarr3" in seg._repr_html_()
    with pytest.raises(
        (MissingError, ModuleNotFoundError), match=r"no Zarr array here|needs the package zarr"
    ):
        seg.open()
    assert dataset.set_bounding_box("seg", (0, 0, 0, 9, 9, 9))["seg"].bounding_box.size == (9, 9, 9)
    assert list(dataset.remove_layer("seg").layers) == ["color"]


def test_a_malformed_layer_does_not_affect_the_others(dataset):
    """It is listed and kept by every edit; its use is an error."""
    edit(
        dataset.path,
        lambda document: document["dataLayers"][1].update(boundingBox=None, category="mask"),
    )
    before = document_of(dataset.path)["dataLayers"][1]
    opened = dataset.refreshed()
    np.testing.assert_array_equal(opened["color"].read()[0], VOXELS)
    np.testing.assert_array_equal(wkwdask.read(f"{dataset.path}/color/1")[0], VOXELS)
    message = rf"{FILE_NAME}: dataLayers\[1\]\.category: .*; dataLayers\[1\]\.boundingBox: "
    for use in (
        opened["seg"].open,
        opened["seg"].read,
        opened["seg"].compute_largest_segment_id,
        lambda: opened["seg"].mags,
        lambda: wkwdask.open(dataset.path, layer="seg"),
        lambda: wkwdask.open(f"{dataset.path}/seg/1"),
        lambda: wkwdask.write(f"{dataset.path}/seg/2", (0, 0, 0), IDS),
        lambda: dataset.set_bounding_box("seg", (0, 0, 0, 1, 1, 1)),
        lambda: dataset.rename_layer("seg", "cells"),
        lambda: wkwdask.rm(dataset.path, layer="seg"),
    ):
        with pytest.raises(CorruptError, match=message):
            use()
    assert "cannot be used" in repr(opened)
    assert "cannot be used" in opened._repr_html_()
    assert [(layer.name, bool(layer.problem)) for layer in wkwdask.info(dataset.path).layers] == [
        ("color", False),
        ("seg", True),
    ]
    dataset.set_voxel_size((1, 1, 1)).set_bounding_box("color", (0, 0, 0, 99, 99, 99)).rename_layer(
        "color", "em"
    )
    assert document_of(dataset.path)["dataLayers"][1] == before
    with pytest.raises(CorruptError, match=message):
        wkwdask.compress(dataset.path)  # all layers are meant
    report = wkwdask.copy(dataset.path, f"{dataset.path}-copy")
    assert "not copied: layer seg (invalid in the JSON)" in report.note
    assert list(dataset.remove_layer("seg").layers) == ["em"]


def test_a_malformed_layer_is_verified_and_repaired(dataset):
    edit(dataset.path, lambda document: document["dataLayers"][1].pop("boundingBox"))
    edit(
        dataset.path,
        lambda document: document["dataLayers"].append(
            {"name": "odd", "category": "color", "dataFormat": "n5", "x": 1.50}
        ),
    )
    report = wkwdask.verify(dataset.path, quick=True)
    assert [fault.kind for fault in report.faults if fault.severity == "error"] == [
        "json.broken",
        "json.broken",
    ]
    wkwdask.repair(dataset.path)
    after = dataset.refreshed()
    assert list(after.layers) == ["color", "seg", "odd"]
    # rebuilt from its files
    np.testing.assert_array_equal(after["seg"].read(((6, 4, 2), (36, 30, 24)))[0], IDS)
    # no file says more: kept
    assert document_of(dataset.path)["dataLayers"][2] == {
        "name": "odd",
        "category": "color",
        "dataFormat": "n5",
        "x": 1.5,
    }
    assert document_of(dataset.path)["mystery"] == {"x": 1}


# ----------------------------------------------------------------------------- edits


def test_create_dataset_refuses_or_keeps_an_existing_one(tmp_path):
    made = wkwdask.create_dataset(
        tmp_path / "new", (0.004, 0.004, 0.035), unit="micrometer", name="cells"
    )
    assert (made.name, made.voxel_size, made.unit, made.voxel_size_nm) == (
        "cells",
        (0.004, 0.004, 0.035),
        "micrometer",
        (4, 4, 35),
    )
    with pytest.raises(ExistsError, match="already exists"):
        wkwdask.create_dataset(tmp_path / "new", (4, 4, 35))
    assert wkwdask.create_dataset(tmp_path / "new", (4, 4, 35), existing="keep") == made
    with pytest.raises(ValueError, match=r"has voxels of .* nm, expected"):
        wkwdask.create_dataset(tmp_path / "new", (4, 4, 36), existing="keep")
    with pytest.raises(ValueError, match="unit must be a unit of length"):
        wkwdask.create_dataset(tmp_path / "newer", (4, 4, 36), unit="parrot")
    with pytest.raises(ValueError, match="three positive numbers"):
        wkwdask.create_dataset(tmp_path / "newer", (4, 4))


@pytest.mark.parametrize("name", ["em.zarr", "em.ome.zarr", "em.n5"])
def test_a_dataset_is_not_named_like_another_format(tmp_path, name):
    with pytest.raises(ValueError, match="is named like"):
        wkwdask.create_dataset(tmp_path / name, (4, 4, 35))
    assert list(tmp_path.iterdir()) == []


def test_fields_are_set_and_restored(dataset):
    before = document_of(dataset.path)
    after = dataset.set_voxel_size((0.25, 0.25, 0.5), "um")
    assert (after.voxel_size_nm, after.unit) == ((250, 250, 500), "micrometer")
    assert dataset.voxel_size == (4, 4, 35)  # what was opened stays as it was
    assert dataset.set_bounding_box("color", "0, 0, 0, 64, 64, 64")["color"].read().shape == (
        1,
        64,
        64,
        64,
    )
    assert dataset.set_largest_segment_id("seg", 2**60)["seg"].largest_segment_id == 2**60
    assert dataset.set_view_configuration({"alpha": 50, "color": [1, 2, 3]}, "color")[
        "color"
    ].view_configuration == {"alpha": 50, "color": [1, 2, 3]}
    assert dataset.set_view_configuration({"alpha": None}, "color")["color"].view_configuration == {
        "color": [1, 2, 3]
    }
    assert dataset.set_view_configuration({"zoom": 2}).view_configuration == {"zoom": 2}
    document = document_of(dataset.path)
    assert document["dataLayers"][1]["largestSegmentId"] == {
        "customJsonEncoding": "bigint",
        "value": str(2**60),
    }
    dataset.set_voxel_size((4, 4, 35)).set_bounding_box(
        "color", (*OFFSET, *VOXELS.shape)
    ).set_largest_segment_id("seg", int(IDS.max()))
    dataset.set_view_configuration({"color": None}, "color").set_view_configuration({"zoom": None})
    assert document_of(dataset.path) == before
    for change in (
        lambda: dataset.set_bounding_box("x", (0, 0, 0, 1, 1, 1)),
        lambda: dataset.set_view_configuration({}, "x"),
        lambda: dataset.remove_layer("x"),
        lambda: dataset.rename_layer("x", "y"),
        lambda: dataset.remove_mag("color", 8),
        lambda: dataset.add_layer_from_disk("x"),
    ):
        with pytest.raises(
            MissingError, match=r"no layer 'x'; there are color, seg|no mag 8|no mags"
        ):
            change()
    with pytest.raises(ValueError, match="is not a segmentation"):
        dataset.set_largest_segment_id("color", 5)
    assert document_of(dataset.path) == before


def test_impossible_largest_ids_are_refused(dataset):
    before = document_of(dataset.path)
    for value, error in ((-1, ValueError), (2**64, ValueError), (1.5, TypeError)):
        with pytest.raises(error):
            dataset.set_largest_segment_id("seg", value)
        with pytest.raises(error):
            dataset.add_layer(
                "more", "segmentation", "uint64", (0, 0, 0, 1, 1, 1), largest_segment_id=value
            )
    with pytest.raises(ValueError, match="is not a segmentation"):
        dataset.set_largest_segment_id("color", 1)
    with pytest.raises(ValueError, match="is not a segmentation"):
        dataset.add_layer("more", "color", "uint8", (0, 0, 0, 1, 1, 1), largest_segment_id=1)
    assert document_of(dataset.path) == before
    assert dataset.set_largest_segment_id("seg", np.uint32(7))["seg"].largest_segment_id == 7
    assert (
        dataset.set_largest_segment_id("seg", np.uint64(2**64 - 1))["seg"].largest_segment_id
        == 2**64 - 1
    )


def test_numbers_without_json_form_are_refused_but_kept(dataset):
    before = Path(dataset.path, FILE_NAME).read_text()
    with pytest.raises(ValueError, match="JSON"):
        dataset.set_view_configuration({"zoom": float("nan")}, "color")
    assert Path(dataset.path, FILE_NAME).read_text() == before
    Path(dataset.path, FILE_NAME).write_text(
        before.replace('"mystery"', '"odd": [NaN, -Infinity], "mystery"')
    )
    dataset.set_voxel_size((1, 2, 3))
    assert "NaN,\n        -Infinity" in Path(dataset.path, FILE_NAME).read_text()


def test_the_largest_id_is_computed(dataset):
    assert dataset["seg"].compute_largest_segment_id() == int(IDS.max())
    assert dataset["color"].compute_largest_segment_id() == int(VOXELS.max())


def test_layers_are_added_and_removed(dataset):
    added = dataset.add_layer(
        "more", "segmentation", "uint32", (0, 0, 0, 8, 8, 8), largest_segment_id=0
    )
    assert (added["more"].dtype, added["more"].mags, added["more"].largest_segment_id) == (
        np.uint32,
        {},
        0,
    )
    wkwdask.write(f"{dataset.path}/more/1", (0, 0, 0), np.ones((8, 8, 8), np.uint32), **OPTIONS)
    assert len(dataset.refreshed()["more"]) == 1
    with pytest.raises(ExistsError, match="layer 'more' already exists"):
        dataset.add_layer("more", "color", "uint8", (0, 0, 0, 1, 1, 1))
    with pytest.raises(ValueError, match="a layer name consists"):
        dataset.add_layer("../more", "color", "uint8", (0, 0, 0, 1, 1, 1))
    with pytest.raises(ValueError, match="category"):
        dataset.add_layer("z", "mask", "uint8", (0, 0, 0, 1, 1, 1))
    assert list(dataset.remove_layer("more").layers) == ["color", "seg"]
    assert (Path(dataset.path) / "more" / "1" / "header.wkw").exists()
    back = dataset.add_layer_from_disk("more", category="color", bounding_box=(0, 0, 0, 8, 8, 8))
    assert back["more"].category == "color"
    np.testing.assert_array_equal(back["more"].read()[0], 1)
    assert list(dataset.remove_layer("more", delete_files=True).layers) == ["color", "seg"]
    assert not (Path(dataset.path) / "more").exists()


def test_mags_are_added_and_removed(dataset):
    gone = dataset.remove_mag("color", "2-2-1")
    assert [mag.name for mag in gone["color"].mags] == ["1", "4-4-1"]
    back = dataset.add_mags_from_disk("color")
    assert back == dataset
    assert dataset.add_mags_from_disk("color") == dataset
    gone = dataset.remove_mag("color", "4-4-1", delete_files=True)
    assert [mag.name for mag in gone["color"].mags] == ["1", "2-2-1"]
    assert not (Path(dataset.path) / "color" / "4-4-1").exists()
    wkwdask.write(Path(dataset.path).parent / "8", (0, 0, 0), IDS, **OPTIONS)
    os.rename(Path(dataset.path).parent / "8", Path(dataset.path) / "color" / "8")
    with pytest.raises(ValueError, match=r"holds uint64, the layer at .* uint8"):
        dataset.add_mags_from_disk("color")


# ----------------------------------------------------------------------------- renaming


def test_a_layer_is_renamed_with_its_folder(dataset):
    edit(
        dataset.path,
        lambda document: document["dataLayers"][0].update(
            attachments={"meshes": [{"name": "m", "path": "color/meshes/m", "dataFormat": "hdf5"}]}
        ),
    )
    after = dataset.rename_layer("color", "em")
    assert list(after.layers) == ["em", "seg"]
    assert [mag.folder for mag in after["em"]] == [
        f"{dataset.path}/em/{name}" for name in ("1", "2-2-1", "4-4-1")
    ]
    assert after["em"].attachments[0].path == "./em/meshes/m"
    assert sorted(os.listdir(dataset.path)) == [FILE_NAME, "em", "seg"]
    assert sorted(os.listdir(f"{dataset.path}/em")) == ["1", "2-2-1", "4-4-1"]
    np.testing.assert_array_equal(after["em"].read()[0], VOXELS)
    assert wkwdask.verify(dataset.path, quick=True).faults == ()
    wkwdask.build_pyramid(dataset.path, "em", mags=["8-8-1"])
    with pytest.raises(ExistsError, match="layer 'seg' already exists"):
        dataset.rename_layer("em", "seg")
    with pytest.raises(ValueError, match="a layer name consists"):
        dataset.rename_layer("em", ".x")
    (Path(dataset.path) / "notes" / "older").mkdir(parents=True)
    with pytest.raises(ExistsError, match="notes: already exists"):
        dataset.rename_layer("em", "notes")
    assert list(dataset.refreshed().layers) == ["em", "seg"]


def nothing(folder):
    """Leave an empty folder."""


def dead_lock(folder):
    put_lock(folder / "1", dead_process("a job", "dead"))


def dead_job(folder):
    dead_lock(folder)
    job = folder / ".wkwdask-job-dead"
    job.mkdir()
    (job / "owner.json").write_text(json.dumps(dead_process("a job", "dead")))


def dead_writer_of_locks(folder):
    (folder / ".wkwdask-guard").touch()
    (folder / "..1.wkwdask-lock.0123456789abcdef.wkwdask-tmp").touch()


@pytest.mark.parametrize(
    "leave",
    [nothing, dead_lock, dead_job, dead_writer_of_locks],
    ids=lambda leave: leave.__name__,
)
def test_a_layer_gets_the_name_of_a_folder_that_a_killed_job_left(dataset, leave):
    folder = Path(dataset.path) / "em"
    folder.mkdir()
    leave(folder)
    after = dataset.rename_layer("color", "em")
    assert sorted(os.listdir(dataset.path)) == [FILE_NAME, "em", "seg"]
    assert sorted(os.listdir(folder)) == ["1", "2-2-1", "4-4-1"]
    np.testing.assert_array_equal(after["em"].read()[0], VOXELS)


def living_lock(folder):
    put_lock(folder / "1", this_process("a job", "here"))


def far_job(folder):
    job = folder / ".wkwdask-job-far"
    job.mkdir()
    put_lock(folder / "1", far_process("a job", "far"))
    (job / "owner.json").write_text(json.dumps(far_process("a job", "far")))
    (job / "plan.json").write_text(
        json.dumps({"layout": 1, "targets": ["1"], "existing": "error", "settings": {}})
    )


def resumable_job(folder):
    dead_job(folder)
    job = folder / ".wkwdask-job-dead"
    (job / "plan.json").write_text(
        json.dumps({"layout": 1, "targets": ["1"], "existing": "error", "settings": {}})
    )
    (job / "journal-0.jsonl").write_text('{"task": "1"}\n')


def file_beside_a_dead_job(folder):
    dead_job(folder)
    (folder / "notes.txt").touch()


def link_to_a_folder(folder):
    folder.rmdir()
    (folder.parent / ".hidden").mkdir()
    folder.symlink_to(".hidden")


@pytest.mark.parametrize(
    "leave",
    [living_lock, far_job, resumable_job, file_beside_a_dead_job, link_to_a_folder],
    ids=lambda leave: leave.__name__,
)
def test_a_layer_does_not_get_the_name_of_a_folder_in_use(dataset, leave):
    folder = Path(dataset.path) / "em"
    folder.mkdir()
    leave(folder)
    before = sorted(map(str, folder.parent.rglob("*")))
    with pytest.raises(ExistsError, match=r"em: already exists, but is not a layer"):
        dataset.rename_layer("color", "em")
    assert sorted(map(str, folder.parent.rglob("*"))) == before
    assert list(dataset.refreshed().layers) == ["color", "seg"]


def test_a_layer_is_renamed_where_names_cannot_be_swapped(dataset):
    edit(
        dataset.path,
        lambda document: [mag.pop("path") for mag in document["dataLayers"][0]["mags"]],
    )
    with without_exchange():
        after = dataset.rename_layer("color", "em")
    assert sorted(os.listdir(dataset.path)) == ["color", FILE_NAME, "seg"]
    assert [mag.folder for mag in after["em"]] == [
        f"{dataset.path}/./color/{name}".replace("/./", "/") for name in ("1", "2-2-1", "4-4-1")
    ]
    np.testing.assert_array_equal(after["em"].read()[0], VOXELS)


def test_a_layer_with_a_running_job_is_not_renamed(dataset):
    job = Path(dataset.path, "color", ".wkwdask-job-here")
    job.mkdir()
    (job / "owner.json").write_text(json.dumps(this_process("a job", "here")))
    (job / "plan.json").write_text(
        json.dumps(
            {"layout": 1, "targets": ["8"], "existing": "error", "settings": {}, "plan": None}
        )
    )
    lock = put_lock(f"{dataset.path}/color/8", this_process("a job", "here"))
    for change in (
        lambda: dataset.rename_layer("color", "em"),
        lambda: dataset.remove_layer("color"),
        lambda: dataset.remove_mag("color", 1),
    ):
        with pytest.raises(LockedError, match=r"a job is running in this layer|another job writes"):
            change()
    shutil.rmtree(job)
    lock.unlink()
    assert list(dataset.rename_layer("color", "em").layers) == ["em", "seg"]


CHANGES = ("symlink", "link", "unlink", "rename", "replace", "mkdir", "rmdir")


def rename_until(step, folder, swaps_names):
    """Rename a layer, and end like a process that is killed before a change of the file system."""
    left = [step]

    def counted(before):
        def change(*args, **options):
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return before(*args, **options)

        return change

    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))
    with exchanging(counted) if swaps_names else without_exchange():
        wkwdask.open_dataset(folder).rename_layer("color", "em")


@pytest.mark.parametrize("swaps_names", [True, False])
def test_a_rename_bears_a_file_server_that_loses_a_reply(
    original, tmp_path, monkeypatch, swaps_names
):
    """The server has done what it was asked for, and refuses to do it again."""
    left = [0]

    def repeated(name):
        change = getattr(os, name)

        def call(*args, **options):
            change(*args, **options)
            left[0] -= 1
            if left[0] == -1:
                code = errno.EEXIST if name in ("symlink", "link", "mkdir") else errno.ENOENT
                raise OSError(code, os.strerror(code), args[0])

        return call

    for step in range(100):
        copy = shutil.copytree(original, tmp_path / str(step) / "ds")
        dataset = wkwdask.open_dataset(copy)
        left = [step]
        with monkeypatch.context() as patch:
            for name in CHANGES:
                patch.setattr(os, name, repeated(name))
            with contextlib.nullcontext() if swaps_names else without_exchange():
                renamed = dataset.rename_layer("color", "em")
        assert list(renamed.layers) == ["em", "seg"]
        np.testing.assert_array_equal(renamed["em"].read()[0], VOXELS)
        names = {name for name in os.listdir(copy) if not name.startswith(".")}
        assert names == {FILE_NAME, "seg", "em" if swaps_names else "color"}
        if left[0] >= 0:
            break
    assert step > 5


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("swaps_names", [True, False])
def test_a_killed_rename_leaves_a_readable_layer(original, dataset, tmp_path, swaps_names):
    """At every step the layer has one of its names, and the same call completes the renaming."""
    code, copies = None, []
    while code != 0:
        copies.append(shutil.copytree(original, tmp_path / str(len(copies)) / "ds"))
        code = exit_code(start(rename_until, len(copies) - 1, copies[-1], swaps_names))
        assert code in (0, 9)
        assert len(copies) < 100
    assert len(copies) > 5
    names = set()
    for copy in copies:
        opened = wkwdask.open_dataset(copy)
        (name,) = set(opened.layers) - {"seg"}
        names.add(name)
        np.testing.assert_array_equal(opened[name].read()[0], VOXELS)
        np.testing.assert_array_equal(
            opened[name].read(mag="4-4-1"), dataset["color"].read(mag="4-4-1")
        )
        again = (
            opened
            if copy == copies[-1]
            else opened.rename_layer("color", "em")
            if name == "color"
            else rename_again(opened)
        )
        assert list(again.layers) == ["em", "seg"]
        np.testing.assert_array_equal(again["em"].read()[0], VOXELS)
        names_there = {name for name in os.listdir(copy) if not name.startswith(".")}
        assert names_there - {"em", "color"} == {FILE_NAME, "seg"}
        assert len(names_there) == 3
    assert names == {"color", "em"}


def rename_again(opened):
    """Make the same call again, which is an error only where nothing was left to do."""
    try:
        return opened.rename_layer("color", "em")
    except MissingError:
        return opened


# ----------------------------------------------------------------------------- locks and concurrent
# processes


def start(function, *arguments):
    child = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    child.start()
    return child


def exit_code(child):
    child.join()
    return child.exitcode


def edit_often(folder, name, count):
    dataset = wkwdask.open_dataset(folder)
    for number in range(count):
        dataset.add_layer(f"{name}-{number}", "color", "uint8", (0, 0, 0, 1, 1, number))
        dataset.set_view_configuration({f"{name}-{number}": number}, "color")
        dataset.set_view_configuration({f"{name}.{number}": True})
        if number % 2:
            dataset.remove_layer(f"{name}-{number}")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_concurrent_processes_lose_no_edit(dataset):
    names, count = ("p", "q", "r"), 8
    children = [start(edit_often, dataset.path, name, count) for name in names]
    assert [exit_code(child) for child in children] == [0] * len(names)
    document = document_of(dataset.path)
    assert {f"{name}.{number}" for name in names for number in range(count)} <= set(
        document["defaultViewConfiguration"]
    )
    assert set(document["dataLayers"][0]["defaultViewConfiguration"]) == {
        f"{name}-{number}" for name in names for number in range(count)
    }
    listed = {layer["name"] for layer in document["dataLayers"]}
    assert listed == {"color", "seg"} | {
        f"{name}-{number}" for name in names for number in range(0, count, 2)
    }
    assert not [name for name in os.listdir(dataset.path) if name.startswith(".")]


def end_with_the_lock(folder):
    """End like a process that is killed when it holds the lock and reads the JSON."""
    linked = []

    def watch(event, arguments):
        if event == "os.link":
            linked.append(arguments)
        if event == "open" and linked and str(arguments[0]).endswith(f"/{FILE_NAME}"):
            os._exit(9)

    sys.addaudithook(watch)
    wkwdask.open_dataset(folder).set_voxel_size((9, 9, 9))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_lock_of_a_dead_process_is_removed(dataset):
    assert exit_code(start(end_with_the_lock, dataset.path)) == 9
    lock = f"{dataset.path}/.{FILE_NAME}.wkwdask-lock"
    assert os.path.exists(lock)
    assert [fault.kind for fault in wkwdask.verify(dataset.path, quick=True).faults] == [
        "leftover.lock"
    ]
    assert dataset.set_voxel_size((1, 2, 3)).voxel_size == (1, 2, 3)
    assert not os.path.exists(lock)


@pytest.mark.parametrize("hard_links", [True, False])
def test_the_lock_of_a_living_process_is_respected(dataset, monkeypatch, hard_links):
    """The message names the process; files may have no hard links."""
    if not hard_links:
        monkeypatch.setattr(os, "link", _refuse)
    lock, before = (
        put_lock(f"{dataset.path}/{FILE_NAME}", this_process("an edit")),
        document_of(dataset.path),
    )
    message = (
        rf"another process changes it: an edit by .*process {os.getpid()} .*remove {dataset.path}"
    )
    with impatient(), pytest.raises(LockedError, match=message):
        dataset.set_voxel_size((1, 2, 3))
    assert document_of(dataset.path) == before
    lock.unlink()
    assert dataset.set_voxel_size((1, 2, 3)).voxel_size == (1, 2, 3)
    assert not lock.exists()


def _refuse(source, target, **options):
    raise OSError(95, "not supported")


def test_a_process_killed_while_it_breaks_a_lock_is_survived(dataset):
    """It dies before or after it removes the lock."""
    lock = put_lock(f"{dataset.path}/{FILE_NAME}", dead_process(job="first"))
    for name, job in (("first", "second"), ("zeroth", "third")):
        Path(f"{lock}.{name}.wkwdask-broken-lock").write_text(json.dumps(dead_process(job=job)))
    assert dataset.set_voxel_size((1, 2, 3)).voxel_size == (1, 2, 3)
    assert not [name for name in os.listdir(dataset.path) if name.startswith(".")]


def test_a_lock_is_broken_by_one_process_at_a_time(dataset):
    lock = put_lock(f"{dataset.path}/{FILE_NAME}", dead_process("an edit", "first"))
    claim = Path(f"{lock}.first.wkwdask-broken-lock")
    claim.write_text(json.dumps(this_process("removal")))
    with impatient(), pytest.raises(LockedError, match="an edit by"):
        dataset.set_voxel_size((1, 2, 3))
    assert lock.exists()
    claim.unlink()
    assert dataset.set_voxel_size((1, 2, 3)).voxel_size == (1, 2, 3)


def test_a_process_taken_for_dead_keeps_the_next_lock(dataset):
    path = f"{dataset.path}/{FILE_NAME}"

    def broken():
        lock_path(path).unlink()
        put_lock(path, this_process("next"))

    with counting(f"{dataset.path}/.{FILE_NAME}", 1, broken, {"os.rename"}):
        # when it replaces the file
        dataset.set_voxel_size((1, 2, 3))
    assert json.loads(lock_path(path).read_text())["command"] == "next"


def test_an_interrupt_right_after_locking_leaves_no_lock(dataset, monkeypatch):
    link = os.link

    def interrupted(source, target, **options):
        link(source, target, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dataset.set_voxel_size((1, 2, 3))
    monkeypatch.undo()
    assert not [name for name in os.listdir(dataset.path) if name.startswith(".")]


def test_a_lock_whose_creation_is_repeated_is_held(dataset, monkeypatch):
    """NFS repeats a request whose answer was lost, and finds the file."""
    link = os.link

    def twice(source, target, **options):
        link(source, target, **options)
        link(source, target, **options)

    monkeypatch.setattr(os, "link", twice)
    assert dataset.set_voxel_size((1, 2, 3)).voxel_size == (1, 2, 3)


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_full_disk_leaves_no_lock(dataset, monkeypatch, hard_links):
    written, pwrite = [], os.pwrite

    def full(fd, data, offset):
        written.append(fd)
        if len(written) > (0 if hard_links else 1):
            raise OSError(28, "No space left on device")
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    if not hard_links:
        monkeypatch.setattr(os, "link", _refuse)
        monkeypatch.setattr("wkwdask.store.files.create_unnamed", lambda folder: None)
    with pytest.raises(OSError, match="No space left"):
        dataset.set_voxel_size((1, 2, 3))
    assert not [name for name in os.listdir(dataset.path) if name.startswith(".")]


def test_a_lock_of_another_machine_is_not_broken(dataset):
    lock = put_lock(f"{dataset.path}/{FILE_NAME}", far_process("an edit"))
    with (
        impatient(),
        pytest.raises(LockedError, match="an edit by somebody, process 7 on elsewhere, since then"),
    ):
        dataset.set_voxel_size((1, 2, 3))
    lock.write_text("")
    with impatient(), pytest.raises(LockedError, match="its lock cannot be read"):
        dataset.set_voxel_size((1, 2, 3))


def test_edits_start_from_the_current_json(dataset):
    edit(dataset.path, lambda document: document.update(meanwhile=[1.50]))
    dataset.add_layer("more", "color", "uint8", (0, 0, 0, 1, 1, 1))
    dataset.rename_layer("color", "em")
    assert list(dataset.set_voxel_size((1, 1, 1)).layers) == ["em", "seg", "more"]
    assert document_of(dataset.path)["meanwhile"] == [1.5]


def test_an_edit_that_changes_nothing_writes_nothing(dataset):
    before = os.stat(f"{dataset.path}/{FILE_NAME}").st_ino
    dataset.set_bounding_box("color", (*OFFSET, *VOXELS.shape))
    assert os.stat(f"{dataset.path}/{FILE_NAME}").st_ino == before


# ----------------------------------------------------------------------------- external data


@pytest.fixture
def other(tmp_path, dataset):
    """A second dataset, which has the first one's voxel size."""
    return wkwdask.create_dataset(tmp_path / "other", (4, 4, 35))


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("by", ["record", "path"])
def test_a_layer_is_added_by_reference(dataset, other, relative, by):
    dataset.set_largest_segment_id("seg", 2**60).set_view_configuration({"alpha": 30}, "seg")
    after = other.add_layer_as_ref(
        dataset["seg"] if by == "record" else f"{dataset.path}/seg", "cells", relative=relative
    )
    cells = after["cells"]
    assert (cells.category, cells.bounding_box, cells.element_class, cells.largest_segment_id) == (
        "segmentation",
        dataset["seg"].bounding_box,
        "uint64",
        2**60,
    )
    assert cells.view_configuration == {"alpha": 30}
    assert (
        os.path.isabs(document_of(other.path)["dataLayers"][0]["mags"][0]["path"]) is not relative
    )
    assert cells[1].elsewhere == f"{dataset.path}/seg/1"
    assert f"at {dataset.path}/seg/1" in repr(after)
    assert f"elsewhere: {dataset.path}/seg/1" in cells._repr_html_()
    assert [mag.elsewhere for mag in wkwdask.info(other.path).layers[0].mags] == [
        f"{dataset.path}/seg/1"
    ]
    np.testing.assert_array_equal(cells.read()[0], IDS)
    assert cells.compute_largest_segment_id() == int(IDS.max())
    with pytest.raises(ExistsError, match="layer 'cells' already exists"):
        other.add_layer_as_ref(dataset["seg"], "cells")
    # taking it off leaves the data alone
    assert other.remove_layer("cells").layers == {}
    np.testing.assert_array_equal(dataset["seg"].read()[0], IDS)


def test_references_of_legacy_layers_and_other_voxel_sizes(dataset, other):
    def legacy(document):
        entry = document["dataLayers"][0]
        entry["wkwResolutions"] = [
            {"resolution": mag["mag"], "cubeLength": mag["cubeLength"]} for mag in entry.pop("mags")
        ]

    edit(dataset.path, legacy)
    np.testing.assert_array_equal(
        other.add_layer_as_ref(f"{dataset.path}/color")["color"].read()[0], VOXELS
    )
    dataset.set_voxel_size((4, 4, 40))
    with pytest.raises(
        ValueError, match=r"voxels are \(4.0, 4.0, 40.0\) nm, those of .*any_voxel_size"
    ):
        other.add_layer_as_ref(f"{dataset.path}/seg")
    assert "seg" in other.add_layer_as_ref(f"{dataset.path}/seg", any_voxel_size=True).layers


KINDS = ["absolute", "relative", "linked layer", "linked mag"]


@pytest.fixture
def external(request, dataset, tmp_path):
    """A dataset whose mag 1 of color lies elsewhere: the place, and the dataset."""
    outside = tmp_path / "outside"
    outside.mkdir()
    if request.param == "linked layer":
        os.rename(f"{dataset.path}/color", outside / "color")
        os.symlink(outside / "color", f"{dataset.path}/color")
        return outside / "color" / "1", dataset.refreshed()
    os.rename(f"{dataset.path}/color/1", outside / "1")
    if request.param == "linked mag":
        os.symlink(outside / "1", f"{dataset.path}/color/1")
    else:
        path = str(outside / "1") if request.param == "absolute" else "../outside/1"
        edit(dataset.path, lambda document: document["dataLayers"][0]["mags"][0].update(path=path))
    return outside / "1", dataset.refreshed()


@pytest.mark.parametrize("external", KINDS, indirect=True)
def test_external_mags_are_read_and_shown(external):
    place, dataset = external
    np.testing.assert_array_equal(dataset["color"].read()[0], VOXELS)
    assert dataset["color"][1].elsewhere == str(place)
    assert str(place) in repr(dataset)
    summary = wkwdask.info(dataset.path).to_json()
    assert summary["layers"][0]["mags"][0]["elsewhere"] == str(place)
    assert summary["layers"][1]["mags"][0]["elsewhere"] is None


def test_a_linked_dataset_is_not_external(dataset, tmp_path):
    os.symlink(dataset.path, tmp_path / "link")
    opened = wkwdask.open_dataset(tmp_path / "link")
    assert [mag.elsewhere for mag in opened["color"]] == [None] * 3
    assert opened.rename_layer("color", "em")["em"].read().shape == (1, *VOXELS.shape)
    wkwdask.rechunk(tmp_path / "link" / "em" / "1", file_len=4)
    np.testing.assert_array_equal(opened.refreshed()["em"].read()[0], VOXELS)


REGION = ((8, 8, 8), (12, 12, 12))
WRITES = {
    "rechunk": lambda dataset, **options: wkwdask.rechunk(
        dataset.path, layer="color", mags="1", file_len=4, **options
    ),
    "compress": lambda dataset, **options: wkwdask.compress(
        dataset.path, layer="color", mags="1", compression="raw", **options
    ),
    "region": lambda dataset, **options: wkwdask.to_wkw(
        np.full((4, 4, 4), 9, np.uint8), f"{dataset.path}/color", region=REGION, **options
    ),
    "rm": lambda dataset, **options: wkwdask.rm(dataset.path, layer="color", mags="1", **options),
    "remove_mag": lambda dataset, **options: dataset.remove_mag(
        "color", 1, delete_files=True, **options
    ),
}


EXTERNAL_WRITES = [
    *((kind, verb) for kind in KINDS for verb in ("rechunk", "rm")),
    *(("linked layer", verb) for verb in ("compress", "region", "remove_mag")),
]


@pytest.mark.parametrize(("external", "verb"), EXTERNAL_WRITES, indirect=["external"])
def test_external_mags_are_written_only_with_allow_external(external, verb):
    place, dataset = external
    before, files = (
        document_of(dataset.path),
        {path: path.read_bytes() for path in place.rglob("*.wkw")},
    )
    with pytest.raises(
        UnsupportedError, match=rf"lies outside the dataset .*{place.parent}.*allow_external=True"
    ):
        WRITES[verb](dataset)
    assert document_of(dataset.path) == before
    assert {path: path.read_bytes() for path in place.rglob("*.wkw")} == files
    WRITES[verb](dataset, allow_external=True)
    if verb in ("rm", "remove_mag"):
        assert not place.exists()
        assert [mag.name for mag in dataset.refreshed()["color"].mags] == ["2-2-1", "4-4-1"]
        assert not os.path.lexists(f"{dataset.path}/color/1")
        return
    assert {path: path.read_bytes() for path in place.rglob("*.wkw")} != files
    assert (
        document_of(dataset.path)["dataLayers"][0]["mags"][0]["path"]
        == before["dataLayers"][0]["mags"][0]["path"]
    )
    assert dataset.refreshed()["color"][1].elsewhere == str(place)
    expected = VOXELS.copy()
    if verb == "region":
        expected[2:6, 4:8, 6:10] = 9
    np.testing.assert_array_equal(dataset.refreshed()["color"].read()[0], expected)
    assert [name for name in os.listdir(place.parent) if name.startswith(".")] == []


NEW = {
    "to_wkw": lambda target, source, **options: wkwdask.to_wkw(
        VOXELS, target, offset=OFFSET, **OPTIONS, **options
    ),
    "create": lambda target, source, **options: wkwdask.create(
        target, ((6, 4, 2), (36, 30, 24)), "uint8", block_len=8, file_len=2, **options
    ),
    "apply": lambda target, source, **options: wkwdask.apply(np.invert, source, target, **options),
    "copy": lambda target, source, **options: wkwdask.copy(source, target, **options),
    "rechunk": lambda target, source, **options: wkwdask.rechunk(
        source, target, file_len=4, **options
    ),
    "components": lambda target, source, **options: wkwdask.connected_components(
        source, target, **options
    ),
    "remap": lambda target, source, **options: wkwdask.remap(source, target, {}, **options),
    "dust": lambda target, source, **options: wkwdask.remove_dust(source, target, 0, **options),
    "renumber": lambda target, source, **options: wkwdask.renumber(source, target, **options),
    "convert": lambda target, source, **options: wkwdask.convert(
        _array_file(target), target, axes="xyz", offset=OFFSET, **options
    ),
}


def _array_file(target):
    file = Path(target).parent.parent / "voxels.npy"
    np.save(file, VOXELS)
    return file


@pytest.mark.parametrize("verb", sorted(NEW))
def test_new_mags_of_a_linked_layer_need_allow_external(dataset, tmp_path, verb):
    outside = tmp_path / "outside"
    outside.mkdir()
    os.symlink(outside, f"{dataset.path}/linked")
    target, source = f"{dataset.path}/linked/1", f"{dataset.path}/color/1"
    with pytest.raises(UnsupportedError, match=rf"at {outside}/1, .*allow_external"):
        NEW[verb](target, source)
    assert not list(outside.iterdir())
    NEW[verb](target, source, allow_external=True)
    assert [path.name for path in outside.iterdir()] == ["1"]
    linked = dataset.refreshed()["linked"]
    assert document_of(dataset.path)["dataLayers"][2]["mags"][0]["path"] == "./linked/1"
    if verb not in ("components", "renumber"):  # which give new ids
        expected = {"create": np.zeros_like(VOXELS), "apply": np.invert(VOXELS)}.get(verb, VOXELS)
        np.testing.assert_array_equal(linked.read(mag=1)[0], expected)
    assert linked[1].elsewhere == f"{outside}/1"


def test_an_unwritable_json_is_refused_before_any_work(dataset, monkeypatch):
    """It is a link into a folder that this user may not change."""
    meta = Path(dataset.path) / "meta"
    meta.mkdir()
    os.rename(f"{dataset.path}/{FILE_NAME}", meta / FILE_NAME)
    os.symlink(meta / FILE_NAME, f"{dataset.path}/{FILE_NAME}")
    before = files_in(Path(dataset.path))
    access = os.access
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode: not (mode == os.W_OK and str(path) == str(meta)) and access(path, mode),
    )
    changes = [
        lambda: dataset.set_voxel_size((1, 2, 3)),
        lambda: wkwdask.rechunk(dataset.path, layer="color", file_len=4),
        lambda: wkwdask.rm(dataset.path, layer="color", mags=["4-4-1"]),
    ]
    for change in changes:
        with pytest.raises(PermissionError, match=rf"{FILE_NAME} could not be updated: '{meta}'"):
            change()
    assert files_in(Path(dataset.path)) == before
    assert os.listdir(meta) == [FILE_NAME]


def test_an_edit_of_a_removed_dataset_is_an_error(dataset):
    shutil.rmtree(dataset.path)
    with pytest.raises(MissingError, match=f"{dataset.path}/{FILE_NAME}: no such folder"):
        dataset.set_voxel_size((1, 2, 3))


UNLISTED = {
    "rechunk": lambda layer, **options: wkwdask.rechunk(layer, mags="1", file_len=4, **options),
    "region": lambda layer, **options: wkwdask.to_wkw(
        np.full((4, 4, 4), 9, np.uint8), f"{layer}/1", region=REGION, **options
    ),
    "pyramid": lambda layer, **options: wkwdask.build_pyramid(
        layer, mags=["8-8-2"], method="mean", **options
    ),
    "upsample": lambda layer, **options: wkwdask.upsample(
        layer, source="2-2-1", mags=["1"], existing="overwrite", **options
    ),
    "odd name": lambda layer, **options: wkwdask.write(f"{layer}/raw", OFFSET, VOXELS, **options),
    "long name": lambda layer, **options: wkwdask.rechunk(
        f"{layer}/16-16-16", file_len=4, **options
    ),
    "repair": lambda layer, **options: wkwdask.repair(layer, **options),
}


def files_in(folder):
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("verb", "is_listed"), [("region", True), *((verb, False) for verb in UNLISTED)]
)
def test_unlisted_links_need_allow_external(dataset, tmp_path, verb, is_listed):
    """They lie in the dataset's folder."""
    outside = tmp_path / "outside"
    os.rename(f"{dataset.path}/color", outside)
    layer = f"{dataset.path}/{'color' if is_listed else 'linked'}"
    os.symlink(outside, layer)
    shutil.copytree(outside / "1", outside / "16-16-16")
    data = next((outside / "1").rglob("x*.wkw"))
    data.write_bytes(data.read_bytes() + b"rest")
    before = files_in(outside)
    if verb == "repair":
        assert "allow_external" in str(UNLISTED[verb](layer))
    else:
        with pytest.raises(
            UnsupportedError, match=r"lies outside the dataset .*allow_external=True"
        ):
            UNLISTED[verb](layer)
    assert files_in(outside) == before
    UNLISTED[verb](layer, allow_external=True)
    assert files_in(outside) != before


LIVING = {
    "region": lambda dataset, **options: WRITES["region"](dataset, **options),
    "update": lambda dataset, **options: wkwdask.build_pyramid(
        dataset.path, "color", mags=["2-2-1"], update="content", **options
    ),
    "repair": lambda dataset, **options: wkwdask.repair(dataset.path, layer="color", **options),
}


@pytest.mark.parametrize("verb", sorted(LIVING))
@pytest.mark.parametrize("folder", ["z0", "z0/y0"])
def test_linked_folders_of_a_mag_need_allow_external(dataset, tmp_path, verb, folder):
    mag, outside = (
        Path(dataset.path, "color", "1" if verb == "region" else "2-2-1"),
        tmp_path / "outside",
    )
    os.rename(mag / folder, outside)
    os.symlink(outside, mag / folder)
    file = next(outside.rglob("x0.wkw"))
    if verb != "region":
        file.write_bytes(file.read_bytes() + b"rest")
    before = files_in(outside)
    if verb == "repair":
        assert "allow_external" in str(LIVING[verb](dataset))
    else:
        with pytest.raises(
            UnsupportedError, match=rf"{folder}: lies outside the dataset .*allow_external"
        ):
            LIVING[verb](dataset)
    assert files_in(outside) == before
    LIVING[verb](dataset, allow_external=True)
    assert files_in(outside) != before
    assert (mag / folder).is_symlink()


def test_two_paths_of_one_mag_share_a_lock(dataset):
    os.mkdir(f"{dataset.path}/alias")
    os.symlink("../color/1", f"{dataset.path}/alias/1")
    dataset.add_layer_from_disk("alias")
    eights = np.full((8, 8, 8), 9, np.uint8)
    wkwdask.to_wkw(eights, f"{dataset.path}/alias", region=((16, 16, 8), (24, 24, 16)))
    expected = VOXELS.copy()
    expected[10:18, 12:20, 6:14] = 9
    np.testing.assert_array_equal(dataset["color"].read()[0], expected)
    put_lock(f"{dataset.path}/color/1", far_process("a job"))
    with pytest.raises(LockedError, match="another job writes it: a job by somebody"):
        wkwdask.to_wkw(eights, f"{dataset.path}/alias", region=((8, 8, 8), (16, 16, 16)))


@pytest.mark.parametrize("relative", [True, False])
def test_references_work_in_a_dataset_reached_by_a_link(dataset, other, tmp_path, relative):
    (tmp_path / "home" / "me").mkdir(parents=True)
    os.symlink(other.path, tmp_path / "home" / "me" / "link")
    opened = wkwdask.open_dataset(tmp_path / "home" / "me" / "link").add_layer_as_ref(
        dataset["color"], "copy", relative=relative
    )
    np.testing.assert_array_equal(opened["copy"].read()[0], VOXELS)
    np.testing.assert_array_equal(other.refreshed()["copy"].read()[0], VOXELS)


def test_the_parent_of_a_link_target_is_resolved(dataset, tmp_path, monkeypatch):
    """It is not the parent of the link, which holds another mag."""
    (tmp_path / "far" / "below").mkdir(parents=True)
    wkwdask.write(tmp_path / "far" / "color" / "1", OFFSET, VOXELS // 2, **OPTIONS)
    os.symlink(tmp_path / "far" / "below", f"{dataset.path}/link")
    monkeypatch.chdir(dataset.path)
    np.testing.assert_array_equal(wkwdask.read("color/1")[0], VOXELS)
    np.testing.assert_array_equal(
        wkwdask.read("link/../color/1", ((6, 4, 2), (36, 30, 24)))[0], VOXELS // 2
    )
    wkwdask.rm("link/../color/1")
    assert not os.path.exists(tmp_path / "far" / "color" / "1")
    assert os.path.exists(f"{dataset.path}/color/1")


def test_a_linked_layer_is_removed_with_its_link(dataset, tmp_path):
    """Files beside it stay."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    os.rename(f"{dataset.path}/color", outside / "color")
    os.symlink(outside / "color", f"{dataset.path}/color")
    with pytest.raises(
        UnsupportedError, match=r"remove-layer .*allow_external=True deletes them there"
    ):
        dataset.remove_layer("color", delete_files=True)
    assert list(dataset.remove_layer("color", delete_files=True, allow_external=True).layers) == [
        "seg"
    ]
    assert sorted(os.listdir(dataset.path)) == [FILE_NAME, "seg"]
    assert os.listdir(outside) == ["precious"]
    wkwdask.rm(dataset.path)
    assert not os.path.exists(dataset.path)


def test_a_merge_into_a_linked_layer_needs_allow_external(dataset, tmp_path):
    annotation = tmp_path / "annotation"
    wkwdask.write(
        annotation / "1", (8, 8, 8), np.full((8, 8, 8), 7, np.uint64), block_len=8, file_len=1
    )
    (tmp_path / "outside").mkdir()
    os.symlink(tmp_path / "outside", f"{dataset.path}/merged")
    arguments = (f"{dataset.path}/seg/1", annotation, f"{dataset.path}/merged/1")
    with pytest.raises(UnsupportedError, match="allow_external"):
        wkwdask.merge(*arguments)
    wkwdask.merge(*arguments, allow_external=True)
    assert os.listdir(tmp_path / "outside") == ["1"]
    assert dataset.refreshed()["merged"].read(((8, 8, 8), (16, 16, 16))).max() == 7


def test_an_import_into_a_linked_layer_needs_allow_external(tmp_path):
    np.save(tmp_path / "voxels.npy", VOXELS)
    (tmp_path / "outside").mkdir()
    (tmp_path / "new").mkdir()
    os.symlink(tmp_path / "outside", tmp_path / "new" / "color")
    options = {"axes": "xyz", "voxel_size": (4, 4, 35), "offset": OFFSET, "pyramid": True}
    with pytest.raises(UnsupportedError, match="allow_external"):
        wkwdask.convert(tmp_path / "voxels.npy", tmp_path / "new" / "color" / "1", **options)
    wkwdask.convert(
        tmp_path / "voxels.npy", tmp_path / "new" / "color" / "1", allow_external=True, **options
    )
    color = wkwdask.open_dataset(tmp_path / "new")["color"]
    assert [mag.elsewhere for mag in color][:2] == [
        f"{tmp_path}/outside/1",
        f"{tmp_path}/outside/2-2-1",
    ]
    np.testing.assert_array_equal(color.read()[0], VOXELS)


def test_the_lock_of_a_linked_json_is_that_of_its_target(dataset):
    versions = Path(dataset.path) / "versions"
    versions.mkdir()
    os.rename(f"{dataset.path}/{FILE_NAME}", versions / FILE_NAME)
    os.symlink(f"versions/{FILE_NAME}", f"{dataset.path}/{FILE_NAME}")
    lock = put_lock(versions / FILE_NAME, this_process("an edit"))
    thread = threading.Thread(target=dataset.set_voxel_size, args=((1, 2, 3),))
    thread.start()
    thread.join(timeout=0.3)
    assert thread.is_alive()
    assert wkwdask.open_dataset(dataset.path).voxel_size == (4, 4, 35)
    lock.unlink()
    thread.join()
    assert wkwdask.open_dataset(dataset.path).voxel_size == (1, 2, 3)
    assert os.path.islink(f"{dataset.path}/{FILE_NAME}")


def test_an_external_pyramid_needs_allow_external(dataset, tmp_path):
    outside = tmp_path / "outside"
    os.rename(f"{dataset.path}/color", outside)
    os.symlink(outside, f"{dataset.path}/color")
    with pytest.raises(UnsupportedError, match="allow_external"):
        wkwdask.build_pyramid(dataset.path, "color", coarsest=8)
    wkwdask.build_pyramid(dataset.path, "color", mags=["8-8-2"], allow_external=True)
    assert sorted(os.listdir(outside)) == ["1", "2-2-1", "4-4-1", "8-8-2"]
    assert document_of(dataset.path)["dataLayers"][0]["mags"][3]["path"] == "./color/8-8-2"
    os.unlink(f"{dataset.path}/color")
    edit(
        dataset.path,
        lambda document: [
            mag.update(path=f"{outside}/{Path(mag['path']).name}")
            for mag in document["dataLayers"][0]["mags"]
        ],
    )
    expected = dataset.refreshed()["color"].read(mag="2-2-1")
    with pytest.raises(UnsupportedError, match="allow_external"):
        wkwdask.build_pyramid(dataset.path, "color", mags=["2-2-1"], existing="overwrite")
    wkwdask.build_pyramid(
        dataset.path, "color", mags=["2-2-1"], existing="overwrite", allow_external=True
    )
    np.testing.assert_array_equal(dataset.refreshed()["color"].read(mag="2-2-1"), expected)
    assert sorted(os.listdir(outside)) == ["1", "2-2-1", "4-4-1", "8-8-2"]
    assert document_of(dataset.path)["dataLayers"][0]["mags"][1]["path"] == f"{outside}/2-2-1"
    wkwdask.build_pyramid(
        dataset.path, "color", mags=["2-2-1"], update="content", allow_external=True
    )
    wkwdask.upsample(
        dataset.path,
        "color",
        source="4-4-1",
        mags=["2-2-1"],
        existing="overwrite",
        allow_external=True,
    )
    np.testing.assert_array_equal(
        dataset.refreshed()["color"].read(mag="2-2-1", box=((4, 4, 2), (6, 6, 3)))[0, 0],
        dataset["color"].read(mag="4-4-1", box=((2, 2, 2), (3, 3, 3)))[0, 0, 0, 0],
    )


@pytest.mark.parametrize("external", ["relative", "linked layer"], indirect=True)
def test_a_repair_of_external_files_needs_allow_external(external):
    place, dataset = external
    file = sorted(place.rglob("x*.wkw"))[0]
    good = file.read_bytes()
    file.write_bytes(good + b"rest")
    report = wkwdask.repair(dataset.path, layer="color")
    assert file.read_bytes() != good
    assert "allow_external" in str(report)
    wkwdask.repair(dataset.path, layer="color", allow_external=True)
    assert file.read_bytes() == good
