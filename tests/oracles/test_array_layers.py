"""Layers that the webknossos library stores as Zarr, as it does by default: checks, conversion to
WKW, and jobs that write into them, whose results the library reads.

Its arrays extend to whole shards, and ``datasource-properties.json`` states the box of each layer.
"""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.errors import FormatError, UnsupportedError

pytestmark = [
    pytest.mark.needs("webknossos"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:webknossos"),
    pytest.mark.filterwarnings("ignore::UserWarning:cluster_tools"),
]

CORNER, SIZE = (6, 4, 2), (38, 20, 14)
EM = np.random.default_rng(1).integers(1, 255, (1, *SIZE)).astype("uint8")
IDS = EM.astype("uint32")
COARSE = EM[:, ::2, ::2, ::2]


def write(folder, data_format):
    import webknossos

    with warnings.catch_warnings(action="ignore"):
        made = webknossos.Dataset(folder, voxel_size=(4, 4, 8))
        color = made.add_layer("color", "color", dtype="uint8", data_format=data_format)
        color.add_mag(1, chunk_shape=8, shard_shape=16 if data_format == "zarr3" else 8).write(
            EM, absolute_offset=CORNER, allow_resize=True, allow_unaligned=True
        )
        color.add_mag(2, chunk_shape=8, shard_shape=16 if data_format == "zarr3" else 8).write(
            COARSE, absolute_offset=CORNER, allow_resize=True, allow_unaligned=True
        )
        seg = made.add_layer(
            "seg", "segmentation", dtype="uint32", largest_segment_id=254, data_format=data_format
        )
        seg.add_mag(1, chunk_shape=8, shard_shape=16 if data_format == "zarr3" else 8).write(
            IDS, absolute_offset=CORNER, allow_resize=True, allow_unaligned=True
        )
        made.add_layer("flat", "color", dtype="uint8", data_format="wkw").add_mag(1).write(
            EM, absolute_offset=CORNER, allow_resize=True, allow_unaligned=True
        )


@pytest.fixture(scope="module", params=["zarr3", "zarr"])
def written(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written") / "ds"
    write(folder, request.param)
    return folder


@pytest.fixture
def dataset(written, tmp_path):
    return shutil.copytree(written, tmp_path / "ds")


def urls(dataset):
    return [
        dataset,
        *(
            f"{prefix}{dataset}/{path}"
            for prefix in ("", "zarr://")
            for path in ("color", "color/1", "color/2", "seg", "seg/1")
        ),
        f"zarr://{dataset}",
    ]


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def chunks(level):
    return sorted(
        path
        for path in level.rglob("*")
        if path.is_file() and not path.name.startswith((".", "zarr.json"))
    )


def test_sound_layers_have_no_faults(dataset):
    for url in urls(dataset):
        report = wkwdask.verify(url)
        assert (report.faults, report.unchecked) == ((), ()), url
        assert min(mag.blocks for mag in report.mags) > 0
    assert [(mag.layer, mag.mag) for mag in wkwdask.verify(dataset).mags] == [
        ("color", "1"),
        ("color", "2"),
        ("seg", "1"),
        ("flat", "1"),
    ]
    assert [(mag.layer, mag.mag) for mag in wkwdask.verify(dataset / "color" / "2").mags] == [
        ("color", "2")
    ]
    assert (
        next(mag.largest for mag in wkwdask.verify(dataset).mags if mag.layer == "seg") == IDS.max()
    )


def test_info_of_dataset_layer_and_mag(dataset):
    for path, mags in (
        (dataset, ["1", "2"]),
        (dataset / "color", ["1", "2"]),
        (dataset / "color" / "2", ["2"]),
    ):
        layer = wkwdask.info(path).layers[0]
        assert (
            layer.name,
            [mag.mag.name for mag in layer.mags],
            {mag.problem for mag in layer.mags},
        ) == ("color", mags, {""})
        assert all(mag.files > 0 for mag in layer.mags)
    assert wkwdask.info(dataset / "color" / "1").layers[0].mags[0].box == wkwdask.BoundingBox(
        CORNER, SIZE
    )


def test_changed_bytes_are_found(dataset):
    for level in ("color/1", "seg/1"):
        path = chunks(dataset / level)[0]
        path.write_bytes(path.read_bytes()[:-5] + bytes(5))
        for url in (
            dataset,
            dataset / level.split("/", maxsplit=1)[0],
            dataset / level,
            f"zarr://{dataset}/{level}",
        ):
            faults = [fault for fault in wkwdask.verify(url).faults if fault.severity == "error"]
            assert str(path) in {fault.path for fault in faults}, url


def test_missing_documents_mags_and_files_are_found(dataset):
    for document in (
        path
        for path in (dataset / "color" / "1").iterdir()
        if path.name in ("zarr.json", ".zarray")
    ):
        document.unlink()
    shutil.rmtree(dataset / "color" / "2")
    for path in chunks(dataset / "seg" / "1"):
        path.unlink()
    kinds = {fault.kind: fault.path for fault in wkwdask.verify(dataset).faults}
    found = {
        "level.missing": f"{dataset}/color/1",
        "mag.missing": f"{dataset}/color/2",
        "mag.empty": f"{dataset}/seg/1",
    }
    assert {kind: path for kind, path in kinds.items() if kind in found} == found
    wkwdask.repair(dataset, drop_missing=True)
    layers = json.loads((dataset / "datasource-properties.json").read_text())["dataLayers"]
    assert [mag["mag"] for mag in layers[0]["mags"]] == [[1, 1, 1]]


def test_lost_files_of_a_recorded_array_are_found(dataset):
    """As of an image that wkwdask made, and that a JSON lists."""
    wkwdask.convert(dataset / "color", f"zarr://{dataset}/made", mag=1, chunk_shape=(8, 8, 8))
    document = json.loads((dataset / "datasource-properties.json").read_text())
    box = wkwdask.info(f"zarr://{dataset}/made").scales[0]
    order = (
        {"c": 0, "z": 1, "y": 2, "x": 3}
        if len(json.loads((dataset / "made/1/zarr.json").read_text())["shape"]) == 4
        else {"z": 0, "y": 1, "x": 2}
    )
    size = dict(zip(("width", "height", "depth"), box.box.size, strict=True))
    mags = [{"mag": [1, 1, 1], "path": "./made/1", "axisOrder": order}]
    document["dataLayers"].append(
        {
            **document["dataLayers"][0],
            "name": "made",
            "mags": mags,
            "dataFormat": "zarr3",
            "boundingBox": {"topLeft": [0, 0, 0], **size},
        }
    )
    (dataset / "datasource-properties.json").write_text(json.dumps(document))
    assert wkwdask.verify(dataset / "made").is_sound
    lost = chunks(dataset / "made" / "1")[-1]
    lost.unlink()
    for url in (dataset, dataset / "made", dataset / "made" / "1"):
        assert [
            fault.kind for fault in wkwdask.verify(url).faults if fault.severity == "error"
        ] == ["file.lost"]


def test_a_wrong_type_in_the_json_is_found_and_repaired(dataset):
    path = dataset / "datasource-properties.json"
    path.write_text(
        path.read_text()
        .replace('"elementClass": "uint32"', '"elementClass": "uint16"')
        .replace("254", "7")
    )
    kinds = {fault.kind for fault in wkwdask.verify(dataset).faults}
    assert kinds == {"json.element_class", "json.largest_id"}
    wkwdask.repair(dataset)
    assert wkwdask.verify(dataset).faults == ()
    np.testing.assert_array_equal(wkwdask.open(dataset / "seg"), IDS)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("source", "layer", "target", "made"),
    [
        ("color/1", None, "out/raw/1", ["raw/1"]),  # a mag, in a new dataset
        ("color", None, "out/raw/2", ["raw/2"]),
        ("", "color", "out/raw/1", ["raw/1"]),
        ("color", None, "out", ["color/1", "color/2"]),  # a dataset
        ("", "color", "out", ["color/1", "color/2"]),
        ("color/2", None, "out", ["color/2"]),
        ("color", None, "new", ["new/1", "new/2"]),  # a layer of an existing dataset
        ("", "seg", "new", ["new/1"]),
        ("color/1", None, "new/1", ["new/1"]),
    ],
)
def test_the_target_of_a_conversion_is_where_the_path_says(
    dataset, tmp_path, source, layer, target, made
):
    place = dataset / target if target.startswith("new") else tmp_path / target
    root = dataset if target.startswith("new") else tmp_path / "out"
    report = wkwdask.convert(dataset / source, place, layer=layer)
    assert [mag.path for mag in report.mags] == [f"{root}/{path}" for path in made]
    for path in made:
        array = IDS if layer == "seg" else EM if path.endswith("1") else COARSE
        np.testing.assert_array_equal(wkwdask.open(root / path), array)
    assert wkwdask.verify(root).is_sound


def test_no_dataset_is_made_inside_of_a_layer(dataset):
    with pytest.raises(ValueError, match="is inside a layer of the dataset"):
        wkwdask.convert(dataset / "color", dataset / "flat" / "other")


def write_region(mag, voxels):
    low = (7, 5, 3)
    high = tuple(a + n for a, n in zip(low, voxels.shape[1:], strict=True))
    wkwdask.write(mag, None, voxels, region=(low, high))


JOBS = {
    "pyramid": lambda path: wkwdask.build_pyramid(path, mags=["2", "4"], existing="overwrite"),
    "rechunk": lambda path: wkwdask.rechunk(path, chunk_shape=(16, 16, 16)),
    "compress": lambda path: wkwdask.compress(path, compression="gzip"),
    "copy": lambda path: wkwdask.copy(path, f"{path}-copy"),
    "copy of a part": lambda path: wkwdask.copy(
        path, f"{path}-copy", bounding_box=(8, 8, 4, 17, 9, 7), translate=(6, 2, 0)
    ),
    "region": lambda path: write_region(path / "1", EM[:, :9, :9, :9]),
    "save": lambda path: wkwdask.save(EM, path / "1", offset=CORNER, existing="overwrite"),
    "save beyond": lambda path: wkwdask.save(
        np.pad(EM, ((0, 0), (0, 9), (0, 9), (0, 9)), "edge"),
        path / "1",
        offset=CORNER,
        existing="overwrite",
    ),
    "create": lambda path: wkwdask.create(path / "4", ((0, 0, 0), (8, 8, 8)), "uint8"),
    "apply": lambda path: wkwdask.apply(np.invert, path / "2", path / "2", existing="overwrite"),
    "remap": lambda path: wkwdask.remap(path / "2", f"{path}-copy/2", {1: 2}, default="keep"),
    "rm": lambda path: wkwdask.rm(path / "2"),
}


def read_by_webknossos(layer):
    """Return the voxels of each mag of a layer in its box, as the library reads them."""
    import webknossos

    opened = webknossos.Dataset.open(layer.parent).get_layer(layer.name)
    return {mag.to_layer_name(): view.read() for mag, view in opened.mags.items()}


def documents_of(layer):
    """Return the entry of a layer in the JSON, the entry of its group, and its arrays by their
    paths."""
    document = json.loads((layer.parent / "datasource-properties.json").read_text())
    entry = next(each for each in document["dataLayers"] if each["name"] == layer.name)
    is_v3 = entry["dataFormat"] == "zarr3"
    group = json.loads((layer / ("zarr.json" if is_v3 else ".zattrs")).read_text())
    (image,) = (group["attributes"]["ome"] if is_v3 else group)["multiscales"]
    arrays = {
        f"./{layer.name}/{path.parent.name}": json.loads(path.read_text())
        for path in layer.glob("*/zarr.json" if is_v3 else "*/.zarray")
    }
    return entry, image, arrays


def check_documents(layer):
    entry, image, arrays = documents_of(layer)
    assert sorted(arrays) == sorted(mag["path"] for mag in entry["mags"])
    assert sorted(arrays) == sorted(f"./{layer.name}/{each['path']}" for each in image["datasets"])
    for mag in entry["mags"]:
        array = arrays[mag["path"]]
        step = array.get("chunks") or array["chunk_grid"]["configuration"]["chunk_shape"]
        assert [n % each for n, each in zip(array["shape"], step, strict=True)] == [0] * 4
        assert array["fill_value"] == 0
        assert array.get("dimension_names", [*"cxyz"]) == [*"cxyz"]
        assert mag["axisOrder"] == {"c": 0, "x": 1, "y": 2, "z": 3}
        assert "cubeLength" not in mag


@pytest.mark.one_in(3)
@pytest.mark.parametrize("job", JOBS)
def test_webknossos_reads_what_jobs_write(dataset, job):
    JOBS[job](dataset / "color")
    assert not [fault for fault in wkwdask.verify(dataset).faults if fault.kind != "mag.empty"]
    for layer in wkwdask.info(dataset).layers:
        read = read_by_webknossos(dataset / layer.name)
        assert list(read) == [mag.mag.name for mag in layer.mags]
        for mag, voxels in read.items():
            ours = np.asarray(wkwdask.open(dataset / layer.name / mag))
            # the library reads zeros where the box of the layer reaches beyond an array
            missing = [(0, a - b) for a, b in zip(voxels.shape, ours.shape, strict=True)]
            np.testing.assert_array_equal(np.pad(ours, missing), voxels)
        if layer.data_format != "wkw":
            check_documents(dataset / layer.name)


def test_a_new_mag_is_stored_as_webknossos_stores_it(dataset):
    wkwdask.rm(dataset / "color" / "2")
    _, _, before = documents_of(dataset / "color")
    wkwdask.build_pyramid(dataset / "color", mags=["2"])
    _, _, after = documents_of(dataset / "color")
    expected, found = before["./color/1"], after["./color/2"]
    assert found["shape"] == [1, 32, 16, 16] if "codecs" in found else [1, 24, 16, 8]
    # all but the size and what may be left out
    for document in (expected, found):
        document.pop("shape")
        if "codecs" in document:
            document["chunk_key_encoding"].pop("configuration", None)
            document["codecs"][0]["configuration"].pop("index_location", None)
    assert {name: found[name] for name in expected} == expected


def test_all_layers_of_a_dataset_get_pyramids(dataset):
    done = run_here("pyramid", dataset, "--all-layers", "--mags", "2,4", "--overwrite")
    assert done.returncode in (0, None), done.stderr
    for layer in wkwdask.info(dataset).layers:
        assert [mag.mag.name for mag in layer.mags] == ["1", "2", "4"]
    assert wkwdask.verify(dataset).is_sound


def test_a_dataset_is_copied_with_all_layers(dataset, tmp_path):
    wkwdask.copy(dataset, tmp_path / "out")
    assert wkwdask.diff(dataset, tmp_path / "out").equal
    formats, copied = (
        {layer.name: layer.data_format for layer in wkwdask.info(each).layers}
        for each in (dataset, tmp_path / "out")
    )
    assert copied == formats
    check_documents(tmp_path / "out" / "color")


@pytest.mark.parametrize("name", ["color", "seg"])
def test_a_copy_does_not_leave_out_a_mag_that_cannot_be_opened(dataset, tmp_path, name):
    document = next(
        path
        for path in (dataset / name / "1" / "zarr.json", dataset / name / "1" / ".zarray")
        if path.exists()
    )
    document.write_text("{")
    before = contents(dataset)
    for job in (
        lambda: wkwdask.copy(dataset, tmp_path / "out"),
        lambda: wkwdask.copy(dataset, tmp_path / "out", layer=name),
        lambda: wkwdask.rechunk(dataset, tmp_path / "out", layer=name, chunk_shape=(4, 4, 4)),
        lambda: wkwdask.compress(dataset, layer=name, compression="gzip"),
    ):
        with pytest.raises(FormatError, match=f"{name}/1"):
            job()
    assert contents(dataset) == before
    assert not (tmp_path / "out").exists()
    wkwdask.copy(dataset, tmp_path / "out", layer="flat")
    wkwdask.copy(dataset, tmp_path / "out", layer="color", mags=["2"])
    assert sorted(wkwdask.open_dataset(tmp_path / "out").layers) == ["color", "flat"]


def test_an_update_follows_a_region(dataset):
    wkwdask.build_pyramid(dataset / "color", mags=["2", "4"], existing="overwrite")
    write_region(dataset / "color" / "1", np.full((1, 8, 8, 8), 255, "uint8"))
    wkwdask.build_pyramid(dataset / "color", update=True)
    assert wkwdask.verify(dataset / "color", pyramid=True).is_sound
    assert (read_by_webknossos(dataset / "color")["4"] == 255).any()


def test_the_largest_id_follows_a_region(dataset):
    write_region(dataset / "seg" / "1", np.full((1, 8, 8, 8), 1000, "uint32"))
    entry, _, _ = documents_of(dataset / "seg")
    assert entry["largestSegmentId"] == 1000


def test_options_are_those_of_the_format_of_the_layer(dataset):
    with pytest.raises(ValueError, match="zarr has no option block_len"):
        wkwdask.rechunk(dataset / "color", block_len=16)
    with pytest.raises(ValueError, match="several formats has no option chunk_shape"):
        wkwdask.rechunk(dataset, chunk_shape=(16, 16, 16))
    with pytest.raises(UnsupportedError, match="needs a dataset, which states its box"):
        wkwdask.copy(dataset / "color", dataset.parent / "bare")


def test_a_layer_is_removed_with_its_group(dataset):
    wkwdask.rm(dataset / "seg")
    assert not (dataset / "seg").exists()
    assert [*wkwdask.open_dataset(dataset).layers] == ["color", "flat"]


def test_values_outside_of_the_box_are_not_read_by_jobs(dataset, tmp_path):
    """Also where a target is no WKW; the array has other values around the box."""
    document = json.loads((dataset / "datasource-properties.json").read_text())
    box = {"topLeft": [8, 8, 4], "width": 16, "height": 8, "depth": 8}
    for layer in document["dataLayers"]:
        layer["boundingBox"] = box
    (dataset / "datasource-properties.json").write_text(json.dumps(document))
    part = (slice(None), slice(2, 18), slice(4, 12), slice(2, 10))
    urls = (
        f"zarr://{tmp_path}/{{}}.zarr/0",
        f"precomputed://{tmp_path}/{{}}",
        f"n5://{tmp_path}/{{}}.n5/s0",
        f"{dataset}/{{}}/1",
    )
    for url in urls:
        wkwdask.remap(dataset / "seg" / "1", url.format("remapped"), {1: 1}, default="keep")
        np.testing.assert_array_equal(wkwdask.open(url.format("remapped")), IDS[part])
        wkwdask.apply(np.invert, dataset / "color" / "1", url.format("inverted"))
        np.testing.assert_array_equal(wkwdask.open(url.format("inverted")), ~EM[part])
    assert next(mag.largest for mag in wkwdask.verify(dataset / "seg").mags) == IDS[part].max()
