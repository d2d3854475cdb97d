"""Readers of images that jobs wrote to a bucket of S3, from the bucket itself: ngff-zarr, and the
real Neuroglancer client in a browser."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from oracles.neuroglancer_client import missing, reading_from
from support.buckets import s3_bucket

import wkwdask
from wkwdask.store.store import store_at

pytestmark = [pytest.mark.needs("obstore", "zarr"), pytest.mark.long]
NM = (8, 8, 8)
SHAPE = (40, 36, 20)
STORED = {"voxel_size": NM, "chunk_shape": (16, 16, 16)}
VOXELS, OTHERS = np.random.default_rng(1).integers(1, 255, (2, *SHAPE), np.uint8)
MAGS = (1, 2, 4)


@pytest.fixture(scope="module")
def server():
    with s3_bucket() as bucket:
        bucket.publish()
        yield bucket


@pytest.fixture
def bucket(server, tmp_path):
    with server.reached():
        yield f"{server.url}/{tmp_path.name}"
        store_at(f"{server.url}/{tmp_path.name}").delete_folder()


def coarser(voxels, mag):
    """Return the largest voxel of each window."""
    voxels = np.pad(voxels, [(0, -n % mag) for n in voxels.shape])
    x, y, z = (n // mag for n in voxels.shape)
    return voxels.reshape(x, mag, y, mag, z, mag).max(axis=(1, 3, 5))


def levels(voxels):
    return [coarser(voxels, mag) for mag in MAGS]


def build(url, **options):
    wkwdask.build_pyramid(url, mags=MAGS[1:], method="max", **options)


@pytest.mark.needs("ngff_zarr", "jsonschema")
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_ngff_zarr(bucket, version):
    url, stored = f"{bucket}/v.ome.zarr", {"ngff": version, **STORED}
    wkwdask.save(VOXELS, url, **stored)
    expect_in_ngff_zarr(url, [VOXELS])
    build(url)
    expect_in_ngff_zarr(url, levels(VOXELS))
    wkwdask.rechunk(url, chunk_shape=(32, 32, 32))
    expect_in_ngff_zarr(url, levels(VOXELS))
    wkwdask.save(OTHERS, url, existing="overwrite", **stored)
    expect_in_ngff_zarr(url, [OTHERS, *levels(VOXELS)[1:]])
    build(url, existing="overwrite")
    assert wkwdask.clean(url, grace_seconds=0)
    expect_in_ngff_zarr(url, levels(OTHERS))


def expect_in_ngff_zarr(url, expected):
    """Compare type, voxels and place of all levels of an image."""
    import ngff_zarr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ngff_zarr.from_ngff_zarr(url, validate=True).images
    assert len(found) == len(expected)
    for level, voxels, mag in zip(found, expected, MAGS, strict=False):
        read = level.data.compute(scheduler="synchronous")
        np.testing.assert_array_equal(read.reshape(read.shape[-3:]).T, voxels)
        assert read.dtype == voxels.dtype
        for axis, length in zip("xyz", NM, strict=True):
            assert level.scale[axis] == mag * length
            assert level.translation[axis] == (mag - 1) / 2 * length


@pytest.mark.needs("neuroglancer", "compressed_segmentation")
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_neuroglancer(bucket, server):
    """Its page reads the objects themselves. A page that was open when levels were replaced shows
    the old ones, which stay for a week."""
    ids = np.random.default_rng(2).integers(1, 2**60, (2, *SHAPE), np.uint64)
    images = {
        "image": ({}, VOXELS, OTHERS),
        "labels": ({"category": "segmentation"}, *ids),
        "0.4.ome.zarr": ({"ngff": "0.4"}, VOXELS, OTHERS),
        "0.5.ome.zarr": ({"ngff": "0.5"}, VOXELS, OTHERS),
    }

    def write(number, **existing):
        for name, (options, *voxels) in images.items():
            url = f"{bucket}/{name}"
            url = url if name.endswith(".zarr") else f"precomputed://{url}"
            wkwdask.save(voxels[number], url, **STORED, **options, **existing)
            build(url, **existing)

    def expect(client, number):
        for name, (options, *voxels) in images.items():
            for scale, expected in enumerate(levels(voxels[number])):
                found = (
                    client.read_zarr(name, scale, is_v2=options["ngff"] == "0.4")
                    if name.endswith(".zarr")
                    else client.read(name, scale)[0]
                )
                np.testing.assert_array_equal(found, expected, err_msg=f"{name} {scale}")

    write(0)
    address = f"{server.server}/{bucket.removeprefix('s3://')}"
    with reading_from(f"s3+{address}") as client:
        expect(client, 0)
        write(1, existing="overwrite")
        expect(client, 0)
    with reading_from(address) as client:
        expect(client, 1)
