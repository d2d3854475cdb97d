"""zarr-python reads arrays that were stored again in place, with consolidated metadata and
attributes of other software."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import wkwdask
from wkwdask.formats.zarr.ngff import ome_of
from wkwdask.formats.zarr.ngff_edit import read_attributes, update_attributes

zarr = pytest.importorskip(
    "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
    pytest.mark.filterwarnings("ignore:.*zarr-python:UserWarning"),
]
VOXELS = np.arange(24 * 20 * 16, dtype=np.uint16).reshape(24, 20, 16)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_of_a_consolidated_group_is_read_correctly_after_a_change_in_place(
    tmp_path, zarr_format
):
    outer = zarr.create_group(tmp_path / "outer.zarr", zarr_format=zarr_format)
    group = outer.create_group("group")
    for name in ("a", "b"):
        group.create_array(name, data=VOXELS, chunks=(8, 8, 8), compressors=None)
    zarr.consolidate_metadata(tmp_path / "outer.zarr" / "group", zarr_format=zarr_format)
    zarr.consolidate_metadata(tmp_path / "outer.zarr", zarr_format=zarr_format)

    wkwdask.rechunk(
        tmp_path / "outer.zarr" / "group" / "a", chunk_shape=(16, 16, 16), compression="zstd"
    )

    for path in ("outer.zarr", "outer.zarr/group"):
        opened = zarr.open_group(tmp_path / path, mode="r")
        inside = opened if "a" in opened else opened["group"]
        np.testing.assert_array_equal(inside["a"][...], VOXELS)
        np.testing.assert_array_equal(inside["b"][...], VOXELS)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_removed_array_is_not_listed_by_the_groups_above_it(tmp_path, zarr_format):
    group = zarr.create_group(tmp_path / "group.zarr", zarr_format=zarr_format)
    for name in ("a", "b"):
        group.create_array(name, data=VOXELS, chunks=(8, 8, 8))
    zarr.consolidate_metadata(tmp_path / "group.zarr", zarr_format=zarr_format)

    wkwdask.rm(tmp_path / "group.zarr" / "a")

    assert list(zarr.open_group(tmp_path / "group.zarr", mode="r").array_keys()) == ["b"]


@pytest.mark.parametrize("ngff", ["0.4", "0.5", "0.6"])
def test_levels_of_a_consolidated_image_are_read_correctly_after_a_change(tmp_path, ngff):
    image = tmp_path / "image.ome.zarr"
    wkwdask.save(VOXELS[None], image, voxel_size=(4, 4, 8), ngff=ngff, compression="raw")
    zarr.consolidate_metadata(image, zarr_format=2 if ngff == "0.4" else 3)

    wkwdask.compress(image, compression="zstd", chunk_shape=(8, 8, 8))
    wkwdask.build_pyramid(image)

    opened = zarr.open_group(image, mode="r")
    assert {"1", "2-2-1"} <= set(opened.array_keys())
    np.testing.assert_array_equal(opened["1"][...], VOXELS.T)


@pytest.mark.parametrize("ngff", ["0.4", "0.5"])
def test_attributes_of_a_level_stay_when_it_is_stored_again(tmp_path, ngff):
    image = tmp_path / "image.ome.zarr"
    wkwdask.save(VOXELS[None], image, voxel_size=(4, 4, 8), ngff=ngff)
    zarr.open_array(image / "1", mode="r+").attrs["microscope"] = {"name": "A"}

    wkwdask.compress(image, compression="gzip")

    assert zarr.open_array(image / "1", mode="r").attrs["microscope"] == {"name": "A"}


def _list_twice(folder):
    """Let an image have a second entry of ``multiscales`` with the same levels."""

    def change(attributes):
        images = ome_of(attributes)["multiscales"]
        images.append({**copy.deepcopy(images[0]), "name": "second"})
        return attributes

    update_attributes(folder, 3, change)


def _listed(folder):
    _, attributes = read_attributes(folder)
    return {
        image["name"]: [entry["path"] for entry in image["datasets"]]
        for image in ome_of(attributes)["multiscales"]
    }


def test_removed_levels_are_dropped_from_all_lists(tmp_path):
    image = tmp_path / "image.ome.zarr"
    wkwdask.save(VOXELS[None], image, voxel_size=(4, 4, 8))
    wkwdask.build_pyramid(image, coarsest="4")
    _list_twice(str(image))
    wkwdask.rm(image, mags=["2-2-1"])
    first, second = _listed(str(image)).values()
    assert first == second != []
    assert all((image / path / "zarr.json").is_file() for path in second)


@pytest.mark.parametrize("ngff", ["0.5", "0.6"])
def test_replaced_levels_have_their_new_places_in_all_lists(ngff):
    image = f"memory://bucket/image-{ngff}.ome.zarr"
    wkwdask.save(VOXELS[None], image, voxel_size=(4, 4, 8), ngff=ngff)
    wkwdask.build_pyramid(image, coarsest="4")
    _list_twice(image)
    before = _listed(image)
    wkwdask.build_pyramid(image, coarsest="4", existing="overwrite")
    first, second = _listed(image).values()
    assert first == second
    _, attributes = read_attributes(image)
    for entry in ome_of(attributes)["multiscales"][1]["datasets"]:
        for step in entry["coordinateTransformations"]:
            assert step.get("input", {}).get("path", entry["path"]) == entry["path"]
    assert len(set(second) & set(before["second"])) == 1  # the finest level stays
