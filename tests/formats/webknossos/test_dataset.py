"""From what a user names to a mag: datasets, layers, mags, with and without a JSON, in its present
and in its legacy form."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time

import numpy as np
import pytest

import wkwdask
from wkwdask import BoundingBox, Mag
from wkwdask.errors import BoundsError, CorruptError, LockedError, MissingError, UnsupportedError

JSON_NAME = "datasource-properties.json"
OPTIONS = {"block_len": 8, "file_len": 2, "compression": "lz4"}
OFFSET = (5, 6, 7)


def voxels(shape=(20, 18, 16), seed=1):
    return np.random.default_rng(seed).integers(1, 250, shape, dtype=np.uint8)


def make_json(folder):
    wkwdask.create_dataset(folder, (8, 8, 8))
    return folder


def box_of(url, mag=None):
    """The box of a mag, the finest by default."""
    return next(
        one.box
        for one in wkwdask.info(url).layers[0].mags
        if mag is None or one.mag == Mag.parse(mag)
    )


@pytest.fixture
def dataset(tmp_path):
    """One layer with two mags."""
    folder = make_json(tmp_path / "ds")
    wkwdask.write(folder / "color" / "1", OFFSET, voxels(), **OPTIONS)
    wkwdask.build_pyramid(folder, coarsest=2)
    return folder


def edit(folder, change):
    path = folder / JSON_NAME
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return document


# ----------------------------------------------------------------------------- every way to name a
# mag


def test_every_way_to_name_a_mag(dataset, monkeypatch):
    expected = wkwdask.read(dataset / "color" / "1")
    np.testing.assert_array_equal(expected[0], voxels())
    for url, options in (
        (dataset, {}),
        (dataset, {"layer": "color"}),
        (str(dataset), {"mag": 1}),
        (f"file://{dataset}", {"mag": "1-1-1"}),
        (f"{dataset}/", {"mag": [1, 1, 1]}),
        (dataset / "color", {}),
        (dataset / "color", {"layer": "color", "mag": Mag(1, 1, 1)}),
        (dataset / "color" / "1", {"mag": "1"}),
        (dataset / "color" / ".." / "color" / "1", {}),
    ):
        np.testing.assert_array_equal(wkwdask.read(url, **options), expected)
        np.testing.assert_array_equal(
            wkwdask.open(url, **options).compute(scheduler="synchronous"), expected
        )
    monkeypatch.chdir(dataset)
    for url in (".", "color", "color/1", "./color/1/"):
        np.testing.assert_array_equal(wkwdask.read(url), expected)
    monkeypatch.setenv("HOME", str(dataset.parent))
    np.testing.assert_array_equal(wkwdask.read("~/ds"), expected)
    assert wkwdask.read(dataset, mag="2").shape == (1, 11, 9, 9)
    assert wkwdask.read(dataset / "color" / "2").shape == (1, 11, 9, 9)


def test_a_relative_path_follows_the_working_folder(dataset, tmp_path, monkeypatch):
    other = make_json(tmp_path / "other")
    wkwdask.write(other / "color" / "1", OFFSET, voxels(seed=2), **OPTIONS)
    box = (OFFSET, (9, 9, 9))
    monkeypatch.chdir(dataset)
    np.testing.assert_array_equal(wkwdask.read("color/1", box)[0], voxels()[:4, :3, :2])
    monkeypatch.chdir(other)
    np.testing.assert_array_equal(wkwdask.read("color/1", box)[0], voxels(seed=2)[:4, :3, :2])


def test_several_layers_are_listed(dataset):
    wkwdask.write(dataset / "segmentation" / "1", (0, 0, 0), voxels().astype(np.uint32), **OPTIONS)
    for attempt in (
        wkwdask.open,
        wkwdask.read,
        lambda url: wkwdask.sample(url, [[0, 0, 0]]),
        wkwdask.build_pyramid,
    ):
        with pytest.raises(
            ValueError, match="several layers: name one with layer=: color, segmentation"
        ):
            attempt(dataset)
    assert wkwdask.read(dataset, layer="segmentation").dtype == np.uint32
    with pytest.raises(MissingError, match="no layer 'colour'; there are color, segmentation"):
        wkwdask.read(dataset, layer="colour")


def test_what_is_not_there(dataset, tmp_path):
    with pytest.raises(MissingError, match="nowhere: no such folder"):
        wkwdask.read(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingError, match=r"empty: no dataset .*, no layer .* and no mag"):
        wkwdask.open(tmp_path / "empty")
    with pytest.raises(MissingError, match="no mag 16; there are 1, 2"):
        wkwdask.open(dataset, mag=16)
    with pytest.raises(MissingError, match="no layers"):
        wkwdask.open(make_json(tmp_path / "no-layers"))
    with pytest.raises(ValueError, match="is mag 1, not mag 2; give the layer's folder"):
        wkwdask.read(dataset / "color" / "1", mag=2)
    with pytest.raises(ValueError, match="powers of two"):
        wkwdask.read(dataset, mag=3)
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingError, match="file: is a file, expected the folder"):
        wkwdask.read(tmp_path / "file")


@pytest.mark.parametrize(
    "url", ["https://host.invalid/ds", "https://host.invalid/ds/color/1", "zip://x"]
)
def test_remote_targets(url):
    with pytest.raises(
        UnsupportedError, match=r"remote locations are read-only|needs a folder on a file system"
    ):
        wkwdask.to_wkw(voxels(), url)


def test_urls_of_unknown_kinds():
    for url in ("quux://host/ds", "zip://x"):
        with pytest.raises(UnsupportedError, match="cannot be read"):
            wkwdask.open(url)


# ----------------------------------------------------------------------------- the JSON


def test_open_by_json_lists_no_folder(dataset, monkeypatch):
    """A mag of a large dataset has thousands of folders."""
    expected = wkwdask.read(dataset)

    def refuse(*args):
        raise AssertionError("a folder was listed")

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    for options in ({"mag": 1}, {}, {"layer": "color"}):
        assert wkwdask.open(dataset, **options).shape == expected.shape
        np.testing.assert_array_equal(wkwdask.read(dataset, **options), expected)
    for folder in (dataset / "color", dataset / "color" / "1"):
        assert wkwdask.open(folder).shape == expected.shape
        np.testing.assert_array_equal(wkwdask.read(folder), expected)
    assert wkwdask.sample(dataset, [OFFSET]) == expected[0, 0, 0, 0]


def _keep_header(mag):
    for path in [*mag.glob("z*"), *mag.glob(".wkwdask*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert [path.name for path in mag.iterdir()] == ["header.wkw"]


def test_a_listed_mag_without_files_is_not_the_finest(dataset):
    """As in published data, whose finest mag is listed and has a header alone."""
    _keep_header(dataset / "color" / "1")
    np.testing.assert_array_equal(
        wkwdask.open(dataset).compute(scheduler="synchronous"), wkwdask.read(dataset, mag=2)
    )
    assert not wkwdask.read(dataset, mag=1).any()
    edit(
        dataset,
        lambda document: document["dataLayers"][0]["mags"].insert(
            0, {"mag": [1, 1, 1], "path": "./color/gone"}
        ),
    )
    assert wkwdask.open(dataset).shape == (1, 11, 9, 9)
    _keep_header(dataset / "color" / "2")
    with pytest.raises(MissingError, match="no mag of layer color has data files"):
        wkwdask.open(dataset)


def test_the_box_is_that_of_the_json(dataset):
    edit(
        dataset,
        lambda document: document["dataLayers"][0].update(
            boundingBox={"topLeft": [7, 8, 9], "width": 30, "height": 5, "depth": 3}
        ),
    )
    for url, mag, topleft, size in (
        (dataset, 1, (7, 8, 9), (30, 5, 3)),
        (dataset / "color" / "2", None, (3, 4, 4), (16, 3, 2)),
    ):
        box = box_of(url, mag)
        assert (box.topleft, box.size) == (topleft, size)
        assert wkwdask.read(url, mag=mag).shape == (1, *size)
    expected = np.zeros((1, 30, 5, 3), np.uint8)
    expected[0, :18] = voxels()[2:20, 2:7, 2:5]
    np.testing.assert_array_equal(wkwdask.read(dataset, mag=1), expected)
    with pytest.raises(BoundsError, match="reaches outside"):
        wkwdask.read(dataset, ((6, 8, 9), (8, 9, 10)))


def test_without_a_json_the_box_is_that_of_the_mag_or_of_its_files(tmp_path):
    wkwdask.write(tmp_path / "color" / "1", (40, 6, 7), voxels(), **OPTIONS)
    for url in (tmp_path / "color" / "1", tmp_path / "color"):
        assert box_of(url) == BoundingBox((40, 6, 7), (20, 18, 16))
    (tmp_path / "color" / "1" / ".wkwdask.json").unlink()  # as of other software
    for url in (tmp_path / "color" / "1", tmp_path / "color"):
        assert box_of(url) == BoundingBox((32, 0, 0), (32, 32, 32))
        np.testing.assert_array_equal(wkwdask.read(url, ((40, 6, 7), (60, 24, 23)))[0], voxels())


def test_a_finer_mag_that_appears_is_seen(tmp_path):
    wkwdask.write(tmp_path / "color" / "2", (0, 0, 0), voxels(), **OPTIONS)
    box = ((0, 0, 0), (4, 4, 4))
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "color", box)[0], voxels()[:4, :4, :4])
    wkwdask.write(tmp_path / "color" / "1", (0, 0, 0), voxels(seed=2), **OPTIONS)
    np.testing.assert_array_equal(
        wkwdask.open(tmp_path / "color")[0, :4, :4, :4].compute(scheduler="synchronous"),
        voxels(seed=2)[:4, :4, :4],
    )
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "color", box)[0], voxels(seed=2)[:4, :4, :4]
    )


def test_an_edited_json_is_seen(dataset, tmp_path):
    """Also where the mags that it lists are in another dataset."""
    box = (OFFSET, (9, 9, 9))
    other = make_json(tmp_path / "other")
    for name, seed in (("a", 2), ("b", 3)):
        wkwdask.write(other / name / "1", OFFSET, voxels(seed=seed), **OPTIONS)
    for name, seed in (("a", 2), ("b", 3), ("a", 2)):
        edit(
            dataset,
            lambda document, name=name: document["dataLayers"][0].update(
                mags=[{"mag": [1, 1, 1], "path": f"../other/{name}/1"}]
            ),
        )
        np.testing.assert_array_equal(
            wkwdask.open(dataset)[0, :4, :3, :2].compute(scheduler="synchronous"),
            voxels(seed=seed)[:4, :3, :2],
        )
        np.testing.assert_array_equal(wkwdask.read(dataset, box)[0], voxels(seed=seed)[:4, :3, :2])


@pytest.mark.parametrize("legacy", ["list", "int"])
def test_legacy_resolutions(dataset, legacy):
    def change(document):
        layer = document["dataLayers"][0]
        layer["wkwResolutions"] = [
            {"resolution": mag["mag"] if legacy == "list" else mag["mag"][0], "cubeLength": 16}
            for mag in layer.pop("mags")
        ]
        document["scale"] = [8, 8, 8]

    expected = [wkwdask.read(dataset, mag=mag) for mag in (1, 2)]
    edit(dataset, change)
    for url, mag in ((dataset, 1), (dataset / "color", 1), (dataset / "color" / "1", None)):
        np.testing.assert_array_equal(wkwdask.read(url, mag=mag), expected[0])
    np.testing.assert_array_equal(wkwdask.read(dataset, mag=2), expected[1])
    assert wkwdask.open_dataset(dataset).voxel_size_nm == (8, 8, 8)
    # both forms of the name are in use
    os.rename(dataset / "color" / "2", dataset / "color" / "2-2-2")
    np.testing.assert_array_equal(wkwdask.read(dataset, mag=2), expected[1])
    np.testing.assert_array_equal(wkwdask.read(dataset / "color" / "2-2-2"), expected[1])
    # a mag that is added stays in the legacy form
    wkwdask.build_pyramid(dataset, coarsest=4, existing="overwrite")
    (layer,) = json.loads((dataset / JSON_NAME).read_text())["dataLayers"]
    assert "mags" not in layer
    assert [Mag.parse(entry["resolution"]).name for entry in layer["wkwResolutions"]] == [
        "1",
        "2",
        "4",
    ]
    np.testing.assert_array_equal(wkwdask.read(dataset, mag=2), expected[1])


@pytest.mark.parametrize("kind", ["relative", "absolute", "url"])
def test_mags_elsewhere_are_read_and_not_written(dataset, tmp_path, kind):
    other = make_json(tmp_path / "other")
    wkwdask.write(other / "raw" / "1", OFFSET, voxels(seed=5), **OPTIONS)
    wkwdask.write(other / "raw" / "2", (2, 3, 3), voxels((11, 9, 9), seed=6), **OPTIONS)
    stem = {
        "relative": "../other/raw",
        "absolute": str(other / "raw"),
        "url": f"file://{other}/raw",
    }[kind]

    def change(document):
        document["dataLayers"][0]["mags"] = [
            {"mag": [n, n, n], "path": f"{stem}/{n}"} for n in (1, 2)
        ]

    edit(dataset, change)
    before = (dataset / JSON_NAME).read_text()
    np.testing.assert_array_equal(wkwdask.read(dataset, mag=1)[0], voxels(seed=5))
    np.testing.assert_array_equal(wkwdask.read(dataset, mag=2)[0], voxels((11, 9, 9), seed=6))
    with pytest.raises(UnsupportedError, match="lies outside the dataset"):
        wkwdask.build_pyramid(dataset, coarsest=2, existing="overwrite")
    assert (dataset / JSON_NAME).read_text() == before
    np.testing.assert_array_equal(wkwdask.read(other / "raw" / "2")[0], voxels((11, 9, 9), seed=6))


def test_a_linked_layer_is_not_written_through(dataset, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (dataset / "linked").symlink_to(other)
    with pytest.raises(UnsupportedError, match="lies outside the dataset"):
        wkwdask.write(dataset / "linked" / "1", (0, 0, 0), voxels(), **OPTIONS)
    assert not list(other.iterdir())


def test_a_linked_layer_is_read(dataset, tmp_path):
    os.rename(dataset / "color", tmp_path / "moved")
    (dataset / "color").symlink_to(tmp_path / "moved")
    np.testing.assert_array_equal(wkwdask.read(dataset, mag=1)[0], voxels())
    np.testing.assert_array_equal(wkwdask.read(dataset / "color" / "1")[0], voxels())


def test_a_new_mag_beside_mags_that_are_elsewhere(dataset, tmp_path):
    """A pyramid on a source elsewhere is written into the dataset itself."""
    other = make_json(tmp_path / "other")
    wkwdask.write(other / "raw" / "1", OFFSET, voxels(seed=5), **OPTIONS)
    edit(
        dataset,
        lambda document: document["dataLayers"][0].update(
            mags=[{"mag": [1, 1, 1], "path": "../other/raw/1"}]
        ),
    )
    wkwdask.build_pyramid(dataset, coarsest=2, existing="overwrite")
    assert sorted(os.listdir(other / "raw")) == ["1"]
    wkwdask.build_pyramid(other, coarsest=2)
    np.testing.assert_array_equal(
        wkwdask.read(dataset / "color" / "2"), wkwdask.read(other / "raw" / "2")
    )


def test_other_formats_are_not_supported(dataset):
    edit(
        dataset,
        lambda document: document["dataLayers"][0].update(dataFormat="dicom"),
    )
    with pytest.raises(
        UnsupportedError,
        match="stored as dicom, only WKW, Zarr, N5 and Neuroglancer precomputed can be opened",
    ):
        wkwdask.read(dataset, mag=1)


def test_a_mag_that_the_json_does_not_list(dataset):
    """It has the box of its layer."""
    edit(dataset, lambda document: document["dataLayers"][0]["mags"].pop())
    assert wkwdask.read(dataset / "color" / "2").shape == (1, 11, 9, 9)
    with pytest.raises(MissingError, match="no mag 2; there are 1"):
        wkwdask.read(dataset, mag=2)


def test_a_layer_that_the_json_does_not_list(dataset):
    edit(dataset, lambda document: document["dataLayers"].clear())
    assert wkwdask.read(dataset / "color" / "1").shape == (1, 20, 18, 16)
    assert wkwdask.open(dataset / "color").shape == (1, 20, 18, 16)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "not valid JSON"),
        ("{", r"byte 1: not valid JSON: .* \(line 1, column 2\)"),
        ("[]", "expected an object at the top, found list"),
        ('{"dataLayers": 3}', "dataLayers: expected a list, found 3"),
        (
            '{"scale": {"factor": [1, 2]}, "dataLayers": [{"name": 3}]}',
            r"scale\.factor: .*; dataLayers\[0\]\.name: .*; dataLayers\[0\]\.boundingBox: ",
        ),
        (
            (
                '{"dataLayers": [{"name": "color", "boundingBox": {"topLeft": [0, 0, 0], "width": '
                '1, "height": 1, "depth": 1}, "mags": [{"mag": 3}]}]}'
            ),
            r"dataLayers\[0\]\.mags\[0\]\.mag: expected a mag of powers of two",
        ),
    ],
)
def test_a_broken_json_is_named(dataset, text, match):
    (dataset / JSON_NAME).write_text(text)
    for url in (dataset, dataset / "color", dataset / "color" / "1"):
        with pytest.raises(CorruptError, match=rf"(?s){JSON_NAME}.*{match}"):
            wkwdask.open(url)


def test_a_json_that_is_no_text(dataset):
    (dataset / JSON_NAME).write_bytes(b'{"id": "\xff"}')
    with pytest.raises(CorruptError, match="byte 8: not UTF-8"):
        wkwdask.open(dataset)


def test_a_json_with_a_byte_order_mark(dataset):
    path = dataset / JSON_NAME
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    np.testing.assert_array_equal(wkwdask.read(dataset, mag=1)[0], voxels())


def test_a_json_that_may_not_be_read(dataset, monkeypatch):
    path = str(dataset / JSON_NAME)

    def refuse(name, *args, **options):
        if os.fspath(name) == path:
            raise PermissionError(13, "Permission denied", name)
        return before(name, *args, **options)

    before = os.open
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError, match=JSON_NAME):
        wkwdask.open(dataset)


def test_an_edit_keeps_what_it_does_not_know(dataset):
    edit(dataset, lambda document: document.update(extra={"ünïcode": 1}))
    os.chmod(dataset / JSON_NAME, 0o640)
    wkwdask.open_dataset(dataset).set_voxel_size((4, 4, 40))
    after = json.loads((dataset / JSON_NAME).read_text())
    assert (after["scale"]["factor"], after["extra"]) == ([4, 4, 40], {"ünïcode": 1})
    assert (dataset / JSON_NAME).stat().st_mode & 0o777 == 0o640


def test_edits_do_not_overwrite_each_other(dataset):
    """Threads hold the lock in turn."""

    def add(n):
        for k in range(10):
            while True:
                try:
                    wkwdask.open_dataset(dataset).add_layer(
                        f"n{n}-{k}", "color", "uint8", (0, 0, 0, 8, 8, 8)
                    )
                    break
                except LockedError:
                    time.sleep(0.01)

    threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(wkwdask.open_dataset(dataset).layers) == {
        "color",
        *(f"n{n}-{k}" for n in range(4) for k in range(10)),
    }


# ----------------------------------------------------------------------------- volume annotations


def test_a_volume_annotation(tmp_path):
    """The folder holds mags and no JSON, in either form of the names."""
    folder = tmp_path / "data_Volume"
    wkwdask.write(
        folder / "1",
        (32, 0, 32),
        voxels().astype(np.uint32),
        block_len=32,
        file_len=1,
        compression="lz4",
    )
    wkwdask.write(
        folder / "2-2-1",
        (0, 0, 0),
        voxels().astype(np.uint32),
        block_len=32,
        file_len=1,
        compression="lz4",
    )
    for mag in ("1", "2-2-1"):
        (folder / mag / ".wkwdask.json").unlink()
    (folder / "notes").mkdir()
    assert [mag.mag.name for mag in wkwdask.info(folder).layers[0].mags] == ["1", "2-2-1"]
    assert wkwdask.open(folder).shape == (1, 32, 32, 32)
    np.testing.assert_array_equal(wkwdask.read(folder, ((32, 0, 32), (52, 18, 48)))[0], voxels())
    np.testing.assert_array_equal(
        wkwdask.read(folder, ((0, 0, 0), (20, 18, 16)), mag="2-2-1")[0], voxels()
    )
    with pytest.raises(
        ValueError,
        match=r"no datasource-properties\.json states the category of this layer; give method=",
    ):
        wkwdask.build_pyramid(folder, coarsest=4)
    wkwdask.build_pyramid(folder, method="mode", mags=["2-2-1", "4-4-2"], existing="overwrite")
    (coarse,) = wkwdask.read(folder, mag="2-2-1")
    assert coarse.shape == (16, 16, 32)
    assert coarse[:10, :9, :16].all()
    assert coarse.astype(bool).sum() == 10 * 9 * 16
    assert not list(folder.rglob(JSON_NAME))


def test_a_mag_folder_of_any_name(tmp_path):
    wkwdask.write(tmp_path / "anything", (0, 0, 0), voxels(), **OPTIONS)
    assert box_of(tmp_path / "anything").mag == Mag(1, 1, 1)
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "anything", ((0, 0, 0), (20, 18, 16)))[0], voxels()
    )


def test_info(dataset):
    summary = wkwdask.info(dataset)
    (layer,) = summary.layers
    assert (layer.name, layer.category, layer.num_channels, layer.bounding_box) == (
        "color",
        "color",
        1,
        BoundingBox(OFFSET, (20, 18, 16)),
    )
    assert [
        (mag.mag.name, mag.files, mag.dtype, mag.compression, mag.block_len, mag.file_len)
        for mag in layer.mags
    ] == [
        ("1", 8, "uint8", "lz4", 8, 2),
        ("2", 1, "uint8", "lz4", 8, 2),
    ]
    assert sum(mag.nbytes for mag in layer.mags) == sum(
        path.stat().st_size for path in dataset.rglob("x*.wkw")
    )
    (dataset / "color" / "2" / "header.wkw").write_bytes(b"")
    assert "header ends at byte 0" in wkwdask.info(dataset).layers[0].mags[1].problem
    json.dumps(wkwdask.info(dataset).to_json())


def test_a_new_layer_beside_one_whose_mags_have_no_path(dataset):
    """Older JSONs leave paths to the convention: a new folder is no layer of theirs."""

    def forget_paths(document):
        for entry in document["dataLayers"]:
            for item in entry["mags"]:
                del item["path"]

    before = edit(dataset, forget_paths)
    wkwdask.write(dataset / "inverse" / "1", OFFSET, 255 - voxels(), **OPTIONS)
    wkwdask.write(dataset / "labels" / "1", OFFSET, voxels().astype(np.uint32), **OPTIONS)
    after = json.loads((dataset / JSON_NAME).read_text())
    assert [entry["name"] for entry in after["dataLayers"]] == ["color", "inverse", "labels"]
    assert after["dataLayers"][0] == before["dataLayers"][0]
    np.testing.assert_array_equal(wkwdask.read(dataset / "color" / "1")[0], voxels())
    np.testing.assert_array_equal(wkwdask.read(dataset, layer="inverse")[0], 255 - voxels())
    assert wkwdask.info(dataset / "inverse").layers[0].name == "inverse"
    assert wkwdask.info(dataset / "color").layers[0].name == "color"


@pytest.mark.parametrize("verb", [wkwdask.open, wkwdask.read, wkwdask.upsample])
@pytest.mark.parametrize("layer", [{"color": 1}, 1])
def test_a_layer_is_named_by_text(dataset, verb, layer):
    with pytest.raises(TypeError, match="layer must be the name of a layer, got"):
        verb(dataset, layer=layer)
