"""Rechunked mags, in place and elsewhere: whole datasets, boxes, interruptions, refusals."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import logged, rechunks_of, runs, stopping
from support.commands import run_here
from support.datasets import FILE_NAME
from support.inside import before_task
from support.wkw_files import Header, decode_file, encode_file, stored_voxels

import wkwdask
from wkwdask.errors import (
    BoundsError,
    DiscardWarning,
    ExistsError,
    IncompleteWriteError,
    MissingError,
    ResumeError,
)

OFFSET = (13, 0, 9)
SHAPE = (50, 41, 30)
CORNERS = (OFFSET, tuple(a + b for a, b in zip(OFFSET, SHAPE, strict=True)))


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
    document = json.loads((folder / FILE_NAME).read_text())
    document["dataLayers"][0].update({"largestSegmentId": 3, "mappings": ["agglomerate"]})
    (folder / FILE_NAME).write_text(json.dumps(document))
    return folder


def whole(folder, layer="cells", mag=1):
    return wkwdask.open(folder, layer=layer, mag=mag).compute()


def stored(folder, layer="cells"):
    (found,) = (one for one in wkwdask.info(folder).layers if one.name == layer)
    return [(str(mag.mag), mag.block_len, mag.file_len, mag.compression) for mag in found.mags]


def hidden(folder):
    return sorted(
        path.name
        for path in Path(folder).rglob(".wkwdask*")
        if path.name not in (".wkwdask.json", ".wkwdask-files.npy", ".wkwdask-progress.jsonl")
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"file_len": 8}, (8, 8, "lz4")),
        ({"compression": "raw", "file_len": 4}, (8, 4, "raw")),
        ({"block_len": 16, "file_len": 1}, (16, 1, "lz4")),
        ({"compression": "lz4hc", "level": 9}, (8, 2, "lz4hc")),
    ],
)
def test_a_layer_is_rechunked_in_place(dataset, options, expected):
    before = {mag: whole(dataset, mag=mag) for mag in ("1", "2-2-1")}
    report = wkwdask.rechunk(dataset, layer="cells", **options)
    assert stored(dataset) == [("1", *expected), ("2-2-1", *expected)]
    assert report.files == sum(
        mag.files
        for layer in wkwdask.info(dataset).layers
        if layer.name == "cells"
        for mag in layer.mags
    )
    for mag, array in before.items():
        np.testing.assert_array_equal(whole(dataset, mag=mag), array)
    entries = json.loads((dataset / FILE_NAME).read_text())["dataLayers"][0]["mags"]
    assert [entry["cubeLength"] for entry in entries] == [expected[0] * expected[1]] * 2
    assert hidden(dataset) == []


def test_files_with_the_requested_encoding_are_not_rewritten(dataset):
    for path in (dataset, dataset / "cells", dataset / "cells" / "1"):
        report = wkwdask.rechunk(path, file_len=2)
        assert report.mags == ()
        assert "nothing to do" in str(report)
    wkwdask.compress(dataset, layer="color")
    assert stored(dataset, "color") == [("1", 8, 2, "lz4hc")]
    assert wkwdask.compress(dataset, layer="color").mags == ()
    assert wkwdask.compress(dataset, layer="color", level=9).files > 0  # a level is always meant


def test_a_dataset_is_rechunked_elsewhere(dataset, tmp_path):
    wkwdask.rechunk(dataset, tmp_path / "copy", file_len=4)
    for layer in ("cells", "color"):
        np.testing.assert_array_equal(whole(tmp_path / "copy", layer), whole(dataset, layer))
    assert stored(tmp_path / "copy") == [("1", 8, 4, "lz4"), ("2-2-1", 8, 4, "lz4")]
    assert stored(tmp_path / "copy", "color") == [("1", 8, 4, "raw")]
    before, after = (
        json.loads((folder / FILE_NAME).read_text()) for folder in (dataset, tmp_path / "copy")
    )
    assert after["scale"] == before["scale"]
    assert after["id"] == {"name": "copy", "team": ""}
    for old, new in zip(before["dataLayers"], after["dataLayers"], strict=True):
        assert new["boundingBox"] == old["boundingBox"]
        assert (new["category"], new.get("largestSegmentId")) == (
            old["category"],
            old.get("largestSegmentId"),
        )
        assert "mappings" not in new  # their files stay where they are
    assert stored(dataset) == [("1", 8, 2, "lz4"), ("2-2-1", 8, 2, "lz4")]
    with pytest.raises(ExistsError):
        wkwdask.rechunk(dataset, tmp_path / "copy", file_len=4)
    wkwdask.rechunk(dataset, tmp_path / "copy", file_len=8, existing="overwrite")
    assert stored(tmp_path / "copy")[0] == ("1", 8, 8, "lz4")


def test_a_layer_or_mag_is_rechunked_elsewhere(dataset, tmp_path):
    wkwdask.rechunk(dataset / "cells", tmp_path / "layer", mags=["2-2-1"], file_len=1)
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "layer" / "2-2-1", ((6, 0, 9), (32, 21, 39))),
        whole(dataset, mag="2-2-1"),
    )
    assert not (tmp_path / "layer" / "1").exists()
    wkwdask.rechunk(
        dataset / "cells" / "1", dataset / "again" / "1", compression="lz4hc", verify=True
    )
    np.testing.assert_array_equal(whole(dataset, "again"), whole(dataset))


@pytest.mark.parametrize("options", [{"file_len": 4}, {"block_len": 4}, {}])
def test_a_box_cuts_blocks(dataset, tmp_path, options):
    report = wkwdask.rechunk(
        dataset, tmp_path / "part", layer="cells", bounding_box=(20, 3, 11, 31, 30, 9), **options
    )
    assert [mag.voxels for mag in report.mags] == [31 * 30 * 9, 16 * 16 * 9]
    (layer,) = json.loads((tmp_path / "part" / FILE_NAME).read_text())["dataLayers"]
    assert layer["boundingBox"] == {"topLeft": [20, 3, 11], "width": 31, "height": 30, "depth": 9}
    np.testing.assert_array_equal(
        whole(tmp_path / "part"), wkwdask.read(dataset / "cells" / "1", ((20, 3, 11), (51, 33, 20)))
    )
    assert np.count_nonzero(
        stored_voxels(tmp_path / "part" / "cells" / "1", (80, 80, 80))
    ) == np.count_nonzero(whole(tmp_path / "part"))
    with pytest.raises(BoundsError, match="lies outside of the mag"):
        wkwdask.rechunk(
            dataset / "color", tmp_path / "nothing", bounding_box=(500, 0, 0, 10, 10, 10)
        )


def test_a_mag_without_a_json_keeps_all_voxels(tmp_path):
    wkwdask.write(tmp_path / "1", OFFSET, voxels(), block_len=8, file_len=1)
    wkwdask.rechunk(tmp_path / "1", file_len=8, block_len=4)
    found = stored_voxels(tmp_path / "1", CORNERS[1])[0, 13:, :, 9:]
    np.testing.assert_array_equal(found, voxels())


def test_values_are_known_where_blocks_are_decoded(dataset):
    assert ", values " not in str(wkwdask.rechunk(dataset / "cells" / "1", file_len=4))
    assert ", values 0 to 3" in str(wkwdask.rechunk(dataset / "cells" / "1", block_len=4))


def test_malformed_calls_are_refused(dataset, tmp_path):
    for options, message in (
        ({"bounding_box": (0, 0, 0, 20, 20, 20)}, "in place would lose"),
        ({"target": dataset}, "is the source"),
        ({"compression": "zip"}, "compression of WKW must be"),
        ({"level": 13}, "level must be"),
        ({"level": 3, "compression": "lz4"}, "level applies to lz4hc only"),
        ({"file_len": 3}, "power of two"),
        ({"existing": "update"}, "existing must be"),
    ):
        with pytest.raises(ValueError, match=message):
            wkwdask.rechunk(dataset, **options)
    with pytest.raises(MissingError, match="no layer 'x'"):
        wkwdask.rechunk(dataset, layer="x", file_len=4)
    with pytest.raises(MissingError, match="has no mag 8; there are 1, 2-2-1"):
        wkwdask.rechunk(dataset, layer="cells", mags=[8], file_len=4)
    assert hidden(dataset) == []


@pytest.mark.parametrize("options", [{"file_len": 1}, {"block_len": 4}])
def test_a_new_mag_that_differs_does_not_replace_the_old(dataset, tmp_path, options):
    before = whole(dataset)

    def damage():
        path = max(
            (dataset / "cells").glob(".wkwdask-job-*/**/x*.wkw"),
            key=lambda path: path.stat().st_size,
        )
        header, voxels = Header.of(path.read_bytes()), decode_file(path.read_bytes())
        voxels[np.unravel_index(voxels.argmax(), voxels.shape)] ^= 1
        path.write_bytes(encode_file(voxels, header.block_len))

    with rechunks_of(16), logged(tmp_path / "log"):
        wkwdask.rechunk(dataset / "cells" / "1", tmp_path / "copy" / "1", **options)
    different = pytest.raises(
        IncompleteWriteError, match=r"voxel \(.*\) of channel 0 is .*nothing was replaced"
    )
    with rechunks_of(16), before_task(sum(runs(tmp_path / "log").values()), damage), different:
        wkwdask.rechunk(dataset / "cells" / "1", **options)
    assert stored(dataset)[0] == ("1", 8, 2, "lz4")
    np.testing.assert_array_equal(whole(dataset), before)
    assert stored(dataset)[0] == ("1", 8, 2, "lz4")


@pytest.mark.parametrize(
    ("options", "in_place"), [({"file_len": 1}, True), ({"block_len": 4}, False)]
)
def test_an_interrupted_call_is_resumed_with_the_same_settings_and_source(
    dataset, tmp_path, options, in_place
):
    target = None if in_place else tmp_path / "copy" / "1"
    before = whole(dataset)
    source = dataset / "cells" / "1"
    log = tmp_path / "log"
    with rechunks_of(16), stopping(log, 3, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        wkwdask.rechunk(source, target, **options)
    np.testing.assert_array_equal(whole(dataset), before)
    assert in_place or not (tmp_path / "copy" / "1").exists()
    with rechunks_of(16), pytest.raises(ResumeError, match="level was 0, is 9"):
        wkwdask.rechunk(source, target, compression="lz4hc", level=9, **options)
    with rechunks_of(16):
        report = wkwdask.rechunk(source, target, **options)
    assert "3 tasks had been finished before" in report.note
    np.testing.assert_array_equal(wkwdask.read(target or source, CORNERS), before)
    assert hidden(dataset) == []
    with rechunks_of(16), stopping(log, 3, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        wkwdask.rechunk(
            source,
            tmp_path / "third",
            compression="lz4hc",
            **({"file_len": 2} if options == {"file_len": 1} else options),
        )
    for path in source.rglob("x*.wkw"):
        os.utime(path)
    with rechunks_of(16), pytest.raises(ResumeError, match="the source has changed"):
        wkwdask.rechunk(
            source,
            tmp_path / "third",
            compression="lz4hc",
            **({"file_len": 2} if options == {"file_len": 1} else options),
        )


# ----------------------------------------------------------------------------- voxels, records and
# other files


def test_voxels_that_get_outside_of_the_planned_box_are_not_lost(dataset):
    source = dataset / "cells" / "1"
    before = whole(dataset)

    def grow():
        (far := source / "z0" / "y0" / "x9.wkw").parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(next(source.glob("z*/y*/x*.wkw")), far)

    grown = pytest.raises(IncompleteWriteError, match=r"got voxels outside of .* would lose")
    with before_task(1, grow), grown:
        wkwdask.rechunk(source, file_len=1)
    assert (source / "z0" / "y0" / "x9.wkw").exists()
    far = stored_voxels(source, (160, 48, 48))
    with pytest.warns(DiscardWarning):
        wkwdask.rechunk(source, file_len=1, existing="restart")
    assert stored(dataset)[0] == ("1", 8, 1, "lz4")
    np.testing.assert_array_equal(stored_voxels(source, (160, 48, 48)), far)
    np.testing.assert_array_equal(whole(dataset), before)


def test_voxels_outside_the_box_stay(dataset):
    path = dataset / FILE_NAME
    document = json.loads(path.read_text())
    layer = next(entry for entry in document["dataLayers"] if entry["name"] == "cells")
    before, size = wkwdask.read(dataset, layer="cells", mag=1), layer["boundingBox"]["width"]
    layer["boundingBox"]["width"] = 9
    path.write_text(json.dumps(document))
    for options in ({"file_len": 4}, {"compression": "raw"}, {"block_len": 16, "file_len": 2}):
        wkwdask.rechunk(dataset, layer="cells", mags="1", **options)
    document = json.loads(path.read_text())
    next(entry for entry in document["dataLayers"] if entry["name"] == "cells")["boundingBox"][
        "width"
    ] = size
    path.write_text(json.dumps(document))
    np.testing.assert_array_equal(wkwdask.read(dataset, layer="cells", mag=1), before)


def test_arrays_opened_before_are_told_of_the_replacement(dataset):
    """Absent files would mean zeros."""
    array = wkwdask.open(dataset, layer="cells", mag=1)
    before = wkwdask.read(dataset, layer="cells", mag=1)
    wkwdask.rechunk(dataset, layer="cells", mags="1", file_len=16)
    with pytest.raises(wkwdask.ReplacedError, match="was replaced since it was opened"):
        array.compute()
    np.testing.assert_array_equal(wkwdask.read(dataset, layer="cells", mag=1), before)


def test_a_rechunked_pyramid_can_be_updated(tmp_path):
    wkwdask.create_dataset(tmp_path, (4, 4, 4))
    array = np.random.default_rng(0).integers(0, 200, (64, 64, 64)).astype(np.uint8)
    wkwdask.write(tmp_path / "color" / "1", (0, 0, 0), array, block_len=8, file_len=4)
    wkwdask.build_pyramid(tmp_path, mags=[2], method="max")
    wkwdask.compress(tmp_path, level=9)
    wkwdask.rechunk(tmp_path, file_len=2)
    assert not wkwdask.verify(tmp_path, pyramid=True).count("warning")
    wkwdask.to_wkw(
        np.full((8, 8, 8), 250, np.uint8), tmp_path / "color" / "1", region=((0, 0, 0), (8, 8, 8))
    )
    wkwdask.build_pyramid(tmp_path, update=True)
    assert (wkwdask.read(tmp_path / "color" / "2", ((0, 0, 0), (4, 4, 4))) == 250).all()
    assert not wkwdask.verify(tmp_path, pyramid=True).count("warning")


def test_a_mag_listed_by_two_layers_is_refused(dataset):
    path = dataset / FILE_NAME
    document = json.loads(path.read_text())
    cells = next(entry for entry in document["dataLayers"] if entry["name"] == "cells")
    document["dataLayers"].append({**cells, "name": "alias"})
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="layer alias lists this mag and its file length too"):
        wkwdask.rechunk(dataset, layer="cells", file_len=16)
    with pytest.raises(ValueError, match="several layers list the same mag"):
        wkwdask.compress(dataset, level=3)
    with pytest.raises(wkwdask.UnsupportedError, match="layer cells lists this mag too"):
        wkwdask.rm(dataset, layer="alias")


def test_files_with_another_encoding_than_the_header_are_rewritten(dataset, tmp_path):
    mag = dataset / "cells" / "1"
    before = wkwdask.read(mag)
    wkwdask.rechunk(mag, tmp_path / "raw" / "1", compression="raw")
    raw = next((tmp_path / "raw" / "1").rglob("x*.wkw"))
    os.replace(raw, mag / raw.relative_to(tmp_path / "raw" / "1"))
    report = wkwdask.rechunk(mag, compression=wkwdask.info(mag).layers[0].mags[0].compression)
    assert report.files
    np.testing.assert_array_equal(wkwdask.read(mag), before)
    assert not [
        fault for fault in wkwdask.verify(dataset).faults if fault.kind == "file.block_type"
    ]


def test_a_mag_with_other_files_is_not_replaced(dataset):
    note = next((dataset / "cells" / "1").glob("z*/y*")) / "notes.txt"
    note.write_text("proofread")
    for change in (
        lambda: wkwdask.rechunk(dataset, layer="cells", file_len=16),
        lambda: wkwdask.rm(dataset, layer="cells"),
    ):
        with pytest.raises((wkwdask.ExistsError, wkwdask.UnsupportedError), match=r"notes\.txt"):
            change()
    assert note.read_text() == "proofread"


def test_an_empty_path_is_not_the_current_folder(dataset, monkeypatch):
    monkeypatch.chdir(dataset)
    for use in (wkwdask.rm, wkwdask.rechunk, wkwdask.info):
        with pytest.raises(ValueError, match="empty path"):
            use("")
    with pytest.raises(ValueError, match="empty path"):
        wkwdask.copy(dataset, "")


@pytest.mark.parametrize(
    ("url", "document", "expected"),
    [
        pytest.param(
            "zarr://{}/em.ome.zarr",
            "em.ome.zarr/1/zarr.json",
            "zstd",
            marks=pytest.mark.needs("zarr"),
        ),
        ("n5://{}/em.n5/em", "em.n5/em/s0/attributes.json", "gzip"),
    ],
)
def test_compress_chooses_a_compression_of_the_format(tmp_path, url, document, expected):
    image = url.format(tmp_path)
    array = np.arange(8 * 20 * 20 * 20, dtype="uint16").reshape(1, 40, 40, 40) // 100
    wkwdask.save(
        array, image + ("/s0" if "n5" in image else ""), compression="raw", voxel_size=(4, 4, 8)
    )
    assert expected not in (tmp_path / document).read_text()
    done = run_here("compress", image)
    assert done.returncode in (0, None), done.stderr
    assert expected in (tmp_path / document).read_text()
    np.testing.assert_array_equal(wkwdask.read(image, ((0, 0, 0), array.shape[1:])), array)


@pytest.mark.needs("imagecodecs")
def test_compress_of_a_precomputed_volume_needs_an_option(tmp_path):
    volume = f"precomputed://{tmp_path}/em"
    wkwdask.save(
        np.arange(1000, dtype="uint8").reshape(1, 10, 10, 10), volume, voxel_size=(4, 4, 8)
    )
    with pytest.raises(
        ValueError,
        match=(
            r"say how to compress Neuroglancer precomputed, by one of its options: chunk_shape, "
            r".*encoding"
        ),
    ):
        wkwdask.compress(volume)
    wkwdask.compress(volume, encoding="png")
    assert wkwdask.info(volume).scales[0].encoding == "png"
