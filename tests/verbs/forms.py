"""Formats of the matrix, with small chunks so that each case has several."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verbs.cases import LOWEST, TYPES

import wkwdask
from wkwdask.store import files
from wkwdask.store.new_files import publish_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VOXEL_SIZE = (4.0, 4.0, 8.0)


@dataclass(frozen=True)
class Form:
    """A format with its storage options."""

    name: str
    url: Callable[[Path, str], str]
    """Return the URL of an image for a folder and a name."""
    save: Callable[..., Any]
    """Save an array (c, x, y, z) as mag 1: ``save(array, url, offset, **options)``."""
    engine: str
    """Name of the engine in xarray."""
    needs: str | None = None
    """Optional package that the format needs."""
    types: tuple[str, ...] = TYPES
    """Data types that the format stores."""
    lowest: int = LOWEST
    """Lowest position of an image: 0 if it cannot be negative."""

    def __str__(self) -> str:
        return self.name


def _save_wkw(array, url, offset, **others):
    dataset = url.rsplit("/", 1)[0]
    wkwdask.create_dataset(dataset, VOXEL_SIZE, existing="keep")
    return wkwdask.to_wkw(array, f"{url}/1", offset=offset, **{"block_len": 8, "file_len": 2} | others)


def _save_precomputed(sharded):
    def save(array, url, offset, **others):
        return wkwdask.to_precomputed(array, url, offset=offset, voxel_size=VOXEL_SIZE, chunk_shape=(8, 8, 8), shard_shape=sharded, **others)

    return save


def _save_n5(array, url, offset, **others):
    others.pop("category", None)  # N5 does not store it
    return wkwdask.to_n5(array, f"{url}/s0", offset=offset, voxel_size=VOXEL_SIZE, chunk_shape=(8, 8, 8), **others)


def _save_zarr(version, **options):
    def save(array, url, offset, **others):
        return wkwdask.to_zarr(array, url, offset=offset, voxel_size=VOXEL_SIZE, chunk_shape=(8, 8, 8), ngff=version, **options, **others)

    return save


def _save_array(version, **options):
    """Save an array that belongs to no image: the level of an image without its group."""

    def save(array, url, offset, **others):
        image, folder = f"{url}.image", url.removeprefix("zarr://")
        report = wkwdask.to_zarr(array, image, offset=offset, voxel_size=VOXEL_SIZE, chunk_shape=(8, 8, 8), ngff=version, **options, **others)
        files.rename(f"{folder}.image/1", folder)
        files.remove_tree(f"{folder}.image")
        name = ".zattrs" if version == "0.4" else "zarr.json"
        document = json.loads(files.read_bytes(f"{folder}/{name}"))
        (document if version == "0.4" else document["attributes"]).update(voxel_size_nm=VOXEL_SIZE, note="kept")
        publish_bytes(f"{folder}/{name}", json.dumps(document).encode())
        return report

    return save


def _save_toy(array, url, offset, **others):
    return wkwdask.write(url, offset, array, voxel_size=VOXEL_SIZE, chunk_shape=(8, 8, 8), **others)


_PRECOMPUTED = tuple(name for name in TYPES if name not in ("int64", "float64"))

FORMS = (
    Form("wkw", lambda folder, name: f"{folder}/dataset/{name}", _save_wkw, "wkw", lowest=0),
    Form("precomputed", lambda folder, name: f"precomputed://{folder}/{name}", _save_precomputed(sharded=False), "precomputed", types=_PRECOMPUTED),
    Form("precomputed-sharded", lambda folder, name: f"precomputed://{folder}/{name}", _save_precomputed(sharded=True), "precomputed", types=_PRECOMPUTED),
    Form("n5", lambda folder, name: f"n5://{folder}/volume.n5/{name}", _save_n5, "n5"),
    Form("ngff-0.4", lambda folder, name: f"zarr://{folder}/{name}.ome.zarr", _save_zarr("0.4"), "ngff", "zarr"),
    Form("ngff-0.5", lambda folder, name: f"zarr://{folder}/{name}.ome.zarr", _save_zarr("0.5", shard_shape=(16, 16, 16)), "ngff", "zarr"),
    Form("ngff-0.6", lambda folder, name: f"zarr://{folder}/{name}.ome.zarr", _save_zarr("0.6", shard_shape=False), "ngff", "zarr"),
    Form("zarr-2", lambda folder, name: f"zarr://{folder}/{name}", _save_array("0.4"), "ngff", "zarr"),
    Form("zarr-3", lambda folder, name: f"zarr://{folder}/{name}", _save_array("0.5", shard_shape=(16, 16, 16)), "ngff", "zarr"),
    Form("toy", lambda folder, name: f"toy://{folder}/{name}", _save_toy, "toy", lowest=0),
)
IMAGES = tuple(form for form in FORMS if form.name not in ("ngff-0.6", "zarr-2", "zarr-3"))
"""Forms with levels. Single arrays have none, and OME-NGFF 0.6 has the arrays of 0.5."""
