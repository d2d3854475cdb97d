"""Conversion of images and arrays to WKW and back: datasets, broken sections, interruptions, a full
disk, the command."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import imports_of, runs, stopping
from PIL import Image
from PIL.PngImagePlugin import PngImageFile
from support.commands import run_here
from support.datasets import FILE_NAME, document_of
from support.inside import before_task, limited

import wkwdask
from wkwdask.errors import (
    BoundsError,
    CorruptError,
    DiscardWarning,
    ExistsError,
    MissingError,
    ResumeError,
    SectionWarning,
    UnsupportedError,
)

VOXEL_SIZE = (4, 4, 35)
OPTIONS = {"voxel_size": VOXEL_SIZE, "block_len": 8, "file_len": 2, "compression": "lz4"}


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def voxels(shape=(21, 30, 41), dtype=np.uint8, seed=0):
    """Sections (z, y, x)."""
    return np.random.default_rng(seed).integers(0, 255, shape).astype(dtype)


def save(folder, array, name="s{}.png"):
    folder.mkdir(exist_ok=True)
    for z, section in enumerate(array):
        Image.fromarray(section).save(folder / name.format(z))
    return folder


@pytest.fixture
def sections(tmp_path):
    return save(tmp_path / "sections", voxels())


def hidden(folder):
    return sorted(
        path.name
        for path in Path(folder).rglob(".*")
        if path.name not in (".wkwdask.json", ".wkwdask-files.npy", ".wkwdask-progress.jsonl")
    )


# ----------------------------------------------------------------------------- import


def test_sections_become_a_new_dataset(tmp_path, sections):
    report = wkwdask.convert(sections, tmp_path / "ds", offset=(5, 6, 7), **OPTIONS)
    assert (report.mags[0].voxels, report.mags[0].minimum, report.mags[0].maximum) == (
        21 * 30 * 41,
        0,
        254,
    )
    written = document_of(tmp_path / "ds")
    assert written["scale"] == {"factor": [4.0, 4.0, 35.0], "unit": "nanometer"}
    (layer,) = written["dataLayers"]
    assert (layer["name"], layer["category"], layer["elementClass"]) == ("color", "color", "uint8")
    assert layer["boundingBox"] == {"topLeft": [5, 6, 7], "width": 41, "height": 30, "depth": 21}
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds")[0], voxels().T)
    assert hidden(tmp_path) == []


def test_new_layers_are_named_after_their_content_or_as_requested(tmp_path, sections):
    np.save(tmp_path / "labels.npy", voxels(dtype=np.uint32))
    wkwdask.convert(tmp_path / "labels.npy", tmp_path / "ds", **OPTIONS)
    wkwdask.convert(sections, tmp_path / "ds", layer="em", **OPTIONS)
    wkwdask.convert(sections, tmp_path / "ds" / "other", category="segmentation")
    wkwdask.convert(sections, tmp_path / "ds" / "coarse" / "2-2-1", offset=(3, 4, 5))
    layers = document_of(tmp_path / "ds")["dataLayers"]
    assert [(layer["name"], layer["category"]) for layer in layers] == [
        ("segmentation", "segmentation"),
        ("em", "color"),
        ("other", "segmentation"),
        ("coarse", "color"),
    ]
    assert layers[3]["boundingBox"] == {
        "topLeft": [6, 8, 5],
        "width": 82,
        "height": 60,
        "depth": 21,
    }
    assert [mag["mag"] for mag in layers[3]["mags"]] == [[2, 2, 1]]
    with pytest.raises(ValueError, match="is mag 2-2-1, but the voxels to write are mag 1"):
        wkwdask.convert(sections, tmp_path / "ds" / "coarse" / "2-2-1", mag=1)
    for inside in ("em", "em/1", "new/1"):
        with pytest.raises(
            ValueError,
            match=rf"{inside}: is inside the dataset {tmp_path}/ds, but layer= needs a dataset",
        ):
            wkwdask.convert(sections, tmp_path / "ds" / inside, layer="em", **OPTIONS)
    assert not (tmp_path / "ds" / "em" / "1" / "em").exists()


def test_a_new_dataset_needs_a_voxel_size(tmp_path, sections):
    with pytest.raises(ValueError, match="a new dataset needs a voxel size"):
        wkwdask.convert(sections, tmp_path / "ds")
    assert not (tmp_path / "ds").exists()
    wkwdask.convert(sections, tmp_path / "ds", voxel_size=(0.004, 0.004, 0.04), unit="um")
    assert document_of(tmp_path / "ds")["scale"]["factor"] == [4.0, 4.0, 40.0]
    with pytest.raises(
        ValueError, match=r"the voxel size is \(4.0, 4.0, 40.0\) nm, not \(5.0, 4.0, 40.0\) nm"
    ):
        wkwdask.convert(sections, tmp_path / "ds", layer="again", voxel_size=(5, 4, 40))
    for wrong in (
        (4, 4),
        (4, 4, 0),
        (4, 4, -1),
        (4, float("inf"), 4),
        (float("nan"), 4, 4),
        (4, 4, 1e400),
    ):
        with pytest.raises(ValueError, match="voxel_size must be three positive, finite lengths"):
            wkwdask.convert(sections, tmp_path / "new", voxel_size=wrong)
    with pytest.raises(ValueError, match="unit must be a unit of length"):
        wkwdask.convert(sections, tmp_path / "new", voxel_size=(4, 4, 4), unit="mag")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": (1,)}, r"channels must be some of 0\.\.0, got 1"),
        ({"offset": (0, 0, -1)}, "offset must not be negative"),
        ({"value_range": (5, 5)}, "the range of values must be a lower and a higher number"),
        ({"value_range": (0, float("inf"))}, "a lower and a higher number, both finite"),
        ({"value_range": (float("nan"), 5)}, "a lower and a higher number, both finite"),
        ({"value_range": (5,)}, "value_range must be two numbers"),
        ({"value_range": 5}, "value_range must be two numbers, .* got 5"),
        ({"value_range": (None, 5)}, "value_range must be two numbers"),
        ({"dtype": "bytes!"}, "dtype must be a type of numpy"),
        ({"offset": 5}, r"offset must be three whole numbers \(x, y, z\), got 5"),
        ({"layer": ".."}, r"a layer name consists of .*; got '\.\.'"),
        ({"layer": "../../evil"}, "a layer name consists of"),
        ({"layer": "a/b"}, "a layer name consists of"),
        ({"layer": ""}, "a layer name consists of"),
        ({"layer": "a\n"}, "a layer name consists of"),
        ({"on_error": "ignore"}, 'on_error must be "fail" or "fill"'),
        ({"existing": "maybe"}, "existing must be"),
        ({"bounding_box": (100, 0, 0, 5, 5, 5)}, "lies outside of the source"),
        ({"category": "raw"}, 'category must be "color" or "segmentation"'),
        ({"block_len": 7}, "block_len"),
    ],
)
def test_malformed_options_are_refused(tmp_path, sections, options, message):
    with pytest.raises((TypeError, ValueError, BoundsError), match=message):
        wkwdask.convert(sections, tmp_path / "ds", voxel_size=VOXEL_SIZE, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sections"]


@pytest.mark.parametrize("name", ["a.tif", "a.ome.tif", "a.npy", "a.zarr"])
def test_images_are_not_converted_to_other_images(tmp_path, sections, name):
    with pytest.raises(
        UnsupportedError,
        match=(
            rf"{name}: named as images or an array, and .*sections is not a volume that can be "
            r"exported"
        ),
    ):
        wkwdask.convert(sections, tmp_path / name, **OPTIONS)
    assert not (tmp_path / name).exists()


def test_existing_layers_may_have_names_that_new_ones_may_not(tmp_path, sections):
    wkwdask.convert(sections, tmp_path / "ds", layer="em_2.a$@-", **OPTIONS)
    with pytest.raises(ValueError, match=r"a layer name consists of .*; got 'my layer'"):
        wkwdask.convert(sections, tmp_path / "ds" / "my layer" / "1", **OPTIONS)
    with pytest.raises(ValueError, match=r"a layer name consists of .*; got 'my layer'"):
        wkwdask.to_wkw(np.ones((1, 8, 8, 8), np.uint8), tmp_path / "ds" / "my layer" / "1")
    (tmp_path / "ds" / "em_2.a$@-").rename(tmp_path / "ds" / "my layer")
    path = tmp_path / "ds" / FILE_NAME
    path.write_text(path.read_text().replace("em_2.a$@-", "my layer"))
    wkwdask.convert(
        sections, tmp_path / "ds", layer="my layer", **(OPTIONS | {"existing": "overwrite"})
    )
    wkwdask.copy(tmp_path / "ds", tmp_path / "copy")
    for dataset in ("ds", "copy"):
        assert [layer["name"] for layer in document_of(tmp_path / dataset)["dataLayers"]] == [
            "my layer"
        ]
        np.testing.assert_array_equal(wkwdask.read(tmp_path / dataset)[0], voxels().T)


def test_a_new_dataset_appears_with_its_first_mag(tmp_path, sections):
    """A failed call leaves no JSON that constrains a later one."""
    np.save(tmp_path / "a.npy", voxels(dtype=np.uint16))
    with pytest.raises(BoundsError, match="does not fit into int8"):
        wkwdask.convert(tmp_path / "a.npy", tmp_path / "ds", dtype="int8", voxel_size=(1, 2, 3))
    assert not (tmp_path / "ds" / FILE_NAME).exists()
    with (
        imports_of(8),
        stopping(tmp_path / "log", 2, OSError("the plug")),
        pytest.raises(OSError, match="the plug"),
    ):
        wkwdask.convert(sections, tmp_path / "ds", layer="first", **OPTIONS)
    wkwdask.convert(tmp_path / "a.npy", tmp_path / "ds", layer="second", **OPTIONS)
    wkwdask.convert(sections, tmp_path / "ds", layer="first", **OPTIONS)
    written = document_of(tmp_path / "ds")
    assert written["scale"]["factor"] == [4.0, 4.0, 35.0]
    assert [layer["name"] for layer in written["dataLayers"]] == ["second", "first"]


def test_two_concurrent_first_imports_share_a_json(tmp_path, sections):
    def meanwhile():
        wkwdask.convert(sections, tmp_path / "ds", layer="inner", **OPTIONS)

    with before_task(1, meanwhile):
        wkwdask.convert(sections, tmp_path / "ds", layer="outer", **OPTIONS)
    assert [layer["name"] for layer in document_of(tmp_path / "ds")["dataLayers"]] == [
        "inner",
        "outer",
    ]
    shutil.rmtree(tmp_path / "ds")
    with (
        before_task(1, meanwhile),
        pytest.raises(
            ValueError, match=r"the voxel size is \(4.0, 4.0, 35.0\) nm, not \(9.0, 9.0, 9.0\) nm"
        ),
    ):
        wkwdask.convert(
            sections, tmp_path / "ds", layer="outer", **(OPTIONS | {"voxel_size": (9, 9, 9)})
        )
    report = wkwdask.convert(
        sections,
        tmp_path / "ds",
        layer="outer",
        **{name: value for name, value in OPTIONS.items() if name != "voxel_size"},
    )
    assert "had been finished before" in report.note
    assert [layer["name"] for layer in document_of(tmp_path / "ds")["dataLayers"]] == [
        "inner",
        "outer",
    ]


def test_stale_coarser_mags_are_named(tmp_path, sections):
    """The remedy that the report names works."""
    wkwdask.convert(sections, tmp_path / "ds", pyramid=True, **OPTIONS)
    save(sections, voxels(seed=1))
    assert (
        wkwdask.convert(
            sections, tmp_path / "ds", pyramid=True, **(OPTIONS | {"existing": "overwrite"})
        ).note
        == ""
    )
    before = wkwdask.read(tmp_path / "ds", mag="2-2-1")
    save(sections, voxels(seed=2))
    note = wkwdask.convert(sections, tmp_path / "ds", **(OPTIONS | {"existing": "overwrite"})).note
    assert note.startswith("existing coarser mags are not changed: 2-2-1, 4-4-1")
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds", mag="2-2-1"), before)
    assert "build_pyramid(update=True) brings them up to date" in note
    wkwdask.build_pyramid(tmp_path / "ds", update=True)
    wkwdask.convert(sections, tmp_path / "two", pyramid=True, **OPTIONS)
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds", mag="2-2-1"), wkwdask.read(tmp_path / "two", mag="2-2-1")
    )
    shutil.rmtree(tmp_path / "ds" / "color" / "1")
    assert (
        "are not changed: 2-2-1, 4-4-1"
        in wkwdask.convert(sections, tmp_path / "ds", **OPTIONS).note
    )


def test_values_are_converted_to_other_types(tmp_path):
    array = voxels(dtype=np.uint16) * 17
    np.save(tmp_path / "a.npy", array)
    wkwdask.convert(
        tmp_path / "a.npy",
        tmp_path / "ds",
        layer="scaled",
        dtype="uint8",
        value_range=(0, 4095),
        **OPTIONS,
    )
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds", layer="scaled")[0].T,
        np.minimum(np.rint(array * (255 / 4095)), 255),
    )
    with pytest.raises(
        BoundsError,
        match=r"a\.npy: voxel \(.*\) of channel 0: \d+ does not fit into uint8; scale the values",
    ):
        wkwdask.convert(tmp_path / "a.npy", tmp_path / "ds", layer="cast", dtype="uint8", **OPTIONS)
    assert not (tmp_path / "ds" / "cast" / "1").exists()
    wkwdask.convert(tmp_path / "a.npy", tmp_path / "ds", layer="cast", dtype="uint32", **OPTIONS)
    assert wkwdask.read(tmp_path / "ds", layer="cast").dtype == np.uint32


def test_colors_become_channels(tmp_path):
    """Alpha is included on request."""
    array = voxels((9, 10, 11, 4))
    save(tmp_path / "rgba", array)
    wkwdask.convert(tmp_path / "rgba", tmp_path / "ds", layer="all", **OPTIONS)
    wkwdask.convert(tmp_path / "rgba", tmp_path / "ds", layer="bgr", channels=(2, 1, 0), **OPTIONS)
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds", layer="all"), array.transpose(3, 2, 1, 0)
    )
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds", layer="bgr"), array[..., 2::-1].transpose(3, 2, 1, 0)
    )
    assert [layer["elementClass"] for layer in document_of(tmp_path / "ds")["dataLayers"]] == [
        "uint32",
        "uint24",
    ]


def test_a_box_is_in_voxels_of_the_dataset(tmp_path, sections):
    wkwdask.convert(
        sections, tmp_path / "ds", offset=(5, 6, 7), bounding_box=(10, 0, 9, 20, 11, 100), **OPTIONS
    )
    assert document_of(tmp_path / "ds")["dataLayers"][0]["boundingBox"] == {
        "topLeft": [10, 6, 9],
        "width": 20,
        "height": 5,
        "depth": 19,
    }
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds")[0], voxels().T[5:25, :5, 2:])


def test_the_pyramid_is_built_in_the_same_call(tmp_path, sections):
    report = wkwdask.convert(sections, tmp_path / "ds", pyramid=True, **OPTIONS)
    wkwdask.convert(sections, tmp_path / "two", **OPTIONS)
    wkwdask.build_pyramid(tmp_path / "two")
    mags = [mag["mag"] for mag in document_of(tmp_path / "ds")["dataLayers"][0]["mags"]]
    assert len(report.mags) == len(mags) > 1
    assert mags == [mag["mag"] for mag in document_of(tmp_path / "two")["dataLayers"][0]["mags"]]
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds", mag="2-2-1"), wkwdask.read(tmp_path / "two", mag="2-2-1")
    )
    # a run may have been killed at its very end
    assert (
        "nothing to do" in wkwdask.convert(sections, tmp_path / "ds", pyramid=True, **OPTIONS).note
    )
    with pytest.raises(ExistsError):
        wkwdask.convert(sections, tmp_path / "ds", **OPTIONS)
    shutil.rmtree(tmp_path / "ds" / "color" / "2-2-1")  # as if the pyramid had not been built yet
    shutil.rmtree(tmp_path / "ds" / "color" / "4-4-1")
    wkwdask.convert(sections, tmp_path / "ds", pyramid=True, **OPTIONS)
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds", mag="2-2-1"), wkwdask.read(tmp_path / "two", mag="2-2-1")
    )


def test_sections_come_from_patterns_and_lists(tmp_path, sections):
    array = voxels()
    with pytest.raises(MissingError, match=r"sections seem to be missing: 12; "):
        wkwdask.convert(f"{sections}/s1[013].png", tmp_path / "ds", layer="two", **OPTIONS)
    wkwdask.convert(f"{sections}/s1[036].png", tmp_path / "ds", layer="two", **OPTIONS)
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds", layer="two")[0].T, array[[10, 13, 16]]
    )
    wkwdask.convert(
        [sections / "s3.png", sections / "s1.png"], tmp_path / "ds", layer="list", **OPTIONS
    )
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds", layer="list")[0].T, array[[3, 1]])


def test_missing_and_broken_sections_are_named(tmp_path, sections):
    """On request they become zeros."""
    array = voxels()
    (sections / "s4.png").unlink()
    raw = (sections / "s9.png").read_bytes()
    (sections / "s9.png").write_bytes(raw[:-200])
    Image.fromarray(voxels((5, 5))).save(sections / "s2.png")
    with pytest.raises(
        CorruptError,
        match=(
            r"s2\.png: has 5 x 5 pixels of uint8, expected 41 "
            r"x 30 pixels of uint8 like most slices"
        ),
    ):
        wkwdask.convert(sections, tmp_path / "ds", **OPTIONS)
    Image.fromarray(array[2]).save(sections / "s2.png")
    with pytest.raises(MissingError, match=r"sections: sections seem to be missing: 4; "):
        wkwdask.convert(sections, tmp_path / "ds", **OPTIONS)
    Image.fromarray(array[4]).save(sections / "s4.png")
    with pytest.raises(CorruptError, match=r"s9\.png: cannot be decoded"):
        wkwdask.convert(sections, tmp_path / "ds", **OPTIONS)
    (sections / "s4.png").unlink()
    assert not (tmp_path / "ds" / "color" / "1").exists()
    Image.fromarray(voxels((5, 5))).save(sections / "s2.png")
    with imports_of(8), pytest.warns(SectionWarning) as caught:
        report = wkwdask.convert(
            sections, tmp_path / "ds", on_error="fill", existing="overwrite", **OPTIONS
        )
    assert len(caught) == 2
    array[[2, 4, 9]] = 0
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds")[0].T, array)
    lines = report.note.splitlines()
    assert lines[0] == "missing sections, filled with zeros: 4"
    assert lines[1].startswith(f"filled with zeros: {sections}/s2.png: has 5 x 5 pixels")
    assert lines[2].startswith(f"filled with zeros: {sections}/s9.png: cannot be decoded")
    assert len(lines) == 3
    assert hidden(tmp_path) == []


def test_an_interrupted_import_is_resumed(tmp_path, sections):
    with imports_of(8):
        wkwdask.convert(sections, tmp_path / "whole", **OPTIONS)
        with (
            stopping(tmp_path / "log", 2, OSError("the plug")),
            pytest.raises(OSError, match="the plug") as caught,
        ):
            wkwdask.convert(sections, tmp_path / "ds", **OPTIONS)
        assert any("the same call resumes" in note for note in caught.value.__notes__)
        assert not (tmp_path / "ds" / FILE_NAME).exists()
        with pytest.raises(ResumeError, match="compression was lz4, is raw"):
            wkwdask.convert(sections, tmp_path / "ds", **(OPTIONS | {"compression": "raw"}))
    with stopping(tmp_path / "log2", 99, OSError):  # with the regions of the first start
        report = wkwdask.convert(sections, tmp_path / "ds", **OPTIONS)
    assert "2 tasks had been finished before" in report.note
    assert not set(runs(tmp_path / "log")) & set(runs(tmp_path / "log2"))
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds")[0], voxels().T)
    assert hidden(tmp_path) == []


def test_changed_sections_are_not_resumed(tmp_path, sections):
    with (
        imports_of(8),
        stopping(tmp_path / "log", 2, OSError("the plug")),
        pytest.raises(OSError, match="the plug"),
    ):
        wkwdask.convert(sections, tmp_path / "ds", **OPTIONS)
    Image.fromarray(voxels(seed=1)[0]).save(sections / "s0.png")
    with pytest.raises(ResumeError, match="the source was replaced"):
        wkwdask.convert(sections, tmp_path / "ds", **OPTIONS)
    with pytest.warns(DiscardWarning, match="2 tasks"):
        wkwdask.convert(sections, tmp_path / "ds", existing="restart", **OPTIONS)
    assert (
        "nothing to do"
        in wkwdask.convert(sections, tmp_path / "ds", existing="resume", **OPTIONS).note
    )
    with pytest.raises(ExistsError):
        wkwdask.convert(sections, tmp_path / "ds", **OPTIONS)
    Image.fromarray(voxels(seed=2)[0]).save(sections / "s0.png")
    with pytest.raises(ResumeError, match="the source was replaced"):
        wkwdask.convert(sections, tmp_path / "ds", existing="resume", **OPTIONS)


class FullDisk:
    """Fail writes as a full disk does, after some bytes."""

    def __init__(self, monkeypatch, nbytes):
        self.left, self.pwrite = nbytes, os.pwrite
        monkeypatch.setattr(os, "pwrite", self)

    def __call__(self, fd, data, offset):
        self.left -= len(data)
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.pwrite(fd, data, offset)


def test_a_full_disk_is_named_and_the_work_resumed(tmp_path, sections, monkeypatch):
    with imports_of(8), monkeypatch.context() as patched:
        FullDisk(patched, 20_000)
        with pytest.raises(OSError, match="No space left on device") as caught:
            wkwdask.convert(sections, tmp_path / "ds", **OPTIONS)
    assert str(tmp_path / "ds") in str(caught.value)
    assert not (tmp_path / "ds" / "color" / "1").exists()
    report = wkwdask.convert(sections, tmp_path / "ds", **OPTIONS)
    assert "had been finished before" in report.note
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds")[0], voxels().T)
    with monkeypatch.context() as patched:
        FullDisk(patched, 10_000)
        with pytest.raises(OSError, match=r"No space left on device: '.*out\.npy'"):
            wkwdask.convert(tmp_path / "ds", tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()
    wkwdask.convert(tmp_path / "ds", tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), voxels())
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("options", [{}, {"dtype": "uint16"}, {"channels": (0,)}])
def test_sections_too_large_for_memory_are_read_in_strips_once(tmp_path, monkeypatch, options):
    array = voxels((21, 60, 81))
    sections, decoded, load = save(tmp_path / "s", array), [], PngImageFile.load_end
    monkeypatch.setattr(
        PngImageFile, "load_end", lambda image: decoded.append(image.filename) or load(image)
    )
    with limited(section_nbytes=8 * 81 * 20):
        wkwdask.convert(sections, tmp_path / "ds", offset=(3, 1, 2), **OPTIONS, **options)
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds")[0].T, array)
    assert len(decoded) == len(set(decoded)) == 21
    assert hidden(tmp_path) == []


def written():
    """Count the bytes that this process has written so far."""
    return int(
        next(
            line
            for line in Path("/proc/self/io").read_text().splitlines()
            if line.startswith("wchar")
        ).split()[1]
    )


def test_no_uncompressed_copy_is_written(tmp_path):
    array = np.zeros((64, 128, 128), np.uint8)
    array[:, 5, 5] = 1
    save(tmp_path / "s", array)
    wkwdask.convert(tmp_path / "s", tmp_path / "first", **OPTIONS)  # compiles
    before = written()
    wkwdask.convert(tmp_path / "s", tmp_path / "ds", **OPTIONS)
    assert 0 < written() - before < array.nbytes / 4


# ----------------------------------------------------------------------------- export


@pytest.fixture
def dataset(tmp_path, sections):
    wkwdask.convert(sections, tmp_path / "ds", offset=(5, 6, 7), **OPTIONS)
    return tmp_path / "ds"


@pytest.mark.parametrize("box", [None, (9, 10, 11, 20, 9, 7)])
def test_a_level_becomes_an_npy_file(tmp_path, dataset, box):
    report = wkwdask.convert(dataset, tmp_path / "a.npy", bounding_box=box)
    expected = voxels() if box is None else voxels()[4:11, 4:13, 4:24]
    found = np.load(tmp_path / "a.npy")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)
    assert (report.files, report.voxels, report.nbytes_out) == (
        1,
        expected.size,
        (tmp_path / "a.npy").stat().st_size,
    )
    assert hidden(tmp_path) == []


def test_exported_values_are_scaled(tmp_path, dataset):
    wkwdask.convert(dataset, tmp_path / "a.npy", dtype="float32", value_range=(0, 254))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), (voxels() / 254).astype(np.float32))


def test_existing_targets_are_replaced_only_on_request(tmp_path, dataset):
    wkwdask.convert(dataset, tmp_path / "a.npy")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for target in ("a.npy", "mine"):
        with pytest.raises(ExistsError, match="already exists"):
            wkwdask.convert(dataset, tmp_path / target)
    with pytest.raises(
        ExistsError,
        match=r"holds something else \(notes\.txt\) than sections .* and is not replaced",
    ):
        wkwdask.convert(dataset, tmp_path / "mine", existing="overwrite")
    wkwdask.convert(
        dataset, tmp_path / "a.npy", bounding_box=(5, 6, 7, 1, 1, 1), existing="overwrite"
    )
    assert np.load(tmp_path / "a.npy").shape == (1, 1, 1)


def trees(folder):
    """Contents of all files of a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_folders_of_other_software_are_not_replaced(tmp_path, dataset):
    """Raw sections, Zarr groups and arrays, a folder named like a section, links."""
    zarr = pytest.importorskip("zarr", reason="zarr, of the extra convert, is not installed")
    pytest.importorskip("tifffile", reason="tifffile, of the extra convert, is not installed")
    targets = tmp_path / "targets"
    for name in ("raw", "sub", "link", "extra"):
        (targets / name).mkdir(parents=True)
    (targets / "raw" / "section_000.tif").write_bytes(b"raw")
    (targets / "sub" / "z0000.tif").mkdir()
    (targets / "link" / "z0000.tif").symlink_to(targets / "raw" / "section_000.tif")
    zarr.create_group(str(targets / "group.zarr")).create_array("a", shape=(3,), dtype="uint8")
    zarr.create_array(
        str(targets / "array.zarr"), shape=(3,), dtype="uint8", attributes={"mine": 1}
    )
    wkwdask.convert(dataset, targets / "own.zarr")
    (targets / "own.zarr" / "notes").write_text("mine")
    before = trees(targets)
    for target in ("raw", "sub", "link", "group.zarr", "array.zarr", "own.zarr"):
        with pytest.raises(ExistsError, match=r"holds something else \(.*\) than sections"):
            wkwdask.convert(dataset, targets / target, existing="overwrite")
    assert trees(targets) == before
    (targets / "own.zarr" / "notes").unlink()
    for target in ("own.zarr", "sections", "sections"):
        report = wkwdask.convert(dataset, targets / target, existing="overwrite")
    assert report.note.startswith("a folder with one TIFF for each section, named by its z")
    assert len(list((targets / "sections").iterdir())) == 21
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("existing", ["error", "overwrite"])
def test_targets_of_another_kind_are_refused_before_any_work(tmp_path, dataset, existing):
    (tmp_path / "a.npy").mkdir()
    (tmp_path / "b.npy").write_text("mine")
    (tmp_path / "c.npy").symlink_to(tmp_path / "b.npy")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "d").symlink_to(tmp_path / "folder")
    (tmp_path / "e.npy").symlink_to(tmp_path / "nothing")
    before = trees(tmp_path)
    with stopping(tmp_path / "log", 0, AssertionError("it began to work")):
        for name, message in (
            ("a.npy", "is a folder, expected"),
            ("c.npy", "symbolic link"),
            ("d", "symbolic link"),
            ("e.npy", "symbolic link"),
            ("file", "already exists" if existing == "error" else "is a file, expected"),
        ):
            with pytest.raises(ExistsError, match=message):
                wkwdask.convert(dataset, tmp_path / name, existing=existing)
    assert {
        name: data for name, data in trees(tmp_path).items() if not name.startswith("log")
    } == before


@pytest.mark.parametrize(
    "option",
    [
        {"axes": "zyx"},
        {"voxel_size": VOXEL_SIZE},
        {"pyramid": True},
        {"category": "color"},
        {"offset": (1, 0, 0)},
        {"on_error": "fill"},
    ],
)
def test_an_export_refuses_options_of_an_import(tmp_path, dataset, option):
    with pytest.raises(
        ValueError, match=r"a\.npy: .* would be exported as images, to which \w+= does not apply"
    ):
        wkwdask.convert(dataset, tmp_path / "a.npy", **option)


def test_malformed_exports_are_refused(tmp_path, dataset):
    for target in ("a.npy", "a.ome.zarr", "a.ozx", "other"):
        with pytest.raises(ValueError, match="unit= is that of voxel_size=, which is not given"):
            wkwdask.convert(dataset, tmp_path / target, unit="um")
    with pytest.raises(ValueError, match="a lower and a higher number, both finite"):
        wkwdask.convert(dataset, tmp_path / "a.npy", value_range=(0, float("inf")))
    with pytest.raises(BoundsError, match="nothing to export"):
        wkwdask.convert(dataset, tmp_path / "a.npy", bounding_box=(0, 0, 0, 2, 2, 2))
    with pytest.raises(ValueError, match="compression is for TIFF"):
        wkwdask.convert(dataset, tmp_path / "a.npy", compression="zlib")
    with pytest.raises(ValueError, match="compression of TIFF must be one of"):
        wkwdask.convert(dataset, tmp_path / "a.tif", compression="lz4hc")
    for name in ("a.png", "a.h5", "a.MRC"):
        with pytest.raises(UnsupportedError, match="is read but not written"):
            wkwdask.convert(dataset, tmp_path / name)
    with pytest.raises(UnsupportedError, match="the source is WKW too: use rechunk"):
        wkwdask.convert(dataset, tmp_path / "other" / "color" / "1")
    with pytest.raises(MissingError, match="no layer 'other'"):
        wkwdask.convert(dataset, tmp_path / "a.npy", layer="other")
    assert hidden(tmp_path) == []


def test_an_interrupted_export_is_resumed(tmp_path, dataset):
    with (
        stopping(tmp_path / "log", 2, OSError("the plug")),
        pytest.raises(OSError, match="the plug") as caught,
    ):
        wkwdask.convert(dataset, tmp_path / "a.npy", bounding_box=(5, 6, 7, 41, 30, 21))
    assert any("the same call resumes" in note for note in caught.value.__notes__)
    assert not (tmp_path / "a.npy").exists()
    with pytest.raises(ResumeError, match="box was 5,6,7,41,30,21, is 5,6,7,41,30,20"):
        wkwdask.convert(dataset, tmp_path / "a.npy", bounding_box=(5, 6, 7, 41, 30, 20))
    with stopping(tmp_path / "log2", 99, OSError):
        report = wkwdask.convert(dataset, tmp_path / "a.npy")
    assert "2 tasks had been finished before" in report.note
    assert not set(runs(tmp_path / "log")) & set(runs(tmp_path / "log2"))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), voxels())
    assert hidden(tmp_path) == []


# ----------------------------------------------------------------------------- command line, real
# data


def run(*arguments):
    done = run_here(*arguments)
    assert done.returncode == 0, done.output
    return done


def test_command(tmp_path):
    array = voxels(dtype=np.uint16) * 200
    np.save(tmp_path / "a.npy", array)
    run(
        "convert",
        tmp_path / "a.npy",
        tmp_path / "ds",
        "--layer",
        "em",
        "--voxel-size",
        "0.004,0.004,0.035",
        "--unit",
        "um",
        "--dtype",
        "uint8",
        "--range",
        "0,51000",
        "--offset",
        "5,6,7",
        "--pyramid",
        "--block-len",
        "8",
        "--file-len",
        "2",
        "--compression",
        "raw",
        "--axes",
        "zyx",
    )
    found = wkwdask.read(tmp_path / "ds", layer="em", mag=1)[0].T
    np.testing.assert_array_equal(found, np.rint(array * (255 / 51000)))
    assert len(document_of(tmp_path / "ds")["dataLayers"][0]["mags"]) > 1
    done = run(
        "convert",
        tmp_path / "ds" / "em" / "1",
        tmp_path / "b.npy",
        "--bounding-box",
        "5,6,7,10,10,10",
    )
    assert "b.npy: 1 file, 1,000 voxels" in done.output
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), found[:10, :10, :10])
    done = run_here("convert", tmp_path / "a.npy", tmp_path / "x", "--voxel-size", "4,4")
    assert done.returncode == 1
    assert "voxel" in done.output
    done = run_here("convert", tmp_path / "a.npy", tmp_path / "x", "--offset", "a,b,c")
    assert "--offset takes numbers with commas between them" in done.output
    done = run_here("convert", tmp_path / "a.npy", tmp_path / "x", "--range", "5")
    assert "--range takes two numbers, LOW,HIGH, got 1" in done.output


def test_command_names_missing_sections(tmp_path, sections):
    (sections / "s3.png").unlink()
    for options in ((), ("--dry-run",), ("--pyramid",)):
        done = run_here("convert", sections, tmp_path / "ds", "--voxel-size", "4,4,35", *options)
        assert done.returncode == 1
        assert "sections seem to be missing: 3; " in done.output
        assert not (tmp_path / "ds").exists()
    done = run("convert", sections, tmp_path / "ds", "--voxel-size", "4,4,35", "--on-error", "fill")
    assert done.output.count("missing sections, filled with zeros: 3") == 1
    done = run(
        "convert", sections / "s0.png", sections / "s1.png", tmp_path / "ds", "--layer", "two"
    )
    assert wkwdask.read(tmp_path / "ds", layer="two").shape == (1, 41, 30, 2)


def test_real_tiles_become_sections(tmp_path, shared_data):
    chosen = [
        shared_data / "em_tiles" / name
        for name in ("1_60_140.jpg", "2_60_140.jpg", "40_60_144.jpg")
    ]
    wkwdask.convert(chosen, tmp_path / "ds", layer="list", voxel_size=(4, 4, 40), pyramid=True)
    wkwdask.convert(f"{shared_data}/em_tiles/[12]_60_140.jpg", tmp_path / "ds", layer="pattern")
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds", layer="pattern"),
        wkwdask.read(tmp_path / "ds", layer="list", mag=1)[..., :2],
    )
    expected = np.stack([np.asarray(Image.open(name)) for name in chosen])
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ds", layer="list", mag=1)[0].T, expected)


@pytest.mark.parametrize(("layer", "mag"), [("color", "2-2-1"), ("segmentation", "4-4-2")])
def test_the_real_sample_survives_export_and_import(tmp_path, shared_data, layer, mag):
    source = shared_data / "l4_sample"
    wkwdask.convert(source, tmp_path / "a.npy", layer=layer, mag=mag)
    (found,) = (one for one in wkwdask.info(source).layers if one.name == layer)
    box = found.bounding_box.in_mag(wkwdask.Mag.parse(mag))
    wkwdask.convert(
        tmp_path / "a.npy",
        tmp_path / "back",
        layer=layer,
        mag=mag,
        offset=box.topleft,
        voxel_size=(11.24, 11.24, 28),
    )
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "back", layer=layer, mag=mag),
        wkwdask.read(source, layer=layer, mag=mag),
    )
