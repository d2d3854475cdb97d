"""Datasets, images and the plain way to read them, for the tests of Zarr."""

from __future__ import annotations

import json

import lz4.block
import numpy as np

import wkwdask

VOXEL_SIZE = (4.0, 5.0, 40.0)
OPTIONS = {"block_len": 8, "file_len": 2}


def voxels(shape=(30, 41, 22), dtype="uint8", seed=0):
    """Values from 1 on, with a part that is all zero."""
    array = np.random.default_rng(seed).integers(1, 99, shape).astype(dtype)
    array[..., :16, :16, :8] = 0
    return array


def make_dataset(folder, **options):
    """Write an image and a segmentation with three mags, whose boxes begin in the middle of
    blocks."""
    wkwdask.create_dataset(folder, VOXEL_SIZE)
    wkwdask.to_wkw(voxels(), f"{folder}/color/1", offset=(10, 20, 30), **OPTIONS, **options)
    wkwdask.build_pyramid(folder, layer="color", mags="2-2-1,4-4-2", block_len=8, file_len=2)
    wkwdask.to_wkw(
        voxels(dtype="uint32", seed=1),
        f"{folder}/neurons/1",
        offset=(10, 20, 30),
        category="segmentation",
        **OPTIONS,
        **options,
    )
    wkwdask.build_pyramid(folder, layer="neurons", mags="2-2-1,4-4-2", block_len=8, file_len=2)
    return folder


def absolute(path):
    """Read a mag from absolute voxel 0 to the end of its box, axes z, y, x."""
    box = wkwdask.open_dataset(path.parents[1])[path.parent.name].bounding_box.in_mag(
        wkwdask.Mag.parse(path.name)
    )
    out = np.zeros(box.bottomright, wkwdask.open(path).dtype)
    out[tuple(slice(a, b) for a, b in zip(box.topleft, box.bottomright, strict=True))] = (
        wkwdask.open(path)[0].compute()
    )
    return out.T


def document(path):
    """Read a JSON file."""
    return json.loads(path.read_text())


def stored_block():
    """Draw a block of 8 voxels, shape (x, y, z), whose LZ4 encoding has as many bytes as its
    voxels."""
    random = np.random.default_rng(1)
    start = random.integers(1, 256, 512 - 40, np.uint8)
    blocks = (
        np.concatenate([start, start[:length], random.integers(1, 256, 40 - length, np.uint8)])
        for length in range(4, 28)
    )
    return next(
        block
        for block in blocks
        if len(lz4.block.compress(block.tobytes(), store_size=False)) == 512
    ).reshape((8, 8, 8), order="F")
