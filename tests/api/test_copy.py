"""Copies of whole files, blocks and voxels: renamed, moved, cut and interrupted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import rechunks_of, stopping
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run_here
from support.datasets import document_of, edit
from support.strategies import HEAVY
from support.wkw_files import spoil_block, stored_voxels

import wkwdask
from wkwdask.errors import BoundsError, CorruptError, ExistsError, MissingError, UnsupportedError

OFFSET = (16, 0, 40)
SHAPE = (50, 41, 30)


def voxels(seed=0):
    array = np.random.default_rng(seed).integers(0, 4, SHAPE).astype(np.uint32)
    array[:20, :20] = 0
    return array


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (11.24, 11.24, 28))
    wkwdask.to_wkw(
        voxels(), folder / "cells" / "1", offset=OFFSET, block_len=8, file_len=2, compression="lz4"
    )
    wkwdask.to_wkw(
        (voxels(1) * 60).astype(np.uint8),
        folder / "color" / "1",
        offset=OFFSET,
        block_len=8,
        file_len=2,
        compression="raw",
        category="color",
    )
    wkwdask.build_pyramid(folder, "cells", mags=["2-2-1"])
    edit(folder, lambda document: document["dataLayers"][0].update({"largestSegmentId": 3}))
    return folder


def layers(folder):
    return {layer["name"]: layer for layer in document_of(folder)["dataLayers"]}


def whole(folder, layer="cells", mag=1):
    return wkwdask.open(folder, layer=layer, mag=mag).compute()


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*.wkw")
    }


def undecodable(dataset):
    """Damage every block of the segmentation."""
    before = {path: path.read_bytes() for path in (dataset / "cells").rglob("x*.wkw")}
    for path in before:
        for number in range(8):
            spoil_block(path, number)
    return before


def test_a_dataset_is_copied_byte_for_byte(dataset, tmp_path):
    """Files keep their voxels outside the layer's box."""
    edit(
        dataset,
        lambda document: document["dataLayers"][0].update(
            {"boundingBox": {"topLeft": [18, 3, 41], "width": 47, "height": 30, "depth": 28}}
        ),
    )
    undecodable(dataset)
    report = wkwdask.copy(dataset, tmp_path / "copy")
    assert files(tmp_path / "copy") == files(dataset)
    assert report.files == sum(not name.endswith("header.wkw") for name in files(dataset))
    assert report.note == ""
    before, after = (document_of(folder) for folder in (dataset, tmp_path / "copy"))
    assert after["scale"] == before["scale"]
    for name, layer in layers(tmp_path / "copy").items():
        assert {**layer, "mags": None} == {**layers(dataset)[name], "mags": None}
    assert {path.name for path in (tmp_path / "copy").rglob(".wkwdask*")} == {
        ".wkwdask.json",
        ".wkwdask-files.npy",
        ".wkwdask-progress.jsonl",
    }


@pytest.mark.parametrize("translate", [(32, 0, 0), (32, 64, -32)])
def test_a_translation_by_whole_files_renames_them(dataset, tmp_path, translate):
    wkwdask.copy(dataset, tmp_path / "copy", translate=translate)
    for mag in ("1", "2-2-1"):
        np.testing.assert_array_equal(whole(tmp_path / "copy", mag=mag), whole(dataset, mag=mag))
    undecodable(dataset)
    wkwdask.copy(dataset, tmp_path / "copy", translate=translate, existing="overwrite")
    place = [a + b for a, b in zip(OFFSET, translate, strict=True)]
    assert layers(tmp_path / "copy")["cells"]["boundingBox"]["topLeft"] == place
    assert layers(tmp_path / "copy")["cells"]["largestSegmentId"] == 3
    assert sorted(files(tmp_path / "copy/cells/1").values()) == sorted(
        files(dataset / "cells/1").values()
    )


def test_a_layer_outside_of_the_box_is_left_out(dataset, tmp_path):
    wkwdask.write(
        dataset / "far" / "1",
        (512, 512, 512),
        np.ones((8, 8, 8), np.uint8),
        block_len=8,
        file_len=1,
        category="color",
    )
    box = wkwdask.open_dataset(dataset)["cells"].bounding_box
    report = wkwdask.copy(dataset, tmp_path / "cut", bounding_box=box)
    assert f"{dataset}/far/1 has no voxels in the bounding box" in report.note
    assert "far" not in layers(tmp_path / "cut")
    np.testing.assert_array_equal(whole(tmp_path / "cut"), whole(dataset))
    with pytest.raises(BoundsError, match="lies outside of the mag"):
        wkwdask.copy(dataset, tmp_path / "nothing", bounding_box=(2000, 2000, 2000, 4, 4, 4))
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("translate", [(16, 8, -40), (2, 4, -13)])
def test_a_translation_by_blocks_or_voxels_keeps_the_voxels(dataset, tmp_path, translate):
    report = wkwdask.copy(
        dataset, tmp_path / "copy", layer=["cells"], translate=translate, verify=True
    )
    for mag in ("1", "2-2-1"):
        np.testing.assert_array_equal(whole(tmp_path / "copy", mag=mag), whole(dataset, mag=mag))
    assert report.voxels == whole(dataset).size + whole(dataset, mag="2-2-1").size
    assert list(layers(tmp_path / "copy")) == ["cells"]


@HEAVY
@given(
    translate=st.tuples(*[st.integers(-16, 20) | st.sampled_from([-16, -8, 0, 8, 16, 32])] * 3),
    corners=st.tuples(*[st.floats(0, 1)] * 6),
    file_len=st.sampled_from([1, 2, 8]),
    cut=st.booleans(),
)
def test_any_translation_and_box_equals_numpy(tmp_path_factory, translate, corners, file_len, cut):
    folder, offset, shape = tmp_path_factory.mktemp("copy"), (16, 17, 16), (21, 9, 33)
    array = np.random.default_rng(0).integers(0, 3, shape).astype(np.uint16)
    wkwdask.write(
        folder / "layer" / "1", offset, array, block_len=8, file_len=file_len, compression="lz4"
    )
    low = [int(a * (n - 1)) for a, n in zip(corners[:3], shape, strict=True)]
    size = [1 + int(b * (n - a - 1)) for a, b, n in zip(low, corners[3:], shape, strict=True)]
    corner = [a + b for a, b in zip(low, offset, strict=True)]
    box = (*corner, *size) if cut else (*offset, *shape)
    with dask.config.set(scheduler="synchronous"):
        wkwdask.copy(
            folder / "layer" / "1", folder / "copy" / "1", translate=translate, bounding_box=box
        )
    expected = np.zeros((96, 96, 96), np.uint16)
    kept = tuple(slice(a, a + n) for a, n in zip(low, size, strict=True)) if cut else ...
    expected[
        tuple(slice(a + t, a + t + n) for a, n, t in zip(box[:3], box[3:], translate, strict=True))
    ] = array[kept]
    np.testing.assert_array_equal(stored_voxels(folder / "copy" / "1", (96, 96, 96))[0], expected)


def test_a_layer_is_copied_under_another_name(dataset, tmp_path):
    wkwdask.copy(dataset, tmp_path / "other", layer="color")
    wkwdask.copy(dataset / "cells", tmp_path / "other" / "labels", mags="1")
    assert sorted(layers(tmp_path / "other")) == ["color", "labels"]
    assert layers(tmp_path / "other")["labels"]["category"] == "segmentation"
    assert layers(tmp_path / "other")["labels"]["largestSegmentId"] == 3
    wkwdask.copy(dataset / "cells", tmp_path / "other" / "labels", mags=["2-2-1"])
    np.testing.assert_array_equal(
        whole(tmp_path / "other", "labels", "2-2-1"), whole(dataset, mag="2-2-1")
    )
    wkwdask.copy(
        dataset / "cells" / "1",
        dataset / "again" / "1",
        bounding_box=(20, 3, 41, 9, 9, 9),
        translate=(1, 1, 1),
    )
    np.testing.assert_array_equal(whole(dataset, "again"), whole(dataset)[:, 4:13, 3:12, 1:10])
    with pytest.raises(ExistsError, match="already exists"):
        wkwdask.copy(dataset / "cells" / "1", dataset / "again" / "1")
    wkwdask.copy(dataset / "cells" / "1", dataset / "again" / "1", existing="overwrite")
    np.testing.assert_array_equal(whole(dataset, "again"), whole(dataset))
    assert layers(dataset)["again"]["boundingBox"] == layers(dataset)["cells"]["boundingBox"]


def test_another_voxel_size_is_reported(dataset, tmp_path):
    wkwdask.create_dataset(tmp_path / "other", (4, 4, 4))
    report = wkwdask.copy(dataset / "cells", tmp_path / "other" / "cells")
    assert report.note == (
        f"voxels of {tmp_path}/other are (4.0, 4.0, 4.0) nm, the copied ones (11.24, 11.24, "
        "28.0) nm"
    )


def test_what_is_not_copied_is_named(dataset, tmp_path):
    (dataset / "cells" / "agglomerates").mkdir()
    (dataset / "notes.txt").write_text("mine")
    (dataset / "volume" / "1").mkdir(parents=True)
    other = {
        "name": "volume",
        "category": "color",
        "boundingBox": layers(dataset)["color"]["boundingBox"],
        "elementClass": "uint8",
        "dataFormat": "dicom",
    }
    edit(
        dataset,
        lambda document: document["dataLayers"].append(
            {**other, "mags": [{"mag": [1, 1, 1], "path": "./volume/1"}]}
        ),
    )
    report = wkwdask.copy(dataset, tmp_path / "copy")
    assert report.note == f"not copied: layer volume (dicom), {dataset}/cells/agglomerates"
    assert sorted(layers(tmp_path / "copy")) == ["cells", "color"]
    with pytest.raises(UnsupportedError, match="dicom"):
        wkwdask.copy(dataset, tmp_path / "copy", layer="volume")


def test_malformed_calls_are_refused(dataset, tmp_path):
    for options, message in (
        (
            {"translate": (3, 2, 0)},
            (
                r"translate must be a multiple of every mag that is copied, got \(3, 2, 0\), but "
                r"there is mag 2-2-1"
            ),
        ),
        ({"translate": (1, 2)}, "translate must be three"),
        ({"existing": "update"}, "existing must be"),
    ):
        with pytest.raises(ValueError, match=message):
            wkwdask.copy(dataset, tmp_path / "copy", **options)
        assert not (tmp_path / "copy" / "cells").exists()
    with pytest.raises(ValueError, match="is the source"):
        wkwdask.copy(dataset, dataset)
    with pytest.raises(ValueError, match=r"is named after mag 2, but .* is mag 1; name it 1"):
        wkwdask.copy(dataset / "cells" / "1", dataset / "other" / "2")
    with pytest.raises(MissingError, match="no layer 'x'"):
        wkwdask.copy(dataset, tmp_path / "copy", layer="x")
    with pytest.raises(BoundsError, match=r"starts at voxel \(16, 0, -1\)"):
        wkwdask.copy(dataset, tmp_path / "copy", translate=(0, 0, -41))
    with pytest.raises(BoundsError, match="lies outside of the mag"):
        wkwdask.copy(dataset, tmp_path / "copy", bounding_box=(500, 0, 0, 10, 10, 10))


def test_a_dataset_is_no_layer(dataset, tmp_path):
    other = tmp_path / "other"
    wkwdask.create_dataset(other, (11.24, 11.24, 28))
    for call in (
        lambda: wkwdask.copy(dataset / "cells", other),
        lambda: wkwdask.rechunk(dataset / "cells", other, compression="raw"),
        lambda: wkwdask.copy(dataset / "cells" / "1", other / "1"),
        lambda: wkwdask.save(voxels(), other / "1"),
    ):
        with pytest.raises(ValueError, match=r"other: is a dataset, .* such as .*other/LAYER/1"):
            call()
    assert [path.name for path in other.iterdir()] == ["datasource-properties.json"]


@pytest.mark.needs("zarr")
def test_a_copy_is_not_named_like_another_format(dataset, tmp_path):
    image, volume = f"zarr://{tmp_path}/a.zarr", f"precomputed://{tmp_path}/b"
    wkwdask.convert(dataset, image, layer="cells")
    wkwdask.convert(dataset, volume, layer="cells")
    for source, targets in (
        (dataset, ("precomputed://c", "zarr://c", "n5://c")),
        (image, ("precomputed://c", "n5://c", "c.n5", "c.npy", "c.tif")),
        (volume, ("zarr://c", "c.zarr", "c.n5/em")),
    ):
        for prefix, _, name in (target.rpartition("://") for target in targets):
            target = f"{prefix}://{tmp_path}/{name}" if prefix else tmp_path / name
            for job in (wkwdask.copy, wkwdask.rechunk):
                with pytest.raises(ValueError, match=r"a copy has the format of its source, "):
                    job(source, target)
    assert not list(tmp_path.glob("c*"))
    wkwdask.copy(image, tmp_path / "c.zarr")
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "c.zarr"), wkwdask.read(image))


def test_a_broken_file_is_not_copied(dataset, tmp_path):
    path = sorted((dataset / "cells" / "1").rglob("x*.wkw"))[0]
    path.write_bytes(
        path.read_bytes()[:16] + (1 << 40).to_bytes(8, "little") + path.read_bytes()[24:]
    )
    with pytest.raises(CorruptError, match=f"{path}.*byte"):
        wkwdask.copy(dataset / "cells", tmp_path / "copy")
    assert not (tmp_path / "copy" / "1").exists()


@pytest.mark.parametrize("options", [{}, {"translate": (3, 0, 0)}])
def test_an_interrupted_copy_is_resumed(dataset, tmp_path, options):
    copies = (dataset / "cells" / "1", tmp_path / "copy" / "1")
    with (
        rechunks_of(16),
        stopping(tmp_path / "log", 3, KeyboardInterrupt()),
        pytest.raises(KeyboardInterrupt),
    ):
        wkwdask.copy(*copies, **options)
    assert not (tmp_path / "copy" / "1").exists()
    with rechunks_of(16):
        report = wkwdask.copy(*copies, **options)
    assert "3 tasks had been finished before" in report.note
    assert wkwdask.copy(*copies, **options, existing="resume").note.startswith("nothing to do")


@pytest.mark.parametrize("code", [18, 22, 95])
def test_file_systems_without_copy_file_range_are_supported(dataset, tmp_path, monkeypatch, code):
    def refuses(*_):
        raise OSError(code, "no")

    monkeypatch.setattr(os, "copy_file_range", refuses)
    wkwdask.copy(dataset, tmp_path / "copy")
    assert files(tmp_path / "copy") == files(dataset)


def test_command(dataset, tmp_path):
    run = run_here(
        "copy", dataset, tmp_path / "copy", "--layer", "cells", "--translate=-8,0,3", "--mags", "1"
    )
    assert run.returncode == 0, run.output
    assert layers(tmp_path / "copy")["cells"]["boundingBox"]["topLeft"] == [8, 0, 43]
    run = run_here("copy", dataset, tmp_path / "copy", "--translate", "1,2")
    assert run.returncode == 2
    assert "three whole numbers" in run.output


def test_targets_are_checked_before_the_first_mag(dataset, tmp_path):
    wkwdask.rechunk(dataset / "color", tmp_path / "new" / "color", file_len=4)
    with pytest.raises(ExistsError):
        wkwdask.copy(dataset, tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["color"]


def test_a_mag_is_not_copied_into_itself(dataset):
    for target in (dataset / "cells" / "1" / "z0", dataset / "cells" / "1" / "1"):
        with pytest.raises(ValueError, match="lies inside of"):
            wkwdask.copy(dataset / "cells" / "1", target)


def test_the_copy_of_a_layer_of_precomputed_has_its_type(tmp_path):
    made = wkwdask.create_dataset(tmp_path / "ds", (4, 4, 8))
    box = (0, 0, 0, 20, 20, 20)  # of uint32 with one channel, which looks like a segmentation
    made.add_layer("em", "color", "uint32", box, data_format="neuroglancerPrecomputed")
    wkwdask.save(np.full((20, 20, 20), 7, np.uint32), tmp_path / "ds/em/1", chunk_shape=(8, 8, 8))
    wkwdask.copy(tmp_path / "ds/em", tmp_path / "ds/copy")
    assert json.loads((tmp_path / "ds/copy/info").read_bytes())["type"] == "image"
    wkwdask.rechunk(tmp_path / "ds/copy", chunk_shape=(16, 8, 32))
    assert (wkwdask.open(tmp_path / "ds/copy").compute() == 7).all()


@pytest.mark.parametrize("source", ["", "/color"])
def test_nothing_is_copied_into_itself(dataset, source):
    url = f"{dataset}{source}"
    before = sorted(dataset.rglob("*"))
    with pytest.raises(ValueError, match="copy: lies inside of the source"):
        wkwdask.copy(url, f"{url}/copy")
    assert sorted(dataset.rglob("*")) == before


@pytest.mark.parametrize("mags", [None, ["2-2-1"]])
def test_a_box_beside_the_finest_mag_is_refused_although_coarser_ones_are_rounded_outward(
    tmp_path, mags
):
    """The copy had coarser mags alone, in a layer whose bounding box was empty."""
    wkwdask.write(
        tmp_path / "ds" / "em" / "1", (3, 5, 1), np.ones((9, 9, 4), np.uint8), voxel_size=(4, 4, 8)
    )
    wkwdask.build_pyramid(tmp_path / "ds", mags=["2-2-1", "4-4-2"])
    box = (0, 5, 1, 3, 9, 4)
    with pytest.raises(BoundsError, match="lies outside of the mag"):
        wkwdask.copy(tmp_path / "ds", tmp_path / "cut", mags=mags, bounding_box=box)
    assert not (tmp_path / "cut").exists()


@pytest.mark.parametrize(
    ("scheme", "finest"),
    [
        ("precomputed", ""),
        ("n5", "/s0"),
        pytest.param("zarr", "", marks=pytest.mark.needs("zarr")),
    ],
)
def test_a_box_beside_the_finest_level_of_a_volume_is_refused(tmp_path, scheme, finest):
    """The copy had coarser levels alone."""
    source, target = (f"{scheme}://{tmp_path}/{name}.{scheme}/em" for name in ("a", "b"))
    wkwdask.save(
        np.ones((9, 9, 4), np.uint8), source + finest, offset=(3, 5, 1), voxel_size=(4, 4, 8)
    )
    wkwdask.build_pyramid(source, mags=["2-2-1", "4-4-2"])
    with pytest.raises(BoundsError, match="lies outside of the mag"):
        wkwdask.copy(source, target, bounding_box=(0, 5, 1, 3, 9, 4))
