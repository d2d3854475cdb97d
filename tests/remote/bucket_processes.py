"""Small jobs on an image in a bucket, as processes run them that tests kill, stop and wake up.

Processes that a test starts import this module as ``remote.bucket_processes``.
"""

from __future__ import annotations

import warnings
from unittest import mock

import dask
import numpy as np

import wkwdask
from wkwdask.errors import DiscardWarning
from wkwdask.formats.opening import find
from wkwdask.formats.registry import opening_format
from wkwdask.store import leases
from wkwdask.store.objects import object_store
from wkwdask.store.store import store_at

VOXELS = np.random.default_rng(1).integers(1, 255, (1, 20, 18, 20), np.uint8)
REGION = ((3, 0, 0), (16, 8, 8))
"""Part of one chunk and a whole one, in one shard."""
MESHED = ((0, 0, 0), (20, 18, 9))
"""Four cells of 11 voxels, which are joined to one: more of them would send more requests of the
same kinds."""


LABELS = np.zeros(VOXELS.shape, np.uint32)
LABELS[:, 3:17, 2:9, 4:18], LABELS[:, 3:9, 9:15, 4:8] = 5, 6


def save(image, voxels=VOXELS, **options):
    return wkwdask.save(voxels, image, voxel_size=(4, 4, 8), chunk_shape=(8, 8, 8), **options)


def image_in(folder):
    return f"precomputed://{folder}/v"


def new_image(folder):
    return f"{folder}/w.ome.zarr"


def save_region(folder):
    low, high = REGION
    part = VOXELS[0][tuple(map(slice, low, high))][np.newaxis] // 2
    return wkwdask.save(part, image_in(folder), region=REGION, mag=1)


JOBS = {
    "pyramid": lambda folder: wkwdask.build_pyramid(image_in(folder), method="max"),
    "replace": lambda folder: save(image_in(folder), VOXELS[..., ::-1], existing="overwrite"),
    "rm": lambda folder: wkwdask.rm(image_in(folder), mags="2-2-1"),
    "convert": lambda folder: wkwdask.convert(image_in(folder), new_image(folder)),
    "update": lambda folder: wkwdask.build_pyramid(image_in(folder), update=True),
    "region": save_region,
    "new image": lambda folder: save(new_image(folder)),
    "meshes": lambda folder: wkwdask.meshes(image_in(folder), cell=11, where=MESHED),
}
"""Each of them makes the same of the same image."""


def start_image(name, folder):
    """Make the image on which a job works."""
    if name == "meshes":
        save(image_in(folder), LABELS, category="segmentation")
        return
    save(image_in(folder))
    if name != "pyramid":
        JOBS["pyramid"](folder)
    if name == "update":
        region = ((0, 0, 0), (9, 3, 5))
        wkwdask.save(VOXELS[:, :9, :3, :5] // 2, image_in(folder), region=region, mag=1)


def run(name, folder, ttl_seconds=-10.0):
    """Run a job; one that another process has taken over ends with an error. By default the next
    process takes over at once."""
    object_store._connections.clear()  # to the server that the environment names
    with (
        dask.config.set(scheduler="synchronous"),
        mock.patch.object(leases, "TTL_SECONDS", ttl_seconds),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", DiscardWarning)
        JOBS[name](folder)


def levels(url):
    """Return the voxels of all levels that readers see, and the files of meshes; None if there is
    no image."""
    try:
        layers = find(url).layers
    except (wkwdask.MissingError, wkwdask.UnsupportedError):
        return None
    meshes = {
        name: data
        for layer in layers
        for folder in opening_format(url).mesh_folders(layer)
        for name, data in files_in(folder)
    }
    return meshes | {
        level.mag.name: wkwdask.read(url, mag=level.mag).tobytes()
        for layer in layers
        for level in layer.levels
    }


def files_in(folder):
    """Yield names and contents of files that are no records."""
    store = store_at(folder)
    names = [name for name in store.names() if not name.startswith(".")]
    yield from zip(names, store.read_whole(names, 1 << 24), strict=True)


def visible(folder):
    """Return what readers see of both images."""
    return levels(image_in(folder)), levels(new_image(folder))
