"""Levels of other software that leave out incomplete windows: checks and repairs go as far as the
level."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from verbs.cases import Case, draw_of_size
from verbs.foreign_forms import FOREIGN
from verbs.stored_path import stored_path

import wkwdask
from wkwdask.errors import BoundsError
from wkwdask.formats.repair import Unrepaired
from wkwdask.model.faults import Fault
from wkwdask.verbs.repair import RepairReport


@pytest.fixture(autouse=True, scope="module")
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


def files_below(url):
    paths = stored_path(url).rglob("*")
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths if path.is_file()
    }


@pytest.mark.needs("zarr")
def test_level_without_complete_windows_is_reported(tmp_path):
    import zarr

    (form,) = (form for form in FOREIGN if form.name == "rounded-down")
    url, case = form.url(tmp_path, "image"), draw_of_size(1, "uint16", (1, 40, 24, 24), (0, 0, 0))
    form.save(case.array, url, (0, 0, 0))
    zarr.open_array(stored_path(url) / "1", mode="r+").resize((6, 3, 4))
    report = wkwdask.verify(url, pyramid=True, method="max")
    assert report.kinds()["pyramid.smaller"] == 1
    assert "(0, 0, 0) + (5, 3, 6) in mag 8-8-4, the complete windows of mag 1" in str(report)


@pytest.mark.needs("imagecodecs")
def test_file_that_equals_its_replacement_is_never_set_aside(tmp_path):
    """The encoding loses values: coarser chunks differ from those computed from the finer scale,
    however often they are written."""
    url = f"precomputed://{tmp_path}/volume"
    array = draw_of_size(3, "uint8", (1, 40, 40, 40), (0, 0, 0)).array
    wkwdask.save(array, url, voxel_size=(4, 4, 4), chunk_shape=(8, 8, 8), encoding="jpeg")
    wkwdask.build_pyramid(url, mags=["2"], method="max", encoding="jpeg")
    before = files_below(url)
    report = wkwdask.repair(url, rebuild_differing=True, older_than=0)
    assert not report.actions
    assert "computed again, it has the same bytes" in str(report)
    assert {
        path: content
        for path, content in files_below(url).items()
        if not path.endswith("files.npy")
    } == {path: content for path, content in before.items() if not path.endswith("files.npy")}


@pytest.mark.parametrize(
    "places", [[(17, 13, 9)], [(1, 1, 1), (9, 1, 1)]], ids=["the last file", "the first two files"]
)
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("precomputed", marks=pytest.mark.needs("tensorstore")),
        pytest.param("zarr", marks=pytest.mark.needs("zarr")),
    ],
)
def test_repair_names_the_files_of_a_group_that_changed(tmp_path, engine, places):
    """The difference is stated for the first file of a group, which may be equal."""
    fine = np.random.default_rng(3).integers(1, 200, (37, 29, 21), np.uint8)
    coarse = fine[:36:2, :28:2, :20:2]
    damaged = coarse.copy()
    for place in places:
        damaged[place] ^= 255
    folder = tmp_path / "image"
    (write_scales if engine == "precomputed" else write_ngff)(folder, [fine, damaged])
    url = f"{engine}://{folder}"
    before = files_below(url)
    preview = wkwdask.repair(url, rebuild_differing=True, method="nearest", dry_run=True)
    assert [action.verb for action in preview.actions] == ["rebuild"]
    report = wkwdask.repair(url, rebuild_differing=True, method="nearest")
    changed = {
        path
        for path, (content, _) in files_below(url).items()
        if path in before and before[path][0] != content
    }
    assert len(changed) == len(places)
    assert {action.path for action in report.actions} == changed
    assert {action.verb for action in report.actions} == {"rebuild"}
    assert all(action.how.endswith("the old file is set aside") for action in report.actions)
    assert not report.remaining
    np.testing.assert_array_equal(wkwdask.read(url, mag="2")[0], coarse)
    aside = [
        path
        for path in tmp_path.rglob("*")
        if ".wkwdask-quarantine" in str(path) and path.is_file() and path.suffix != ".txt"
    ]
    assert len(aside) == len(places)
    assert (
        str(wkwdask.repair(url, rebuild_differing=True, method="nearest"))
        == "nothing to do; no errors or warnings remain"
    )


def write_scales(folder, levels):
    import tensorstore as ts

    for n, array in enumerate(levels):
        scale = {
            "resolution": [8 << n] * 3,
            "chunk_size": [8] * 3,
            "encoding": "raw",
            "size": list(array.shape),
            "key": f"m{n}",
        }
        image = {"type": "image", "data_type": "uint8", "num_channels": 1}
        spec = {
            "driver": "neuroglancer_precomputed",
            "kvstore": f"file://{folder}/",
            "create": True,
        }
        ts.open({**spec, "multiscale_metadata": image, "scale_metadata": scale}).result()[
            ..., 0
        ] = array


def write_ngff(folder, levels):
    import zarr

    group = zarr.open_group(folder, mode="w", zarr_format=3)
    for n, array in enumerate(levels):
        group.create_array(
            str(n),
            shape=array.T.shape,
            chunks=(8, 8, 8),
            dtype="uint8",
            dimension_names=["z", "y", "x"],
        )[...] = array.T
    axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    datasets = [
        {
            "path": str(n),
            "coordinateTransformations": [{"type": "scale", "scale": [8.0 * (1 << n)] * 3}],
        }
        for n in range(len(levels))
    ]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ([], "no errors or warnings remain"),
        (["folder.no_folder"], "1 error remains"),
        (["pyramid.differs"], "1 warning remains"),
        (["pyramid.differs"] * 2, "2 warnings remain"),
        (["folder.no_folder", "pyramid.differs"], "1 error and 1 warning remain"),
    ],
)
def test_numbers_of_remaining_faults_agree_with_their_verb(kinds, state):
    left = tuple(Unrepaired(Fault(kind, "/image", "found", "expected"), "why") for kind in kinds)
    assert str(RepairReport("/image", is_dry_run=False, actions=(), remaining=left)).endswith(
        f"nothing to do; {state}"
    )


@pytest.mark.parametrize(
    "form",
    [
        "wkw",
        *(pytest.param(name, marks=pytest.mark.needs("zarr")) for name in ("zarr", "zarr-shards")),
        "n5",
        "precomputed",
        "precomputed-shards",
    ],
)
def test_all_files_of_a_group_are_set_aside_and_missing_ones_are_written(tmp_path, form):
    shards = {
        "zarr": (8, 8, 8),
        "zarr-shards": (16, 16, 16),
        "precomputed-shards": (16, 16, 16),
    }.get(form)
    options = {"block_len": 8, "file_len": 2} if form == "wkw" else {"chunk_shape": (8, 8, 8)}
    options |= {} if shards is None else {"shard_shape": shards}
    engine = form.partition("-")[0]
    image = {"wkw": f"{tmp_path}/image", "zarr": f"{tmp_path}/image.ome.zarr"}.get(
        engine, f"{engine}://{tmp_path}/image"
    )
    case = Case(np.random.default_rng(5).integers(1, 200, (1, 80, 64, 64), np.uint8), (0, 0, 0))
    wkwdask.save(
        case.array,
        f"{image}/1" if engine == "wkw" else f"{image}/s0" if engine == "n5" else image,
        voxel_size=(4, 4, 4),
        **options,
    )
    finest = files_below(image).keys()
    wkwdask.build_pyramid(image, mags=["2"], method="mean", **options)
    expected = wkwdask.read(image, mag="2")
    for path in stored_path(image).rglob(".wkwdask*"):
        path.unlink()
    level = sorted(
        path
        for path in files_below(image).keys() - finest
        if not path.endswith(("json", "header.wkw", ".zattrs"))
    )
    stored_path(level[0]).unlink()
    url, mag = (f"{image}/2", None) if engine == "wkw" else (image, 2)
    wkwdask.write(
        url, None, np.zeros((1, 1, 1, 1), np.uint8), region=((30, 30, 30), (31, 31, 31)), mag=mag
    )
    wkwdask.repair(image, rebuild_differing=True, method="mean", older_than=0)
    np.testing.assert_array_equal(wkwdask.read(image, mag="2"), expected)
    aside = [
        path
        for path in tmp_path.rglob("*")
        if ".wkwdask-quarantine" in str(path) and path.is_file() and path.suffix != ".txt"
    ]
    assert len(aside) == 1


@pytest.mark.needs("tensorstore")
def test_copy_says_which_level_has_no_voxels_in_the_box(tmp_path):
    (form,) = (form for form in FOREIGN if form.name == "rounded-down-scales")
    url, copy, case = (
        form.url(tmp_path, "image"),
        form.url(tmp_path, "copy"),
        draw_of_size(1, "uint16", (1, 21, 17, 13), (0, 0, 0)),
    )
    form.save(case.array, url, (0, 0, 0))
    report = wkwdask.copy(url, copy, bounding_box=(17, 1, 2, 4, 3, 9))
    assert "32_32_32 has no voxels in the bounding box" in report.note
    np.testing.assert_array_equal(
        wkwdask.read(copy, ((17, 1, 2), (21, 4, 11))), case.array[:, 17:, 1:4, 2:11]
    )
    assert [scale.mag.name for scale in wkwdask.info(copy).scales] == ["1"]
    with pytest.raises(BoundsError, match="lies outside of the mag"):
        wkwdask.copy(url, form.url(tmp_path, "other"), bounding_box=(50, 1, 2, 4, 3, 9))
