"""Layers that the webknossos library stores as Zarr, as it does by default: checks, conversion to
WKW, and errors of jobs that cannot write into them.

Its arrays extend to whole shards, and ``datasource-properties.json`` states the box of each layer.
"""

from __future__ import annotations

import json
import shlex
import shutil
import warnings

import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.errors import UnsupportedError

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


JOBS = {
    "pyramid": lambda path: wkwdask.build_pyramid(path),
    "update": lambda path: wkwdask.build_pyramid(path, update=True),
    "upsample": lambda path: wkwdask.upsample(path, mags=["1"]),
    "rechunk": lambda path: wkwdask.rechunk(path, block_len=16),
    "compress": lambda path: wkwdask.compress(path),
    "copy": lambda path: wkwdask.copy(path, f"{path}-copy"),
    "region": lambda path: wkwdask.write(
        f"{path}/1", None, EM[:, :2, :2, :2], region=(CORNER, tuple(n + 2 for n in CORNER))
    ),
    "save": lambda path: wkwdask.save(EM, f"{path}/1", offset=CORNER, existing="overwrite"),
    "create": lambda path: wkwdask.create(f"{path}/8", ((0, 0, 0), (8, 8, 8)), "uint8"),
    "remap": lambda path: wkwdask.remap(f"{path}/1", f"{path}/4", {1: 2}),
}


@pytest.mark.parametrize("job", JOBS)
def test_jobs_that_write_name_the_command_that_works(dataset, job):
    before = contents(dataset)
    with pytest.raises(
        UnsupportedError, match=r"layer color is stored as Zarr \(zarr3?\)"
    ) as raised:
        JOBS[job](dataset / "color")
    assert contents(dataset) == before
    command = str(raised.value).split("wkwdask ", 1)[1].split(" stores ")[0]
    done = run_here(*shlex.split(command))
    assert done.returncode in (0, None), done.stderr
    np.testing.assert_array_equal(wkwdask.open(dataset / "color_wkw"), EM)
    wkwdask.build_pyramid(dataset / "color_wkw", coarsest="2", existing="overwrite")


def test_mags_are_not_removed(dataset):
    before = contents(dataset)
    for path in ("color", "color/1"):
        with pytest.raises(
            UnsupportedError, match=r"stored as zarr3?, only mags of wkw are removed"
        ):
            wkwdask.rm(dataset / path)
    assert contents(dataset) == before


def test_all_layers_goes_on_and_names_what_it_left_out(dataset):
    before = contents(dataset / "color")
    for more in ((), ("--dry-run", "--overwrite")):
        done = run_here("pyramid", dataset, "--all-layers", "--coarsest", "2", *more)
        assert done.returncode == 3
        left_out = [
            line.split(" is stored as Zarr")[0].rpartition(": ")[2]
            for line in done.stderr.splitlines()
            if line.startswith("left out: ")
        ]
        assert left_out == ["layer color", "layer seg"]
        assert f"{dataset}/flat" in done.stdout
    assert contents(dataset / "color") == before
    assert len(wkwdask.info(dataset / "flat").layers[0].mags) > 1
    # nothing is left to submit
    done = run_here(
        "submit", "pyramid", dataset, "--all-layers", "--coarsest", "2", "--cluster", "slurm-array"
    )
    assert (done.returncode, "left out: " in done.stderr) == (3, True)
    shutil.rmtree(dataset / "flat")
    document = json.loads((dataset / "datasource-properties.json").read_text())
    (dataset / "datasource-properties.json").write_text(
        json.dumps({**document, "dataLayers": document["dataLayers"][:2]})
    )
    done = run_here("pyramid", dataset, "--all-layers")
    assert (done.returncode, "layer color is stored as Zarr" in done.stderr) == (1, True)


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
