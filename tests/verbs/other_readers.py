"""Oracles of the matrix: other software reads each level that a verb made, and its documents.

==================  ==========================================
format              readers
==================  ==========================================
WKW                 wkw
precomputed         tensorstore, cloud-volume
N5                  tensorstore
Zarr v2, OME 0.4    tensorstore, zarr-python, ome-zarr-models
Zarr v3, OME 0.5    tensorstore, zarr-python, ome-zarr-models
Zarr v3 in datasets tensorstore
OME 0.6             ngff-zarr, with the schemas of the specification
==================  ==========================================

In a bucket of S3, tensorstore reads. Readers that are not installed are left out; tests in
``tests/oracles`` are skipped then and say so.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from verbs.forms import VOXEL_SIZE
from verbs.stored_path import stored_path

from wkwdask.formats.opening import find
from wkwdask.store.paths import is_bucket

if TYPE_CHECKING:
    from collections.abc import Collection

    from verbs.cases import Case

    from wkwdask.model.image import Image, Level


def expect_by_others(url: str, mag: object, case: Case, but: Collection[str] = ()) -> None:
    """Compare type, position and voxels of a level with an array, as each of the other readers of
    its format sees them, without those named in ``but``."""
    image = find(url).choose(None)
    level = image.find(mag)
    for name, read in _READERS.get(_kind(image, level), {}).items():
        if name in but or (is_bucket(image.folder) and name != "tensorstore"):
            continue
        if image.key == "" and name != "tensorstore":  # a single array belongs to no group
            continue
        if name == "cloudvolume" and case.array.size == len(case.array) > 1:
            # it takes the channels of a single voxel for voxels
            continue
        if find_spec(name) is not None and not (name == "tensorstore" and _has_suffixes(level)):
            voxels = read(image, level, case)
            np.testing.assert_array_equal(voxels, case.array, err_msg=f"{name} reads other voxels")
            assert voxels.dtype.newbyteorder("=") == case.array.dtype


def _kind(image: Image, level: Level) -> str:
    """Return the key of the table of readers."""
    is_in_dataset = (stored_path(image.folder).parent / "datasource-properties.json").exists()
    return f"{image.format} layer" if is_in_dataset else image.format


def read_by_tensorstore(url: str, mag: object) -> np.ndarray:
    """Return the voxels (c, x, y, z) of a level."""
    image = find(url).choose(None)
    return _READERS[image.format]["tensorstore"](image, image.find(mag), None)


def _has_suffixes(level: Level) -> bool:
    """Return whether chunks are files with a suffix, which cloud-volume alone reads."""
    paths = stored_path(level.folder).rglob("*.gz")
    return any(path.name.endswith(".gz") for path in paths)


def _wkw(image: Image, level: Level, case: Case) -> np.ndarray:
    import wkw

    with wkw.Dataset.open(level.folder) as dataset:
        return dataset.read(case.offset, case.size)


def _tensorstore(driver: str, folder: str, **options: object) -> object:
    import tensorstore

    kvstore = {"driver": "file", "path": f"{folder}/"}
    if is_bucket(folder):
        kvstore |= {"driver": "s3", "endpoint": os.environ["AWS_ENDPOINT_URL"]}
        kvstore["bucket"], _, kvstore["path"] = f"{folder}/".removeprefix("s3://").partition("/")
    return tensorstore.open({"driver": driver, "kvstore": kvstore, **options}).result()


def _precomputed_by_tensorstore(image: Image, level: Level, case: Case | None) -> np.ndarray:
    store = _tensorstore(
        "neuroglancer_precomputed", image.folder, scale_metadata={"key": level.key}
    )
    assert case is None or store.domain.origin[:3] == case.offset
    return store.read().result().transpose(3, 0, 1, 2)


def _precomputed_by_cloudvolume(image: Image, level: Level, case: Case) -> np.ndarray:
    from cloudvolume import CloudVolume

    keys = [
        scale["key"] for scale in json.loads((Path(image.folder) / "info").read_text())["scales"]
    ]
    volume = CloudVolume(
        f"file://{image.folder}", mip=keys.index(level.key), progress=False, fill_missing=True
    )
    assert tuple(volume.voxel_offset) == case.offset
    return np.asarray(volume[:, :, :]).transpose(3, 0, 1, 2)


def _n5_by_tensorstore(image: Image, level: Level, case: Case | None) -> np.ndarray:
    found = _tensorstore("n5", level.folder).read().result()
    return found[np.newaxis] if found.ndim == 3 else found.transpose(3, 0, 1, 2)


def _inner_box(level: Level) -> list[int]:
    """Return first voxel and size along x, y, z of the box of an array that is larger; empty for
    the others."""
    document, attributes = (stored_path(level.folder) / name for name in ("zarr.json", ".zattrs"))
    if document.exists():
        return json.loads(document.read_text()).get("attributes", {}).get("inner_box_vx", [])
    return json.loads(attributes.read_text()).get("inner_box_vx", []) if attributes.exists() else []


def _margin(level: Level) -> list[int]:
    """Return how many voxels along x, y, z an array begins before its box."""
    return _inner_box(level)[:3] or [0, 0, 0]


def _inside(found: np.ndarray, level: Level) -> np.ndarray:
    """Return the voxels (c, x, y, z) of the box of an array; all others must be zero."""
    # without an axis t
    voxels, box = found.reshape((1, *found.shape)[-4:]).transpose(0, 3, 2, 1), _inner_box(level)
    inside = voxels[
        (slice(None), *(slice(low, low + n) for low, n in zip(box[:3], box[3:], strict=True)))
    ]
    assert np.count_nonzero(inside) == np.count_nonzero(voxels)
    return inside


def _zarr_by_tensorstore(image: Image, level: Level, case: Case | None) -> np.ndarray:
    driver = "zarr3" if (stored_path(level.folder) / "zarr.json").exists() else "zarr"
    return _inside(_tensorstore(driver, level.folder).read().result(), level)


def _n5_layer_by_tensorstore(image: Image, level: Level, case: Case) -> np.ndarray:
    """Read the box of an N5 dataset of a layer, which begins at voxel 0."""
    box = tuple(slice(low, high) for low, high in zip(case.offset, case.end, strict=True))
    found = _tensorstore("n5", level.folder)[box].read().result()
    return found[np.newaxis] if found.ndim == 3 else found.transpose(3, 0, 1, 2)


def _volume_of_layer(read: object) -> object:
    """Return the reader of a layer that is a precomputed volume, whose keys the layer does not
    state."""
    return lambda image, level, case: read(
        image, replace(level, key=stored_path(level.folder).name), case
    )


def _layer_by_tensorstore(image: Image, level: Level, case: Case) -> np.ndarray:
    """Read the box of a Zarr array of a dataset, whose axes are c, x, y, z from voxel 0 on."""
    box = tuple(slice(low, high) for low, high in zip(case.offset, case.end, strict=True))
    driver = "zarr3" if (stored_path(level.folder) / "zarr.json").exists() else "zarr"
    return _tensorstore(driver, level.folder)[(slice(None), *box)].read().result()


def _zarr_by_zarr(image: Image, level: Level, case: Case) -> np.ndarray:
    import zarr

    _check_documents(zarr.open_group(image.folder, mode="r"), image, level, case)
    return _inside(np.asarray(zarr.open_array(level.folder, mode="r")[...]), level)


def _check_documents(group: object, image: Image, level: Level, case: Case) -> None:
    """Validate the documents, and compare the position of the first voxel with that of the
    array."""
    read = (
        _place_by_ngff_zarr
        if group.attrs.get("ome", {}).get("version") == "0.6"
        else _place_by_models
    )
    if (
        find_spec({_place_by_ngff_zarr: "ngff_zarr", _place_by_models: "ome_zarr_models"}[read])
        is None
    ):
        return
    scale, translation = read(group, image, level)
    # The translation is the center of the first voxel; the center of voxel 0 of mag 1 is at 0.
    first = [low - margin for low, margin in zip(case.offset, _margin(level), strict=True)]
    expected = [
        (low + 0.5) * edge - 0.5 * fine
        for low, edge, fine in zip(first[::-1], scale, VOXEL_SIZE[::-1], strict=True)
    ]
    np.testing.assert_allclose(translation, expected, rtol=1e-9, atol=1e-9)


def _place_by_models(group: object, image: Image, level: Level) -> tuple[list[float], list[float]]:
    from ome_zarr_models import v04, v05

    found = (
        v05.Image.from_zarr(group).ome_attributes
        if "ome" in group.attrs
        else v04.Image.from_zarr(group).attributes
    )
    scale, *moves = next(
        entry for entry in found.multiscales[0].datasets if entry.path == level.key
    ).coordinateTransformations
    return scale.scale[-3:], moves[0].translation[-3:] if moves else [0.0] * 3


def _place_by_ngff_zarr(
    group: object, image: Image, level: Level
) -> tuple[list[float], list[float]]:
    import ngff_zarr

    found = ngff_zarr.from_ngff_zarr(image.folder, validate=True)
    paths = [entry.path for entry in found.metadata.datasets]
    place = found.images[paths.index(level.key)]
    return [place.scale[axis] for axis in "zyx"], [place.translation[axis] for axis in "zyx"]


_READERS = {
    "wkw": {"wkw": _wkw},
    "precomputed": {
        "tensorstore": _precomputed_by_tensorstore,
        "cloudvolume": _precomputed_by_cloudvolume,
    },
    "n5": {"tensorstore": _n5_by_tensorstore},
    "zarr layer": {"tensorstore": _layer_by_tensorstore},
    "n5 layer": {"tensorstore": _n5_layer_by_tensorstore},
    "precomputed layer": {
        "tensorstore": _volume_of_layer(_precomputed_by_tensorstore),
        "cloudvolume": _volume_of_layer(_precomputed_by_cloudvolume),
    },
    "wkw layer": {"wkw": _wkw},
    "zarr": {"tensorstore": _zarr_by_tensorstore, "zarr": _zarr_by_zarr},
}
