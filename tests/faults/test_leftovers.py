"""After a kill at any change of the file system, the same call leaves nothing behind but documented
records."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import asdict

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, killed_at, killed_at_each, rechunks_of, without_flushing
from faults.trees import HARMLESS, leftovers

import wkwdask
from wkwdask.store.locks import Owner

pytestmark = [
    pytest.mark.faults,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
VOXELS = np.random.default_rng(0).integers(1, 255, (16, 16, 8)).astype(np.uint8)


def n5_as_zarr(folder):
    wkwdask.n5_as_zarr(f"n5://{folder}/em.n5", write=True)


def rechunk(folder):
    with rechunks_of(8):
        wkwdask.rechunk(folder / "ds" / "seg" / "1", file_len=1)


def repair_header(folder):
    wkwdask.repair(folder / "ds")


def repair_file(folder):
    wkwdask.repair(folder / "ds", quarantine=True)


def remove_layer(folder):
    wkwdask.rm(folder / "ds", layer="seg")


def remove_folder_of_layer(folder):
    wkwdask.rm(folder / "ds" / "seg")


def remove_dataset(folder):
    wkwdask.rm(folder / "ds")


def remove_n5(folder):
    wkwdask.rm(f"n5://{folder}/em.n5")


def remove_one_of_two(folder):
    wkwdask.rm(f"n5://{folder}/two.n5/a")


def remove_two(folder):
    wkwdask.rm(f"n5://{folder}/two.n5")


def remove_zarr(folder):
    wkwdask.rm(f"zarr://{folder}/em.zarr")


def remove_layers_of_arrays(folder):
    wkwdask.rm(folder / "arrays", layer=["zarr3", "n5", "neuroglancerPrecomputed"])


def remove_precomputed(folder):
    wkwdask.rm(f"precomputed://{folder}/em")


def damage_header(folder):
    header = folder / "ds" / "seg" / "1" / "header.wkw"
    header.write_bytes(b"\0" + header.read_bytes()[1:])


def cut_off(folder):
    (file,) = (folder / "ds" / "seg" / "1").rglob("x0.wkw")
    file.write_bytes(file.read_bytes()[:-3])


def tree(folder):
    """Paths of all files and folders, hidden ones too, but for the records of mags."""
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.name not in HARMLESS
    )


def make(folder):
    folder.mkdir()
    wkwdask.create_dataset(folder / "ds", voxel_size=(4, 4, 4))
    wkwdask.save(VOXELS, folder / "ds" / "seg" / "1", block_len=8, file_len=2)
    for image in (
        "n5://{}/em.n5/s0",
        "n5://{}/two.n5/a/s0",
        "n5://{}/two.n5/b/s0",
        "zarr://{}/em.zarr",
        "precomputed://{}/em",
    ):
        wkwdask.save(VOXELS, image.format(folder), voxel_size=(4, 4, 4), chunk_shape=(8, 8, 8))
    make_layers_of_arrays(folder / "arrays")


def make_layers_of_arrays(dataset):
    """Make a dataset whose layers are images in other formats, as the JSON says."""
    box = {"topLeft": [0, 0, 0], "width": 16, "height": 16, "depth": 8}
    layers = []
    for data_format, url, path, axes in (
        ("zarr3", "zarr://{}", "1", "czyx"),
        ("n5", "n5://{}/s0", "s0", "xyz"),
        ("neuroglancerPrecomputed", "precomputed://{}", "4_4_4", "xyzc"),
    ):
        folder = dataset / data_format
        wkwdask.save(VOXELS, url.format(folder), voxel_size=(4, 4, 4), chunk_shape=(8, 8, 8))
        if data_format == "zarr3":
            names = json.loads((folder / "1" / "zarr.json").read_text())["dimension_names"]
            axes = "".join(names)
        order = {axis: number for number, axis in enumerate(axes)}
        mag = {"mag": [1, 1, 1], "path": f"./{data_format}/{path}", "axisOrder": order}
        layers.append(
            {
                "name": data_format,
                "category": "color",
                "boundingBox": box,
                "dataFormat": data_format,
                "mags": [mag],
                "elementClass": "uint8",
            }
        )
    document = {"id": {"name": "arrays", "team": ""}, "scale": [4, 4, 4], "dataLayers": layers}
    (dataset / "datasource-properties.json").write_text(json.dumps(document))


def fail_at_the_corner(ids, box):
    if box.topleft == (0, 0, 0):
        raise ValueError("corner")
    return ids


def test_a_function_that_fails_leaves_no_layer(tmp_path):
    make(tmp_path / "all")
    ds = tmp_path / "all" / "ds"
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.raises(wkwdask.TaskFailedError, match="corner"),
    ):
        wkwdask.apply(fail_at_the_corner, ds / "seg" / "1", ds / "new" / "1", chunks=8)
    assert not (ds / "new").exists()
    assert leftovers(ds) == []


VERBS = {
    n5_as_zarr: None,
    rechunk: None,
    repair_header: damage_header,
    repair_file: cut_off,
    remove_layer: None,
    remove_folder_of_layer: None,
    remove_dataset: None,
    remove_n5: None,
    remove_one_of_two: None,
    remove_two: None,
    remove_zarr: None,
    remove_layers_of_arrays: None,
    remove_precomputed: None,
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("verb", VERBS)
def test_the_same_call_leaves_nothing_behind(tmp_path, verb):
    make(tmp_path / "before")
    if VERBS[verb] is not None:
        VERBS[verb](tmp_path / "before")

    def run(folder):
        with without_flushing():
            verb(folder)

    def start(folder):
        shutil.copytree(tmp_path / "before", folder)

    start(tmp_path / "whole")
    changes, _ = killed_at(0, run, tmp_path / "whole")
    expected = tree(tmp_path / "whole")
    many = changes > 60 and not KILLS
    steps = (
        range(1, changes + 1, max(1, changes // 12))
        if many and verb in (n5_as_zarr, rechunk)
        else range(1, changes + 1)
    )
    for step in killed_at_each(steps, run, start, tmp_path / "killed"):
        with dask.config.set(scheduler="synchronous"), contextlib.suppress(wkwdask.MissingError):
            # killed when nothing was left to do
            run(tmp_path / "killed")
        assert tree(tmp_path / "killed") == expected, step


@pytest.mark.parametrize(
    "name", [".1.wkwdask-lock", ".wkwdask-job-20260101T000000-00000000", "notes.txt"]
)
def test_a_folder_in_which_a_process_may_work_is_not_removed(tmp_path, name):
    """Only an empty folder, or one with the documents of an image and nothing else, counts as the
    rest of a removal."""
    folder = tmp_path / "ds" / "seg"
    folder.mkdir(parents=True)
    if "job" in name:
        (folder / name).mkdir()
    else:
        (folder / name).write_text(
            json.dumps({**asdict(Owner.this_process("test")), "folder": str(folder)})
        )
    with pytest.raises(wkwdask.MissingError):
        wkwdask.rm(folder)
    assert (folder / name).exists()
