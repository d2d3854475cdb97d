"""Every verb sees in an array what zarr-python 3 reads from it, whatever its codecs, filters,
shards, fill value and type.

An array is written by zarr-python as the finest level of an OME-NGFF image. A plain copy of its
voxels is the reference: a verb must return the same for both.
"""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import dask
import numpy as np
import pytest

pytest.importorskip("zarr", reason="the oracle zarr-python is not installed")

import zarr
from PIL import Image
from support.zarr_pipelines import CHUNKS, PIPELINES

import wkwdask
from wkwdask.formats.as_zarr.served import serve_image
from wkwdask.formats.opening import find

pytestmark = pytest.mark.checks_more

SEEDS = {"nightly": 40, "few": 1}.get(os.environ.get("HYPOTHESIS_PROFILE", "ci"), 1)
PER_SEED = None if SEEDS > 1 else 3
"""Verbs for each array, None for all of them."""
VERBS = {}


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Numcodecs codecs are not in the Zarr version 3 specification"
        )
        warnings.filterwarnings(
            "ignore", message="Combining a `sharding_indexed` codec disables partial reads"
        )
        yield


def verb(function):
    VERBS[function.__name__] = function
    return function


class Place:
    """An image and a folder for what a verb makes of it."""

    def __init__(self, folder, url, seed):
        self.folder, self.url, self.rng = folder, url, np.random.default_rng(seed)

    def target(self, name="target"):
        return f"zarr://{self.folder}/{name}.ome.zarr"

    def method(self, usual):
        """Return a method of downsampling; bool has the mode alone."""
        return "mode" if wkwdask.open(self.url, mag=1).dtype == bool else usual

    def read(self, url, mag=1):
        return wkwdask.open(url, mag=mag).compute()


@verb
def sample(place):
    size = wkwdask.open(place.url, mag=1).shape[1:]
    return wkwdask.sample(place.url, place.rng.integers(0, size, (40, 3)), mag=1)


@verb
def preview(place):
    with Image.open(wkwdask.preview(place.url, f"{place.folder}/picture.png", mag=1)) as picture:
        return np.asarray(picture)


@verb
def zarr_view(place):
    group = zarr.open_group(wkwdask.zarr_view(place.url, chunk_shape=(8, 8, 4)), mode="r")
    return next(array for _, array in group.arrays())[...]


@verb
def served(place):
    """Chunks of the viewer's server, read by zarr-python; an array of Zarr v3 is sent unchanged."""
    image = find(place.url).choose(None)
    volume = image.volume(min(image.mags))
    served = serve_image(
        "image", {volume.mag: volume}, (4.0, 4.0, 4.0), is_segmentation=False, is_rgb=False
    )
    for path in ("zarr.json", "1/zarr.json"):
        _save(f"{place.folder}/served/{path}", served.open(path))
    array = zarr.open_array(f"{place.folder}/served/1", mode="r")
    for key in _keys(array):
        _save(f"{place.folder}/served/1/{key}", served.open(f"1/{key}"))
    voxels = array[...]
    return voxels if volume.dtype == voxels.dtype else voxels.astype(volume.dtype)


def _keys(array):
    edges = array.shards or array.chunks
    return (
        array.metadata.encode_chunk_key(tuple(cell))
        for cell in np.ndindex(*(-(-n // edge) for n, edge in zip(array.shape, edges, strict=True)))
    )


def _save(path, content):
    if content is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content.read(0, content.nbytes))


@verb
def pyramid(place):
    wkwdask.build_pyramid(place.url, mags=["2", "4"], method=place.method("max"))
    return [place.read(place.url, mag) for mag in (1, 2, 4)]


@verb
def mean_of_windows(place):
    wkwdask.build_pyramid(place.url, mags=["2"], method=place.method("mean"))
    report = wkwdask.verify(place.url, pyramid=True)
    assert report.is_sound, str(report)
    return place.read(place.url, 2)


@verb
def update(place):
    wkwdask.build_pyramid(place.url, mags=["2"], method=place.method("min"))
    wkwdask.build_pyramid(place.url, mags=["2"], method=place.method("min"), update=True)
    return place.read(place.url, 2)


@verb
def repair(place):
    wkwdask.build_pyramid(place.url, mags=["2"], method=place.method("max"))
    assert not wkwdask.repair(place.url, older_than=0).actions
    path = next(
        path
        for path in sorted(Path(place.url.removeprefix("zarr://"), "2").rglob("*"))
        if _is_chunk(path)
    )
    path.write_bytes(path.read_bytes()[:-3])
    wkwdask.repair(place.url, older_than=0)
    assert wkwdask.verify(place.url, pyramid=True).is_sound
    return [place.read(place.url, mag) for mag in (1, 2)]


def _is_chunk(path):
    return path.is_file() and not path.name.startswith(".") and path.name != "zarr.json"


@verb
def repair_with_quarantine(place):
    assert not wkwdask.repair(place.url, older_than=0, quarantine=True, salvage=True).actions
    return place.read(place.url)


@verb
def convert_to_wkw(place):
    wkwdask.convert(place.url, f"{place.folder}/dataset", layer="image")
    return place.read(f"{place.folder}/dataset/image")


@verb
def convert_to_n5(place):
    wkwdask.convert(place.url, f"n5://{place.folder}/volume.n5/image")
    return place.read(f"n5://{place.folder}/volume.n5/image")


@verb
def copy(place):
    wkwdask.copy(place.url, place.target(), verify=True)
    return place.read(place.target())


@verb
def copy_box(place):
    wkwdask.copy(place.url, place.target(), bounding_box=[3, 2, 1, 9, 8, 7])
    return place.read(place.target())


@verb
def rechunk(place):
    wkwdask.rechunk(place.url, place.target(), chunk_shape=(8, 4, 16), shard_shape=False)
    return place.read(place.target())


@verb
def rechunk_in_place(place):
    wkwdask.rechunk(place.url, chunk_shape=(8, 8, 8), verify=True)
    return place.read(place.url)


@verb
def compress_in_place(place):
    wkwdask.compress(place.url, compression="gzip")
    return place.read(place.url)


@verb
def apply(place):
    wkwdask.apply(
        _turned,
        place.url,
        place.target(),
        channels=len(place.read(place.url)),
        chunk_shape=(16, 16, 16),
    )
    return place.read(place.target())


def _turned(voxels):
    return voxels.dtype.type(100) - voxels


@verb
def diff(place):
    wkwdask.copy(place.url, place.target())
    assert wkwdask.diff(place.url, place.target()).equal
    return ()


@verb
def histogram(place):
    return wkwdask.histogram(place.url, mag=1, bins=16, range=(0, 128)).values


def labels(function):
    """Register a verb for integers in one channel."""
    function.needs_labels = True
    return verb(function)


@labels
def label_statistics(place):
    return wkwdask.label_statistics(place.url, mag=1).to_numpy()


@labels
def remap(place):
    wkwdask.remap(place.url, place.target(), {1: 5, 7: 9}, default="keep", chunk_shape=(16, 16, 16))
    return place.read(place.target())


@labels
def components(place):
    wkwdask.connected_components(place.url, place.target(), chunk_shape=(16, 16, 16))
    return place.read(place.target())


@labels
def renumber(place):
    wkwdask.renumber(place.url, place.target(), chunk_shape=(16, 16, 16))
    return place.read(place.target())


def draw(rng, dtype):
    """Draw voxels, (c,) z, y, x, with blobs of few values, and the box that is written."""
    shape = tuple(int(n) for n in rng.integers(9, 22, 3))
    shape = (2, *shape) if rng.random() < 0.25 else shape
    blobs = rng.integers(0, 9, [-(-n // 3) for n in shape])
    for axis in range(len(shape)):
        blobs = blobs.repeat(3, axis)
    voxels = np.where(
        rng.random(shape) < 0.9, blobs[tuple(map(slice, shape))], rng.integers(0, 100, shape)
    ).astype(dtype)
    low = [int(rng.integers(-(-n // 2))) for n in shape]
    return voxels, tuple(
        slice(a, int(rng.integers(a + 1, n + 1))) for a, n in zip(low, shape, strict=True)
    )


def write_group(folder, pipeline, num_axes):
    """Write the group of an image of one level, and return its folder."""
    axes = [
        {"name": "c", "type": "channel"},
        *({"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"),
    ][-num_axes:]
    scale = [{"type": "scale", "scale": [1.0, 4.0, 4.0, 4.0][-num_axes:]}]
    image = {"axes": axes, "datasets": [{"path": "0", "coordinateTransformations": scale}]}
    group = zarr.open_group(folder, mode="w", zarr_format=pipeline.zarr_format)
    versions = {
        2: {"multiscales": [{"version": "0.4", **image}]},
        3: {"ome": {"version": "0.5", "multiscales": [image]}},
    }
    group.attrs.update(versions[pipeline.zarr_format])
    return folder


def write_image(pipeline, folder, rng):
    """Write an image of one level with zarr-python; return its voxels (c, x, y, z) as zarr-python
    reads them."""
    dtype, fill, chunks = (
        str(rng.choice(pipeline.types)),
        int(rng.choice([0, 0, 7])),
        CHUNKS[rng.integers(2)],
    )
    voxels, region = draw(rng, dtype)
    write_group(folder, pipeline, voxels.ndim)
    read = np.asarray(
        pipeline.write(
            f"{folder}/0", voxels, bool(fill) if dtype == "bool" else fill, region, chunks
        )[...]
    )
    return read.reshape(-1, *read.shape[-3:]).transpose(0, 3, 2, 1)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("number", range(len(PIPELINES)), ids=list(map(str, PIPELINES)))
def test_every_verb_sees_what_zarr_python_reads(tmp_path, number, seed):
    rng = np.random.default_rng([number, seed])
    first = tmp_path / "0"
    voxels = write_image(PIPELINES[number], first / "image.ome.zarr", rng)
    url = f"zarr://{first}/image.ome.zarr"
    found = wkwdask.read(url, ((0, 0, 0), voxels.shape[1:]), mag=1)
    np.testing.assert_array_equal(found, voxels)
    assert found.dtype == voxels.dtype
    report = wkwdask.verify(url)
    assert report.is_sound, str(report)
    assert not report.faults, str(report)
    is_label = voxels.dtype.kind in "iu" and len(voxels) == 1
    names = [
        name
        for name, function in VERBS.items()
        if is_label or not hasattr(function, "needs_labels")
    ]
    for name in names if PER_SEED is None else rng.choice(names, PER_SEED, replace=False):
        results = []
        for place in ("foreign", "plain"):
            folder = tmp_path / f"{place} {name}"
            if place == "foreign":
                shutil.copytree(first, folder)
            else:
                wkwdask.to_zarr(
                    found,
                    f"zarr://{folder}/image.ome.zarr",
                    voxel_size=(4, 4, 4),
                    chunk_shape=(8, 8, 4),
                    shard_shape=False,
                )
            results.append(VERBS[name](Place(folder, f"zarr://{folder}/image.ome.zarr", seed)))
        _assert_equal(*results, name)


def _assert_equal(found, expected, name):
    if isinstance(found, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _assert_equal(one, other, name)
        return
    np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize(
    "pipeline", [pipeline for pipeline in PIPELINES if pipeline.is_library_only], ids=str
)
def test_pyramids_of_constant_voxels_are_constant(tmp_path, pipeline):
    voxels = np.full((16, 16, 16), 100, "uint16")
    pipeline.write(tmp_path / "array", voxels)
    wkwdask.convert(
        f"zarr://{tmp_path}/array", f"zarr://{tmp_path}/copy.ome.zarr", voxel_size=(4, 4, 4)
    )
    image = write_group(tmp_path / "image.ome.zarr", pipeline, voxels.ndim)
    pipeline.write(f"{image}/0", voxels)
    wkwdask.build_pyramid(f"zarr://{image}", mags=["2"], method="mean")
    for url, mag in ((f"zarr://{tmp_path}/copy.ome.zarr", 1), (f"zarr://{image}", 2)):
        assert np.unique(wkwdask.open(url, mag=mag).compute()).tolist() == [100]
